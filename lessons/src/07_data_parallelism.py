# %% [markdown]
# # 07 · Data parallelism
#
# **The question:** how do replicas stay one model?
#
# | | |
# |---|---|
# | Time | 45 minutes, of which less than a minute is computing on 2 CPU cores |
# | A GPU | changes nothing in what is sent; overlap is worth more there, because a GPU's network needs no core |
# | Opens | `parallel/data.py`, `parallel/buckets.py`, `parallel/sampler.py`, `measure/timeline.py`, `predict/overlap.py`, `explore/buckets.py` |
#
# You have four GPUs and a script that trains on one. So you start it four times, each with its own quarter of the
# data. All four losses fall. In the evening you have four models, and each has seen a quarter of the data. You wanted
# *one* that has seen it all.
#
# What was missing is two lines, in every step. This page writes them, makes them cheap, hides what is left of their
# cost, and then breaks them in the four ways in which they break in practice.

# %%
import time
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parameters_to_vector

from course_lib import measure, predict, ranks
from course_lib.compare import compare
from course_lib.explore import BucketExplorer
from course_lib.figures import data_parallel as figures
from course_lib.figures.timeline import rank_timeline
from course_lib.model import hardware, text
from course_lib.model.gpt import GPT, GPTConfig
from course_lib.notebook import ask, self_check, show
from course_lib.parallel import BucketedDataParallel, ShardedSampler, buckets, plan_buckets
from course_lib.train.step import train_step
from course_lib.units import Bytes, Count, Ratio, Seconds

# %% [markdown]
# ## 1 · Four scripts, four models
#
# First the script. Each rank has a small GPT and takes its own **share** of every batch: two sequences, which depend
# on the step and on the rank. `train` runs three steps and keeps the weights after each. What happens between the
# backward pass and the step is left to `replica.synchronize()`, and in this first version it is nothing at all.
#
# (The numbers are float64. We want to check logic, and in float64 rounding is no excuse.)

# %%
SMALL = GPTConfig(layers=2, width=64, heads=4, vocab_size=256, context=64)


def share(step, rank):
    return text.stories(seed=0).batch(seed=0, step=step, rank=rank, batch_size=2, context=64)


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


def apart(histories):
    """The largest difference between any rank's weights and rank 0's, after each step."""
    return [max((mine - first).abs().max().item() for mine in step) for first, *step in zip(*histories)]


print("apart after each step:", [f"{d:.4f}" for d in apart(ranks.run(train, Alone, world_size=4))])

# %% [markdown]
# They began with the same weights, and after one step they are four models. Each moved by its own gradient.
#
# Which gradient *should* all have used? If rank $r$ computes the mean loss over its $b$ sequences, and all have
# equally many, then the loss of all $p\,b$ sequences is the mean of the $p$ losses. The gradient of a mean is the
# mean of the gradients:
#
# $$g = \frac1p \sum_{r=1}^{p} g_r$$
#
# So if every rank replaces its $g_r$ by $g$, all take the step that one process would have taken with the whole
# batch. Replicas that begin equal stay equal. Nothing else has to be sent: no weights, no optimizer state, no data.
#
# That sum over the ranks is lesson 06's all-reduce. Two lines of it make the difference, and a loop in front makes
# sure that all begin with the weights of rank 0. The first cell below is **naive data parallelism**, complete.
#
# Is it one model then? Two questions, and the second is the harder one. Are the four replicas equal after each step,
# to the bit? And are they equal to a *single* process that takes lesson 00's `train_step` with the joined batch of
# eight sequences? That step is our oracle: every way to train in parallel has to end with its weights.


# %%
class Naive(Alone):
    def __init__(self, model):
        super().__init__(model)
        for tensor in (*model.parameters(), *model.buffers()):
            dist.broadcast(tensor.detach(), src=0)

    def synchronize(self):
        for parameter in self.model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()


# %%
def oracle(make_optimizer=torch.optim.SGD, world_size=4, lr=0.1):
    model, history = GPT(SMALL, seed=0, dtype=torch.float64), []
    optimizer = make_optimizer(model.parameters(), lr=lr)
    for step in range(3):
        shares = [share(step, rank) for rank in range(world_size)]
        train_step(model, optimizer, [torch.cat(part) for part in zip(*shares)])
        history.append(parameters_to_vector(model.parameters()).detach().clone())
    return history


def check(wrap):
    histories = ranks.run(train, wrap, world_size=4)
    off = [(mine - right).abs().max().item() for mine, right in zip(histories[0], oracle())]
    print(f"{wrap.__name__}: replicas apart {max(apart(histories)):g}", end=", ")
    print("like one process" if max(off) < 1e-12 else f"NOT like one process, off by {max(off):.3f}")


check(Naive)

