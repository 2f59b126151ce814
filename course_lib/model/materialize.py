"""From shapes to memory: a model made on the "meta" device gets its memory once, in its final device and dtype.

`nn.Linear(…)` allocates fp32 on the CPU and fills it; then `.to("cuda", torch.bfloat16)` makes a second, smaller model.
The first model may be the CPU's largest allocation, and is never used. On "meta" a tensor has shape, dtype, no memory:

    with torch.device("meta"):
        model = MyModel()                             # 0 bytes, 0 seconds
    materialize(model, "cuda", torch.bfloat16)        # 2 bytes a parameter, on the GPU, and nothing elsewhere

`model.gpt.GPT(config, device=…, dtype=…)` does the same inside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn


def materialize(
    module: nn.Module, device: torch.device | str | None = None, dtype: torch.dtype | None = None,
    fill: Callable[[Any], object] | None = None,
) -> nn.Module:  # fmt: skip
    """Give memory and values to a module on "meta", in place; return it. Weights that are tied stay tied.

    `nn.Module.to_empty` leaves the new memory uninitialized, and unties tied weights on the way.

    Args:
        module: a module with all parameters and buffers on "meta".
        device: of all tensors; by default the default device.
        dtype: of floating-point parameters and buffers; by default each keeps its own.
        fill: called once with the module, under `no_grad`, to write all values. By default, `reset_parameters` of
            every part that owns a tensor; PyTorch's layers have this method.

    Raises:
        ValueError: a tensor is not on "meta" (its values would be lost), or no `fill` and a part without
            `reset_parameters`.
    """
    _check(module, fill is None)  # before any change, so that a refused module is as it was
    device = torch.device(device or torch.get_default_device())
    made: dict[Tensor, Tensor] = {}  # by the old tensor: a tied weight gets one new tensor, for all its names
    for part in module.modules():
        for name, old in _own(part):
            if old not in made:
                new = torch.empty_like(old, device=device, dtype=dtype if old.is_floating_point() else None)
                made[old] = nn.Parameter(new, old.requires_grad) if isinstance(old, nn.Parameter) else new
            setattr(part, name, made[old])
    with torch.no_grad():
        if fill is not None:
            fill(module)
        else:
            for part in module.modules():
                if any(_own(part)):
                    part.reset_parameters()  # type: ignore[operator]
    return module


def _own(part: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The tensors of this part and of none of its children."""
    yield from part.named_parameters(recurse=False, remove_duplicate=False)  # a tied weight once for each name
    yield from part.named_buffers(recurse=False, remove_duplicate=False)


def _check(module: nn.Module, needs_reset: bool) -> None:
    for path, part in module.named_modules():
        where = f"{path or 'the module'} ({type(part).__name__})"
        for name, tensor in _own(part):
            if not tensor.is_meta:
                raise ValueError(
                    f"{name} of {where} is on {tensor.device} and has values, which would be lost; make the module "
                    'inside `with torch.device("meta"):`, or move it with .to(…)'
                )
            if needs_reset and not callable(getattr(part, "reset_parameters", None)):
                raise ValueError(
                    f"{where} owns {name} and has no reset_parameters(), so its memory would stay as it was found; "
                    "give it that method, or give fill=, a function that writes all values of the module"
                )
