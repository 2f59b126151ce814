"""Models whose units take and return what a pytree does not know: structures, objects, results from the middle."""

import dataclasses
from collections import UserDict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

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
        wrap, unwrap = WRAPS[self.wrap]
        hidden = wrap(self.first(x))
        for block in self.blocks:
            hidden = block(hidden)
        return wrap((self.head(unwrap(hidden)) - target).square().mean())

    def unwrap(self, result: Any) -> Tensor:
        return WRAPS[self.wrap][1](result)


def batch(step: int, size: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets."""
    both = torch.randn(2, size, 3, WIDTH, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
    return both[0], both[1, ..., :1]


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

    def __init__(self, needs: bool, seed: int) -> None:
        super().__init__("object that holds itself", "Linear", seed)
        self.blocks, self.needs = nn.ModuleList([Remembering() for _ in range(4)]).double(), needs

    def forward(self, x: Tensor, target: Tensor) -> SimpleNamespace:
        first = self.first(x)
        state = SimpleNamespace(x=first, kept=[], given=torch.sin(first))
        for block in self.blocks:
            state = block(state)
        loss = (self.head(state.x + state.given) - target).square().mean()
        return SimpleNamespace(hidden=loss + state.kept[2].mean() if self.needs else loss, state=state)


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
