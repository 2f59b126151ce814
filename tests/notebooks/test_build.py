"""`course build`: from the source to the same bytes each time, and what it refuses to write."""

from __future__ import annotations

import json
import re
from io import StringIO
from pathlib import Path

import nbformat
import pytest
from nbclient.exceptions import CellExecutionError
from rich.console import Console

from course_tools.author.build_all import build_all, is_fresh
from course_tools.author.builder import BuildError, build, check
from course_tools.author.guards import output_complaints
from course_tools.author.inputs import KEY, record
from course_tools.author.source import read_source
from course_tools.kernel import complain_about_callbacks, widget_state
from course_tools.lessons import Lesson
from tests.notebooks import test_again
from tests.notebooks.conftest import SOURCE, make_course

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.notebook


def edit(lesson: Lesson, old: str, new: str) -> None:
    """Replace text in the lesson's source."""
    text = lesson.source.read_text("utf-8")
    assert old in text
    lesson.source.write_text(text.replace(old, new), "utf-8")


def code_cells(lesson: Lesson) -> list[nbformat.NotebookNode]:
    """The code cells of the stored notebook."""
    return [cell for cell in nbformat.read(lesson.notebook, as_version=4).cells if cell.cell_type == "code"]


def test_a_second_build_changes_no_byte_and_a_fresh_one_only_what_varies(lesson: Lesson) -> None:
    before = lesson.notebook.read_bytes()
    assert not build(lesson)
    assert lesson.notebook.read_bytes() == before
    old = code_cells(lesson)
    assert build(lesson, fresh=True)
    changed = [a.metadata.get("tags") for a, b in zip(old, code_cells(lesson)) if a != b]
    assert changed == [["varies"]]


def test_nothing_of_this_run_or_machine_is_stored(built: Lesson) -> None:
    text = built.notebook.read_text("utf-8")
    assert " at 0x0>" in text and not re.search(r"0x[1-9a-f]", text)
    assert str(built.root) not in text and str(Path.home()) not in text and "site-packages" not in text
    assert "PYTEST_CURRENT_TEST" not in text


@pytest.mark.nightly  # test_kernel.py hears the ranks of a cell
def test_prints_of_child_processes_are_kept(built: Lesson) -> None:
    assert "".join(output.text for output in code_cells(built)[1].outputs) == "a child speaks\n"


def test_widget_ids_are_stable_and_point_to_their_state(built: Lesson) -> None:
    notebook = nbformat.read(built.notebook, as_version=4)
    state = widget_state(notebook)
    (output,) = code_cells(built)[2].outputs
    box = output.data["application/vnd.jupyter.widget-view+json"]["model_id"]
    children = re.findall(r"IPY_MODEL_([0-9a-f]{32})", json.dumps(state[box]["state"]["children"]))
    assert [state[child]["state"]["value"] for child in children] == [3, 4]
    assert list(state) == sorted(state)


def test_a_stored_widget_with_an_old_script_is_noticed() -> None:
    notebook = nbformat.read(ROOT / "lessons" / "03_activation_checkpointing.ipynb", as_version=4)
    assert output_complaints(notebook) == []
    models = [model for model in widget_state(notebook).values() if "FilmExplorer" in str(model["state"])]
    models[0]["state"]["_css"] += "/* as it was */"
    assert output_complaints(notebook) == ["the stored FilmExplorer is not the one of today; run `course build`"]


def test_an_edited_cell_of_what_varies_gets_new_output_and_one_new_id(lesson: Lesson) -> None:
    old = code_cells(lesson)
    edit(lesson, "print(time.perf_counter(), object())", "print(time.time())")
    build(lesson)
    new = code_cells(lesson)
    assert [a.id != b.id for a, b in zip(old, new)] == [a.source != b.source for a, b in zip(old, new)]
    assert old[3].outputs != new[3].outputs


@pytest.mark.nightly
def test_a_new_cell_of_what_varies_gives_new_outputs_to_the_others_too(lesson: Lesson) -> None:
    """A table and a figure of the same seconds are of one run."""
    old = code_cells(lesson)
    edit(
        lesson,
        '# %% tags=["raises-exception"]',
        '# %% tags=["varies"]\nprint(time.time())\n\n# %% tags=["raises-exception"]',
    )
    build(lesson)
    new = code_cells(lesson)
    assert old[3].id == new[3].id and old[3].outputs != new[3].outputs


@pytest.mark.nightly
def test_the_lesson_in_the_guide_builds_and_its_claim_holds(tmp_path: Path) -> None:
    (source,) = re.findall(r"^```python\n(.*?)^```", (ROOT / "CONTRIBUTING.md").read_text("utf-8"), re.M | re.S)
    lesson = make_course(tmp_path, source)
    assert build(lesson) and check(lesson) == []
    (claim,) = (cell for cell in code_cells(lesson) if "compare(guess" in cell.source)
    assert "1, exactly" in str(claim.outputs)


def test_an_empty_source_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="00_tiny.py holds no cells"):
        build(make_course(tmp_path, ""))


