"""What the routes share: the served model, the scheduler, limits, metrics, clocks. Built once, at start."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version

from dspark.decoding.service import ServiceTier
from dspark.errors import DsparkError, InvalidRequestError, ServiceUnavailableError
from gateway.backend import GenerationBackend, ServingInfo
from gateway.bodies.common import Envelope
from gateway.errors import UnknownModelError
from gateway.generation.plan import Limits
from gateway.keys import KeyRing
from gateway.metrics import GatewayMetrics
from gateway.text.chat_template import ChatTemplate
from gateway.text.tokenizer import TextTokenizer


def package_version() -> str:
    """Version of the installed package; "0" in a checkout that was not installed."""
    try:
        return version("dspark")
    except PackageNotFoundError:
        return "0"


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The one model of this gateway.

    Attributes:
        name: what responses call it.
        aliases: other names requests may use, such as its directory.
        created: seconds since the epoch at which it was loaded.
    """

    name: str
    tokenizer: TextTokenizer
    template: ChatTemplate
    aliases: frozenset[str] = frozenset()
    created: int = 0

    def check_name(self, asked: str | None) -> None:
        """Accept the served name, an alias, or none.

        Raises:
            UnknownModelError: another model is asked for.
        """
        if asked is not None and asked != self.name and asked not in self.aliases:
            raise UnknownModelError(
                f"The model {asked!r} is not served here; use {self.name!r}.", field="model"
            )


@dataclass(frozen=True, slots=True)
class EdgeOptions:
    """Bounds of this gateway.

    Attributes:
        max_body_bytes: largest request body.
        max_choices: most choices of one response.
        keep_alive_s: seconds of silence after which a stream sends a comment.
    """

    max_body_bytes: int = 4 * 2**20
    max_choices: int = 128
    keep_alive_s: float = 10.0


class SchedulerView:
    """The last thing the scheduler said about itself."""

    def __init__(self, backend: GenerationBackend) -> None:
        self._backend = backend
        self._last: ServingInfo | None = None
        self._was_ready = False

    @property
    def was_ready(self) -> bool:
        """Whether the verifier has ever been ready."""
        return self._was_ready

    @property
    def last(self) -> ServingInfo | None:
        """The last answer, however old; None before the first."""
        return self._last

    async def known(self) -> ServingInfo:
        """What does not change while the scheduler lives: asks only until a ready one has answered.

        Raises:
            ServiceUnavailableError, DeadlineError: it has not answered yet, or its model is loading.
        """
        if self._last is None or self._last.max_context_len <= 0:
            self._last = await self._ask()
        if self._last.max_context_len <= 0:
            raise ServiceUnavailableError("The model is still loading; try again in a moment.")
        return self._last

    async def now(self) -> ServingInfo | None:
        """A fresh answer, or None when the scheduler does not give one."""
        try:
            self._last = await self._ask()
        except DsparkError:
            return None
        return self._last

    async def _ask(self) -> ServingInfo:
        info = await self._backend.get_info()
        self._was_ready = self._was_ready or info.is_verifier_ready
        return info


@dataclass(frozen=True, slots=True)
class Edge:
    """Everything a route needs."""

    model: ServedModel
    backend: GenerationBackend
    scheduler: SchedulerView
    options: EdgeOptions = field(default_factory=EdgeOptions)
    metrics: GatewayMetrics = field(default_factory=GatewayMetrics)
    # None: no key is asked for
    keys: KeyRing | None = None
    clock: Callable[[], float] = time.perf_counter
    wall_clock: Callable[[], float] = time.time

    async def limits(self) -> Limits:
        """Bounds of requests: the model's and this gateway's."""
        return Limits.of(await self.scheduler.known(), max_choices=self.options.max_choices)

    def envelope(self, prefix: str, tier: ServiceTier) -> Envelope:
        """A new response id and what goes with it.

        Its fingerprint changes whenever equal seeded requests may be answered differently.
        """
        info = self.scheduler.last
        exactness = "exact" if info is not None and info.is_exact else "inexact"
        return Envelope(
            id=f"{prefix}-{uuid.uuid4().hex}",
            created=int(self.wall_clock()),
            model=self.model.name,
            fingerprint=f"dspark-{package_version()}-{exactness}",
            service_tier=tier.value,
        )

    def gamma(self) -> int:
        """Draft tokens per block; 0 when no drafter is connected."""
        info = self.scheduler.last
        return info.gamma if info is not None else 0

    def check_tokens(self, token_ids: tuple[int, ...], vocab_size: int, name: str) -> None:
        """Refuse ids the model does not have.

        Raises:
            InvalidRequestError: names the field `name`.
        """
        if not token_ids:
            raise InvalidRequestError(f"{name} is empty; send at least one token of text.", field=name)
        if (largest := max(token_ids)) >= vocab_size:
            raise InvalidRequestError(
                f"{name} holds the token id {largest}, but the vocabulary ends at {vocab_size - 1}.",
                field=name,
            )
