"""Births and deaths inside the backward pass of tiled attention."""

from __future__ import annotations

from course_lib.model.tiled_attention import ROWS, pieces
from course_lib.predict.lifetimes.ledger import BOOL, FLOAT, Ledger
from course_lib.predict.setup import Setup


def tiles_backward(setup: Setup, ledger: Ledger, stream: int, views: bool) -> None:
    """From `d_mixed` to `d_q`, `d_k` and `d_v`. Scores and their gradient live until the next tile's take their names.

    (In the forward pass less is alive.) `stream` is the bytes of q, as of k and of v; `views` says whether these three
    are views of one product.
    """
    seq, narrow = setup.seq, setup.weight_bytes < FLOAT  # where q, k and v have 16 bits, each tile is widened
    pair = FLOAT * setup.rows_per_pass * setup.gpt.heads  # bytes of one fp32 number of every head of the batch
    row, every = pair * setup.gpt.head_width, [*pieces(seq, ROWS)]
    copied, few = 0 if views else row, every[:3] + every[3:][-2:]  # those between are like the third
    ledger.make(sums=2 * pair * seq, d_q=row * seq, d_k=stream, d_v=stream)
    for place, keys in enumerate(few):
        m = keys.stop - keys.start
        ledger.renew(tile_kv=2 * row * m * narrow)
        ledger.renew(tile_d_kv=2 * row * m)
        for queries in few[place:]:
            n = queries.stop - queries.start
            ledger.renew(tile_q=row * n * (1 + narrow))  # in 16 bits its gradient is widened, too
            operands, hidden = copied * (n + m), n * m * BOOL * (queries is keys)
            beside = {"tile_scores": max(row * m * narrow + operands, hidden), "tile_d_scores": operands}
            for name, nbytes in beside.items():
                ledger.make(beside=nbytes)
                ledger.renew(**{name: pair * n * m})
                ledger.free("beside")
            ledger.make(product=copied * n + row * m)
            ledger.free("product")
    if narrow:
        ledger.renew(d_q=stream)
    ledger.free("sums", "tile_kv", "tile_d_kv", "tile_q", "tile_scores", "tile_d_scores")
