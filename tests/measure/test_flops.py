"""`measure.flops` against hand counts, `predict`, and the same model with attention written out."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from course_kit import measure
from course_kit.units import Flops
from course_lib import predict
from course_lib.model.gpt import GPT, GPTConfig
from course_lib.predict import Setup
from course_lib.predict.flops import forward_flops
from course_lib.train.step import train_step


def test_a_matrix_product_is_two_operations_a_multiply_add_and_the_table_shows_shares_and_the_total():
    with measure.flops() as counted:
        _ = torch.ones(3, 4) @ torch.ones(4, 5)
        torch.bmm(torch.ones(2, 3, 4), torch.ones(2, 4, 5))
    assert counted.total == 3 * (2 * 3 * 4 * 5) and isinstance(counted.total, Flops)
    assert list(counted.by_operation.items()) == [("bmm", 240), ("mm", 120)]
    text = repr(counted)
    assert "66.7%" in text and "360 FLOP" in text and "<table>" in counted._repr_html_()


def test_cpu_attention_is_counted_forward_and_backward():
    q, k, v = (torch.randn(2, 3, 16, 8, requires_grad=True) for _ in range(3))
    with measure.flops() as forward, measure.MatrixProducts() as ours:
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    assert forward.total == 4 * 2 * 3 * 16 * 16 * 8
    assert ours.flops == forward.total
    with measure.flops() as backward, measure.MatrixProducts() as ours:
        out.sum().backward()
    assert backward.total == ours.flops == 2.5 * forward.total
    with FlopCounterMode(display=False) as torchs:
        F.scaled_dot_product_attention(q, k, v, is_causal=True)
    if torchs.get_total_flops():
        pytest.skip("this PyTorch counts the CPU kernel itself")


@pytest.mark.skipif(not hasattr(F, "grouped_mm"), reason="this PyTorch has no grouped product")
def test_a_grouped_product_counts_as_its_parts_do_forward_and_backward():
    rows, weights = torch.randn(16, 8, requires_grad=True), torch.randn(2, 8, 12, requires_grad=True)
    with measure.flops() as counted, measure.MatrixProducts() as ours:
        product = F.grouped_mm(rows, weights, offs=torch.tensor([5, 16], dtype=torch.int32))
        product.backward(torch.ones_like(product))
    assert counted.total == ours.flops == 3 * 2 * 16 * 8 * 12


@pytest.mark.parametrize("attention", ["explicit", "fused"])
def test_a_step_of_the_gpt_is_what_predict_says_whatever_else_is_measured(attention):
    config = GPTConfig(layers=2, width=32, heads=4, vocab_size=50, context=24, attention=attention)
    model = GPT(config)
    batch = torch.randint(0, 50, (3, 24)), torch.randint(0, 50, (3, 24))
    with torch.no_grad(), measure.flops() as forward:
        model(*batch)
    assert forward.total == forward_flops(Setup(config, 3, 24))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with measure.memory(model) as alone:
        train_step(model, optimizer, batch)
    with measure.flops() as step, measure.MatrixProducts() as ours, measure.memory(model) as record, measure.traffic():
        train_step(model, optimizer, batch)
    assert record.peak == alone.peak, "the measurements go together"
    # the fused backward computes the scores a second time: one product of the forward pass's two
    again = config.layers * 2 * 3 * 24 * 24 * 32 if attention == "fused" else 0
    assert step.total == ours.flops == predict.step_flops(Setup(config, 3, 24)) + again


@pytest.mark.parametrize("count", [lambda: measure.flops(), lambda: measure.MatrixProducts()])
def test_products_of_every_kind_are_counted(count):
    """By hand: 2·m·k·n each. A product with what is added to it, one with a vector as bias, and pairs in a batch."""
    a, b, many = torch.ones(3, 4), torch.ones(4, 5), torch.ones(2, 3, 4)
    with count() as counted:
        torch.addmm(torch.ones(3, 5), a, b)
        F.linear(many, torch.ones(5, 4), torch.ones(5))
        torch.baddbmm(torch.ones(2, 3, 5), many, torch.ones(2, 4, 5))
        many.softmax(-1)
    total = counted.total if isinstance(counted, measure.FlopRecord) else counted.flops
    assert total == 120 + 240 + 240 and isinstance(total, Flops)


class Again(torch.autograd.Function):
    """A layer that runs once more in its backward, by `torch.autograd.grad`."""

    @staticmethod
    def forward(ctx, layer, x):
        ctx.layer = layer
        ctx.save_for_backward(x)
        return layer(x)

    @staticmethod
    def backward(ctx, *grads):
        (x,) = ctx.saved_tensors
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.layer(x)
        return None, torch.autograd.grad(y, x, grads)[0]


def test_a_backward_that_calls_autograd_grad():
    layers, x = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)), torch.randn(4, 8, requires_grad=True)
    with measure.flops() as counted:
        for layer in layers:
            x = Again.apply(layer, x)
        x.sum().backward()
    assert counted.total == 3 * 2 * (2 * 4 * 8 * 8), "forward, forward again, and the gradient of x alone; two layers"


class Multiplies(threading.Thread):
    def run(self) -> None:
        torch.matmul(MATRIX, MATRIX)


MATRIX = torch.ones(4, 4)


@pytest.mark.parametrize(
    "elsewhere",
    [
        lambda: (it := threading.Thread(target=lambda: MATRIX @ MATRIX), it.start(), it.join()),
        lambda: (it := Multiplies(), it.start(), it.join()),
        lambda: ThreadPoolExecutor(1).submit(torch.mm, MATRIX, MATRIX).result(),
    ],
)
def test_products_in_another_thread_count(elsewhere: Callable[[], object]) -> None:
    with measure.flops() as counted, measure.MatrixProducts() as ours:
        elsewhere()
    assert counted.total == ours.flops == 2 * 4**3
    elsewhere()
    assert counted.total == ours.flops == 2 * 4**3
