"""Training drafters of every kind: teacher forcing says what drafting would, and every part learns."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dspark.models.config import DrafterConfig
from dspark.models.drafter import DSparkDrafter
from dspark.training.attention import BlockAttention
from dspark.training.blocks import BlockBatch
from dspark.training.calibrate import calibrate
from dspark.training.losses import LossWeights, Teacher
from dspark.training.objective import run_blocks
from dspark.training.precision import set_training_dtype
from dspark.training.recipe import RECIPES
from dspark.training.trainer import Trainer, TrainerConfig
from tests.finite_differences import check_gradient
from tests.tiny_drafters import TINY, random_drafter

BARE = {"has_confidence_head": False, "confidence_head_with_markov": False}
FULL = replace(TINY, draft_vocab_size=0)
CONFIGS = {
    "vanilla": FULL,
    "gated": replace(FULL, markov_head_type="gated"),
    "rnn": replace(FULL, markov_head_type="rnn"),
    "confidence-of-hidden": replace(FULL, confidence_head_with_markov=False),
    "no-confidence-head": replace(FULL, **BARE),
    "dflash": replace(FULL, markov_rank=0, **BARE),
}
SAMPLES, WIDTH, ANCHORS, GAMMA = 2, 20, 5, TINY.gamma


def make_drafter(config: DrafterConfig, dtype: torch.dtype = torch.float32) -> DSparkDrafter:
    return set_training_dtype(random_drafter(config, torch.arange(config.vocab_size), std=0.2), dtype)


def make_batch(drafter: DSparkDrafter) -> BlockBatch:
    generator = torch.Generator().manual_seed(1)
    num_slots, size = SAMPLES * ANCHORS * GAMMA, TINY.hidden_size
    last = torch.randn(num_slots, size, generator=generator).bfloat16()
    tokens = torch.randint(0, TINY.vocab_size, (SAMPLES * ANCHORS, GAMMA + 1), generator=generator)
    return BlockBatch(
        features=torch.randn(SAMPLES * WIDTH, 2 * size, generator=generator).bfloat16(),
        token_ids=torch.zeros(SAMPLES * WIDTH, dtype=torch.int64),
        token_starts=tuple(range(0, (SAMPLES + 1) * WIDTH, WIDTH)),
        block_starts=tuple(range(0, (SAMPLES + 1) * ANCHORS, ANCHORS)),
        anchors=torch.arange(8, 8 + ANCHORS).repeat(SAMPLES),
        tokens=tokens,
        is_valid=torch.ones(SAMPLES * ANCHORS, GAMMA, dtype=torch.bool),
        teacher=Teacher(
            last, (last.float() @ drafter.lm_head.float().t()).logsumexp(-1), tokens[:, 1:].reshape(-1)
        ),
    )


def slot_by_slot(drafter: DSparkDrafter, batch: BlockBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """Draft probabilities [N, G, V] and confidence logits [N, G] of blocks run one by one, slot by slot."""
    probs, confidences = [], []
    for sample, first in enumerate(batch.token_starts[:-1]):
        rows = slice(*batch.block_starts[sample : sample + 2])
        for anchor, tokens in zip(batch.anchors[rows], batch.tokens[rows], strict=True):
            fused = drafter.backbone.fuse(batch.features[first : first + anchor].float())
            contexts = drafter.backbone.context_keys_values(fused, torch.arange(int(anchor)))
            attend = BlockAttention(contexts, (0, int(anchor)), (0, 1), anchor.view(1), GAMMA, torch.float32)
            embeddings = drafter.block_embeddings(tokens[:1])[0]
            hidden = drafter.backbone(embeddings, anchor + torch.arange(GAMMA), attend)
            state = None
            for slot in range(GAMMA):
                logits, embedded = drafter.lm_head @ hidden[slot], None
                if drafter.markov_head is not None:
                    embedded = drafter.markov_head.embed(tokens[slot])
                    mixed, state = drafter.markov_head.step(embedded, hidden[slot], state)
                    logits = logits + drafter.markov_head.bias(mixed)
                head = drafter.confidence_head
                probs.append(logits.softmax(-1))
                peak = probs[-1].max()
                confidences.append(torch.logit(peak) if head is None else head(hidden[slot], embedded))
    return torch.stack(probs), torch.stack(confidences)


@pytest.mark.parametrize("kind", CONFIGS)
def test_teacher_forcing_gives_the_distributions_and_confidences_of_drafting(kind: str) -> None:
    drafter = make_drafter(CONFIGS[kind])
    batch = make_batch(drafter)
    with torch.no_grad():
        hard_only = LossWeights(hard=1.0, soft=0.0, tv=0.0, confidence=0.0)
        loss, scores = run_blocks(drafter, batch, hard_only, decay=4.0)
        probs, confidences = slot_by_slot(drafter, batch)
        target = (batch.teacher.last.float() @ drafter.lm_head.t() - batch.teacher.log_norm[:, None]).exp()
    overlap = torch.minimum(probs, target).sum(-1)
    torch.testing.assert_close(scores.overlap.flatten(), overlap, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(scores.confidence_logits.flatten().sigmoid(), confidences.sigmoid())
    hard = -probs.gather(1, batch.teacher.labels[:, None])[:, 0].log().view(-1, GAMMA)
    decay = torch.exp(-torch.arange(GAMMA) / 4.0)
    assert loss.item() == pytest.approx(float((hard * decay).sum() / (decay.sum() * len(hard))), rel=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", CONFIGS)
def test_every_parameter_of_every_kind_learns(kind: str, dtype: torch.dtype) -> None:
    drafter = make_drafter(CONFIGS[kind], dtype)
    value, _ = run_blocks(drafter, make_batch(drafter), LossWeights(), decay=4.0)
    value.backward()
    still = [name for name, one in drafter.named_parameters() if one.grad is None or not one.grad.any()]
    assert not still


@pytest.mark.parametrize("kind", ["gated", "rnn"])
def test_gradients_of_a_head_are_those_of_finite_differences(kind: str) -> None:
    drafter = make_drafter(CONFIGS[kind])
    batch = make_batch(drafter)
    weight = (drafter.markov_head.gate_proj if kind == "gated" else drafter.markov_head.joint_proj).weight
    loss = LossWeights(hard=0.2, soft=1.0, tv=0.0, confidence=0.5)
    value, _ = run_blocks(drafter, batch, loss, decay=4.0)
    value.backward()
    check_gradient(weight, lambda: run_blocks(drafter, batch, loss, decay=4.0)[0])


class SameBatch:
    """A sampler of one batch."""

    def __init__(self, batch: BlockBatch) -> None:
        self._batch = batch

    def batch(self, number: int, block_len: int) -> BlockBatch:
        del number, block_len
        return self._batch

    def identity(self) -> dict[str, int | str]:
        return {}


@pytest.mark.parametrize("kind", ["rnn", "dflash"])
def test_a_trainer_takes_its_steps_and_a_calibration_can_be_fitted(kind: str, tmp_path: Path) -> None:
    drafter = make_drafter(CONFIGS[kind])
    batch = make_batch(drafter)
    settings = TrainerConfig(RECIPES["dspark"], steps=20)
    trainer = Trainer(drafter, SameBatch(batch), [batch], settings, tmp_path)
    before = trainer.evaluate()["held_out_loss"]
    trainer.run(lambda text: None, lambda: None)
    assert trainer.evaluate()["held_out_loss"] < before
    result = calibrate(drafter, [batch])
    assert len(result.calibration.greedy.temperatures) == GAMMA
