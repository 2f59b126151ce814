"""Mixed precision: fp32's weights where there is a copy, right on average where there is none, the right dtypes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from course_lib.model.gpt import GPT, GPTConfig
from course_lib.train.gradients import multiply_gradients
from course_lib.train.optim import SGD, Adam, AdamW, Optimizer
from course_lib.train.precision import LossScaler, MasterWeights, StochasticRounding
from course_lib.train.step import train_step
from tests.mutants.train import precision as mutants
from tests.predict.refused import refused
from tests.train.saved import same, through_a_file

MAKERS: dict[str, Callable[[Any], Optimizer]] = {
    "sgd": lambda p: SGD(p, lr=0.01, momentum=0.9),
    "adamw": lambda p: AdamW(p, lr=0.01),
}


def check_master(kind: type[MasterWeights], dtype: torch.dtype) -> None:
    """20 steps: the copy is the weight of an fp32 run on the same gradients, bit for bit, and the model's weight is the
    copy, rounded. Updates are small, gradients are small and scaled by 2^12."""
    scale, shape = 2.0**12, (5, 7)
    start = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    for make in MAKERS.values():
        narrow, wide = nn.Parameter(start.clone()), nn.Parameter(start.clone())
        optimizer, theirs = kind(make([narrow]), dtype), make([wide])
        for step in range(20):
            scaled = torch.randn(shape, generator=torch.Generator().manual_seed(step)).mul(2.0**-12).to(dtype)
            narrow.grad, wide.grad = scaled, scaled.float() / scale
            multiply_gradients(optimizer, 1 / scale)
            optimizer.step()
            theirs.step()
            master = optimizer.state[narrow]["master"]
            assert master.dtype == torch.float32 and narrow.dtype == dtype
            assert torch.equal(master, wide)
            assert torch.equal(narrow, wide.to(dtype))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_masters_follow_the_fp32_run(dtype):
    check_master(MasterWeights, dtype)


@pytest.mark.parametrize("mutant", mutants.MASTERS)
def test_a_wrong_master_does_not_pass(mutant):
    with pytest.raises(AssertionError):
        for dtype in (torch.bfloat16, torch.float16):
            check_master(mutant, dtype)


def bytes_by_owner(model: nn.Module, optimizer: Optimizer) -> dict[str, float]:
    count = sum(p.numel() for p in model.parameters())
    return {
        "weights": sum(p.untyped_storage().nbytes() for p in model.parameters()) / count,
        "gradients": sum(p.grad.untyped_storage().nbytes() for p in model.parameters() if p.grad is not None) / count,
        "state": optimizer.state_bytes / count,
    }


@pytest.mark.parametrize("wrap", [MasterWeights, StochasticRounding])
def test_a_parameter_that_is_added_later_becomes_narrow_too(wrap):
    """A tied weight is one parameter; a frozen one has no gradient, and stays."""
    first, later = nn.Linear(3, 3), nn.Linear(3, 3)
    later.weight = first.weight
    first.bias.requires_grad_(False)
    optimizer = wrap(SGD(first.parameters(), lr=0.5))
    optimizer.add_param_group({"params": [later.bias], "lr": 1.0})
    before = [parameter.detach().clone() for parameter in (first.bias, later.bias)]
    later(first(torch.zeros(1, 3, dtype=torch.bfloat16))).sum().backward()
    optimizer.step()
    assert {parameter.dtype for parameter in (*first.parameters(), *later.parameters())} == {torch.bfloat16}
    assert torch.equal(first.bias, before[0])
    torch.testing.assert_close(later.bias, before[1] - 1.0, rtol=2**-8, atol=2**-8)


SMALL = GPTConfig(layers=2, width=32, heads=2, vocab_size=32, context=16)


def batch() -> tuple[Tensor, Tensor]:
    sequence = torch.randint(32, (8, 17), generator=torch.Generator().manual_seed(0))
    return sequence[:, :-1], sequence[:, 1:]


def test_bytes_a_parameter():
    for make, expected in (
        (lambda p: Adam(p), {"weights": 4, "gradients": 4, "state": 8}),
        (lambda p: MasterWeights(Adam(p)), {"weights": 2, "gradients": 2, "state": 12}),
        (lambda p: MasterWeights(SGD(p, lr=0.1), torch.float16), {"weights": 2, "gradients": 2, "state": 4}),
        (lambda p: StochasticRounding(Adam(p)), {"weights": 2, "gradients": 2, "state": 8}),
    ):
        model = GPT(SMALL)
        optimizer = make(model.parameters())
        for _ in range(2):
            train_step(model, optimizer, batch())
        assert bytes_by_owner(model, optimizer) == expected


@pytest.mark.parametrize("wrap", [MasterWeights, StochasticRounding])
def test_a_saved_state_goes_on_to_the_bit(wrap):
    model = GPT(SMALL)
    optimizer = wrap(AdamW(model.parameters(), lr=1e-3))
    for _ in range(3):
        train_step(model, optimizer, batch())
    weights, state = through_a_file([model.state_dict(), optimizer.state_dict()])
    other = GPT(SMALL, seed=1)
    restored = wrap(AdamW(other.parameters(), lr=1e-3))
    other.load_state_dict(weights)
    restored.load_state_dict(state)
    for _ in range(3):
        assert train_step(model, optimizer, batch()) == train_step(other, restored, batch())
    assert same(model.parameters(), other.parameters())


@pytest.mark.parametrize("wrap", [MasterWeights, StochasticRounding])
def test_a_schedule_of_the_rule_takes_effect_also_behind_a_load(wrap):
    """PyTorch makes new dicts of the groups when it loads a state."""
    weight = nn.Parameter(torch.ones(2))
    rule = SGD([weight], lr=1.0)
    optimizer = wrap(rule)
    schedule = torch.optim.lr_scheduler.StepLR(rule, 1, gamma=0.5)
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.add_param_group({"params": [late := nn.Parameter(torch.ones(2))]})
    schedule.base_lrs.append(1.0)
    rule.step()  # nothing has a gradient: for the scheduler, which wants a step first
    schedule.step()
    weight.grad = late.grad = torch.ones(2).to(weight.dtype)
    optimizer.step()
    assert weight.tolist() == late.tolist() == [0.5, 0.5]


def test_fp16_with_masters_and_scaler_trains_where_fp16_alone_underflows():
    """Gradients near 2^-30: fp16's smallest number is 2^-24."""

    def train(scaler: LossScaler | None) -> float:
        model = nn.Linear(4, 1, bias=False)
        nn.init.zeros_(model.weight)
        optimizer = MasterWeights(SGD(model.parameters(), lr=2.0**26), torch.float16)
        for _ in range(60):
            optimizer.zero_grad()
            error = model(torch.eye(4, dtype=torch.float16)).float() - 1
            loss = error.square().sum() * 2.0**-28
            (loss if scaler is None else scaler.scale(loss)).backward()
            if scaler is None:
                optimizer.step()
            else:
                scaler.step(optimizer)
                scaler.update()
        return error.abs().max().item()

    assert train(None) == 1.0
    assert train(LossScaler(2.0**16)) < 1e-3


