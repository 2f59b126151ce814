"""Muon: a matrix takes steps that are equally long in every direction (Jordan et al. 2024, kellerjordan.github.io).

    optimizer = Muon([
        {"params": matrices, "lr": 0.02},                         # of hidden layers: Muon
        {"params": others, "lr": 3e-4, "orthogonal": False},      # embeddings, head, vectors: AdamW
    ])

A matrix's momentum has a few large singular values and many small ones. Muon makes all about 1, so that rare directions
are learned, too. A part of a matrix has other ones. State: 4 bytes a weight of a matrix in fp32, half of AdamW's.
"""

from collections.abc import Iterable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from course_lib.train.optim import AdamW, check_settings


class Muon(AdamW):
    """`torch.optim.Muon`, and AdamW for groups with `orthogonal=False`. Other settings are those of `AdamW`."""

    def __init__(self, params: Iterable[Any], lr: float = 0.02, momentum: float = 0.95, **settings: Any) -> None:
        check_settings(momentum=momentum)
        super().__init__(params, lr, **settings)
        for group in (self.defaults, *self.param_groups):  # AdamW's constructor does not know these two
            group.update({"momentum": momentum, "orthogonal": True} | group)

    def take(self, parameter: Tensor) -> None:
        """Raise a ValueError for a parameter of an orthogonal group that is not a matrix."""
        if self.param_groups[-1].get("orthogonal", True) and parameter.dim() != 2:
            raise ValueError(f"shape {tuple(parameter.shape)} is no matrix; give it in a group with orthogonal=False")

    def update(self, weight: Float[Tensor, "*w"], gradient: Float[Tensor, "*w"], state: dict, group: dict) -> None:
        """Take one step of Muon, or of AdamW."""
        if group["orthogonal"]:
            mean = state.setdefault("momentum_buffer", torch.zeros_like(weight)).lerp_(gradient, 1 - group["momentum"])
            step = orthogonalize(gradient.lerp(mean, group["momentum"]))  # Nesterov: looks one step ahead
            weight.mul_(1 - group["lr"] * group["weight_decay"])
            weight.add_(step, alpha=-group["lr"] * max(1.0, weight.shape[0] / weight.shape[1]) ** 0.5)
        else:
            super().update(weight, gradient, state, group)


def orthogonalize(matrix: Float[Tensor, "r c"], steps: int = 5) -> Float[Tensor, "r c"]:
    """U·S·Vᵀ to about U·Vᵀ, in bf16, by Newton and Schulz's iteration: products of matrices only, no decomposition.

    Each step sends a singular value s ≤ 1 to 3.4445·s - 4.7750·s³ + 2.0315·s⁵: a small one more than triples, until it
    lies between 0.7 and 1.2, which is near enough.
    """
    x = matrix.bfloat16().T if matrix.shape[0] > matrix.shape[1] else matrix.bfloat16()  # x·xᵀ is smaller then
    x = x / x.norm().clamp(min=1e-7)  # no singular value is above the norm
    for _ in range(steps):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=-4.7750, alpha=2.0315), x, beta=3.4445)
    return x.T if matrix.shape[0] > matrix.shape[1] else x
