"""Checks of lesson 11's turns: the cost of a placement, both halves of ZeRO-Offload, L2L's loop."""

from __future__ import annotations

import itertools
import weakref
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from course_kit.notebook.your_turn import Function
from course_kit.units import Bytes
from course_lib import predict
from course_lib.model import text
from course_lib.model.gpt import GPT, GPTConfig
from course_lib.offload.copy_stream import CopyStream

HELD = {"weights": 2, "gradients": 2, "states": 12}
ASKED = {  # (work, the state that it reads or writes, bytes a parameter)
    ("forward", "weights", 2), ("backward", "weights", 2), ("backward", "gradients", 2), ("update", "gradients", 2),
    ("update", "states", 24), ("update", "weights", 2),
}  # fmt: skip
EXERCISES = (
    min(18 / 2, 128 / 16),
    predict.tokens_for(0.8, 80e12, 32e9, 51.2e9),
    float(predict.offloaded_step(1, 16384, 80e12, 32e9, 204.8e9, gpus=8).efficiency),
)
"""Answers to the three exercises: billion parameters, tokens, the share of the time."""
TINY = GPTConfig(layers=2, width=32, heads=2, vocab_size=256, context=16, norm="rmsnorm", bias=False)
STORIES = text.stories(seed=0)


def check_cost(function: Function) -> None:
    """All sixteen placements, both numbers of each."""
    names = ("weights", "gradients", "states", "update")
    for away in [each for n in range(5) for each in itertools.combinations(names, n)]:
        came, words = function(set(away)), " and ".join(away) or "nothing"
        assert isinstance(came, tuple | list) and len(came) == 2, f"two numbers should come back, but {came!r} came"
        held, crossing = came
        left = sum(n for name, n in HELD.items() if name not in away)
        assert held == left, f"with {words} away, {held} bytes are held: count what did not leave"
        due = sum(n for work, state, n in ASKED if (work in away) is not (state in away))
        assert crossing == due, f"with {words} away, {crossing} bytes cross: follow each arrow from end to end"


class Listening(CopyStream):
    """A copy stream that remembers the targets of its copies, with their values before."""

    def __init__(self, bytes_per_s: float) -> None:
        super().__init__(bytes_per_s)
        self.into: dict[int, Tensor] = {}

    def send(self, source: Tensor, into: Tensor, add: bool = False) -> Any:
        """Send, and remember the target's values."""
        self.into[into.data_ptr()] = into.detach().clone()
        return super().send(source, into, add)


def check_leave(function: Function) -> None:
    """A vector and a matrix: tensors that stay, bytes that cross, precision on arrival, a copy in the background."""
    for shape in ((1000,), (20, 30)):
        weight, master = nn.Parameter(torch.ones(shape, dtype=torch.bfloat16)), nn.Parameter(torch.ones(shape))
        weight.grad = torch.randn(shape).mul(1e-6).bfloat16()  # new: memory may hold the last; tiny: for fp16 too
        due, stream = weight.grad.float(), Listening(bytes_per_s=2 * weight.numel() / 0.1)
        box, master.grad = torch.empty_like(weight.grad), (old := torch.full_like(master, 7.0))
        CopyStream.send(stream, box, box.clone())  # 0.1 s: the gradient queues behind it
        arrives = function(weight, master, stream)
        assert arrives is not None, "the future of the copy should come back, but nothing did"
        assert not arrives.done(), "the future should come back while the copy is under way, but the copy is over"
        assert weight.grad is None, "the card should have let go of weight.grad, but holds it"
        arrives.result()
        assert master.grad is not None and master.grad is not old, "master.grad should hold a new tensor by now"
        assert master.grad.dtype == torch.float32, f"master.grad should be wide, but is {master.grad.dtype}"
        assert torch.equal(master.grad, due), "master.grad should hold the gradient, but has other values"
        assert torch.equal(master, torch.ones(shape)), "the master itself should be as it was, but was changed"
        carried = stream.carried - box.nbytes
        assert carried == 2 * weight.numel(), f"{weight.numel():,} numbers in 16 bits crossed as {int(carried):,} bytes"
        assert master.grad.data_ptr() in stream.into, "what crosses should land in master.grad, but went elsewhere"
        assert not torch.equal(stream.into[master.grad.data_ptr()], due), "the gradient was there before it was sent"


