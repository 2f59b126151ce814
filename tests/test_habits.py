"""The habits around the code: hooks, workflows, citation, changelog and the map in CONTRIBUTING are true."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import yaml
from packaging.specifiers import SpecifierSet

import course_lib
from course_tools import TAUGHT
from tests.test_packaging import COLAB, COLAB_LIST

ROOT = Path(__file__).parents[1]
READS = (".github/**/*", "*.md", "*.cff", "*.yaml", "docs/*", "changelog.d/*", "course_*/**/*.py", "tests/*/*.py")
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
PROJECT, TOWNCRIER = PYPROJECT["project"], PYPROJECT["tool"]["towncrier"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FRAGMENT = re.compile(r"(?:\d+|\+\w+)\.(\w+)\.md")


def read(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text("utf-8"))


def test_one_version_and_one_licence_everywhere() -> None:
    citation = read("CITATION.cff")
    assert PROJECT["version"] == str(citation["version"]) == course_lib.__version__
    assert PROJECT["license"] == " AND ".join(citation["license"])


def test_the_check_runs_on_three_systems_and_on_every_python_that_is_claimed() -> None:
    text = (ROOT / ".github" / "workflows" / "check.yml").read_text("utf-8")
    occasions = [json.loads(jobs) for jobs in re.findall(r"jobs='(\{.*\})'", text)]
    systems, pythons = (sorted({each for jobs in occasions for each in jobs[key]}) for key in ("system", "python"))
    assert {system.partition("-")[0] for system in systems} == {"ubuntu", "macos", "windows"}
    claimed = SpecifierSet(PROJECT["requires-python"])
    newest = max(int(version.split(".")[1]) for version in pythons)
    assert pythons == [f"3.{minor}" for minor in range(newest + 1) if f"3.{minor}" in claimed]
    assert f"for Python {pythons[0]} to {pythons[-1]}" in (ROOT / "constraints.txt").read_text("utf-8")


def test_the_weekly_run_installs_colabs_list_and_everything_else_as_pinned(tmp_path: Path) -> None:
    steps = read(".github/workflows/colab.yml")["jobs"]["notebooks"]["steps"]
    (pinning,) = (step["run"] for step in steps if "pins.txt" in step.get("run", "") and "pip" not in step["run"])
    environment = {**os.environ, "RUNNER_TEMP": str(tmp_path)}
    subprocess.run(["bash", "-euo", "pipefail", "-c", pinning], cwd=ROOT, env=environment, check=True)
    (python,) = (step["with"]["python-version"] for step in steps if "setup-python" in step.get("uses", ""))
    assert f"with Python {python}:" in COLAB_LIST.read_text("utf-8")
    lines = (tmp_path / "pins.txt").read_text("utf-8").splitlines()
    pins = [line.split("==") for line in lines if line and not line.startswith("#")]
    usual = (line.split("==") for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines() if "==" in line)
    wanted = dict(usual) | COLAB
    del wanted["jupyterlab-widgets"]
    assert len(pins) == len(dict(pins)) and dict(pins) == wanted


def test_colabs_list_says_from_where_and_when_it_is() -> None:
    text = COLAB_LIST.read_text("utf-8")
    assert "github.com/googlecolab/backend-info" in text and re.search(r"\b20\d\d-\d\d-\d\d\b", text)
    assert {"torch", "triton", "ipython", "ipykernel", "jupyter-client", "matplotlib", "ipywidgets"} <= set(COLAB)


def test_actions_are_taken_by_major_version_and_may_not_write() -> None:
    for path in WORKFLOWS:
        used = re.findall(r"uses: (\S+)", path.read_text("utf-8"))
        assert used and all(re.search(r"@(release/)?v\d+$", action) for action in used), path.name
        assert yaml.safe_load(path.read_text("utf-8"))["permissions"] == {"contents": "read"}, path.name


def test_hooks_fetch_nothing_and_run_what_the_test_extra_installs() -> None:
    (repository,) = read(".pre-commit-config.yaml")["repos"]
    assert repository["repo"] == "local"
    installed = {re.split(r"[\[<>=]", text)[0] for text in PROJECT["optional-dependencies"]["test"]}
    for hook in repository["hooks"]:
        assert hook["language"] == "system"
        assert hook["entry"].split()[0] in installed | set(PROJECT["scripts"])


def test_hooks_look_at_sources_and_at_what_is_built_from_them() -> None:
    (hook,) = (hook for hook in read(".pre-commit-config.yaml")["repos"][0]["hooks"] if hook["id"] == "notebooks")
    lesson, lab = "03_activation_checkpointing", "lab03_activation_checkpointing"
    seen = [f"lessons/src/{lesson}.py", f"lessons/{lesson}.ipynb", f"solutions/src/{lab}.py"]
    seen += [f"{folder}/{lab}/{lab}.ipynb" for folder in ("labs", "solutions")]
    assert all((ROOT / path).is_file() and re.search(hook["files"], path) for path in seen)
    assert not re.search(hook["files"], "course_kit/units.py")


def test_fragments_have_names_that_towncrier_reads() -> None:
    types = {kind["directory"] for kind in TOWNCRIER["type"]}
    for path in (ROOT / "changelog.d").glob("[!.]*"):
        match = FRAGMENT.fullmatch(path.name)
        assert match and match[1] in types, (
            f"{path.name}: NUMBER.TYPE.md or +WORDS.TYPE.md, TYPE one of {sorted(types)}"
        )


def test_the_next_release_tells_every_fragment() -> None:
    command = [sys.executable, "-m", "towncrier", "build", "--draft", "--version", "next"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, encoding="utf-8")
    assert result.returncode == 0, result.stderr
    for path in (ROOT / "changelog.d").glob("*.md"):
        assert path.read_text("utf-8").strip() in result.stdout


def test_the_map_leaves_no_part_of_the_house_out() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    table = text[text.index("## You want to change X") : text.index("## Setting up")]
    folders = [path for package in (*TAUGHT, "tests") for path in (ROOT / package).glob("[!_.]*") if path.is_dir()]
    folders += [path for path in (ROOT / "course_tools" / "grading").glob("[!_.]*") if path.is_dir()]
    parts = [f"{path.relative_to(ROOT).as_posix()}/" for path in folders]
    parts = sorted({re.sub(r"lesson\d\d", "lessonNN", part) for part in parts})
    assert [part for part in parts if part not in table and part != "tests/mutants/"] == []
    modules = [*(ROOT / "course_tools").rglob("[!_]*.py"), *(ROOT / "course_kit").glob("[!_]*.py"), *ROOT.glob("*.py")]
    inside = [path for path in modules if not any(part in path.as_posix() for part in parts)]
    assert [path.name for path in inside if path.name not in table and path.stem not in {"commands", "files"}] == []
    pages = [path.name for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/*")]]
    assert [name for name in pages if name not in table and name not in {"CONTRIBUTING.md", "CHANGELOG.md"}] == []
