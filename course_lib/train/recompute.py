"""Recompute: keep a layer's input, throw away everything computed from it, and run the layer again when needed.

The backward pass needs tensors that the forward pass computed, so autograd saves them: for N layers, N times the bytes
of one layer. Recompute (the field also says *activation checkpointing*) saves the inputs of *segments* alone. When the
backward pass reaches a segment, the segment's forward pass runs a second time, and only then do its inner tensors exist
(Chen et al. 2016, "Training deep nets with sublinear memory cost", §4):

    forward     x0 ─▶ layers 1-4 ─▶ x4 ─▶ layers 5-8 ─▶ x8 ─▶ loss      kept: x0 and x4
    backward                        x4 ─▶ layers 5-8                    once more; now the inner tensors are kept
                                    g4 ◀─ layers 5-8 ◀─ g8              g8: the gradient of x8; inner tensors go
                x0 ─▶ layers 1-4                                        once more, and so on

With N equal layers, each with an input of X bytes and A saved bytes (the input among them), in segments of K layers:

    held between forward and backward     ceil(N/K) · X
    held at the peak, in the backward     ceil(N/K) · X  +  K · A - X        (least where K = sqrt(N · X / A))
    computed                              one more forward pass: 4/3 of a plain step, if backward costs two forwards

A segment also keeps the state of the random numbers, so that dropout drops the same elements again: 5,056 bytes on the
CPU and 16 more on each GPU in use.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import _get_current_function_mode_stack
from torch.utils._pytree import tree_flatten, tree_unflatten


def recompute(fn: Callable[..., Any], *args: Any, preserve_rng: bool = True, **kwargs: Any) -> Any:
    """Call `fn(*args, **kwargs)`, with the same gradients, but keep only the arguments for the backward pass.

    Gradients are equal bit for bit, as the same operations run on the same numbers. (One exception: where a tensor is
    used several times, inside and outside, its gradient's summands are added in another order, under autocast in other
    precision.) Parameters inside `fn` that are no arguments get their gradients, whatever arguments require.

    Args:
        fn: a module or function, which runs twice: a side effect (a counter, BatchNorm's running mean) happens twice.
            `fn` must compute the same each time, so weights must not change before the backward pass. Calls may nest.
        args, kwargs: anything; tensors may sit in nested lists, tuples and dicts. A tensor that was computed outside
            and needs a gradient must be among them; a parameter need not.
        preserve_rng: rewind PyTorch's global random numbers for the second run (not those of a generator that `fn`
            holds itself). With False, dropout drops other elements and the gradients are wrong.

    Returns:
        The result of `fn`: tensors, or nested lists, tuples and dicts of tensors and of anything else.

    Raises:
        ValueError: `fn` changes an argument in place. In the backward pass: a weight that autograd would have saved has
            changed (it saves no linear layer's bias, no table, and under autocast or a `CastPolicy` only copies), the
            second run returns other tensors, or autograd reaches a tensor that left `fn` other than as a result. Also
            where `torch.autograd.grad`, `backward(inputs=…)` or `backward(create_graph=True)` starts that pass, since
            parameters inside receive their gradients in `.grad`, and without a graph of their own.
    """
    if not torch.is_grad_enabled():
        return fn(*args, **kwargs)
    inputs, put_inputs = take_tensors((args, kwargs))  # autograd sees a tensor only as an argument of `apply`
    segment = Segment(fn, put_inputs, Conditions(inputs, preserve_rng))
    # A Function without an input that requires a gradient is left out of the graph, and with it the gradients of all
    # parameters inside. This empty input keeps it in.
    ticket = torch.empty(0, requires_grad=True)
    outputs = Recompute.apply(segment, ticket, *inputs)
    return segment.put_outputs(outputs)


class Recompute(torch.autograd.Function):
    """The idea itself: a forward pass that forgets, and a backward pass that starts by running forward again."""

    @staticmethod
    def forward(ctx: Any, segment: Segment, ticket: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Run the segment. Of all that autograd would save, only the inputs stay."""
        ctx.segment = segment
        ctx.save_for_backward(*inputs)  # autograd frees them after the backward pass, and refuses changed ones
        ctx.set_materialize_grads(False)  # a result that nothing used has the gradient None, not a tensor of zeros
        # Autograd stays on, to learn which results depend on a parameter; its tensors go at once.
        with torch.enable_grad(), saved_tensors_hooks(segment.forget, _too_late), _unchanged(inputs):
            results = segment.run(_refusing_gradients(_detached(inputs)))
        outputs = tuple(result.detach() for result in results)  # the inner graph dies here, with `results`
        pairs = zip(results, outputs, strict=True)
        ctx.mark_non_differentiable(*(output for result, output in pairs if not result.requires_grad))
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        """Run the segment again, now keeping everything, and go backward through it."""
        # Grad mode is on here only for create_graph=True; the second test is False for autograd.grad and inputs=.
        if torch.is_grad_enabled() or not torch.autograd._is_checkpoint_valid():
            raise ValueError(
                "a recomputed segment cannot serve torch.autograd.grad, backward(inputs=...) or create_graph=True: the "
                "parameters inside receive their gradients in .grad, without a graph; call loss.backward()"
            )
        inputs = _detached(ctx.saved_tensors)
        ctx.segment.check_weights()
        with torch.enable_grad(), ctx.segment.conditions.restored():
            results = ctx.segment.run(inputs)  # now autograd saves everything, for this segment alone
        pairs = [(result, g) for result, g in zip(results, gradients, strict=True) if g is not None]
        if pairs:
            roots, root_gradients = zip(*pairs, strict=True)
            torch.autograd.backward(roots, root_gradients)  # parameters get their gradients here
        return (None, None, *(tensor.grad for tensor in inputs))  # None for the segment and the ticket


class Segment:
    """A call that can be made again with other tensors in the places of the first ones.

    Attributes:
        put_inputs, put_outputs: `take_tensors`' functions that put tensors back into arguments and into the result.
        kinds: shape, dtype and requires_grad of each result of the first run.
        weights: the parameters that autograd would have saved, by id, each with its version at that time.
    """

    def __init__(self, fn: Callable[..., Any], put_inputs: Callable[..., Any], conditions: Conditions) -> None:
        self.fn, self.put_inputs, self.conditions = fn, put_inputs, conditions
        self.put_outputs: Callable[[Sequence[Tensor]], Any]
        self.kinds: list[Any] | None = None
        self.weights: dict[int, tuple[Tensor, int]] = {}

    def run(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Call `fn`; return the tensors of its result."""
        args, kwargs = self.put_inputs(inputs)
        outputs, self.put_outputs = take_tensors(self.fn(*args, **kwargs))
        kinds = [(tuple(t.shape), str(t.dtype), t.requires_grad) for t in outputs]
        if self.kinds not in (None, kinds):
            raise ValueError(
                f"a recomputed function returned tensors of {self.kinds} (shape, dtype, requires_grad), but the second "
                f"time {kinds}: it must compute the same, so nothing that it depends on may change in between"
            )
        self.kinds = kinds
        return outputs

    def forget(self, saved: Tensor) -> None:
        """Drop a tensor that autograd would save; note a parameter's version (PyTorch counts in-place changes)."""
        base = saved if saved._base is None else saved._base  # autograd saves a transposed weight as a view of it
        if isinstance(base, nn.Parameter):
            self.weights[id(base)] = base, base._version

    def check_weights(self) -> None:
        """Refuse a second run with other weights, as a plain backward pass refuses to use saved weights that changed.

        Raises:
            ValueError: a weight that the first run used for its gradients has changed.
        """
        for weight, version in self.weights.values():
            if weight._version != version:
                raise ValueError(
                    f"a weight of shape {tuple(weight.shape)} has changed since a recomputed function used it, so the "
                    "backward pass would compute with other numbers: call optimizer.step() after backward()"
                )


class Conditions:
    """PyTorch's state that a function depends on and must find again: the random state, autocast, and the modes that
    replace PyTorch's functions (`precision.CastPolicy` is one)."""

    def __init__(self, tensors: Sequence[Tensor], preserve_rng: bool) -> None:
        kinds = {"cpu", "cuda", *(tensor.device.type for tensor in tensors)}  # a layer on a GPU may get no tensor
        self.autocast = [
            (kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind), torch.is_autocast_cache_enabled())
            for kind in sorted(kinds)
            if torch.amp.is_autocast_available(kind)
        ]
        self.modes = _get_current_function_mode_stack()
        gpus = {tensor.device.index for tensor in tensors if tensor.is_cuda}
        if torch.cuda.is_initialized():
            gpus.add(torch.cuda.current_device())
        self.gpu_rng = {gpu: torch.cuda.get_rng_state(gpu) for gpu in gpus} if preserve_rng else {}
        self.cpu_rng = torch.get_rng_state() if preserve_rng else None

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Restore the state inside the block, and afterwards the state before it: draws inside leave no trace."""
        with ExitStack() as stack:
            for mode in self.modes:
                stack.enter_context(mode)
            for kind, dtype, enabled, cache in self.autocast:
                stack.enter_context(torch.autocast(kind, dtype, enabled, cache))
            if self.cpu_rng is not None:
                stack.enter_context(torch.random.fork_rng(list(self.gpu_rng)))
                torch.set_rng_state(self.cpu_rng)  # inside fork_rng, which puts the present states back at the end
                for gpu, state in self.gpu_rng.items():
                    torch.cuda.set_rng_state(state, gpu)
            yield


def take_tensors(tree: Any) -> tuple[list[Tensor], Callable[[Sequence[Tensor]], Any]]:
    """The tensors of nested lists, tuples and dicts, and a function that puts others in their places.

    The function holds no tensor: tensors to keep must go through `save_for_backward`, where autograd frees them.
    """
    leaves, structure = tree_flatten(tree)
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    tensors = [leaves[place] for place in places]
    for place in places:
        leaves[place] = None  # else `put` would keep the tensors alive

    def put(others: Sequence[Tensor]) -> Any:
        filled = list(leaves)
        for place, other in zip(places, others, strict=True):
            filled[place] = other
        return tree_unflatten(filled, structure)

    return tensors, put


def segments(layers: Iterable[Callable[..., Any]], every: int) -> list[Callable[..., Any]]:
    """Bundle layers in order, by `every` (1 or more), into functions from one tensor, and arguments for all, to one."""
    if every < 1:
        raise ValueError(f"every={every} given; a segment has at least 1 layer")
    layers = list(layers)
    return [functools.partial(_chain, layers[start : start + every]) for start in range(0, len(layers), every)]


class RecomputedLayers(nn.ModuleList):
    """A ModuleList that yields recomputed segments of its layers in a loop.

    `model.blocks = RecomputedLayers(model.blocks, every=4)` suffices for a model with the forward pass
    `for block in self.blocks: x = block(x)`. Parameters keep their names; `model.blocks[3]` is still the fourth block.

    Args:
        layers: modules from one tensor to one tensor. Further arguments (a mask) go to every layer of a segment: where
            layers differ in them, take K = 1.
        every: K, layers in a segment; the last may be shorter. K = 1 keeps every layer's input, K ≥ N only the first's.

    Raises:
        ValueError: `every` is less than 1.
    """

    def __init__(self, layers: Iterable[nn.Module], every: int) -> None:
        segments((), every)  # refuses a wrong `every` now, not in the first step
        super().__init__(layers)
        self.every = every

    def __iter__(self) -> Iterator[Any]:
        """The segments, each recomputed."""
        layers = self._modules.values()  # a loop over `self` would come back here
        return (functools.partial(recompute, segment) for segment in segments(layers, self.every))  # type: ignore[arg-type]

    def __getitem__(self, index: Any) -> Any:
        """One plain layer; or, for a slice such as `[:6]`, its layers, recomputed."""
        if not isinstance(index, slice):
            return super().__getitem__(index)
        return RecomputedLayers(list(self._modules.values())[index], self.every)  # type: ignore[arg-type]

    __repr__ = nn.Module.__repr__  # a ModuleList prints its loop's items


def recompute_only(model: nn.Module, kind: type[nn.Module], method: str = "forward") -> nn.Module:
    """Recompute one method of every module of one kind (*selective* recompute), in place; return the same model.

    Choose large and cheap parts: `recompute_only(gpt, Attention, "explicit")` runs the S x S scores, softmax and
    dropout again (Korthikanti et al. 2022, §5); `recompute_only(gpt, Attention)` the projections as well;
    `recompute_only(gpt, Block)` everything.

    Raises:
        ValueError: the model has no such module, or such a module has no such method.
    """
    chosen = [module for module in model.modules() if isinstance(module, kind)]
    if not chosen or not hasattr(kind, method):
        known = sorted({type(module).__name__ for module in model.modules()})
        raise ValueError(f"no {kind.__name__} with a method {method!r} in this model; it has {', '.join(known)}")
    for module in chosen:
        setattr(module, method, functools.partial(recompute, getattr(module, method)))  # on the object, not its class
    return model


def _chain(layers: Sequence[Callable[..., Any]], *args: Any, **kwargs: Any) -> Any:
    first, *others = layers
    x = first(*args, **kwargs)
    for layer in others:
        x = layer(x, *args[1:], **kwargs)
    return x


def _detached(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The same memory without the graph that led to it: a backward pass ends here, in `.grad`."""
    return [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in tensors]


def _refusing_gradients(inputs: list[Tensor]) -> list[Tensor]:
    """Refuse gradients for these tensors: a backward pass that ends here would lose them."""
    for tensor in filter(lambda tensor: tensor.requires_grad, inputs):
        tensor.register_hook(_too_late)
    return inputs


@contextmanager
def _unchanged(inputs: Sequence[Tensor]) -> Iterator[None]:
    """Refuse a function that writes into its arguments: its second run would start from the result of its first."""
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
