"""Experts on real ranks: every step equals one device that computes all experts; bytes equal the plan's."""

import math
import os
import subprocess
import sys
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from course_kit import ranks
from course_lib.model.experts import BiasedRouter, Choice, ExpertConfig, ExpertMLP, Router, Routing, find_places
from course_lib.parallel import experts
from course_lib.parallel.experts import ParallelExperts, grouped_product, holdings, plan_dispatch
from course_lib.parallel.mesh import Mesh, process_groups
from tests.mutants.parallel.experts import WRONG
from tests.parallel import experts_checks as checks
from tests.parallel.judging import accepted, on_ranks

LINES = [{"expert": 1}, {"expert": 2}, {"expert": 4}]
GRIDS = [{"data": 2, "expert": 2}, {"expert": 2, "tensor": 2}]
WIDE = ExpertConfig(width=64, hidden=32, experts=8, top_k=2, capacity_factor=1.0)


def small(top_k: int, capacity_factor: float | None) -> ExpertConfig:
    """Two experts on each of 2 ranks, one on each of 4."""
    return ExpertConfig(width=8, hidden=12, experts=4, top_k=top_k, capacity_factor=capacity_factor)


CASES = [(axes, top_k, budget) for axes in LINES for top_k in (1, 2) for budget in (None, 1.0)]
CASES += [(axes, 2, 1.0) for axes in GRIDS]
SOME = [
    ({"expert": 2}, 1, None),
    ({"expert": 2}, 2, 1.0),
    ({"expert": 4}, 1, 1.0),
    ({"expert": 4}, 2, None),
    *CASES[-2:],
]
CASES = [pytest.param(*case, marks=() if case in SOME else pytest.mark.nightly, id=str(case)) for case in CASES]


def algorithm_1(choices: list[list[int]], experts: int, capacity: int) -> list[list[bool]]:
    """GShard's, token by token: all first choices, then all second ones."""
    taken, kept = [0] * experts, [[False] * len(choices[0]) for _ in choices]
    for k in range(len(choices[0])):
        for token, wanted in enumerate(choices):
            kept[token][k] = taken[wanted[k]] < capacity
            taken[wanted[k]] += 1
    return kept


def choices(tokens: int, experts: int, top_k: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(tokens, experts, generator=generator) + torch.linspace(1, 0, experts)).topk(top_k).indices


@pytest.mark.parametrize("top_k", [1, 2, 3])
def test_places_are_taken_as_in_gshards_algorithm(top_k: int) -> None:
    for seed in range(10):
        wanted = choices(30, 6, top_k, seed)
        for capacity in (0, 1, 4, 30):
            assert find_places(wanted, 6, capacity).tolist() == algorithm_1(wanted.tolist(), 6, capacity)
    assert find_places(wanted, 6, None).all()


@pytest.mark.parametrize("n_ranks", [1, 2, 3])
def test_the_plan_of_many_ranks_is_that_of_one_device(n_ranks: int) -> None:
    """No process: counts in, numbers out."""
    for seed in range(10):
        wanted = choices(30, 6, 2, seed)
        parts = wanted.chunk(n_ranks)
        counts = torch.stack([torch.stack([part[:, k].bincount(minlength=6) for k in (0, 1)]) for part in parts])
        plan = plan_dispatch(counts, 5)
        kept = [mask.chunk(n_ranks) for mask in find_places(wanted, 6, 5).T]
        for rank, part in enumerate(parts):
            for k in (0, 1):
                assert plan.kept_PkE[rank, k].tolist() == part[kept[k][rank], k].bincount(minlength=6).tolist()
        everyone = range(n_ranks)
        assert [[plan.sends(r)[s] for r in everyone] for s in everyone] == [plan.receives(s) for s in everyone]
        assert sum((plan.loads(r) for r in everyone), []) == [min(5, n) for n in wanted.flatten().bincount(minlength=6)]
        assert sum(plan.sent_bytes(r, 4) for r in everyone) == sum(plan.returned_bytes(r, 4) for r in everyone)
    with pytest.raises(ValueError, match="6 experts do not split over 4 ranks"):
        plan_dispatch(torch.zeros(4, 2, 6, dtype=torch.int64), None)


