# %% [markdown]
# # 12 · 3D parallelism
#
# **The question:** three ways to split a model. Which rank does which?
#
# | | |
# |---|---|
# | Time | first sitting 35 minutes, second sitting 15; less than a minute of it is computing on 2 CPU cores |
# | A GPU | changes nothing in groups, bytes and weights; seconds at the end are formulas either way |
# | Opens | `parallel/mesh.py`, `parallel/hybrid.py`, `parallel/train.py` |
#
# You have a thousand GPUs, eight in each machine, and a model that fits on none of them. Lesson 08 cuts layers and
# talks all the time. Lesson 09 cuts between layers and leaves ranks idle. Lessons 07 and 10 copy, and must not copy
# too often, since the batch would grow past its use. None of the three goes to a thousand.
#
# So multiply. 8 ranks cut the layers, times 16 stages, times 8 replicas: 1,024. But which rank is which? There are
# six orders to count them in, and all of them learn the same weights. But in one the network carries many times the
# bytes that it carries in another.

# %%
import torch
import torch.distributed as dist

from course_kit import measure, ranks
from course_kit.compare import compare
from course_kit.notebook import ask, self_check, show, your_turn
from course_kit.units import Bytes, Count, Seconds
from course_lib import predict
from course_lib.model import hardware, text, zoo
from course_lib.model.gpt import GPT, GPTConfig
from course_lib.parallel.hybrid import HybridParallel
from course_lib.parallel.mesh import Mesh
from course_lib.predict import Setup
from course_lib.train.step import train_step
from course_pages.lesson12.explorer import CubeExplorer
from course_pages.lesson12.pictures import groups_along
from course_pages.shared.who_sends import between_nodes, matrix, who_sends_whom

# %% [markdown]
# ## 1 · Eight ranks in a cube
#
# Take two along each way of cutting: 2 stages, 2 replicas, 2 halves of every layer. Each rank has an address of three
# numbers, its place in the **pipe**, among the **data** replicas, and among the **tensor** halves. Eight addresses,
# eight ranks. But a rank knows only its number. It must find the address by itself, and all must agree.
#
# Count like a clock: the last axis is the second hand. Tensor moves with every rank, data with every second one, pipe
# with every fourth. Rank 5, say, is the second stage, first replica, second half: `(1, 0, 1)`.
#
# **Your turn.** The address of a rank, for any numbers of ranks along the axes.

# %%
CUBE = Mesh({"pipe": 2, "data": 2, "tensor": 2})


def check_address(function):
    for mesh in (CUBE, Mesh({"pipe": 4, "data": 2, "tensor": 8}), Mesh({"pipe": 1, "data": 3, "tensor": 1})):
        for rank in range(mesh.size):
            came, wanted = function(rank, *mesh.axes.values()), tuple(mesh.coordinates(rank).values())
            assert came == wanted, f"in {dict(mesh.axes)}, rank {rank} should be at {wanted}, but is at {came}"


@your_turn(check_address, look="How many ranks pass before the data axis moves? And before the pipe axis does?")
def address(rank, pipe, data, tensor):
    """A rank's place (pipe, data, tensor), each counted from 0, on axes of these lengths; tensor is the fastest."""
    ...


# %% tags=["solution"]
# One solution. Open it when yours passes, or when you are stuck.
@address.solution
def address(rank, pipe, data, tensor):
    return rank // (data * tensor), rank // tensor % data, rank % tensor


# %% [markdown]
# ## 2 · Whose group is whose
#
# An all-reduce needs to know who takes part. Who shares rank 5's layers? Those with the same stage and the same replica:
# they differ from it in the tensor place and in nothing else. That is the rule for every axis: **a group along an axis
# is all ranks that differ in their place on it, and agree on the others.** So each rank is in three groups, one for
# each kind of talk.
#
# **Guess,** before you look at the picture: with whom does rank 5 average gradients?

# %%
guess_partner = ask("With which rank does rank 5 average gradients?")

# %%
groups_along(CUBE, ranks_per_node=4, caption="Each rank is in three groups, one along each axis. Grey plates are two machines of four.").show()
print("you said", guess_partner.said)
print("rank 5's group along each axis:", {axis: CUBE.group_of(5, axis) for axis in CUBE.axes})

# %% [markdown]
# Rank 7. It holds the same half of the same stage, and sees other sequences. (Rank 4 has the other half, rank 1 the
# other stage: their gradients are of other weights, and the mean of them would mean nothing.)
#
# **Your turn.** The groups along an axis, from addresses alone.


