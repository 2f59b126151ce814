"""Models whose units take and return what a pytree does not know, and what a wrapper must do with them.

`check_results` runs on ranks; `models` are for wrappers of one process, too.
"""

from __future__ import annotations

import copy
import dataclasses
from collections import UserDict
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_kit import measure
from course_lib import predict
from course_lib.parallel.zero3 import Zero3
from tests.parallel.checks import OPTIMIZERS, Joined, agree
from tests.parallel.zero3_checks import assert_same_state

WIDTH = 6


@dataclasses.dataclass
class Result:
    """As transformers' results are."""

    hidden: Any
    note: str = "not a tensor"


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    """Without a `__dict__`."""

    hidden: Any


class Mapped(dict):
    """A dict that pytrees take for a leaf."""


class Listed(list):
    """A list that pytrees take for a leaf."""


def _circle(hidden: Any) -> Any:
    inside = SimpleNamespace(hidden=hidden)
    inside.me = [inside]
    return inside


WRAPS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "dataclass": (Result, lambda result: result.hidden),
    "dataclass with slots": (Slotted, lambda result: result.hidden),
    "subclass of dict": (lambda x: Mapped(hidden=x), lambda result: result["hidden"]),
    "mapping": (lambda x: UserDict(hidden=x), lambda result: result["hidden"]),
    "subclass of list": (lambda x: Listed([x]), lambda result: result[0]),
    "object that holds itself": (_circle, lambda result: result.hidden),
    "nested": (lambda x: [{"a": Result(Mapped(b=(Slotted(x), 1)))}], lambda r: r[0]["a"].hidden["b"][0].hidden),
}


