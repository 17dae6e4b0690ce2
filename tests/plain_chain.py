"""Eagle3 and MTP drafters a second time: one position at a time, from the equations, in float64."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.plain_drafter import PlainDrafter


class PlainChain(PlainDrafter):
    """Reads the files of a chain drafter."""

    def chain(self, features: Tensor, tokens: list[int], drafts: list[int], num_steps: int) -> Tensor:
        """Logits of each step, [num_steps, V].

        Args:
            features: [n, *] of positions 0..n-1; of an MTP drafter the target's last hidden states.
            tokens: at positions 0..n; the last is the anchor.
            drafts: what the steps before the last chose.
            num_steps: how many.
        """
        length = len(features)
        keys: list[Tensor] = []
        values: list[Tensor] = []
        for position in range(length):
            state = self.state(features[position].double())
            read, residual = self.inputs(tokens[position + 1], state)
            key, value = self.key_value(read, position)
            keys.append(key)
            values.append(value)
        logits = []
        for step in range(num_steps):
            position = length - 1 + step
            if step > 0:
                read, residual = self.inputs(drafts[step - 1], state)
                key, value = self.key_value(read, position)
                keys.append(key)
                values.append(value)
            state = self.rest(residual, self.attend(read, position, keys, values))
            logits.append(self.output(state))
        return torch.stack(logits)

    @property
    def is_mtp(self) -> bool:
        return "enorm.weight" in self.weights

    def state(self, feature: Tensor) -> Tensor:
        return feature if self.is_mtp else self.weights["fc.weight"] @ feature

    def inputs(self, token: int, state: Tensor) -> tuple[Tensor, Tensor]:
        """What attention reads, and what the layer adds to."""
        weights = self.weights
        embedding = weights["embed_tokens.weight"][token] * self.embedding_scale
        if self.is_mtp:
            pair = torch.cat(
                [self.norm(embedding, weights["enorm.weight"]), self.norm(state, weights["hnorm.weight"])]
            )
            joined = weights["eh_proj.weight"] @ pair
            return self.norm(joined, weights["layers.0.input_layernorm.weight"]), joined
        first = self.norm(embedding, weights["layers.0.input_layernorm.weight"])
        return torch.cat([first, self.norm(state, weights["layers.0.hidden_norm.weight"])]), state

    def key_value(self, read: Tensor, position: int) -> tuple[Tensor, Tensor]:
        """[heads, D] each."""
        name, weights = "layers.0.self_attn.", self.weights
        key = self.project(name + "k_proj", read)
        value = key if self.config.get("attention_k_eq_v", False) else self.project(name + "v_proj", read)
        if self.is_gemma:
            value = self.norm(value, torch.ones(self.head_dim, dtype=torch.float64))
        return self.turn(self.norm(key, weights[name + "k_norm.weight"]), position), value

    def attend(self, read: Tensor, position: int, keys: list[Tensor], values: list[Tensor]) -> Tensor:
        name = "layers.0.self_attn."
        query = self.norm(self.project(name + "q_proj", read), self.weights[name + "q_norm.weight"])
        query = self.turn(query, position)
        scale = 1.0 if self.is_gemma else self.head_dim**-0.5
        group = len(query) // len(keys[0])
        heads = []
        for head in range(len(query)):
            shares = torch.softmax(torch.stack([query[head] @ key[head // group] for key in keys]) * scale, 0)
            heads.append(
                sum(share * value[head // group] for share, value in zip(shares, values, strict=True))
            )
        return self.linear(name + "o_proj", torch.cat(heads))

    def rest(self, residual: Tensor, attended: Tensor) -> Tensor:
        """The layer after attention."""
        name, weights = "layers.0.", self.weights
        if not self.is_gemma:
            state = residual + attended
            return state + self.mlp(name, self.norm(state, weights[name + "post_attention_layernorm.weight"]))
        state = residual + self.norm(attended, weights[name + "post_attention_layernorm.weight"])
        fed = self.mlp(name, self.norm(state, weights[name + "pre_feedforward_layernorm.weight"]))
        state = state + self.norm(fed, weights[name + "post_feedforward_layernorm.weight"])
        return state * weights[name + "layer_scalar"]

    def output(self, state: Tensor) -> Tensor:
        logits = self.weights["lm_head.weight"] @ self.norm(state, self.weights["norm.weight"])
        cap = self.config.get("final_logit_softcapping")
        return cap * torch.tanh(logits / cap) if cap else logits
