# %% [markdown]
# # 12 · 3D parallelism
#
# **The question:** three ways to split a model. Which rank does which, and how many go along each?
#
# | | |
# |---|---|
# | Time | first sitting 50 minutes, second sitting 30; less than two minutes of both together is computing on 2 CPU cores |
# | A GPU | changes nothing in groups, bytes and weights; seconds at the end are formulas either way |
# | Opens | `parallel/mesh.py`, `parallel/hybrid.py` |
#
# You have a thousand GPUs, eight in each machine, and a model of half a trillion parameters. Lesson 08 cuts layers, and
# talks in every one of them. Lesson 09 cuts between layers, and leaves ranks idle. Lessons 07 and 10 give each rank
# sequences of its own, and there may not be so many: MT-NLG, the model of
# section 6, was timed on 2,240 GPUs with a batch of 1,920.
#
# So multiply: 32 stages, times 4 replicas, times 8 ranks that cut each layer, makes 1,024. But which rank is which, and
# why 32 · 4 · 8 and not 4 · 128 · 2? We lay 8 ranks out in every possible way, and measure each one.

# %%
import itertools

import torch
import torch.distributed as dist

from course_kit import measure, ranks
from course_kit.compare import compare
from course_kit.notebook import ask, self_check, show, your_turn
from course_kit.units import Bytes, Count, Ratio, Seconds

# %%
from course_lib import predict
from course_lib.model import hardware, text, zoo
from course_lib.model.gpt import GPT, GPTConfig
from course_lib.parallel.hybrid import AXES, HybridParallel
from course_lib.parallel.mesh import Mesh
from course_lib.predict import Setup
from course_lib.train.step import train_step
from course_pages.lesson12 import shapes, turns
from course_pages.lesson12.explorer import CubeExplorer
from course_pages.lesson12.pictures import groups_along
from course_pages.lesson12.recorded import recorded_step, slow_down
from course_pages.lesson12.step_pictures import budget, cube_step, trade
from course_pages.shared.who_sends import between_nodes, matrix, who_sends_whom

# %% [markdown]
# ## 1 · Eight ranks in a cube
#
# Take two along each way of cutting: 2 stages, 2 replicas, 2 halves of every layer. Each rank has an address of three
# numbers: its place in the **pipeline**, among the **data** replicas, and among the **tensor** halves. A rank knows only
# its own number, so it must work the address out, and all ranks must agree.
#
# Count like a clock whose last axis is the second hand. Tensor moves with every rank, data with every second one, and
# pipeline with every fourth. Rank 5 is then the second stage, first replica, second half: `(1, 0, 1)`.
#
# **Your turn.** Write the address of a rank, for any numbers of ranks along the axes.

# %%
@your_turn(turns.check_address, look="How many ranks pass before the data axis moves? And before the pipeline axis does?")
def address(rank, pipeline, data, tensor):
    """A rank's place (pipeline, data, tensor), each counted from 0, on axes of these lengths; tensor is the fastest."""
    ...


# %% tags=["solution"]
# One solution. Open it when yours passes, or when you are stuck.
@address.solution
def address(rank, pipeline, data, tensor):
    return rank // (data * tensor), rank // tensor % data, rank % tensor


# %% [markdown]
# ## 2 · Whose group is whose
#
# An all-reduce needs to know who takes part. Who holds the other pieces of rank 5's layers? The ranks of the
# same stage and the same replica, which differ from it in the tensor place only. **A group
# along an axis holds all ranks that differ in their place on it and agree on the others.**


# %%
CUBE = Mesh({"pipeline": 2, "data": 2, "tensor": 2})
groups_along(CUBE, ranks_per_node=4, caption="Each rank is in three groups. Grey plates are two machines, ranks 0 to 3 and 4 to 7: only the pipeline's lines lead from one to the other.").show()

# %% [markdown]
# With whom does rank 5 average gradients? Rank 7 holds the same half of the same stage, and sees other sequences.
# Rank 4 has the other half and rank 1 the other stage: their gradients belong to other weights (but for a few that
# section 11 names).
#
# **Your turn.** Find the groups along an axis from addresses alone.


# %%
@your_turn(turns.check_groups, look="Two ranks share a group if their places are equal once the place on this axis is left out.")
def groups(places, axis):
    """places[rank] is (pipeline, data, tensor), axis is 0, 1 or 2: a list of lists of ranks."""
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
# The library's `Mesh.groups` is your function with names for the axes. `HybridParallel` puts lessons 07 to 10 on these
# groups. Its step has four parts:
#
# 1. Each replica takes its share of the batch and cuts it into micro-batches.
# 2. Each micro-batch runs through the two stages by 1F1B (lesson 09). Inside a stage each tensor rank
#    has half of every matrix, and in every block the two halves add up four times: twice forward, twice backward.
# 3. When the last micro-batch is back, replicas average the gradients of what they share (lesson 07). The loss lies on
#    the last stage; a sum over pipeline and data tells it to everyone.
# 4. Each rank steps on what it holds; with ZeRO along the data axis, on its slice of that (lesson 10).

