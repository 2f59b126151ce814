"""`course doctor`: green on this machine, red with advice where something is broken."""

from __future__ import annotations

import ast
import inspect
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

from course_kit import ranks
from course_tools import doctor
from course_tools.grading.sandbox import processes as sandbox
from tests.cli.conftest import Course


def test_ranks_that_do_not_start_or_answer_wrongly_are_red(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "run", Mock(side_effect=OSError("no sockets here")))
    (finding,) = doctor.ranks_start()
    assert finding.good is False and "no sockets here" in finding.text and "127.0.0.1" in finding.advice
    monkeypatch.setattr(ranks, "run", lambda *arguments, **options: [1.0] * 4)
    (finding,) = doctor.ranks_start()
    assert finding.good is False and "Install PyTorch anew" in finding.advice


def test_a_full_or_missing_folder_is_red(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (missing,) = doctor.disk((tmp_path / "nowhere",))
    assert missing.good is False and "cannot write" in missing.text
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda folder: SimpleNamespace(free=10**6))
    (full,) = doctor.disk((tmp_path,))
    assert full.good is False and "0.0 GB free" in full.text


def test_other_versions_are_named_but_not_red(tmp_path: Path) -> None:
    (tmp_path / "constraints.txt").write_text("# comment\nnumpy==0.1\nnot-installed==3.0\n")
    (finding,) = doctor.pins(lambda: tmp_path)
    assert finding.good is None and "numpy" in finding.text and "pinned: 0.1" in finding.text
    assert "not-installed" not in finding.text
    (without,) = doctor.pins(lambda: tmp_path / "nowhere")
    assert without.good is None and "start.py" in without.advice


def test_a_local_build_of_torch_is_the_pinned_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "constraints.txt").write_text("torch==2.13.0\n")
    torch = SimpleNamespace(name="torch", version="2.13.0+cpu")
    monkeypatch.setattr(doctor.importlib.metadata, "distributions", lambda: [torch])
    (finding,) = doctor.pins(lambda: tmp_path)
    assert finding.good is True


def test_those_who_grade_learn_whether_it_is_isolated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "best_isolation", lambda: sandbox.NONE)
    (open_house,) = doctor.grading()
    assert open_house.good is None and "without a sandbox" in open_house.text and "bubblewrap" in open_house.advice
    monkeypatch.setattr(sandbox, "best_isolation", lambda: sandbox.BUBBLEWRAP)
    assert [finding.good for finding in doctor.grading()] == [True]
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: None)
    assert list(doctor.grading()) == [], "students do not grade"


def test_whatever_is_not_green_says_what_to_do() -> None:
    calls = [node for node in ast.walk(ast.parse(inspect.getsource(doctor))) if isinstance(node, ast.Call)]
    findings = [call.args for call in calls if isinstance(call.func, ast.Name) and call.func.id == "Finding"]
    not_green = [args for args in findings if getattr(args[0], "value", None) is not True]
    assert len(findings) > len(not_green) >= 9
    assert [ast.unparse(args[1]) for args in not_green if len(args) < 3] == []


def test_a_python_without_an_environment_learns_how_to_make_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    monkeypatch.delenv("CONDA_PREFIX", raising=False)
    _, finding = doctor.python()
    assert finding.good is None and "start.py" in finding.advice


def test_a_pytorch_that_is_broken_or_blind_to_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(doctor.shutil, "which", lambda name: f"/usr/bin/{name}")
    _, blind = doctor.torch_and_devices()
    assert blind.good is None and "NVIDIA" in blind.text and "CUDA build" in blind.advice
    monkeypatch.setitem(sys.modules, "torch", None)
    (broken,) = doctor.torch_and_devices()
    assert broken.good is False and "start.py" in broken.advice


def test_this_machine_is_ready(course: Course) -> None:
    result = course("doctor")
    assert result.returncode == 0, result.stdout
    assert "Ready." in result.stdout
    for words in ("Python 3.", "PyTorch 2.", "four ranks add up", "GB free"):
        assert any(words in line and line.startswith("✓") for line in result.stdout.splitlines()), result.stdout