# %% [markdown]
# Apart by exactly 0: the ring adds each part once and copies it, so all ranks apply the same bits (that was lesson
# 06's third question). And like one process, up to the order of a sum, $10^{-12}$ in float64.
#
# Four GPUs, one model. Now the bill.
#
# ## 2 · What a step sends
#
# The model has $\Psi$ parameters, and so many gradients. An all-reduce over a ring of $p$ ranks sends
# $2\frac{p-1}{p}$ times its bytes, less than twice whatever $p$ is (lesson 06). From here on gradients are float32, 4
# bytes each.
#
# Two guesses. How many kB does each of 4 ranks send in one step? And in how many calls?

# %%
n_parameters = predict.parameters(SMALL)
print(f"{n_parameters:,d} parameters in {len(list(GPT(SMALL, device='meta').parameters()))} tensors")
guess_bytes = ask("4 ranks: how many kB does each send in one step?", unit="kB")
guess_calls = ask("And how many all-reduces is that?")


# %%
def traffic_of_a_step(wrap):
    model = GPT(SMALL)
    replica = wrap(model)
    for step in range(3):  # the third step is the one that counts: some wrappers prepare in the first two
        model.zero_grad()
        with measure.traffic() as sent:
            replica(*share(step, dist.get_rank())).backward()
            getattr(replica, "synchronize", lambda: None)()
            dist.barrier()
    return {"bytes": sent.sent_bytes, "calls": Count(sent.messages["all_reduce"])}


psi, naive = Bytes(4 * n_parameters), ranks.run(traffic_of_a_step, Naive, world_size=4)[0]
sent = predict.all_reduce(psi, world_size=4).bytes
display(compare(guess=guess_bytes, predicted=sent, measured=naive["bytes"], tolerance=0.1, unit="kB", name="each rank"))
compare(guess=guess_calls, predicted=Count(28), measured=naive["calls"], name="calls")

# %% [markdown]
# The bytes are what they must be, no rank of a ring can send less. (The model of lesson 00 sends the same share of
# its gradients; so does the largest model that you can think of.) In a paper you will find $2\Psi$, the limit for
# many ranks. The operating system counted them, and what it found on top are headers: with every message goes a line
# that says what it is, and here the messages are many and small.
#
# The calls are another matter: one for each tensor, and most of them are tiny. A norm's bias has 64 numbers, 256
# bytes. Its all-reduce is $2(p-1) = 6$ messages in a row of 64 bytes each. In lesson 06 we gave a message a price: α
# seconds, whatever its size. All those small tensors pay it in full.
#
# ## 3 · Who reads what
#
# Before we make it cheaper, one loose end. "Each rank takes its own share": who deals the cards? A **sampler**. It
# has three duties. Every item is read once in an epoch; nobody reads another one's items; and all ranks make equally
# many steps, because a rank that stops early leaves the others waiting in an all-reduce (lesson 06, "a missing
# rank").
#
# Nine items, batches of four, two ranks. Who reads what?

# %%
for rank in range(2):
    sampler = ShardedSampler(n_items=9, batch_size=4, rank=rank, world_size=2, seed=1)
    print(f"rank {rank}:", *sampler.epoch(0), "  next epoch:", *sampler.epoch(1))

read = [list(torch.utils.data.DistributedSampler(range(9), 4, rank, shuffle=False)) for rank in range(4)]
print("PyTorch's, 9 items on 4 ranks:", read)

# %% [markdown]
# Nothing is stored: a share is a function of (seed, epoch, step, rank). A run that dies in step 700 goes on in step
# 700, even on another number of ranks.
#
# PyTorch's sampler makes all shares equally long by reading some items *twice* (look for 0, 1 and 2). Ours lets the
# last batch be smaller instead. Then the shares may differ by an item, and the mean of the ranks' means is no longer
# the mean of the batch, the trap of lesson 05. Either weigh each rank's loss by its items, or drop that last batch.
# This lesson keeps all shares equal; the lab does not.
#
# ## 4 · Buckets
#
# Back to the 28 calls. Glue gradients together until they fill a **bucket** of so many bytes, and reduce the bucket.
# The parts of its mean are then handed back as views.
#
# In which order should they be glued? The backward pass begins with the last layer. So the gradients of the last
# layer are ready first, and `plan_buckets` goes through the parameters from the end. (In section 5 that becomes
# important.)
#
# `async_op=True` posts an all-reduce and returns a handle at once, as `isend` did for a message. So all buckets are
# posted before we wait for the first.


