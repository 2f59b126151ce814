"""Which arguments hidden checks vary: what is noted of a call, and what is called constant."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.author.conftest import make_lab

from .arguments import Varied
from .running import run_lab
from .test_running import SOURCE


def _constant(folder: Path, hidden: str) -> dict[str, list[str]]:
    head, tail = SOURCE.split('# %% check="q1-hidden"')[0], '# %% check="q1-hidden" points=20\n'
    lab = make_lab(folder, f"{head}{tail}### BEGIN HIDDEN TESTS\n{hidden}\n### END HIDDEN TESTS\n")
    varied = Varied(folder / "notes")
    assert run_lab(lab, varied=varied) == {}
    return varied.constant()


TENSOR = "import torch\ncheck.call(double, torch.ones(2, dtype=torch.float64))"
CONSTANT: dict[str, tuple[str, dict[str, list[str]]]] = {
    "a number of the public checks": ("check.call(double, 3)", {"double: number": ["1", "3"]}),
    "another number": ("check.call(double, 5)", {}),
    "a tensor": (TENSOR, {"double: number": ["1", "3"], "double: number.dtype": ["torch.float64"]}),
    "another number on ranks": ("check.on_ranks(lambda: double(7), world_size=2)", {}),
}


@pytest.mark.parametrize("what", CONSTANT)
def test_an_argument_that_no_hidden_check_varies_is_called_constant(tmp_path: Path, what: str) -> None:
    hidden, expected = CONSTANT[what]
    assert _constant(tmp_path, hidden) == expected


def test_notes_of_many_micro_batches_stay_small_and_show_that_values_differ(tmp_path: Path) -> None:
    varied = Varied(tmp_path / "notes")
    for number in range(100):
        varied.note("double", {"number": torch.full((3,), float(number // 2))})
    assert len((tmp_path / "notes").read_text().splitlines()) == 2
    varied.after("q1-values", hidden=False)
    varied.note("double", {"number": torch.zeros(3)})
    assert "double" in (tmp_path / "notes").read_text(), "the next check is told anew"
    assert "double: again" not in varied.met.missing()
