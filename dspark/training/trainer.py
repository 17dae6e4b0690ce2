"""The training loop: batches, optimisers, a budget of hours or steps, checkpoints, held-out metrics."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from dspark.errors import ConfigurationError
from dspark.models.drafter import Drafter
from dspark.training.averaging import WeightAverage
from dspark.training.blocks import BlockBatch, BlockSampler
from dspark.training.distribution import Sharding, distribute
from dspark.training.fused_loss import load_fused_loss
from dspark.training.metrics import MetricsLog
from dspark.training.objective import Objective, mean_committed, position_weights
from dspark.training.recipe import Recipe, block_len_at, make_optimisers, rate_share
from dspark.training.reporting import Reporter, Standing
from dspark.training.state import load_state, save_state
from dspark.training.world import World


@dataclass(frozen=True, slots=True)
class TrainerConfig:
    """How to train, and how long.

    Attributes:
        hours: budget by the clock; runs of it are never twice the same, since the schedule follows the clock.
        steps: budget by steps, instead.
        micro_batches: batches whose gradients are summed in one step; the processes of a run share them out.
        checkpoint_minutes: time between checkpoints.
        checkpoint_steps: steps between them, instead.
        sharding: what each process of a run holds; a run may go on with another.
    """

    recipe: Recipe
    hours: float | None = None
    steps: int | None = None
    micro_batches: int = 1
    max_grad_norm: float = 1.0
    checkpoint_minutes: float = 5.0
    checkpoint_steps: int | None = None
    sharding: Sharding = Sharding.DDP


class Trainer:
    """Trains one drafter on one cache; `directory` receives checkpoints and metrics."""

    def __init__(
        self,
        drafter: Drafter,
        sampler: BlockSampler,
        held_out: list[BlockBatch],
        config: TrainerConfig,
        directory: Path,
        *,
        world: World | None = None,
        metrics: MetricsLog | None = None,
    ) -> None:
        self._world = world or World()
        if config.micro_batches % self._world.size:
            raise ConfigurationError(
                f"--micro-batches {config.micro_batches} cannot be shared out among {self._world.size} "
                "processes; pass a multiple of their number"
            )
        assert (config.hours is None) != (config.steps is None), "a run has hours or steps"
        if config.recipe.averaged_share and config.sharding is not Sharding.DDP:
            raise ConfigurationError(
                "--average keeps a whole mean in each process; "
                f"with --sharding {config.sharding} leave it out"
            )
        self._drafter, self._sampler, self._held_out = drafter, sampler, held_out
        self._config, self._directory = config, directory
        self._metrics = metrics or MetricsLog(directory)
        fused = load_fused_loss(drafter.config.num_draft_tokens)
        recipe = config.recipe
        make = partial(Objective, loss=recipe.loss, decay=recipe.position_decay, fused=fused)
        self._objective = make(drafter)
        self._spread = distribute(drafter, make, self._world, config.sharding)
        self._optimisers = make_optimisers(self._spread.trained, recipe)
        self._base_rates = [optimiser.param_groups[0]["lr"] for optimiser in self._optimisers]
        self._average = WeightAverage(drafter, recipe.start_share)
        self._step, self._blocks, self._elapsed_s = 0, 0, 0.0
        self._saved_at = (0.0, 0)

    @property
    def state_path(self) -> Path:
        """Where the resumable state lives."""
        return self._directory / "trainer.pt"

    def _identity(self) -> dict[str, Any]:
        """What must not change when a run goes on: the rest of its steps depends on it."""
        recipe = asdict(self._config.recipe)
        weights = recipe.pop("loss")
        flat = {**recipe, **weights, "micro_batches": self._config.micro_batches, **self._sampler.identity()}
        if self._drafter.config.is_chain:  # runs of blocks never named theirs
            flat["architecture"] = self._drafter.config.architecture
        return {key: str(value) for key, value in flat.items()}

    def resume(self) -> bool:
        """Load the last checkpoint of this directory, if there is one.

        Raises:
            ConfigurationError: another run left it.
        """
        state = load_state(self.state_path, self._identity())
        if state is None:
            return False
        self._spread.load(state["drafter"], self._optimisers, state["optimisers"])
        self._step, self._blocks, self._elapsed_s = state["step"], state["blocks"], state["elapsed_s"]
        self._average.load(state["average"])
        torch.set_rng_state(state["torch_rng"])
        if self._world.is_first:
            self._metrics.forget_after(self._step)
        return True

    def _checkpoint(self, save: Callable[[], None]) -> None:
        """Write the state and export the drafter, whose numbers are collected; all processes call this."""
        optimisers = self._spread.optimiser_states(self._optimisers)
        self._saved_at = (time.monotonic(), self._step)
        if not self._world.is_first:
            return
        save_state(
            self.state_path,
            {
                "identity": self._identity(),
                "drafter": self._drafter.state_dict(),
                "optimisers": optimisers,
                "average": self._average.state(),
                "torch_rng": torch.get_rng_state(),
                "step": self._step,  # which is also the position in the data
                "blocks": self._blocks,
                "elapsed_s": self._elapsed_s,
            },
        )
        with self._average.shown():
            save()

    def run(self, report: Callable[[str], None], save: Callable[[], None]) -> dict[str, float]:
        """Train until the budget is spent; return the last row of metrics.

        Args:
            report: told how far the run is, in sentences.
            save: exports the drafter, after each checkpoint.
        """
        is_first = self._world.is_first
        reporter = Reporter(self._standing, self.evaluate, self._metrics, report)
        if self._step == 0 and is_first:  # the drafter of `--init`, or noise
            reporter.held_out()
        self._saved_at = (time.monotonic(), self._step)
        while self._share_done() < 1:
            loss = self._train_step()
            if self._share_done() > 1 - self._config.recipe.averaged_share:
                self._average.add()
            is_measured, is_kept = self._agreed(reporter.is_held_out_due(), self._is_checkpoint_due())
            if is_measured or is_kept:
                self._spread.collect()
            if is_first:
                reporter.step_done(loss, is_measured=is_measured)
            if is_kept:
                self._checkpoint(save)
        self._spread.collect()
        self._checkpoint(save)
        last = reporter.held_out() if is_first else {}
        self._average.settle()
        return last

    def _agreed(self, *wishes: bool) -> list[bool]:
        """What the first process wants, in all of them."""
        return [bool(sum_) for sum_ in self._world.sums([self._world.is_first and wish for wish in wishes])]

    def _is_checkpoint_due(self) -> bool:
        moment, step = self._saved_at
        if self._config.checkpoint_steps is not None:
            return self._step - step >= self._config.checkpoint_steps
        return time.monotonic() - moment > 60 * self._config.checkpoint_minutes

    def _standing(self) -> Standing:
        return Standing(self._step, self._config.steps, self._blocks, self._elapsed_s, self._share_done())

    def _share_done(self) -> float:
        if self._config.steps is not None:
            return self._step / self._config.steps if self._config.steps else 1.0
        budget_s = 3600 * (self._config.hours or 0.0)
        return min(self._elapsed_s / budget_s, 1.0) if budget_s else 1.0

    def _train_step(self) -> float:
        """One step; returns its loss."""
        started = time.monotonic()
        config, world = self._config, self._world
        share = rate_share(
            config.recipe.schedule, step=self._step, total_steps=config.steps, progress=self._share_done()
        )
        for optimiser, base in zip(self._optimisers, self._base_rates, strict=True):
            for group in optimiser.param_groups:
                group["lr"] = base * share
            optimiser.zero_grad(set_to_none=True)
        loss, num_blocks = self._gradients()
        nn.utils.clip_grad_norm_(self._spread.trained.parameters(), config.max_grad_norm)
        for optimiser in self._optimisers:
            optimiser.step()
        # All processes follow the clock of the first one.
        spent_s = time.monotonic() - started if world.is_first else 0.0
        loss, blocks, spent_s = world.sums([loss, num_blocks, spent_s])
        self._step += 1
        self._blocks += int(blocks)
        self._elapsed_s += spent_s
        return loss

    def _gradients(self) -> tuple[float, int]:
        """Leave the gradient of the step in the parameters; return loss and blocks of this process."""
        world, count = self._world, self._config.micro_batches
        numbers = range(self._step * count + world.rank, (self._step + 1) * count, world.size)
        block_len = block_len_at(
            self._config.recipe,
            step=self._step,
            progress=self._share_done(),
            gamma=self._drafter.config.gamma,
        )
        batches = [self._sampler.batch(number, block_len) for number in numbers]
        decay = self._config.recipe.position_decay
        own_weight = sum(float(position_weights(batch.is_valid, decay).sum()) for batch in batches)
        (total_weight,) = world.sums([own_weight])
        total = 0.0
        for place, batch in enumerate(batches):
            is_last = place == len(batches) - 1
            with contextlib.nullcontext() if is_last else self._spread.unsummed():
                value, _ = self._spread.module(batch, total_weight)
                # the gradients are averaged over processes, and are to be summed
                (value * world.size).backward()
            total += float(value.detach())
        return total, sum(len(batch.anchors) for batch in batches)

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Held-out metrics under teacher forcing, of the weights that come out."""
        with self._average.shown():
            return self._held_out_figures()

    def _held_out_figures(self) -> dict[str, float]:
        greedy, sampled, first, losses = [], [], [], []
        for batch in self._held_out:
            loss, scores = self._objective(batch, None)
            greedy.append(mean_committed(scores.agree, scores.is_valid))
            sampled.append(mean_committed(scores.overlap, scores.is_valid))
            first.append(float(scores.agree[:, 0].mean()))
            losses.append(float(loss))
        return {
            "held_out_loss": float(np.mean(losses)),
            "mean_committed_greedy": float(np.mean(greedy)),
            "mean_committed_sampled": float(np.mean(sampled)),
            "agree_first": float(np.mean(first)),
        }
