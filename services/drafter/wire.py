"""Messages of the drafter, to and from domain values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from dspark.api.v1 import drafter_pb2
from dspark.decoding.types import DraftBlock, DrafterInfo, DraftRequest, FeatureBatch
from dspark.errors import InvalidRequestError
from services.runtime.wire import (
    costs_from_pb,
    costs_to_pb,
    sampling_from_pb,
    sampling_to_pb,
    sparse_probs_from_pb,
    tensor_from_pb,
    token_ids_from_pb,
    write_sparse_probs,
    write_tensor,
)


def info_to_pb(info: DrafterInfo) -> drafter_pb2.GetDrafterInfoResponse:
    """The loaded drafter as a message."""
    return drafter_pb2.GetDrafterInfoResponse(
        name=info.name,
        gamma=info.gamma,
        target_layer_ids=info.target_layer_ids,
        hidden_size=info.hidden_size,
        vocab_size=info.vocab_size,
        draft_cost=costs_to_pb(info.draft_cost),
    )


def info_from_pb(message: drafter_pb2.GetDrafterInfoResponse) -> DrafterInfo:
    """The inverse."""
    return DrafterInfo(
        name=message.name,
        gamma=message.gamma,
        target_layer_ids=tuple(message.target_layer_ids),
        hidden_size=message.hidden_size,
        vocab_size=message.vocab_size,
        draft_cost=costs_from_pb(message.draft_cost),
    )


def requests_to_pb(requests: Iterable[DraftRequest]) -> drafter_pb2.DraftRequest:
    """A batch of requests as a message."""
    items = [
        drafter_pb2.DraftItem(
            request_id=request.request_id,
            epoch=request.epoch,
            base_committed_len=request.base_committed_len,
            anchor_token=request.anchor_token,
            sampling=sampling_to_pb(request.sampling),
            max_drafts=request.max_drafts,
            num_verified=request.num_verified,
            max_copied=request.max_copied,
        )
        for request in requests
    ]
    return drafter_pb2.DraftRequest(items=items)


def requests_from_pb(message: drafter_pb2.DraftRequest) -> list[DraftRequest]:
    """The inverse.

    Raises:
        InvalidRequestError: a field of an item is wrong.
    """
    return [_request_from_pb(item) for item in message.items]


def _request_from_pb(item: drafter_pb2.DraftItem) -> DraftRequest:
    if item.base_committed_len == 0:
        raise InvalidRequestError(
            f"base_committed_len of {item.request_id!r} is 0; a block needs an anchor token",
            "base_committed_len",
        )
    if item.max_drafts == 0:
        raise InvalidRequestError(f"max_drafts of {item.request_id!r} is 0; ask for at least 1", "max_drafts")
    return DraftRequest(
        request_id=item.request_id,
        epoch=item.epoch,
        base_committed_len=item.base_committed_len,
        anchor_token=item.anchor_token,
        sampling=sampling_from_pb(item.sampling),
        max_drafts=item.max_drafts,
        num_verified=item.num_verified,
        max_copied=item.max_copied,
    )


def blocks_to_pb(blocks: Iterable[DraftBlock], draft_ns: int) -> drafter_pb2.DraftResponse:
    """Proposed blocks as a message."""
    response = drafter_pb2.DraftResponse(draft_ns=draft_ns)
    for block in blocks:
        message = response.blocks.add(
            request_id=block.request_id,
            epoch=block.epoch,
            base_committed_len=block.base_committed_len,
            token_ids=block.token_ids.tolist(),
            confidence=block.confidence.tolist(),
            is_copied=block.is_copied,
        )
        write_sparse_probs(block.probs, message.probs)
    return response


def blocks_from_pb(message: drafter_pb2.DraftResponse) -> list[DraftBlock]:
    """The inverse.

    Raises:
        InvalidRequestError: a block does not hold one confidence for each token.
    """
    return [_block_from_pb(block) for block in message.blocks]


def _block_from_pb(block: drafter_pb2.DraftBlock) -> DraftBlock:
    num_drafts = len(block.token_ids)
    if len(block.confidence) != num_drafts or len(block.probs) not in (0, num_drafts):
        raise InvalidRequestError(
            f"a block of {num_drafts} tokens came with {len(block.confidence)} confidences and "
            f"{len(block.probs)} distributions; drafter and scheduler are of different versions",
            "blocks",
        )
    return DraftBlock(
        request_id=block.request_id,
        epoch=block.epoch,
        base_committed_len=block.base_committed_len,
        token_ids=token_ids_from_pb(block.token_ids),
        confidence=np.fromiter(block.confidence, np.float32, num_drafts),
        probs=sparse_probs_from_pb(block.probs),
        is_copied=block.is_copied,
    )


def features_to_pb(batches: Sequence[FeatureBatch]) -> drafter_pb2.PushFeaturesRequest:
    """Features of one step as a message."""
    request = drafter_pb2.PushFeaturesRequest()
    for batch in batches:
        message = request.batches.add(
            request_id=batch.request_id,
            epoch=batch.epoch,
            start=batch.start,
            token_ids=batch.token_ids.tolist(),
        )
        write_tensor(batch.features, message.features)
    return request


def features_from_pb(message: drafter_pb2.PushFeaturesRequest) -> list[FeatureBatch]:
    """The inverse. The arrays are copies, as torch takes writable memory only.

    Raises:
        InvalidRequestError: features that are no matrix with a row for each token id.
    """
    return [_features_from_pb(batch) for batch in message.batches]


def _features_from_pb(batch: drafter_pb2.FeatureBatch) -> FeatureBatch:
    features = tensor_from_pb(batch.features)
    if features.ndim != 2:
        raise InvalidRequestError(
            f"features of {batch.request_id!r} have {features.ndim} dimensions; send [T, L*H]",
            "features",
        )
    if len(batch.token_ids) != len(features):
        raise InvalidRequestError(
            f"{len(features)} features of {batch.request_id!r} came with {len(batch.token_ids)} token_ids; "
            "verifier and drafter are of different versions",
            "token_ids",
        )
    token_ids = token_ids_from_pb(batch.token_ids)
    return FeatureBatch(batch.request_id, batch.epoch, batch.start, token_ids, features.copy())
