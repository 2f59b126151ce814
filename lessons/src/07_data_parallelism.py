# %% [markdown]
# # 07 · Data parallelism
#
# **The question:** how do replicas stay one model?
#
# | | |
# |---|---|
# | Time | first sitting 50 minutes, second sitting 35; less than a minute of both together is computing on 2 CPU cores |
# | A GPU | changes how much can hide: links there have engines of their own, though NCCL's additions take a few of the GPU's processors |
# | Opens | `parallel/data.py` |
#
# You have four GPUs and a script that trains on one. So you start it four times, each with its own quarter of the
# data. All four losses fall. In the evening you have four models, and each has seen a quarter of the data. You wanted
# *one* that has seen it all.
#
# What was missing is two lines, in every step, and one before the first. This page puts them in, makes them cheap, hides
# what is left of their cost, and then breaks them in the ways in which they break in practice.

# %%
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import parameters_to_vector

from course_kit import measure, ranks
from course_kit.compare import compare
from course_kit.notebook import ask, show, your_turn
from course_kit.units import Bytes, Count, Ratio
from course_lib import predict
from course_lib.model.gpt import GPT
from course_lib.parallel import BucketedDataParallel, plan_buckets
from course_pages.lesson07 import runs, turns
from course_pages.lesson07.explorer import BucketExplorer
from course_pages.lesson07.pictures import rank_timeline
from course_pages.lesson07.runs import LARGER, SMALL, apart, oracle, share

# %% [markdown]
# ## 1 · Four scripts, four models
#
# First the script. Each rank has a small GPT and takes its own **share** of every batch: two sequences of text, which depend
# on the step and on the rank. `train` runs three steps and keeps the weights after each. What happens between the
# backward pass and the step is left to `replica.synchronize()`, and in this first version it is nothing at all.
#
# (The numbers are float64. We want to check logic, and in float64 rounding is no excuse.)

# %%
class Alone:
    def __init__(self, model):
        self.model = model

    def __call__(self, inputs, targets):
        return self.model(inputs, targets)

    def synchronize(self):
        pass


# %%
def train(wrap, make_optimizer=torch.optim.SGD, seeds=(0, 0, 0, 0), lr=0.1):
    model = GPT(SMALL, seed=seeds[dist.get_rank()], dtype=torch.float64)
    replica, optimizer, history = wrap(model), make_optimizer(model.parameters(), lr=lr), []
    for step in range(3):
        optimizer.zero_grad()
        replica(*share(step, dist.get_rank())).backward()
        replica.synchronize()
        optimizer.step()
        history.append(parameters_to_vector(model.parameters()).detach().clone())
    return history


print("largest difference of a weight after each step:", *(f"{far:.4f}" for far in apart(ranks.run(train, Alone, world_size=4))))

# %% [markdown]
# They began with the same weights, and after one step they are four models: each moved by its own gradient.
#
# Which gradient *should* all have used? If rank $r$ computes the mean loss over its sequences, and all have equally
# many, then the loss of all sequences is the mean of the losses of all $p$ ranks. The gradient of a mean is the mean
# of the gradients:
#
# $$g = \frac1p \sum_{r=0}^{p-1} g_r$$
#
# So if every rank replaces its $g_r$ by $g$, all take the step that one process would have taken with the whole
# batch. Replicas that begin equal stay equal. Nothing else has to be sent: no weights, no optimizer state, no data.
# The two lines are lesson 00's: an all-reduce, which is a sum (lesson 06), and a division.


# %%
class Averaged(Alone):
    def synchronize(self):
        for parameter in self.model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()


# %% [markdown]
# All of that hangs on *begin equal*. On a cluster every rank has a seed of its own, which is right for dropout and wrong
# for the weights.
#
# **Your turn.** The line before the first step: whatever its seed, every rank begins as rank 0.

# %%
@your_turn(turns.check_start, look="Which of lesson 06's collectives copies? And what does a model keep that no optimizer moves?")
def same_start(model):
    """Overwrite all numbers that the model consists of by those of rank 0, in place. All ranks call."""
    ...


# %% tags=["solution"]
# One solution. Open it when yours passes, or when you are stuck.
@same_start.solution
def same_start(model):
    for tensor in (*model.parameters(), *model.buffers()):
        dist.broadcast(tensor.detach(), src=0)


# %% [markdown]
# ## 2 · One model, and what it sends
#
# Now both halves together: an equal start, and the mean. Is it one model then? That is two questions. Are the four replicas
# equal after each step, to the bit? And are they equal to a *single* process that takes lesson 00's `train_step` with the
# joined batch of eight sequences? That step is our oracle: every way to train in parallel has to end with its weights.
# `runs.judged` trains and answers both.


# %%
class SameStart(Alone):
    def __init__(self, model):
        super().__init__(model)
        same_start(model)


class Naive(SameStart, Averaged): ...  # the start of the one, the `synchronize` of the other


for wrap, seeds in ((Naive, (0, 0, 0, 0)), (Naive, (0, 1, 2, 3)), (Averaged, (0, 1, 2, 3))):
    drift, off = runs.judged(train, wrap, seeds=seeds)
    print(f"{wrap.__name__}, seeds {seeds}: replicas apart by {drift:.2g}; like one process: {off < 1e-12}")

# %% [markdown]
# Apart by exactly 0: the backend adds each number once and copies the sum, so all ranks apply the same bits (lesson 06's
# third question). And like one process, up to the order of a sum. Four GPUs, one model: **naive data parallelism**,
# complete.
#
# The third line is the first way to break it. Without the broadcast all apply the same update to different models, and
# nothing crashes.
#
# And what does a step send for it? The model has $\Psi$ parameters, and as many gradients. An all-reduce over a ring of
# $p$ ranks sends $2\frac{p-1}{p}$ times their bytes from each (lesson 06). Where we count bytes, gradients are float32.

