"""Answers to the turns of lesson 02."""

from __future__ import annotations

from itertools import accumulate

from course_pages.lesson02 import turns
from tests.pages.answers import Answers


def with_accumulate(changes):
    return max(accumulate(changes, initial=0))


def all_births(changes):
    return sum(change for change in changes if change > 0)


def the_end(changes):
    return sum(changes)


def the_largest_birth(changes):
    return max(changes, default=0)


def empties_the_list(changes):
    alive = peak = 0
    while changes:
        alive += changes.pop(0)
        peak = max(peak, alive)
    return peak


def before_the_last(changes):
    return max((sum(changes[:i]) for i in range(len(changes))), default=0)


def when_something_dies(changes):
    alive = peak = 0
    for change in changes:
        if change < 0:
            peak = max(peak, alive)
        alive += change
    return peak


def by_table(psi, precision, moments):
    weight = {"fp32": 4, "mixed": 2, "bf16": 2}[precision]
    moment = 2 if precision == "bf16" else 4
    return psi * (2 * weight + (4 if precision == "mixed" else 0) + moments * moment)


def states_printed(psi, precision, moments):
    print(by_table(psi, precision, moments))


def mixed_is_sixteen(psi, precision, moments):
    return 16 * psi if precision == "mixed" else by_table(psi, precision, moments)


def wide_moments_in_bf16(psi, precision, moments):
    each = 4 if precision == "fp32" else 2
    return psi * (2 * each + (4 if precision == "mixed" else 0) + 4 * moments)


def without_the_copy(psi, precision, moments):
    return psi * (2 * (4 if precision == "fp32" else 2) + (2 if precision == "bf16" else 4) * moments)


def wide_gradients(psi, precision, moments):
    return by_table(psi, precision, moments) + (2 * psi if precision == "mixed" else 0)


def by_bars(b, s, d, heads):
    stream, wide, scores, token = 4 * b * s * d, 4 * b * s * 4 * d, 4 * b * heads * s * s, 4 * b * s
    return 8 * stream + 2 * wide + scores + 4 * token + s * s


def block_printed(b, s, d, heads):
    print(by_bars(b, s, d, heads))


def mask_for_each_head(b, s, d, heads):
    return by_bars(b, s, d, heads) + (heads - 1) * s * s


def mask_in_bits(b, s, d, heads):
    return by_bars(b, s, d, heads) - s * s + s * s / 8


def without_norms(b, s, d, heads):
    return by_bars(b, s, d, heads) - 16 * b * s


def scores_of_one_head(b, s, d, heads):
    return by_bars(b, s, d, heads) - 4 * b * (heads - 1) * s * s


def in_steps(layers, heads, head_width, tokens, sequences, element_bytes):
    one_token = 2 * heads * head_width * element_bytes
    return sequences * tokens * layers * one_token


def cache_printed(layers, heads, head_width, tokens, sequences, element_bytes):
    print(in_steps(layers, heads, head_width, tokens, sequences, element_bytes))


def keys_alone(layers, heads, head_width, tokens, sequences, element_bytes):
    return layers * heads * head_width * tokens * sequences * element_bytes


def an_eighth(layers, heads, head_width, tokens, sequences, element_bytes):
    return 2 * layers * heads * head_width * tokens * sequences * element_bytes / 8


def one_layer(layers, heads, head_width, tokens, sequences, element_bytes):
    return 2 * heads * head_width * tokens * sequences * element_bytes


def always_fp32(layers, heads, head_width, tokens, sequences, element_bytes):
    return 2 * layers * heads * head_width * tokens * sequences * 4


ANSWERS = {
    turns.check_peak: Answers(
        right=[with_accumulate],
        wrong={
            all_births: "of [4, 2, -4, 3]",
            the_end: "peak",
            the_largest_birth: "peak",
            empties_the_list: "stay as it is",
            before_the_last: "of [5, -5, 7] the peak should be 7, but is 5",
            when_something_dies: "of [5, -5, 7] the peak should be 7, but is 5",
        },
    ),
    turns.check_states: Answers(
        right=[by_table],
        wrong={
            mixed_is_sixteen: "mixed with 0 moments",
            wide_moments_in_bf16: "bf16 with 1 moments",
            without_the_copy: "mixed with 0",
            wide_gradients: "mixed",
            states_printed: "states_printed has no return",
        },
    ),
    turns.check_block: Answers(
        right=[by_bars],
        wrong={
            mask_for_each_head: "too many",
            mask_in_bits: "too few",
            without_norms: "too few",
            scores_of_one_head: "too few",
            block_printed: "block_printed has no return",
        },
    ),
    turns.check_cache: Answers(
        right=[in_steps],
        wrong={
            keys_alone: "are made",
            an_eighth: "are made",
            one_layer: "are made",
            always_fp32: "Llama 3",
            cache_printed: "cache_printed has no return",
        },
    ),
}
