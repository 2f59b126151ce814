"""The formulas against messages that are passed: by the schedules of collectives, or on arrays, every send counted."""

from collections.abc import Callable

import numpy as np
import pytest

from course_kit.units import Seconds
from course_lib import predict
from course_lib.collectives import schedules
from course_lib.collectives.schedules import Schedule
from course_lib.predict.traffic import ALL_REDUCE_ALGORITHMS, OPERATIONS, Link, tree_children
from tests.predict.refused import refused


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


FAST = Link(Seconds(1e-6), 1e-11)
RUN = {run.__name__: run for run in (recursive_doubling, halving_doubling)}
CASES = [
    (algorithm, p)
    for algorithm in ALL_REDUCE_ALGORITHMS
    for p in (1, 2, 3, 4, 5, 6, 7, 8, 16)
    if algorithm not in RUN or not p & (p - 1)
]


def sent(algorithm: str, p: int, n: int) -> list[tuple[int, int]]:
    """Bytes and messages of each rank for n numbers of 8 bytes, whose parts are as even as can be.

    tests/collectives plays the schedules, and runs them; the two that have none run here.
    """
    if algorithm in RUN:
        net = Network(p, n)
        RUN[algorithm](net)
        assert all(np.array_equal(held, net.total) for held in net.held)
        return list(zip(net.bytes, net.messages))
    sizes = [n] if algorithm in schedules.WHOLE else [len(part) for part in np.array_split(np.empty(n), p)]
    plans = [schedules.ALL_REDUCE[algorithm](p, rank) for rank in range(p)]
    sends = [[send for each in plan for send in each.sends] for plan in plans]
    return [(sum(8 * sizes[send.part] for send in each), len(each)) for each in sends]


@pytest.mark.parametrize(("algorithm", "p"), CASES)
def test_bytes_and_messages_of_every_rank(algorithm: str, p: int) -> None:
    n = 5 * 16 * 3 * 7
    formulas = [predict.all_reduce(8 * n, p, algorithm, rank) for rank in range(p)]
    assert [(each.bytes, each.messages) for each in formulas] == sent(algorithm, p, n)


@pytest.mark.parametrize("p", [2, 3, 5, 8])
def test_a_ring_with_uneven_parts_has_the_formula_as_its_mean(p: int) -> None:
    nbytes = [nbytes for nbytes, _ in sent("ring", p, 1001)]
    assert np.mean(nbytes) == pytest.approx(predict.all_reduce(8 * 1001, p).bytes, abs=0.5)
    assert max(nbytes) - min(nbytes) <= 2 * 8


@pytest.mark.parametrize("p", range(1, 20))
def test_tree_reaches_every_rank_once(p: int) -> None:
    assert sum(tree_children(p, rank) for rank in range(p)) == p - 1
    assert sum(predict.broadcast(10, p, rank).bytes for rank in range(p)) == 10 * (p - 1)


def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather() -> None:
    for p in (1, 2, 4, 8):
        halves = predict.reduce_scatter(800, p).bytes + predict.all_gather(800, p).bytes
        assert predict.all_reduce(800, p).bytes == halves
    assert predict.all_to_all(800, 4).bytes == 600


test_what_cannot_be_is_refused = refused(
    (lambda: predict.all_reduce(100, 4, "star"), "one of ring, direct, manager"),
    (lambda: predict.all_reduce(100, 6, "halving_doubling"), "power of two; 6 is not"),
    (lambda: predict.all_reduce(100, 6, "recursive_doubling"), "power of two; 6 is not"),
    (lambda: Link(Seconds(-1), 0.0), "alpha=-1 s, seconds_per_byte=0.0: must not be negative"),
    (lambda: FAST.seconds((1, -8)), "n_bytes=-8"),
    (lambda: predict.fit_link([(1, 1000, 2e-3), (1, 2000, 1e-3)]).balance, "β = 0"),
    *((lambda samples=samples: predict.fit_link(samples), words) for samples, words in (
        ([(1, 100, 1.0)], "two sizes"), ([(1, 100, 1.0), (2, 200, 2.0)], "two sizes"), ([(1, 1, 0.0)], "above 0"),
        ([], "two sizes"),
    )),
    *((lambda p=p: predict.crossover_bytes(p, FAST), "do not change places") for p in (2, 3)),
    (lambda: predict.bus_factor("gossip", 4), "one of all_reduce"),
    *((lambda each=each: each(100, 0), "world_size=0: there must be at least one") for each in OPERATIONS.values()),
    *((lambda each=each: each(-1, 4), "n_bytes=-1: must not be negative") for each in OPERATIONS.values()),
    *(
        (lambda name=name: OPERATIONS[name](100, 4, rank=4), "rank=4 does not exist among 4")
        for name in ("all_reduce", "broadcast", "reduce")
    ),
)  # fmt: skip


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


