"""The feedback of a batch, sent back in one zip: Moodle and Canvas find each student's page, and no other."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode
from typer.testing import CliRunner

from course_tools import choosing, cli
from course_tools.grading import commands
from course_tools.grading import grade as grading
from course_tools.grading.intake.submissions import Submission
from course_tools.grading.report.gradebooks import write_gradebooks
from course_tools.grading.report.results import Result

from .conftest import TINY
from .making import result

PAGE, NOTEBOOK = f"{TINY.name}_feedback.html", f"{TINY.name}_feedback.ipynb"
PLUGINS = [("assignsubmission", "file"), ("assignsubmission", "onlinetext"), ("assignfeedback", "file")]
MOODLE, CANVAS = Path("out/gradebooks/moodle_feedback.zip"), Path("out/gradebooks/canvas_feedback.zip")
OUT = ("--out", "out")
Run = Callable[..., None]


def moodle_takes(name: str, participants: set[int]) -> tuple[int, str] | None:
    """The participant and the file that Moodle makes of a name in the zip; None: the file is passed over.

    lib/moodlelib.php, PARAM_PATH, as the zip is unpacked; mod/assign/feedback/file/importziplib.php,
    is_valid_filename_for_import.
    """
    path = re.sub(r"""[\x00-\x1f\x7f&<>"`|':]""", "", name.replace("\\", "/")).lstrip("/")
    parts = f"/import/{path}".split("/")
    if parts[-1].startswith((".", "~")):
        return None
    while parts:
        info = parts.pop(0).split("_", 4)
        if len(info) >= 4 and info[1].isdecimal() and int(info[1]) in participants and (info[2], info[3]) in PLUGINS:
            return int(info[1]), "/".join(["".join(info[4:]), *parts])
    return None


