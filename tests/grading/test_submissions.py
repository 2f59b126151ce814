"""Folders and zips as they come from students, Canvas and Moodle."""

from __future__ import annotations

import io
import os
import stat
import sys
import zipfile
from pathlib import Path

import pytest

from course_tools.grading.intake.submissions import Submission, find_submissions

LAB = "lab90_tiny"
MIB = 2**20


def find(where: Path, largest_bytes: int = MIB) -> list[Submission]:
    return find_submissions(where, LAB, largest_bytes=largest_bytes)


def write(top: Path, *names: str, data: bytes = b"{}") -> Path:
    for name in names:
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_bytes(data)
    return top


def zipped(path: Path, *names: str, data: bytes = b"{}") -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names:
            archive.writestr(name, data)
    return path


def test_a_folder_for_each_student(tmp_path: Path) -> None:
    write(tmp_path, "ada/x.ipynb", f"bob/{LAB}/{LAB}.ipynb", "eve/answers.pdf", "ada/.ipynb_checkpoints/x.ipynb")
    (tmp_path / "zoe").mkdir()
    ada, bob, eve, zoe = find(tmp_path)
    assert (ada.student, ada.name, ada.source, ada.data, ada.problem) == ("ada", "ada", "ada/x.ipynb", b"{}", "")
    assert bob.source == f"bob/{LAB}/{LAB}.ipynb"
    assert ".pdf" in eve.problem and zoe.problem == "nothing was handed in"


def test_a_flat_folder(tmp_path: Path) -> None:
    write(tmp_path, "Ada Lovelace.ipynb", f"{LAB}_bob.ipynb", "grades.csv")
    assert [(s.student, s.name) for s in find(tmp_path)] == [("Ada-Lovelace", "Ada Lovelace"), ("bob", "bob")]


def test_a_name_is_the_same_however_its_accents_are_stored(tmp_path: Path) -> None:
    apart, joined = "Zoe\u0308 A\u030angstro\u0308m", "Zo\u00eb \u00c5ngstr\u00f6m"
    write(tmp_path / "folder", f"{apart}/x.ipynb")
    zipped(tmp_path / "moodle.zip", f"{apart}_17_assignsubmission_file/x.ipynb", "b_18_assignsubmission_file/x.ipynb")
    (folder,), (_, moodle) = find(tmp_path / "folder"), find(tmp_path / "moodle.zip")
    assert (folder.student, folder.name, folder.data) == (joined.replace(" ", "-"), joined, b"{}")
    assert (moodle.student, moodle.name) == (joined.replace(" ", "-") + "-17", joined)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere, names of files are Unicode")
def test_names_in_another_encoding_are_spelt_out(tmp_path: Path) -> None:
    """Folders that came out of an old zip: two students, each with a name that can be written."""
    for name in (b"M\xfcller", b"M\xf6ller"):
        folder = os.fsencode(tmp_path) + b"/" + name
        os.mkdir(folder)
        Path(os.fsdecode(folder), "x.ipynb").write_bytes(b"{}")
    found = find(tmp_path)
    assert {each.name for each in found} == {r"M\udcfcller", r"M\udcf6ller"} and all(each.data for each in found)
    assert all(str(each).encode() for each in found)


def test_of_several_notebooks_the_newest_that_is_named_like_the_lab(tmp_path: Path) -> None:
    write(
        tmp_path,
        f"ada/{LAB}.ipynb",
        "ada/zzz.ipynb",
        "bob/old.ipynb",
        "bob/a_new.ipynb",
        f"eve/{LAB}.ipynb",
        f"eve/{LAB} (1).ipynb",
    )
    for old in ("bob/old.ipynb", f"ada/{LAB}.ipynb", f"eve/{LAB}.ipynb"):
        os.utime(tmp_path / old, (0, 0))
    ada, bob, eve = find(tmp_path)
    assert (ada.source, bob.source, eve.source) == (f"ada/{LAB}.ipynb", "bob/a_new.ipynb", f"eve/{LAB} (1).ipynb")
    assert bob.notes == ("2 notebooks were handed in; this is about a_new.ipynb, the newest",)
    assert ada.notes[0].endswith(f"{LAB}.ipynb, the newest that is called like the lab")
    twins = zipped(
        tmp_path / "same time.zip", f"ada/{LAB} (1).ipynb", f"ada/{LAB}.ipynb", f"ada/z{LAB}.ipynb", "b/x.ipynb"
    )
    assert [one.source for one in find(twins)] == [f"ada/{LAB}.ipynb", "b/x.ipynb"]


