"""What ZeRO-3 must do. Each check runs on ranks and raises where it is not so, on all ranks at the same point.

The tests call these with `Zero3`, and with the known-wrong ones of `tests/mutants/parallel/zero3.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from course_kit import measure
from course_kit.accounts import TrafficAccount
from course_lib import predict
from course_lib.model.gpt import GPT, GPTConfig
from course_lib.parallel.mesh import Mesh, process_groups
from course_lib.parallel.zero3 import Zero3
from course_lib.train.precision import LossScaler
from course_lib.train.recompute import recompute
from tests.parallel import checks
from tests.parallel.checks import Joined, agree
from tests.parallel.zero_checks import OPTIMIZERS


class Gated(nn.Module):
    """A unit whose weight is computed from weights: a part of its graph that its input has no part in. Takes and
    returns dicts; in branch 1 a layer is not used."""

    def __init__(self, shared: nn.Linear) -> None:
        super().__init__()
        self.direction, self.length = nn.Parameter(torch.randn(5, 5)), nn.Parameter(torch.ones(5, 1))
        self.shared, self.sometimes = shared, nn.Linear(5, 5)

    def forward(self, *, state: dict[str, Tensor], branch: int) -> dict[str, Tensor]:
        """One layer."""
        weight = self.length * self.direction / self.direction.norm(dim=1, keepdim=True)
        x = state["x"] + torch.tanh(self.shared(state["x"]) @ weight)
        return {"x": torch.tanh(x if branch else x + self.sometimes(x))}


class Units(nn.Module):
    """What makes units hard: a first one without a gradient for its input, a frozen one, a weight in two units, some
    that run twice and are recomputed, in two ways, one without weights, one that is smaller than the world."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        shared = nn.Linear(5, 5)
        self.layers = nn.ModuleList([nn.Linear(4, 5), nn.Linear(5, 5).requires_grad_(False), nn.Tanh(), nn.RMSNorm(5)])
        self.gated = nn.ModuleList([Gated(shared), Gated(shared), Gated(shared)])
        self.scale = nn.Parameter(torch.ones(1))
        self.double()
        self.offset: Tensor
        self.register_buffer("offset", torch.randn(5).double())

    def forward(self, x: Tensor, choice: Tensor) -> Tensor:
        """Some loss."""
        first, frozen, tanh, norm = self.layers
        x = norm(tanh(frozen(tanh(first(x)))))
        state, branch = {"x": x + self.offset}, int(choice[0])
        for gated in self.gated:
            state = gated(state=state, branch=branch)
        state = recompute(self.gated[2], state=self.gated[1](state=state, branch=0), branch=branch)
        state = checkpoint(self.gated[0], state=state, branch=branch, use_reentrant=False)
        return (self.scale * state["x"]).square().mean()


