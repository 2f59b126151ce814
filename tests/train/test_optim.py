"""Optimizers: PyTorch's numbers at every step, the bytes that the table says, and a state that survives."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from course_lib.model.gpt import GPT, GPTConfig
from course_lib.train import optim
from course_lib.train.gradients import multiply_gradients
from course_lib.train.optim import SGD, Adafactor, Adam, Adam8bit, AdamW, Optimizer, pack_blocks, unpack_blocks
from course_lib.train.step import train_step
from tests.mutants.train import optim as mutants
from tests.predict.refused import refused
from tests.train.saved import same, through_a_file

STEPS = 20
PAIRS = {
    "sgd": (lambda p, kinds: kinds.SGD(p, lr=0.1), "SGD", 0.0),
    "sgd, decay": (lambda p, kinds: kinds.SGD(p, lr=0.1, weight_decay=0.01), "SGD", 0.0),
    "momentum": (lambda p, kinds: kinds.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01), "SGD", 0.0),
    "adam": (lambda p, kinds: kinds.Adam(p, lr=0.01), "Adam", 0.0),
    "adam, decay": (lambda p, kinds: kinds.Adam(p, lr=0.01, betas=(0.8, 0.95), weight_decay=0.1), "Adam", 0.0),
    "adamw": (lambda p, kinds: kinds.AdamW(p, lr=0.01), "AdamW", 0.0),
    "adafactor": (lambda p, kinds: kinds.Adafactor(p, lr=0.02), "Adafactor", 1e-13),
    "adafactor, decay": (lambda p, kinds: kinds.Adafactor(p, lr=1.0, d=2.0, weight_decay=0.1), "Adafactor", 1e-13),
}
"""name → (made from a module that has the classes, the class, largest relative difference). Zero where the operations
are the same; Adafactor's means are sums of a few dozen squares taken in another order: some 10 roundings of 2e-16."""


class Parameters(nn.Module):
    """Shapes that matter: a matrix, a vector, a scalar, a stack of matrices, and one that never gets a gradient."""

    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(0)
        shapes = {"matrix": (6, 10), "vector": (7,), "scalar": (), "stack": (3, 4, 5), "unused": (2,)}
        for name, shape in shapes.items():
            weight = torch.randn(shape, generator=draw, dtype=torch.float64).to(dtype)
            self.register_parameter(name, nn.Parameter(weight))

    def fill_gradients(self, step: int) -> None:
        """Gradients of very different sizes; the matrix sits out step 3."""
        draw = torch.Generator().manual_seed(100 + step)
        for name, parameter in self.named_parameters():
            gradient = torch.randn(parameter.shape, generator=draw, dtype=torch.float64) * 10.0 ** (step % 5 - 3)
            skipped = name == "unused" or (name == "matrix" and step == 3)
            parameter.grad = None if skipped else gradient.to(parameter.dtype)


def check_equals_torch(make: Callable[[Any, Any], Any], tolerance: float, kinds: Any = optim) -> None:
    """Every weight after each of 20 steps."""
    ours, theirs = Parameters(), Parameters()
    our_optimizer, their_optimizer = make(ours.parameters(), kinds), make(theirs.parameters(), torch.optim)
    for step in range(STEPS):
        for module, optimizer in ((ours, our_optimizer), (theirs, their_optimizer)):
            module.fill_gradients(step)
            optimizer.step()
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", PAIRS)
def test_every_step_equals_torch(name):
    make, _, tolerance = PAIRS[name]
    check_equals_torch(make, tolerance)


@pytest.mark.parametrize(("class_name", "mutant"), mutants.WRONG_NUMBERS, ids=mutants.name_of)
def test_a_wrong_version_does_not_pass(class_name, mutant):
    kinds = type("kinds", (), {class_name: mutant})
    with pytest.raises(AssertionError):
        for make, known_class, tolerance in PAIRS.values():
            if known_class == class_name:
                check_equals_torch(make, tolerance, kinds)


def test_adam_is_blind_to_a_constant_factor_and_sgd_is_not():
    def weights(kind: type[Optimizer], factor: float) -> Tensor:
        module = Parameters()
        optimizer = kind(module.parameters(), lr=0.01)  # type: ignore[call-arg]
        for step in range(STEPS):
            module.fill_gradients(step)
            multiply_gradients(optimizer, factor)
            optimizer.step()
        return module.matrix.detach()  # type: ignore[union-attr]

    torch.testing.assert_close(weights(Adam, 8), weights(Adam, 1), rtol=1e-4, atol=1e-4)
    assert not torch.allclose(weights(SGD, 8), weights(SGD, 1), rtol=1e-2)


