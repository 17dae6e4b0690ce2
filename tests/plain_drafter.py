"""A DSpark drafter written down a second time: one block at a time, from the equations, in float64.

It knows the files of a drafter directory and nothing of `dspark`. Slow on purpose: loops over layers, heads
and slots, no cache, no batch.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor


@dataclass(frozen=True)
class PlainBlock:
    """What a block should be, given its drafts: logits [G, V], and confidence logits [G] of a head if any."""

    logits: Tensor
    confidences: Tensor | None


class PlainDrafter:
    """Reads `config.json` and `model.safetensors`, whose copies of embedding and head it uses."""

    def __init__(self, directory: Path, *, embedding_dtype: torch.dtype) -> None:
        self.config: dict[str, Any] = json.loads((directory / "config.json").read_text())
        self.weights = {
            name: one.double() for name, one in load_file(directory / "model.safetensors").items()
        }
        self.is_gemma = self.config["architectures"][0].startswith("Gemma4")
        self.head_dim = self.config["global_head_dim" if self.is_gemma else "head_dim"]
        scale = torch.tensor(self.config["hidden_size"] ** 0.5).to(embedding_dtype)
        self.embedding_scale = float(scale) if self.is_gemma else 1.0

    def block(self, features: Tensor, anchor: int, drafts: list[int]) -> PlainBlock:
        """The block after `features` [T, m*d] of positions 0..T-1 and the anchor token at position T."""
        hidden = self.hidden(features.double(), anchor)
        logits, confidences = [], []
        state = None
        previous = [anchor, *drafts]
        for slot in range(self.config["block_size"]):
            base = self.weights["lm_head.weight"] @ hidden[slot]
            cap = self.config.get("final_logit_softcapping")
            if cap:
                base = cap * torch.tanh(base / cap)
            bias, embedded, state = self.markov(hidden[slot], previous[slot], state)
            logits.append(base + bias)
            confidences.append(self.confidence(hidden[slot], embedded))
        has_head = self.config.get("enable_confidence_head", False)
        return PlainBlock(torch.stack(logits), torch.stack(confidences) if has_head else None)

    def markov(
        self, hidden: Tensor, token: int, state: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Bias, embedding of the token before, and the next state of an RNN."""
        rank = self.config["markov_rank"]
        if rank == 0:
            return torch.zeros(1, dtype=torch.float64), hidden[:0], None
        weights, kind = self.weights, self.config.get("markov_head_type", "vanilla")
        embedded = weights["markov_head.markov_w1.weight"][token]
        mixed = embedded
        if kind == "gated":
            gate = weights["markov_head.gate_proj.weight"] @ torch.cat([hidden, embedded])
            mixed = torch.sigmoid(gate + weights["markov_head.gate_proj.bias"]) * embedded
        elif kind == "rnn":
            old = torch.zeros(rank, dtype=torch.float64) if state is None else state
            joint = weights["markov_head.joint_proj.weight"] @ torch.cat([old, embedded, hidden])
            joint = joint + weights["markov_head.joint_proj.bias"]
            keep = torch.sigmoid(joint[:rank])
            state = keep * old + (1 - keep) * torch.tanh(joint[rank : 2 * rank])
            mixed = torch.tanh(joint[2 * rank :])
        return weights["markov_head.markov_w2.weight"] @ mixed, embedded, state

    def confidence(self, hidden: Tensor, embedded: Tensor) -> Tensor:
        """w [h; e] + b, or w h + b."""
        if not self.config.get("enable_confidence_head", False):
            return torch.zeros(())
        parts = [hidden, embedded] if self.config["confidence_head_with_markov"] else [hidden]
        weights = self.weights
        product = weights["confidence_head.proj.weight"][0] @ torch.cat(parts)
        return product + weights["confidence_head.proj.bias"][0]

    def hidden(self, features: Tensor, anchor: int) -> Tensor:
        """Hidden states of the slots after the last norm, [G, d]."""
        weights, gamma, length = self.weights, self.config["block_size"], len(features)
        context = [self.norm(weights["fc.weight"] @ row, weights["hidden_norm.weight"]) for row in features]
        tokens = [anchor] + [self.config["mask_token_id"]] * (gamma - 1)
        states = [weights["embed_tokens.weight"][one] * self.embedding_scale for one in tokens]
        for layer in range(self.config["num_hidden_layers"]):
            states = self.layer(f"layers.{layer}.", context, states, length)
        return torch.stack([self.norm(one, weights["norm.weight"]) for one in states])

    def layer(self, name: str, context: list[Tensor], states: list[Tensor], length: int) -> list[Tensor]:
        """One layer: the slots attend the context and each other, all of it."""
        weights = self.weights
        normed = [self.norm(one, weights[name + "input_layernorm.weight"]) for one in states]
        attended = self.attention(name + "self_attn.", context, normed, length)
        out = []
        for state, added in zip(states, attended, strict=True):
            if self.is_gemma:
                state = state + self.norm(added, weights[name + "post_attention_layernorm.weight"])
                fed = self.mlp(name, self.norm(state, weights[name + "pre_feedforward_layernorm.weight"]))
                state = state + self.norm(fed, weights[name + "post_feedforward_layernorm.weight"])
                out.append(state * weights[name + "layer_scalar"])
            else:
                state = state + added
                out.append(
                    state
                    + self.mlp(name, self.norm(state, weights[name + "post_attention_layernorm.weight"]))
                )
        return out

    def attention(self, name: str, context: list[Tensor], block: list[Tensor], length: int) -> list[Tensor]:
        """Keys of context and block, context first; every slot sees all of them."""
        size, weights = self.head_dim, self.weights
        keys, values = [], []
        for position, row in enumerate([*context, *block]):
            key = self.project(name + "k_proj", row)
            is_shared = self.config.get("attention_k_eq_v", False)
            value = key if is_shared else self.project(name + "v_proj", row)
            if self.is_gemma:
                value = self.norm(value, torch.ones(size, dtype=torch.float64))
            keys.append(self.turn(self.norm(key, weights[name + "k_norm.weight"]), position))
            values.append(value)
        scale = 1.0 if self.is_gemma else size**-0.5
        out = []
        for slot, row in enumerate(block):
            query = self.norm(self.project(name + "q_proj", row), weights[name + "q_norm.weight"])
            query = self.turn(query, length + slot)
            group = len(query) // len(keys[0])
            heads = []
            for head in range(len(query)):
                scores = torch.stack([query[head] @ key[head // group] * scale for key in keys])
                shares = torch.softmax(scores, 0)
                pairs = zip(shares, values, strict=True)
                heads.append(sum(share * value[head // group] for share, value in pairs))
            out.append(self.linear(name + "o_proj", torch.cat(heads)))
        return out

    def project(self, name: str, row: Tensor) -> Tensor:
        """One row to its heads, [heads, D]."""
        return self.linear(name, row).view(-1, self.head_dim)

    def linear(self, name: str, row: Tensor) -> Tensor:
        out = self.weights[name + ".weight"] @ row
        return out + self.weights[name + ".bias"] if name + ".bias" in self.weights else out

    def mlp(self, name: str, row: Tensor) -> Tensor:
        weights = self.weights
        gate = weights[name + "mlp.gate_proj.weight"] @ row
        if self.is_gemma:
            gate = 0.5 * gate * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (gate + 0.044715 * gate**3)))
        else:
            gate = gate * torch.sigmoid(gate)
        return weights[name + "mlp.down_proj.weight"] @ (gate * (weights[name + "mlp.up_proj.weight"] @ row))

    def norm(self, states: Tensor, weight: Tensor) -> Tensor:
        mean = (states**2).mean(-1, keepdim=True)
        return states / torch.sqrt(mean + self.config["rms_norm_eps"]) * weight

    def turn(self, heads: Tensor, position: int) -> Tensor:
        """RoPE: number i and number i + D/2 of a head turn together."""
        half, rope = self.head_dim // 2, self.config["rope_parameters"]
        turning = half
        if self.is_gemma:
            rope = rope["full_attention"]
            turning = int(rope["partial_rotary_factor"] * half)
        out = heads.clone()
        for i in range(turning):
            angle = torch.tensor(
                position * rope["rope_theta"] ** (-2 * i / self.head_dim), dtype=torch.float64
            )
            a, b = heads[:, i], heads[:, i + half]
            out[:, i] = a * angle.cos() - b * angle.sin()
            out[:, i + half] = b * angle.cos() + a * angle.sin()
        return out
