"""What holds for the configuration of every drafter that DeepSpec published."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from dspark.models.config_file import read_config, write_config
from dspark.models.fit import expected_shapes
from tests.deepspec_files import shapes_of, write_drafter


def check_published_tensors(
    config: dict[str, Any], num_tensors: int, num_parameters: int, directory: Path
) -> None:
    """It asks for the tensors of the published file, of which two are copies of the target's rows."""
    shapes = expected_shapes(read_config(write_drafter(directory, config, {})))
    assert shapes == shapes_of(config)
    copies = 2 * config["vocab_size"] * config["hidden_size"]
    assert len(shapes) + 2 == num_tensors
    assert sum(torch.Size(shape).numel() for shape in shapes.values()) + copies == num_parameters


def check_written_as_read(config: dict[str, Any], directory: Path) -> dict[str, Any]:
    """It is written again with the same values; returns what was written."""
    shape = read_config(write_drafter(directory, config, {}))
    (directory / "again").mkdir()
    write_config(shape, directory / "again")
    assert read_config(directory / "again") == shape
    written: dict[str, Any] = json.loads((directory / "again/config.json").read_text())
    same = {key for key in written if key in config} - {"head_dim", "num_key_value_heads", "rope_parameters"}
    assert {key: written[key] for key in same} == {key: config[key] for key in same}
    return written
