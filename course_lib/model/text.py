"""Text to train on, without a download. Tokens are bytes, so the vocabulary has 256 entries and needs no tokenizer.

Three sources: `stories`, endless and of known entropy; `python_manual`, half a megabyte of real English that ships with
Python; and any `file` or `folder` of yours. A batch is a function of (seed, step, rank) and of nothing else: no source
has a position, a cache or a random state that a call would change. So any process can replay any step of any rank.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import torch
from jaxtyping import Int
from torch import Tensor

from course_lib.model.grammar import STORIES, Grammar
from course_lib.model.seeds import integers

VOCAB_SIZE = 256
"""Different tokens in every text: a token is a byte."""

Batch = tuple[Int[Tensor, "batch seq"], Int[Tensor, "batch seq"]]
"""Inputs, and the same text one byte later as targets."""


class TextSource(ABC):
    """Something that batches of text are drawn from."""

    @abstractmethod
    def window(self, draws: Iterator[int], length: int) -> bytes:
        """`length` consecutive bytes from a place that `draws`, a stream of 64-bit integers, chooses."""

    def batch(self, seed: int, step: int, rank: int, batch_size: int, context: int) -> Batch:
        """The batch that `rank` trains on in `step`: the same for the same arguments, on every machine.

        The rows of all ranks together do not depend on how many ranks there are: rank r has the rows from
        r · batch_size of the step's global batch. So one process that asks for rank 0 and a batch of p · batch_size
        gets what p ranks get together.

        Returns:
            Inputs and targets, int64 of shape (batch_size, context) on the CPU.

        Raises:
            ValueError: a size is below 1, step or rank is negative, or the text is shorter than context + 1 bytes.
        """
        if min(batch_size, context) < 1 or min(step, rank) < 0:
            raise ValueError(
                f"batch_size={batch_size} and context={context} must be at least 1, "
                f"step={step} and rank={rank} at least 0"
            )
        first_row = rank * batch_size
        rows = [self.window(integers(seed, step, row), context + 1) for row in range(first_row, first_row + batch_size)]
        tokens = torch.frombuffer(bytearray(b"".join(rows)), dtype=torch.uint8).view(batch_size, context + 1).long()
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


class Stories(TextSource):
    """An endless stream of independent short stories from a `Grammar`; no two seeds give the same stream.

    A window starts anywhere in a story, each byte of the stream being equally likely. That makes the stream stationary,
    and for a stationary source no reader can do better, on average and at any position, than `entropy_per_byte`
    (Shannon 1948; Cover and Thomas, theorem 4.2.1). A reader with a short memory stays a little above: at the start of
    its window it has not yet seen the hero's name.
    """

    def __init__(self, seed: int, grammar: Grammar) -> None:
        self.seed = seed
        self.grammar = grammar

    @property
    def entropy_per_byte(self) -> float:
        """Entropy rate in nats per byte: what the loss of a perfect reader approaches. Divide by ln 2 for bits."""
        return self.grammar.entropy / self.grammar.expected_bytes

    def window(self, draws: Iterator[int], length: int) -> bytes:
        """`length` bytes of a fresh stream."""
        draws = integers(self.seed, next(draws))
        text = self._started(draws)
        while len(text) < length:
            text += self.grammar.story(draws).encode()
        return text[:length]

    def _started(self, draws: Iterator[int]) -> bytes:
        """The rest of a story, cut at a byte of the stream that is chosen uniformly.

        A uniform byte falls into long stories more often than into short ones, in proportion to their length. So
        propose a byte among as many as the longest story has, and try again where the story is shorter than that.
        """
        while True:
            story = self.grammar.story(draws).encode()
            start = next(draws) * self.grammar.longest >> 64
            if start < len(story):
                return story[start:]


class Corpus(TextSource):
    """A fixed text; a window starts at any byte that leaves room for it, all equally likely."""

    def __init__(self, data: bytes, name: str) -> None:
        self.data = data
        self.name = name

    def window(self, draws: Iterator[int], length: int) -> bytes:
        """`length` bytes from a uniformly drawn position."""
        places = len(self.data) - length + 1
        if places < 1:
            raise ValueError(
                f"{self.name} has {len(self.data)} bytes, too few for a window of {length}: ask for less context"
            )
        start = next(draws) * places >> 64
        return self.data[start : start + length]


def stories(seed: int = 0) -> Stories:
    """Endless short stories, written by a grammar whose entropy is known exactly (see `Stories`)."""
    return Stories(seed, Grammar(STORIES))


def python_manual() -> Corpus:
    """The language reference that Python carries for `help()`: real English and code.

    Its text differs a little from one version of Python to the next.

    Raises:
        ValueError: this Python was installed without it.
    """
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise ValueError("this Python ships no pydoc_data.topics; use text.folder(...) on a text of yours") from error
    return Corpus("\n".join(topics[name] for name in sorted(topics)).encode(), "the Python manual")


def file(path: str | Path) -> Corpus:
    """One file of yours, taken as bytes.

    Raises:
        ValueError: there is no such file, or it is empty.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"{path} is not a file; give the path of a text file (for a directory, use text.folder)")
    return _corpus([path], str(path))


def folder(path: str | Path, pattern: str = "**/*.txt") -> Corpus:
    """All files below a folder that match `pattern`, joined in the order of their names.

    Raises:
        ValueError: there is no such folder, or nothing in it matches.
    """
    path = Path(path)
    if not path.is_dir():
        raise ValueError(f"{path} is not a folder; give the path of one (for a single file, use text.file)")
    files = sorted(found for found in path.glob(pattern) if found.is_file())
    if not files:
        raise ValueError(f"no file in {path} matches {pattern!r}; give another pattern, such as '**/*.md'")
    return _corpus(files, f"{path}/{pattern}")


def _corpus(files: list[Path], name: str) -> Corpus:
    data = b"\n".join(found.read_bytes() for found in files)
    if not data.strip():
        raise ValueError(f"{name} is empty; choose a text with at least a few thousand bytes")
    return Corpus(data, name)


def ngram_entropy(data: bytes, n: int) -> float:
    """Entropy in nats of a byte given the n - 1 before it, by counting in `data`: what a table of n-grams could reach.

    n = 1 knows only how frequent each byte is; n = 2 knows the byte before. Counting on a short text flatters large n:
    there the table remembers instead of predicting.

    Raises:
        ValueError: n is below 1, or `data` has fewer than n bytes.
    """
    if not 1 <= n <= len(data):
        raise ValueError(f"n={n} for {len(data)} bytes: n must be at least 1 and at most the length of the text")
    grams = Counter(data[i : i + n] for i in range(len(data) - n + 1))
    contexts: Counter[bytes] = Counter()
    for gram, count in grams.items():
        contexts[gram[:-1]] += count
    total = sum(grams.values())
    return -sum(count * math.log(count / contexts[gram[:-1]]) for gram, count in grams.items()) / total
