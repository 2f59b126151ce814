"""Wrong communication, on real ranks: each bug is named, and right programs that look odd are left in peace."""

import pytest

from course_kit import ranks
from tests.ranks.conftest import Cell, failure_of, programs

WRONG = programs("""
# a rank missing [world_size=4]
if rank() != 1:
    dist.all_reduce(torch.ones(4))
> ranks 0, 2 and 3 wait in all_reduce (cell line 3); rank 1 returned without calling it
|       cell line 3, in f
|         dist.all_reduce(torch.ones(4))
# other shape
dist.all_reduce(torch.ones(4 + rank()))
> the ranks call all_reduce with different shape: rank 0 has (4,) (cell line 2), rank 1 has (5,) (cell line 2)
# other dtype of the same bytes
x = torch.ones(4, dtype=torch.float32 if rank() == 0 else torch.int32)
dist.all_reduce(x)
> the ranks call all_reduce with different dtype: rank 0 has float32 (cell line 3), rank 1 has int32 (cell line 3)
# other reduce op
dist.all_reduce(torch.ones(4), op=dist.ReduceOp.MAX if rank() else dist.ReduceOp.SUM)
> the ranks call all_reduce with different reduce op: rank 0 has SUM (cell line 2), rank 1 has MAX (cell line 2)
# other root
dist.broadcast(torch.ones(4), src=rank())
> the ranks call broadcast with different src: rank 0 has 0 (cell line 2), rank 1 has 1 (cell line 2)
# other collective
x = torch.ones(4)
if rank() == 0:
    dist.all_reduce(x)
else:
    dist.broadcast(x, src=0)
> the ranks call different collectives: rank 0 calls all_reduce (cell line 4), rank 1 calls broadcast (cell line 6)
# order swapped in a loop
tensors = {"a": torch.ones(4), "b": torch.zeros(4)}
for name in sorted(tensors, reverse=rank() == 1):
    dist.all_reduce(tensors[name])
> the ranks make the same calls in another order: rank 0 calls all_reduce with tensors['b'] (cell line 4)
> where rank 1 passes tensors['a'] (cell line 4), and elsewhere the other way round, so each result mixes them
# order swapped behind a helper
def reduce(t):
    dist.all_reduce(t)

def f():
    a, b = torch.ones(4), torch.zeros(4)
    for t in (a, b) if rank() == 0 else (b, a):
        reduce(t)
> the ranks make the same calls in another order: rank 0 calls all_reduce with b (cell line 2)
> where rank 1 passes a (cell line 2), and elsewhere the other way round, so each result mixes them
# gradients in another order
model = torch.nn.Sequential(torch.nn.Linear(3, 3, bias=False), torch.nn.Linear(3, 3, bias=False))
model(torch.ones(2, 3)).sum().backward()
parameters = list(model.parameters())
for p in parameters if rank() == 0 else parameters[::-1]:
    dist.all_reduce(p.grad)
> the ranks make the same calls in another order: rank 0 calls all_reduce with model.1.weight.grad (cell line 6)
> where rank 1 passes model.0.weight.grad (cell line 6), and elsewhere the other way round, so each result mixes them
# parts of an all-to-all that do not fit
out = torch.empty(4)
dist.all_to_all_single(out, torch.ones(4), [2, 2], [1, 3] if rank() == 1 else [2, 2])
> the parts of all_to_all_single do not fit: rank 1 sends 1 to rank 0 (cell line 3), which expects 2 (cell line 3)
# recv larger than sent
if rank() == 0:
    dist.send(torch.ones(4), dst=1)
else:
    dist.recv(torch.zeros(8), src=0)
> send and recv do not fit: rank 0 sends 4 float32 values to rank 1 (cell line 3),
> which receives 8 float32 values (cell line 5)
# recv that nobody answers
if rank() == 0:
    dist.recv(torch.ones(4), src=1)
> rank 0 waits in recv from rank 1 (cell line 3); rank 1 returned without sending
# everybody sends first
dist.send(torch.ones(4), dst=1 - rank())
dist.recv(torch.ones(4), src=1 - rank())
> deadlock: rank 0 waits in send to rank 1 (cell line 2); rank 1 waits in send to rank 0 (cell line 2)
# everybody receives first
x = torch.zeros(4)
work = dist.irecv(x, src=1 - rank())
work.wait()
dist.send(x, dst=1 - rank())
> deadlock: rank 0 waits in irecv from rank 1 (cell line 3); rank 1 waits in irecv from rank 0 (cell line 3)
# a collective against a recv
if rank() == 0:
    dist.barrier()
else:
    dist.recv(torch.ones(1), src=0)
> deadlock: rank 0 waits in barrier (cell line 3); rank 1 waits in recv from rank 0 (cell line 5)
# an asynchronous call that one rank omits
if rank() == 0:
    work = dist.all_reduce(torch.ones(4), async_op=True)
    time.sleep(0.1)
    work.wait()
> rank 0 waits in all_reduce (cell line 3); rank 1 returned without calling it
# a message that nobody receives
if rank() == 0:
    dist.isend(torch.ones(1), dst=1)
> rank 0 called isend to rank 1 (cell line 3); rank 1 returned without receiving it
# objects that one rank does not gather
if rank() == 0:
    dist.all_gather_object([None, None], "x")
> rank 0 waits in all_gather_object (cell line 3); rank 1 returned without calling it
# a right neighbour beyond the last rank
if rank() == 1:
    dist.send(torch.ones(1), dst=rank() + 1)
> rank 1 raised ValueError: send to rank 2, but the ranks are 0 to 1; rank 0 returned
# a left neighbour before the first rank
if rank() == 0:
    dist.irecv(torch.ones(1), src=rank() - 1).wait()
> rank 0 raised ValueError: irecv from rank -1, but the ranks are 0 to 1; rank 1 returned
# a message to oneself
if rank() == 1:
    dist.recv(torch.ones(1), src=rank())
> rank 1 raised ValueError: recv from rank 1, which is this rank itself; rank 0 returned
# a hang without diagnosis [timeout_s=1, diagnose=False]
if rank() == 0:
    dist.recv(torch.ones(1), src=1)
> not done after 1 s: rank 0 waits in recv (cell line 3); rank 1 returned
""")
RIGHT = programs("""
# a wait inside of a call that pickles
class Waits:
    def __init__(self, work): self.work = work
    def __reduce__(self):
        self.work.wait()
        return int, (3,)

def f():
    work = dist.all_reduce(torch.ones(2), async_op=True)
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, Waits(work))
    assert found == [3] * dist.get_world_size()
# every rank is the root once, twice around
mine, buffer = torch.full((2,), float(rank())), torch.zeros(2)
for root in list(range(4)) * 2:
    if rank() == root:
        dist.broadcast(mine, src=root)
    else:
        dist.broadcast(buffer, src=root)
# a ring of batched sends and receives
out, into = torch.full((3,), float(rank())), torch.zeros(3)
right, left = (rank() + 1) % 4, (rank() - 1) % 4
ops = [dist.P2POp(dist.isend, out, right), dist.P2POp(dist.irecv, into, left)]
for work in dist.batch_isend_irecv(ops):
    work.wait()
# receiving from anyone
x = torch.zeros(1)
if rank() == 0:
    return sorted(dist.recv(x) for _ in range(3))
dist.send(x, dst=0)
# a send of another shape with as many numbers
if rank() == 0:
    dist.send(torch.ones(2, 2), dst=1)
elif rank() == 1:
    dist.recv(torch.zeros(4), src=0)
# subgroups that do different things
groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
mine = groups[rank() // 2]
for _ in range(1 + rank() // 2):
    dist.all_reduce(torch.ones(1 + rank() // 2), group=mine)
dist.barrier()
# roots by their number in the group
group = dist.new_group([2, 3])
if rank() >= 2:
    dist.broadcast(torch.ones(1), group_src=1, group=group)
    dist.broadcast(torch.ones(1), src=3, group=group)
# uneven all-to-all
sizes = [rank() + 1] * 4
out = torch.empty(1 + 2 + 3 + 4)
dist.all_to_all_single(out, torch.ones(4 * (rank() + 1)), [1, 2, 3, 4], sizes)
# objects of different sizes
found = [None] * 4
dist.all_gather_object(found, "x" * rank())
box = [found if rank() == 0 else None]
dist.broadcast_object_list(box, src=0)
assert box[0] == found
# a slow rank
time.sleep(2.5 if rank() == 0 else 0)
dist.all_reduce(torch.ones(1))
# torch's own data parallel and sharded modules
from torch.distributed.fsdp import fully_shard
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
model(torch.ones(2, 4)).sum().backward()
sharded = torch.nn.Linear(4, 4)
fully_shard(sharded)
sharded(torch.ones(2, 4)).sum().backward()
# a message of a refused batch, which has no number [world_size=2]
x = torch.full((4,), 2.0 - rank())
if rank() == 0:
    try:  # torch itself would have sent the first
        dist.batch_isend_irecv([dist.P2POp(dist.isend, x, peer) for peer in (1, 99)])
    except ValueError:
        dist.send(x, dst=1)
else:
    dist.recv(x, src=0)
assert x[0] == 2
# a slow isend, which itself waits for nobody, whatever delays the post [world_size=2]
from torch.utils._python_dispatch import TorchDispatchMode

class Slow(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if "send" in str(func):
            time.sleep(2)
        return func(*args, **(kwargs or {}))

def f():
    with Slow():
        posted = dist.isend(torch.ones(1), 1 - rank())
    got = torch.empty(1)
    dist.recv(got, 1 - rank())
    posted.wait()
    assert got == 1
""")


