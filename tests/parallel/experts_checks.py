"""What a layer of experts on many ranks must do. Each check runs on ranks and raises where it is not so.

The tests call these with `ParallelExperts`, and with the known-wrong ones of `tests/mutants/parallel/experts.py`.
"""

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from course_kit import measure
from course_lib import predict
from course_lib.collectives.operators import Group, all_reduce
from course_lib.model.experts import ExpertConfig, ExpertMLP
from course_lib.parallel.experts import ParallelExperts, combine, dispatch, holdings
from course_lib.parallel.mesh import Mesh, process_groups
from tests.parallel.judging import agree, off
from tests.parallel.parity import RULES

TOKENS, BALANCE, Z = 24, 0.1, 0.01
LIMIT = 1e-11
Layer = type[ParallelExperts]


def residual(layer: Any, x: Tensor) -> Tensor:
    """How a block uses a layer: what was dropped passes by."""
    return x + layer(F.layer_norm(x, x.shape[-1:]))


def batch(width: int, step: int) -> tuple[Tensor, Tensor]:
    """Tokens, which lean to one side, so that a router prefers some experts, and what they should become."""
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(1, TOKENS, width, generator=generator, dtype=torch.float64)
    return x + torch.linspace(2, 0, width, dtype=torch.float64), torch.randn_like(x)


def oracle(config: ExpertConfig) -> ExpertMLP:
    """Weights ten times as large as usual, so that experts differ."""
    layer = ExpertMLP(config, dtype=torch.float64)
    for parameter in layer.parameters():
        parameter.data.mul_(10)
    return layer


def oracle_loss(layer: ExpertMLP, x: Tensor, y: Tensor, copies: int) -> tuple[Tensor, Tensor]:
    """Of all tokens on one device, and what came out; each of `copies` parts of them has a capacity of its own."""
    losses, outs = [], []
    for part, target in zip(x.chunk(copies, 1), y.chunk(copies, 1)):
        outs.append(residual(layer, part))
        extra = BALANCE * layer.routing.load_balancing_loss() + Z * layer.routing.z_loss()
        losses.append((outs[-1] - target).square().sum() / TOKENS + extra / copies)
    return torch.stack(losses).sum(), torch.cat(outs, 1)


def own_loss(layer: Any, x: Tensor, y: Tensor, copies: int) -> tuple[Tensor, Tensor]:
    """This rank's term of the loss, and what came out for its tokens."""
    out = getattr(layer, "residual", residual)(layer, x)
    extra = BALANCE * layer.routing.load_balancing_loss() + Z * layer.routing.z_loss()
    return (out - y).square().sum() / TOKENS + extra / copies, out


def check_parity(cut: Layer, config: ExpertConfig, axes: dict[str, int], optimizer: str) -> None:
    """Loss, outputs, gradients and weights equal the oracle's in each of 4 steps, in which tokens are dropped if, and
    only if, there is a capacity."""
    mesh = Mesh(axes)
    groups, mine = process_groups(mesh), holdings(mesh, config, TOKENS)[dist.get_rank()]
    single = oracle(config)
    ours = cut(single, groups)
    copies, tokens = axes.get("data", 1), slice(mine.tokens.start, mine.tokens.stop)
    kind, settings = RULES[optimizer]
    both = [kind(model.parameters(), **settings) for model in (single, ours)]
    for step in range(4):
        for opt in both:
            opt.zero_grad(set_to_none=True)
        whole, target = batch(config.width, step)
        own, whole = whole[:, tokens].clone().requires_grad_(), whole.requires_grad_()
        loss, want = oracle_loss(single, whole, target, copies)
        term, out = own_loss(ours, own, target[:, tokens], copies)
        loss.backward()
        term.backward()
        total, dropped = (sum_over(each, groups) for each in (term.detach(), (~ours.routing.kept_Tk).sum()))
        assert (dropped > 0) == (config.capacity_factor is not None), f"{dropped} choices are dropped in step {step}"
        problems = off("output", out, want[:, tokens], LIMIT) + off("loss", total, loss, LIMIT)
        problems += off("gradient of the input", own.grad, grad_of(whole)[:, tokens], LIMIT)
        for name, held in parts(ours, "gradient").items():
            problems += off(f"gradient of {name}", held, own_parts(single, mine, "gradient")[name], LIMIT)
        for opt in both:
            opt.step()
        for name, held in parts(ours, "weight").items():
            problems += off(f"weight of {name}", held, own_parts(single, mine, "weight")[name], LIMIT)
        agree(problems, f"in step {step} ")


