"""Checks of lesson 13's turns: gates, rows that travel, balance, and places."""

from __future__ import annotations

import torch

from course_kit.notebook.your_turn import Function
from course_lib import predict

_ROWS = 8 * 4096 * 7168  # numbers of DeepSeek-V3's rows on a rank: eight choices, 4,096 tokens, the width
EXERCISES = (
    2 * 16 * 1024 // 16 - int(1.25 * 2 * 16 * 1024 / 64),
    2 * (predict.all_to_all(_ROWS, 64).bytes + predict.all_to_all(2 * _ROWS, 64).bytes) / 1e6,
    8 * 1 * (1 / 8),
)
"""Answers to the exercises: choices, MB, the loss of balance E · f · P of the only expert that is wanted."""


def check_gates(gates_of: Function) -> None:
    """Choices and gates of every token, for one, two and three choices, and the gates' gradient for the router."""
    rows = torch.tensor([[0.5, 0.3, 0.15, 0.05], [0.1, 0.05, 0.25, 0.6], [0.2, 0.45, 0.05, 0.3]])
    for top_k in (2, 1, 3):
        probabilities = rows.clone().requires_grad_()
        chosen, gates = gates_of(probabilities, top_k)
        assert torch.equal(probabilities, rows), "the probabilities changed, and the caller still needs them"
        for what, each in (("experts", chosen), ("gates", gates)):
            assert each.shape == (3, top_k), (
                f"{top_k} choices of 3 tokens: {what} of the shape {tuple(each.shape)} came, and (3, {top_k}) should"
            )
        for token, row in enumerate(_plain(rows)):
            told, best = f"{top_k} choices from {row}", sorted(range(4), key=lambda expert: -row[expert])[:top_k]
            came = list(map(int, chosen[token]))
            assert came == best, f"{told}: experts {came} came, and these are not the most probable, the best first"
            share = torch.tensor([row[expert] for expert in best])
            due = share if top_k == 1 else share / share.sum()
            of = "its probability" if top_k == 1 else "their probabilities over the sum of these"
            said = [round(gate, 3) for gate in gates[token].tolist()]
            assert torch.allclose(gates[token], due), f"{told}: the gates came as {said}, and should be {of}"
        assert gates.requires_grad, "no gradient leads from the gates to the probabilities, so the router cannot learn"
        gates[1, 0].backward()
        given = rows.clone().requires_grad_()
        best = given[1, chosen[1]]
        (best[0] if top_k == 1 else best[0] / best.sum()).backward()
        came, due = probabilities.grad, given.grad
        assert came is not None and due is not None and torch.allclose(came, due, atol=1e-6), (
            f"{top_k} choices: token 1's first gate has the wrong gradient for the probabilities"
        )


def check_traffic(my_rows: Function) -> None:
    """Rows that a rank sends and receives; ranks with one, two and three experts each."""
    for counts in ([[3, 1, 0, 2], [5, 0, 4, 1]], [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11], [12, 13, 14, 15, 16, 17]],
                   [[2, 7], [1, 4]], [[1, 0, 2, 5, 3, 8], [4, 4, 0, 1, 6, 2]]):  # fmt: skip
        own, given = len(counts[0]) // len(counts), torch.tensor(counts)
        for rank in range(len(counts)):
            both = my_rows(given, rank)
            assert given.tolist() == counts, "the counts changed, and the caller still needs them"
            sends, receives = list(both[0]), list(both[1])
            assert all(isinstance(one, int) for one in sends + receives), "an all-to-all takes lists of ints"
            to = [sum(counts[rank][owner * own : owner * own + own]) for owner in range(len(counts))]
            back = [sum(row[rank * own : rank * own + own]) for row in counts]
            told = f"counts {counts}, {own} experts on each rank: rank {rank}"
            assert sends == to, f"{told} cannot send {sends}: look at its row, and at the experts that lie together"
            assert receives == back, f"{told} cannot receive {receives}: look at what each rank has for its experts"


def check_balance(balance: Function) -> None:
    """The loss and its gradient: an expert that no token wants, second choices, and a batch in balance."""
    rows = torch.tensor([[0.7, 0.2, 0.1], [0.5, 0.3, 0.2], [0.2, 0.7, 0.1], [0.8, 0.1, 0.1]])
    cases = [(rows, [[0, 1], [0, 1], [1, 0], [0, 1]]), (rows[:, :2], [[0], [0], [1], [0]])]
    cases += [(rows, [[0], [1], [0], [1]]), (torch.full((2, 4), 0.25), [[0, 1], [3, 1]])]
    for given, chosen in cases:
        probabilities, (tokens, experts) = given.clone().requires_grad_(), given.shape
        first = torch.tensor([sum(row[0] == expert for row in chosen) / tokens for expert in range(experts)])
        due = experts * (first * given.mean(0)).sum().item()
        told = f"{tokens} tokens choose {chosen} among {experts} experts, with probabilities {_plain(given)}"
        came = torch.as_tensor(balance(probabilities, torch.tensor(chosen)))
        assert abs(came.item() - due) < 1e-5, (
            f"{told}: the loss came as {came.item():.4g}; f counts first choices, over the tokens, P is a mean"
        )
        assert came.requires_grad, f"{told}: no gradient leads to the probabilities, so no router would move"
        (slope,) = torch.autograd.grad(came, probabilities)
        assert torch.allclose(slope, (experts * first / tokens).expand(tokens, -1), atol=1e-6), (
            f"{told}: each probability should be pulled in proportion to the demand for its expert"
        )


def _plain(rows: torch.Tensor) -> list[list[float]]:
    return [[round(one, 3) for one in row] for row in rows.tolist()]


def check_places(places: Function) -> None:
    """Choices that find a place: first ones before second ones, token by token, each expert with its own places.

    In the last case a token loses its first choice and keeps its second.
    """
    cases = [([[0, 1], [0, 2], [0, 1], [1, 0]], 3, 2), ([[1], [1], [1]], 3, 2), ([[0, 1], [1, 0]], 3, 1)]
    cases += [([[3, 0, 1], [3, 1, 0], [0, 3, 1], [0, 1, 3]], 4, 2), ([[0, 1], [1, 0]], 2, 4), ([[0, 1], [0, 2]], 3, 1)]
    for chosen, experts, capacity in cases:
        taken, due = [0] * experts, [[False] * len(chosen[0]) for _ in chosen]
        for choice in range(len(chosen[0])):
            for token, wanted in enumerate(chosen):
                due[token][choice] = taken[wanted[choice]] < capacity
                taken[wanted[choice]] += 1
        given, told = torch.tensor(chosen), f"choices {chosen}, {capacity} places at each of {experts} experts"
        came = [[bool(one) for one in row] for row in places(given, experts, capacity)]
        assert given.tolist() == chosen, f"{told}: afterwards the choices are {given.tolist()}"
        assert [len(row) for row in came] == [len(row) for row in due], f"{told}: the answer has another shape"
        for token, choice in ((t, c) for c in range(len(due[0])) for t in range(len(due))):
            right = due[token][choice] == came[token][choice]
            assert right, f"{told}: choice {choice} of token {token} came as {came[token][choice]}"
