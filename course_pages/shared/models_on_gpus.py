"""Models and cards that explorers offer, and a rank's bytes of a model: states, inputs of recomputed blocks."""

from __future__ import annotations

from typing import Any

from course_kit.accounts import MemoryAccount
from course_kit.units import Bytes
from course_lib.model import hardware, zoo
from course_lib.predict import Setup, activations_paper, block_input, model_states, parameters, unit_buffers

MODELS = {row.name: row for row in (
    zoo.GPT2_XL, zoo.GPT3_6_7B, zoo.LLAMA3_8B, zoo.NEOX_20B, zoo.LLAMA3_70B, zoo.GPT3_175B, zoo.LLAMA3_405B,
    zoo.MT_NLG_530B,
)}  # fmt: skip
GPUS = {gpu.name: gpu for gpu in (
    hardware.T4, hardware.RTX_4090, hardware.V100_32GB, hardware.A100_40GB, hardware.A100_80GB, hardware.H100_80GB,
    hardware.H200_141GB,
)}  # fmt: skip


def setup_of(model: str, ranks: int, zero: Any) -> Setup:
    """Setup in mixed precision with AdamW, 16 bytes a parameter; the number of parameters stands for the model."""
    return Setup(int(parameters(MODELS[model])), ranks, precision="mixed", data=ranks, zero=zero)


def kept(model: str, sequences: int) -> Bytes:
    """Bytes that a rank keeps for the backward pass when every block is recomputed: the inputs of blocks."""
    if not sequences:
        return Bytes(0)
    setup = Setup(MODELS[model], sequences, precision="mixed", recompute="full")
    return Bytes(setup.shape.layers * block_input(setup))


def held(model: str, ranks: int, zero: int, sequences: int) -> MemoryAccount:
    """Bytes that a rank holds of the model and for the backward pass. Passing ones (buckets, a gathered unit) and those
    of the block that is being recomputed come on top."""
    return model_states(setup_of(model, ranks, zero)) + MemoryAccount(activations=kept(model, sequences))


def passing(model: str, zero: int, sequences: int) -> MemoryAccount:
    """Bytes that a rank holds for a moment, whatever the number of ranks, on top of `held`.

    In stage 3 whole weights in 16 bits: those outside of blocks, the block at work and the next one, on its way. With
    sequences, the larger of the tensors of one block that is computed again (attention's scores are not stored), and
    three blocks in fp32 as large as the logits: when the loss goes backward, the logarithms of the probabilities, their
    gradient and that of the logits. Gradients on their way and buckets are left out, so this is a lower bound.
    """
    whole = unit_buffers(Setup(MODELS[model], 2, precision="mixed", data=2, zero=3)).parameters if zero == 3 else 0
    if not sequences:
        return MemoryAccount(temporaries=Bytes(whole))
    setup = Setup(MODELS[model], sequences, precision="mixed", recompute="selective")
    logits = 4 * sequences * setup.seq * setup.shape.vocab_size
    return MemoryAccount(temporaries=Bytes(whole + max(activations_paper(setup, layers=1), 3 * logits)))
