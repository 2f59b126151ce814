"""The first thing that runs in the sandbox: take the last privileges away, set limits, become a Jupyter kernel.

    python -m course_tools.grading.sandbox.launcher '{"data": 4294967296, …}' -f CONNECTION_FILE …

So a kernel starts where it cannot be forked from one process that has imported everything (see `zygote`, which calls
the functions here as well).

Limits of the operating system hold from the first instruction on and need no watching, but are for single processes
only. So `data` stops one process that asks for too much, with a MemoryError, and the grader, from outside, watches the
sum.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import runpy
import signal
import sys

NEEDED = ("torch", "ipykernel.kernelapp", "ipykernel.zmqshell", "course_kit.checks.check")
"""Modules that every kernel needs, imported before any cell: no cell pays for them out of its own seconds."""


def main() -> None:
    """Become a kernel with the limits of the first argument."""
    restrict(json.loads(sys.argv.pop(1)))
    load(NEEDED)
    become_kernel()


def restrict(limits: dict[str, int]) -> None:
    """Become the user of `limits`, if there is one, and set the limits; then nothing can be taken back."""
    if uid := limits.get("uid"):
        # The grader is root, whose processes are not counted; those of a user for each submission are.
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
    if os.name == "posix":
        set_limits(limits)
    if sys.platform == "linux":  # bubblewrap ends with the grader; a plain kernel would outlive one that is killed
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL, 0, 0, 0)


def set_limits(limits: dict[str, int]) -> None:
    """Set the limits that the system knows; one that may not be set is left out."""
    import resource

    wanted = {"data": "RLIMIT_DATA", "threads": "RLIMIT_NPROC", "file": "RLIMIT_FSIZE", "core": "RLIMIT_CORE"}
    for name, constant in wanted.items():
        if name in limits and hasattr(resource, constant):
            kind = getattr(resource, constant)
            hard = resource.getrlimit(kind)[1]
            value = limits[name] if hard == resource.RLIM_INFINITY else min(limits[name], hard)
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(kind, (value, value))


def load(names: tuple[str, ...]) -> None:
    """Import these modules; one that this version of torch lacks is left out."""
    for name in names:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def become_kernel() -> None:
    """Run Jupyter's own launcher with the rest of the command line, to the kernel's end."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as adjustment:
        adjustment.write("1000")  # if the machine runs out of memory, this goes first, not the grader
    for folder in filter(None, (os.environ.get("HOME"), os.environ.get("TMPDIR"))):
        os.makedirs(folder, exist_ok=True)
    runpy.run_module("ipykernel_launcher", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
