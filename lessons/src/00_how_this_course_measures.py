# %% [markdown]
# # 00 · How this course measures
#
# **The question:** how do I know what my code costs?
#
# | | |
# |---|---|
# | Time | 35 minutes, of which about half a minute is computing on 2 CPU cores |
# | A GPU | changes nothing here: the formulas are the same, the seconds get shorter |
# | Opens | `model/gpt.py`, `model/text.py`, `train/step.py`, `compare.py`, `predict/`, `measure/`, `ranks/` |
#
# Someone tells you: *this model needs eight GPUs*. Does it? Perhaps they counted bytes. Perhaps they tried seven and
# it crashed. Perhaps they read it somewhere.
#
# In this course nobody gets away with that, least of all the course itself. Each claim goes through the same three
# steps. You **guess**, before anything runs. A **formula** says what should come out. A **measurement** says what
# did. The three stand in one table, and if formula and measurement disagree, the notebook stops with an error.
#
# There are only three things to count: bytes that a device **holds**, operations that it **computes**, and bytes that
# it **sends**. By the end of this page you will have counted all three for a real training step, the last one across
# four real processes.

# %%
import math

import torch
import torch.distributed as dist

from course_lib import measure, predict, ranks
from course_lib.compare import compare
from course_lib.figures.collectives import all_reduce_in_two_passes
from course_lib.figures.losses import loss_curves
from course_lib.figures.memory import memory_timeline
from course_lib.model import text, zoo
from course_lib.model.gpt import GPT, Attention, GPTConfig
from course_lib.notebook import ask, self_check, show
from course_lib.train.step import train_step
from course_lib.units import Bytes, Count, Flops, FlopsPerSecond, Ratio

# %% [markdown]
# ## 1 · A model that you can hold in your hand
#
# Here is a GPT. It is the architecture of GPT-2, 150 times smaller, so that a laptop can train it. Four layers; each
# token is a vector of 128 numbers, its *width*; four attention heads look back over at most 128 tokens, the
# *context*. Its vocabulary has 256 entries because its tokens are bytes, and a byte has 256 values.
#
# The library that you import is meant to be read. `show` prints the source of anything in it, and the source that you
# read is the source that runs. Here is the heart of the model, attention. (B, H, S, K in a name are the tensor's
# dimensions: batch, heads, sequence, width of a head.)

# %%
SMALL = GPTConfig(layers=4, width=128, heads=4, vocab_size=256, context=128)
model = GPT(SMALL, seed=0)

show(Attention.explicit)

# %% [markdown]
# How many numbers does the model have to learn? Each of the four layers has its matrices: three of 128 × 128 that
# make queries, keys and values, one that mixes the heads, and two of 128 × 512 in a small network that looks at each
# token alone (a multi-layer perceptron, MLP). Together they are 12 times the square of the width.
#
# **Before you run the cell after the next**, guess. Not by adding up everything; by the largest thing that you see.

# %%
guess_parameters = ask("How many parameters does the model have?")

# %% [markdown]
# The whole count has four terms. With $L$ layers, width $d$, vocabulary $V$ and context $S$:
#
# $$N = \underbrace{12\,L\,d^2}_{\text{matrices}} + \underbrace{13\,L\,d}_{\text{biases and norms}}
# + \underbrace{(V + S)\,d}_{\text{embeddings}} + \underbrace{2\,d}_{\text{last norm}}$$
#
# (The shapes of Radford et al. 2019, Table 2, counted. There is no matrix for the output: the model uses the
# embeddings of its tokens again, they are *tied*.) The measurement is not a formula. It walks over the tensors.

# %%
compare(
    guess=guess_parameters,
    predicted=predict.parameters(SMALL),
    measured=Count(sum(p.numel() for p in model.parameters())),
    tolerance=0,
    name="parameters",
)

# %% [markdown]
# The ratio is 1, exactly, and the last column says that nothing less was accepted: `tolerance=0`. The matrices alone
# are $12 \cdot 4 \cdot 128^2 = 786{,}432$. If you guessed by them, you were within 7 %, and that is how people in
# this field guess: $12 L d^2$, and the rest is small. It gets smaller still for larger models, because the square
# grows faster than the rest.
#
# What does a failed claim look like? Somebody writes the formula from memory and takes $4\,d^2$ instead of $12\,d^2$
# for a layer. They forgot the MLP.

