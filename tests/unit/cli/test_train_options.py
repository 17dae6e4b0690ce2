"""What the options of `dspark train` make of a drafter and of its recipe."""

from __future__ import annotations

import argparse
import math

import pytest

from dspark.cli.train import _recipe, _shape, add_parser
from dspark.errors import ConfigurationError
from dspark.training.losses import LossWeights
from dspark.training.recipe import RECIPES, OptimiserKind
from dspark.training.shapes import DrafterKind, DrafterPlan


def parse(*options: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    return parser.parse_args(["train", "--out", "o", "--work", "w", *options])


def test_a_dspark_drafter_has_its_usual_shape_and_recipe() -> None:
    args = parse()
    assert _shape(args) == DrafterPlan(gamma=7, num_layers=2, markov_rank=64, confidence="markov")
    assert _recipe(args) == RECIPES["dspark"]


def test_without_a_markov_head_there_is_no_confidence_head_unless_asked_for() -> None:
    assert _shape(parse("--rank", "0")).confidence == "none"
    assert _shape(parse("--rank", "0", "--confidence-head", "hidden")).confidence == "hidden"


@pytest.mark.parametrize(("kind", "gamma"), [("eagle3", 7), ("mtp", 1)])
def test_a_baseline_has_its_own_length_and_loss_and_the_optimiser_of_the_recipe(
    kind: str, gamma: int
) -> None:
    args = parse("--kind", kind, "--recipe", "published")
    assert _shape(args) == DrafterPlan(kind=DrafterKind(kind), gamma=gamma, copies_layers=False)
    recipe = _recipe(args)
    assert recipe.loss == LossWeights(hard=0.0, soft=1.0, tv=0.0, confidence=0.0)
    assert math.exp(-1 / recipe.position_decay) == pytest.approx(0.8)
    assert recipe.optimiser is OptimiserKind.ADAMW


def test_layers_start_as_the_targets_unless_noise_is_asked_for_or_the_published_recipe() -> None:
    assert _shape(parse("--kind", "mtp")).copies_layers
    assert not _shape(parse("--start", "noise")).copies_layers
    assert not _shape(parse("--recipe", "published")).copies_layers
    assert _shape(parse("--recipe", "published", "--start", "target")).copies_layers


def test_lengths_of_blocks_and_the_averaged_share_come_with_the_recipe() -> None:
    recipe = _recipe(parse("--block-lens", "2,7", "--average", "0.5", "--schedule", "constant"))
    assert recipe.block_lens == (2, 7)
    assert recipe.averaged_share == 0.5
    assert recipe.schedule == "constant"


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--average", "1.5", "'1.5' does not lie between 0 and 1"),
        ("--keep-start", "2", "'2' does not lie between 0 and 1"),
        ("--growing-share", "2", "'2' does not lie between 0 and 1"),
        ("--greedy-share", "-0.1", "'-0.1' is not a number of at least 0"),
        ("--decay", "0", "'0' is not a number above 0"),
        ("--block-lens", "2,0", "'0' is not a whole number of at least 1"),
    ],
)
def test_a_number_out_of_range_is_refused_with_its_option(
    option: str, value: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse(f"{option}={value}")
    assert f"argument {option}: {message}" in capsys.readouterr().err


def test_parts_of_a_baselines_recipe_can_be_changed() -> None:
    recipe = _recipe(parse("--kind", "eagle3", "--tv", "1", "--decay", "4"))
    assert (recipe.loss.soft, recipe.loss.tv, recipe.position_decay) == (1.0, 1.0, 4.0)


def test_parts_that_a_baseline_lacks_are_refused_by_their_options() -> None:
    with pytest.raises(ConfigurationError, match="--layers, --confidence-head shape a DSpark drafter"):
        _shape(parse("--kind", "mtp", "--layers", "2", "--confidence-head", "none"))
