"""The record of `measure.memory`: phases, timeline, names, tables, and that watching disturbs nothing."""

import contextlib
import gc
import weakref
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from course_kit import measure
from course_kit.measure.memory import MemoryRecord
from course_lib.model.gpt import GPT
from course_lib.train.step import train_step
from tests.measure.test_memory import SMALL, batch_of, nbytes_of


def test_phases_come_in_order_and_the_accounts_at_their_ends_are_right():
    model = GPT(SMALL)
    optimizer = torch.optim.Adam(model.parameters())
    weights = nbytes_of(model.parameters())
    with measure.memory(model, optimizer) as record:
        for _ in range(2):
            train_step(model, optimizer, batch_of(SMALL))
    assert [p.name for p in record.timeline.phases] == ["forward", "backward", "optimizer step"] * 2
    stops = [p.stop for p in record.timeline.phases]
    assert stops == sorted(stops) and stops[-1] <= len(record.timeline)
    assert record.end_of("forward").gradients == 0 and record.end_of("forward").optimizer == 0
    assert record.end_of("backward").gradients == weights and record.end_of("backward").activations == 0
    assert record.end_of("forward", 1).optimizer == record.end_of("optimizer step").optimizer > 2 * weights
    with pytest.raises(ValueError, match="no phase 'forward' number 2 .* it has: forward, backward"):
        record.end_of("forward", 2)
    weight = torch.randn(8, 8, requires_grad=True)
    with measure.memory() as functional:  # no module
        F.gelu(torch.ones(4, 8) @ weight).sum().backward()
    assert [p.name for p in functional.timeline.phases] == ["forward", "backward"]