# %% tags=["raises-exception"]
wrong = Count(4 * 4 * 128**2 + 13 * 4 * 128 + (256 + 128) * 128 + 2 * 128)
compare(predicted=wrong, measured=Count(sum(p.numel() for p in model.parameters())), name="parameters")

# %% [markdown]
# An error, not a shrug. It says what was predicted, what was measured, and how far they are apart. (The notebook goes
# on because this cell is marked as a failure on purpose. There will be more of those; they are where the learning
# is.)
#
# ## 2 · One step, the oracle
#
# A language model learns from text, and you have some on your disk already: Python ships its own manual. No download,
# half a megabyte of real English with code in it.

# %% tags=["varies"]
manual = text.python_manual()
inputs, targets = batch = manual.batch(seed=0, step=0, rank=0, batch_size=8, context=128)
print(bytes(inputs[0, :60].tolist()))
print(bytes(targets[0, :60].tolist()))

# %% [markdown]
# The second line is the first one, moved by one byte: at each position the model sees the text so far and should name
# the next byte. `inputs` and `targets` are 8 sequences of 128 bytes each, 1,024 tokens in one step.
#
# Notice the arguments. A batch is a function of `seed`, `step` and `rank`, and of nothing else. Ask twice, and you
# get the same bytes twice; ask from another process with its own `rank`, and you get that process's share. Much
# later, when training runs on many machines, this is what lets us replay any step on one.
#
# And this is a training step, all of it:

# %%
show(train_step, docstring=False)

# %% [markdown]
# Remember it. Whatever clever way of training you build in this course, sharded, pipelined, in 16 bits, it must end
# with the weights that *this* function produces. It is the **oracle** of every test in the library.
#
# What loss should a model have that has learned nothing? It should find all 256 bytes equally likely. The loss is the
# surprise about the right one, in *nats*: $-\ln \frac{1}{256} = \ln 256$.

# %%
guess_loss = ask("What is the loss before any training, in nats?")

# %% tags=["varies"]
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loss = train_step(model, optimizer, batch)

compare(
    guess=guess_loss, predicted=Ratio(math.log(256)), measured=Ratio(loss.item()), tolerance=0.03, name="first loss"
)

# %% [markdown]
# Close, and this time we did not ask for equality. Fresh weights are small random numbers, so the model is *almost*
# indifferent between the bytes; 3 % leaves room for the almost. The rule for tolerances in this course: bytes,
# operations and messages are counted, so they must be equal. Where numbers are rounded or random, or where somebody
# adds something to them on the way, the tolerance is stated beforehand, and you may ask where it comes from.
#
# ## 3 · Bytes that a device holds
# The weights are stored as 32-bit numbers, 4 bytes each. The next cell prints that in MiB ($2^{20}$ bytes) and in MB
# ($10^6$). At this size the two differ by 5 %, at the size of a GPU's memory (GiB against GB) by 7 %, and slides
# confuse them all the time. `Bytes` prints the one that you ask for and never calls one by the other's name. (This
# course counts in MiB and GiB what a device holds, as cards are sold, and in kB, MB and GB what a rank sends, as
# networks are.)
#
# Besides them a training step needs a **gradient** for each weight, and AdamW, a variant of Adam, keeps two more
# numbers for each (a running mean of the gradient, and one of its square).
#
# `measure.memory` watches every tensor that is born and every one that dies while its block runs, and sorts their
# bytes into five categories: parameters, gradients, what the optimizer keeps, *activations* (results of the forward
# pass that the backward pass will need) and *temporaries* (everything else, on its way from one operation to the
# next). It counts storages, not names: two views of one tensor are one. So, how much memory is in use at the worst
# moment of a step?
#
# The formulas want to know what we are about to train, and how: the model, its batch, the optimizer. A
# `predict.Setup` holds all that in one value. What we do not say has a default; the optimizer's is Adam.

