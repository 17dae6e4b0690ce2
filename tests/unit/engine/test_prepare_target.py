from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from tiny_targets import save_tiny
from transformers import AutoModelForCausalLM, AutoTokenizer

from dspark.engine.target import TargetEngine
from dspark.errors import ConfigurationError, ModelMismatchError
from dspark.models.target import prepare_target

HIDDEN, INNER, HEADS, VOCAB = 64, 96, 4, 260


def write_gguf(path: Path, architecture: str = "llama", leave_out: str = "") -> Path:
    """A tiny random Llama with a byte tokenizer, as llama.cpp would store it."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_block_count(1)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(VOCAB)
    writer.add_tokenizer_model("gpt2")
    letters = [chr(code) for code in range(33, 127)]
    tokens = ["<unk>", "<s>", "</s>", *letters]
    tokens += ["ab", "cd"]
    tokens += [f"<extra{index}>" for index in range(VOCAB - len(tokens))]
    writer.add_token_list(tokens)
    writer.add_token_merges(["a b", "c d"])
    writer.add_token_types([gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.NORMAL] * (VOCAB - 3))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template("{% for message in messages %}{{ message.content }}{% endfor %}")
    rng = np.random.default_rng(0)

    def add(name: str, *shape: int) -> None:
        if name != leave_out:
            writer.add_tensor(name, rng.normal(scale=0.1, size=shape).astype(np.float32))

    add("token_embd.weight", VOCAB, HIDDEN)
    add("output_norm.weight", HIDDEN)
    add("output.weight", VOCAB, HIDDEN)
    for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
        add(f"blk.0.{name}.weight", HIDDEN, HIDDEN)
    for name, shape in (
        ("ffn_gate", (INNER, HIDDEN)),
        ("ffn_up", (INNER, HIDDEN)),
        ("ffn_down", (HIDDEN, INNER)),
    ):
        add(f"blk.0.{name}.weight", *shape)
    add("blk.0.attn_norm.weight", HIDDEN)
    add("blk.0.ffn_norm.weight", HIDDEN)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_gguf_file_becomes_a_directory_once(
    tmp_path: Path, cache_dir: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = write_gguf(tmp_path / "tiny.gguf")
    folder = prepare_target(str(file), tmp_path / "cache")
    for name in ("config.json", "tokenizer.json", "generation_config.json", "chat_template.jinja"):
        assert (folder / name).is_file(), name
    assert json.loads((folder / "config.json").read_text())["dtype"] == "bfloat16"
    assert capfd.readouterr() == ("", "")
    made = (folder / "config.json").stat().st_mtime_ns
    assert prepare_target(str(file), tmp_path / "cache") == folder
    assert (folder / "config.json").stat().st_mtime_ns == made
    assert [entry.name for entry in folder.parent.iterdir()] == ["tiny"]
    engine = TargetEngine.load(folder, dtype="bfloat16", cache_dir=cache_dir, measure=False)
    assert (engine.info.name, engine.info.vocab_size, engine.info.eos_token_ids) == ("tiny", VOCAB, (2,))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:The given NumPy array is not writable")
def test_the_directory_holds_what_transformers_reads_from_the_file(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "tiny.gguf")
    folder = prepare_target(str(file), tmp_path / "cache")
    expected = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=file.name, dtype=torch.bfloat16)
    found = AutoModelForCausalLM.from_pretrained(folder, dtype="auto").state_dict()
    assert found.keys() == expected.state_dict().keys()
    for name, weight in expected.state_dict().items():
        assert torch.equal(found[name], weight), name
    words = AutoTokenizer.from_pretrained(tmp_path, gguf_file=file.name)
    assert AutoTokenizer.from_pretrained(folder).get_vocab() == words.get_vocab()
    assert AutoTokenizer.from_pretrained(folder).encode("abcd</s>") == words.encode("abcd</s>")


def test_a_conversion_tells_how_far_it_is_and_a_finished_one_says_nothing(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "tiny.gguf")
    shares: list[float] = []
    prepare_target(str(file), tmp_path / "cache", shares.append)
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0.0, 1.0)
    shares.clear()
    prepare_target(str(file), tmp_path / "cache", shares.append)
    assert shares == []


def test_a_gguf_without_some_weights_is_refused(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", leave_out="blk.0.ffn_up.weight")
    with pytest.raises(ModelMismatchError, match=r"holds no weights for model\.layers\.0\.mlp\.up_proj"):
        prepare_target(str(file), tmp_path / "cache")


def test_a_gguf_of_another_family_is_refused_by_name(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", architecture="gemma2")
    with pytest.raises(ModelMismatchError, match=r"family 'gemma2'; dspark runs llama, qwen2, qwen3"):
        prepare_target(str(file), tmp_path / "cache")


def test_another_file_of_the_same_name_is_converted_anew(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "tiny.gguf")
    first = prepare_target(str(file), tmp_path / "cache")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert prepare_target(str(file), tmp_path / "cache") != first


def test_a_directory_is_used_as_it_is(tmp_path: Path) -> None:
    folder = save_tiny(tmp_path / "model", "qwen3")
    assert prepare_target(str(folder), tmp_path / "cache") == folder
    assert not (tmp_path / "cache").exists()


def test_a_missing_target_is_named_with_the_mend(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"does not exist; name a local Hugging Face directory"):
        prepare_target(str(tmp_path / "nothing"), tmp_path)


def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"not a model")
    with pytest.raises(ConfigurationError, match="is not a GGUF file"):
        prepare_target(str(file), tmp_path)


def test_a_truncated_gguf_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "tiny.gguf")
    file.write_bytes(file.read_bytes()[:3000])
    with pytest.raises(ModelMismatchError, match="cannot be converted"):
        prepare_target(str(file), tmp_path / "cache")
    assert [entry for entry in (tmp_path / "cache").rglob("*") if entry.is_file()] == []


def test_a_directory_without_config_or_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"holds no config\.json"):
        prepare_target(str(tmp_path), tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(ConfigurationError, match=r"holds no \.safetensors weights"):
        prepare_target(str(tmp_path), tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigurationError, match="is not the config of a model"):
        prepare_target(str(tmp_path), tmp_path)


def test_another_family_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "mamba"}')
    with pytest.raises(ModelMismatchError, match=r"family 'mamba'; dspark runs llama, qwen2, qwen3"):
        prepare_target(str(tmp_path), tmp_path)


def test_sliding_windows_are_refused(tmp_path: Path) -> None:
    folder = save_tiny(
        tmp_path / "model", "qwen3", use_sliding_window=True, sliding_window=8, max_window_layers=1
    )
    with pytest.raises(ModelMismatchError, match="sliding window"):
        TargetEngine.load(folder, dtype="float32", measure=False)


def test_weights_that_do_not_fit_the_config_are_refused(tmp_path: Path) -> None:
    folder = save_tiny(tmp_path / "model", "llama")
    (folder / "model.safetensors").write_bytes(b"rubbish")
    with pytest.raises(ConfigurationError, match="cannot be loaded"):
        TargetEngine.load(folder, dtype="float32", measure=False)
