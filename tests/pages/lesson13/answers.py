"""Answers to lesson 13's turns, right and wrong."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from course_pages.lesson13 import turns
from tests.pages.answers import Answers


def gates_by_sorting(probabilities, top_k):
    sorted_, order = probabilities.sort(dim=-1, descending=True)
    best = sorted_[:, :top_k]
    return order[:, :top_k], best if top_k == 1 else F.normalize(best, p=1, dim=-1)


def gates_that_are_detached(probabilities, top_k):
    best, chosen = probabilities.detach().topk(top_k)
    return chosen, best if top_k == 1 else best / best.sum(-1, keepdim=True)


def gates_over_a_detached_sum(probabilities, top_k):
    best, chosen = probabilities.topk(top_k)
    return chosen, best if top_k == 1 else best / best.sum(-1, keepdim=True).detach()


def gates_whose_own_probability_is_detached(probabilities, top_k):
    best, chosen = probabilities.topk(top_k)
    return chosen, best if top_k == 1 else best.detach() / best.sum(-1, keepdim=True)


def gates_over_the_sum_of_token_0(probabilities, top_k):
    best, chosen = probabilities.topk(top_k)
    return chosen, best if top_k == 1 else best / best[0].sum()


def gates_with_the_second_row_turned(probabilities, top_k):
    chosen, gates = gates_by_sorting(probabilities, top_k)
    return torch.stack([chosen[0], chosen[1].flip(0), *chosen[2:]]), torch.stack(
        [gates[0], gates[1].flip(0), *gates[2:]]
    )


def gates_by_striking_out_the_best(probabilities, top_k):
    found = []
    for _ in range(top_k):
        found.append(probabilities.max(-1, keepdim=True))
        probabilities.data.scatter_(1, found[-1].indices, 0)
    best, chosen = (torch.cat(each, 1) for each in zip(*found))
    return chosen, best if top_k == 1 else best / best.sum(-1, keepdim=True)


def gates_by_a_second_softmax(probabilities, top_k):
    best, chosen = probabilities.topk(top_k)
    return chosen, best if top_k == 1 else best.softmax(-1)


def gates_divided_for_two_alone(probabilities, top_k):
    best, chosen = probabilities.topk(top_k)
    return chosen, best / best.sum(-1, keepdim=True) if top_k == 2 else best


def one_gate_over_itself(probabilities, top_k):
    best, chosen = probabilities.topk(top_k)
    return chosen, best / best.sum(-1, keepdim=True)


def gates_that_are_not_divided(probabilities, top_k):
    best, chosen = probabilities.topk(top_k)
    return chosen, best


def gates_of_all_experts(probabilities, top_k):
    best, chosen = probabilities.topk(top_k)
    gates = torch.zeros_like(probabilities).scatter(1, chosen, best)
    return chosen, gates if top_k == 1 else gates / gates.sum(-1, keepdim=True)


def gates_in_a_line(probabilities, top_k):
    best, chosen = probabilities.topk(top_k)
    return (chosen[:, 0], best[:, 0]) if top_k == 1 else (chosen, best / best.sum(-1, keepdim=True))


def rows_in_a_double_loop(counts, rank):
    ranks, own = len(counts), counts.shape[1] // len(counts)
    sends, receives = [0] * ranks, [0] * ranks
    for other in range(ranks):
        for expert in range(own):
            sends[other] += counts[rank, other * own + expert].item()
            receives[other] += counts[other, rank * own + expert].item()
    return sends, receives


def rows_in_tensors(counts, rank):
    rows = counts.view(len(counts), len(counts), -1).sum(2)
    return rows[rank], rows.T[rank]


def rows_as_lists(counts, rank):
    sends, receives = rows_in_tensors(counts, rank)
    return sends.tolist(), receives.tolist()


def rows_as_tuples(counts, rank):
    return tuple(map(tuple, rows_as_lists(counts, rank)))


def rows_one_by_one(counts, rank):
    return (rows for rows in rows_as_lists(counts, rank))


def rows_summed_into_the_counts(counts, rank):
    rows = counts.view(len(counts), len(counts), -1)
    rows[..., 0] = rows.sum(2)
    return rows[rank, :, 0].tolist(), rows[:, rank, 0].tolist()


def rows_swapped(counts, rank):
    sends, receives = rows_as_lists(counts, rank)
    return receives, sends


def rows_sent_twice(counts, rank):
    sends, _ = rows_as_lists(counts, rank)
    return sends, sends


def rows_of_strided_experts(counts, rank):
    rows = counts.view(len(counts), -1, len(counts)).sum(1)
    return rows[rank].tolist(), rows[:, rank].tolist()


def rows_without_itself(counts, rank):
    rows = counts.view(len(counts), len(counts), -1).sum(2)
    rows = rows * (1 - torch.eye(len(counts), dtype=rows.dtype))
    return rows[rank].tolist(), rows[:, rank].tolist()


def balance_by_one_hot(probabilities, chosen):
    shares = F.one_hot(chosen[:, 0], probabilities.shape[1]).float().mean(0)
    return probabilities.shape[1] * shares @ probabilities.mean(0)


def balance_without_minlength(probabilities, chosen):
    tokens, experts = probabilities.shape
    return experts * (chosen[:, 0].bincount() / tokens * probabilities.mean(0)).sum()


def balance_of_all_choices(probabilities, chosen):
    tokens, experts = probabilities.shape
    return experts * (chosen.flatten().bincount(minlength=experts) / chosen.numel() * probabilities.mean(0)).sum()


def balance_of_the_most_probable(probabilities, chosen):
    return balance_by_one_hot(probabilities, probabilities.argmax(-1, keepdim=True))


def balance_without_the_experts(probabilities, chosen):
    return balance_by_one_hot(probabilities, chosen) / probabilities.shape[1]


def balance_of_sums(probabilities, chosen):
    return balance_by_one_hot(probabilities, chosen) * len(probabilities)


def balance_without_a_gradient(probabilities, chosen):
    return balance_by_one_hot(probabilities.detach(), chosen)


def balance_as_a_number(probabilities, chosen):
    return balance_by_one_hot(probabilities, chosen).item()


def places_token_by_token_in_a_dictionary(chosen, experts, capacity):
    left = [capacity] * experts
    kept = torch.zeros_like(chosen, dtype=torch.bool)
    for choice in range(chosen.shape[1]):
        for token in range(len(chosen)):
            expert = int(chosen[token, choice])
            kept[token, choice] = left[expert] > 0
            left[expert] -= 1
    return kept


def places_by_one_hot(chosen, experts, capacity):
    wants = F.one_hot(chosen.T.flatten(), experts)
    return ((wants.cumsum(0) * wants).sum(-1) <= capacity).view(chosen.T.shape).T.int()


def places_marked_in_the_choices(chosen, experts, capacity):
    chosen[~places_token_by_token_in_a_dictionary(chosen, experts, capacity)] = -1
    return chosen >= 0


def places_token_before_choice(chosen, experts, capacity):
    wants = F.one_hot(chosen.flatten(), experts)
    return ((wants.cumsum(0) * wants).sum(-1) <= capacity).view(chosen.shape)


def places_anew_for_each_choice(chosen, experts, capacity):
    wants = F.one_hot(chosen, experts)
    return (wants.cumsum(0) * wants).sum(-1) <= capacity


def places_one_short(chosen, experts, capacity):
    wants = F.one_hot(chosen.T.flatten(), experts)
    return ((wants.cumsum(0) * wants).sum(-1) < capacity).view(chosen.T.shape).T


def places_without_turning_back(chosen, experts, capacity):
    wants = F.one_hot(chosen.T.flatten(), experts)
    return ((wants.cumsum(0) * wants).sum(-1) <= capacity).view(chosen.shape)


def places_only_behind_a_first_choice(chosen, experts, capacity):
    kept = places_token_by_token_in_a_dictionary(chosen, experts, capacity)
    return kept & kept[:, :1]


ANSWERS = {
    turns.check_gates: Answers(
        right=[gates_by_sorting],
        wrong={
            gates_that_are_detached: "no gradient leads",
            gates_by_striking_out_the_best: "the probabilities changed",
            gates_by_a_second_softmax: "over the sum of these",
            gates_divided_for_two_alone: "3 choices",
            gates_over_a_detached_sum: "wrong gradient",
            gates_whose_own_probability_is_detached: "wrong gradient",
            gates_over_the_sum_of_token_0: "over the sum of these",
            gates_with_the_second_row_turned: "the best first",
            one_gate_over_itself: "should be its probability",
            gates_that_are_not_divided: "over the sum of these",
            gates_of_all_experts: "gates of the shape (3, 4) came",
            gates_in_a_line: "experts of the shape (3,) came",
        },
    ),
    turns.check_traffic: Answers(
        right=[rows_in_a_double_loop, rows_as_lists, rows_as_tuples],
        wrong={
            rows_in_tensors: "takes lists",
            rows_one_by_one: "not subscriptable",
            rows_summed_into_the_counts: "the counts changed",
            rows_swapped: "cannot send",
            rows_sent_twice: "cannot receive",
            rows_of_strided_experts: "cannot send",
            rows_without_itself: "cannot send",
        },
    ),
    turns.check_balance: Answers(
        right=[balance_by_one_hot],
        wrong={
            balance_without_minlength: "size of tensor",
            balance_of_all_choices: "f counts first choices",
            balance_of_the_most_probable: "f counts first choices",
            balance_without_the_experts: "the loss came as",
            balance_of_sums: "the loss came as",
            balance_without_a_gradient: "no gradient leads",
            balance_as_a_number: "no gradient leads",
        },
    ),
    turns.check_places: Answers(
        right=[places_token_by_token_in_a_dictionary, places_by_one_hot],
        wrong={
            places_marked_in_the_choices: "afterwards the choices are",
            places_token_before_choice: "came as",
            places_anew_for_each_choice: "came as True",
            places_one_short: "came as False",
            places_only_behind_a_first_choice: "choice 1 of token 1 came as False",
            places_without_turning_back: "came as",
        },
    ),
}
