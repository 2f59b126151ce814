"""Recompute with functions of every kind: nested, with many results, with tensors inside other things; and mistakes."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch import Tensor, nn

from course_lib.model.gpt import GPT, Attention, GPTConfig
from course_lib.train.recompute import RecomputedLayers, recompute, recompute_only, take_tensors
from tests.predict.refused import refused
from tests.train.saved import gradients, same
from tests.train.test_recompute import Layer, an_input, chain, check_same, outcome, plain

SMALL = GPTConfig(layers=1, width=16, heads=2, vocab_size=16, context=8)


def test_nested_calls():
    layers, x = chain(), an_input(requires_grad=True)
    inner = RecomputedLayers(layers, 3)
    check_same(lambda: recompute(lambda x: plain(inner, x), x), lambda: plain(layers, x), layers, x)


def test_nested_arguments_and_results_of_every_kind():
    x, y = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)

    def fn(pair, times, *, scale, ids, note=None):
        a, b = pair
        named = {"sum": a + b * scale["by"], "detached": (a * b).detach(), "ids": ids + 1, "note": note}
        return named, (a * times, None)

    for call in (recompute, lambda fn, *args, **kwargs: fn(*args, **kwargs)):
        first, (second, nothing) = call(fn, (x, y), 3, scale={"by": y}, ids=torch.arange(3), note="kept")
        assert first["note"] == "kept" and nothing is None and first["ids"].tolist() == [1, 2, 3]
        assert first["sum"].requires_grad and second.requires_grad and not first["detached"].requires_grad
        (first["sum"] * second).sum().backward()
        found = [g for g in (x.grad, y.grad) if g is not None]
        x.grad = y.grad = None
        if call is recompute:
            ours = found
    assert same(ours, found)


def test_a_result_that_the_loss_does_not_use():
    """Its backward is not run, not even with a gradient of zeros: the root's would be 0 · inf at zero."""
    x = torch.tensor([0.0, 1.0], requires_grad=True)
    used, _unused = recompute(lambda x: (x.exp(), x.sqrt()), x)
    used.sum().backward()
    torch.testing.assert_close(x.grad, x.detach().exp(), rtol=0, atol=0)


def test_the_same_tensor_twice_and_a_result_that_is_an_argument():
    x = torch.randn(3, requires_grad=True)
    product, same = recompute(lambda a, b: (a * b, a), x, x)
    (product + same).sum().backward()
    torch.testing.assert_close(x.grad, 2 * x.detach() + 1)


def test_backward_twice_with_retain_graph():
    layer, x = Layer(0), an_input()
    loss = recompute(layer, x).sum()
    loss.backward(retain_graph=True)
    once = gradients(layer)
    loss.backward()
    assert same(gradients(layer), once)


def test_nothing_requires_a_gradient():
    assert not recompute(lambda x: 2 * x, torch.ones(2)).requires_grad
    layer = Layer(0)
    with torch.no_grad():
        assert not recompute(layer, an_input()).requires_grad
        assert recompute(torch.is_grad_enabled) is False
    assert not recompute(layer.requires_grad_(False), an_input()).requires_grad


def test_a_weight_used_in_several_segments():
    layer, x = Layer(0).double().eval(), an_input().double()
    ours, _ = outcome(lambda: plain(RecomputedLayers([layer] * 3, 1), x), layer)
    theirs, _ = outcome(lambda: layer(layer(layer(x))), layer)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-14, atol=1e-14)  # three summands in another order


def test_without_rewinding_dropout_gives_other_gradients():
    layer, x = Layer(0), an_input(requires_grad=True)
    ours, _ = outcome(lambda: recompute(layer, x, preserve_rng=False), layer, x)
    theirs, _ = outcome(lambda: layer(x), layer, x)
    assert torch.equal(ours[0], theirs[0]) and not torch.equal(ours[1], theirs[1])


@pytest.mark.gpu
def test_dropout_on_a_gpu_draws_the_same_twice():
    layer, x = Layer(0).cuda(), an_input().cuda().requires_grad_()
    ours, _ = outcome(lambda: recompute(layer, x), layer, x)
    left = torch.cuda.get_rng_state()
    theirs, _ = outcome(lambda: layer(x), layer, x)
    assert same(ours, theirs)
    assert torch.equal(left, torch.cuda.get_rng_state())  # the second run's draws leave no trace