# %%
setup = predict.Setup(SMALL, batch_size=8, seq=128)
weights = Bytes(4 * predict.parameters(SMALL))
print(f"weights: {weights:MiB}, or {weights:MB}")

guess_peak = ask("How many MiB are alive at the peak of one training step?", unit="MiB")

# %%
with measure.memory(model, optimizer) as record:
    train_step(model, optimizer, batch)

memory_timeline(record).show()
compare(
    guess=guess_peak,
    predicted=predict.peak(setup),
    measured=record.peak,
    tolerance=0,
    unit="MiB",
)

# %% [markdown]
# If you said 13 MiB, you counted weights, gradients and two numbers for Adam, four times 3.2. All of those exist. But
# look at the second line: at the worst moment there is not even a gradient yet. The memory went into the activations.
# The forward pass leaves behind every intermediate result that the backward pass will need, and there are far more of
# those than there are weights.
#
# The picture shows when. Weights and Adam's state, at the bottom, are always there. The forward pass piles up
# activations, layer upon layer. At the top of the hill the loss is known, and the backward pass begins. It eats the
# pile from the top, and the gradients grow as it shrinks.
#
# That hill is why this course exists. It is made of *batch size × sequence length × layers* (and, in attention, of
# the sequence length squared), and you want all of them to be large. Lesson 02 takes it apart byte by byte, and
# lesson 03 flattens it.
#
# **Change one thing.** Set `batch_size=4` in the cell that made the batch and run from there to here. Which lines of
# the table halve, and which do not move? Decide first. (The lines that halve are those that the batch flows through.
# Set it back afterwards.)
#
# ## 4 · Operations that a device computes
#
# A matrix product of $(m \times k)$ with $(k \times n)$ needs $2mkn$ operations: a multiplication and an addition for
# each triple. Nearly all of a transformer's work is of that kind. Each parameter in a matrix meets each token once on
# the way forward, and the backward pass does two products where the forward pass did one. That gives the most used
# rule of thumb in the field: with $N$ parameters and $D$ tokens,
#
# $$C \approx 6\,N\,D \quad \text{operations}$$
#
# (Kaplan et al. 2020, §2.1). Our step has 1,024 tokens. Multiply.

# %%
guess_flops = ask("How many GFLOP (billions of operations) does one training step compute?", unit="GFLOP")

# %% [markdown]
# `predict.step_flops` is longer than the rule of thumb: it adds up every matrix product of the model, those of
# attention included. `measure.flops` does not know our model at all. It hands out the count that PyTorch keeps of what
# it executes.

# %%
with measure.flops() as counted:
    train_step(model, optimizer, batch)

rule = predict.training_flops(predict.parameters(SMALL), tokens=inputs.numel())
exact = predict.step_flops(setup)
display(compare(predicted=rule, measured=counted.total, tolerance=0.15, name="6 N D", unit="GFLOP"))
compare(guess=guess_flops, predicted=exact, measured=counted.total, tolerance=0, name="every product", unit="GFLOP")

# %% [markdown]
# The long formula is exact. The rule of thumb is a ninth too low, and you can say why. It counts biases and
# positions, which multiply nothing; that makes it a little too high. And it forgets that attention multiplies
# activations with activations, every token with every other, and no parameter has a part in that; that makes it much
# too low. The share grows with the context. Here the context is as long as the model is wide; in GPT-3 the context is
# 2,048 and the width 12,288, and nobody misses it.
#
# An operation is not a second. How fast does this machine do them?

# %% tags=["varies"]
step_time = measure.seconds(lambda: train_step(model, optimizer, batch), repeats=5)
speed = FlopsPerSecond(counted.total / step_time)
print(f"{step_time} a step, so {speed:.0GFLOP/s} on {torch.get_num_threads()} thread(s)")

