"""Teacher forcing finds a wrong token, a wrong log-probability and logits that depend on the batch."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dspark.decoding.sampling import shaped_probs
from dspark.decoding.types import Acceptance, SamplingParams, VerifierInfo
from dspark.evaluation.generation import Generation
from dspark.evaluation.lossless.definition import kept_by_definition
from dspark.evaluation.lossless.exact_checks import exact_check
from dspark.evaluation.lossless.outputs import decode, places_case, requests_of
from dspark.evaluation.lossless.rescoring import Rescored, choice_gap, rescore
from dspark.evaluation.lossless.settings import SettingTokens, all_settings
from dspark.evaluation.lossless.tiny_checks import TinyPair
from dspark.evaluation.own_forward import OwnForward
from dspark.evaluation.threads import one_thread

# The stock norms compute in float32 whatever the dtype.
MARGIN = 1e-4
TOKENS = SettingTokens(biased=(1, 3), ending=(4,), stops=(2,), min_tokens=4, top_k=3)
PROMPTS = [(1, 3, 0, 2), (2, 0, 4)]
RULES = pytest.mark.parametrize("rule", list(Acceptance), ids=lambda rule: rule.value)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    with one_thread():
        pair = TinyPair.load(tmp_path_factory.mktemp("tiny"))
        yield pair
        pair.engines.worker.shutdown()


@pytest.fixture(scope="module")
def decoded(pair):
    """Requests of every setting and their outputs, by rule."""

    def of(rule):
        requests = requests_of(all_settings(TOKENS), PROMPTS, rule, per_setting=1, max_new_tokens=8)
        return requests, asyncio.run(decode(pair.engines, "fixed", requests))

    return {rule: of(rule) for rule in Acceptance}


def changed(output: Generation, place: int, **changes) -> Generation:
    """The output with the deltas merged, and one log-probability replaced, or one token and none left."""
    tokens = list(output.token_ids)
    logprobs = [one for delta in output.deltas for one in delta.logprobs]
    logprobs[place] = changes.get("logprob", logprobs[place])
    if "token_id" in changes:
        tokens[place], logprobs = changes["token_id"], []
    delta = replace(output.deltas[-1], start=0, token_ids=tuple(tokens), logprobs=tuple(logprobs))
    return Generation(output.request_id, (delta,))


@RULES
def test_outputs_of_every_setting_are_the_choices_of_plain_decoding(pair, decoded, rule):
    requests, outputs = decoded[rule]
    scored = Rescored.of(rescore(pair.stock, *both, MARGIN) for both in zip(requests, outputs, strict=True))
    assert scored.outside == ()
    assert scored.num_near_ties == 0
    assert scored.num_tokens == sum(len(output.token_ids) for output in outputs)


@pytest.mark.parametrize("rule", [Acceptance.GREEDY, Acceptance.COUPLED], ids=lambda rule: rule.value)
def test_every_token_but_the_choice_is_found(pair, decoded, rule):
    for request, output in zip(*decoded[rule], strict=True):
        last = len(output.token_ids) - 1
        for token_id in set(range(5)) - {output.token_ids[last]}:
            wrong = changed(output, last, token_id=token_id)
            assert rescore(pair.stock, request, wrong, MARGIN).outside == (request.request_id,)


def test_a_sampled_token_that_top_k_leaves_no_probability_is_found(pair, decoded):
    requests, outputs = decoded[Acceptance.REJECTION]
    place = next(n for n, request in enumerate(requests) if "top_k" in request.request_id)
    request, output = requests[place], outputs[place]
    logits = pair.stock.score((*request.prompt_token_ids, *output.token_ids), len(request.prompt_token_ids))
    wrong = changed(output, 7, token_id=int(logits[7].argmin()))
    assert rescore(pair.stock, request, wrong, MARGIN).outside == (request.request_id,)
    assert places_case("fixed", "tiny", pair.stock, [request], [output]).is_met
    case = places_case("fixed", "tiny", pair.stock, [request], [wrong])
    assert case.failed == (request.request_id,)


@RULES
def test_a_wrong_log_probability_is_found(pair, decoded, rule):
    request, output = (both[0] for both in decoded[rule])
    right = output.deltas[0].logprobs[0]
    for wrong in (
        replace(right, logprob=right.logprob + 0.01),
        replace(right, top_logprobs=(right.top_logprobs[0], right.top_logprobs[1] - 0.01)),
    ):
        assert rescore(pair.stock, request, changed(output, 0, logprob=wrong), MARGIN).outside
    assert not rescore(pair.stock, request, changed(output, 0), MARGIN).outside


def test_a_token_at_the_edge_of_the_truncation_may_be_kept_or_not_within_the_slack():
    logits = torch.tensor([3.0, 2.0, 1.999, -5.0], dtype=torch.float64)
    sampling = SamplingParams(top_k=2, acceptance=Acceptance.REJECTION)
    assert choice_gap(logits, 1, sampling, 0, slack=0.0) == 0.0
    assert choice_gap(logits, 2, sampling, 0, slack=0.0) == pytest.approx(0.001)
    assert choice_gap(logits, 3, sampling, 0, slack=0.01) == pytest.approx(7.0)
    # The mass of top_p moves with all logits, so more than the next token may be kept.
    nucleus = SamplingParams(top_p=0.5, acceptance=Acceptance.REJECTION)
    assert choice_gap(logits, 1, nucleus, 0, slack=0.0) == pytest.approx(1.0)
    assert choice_gap(logits, 1, nucleus, 0, slack=0.5) == 0.0
    # Of two runners at the edge neither can beat the other; a token far above it can.
    raced = replace(sampling, acceptance=Acceptance.COUPLED)
    gaps = [
        max(choice_gap(logits, token, raced, place, slack=0.01) for token in (1, 2)) for place in range(40)
    ]
    assert min(gaps) <= 0.001
    assert max(gaps) > 0.01


@given(
    logits=st.lists(st.integers(-6, 6).map(lambda n: n / 2), min_size=1, max_size=12),
    top_k=st.integers(0, 13),
    top_p=st.sampled_from([0.0317, 0.51234, 0.9123, 1.0]),
    min_p=st.sampled_from([0.0, 0.0513, 0.3217]),
    temperature=st.sampled_from([0.0, 0.3, 1.0, 1.7]),
)
@settings(max_examples=200, deadline=None)
def test_what_is_kept_by_definition_is_what_production_gives_mass(logits, top_k, top_p, min_p, temperature):
    sampling = SamplingParams(temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p)
    row = torch.tensor(logits, dtype=torch.float64)
    assert kept_by_definition(row, sampling).tolist() == (shaped_probs(row, sampling) > 0).tolist()


class Noisy(OwnForward):
    """Logits that change in the last place where a step is of many rows."""

    def step(self, parts):
        logits = super().step(parts)
        return torch.nextafter(logits, logits + 1) if logits.shape[0] > 100 else logits


@pytest.mark.parametrize(("kind", "is_met"), [(OwnForward, True), (Noisy, False)])
def test_logits_that_depend_on_the_company_are_found(tmp_path, kind, is_met):
    from dspark.evaluation.lossless.tiny import write_tiny_target

    own = kind(write_tiny_target(tmp_path / "target"), "float32", pool_tokens=2048)
    if own.pool.kernels is None:
        pytest.skip("exact mode needs the kernels")
    info = VerifierInfo("t", 5, 256, 16, 128, (), is_exact=True)
    text = [(3 * place) % 5 for place in range(40)]
    check = exact_check(own, info, [text])
    assert check.is_met == is_met
    assert ("beside 31 others" in check.found) != is_met
    assert exact_check(own, replace(info, is_exact=False), [text]).is_met
    assert own.pool.num_free == own.pool.num_pages