# %%
class Bucketed(Naive):
    def __init__(self, model, bucket_bytes=2**16):
        super().__init__(model)
        parameters = list(model.parameters())
        plan = plan_buckets(parameters, bucket_bytes)
        self.buckets = [[parameters[number] for number in numbers] for numbers in plan]

    def start(self, bucket):
        flat = torch.cat([parameter.grad.flatten() for parameter in bucket]) / dist.get_world_size()
        return bucket, flat, dist.all_reduce(flat, async_op=True)

    def finish(self, bucket, flat, work):
        work.wait()
        for parameter, mean in zip(bucket, flat.split([parameter.numel() for parameter in bucket])):
            parameter.grad = mean.view_as(parameter)

    def synchronize(self):
        for started in [self.start(bucket) for bucket in self.buckets]:
            self.finish(*started)


# %%
check(Bucketed)
display(show(plan_buckets, docstring=False))
guess_buckets = ask("All gradients together have 471 KiB. How many buckets of 4 KiB will that be?")


# %%
def with_buckets(bucket_bytes):
    return lambda model: Bucketed(model, bucket_bytes)


sizes = {"1 B": 1, "4 KiB": 2**12, "64 KiB": 2**16, "1 MiB": 2**20}
tensors = list(GPT(SMALL, device="meta").parameters())
compare(
    guess={"4 KiB": guess_buckets},
    predicted={name: Count(len(plan_buckets(tensors, size))) for name, size in sizes.items()},
    measured={
        name: ranks.run(traffic_of_a_step, with_buckets(size), world_size=4)[0]["calls"] for name, size in sizes.items()
    },
    columns=("planned", "counted"),
)

# %% [markdown]
# The plan is made without any process, and so was the prediction. A bucket is closed *after* the tensor that fills
# it, and tensors are not cut, so buckets come out larger than asked for and there are fewer of them than a division
# tells.
#
# What is a call worth on your machine? Four ranks, the same gradients, in fewer and fewer calls. (The median of 15
# rounds; another program that runs beside it will show.)


# %% tags=["varies"]
def seconds_to_synchronize(wraps):
    replicas, seconds = [wrap(GPT(SMALL)) for wrap in wraps], [[] for _ in wraps]
    for _ in range(15):
        for replica, mine in zip(replicas, seconds):
            replica(*share(0, dist.get_rank())).backward()
            dist.barrier()
            start = time.perf_counter()
            replica.synchronize()
            mine.append(time.perf_counter() - start)
    return [Seconds(sorted(mine)[7]) for mine in seconds]


wraps = [Naive, with_buckets(1), with_buckets(2**16), with_buckets(2**20)]
timed = ranks.run(seconds_to_synchronize, wraps, world_size=4, diagnose=False)[0]
print(", ".join(f"{name}: {s:.2ms}" for name, s in zip(["naive", "28 buckets", "7 buckets", "1 bucket"], timed)))

# %% [markdown]
# One call for all wins, clearly. So why would anyone stop at 25 MiB, which is the default of PyTorch?
#
# ## 5 · Overlap
#
# Because one bucket for all has to wait for the *last* gradient. Watch a step as it is: the library's wrapper with
# `overlap=False`, two ranks, a model of 5 million parameters. `measure.timeline` writes down what each rank does
# when; communication is noticed by itself, only the names come from us. (Of six steps we keep the quickest, in which
# other programs disturbed least.)

# %%
LARGER = GPTConfig(layers=6, width=256, heads=4, vocab_size=256, context=128)


def record_a_step(overlap, bucket_bytes=2**21):
    replica = BucketedDataParallel(GPT(LARGER), bucket_bytes=bucket_bytes, overlap=overlap)
    inputs, targets = text.stories(seed=0).batch(seed=0, step=0, rank=dist.get_rank(), batch_size=4, context=128)
    records = []
    for _ in range(6):
        dist.barrier()
        with measure.timeline() as record:
            with record.span("forward"):
                loss = replica(inputs, targets)
            with record.span("backward"):
                loss.backward()
            replica.synchronize()
        records.append(record)
    return min(records, key=lambda record: max(event.end_s for event in record.events))


# %% tags=["varies"]
record = ranks.run(record_a_step, overlap=False, world_size=2, diagnose=False)[0]
rank_timeline(
    record,
    caption="Nothing is on its way before the backward pass is over; then buckets are filled and sent, and all wait.",
    alt="Two ranks as rows. Both compute forward, then backward; only then a thin bar of communication begins, in pieces, "
    "one for each bucket, and both wait.",
)

# %% [markdown]
# (The blue piece without a name is the copying of gradients into buckets.) Two resources, and hardly ever both in
# use. Yet the gradient of the last layer is complete when the backward pass has just begun: nobody will touch it
# again. It could travel *while* the other layers are still at work.
#
# PyTorch tells us the moment. A hook on a parameter, `register_post_accumulate_grad_hook`, is called in the middle of
# the backward pass, as soon as the gradient of that parameter is complete. So: count the arrivals of each bucket, and
# start its all-reduce when the last one is there.


