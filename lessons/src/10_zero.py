# %% [markdown]
# # 10 · ZeRO
#
# **The question:** why store the same 16Ψ on every rank?
#
# | | |
# |---|---|
# | Time | first sitting 50 minutes, second sitting 45; about a minute of both together is computing on 2 CPU cores |
# | A GPU | is not used; there a reduce-scatter costs PyTorch half of what it costs here (section 10), and more of it can hide, since links have engines of their own |
# | Opens | `parallel/zero.py`, `predict/zero.py` |
#
# In lesson 02 a card of 16 GB died of a model of $\Psi$ = 1.5 billion parameters: 16 bytes for each, 24 GB, before the
# first activation. Lesson 07 gave you four such cards. All four die.
#
# They had 64 GB together, and the model needs 24. But each card held *all* of it, the same bits four times. Lessons 08
# and 09 would cut the model. This page takes the *copies* away, one kind after the other, and counts what is held and sent. That is
# **ZeRO**, the zero redundancy optimizer (Rajbhandari et al. 2020).

# %%
import functools

import torch
import torch.distributed as dist
from torch import nn

from course_kit import ranks
from course_kit.compare import compare
from course_kit.notebook import ask, show, your_turn
from course_kit.units import Bytes, Ratio
from course_lib import predict
from course_lib.collectives import algorithms as collectives
from course_lib.collectives.operators import all_gather
from course_lib.model.gpt import GPT
from course_lib.parallel.zero import ZeroOptimizer
from course_lib.train.recompute import recompute
from course_pages.lesson10 import pictures, turns
from course_pages.lesson10.ledgers import DEEP, FUSED, SMALL, Library, formula, is_like_one_process, ledger, tower, wide

# %%
psi = predict.parameters(SMALL)
print(f"{psi:,d} parameters")

# %% [markdown]
# ## 1 · Four equal ledgers
#
# We begin with what you know: data parallelism (lesson 07) in mixed precision (lesson 04). Weights and gradients are
# bf16, and Adam steps on fp32 copies of the weights, the **masters**. `step` takes each gradient's mean over the ranks,
# steps, and rounds the masters into the weights.
#
# (To ask whether a step is *right*, we run all of it in float64, as before. There a master is no wider than its weight.)

# %%
class Replicated:
    def __init__(self, model, rule=FUSED, lr=1e-2):  # FUSED: PyTorch's AdamW, in one pass over each tensor
        self.model, self.weights = model, list(model.parameters())
        self.masters = [nn.Parameter(self.keep(weight.detach())) for weight in self.weights]
        self.optimizer = rule(self.masters, lr=lr)

    def keep(self, weight):
        return wide(weight)  # all of it, in fp32

    @torch.no_grad()
    def step(self):
        for weight, master in zip(self.weights, self.masters):
            dist.all_reduce(weight.grad)
            master.grad = wide(weight.grad).div_(dist.get_world_size())
        self.optimizer.step()
        for weight, master in zip(self.weights, self.masters):
            weight.copy_(master)
            weight.grad = master.grad = None


# %% [markdown]
# When the backward pass has ended, each of the $\Psi$ parameters has 2 bytes for its weight, 2 for its gradient, and
# from the second step on 12 for master and moments. That is the famous 16. `ledger` takes two steps on every rank,
# reads the books at that moment, and goes on reading inside `step`. Look at `step` again before you guess. Which line
# makes something new?

# %%
guess_peak = ask("In `step`, at the fullest moment: how many bytes a parameter does one rank hold?")

# %%
all_0 = ranks.run(ledger, Replicated, world_size=4)
held_0, sent_0, peak_0 = all_0[0]
held_0 |= {"four ranks": sum((each.held["a rank"] for each in all_0), Bytes(0)), "in step": peak_0}
due_0 = formula(psi, 2, 2, 12) | {"four ranks": Bytes(4 * 16 * psi), "in step": Bytes(20 * psi)}
display(compare(predicted=due_0, measured=held_0, tolerance=0.001, unit="MB"))
print(f"in step: {peak_0 / psi:.1f} bytes a parameter (you said {guess_peak.said})")

# %% [markdown]
# Inside `step` a rank is fuller: before a bf16 gradient goes, its fp32 copy is made, 4 bytes more. So 16 is the bill
# *at the moment when we read it*, and a peak is a maximum over time (lesson 02). The paper counts 16, and so do we from
# here on.
#
# Three quarters of 27.6 MB are copies. The largest kind is master and moments, 12 of 16.
#
# ## 2 · Stage 1: whose moments?
#
# Adam is **element-wise**: to update an element it reads that element's gradient and that element's moments, and no
# neighbour's. So let each of $N$ ranks be responsible for an $N$-th of every tensor. It keeps masters and moments of
# *its* part, updates it, and tells the others. The bill becomes
#
# $$\underbrace{2\Psi + 2\Psi}_{\text{as before}} + \frac{12\Psi}{N} = 4\Psi + \frac{12\Psi}{N} \quad\text{bytes}$$
#
# (Rajbhandari et al. 2020, §5.1). First: which elements are mine? Ten elements on four ranks do not come out even. All
# parts should be equally long, since collectives want that, so zeros are put behind the last: **padding**.
#
# **Your turn.** Take this rank's part of a tensor. The caller *replaces* the whole by it, so think of what a view keeps
# alive (lesson 02).


# %%
@your_turn(turns.check_part, look="How many zeros are missing (-10 % 4)? nn.functional.pad adds them. Whose memory is a chunk's?")
def my_part(tensor):
    """A copy of this rank's part of the tensor's elements, flat, with zeros behind the last one. Parts are equally long."""
    ...


# %% tags=["solution"]
# One solution. Open it when yours passes, or when you are stuck.
@my_part.solution
def my_part(tensor):
    flat, p = tensor.flatten(), dist.get_world_size()
    padded = nn.functional.pad(flat, (0, -len(flat) % p))
    return padded.chunk(p)[dist.get_rank()].clone()


# %% [markdown]
# Second: the step. Its first half is written: the mean gradient of each tensor, and of that my part. The second half,
# `update_and_tell`, will be yours.


