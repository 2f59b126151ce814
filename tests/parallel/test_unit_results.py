"""Units of ZeRO-3 that return dataclasses, mappings and objects; several results; and what must be refused."""

import pytest
import torch

from course_kit import ranks
from course_lib.offload.disk import Disk
from course_lib.offload.on_disk import DiskOffloadedModel
from course_lib.parallel.layerwise import find_tensors
from tests.parallel import unit_results as results


def on_ranks(check, *args):
    return ranks.run(check, *args, world_size=2, timeout_s=120, diagnose=False)


def test_every_step_equals_one_process_whatever_units_return():
    on_ranks(results.check_all_results)


@pytest.mark.parametrize("wrap", results.WRAPS)
def test_a_unit_goes_when_its_backward_pass_is_over(wrap):
    for held, most in on_ranks(results.kept_while_wrapped, wrap):
        assert held <= most


def test_a_root_with_several_results_gathers_no_unit_again():
    for sent, due in on_ranks(results.bytes_of_seq2seq):
        assert sent == due


def test_no_unit_is_gathered_ahead_that_has_been_used_in_this_pass():
    for sent, due in on_ranks(results.bytes_of_towers):
        assert sent == due


def test_results_from_the_middle_of_units():
    on_ranks(results.check_cached)


def test_masters_and_gradients_can_be_gathered():
    ranks.run(results.check_gathered, world_size=3, timeout_s=120, diagnose=False)


def test_mistakes_are_refused():
    for answers in on_ranks(results.said):
        for due, said in answers:
            assert due in said


MADE = [(results.Chain, *case, 0) for case in results.CASES] + [(results.Cached, 0, True), (results.Cached, 0, False)]


@pytest.mark.parametrize(("kind", "args"), [(kind, args) for kind, *args in MADE], ids=str)
def test_a_model_in_files_takes_the_steps_of_adamw(tmp_path, kind, args):
    inside, oracle = kind(*args).float(), kind(*args).float()
    model = DiskOffloadedModel(inside, Disk(tmp_path), lr=1e-2)
    adamw = torch.optim.AdamW(oracle.parameters(), fused=True, lr=1e-2)
    for step in range(2):
        given = [part.float() for part in results.batch(step, 2)]
        inside.loss(model(*given)).backward()
        model.step()
        adamw.zero_grad()
        oracle.loss(oracle(*given)).backward()
        adamw.step()
        state = model.whole_state_dict()
        assert all(torch.equal(state[name], value) for name, value in oracle.state_dict().items())


def test_every_tensor_is_found_once_and_weights_are_left_alone():
    x, y, z = torch.ones(3)
    whole = results.Result([x, {"y": results.Slotted((y, results.Mapped(x=x, z={1, z})))}])
    assert {id(each) for each in find_tensors(whole)} == {id(x), id(y), id(z)}
    assert len(find_tensors(whole)) == 3
    assert find_tensors([torch.nn.Linear(1, 1), "x", 1.0, None, torch.nn, find_tensors, torch.Tensor]) == []
