"""Real engines of random weights behind the measuring code."""

import pytest
import torch

from dspark.decoding.types import FinishReason
from dspark.evaluation.calibration_fit import decode_blocks
from dspark.evaluation.generation import EnginePlan, LocalDecoder, load_engines
from dspark.evaluation.lossless.tiny import load_tiny_engines, write_tiny_pair
from dspark.evaluation.raw_matmul import RawMatmuls
from dspark.evaluation.requests import make_requests
from dspark.evaluation.speed import LoopSystem, StockSystem
from dspark.evaluation.stock import StockModel, cut_after
from dspark.evaluation.tasks import TaskPrompt
from dspark.evaluation.threads import one_thread
from dspark.scheduling.calibration import SequentialScaling

PROMPTS = [
    TaskPrompt("t", number, "", tuple((number + k) % 5 for k in range(3 + number))) for number in range(4)
]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tiny")
    with one_thread():
        engines = load_tiny_engines(directory, seed=1)
        yield engines, StockModel(directory / "target", "float64")
        engines.worker.shutdown()


async def test_plain_drafted_and_stock_decoding_make_the_same_texts(tiny):
    engines, stock = tiny
    async with LocalDecoder(engines, policy="off") as plain, LocalDecoder(engines, policy="fixed") as drafted:
        systems = [
            LoopSystem("plain", plain, engines),
            LoopSystem("dspark", drafted, engines),
            StockSystem("transformers", stock, engines.worker, ()),
        ]
        texts = [[one.token_ids for one in await system.decode(PROMPTS, 12)] for system in systems]
        assert plain.stats.counters.num_draft_tokens == 0
        assert drafted.stats.counters.num_draft_tokens > 0
        assert len(drafted.rounds) == drafted.stats.counters.num_rounds
        assert all(one.wall_s > 0 for one in drafted.rounds)
    assert [len(text) for text in texts[0]] == [12] * 4
    assert texts[0] == texts[1] == texts[2]


async def test_two_drafters_take_turns_at_one_target(tmp_path):
    target, drafter = write_tiny_pair(tmp_path / "one", seed=1)
    _, other = write_tiny_pair(tmp_path / "two", seed=2)
    with one_thread():
        first = load_engines(EnginePlan(target, drafter, dtype="float64"))
        second = load_engines(EnginePlan(target, other, dtype="float64"), first.worker, target=first.target)
        assert second.target is first.target
        async with LocalDecoder(first, policy="fixed") as one, LocalDecoder(second, policy="fixed") as two:
            texts = []
            for system in (LoopSystem("one", one, first), LoopSystem("two", two, second)) * 2:
                texts.append([output.token_ids for output in await system.decode(PROMPTS, 12)])
            accepted = [decoder.stats.counters.num_accepted_tokens for decoder in (one, two)]
    assert texts[0] == texts[1] == texts[2] == texts[3]
    assert accepted[0] != accepted[1], "each has its own drafts"


async def test_prompt_lookup_makes_the_same_text(tiny):
    engines, stock = tiny
    systems = [StockSystem("a", stock, engines.worker, (), prompt_lookup=lookup) for lookup in (None, 4)]
    plain, lookup = [(await system.decode(PROMPTS[:1], 12))[0].token_ids for system in systems]
    assert plain == lookup


async def test_an_end_of_text_token_ends_an_output_and_stays_in_it(tiny):
    engines, stock = tiny
    async with LocalDecoder(engines, policy="fixed") as decoder:
        (free,) = await decoder.generate(make_requests(PROMPTS[:1], 12, (), label="free-"))
        end = free.token_ids[4]
        (ended,) = await decoder.generate(make_requests(PROMPTS[:1], 12, (end,), label="ended-"))
    expected = cut_after(free.token_ids, (end,))
    assert ended.token_ids == expected
    assert ended.finish_reason is FinishReason.STOP
    assert stock.generate([PROMPTS[0].token_ids], 12, (end,)) == [expected]


async def test_seeds_follow_the_place_of_the_prompt_and_ids_are_unique():
    requests = make_requests([PROMPTS[0]] * 3, 5, (2,), temperature=0.5, seed=10)
    assert [request.sampling.seed for request in requests] == [10, 11, 12]
    assert len({request.request_id for request in requests}) == 3


async def test_blocks_of_real_rounds_carry_their_outcomes(tiny):
    engines, _ = tiny
    gamma = engines.drafter.info.gamma
    blocks = await decode_blocks(
        engines,
        PROMPTS,
        temperature=1.0,
        in_use=SequentialScaling.identity(gamma),
        max_new_tokens=24,
        streams=3,
    )
    assert blocks.logits.shape == blocks.survived.shape
    assert blocks.logits.shape[0] > 10
    # Survival never comes back, and some drafts survive.
    assert (blocks.survived[:, 1:] <= blocks.survived[:, :-1]).all()
    assert blocks.survived[:, 0].any()


def test_scoring_gives_one_row_per_output_token_that_its_argmax_agrees_with(tiny):
    _, stock = tiny
    prompt = PROMPTS[0].token_ids
    (output,) = stock.generate([prompt], 6, ())
    logits = stock.score((*prompt, *output), len(prompt))
    assert logits.shape == (6, 5)
    assert logits.argmax(-1).tolist() == list(output)


def test_raw_matmuls_cover_every_linear_layer_once(tiny):
    _, stock = tiny
    raw = RawMatmuls(stock.model)
    linears = [module for module in stock.model.modules() if isinstance(module, torch.nn.Linear)]
    num_weights = sum(linear.weight.numel() for linear in linears)
    outputs = [linear(row).shape[1] for linear, row in raw._calls]
    assert sum(out * row.shape[1] for out, (_, row) in zip(outputs, raw._calls, strict=True)) == num_weights
    assert all(seconds > 0 for seconds in raw.seconds(2))