# %%
class Zero1(Replicated):
    def keep(self, weight):
        return wide(my_part(weight))

    def mean_of_mine(self, weight):
        dist.all_reduce(weight.grad)
        return my_part(weight.grad / dist.get_world_size())

    @torch.no_grad()
    def step(self):
        for weight, master in zip(self.weights, self.masters):
            master.grad = wide(self.mean_of_mine(weight))
        self.update_and_tell()
        for weight, master in zip(self.weights, self.masters):
            weight.grad = master.grad = None


# %% [markdown]
# **Your turn.** Write it. `zero.masters` are this rank's parts, and their gradients are in place. `all_gather(part, 0)`
# puts everybody's parts end to end, padding included. It sends what you hand it, so hand it no more than the weights
# need. And leave the masters as the optimizer made them.


# %%
@your_turn(turns.check_step, look="A master is fp32, a weight may be bf16: which should travel? And what hangs behind the last element?")
def update_and_tell(zero):
    """Step on this rank's part; then give every rank the new weights, in place in `zero.weights`, by all_gather. All ranks call."""
    ...


# %% tags=["solution"]
@update_and_tell.solution
def update_and_tell(zero):
    zero.optimizer.step()
    for weight, master in zip(zero.weights, zero.masters):
        whole = all_gather(master.to(weight.dtype), 0)
        weight.copy_(whole[: weight.numel()].view_as(weight))


# %%
Zero1.update_and_tell = update_and_tell
held_1, sent_1, _ = ranks.run(ledger, Zero1, world_size=4)[0]
reduced, gathered = predict.all_reduce(2 * psi, 4).bytes, predict.all_gather(2 * psi, 4).bytes
compare(predicted=formula(psi, 2, 2, 12 / 4), measured=held_1, tolerance=0.001, unit="MB")

# %% [markdown]
# Less than half is held. But more is sent. A replicated step all-reduces the gradients, $2\frac{N-1}{N}$ times their
# bytes, 1.29 MB; this one sends half as much again, 1.94 MB. (The next table has both. On top come headers, of many
# small messages.)
#
# ## 3 · Half an all-reduce
#
# Look at the all-reduce again. It is two passes (lesson 06). After the first, a **reduce-scatter**, each rank has the
# finished sum of one part. The second hands the parts around. And what do we do with the three quarters that arrive?
# `my_part` throws them away.
#
# So leave out the second pass. How many bytes does a rank send in a step then? (We take lesson
# 06's reduce-scatter.)

# %%
guess_half = ask("Leave out the half of the all-reduce that nobody reads: how many MB does the whole step send then?", unit="MB")


# %%
class Scattering(Zero1):
    def mean_of_mine(self, weight):
        flat = weight.grad.flatten()
        return collectives.reduce_scatter(nn.functional.pad(flat, (0, -len(flat) % dist.get_world_size())), "mean")


is_like_one_process(Scattering)
sent_half = ranks.run(ledger, Scattering, world_size=4)[0].sent
scattered = predict.reduce_scatter(2 * psi, 4).bytes
due = {"replicated": reduced, "with all-reduce": reduced + gathered, "with reduce-scatter": scattered + gathered}
sent = {"replicated": sent_0, "with all-reduce": sent_1, "with reduce-scatter": sent_half}
display(compare(guess={"with reduce-scatter": guess_half}, predicted=due, measured=sent, tolerance=0.05, unit="MB"))
pictures.where_the_step_stands(caption="The same two passes, the same bytes. In the gap between them a third of the step fits.").show()

# %% [markdown]
# As much as without ZeRO. The paper counts numbers, not bytes, and takes $\frac{N-1}{N}$ for 1: a volume of $2\Psi$, as
# in plain data parallelism (§7). We have cut an all-reduce in the middle and put the step between its halves: gradients
# go out, *weights* come back.
#
# So stage 1 costs no extra traffic. Remember that. It is rare.
#
# ## 4 · Stage 2: whose gradients?
#
# A rank reads only its part of each mean gradient. The rest may go, and the $2\Psi$ bytes of gradients that a rank
# holds become $2\Psi/N$. But when? If all are
# dropped after the backward pass, all were there together first, and the ledger was as full as before. Lesson 07 knows
# a better moment: as soon as the backward pass has left a layer, that layer's gradients are complete, and a hook is
# called.

# %%
class Zero2(Scattering):
    def __init__(self, model, *args):
        super().__init__(model, *args)
        self.parts = {}  # weight -> my part of its mean gradient
        for weight in self.weights:
            weight.register_post_accumulate_grad_hook(self.on_gradient)

    def on_gradient(self, weight):
        self.parts[weight] = self.parts.get(weight, 0) + super().mean_of_mine(weight)
        weight.grad = None

    def mean_of_mine(self, weight):
        return self.parts.pop(weight)


is_like_one_process(Zero2)
held_2 = ranks.run(ledger, Zero2, world_size=4)[0].held
compare(predicted=formula(psi, 2, 2 / 4, 12 / 4), measured=held_2, tolerance=0.001, unit="MB")

# %% [markdown]
# $2\Psi + \frac{14\Psi}{N}$. With many ranks an eighth of the bill remains, and it is all weights. The messages are the
# same ones, only earlier.
#
# One thing did change. Accumulate gradients over several backward passes (lesson 05), and stage 1 may wait and reduce
# once. Stage 2 has dropped the rest already, so it must reduce in *every* pass.
#
# ## 5 · Stage 3: whose weights?
#
# The last $2\Psi$. They are different: a rank *uses* all weights. But not all at once. While block 7 computes, block 1
# lies there and waits for the backward pass. So keep only parts, and let each **unit**, a block, say, come and go:
# gather it, use it, free it. On the way back gather it again, compute, and send each part of its gradient to the rank
# that owns that part.
#
# What is the way back of an all-gather? Lesson 08 had that pair: a reduce-scatter. There it was for tokens, here it is
# for weights, and a mean, since each rank has its own share of the batch.

# %%
class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, part):
        return all_gather(part, 0)

    @staticmethod
    def backward(ctx, gradient):
        return collectives.reduce_scatter(gradient, "mean")


