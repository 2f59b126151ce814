"""Every wrapper on real ranks takes the steps of one process: in loss, norm, gradients and weights.

A tied GPT; a module with a frozen, an unused and a rarely used layer and branches that ranks disagree on; one with
every odd unit; a GPT whose batch has fewer targets in one place than in another.
"""

import dataclasses
import functools
import itertools
import math
from typing import Any

import pytest
from torch.nn.parallel import DistributedDataParallel

from course_kit import ranks
from course_lib.collectives import algorithms
from course_lib.model.gpt import GPTConfig
from course_lib.parallel import BucketedDataParallel, NaiveDataParallel
from course_lib.parallel.context import ContextParallelGPT
from course_lib.parallel.hybrid import AXES, HybridParallel
from course_lib.parallel.mesh import Mesh, process_groups
from course_lib.parallel.tensor_gpt import ParallelGPT
from course_lib.parallel.whole_tensors import WholeTensorOptimizer
from course_lib.parallel.zero import ZeroOptimizer
from course_lib.parallel.zero3 import Zero3
from tests.parallel.parity import OPTIMIZERS, SCHEDULES, parity
from tests.parallel.problems import Text, gpt, odd, units
from tests.parallel.sides import Cut, Grid, Replicas, Sharded, Zero

Cases = list[tuple[Any, dict[str, Any]]]
"""(side, wrapper, problem, optimizer), and settings of `parity`."""
nightly = pytest.mark.nightly


def ring(tensor, group):
    algorithms.all_reduce(tensor, algorithm="ring", group=group)


def whole(groups, kind, stage=1, bucket_bytes=0, **settings):
    """Deals out whole tensors, with the arguments of `ZeroOptimizer`."""
    return WholeTensorOptimizer(groups, kind, **settings)


NODES = Mesh({"node": 2, "shard": 2})


def nodes(wrap, module, **settings):
    """Sharded inside each of two nodes of two ranks, replicated across. All 4 ranks must call."""
    groups = process_groups(NODES)
    return wrap(module, groups["shard"], replicas=groups["node"], **settings)


def data(wrap: Any, problems: Any = (gpt, odd)) -> Cases:
    cases: Cases = [((Replicas, wrap, each, by), {"steps": 6}) for each in problems for by in OPTIMIZERS]
    return cases + [((Replicas, wrap, each, "sgd"), {"micro_batches": 2}) for each in problems]


def zero(stage: int) -> Cases:
    """Torch sums the odd one's squares in two dtypes, so that one is not clipped."""
    cases: Cases = [((Zero, ZeroOptimizer, each, by), {"steps": 5}) for each in (gpt, odd) for by in OPTIMIZERS]
    cases += [((Zero, ZeroOptimizer, each, "adam"), {"micro_batches": 2}) for each in (gpt, odd)]
    cases += [((Zero, ZeroOptimizer, gpt, "sgd"), {"max_norms": (0.05,) * 3})]
    return [(args, how | {"stage": stage}) for args, how in cases]


small = functools.partial(BucketedDataParallel, bucket_bytes=256)
TINY = GPTConfig(layers=2, width=16, heads=4, vocab_size=11, context=8)
PADDED = Text(TINY, 2, ((0, 3), (1, 6)))
"""The last of 4 parts of the sequence has no targets at all."""
LONG = Text(dataclasses.replace(TINY, heads=2, context=16), 2, ((0, 14), (1, 14)))
"""Of 4 ranks, one has fewer targets."""
OTHER: dict[str, Any] = {"tied": False, "positions": "rotary", "norm": "rmsnorm", "bias": False}


def but(problem: Text, **change: Any) -> Text:
    """With another GPT."""
    return dataclasses.replace(problem, config=dataclasses.replace(problem.config, **change))


