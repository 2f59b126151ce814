"""Sharded checkpoints on real ranks: resumed is uninterrupted, N ranks save and M load, and ranks that are killed."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load

from course_kit import ranks
from course_kit.ranks import RankFailure
from course_lib.parallel.checkpoint import Checkpoints
from course_lib.parallel.zero3 import Zero3
from tests.mutants.parallel import checkpoint as wrong
from tests.parallel import checkpoint_checks as checks
from tests.parallel.judging import refused

run = ranks.run


nightly, SIZES = pytest.mark.nightly, [1, 2, 3, 4]


@pytest.mark.parametrize("kind", checks.KINDS)
def test_resumed_is_uninterrupted_bit_for_bit(tmp_path, kind):
    run(checks.check_resume, Checkpoints, kind, tmp_path, world_size=3, diagnose=False)


def test_so_it_is_when_written_in_the_background(tmp_path):
    run(checks.check_resume, Checkpoints, "zero2", tmp_path, False, world_size=2, diagnose=False)


@pytest.mark.parametrize("mutant", wrong.WRONG_RUNS)
def test_what_is_forgotten_is_noticed(tmp_path, mutant):
    with pytest.raises(RankFailure, match="AssertionError: 3 steps after the load"):
        run(checks.check_resume, mutant, wrong.WRONG_RUNS[mutant], tmp_path, world_size=2, diagnose=False)


@pytest.mark.parametrize(("saving", "loads"), [(2, [4, 1]), *(pytest.param(n, SIZES, marks=nightly) for n in SIZES)])
@pytest.mark.parametrize("kind", ["zero2", "zero3 bf16", "plain"])
def test_other_numbers_of_ranks_load_the_same_tensors(tmp_path, kind, saving, loads):
    saved = run(checks.save_one, Checkpoints, kind, tmp_path, world_size=saving, diagnose=False)
    whole = checks.joined([pieces for _, pieces in saved])
    for loading in loads:
        loaded = run(checks.load_one, Checkpoints, kind, tmp_path, world_size=loading, diagnose=False)
        checks.assert_equal(checks.joined([pieces for _, pieces in loaded]), whole, f"{saving} → {loading}")
        for weights, _ in loaded:
            checks.assert_equal(weights, saved[0][0], f"the model, {saving} → {loading}")


def test_a_rank_that_was_not_there_draws_numbers_of_its_own(tmp_path):
    def draws():
        training = checks.Training()
        checkpoints = training.checkpoints(Checkpoints, tmp_path)
        if not checkpoints.steps():
            torch.manual_seed(5)
            checkpoints.save(1)
        found = []
        for _ in range(2):
            checkpoints.load()
            found.append(torch.rand(3).tolist())
        assert found[0] == found[1]
        return found[0]

    (saver,) = run(draws, world_size=1, diagnose=False)
    first, *others = run(draws, world_size=3, diagnose=False)
    assert first == saver
    assert len({tuple(numbers) for numbers in (first, *others)}) == 3


def whole_of(kind, folder, call, n, *args):
    """What all ranks have together, and each one's own: after a save, or a load on `n` ranks."""
    found = run(call, Checkpoints, kind, folder, *args, world_size=n, diagnose=False)
    tensors = checks.joined([pieces for _, pieces in found])
    tensors.pop("step/scale", None)  # a plain weight without dims looks like Adam's step count
    return tensors, found


@pytest.mark.parametrize(("saves", "loads"), [("zero1", "zero3"), ("zero3", "plain"), ("plain", "zero2")])
def test_one_stage_loads_what_another_has_saved(tmp_path, saves, loads):
    whole, saved = whole_of(saves, tmp_path, checks.save_one, 3)
    found, loaded = whole_of(loads, tmp_path, checks.load_one, 2)
    checks.assert_equal(found, whole, f"3 × {saves} → 2 × {loads}")
    for weights, _ in loaded:
        checks.assert_equal(weights, saved[0][0], "the model")


NARROW = ["bf16", "zero3 bf16", "plain bf16"]
PAIRS = [(saves, loads) for saves in NARROW for loads in NARROW]


