"""A real target with its drafter, what judges its outputs, and how they are decoded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from dspark.decoding.acceptance import NEAR_TIE_MARGIN
from dspark.decoding.types import GenerationRequest
from dspark.evaluation.generation import Engines, Generation, LocalDecoder
from dspark.evaluation.lossless.outputs import num_accepted
from dspark.evaluation.lossless.settings import SettingTokens
from dspark.evaluation.own_forward import OwnForward
from dspark.evaluation.requests import make_requests
from dspark.evaluation.stock import StockModel
from dspark.evaluation.tasks import TaskPrompt
from dspark.evaluation.verdict import Check

# Two forwards that round in different places differ by a few units in the last place; one of bfloat16 is at
# most 2^-7 of the best logit.
RESCORING_MARGIN = 4 * NEAR_TIE_MARGIN
BATCH = 8
_NUM_STOPS = 2


@dataclass(frozen=True, slots=True)
class RealPair:
    """Everything the checks on a real model need."""

    engines: Engines
    stock: StockModel
    own: OwnForward
    prompts: Sequence[TaskPrompt]
    max_new_tokens: int

    def requests(
        self, temperature: float, *, seed: int = 0, is_coupled: bool = False
    ) -> list[GenerationRequest]:
        """One request per prompt."""
        eos = self.engines.target.info.eos_token_ids
        return make_requests(
            self.prompts, self.max_new_tokens, eos, temperature=temperature, seed=seed, is_coupled=is_coupled
        )

    def setting_tokens(self) -> SettingTokens:
        """Tokens that the prompts hold, and so are likely to matter."""
        eos = self.engines.target.info.eos_token_ids
        counts = Counter(token_id for prompt in self.prompts for token_id in prompt.token_ids)
        common = [token_id for token_id, _ in counts.most_common() if token_id not in eos]
        return SettingTokens(
            biased=tuple(sorted(counts)[::7]),
            ending=tuple(sorted(eos)),
            stops=tuple(sorted(common[:_NUM_STOPS])),
            min_tokens=self.max_new_tokens // 2,
            top_k=20,
        )

    async def decode(self, requests: Sequence[GenerationRequest], policy: str) -> list[Generation]:
        """Decode in batches of eight."""
        outputs: list[Generation] = []
        async with LocalDecoder(self.engines, policy=policy) as decoder:
            for start in range(0, len(requests), BATCH):
                outputs += await decoder.generate(requests[start : start + BATCH])
        return outputs

    async def decode_alone(self, requests: Sequence[GenerationRequest], policy: str) -> list[Generation]:
        """Decode one after the other."""
        async with LocalDecoder(self.engines, policy=policy) as decoder:
            return [(await decoder.generate([request]))[0] for request in requests]

    def same_text(
        self,
        name: str,
        requests: Sequence[GenerationRequest],
        first: Sequence[Sequence[int]],
        second: Sequence[Generation],
    ) -> Check:
        """Whether outputs are the same, token for token; a verdict only where the engine is exact."""
        differing = [
            request.request_id
            for request, one, other in zip(requests, first, second, strict=True)
            if tuple(one) != other.token_ids
        ]
        info = self.engines.target.info
        found = f"{len(requests) - len(differing)} of {len(requests)}, {num_accepted(second)} drafts accepted"
        if differing:
            found += f", differs: {', '.join(differing)}"
        if info.is_exact:
            return Check(name, found, "all the same", not differing)
        return Check(name, found, f"shown only, not exact: {info.exact_reason or 'unknown'}", True)


def tokens_of(outputs: Sequence[Generation]) -> list[tuple[int, ...]]:
    """The tokens of each output."""
    return [one.token_ids for one in outputs]
