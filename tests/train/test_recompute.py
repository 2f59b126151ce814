"""Recompute: the same gradients to the bit, and the bytes and the FLOPs that the formulas say."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from course_lib.model.gpt import GPT, Attention, Block, GPTConfig
from course_lib.train.recompute import RecomputedLayers, recompute, recompute_only, segments
from tests.mutants.train import recompute as mutants
from tests.train.saved import SavedBytes, gradients, same

LAYERS, BATCH, WIDTH = 16, 8, 32
X_BYTES = BATCH * WIDTH * 4
LAYER_FLOPS = 2 * BATCH * WIDTH * 4 * WIDTH * 2  # two matrices, a multiply-add counts as two


class Layer(nn.Module):
    """Two matrices with a tanh and dropout between them. It saves its input (X bytes), tanh's result (4X), dropout's
    mask (4X: on a CPU it is a tensor of floats) and the dropped result (4X), which the second matrix multiplies."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.3)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.dropout(self.up(x).tanh()))


INNER_BYTES = (4 + 4 + 4) * X_BYTES


def chain() -> nn.ModuleList:
    return nn.ModuleList(Layer(seed) for seed in range(LAYERS))


def an_input(requires_grad: bool = False) -> Tensor:
    return torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(1)).requires_grad_(requires_grad)


def plain(layers: nn.ModuleList, x: Tensor) -> Tensor:
    for layer in layers:
        x = layer(x)
    return x


def outcome(run: Callable[[], Tensor], module: nn.Module, *inputs: Tensor) -> tuple[list[Tensor], Tensor]:
    """Result and all gradients, and the random numbers that the rest of the program would see."""
    torch.manual_seed(7)
    result = run()
    result.square().sum().backward()
    found = [result.detach(), *gradients(module), *(x.grad.clone() for x in inputs if x.grad is not None)]
    for x in inputs:
        x.grad = None
    return found, torch.get_rng_state()


def check_same(ours: Callable[[], Tensor], theirs: Callable[[], Tensor], module: nn.Module, *inputs: Tensor) -> None:
    """Result, gradients and the random numbers behind the step, bit for bit."""
    (found, random_after), (expected, expected_random) = (outcome(run, module, *inputs) for run in (ours, theirs))
    assert same(found, expected)
    assert torch.equal(random_after, expected_random)


# The checks, for the library and for the known-wrong versions ------------------------------------------------------


def check_gradients(recompute: Callable[..., Any]) -> None:
    """Dropout included, bit for bit; and the random numbers after the step are those of a plain step."""
    layers, x = nn.ModuleList([Layer(0), Layer(1)]), an_input(requires_grad=True)
    check_same(lambda: recompute(layers[1], recompute(layers[0], x)), lambda: plain(layers, x), layers, x)


def check_parameters_get_gradients(recompute: Callable[..., Any]) -> None:
    """No argument requires a gradient, as in the first layer of a network; the parameters inside do."""
    layer, x = Layer(0), an_input()
    theirs, _ = outcome(lambda: layer(x), layer)
    torch.manual_seed(7)
    result = recompute(lambda: layer(x))
    assert result.requires_grad
    result.square().sum().backward()
    assert same([result.detach(), *gradients(layer)], theirs)


def check_autocast(recompute: Callable[..., Any]) -> None:
    """The second run casts as the first one did, although the backward pass runs outside of autocast."""
    layer, x = Layer(0), an_input(requires_grad=True)

    def run(call: Callable[..., Any]) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return call(layer, x).float()

    check_same(lambda: run(recompute), lambda: run(lambda fn, x: fn(x)), layer, x)


