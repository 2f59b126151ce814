"""Two commands for a fresh clone, with Python and nothing else:

    python3 start.py              install everything into .venv and open JupyterLab at lesson 00
    python3 start.py test         the same, then the check; `test all` everything, `test changed` what a change touches

Only the standard library is used, and old syntax on purpose: an old Python must be able to say that it is too old.
"""

from __future__ import print_function

import argparse
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

MINIMUM = (3, 11)
TORCH = "torch==2.13.0"
CPU_WHEELS = "https://download.pytorch.org/whl/cpu"
ROOT = os.path.dirname(os.path.abspath(__file__))
VENV = os.path.join(ROOT, ".venv")
STATE = os.path.join(VENV, "start.json")  # there as soon as start.py makes .venv; says what is complete in it
LOG = os.path.join(ROOT, "start.log")
PYTHON = os.path.join(VENV, "Scripts", "python.exe") if os.name == "nt" else os.path.join(VENV, "bin", "python")
EXTRAS = {"open": ["jupyter"], "test": ["jupyter", "test"]}

# What the log of a failed step contains -> one sentence for the reader. The first that fits wins.
EXPLANATIONS = [
    (
        "ensurepip|No module named '?venv",
        "Python's venv module is incomplete: `sudo apt install python3-venv` on Debian and Ubuntu (or"
        " python{python}-venv), the installer from python.org elsewhere; then call again.",
    ),
    (
        "No space left|Errno 28|not enough space",
        "The disk is full: make 4 GB of room (9 with CUDA) in {root} and for temporary files (TMPDIR); call again.",
    ),
    (
        "CERTIFICATE_VERIFY_FAILED",
        "A certificate could not be verified: is there a proxy? `pip config set global.cert FILE`, then call again.",
    ),
    (
        "NewConnection|Failed to establish|NameResolution|Name or service|Network is unreachable|[Tt]imed out"
        "|ProxyError|Connection (refused|aborted|reset)|ConnectionReset|No matching distribution|ResolutionImpossible",
        "The packages could not be downloaded: check the network, and pip's proxy or index settings, then call again."
        " (If they are fine, there is no build of {torch} for this machine and Python {python}: try Python 3.12.)",
    ),
    ("Permission denied|Errno 13|Access is denied", "A file could not be written: is {root} yours to write in?"),
]


class Problem(Exception):
    """Something that the reader can mend; the message says how."""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", metavar="open | test")
    opening = commands.add_parser("open", help="open JupyterLab at a lesson or lab; Ctrl-C stops it (the default)")
    opening.add_argument("lesson", nargs="?", default="00", help="number or name, such as 03 or lab03 (default: 00)")
    opening.add_argument("--no-browser", action="store_true", help="only print the address")
    test = commands.add_parser("test", help="run the check, or some of it; ends with where time went and the verdict")
    words = "all (with what waits), changed (by the last one), gpu (simulated), lint, types, a folder or file of tests"
    test.add_argument("words", nargs="*", help=words)
    arguments = parser.parse_args(spelled_out(sys.argv[1:]))
    if arguments.command == "test" and not os.path.isdir(os.path.join(ROOT, "tests")):
        raise Problem("There are no tests here: this is the students' copy. `python3 start.py` opens the lessons.")
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))  # so that a half-made .venv is removed
    check_python()
    give_home()
    prepare(EXTRAS[arguments.command])
    if arguments.command == "test":
        return become(["-m", "tests"] + arguments.words)
    return become(["-m", "course_tools", "open", arguments.lesson] + ["--no-browser"] * arguments.no_browser)


def spelled_out(words):
    """`start.py` and `start.py 03` mean `start.py open ...`; so does `start.py lab ...`, as it was called once."""
    if words[:1] == ["lab"]:
        return ["open"] + words[1:]
    return words if words[:1] and words[0] in ("open", "test", "-h", "--help") else ["open"] + words


def become(options):
    """Go on as the Python of .venv. Windows cannot do that: there, wait for it."""
    os.chdir(ROOT)
    os.environ["VIRTUAL_ENV"] = VENV  # IPython puts the packages of the environment that is named here in front of ours
    sys.stdout.flush()
    command = [PYTHON] + options
    return subprocess.call(command) if os.name == "nt" else os.execv(PYTHON, command)


