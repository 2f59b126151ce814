"""The needs of stages beyond the extra `test`, and the commands that install them.

A browser, bubblewrap and a compiler are installed where that needs no password, other people's models with pip.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import start

Command = list[str]
FAMILY = ("debian", "ubuntu")
"""Systems with apt-get, by the ID of /etc/os-release. Ubuntu's chromium is a snap, which starts in no container."""
PLAYWRIGHT = [sys.executable, "-m", "playwright"]
FOREIGN = ("expecttest", "torchvision", "transformers")
"""The packages of the extra `foreign`."""


def browser() -> str:
    """Nothing when a Chromium starts, after an attempt to install one if need be; else the reason, and a command."""
    if problem := provided("a browser", browser_problem, list(browser_commands())):
        typed = "sudo apt-get install chromium" if system() == "debian" else "python -m playwright install chromium"
        if "libraries" in problem:
            typed = f"sudo {sys.executable} -m playwright install-deps chromium"
        return f"{problem}: {typed}"
    return ""


def sandbox() -> str:
    """Nothing when bubblewrap works, after an attempt to install it if need be; else the reason, and a command."""
    problem = provided("bubblewrap", sandbox_problem, [apt("bubblewrap")] if may_install() else [])
    if problem.endswith("not installed"):
        return f"{problem}: " + ("sudo apt-get install bubblewrap" if system() in FAMILY else "install that package")
    return problem


def foreign() -> str:
    """Nothing when other people's models can be imported, after an attempt to install them if need be; else why."""
    if problem := provided("models that nobody here wrote", foreign_problem, [foreign_command()]):
        return f"{problem}: python -m pip install -c constraints.txt {' '.join(FOREIGN)}"
    return ""


def simulated_gpu() -> str:
    """Nothing when GPUs can be simulated, after an attempt to install a compiler if need be; else why not."""
    from tests.simulated_gpu import build

    if not build.compiler() and may_install():
        provided("a compiler of C++", lambda: "" if build.compiler() else "none", [apt("g++")])
    return build.problem()


def provided(what: str, problem: Callable[[], str], commands: list[Command]) -> str:
    """The result of `problem()` after as many of the commands as it takes until the result is empty."""
    said = problem()
    if not said:
        return ""
    begin = time.time()
    open(start.LOG, "wb").close()
    for command in commands:
        try:
            tool = "apt-get" if "apt-get" in command[-1] else "pip" if "pip" in command else "Playwright"
            start.step(f"install {what} with {tool}", command, begin)
        except (start.Problem, OSError):
            print(f"That did not work; {start.LOG} says why.", flush=True)
        if not (said := problem()):
            return ""
    return said


def browser_problem() -> str:
    """The reason for which no headless Chromium starts here; nothing if one does."""
    from playwright.sync_api import Error, sync_playwright

    from tests.browser.jupyterlab import chromium_path, launch

    with sync_playwright() as playwright:
        try:
            launch(playwright).close()
        except Error as error:
            text = str(error)
            if "missing dependencies" in text or "shared libraries" in text:
                return "Chromium is there, but system libraries that it needs are not"
            if chromium_path() is None:
                return "there is no Chromium"
            return f"{chromium_path()} does not start ({text.splitlines()[0][:100]})"
    return ""


def browser_commands() -> Iterator[Command]:
    """Commands that might give this machine a Chromium, the most certain first."""
    if may_install():
        libraries = [*administrator(), *PLAYWRIGHT, "install-deps", "chromium"]
        yield apt("chromium") if system() == "debian" else libraries
    yield [*PLAYWRIGHT, "install", "--only-shell", "chromium"]


def foreign_problem() -> str:
    """Words that name the packages of `FOREIGN` which are missing; nothing if none is."""
    missing = []
    for name in FOREIGN:
        try:
            importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
    return f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed" if missing else ""


def foreign_command() -> Command:
    """The command to install the pinned packages beside the PyTorch that is here: pip fails before it takes another."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "--retries", "2", "install"]
    torch = f"torch=={importlib.metadata.version('torch')}"
    return [*pip, "-c", str(Path(start.ROOT) / "constraints.txt"), *FOREIGN, torch, *start.torch_index()]


def sandbox_problem() -> str:
    """The reason for which the grader would run submissions as plain processes; nothing if it would not."""
    from course_tools.grading.sandbox import processes

    if sys.platform != "linux":
        return "only Linux has bubblewrap; grade there, or in a virtual machine"
    if not shutil.which("bwrap"):
        return "bubblewrap is not installed"
    processes.bubblewrap_works.cache_clear()
    if processes.bubblewrap_works():
        return ""
    return "bubblewrap is installed, but this system (a container?) lets it make no namespaces: try another machine"


def apt(package: str) -> Command:
    """The command that installs a package of Debian's or Ubuntu's, without a question."""
    script = "apt-get update && apt-get install -y --no-install-recommends -o DPkg::Lock::Timeout=60 "
    return [*administrator(), "env", "DEBIAN_FRONTEND=noninteractive", "sh", "-c", script + package]


def may_install() -> bool:
    """Whether packages of the system can be installed without a password: as root, and in CI with its open sudo."""
    if system() not in FAMILY or not shutil.which("apt-get"):
        return False
    return is_root() or (in_ci() and start.works(["sudo", "-n", "true"]))


def administrator() -> Command:
    """Words to put in front of a command that root must run."""
    return [] if is_root() else ["sudo", "-n"]


def is_root() -> bool:
    """Whether this account is root's."""
    return hasattr(os, "geteuid") and os.geteuid() == 0


def in_ci() -> bool:
    """Whether this process runs in CI, where a stage that did not run must not look like one that passed."""
    return os.environ.get("CI", "").lower() in ("1", "true", "yes")


def system() -> str:
    """The distribution (`debian`, `ubuntu`), or the operating system elsewhere."""
    if not Path("/etc/os-release").exists():
        return platform.system().lower()
    return platform.freedesktop_os_release().get("ID", "linux")
