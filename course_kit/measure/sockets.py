"""The bytes that this process's TCP connections have sent, as the Linux kernel counts them."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import sys
import time
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

_BYTES_SENT_AT = 200  # u64 tcpi_bytes_sent in struct tcp_info (include/uapi/linux/tcp.h, Linux 4.19); then
_BYTES_RETRANS_AT = 208  # u64 tcpi_bytes_retrans: of these, sent again because they were lost
_NOT_SENT_AT = 144  # u32 tcpi_notsent_bytes: handed to the kernel, but still in its queue
_PATIENCE_S = 0.05

Connection = tuple[str, str]
"""Its two ends, "host:port"; this process's own first."""


def bytes_by_connection() -> dict[Connection, int] | None:
    """Bytes sent so far over every TCP connection of this process but those to the rendezvous store.

    Waits a moment until the kernel has sent what it was handed. None where nobody counts: not on Linux, no process
    group, or a group that does not use TCP (NCCL).
    """
    if not sys.platform.startswith("linux") or not dist.is_initialized() or "gloo" not in dist.get_backend_config():
        return None
    store_port = _store_port()
    end = time.monotonic() + _PATIENCE_S
    while True:
        counted, queued = _read_all(store_port)
        if not queued or time.monotonic() > end:
            return counted
        time.sleep(0.001)


def _read_all(store_port: int | None) -> tuple[dict[Connection, int] | None, int]:
    counted: dict[Connection, int] = {}
    queued = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # closed since it was listed, or not a connected socket
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as connection:
                if not _is_tcp(connection):
                    continue
                (host, port, *_), (other_host, other_port, *_) = connection.getsockname(), connection.getpeername()
                if store_port in (port, other_port):
                    continue
                info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                if len(info) < _BYTES_RETRANS_AT + 8:
                    return None, 0  # an older kernel, which does not count
                sent, again = struct.unpack_from("=QQ", info, _BYTES_SENT_AT)
                queued += struct.unpack_from("=I", info, _NOT_SENT_AT)[0]
                counted[f"{host}:{port}", f"{other_host}:{other_port}"] = sent - again
    return counted, queued


def _is_tcp(connection: socket.socket) -> bool:
    return connection.type == socket.SOCK_STREAM and connection.family in (socket.AF_INET, socket.AF_INET6)


def _store_port() -> int | None:
    """The port of the store through which the ranks found each other, whose traffic is not theirs."""
    store: Any = c10d._get_default_store()
    while hasattr(store, "underlying_store"):  # a PrefixStore
        store = store.underlying_store
    return getattr(store, "port", None)  # a TCPStore has one
