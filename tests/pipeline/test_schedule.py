"""Pipeline schedules on paper: against the papers' figures, and wrong ones against what is said about them."""

import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import pytest

from course_lib.pipeline.schedule import (
    ORDERS,
    Action,
    Costs,
    Schedule,
    Span,
    checked,
    dualpipe,
    gantt_of,
    gpipe,
    interleaved,
    naive,
    one_f_one_b,
    parse,
    pipedream,
    problems,
    simulate,
    zb_h2,
    zb_v,
    zero_bubble,
)
from course_lib.pipeline.schedule.gaps import fill_gaps, in_turn
from course_lib.pipeline.schedule.validate import point_to_point

ROOT = Path(__file__).parents[2]
DEADLOCK = "F0 BW0 F1 BW1\nF0 F1 BW0 BW1"
SIZES = [(1, 1), (1, 4), (2, 1), (2, 6), (3, 7), (4, 2), (4, 8), (8, 32)]


def peaks(schedule: Schedule) -> list[int]:
    return simulate(schedule).peak_in_flight


@pytest.mark.parametrize("name", ORDERS)
@pytest.mark.parametrize(("stages", "micro_batches"), SIZES)
def test_every_schedule_is_valid(name, stages, micro_batches):
    if name == "interleaved" and micro_batches % stages:
        with pytest.raises(ValueError, match=f"multiple of it, such as {stages * -(-micro_batches // stages)}"):
            interleaved(stages, micro_batches)
        return
    schedule = ORDERS[name](stages, micro_batches)
    assert problems(schedule) == []
    assert checked(schedule) is schedule
    assert parse(str(schedule), schedule.name) == schedule


@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 1), (4, 4), (4, 8), (4, 16), (8, 32)])
@pytest.mark.parametrize("order", [gpipe, one_f_one_b])
def test_bubbles_of_gpipe_and_1f1b(order, stages, micro_batches):
    """Huang et al. 2019, §2.3: (K-1)/(M+K-1) of the whole; Narayanan et al. 2021, §2.2: (p-1)/m over the ideal."""
    chart = simulate(order(stages, micro_batches))
    assert chart.bubble == pytest.approx((stages - 1) / (micro_batches + stages - 1))
    assert chart.bubble_over_ideal == pytest.approx((stages - 1) / micro_batches)


def test_the_figures_of_four_stages_and_eight_micro_batches():
    one = simulate(one_f_one_b(4, 8))
    assert Fraction(one.bubble).limit_denominator(100) == Fraction(3, 11)
    assert (one.makespan, one.idle(0), one.busy(0)) == (33, 9, 24)  # Qi et al. 2023, table 2: (p-1)(TF+TB+TW) = 9
    assert one.peak_in_flight == [4, 3, 2, 1]  # min(m, p - i)
    assert peaks(gpipe(4, 8)) == [8, 8, 8, 8]
    assert peaks(naive(4, 8)) == [1, 1, 1, 1]
    assert simulate(naive(4, 8)).bubble == 3 / 4
    zero = simulate(zero_bubble(4, 8))
    assert (zero.makespan, [zero.idle(rank) for rank in range(4)]) == (27, [3] * 4)  # table 2: (p-1)(TF+TB-TW) = 3
    assert max(peaks(zero_bubble(4, 8))) == 4  # table 2: p M_B, as 1F1B
    assert simulate(interleaved(4, 8)).bubble_over_ideal == 3 / 16  # Narayanan et al. 2021, §2.2.2: (p-1)/(m v)
    assert simulate(interleaved(4, 8)).makespan == 24 + 9 / 2
    assert peaks(interleaved(4, 8))[0] / 2 == 4 * (1 + 3 / 8)  # Korthikanti et al. 2022, §4.2.3: p(1 + (p-1)/(pv))


@pytest.mark.parametrize(("ranks", "micro_batches", "chunks"), [(2, 4, 3), (4, 4, 2), (4, 8, 4), (8, 32, 2)])
def test_interleaving_divides_the_bubble(ranks, micro_batches, chunks):
    schedule = interleaved(ranks, micro_batches, chunks)
    assert problems(schedule) == []
    assert simulate(schedule).bubble_over_ideal == pytest.approx((ranks - 1) / (micro_batches * chunks))


