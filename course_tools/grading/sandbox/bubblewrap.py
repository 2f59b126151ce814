"""Sandboxes that bubblewrap makes: its command line, and an empty sandbox that a forked kernel enters later."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import psutil

from course_tools.grading.sandbox import mounts

KINDS = ("mnt", "pid", "net", "ipc", "uts", "cgroup", "user")
"""The namespaces of a sandbox, as they are called in /proc/PID/ns and in this order; `user` may be the grader's own."""
_PATIENCE_S = 600.0


def bubblewrap_command(shared: Path, memory_bytes: int) -> list[str]:
    """The command line in front of the kernel's.

    Everything that can be written to is in memory and has a size, except the connection folder.
    """
    users = [] if os.geteuid() == 0 else ["--unshare-user", "--uid", "1000", "--gid", "1000"]
    command = [shutil.which("bwrap") or "bwrap", *users, "--unshare-pid", "--unshare-net", "--unshare-ipc"]
    command += ["--unshare-uts", "--unshare-cgroup-try", "--die-with-parent", "--new-session"]
    folders = [*mounts.read_only(), *mounts.root_folders()]
    caches = [(path, Path(mounts.HOME, "matplotlib", path.name)) for path in mounts.font_caches()]
    command += ["--proc", "/proc", "--dev", "/dev"]
    for folder in ("/dev/shm", "/tmp"):  # first: Python itself may be somewhere below /tmp
        command += ["--perms", "1777", "--size", str(memory_bytes), "--tmpfs", folder]
    for parent in _parents([*folders, Path(mounts.KERNEL_FOLDER)]):
        command += ["--perms", "0755", "--dir", str(parent)]  # bubblewrap itself makes them unreadable to others
    for folder in folders:
        command += ["--ro-bind", str(folder), str(folder)]
    for target, link in mounts.root_links():
        command += ["--symlink", target, str(link)]
    for folder in mounts.masked():
        command += ["--tmpfs", str(folder)]
    for folder in (mounts.WORK_FOLDER, mounts.HOME, f"{mounts.HOME}/matplotlib"):
        command += ["--perms", "1777", "--dir", folder]
    for source, target in caches:
        command += ["--ro-bind", str(source), str(target)]
    command += ["--bind", str(shared), mounts.KERNEL_FOLDER, "--remount-ro", "/dev", "--remount-ro", "/"]
    return [*command, "--chdir", mounts.WORK_FOLDER, "--"]


@dataclass
class Empty:
    """A sandbox without a kernel: bubblewrap, its first process inside, and a program there that waits for its end.

    Attributes:
        process: bubblewrap, outside.
        own: pids of the two inside; whatever else is in the sandbox belongs to the submission.
        namespaces: open files of `KINDS`; who has them closes them.
    """

    process: subprocess.Popen[bytes]
    own: set[int]
    namespaces: list[int]


def empty_sandbox(command: list[str], environment: dict[str, str]) -> Empty:
    """Make a sandbox by this command line of bubblewrap's, and open its namespaces.

    `cat` holds it open: what is written to it comes back as soon as everything is mounted, and it ends with this
    process, whose end of its pipe then closes. It answers once more when the files are open, so that they are its own.
    """
    reads, writes = os.pipe()
    with open(reads, "rb") as information:
        command = [*command[:-1], "--cap-drop", "ALL", "--info-fd", str(writes), "--", "cat"]
        pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
        process = subprocess.Popen(
            command,
            env=environment,
            cwd="/",
            stdin=pipe,
            stdout=pipe,
            stderr=nowhere,
            bufsize=0,
            start_new_session=True,
            pass_fds=[writes],
        )
        os.close(writes)
        opened: list[int] = []
        try:
            _echo(process)
            first = json.loads(information.read())["child-pid"]
            opened += (os.open(f"/proc/{first}/ns/{kind}", os.O_RDONLY) for kind in KINDS)
            own = {first, *(child.pid for child in psutil.Process(first).children())}
            _echo(process)
            assert process.stdout
            process.stdout.close()
            return Empty(process, own, opened)
        except BaseException:
            for fd in opened:
                os.close(fd)
            process.kill()
            close_pipes(process)
            process.wait()
            raise


def _echo(process: subprocess.Popen[bytes]) -> None:
    stdin, stdout = process.stdin, process.stdout
    assert stdin and stdout
    stdin.write(b"\n")
    ready, _, _ = select.select([stdout], [], [], _PATIENCE_S)
    if not ready or stdout.read(1) != b"\n":
        raise OSError("a sandbox does not answer")


def close_pipes(process: subprocess.Popen[bytes]) -> None:
    """Close the pipes to a process, if there are any."""
    for pipe in (process.stdin, process.stdout):
        if pipe:
            pipe.close()


def _parents(paths: list[Path]) -> list[Path]:
    """Folders above these paths that nothing else provides, outermost first."""
    found = {parent for path in paths for parent in path.parents if parent not in (Path("/"), Path("/tmp"))}
    return sorted(parent for parent in found if not any(parent.is_relative_to(path) for path in paths))
