"""The content of the wheel and of the source distribution, built without a network."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from course_tools import TAUGHT

ROOT = Path(__file__).parents[1]
READS = ("course_*/**/*", "lessons/*.ipynb", "labs/*/*.ipynb", "GLOSSARY.md", "LICENSE*", ".github/colab.txt")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
COLAB_LIST = ROOT / ".github" / "colab.txt"
COLAB = dict(re.findall(r"^([\w-]+)==(\S+)$", COLAB_LIST.read_text("utf-8"), re.MULTILINE))
"""Google Colab's versions."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both distributions; the wheel is made from the source distribution, as an installer would."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    return folder


def test_the_wheel_holds_the_packages_with_their_javascript_and_nothing_else(built: Path) -> None:
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        names = set(wheel.namelist())
        entry = wheel.read(next(n for n in names if n.endswith("entry_points.txt"))).decode()
    packages = (*TAUGHT, "course_tools")
    wanted = {
        path.relative_to(ROOT).as_posix()
        for package in packages
        for path in (ROOT / package).rglob("*")
        if path.suffix in {".py", ".js", ".css", ".jinja"}
    }
    assert wanted <= names
    assert any(name.endswith(".js") for name in names), "the explorers' JavaScript is missing"
    assert {name.split("/")[0] for name in names} == {
        *packages,
        f"bigger_than_one_gpu-{PROJECT['version']}.dist-info",
    }
    assert any(name.endswith("LICENSE") for name in names) and any(name.endswith("LICENSE-CONTENT") for name in names)
    assert "course = course_tools.__main__:main" in entry


def test_a_reader_without_a_clone_gets_the_lessons_from_the_wheel(built: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        wheel.extractall(tmp_path / "installed")
    theirs = tmp_path / "mine" / "lessons" / "01_float_formats.ipynb"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("what a reader did with it")
    command = [sys.executable, "-m", "course_tools", "open", "99", "--to", "mine"]  # 99: JupyterLab need not start
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "installed"), "COLUMNS": "300"}
    said = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True).stdout
    assert "1 were there and stay as they are" in said and "there is no lesson '99'" in said, said
    assert theirs.read_text() == "what a reader did with it"
    copied = {p.relative_to(tmp_path / "mine") for p in (tmp_path / "mine").rglob("*") if p.is_file()}
    notebooks = [path.relative_to(ROOT) for folder in ("lessons", "labs") for path in (ROOT / folder).rglob("*.ipynb")]
    assert {*notebooks, Path("GLOSSARY.md")} <= copied
    assert not any("solutions" in path.parts or path.suffix == ".py" for path in copied)


def test_the_source_distribution_holds_what_is_needed_to_work_on_the_course(built: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    assert {"start.py", "constraints.txt", "pyproject.toml", "course_kit/units.py", "tests/test_packaging.py"} <= names
    assert not any(name.startswith((".venv", ".git/")) for name in names)


def test_dependencies_leave_colab_as_it_is() -> None:
    """The packages that a lesson needs must accept Colab's versions, and must not bring JupyterLab along."""
    from packaging.requirements import Requirement
    from packaging.specifiers import SpecifierSet

    core = {r.name: r for r in map(Requirement, PROJECT["dependencies"])}
    there = core.keys() & COLAB.keys()
    assert core.keys() - there == {"jaxtyping"}  # all that pip adds there
    assert all(core[name].specifier.contains(COLAB[name]) for name in there)
    assert SpecifierSet(PROJECT["requires-python"]).contains("3.13")
    assert not {"jupyterlab", "nbclient", "notebook"} & set(core)


def test_every_dependency_is_pinned_exactly_once() -> None:
    from packaging.requirements import Requirement

    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pinned = [line.split("==")[0] for line in lines if line and not line.startswith("#")]
    assert len(pinned) == len(set(pinned)) and "torch==2.13.0" in lines
    extras = PROJECT["optional-dependencies"]
    wanted = {Requirement(text).name for text in PROJECT["dependencies"] + sum(extras.values(), [])}
    assert wanted - {PROJECT["name"]} <= set(pinned)
    assert not [line for line in lines if re.search(r"[+@]|://", line) and not line.startswith("#")]
