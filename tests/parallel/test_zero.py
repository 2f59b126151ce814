"""ZeRO's stages 1 and 2 on real ranks: against the single-device step, and against the paper's bytes."""

import contextlib
import functools

import pytest
import torch
import torch.distributed as dist

from course_kit import measure, ranks
from course_kit.ranks import RankFailure
from course_lib.parallel.zero import ZeroOptimizer
from course_lib.parallel.zero3 import Zero3
from course_lib.train.gradients import clip_gradients
from course_lib.train.precision import LossScaler
from course_lib.train.recompute import recompute
from tests.mutants.parallel import zero as wrong
from tests.parallel import checks
from tests.parallel import zero_checks as zero


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_every_step_equals_the_single_device(world_size):
    """A tied GPT; and a model with a frozen, an unused and a rarely used layer, and branches that ranks disagree on."""
    ranks.run(zero.every_parity, ZeroOptimizer, world_size=world_size, diagnose=False)


@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_a_rank_holds_and_sends_the_bytes_of_the_paper(world_size, stage):
    ranks.run(zero.check_bytes, ZeroOptimizer, stage, world_size=world_size, diagnose=False)


def every_scaler():
    zero.check_fp16(ZeroOptimizer, 1)
    theirs = functools.partial(torch.amp.GradScaler, "cpu")  # type: ignore[attr-defined]
    zero.check_fp16(ZeroOptimizer, 2, theirs, passes=2)


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_fp16_with_a_loss_scaler_skips_the_single_devices_steps(world_size):
    """Under the course's scaler and PyTorch's; with clipping, and accumulation."""
    ranks.run(every_scaler, world_size=world_size, diagnose=False)


@pytest.mark.parametrize("mutant", wrong.WRONG_SCALED)
def test_ranks_that_decide_alone_are_rejected(mutant):
    with pytest.raises(RankFailure, match="AssertionError: step 1 is taken by one rank"):
        ranks.run(zero.check_fp16, mutant, 1, world_size=4, timeout_s=30, diagnose=False)


def test_a_scaler_before_the_reduction_is_refused():
    def too_early():
        model = torch.nn.Linear(2, 2)
        optimizer, scaler = ZeroOptimizer(model.parameters(), torch.optim.SGD, lr=0.1), LossScaler()
        scaler.scale(model(torch.ones(1, 2)).sum()).backward()
        scaler.step(optimizer)

    with pytest.raises(RankFailure, match="not reduced yet; call reduce_gradients.. on all ranks, then the scaler"):
        ranks.run(too_early, world_size=2, timeout_s=30, diagnose=False)


@pytest.mark.parametrize("mutant", wrong.WRONG_WEIGHTS)
def test_wrong_weights_are_rejected(mutant):
    with pytest.raises(RankFailure, match="AssertionError: after step 0"):
        ranks.run(zero.check_parity, mutant, checks.gpt, "sgd", 1, world_size=2, timeout_s=30, diagnose=False)


@pytest.mark.parametrize("mutant", wrong.WRONG_NORMS)
def test_wrong_norms_are_rejected(mutant):
    with pytest.raises(RankFailure, match="AssertionError: the norm in step 0"):
        ranks.run(zero.check_parity, mutant, checks.gpt, "sgd", 1, 0.05, world_size=2, timeout_s=30, diagnose=False)


@pytest.mark.parametrize("mutant", wrong.WRONG_BYTES)
def test_wrong_bytes_are_rejected(mutant):
    with pytest.raises(RankFailure, match="AssertionError: .*(holds|sends)"):
        ranks.run(zero.check_bytes, mutant, wrong.WRONG_BYTES[mutant], world_size=4, timeout_s=30, diagnose=False)


def test_what_cannot_be_is_refused():
    def refusals():
        frozen = torch.nn.Linear(2, 2).requires_grad_(False)
        said = []
        for params, stage in ((torch.nn.Linear(2, 2).parameters(), 3), (frozen.parameters(), 1)):
            try:
                ZeroOptimizer(params, torch.optim.SGD, stage=stage, lr=0.1)  # type: ignore[arg-type]
            except ValueError as problem:
                said.append(str(problem))
        return said

    said = ranks.run(refusals, world_size=2)[0]
    assert said[0].startswith("stage=3") and said[1].startswith("no parameter to train")


@pytest.mark.parametrize("schedule", ["by hand", *zero.SCHEDULES])
@pytest.mark.parametrize("stage", [1, 2])
def test_a_schedule_changes_the_rate_at_any_time(stage, schedule):
    ranks.run(zero.check_schedule, ZeroOptimizer, stage, schedule, world_size=2, diagnose=False)


def test_torch_s_scaler_before_the_reduction_is_refused_too():
    def too_early():
        model = torch.nn.Linear(2, 2)
        optimizer, scaler = (
            ZeroOptimizer(model.parameters(), torch.optim.SGD, stage=2, lr=0.1),
            torch.amp.GradScaler("cpu"),
        )
        scaler.scale(model(torch.ones(1, 2)).sum()).backward()
        scaler.unscale_(optimizer)

    with pytest.raises(RankFailure, match="not reduced yet; call reduce_gradients"):
        ranks.run(too_early, world_size=2, timeout_s=30, diagnose=False)


def clip_with_torch(optimizer):
    torch.nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 1.0)