@pytest.mark.parametrize("stages", [2, 4, 8])
def test_zero_bubbles_idle_time_is_the_papers(stages):
    for forward, input_gradient, weight_gradient in [(1, 1, 1), (3, 3, 2), (2, 2, 1)]:
        chart = simulate(zero_bubble(stages, 3 * stages), Costs(forward, input_gradient, weight_gradient))
        assert chart.idle(0) == (stages - 1) * (forward + input_gradient - weight_gradient)


@pytest.mark.parametrize("ranks", range(2, 9))
def test_no_rank_waits_between_its_first_and_last_action(ranks):
    """Qi et al. 2023: ZB-H2 with 2p - 1 micro-batches on each rank (table 2), ZB-V with p of them, in halves (§6)."""
    for micro_batches in (1, 2, ranks, 2 * ranks - 1, 2 * ranks, 3 * ranks, 24):
        for order, part, most in ((zb_h2, 1, 2 * ranks - 1), (zb_v, 1 / 2, ranks)):
            schedule = order(ranks, micro_batches)
            assert problems(schedule) == []
            chart = simulate(schedule)
            assert [peak * part for peak in chart.peak_in_flight] == [min(micro_batches, most)] * ranks
            if micro_batches >= 2 * ranks - 1:
                for rank, spans in enumerate(chart.spans):  # a parallelogram: rank r begins and ends r stages later
                    assert (spans[0].start, spans[-1].end) == (rank * part, rank * part + 3 * micro_batches)
                assert chart.bubble_without_sync == 0
            if micro_batches >= ranks:
                assert chart.makespan == 3 * micro_batches + (ranks - 1) * part


@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 3), (2, 6), (3, 7), (4, 4), (4, 8), (8, 32)])
def test_filling_the_gaps_of_1f1b_makes_zb_h1(stages, micro_batches):
    orders = [
        [action._replace(kind="B") if action.kind == "BW" else action for action in row]
        for row in one_f_one_b(stages, micro_batches).actions
    ]
    assert (
        fill_gaps("", range(stages), orders, micro_batches, stages).actions
        == zero_bubble(stages, micro_batches).actions
    )


def test_with_unequal_times_zb_h2_waits_as_the_paper_says():
    for costs in [(3, 3, 2), (2, 2, 1)]:
        chart = simulate(zb_h2(4, 12), Costs(*costs))
        forward, input_gradient, weight_gradient = costs
        assert chart.bubble_without_sync * chart.busy(0) == pytest.approx(
            3 * (forward + input_gradient - 2 * weight_gradient)
        )


def test_a_v_is_placed_down_and_up_and_turns_without_a_message():
    schedule = zb_v(3, 4)
    assert schedule.owner == (0, 1, 2, 2, 1, 0)
    assert [schedule.stages_of(rank) for rank in range(3)] == [[0, 5], [1, 4], [2, 3]]
    to_itself = [call for call in point_to_point(schedule, 2) if call.peer == 2]
    assert {(step.message.what, step.message.stage) for step in to_itself} == {("activation", 3), ("gradient", 2)}
    slow = simulate(zb_v(2, 1), Costs(0.5, 0.5, 0.5, transfer=1))
    starts = {action: start for spans in slow.spans for action, start, _ in spans if action.kind == "F"}
    assert [starts[Action("F", stage, 0)] for stage in range(4)] == [0, 1.5, 2, 3.5]


def test_an_order_that_no_rank_can_follow_is_refused():
    rows = [list(row) for row in zb_v(2, 4).actions]
    rows[0].insert(0, rows[0].pop(rows[0].index(Action("F", 3, 0))))
    wrong = Schedule("wrong", tuple(map(tuple, rows)), zb_v(2, 4).owner, 4)
    with pytest.raises(ValueError, match="deadlock: rank 0 waits before F0 .*on stage 3.* rank 1 waits before F0"):
        checked(wrong)
    rows = [list(row) for row in zb_h2(2, 4).actions]
    rows[1].insert(1, rows[1].pop(rows[1].index(Action("W", 1, 0))))
    with pytest.raises(ValueError, match="rank 1: W0 .* comes before B0"):
        checked(Schedule("wrong", tuple(map(tuple, rows)), (0, 1), 4))


