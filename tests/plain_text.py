"""Text under every policy, held against that of plain decoding."""

from __future__ import annotations

from collections.abc import Sequence

from dspark.evaluation.generation import Engines, LocalDecoder
from dspark.evaluation.requests import make_requests
from dspark.evaluation.tasks import TaskPrompt
from dspark.rounds.policies import POLICIES


async def drafted_by_policy(
    engines: Engines, prompts: Sequence[TaskPrompt], num_tokens: int, *, is_coupled: bool
) -> dict[str, int]:
    """Check that every policy makes the text of plain decoding; returns how many drafts each had verified."""

    async def outputs(policy: str) -> tuple[list[tuple[int, ...]], int]:
        async with LocalDecoder(engines, policy=policy) as decoder:
            temperature = 0.9 if is_coupled else 0.0
            requests = make_requests(
                prompts, num_tokens, (), temperature=temperature, is_coupled=is_coupled, label=policy
            )
            texts = [one.token_ids for one in await decoder.generate(requests)]
            return texts, decoder.stats.counters.num_draft_tokens

    plain, _ = await outputs("off")
    drafted = {}
    for policy in POLICIES:
        texts, drafted[policy] = await outputs(policy)
        assert texts == plain, policy
    return drafted
