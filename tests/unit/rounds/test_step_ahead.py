"""What a round is known to read before it is planned."""

from __future__ import annotations

from dspark.rounds.request import LiveRequest
from dspark.rounds.step_ahead import StepAhead, load_of_prompts, step_ahead
from dspark.scheduling.surface import StepLoad
from tests.fakes import greedy_request


def live(prompt_len, num_left):
    request = greedy_request("a", prompt=tuple(range(prompt_len)))
    found = LiveRequest(request, 0, request.stop, arrival_s=0.0, deadline_s=0.0)
    found.num_to_prefill = num_left
    return found


def test_each_prompt_token_reads_itself_and_those_before_it():
    load = load_of_prompts([(live(10, 10), 3), (live(10, 4), 2)])
    assert load == StepLoad(5, num_keys=3 + 8, num_scores=(1 + 2 + 3) + (7 + 8))
    assert load_of_prompts([]) == StepLoad(0)


def test_rows_that_decode_have_the_mean_context_and_prompts_their_own():
    step = StepAhead(["a", "b"], [4, 4], StepLoad(5, 11, 21), num_held=300)
    assert step.context_len == 150.0
    assert step.load(12) == StepLoad(12, 311, 7 * 150 + 21)
    assert StepAhead([], [], StepLoad(5, 11, 21)).load(5) == StepLoad(5, 11, 21)


def test_a_request_whose_drafts_were_copied_is_taken_to_have_them_copied_again():
    modelled, copied = live(3, 0), live(3, 0)
    copied.was_copied = True
    asks = {"a": modelled.ask_for_block(2, gamma=6)}
    assert step_ahead([modelled], asks, StepLoad(0), 1, None).num_asked == [2]
    step = step_ahead([copied], asks, StepLoad(0), 1, None)
    assert (step.num_asked, step.num_copied) == ([6], 6)
    assert step_ahead([copied], {}, StepLoad(0), 1, None).num_asked == [0]
