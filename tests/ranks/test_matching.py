"""The matcher alone: no processes, every rule in isolation."""

from typing import Any

import pytest

from course_kit.ranks._diagnosis.matching import CollectiveCall, Matcher, PointToPointCall
from course_kit.ranks._diagnosis.report import contradiction


def entry(
    sequence: int,
    collective: str = "all_reduce",
    site: str = "cell line 1",
    tensor: tuple[str, ...] = (),
    **details: Any,
) -> CollectiveCall:
    return CollectiveCall("0", (0, 1), sequence, collective, tuple(details.items()), site, tensor)


def transfer(
    direction: str, sender: int | None, receiver: int, elements: int = 4, dtype: str = "float32", sequence: int = 0
) -> PointToPointCall:
    return PointToPointCall("0", direction, sender, receiver, 0, sequence, direction, elements, dtype, "cell line 1")  # type: ignore[arg-type]


def test_equal_calls_match_and_leave_nothing_open_and_a_rank_may_run_ahead() -> None:
    matcher = Matcher()
    assert [matcher.take(0, entry(k, shape=(k,))) for k in range(5)] == [None] * 5
    assert matcher.has_open_calls and matcher.waits_for(entry(4)) == {1}
    assert [matcher.take(1, entry(k, shape=(k,))) for k in range(5)] == [None] * 5
    assert not matcher.has_open_calls and matcher.waits_for(entry(4)) == set()


@pytest.mark.parametrize(
    ("pairs", "objections"),
    [
        ([("a", "b"), ("b", "a")], [False, True]),
        ([("a", "b"), ("b", "c"), ("c", "a")], [False, False, True]),
        ([("mine", "buffer")] * 5, [False] * 5),
    ],
    ids=["swapped", "rotated", "names that differ by role"],
)
def test_names_that_change_places_are_another_order(pairs: list[tuple[str, str]], objections: list[bool]) -> None:
    """For each call, the names of the tensor on rank 0 and on rank 1."""
    matcher, found = Matcher(), []
    for sequence, (ours, theirs) in enumerate(pairs):
        matcher.take(0, entry(sequence, tensor=(ours,)))
        found.append(matcher.take(1, entry(sequence, tensor=(theirs,))) is not None)
    assert found == objections


def test_roles_that_swap_with_the_root_are_no_other_order() -> None:
    matcher = Matcher()
    for sequence in range(6):
        root = sequence % 2
        for rank in (0, 1):
            name = "mine" if rank == root else "buffer"
            assert matcher.take(rank, entry(sequence, "broadcast", tensor=(name,), src=root)) is None


def test_transfers_match_by_channel_in_order() -> None:
    matcher = Matcher()
    assert matcher.take(0, transfer("send", 0, 1)) is None
    assert matcher.waits_for(transfer("send", 0, 1)) == {1}
    assert matcher.take(1, transfer("recv", 0, 1)) is None
    assert matcher.waits_for(transfer("send", 0, 1)) == set()
    assert not matcher.has_open_calls


@pytest.mark.parametrize("receive", [transfer("recv", 0, 1, elements=8), transfer("recv", 0, 1, dtype="int32")])
def test_a_receive_of_another_size_or_type_is_refused(receive: PointToPointCall) -> None:
    matcher = Matcher()
    matcher.take(0, transfer("send", 0, 1))
    found = matcher.take(1, receive)
    assert found is not None and "sends 4 float32 values to rank 1" in contradiction(found)


def test_receiving_from_anyone_matches_once_the_sender_is_known() -> None:
    matcher = Matcher()
    matcher.take(1, transfer("recv", None, 1))
    matcher.take(0, transfer("send", 0, 1))
    assert matcher.unanswered({1}) is None
    assert matcher.received_from_anyone(transfer("recv", 0, 1)) is None
    assert not matcher.has_open_calls


def test_groups_of_one_name_are_told_apart_by_their_members() -> None:
    """Ranks that make their groups in another order give one name to two; the first difference has been named then."""
    matcher = Matcher()
    assert matcher.take(0, entry(0)._replace(members=(0, 1))) is None
    assert matcher.take(2, entry(0)._replace(members=(2, 3))) is None
    assert matcher.waits_for(entry(0)._replace(members=(2, 3))) == {3}
