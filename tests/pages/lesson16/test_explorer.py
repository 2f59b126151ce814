"""The tiles explorer: its last state is a softmax, its bytes are the loops', its words say what it shows."""

from __future__ import annotations

import pytest
import torch

from course_pages.lesson16.explorer import ELEMENT_BYTES, SIZES, K, S, TilesExplorer, drawn, frames


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("rows", SIZES)
@pytest.mark.parametrize("columns", SIZES)
def test_the_last_state_is_a_softmax(rows: int, columns: int, causal: bool) -> None:
    scores, values = (each.double() for each in drawn())
    if causal:
        scores = scores.masked_fill(torch.ones(S, S, dtype=torch.bool).triu(1), -torch.inf)
    last = frames(rows, columns, causal)[-1]
    output = torch.tensor(last.mixed) / torch.tensor(last.total)
    torch.testing.assert_close(output.double(), scores.softmax(-1) @ values, rtol=1e-5, atol=1e-5)
    assert last.top == scores.amax(-1).tolist()


def test_bytes_are_those_of_the_loops() -> None:
    """q once, k and v once for each row of tiles; half of the tiles and a diagonal when causal."""
    assert frames(4, 4, False)[-1].read == ELEMENT_BYTES * K * (S + 4 * 2 * S)
    assert frames(16, 2, False)[-1].read == ELEMENT_BYTES * K * 3 * S
    assert frames(2, 16, False)[-1].read == ELEMENT_BYTES * K * (S + 8 * 2 * S)
    assert sum(each.skipped for each in frames(4, 4, True)) == 6 and len(frames(4, 4, True)) == 17
    assert frames(4, 4, True)[-1].read == ELEMENT_BYTES * K * (S + 10 * 2 * 4)
    assert max(each.held for each in frames(4, 4, True)) == ELEMENT_BYTES * (16 + 4 * (K + 2))


def test_a_total_falls_where_the_page_asks_for_it() -> None:
    steps = frames(4, 4, True)
    falls = [(n, q) for n in range(1, len(steps)) for q in range(S) if steps[n].total[q] < steps[n - 1].total[q]]
    assert falls


def test_a_skipped_tile_changes_nothing() -> None:
    steps = frames(4, 8, True)
    for before, after in zip(steps, steps[1:]):
        if after.skipped:
            assert (after.top, after.total, after.mixed) == (before.top, before.total, before.mixed)


def test_fewer_tiles_than_steps_show_the_end() -> None:
    explorer = TilesExplorer()
    assert explorer.frame.tile == (4, 4)
    explorer.rows = explorer.columns = 16
    assert explorer.frame == frames(16, 16, True)[-1]