def units(seed: int) -> tuple[nn.Module, Callable[[int], tuple[Tensor, Tensor]]]:
    """The model above, and batches that make the ranks choose different branches."""

    def batch(step: int) -> tuple[Tensor, Tensor]:
        world_size = dist.get_world_size()
        inputs = torch.randn(2 * world_size, 4, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
        choices = [[0] * 4, [1, 0, 1, 1], [1] * 4][step % 3]
        return inputs, torch.tensor(choices[:world_size]).repeat_interleave(2)

    return Units(seed), batch


def groups_of(named: Any, whole: nn.Module) -> list[dict[str, Any]]:
    """Matrices, and without decay all else, told apart by name."""
    matrices = {name for name, parameter in whole.named_parameters() if parameter.ndim > 1}
    named = list(named)
    rest = {"params": [p for name, p in named if name not in matrices], "weight_decay": 0.0}
    return [{"params": [p for name, p in named if name in matrices]}, rest]


def check_parity(
    wrap: Callable[..., Any],
    make: Callable,
    optimizer: str,
    max_norm: float = 0.0,
    passes: int = 1,
    steps: int = 3,
    **settings: Any,
) -> None:
    """After every step, the weights are those of a single device's step on the joined batch. All ranks must call.

    Replicas start with other weights on every rank; biases and norms are a group of their own, without decay.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    single, batch = make(seed=0)
    oracle = Joined(single, world_size * passes)
    model = wrap(make(seed=rank)[0], bucket_bytes=300, **settings)
    kind, given = OPTIMIZERS[optimizer]
    ours = kind(groups_of(model.named_parameters(), single), **given)
    theirs = kind(groups_of(single.named_parameters(), single), **given)
    for step in range(steps):
        parts = [batch(passes * step + i) for i in range(passes)]
        theirs.zero_grad()
        oracle(*(torch.cat(each) for each in zip(*parts))).backward()
        ours.zero_grad()
        for part in parts:
            inputs, targets = (tensor.chunk(world_size)[rank] for tensor in part)
            (model(inputs, targets) / passes).backward()
        model.synchronize()
        if max_norm:
            due = torch.nn.utils.clip_grad_norm_([p for p in single.parameters() if p.requires_grad], max_norm)
            norm = model.clip_grad_norm_(max_norm)
            assert abs(norm - due) < 1e-6 * due, f"the norm in step {step} is {norm:.6f}, but should be {due:.6f}"
        theirs.step()
        ours.step()
        assert_same_state(model.gathered_state_dict(), single.state_dict(), f"after step {step}")


def assert_same_state(ours: dict[str, Tensor], theirs: dict[str, Tensor], when: str) -> None:
    """Values as in `checks.assert_same`. NaN is no value."""
    assert list(ours) == list(theirs), f"{when}: {list(ours)}"
    for name, due in theirs.items():
        off = (ours[name] - due).abs().max()
        assert off <= 1e4 * torch.finfo(due.dtype).eps, f"{when}: {name} is off by {off:.1e}"


def check_16_bits(wrap: Callable[..., Any], dtype: torch.dtype, passes: int) -> None:
    """Masters and weights are those of fp32 masters, stepped by the fp32 mean of the ranks' 16-bit gradients."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    single, batch = GPT(checks.TINY, dtype=dtype), checks.gpt(0)[1]
    masters = [nn.Parameter(parameter.detach().float()) for parameter in single.parameters()]
    model = wrap(GPT(checks.TINY, dtype=dtype))
    kind, given = OPTIMIZERS["adam"]
    ours, theirs = kind(model.parameters(), **given), kind(masters, **given)
    for step in range(3):
        sums = [torch.zeros_like(master) for master in masters]
        for number in range(passes):
            for share in range(world_size):
                part = [tensor.chunk(world_size)[share] for tensor in batch(passes * step + number)]
                single.zero_grad()
                single(*part).backward()
                for total, parameter in zip(sums, single.parameters()):
                    assert parameter.grad is not None
                    total += parameter.grad.float()
                if share == rank:
                    model(*part).backward()
        for master, total in zip(masters, sums):
            master.grad = total / world_size
        model.synchronize()
        ours.step()
        theirs.step()
        for master, parameter in zip(masters, single.parameters()):
            parameter.data.copy_(master)
        ours.zero_grad()
        assert_same_state(model.gathered_state_dict(), single.state_dict(), f"after step {step}")
        pairs = [(piece.value, master.reshape(-1)[piece.inside]) for piece, master in zip(model.pieces, masters)]
        assert all(ours.dtype == torch.float32 for ours, _ in pairs), "the shards of 16-bit weights are not fp32"
        off = sum((ours - due).abs().sum().item() for ours, due in pairs)
        agree(off <= 1e-5, f"after step {step}: masters are off by {off:.1e}")


def check_overflow(wrap: Callable[..., Any]) -> None:
    """Where one rank's share overflows fp16 in one small weight, every rank skips the step and halves its scale."""
    torch.manual_seed(dist.get_rank())
    model, batch = wrap(GPT(checks.TINY, dtype=torch.float16)), checks.gpt(0)[1](0)
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), LossScaler(init_scale=4.0)
    inputs, targets = (tensor.chunk(dist.get_world_size())[dist.get_rank()] for tensor in batch)
    grows = 1e9 if dist.get_rank() == 0 else 1.0
    hook = model.module.final_norm.bias.register_hook(lambda gradient: gradient * grows)
    for step, (scale, skipped) in enumerate([(2.0, 1), (2.0, 1)]):
        before = model.gathered_state_dict()
        optimizer.zero_grad()
        scaler.scale(model(inputs, targets)).backward()
        model.synchronize()
        scaler.step(optimizer)
        scaler.update()
        same = all(torch.equal(value, before[name]) for name, value in model.gathered_state_dict().items())
        agree(same is (step == 0), f"step {step} was {'skipped' if same else 'taken'} where it should not be")
        agree(scaler.get_scale() == scale and scaler.skipped == skipped, f"in step {step} ranks' scalers differ")
        hook.remove()


