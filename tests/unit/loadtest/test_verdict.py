import dataclasses
import json
import math

import pytest

from loadtest.report import report_dict, verdict_lines
from loadtest.samples import Sample
from loadtest.sla import DEFAULT_SLA, Sla, SlaError
from loadtest.verdict import Outcome, judge, measure, percentile

SLA = Sla(
    ttft_p95_ms=1000, tpot_p95_ms=100, error_rate=0.0, min_attainment=0.9, min_goodput=0.5, min_samples=10
)
# 11 tokens, the first after 0.5 s, the others 50 ms each
GOOD = Sample("code", 0.0, ttft_s=0.5, e2e_s=1.0, num_tokens=11, num_first_tokens=1)
SLOW = dataclasses.replace(GOOD, e2e_s=3.5)
FAILED = Sample("code", 0.0, error="HTTP status 500")


def _judge(*samples, sla=SLA, window_s=10.0, lags_s=()):
    figures = measure(samples, sla, window_s=window_s, lags_s=lags_s)
    return figures, judge(figures, sla)


def test_percentiles_are_values_that_occurred():
    values = [float(n) for n in range(1, 101)]
    assert [percentile(values, share) for share in (0.5, 0.95, 0.99)] == [50, 95, 99]
    assert percentile([7.0], 0.99) == 7.0
    assert math.isnan(percentile([], 0.5))


def test_good_requests_pass():
    figures, verdict = _judge(*[GOOD] * 20)
    assert verdict.outcome is Outcome.PASS
    assert figures.goodput == 2.0
    assert figures.tpot_ms["p95"] == pytest.approx(50.0)
    assert figures.user_tokens_per_second["p5"] == pytest.approx(20.0)
    assert figures.tokens_per_second == pytest.approx(22.0)


def test_a_failed_request_counts_against_attainment_and_errors():
    figures, verdict = _judge(*[GOOD] * 17, *[FAILED] * 3)
    assert figures.attainment == pytest.approx(0.85)
    assert verdict.outcome is Outcome.SLA_MISS
    assert [reason.split()[0] for reason in verdict.reasons] == ["error", "attainment"]


def test_slow_tokens_are_a_miss_and_no_goodput():
    figures, verdict = _judge(*[SLOW] * 20)
    assert figures.num_good == 0
    assert any(reason.startswith("TPOT p95") for reason in verdict.reasons)


def test_when_everything_failed_the_missing_times_are_a_miss_not_a_pass():
    figures, verdict = _judge(*[FAILED] * 20)
    assert verdict.outcome is Outcome.SLA_MISS
    assert any(reason.startswith("TTFT p95 ms nan") for reason in verdict.reasons)
    report = report_dict(figures, verdict, SLA, {})
    assert json.loads(json.dumps(report, allow_nan=False))["figures"]["ttft_ms"]["p95"] is None


def test_too_few_requests_prove_nothing():
    assert _judge(*[GOOD] * 9)[1].outcome is Outcome.INVALID


def test_a_late_generator_proves_nothing():
    _, verdict = _judge(*[GOOD] * 20, lags_s=[0.001] * 50 + [0.5] * 50)
    assert verdict.outcome is Outcome.INVALID
    assert "late by 500 ms" in verdict.reasons[0]


def test_the_last_line_is_the_verdict():
    assert verdict_lines(*_judge(*[GOOD] * 20))[-1] == "PASS"
    assert verdict_lines(*_judge(*[SLOW] * 20))[-1].startswith("SLA MISS: TPOT p95 ms 300 > 100")


def test_the_shipped_sla_is_valid():
    assert Sla.read(DEFAULT_SLA).min_samples > 0


@pytest.mark.parametrize("text", ["ttft_p96_ms: 1", "ttft_p95_ms: soon", "error_rate: -1", "- 1", "a: ["])
def test_a_wrong_sla_file_is_told(tmp_path, text):
    path = tmp_path / "sla.yaml"
    path.write_text(text)
    with pytest.raises(SlaError, match="SLA file"):
        Sla.read(path)
