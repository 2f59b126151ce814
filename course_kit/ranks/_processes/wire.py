"""Messages between the notebook's process and its ranks: pickled tuples over a socket, one length in front of each.

A message is a tuple whose first item is its kind. From the notebook: `("start", rank, world_size, backend,
store_port, group)`, `("run", call, notebook, diagnose)` with a call from `packing.pack` and a `NotebookState`,
`("over",)` when all ranks returned, `("where",)`. From a rank: `("ready", pid)`, `("out", stream, text)`,
`("entered", call)`, `("received", call)`, `("lost", call)`, `("here", position)`, `("returned", result, reusable)`,
`("raised", error, traceback)`. Sockets rather than pipes, because one `select` then serves every operating system.
"""

from __future__ import annotations

import pickle
import socket
import struct
import threading
from dataclasses import dataclass
from typing import Any

from course_kit.ranks._diagnosis.matching import Waiting

_HEADER = struct.Struct("<Q")
_CHUNK = 1 << 18


@dataclass(frozen=True)
class Position:
    """The place of a rank; the body of `("here", position)`.

    Attributes:
        site: the innermost line of the reader's code.
        stack: the reader's part of the stack, with source lines.
        waiting: the call that the rank announced and is still in, if any.
        collective: the communication that the rank is in by other evidence (stack, the backend's recorder), or "".
    """

    site: str
    stack: str
    waiting: Waiting | None
    collective: str


def encode(message: tuple[Any, ...]) -> bytes:
    """The bytes of `message` as they travel; encode once to send the same message to many ranks."""
    body = pickle.dumps(message, protocol=5)
    return _HEADER.pack(len(body)) + body


class Channel:
    """One end of the connection between the notebook and a rank. Any thread may send; one thread receives."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._lock = threading.Lock()
        self._buffer = bytearray()

    def fileno(self) -> int:
        """The socket's descriptor, for `select`."""
        return self._socket.fileno()

    def send(self, message: tuple[Any, ...]) -> None:
        """Send `message`; blocks while the other end does not read."""
        self.send_encoded(encode(message))

    def send_encoded(self, frame: bytes) -> None:
        """Send an encoded message."""
        with self._lock:
            self._socket.sendall(frame)

    def receive(self) -> list[tuple[Any, ...]]:
        """Wait for bytes and return the messages that are now complete (maybe none).

        Raises:
            EOFError, ConnectionError: the other end is gone.
        """
        if not (chunk := self._socket.recv(_CHUNK)):
            raise EOFError
        self._buffer += chunk
        messages = []
        while len(self._buffer) >= _HEADER.size:
            end = _HEADER.size + _HEADER.unpack_from(self._buffer)[0]
            if len(self._buffer) < end:
                break
            messages.append(pickle.loads(memoryview(self._buffer)[_HEADER.size : end]))
            del self._buffer[:end]
        return messages

    def close(self) -> None:
        """Close this end; the other end's `receive` then raises."""
        self._socket.close()
