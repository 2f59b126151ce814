"""How many bytes one rank holds in training: model states, and what autograd keeps for the backward pass.

Model states grow with the model alone; activations with batch × sequence × layers. The peak of a step is neither's sum:
`peak.py` has it.

Lesson 00 uses this module; lesson 02 takes it apart.
"""

from __future__ import annotations

from dataclasses import replace

from course_kit.accounts import MemoryAccount
from course_kit.units import Bytes
from course_lib.predict.flops import plain_gpt
from course_lib.predict.lifetimes.ledger import Ledger
from course_lib.predict.lifetimes.recomputed import RecomputedLifetimes
from course_lib.predict.lifetimes.step import StepLifetimes
from course_lib.predict.per_rank import Stage, parameters_of_rank, shards
from course_lib.predict.setup import Setup, not_negative

_MOMENTS = {"sgd": 0, "momentum": 1, "adam": 2, None: 0}
_STEPS = {"none": StepLifetimes, "full": RecomputedLifetimes}


def model_states(setup: Setup, stage: Stage = 0) -> MemoryAccount:
    """Bytes of parameters, gradients and optimizer state on one rank.

    With Ψ parameters:

    - "fp32": 4Ψ weights, 4Ψ gradients, and 4Ψ for each moment of the optimizer (SGD 0, momentum 1, Adam 2).
    - "mixed": 2Ψ weights and 2Ψ gradients in 16 bits; the optimizer keeps a 4Ψ copy of the weights and 4Ψ for each
      moment. With Adam that is 2 + 2 + 12 = 16 bytes a parameter (Rajbhandari et al. 2020, §3.1), and 18 with
      `gradients="fp32"` (Megatron-LM and DeepSpeed today).
    - "bf16": everything in 16 bits, no copy.

    With ZeRO, each of d data ranks has 1/d of the state (`zero=1`), of the gradients as well (2), of the weights as
    well (3). "mixed" with Adam is then 16Ψ, 4Ψ + 12Ψ/d, 2Ψ + 14Ψ/d, 16Ψ/d (Rajbhandari et al. 2020, §5); "fp32" 16Ψ,
    8Ψ + 8Ψ/d, 4Ψ + 12Ψ/d, 16Ψ/d. These are the bytes between steps and, of gradients, at the end of a backward pass;
    `unit_buffers` has what stage 3 gathers on the way. Parts may differ by a few elements: here is the mean over the
    ranks. (`parallel.zero3` in "mixed" has the same sum as 4 + 4 + 8: its parts of weights and gradients are fp32.)

    For a `GPTConfig` the step counters of PyTorch's Adam are included, 4 bytes for each parameter tensor. For another
    shape or a number they are not, since the number of tensors is not known; nor for "mixed", where the optimizer is
    this course's own (`train.precision.MasterWeights`), which counts without a tensor; nor with ZeRO, whose buckets
    decide into how many pieces the tensors fall. Data and context parallelism leave all of it on every rank; with
    tensor and pipeline parallelism it is that of `rank_parameters`.

    Args:
        setup: what is trained, and how.
        stage: of the pipeline; by default the first.

    Raises:
        ValueError: ZeRO in "bf16" (under 16-bit weights it keeps an fp32 copy: "mixed"); a model that is split over
            ranks and is not a `GPTConfig`; or as `rank_parameters`.
    """
    if setup.zero and setup.precision == "bf16":
        raise ValueError(
            f'zero={setup.zero} with precision="bf16": under 16-bit weights, ZeRO here keeps an fp32 copy; that is '
            f'precision="mixed"'
        )
    count, tensors = parameters_of_rank(setup, stage, "model_states")
    moment_bytes = 2 if setup.precision == "bf16" else 4
    master_bytes = 4 if setup.precision == "mixed" else 0
    has_counters = setup.optimizer == "adam" and setup.precision != "mixed" and not setup.zero
    held = (setup.weight_bytes, setup.gradient_bytes, master_bytes + moment_bytes * _MOMENTS[setup.optimizer])
    weights, gradients, state = (
        round(count * width / shards(setup, zero)) for width, zero in zip(held, (3, 2, 1))
    )  # fmt: skip
    return MemoryAccount(Bytes(weights), Bytes(gradients), Bytes(state + (4 * tensors if has_counters else 0)))


def activations(setup: Setup) -> Bytes:
    """Bytes that autograd keeps between the forward and the backward pass of a (micro-)batch with loss, exactly.

    For GPT-2's shape (LayerNorm, learned positions, GELU, attention written out) that is, with B sequences of S tokens
    and all sizes in elements of 4 bytes,

        L · (8·BSD + 2·BSF + BHSS + 4·BS)  +  2·BSD + 2·BS + BSV

    and a few integers and booleans. With weights in 16 bits ("mixed", "bf16") an element has 2 bytes, except for BSV:
    the loss is computed in 32 bits. Parameters are kept, too, but counted elsewhere. `lifetimes` names every tensor.
    Holds in training mode, and for sequences of at least 2 tokens; with one sequence in the batch, or one head,
    attention keeps q, k and v in one piece: 9·BSD.

    With `recompute="full"`, of all blocks only one input for each segment of `setup.every` blocks is kept. "selective"
    keeps all but what lies between the scores and their use: softmax's result, dropout's mask and result, and the mask
    of the future. (The product's own copies of queries, keys and values go as well, and the tensor stays that they
    were cut from; rotary queries and keys are no part of it and stay besides.)

    Raises:
        ValueError: not a `GPTConfig`, or a model that is split over ranks; "selective" where no scores are kept, or
            other than in fp32 on a CPU; fused attention with dropout in 16 bits on a CPU.
    """
    if setup.recompute == "selective":
        return _without_scores(setup)
    ledger = Ledger()
    step_lifetimes(setup.with_(every=1), ledger).forward()
    in_segments = setup.gpt.layers + -setup.gpt.layers // setup.every  # blocks whose input nobody keeps
    return Bytes(ledger.alive["activations"]) - in_segments * block_input(setup)