@pytest.mark.parametrize(
    ("saves", "loads"), [pytest.param(*pair, marks=() if pair[0] != pair[1] else nightly) for pair in PAIRS]
)
def test_16_bit_training_goes_on_in_another_stage(tmp_path, saves, loads):
    """Adam's moments have the dtype of what it updates: fp32 masters, or without ZeRO the 16-bit weights themselves."""
    whole, _ = whole_of(saves, tmp_path, checks.save_one, 2)
    found, loaded = whole_of(loads, tmp_path, checks.load_one, 2, int(saves != "plain bf16"))
    dtypes = {tensor.dtype for _, pieces in loaded for name, *_, tensor in pieces if name.startswith("exp_avg")}
    assert dtypes == {torch.bfloat16 if loads == "plain bf16" else torch.float32}
    if loads == "plain bf16":
        whole = {name: tensor.bfloat16().to(tensor.dtype) for name, tensor in whole.items()}
    checks.assert_equal(found, whole, f"{saves} → {loads}")


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_torch_reads_it_without_us(tmp_path):
    """A second witness: DCP alone, in this process, into whole flat tensors."""
    saved = run(checks.save_one, Checkpoints, "zero2", tmp_path, world_size=3, diagnose=False)
    weights = saved[0][0]
    flat = {f"weights/{name}": torch.zeros(t.numel(), dtype=t.dtype) for name, t in weights.items()}
    dcp_load(flat, checkpoint_id=tmp_path / "step-00000003", no_dist=True)
    for name, tensor in weights.items():
        assert torch.equal(flat[f"weights/{name}"].view(tensor.shape), tensor), name


@pytest.mark.parametrize(
    ("check", "mutant", "says"),
    [
        (checks.check_bytes, wrong.EachSavesEverything, "AssertionError: .* bytes"),
        (checks.check_no_leak, wrong.DoesNotCopy, "AssertionError: the checkpoint: .* differs"),
        (checks.check_synced, wrong.DoesNotSyncMetadata, "AssertionError: .* were synced"),
        (checks.check_goes_on, wrong.WaitsAnyway, "AssertionError: training waits"),
        pytest.param(checks.check_wait, wrong.WaitsAnyway, "AssertionError: training waits", marks=pytest.mark.timed),
    ],
    ids=["a part each", "no leak", "synced first", "goes on", "hardly waits"],
)
def test_a_save_is_what_it_should_be_and_a_wrong_one_is_noticed(tmp_path, check, mutant, says):
    run(check, Checkpoints, tmp_path / "right", world_size=2, diagnose=False)
    with pytest.raises(RankFailure, match=says):
        run(check, mutant, tmp_path / "wrong", world_size=2, diagnose=False)


@nightly
@pytest.mark.parametrize("world_size", [1, 4])
def test_a_rank_writes_its_part(tmp_path, world_size):
    run(checks.check_bytes, Checkpoints, tmp_path, world_size=world_size, diagnose=False)


def killed(make, folder, points):
    """Which steps are there after a save was killed at each of the points. All of it on 2 ranks."""
    per_rank = run(checks.good_states, make, folder / "good", world_size=2, diagnose=False)
    good = {step: [states[step] for states in per_rank] for step in (1, 2)}
    most = run(checks.save_and_die, make, checks.copy_of(folder / "good", "tried"), None, world_size=2, diagnose=False)
    folders = []
    for point in points:
        rank, event, number = point
        point = rank, event, int(number * most[rank]) if number < 1 else number
        folders.append(checks.copy_of(folder / "good", f"killed at {point}"))
        with pytest.raises(RankFailure, match="SIGKILL"):
            run(checks.save_and_die, make, folders[-1], point, world_size=2, diagnose=False)
    return run(checks.check_survivors, make, folders, good, world_size=2, diagnose=False)[0]


