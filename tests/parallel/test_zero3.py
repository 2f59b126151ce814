"""ZeRO-3 on real ranks: against the single-device step, and against the paper's bytes."""

import pytest
import torch

from course_lib import ranks
from course_lib.parallel.zero3 import Zero3
from tests.mutants.parallel import zero3 as wrong
from tests.parallel import checks
from tests.parallel import zero3_checks as zero3


def on_ranks(check, *args, world_size):
    return ranks.run(check, *args, world_size=world_size, timeout_s=60, diagnose=False)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_every_step_equals_the_single_device(world_size):
    """A tied GPT; a module without blocks in which ranks take different branches; and one with every odd unit."""
    on_ranks(zero3.every_parity, Zero3, world_size=world_size)


@pytest.mark.parametrize(("dtype", "passes"), [(torch.bfloat16, 2), (torch.float16, 1)])
def test_16_bit_weights_have_masters(dtype, passes):
    on_ranks(zero3.check_16_bits, Zero3, dtype, passes, world_size=4)


@pytest.mark.parametrize(("dtype", "prefetch"), [(torch.bfloat16, True), (torch.float32, False)])
@pytest.mark.parametrize("world_size", [2, 4])
def test_a_rank_holds_and_sends_the_bytes_of_the_paper(world_size, dtype, prefetch):
    on_ranks(zero3.check_bytes, Zero3, dtype, prefetch, world_size=world_size)


@pytest.fixture(scope="module")
def refusals():
    """Known-wrong → what was said against it."""
    cases = [(mutant, zero3.check_parity, (checks.gpt, "sgd"), {"passes": 2, "steps": 2}) for mutant in wrong.WEIGHTS]
    cases += [(mutant, zero3.check_16_bits, (torch.bfloat16, 1), {}) for mutant in wrong.NARROW]
    cases += [(mutant, zero3.check_parity, (zero3.units, "sgd", 0.05), {"steps": 1}) for mutant in wrong.NORMS]
    cases += [(mutant, zero3.check_bytes, (), {}) for mutant in wrong.BYTES]
    calls = [(check, (mutant, *args), settings) for mutant, check, args, settings in cases]
    said = on_ranks(zero3.refusals, calls, world_size=4)[0]
    return {mutant: text for (mutant, *_), text in zip(cases, said)}


@pytest.mark.parametrize("mutant", wrong.WEIGHTS)
def test_wrong_weights_are_rejected(mutant, refusals):
    assert refusals[mutant].startswith("after step ")


@pytest.mark.parametrize("mutant", wrong.NARROW)
def test_wrong_masters_are_rejected(mutant, refusals):
    assert "masters are off" in refusals[mutant]


@pytest.mark.parametrize("mutant", wrong.NORMS)
def test_wrong_norms_are_rejected(mutant, refusals):
    assert refusals[mutant].startswith("the norm in step 0 is")


@pytest.mark.parametrize("mutant", wrong.BYTES)
def test_wrong_bytes_are_rejected(mutant, refusals):
    assert wrong.BYTES[mutant] in refusals[mutant]


def test_whole_weights_come_and_go_and_what_cannot_be_is_refused():
    for said in on_ranks(zero3.what_else, Zero3, world_size=3):
        frozen, nested = said.pop("refused")
        assert frozen.startswith("no parameter to train") and "lies in another one" in nested
        assert said == dict.fromkeys(said, True)
