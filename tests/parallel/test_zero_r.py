"""ZeRO-R on real ranks: as recompute without it, and what it saves and sends."""

import pytest
import torch

from course_kit import ranks
from course_kit.ranks import RankFailure
from course_lib.parallel.zero_r import CheckpointMemory, average_through, recompute_part
from tests.mutants.parallel import zero_r as wrong
from tests.parallel import zero_r_checks as checks


def all_of_it(places=(1, 16, 105, 400)):
    checks.check_values(recompute_part)
    checks.check_bytes(recompute_part)
    checks.check_memory(recompute_part)
    for each in places:
        checks.check_average(average_through, each)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_values_are_those_of_recompute_and_bytes_those_of_the_paper(world_size):
    """P_a, M_D and C_B, the last through buffers of one element up to more than all."""
    ranks.run(all_of_it, world_size=world_size, diagnose=False)


def rejected(check, *args):
    with pytest.raises(RankFailure) as failure:
        ranks.run(check, *args, world_size=2, timeout_s=30, diagnose=False)
    return str(failure.value)


@pytest.mark.parametrize("mutant", wrong.WRONG_VALUES)
def test_wrong_values_are_rejected(mutant):
    assert "another gradient comes out" in rejected(checks.check_values, mutant)


@pytest.mark.parametrize("mutant", wrong.WRONG_BYTES)
def test_parts_that_are_none_are_rejected(mutant):
    assert "bytes less, where" in rejected(checks.check_bytes, mutant)


def test_memory_taken_one_by_one_is_rejected():
    assert "bytes of new memory" in rejected(checks.check_memory, wrong.takes_new_memory)


@pytest.mark.parametrize("mutant", wrong.WRONG_AVERAGES)
def test_wrong_averages_are_rejected(mutant):
    assert wrong.WRONG_AVERAGES[mutant] in rejected(checks.check_average, mutant, 16)


def test_what_cannot_be_is_refused():
    def refusals():
        memory, x = CheckpointMemory(4), torch.ones(4, requires_grad=True)
        tries = []
        kept = recompute_part(checks.odd, x, None, memory)
        tries.append(lambda: recompute_part(checks.odd, x, None, memory))
        tries.append(lambda: (memory.clear(), kept.sum().backward()))
        tries.append(lambda: average_through(torch.empty(0), [x]))
        said = []
        for each in tries:
            try:
                each()
            except ValueError as problem:
                said.append(str(problem))
        return said

    full, cleared, empty = ranks.run(refusals, world_size=1, diagnose=False)[0]
    assert full.startswith("a checkpoint needs 4 elements, of 4 are 0 free")
    assert "was cleared before the backward pass" in cleared
    assert "without an element" in empty