@pytest.mark.parametrize("program", RIGHT)
@pytest.mark.parametrize("diagnose", [True, pytest.param(False, marks=pytest.mark.nightly)])
@pytest.mark.filterwarnings("ignore")
def test_a_right_program_is_left_in_peace(cell: Cell, program: str, diagnose: bool) -> None:
    ranks.run(cell(RIGHT[program].source), diagnose=diagnose, **RIGHT[program].options)


def test_without_diagnosis_torch_is_untouched(cell: Cell) -> None:
    names = "all_reduce", "send", "barrier", "batch_isend_irecv"
    modules = cell("def f(names): return [getattr(dist, name).__code__.co_filename for name in names]")
    ranks.run(modules, names, world_size=2)
    found = ranks.run(modules, names, world_size=2, diagnose=False)[0]
    assert all(file.endswith(("c10d_logger.py", "distributed_c10d.py")) for file in found)


@pytest.mark.parametrize("bug", WRONG)
def test_a_wrong_program_is_named(cell: Cell, bug: str) -> None:
    program = WRONG[bug]
    program.assert_told_by(failure_of(cell(program.source), **program.options))


def test_the_number_of_the_call_is_reported(cell: Cell) -> None:
    failure = failure_of(cell("def f():\n    for step in range(7 + rank()):\n        dist.barrier()"))
    assert failure.reports[1].waits_in == ranks.WaitsIn("barrier", "cell line 3", 7)
    assert [report.state for report in failure.reports] == ["returned", "waiting"]


