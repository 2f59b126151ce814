"""Collectives on real ranks: right values, and exactly the bytes and messages that the formulas say.

All cases of one world size run inside one call on the ranks; what they return is checked here.
"""

import itertools
from typing import Any

import pytest
import torch
import torch.distributed as dist

from course_kit import measure, ranks
from course_lib import predict
from course_lib.collectives import algorithms as collectives
from course_lib.collectives import schedules
from course_lib.predict.traffic import OPERATIONS
from tests.mutants.parallel import collectives as mutants
from tests.parallel.judging import accepted, agree, on_ranks, refused

ALGORITHMS = tuple(schedules.ALL_REDUCE)
nightly = pytest.mark.nightly
SIZES = [2, 4, *(pytest.param(n, marks=nightly) for n in (1, 3))]
SHAPES = [(0,), (1,), (), (3,), (17,), (5, 3), (2, 0), (840,)]
DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8]


def summand(shape, dtype, rank):
    values = torch.randn(shape, generator=torch.Generator().manual_seed(rank + 1), dtype=torch.float64)
    return values.to(dtype) if dtype.is_floating_point else (values.abs() * 9).to(dtype)


def tolerance(dtype, world_size):
    """A sum of p terms makes p - 1 roundings of at most eps/2 of a partial sum (|terms| < 4), and one more for /p."""
    return world_size * torch.finfo(dtype).eps / 2 * 4 * world_size if dtype.is_floating_point else 0


def expected(shape, dtype, op, world_size):
    terms = torch.stack([summand(shape, dtype, rank) for rank in range(world_size)])
    wide = terms.double() if dtype.is_floating_point else terms
    return {"sum": lambda: wide.sum(0), "mean": lambda: wide.mean(0), "max": lambda: wide.amax(0)}[op]()


def every_all_reduce():
    rank, results = dist.get_rank(), {}
    for algorithm in ALGORITHMS:
        for dtype in DTYPES if algorithm == "ring" else (torch.float64, torch.bfloat16, torch.int64):
            for op in ("sum", "mean", "max") if dtype.is_floating_point else ("sum", "max"):
                for shape in SHAPES:
                    x = summand(shape, dtype, rank)
                    assert collectives.all_reduce(x, op, algorithm) is x
                    results[algorithm, dtype, op, shape] = x
    return results


@pytest.mark.parametrize("world_size", SIZES)
def test_all_reduce_of_any_size_dtype_and_op(world_size):
    results = ranks.run(every_all_reduce, world_size=world_size, diagnose=False)
    for case, first in results[0].items():
        _, dtype, op, shape = case
        error = (first.double() - expected(shape, dtype, op, world_size).double()).abs()
        assert error.numel() == 0 or error.max() <= tolerance(dtype, world_size), case
        assert all(torch.equal(other[case], first) for other in results[1:]), f"{case}: the ranks differ in bits"


def every_other_collective():
    rank, world_size = dist.get_rank(), dist.get_world_size()
    out = {}
    for shape in [(0,), (1,), (7,), (4, 3), (12, 2), (3, 0)]:
        for dtype in (torch.float64, torch.bfloat16):
            x = summand(shape, dtype, rank)
            for root in range(world_size):
                out["broadcast", shape, dtype, root] = collectives.broadcast(x.clone(), root)
                out["reduce", shape, dtype, root] = collectives.reduce(x.clone(), root)
            out["reduce_scatter", shape, dtype] = part = collectives.reduce_scatter(x, "mean")
            out["regathered", shape, dtype] = collectives.all_gather(part, rows=shape[0])
            out["all_gather", shape, dtype] = collectives.all_gather(x)
            out["all_to_all", shape, dtype] = collectives.all_to_all(x)
            assert torch.equal(x, summand(shape, dtype, rank)), "an input was changed"
    return out


@pytest.mark.parametrize("world_size", SIZES)
def test_the_other_collectives(world_size):
    for rank, results in enumerate(ranks.run(every_other_collective, world_size=world_size)):
        for (name, shape, dtype, *root), got in results.items():
            inputs = [summand(shape, dtype, r) for r in range(world_size)]
            mean = expected(shape, dtype, "mean", world_size).to(dtype)
            total = expected(shape, dtype, "sum", world_size).to(dtype)
            want = {
                "broadcast": lambda i=inputs, r=root: i[r[0]],
                "reduce": lambda i=inputs, r=root, t=total, k=rank: t if k == r[0] else i[k],
                "reduce_scatter": lambda m=mean, k=rank: m.tensor_split(world_size)[k],
                "regathered": lambda m=mean: m,
                "all_gather": lambda i=inputs: torch.cat(i),
                "all_to_all": lambda i=inputs, k=rank: torch.cat([x.tensor_split(world_size)[k] for x in i]),
            }[name]()
            limit = tolerance(dtype, world_size) if "reduce" in name or name == "regathered" else 0
            torch.testing.assert_close(got, want, rtol=0, atol=limit)