# %%
n_parameters = predict.parameters(SMALL)
tensors = list(GPT(SMALL, device="meta").parameters())
print(f"{n_parameters:,d} parameters in {len(tensors)} tensors")

# %%
guess_bytes = ask("Gradients of 4 bytes, 4 ranks. How many kB does each send in one step?", unit="kB")

# %%
total, naive = Bytes(4 * n_parameters), ranks.run(runs.traffic_of_a_step, Naive, world_size=4)[0]
due = predict.all_reduce(total, world_size=4).bytes
display(compare(guess=guess_bytes, predicted=due, measured=naive["bytes"], tolerance=0.1, unit="kB", name="each rank"))
compare(predicted=Count(len(tensors)), measured=naive["calls"], name="calls")

# %% [markdown]
# The bytes are what a ring must send. (Papers say $2\Psi$, the limit for many ranks. What the operating system counted
# on top are headers, of many small messages.)
#
# The calls are another matter: one for each tensor, and most of them are tiny. A norm's bias has 64 numbers, 256
# bytes. Its all-reduce is $2(p-1) = 6$ messages in a row of 64 bytes each, and every message pays lesson 06's α in
# full.
#
# ## 3 · Buckets
#
# So glue gradients together until they fill a **bucket** of so many bytes, and reduce the bucket.
#
# **Your turn.** The mean of several gradients with *one* call.


# %%
@your_turn(turns.check_glued, look="torch.cat of what `flatten` gives; `split` and `view_as` are the way back.")
def glued_mean(parameters):
    """Replace the gradients of these parameters by their means over the ranks, with one all-reduce. All ranks call."""
    ...


# %% tags=["solution"]
@glued_mean.solution
def glued_mean(parameters):
    flat = torch.cat([parameter.grad.flatten() for parameter in parameters]) / dist.get_world_size()
    dist.all_reduce(flat)
    for parameter, mean in zip(parameters, flat.split([parameter.numel() for parameter in parameters])):
        parameter.grad = mean.view_as(parameter)


# %% [markdown]
# In which order should they be glued? The backward pass begins with the last layer, so the gradients of the last
# layer are ready first. `plan_buckets` goes through the parameters from the end, and closes a bucket *after* the
# tensor that fills it. (In section 4 the order becomes important.)


# %%
class Bucketed(SameStart):
    def __init__(self, model, bucket_bytes=2**16):
        super().__init__(model)
        parameters = list(model.parameters())
        plan = plan_buckets(parameters, bucket_bytes)
        self.buckets = [[parameters[number] for number in numbers] for numbers in plan]

    def synchronize(self):
        for bucket in self.buckets:
            glued_mean(bucket)


def with_buckets(bucket_bytes):
    return lambda model: Bucketed(model, bucket_bytes)


print("like one process:", runs.judged(train, Bucketed)[1] < 1e-12)
print("KiB of each tensor, from the end:", *(f"{4 * tensor.numel() / 1024:g}" for tensor in reversed(tensors)))

# %%
guess_buckets = ask(f"All gradients together have {total:.0KiB}. How many buckets of 4 KiB will that be?")

# %%
sizes = {"1 B": 1, "4 KiB": 2**12, "64 KiB": 2**16, "1 MiB": 2**20}
calls = {name: ranks.run(runs.traffic_of_a_step, with_buckets(n), world_size=4)[0]["calls"] for name, n in sizes.items()}
compare(
    guess={"4 KiB": guess_buckets},
    predicted={name: Count(len(plan_buckets(tensors, size))) for name, size in sizes.items()},
    measured=calls,
    columns=("planned", "counted"),
)

# %% [markdown]
# Tensors are not cut, so buckets come out larger than asked for, and there are fewer of them than a division tells. One
# bucket for all: one call. So why does PyTorch stop at 25 MiB by default?
#
# ## 4 · Overlap
#
# Because one bucket for all has to wait for the *last* gradient. Yet the gradient of the last layer is complete when
# the backward pass has just begun, and nothing will touch it again. It could travel *while* the other layers are still at
# work.
#
# Two tools. `dist.all_reduce(flat, async_op=True)` posts the sum and returns a handle at once, as `isend` did.
# And a hook on a parameter, `register_post_accumulate_grad_hook`, is called in the middle of the backward pass, as
# soon as the gradient of that parameter is complete.


# %%
class Overlapped(Bucketed):
    def __init__(self, model, bucket_bytes=2**16):
        super().__init__(model, bucket_bytes)
        self.started, self.missing = [], [len(bucket) for bucket in self.buckets]
        for number, bucket in enumerate(self.buckets):
            for parameter in bucket:
                parameter.register_post_accumulate_grad_hook(lambda _, number=number: arrived(self, number))

    def start(self, bucket):
        flat = torch.cat([parameter.grad.flatten() for parameter in bucket]) / dist.get_world_size()
        return bucket, flat, dist.all_reduce(flat, async_op=True)

    def synchronize(self):
        for bucket, flat, work in self.started:
            work.wait()
            for parameter, mean in zip(bucket, flat.split([parameter.numel() for parameter in bucket])):
                parameter.grad = mean.view_as(parameter)
        self.started, self.missing = [], [len(bucket) for bucket in self.buckets]


# %% [markdown]
# What is left is `arrived`, which every hook calls with the number of its bucket. `missing` counts for each bucket
# the gradients that are still to come. But mind lesson 06: all ranks must post the *same* collectives in the same
# order. Two ranks may take different branches of a model, and fill bucket 1 before bucket 0 on one of them only. So
# buckets leave in the order of the plan, whatever is full first.
#
# **Your turn.**


# %%
@your_turn(turns.check_arrived, look="Which bucket is the next one? len(replica.started) tells. Can more than one leave at once?")
def arrived(replica, number):
    """A gradient of bucket `number` is there: append replica.start(bucket) to replica.started, for all that may leave."""
    ...


