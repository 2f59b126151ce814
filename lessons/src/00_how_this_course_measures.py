# %% [markdown]
# # 00 · How this course measures
#
# **The question:** how do I know what my code costs?
#
# | | |
# |---|---|
# | Time | first sitting 45 minutes, second sitting 25; about half a minute of both together is computing on 2 CPU cores |
# | A GPU | is not needed: all counts are the CPU's (what a GPU keeps besides, lesson 02 says) |
# | Opens | `model/gpt.py`, `train/step.py`, `predict/flops.py` |
#
# A colleague tells you: *this model needs eight GPUs*. Does it? Perhaps she counted bytes, perhaps she tried seven and it
# crashed. In this course you find out. You **guess**, before anything runs. A **formula** says what should come out, and a
# **measurement** says what did. The three stand in one table, and if formula and measurement disagree, the notebook stops.
#
# There are three things to count: bytes that a device **holds**, operations that it **computes**, and bytes that it
# **sends**. You will count all three for a real training step, the last one across four processes.

# %%
import math

import torch
import torch.distributed as dist

from course_kit import measure, ranks
from course_kit.compare import compare
from course_kit.notebook import ask, show, your_turn
from course_kit.units import Bytes, Count, FlopsPerSecond, Ratio  # numbers that know their unit
from course_lib import predict
from course_lib.model import text
from course_lib.model.gpt import GPT, Attention, Block, GPTConfig
from course_lib.train.step import train_step
from course_pages.lesson00 import turns
from course_pages.shared.collectives import all_reduce_in_two_passes
from course_pages.shared.memory import memory_timeline

# %% [markdown]
# ## 1 · A model that you can hold in your hand
#
# Here is a GPT-2, 150 times smaller than the smallest one: four layers, called **blocks**; a vector of 128 numbers, the
# *width*, for each token; four attention heads, which look back over at most 128 tokens, the *context*. Tokens are bytes,
# so the vocabulary has 256 entries.
#
# `show` prints the source of anything in the library, here of a block. (The letters behind a name are the tensor's
# dimensions: B sequences of S tokens, D numbers for each.)
#
# How many numbers does the model have to learn? In each block, attention has three matrices of 128 × 128 that make
# queries, keys and values, and a fourth that mixes the heads. The MLP (multi-layer perceptron), a small network for each
# token alone, has one of 128 × 512 and one of 512 × 128. **Guess, then run on.** Do not add up everything: take the largest things.

# %%
SMALL = GPTConfig(layers=4, width=128, heads=4, vocab_size=256, context=128)
model = GPT(SMALL, seed=0)

show(Block)

# %%
guess_parameters = ask("How many parameters does the model have?")

# %% [markdown]
# With a width of $d$, four matrices of $d^2$ and two of $4d^2$ are $12d^2$ in a block. Their biases are $3d + d + 4d + d$, and
# its two norms have a gain and a bias each, $4d$: together $13d$. With $L$ layers, vocabulary $V$ and context $S$:
#
# $$N = \underbrace{12\,L\,d^2}_{\text{matrices}} + \underbrace{13\,L\,d}_{\text{biases and norms}}
# + \underbrace{(V + S)\,d}_{\text{embeddings: tokens, positions}} + \underbrace{2\,d}_{\text{last norm}}$$
#
# (Radford et al. 2019, Table 2. The output uses the tokens' embeddings again, they are *tied*.) The measurement is no
# formula: it walks over the tensors.

# %%
compare(
    guess=guess_parameters,
    predicted=predict.parameters(SMALL),
    measured=Count(sum(p.numel() for p in model.parameters())),
    tolerance=0,
    name="parameters",
)

# %% [markdown]
# The ratio, measured over predicted, is 1, exactly: `tolerance=0` accepts nothing less. And a failed claim? Suppose you
# forget the MLP, and take $4\,d^2$ for a layer.

# %% tags=["raises-exception"]
wrong = Count(4 * 4 * 128**2 + 13 * 4 * 128 + (256 + 128) * 128 + 2 * 128)
compare(predicted=wrong, measured=Count(sum(p.numel() for p in model.parameters())), name="parameters")