@pytest.mark.parametrize("smuggle", [torch.exp, torch.mean, torch.neg], ids=lambda fn: fn.__name__)
def test_a_smuggled_tensor_is_refused_and_not_silently_without_gradient(smuggle):
    """Of a mean and a sign nothing was thrown away that the backward pass wants: unnoticed, it would end at a copy."""
    x, smuggled = torch.randn(3, requires_grad=True), []

    def fn(x: Tensor) -> Tensor:
        smuggled.append(smuggle(x))
        return x * 2

    loss = recompute(fn, x).sum() + smuggled[0].sum()
    with pytest.raises(ValueError, match="let the function return the tensor"):
        loss.backward()


BACKWARDS = {
    "autograd.grad": (True, lambda loss, x: torch.autograd.grad(loss, x)),
    "backward(inputs)": (True, lambda loss, x: loss.backward(inputs=[x])),
    "create_graph": (True, lambda loss, _: loss.backward(create_graph=True)),
    "create_graph, parameters alone": (False, lambda loss, _: loss.backward(create_graph=True)),
}


@pytest.mark.parametrize("name", BACKWARDS)
def test_other_backward_passes_are_refused(name):
    """A penalty on the gradients of create_graph=True would miss the recomputed parameters: just a wrong number."""
    requires_grad, backward = BACKWARDS[name]
    x = an_input(requires_grad)
    loss = Layer(1)(recompute(Layer(0), x)).sum()
    with pytest.raises(ValueError, match=r"call loss.backward\(\)"):
        backward(loss, x)


def test_an_argument_changed_in_place_is_refused():
    """The second run would subtract the mean again: nearly the same numbers, and a wrong gradient."""
    layer, x = Layer(0), an_input()
    with pytest.raises(ValueError, match="changed an argument in place"):
        recompute(lambda x: layer(x.sub_(1.0)), x)
    recompute(lambda x: layer(x.clone().sub_(1.0)), x).sum().backward()
    recompute(layer, x).add_(1.0).sum().backward()  # a result may be changed


@pytest.mark.parametrize("frozen", [False, True])
def test_a_weight_that_changes_before_the_backward_pass_is_refused(frozen):
    """PyTorch's own checkpoint would use the new weight for a loss of the old one, and say nothing."""
    layer, x = Layer(0), an_input(requires_grad=True)
    layer.down.requires_grad_(not frozen)
    loss = recompute(layer, x).sum()
    with torch.no_grad():
        layer.down.weight.add_(1.0)
    with pytest.raises(ValueError, match=r"a weight of shape \(32, 128\) has changed.*step\(\) after backward"):
        loss.backward()
    recompute(layer, x).sum().backward()


def test_a_function_that_returns_something_else_the_second_time_is_refused():
    layer, x = Layer(0), an_input()
    loss = recompute(lambda: (layer(x), layer.up(x)))[0].sum()
    layer.up.requires_grad_(False)
    with pytest.raises(ValueError, match=r"\(8, 128\), 'torch.float32', True.*the second time.*False.*must compute"):
        loss.backward()


class NoGradient(torch.autograd.Function):
    """A function without a derivative."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx, *_: Tensor) -> None:
        return None


def test_no_gradient_comes_back_where_none_arrives():
    layer, x = Layer(0), an_input(requires_grad=True)
    (NoGradient.apply(recompute(layer, x)).sum() + x.sum()).backward()
    assert not gradients(layer) and x.grad is not None and torch.equal(x.grad, torch.ones_like(x))


test_mistakes_are_explained = refused(
    (lambda: RecomputedLayers(chain(), 0), "every=0 given"),
    (lambda: RecomputedLayers(chain(), -1), "every=-1 given"),
    (lambda: recompute_only(GPT(SMALL), nn.Conv1d), "no Conv1d with a method 'forward'.*Attention"),
    (lambda: recompute_only(GPT(SMALL), Attention, "explain"), "no Attention with a method 'explain'"),
)


def test_take_tensors_keeps_none_of_them():
    tensors, put = take_tensors({"a": [torch.ones(1), "b"], "c": (3, torch.zeros(2))})
    assert [tuple(t.shape) for t in tensors] == [(1,), (2,)]
    assert put([torch.tensor(1), torch.tensor(2)]) == {"a": [1, "b"], "c": (3, 2)}
    gone = [weakref.ref(tensor) for tensor in tensors]
    del tensors
    assert all(reference() is None for reference in gone)
