"""ZeRO-3 on real ranks: the paper's bytes, 16-bit weights, whole states, mistakes. Its steps: `test_parity.py`."""

import time
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_kit import measure
from course_lib import predict
from course_lib.model.gpt import GPT, GPTConfig
from course_lib.parallel.zero3 import Zero3
from course_lib.train.precision import LossScaler
from tests.mutants.parallel import zero3 as wrong
from tests.parallel.judging import accepted, agree, off, on_ranks, own, refused
from tests.parallel.parity import RULES, parity
from tests.parallel.problems import TINY, gpt, units
from tests.parallel.sides import Sharded
from tests.parallel.test_parity import nodes


def check_16_bits(wrap, dtype, passes):
    """Masters and weights are those of fp32 masters, stepped by the fp32 mean of the ranks' 16-bit gradients."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    single, batch = GPT(TINY, dtype=dtype), gpt.batch
    masters = [nn.Parameter(parameter.detach().float()) for parameter in single.parameters()]
    model = wrap(GPT(TINY, dtype=dtype))
    kind, given = RULES["adam"]
    ours, theirs = kind(model.parameters(), **given), kind(masters, **given)
    for step in range(3):
        sums = [torch.zeros_like(master) for master in masters]
        for number in range(passes):
            for share in range(world_size):
                part = [tensor.chunk(world_size)[share] for tensor in batch(passes * step + number)]
                single.zero_grad()
                single(*part).backward()
                for total, parameter in zip(sums, single.parameters()):
                    assert parameter.grad is not None
                    total += parameter.grad.float()
                if share == rank:
                    model(*part).backward()
        for master, total in zip(masters, sums):
            master.grad = total / world_size
        model.synchronize()
        ours.step()
        theirs.step()
        for master, parameter in zip(masters, single.parameters()):
            parameter.data.copy_(master)
        ours.zero_grad()
        weights = model.gathered_state_dict()
        problems = [each for name, due in single.state_dict().items() for each in off(name, weights[name], due)]
        agree(problems, f"after step {step}: ")
        pairs = [(piece.value, master.reshape(-1)[piece.inside]) for piece, master in zip(model.pieces, masters)]
        assert all(ours.dtype == torch.float32 for ours, _ in pairs), "the shards of 16-bit weights are not fp32"
        distance = sum((ours - due).abs().sum().item() for ours, due in pairs)
        agree(distance <= 1e-5, f"after step {step}: masters are off by {distance:.1e}")


@pytest.mark.parametrize(("dtype", "passes"), [(torch.bfloat16, 2), (torch.float16, 1)])
@on_ranks(4, diagnose=False)
def test_16_bit_weights_have_masters(dtype, passes):
    check_16_bits(Zero3, dtype, passes)


def check_overflow(wrap):
    """Where one rank's share overflows fp16 in one small weight, every rank skips the step and halves its scale."""
    torch.manual_seed(dist.get_rank())
    model, batch = wrap(GPT(TINY, dtype=torch.float16)), gpt.batch(0)
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), LossScaler(init_scale=4.0)
    grows = 1e9 if dist.get_rank() == 0 else 1.0
    hook = model.module.final_norm.bias.register_hook(lambda gradient: gradient * grows)
    for step, (scale, skipped) in enumerate([(2.0, 1), (2.0, 1)]):
        before = model.gathered_state_dict()
        optimizer.zero_grad()
        scaler.scale(model(*own(batch))).backward()
        model.synchronize()
        scaler.step(optimizer)
        scaler.update()
        same = all(torch.equal(value, before[name]) for name, value in model.gathered_state_dict().items())
        agree(same is (step == 0), f"step {step} was {'skipped' if same else 'taken'} where it should not be")
        agree(scaler.get_scale() == scale and scaler.skipped == skipped, f"in step {step} ranks' scalers differ")
        hook.remove()


@on_ranks(4, diagnose=False)
def test_an_overflow_on_one_rank_skips_the_step_on_all():
    check_overflow(Zero3)


CONFIG = GPTConfig(layers=8, width=64, heads=2, vocab_size=32, context=8)


