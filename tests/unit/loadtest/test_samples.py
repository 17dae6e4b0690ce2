import pytest

from loadtest.samples import Sample, StreamMeter, in_window
from loadtest.sse import DONE, read_events


def _chunk(text: str, num_tokens: int, finish: str | None = None, **details: int) -> dict[str, object]:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish, "dspark": details}
    return {"choices": [choice], "usage": {"completion_tokens": num_tokens}}


ROLE = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}


def test_events_end_at_blank_lines_whatever_pieces_they_arrive_in():
    lines = [
        b": ping\n",
        b"\n",
        b'data: {"a": 1}\r\n',
        b"\r\n",
        b'data: {"b":\n',
        b"data: 2}\n",
        b"\n",
        b"data: [DONE]\n",
    ]
    assert list(read_events([*lines, b"\n"])) == [{"a": 1}, {"b": 2}, DONE]


def test_the_first_token_is_the_first_text_not_the_role():
    meter = StreamMeter("code", sent_s=10.0)
    meter.take(ROLE, 10.1)
    meter.take(_chunk("Hi", 1), 10.5)
    meter.take(_chunk(" there", 2, "stop"), 11.0)
    meter.take(DONE, 11.0)
    sample = meter.sample(11.0)
    assert sample.error == ""
    assert sample.ttft_s == pytest.approx(0.5)
    assert sample.e2e_s == pytest.approx(1.0)


def test_the_tokens_of_the_first_event_do_not_count_as_decoded_after_it():
    meter = StreamMeter("code", sent_s=0.0)
    meter.take(_chunk("one two three", 3), 1.0)
    meter.take(_chunk(" four five", 5, "length"), 2.0)
    meter.take(DONE, 2.0)
    assert meter.sample(2.0).tpot_s == pytest.approx(0.5)


def test_one_event_has_no_time_per_token():
    assert Sample("code", 0.0, ttft_s=1.0, e2e_s=1.0, num_tokens=3, num_first_tokens=3).tpot_s is None


def test_mean_committed_counts_drafted_rounds_and_their_bonus_token():
    meter = StreamMeter("code", sent_s=0.0)
    meter.take(_chunk("a", 1, num_drafted=0, num_accepted=0), 1.0)
    meter.take(_chunk("bcd", 4, num_drafted=7, num_accepted=2), 1.1)
    meter.take(_chunk("e", 5, "stop", num_drafted=7, num_accepted=0), 1.2)
    meter.take(DONE, 1.2)
    assert meter.sample(1.2).mean_committed == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("events", "error"),
    [
        ([_chunk("a", 1)], "the stream was cut"),
        ([_chunk("a", 1, "stop")], "the stream was cut"),
        ([ROLE, _chunk("", 0, "stop"), DONE], "no text"),
        ([_chunk("a", 1), {"error": {"message": "the verifier is gone"}}, DONE], "the verifier is gone"),
    ],
)
def test_a_stream_without_its_end_is_an_error(events, error):
    meter = StreamMeter("code", sent_s=0.0)
    for event in events:
        meter.take(event, 1.0)
    assert meter.sample(1.0).error == error


def test_requests_sent_while_warming_up_do_not_count():
    samples = [Sample("code", sent_s) for sent_s in (0.0, 4.9, 5.0, 9.0)]
    assert [sample.sent_s for sample in in_window(samples, 5.0)] == [5.0, 9.0]