def canvas_takes(name: str, handed_in: dict[int, set[int]]) -> int | None:
    """The user whose submission Canvas comments with a file of this name; None: the file is ignored.

    lib/zip_extractor.rb, unzip_files; app/models/abstract_assignment.rb, infer_comment_context_from_filename.
    """
    filename = name.split("/")[-1]
    parts = [part for part in filename.split("_") if part != "LATE"]
    numbers = [int(part) for part in parts if re.fullmatch("[0-9]+", part)][:2]
    if len(numbers) < 2 or parts[-1].startswith("link") or filename.startswith("._"):
        return None
    user, attachment = numbers
    return user if attachment in handed_in.get(user, set()) else None


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run `course` in a folder of its own, on the tiny lab. Grading starts no kernel; each student loses a check."""

    def instant(key_text: str, one: Submission, limits: object) -> Result:
        failed = {"q1-values": f"the check of {one.student}", "q2-hidden": "a secret"}
        made = result(one.student, one.name, failed=failed, gradebook_id=one.gradebook_id)
        return replace(made, source=one.source, digest=grading.digest_of(key_text, one))

    def run(*arguments: str) -> None:
        ran = CliRunner().invoke(cli.app, [*arguments])
        assert ran.exit_code == 0, ran.output

    for module in (choosing, commands):
        monkeypatch.setattr(module, "course_root", lambda: TINY.root)
    monkeypatch.setattr(grading, "grade_one", instant)
    monkeypatch.chdir(tmp_path)
    return run


def download(*names: str) -> str:
    """A zip of submissions with these names."""
    with zipfile.ZipFile("download.zip", "w") as archive:
        for name in names:
            archive.writestr(name, "{}")
    return "download.zip"


def pages(path: str | Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        assert len(set(archive.namelist())) == len(archive.namelist())
        return {name: archive.read(name) for name in archive.namelist()}


def own_pages(ending: str = "html") -> dict[int, bytes]:
    """Number → feedback/STUDENT.html or .md."""
    results = [json.loads(path.read_text("utf-8")) for path in Path("out/results").iterdir()]
    return {int(one["gradebook_id"]): Path(f"out/feedback/{one['student']}.{ending}").read_bytes() for one in results}


def canvas_pages(handed_in: dict[int, set[int]]) -> dict[int | None, bytes]:
    """User → the text of the notebook that Canvas hands on."""
    taken = {}
    for name, page in pages(CANVAS).items():
        notebook = nbformat.reads(page.decode(), 4)
        nbformat.validate(notebook)
        (cell,) = notebook.cells
        assert cell.cell_type == "markdown" and name.endswith(".ipynb")
        taken[canvas_takes(name, handed_in)] = cell.source.encode()
    return taken


@pytest.mark.parametrize("ending", ["file/x.ipynb", "file_/a/x.ipynb", "file_my_x.ipynb", "onlinetext/text.html"])
def test_moodle_gives_each_student_their_own_page(run: Run, ending: str) -> None:
    """From folders, with the underscore that they had until 4.1, and from names without folders."""
    names = ["Ada Lovelace", "Ada Lovelace", "Zoë 王芳", "Bo O'Hara & <b>", "4711", "ada_Ada Byron", "Eve_4711"]
    people = dict(enumerate(names, 4711))
    run("grade", "lab90", download(*(f"{name}_{n}_assignsubmission_{ending}" for n, name in people.items())), *OUT)
    found, own = pages(MOODLE), own_pages()
    taken = {moodle_takes(name, set(people)): page for name, page in found.items()}
    assert taken == {(number, f"/{PAGE}"): own[number] for number in people}, "deeper, Moodle cannot replace it"
    assert len(set(own.values())) == len(own) and not any(b"secret" in page for page in own.values())
    assert f"Ada Lovelace_4711_assignsubmission_file/{PAGE}" in found, "an instructor sees whose it is"
    assert not CANVAS.exists()


def test_canvas_gives_each_student_their_own_page(run: Run) -> None:
    """The attachment must be the student's; names may end in a link, be numbers of others, and hold odd letters."""
    names = [
        "lovelaceada_1_91_lab90_tiny.ipynb",
        "lovelaceada_LATE_2_92_lab90_tiny-1.ipynb",
        "王芳_3_93_a_link.ipynb",
        "1_4_91_lab.ipynb",
        "late_5_95_2_92_report.pdf",
    ]
    run("grade", "lab90", download(*names, "ngeve_6_96_old.ipynb", "ngeve_6_97_lab90 (2).ipynb"), *OUT)
    found, own = pages(CANVAS), own_pages("md")
    handed_in = {1: {91}, 2: {92}, 3: {93}, 4: {91}, 5: {95}, 6: {96, 97}}
    assert canvas_pages(handed_in) == own and len(own) == 6
    assert f"ngeve_6_97_{NOTEBOOK}" in found, "the file that was graded"
    assert all("/" not in name for name in found)
    assert not any(b"secret" in page for page in own.values()) and not MOODLE.exists()


def test_a_zip_that_a_student_handed_in_to_canvas_has_its_number(run: Run) -> None:
    inner = Path(download("work/lab90_tiny.ipynb")).read_bytes()
    with zipfile.ZipFile("all.zip", "w") as archive:
        archive.writestr("lovelaceada_1_91_mine.zip", inner)
        archive.writestr("ngeve_2_92_lab90_tiny.ipynb", "{}")
    run("grade", "lab90", "all.zip", *OUT)
    assert canvas_pages({1: {91}, 2: {92}}) == own_pages("md")


def test_the_same_file_handed_in_again_has_its_new_number(run: Run) -> None:
    """Nothing is graded again, and Canvas takes the page, also when it is written again."""
    run("grade", "lab90", download("lovelaceada_1_91_lab90_tiny.ipynb"), *OUT)
    run("grade", "lab90", download("lovelaceada_1_95_lab90_tiny-1.ipynb"), "--resume", *OUT)
    assert canvas_pages({1: {95}}) == own_pages("md")
    run("feedback", "out")
    assert canvas_pages({1: {95}}) == own_pages("md")


