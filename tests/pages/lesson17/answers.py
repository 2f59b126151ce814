"""Answers to lesson 17's turns: in another style, and wrong in the ways that readers are."""

from __future__ import annotations

from itertools import product

import numpy as np

from course_pages.lesson17 import turns
from tests.pages.answers import Answers


def legal_by_product(heads, layers, gpus, node):
    sizes = product(range(1, node + 1), range(1, layers + 1), range(1, gpus + 1))
    return [[t, p, d] for t, p, d in sizes if t * p * d == gpus and not (heads % t or node % t or layers % p)]


def legal_one_by_one(heads, layers, gpus, node):
    yield from legal_by_product(heads, layers, gpus, node)


def with_data_before_stages(heads, layers, gpus, node):
    return [(t, d, p) for t, p, d in legal_by_product(heads, layers, gpus, node)]


def tensor_across_machines(heads, layers, gpus, node):
    ranks = range(1, gpus + 1)
    return [(t, p, gpus // t // p) for t in ranks for p in ranks if not (heads % t or layers % p or gpus % (t * p))]


def heads_torn(heads, layers, gpus, node):
    ranks = range(1, gpus + 1)
    return [(t, p, gpus // t // p) for t in ranks for p in ranks if not (node % t or layers % p or gpus % (t * p))]


def layers_torn(heads, layers, gpus, node):
    ranks = range(1, gpus + 1)
    return [(t, p, gpus // t // p) for t in ranks for p in ranks if not (node % t or heads % t or gpus % (t * p))]


def without_replicas(heads, layers, gpus, node):
    return [each for each in legal_by_product(heads, layers, gpus, node) if each[2] == 1]


def ranks_left_over(heads, layers, gpus, node):
    ranks = range(1, gpus + 1)
    pairs = [(t, p) for t in ranks for p in ranks if t * p <= gpus and not (node % t or heads % t or layers % p)]
    return [(t, p, gpus // (t * p)) for t, p in pairs]


def powers_of_two(heads, layers, gpus, node):
    return [each for each in legal_by_product(heads, layers, gpus, node) if not any(n & (n - 1) for n in each[:2])]


def small_enough_for_a_machine(heads, layers, gpus, node):
    return [each for each in tensor_across_machines(heads, layers, gpus, node) if each[0] <= node]


def step_by_numpy(blocks, products_s, launches_s, head_s, micro_batches, data_s):
    stages = np.array(blocks) * np.maximum(products_s, launches_s)
    stages[-1] = stages[-1] + head_s
    return np.sum(stages) + (micro_batches - 1) * np.max(stages) + data_s


def step_in_float32(blocks, products_s, launches_s, head_s, micro_batches, data_s):
    stages = np.array(blocks, dtype=np.float32) * np.float32(max(products_s, launches_s))
    stages[-1] += head_s
    return stages.sum() + (micro_batches - 1) * stages.max() + np.float32(data_s)


def step_of_the_stage_with_most_blocks(blocks, products_s, launches_s, head_s, micro_batches, data_s):
    block, most = max(products_s, launches_s), max(blocks)
    slowest = most * block + head_s * (blocks[-1] == most)
    return sum(blocks) * block + head_s + (micro_batches - 1) * slowest + data_s


def step_of_even_stages(blocks, products_s, launches_s, head_s, micro_batches, data_s):
    slowest = max(blocks) * max(products_s, launches_s) + head_s
    return slowest * (micro_batches + len(blocks) - 1) + data_s


def step_without_bubble(blocks, products_s, launches_s, head_s, micro_batches, data_s):
    stages = [each * max(products_s, launches_s) for each in blocks]
    stages[-1] += head_s
    return micro_batches * max(stages) + data_s


def step_with_launches_added(blocks, products_s, launches_s, head_s, micro_batches, data_s):
    stages = [each * (products_s + launches_s) for each in blocks]
    stages[-1] += head_s
    return (micro_batches - 1) * max(stages) + sum(stages) + data_s


def step_of_products_alone(blocks, products_s, launches_s, head_s, micro_batches, data_s):
    return step_by_numpy(blocks, products_s, 0, head_s, micro_batches, data_s)


def step_of_the_slower_end(blocks, products_s, launches_s, head_s, micro_batches, data_s):
    stages = [each * max(products_s, launches_s) for each in blocks]
    stages[-1] += head_s
    return (micro_batches - 1) * max(stages[0], stages[-1]) + sum(stages) + data_s


def step_that_sends_with_every_micro_batch(blocks, products_s, launches_s, head_s, micro_batches, data_s):
    return step_by_numpy(blocks, products_s, launches_s, head_s, micro_batches, data_s * micro_batches)


def lost_by_loop(stops, interval, checkpoint):
    saved = total = 0.0
    for left in stops:
        total += left
        while left >= interval + checkpoint:
            left -= interval + checkpoint
            saved += interval
    return (total - saved) / total


def lost_in_float32(stops, interval, checkpoint):
    every = np.array(stops, dtype=np.float32)
    return 1 - (every // (interval + checkpoint)).sum() * interval / every.sum()


def lost_by_using_up_the_stops(stops, interval, checkpoint):
    total, saved = sum(stops), 0
    while stops:
        saved += stops.pop() // (interval + checkpoint) * interval
    return 1 - saved / total


def lost_with_saving_as_progress(stops, interval, checkpoint):
    step = interval + checkpoint
    return 1 - sum(each // step * step for each in stops) / sum(stops)


def lost_with_unsaved_work(stops, interval, checkpoint):
    return 1 - sum(each / (interval + checkpoint) * interval for each in stops) / sum(stops)


def lost_without_checkpoints(stops, interval, checkpoint):
    return 1 - sum(each // interval * interval for each in stops) / sum(stops)


def lost_as_a_mean_of_shares(stops, interval, checkpoint):
    shares = [1 - each // (interval + checkpoint) * interval / each for each in stops]
    return sum(shares) / len(shares)


def contradictions_by_numpy(row):
    told = {"axes": np.prod(row["axes"]) != row["gpus"]}
    due = row["mfu"] / 100 * row["peak"] * row["gpus"] / 1000
    told["rate"] = not np.isclose(due, row["petaflops"], rtol=0.02)
    return tuple(name for name, wrong in told.items() if wrong)


def only_the_axes(row):
    return ["axes"] if np.prod(row["axes"]) != row["gpus"] else []


def rates_within_4_percent(row):
    due = row["mfu"] / 100 * row["peak"] * row["gpus"] / 1000
    return only_the_axes(row) + ["rate"] * (abs(row["petaflops"] / due - 1) > 0.04)


def one_mistake_a_row(row):
    return list(contradictions_by_numpy(row))[:1]


def to_the_last_digit(row):
    found = only_the_axes(row)
    return found + ["rate"] * (row["mfu"] / 100 * row["peak"] * row["gpus"] / 1000 != row["petaflops"])


def only_axes_that_are_too_many(row):
    rate = [each for each in contradictions_by_numpy(row) if each == "rate"]
    return (["axes"] if np.prod(row["axes"]) > row["gpus"] else []) + rate


def rates_within_200(row):
    due = row["mfu"] / 100 * row["peak"] * row["gpus"] / 1000
    return only_the_axes(row) + ["rate"] * bool(abs(row["petaflops"] - due) > 200)


def only_rates_that_are_too_high(row):
    due = row["mfu"] / 100 * row["peak"] * row["gpus"] / 1000
    return only_the_axes(row) + ["rate"] * (row["petaflops"] > 1.02 * due)


ANSWERS = {
    turns.check_legal: Answers(
        right=[legal_by_product],
        wrong={
            legal_one_by_one: "has no len()",
            with_data_before_stages: "equally many layers",
            tensor_across_machines: "do not share one machine",
            heads_torn: "equally many heads",
            layers_torn: "equally many layers",
            without_replicas: "are missing",
            ranks_left_over: "whose ranks are",
            powers_of_two: "are missing",
            small_enough_for_a_machine: "do not share one machine",
        },
    ),
    turns.check_step_seconds: Answers(
        right=[step_by_numpy, step_in_float32],
        wrong={
            step_of_the_stage_with_most_blocks: "makes the last stage slowest",
            step_of_even_stages: "too long",
            step_without_bubble: "too short",
            step_of_the_slower_end: "a middle stage",
            step_with_launches_added: "slower of products and launches",
            step_of_products_alone: "slower of products and launches",
            step_that_sends_with_every_micro_batch: "a data axis",
        },
    ),
    turns.check_lost: Answers(
        right=[lost_by_loop, lost_in_float32],
        wrong={
            lost_by_using_up_the_stops: "afterwards the list of stops is []",
            lost_with_saving_as_progress: "too little",
            lost_with_unsaved_work: "too little",
            lost_without_checkpoints: "too little",
            lost_as_a_mean_of_shares: "over all of the time",
        },
    ),
    turns.check_contradictions: Answers(
        right=[contradictions_by_numpy],
        wrong={
            only_the_axes: "turn the MFU into PFLOP/s",
            rates_within_4_percent: "turn the MFU",
            one_mistake_a_row: "multiply the axes",
            only_axes_that_are_too_many: "multiply the axes",
            rates_within_200: "turn the MFU",
            to_the_last_digit: "multiply the axes",
            only_rates_that_are_too_high: "turn the MFU",
        },
    ),
}