# %% [markdown]
# `torch.func.functional_call(block, weights, x)` runs a block with weights that you hand it, a dict by name. So `shape` below may
# be a block on the meta device, which has names and shapes and no memory.
#
# **Your turn.** Run a unit of which this rank has parts only.


# %%
@your_turn(turns.check_unit, look="Gather returns a flat tensor. How long is it, and how long is the parameter of this name in `shape`?")
def unit(shape, parts, x):
    """What the block makes of x; parts are this rank's, in the order of shape.named_parameters(). All ranks call."""
    ...


# %% tags=["solution"]
@unit.solution
def unit(shape, parts, x):
    weights = {}
    for (name, like), part in zip(shape.named_parameters(), parts):
        weights[name] = Gather.apply(part)[: like.numel()].view(like.shape)
    return torch.func.functional_call(shape, weights, x)


# %% [markdown]
# Four such blocks on top of each other, and one single token, so that activations weigh nothing. Is what we gather
# freed? `unit` returns, its dict goes away. And yet: who else holds a weight? The backward pass of a
# product $x \cdot w$ wants $w$, so autograd has kept it. **We forgot to free.**
#
# The repair is lesson 03's. `recompute` keeps a unit's input and parts and nothing else, and on the way back runs the
# unit once more, the gather included.

# %%
blocks = Bytes(2 * sum(weight.numel() for weight in GPT(DEEP, device="meta").blocks.parameters()))
print(f"four blocks: {blocks:MB} of weights")

# %%
guess_kept = ask("If we forget: MB of weights, parts and whole, alive after the forward pass?", unit="MB")

# %%
ways = {"forgets": unit, "frees": functools.partial(recompute, unit, preserve_rng=False)}
due, measured, once = {}, {}, predict.all_gather(blocks, 4).bytes
for name, run in ways.items():
    most, after, sent = ranks.run(tower, run, my_part, world_size=4)[0]  # most, after: forward pass; sent: both
    measured |= {f"{name}, after": after, f"{name}, sent": sent}
measured["frees, at most, forward"] = most
due = {"forgets, after": blocks / 4 + blocks, "forgets, sent": 2 * once, "frees, after": blocks / 4, "frees, sent": 3 * once}
due["frees, at most, forward"] = blocks / 4 + blocks / 4  # all parts, and one of the four blocks whole
compare(guess={"forgets, after": guess_kept}, predicted=due, measured=measured, tolerance=0.05, unit="MB")

# %% [markdown]
# The one that forgets is a stage 3 that holds *more* than stage 2. Nothing fails, and it even sends less, so only the
# ledger gives it away. The one that frees sends $3\Psi$: two gathers and a
# reduce-scatter, of $\Psi$ numbers each (the paper's §7.2.2). Half as much again is the price of the last cut, and the
# bill is
#
# $$\frac{16\Psi}{N}.$$
#
# On top of it stands what is whole at the time, here one unit: the last row counts it. The library has the next unit on
# its way meanwhile, and keeps what is in no block (embeddings, the last norm) whole all the time, so there it is *these and
# two blocks*.
#
# ## 6 · All of it
#
# The library's `ZeroOptimizer` and `Zero3` are the same ideas grown up. Tensors travel in buckets; and no unit computes
# twice: the library empties the weights' memory under autograd's hands, and fills it again in time. Their bills, with the
# whole GPT, are below, and above them one function. Where in it is your `update_and_tell`?

# %%
pictures.who_holds_what(4, caption="Each stage leaves more white, and the weights go last.").show()

# %%
display(show(ZeroOptimizer.step, docstring=False))
held, sent = {"replicated": held_0["a rank"]}, {"replicated": sent_0}
for stage in (1, 2, 3):
    kind, name = functools.partial(Library, stage), f"stage {stage}"  # Library: ZeroOptimizer and Zero3 behind one face
    is_like_one_process(kind)
    bills, sent[name], _ = ranks.run(ledger, kind, world_size=4)[0]
    held[name] = bills["a rank"]
on_paper = {"replicated": 16, "stage 1": 4 + 12 / 4, "stage 2": 2 + 14 / 4, "stage 3": 16 / 4}
held_due, sent_due = ({name: Bytes(round(psi * n)) for name, n in on_paper.items()}, dict.fromkeys(held, scattered + gathered))
sent_due["stage 3"] += gathered
display(compare(predicted=held_due, measured=held, tolerance=0.02, unit="MB"))
display(compare(predicted=formula(psi, 4 / 4, 4 / 4, 8 / 4), measured=bills, tolerance=0.02, unit="MB"))  # stage 3's
compare(predicted=sent_due, measured=sent, tolerance=0.05, unit="MB")

# %% [markdown]
# `update_and_tell` is the middle of `step`: `optimizer.step()` on this rank's pieces, then everybody's weights.
# (The second table is stage 3 by category. `Zero3` keeps no bf16 copy of its part, and its part of the gradients in fp32: 12 + 4 instead of
# the picture's 12 + 2 + 2, so $16\Psi/N$ again; its fp32 weights are the masters, too. How stages 2 and 3 let go, section 10 prints.)
#
# Stage 1 saves most, and sends no more. Stage 2 saves a little, and has to reduce in each backward pass. Stage 3 saves
# the rest, for half as much traffic again, and with enough ranks the states of *any* model fit, if what must be whole
# fits.
#
# ## 7 · Which stage?
#
# Which one does a model need? Here are the same formulas, on real cards.

# %%
from course_pages.lesson10.explorer import ZeroExplorer

ZeroExplorer().show()

# %% [markdown]
# (If nothing reacts to your clicks, run the cell once.)
#
# 1. GPT-3 6.7B on A100s with 40 GB. Which stage is the first that fits on 8 ranks? And on 4?
# 2. Move the ranks up, to 4,096. Which bars stop getting shorter, and at what length?
#
# <details><summary>Answers</summary>
#
# 1. On 8 stage 1; on 4 stage 2.
# 2. Stage 1 stops at $4\Psi$, 24.8 GiB, stage 2 at $2\Psi$, 12.4 GiB: what is not cut stays. Stage 3 comes down to 1.2 GiB, and nearly
# all of that is the grey, what must be whole at the time. Only its parts go on shrinking.
#
# </details>
#
# An all-reduce, cut open, has room for a step; what only one rank reads, only one rank keeps; and
# what all ranks read, but only a unit at a time, can come and go.

