"""What a tensor-parallel GPT must do. Each check runs on ranks and raises where it is not so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, UntypedStorage, nn

from course_kit import measure
from course_lib import predict
from course_lib.collectives.operators import own_part
from course_lib.model.gpt import GPT, GPTConfig
from course_lib.model.seeds import mix
from course_lib.parallel.tensor_gpt import shardings, whole_state_dict
from course_lib.predict import Setup
from course_lib.train.accumulate import IGNORE
from tests.parallel.checks import OPTIMIZERS

BATCH, SEQ = 2, 8


def batch(config: GPTConfig, step: int) -> tuple[Tensor, Tensor]:
    """The same tokens on every rank; padded, so that the last of 4 parts of the sequence has no targets at all."""
    tokens = torch.randint(0, config.vocab_size, (BATCH, SEQ + 1), generator=torch.Generator().manual_seed(step))
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    targets[0, 3:], targets[1, 6:] = IGNORE, IGNORE
    return inputs, targets


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
        theirs, known = dict(single.named_parameters()), shardings(ours)
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
    setup = Setup(config, BATCH, SEQ, tensor=dist.get_world_size(), sequence_parallel=sequence_parallel)
    ours = split(GPT(config), None, sequence_parallel)
    held, due = sum(p.numel() for p in ours.parameters()), predict.rank_parameters(setup)
    assert held == due, f"holds {held} parameters, not {due}"
    with measure.traffic() as sent:
        loss, kept = saved_by(ours, *batch(config, 0))
        loss.backward()
    formula = predict.rank_traffic(setup)["tensor"]
    for operation in {*formula.modelled_bytes, *sent.modelled_bytes}:
        came, due = sent.modelled_bytes.get(operation, 0), formula.modelled_bytes.get(operation, 0)
        assert abs(came - due) <= 64, f"sends {came} bytes by {operation}, not {due}"
    wire = sent.observed_bytes
    if wire is not None:
        assert wire >= 0.99 * formula.total_bytes, f"sends {wire} bytes on the wire, not {formula.total_bytes:d}"
    due = predict.rank_activations(setup)
    assert kept == due, f"keeps {kept} bytes for the backward pass, not {due:d}"


def saved_by(model: nn.Module, *batch: Tensor) -> tuple[Tensor, int]:
    """The loss, and the bytes that autograd keeps for its backward pass: every storage once, parameters and the batch
    left out."""
    storages: dict[int, UntypedStorage] = {}

    def keep(saved: Tensor) -> Tensor:
        storages[saved.untyped_storage().data_ptr()] = saved.untyped_storage()  # alive, so that no address comes twice
        return saved

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda saved: saved):
        loss = model(*batch)
    own = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *batch)}
    return loss, sum(storage.nbytes() for where, storage in storages.items() if where not in own)
