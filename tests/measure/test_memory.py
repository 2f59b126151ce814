"""`measure.memory` against what is known to the byte: sizes, hand counts, autograd's own saved tensors, MemTracker."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from collections.abc import Iterable
from pathlib import Path
from textwrap import dedent

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed._tools.mem_tracker import MemTracker
from torch.utils.checkpoint import checkpoint

from course_lib import measure
from course_lib.measure.memory import MemoryRecord
from course_lib.model.gpt import GPT, GPTConfig
from course_lib.train.step import train_step

SMALL = GPTConfig(layers=2, width=16, heads=2, vocab_size=31, context=32)


def batch_of(config: GPTConfig, batch_size: int = 3) -> tuple[Tensor, Tensor]:
    shape = (batch_size, config.context)
    return torch.randint(0, config.vocab_size, shape), torch.randint(0, config.vocab_size, shape)


def nbytes_of(tensors: Iterable[Tensor]) -> int:
    """Bytes of the different storages under these tensors."""
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())


def state_tensors(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [v for state in optimizer.state.values() for v in state.values() if isinstance(v, Tensor)]


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p),
    "adamw-foreach": lambda p: torch.optim.AdamW(p, foreach=True),
    "adamw-fused": lambda p: torch.optim.AdamW(p, fused=True),
    "sgd-foreach": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=True),
}
CONFIGS = {
    "explicit": SMALL,
    "fused": GPTConfig(2, 16, 2, 31, 32, attention="fused"),
    "rotary-rms-untied": GPTConfig(2, 16, 2, 31, 32, positions="rotary", norm="rmsnorm", bias=False, tied=False),
    "dropout": GPTConfig(2, 16, 2, 31, 32, dropout=0.1),
}


@pytest.mark.parametrize("optimizer_name", OPTIMIZERS)
def test_states_are_exact_after_one_and_after_three_steps(optimizer_name):
    model = GPT(SMALL)
    optimizer = OPTIMIZERS[optimizer_name](model.parameters())
    for steps in (1, 3):
        with measure.memory(model, optimizer) as record:
            for _ in range(steps):
                train_step(model, optimizer, batch_of(SMALL))
        assert record.after.parameters == nbytes_of(model.parameters())
        assert record.after.gradients == nbytes_of(p.grad for p in model.parameters() if p.grad is not None)
        assert record.after.optimizer == nbytes_of(state_tensors(optimizer))
        assert record.after.activations == 0


@pytest.mark.parametrize("optimizer_name", OPTIMIZERS)
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_the_peak_is_memtrackers_to_the_byte(config, optimizer_name):
    batch, model = batch_of(config), GPT(config)
    ours, theirs = (OPTIMIZERS[optimizer_name](model.parameters()) for _ in range(2))
    with measure.memory(model, ours, batch) as record:
        train_step(model, ours, batch)
    model.zero_grad(set_to_none=True)
    tracker = MemTracker()
    tracker.track_external(model, theirs, *batch)
    with tracker:
        train_step(model, theirs, batch)
    (peak,) = tracker.get_tracker_snapshot("peak").values()
    (current,) = tracker.get_tracker_snapshot("current").values()
    assert record.peak.total == peak["Total"]
    assert record.after.total == current["Total"]


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_activations_are_what_autograd_saved(config):
    model, batch = GPT(config), batch_of(config)
    saved: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        saved.append(tensor.detach())
        return saved[-1]

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = model(*batch)
    parameters = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept = nbytes_of([t for t in saved if t.untyped_storage().data_ptr() not in parameters])
    del loss, saved
    with measure.memory(model, None, batch) as record:
        loss = model(*batch)
        assert record.now.activations == kept
        loss.backward()
        assert record.now.activations == 0
    assert record.end_of("forward").activations == kept


def test_a_hand_count():
    """Two linear layers with a ReLU: the input and the ReLU's result are kept, the bias add's result is not."""
    model = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 5))
    x = torch.randn(8, 10)
    with measure.memory(model, inputs=x) as record:
        y = model(x)
        in_between = record.now
        y.sum().backward()
    weights = 4 * (10 * 20 + 20 + 20 * 5 + 5)
    assert in_between.parameters == weights
    assert in_between.activations == 4 * (8 * 10 + 8 * 20)
    assert in_between.temporaries == 4 * 8 * 5  # y
    assert record.before.temporaries == 4 * 8 * 10  # x, not yet saved
    assert record.after.gradients == weights
    assert record.after.temporaries == 4 * (8 * 10 + 8 * 5)


def test_one_storage_counts_once_however_many_tensors_view_it():
    with measure.memory() as record:
        x = torch.zeros(1000)
        views = [x[:10], x.view(10, 100), x.t(), x.detach(), nn.Parameter(x)]
        assert record.now.total == 4000
        del x
        assert record.now.total == 4000
        del views
        assert record.now.total == 0


def test_tied_weights_count_once():
    tied, untied = (GPT(GPTConfig(1, 16, 2, 31, 32, tied=tied)) for tied in (True, False))
    with measure.memory(tied) as record:
        pass
    with measure.memory(untied) as other:
        pass
    assert other.before.parameters - record.before.parameters == 4 * 31 * 16


def test_resizing_in_place_is_followed():
    with measure.memory() as record:
        x = torch.zeros(100)
        x.resize_(1000)
        assert record.now.total == 4000
        x.untyped_storage().resize_(0)  # how sharded data parallelism frees a weight; not an operation
        assert record.now.total == 0
        x.untyped_storage().resize_(8)
    assert record.after.total == 8 and record.peak.total == 4000


def test_everything_made_inside_is_found_without_being_given():
    with measure.memory() as record:
        model = nn.Linear(10, 10)
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.randn(4, 10)).sum().backward()
        optimizer.step()
    assert record.after.parameters == record.after.gradients == 4 * 110
    assert record.after.optimizer == 2 * 4 * 110 + 2 * 4


def test_a_model_from_before_that_is_only_called_counts_from_the_start():
    model = nn.Linear(10, 10)
    with measure.memory() as record:
        model(torch.randn(4, 10))
    assert record.before.parameters == record.after.parameters == 440


def test_weights_without_a_module():
    w, x = torch.randn(10, 10, requires_grad=True), torch.randn(4, 10)
    optimizer = torch.optim.SGD([w], lr=0.1, momentum=0.9)
    with measure.memory(optimizer=optimizer) as record:
        (x @ w).sum().backward()
        optimizer.step()
    assert record.after.parameters == record.after.gradients == record.after.optimizer == 400
    with measure.memory() as record:
        (x @ w).sum()
    assert record.after.parameters == 400


def test_an_optimizers_own_copy_of_the_weights_is_its_state():
    model = nn.Linear(10, 10, bias=False).bfloat16()
    master = model.weight.detach().float().requires_grad_()
    optimizer = torch.optim.SGD([master], lr=0.1)
    with measure.memory(model, optimizer) as record:
        model(torch.ones(1, 10, dtype=torch.bfloat16)).sum().backward()
        assert model.weight.grad is not None
        master.grad = model.weight.grad.float()
        optimizer.step()
    assert record.after.parameters == 200 and record.after.optimizer == 400
    assert record.after.gradients == 200 + 400


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


def test_gradients_that_are_dropped_before_anyone_asks_were_gradients():
    model = nn.Linear(10, 10)
    with measure.memory(model) as record:
        for _ in range(2):
            model(torch.ones(1, 10)).sum().backward()
            model.zero_grad(set_to_none=True)
    assert record.timeline["gradients"].max() == 440 and record.after.gradients == 0


def test_state_that_is_dropped_before_the_end_was_state():
    model = nn.Linear(10, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with measure.memory(model, optimizer) as record:
        model(torch.ones(1, 10)).sum().backward()
        optimizer.step()
        optimizer.state.clear()
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


def test_the_timeline_holds_every_account():
    model = GPT(SMALL)
    with measure.memory(model) as record:
        model(*batch_of(SMALL)).backward()
    timeline = record.timeline
    assert timeline.bytes.shape == (len(timeline), 5) and (timeline.bytes >= 0).all()
    assert timeline.account(timeline.peak_row) == record.peak
    assert timeline["activations"].max() == record.end_of("forward").activations
    assert record.peak.total == timeline.bytes.sum(axis=1).max()


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


def test_a_record_closes_when_the_block_raises_and_leaves_nothing_behind():
    model, resize = nn.Linear(3, 3), torch.UntypedStorage.resize_
    with pytest.raises(RuntimeError, match="by design"), measure.memory(model) as record:
        model(torch.ones(1, 3))
        raise RuntimeError("by design")
    before = record.after
    torch.zeros(10_000)
    assert record.now == before and not MemoryRecord.is_open
    assert torch.UntypedStorage.resize_ is resize
    assert not model._forward_hooks and not model.weight._post_accumulate_grad_hooks
    with measure.memory(model) as again:
        pass
    assert again.before.parameters == 48


def test_a_module_that_raises_does_not_confuse_the_next_one():
    model = nn.Linear(3, 3)
    with measure.memory(model) as record:
        with pytest.raises(RuntimeError, match="shapes"):
            model(torch.ones(1, 4))
        kept = torch.ones(1000)
        model(torch.ones(1, 3)).sum().backward()
    assert record.after.gradients == 48 and len(kept)
    assert "Linear" not in record.largest(1, at="now")[0].name  # it was made after the module had ended


def test_a_second_record_inside_is_refused_and_the_first_goes_on():
    with measure.memory() as record:
        with pytest.raises(ValueError, match="already open"), measure.memory():
            pass
        kept = torch.zeros(100)
    assert record.after.total == 400 and kept is not None


def test_watching_changes_neither_results_nor_lifetimes():
    batch = batch_of(SMALL)
    losses = []
    for watched in (False, True):
        model = GPT(SMALL, seed=1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if watched:
            with measure.memory(model, optimizer):
                losses.append([train_step(model, optimizer, batch).item() for _ in range(3)])
        else:
            losses.append([train_step(model, optimizer, batch).item() for _ in range(3)])
    assert losses[0] == losses[1]
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


def test_a_tensor_that_was_changed_after_it_was_saved_is_still_an_error():
    with measure.memory():
        x = torch.randn(10, requires_grad=True)
        y = x.exp()
        y.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


def test_a_graph_that_outlives_the_record_still_works():
    x = torch.ones(10, requires_grad=True)
    with measure.memory():
        y = x.exp().sum()
    y.backward()
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


def test_meta_tensors_have_no_bytes_and_a_model_that_materialises_has():
    with measure.memory() as record:
        model = GPT(SMALL, device="meta")
        assert record.now.total == 0
        model.to_empty(device="cpu")
    assert record.after.total == nbytes_of(model.parameters())


def test_double_backward_and_retained_graphs():
    x = torch.randn(50, requires_grad=True)
    with measure.memory() as record:
        y = (x**3).sum()
        y.backward(retain_graph=True)
        assert record.now.activations == 0  # x**3 keeps x alone, and x is a weight
        z = x.exp().sum()
        kept = record.now.activations
        z.backward(retain_graph=True)
        assert record.now.activations == kept == 200
        z.backward()
        assert record.now.activations == 0
        (g,) = torch.autograd.grad((x.exp() * x).sum(), x, create_graph=True)
        g.sum().backward()
    assert record.after.parameters == 200


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


def test_functional_code_without_modules_has_phases_too():
    w = torch.randn(8, 8, requires_grad=True)
    with measure.memory() as record:
        F.gelu(torch.ones(4, 8) @ w).sum().backward()
    assert [p.name for p in record.timeline.phases] == ["forward", "backward"]


def test_the_tables_show_the_accounts():
    model = GPT(SMALL)
    with measure.memory(model) as record:
        model(*batch_of(SMALL)).backward()
        assert "now" in repr(record)
    text, page = repr(record), record._repr_html_()
    for word in (
        "at entry",
        "after forward",
        "peak (backward)",
        "at exit",
        "activations",
        f"{record.peak.total:.2MiB}",
    ):
        assert word in text and word in page
    assert page.count("<tr>") == 5 and "<table>" in record.largest()._repr_html_()


def test_watching_costs_at_most_half_a_step():
    """In a process of its own, or the shape checks of the test run would be measured, too; in processor time, which
    does not depend on who else is busy on this machine."""
    measured = """
        import time
        from benchmarks.memory import CONFIGS, timed_steps
        config, batch_size = CONFIGS["lesson 00: 4 layers, width 128"]
        plain, ours, theirs = map(min, timed_steps(config, batch_size, 10, clock=time.process_time).values())
        print(ours / plain, ours / theirs)
    """
    run = subprocess.run(
        [sys.executable, "-c", dedent(measured)], cwd=Path(__file__).parents[2], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    to_plain, to_memtracker = map(float, run.stdout.split())
    assert to_plain <= 1.5 and to_memtracker < 1


@pytest.mark.gpu
def test_on_a_gpu_the_tracker_and_the_allocator_agree():
    model = GPT(SMALL, device="cuda")
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    inputs, targets = batch_of(SMALL)
    batch = inputs.cuda(), targets.cuda()
    train_step(model, optimizer, batch)
    with measure.memory(model, optimizer, batch) as record:
        train_step(model, optimizer, batch)
    assert record.after.parameters == nbytes_of(model.parameters())
    assert record.allocator["peak"] >= record.allocator["after"] > 0
    # The allocator rounds every block up to 512 bytes and sees what kernels use inside, so it can only say more.
    assert record.allocator["peak"] >= record.peak.total - record.before.total