def test_the_gate_of_one_choice_is_its_probability_and_two_share_one() -> None:
    x = torch.randn(5, 4, dtype=torch.float64)
    for top_k in (1, 2):
        router = Router(3, 4, top_k).double()
        weight = router.weight.data = torch.randn(3, 4, dtype=torch.float64)
        choice = router(x)
        for token in range(5):
            scores = [math.exp(weight[e] @ x[token]) for e in range(3)]
            best = sorted(range(3), key=lambda e: -scores[e])[:top_k]
            total = sum(scores) if top_k == 1 else sum(scores[e] for e in best)
            assert choice.experts_Tk[token].tolist() == best
            assert choice.gates_Tk[token].tolist() == pytest.approx([scores[e] / total for e in best])


def test_a_bias_moves_choices_and_no_gate() -> None:
    torch.manual_seed(0)
    x, biased, plain = torch.randn(64, 4), BiasedRouter(3, 4, 2), Router(3, 4, 2)
    biased.weight = plain.weight = torch.nn.Parameter(torch.randn(3, 4))
    assert torch.equal(biased(x).experts_Tk, plain(x).experts_Tk)
    biased.bias_E += torch.tensor([0.0, 0.0, 2.0])
    choice = biased(x)
    assert (choice.experts_Tk[:, 0] == 2).all() and choice.experts_Tk[:, 1].max() < 2
    best = choice.probabilities_TE.gather(1, choice.experts_Tk)
    assert torch.allclose(choice.gates_Tk, best / best.sum(1, keepdim=True))
    assert [name for name, _ in biased.named_parameters()] == ["weight"] and "bias_E" in biased.state_dict()


def test_nudges_lead_a_crowd_apart() -> None:
    layer = ExpertMLP(ExpertConfig(8, 8, 4, top_k=2), router=BiasedRouter)
    router = cast(BiasedRouter, layer.router)
    x = torch.randn(256, 8, generator=torch.Generator().manual_seed(0)) + 1
    router.weight.data[0] += 0.2
    shares = []
    for _ in range(300):
        layer(x)
        wanted = layer.routing.choice.experts_Tk.flatten().bincount(minlength=4)
        shares.append(wanted.tolist())
        router.nudge(wanted, rate=0.002)
    assert shares[0][0] > 240 and max(shares[-1]) < 160, (shares[0], shares[-1])
    router.bias_E.zero_()
    router.nudge(torch.tensor([5, 1, 3, 3]), rate=0.5)
    assert router.bias_E.tolist() == [-0.5, 0.5, 0.0, 0.0]


def test_a_bias_moves_in_16_bit_layers_too() -> None:
    """A step of 0.001 is less than half of bf16's spacing from 0.5 on: a bias of 16 bits would stay there."""
    layers = [ExpertMLP(ExpertConfig(8, 8, 4), dtype=torch.bfloat16, router=BiasedRouter)]
    layers.append(ExpertMLP(ExpertConfig(8, 8, 4), router=BiasedRouter).to(torch.bfloat16))
    layers.append(ExpertMLP(ExpertConfig(8, 8, 4), device="meta", router=BiasedRouter).half().to_empty(device="cpu"))
    for layer in layers:
        router = cast(BiasedRouter, layer.router)
        assert layer.up_EDF.dtype == router.weight.dtype != torch.float32 == router.bias_E.dtype
        router.bias_E.fill_(0.5)
        router.nudge(torch.tensor([5, 1, 3, 3]))
        assert router.bias_E.tolist() == pytest.approx([0.499, 0.501, 0.5, 0.5])