def tensor(sequence_parallel: bool) -> Cases:
    """What dropout drops included."""
    wrap = functools.partial(ParallelGPT, group=None, sequence_parallel=sequence_parallel)
    models = {PADDED: "sgd", but(PADDED, dropout=0.2): "adam", but(PADDED, attention="fused", **OTHER): "adam"}
    return [((Cut, wrap, each, by), {"steps": 4}) for each, by in models.items()]


def sharded() -> Cases:
    cases: Cases = [((Sharded, Zero3, each, "sgd"), {}) for each in (gpt, odd, units)]
    cases += [((Sharded, Zero3, each, "adam"), {"micro_batches": 2, "prefetch": False}) for each in (gpt, odd, units)]
    return cases + [((Sharded, Zero3, *each), {"max_norms": (0.05,) * 3}) for each in ((gpt, "adam"), (units, "sgd"))]


plain = functools.partial(ContextParallelGPT, order="plain")
WRAPPERS: dict[str, Cases] = {
    "naive": data(NaiveDataParallel),
    "small buckets": [*data(small), ((Replicas, small, odd, "adam"), {"steps": 6, "set_to_none": False})],
    "one bucket": data(BucketedDataParallel),
    "no overlap": data(functools.partial(small, overlap=False)),
    "PyTorch's": data(DistributedDataParallel, [gpt]),
    "ZeRO-1": zero(1),
    "ZeRO-2": zero(2),
    "whole tensors": [
        *(((Zero, whole, gpt, by), {}) for by in ("muon", "adafactor")),
        *(((Zero, whole, odd, by), {"micro_batches": 2}) for by in ("sgd", "adam", "muon")),
    ],
    "ZeRO-3": sharded(),
    "tensor": tensor(False),
    "sequence": tensor(True),
    "context": [
        ((Cut, ContextParallelGPT, LONG, "sgd"), {}),
        ((Cut, plain, LONG, "adam"), {}),
        ((Cut, ContextParallelGPT, but(LONG, **OTHER), "adam"), {}),
    ],
}
ON_3 = [name for name in WRAPPERS if name not in ("tensor", "sequence", "context")]
PRODUCT = [pytest.param(name, size, marks=() if size in (2, 4) else nightly)
    for size in (2, 4, 1, 3) for name in (ON_3 if size == 3 else WRAPPERS)]  # fmt: skip


def every(cases: Cases) -> None:
    for args, how in cases:
        parity(*args, **how)


@pytest.mark.parametrize(("name", "world_size"), PRODUCT)
def test_every_step_is_one_process_step(name: str, world_size: int) -> None:
    ranks.run(every, WRAPPERS[name], world_size=world_size, diagnose=False)


@pytest.mark.parametrize(("name", "world_size"), [("small buckets", 4), ("tensor", 2), ("context", 2)])
def test_so_it_is_under_diagnosis(name: str, world_size: int) -> None:
    ranks.run(every, WRAPPERS[name][:3], world_size=world_size)


def test_our_own_ring_carries_the_buckets() -> None:
    ranks.run(every, data(functools.partial(small, all_reduce=ring)), world_size=2, diagnose=False)


@pytest.mark.parametrize("by", OPTIMIZERS)
def test_shards_inside_a_node_and_replicas_across(by: str) -> None:
    """Also where ranks take different branches."""
    cases: Cases = [
        ((Sharded, functools.partial(nodes, Zero3), each, by), {"micro_batches": 2}) for each in (gpt, units)
    ]
    ranks.run(every, cases, world_size=4, diagnose=False)


@pytest.mark.parametrize("schedule", ["by hand", *SCHEDULES])
def test_a_schedule_changes_the_rate_at_any_time(schedule: str) -> None:
    how = {"steps": 5, "schedule": schedule}
    cases: Cases = [((Zero, ZeroOptimizer, gpt, "sgd"), how | {"stage": stage}) for stage in (1, 2)]
    ranks.run(every, cases, world_size=2, diagnose=False)