# %% tags=["solution"]
@arrived.solution
def arrived(replica, number):
    replica.missing[number] -= 1
    while len(replica.started) < len(replica.buckets) and not replica.missing[len(replica.started)]:
        replica.started.append(replica.start(replica.buckets[len(replica.started)]))


# %% [markdown]
# And does it leave early? `measure.timeline` writes down what each rank does when; it notices communication by
# itself; the two passes we name. Two ranks, a model of 5 million parameters, the library's wrapper (the same
# idea, and safe: it knows which rank used which parameter, and refuses a second backward pass without `synchronize`).
# Of four steps we keep the quickest, in which other programs disturbed least. Printed first is the wrapper's hook: find
# your loop in it.

# %%
display(show(BucketedDataParallel._on_gradient, docstring=False))


# %% tags=["varies"]
print("like one process:", runs.judged(train, Overlapped)[1] < 1e-12)
rank_timeline(
    ranks.run(runs.record_a_step, world_size=2, diagnose=False)[0],
    caption="Below the blue backward pass the first buckets are already on their way. An orange piece begins where its "
    "bucket leaves (and is covered from where the next one begins); hatched pieces wait for one bucket each. If one rank "
    "computes faster, it waits longer: a sum is complete when the slower one has sent.",
    alt="Two ranks as rows. The bar of communication begins while both are still in their backward passes, in one "
    "piece for each bucket.",
)

# %% [markdown]
# The buckets leave in the middle of the backward pass: that is what the figure proves. In the hook it is the last
# `while`, with `is_full` in the place of your `missing`; without `overlap` all buckets wait for `synchronize`. The
# figure does not prove that the step got
# shorter. Here the network *is* a processor: copying and summing take turns with computing, on two cores.
#
# So let us give the ranks a network that needs no core: a link of $W$ = 200 MB a second, over which $n$ bytes are under way
# for $n/W$ seconds, one bucket after the other. A rank that waits for it sleeps. The same step, once with all buckets
# behind the backward pass, and once with overlap.

# %% tags=["varies"]
on_the_way = 4 * predict.parameters(LARGER) / 200e6
for overlap in (False, True):
    took = max(ranks.run(runs.seconds_of_a_step, overlap, 200e6, world_size=2, diagnose=False))
    print(f"overlap {overlap}: a step takes {1e3 * took:.0f} ms, with {1e3 * on_the_way:.0f} ms of sending in it")

# %% [markdown]
# Now overlap pays: a good part of the sending has vanished behind the backward pass. (From when on all of it can, on GPUs, section
# 12 says by a formula.)
#
# ## 5 · How large is a bucket?
#
# Small buckets leave early, and pay α often. Large ones save messages, and wait. Take it into your hands: a GPT-2 XL,
# 1.6 billion parameters in bf16, on 8 ranks that reach 400 TFLOP/s each, 8,192 tokens per rank, links of 50 GB/s
# and 10 µs a message.
# Grey is hidden behind the backward pass; during orange all ranks wait. (If nothing reacts to your clicks, run the cell
# once. The lower bars can be clicked.)

# %%
BucketExplorer().show()

# %% [markdown]
# 1. Take **8 GiB**, then **1 KiB**. Guess each time, before you do it: what will it cost to switch *send during the
# backward pass* off?
# 2. Set **1,024 ranks**. A ring's bytes hardly grow (1.75 becomes 2). What does, and where does the best size go?
# 3. Choose **GPT-2 small** at 32 MiB. Most of the last bucket is one tensor that arrives at the very end, and no
# bucket size can hide it. Which tensor is that?
#
# <details><summary>Answers</summary>
#
# 1. 8 GiB: nothing. The only bucket leaves after the last gradient anyway. 1 KiB: 120 ms. Thousands of messages, and
# their α, keep the link busy for 190; 120 of those were hidden.
# 2. Messages: 2,046 for every bucket instead of 14. So the best bucket grows, from 32 MiB to 1 GiB, and much of it can
# no longer hide. (A ring over all ranks is the wrong algorithm then; section 12.)
# 3. The embedding, 38.6 of 124 million parameters. Its weights are used twice, at the input and at the output, so its
# gradient is complete only at the end.
#
# </details>
#
# The drawing is a calculation, `predict.overlap`: gradients get ready one after the other, a bucket leaves when it is
# full *and* the link is free, and its all-reduce costs what the α–β model says.
#
# ## 6 · Accumulate first, send once
#
# Lesson 05 cut a batch into micro-batches and added up their gradients. On many ranks each of those backward passes
# would fill the buckets and send them, and only the last sum is wanted. `replica.no_sync()` keeps the hooks quiet:
# all but the last backward pass stand in it. Four micro-batches: what does each rank send with it, and what without?

# %%
guess_without = ask(f"{total:.0kB} of gradients, 4 micro-batches, 4 ranks, and each backward pass sends: how many kB does a rank send?", unit="kB")


# %%
def accumulate(quiet):
    replica = BucketedDataParallel(GPT(SMALL))
    with measure.traffic() as sent:
        for micro_batch in range(4):
            silent = quiet and micro_batch < 3
            with replica.no_sync() if silent else nullcontext():
                (replica(*share(micro_batch, dist.get_rank())) / 4).backward()
            if not silent:
                replica.synchronize()
        dist.barrier()
    return sent.sent_bytes


# %%
bucket = Bytes(total + 4 * len(tensors))  # the library sends one more number for each tensor; section 9 tells why
once = predict.all_reduce(bucket, world_size=4).bytes
guess, due = {"always": guess_without}, {"no_sync": once, "always": 4 * once}
measured = {name: ranks.run(accumulate, name == "no_sync", world_size=4)[0] for name in due}
compare(guess=guess, predicted=due, measured=measured, tolerance=0.01, unit="kB")

