"""The chunked losses against plain autograd."""

from __future__ import annotations

import pytest
import torch

from dspark.training.fused_loss import FusedLoss, load_fused_loss
from dspark.training.losses import LossWeights, Teacher, VocabularyLoss, confidence_loss

N, HIDDEN, RANK, VOCAB, DRAFT_VOCAB = 150, 32, 16, 100, 64


def make_inputs() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    full_head = (torch.randn(VOCAB, HIDDEN, generator=generator) * 0.3).bfloat16()
    last = torch.randn(N, HIDDEN, generator=generator).bfloat16()
    weights = torch.rand(N, generator=generator)
    return {
        "hidden": torch.randn(N, HIDDEN, generator=generator),
        "embedded": torch.randn(N, RANK, generator=generator),
        "w2": torch.randn(DRAFT_VOCAB, RANK, generator=generator) * 0.3,
        "head": full_head[:DRAFT_VOCAB].contiguous(),
        "last": last,
        "log_norm": (last @ full_head.t()).float().logsumexp(-1),
        "labels": torch.randint(-1, DRAFT_VOCAB, (N,), generator=generator),
        "weights": weights / weights.sum(),
    }


def reference(inputs: dict[str, torch.Tensor], loss: LossWeights) -> tuple[torch.Tensor, torch.Tensor]:
    logits = inputs["hidden"] @ inputs["head"].float().t() + inputs["embedded"] @ inputs["w2"].t()
    log_draft = logits.log_softmax(-1)
    target = (inputs["last"].float() @ inputs["head"].float().t() - inputs["log_norm"][:, None]).exp()
    soft = -(target * log_draft).sum(-1)
    tv = 0.5 * ((log_draft.exp() - target).abs().sum(-1) + 1 - target.sum(-1))
    labels = inputs["labels"]
    picked = log_draft.gather(1, labels.clamp_min(0)[:, None])[:, 0]
    hard = torch.where(labels >= 0, -picked, torch.zeros(()))
    total = ((loss.soft * soft + loss.tv * tv + loss.hard * hard) * inputs["weights"]).sum()
    return total, 1 - tv


def run(inputs: dict[str, torch.Tensor], loss: LossWeights, fused: FusedLoss | None) -> list[torch.Tensor]:
    leaves = [inputs[name].clone().requires_grad_() for name in ("hidden", "embedded", "w2")]
    teacher = Teacher(inputs["last"], inputs["log_norm"], inputs["labels"])
    rest = (inputs["head"], teacher, inputs["weights"], loss, fused)
    total, overlap, *_ = VocabularyLoss.apply(*leaves, *rest)
    total.backward()
    return [total.detach(), overlap, *(leaf.grad for leaf in leaves)]


def kernel() -> FusedLoss | None:
    return load_fused_loss(DRAFT_VOCAB)


@pytest.mark.parametrize("use_kernel", [False, True])
@pytest.mark.parametrize(
    "loss", [LossWeights(soft=1, tv=0), LossWeights(soft=0, tv=1), LossWeights(hard=0.1, soft=0.5, tv=1.8)]
)
def test_loss_and_gradients_are_those_of_autograd(loss: LossWeights, use_kernel: bool) -> None:
    inputs = make_inputs()
    fused = kernel() if use_kernel else None
    assert not use_kernel or fused is not None, "this machine has a compiler"
    value, overlap, *gradients = run(inputs, loss, fused)
    leaves = {name: inputs[name].clone().requires_grad_() for name in ("hidden", "embedded", "w2")}
    expected, expected_overlap = reference({**inputs, **leaves}, loss)
    expected.backward()
    assert value.item() == pytest.approx(expected.item(), rel=0.02)
    assert (overlap - expected_overlap).abs().max() < 0.02
    for gradient, leaf in zip(gradients, leaves.values(), strict=True):
        # bfloat16 logits: three digits, and the sign in tv flips where both are about equal
        assert (gradient - leaf.grad).norm() < 0.06 * leaf.grad.norm()


def test_mass_outside_the_draft_vocabulary_is_never_won() -> None:
    inputs = make_inputs()
    _, overlap, *_ = run(inputs, LossWeights(), None)
    inside = (inputs["last"].float() @ inputs["head"].float().t() - inputs["log_norm"][:, None]).exp().sum(-1)
    assert (overlap <= inside + 0.01).all()


def test_the_confidence_loss_is_smallest_at_the_overlap() -> None:
    overlap, weights = torch.tensor([0.2, 0.7]), torch.tensor([0.5, 0.5])
    at_overlap = confidence_loss(torch.logit(overlap), overlap, weights)
    for shift in (-0.5, 0.5):
        assert at_overlap < confidence_loss(torch.logit(overlap) + shift, overlap, weights)
