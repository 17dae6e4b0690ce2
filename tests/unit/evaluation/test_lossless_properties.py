"""Greedy and coupled text is that of the request alone under plain decoding, whatever happens around it.

Drawn are the requests of a batch (rule, sampling setting, prompt, seed), the policy, the drafter, what steps
cost, how prompts are cut, how many pages there are, and where a scheduler is lost. Engines are real.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dspark.cache import default_cache_dir
from dspark.decoding.types import Acceptance, GenerationRequest, StopParams
from dspark.engine.draft import DraftEngine
from dspark.engine.exactness import check_exactness
from dspark.engine.loading import LoadedTarget, load_target
from dspark.engine.pages import PagePool
from dspark.engine.target import TargetEngine, make_pool
from dspark.evaluation.generation import PATIENT, Engines, LocalDecoder
from dspark.evaluation.lossless.obstacles import ChangingPlanner
from dspark.evaluation.lossless.outputs import requests_of
from dspark.evaluation.lossless.restart import LeftBehind
from dspark.evaluation.lossless.settings import SettingTokens, all_settings
from dspark.evaluation.lossless.tiny import TinyDrafter, write_tiny_drafter, write_tiny_target
from dspark.evaluation.threads import one_thread
from dspark.models.checkpoint import load_drafter
from dspark.rounds.local import InlineWorker
from dspark.rounds.planner import planner_of
from dspark.rounds.policies import POLICIES
from tests.fakes import step_costs

NUM_TOKENS, PER_SETTING = 12, 2
TAPS = (0, 2)
DRAFTERS = (
    TinyDrafter(gamma=1),
    TinyDrafter(gamma=2, draft_ids=(0, 2, 3)),
    TinyDrafter(gamma=3, has_confidence_head=False, seed=2),
    TinyDrafter(gamma=4, seed=3),
    TinyDrafter(gamma=5, markov_rank=2, draft_ids=(4, 1)),
    TinyDrafter(gamma=6, seed=5),
    TinyDrafter(gamma=7, draft_ids=(3, 0, 1, 2), seed=6),
)
# Seconds of steps that cost nothing more, something more and far more for more rows.
STEP_COSTS = tuple(step_costs((1, 0.01), (64, 0.01 * (1 + extra))) for extra in (0.01, 1.0, 30.0))
PROMPTS = tuple(
    tuple((7 * k * k + 3 * k + n) % 5 for k in range(length)) for n, length in enumerate((2, 9, 15))
)
TOKENS = SettingTokens(biased=(1, 3), ending=(4,), stops=(2,), min_tokens=6, top_k=3)


@dataclass
class Tiny:
    """One target; drafters and outputs of plain decoding made when they are asked for."""

    folder: Path

    def __post_init__(self) -> None:
        self.path = write_tiny_target(self.folder / "target")
        self.target = self._exact_target()
        self.drafter, self.plain = cache(self._drafter), cache(self._plain)
        requests = [
            request
            for rule in (Acceptance.GREEDY, Acceptance.COUPLED)
            for request in requests_of(
                all_settings(TOKENS), PROMPTS, rule, per_setting=PER_SETTING, max_new_tokens=NUM_TOKENS
            )
        ]
        self.requests = {request.request_id: request for request in requests}

    def _exact_target(self) -> LoadedTarget:
        """By the kernels where they are exact here, else in float64, which no draw brings to a tie."""
        target = load_target(self.path, dtype=torch.float32, target_layer_ids=TAPS)
        if check_exactness(target, make_pool(target, 256, default_cache_dir())).is_exact:
            return target
        return load_target(self.path, dtype=torch.float64, target_layer_ids=TAPS)

    def engines(self, drafter: int | None, *, num_pages: int = 64, step_cost=STEP_COSTS[1]) -> Engines:
        pool = make_pool(self.target, 16 * num_pages, default_cache_dir())
        engine = TargetEngine(self.target, pool, feeds_drafter=True)
        engine.info = replace(engine.info, step_cost=step_cost)
        return Engines(engine, None if drafter is None else self.drafter(drafter), InlineWorker())

    def _drafter(self, number: int) -> DraftEngine:
        path = write_tiny_drafter(self.folder / f"drafter-{number}", self.path, DRAFTERS[number])
        drafter = load_drafter(path, self.path, dtype=torch.float32)
        config = drafter.config
        pool = PagePool(
            num_pages=256,
            num_layers=config.num_hidden_layers,
            num_kv_heads=config.num_key_value_heads,
            head_dim=config.head_dim,
            dtype=torch.float32,
        )
        return DraftEngine(drafter, pool)

    def _plain(self, name: str) -> tuple[int, ...]:
        """The text of a request alone, without drafts."""
        return asyncio.run(self.decode_plainly(self.requests[name]))

    async def decode_plainly(self, request: GenerationRequest) -> tuple[int, ...]:
        async with LocalDecoder(self.engines(None), policy="off") as decoder:
            return (await decoder.generate([request]))[0].token_ids


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Tiny:
    with one_thread():
        yield Tiny(tmp_path_factory.mktemp("tiny"))


@dataclass(frozen=True)
class Around:
    """What is around the requests of a batch."""

    policy: str
    drafter: int
    step_cost: tuple
    prefill_tokens: int
    num_pages: int

    def planner(self, gamma: int):
        if self.policy == "changing":
            return ChangingPlanner(gamma)
        return planner_of(self.policy, fixed_len=gamma, threshold=0.4)

    def decoder(self, tiny: Tiny, **options) -> LocalDecoder:
        engines = tiny.engines(self.drafter, num_pages=self.num_pages, step_cost=self.step_cost)
        config = replace(
            PATIENT, prefill_tokens=self.prefill_tokens, prefill_tokens_alone=self.prefill_tokens
        )
        planner = self.planner(DRAFTERS[self.drafter].gamma)
        return LocalDecoder(engines, policy=planner, config=config, **options)


arounds = st.builds(
    Around,
    policy=st.sampled_from([*POLICIES, "changing"]),
    drafter=st.integers(0, len(DRAFTERS) - 1),
    step_cost=st.sampled_from(STEP_COSTS),
    prefill_tokens=st.sampled_from([1, 4, 512]),
    num_pages=st.sampled_from([3, 64]),
)
# Numbers of requests: twelve settings coupled and eight greedy, each with two prompts.
NUM_REQUESTS = 20 * PER_SETTING
mixes = st.lists(st.integers(0, NUM_REQUESTS - 1), min_size=1, max_size=4, unique=True)


def chosen(tiny: Tiny, mix: list[int]) -> list[GenerationRequest]:
    names = sorted(tiny.requests)
    assert len(names) == NUM_REQUESTS
    return [tiny.requests[names[number]] for number in mix]


@given(around=arounds, mix=mixes)
@settings(max_examples=12, deadline=None)
def test_text_in_any_batch_is_the_text_alone_under_plain_decoding(tiny, around, mix):
    requests = chosen(tiny, mix)

    async def decode():
        async with around.decoder(tiny) as decoder:
            return await decoder.generate(requests)

    found = [one.token_ids for one in asyncio.run(decode())]
    assert found == [tiny.plain(request.request_id) for request in requests]


@given(around=arounds, mix=mixes, share=st.floats(0.0, 1.0))
@settings(max_examples=8, deadline=None)
def test_text_after_a_restart_goes_on_as_it_would_have(tiny, around, mix, share):
    requests = chosen(tiny, mix)
    whole = [tiny.plain(request.request_id) for request in requests]
    kept = [tokens[: round(share * len(tokens))] for tokens in whole]
    store = LeftBehind(list(zip(requests, kept, strict=True)))

    async def resume():
        async with around.decoder(tiny, store=store) as decoder:
            return await decoder.resume(store.received)

    rests = [one.token_ids for one in asyncio.run(resume())]
    assert [(*one, *rest) for one, rest in zip(kept, rests, strict=True)] == whole


@pytest.mark.parametrize("policy", ["off", "fixed"])
def test_text_is_the_same_when_requests_give_way_for_want_of_pages(tiny, policy):
    around = Around(policy, 3, STEP_COSTS[1], 512, num_pages=3)
    # Prompts of nine tokens: one page each, until the output needs another.
    requests = [one for one in tiny.requests.values() if len(one.prompt_token_ids) == 9][:4]

    async def decode():
        async with around.decoder(tiny) as decoder:
            return await decoder.generate(requests), decoder.stats.counters.num_preemptions

    outputs, num_preemptions = asyncio.run(decode())
    assert num_preemptions > 0
    assert [one.token_ids for one in outputs] == [tiny.plain(one.request_id) for one in requests]


def test_every_drafter_of_these_tests_has_drafts_accepted(tiny):
    requests = [one for one in tiny.requests.values() if one.request_id.startswith("coupled")][:4]
    for number in range(len(DRAFTERS)):
        around = Around("fixed", number, STEP_COSTS[0], 512, 64)

        async def decode(around=around):
            async with around.decoder(tiny) as decoder:
                await decoder.generate(requests)
                return decoder.stats.counters

        counters = asyncio.run(decode())
        assert counters.num_draft_tokens > 0
        assert sum(counters.num_accepted_tokens_per_pos) > 0


def test_each_setting_of_these_tests_changes_some_text(tiny):
    def requests(setting):
        return [
            GenerationRequest(
                f"{setting.name}, {seed}",
                PROMPTS[1],
                replace(setting.sampling, seed=seed, acceptance=Acceptance.COUPLED),
                StopParams(NUM_TOKENS, frozenset(setting.stop_token_ids)),
            )
            for seed in range(6)
        ]

    async def decode():
        async with LocalDecoder(tiny.engines(None, num_pages=256), policy="off") as decoder:
            texts = await decoder.generate([one for setting in each for one in requests(setting)])
            return iter([one.token_ids for one in texts])

    each = all_settings(TOKENS)
    texts = asyncio.run(decode())
    by_setting = {setting.name: [next(texts) for _ in range(6)] for setting in each}
    assert [name for name, found in by_setting.items() if found == by_setting["plain"]] == ["plain"]
