"""A sharded run (FSDP2) in a group of one process: its own path through weights, gradients and checkpoints.

Two processes are in tests/e2e/test_training.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tiny_runs import make_drafter, make_trainer, weights, write_features
from torch import distributed
from torch.distributed.tensor import DTensor

from dspark.cli.main import main
from dspark.training.distribution import Sharding
from dspark.training.recipe import RECIPES
from dspark.training.trainer import Trainer
from tests.one_thread import one_thread

__all__ = ["one_thread"]
pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module", autouse=True)
def _group_of_one() -> Iterator[None]:
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.fixture(scope="module")
def features(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_features(tmp_path_factory.mktemp("data") / "features")


class CrashError(Exception):
    pass


def crash() -> None:
    raise CrashError


def run(trainer: Trainer) -> None:
    trainer.run(lambda text: None, lambda: None)


@pytest.mark.parametrize("name", RECIPES)
def test_shards_learn_what_copies_do(name: str, features: Path, tmp_path: Path) -> None:
    learned = []
    for sharding in Sharding:
        drafter = make_drafter()
        trainer = make_trainer(
            features,
            tmp_path / sharding,
            drafter=drafter,
            recipe=RECIPES[name],
            steps=4,
            micro_batches=2,
            sharding=sharding,
        )
        parameters = list(trainer._spread.trained.parameters())
        assert all(isinstance(one, DTensor) == (sharding is Sharding.FSDP2) for one in parameters)
        run(trainer)
        learned.append(weights(drafter))
    moved = (learned[0] - weights(make_drafter())).norm()
    # the norm that clips is summed in another order
    assert (learned[0] - learned[1]).norm() < 1e-4 * moved


@pytest.mark.parametrize("goes_on_as", Sharding)
def test_a_sharded_run_that_died_goes_on_sharded_or_not(
    goes_on_as: Sharding, features: Path, tmp_path: Path
) -> None:
    whole = make_drafter()
    run(make_trainer(features, tmp_path / "whole", drafter=whole, sharding=Sharding.FSDP2))
    cut = tmp_path / "cut"
    dying = make_trainer(features, cut, sharding=Sharding.FSDP2, checkpoint_steps=3)
    with pytest.raises(CrashError):
        dying.run(lambda text: None, crash)
    resumed = make_drafter(seed=1)
    trainer = make_trainer(features, cut, drafter=resumed, sharding=goes_on_as)
    assert trainer.resume()
    assert trainer._step == 3
    run(trainer)
    if goes_on_as is Sharding.FSDP2:
        assert torch.equal(weights(resumed), weights(whole))
    else:
        assert (weights(resumed) - weights(whole)).norm() < 1e-4 * weights(whole).norm()


def test_one_process_alone_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["train", "--work", str(tmp_path), "--out", str(tmp_path / "out"), "--sharding", "fsdp2"]
    assert main(command) != 0
    assert "start it with torchrun" in capsys.readouterr().err