DROPPED = """
    def f(times=2):
        got = torch.zeros(300)
        for step in range(times):
            {post}dist.isend(torch.full((300,), 1.0 * rank()), 1 - rank())
            {early}
            dist.recv(got, 1 - rank())
            {late}
        dist.barrier()
        return got.sum().item()
    """


@pytest.mark.parametrize("late", ["posted.wait()", "pass"])
def test_a_handle_that_is_kept_is_no_loss(cell: Cell, late: str) -> None:
    """Waited for after the receive; or never, but held until every message is there."""
    kept = "kept = [] if step == 0 else kept; kept.append(posted)"
    ring = cell(DROPPED.format(post="posted = ", early=kept, late=late))
    assert ranks.run(ring, world_size=2) == [300.0, 0.0]


@pytest.mark.parametrize("wait", ["posted.wait()", "del posted"])
def test_a_dropped_receive_takes_no_message_of_the_next_call(cell: Cell, wait: str) -> None:
    around = "def f():\n    got, ring = torch.zeros(2), (rank() + 1) % 3\n"
    around += "    posted = dist.isend(torch.ones(2), ring)\n    {}\n    {}\n    return got.sum().item()"
    ranks.run(cell(around.format("dist.irecv(got, (rank() - 1) % 3)", wait)), world_size=3)
    right = cell(around.format("dist.recv(got, (rank() - 1) % 3)", "posted.wait()"))
    assert ranks.run(right, world_size=3, timeout_s=10) == [2.0, 2.0, 2.0]


# The message to the dropped receive is sent when its handle is gone, and is too large for buffers of the system.
TOO_LATE = """
    def f():
        got = torch.zeros(8_000_000)
        if rank() == 1:
            dist.irecv(got, 0)
        dist.barrier()
        if rank() == 0:
            dist.isend(torch.ones(8_000_000), 1).wait()
    """


@pytest.mark.parametrize(
    ("source", "lost", "waits"),
    [
        (DROPPED.format(post="", early="pass", late="pass"), "isend (cell line 4)", "recv from rank"),
        pytest.param(TOO_LATE, "irecv (cell line 4)", "isend to rank", marks=pytest.mark.nightly),
    ],
    ids=["isend", "irecv"],
)
def test_a_message_that_is_lost_with_its_handle_is_named(cell: Cell, source: str, lost: str, waits: str) -> None:
    verdict = failure_of(cell(source), within_s=45, timeout_s=50).verdict
    assert f"Nobody waited for {lost}: a message is lost with its handle" in verdict
    assert f"waits in {waits}" in verdict and verdict.startswith("deadlock: " if "recv" in waits else "")


def test_a_wait_inside_cpp_is_named_at_the_time_limit(cell: Cell) -> None:
    hook = cell("""
        def f():
            from torch.nn.parallel import DistributedDataParallel
            model = DistributedDataParallel(torch.nn.Linear(2, 2))
            if rank() == 0:
                model(torch.ones(1, 2)).sum().backward()
            else:
                time.sleep(30)
        """)
    failure = failure_of(hook, within_s=25.0, timeout_s=5)
    assert failure.verdict.startswith("not done after 5 s: rank 0 waits in ")
    waits_in = failure.reports[0].waits_in
    assert waits_in is not None and "all_reduce" in waits_in.collective and waits_in.site == "cell line 5"
    assert failure.reports[1].state == "running"
