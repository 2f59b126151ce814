"""Installations by `start.py test`, with stand-ins for apt-get and Playwright; nothing of this machine is changed."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import pytest
import torch
from packaging.requirements import Requirement

import start
from tests import machine
from tests.simulated_gpu import build

SCRIPT = '#!/bin/sh\necho "$0 $*" >> {log}\n{then}\n'
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the stand-ins are shell scripts")


class Machine:
    """A machine with the programs of a folder and no others, in which `made` says whether a browser is there."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log, self.made, self.programs = folder / "log", folder / "made", folder / "programs"
        self.programs.mkdir()
        self.log.touch()
        self.patch = monkeypatch
        for name in ("sh", "env", "touch"):
            (self.programs / name).symlink_to(Path("/bin") / name if name != "env" else "/usr/bin/env")
        monkeypatch.setenv("PATH", str(self.programs))
        monkeypatch.setattr(start, "LOG", str(folder / "start.log"))
        monkeypatch.setattr(machine, "PLAYWRIGHT", ["playwright"])
        monkeypatch.setattr(machine, "browser_problem", lambda: "" if self.made.exists() else "there is no Chromium")
        self.be("debian", root=True)

    def be(self, system: str, *, root: bool, ci: str = "") -> None:
        """Pretend to be this system, called as root or not, in CI or not."""
        self.patch.setattr(machine, "system", lambda: system)
        self.patch.setattr(machine, "is_root", lambda: root)
        self.patch.setenv("CI", ci)

    def has(self, program: str, then: str) -> None:
        """Add a program that writes down its call, and then does something."""
        path = self.programs / program
        path.write_text(SCRIPT.format(log=self.log, then=then))
        path.chmod(0o755)

    def calls(self) -> list[str]:
        """The calls of programs, in order."""
        return [line.removeprefix(f"{self.programs}/") for line in self.log.read_text().splitlines()]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def test_what_is_there_is_not_installed(fake: Machine) -> None:
    fake.made.touch()
    fake.has("apt-get", "exit 0")
    assert machine.browser() == "" and fake.calls() == []


def test_root_on_debian_gets_debians_browser(fake: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    fake.has("apt-get", f'[ "$1" = update ] || touch {fake.made}')
    assert machine.browser() == ""
    update, install = fake.calls()
    assert update == "apt-get update" and install.startswith("apt-get install -y --no-install-recommends")
    assert install.endswith(" chromium") and "install a browser" in capsys.readouterr().out


def test_where_apt_fails_playwrights_own_download_is_tried(fake: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    fake.has("apt-get", "echo 'E: no such mirror'; exit 100")
    fake.has("playwright", f"touch {fake.made}")
    assert machine.browser() == ""
    assert [call.split()[0] for call in fake.calls()] == ["apt-get", "playwright"]
    assert "That did not work" in capsys.readouterr().out


def test_without_a_password_nothing_of_the_system_is_touched(fake: Machine) -> None:
    fake.be("debian", root=False)
    for name in ("apt-get", "sudo"):
        fake.has(name, f"touch {fake.made}")
    fake.has("playwright", "exit 1")
    assert machine.browser() == "there is no Chromium: sudo apt-get install chromium"
    assert fake.calls() == ["playwright install --only-shell chromium"]


def test_in_ci_an_open_sudo_is_used(fake: Machine) -> None:
    fake.be("ubuntu", root=False, ci="true")
    fake.has("apt-get", "exit 0")
    fake.has("sudo", "exit 0")
    fake.has("playwright", f"touch {fake.made}")
    assert machine.browser() == ""
    libraries, download = "sudo -n playwright install-deps chromium", "playwright install --only-shell chromium"
    assert fake.calls() == ["sudo -n true", libraries, download]


def test_bubblewrap_that_cannot_be_installed_is_named_with_the_command(
    fake: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    fake.be("ubuntu", root=False)
    assert machine.sandbox() == "bubblewrap is not installed: sudo apt-get install bubblewrap"
    fake.be("arch", root=True)
    assert machine.sandbox() == "bubblewrap is not installed: install that package"
    assert fake.calls() == []


def test_bubblewrap_that_may_do_nothing_here_is_said_to_be_so(fake: Machine) -> None:
    if sys.platform != "linux":
        pytest.skip("only Linux has bubblewrap")
    fake.has("apt-get", f'[ "$1" = update ] || {{ printf "#!/bin/sh\\nexit 1\\n" > {fake.programs}/bwrap; '
                        f'/bin/chmod +x {fake.programs}/bwrap; }}')  # fmt: skip
    assert "lets it make no namespaces" in machine.sandbox()
    assert fake.calls()[-1].endswith(" bubblewrap")


def test_models_of_others_are_installed_with_pip_and_never_with_another_pytorch(
    fake: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        machine, "foreign_problem", lambda: "" if fake.made.exists() else "transformers is not installed"
    )
    monkeypatch.setattr(machine.sys, "executable", "python")
    fake.has("python", "exit 1")
    assert machine.foreign() == (
        "transformers is not installed: python -m pip install -c constraints.txt expecttest torchvision transformers"
    )
    fake.has("python", f"touch {fake.made}")
    assert machine.foreign() == "" and "install models that nobody here wrote with pip" in capsys.readouterr().out
    _, call = fake.calls()
    assert "pip" in call and f" torch=={torch.__version__}" in call and "constraints.txt expecttest" in call
    assert machine.foreign() == "" and len(fake.calls()) == 2


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "FOREIGN", ("pytest", "no-such-thing", "nor-this"))
    assert machine.foreign_problem() == "no-such-thing and nor-this are not installed"
    monkeypatch.setattr(machine, "FOREIGN", ("pytest",))
    assert machine.foreign_problem() == ""


def test_the_stage_installs_what_the_extra_names() -> None:
    project = tomllib.loads((Path(start.ROOT) / "pyproject.toml").read_text("utf-8"))["project"]
    extra = [Requirement(text).name for text in project["optional-dependencies"]["foreign"]]
    assert tuple(extra) == machine.FOREIGN


def test_a_compiler_is_installed_for_simulated_gpus_where_that_needs_no_password(
    fake: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(build, "FOLDER", tmp_path / "built")
    monkeypatch.setattr(torch.version, "cuda", None)
    fake.be("debian", root=False)
    assert machine.simulated_gpu() == "there is no compiler of C++: sudo apt-get install g++" and not fake.calls()
    fake.be("debian", root=True)
    compiler = tmp_path / "compiler"
    compiler.write_text("#!/bin/sh\necho 'x.h:1: error: no such key' >&2\nexit 1\n")
    compiler.chmod(0o755)
    fake.has("apt-get", f'[ "$1" = update ] || /bin/cp {compiler} {fake.programs}/g++')
    assert machine.simulated_gpu().endswith(f"for PyTorch {torch.__version__}: x.h:1: error: no such key")
    assert fake.calls()[-1].endswith(" g++")