GRID = Text(dataclasses.replace(TINY, layers=4), 16, ((0, 3), (1, 3), (2, 3)))
"""The first replica has fewer targets, and the end of one row has none."""
SIZES = [sizes for sizes in itertools.product((1, 2, 4), repeat=3) if math.prod(sizes) in (2, 4)]
"""(pipeline, data, tensor) on 2 and 4 ranks."""
ON_8 = [sizes for sizes in itertools.product((1, 2, 4, 8), repeat=3) if math.prod(sizes) == 8]
SOME = [(2, 1, 1), (1, 2, 2), (2, 1, 2)]
"""Every axis with every other kind of work: what waits is the product."""


def grid(sizes: Any, optimizer: str, problem: Text = GRID, **how: Any) -> tuple[Any, dict[str, Any]]:
    """Two layers where nothing is cut into stages: a first and a last; deeper models only send the same again."""
    problem = but(problem, layers=2) if sizes[0] == 1 else problem
    return (Grid, HybridParallel, problem, optimizer), {"sizes": sizes} | how


def grids(sizes: Any) -> Cases:
    untied = but(GRID, **OTHER)
    cases = [
        grid(sizes, "sgd"),
        grid(sizes, "adam", untied, schedule="gpipe", bucket_bytes=1024),
        grid(sizes, "adam", zero=1, bucket_bytes=1024),
    ]
    if sizes[0] == 1:
        cases += [grid(sizes, "adam", zero=2, bucket_bytes=1024), grid(sizes, "sgd", untied, zero=3, bucket_bytes=1024)]
    if sizes[0] == 2:
        cases += [grid(sizes, "sgd", schedule=schedule) for schedule in ("interleaved", "zb-v")]
    if sizes[2] > 1:
        cases.append(grid(sizes, "adam", sequence_parallel=True, schedule="zero-bubble", zero=1))
    return cases


def label(sizes: tuple[int, ...]) -> str:
    return "x".join(map(str, sizes))


def marked(every_size: list[Any], some: list[Any]) -> list[Any]:
    """What is not among some waits."""
    return [pytest.param(s, id=label(s), marks=() if s in some else nightly) for s in every_size]


@pytest.mark.parametrize("sizes", marked(SIZES, SOME))
def test_every_grid_takes_the_steps_of_one_process(sizes: tuple[int, ...]) -> None:
    ranks.run(every, grids(sizes), world_size=math.prod(sizes), diagnose=False)


@pytest.mark.parametrize("sizes", marked(ON_8, []))
def test_so_do_eight_ranks(sizes: tuple[int, ...]) -> None:
    problem, zero = but(GRID, layers=8, heads=8), 1 if sizes[0] > 1 else 2
    ranks.run(every, [grid(sizes, "adam", problem, zero=zero, steps=2)], world_size=8, diagnose=False)


def test_the_order_of_the_axes_changes_nothing_that_is_learned() -> None:
    cases = [grid((2, 1, 2), "adam", zero=1, steps=1, order=order) for order in itertools.permutations(AXES)]
    ranks.run(every, cases, world_size=4, diagnose=False)


@pytest.mark.parametrize("sizes", marked([(2, 2, 1), (1, 2, 2), (1, 4, 1), (2, 1, 2)], [(2, 2, 1), (1, 2, 2)]))
def test_the_norm_of_a_gradient_counts_each_element_once(sizes: tuple[int, ...]) -> None:
    """A clipped step is the oracle's: once with room, twice cut."""
    changes: list[dict[str, Any]] = [{"zero": zero} for zero in ((0, 1, 2, 3) if sizes[0] == 1 else (0, 1))]
    if sizes[2] > 1:
        changes.append({"sequence_parallel": True})
    if sizes[0] == 2:  # zb-v: both ends of the tied table on one rank
        changes += [{"zero": 1, "schedule": schedule} for schedule in ("interleaved", "zb-v")]
    how = {"sizes": sizes, "max_norms": (1e9, 0.5, 0.01)}
    cases: Cases = [((Grid, HybridParallel, GRID, "fast"), how | change) for change in changes]
    ranks.run(every, cases, world_size=4, diagnose=False)
