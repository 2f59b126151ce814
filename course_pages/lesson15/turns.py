"""Checks of lesson 15's turns: cycle walking, a prefetching queue, a rank's places, the quota method."""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
import time
from collections.abc import Iterator
from operator import index

from course_kit.notebook.your_turn import Function

EXERCISES = 8, 1.4e12 / 4096 * 8 / 1e9, 48 - 4 * 6 - 8 * (48 // 8 - 6)
"""Answers to the exercises: workers, GB, samples."""
PATIENCE_S = 10
"""Seconds for which the check of a queue waits for a result."""


def check_walk(permuted: Function) -> None:
    """Shuffles of n numbers made of shuffles of more; where n is all of them, and where it is one of 64."""
    for n, all_of_them, seed in ((10, 16, 0), (16, 16, 1), (17, 64, 2), (1, 64, 0), (63, 64, 4)):
        table = random.Random(seed).sample(range(all_of_them), all_of_them)
        calls: list[int] = []

        def feistel(number: int, table: list[int] = table, calls: list[int] = calls) -> int:
            assert 0 <= number < len(table), f"feistel was asked for {number!r}, and it shuffles 0 to {len(table) - 1}"
            calls.append(number)
            assert len(calls) < 200, f"200 steps, and only {len(table)} numbers: where does the walk end?"
            return table[number]

        came = []
        for place in range(n):
            calls.clear()
            came.append(permuted(place, n, feistel))
            told = f"n = {n}, feistel shuffles 0 to {all_of_them - 1}, place {place}"
            assert came[-1] in range(n), f"{told}: {came[-1]} came, and there is no such sample"
            walk = [call for call, _ in itertools.groupby(calls)]  # asking for the same number twice is no step
            assert walk and walk[0] == place, f"{told}: the place itself goes through feistel first"
            assert walk[1:] == [table[call] for call in walk[:-1]], f"{told}: what goes in again is what came out"
            assert table[walk[-1]] == came[-1], f"{told}: the answer is not the last number that came out"
            inside = [table[call] < n for call in walk]
            assert inside == [False] * (len(walk) - 1) + [True], f"{told}: the walk ends at the first number inside"
        assert sorted(came) == list(range(n)), f"n = {n}: {came} came, and that is not each sample once"


def _taken(results: Iterator[int], most: int, told: str) -> list[int]:
    """The first `most` results, or all that there are; an AssertionError, `told`, if the next one never comes."""
    came, problems = [], []

    def take() -> None:
        try:
            came.extend(itertools.islice(results, most))
        except Exception as problem:  # noqa: BLE001  (the reader's own; raised below)
            problems.append(problem)

    taker = threading.Thread(target=take, daemon=True)
    taker.start()
    taker.join(PATIENCE_S)
    assert not taker.is_alive(), f"{told}: no further result came for {PATIENCE_S} s; who puts it on that shelf?"
    for problem in problems:
        raise problem
    return came


def _rest(done: list[tuple[int, int]], due: int) -> None:
    """Give workers the time for so many jobs, and a moment for one too many."""
    until = time.monotonic() + 2
    while len(done) < due and time.monotonic() < until:
        time.sleep(0.01)
    time.sleep(0.05)


def check_prefetch(prefetch: Function) -> None:
    """Results in the order of the jobs, from any job on; workers at the same time; shelves full, and no fuller."""
    for workers, depth, jobs in ((1, 1, range(5)), (3, 1, range(7, 18)), (3, 3, range(18)), (4, 2, range(20, 23))):
        told = f"{workers} workers, depth {depth}, {jobs}"
        together = threading.Barrier(min(workers, len(jobs)))
        done: list[tuple[int, int]] = []  # a job, and the thread that did it

        def work(job: int, done: list = done, together: threading.Barrier = together, jobs: range = jobs) -> int:
            if job in jobs[: together.parties]:
                with contextlib.suppress(threading.BrokenBarrierError):
                    together.wait(timeout=2)
            else:
                time.sleep(0.001 * (job % 3))
            done.append((job, threading.get_ident()))
            return 10 * job

        results = iter(prefetch(work, jobs, workers, depth))
        came = _taken(results, 1, told)
        assert not together.broken, f"{told}: the first jobs do not run at the same time"
        _rest(done, min(len(jobs), workers * depth))  # no result is taken: the workers fill their shelves, and stop
        most = 1 + workers * (depth + 1)  # one was taken; a worker holds one more result
        assert len(done) <= most, f"{told}: {len(done)} jobs are done after the first result was taken"
        room = f"only {len(done)} jobs are done while nobody takes a result, and the shelves have room"
        assert len(done) >= min(len(jobs), workers * depth), f"{told}: {room}"
        came += _taken(results, len(jobs) + 1, told)
        assert came == [10 * job for job in jobs], f"{told}: the results {came} are not in the order of the jobs"
        did, threads = sorted(job for job, _ in done), {thread for _, thread in done}
        assert did == list(jobs), f"{told}: the jobs {did} were done"
        assert len(threads) <= workers, f"{told}: {len(threads)} threads did the jobs"


def check_places(places_of: Function) -> None:
    """A rank's rows as (epoch, place): several world sizes, one that does not divide the batch, an epoch that ends."""
    for step, batch, n in ((0, 8, 40), (3, 8, 40), (5, 8, 44), (2, 6, 4), (7, 5, 1000)):
        whole = [divmod(step * batch + row, n) for row in range(batch)]
        for world_size in (1, 2, 3, 4):
            told = f"step {step}, batches of {batch} out of {n} samples, {world_size} ranks"
            ranks = range(world_size)
            came = [[tuple(map(index, it)) for it in places_of(step, rank, world_size, batch, n)] for rank in ranks]
            together = sorted(sum(came, []))
            assert together == sorted(whole), f"{told}: all ranks together read {together}, not this step's batch once"
            for rank, rows in enumerate(came):
                assert rows == whole[rank::world_size], f"{told}: rank {rank} read {rows}, not its rows of the batch"


def check_quota(next_source: Function) -> None:
    """The quota method: after each sample no source is a whole one off its share, and no other one had more claim."""
    few, passed_over = ((60, 40), (6, 6, 2), (3, 1, 2), (1, 1, 1), (7,)), []
    for weights in (*few, (41, 19, 12, 25, 3), (97, 1, 1, 1), (5, 5, 1, 1, 1, 1), (54, 4, 9, 1, 9, 2, 2, 9, 9)):
        given, period = [0] * len(weights), sum(weights)
        for t in range(1, 2 * period + 1):
            told = f"weights {weights}, given {given}"
            source = next_source(list(weights), given)
            assert sum(given) == t - 1, f"{told}: afterwards the list given is {given}; this call only says who is next"
            assert source in range(len(weights)), f"{told}: {source!r} came, and there is no such source"
            below = [i for i, weight in enumerate(weights) if given[i] * period < weight * t]
            if any(weights[i] * (given[source] + 1) > weights[source] * (given[i] + 1) for i in below):
                passed_over.append(f"{told}, then source {source}")
            given[source] += 1
            for i, weight in enumerate(weights):
                off = abs(given[i] * period - weight * t)
                assert off < period, f"{told}, then source {source}: source {i} is a whole sample off its share"
    assert not passed_over, f"{passed_over[0]}: one below its share of t + 1 has more weight / (given + 1)"