# %% [markdown]
# An error, on purpose. The notebook goes on.
#
# ## 2 · One step, the oracle
#
# A language model learns from text, and Python brings some: its manual. `inputs` and `targets` are 8 sequences of 128
# bytes, 1,024 tokens in a step. `targets` are `inputs` moved by one byte, since at each position the model should name
# the next one.
#
# Below is a training step, all of it. Whatever clever way of training you build, it must end with the weights that *this*
# function produces: the **oracle**.
#
# The loss is the model's surprise about the right byte, the negative natural logarithm of the probability that it gave it, in
# *nats*. What loss should a model have that has learned nothing?

# %%
show(train_step, docstring=False)

# %%
guess_loss = ask("What is the loss before any training, in nats?")

# %% tags=["varies"]
manual = text.python_manual()
inputs, targets = batch = manual.batch(seed=0, step=0, rank=0, batch_size=8, context=128)
print(bytes(inputs[0, :60].tolist()))
print(bytes(targets[0, :60].tolist()))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loss = train_step(model, optimizer, batch)
at_first = Ratio(loss.item())
compare(guess=guess_loss, predicted=Ratio(math.log(256)), measured=at_first, tolerance=0.03, name="first loss")

# %% [markdown]
# A model that knows nothing finds all 256 bytes equally likely: $-\ln \frac{1}{256} = 5.545$. Ours is a little lower,
# since its output shares the input's weights: it leans towards the byte just read, and spaces, for one, come in
# runs. What is counted must be equal. Where rounding, chance, a message's header or a rule of thumb has a part, a
# tolerance is stated beforehand.
#
# ## 3 · Bytes that a device holds
#
# Weights are 32-bit numbers, 4 bytes each. (This course counts what a device holds in MiB, $2^{20}$ bytes, and what is
# sent in MB, $10^6$ bytes.) A step also needs a **gradient** for each weight, and AdamW, a variant of Adam, keeps two
# more numbers: running means of the gradient and of its square.
#
# `measure.memory` watches tensors being born and dying, and sorts their bytes into parameters, gradients, optimizer,
# *activations* (results of the forward pass that the backward pass will need) and *temporaries* (on their way from one
# operation to the next). How much is in use at the worst moment of a step?

# %%
weights = Bytes(4 * predict.parameters(SMALL))
print(f"weights: {weights:MiB}, or {weights:MB}")

# %%
guess_peak = ask("How many MiB are alive at the peak of one training step?", unit="MiB")

# %%
with measure.memory(model, optimizer) as record:
    train_step(model, optimizer, batch)

memory_timeline(record)

# %% [markdown]
# If you said 13 MiB, you counted weights, gradients and two numbers for Adam: four times 3.2. But the hill is
# activations. The forward pass piles them up, block upon block, and the backward pass eats the pile from the top.
#
# Can we predict the hill? The backward pass of a product needs both factors; that of a norm needs the norm's input,
# and that of a GELU, the bend inside the MLP, the GELU's. Walk through a block and write down what is read again. B = 8 sequences,
# S = 128 tokens, D = 128 numbers for each, H = 4 heads, F = 512 inside the MLP:
#
# | what a block keeps | numbers |
# |---|---|
# | two norms: input, and result (a product's factor) | $4BSD$ |
# | attention: queries, keys, values | $3BSD$ |
# | attention: its weights, token by token | $BHSS$ |
# | attention: what the heads gathered | $BSD$ |
# | the MLP: before and after the GELU | $2BSF$ |
#
# Behind the last block come a norm again and a log-probability for each of $V = 256$ bytes at each token, $BSV$. At the peak the backward pass has just begun: no weight has its gradient, and two gradients of that size are temporaries.

# %%
B, S, D, H, F, V = 8, 128, 128, 4, 512, 256
block = 8 * B * S * D + B * H * S * S + 2 * B * S * F
kept, on_their_way = Bytes(4 * (4 * block + 2 * B * S * D + B * S * V)), Bytes(4 * 2 * B * S * V)
print(f"by hand: {kept:MiB} of activations and {on_their_way:MiB} of temporaries")

setup = predict.Setup(SMALL, batch_size=8, seq=128)  # what is trained, and how; by default with Adam
compare(guess=guess_peak, predicted=predict.peak(setup), measured=record.peak, tolerance=0, unit="MiB")

