"""Temperatures for other engines: what is written obeys their loaders, and what was written is read."""

from __future__ import annotations

import json

import pytest

from dspark.errors import ConfigurationError
from dspark.scheduling.calibration import SequentialScaling
from dspark.scheduling.formats import sglang, tensorrt_llm
from dspark.scheduling.formats.temperatures import Temperatures

FITTED = Temperatures(
    (1.1, 0.9, 2.5), 400, (0.06, 0.07, 0.08), (0.01, 0.02, 0.01), "dspark calibrate, sampled"
)


def on_disk(document):
    return json.loads(json.dumps(document))


def test_what_was_written_for_sglang_is_read_back_whole():
    assert sglang.read_temperatures(on_disk(sglang.sts_calibration(FITTED)), 3) == FITTED


def test_what_was_written_for_tensorrt_llm_is_read_back():
    found = tensorrt_llm.read_temperatures(on_disk(tensorrt_llm.sts_calibration(FITTED)), 3)
    assert found.values == FITTED.values


def test_the_calibration_obeys_the_rules_of_sglang():
    document = on_disk(sglang.sts_calibration(FITTED))
    assert document["temperatures"] == [1.1, 0.9, 2.5]
    assert type(document["num_samples"]) is int
    assert type(document["dataset"]) is str
    assert len(document["ece_before"]) == len(document["ece_after"]) == 3
    assert sglang.sts_calibration(Temperatures((1.0,))) == {"temperatures": [1.0]}, "defaults are left out"


def test_the_calibration_obeys_the_rules_of_tensorrt_llm():
    assert tensorrt_llm.sts_calibration(FITTED) == {"max_draft_len": 3, "sts_temperatures": [1.1, 0.9, 2.5]}


def test_tensorrt_llm_takes_the_file_of_sglang_too():
    document = on_disk(sglang.sts_calibration(FITTED))
    assert tensorrt_llm.read_temperatures(document, 3).values == FITTED.values


@pytest.mark.parametrize(
    ("module", "document", "message"),
    [
        (sglang, [], "must be a JSON object"),
        (sglang, {}, "temperatures of SGLang's STS calibration must be a list"),
        (sglang, {"temperatures": []}, "temperatures must be positive and finite, one per draft"),
        (sglang, {"temperatures": [1.0, 0.0, 1.0]}, "temperatures must be positive and finite"),
        (sglang, {"temperatures": [1.0, "1", 1.0]}, "temperatures .* finite numbers"),
        (sglang, {"temperatures": [1.0, 1.0]}, "fitted for gamma 2 and the drafter has gamma 3"),
        (sglang, {"temperatures": [1.0] * 3, "num_samples": 1.5}, "num_samples .* whole number"),
        (sglang, {"temperatures": [1.0] * 3, "ece_after": 0.1}, "ece_after .* must be a list"),
        (tensorrt_llm, {}, "sts_temperatures of TensorRT-LLM's calibration must be a list"),
        (tensorrt_llm, {"sts_temperatures": [1.0] * 4}, "fitted for gamma 4"),
        (tensorrt_llm, {"sts_temperatures": [1.0] * 3, "max_draft_len": 5}, "max_draft_len .* is 5"),
        (
            tensorrt_llm,
            {"sts_temperatures": [1.0] * 3, "temperatures": [2.0] * 3},
            "sts_temperatures .* temperatures differ",
        ),
    ],
)
def test_what_the_engines_would_refuse_is_refused_by_field(module, document, message):
    with pytest.raises(ConfigurationError, match=message):
        module.read_temperatures(document, 3)


def test_a_scaling_with_offsets_has_no_place_in_a_file_of_temperatures():
    with pytest.raises(ConfigurationError, match=r"offsets .* have no place .* dspark calibrate --export"):
        Temperatures.of(SequentialScaling((1.0, 2.0), (0.0, 0.1)))
    assert Temperatures.of(SequentialScaling((1.0, 2.0), (0.0, 0.0))).values == (1.0, 2.0)