# %%
CONFIG = GPTConfig(layers=8, width=64, heads=8, vocab_size=256, context=32)
STORIES = text.stories(seed=0)


def batch_of(step):
    return STORIES.batch(seed=0, step=step, rank=0, batch_size=16, context=32)


# %% [markdown]
# Now watch one step with four micro-batches. Eight ranks on a few cores would wait for a core and not for each other,
# so we slow the passes down, as in lesson 09: a forward pass takes 50 ms or longer, a backward pass 100 or longer, most of it asleep. **Guess** how often
# rank 0, on the first stage, stops for its tensor partner. Its stage has four blocks, and once in each micro-batch the
# two ranks also join the halves of the embedding.

# %%
guess_stops = ask("Messages along tensor for which rank 0 waits in one step?")


# %% tags=["varies"]
def on_the_cube():
    grid = HybridParallel(CONFIG, CUBE, micro_batches=4)
    optimizer = grid.optimizer(torch.optim.AdamW, lr=1e-3)
    grid.train_step(optimizer, batch_of(0))  # wakes the connections
    return recorded_step(grid, optimizer, batch_of(1), unit_s=0.05)


record = ranks.run(on_the_cube, world_size=8)[0]
cube_step(
    record,
    caption="Four lessons in one picture. Tensor messages riddle every pass; the pipeline lets ranks 4 to 7 wait at both ends, "
    "0 to 3 in the middle; the data axis speaks only at the end.",
)

# %%
stops = sum(event.name.endswith("along tensor") for event in record.of(0, "wait"))
compare(guess=guess_stops, predicted=Count(4 * 4 * (2 + 2) + 4), measured=Count(stops), tolerance=0, name="stops")

# %% [markdown]
# At the beginning ranks 4 to 7 wait for the first stream, and at the end for ranks 0 to 3, which take the last gradient
# back to the embedding. Ranks 0 to 3 wait about as long, but in the middle: each of their gradients must come back first. Those
# gaps are lesson 09's bubble. The stripes are tensor ranks, which meet in each block of each micro-batch. Data ranks meet
# only at the end, for gradients, then for the loss.
#
# ## 4 · Ten shapes
#
# Now lay 8 ranks out in all ten ways. A shape's name is pipeline · data · tensor, from 8 stages (8·1·1) over 8 replicas
# (1·8·1) to 8 pieces of every layer (1·1·8).
# Three meters run beside each: the kernel's count of bytes, the account of memory, and the clock.
#
# The formulas are those of lessons 07 to 10. Along **tensor**, each block adds up the stream of every micro-batch four
# times, and the ends join embedding and logits. Along **pipeline**, the stream crosses
# each border twice, and the tied embedding's gradient goes once from end to end. Along **data**, all gradients of the rank are reduced once. A rank **holds** 16 bytes for each of its parameters
# (here 4 + 4 + 8, in fp32). With $m$ micro-batches and $p$ stages, the first stage also holds activations of $\min(m, p)$
# micro-batches, and $\frac{p-1}{m+p-1}$ of all time is idle; we take $m = 2$, so that a long pipeline hurts.
#
# Bytes in the table are rank 0's. Each cell has what was measured, then what the formula says. **Guess:** in which shape
# does rank 0 send the fewest bytes?

# %%
guess_fewest = ask("Shape that sends the fewest bytes, as three digits (pipeline, data, tensor)?")


# %%
def three_meters(mesh, dtype=torch.float32, unit_s=0.08):
    """On each rank, in two steps: bytes held, then bytes sent; when passes ran; both losses."""
    grid = HybridParallel(CONFIG, mesh, micro_batches=2, dtype=dtype)
    optimizer = grid.optimizer(torch.optim.AdamW, lr=1e-3)
    with measure.memory(grid, optimizer) as memory:
        first = grid.train_step(optimizer, batch_of(0))
    if mesh.axes["pipeline"] > 1:
        slow_down(grid, unit_s)
    with measure.traffic() as sent:
        second = grid.train_step(optimizer, batch_of(1))
    states = memory.after.parameters + memory.after.gradients + memory.after.optimizer
    held = states + Bytes(memory.timeline["activations"].max())
    return shapes.Met(sent, held, grid.pipeline.spans, [first.item(), second.item()])