# %% [markdown]
# `predict.peak` picks up the crumbs as well: means of the norms, the mask, the tokens. The hill is *batch × sequence ×
# layers*, and in attention the sequence squared. You want all of them large: hence this course.
#
# ## 4 · Operations that a device computes
#
# A matrix product of $(m \times k)$ with $(k \times n)$ needs $2mkn$ operations: a multiplication and an addition for
# each triple. Nearly all of a transformer's work is of that kind. In the forward pass every parameter of a matrix is
# multiplied with every token and added to a sum: two operations. In the backward pass each product gives rise to two
# more, one for the gradient of each of its factors: four operations. So the rule of thumb is 6 for each parameter and
# token (Kaplan et al. 2020, §2.1; they leave out embeddings, we count all parameters). Our step has 1,024 tokens. Multiply.

# %%
guess_flops = ask("How many GFLOP (billions of operations) does one training step compute?", unit="GFLOP")

# %%
with measure.flops() as counted:  # PyTorch's own count of what it executes
    train_step(model, optimizer, batch)

rule = predict.training_flops(predict.parameters(SMALL), tokens=inputs.numel())
compare(guess=guess_flops, predicted=rule, measured=counted.total, tolerance=0.15, name="6 × parameters × tokens", unit="GFLOP")

# %% [markdown]
# The step computes an eighth more than the rule says. What has it forgotten? Look at attention's two `@`. (H heads, K numbers in each; dropout is off.)

# %%
show(Attention.explicit)

# %% [markdown]
# In each head the queries, S × K, meet the keys, K × S, and the result meets the values. Neither product has a parameter.
#
# **Your turn.** Replace the dots. (The check watches a real block and adds up $2mkn$. A solution lies folded below, and the
# page goes on with either.)

# %%
@your_turn(turns.check_operations, look="H heads of K numbers are D numbers, so H does not appear. Is S squared somewhere? A triple is two operations.")
def block_operations(B, S, D):
    """Operations of one block's forward pass: B sequences of S tokens, D numbers each, 4·D inside the MLP."""
    ...


# %% tags=["solution"]
# One solution. Open it when yours passes, or when you are stuck.
@block_operations.solution
def block_operations(B, S, D):
    tokens = B * S
    matrices = 2 * tokens * 12 * D**2
    scores_and_use = 2 * (2 * tokens * S * D)
    return matrices + scores_and_use


# %% [markdown]
# A step has four blocks and the output, each token times $V$ embeddings: once forward, twice that backward.

# %%
forward = 4 * block_operations(B, S, D) + 2 * B * S * D * V
print(f"by hand: {3 * forward:,d}")
compare(predicted=predict.step_flops(setup), measured=counted.total, tolerance=0, name="every product", unit="GFLOP")

# %% [markdown]
# Exact. The rule counts biases and positions, which multiply nothing: a little too much. And it forgets that attention
# multiplies every token with every other: much too little here, where the context is as long as the model is wide.
#
# ## 5 · Four processes
#
# Now several processes work together, each with its own memory, like GPUs in a rack. Each is called a **rank**, numbered
# from 0, and their number is the **world size**. This function, defined in a cell, runs in four of them.


# %%
def hello():
    rank, world_size = dist.get_rank(), dist.get_world_size()
    print(f"I am one of {world_size}")
    return rank**2


ranks.run(hello, world_size=4)

# %% [markdown]
# What they print has their rank in front; what they return comes back in rank order.
#
# ## 6 · Bytes that a rank sends
#
# Ranks share nothing, so they must send each other numbers. The most important way is the **all-reduce**: each rank
# brings a tensor, and afterwards each holds the sum of all.
#
# But who pays? Suppose each of $p$ ranks brings 4 MB. A rank cannot know the sum without hearing of the other $p - 1$
# tensors. Must it then receive $(p-1) \times 4$ MB?


# %%
def add_up():
    mine = torch.full((3,), float(dist.get_rank() + 1))
    dist.all_reduce(mine)
    return mine.tolist()


ranks.run(add_up, world_size=4)

# %%
guess_traffic = ask("How many MB does each of 4 ranks send to all-reduce a tensor of 4 MB?", unit="MB")

