"""Typed call that drafts whole blocks: layers, output projection, sequential head (paper eqs. 3-5 and 7)."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dspark.engine.kernels.arguments import c_int64, c_pointer
from dspark.engine.kernels.context_rows import ContextRowsArgs, FollowingRows, RowTable
from dspark.engine.kernels.decoder import DecoderArgs, NativeDecoder
from dspark.engine.kernels.markov import MarkovArgs, NativeMarkovHead
from dspark.engine.kernels.native import NativeKernels, PackedWeight


class _DraftArgs(ctypes.Structure):
    _fields_ = (
        ("rows", ContextRowsArgs),
        ("decoder", DecoderArgs),
        ("markov", MarkovArgs),
        *((name, c_pointer) for name in ("embeddings", "head")),
        ("mask_token", c_int64),
    )


class NativeDraft:
    """Greedy drafts of blocks from the contexts of their requests; for one thread."""

    def __init__(
        self,
        kernels: NativeKernels,
        decoder: tuple[NativeDecoder, tuple[Sequence[Tensor], Sequence[Tensor]]],  # over keys and values
        heads: tuple[PackedWeight, NativeMarkovHead],  # output projection and sequential head
        embeddings: tuple[Tensor, int],  # [V, H] bfloat16, and the mask token
        rotation: tuple[Tensor, Tensor],  # cosines and sines [P, D / 2] of every position
    ) -> None:
        rows, mask_token = embeddings
        assert rows.dtype == torch.bfloat16, rows.dtype
        assert rows.is_contiguous(), rows.stride()
        self._call = kernels.function("dspark_draft_blocks")
        self._decoder, self._heads, self._embeddings = decoder, heads, rows
        self._table = RowTable(rotation)
        self._args = _DraftArgs(
            decoder=decoder[0].arguments(decoder[1]),
            markov=heads[1].arguments(),
            embeddings=rows.data_ptr(),
            head=heads[0].words.data_ptr(),
            mask_token=mask_token,
        )
        assert self._args.markov.is_int8 == heads[0].is_int8, "one format for both heads"

    def run(
        self, rows: Sequence[FollowingRows], anchors: Sequence[int]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """Draft a block for each request.

        Args:
            rows: the slots of the blocks.
            anchors: the last committed tokens.

        Returns:
            Token ids and confidence logits of all slots, [T] each.
        """
        num_slots = self._table.fill(rows)
        tokens, confidences = np.empty(num_slots, dtype=np.int64), np.empty(num_slots, dtype=np.float32)
        first_tokens = np.array(anchors, dtype=np.int64)
        args = self._args
        args.rows = self._table.args
        args.decoder.num_threads = args.markov.num_threads = torch.get_num_threads()
        args.markov.anchors = first_tokens.ctypes.data
        args.markov.token_ids, args.markov.confidences = tokens.ctypes.data, confidences.ctypes.data
        self._call(ctypes.byref(args))
        return tokens, confidences
