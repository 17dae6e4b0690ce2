"""Target features on their way to the drafter: tensors to words that numpy and the wire can carry."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


def feature_words(rows: Tensor) -> npt.NDArray[np.generic]:
    """Tapped states [T, L*H] as numpy: bfloat16 as its uint16 words, floats as they are. Not a copy."""
    rows = rows.detach().cpu()
    if rows.dtype == torch.bfloat16:
        return rows.view(torch.int16).numpy().view(np.uint16)
    array: npt.NDArray[np.generic] = rows.numpy()
    return array


def feature_rows(words: npt.NDArray[np.generic]) -> Tensor:
    """The inverse of `feature_words`."""
    if words.dtype == np.uint16:
        return torch.from_numpy(words.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(words)