# %%
class Overlapped(Bucketed):
    def __init__(self, model, bucket_bytes=2**16):
        super().__init__(model, bucket_bytes)
        self.started, self.missing = [], [len(bucket) for bucket in self.buckets]
        for number, bucket in enumerate(self.buckets):
            for parameter in bucket:
                parameter.register_post_accumulate_grad_hook(lambda _, number=number: self.arrived(number))

    def arrived(self, number):
        self.missing[number] -= 1
        if not self.missing[number]:
            self.started.append(self.start(self.buckets[number]))

    def synchronize(self):
        for started in self.started:
            self.finish(*started)
        self.started, self.missing = [], [len(bucket) for bucket in self.buckets]


check(Overlapped)

# %% tags=["varies"]
record = ranks.run(record_a_step, overlap=True, world_size=2, diagnose=False)[0]
rank_timeline(
    record,
    caption="Below the blue backward pass the first buckets are already on their way.",
    alt="Two ranks as rows. The bar of communication begins while both are still in their backward passes, in one "
    "piece for each bucket.",
).show()
for rank in range(2):
    sending, waiting = record.seconds(rank, "send"), record.seconds(rank, "wait")
    print(f"rank {rank}: {sending:.0ms} on the way, {record.hidden(rank):.0ms} hidden, waits {waiting:.0ms}")

# %% [markdown]
# (`record.save("trace.json")` writes this record for Perfetto, ui.perfetto.dev, where you can zoom.)
#
# Read the second figure with care. A communication counts as under way from its start until the *slowest* rank has
# joined in, so a rank that is ahead shows long orange bars. And here the network *is* a processor: who sums and
# copies takes turns with who computes, on two cores. On this machine the step does not get shorter by what is hidden.
# On a GPU the network has hardware of its own, and it does.
#
# What the figure proves is the order of events: the buckets leave in the middle of the backward pass.
#
# The library's finished form adds to our twenty lines what keeps them safe. It sends the buckets in the same order on
# every rank (`while ... self.buckets[self._sent].is_full`); ours starts whichever is full, which two ranks with
# different branches may see differently. It notes in the first step in which order gradients really arrive, and packs
# anew. It refuses a second backward pass without `synchronize`. And it knows which rank used which parameter (section
# 8).

# %%
show(BucketedDataParallel, docstring=False)

# %% [markdown]
# ## 6 · How large is a bucket?
#
# Small buckets leave early, and pay α often. Large ones save messages, and wait. Somewhere between there is a best
# size, and it depends on the model, the link, the number of ranks and the batch. Take it into your hands: a GPT-2 XL,
# 1.6 billion parameters in bf16, on 8 ranks that reach 400 TFLOP/s each, 8,192 tokens per rank, links of 50 GB/s.
# Grey is hidden behind the backward pass; during orange all wait.

# %%
BucketExplorer().show()

# %% [markdown]
# Try these. (If nothing reacts to your clicks, run the cell once. The lower bars can be clicked.)
#
# - Make the bucket **1 KiB**, then **8 GiB**. In both cases all wait; for which reason in the one, for which in the
# other?
# - Set **1,024 ranks**. Bytes hardly grow (1.75 becomes 2). What does, and where does the best size go?
# - Choose **GPT-2 small** and look at the last bucket. Nearly a third of all its bytes arrives at the very end, and no bucket
# size can hide it. Which tensor is that? (Its weights are used twice, first and last.)
# - Halve the **tokens per rank**, again and again. What gets shorter, and what does not?
#
# The drawing is a calculation, `predict.overlap`: gradients get ready one after the other, a bucket leaves when it is
# full *and* the link is free, and its all-reduce costs what the α–β model says.
#
# ## 7 · Accumulate first, send once
#
# Lesson 05 cut a batch into micro-batches and added up their gradients. On many ranks each of those backward passes
# would fill the buckets and send them, and only the last sum is wanted. `no_sync()` keeps the hooks quiet:
#
#     with replica.no_sync():
#         for micro_batch in all_but_the_last:
#             loss(micro_batch).backward()
#     loss(the_last).backward()
#     replica.synchronize()
#
# With four micro-batches, what does each rank send with it, and what without?

# %%
bucket = Bytes(psi + 4 * len(tensors))  # the library sends one more number for each tensor; section 8 tells why
once = predict.all_reduce(bucket, world_size=4).bytes
guess_with = ask("4 micro-batches with no_sync: how many kB from each of 4 ranks?", unit="kB")
guess_without = ask("And if each backward pass sends?", unit="kB")


