"""Checks of lesson 07's turns: an equal start, one call for many gradients, buckets in order, the joined loss."""

from __future__ import annotations

from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import nn

from course_kit import measure, ranks
from course_kit.notebook.your_turn import Function
from course_lib import predict

EXERCISES = (
    predict.all_reduce(2 * 1_557_611_200, world_size=64).bytes.to("GB"),
    predict.tokens_to_hide(156e12, 12.5e9, 128, ranks_per_node=8),
    predict.noise_scale((4, 5.0), (64, 2.0)).batch_size,
)
"""Answers to the exercises: GB that each of 64 ranks sends; tokens a rank; sequences of a log's noise scale."""


def check_start(function: Function) -> None:
    """Rank 0's numbers on all ranks, parameters and buffers, with the parameters still the same objects."""

    def on_each_rank() -> tuple[dict[str, list[float]], bool]:
        model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
        for tensor in model.state_dict().values():
            tensor.fill_((5, 9, 2)[dist.get_rank()])  # rank 0's are neither the least nor the most, nor the mean
        before = [id(parameter) for parameter in model.parameters()]
        function(model)
        kept = before == [id(parameter) for parameter in model.parameters()]
        return {name: tensor.unique().tolist() for name, tensor in model.state_dict().items()}, kept

    for rank, (found, kept) in enumerate(ranks.run(on_each_rank, world_size=3)):
        wrong = [name for name, numbers in found.items() if numbers != [5]]
        assert not wrong, f"rank {rank} should hold rank 0's numbers, but does not in {', '.join(wrong)}"
        assert kept, f"rank {rank} has other parameters than before, and an optimizer would not know them"


def check_glued(function: Function) -> None:
    """Means and shapes of gradients that differ in each element, with one all-reduce; in float64 to its last bit."""

    def on_each_rank(dtype: torch.dtype, unit: float) -> tuple[list[torch.Tensor | None], int]:
        parameters = [nn.Parameter(torch.zeros(shape, dtype=dtype)) for shape in ((3, 2), (4,), ())]
        for number, parameter in enumerate(parameters):
            numbers = torch.arange(parameter.numel(), dtype=dtype).view_as(parameter)
            parameter.grad = (10.0 * number + numbers + dist.get_rank()) * unit
        with measure.traffic() as sent:
            function(parameters)
        return [parameter.grad for parameter in parameters], sent.messages["all_reduce"]

    for p, dtype, unit in ((2, torch.float32, 1.0), (4, torch.float64, 1 + 2**-30)):  # float32 takes that unit for 1
        due = [[10.0 * number + i + (p - 1) / 2 for i in range(size)] for number, size in enumerate((6, 4, 1))]
        for grads, calls in ranks.run(on_each_rank, dtype, unit, world_size=p):
            shapes = [None if g is None else tuple(g.shape) for g in grads]
            assert shapes == [(3, 2), (4,), ()], (
                f"gradients should keep their shapes, (3, 2), (4,) and (), but have {shapes}"
            )
            values = [g.flatten().tolist() for g in grads if g is not None]
            rounded = [[round(value, 6) for value in each] for each in values]
            assert rounded == due, f"on {p} ranks the means should be {due}, but are {rounded}"
            exact = values == [[value * unit for value in each] for each in due]
            assert exact, f"gradients in {dtype} have means that are right to some seven digits only"
            assert calls == 1, f"one all-reduce for all, but there were {calls}"


def check_arrived(function: Function) -> None:
    """Buckets that have left after each gradient, in several orders; with two and with three buckets."""
    cases = {
        (1, 2): {(0, 1, 1): ["a", "a", "ab"], (1, 1, 0): ["", "", "ab"], (1, 0, 1): ["", "a", "ab"]},
        (1, 1, 1): {(2, 1, 0): ["", "", "abc"], (1, 0, 2): ["", "ab", "abc"]},
    }
    for sizes, orders in cases.items():
        for order, due in orders.items():
            names = "abc"[: len(sizes)]
            begun: list[str] = []

            def start(bucket: str, begun: list[str] = begun) -> str:
                if bucket in begun:  # else a loop that forgets to append would never end
                    raise RuntimeError(f"bucket {bucket} was started before")
                begun.append(bucket)
                return f"the sum of {bucket}"

            replica = SimpleNamespace(buckets=[*names], missing=[*sizes], started=[], start=start)
            for count, number in enumerate(order * 2):
                place = count % len(order)
                if count == len(order):  # the second step, after what `synchronize` does
                    replica.started, replica.missing = [], [*sizes]
                    begun.clear()
                misses = ", ".join(f"{name} misses {size}" for name, size in zip(names, sizes))
                case = f"bucket {misses} gradients; they come for buckets {order[: place + 1]}"
                case += ", in the second step" if count >= len(order) else ""
                try:
                    function(replica, number)
                except Exception as error:
                    raise AssertionError(f"{case}: {type(error).__name__}, {error}") from error
                left, wanted = "".join(map(str, begun)), due[place]
                assert left == wanted, f"{case}: '{wanted}' should have left, but '{left}' has"
                kept = [f"the sum of {bucket}" for bucket in begun]
                held = replica.started
                assert held == kept, f"{case}: started should hold what start returned, {kept}, but holds {held}"


def check_logged(function: Function) -> None:
    """The loss of the joined batch on all ranks, from shares of unequal size, without a graph; own losses stay."""
    means = (3.0, 6.0, 1.5)

    def on_each_rank() -> tuple[float, bool, float]:
        rank = dist.get_rank()
        loss = torch.tensor(means[rank], requires_grad=True) * 1.0
        found = function(loss, (2, 1, 5)[rank])
        return torch.as_tensor(found).item(), bool(getattr(found, "requires_grad", False)), loss.item()

    due = (3.0 * 2 + 6.0 * 1 + 1.5 * 5) / 8
    for rank, (found, graph, own) in enumerate(ranks.run(on_each_rank, world_size=3)):
        assert abs(found - due) < 1e-6, (
            f"means of 3.0, 6.0, 1.5 over 2, 1, 5 rows: rank {rank} returns {found:.4g}, which is not that of all 8"
        )
        assert not graph, f"rank {rank} returns a loss with its graph, which would keep the activations"
        assert own == means[rank], f"rank {rank}'s own loss was {means[rank]}, but is {own:.4g} after the call"
