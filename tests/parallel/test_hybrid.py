"""A step over (pipeline, data, tensor, ZeRO): every legal one on up to 8 ranks equals the single device each step."""

from __future__ import annotations

import dataclasses
import itertools
import math

import pytest
import torch
import torch.distributed as dist

from course_kit import measure, ranks
from course_kit.ranks import RankFailure
from course_lib import predict
from course_lib.collectives.operators import own_part
from course_lib.model.gpt import GPT, GPTConfig
from course_lib.parallel.hybrid import AXES, HybridParallel
from course_lib.parallel.mesh import Mesh
from course_lib.parallel.tensor_gpt import shardings
from course_lib.predict import Setup
from course_lib.train.accumulate import IGNORE
from course_lib.train.precision import CastPolicy
from course_lib.train.step import train_step
from tests.mutants.parallel import grid as wrong
from tests.parallel.zero_checks import OPTIMIZERS

TIED = GPTConfig(layers=4, width=16, heads=4, vocab_size=11, context=8)
UNTIED = dataclasses.replace(TIED, tied=False, positions="rotary", norm="rmsnorm", bias=False)
MICRO_BATCHES = 2
LIMIT = 1e4 * torch.finfo(torch.float64).eps
SIZES = [sizes for sizes in itertools.product((1, 2, 4), repeat=3) if math.prod(sizes) in (2, 4)]
"""(pipeline, data, tensor) on 2 and 4 ranks."""
ON_8 = [sizes for sizes in itertools.product((1, 2, 4, 8), repeat=3) if math.prod(sizes) == 8]


