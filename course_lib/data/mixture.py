"""Mixtures: which source gives sample t, so that no prefix of the run is more than one sample off."""

from __future__ import annotations

from collections.abc import Sequence


class Mixture:
    """Sources in turn, in proportion to whole-number weights; a function of the sample's number.

    After any t samples a source with share s has given floor(s·t) or ceil(s·t). Random draws are off by about √t.
    Rounding s·t anew for each t (largest remainders) is as close and no order at all: a source may have to take a
    sample back. The quota method gives sample t to the source with the largest weight / (given + 1) among those that
    are still below their share of t + 1. The period is the sum of the weights, and one period is all that is stored.

    Args:
        weights: whole numbers: (60, 22, 18) is percent, and so is (0.6, 0.22, 0.18) times 100.

    Raises:
        ValueError: there are no weights, or one is not a positive integer.

    Source: Balinski and Young 1975, "The Quota Method of Apportionment".
    """

    def __init__(self, weights: Sequence[int]) -> None:
        if not weights or not all(isinstance(weight, int) and weight > 0 for weight in weights):
            raise ValueError(f"weights {list(weights)}: give whole numbers above 0, such as percent")
        self.weights, self.period = tuple(weights), sum(weights)
        self._turns: list[tuple[int, int]] = []  # (source, how many it gave before) of each sample in a period
        given = [0] * len(weights)
        for t in range(self.period):
            below = [i for i, weight in enumerate(weights) if given[i] * self.period < weight * (t + 1)]
            source = max(below, key=lambda i: (weights[i] / (given[i] + 1), -i))  # the first of several
            self._turns.append((source, given[source]))
            given[source] += 1

    def at(self, t: int) -> tuple[int, int]:
        """The source of sample t, and the sample's number among those of this source."""
        periods, turn = divmod(t, self.period)
        source, before = self._turns[turn]
        return source, periods * self.weights[source] + before