# %%
def accumulate(quiet):
    replica = BucketedDataParallel(GPT(SMALL))
    with measure.traffic() as sent:
        for micro_batch in range(4):
            last = micro_batch == 3
            with replica.no_sync() if quiet and not last else nullcontext():
                (replica(*share(micro_batch, dist.get_rank())) / 4).backward()
            if last or not quiet:
                replica.synchronize()
        dist.barrier()
    return sent.sent_bytes


compare(
    guess={"no_sync": guess_with, "always": guess_without},
    predicted={"no_sync": once, "always": 4 * once},
    measured={name: ranks.run(accumulate, name == "no_sync", world_size=4)[0] for name in ("no_sync", "always")},
    tolerance=0.01,
    unit="kB",
)

# %% [markdown]
# A quarter. (Sending always is right, too: what has been averaged is equal everywhere, and averaging it once more
# changes nothing. It is only four times as dear.) On a slow network accumulating is the cheapest cure there is: same
# bytes per step, more computing per step.
#
# ## 8 · Four ways to drift apart
#
# **Forget the 1/p.** Somebody deletes the division. Every gradient is then $p = 4$ times too long. In the first step
# of SGD the weights move four times as far as they should: they miss the oracle's by three times its own step. And
# with Adam? Decide before you run.


# %%
class Sum(Naive):
    def synchronize(self):
        for parameter in self.model.parameters():
            dist.all_reduce(parameter.grad)


def missed(make_optimizer, lr):
    """How far the first step lands from the oracle's, in lengths of the oracle's step."""
    start = parameters_to_vector(GPT(SMALL, seed=0, dtype=torch.float64).parameters()).detach()
    right = oracle(make_optimizer, lr=lr)[0]
    wrong = ranks.run(train, Sum, make_optimizer, lr=lr, world_size=4)[0][0]
    return Ratio((wrong - right).norm() / (right - start).norm())


guess_adam = ask("With Adam: by how many of its own steps does it miss?")

# %%
print(f"Adam misses by {missed(torch.optim.Adam, 1e-3):.4f} of its own step (you said {guess_adam.said})")
compare(predicted=Ratio(3), measured=missed(torch.optim.SGD, 0.1), tolerance=1e-6, name="SGD, in its own steps")

# %% [markdown]
# With Adam you see next to nothing. It divides the running mean of the gradient by the root of the running mean of its
# square, and a factor of 4 above and below the line cancels out (but for the ε beside the root). Gradient clipping hides it as well. So a test with
# Adam that passes proves little: this course checks every parallel path with SGD, too. (And the factor still bites,
# later: in the threshold of clipping, in the logged norm, on the day when somebody tries SGD.)
#
# **Different seeds.** Every rank has a seed of its own, which is right for dropout and wrong for the weights. Without
# the broadcast at the start each builds another model; then all apply the same mean of gradients of different models.


# %%
class NoBroadcast(Naive):
    def __init__(self, model):
        self.model = model


for wrap in (NoBroadcast, Naive):
    print(f"{wrap.__name__:12}", [f"{d:.3f}" for d in apart(ranks.run(train, wrap, seeds=(0, 1, 2, 3), world_size=4))])

# %% [markdown]
# With the same update for all, and no weight decay, their distance never shrinks: not after three steps, not after a
# million. Nothing crashes, the loss even falls for a while. The broadcast costs one message per tensor, once. (It
# must include the *buffers*, the numbers of a module that are no parameters.)
#
# **A parameter without a gradient.** A model has a part for pictures, and this batch has a picture on three ranks
# only. On the fourth that part is not used, and its gradient is `None`. Somebody has met the crash that follows, and
# has repaired it with an `if`:


# %%
class Pictures(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.words, self.pictures = nn.Linear(4, 1, bias=False), nn.Linear(4, 1, bias=False)

    def forward(self, x, has_picture):
        return (self.words(x) + (self.pictures(x) if has_picture else 0)).mean()


class SkipsNone(Naive):
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
# A deadlock, and the report shows who is not coming. Lesson 06 had the rule: no collective inside an `if` whose
# answer depends on the rank, and "which gradients exist" depends on the data, so on the rank. (Had the two parts been
# used in turns and been of one shape, it would not even hang. It would add gradients of words to gradients of
# pictures.)
#
# What is right? For the joined batch, the rank without a picture contributed a gradient of zero. So: send zeros, and
# all make the same calls. But if *no* rank used a parameter, its gradient has to stay `None`; on a gradient of zeros
# weight decay or momentum would move it. That is what the 28 extra numbers are for. In each bucket travels, for each
# tensor, how many ranks had a gradient.

# %%
print([grad.tolist() for grad in ranks.run(one_step, BucketedDataParallel, world_size=4)])
show(buckets.Bucket.fill, docstring=False)

# %% [markdown]
# Ranks 0, 1 and 3 have the gradients 1, 2 and 4; the mean over *four* is 1.75, on all, also on rank 2. (In
# `DistributedDataParallel` this must be asked for, `find_unused_parameters=True`, because it walks through the graph
# in every step.)
#
# **Batch-norm.** It computes a mean over the batch *in the forward pass*. Each rank sees its share only. What do you
# expect: are the replicas equal after a step? Are they like one process?


# %%
def with_batch_norm(joined):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 1)).double()
    x = torch.randn(16, 3, dtype=torch.float64)
    replica = None if joined else BucketedDataParallel(model)
    model(x if joined else x.chunk(4)[dist.get_rank()]).square().mean().backward()
    None if joined else replica.synchronize()
    return parameters_to_vector([p.grad for p in model.parameters()]), model[1].running_mean