def walk(make: Callable[[nn.Parameter], Optimizer], steps: int = 200) -> Tensor:
    """Weights at 1 that are pushed up by a twentieth of bf16's spacing in each step."""
    weight = nn.Parameter(torch.ones(4000))
    optimizer = make(weight)
    for _ in range(steps):
        weight.grad = torch.full_like(weight, -1.0)
        optimizer.step()
    return weight.detach().float()


def test_small_updates_take_effect_on_average():
    lr, steps = 2.0**-7 / 20, 200
    exact = 1 + lr * steps
    stuck = walk(lambda w: _bf16(SGD([w], lr=lr)), steps)
    by_chance = walk(lambda w: StochasticRounding(SGD([w], lr=lr)), steps)
    assert torch.equal(stuck, torch.ones(4000))
    deviation = 2.0**-7 * (steps * 0.05 * 0.95) ** 0.5
    assert abs(by_chance.mean().item() - exact) < 5 * deviation / 4000**0.5
    assert by_chance.std().item() == pytest.approx(deviation, rel=0.1)


def _bf16(optimizer: Optimizer) -> Optimizer:
    """The weights of an optimizer in bf16, rounded to nearest, without a copy."""
    for parameter in optimizer.param_groups[0]["params"]:
        parameter.data = parameter.data.bfloat16()
    return optimizer


def test_draws_differ_by_seed_step_and_parameter_and_repeat():
    def draws(seed: int) -> list[Tensor]:
        weights = [nn.Parameter(torch.ones(500)) for _ in range(2)]
        optimizer = StochasticRounding(SGD(weights, lr=2.0**-8), seed)
        found = []
        for _ in range(2):
            for weight in weights:
                weight.data.fill_(1.0)
                weight.grad = torch.full_like(weight, -1.0)
            optimizer.step()
            found += [weight.detach().clone() for weight in weights]
        return found

    first, again, other = draws(0), draws(0), draws(1)
    assert same(first, again)
    everything = [*first, *other]
    assert not any(torch.equal(a, b) for i, a in enumerate(everything) for b in everything[:i])


test_other_dtypes_are_refused = refused(
    (lambda: MasterWeights(SGD([nn.Parameter(torch.ones(1))], lr=0.1), torch.float32), "dtype=torch.float32 given"),
)
