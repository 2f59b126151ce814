"""The timeline of real ranks: who computed, who waited for whom, and what was sent behind the computation."""

import importlib
import json
import time
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from course_kit import measure, ranks
from course_kit.measure import Event, RankTimeline
from course_kit.measure.timeline import chrome_trace, clock_offset_s
from course_kit.ranks._diagnosis import announce
from course_lib.parallel import BucketedDataParallel
from course_pages.lesson07.pictures import rank_timeline


def made_up():
    return RankTimeline(
        [
            Event(0, "compute", "forward", 0.0, 0.4),
            Event(0, "compute", "backward", 0.4, 0.8),
            Event(0, "wait", "all_reduce", 0.8, 1.0),
            Event(0, "send", "all_reduce", 0.5, 0.7),
            Event(0, "send", "all_reduce", 0.6, 1.0),
            Event(1, "compute", "forward", 0.1, 1.0),
        ]
    )


def test_seconds_count_no_moment_twice():
    record = made_up()
    assert record.seconds(0, "compute") == pytest.approx(0.8)
    assert record.seconds(0, "send") == pytest.approx(0.5)
    assert record.hidden(0) == pytest.approx(0.3)
    assert record.seconds(1, "wait") == 0 == record.hidden(1)


def test_the_chrome_trace_is_what_the_format_asks_for(tmp_path):
    made_up().save(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    found = [event for event in events if event["ph"] == "X"]
    assert len(found) == 6
    assert {"ph": "X", "name": "backward", "cat": "compute", "pid": 0, "tid": 0, "ts": 4e5, "dur": 4e5} in found
    assert {event["tid"] for event in found if event["cat"] == "send"} == {1, 2}
    names = {event["args"]["name"] for event in events if event["ph"] == "M"}
    assert names == {"rank 0", "rank 1", "program", "network 1", "network 2"}


def test_events_of_one_thread_of_a_chrome_trace_never_overlap():
    """A viewer takes events of a thread for nested calls. Three messages, two at a time; 0.1 + 0.2 rounds up."""
    sends = [Event(0, "send", name, *times) for name, *times in (("a", 0, 2), ("b", 1, 3), ("c", 2, 4))]
    spans = [Event(0, "compute", "x", 0.0, 0.1 + 0.2), Event(0, "wait", "y", 0.1 + 0.2, 1 / 3)]
    events = [event for event in chrome_trace(sends + spans)["traceEvents"] if event["ph"] == "X"]
    assert {event["name"]: event["tid"] for event in events} == {"a": 1, "b": 2, "c": 1, "x": 0, "y": 0}
    x, y = (event for event in events if event["tid"] == 0)
    assert x["ts"] + x["dur"] <= y["ts"]


def test_the_chart_has_a_bar_for_every_event_and_a_name_where_it_fits():
    (axes,) = rank_timeline(made_up(), caption="c", alt="a").figure.axes
    assert len(axes.collections) == 6
    assert [text.get_text() for text in axes.texts] == ["forward", "backward", "forward"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["rank 0", "rank 1"]
    with pytest.raises(ValueError, match="this timeline is empty"):
        rank_timeline(RankTimeline(), caption="c", alt="a")


def spans():
    wait = dist.Work.wait
    with measure.timeline() as record, record.span("outer"):
        with record.span("inner"):
            pass
        torch.ones(2).add_(1)
    with pytest.raises(ValueError, match="which has ended"), record.span("late"):
        pass
    with pytest.raises(KeyError), measure.timeline():
        raise KeyError("mine")
    return [event.name for event in record.of(dist.get_rank(), "compute")], dist.Work.wait is wait


def test_an_inner_span_counts_and_the_outer_one_comes_back_and_nothing_stays_behind():
    assert ranks.run(spans, world_size=2) == [(["compute", "outer", "inner", "outer", "compute"], True)] * 2


def announced_and_recorded():
    """The diagnosis and a timeline watch the same waits; who came first leaves first."""
    interceptor, wait = announce.CommunicationInterceptor(0, lambda _: None), dist.Work.wait
    interceptor.put_on()
    with measure.timeline() as record:
        interceptor.take_off()
        dist.all_reduce(torch.ones(4))
    return [event.name for event in record.of(dist.get_rank(), "wait")], dist.Work.wait is wait


def test_the_diagnosis_and_a_timeline_leave_in_any_order():
    with ranks.Ranks(world_size=2, diagnose=False) as pool:
        assert pool.run(announced_and_recorded) == [(["all_reduce"], True)] * 2


def late_rank(late_s: float, skew_s: float = 0.0) -> RankTimeline:
    """Rank 1 comes late to an all-reduce; then rank 0 sends it something."""
    module: Any = importlib.import_module("course_kit.measure.timeline")
    rank, before = dist.get_rank(), module._clock
    with measure.timeline():
        torch.ones(1)  # PyTorch imports a good deal when an operation is watched for the first time
    module._clock = lambda: time.perf_counter() + skew_s * rank
    try:
        dist.barrier()
        with measure.timeline() as record:
            with record.span("work"):
                time.sleep(late_s * rank)
            dist.all_reduce(torch.ones(1000))
            if rank == 0:
                dist.send(torch.ones(10), 1)
            else:
                dist.recv(torch.ones(10), 0)
        return record
    finally:
        module._clock = before


@pytest.mark.parametrize(
    ("late_s", "skew_s"),
    [
        (0.05, 0.0),
        (0.05, 1000.0),
        *(pytest.param(1.0, skew_s, marks=pytest.mark.timed) for skew_s in (0.0, 1000.0, -5.0)),
    ],
)
def test_the_early_rank_waits_for_the_late_one_whatever_their_clocks(late_s, skew_s):
    record, other = ranks.run(late_rank, late_s, skew_s, world_size=2)
    assert record.events == other.events and record.world_size == 2
    names = {kind: [[event.name for event in record.of(r, kind)] for r in (0, 1)] for kind in ("wait", "send")}
    assert [names["wait"][0][:2], names["wait"][1][:2]] == [["all_reduce", "send"], ["all_reduce", "recv"]]
    assert names["send"] == [["all_reduce", "send"], ["all_reduce"]]
    for rank in (0, 1):  # which does one thing at a time
        doing = sorted([*record.of(rank, "compute"), *record.of(rank, "wait")], key=lambda event: event.start_s)
        assert all(a.end_s == pytest.approx(b.start_s, abs=1e-9) for a, b in zip(doing, doing[1:]))
        total = record.seconds(rank, "compute") + record.seconds(rank, "wait")
        assert total == pytest.approx(doing[-1].end_s - doing[0].start_s)
    assert min(event.start_s for event in record.events) == 0
    assert max(event.end_s for event in record.events) < 500, "the clocks of the two ranks, laid over each other"
    if late_s < 1:
        return  # on a busy machine the early rank may be late
    (first, *_), (late, *_) = record.of(0, "wait"), record.of(1, "wait")
    work = next(event for event in record.of(1, "compute") if event.name == "work")
    assert work.end_s - work.start_s >= late_s
    assert first.start_s < work.end_s - 0.05 < first.end_s < work.end_s + 4  # it waits until the late one comes
    assert late.start_s >= work.end_s - 1e-9
    # Nobody's all-reduce ends before everybody's has begun: that would be an answer from the future.
    assert first.end_s > late.start_s - 0.05 and late.end_s > first.start_s


def device_of_the_clocks(backends: str) -> Any:
    backend = mock.patch.object(dist, "get_backend_config", return_value=backends)
    with backend, mock.patch.object(torch, "zeros") as made:
        clock_offset_s()
    return made.call_args.kwargs["device"]


@pytest.mark.parametrize(
    ("backends", "device"), [("cpu:gloo,cuda:nccl", "cpu"), ("cuda:nccl", "cuda"), ("cpu:gloo,cuda:gloo", "cpu")]
)
def test_clocks_are_compared_on_a_device_that_the_group_talks_on(backends, device):
    assert ranks.run(device_of_the_clocks, backends, world_size=1) == [device]


NAP_S = 0.2


class Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, *grads):
        time.sleep(NAP_S)
        return grads[0]


def hidden_or_not(overlap):
    """Two matrices are sent; with overlap the first one leaves while the second layer's backward pass sleeps."""
    layers = torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)
    replica = BucketedDataParallel(torch.nn.ModuleList(layers), bucket_bytes=2**14, overlap=overlap)
    for _ in range(2):
        with measure.timeline() as record:
            loss = layers[1](Slow.apply(layers[0](torch.ones(1, 64)))).sum()
            with record.span("backward"):
                loss.backward()
            replica.synchronize()
    return record


def test_overlap_is_visible():
    """A message that leaves before the nap leaves a nap before the end of the pass, however slow the machine is."""
    together, after = (ranks.run(hidden_or_not, overlap, world_size=2)[0] for overlap in (True, False))
    for rank in (0, 1):
        span = next(event for event in together.of(rank, "compute") if event.name == "backward")
        assert any(span.start_s < event.start_s < span.end_s - 0.9 * NAP_S for event in together.of(rank, "send"))
        backward_end = max(event.end_s for event in after.of(rank, "compute") if event.name == "backward")
        assert all(event.start_s >= backward_end for event in after.of(rank, "send"))
    assert sum(together.hidden(rank) for rank in (0, 1)) > 0