one_process, four = with_batch_norm(joined=True), ranks.run(with_batch_norm, joined=False, world_size=4)
for number, name in enumerate(["gradients", "running means"]):
    same = all(torch.equal(mine[number], four[0][number]) for mine in four)
    right = torch.allclose(four[0][number], one_process[number], rtol=1e-9)
    print(f"{name}: equal on all ranks {same}, like one process {right}")

# %% [markdown]
# The gradients are equal everywhere, and wrong, if "right" means the big batch: each rank normalised by the mean of 4
# rows instead of 16. And the running means are not gradients, nobody averages them, so the replicas differ after all:
# a model saved by rank 0 is not the one saved by rank 3. Two repairs. `SyncBatchNorm` computes the mean over all
# ranks, with an all-reduce in the forward pass of each such layer. Or use a norm that looks at one example only, as
# transformers do: our GPT's LayerNorm has no such trouble. (`DistributedDataParallel` copies rank 0's buffers to all
# before each forward pass. Then they are equal, and three quarters of the statistics are thrown away.)
#
# The rule behind it: data parallelism is exact when the loss is a mean of terms that do not see each other.
#
# ## 9 · The real thing
#
# `DistributedDataParallel` is what we have built, in C++: buckets in reverse order, hooks, overlap. It needs no call
# of `synchronize`, because it waits at the end of the backward pass itself. Same weights after every step?


# %%
def beside_pytorch(make_optimizer, lr):
    pairs = []
    for wrap in (DistributedDataParallel, BucketedDataParallel, Overlapped):
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

# %%
kinds = {"Naive": Naive, "Overlapped": Overlapped, "library": BucketedDataParallel, "PyTorch": DistributedDataParallel}
counted = {name: ranks.run(traffic_of_a_step, kind, world_size=4)[0] for name, kind in kinds.items()}
print({name: each["calls"] for name, each in counted.items()}, "calls")
compare(
    predicted={name: predict.all_reduce(bucket if name == "library" else psi, world_size=4).bytes for name in kinds},
    measured={name: each["bytes"] for name, each in counted.items()},
    tolerance=0.1,
    unit="kB",
)

# %% [markdown]
# Same bytes for all, but for the headers of many small messages: no wrapper can send less, however clever. What they
# differ in is the number of calls, and when.
#
# **The other one.** PyTorch has a second wrapper with almost the same name, `torch.nn.DataParallel`, and it came
# first. *One* process drives all GPUs of a machine, with a thread for each. In every forward pass it copies the whole
# model from GPU 0 to the others, scatters the batch, gathers the outputs on GPU 0, and in the backward pass the
# gradients go back to GPU 0, where the only optimizer steps. It lost, for four reasons that you can now name:
#
# - weights travel in every step as well as gradients, though replicas that stay equal need only gradients;
# - GPU 0 is lesson 06's manager: it holds the optimizer's state and all outputs, so it is full first and waited for;
# - the threads share one Python interpreter, which runs one of them at a time;
# - it ends at the edge of the machine.
#
# It takes one line, and that is why you still find it. PyTorch's own documentation advises against it.
#
# And the four names of lesson 06, once more, floor by floor, for a data-parallel step:
#
# | floor | who | what it knows |
# |---|---|---|
# | your loop | `DistributedDataParallel`, Horovod | modules, gradients, buckets, when to send |
# | the call | `torch.distributed`; MPI is a standard for it | ranks, groups, "all-reduce this tensor" |
# | the bytes | NCCL (GPUs), gloo (CPUs), an MPI library | rings and trees, NVLink, sockets |
#
# Horovod wraps the *optimizer* instead of the model: `step()` waits until its all-reduces are done. It fuses small
# tensors in a buffer, as our buckets do, and a coordinator agrees on the order.
#
# ## 10 · At scale: when it hides and when it cannot
#
# When is the link fast enough? Each rank has $D$ tokens. Its backward pass takes $4\,\Psi D$ operations at $R$ a
# second. Its gradients are $2\Psi$ bytes (bf16), and an all-reduce puts $2\frac{p-1}{p} \cdot 2\Psi$ on a link of $W$
# bytes a second. The backward pass is the longer one if
#
# $$\frac{4 \Psi D}{R} \ge \frac{4 \Psi}{W}\,\frac{p-1}{p}
# \qquad\text{or}\qquad D \ge \frac{p-1}{p}\,\frac{R}{W}.$$
#
# $\Psi$ has vanished! Whether data parallelism hides its traffic does not depend on the size of the model. It depends
# on the tokens per rank and on the machine. (Austin et al. 2025, "How to Scale Your Model", derive the same.)
#
# An H100 that reaches 40 % of its 989 TFLOP/s, 1,024 of them. What must each rank have, over which network?
#
# In the table stands a published pair. A TPU v5p has $4.59 \cdot 10^{14}$ FLOP/s and sends $1.8 \cdot
# 10^{11}$ bytes a second along each axis of its three-dimensional network. The same book finds 2,550 tokens per chip
# over one axis; and that 16 million tokens over all three axes feed at most 18,823 chips.