def check_bytes_and_flops(recompute: Callable[..., Any], every: int) -> None:
    """What is held between the passes, what is held at the peak, and one forward pass more."""
    layers, x = chain(), an_input()
    with SavedBytes(layers.parameters()) as saved, FlopCounterMode(display=False) as flops:
        for segment in segments(layers, every):
            x = recompute(segment, x)
        boundaries = -(-LAYERS // every)
        assert saved.now == boundaries * X_BYTES
        saved.peak = 0
        assert flops.get_total_flops() == LAYERS * LAYER_FLOPS
        x.sum().backward()
    last = LAYERS - (boundaries - 1) * every  # layers of the last segment, the first to run again
    # A segment of K layers saves K inputs, of which the first is the boundary that is held already. A short last
    # segment is gone, with its boundary, before the first full one runs again.
    peaks = [boundaries * X_BYTES + last * INNER_BYTES + (last - 1) * X_BYTES]
    if boundaries > 1:
        peaks.append((boundaries - 1) * X_BYTES + every * INNER_BYTES + (every - 1) * X_BYTES)
    assert saved.peak == max(peaks)
    assert saved.now == 0
    backward = 2 * LAYERS * LAYER_FLOPS - LAYER_FLOPS // 2  # the first matrix's input needs no gradient
    assert flops.get_total_flops() == 2 * LAYERS * LAYER_FLOPS + backward


def check_all(recompute: Callable[..., Any]) -> None:
    check_gradients(recompute)
    check_parameters_get_gradients(recompute)
    check_autocast(recompute)
    for every in (1, 5, 16):
        check_bytes_and_flops(recompute, every)


def test_the_library_passes_the_checks():
    check_all(recompute)


@pytest.mark.parametrize("mutant", mutants.ALL, ids=lambda fn: fn.__name__)
def test_a_wrong_version_does_not_pass(mutant):
    with pytest.raises(AssertionError):
        check_all(mutant)


# Bytes and FLOPs ---------------------------------------------------------------------------------------------------


def test_the_plain_chain_saves_what_the_formula_adds_up():
    layers = chain()
    with SavedBytes(layers.parameters()) as saved:
        result = plain(layers, an_input())
        assert saved.now == LAYERS * (X_BYTES + INNER_BYTES)
        del result
    assert saved.now == 0


@pytest.mark.parametrize("every", range(1, LAYERS + 1))
def test_bytes_flops_and_gradients_for_every_k(every):
    check_bytes_and_flops(recompute, every)
    layers, x = chain(), an_input(requires_grad=True)
    check_same(lambda: plain(RecomputedLayers(layers, every), x), lambda: plain(layers, x), layers, x)


class Masked(nn.Module):
    """A layer with arguments of several kinds: a mask and a position that needs a gradient."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.layer = Layer(seed)

    def forward(self, hidden: Tensor, position: Tensor, *, mask: Tensor | None = None, scale: float = 1.0) -> Tensor:
        y = self.layer(hidden + position) * scale
        return y if mask is None else y * mask


def masked(layers: nn.ModuleList, x: Tensor, position: Tensor, part: slice = slice(None)) -> Tensor:
    for layer in layers[part]:  # type: ignore[union-attr]
        x = layer(x, position, mask=torch.arange(WIDTH) % 3 > 0, scale=1.5)
    return x


@pytest.mark.parametrize("every", [1, 3, 4])
@pytest.mark.parametrize("part", [slice(None), slice(5), slice(2, -1, 2)], ids=str)
def test_slices_and_further_arguments(every, part):
    layers, x, position = nn.ModuleList(map(Masked, range(8))), an_input(True), an_input().cos().requires_grad_()
    recomputed = RecomputedLayers(layers, every)
    ours, random_after = outcome(lambda: masked(recomputed, x, position, part), layers, x, position)
    theirs, expected_random = outcome(lambda: masked(layers, x, position, part), layers, x, position)
    assert same(ours[:-1], theirs[:-1])
    torch.testing.assert_close(ours[-1], theirs[-1])  # the position's: summands of several layers, in another order
    assert torch.equal(random_after, expected_random)
    ours_sliced, theirs_sliced = recomputed[part], layers[part]
    assert isinstance(theirs_sliced, nn.ModuleList) and len(ours_sliced) == len(theirs_sliced)
    assert ours_sliced[0] is theirs_sliced[0] and list(ours_sliced.state_dict()) == list(theirs_sliced.state_dict())


def test_a_slice_keeps_as_little_as_the_whole():
    with SavedBytes((layers := chain()).parameters()) as saved:
        result = plain(RecomputedLayers(layers, 2)[:8], an_input())
    assert saved.now == 4 * X_BYTES
    del result


def test_a_segment_of_one_layer_takes_all_arguments_by_name():
    layers, x, position = nn.ModuleList(map(Masked, range(2))), an_input(True), an_input()

    def named(layers: nn.ModuleList) -> Tensor:
        hidden = x
        for layer in layers:
            hidden = layer(hidden=hidden, position=position)
        return hidden

    check_same(lambda: named(RecomputedLayers(layers, 1)), lambda: named(layers), layers, x)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "best", "least"),
    [
        (Layer, 1, None),  # it saves 13 times its input: sqrt(16 / 13) = 1.1
        (lambda _: nn.Linear(WIDTH, WIDTH), 4, 7),  # its input alone: 4 boundaries, and 3 inputs inside the segment
    ],
)
def test_the_peak_is_least_near_the_root_of_the_depth_over_what_a_layer_saves(make, best, least):
    peaks = {}
    for every in range(1, LAYERS + 1):
        layers = nn.ModuleList(map(make, range(LAYERS)))
        with SavedBytes(layers.parameters()) as saved:
            plain(RecomputedLayers(layers, every), an_input()).sum().backward()
        peaks[every] = saved.peak
    assert peaks[best] == min(peaks.values()) and peaks[LAYERS] == max(peaks.values())
    assert least is None or peaks[best] == least * X_BYTES


CONFIG = GPTConfig(layers=4, width=32, heads=4, vocab_size=50, context=16, dropout=0.1)


def tokens() -> tuple[Tensor, Tensor]:
    draw = torch.randint(50, (2, 3, 16), generator=torch.Generator().manual_seed(2))
    return draw[0], draw[1]


def gpt_outcome(prepare: Callable[[GPT], object]) -> tuple[list[Tensor], int]:
    """Loss and gradients, and the bytes held after the forward pass, which tests/predict/test_meter.py foretells."""
    model = GPT(CONFIG)
    names = [name for name, _ in model.named_parameters()]
    prepare(model)
    assert [name for name, _ in model.named_parameters()] == names
    torch.manual_seed(3)
    with SavedBytes(model.parameters()) as saved:
        loss = model(*tokens())
        held = saved.now
        loss.backward()
    return [loss.detach(), *gradients(model)], held


def every_k(every: int) -> Callable[[GPT], None]:
    def prepare(model: GPT) -> None:
        model.blocks = RecomputedLayers(model.blocks, every)
        assert isinstance(model.blocks[1], Block) and len(model.blocks) == 4
        assert repr(model.blocks).count("Attention(") == 4 and "partial" not in repr(model.blocks)

    return prepare


@pytest.mark.parametrize(
    "prepare",
    [
        lambda model: recompute_only(model, Attention, "explicit"),
        lambda model: recompute_only(model, Attention),
        lambda model: recompute_only(model, Block),
        *map(every_k, (1, 2, 3, 4)),
    ],
    ids=["scores", "attention", "blocks", *(f"every={every}" for every in (1, 2, 3, 4))],
)
def test_a_gpt_keeps_less_for_the_same_gradients(prepare):
    theirs, all_bytes = gpt_outcome(lambda model: model)
    ours, held = gpt_outcome(prepare)
    assert same(ours, theirs) and held < all_bytes


def test_a_prepared_model_can_be_copied():
    model = recompute_only(GPT(CONFIG), Block)
    twin = copy.deepcopy(model)
    twin(*tokens()).backward()
    assert all(p.grad is None for p in model.parameters()) and all(p.grad is not None for p in twin.parameters())


def test_as_pytorch_does():
    layers, x = chain(), an_input(requires_grad=True)

    def theirs() -> Tensor:
        y = x
        for segment in segments(layers, 4):
            y = checkpoint(segment, y, use_reentrant=False)  # type: ignore[assignment]
        return y

    assert same(outcome(lambda: plain(RecomputedLayers(layers, 4), x), layers, x)[0], outcome(theirs, layers, x)[0])