# %% [markdown]
# It need not. Cut the tensor into $p$ parts. First each rank collects *one* part from all ranks, and sends away the other
# $p-1$ parts, a share of $\frac{p-1}{p}$. Then it hands its finished part to all others: the same share again. With $n$
# bytes in the tensor each rank sends
#
# $$2\,\frac{p-1}{p}\,n \quad\text{bytes}$$
#
# (Patarasuk and Yuan 2009; lesson 06 builds it). However many ranks join, none sends more than $2n$.
#
# Who measures? Between CPUs a library called *gloo*, the **backend**, moves the bytes through TCP connections, and Linux
# counts every byte of those. `measure.traffic` reads that count; no formula has a part in it. The **barrier** at the end is
# a meeting without a tensor, after which nothing is under way.

# %%
all_reduce_in_two_passes(
    world_size=4,
    caption="Each pass moves 3/4 of the tensor out of each rank. A striped cell is a finished sum: after the first pass "
    "each rank owns one, after the second all ranks have all.",
).show()


def all_reduce_traffic(n_bytes):
    tensor = torch.ones(n_bytes // 4)
    with measure.traffic() as sent:
        dist.all_reduce(tensor)
        dist.barrier()
    return sent.sent_bytes


n_bytes, worlds = 4_000_000, (2, 3, 4)
formula = {f"{p} ranks": predict.all_reduce(n_bytes, world_size=p).bytes for p in worlds}
measured = {f"{p} ranks": max(ranks.run(all_reduce_traffic, n_bytes, world_size=p)) for p in worlds}
compare(guess={"4 ranks": guess_traffic}, predicted=formula, measured=measured, tolerance=0.01, unit="MB")

# %% [markdown]
# A hair above the formula: each message has a *header* of a few dozen bytes, and the barrier is messages, too. Hence the 1 %.
#
# ## 7 · Put together: train on four ranks
#
# You hold every piece of **data parallelism**. Each rank has a copy of the model, and computes the gradients of a
# quarter of the batch. Then ranks average their gradients, and each takes the same step. If that is right, four
# ranks with 2 sequences each must end with the weights of one process with 8. And the price? Gradients are as large as
# the weights, and all of them go through an all-reduce.

# %%
guess_step = ask("How many MB does each of the 4 ranks send for one training step?", unit="MB")

# %% [markdown]
# **Your turn.** Average the gradients by all-reduces.

# %%
@your_turn(turns.check_average, look="An all-reduce changes its tensor in place, and its result is a sum.")
def average_gradients(model):
    """Replace each parameter's `.grad` by its mean over all ranks. All ranks call."""
    ...


# %% tags=["solution"]
@average_gradients.solution
def average_gradients(model):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


# %%
def data_parallel_step(config, inputs, targets):
    rank, p = dist.get_rank(), dist.get_world_size()
    model = GPT(config, seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(inputs.chunk(p)[rank], targets.chunk(p)[rank]).backward()
    with measure.traffic() as sent:
        average_gradients(model)
        dist.barrier()
    optimizer.step()
    return [parameter.detach() for parameter in model.parameters()], sent.sent_bytes


replicas, sent = zip(*ranks.run(data_parallel_step, SMALL, inputs, targets, world_size=4), strict=True)
oracle = GPT(SMALL, seed=0)
train_step(oracle, torch.optim.SGD(oracle.parameters(), lr=0.1), batch)
off = [(a - b).abs().max().item() for copy in replicas for a, b in zip(copy, oracle.parameters(), strict=True)]
assert max(off) < 1e-6, f"a replica is off by {max(off)}"

predicted = predict.all_reduce(weights, world_size=4).bytes
compare(guess=guess_step, predicted=predicted, measured=max(sent), tolerance=0.05, name="sent by a rank", unit="MB")

# %% [markdown]
# The `assert` passed: not one of 842,496 weights on any rank is off by a millionth. To the last bit they need not agree:
# ranks' sums are rounded in another order. The traffic is further above the formula if each of 52
# parameter tensors goes alone, with headers of its own. (Lesson 07 has buckets.)
#
# ## 8 · The deadlock
#
# This bug costs people their weekends, because *nothing fails*. You want to print the mean loss, but only once, so you put
# it inside `if rank == 0`. Before you run it: who waits for whom?


# %% tags=["raises-exception"]
def print_mean_loss():
    loss = torch.tensor([2.5 + dist.get_rank()])
    if dist.get_rank() == 0:
        dist.all_reduce(loss)
        print(f"mean loss: {loss.item() / dist.get_world_size()}")


_ = ranks.run(print_mean_loss, world_size=4)

# %% [markdown]
# An all-reduce is a meeting: it takes place when *all* have come. Rank 0 sits in the room, and the others have left the
# building, content. On a cluster this run would sit there, at full price, until a timeout strikes, after 10 minutes or 30.
# `ranks.run` watches which rank has called what, so it can *prove* that the meeting will never happen.
#
# **Your turn.** All come to the meeting, and only one writes the minutes.

# %%
@your_turn(turns.check_mean, look="Which line must all ranks reach, and which only one?")
def mean_loss(loss):
    """On rank 0 the mean of all ranks' `loss`, a tensor of one number, as a float; None elsewhere. All ranks call."""
    ...


# %% tags=["solution"]
@mean_loss.solution
def mean_loss(loss):
    dist.all_reduce(loss)
    return loss.item() / dist.get_world_size() if dist.get_rank() == 0 else None


# %% [markdown]
# That is the story: bytes held, operations computed, bytes sent.
#
# ## Second sitting
#
# You may stop here. On another day, run all cells above before you go on. Below: a rank that fails, whether the model
# learns, who watches our instruments, and the same formulas for a model 200,000 times larger.
#
# **Change one thing** above, in section 3. Train on half of the batch: above `with measure.memory` write `half = [part[:4].clone() for part in
# batch]`, use it there, say `B = 4` and `batch_size=4` in the code cell after it, and run both. Which rows halve, which do not move? Decide
# first, and set it back afterwards.
#
# <details><summary>Answer</summary>
#
# Activations and temporaries halve (the activations nearly: attention's mask has no B in it). Parameters and Adam's
# numbers do not move.
#
# </details>
#
# ## 9 · A rank that raises
#
# With one process an error is an error. With four, one of them fails while three are waiting for it, and the real
# message drowns. Here rank 2 divides by zero on its way to the all-reduce. What will the other three do?

# %%
from torch.distributed._tools.mem_tracker import MemTracker

from course_kit.notebook import self_check
from course_kit.units import Flops
from course_lib.model import zoo
from course_pages.shared.losses import loss_curves


# %% tags=["raises-exception"]
def one_bad_apple():
    rank = dist.get_rank()
    share = 1.0 / (2 - rank)
    tensor = torch.tensor([share])
    dist.all_reduce(tensor)
    return tensor.item()


ranks.run(one_bad_apple, world_size=4)

# %% [markdown]
# Read the report from the top. One sentence says what happened. Then come the ranks, each with the line of the cell: three
# were waiting, in the all-reduce, for a partner that will never come, and rank 2 raised. Nothing hangs, and the next
# `ranks.run` finds four fresh processes.
#
# ## 10 · Does it learn?
#
# Counting is pointless if the thing that we count does not work. `text.stories` writes English sentences by throwing
# dice in a small grammar. We know the dice, so we know exactly how much surprise is left for a perfect reader: the
# **entropy** of the text. No model can get below it, on average.
#
# The reader that we train has two layers and a context of 64 bytes. So that 200 steps show something, it takes its
# positions from rotations instead of a table (a switch of `GPTConfig`), and larger steps than above.
#
# The first thing that such a reader can learn is how often each letter occurs. How surprised is it then? A byte with the
# probability $q$ surprises by $-\ln q$ nats, and it comes in a share $q$ of all cases.
#
# **Your turn.** The mean surprise of a reader who knows the letters' frequencies and nothing else.

# %%
@your_turn(turns.check_letters, look="Count each byte, divide by their number: that is q. Then the mean of what, weighted by what? In nats, not in bits.")
def letters_entropy(data):
    """bytes → nats a byte, if each byte's probability is the share that it has in `data`."""
    ...


# %% tags=["solution"]
@letters_entropy.solution
def letters_entropy(data):
    shares = [data.count(byte) / len(data) for byte in set(data)]
    return -sum(q * math.log(q) for q in shares)


# %%
stories = text.stories(seed=0)
sample, _ = stories.batch(seed=1, step=0, rank=0, batch_size=200, context=100)
for line in sample[:2].tolist():
    print(bytes(line).decode())
print(f"entropy: {stories.entropy_per_byte:.3f} nats a byte")

# %%
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
        "knows how often each letter occurs": letters_entropy(bytes(sample.flatten().tolist())),
        "knows everything": floor,
    },
    unit="nats per byte",
    caption="The loss rests on the middle line, where the model knows letters and no words, then falls on.",
    alt="The loss falls within 10 steps from 5.5 to 3 nats, the entropy of single letters, stays there for some "
    "20 steps and then falls on until step 200. The floor, at 0.22 nats, is still far below.",
).show()
assert last > floor, "below the floor: look for the bug"
compare(guess=guess_reader, predicted=floor, measured=last, tolerance=None, columns=("floor", "measured"), name="loss")

