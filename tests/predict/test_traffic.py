"""The formulas against messages that are really passed: each algorithm runs on arrays, and every send is counted."""

from collections.abc import Callable

import numpy as np
import pytest

from course_kit.units import Seconds
from course_lib import predict
from course_lib.collectives import schedules
from course_lib.collectives.schedules import Schedule
from course_lib.predict.traffic import ALL_REDUCE_ALGORITHMS, OPERATIONS, Link, tree_children


class Network:
    """p ranks in one process; `send` copies an array from one to another and notes what that cost the sender."""

    def __init__(self, p: int, n: int) -> None:
        self.p = p
        self.held = [np.random.default_rng(rank).integers(0, 100, n).astype(np.int64) for rank in range(p)]
        self.total = sum(self.held)
        self.bytes, self.messages = [0] * p, [0] * p

    def send(self, source: int, array: np.ndarray) -> np.ndarray:
        self.bytes[source] += array.nbytes
        self.messages[source] += 1
        return array.copy()


def ring(net: Network) -> None:
    parts = [np.array_split(held, net.p) for held in net.held]
    for phase in (0, 1):
        for step in range(net.p - 1):
            places = [(rank - step + phase) % net.p for rank in range(net.p)]
            sent = [net.send(rank, parts[rank][place]) for rank, place in enumerate(places)]
            for rank, place in enumerate(places):
                right, old = parts[(rank + 1) % net.p], parts[(rank + 1) % net.p][place]
                right[place] = sent[rank] + (0 if phase else old)
    net.held = [np.concatenate(p) for p in parts]


def direct(net: Network) -> None:
    before = [held.copy() for held in net.held]
    for source in range(net.p):
        for target in range(net.p):
            if source != target:
                net.held[target] = net.held[target] + net.send(source, before[source])


def manager(net: Network) -> None:
    for worker in range(1, net.p):
        net.held[0] = net.held[0] + net.send(worker, net.held[worker])
    for worker in range(1, net.p):
        net.held[worker] = net.send(0, net.held[0])


def tree(net: Network) -> None:
    edges = [(rank & (rank - 1), rank) for rank in range(1, net.p)]
    for parent, child in reversed(edges):  # a child's own children have larger numbers: they were added before
        net.held[parent] = net.held[parent] + net.send(child, net.held[child])
    for parent, child in edges:
        net.held[child] = net.send(parent, net.held[parent])


def recursive_doubling(net: Network) -> None:
    distance = 1
    while distance < net.p:
        sent = [net.send(rank, net.held[rank]) for rank in range(net.p)]
        net.held = [net.held[rank] + sent[rank ^ distance] for rank in range(net.p)]
        distance *= 2


def halving_doubling(net: Network) -> None:
    ranges = [(0, len(net.held[0]))] * net.p
    history = []
    distance = net.p // 2
    while distance:
        history.append((distance, list(ranges)))
        halves = []
        for rank, (low, high) in enumerate(ranges):
            middle = (low + high) // 2
            halves.append(((low, middle), (middle, high)) if not rank & distance else ((middle, high), (low, middle)))
        sent = [net.send(rank, net.held[rank][slice(*give)]) for rank, (_, give) in enumerate(halves)]
        for rank, (keep, _) in enumerate(halves):
            net.held[rank][slice(*keep)] += sent[rank ^ distance]
        ranges = [keep for keep, _ in halves]
        distance //= 2
    for distance, before in reversed(history):
        sent = [net.send(rank, net.held[rank][slice(*ranges[rank])]) for rank in range(net.p)]
        for rank in range(net.p):
            net.held[rank][slice(*ranges[rank ^ distance])] = sent[rank ^ distance]
        ranges = before


RUN = {run.__name__: run for run in (ring, direct, manager, tree, recursive_doubling, halving_doubling)}
CASES = [
    (algorithm, p)
    for algorithm in ALL_REDUCE_ALGORITHMS
    for p in (1, 2, 3, 4, 5, 6, 7, 8, 16)
    if algorithm not in ("recursive_doubling", "halving_doubling") or not p & (p - 1)
]


@pytest.mark.parametrize(("algorithm", "p"), CASES)
def test_bytes_and_messages_of_every_rank(algorithm: str, p: int) -> None:
    net = Network(p, n=5 * 16 * 3 * 7)
    n_bytes = net.held[0].nbytes
    RUN[algorithm](net)
    assert all(np.array_equal(held, net.total) for held in net.held)
    for rank in range(p):
        formula = predict.all_reduce(n_bytes, p, algorithm, rank)
        assert (formula.bytes, formula.messages) == (net.bytes[rank], net.messages[rank])


