"""An all-reduce over two kinds of links: fast ones inside a node, slow ones between nodes.

Between machines links are slower, and a ring over all ranks runs at the pace of its slowest link. So one adds up inside
each node first: a reduce-scatter leaves each of its G ranks with a G-th of the node's sum. Each rank carries *its* part
across, over its own card, in an all-reduce with the ranks of the other nodes that hold the same part. An all-gather
inside the node ends it. A node with G cards then leaves at G times the speed of one.
"""

from __future__ import annotations

from typing import NamedTuple

from course_kit.units import Count
from course_lib.predict.setup import positive
from course_lib.predict.traffic import Collective, all_reduce


class TwoLevels(NamedTuple):
    """A hierarchical all-reduce, as one rank pays for it.

    Attributes:
        inside: what it sends to ranks of its own node: a reduce-scatter and an all-gather.
        across: what it sends to other nodes: an all-reduce of its part.
    """

    inside: Collective
    across: Collective


def two_level_all_reduce(n_bytes: int, nodes: int, ranks_per_node: int) -> TwoLevels:
    """Every rank gets the sum of all arrays, inside the nodes first: 2(G-1)/G · n inside, 2(N-1)/N · n/G across.

    Args:
        n_bytes: of the array of each rank, n.
        nodes: N.
        ranks_per_node: G; each has a link of its own to the other nodes.

    Source: Austin et al. 2025, "How to Scale Your Model", GPUs, cross-node collectives (a ring at each level).

    Raises:
        ValueError: no nodes or ranks, or negative bytes.
    """
    return TwoLevels(all_reduce(n_bytes, ranks_per_node), all_reduce(round(n_bytes / ranks_per_node), nodes))


def tokens_to_hide(
    flops_per_s: float,
    link_bytes_per_s: float,
    world_size: int,
    bytes_per_gradient: int = 2,
    ranks_per_node: int = 1,
    inside_bytes_per_s: float = float("inf"),
) -> Count:
    """From how many tokens per rank on a backward pass lasts as long as the all-reduce of its gradients.

    4·Ψ·D / R = Ψ · bytes · 2 · max((G-1)/G / W_inside, (N-1)/N / (G · W)), so Ψ cancels out. Messages cost nothing
    here, and both levels are at work at once (long tensors go in pieces), so the slower one counts. With one rank in a
    node, two bytes and many ranks that is R/W; with G ranks that have a link each, R/(G · W).

    Args:
        flops_per_s: that a rank reaches, R.
        link_bytes_per_s: what leaves a rank for other nodes, W.
        world_size: ranks in all nodes.
        bytes_per_gradient: 2 for bf16.
        ranks_per_node: G; 1 for a ring over all ranks.
        inside_bytes_per_s: what leaves a rank for ranks of its own node.

    Source: Austin et al. 2025, "How to Scale Your Model", training and GPUs, data parallelism.

    Raises:
        ValueError: a speed, a number of ranks or the size of a gradient is not positive, or the last node is not full.
    """
    positive(
        flops_per_s=flops_per_s, link_bytes_per_s=link_bytes_per_s, world_size=world_size,
        bytes_per_gradient=bytes_per_gradient, ranks_per_node=ranks_per_node, inside_bytes_per_s=inside_bytes_per_s,
    )  # fmt: skip
    nodes, left = divmod(world_size, ranks_per_node)
    if left:
        raise ValueError(f"{world_size} ranks do not fill nodes of {ranks_per_node}: {left} are left; give whole nodes")
    unit = 2**40  # gradients' bytes, so many that rounding to a byte does not matter
    inside, across = two_level_all_reduce(unit, nodes, ranks_per_node)
    seconds_per_byte = max(inside.bytes / inside_bytes_per_s, across.bytes / link_bytes_per_s) / unit
    return Count(round(bytes_per_gradient * flops_per_s * seconds_per_byte / 4))
