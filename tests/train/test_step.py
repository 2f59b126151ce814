"""The oracle's own step: the textbook's formula, no gradient that leaks, no graph that stays, and it learns."""

import math

import torch

from course_lib.model import text
from course_lib.model.gpt import GPT, GPTConfig
from course_lib.train.step import train_step

CONFIG = GPTConfig(layers=2, width=16, heads=2, vocab_size=256, context=16)
BATCH = text.stories(0).batch(seed=0, step=0, rank=0, batch_size=4, context=16)


def test_sgd_step_is_the_textbook_formula() -> None:
    model, reference = GPT(CONFIG, dtype=torch.float64), GPT(CONFIG, dtype=torch.float64)
    expected = reference(*BATCH)
    gradients = torch.autograd.grad(expected, list(reference.parameters()))

    loss = train_step(model, torch.optim.SGD(model.parameters(), lr=0.1), BATCH)

    assert loss == expected.detach()
    for new, old, gradient in zip(model.parameters(), reference.parameters(), gradients, strict=True):
        torch.testing.assert_close(new, old - 0.1 * gradient)


def test_gradients_of_the_last_step_do_not_leak_into_the_next() -> None:
    model, fresh = GPT(CONFIG), GPT(CONFIG)
    still = torch.optim.SGD(model.parameters(), lr=0.0)
    for _ in range(3):
        train_step(model, still, BATCH)
    train_step(fresh, torch.optim.SGD(fresh.parameters(), lr=0.0), BATCH)
    for a, b in zip(model.parameters(), fresh.parameters(), strict=True):
        assert a.grad is not None and b.grad is not None and torch.equal(a.grad, b.grad)


def test_the_loss_does_not_hold_the_graph() -> None:
    model = GPT(CONFIG)
    loss = train_step(model, torch.optim.SGD(model.parameters(), lr=0.1), BATCH)
    assert loss.grad_fn is None and not loss.requires_grad


def test_it_learns() -> None:
    model = GPT(CONFIG)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    source = text.stories(0)
    losses = [train_step(model, optimizer, source.batch(0, step, 0, 8, 16)).item() for step in range(60)]
    assert losses[0] > 0.98 * math.log(256)
    assert source.entropy_per_byte < sum(losses[-5:]) / 5 < 0.6 * losses[0]
