"""Answers to lesson 15's turns, right and wrong."""

from __future__ import annotations

import numpy as np

from course_pages.lesson15 import turns
from tests.pages.answers import Answers
from tests.pages.lesson15 import queues


def walk_forever_until_inside(place, n, feistel):
    while True:
        place = feistel(place)
        if place < n:
            return place


def walk_that_calls_itself(place, n, feistel):
    number = feistel(place)
    return number if number < n else walk_that_calls_itself(number, n, feistel)


def walk_that_asks_twice(place, n, feistel):
    while feistel(place) >= n:
        place = feistel(place)
    return feistel(place)


def walk_of_ten_steps_at_most(place, n, feistel):
    for _ in range(10):
        place = feistel(place)
        if place < n:
            break
    return place


def walk_by_remainder(place, n, feistel):
    return feistel(place) % n


def walk_that_starts_with_the_place(place, n, feistel):
    number = place
    while number >= n:
        number = feistel(number)
    return number


def walk_that_lets_n_pass(place, n, feistel):
    number = feistel(place)
    while number > n:
        number = feistel(number)
    return number


def walk_that_takes_the_next_place(place, n, feistel):
    number = feistel(place)
    while number >= n:
        place += 1
        number = feistel(place)
    return number


def places_in_a_loop(step, rank, world_size, batch, n):
    found = []
    for row in range(batch):
        if row % world_size == rank:
            place = step * batch + row
            found.append([place // n, place % n])
    return found


def places_of_an_array(step, rank, world_size, batch, n):
    places = np.arange(step * batch + rank, (step + 1) * batch, world_size)
    return list(zip(places // n, places % n))


def places_with_a_fraction_of_an_epoch(step, rank, world_size, batch, n):
    return [(place / n, place % n) for place in range(step * batch + rank, (step + 1) * batch, world_size)]


def places_in_blocks(step, rank, world_size, batch, n):
    each = batch // world_size
    return [divmod(step * batch + rank * each + row, n) for row in range(each)]


def places_without_epochs(step, rank, world_size, batch, n):
    return [(0, place % n) for place in range(step * batch + rank, (step + 1) * batch, world_size)]


def places_of_a_batch_for_each_rank(step, rank, world_size, batch, n):
    start = (step * world_size + rank) * batch
    return [divmod(place, n) for place in range(start, start + batch)]


def places_by_the_runs_stride(step, rank, world_size, batch, n):
    places = range(step * batch, (step + 1) * batch)
    return [divmod(place, n) for place in places if place % world_size == rank]


def quota_by_fractions(weights, given):
    total, t = sum(weights), sum(given)
    best, chosen = -1.0, 0
    for i, (weight, n) in enumerate(zip(weights, given)):
        if n < weight * (t + 1) / total - 1e-9 and weight / (n + 1) > best + 1e-12:
            best, chosen = weight / (n + 1), i
    return chosen


def quota_that_lets_a_full_share_pass(weights, given):
    period, t = sum(weights), sum(given)
    below = [i for i, weight in enumerate(weights) if given[i] * period <= weight * (t + 1)]
    return max(below, key=lambda i: weights[i] / (given[i] + 1))


def quota_of_the_share_so_far(weights, given):
    period, t = sum(weights), sum(given)
    below = [i for i, weight in enumerate(weights) if given[i] * period <= weight * t]
    return max(below, key=lambda i: weights[i] / (given[i] + 1))


def quota_that_counts_along(weights, given):
    source = quota_by_fractions(weights, given)
    given[source] += 1
    return source


def quota_by_the_largest_debt(weights, given):
    period, t = sum(weights), sum(given)
    return max(range(len(weights)), key=lambda i: weights[i] * (t + 1) - given[i] * period)


def quota_by_the_largest_weight(weights, given):
    return max(range(len(weights)), key=lambda i: weights[i])


def quota_without_the_bound(weights, given):
    return max(range(len(weights)), key=lambda i: weights[i] / (given[i] + 1))


def quota_in_turn(weights, given):
    return sum(given) % len(weights)


ANSWERS = {
    turns.check_walk: Answers(
        right=[walk_forever_until_inside, walk_that_calls_itself, walk_that_asks_twice],
        wrong={
            walk_of_ten_steps_at_most: "there is no such sample",
            walk_by_remainder: "not the last number that came out",
            walk_that_starts_with_the_place: "the place itself goes through feistel first",
            walk_that_lets_n_pass: "there is no such sample",
            walk_that_takes_the_next_place: "what goes in again is what came out",
        },
    ),
    turns.check_prefetch: Answers(
        right=[queues.with_a_condition, queues.with_semaphores, queues.by_a_pool_with_a_bound],
        wrong={
            queues.by_a_pool_without_a_bound: "jobs are done after the first result was taken",
            queues.that_all_share: "not in the order of the jobs",
            queues.without_workers: "do not run at the same time",
            queues.of_jobs_from_0: "not in the order of the jobs",
            queues.of_one: "and the shelves have room",
            queues.by_a_thread_for_each_place: "threads did the jobs",
            queues.in_blocks: "do not run at the same time",
            queues.of_whole_jobs_for_everybody: "not in the order of the jobs",
        },
    ),
    turns.check_places: Answers(
        right=[places_in_a_loop, places_of_an_array],
        wrong={
            places_with_a_fraction_of_an_epoch: "cannot be interpreted as an integer",
            places_in_blocks: "not its rows of the batch",
            places_without_epochs: "not this step's batch once",
            places_of_a_batch_for_each_rank: "not this step's batch once",
            places_by_the_runs_stride: "not its rows of the batch",
        },
    ),
    turns.check_quota: Answers(
        right=[quota_by_fractions],
        wrong={
            quota_that_lets_a_full_share_pass: "a whole sample off its share",
            quota_of_the_share_so_far: "below its share of t + 1",
            quota_that_counts_along: "afterwards the list given is",
            quota_by_the_largest_debt: "a whole sample off its share",
            quota_by_the_largest_weight: "a whole sample off its share",
            quota_without_the_bound: "a whole sample off its share",
            quota_in_turn: "a whole sample off its share",
        },
    ),
}