@pytest.mark.nightly
def test_an_output_that_varies_without_a_tag_is_named(lesson: Lesson) -> None:
    edit(lesson, ' tags=["varies"]', "")
    said = [StringIO(), StringIO()]
    assert all(build_all([lesson], Console(file=text, width=200)) for text in said)
    assert "another output" not in said[0].getvalue(), "the cell was another one before"
    assert "another output than before in the cell 'print(time.perf_counter(), object())'" in said[1].getvalue()


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("tolerance=0.1", "tolerance=0.01", "measurement and prediction disagree"),
        ('tags=["varies"]', 'tags=["vary"]', "unknown tag 'vary'"),
        ("# # 00 · Tiny\n", '# # 00 · Tiny\n\n# %% [markdown] tags=["solution"]\n# 42\n', "write it in <details>"),
        (
            "import time\n",
            'import time\n\n# %% tags=["solution"]\n@f.solution\ndef other(): ...\n',
            "a solution is one function below `@f.solution`, called f as well",
        ),
        ("import time\n", "import time;\n", "ends in ';'"),
        ("print(time.perf", "from ipywidgets import interact\n\ninteract(print, x=3)\nprint(time.perf", "'interact'"),
        ("print(time.perf", "# NBVAL_IGNORE_OUTPUT\nprint(time.perf", "NBVAL_IGNORE_OUTPUT"),
        (
            "import time\n",
            "guess = ask('one?')\n\n# %%\nguess = ask('two?')\n\n# %%\nimport time\n",
            "guess is the name of the box in cell",
        ),
        ("torch.ones(2, 3).view(5)", "torch.ones(2, 3)", "nothing was raised"),
        ("import torch\n", "print('/home/me/x')\nimport torch\n", "a folder of the machine"),
        (
            "print(time.perf",
            "\n".join(f"x{i} = {i}" for i in range(21)) + "\nprint(time.perf",
            "lines; 20 are the most that a reader takes in at once, in the cell 'x0 = 0'",
        ),
    ],
)
def test_a_build_that_would_store_something_wrong_writes_nothing(
    lesson: Lesson, old: str, new: str, complaint: str
) -> None:
    before = lesson.notebook.read_bytes()
    edit(lesson, old, new)
    with pytest.raises((BuildError, CellExecutionError), match=re.escape(complaint)):
        build(lesson)
    assert lesson.notebook.read_bytes() == before


def test_a_widget_callback_that_raised_fails_the_build(tmp_path: Path) -> None:
    source = """\
# %%
import ipywidgets

number, area = ipywidgets.IntText(), ipywidgets.Output()

# %%
@area.capture()
def halve(change):
    1 / 0


number.observe(halve, "value")
number.value = 1
"""
    lesson = make_course(tmp_path, source)
    with pytest.raises(RuntimeError, match="callback raised ZeroDivisionError"):
        build(lesson)
    assert not lesson.notebook.exists()


def test_an_output_widget_is_kept_and_not_told_to_the_kernel(tmp_path: Path) -> None:
    shows = "# %%\nimport ipywidgets\n\narea = ipywidgets.Output()\nwith area:\n    print('inside')\n\n"
    lesson = make_course(tmp_path, shows + "# %%\nlen(area.outputs)")
    build(lesson)
    notebook = nbformat.read(lesson.notebook, as_version=4)
    states = [model["state"] for model in widget_state(notebook).values()]
    assert [output["text"] for state in states for output in state.get("outputs", [])] == ["inside\n"]
    assert code_cells(lesson)[-1].outputs[0].data["text/plain"] == "0", "a message that may swallow the cell's end"


def test_a_notebook_without_widgets_has_no_callbacks_to_complain_about() -> None:
    complain_about_callbacks(nbformat.v4.new_notebook())


def test_check_is_silent_about_a_built_lesson(lesson: Lesson) -> None:
    assert check(lesson) == []


def test_check_sees_every_kind_of_drift_without_running_anything(lesson: Lesson) -> None:
    text = lesson.notebook.read_text("utf-8")
    edit(lesson, "# # 00 · Tiny", "# # 00 · Small")
    assert "does not match its source (first at '# 00 · Small')" in check(lesson)[0]
    lesson.source.write_text(SOURCE, "utf-8")
    lesson.notebook.write_text(json.dumps(json.loads(text)), "utf-8")
    assert check(lesson) == ["was saved by something other than `course build`; run `course build`"]
    lesson.notebook.write_text(text.replace('"execution_count": 2,', '"execution_count": null,', 1), "utf-8")
    assert any("never run" in complaint for complaint in check(lesson))
    lesson.notebook.unlink()
    assert check(lesson) == ["was never built; run `course build`"]


def test_a_build_keeps_the_hash_of_its_inputs_and_check_sees_when_one_changes(lesson: Lesson) -> None:
    assert nbformat.read(lesson.notebook, as_version=4).metadata[KEY] == record(
        lesson.source, lesson.root
    ) and is_fresh(lesson)
    module = lesson.root / "course_kit" / "compare.py"  # imported by the lesson
    module.parent.mkdir()
    module.write_text("# another library\n", "utf-8")
    (complaint,) = check(lesson)
    assert complaint.endswith("run `course build 00`") and not is_fresh(lesson)
    module.unlink()
    assert check(lesson) == []


@pytest.mark.parametrize(("number", "fresh", "runs"), [("05", True, False), ("05", False, True), ("06", True, True)])
def test_a_notebook_runs_again_by_default_where_its_record_does_not_fit(
    monkeypatch: pytest.MonkeyPatch, number: str, fresh: bool, runs: bool
) -> None:
    monkeypatch.setattr(test_again, "is_fresh", lambda page: fresh)
    assert test_again.waits(Lesson(ROOT, f"{number}_x")) != runs


def test_check_sees_a_notebook_that_lost_its_source(lesson: Lesson) -> None:
    lesson.source.unlink()
    assert "no source" in check(lesson)[0]


def test_the_colab_cell_follows_the_header_unless_the_source_has_one(lesson: Lesson) -> None:
    cells = read_source(lesson).cells
    assert cells[0].source.startswith("# 00") and "google.colab" in cells[1].source
    assert len(cells[1].source.splitlines()) <= 9 and "colab-badge" not in cells[0].source
    edit(lesson, "import time", 'own = "google.colab"')
    assert sum("google.colab" in cell.source for cell in read_source(lesson).cells) == 1
