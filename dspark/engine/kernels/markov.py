"""Typed call into the native sequential head of a drafter."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from dspark.engine.kernels.native import NativeKernels, PackedWeight

_pointer, _int64, _int32 = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32


class _MarkovArgs(ctypes.Structure):
    _fields_ = (
        *((name, _pointer) for name in ("base_logits", "embeddings", "packed", "token_map", "anchors")),
        *((name, _pointer) for name in ("first_slots", "embedded", "inputs", "biases", "token_ids")),
        ("num_requests", _int64),
        *((name, _int32) for name in ("rank", "num_draft_tokens", "num_threads")),
    )


class NativeMarkovHead:
    """Greedy drafts of a first-order head in bfloat16 (paper eqs. 4-5)."""

    def __init__(
        self,
        kernels: NativeKernels,
        embeddings: Tensor,  # [V, rank], W1
        biases: PackedWeight,  # W2, [Vd, rank]
        token_map: Tensor | None,  # [Vd] int64
    ) -> None:
        assert embeddings.dtype == torch.bfloat16, embeddings.dtype
        assert embeddings.shape[1] == biases.in_features, embeddings.shape
        self._call = kernels.function("dspark_draft_greedily")
        self._embeddings = embeddings.contiguous()
        self._biases = biases
        self._token_map = token_map

    def draft(
        self,
        base_logits: Tensor,  # [T, Vd] bfloat16, the slots of each request behind one another
        anchors: Tensor,  # [R] int64
        first_slots: Tensor,  # [R + 1] int64
    ) -> tuple[Tensor, Tensor]:
        """Draft a token for every slot.

        Returns:
            Token ids [T] int64, and the embeddings of the tokens before them [T, rank].
        """
        num_slots, width = base_logits.shape
        num_requests, rank = len(anchors), self._embeddings.shape[1]
        assert base_logits.dtype == torch.bfloat16, base_logits.dtype
        assert base_logits.is_contiguous(), base_logits.stride()
        assert width == self._biases.out_features, base_logits.shape
        embedded, inputs, biases = (
            torch.empty(shape, dtype=torch.bfloat16)
            for shape in ((num_slots, rank), (num_requests, rank), (num_requests, width))
        )
        token_ids = torch.empty(num_slots, dtype=torch.int64)
        args = _MarkovArgs(
            base_logits.data_ptr(),
            self._embeddings.data_ptr(),
            self._biases.words.data_ptr(),
            None if self._token_map is None else self._token_map.data_ptr(),
            *(one.data_ptr() for one in (anchors, first_slots, embedded, inputs, biases, token_ids)),
            num_requests,
            rank,
            width,
            torch.get_num_threads(),
        )
        self._call(ctypes.byref(args))
        return token_ids, embedded
