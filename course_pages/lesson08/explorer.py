"""The matmul explorer: cut one matrix, or two in a row, by columns or rows, and watch the parts on each rank.

No cost stands here: `parallel.layout` derives the collectives from the cuts, `predict` their bytes.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from course_kit.notebook.explorer import Control, Explorer
from course_kit.notebook.picture import SERIES, Picture
from course_kit.units import Bytes
from course_lib.parallel.layout import Layout, contract, steps
from course_lib.predict.traffic import OPERATIONS
from course_pages.lesson08.pictures import COPY, Lies, Stop, split_product
from course_pages.lesson08.runs import factors

SIZES = {"token": 64, "width": 128, "hidden": 512}
"""Dims of the products, with 4 bytes a number."""
CUTS, RANKS = ("columns", "rows"), (2, 4, 8)
ALONE = "none"
"""Choice without a second matrix."""


def stops(first: str, second: str, ranks: int) -> list[Stop]:
    """The tensors of GELU(XA)B, or of XA, in their order, until the result is whole on every rank.

    Args:
        first: A is cut by "columns" or by "rows".
        second: so is B; "none" leaves it out.
        ranks: number of ranks that share each tensor.

    Raises:
        ValueError: another cut.
    """
    if first not in CUTS or second not in (*CUTS, ALONE):
        raise ValueError(f"first={first!r}, second={second!r}: cut by one of {', '.join(CUTS)}; second may be {ALONE}")
    x, a, needed, b = factors(first, second)
    way, hidden = [_stop("X", x, "×"), _stop("A", a, "=")], contract(x, a)
    if second == ALONE:
        return way + _brought("H", hidden, Layout("token hidden"), "", ranks)
    way += [*_brought("H", hidden, needed, "GELU, ×", ranks), _stop("B", b, "=")]
    return way + _brought("Y", contract(needed, b), Layout("token width"), "", ranks)


def _brought(name: str, have: Layout, want: Layout, behind: str, ranks: int) -> list[Stop]:
    """A tensor as it was computed and, if it has to travel, as it is wanted."""
    way, wanted = [], _stop(name, want, behind)
    for step in steps(have, want):
        sent = OPERATIONS[step.operation](4 * wanted.rows * wanted.columns, ranks).bytes
        way.append(_stop(name, have, step.operation.replace("_", "-"))._replace(sent=sent))
    return [*way, wanted]


def _stop(name: str, layout: Layout, behind: str) -> Stop:
    rows, columns = (SIZES[dim] for dim in layout.dims.split())
    return Stop(name, rows, columns, _lies(layout), behind)


def _lies(layout: Layout) -> Lies:
    if layout.partial:
        return "terms"
    cut = [dim in layout.cut for dim in layout.dims.split()]
    return "rows" if cut[0] else "columns" if cut[1] else "whole"


def told(first: str, second: str, ranks: int) -> str:
    """Messages of each rank, in words."""
    messages = [each for each in stops(first, second, ranks) if each.sent]
    words = [f"{each.sent:.0kB} for {each.name} ({each.behind})" for each in messages]
    if second != ALONE and len(messages) == 1:
        words.insert(0, "nothing for H")
    total = sum((each.sent for each in messages), Bytes(0))
    matrices = f"A by {first}" + (f", B by {second}" if second != ALONE else "")
    return f"{matrices}, {ranks} ranks. Each rank sends {' and '.join(words)}: {total:.0kB} in all."


@cache
def matmul_table() -> dict[str, Any]:
    """Tensors, messages and words at all places.

    Returns:
        "ways": "first,second,ranks" → "stops", each [name, rows, columns, lies, behind, bytes a rank sends], and
        "told". "colors": of the ranks. "copy": of a tensor that all hold.
    """
    ways = {
        f"{first},{second},{ranks}": {
            "stops": [[*each[:5], f"{each.sent:.0kB}" if each.sent else ""] for each in stops(first, second, ranks)],
            "told": told(first, second, ranks),
        }
        for first in CUTS
        for second in (*CUTS, ALONE)
        for ranks in RANKS
    }
    return {"ways": ways, "colors": list(SERIES), "copy": COPY}


class MatmulExplorer(Explorer):
    """One or two split products: 64 tokens, 128 features, 512 hidden ones, in fp32.

    Args:
        first: the cut of A, "columns" or "rows".
        second: the cut of B; "none" for one product alone.
        ranks: 2, 4 or 8.
        rank: the rank whose parts stand out; -1 for all.
    """

    caption = "A stripe is held by one rank, grey by all of them, and a stack is a sum that is still open."
    first = Control("cut A by", CUTS, "columns", kind="choice")
    second = Control("cut B by", (*CUTS, ALONE), "rows", lambda cut: "(no B)" if cut == ALONE else cut, "choice")
    ranks = Control("ranks", RANKS, 4, kind="choice")
    rank = Control("look at", range(-1, RANKS[-1]), -1, lambda rank: "all ranks" if rank < 0 else f"rank {rank}",
                   limit=("ranks", lambda ranks: ranks - 1))  # fmt: skip
    _table = staticmethod(matmul_table)

    def _picture(self, *, caption: str, alt: str) -> Picture:
        return split_product(stops(self.first, self.second, self.ranks), self.ranks, caption=caption, alt=alt)

    def _told(self) -> str:
        words = {"whole": "whole on every rank", "terms": "a term of the sum on each rank"}
        way = stops(self.first, self.second, self.ranks)
        parts = [f"{each.name} {words.get(each.lies, f'cut by {each.lies}')}" for each in way]
        return f"Tensors in a row: {'; '.join(parts)}. {told(self.first, self.second, self.ranks)}"
