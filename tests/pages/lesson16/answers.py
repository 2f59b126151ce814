"""Answers to lesson 16's turns: in another style, and wrong in the ways that readers are."""

from __future__ import annotations

import torch

from course_pages.lesson16 import turns
from tests.pages.answers import Answers


def tiles_of_a_split(step, x, y, rows):
    out = x.new_zeros(x.shape)
    for target, one, two in zip(out.split(rows), x.split(rows), y.split(rows)):
        target.copy_(step(one, two))
    return out


def tiles_by_a_count(step, x, y, rows):
    out = torch.empty_like(x)
    i = 0
    while i < len(x):
        out[i : i + rows] = step(x[i : i + rows], y[i : i + rows])
        i += rows
    return out


def tiles_from_the_last(step, x, y, rows):
    out = torch.empty_like(x)
    for start in reversed(range(0, len(x), rows)):
        out[start : start + rows] = step(x[start : start + rows], y[start : start + rows])
    return out


def tiles_of_one_size(step, x, y, rows):
    out, tiles = torch.empty_like(x), -(-len(x) // rows)
    for target, one, two in zip(out.chunk(tiles), x.chunk(tiles), y.chunk(tiles)):
        target.copy_(step(one, two))
    return out


def everything_at_once(step, x, y, rows):
    return step(x, y)


def tiles_in_a_list(step, x, y, rows):
    return torch.cat([step(one, two) for one, two in zip(x.split(rows), y.split(rows))])


def without_the_last_tile(step, x, y, rows):
    out = torch.zeros_like(x)
    for number in range(len(x) // rows):
        here = slice(number * rows, (number + 1) * rows)
        out[here] = step(x[here], y[here])
    return out


def tiles_of_x_alone(step, x, y, rows):
    out = torch.empty_like(x)
    for start in range(0, len(x), rows):
        part = x[start : start + rows]
        out[start : start + rows] = step(part, y[: len(part)])
    return out


def one_row_at_a_time(step, x, y, rows):
    out = torch.empty_like(x)
    for start in range(len(x)):
        out[start : start + 1] = step(x[start : start + 1], y[start : start + 1])
    return out


def one_tile_too_many(step, x, y, rows):
    out = torch.empty_like(x)
    for number in range(len(x) // rows + 1):
        here = slice(number * rows, (number + 1) * rows)
        out[here] = step(x[here], y[here])
    return out


def tiles_without_step(step, x, y, rows):
    return torch.empty_like(x)


def tiles_into_x(step, x, y, rows):
    for start in range(0, len(x), rows):
        x[start : start + rows] = step(x[start : start + rows], y[start : start + rows])
    return x


def tiles_in_float32(step, x, y, rows):
    out = torch.empty(x.shape)
    for start in range(0, len(x), rows):
        out[start : start + rows] = step(x[start : start + rows], y[start : start + rows])
    return out


def online_by_cat(top, total, mixed, scores, values):
    higher = torch.cat([top[:, None], scores], 1).amax(1)
    weights, shrink = torch.exp(scores.T - higher).T, torch.exp(top - higher)
    return [higher, shrink * total + weights.sum(1), torch.einsum("n,nk->nk", shrink, mixed) + weights @ values]


def online_by_logarithms(top, total, mixed, scores, values):
    higher, log_sum = torch.maximum(top, scores.amax(-1)), torch.logaddexp(top + total.log(), scores.logsumexp(-1))
    mixed = (top - higher).exp()[:, None] * mixed + (scores - higher[:, None]).exp() @ values
    return higher, (log_sum - higher).exp(), mixed


def online_along_the_features(top, total, mixed, scores, values):
    higher = torch.maximum(top, scores.amax(-1))
    weights, shrink = (scores - higher[:, None]).exp(), (top - higher).exp()
    return higher, total * shrink + weights.sum(-1), mixed * shrink + weights @ values


def online_without_rescaling(top, total, mixed, scores, values):
    higher = torch.maximum(top, scores.amax(-1))
    weights = (scores - higher[:, None]).exp()
    return higher, total + weights.sum(-1), mixed + weights @ values


def online_with_total_alone_rescaled(top, total, mixed, scores, values):
    higher = torch.maximum(top, scores.amax(-1))
    weights, shrink = (scores - higher[:, None]).exp(), (top - higher).exp()
    return higher, total * shrink + weights.sum(-1), mixed + weights @ values


def online_with_the_tile_s_top(top, total, mixed, scores, values):
    higher = scores.amax(-1)
    weights, shrink = (scores - higher[:, None]).exp(), (top - higher).exp()
    return higher, total * shrink + weights.sum(-1), mixed * shrink[:, None] + weights @ values


def online_without_a_top(top, total, mixed, scores, values):
    weights = scores.exp()
    return torch.maximum(top, scores.amax(-1)), total + weights.sum(-1), mixed + weights @ values


def shrunk_the_wrong_way(top, total, mixed, scores, values):
    higher = torch.maximum(top, scores.amax(-1))
    weights, grow = (scores - higher[:, None]).exp(), (higher - top).exp().nan_to_num(posinf=0)
    return higher, total * grow + weights.sum(-1), mixed * grow[:, None] + weights @ values


def online_in_float32(top, total, mixed, scores, values):
    higher = torch.maximum(top, scores.amax(-1))
    weights, shrink = (scores - higher[:, None]).float().exp(), (top - higher).float().exp()
    return higher, total * shrink + weights.sum(-1), mixed * shrink[:, None] + weights.double() @ values


def online_in_another_order(top, total, mixed, scores, values):
    higher, total, mixed = online_by_cat(top, total, mixed, scores, values)
    return higher, mixed, total


def online_in_place(top, total, mixed, scores, values):
    higher = torch.maximum(top, scores.amax(-1))
    shrink, weights = (top - higher).exp(), scores.sub_(higher[:, None]).exp_()
    return higher, total.mul_(shrink).add_(weights.sum(-1)), mixed.mul_(shrink[:, None]).add_(weights @ values)


def gradient_key_by_key(weights, values, output, d_output):
    return weights * torch.stack([(d_output * (value - output)).sum(1) for value in values], 1)


def gradient_in_the_weights_place(weights, values, output, d_output):
    return weights.mul_((d_output @ values.T).sub_((d_output * output).sum(-1, keepdim=True)))


def gradient_in_d_output_s_place(weights, values, output, d_output):
    d_weights = d_output @ values.T
    return weights * (d_weights - d_output.mul_(output).sum(-1, keepdim=True))


def gradient_with_d_added(weights, values, output, d_output):
    return weights * (d_output @ values.T + (d_output * output).sum(-1, keepdim=True))


def gradient_by_einsum(weights, values, output, d_output):
    d_weights = torch.einsum("nk,mk->nm", d_output, values)
    return weights * d_weights - weights * torch.einsum("nk,nk->n", output, d_output)[:, None]


def gradient_with_the_tile_s_sum(weights, values, output, d_output):
    d_weights = d_output @ values.T
    return weights * (d_weights - (weights * d_weights).sum(-1, keepdim=True))


def gradient_without_d(weights, values, output, d_output):
    return weights * (d_output @ values.T)


def gradient_of_the_weights(weights, values, output, d_output):
    return d_output @ values.T - (output * d_output).sum(-1, keepdim=True)


def kept_by_zip(drafted, best):
    tokens = []
    for one, other in zip(drafted, best):
        tokens.append(other)
        if one != other:
            return tokens
    return [*tokens, best[-1]]


def kept_in_a_tensor(drafted, best):
    same = torch.tensor(drafted) == torch.tensor(best[:-1])
    return torch.tensor(best)[: int(same.long().cumprod(0).sum()) + 1]


def kept_by_the_count_of_right_ones(drafted, best):
    return best[: sum(one == other for one, other in zip(drafted, best)) + 1]


def kept_wherever_right(drafted, best):
    return [token for token, due in zip(drafted, best) if token == due] + [best[-1]]


def kept_without_its_own(drafted, best):
    tokens = [*kept_by_zip(drafted, best)]
    return tokens[:-1] or tokens


def kept_of_the_draft(drafted, best):
    right = len(kept_by_zip(drafted, best)) - 1
    return [*drafted, best[-1]][: right + 1]


ANSWERS = {
    turns.check_in_tiles: Answers(
        right=[tiles_of_a_split, tiles_by_a_count, tiles_from_the_last],
        wrong={
            everything_at_once: "rows at once",
            tiles_of_one_size: "only one may be shorter",
            tiles_in_a_list: "held twice",
            without_the_last_tile: "rows in all",
            tiles_of_x_alone: "other values",
            one_row_at_a_time: "tiles are due",
            one_tile_too_many: "5 times, and 4 tiles are due",
            tiles_without_step: "step saw 0 rows",
            tiles_into_x: "stay as they are",
            tiles_in_float32: "torch.float32 came",
        },
    ),
    turns.check_add_tile: Answers(
        right=[online_by_cat, online_in_place, online_by_logarithms],
        wrong={
            online_without_rescaling: "measured from the same top",
            online_along_the_features: "must match the size",
            online_with_total_alone_rescaled: "both should be scaled alike",
            online_with_the_tile_s_top: "largest score so far",
            online_without_a_top: "measured from the same top",
            shrunk_the_wrong_way: "measured from the same top",
            online_in_float32: "measured from the same top",
            online_in_another_order: "in this order",
        },
    ),
    turns.check_d_scores: Answers(
        right=[gradient_by_einsum, gradient_key_by_key],
        wrong={
            gradient_with_the_tile_s_sum: "all of its keys",
            gradient_without_d: "has all of the row",
            gradient_of_the_weights: "has all of the row",
            gradient_with_d_added: "has all of the row",
            gradient_in_d_output_s_place: "so do other tiles",
            gradient_in_the_weights_place: "dV needs them",
        },
    ),
    turns.check_kept: Answers(
        right=[kept_by_zip, kept_in_a_tensor],
        wrong={
            kept_by_the_count_of_right_ones: "behind a wrong token",
            kept_wherever_right: "behind a wrong token",
            kept_without_its_own: "there is more",
            kept_of_the_draft: "not the large model's tokens",
        },
    ),
}
