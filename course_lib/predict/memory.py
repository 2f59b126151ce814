"""How many bytes training holds: states, activations, and the peak of a step.

Model states grow with the model alone; activations with batch × sequence × layers. The peak is neither's sum: it is the
largest account over time, and `lifetimes/` knows when that is.

Lesson 00 uses this module; lesson 02 takes it apart.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from torch import nn

from course_lib.accounts import MemoryAccount
from course_lib.model.gpt import GPTConfig
from course_lib.model.zoo import Architecture, Published
from course_lib.predict.lifetimes.ledger import FLOAT, Ledger
from course_lib.predict.lifetimes.recomputed import RecomputedLifetimes
from course_lib.predict.lifetimes.step import StepLifetimes
from course_lib.predict.lifetimes.updates import optimizer_step, parameter_elements
from course_lib.predict.params import Shape, config_of, parameters
from course_lib.units import Bytes

Precision = Literal["fp32", "mixed", "bf16"]
Optimizer = Literal["sgd", "momentum", "adam"]
Device = Literal["cpu", "cuda"]

_WEIGHT_BYTES = {"fp32": 4, "mixed": 2, "bf16": 2}
_MOMENTS = {"sgd": 0, "momentum": 1, "adam": 2}
_STEPS = {"none": StepLifetimes, "full": RecomputedLifetimes}


@dataclass(frozen=True)
class PeakAccount(MemoryAccount):
    """The account at the peak of a step, and the phase in which it occurs.

    Attributes:
        phase: "forward", "backward" or "optimizer step".
    """

    phase: str = ""


def model_states(
    model: nn.Module | Shape | int, precision: Precision = "fp32", optimizer: Optimizer = "adam"
) -> MemoryAccount:
    """Bytes of parameters, gradients and optimizer state.

    With Ψ parameters:

    - "fp32": 4Ψ weights, 4Ψ gradients, and 4Ψ for each moment of the optimizer (SGD 0, momentum 1, Adam 2).
    - "mixed": 2Ψ weights and 2Ψ gradients in 16 bits; the optimizer keeps a 4Ψ copy of the weights and 4Ψ for each
      moment. With Adam that is 2 + 2 + 12 = 16 bytes a parameter (Rajbhandari et al. 2020, §3.1).
    - "bf16": everything in 16 bits, no copy.

    Given a model or a `GPTConfig`, the step counters of PyTorch's Adam are included, 4 bytes for each parameter tensor.
    Given a published shape or a number, they are not, since the number of tensors is not known; nor for "mixed", where
    the optimizer is this course's own (`train.precision.MasterWeights`), which counts without a tensor.

    Args:
        model: a model, a config, a row of the zoo, or a number of parameters.
        precision: what weights, gradients and moments are stored in.
        optimizer: which moments are kept.

    Raises:
        ValueError: unknown precision or optimizer, or a negative number.
    """
    _known("precision", precision, _WEIGHT_BYTES)
    _known("optimizer", optimizer, _MOMENTS)
    count, tensors = _count(model)
    if count < 0:
        raise ValueError(f"{count} parameters: there must be at least 0")
    weight_bytes = _WEIGHT_BYTES[precision]
    moment_bytes = 2 if precision == "bf16" else 4
    master_bytes = 4 if precision == "mixed" else 0
    counters = 4 * tensors if optimizer == "adam" and precision != "mixed" else 0
    state = count * (master_bytes + moment_bytes * _MOMENTS[optimizer]) + counters
    return MemoryAccount(Bytes(count * weight_bytes), Bytes(count * weight_bytes), Bytes(state))


def activations(
    config: GPTConfig, batch_size: int, seq: int, precision: Precision = "fp32",
    recompute: Literal["none", "full"] = "none", device: Device = "cpu",
) -> Bytes:  # fmt: skip
    """Bytes that autograd keeps between the forward and the backward pass of a step with loss, exactly.

    For GPT-2's shape (LayerNorm, learned positions, GELU, attention written out) that is, with B sequences of S tokens
    and all sizes in elements of 4 bytes,

        L · (8·BSD + 2·BSF + BHSS + 4·BS)  +  2·BSD + 2·BS + BSV

    and a few integers and booleans. With weights in 16 bits ("mixed", "bf16") an element has 2 bytes, except for BSV:
    the loss is computed in 32 bits. Parameters are kept, too, but counted elsewhere. `lifetimes/` names every tensor.
    With `recompute="full"`, every block leaves its input alone. Holds in training mode, and for sequences of at least 2
    tokens; with one sequence in the batch, or one head, attention keeps q, k and v in one piece: 9·BSD. `device` says
    whose kernels run (see `peak`).

    Raises:
        ValueError: not a `GPTConfig`, a batch that the model does not accept, or an unknown precision, recompute or
            device.
    """
    ledger = Ledger()
    step_lifetimes(config, batch_size, seq, ledger, precision, recompute, device).forward()
    return Bytes(ledger.alive["activations"])


def activations_paper(
    shape: Shape, batch_size: int, seq: int, recompute: Literal["none", "selective", "full"] = "none"
) -> Bytes:
    """Bytes that all layers keep, as the literature estimates it for 16-bit training: L · s·b·h · (34 + 5·a·s/h).

    The papers' letters: s tokens, b sequences, h width, a heads, L layers. Of the 34, attention keeps 11, the MLP 19
    and the norms 4; 5·a·s/h is the scores: softmax's result, a dropout mask of one byte, and the dropped weights.
    Embeddings, the last norm and the loss are left out. The MLP is 4·h wide.

    Args:
        shape: a config, or a row of the zoo.
        batch_size: sequences in the batch.
        seq: tokens in a sequence.
        recompute: "selective" computes the scores again (34·s·b·h a layer), "full" whole layers, of which only the
            inputs are kept (2·s·b·h).

    Source: Korthikanti et al. 2022, eq. 1 and 2; §5 for selective, §4 for full.

    Raises:
        ValueError: `recompute` has another value, or the batch or sequence is not positive.
    """
    _known("recompute", recompute, ("none", "selective", "full"))
    _positive(batch_size, seq)
    config = config_of(shape)
    stream = batch_size * seq * config.width
    scores = 5 * config.heads * seq * seq * batch_size
    per_layer = {"none": 34 * stream + scores, "selective": 34 * stream, "full": 2 * stream}
    return Bytes(config.layers * per_layer[recompute])


def fused_buffer(parameters: int, bytes_per_element: int = 4, limit_bytes: int | None = None) -> Bytes:
    """The buffer that gradients are packed into, so that one all-reduce serves them all.

    Flat and in fp32 it has 4 bytes a parameter: 6 GB for 1.5 billion (Rajbhandari et al. 2020, §3.2). A buffer of a
    constant size, used again and again, has `limit_bytes` however large the model is (their §6.2).

    Raises:
        ValueError: a number is not positive.
    """
    if min(parameters, bytes_per_element, 1 if limit_bytes is None else limit_bytes) < 1:
        raise ValueError(f"{parameters=}, {bytes_per_element=}, {limit_bytes=}: all must be at least 1")
    whole = parameters * bytes_per_element
    return Bytes(whole if limit_bytes is None else min(whole, limit_bytes))


def peak(
    config: GPTConfig, batch_size: int, seq: int, optimizer: Optimizer | None = "adam", first_step: bool = False,
    precision: Precision = "fp32", recompute: Literal["none", "full"] = "none", device: Device = "cpu",
) -> PeakAccount:  # fmt: skip
    """The most bytes that are alive at one moment of a training step, by category, and the phase it happens in.

    The step is `train_step`'s: the last step's gradients go, then forward, backward, optimizer. It is followed tensor
    by tensor (`lifetimes/`). The batch's tokens and targets (8 bytes each) are included.

    Args:
        config: the shape.
        batch_size: sequences in the batch.
        seq: tokens in a sequence.
        optimizer: "adam" (also AdamW), "momentum", "sgd"; None for a step that ends with the backward pass.
        first_step: in the first step of all, the optimizer's moments do not exist before the optimizer runs.
        precision: "fp32"; "mixed" is 16-bit weights under `train.precision.MasterWeights`; "bf16" is everything in 16
            bits, with an optimizer of `torch.optim`.
        recompute: "full" keeps every block's input alone (`train.recompute.RecomputedLayers` with every=1), which
            leaves out 5,056 bytes of random state for each block.
        device: "cpu", or "cuda" for a GPU with units for bf16 (on an older one, such as the T4, attention="fused" in
            bf16 falls back on products). What its kernels use inside, and cuBLAS's workspaces, come on top.

    Returns:
        The account; `.phase` says when, `.total` is the sum.

    Raises:
        ValueError: as `activations`; unknown optimizer.
    """
    states = model_states(config, precision, optimizer or "sgd")
    master = Bytes(FLOAT * int(parameters(config)) if precision == "mixed" else 0)
    early, late = (master, states.optimizer - master) if first_step else (states.optimizer, 0)
    ledger = Ledger(parameters=states.parameters, optimizer=early)
    step = step_lifetimes(config, batch_size, seq, ledger, precision, recompute, device)
    step.forward()
    step.backward()
    if optimizer is not None:
        optimizer_step(ledger, config, optimizer, late, step.element, precision == "mixed")
    return PeakAccount(**{name: Bytes(n) for name, n in ledger.peak.items()}, phase=ledger.peak_phase)


def step_lifetimes(
    config: GPTConfig,
    batch_size: int,
    seq: int,
    ledger: Ledger,
    precision: str = "fp32",
    recompute: str = "none",
    device: str = "cpu",
) -> StepLifetimes:
    """A step that is ready to be written into `ledger`; arguments and errors as in `peak`."""
    _known("precision", precision, _WEIGHT_BYTES)
    _known("recompute", recompute, _STEPS)
    _known("device", device, ("cpu", "cuda"))
    if not isinstance(config, GPTConfig):
        raise ValueError(
            f"a {type(config).__name__} is not a GPTConfig, whose tensors are known: use activations_paper"
        )
    _positive(batch_size, seq)
    if seq > config.context:
        raise ValueError(f"seq={seq} is longer than the model's context of {config.context}: shorten the sequence")
    if device == "cpu" and precision != "fp32" and config.attention == "fused" and config.dropout:
        raise ValueError(
            f'attention="fused" with dropout={config.dropout} computes in fp32 inside whatever precision={precision!r} '
            f'says, and is not followed: take attention="explicit" or dropout=0'
        )
    return _STEPS[recompute](config, batch_size, seq, ledger, _WEIGHT_BYTES[precision], device)


def _count(model: nn.Module | Shape | int) -> tuple[int, int]:
    """Parameters and parameter tensors."""
    if isinstance(model, nn.Module):
        tensors = list(model.parameters())
        return sum(p.numel() for p in tensors), len(tensors)
    if isinstance(model, GPTConfig):
        elements = parameter_elements(model)
        return sum(elements), len(elements)
    if isinstance(model, Architecture | Published):
        return parameters(model), 0
    return int(model), 0


def _known(name: str, given: str, known: Collection[str]) -> None:
    if given not in known:
        raise ValueError(f"{name}={given!r}: it must be one of {', '.join(map(repr, known))}")


def _positive(batch_size: int, seq: int) -> None:
    if batch_size < 1 or seq < 1:
        raise ValueError(f"batch_size={batch_size}, seq={seq}: both must be at least 1")