def batch_of(step: int, rows: int = 16, ragged: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
    """The same on every rank; if ragged, the first replica has fewer targets, and the end of one row has none."""
    tokens = torch.randint(0, 11, (rows, 9), generator=torch.Generator().manual_seed(step))
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    if ragged:
        targets[:3, 3:] = IGNORE
    return inputs, targets


def check_parity(make, sizes, config, optimizer, steps=3, zero=0, order=AXES, **how):
    """Loss, gradients and weights of some steps are those of `train_step` on the whole batch."""
    single = GPT(config, dtype=torch.float64)
    how |= {"micro_batches": MICRO_BATCHES, "dtype": torch.float64, "zero": zero}
    lengths = dict(zip(AXES, sizes))
    grid = make(config, Mesh({axis: lengths[axis] for axis in order}), **how)
    kind, settings = OPTIMIZERS[optimizer]
    ours, theirs = grid.optimizer(kind, **settings), kind(single.parameters(), **settings)
    for step in range(steps):
        wanted = train_step(single, theirs, batch_of(step))
        loss = grid.train_step(ours, batch_of(step))
        assert abs(loss - wanted) <= LIMIT, f"step {step}: the loss is {loss}, the oracle's {wanted}"
        oracle = dict(single.named_parameters())
        for stage in grid.stages.values():
            known = shardings(stage.module if zero == 3 else stage)
            for name, p in (stage.gathered_state_dict() if zero == 3 else dict(stage.named_parameters())).items():
                pairs = [("gradient", p.grad, oracle[name].grad)] if not zero else []
                for what, mine, whole in (*pairs, ("weight", p, oracle[name])):
                    cut = known.get(name)
                    assert mine is not None and whole is not None
                    part = own_part(whole.detach(), cut.dim, grid.groups["tensor"], cut.blocks) if cut else whole
                    off = (mine - part).abs().max()
                    assert off <= LIMIT, f"step {step}: the {what} of {name} is off by {off:.1e}"
    check_state(grid, ours, sizes[1] if zero else 1)


def check_state(grid, optimizer, parts):
    """The optimizer keeps its state of a part of this rank's parameters, but for one row of padding a bucket."""
    kept = sum(p.numel() for p in getattr(optimizer, "optimizer", optimizer).state)
    due = -(-sum(p.numel() for p in grid.parameters()) // parts)
    assert kept <= due + parts * len(list(grid.parameters())), f"keeps the state of {kept} elements, not {due}"


def check_clipping(make, sizes, zero, **how):
    """The norm is the whole gradient's, and a clipped step the oracle's: once with room, twice cut."""
    single = GPT(TIED, dtype=torch.float64)
    how |= {"micro_batches": MICRO_BATCHES, "dtype": torch.float64, "zero": zero}
    grid = make(TIED, Mesh(dict(zip(AXES, sizes))), **how)
    ours, theirs = grid.optimizer(torch.optim.SGD, lr=0.5), torch.optim.SGD(single.parameters(), lr=0.5)
    for step, max_norm in enumerate((1e9, 0.5, 0.01)):
        theirs.zero_grad()
        loss = single(*batch_of(step))
        loss.backward()
        due = torch.nn.utils.clip_grad_norm_(single.parameters(), max_norm)
        theirs.step()
        if step == 1:  # as a step of its own, whose norm nobody asks for
            found = grid.train_step(ours, batch_of(step), max_norm)
        else:
            ours.zero_grad()
            found = grid.forward_backward(batch_of(step))
            norm = grid.clip_grad_norm_(ours, max_norm)
            assert abs(norm - due) <= LIMIT, f"step {step}: the gradient's norm is {norm}, the oracle's {due}"
            ours.step()
        assert abs(found - loss) <= LIMIT, f"step {step}: the loss is {found}, the oracle's {loss}"


def every_clipping(sizes):
    for zero in (0, 1, 2, 3) if sizes[0] == 1 else (0, 1):
        check_clipping(HybridParallel, sizes, zero)
    if sizes[2] > 1:
        check_clipping(HybridParallel, sizes, 0, sequence_parallel=True)
    if sizes[0] == 2:  # zb-v: both ends of the tied table on one rank
        for schedule in ("interleaved", "zb-v"):
            check_clipping(HybridParallel, sizes, 1, schedule=schedule)


@pytest.mark.parametrize("sizes", [(1, 4, 1), (1, 2, 2), (2, 1, 2), (2, 2, 1)], ids=lambda s: "x".join(map(str, s)))
def test_the_norm_of_a_gradient_counts_each_element_once(sizes):
    ranks.run(every_clipping, sizes, world_size=4, diagnose=False)


def deep_enough(config, sizes):
    """Two layers where nothing is cut into stages: a first and a last; deeper models only send the same again."""
    return dataclasses.replace(config, layers=2) if sizes[0] == 1 else config


def every_parity(sizes):
    tied, untied = (deep_enough(config, sizes) for config in (TIED, UNTIED))
    check_parity(HybridParallel, sizes, tied, "sgd")
    check_parity(HybridParallel, sizes, untied, "adam", schedule="gpipe", bucket_bytes=1024)
    check_parity(HybridParallel, sizes, tied, "adam", zero=1, bucket_bytes=1024)
    if sizes[0] == 1:
        check_parity(HybridParallel, sizes, tied, "adam", zero=2, bucket_bytes=1024)
        check_parity(HybridParallel, sizes, untied, "sgd", zero=3, bucket_bytes=1024)
    if sizes[2] > 1:
        check_parity(HybridParallel, sizes, tied, "adam", sequence_parallel=True, schedule="zero-bubble", zero=1)
    if sizes[0] == 2:
        for schedule in ("interleaved", "zb-v"):
            check_parity(HybridParallel, sizes, tied, "sgd", schedule=schedule)


@pytest.mark.parametrize("sizes", SIZES, ids=lambda sizes: "x".join(map(str, sizes)))
def test_every_combination_equals_the_single_device(sizes):
    ranks.run(every_parity, sizes, world_size=math.prod(sizes), diagnose=False)


def a_parity_on_8(sizes):
    config = deep_enough(dataclasses.replace(TIED, layers=8, heads=8), sizes)
    check_parity(HybridParallel, sizes, config, "adam", steps=2, zero=1 if sizes[0] > 1 else 2)


@pytest.mark.parametrize("sizes", ON_8, ids=lambda sizes: "x".join(map(str, sizes)))
def test_so_do_eight_ranks(sizes):
    ranks.run(a_parity_on_8, sizes, world_size=8, diagnose=False)


def check_bytes(make, sizes, sequence_parallel):
    """A rank holds its parameters, and sends what the formulas say, axis by axis (fp32)."""
    mesh = Mesh(dict(zip(AXES, sizes)))
    grid = make(TIED, mesh, micro_batches=MICRO_BATCHES, sequence_parallel=sequence_parallel)
    pipeline, data, tensor = sizes
    setup = Setup(TIED, 16, micro_batch=16 // data // MICRO_BATCHES, pipeline=pipeline, data=data, tensor=tensor)
    setup, stage = setup.with_(sequence_parallel=sequence_parallel), mesh.coordinates(dist.get_rank())["pipeline"]
    held, due = sum(p.numel() for p in grid.parameters()), predict.rank_parameters(setup, stage)
    assert held == due, f"holds {held} parameters, not {due}"
    with measure.traffic() as sent:
        grid.forward_backward(batch_of(0, ragged=False))
    formula = predict.rank_traffic(setup, stage)
    names = {name for account in formula.values() for name in account.modelled_bytes}
    small = 8 * len(list(grid.parameters())) + 64  # the count of users behind each gradient, the loss, rounding
    for name in names | set(sent.modelled_bytes):
        due = sum(account.modelled_bytes.get(name, 0) for account in formula.values())
        came = sent.modelled_bytes.get(name, 0)
        assert abs(came - due) <= (small if name == "all_reduce" else 64), f"sends {came} bytes by {name}, not {due}"


@pytest.mark.parametrize(
    ("sizes", "sequence_parallel"),
    [((2, 1, 2), False), ((2, 1, 2), True), ((1, 2, 2), False), ((1, 2, 2), True), ((2, 2, 1), False)],
)
def test_bytes_held_and_sent_equal_the_formulas(sizes, sequence_parallel):
    ranks.run(check_bytes, HybridParallel, sizes, sequence_parallel, world_size=4, diagnose=False)


@pytest.mark.parametrize(("mutant", "says"), wrong.WRONG.items(), ids=[w.__name__ for w in wrong.WRONG])
def test_known_wrong_grids_are_rejected(mutant, says):
    with pytest.raises(RankFailure, match=f"AssertionError: {says}"):
        if says.startswith(("holds", "sends")):
            ranks.run(check_bytes, mutant, (1, 2, 2), False, world_size=4, timeout_s=30, diagnose=False)
        elif "norm" in says:
            ranks.run(check_clipping, mutant, (2, 1, 2), 0, world_size=4, timeout_s=30, diagnose=False)
        else:
            args = mutant, (1, 2, 2), TIED, "sgd", 1, int(mutant in wrong.OF_ZERO)
            ranks.run(check_parity, *args, world_size=4, timeout_s=30, diagnose=False)


def refused(sizes, config, rows, how):
    grid = HybridParallel(config, Mesh(dict(zip(AXES, sizes))), **how)
    inputs, targets = batch_of(0, rows)
    targets[1] = IGNORE  # with a row to a micro-batch, one of the first replica has no target
    grid.forward_backward((inputs, targets))


@pytest.mark.parametrize(
    ("sizes", "change", "rows", "how", "message"),
    [
        ((1, 1, 4), {}, 4, {}, "this mesh has 4 ranks, but 2 processes run"),
        ((1, 1, 2), {"heads": 1}, 4, {}, "1 heads do not split over 2 ranks"),
        ((2, 1, 1), {"dropout": 0.1}, 4, {}, "dropout=0.1: each stage would draw"),
        ((2, 1, 1), {}, 4, {"schedule": "pipedream"}, "schedule='pipedream': it must be one of naive, gpipe"),
        ((2, 1, 1), {}, 4, {"zero": 2}, "zero=2 over 2 pipeline stages .1f1b.: gradients would be reduced after"),
        ((1, 2, 1), {}, 4, {"zero": 2, "schedule": "zb-v"}, "zero=2 over 1 pipeline stages .zb-v.: gradients would be"),
        (
            (1, 2, 1),
            {},
            4,
            {"zero": 3, "schedule": "interleaved"},
            "zero=3 over 1 pipeline stages .interleaved.: gradients",
        ),
        ((1, 2, 1), {}, 4, {"zero": 4}, "zero=4: the stage of ZeRO is 0, 1, 2 or 3"),
        ((1, 2, 1), {}, 6, {"micro_batches": 2}, "6 sequences do not split into 4 equal pieces: 2 replicas times 2"),
        ((1, 2, 1), {}, 16, {"micro_batches": 8}, "ranks 0 and 1 .* one of the 16 micro-batches has no"),
        ((2, 1, 1), {}, 6, {"schedule": "interleaved", "micro_batches": 3}, "3 micro-batches on 2 ranks"),
        ((2, 1, 1), {"layers": 1}, 4, {"schedule": "interleaved", "micro_batches": 2}, "3 layers cannot be cut into 4"),
    ],
)
def test_what_cannot_be_is_refused(sizes, change, rows, how, message):
    with pytest.raises(RankFailure, match=message):
        ranks.run(refused, sizes, dataclasses.replace(TIED, **change), rows, how, world_size=2, timeout_s=30)


def test_a_grid_that_cannot_be_is_refused_before_there_are_ranks():
    with pytest.raises(ValueError, match="zero=2 over 2 pipeline stages .1f1b.: gradients would be reduced after"):
        HybridParallel(TIED, Mesh({"pipeline": 2, "data": 2, "tensor": 2}), micro_batches=2, zero=2)


def test_a_grid_has_three_axes():
    with pytest.raises(ValueError, match="a grid has the axes pipeline, data, tensor$"):
        HybridParallel(TIED, Mesh({"tensor": 2, "data": 1, "pipe": 1}))


def every_order(sizes):
    for order in itertools.permutations(AXES):
        check_parity(HybridParallel, sizes, TIED, "adam", steps=1, zero=1, order=order)


def test_the_order_of_the_axes_changes_nothing_that_is_learned():
    ranks.run(every_order, (2, 1, 2), world_size=4, diagnose=False)


def after_a_step_that_broke_off(zero):
    """The losses of two steps behind one whose second micro-batch has failed."""
    config = dataclasses.replace(TIED, layers=2)
    how = {"micro_batches": MICRO_BATCHES, "dtype": torch.float64, "zero": zero}
    grid = HybridParallel(config, Mesh({"pipeline": 1, "data": 2, "tensor": 1}), **how)
    optimizer, calls = grid.optimizer(torch.optim.SGD, lr=0.5), itertools.count()

    def fail(*_):
        if next(calls) == 1:
            raise KeyError("in the second micro-batch")

    hook = grid.stages["0"].register_forward_pre_hook(fail)
    with pytest.raises(KeyError):
        grid.train_step(optimizer, batch_of(0))
    hook.remove()
    return [float(grid.train_step(optimizer, batch_of(step))) for step in (1, 2)]


def test_a_step_that_broke_off_leaves_nothing_for_the_next():
    single = GPT(dataclasses.replace(TIED, layers=2), dtype=torch.float64)
    optimizer = torch.optim.SGD(single.parameters(), lr=0.5)
    due = [float(train_step(single, optimizer, batch_of(step))) for step in (1, 2)]
    for zero in (0, 1, 2, 3):
        for losses in ranks.run(after_a_step_that_broke_off, zero, world_size=2, diagnose=False):
            assert losses == pytest.approx(due, abs=1e-11), f"zero={zero}"


def in_bf16(policy, schedule, sequence_parallel):
    """The gradients' distance from those of the whole model under the same policy, over their length; masters fp32."""
    config = dataclasses.replace(TIED, layers=2)
    mesh = Mesh({"pipeline": 1, "data": 1, "tensor": dist.get_world_size()})
    grid = HybridParallel(config, mesh, schedule=schedule, sequence_parallel=sequence_parallel)
    single, batch = GPT(config), batch_of(0)
    with policy():
        single(*batch).backward()
        grid.forward_backward(batch)
    oracle, (stage,), off = dict(single.named_parameters()), grid.stages.values(), {}
    for name, p in stage.named_parameters():
        cut, whole = shardings(stage).get(name), oracle[name].grad
        assert whole is not None and p.grad is not None and p.grad.dtype == torch.float32
        part = own_part(whole, cut.dim, grid.groups["tensor"], cut.blocks) if cut else whole
        off[name] = float((p.grad - part).norm() / part.norm())
    return max(off.values())


@pytest.mark.parametrize(
    ("schedule", "sequence_parallel", "world_size"),
    [("1f1b", False, 2), ("1f1b", True, 2), ("zero-bubble", False, 1), ("zero-bubble", True, 2)],
)
@pytest.mark.parametrize("policy", [CastPolicy, lambda: torch.autocast("cpu", torch.bfloat16)])
def test_mixed_precision_passes_through_cut_layers_and_deferred_gradients(
    policy, schedule, sequence_parallel, world_size
):
    """A few roundings of bf16 apart, since ranks' terms are rounded before they are added."""
    off = ranks.run(in_bf16, policy, schedule, sequence_parallel, world_size=world_size, diagnose=False)
    assert max(off) < 8 * torch.finfo(torch.bfloat16).eps
