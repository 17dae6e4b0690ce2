"""Speed and memory of training, ours against the plain loop, each in a process of its own, turn by turn."""

from __future__ import annotations

import json
import multiprocessing
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dspark.evaluation.plain_training import PlainObjective, pad
from dspark.models.checkpoint import read_target_tensors
from dspark.models.drafter import DSparkDrafter
from dspark.training.blocks import BlockSampler
from dspark.training.features import FeatureCache
from dspark.training.fused_loss import load_fused_loss
from dspark.training.metrics import peak_memory_mib
from dspark.training.new_drafter import new_drafter
from dspark.training.objective import run_blocks
from dspark.training.recipe import RECIPES, make_optimisers
from dspark.training.shapes import DrafterPlan
from dspark.training.vocabulary import invert_vocabulary

OURS, PLAIN = "dspark", "plain loop"
_RECIPE = RECIPES["dspark"]


@dataclass(frozen=True, slots=True)
class TrainingSetup:
    """What both train: the same drafter on the same blocks.

    Attributes:
        target: Hugging Face directory.
        features: a feature cache of it.
        threads: of torch; None: its own choice.
    """

    target: Path
    features: Path
    shape: DrafterPlan
    batch_samples: int
    anchors_per_sample: int
    threads: int | None


@dataclass(frozen=True, slots=True)
class Turn:
    """Some steps of one system.

    Attributes:
        blocks: trained.
        seconds: of wall time.
        cpu_seconds: of this process, all threads together.
        first_loss: of the first step.
        peak_mib: most memory resident in the process until now.
        start_mib: the same before the first step.
    """

    blocks: int
    seconds: float
    cpu_seconds: float
    first_loss: float
    peak_mib: float
    start_mib: float


def measure_training(
    setup: TrainingSetup, *, steps: int, turns: int, progress: Callable[[str], None]
) -> dict[str, list[Turn]]:
    """Both systems, `turns` times `steps` steps each, after one step that is not counted."""
    with _trainer(OURS, setup) as ours, _trainer(PLAIN, setup) as plain:
        systems = {OURS: ours, PLAIN: plain}
        found: dict[str, list[Turn]] = {name: [] for name in systems}
        for number in range(turns + 1):
            for name, ask in systems.items():
                progress("one step to warm up" if number == 0 else f"turn {number} of {turns}: {name}")
                found[name].append(ask(steps if number else 1))
    return found


