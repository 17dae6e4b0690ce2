"""Typed call into the native sequential head of a drafter and its confidence head."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from dspark.engine.kernels.arguments import c_float, c_int32, c_int64, c_pointer, point
from dspark.engine.kernels.native import NativeKernels, PackedWeight


class MarkovArgs(ctypes.Structure):
    """Of the sequential head."""

    _fields_ = (
        *((name, c_pointer) for name in ("base_logits", "embeddings", "packed", "token_map", "anchors")),
        *((name, c_pointer) for name in ("first_slots", "embedded", "inputs", "biases", "token_ids")),
        *((name, c_pointer) for name in ("hidden", "confidence_row", "confidences")),
        ("num_requests", c_int64),
        *((name, c_int32) for name in ("rank", "num_draft_tokens", "hidden_size", "num_threads", "is_int8")),
        ("confidence_bias", c_float),
    )


# What `draft` sets beside them.
_DRAFT_TENSORS = (
    *("base_logits", "anchors", "first_slots", "embedded", "inputs", "biases", "token_ids"),
    *("hidden", "confidences"),
)


@dataclass(frozen=True, slots=True)
class GreedyDrafts:
    """Drafts of T slots.

    Attributes:
        token_ids: [T] int64.
        embedded: [T, rank] embeddings of the tokens before them.
        confidence_logits: [T] float32.
    """

    token_ids: Tensor
    embedded: Tensor
    confidence_logits: Tensor


class NativeMarkovHead:
    """Greedy drafts of a first-order head in bfloat16, and confidences in them (paper eqs. 4-5 and 7)."""

    def __init__(
        self,
        kernels: NativeKernels,
        embeddings: Tensor,  # [V, rank], W1
        biases: PackedWeight,  # W2, [Vd, rank]
        token_map: Tensor | None,  # [Vd] int64
        confidence: tuple[Tensor, float],  # weights [H + rank] and bias
    ) -> None:
        assert embeddings.dtype == torch.bfloat16, embeddings.dtype
        assert embeddings.shape[1] == biases.in_features, embeddings.shape
        self._call = kernels.function("dspark_draft_greedily")
        self._embeddings = embeddings.contiguous()
        self._biases = biases
        self._token_map = token_map
        self._confidence_row = confidence[0].float().contiguous()
        self._confidence_bias = confidence[1]

    def draft(
        self,
        hidden: Tensor,  # [T, H] bfloat16, the slots of each request behind one another
        base_logits: Tensor,  # [T, Vd] bfloat16
        anchors: Tensor,  # [R] int64
        first_slots: Tensor,  # [R + 1] int64
    ) -> GreedyDrafts:
        """Draft a token for every slot."""
        num_slots, width = base_logits.shape
        num_requests, rank = len(anchors), self._embeddings.shape[1]
        for states in (hidden, base_logits):
            assert states.dtype == torch.bfloat16, states.dtype
            assert states.is_contiguous(), states.stride()
        assert width == self._biases.out_features, base_logits.shape
        embedded, inputs, biases = (
            torch.empty(shape, dtype=torch.bfloat16)
            for shape in ((num_slots, rank), (num_requests, rank), (num_requests, width))
        )
        token_ids = torch.empty(num_slots, dtype=torch.int64)
        confidences = torch.empty(num_slots)
        tensors = (
            base_logits,
            anchors,
            first_slots,
            embedded,
            inputs,
            biases,
            token_ids,
            hidden,
            confidences,
        )
        args = self.arguments()
        point(args, _DRAFT_TENSORS, tensors)
        args.num_requests = num_requests
        self._call(ctypes.byref(args))
        return GreedyDrafts(token_ids, embedded, confidences)

    def arguments(self) -> MarkovArgs:
        """All that does not depend on the blocks of a draft."""
        return MarkovArgs(
            embeddings=self._embeddings.data_ptr(),
            packed=self._biases.words.data_ptr(),
            token_map=None if self._token_map is None else self._token_map.data_ptr(),
            confidence_row=self._confidence_row.data_ptr(),
            rank=self._embeddings.shape[1],
            num_draft_tokens=self._biases.out_features,
            hidden_size=len(self._confidence_row) - self._embeddings.shape[1],
            num_threads=torch.get_num_threads(),
            is_int8=self._biases.is_int8,
            confidence_bias=self._confidence_bias,
        )
