"""Which arguments hidden checks vary: what is noted of a call, and what is called constant."""

from __future__ import annotations

from pathlib import Path

import torch

from course_tools.labs import Lab

from .arguments import Varied
from .running import run_lab
from .test_running import SOURCE


def _constant(folder: Path, hidden: str) -> dict[str, list[str]]:
    lab = Lab(folder, "lab90_two")
    lab.source.parent.mkdir(parents=True)
    (folder / "pyproject.toml").write_text('[project.urls]\nRepository = "https://github.com/_OWNER_/x"\n')
    head, tail = SOURCE.split('# %% check="q1-hidden"')[0], '# %% check="q1-hidden" points=20\n'
    lab.source.write_text(f"{head}{tail}### BEGIN HIDDEN TESTS\n{hidden}\n### END HIDDEN TESTS\n")
    varied = Varied(folder / "notes")
    assert run_lab(lab, varied=varied) == {}
    return varied.constant()


def test_a_number_that_hidden_checks_take_from_the_public_ones(tmp_path: Path) -> None:
    assert _constant(tmp_path, "check.equal(check.call(double, 3), 6, 'again')") == {"double: number": ["1", "3"]}


def test_another_number_varies_it(tmp_path: Path) -> None:
    assert _constant(tmp_path, "check.equal(check.call(double, 5), 10, 'another')") == {}


def test_a_tensor_has_a_shape_and_a_dtype(tmp_path: Path) -> None:
    hidden = "import torch\ncheck.call(double, torch.ones(2, dtype=torch.float64))"
    assert _constant(tmp_path, hidden) == {
        "double: number": ["1", "3"],
        "double: number.dtype": ["torch.float64"],
    }


def test_calls_on_ranks_are_noted(tmp_path: Path) -> None:
    hidden = "check.on_ranks(lambda: double(7), world_size=2)"
    assert _constant(tmp_path, hidden) == {}


def test_notes_of_many_micro_batches_stay_small_and_show_that_values_differ(tmp_path: Path) -> None:
    varied = Varied(tmp_path / "notes")
    for number in range(100):
        varied.note("double", {"number": torch.full((3,), float(number // 2))})
    assert len((tmp_path / "notes").read_text().splitlines()) == 2
    varied.after("q1-values", hidden=False)
    varied.note("double", {"number": torch.zeros(3)})
    assert "double" in (tmp_path / "notes").read_text(), "the next check is told anew"
    assert "double: again" not in varied.met.missing()
