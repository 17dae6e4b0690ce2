"""Linear layers with weights packed once for the CPU: faster, and a row's result does not depend on others."""

from __future__ import annotations

import torch
from torch import Tensor, nn

# Weights packed for one row give bit-identical rows at every row count; larger hints are faster from 32 rows on
# but not exact.
_ROW_HINT = 1


class PackedLinear(nn.Module):
    """`x @ weight.T + bias` for [T, in] rows, inference only, the weight in oneDNN's own layout."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.bias = bias
        # Not a buffer: the packed layout is opaque and belongs to this machine, never to a state dict.
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), _ROW_HINT)
        self._matmul = torch.ops.mkldnn._linear_pointwise.default

    def forward(self, x: Tensor) -> Tensor:
        """Rows [..., in] to [..., out]."""
        out: Tensor = self._matmul(x, self._packed, self.bias, "none", [], "")
        return out


def can_pack(weight: Tensor) -> bool:
    """Whether this torch build and device can pack such a weight."""
    if weight.device.type != "cpu" or weight.dtype not in (torch.bfloat16, torch.float32):
        return False
    if not (torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")):
        return False
    is_bf16 = weight.dtype == torch.bfloat16
    return not is_bf16 or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def make_linear(weight: Tensor, bias: Tensor | None = None) -> nn.Module:
    """A packed linear layer where possible, else a stock one over the same weight."""
    if can_pack(weight):
        return PackedLinear(weight, bias)
    with torch.device("meta"):
        linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    linear.weight = nn.Parameter(weight.detach(), requires_grad=False)
    if bias is not None:
        linear.bias = nn.Parameter(bias.detach(), requires_grad=False)
    return linear


def fuse_linears(*linears: nn.Linear) -> nn.Module:
    """One linear layer whose output is theirs, concatenated: one matmul instead of several over the same input."""
    weight = torch.cat([linear.weight.detach() for linear in linears])
    biases = [linear.bias.detach() for linear in linears if linear.bias is not None]
    assert len(biases) in (0, len(linears)), "all or none of the fused layers have a bias"
    return make_linear(weight, torch.cat(biases) if biases else None)


def pack_linears(module: nn.Module) -> None:
    """Replace every `nn.Linear` below `module` by a packed one, where this machine can pack it.

    The module is for inference afterwards: its packed weights take no gradient and are in no state dict.
    """
    for name, child in module.named_children():
        if isinstance(child, nn.Linear):
            if can_pack(child.weight):
                setattr(
                    module,
                    name,
                    PackedLinear(child.weight, None if child.bias is None else child.bias.detach()),
                )
        else:
            pack_linears(child)