# %% [markdown]
# ## Second sitting
#
# What stands above is the story, and you may stop here. On another day, run all cells above before you go on. Below:
# two norms that are wrong, PyTorch's own ZeRO, how stages 2 and 3 let go, when stage 3 pays, what else the paper saves,
# how to save a model that no rank has, what ran on real cards, and the explorer once more.

# %%
import statistics
import tempfile
import time

from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from course_kit.notebook import self_check
from course_lib.model import hardware, text
from course_lib.model.gpt import GPTConfig
from course_lib.parallel.mesh import Mesh, process_groups
from course_lib.parallel.whole_tensors import WholeTensorOptimizer
from course_lib.parallel.zero import start_all_gather, start_reduce_scatter
from course_lib.parallel.zero3 import UnshardableFlatParameter, Zero3
from course_lib.parallel.zero_r import CheckpointMemory, recompute_part
from course_lib.train.muon import Muon
from course_pages.lesson10 import ledgers
from course_pages.shared.who_sends import between_nodes, matrix, who_sends_whom

# %% [markdown]
# ## 8 · A norm that is too small
#
# One bad batch can throw a model out of its valley. So one **clips**: if the norm of the whole gradient is above a
# limit, all of it is scaled down to that limit. PyTorch has `clip_grad_norm_` for it. You call it where you always did,
# before the step, on what the rank has:

# %%
guess_norm = ask("Each of 4 ranks clips its part to a norm of 0.1. What norm has the whole gradient then?")


# %%
def clipped(limit):
    zero = Scattering(GPT(SMALL))
    zero.model(*ledgers.share(0, dist.get_rank())).backward()
    for weight, master in zip(zero.weights, zero.masters):
        master.grad = zero.mean_of_mine(weight)
    norm = nn.utils.clip_grad_norm_(zero.masters, limit).item()
    return norm, sum(master.grad.square().sum().item() for master in zero.masters)


norms, squares = zip(*ranks.run(clipped, 0.1, world_size=4))
print("norms that the four ranks see:", *(f"{norm:.2f}" for norm in norms))
display(compare(guess=guess_norm, predicted=Ratio(0.1 * 4**0.5), measured=Ratio(sum(squares) ** 0.5), tolerance=1e-4, name="norm"))

# %% [markdown]
# Each rank did what it was told, with its part. But squares add up: the whole is $\sqrt N$ times too long. On 1,024
# ranks it may be 32 times too long before anybody clips. And each part was shrunk by its own factor, so even the
# direction is another. What should the ranks have told each other? One number each: the square of its part's norm.
#
# ## 9 · A norm that is too large
#
# So you repair it: squares, one all-reduce, the root. A colleague saves memory, and uses one buffer for all
# gradients. Four ranks. The first gradient has 10 elements, the second 5, and all are 1, so the norm is $\sqrt{15}$.
# The buffer has 12 places. What comes out?

# %%
guess_buffer = ask("One buffer, used again: which norm?")


# %%
def norm(fresh):
    buffer, squares = torch.zeros(12), torch.zeros(())
    for gradient in (torch.ones(10), torch.ones(5)):
        flat = torch.zeros(12) if fresh else buffer
        flat[: len(gradient)] = gradient
        padded = flat[: len(gradient) + -len(gradient) % dist.get_world_size()]
        squares += collectives.reduce_scatter(padded, "mean").square().sum()
    dist.all_reduce(squares)
    return Ratio(squares.sqrt().item())


compare(
    guess={"used again": guess_buffer},
    predicted={"fresh zeros": Ratio(15**0.5), "used again": Ratio(18**0.5)},
    measured={"fresh zeros": ranks.run(norm, True, world_size=4)[0], "used again": ranks.run(norm, False, world_size=4)[0]},
    tolerance=1e-6,
)

# %% [markdown]
# The second gradient is padded with three places, and there the first one still stands. The *weights* never notice,
# since padding belongs to no tensor. Only the norm reads straight across. So every step is clipped a little too early,
# by an amount that depends on the number of ranks. (In the library a rank's part of a bucket is cut into `LocalShard`s, one
# for each tensor, and padding is in none of them.)
#
# ## 10 · PyTorch's own
#
# `ZeroRedundancyOptimizer` is stage 1, behind `DistributedDataParallel`, and `fully_shard`, called FSDP, is stage 3. (Some
# lectures call that tensor parallelism, too, although what it shards is *data* parallelism: exercise 3 counts.)
#
# Same weights after each step? And what do they keep and send? Weights are float32 here, 4 bytes each. Two things to
# know before: gloo makes an all-reduce of FSDP's reduce-scatter, so on the CPU gradients cost $2\Psi$ numbers and not
# $\Psi$. And what is in no block belongs to the root, which FSDP does not free between forward and backward: it is
# gathered once, and the blocks twice.
#
# **Mixed precision** is a policy there. Shards stay fp32; `param_dtype` is what is gathered and computed with,
# `reduce_dtype` what gradients are summed in. No bf16 weight is kept, and no gradients are summed in bf16, as they are
# on section 3's ring (lesson 05, section 7, says what long sums lose by that).
#
# (Section 1 counted 20 bytes where a bf16 gradient gets its fp32 copy inside `step`. Megatron-LM's documentation has
# these 20, too, and 18 where gradients are fp32 from the start, 2 + 4 + 12. Section 1's ratio is not quite 1, behind the
# four digits: Adam counts its steps, in 4 bytes for each tensor.)

# %%
class TheirStage1:
    def __init__(self, model, rule=torch.optim.AdamW):
        self.model = DistributedDataParallel(model)
        self.optimizer = ZeroRedundancyOptimizer(model.parameters(), rule, lr=1e-2)
        self.weights = list(model.parameters())

    def step(self):
        self.optimizer.step()
        self.optimizer.zero_grad()


