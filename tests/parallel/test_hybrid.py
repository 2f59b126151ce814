"""Grids of ranks, with ZeRO, and nodes of shards: bytes held and sent, 16 bits, mistakes. Steps: `test_parity.py`."""

import dataclasses
import sys
from typing import Any

import pytest
import torch
import torch.distributed as dist

from course_kit import measure, ranks
from course_lib import predict
from course_lib.collectives.operators import own_part
from course_lib.model.gpt import GPT, GPTConfig
from course_lib.parallel.hybrid import AXES, HybridParallel
from course_lib.parallel.mesh import Mesh
from course_lib.parallel.tensor_gpt import shardings
from course_lib.parallel.zero3 import Zero3
from course_lib.predict import Setup
from course_lib.train.accumulate import IGNORE
from course_lib.train.precision import CastPolicy
from course_pages.shared.who_sends import between_nodes, matrix
from tests.mutants.parallel import grid as wrong
from tests.parallel.judging import accepted, agree, on_ranks, refused
from tests.parallel.parity import parity
from tests.parallel.sides import Grid
from tests.parallel.test_parity import GRID, nodes

TIED = GRID.config


def batch_of(step: int, rows: int = 16, ragged: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
    """The same on every rank."""
    return dataclasses.replace(GRID, rows=rows, holes=GRID.holes if ragged else ()).batch(step)


def check_bytes(make, sizes, sequence_parallel):
    """A rank holds its parameters, and sends what the formulas say, axis by axis (fp32)."""
    mesh = Mesh(dict(zip(AXES, sizes)))
    grid = make(TIED, mesh, micro_batches=2, sequence_parallel=sequence_parallel)
    pipeline, data, tensor = sizes
    setup = Setup(TIED, 16, micro_batch=16 // data // 2, pipeline=pipeline, data=data, tensor=tensor)
    setup, stage = setup.with_(sequence_parallel=sequence_parallel), mesh.coordinates(dist.get_rank())["pipeline"]
    held, due = sum(p.numel() for p in grid.parameters()), predict.rank_parameters(setup, stage)
    problems = [] if held == due else [f"holds {held} parameters, not {due}"]
    with measure.traffic() as sent:
        grid.forward_backward(batch_of(0, ragged=False))
    formula = predict.rank_traffic(setup, stage)
    names = {name for account in formula.values() for name in account.modelled_bytes}
    small = 8 * len(list(grid.parameters())) + 64  # the count of users behind each gradient, the loss, rounding
    for name in names | set(sent.modelled_bytes):
        due = sum(account.modelled_bytes.get(name, 0) for account in formula.values())
        came = sent.modelled_bytes.get(name, 0)
        if abs(came - due) > (small if name == "all_reduce" else 64):
            problems.append(f"sends {came} bytes by {name}, not {due}")
    agree(problems, "")


@pytest.mark.parametrize(
    ("sizes", "sequence_parallel"),
    [((2, 1, 2), False), ((2, 1, 2), True), ((1, 2, 2), False), ((1, 2, 2), True), ((2, 2, 1), False)],
)
@on_ranks(4, diagnose=False)
def test_bytes_held_and_sent_equal_the_formulas(sizes, sequence_parallel):
    check_bytes(HybridParallel, sizes, sequence_parallel)


DEEP = GPTConfig(layers=8, width=64, heads=2, vocab_size=32, context=8)


def sent_in_a_step(is_hybrid: bool) -> Any:
    """Of a GPT in fp32, from the forward pass to the mean gradient."""
    model, tokens = GPT(DEEP), torch.zeros(1, 2, dtype=torch.int64)
    sharded = nodes(Zero3, model) if is_hybrid else Zero3(model)
    sharded(tokens, tokens).backward()
    sharded.synchronize()
    sharded.zero_grad()
    with measure.traffic() as sent:
        sharded(tokens, tokens).backward()
        sharded.synchronize()
    return sent


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counted by Linux's kernel only")
def test_only_the_mean_of_the_shards_crosses_between_nodes():
    """Ψ bytes: inside, 3Ψ over 2 ranks; across, an all-reduce of Ψ/2 over 2. Over all ranks, twice as much
    crosses and more."""
    n_bytes = 4 * sum(p.numel() for p in GPT(DEEP).parameters())
    sent = matrix(ranks.run(sent_in_a_step, True, world_size=4, diagnose=False), observed=True)
    for rank in range(4):
        assert sent[rank][rank ^ 1] == pytest.approx(3 * predict.all_gather(n_bytes, 2).bytes, rel=0.05)
        assert sent[rank][rank ^ 2] == pytest.approx(predict.all_reduce(n_bytes // 2, 2).bytes, rel=0.05)
    everywhere = matrix(ranks.run(sent_in_a_step, False, world_size=4, diagnose=False), observed=True)
    assert between_nodes(everywhere, 2) > 1.9 * between_nodes(sent, 2)


def test_known_wrong_grids_are_refused():
    cases = {}
    for mutant, says in wrong.WRONG.items():
        steps: dict[str, object] = {"steps": 1, "sizes": (1, 2, 2), "zero": int(mutant in wrong.OF_ZERO)}
        if says.startswith(("holds", "sends")):
            cases[mutant] = (says, check_bytes, mutant, (1, 2, 2), False, {})
        elif "norm" in says:
            clips = {"sizes": (2, 1, 2), "max_norms": (1e9, 0.5, 0.01)}
            cases[mutant] = (says, parity, Grid, mutant, GRID, "fast", clips)
        else:
            cases[mutant] = (says, parity, Grid, mutant, GRID, "sgd", steps)
    assert accepted(4, cases) == {}


def tried(sizes, rows=4, change=None, **how):
    """A grid and a step, in which with a row to a micro-batch one of the first replica has no target."""
    config = dataclasses.replace(TIED, **change or {})
    grid = HybridParallel(config, Mesh(dict(zip(AXES, sizes))), **how)
    inputs, targets = batch_of(0, rows)
    targets[1] = IGNORE
    grid.forward_backward((inputs, targets))


STAGES, DATA, CUT = (2, 1, 1), (1, 2, 1), (1, 1, 2)
TWO_EACH = {"schedule": "interleaved", "micro_batches": 2}
LATE = "gradients would be reduced after"
MISTAKES = [
    (lambda: tried((1, 1, 4)), "this mesh has 4 ranks, but 2 processes run"),
    (lambda: tried(CUT, change={"heads": 1}), "1 heads do not split over 2 ranks"),
    (lambda: tried(STAGES, change={"dropout": 0.1}), "dropout=0.1: each stage would draw"),
    (lambda: tried(STAGES, schedule="pipedream"), "schedule='pipedream': it must be one of naive, gpipe"),
    (lambda: tried(STAGES, zero=2), f"zero=2 over 2 pipeline stages .1f1b.: {LATE}"),
    (lambda: tried(DATA, zero=2, schedule="zb-v"), f"zero=2 over 1 pipeline stages .zb-v.: {LATE}"),
    (lambda: tried(DATA, zero=3, schedule="interleaved"), f"zero=3 over 1 pipeline stages .interleaved.: {LATE}"),
    (lambda: tried(DATA, zero=4), "zero=4: the stage of ZeRO is 0, 1, 2 or 3"),
    (lambda: tried(DATA, 6, micro_batches=2), "6 sequences do not split into 4 equal pieces: 2 replicas times 2"),
    (lambda: tried(DATA, 16, micro_batches=8), "^one of the 16 micro-batches has no target"),
    (lambda: tried(STAGES, 6, schedule="interleaved", micro_batches=3), "3 micro-batches on 2 ranks"),
    (lambda: tried(STAGES, change={"layers": 1}, **TWO_EACH), "3 layers cannot be cut into 4"),
]


def test_what_cannot_be_is_refused():
    assert refused(2, MISTAKES) == []


def test_a_grid_that_cannot_be_is_refused_before_there_are_ranks():
    with pytest.raises(ValueError, match="zero=2 over 2 pipeline stages .1f1b.: gradients would be reduced after"):
        HybridParallel(TIED, Mesh({"pipeline": 2, "data": 2, "tensor": 2}), micro_batches=2, zero=2)


def test_a_grid_has_three_axes():
    with pytest.raises(ValueError, match="a grid has the axes pipeline, data, tensor$"):
        HybridParallel(TIED, Mesh({"tensor": 2, "data": 1, "pipe": 1}))


@pytest.mark.parametrize(("schedule", "sequence_parallel"), [("1f1b", False), ("1f1b", True), ("zero-bubble", True)])
@pytest.mark.parametrize("policy", [CastPolicy, lambda: torch.autocast("cpu", torch.bfloat16)])
@on_ranks(2, nightly=(1,), diagnose=False)
def test_mixed_precision_passes_through_cut_layers_and_deferred_gradients(policy, schedule, sequence_parallel):
    """Those of the whole model under the same policy, a few roundings of bf16 apart, since ranks' terms are rounded
    before they are added; masters are fp32."""
    config, batch = dataclasses.replace(TIED, layers=2), batch_of(0)
    mesh = Mesh({"pipeline": 1, "data": 1, "tensor": dist.get_world_size()})
    grid = HybridParallel(config, mesh, schedule=schedule, sequence_parallel=sequence_parallel)
    single = GPT(config)
    with policy():
        single(*batch).backward()
        grid.forward_backward(batch)
    oracle, (stage,) = dict(single.named_parameters()), grid.stages.values()
    for name, p in stage.named_parameters():
        cut, whole = shardings(stage).get(name), oracle[name].grad
        assert whole is not None and p.grad is not None and p.grad.dtype == torch.float32
        part = own_part(whole, cut.dim, grid.groups["tensor"], cut.blocks) if cut else whole
        off = float((p.grad - part).norm() / part.norm())
        assert off < 8 * torch.finfo(torch.bfloat16).eps, f"the gradient of {name} is off by {off:.1e}"
