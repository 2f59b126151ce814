"""Data parallelism on real ranks against the single-device step, against DDP, and against its own traffic formula."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from course_kit import ranks
from course_kit.ranks import RankFailure
from course_lib.collectives import algorithms as collectives
from course_lib.parallel import BucketedDataParallel, NaiveDataParallel
from course_lib.train.recompute import recompute
from tests.parallel import checks


def small_buckets(module):
    return BucketedDataParallel(module, bucket_bytes=256)


def one_bucket(module):
    return BucketedDataParallel(module)


def no_overlap(module):
    return BucketedDataParallel(module, bucket_bytes=256, overlap=False)


def own_ring(module):
    return BucketedDataParallel(module, bucket_bytes=256, all_reduce=blocking_ring)


def blocking_ring(tensor, group):
    collectives.all_reduce(tensor, algorithm="ring", group=group)


WRAPPERS = [NaiveDataParallel, small_buckets, one_bucket, no_overlap]


def every_parity(wrappers):
    for wrap in wrappers:
        for make in (checks.gpt, checks.odd):
            for optimizer in checks.OPTIMIZERS:
                checks.check_parity(wrap, make, optimizer)
            checks.check_parity(wrap, make, "sgd", micro_batches=2)


@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.parametrize("wrap", WRAPPERS)
def test_every_step_equals_the_single_device(wrap, world_size):
    ranks.run(every_parity, [wrap], world_size=world_size, diagnose=False)


def test_our_own_ring_carries_the_buckets():
    ranks.run(every_parity, [own_ring], world_size=2, diagnose=False)


def test_parity_holds_under_diagnosis():
    ranks.run(checks.check_parity, small_buckets, checks.odd, "sgd", world_size=4)


def beside_ddp():
    for optimizer in checks.OPTIMIZERS.values():
        pairs = []
        for wrap in (DistributedDataParallel, small_buckets):
            module, batch = checks.gpt(seed=dist.get_rank())
            replica = wrap(module)
            pairs.append((module, replica, optimizer(module.parameters())))
        for step in range(5):
            inputs, targets = (t.chunk(dist.get_world_size())[dist.get_rank()] for t in batch(step))
            for _, replica, opt in pairs:
                opt.zero_grad(set_to_none=True)
                replica(inputs, targets).backward()
                if isinstance(replica, BucketedDataParallel):
                    replica.synchronize()
                opt.step()
            checks.assert_same(pairs[1][0], pairs[0][0], f"after step {step}, beside DDP")


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_every_step_equals_ddp(world_size):
    ranks.run(beside_ddp, world_size=world_size, diagnose=False)


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_traffic_is_as_predicted(world_size):
    for bucket_bytes in (1, 256, 2**20):
        for make in (checks.gpt, checks.odd):
            args = (BucketedDataParallel, make, bucket_bytes)
            ranks.run(checks.check_traffic, *args, world_size=world_size, diagnose=world_size == 2)


def naive_traffic():
    module, batch = checks.odd(0)
    replica = NaiveDataParallel(module)
    with checks.measure.traffic() as sent:
        replica(*(t.chunk(2)[dist.get_rank()] for t in batch(3))).backward()
        replica.synchronize()
    used = [p for p in module.parameters() if p.grad is not None]
    n_bytes = sum(p.nbytes for p in used) + 4 * sum(p.requires_grad for p in module.parameters())
    return sent.total_bytes == n_bytes and sent.total_messages == len(used) + 1 and len(used) < 13


def test_the_naive_one_sends_a_message_for_each_parameter_used():
    assert all(ranks.run(naive_traffic, world_size=2))


def zeros_instead_of_none():
    module, batch = checks.odd(0)
    single, _ = checks.odd(0)
    oracle, replica = checks.Joined(single, 2), small_buckets(module)
    ours, theirs = (checks.OPTIMIZERS["adam"](m.parameters()) for m in (module, single))
    for step in range(6):
        theirs.zero_grad(set_to_none=False)
        oracle(*batch(step)).backward()
        theirs.step()
        ours.zero_grad(set_to_none=False)
        replica(*(t.chunk(2)[dist.get_rank()] for t in batch(step))).backward()
        replica.synchronize()
        ours.step()
        for (name, p), q in zip(module.named_parameters(), single.parameters()):
            assert (p - q).abs().max() < 1e4 * torch.finfo(p.dtype).eps, f"step {step}: {name}"


def test_gradients_that_are_zeroed_in_place():
    ranks.run(zeros_instead_of_none, world_size=2)


def in_a_group():
    group: Any = dist.new_group([1, 3])
    if dist.get_rank() not in (1, 3):
        return None
    layer = nn.Linear(2, 1)
    nn.init.constant_(layer.weight, float(dist.get_rank()))
    replica = BucketedDataParallel(layer, group=group)
    replica(torch.full((1, 2), float(dist.get_rank()))).sum().backward()
    replica.synchronize()
    assert layer.weight.grad is not None
    return layer.weight.tolist(), layer.weight.grad.tolist()


def test_a_group_is_an_argument():
    assert ranks.run(in_a_group, world_size=4) == [None, ([[1, 1]], [[2, 2]])] * 2


def order_of_use():
    """Registered in another order than used: after the first step, the buckets follow the use."""

    class Shuffled(nn.Module):
        def __init__(self):
            super().__init__()
            self.second, self.third, self.first = (nn.Linear(2, 2, bias=False) for _ in range(3))

        def forward(self, x):
            return self.third(self.second(self.first(x))).sum()

    module = Shuffled()
    replica = BucketedDataParallel(module, bucket_bytes=1)
    orders = []
    for _ in range(2):
        orders.append([bucket.parameters[0] for bucket in replica.buckets])
        replica(torch.ones(1, 2)).backward()
        launched = sum(bucket.work is not None for bucket in replica.buckets)
        assert launched == 3, f"{launched} of 3 buckets left during the backward pass"
        replica.synchronize()
    names = {p: name for name, p in module.named_parameters()}
    return [[names[p].split(".")[0] for p in order] for order in orders]


def test_buckets_follow_the_order_of_use():
    for first, second in ranks.run(order_of_use, world_size=2):
        assert first == ["first", "third", "second"]
        assert second == ["third", "second", "first"]


def held_bytes():
    module = nn.Linear(64, 64)
    replica = BucketedDataParallel(module)
    replica(torch.ones(1, 64)).sum().backward()
    replica.synchronize()
    storages = {p.grad.untyped_storage().data_ptr() for p in module.parameters() if p.grad is not None}
    return len(storages) == 1 and replica.buckets[0].flat.numel() == 64 * 64 + 64 + 2


def test_gradients_live_in_the_bucket_and_nowhere_else():
    assert all(ranks.run(held_bytes, world_size=2))


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
def test_mistakes_are_told(mistake):
    ranks.run(mistake, world_size=2)


def wrapped_again():
    module = nn.Linear(2, 1)
    BucketedDataParallel(module, bucket_bytes=1)
    replica = BucketedDataParallel(module)
    with checks.measure.traffic() as sent:
        replica(torch.ones(1, 2)).sum().backward()
        replica.synchronize()
    return sent.messages["all_reduce"]


def test_a_wrapper_that_is_gone_leaves_no_hooks():
    assert ranks.run(wrapped_again, world_size=2) == [1, 1]


def one_rank_does_not_take_part():
    layer = nn.Linear(2, 1, bias=False)
    replica = BucketedDataParallel(layer)
    if dist.get_rank() == 0:
        replica(torch.full((1, 2), 4.0)).sum().backward()
    replica.synchronize()
    assert layer.weight.grad is not None
    return layer.weight.grad.tolist()


def test_a_rank_without_a_batch_counts_as_zero():
    assert ranks.run(one_rank_does_not_take_part, world_size=2) == [[[2, 2]]] * 2


def one_rank_never_synchronizes():
    replica = BucketedDataParallel(nn.Linear(2, 1))
    replica(torch.ones(1, 2)).sum().backward()
    if dist.get_rank() == 0:
        replica.synchronize()


def test_a_rank_that_forgets_to_synchronize_is_reported_and_not_waited_for():
    with pytest.raises(RankFailure, match="rank 0"):
        ranks.run(one_rank_never_synchronizes, world_size=2, timeout_s=10)


def after_a_broken_pass(overlap, is_told):
    """The gradients of a pass after one that broke off, over those of a replica that has not seen it."""
    found = []
    for breaks in (False, True):
        torch.manual_seed(0)
        layers = nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)))
        replica, x = BucketedDataParallel(layers, bucket_bytes=64, overlap=overlap), torch.ones(2, 4)
        if breaks:
            hook = layers[1].register_full_backward_pre_hook(lambda *_: 1 / 0)  # type: ignore[arg-type]
            with pytest.raises(ZeroDivisionError):
                replica(x).sum().backward()
            hook.remove()
            (replica if is_told else layers).zero_grad()
        replica(x * (1 + dist.get_rank())).sum().backward()
        replica.synchronize()
        found.append([parameter.grad.clone() for parameter in layers.parameters() if parameter.grad is not None])
    return max(float((right - after).abs().max()) for right, after in zip(*found))


@pytest.mark.parametrize("overlap", [True, False])
def test_zero_grad_forgets_a_backward_pass_that_broke_off(overlap):
    assert ranks.run(after_a_broken_pass, overlap, True, world_size=2) == [0, 0]
    with pytest.raises(RankFailure, match="a new pass begins, but"):
        ranks.run(after_a_broken_pass, overlap, False, world_size=2)