@pytest.mark.parametrize("packed", [False, True])
def test_a_student_who_zips(tmp_path: Path, packed: bool) -> None:
    mine = zipped(tmp_path / "mine.ZIP", f"work/{LAB}.ipynb", "work/a.png", data=b"{1}").read_bytes()
    bomb = zipped(tmp_path / "bomb.zip", "x.ipynb", data=bytes(100 * MIB)).read_bytes()
    top = write(tmp_path / "all", "ada/lab.ZIP", data=mine)
    write(write(top, "bob/x.zip", data=bomb), "eve/x.zip", data=b"PK broken")
    if packed:
        with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
            for path in top.rglob("*.*"):
                archive.write(path, path.relative_to(top))
    ada, bob, eve = find(tmp_path / "all.zip" if packed else top)
    assert (ada.source, ada.data, ada.problem) == (f"ada/lab.ZIP/work/{LAB}.ipynb", b"{1}", "")
    assert "larger" in bob.problem and not bob.data and ".zip" in eve.problem


@pytest.mark.parametrize("packed", [False, True])
def test_moodle(tmp_path: Path, packed: bool) -> None:
    names = ("Ada Lovelace_123_assignsubmission_file_/x.ipynb", "Bo O'Hara_7_assignsubmission_file/y.ipynb")
    names += ("Eve Ng_8_assignsubmission_file_lab.ipynb",)
    ada, bob, eve = find(zipped(tmp_path / "m.zip", *names) if packed else write(tmp_path, *names))
    assert (ada.student, ada.name, ada.gradebook_id) == ("Ada-Lovelace-123", "Ada Lovelace", "123")
    assert (bob.student, bob.name, bob.gradebook_id) == ("Bo-O-Hara-7", "Bo O'Hara", "7")
    assert (eve.name, eve.gradebook_id, eve.data) == ("Eve Ng", "8", b"{}")


@pytest.mark.parametrize("packed", [False, True])
def test_canvas(tmp_path: Path, packed: bool) -> None:
    names = ("lovelaceada_LATE_12345_67890_lab_1.ipynb", "ngeve_7_88_lab-2.ipynb", "odd_9_10_lab.html")
    ada, eve, odd = find(zipped(tmp_path / "c.zip", *names) if packed else write(tmp_path, *names))
    assert (ada.name, ada.gradebook_id, ada.notes) == ("lovelaceada", "12345", ("marked as late in the download",))
    assert (eve.student, eve.name, eve.gradebook_id, eve.notes) == ("ngeve-7", "ngeve", "7", ())
    assert ".html" in odd.problem


@pytest.mark.parametrize("ending", ["mine.zip", "answers.pdf"])
def test_one_student_whose_only_file_is_no_notebook(tmp_path: Path, ending: str) -> None:
    """The download of an assignment that one student has handed in so far."""
    inner = zipped(tmp_path / "inner.zip", f"work/{LAB}.ipynb").read_bytes()
    (ada,) = find(zipped(tmp_path / "all.zip", f"lovelaceada_1_91_{ending}", data=inner))
    assert (ada.name, ada.gradebook_id) == ("lovelaceada", "1")
    assert ada.data == b"{}" if ending == "mine.zip" else ".pdf" in ada.problem


def test_a_zip_of_one_folder_of_everything(tmp_path: Path) -> None:
    found = find(zipped(tmp_path / "a.zip", "all/ada/x.ipynb", "all/bob/y.ipynb", "__MACOSX/all/._x"))
    assert [s.student for s in found] == ["ada", "bob"]
    assert [s.student for s in find(zipped(tmp_path / "b.zip", "all/ada.ipynb", "all/bob.ipynb"))] == ["ada", "bob"]
    assert [s.student for s in find(zipped(tmp_path / "c.zip", f"ada/{LAB}/{LAB}.ipynb"))] == ["ada"]