@pytest.mark.parametrize("clip", [clip_with_torch, lambda optimizer: clip_gradients(optimizer, 1.0)])
def test_a_shard_does_not_tell_its_norm(clip):
    def clips():
        model = torch.nn.Linear(2, 2)
        optimizer = ZeroOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
        model(torch.ones(1, 2)).sum().backward()
        optimizer.reduce_gradients()
        clip(optimizer)

    with pytest.raises(RankFailure, match="one rank's shard.*clip with clip_grad_norm_"):
        ranks.run(clips, world_size=2, timeout_s=30, diagnose=False)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("world_size", [2, 3])
def test_masters_and_gradients_can_be_gathered(world_size, dtype):
    def both_stages():
        for stage in (1, 2):
            zero.check_gathered(ZeroOptimizer, stage, dtype)

    ranks.run(both_stages, world_size=world_size, diagnose=False)


def test_what_is_not_whole_is_not_handed_out():
    def refusals():
        model, said = torch.nn.Linear(2, 2), []
        optimizer = ZeroOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
        for call in (
            optimizer.state_dict,
            lambda: optimizer.add_param_group({"params": []}),
            lambda: optimizer.gathered_masters(torch.nn.Linear(2, 2)),
        ):
            try:
                call()
            except ValueError as problem:
                said.append(str(problem))
        return said

    state, groups, masters = ranks.run(refusals, world_size=2)[0]
    assert state == groups and "Checkpoints(folder, model, optimizer)" in state
    assert "parameters of shapes [(2, 2), (2,)]" in masters


def test_a_meter_may_be_opened_while_gradients_wait():
    """It reads no gradient, so the pieces' list lets it pass."""

    def held():
        model = torch.nn.Linear(4, 4)
        optimizer = ZeroOptimizer(model.parameters(), torch.optim.AdamW, lr=0.1)
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()  # its gradients stay until zero_grad, as any optimizer's do
        with measure.memory(model, optimizer.optimizer) as record:
            return int(record.now.optimizer)

    # two moments of 10 elements, and a step count for each piece: the bias and 6 of the matrix, or 10 of the matrix
    assert ranks.run(held, world_size=2) == [2 * 4 * 10 + 2 * 4, 2 * 4 * 10 + 4]


def _broken(wrap):
    """Gradients of a pass after one that ended in an error and was forgotten, over those of a run without it."""
    found = []
    for breaks in (False, True):
        torch.manual_seed(0)
        layers = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(4)))
        x = torch.ones(2, 4) * (1 + dist.get_rank())
        model, optimizer = wrap(layers)
        if breaks:
            middle = layers[1].register_full_backward_pre_hook(lambda *_: _out_of_memory())
            with contextlib.suppress(RuntimeError):
                model(x).sum().backward()
            middle.remove()
            (model if isinstance(model, Zero3) else optimizer).zero_grad()
        model(x).sum().backward()
        found.append(model.gathered_gradients() if isinstance(model, Zero3) else optimizer.gathered_gradients(model))
    right, after = found
    assert len(right) == 8 and right.keys() == after.keys()
    return [float((after[key] - right[key]).abs().max()) for key in right]


def _out_of_memory():
    raise RuntimeError("out of memory")


def _stage(stage, layers):
    return layers, ZeroOptimizer(layers.parameters(), torch.optim.SGD, stage=stage, bucket_bytes=64, lr=0.1)


def _stage_3(layers):
    return (model := Zero3(layers, units=list(layers), bucket_bytes=64)), torch.optim.SGD(model.parameters(), lr=0.1)


@pytest.mark.parametrize("wrap", [functools.partial(_stage, 1), functools.partial(_stage, 2), _stage_3])
def test_zero_grad_forgets_a_backward_pass_that_ended_in_an_error(wrap):
    for off in ranks.run(_broken, wrap, world_size=2, timeout_s=60):
        assert max(off) == 0


def _shared_by_recomputed_segments():
    layer, head = layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    _, optimizer = _stage(2, layers)  # kept: its hooks live as long as it does
    x = torch.ones(2, 4, requires_grad=True)
    head(recompute(layer, recompute(layer, x))).sum().backward()
    optimizer.step()


def _passes_after_the_norm(stage):
    layer, optimizer = _stage(stage, torch.nn.Linear(4, 4))
    layer(torch.ones(2, 4)).sum().backward()
    optimizer.clip_grad_norm_(1e9)
    layer(torch.ones(2, 4)).sum().backward()


def test_gradients_that_would_be_lost_are_refused():
    with pytest.raises(RankFailure, match="a weight has a second gradient in one backward pass"):
        ranks.run(_shared_by_recomputed_segments, world_size=2, timeout_s=60)
    for stage in (1, 2):
        with pytest.raises(RankFailure, match="the gradients are reduced already"):
            ranks.run(_passes_after_the_norm, stage, world_size=2, timeout_s=60)


def _assigned(stage):
    """The weights of a step on gradients that `torch.autograd.grad` has returned, and of the usual step."""
    found = []
    for assigns in (False, True):
        torch.manual_seed(0)
        layer, optimizer = _stage(stage, torch.nn.Linear(4, 4))
        loss = layer(torch.ones(2, 4) * (1 + dist.get_rank())).square().sum()
        if assigns:
            for parameter, gradient in zip(layer.parameters(), torch.autograd.grad(loss, list(layer.parameters()))):
                parameter.grad = gradient
        else:
            loss.backward()
        optimizer.step()
        found.append([parameter.detach().clone() for parameter in layer.parameters()])
    assert all(torch.equal(*pair) for pair in zip(*found))


def test_assigned_gradients_count_in_stage_1_and_are_refused_in_stage_2():
    ranks.run(_assigned, 1, world_size=2)
    with pytest.raises(RankFailure, match="a gradient was assigned, and stage 2 takes those of backward"):
        ranks.run(_assigned, 2, world_size=2, timeout_s=60)
