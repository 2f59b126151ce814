"""Recompute: keep a layer's input, throw away everything computed from it, and run the layer again when needed.

The backward pass wants the tensors that the forward pass computed, so autograd saves them: for N layers, N times what
one layer saves. Recompute (the field also says *activation checkpointing*) saves the inputs of *segments* alone. When
the backward pass reaches a segment, its forward pass runs a second time, and only then do its inner tensors exist, one
segment at a time (Chen et al. 2016, "Training deep nets with sublinear memory cost", §4).

With N equal layers whose input has X bytes and which save A bytes (their input among them), in segments of K layers:

    held between forward and backward     ceil(N/K) · X
    held at the peak, in the backward     ceil(N/K) · X  +  K · A - X        (least where K = sqrt(N · X / A))
    computed                              one more forward pass: 4/3 of a plain step, where backward costs two forwards

A segment also remembers the state of the random numbers, so that dropout drops the same elements again: 5,056 bytes on
the CPU and 16 more on each GPU in use.

Selective recompute (Korthikanti et al. 2022, §5) runs again only what is large and cheap: in attention, the S x S
scores, softmax and dropout. `recompute_only(model, Attention, "explicit")` says just that.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from course_lib.train.segment import Conditions, Segment, take_tensors


def recompute(fn: Callable[..., Any], *args: Any, preserve_rng: bool = True, **kwargs: Any) -> Any:
    """`fn(*args, **kwargs)`, with the same gradients, but nothing kept for the backward pass except the arguments.

    Gradients are equal bit for bit, as the same operations run on the same numbers. (One exception: where a tensor is
    used several times, inside and outside, its gradient's summands are added in another order, under autocast in other
    precision.) Parameters that `fn` reaches without being handed them get theirs, whatever arguments require.

    Args:
        fn: a module or function. It runs twice, so a side effect (a counter, BatchNorm's running mean) happens twice.
            It must compute the same each time: its weights must not change before the backward pass. Calls may nest.
        args, kwargs: anything; tensors may sit in nested lists, tuples and dicts. What was computed outside and needs
            a gradient must be among them; a parameter need not.
        preserve_rng: rewind PyTorch's global random numbers for the second run (not those of a generator that `fn`
            holds itself). Without it, dropout drops other elements and the gradients are wrong.

    Returns:
        What `fn` returns: tensors, or nested lists, tuples and dicts of them and of anything else.

    Raises:
        ValueError: `fn` changes an argument in place. In the backward pass: a weight has changed, the second run
            returns other tensors, or it reaches a tensor that left `fn` by another way than its result. Also when it
            was started by `torch.autograd.grad`, `backward(inputs=…)` or `backward(create_graph=True)`, since
            parameters inside receive their gradients in `.grad`, and without a graph of their own.
    """
    if not torch.is_grad_enabled():
        return fn(*args, **kwargs)
    inputs, put_inputs = take_tensors((args, kwargs))
    segment = Segment(fn, put_inputs, Conditions(inputs, preserve_rng))
    # A Function without an input that requires a gradient is left out of the graph, and with it the gradients of all
    # parameters inside. This empty input keeps it in.
    ticket = torch.empty(0, requires_grad=True)
    outputs = Recompute.apply(segment, ticket, *inputs)
    return segment.put_outputs(outputs)


class Recompute(torch.autograd.Function):
    """The idea itself: a forward pass that forgets, and a backward pass that starts by running it again."""

    @staticmethod
    def forward(ctx: Any, segment: Segment, ticket: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Run the segment. Of all that autograd would save, only the inputs stay."""
        ctx.segment = segment
        ctx.save_for_backward(*inputs)
        ctx.set_materialize_grads(False)
        # Autograd stays on, to learn which results depend on a parameter; its tensors go at once.
        with torch.enable_grad(), saved_tensors_hooks(segment.forget, _too_late), _unchanged(inputs):
            results = segment.run(_dead_ends(_cut_off(inputs)))
        outputs = tuple(result.detach() for result in results)
        pairs = zip(results, outputs, strict=True)
        ctx.mark_non_differentiable(*(output for result, output in pairs if not result.requires_grad))
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        """Run the segment again, now keeping everything, and go backward through it."""
        if torch.is_grad_enabled() or not torch.autograd._is_checkpoint_valid():
            raise ValueError(
                "a recomputed segment cannot serve torch.autograd.grad, backward(inputs=...) or create_graph=True: the "
                "parameters inside receive their gradients in .grad, without a graph; call loss.backward()"
            )
        inputs = _cut_off(ctx.saved_tensors)
        ctx.segment.check_weights()
        with torch.enable_grad(), ctx.segment.surroundings.restored():
            results = ctx.segment.run(inputs)
        pairs = [(result, g) for result, g in zip(results, gradients, strict=True) if g is not None]
        if pairs:
            roots, their_gradients = zip(*pairs, strict=True)
            torch.autograd.backward(roots, their_gradients)  # parameters get their gradients here
        return (None, None, *(tensor.grad for tensor in inputs))