# %%
def check_groups(function):
    for mesh in (CUBE, Mesh({"pipe": 2, "data": 3, "tensor": 4})):
        places = [tuple(mesh.coordinates(rank).values()) for rank in range(mesh.size)]
        for number, axis in enumerate(mesh.axes):
            came, wanted = sorted(map(sorted, function(places, number))), mesh.groups(axis)
            assert came == wanted, f"along {axis} in {dict(mesh.axes)} there should be {wanted}, but came {came}"


@your_turn(check_groups, look="Two ranks share a group if their places are equal once the place on this axis is left out.")
def groups(places, axis):
    """places[rank] is (pipe, data, tensor), axis is 0, 1 or 2: a list of lists of ranks."""
    ...


# %% tags=["solution"]
# One solution. Open it when yours passes, or when you are stuck.
@groups.solution
def groups(places, axis):
    found = {}
    for rank, place in enumerate(places):
        found.setdefault(place[:axis] + place[axis + 1 :], []).append(rank)
    return list(found.values())


# %% [markdown]
# ## 3 · One step through the cube
#
# The library's `Mesh.groups` is your function, with names for the axes; it is printed first below. Look at `setdefault`:
# its key is what all ranks of a group agree on.
#
# Now put lessons 07 to 10 on it, one along each axis. In a step:
#
# 1. Each replica takes its half of the batch and cuts it into micro-batches.
# 2. They run through the two stages, by 1F1B. In each stage, each tensor rank has half of every matrix, and in every
#    block the two add up four times.
# 3. When all micro-batches are back, replicas average the gradients of the parts that they share.
# 4. Each rank steps on what it holds. With ZeRO along the data axis, on half of that.
#
# `HybridParallel` does it. This is all of points 1 to 3 (`own` is the loss, on ranks of the last stage); the pipeline, the layers
# and the optimizer are those you know:

# %%
display(show(Mesh.groups, docstring=False))
display(show(HybridParallel.forward_backward, docstring=False))
CONFIG = GPTConfig(layers=4, width=64, heads=4, vocab_size=256, context=32)
STORIES = text.stories(seed=0)


def batch_of(step):
    return STORIES.batch(seed=0, step=step, rank=0, batch_size=16, context=32)


# %%
def one_step(axes):
    """Bytes sent by each rank in a step, as the operating system saw them; the first step wakes the connections."""

    def on_a_rank():
        grid = HybridParallel(CONFIG, Mesh(axes), micro_batches=2)
        optimizer = grid.optimizer(torch.optim.AdamW, lr=1e-3)
        grid.train_step(optimizer, batch_of(0))
        with measure.traffic() as sent:
            grid.train_step(optimizer, batch_of(1))
        return sent

    return ranks.run(on_a_rank, world_size=Mesh(axes).size)


# %% [markdown]
# The kernel counts bytes on every connection, and each connection leads to one rank. In our cube each pair of ranks
# that talk belongs to one axis, so nobody has to tell us which bytes are whose: rank 0 shares its layers with rank 1,
# its weights with rank 2, and hands its stream to rank 4.
#
# Before you run it: the stream of a micro-batch is 4 sequences × 32 tokens × 64 features, 4 bytes each, 32 KiB. Two
# micro-batches run through the two blocks of a stage. The model has 0.2 million parameters, and a rank a good quarter
# of them, in fp32. Of two ranks, each sends to an all-reduce as many bytes as are reduced. Along which axis does a rank
# send most? **Guess** what share of its bytes goes there.

# %%
guess_share = ask("% of rank 0's bytes along the axis that sends most?")

# %%
good = one_step(CUBE.axes)
observed = matrix(good, observed=True)
formula = predict.rank_traffic(Setup(CONFIG, 16, micro_batch=4, pipeline=2, data=2, tensor=2), stage=0)
print(f"you said {guess_share.said} %; it is {observed[0][1] / sum(observed[0], Bytes(0)):.0%}, along tensor")
compare(
    predicted={axis: sent.total_bytes for axis, sent in formula.items()},
    measured={axis: observed[0][CUBE.group_of(0, axis)[1]] for axis in formula},
    tolerance=0.1,
    unit="kB",
    columns=("formula", "seen by the kernel"),
)