CONFIG = GPTConfig(layers=8, width=64, heads=2, vocab_size=32, context=8)


def check_bytes(wrap: Callable[..., Any], dtype: torch.dtype = torch.bfloat16, prefetch: bool = True) -> None:
    """What a rank holds at each point of a step, by category; at the peak, with the buffers that `Zero3` states; and
    what it sends, as the kernel counts. All ranks must call."""
    ranks, tokens = dist.get_world_size(), torch.zeros(1, 2, dtype=torch.int64)
    whole = GPT(CONFIG, dtype=dtype)
    psi, wide = sum(p.numel() for p in whole.parameters()), 4
    unit, root = sum(p.nbytes for p in whole.blocks[0].parameters()), 0
    root = sum(p.nbytes for p in whole.parameters()) - CONFIG.layers * unit
    largest = max(p.nbytes for p in whole.parameters())
    del whole
    model = wrap(GPT(CONFIG, dtype=dtype), prefetch=prefetch)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    held: dict[str, Any] = {}
    ends: list[int] = []
    with measure.memory(model, optimizer, inputs=tokens) as record:
        for _ in range(3):
            optimizer.zero_grad()
            held["between steps"] = record.now
            model(tokens, tokens).backward()
            model.synchronize()
            time.sleep(0.2)  # gloo's threads let go of what they have sent a little later
            held["with gradients"] = record.now
            optimizer.step()
            ends.append(len(record.timeline))
    slack = 5 * 8 * 2 * 4 * ranks + 8 * len(list(model.parameters())) + tokens.nbytes  # padding, Adam's step counts
    between = {"parameters": wide * psi / ranks, "gradients": 0, "optimizer": 2 * wide * psi / ranks}
    for when, due in (("between steps", between), ("with gradients", between | {"gradients": wide * psi / ranks})):
        for category, n_bytes in (due | {"total": sum(due.values())}).items():
            holds = held[when].total if category == "total" else held[when][category]
            agree(
                abs(holds - n_bytes) <= slack,
                f"{when} a rank holds {int(holds)} bytes ({category}), but should hold {n_bytes:.0f}",
            )
    weights, gradients = root + (1 + prefetch) * unit, root + 3 * unit + largest
    precision = "bf16" if dtype == torch.bfloat16 else "fp32"
    activations = predict.activations(predict.Setup(CONFIG, seq=2, precision=precision))
    most = 4 * wide * psi / ranks + weights + gradients + activations
    alive = record.timeline.bytes.sum(axis=1)  # the smaller peak of two steps: gloo lets go of messages late, at times
    holds = min(int(alive[start:end].max()) for start, end in pairwise(ends))
    agree(0.8 * most <= holds <= most, f"at the peak a rank holds {holds} bytes, at most {most:.0f} are due")
    check_traffic(model, optimizer, tokens, psi * dtype.itemsize)