# %% [markdown]
# A quarter. (Sending always is right, too: to average again what is already equal everywhere changes nothing.) On a slow network
# accumulating is the cheapest cure there is.
#
# ## 7 · The real thing
#
# `DistributedDataParallel` is what we have built, in C++: buckets in reverse order, hooks, overlap. It needs no call
# of `synchronize`, because it waits at the end of the backward pass itself. Same weights after every step?


# %%
def beside_pytorch(make_optimizer, lr):
    pairs = []
    for wrap in (nn.parallel.DistributedDataParallel, BucketedDataParallel, Overlapped):
        model = GPT(SMALL, seed=dist.get_rank(), dtype=torch.float64)
        pairs.append((wrap(model), model, make_optimizer(model.parameters(), lr=lr)))
    largest = 0.0
    for step in range(5):
        for replica, _, optimizer in pairs:
            optimizer.zero_grad()
            replica(*share(step, dist.get_rank())).backward()
            getattr(replica, "synchronize", lambda: None)()
            optimizer.step()
        theirs, *ours = (parameters_to_vector(model.parameters()) for _, model, _ in pairs)
        largest = max(largest, *((mine - theirs).abs().max().item() for mine in ours))
    return largest


for make_optimizer, lr in ((torch.optim.SGD, 0.1), (torch.optim.Adam, 1e-3)):
    worst = max(ranks.run(beside_pytorch, make_optimizer, lr, world_size=4))
    print(f"{make_optimizer.__name__}: equal to DistributedDataParallel after each of 5 steps: {worst < 1e-12}")

# %% [markdown]
# Yes. They differ in how many calls they make, and when (section 11 looks into PyTorch's buckets).
#
# That is the story: one mean over the ranks, in few messages, behind the backward pass.

# %% [markdown]
# ## Second sitting
#
# What stands above is the story, and you may stop here. On another day, run all cells above before you go on. Below:
# ranks that are not alike, who deals out the data, PyTorch's older wrapper, how buckets are planned, when the network is
# fast enough, how large a batch may be and which learning rate it needs, and how such a script is started. First, what
# happens when a division is forgotten.
#
# ## 8 · Forget the 1/p
#
# Different seeds were one way to break it (section 2). Here is another: you delete the division. Every gradient is then
# $p = 4$ times too long. SGD's first step misses the right point by three times the length of the right step. Adam's
# is, in each number, the learning rate times $g/(|g| + \epsilon)$, so a factor nearly cancels (lesson 04). By how many
# lengths of the right step does it still miss?

# %%
guess_adam = ask("By how many lengths of the right step does Adam's first step miss?")


# %%
class Sum(SameStart):
    def synchronize(self):
        for parameter in self.model.parameters():
            dist.all_reduce(parameter.grad)


def missed(make_optimizer, lr):
    """How far the first step lands from the oracle's, in lengths of the oracle's step."""
    right, wrong = oracle(make_optimizer, lr)[0], ranks.run(train, Sum, make_optimizer, lr=lr, world_size=4)[0][0]
    return Ratio((wrong - right).norm() / (right - start).norm())


start = parameters_to_vector(GPT(SMALL, seed=0, dtype=torch.float64).parameters()).detach()
g = (start - oracle()[0]) / 0.1  # SGD's first step is -0.1 g
due, four = (factor * g / ((factor * g).abs() + 1e-8) for factor in (1, 4))
adam = Ratio((four - due).norm() / due.norm())
measured = {"SGD": missed(torch.optim.SGD, 0.1), "Adam": missed(torch.optim.Adam, 1e-3)}
compare(guess={"Adam": guess_adam}, predicted={"SGD": Ratio(4 - 1), "Adam": adam}, measured=measured, tolerance=1e-3)

# %% [markdown]
# Half a percent: the factor of 4 stands above and below the line, and only where a gradient is as small as $\epsilon =
# 10^{-8}$ does it show. Clipping hides it as well, in every step in which it clips. So a test with Adam that passes proves little: this course
# checks every parallel path with SGD, too.
#
# ## 9 · When the ranks are not alike
#
# **A parameter without a gradient.** A model has a part for pictures, and this batch has none on rank 2. There the part is
# not used, and its gradient is `None`. A colleague has met the crash that follows, and has repaired it with an `if`:


# %%
class Pictures(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.words, self.pictures = nn.Linear(4, 1, bias=False), nn.Linear(4, 1, bias=False)

    def forward(self, x, has_picture):
        return (self.words(x) + (self.pictures(x) if has_picture else 0)).mean()


class SkipsNone(SameStart):
    def synchronize(self):
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()


# %% tags=["raises-exception"]
def one_step(wrap):
    model, rank = Pictures(), dist.get_rank()
    replica = wrap(model)
    replica(torch.full((2, 4), rank + 1.0), rank != 2).backward()
    replica.synchronize()
    return model.pictures.weight.grad


_ = ranks.run(one_step, SkipsNone, world_size=4, timeout_s=10)

# %% [markdown]
# A deadlock, and the report shows who is not coming: no collective inside an `if` whose answer depends on the rank (lesson
# 06), and which gradients exist depends on the data, so on the rank.
#
# What is right? In the joined batch, rank 2 contributes a gradient of zero. So: send zeros, and all make the same calls.
# But if *no* rank used a parameter, its gradient has to stay `None`; on zeros weight decay or momentum would move it. That
# is what the library's extra numbers are for: beside each tensor travels how many ranks had a gradient.

# %%
print([grad.tolist() for grad in ranks.run(one_step, BucketedDataParallel, world_size=4)])

# %% [markdown]
# Ranks 0, 1 and 3 have the gradients 1, 2 and 4; the mean over *four* is 1.75, on all, also on rank 2.
# (`DistributedDataParallel` wants to be asked, `find_unused_parameters=True`.)
#
# **Batch-norm** computes a mean over the batch *in the forward pass*, and each rank sees its share only. Are the replicas equal
# after a step? Are they like one process?


# %%
def with_batch_norm(joined):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 1)).double()
    x = torch.randn(16, 3, dtype=torch.float64)
    replica = None if joined else BucketedDataParallel(model)
    model(x if joined else x.chunk(4)[dist.get_rank()]).square().mean().backward()
    if not joined:
        replica.synchronize()
    return parameters_to_vector([p.grad for p in model.parameters()]), model[1].running_mean


