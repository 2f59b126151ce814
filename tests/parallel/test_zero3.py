"""ZeRO-3 on real ranks: against the single-device step, and against the paper's bytes."""

import sys

import pytest
import torch

from course_kit import ranks
from course_kit.ranks import RankFailure
from course_lib import predict
from course_lib.model.gpt import GPT
from course_lib.parallel.zero3 import Zero3
from course_pages.shared.who_sends import between_nodes, matrix
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


def test_an_overflow_on_one_rank_skips_the_step_on_all():
    on_ranks(zero3.check_overflow, Zero3, world_size=4)


@pytest.mark.parametrize(("dtype", "prefetch"), [(torch.bfloat16, True), (torch.float32, False)])
@pytest.mark.parametrize("world_size", [2, 4])
def test_a_rank_holds_and_sends_the_bytes_of_the_paper(world_size, dtype, prefetch):
    on_ranks(zero3.check_bytes, Zero3, dtype, prefetch, world_size=world_size)


@pytest.fixture(scope="module")
def refusals():
    """Known-wrong → what was said against it."""
    cases = [(mutant, zero3.check_parity, (checks.gpt, "sgd"), {"passes": 2, "steps": 2}) for mutant in wrong.WEIGHTS]
    cases += [(mutant, zero3.check_16_bits, (torch.bfloat16, 1), {}) for mutant in wrong.NARROW]
    cases += [(mutant, zero3.check_overflow, (), {}) for mutant in wrong.SCALED]
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


@pytest.mark.parametrize("mutant", wrong.SCALED)
def test_wrong_scalers_are_rejected(mutant, refusals):
    assert refusals[mutant].startswith(("step 0 was taken", "in step 0 ranks' scalers differ"))


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


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_shards_inside_a_node_and_replicas_across_equal_the_single_device(optimizer):
    on_ranks(zero3.check_hybrid, Zero3, optimizer, world_size=4)


def test_replicas_that_stay_apart_are_rejected():
    with pytest.raises(ranks.RankFailure, match="AssertionError: after step 0"):
        on_ranks(zero3.check_hybrid, wrong.ReplicasApart, "sgd", world_size=4)


def refused_hybrid():
    Zero3(torch.nn.Linear(2, 2), replicas=torch.distributed.group.WORLD)


def test_replicas_need_a_group():
    with pytest.raises(ranks.RankFailure, match="replicas without a group: the group has all ranks"):
        on_ranks(refused_hybrid, world_size=2)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counted by Linux's kernel only")
def test_only_the_mean_of_the_shards_crosses_between_nodes():
    """Ψ bytes: inside, 3Ψ over 2 ranks; across, an all-reduce of Ψ/2 over 2. Over all ranks, twice as much
    crosses and more."""
    n_bytes = 4 * sum(p.numel() for p in GPT(zero3.CONFIG).parameters())
    sent = matrix(on_ranks(zero3.sent_in_a_step, True, world_size=4), observed=True)
    for rank in range(4):
        assert sent[rank][rank ^ 1] == pytest.approx(3 * predict.all_gather(n_bytes, 2).bytes, rel=0.05)
        assert sent[rank][rank ^ 2] == pytest.approx(predict.all_reduce(n_bytes // 2, 2).bytes, rel=0.05)
    everywhere = matrix(on_ranks(zero3.sent_in_a_step, False, world_size=4), observed=True)
    assert between_nodes(everywhere, 2) > 1.9 * between_nodes(sent, 2)


def rotary(seed):
    """A layer with what is saved, and what its constructor makes again, as the rotary embeddings of transformers."""
    torch.manual_seed(seed)
    module = torch.nn.Sequential(torch.nn.Linear(3, 3))
    module.register_buffer("seen", torch.full((2,), float(seed)))
    module.register_buffer("angles", torch.ones(2), persistent=False)
    return module


def test_what_is_not_saved_is_in_no_state():
    def states():
        model, plain = Zero3(rotary(0)), rotary(1).state_dict()
        assert "angles" not in model.state_dict() and "seen" in model.state_dict()
        model.load_gathered_state_dict(plain)
        again = model.gathered_state_dict()
        assert again.keys() == plain.keys() and all(torch.equal(again[name], plain[name]) for name in plain)
        model.load_gathered_state_dict(again)
        assert model.module.get_buffer("angles").tolist() == [1.0, 1.0]

    on_ranks(states, world_size=2)


@pytest.mark.parametrize("name", ["0.bias", "seen"])
@pytest.mark.parametrize("wrong", ["missing", "another shape"])
def test_a_state_of_another_module_changes_nothing(name, wrong):
    def tried():
        model, state = Zero3(rotary(0)), rotary(1).state_dict()
        state[name] = torch.zeros(7)
        if wrong == "missing":
            del state[name]
        before = model.gathered_state_dict()
        try:
            model.load_gathered_state_dict(state)
        except ValueError as problem:
            after = model.gathered_state_dict()
            return str(problem), all(torch.equal(before[key], after[key]) for key in before)

    for said, same in on_ranks(tried, world_size=2):
        found = "nothing" if wrong == "missing" else "(7,)"
        assert same and f"1 tensors differ: {name}: found {found}, needed (" in said


def test_a_shard_does_not_tell_its_norm():
    def clips():
        model = Zero3(rotary(0))
        model(torch.ones(2, 3)).sum().backward()
        model.synchronize()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)

    with pytest.raises(RankFailure, match="one rank's shard.*clip with clip_grad_norm_"):
        on_ranks(clips, world_size=2)


def _small(optimizer=torch.optim.SGD):
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 4))
    model = Zero3(module, units=[module[0], module[2]])
    return model, optimizer(model.parameters(), lr=0.5)


def test_a_backward_pass_through_older_weights_is_refused():
    """As torch's own in-place steps and ZeRO-1 are; the same two losses before the step are fine."""

    def too_late():
        model, optimizer = _small()
        x = torch.ones(2, 4)
        first, second = model(x).sum(), model(x).square().sum()
        first.backward()
        model.synchronize()
        optimizer.step()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            second.backward()
        model.zero_grad()
        model(x).sum().backward()
        model.synchronize()
        optimizer.step()

    on_ranks(too_late, world_size=2)


def test_another_optimizers_step_changes_nothing():
    def meanwhile():
        model, _ = _small()
        other = torch.nn.Linear(2, 2)
        loss = model(torch.ones(2, 4)).sum()
        other(torch.ones(1, 2)).sum().backward()
        torch.optim.SGD(other.parameters(), lr=0.1).step()
        loss.backward()
        model.synchronize()
        assert all(shard.grad is not None for shard in model.parameters())

    on_ranks(meanwhile, world_size=2)


def test_zero_grad_ends_a_backward_pass_that_broke_off():
    """The next pass frees each unit as it goes: a forward pass that took itself for a backward pass would not."""

    def broken():
        model, optimizer = _small()
        hook = model.module[0].register_full_backward_hook(lambda *_: 1 / 0)  # type: ignore[index]
        with pytest.raises(ZeroDivisionError):
            model(torch.ones(2, 4, requires_grad=True)).sum().backward()
        hook.remove()
        model.zero_grad()
        assert not model._is_backward
        model(torch.ones(2, 4)).sum().backward()
        model.synchronize()
        found = model.gathered_gradients()
        whole, _ = _small()
        whole(torch.ones(2, 4)).sum().backward()
        whole.synchronize()
        assert all(torch.equal(found[name], due) for name, due in whole.gathered_gradients().items())

    on_ranks(broken, world_size=2)