class First(nn.Module):
    """The first result of a module that has several."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        """One tensor."""
        return self.module(x)[0]


LAST: dict[str, Callable[[], nn.Module]] = {
    "LayerNorm": lambda: nn.LayerNorm(WIDTH),
    "Conv1d": lambda: nn.Conv1d(3, 3, 3, padding=1),
    "LSTM": lambda: First(nn.LSTM(WIDTH, WIDTH, batch_first=True)),
    "PReLU": lambda: nn.PReLU(),
    "Linear": lambda: nn.Linear(WIDTH, WIDTH),
}


class Block(nn.Module):
    """A unit from a wrapped tensor to a wrapped tensor."""

    def __init__(self, wrap: str, last: str) -> None:
        super().__init__()
        self.linear, self.last, self.wrap = nn.Linear(WIDTH, WIDTH), LAST[last](), wrap

    def forward(self, given: Any) -> Any:
        """One layer."""
        wrap, unwrap = WRAPS[self.wrap]
        return wrap(self.last(torch.tanh(self.linear(unwrap(given)))))


class Chain(nn.Module):
    """Blocks in a row, and a wrapped loss. The root unit has weights of its own at both ends."""

    def __init__(self, wrap: str, last: str, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList([Block(wrap, last) for _ in range(3)])
        self.head, self.wrap = nn.Linear(WIDTH, 1), wrap
        self.double()

    def forward(self, x: Tensor, target: Tensor) -> Any:
        """The wrapped loss."""
        wrap, unwrap = WRAPS[self.wrap]
        hidden = wrap(self.first(x))
        for block in self.blocks:
            hidden = block(hidden)
        return wrap((self.head(unwrap(hidden)) - target).square().mean())

    def loss(self, result: Any) -> Tensor:
        """What `forward` has wrapped."""
        return WRAPS[self.wrap][1](result)


class Loss(nn.Module):
    """The loss alone, for an oracle."""

    def __init__(self, chain: Chain) -> None:
        super().__init__()
        self.chain = chain

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        """A number."""
        return self.chain.loss(self.chain(x, target))


CASES = [(wrap, last) for wrap in WRAPS for last in LAST]


def batch(step: int, size: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets."""
    both = torch.randn(2, size, 3, WIDTH, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
    return both[0], both[1, ..., :1]


def check_results(wrap: str, last: str, optimizer: str, settings: dict[str, Any]) -> None:
    """As `compare`, with other weights at the start on every rank."""
    single, module = Chain(wrap, last, seed=0), Chain(wrap, last, seed=dist.get_rank())
    compare(module, single, optimizer, settings, f"{wrap}, {last}")


def compare(module: Chain, single: Chain, optimizer: str, settings: dict[str, Any], where: str) -> None:
    """Gradients before, and weights after every step are those of one process. All ranks must call."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    oracle, model = Joined(Loss(single), world_size), Zero3(module, **settings)
    ours, theirs = (OPTIMIZERS[optimizer](each.parameters()) for each in (model, single))
    for step in range(3):
        joined = batch(step, 2 * world_size)
        theirs.zero_grad()
        oracle(*joined).backward()
        theirs.step()
        ours.zero_grad()
        module.loss(model(*(part.chunk(world_size)[rank] for part in joined))).backward()
        gradients = {name: p.grad for name, p in single.named_parameters() if p.grad is not None}
        when = f"{where}, step {step}"
        assert_same_state(model.gathered_gradients(), gradients, f"{when}: gradients")
        ours.step()
        assert_same_state(model.gathered_state_dict(), single.state_dict(), when)


def check_all_results() -> None:
    """Every way to wrap with every last operation; each of both with both optimizers, and with prefetch or without."""
    for number, (wrap, last) in enumerate(CASES):
        check_results(wrap, last, ("sgd", "adam")[number % 2], {"prefetch": number % 2 == 0})


class Remembering(nn.Module):
    """A unit that leaves a tensor from its middle in an object, and returns the object and what others have left."""

    def __init__(self) -> None:
        super().__init__()
        self.key, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, state: SimpleNamespace) -> SimpleNamespace:
        """As a layer with a cache of keys does."""
        key = torch.tanh(self.key(state.x))
        state.kept.append(key)
        return SimpleNamespace(x=torch.tanh(self.out(key)) + state.kept[0], kept=state.kept, given=state.given)


class Cached(Chain):
    """Its root returns what was left in the middle of units; the loss needs it or not."""

    def __init__(self, seed: int, needs: bool) -> None:
        super().__init__("object that holds itself", "Linear", seed)
        self.blocks, self.needs = nn.ModuleList([Remembering() for _ in range(4)]).double(), needs

    def forward(self, x: Tensor, target: Tensor) -> SimpleNamespace:
        """The loss, and everything else."""
        first = self.first(x)
        state = SimpleNamespace(x=first, kept=[], given=torch.sin(first))
        for block in self.blocks:
            state = block(state)
        loss = (self.head(state.x + state.given) - target).square().mean()
        return SimpleNamespace(hidden=loss + state.kept[2].mean() if self.needs else loss, state=state)


def check_cached() -> None:
    """Every step equals that of one process, and no unit is gathered once too often. All ranks must call."""
    for needs in (False, True):
        module, single = Cached(0, needs), Cached(0, needs)
        compare(module, single, "adam", {}, f"a cache that the loss {'needs' if needs else 'does not need'}")
    sent, due = bytes_of(Cached(0, False).float(), lambda model: model(*(p.float() for p in batch(0, 2))).hidden)
    agree(0 <= sent - due <= 8 * 3 * 5, f"{sent} bytes were sent, {due} and padding are due")


class Seq2Seq(nn.Module):
    """An encoder, whose results all layers of a decoder look at, and which are results of the whole, too."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.ModuleList([nn.Linear(64, 64) for _ in range(4)])
        self.decoder = nn.ModuleList([nn.Bilinear(64, 8, 64) for _ in range(3)])

    def forward(self, x: Tensor) -> dict[str, Any]:
        """Loss, and hidden states of every layer of the encoder."""
        states = []
        for layer in self.encoder:
            x = torch.tanh(layer(x))
            states.append(x)
        y = torch.ones_like(x)
        for layer in self.decoder:
            y = torch.tanh(layer(y, x[..., :8]))
        return {"loss": y.square().mean() + states[0].mean(), "last": x, "states": states}


def bytes_of_seq2seq() -> tuple[float, float]:
    """An encoder and a decoder. All ranks must call."""
    return bytes_of(Seq2Seq(), lambda model: model(torch.randn(2, 64))["loss"])


class Towers(nn.Module):
    """Two stacks, of which the one that is defined last runs first (as in CLIP)."""

    def __init__(self) -> None:
        super().__init__()
        self.text = nn.ModuleList([nn.Linear(64, 64) for _ in range(4)])
        self.vision = nn.ModuleList([nn.Linear(64, 64) for _ in range(4)])

    def forward(self, x: Tensor) -> Tensor:
        """The product of what both stacks make of x, the vision's first."""
        y = x
        for layer in self.vision:
            y = torch.tanh(layer(y))
        for layer in self.text:
            x = torch.tanh(layer(x))
        return (x * y).mean()


def bytes_of_towers() -> tuple[float, float]:
    """Two stacks. All ranks must call."""
    return bytes_of(Towers(), lambda model: model(torch.randn(2, 64)))


def bytes_of(module: nn.Module, loss: Callable[[Zero3], Tensor]) -> tuple[float, float]:
    """What a rank sends in a step, and what the formula says. All ranks must call."""
    ranks = dist.get_world_size()
    psi, tensors = sum(p.numel() for p in module.parameters()), len(list(module.parameters()))
    model = Zero3(module)
    with measure.traffic() as sent:
        loss(model).backward()
        model.synchronize()
    due = predict.data_traffic(predict.Setup(psi, batch_size=ranks, seq=1, data=ranks, zero=3))
    asked = predict.all_reduce(4 * (tensors + 1), ranks).bytes  # which parameters were used, and an overflow
    return sum(sent.modelled_bytes.values()), sum(each.bytes for each in due.values()) + asked


def check_gathered() -> None:
    """Masters and mean gradients of bf16 weights: fp32, whole, in order, without what nobody has used; and their
    bytes. All ranks must call."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    module = Chain("nested", "Linear", seed=0).bfloat16()
    module.blocks.append(Block("nested", "PReLU").bfloat16().requires_grad_(False))
    module.never = nn.Linear(3, 3)
    plain = copy.deepcopy(module)
    model = Zero3(module, bucket_bytes=100)
    masters = {name: p.detach().float() for name, p in plain.named_parameters() if p.requires_grad}
    agree(_same(model.gathered_masters(), masters), "masters are not the weights")
    sums = {name: torch.zeros_like(master) for name, master in masters.items() if "never" not in name}
    for share in range(ranks):
        inputs = [part.bfloat16() for part in batch(share, 2)]
        plain.zero_grad()
        plain.loss(plain(*inputs)).backward()
        for name, p in plain.named_parameters():
            if p.grad is not None:
                sums[name] += p.grad.float()
        if share == rank:
            module.loss(model(*inputs)).backward()
    model.synchronize()
    with measure.traffic() as sent:
        gradients = model.gathered_gradients()
    agree(_same(gradients, {name: total / ranks for name, total in sums.items()}), "gradients are not the mean")
    padded = sum(4 * bucket.part * ranks for bucket in model.buckets if bucket.trains)
    due = predict.all_gather(padded, ranks).bytes
    agree(sum(sent.modelled_bytes.values()) == due, f"{sent.modelled_bytes} were sent, {due} are due")
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0**-12)
    optimizer.step()
    stepped = {name: master - 2.0**-12 * gradients.get(name, 0) for name, master in masters.items()}
    agree(_same(model.gathered_masters(), stepped), "masters are not what the optimizer has")


def _same(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> bool:
    """Names in order, dtypes and shapes; values up to the rounding of a sum of two."""
    return list(ours) == list(theirs) and all(
        ours[name].dtype == torch.float32 and torch.allclose(ours[name], due, atol=1e-6) for name, due in theirs.items()
    )


def kept_while_wrapped(wrap: str) -> tuple[int, int]:
    """The most bytes of weights that are here in a backward pass, and the bound of `Zero3` for them."""
    module = Chain(wrap, "Linear", seed=0)
    unit = sum(p.nbytes for p in module.blocks[0].parameters())
    root = sum(p.nbytes for p in module.parameters()) - 3 * unit
    model = Zero3(module)
    most, result = 0, module.loss(model(*batch(0, 2)))

    def look(_: Any) -> None:
        nonlocal most
        most = max(most, sum(bucket._flat.untyped_storage().nbytes() for bucket in model.buckets))

    for parameter in module.parameters():
        parameter.register_post_accumulate_grad_hook(look)
    result.backward()
    padding = 8 * len(model.buckets)  # of 2 ranks: less than 2 elements in each
    return most, root + 2 * unit + padding


def refusals() -> Iterator[tuple[str, Callable[[], object]]]:
    """What must be refused: a part of what is said → the mistake. All ranks must call each."""

    def stored() -> None:
        module = Chain("dataclass", "Linear", seed=0)
        module.blocks[1].register_forward_hook(lambda *_: 3)  # before `Zero3`'s: as if the unit returned it
        Zero3(module)(*batch(0, 2))

    def unsynchronized(first: bool) -> None:
        module = Chain("dataclass", "Linear", seed=0)
        model = Zero3(module)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for synchronizes in (not first, False):
            module.loss(model(*batch(0, 2))).backward()
            if synchronizes:
                model.synchronize()
            optimizer.step()

    def made_before() -> None:
        module = Chain("dataclass", "Linear", seed=0)
        optimizer = torch.optim.Adam(module.parameters())
        model = Zero3(module)
        module.loss(model(*batch(0, 2))).backward()
        model.synchronize()
        optimizer.step()

    yield "Block has weights to train, but its result (int) has no tensor", stored
    yield "call the wrapper's synchronize() first", lambda: unsynchronized(True)
    yield "call the wrapper's synchronize() first", lambda: unsynchronized(False)
    yield "make the optimizer after the wrapper", made_before


def said() -> list[tuple[str, str]]:
    """What is due, and what was said instead of each of these mistakes."""
    answers = []
    for due, mistake in refusals():
        try:
            mistake()
            answers.append((due, ""))
        except ValueError as refusal:
            answers.append((due, str(refusal)))
    return answers
