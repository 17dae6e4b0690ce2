"""Every policy under every acceptance rule and sampling setting on a real model; each setting re-scored."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from dspark.decoding.types import Acceptance, GenerationRequest
from dspark.engine.target import TargetEngine
from dspark.evaluation.generation import Generation
from dspark.evaluation.lossless.matrix import Case
from dspark.evaluation.lossless.outputs import (
    CHEAP_ROWS,
    decode,
    places_case,
    refusal_case,
    requests_of,
    same_text_case,
)
from dspark.evaluation.lossless.real_pair import RESCORING_MARGIN, RealPair
from dspark.evaluation.lossless.rescoring import Judge, Rescored, rescore
from dspark.evaluation.lossless.settings import all_settings
from dspark.evaluation.verdict import Check
from dspark.rounds.policies import POLICIES

_LEVEL = "real"
# The logits are the same, bit for bit; what the engine makes of them is float32 and float64 here.
_OWN_MARGIN = 1e-5
_RESCORED_POLICY = "fixed"

_ByRule = dict[Acceptance, list[GenerationRequest]]


class RealSettings:
    """Decodes one request per setting and rule under every policy; keeps what is to be re-scored."""

    def __init__(self, pair: RealPair) -> None:
        self._pair = pair
        self._requests: _ByRule = {
            rule: requests_of(
                all_settings(pair.setting_tokens()),
                [prompt.token_ids for prompt in pair.prompts],
                rule,
                per_setting=1,
                max_new_tokens=pair.max_new_tokens,
                eos_token_ids=pair.engines.target.info.eos_token_ids,
            )
            for rule in Acceptance
        }
        self._to_score: dict[Acceptance, list[Generation]] = {}

    async def cases(self) -> AsyncIterator[Case]:
        """All policies: all rules in one batch, against plain decoding of each request alone."""
        pure = [rule for rule in Acceptance if rule is not Acceptance.REJECTION]
        plain = {rule: await self._pair.decode_alone(self._requests[rule], "off") for rule in pure}
        for policy in POLICIES:
            rules = pure if policy == "retrospective" else list(Acceptance)
            with _cheap_rows(self._pair.engines.target):
                found = await self._decode(policy, rules)
            if policy == _RESCORED_POLICY:
                self._to_score = found
            for rule in rules:
                requests = self._requests[rule]
                if rule is Acceptance.REJECTION:
                    yield places_case(policy, _LEVEL, self._pair.own, requests, found[rule])
                elif self._pair.engines.target.info.is_exact:
                    yield same_text_case(policy, _LEVEL, requests, plain[rule], found[rule])
            if policy == "retrospective":
                some = self._requests[Acceptance.REJECTION][:1]
                yield await refusal_case(self._pair.engines, policy, policy, _LEVEL, some)

    def checks(self) -> list[Check]:
        """What both judges say of every setting, by rule; call it after `cases`."""
        pair = self._pair
        found = []
        for rule, outputs in self._to_score.items():
            requests = self._requests[rule]
            name = f"{rule.value} tokens of {len(requests)} settings re-scored by "
            if pair.engines.target.info.is_exact:
                found.append(
                    _rescored(name + "the engine's own forward", pair.own, requests, outputs, _OWN_MARGIN)
                )
            found.append(_rescored(name + "transformers", pair.stock, requests, outputs, RESCORING_MARGIN))
        return found

    async def _decode(self, policy: str, rules: Sequence[Acceptance]) -> dict[Acceptance, list[Generation]]:
        requests = [request for rule in rules for request in self._requests[rule]]
        outputs = iter(await decode(self._pair.engines, policy, requests))
        return {rule: [next(outputs) for _ in self._requests[rule]] for rule in rules}


@contextmanager
def _cheap_rows(engine: TargetEngine) -> Iterator[None]:
    """Have policies that weigh costs take rows for cheap, until their rounds teach them better."""
    info = engine.info
    engine.info = replace(info, step_cost=CHEAP_ROWS)
    try:
        yield
    finally:
        engine.info = info


def _rescored(
    name: str,
    judge: Judge,
    requests: Sequence[GenerationRequest],
    outputs: Sequence[Generation],
    margin: float,
) -> Check:
    scored = Rescored.of(
        rescore(judge, request, output, margin) for request, output in zip(requests, outputs, strict=True)
    )
    wanted = f"the choice, or within {margin:g} of it; log-probabilities within {2 * margin:g}"
    return Check(name, scored.found, wanted, not scored.outside)