# %% [markdown]
# The tensor axis talks in every block of every micro-batch (on the last stage once more, to add up the logits). By
# hand: 2 micro-batches × 2 blocks × 4 × 32 KiB, and 32 KiB to gather the embedding, which is cut by width. The data
# axis talks once a step, 4 bytes a parameter. The pipe axis talks only at its borders: 2 × 32 KiB, and 32 KiB for the
# gradient of the tied embedding (lesson 09). Keep the order in mind: it is the whole reason for what follows.
#
# ## 4 · The same weights
#
# A cube of ranks is right if nobody can tell it from one device. Three steps in each of three shapes,
# against `train_step` alone:


# %%
def furthest_apart(axes, zero=0):
    """The largest difference of the loss to one device's, over three steps, in float64."""

    def on_a_rank():
        grid = HybridParallel(CONFIG, Mesh(axes), micro_batches=2, zero=zero, dtype=torch.float64)
        optimizer = grid.optimizer(torch.optim.AdamW, lr=1e-3)
        return [grid.train_step(optimizer, batch_of(step)).item() for step in range(3)]

    alone = GPT(CONFIG, dtype=torch.float64)
    optimizer = torch.optim.AdamW(alone.parameters(), lr=1e-3)
    wanted = [train_step(alone, optimizer, batch_of(step)).item() for step in range(3)]
    return max(abs(a - b) for losses in ranks.run(on_a_rank, world_size=Mesh(axes).size) for a, b in zip(losses, wanted))


shapes = [((2, 1, 2), 0), ((1, 2, 2), 3), ((2, 2, 2), 1)]
for lengths, zero in shapes:
    axes = dict(zip(CUBE.axes, lengths))
    print(f"{axes}, ZeRO stage {zero}: as one device, {furthest_apart(axes, zero) < 1e-9}")

# %% [markdown]
# (The loss of a step shows the weights that all steps before have left, so the last of three tells of two updates.
# The tests do it for every shape of up to 8 ranks, weight by weight.)
#
# Not every product is allowed. ZeRO's second stage drops a gradient as soon as it is reduced. A pipeline adds to the
# same gradient with every micro-batch:

# %% tags=["raises-exception"]
ranks.run(lambda: HybridParallel(CONFIG, CUBE, micro_batches=2, zero=2), world_size=8)

# %% [markdown]
# Hence real runs pair a pipeline with stage 1.
#
# ## 5 · Which wire?
#
# Two machines of four GPUs. Inside, NVLink; between them, a network that is ten times slower. In our numbering ranks 0
# to 3 stand in the first machine. **Guess:** what share of all bytes crosses between the machines? And if you count
# the other way round, tensor slowest, so that ranks 0 and 4 share a layer?

# %%
guess_good = ask("Tensor fastest: % of all bytes that cross between the machines?")
guess_bad = ask("Tensor slowest: %?")

# %%
bad = one_step({"tensor": 2, "data": 2, "pipe": 2})
who_sends_whom(
    {"tensor fastest": good, "tensor slowest": bad},
    ranks_per_node=4,
    observed=True,
    caption="The same step, the same weights. Framed in orange is what the network carries.",
)

# %%
crossing, everything = {}, {}
for name, accounts in {"tensor fastest": good, "tensor slowest": bad}.items():
    sent = matrix(accounts, observed=True)
    crossing[name], everything[name] = between_nodes(sent, 4), sum((sum(row, Bytes(0)) for row in sent), Bytes(0))
stages = [predict.rank_traffic(Setup(CONFIG, 16, micro_batch=4, pipeline=2, data=2, tensor=2), stage) for stage in (0, 1)]
due = {name: Bytes(4 * sum(stage[axis].total_bytes for stage in stages))
       for name, axis in {"tensor fastest": "pipe", "tensor slowest": "tensor"}.items()}  # fmt: skip
for name, guess in {"tensor fastest": guess_good, "tensor slowest": guess_bad}.items():
    print(f"{name}: {crossing[name] / everything[name]:.0%} of all bytes cross; you said {guess.said} %")
compare(predicted=due, measured=crossing, tolerance=0.1, unit="kB", columns=("formula", "seen by the kernel"))

# %% [markdown]
# Nothing else has changed: not one weight, not one byte in all. But the all-reduces of every block now wait for the
# network. No test of the loss will ever tell you. The numbering is the first thing to check when a run on many machines
# is slower than its formula.
#
# **Your turn.** Write that check: how many groups along an axis have members in more than one machine?


