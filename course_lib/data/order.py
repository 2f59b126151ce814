"""The order of samples as a function: which sample stands at place i, without a table of all of them.

    place of the run:  step · batch + row        (no rank, no worker, no clock)
                            │ divmod by n
                     epoch, place in the epoch
                            │ permuted(…, n, seed, epoch)
                         sample

A run that is asked for step 1,000 computes the samples of step 1,000. So its whole state is the number of the step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from jaxtyping import Int

from course_lib.model.seeds import mix, scramble

_ROUNDS = 8
"""Four are enough where halves are long (Luby and Rackoff 1988). With the few bits of small n they leave a bias that a
test of the frequencies finds; after eight it finds none."""


def permuted(places: npt.ArrayLike, n: int, *key: int) -> Int[np.ndarray, " places"]:
    """The samples at these places of a shuffle of 0 … n - 1 that `key` names: a Feistel network, walked in circles.

    A round turns (left, right) into (right, left ^ f(right)). Whoever knows `right` takes f off again, so a round loses
    nothing, whatever f does, and rounds shuffle the numbers of 2·half bits. There may be up to four times as many of
    these as samples. A number that falls outside goes through again, and its circle leads it back inside at last.

    Args:
        places: whole numbers from 0 to n - 1.
        n: the number of samples.
        key: whole numbers, such as seed and epoch; another key is another shuffle.

    Raises:
        ValueError: n is not positive, or a place is outside.

    Source: Luby and Rackoff 1988; Black and Rogaway 2002, §4 (cycle walking).
    """
    numbers = np.array(places, dtype=np.int64, ndmin=1)
    if n < 1 or (numbers < 0).any() or (numbers >= n).any():
        raise ValueError(
            f"places {numbers.tolist()[:4]} of {n} samples: give places from 0 to n - 1, and n of at least 1"
        )
    numbers = numbers.astype(np.uint64)  # scramble's products wrap around at 64 bits
    half = np.uint64(max(1, ((n - 1).bit_length() + 1) // 2))
    low = (np.uint64(1) << half) - np.uint64(1)
    secrets = [np.uint64(mix(*key, number)) for number in range(_ROUNDS)]
    outside = np.ones(len(numbers), dtype=bool)  # all go through at least once
    while outside.any():
        left, right = numbers[outside] >> half, numbers[outside] & low
        for secret in secrets:
            # `scramble` is written for one integer, and works for arrays.
            left, right = right, left ^ (scramble(right ^ secret) & low)  # type: ignore[arg-type]
        numbers[outside] = left << half | right
        outside = numbers >= n
    return numbers.astype(np.int64)


@dataclass(frozen=True)
class Order:
    """Every sample once in each epoch, each epoch in another order.

    Attributes:
        n: number of samples.
        batch: samples of one step, over all ranks.
        seed: names the order.

    Raises:
        ValueError: n or batch is not positive.
    """

    n: int
    batch: int
    seed: int = 0

    def __post_init__(self) -> None:
        if self.n < 1 or self.batch < 1:
            raise ValueError(f"n={self.n}, batch={self.batch}: both must be at least 1")

    def of(self, step: int, rank: int = 0, world_size: int = 1) -> Int[np.ndarray, " rows"]:
        """The samples of this rank in this step: every `world_size`-th row of the batch. Ranks send nothing.

        The rows of all ranks together are the same batch, whatever the world size. Where the size does not divide the
        batch, some ranks have a row more than others; a mean over ranks must weigh them. ValueError for a rank
        outside of the world.
        """
        if not 0 <= rank < world_size:
            raise ValueError(f"rank={rank} of {world_size}: give 0 to {world_size - 1}")
        rows = np.arange(rank, self.batch, world_size) + step * self.batch
        epochs, places = np.divmod(rows, self.n)
        samples = np.empty_like(rows)
        for epoch in np.unique(epochs):  # an epoch may end inside of a batch
            samples[epochs == epoch] = permuted(places[epochs == epoch], self.n, self.seed, int(epoch))
        return samples
