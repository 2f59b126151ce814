"""Data parallelism on real ranks: its traffic is the formula's, its mistakes are told. Its steps: `test_parity.py`."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from course_kit import measure, ranks
from course_kit.ranks import RankFailure
from course_lib import predict
from course_lib.parallel import BucketedDataParallel, NaiveDataParallel, plan_buckets
from course_lib.train.recompute import recompute
from tests.mutants.parallel import data as wrong
from tests.parallel.judging import accepted, agree, on_ranks, own
from tests.parallel.parity import parity
from tests.parallel.problems import gpt, odd
from tests.parallel.sides import Replicas


def check_traffic(wrap, problem, bucket_bytes):
    """A step sends every trainable gradient once, with one number per parameter, in the planned number of messages,
    and `no_sync` sends nothing. Counted in the second step: the first one may pack the buckets anew."""
    world_size, (module, batch) = dist.get_world_size(), problem(0)
    replica = wrap(module, bucket_bytes=bucket_bytes)
    trainable = [p for p in module.parameters() if p.requires_grad]
    expected_bytes = sum(p.nbytes + p.itemsize for p in trainable)
    due = predict.all_reduce(expected_bytes, world_size).bytes
    slack = 2 * len(plan_buckets(trainable, bucket_bytes))  # each bucket's formula rounds to a byte
    kinds = len({p.dtype for p in trainable})  # one bucket of each dtype may be left half full
    most = min(len(trainable), expected_bytes // bucket_bytes + kinds)
    least = most if bucket_bytes == 1 else 1
    for step in range(3):
        with measure.traffic() as quiet, replica.no_sync():
            replica(*own(batch(step))).backward()
        agree(quiet.total_messages == 0, f"no_sync sent {dict(quiet.messages)}")
        with measure.traffic() as sent:
            replica(*own(batch(step))).backward()
            replica.synchronize()
        if step:
            agree(set(sent.messages) <= {"all_reduce"}, f"sent {dict(sent.messages)}")
            agree(abs(sent.total_bytes - due) <= slack, f"sent {sent.total_bytes} bytes where {due} do")
            n = sent.total_messages
            agree(least <= n <= most or world_size == 1, f"sent {n} messages, where {least} to {most} are needed")


@on_ranks(2, 4, nightly=(1,))
def test_traffic_is_as_predicted():
    for bucket_bytes in (1, 256, 2**20):
        for problem in (gpt, odd):
            check_traffic(BucketedDataParallel, problem, bucket_bytes)


@on_ranks(2)
def test_the_naive_one_sends_a_message_for_each_parameter_used():
    module, batch = odd(0)
    replica = NaiveDataParallel(module)
    with measure.traffic() as sent:
        replica(*own(batch(3))).backward()
        replica.synchronize()
    used = [p for p in module.parameters() if p.grad is not None]
    n_bytes = sum(p.nbytes for p in used) + 4 * sum(p.requires_grad for p in module.parameters())
    assert sent.total_bytes == n_bytes and sent.total_messages == len(used) + 1 and len(used) < 13


@on_ranks(4)
def test_a_group_is_an_argument():
    group: Any = dist.new_group([1, 3])
    if dist.get_rank() in (1, 3):
        layer = nn.Linear(2, 1)
        nn.init.constant_(layer.weight, float(dist.get_rank()))
        replica = BucketedDataParallel(layer, group=group)
        replica(torch.full((1, 2), float(dist.get_rank()))).sum().backward()
        replica.synchronize()
        assert layer.weight.grad is not None
        assert (layer.weight.tolist(), layer.weight.grad.tolist()) == ([[1, 1]], [[2, 2]])


@on_ranks(2)
def test_buckets_follow_the_order_of_use():
    """Registered in another order than used: after the first step, the buckets follow the use."""

    class Shuffled(nn.Module):
        def __init__(self):
            super().__init__()
            self.second, self.third, self.first = (nn.Linear(2, 2, bias=False) for _ in range(3))

        def forward(self, x):
            return self.third(self.second(self.first(x))).sum()

    module = Shuffled()
    replica, names = BucketedDataParallel(module, bucket_bytes=1), {p: name for name, p in module.named_parameters()}
    for due in (["first", "third", "second"], ["third", "second", "first"]):
        assert [names[bucket.parameters[0]].split(".")[0] for bucket in replica.buckets] == due
        replica(torch.ones(1, 2)).backward()
        assert all(bucket.work is not None for bucket in replica.buckets), "sent during the backward pass"
        replica.synchronize()


@on_ranks(2)
def test_gradients_live_in_the_bucket_and_nowhere_else():
    module = nn.Linear(64, 64)
    replica = BucketedDataParallel(module)
    replica(torch.ones(1, 64)).sum().backward()
    replica.synchronize()
    storages = {p.grad.untyped_storage().data_ptr() for p in module.parameters() if p.grad is not None}
    assert len(storages) == 1 and replica.buckets[0].flat.numel() == 64 * 64 + 64 + 2


def forgotten_synchronize():
    replica = BucketedDataParallel(nn.Linear(2, 1), bucket_bytes=1)
    x = torch.ones(1, 2)
    replica(x).sum().backward()
    with torch.no_grad():
        replica(x)
    with pytest.raises(ValueError, match=r"synchronize\(\) was not called after the last backward"):
        replica(x)
    with pytest.raises(ValueError, match=r"wrap every backward pass but the last in no_sync"):
        replica.module.forward(x).sum().backward()
    with pytest.raises(ValueError, match=r"inside no_sync"), replica.no_sync():
        replica.synchronize()


class SharedBySegments(nn.Module):
    """Each segment's backward pass adds to the weight's gradient, and says that it is complete."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x):
        return recompute(self.layer, recompute(self.layer, x)).sum()


