"""What a tensor-parallel GPT must do. Each check runs on ranks and raises where it is not so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib import measure
from course_lib.model.gpt import GPT, GPTConfig
from course_lib.model.seeds import mix
from course_lib.parallel.operators import own_part
from course_lib.parallel.tensor_gpt import cuts, whole_state_dict
from tests.parallel.checks import OPTIMIZERS

BATCH, SEQ = 2, 8


def batch(config: GPTConfig, step: int) -> tuple[Tensor, Tensor]:
    """The same tokens on every rank."""
    tokens = torch.randint(0, config.vocab_size, (BATCH, SEQ + 1), generator=torch.Generator().manual_seed(step))
    return tokens[:, :-1], tokens[:, 1:]


def check_parity(split: Callable[..., Any], config: GPTConfig, sequence_parallel: bool, optimizer: str) -> None:
    """Loss, gradients and weights equal the unsplit GPT's in each of 4 steps, what dropout drops included."""
    single = GPT(config, dtype=torch.float64)
    ours = split(single, None, sequence_parallel)
    both = [(model, OPTIMIZERS[optimizer](model.parameters())) for model in (single, ours)]
    for step in range(4):
        losses = []
        for model, opt in both:
            torch.manual_seed(mix(1, step) % 2**63)
            opt.zero_grad(set_to_none=True)
            losses.append(model(*batch(config, step)))
            losses[-1].backward()
            opt.step()
        off = (losses[1] - losses[0]).abs().item()
        assert off < 1e-11, f"the loss of step {step} is off by {off:.1e}"
        theirs, known = dict(single.named_parameters()), cuts(ours)
        for name, p in ours.named_parameters():
            for what, mine, whole in (("gradient", p.grad, theirs[name].grad), ("weight", p, theirs[name])):
                assert mine is not None and whole is not None, f"the {what} of {name} is missing"
                part = own_part(whole.detach(), known[name].dim, None, known[name].blocks) if name in known else whole
                off = (mine - part).abs().max()
                assert off < 1e-11, f"the {what} of {name} is off by {off:.1e} after step {step}"
    whole = whole_state_dict(ours)
    for name, q in single.named_parameters():
        assert (whole[name] - q).abs().max() < 1e-11, f"the joined {name} differs"


def check_bytes(split: Callable[..., Any], config: GPTConfig, sequence_parallel: bool) -> None:
    """Parameters and saved activations per rank, and what each rank sends in a step, equal the formulas (fp32)."""
    t, layers, width = dist.get_world_size(), config.layers, config.width
    ours = split(GPT(config), None, sequence_parallel)
    held = sum(p.nbytes for p in ours.parameters())
    assert held == 4 * parameters(config, t), f"holds {held} bytes of parameters, not {4 * parameters(config, t)}"
    with measure.traffic() as sent:
        ours(*batch(config, 0)).backward()
    stream, logits = 4 * BATCH * SEQ * width, 4 * BATCH * SEQ * config.vocab_size
    whole_parameters = 4 * width * (6 * layers + 2)
    share = (t - 1) / t
    if sequence_parallel:
        formula = {
            "all_gather": share * (stream * 6 * layers + logits),  # forward, again for the weights, g_bar's backward
            "reduce_scatter": share * (stream * 4 * layers + logits),
            "all_to_all": share * stream / t * 4,
            "all_reduce": 2 * share * (whole_parameters + 4),  # of what is whole; and the loss
        }
    else:
        formula = {"all_gather": share * stream * 2, "all_reduce": 2 * share * (stream * 4 * layers + logits)}
    for operation in {*formula, *sent.attributed_bytes}:
        came, due = sent.attributed_bytes.get(operation, 0), formula.get(operation, 0)
        assert abs(came - due) <= 64, f"sends {came} bytes by {operation}, not {due}"
    wire = sent.observed_bytes
    if wire is not None:
        assert wire >= 0.99 * sum(formula.values()), f"sends {wire} bytes on the wire, not {sum(formula.values())}"
    kept = saved_by_a_block(ours, sequence_parallel)
    due = block_activations(config, t, sequence_parallel)
    assert kept == due, f"keeps {kept} bytes for the backward pass of a block, not {due}"


def parameters(config: GPTConfig, t: int) -> int:
    """Per rank: matrices and columns' biases are cut, norms and rows' biases are not."""
    width, hidden = config.width, config.mlp_width
    cut = 4 * width * width + 3 * width + 2 * width * hidden + hidden
    tables = (config.vocab_size + config.context) * width
    return (config.layers * cut + tables) // t + config.layers * 6 * width + 2 * width


def saved_by_a_block(model: Any, sequence_parallel: bool) -> int:
    """Bytes that autograd keeps for one block: every storage once, parameters left out."""
    width = model.config.width
    seq = SEQ // dist.get_world_size() if sequence_parallel else SEQ
    x = torch.ones(BATCH, seq, width, requires_grad=True)
    storages: dict[int, int] = {}
    kept = []

    def keep(saved: Tensor) -> Tensor:
        kept.append(saved)
        storages[saved.untyped_storage().data_ptr()] = saved.untyped_storage().nbytes()
        return saved

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda saved: saved):
        model.blocks[0](x)
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    return sum(n_bytes for where, n_bytes in storages.items() if where not in own)


def block_activations(config: GPTConfig, t: int, sequence_parallel: bool) -> int:
    """In fp32, attention written out, no dropout, with n = batch · seq · width elements.

    The stream between the pairs (each norm's input and output, and the mean and spread of each token): whole, or 1/t of
    it. What lies inside the pairs is always 1/t: queries, scaled queries, keys, values (4 with what `@` copies), the
    mixed values, hidden features before and after GELU; the scores after softmax. Each rank has the whole mask.
    """
    tokens, n = BATCH * SEQ, BATCH * SEQ * config.width
    stream = 4 * (4 * n + 4 * tokens) // (t if sequence_parallel else 1)
    scores = BATCH * config.heads * SEQ * SEQ
    inside = 4 * (4 * n + 2 * BATCH * SEQ * config.mlp_width + scores) // t
    return stream + inside + SEQ * SEQ