# %% [markdown]
# Look at the shelf in the curve. First the model learns how often each letter occurs: the middle line, yours, is all that
# letters alone can give. Then it finds out that letters follow each other, and the loss falls on. Had it come out *below*
# the floor, we would not celebrate. We would look for the bug, most likely a target that leaks into the input. A known
# floor is an instrument, too. (`tolerance=None` means that the ratio is shown and not checked. That the loss stays above
# its floor is checked, one line before.)
#
# ## 11 · Can you trust our instruments?
#
# An instrument that is built by the people who make the claims needs an independent witness. For bytes sent the witness is
# the operating system. (NCCL, the backend of GPUs, goes past its counter, and macOS and Windows do not tell. There a table
# says *modelled*: a formula's bytes, which prove nothing.)
#
# The count of operations is not ours: `measure.flops` asks PyTorch's own counter, and adds the products that it leaves out. Beside it stands `MatrixProducts`, which judged your turn. It is ours, it shares no line with
# PyTorch's, and it is short enough to read. (Each operation that PyTorch executes passes through `__torch_dispatch__`,
# with its name and its tensors.) For the account of memory it is the other way round. That one is ours, and its witness
# comes with PyTorch: a tracker that its engineers use to plan runs. All four shall watch the same step.

# %%
show(measure.MatrixProducts)