@pytest.mark.parametrize(("ranks", "micro_batches"), [(2, 4), (4, 8), (6, 12), (8, 20), (8, 40)])
def test_dualpipe_as_data(ranks, micro_batches):
    """DeepSeek-V3, §3.2.1; without overlap, since F and BW stand one behind the other, half of ZB-H1's bubble."""
    schedule = dualpipe(ranks, micro_batches)
    assert problems(schedule) == []
    assert peaks(schedule) == [ranks + 1] * ranks
    for forward, input_gradient, weight_gradient in [(1, 1, 1), (3, 3, 2)]:
        chart = simulate(schedule, Costs(forward, input_gradient, weight_gradient))
        assert chart.idle(0) == (ranks / 2 - 1) * (forward + input_gradient - weight_gradient)
    assert {schedule.rank_of(0, 0), schedule.rank_of(ranks - 1, micro_batches - 1)} == {0}


def test_dualpipes_order_is_that_of_its_authors_eight_steps():
    """Phase by phase, as the repository deepseek-ai/DualPipe counts them for rank 0 of 4."""
    phases = "F0 F1", "F2 F4", "B4 W4 F5", "F3 BW5 F6 BW0", "BW6 F7 BW1", "BW7 B2", "W2 B3", "W3"
    assert " ".join(map(str, dualpipe(4, 8).actions[0])) == " ".join(phases)


def test_in_dualpipe_a_stage_in_the_other_direction_belongs_to_the_mirrored_rank():
    schedule = dualpipe(4, 8)
    swapped = Schedule("wrong", schedule.actions[::-1], schedule.owner, 8, mirrored=4)
    assert "rank 0: F4 (the forward of micro-batch 4 on stage 0): the weights of stage 0 are on rank 3" in "".join(
        problems(swapped)
    )


def test_pipedream_never_drains_the_pipeline():
    steps_of_one = 8 * simulate(one_f_one_b(4, 1)).makespan  # the same eight updates, each with a drained pipeline
    assert simulate(pipedream(4, 8)).makespan == 33 < steps_of_one == 96


def test_uneven_stages_and_slow_messages_stretch_the_chart():
    slow = simulate(gpipe(2, 2), Costs(forward=[1, 3], input_gradient=1, weight_gradient=0, transfer=0.5))
    assert [span[1:] for span in slow.spans[1]] == [(1.5, 4.5), (4.5, 7.5), (7.5, 8.5), (8.5, 9.5)]
    assert [span[1:] for span in slow.spans[0]] == [(0, 1), (1, 2), (9, 10), (10, 11)]
    assert slow.makespan == 11 and slow.bubble == pytest.approx(1 - 12 / 22)
    moved = gantt_of(slow.name, [[Span(a, s + 7, e + 7) for a, s, e in spans] for spans in slow.spans])
    assert moved == slow


def test_the_chart_as_text():
    assert str(simulate(zero_bubble(2, 2))) == "rank 0  F0 F1 .. B0 W0 B1 W1\nrank 1  .. F0 B0 F1 B1 W0 W1"
    assert str(simulate(pipedream(2, 1))) == "rank 0  F0- ... ... ... BW0 ---\nrank 1  ... F0- BW0 --- ... ..."


QUICK = """
import time
from course_lib.pipeline.schedule import one_f_one_b, simulate
print(simulate(one_f_one_b(35, 280)).bubble_over_ideal)
schedule = one_f_one_b(64, 512)
for _ in range(2):
    start = time.process_time()
    bubble = simulate(schedule).bubble
    print(bubble, time.process_time() - start)
"""


@pytest.mark.timed
def test_a_large_schedule_is_quick():
    """In a process of its own: here, every call is checked against its signature."""
    told = [float(word) for word in subprocess.check_output([sys.executable, "-c", QUICK], cwd=ROOT).split()]
    assert told[0] == pytest.approx(34 / 280)  # MT-NLG's 35 stages
    assert told[1] == pytest.approx(63 / 575)
    assert min(told[2::2]) < 1