# %%
class TheirStage3(TheirStage1):
    policy = MixedPrecisionPolicy()

    def __init__(self, model, rule=FUSED):
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for block in model.blocks:
            fully_shard(block, mesh=mesh, mp_policy=self.policy)
        self.model = fully_shard(model, mesh=mesh, mp_policy=self.policy)
        self.optimizer = rule(model.parameters(), lr=1e-2)

    @property
    def weights(self):
        return [weight.full_tensor() for weight in self.model.parameters()]


class TheirMixed(TheirStage3):
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)


# %%
kinds = {"stage 1, PyTorch": TheirStage1, "stage 1, ours": functools.partial(Library, 1), "stage 3, PyTorch": TheirStage3,
         "stage 3, ours": functools.partial(Library, 3), "stage 3, mixed": TheirMixed}  # fmt: skip
per_rank = {name: ranks.run(ledgers.beside, kind, world_size=4) for name, kind in kinds.items()}
for name, found in per_rank.items():
    print(f"{name}: one process's weights {all(same for same, *_ in found)}; kept as {found[0][1]}; "
          f"moments by rank: {', '.join(f'{moments:.2MB}' for *_, moments, _ in found)}")  # fmt: skip

# %%
def gather(elements, width=4):
    """Bytes that each of four ranks sends, so that all have so many elements of `width` bytes."""
    return predict.all_gather(width * elements, 4).bytes


in_blocks = sum(weight.numel() for weight in GPT(SMALL, device="meta").blocks.parameters())
due = {"stage 1, PyTorch": 3 * gather(psi), "stage 1, ours": 2 * gather(psi)}
due["stage 3, PyTorch"] = gather(psi) + gather(in_blocks) + 2 * gather(psi)  # the blocks twice; gloo's whole all-reduce
due |= {"stage 3, ours": 3 * gather(psi), "stage 3, mixed": gather(psi, 2) + gather(in_blocks, 2) + 2 * gather(psi)}
mean = {name: sum((sent for *_, sent in found), Bytes(0)) / 4 for name, found in per_rank.items()}
compare(predicted=due, measured=mean, tolerance=0.05, unit="MB")

# %% [markdown]
# The same weights, and PyTorch's stage 1 deals out whole tensors: its moments come out uneven, while ours are a quarter
# each. It all-reduces, as our first attempt did, and then tells the new weights: $3\Psi$. (A mean over the ranks: a rank
# that owns more tells more.) With the policy the weights are other ones, since it computes in bf16; what is kept is fp32
# all the same, and only the gathers are half as long.
#
# Why whole tensors? **A slice cannot tell a tensor's norm.** LAMB (You et al. 2019) makes a tensor's step as long as
# the norm of its weights says, and Muon (Jordan et al. 2024) replaces the step of a matrix by the nearest orthogonal matrix, for which it needs all of it. Cut through a matrix, and each rank would compute those of its slice. So each tensor gets one owner:


# %%
def with_muon(wrap):
    matrices = [weight for weight in GPT(SMALL).blocks.parameters() if weight.dim() == 2]
    try:
        return str(wrap(matrices, Muon).deal)  # who owns what
    except ValueError as problem:
        return str(problem)


for wrap in (ZeroOptimizer, WholeTensorOptimizer):
    print(f"{wrap.__name__}: {ranks.run(with_muon, wrap, world_size=4)[0]}")

# %% [markdown]
# In the library stage 2's `parameter.grad = None` lets go of a gradient as soon as its bucket is on its way; the bucket
# before it arrives meanwhile. And how does a stage 3 free what autograd still holds (section 5), without computing twice
# (section 6)? The tensor stays, and its storage shrinks to 0 bytes. `fully_shard` does so, too, in its `free_storage`.

# %%
display(show(ZeroOptimizer._reduce_next, docstring=False), show(UnshardableFlatParameter._empty))

# %% [markdown]
# ## 11 · When stage 3 pays
#
# $3\Psi$ instead of $2\Psi$: is a step with stage 3 half as slow again? Ask when the messages hide. Each rank has $D$
# tokens, computes $R$ operations a second and sends $W$ bytes a second. Its forward pass takes $2\Psi D / R$, and
# meanwhile $2\Psi$ bytes are gathered. Its backward pass takes twice as long, and has a gather and a reduce-scatter,
# twice the bytes. Both hide from the same number on:
#
# $$\frac{2\Psi D}{R} \ge \frac{2\Psi}{W} \quad\text{and}\quad \frac{4\Psi D}{R} \ge \frac{4\Psi}{W}
# \qquad\text{if}\qquad D \ge \frac{R}{W}.$$
#
# That is lesson 07's number! Data parallelism sends $4\Psi$ bytes behind the backward pass, and while it goes forward
# the network sleeps. Stage 3 wakes it up. It sends half as much again, and can hide it behind half as much time again, if
# the next unit is on its way in time. The next picture is a drawing and not a run. We let a gather last 0.8 of a
# unit's forward pass:

# %%
pictures.zero3_timeline(
    caption="Drawn with gathers of 0.8. Above, each unit waits for its weights. Below, only the first gather, the turn and the last scatter show."
).show()

# %% [markdown]
# And by the clock? Two ranks, one on each of your cores, take whole steps with DDP, with our three stages and with
# `fully_shard`. If messages were all that takes time, each would take as long as its bytes say. If they cost nothing, each
# would be as quick as DDP. **Guess:** stage 3 sends one and a half times DDP's bytes. With 64 tokens on a rank, how many times as
# long as DDP's is its step? (The table has 256 as well: nearer to DDP, or farther?)
#
# The five take turns, and of four steps each the lower quartile counts.

# %%
guess_slower = ask("64 tokens on each of two ranks: how many times as long as DDP's is a step of stage 3?")

# %%
TIMED = GPTConfig(layers=2, width=256, heads=4, vocab_size=256, context=64, norm="rmsnorm", bias=False)


class Plain(TheirStage1):
    def __init__(self, model, rule=FUSED):
        self.model, self.optimizer = DistributedDataParallel(model), rule(model.parameters(), lr=1e-2)