def test_ids_are_safe_and_unique(tmp_path: Path) -> None:
    write(
        tmp_path,
        "a b/x.ipynb",
        "a-b/x.ipynb",
        "A:b/x.ipynb",
        "=cmd/x.ipynb",
        "Zoë/x.ipynb",
        "../".strip("./") + "~/x.ipynb",
    )
    found = [s.student for s in find(tmp_path)]
    assert len({name.casefold() for name in found}) == 6
    assert all(name == Path(name).name and not name.startswith((".", "=", "-")) for name in found)
    assert "Zoë" in found and "unnamed" in found


def test_large_files_are_not_read(tmp_path: Path) -> None:
    write(tmp_path, "ada/x.ipynb", data=bytes(50 * MIB))
    (ada,) = find(tmp_path)
    assert (ada.data, ada.problem) == (b"", "the file is larger than 1 MiB")


def test_links_are_not_followed(tmp_path: Path) -> None:
    secret = write(tmp_path / "else", "s.ipynb") / "s.ipynb"
    top = write(tmp_path / "in", "ada/x.ipynb")
    (top / "eve").mkdir()
    (top / "eve" / "x.ipynb").symlink_to(secret)
    (top / "bob").symlink_to(secret.parent)
    os.mkfifo(top / "eve2.ipynb")
    problems = {s.student: s.problem for s in find(top)}
    assert problems["ada"] == "" and "link" in problems["eve"] and problems["bob"] and "plain" in problems["eve2"]


def test_a_zip_that_leads_out_or_holds_links(tmp_path: Path) -> None:
    archive = zipped(
        tmp_path / "z.zip", "ada/x.ipynb", "../../evil.ipynb", "/abs/x.ipynb", "bob/../../y.ipynb", "c\\x.ipynb"
    )
    with zipfile.ZipFile(archive, "a") as file:
        link = zipfile.ZipInfo("eve/x.ipynb")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        file.writestr(link, "/etc/passwd")
    found = {s.student: s for s in find(archive)}
    assert found["ada"].data == b"{}" and found["c"].data == b"{}"
    assert found["eve"].problem == "the file is a link"
    for name in ("evil", "abs", "bob"):
        assert (found[name].data, found[name].problem) == (b"", "its path leads out of the archive")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["z.zip"]


def test_a_zip_bomb_is_refused_also_when_it_lies_about_its_size(tmp_path: Path) -> None:
    archive = zipped(tmp_path / "z.zip", "ada/x.ipynb", data=bytes(100 * MIB))
    zipped_size = archive.stat().st_size
    assert zipped_size < MIB
    assert "larger" in find(archive)[0].problem
    content = bytearray(archive.read_bytes())
    real = (100 * MIB).to_bytes(4, "little")
    lying = bytes(content.replace(real, (1000).to_bytes(4, "little")))
    archive.write_bytes(lying)
    (ada,) = find(archive)
    assert ada.problem and not ada.data


def test_a_damaged_member_does_not_stop_the_rest(tmp_path: Path) -> None:
    archive = zipped(tmp_path / "z.zip", "ada/x.ipynb", "bob/x.ipynb", data=os.urandom(1000))
    content = bytearray(archive.read_bytes())
    content[100:110] = bytes(10)
    archive.write_bytes(content)
    ada, bob = find(archive)
    assert "damaged" in ada.problem and len(bob.data) == 1000


def test_whatever_a_codec_raises_is_one_students_problem(tmp_path: Path) -> None:
    """LZMA's error is of a kind of its own."""
    archive, whole = tmp_path / "z.zip", io.BytesIO()
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_LZMA) as file:
        for name in ("ada/x.ipynb", "bob/x.ipynb"):
            file.writestr(name, bytes(range(256)) * 8)
    told = set()
    for place in range(40, 200, 4):
        content = bytearray(whole.getvalue())
        content[place : place + 4] = b"\xff" * 4
        archive.write_bytes(content)
        told |= {ada.problem for ada in find(archive) if ada.name == "ada"}
    assert any("orrupt input data" in problem for problem in told)


def test_what_holds_no_submissions(tmp_path: Path) -> None:
    for where in (tmp_path, write(tmp_path / "x", "notes.txt"), tmp_path / "x" / "notes.txt", tmp_path / "none"):
        with pytest.raises(ValueError, match="notebooks there|neither|nothing of that name"):
            find(where) if where != tmp_path else find(write(tmp_path / "empty"))
