"""Documents of a small corpus, and near duplicates among them, by MinHash."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from course_lib.model import text

PERMUTATIONS = 64
STORED = 14
"""Near duplicates in the manual of Python 3.11.7. The text changes with a patch release: 3.11.2 has 18."""


def documents() -> list[str]:
    """Paragraphs of the manual that Python carries for `help()`."""
    return [each for each in text.python_manual().data.decode().split("\n\n") if each.strip()]


def shingles(document: str, words: int = 3) -> set[str]:
    """All runs of so many words; of a shorter document the whole."""
    found = document.split()
    return {" ".join(found[i : i + words]) for i in range(max(1, len(found) - words + 1))}


def jaccard(one: str, other: str) -> float:
    """Shingles that both documents have, over those that either has."""
    mine, its = shingles(one), shingles(other)
    return len(mine & its) / len(mine | its)


def signature(document: str) -> Any:
    """A MinHash: for each of 64 hashes the smallest among the shingles. Two agree in about as large a share of the 64
    as their Jaccard index (Broder 1997)."""
    from datasketch import MinHash

    found = MinHash(num_perm=PERMUTATIONS)
    found.update_batch([each.encode() for each in sorted(shingles(document))])
    return found


def near_duplicates(signed: Iterable[tuple[str, Any]], threshold: float = 0.8) -> list[tuple[str, str]]:
    """(document, an earlier one that resembles it) for each document that is to go; no pair is compared in full."""
    from datasketch import MinHashLSH

    index, found = MinHashLSH(threshold=threshold, num_perm=PERMUTATIONS), []
    for document, its in signed:
        if like := sorted(map(str, index.query(its))):
            found.append((document, like[0]))
        else:
            index.insert(document, its)
    return found
