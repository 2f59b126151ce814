"""Text to train on, without a download. Tokens are bytes, so the vocabulary has 256 entries and needs no tokenizer.

A batch is a function of (seed, step, rank) alone: no source has a position, a cache or a random state that a call would
change. So any process can replay any step of any rank.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

import torch
from jaxtyping import Int
from torch import Tensor

from course_lib.model.seeds import integers

VOCAB_SIZE = 256
"""Number of different tokens: a token is a byte."""

Batch = tuple[Int[Tensor, "_ _"], Int[Tensor, "_ _"]]
"""Inputs and targets, (batch, seq) each; no two batches, or pieces of one, need to have one shape."""


class TextSource(ABC):
    """A text that batches are drawn from."""

    @abstractmethod
    def window(self, draws: Iterator[int], length: int) -> bytes:
        """Read `length` consecutive bytes from a place that `draws`, a stream of 64-bit integers, chooses."""

    def batch(self, seed: int, step: int, rank: int, batch_size: int, context: int) -> Batch:
        """The batch that `rank` trains on in `step`: the same for the same arguments, on every machine.

        Rank r has the rows from r · batch_size of the step's global batch, which does not depend on the number of
        ranks. So one process that asks for rank 0 and a batch of p · batch_size gets the rows of p ranks.

        Returns:
            Inputs, and the same text one byte later as targets: int64 of shape (batch_size, context) on the CPU.

        Raises:
            ValueError: a size is below 1, step or rank is negative, or the text is shorter than context + 1 bytes.
        """
        if min(batch_size, context) < 1 or min(step, rank) < 0:
            raise ValueError(
                f"batch_size={batch_size} and context={context} must be at least 1, "
                f"step={step} and rank={rank} at least 0"
            )
        first_row = rank * batch_size
        # One byte more than the context, for the last target. (A bytearray: PyTorch warns of read-only bytes.)
        rows = [self.window(integers(seed, step, row), context + 1) for row in range(first_row, first_row + batch_size)]
        tokens = torch.frombuffer(bytearray(b"".join(rows)), dtype=torch.uint8).view(batch_size, context + 1).long()
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


class Stories(TextSource):
    """An endless stream of independent short stories from a `Grammar`; no two seeds give the same stream.

    A window starts anywhere in a story, at each byte of the stream with the same chance. So the stream is stationary,
    and for a stationary source no reader can do better, on average and at any position, than `entropy_per_byte`
    (Shannon 1948; Cover and Thomas, theorem 4.2.1). A reader with a short memory stays a little above this bound: at
    the start of a window the reader has not yet seen the hero's name.
    """

    def __init__(self, seed: int, grammar: Grammar) -> None:
        self.seed = seed
        self.grammar = grammar

    @property
    def entropy_per_byte(self) -> float:
        """Entropy rate in nats per byte: the limit of a perfect reader's loss. Divide by ln 2 for bits."""
        return self.grammar.entropy / self.grammar.expected_bytes()

    def window(self, draws: Iterator[int], length: int) -> bytes:
        """Write `length` bytes of a new stream."""
        draws = integers(self.seed, next(draws))  # a stream of the window's own, of any length
        text = self._started(draws)
        while len(text) < length:
            text += self.grammar.story(draws).encode()
        return text[:length]  # cut in the middle of a story, like its beginning

    def _started(self, draws: Iterator[int]) -> bytes:
        """The rest of a story from a byte of the stream that is chosen uniformly.

        A uniform byte falls into stories in proportion to their length. So propose a byte as if this
        story were the longest, and try again where the story ends before this byte.
        """
        while True:
            story = self.grammar.story(draws).encode()
            start = next(draws) * self.grammar.longest() >> 64  # a 64-bit draw, scaled down to 0 … longest - 1
            if start < len(story):
                return story[start:]


class Corpus(TextSource):
    """A fixed text. A window starts at any byte that leaves room for the window, all equally likely."""

    def __init__(self, data: bytes, name: str) -> None:
        self.data = data
        self.name = name

    def window(self, draws: Iterator[int], length: int) -> bytes:
        """Read `length` bytes from a uniformly drawn position."""
        places = len(self.data) - length + 1
        if places < 1:
            raise ValueError(
                f"{self.name} has {len(self.data)} bytes, too few for a window of {length}: ask for less context"
            )
        start = next(draws) * places >> 64  # the same scaling, to 0 … places - 1
        return self.data[start : start + length]