# %%
reached = 0.4 * hardware.H100_80GB.peak("bf16")
guess_tokens = ask("Over 50 GB/s (one 400 Gbit/s card each): how many tokens per rank?")

# %%
for name, gb_per_s in {"NVLink": 450, "400 Gbit/s": 50, "100 Gbit/s": 12.5, "10 Gbit/s": 1.25}.items():
    tokens = predict.tokens_to_hide(reached, gb_per_s * 1e9, world_size=1024)
    print(f"{name:>10}: {tokens:>8,d} tokens per rank, {1024 * tokens / 1e6:6.1f} million in the batch")

print(f"you said {guess_tokens.said}; (p - 1)/p · R/W by hand, for 50 GB/s: {1023 / 1024 * reached / 50e9:,.0f}")
one_axis = predict.tokens_to_hide(4.59e14, 1.8e11, 10**6)
chips = Count(round(16e6 / predict.tokens_to_hide(4.59e14, 3 * 1.8e11, 10**6)))
compare(
    predicted={"TPU, tokens": one_axis, "TPU, chips": chips},
    measured={"TPU, tokens": Count(2550), "TPU, chips": Count(18_823)},
    tolerance=0.001,
    columns=("our formula", "published"),
)

# %% [markdown]
# So add ranks, and keep the tokens per rank: everything stays hidden, and a thousand ranks are a thousand times as
# fast? In tokens per second, yes. But the *batch* grows with the ranks, and there is the true limit of data
# parallelism. It is not in the network.
#
# ## 11 · At scale: a batch can be too large
#
# A batch estimates the gradient of all the data. Its mean is the true gradient $G$, and single examples scatter
# around it with a variance that sums up to $\mathrm{tr}\,\Sigma$ over all parameters. A batch of $B$ has
#
# $$\mathbb{E}\,|g_B|^2 = |G|^2 + \frac{\mathrm{tr}\,\Sigma}{B}.$$
#
# While the second term is large, twice the batch halves the noise, and you may take a longer step. When it has become
# small, twice the batch tells you what you knew. They are equal at $B = \mathrm{tr}\,\Sigma / |G|^2$, the **gradient
# noise scale** (McCandlish et al. 2018).
#
# Two unknowns, so measure two batch sizes. And data parallelism has both at hand in every step, for nothing: $|g|^2$
# of a rank before the all-reduce (its 2 sequences) and behind it (all 8).


# %% tags=["varies"]
def squared_lengths(train_first, batches=30):
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


for steps in (0, 100):
    small, large, loss = torch.stack(ranks.run(squared_lengths, steps, world_size=4, diagnose=False)).mean(0).tolist()
    noise = predict.noise_scale((2, small), (8, large))
    print(f"after {steps:3d} steps: loss {loss:.2f}, |g|² of 2: {small:.3f}, of 8: {large:.3f}", end=", ")
    print(f"noise scale {noise.batch_size:.1f} sequences")

# %% [markdown]
# At the start one sequence is nearly as good as eight: all of them say "most letters never occur". After a hundred
# steps the easy part is learned, sequences disagree about the rest, and the noise scale is many times larger.
# McCandlish et al. (2018) found the same: **the lower the loss, the larger the useful batch.** (Later work sees it
# level off: Merrill et al. 2025. And from 30 batches these numbers are rough, so take the factor, not the digits.)
#
# What does a larger batch buy? To reach a given loss, the model of the same paper has
#
# $$\frac{\text{steps}}{\text{fewest}} = 1 + \frac{B_{\text{crit}}}{B}, \qquad
# \frac{\text{examples}}{\text{fewest}} = 1 + \frac{B}{B_{\text{crit}}},$$
#
# with the **critical batch size** close to the noise scale. For language models Kaplan et al. (2020, eq. 1.4) fitted
# $B_{\text{crit}} = 2 \cdot 10^8 \, L^{-1/0.21}$ tokens at a loss of $L$ nats. (GPT-3's batch below: Brown et al.
# 2020, Table 2.1. Later work finds other values of the factor, so read the result as an order of magnitude.)

