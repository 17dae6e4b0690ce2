"""The training loop: batches, optimisers, a time-bounded schedule, checkpoints, held-out metrics."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dspark.models.drafter import DSparkDrafter
from dspark.training.blocks import BlockBatch, BlockSampler
from dspark.training.fused_loss import load_fused_loss
from dspark.training.losses import LossWeights
from dspark.training.muon import Muon
from dspark.training.objective import BlockScores, mean_committed, run_blocks


@dataclass(frozen=True, slots=True)
class TrainerConfig:
    """How long and how fast to train.

    Attributes:
        hours: wall-clock budget; the learning rate falls linearly to 0 over its last `decay_share`.
        muon_lr: learning rate of weight matrices (Muon, update scaled as AdamW's).
        adamw_lr: learning rate of embeddings, norms and the confidence head.
        position_decay: decay of the position weights, in slots.
    """

    hours: float
    muon_lr: float = 2e-3
    adamw_lr: float = 1.5e-3
    warmup_steps: int = 100
    decay_share: float = 0.4
    position_decay: float = 4.0
    max_grad_norm: float = 1.0
    checkpoint_minutes: float = 5.0
    loss: LossWeights = field(default_factory=LossWeights)


def split_parameters(drafter: DSparkDrafter) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Matrices of the backbone for Muon, everything else for AdamW."""
    matrices = [one for one in drafter.backbone.parameters() if one.dim() == 2]
    known = {id(one) for one in matrices}
    return matrices, [one for one in drafter.parameters() if id(one) not in known]


class Trainer:
    """Trains one drafter on one cache; `directory` receives checkpoints and `metrics.jsonl`."""

    def __init__(
        self,
        drafter: DSparkDrafter,
        sampler: BlockSampler,
        held_out: list[BlockBatch],
        config: TrainerConfig,
        directory: Path,
    ) -> None:
        self._drafter, self._sampler, self._held_out = drafter, sampler, held_out
        self._config, self._directory = config, directory
        matrices, others = split_parameters(drafter)
        self._optimisers: list[torch.optim.Optimizer] = [
            Muon(matrices, lr=config.muon_lr, weight_decay=0.01, dtype=drafter.lm_head.dtype),
            torch.optim.AdamW(others, lr=config.adamw_lr, betas=(0.9, 0.98), weight_decay=0.0),
        ]
        self._base_lrs = [config.muon_lr, config.adamw_lr]
        self._fused = load_fused_loss(drafter.config.num_draft_tokens)
        self._step, self._blocks, self._elapsed_s, self._evaluation_s = 0, 0, 0.0, 0.0

    @property
    def state_path(self) -> Path:
        """Where the resumable state lives."""
        return self._directory / "trainer.pt"

    def resume(self) -> bool:
        """Load the last checkpoint of this directory, if there is one."""
        if not self.state_path.is_file():
            return False
        state: dict[str, Any] = torch.load(self.state_path, weights_only=True)
        self._drafter.load_state_dict(state["drafter"])
        for optimiser, saved in zip(self._optimisers, state["optimisers"], strict=True):
            optimiser.load_state_dict(saved)
        self._step, self._blocks, self._elapsed_s = state["step"], state["blocks"], state["elapsed_s"]
        return True

    def run(self, report: Callable[[dict[str, float]], None], save: Callable[[], None]) -> None:
        """Train until the budget of hours is spent; `save` exports the drafter at each checkpoint."""
        batches = iter(self._sampler)
        budget_s = self._config.hours * 3600
        if self._step == 0:  # what training starts from: the drafter of `--init`, or noise
            self._report(report, [float("nan")], 0.0)
        last_save, last_report = time.monotonic(), time.monotonic()
        losses: list[float] = []
        reported_blocks = self._blocks
        while self._elapsed_s < budget_s:
            started = time.monotonic()
            losses.append(self._train_step(batches, self._elapsed_s / budget_s))
            now = time.monotonic()
            self._elapsed_s += now - started
            # held-out figures once a minute, less often where that would take a twentieth of the time
            if now - last_report > max(60.0, 20 * self._evaluation_s):
                rate = (self._blocks - reported_blocks) / (now - last_report)
                self._report(report, losses, rate)
                losses, last_report, reported_blocks = [], time.monotonic(), self._blocks
            if now - last_save > self._config.checkpoint_minutes * 60:
                self._checkpoint()
                save()
                last_save = time.monotonic()
        self._checkpoint()
        self._report(report, losses or [float("nan")], 0.0)
        save()

    def _learning_rate(self, progress: float) -> float:
        """Share of the base rate: linear warm-up by step, constant, linear to zero by time."""
        warm = min(1.0, (self._step + 1) / self._config.warmup_steps)
        return warm * min(1.0, max(0.0, (1 - progress) / self._config.decay_share))

    def _train_step(self, batches: Iterator[BlockBatch], progress: float) -> float:
        share = self._learning_rate(progress)
        for optimiser, base in zip(self._optimisers, self._base_lrs, strict=True):
            for group in optimiser.param_groups:
                group["lr"] = base * share
            optimiser.zero_grad(set_to_none=True)
        batch = next(batches)
        loss, _ = self._run(batch)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self._drafter.parameters(), self._config.max_grad_norm)
        for optimiser in self._optimisers:
            optimiser.step()
        self._step += 1
        self._blocks += batch.anchors.numel()
        return float(loss.detach())

    def _run(self, batch: BlockBatch) -> tuple[Tensor, BlockScores]:
        return run_blocks(
            self._drafter, batch, self._config.loss, decay=self._config.position_decay, fused=self._fused
        )

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Held-out metrics under teacher forcing."""
        started = time.monotonic()
        greedy, sampled, first, losses = [], [], [], []
        for batch in self._held_out:
            loss, scores = self._run(batch)
            greedy.append(mean_committed(scores.agree, scores.is_valid))
            sampled.append(mean_committed(scores.overlap, scores.is_valid))
            first.append(float(scores.agree[:, 0].mean()))
            losses.append(float(loss))
        self._evaluation_s = time.monotonic() - started
        return {
            "held_out_loss": float(np.mean(losses)),
            "mean_committed_greedy": float(np.mean(greedy)),
            "mean_committed_sampled": float(np.mean(sampled)),
            "agree_first": float(np.mean(first)),
        }

    def _report(self, report: Callable[[dict[str, float]], None], losses: list[float], rate: float) -> None:
        row = {
            "step": float(self._step),
            "blocks": float(self._blocks),
            "hours": self._elapsed_s / 3600,
            "loss": float(np.mean(losses)),
            "blocks_per_s": rate,
            **self.evaluate(),
        }
        with (self._directory / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")
        report(row)

    def _checkpoint(self) -> None:
        state = {
            "drafter": self._drafter.state_dict(),
            "optimisers": [optimiser.state_dict() for optimiser in self._optimisers],
            "step": self._step,
            "blocks": self._blocks,
            "elapsed_s": self._elapsed_s,
            "config": {key: str(value) for key, value in asdict(self._config).items()},
        }
        partial = self.state_path.with_suffix(".partial")
        torch.save(state, partial)
        os.replace(partial, self.state_path)