SPREAD = [(number % 2, "", (number + 0.5) / 20) for number in range(20)]
"""20 points of the save, as parts of all that Python calls in it; the two ranks take turns."""
AROUND = [
    (0, "c_call rename", 2),  # the first is DCP's own, of its list; the second publishes
    (0, "c_return rename", 2),
    (0, "c_return rename", 3),  # the old one is no checkpoint any more
    (0, "c_return unlink", 1),  # and a part of it is gone
    (0, "c_return rmdir", 2),  # and all of it
]
"""Around the moments that count."""


@pytest.mark.parametrize("spread", [SPREAD[9:10], pytest.param(SPREAD, marks=nightly)], ids=["one", "20"])
def test_a_save_that_is_killed_loses_nothing(tmp_path, spread):
    steps = killed(Checkpoints, tmp_path, spread + AROUND)
    assert steps[-5:] == [1, 2, 2, 2, 2], "nothing was published before the rename, and nothing lost after it"


@pytest.mark.parametrize("mutant", wrong.WRONG_SAVES)
def test_saves_that_can_lose_something_are_noticed(tmp_path, mutant):
    with pytest.raises(RankFailure, match="No such file|a complete checkpoint is needed"):
        killed(mutant, tmp_path, SPREAD[8:12])


@pytest.mark.parametrize("is_sharded", [False, True])
def test_statistics_that_ranks_gathered_apart_are_all_the_first_ranks(tmp_path, is_sharded):
    """A running mean of one rank beside a running variance of another would be nobody's."""

    def trained():
        module = torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
        module.register_buffer("passing", torch.zeros(2), persistent=False)
        model = Zero3(module) if is_sharded else module
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(2):  # of a Zero3, equally many on all ranks
            with torch.no_grad():
                model(torch.randn(4, 3, generator=torch.Generator().manual_seed(10 * dist.get_rank() + step)))
        before = {name: buffer.clone() for name, buffer in module.named_buffers()}
        checkpoints = Checkpoints(tmp_path, model, optimizer)
        checkpoints.save(1)
        kept = {name: torch.equal(buffer, before[name]) for name, buffer in module.named_buffers()}
        module.get_buffer("passing").add_(1)
        checkpoints.load()
        return before, kept, dict(module.named_buffers())

    (first, *_), *others = run(trained, world_size=3, diagnose=False)
    first["passing"] = torch.ones(2)
    for before, kept, loaded in others:
        assert all(kept.values()), "a save changes nothing"
        assert before["0.running_mean"].ne(first["0.running_mean"]).all()
        assert {name: buffer.tolist() for name, buffer in loaded.items()} == {n: b.tolist() for n, b in first.items()}


def test_the_last_ones_stay(tmp_path):
    def saves():
        training = checks.Training()
        checkpoints = training.checkpoints(Checkpoints, tmp_path, keep=2)
        for step in (1, 2, 30, 4):
            training.go(0, 1)
            checkpoints.save(step, wait=step % 2 == 0)
        dist.barrier()
        return checkpoints.steps(), checkpoints.load(4)

    assert run(saves, world_size=2, diagnose=False)[1] == ([4, 30], {"step": 4})


def test_what_cannot_be_is_refused(tmp_path):
    (tmp_path / "partial" / "step-00000007.partial").mkdir(parents=True)

    def on(folder, training=None, **how):
        return (training or checks.Training()).checkpoints(Checkpoints, tmp_path / folder, **how)

    def bare(model=None):
        training = checks.Training()
        return Checkpoints(tmp_path / "here", model or training.model, training.optimizer)

    mistakes = [
        (lambda: on("here").save(3), "^$"),
        (lambda: on("empty").load(), "a complete checkpoint is needed.*holds nothing"),
        (lambda: on("partial").load(), "step-00000007.partial"),
        (lambda: on("here").load(4), "step 4 is needed.*step-00000003"),
        (lambda: on("here").save(3), "step 3 is saved already"),
        (lambda: on("here", checks.Training(width=8)).load(), r"first.weight: found \(7, 5\), needed \(8, 5\)"),
        (lambda: bare().load(), "others/scaler: found state, needed None"),
        (lambda: bare(checks.Training(width=8).model), "give its own model"),
        (lambda: on("here", keep=0), "^keep=0"),
    ]
    assert refused(2, mistakes) == []
