"""Features on disk, blocks drawn from them, the draft vocabulary."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from dspark.errors import ConfigurationError, ModelMismatchError
from dspark.training.attention import BlockAttention
from dspark.training.blocks import AnchorRule, BlockSampler, repeats
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


def make_sampler(
    cache: FeatureCache,
    *,
    gamma: int = 3,
    anchors: int = 5,
    batch: int = 2,
    rule: AnchorRule = AnchorRule.SERVING,
) -> BlockSampler:
    return BlockSampler(
        cache,
        np.arange(len(cache)),
        torch.arange(VOCAB),
        gamma=gamma,
        batch_samples=batch,
        anchors_per_sample=anchors,
        seed=0,
        rule=rule,
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
    batch = make_sampler(cache).batch(0)
    # the sampler is free in the order of the samples: the first token of each tells which it is
    for number, (first_row, first_block, last_block) in enumerate(
        zip(batch.token_starts, batch.block_starts, batch.block_starts[1:], strict=False)
    ):
        start, length, prompt_len = next(row for row in cache.index if row[0] == batch.features[first_row, 0])
        assert batch.token_starts[number + 1] - first_row == length
        for block in range(first_block, last_block):
            anchor = int(batch.anchors[block])
            assert prompt_len - 1 <= anchor <= length - 2
            for slot in range(3):
                is_valid = bool(batch.is_valid[block, slot])
                assert is_valid == (anchor + 1 + slot <= length - 1)
                if is_valid:
                    assert int(batch.tokens[block, slot + 1]) == (start + anchor + 1 + slot) % VOCAB
            # the state that predicts the first draft is the anchor's own
            assert float(batch.teacher.last[3 * block, 0]) == float(start + anchor)


def test_short_samples_give_fewer_blocks_and_no_anchor_twice(tmp_path: Path) -> None:
    write_cache(tmp_path / "a", [(9, 6), (40, 6)])
    batch = make_sampler(FeatureCache([tmp_path / "a"]), anchors=20).batch(0)
    counts = np.diff(batch.block_starts)
    assert sorted(counts) == [3, 20]
    for first, count in zip(batch.block_starts, counts, strict=False):
        anchors = batch.anchors[first : first + count].tolist()
        assert anchors == sorted(set(anchors))


def test_published_anchors_are_the_targets_own_tokens_and_short_responses_are_left_out(
    tmp_path: Path,
) -> None:
    write_cache(tmp_path / "a", [(9, 4), (12, 6), (30, 20)])
    cache = FeatureCache([tmp_path / "a"])
    sampler = make_sampler(cache, anchors=20, rule=AnchorRule.PUBLISHED)
    batch = sampler.batch(0)
    assert sorted(np.diff(batch.token_starts)) == [12, 30]
    assert batch.anchors.min() == 6
    # DeepSpec: candidates with loss_mask[a] and loss_mask[a + 1]
    assert len(batch.anchors) == (12 - 6 - 1) + (30 - 20 - 1)


def test_novel_anchors_stand_where_the_text_does_not_repeat_itself(tmp_path: Path) -> None:
    # the tokens count up to VOCAB - 1 and begin again
    write_cache(tmp_path / "a", [(VOCAB + 20, 6), (VOCAB + 3, 6)])
    batch = make_sampler(FeatureCache([tmp_path / "a"]), anchors=1000, rule=AnchorRule.NOVEL).batch(0)
    counts = np.diff(batch.block_starts)
    # the last four tokens occur again from position VOCAB + 3 on
    assert sorted(counts) == [VOCAB + 3 - 1 - 5, VOCAB + 3 - 5]
    assert int(batch.anchors.max()) == VOCAB + 2


def test_a_text_that_repeats_itself_throughout_keeps_its_anchors(tmp_path: Path) -> None:
    write_cache(tmp_path / "a", [(3 * VOCAB, 2 * VOCAB), (3 * VOCAB, 2 * VOCAB)])
    batch = make_sampler(FeatureCache([tmp_path / "a"]), anchors=1000, rule=AnchorRule.NOVEL).batch(0)
    assert len(batch.anchors) == 2 * VOCAB


@pytest.mark.parametrize(
    ("tokens", "found"),
    [
        ([1, 2, 3, 4, 1, 2, 3, 4], [0, 0, 0, 0, 0, 0, 0, 1]),
        ([5, 5, 5, 5, 5], [0, 0, 0, 0, 1]),
        ([1, 2, 3, 4, 5, 2, 3, 4, 5], [0, 0, 0, 0, 0, 0, 0, 0, 1]),
        ([1, 2, 3], [0, 0, 0]),
    ],
)
def test_a_position_repeats_when_its_last_four_tokens_occurred_before(
    tokens: list[int], found: list[int]
) -> None:
    assert repeats(np.array(tokens, dtype=np.int32)).astype(int).tolist() == found


def test_a_batch_is_a_function_of_the_seed_and_its_number(tmp_path: Path) -> None:
    write_cache(tmp_path / "a", [(20 + number, 5) for number in range(7)])
    cache = FeatureCache([tmp_path / "a"])
    ahead, behind = make_sampler(cache), make_sampler(cache)
    forward = [ahead.batch(number) for number in range(8)]
    for number in (6, 0, 5, 3):
        again = behind.batch(number)
        assert torch.equal(again.anchors, forward[number].anchors)
        assert torch.equal(again.tokens, forward[number].tokens)
    assert not all(torch.equal(forward[0].anchors, other.anchors) for other in forward[1:])


def test_every_epoch_takes_no_sample_twice(tmp_path: Path) -> None:
    write_cache(tmp_path / "a", [(20 + number, 5) for number in range(6)])
    sampler = make_sampler(FeatureCache([tmp_path / "a"]))
    for epoch in range(2):
        numbers = range(epoch * len(sampler), (epoch + 1) * len(sampler))
        batches = [sampler.batch(number) for number in numbers]
        assert sum(len(batch.features) for batch in batches) == sum(range(20, 26))


def test_data_for_less_than_one_batch_is_refused(tmp_path: Path) -> None:
    write_cache(tmp_path / "a", [(20, 5)])
    with pytest.raises(ConfigurationError, match="1 samples are not one batch of 2; pass a smaller --batch"):
        make_sampler(FeatureCache([tmp_path / "a"]))


def test_block_attention_sees_the_context_before_the_anchor_and_its_own_block_only() -> None:
    generator = torch.Generator().manual_seed(0)
    gamma, heads, kv_heads, size = 3, 4, 2, 8
    # two samples of 9 and 40 tokens; the second has more blocks than are attended together
    token_starts, block_starts = (0, 9, 49), (0, 2, 22)
    anchors = torch.tensor([2, 7, 0, *range(20, 39)])
    context = tuple(torch.randn(49, kv_heads, size, generator=generator) for _ in range(2))
    num_slots = 22 * gamma
    query = torch.randn(num_slots, heads, size, generator=generator)
    key, value = (torch.randn(num_slots, kv_heads, size, generator=generator) for _ in range(2))
    attend = BlockAttention([context], token_starts, block_starts, anchors, gamma, torch.float32)
    out = attend(0, query, key, value)
    for block, anchor in enumerate(anchors.tolist()):
        first = token_starts[block >= 2]
        rows = slice(block * gamma, (block + 1) * gamma)
        keys, values = (
            torch.cat((known[first : first + anchor], own[rows]))
            for known, own in zip(context, (key, value), strict=True)
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
