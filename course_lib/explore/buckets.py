"""The bucket explorer: how large a bucket must be, and what of the sending hides behind the backward pass.

Small buckets leave early and pay for many messages, large ones the other way round. Move the size and watch the buckets
on the link; move the link, the ranks or the batch, and the best size moves along. The arithmetic runs in the browser
(`buckets.js`), so the explorer stays alive in a page without Python; `predict.overlap` computes the same in Python, and
the picture for places that run no JavaScript is drawn from it.

Lesson 07 opens this module.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import anywidget
import traitlets

from course_lib.explore import browser
from course_lib.figures.data_parallel import bucket_overlap
from course_lib.model import zoo
from course_lib.model.gpt import GPTConfig
from course_lib.predict import Link, Overlap, Ready, Setup, gradients_ready, overlap
from course_lib.units import Bytes, Seconds

_FAMILY = (zoo.GPT2_SMALL, zoo.GPT2_LARGE, zoo.GPT2_XL)
NETWORKS = {each.name: each.config for each in _FAMILY if isinstance(each.config, GPTConfig)}
"""Models to choose from."""
GB_PER_S = (1.25, 3, 12.5, 25, 50, 150, 450)
"""Bandwidths to choose from: 10 Gbit/s Ethernet to the NVLink of an H100, in one direction."""
FLOPS_PER_S = 4e14
"""What a rank reaches: 40 % of an H100's dense bf16 peak."""
BUCKETS, WORLDS, TOKENS, ALPHAS_US = (10, 33), (1, 12), (8, 17), (0, 100)
"""Limits of the sliders; the first three are powers of two."""


class BucketExplorer(anywidget.AnyWidget):
    """One backward pass and its buckets, on a link of the α–β model.

    Set `explorer.bucket = 20` and the drawing follows; move the slider and `explorer.bucket` follows.

    Args:
        network: one of `NETWORKS`; its gradients have 2 bytes each.
        bucket: 2^bucket bytes close a bucket.
        world: 2^world ranks form a ring.
        tokens: 2^tokens tokens are the batch of one rank.
        alpha_us: microseconds that a message costs.
        gb_per_s: one of `GB_PER_S`.
        overlapped: send while the backward pass runs.

    Raises:
        ValueError: there is no such network or link; or, as `traitlets.TraitError`, a number outside of its slider.
    """

    _esm = browser.script("buckets")
    _css = browser.style("buckets")
    network = traitlets.Enum(list(NETWORKS), "GPT-2 XL").tag(sync=True)
    bucket = traitlets.Int(25, min=BUCKETS[0], max=BUCKETS[1]).tag(sync=True)
    world = traitlets.Int(3, min=WORLDS[0], max=WORLDS[1]).tag(sync=True)
    tokens = traitlets.Int(13, min=TOKENS[0], max=TOKENS[1]).tag(sync=True)
    alpha_us = traitlets.Int(10, min=ALPHAS_US[0], max=ALPHAS_US[1]).tag(sync=True)
    gb_per_s = traitlets.Enum(list(GB_PER_S), 50).tag(sync=True)
    overlapped = traitlets.Bool(True).tag(sync=True)
    _links = traitlets.List(list(GB_PER_S)).tag(sync=True)
    _flops_per_s = traitlets.Float(FLOPS_PER_S).tag(sync=True)
    _gradients = traitlets.Dict().tag(sync=True)

    def __init__(self, network: str = "GPT-2 XL", gb_per_s: float = 50, **numbers: Any) -> None:
        if network not in NETWORKS or gb_per_s not in GB_PER_S:
            raise ValueError(
                f"network={network!r}, gb_per_s={gb_per_s}: the networks are {', '.join(NETWORKS)}, the links "
                f"{', '.join(f'{each:g}' for each in GB_PER_S)} GB/s"
            )
        super().__init__(network=network, gb_per_s=gb_per_s, _gradients=_work(), **numbers)

    @property
    def link(self) -> Link:
        """The link that the explorer shows now."""
        return Link(Seconds(self.alpha_us / 1e6), 1 / (self.gb_per_s * 1e9))

    def result(self, bucket: int | None = None) -> Overlap:
        """What the explorer shows now, or would show for another `bucket`."""
        ready = _ready(NETWORKS[self.network], 2**self.tokens, FLOPS_PER_S)
        size = self.bucket if bucket is None else bucket
        return overlap(ready, 2**size, 2**self.world, self.link, self.overlapped)

    def show(self, caption: str = "", alt: str = "") -> None:
        """Display the explorer, with a picture of it for places that run no JavaScript.

        Args:
            caption: what to see; a general one if empty.
            alt: the picture in words; the times if empty.
        """
        now = self.result()
        sizes = {Bytes(2**each): self.result(each) for each in range(BUCKETS[0], BUCKETS[1] + 1)}
        best = min(sizes, key=lambda size: sizes[size].end_s)
        bucket_overlap(
            now,
            sizes,
            Bytes(2**self.bucket),
            caption=caption
            or "Above, what leaves when: each bar on the link is a bucket, and behind the line everybody waits. Below, "
            "the same for every bucket size.",
            alt=alt
            or f"{self.network} on {2**self.world} ranks, buckets of {Bytes(2**self.bucket):.0}: {len(now.departures)} "
            f"buckets and {now.messages} messages. The backward pass takes {now.backward_s:.0ms}, all is sent after "
            f"{now.end_s:.0ms}. The best size is {best:.0}, with {sizes[best].end_s:.0ms}; {min(sizes):.0} takes "
            f"{sizes[min(sizes)].end_s:.0ms} and {max(sizes):.0} {sizes[max(sizes)].end_s:.0ms}.",
        ).show(widget=self)


def _ready(config: GPTConfig, tokens: int, flops_per_s: float) -> list[Ready]:
    """Only the number of tokens counts, so each is a sequence of its own."""
    return gradients_ready(Setup(config, batch_size=tokens, seq=1, precision="mixed"), flops_per_s)


@cache
def _work() -> dict[str, list[list[float]]]:
    """Network → [bytes, operations per token of the backward pass until it is ready] of each gradient."""
    return {
        name: [[each.n_bytes, each.ready_s] for each in _ready(config, tokens=1, flops_per_s=1.0)]
        for name, config in NETWORKS.items()
    }
