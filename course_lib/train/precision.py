"""Mixed precision: 16 bits where they are enough, 32 where they are not.

Three things go wrong when a network is put into 16 bits, and each has its own repair (Micikevicius et al. 2018, §3):

    what goes wrong                                         repair
    a small update to a large weight rounds to nothing      `MasterWeights`: the optimizer's own copy in fp32
      (bf16: below 1/512 of the weight; fp16: 1/4096)         or `StochasticRounding`: right on average, no copy
    long sums and exponentials overflow or lose digits      `CastPolicy`: those operations run in fp32
    fp16 gradients below 6e-8 become 0                      `LossScaler`: multiply the loss, divide the gradients

bf16 has the range of fp32, so it does without the third. Bytes a parameter, with Adam, between steps:

    recipe                            weight  gradient  fp32 copy  mean  variance   sum
    fp32                                 4        4         -        4       4       16
    MasterWeights, 16-bit weights        2        2         4        4       4       16
    CastPolicy alone, fp32 weights       4        4         -        4       4       16
    StochasticRounding, bf16             2        2         -        4       4       12

(The second row is §3.1 of Rajbhandari et al. 2020.) The first three add up to the same: mixed precision saves
activations, traffic and time, not model states.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from course_lib.model.seeds import mix
from course_lib.numerics import BF16, FP32
from course_lib.train.grad_scale import PendingGradScale
from course_lib.train.gradients import gradients_of, multiply_gradients
from course_lib.train.optim import Optimizer

CONTRACTIONS = frozenset((
    "linear", "matmul", "__matmul__", "__rmatmul__", "mm", "bmm", "mv", "addmm", "baddbmm", "einsum",
    "conv1d", "conv2d", "conv3d", "scaled_dot_product_attention",
))  # fmt: skip
"""Products summed over a shared dim: nearly all FLOPs. 16-bit inputs; the hardware adds up in fp32."""

WIDE = frozenset((
    "layer_norm", "rms_norm", "group_norm", "batch_norm",
    "softmax", "log_softmax", "logsumexp",
    "cross_entropy", "nll_loss", "mse_loss", "l1_loss", "kl_div", "binary_cross_entropy_with_logits",
    "sum", "mean", "var", "std", "norm", "prod", "cumsum",
    "exp", "log", "log1p", "pow", "__pow__", "square", "sqrt", "rsqrt",
))  # fmt: skip
"""Sums over many elements, powers and exponentials: few FLOPs, and results beyond 16 bits' range or digits. fp32."""


class CastPolicy(TorchFunctionMode):
    """A context in which each operation gets its inputs in the precision that its class needs.

    Contractions (`CONTRACTIONS`) get 16 bits, normalizations, softmax, losses and other sums (`WIDE`) fp32; all others
    follow their inputs, the widest where they differ. float64 and integers are left alone. Weights are not changed;
    only copies are cast. PyTorch's `torch.autocast` does the same, with casts of weights cached and with longer lists.

        with CastPolicy(torch.bfloat16):
            loss = model(inputs, targets)
        loss.backward()                      # outside: each backward operation runs in its forward's precision

    A function of `torch.nn.functional` that is written in Python out of others (`multi_head_attention_forward`) counts
    as one operation, which follows its inputs.

    Args:
        dtype: that of contractions, torch.bfloat16 or torch.float16.

    Raises:
        ValueError: another dtype.
    """

    def __init__(self, dtype: torch.dtype = torch.bfloat16) -> None:
        super().__init__()
        self.dtype = _16_bit(dtype)

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Cast the inputs and call `func`: PyTorch calls this method in place of each of its functions."""
        name, kwargs = getattr(func, "__name__", ""), kwargs or {}
        dtype = self.dtype if name in CONTRACTIONS else torch.float32 if name in WIDE else None
        if dtype is not None and "out" not in kwargs:  # a copy of `out` would get the result in its place
            args, kwargs = tree_map(lambda leaf: _cast(leaf, dtype), (args, kwargs))
        return func(*args, **kwargs)


class _OverRule(Optimizer):
    """An optimizer that asks another one, its `rule`, for each step, and shares the groups with it."""

    def __init__(self, rule: Optimizer) -> None:
        self.rule = rule
        super().__init__(rule.param_groups, rule.defaults)
        rule.param_groups = self.param_groups  # the same dicts: a scheduler of either sets the lr of both

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a saved state. PyTorch makes new groups of it, which are the rule's from now on, too."""
        super().load_state_dict(state_dict)
        self.rule.param_groups = self.param_groups