# %%
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
# And how fast is this machine? Bytes and operations are facts about the *program*. Seconds are a fact about a program, a
# machine and an afternoon, so this course builds no argument on them alone.

# %% tags=["varies"]
step_time = measure.seconds(lambda: train_step(model, optimizer, batch), repeats=5)
speed = FlopsPerSecond(counted.total / step_time)
print(f"{step_time} a step, so {speed:.0GFLOP/s} on {torch.get_num_threads()} thread(s)")

# %% [markdown]
# ## 12 · The same formulas, 200,000 times larger
#
# A formula that is exact for 0.8 million parameters has no reason to stop there. GPT-3's paper prints the shape of the
# model (96 layers of width 12,288, a context of 2,048), its size, and what training on 300 billion tokens took. Our
# formulas get to see the shape and the tokens, nothing else.
#
# You have two formulas for the operations: the rule, 6 for each parameter and token, and the exact count of all products.
# In our small model they were an eighth apart. **Guess:** by how many percent is the exact count above the rule here?

# %%
guess_above = ask("By how many percent is the exact count above the rule, for GPT-3?", unit="")

# %%
gpt3 = zoo.GPT3_175B
# measured: counted by its authors, Brown et al. 2020, Table D.1
display(compare(predicted=predict.parameters(gpt3), measured=Count(gpt3.parameters), tolerance=0.001,
                columns=("our formula", "published"), name="parameters"))  # fmt: skip

by_rule = predict.training_flops(predict.parameters(gpt3), tokens=300e9)
exact = Flops(predict.step_flops(predict.Setup(gpt3, batch_size=1, seq=2048)) * 300e9 / 2048)
in_16_bits = Bytes(2 * predict.parameters(gpt3))
print(f"by the rule {by_rule:.0ZFLOP}, every product {exact:.0ZFLOP}; the paper prints 314 ZFLOP (Table D.1)")
print(f"{100 * (exact / by_rule - 1):.1f} percent more (your guess: {guess_above.said})")
print(f"training: {exact:.0PF-day}; weights in 16 bits: {in_16_bits:.0GB}, or {in_16_bits:.0GiB}")

