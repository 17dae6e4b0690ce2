"""The training loop: what a run does, and that one that stopped goes on as if it had not."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_runs import CONFIG, RECIPE, make_drafter, make_trainer, weights, write_features

from dspark.errors import ConfigurationError
from dspark.training.distribution import Sharding
from dspark.training.losses import LossWeights
from dspark.training.recipe import (
    RECIPES,
    OptimiserKind,
    Recipe,
    Schedule,
    block_len_at,
    make_optimisers,
    rate_share,
)
from dspark.training.trainer import Trainer

pytestmark = pytest.mark.timeout(120)

AVERAGED = replace(RECIPE, schedule=Schedule.CONSTANT, averaged_share=0.5)
MIXED = replace(RECIPE, start_share=0.25)


@pytest.fixture(scope="module")
def features(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_features(tmp_path_factory.mktemp("data") / "features")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Models this small lose by waiting for a second thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def ignore(text: str) -> None:
    del text


class CrashError(Exception):
    pass


def crash_at(checkpoint: int) -> Callable[[], None]:
    """What a run calls after each checkpoint: dies after this one."""
    seen = 0

    def save() -> None:
        nonlocal seen
        seen += 1
        if seen == checkpoint:
            raise CrashError

    return save


@pytest.mark.parametrize(
    ("recipe", "checkpoint_steps", "last_checkpoint"),
    # the last one dies in the middle of what is averaged
    [*((one, 2, 2) for one in RECIPES.values()), (AVERAGED, 1, 5), (MIXED, 2, 2)],
    ids=[*RECIPES, "averaged", "mixed"],
)
def test_a_run_that_died_ends_in_the_bits_of_one_that_did_not(
    recipe: Recipe, checkpoint_steps: int, last_checkpoint: int, features: Path, tmp_path: Path
) -> None:
    whole = make_drafter()
    make_trainer(features, tmp_path / "whole", drafter=whole, recipe=recipe).run(ignore, lambda: None)
    dying = make_trainer(features, tmp_path / "cut", recipe=recipe, checkpoint_steps=checkpoint_steps)
    with pytest.raises(CrashError):
        dying.run(ignore, crash_at(last_checkpoint))
    resumed = make_drafter(seed=1)
    trainer = make_trainer(features, tmp_path / "cut", drafter=resumed, recipe=recipe)
    assert trainer.resume()
    trainer.run(ignore, lambda: None)
    assert torch.equal(weights(resumed), weights(whole))
    assert not torch.equal(weights(whole), weights(make_drafter()))


@pytest.mark.parametrize("recipe", [RECIPE, AVERAGED], ids=["last", "averaged"])
def test_the_start_has_its_share_in_every_number_that_comes_out(
    recipe: Recipe, features: Path, tmp_path: Path
) -> None:
    start, trained, mixed = make_drafter(), make_drafter(), make_drafter()
    make_trainer(features, tmp_path / "trained", drafter=trained, recipe=recipe).run(ignore, lambda: None)
    trainer = make_trainer(
        features, tmp_path / "mixed", drafter=mixed, recipe=replace(recipe, start_share=0.25)
    )
    exported = []
    figures = trainer.run(ignore, lambda: exported.append(weights(mixed)))
    fresh = make_trainer(features, tmp_path / "fresh", drafter=mixed, recipe=RECIPE)
    assert figures["held_out_loss"] == pytest.approx(fresh.evaluate()["held_out_loss"], rel=1e-6)
    torch.testing.assert_close(weights(mixed), 0.75 * weights(trained) + 0.25 * weights(start))
    assert torch.equal(exported[-1], weights(mixed))


def test_what_happened_after_the_last_checkpoint_leaves_the_metrics_of_a_resumed_run(
    features: Path, tmp_path: Path
) -> None:
    trainer = make_trainer(features, tmp_path, steps=4)
    trainer.run(ignore, lambda: None)
    log = tmp_path / "metrics.jsonl"
    with log.open("a") as file:
        file.write('{"step": 5, "loss": 1.0}\n{"step": 6, "lo')
    make_trainer(features, tmp_path, steps=8).resume()
    assert [json.loads(line)["step"] for line in log.read_text().splitlines()] == [0, 4]


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"recipe": replace(RECIPE, position_decay=7.0)}, "position_decay '4.0', this one has '7.0'"),
        ({"recipe": replace(RECIPE, loss=LossWeights(tv=1.8))}, "tv '1.0', this one has '1.8'"),
        ({"micro_batches": 2}, "micro_batches '1', this one has '2'"),
    ],
)
def test_a_checkpoint_of_other_options_is_refused(
    change: dict, key: str, features: Path, tmp_path: Path
) -> None:
    make_trainer(features, tmp_path, steps=1).run(ignore, lambda: None)
    with pytest.raises(ConfigurationError, match=key):
        make_trainer(features, tmp_path, **change).resume()


def test_two_micro_batches_learn_what_one_batch_of_both_would(features: Path, tmp_path: Path) -> None:
    trainer = make_trainer(features, tmp_path, micro_batches=2)
    trainer._gradients()
    both = torch.cat([one.grad.flatten() for one in trainer._drafter.parameters()])
    expected = torch.zeros_like(both)
    batches = [trainer._sampler.batch(number) for number in range(2)]
    slots = torch.exp(-torch.arange(CONFIG.gamma) / 4.0)
    masses = [float((batch.is_valid * slots).sum()) for batch in batches]
    for batch, mass in zip(batches, masses, strict=True):
        trainer._drafter.zero_grad()
        value, _ = trainer._objective(batch, None)
        value.backward()
        alone = torch.cat([one.grad.flatten() for one in trainer._drafter.parameters()])
        expected += alone * mass / sum(masses)
    assert (both - expected).norm() < 1e-5 * expected.norm()


def per_anchor(trainer: Trainer, number: int, block_len: int) -> dict[tuple[int, int], torch.Tensor]:
    """Overlap and confidence of the first slot by sample and anchor."""
    batch = trainer._sampler.batch(number, block_len)
    with torch.no_grad():
        _, scores = trainer._objective(batch, None)
    found = {}
    for sample, (first, last) in enumerate(itertools.pairwise(batch.block_starts)):
        for block in range(first, last):
            parts = (scores.overlap[block, 0], scores.confidence_logits[block, 0])
            found[sample, int(batch.anchors[block])] = torch.stack(parts)
    return found


def test_the_dense_pass_scores_every_position_as_a_block_of_one_slot_alone(
    features: Path, tmp_path: Path
) -> None:
    trainer = make_trainer(features, tmp_path)
    dense = per_anchor(trainer, 0, 1)
    index = trainer._sampler._cache.index[trainer._sampler.members(0)]
    assert len(dense) == sum(length - prompt for _, length, prompt in index)
    single = make_trainer(features, tmp_path, gamma=1)
    sparse = per_anchor(single, 0, 1)
    assert 0 < len(sparse) < len(dense)
    for place, scores in sparse.items():
        assert torch.allclose(scores, dense[place], atol=1e-5), place
    # and what is compared depends on the position
    assert torch.stack(list(dense.values())).std(0).min() > 1e-3


def test_shorter_blocks_are_as_many_more(features: Path, tmp_path: Path) -> None:
    sampler = make_trainer(features, tmp_path)._sampler
    assert [sampler.batch(0, length).is_valid.shape[1] for length in (1, 2, 3)] == [1, 2, 3]
    per_sample = [max(np.diff(sampler.batch(0, length).block_starts)) for length in (2, 3)]
    assert per_sample == [5 * 3 // 2, 5]


def test_blocks_grow_over_their_share_of_the_run() -> None:
    growing = replace(RECIPES["dspark"], growing_share=0.5)
    lengths = [block_len_at(growing, step=0, progress=progress / 20, gamma=4) for progress in range(12)]
    assert lengths == [1, 1, 1, 1, 1, 2, 2, 3, 3, 4, 4, 4]
    assert block_len_at(RECIPES["dspark"], step=0, progress=0.0, gamma=4) == 4


def test_blocks_take_the_given_lengths_in_turn_and_never_more_than_gamma() -> None:
    recipe = replace(RECIPES["dspark"], block_lens=(2, 9, 3))
    assert [block_len_at(recipe, step=step, progress=0.0, gamma=4) for step in range(5)] == [2, 4, 3, 2, 4]


def test_a_run_starts_with_the_held_out_figures_of_the_drafter_it_is_given(
    features: Path, tmp_path: Path
) -> None:
    trainer = make_trainer(features, tmp_path)
    before = trainer.evaluate()
    last = trainer.run(ignore, lambda: None)
    first = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[0])
    assert first["step"] == 0
    assert before == {key: first[key] for key in before}
    assert last["step"] == 6
    assert last["peak_memory_mib"] > 0


def test_the_published_recipe_is_that_of_deepspec() -> None:
    recipe = RECIPES["published"]
    # 0.1 cross entropy, 0.9 of the L1 norm, 1.0 confidence, weights exp(-k / 4)
    assert recipe.loss == LossWeights(hard=0.1, soft=0.0, tv=2 * 0.9, confidence=1.0)
    assert recipe.position_decay == 4.0
    (optimiser,) = make_optimisers(make_drafter(), recipe)
    (group,) = optimiser.param_groups
    assert isinstance(optimiser, torch.optim.AdamW)
    assert (group["lr"], group["betas"], group["eps"]) == (6e-4, (0.9, 0.999), 1e-8)
    assert group["weight_decay"] == 0


def test_the_cosine_rises_over_a_twenty_fifth_of_the_steps_and_falls_to_zero() -> None:
    shares = [
        rate_share(Schedule.COSINE, step=step, total_steps=100, progress=step / 100) for step in range(101)
    ]
    assert shares[:5] == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0])
    assert shares[52] == pytest.approx(0.5)
    assert shares[100] == pytest.approx(0.0, abs=1e-12)
    by_clock = [rate_share(Schedule.COSINE, step=9, total_steps=None, progress=one) for one in (0, 0.52, 1)]
    assert by_clock == pytest.approx([0.025, 0.5, 0.0])


def test_the_trapezoid_falls_over_its_last_two_fifths() -> None:
    def share(step: int, progress: float) -> float:
        return rate_share(Schedule.TRAPEZOID, step=step, total_steps=None, progress=progress)

    assert [share(0, 0.0), share(19, 0.1), share(500, 0.6)] == pytest.approx([0.05, 1.0, 1.0])
    assert [share(800, 0.8), share(999, 1.0)] == pytest.approx([0.5, 0.0])


def test_muon_moves_the_matrices_of_the_backbone_and_adamw_the_rest() -> None:
    drafter = make_drafter()
    muon, adamw = make_optimisers(drafter, RECIPE)
    assert RECIPE.optimiser is OptimiserKind.MUON
    matrices = muon.param_groups[0]["params"]
    assert all(one.dim() == 2 for one in matrices)
    assert len(matrices) + len(adamw.param_groups[0]["params"]) == len(list(drafter.parameters()))
    assert adamw.param_groups[0]["lr"] == pytest.approx(0.75 * RECIPE.learning_rate)


def stepwise(features: Path, directory: Path, recipe: Recipe, num_steps: int) -> list[torch.Tensor]:
    """The weights after each step of a run."""
    drafter = make_drafter()
    trainer = make_trainer(features, directory, drafter=drafter, recipe=recipe)
    found = []
    for _ in range(num_steps):
        trainer._train_step()
        found.append(weights(drafter).clone())
    return found


def test_the_weights_that_come_out_are_the_mean_of_the_last_share_of_the_run(
    features: Path, tmp_path: Path
) -> None:
    each = stepwise(features, tmp_path / "steps", AVERAGED, 6)
    drafter = make_drafter()
    saved = []
    trainer = make_trainer(features, tmp_path / "run", drafter=drafter, recipe=AVERAGED)
    last = trainer.run(ignore, lambda: saved.append(weights(drafter).clone()))
    expected = torch.stack(each[3:]).mean(0)
    assert torch.allclose(weights(drafter), expected, atol=1e-6)
    assert torch.equal(saved[-1], weights(drafter))
    assert not torch.allclose(expected, each[-1], atol=1e-4)
    assert last["held_out_loss"] == trainer.evaluate()["held_out_loss"]


def test_a_mean_is_not_kept_of_shards(features: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="--average keeps a whole mean in each process"):
        make_trainer(features, tmp_path, recipe=AVERAGED, sharding=Sharding.FSDP2)