class MasterWeights(_OverRule):
    """Weights and gradients in 16 bits; the optimizer steps on its own fp32 copy of the weights.

        optimizer = MasterWeights(Adam(model.parameters(), lr=1e-3), torch.float16)

    takes the model in fp32: its weights become the fp32 copies, and the model gets rounded ones. From then on, each
    step widens one gradient at a time, updates the copy, and rounds the copy into the model.

    State: 4 bytes a weight more than that of the rule; saved by `state_dict`. Later parameters are added in fp32, too.
    The next step overwrites a weight that is changed from outside (`model.load_state_dict`) with its copy: change the
    weights before, or load the state as well.

    Args:
        rule: an optimizer of this course, over the model's parameters; from now on, step this one instead.
        dtype: of the model's weights and gradients.

    Raises:
        ValueError: `dtype` is neither torch.bfloat16 nor torch.float16.
    """

    def __init__(self, rule: Optimizer, dtype: torch.dtype = torch.bfloat16) -> None:
        self.dtype = _16_bit(dtype)
        super().__init__(rule)

    def take(self, parameter: Tensor) -> None:
        """Keep an fp32 copy of the weight, and round the model's weight to 16 bits."""
        self.state[parameter]["master"] = parameter.data.float()
        parameter.data = parameter.data.to(self.dtype)  # .data: the parameter itself stays, so model and groups keep it

    def update_parameter(self, parameter: Tensor, gradient: Tensor, state: dict, group: dict) -> None:
        """Step on the copy, then round it into the model."""
        self.rule.update(state["master"], gradient.float(), state, group)  # this fp32 gradient dies with the call
        parameter.copy_(state["master"])


class StochasticRounding(_OverRule):
    """bf16 weights without an fp32 copy: each new weight is rounded up or down by chance, and right on average.

    An update of a tenth of the distance between two bf16 numbers would never take effect by rounding to nearest. Here
    such an update moves the weight by the whole distance once in ten times (Gupta et al. 2015, §3.1). The draws belong
    to (seed, step, place of the parameter), so a run repeats to the bit, also from a saved state.

    State: that of the rule, in fp32.

    Args:
        rule: as in `MasterWeights`; the parameters become bf16.
    """

    def __init__(self, rule: Optimizer, seed: int = 0) -> None:
        self.seed = seed
        super().__init__(rule)

    def take(self, parameter: Tensor) -> None:
        """Round the model's weight, to nearest this one time."""
        self.state[parameter]["place"] = len(self.state)  # 0 first: Python computes the value before it makes the entry
        parameter.data = parameter.data.bfloat16()

    def update_parameter(self, parameter: Tensor, gradient: Tensor, state: dict, group: dict) -> None:
        """Step on a copy that lives for this one step, then round by chance."""
        wide = parameter.float()  # for this parameter alone, for this moment
        self.rule.update(wide, gradient.float(), state, group)
        state["rounded"] = state.get("rounded", 0) + 1  # a count of its own: the rule's "step" may not exist (SGD)
        generator = torch.Generator(parameter.device).manual_seed(mix(self.seed, state["rounded"], state["place"]))
        parameter.copy_(BF16.round(wide, "stochastic", generator))


