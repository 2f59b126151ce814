"""`start.py` for real: real environments, real pip, small stand-ins for the packages, so that no network is needed."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import psutil
import pytest

START = Path(__file__).parents[1] / "start.py"
POSIX = pytest.mark.skipif(os.name == "nt", reason="signals and home folders are different on Windows")
BACKEND = '''\
"""Builds the stand-in for the course: an editable wheel that points here."""
import os, pathlib, sys, time, zipfile
def get_requires_for_build_editable(config_settings=None):
    return []
def build_editable(folder, config_settings=None, metadata_directory=None):
    pathlib.Path("building").touch()
    time.sleep(float(os.environ.get("SLOW_BUILD", 0)))
    name = "bigger_than_one_gpu-0.1.0"
    with zipfile.ZipFile(f"{folder}/{name}-py3-none-any.whl", "w") as wheel:
        metadata = "Metadata-Version: 2.1\\nName: bigger-than-one-gpu\\nVersion: 0.1.0\\nRequires-Dist: torch\\n"
        for extra in ("jupyter", "test"):
            metadata += f"Provides-Extra: {extra}\\nRequires-Dist: {extra}stuff; extra == '{extra}'\\n"
        wheel.writestr("course.pth", os.getcwd())
        wheel.writestr(f"{name}.dist-info/METADATA", metadata)
        wheel.writestr(f"{name}.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(f"{name}.dist-info/RECORD", "")
    return f"{name}-py3-none-any.whl"
'''
SAY = """\
import os, sys, json
print(json.dumps([sys.prefix, os.environ.get("HOME"), sys.argv[1:], os.environ.get("VIRTUAL_ENV")]))
"""


def fake_wheel(folder: Path, name: str, version: str = "1.0") -> None:
    """An importable package without content."""
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}/__init__.py", "")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


COPY = "import shutil, sys\nshutil.copytree({empty!r}, sys.argv[1], symlinks=True, dirs_exist_ok=True)\n"


PACKAGES = ("course_lib", "course_kit", "course_pages", "course_tools", "tests")


class Checkout:
    """A folder with the real start.py, a stand-in for the course, and a folder of wheels in place of an index."""

    def __init__(self, folder: Path) -> None:
        self.root, self.wheels, self.venv = folder / "course", folder / "wheels", folder / "course" / ".venv"
        self.home, self.temporary = folder / "home", folder / "temporary"
        self.settings: dict[str, str] = {}
        self.started: list[subprocess.Popen[str]] = []
        for path in (*(self.root / name for name in PACKAGES), self.wheels, self.home, self.temporary):
            path.mkdir(parents=True)
        shutil.copy(START, self.root)
        (self.root / "backend.py").write_text(BACKEND)
        (self.root / "pyproject.toml").write_text(
            '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        )
        (self.root / "constraints.txt").write_text("jupyterstuff==1.0\n")
        for package in PACKAGES:
            (self.root / package / "__init__.py").touch()
            (self.root / package / "__main__.py").write_text(SAY)
        for name in ("hatchling", "editables", "jupyterstuff", "teststuff"):
            fake_wheel(self.wheels, name)
        fake_wheel(self.wheels, "torch", "2.13.0")

    def copy_environments_of(self, empty: Path) -> None:
        """Let `python -m venv` copy an empty environment from now on: to make a new one takes seconds, for its pip."""
        stand_in = self.home.with_name("stand-in") / "venv.py"
        stand_in.parent.mkdir()
        stand_in.write_text(COPY.format(empty=str(empty)))
        self.settings["PYTHONPATH"] = str(stand_in.parent)

    def environment(self, **extra: str) -> dict[str, str]:
        """Variables without an index and without settings of this machine, with a home of their own."""
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(("PIP_", "VIRTUAL_ENV"))}
        pip = {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(self.wheels)}
        home = {"HOME": str(self.home), "https_proxy": "http://127.0.0.1:9", "TMPDIR": str(self.temporary)}
        return inherited | pip | home | self.settings | extra

    def popen(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        """Start `start.py` with the Python that runs the tests."""
        process = subprocess.Popen(
            [sys.executable, str(self.root / "start.py"), *arguments],
            env=self.environment(**environment),
            cwd=self.home,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    def call(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run `start.py` to its end."""
        process = self.popen(*arguments, **environment)
        out, err = process.communicate(timeout=100)
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def end(self) -> None:
        """End all processes that still run in this checkout: a build goes on when the pip that wants it was killed."""
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if Path(process.cwd()).is_relative_to(self.root.parent):
                    process.kill()
        for process in self.started:
            with process:
                pass

    def installed(self) -> set[str]:
        """The packages in the environment."""
        return {path.name.split("-")[0] for path in self.venv.rglob("*.dist-info")}