@on_ranks(2, diagnose=False)
def test_ranks_take_the_bias_along() -> None:
    whole = ExpertMLP(ExpertConfig(8, 8, 4, top_k=1), router=BiasedRouter)
    before = cast(BiasedRouter, whole.router).bias_E
    before += torch.tensor([0.0, 0.0, 0.0, 2.0])
    layer = ParallelExperts(whole)
    router = cast(BiasedRouter, layer.router)
    layer(torch.randn(6, 8))
    assert layer.routing.first_E.tolist() == [0, 0, 0, 12]
    router.nudge(layer.routing.first_E, rate=1.0)
    assert before.tolist() == [0, 0, 0, 2] and router.bias_E.tolist() == [1, 1, 1, 1]


def routing(logits_TE: Tensor) -> Routing:
    """Of a router with these logits."""
    probabilities = logits_TE.softmax(-1)
    best = probabilities.topk(1)
    first = best.indices[:, 0].bincount(minlength=logits_TE.shape[1])
    kept = torch.ones_like(best.indices, dtype=torch.bool)
    return Routing(Choice(logits_TE, probabilities, best.indices, best.values), kept, first, len(logits_TE))


def test_balance_costs_1_and_collapse_as_many_as_there_are_experts() -> None:
    balanced, collapsed = 50 * torch.eye(4), 50 * torch.eye(4)[[0, 0, 0, 0]]
    assert float(routing(balanced).load_balancing_loss()) == pytest.approx(1)
    assert float(routing(collapsed).load_balancing_loss()) == pytest.approx(4)
    assert float(routing(torch.tensor([[0.0, math.log(3)]] * 2)).z_loss()) == pytest.approx(math.log(4) ** 2)


def test_capacity_is_counted_over_all_tokens_and_rounded_up() -> None:
    assert ExpertConfig(4, 4, 8, 1, 1.25).capacity(1024) == 160
    assert ExpertConfig(4, 4, 8, 2, 1.0).capacity(1023) == 256
    assert ExpertConfig(4, 4, 8, 2).capacity(1024) is None
    assert ExpertConfig(8, 8, 10, 2, 1.1).capacity(50) == 11  # in floats 1.1 · 2 · 50 is 110.00000000000001
    assert ExpertConfig(8, 8, 10, 2, 1.1).capacity(51) == 12
    for wrong in ({"top_k": 9}, {"capacity_factor": 0.0}, {"hidden": 0}, {"experts": True}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            ExpertConfig(**{"width": 4, "hidden": 4, "experts": 8} | wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [16, 5], ids=["whole 16 bytes", "crooked"])
def test_a_grouped_product_is_the_products_of_the_groups(dtype: torch.dtype, width: int) -> None:
    loads = [3, 0, 4, 1]
    rows, weights = torch.randn(8, width, dtype=dtype), torch.randn(4, width, 16, dtype=dtype)
    both = [(rows.clone().requires_grad_(), weights.clone().requires_grad_()) for _ in range(2)]
    want = torch.cat([part @ weight for part, weight in zip(both[0][0].split(loads), both[0][1])])
    ours = grouped_product(*both[1], loads)
    seed = torch.randn_like(want)
    want.backward(seed)
    ours.backward(seed)
    for a, b in ((ours, want), *zip(both[1], both[0])):
        torch.testing.assert_close(a, b)
    torch.testing.assert_close(both[1][1].grad, both[0][1].grad)
    torch.testing.assert_close(both[1][0].grad, both[0][0].grad)


def test_without_torchs_grouped_product_there_is_still_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experts, "has_grouped_product", lambda *_: False)
    rows, weights = torch.randn(4, 16), torch.randn(2, 16, 16)
    torch.testing.assert_close(grouped_product(rows, weights, [1, 3])[:1], rows[:1] @ weights[0])


def test_who_holds_what_covers_everything_once_in_each_copy() -> None:
    config = ExpertConfig(width=8, hidden=12, experts=4)
    has = holdings(Mesh({"data": 2, "expert": 2, "tensor": 2}), config, 48)
    held = [(e, h) for each in has for e in each.experts for h in each.hidden]
    assert sorted(held) == sorted([(e, h) for e in range(4) for h in range(12)] * 2)
    assert sorted(t for each in has for t in each.tokens) == sorted([*range(48)] * 2)
    assert has[0].tokens == has[1].tokens != has[2].tokens and has[0].experts == has[4].experts
    assert sum(each.parameters(config) for each in has) == 2 * 2 * 4 * 8 * 12 + 8 * 4 * 8
    for mesh, tokens, says in (
        ({"pipeline": 2}, 48, "pipeline"),
        ({"expert": 3}, 48, "4 experts"),
        ({"data": 5}, 48, "48 tok"),
    ):
        with pytest.raises(ValueError, match=says):
            holdings(Mesh(mesh), config, tokens)


