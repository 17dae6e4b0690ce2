"""Decoding speed, side by side in one process: plain, DSpark, transformers, transformers' prompt lookup."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from dspark.evaluation.generation import Engines, Generation, LocalDecoder
from dspark.evaluation.requests import make_requests
from dspark.evaluation.stock import StockModel
from dspark.evaluation.tasks import TaskPrompt
from dspark.rounds.local import EngineWorker

_WARM_UP_TOKENS = 16
LOOKUP_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Output:
    """What a system made of one prompt; rounds where the system has them."""

    token_ids: tuple[int, ...]
    generation: Generation | None = None


class System(Protocol):
    """One way of decoding."""

    name: str

    async def decode(self, prompts: Sequence[TaskPrompt], max_new_tokens: int) -> list[Output]:
        """Decode the prompts side by side, greedily."""
        ...


@dataclass(frozen=True, slots=True)
class Sample:
    """One group of prompts decoded once by one system."""

    system: str
    group: int
    repeat: int
    seconds: float
    outputs: tuple[Output, ...]

    @property
    def num_tokens(self) -> int:
        """Tokens of all outputs."""
        return sum(len(output.token_ids) for output in self.outputs)


class LoopSystem:
    """Our round loop, open while it is measured."""

    def __init__(self, name: str, decoder: LocalDecoder, engines: Engines) -> None:
        self.name = name
        self.decoder = decoder
        self._eos_token_ids = engines.target.info.eos_token_ids
        self._num_calls = 0

    async def decode(self, prompts: Sequence[TaskPrompt], max_new_tokens: int) -> list[Output]:
        """See `System`."""
        self._num_calls += 1
        label = f"{self.name}-{self._num_calls}-"
        requests = make_requests(prompts, max_new_tokens, self._eos_token_ids, label=label)
        return [Output(one.token_ids, one) for one in await self.decoder.generate(requests)]


class StockSystem:
    """transformers' `generate`, run by the same thread as our engines."""

    def __init__(
        self,
        name: str,
        model: StockModel,
        worker: EngineWorker,
        eos_token_ids: Sequence[int],
        *,
        prompt_lookup: int | None = None,
    ) -> None:
        self.name = name
        self._model = model
        self._worker = worker
        self._eos_token_ids = tuple(eos_token_ids)
        self._prompt_lookup = prompt_lookup

    async def decode(self, prompts: Sequence[TaskPrompt], max_new_tokens: int) -> list[Output]:
        """See `System`."""
        outputs = await self._worker.call(
            self._model.generate,
            [prompt.token_ids for prompt in prompts],
            max_new_tokens,
            self._eos_token_ids,
            prompt_lookup=self._prompt_lookup,
        )
        return [Output(token_ids) for token_ids in outputs]


async def measure(
    systems: Sequence[System],
    groups: Sequence[Sequence[TaskPrompt]],
    *,
    max_new_tokens: int,
    repeats: int,
    after_group: Callable[[int], None] = lambda _repeat: None,
) -> list[Sample]:
    """Decode every group by every system, the systems taking turns group by group.

    Within a repeat all systems decode one group before the next begins, each time another one first: what
    disturbs the machine for longer than a group disturbs all alike.

    Args:
        systems: warmed up on the first group before anything counts.
        groups: prompts that are decoded side by side.
        max_new_tokens: limit of each output.
        repeats: passes over all groups.
        after_group: called after each group, with the number of the repeat.
    """
    for system in systems:
        await system.decode(groups[0], min(_WARM_UP_TOKENS, max_new_tokens))
    samples = []
    for repeat in range(repeats):
        for number, group in enumerate(groups):
            first = (repeat + number) % len(systems)
            for system in (*systems[first:], *systems[:first]):
                started = time.perf_counter()
                outputs = await system.decode(group, max_new_tokens)
                seconds = time.perf_counter() - started
                samples.append(Sample(system.name, number, repeat, seconds, tuple(outputs)))
            after_group(repeat)
    return samples


def in_groups(prompts: Sequence[TaskPrompt], size: int) -> list[Sequence[TaskPrompt]]:
    """Neighbouring prompts, so many at a time."""
    return [prompts[start : start + size] for start in range(0, len(prompts), size)]
