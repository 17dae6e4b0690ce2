"""Training Eagle3 and MTP drafters: steps of training are those of drafting, and every part learns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from dspark.errors import ConfigurationError, ModelMismatchError
from dspark.models.chain import ChainDrafter
from dspark.models.checkpoint import build_drafter, load_drafter
from dspark.models.config import QWEN3_EAGLE3
from dspark.training.blocks import AnchorRule, BlockBatch, BlockSampler
from dspark.training.calibrate import calibrate
from dspark.training.chain import chain_states
from dspark.training.features import FeatureCache
from dspark.training.losses import LossWeights, Teacher
from dspark.training.new_drafter import new_drafter
from dspark.training.objective import run_blocks
from dspark.training.precision import set_training_dtype
from dspark.training.recipe import RECIPES, for_chains
from dspark.training.shapes import DrafterKind, DrafterPlan, shape_of
from dspark.training.trainer import Trainer, TrainerConfig
from tests.deepspec_files import (
    GAMMA,
    TAPS,
    VOCAB,
    eagle3_config,
    mtp_config,
    qwen3_target,
    random_tensors,
    write_drafter,
)
from tests.finite_differences import check_gradient
from tests.one_thread import one_thread
from tests.plain_chain import PlainChain
from tests.unit.training.test_new_drafters import OneText
from tests.unit.training.tiny_runs import CONFIG, make_trainer, weights, write_features

__all__ = ["one_thread"]

HIDDEN, WIDTHS, ANCHORS = 64, (9, 12), (2, 3, 5)
TINY_ROWS = (CONFIG.vocab_size, CONFIG.hidden_size)
CONFIGS: dict[str, Callable[[], dict[str, Any]]] = {
    "eagle3": lambda: eagle3_config("qwen3"),
    "mtp": mtp_config,
}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    directory = tmp_path_factory.mktemp("target") / "qwen3"
    return directory, qwen3_target(directory).config


def write(kind: str, directory: Path, target: Path) -> Path:
    config = CONFIGS[kind]()
    return write_drafter(directory, config, random_tensors(config, target))


def load(path: Path, target: Path, dtype: torch.dtype) -> ChainDrafter:
    drafter = load_drafter(path, target, dtype=torch.float32)
    assert isinstance(drafter, ChainDrafter)
    return set_training_dtype(drafter, dtype)


def make_batch(drafter: ChainDrafter) -> BlockBatch:
    generator = torch.Generator().manual_seed(1)
    count, width = sum(WIDTHS), 1 if drafter.config.reads_last_state else len(TAPS)
    token_ids = torch.randint(0, VOCAB, (count,), generator=generator)
    starts = (0, WIDTHS[0], count)
    anchors = torch.tensor(ANCHORS * 2)
    rows = anchors[:, None] + torch.arange(GAMMA + 1) + torch.tensor(starts[:2]).repeat_interleave(3)[:, None]
    last = torch.randn(len(anchors) * GAMMA, HIDDEN, generator=generator).bfloat16()
    tokens = token_ids[rows]
    return BlockBatch(
        features=torch.randn(count, width * HIDDEN, generator=generator).bfloat16(),
        token_ids=token_ids,
        token_starts=starts,
        block_starts=(0, 3, 6),
        anchors=anchors,
        tokens=tokens,
        is_valid=torch.ones(len(anchors), GAMMA, dtype=torch.bool),
        teacher=Teacher(
            last, (last.float() @ drafter.lm_head.float().t()).logsumexp(-1), tokens[:, 1:].reshape(-1)
        ),
    )


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 2e-4), (torch.bfloat16, 0.3)])
@pytest.mark.parametrize("kind", CONFIGS)
def test_the_steps_of_training_are_those_of_the_equations_over_the_true_tokens(
    kind: str, dtype: torch.dtype, bound: float, target: tuple[Path, Any], tmp_path: Path
) -> None:
    path = write(kind, tmp_path, target[0])
    drafter, plain = load(path, target[0], dtype), PlainChain(path, embedding_dtype=dtype)
    batch = make_batch(drafter)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        hidden = chain_states(drafter, batch, dtype)
        logits = (hidden.float() @ drafter.lm_head.float().t()).view(-1, GAMMA, VOCAB)
    for number, anchor in enumerate(batch.anchors.tolist()):
        start = batch.token_starts[number // len(ANCHORS)]
        tokens = batch.token_ids[start : start + anchor + 1].tolist()
        features = batch.features[start : start + anchor]
        expected = plain.chain(features, tokens, batch.tokens[number, 1:].tolist(), GAMMA)
        found = logits[number].log_softmax(-1).double()
        torch.testing.assert_close(found, expected.log_softmax(-1), rtol=0, atol=bound)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", CONFIGS)
def test_every_parameter_learns(
    kind: str, dtype: torch.dtype, target: tuple[Path, Any], tmp_path: Path
) -> None:
    drafter = load(write(kind, tmp_path, target[0]), target[0], dtype)
    value, _ = run_blocks(drafter, make_batch(drafter), LossWeights(), decay=4.0)
    value.backward()
    assert not [name for name, one in drafter.named_parameters() if one.grad is None or not one.grad.any()]


@pytest.mark.parametrize("kind", CONFIGS)
def test_gradients_through_all_steps_are_those_of_finite_differences(
    kind: str, target: tuple[Path, Any], tmp_path: Path
) -> None:
    drafter = load(write(kind, tmp_path, target[0]), target[0], torch.float32)
    batch, loss = make_batch(drafter), LossWeights(soft=1.0, tv=0.0)
    weight = drafter.backbone.layer.self_attn.k_proj.weight
    # the last step only: its gradient has passed all others
    last_only = torch.zeros_like(batch.is_valid)
    last_only[:, -1] = True
    batch = replace(batch, is_valid=last_only)
    run_blocks(drafter, batch, loss, decay=4.0)[0].backward()
    check_gradient(weight, lambda: run_blocks(drafter, batch, loss, decay=4.0)[0])


def test_the_loss_of_chains_is_soft_cross_entropy_with_powers_of_four_fifths(
    target: tuple[Path, Any], tmp_path: Path
) -> None:
    drafter = load(write("eagle3", tmp_path, target[0]), target[0], torch.float32)
    batch, recipe = make_batch(drafter), for_chains(RECIPES["published"])
    with torch.no_grad():
        value, _ = run_blocks(drafter, batch, recipe.loss, decay=recipe.position_decay)
        hidden = chain_states(drafter, batch, torch.float32)
        own = (hidden @ drafter.lm_head.t()).log_softmax(-1)
        teacher = batch.teacher.last.float() @ drafter.lm_head.t()
    terms = -(teacher.softmax(-1) * own).sum(-1).view(-1, GAMMA).mean(0)
    weights = 0.8 ** torch.arange(GAMMA)
    assert float(value) == pytest.approx(float((terms * weights).sum() / weights.sum()), rel=1e-4)


@pytest.mark.parametrize("kind", [DrafterKind.EAGLE3, DrafterKind.MTP])
def test_a_run_over_a_cache_lowers_the_held_out_loss_and_can_be_calibrated(
    kind: DrafterKind, target: tuple[Path, Any], tmp_path: Path
) -> None:
    features = FeatureCache([write_features(tmp_path / "features")])
    drafter = tiny_chain(kind)
    samplers = [sampler(features, drafter, seed) for seed in (0, 1)]
    held_out = [samplers[1].batch(0)]
    settings = TrainerConfig(for_chains(RECIPES["published"]), steps=6)
    trainer = Trainer(drafter, samplers[0], held_out, settings, tmp_path)
    before = trainer.evaluate()
    trainer.run(lambda text: None, lambda: None)
    assert trainer.evaluate()["held_out_loss"] < before["held_out_loss"]
    assert len(calibrate(drafter, held_out).calibration.greedy.temperatures) == drafter.config.gamma


class CrashError(Exception):
    pass


def crash() -> None:
    raise CrashError


@pytest.mark.parametrize("kind", [DrafterKind.EAGLE3, DrafterKind.MTP])
def test_a_run_that_died_ends_in_the_bits_of_one_that_did_not_and_no_other_kind_goes_on(
    kind: DrafterKind, tmp_path: Path
) -> None:
    features, recipe = write_features(tmp_path / "features"), for_chains(RECIPES["published"])

    def trainer(work: str, drafter: ChainDrafter) -> Trainer:
        options = {"recipe": recipe, "steps": 4, "checkpoint_steps": 2}
        return make_trainer(features, tmp_path / work, drafter=drafter, **options)

    whole, resumed = tiny_chain(kind), tiny_chain(kind, seed=1)
    trainer("whole", whole).run(lambda text: None, lambda: None)
    with pytest.raises(CrashError):
        trainer("cut", tiny_chain(kind)).run(lambda text: None, crash)
    going_on = trainer("cut", resumed)
    assert going_on.resume()
    going_on.run(lambda text: None, lambda: None)
    assert torch.equal(weights(resumed), weights(whole))
    (other,) = {DrafterKind.EAGLE3, DrafterKind.MTP} - {kind}
    with pytest.raises(ConfigurationError, match="with architecture"):
        trainer("cut", tiny_chain(other)).resume()


def tiny_chain(kind: DrafterKind, seed: int = 0) -> ChainDrafter:
    plan = DrafterPlan(kind=kind, gamma=3)
    config = replace(CONFIG, **shape_of(plan, CONFIG.num_target_layers, CONFIG.target_layer_ids))
    generator = torch.Generator().manual_seed(0)
    rows = {name: torch.randn(TINY_ROWS, generator=generator) * 0.3 for name in ("embed", "head")}
    drafter = build_drafter(config, {**rows, "norm": torch.ones(CONFIG.hidden_size)}, None)
    drafter.initialise(torch.Generator().manual_seed(seed), torch.ones(CONFIG.hidden_size))
    assert isinstance(drafter, ChainDrafter)
    return set_training_dtype(drafter, torch.float32)


def sampler(cache: FeatureCache, drafter: ChainDrafter, seed: int) -> BlockSampler:
    return BlockSampler(
        cache,
        torch.arange(len(cache)).numpy(),
        torch.arange(cache.vocab_size),
        gamma=drafter.config.gamma,
        batch_samples=4,
        anchors_per_sample=5,
        seed=seed,
        rule=AnchorRule.SERVING,
        reads_last_state=drafter.config.reads_last_state,
    )


def test_an_mtp_drafter_is_fed_the_last_states_of_the_cache_and_others_its_taps(tmp_path: Path) -> None:
    cache = FeatureCache([write_features(tmp_path / "features")])
    for kind, size in ((DrafterKind.EAGLE3, CONFIG.feature_size), (DrafterKind.MTP, CONFIG.hidden_size)):
        drawn = sampler(cache, tiny_chain(kind), 0)
        batch, rows = drawn.batch(3), cache.index[drawn.members(3)]
        assert batch.features.shape == (rows[:, 1].sum(), size)
        for start, first, length in zip(batch.token_starts, rows[:, 0], rows[:, 1], strict=False):
            tokens = cache.tokens(torch.arange(first, first + length).numpy())
            assert batch.token_ids[start : start + length].tolist() == tokens.tolist()
    last = cache.last(torch.arange(rows[0, 0], rows[0, 0] + 5).numpy())
    assert torch.equal(batch.features[:5], last)


def test_a_sample_with_a_prompt_of_one_token_has_no_anchor_before_a_feature(tmp_path: Path) -> None:
    cache = FeatureCache([write_features(tmp_path / "features")])
    cache.index[:, 2] = 1
    drawn = sampler(cache, tiny_chain(DrafterKind.EAGLE3), 0)
    assert min(int(drawn.batch(number, 1).anchors.min()) for number in range(6)) == 1


@pytest.mark.parametrize(
    ("kind", "layers", "gamma"), [(DrafterKind.EAGLE3, tuple(TAPS), 7), (DrafterKind.MTP, (3,), 1)]
)
def test_a_plan_says_what_a_baseline_reads(
    kind: DrafterKind, layers: tuple[int, ...], gamma: int, target: tuple[Path, Any]
) -> None:
    plan = DrafterPlan(kind=kind, gamma=kind.usual_gamma, draft_vocab_size=24)
    drafter, _ = new_drafter(plan, *target, OneText(), seed=0, init=None)
    config = drafter.config
    assert (config.target_layer_ids, config.gamma, config.num_draft_tokens) == (layers, gamma, 24)
    assert config.is_chain
    assert config.num_hidden_layers == 1


def test_a_run_goes_on_only_from_a_drafter_of_its_kind(target: tuple[Path, Any], tmp_path: Path) -> None:
    path = write("eagle3", tmp_path, target[0])
    drafter, _ = new_drafter(DrafterPlan(kind=DrafterKind.EAGLE3), *target, OneText(), seed=0, init=path)
    assert drafter.config.architecture == QWEN3_EAGLE3
    with pytest.raises(ModelMismatchError, match="to go on from it pass --kind eagle3"):
        new_drafter(DrafterPlan(), *target, OneText(), seed=0, init=path)
