"""Tokens on disk: 2 bytes each, one after the other, and a map from addresses to the file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Int
from torch import Tensor

from course_kit.units import Bytes


def write_tokens(path: str | Path, tokens: npt.ArrayLike) -> Bytes:
    """Write tokens as little-endian 16-bit integers, without a header; return the bytes written: 2 a token.

    Raises:
        ValueError: a token does not fit into 16 bits.
    """
    numbers = np.asarray(tokens)
    if numbers.size and not 0 <= int(numbers.min()) <= int(numbers.max()) < 2**16:
        raise ValueError(f"tokens from {numbers.min()} to {numbers.max()}: 16 bits hold 0 to 65535; use 32 for more")
    numbers.astype("<u2").tofile(path)
    return Bytes(2 * numbers.size)


class TokenFile:
    """Samples of `length` + 1 tokens, read where they lie: inputs and, moved on by one, targets.

    Opening reads nothing. The system brings a page of 4 KiB when somebody reads it, and takes it away when memory is
    short; all processes of a machine share it. Samples follow each other, and the last token of one is the first of the
    next, so each token is a target once.

    Args:
        path: a file that `write_tokens` made.
        length: tokens of a sample's inputs.

    Raises:
        ValueError: the file does not hold one sample.
    """

    def __init__(self, path: str | Path, length: int) -> None:
        self.length = length
        tokens = Path(path).stat().st_size // 2
        if length < 1 or tokens < length + 1:
            raise ValueError(f"{path} has {tokens} tokens: a sample of length {length} needs {length + 1}")
        self.tokens = np.memmap(path, dtype="<u2", mode="r")
        self._samples = np.lib.stride_tricks.sliding_window_view(self.tokens, length + 1)[::length]  # no copy

    def __len__(self) -> int:
        """Number of samples; the tokens left at the end are too few for one more."""
        return (len(self.tokens) - 1) // self.length

    def rows(self, samples: npt.ArrayLike) -> Int[Tensor, "rows tokens"]:
        """Copy these samples out of the file; int64, as an embedding wants them.

        Raises:
            IndexError: there is no such sample.
        """
        numbers = np.asarray(samples, dtype=np.int64)
        if numbers.size and not 0 <= numbers.min() <= numbers.max() < len(self):
            raise IndexError(f"samples {numbers.tolist()}: there are {len(self)}")
        return torch.from_numpy(self._samples[numbers].astype(np.int64))