class LossScaler:
    """A factor on the loss that keeps fp16 gradients above underflow, and is divided out before the step.

    All gradients are derivatives of the loss, so a scaled loss scales every gradient, before it is rounded to fp16.
    Too large a scale makes some gradients inf; such a step is skipped, and a *dynamic* scale goes down at once and up
    again after `growth_interval` good steps: the scale hunts along the largest one that works (Micikevicius et al.
    2018, §3.2). The four calls, and the numbers, are those of `torch.amp.GradScaler`:

        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)           # only to look at or clip gradients, and before either
        clip_gradients(optimizer, 1.0)
        scaler.step(optimizer)               # skipped after an overflow
        scaler.update()

    Several optimizers are stepped or skipped each by its own gradients; `update` comes once, after all of them.

    Args:
        init_scale: a power of two, so that scaling rounds nothing.
        growth_factor, backoff_factor, growth_interval: the changes of a dynamic scale.
        dynamic: False for a *static* scale, which stays. Steps with an overflow are skipped all the same.

    Attributes:
        skipped: number of an optimizer's steps that were skipped.
    """

    def __init__(
        self, init_scale: float = 2.0**16, growth_factor: float = 2.0, backoff_factor: float = 0.5,
        growth_interval: int = 2000, dynamic: bool = True,
    ) -> None:  # fmt: skip
        if not (init_scale > 0 and growth_factor >= 1 and 0 < backoff_factor < 1 and growth_interval >= 1):
            raise ValueError(
                f"init_scale={init_scale}, growth_factor={growth_factor}, backoff_factor={backoff_factor}, "
                f"growth_interval={growth_interval} given; needed: > 0, ≥ 1, between 0 and 1, ≥ 1"
            )
        self.growth_factor, self.backoff_factor, self.growth_interval = growth_factor, backoff_factor, growth_interval
        self.dynamic = dynamic
        self.skipped = 0
        self._scale, self._good_steps = float(init_scale), 0
        self._overflows: dict[torch.optim.Optimizer, bool] = {}  # unscaled since `update`; True: inf or nan
        self._stepped: set[torch.optim.Optimizer] = set()

    def scale(self, loss: Tensor) -> Tensor:
        """The loss, multiplied. Keep the loss in fp32: the product may not fit in fp16."""
        return loss * self._scale

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Give the gradients their true size, and note whether one of them is inf or nan.

        An optimizer of this course divides when it steps, and `.grad` shows the scaled gradient until then.

        Raises:
            ValueError: a second call in one step, or fp16 gradients of an optimizer that is not of this course.
        """
        if optimizer in self._overflows:
            raise ValueError("the gradients of this step are unscaled already; call update() after each step()")
        overflow = not all(bool(gradient.isfinite().all()) for gradient in gradients_of(optimizer))
        multiply_gradients(optimizer, 1 / self._scale)  # exact: the scale is a power of two
        self._overflows[optimizer] = overflow

    def step(self, optimizer: torch.optim.Optimizer) -> Any:
        """Call `optimizer.step()` if all its gradients are finite; skip the step and return None otherwise.

        Raises:
            ValueError: a second call without `update` between; or as `unscale_`, which this method calls if need be.
        """
        if optimizer in self._stepped:
            raise ValueError("this optimizer has stepped since the last update(); call update() after each step()")
        if optimizer not in self._overflows:
            self.unscale_(optimizer)
        self._stepped.add(optimizer)
        if not self._overflows[optimizer]:
            return optimizer.step()
        self.skipped += 1
        if isinstance(optimizer, Optimizer):
            optimizer.pending_grad_scale = PendingGradScale()  # as the step would have, but for the skip
        return None

    def update(self) -> None:
        """Lower a dynamic scale after an overflow, raise it after `growth_interval` steps without one.

        Raises:
            ValueError: there was no `step` since the last call, or the scale went down to 0.
        """
        if not self._overflows:
            raise ValueError("nothing was unscaled since the last update(); call step(optimizer) first")
        overflow = any(self._overflows.values())
        self._overflows, self._stepped = {}, set()
        if not self.dynamic:
            return
        self._good_steps = 0 if overflow else self._good_steps + 1  # good steps in a row
        if overflow:
            self._scale = _fp32(self._scale * self.backoff_factor)
            if self._scale == 0:
                raise ValueError(
                    "the loss scale went down to 0: the gradients are inf or nan at any scale, so the range of fp16 is "
                    "not the fault; look at the loss, the learning rate and the data"
                )
        elif self._good_steps == self.growth_interval:
            grown = _fp32(self._scale * self.growth_factor)
            self._scale = grown if grown < float("inf") else self._scale  # an inf loss would skip steps for ever
            self._good_steps = 0

    def get_scale(self) -> float:
        """The present factor on the loss."""
        return self._scale

    def state_dict(self) -> dict[str, float | int]:
        """The scaler's state between steps, which `torch.amp.GradScaler` reads too (it has no `skipped`)."""
        return {
            "scale": self._scale,
            "growth_factor": self.growth_factor,
            "backoff_factor": self.backoff_factor,
            "growth_interval": self.growth_interval,
            "_growth_tracker": self._good_steps,  # PyTorch's name
            "skipped": self.skipped,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of a saved scaler, ours or PyTorch's."""
        self._scale, self._good_steps = float(state["scale"]), int(state["_growth_tracker"])
        self.growth_factor, self.backoff_factor = state["growth_factor"], state["backoff_factor"]
        self.growth_interval, self.skipped = state["growth_interval"], state.get("skipped", 0)


def _cast(leaf: Any, dtype: torch.dtype) -> Any:
    """A 16- or 32-bit float tensor in `dtype`; anything else unchanged."""
    narrow = isinstance(leaf, Tensor) and leaf.dtype in (torch.float32, torch.float16, torch.bfloat16)
    return leaf.to(dtype) if narrow else leaf


def _fp32(scale: float) -> float:
    """The scale rounded to fp32, in which PyTorch keeps its own."""
    return FP32.round(torch.tensor(scale, dtype=torch.float64)).item()


def _16_bit(dtype: torch.dtype) -> torch.dtype:
    if dtype not in (torch.bfloat16, torch.float16):
        raise ValueError(f"dtype={dtype} given; mixed precision needs torch.bfloat16 or torch.float16")
    return dtype