# %%
for loss in (4.0, 3.0, 2.0):
    print(f"at a loss of {loss:.0f} nats per token: {predict.critical_batch_tokens(loss) / 1e6:5.2f} million tokens")
print(f"GPT-3's 3.2 million is the critical batch at a loss of {(2e8 / 3.2e6) ** 0.21:.2f}")
figures.steps_and_examples_by_batch(
    predict.critical_batch_tokens(2.0),
    caption="Far to the left, twice the ranks mean half the steps. Far to the right, they mean twice the cost.",
).show()
guess_factor = ask("You train at the critical batch size and quadruple the ranks. How many times as fast?")

# %%
before, after = (predict.steps_and_examples(batch, critical=1.0) for batch in (1.0, 4.0))
print(f"{before[0] / after[0]:.1f} times as fast (you said {guess_factor.said})")
print(f"{after[1] / before[1]:.1f} times as dear")

# %% [markdown]
# Four times the GPUs, 1.6 times the speed, 2.5 times the bill. Now put the two limits side by side. The network wants
# many tokens *per rank* ($D \ge R/W$), learning wants few tokens *together* ($p\,D \le B_{\text{crit}}$). Between
# them they allow at most
#
# $$p \le B_{\text{crit}} \, W / R$$
#
# ranks. With 7.4 million tokens and 50 GB/s that is about 930 of our H100s, whatever the model. Llama 3 405B was
# trained on 16,384 GPUs with 16.8 million tokens in a batch, and had 128 replicas (its paper, Table 4): each replica
# was spread over 128 GPUs. Whoever wants to use ten thousand must split something else than the batch. That is what
# the next three lessons are for.
#
# ## What to keep
#
# | question | answer |
# |---|---|
# | Why do replicas stay equal? | same start (broadcast), same mean gradient (all-reduce), same optimizer |
# | What does a step send? | $2\frac{p-1}{p}\Psi$ gradients from each rank, for every wrapper |
# | What do buckets save? | messages: one all-reduce per bucket instead of one per tensor |
# | What does overlap save? | waiting: buckets leave while the backward pass goes on |
# | When does it hide? | from $R/W$ tokens per rank on, for every model size |
# | How many ranks are useful? | until the batch reaches the critical batch size |
# | What breaks it silently? | a missing 1/p (test with SGD!), other seeds, batch-norm, uneven shares |
# | What breaks it loudly? | a parameter that only some ranks use |
#
# ## Three exercises
#
# **1.** GPT-2 XL, 1.5576 billion gradients in bf16, 64 ranks. How many GB does each rank send per step?
#
# **2.** A100s that reach 156 TFLOP/s, links of 25 GB/s, 16 ranks, bf16 gradients. From how many tokens per rank on
# can the backward pass hide the all-reduce?
#
# **3.** For the log, rank 0 prints its loss. It is the loss of *its* share. Change `logged` so that all ranks return
# the loss of the joined batch, as one process would have printed it.

# %%
answer_1 = None  # GB sent by each of 64 ranks

gigabytes = predict.all_reduce(2 * 1_557_611_200, world_size=64).bytes.to("GB")
display(self_check(answer_1, gigabytes, tolerance=0.001, hint="2 bytes each, and nearly twice around the ring."))

answer_2 = None  # tokens per rank

self_check(answer_2, predict.tokens_to_hide(156e12, 25e9, 16), tolerance=0.001, hint="R/W, times 15/16.")


# %%
def logged():
    loss = GPT(SMALL)(*share(0, dist.get_rank())).detach()
    return round(loss.item(), 4)


answer_3 = None  # replace None by ranks.run(logged, world_size=4)

together = GPT(SMALL)(*(torch.cat(part) for part in zip(*(share(0, rank) for rank in range(4))))).item()
self_check(answer_3, [together] * 4, tolerance=1e-4, hint="Same rule as for gradients: all_reduce, then 1/p.")

# %% [markdown]
# **The lab**, `labs/lab07_data_parallelism`, is a wrapper of your own that survives unused parameters, tied weights
# and a last batch that does not divide, and an all-reduce that sends compressed gradients and carries the error over
# to the next step. Neither the uneven batch nor the compression is in the library.
#
# Lesson 08 turns to the other question: what if one *layer* does not fit?