def check_python():
    if sys.version_info < MINIMUM:
        newer = [name for name in ("python3.13", "python3.12", "python3.11") if works([name, "--version"])]
        hint = "type `%s start.py` instead" % newer[0] if newer else "get it from https://www.python.org/downloads/"
        said = "This is Python %d.%d, and the course needs %d.%d or newer: %s."
        raise Problem(said % (sys.version_info[:2] + MINIMUM + (hint,)))


def works(command):
    """Whether a command exists and succeeds."""
    try:
        with open(os.devnull, "wb") as nothing:
            return subprocess.call(command, stdout=nothing, stderr=nothing) == 0
    except OSError:
        return False


def give_home():
    """Some accounts have no usable home folder, and pip, Jupyter and matplotlib want one."""
    if os.name != "nt" and not (os.environ.get("HOME") and os.access(os.environ["HOME"], os.W_OK)):
        os.environ["HOME"] = os.path.join(ROOT, ".venv-home")
        os.makedirs(os.environ["HOME"], exist_ok=True)


def prepare(extras):
    """Make .venv complete: nothing to do, a few packages to add, or all of it. What breaks halfway is removed."""
    state = read_state()  # type: dict
    base, pins = repr((sys.version_info[:3], ROOT)), fingerprint()
    usable = state.get("base") == base and os.path.exists(PYTHON)
    if not usable and still_works(state):
        usable, base = True, state["base"]
        print("Kept: .venv works, and another Python made it. To have it made by %s: remove it." % sys.executable)
    if usable and state["pins"] == pins and set(extras) <= set(state["extras"]):
        return
    if os.path.exists(VENV) and not state:
        adopt(extras)
        return
    if is_alive(state.get("installing")):
        raise Problem("Another start.py (process %d) is installing here: let it finish." % state["installing"])
    extras = sorted(set(extras) | set(state.get("extras", [])))
    try:
        install(extras, fresh=not usable)
    except BaseException:
        if usable and "Installing collected packages" not in read_log():
            write_state(state)  # it failed before anything was changed
        else:
            remove_environment()
        raise
    write_state({"base": base, "pins": pins, "extras": extras})


def still_works(state):
    """Whether .venv, made in this folder by another Python, is complete: notebooks may be open in it."""
    made_here = str(state.get("base", "")).endswith(repr(ROOT) + ")")
    return made_here and works([PYTHON, "-c", "import pip, importlib.util as u; u.find_spec('torch').origin"])


def fingerprint():
    """Changes when other packages are needed."""
    digest = hashlib.sha256()
    for name in ("constraints.txt", "pyproject.toml"):
        with open(os.path.join(ROOT, name), "rb") as file:
            digest.update(file.read())
    return digest.hexdigest()


def install(extras, fresh):
    """Create .venv and install the pinned packages, PyTorch first."""
    start = time.time()
    open(LOG, "wb").close()
    free = shutil.disk_usage(ROOT).free / 1e9
    if fresh and free < 2.5:
        raise Problem("The disk is full: %.1f GB are left in %s; the packages need 2.5 (8 with CUDA)." % (free, ROOT))
    if fresh:
        remove_environment()
        os.mkdir(VENV)
        write_state({"installing": os.getpid()})
        step("[1/3] make .venv", [getattr(sys, "_base_executable", sys.executable), "-m", "venv", VENV], start)
    write_state({"installing": os.getpid()})
    pip = [PYTHON, "-m", "pip", "--disable-pip-version-check", "--no-input", "--retries", "2", "install"]
    pip += ["--no-compile", "-c", os.path.join(ROOT, "constraints.txt")]  # compiling all there is takes half a minute
    step("[2/3] install PyTorch", pip + [TORCH, "hatchling", "editables"] + torch_index(), start)
    step("[3/3] install the course", pip + ["--no-build-isolation", "-e", ".[%s]" % ",".join(extras)], start)
    print("Ready after %s. The next call starts at once.\n" % duration(time.time() - start))


def torch_index():
    """On Linux without an NVIDIA GPU, PyTorch's CPU build is a tenth of the download: take it if its index answers."""
    if not sys.platform.startswith("linux") or shutil.which("nvidia-smi") or os.path.exists("/dev/nvidia0"):
        return []
    from urllib.request import urlopen

    try:
        urlopen(CPU_WHEELS + "/torch/", timeout=3).close()
    except Exception:  # no network, a proxy, a mirror of PyPI only: pip's own settings must do
        return []
    return ["--extra-index-url", CPU_WHEELS]