one_process, four = with_batch_norm(joined=True), ranks.run(with_batch_norm, joined=False, world_size=4)
for number, name in enumerate(["gradients", "running means"]):
    same = all(torch.equal(mine[number], four[0][number]) for mine in four)
    right = torch.allclose(four[0][number], one_process[number], rtol=1e-9)
    print(f"{name}: equal on all ranks {same}, like one process {right}")

# %% [markdown]
# The gradients are equal everywhere, and are not the big batch's: each rank normalised by 4 rows instead of 16. And the
# running means stay what they are on each rank, so rank 0 saves another model than rank 3. (`DistributedDataParallel` copies rank 0's buffers to
# all before each forward pass: equal, and still no mean. `SyncBatchNorm` takes mean and variance over all ranks.)
# Data parallelism is exact when the loss is a mean of terms that do not see each other.
#
# ## 10 · Who reads what
#
# The data are dealt out by a **sampler**. In an epoch every item should be read once, by one rank, and all ranks should make
# equally many steps: one that stops early leaves the others waiting (lesson 06). Here are nine items in batches of four,
# two for each of two ranks.

# %%
import subprocess
import sys
import tempfile
from pathlib import Path

from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from course_kit.notebook import self_check
from course_lib.model import hardware
from course_lib.parallel import ShardedSampler
from course_pages.lesson07 import pictures as figures

for rank in range(2):
    sampler = ShardedSampler(n_items=9, batch_size=4, rank=rank, world_size=2, seed=1)
    print(f"rank {rank}:", *sampler.epoch(0), "  next epoch:", *sampler.epoch(1))

read = [list(torch.utils.data.DistributedSampler(range(9), 4, rank, shuffle=False)) for rank in range(4)]
print("PyTorch's, 9 items on 4 ranks:", read)

# %% [markdown]
# A batch is a function of (seed, epoch, step), and the rank only cuts it. So a run that dies in step 700 goes on there, even
# on another number of ranks. PyTorch's sampler makes all shares equally long by reading some items *twice* (look for 0, 1 and 2). Ours
# lets the last batch be smaller; then the mean of the ranks' means is lesson 05's trap (and of no items at all, as on rank
# 1 here, there is no mean). The lab mends that for the gradients.
#
# **Your turn.** For the log: the loss that one process would have printed for the joined batch, if the ranks have different
# numbers of rows.

# %%
@your_turn(turns.check_logged, look="Lesson 05: weigh each mean by its rows. Two sums go around: of what? And without the graph.")
def joined_loss(loss, rows):
    """The mean loss over all ranks' rows, without a graph, on every rank; `loss` is this rank's mean over `rows`. All call."""
    ...


# %% tags=["solution"]
@joined_loss.solution
def joined_loss(loss, rows):
    sums = torch.stack([loss.detach() * rows, torch.tensor(float(rows))])
    dist.all_reduce(sums)
    return sums[0] / sums[1]


# %%
def logged_losses():
    rank = dist.get_rank()
    inputs, targets = (part[: 2 - rank] for part in share(0, rank))  # two rows, and one
    loss = GPT(SMALL)(inputs, targets)
    return round(loss.item(), 4), round(joined_loss(loss, len(inputs)).item(), 4)


print("each rank's own loss, and the joined one:", ranks.run(logged_losses, world_size=2))

# %% [markdown]
# ## 11 · PyTorch's two wrappers, and what travels in buckets
#
# PyTorch has a second wrapper with almost the same name, `torch.nn.DataParallel`, and it came first. *One* process
# drives all GPUs of a machine, with a thread for each. In every forward pass it copies the whole model from GPU 0 to
# the others and gathers the outputs there, and in the backward pass the gradients. So weights travel as well as
# gradients; GPU 0 is lesson 06's manager, full first and waited for; the threads share one Python interpreter; and it
# ends at the edge of the machine. It takes one line, and that is why you still find it.
#
# The other one, `DistributedDataParallel`, lets you replace the all-reduce of a bucket by a **communication hook**, a
# function that gets the bucket and returns a future, a promise of the sum. So a hook can also tell us how large the
# buckets are. The model of section 4 has 19.3 MB of gradients, and the default is 25 MiB: how many buckets is that? And
# if the hook casts each bucket to fp16 before it travels, how much does a rank send?

# %%
guess_fp16 = ask("A hook that casts to fp16: how many MB does a rank of 2 send?", unit="MB")


# %%
def look_into(hook):
    replica, sizes = nn.parallel.DistributedDataParallel(GPT(LARGER)), []

    def told(state, bucket):
        sizes[-1].append(bucket.buffer().nbytes)
        return hook(None, bucket)

    replica.register_comm_hook(None, told)
    for _ in range(3):
        sizes.append([])
        with measure.traffic() as sent:
            replica(*runs.whole_batch()).backward()
            dist.barrier()
    return sizes, sent.sent_bytes


