"""Wrong communication, on real ranks: each bug is named, and right programs that look odd are left in peace."""

import pytest

from course_kit import ranks
from tests.ranks.conftest import Cell, failure_of, programs

WRONG = programs("wrong")
RIGHT = programs("right")


@pytest.mark.parametrize("program", RIGHT)
@pytest.mark.parametrize("diagnose", [True, pytest.param(False, marks=pytest.mark.nightly)])
@pytest.mark.filterwarnings("ignore")
def test_a_right_program_is_left_in_peace(cell: Cell, program: str, diagnose: bool) -> None:
    ranks.run(cell(RIGHT[program].source), **{"diagnose": diagnose, **RIGHT[program].options})


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


@pytest.mark.parametrize("verb", ["isend", pytest.param("irecv", marks=pytest.mark.nightly)])
def test_a_message_to_oneself_is_named_where_each_kind_of_device_has_a_backend(cell: Cell, verb: str) -> None:
    oneself = cell(f"def f():\n    if rank() == 1:\n        dist.{verb}(torch.ones(1), 1)")
    with ranks.Ranks(2, "cpu:gloo") as pool, pytest.raises(ranks.RankFailure) as caught:
        pool.run(oneself)
    way = "to" if verb == "isend" else "from"
    told = f"rank 1 raised ValueError: {verb} {way} rank 1, which is this rank itself; rank 0 returned"
    assert caught.value.verdict == told


def test_the_number_of_the_call_is_reported(cell: Cell) -> None:
    failure = failure_of(cell("def f():\n    for step in range(7 + rank()):\n        dist.barrier()"))
    assert failure.reports[1].waits_in == ranks.WaitsIn("barrier", "cell line 3", 7)
    assert [report.state for report in failure.reports] == ["returned", "waiting"]


@pytest.mark.parametrize("wait", ["posted.wait()", "del posted"])
def test_a_dropped_receive_takes_no_message_of_the_next_call(cell: Cell, wait: str) -> None:
    around = "def f():\n    got, ring = torch.zeros(2), (rank() + 1) % 3\n"
    around += "    posted = dist.isend(torch.ones(2), ring)\n    {}\n    {}\n    return got.sum().item()"
    ranks.run(cell(around.format("dist.irecv(got, (rank() - 1) % 3)", wait)), world_size=3)
    right = cell(around.format("dist.recv(got, (rank() - 1) % 3)", "posted.wait()"))
    assert ranks.run(right, world_size=3, timeout_s=10) == [2.0, 2.0, 2.0]


DROPPED = """
    def f():
        got = torch.zeros(300)
        for step in range(2):
            dist.isend(torch.full((300,), 1.0 * rank()), 1 - rank())
            dist.recv(got, 1 - rank())
        dist.barrier()
    """
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
    ("source", "begins", "waits", "lost"),
    [
        (DROPPED, "deadlock: ", "waits in recv from rank", "isend (cell line 4)"),
        pytest.param(TOO_LATE, "", "waits in isend to rank", "irecv (cell line 4)", marks=pytest.mark.nightly),
    ],
    ids=["isend", "irecv"],
)
def test_a_message_that_is_lost_with_its_handle_is_named(
    cell: Cell, source: str, begins: str, waits: str, lost: str
) -> None:
    verdict = failure_of(cell(source), within_s=45, timeout_s=50).verdict
    assert verdict.startswith(begins) and waits in verdict
    assert f"Nobody waited for {lost}: a message is lost with its handle" in verdict


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
