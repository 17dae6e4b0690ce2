"""Converts a GGUF file into a Hugging Face directory, in a fifth of the time transformers takes for it.

transformers parses the whole file four times, for config, weights and tokenizer, and builds the table of
tensor names anew for every module of the model. Tables and arithmetic are theirs and llama.cpp's; only the
order of the calls is ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from torch import Tensor

from dspark.errors import ModelMismatchError
from dspark.models.target import check_family, quiet_transformers

# Told the share of the weights that are converted, 0 to 1.
Progress = Callable[[float], None]


def convert(file: Path, folder: Path, progress: Progress) -> None:
    """Write config, weights in bfloat16, tokenizer and chat template of a GGUF file to a directory.

    Raises:
        ModelMismatchError: the file is broken, or the model is of a family dspark cannot run.
    """
    with quiet_transformers():
        try:
            reader = _Reader(file)
            values = _config_values(reader)
            check_family(values["model_type"], str(file))
            model = _empty_model(values)
            _fill(model, dict(_weights(reader, model, values, progress)))
            model.save_pretrained(folder)
            _tokenizer(file, model.config).save_pretrained(folder)
        except ModelMismatchError:
            raise
        except Exception as error:  # the readers raise anything on a broken file
            raise ModelMismatchError(f"target {str(file)!r} cannot be converted: {error}") from error


class _Reader(gguf.GGUFReader):
    """Cuts the fields out of a plain array, which takes half the time of cutting them out of a memory map."""

    @property
    def data(self) -> Any:
        return self._data

    @data.setter
    def data(self, mapped: Any) -> None:
        self._data = np.asarray(mapped)


def _config_values(reader: _Reader) -> dict[str, Any]:
    """The fields of a transformers config, by its own table of what llama.cpp calls them."""
    from transformers.integrations.ggml import GGUF_CONFIG_MAPPING

    architecture = reader.fields["general.architecture"].contents()
    table: Any = GGUF_CONFIG_MAPPING
    names = {prefix: table.get(prefix, {}) for prefix in ("general", architecture, "tokenizer")}
    values = {}
    for key, field in reader.fields.items():
        prefix, _, rest = key.partition(".")
        if (name := names.get(prefix, {}).get(rest)) is not None:
            values[name] = field.contents()
    if "vocab_size" not in values and (tokens := reader.fields.get("tokenizer.ggml.tokens")):
        values["vocab_size"] = len(tokens.data)
    values["tie_word_embeddings"] = all(tensor.name != "output.weight" for tensor in reader.tensors)
    return values


def _empty_model(values: dict[str, Any]) -> Any:
    """The model without memory for its weights."""
    from transformers import AutoConfig, AutoModelForCausalLM

    auto: Any = AutoModelForCausalLM
    with torch.device("meta"):
        return auto.from_config(AutoConfig.for_model(**values), dtype=torch.bfloat16)


def _weights(
    reader: _Reader, model: Any, values: dict[str, Any], progress: Progress
) -> Iterator[tuple[str, Tensor]]:
    """Each tensor the model has, under the model's name for it; others, such as rope tables, are left out."""
    from transformers.modeling_gguf_pytorch_utils import TENSOR_PROCESSORS, TensorProcessor

    # Undoes what llama.cpp does to some tensors, such as the order of query rows.
    kind: Any = TENSOR_PROCESSORS.get(values["model_type"], TensorProcessor)
    processor = kind(config=values)
    names = _names(model)
    for done, tensor in enumerate(reader.tensors):
        progress(done / len(reader.tensors))
        if (name := names.get(tensor.name)) is None:
            continue
        weights = gguf.dequantize(tensor.data, tensor.tensor_type)
        weights = processor.process(weights=weights, name=tensor.name).weights
        yield name, torch.from_numpy(np.require(weights, requirements=["C", "W"])).to(torch.bfloat16)
    progress(1.0)


def _names(model: Any) -> dict[str, str]:
    """The model's name of each tensor by the name it has in a GGUF file."""
    architectures = {name: architecture for architecture, name in gguf.MODEL_ARCH_NAMES.items()}
    config = model.config
    table = gguf.get_tensor_name_map(architectures[config.model_type], config.num_hidden_layers)
    names = {}
    for name in model.state_dict():
        stem, _, suffix = name.rpartition(".")
        if (theirs := table.get_name(stem)) is not None:
            names[f"{theirs}.{suffix}"] = name
    return names


def _fill(model: Any, weights: dict[str, Tensor]) -> None:
    model.load_state_dict(weights, strict=False, assign=True)
    model.tie_weights()
    if missing := [name for name, weight in model.named_parameters() if weight.is_meta]:
        raise ValueError(f"it holds no weights for {', '.join(missing[:3])}")


def _tokenizer(file: Path, config: Any) -> Any:
    """What AutoTokenizer would return, which reads the file again just to learn the family of the model."""
    from transformers import TOKENIZER_MAPPING, TokenizersBackend

    kind: Any = TOKENIZER_MAPPING.get(type(config), TokenizersBackend)
    return kind.from_pretrained(str(file.parent), gguf_file=file.name)
