"""Units of ZeRO-3 that return dataclasses, mappings and objects; several results; and what must be refused.

The same models in files: one process's wrapper has to find the same tensors.
"""

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_kit import measure
from course_lib import predict
from course_lib.offload.disk import Disk
from course_lib.offload.on_disk import DiskOffloadedModel
from course_lib.parallel.layerwise import find_tensors
from course_lib.parallel.zero3 import Zero3
from tests.offload.beside import ADAMW, Beside
from tests.parallel.judging import agree, on_ranks, refused
from tests.parallel.parity import parity
from tests.parallel.sides import Sharded
from tests.parallel.unit_results import (
    LAST,
    WRAPS,
    Block,
    Cached,
    Chain,
    Mapped,
    Result,
    Seq2Seq,
    Slotted,
    Towers,
    batch,
)


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


@on_ranks(3, diagnose=False)
def test_masters_and_gradients_can_be_gathered() -> None:
    """Masters and mean gradients of bf16 weights: fp32, whole, in order, without what nobody has used; and their
    bytes."""
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
        plain.unwrap(plain(*inputs)).backward()
        for name, p in plain.named_parameters():
            if p.grad is not None:
                sums[name] += p.grad.float()
        if share == rank:
            module.unwrap(model(*inputs)).backward()
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
    most, result = 0, module.unwrap(model(*batch(0, 2)))

    def look(_: Any) -> None:
        nonlocal most
        most = max(most, sum(bucket._flat.untyped_storage().nbytes() for bucket in model.buckets))

    for parameter in module.parameters():
        parameter.register_post_accumulate_grad_hook(look)
    result.backward()
    padding = 8 * len(model.buckets)  # of 2 ranks: less than 2 elements in each
    return most, root + 2 * unit + padding


CASES = [(wrap, last) for wrap in WRAPS for last in LAST]
SOME = [(wrap, list(LAST)[number % len(LAST)]) for number, wrap in enumerate(WRAPS)]
"""Each way to wrap, and each last operation."""


@dataclasses.dataclass(frozen=True)
class Made:
    """A problem of `parity`."""

    kind: Callable[..., Any]
    args: tuple[Any, ...]

    def __call__(self, seed: int) -> tuple[nn.Module, Callable[[int], tuple[Tensor, Tensor]]]:
        return self.kind(*self.args, seed), lambda step: batch(step, 2 * dist.get_world_size())


@pytest.mark.parametrize("cases", [SOME, pytest.param(CASES, marks=pytest.mark.nightly)], ids=["some", "all"])
@on_ranks(2, diagnose=False)
def test_every_step_equals_one_process_whatever_units_return(cases: list[tuple[str, str]]) -> None:
    """Each of both with both optimizers, and with prefetch or without."""
    for number, case in enumerate(cases):
        optimizer, prefetch = ("sgd", "adam")[number % 2], number % 2 == 0
        parity(Sharded, Zero3, Made(Chain, case), optimizer, bucket_bytes=2**20, prefetch=prefetch)


@pytest.mark.parametrize(
    "wrap", [pytest.param(wrap, marks=() if wrap in ("dataclass", "nested") else pytest.mark.nightly) for wrap in WRAPS]
)
@on_ranks(2, diagnose=False)
def test_a_unit_goes_when_its_backward_pass_is_over(wrap: str) -> None:
    held, most = kept_while_wrapped(wrap)
    assert held <= most


@on_ranks(2, diagnose=False)
def test_no_unit_is_gathered_again() -> None:
    """A root may have several results, and a stack that is defined last may run first."""
    encodes = bytes_of(Seq2Seq(), lambda model: model(torch.randn(2, 64))["loss"])
    towers = bytes_of(Towers(), lambda model: model(torch.randn(2, 64)))
    for sent, due in (encodes, towers):
        assert sent == due


@on_ranks(2, diagnose=False)
def test_results_from_the_middle_of_units() -> None:
    """Every step equals that of one process, and no unit is gathered once too often."""
    for needs in (False, True):
        parity(Sharded, Zero3, Made(Cached, (needs,)), "adam", bucket_bytes=2**20)
    sent, due = bytes_of(Cached(False, 0).float(), lambda model: model(*(p.float() for p in batch(0, 2))).hidden)
    agree(0 <= sent - due <= 8 * 3 * 5, f"{sent} bytes were sent, {due} and padding are due")


def chain() -> tuple[Any, Zero3]:
    module = Chain("dataclass", "Linear", seed=0)
    return module, Zero3(module)


def stored() -> None:
    module = Chain("dataclass", "Linear", seed=0)
    module.blocks[1].register_forward_hook(lambda *_: 3)  # before `Zero3`'s: as if the unit returned it
    Zero3(module)(*batch(0, 2))


def unsynchronized(first: bool) -> None:
    module, model = chain()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for synchronizes in (not first, False):
        module.unwrap(model(*batch(0, 2))).backward()
        if synchronizes:
            model.synchronize()
        optimizer.step()


def made_before() -> None:
    module = Chain("dataclass", "Linear", seed=0)
    optimizer = torch.optim.Adam(module.parameters())
    model = Zero3(module)
    module.unwrap(model(*batch(0, 2))).backward()
    model.synchronize()
    optimizer.step()


def test_mistakes_are_told() -> None:
    mistakes: list[tuple[Callable[[], object], str]] = [
        (stored, r"Block has weights to train, but its result \(int\) has no tensor"),
        (lambda: unsynchronized(True), r"call the wrapper's synchronize\(\) first"),
        (lambda: unsynchronized(False), r"call the wrapper's synchronize\(\) first"),
        (made_before, "make the optimizer after the wrapper"),
    ]
    assert refused(2, mistakes) == []


MADE = [(Chain, case) for case in CASES] + [(Cached, (True,)), (Cached, (False,))]


@pytest.mark.parametrize(
    ("kind", "args"),
    [pytest.param(k, a, marks=() if k is Cached or a in SOME else pytest.mark.nightly, id=str(a)) for k, a in MADE],
)
def test_a_model_in_files_takes_the_steps_of_adamw(
    tmp_path: Any, kind: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    def wrap(inside: Any) -> Any:
        model = DiskOffloadedModel(inside, Disk(tmp_path), **ADAMW)
        return lambda *given: inside.unwrap(model(*given)), model, model.whole_state_dict

    chain = kind(*args, 0).float()
    both = Beside(chain, wrap, loss_of=chain.unwrap)
    for step in range(2):
        both.step([part.float() for part in batch(step, 2)])


def test_every_tensor_is_found_once_and_weights_are_left_alone() -> None:
    x, y, z = torch.ones(3)
    whole = Result([x, {"y": Slotted((y, Mapped(x=x, z={1, z})))}])
    assert {id(each) for each in find_tensors(whole)} == {id(x), id(y), id(z)}
    assert len(find_tensors(whole)) == 3
    assert find_tensors([nn.Linear(1, 1), "x", 1.0, None, torch.nn, find_tensors, Tensor]) == []
