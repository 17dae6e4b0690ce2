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
        *((name, _pointer) for name in ("embedded", "biases", "token_ids")),
        *((name, _int64) for name in ("num_requests", "num_steps")),
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
        base_logits: Tensor,  # [R, S, Vd] bfloat16
        anchors: Tensor,  # [R] int64
    ) -> tuple[Tensor, Tensor]:
        """Draft S tokens for each request.

        Returns:
            Token ids [R, S] int64, and the embeddings of the tokens before them [R, S, rank].
        """
        num_requests, num_steps, width = base_logits.shape
        rank = self._embeddings.shape[1]
        assert base_logits.dtype == torch.bfloat16, base_logits.dtype
        assert base_logits.is_contiguous(), base_logits.stride()
        assert width == self._biases.out_features, base_logits.shape
        embedded = torch.empty((num_steps, num_requests, rank), dtype=torch.bfloat16)
        biases = torch.empty((num_requests, width), dtype=torch.bfloat16)
        token_ids = torch.empty((num_requests, num_steps), dtype=torch.int64)
        args = _MarkovArgs(
            base_logits.data_ptr(),
            self._embeddings.data_ptr(),
            self._biases.words.data_ptr(),
            None if self._token_map is None else self._token_map.data_ptr(),
            anchors.data_ptr(),
            embedded.data_ptr(),
            biases.data_ptr(),
            token_ids.data_ptr(),
            num_requests,
            num_steps,
            rank,
            width,
            torch.get_num_threads(),
        )
        self._call(ctypes.byref(args))
        return token_ids, embedded.transpose(0, 1)