def test_dropped_tokens_get_nothing_and_experts_that_get_nobody_are_no_problem() -> None:
    layer = ExpertMLP(ExpertConfig(8, 8, 4, top_k=1, capacity_factor=0.5))
    layer.router.weight.data.zero_()
    layer.router.weight.data[2] = 1
    y = layer(torch.ones(1, 16, 8))[0]
    assert layer.routing.kept_Tk.sum() == 2 and (y[:2] != 0).any() and not y[2:].any()
    assert layer.routing.first_E.tolist() == [0, 0, 16, 0]


@pytest.mark.parametrize(("axes", "top_k", "capacity_factor"), CASES)
def test_every_step_equals_one_device(axes: dict[str, int], top_k: int, capacity_factor: float | None) -> None:
    """SGD sees a gradient that is scaled, Adam one that is turned."""
    for optimizer in ("sgd", "adam"):
        args = (ParallelExperts, small(top_k, capacity_factor), axes, optimizer)
        ranks.run(checks.check_parity, *args, world_size=math.prod(axes.values()), diagnose=optimizer == "sgd")


@pytest.mark.parametrize("axes", [*LINES[1:], *GRIDS], ids=str)
def test_bytes_of_each_all_to_all_equal_the_plan(axes: dict[str, int]) -> None:
    ranks.run(checks.check_bytes, ParallelExperts, WIDE, axes, world_size=math.prod(axes.values()))


def test_known_wrong_ones_are_refused() -> None:
    cases: dict[Any, Any] = {}
    for mutant, says in WRONG.items():
        if says.startswith(("holds", "sends")):
            cases[mutant] = (says, checks.check_bytes, mutant, WIDE, {"expert": 2}, {})
        else:
            config = small(getattr(mutant, "top_k", 2), 1.0)
            cases[mutant] = (says, checks.check_parity, mutant, config, {"expert": 2}, "sgd", {})
    assert accepted(2, cases) == {}


@on_ranks(4, diagnose=False)
def test_what_is_frozen_stays_frozen_where_a_layer_is_cut() -> None:
    for name in ("up_EDF", "down_EFD", "router"):
        whole = ExpertMLP(ExpertConfig(8, 8, 4))
        getattr(whole, name).requires_grad_(False)
        cut = ParallelExperts(whole, process_groups(Mesh({"data": 2, "expert": 2, "tensor": 1})))
        cut(torch.ones(3, 8, requires_grad=True)).sum().backward()
        same = zip(whole.parameters(), cut.parameters())
        assert all(theirs.requires_grad == ours.requires_grad == (ours.grad is not None) for theirs, ours in same), name


ORDER = """
import torch.distributed as dist
from course_lib.model.experts import ExpertConfig, ExpertMLP
from course_lib.parallel import experts

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
groups = {axis: dist.new_group([0]) for axis in experts.AXES}
names = {group: axis for axis, group in groups.items()}
experts.add_up_gradients = lambda module, group: print(names[group])
experts.ParallelExperts(ExpertMLP(ExpertConfig(8, 8, 4)), groups)
"""


def test_all_ranks_sum_along_the_axes_in_one_order():
    """Under torchrun each process has a seed of its own for the order of sets; these two have different ones."""
    run = [sys.executable, "-c", ORDER]
    settings = [os.environ | {"PYTHONHASHSEED": seed} for seed in ("0", "3")]
    started = [subprocess.Popen(run, env=env, stdout=subprocess.PIPE, text=True) for env in settings]
    said = [process.communicate(timeout=60)[0].split() for process in started]
    assert said == [["data", "expert"]] * 2
