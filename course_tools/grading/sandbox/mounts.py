"""Paths of this machine that a sandboxed kernel sees: Python, its packages, the course's, and empty folders of its own.

It never sees submissions, `solutions/`, results, or anyone's home folder: they are not hidden, they are not there.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import site
import sys
from collections.abc import Iterator
from pathlib import Path

from course_tools import folders

KERNEL_FOLDER = "/run/kernel"
"""The folder of the kernel's connection file and sockets: the only one that kernel and grader share."""
WORK_FOLDER = "/tmp/lab"
HOME = "/tmp/home"


def read_only() -> list[Path]:
    """Paths that Python needs, parents before children, nothing twice."""
    candidates = [Path(p) for p in ("/usr", "/nix/store", "/etc/ld.so.cache", "/etc/hosts", "/etc/nsswitch.conf")]
    candidates += [Path(p) for p in ("/etc/alternatives", "/etc/localtime")]
    candidates += [Path(p) for p in (sys.prefix, sys.base_prefix, *site.getsitepackages())]
    candidates += [Path(sys.executable).resolve().parents[1], *folders()]
    kept: list[Path] = []
    existing = [path for path in candidates if path.exists()]
    for path in sorted({*existing, *(path.resolve() for path in existing)}):
        if not any(path.is_relative_to(parent) for parent in kept):
            kept.append(path)
    return kept


def masked() -> list[Path]:
    """Folders that must stay unseen although something above them is needed (an environment made in the checkout)."""
    found = dict.fromkeys(folder.parent / "solutions" for folder in folders())
    needed = read_only()
    return [path for path in found if path.is_dir() and any(path.is_relative_to(parent) for parent in needed)]


def root_links() -> Iterator[tuple[str, Path]]:
    """Those of /bin, /lib and the like that are links (most of them are), as (target, link)."""
    for path in (Path("/bin"), Path("/sbin"), Path("/lib"), Path("/lib32"), Path("/lib64")):
        if path.is_symlink():
            yield os.readlink(path), path


def root_folders() -> list[Path]:
    """Those of /bin, /lib and the like that are folders of their own."""
    return [path for path in map(Path, ("/bin", "/sbin", "/lib", "/lib64")) if path.is_dir() and not path.is_symlink()]


def font_caches() -> list[Path]:
    """matplotlib's lists of fonts: without one, each kernel that draws would search all fonts again, for seconds."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folders = [Path(os.environ["MPLCONFIGDIR"])] if "MPLCONFIGDIR" in os.environ else [cache / "matplotlib"]
    return [path for folder in folders for path in folder.glob("fontlist-*.json")]


def environment(home: str = HOME, temporary: str = "/tmp") -> dict[str, str]:
    """All variables of a kernel's environment: nothing of the grader's own gets through."""
    path = os.pathsep.join(dict.fromkeys([str(Path(sys.executable).parent), "/usr/local/bin", "/usr/bin", "/bin"]))
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    return {
        **threads,  # submissions run side by side, and a sum must not depend on the number of cores
        "PATH": path,
        "HOME": home,
        "TMPDIR": temporary,
        "IPYTHONDIR": f"{home}/.ipython",
        "MPLCONFIGDIR": f"{home}/matplotlib",
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(str(folder.parent) for folder in folders())),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
        "USER": "student",
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        "GLOO_SOCKET_IFNAME": "lo",
        "CUDA_VISIBLE_DEVICES": "",
    }


@contextlib.contextmanager
def short_folder() -> Iterator[Path]:
    """A private temporary folder with a short path: the path of a socket may have about 100 characters."""
    base = Path("/tmp") if Path("/tmp").is_dir() else Path(os.environ.get("TEMP", "."))
    path = base / f"course-{secrets.token_hex(4)}"
    path.mkdir(0o700)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