def check_traffic(model: Any, optimizer: torch.optim.Optimizer, tokens: Tensor, whole_bytes: int) -> None:
    """Two all-gathers and a reduce-scatter: 3Ψ(N-1)/N, and the all-reduce of 4 bytes for each parameter."""
    ranks, parameters = dist.get_world_size(), len(list(model.parameters()))
    with measure.traffic() as sent:
        optimizer.zero_grad()
        model(tokens, tokens).backward()
        model.synchronize()
        optimizer.step()
    due = 3 * predict.all_gather(whole_bytes, ranks).bytes + predict.all_reduce(4 * parameters, ranks).bytes
    agree(0.99 * due <= sent.sent_bytes <= 1.05 * due, f"a step sends {int(sent.sent_bytes)} bytes, {due} are due")


def every_parity(wrap: Callable[..., Any]) -> None:
    """All that a wrapper must be equal in."""
    for make in (checks.gpt, checks.odd, units):
        check_parity(wrap, make, "sgd")
        check_parity(wrap, make, "adam", passes=2, prefetch=False)
    check_parity(wrap, checks.gpt, "adam", max_norm=0.05)  # torch sums the odd one's squares in two dtypes
    check_parity(wrap, units, "sgd", max_norm=0.05)


def refusals(cases: list[tuple[Callable[..., None], tuple[Any, ...], dict[str, Any]]]) -> list[str]:
    """What each check says against what it is given; "" if it finds nothing. All ranks must call."""
    said = []
    for check, args, settings in cases:
        try:
            check(*args, **settings)
            said.append("")
        except AssertionError as refusal:
            said.append(str(refusal))
    return said


def what_else(wrap: Callable[..., Any]) -> dict[str, Any]:
    """Answers to small questions, for the test to look at. All ranks must call."""
    said: dict[str, Any] = {"refused": []}
    block = nn.Sequential(nn.Linear(3, 3))
    for module, given in (
        (nn.Linear(2, 2).requires_grad_(False), {}),
        (nn.Sequential(block), {"units": [block, block[0]]}),
    ):
        try:
            wrap(module, **given)
        except ValueError as problem:
            said["refused"].append(str(problem))
    model, batch = wrap(units(seed=0)[0]), units(seed=0)[1](0)
    before = model.gathered_state_dict()
    said["freed"] = all(parameter.isnan().all().item() for parameter in model.module.parameters())
    with torch.no_grad():
        quiet = model(*batch)
    said["evaluates"] = torch.equal(quiet, model(*batch).detach())
    model.load_gathered_state_dict({name: value + 1 for name, value in before.items()})
    after = model.gathered_state_dict()
    said["loads"] = all(torch.equal(after[name], before[name] + 1) for name in before)
    model(*batch).backward()
    model.zero_grad()
    model.synchronize()
    said["forgets"] = all(shard.grad is None for shard in model.parameters())
    said["stores shards"] = all(model.state_dict()[name].ndim == 1 for name, _ in model.named_parameters())
    return said


NODES = Mesh({"node": 2, "shard": 2})


def hybrid(wrap: Callable[..., Any], module: nn.Module, **settings: Any) -> Any:
    """Sharded inside each of two nodes of two ranks, replicated across. All 4 ranks must call."""
    groups = process_groups(NODES)
    return wrap(module, groups["shard"], replicas=groups["node"], **settings)


def check_hybrid(wrap: Callable[..., Any], optimizer: str) -> None:
    """As `check_parity`, also where ranks take different branches."""
    for make in (checks.gpt, units):
        check_parity(partial(hybrid, wrap), make, optimizer, passes=2)


def sent_in_a_step(is_hybrid: bool) -> TrafficAccount:
    """Of a GPT in fp32, from the forward pass to the mean gradient."""
    model, tokens = GPT(CONFIG), torch.zeros(1, 2, dtype=torch.int64)
    sharded = hybrid(Zero3, model) if is_hybrid else Zero3(model)
    sharded(tokens, tokens).backward()
    sharded.synchronize()
    sharded.zero_grad()
    with measure.traffic() as sent:
        sharded(tokens, tokens).backward()
        sharded.synchronize()
    return sent
