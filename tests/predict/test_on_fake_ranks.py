"""What one rank of many keeps and sends, to the byte, in one process: its neighbours are PyTorch's fake group.

Answers of a fake group are garbage, but tensors have their shapes, and every call is counted. So hundreds of ways to
cut run in seconds; `tests/parallel` asks real ranks for a few.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from course_kit import measure
from course_kit.accounts import MemoryAccount
from course_kit.units import Bytes
from course_lib import predict
from course_lib.model.gpt import GPT, Attention, Block, GPTConfig
from course_lib.parallel.context import ContextParallelGPT
from course_lib.parallel.hybrid import AXES, HybridParallel
from course_lib.parallel.mesh import Mesh
from course_lib.parallel.tensor_gpt import ParallelGPT, ParallelStage
from course_lib.pipeline.stages import GPTStage
from course_lib.predict import Setup
from course_lib.predict.tensors import stage_layers
from course_lib.train.recompute import RecomputedLayers, recompute_only
from tests.parallel.tensor_checks import saved_by

PLAIN = GPTConfig(layers=4, width=32, heads=4, vocab_size=40, context=16)
LLAMA_LIKE = replace(PLAIN, norm="rmsnorm", positions="rotary", bias=False, tied=False, attention="fused")
DTYPES: dict[Any, torch.dtype] = {"fp32": torch.float32, "mixed": torch.bfloat16}
WAYS: list[dict[str, Any]] = [{}, {"recompute": "full"}, {"recompute": "full", "recompute_every": 2}]
ZERO: list[Any] = [0, 1, 2, 3]
SELECTIVE: dict[str, Any] = {"recompute": "selective"}


@contextmanager
def fake_ranks(world_size: int, rank: int = 0) -> Iterator[None]:
    """This process as one rank of a group whose other ranks do not exist."""
    dist.init_process_group("fake", rank=rank, world_size=world_size, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


def recomputed(model: Any, setup: Setup) -> Any:
    """The model with as much recompute as the setup says."""
    if setup.recompute == "selective":
        return recompute_only(model, Attention, "explicit")
    if setup.recompute == "full" and isinstance(model, GPTStage):  # whose blocks are a dict
        return recompute_only(model, Block)
    if setup.recompute == "full":
        model.blocks = RecomputedLayers(model.blocks, setup.recompute_every)
    return model


def check_step(model: Any, setup: Setup, stage: int, axis: str) -> None:
    """Parameters, bytes that autograd keeps, and bytes that each operation sends."""
    recomputed(model, setup)
    assert sum(p.numel() for p in model.parameters()) == predict.rank_parameters(setup, stage)
    tokens, targets = torch.randint(0, setup.gpt.vocab_size, (2, setup.rows_per_pass, setup.seq)).clone().unbind()
    x: Tensor = tokens if stage == 0 else model.recv_buffer(tokens).normal_().requires_grad_()
    arguments = (x, targets) if stage == setup.pipeline - 1 else (x,)
    with measure.traffic() as sent:
        out, kept = saved_by(model, *arguments)
        out.backward(torch.ones_like(out))
    own = x.nbytes if x.requires_grad else 0  # the stage before made it, this one keeps it
    assert kept + own == predict.rank_activations(setup, stage)
    due = predict.rank_traffic(setup, stage).get(axis)
    assert sent.modelled_bytes == (due.modelled_bytes if due else {})


@pytest.mark.parametrize(("tensor", "rows", "dropout"), [(2, 3, 0.1), (2, 1, 0.0), (4, 3, 0.0)])
def test_tensor_ranks(tensor: int, rows: int, dropout: float) -> None:
    with fake_ranks(tensor):
        plain, one_head = replace(PLAIN, dropout=dropout), replace(PLAIN, dropout=dropout, heads=tensor)
        cases = [
            *product((plain,), DTYPES, [*WAYS, SELECTIVE]),
            *product((LLAMA_LIKE,), DTYPES, WAYS),
            *product((one_head, replace(LLAMA_LIKE, attention="explicit", dropout=dropout)), ["fp32"], [{}, SELECTIVE]),
            *product((replace(PLAIN, attention="fused"), replace(plain, positions="none")), ["fp32"], [{}]),
        ]
        for (config, precision, way), sequence in product(cases, (False, True)):
            setup = Setup(config, rows, tensor=tensor, precision=precision, sequence_parallel=sequence, **way)
            model = ParallelGPT(GPT(config, dtype=DTYPES[precision]), None, sequence)
            check_step(model, setup, 0, "tensor")


@pytest.mark.parametrize("stage", [0, 1])
def test_tensor_ranks_of_a_stage(stage: int) -> None:
    ways = [WAYS[0], WAYS[1], SELECTIVE]
    with fake_ranks(2):
        for way, precision, dropout, sequence in product(ways, DTYPES, (0.0, 0.1), (False, True)):
            setup = Setup(replace(PLAIN, dropout=dropout), 3, tensor=2, pipeline=2, precision=precision, **way)
            setup = setup.with_(sequence_parallel=sequence)
            part = GPTStage(setup.gpt, stage_layers(setup, stage), 0, DTYPES[precision])
            check_step(ParallelStage(part, None, sequence), setup, stage, "tensor")


@pytest.mark.parametrize("pipeline", [1, 2])
def test_units_of_tensor_ranks(pipeline: int) -> None:
    """Blocks, and all that is in none, as `HybridParallel` gives them to ZeRO-3."""
    with fake_ranks(2):
        for config, stage in product((PLAIN, LLAMA_LIKE), range(pipeline)):
            setup = Setup(config, 2, precision="mixed", pipeline=pipeline, tensor=2, data=2, zero=3)
            part = ParallelStage(GPTStage(config, stage_layers(setup, stage), 0, torch.bfloat16))
            blocks = [sum(p.nbytes for p in block.parameters()) for block in part.blocks.children()]
            rest = sum(p.nbytes for p in part.parameters()) - sum(blocks)
            most = rest + 3 * max(blocks) + max(p.nbytes for p in part.parameters())
            due = MemoryAccount(Bytes(rest + 2 * max(blocks)), Bytes(most))
            assert predict.unit_buffers(setup, stage=stage) == due


@pytest.mark.parametrize("context", [2, 4])
def test_context_ranks(context: int) -> None:
    with fake_ranks(context):
        one_head = [replace(config, heads=1) for config in (PLAIN, LLAMA_LIKE)]
        cases = [*product((PLAIN, LLAMA_LIKE), WAYS[:: context // 2]), *product(one_head, [{}])]
        for (config, way), precision, rows in product(cases, DTYPES, (1, 3)):
            setup = Setup(config, rows, context=context, precision=precision, **way)
            model = ContextParallelGPT(GPT(setup.gpt, dtype=DTYPES[precision]))
            check_step(model, setup, 0, "context")


MESHES = [(1, 2, 1), (1, 2, 2), (2, 1, 2), (2, 2, 1), (2, 2, 2)]  # pipeline, data, tensor


@pytest.mark.parametrize("sizes", MESHES, ids=str)
def test_grids(sizes: tuple[int, int, int]) -> None:
    """ZeRO over data ranks, beside tensor ranks and stages."""
    pipeline, data, tensor = sizes
    mesh = Mesh(dict(zip(AXES, sizes)))
    for stage in range(pipeline):
        with fake_ranks(mesh.size, rank=stage * data * tensor):
            for zero, precision, sequence in product(ZERO, DTYPES, {False, tensor > 1}):
                if (zero and data == 1) or (zero > 1 and pipeline > 1):
                    continue
                setup = Setup(PLAIN, 4 * data, micro_batch=2, precision=precision, pipeline=pipeline, data=data)
                check_grid(mesh, setup.with_(tensor=tensor, zero=zero, sequence_parallel=sequence), stage)


def check_grid(mesh: Mesh, setup: Setup, stage: int) -> None:
    """The rank's parameters, and the bytes of a step by operation."""
    grid = HybridParallel(
        setup.gpt, mesh, micro_batches=int(setup.micro_batches), zero=setup.zero, dtype=DTYPES[setup.precision],
        sequence_parallel=setup.sequence_parallel, bucket_bytes=2**14,
    )  # fmt: skip
    optimizer, parameters = grid.optimizer(torch.optim.Adam), list(grid.parameters())
    assert sum(p.numel() for p in parameters) == predict.rank_parameters(setup.with_(zero=0), stage)
    batch: Any = torch.randint(0, setup.gpt.vocab_size, (2, setup.batch_size, setup.seq)).clone().unbind()
    with measure.traffic() as sent:
        grid.train_step(optimizer, batch)
    due: Counter[str] = Counter()
    for account in predict.rank_traffic(setup, stage).values():
        due.update(account.modelled_bytes)
    if setup.data > 1:  # what the formula leaves out: who has used each parameter, and for ZeRO whether anybody
        due["all_reduce"] += setup.weight_bytes * len(parameters) if not setup.zero else 4 * (len(parameters) + 1)
    due["all_reduce"] += 4 * (setup.data > 1) + 4 * (setup.pipeline > 1)  # the loss, of all replicas, on all stages
    assert sent.modelled_bytes == due