# %%
def check_torn(function):
    cases = [(CUBE, 4, (4, 0, 0)), (Mesh({"tensor": 2, "data": 2, "pipe": 2}), 4, (4, 0, 0)),
             (Mesh({"pipe": 2, "data": 2, "tensor": 8}), 8, (16, 16, 0)), (CUBE, 2, (4, 4, 0))]  # fmt: skip
    for mesh, per_machine, wanted in cases:
        came = tuple(function(mesh, axis, per_machine) for axis in mesh.axes)
        assert came == wanted, (
            f"{dict(mesh.axes)} on machines of {per_machine}: {wanted} groups should be torn along {', '.join(mesh.axes)}, "
            f"but came {came}"
        )


@your_turn(check_torn, look="`mesh.groups(axis)` lists the groups. In which machine is rank r, if each has that many?")
def torn(mesh, axis, per_machine):
    """The number of groups along `axis` that have members in more than one machine."""
    ...


# %% tags=["solution"]
# One solution. Open it when yours passes, or when you are stuck.
@torn.solution
def torn(mesh, axis, per_machine):
    return sum(len({rank // per_machine for rank in group}) > 1 for group in mesh.groups(axis))


# %% [markdown]
# ## 6 · How many along each axis?
#
# The order is settled. Now the lengths, for a real model: MT-NLG, 530 billion parameters, A100s of 80 GB, eight in a
# machine. Three rules, each from a lesson (Narayanan et al. 2021, §3, found them by trying):
#
# - **Tensor: as far as the machine goes, no further.** 8. Beyond, every block waits for the network.
# - **Pipe: until a rank's part fits,** no more, since more stages are more bubble.
# - **Data: the rest,** as far as the batch can be cut.
#
# What must fit? 16 bytes for each parameter of the rank (lesson 02), and the activations in flight. **Guess** the
# number of stages, if its 105 blocks must divide evenly and states alone may take at most half of the memory.

# %%
guess_stages = ask("Stages for 530 billion parameters, 8 tensor ranks, at most 40 GB of states a rank?")

# %%
NLG, A100 = zoo.MT_NLG_530B.config, hardware.A100_80GB
states = {}
for stages in (1, 3, 5, 7, 15, 21, 35, 105):
    setup = Setup(NLG, 1920, precision="mixed", micro_batch=1, tensor=8, pipeline=stages)
    states[stages] = Bytes(16 * max(predict.rank_parameters(setup, stage) for stage in {0, stages - 1}))
    print(f"{stages:3} stages of {105 // stages:3} blocks: {states[stages]:.1GB} of states on the fullest rank")
fits = min(stages for stages, held in states.items() if held <= A100.memory / 2)
compare(guess=guess_stages, predicted=Count(fits), measured=Count(35), columns=("by the rule", "published"), name="stages")

# %% [markdown]
# Smith et al. 2022 (§3.1) trained it on 8 tensor ranks × 35 stages: 280 GPUs hold one copy of the model. (The half is
# our rule. See between which two lines its 40 GB lie: any other limit there gives 35, too.) The data axis takes the
# rest of the GPUs (exercise 2).
#
# Now smaller models on cubes of your own, seen from rank 5. Count in the order data, tensor, pipe: a tensor
# group leaves its machine. Look at the seconds. Then repair it without touching the order. There are two ways.

# %%
CubeExplorer(model="GPT-3 13B").show()

# %% [markdown]
# <details><summary>The two ways</summary>
#
# Machines of 8, or a tensor axis of 2. With pipe faster than tensor, the ranks of a tensor group are two numbers apart,
# so four of them reach over seven numbers. What must fit into a machine is the reach of a group, not its size. On the
# fastest axis the two are the same, and that is why it is the safe place.
#
# </details>

# %% [markdown]
# ## 7 · At scale
#
# Narayanan et al. 2021 (§5.1) reached 163 TFLOP/s on each of 3,072 A100s with a model of a trillion parameters, 8
# tensor × 64 pipe × 6 data. How long to train it on 450 billion tokens? With activations recomputed a token costs 8
# FLOPs a parameter (lesson 03). **Guess** in days.

# %%
guess_days = ask("A trillion parameters, 450 billion tokens, 3,072 A100s: days?", unit="days")

# %%
seconds = 8 * 450e9 * 1e12 / (3072 * 163e12)
compare(
    guess=guess_days, predicted=Seconds(seconds), measured=Seconds(84 * 86_400),
    tolerance=0.02, unit="days", name="training", columns=("formula", "published"),
)  # fmt: skip

# %% [markdown]
# The formula has no term for messages. They are inside the 163 TFLOP/s, where an A100 could do 312.
#
# ---
#
# ## Second sitting
#
# The story ends here, and the lab needs no more. On another day, run all cells above before you go on. Below: the same
# grid in PyTorch's and in JAX's words, the same program outside of a notebook, and what happens to it when a machine
# dies.
#
# ## 8 · The real thing: the same grid in other words
#
# PyTorch calls the grid a `DeviceMesh`. Same numbers, same groups?

# %%
import tempfile
from pathlib import Path

from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from course_lib.parallel import survive


# %%
def on_a_device_mesh():
    theirs = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("pipe", "data", "tensor"))
    rank = dist.get_rank()
    same = [dist.get_process_group_ranks(theirs.get_group(axis)) == CUBE.group_of(rank, axis) for axis in CUBE.axes]
    x, w = torch.arange(32.0).view(4, 8), torch.arange(48.0).view(8, 6)
    plane = theirs["data", "tensor"]
    rows = distribute_tensor(x, plane, [Shard(0), Replicate()])  # sequences over data, a copy on each tensor rank
    columns = distribute_tensor(w, plane, [Replicate(), Shard(1)])  # column-parallel, a copy in each replica
    product = rows @ columns
    gradient = rows.T @ product
    right = torch.equal(gradient.full_tensor(), x.T @ (x @ w))
    return all(same), right, product.placements, tuple(product.to_local().shape), gradient.placements


same, right, of_product, held, of_gradient = ranks.run(on_a_device_mesh, world_size=8)[0]
print("groups are ours:", same, "· values are the whole product's:", right)
print(f"y = x @ w is laid out as {of_product}; rank 0 holds {held} of it")
print(f"x.T @ y is laid out as   {of_gradient}")

# %% [markdown]
# This is **SPMD**: a single program for many ranks, written as if for one, and a layout for each tensor. The library
# asks at each operation which layouts come out, and which messages must go before. Read the last line: along data the
# gradient is `Partial`, a sum that nobody has taken yet. That is lesson 07's all-reduce, waiting to be asked for. Along
# tensor each rank has its columns, and nothing needs to be sent. Nobody wrote that down. It follows from the layouts,
# as in lesson 08.
#
# | here | PyTorch | JAX |
# |---|---|---|
# | `Mesh({"data": 2, "tensor": 2})` | `init_device_mesh(..., mesh_dim_names=...)` | `jax.make_mesh((2, 2), ("data", "tensor"))` |
# | what a rank holds of a tensor | `Shard(0)`, `Replicate()`, `Partial()` | `PartitionSpec("data", None)` |
# | a group along an axis | `mesh.get_group("data")` | the axis' name: `jax.lax.psum(x, "data")` |
# | who puts the messages in | you (lessons 07 to 10), or `DTensor` at each operation | the compiler, for the whole program |
#
# JAX began where lesson 07 did: `pmap` runs one function on every device, and you write the `psum`. GSPMD (Xu et al.
# 2021), which stood behind its `jit` for years, takes some annotated layouts, works out all others, and puts the
# collectives in; its successor Shardy does the same. (JAX is not installed here, so the column is a translation and not
# a measurement.) Neither system can choose the layouts for you, and neither cuts a schedule as in lesson 09. The pipe
# axis remains a program of its own.
#
# ## 9 · A machine dies
#
# Outside of a notebook, `torchrun` starts the ranks: one command on each machine, and they find each other. This one
# trains the GPT over the grid that you name, and prints one device's loss beside it; try it in a terminal:
#
# ```
# torchrun --standalone --nproc-per-node 4 -m course_lib.parallel.train --pipe 2 --data 2 --zero 1 --oracle
# ```
#
# Llama 3 was trained on 16,384 GPUs. In 54 days, 419 interruptions came that nobody had planned, one every three hours
# (Grattafiori et al. 2024, §3.3.4). Each time, every rank that waits for the dead one raises (lesson 06),
# and the run is over. Unless somebody starts it again, on those who are left, from the last checkpoint. `torchrun` does
# the first half; the second is yours, and lesson 10's sharded checkpoints make it a few lines, since any number of
# ranks can read them:

# %%
show(survive.train, docstring=False)

# %% [markdown]
# Note what does not depend on the number of ranks: the batch of a step. Two ranks take 6 sequences each, one takes 12.
#
# Now two "machines" with a rank each, both on yours. There is a checkpoint after every fifth step. When step 12 is done
# (the first is step 0), one machine is killed without a word: its rank and its *agent*, the process of `torchrun` that
# started the rank and watches it. **Guess:** how many steps are computed twice?

# %%
guess_twice = ask("Steps computed twice, of 20?")

# %% tags=["varies"]
with tempfile.TemporaryDirectory() as folder:
    log = survive.survive(Path(folder) / "run", kill_at=12, steps=20, every=5, pause_s=0.05, ranks_per_node=1)
for line in log:
    print(line["event"] if "event" in line else f"step {line['step']:2}, ranks: {line['ranks']}, loss {line['loss']:.4f}")

# %% tags=["varies"]
taken = [line["step"] for line in log if "step" in line]
alone = survive.train_alone(20)
print(f"you said {guess_twice.said}; steps taken again: {sorted({step for step in taken if taken.count(step) > 1})}")
print("the loss curve is that of a device which nobody kills:", max(map(abs, map(float.__sub__, survive.curve(log), alone))) < 1e-9)

# %% [markdown]
# The steps since the last checkpoint are lost, and only they. (A step may still get through while the machine dies.)
# The curve has no seam. In `torchrun`'s words: the agent of the other machine saw its ranks fail, waited until it was
# clear who is still there, and started them again in a smaller world. What they remembered was gone. What was written
# was not. (A rank that dies alone, on a machine that lives, leaves no smaller world: its agent starts another in its
# place, and everybody goes back to the checkpoint.)
#
# How often to write, then? Each checkpoint costs time, and each failure costs half an interval on average. It is a
# trade with a known best point (exercise 3).
#
# ## What to keep
#
# | question | answer |
# |---|---|
# | Who is in my group along an axis? | those who differ from me on that axis and on no other |
# | What travels along each axis? | tensor: streams, in every block; pipe: streams, at the borders; data: gradients, once |
# | In which order do ranks count? | tensor fastest, so that its groups stay in a machine |
# | How many along each? | tensor up to the machine, pipe until it fits, data for the rest |
# | What breaks it silently? | groups of ranks that hold different weights; a numbering that tears tensor groups |
# | What is refused? | ZeRO-2 under a pipeline: it would reduce after every micro-batch |
#
# ## Three exercises
#
# **1.** 1,024 GPUs, 8 in a machine, tensor 8, pipe 16, data 8, tensor fastest, then data. In which machine (from 0) is
# the rank at `(pipe, data, tensor) = (3, 2, 5)`?
#
# **2.** MT-NLG on 2,240 GPUs: 8 tensor × 35 pipe. Its batch is 1,920 sequences, one in a micro-batch. How many
# micro-batches does each pipeline get? (A lecture says that MT-NLG "used 280 A100s". Those hold *one* copy.)
#
# **3.** A checkpoint takes 30 seconds, a failure comes every 8 hours. Over an interval of $t$ seconds you lose
# $\frac{30}{t}$ of the time to writing and $\frac{t/2}{8 \cdot 3600}$ to steps taken again. Which $t$ is best, in
# minutes?

# %%
answer_1 = None  # machine

self_check(answer_1, Mesh({"pipe": 16, "data": 8, "tensor": 8}).rank(pipe=3, data=2, tensor=5) // 8, hint="64 ranks to a stage.")

# %%
answer_2 = None  # micro-batches

self_check(answer_2, 1920 // (2240 // 280), hint="How many replicas are there?")

# %%
answer_3 = None  # minutes

best = min(range(60, 7200), key=lambda t: 30 / t + t / 2 / (8 * 3600)) / 60
self_check(answer_3, best, tolerance=0.02, hint="One loss falls with t, one grows. Where are they equal?")

# %% [markdown]
# **To read on:** [Megatron-LM on 3,072 GPUs](https://arxiv.org/abs/2104.04473) (§3 has the rules),
# [MT-NLG](https://arxiv.org/abs/2201.11990), [GPT-NeoX-20B](https://arxiv.org/abs/2204.06745),
# [GSPMD](https://arxiv.org/abs/2105.04663), and
# [DeviceMesh and DTensor](https://docs.pytorch.org/docs/stable/distributed.tensor.html).
#
# **The lab**, `labs/lab12_3d_parallelism`, has you build the groups and the loss for a cube of your own.