# %% [markdown]
# So the paper printed the rule, and the exact count finds 2.7 % more, if each layer looks at all tokens. (In GPT-3 every
# other one looks at a band of them, section 2.1, so the truth lies between.) No table compares them: the paper's number is the
# rule's own result, and a formula beside itself proves nothing. (Brown et al. 2020, Tables 2.1 and D.1.)
#
# A PF-day is a day at $10^{15}$ operations a second. An H100's data sheet promises about that in 16 bits, and no training
# reaches it, so one such card would need more than ten years. It would first need a place for the weights. It has 80 GiB,
# and weights are only the beginning: you saw what stands on top.
#
# *Bigger than one GPU* is not a figure of speech. The rest of the course is about what to do.
#
# ## What to keep
#
# | Question | Formula | Instrument |
# |---|---|---|
# | How many parameters? | $12Ld^2 + 13Ld + (V+S)d + 2d$ | count the tensors |
# | What does a device hold? | weights + Adam's two numbers each + activations + temporaries, at this peak | `measure.memory` |
# | What does it compute? | about 6 × parameters × tokens; exactly, all matrix products | `measure.flops` |
# | What does a rank send? | $2\frac{p-1}{p}n$ for an all-reduce of $n$ bytes | `measure.traffic` |
# | Is it right? | the oracle: `train_step` on one device | the largest difference |
#
# And one habit: guess first. A wrong guess teaches more than a late one.
#
# ## Three exercises
#
# **1.** GPT-2 XL has 48 layers of width 1,600, a vocabulary of 50,257 and a context of 1,024. Its paper prints 1,542
# million parameters, and the paper is wrong. How many are there, to the last one?
#
# **2.** Sixteen ranks all-reduce gradients of 1 GB. How many GB does each of them send?
#
# **3.** Two ranks want to swap a number: each sends its own and receives the other's. Run them and they deadlock.
# Read the report, then repair `swap` so that both return what the other one sent.

# %%
answer_1 = None  # a number of parameters

self_check(answer_1, turns.EXERCISES[0], hint="Section 1 has the formula: four terms.")

# %%
answer_2 = None  # GB sent by each of 16 ranks

self_check(answer_2, turns.EXERCISES[1], tolerance=0.001, hint="Section 6 has the formula. Does it come out below 2?")


# %%
def swap():
    me, other = dist.get_rank(), 1 - dist.get_rank()
    mine, theirs = torch.tensor([float(me)]), torch.empty(1)
    dist.send(mine, dst=other)
    dist.recv(theirs, src=other)
    return theirs.item()


answer_3 = None  # replace None by ranks.run(swap, world_size=2, timeout_s=10)

self_check(answer_3, [1.0, 0.0], hint="A send is over when the other rank receives. Which of the two could receive first?")

# %% [markdown]
# <details><summary>Answers</summary>
#
# 1. $12 \cdot 48 \cdot 1600^2 + 13 \cdot 48 \cdot 1600 + (50257 + 1024) \cdot 1600 + 2 \cdot 1600 = 1{,}557{,}611{,}200$.
# 2. $2 \cdot \frac{15}{16} = 1.875$ GB.
# 3. Rank 0 sends first and then receives; rank 1 receives first and then sends.
#
# </details>
#
# ## Further reading
#
# - Radford et al. 2019, [Language models are unsupervised multitask learners](https://cdn.openai.com/better-language-models/language_models_are_unsupervised_multitask_learners.pdf):
#   the model of this page; their smallest is 150 times larger.
# - Kaplan et al. 2020, [Scaling laws for neural language models](https://arxiv.org/abs/2001.08361): §2.1 has the 6.
# - Brown et al. 2020, [Language models are few-shot learners](https://arxiv.org/abs/2005.14165): GPT-3.
# - Patarasuk and Yuan 2009, *Bandwidth optimal all-reduce algorithms for clusters of workstations*, J. Parallel Distrib.
#   Comput. 69(2).
#
# [Lesson 01 · Float formats](01_float_formats.ipynb) asks what a number costs, and what you lose when you make it
# smaller. This lesson has no lab.
#
# (Lessons 00 to 05 are Part A of the course, one device. Part B, many devices, begins with lesson 06; Part C, everything
# together, with lesson 14.)