def busiest_rounds(schedule: Callable[[int, int], Schedule], p: int) -> int:
    """Messages on the busiest link, round after round: within one a rank's sends share its link, as its receives do."""
    plan = [schedule(p, rank) for rank in range(p)]
    return sum(max(max(len(r.sends), len(r.receives)) for r in rounds) for rounds in zip(*plan))


@pytest.mark.parametrize("p", range(1, 18))
@pytest.mark.parametrize("name", ["ring", "manager", "tree", *(name for name in OPERATIONS if name != "all_reduce")])
def test_a_path_is_as_long_as_its_schedule_says(name: str, p: int) -> None:
    """Rounds follow each other. All-reduces' sends are counted above; here those of the rest of the family."""
    all_reduce = name in schedules.ALL_REDUCE
    schedule = schedules.ALL_REDUCE[name] if all_reduce else getattr(schedules, name)
    part = p * 1000 if name in (*schedules.WHOLE, "broadcast", "reduce") else 1000
    rounds = busiest_rounds(schedule, p) - (name == "all_to_all" and p > 2)  # in each, some rank is its own partner
    for rank in range(p):
        if all_reduce:
            formula = predict.all_reduce(p * 1000, p, name, rank)
        else:
            formula = OPERATIONS[name](p * 1000, p, **({"rank": rank} if name in ("broadcast", "reduce") else {}))
            sends = sum(len(each.sends) for each in schedule(p, rank))
            assert (formula.messages, formula.bytes) == (sends, sends * part)
        assert formula.path == (rounds, rounds * part)
        assert formula.seconds(FAST) == pytest.approx(rounds * 1e-6 + rounds * part * 1e-11)


def test_a_fit_finds_the_link_that_made_the_times() -> None:
    link = Link(Seconds(40e-6), 0.5e-9)
    paths = [predict.all_reduce(n, 4, name).path for n in (4, 4_000, 4_000_000) for name in ("ring", "tree", "manager")]
    found = predict.fit_link((path.messages, path.n_bytes, link.seconds(path)) for path in paths)
    assert found.alpha == pytest.approx(link.alpha) and found.seconds_per_byte == pytest.approx(0.5e-9)
    assert found.bytes_per_s == pytest.approx(2e9)
    assert found.balance == 80_000


def test_a_fit_weighs_small_times_as_much_as_large_ones() -> None:
    """10 ms too much on 1 s is noise; it must not become latency."""
    link = predict.fit_link([(1, 1, 1e-4), (1, 10, 1e-4), (1, 10**9, 1.01)])
    assert link.alpha == pytest.approx(1e-4, rel=0.01)


def test_a_fit_gives_no_negative_price() -> None:
    assert predict.fit_link([(1, 1000, 1e-3), (1, 2000, 3e-3)]).alpha == 0
    flat = predict.fit_link([(1, 1000, 2e-3), (1, 2000, 1e-3)])
    assert flat.seconds_per_byte == 0 and flat.alpha == pytest.approx(1.2e-3) and flat.bytes_per_s == float("inf")


@pytest.mark.parametrize("p", [4, 5, 8, 16, 100])
def test_at_the_crossover_both_take_the_same_time(p: int) -> None:
    size = predict.crossover_bytes(p, FAST)
    tree, ring = (predict.all_reduce(size, p, name).seconds(FAST) for name in ("tree", "ring"))
    assert tree == pytest.approx(ring, rel=1e-4)
    assert predict.all_reduce(size // 2, p, "tree").seconds(FAST) < predict.all_reduce(size // 2, p).seconds(FAST)


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
