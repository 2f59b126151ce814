"""What a layer of experts costs, in closed form, beside what is counted."""

import pytest
import torch

from course_kit import measure, ranks
from course_lib import predict
from course_lib.model.experts import ExpertConfig, ExpertMLP
from course_lib.parallel.experts import ParallelExperts
from course_lib.parallel.mesh import Mesh
from tests.predict.refused import refused

CONFIG = ExpertConfig(width=16, hidden=32, experts=8, top_k=2)


def test_an_oracle_computes_all_experts_and_a_layer_the_chosen_ones() -> None:
    layer, tokens = ExpertMLP(CONFIG), 24
    with measure.flops() as record:
        layer(torch.randn(1, tokens, 16))
    router = 2 * tokens * 16 * 8
    experts = predict.layer_flops(CONFIG, tokens) - router
    assert record.total - router == pytest.approx(experts * 8 / 2, rel=0.1)  # and weighing them


def test_a_parallel_layer_computes_the_chosen_ones() -> None:
    """Three times in a step, and whether torch has a product for groups or not."""

    def count(dtype: torch.dtype) -> tuple[int, int]:
        layer = ParallelExperts(ExpertMLP(CONFIG, dtype=dtype))
        with measure.flops() as counted, measure.MatrixProducts() as ours:
            layer(torch.randn(1, 24, 16, dtype=dtype, requires_grad=True)).sum().backward()
        return counted.total, ours.flops

    for dtype in (torch.float32, torch.float64):
        assert ranks.run(count, dtype, world_size=1) == [(3 * predict.layer_flops(CONFIG, 24),) * 2]


def test_traffic_of_an_even_layer() -> None:
    sent = predict.expert_traffic(CONFIG, Mesh({"data": 2, "expert": 4, "tensor": 2}), tokens=64, element_bytes=2)
    rows = 2 * 8 * 16 * 2  # two choices of 8 tokens
    assert sent["expert"].modelled_bytes == {
        "all_to_all": 4 * rows * 3 // 4,
        "all_gather": 3 * 2 * 8 * 8,
        "all_reduce": 2 * 3 * (8 * 16 * 2) // 4,
    }
    assert sent["tensor"].total_bytes == 2 * rows
    assert sent["data"].total_bytes == 2 * (8 * 16 + 2 * 2 * 16 * 16)  # an all-reduce of two ranks sends all of it
    assert set(predict.expert_traffic(CONFIG, Mesh({"expert": 4}), 64, 2)) == {"expert"}
    half = predict.expert_traffic(ExpertConfig(16, 32, 8, 2, 0.5), Mesh({"expert": 4}), 64, 2)
    assert half["expert"].modelled_bytes["all_to_all"] == 4 * (16 * 16 * 2) * 3 // 4  # 16 tokens, one choice


test_nothing_is_refused_without_a_number = refused(
    (lambda: predict.layer_flops(CONFIG, 0), "tokens=0"),
    (lambda: predict.expert_traffic(CONFIG, Mesh({"expert": 2}), 64, 0), "element_bytes=0"),
)