def stories(seed: int = 0) -> Stories:
    """Endless short stories, written by a grammar of exactly known entropy (see `Stories`)."""
    return Stories(seed, Grammar(STORIES))


def python_manual() -> Corpus:
    """The language reference behind `help()`: half a megabyte of real English and code, a little new in each version.

    Raises:
        ValueError: this Python was installed without the manual.
    """
    try:
        from pydoc_data.topics import topics  # some distributions leave this package out
    except ImportError as error:
        raise ValueError("no pydoc_data.topics in this Python; give text.Corpus(data, name) a text of yours") from error
    return Corpus("\n".join(topics[name] for name in sorted(topics)).encode(), "the Python manual")


def ngram_entropy(data: bytes, n: int) -> float:
    """Entropy in nats of a byte given the n - 1 bytes before, counted in `data`: the best loss of a table of n-grams.

    n = 1 knows only how frequent each byte is; n = 2 knows the byte before. A short text flatters large n: there the
    table remembers instead of predicting.

    Raises:
        ValueError: n is below 1, or `data` has fewer than n bytes.
    """
    if not 1 <= n <= len(data):
        raise ValueError(f"n={n} for {len(data)} bytes: n must be at least 1 and at most the length of the text")
    grams = Counter(data[i : i + n] for i in range(len(data) - n + 1))
    contexts: Counter[bytes] = Counter()
    for gram, count in grams.items():
        contexts[gram[:-1]] += count  # not counted in `data`, where the last n - 1 bytes have no byte after them
    total = sum(grams.values())
    return -sum(count * math.log(count / contexts[gram[:-1]]) for gram, count in grams.items()) / total


_SLOT = re.compile(r"\{(\w+)\}")  # with a group, `split` returns text, symbol, text, symbol, …, text
Rules = Mapping[str, Sequence[tuple[int, str]]]


class Grammar:
    """Stories by weighted draws, from the symbol "story" downwards. A symbol in capitals is drawn once for a story.

    Args:
        rules: symbol → alternatives, each a whole-number weight and its text.

    Raises:
        ValueError: a symbol is used and not defined, a weight is not a positive integer, or "story" is missing.
    """

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self._parts = {symbol: [_SLOT.split(text) for _, text in options] for symbol, options in rules.items()}
        used = {slot for options in self._parts.values() for parts in options for slot in parts[1::2]} | {"story"}
        if missing := sorted(used - set(rules)):
            raise ValueError(f"no rule for {', '.join(missing)}: give each symbol that is used its alternatives")
        for symbol, options in rules.items():
            if not options or not all(isinstance(weight, int) and weight > 0 for weight, _ in options):
                raise ValueError(f"{symbol}: it needs alternatives, and their weights must be positive integers")
        # The entropy counts a symbol in capitals once for each story, which must be true of every story.
        if unsure := sorted(symbol for symbol in used - self._surely("story") if symbol.isupper()):
            raise ValueError(
                f"some stories do not mention {', '.join(unsure)}: a symbol in capitals must be in all of them"
            )

    def story(self, draws: Iterator[int]) -> str:
        """Write the story that `draws`, a stream of 64-bit integers, stands for."""
        return self._write("story", draws, {})

    def _write(self, symbol: str, draws: Iterator[int], remembered: dict[str, str]) -> str:
        if symbol in remembered:
            return remembered[symbol]
        weights = [weight for weight, _ in self.rules[symbol]]
        mark = next(draws) * sum(weights) >> 64  # the draw is a fraction of 2^64, so this is 0 … sum - 1
        parts = self._parts[symbol][bisect_right(list(accumulate(weights)), mark)]  # symbols at odd places
        text = "".join(self._write(part, draws, remembered) if i % 2 else part for i, part in enumerate(parts))
        if symbol.isupper():
            remembered[symbol] = text
        return text

    @property
    def entropy(self) -> float:
        """Entropy of a story in nats: the sum over symbols of a draw's entropy times the expected number of draws."""
        draws = self._expected_draws().items()
        return -sum(times * p * math.log(p) for symbol, times in draws for p in self.probabilities(symbol))

    def expected_bytes(self, symbol: str = "story") -> float:
        """Mean length of a symbol's text in bytes."""
        lengths = (
            sum(self.expected_bytes(part) if i % 2 else len(part.encode()) for i, part in enumerate(parts))
            for parts in self._parts[symbol]
        )
        return sum(p * length for p, length in zip(self.probabilities(symbol), lengths, strict=True))

    def longest(self, symbol: str = "story") -> int:
        """Length of a symbol's longest text in bytes."""
        return max(
            sum(self.longest(part) if i % 2 else len(part.encode()) for i, part in enumerate(parts))
            for parts in self._parts[symbol]
        )

    def probabilities(self, symbol: str) -> list[float]:
        """Probability of each alternative of `symbol`."""
        weights = [weight for weight, _ in self.rules[symbol]]
        return [weight / sum(weights) for weight in weights]

    def _expected_draws(self) -> dict[str, float]:
        """Expected number of draws of each symbol in one story; exactly 1 for a symbol in capitals."""
        draws: dict[str, float] = {}

        def visit(symbol: str, times: float) -> None:
            if symbol.isupper():
                if symbol in draws:
                    return  # a repetition costs no draw
                times = 1.0  # however many stories' slots name it
            draws[symbol] = draws.get(symbol, 0.0) + times
            for p, parts in zip(self.probabilities(symbol), self._parts[symbol], strict=True):
                for slot in parts[1::2]:
                    visit(slot, times * p)

        visit("story", 1.0)
        return draws

    def _surely(self, symbol: str) -> set[str]:
        """The symbols that every text of `symbol` draws or repeats."""
        options = ([{slot} | self._surely(slot) for slot in parts[1::2]] for parts in self._parts[symbol])
        return set.intersection(*(set().union(*slots) for slots in options))  # in all alternatives: any slot of one


