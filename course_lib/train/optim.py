"""Four optimizers, short enough to see the state that each one keeps between steps, since state is memory.

    optimizer                   bytes of state for a weight matrix of R x C, in fp32     per weight
    SGD                         0                                                        0
    SGD with momentum           4 · R · C                                                4
    Adam, AdamW                 8 · R · C                                                8
    Adam8bit, blocks of b       2 · R · C  +  8 · ceil(R · C / b)                        2.03 (b = 256)
    Adafactor                   4 · (R + C); 4 · n for a vector of n                     4/R + 4/C

An optimizer here is one method, `update`: from a weight, its gradient and its state to the new weight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from jaxtyping import Float, Int8
from torch import Tensor

from course_kit.units import Bytes
from course_lib.numerics.quantize import quantize
from course_lib.train.grad_scale import PendingGradScale


class Optimizer(torch.optim.Optimizer):
    """The base of all optimizers of this course. A subclass says in `update` how one weight changes.

    All else is PyTorch's, with two additions: the optimizer knows the bytes of its state, and loss scaling and clipping
    need not touch the gradients (`grad_scale.py`).

    Attributes:
        pending_grad_scale: the factor for each gradient at the next `step`; 1 again after `step` and `zero_grad`.
    """

    pending_grad_scale = PendingGradScale()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters, as PyTorch does (the first ones, too, come this way). ValueError for a complex one."""
        super().add_param_group(param_group)
        for parameter in self.param_groups[-1]["params"]:
            if parameter.is_complex():
                raise ValueError("a complex parameter given, and its square is no size: keep two real ones instead")
            self.take(parameter)

    def take(self, parameter: Tensor) -> None:
        """Prepare a parameter that joins, at the start or later. Nothing to do here."""

    def update(self, weight: Float[Tensor, "*w"], gradient: Float[Tensor, "*w"], state: dict, group: dict) -> None:
        """Take one step for one weight, in place, with the learning rate and the other settings of its `group`.

        Args:
            gradient: a tensor of weight's shape and dtype; not to be changed.
            state: kept for this weight between steps; empty before the first one.
        """
        raise NotImplementedError

    def update_parameter(self, parameter: Tensor, gradient: Tensor, state: dict, group: dict) -> None:
        """Apply `update` to a parameter of the model. `precision.MasterWeights` updates its copy instead."""
        self.update(parameter, gradient.to(parameter.dtype), state, group)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Update every parameter that has a gradient; return the result of `closure`, if there is one."""
        loss = None
        if closure is not None:
            with torch.enable_grad():  # this method's decorator has switched it off
                loss = closure()
        trained = [(p, group) for group in self.param_groups for p in group["params"] if p.grad is not None]
        self.pending_grad_scale.check([parameter.grad for parameter, _ in trained])  # before any weight changes
        for parameter, group in trained:
            gradient = self.pending_grad_scale.apply(parameter.grad)  # fp32, one gradient at a time
            self.update_parameter(parameter, gradient, self.state[parameter], group)
        self.pending_grad_scale = PendingGradScale()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients, and the factor that belonged to them."""
        super().zero_grad(set_to_none)
        self.pending_grad_scale = PendingGradScale()

    @property
    def state_bytes(self) -> Bytes:
        """Bytes of the tensors kept between steps: moments from the first step on, fp32 copies from the start."""
        kept = (tensor for state in self.state.values() for tensor in state.values() if isinstance(tensor, Tensor))
        return Bytes(sum(tensor.untyped_storage().nbytes() for tensor in kept))  # a view keeps its whole storage alive

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a saved state, each tensor in its own dtype. (PyTorch casts to that of the parameter, which would
        round an fp32 copy of a 16-bit weight, and make floats of 8-bit integers.)"""
        super().load_state_dict(state_dict)
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        names = [name for group in state_dict["param_groups"] for name in group["params"]]
        for parameter, name in zip(parameters, names, strict=True):
            for key, value in state_dict["state"].get(name, {}).items():
                kept = value.to(parameter.device, copy=True) if isinstance(value, Tensor) else value
                self.state[parameter][key] = kept


class SGD(Optimizer):
    """Gradient descent: w ← w - lr · v, where v is the gradient, or with momentum v ← momentum · v + gradient.

    State: none; with momentum, v (4 bytes a weight in fp32). Equal to `torch.optim.SGD`.
    """

    def __init__(self, params: Iterable[Any], lr: float, momentum: float = 0.0, weight_decay: float = 0.0) -> None:
        check_settings(lr=lr, momentum=momentum, weight_decay=weight_decay)
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    def update(self, weight: Float[Tensor, "*w"], gradient: Float[Tensor, "*w"], state: dict, group: dict) -> None:
        """Take one step of SGD, as the class says."""
        if group["weight_decay"]:
            gradient = gradient.add(weight, alpha=group["weight_decay"])  # out of place: `.grad` is the caller's
        if group["momentum"]:
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(gradient)
            gradient = state["momentum_buffer"].mul_(group["momentum"]).add_(gradient)
        weight.add_(gradient, alpha=-group["lr"])


class Adam(Optimizer):
    """Steps of each weight's own size: the mean of its gradient over the root of the mean of the gradient's square.

    With m and v, running means of g and g² (Kingma and Ba 2015, Algorithm 1), and their start from 0 corrected,

        w ← w - lr · m / (1 - β₁ᵗ)  /  (√(v / (1 - β₂ᵗ)) + eps).

    The length of the gradient cancels, so a gradient that is wrong by a constant factor goes unnoticed: check with SGD.
    State: m and v, 8 bytes a weight in fp32. Equal to `torch.optim.Adam`.
    """

    decoupled = False  # weight decay goes into the gradient, and so into m and v

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:  # fmt: skip
        check_settings(lr=lr, beta1=betas[0], beta2=betas[1], eps=eps, weight_decay=weight_decay)
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    def update(self, weight: Float[Tensor, "*w"], gradient: Float[Tensor, "*w"], state: dict, group: dict) -> None:
        """Take one step of Adam, as the class says."""
        lr, (beta1, beta2) = group["lr"], group["betas"]
        if self.decoupled:
            weight.mul_(1 - lr * group["weight_decay"])
        elif group["weight_decay"]:
            gradient = gradient.add(weight, alpha=group["weight_decay"])
        if "step" not in state:
            state.update(step=0, exp_avg=torch.zeros_like(weight), exp_avg_sq=torch.zeros_like(weight))
        state["step"] += 1
        mean = state["exp_avg"].lerp_(gradient, 1 - beta1)  # m, in place
        square = state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)  # v
        root = (square.sqrt() / (1 - beta2 ** state["step"]) ** 0.5).add_(group["eps"])
        weight.addcdiv_(mean, root, value=-lr / (1 - beta1 ** state["step"]))


class AdamW(Adam):
    """Adam whose weight decay shrinks the weight itself, w ← (1 - lr · decay) · w, and stays out of m and v
    (Loshchilov and Hutter 2019, Algorithm 2). Equal to `torch.optim.AdamW`."""

    decoupled = True

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ) -> None:  # fmt: skip
        super().__init__(params, lr, betas, eps, weight_decay)


class Adam8bit(AdamW):
    """AdamW whose m and v rest between steps as 8-bit integers, one fp32 scale for each block of weights.

    A block's largest number maps to 127, and the others to the nearest of 255 points; one outlier costs its own block
    resolution and no other (Dettmers et al. 2022, §2; their grid is non-linear). The grid of `numerics.quantize` is
    evenly spaced, so the root of v is stored, which spans half as many powers of ten.

    State: 2 bytes a weight and two scales a block. Blocks run through the flattened weight; the last may be shorter.

    Args:
        block_size: weights in a block. Other arguments are those of `AdamW`.
    """

    def __init__(self, params: Iterable[Any], lr: float = 1e-3, block_size: int = 256, **settings: Any) -> None:
        if block_size < 1:
            raise ValueError(f"block_size={block_size} given; a block holds at least 1 weight (256 is common)")
        super().__init__(params, lr, **settings)
        for group in (self.defaults, *self.param_groups):  # AdamW's constructor does not know this setting
            group["block_size"] = block_size

    def update(self, weight: Float[Tensor, "*w"], gradient: Float[Tensor, "*w"], state: dict, group: dict) -> None:
        """Unpack m and v, take a step of AdamW, pack."""
        wide: dict[str, Any] = {}  # the fp32 state of this one weight, for this one step
        block_size = group["block_size"]
        if "step" in state:
            names = ("exp_avg", "exp_avg_root")
            mean, root = (unpack_blocks(state[n], state[n + "_scale"], weight, block_size) for n in names)
            wide = {"step": state["step"], "exp_avg": mean, "exp_avg_sq": root.square_()}
        super().update(weight, gradient, wide, group)
        state["step"] = wide["step"]
        state["exp_avg"], state["exp_avg_scale"] = pack_blocks(wide["exp_avg"], block_size)
        root = wide["exp_avg_sq"].sqrt_()
        points, state["exp_avg_root_scale"] = pack_blocks(root, block_size)
        state["exp_avg_root"] = torch.where(root.flatten() > 0, points.clamp(min=1), points)  # Adam divides by it


def pack_blocks(x: Float[Tensor, "..."], block_size: int) -> tuple[Int8[Tensor, " n"], Float[Tensor, " blocks"]]:
    """The elements of x in order as int8, and one fp32 scale for each `block_size` of them."""
    padded = torch.nn.functional.pad(x.flatten(), (0, -x.numel() % block_size))
    blocks = quantize(padded.view(-1, block_size), bits=8, channel_dim=0)  # (n, block_size): a block is a "channel"
    return blocks.values.flatten()[: x.numel()].clone(), blocks.scale.flatten()  # clone: a view would keep the padding


def unpack_blocks(
    points: Int8[Tensor, " n"], scales: Float[Tensor, " blocks"], like: Float[Tensor, "..."], block_size: int
) -> Float[Tensor, "..."]:
    """The numbers that `pack_blocks` packed, rounded, in the shape and dtype of `like`."""
    scale_of_each = scales.repeat_interleave(block_size)[: points.numel()]
    return (points * scale_of_each).view(like.shape).to(like.dtype)


class Adafactor(Optimizer):
    """Adam's v, kept as its row means and column means alone (Shazeer and Stern 2018, Algorithm 4). There is no m.

    If v were the product of a factor per row and a factor per column, then

        v[i, j] = row_mean[i] · col_mean[j] / mean(row_mean)

    would be exact; in general this product is the best one under the paper's divergence (§3). The step is relative:
    lr is a share of the weight's own root mean square, and no update has a root mean square above `d` times that share.
    Vectors keep the whole v. State: 4 · (R + C) bytes in fp32. Equal to `torch.optim.Adafactor`.

    Args:
        lr: largest relative step; 1/√t takes over when 1/√t is smaller.
        beta2_decay: v forgets at the rate 1 - t^beta2_decay, slower and slower.
        eps: smallest root of v (None: the dtype's own eps), and smallest root mean square that a weight counts with.
        d: limit of the update's root mean square, before the step size.
        weight_decay: as in AdamW.
    """

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-2, beta2_decay: float = -0.8,
        eps: tuple[float | None, float] = (None, 1e-3), d: float = 1.0, weight_decay: float = 0.0,
    ) -> None:  # fmt: skip
        check_settings(lr=lr, weight_decay=weight_decay, d=d)
        defaults = {"lr": lr, "beta2_decay": beta2_decay, "eps": eps, "d": d, "weight_decay": weight_decay}
        super().__init__(params, defaults)

    def update(self, weight: Float[Tensor, "*w"], gradient: Float[Tensor, "*w"], state: dict, group: dict) -> None:
        """Take one step of Adafactor, as the class says."""
        smallest = torch.finfo(weight.dtype).eps if group["eps"][0] is None else group["eps"][0]
        state["step"] = step = state.get("step", 0) + 1
        rms = float(weight.square().mean().sqrt())
        step_size = max(group["eps"][1], rms) * min(group["lr"], step**-0.5)  # eps lets a weight that is 0 move
        weight.mul_(1 - group["lr"] * group["weight_decay"])
        square = self._square(gradient, state, step ** group["beta2_decay"], smallest)  # share 1 at step 1: no bias
        change = gradient * square.clamp_(min=smallest**2).rsqrt_()  # as large as the weight, for this one step
        change_rms = float(change.square().mean().sqrt())
        weight.add_(change, alpha=-step_size / max(1.0, change_rms / group["d"]))

    @staticmethod
    def _square(gradient: Tensor, state: dict, share: float, smallest: float) -> Tensor:
        """Update the means, in which the new gradient's square gets this share; return the estimate of v."""
        if gradient.dim() < 2:
            variance = state.setdefault("variance", torch.zeros_like(gradient))
            return variance.lerp_(gradient.square(), share).clone()  # the caller changes the estimate in place
        for name, dim in (("row_var", -1), ("col_var", -2)):
            mean = gradient.square().mean(dim, keepdim=True)
            state.setdefault(name, torch.zeros_like(mean)).lerp_(mean, share)
        rows, columns = state["row_var"], state["col_var"]
        return rows @ columns / rows.mean(-2, keepdim=True).clamp(min=smallest)  # (R, 1) @ (1, C) -> (R, C)


def check_settings(**settings: float) -> None:
    """Raise a ValueError for a setting below 0, or a running mean's share of 1 or more."""
    for name, value in settings.items():
        upper = 1.0 if name.startswith(("beta", "momentum")) else float("inf")
        if not 0 <= value < upper:
            raise ValueError(f"{name}={value} given; it must be at least 0 and less than {upper}")