def by_formula(shape):
    pipeline, data, tensor = shape
    setup = Setup(CONFIG, 16, micro_batch=16 // data // 2, pipeline=pipeline, data=data, tensor=tensor)
    sent = {axis: account.total_bytes for axis, account in predict.rank_traffic(setup, stage=0).items()}
    return shapes.Numbers(sent, predict.rank_memory(setup).total, predict.bubble(setup).over_all)


# %% tags=["varies"]
model = GPT(CONFIG)
alone = torch.optim.AdamW(model.parameters(), lr=1e-3)
on_one_device = [train_step(model, alone, batch_of(step)).item() for step in range(2)]

formula, measured, off = {}, {}, {}
for shape in shapes.SHAPES:
    met = ranks.run(three_meters, shapes.mesh_of(shape), world_size=8)
    formula[shape], measured[shape] = by_formula(shape), shapes.numbers_of(shape, met)
    off[shape] = shapes.furthest(met, on_one_device)
shapes.ShapesTable(formula, measured, off)

# %% [markdown]
# All ten shapes learn what one device learns: the loss differs in the sixth or seventh decimal, which is fp32's rounding.
# (Section 8 has what tensor sends beyond its formula.)

# %% tags=["varies"]
print("you said that", guess_fewest.said, "sends the fewest")
trade(
    formula, measured,
    caption="Dots are measured, rings are formulas; the browner a dot, the longer its ranks idle. The lower left corner, "
    "few bytes sent and few held, has a price: there the ranks wait most.",
)  # fmt: skip

# %% [markdown]
# So how should ranks be shared out among the three axes? It is a trade. A pipeline sends least and holds least, and pays in idle time.
# Replicas have no bubble and send a third of what tensor ranks do, but each of them holds everything. Tensor ranks have
# none either, but they talk without end, and each keeps the whole stream: 1·1·8 holds more than 1·2·4. More
# micro-batches would shrink the bubble, and never are more than $p$ of them in flight. So real pipelines run hundreds.
#
# ## 5 · Which wire?
#
# Bytes are not seconds. Two machines of four GPUs: inside, NVLink; between them, a network that is ten times slower.
# Ranks 0 to 3 stand in the first machine, so whichever axis is counted *slowest* crosses the network, and the two
# others stay inside. There are six orders, two for each slowest axis; the table has the second of the two. `three_meters`
# runs in each, in float64, and no pass sleeps. **Guess** what share of all bytes crosses if tensor is the slowest. (Look
# at 2·2·2 above.)

# %%
guess_bad = ask("Tensor slowest: % of all bytes that cross between the machines?", unit="")


# %%
both = [predict.rank_traffic(Setup(CONFIG, 16, micro_batch=4, pipeline=2, data=2, tensor=2), stage) for stage in (0, 1)]
along = {axis: sum(stage[axis].total_bytes for stage in both) for axis in AXES}
runs, share_due, share = {}, {}, {}
for order in itertools.permutations(AXES):
    runs[order] = ranks.run(three_meters, Mesh(dict.fromkeys(order, 2)), torch.float64, unit_s=0, world_size=8)
    sent = matrix([met.sent for met in runs[order]], observed=True)
    share_due[order[0]] = Ratio(along[order[0]] / sum(along.values()))
    share[order[0]] = Ratio(between_nodes(sent, 4) / sum(sum(row, Bytes(0)) for row in sent))
losses = [met.losses for run in runs.values() for met in run]
print("all ranks in all six orders have the same losses, to the last bit:", all(each == losses[0] for each in losses))
print(f"you said {guess_bad.said} % with tensor slowest")
compare(predicted=share_due, measured=share, tolerance=0.05, columns=("formula", "seen by the kernel"))

# %% [markdown]
# Six orders, one loss: no test of values will ever tell you that a run is numbered badly. So tensor
# comes last, as the fastest. Here the pipeline sends less than data does, so it should be slowest.
#
# **Your turn.** Write the check that the loss cannot be: how many groups along an axis are torn?


# %%
@your_turn(turns.check_torn, look="`mesh.groups(axis)` lists the groups. In which machine is rank r, if each has that many?")
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
# MT-NLG: 530 billion parameters, 105 blocks, a cluster of 560 servers with eight A100s of 80 GB each (Smith et al. 2022,
# §2.2; the opening's 2,240 GPUs are half of it). Narayanan et al. 2021 (§3) derive three rules:
#
# - **Tensor: as far as the machine goes.** Here 8. Beyond, every block waits for the network.
# - **Pipe: until a rank's part fits,** and no more, since every stage lengthens the bubble.
# - **Data: the rest,** as far as the batch can be cut.
#
# What must fit? MT-NLG's states take 20 bytes a parameter (§2.1): cut in eight, 1,324 GB on one stage, a little over
# $1324/p$ on the first of $p$. Blocks are recomputed: each of its $105/p$ keeps its input only, 2 bytes for each of
# 2,048 · 20,480 numbers, of $p$ micro-batches. **Guess** the smallest $p$ that fits, if it must divide the 105 blocks.

# %%
guess_stages = ask("Fewest stages that fit, of those that divide 105?")

# %%
NLG, A100 = zoo.MT_NLG_530B.config, hardware.A100_80GB
needs = {}
for stages in (1, 7, 15, 21, 35):
    setup = Setup(NLG, 1920, precision="mixed", micro_batch=1, tensor=8, pipeline=stages)
    states = Bytes(20 * max(predict.rank_parameters(setup, stage) for stage in {0, stages - 1}))
    kept = Bytes(predict.in_flight(setup) * (105 // stages) * 2 * 2048 * 20480)
    needs[stages] = states + kept
    print(f"{stages:3} stages: {states:.1GB} of states, {kept:.1GB} of activations; 560 / {stages} = {560 / stages:.6g}")
fits = [stages for stages, needed in needs.items() if needed < A100.memory]
print(f"you said {guess_stages.said}; the fewest that fit are {min(fits)}")
possible = [stages for stages in fits if 560 % stages == 0]
# measured: counted in Smith et al. 2022, section 3.2, the stages of the run
compare(predicted=Count(min(possible)), measured=Count(35), columns=("by the rules", "published"), name="stages")

# %% [markdown]
# The activations are a surprise: 8.8 GB at every length, since $p$ micro-batches of $105/p$ blocks are in flight. 15
# stages do not fit into the card's 80 GiB, which are 85.9 GB. 21 do, with 11 GB to spare for what we have not counted. But a stage
# of 8 tensor ranks is a server, and 560 servers are no whole number of replicas of 21 servers each; they are 16 of 35. (The paper gives no reason; this one is ours.) And the
# opening's 4 · 128 · 2? It also cuts the model in eight: the first line, 1.3 TB a rank.
#
# Now a cube of your own, seen from rank 5. Count in the order data, tensor, pipeline: a tensor group leaves its machine.
# Compare the seconds of talking with those of computing. Then repair it in two ways, without touching the order.

# %%
CubeExplorer(model="GPT-3 13B").show()

# %% [markdown]
# <details><summary>The two ways</summary>
#
# Machines of 8, or a tensor axis of 2. With pipeline faster than tensor, the ranks of a tensor group are two numbers apart,
# so four of them reach over seven numbers. What must fit into a machine is the reach of a group, not its size. On the
# fastest axis the two are the same, and that is why it is the safe place.
#
# </details>
#
# ## 7 · Where do 60.1 seconds go?
#
# MT-NLG's step took 60.1 s on 280 servers: 35 · 8 · 8 ranks, 240 micro-batches for each pipeline (§2.4). The
# products, with recompute 8 FLOPs for each parameter and token, and attention's scores (lesson 03), take 24 s at the A100's peak of
# 312 TFLOP/s. The bubble is 34 of 274 slots, 7.5 s. For the messages `rank_traffic` counts a middle stage; recompute repeats the two
# sums of the forward pass, so a block has six. They travel at 300 GB/s inside a machine and 25 GB/s to another, and none is hidden. **Guess:** how much is left over?

# %%
guess_rest = ask("Seconds that products at peak, bubble and messages leave over?", unit="s")

# %%
setup = Setup(NLG, 1920, precision="mixed", micro_batch=1, tensor=8, pipeline=35, data=8, recompute="full")
STEP = Seconds(60.1)  # measured: Smith et al. 2022, section 2.4, on 280 servers
talk = {axis: account.total_bytes for axis, account in predict.rank_traffic(setup, stage=17).items()}
parts = {
    "products at peak": Seconds(predict.step_flops(setup) / (2240 * A100.peak("bf16"))),
    "bubble": Seconds(STEP * predict.bubble(setup).over_all),
    "tensor": Seconds(talk["tensor"] / A100.link_bytes_per_s),
    "pipeline": Seconds(talk["pipeline"] / 25e9),
    "data": Seconds(talk["data"] / 25e9),
}
parts["products below peak, and all else"] = Seconds(STEP - sum(parts.values()))
print("you said", guess_rest.said)
budget(parts, caption="Of a step of 60.1 s, products at the peak explain 40 %, the bubble 12 %, all messages together 7 %.")

# %% [markdown]
# Messages are *not* where the time goes: that is what the order of the axes bought. Over the network, tensor's would
# take twelve times as long. The bubble costs nearly twice as much as all talk. The largest part has no formula yet, but
# a name: products below the peak, and whatever is no product (norms, GELU, softmax, Adam). Lesson 16 goes after it.
#
# ---
#
# ## Second sitting
#
# The story ends here; of what follows, the lab takes up section 11 only. On another day, run all cells above before you
# go on. Below: section 4's axes, headers and worst rows, section 5's bytes from rank to rank, the same grid in PyTorch's and
# in JAX's words, a machine of the cube that dies, the library's step with two mistakes that raise nothing, two runs that
# break a rule, and Llama 3's order.
#
# ## 8 · The real thing: the same grid in other words
#
# First, what section 4 left out. A connection leads to one rank, and two ranks that talk differ on one axis only, so the
# kernel's bytes tell us their axis. Along tensor the kernel sees a little more than the formula. The surplus follows the
# number of messages: it is their headers (lesson 00). And the worst row of each column that has a formula:

# %% tags=["varies"]
worst = shapes.furthest_off(formula, measured)
print(", ".join(f"{kind}: {shapes.name_of(shape)}" for kind, shape in worst.items()))
idle = worst.pop("idle")
due = {kind: formula[shape].kinds[kind] for kind, shape in worst.items()}
came = {kind: measured[shape].kinds[kind] for kind, shape in worst.items()}
display(compare(predicted=due, measured=came, tolerance=0.05, columns=("formula", "kernel, meter")))
compare(predicted=formula[idle].bubble, measured=measured[idle].bubble, tolerance=0.35, name="idle", columns=("formula", "chart"))

# %% [markdown]
# And section 5's bytes from rank to rank, once with pipeline slowest and once with tensor slowest:

# %%
who_sends_whom(
    {", ".join(order): [met.sent for met in runs[order]] for order in (AXES, AXES[::-1])}, ranks_per_node=4, observed=True,
    caption="The same step, the same losses, in two orders. Framed in orange is what the network carries: twelve times as much "
    "where tensor is slowest.",
)  # fmt: skip

# %% [markdown]
# PyTorch calls the grid a `DeviceMesh`. Are its groups ours, which `Mesh.groups` makes?

# %%
import importlib.util
import os
import signal
import tempfile
from pathlib import Path

from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from course_lib.parallel.checkpoint import Checkpoints

show(Mesh.groups, docstring=False)


# %%
def on_a_device_mesh():
    theirs = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("pipeline", "data", "tensor"))
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
# This is **SPMD**: a single program for many ranks, written as if for one, and a layout for each tensor. At each
# operation the library asks which layouts come out, and which messages must go before. Read the last line: along data
# the gradient is `Partial`, a sum that nobody has taken yet. That is lesson 07's all-reduce, waiting to be asked for.
# Along tensor each rank has its columns, and nothing needs to be sent. No line of the program says so. It follows from
# the layouts, as in lesson 08.
#
# JAX leaves the messages to its compiler. Where it is installed, eight simulated devices show what the compiler puts in
# for the same two products:

# %% tags=["varies"]
if importlib.util.find_spec("jax") is None:
    print("JAX is not installed here: `pip install jax`, and run this cell again")
else:
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"  # read when JAX is imported
    import jax

    cube = jax.make_mesh((2, 2, 2), AXES, axis_types=3 * (jax.sharding.AxisType.Auto,))
    rows, columns = (jax.NamedSharding(cube, jax.P(*axes)) for axes in (("data", None), (None, "tensor")))
    x = jax.device_put(jax.numpy.arange(32.0).reshape(4, 8), rows)
    w = jax.device_put(jax.numpy.arange(48.0).reshape(8, 6), columns)
    step = jax.jit(lambda x, w: x.T @ (x @ w))
    print("laid out as", step(x, w).sharding.spec)
    print([line.split("metadata")[0].strip() for line in step.lower(x, w).compile().as_text().splitlines() if "all-" in line])

# %% [markdown]
# With JAX 0.10 the gradient comes out as `PartitionSpec(None, 'tensor')`, and the compiled program holds one
# all-reduce, with `replica_groups={{0,2},{4,6},{1,3},{5,7}}`. Those are our groups along data.
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
# collectives in; its successor Shardy does the same. Mostly you annotate the inputs, though a compiler may choose
# layouts, too. A pipeline can be written as one more sharded axis: a loop over stages whose streams are shifted by one
# place (GSPMD does so, and MaxText). Neither system writes 1F1B for you.
#
# ## 9 · A machine dies
#
# Llama 3 was trained on 16,384 GPUs. In 54 days, 419 interruptions came that nobody had planned, one every three
# hours (Grattafiori et al. 2024, §3.3.4). Over gloo, a rank that waits for a dead one raises as soon as
# its connection breaks. Over NCCL it hangs until a watchdog's timeout ends it. Either way the run is over, unless something starts it again
# from the last checkpoint.
#
# Now our cube. Steps count from 0. When step 7 is done, machine 0 dies by SIGKILL, and never comes back. What is left
# is one machine of four: a smaller cube, 2·1·2. A checkpoint of `HybridParallel` holds whole tensors by name, so any
# number of replicas can read it (lesson 10). **Guess:** with a checkpoint after every third step, how many steps are
# computed twice?

# %%
guess_twice = ask("Steps computed twice, of 12?")


# %%
def live(folder, lengths, steps, dies_at=None):
    """Go on from the newest checkpoint; the first four ranks may die when this step is done. Notes (step, ranks, loss)."""
    grid = HybridParallel(CONFIG, Mesh(dict(zip(AXES, lengths))), micro_batches=2, zero=1, dtype=torch.float64)
    optimizer = grid.optimizer(torch.optim.AdamW, lr=1e-3)
    checkpoints = Checkpoints(folder / "checkpoints", grid, optimizer)
    for step in range(checkpoints.resume()["step"], steps):
        loss = grid.train_step(optimizer, batch_of(step)).item()
        if dist.get_rank() == 0:
            with open(folder / "log", "a") as log:
                print(step, dist.get_world_size(), loss, file=log)
        if step == dies_at:
            dist.barrier()
            if dist.get_rank() < 4:
                os.kill(os.getpid(), signal.SIGKILL)
        if (step + 1) % 3 == 0:
            checkpoints.save(step + 1)


# %% tags=["varies"]
with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    try:
        ranks.run(live, folder, (2, 2, 2), 12, dies_at=7, world_size=8)
    except ranks.RankFailure as failure:
        print(str(failure).split(";")[0])
    ranks.run(live, folder, (2, 1, 2), 12, world_size=4)
    log = [line.split() for line in (folder / "log").read_text().splitlines()]
model = GPT(CONFIG, dtype=torch.float64)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
alone = [train_step(model, optimizer, batch_of(step)).item() for step in range(12)]
for world_size in ("8", "4"):
    print(f"steps on {world_size} ranks:", ", ".join(step for step, n, _ in log if n == world_size))
print("the curve is that of one device:", max(abs(float(loss) - alone[int(step)]) for step, _, loss in log) < 1e-9)
taken = [step for step, _, _ in log]
print(f"you said {guess_twice.said}; computed twice:", *sorted({step for step in taken if taken.count(step) > 1}))

# %% [markdown]
# The steps since the last checkpoint are lost, and only they. The curve has no seam, since a step's batch does not
# depend on the number of replicas. On a cluster `torchrun` does the notebook's part: its agents notice the dead
# machine, find out who is left, and start all ranks anew. In a terminal you can kill a real agent of this cube:
# `python -m course_lib.parallel.survive runs/gpt --ranks-per-node 4 --pipeline 2 --tensor 2`.
#
# Large runs would rather not shrink. A machine of the cube holds stage 0 of *both* replicas, if pipeline is slowest: no
# whole replica is left, and both must wait for a spare. Where data is slowest, the other replica is whole.
#
# **Your turn.** Which replicas has a dead machine left whole?


# %%
@your_turn(turns.check_whole, look="`mesh.coordinates(rank)` has the rank's place on each axis, by name.")
def whole(mesh, per_machine, dead):
    """Places on the data axis whose replica has lost no rank to machine number `dead`, as a list."""
    ...


# %% tags=["solution"]
# One solution. Open it when yours passes, or when you are stuck.
@whole.solution
def whole(mesh, per_machine, dead):
    lost = {mesh.coordinates(rank)["data"] for rank in range(mesh.size) if rank // per_machine == dead}
    return [place for place in range(mesh.axes["data"]) if place not in lost]


# %%
for order in (("pipeline", "data", "tensor"), ("data", "pipeline", "tensor")):
    mesh = Mesh(dict.fromkeys(order, 2))
    print(f"{', '.join(order)}: machine 0 dies, whole replicas are", whole(mesh, per_machine=4, dead=0))

# %% [markdown]
# How often to write a checkpoint? Each costs time, and each failure costs half an interval on average. The best point
# is Young's (1974), refined by Daly (2006): exercise 3.
#
# ## 10 · A group that holds different weights
#
# A worse mistake than section 5's numbering: average along the wrong axis. This is section 3's step;
# `_tokens_of_a_replica` is what its losses are divided by, and `_everyones_loss` is section 3's last sum.
# `_average_replicas` trusts its groups:

# %%
show(HybridParallel.forward_backward, docstring=False)

# %% [markdown]
# Suppose that they are tensor's. The two halves of a matrix have the same shape, so no collective complains.
# **Guess:** at which step does the loss first differ from one device's, if steps count from 0?

# %%
guess_step = ask("First step with a wrong loss?")


# %%
class Mistaken(HybridParallel):
    def _average_replicas(self):
        right = self.groups
        self.groups = right | {"data": right["tensor"]}  # the whole bug
        super()._average_replicas()
        self.groups = right


def train(kind):
    grid = kind(CONFIG, CUBE, micro_batches=2, dtype=torch.float64)
    optimizer = grid.optimizer(torch.optim.AdamW, lr=1e-3)
    losses = [grid.train_step(optimizer, batch_of(step)).item() for step in range(4)]
    return losses, sum(weight.detach().sum() for weight in grid.parameters()).item()


# %%
right, wrong = ranks.run(train, HybridParallel, world_size=8), ranks.run(train, Mistaken, world_size=8)
for step, (good, bad) in enumerate(zip(right[0][0], wrong[0][0])):
    print(f"step {step}: right {good:.4f}, mistaken {bad:.4f}")
for name, run in {"right": right, "mistaken": wrong}.items():
    agree = [len({run[rank][1] for rank in group}) == 1 for group in CUBE.groups("data")]
    print(f"{name}: do the ranks of each data group still hold the same weights?", agree)
print("you said step", guess_step.said)

# %% [markdown]
# The loss of step 0 is computed before any update, so it is right. From then on replicas drift apart, and the loss
# still falls, since each rank follows some gradient. The sum of the weights tells: ranks of a data group must agree on
# it, at every step and to the last bit. It costs one number a rank, so run it now and then.
#
# (Dropout is another such mistake. Ranks that share a stream must draw the same mask, halves of a matrix must take
# parts of one, and replicas and stages need masks of their own, as in lesson 08. Our grid refuses dropout.)
#
# ## 11 · A norm over three axes
#
# Clipping needs the norm of the whole gradient (lessons 05 and 10). In a cube no rank has it. Two easy ways are
# wrong: a rank's own norm misses what others hold, and a sum over all ranks counts many numbers more than once. Which
# ones? A number of a cut matrix is on one rank of each replica, but LayerNorms and the biases behind a row cut are on every
# tensor rank. The tied embedding is at both ends of the pipeline, and all of it is once more in each replica.


# %%
def own_squares():
    grid = HybridParallel(CONFIG, CUBE, micro_batches=2, dtype=torch.float64)
    grid.forward_backward(batch_of(0))
    return sum(weight.grad.square().sum().item() for weight in grid.parameters())


def norm_of_the_whole():
    grid = HybridParallel(CONFIG, CUBE, micro_batches=2, dtype=torch.float64)
    optimizer = grid.optimizer(torch.optim.AdamW, lr=1e-3)
    grid.forward_backward(batch_of(0))
    return round(grid.clip_grad_norm_(optimizer, 1.0).item(), 4)


squares = ranks.run(own_squares, world_size=8)
model = GPT(CONFIG, dtype=torch.float64)
model(*batch_of(0)).backward()
true = torch.cat([weight.grad.flatten() for weight in model.parameters()]).norm().item()
print(f"one device {true:.4f} · each rank's own {[round(each**0.5, 4) for each in squares]}")
print(f"root of the sum over all ranks: {sum(squares) ** 0.5:.4f}; over one replica: {(sum(squares) / 2) ** 0.5:.4f}")
print("the library's, on each rank:", ranks.run(norm_of_the_whole, world_size=8))

# %% [markdown]
# Ranks that clip by their own norms shrink by four different factors. The two halves of one matrix, on ranks 0 and 1,
# then move by different steps. Division by the replicas repairs one of the three double counts, and the norm is still
# too long. The library's grid repairs all three; the lab has you do so.
#
# ## 12 · Two runs that break a rule
#
# **GPT-NeoX-20B breaks the first rule.** Its 96 A100s of 40 GB stood eight to a machine, and its tensor axis is 2, its
# pipeline 4 (`configs/20B.yml`). "As far as the machine" is an upper limit: a matrix that is cut in 8 is a small product,
# and talk grows. But does a part fit?

# %%
for zero in (0, 1):
    setup = Setup(zoo.NEOX_20B.config, 1536, precision="mixed", micro_batch=4, tensor=2, pipeline=4, data=12, zero=zero)
    held = max(predict.model_states(setup, stage).total for stage in range(4))
    print(f"ZeRO-{zero}: {held:.2GB} of states on the fullest rank, of {hardware.A100_40GB.memory:.2GB}")

# %% [markdown]
# Without ZeRO 0.6 GB are left. The first stage keeps inputs of 11 blocks for each of 4 micro-batches in flight, and
# they alone take 4.4 GB (44 times 4 · 2,048 · 6,144 numbers of 2 bytes). ZeRO-1 over the 12 replicas makes room. And
# ZeRO's next stage? Our `HybridParallel` refuses it under a pipeline:

# %% tags=["raises-exception"]
HybridParallel(CONFIG, CUBE, micro_batches=2, zero=2)

# %% [markdown]
# Stage 2 is not wrong there, but it would reduce after every micro-batch, while the pipeline still adds to the same
# gradient. It costs messages, and Llama 3 paid: 16 stages, with gradients sharded too (Grattafiori et al. 2024, §3.3.2).
#
# Nor is the pipeline Llama 3's slowest axis, as it was section 5's. Large models can hide the data axis behind the backward pass
# (lesson 07). So Llama 3's order is tensor, context (lesson 08), pipeline, data, the fastest first, since data tolerates a
# slow network best (§3.3.2).
#
# And section 7's largest part? MT-NLG's paper does not split it up. A model of 1.7 billion without pipeline and tensor
# ranks reached 137 of 312 TFLOP/s (Narayanan et al. 2021, Table 1), a loss of much the same size.
#
# ## What to keep
#
# | question | answer |
# |---|---|
# | Who is in my group along an axis? | those who differ from me on that axis and on no other |
# | What travels along each axis? | tensor: streams, in every block; pipeline: streams, at the borders; data: gradients, once |
# | What does each axis cost besides? | tensor: each rank keeps the whole stream, and products get small; pipeline: idle time; data: everything is held by all, and a larger batch |
# | In which order do ranks count? | tensor fastest, so that its groups stay in a machine; context (lesson 08) next; data or pipeline slowest |
# | How many along each? | tensor at most the machine, pipeline until it fits, data for the rest |
# | Are there others? | context cuts the sequence (lesson 08), expert a layer's experts (lesson 13) |
# | What breaks it silently? | groups of ranks that hold different weights; a numbering that tears tensor groups |
# | What do our grid, MT-NLG and NeoX avoid? | ZeRO-2 under a pipeline: it reduces after every micro-batch. Llama 3 does it |
#
# ## Three exercises
#
# **1.** 1,024 GPUs, 8 in a machine, tensor 8, pipeline 16, data 8, tensor fastest, then data. In which machine (from 0) is
# the rank at `(pipeline, data, tensor) = (3, 2, 5)`?
#
# **2.** All 560 servers, 4,480 GPUs, train MT-NLG: 8 tensor × 35 pipeline. The batch is 1,920 sequences, one in a micro-batch. How many
# micro-batches does each pipeline get? (A lecture says that MT-NLG "used 280 A100s". Those hold *one* copy.)
#
# **3.** A checkpoint takes 30 seconds, a failure comes every 8 hours. Over an interval of $t$ seconds you lose
# $\frac{30}{t}$ of the time to writing and $\frac{t/2}{8 \cdot 3600}$ to steps taken again. Which $t$ is best, in
# minutes? (The minutes of the restart itself come on top, whatever $t$ is.)

# %%
answer_1 = None  # machine

self_check(answer_1, turns.EXERCISES[0], hint="How many ranks are there to a stage?")

# %%
answer_2 = None  # micro-batches

self_check(answer_2, turns.EXERCISES[1], hint="How many replicas are there?")

# %%
answer_3 = None  # minutes

self_check(answer_3, turns.EXERCISES[2], tolerance=0.02, hint="One loss falls with t, one grows. Where are they equal?")

# %% [markdown]
# <details><summary>Answers</summary>
#
# **1.** Rank 3 · 64 + 2 · 8 + 5 = 213, in machine 26. **2.** 4,480 / 280 = 16 replicas, so 120. **3.** Both losses are
# equal at $\sqrt{2 \cdot 30 \cdot 28{,}800} = 1{,}315$ s, about 22 minutes.
#
# </details>
#
# **To read on:** [Megatron-LM on 3,072 GPUs](https://arxiv.org/abs/2104.04473) (§3 has the rules),
# [MT-NLG](https://arxiv.org/abs/2201.11990), [GPT-NeoX-20B](https://arxiv.org/abs/2204.06745),
# [Llama 3](https://arxiv.org/abs/2407.21783) (§3.3), [GSPMD](https://arxiv.org/abs/2105.04663), and
# [DeviceMesh and DTensor](https://docs.pytorch.org/docs/stable/distributed.tensor.html).
#
# **The lab**, `labs/lab12_3d_parallelism`, has you build the groups and the loss for a cube of your own.
