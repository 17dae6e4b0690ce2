"""Features on disk, blocks drawn from them, the draft vocabulary."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from dspark.errors import ConfigurationError, ModelMismatchError
from dspark.training.attention import BlockAttention
from dspark.training.blocks import BlockSampler
from dspark.training.features import FeatureCache
from dspark.training.generate import done_ids
from dspark.training.responses import read_rows
from dspark.training.vocabulary import choose_draft_vocabulary, invert_vocabulary

HIDDEN, TAPS, VOCAB = 4, (1, 2), 40


def write_cache(directory: Path, lengths: list[tuple[int, int]], first_token: int = 0) -> None:
    """Samples whose token at position p of sample s is known, and whose features name the token's row."""
    directory.mkdir()
    num_tokens = sum(length for length, _ in lengths)
    tokens = (first_token + np.arange(num_tokens, dtype=np.int32)) % VOCAB
    tokens.tofile(directory / "tokens.bin")
    rows = torch.arange(num_tokens).to(torch.bfloat16)
    for name, width in (("features.bin", len(TAPS) * HIDDEN), ("last.bin", HIDDEN)):
        rows[:, None].expand(-1, width).contiguous().view(torch.int16).numpy().tofile(directory / name)
    np.arange(num_tokens, dtype=np.float32).tofile(directory / "log_norm.bin")
    starts = np.cumsum([0] + [length for length, _ in lengths[:-1]])
    index = [(start, length, prompt) for start, (length, prompt) in zip(starts, lengths, strict=True)]
    np.save(directory / "index.npy", np.array(index, dtype=np.int64))
    manifest = {
        "num_tokens": num_tokens,
        "num_samples": len(lengths),
        "target_layer_ids": list(TAPS),
        "hidden_size": HIDDEN,
        "vocab_size": VOCAB,
    }
    (directory / "manifest.json").write_text(json.dumps(manifest))


def make_sampler(cache: FeatureCache, *, gamma: int = 3, anchors: int = 5) -> BlockSampler:
    return BlockSampler(
        cache,
        np.arange(len(cache)),
        torch.arange(VOCAB),
        gamma=gamma,
        batch_samples=2,
        anchors_per_sample=anchors,
        seed=0,
    )


def test_two_caches_read_as_one(tmp_path: Path) -> None:
    write_cache(tmp_path / "a", [(10, 4), (7, 3)])
    write_cache(tmp_path / "b", [(5, 2)], first_token=20)
    cache = FeatureCache([tmp_path / "a", tmp_path / "b"])
    assert len(cache) == 3
    assert list(cache.index[2]) == [17, 5, 2]
    assert list(cache.tokens(np.array([0, 16, 17, 21]))) == [0, 16, 20, 24]
    assert cache.log_norm(np.array([16, 17])).tolist() == [16.0, 0.0]
    assert cache.features(17, 19).shape == (2, len(TAPS) * HIDDEN)


def test_caches_of_different_targets_are_refused(tmp_path: Path) -> None:
    write_cache(tmp_path / "a", [(10, 4)])
    write_cache(tmp_path / "b", [(10, 4)])
    manifest = json.loads((tmp_path / "b" / "manifest.json").read_text())
    (tmp_path / "b" / "manifest.json").write_text(json.dumps({**manifest, "hidden_size": 8}))
    with pytest.raises(ModelMismatchError, match="hidden_size"):
        FeatureCache([tmp_path / "a", tmp_path / "b"])


def test_an_unfinished_cache_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(ModelMismatchError, match="no finished feature cache"):
        FeatureCache([tmp_path / "a"])


def test_blocks_lie_in_the_response_and_their_labels_follow_the_anchor(tmp_path: Path) -> None:
    write_cache(tmp_path / "a", [(12, 4), (14, 6)])
    cache = FeatureCache([tmp_path / "a"])
    sampler = make_sampler(cache)
    batch = sampler.batch(np.array([0, 1]))
    for row, (start, length, prompt_len) in enumerate(cache.index):
        for block, anchor in enumerate(batch.anchors[row].tolist()):
            assert prompt_len - 1 <= anchor <= length - 2
            for slot in range(3):
                is_valid = bool(batch.is_valid[row, block, slot])
                assert is_valid == (anchor + 1 + slot <= length - 1)
                if is_valid:
                    assert int(batch.tokens[row, block, slot + 1]) == (start + anchor + 1 + slot) % VOCAB
    first = batch.anchors[0, 0]
    # the state that predicts the first draft is the anchor's own
    assert float(batch.teacher.last[0, 0]) == float(cache.index[0, 0] + first)


def test_block_attention_sees_the_context_before_the_anchor_and_its_own_block_only() -> None:
    generator = torch.Generator().manual_seed(0)
    width, gamma, heads, kv_heads, size = 9, 3, 4, 2, 8
    anchors = torch.tensor([[2, 7]])
    context = tuple(torch.randn(width, kv_heads, size, generator=generator) for _ in range(2))
    query = torch.randn(2 * gamma, heads, size, generator=generator)
    key, value = (torch.randn(2 * gamma, kv_heads, size, generator=generator) for _ in range(2))
    out = BlockAttention([context], anchors, gamma, torch.float32)(0, query, key, value)
    for block, anchor in enumerate(anchors[0].tolist()):
        rows = slice(block * gamma, (block + 1) * gamma)
        keys, values = (
            torch.cat((known[:anchor], own[rows])) for known, own in zip(context, (key, value), strict=True)
        )
        for head in range(heads):
            kv = head // (heads // kv_heads)
            probs = torch.softmax(query[rows, head] @ keys[:, kv].t() / size**0.5, -1)
            assert torch.allclose(out[rows, head], probs @ values[:, kv], atol=1e-5)


def test_the_draft_vocabulary_holds_the_most_frequent_response_tokens(tmp_path: Path) -> None:
    write_cache(tmp_path / "a", [(50, 10)])
    cache = FeatureCache([tmp_path / "a"])
    d2t, coverage = choose_draft_vocabulary(cache, 12)
    # positions 10..49 of 0..49 modulo 40: every token once, so the lowest ids win
    assert d2t.tolist() == list(range(12))
    assert coverage == pytest.approx(12 / 40)
    t2d = invert_vocabulary(d2t, VOCAB)
    assert t2d[5] == 5
    assert t2d[20] == -1


def test_a_row_cut_off_by_a_crash_is_dropped_before_resuming(tmp_path: Path) -> None:
    path = tmp_path / "responses.jsonl"
    path.write_text('{"id": "a"}\n{"id": "b"}\n{"id": "c", "resp')
    assert done_ids(path) == {"a", "b"}
    assert path.read_text().endswith('"b"}\n')
    assert done_ids(tmp_path / "none.jsonl") == set()


def test_a_broken_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "x"}\nnot json\n')
    with pytest.raises(ConfigurationError, match="line 2"):
        list(read_rows(path))
