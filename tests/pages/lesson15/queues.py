"""Queues for lesson 15's first turn: right ones, and those that readers write before."""

from __future__ import annotations

import itertools
import queue
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor


def with_a_condition(work, jobs, workers, depth=2):
    shelves = [[] for _ in range(workers)]
    change = threading.Condition()

    def fill(shelf, mine):
        for job in mine:
            result = work(job)
            with change:
                change.wait_for(lambda: len(shelf) < depth)
                shelf.append(result)
                change.notify_all()

    for worker, shelf in enumerate(shelves):
        threading.Thread(target=fill, args=(shelf, jobs[worker::workers]), daemon=True).start()
    for shelf, _ in zip(itertools.cycle(shelves), jobs):
        with change:
            change.wait_for(lambda shelf=shelf: shelf)
            result = shelf.pop(0)
            change.notify_all()
        yield result


def by_a_pool_without_a_bound(work, jobs, workers, depth=2):
    with ThreadPoolExecutor(workers) as pool:
        yield from pool.map(work, jobs)


def that_all_share(work, jobs, workers, depth=2):
    shelf = queue.Queue(maxsize=depth)

    def fill(worker):
        for job in jobs[worker::workers]:
            shelf.put(work(job))

    for worker in range(workers):
        threading.Thread(target=fill, args=(worker,), daemon=True).start()
    for _ in jobs:
        yield shelf.get()


def without_workers(work, jobs, workers, depth=2):
    for job in jobs:
        yield work(job)


def shelves_of(work, jobs_of_each, depth):
    """A shelf for each worker, and a thread that fills it with that worker's jobs."""

    def fill(shelf, jobs):
        for job in jobs:
            shelf.put(work(job))

    shelves = [queue.Queue(maxsize=depth) for _ in jobs_of_each]
    for shelf_and_jobs in zip(shelves, jobs_of_each):
        threading.Thread(target=fill, args=shelf_and_jobs, daemon=True).start()
    return shelves


def in_turn(shelves, results):
    for i in range(results):
        yield shelves[i % len(shelves)].get()


def of_whole_jobs_for_everybody(work, jobs, workers, depth=2):
    return in_turn(shelves_of(work, [jobs] * workers, depth), len(jobs))


def in_blocks(work, jobs, workers, depth=2):
    each = -(-len(jobs) // workers)
    blocks = [jobs[worker * each : (worker + 1) * each] for worker in range(workers)]
    for shelf, block in zip(shelves_of(work, blocks, depth), blocks):
        for _ in block:
            yield shelf.get()


def of_jobs_from_0(work, jobs, workers, depth=2):
    mine = [range(worker, len(jobs), workers) for worker in range(workers)]
    return in_turn(shelves_of(work, mine, depth), len(jobs))


def of_one(work, jobs, workers, depth=2):
    return in_turn(shelves_of(work, [jobs[worker::workers] for worker in range(workers)], 1), len(jobs))


def by_a_pool(work, jobs, workers, ahead):
    with ThreadPoolExecutor(workers) as pool:
        waiting = deque()
        for job in jobs:
            waiting.append(pool.submit(work, job))
            if len(waiting) > ahead:
                yield waiting.popleft().result()
        for each in waiting:
            yield each.result()


def by_a_pool_with_a_bound(work, jobs, workers, depth=2):
    return by_a_pool(work, jobs, workers, workers * depth)


def by_a_thread_for_each_place(work, jobs, workers, depth=2):
    return by_a_pool(work, jobs, workers * depth, workers * depth)


def with_semaphores(work, jobs, workers, depth=2):
    shelves, room = [queue.Queue() for _ in range(workers)], [threading.Semaphore(depth) for _ in range(workers)]

    def fill(worker):
        for job in jobs[worker::workers]:
            room[worker].acquire()
            shelves[worker].put(work(job))

    for worker in range(workers):
        threading.Thread(target=fill, args=(worker,), daemon=True).start()
    for i in range(len(jobs)):
        result = shelves[i % workers].get()
        room[i % workers].release()
        yield result