# Bytes -------------------------------------------------------------------------------------------------------------

ROWS, COLUMNS, LENGTH = 48, 100, 300


@pytest.mark.parametrize(
    ("make", "matrix_bytes", "vector_bytes"),
    [
        (lambda p: SGD(p, lr=0.1), 0, 0),
        (lambda p: SGD(p, lr=0.1, momentum=0.9), 4 * ROWS * COLUMNS, 4 * LENGTH),
        (Adam, 8 * ROWS * COLUMNS, 8 * LENGTH),
        (AdamW, 8 * ROWS * COLUMNS, 8 * LENGTH),
        (Adafactor, 4 * (ROWS + COLUMNS), 4 * LENGTH),
        (Adam8bit, 2 * ROWS * COLUMNS + 8 * math.ceil(ROWS * COLUMNS / 256), 2 * LENGTH + 8 * 2),
        (lambda p: Adam8bit(p, block_size=64), 2 * ROWS * COLUMNS + 8 * ROWS * COLUMNS // 64, 2 * LENGTH + 8 * 5),
    ],
    ids=["SGD", "momentum", "Adam", "AdamW", "Adafactor", "Adam8bit", "Adam8bit, 64"],
)
def test_state_bytes_are_those_of_the_table(make, matrix_bytes, vector_bytes):
    check_state_bytes(make, (ROWS, COLUMNS), matrix_bytes)
    check_state_bytes(make, (LENGTH,), vector_bytes)


def check_state_bytes(make: Callable[[Any], Optimizer], shape: tuple[int, ...], expected: int) -> None:
    """Nothing before the first step, and after it no more and no less than expected."""
    weight = nn.Parameter(torch.randn(shape))
    optimizer = make([weight])
    assert optimizer.state_bytes == 0
    for _ in range(2):
        weight.grad = torch.randn(shape)
        optimizer.step()
        assert optimizer.state_bytes == expected


@pytest.mark.parametrize(("make", "expected"), mutants.WRONG_BYTES, ids=mutants.name_of)
def test_a_version_that_keeps_too_much_does_not_pass(make, expected):
    with pytest.raises(AssertionError):
        check_state_bytes(make, (ROWS, COLUMNS), expected(ROWS, COLUMNS))


def test_adams_bytes_are_torchs_own():
    ours, theirs = Parameters(), Parameters()
    optimizers = Adam(ours.parameters()), torch.optim.Adam(theirs.parameters())
    for module, optimizer in zip((ours, theirs), optimizers, strict=True):
        module.fill_gradients(0)
        optimizer.step()
    states = optimizers[1].state.values()
    their_bytes = sum(t.untyped_storage().nbytes() for state in states for name, t in state.items() if name != "step")
    assert optimizers[0].state_bytes == their_bytes  # torch's step is a tensor too: 4 bytes a parameter


# State -------------------------------------------------------------------------------------------------------------

MAKERS = {
    "momentum": lambda p: SGD(p, lr=0.1, momentum=0.9),
    "AdamW": lambda p: AdamW(p, lr=0.01),
    "Adafactor": lambda p: Adafactor(p),
    "Adam8bit": lambda p: Adam8bit(p, lr=0.01, block_size=16),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", MAKERS)
def test_a_saved_state_goes_on_as_if_nothing_had_happened(name, dtype):
    module = Parameters(dtype)
    optimizer = MAKERS[name](module.parameters())
    for step in range(5):
        module.fill_gradients(step)
        optimizer.step()
    weights, state = through_a_file([module.state_dict(), optimizer.state_dict()])
    other = Parameters(dtype)
    other.load_state_dict(weights)
    restored = MAKERS[name](other.parameters())
    if name == "Adam8bit":
        restored = Adam8bit(other.parameters(), block_size=64)  # the block size comes back with the state
    restored.load_state_dict(state)
    for step in range(5, 10):
        for m, o in ((module, optimizer), (other, restored)):
            m.fill_gradients(step)
            o.step()
    assert same(module.parameters(), other.parameters())
    kept = [[t.dtype for t in s.values() if isinstance(t, Tensor)] for s in optimizer.state.values()]
    assert kept == [[t.dtype for t in s.values() if isinstance(t, Tensor)] for s in restored.state.values()]


def test_a_scheduler_and_a_closure_work():
    weight = nn.Parameter(torch.ones(2))
    optimizer = SGD([weight], lr=1.0)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = weight.sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 2.0
    schedule.step()
    optimizer.step(closure)
    assert weight.tolist() == [-0.5, -0.5]


# 8 bits ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 15, 16, 17, 40])
def test_blocks_lose_at_most_half_a_point(count):
    x = torch.randn(count) * 10.0 ** torch.randint(-6, 3, (count,))
    points, scales = pack_blocks(x, 16)
    assert points.dtype == torch.int8 and len(points) == count and len(scales) == math.ceil(count / 16)
    back = unpack_blocks(points, scales, x, 16)
    half_a_point = scales.repeat_interleave(16)[:count] / 2
    assert bool(((back - x).abs() <= half_a_point * (1 + 1e-6)).all())


def test_an_outlier_costs_only_its_own_block():
    x = torch.randn(64)
    x[0] = 1e6
    error = (unpack_blocks(*pack_blocks(x, 16), x, 16) - x).abs()
    assert bool((error[:16] > 0.1).any()) and bool((error[16:] < 0.02).all())


def test_a_tiny_variance_does_not_become_zero():
    """In one block, one weight has large gradients and the others small ones; after the large one is gone, the root of
    the small ones' variance would round to 0, and their steps would be mean / eps."""
    weights = {kind: nn.Parameter(torch.zeros(16)) for kind in (AdamW, Adam8bit)}
    largest = {}
    for kind, weight in weights.items():
        optimizer = kind([weight], lr=0.01, weight_decay=0.0)
        for step in range(200):
            weight.grad = torch.full((16,), 1e-4)
            weight.grad[0] = 1.0 if step == 0 else 0.0
            optimizer.step()
        largest[kind] = weight.detach()[1:].abs().max().item()
    assert 0 < largest[Adam8bit] <= largest[AdamW]


def test_a_weight_without_a_gradient_keeps_a_variance_of_0():
    """Half of a block has no gradient in the first step, as rows of a table have whose tokens did not occur."""
    weight = nn.Parameter(torch.zeros(256))
    optimizer = Adam8bit([weight], lr=0.01, weight_decay=0)
    weight.grad = torch.zeros(256).index_fill(0, torch.arange(128), 1e-3)
    optimizer.step()
    assert not optimizer.state[weight]["exp_avg_root"][128:].any()
    assert optimizer.state[weight]["exp_avg_root"][:128].all()
    for _ in range(20):
        weight.grad = torch.full((256,), 1e-3)
        optimizer.step()
    assert weight[200].item() < -0.1  # AdamW: -0.19


@pytest.mark.nightly  # its steps, blocks and bytes are held one by one above
def test_adam8bit_trains_as_well_as_adamw():
    config = GPTConfig(layers=2, width=32, heads=2, vocab_size=32, context=16)
    draw = torch.Generator().manual_seed(0)
    sequence = torch.randint(32, (8, 17), generator=draw)
    losses = {}
    for kind in (AdamW, Adam8bit):
        model = GPT(config)
        optimizer = kind(model.parameters(), lr=3e-3)
        losses[kind] = [train_step(model, optimizer, (sequence[:, :-1], sequence[:, 1:])).item() for _ in range(60)]
    assert losses[AdamW][0] > 3.4 and losses[AdamW][-1] < 1.0
    assert abs(losses[Adam8bit][-1] - losses[AdamW][-1]) < 0.1


test_mistakes_are_explained = refused(
    (lambda: SGD(Parameters().parameters(), lr=-1.0), "lr=-1.0 given"),
    (
        lambda: SGD(Parameters().parameters(), lr=1.0, momentum=1.0),
        "momentum=1.0 given; it must be at least 0 and less than 1",
    ),
    (lambda: Adam(Parameters().parameters(), betas=(0.9, 1.0)), "beta2=1.0 given"),
    (lambda: Adam8bit(Parameters().parameters(), block_size=0), "block_size=0 given"),
    (lambda: Adam([nn.Parameter(torch.ones(2, dtype=torch.complex64))]), "a complex parameter given"),
)
