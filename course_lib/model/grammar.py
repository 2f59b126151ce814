"""A probabilistic grammar whose text looks like English and whose entropy is known exactly.

A `Grammar` is a set of symbols; each has alternatives with whole-number weights, and an alternative is text with
symbols in braces. A symbol in lower case is drawn anew wherever it stands. A symbol in CAPITALS is drawn once per story
and then repeated, so that a reader who remembers the hero's name is not surprised to meet it again.

    Grammar({
        "story": [(1, "{NAME} saw a {thing}, and {NAME} laughed. ")],
        "NAME": [(1, "Ada"), (1, "Bo")],
        "thing": [(3, "cat"), (1, "cow")],
    })

Why the entropy is exact: if two different sequences of draws never give the same text, then the entropy of a story is
the sum of the entropies of its draws (the chain rule), however the draws are mixed with fixed text. Divided by the
expected length this is the entropy per byte of an endless stream of stories, which are independent of each other.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence

_SLOT = re.compile(r"\{(\w+)\}")
Rules = Mapping[str, Sequence[tuple[int, str]]]


class Grammar:
    """Stories by weighted draws, from the symbol "story" downwards.

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
        if unsure := sorted(symbol for symbol in used - self._surely("story") if symbol.isupper()):
            raise ValueError(
                f"some stories do not mention {', '.join(unsure)}: a symbol in capitals must be in all of them"
            )

    def story(self, draws: Iterator[int]) -> str:
        """The story that `draws`, a stream of 64-bit integers, stands for."""
        return self._write("story", draws, {})

    def _write(self, symbol: str, draws: Iterator[int], remembered: dict[str, str]) -> str:
        if symbol in remembered:
            return remembered[symbol]
        weights = [weight for weight, _ in self.rules[symbol]]
        parts = self._parts[symbol][_pick(weights, next(draws))]
        text = "".join(self._write(part, draws, remembered) if i % 2 else part for i, part in enumerate(parts))
        if symbol.isupper():
            remembered[symbol] = text
        return text

    @property
    def entropy(self) -> float:
        """Entropy of a story in nats: of every draw, times how often it is expected in a story."""
        return sum(times * self._choice_entropy(symbol) for symbol, times in self._expected_draws().items())

    @property
    def expected_bytes(self) -> float:
        """Mean length of a story in bytes."""
        return self._expected_bytes("story")

    @property
    def longest(self) -> int:
        """Length of the longest story in bytes."""
        return self._longest("story")

    def probabilities(self, symbol: str) -> list[float]:
        """Probability of each alternative of `symbol`."""
        weights = [weight for weight, _ in self.rules[symbol]]
        return [weight / sum(weights) for weight in weights]

    def _choice_entropy(self, symbol: str) -> float:
        return -sum(p * math.log(p) for p in self.probabilities(symbol))

    def _expected_draws(self) -> dict[str, float]:
        """How often each symbol is expected to be drawn in one story; a remembered one is drawn exactly once."""
        draws: dict[str, float] = {}

        def visit(symbol: str, times: float) -> None:
            if symbol.isupper():
                if symbol in draws:
                    return
                times = 1.0
            draws[symbol] = draws.get(symbol, 0.0) + times
            for p, parts in zip(self.probabilities(symbol), self._parts[symbol], strict=True):
                for slot in parts[1::2]:
                    visit(slot, times * p)

        visit("story", 1.0)
        return draws

    def _surely(self, symbol: str) -> set[str]:
        """The symbols that every text of `symbol` draws or repeats."""
        options = ([{slot} | self._surely(slot) for slot in parts[1::2]] for parts in self._parts[symbol])
        return set.intersection(*(set().union(*slots) for slots in options))

    def _expected_bytes(self, symbol: str) -> float:
        lengths = (
            sum(self._expected_bytes(part) if i % 2 else len(part.encode()) for i, part in enumerate(parts))
            for parts in self._parts[symbol]
        )
        return sum(p * length for p, length in zip(self.probabilities(symbol), lengths, strict=True))

    def _longest(self, symbol: str) -> int:
        return max(
            sum(self._longest(part) if i % 2 else len(part.encode()) for i, part in enumerate(parts))
            for parts in self._parts[symbol]
        )


def _pick(weights: Sequence[int], draw: int) -> int:
    """The index that a 64-bit integer selects, in proportion to `weights` (to within 1 part in 2^56 for small ones)."""
    mark = (draw * sum(weights)) >> 64
    for index, weight in enumerate(weights):
        if mark < weight:
            return index
        mark -= weight
    raise AssertionError("a draw of 64 bits is always below the total")


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
