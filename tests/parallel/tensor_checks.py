"""What a rank of a tensor-parallel GPT holds, keeps and sends. Runs on ranks, and raises on all or on none."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, UntypedStorage, nn

from course_kit import measure
from course_lib import predict
from course_lib.model.gpt import GPT, GPTConfig
from course_lib.predict import Setup
from tests.parallel.judging import agree
from tests.parallel.problems import Text

BATCH, HOLES = 2, ((0, 3), (1, 6))


def check_bytes(split: Callable[..., Any], config: GPTConfig, sequence_parallel: bool) -> None:
    """Parameters and saved activations per rank, and what each rank sends in a step, equal the formulas (fp32)."""
    setup = Setup(config, BATCH, config.context, tensor=dist.get_world_size(), sequence_parallel=sequence_parallel)
    ours = split(GPT(config), None, sequence_parallel)
    held, due = sum(p.numel() for p in ours.parameters()), predict.rank_parameters(setup)
    problems = [] if held == due else [f"holds {held} parameters, not {due}"]
    with measure.traffic() as sent:
        loss, kept = saved_by(ours, *Text(config, BATCH, HOLES).batch(0))
        loss.backward()
    formula = predict.rank_traffic(setup)["tensor"]
    for operation in {*formula.modelled_bytes, *sent.modelled_bytes}:
        came, due = sent.modelled_bytes.get(operation, 0), formula.modelled_bytes.get(operation, 0)
        if abs(came - due) > 64:
            problems.append(f"sends {came} bytes by {operation}, not {due}")
    wire = sent.observed_bytes
    if wire is not None and wire < 0.99 * formula.total_bytes:
        problems.append(f"sends {wire} bytes on the wire, not {formula.total_bytes:d}")
    if kept != (due := predict.rank_activations(setup)):
        problems.append(f"keeps {kept} bytes for the backward pass, not {due:d}")
    agree(problems, "")


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
