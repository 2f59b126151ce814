"""The bucket explorer: the best size of a bucket, and the part of the sending that hides behind the backward pass.

Small buckets leave early and pay for many messages, large ones the other way round. Move the size and watch the buckets
on the link; move the link, the ranks or the batch, and the best size moves along. These controls have 12 million
places, so the table holds the parts of the times: gradients of a bucket, the moments they are ready, bytes of a ring.
The script lets the buckets follow each other on the link, as `predict.overlap` does.
"""

from __future__ import annotations

from functools import cache
from itertools import accumulate
from typing import Any

from course_kit.notebook.explorer import Control, Explorer
from course_kit.notebook.picture import Picture
from course_kit.units import Bytes, Seconds
from course_lib.model import zoo
from course_lib.model.gpt import GPTConfig
from course_lib.predict import Link, Setup, all_reduce, gradients_ready, overlap
from course_lib.predict.overlap import GradientReady, Overlap
from course_pages.lesson07.pictures import bucket_overlap

_FAMILY = (zoo.GPT2_SMALL, zoo.GPT2_LARGE, zoo.GPT2_XL)
NETWORKS = {each.name: each.config for each in _FAMILY if isinstance(each.config, GPTConfig)}
"""Models to choose from."""
GB_PER_S = (1.25, 3, 12.5, 25, 50, 150, 450)
"""Bandwidths to choose from: 10 Gbit/s Ethernet to the NVLink of an H100, in one direction."""
FLOPS_PER_S = 4e14
"""Speed that a rank reaches: 40 % of an H100's dense bf16 peak."""
BUCKETS, WORLDS, TOKENS = range(10, 34), range(1, 13), range(8, 18)
"""Powers of two to choose from."""


@cache
def ready(network: str, tokens: int) -> list[GradientReady]:
    """Moments at which the gradients of one of `NETWORKS` get ready; each of their numbers has 2 bytes."""
    # Only the number of tokens counts, so each is a sequence of its own.
    setup = Setup(NETWORKS[network], batch_size=tokens, seq=1, precision="mixed")
    return gradients_ready(setup, FLOPS_PER_S)


@cache
def bucket_table() -> dict[str, Any]:
    """Parts that the times of all places are made of.

    Returns:
        "networks": name → "bytes" (of the gradients up to each one), "ready_s" (seconds until each is ready, for 2^20
        tokens), and "closed": for each bucket size the gradients that close a bucket. "rings": for each number of ranks
        the messages of an all-reduce, and the bytes that a rank sends for each byte of it.
    """
    networks = {}
    for name in NETWORKS:
        gradients, free = ready(name, 2**20), Link(Seconds(0), 0.0)
        buckets = [[each.n_gradients for each in overlap(gradients, 2**size, 2, free).departures] for size in BUCKETS]
        networks[name] = {
            "bytes": list(accumulate(each.n_bytes for each in gradients)),
            "ready_s": [round(each.ready_s, 9) for each in gradients],
            "closed": [[count - 1 for count in accumulate(counts)] for counts in buckets],
        }
    paths = [all_reduce(2**world, 2**world).path for world in WORLDS]
    return {"networks": networks, "rings": [[int(messages), n_bytes / 2**world]
                                            for world, (messages, n_bytes) in zip(WORLDS, paths)]}  # fmt: skip


class BucketExplorer(Explorer):
    """One backward pass and its buckets, on a link of the α–β model.

    Args:
        network: one of `NETWORKS`; its gradients have 2 bytes each.
        bucket: 2^bucket bytes close a bucket.
        world: 2^world ranks form a ring.
        tokens: 2^tokens tokens are the batch of one rank.
        alpha_us: microseconds that a message costs.
        gb_per_s: one of `GB_PER_S`.
        overlapped: send while the backward pass runs.
    """

    caption = (
        "Above, what leaves when: each bar on the link is a bucket, and behind the line everybody waits. Below, "
        "the same for every bucket size."
    )
    bucket = Control("Bucket size", BUCKETS, 25, lambda power: f"{Bytes(2**power):.0}")
    alpha_us = Control("α, a message costs", range(101), 10, "{} µs".format)
    gb_per_s = Control("1/β, the link", GB_PER_S, 50, "{:g} GB/s".format, "choice")
    world = Control("Ranks", WORLDS, 3, lambda power: f"{2**power:,}")
    tokens = Control("Tokens per rank", TOKENS, 13, lambda power: f"{2**power:,}")
    network = Control("Model", list(NETWORKS), "GPT-2 XL", kind="choice")
    overlapped = Control("send during the backward pass", (False, True), True, kind="switch")
    _table = staticmethod(bucket_table)

    @property
    def link(self) -> Link:
        """The link that the explorer shows now."""
        return Link(Seconds(self.alpha_us / 1e6), 1 / (self.gb_per_s * 1e9))

    def result(self, bucket: int | None = None) -> Overlap:
        """Buckets on the link as the controls stand, or with another `bucket`."""
        size = self.bucket if bucket is None else bucket
        return overlap(ready(self.network, 2**self.tokens), 2**size, 2**self.world, self.link, self.overlapped)

    def _picture(self, *, caption: str, alt: str) -> Picture:
        sizes = {Bytes(2**each): self.result(each) for each in BUCKETS}
        return bucket_overlap(self.result(), sizes, Bytes(2**self.bucket), caption=caption, alt=alt)

    def _told(self) -> str:
        now, ends = self.result(), {Bytes(2**each): self.result(each).end_s for each in BUCKETS}
        best, least, most = min(ends, key=lambda size: ends[size]), min(ends), max(ends)
        return (
            f"{self.network} on {2**self.world} ranks, buckets of {Bytes(2**self.bucket):.0}: {len(now.departures)} "
            f"buckets and {now.messages} messages. The backward pass takes {now.backward_s:.0ms}, all is sent after "
            f"{now.end_s:.0ms}. The best size is {best:.0}, with {ends[best]:.0ms}; {least:.0} takes "
            f"{ends[least]:.0ms} and {most:.0} {ends[most]:.0ms}."
        )