def test_what_is_dropped_before_anyone_asks_was_there():
    model = nn.Linear(10, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with measure.memory(model, optimizer) as record:
        for _ in range(2):
            model(torch.ones(1, 10)).sum().backward()
            optimizer.step()
            model.zero_grad(set_to_none=True)
            optimizer.state.clear()
    assert record.timeline["gradients"].max() == 440 and record.after.gradients == 0
    assert record.end_of("optimizer step").optimizer == 440 and record.after.optimizer == 0


def test_a_result_that_autograd_keeps_is_an_activation_from_birth_and_until_it_is_let_go():
    x = torch.ones(1000, requires_grad=True)
    with measure.memory() as record:
        y = x.exp()
        y.backward(torch.ones(1000))
        _ = torch.ones(1)
        kept_by_me = record.now
    rows = record.timeline
    born = int((rows["activations"] > 0).argmax())
    assert rows["temporaries"][: born + 1].max() == 0 and rows["activations"].max() == 4000
    assert kept_by_me.activations == 0 and kept_by_me.temporaries >= 4000 and len(y)


def test_the_timeline_holds_every_account_and_tables_show_them():
    model = GPT(SMALL)
    with measure.memory(model) as record:
        model(*batch_of(SMALL)).backward()
        assert "now" in repr(record)
    timeline = record.timeline
    assert timeline.bytes.shape == (len(timeline), 5) and (timeline.bytes >= 0).all()
    assert timeline.account(timeline.peak_row) == record.peak
    assert timeline["activations"].max() == record.end_of("forward").activations
    assert record.peak.total == timeline.bytes.sum(axis=1).max()
    text, page = repr(record), record._repr_html_()
    words = "at entry", "after forward", "peak (backward)", "at exit", "activations", f"{record.peak.total:.2MiB}"
    assert all(word in text and word in page for word in words)
    assert page.count("<tr") == 5 and "<table>" in record.largest()._repr_html_()


def test_the_largest_blocks_have_names():
    model = GPT(SMALL)
    optimizer = torch.optim.Adam(model.parameters())
    with measure.memory(model, optimizer) as record:
        train_step(model, optimizer, batch_of(SMALL))
    names = {block.name: block for block in record.largest(1000, at="now")}
    weight = names["blocks.1.mlp.up.weight"]
    assert (weight.shape, weight.dtype, weight.category, weight.bytes) == ((64, 16), torch.float32, "parameters", 4096)
    assert names["blocks.1.mlp.up.weight.grad"].category == "gradients"
    assert names["blocks.1.mlp.up.weight: exp_avg_sq"].category == "optimizer"
    at_peak = record.largest(1000)
    assert sum(block.bytes for block in at_peak) == record.peak.total
    assert [b.bytes for b in at_peak] == sorted((b.bytes for b in at_peak), reverse=True)
    assert "blocks.0.attention: softmax" in {block.name for block in at_peak}
    assert len(record.largest(3)) == 3 and "blocks.0" in repr(record.largest(9))
    with pytest.raises(ValueError, match="choose"):
        record.largest(at="end")


def test_blocks_belong_to_the_line_that_made_them_the_backward_pass_among_them():
    weight = torch.ones(32, 32, requires_grad=True)
    with measure.memory(lines=True) as record:
        kept = [weight * number for number in range(3)]
        (kept[0] + kept[1] + kept[2]).sum().backward()
    here = {line.partition(": ")[2]: int(n) for line, n in record.by_line("now").items()}
    assert here == {
        "kept = [weight * number for number in range(3)]": 3 * 4096,
        "(kept[0] + kept[1] + kept[2]).sum().backward()": 4096,
    }
    assert sum(record.by_line().values()) == record.peak.total - record.before.total - weight.nbytes
    with measure.memory() as record:
        assert len(kept[0] + 1) and record.by_line() == {}, "who does not ask pays nothing"
    with pytest.raises(ValueError, match="peak"):
        record.by_line("end")


@pytest.mark.parametrize("package", ["course_kit", "course_lib", "course_pages"])
def test_lines_of_the_courses_own_packages_belong_to_their_callers(package):
    names, file = {}, str(Path(measure.__file__).parents[2] / package / "doubling.py")
    exec(compile("def double(x):\n    return 2 * x\n", file, "exec"), names)
    with measure.memory(lines=True) as record:
        kept = names["double"](torch.ones(100))
    assert {line.partition(": ")[2] for line in record.by_line("now")} == {'kept = names["double"](torch.ones(100))'}
    assert kept.sum() == 200


def test_a_record_closes_when_the_block_raises_and_leaves_nothing_behind():
    model, resize = nn.Linear(3, 3), torch.UntypedStorage.resize_
    with pytest.raises(RuntimeError, match="by design"), measure.memory(model) as record:
        with pytest.raises(ValueError, match="already open"), measure.memory():  # a second record is refused
            pass
        model(torch.ones(1, 3))
        raise RuntimeError("by design")
    before = record.after
    torch.zeros(10_000)
    assert record.peak.total > record.before.total, "the first one went on"
    assert record.now == before and not MemoryRecord.is_open
    assert torch.UntypedStorage.resize_ is resize
    assert not model._forward_hooks and not model.weight._post_accumulate_grad_hooks
    with measure.memory(model) as again:
        with pytest.raises(RuntimeError, match="shapes"):
            model(torch.ones(1, 4))
        kept = torch.ones(1000)
        model(torch.ones(1, 3)).sum().backward()
    assert again.before.parameters == again.after.gradients == 48 and len(kept)
    assert "Linear" not in again.largest(1, at="now")[0].name  # it was made after the module had ended


def test_watching_changes_no_result():
    batch, losses = batch_of(SMALL), []
    for watch in (lambda *_: contextlib.nullcontext(), measure.memory):
        model = GPT(SMALL, seed=1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with watch(model, optimizer):
            losses.append([train_step(model, optimizer, batch).item() for _ in range(3)])
    assert losses[0] == losses[1]


def test_watching_holds_no_graph():
    gc.collect()
    gc.disable()  # without the collector's help: no cycle may hold the graph
    try:
        with measure.memory() as record:
            x = torch.randn(100, requires_grad=True)
            y = x.exp().sigmoid()
            gone = weakref.ref(y)
            del y
            assert gone() is None and record.now.activations == 0
    finally:
        gc.enable()


def test_autograd_does_as_without_a_record():
    with measure.memory():
        x = torch.randn(10, requires_grad=True)
        y = x.exp()
        y.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()
        z = x.exp().sum()
    z.backward()  # the graph outlives the record
    assert x.grad is not None and torch.allclose(x.grad, x.exp())


def test_a_closed_record_keeps_no_model_and_no_memory_alive():
    model = nn.Linear(10, 10)
    with measure.memory(model) as record:
        loss = model(torch.ones(1, 10)).sum()
    gone, block = weakref.ref(model), weakref.ref(model.weight)
    del model, loss
    gc.collect()
    assert gone() is None and block() is None
    assert record.peak.parameters == 440


def test_another_saved_tensors_hook_inside_keeps_working():
    layer = nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 32))
    x = torch.randn(64, 32, requires_grad=True)
    with measure.memory(layer, inputs=x) as plain:
        layer(x).sum().backward()
    with measure.memory(layer, inputs=x) as checkpointed:
        y = checkpoint(layer, x, use_reentrant=False)
        y.sum().backward()
    assert checkpointed.end_of("forward").activations < plain.end_of("forward").activations
    assert checkpointed.end_of("backward").activations == 0