@pytest.mark.parametrize("p", [2, 3, 5, 8])
def test_a_ring_with_uneven_parts_has_the_formula_as_its_mean(p: int) -> None:
    net = Network(p, n=1001)
    n_bytes = net.held[0].nbytes
    ring(net)
    assert np.mean(net.bytes) == pytest.approx(predict.all_reduce(n_bytes, p).bytes, abs=0.5)
    assert max(net.bytes) - min(net.bytes) <= 2 * 8


@pytest.mark.parametrize("p", range(1, 20))
def test_tree_reaches_every_rank_once(p: int) -> None:
    assert sum(tree_children(p, rank) for rank in range(p)) == p - 1
    assert sum(predict.broadcast(10, p, rank).bytes for rank in range(p)) == 10 * (p - 1)


def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather() -> None:
    for p in (1, 2, 4, 8):
        halves = predict.reduce_scatter(800, p).bytes + predict.all_gather(800, p).bytes
        assert predict.all_reduce(800, p).bytes == halves
    assert predict.all_to_all(800, 4).bytes == 600


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"world_size": 4, "algorithm": "star"}, "one of ring, direct, manager"),
        ({"world_size": 6, "algorithm": "halving_doubling"}, "power of two; 6 is not"),
        ({"world_size": 6, "algorithm": "recursive_doubling"}, "power of two; 6 is not"),
    ],
)
def test_an_all_reduce_refuses(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        predict.all_reduce(100, **arguments)


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_operation_refuses(name: str) -> None:
    with pytest.raises(ValueError, match="world_size=0: there must be at least one rank"):
        OPERATIONS[name](100, 0)
    with pytest.raises(ValueError, match="n_bytes=-1: must not be negative"):
        OPERATIONS[name](-1, 4)
    if name in ("all_reduce", "broadcast", "reduce"):
        with pytest.raises(ValueError, match="rank=4 does not exist among 4"):
            OPERATIONS[name](100, 4, rank=4)


FAST = Link(Seconds(1e-6), 1e-11)


@pytest.mark.parametrize(
    ("algorithm", "n_bytes", "seconds"),
    [
        ("ring", 10**6, 31.5e-6),
        ("recursive_doubling", 10**6, 33e-6),
        ("halving_doubling", 10**6, 23.5e-6),
        ("direct", 10**6, 77e-6),
        ("manager", 10**6, 154e-6),
        ("tree", 10**6, 66e-6),
        ("ring", 10**9, 17.514e-3),
        ("manager", 10**9, 140.014e-3),
    ],
)
def test_seconds_of_eight_ranks_worked_out_by_hand(algorithm: str, n_bytes: int, seconds: float) -> None:
    """α = 1 µs, 100 GB/s; Thakur, Rabenseifner and Gropp's formulas with γ = 0."""
    assert predict.all_reduce(n_bytes, 8, algorithm).seconds(FAST) == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize("p", range(1, 18))
@pytest.mark.parametrize("algorithm", ["ring", "manager", "tree"])
def test_the_path_is_as_long_as_the_schedule_says(algorithm: str, p: int) -> None:
    """Rounds follow each other; within one, a rank's sends share its link, and so do its receives."""
    one_after_the_other = busiest_rounds(schedules.ALL_REDUCE[algorithm], p)
    path = predict.all_reduce(p * 1000, p, algorithm).path
    assert path == (one_after_the_other, one_after_the_other * (1000 if algorithm == "ring" else p * 1000))


def busiest_rounds(schedule: Callable[[int, int], Schedule], p: int) -> int:
    """Messages on the busiest link, round after round."""
    plan = [schedule(p, rank) for rank in range(p)]
    return sum(max(max(len(r.sends), len(r.receives)) for r in rounds) for rounds in zip(*plan))


@pytest.mark.parametrize("p", range(1, 18))
@pytest.mark.parametrize("name", [name for name in OPERATIONS if name != "all_reduce"])
def test_the_rest_of_the_family_is_as_long_as_its_schedule(name: str, p: int) -> None:
    schedule = getattr(schedules, name)
    whole = name in ("broadcast", "reduce")
    for rank in range(p):
        formula = OPERATIONS[name](p * 1000, p, **({"rank": rank} if whole else {}))
        sends = [sent for each in schedule(p, rank) for sent in each.sends]
        assert formula.messages == len(sends)
        assert formula.bytes == len(sends) * (p * 1000 if whole else 1000)
        rounds = formula.path.messages
        idle = 1 if name == "all_to_all" and p > 2 else 0  # in each round, some rank is its own partner
        assert rounds == busiest_rounds(schedule, p) - idle
        assert formula.path.n_bytes == rounds * (p * 1000 if whole else 1000)
        assert formula.seconds(FAST) == pytest.approx(rounds * 1e-6 + formula.path.n_bytes * 1e-11)


def test_a_fit_finds_the_link_that_made_the_times() -> None:
    link = Link(Seconds(40e-6), 0.5e-9)
    paths = [predict.all_reduce(n, 4, name).path for n in (4, 4_000, 4_000_000) for name in ("ring", "tree", "manager")]
    found = predict.fit_link((path.messages, path.n_bytes, link.seconds(path)) for path in paths)
    assert found.alpha == pytest.approx(link.alpha) and found.seconds_per_byte == pytest.approx(0.5e-9)
    assert found.bytes_per_s == pytest.approx(2e9)
    assert found.balance == 80_000


def test_a_link_has_no_negative_price() -> None:
    with pytest.raises(ValueError, match="alpha=-1 s, seconds_per_byte=0.0: must not be negative"):
        Link(Seconds(-1), 0.0)
    with pytest.raises(ValueError, match="n_bytes=-8"):
        FAST.seconds((1, -8))


def test_a_fit_weighs_small_times_as_much_as_large_ones() -> None:
    """10 ms too much on 1 s is noise; it must not become latency."""
    link = predict.fit_link([(1, 1, 1e-4), (1, 10, 1e-4), (1, 10**9, 1.01)])
    assert link.alpha == pytest.approx(1e-4, rel=0.01)


def test_a_fit_gives_no_negative_price() -> None:
    assert predict.fit_link([(1, 1000, 1e-3), (1, 2000, 3e-3)]).alpha == 0
    flat = predict.fit_link([(1, 1000, 2e-3), (1, 2000, 1e-3)])
    assert flat.seconds_per_byte == 0 and flat.alpha == pytest.approx(1.2e-3) and flat.bytes_per_s == float("inf")
    with pytest.raises(ValueError, match="β = 0"):
        _ = flat.balance


@pytest.mark.parametrize(
    ("samples", "message"),
    [([(1, 100, 1.0)], "two sizes"), ([(1, 100, 1.0), (2, 200, 2.0)], "two sizes"), ([(1, 1, 0.0)], "above 0"),
     ([], "two sizes")],
)  # fmt: skip
def test_a_fit_refuses_what_says_nothing(samples: list, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        predict.fit_link(samples)


@pytest.mark.parametrize("p", [4, 5, 8, 16, 100])
def test_at_the_crossover_both_take_the_same_time(p: int) -> None:
    size = predict.crossover_bytes(p, FAST)
    tree, ring = (predict.all_reduce(size, p, name).seconds(FAST) for name in ("tree", "ring"))
    assert tree == pytest.approx(ring, rel=1e-4)
    assert predict.all_reduce(size // 2, p, "tree").seconds(FAST) < predict.all_reduce(size // 2, p).seconds(FAST)


@pytest.mark.parametrize("p", [2, 3])
def test_few_ranks_have_no_crossover(p: int) -> None:
    with pytest.raises(ValueError, match="do not change places"):
        predict.crossover_bytes(p, FAST)


@pytest.mark.parametrize(
    ("operation", "factor"),
    [("all_reduce", 1.75), ("reduce_scatter", 0.875), ("all_gather", 0.875), ("all_to_all", 0.875), ("broadcast", 1),
     ("reduce", 1)],
)  # fmt: skip
def test_bus_factors_as_nccl_publishes_them(operation: str, factor: float) -> None:
    assert predict.bus_factor(operation, 8) == factor


def test_bus_factor_is_what_a_rank_sends() -> None:
    for p in (2, 3, 8):
        assert predict.bus_factor("all_reduce", p) * 840 == predict.all_reduce(840, p).bytes
    with pytest.raises(ValueError, match="one of all_reduce"):
        predict.bus_factor("gossip", 4)
