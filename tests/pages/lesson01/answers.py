"""Answers to the turns of lesson 01."""

from __future__ import annotations

import math

import numpy as np
import torch

from course_lib.numerics import FloatFormat
from course_pages.lesson01 import turns
from tests.pages.answers import Answers


def by_strings(pattern, E, F):
    bits = f"{pattern:0{E + F + 1}b}"
    sign, e, f = (-1) ** int(bits[0]), int(bits[1 : E + 1], 2), int(bits[E + 1 :], 2)
    if e == 2**E - 1:
        return math.nan if f else sign * math.inf
    return sign * math.ldexp(f + (2**F if e else 0), max(e, 1) - 2 ** (E - 1) + 1 - F)


def without_subnormals(pattern, E, F):
    f, e = pattern % 2**F, pattern // 2**F % 2**E
    sign = -1.0 if pattern // 2 ** (E + F) else 1.0
    if e == 2**E - 1:
        return sign * math.inf if f == 0 else math.nan
    return sign * 2.0 ** (e - 2 ** (E - 1) + 1) * (1 + f / 2**F)


def without_a_sign_at_zero(pattern, E, F):
    value = by_strings(pattern, E, F)
    return 0.0 if value == 0 else value


def without_nan(pattern, E, F):
    value = by_strings(pattern, E, F)
    return math.inf if value != value else value


def by_the_library(x, E, F):
    return FloatFormat(E, F).round(torch.tensor(x, dtype=torch.float64)).item()


def half_up(x, E, F):
    step = 2.0 ** (max(math.frexp(x)[1] - 1 if x else -math.inf, 2 - 2 ** (E - 1)) - F)
    return math.floor(x / step + 0.5) * step


def cut_off(x, E, F):
    step = 2.0 ** (max(math.frexp(x)[1] - 1 if x else -math.inf, 2 - 2 ** (E - 1)) - F)
    return math.trunc(x / step) * step


def as_if_no_subnormals(x, E, F):
    step = 2.0 ** (math.frexp(x)[1] - 1 - F) if x else 1.0
    return round(x / step) * step


def subnormals_one_power_early(x, E, F):
    step = 2.0 ** (max(math.frexp(x)[1] - 1 if x else -math.inf, 3 - 2 ** (E - 1)) - F)
    return round(x / step) * step


def without_a_carry(x, E, F):
    step = 2.0 ** (max(math.frexp(x)[1] - 1 if x else -math.inf, 2 - 2 ** (E - 1)) - F)
    return math.copysign(min(round(abs(x) / step), 2 ** (F + 1) - 1) * step, x)


def subnormals_without_a_sign(x, E, F):
    rounded = by_the_library(x, E, F)
    return abs(rounded) if abs(x) < 2.0 ** (2 - 2 ** (E - 1)) else rounded


def kahan_in_one_line(weight, owed, update):
    return (new := weight + (update + owed)), (update + owed) - (new - weight)


def kahan_in_place(weight, owed, update):
    update += owed
    new = weight + update
    return new, update - (new - weight)


def forgets_the_old_debt(weight, owed, update):
    new = weight + update
    return new, update - (new - weight)


def owes_all(weight, owed, update):
    return weight + update + owed, owed + update


def in_fp32(weight, owed, update):
    return (weight.float() + update.float()).float(), owed


def swamped_debt(weight, owed, update):
    update = update + owed
    new = weight + update
    return new, update - new + weight


def owes_below_zero(weight, owed, update):  # Kahan's own sign: what came too much
    update = update - owed
    new = weight + update
    return new, (new - weight) - update


def with_numpy(x, bits):
    values, largest = x.numpy(), 2 ** (bits - 1) - 1
    scales = np.max(np.abs(values), axis=1) / largest
    return torch.from_numpy(np.rint(values / scales[:, None]) * scales[:, None])


def as_an_array(x, bits):
    return with_numpy(x, bits).numpy()


def one_scale(x, bits):
    scale = x.abs().max() / (2 ** (bits - 1) - 1)
    return (x / scale).round() * scale


def a_scale_for_each_column(x, bits):
    scale = x.abs().amax(dim=0, keepdim=True) / (2 ** (bits - 1) - 1)
    return (x / scale).round() * scale


def a_scale_from_the_first(x, bits):
    scale = x[:, :1].abs() / (2 ** (bits - 1) - 1)
    return (x / scale).round() * scale


def whole_numbers(x, bits):
    scale = x.abs().amax(dim=1, keepdim=True) / (2 ** (bits - 1) - 1)
    return (x / scale).round()


def cut_rows(x, bits):
    scale = x.abs().amax(dim=1, keepdim=True) / (2 ** (bits - 1) - 1)
    return (x / scale).trunc() * scale


ANSWERS = {
    turns.check_decode: Answers(
        right=[by_strings],
        wrong={without_subnormals: "pattern 0000", without_a_sign_at_zero: "is -0.0", without_nan: "is nan"},
    ),
    turns.check_round: Answers(
        right=[by_the_library],
        wrong={
            half_up: "257.0 becomes 256.0",
            cut_off: "0.1 becomes",
            as_if_no_subnormals: "float16 1e-07",
            subnormals_one_power_early: "float16 5e-08",
            without_a_carry: "255.9 becomes 256.0",
            subnormals_without_a_sign: "float16 -8.94",
        },
    ),
    turns.check_kahan: Answers(
        right=[kahan_in_one_line, kahan_in_place],
        wrong={
            forgets_the_old_debt: "ends at 1.0",
            owes_all: "should carry 1",
            in_fp32: "stay in bf16",
            swamped_debt: "ends at 1.0",
            owes_below_zero: "yours are 1.5 and -0.003906",
        },
    ),
    turns.check_rows: Answers(
        right=[with_numpy],
        wrong={
            one_scale: "a number of row 0",
            a_scale_for_each_column: "row",
            a_scale_from_the_first: "row 1",
            whole_numbers: "row",
            cut_rows: "half a step",
            as_an_array: "a tensor of the shape of x",
        },
    ),
}