STORIES: Rules = {
    "story": [(1, "{HERO} the {ANIMAL} {saw} a {look} {THING} {place}. {ending}\n")],
    "ending": [
        (3, "{HERO} {took} the {THING} and {left}."),
        (3, "\"What a {look} {THING}!\" said the {ANIMAL}."),
        (2, "Then a {look} {friend} came, and both {left}."),
    ],
    "HERO": [
        (3, "Ada"), (3, "Bela"), (3, "Cleo"), (3, "Dov"), (2, "Emil"), (2, "Finn"), (2, "Gita"), (2, "Hugo"),
        (2, "Ines"), (2, "Jan"), (2, "Kim"), (2, "Lev"), (1, "Mila"), (1, "Nora"), (1, "Otto"), (1, "Zoe"),
    ],
    "ANIMAL": [(3, "fox"), (3, "bear"), (2, "mouse"), (2, "owl"), (2, "cat"), (2, "hare"), (1, "wolf"), (1, "duck")],
    "friend": [(2, "crow"), (2, "goose"), (2, "dog"), (1, "horse"), (1, "toad")],
    "saw": [(4, "saw"), (4, "found"), (3, "lost"), (2, "wanted"), (2, "drew"), (1, "bought")],
    "took": [(4, "took"), (2, "hid"), (2, "washed"), (1, "painted"), (1, "sold")],
    "left": [(4, "went home"), (3, "sang"), (2, "fell asleep"), (1, "laughed")],
    "look": [
        (4, "small"), (3, "red"), (3, "big"), (2, "green"), (2, "very old"), (2, "kind"), (1, "loud"), (1, "clever"),
        (1, "wet"), (1, "funny"),
    ],
    "THING": [
        (3, "key"), (3, "apple"), (3, "stone"), (2, "letter"), (2, "hat"), (2, "clock"), (2, "boat"), (2, "map"),
        (2, "drum"), (2, "pear"), (2, "rope"), (2, "shoe"), (1, "lamp"), (1, "flag"), (1, "egg cup"), (1, "violin"),
    ],
    "place": [
        (3, "by the river"), (3, "in the forest"), (2, "at the market"), (2, "up the hill"), (2, "near the sea"),
        (2, "under a tree"), (1, "on the bridge"), (1, "last winter"), (1, "long ago"), (1, "that night"),
    ],
}  # fmt: skip
"""The grammar of `text.stories`."""
