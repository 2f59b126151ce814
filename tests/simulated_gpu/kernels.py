"""Operations whose kernels on a GPU keep or return other tensors than the CPU's: norms and softmax.

Written from PyTorch's source, aten/src/ATen/native/cuda/{layer_norm_kernel.cu,SoftMax.cu}: a second
reading of what `predict` reads there, and no measurement.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


def on_cpu(tensor: Tensor | None) -> Any:
    """The same memory as a tensor of the CPU; no copy, for which this process would wait."""
    return None if tensor is None else torch.ops.simulated_gpu.on_cpu(tensor)


def wide(tensor: Tensor | None) -> Any:
    """The tensor on the CPU in the dtype that the kernel adds up in (`acc_type`)."""
    return (
        None if tensor is None else on_cpu(tensor).to(torch.float64 if tensor.dtype == torch.float64 else torch.float32)
    )


def layer_norm(x: Tensor, shape: Any, weight: Any, bias: Any, eps: float) -> tuple[Tensor, ...]:
    """The mean and 1/deviation are kept in 32 bits, whatever the dtype of x."""
    out, mean, rstd = torch.native_layer_norm(wide(x), shape, wide(weight), wide(bias), eps)
    return out.to(x.dtype).to(x.device), mean.to(x.device), rstd.to(x.device)


def layer_norm_backward(
    grad: Tensor, x: Tensor, shape: Any, mean: Tensor, rstd: Tensor, weight: Any, bias: Any, mask: Any
) -> tuple[Tensor | None, ...]:
    """The gradients of `layer_norm`, each in the dtype of its tensor."""
    given = (wide(grad), wide(x), shape, on_cpu(mean), on_cpu(rstd), wide(weight), wide(bias), mask)
    found = aten.native_layer_norm_backward(*given)
    return tuple(
        None if got is None or like is None else got.to(like.dtype).to(like.device)
        for got, like in zip(found, (x, weight, bias))
    )


def softmax_of(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The kernel that reads fp16 and writes fp32 in one pass, which autocast asks for; the CPU has none."""

    def softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
        given = wide(x) if half_to_float else on_cpu(x)
        return function(given, dim, False).to(x.device)

    return softmax


def backward_of(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The gradient of such a softmax, in the dtype of its argument."""

    def backward(grad: Tensor, out: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
        return function(on_cpu(grad), on_cpu(out), dim, grad.dtype).to(dtype).to(grad.device)

    return backward


def register() -> torch.library.Library:
    """Give the kernels to PyTorch, for as long as the result is kept."""
    library = torch.library.Library("aten", "IMPL", "CUDA")
    for name, kernel in {
        "native_layer_norm": layer_norm,
        "native_layer_norm_backward": layer_norm_backward,
        "_softmax": softmax_of(aten._softmax),
        "_log_softmax": softmax_of(aten._log_softmax),
        "_softmax_backward_data": backward_of(aten._softmax_backward_data),
        "_log_softmax_backward_data": backward_of(aten._log_softmax_backward_data),
    }.items():
        library.impl(name, kernel)
    return library