def _without_scores(setup: Setup) -> Bytes:
    config, rows, seq = setup.gpt, setup.rows, setup.seq
    if config.attention != "explicit":
        raise ValueError('attention="fused" keeps no scores: there is nothing to recompute selectively')
    if (setup.precision, setup.device) != ("fp32", "cpu"):
        raise ValueError(
            f"selective recompute is counted in fp32 on a CPU, not for precision={setup.precision!r}, "
            f"device={setup.device!r}: activations_paper has the rule for 16 bits"
        )
    scores = 4 * rows * config.heads * seq * seq
    rotated = 2 * block_input(setup) if config.positions == "rotary" else 0
    less = scores * (3 if config.dropout else 1) + seq * seq - rotated
    return activations(setup.with_(recompute="none")) - config.layers * less


def block_activations(setup: Setup) -> Bytes:
    """Bytes that one block of our GPT saves, its input among them: the difference that one more layer makes.

    Raises:
        ValueError: as `activations`.
    """
    plain = setup.with_(recompute="none", every=1)
    one, two = (activations(plain.with_(config=replace(setup.gpt, layers=layers))) for layers in (1, 2))
    return two - one


def block_input(setup: Setup) -> Bytes:
    """Bytes of a block's input: a number for each token and feature."""
    return Bytes(setup.weight_bytes * setup.rows * setup.seq * setup.shape.width)


def activations_paper(setup: Setup, layers: int | None = None) -> Bytes:
    """Bytes that layers keep on one rank, as the literature estimates it for 16-bit training with dropout.

    For one layer, in the letters of Korthikanti et al. 2022, Table 2 (s tokens, b sequences of a micro-batch, h width,
    a heads, t ranks of tensor parallelism):

        no parallelism                s·b·h · (34 + 5·a·s/h)
        tensor                        s·b·h · (10 + 24/t + 5·a·s/(h·t))
        tensor and sequence           s·b·h/t · (34 + 5·a·s/h)
        … with selective recompute    the same without 5·a·s/h
        full recompute                s·b·h · 2

    Of the 34, attention keeps 11, the MLP 19 and the norms 4; 5·a·s/h is the scores: softmax's result, a dropout mask
    of one byte, and the dropped weights. The 10 are the norms' inputs, the inputs of the two split products and two
    dropout masks, which tensor parallelism leaves whole and sequence parallelism splits too (lesson 08 builds both).
    Embeddings, the last norm and the loss are left out.

    Args:
        setup: its `precision` must be one with 16-bit weights.
        layers: how many; all of the model by default.

    Raises:
        ValueError: another shape than a GPT with an MLP of 4 × width, no scores, fp32, segments of several blocks, or
            layers or a sequence that are split over ranks.
    """
    setup.refuse_parallel("activations_paper", "tensor", "data", "zero", "sequence_parallel")
    config = plain_gpt(setup, "activations_paper")
    if setup.precision == "fp32" or setup.every > 1 or (setup.recompute == "none" and config.attention == "fused"):
        raise ValueError(
            f"activations_paper counts layers one by one, in 16-bit training that keeps its scores: give "
            f'precision="mixed". Here: precision={setup.precision!r}, attention={config.attention!r}, '
            f"every={setup.every}"
        )
    layers = config.layers if layers is None else layers
    not_negative(layers=layers)
    stream = setup.rows * setup.seq * config.width
    if setup.recompute == "full":
        return Bytes(layers * 2 * stream)
    scores = 0 if setup.recompute == "selective" else 5 * config.heads * setup.rows * setup.seq**2
    whole, split = (0, 34) if setup.sequence_parallel else (10, 24)
    return Bytes(layers * (stream * whole + (stream * split + scores) / setup.tensor))


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


def step_lifetimes(setup: Setup, ledger: Ledger) -> StepLifetimes:
    """The forward and backward pass of one (micro-)batch, ready to be written into `ledger`.

    Raises:
        ValueError: not a `GPTConfig`, a model that is split over ranks, or a step that nobody follows tensor by tensor.
    """
    config = setup.gpt
    setup.refuse_parallel("following a step tensor by tensor", "data", "zero", "sequence_parallel")
    if setup.recompute not in _STEPS or setup.every > 1:
        raise ValueError(
            f'recompute={setup.recompute!r}, every={setup.every}: a step is followed with "none", or with "full" of '
            f"each block by itself; what is kept between the passes, `activations` knows for all"
        )
    if setup.device == "cpu" and setup.precision != "fp32" and config.attention == "fused" and config.dropout:
        raise ValueError(
            f'attention="fused" with dropout={config.dropout} computes in fp32 inside whatever '
            f'precision={setup.precision!r} says, and is not followed: take attention="explicit" or dropout=0'
        )
    return _STEPS[setup.recompute](config, setup.rows, setup.seq, ledger, setup.weight_bytes, setup.device)
