"""A text that no model learns to the end, and whose best reader is known exactly: Zipf's words in a random order.

`text.stories` is learned to its last nat by the smallest GPT, so its losses show no law of scale. Here rare words never
run out: each further token and each further parameter still helps, as in real text.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate

from course_lib.model.seeds import integers
from course_lib.model.text import TextSource


class Lexicon(TextSource):
    """Independent words; the word of rank r has a probability in proportion to r^-exponent and a random spelling.

    Frequent words are short: 2 letters, and one more for each 3.2 doublings of the rank. A space ends a word, and a
    window begins with one, so its reader knows where the first word begins.

    `seed` fixes the spellings; `batch` draws the words. Zipf's exponent is about 1 in real text.

    Raises:
        ValueError: no word or more than a million, or an exponent that is not positive.
    """

    def __init__(self, seed: int = 0, words: int = 32_768, exponent: float = 1.2) -> None:
        if not 1 <= words <= 10**6 or exponent <= 0:
            raise ValueError(f"{words} words, exponent {exponent}: give 1 to a million words and a positive exponent")
        self.exponent = exponent
        weights = [rank**-exponent for rank in range(1, words + 1)]
        total = sum(weights)
        self.probabilities = [weight / total for weight in weights]
        self.words = _spellings(seed, words)
        self._up_to = list(accumulate(self.probabilities))
        self._mass: dict[bytes, float] = {}  # a trie: beginning of a word → probability of all words that begin so
        for word, probability in zip(self.words, self.probabilities, strict=True):
            for end in range(len(word) + 1):
                self._mass[word[:end]] = self._mass.get(word[:end], 0.0) + probability

    def window(self, draws: Iterator[int], length: int) -> bytes:
        """Write a space and then words until `length` bytes are full; the last word may be cut."""
        text = b" "
        while len(text) < length:
            rank = bisect_right(self._up_to, next(draws) / 2**64)  # a 64-bit draw as a number in [0, 1)
            text += self.words[min(rank, len(self.words) - 1)]  # the last sum may be rounded to below 1
        return text[:length]

    def ideal_nats(self, window: bytes) -> list[float]:
        """Loss of the ideal reader on each byte of a window after the first.

        The reader knows every word's probability and spelling, and has read the bytes before: a byte costs the log of
        how many times fewer words begin with it than without it. On average no model can lose less.

        Raises:
            ValueError: the window does not begin with a space, or holds a string that is no word.
        """
        if window[:1] != b" ":
            raise ValueError(
                f"the window begins with {window[:1]!r}, not with a space: the reader would start in a word"
            )
        nats, begun = [], b""
        for number in window[1:]:
            longer = begun + bytes([number])
            if longer not in self._mass:
                raise ValueError(f"no word of this lexicon begins with {longer!r}: take windows from its own batches")
            nats.append(math.log(self._mass[begun] / self._mass[longer]))
            begun = b"" if number == ord(" ") else longer
        return nats

    @property
    def entropy_per_byte(self) -> float:
        """Entropy rate in nats per byte: a word's entropy over its mean length, the space included."""
        entropy = -sum(p * math.log(p) for p in self.probabilities)
        return entropy / sum(p * len(word) for p, word in zip(self.probabilities, self.words, strict=True))


def _spellings(seed: int, words: int) -> list[bytes]:
    """Different spellings by rank, the most frequent first, each with its space."""
    taken: dict[bytes, None] = {}  # a set that keeps the order
    for rank in range(1, words + 1):
        draws = integers(seed, rank)
        letters = 2 + int(math.log2(rank + 1) / 3.2)
        while (word := bytes(ord("a") + (next(draws) * 26 >> 64) for _ in range(letters)) + b" ") in taken:
            pass  # the same stream goes on: another spelling
        taken[word] = None
    return list(taken)