# %%
def seconds_of_steps(kinds, sequences):
    batch = text.stories(seed=0).batch(seed=0, step=0, rank=dist.get_rank(), batch_size=sequences, context=64)
    made, took = {name: kind(GPT(TIMED)) for name, kind in kinds.items()}, {name: [] for name in kinds}
    for step in range(5):
        for name, zero in made.items():
            dist.barrier()
            begin = time.perf_counter()
            zero.model(*batch).backward()
            zero.step()
            dist.barrier()
            if step:  # the first one makes buffers and moments
                took[name].append(time.perf_counter() - begin)
    return {name: statistics.quantiles(each, n=4)[0] for name, each in took.items()}


# %% tags=["varies"]
timed = {"DDP": Plain} | {f"stage {stage}": functools.partial(Library, stage) for stage in (1, 2, 3)}
timed |= {"fully_shard": TheirStage3}
over_ddp = {"DDP": 2 / 2, "stage 1": 2 / 2, "stage 2": 2 / 2, "stage 3": 3 / 2, "fully_shard": 4 / 2}  # numbers sent, in Ψ
took = {64 * n: ranks.run(seconds_of_steps, timed, n, world_size=2, diagnose=False)[0] for n in (1, 4)}
print(f"{'over DDP:':12} bytes", *(f"{f'{count} tokens: time':>18}{'tokens/s':>10}" for count in took))
for name, sent in over_ddp.items():
    told = (f"{each[name] / each['DDP']:18.2f}{count / each[name]:10,.0f}" for count, each in took.items())
    print(f"{name:12} {sent:5.2f}", *told)
print(f"you said {guess_slower.said} for stage 3 with 64 tokens")

# %% [markdown]
# With few tokens the two that send more are the slowest. (On gloo, `fully_shard` sends an all-reduce for its
# reduce-scatter: section 10.) With four times the tokens the products take four times as long and the messages as long as
# before, so all draw nearer to DDP. But bytes are not everything. Stages 1 and 2 send as many as DDP and are slower all the
# same. Is it that no backward pass runs beside their messages? Stage 1 hides none of them, stage 2 half, and they are
# about equally slow. So time the messages alone, as many numbers as this model has: a whole all-reduce, and its two halves.

