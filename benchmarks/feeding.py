"""Batches out of a file of tokens beside `torch.utils.data.DataLoader`'s: `python benchmarks/feeding.py [turns]`.

Both read the same memory map, shuffled, in the same process. Ours computes the samples of a step (`Order`) and copies
them at once; a DataLoader draws all of an epoch's, then asks its dataset for one sample after the other and stacks
them. Ours divided by the DataLoader's time must be at most 1. The cost of a restart is printed, too: the first batch
of an epoch's last quarter, which a DataLoader reaches by reading.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from course_lib.data.order import Order
from course_lib.data.tokens import TokenFile, write_tokens

SAMPLES, LENGTH, BATCH = 4096, 1024, 32
STEPS = SAMPLES // BATCH
LARGEST_RATIO = 1.0


class Samples(Dataset[Tensor]):
    """The file's samples, as a map-style dataset."""

    def __init__(self, file: TokenFile) -> None:
        self.file = file

    def __len__(self) -> int:
        return len(self.file)

    def __getitem__(self, sample: int) -> Tensor:
        start = sample * LENGTH
        return torch.from_numpy(self.file.tokens[start : start + LENGTH + 1].astype(np.int64))


def by_order(file: TokenFile, first: int = 0) -> Iterable[Tensor]:
    """An epoch by the course's function of the step."""
    order = Order(len(file), BATCH)
    return (file.rows(order.of(step)) for step in range(first, STEPS))


def by_loader(file: TokenFile, first: int = 0) -> Iterable[Tensor]:
    """The same by PyTorch's DataLoader."""
    return itertools.islice(DataLoader(Samples(file), BATCH, shuffle=True), first, STEPS)


def seconds_of(work: Iterable[Tensor], batches: int | None) -> float:
    """Seconds until the given number of batches is there; None: all."""
    start = time.perf_counter()
    for batch in itertools.islice(work, batches):
        assert batch.shape == (BATCH, LENGTH + 1)
    return time.perf_counter() - start


def main(turns: int = 9) -> int:
    """Print medians and ratios; return 1 where ours is too slow."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tokens.bin"
        write_tokens(path, np.random.default_rng(0).integers(50_000, size=SAMPLES * LENGTH + 1))
        file, last = TokenFile(path, LENGTH), 3 * STEPS // 4
        parts = {"an epoch": (0, None), f"the first batch from step {last}": (last, 1)}
        ratios = []
        for name, (first, batches) in parts.items():
            found = [
                [seconds_of(way(file, first), batches) for way in (by_order, by_loader)] for _ in range(turns + 1)
            ][1:]  # the first ones bring the file into memory
            ours, theirs = (statistics.median(seconds) for seconds in zip(*found))
            ratios.append(statistics.median(one / other for one, other in found))
            rate = f", {SAMPLES * LENGTH / ours / 1e6:,.0f} million tokens/s" if batches is None else ""
            print(f"{name:28} {1e3 * ours:8.2f} ms{rate}; DataLoader {1e3 * theirs:8.2f} ms; ratio {ratios[-1]:.3f}")
    print(f"ours / DataLoader at most {LARGEST_RATIO}: {'yes' if ratios[0] <= LARGEST_RATIO else 'no'}")
    return int(ratios[0] > LARGEST_RATIO)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
