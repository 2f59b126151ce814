"""When buckets leave, against cases worked out by hand."""

import pytest

from course_kit.units import Seconds
from course_lib import predict
from course_lib.model.gpt import GPTConfig
from course_lib.predict import Setup
from course_lib.predict.overlap import GradientReady
from tests.predict.refused import refused

LINK = predict.Link(Seconds(0.5), 0.01)
"""Two ranks: a bucket of n bytes takes 2 messages, 1 s, and n/100 s."""
FOUR = [GradientReady(*each) for each in (("d", 100, 1.0), ("c", 100, 2.0), ("b", 100, 3.0), ("a", 100, 10.0))]


@pytest.mark.parametrize(
    ("bucket_bytes", "overlapped", "departures", "end_s"),
    [
        (1, True, [(1, 1, 1, 3), (1, 2, 3, 5), (1, 3, 5, 7), (1, 10, 10, 12)], 12),
        (150, True, [(2, 2, 2, 5), (2, 10, 10, 13)], 13),  # fewer messages, and the last one longer
        (10**6, True, [(4, 10, 10, 15)], 15),  # nothing is hidden
        (150, False, [(2, 2, 10, 13), (2, 10, 13, 16)], 16),  # all leave behind the backward pass
    ],
    ids=["a bucket for each gradient queues on the link", "two buckets", "one bucket", "without overlap"],
)
def test_buckets_leave_when_they_are_full_and_the_link_is_free(bucket_bytes, overlapped, departures, end_s):
    """Of each bucket: gradients in it, when it was full, when it left, when it had arrived."""
    result = predict.overlap(FOUR, bucket_bytes, world_size=2, link=LINK, overlapped=overlapped)
    assert [(each.n_gradients, each.full_s, each.start_s, each.end_s) for each in result.departures] == departures
    assert (result.backward_s, result.end_s, result.waiting_s) == (10, end_s, end_s - 10)
    assert result.messages == 2 * len(departures)


def test_a_bucket_across_the_end_is_hidden_in_part():
    late = [GradientReady("b", 300, 9.0), GradientReady("a", 0, 10.0)]
    result = predict.overlap(late, bucket_bytes=1, world_size=2, link=LINK)
    assert (result.waiting_s, result.end_s) == (4, 14)


def test_one_rank_sends_nothing():
    result = predict.overlap(FOUR, bucket_bytes=1, world_size=1, link=LINK)
    assert (result.messages, result.end_s) == (0, 10)


@pytest.mark.parametrize("tied", [True, False])
def test_gradients_of_a_gpt_by_hand(tied):
    """One layer of width 2: qkv 12, out 4, up 16, down 16 elements, a head of 10; 4 operations for each and token."""
    config = GPTConfig(layers=1, width=2, heads=1, vocab_size=5, context=3, tied=tied)
    ready = predict.gradients_ready(Setup(config, batch_size=10, seq=1, precision="mixed"), flops_per_s=40.0)
    at = {each.name: each.ready_s for each in ready}
    assert at["final_norm.weight"] == 10
    assert at["blocks.0.mlp.down.weight"] == 26
    assert at["blocks.0.mlp.up.weight"] == 42
    assert at["blocks.0.attention.out.weight"] == 46
    assert at["blocks.0.attention.qkv.weight"] == at["token_embedding.weight"] == 58
    assert sum(each.n_bytes for each in ready) == 2 * predict.parameters(config)
    assert [each.ready_s for each in ready] == sorted(at.values())
    assert ready[-1].name == "token_embedding.weight"
    assert ("head.weight" in at) is not tied
    assert tied or (ready[0].name == "head.weight" and ready[0].ready_s == 10)


@pytest.mark.parametrize(
    ("changes", "width"),
    [({}, 4), ({"precision": "bf16"}, 2), ({"precision": "mixed", "gradients": "fp32"}, 4)],
    ids=str,
)
def test_gradients_are_as_wide_as_the_setup_says_and_ranks_share_the_batch(changes, width):
    config = GPTConfig(layers=1, width=2, heads=1, vocab_size=5, context=3)
    alone = predict.gradients_ready(Setup(config, 2, 3, **changes), flops_per_s=1.0)
    assert sum(each.n_bytes for each in alone) == width * predict.parameters(config)
    assert predict.gradients_ready(Setup(config, 8, 3, data=4, **changes), flops_per_s=1.0) == alone


ONE = Setup(GPTConfig(1, 4, 2, 5, 3), batch_size=2)
test_gradients_of_another_backward_pass_are_refused = refused(
    *(
        (lambda wrong=wrong: predict.overlap(wrong, 1, 2, LINK), "in the order in which they get ready")
        for wrong in ([], FOUR[::-1])
    ),
    (lambda: predict.gradients_ready(ONE.with_(recompute="full"), flops_per_s=1.0), "recompute='full'"),
    (lambda: predict.gradients_ready(ONE.with_(micro_batch=1), flops_per_s=1.0), "micro_batch=1"),
    (lambda: predict.gradients_ready(ONE.with_(tensor=2), 1.0), "gradients_ready does not hold for tensor=2"),
    (lambda: predict.gradients_ready(ONE, flops_per_s=0.0), "flops_per_s=0.0: must be positive"),
)
