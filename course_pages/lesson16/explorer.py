"""Tiles walk over S × S scores: numbers of each row so far, bytes read, bytes held.

Scores are whole numbers, and every key has one value, so that a reader can follow with a pocket calculator. `frames`
computes the states by the lesson's own recurrence; the test holds the last one against a softmax.
"""

from __future__ import annotations

import math
from functools import cache
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor

from course_kit.notebook.explorer import Control, Explorer
from course_kit.notebook.picture import Picture
from course_pages.lesson16.pictures import tile_walk

S, K, ELEMENT_BYTES = 16, 8, 4
"""Tokens, features of a head, bytes of a number."""
SIZES = (2, 4, 8, 16)


class Frame(NamedTuple):
    """The state after some tiles."""

    tile: tuple[int, int] | None  # first query and first key of the last tile; none at the start
    skipped: bool  # whether the last tile lay behind all of its queries, so that nothing was done
    top: list[float]  # the largest score of every query
    total: list[float]  # the sum of every query's weights
    mixed: list[float]  # the sum of every query's weights times values
    read: int  # bytes read so far: q once for a row of tiles, k and v for every tile
    held: int  # bytes beside q, k, v and the output: a tile of scores, and top, total and mixed of its queries


def drawn() -> tuple[Tensor, Tensor]:
    """Scores (queries, keys), and a value for each key."""
    generator = torch.Generator().manual_seed(16)
    return torch.randint(0, 7, (S, S), generator=generator), torch.randint(0, 10, (S,), generator=generator)


@cache
def frames(rows: int, columns: int, causal: bool) -> tuple[Frame, ...]:
    """States before the first tile and after each, tiles of a row from left to right, then the next row."""
    scores, values = drawn()
    top, total, mixed = [-math.inf] * S, [0.0] * S, [0.0] * S
    read, found = 0, [Frame(None, False, [*top], [*total], [*mixed], 0, 0)]
    for first_query in range(0, S, rows):
        read += rows * K * ELEMENT_BYTES
        for first_key in range(0, S, columns):
            skipped = causal and first_key > first_query + rows - 1
            if not skipped:
                read += 2 * columns * K * ELEMENT_BYTES
                for query in range(first_query, first_query + rows):
                    last = query if causal else S - 1
                    for key in range(first_key, min(first_key + columns, last + 1)):
                        score = float(scores[query, key])
                        higher = max(top[query], score)
                        weight, shrink = math.exp(score - higher), math.exp(top[query] - higher)
                        total[query] = total[query] * shrink + weight
                        mixed[query] = mixed[query] * shrink + weight * float(values[key])
                        top[query] = higher
            held = (rows * columns + rows * (K + 2)) * ELEMENT_BYTES
            found.append(Frame((first_query, first_key), skipped, [*top], [*total], [*mixed], read, held))
    return tuple(found)


@cache
def walk_table() -> dict[str, Any]:
    """Scores, values, bytes of the explicit way, and the frames of every choice ("2,4,1": rows, columns, causal).

    A frame is [tile, skipped, top, total, mixed, read, held], the three lists for the queries of the last tile alone.
    """
    scores, values = drawn()
    found = {
        f"{rows},{columns},{int(causal)}": [_packed(each, rows) for each in frames(rows, columns, causal)]
        for rows, columns, causal in product(SIZES, SIZES, (False, True))
    }
    explicit = {"read": (3 * S * K + 2 * S * S) * ELEMENT_BYTES, "held": 2 * S * S * ELEMENT_BYTES}  # scores, weights
    return {"scores": scores.tolist(), "values": values.tolist(), "explicit": explicit, "frames": found}


def _packed(frame: Frame, rows: int) -> list[Any]:
    here = slice(frame.tile[0], frame.tile[0] + rows) if frame.tile else slice(0, 0)
    state = [[None if each == -math.inf else round(each, 3) for each in numbers[here]] for numbers in frame[2:5]]
    return [frame.tile, frame.skipped, *state, frame.read, frame.held]


class TilesExplorer(Explorer):
    """Tiles over the scores of one head, one step at a time.

    Args:
        rows, columns: queries and keys of a tile: 2, 4, 8 or 16.
        causal: whether keys behind a query are hidden.
        step: tiles done so far.
    """

    caption = "A tile is computed, added to its rows' three numbers, and forgotten. What do small tiles cost?"
    rows = Control("Queries in a tile", SIZES, 4)
    columns = Control("Keys in a tile", SIZES, 4)
    causal = Control("Causal", (False, True), True, kind="switch")
    step = Control("Tiles done", range((S // 2) ** 2 + 1), 6)
    _table = staticmethod(walk_table)

    @property
    def frame(self) -> Frame:
        """The state that is shown: after `step` tiles, or after the last one."""
        found = frames(self.rows, self.columns, self.causal)
        return found[min(self.step, len(found) - 1)]

    def _picture(self, *, caption: str, alt: str) -> Picture:
        return tile_walk(*drawn(), self.frame, self.rows, self.columns, self.causal, caption=caption, alt=alt)

    def _told(self) -> str:
        every, explicit = frames(self.rows, self.columns, self.causal), walk_table()["explicit"]
        skipped = sum(each.skipped for each in every)
        return (
            f"{S} × {S} scores in tiles of {self.rows} × {self.columns}, {'causal' if self.causal else 'not causal'}: "
            f"{len(every) - 1} tiles, {skipped} of them skipped. At the end {every[-1].read:,} bytes are read and "
            f"{every[-1].held:,} are held at most; with all scores kept {explicit['read']:,} and {explicit['held']:,}."
        )