def counted(n_elements, dtype):
    """(name, algorithm) → (bytes, messages) that this rank sent; plus what the kernel saw for the ring."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    x = summand((n_elements,), dtype, rank)
    calls = {("all_reduce", a): lambda a=a: collectives.all_reduce(x.clone(), algorithm=a) for a in ALGORITHMS}
    calls |= {
        ("broadcast", ""): lambda: collectives.broadcast(x.clone()),
        ("reduce", ""): lambda: collectives.reduce(x),
    }
    calls |= {("reduce_scatter", ""): lambda: collectives.reduce_scatter(x)}
    calls |= {("all_to_all", ""): lambda: collectives.all_to_all(x)}
    part = x.tensor_split(world_size)[rank]
    calls |= {("all_gather", ""): lambda: collectives.all_gather(part, rows=n_elements)}
    counts = {}
    for name, call in calls.items():
        with measure.traffic() as sent:
            call()
        assert set(sent.modelled_bytes) <= {"send"}, "only point-to-point messages are allowed"
        counts[name] = (int(sent.total_bytes), sent.total_messages)
    return counts


def check_counts(counts, n_elements, world_size, rank, itemsize):
    n_bytes = n_elements * itemsize
    parts = [size * itemsize for size in collectives.split_sizes(n_elements, world_size)]
    share, right = parts[rank], parts[(rank + 1) % world_size]
    per_round = world_size - 1
    if n_elements % world_size == 0:
        assert n_bytes - share == n_bytes - right == predict.reduce_scatter(n_bytes, world_size).bytes
        assert 2 * n_bytes - share - right == predict.all_reduce(n_bytes, world_size, "ring").bytes
    for algorithm in schedules.WHOLE:
        bytes_, messages = counts["all_reduce", algorithm]
        formula = predict.all_reduce(n_bytes, world_size, algorithm, rank)
        assert (bytes_, messages) == (formula.bytes, formula.messages)
    alone = world_size == 1
    assert counts["all_reduce", "ring"] == (0 if alone else 2 * n_bytes - share - right, 2 * per_round)
    for name in ("broadcast", "reduce"):
        formula = OPERATIONS[name](n_bytes, world_size, rank)
        assert counts[name, ""] == (formula.bytes, formula.messages)
    for name in ("reduce_scatter", "all_gather", "all_to_all"):
        formula = OPERATIONS[name](n_bytes, world_size)
        assert counts[name, ""][1] == formula.messages
        assert n_elements % world_size or counts[name, ""][0] == formula.bytes
    assert counts["reduce_scatter", ""] == (n_bytes - share, per_round)
    assert counts["all_gather", ""] == (n_bytes - right, per_round)
    assert counts["all_to_all", ""] == (n_bytes - share, per_round)


@pytest.mark.parametrize("world_size", [*SIZES, *(pytest.param(n, marks=nightly) for n in range(5, 9))])
def test_bytes_and_messages_are_exactly_as_documented(world_size):
    for n_elements, dtype in ((840, torch.float32), (17, torch.bfloat16)):
        results = ranks.run(counted, n_elements, dtype, world_size=world_size, diagnose=False)
        for rank, counts in enumerate(results):
            check_counts(counts, n_elements, world_size, rank, dtype.itemsize)


@on_ranks(4)
def test_a_sub_group_counts_its_own_ranks():
    rank = dist.get_rank()
    group: Any = dist.new_group([3, 1, 0])  # torch sorts them: 0, 1, 3
    if rank == 2:
        with pytest.raises(ValueError, match="rank 2 is not in this group"):
            collectives.all_reduce(torch.ones(2), group=group)
        return
    x = torch.full((5,), float(rank))
    for algorithm in ALGORITHMS:
        assert collectives.all_reduce(x.clone(), algorithm=algorithm, group=group).tolist() == [4] * 5
    assert collectives.all_gather(x[:1], group=group).tolist() == [0, 1, 3]
    assert collectives.broadcast(x.clone(), root=2, group=group).tolist() == [3] * 5


@on_ranks(2)
def test_input_that_is_not_contiguous():
    rank, values = dist.get_rank(), torch.arange(24.0).view(4, 6)
    base, neighbours, transposed = (values + rank for _ in range(3))
    collectives.all_reduce(base[:, ::2])
    assert torch.equal(base[:, ::2], 2 * values[:, ::2] + 1)
    assert torch.equal(base[:, 1::2], values[:, 1::2] + rank), "elements between the columns were touched"
    collectives.all_reduce(neighbours[1])
    assert torch.equal(neighbours[1], 2 * values[1] + 1)
    assert torch.equal(neighbours[[0, 2, 3]], values[[0, 2, 3]] + rank)
    assert torch.equal(collectives.all_reduce(transposed.t(), "max"), values.t() + 1)
    gathered = collectives.all_gather(torch.ones(2, 6)[:, 1:3] * rank)
    assert torch.equal(gathered, torch.cat([torch.zeros(2, 2), torch.ones(2, 2)]))
    rows = torch.arange(12.0).view(3, 4).t()
    assert torch.equal(collectives.reduce_scatter(rows), 2 * rows.tensor_split(2)[rank])
    parameter = torch.nn.Parameter(torch.full((3,), float(rank)))
    assert collectives.broadcast(parameter, root=1).tolist() == [1, 1, 1]


x = torch.ones(4)
MISTAKES = [
    (lambda: collectives.all_reduce(x, algorithm="star"), "algorithm='star': it must be one of direct, manager, ring"),
    (lambda: collectives.all_reduce(x, "product"), "op='product': it must be one of sum, mean, max"),
    (lambda: collectives.all_reduce(x.long(), "mean"), "op='mean' of torch.int64 would be cut off"),
    (lambda: collectives.all_reduce(x.to(torch.complex64), "max"), "op='max' of complex numbers"),
    (lambda: collectives.broadcast(x, root=2), "root=2: the group has 2 ranks"),
    (lambda: collectives.reduce_scatter(torch.ones(())), "no rows"),
    (lambda: collectives.all_gather(x, rows=10), "brings 4 rows, but its part of rows=10 is 5"),
]


def test_mistakes_are_refused_before_anything_is_sent():
    assert refused(2, MISTAKES) == []


@on_ranks(2)
def test_nan_and_infinity_travel():
    x = torch.tensor([torch.inf, torch.nan, 1.0] if dist.get_rank() else [1.0, 2.0, -torch.inf])
    due = {"sum": [torch.inf, torch.nan, -torch.inf], "max": [torch.inf, torch.nan, 1.0]}
    for algorithm, (op, want) in itertools.product(ALGORITHMS, due.items()):
        got = collectives.all_reduce(x.clone(), op, algorithm)
        torch.testing.assert_close(got, torch.tensor(want), equal_nan=True)


@on_ranks(5, nightly=(2, 8))
def test_two_trees_send_no_more_than_twice_the_tensor_from_any_rank():
    rank, world_size = dist.get_rank(), dist.get_world_size()
    tensor = torch.arange(840.0) + rank
    with measure.traffic() as sent:
        collectives.execute(schedules.all_reduce_double_tree(world_size, rank), tensor.tensor_split(2))
    assert torch.equal(tensor, world_size * torch.arange(840.0) + sum(range(world_size)))
    assert sent.total_bytes <= 2 * 4 * 840 and sent.total_messages <= 4
    everybodys = torch.tensor(int(sent.total_bytes))
    dist.all_reduce(everybodys)
    assert everybodys == 2 * (world_size - 1) * 4 * 840, "as much as a ring"


def check_all_reduce(all_reduce):
    """Sum and mean are right on every rank, in the ring's bytes and messages. All ranks must call."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    for n_elements in (0, 1, 5, 840):
        terms = [torch.arange(n_elements, dtype=torch.float64) + 10 * r for r in range(world_size)]
        for op, want in (("sum", torch.stack(terms).sum(0)), ("mean", torch.stack(terms).mean(0))):
            x = terms[rank].clone()
            with measure.traffic() as sent:
                all_reduce(x, op)
            agree(torch.allclose(x, want, rtol=1e-12, atol=0), f"another {op} of {n_elements}")
            parts = collectives.split_sizes(n_elements, world_size)
            ring = 8 * (2 * n_elements - parts[rank] - parts[(rank + 1) % world_size])
            agree(int(sent.total_bytes) == ring, f"sends {sent.total_bytes} bytes, where {ring} are due")
            messages = 2 * (world_size - 1)
            agree(n_elements < world_size or sent.total_messages == messages, f"sends {sent.total_messages} messages")


def right(x, op):
    collectives.all_reduce(x, op, "ring")


def test_false_rings_are_refused():
    """All but the real one."""
    cases = {wrong: ("another (sum|mean)|sends", check_all_reduce, wrong, {}) for wrong in mutants.WRONG}
    assert accepted(4, cases | {right: ("sends", check_all_reduce, right, {})}) == {str(right): "nothing"}