def segments(layers: Iterable[Callable[..., Any]], every: int) -> list[Callable[..., Any]]:
    """Consecutive layers bundled by `every` into functions of one argument.

    Raises:
        ValueError: `every` is less than 1.
    """
    if every < 1:
        raise ValueError(f"every={every} given; a segment has at least 1 layer")
    layers = list(layers)
    return [functools.partial(_chain, layers[start : start + every]) for start in range(0, len(layers), every)]


class RecomputedLayers(nn.ModuleList):
    """A ModuleList that hands out its layers in recomputed segments to whoever loops over it.

    `model.blocks = RecomputedLayers(model.blocks, every=4)` is all that a model needs whose forward pass says
    `for block in self.blocks: x = block(x)`. Parameters keep their names; `model.blocks[3]` is still the fourth block.

    Args:
        layers: from one tensor to one tensor.
        every: K, layers in a segment; the last may be shorter. K = 1 keeps every layer's input, K ≥ N only the first's.

    Raises:
        ValueError: `every` is less than 1.
    """

    def __init__(self, layers: Iterable[nn.Module], every: int) -> None:
        layers = list(layers)
        super().__init__(layers)
        self.every = every
        segments(layers, every)  # refuses a wrong `every` here and not in the first step

    def __iter__(self) -> Iterator[Any]:
        """The segments, each recomputed."""
        layers = self._modules.values()
        return (functools.partial(recompute, segment) for segment in segments(layers, self.every))  # type: ignore[arg-type]

    __repr__ = nn.Module.__repr__  # a ModuleList would print what it hands out


def recompute_only(model: nn.Module, kind: type[nn.Module], method: str = "forward") -> nn.Module:
    """Selective recompute: one method of every module of one kind, in place.

    `recompute_only(gpt, Attention, "explicit")` runs scores, softmax and dropout again (Korthikanti et al. 2022);
    `recompute_only(gpt, Attention)` the projections as well; `recompute_only(gpt, Block)` everything.

    Returns:
        The same model.

    Raises:
        ValueError: the model has no such module, or such a module has no such method.
    """
    chosen = [module for module in model.modules() if isinstance(module, kind)]
    if not chosen or not hasattr(kind, method):
        known = sorted({type(module).__name__ for module in model.modules()})
        raise ValueError(f"no {kind.__name__} with a method {method!r} in this model; it has {', '.join(known)}")
    for module in chosen:
        setattr(module, method, functools.partial(recompute, getattr(module, method)))
    return model


def _chain(layers: Iterable[Callable[..., Any]], x: Tensor) -> Tensor:
    for layer in layers:
        x = layer(x)
    return x


def _cut_off(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The same memory, cut off from the graph that led to it: a backward pass ends here, in `.grad`."""
    return [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in tensors]


def _dead_ends(inputs: list[Tensor]) -> list[Tensor]:
    """No backward pass may come here: it would not go on, and the gradient would be lost."""
    for tensor in filter(lambda tensor: tensor.requires_grad, inputs):
        tensor.register_hook(_too_late)
    return inputs


@contextmanager
def _unchanged(inputs: Sequence[Tensor]) -> Iterator[None]:
    """Refuse a function that writes into what it was given: its second run would start from the result of its first."""
    versions = [tensor._version for tensor in inputs]
    yield
    if versions != [tensor._version for tensor in inputs]:
        raise ValueError(
            "a recomputed function changed an argument in place, so that a second run would begin with other numbers: "
            "compute a new tensor (x = x - 1, not x -= 1; relu without inplace=True), or hand it a clone"
        )


def _too_late(_: Tensor | None) -> NoReturn:
    raise ValueError(
        "the backward pass reached a tensor computed inside a recomputed function, but what it needs was thrown away: "
        "let the function return the tensor, in lists, tuples or dicts, not store it or wrap it in another object"
    )