def sum_over(term: Tensor, groups: dict[str, Any]) -> Tensor:
    """Over the ranks that have tokens of their own."""
    for axis in groups.keys() - {"tensor"}:
        term = all_reduce(term, groups[axis])
    return term


def grad_of(tensor: Tensor) -> Tensor:
    """It has one."""
    assert tensor.grad is not None
    return tensor.grad


def parts(ours: Any, what: str) -> dict[str, Tensor | None]:
    """What a rank holds, by name."""
    found = {"router": ours.router.weight, "up": ours.up_LDf, "down": ours.down_LfD}
    return {name: p.grad if what == "gradient" else p for name, p in found.items()}


def own_parts(single: ExpertMLP, mine: Any, what: str) -> dict[str, Tensor]:
    """What it should hold."""
    whole = (single.router.weight, single.up_EDF, single.down_EFD)
    router, up, down = ((grad_of(p) if what == "gradient" else p).detach() for p in whole)
    experts, hidden = (slice(each.start, each.stop) for each in (mine.experts, mine.hidden))
    return {"router": router, "up": up[experts, :, hidden], "down": down[experts, hidden]}


def check_bytes(cut: Layer, config: ExpertConfig, axes: dict[str, int]) -> None:
    """Parameters held, and bytes of each of the four all-to-alls of a step, which the plan alone predicts (fp32).

    The kernel counts each one; the backend adds a header to each message.
    """
    mesh = Mesh(axes)
    groups, mine = process_groups(mesh), holdings(mesh, config, 256)[dist.get_rank()]
    ours = cut(ExpertMLP(config), groups)
    held, due = sum(p.numel() for p in ours.parameters()), mine.parameters(config)
    agree(held == due, f"holds {held} parameters, not {due}")
    x = torch.randn(1, 256, config.width, generator=torch.Generator().manual_seed(mine.tokens.start))
    own = x[:, : len(mine.tokens)].requires_grad_()
    with measure.traffic() as sent:
        ours(own).square().sum().backward()
    row, rank = 4 * config.width, dist.get_rank(groups["expert"])
    there, back = ours.plan.sent_bytes(rank, row), ours.plan.returned_bytes(rank, row)
    came = sent.modelled_bytes.get("all_to_all", 0)
    agree(came == 2 * (there + back), f"sends {came} bytes by all_to_all, not {2 * (there + back):d}")
    even = predict.expert_traffic(config, Mesh({"data": 1} | axes | {"tensor": 1}), 256, element_bytes=4)
    rest = {op: sum(each.modelled_bytes.get(op, 0) for each in even.values()) for op in ("all_gather", "all_reduce")}
    rest["all_reduce"] += 2 * predict.all_reduce(row * sum(ours.plan.loads(rank)), axes.get("tensor", 1)).bytes
    for operation, due in rest.items():
        came = sent.modelled_bytes.get(operation, 0)
        agree(abs(came - due) <= 8, f"sends {came} bytes by {operation}, not {due:d}")
    wire, total = sent.observed_bytes, 2 * (there + back) + sum(rest.values())
    agree(wire is None or wire <= 1.05 * total + 8192, f"sends {wire} bytes on the wire, not {total:d}")
    check_each(ours.plan, config.width, groups["expert"], there, back)


def check_each(plan: Any, width: int, group: Group, there: int, back: int) -> None:
    """Each of the four all-to-alls by itself."""
    rank = dist.get_rank(group)
    rows = torch.randn(sum(plan.sends(rank)), width, requires_grad=True)
    with measure.traffic() as first:
        at_experts = dispatch(rows, plan, group)
    leaf = at_experts.detach().requires_grad_()
    with measure.traffic() as second:
        home = combine(leaf, plan, group)
    with measure.traffic() as third:
        home.backward(torch.ones_like(home))
    with measure.traffic() as fourth:
        at_experts.backward(torch.ones_like(at_experts))
    agree(torch.equal(home, rows), "a row is not where it was")
    for name, sent, due in zip(("dispatch", "combine") * 2, (first, second, third, fourth), (there, back, there, back)):
        wire, slack = sent.observed_bytes, 512 * dist.get_world_size(group)
        agree(wire is None or due <= wire <= due + slack, f"sends {wire} bytes on the wire in a {name}, not {due:d}")
