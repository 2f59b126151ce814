"""The places in which submissions are graded: threads of this process, or the workers of a Dask cluster.

Both give back futures with `result`, `cancel` and `add_done_callback`. INSTRUCTORS.md
explains the clusters.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from importlib import metadata
from typing import Any

from course_tools import folders

_PACKAGE = "bigger-than-one-gpu"
_WAIT_S = 30.0
_IN_FLIGHT = 64  # at a time; the scheduler spreads them over its workers


class DaskExecutor:
    """Submit to a cluster, as to `concurrent.futures`.

    A submission whose worker is lost is given to another one, by Dask itself, and given up with `KilledWorker` after a
    few. Dask suspects every task that the lost worker had, so that a deadly submission takes innocent ones along: each
    that is given up has a second chance, while no other second chance is running.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._waiting = ThreadPoolExecutor(_IN_FLIGHT)
        self._second_chance = threading.Lock()

    def submit(self, fn: Callable, /, *args: Any) -> Future:
        """Start `fn(*args)` on some worker; never takes an earlier answer for the same arguments."""
        return self._waiting.submit(self._run, fn, args)

    def close(self) -> None:
        """Start nothing more; running submissions are given up when the client closes."""
        self._waiting.shutdown(wait=False, cancel_futures=True)

    def _run(self, fn: Callable, args: tuple) -> Any:
        from distributed.scheduler import KilledWorker

        try:
            return self._client.submit(fn, *args, pure=False).result()
        except KilledWorker:
            with self._second_chance:
                return self._client.submit(fn, *args, pure=False).result()


@contextlib.contextmanager
def open_executor(name: str, jobs: int) -> Iterator[ThreadPoolExecutor | DaskExecutor]:
    """Open the executor of the submissions, for as long as the block runs.

    Args:
        name: `local`, or `dask://HOST:PORT` of a scheduler.
        jobs: number of submissions at a time, for `local`. On a cluster the number of the workers' threads decides.

    Raises:
        ValueError: the name is unknown, no scheduler or worker answers, or a worker lacks the course or has another
            version of the course.
    """
    if name == "local":
        with ThreadPoolExecutor(jobs) as pool:
            yield pool
        return
    if not (match := re.fullmatch(r"dask://([^/\s]+:\d+)/?", name)):
        raise ValueError(f"--executor {name}: give local, or dask://HOST:PORT")
    client = _connect(match[1])
    try:
        _check_workers(client)
        with contextlib.closing(DaskExecutor(client)) as executor:
            yield executor
    finally:
        client.close()


def fingerprint() -> str:
    """The course's version and the SHA-256 of its code: machines with the same fingerprint grade alike."""
    digest = hashlib.sha256()
    for root in folders():
        for path in sorted(root.rglob("*.py")):
            digest.update(path.relative_to(root.parent).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return f"{metadata.version(_PACKAGE)}+{digest.hexdigest()[:12]}"


def _connect(address: str) -> Any:
    try:
        from distributed import Client
    except ModuleNotFoundError:
        raise ValueError(f"--executor dask:// needs Dask: pip install '{_PACKAGE}[cluster]'") from None
    try:
        return Client(f"tcp://{address}", timeout=_WAIT_S, set_as_default=False)
    except (OSError, TimeoutError) as problem:
        raise ValueError(f"no Dask scheduler answers at {address} ({type(problem).__name__})") from None


def _check_workers(client: Any) -> None:
    """Raise unless every worker has this very course: an older check would give other points."""
    try:
        client.wait_for_workers(1, timeout=_WAIT_S)
    except TimeoutError:
        raise ValueError("the Dask scheduler has no workers; start some with: dask worker HOST:PORT") from None
    here = fingerprint()
    for worker, there in client.run(fingerprint, on_error="return").items():
        if isinstance(there, BaseException):
            install = f"install this course there, version {here} (pip install '{_PACKAGE}[cluster]')"
            raise ValueError(f"the worker {worker} cannot load the course ({there}); {install}")
        if there != here:
            raise ValueError(f"the worker {worker} has the course as {there}, but here it is {here}; make them equal")