def said(result: subprocess.CompletedProcess[str]) -> list[str]:
    """The lines that start.py wrote to standard error: one plain sentence, never a traceback."""
    assert "Traceback" not in result.stderr and result.returncode not in (0, None), result.stderr
    return result.stderr.strip().splitlines()


@pytest.fixture
def checkout(tmp_path: Path) -> Iterator[Checkout]:
    made = Checkout(tmp_path)
    yield made
    made.end()


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment that holds pip and nothing else."""
    folder = tmp_path_factory.mktemp("empty") / "venv"
    subprocess.run([getattr(sys, "_base_executable", sys.executable), "-m", "venv", folder], check=True)
    return folder


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Checkout:
    """A checkout after a successful `start.py`."""
    checkout = Checkout(tmp_path_factory.mktemp("complete"))
    request.addfinalizer(checkout.end)
    result = checkout.call("open")
    assert result.returncode == 0, result.stderr
    for step in ("[1/3] make .venv", "[2/3] install PyTorch", "[3/3] install the course", "Ready after"):
        assert step in result.stdout
    return checkout


def load() -> ModuleType:
    """start.py as a module."""
    spec = importlib.util.spec_from_file_location("start", START)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_an_old_python_can_read_it_and_says_that_it_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    source = START.read_text("ascii")
    tree = ast.parse(source, feature_version=(3, 4))
    new = (ast.JoinedStr, ast.AnnAssign, ast.AsyncFunctionDef, ast.NamedExpr, ast.Nonlocal, ast.Starred)
    assert not [node for node in ast.walk(tree) if isinstance(node, new)], "Python 2.7 could not even parse this"
    start = load()
    monkeypatch.setattr(start.sys, "version_info", (3, 8, 1))
    monkeypatch.setattr(start, "works", lambda command: command[0] == "python3.12")
    with pytest.raises(start.Problem, match=r"This is Python 3\.8, .* 3\.11 or newer: type `python3\.12 start.py`"):
        start.check_python()
    monkeypatch.setattr(start, "works", lambda command: False)
    with pytest.raises(start.Problem, match=r"https://www\.python\.org"):
        start.check_python()


@pytest.mark.parametrize("version", ["2.7", "3.6", "3.8", "3.10"])
def test_real_old_pythons(version: str) -> None:
    python = shutil.which(f"python{version}")
    if not python or subprocess.run([python, "--version"], capture_output=True).returncode:
        pytest.skip(f"no Python {version} here")
    result = subprocess.run([python, str(START), "open"], capture_output=True, text=True)
    assert f"This is Python {version}, and the course needs 3.11 or newer" in said(result)[0]


def test_it_needs_nothing_but_the_standard_library() -> None:
    imports = [node for node in ast.walk(ast.parse(START.read_text())) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {alias.name for node in imports if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in imports if isinstance(node, ast.ImportFrom)}
    assert {name.split(".")[0] for name in names} <= sys.stdlib_module_names
    assert len(START.read_text().splitlines()) <= 320


def test_its_help_names_both_commands_and_does_nothing(checkout: Checkout) -> None:
    result = checkout.call("--help")
    assert result.returncode == 0 and "start.py" in result.stdout and "start.py test" in result.stdout
    assert not checkout.venv.exists()


def test_every_stage_is_named_in_its_help() -> None:
    from tests.stages import NAMES

    helped = subprocess.run([sys.executable, START, "test", "--help"], capture_output=True, text=True).stdout
    assert all(stage in helped for stage in [*NAMES, "quick"]), helped


def test_students_have_no_tests_and_are_told_before_anything_is_installed(checkout: Checkout) -> None:
    shutil.rmtree(checkout.root / "tests")
    assert said(checkout.call("test"))[0].startswith("There are no tests here") and not checkout.venv.exists()


@pytest.mark.slow
class TestComplete:
    """After one successful call."""

    def test_the_second_call_reaches_its_work_in_under_three_seconds(self, complete: Checkout) -> None:
        seconds = []
        for _ in range(3):  # the least of three: the others measure the machine's other users
            start = time.perf_counter()
            result = complete.call("open", "1", "--no-browser")
            seconds.append(time.perf_counter() - start)
        assert min(seconds) < 3
        prefix, home, arguments, _ = json.loads(result.stdout)
        assert (Path(prefix).resolve(), home) == (complete.venv.resolve(), str(complete.home))
        assert arguments == ["open", "1", "--no-browser"]

    @pytest.mark.parametrize(
        ("words", "meaning"),
        [((), ["open", "00"]), (("lab",), ["open", "00"]), (("lab", "2"), ["open", "2"]), (("03",), ["open", "03"])],
    )
    def test_no_word_is_needed_to_open_a_lesson(
        self, complete: Checkout, words: tuple[str], meaning: list[str]
    ) -> None:
        """The command was once called `start.py lab`."""
        assert json.loads(complete.call(*words).stdout)[2] == meaning

    def test_test_adds_what_open_did_not_need(self, complete: Checkout) -> None:
        assert "teststuff" not in complete.installed() and "jupyterstuff" in complete.installed()
        result = complete.call("test", "lint", "unit")
        assert json.loads(result.stdout.splitlines()[-1])[2] == ["lint", "unit"]
        assert "[1/3]" not in result.stdout and "teststuff" in complete.installed()
        assert "install" not in complete.call("open").stdout, "open is contained in test"

    @POSIX
    @pytest.mark.parametrize("home", ["", "/nowhere/at/all"])
    def test_an_empty_or_missing_home_does_not_matter(self, complete: Checkout, home: str) -> None:
        _, used, *_ = json.loads(complete.call("open", HOME=home).stdout)
        assert os.access(used, os.W_OK) and Path(used).parent == complete.root

    def test_the_packages_of_an_activated_environment_do_not_come_in_front(self, complete: Checkout) -> None:
        """Kernels inherit the variable, and IPython takes its `site-packages` before those of .venv, with a warning."""
        *_, named = json.loads(complete.call("open", VIRTUAL_ENV="/another/.venv").stdout)
        assert Path(named) == complete.venv

    def test_changed_pins_are_installed_and_a_failure_before_that_breaks_nothing(self, complete: Checkout) -> None:
        (complete.root / "constraints.txt").write_text("jupyterstuff==2.0\n")
        assert "could not be downloaded" in said(complete.call("open"))[-1]
        assert "jupyterstuff" in complete.installed(), "a working environment was thrown away"
        fake_wheel(complete.wheels, "jupyterstuff", "2.0")
        result = complete.call("open")
        assert result.returncode == 0 and "[1/3]" not in result.stdout
        assert list(complete.venv.rglob("jupyterstuff-2.0.dist-info"))

    @POSIX
    def test_another_python_keeps_what_works_and_says_so(self, complete: Checkout) -> None:
        made_by, note = complete.venv / "start.json", complete.venv / "as-before"
        state = json.loads(made_by.read_text())
        note.touch()
        older = state | {"base": state["base"].replace(repr(sys.version_info[:3]), "(3, 11, 0)")}
        assert older != state
        made_by.write_text(json.dumps(older))
        result = complete.call("open")
        assert result.returncode == 0 and note.exists(), "an environment with running kernels was thrown away"
        assert (
            result.stdout.startswith("Kept: .venv works, and another Python made it.")
            and sys.executable in result.stdout
        )
        assert json.loads(made_by.read_text()) == older
        torch = next(complete.venv.rglob("torch"))
        torch.rename(torch.with_name("gone"))
        result = complete.call("open")
        assert "[1/3] make .venv" in result.stdout and not note.exists(), "broken, so it is made anew"
        assert json.loads(made_by.read_text())["base"] == state["base"]


@pytest.mark.slow
class TestFailures:
    """One plain sentence each, and no half-made environment."""

    @pytest.fixture
    def checkout(self, checkout: Checkout, empty: Path) -> Checkout:
        """A checkout for tests that are not about making an environment; those of `complete` are."""
        checkout.copy_environments_of(empty)
        return checkout

    def test_no_network(self, checkout: Checkout) -> None:
        address = {"PIP_NO_INDEX": "0", "PIP_INDEX_URL": "http://127.0.0.1:9/simple"}
        (checkout.wheels / "torch-2.13.0-py3-none-any.whl").unlink()
        assert said(checkout.call("open", **address))[-1].startswith(
            "The packages could not be downloaded: check the n"
        )
        assert not checkout.venv.exists()

    def test_no_room_for_temporary_files(self, checkout: Checkout) -> None:
        full = "import sys; sys.exit('OSError: [Errno 28] No space left on device')"
        (checkout.root / "backend.py").write_text(full)
        assert said(checkout.call("open"))[-1].startswith("The disk is full: make 4 GB of room (9 with CUDA) in")
        assert not checkout.venv.exists()

    def test_an_unforeseen_failure_shows_the_error_and_the_log(self, checkout: Checkout) -> None:
        (checkout.root / "backend.py").write_text("raise ValueError('the moon is full')")
        (line,) = said(checkout.call("open"))
        assert "install the course failed: " in line and "rror" in line and line.endswith("start.log)")
        assert not checkout.venv.exists() and "the moon is full" in (checkout.root / "start.log").read_text()

    @POSIX
    @pytest.mark.usefixtures("terminal")
    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_interrupted(self, checkout: Checkout, number: signal.Signals) -> None:
        process = checkout.popen("open", SLOW_BUILD="60")
        while not (checkout.root / "building").exists():
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(number)
        _, err = process.communicate(timeout=50)  # the build itself takes 60
        assert process.returncode == 128 + number and "Traceback" not in err
        assert not checkout.venv.exists()

    @POSIX
    def test_killed_without_a_chance_to_clean_up(self, checkout: Checkout) -> None:
        process = checkout.popen("open", SLOW_BUILD="60")
        while not (checkout.root / "building").exists():
            time.sleep(0.05)
        other = checkout.call("open")
        assert f"Another start.py (process {process.pid}) is installing here" in said(other)[-1]
        process.kill()
        process.communicate()
        result = checkout.call("open")
        assert result.returncode == 0 and "[1/3]" in result.stdout, result.stderr

    def test_no_venv_module(self, checkout: Checkout) -> None:
        fake = checkout.home / "sitecustomize.py"  # a Python whose ensurepip is missing, as on a bare Debian
        fake.write_text("import sys; sys.modules['ensurepip'] = None; sys.modules['venv'] = None")
        result = checkout.call("open", PYTHONPATH=str(checkout.home))
        assert "venv module is incomplete: `sudo apt install python3-venv`" in said(result)[-1]
        assert not checkout.venv.exists()


def test_a_full_disk_is_seen_before_anything_is_made(checkout: Checkout, monkeypatch: pytest.MonkeyPatch) -> None:
    start = load()
    for name in ("ROOT", "VENV", "STATE", "LOG"):
        monkeypatch.setattr(start, name, getattr(start, name).replace(str(START.parent), str(checkout.root)))
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(start.shutil, "disk_usage", lambda folder: usage(10**10, 10**10, 10**8))
    with pytest.raises(start.Problem, match=r"The disk is full: 0\.1 GB are left"):
        start.prepare(["jupyter"])
    assert not checkout.venv.exists()


def test_an_environment_of_somebody_else_is_used_or_refused_but_never_removed(checkout: Checkout) -> None:
    checkout.venv.mkdir()
    (checkout.venv / "precious").touch()
    assert "was not made by start.py and is not complete" in said(checkout.call("open"))[-1]
    assert (checkout.venv / "precious").exists()
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(checkout.venv)], check=True)
    packages = next(checkout.venv.rglob("site-packages"))
    for name in ("torch", "jupyterlab", "typer", *PACKAGES[:-1]):
        (packages / name).mkdir()
    assert checkout.call("open").returncode == 0 and (checkout.venv / "precious").exists()
    assert "is not complete" in said(checkout.call("test"))[-1]
