"""What lives inside of tiled attention: births and deaths of `model/tiled_attention.py`, one line a tensor.

Between the passes a tile leaves nothing. While it runs there are, beside what the pass itself has, the scores of two
tiles forward and of three backward (in a loop an old tensor lives until its name is taken), the rows that belong to
them, and copies, for a batched product wants each head in one piece of memory. None of that grows with the sequence.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from course_lib.model.tiled_attention import COLUMNS, ROWS, pieces
from course_lib.predict.lifetimes.ledger import BOOL, FLOAT, Ledger


class Tiles:
    """Causal tiled attention, forward and backward, written into a ledger.

    Args:
        ledger: where births and deaths go.
        heads, features: heads of all sequences, B · H, and numbers of each for a token, K.
        seq: tokens of a sequence.
        element: bytes of a number of q, k, v and the output; inside, all numbers are in 32 bits.
        views: whether the heads lie so that a product takes them as they are.
    """

    def __init__(self, ledger: Ledger, heads: int, features: int, seq: int, element: int, views: bool) -> None:
        self.ledger, self.heads, self.features, self.seq, self.element = ledger, heads, features, seq, element
        self.views, self.narrow = views, element < FLOAT

    # ---- forward -----------------------------------------------------------------------------------------------

    def forward(self) -> None:
        """A row of tiles after the other; the output and the log-sum-exp are there."""
        for here in _few([*pieces(self.seq, ROWS)]):
            self.attend_rows(here.stop - here.start, [*pieces(here.stop, COLUMNS)])

    def attend_rows(self, n: int, tiles: list[slice]) -> None:
        """One pass over the keys of `n` queries, the last tile of which the diagonal crosses."""
        ledger, row, vector = self.ledger, self.numbers(n), self.numbers(n, 1)
        self.widen(n, "tile_q")
        ledger.make(tile_top=vector, tile_total=vector, tile_mixed=row)
        for there in _few(tiles):
            self.add_tile(n, min(there.start + COLUMNS, self.seq) - there.start, there == tiles[-1])
        ledger.make(none=self.flags(vector), tile_divisor=vector)
        ledger.free("none", "tile_divisor")
        if self.narrow:
            ledger.make(rounded=self.rounded(row))
        ledger.make(log=vector, log_sum_exp_rows=vector)
        ledger.free("log", *("tile_" + each for each in ("q", "top", "level", "scores", "shrink", "total")))
        ledger.free("tile_mixed" if not self.narrow else "rounded", "log_sum_exp_rows")
        if self.narrow:
            ledger.free("tile_mixed")

    def add_tile(self, n: int, m: int, masked: bool) -> None:
        """A tile of scores joins the three numbers of its rows."""
        ledger, vector = self.ledger, self.numbers(n, 1)
        self.scores(n, m, masked)
        ledger.make(highest=vector)
        ledger.make(tile_top=vector)  # `higher`; the old one is wanted once more
        ledger.free("highest")
        ledger.make(none=self.flags(vector), tile_level=vector)
        ledger.free("none")
        ledger.forget("tile_level", "tile_scores")
        ledger.make(fall=vector, tile_shrink=vector)
        ledger.free("fall")
        ledger.forget("tile_shrink")
        ledger.make(scaled=vector, added=vector, tile_total=vector)
        ledger.free("scaled", "added")
        ledger.forget("tile_total")
        self.product(self.numbers(n), copied=[m], widened=m)
        ledger.forget("tile_top")

    # ---- backward ----------------------------------------------------------------------------------------------

    def backward(self) -> None:
        """From `d_mixed` to `d_q`, `d_k` and `d_v`: a column of tiles after the other."""
        ledger, every, vector = self.ledger, self.numbers(self.seq), self.numbers(self.seq, 1)
        ledger.make(none=self.flags(vector), log_sums=vector)
        ledger.free("none")
        wide = ["wide"] if self.narrow else []
        ledger.make(**dict.fromkeys(wide, every), products=every)
        ledger.free(*wide)
        ledger.make(row_sums=vector)
        ledger.free("products")
        ledger.make(**{"wide_d_q" if wide else "d_q": every}, d_k=self.rounded(every), d_v=self.rounded(every))
        rows = [*pieces(self.seq, ROWS)]
        for there in _few([*pieces(self.seq, COLUMNS)]):
            self.column_backward(there, _few([each for each in rows if each.stop > there.start]))
        inside = ["q", "scores", "d_scores", "dk", "dv", *(["k", "v", "gradient"] if self.narrow else [])]
        if self.narrow:
            ledger.make(d_q=self.rounded(every))
        ledger.free(*("tile_" + each for each in inside), "log_sums", "row_sums", *(["wide_d_q"] if wide else []))

    def column_backward(self, there: slice, rows: Sequence[slice]) -> None:
        """One tile of keys and values, and all queries that see them."""
        ledger, m = self.ledger, there.stop - there.start
        if self.narrow:
            ledger.make(tile_k=self.numbers(m), tile_v=self.numbers(m))
            ledger.forget("tile_k", "tile_v")
        ledger.make(tile_dk=self.numbers(m), tile_dv=self.numbers(m))
        ledger.forget("tile_dk", "tile_dv")
        for here in rows:
            n = here.stop - here.start
            self.widen(n, "tile_q")
            if self.narrow:
                ledger.make(tile_gradient=self.numbers(n))
                ledger.forget("tile_gradient")
            ledger.forget("tile_q")
            self.scores(n, m, masked=here.start < there.stop)
            ledger.forget("tile_scores")
            self.product(self.numbers(m), copied=[n])  # dV
            self.product(self.numbers(n, m), copied=[n, m], name="tile_d_scores")
            ledger.forget("tile_d_scores")
            self.product(self.numbers(m), copied=[n])  # dK
            self.product(self.numbers(n), copied=[m])  # dQ

    # ---- both --------------------------------------------------------------------------------------------------

    def widen(self, n: int, name: str) -> None:
        """Queries of a tile, times the scale, in 32 bits."""
        wide = ["wide"] if self.narrow else []
        self.ledger.make(**dict.fromkeys(wide, self.numbers(n)), **{name: self.numbers(n)})
        self.ledger.free(*wide)

    def scores(self, n: int, m: int, masked: bool) -> None:
        """A tile of scores; where the diagonal crosses it, a table of what is hidden."""
        self.product(self.numbers(n, m), copied=[n, m], widened=m, name="tile_scores")
        if masked:
            self.ledger.make(hidden=n * m * BOOL)
            self.ledger.free("hidden")

    def product(self, result: int, copied: Iterable[int], widened: int = 0, name: str = "result") -> None:
        """A batched product: its operands are copied unless they are views; keys or values are widened before."""
        inside = {"widened": self.numbers(widened)} if widened and self.narrow else {}
        if not self.views:
            inside |= {f"copied_{place}": self.numbers(tokens) for place, tokens in enumerate(copied)}
        self.ledger.make(**inside)
        self.ledger.make(**{name: result})
        self.ledger.free(*inside, *(["result"] if name == "result" else []))

    def numbers(self, tokens: int, features: int | None = None) -> int:
        """Bytes of so many tokens of all heads in 32 bits."""
        return FLOAT * self.heads * tokens * (self.features if features is None else features)

    def rounded(self, nbytes: int) -> int:
        """Bytes of the same numbers as weights have them."""
        return nbytes // FLOAT * self.element

    def flags(self, nbytes: int) -> int:
        """Bytes of a yes or no for each of these numbers."""
        return nbytes // FLOAT * BOOL


def _few(tiles: list[slice]) -> list[slice]:
    """The first three and the last two: those between are like the third."""
    return tiles if len(tiles) <= 5 else tiles[:3] + tiles[-2:]