# %%
hooks = {"as it is": default_hooks.allreduce_hook, "fp16": default_hooks.fp16_compress_hook}
looked = {name: ranks.run(look_into, hook, world_size=2)[0] for name, hook in hooks.items()}
print("kB in each bucket, first, second, third step:", *([n // 1000 for n in step] for step in looked["as it is"][0]))
whole = predict.all_reduce(4 * predict.parameters(LARGER), world_size=2).bytes
compare(guess={"fp16": guess_fp16}, predicted={"as it is": whole, "fp16": whole / 2},
        measured={name: sent for name, (_, sent) in looked.items()}, tolerance=0.01, unit="MB")  # fmt: skip

# %% [markdown]
# Two, and the first is small, 1 MiB: it leaves at once, so that the link is busy early. (In the very first step all is one
# bucket, while PyTorch watches in which order gradients arrive; then it packs anew.) The fp16 hook casts, sends and casts back: half the
# bytes, and lesson 04's dangers. What such a hook forgets in one step, it should carry over to the next; the lab builds
# that.
#
# The library's wrapper packs anew after its first step, too, each time by section 3's `plan_buckets`, printed here. Where
# does the order that was watched come in? And which two lines close a bucket only *after* the tensor that fills it?

# %%
show(plan_buckets, docstring=False)

# %% [markdown]
# As `order`; without one the loop goes through the parameters from the end. And it appends a tensor first, then asks
# whether the bucket is full.
#
# ## 12 · When it hides
#
# When is a network fast enough? Each rank has $D$ tokens. Its backward pass takes $4\,\Psi D$ operations at $R$ a
# second. Its gradients are $2\Psi$ bytes (bf16), and a ring puts twice that on a link of $W$ bytes a second, for many
# ranks. The backward pass is the longer one if
#
# $$\frac{4 \Psi D}{R} \ge \frac{4 \Psi}{W} \qquad\text{or}\qquad D \ge \frac{R}{W}.$$
#
# $\Psi$ has vanished! Whether the sending hides does not depend on the size of the model, only on the tokens per rank and on the machine.
# (Austin et al. 2025, "How to Scale Your Model", derive the same.)
#
# Now the machine: nodes of 8 H100s, each with 450 GB/s (NVLink) to the other seven and a card of 50 GB/s to the outside.
# 1,024 GPUs are 128 such nodes. In one ring through all of them, all that leaves a node leaves over *one* card. But add up
# inside each node first: after a reduce-scatter (lesson 06) each GPU has an eighth of the node's sum. It carries that
# across, over *its* card, and an all-gather inside ends it; with bucket after bucket, all three go on at once. The node
# sends at 400 GB/s, and only what the other 127 need: $\frac{127}{128}$.
#
# An H100 that reaches 40 % of its 989 TFLOP/s: from how many tokens per rank on does it hide?

# %%
reached = 0.4 * hardware.H100_80GB.peak("bf16")

# %%
guess_levels = ask("1,024 GPUs, two levels: how many tokens per rank?")

# %%
NODE = {"ranks_per_node": 8, "inside_bytes_per_s": 450e9}
print(f"one node of 8, NVLink alone: {predict.tokens_to_hide(reached, 450e9, 8):>6,d}")
print(f"128 nodes, one ring:         {predict.tokens_to_hide(reached, 50e9, 1024):>6,d}")
print(f"128 nodes, two levels:       {predict.tokens_to_hide(reached, 50e9, 1024, **NODE):>6,d}   (you said {guess_levels.said})")


MANY = 8 * 10**6
book = {"H100, inside a node": (2200, predict.tokens_to_hide(990e12, 450e9, MANY)),
        "H100, across nodes": (2475, predict.tokens_to_hide(990e12, 50e9, MANY, **NODE)),
        "TPU v5p, one axis": (2550, predict.tokens_to_hide(459e12, 180e9, MANY))}  # fmt: skip
print(*(f"{name}: a book divides to {theirs:,d}, we to {ours:,d}" for name, (theirs, ours) in book.items()), sep="\n")

# %% [markdown]
# Eight times fewer, because eight cards work. (The last lines are no check: the book, its chapters on GPUs and on training,
# divides the same two numbers, with the full peak of 990 TFLOP/s.)
#
# So add ranks, keep the tokens per rank, and all stays hidden? Yes. But the *batch* grows with the ranks.
#
# ## 13 · A batch can be too large
#
# A batch estimates the gradient of all the data, $G$. Single examples scatter around it with a variance that sums up to
# $\mathrm{tr}\,\Sigma$ over all parameters. A batch of $B$ examples has a gradient $g_B$ with
#
# $$\mathbb{E}\,|g_B|^2 = |G|^2 + \frac{\mathrm{tr}\,\Sigma}{B}.$$
#
# While the second term is large, twice the batch halves the noise. When it has become small, twice the batch tells you
# what you knew. They are equal at $B = \mathrm{tr}\,\Sigma / |G|^2$, the **gradient noise scale** (McCandlish et al.
# 2018). Two unknowns, so measure two batch sizes. Data parallelism has both at hand in every step, for nothing:
# $|g|^2$ of a rank before the all-reduce (its 2 sequences) and behind it (all 8).


# %% tags=["varies"]
def squared_lengths(train_first, batches=20):
    model = GPT(SMALL)
    replica, adam, lengths = Bucketed(model), torch.optim.Adam(model.parameters(), lr=3e-3), []
    for step in range(train_first + batches):
        adam.zero_grad()
        (loss := replica(*share(step, dist.get_rank()))).backward()
        alone = sum(p.grad.square().sum() for p in model.parameters())
        replica.synchronize()
        if step < train_first:
            adam.step()
        else:
            lengths.append([alone, sum(p.grad.square().sum() for p in model.parameters()), loss.detach()])
    return torch.tensor(lengths).mean(0)


for steps in (0, 60):
    small, large, loss = torch.stack(ranks.run(squared_lengths, steps, world_size=4, diagnose=False)).mean(0).tolist()
    noise = predict.noise_scale((2, small), (8, large))
    print(f"after {steps:3d} steps: loss {loss:.2f}, |g|² of 2: {small:.3f}, of 8: {large:.3f}", end=", ")
    print(f"noise scale {noise.batch_size:.1f} sequences")

# %% [markdown]
# At the start one sequence is nearly as good as eight: all of them say "most letters never occur". Later sequences
# disagree about what is left to learn, and the noise scale is many times larger (roughly, from 20 batches): **the lower the
# loss, the larger the useful batch.**
#
# What does a larger batch buy? In their model a run to a given loss takes $1 + B_{\text{crit}}/B$ times the fewest
# steps and $1 + B/B_{\text{crit}}$ times the fewest examples; $B_{\text{crit}}$, the **critical batch size**, is close
# to the noise scale. For language models Kaplan et al. (2020, eq. 1.4 and Table 5) fitted $B_{\text{crit}} = 2.1 \cdot
# 10^8 \, L^{-1/0.21}$ tokens at a loss of $L$; take it for an order of magnitude.

# %%
critical = predict.critical_batch_tokens(2.0)
figures.steps_and_examples_by_batch(
    critical,
    caption="Far to the left, twice the batch means half the steps. Far to the right, it means twice the cost.",
).show()
before, after = (predict.steps_and_examples(batch, critical=1.0) for batch in (1.0, 4.0))
print(f"four times the critical batch: {before[0] / after[0]:.1f} times as fast, and {after[1] / before[1]:.1f} times as expensive")
least = predict.tokens_to_hide(reached, 50e9, 1024, **NODE)
for loss in (3.0, 2.5, 2.0, 1.7):
    tokens = predict.critical_batch_tokens(loss)
    print(f"critical at a loss of {loss}: {tokens / 1e6:4.1f} million tokens; {least} for each replica: {tokens // least:6,d} replicas")
print(f"Llama 3's 16.8 million tokens, over 16,384 replicas: {2**24 // 2**14:,d} for each")

# %% [markdown]
# The network wants many tokens *per rank*, learning wants few tokens *together*. Between them they allow $B_{\text{crit}}/D$
# replicas. $D$ does not depend on the model, $B_{\text{crit}}$ does, by the loss that it has reached: at a loss of 3 the
# formulas allow a thousand replicas, at 1.7 seventeen thousand.
#
# Llama 3 405B was trained on 16,384 H100s with 16.8 million tokens in a batch, and had 128 replicas, each spread over
# 128 GPUs (Grattafiori et al. 2024, Table 4). Each of 16,384 replicas would have 1,024 tokens, just enough to hide, but
# that is an eighth of one of its sequences of 8,192. And no card holds 405 billion parameters. If you want ten thousand
# GPUs, you must split something else than the batch: the next two lessons.
#
# ## 14 · Four times the batch: which learning rate?
#
# From 1 rank to 4, from 2 sequences to 8: keep the learning rate $\eta$? Four small steps move the weights by $4\eta$ times
# a gradient; the large step that replaces them moves them by only $\eta$ times one. So take $k$ times the rate for $k$ times the batch: the **linear scaling
# rule** (Goyal et al. 2017, §2.1). The large step ends where the small ones do if the gradient hardly changes meanwhile.
# Does it? (For SGD. With Adam $\sqrt k$ is the better rule: Malladi et al. 2022.)


# %%
unseen = [torch.cat(part) for part in zip(*(share(1000, rank) for rank in range(8)))]


def sgd(shares_a_step, rates, start):
    """Weights after SGD steps on so many shares each, from the weights `start` on; and the loss on unseen text."""
    model, taken = GPT(SMALL), 0
    nn.utils.vector_to_parameters(start.clone(), model.parameters())
    for rate in rates:
        shares = [share(number // 4, number % 4) for number in range(taken, taken + shares_a_step)]
        taken += shares_a_step
        loss = model(*(torch.cat(part) for part in zip(*shares)))
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(model.parameters(), gradients):
                parameter -= rate * gradient
    return parameters_to_vector(model.parameters()).detach(), model(*unseen).item()


# %% tags=["varies"]
untrained = parameters_to_vector(GPT(SMALL, seed=0).parameters()).detach()
for name, origin in {"at the start": untrained, "after 15 steps": sgd(4, [0.1] * 15, untrained)[0]}.items():
    for rate in (0.001, 0.01):
        small, large = sgd(1, [rate] * 4, origin)[0], sgd(4, [4 * rate], origin)[0]
        print(f"{name}, η = {rate}: the large step misses by {(large - small).norm() / (small - origin).norm():.0%} of the way")

# %% tags=["varies"]
print(f"48 steps of 2 sequences, η = 0.04: loss {sgd(1, [0.04] * 48, untrained)[1]:.2f}")
rates = {"η = 0.04": [0.04] * 12, "η = 0.16": [0.16] * 12, "η = 0.8": [0.8] * 12}
rates["η = 0.8, warm-up"] = [0.8 * min(1, (step + 1) / 4) for step in range(12)]
for name, each in rates.items():
    print(f"12 steps of 8 sequences, {name}: loss {sgd(4, each, untrained)[1]:.2f}")

# %% [markdown]
# With a short step the rule holds, early and late. With a longer one it fails at the start, where the gradient changes
# quickest. The losses forgive more: on equal data, the large batch with four times the rate ends where the small one does,
# and far behind it with the old rate. (One seed, and all still above the letters' entropy.) But 0.8 at once blows up. So
# raise a rate over the first steps, here four: **warm-up** (Goyal et al., §2.2). It saves the run.
#
# ## 15 · Starting it: torchrun
#
# In this notebook `ranks.run` starts the ranks. On a cluster `torchrun` does, PyTorch's own launcher: it starts
# `--nproc-per-node` processes on each machine, tells each its number in the environment (`RANK`, `WORLD_SIZE`,
# `LOCAL_RANK`, and where to meet), and ends all if one fails. This is a real run, with 2 ranks; below it, the same three
# steps in this process.

# %%
SCRIPT = """
import os, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")  # number, world size and meeting place come from the environment
torch.manual_seed(0)
model, x = DistributedDataParallel(torch.nn.Linear(8, 1)), torch.randn(4, 8)
sgd = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    sgd.zero_grad()
    model(x.chunk(dist.get_world_size())[dist.get_rank()]).square().mean().backward()
    sgd.step()
weights = sum(p.sum().item() for p in model.parameters())
print(f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}: the weights add up to {weights:.6f}\\n", end="")
dist.destroy_process_group()
"""

# %%
with tempfile.TemporaryDirectory() as folder:
    script = Path(folder) / "train.py"
    script.write_text(SCRIPT)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run([*torchrun, script], capture_output=True, text=True, check=True)
print(*sorted(done.stdout.splitlines()), sep="\n")

torch.manual_seed(0)
model, x = nn.Linear(8, 1), torch.randn(4, 8)
for _ in range(3):
    gradients = torch.autograd.grad(model(x).square().mean(), list(model.parameters()))
    for parameter, gradient in zip(model.parameters(), gradients):
        parameter.data -= 0.1 * gradient
print(f"one process: the weights add up to {sum(p.sum().item() for p in model.parameters()):.6f}")

# %% [markdown]
# In a terminal that is `torchrun --standalone --nproc-per-node=2 train.py`. `--standalone` means one machine, and overrides
# any meeting place. For two machines leave it out, and type on each of them
#
# `torchrun --nnodes 2 --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint alpha:29400 --rdzv-id 1 train.py`
#
# where `alpha` is one of the two. `docs/torchrun.md` of this course goes on from there.
#
# ## What to keep
#
# | question | answer |
# |---|---|
# | Why do replicas stay equal? | same start (broadcast), same mean gradient (all-reduce), same optimizer |
# | What does a step send? | $2\frac{p-1}{p}\Psi$ gradients from each rank, unless they are compressed |
# | What do buckets save? | messages: one all-reduce per bucket instead of one per tensor |
# | What does overlap save? | waiting: buckets leave while the backward pass goes on |
# | When does it hide? | from $R/W$ tokens per rank on, for every model size; $W$ is a card's, times the ranks in a node |
# | How many ranks are useful? | until the batch reaches the critical batch size |
# | Which learning rate? | SGD: $k$ times the batch, $k$ times the rate, after a warm-up |
# | What breaks it silently? | a missing 1/p (test with SGD!), other seeds, batch-norm, uneven shares |
# | What breaks it loudly? | a parameter that only some ranks use |
#
# ## Three exercises
#
# **1.** GPT-2 XL, 1.5576 billion gradients in bf16, 64 ranks. How many GB does each rank send per step?
#
# **2.** A100s that reach 156 TFLOP/s, in nodes of 8 with four cards of 25 GB/s (so 12.5 GB/s for each GPU), 128 ranks,
# bf16. From how many tokens per rank on can the backward pass hide a two-level all-reduce?
#
# **3.** In a training on 16 ranks with 4 sequences each, the log says that $|g|^2$ is 5.0 on average before the all-reduce, and
# 2.0 behind it. How many sequences is the noise scale?

# %%
answer_1 = None  # GB sent by each of 64 ranks

self_check(answer_1, turns.EXERCISES[0], tolerance=0.001, hint="2 bytes each, and nearly twice around the ring.")

# %%
answer_2 = None  # tokens per rank

self_check(answer_2, turns.EXERCISES[1], tolerance=0.001, hint="At what speed does a node leave, with all its cards? And what do 16 nodes need of each other?")


# %%
answer_3 = None  # sequences

self_check(answer_3, turns.EXERCISES[2], tolerance=0.01, hint="Section 13: one equation for each of the two batches, two unknowns.")

# %% [markdown]
# <details><summary>Answers</summary>
#
# 1. $2 \cdot \frac{63}{64} \cdot 2 \cdot 1.5576 = 6.13$ GB.
# 2. $\frac{156 \cdot 10^{12}}{8 \cdot 12.5 \cdot 10^9} \cdot \frac{15}{16} = 1{,}462.5$.
# 3. $|G|^2 + \mathrm{tr}\,\Sigma/4 = 5$ and $|G|^2 + \mathrm{tr}\,\Sigma/64 = 2$, so $\mathrm{tr}\,\Sigma = 12.8$ and
# $|G|^2 = 1.8$: 7.1 sequences. These 64 are nine times as many, so the run sees ten times the fewest examples.
#
# </details>
#
# **The lab**, `labs/lab07_data_parallelism`, is a wrapper of your own that survives unused parameters, tied weights
# and a last batch that does not divide, and an all-reduce that sends compressed gradients and carries the error over
# to the next step. Neither the uneven batch nor the compression is in the library.
#
# ## Further reading
#
# - Li et al. 2020, [PyTorch Distributed](https://arxiv.org/abs/2006.15704): buckets and their size, overlap, `no_sync`.
# - Goyal et al. 2017, [Accurate, Large Minibatch SGD](https://arxiv.org/abs/1706.02677); Malladi et al. 2022,
#   [On the SDEs and Scaling Rules for Adaptive Gradient Algorithms](https://arxiv.org/abs/2205.10287).
# - McCandlish et al. 2018, [An Empirical Model of Large-Batch Training](https://arxiv.org/abs/1812.06162); Kaplan et al.
#   2020, [Scaling Laws](https://arxiv.org/abs/2001.08361); Grattafiori et al. 2024, [Llama 3](https://arxiv.org/abs/2407.21783).
# - Austin et al. 2025, [How to Scale Your Model](https://jax-ml.github.io/scaling-book/): the chapters on training and on GPUs.
# - [DDP communication hooks](https://docs.pytorch.org/docs/stable/ddp_comm_hooks.html) and
#   [torchrun](https://docs.pytorch.org/docs/stable/elastic/run.html).
#
# [Lesson 08 · Tensor parallelism](08_tensor_parallelism.ipynb) turns to the other question: what if one *layer* does not fit?
