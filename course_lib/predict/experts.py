"""Parameters, FLOPs and traffic of models with experts: many parameters, few of them for each token.

A published model is counted, or one layer over a mesh:

    predict.expert_parameters(zoo.MIXTRAL_8X7B)         # ParameterCount(total=46,702,792,704, active=12,879,925,248)
    predict.expert_traffic(config, mesh, tokens, 2)["expert"]  # of one layer, in one step, on each rank
"""

from __future__ import annotations

from typing import NamedTuple

from course_kit.accounts import TrafficAccount
from course_kit.units import Count, Flops
from course_lib.model.experts import ExpertConfig
from course_lib.model.zoo import ExpertModel
from course_lib.parallel.experts import holdings
from course_lib.parallel.mesh import Mesh
from course_lib.predict.rank_traffic import COUNTER, Call, priced
from course_lib.predict.setup import Setup, positive
from course_lib.predict.tensors import tally


class ParameterCount(NamedTuple):
    """Parameters of a model with experts.

    Attributes:
        total: all parameters, which memory holds.
        active: those that one token meets, embedding and head among them; the FLOPs of a token follow them.
    """

    total: Count
    active: Count


def expert_parameters(model: ExpertModel) -> ParameterCount:
    """Parameters in all, and those that a token meets: of the routed experts `top_k`, of everything else all."""
    if not isinstance(model, ExpertModel):
        raise ValueError(f"{getattr(model, 'name', model)} has no experts: a token meets all its `parameters`")
    held = [(times * each.elements, each.axes) for each, times in tally(Setup(model, seq=1), 0, "parameters")]
    total, routed = sum(n for n, _ in held), sum(n for n, axes in held if "expert" in axes)
    return ParameterCount(Count(total), Count(total - routed // model.experts * (model.experts - model.top_k)))


def layer_flops(config: ExpertConfig, tokens: int) -> Flops:
    """FLOPs of one layer's forward pass, if no token is dropped: the router, and `top_k` experts for each token."""
    positive(tokens=tokens)
    router = 2 * config.width * config.experts  # a score for each expert
    return Flops(tokens * (router + config.top_k * 4 * config.width * config.hidden))


def expert_traffic(config: ExpertConfig, mesh: Mesh, tokens: int, element_bytes: int) -> dict[str, TrafficAccount]:
    """Bytes that each rank sends for one layer in one step, by axis and operation, if all experts get equally many.

    With p ranks along "expert", each of which brings T tokens of n bytes, and k choices, or as many as there is room:

    - "expert": four all-to-alls (dispatch and combine, forward and backward) of (p-1)/p · k · T · n; an all-gather of
      the counts, 8 bytes for each choice and expert; an all-reduce of the router's gradient.
    - "data": an all-reduce of the gradients of the router and of this rank's experts.
    - "tensor": two all-reduces of k · T · n, one in each pass: the rows that this rank's experts get.

    In truth experts do not get equally many: `DispatchPlan.sent_bytes` has the bytes of a real choice.

    Args:
        config: the layer.
        mesh: ranks along "data", "expert" and "tensor"; those that are missing have one.
        tokens, element_bytes: of the whole batch; of a number, in the stream and in the gradients.

    Raises:
        ValueError: a number that does not divide (`experts.holdings`), or no bytes.
    """
    positive(tokens=tokens, element_bytes=element_bytes)
    held = holdings(mesh, config, tokens)[0]
    data, expert, tensor = (mesh.axes.get(axis, 1) for axis in ("data", "expert", "tensor"))
    filled = min(1.0, config.capacity_factor or 1.0)  # a factor above 1 leaves places empty, and sends nothing for them
    rows = round(filled * config.top_k * len(held.tokens) * config.width * element_bytes)
    router = config.experts * config.width * element_bytes
    return priced([
        Call("expert", "all_to_all", rows, 4, expert),
        Call("expert", "all_gather", expert * config.top_k * config.experts * COUNTER, 1, expert),
        Call("expert", "all_reduce", router, 1, expert),
        Call("data", "all_reduce", held.parameters(config) * element_bytes, 1, data),
        Call("tensor", "all_reduce", rows, 2, tensor),
    ])  # fmt: skip