def step(title, command, start):
    """Run one step of the installation, show what it does, and explain a failure."""
    progress = Progress(title, start)
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        with open(LOG, "ab") as log, process.stdout:  # type: ignore[union-attr]
            for line in iter(process.stdout.readline, b""):  # type: ignore[union-attr]
                log.write(line)
                log.flush()
                progress.say(line.decode("utf-8", "replace"))
        if process.wait() != 0:
            raise Problem(explain(title))
    finally:
        progress.stop()
        if process.poll() is None:
            process.kill()
            process.wait()


def explain(title):
    """Why a step failed, in one sentence, from its log."""
    text = read_log()
    for pattern, sentence in EXPLANATIONS:
        if re.search(pattern, text):
            return sentence.format(root=ROOT, torch=TORCH, python="%d.%d" % sys.version_info[:2])
    lines = [line.strip() for line in text.splitlines() if re.match(r"\W*(\w*Error|ERROR|error): ", line)]
    return "%s failed: %s (more in %s)" % (title, lines[-1] if lines else "without a reason", LOG)


class Progress(object):
    """What is going on: one line that is rewritten in a terminal, or a line every 15 s elsewhere."""

    def __init__(self, title, start):
        self.title, self.start, self.detail, self.done = title, start, "", threading.Event()
        self.terminal = sys.stdout.isatty()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def say(self, line):
        """Condense a line of output: what it does, with which package, how large."""
        match = re.match(r"\s*(Collecting|Downloading|Building|Installing|Processing|Unpacking)\b[a-z ]*[: ](.*)", line)
        if match and match.group(1) == "Installing":
            self.detail = "installing %d packages" % len(match.group(2).split(","))
        elif match:
            size = re.search(r"\([\d.]+ [kMG]B\)", line)
            name = re.split(r"[\s<>=!~;\[(]", match.group(2).strip().split("/")[-1])[0]
            self.detail = " ".join([match.group(1).lower(), name, size.group(0) if size else ""])

    def run(self):
        while not self.done.wait(0.2 if self.terminal else 15):
            self.show(self.detail, end="" if self.terminal else "\n")

    def show(self, detail, end):
        text = "%s, %s  %s" % (self.title, duration(time.time() - self.start), detail)
        room = shutil.get_terminal_size().columns - 1
        print("\r" + text[:room].ljust(room) if self.terminal else text, end=end)
        sys.stdout.flush()

    def stop(self):
        self.done.set()
        self.thread.join()
        self.show("", end="\n")


def adopt(extras):
    """Use a .venv that somebody else made (uv, for instance) if it has what is needed; never change or delete it."""
    needed = ["torch", "jupyterlab", "typer", "course_lib", "course_kit", "course_pages", "course_tools"]
    needed += ["pytest", "nbval", "ruff"] if "test" in extras else []
    code = "import importlib.util, sys; sys.exit(not all(map(importlib.util.find_spec, sys.argv[1:])))"
    if not works([PYTHON, "-c", code] + needed):
        advice = "remove it, or install `-c constraints.txt -e '.[%s]'` into it" % ",".join(extras)
        raise Problem("%s was not made by start.py and is not complete: %s." % (VENV, advice))


def remove_environment():
    shutil.rmtree(VENV, ignore_errors=True)
    if os.path.exists(VENV):
        raise Problem("%s cannot be removed: close what uses it, remove it, and call again." % VENV)


def read_state():
    """What start.py noted in .venv; empty if it did not make it."""
    try:
        with open(STATE) as file:
            return json.load(file)
    except ValueError:
        return {"installing": None}
    except (IOError, OSError):
        return {}


def write_state(state):
    with open(STATE, "w") as file:
        json.dump(state, file)


def read_log():
    with open(LOG, "rb") as log:
        return log.read().decode("utf-8", "replace")


def is_alive(pid):
    if not pid or os.name == "nt":
        return False
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True


def duration(seconds):
    return "%d min %02d s" % divmod(int(seconds), 60) if seconds >= 60 else "%.0f s" % seconds


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Problem as problem:
        sys.exit("\n%s" % problem)
    except KeyboardInterrupt:
        print("\nInterrupted; nothing half-made was left behind.", file=sys.stderr)
        sys.exit(130)