def test_without_numbers_there_is_no_zip(run: Run) -> None:
    run("grade", "lab90", download("ada/lab90_tiny.ipynb", "eve_1_91_x/lab90_tiny.ipynb"), *OUT)
    assert Path("out/gradebooks/canvas.csv").exists() and not MOODLE.exists() and not CANVAS.exists()


def test_feedback_writes_the_zips_again_and_the_same_results_the_same_bytes(run: Run) -> None:
    names = ("Ada Lovelace_4711_assignsubmission_file/x.ipynb", "lovelaceada_1_91_lab90_tiny.ipynb")
    run("grade", "lab90", download(*names), *OUT)
    before = {path: path.read_bytes() for path in (MOODLE, CANVAS)}
    for path in before:
        path.unlink()
    run("feedback", "out")
    assert {path: path.read_bytes() for path in before} == before
    for path in before:
        with zipfile.ZipFile(path) as archive:
            assert {one.date_time for one in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}, "a date changes the bytes"
    Path("adjustments.csv").write_text("student,comment\nAda Lovelace,See me.\n", "utf-8")
    run("feedback", "out", "--adjust", "adjustments.csv")
    ((_, page),) = pages(MOODLE).items()
    assert b"See me." in page and page == own_pages()[4711] and CANVAS.read_bytes() == before[CANVAS]


@pytest.mark.parametrize("status", ["not graded", "again"])
def test_who_has_no_points_yet_is_in_no_zip(status: str, full_key: NotebookNode, tmp_path: Path) -> None:
    ada = result("ada-1", "Ada", gradebook_id="1")
    bob = result("bob-2", "Bob", gradebook_id="2")
    write_gradebooks([ada, bob], tmp_path, full_key)
    assert len(pages(tmp_path / MOODLE.name)) == 2
    write_gradebooks([ada, replace(bob, status=status)], tmp_path, full_key)
    assert [moodle_takes(name, {1, 2}) for name in pages(tmp_path / MOODLE.name)] == [(1, f"/{PAGE}")]
    write_gradebooks([replace(ada, status=status)], tmp_path, full_key)
    assert not (tmp_path / MOODLE.name).exists(), "a page of the points that were"


@pytest.mark.parametrize(
    "name", ["a/b_2_assignsubmission_file", r"a\2_2_assignsubmission_file_", "", "._2_", "..", "\x00/"]
)
def test_no_name_leads_to_another_student(name: str, full_key: NotebookNode, tmp_path: Path) -> None:
    moodle = result("s-1", gradebook_id="1")
    canvas = replace(result("t-1", gradebook_id="1"), source="x_1_91_lab90.ipynb")
    write_gradebooks([replace(one, name=name) for one in (moodle, canvas)], tmp_path, full_key)
    (folder,), (file,) = pages(tmp_path / MOODLE.name), pages(tmp_path / CANVAS.name)
    assert moodle_takes(folder, {1, 2}) == (1, f"/{PAGE}") and canvas_takes(file, {1: {91}, 2: {1, 91}}) == 1
    assert (folder.count("/"), file.count("/")) == (1, 0) and "\\" not in folder + file, "nor out of the folder"


def test_a_zip_is_written_whole_or_not_at_all(
    full_key: NotebookNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = [result(name, gradebook_id=number) for number, name in (("1", "ada"), ("2", "bob"))]
    write_gradebooks(two, tmp_path, full_key)
    before = (tmp_path / MOODLE.name).read_bytes()
    write, added = zipfile.ZipFile.writestr, []

    def stopped(archive: zipfile.ZipFile, name: zipfile.ZipInfo, page: bytes, kind: int) -> None:
        if added:
            raise KeyboardInterrupt
        added.append(write(archive, name, page, kind))

    monkeypatch.setattr(zipfile.ZipFile, "writestr", stopped)
    with pytest.raises(KeyboardInterrupt):
        write_gradebooks(two, tmp_path, full_key)
    assert added and (tmp_path / MOODLE.name).read_bytes() == before