def check_update(function: Function) -> None:
    """Three steps, bit for bit those of masters on one device, while both directions are slow."""
    ours, oracle = (GPT(TINY, dtype=torch.bfloat16) for _ in range(2))
    o, psi = _offloaded(ours), sum(weight.numel() for weight in ours.parameters())
    masters = _masters(oracle)
    adamw, box = torch.optim.AdamW(masters, lr=1e-2, fused=True), torch.zeros(25_000)
    for number in range(3):
        batch = STORIES.batch(seed=0, step=number, rank=0, batch_size=4, context=16)
        ours(*batch).backward()
        before = o.back.carried
        o.back.into.clear()
        o.back.send(box, box.clone())  # 0.1 s: the new weights queue behind it
        with torch.no_grad():
            function(o)
        at_once = [weight.clone() for weight in ours.parameters()]
        o.back.send(torch.zeros(1), torch.zeros(1)).result()  # earlier copies arrive before this one
        crossed = o.back.carried - before - box.nbytes - 4
        o.coming.clear()
        oracle(*batch).backward()
        for weight, master in zip(oracle.parameters(), masters):
            master.grad, weight.grad = weight.grad.float(), None  # pyright: ignore[reportOptionalMemberAccess]
        adamw.step()
        for weight, master in zip(oracle.parameters(), masters):
            weight.data.copy_(master)
        same = all(map(torch.equal, ours.parameters(), oracle.parameters()))
        assert same, f"after step {number} the weights should be those of one device, bit for bit, but are others"
        home = all(map(torch.equal, at_once, oracle.parameters()))
        assert home, f"when update returns from step {number}, some weights are still on their way"
        straight = {weight.data_ptr() for weight in ours.parameters()} <= o.back.into.keys()
        assert straight, f"in step {number} some weights come home by another way than o.back"
        early = any(torch.equal(o.back.into[weight.data_ptr()], weight) for weight in ours.parameters())
        assert not early, f"in step {number} some weights were there before they were sent"
        assert crossed == 2 * psi, f"step {number} sends {crossed / psi:.3g} bytes home for each parameter of 16 bits"


def _masters(model: nn.Module) -> list[nn.Parameter]:
    return [nn.Parameter(weight.detach().float()) for weight in model.parameters()]


def _offloaded(model: nn.Module) -> SimpleNamespace:
    """The attributes of the page's `Offload`, with hooks that send gradients over a slow stream, the last one late."""
    masters = _masters(model)
    adamw = torch.optim.AdamW(masters, lr=1e-2, fused=True)
    out, back = CopyStream(bytes_per_s=1e6), Listening(bytes_per_s=1e6)
    o = SimpleNamespace(weights=list(model.parameters()), masters=masters, coming=[], adamw=adamw, out=out, back=back)

    def leave(master: nn.Parameter, weight: nn.Parameter) -> None:
        gradient, weight.grad = weight.grad, None
        assert gradient is not None
        master.grad = torch.zeros_like(master)
        if len(o.coming) == len(masters) - 1:
            out.send(torch.zeros(25_000), torch.zeros(25_000))  # 0.1 s
        o.coming.append(out.send(gradient, master.grad))

    for weight, master in zip(o.weights, masters):
        weight.register_post_accumulate_grad_hook(lambda weight, master=master: leave(master, weight))
    return o


class Shelf:
    """Units (square matrices) far away, read one at a time.

    Attributes:
        fetched: the numbers of the units that were read, in order.
        read_bytes: bytes of all these reads.
    """

    def __init__(self, units: int, width: int, dtype: torch.dtype = torch.float32) -> None:
        self.kept = [torch.randn(width, width, dtype=dtype) / width**0.5 for _ in range(units)]
        self.fetched: list[int] = []
        self.read_bytes, self._alive = Bytes(0), list[weakref.ref[Tensor]]()

    def fetch(self, number: int) -> nn.Linear:
        """Read a unit; refuse while the one before is in memory."""
        others = sum(each() is not None for each in self._alive)
        assert not others, f"unit {number} is fetched, and still in memory: {others} before it; a name holds on"
        unit = nn.Linear(*self.kept[number].shape, bias=False, device="meta")
        unit.weight = nn.Parameter(self.kept[number].clone(), requires_grad=False)  # else a graph would keep the weight
        self.fetched.append(number)
        self.read_bytes += unit.weight.nbytes
        self._alive.append(weakref.ref(unit.weight))
        return unit


def check_layer_by_layer(function: Function) -> None:
    """Two towers: values, the number of times each unit is fetched, and units in memory at a time."""
    for count, parts in ((3, 4), (5, 1)):
        torch.manual_seed(count)
        shelf, given = Shelf(count, 6), [torch.randn(2, 6) for _ in range(parts)]
        before, came = [x.clone() for x in given], function(shelf.fetch, count, given)
        whole = isinstance(came, list | tuple) and len(came) == parts
        assert whole, f"{parts} micro-batches should come back, but {came!r} came"
        kept = len(given) == parts and all(map(torch.equal, given, before))
        assert kept, "the list of inputs should be as it was, but was changed"
        tower = torch.linalg.multi_dot([weight.T for weight in shelf.kept])
        same = all(torch.allclose(x @ tower, y, atol=1e-5) for x, y in zip(before, came))
        assert same, f"with {count} units the outputs should be those of the whole tower, but are others"
        assert len(shelf.fetched) == count, (
            f"for {parts} micro-batches {count} units were fetched {len(shelf.fetched)} times: who waits for whom"
        )