def weight_shared_by_segments():
    for overlap in (True, False):
        replica = BucketedDataParallel(SharedBySegments(), overlap=overlap)
        with pytest.raises(ValueError, match="a weight that several recomputed segments share"):
            replica(torch.ones(1, 2)).backward()


def unfrozen_later():
    layer = nn.Linear(2, 1)
    layer.bias.requires_grad_(False)
    replica = BucketedDataParallel(layer)
    layer.bias.requires_grad_(True)
    with pytest.raises(ValueError, match="unfreeze first, then wrap again"):
        replica.synchronize()


def different_modules():
    rank = dist.get_rank()
    for module in (
        nn.Linear(2, 2 + rank),
        nn.Linear(2, 2, bias=rank == 0),
        nn.Linear(2, 2).to([torch.half, torch.float][rank]),
    ):
        with pytest.raises(ValueError, match="rank 1 of the group has .* rank 0 has .*; build the same on all"):
            BucketedDataParallel(module)


def sparse_gradients():
    replica = BucketedDataParallel(nn.Embedding(3, 2, sparse=True), overlap=False)
    replica(torch.tensor([1])).sum().backward()
    with pytest.raises(ValueError, match="sparse=False"):
        replica.synchronize()


MISTAKES = [
    forgotten_synchronize,
    weight_shared_by_segments,
    unfrozen_later,
    different_modules,
    sparse_gradients,
]


@pytest.mark.parametrize("mistake", MISTAKES)
@on_ranks(2)
def test_mistakes_are_told(mistake):
    mistake()


@on_ranks(2)
def test_a_wrapper_that_is_gone_leaves_no_hooks():
    module = nn.Linear(2, 1)
    BucketedDataParallel(module, bucket_bytes=1)
    replica = BucketedDataParallel(module)
    with measure.traffic() as sent:
        replica(torch.ones(1, 2)).sum().backward()
        replica.synchronize()
    assert sent.messages["all_reduce"] == 1


@on_ranks(2)
def test_a_rank_without_a_batch_counts_as_zero():
    layer = nn.Linear(2, 1, bias=False)
    replica = BucketedDataParallel(layer)
    if dist.get_rank() == 0:
        replica(torch.full((1, 2), 4.0)).sum().backward()
    replica.synchronize()
    assert layer.weight.grad is not None and layer.weight.grad.tolist() == [[2, 2]]


def one_rank_never_synchronizes():
    replica = BucketedDataParallel(nn.Linear(2, 1))
    replica(torch.ones(1, 2)).sum().backward()
    if dist.get_rank() == 0:
        replica.synchronize()


def test_a_rank_that_forgets_to_synchronize_is_reported_and_not_waited_for():
    with pytest.raises(RankFailure, match="rank 0"):
        ranks.run(one_rank_never_synchronizes, world_size=2, timeout_s=10)


def test_known_wrong_ones_are_refused():
    values = {
        (wrap, "in its steps"): ("at the start|in step", parity, Replicas, wrap, odd, "sgd", {})
        for wrap in wrong.VALUES
    }
    traffic = {
        (wrap, "traffic"): ("sent", check_traffic, wrap, odd, 2**20 if wrap is wrong.OneByOne else 256, {})
        for wrap in wrong.TRAFFIC
    }
    assert accepted(4, values | traffic) == {}


def test_adam_hardly_notices_a_sum_for_a_mean():
    """Why every wrapper is tried with SGD too: Adam divides a constant factor out again, all but its eps."""
    case = r"in step 0: .*; the weight of .* is off by \d\.\de-0[78]"
    assert accepted(2, {wrong.SumForMean: (case, parity, Replicas, wrong.SumForMean, gpt, "adam", {})}) == {}