# %% [markdown]
# That is the first number on this page that differs from machine to machine, and on one machine from hour to hour. So
# the course never builds an argument on seconds alone. Bytes and operations are facts about the *program*; seconds
# are a fact about a program, a machine and an afternoon.
#
# ## 5 · Does it learn?
#
# Counting is pointless if the thing that we count does not work. A text from a known source lets us say how well it
# *can* work. `text.stories` writes English sentences by throwing dice in a small grammar. We know the dice, so we
# know exactly how much surprise is left for a perfect reader: the **entropy** of the text. No model can get below it.
#
# To keep you waiting for seconds only, the reader that we train is a little smaller than before: two layers and a
# context of 64 bytes. It takes its positions from rotations instead of a table, a switch of `GPTConfig` that helps it
# to start.

# %%
stories = text.stories(seed=0)
sample, _ = stories.batch(seed=1, step=0, rank=0, batch_size=200, context=100)
print(bytes(sample[:2].flatten().tolist()).decode())
print(f"entropy: {stories.entropy_per_byte:.3f} nats a byte")

guess_reader = ask("What will the loss be after 200 steps, in nats a byte?")

# %%
READER = GPTConfig(layers=2, width=128, heads=4, vocab_size=256, context=64, positions="rotary")
reader = GPT(READER, seed=0)
adam = torch.optim.AdamW(reader.parameters(), lr=5e-3, betas=(0.9, 0.95))
losses = []
for step in range(200):
    losses.append(train_step(reader, adam, stories.batch(seed=0, step=step, rank=0, batch_size=16, context=64)).item())

# %% tags=["varies"]
floor, last = Ratio(stories.entropy_per_byte), Ratio(sum(losses[-10:]) / 10)
loss_curves(
    {"loss": losses},
    levels={
        "knows nothing": math.log(256),
        "knows how often each letter occurs": text.ngram_entropy(bytes(sample.flatten().tolist()), n=1),
        "knows everything": floor,
    },
    caption="The loss rests on the middle line, where the model knows letters and no words, then falls on.",
    alt="The loss falls within 10 steps from 5.5 to 3 nats, the entropy of single letters, stays there for some "
    "20 steps and then falls on, to about 1 nat at step 200. The floor is at 0.22 nats.",
).show()
compare(guess=guess_reader, predicted=floor, measured=last, tolerance=None, columns=("floor", "measured"), name="loss")

# %% [markdown]
# Look at the shelf in the curve. First the model learns how often each letter occurs, and there it rests: the middle
# line is all that letters alone can give. Then it finds out that letters follow each other, and falls on. The ratio
# says how far from perfect it still is, and it can only be above 1. Had the loss come out *below* the floor, we would
# not celebrate. We would look for the bug, most likely a target that leaks into the input. A known floor is an
# instrument too.
#
# (`tolerance=None` means: shown, not checked. How far a model gets in 200 steps is an observation; a formula for it
# has to wait for lesson 14.)
#
# ## 6 · Four processes
#
# Everything so far ran in one process. The rest of the course needs several that work together, each with its own
# memory, like GPUs in a rack. In this field each of them is called a **rank**, numbered from 0, and their number is
# the **world size**. Here is a function. It is defined in this cell, in no file, and it runs in four new processes:


# %%
def hello():
    rank, world_size = dist.get_rank(), dist.get_world_size()
    print(f"I am one of {world_size}")
    return rank**2


ranks.run(hello, world_size=4)

# %% [markdown]
# Real processes, each with its own Python. What they print appears with their rank in front; what they return comes
# back as a list in rank order. The first call starts them, the later ones find them waiting:

# %% tags=["varies"]
measure.seconds(lambda: ranks.run(dist.get_rank, world_size=4), repeats=20)

# %% [markdown]
# ## 7 · Bytes that a rank sends
#
# Ranks share nothing. If they are to train one model together, they must send each other numbers, and the most
# important way to do it is the **all-reduce**: each rank brings a tensor, and afterwards each rank holds the sum of
# all of them.


# %%
def add_up():
    mine = torch.full((3,), float(dist.get_rank() + 1))
    dist.all_reduce(mine)
    return mine.tolist()


ranks.run(add_up, world_size=4)

# %% [markdown]
# 1 + 2 + 3 + 4 = 10, on all four. But who paid? Suppose each rank brings 4 MB, and there are $p$ ranks. A rank cannot
# know the sum without hearing of the other $p - 1$ tensors. Must it then receive, and so somebody send, $(p-1) \times
# 4$ MB?