def check_bytes(wrap, dtype=torch.bfloat16, prefetch=True):
    """What a rank holds at each point of a step, by category; at the peak, with the buffers that `Zero3` states; and
    what it sends, as the kernel counts. All ranks must call."""
    ranks, tokens = dist.get_world_size(), torch.zeros(1, 2, dtype=torch.int64)
    whole = GPT(CONFIG, dtype=dtype)
    psi, wide = sum(p.numel() for p in whole.parameters()), 4
    unit = sum(p.nbytes for p in whole.blocks[0].parameters())
    root = sum(p.nbytes for p in whole.parameters()) - CONFIG.layers * unit
    largest = max(p.nbytes for p in whole.parameters())
    del whole
    model = wrap(GPT(CONFIG, dtype=dtype), prefetch=prefetch)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    held: dict[str, Any] = {}
    ends: list[int] = []
    with measure.memory(model, optimizer, inputs=tokens) as record:
        for _ in range(3):
            optimizer.zero_grad()
            held["between steps"] = record.now
            model(tokens, tokens).backward()
            model.synchronize()
            time.sleep(0.2)  # gloo's threads let go of what they have sent a little later
            held["with gradients"] = record.now
            optimizer.step()
            ends.append(len(record.timeline))
    slack = 5 * 8 * 2 * 4 * ranks + 8 * len(list(model.parameters())) + tokens.nbytes  # padding, Adam's step counts
    between = {"parameters": wide * psi / ranks, "gradients": 0, "optimizer": 2 * wide * psi / ranks}
    for when, due in (("between steps", between), ("with gradients", between | {"gradients": wide * psi / ranks})):
        for category, n_bytes in (due | {"total": sum(due.values())}).items():
            holds = held[when].total if category == "total" else held[when][category]
            agree(
                abs(holds - n_bytes) <= slack,
                f"{when} a rank holds {int(holds)} bytes ({category}), but should hold {n_bytes:.0f}",
            )
    weights, gradients = root + (1 + prefetch) * unit, root + 3 * unit + largest
    precision = "bf16" if dtype == torch.bfloat16 else "fp32"
    activations = predict.activations(predict.Setup(CONFIG, seq=2, precision=precision))
    most = 4 * wide * psi / ranks + weights + gradients + activations
    alive = record.timeline.bytes.sum(axis=1)  # the smaller peak of two steps: gloo lets go of messages late, at times
    holds = min(int(alive[start:end].max()) for start, end in pairwise(ends))
    agree(0.8 * most <= holds <= most, f"at the peak a rank holds {holds} bytes, at most {most:.0f} are due")
    check_traffic(model, optimizer, tokens, psi * dtype.itemsize)


def check_traffic(model: Any, optimizer: torch.optim.Optimizer, tokens: Tensor, whole_bytes: int) -> None:
    """Two all-gathers and a reduce-scatter: 3Ψ(N-1)/N, and the all-reduce of 4 bytes for each parameter."""
    ranks, parameters = dist.get_world_size(), len(list(model.parameters()))
    with measure.traffic() as sent:
        optimizer.zero_grad()
        model(tokens, tokens).backward()
        model.synchronize()
        optimizer.step()
    due = 3 * predict.all_gather(whole_bytes, ranks).bytes + predict.all_reduce(4 * parameters, ranks).bytes
    agree(0.99 * due <= sent.sent_bytes <= 1.05 * due, f"a step sends {int(sent.sent_bytes)} bytes, {due} are due")


@pytest.mark.parametrize(("dtype", "prefetch"), [(torch.bfloat16, True), (torch.float32, False)])
@on_ranks(4, nightly=(2,), diagnose=False)
def test_a_rank_holds_and_sends_the_bytes_of_the_paper(dtype, prefetch):
    check_bytes(Zero3, dtype, prefetch)


@pytest.mark.nightly  # stage 1's tells it by default
@on_ranks(2, backend="cpu:gloo", diagnose=False)
def test_these_are_the_bytes_where_each_kind_of_device_has_a_backend():
    check_bytes(Zero3)


def test_known_wrong_ones_are_refused():
    two_passes: dict[str, Any] = {"micro_batches": 2, "steps": 2}
    clips: dict[str, Any] = {"max_norms": (0.05,), "steps": 1}
    cases = {wrap: ("in step ", parity, Sharded, wrap, gpt, "sgd", two_passes) for wrap in wrong.WEIGHTS}
    cases |= {wrap: ("masters are off", check_16_bits, wrap, torch.bfloat16, 1, {}) for wrap in wrong.NARROW}
    scaled = "step 0 was taken|in step 0 ranks' scalers differ"
    cases |= {wrap: (scaled, check_overflow, wrap, {}) for wrap in wrong.SCALED}
    cases |= {wrap: ("in step 0: the norm is off", parity, Sharded, wrap, units, "sgd", clips) for wrap in wrong.NORMS}
    cases |= {wrap: (due, check_bytes, wrap, {}) for wrap, due in wrong.BYTES.items()}
    assert accepted(4, cases | {"apart": ("in step 0", parity, Sharded, apart, gpt, "sgd", two_passes)}) == {}