# %% tags=["varies"]
def seconds_of_messages(n, repeats=15):
    whole, part = torch.ones(n), torch.ones(n // 2)
    ways = {
        "all-reduce": lambda: dist.all_reduce(whole),
        "reduce-scatter": lambda: start_reduce_scatter(whole, dist.group.WORLD, torch.float32)(),
        "all-gather": lambda: start_all_gather(whole, part, dist.group.WORLD).wait(),
    }
    took = {name: [] for name in ways}
    for name in [*ways] * repeats:
        dist.barrier()
        begin = time.perf_counter()
        ways[name]()
        dist.barrier()
        took[name].append(time.perf_counter() - begin)
    return {name: statistics.median(each) for name, each in took.items()}


alone = ranks.run(seconds_of_messages, 2 * (predict.parameters(TIMED) // 2), world_size=2, diagnose=False)[0]
print(*(f"{name} {1e3 * each:.1f} ms" for name, each in alone.items()), sep=", ")

# %% [markdown]
# Each half sends half of the bytes, and takes far more than half of the time, or even more than the whole. (The library makes its reduce-scatter of an all-to-all and a sum, since
# gloo's own would send a whole all-reduce: section 10.) gloo's all-reduce cuts what it sends into segments, and adds one while the next is under way; its
# other collectives have no such care. NCCL's have. Stage 3 waits for three such halves, so its time may lie above its one and a half times the bytes.
#
# Do not read a network's speed from this, either. These ranks share one memory, and a message is a copy made by the very
# cores that should compute. It cannot hide as it does behind a GPU.
#
# Stage 3 does not pay where a rank has few tokens: an H100 at 40 % of its peak, eight in a node, needs about 770 (lesson
# 07: in a node of eight it is $\frac78$ of $R/W$, which is 879). And if you *accumulate* to get there, count again: by default every pass gathers every weight. (FSDP's
# `set_reshard_after_backward(False)` keeps them, for memory.) How many $\Psi$ does each stage send with 4 passes a step?

# %%
m = 4
measured = {f"stage {stage}": ranks.run(ledgers.sent_in_a_step, stage, m, world_size=4)[0] for stage in (1, 2, 3)}
compare(
    predicted={"stage 1": 2 * gather(psi), "stage 2": (m + 1) * gather(psi), "stage 3": 3 * m * gather(psi)},
    measured=measured,
    tolerance=0.05,
    unit="MB",
)

# %% [markdown]
# 2, 5 and 12. So with many passes for each step stage 1, which waits, is the cheapest by far, and where its states fit,
# nothing else is needed. (Too few tokens for all ranks? Let some share theirs and cut layers, lesson 08: FSDP on one
# axis, tensor parallelism on the other.)
#
# There is a way between: shard over the GPUs of *one machine*, whose links are fast, and replicate across machines. Then the
# gathers never leave the machine, and all that crosses is the mean of the shards' gradients. FSDP calls it **hybrid
# sharding**. We play two machines of two ranks, and the kernel counts what each connection carries:


# %%
def hybrid(model):
    groups = process_groups(Mesh({"machine": 2, "shard": 2}))
    return Zero3(model, groups["shard"], replicas=groups["machine"])


accounts = {name: ranks.run(ledgers.sent_to_whom, wrap, world_size=4) for name, wrap in (("over all four", Zero3), ("hybrid", hybrid))}
who_sends_whom(accounts, ranks_per_node=2, observed=True, caption="A step of stage 3, both times. Compare the orange frames, what crosses between machines: hybrid sharding keeps the gathers out of them.").show()

# %%
inside, across = 3 * predict.all_gather(4 * psi, 2).bytes, predict.all_reduce(4 * psi / 2, 2).bytes
seen = matrix(accounts["hybrid"], observed=True)
crosses = {name: between_nodes(matrix(each, observed=True), 2) for name, each in accounts.items()}
ring = 3 * 2 * predict.all_gather(4 * psi, 4).bytes  # three passes, and two of a ring's four links cross
print(f"over all four {crosses['over all four'] / crosses['hybrid']:.2f} times as much crosses; on a ring {ring / crosses['hybrid']:.2f}")
compare(
    predicted={"to the neighbour": inside, "across": across, "all that crosses": 4 * across},
    measured={"to the neighbour": seen[0][1], "across": seen[0][2], "all that crosses": crosses["hybrid"]},
    tolerance=0.1,
    unit="MB",
)

# %% [markdown]
# (Our scatter hands each part to its owner directly, so more crosses than a ring would need.)
# Inside, $3\Psi$ over two ranks; across, an all-reduce of half of the gradients, $\Psi$ in all from each machine. The
# price is memory: a rank holds $16\Psi$ over the ranks of *its machine*.
#
# ## 12 · What is left: ZeRO-R
#
# Model states are cut. The paper's second half, ZeRO-R, goes on with all the rest, in three parts.
#
# **Activations.** Lesson 03 keeps one input for each block and computes the rest again. Under tensor parallelism
# (lesson 08) that input is the stream, and *every* rank of a layer keeps the same one. A copy again! So keep a part,
# and gather when the block is computed again. Where can one stand to do that? At the door where autograd stores what
# it keeps: `saved_tensors_hooks` is handed every tensor on its way in (`keep`) and on its way out (`give`).

# %%
show(recompute_part, docstring=False)

# %% [markdown]
# We take 4 ranks, 4 blocks and a stream of 65.5 kB. What is held between the passes? And how many percent more is sent, if
# a block with recompute sends six all-reduces of the stream: two forward, two again, two back?

# %%
stream = Bytes(4 * 4 * 32 * 128)
kept, sent = zip(*(ranks.run(ledgers.checkpointed, keep, world_size=4)[0] for keep in (False, True)))
display(compare(predicted={"copies": 4 * stream, "parts": 4 * stream / 4}, measured=dict(zip(("copies", "parts"), kept)), unit="kB"))
compare(predicted=Ratio(100 / 12), measured=Ratio(100 * (sent[1] / sent[0] - 1)), tolerance=0.05, name="percent")

# %% [markdown]
# A quarter is held, for a twelfth more traffic: each of the six all-reduces is worth two gathers, and this is one gather
# more. (The paper says less than 10 %, its §8. For 100 billion parameters its §3.2 counts 60 GB of checkpoints.)
#
# **Buffers.** Lesson 02 fused all gradients into one fp32 buffer, $4\Psi$: 6 GB for 1.5 billion parameters (§3.2), 12 for
# 3 (§6.2). But what goes through a buffer may go in pieces.
#
# **Your turn.** Send a long bf16 tensor through a short fp32 buffer.

# %%
@your_turn(turns.check_average, look="tensor.split gives views. How long is the last one?")
def average(buffer, tensor):
    """Put the ranks' mean into `tensor`, flat and bf16, summed in fp32 in `buffer`, by all_reduce. All ranks call."""
    ...


# %% tags=["solution"]
@average.solution
def average(buffer, tensor):
    for piece in tensor.split(len(buffer)):
        part = buffer[: len(piece)]
        part.copy_(piece)
        dist.all_reduce(part)
        piece.copy_(part / dist.get_world_size())


# %% [markdown]
# The library's `average_through` lets small tensors share the buffer as well. How much is alive at the peak, when the
# model grows?

# %%
due, held = {}, {}
for layers in (2, 8):
    for name, size in {"all at once": None, "constant": 2**14}.items():
        held[f"{layers} layers, {name}"], all_of_them = ranks.run(ledgers.through_a_buffer, layers, size, world_size=2)[0]
        due[f"{layers} layers, {name}"] = Bytes(4 * size) if size else all_of_them
compare(predicted=due, measured=held, unit="kB")

# %% [markdown]
# **Fragments.** They are lesson 02's last thief. Checkpoints live long, and what a block computes between them is soon
# gone. So memory becomes a comb: its teeth are checkpoints, and between them is nothing that is large. The repair is to take one
# piece for all checkpoints *before* the step, and to copy them there (`CheckpointMemory`). On lesson 02's model of the
# allocator, a card of 96 MiB, with 12 checkpoints of 2 MiB:


# %%
def after_the_forward_pass(contiguous):
    card = predict.CachingAllocator(capacity=96 * 2**20)
    if contiguous:
        card.allocate("all checkpoints", 12 * 2 * 2**20)
    for block in range(12):
        card.allocate(("inside", block), (4 + block % 3 * 2) * 2**20)
        if not contiguous:
            card.allocate(("checkpoint", block), 2 * 2**20)
        if block:
            card.free(("inside", block - 1))
    card.free(("inside", 11))
    return card


for name, contiguous in {"one by one": False, "in one piece": True}.items():
    try:
        after_the_forward_pass(contiguous).allocate("a gathered unit", 60 * 2**20)
        print(f"checkpoints {name}: it fits")
    except predict.OutOfMemory as problem:
        print(f"checkpoints {name}: {problem}")

# %% [markdown]
# As much is free in both, and only in one a tensor of 60 MiB can be born. (What the paper saw in "extreme cases",
# memory gone with 30 % of it free, is this.) And on our ranks? With memory taken before, a forward pass should take
# none for checkpoints:


# %%
display(show(CheckpointMemory.new, docstring=False))
compare(predicted={"new memory": Bytes(0)}, measured={"new memory": ranks.run(ledgers.in_one_piece, world_size=4)[0]})

# %% [markdown]
# ## 13 · Saving what no rank has
#
# From stage 1 on no rank has all of Adam's state, and with stage 3 none has the weights. Who saves? Each its own part.
# And if tomorrow two of four ranks are gone? Then parts have to be cut anew while they are read. `Checkpoints` does
# both (PyTorch's own checkpoint format is underneath). Two steps on four ranks; the job ends; two more steps on two.
# The batch is the same, dealt out to fewer.

# %%
with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as other:
    ranks.run(ledgers.go_on, folder, 2, world_size=4)
    resumed = ranks.run(ledgers.go_on, folder, 4, world_size=2)[0]
    never_stopped = ranks.run(ledgers.go_on, other, 4, world_size=4)[0]
most = max((a - b).abs().max().item() for a, b in zip(resumed.weights, never_stopped.weights))
print(f"two ranks went on from step {resumed.start}, and end where four that never stopped end: {most < 1e-12}")
print(f"one of four held at most {never_stopped.peak:.1MB} while it saved {Bytes(24 * psi):.1MB} of weights and moments")

# %% [markdown]
# No rank held the whole to write it.
#
# ## 14 · At scale
#
# The paper's first figure is a model of 7.5 billion parameters on 64 ranks. Its numbers, 120, 31.4, 16.6 and 1.9 GB,
# come from the same formulas as ours, so agreement would prove nothing, and we only print. What the authors *measured*
# is in their Table 2: on 64 V100s of 32 GB the largest model had 1.3 billion parameters without ZeRO, and 6.2 billion
# with stage 1.

# %%
billion = {"replicated": 16, "stage 1": 4 + 12 / 64, "stage 2": 2 + 14 / 64, "stage 3": 16 / 64}
print("7.5 billion:", *(f"{name} {7.5 * n_bytes:.1f} GB" for name, n_bytes in billion.items()), sep="  ")
card = hardware.V100_32GB.memory
for name, largest in {"replicated": 1.3e9, "stage 1": 6.2e9}.items():
    states = Bytes(round(largest * billion[name]))
    print(f"{name}, largest model that ran: {states:.1GB} of states; {card - states:.1GB} of the card for all the rest")
print(f"stage 1 with 7.5 billion leaves {card - round(7.5e9 * billion['stage 1']):.2GB}")

# %% [markdown]
# Stage 1 would leave 7.5 billion parameters about 3 GB of the card. (Its "32 GB" are GiB, 34.4 GB: lesson 01.) The models
# that ran kept about 14 and 8 GB for all the rest, activations first.
#
# Back to section 7's explorer. GPT-3 175B on A100s with 40 GB: why does it say "never" three times? Then Llama 3 405B on
# H100s with stage 3: on how many ranks is a rank's part small enough to fit alone, and how many does the explorer want?
#
# <details><summary>Answers</summary>
#
# GPT-3's 16-bit weights alone are 350 GB, and up to stage 2 every rank has all of them.
#
# Parts alone would fit on 77 ranks, since the 79.1 GiB of the dashed line are 84.9 GB. And 102 are needed: the ends of
# the model and two blocks must be there whole, 21 GB on any number of ranks.
#
# </details>
#
# ## What to keep
#
# | question | answer |
# |---|---|
# | What does each stage cut? | 1: masters and moments; 2: gradients as well; 3: weights as well |
# | What does a rank hold? | $4\Psi + \frac{12\Psi}{N}$; $2\Psi + \frac{14\Psi}{N}$; $\frac{16\Psi}{N}$ and a unit |
# | How many numbers does it send? | $2\Psi$, $2\Psi$, $3\Psi$; with $m$ passes for a step $2\Psi$, $(m+1)\Psi$, $3m\Psi$ |
# | Why does stage 1 send no more? | an all-reduce is two halves, and the step fits between them |
# | When does stage 3 hide? | from $R/W$ tokens per rank on, like data parallelism, if the next unit is on its way |
# | Which optimizers? | cut anywhere: element-wise ones; others (Muon, LAMB) by whole tensors |
# | What breaks it silently? | a local norm; padding in the norm; autograd, which keeps what you meant to free |
# | And the rest? | parts of recomputed inputs, constant buffers, one piece for what lives long |
#
# ## Three exercises
#
# **1.** 13 billion parameters, mixed precision, Adam. Of each card's 40 GB, 30 are for model states. How many ranks
# does stage 2 need at least?
#
# **2.** GPT-2 XL, 1.5576 billion parameters, bf16, stage 3 on 64 ranks, 8 backward passes for each step. How many GB
# does a rank send in a step?
#
# **3.** Is stage 3 a kind of tensor parallelism? A rank of 4 keeps a quarter of the weights. Count the operations of its
# own share of the batch, and those that a process with all the weights would need for it. What is the ratio?

# %%
answer_1 = None  # ranks
display(self_check(answer_1, turns.EXERCISES[0], hint="2Ψ stay on each. What is left for 14Ψ/N?"))

answer_2 = None  # GB sent by each of 64 ranks
display(self_check(answer_2, turns.EXERCISES[1], tolerance=0.001, hint="Two gathers and a reduce-scatter, in every pass, of 2 bytes each."))

answer_3 = None  # between 0 and 1
self_check(answer_3, turns.operations_of_a_rank(), tolerance=0.001, hint="Weights are gathered before they are used. Who multiplies?")

# %% [markdown]
# <details><summary>Answers</summary>
#
# 1. 46: of the 30 GB each rank's weights take 26, and $14 \cdot 13 / N$ GB must fit into the 4 that are left.
# 2. 73.6: three passes of $\frac{63}{64}$ of 3.115 GB, eight times.
# 3. 1. The rank gathers all the weights and computes every product, whole. It is no tensor parallelism.
#
# </details>
#
# **The lab**, `labs/lab10_zero`, asks for what this page left open: a norm that is right over all shards, with one
# number from each rank, and a checkpoint that four ranks write and two read.
#
# ## Further reading
#
# - Rajbhandari et al. 2020, [ZeRO](https://arxiv.org/abs/1910.02054): the three stages are §5, what they send §7, ZeRO-R §6.
# - Zhao et al. 2023, [PyTorch FSDP](https://arxiv.org/abs/2304.11277), and
#   [torch.distributed.fsdp.fully_shard](https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html).
# - [ZeRO++](https://deepspeed.ai/tutorials/zeropp): gathers of 8 bits, and a second copy of the weights in each machine.
# - You et al. 2019, [LAMB](https://arxiv.org/abs/1904.00962), and Jordan et al. 2024, [Muon](https://kellerjordan.github.io/posts/muon/).
# - [ZeroRedundancyOptimizer](https://docs.pytorch.org/docs/stable/distributed.optim.html), and
#   [DeepSpeed's own tutorial](https://www.deepspeed.ai/tutorials/zero/).
#
# Lesson 11 asks what to do when even all the ranks together have too little: the states move off the GPU.
