import pytest

from dspark.decoding.types import RoundStats, TokenDelta, VerifierInfo
from dspark.evaluation.generation import Generation, TimedRound
from dspark.evaluation.speed import Output, Sample, in_groups, measure
from dspark.evaluation.speed_figures import (
    committed_by_task,
    differing_prompts,
    plain_step_s,
    round_times,
    same_text_check,
    system_speed,
)
from dspark.evaluation.tasks import TaskPrompt
from dspark.rounds.stats import RequestRound, RoundReport
from dspark.scheduling.surface import StepLoad

CHAT, CODE = TaskPrompt("chat", 0, "a"), TaskPrompt("code", 0, "b")
GROUPS = [[CHAT], [CODE]]


def sample(system, group, repeat, seconds, *texts):
    return Sample(system, group, repeat, seconds, tuple(Output(text) for text in texts))


def test_a_group_counts_with_the_median_of_its_repeats_and_the_whole_with_all_tokens_and_seconds():
    samples = [
        sample("plain", 0, 0, 1.0, (1,) * 10),
        sample("plain", 0, 1, 100.0, (1,) * 10),
        sample("plain", 0, 2, 2.0, (1,) * 10),
        sample("plain", 1, 0, 8.0, (1,) * 40),
        sample("other", 1, 0, 1.0, (1,) * 1000),
    ]
    speed = system_speed(samples, "plain")
    assert speed.by_group == (5.0, 5.0)
    assert speed.overall == pytest.approx(50 / 10)
    assert speed.as_dict() == {"overall": 5.0, "median": 5.0, "min": 5.0, "max": 5.0}


def test_committed_tokens_are_averaged_by_task_for_one_system():
    def output(*lengths):
        starts = [1 + sum(lengths[:place]) for place in range(len(lengths))]
        rounds = (
            TokenDelta("r", start, (0,) * length, RoundStats(4, 4, length - 1))
            for start, length in zip(starts, lengths, strict=True)
        )
        return Output((0,), Generation("r", (TokenDelta("r", 0, (0,)), *rounds)))

    samples = [
        Sample("dspark", 0, 0, 1.0, (output(3, 5),)),
        Sample("dspark", 1, 0, 1.0, (output(2),)),
        Sample("plain", 1, 0, 1.0, (output(1),)),
    ]
    assert committed_by_task(samples, GROUPS, system="dspark") == {"chat": 4.0, "code": 2.0}


def test_prompts_differ_when_any_repeat_of_either_system_made_another_text():
    same = [sample(name, 0, repeat, 1.0, (1, 2)) for name in ("a", "b") for repeat in (0, 1)]
    unlike = [sample("a", 1, 0, 1.0, (1,)), sample("b", 1, 0, 1.0, (1,)), sample("b", 1, 1, 1.0, (2,))]
    assert differing_prompts([*same, *unlike], GROUPS, first="a", second="b") == ["code-0"]


def test_differing_texts_fail_only_where_the_engine_says_it_is_exact():
    def info(is_exact):
        return VerifierInfo("t", 5, 9, 4, 2, (0,), is_exact=is_exact, exact_reason="old kernels")

    assert same_text_check("text", [], info(True)).is_met
    assert not same_text_check("text", ["chat-0"], info(True)).is_met
    shown = same_text_check("text", ["chat-0"], info(False))
    assert shown.is_met
    assert "chat-0" in shown.found
    assert "old kernels" in shown.wanted


def timed(*, wall, draft, verify, tokens, prefill=0, verified=1):
    rounds = [RequestRound("r", 0, 0, 0, 1)] * verified
    report = RoundReport(
        rounds, prefill, StepLoad(tokens), draft_s=draft, plan_s=0.0, step_s=verify, verify_s=verify
    )
    return TimedRound(report, wall)


def test_round_times_leave_out_prefills_and_what_is_left_is_other():
    rounds = [
        timed(wall=9.0, draft=0.0, verify=8.0, tokens=50, prefill=49),
        timed(wall=0.010, draft=0.002, verify=0.007, tokens=4),
        timed(wall=0.014, draft=0.002, verify=0.009, tokens=4),
    ]
    times = round_times(rounds)
    assert times == pytest.approx({"draft": 2.0, "verify": 8.0, "other": 2.0, "round": 12.0})
    assert round_times(rounds[:1]) == {}


def test_the_plain_step_is_the_median_of_steps_of_one_token():
    rounds = [timed(wall=1, draft=0, verify=verify, tokens=1) for verify in (0.3, 0.1, 0.2)]
    rounds.append(timed(wall=1, draft=0, verify=9.0, tokens=2))
    assert plain_step_s(rounds) == pytest.approx(0.2)
    assert plain_step_s(rounds[-1:]) is None


class Told:
    """A system that remembers the order of calls."""

    def __init__(self, name, calls):
        self.name, self._calls = name, calls

    async def decode(self, prompts, max_new_tokens):
        self._calls.append((self.name, prompts[0].task, max_new_tokens))
        return [Output((1,)) for _ in prompts]


async def test_systems_take_turns_within_a_group_and_another_one_begins_each_time():
    calls, repeats = [], []
    systems = [Told("a", calls), Told("b", calls)]
    samples = await measure(systems, GROUPS, max_new_tokens=50, repeats=2, after_group=repeats.append)
    warm_up, counted = calls[:2], calls[2:]
    assert warm_up == [("a", "chat", 16), ("b", "chat", 16)]
    assert "".join(name for name, _, _ in counted) == "abbabaab"
    assert [task for _, task, _ in counted] == ["chat"] * 2 + ["code"] * 2 + ["chat"] * 2 + ["code"] * 2
    assert repeats == [0, 0, 1, 1]
    assert [(one.system, one.group, one.repeat) for one in samples[:3]] == [
        ("a", 0, 0),
        ("b", 0, 0),
        ("b", 1, 0),
    ]


def test_groups_are_neighbours_and_the_last_may_be_short():
    assert [len(group) for group in in_groups([CHAT, CODE, CHAT], 2)] == [2, 1]