def apart(module, **settings):
    return nodes(wrong.ReplicasApart, module, **settings)


def rotary(seed):
    """A layer with what is saved, and what its constructor makes again, as the rotary embeddings of transformers."""
    torch.manual_seed(seed)
    module = torch.nn.Sequential(torch.nn.Linear(3, 3))
    module.register_buffer("seen", torch.full((2,), float(seed)))
    module.register_buffer("angles", torch.ones(2), persistent=False)
    return module


@on_ranks(2)
def test_what_is_not_saved_is_in_no_state():
    model, plain = Zero3(rotary(0)), rotary(1).state_dict()
    assert "angles" not in model.state_dict() and "seen" in model.state_dict()
    model.load_gathered_state_dict(plain)
    again = model.gathered_state_dict()
    assert again.keys() == plain.keys() and all(torch.equal(again[name], plain[name]) for name in plain)
    model.load_gathered_state_dict(again)
    assert model.module.get_buffer("angles").tolist() == [1.0, 1.0]


@pytest.mark.parametrize("name", ["0.bias", "seen"])
@on_ranks(2)
def test_a_state_of_another_module_changes_nothing(name):
    model, state = Zero3(rotary(0)), rotary(1).state_dict()
    before = model.gathered_state_dict()
    for found in (r"\(7,\)", "nothing"):
        state[name] = torch.zeros(7)
        if found == "nothing":
            del state[name]
        with pytest.raises(ValueError, match=rf"1 tensors differ: {name}: found {found}, needed \("):
            model.load_gathered_state_dict(state)
        after = model.gathered_state_dict()
        assert all(torch.equal(before[key], after[key]) for key in before)


def _small(optimizer=torch.optim.SGD):
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 4))
    model = Zero3(module, units=[module[0], module[2]])
    return model, optimizer(model.parameters(), lr=0.5)


@on_ranks(2)
def test_a_backward_pass_through_older_weights_is_refused():
    """As torch's own in-place steps and ZeRO-1 are; the same two losses before the step are fine."""
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


@on_ranks(2)
def test_another_optimizers_step_changes_nothing():
    model, _ = _small()
    other = torch.nn.Linear(2, 2)
    loss = model(torch.ones(2, 4)).sum()
    other(torch.ones(1, 2)).sum().backward()
    torch.optim.SGD(other.parameters(), lr=0.1).step()
    loss.backward()
    model.synchronize()
    assert all(shard.grad is not None for shard in model.parameters())


@on_ranks(3)
def test_whole_weights_come_and_go():
    """Parameters are freed, it evaluates, a whole state comes and goes, shards are what is stored; `zero_grad` forgets
    a pass that was not synchronized."""
    model, batch = Zero3(units(seed=0)[0]), units(seed=0)[1](0)
    before = model.gathered_state_dict()
    assert all(parameter.isnan().all().item() for parameter in model.module.parameters())
    with torch.no_grad():
        quiet = model(*batch)
    assert torch.equal(quiet, model(*batch).detach())
    model.load_gathered_state_dict({name: value + 1 for name, value in before.items()})
    after = model.gathered_state_dict()
    assert all(torch.equal(after[name], before[name] + 1) for name in before)
    model(*batch).backward()
    model.zero_grad()
    model.synchronize()
    assert all(shard.grad is None for shard in model.parameters())
    assert all(model.state_dict()[name].ndim == 1 for name, _ in model.named_parameters())


def clips_a_shard():
    model = Zero3(rotary(0))
    model(torch.ones(2, 3)).sum().backward()
    model.synchronize()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)


def nested():
    block = nn.Sequential(nn.Linear(3, 3))
    Zero3(nn.Sequential(block), units=[block, block[0]])


MISTAKES: list[tuple[Any, str]] = [
    (lambda: Zero3(nn.Linear(2, 2).requires_grad_(False)), "^no parameter to train"),
    (nested, "lies in another one"),
    (lambda: Zero3(nn.Linear(2, 2), replicas=dist.group.WORLD), "replicas without a group: the group has all ranks"),
    (clips_a_shard, "one rank's shard.*clip with clip_grad_norm_"),
]


def test_mistakes_are_told():
    assert refused(2, MISTAKES) == []
