"""State dealt by whole tensors: the deal, its bytes and the formula's. Its steps: `test_parity.py`."""

import itertools

import pytest
import torch
import torch.distributed as dist
from torch import nn

from course_kit import measure
from course_lib import predict
from course_lib.model.gpt import GPT
from course_lib.parallel.whole_tensors import WholeTensorOptimizer, deal_tensors
from course_lib.parallel.zero import ZeroOptimizer
from course_lib.train.optim import SGD, AdamW
from tests.parallel.judging import accepted, agree, on_ranks, refused
from tests.parallel.parity import parity
from tests.parallel.problems import TINY, gpt
from tests.parallel.sides import Zero


def test_a_deal_says_who_has_what():
    deal = deal_tensors([50, 10, 40, 20, 30], 2)
    assert deal.owned == [[0, 3, 1], [2, 4]] and deal.loads == [80, 70]
    assert deal.imbalance == pytest.approx(80 / 75)
    assert str(deal).splitlines() == [
        "rank 0: 80 elements in 3 tensors",
        "rank 1: 70 elements in 2 tensors",
        "the largest load is 1.07 times the mean",
    ]


def test_a_large_tensor_is_one_ranks_load():
    deal = deal_tensors([900, 1, 1], 4)
    assert deal.loads == [900, 1, 1, 0] and deal.imbalance == pytest.approx(4 * 900 / 902)


@pytest.mark.parametrize("seed", range(10))
def test_a_deal_is_within_grahams_bound_of_the_best(seed):
    draw = torch.Generator().manual_seed(seed)
    sizes, n = torch.randint(1, 50, (7,), generator=draw).tolist(), 3
    deal = deal_tensors(sizes, n)
    assert sorted(number for numbers in deal.owned for number in numbers) == list(range(7))
    loads = lambda owners: [sum(s for s, o in zip(sizes, owners) if o == rank) for rank in range(n)]  # noqa: E731
    best = min(max(loads(owners)) for owners in itertools.product(range(n), repeat=7))
    assert max(deal.loads) <= (4 / 3 - 1 / (3 * n)) * best


class OwnGradientsOnly(WholeTensorOptimizer):
    """Owners step on the gradient of their own share of the batch."""

    def _reduce_gradients(self):
        pass


class EachHasAll(WholeTensorOptimizer):
    """A state for every tensor on every rank: right in every step, and nothing is dealt."""

    def __init__(self, params, optimizer_cls, **settings):
        groups = list(params)
        super().__init__(groups, optimizer_cls, **settings)
        self.optimizer = optimizer_cls(groups, **settings)

    def _reduce_gradients(self):
        for parameter in self.parameters:
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad.div_(dist.get_world_size()))


def check_bytes(make):
    """Of state and of traffic, in fp32. Returns the bytes of gradients and weights that this rank has sent."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    tokens = torch.zeros(2, 6, dtype=torch.int64)
    for kind, per_weight in ((AdamW, 8), (SGD, 4)):
        model = GPT(TINY)
        optimizer = make(
            [{"params": list(model.parameters())}], kind, lr=0.1, **({"momentum": 0.9} if kind is SGD else {})
        )
        model(tokens, tokens).backward()
        with measure.traffic() as sent:
            optimizer.step()
        loads, elements = optimizer.deal.loads, sum(optimizer.deal.sizes)
        assert elements == sum(p.numel() for p in model.parameters())
        held, due = optimizer.optimizer.state_bytes, per_weight * loads[rank]
        agree(held == due, f"holds {held} bytes of state, and {due} are its own")
        turns = [(rank - owner) % world_size for owner in range(world_size)]
        weights = sum(predict.broadcast(4 * load, world_size, turn).bytes for load, turn in zip(loads, turns))
        gradients = 4 * (elements - loads[rank])
        flags = predict.all_reduce(4 * len(optimizer.parameters), world_size).bytes
        assert sent.total_bytes == gradients + weights + flags, (
            f"sent {sent.total_bytes}, where {gradients + weights} do"
        )
    return gradients + weights, 4 * elements


@on_ranks(3, nightly=(2,), diagnose=False)
def test_a_rank_holds_its_tensors_state_and_sends_the_formulas_bytes():
    sent, whole = check_bytes(WholeTensorOptimizer)
    everyones = torch.tensor(int(sent))
    dist.all_reduce(everyones)
    assert everyones == 2 * (dist.get_world_size() - 1) * whole, "as data parallelism"


def wrongly(groups, kind, stage, bucket_bytes, **settings):
    return OwnGradientsOnly(groups, kind, **settings)


def test_known_wrong_ones_are_refused():
    """Other gradients and slices give another answer; and a rank may hold everything."""
    cases = {
        "own gradients": ("in step 0", parity, Zero, wrongly, gpt, "muon", {}),
        "slices": ("in step 0", parity, Zero, ZeroOptimizer, gpt, "adafactor", {}),
        "each has all": ("holds", check_bytes, EachHasAll, {}),
    }
    assert accepted(2, cases) == {}


def test_mistakes_are_told():
    """Nothing is sent before a refusal, so that it needs no other rank."""
    narrow = [nn.Parameter(torch.zeros(2, 2, dtype=torch.bfloat16))]
    frozen, nothing = nn.Linear(2, 2).requires_grad_(False), "no parameter to train: all are frozen, or none was given"
    mistakes = [
        (lambda: parity(Zero, ZeroOptimizer, gpt, "muon"), "is no matrix"),
        (lambda: WholeTensorOptimizer(narrow, SGD, lr=0.1), "bfloat16, and no fp32 copy is kept"),
        (lambda: WholeTensorOptimizer([], SGD, lr=0.1), nothing),
        (lambda: WholeTensorOptimizer(frozen.parameters(), SGD, lr=0.1), nothing),
    ]
    assert refused(1, mistakes) == []