@contextmanager
def _trainer(name: str, setup: TrainingSetup) -> Iterator[Callable[[int], Turn]]:
    """A process that trains so many steps whenever it is asked."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there, name, setup), daemon=True)
    process.start()
    there.close()

    def ask(steps: int) -> Turn:
        here.send(steps)
        turn: Turn = here.recv()
        return turn

    try:
        yield ask
    finally:
        here.close()
        process.join(10)
        process.terminate()


def _serve(connection: Connection, name: str, setup: TrainingSetup) -> None:
    trainer = _LoopUnderTest(name, setup)
    while True:
        try:
            steps = connection.recv()
        except EOFError:
            return
        connection.send(trainer.turn(steps))


class _LoopUnderTest:
    """Batches, loss, backward pass, clipping, optimisers; the loss is that of `name`."""

    def __init__(self, name: str, setup: TrainingSetup) -> None:
        from transformers import AutoConfig

        if setup.threads:
            torch.set_num_threads(setup.threads)
        torch.manual_seed(0)
        self._cache = FeatureCache([setup.features])
        config = AutoConfig.from_pretrained(setup.target)
        drafter, _ = new_drafter(setup.shape, setup.target, config, self._cache, seed=0, init=None)
        assert isinstance(drafter, DSparkDrafter), "the plain loop is that of a DSpark drafter"
        self._drafter = drafter
        self._sampler = BlockSampler(
            self._cache,
            np.arange(len(self._cache)),
            invert_vocabulary(self._drafter.d2t, self._cache.vocab_size),
            gamma=setup.shape.gamma,
            batch_samples=setup.batch_samples,
            anchors_per_sample=setup.anchors_per_sample,
            seed=0,
        )
        self._optimisers = make_optimisers(self._drafter, _RECIPE)
        self._loss = self._ours() if name == OURS else self._plain(setup.target)
        self._step = 0
        self._start_mib = peak_memory_mib()

    def _ours(self) -> Callable[[int], tuple[Tensor, int]]:
        fused = load_fused_loss(self._drafter.config.num_draft_tokens)

        def loss(number: int) -> tuple[Tensor, int]:
            batch = self._sampler.batch(number)
            value, _ = run_blocks(
                self._drafter, batch, _RECIPE.loss, decay=_RECIPE.position_decay, fused=fused
            )
            return value, len(batch.anchors)

        return loss

    def _plain(self, target: Path) -> Callable[[int], tuple[Tensor, int]]:
        head = read_target_tensors(target)["head"].to(self._drafter.lm_head.dtype)
        objective = PlainObjective(self._drafter, head, _RECIPE.loss, _RECIPE.position_decay)

        def loss(number: int) -> tuple[Tensor, int]:
            batch = self._sampler.batch(number)
            padded = pad(batch, self._cache, self._sampler.members(number))
            return objective(padded), len(batch.anchors)

        return loss

    def turn(self, steps: int) -> Turn:
        """Take so many steps."""
        started, cpu = time.monotonic(), time.process_time()
        blocks, losses = 0, []
        for _ in range(steps):
            for optimiser in self._optimisers:
                optimiser.zero_grad(set_to_none=True)
            value, count = self._loss(self._step)
            value.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(self._drafter.parameters(), 1.0)
            for optimiser in self._optimisers:
                optimiser.step()
            self._step += 1
            blocks += count
            losses.append(float(value.detach()))
        seconds, cpu_seconds = time.monotonic() - started, time.process_time() - cpu
        return Turn(blocks, seconds, cpu_seconds, losses[0], peak_memory_mib(), self._start_mib)


def write_invented_features(
    directory: Path, target: Path, layer_ids: tuple[int, ...], *, num_samples: int, seed: int = 0
) -> None:
    """A cache of random numbers in the shape of a target's: speed does not depend on what they are.

    Prompts have 24 to 120 tokens, responses 100 to 400.
    """
    directory.mkdir(parents=True, exist_ok=True)
    head = read_target_tensors(target)["head"].float()
    vocab_size, hidden_size = head.shape
    rng = np.random.Generator(np.random.PCG64(seed))
    prompts, responses = rng.integers(24, 121, num_samples), rng.integers(100, 401, num_samples)
    lengths = prompts + responses
    count = int(lengths.sum())
    generator = torch.Generator().manual_seed(seed)
    last = torch.randn(count, hidden_size, generator=generator).bfloat16()
    features = torch.randn(count, len(layer_ids) * hidden_size, generator=generator).bfloat16()
    chunks = (last[start : start + 64] for start in range(0, count, 64))
    norms = [(rows.float() @ head.t()).logsumexp(-1) for rows in chunks]
    rng.integers(0, vocab_size, count).astype(np.int32).tofile(directory / "tokens.bin")
    for name, part in (("features.bin", features), ("last.bin", last)):
        part.view(torch.int16).numpy().tofile(directory / name)
    torch.cat(norms).numpy().tofile(directory / "log_norm.bin")
    np.save(directory / "index.npy", np.stack((np.cumsum(lengths) - lengths, lengths, prompts), axis=1))
    manifest: dict[str, Any] = {
        "num_tokens": count,
        "num_samples": num_samples,
        "target": target.name,
        "target_layer_ids": list(layer_ids),
        "hidden_size": hidden_size,
        "vocab_size": vocab_size,
    }
    (directory / "manifest.json").write_text(json.dumps(manifest))