WRONG = {
    "F0 F0 BW0\nF0 BW0": "F0 (the forward of micro-batch 0 on stage 0) is there 2 times: one forward pass is",
    "F0 BW0 BW0\nF0 BW0": "BW0 (the backward of micro-batch 0 on stage 0) is there 2 times: what it",
    "F0 BW0 F1\nF0 BW0 F1 BW1": "the backward pass (BW1) of micro-batch 1 on stage 0 is missing",
    "BW0\nF0 BW0": "the forward pass (F0) of micro-batch 0 on stage 0 is missing",
    "F0 B0\nF0 BW0": "the weight gradient (W0) of micro-batch 0 on stage 0 is missing: B and W are halves",
    "F0 BW0 W0\nF0 BW0": "is there whole (BW) and in parts (B, W): one of them is",
    "BW0 F0\nF0 BW0": "rank 0: BW0 (the backward of micro-batch 0 on stage 0) comes before F0: a ba",
    "F0 W0 B0\nF0 BW0": "comes before B0: a weight gradient needs the gradients that the first half",
    "F0 U0 BW0\nF0 BW0 U0": "comes before BW0: an update needs the gradient",
    "F0 BW0 U0\nF0 BW0": "the update (U0) of micro-batch 0 on stage 1 is missing: where one micro-batch",
    "F0 BW0 F0@1\nF0 BW0": "rank 1: F0 (the forward of micro-batch 0 on stage 1): the weights of st",
    "F0@1 F0@0 BW0@1 BW0@0": "rank 0 wants to do F0 (the forward of micro-batch 0 on stage 1), for",
    DEADLOCK: "deadlock: rank 0 waits before BW0 (the backward of micro-batch 0 on stage 0) for the gradient of "
    "micro-batch 0 for stage 0, which rank 1 has not yet made; rank 1 waits before F1 (the forward of micro-batch 1 on "
    "stage 1) for the activation of micro-batch 1 for stage 1, which rank 0 has not yet made. Each waits for the next",
}


@pytest.mark.parametrize(("text", "message"), WRONG.items())
def test_what_is_wrong_is_said(text, message):
    found = problems(parse(text))
    assert any(message in each for each in found), found
    with pytest.raises(ValueError, match="cannot be run:\n- "):
        checked(parse(text))


def test_all_that_is_wrong_is_said_at_once():
    found = problems(Schedule("odd", ((Action("F", 0, 5), Action("F", 3, 0)),), (0,), 1))
    assert "there are 1 micro-batches" in found[0] and "there are 1 stages" in found[1] and len(found) == 4


@pytest.mark.parametrize("order", [one_f_one_b, zero_bubble, pipedream, interleaved])
def test_sends_that_block_close_a_circle(order):
    (told,) = problems(order(4, 8), blocking_sends=True)
    assert told.startswith("deadlock: ") and "and waits until rank" in told
    assert problems(gpipe(4, 8), blocking_sends=True) == problems(naive(4, 8), blocking_sends=True) == []


FORWARDS, BACKWARDS = [Action("F", 0, 0), Action("F", 0, 1)], [Action("B", 0, 0), Action("B", 0, 1)]
STUCK = "no rank can go on after {} actions, with 1 held"
EVEN = "{} micro-batches on {} ranks: DualPipe needs an even"
MISTAKES = [
    (lambda: gpipe(0, 4), "stages=0: it must be a positive integer"),
    (lambda: interleaved(4, 8, 0), "chunks=0"),
    (lambda: parse("F0 X1"), "'X1' is no action"),
    (lambda: parse("F0@1 BW0@1"), "no rank does anything on stage 0"),
    (lambda: simulate(parse(DEADLOCK)), "deadlock"),
    (lambda: fill_gaps("late", [0, 1], [BACKWARDS + FORWARDS, []], 2, most=1), STUCK.format(0)),
    (lambda: fill_gaps("full", [0], [in_turn(FORWARDS) + BACKWARDS], 2, most=1), STUCK.format(1) + " at most"),
    *((lambda n=n, m=m: dualpipe(n, m), EVEN.format(m, n)) for n, m in [(3, 6), (4, 9), (4, 6)]),
]


@pytest.mark.parametrize(("wrong", "message"), MISTAKES)
def test_mistakes_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        wrong()
