"""An all-reduce over two kinds of links: against what ranks really send, and against a backward pass."""

import pytest
import torch
import torch.distributed as dist

from course_kit import measure, ranks
from course_lib import predict
from course_lib.collectives import algorithms as collectives
from tests.predict.refused import refused


def in_two_levels(per_node):
    """Bytes and messages that this rank sends inside its node, and to other nodes; and whether the sum is right."""
    rank, p = dist.get_rank(), dist.get_world_size()
    nodes = [dist.new_group([*range(first, first + per_node)]) for first in range(0, p, per_node)]
    twins = [dist.new_group([*range(first, p, per_node)]) for first in range(per_node)]
    node, twin = nodes[rank // per_node], twins[rank % per_node]
    with measure.traffic() as sent:
        part = collectives.reduce_scatter(torch.full((840,), float(rank)), group=node)
        whole = collectives.all_gather(collectives.all_reduce(part, group=twin), group=node)
    own = [to for to in sent.bytes_to if int(to) // per_node == rank // per_node]
    inside = sum(sent.bytes_to[to] for to in own), sum(sent.messages_to[to] for to in own)
    across = sent.total_bytes - inside[0], sent.total_messages - inside[1]
    return inside, across, whole.eq(p * (p - 1) / 2).all().item()


@pytest.mark.parametrize(("nodes", "per_node"), [(2, 4), (4, 2), (3, 2), (1, 4), (4, 1)])
def test_bytes_and_messages_of_each_level(nodes, per_node):
    due = predict.two_level_all_reduce(840 * 4, nodes, per_node)
    for inside, across, right in ranks.run(in_two_levels, per_node, world_size=nodes * per_node):
        assert right
        assert inside == (due.inside.bytes, due.inside.messages)
        assert across == (due.across.bytes, due.across.messages)


def test_from_so_many_tokens_on_an_all_reduce_fits_behind_a_backward_pass():
    """Two sides of one equation: the backward pass of N parameters, and the ring's bytes over the link."""
    flops_per_s, bytes_per_s, ranks, n = 4e14, 5e10, 8, 10**9
    tokens = predict.tokens_to_hide(flops_per_s, bytes_per_s, ranks)
    assert 4 * n * tokens / flops_per_s == pytest.approx(predict.all_reduce(2 * n, ranks).bytes / bytes_per_s, rel=1e-3)
    assert predict.tokens_to_hide(flops_per_s, bytes_per_s, ranks, bytes_per_gradient=4) == 2 * tokens
    assert predict.tokens_to_hide(flops_per_s, bytes_per_s, 1) == 0


def test_a_node_with_a_card_for_each_rank_leaves_at_the_speed_of_all_its_cards():
    speed = 0.4 * 989.4e12
    assert predict.tokens_to_hide(speed, 50e9, 1024) == 7907  # one ring over all ranks
    assert predict.tokens_to_hide(speed, 50e9, 1024, 2, 8, 450e9) == 982  # 127/128 of 395.76e12 / 400e9
    assert predict.tokens_to_hide(speed, 1e30, 1024, 2, 8, 450e9) == round(7 / 8 * speed / 450e9)  # NVLink alone


test_what_cannot_be_is_refused = refused(
    (lambda: predict.tokens_to_hide(0, 1e9, 8), "flops_per_s=0.*must be positive"),
    (lambda: predict.tokens_to_hide(1e12, 1e9, 12, 2, 8), "12 ranks do not fill nodes of 8: 4 are left"),
    (lambda: predict.tokens_to_hide(1e12, 1e9, 8, 2, 8, 0.0), "inside_bytes_per_s=0.0"),
)