# %%
guess_traffic = ask("How many MB does each of 4 ranks send to all-reduce a tensor of 4 MB?", unit="MB")

# %% [markdown]
# It need not, and here is the trick. Cut the tensor into $p$ parts. First each rank collects *one* part from
# everybody and adds it up: it sends away the other $p-1$ parts, a share of $\frac{p-1}{p}$. Then each rank hands its
# finished part to everybody: the same share again. With $n$ bytes in the tensor each rank sends
#
# $$2\,\frac{p-1}{p}\,n \quad\text{bytes}$$
#
# (Patarasuk and Yuan 2009; lesson 06 builds it). However many ranks join, nobody sends more than $2n$.
#
# To measure it, `measure.traffic` asks the operating system how many bytes left this process through its network
# sockets. No formula is involved: whatever the backend does, it must pass that gate. (Linux keeps such a count. macOS
# and Windows tell nobody; there the table says *attributed*: a formula's bytes, which prove nothing.)


# %%
def all_reduce_traffic(n_bytes):
    tensor = torch.ones(n_bytes // 4)
    with measure.traffic() as sent:
        dist.all_reduce(tensor)
        dist.barrier()
    return sent.sent_bytes


# %%
n_bytes, worlds = 4_000_000, (2, 3, 4)
all_reduce_in_two_passes(
    world_size=4,
    caption="Each pass moves 3/4 of the tensor out of each rank. A striped cell is a finished sum: after the first pass "
    "each rank owns one, after the second everybody has all.",
).show()
compare(
    guess={"4 ranks": guess_traffic},
    predicted={f"{p} ranks": predict.all_reduce(n_bytes, world_size=p).bytes for p in worlds},
    measured={f"{p} ranks": max(ranks.run(all_reduce_traffic, n_bytes, world_size=p)) for p in worlds},
    tolerance=0.01,
    unit="MB",
)

# %% [markdown]
# The measured numbers are a hair above the formula. The hair is made of *headers*, a few dozen bytes with each
# message that say what it is, and of the barrier at the end, which is a message too. That is what the 1 % was for.
# For 4 MB that is nothing. For 4 bytes it would be almost everything, and lesson 06 is about the difference.
#
# ## 8 · All three at once: train on four ranks
#
# You now hold every piece of **data parallelism**, the oldest way to train on many devices. Every rank has a copy of
# the model, takes a quarter of the batch, computes its gradients, and then all ranks average their gradients with an
# all-reduce. If that is right, four ranks with 2 sequences each must end with the weights of one process with 8. (The
# number of ranks must divide the batch. Otherwise some ranks would have more sequences than others, and the mean of
# their means would be wrong; lesson 05 is about that.)
#
# And the price? The gradients are as large as the weights, 4 bytes each, and all of them go through an all-reduce.

# %%
guess_step = ask("How many MB does each of the 4 ranks send for one training step?", unit="MB")


# %%
def data_parallel_step(config, inputs, targets):
    rank, p = dist.get_rank(), dist.get_world_size()
    model = GPT(config, seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = model(inputs.chunk(p)[rank], targets.chunk(p)[rank])
    loss.backward()
    with measure.traffic() as sent:
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= p
        dist.barrier()
    optimizer.step()
    return [parameter.detach() for parameter in model.parameters()], sent.sent_bytes


replicas = ranks.run(data_parallel_step, SMALL, inputs, targets, world_size=4)

# %%
oracle = GPT(SMALL, seed=0)
train_step(oracle, torch.optim.SGD(oracle.parameters(), lr=0.1), batch)

worst = max(
    (mine - truth).abs().max().item()
    for copy, _ in replicas
    for mine, truth in zip(copy, oracle.parameters(), strict=True)
)
assert worst < 1e-6, f"a replica is off by {worst}"

sent = max(sent for _, sent in replicas)
predicted = predict.all_reduce(weights, world_size=4).bytes
compare(guess=guess_step, predicted=predicted, measured=sent, tolerance=0.05, name="sent by a rank", unit="MB")

# %% [markdown]
# The `assert` passed: not one of 842,496 weights on any of the four ranks is off by a millionth. They are not equal
# to the last bit, and they should not be: a sum of four quarters is rounded in another order than a sum of eight.
#
# The traffic is two per cent above the formula, where a single large tensor was at 0.03 %. The model has 52 parameter
# tensors, and each of them went through an all-reduce of its own, headers included; hence the wider tolerance.
# (Lesson 07 packs them into buckets.) Still: you have just predicted the network traffic of a distributed training
# step from nothing but the number of parameters.
#
# ## 9 · What goes wrong, part one: a rank that raises
#
# With one process an error is an error. With four, one of them fails while three are waiting for it, and the real
# message drowns. Here rank 2 divides by zero on its way to the all-reduce. What will the other three do?


# %% tags=["raises-exception"]
def one_bad_apple():
    rank = dist.get_rank()
    share = 1.0 / (2 - rank)
    tensor = torch.tensor([share])
    dist.all_reduce(tensor)
    return tensor.item()


ranks.run(one_bad_apple, world_size=4)

# %% [markdown]
# Read the report from the top. One sentence says what happened. Then each rank says how it ended: rank 2 raised, with
# the line of the cell; the others were waiting, in the all-reduce, for a partner that will never come. Nothing hangs.
# The four processes have been replaced by fresh ones, and the next cell will find those.
#
# ## 10 · What goes wrong, part two: the deadlock
#
# The next bug is the one that costs people their weekends, because *nothing fails*. Somebody wants to print the mean
# loss, but only once, so they put it inside `if rank == 0`. Look at the cell before you run it. Who waits for whom?


# %% tags=["raises-exception"]
def print_mean_loss():
    loss = torch.tensor([2.5 + dist.get_rank()])
    if dist.get_rank() == 0:
        dist.all_reduce(loss)
        print(f"mean loss: {loss.item() / dist.get_world_size()}")


_ = ranks.run(print_mean_loss, world_size=4, timeout_s=10)

# %% [markdown]
# An all-reduce is a meeting: it takes place when *everybody* has come. Rank 0 sits in the room. The others have left
# the building, content. On a cluster this run would sit there, at full price, until a timeout strikes (PyTorch waits
# 10 minutes, or 30, depending on the backend); and then the message would be "timed out".
#
# `ranks.run` watches who has called what, so it can *prove* that the meeting will never happen, and it says so at
# once instead of waiting for the 10 seconds to pass.
#
# **Repair it.** Move one line out of the `if`. Which one, and which must stay inside? Here is the repaired cell;
# everyone comes to the meeting, and only one writes the minutes:


# %%
def print_mean_loss():
    loss = torch.tensor([2.5 + dist.get_rank()])
    dist.all_reduce(loss)
    if dist.get_rank() == 0:
        print(f"mean loss: {loss.item() / dist.get_world_size()}")


_ = ranks.run(print_mean_loss, world_size=4)

# %% [markdown]
# ## 11 · Can you trust our instruments?
#
# You should ask. An instrument that is built by the people who make the claims needs an independent witness.
#
# The count of operations is not ours: `measure.flops` asks PyTorch's own counter, and adds the one attention kernel that
# it leaves out on a CPU. So far you took its word. Here is a witness that is ours, and short enough to read. It sees
# every operation of PyTorch pass by, and where one is a matrix product, it adds up $2mkn$.

# %%
show(measure.MatrixProducts)

# %% [markdown]
# The account of memory *is* ours. Its witness comes with PyTorch: a tracker that its engineers use to plan runs. All
# four shall watch the same step.

# %%
from torch.distributed._tools.mem_tracker import MemTracker

torch_memory = MemTracker()
torch_memory.track_external(model, optimizer, *batch)
with (
    torch_memory,
    measure.memory(model, optimizer) as our_memory,
    measure.flops() as torch_flops,
    measure.MatrixProducts() as our_products,
):
    train_step(model, optimizer, batch)

peaks = torch_memory.get_tracker_snapshot("peak").values()
compare(
    predicted={"peak memory": our_memory.peak.total, "operations": our_products.flops},
    measured={"peak memory": Bytes(next(iter(peaks))["Total"]), "operations": torch_flops.total},
    columns=("this course", "PyTorch"),
)

# %% [markdown]
# ## 12 · The same formulas, 200,000 times larger
#
# A formula that is exact for 0.8 million parameters has no reason to stop there. GPT-3's paper prints the shape of
# the model (96 layers of width 12,288) and, in Table D.1, its size and what training it took on 300 billion tokens.
# Our formulas get to see the shape and the tokens, nothing else.

# %%
gpt3 = zoo.GPT3_175B
training = predict.training_flops(predict.parameters(gpt3), tokens=300e9)
in_16_bits = Bytes(2 * predict.parameters(gpt3))
print(f"training: {training:.0PF-day}; weights in 16 bits: {in_16_bits:.0GB}, or {in_16_bits:.0GiB}")

compare(
    predicted={"parameters": predict.parameters(gpt3), "operations": training},
    measured={"parameters": Count(gpt3.parameters), "operations": Flops(314 * 10**21)},
    tolerance=0.01,
    columns=("our formula", "the paper"),
)

# %% [markdown]
# (Brown et al. 2020, Tables 2.1 and D.1.) A PF-day is a day at $10^{15}$ operations a second, more than most GPUs
# reach; so one such device would need ten years. It would first need a place for the weights. An H100 has 80 GB, and
# weights are only the beginning: you saw what stands on top of them.
#
# *Bigger than one GPU* is not a figure of speech. The rest of the course is about what to do.
#
# ## What to keep
#
# | Question | Formula | Instrument |
# |---|---|---|
# | How many parameters? | $12Ld^2 + 13Ld + (V+S)d + 2d$ | count the tensors |
# | What does a device hold? | weights + Adam's two numbers each + activations, at the peak | `measure.memory` |
# | What does it compute? | $\approx 6ND$, or all matrix products exactly | `measure.flops` |
# | What does a rank send? | $2\frac{p-1}{p}n$ for an all-reduce of $n$ bytes | `measure.traffic` |
# | Is it right? | the oracle: `train_step` on one device | the largest difference |
#
# And one habit: guess first. A wrong guess teaches more than a late one.
#
# ## Three exercises
#
# **1.** GPT-2 XL has 48 layers of width 1,600, a vocabulary of 50,257 and a context of 1,024. Its paper prints 1,542
# million parameters, and the paper is wrong. How many are there, to the last one? (Section 1 has the formula.)
#
# **2.** Sixteen ranks all-reduce gradients of 1 GB. How many GB does each of them send?
#
# **3.** Two ranks want to swap a number: each sends its own and receives the other's. Run them and they deadlock.
# Read the report, then repair `swap` so that both return what the other one sent.

# %%
answer_1 = None  # a number of parameters

self_check(answer_1, predict.parameters(zoo.GPT2_XL), hint="Four terms, the largest is 12 · 48 · 1600².")

# %%
answer_2 = None  # GB sent by each of 16 ranks

sixteen = predict.all_reduce(Bytes(10**9), world_size=16).bytes.to("GB")
self_check(answer_2, sixteen, tolerance=0.001, hint="2 (p - 1) / p, and p is 16. Does it come out below 2?")


# %%
def swap():
    me, other = dist.get_rank(), 1 - dist.get_rank()
    mine, theirs = torch.tensor([float(me)]), torch.empty(1)
    dist.send(mine, dst=other)
    dist.recv(theirs, src=other)
    return theirs.item()


answer_3 = None  # replace None by ranks.run(swap, world_size=2, timeout_s=10)

self_check(answer_3, [1.0, 0.0], hint="A send is over when somebody receives. Who could be the first to receive?")

# %% [markdown]
# [Lesson 01 · Float formats](01_float_formats.ipynb) asks what a number costs, and what you lose when you make it
# smaller. This lesson has no lab.
#
# (Lessons 00 to 05 are Part A of the course, one device. Part B, many devices, begins with lesson 06. Lesson 11
# and those from 13 on are not written yet: where a page says that one of them builds something, take it as a promise.)
