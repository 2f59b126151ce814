"""A byte-pair encoder, small and in plain Python: work on text, for a loader to be slow with."""

from __future__ import annotations

import math
from collections import Counter

Pair = tuple[bytes, bytes]


def merged(parts: list[bytes], pair: Pair) -> list[bytes]:
    """The parts, with each neighbouring `pair` made one."""
    out: list[bytes] = []
    for part in parts:
        if out and (out[-1], part) == pair:
            out[-1] += part
        else:
            out.append(part)
    return out


def learn(text: str, merges: int) -> dict[Pair, int]:
    """Pair → rank: again and again the most frequent pair of neighbours inside of words (Sennrich et al. 2016)."""
    words, found = Counter(text.split()), {}
    parts = {word: [bytes([byte]) for byte in word.encode()] for word in words}
    for rank in range(merges):
        counts: Counter[Pair] = Counter()
        for word, times in words.items():
            for pair in zip(parts[word], parts[word][1:]):
                counts[pair] += times
        best = max(counts, key=lambda pair: (counts[pair], pair))
        found[best], parts = rank, {word: merged(each, best) for word, each in parts.items()}
    return found


def encode(text: str, merges: dict[Pair, int]) -> list[bytes]:
    """Tokens of a text: in each word the pair that was learnt first is merged, until no pair is known."""
    tokens: list[bytes] = []
    for word in text.split():
        parts = [bytes([byte]) for byte in word.encode()]
        while len(parts) > 1:
            best = min(zip(parts, parts[1:]), key=lambda pair: merges.get(pair, math.inf))
            if best not in merges:
                break
            parts = merged(parts, best)
        tokens += parts
    return tokens
