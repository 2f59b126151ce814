"""When buckets leave, against cases worked out by hand."""

import pytest

from course_kit.units import Seconds
from course_lib import predict
from course_lib.model.gpt import GPTConfig
from course_lib.predict import Setup
from course_lib.predict.overlap import GradientReady

LINK = predict.Link(Seconds(0.5), 0.01)
"""Two ranks: a bucket of n bytes takes 2 messages, 1 s, and n/100 s."""
FOUR = [GradientReady(*each) for each in (("d", 100, 1.0), ("c", 100, 2.0), ("b", 100, 3.0), ("a", 100, 10.0))]


def times(result):
    return [(each.n_gradients, each.full_s, each.start_s, each.end_s) for each in result.departures]


def test_a_bucket_for_each_gradient_queues_on_the_link():
    result = predict.overlap(FOUR, bucket_bytes=1, world_size=2, link=LINK)
    assert times(result) == [(1, 1, 1, 3), (1, 2, 3, 5), (1, 3, 5, 7), (1, 10, 10, 12)]
    assert (result.backward_s, result.end_s, result.waiting_s) == (10, 12, 2)
    assert result.messages == 8


def test_two_buckets_save_messages_and_keep_the_last_one_longer():
    result = predict.overlap(FOUR, bucket_bytes=150, world_size=2, link=LINK)
    assert times(result) == [(2, 2, 2, 5), (2, 10, 10, 13)]
    assert (result.end_s, result.waiting_s, result.messages) == (13, 3, 4)


def test_one_bucket_hides_nothing():
    result = predict.overlap(FOUR, bucket_bytes=10**6, world_size=2, link=LINK)
    assert times(result) == [(4, 10, 10, 15)]
    assert (result.end_s, result.waiting_s) == (15, 5)


def test_without_overlap_all_leave_behind_the_backward_pass():
    result = predict.overlap(FOUR, bucket_bytes=150, world_size=2, link=LINK, overlapped=False)
    assert times(result) == [(2, 2, 10, 13), (2, 10, 13, 16)]
    assert result.waiting_s == 6


def test_a_bucket_across_the_end_is_hidden_in_part():
    late = [GradientReady("b", 300, 9.0), GradientReady("a", 0, 10.0)]
    result = predict.overlap(late, bucket_bytes=1, world_size=2, link=LINK)
    assert (result.waiting_s, result.end_s) == (4, 14)


def test_one_rank_sends_nothing():
    result = predict.overlap(FOUR, bucket_bytes=1, world_size=1, link=LINK)
    assert (result.messages, result.end_s) == (0, 10)


@pytest.mark.parametrize("wrong", [[], FOUR[::-1]])
def test_gradients_come_in_order(wrong):
    with pytest.raises(ValueError, match="in the order in which they get ready"):
        predict.overlap(wrong, 1, 2, LINK)


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


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"recompute": "full"}, "recompute='full'"),
        ({"micro_batch": 1}, "micro_batch=1"),
        ({"tensor": 2}, "gradients_ready does not hold for tensor=2"),
    ],
    ids=str,
)
def test_gradients_of_another_backward_pass_are_refused(changes, words):
    setup = Setup(GPTConfig(1, 4, 2, 5, 3), batch_size=2)
    with pytest.raises(ValueError, match=words):
        predict.gradients_ready(setup.with_(**changes), flops_per_s=1.0)
    with pytest.raises(ValueError, match="flops_per_s=0.0: must be positive"):
        predict.gradients_ready(setup, flops_per_s=0.0)
