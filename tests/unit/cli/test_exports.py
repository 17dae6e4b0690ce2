import json
from pathlib import Path

import numpy as np
import pytest

from dspark.cli.calibrate import export_temperatures
from dspark.cli.exports import Export, write_export
from dspark.cli.main import main
from dspark.errors import ConfigurationError
from dspark.evaluation.calibration_fit import DecodedBlocks
from dspark.scheduling.formats import sglang, tensorrt_llm

GAMMA = 3


def overconfident_blocks(num_blocks):
    rng = np.random.default_rng(0)
    logits = rng.normal(0.5, 1.0, (num_blocks, GAMMA))
    survives = rng.random((num_blocks, GAMMA)) < 1 / (1 + np.exp(-logits))
    return DecodedBlocks((2.5 * logits).astype(np.float32), np.cumprod(survives, axis=1).astype(np.float32))


def test_temperatures_are_written_for_both_engines(tmp_path, capsys):
    exports = [Export("sglang", tmp_path / "a.json"), Export("tensorrt-llm", tmp_path / "b.json")]
    export_temperatures(exports, "sampled", overconfident_blocks(2000))
    ours, theirs = [json.loads(one.path.read_text()) for one in exports]
    temperatures = sglang.read_temperatures(ours, GAMMA)
    assert temperatures.values == tensorrt_llm.read_temperatures(theirs, GAMMA).values
    assert temperatures.values[0] == pytest.approx(2.5, rel=0.3)
    assert temperatures.num_blocks == 2000
    assert temperatures.origin == "dspark calibrate, sampled"
    printed = capsys.readouterr().out
    assert "exported, sampled" in printed
    assert f"written to {tmp_path / 'b.json'} (tensorrt-llm)" in printed


def test_what_its_reader_would_refuse_is_not_written(tmp_path):
    export = Export("sglang", tmp_path / "a.json")
    with pytest.raises(ConfigurationError, match="m_probes"):
        write_export(export, {"bias_seconds": 1.0}, sglang.read_costs)
    assert not export.path.exists()


def test_a_file_that_cannot_be_written_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match=r"--export .*file/a.json cannot be written"):
        write_export(Export("sglang", Path(tmp_path / "file" / "a.json")), {}, lambda document: document)


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf"])
def test_the_sampled_set_of_a_calibration_must_be_sampled(value, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["calibrate", "--temperature", value])
    assert f"argument --temperature: '{value}' is not a" in capsys.readouterr().err
