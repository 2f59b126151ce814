# %% [markdown]
# # 08 · Tensor parallelism
#
# **The question:** what if one layer does not fit? And what if one sequence does not?
#
# | | |
# |---|---|
# | Time | first sitting 50 minutes, second sitting 45; less than a minute of both together is computing on 2 CPU cores |
# | A GPU | changes nothing in what is held. It changes one message (section 10) and where you may do it (section 14) |
# | Opens | `collectives/operators.py`, `parallel/tensor.py` |
#
# Data parallelism gave every rank the whole model. That was its strength, and here is its end. 175 billion parameters
# take 350 GB in 16 bits, before anyone has trained them for a step. The largest card in lesson 02's explorer holds 141.
# A thousand such cards do not help as long as each must hold all of it. Lesson 10 stores the parts apart and joins each
# layer just before its use. This lesson cuts the *computing* itself, *through* the layer, through the matrix, and the
# question is where to put the knife.

# %%
import torch
import torch.distributed as dist
import torch.nn.functional as F

from course_kit import measure, ranks
from course_kit.compare import compare
from course_kit.notebook import ask, show, your_turn
from course_kit.units import Bytes, Count
from course_lib import predict
from course_lib.collectives.operators import all_reduce, f_bar, g, g_bar, own_part
from course_lib.parallel.layout import Layout, contract, steps
from course_lib.parallel.tensor import ColumnParallelLinear, RowParallelLinear
from course_lib.parallel.tensor_gpt import ParallelGPT
from course_pages.lesson08 import pictures as figures
from course_pages.lesson08 import runs, turns
from course_pages.lesson08.explorer import MatmulExplorer
from course_pages.lesson08.runs import SMALL, STREAM, attention

# %% [markdown]
# ## 1 · One matrix, two knives
#
# A linear layer is $H = XA$: $X$ has a row for each token and a column for each feature; $A$ has a row for each feature
# that comes in and a column for each that goes out. $A$ is what does not fit. There are two ways to halve it.
#
# Cut it **by columns**, and each rank computes some of the features that go out, from all of $X$. Cut it **by rows**,
# and each rank needs only its features of $X$, but what it computes is a *term*: the result is the sum over the ranks.
#
# $$X\,[A_1\; A_2] = [X A_1\;\; X A_2] \qquad\qquad [X_1\; X_2]\begin{bmatrix}A_1\\A_2\end{bmatrix} = X_1 A_1 + X_2 A_2$$
#
# **Before you run the cells below:** 4 ranks, 64 tokens, 128 features in and out, float32, so that $H$ has 32.8 kB. By
# columns each rank keeps the features that it computed. By rows we form the sum, with lesson 06's all-reduce. How many
# kB does each rank send? In the code `own_part(a, dim=1)` is this rank's part of a matrix along that dim: the first
# quarter of the columns on rank 0, the second on rank 1, and so on.

# %%
guess_columns = ask("Cut by columns: how many kB does each rank send?", unit="kB")
guess_rows = ask("Cut by rows, with the sum: how many kB?", unit="kB")


# %%
def both_cuts():
    torch.manual_seed(0)  # the same numbers on every rank
    x, a = torch.randn(64, 128), torch.randn(128, 128)
    with measure.traffic() as columns:
        h_part = x @ own_part(a, dim=1)
    with measure.traffic() as rows:
        h = all_reduce(own_part(x, dim=1) @ own_part(a, dim=0))
    torch.testing.assert_close((h_part, h), (own_part(x @ a, dim=1), x @ a))
    return columns.sent_bytes, rows.sent_bytes


by_columns, by_rows = ranks.run(both_cuts, world_size=4)[0]
compare(
    guess={"by columns": guess_columns, "by rows": guess_rows},
    predicted={"by columns": Bytes(0), "by rows": predict.all_reduce(Bytes(64 * 128 * 4), 4).bytes},
    measured={"by columns": by_columns, "by rows": by_rows},
    tolerance=0.05,
    unit="kB",
)

# %% [markdown]
# Columns cost nothing, as long as nobody needs the whole of $H$. Rows cost an all-reduce, $2\frac{p-1}{p}$ times the
# bytes of $H$. (The operating system counted; what it found on top are headers.) But look at what each *takes* and what
# it *leaves*: columns take $X$ whole and leave $H$ in parts; rows take $X$ in parts and leave $H$ whole. One fits into
# the other like a plug into a socket.
#
# ## 2 · Two matrices, one message
#
# A transformer's MLP is two layers with a GELU between them: $Y = \text{GELU}(XA)\,B$, and the hidden features between
# are four times as many as $X$ has. Cut both. By columns was free, so take it twice?

# %% tags=["raises-exception"]
def columns_twice():
    x, a, b = torch.ones(64, 128), torch.ones(128, 512), torch.ones(512, 128)
    return F.gelu(x @ own_part(a, 1)) @ own_part(b, 1)


ranks.run(columns_twice, world_size=4)

# %% [markdown]
# Of 512 hidden features a rank has 128, and every column of $B$ wants all. They would have to be gathered first.
#
# Drawing this for each combination is tedious, so let names do it (Mesh-TensorFlow's idea, Shazeer et al. 2018).
# `Layout("width hidden", {"hidden": "tensor"})` is $A$ cut by columns: of its two dims `hidden` is cut over the axis of
# ranks called `tensor`. A product sums over the dim that both factors have. If that one is cut, each rank is left with a
# term of the sum; if another is cut, so is the result. `contract` applies this rule, and `steps` says which messages
# lead from one layout to another.
#
# The cell prints all four ways. Then guess two of the bills: on 4 ranks, $H$ has 131 kB, $Y$ has 32.8 kB, and at the
# end every rank has the whole $Y$.

# %%
x, x_parts = Layout("token width"), Layout("token width", {"width": "tensor"})
print("A by columns:", contract(x, Layout("width hidden", {"hidden": "tensor"})))
print("A by rows:   ", contract(x_parts, Layout("width hidden", {"width": "tensor"})))
ways = {f"A by {a}, B by {b}": (a, b) for a in ("columns", "rows") for b in ("columns", "rows")}
for name, way in ways.items():
    computed, needed, result = runs.layouts(*way)
    between = ", ".join(map(str, steps(computed, needed))) or "nothing"
    print(f"{name}: H is [{computed}], B needs [{needed}]: {between}; Y is [{result}]")
gelu = [F.gelu(torch.tensor(x)).item() for x in (1.0, -2.0, -1.0)]
print(f"GELU(1) + GELU(-2) = {gelu[0] + gelu[1]:.3f}, but GELU(1 - 2) = {gelu[2]:.3f}")

# %%
guess_best = ask("A by columns, B by rows: how many kB does each rank send?", unit="kB")
guess_twice = ask("A and B by columns: how many kB?", unit="kB")

# %% [markdown]
# (The last printed line is why a term cannot wait for its sum until after the GELU.) The names told us the messages,
# and lesson 06 their prices. Now all four ways, for real; the results are checked as well.

# %%
compare(
    guess={"A by columns, B by rows": guess_best, "A by columns, B by columns": guess_twice},
    predicted={name: runs.price(*way) for name, way in ways.items()},
    measured={name: ranks.run(runs.mlp_bytes, *way, world_size=4)[0] for name, way in ways.items()},
    tolerance=0.06,
    unit="kB",
)

# %% [markdown]
# **$A$ by columns, $B$ by rows** wins by far: between them nothing is sent (Shoeybi et al. 2019, §3). Each of the other
# three touches the hidden layer. See why:

# %%
MatmulExplorer().show()

# %% [markdown]
# (If nothing reacts to your clicks, run the cell once.)
#
# - Look at rank 2. Which columns of $H$ does it compute, and which rows of $B$ wait for them?
# - Cut both by rows. Which message stands behind the first $H$, and why does it cost half of the one for rows, columns?
# - Columns, rows again, with 8 ranks. How large is rank 5's share of $A$, and what happens to the bytes?
#
# <details><summary>Answers</summary>
#
# Columns 256 to 383, and rows 256 to 383: the same. A reduce-scatter, one of the ring's two passes: each rank needs
# only its part of the sum. An eighth; the all-reduce of $Y$ grows from 1.5 to 1.75 times its bytes, and can never
# pass 2.
#
# </details>
#
# ## 3 · Attention, by heads
#
# Attention is the same story. Heads are its hidden features: each rank computes some of them from beginning to end. Below
# it is printed unsplit: `q`, `k` and `v` make queries, keys and values, and `out` mixes what the heads have found.
#
# **Your turn.** Split it over the ranks. Which matrices are cut by columns, which by rows, and what is sent?

# %%
show(attention, docstring=False)


# %%
@your_turn(turns.check_attention, look="own_part(matrix, 1) are this rank's columns. What does `attention` do with fewer heads?")
def split_attention(x, q, k, v, out, heads):
    """Causal attention on every rank, each doing its own heads. All ranks call.

    x is [tokens, width], the matrices are [width, width], all of them whole; heads divide by the number of ranks.
    """
    ...


# %% tags=["solution"]
# One solution. Open it when yours passes, or when you are stuck.
@split_attention.solution
def split_attention(x, q, k, v, out, heads):
    mine = [own_part(matrix, 1) for matrix in (q, k, v)]
    return all_reduce(attention(x, *mine, own_part(out, 0), heads // dist.get_world_size()))


# %% [markdown]
# One message again. And no head is ever in two places, so this cutting ends with as many ranks as heads.
#
# ## 4 · The way back
#
# That was the forward pass. Now look at $X$ again, which every rank holds whole. Rank 1 used it for its columns, rank 2
# for its own. The gradient of $X$ is the sum of what comes back along *all* of these ways:
#
# $$\frac{\partial L}{\partial X} = \sum_{r} \frac{\partial L}{\partial H_r} A_r^{\mathsf T}$$
#
# The forward pass did nothing at that place, so autograd does nothing there on the way back. One reader leaves it at
# that, another puts an all-reduce in front. Who is right? `cut_mlp` is section 2's best way; `enter` stands where the
# dispute is, and `f_bar` is an all-reduce in the forward pass only.

# %%
display(show(runs.cut_mlp, docstring=False))
for name, enter in {"nothing": lambda x: x, "an all-reduce": f_bar}.items():
    off = ranks.run(runs.gradient_of_x, lambda x, a, b, enter=enter: runs.cut_mlp(x, a, b, enter), world_size=4)[0]
    print(f"{name} in front: Y is off by {off[0]:.0%}, the gradient of X by {off[1]:.0%}")

# %% [markdown]
# Neither. The first is the dangerous one: the loss is right to the last digit, and everything below this layer learns
# from a gradient of which most is missing. The second adds four equal copies of $X$.
#
# What is needed does *nothing* in the forward pass and adds up in the backward pass. We call it $f$. Its partner
# $\bar f$ is the other way round, the `f_bar` of the cell: it adds up in the forward pass and does nothing in the
# backward pass, because the gradient of a sum goes to each of its terms unchanged. Such pairs are called **conjugate**.
#
# **Your turn.** Write what $f$ does on the way back. `grad` is this rank's part of the gradient; autograd only lends it
# to you.


# %%
@your_turn(turns.check_f, look="`clone()` makes memory of your own, and dist.all_reduce adds up in place.")
def f_backward(grad):
    """The whole gradient of what every rank used. Any shape; all ranks call."""
    ...


# %% tags=["solution"]
@f_backward.solution
def f_backward(grad):
    whole = grad.clone()
    dist.all_reduce(whole)
    return whole


# %% [markdown]
# So a block sends four all-reduces in a step: $\bar f$ behind attention and behind the MLP on the way forth, $f$ in
# front of each on the way back. Each is as large as the **stream**, tokens times width. Behind $\bar f$ the next layer
# has to wait; what $f$ can hide behind, section 9 shows.
#
# ## 5 · A whole GPT, cut
#
# `ParallelGPT` copies a GPT and replaces each layer that has a matrix by this rank's part of it. Norms stay whole, and so
# do biases behind a sum. The embedding is cut by width, and so is the head, which has the same matrix: its logits are
# one more sum.
#
# Is it the same model? Lesson 07's test, `runs.apart`: three steps of SGD in float64 beside a single process, and the
# largest difference of any weight after each.

# %%
print("one model after each of three steps:", max(ranks.run(runs.apart, ParallelGPT, world_size=4)) < 1e-12)

# %% [markdown]
# The same model. It is made of two kinds of layers, whose forward passes are printed below (their branch
# `sequence_parallel` is section 6's). Where do $f$ and $\bar f$ stand?
#
# And the bill? Of each matrix a rank holds a quarter; of two norms and two biases behind sums it holds all, six times
# the width in each block, and twice the width in the last norm. It sends in a step: four all-reduces of the stream in
# each block; one of the logits; and the stream gathered twice, behind the embedding and, on the way back, in front of
# the head.

# %%
display(show(ColumnParallelLinear.forward, docstring=False))
display(show(RowParallelLinear.forward, docstring=False))
n_parameters = predict.parameters(SMALL)
print(f"unsplit: {n_parameters:,d} parameters, {SMALL.layers} blocks of width {SMALL.width}; a batch's stream: {STREAM:kB}")

# %%
guess_held = ask("How many parameters has each of 4 ranks?")


# %%
whole = (6 * SMALL.layers + 2) * SMALL.width
logits = Bytes(4 * 4 * 32 * SMALL.vocab_size)
messages = 4 * SMALL.layers * predict.all_reduce(STREAM, 4).bytes + predict.all_reduce(logits, 4).bytes
messages += 2 * predict.all_gather(STREAM, 4).bytes
held, calls, sent = ranks.run(runs.bill, world_size=4)[0]
counts = {"parameters": Count(whole + (n_parameters - whole) // 4), "all-reduces": Count(4 * SMALL.layers + 1)}
display(compare(guess={"parameters": guess_held}, predicted=counts, measured={"parameters": held, "all-reduces": calls}))
compare(predicted=messages, measured=sent, tolerance=0.05, unit="kB", name="each rank sends")

# %% [markdown]
# `f` stands in front of the column cut, `f_bar` behind the row cut: section 1's plug and socket.
#
# A quarter of the parameters, and a bit. But look at what is sent. Data parallelism sends less than twice its gradients,
# whatever the batch. Here the bytes grow with the *tokens*. And nearly a third are logits, for a vocabulary of 256.
# (The lab gets rid of them.)
#
# ## 6 · What did not shrink
#
# The weights are cut. Are the activations, lesson 02's largest block? Look at the upper half of the picture.

# %%
figures.block_on_ranks(
    caption="What a block keeps for its backward pass, widths to scale (the weights of attention for 8 heads and 32 "
    "tokens). Grey is the same on every rank, four copies of it; below, what was grey is cut along the sequence."
).show()

# %%
guess_whole = ask("Upper half: percent of the unsplit block's activations that each of 4 ranks keeps?")

# %% [markdown]
# Heads and hidden features are cut, and what lies between is not. But a norm works on each token alone, so there the
# stream can be cut along the **sequence**. In front of a column cut the tokens are gathered, $g$; behind a row cut each
# rank takes its tokens of the sum, $\bar g$. The two are a conjugate pair: behind a gather of tokens stands, on the way back, a sum
# of gradients of which each rank takes its part. And an all-reduce *is* a reduce-scatter and an all-gather: each is now
# two halves, $\bar g$ and the next $g$. The whole MLP:

# %%
def mlp_of_tokens(x_part, a, b):
    return g_bar(F.gelu(g(x_part, 0) @ own_part(a, 1)) @ own_part(b, 0), 0)


display(show(g, docstring=False), show(g_bar, docstring=False))
off = ranks.run(runs.gradient_of_x, mlp_of_tokens, 0, world_size=4)[0]
print("each rank's tokens of Y, and of the gradient of X, as one process has them:", max(off) < 1e-12)

# %% [markdown]
# What does a block keep for the backward pass? Let $n$ count the stream's numbers: tokens times width. Between: the input and the
# output of two norms, $4n$, with a mean and a spread for each token. Inside: queries, keys, values and their mix, $4n$;
# hidden features before and after the GELU, $8n$; the weights of attention. And a mask of one byte for each pair of
# positions, which is never cut.

# %%
n, mask = 4 * 32 * SMALL.width, SMALL.context**2
between, inside = 4 * (4 * n + 4 * 4 * 32), 4 * (12 * n + 4 * SMALL.heads * SMALL.context**2)
unsplit = runs.kept_by_a_block(lambda gpt: gpt)
upper = ranks.run(runs.kept_by_a_block, ParallelGPT, world_size=4)[0]
lower = ranks.run(runs.kept_by_a_block, runs.sequence_parallel, 4, world_size=4)[0]
display(
    compare(
        predicted={"unsplit": Bytes(between + inside + mask), "tensor": Bytes(between + inside // 4 + mask),
                   "tensor and sequence": Bytes((between + inside) // 4 + mask)},
        measured={"unsplit": unsplit, "tensor": upper, "tensor and sequence": lower},
        unit="KiB",
    )
)  # fmt: skip
print(f"upper half: {100 * upper / unsplit:.0f} percent (you said {guess_whole.said}); lower: {100 * lower / unsplit:.0f}")
print(f"with the stream cut, {upper / lower:.1f} times fewer bytes than without")

# %% [markdown]
# The stream was half of what the ranks kept, and now it is cut. Is that free? Not quite. A rank that keeps only its
# own tokens has to gather the others' *again* in the backward pass, for the gradient of the column cut's weight.
#
# **Your turn.** How many bytes does each of $t$ ranks send for a block in a step, if the stream is cut? Each
# gather and each reduce-scatter of a tensor of $b$ bytes sends $\frac{t-1}{t} b$. (Leave out the gradients of what is
# whole. They are few bytes, and section 7 shows what they are worth.)


# %%
@your_turn(turns.check_bytes, look="Two pairs of layers. Forward, a gather and a reduce-scatter each. Backward, their mirror, and?")
def block_bytes(stream_bytes, t):
    """Bytes that each of t ranks sends for a block in a step; stream_bytes are the whole stream's."""
    ...


# %% tags=["solution"]
@block_bytes.solution
def block_bytes(stream_bytes, t):
    forward, backward, gathered_again = 4, 4, 2
    return (forward + backward + gathered_again) * stream_bytes * (t - 1) // t


# %% [markdown]
# Ten instead of eight: a quarter more to send than tensor parallelism alone, and the two gathers more can hide behind
# products. In return the stream falls to a quarter, and a block keeps as little as the last table shows. (For GPT-3 on 8 ranks,
# in 16 bits and with dropout, Korthikanti et al. 2022 count 23 and 14.25 bytes a token and feature: 1.6 times, too.)
#
# That is the story.

# %% [markdown]
# ## Second sitting
#
# What stands above is the story, and you may stop here. On another day, run all cells above before you go on. Below: two
# failures that no loss will show you, a message that hides, PyTorch's own way, keys that heads share, a *sequence* that
# does not fit, and what it all comes to at the size where it is used.
#
# ## 7 · What is whole sees a part
#
# Norms stayed whole, and so did the biases behind a sum. With the stream cut along the sequence, each rank applies them
# to its own tokens only. What are their gradients then? `second.without_sums` is the split model that forgot about that.

# %%
from course_pages.lesson08 import second

off_loss, off_gradients, apart_by = ranks.run(second.what_it_forgets, world_size=4)[0]
print("the loss is one process's:", off_loss < 1e-12)
print(*(f"gradients of {kind} are off by up to {off:.0%}" for kind, off in off_gradients.items()), sep=", ")
print(f"after 20 steps the ranks' norms are apart by up to {apart_by:.1g}")

# %% [markdown]
# The loss is right, and four norms that should be one drift apart. This is *the* silent bug of the
# technique: Megatron-LM has a function for nothing else. Each rank's tokens give a term, and the gradient is the sum.
#
# **Your turn.** Repair it behind the backward pass. `cut` holds the names of the parameters that are cut; their
# gradients are complete. All other gradients travel together, in one message.


# %%
@your_turn(turns.check_whole, look="Lesson 07's glued_mean. But do the ranks hold means here, or terms?")
def add_up_whole(model, cut):
    """Make whole, in place or anew, the gradients of all parameters that are not cut. All ranks call."""
    ...


# %% tags=["solution"]
@add_up_whole.solution
def add_up_whole(model, cut):
    whole = [parameter for name, parameter in model.named_parameters() if name not in cut]
    flat = torch.cat([parameter.grad.flatten() for parameter in whole])
    dist.all_reduce(flat)
    for parameter, summed in zip(whole, flat.split([parameter.numel() for parameter in whole])):
        parameter.grad = summed.view_as(parameter)


# %%
from course_lib.parallel.tensor_gpt import shardings

for name, after in {"without": lambda model: None, "with yours": lambda model: add_up_whole(model, shardings(model))}.items():
    far = max(ranks.run(runs.apart, second.without_sums, after_backward=after, world_size=4))
    print(f"{name}: one model after each of three steps: {far < 1e-12}")

# %% [markdown]
# ## 8 · The same dice
#
# Attention drops some of its weights in training. Those of head 0 are on rank 0, those of head 2 on rank 1, and so on.
# Suppose that all ranks are seeded alike, and that each draws a mask for the heads that it has.
# How many of the 28 pairs of heads lose the same weights?


# %%
import dataclasses

from course_kit.units import Flops
from course_lib.model import hardware, zoo
from course_lib.parallel import context
from course_lib.parallel.context import ContextParallelGPT
from course_lib.parallel.mesh import Mesh
from course_lib.parallel.tensor import SplitDropout
from course_pages.lesson07.pictures import rank_timeline

# %%
guess_pairs = ask("8 heads on 4 ranks, seeded alike: how many of 28 pairs have equal masks?")

# %%
naive = second.equal_pairs(lambda: torch.nn.Dropout(0.5))
ours = second.equal_pairs(lambda: SplitDropout(0.5, dim=1))
print(f"with a mask of the whole, {ours}; with a mask for the part:")
compare(guess=guess_pairs, predicted=Count(2 * 4 * 3 // 2), measured=Count(naive), name="equal pairs")

# %% [markdown]
# Four ranks draw the same two masks, so the even heads agree in all their pairs, and the odd ones: twice six. Dropout
# is there so that heads do *not* rely on each other, and now four of them fail together, always. The loss looks
# healthy.
#
# Randomness belongs to the tensor, never to the process. `SplitDropout` draws the mask of the *whole* tensor, as the
# unsplit model would, and takes its part. So the split model drops the very weights that the unsplit one drops, and the
# test of section 5 holds with dropout, too:

# %%
dropping = dataclasses.replace(SMALL, dropout=0.2)
print("one model, with dropout:", max(ranks.run(runs.apart, runs.sequence_parallel, dropping, world_size=4)) < 1e-12)

# %% [markdown]
# (Drawing a whole mask costs time. Megatron-LM gives each rank a random state of its own for what is cut, and then
# nothing is equal to one process any more.)
#
# ## 9 · Two products, one message
#
# Behind a column cut the backward pass makes two products: the gradient of the input, which $f$ has to add up, and the
# gradient of the weight, which needs nothing from anywhere. So do not wait. Post the sum, and make the other product
# while it travels. (Megatron-LM does so unless told otherwise.)

# %% tags=["varies"]
def column_backward(x, weight, y_grad, span):
    with span("input's gradient"):
        x_grad = y_grad @ weight.T
    summing = dist.all_reduce(x_grad, async_op=True)
    with span("weight's gradient"):
        weight_grad = x.T @ y_grad
    summing.wait()
    return x_grad, weight_grad


rank_timeline(
    ranks.run(second.record_backward, column_backward, world_size=2, diagnose=False)[0],
    caption="The sum begins between the two products, and the second product runs while it is under way.",
    alt="Two ranks as rows: a product, then a second product with an all-reduce beside it.",
)

# %% [markdown]
# Only what is left of the orange bar behind the second product costs time. ($\bar f$ has no such partner: the next layer
# begins with its sum.)
#
# ## 10 · PyTorch's own
#
# First a word about gloo, the backend that carries our ranks' messages. Section 6 checked your formula against the calls that were made, each with its price, and
# section 2's reduce-scatter was lesson 06's own. What does gloo really send for one? And for an all-reduce of the same tensor?

# %%
due = predict.reduce_scatter(STREAM, 4).bytes
for operation in ("reduce_scatter", "all_reduce"):
    print(f"{operation}: {ranks.run(second.sent_by_gloo, operation, world_size=4)[0] / due:.2f} times what a reduce-scatter has to send")

# %% [markdown]
# More than twice as much as it has to, and more than an all-reduce of the same tensor. The bytes are those of four
# all-reduces, one for each rank's part; what is above 2 are their headers. So on this page's laptop sequence parallelism
# saves memory and costs traffic. NCCL has a reduce-scatter of its own.
#
# `DTensor` is section 2's idea made into a type: a tensor that carries its layout, and works out in each operation what
# has to be sent. `parallelize_module(block, mesh, plan)` takes a plan that says which layer is cut how, one entry for
# each. In our blocks `q`, `k` and `v` are one matrix, which no entry describes. `Separate` has a layer for each. (Plans
# of whole models, torchtitan's for instance, have `SequenceParallel` for the norms, too.)
#
# Our attention sends two all-reduces in a step, one in each pass. This plan cuts the same matrices in the same way:

# %%
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel

from course_lib.model.gpt import Attention


class Separate(Attention):
    def __init__(self, whole):
        super().__init__(whole.config)
        del self.qkv
        self.q, self.k, self.v = (torch.nn.Linear(*part.T.shape, dtype=part.dtype) for part in whole.qkv.weight.chunk(3))
        for layer, weight, bias in zip((self.q, self.k, self.v), whole.qkv.weight.chunk(3), whole.qkv.bias.chunk(3)):
            layer.load_state_dict({"weight": weight, "bias": bias})
        self.out = whole.out

    def qkv(self, x):
        return torch.cat([self.q(x), self.k(x), self.v(x)], dim=-1)


# %%
plan = {f"attention.{name}": ColwiseParallel() for name in ("q", "k", "v")} | {"attention.out": RowwiseParallel()}
plan |= {"mlp.up": ColwiseParallel(), "mlp.down": RowwiseParallel()}

# %%
guess_entries = ask("With four entries for attention: how many all-reduces a step?")

# %%
once = {"attention": PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Replicate())}
runs_of = {"": ranks.run(second.beside_pytorch, plan, Separate, world_size=4)[0],
           ", input prepared": ranks.run(second.beside_pytorch, plan | once, Separate, world_size=4)[0]}  # fmt: skip
print("the same results and gradients in three steps:", max(off for off, _ in runs_of.values()) < 1e-12)
sent = runs_of[""][1] | {"attention, input prepared": runs_of[", input prepared"][1]["attention, DTensor"]}
due = dict.fromkeys(sent, 2) | {"attention, DTensor": 1 + 3}
one = predict.all_reduce(8 * 4096, 4).bytes
print(f"attention by four entries: {sent['attention, DTensor'] / one:.1f} all-reduces (you said {guess_entries.said})")
compare(predicted={name: count * one for name, count in due.items()}, measured=sent, tolerance=0.05, unit="kB")

# %% [markdown]
# Three layers took $X$, and each added up its own gradient of it: $f$ three times, where one $f$ behind their sum would
# do. No result is wrong, and only the bytes tell. An entry for `attention` itself mends it: `PrepareModuleInput` makes
# $X$ a `DTensor` before it is shared out, and then its gradient is summed once.
#
# ## 11 · Heads that share their keys
#
# GPT-3 has as many keys and values as heads. Later models have fewer: in **grouped-query attention** some heads in a row
# share one pair. Which pairs does a rank hold? Those that its heads ask for.

# %%
def pairs_of(rank, t, heads, kv_heads):
    mine = range(rank * heads // t, (rank + 1) * heads // t)
    return sorted({head * kv_heads // heads for head in mine})


for t in (2, 4, 8, 16):
    print(f"128 heads, 8 pairs, {t:2d} ranks: rank 1 holds pairs {pairs_of(1, t, 128, 8)}")

# %% [markdown]
# From 9 ranks on there are not enough pairs: a pair lives on several ranks. Take 8 heads and 2 pairs on 4 ranks, each
# pair's matrix on two of them. Is the result still that of one process? And the gradient of the keys' matrix?

# %%
for rank, (held, off_y, alone, added) in enumerate(ranks.run(second.grouped, pairs_of, world_size=4)):
    print(f"rank {rank}, pair {held[0]}: the result is right: {off_y < 1e-12}; its keys' gradient is off by {alone:.0%}, "
          f"added up over those who hold it, it is right: {added < 1e-12}")  # fmt: skip

# %% [markdown]
# Each copy was asked by half of its heads. So copies are section 7 once more, over a smaller group. And beyond 8 ranks
# the keys and values of Llama 3 405B shrink no more.
#
# ## 12 · One sequence that does not fit
#
# A book has 128,000 tokens. Sequence parallelism cuts them *between* the split layers; inside, each rank sees all of
# them. And more ranks end at the heads, at copies of the pairs, in practice at the machine's links (section 14). So cut
# the sequence *everywhere*. In **context parallelism** each rank has all weights, and its own tokens.
#
# Norms and the MLP do not notice. Attention does: a token needs the keys and values of all tokens before it, and those
# are on other ranks. They come around a ring (Liu et al. 2023): each rank works with the keys that it has, hands them
# on to the next, and takes what comes. So it never sees a whole row of scores, and needs a softmax that can be
# continued.
#
# Say that some keys were seen. Kept are the mix so far, $m = \sum_j e^{s_j} v_j / \sum_j e^{s_j}$, and $\ell = \log
# \sum_j e^{s_j}$. More keys come, and $\ell$ grows to $\ell'$. Then the old mix weighs $e^{\ell - \ell'}$, and each new
# value $e^{s - \ell'}$. No number here can overflow, since no exponent is positive. (A query that has seen nothing at
# all, $\ell' = -\infty$, would give nan. The ring begins with a rank's own keys, so it never meets one.)
#
# **Your turn.** That, in two or three lines: **online softmax** (Milakov and Gimelshein 2018).


# %%
@your_turn(turns.check_softmax, look="torch.logaddexp adds in logarithms, and scores.logsumexp(-1) sums the new ones.")
def continued(mix, log_sum, scores, values):
    """The mix and the log of the sum, after more keys.

    mix is [queries, features], log_sum [queries], scores [queries, new keys], values [new keys, features].
    """
    ...


# %% tags=["solution"]
@continued.solution
def continued(mix, log_sum, scores, values):
    grown = torch.logaddexp(log_sum, scores.logsumexp(-1))
    old, new = (log_sum - grown).exp(), (scores - grown[:, None]).exp()
    return old[:, None] * mix + new @ values, grown


# %% [markdown]
# With that the ring is short. Rank $r$ holds the $r$-th part of the sequence. Keys of later ranks are the future, so it
# lets them pass; of its own part it masks the upper triangle.
#
# **Guess:** each rank's keys take 32.8 kB, and so do its values. How many kB does each of 4 ranks send?


# %%
def ring(q, k, v):
    (seq, features), rank, p = q.shape, dist.get_rank(), dist.get_world_size()
    mix, log_sum, travelling = torch.zeros_like(q), q.new_full((seq,), -torch.inf), torch.stack([k, v])
    for step in range(p):
        source = (rank - step) % p
        if source <= rank:
            scores = q @ travelling[0].T / features**0.5
            future = torch.ones(seq, seq, dtype=torch.bool).triu(1) & (source == rank)
            mix, log_sum = continued(mix, log_sum, scores.masked_fill(future, -torch.inf), travelling[1])
        travelling = second.handed_on(travelling) if step < p - 1 else travelling
    return mix


# %%
guess_ring = ask("4 ranks: how many kB does each send around the ring?", unit="kB")


# %%
(forth, back, off), keys = ranks.run(second.around_the_ring, ring, world_size=4)[0], Bytes(64 * 64 * 8)
print(f"as attention over the whole sequence: ours {off[0] < 1e-12}, the library's {off[1] < 1e-12}")
compare(guess=guess_ring, predicted=3 * 2 * keys, measured=forth, tolerance=0.02, unit="kB", name="sent")

# %% [markdown]
# Keys and values, to the next, $c - 1$ times for $c$ ranks. And no rank ever has scores against more than one rank's
# keys. (In memory that is several squares, since this code makes a new one for each of scaling, mask and exponential.)
#
# The library's `ring_attention` sends while it computes, and takes the tokens in another order. It also has a way back.
# Scores were not kept, so keys and values go around once more. Each rank finds its term of *their* gradients,
# and these terms belong to another rank. So they travel along, grow at each stop, and must come home.

# %%
guess_back = ask("Backward, keys, values and the gradients of both: how many kB does each rank send?", unit="kB")

# %%
print("gradients of queries, keys and values as one process has them:", max(off[2:]) < 1e-12)
compare(guess=guess_back, predicted=(3 + 4) * 2 * keys, measured=back, tolerance=0.02, unit="kB", name="sent back")

# %% [markdown]
# Three hops bring the keys around. Their gradients need a fourth, home: 7 hops for 3, and $(2c - 1)/(c - 1)$ times the
# bytes of the forward pass.
#
# ## 13 · Who works when
#
# Look at `if source <= rank` again. Rank 0 has the first tokens, which see almost nothing. In most steps it lets keys
# pass and waits. How unequal are the ranks? Count the products. The library's ring, too, computes its own square whole
# and masks half of it afterwards.

# %%
guess_last = ask("Plain order: how many times the operations of rank 0 does rank 3 make?")

# %% [markdown]
# Count in squares of scores, one rank's tokens by one rank's tokens. Rank $r$ computes its own square and one for each
# rank before it: $r + 1$. The picture shows *useful* scores only, without what the mask throws away: there rank 0 has
# half a square, and rank 3 has seven times as much. A kernel that skips masked blocks is as unequal as the picture.
#
# So deal the tokens out differently. `zigzag` cuts the sequence into $2c$ pieces and gives each rank an early and a
# late one: 0 and 7, 1 and 6, 2 and 5, 3 and 4. In the first step a rank computes three of the four quarters of its
# square, and in each later step two: 2.25 squares in all for $c = 4$, the same on each.

# %%
figures.ring_in_time(
    {order: context.work(order, 4) for order in ("plain", "zigzag")},
    caption="Useful scores. In plain order one rank less works in each step, and all wait. Colours: whose keys are here.",
).show()


# %%
square = 2 * 2 * 64 * 64 * 64  # scores, and what is mixed with them: two products
squares = {f"plain, rank {rank}": rank + 1 for rank in range(4)} | {"zigzag, each": 2.25}
plain, zigzag = (ranks.run(second.ring_operations, order, world_size=4) for order in ("plain", "zigzag"))
assert len(set(zigzag)) == 1
print(f"rank 3 over rank 0: {plain[3] / plain[0]:g} (you said {guess_last.said})")
compare(
    predicted={name: Flops(round(square * count)) for name, count in squares.items()},
    measured=dict(zip(squares, (*plain, zigzag[0]))),
)

# %% [markdown]
# Four times as many, and in each step all wait for the slowest. With zig-zag all are done after 2 useful squares instead
# of 3.5; with 16 ranks it would be 8 instead of 15.5.
#
# Is the whole GPT still the same model? And does each rank keep a quarter of the activations? (Gradients are sums over
# tokens, so they are added up as in section 7: *that* traffic does not grow with the sequence.)


# %%
off = max(ranks.run(runs.apart, ContextParallelGPT, second.LONG, second.long_batch, second.own_weights, world_size=4))
print("one model after each of three steps:", off < 1e-12)


compare(
    predicted={f"{c} ranks": predict.activations(predict.Setup(second.LONG)) / c for c in (2, 4)},
    measured={f"{c} ranks": ranks.run(second.kept_by_a_step, ContextParallelGPT, world_size=c)[0] for c in (2, 4)},
    tolerance=0.001,
    unit="KiB",
)

# %% [markdown]
# **PyTorch's own** is `context_parallel`, a block in which `scaled_dot_product_attention` goes around a ring. Does it
# run here?

# %%
print(ranks.run(second.context_parallel_here, world_size=2)[0])

# %% [markdown]
# It does not: the CPU's attention has no rule for it, while the fused kernels of GPUs have one. So here our witness was
# full attention, in one process.
#
# ## 14 · At scale: why it stays inside the machine
#
# Lesson 07 asked when a message hides behind the computing. Begin with none that hides: how long do the four all-reduces
# take, compared with the products? Take one token, one layer of width $h$, 16 bits. The matrices have $12h^2$ numbers; a
# step makes $6$ operations with each, $72h^2$, and $t$ ranks share them. (Attention's own products are left out: less
# than 3 % more for GPT-3 and 2,048 tokens.) The four all-reduces send $4 \cdot 2\frac{t-1}{t} \cdot 2h$ bytes from each
# rank. At $R$ operations a second and $W$ bytes a second,
#
# $$\frac{\text{sending}}{\text{computing}} = \frac{16h\frac{t-1}{t} / W}{72h^2 / (tR)} = \frac{2}{9}\,\frac{(t-1)\,R}{h\,W}.$$
#
# Tokens have vanished: no batch is large enough to make it better. (In lesson 07 it was the size of the model.) What
# helps is a wide model, and a fast link. GPT-3 has $h = 12{,}288$; an H100 that reaches 40 % of its 989 TFLOP/s sends 450
# GB/s to another one in the same machine and, with a network card of its own, 50 GB/s to another machine.

# %%
reached, link = 0.4 * hardware.H100_80GB.peak("bf16"), hardware.H100_80GB.link_bytes_per_s

# %%
guess_inside = ask("8 ranks in one machine: percent of the time spent on products?")


# %%
def share_of_products(t, width, flops_per_s, bytes_per_s, waited_for=4):
    return 1 / (1 + waited_for / 4 * 2 / 9 * (t - 1) * flops_per_s / (width * bytes_per_s))


for name, bytes_per_s in {"inside the machine": link, "between machines": 50e9}.items():
    shares = {t: share_of_products(t, 12_288, reached, bytes_per_s) for t in (2, 4, 8, 16, 32)}
    print(f"{name:>18}:", ", ".join(f"{t} ranks {share:.0%}" for t, share in shares.items()))
# beside it, a product of n h² numbers: the all-reduce takes 4h(t - 1)/tW, the product 2n h²/tR
hidden = {name: 2 / n * 7 * reached / (12_288 * link) for name, n in (("q, k, v", 3), ("MLP", 4))}
print(f"(for 8 inside you said {guess_inside.said}) behind the product beside it, an all-reduce of f takes:",
      ", ".join(f"{share:.2f} of it ({name})" for name, share in hidden.items()))  # fmt: skip
print(f"so on 8 ranks two of four hide whole, and {share_of_products(8, 12_288, reached, link, 2):.1%} are products")

# %% [markdown]
# Eight GPUs share a machine (up to 72, where links join a whole rack). Inside, tensor parallelism costs at least a tenth,
# or half of that with section 9's overlap; across, half of the time. So the axis that talks most gets the ranks that are
# closest, and a `Mesh` numbers its *last* axis fastest:

# %%
mesh = Mesh({"data": 2, "tensor": 8})
print(mesh)
for axis, does in {"tensor": "splits its layers", "data": "averages gradients"}.items():
    print(f"rank 11 {does} with", mesh.group_of(11, axis))

# %% [markdown]
# **Megatron's speeds.** "At least", since the formula knows only what is sent. How good is it? Megatron-LM's first
# models grew with the GPUs that share a layer (Shoeybi et al. 2019): on 4 and 8 GPUs they ran at 82 and 77 % of what one
# GPU reached with the smallest, 39 TFLOP/s on a V100. And the model of 1.2 billion alone became 1.64, 2.34 and 2.98
# times as fast on 2, 4 and 8. Compare what is *lost*:

# %%
# measured: Shoeybi et al. 2019, scaling of GPT-2 models by model parallelism, on V100s
shapes = {"grows, 4 GPUs": (4, 2304), "grows, 8 GPUs": (8, 3072)} | {f"1.2B, {t} GPUs": (t, 1536) for t in (2, 4, 8)}
products = {
    name: share_of_products(t, width, 39e12, hardware.V100_32GB.link_bytes_per_s) for name, (t, width) in shapes.items()
}
published = {"grows, 4 GPUs": 0.82, "grows, 8 GPUs": 0.77,
             "1.2B, 2 GPUs": 1.64 / 2, "1.2B, 4 GPUs": 2.34 / 4, "1.2B, 8 GPUs": 2.98 / 8}  # fmt: skip
assert all(published[name] < share for name, share in products.items())  # a bound: at least so much is lost
compare(
    predicted={name: Count(round(100 - 100 * share)) for name, share in products.items()},
    measured={name: Count(round(100 - 100 * share)) for name, share in published.items()},
    tolerance=None,
    columns=("percent lost at least", "published"),
)

# %% [markdown]
# The formula is a bound. The cell has checked that no row goes below it. But it is a loose one: two to five times as much
# was lost. It assumes that an eighth of a product takes an eighth of the time, that norms and GELUs take none, and that
# the link runs at its peak. Which of the three errs most, this page has not tried.
#
# So never more than eight in these papers: what does not fit into a machine is cut between the layers (Narayanan et al.
# 2021, Table 1: 8 GPUs a layer and 35 stages for 530 billion).
#
# **Llama 3, 128k tokens.** The last stage of its training had sequences of 131,072 tokens. A machine's eight GPUs
# already cut the model's heads, width and 8 pairs of keys and values, so the sequence is cut, over 16 ranks (Grattafiori
# et al. 2024, Table 4). Two rows of that table: 16,384 GPUs, 16 stages of layers (lesson 09), 16 sequences a replica, a batch
# of 16 million tokens. For the long one it prints 4 replicas. Can that be?

# %%
for name, seq, context_ranks, replicas in (("8k", 8192, 1, 128), ("128k", 131_072, 16, 4), ("128k", 131_072, 16, 8)):
    gpus, tokens = replicas * 16 * context_ranks * 8, replicas * 16 * seq
    print(f"{name:>4}, {replicas:3d} replicas: {gpus:,d} GPUs, {tokens / 2**20:.0f} Mi tokens, {seq // context_ranks:,d} on a rank")

# %% [markdown]
# It cannot: with 8 both the GPUs and the tokens come out. Each rank has as many tokens as before, and the table has 380
# TFLOP/s instead of 400. That is 5 % of the *operations* per second. The tokens per second are another matter, because
# each token now looks at sixteen times as many others. If the table counts half of the scores, as a causal mask needs:

# %%
llama = zoo.LLAMA3_405B.config
parameters, pairs = 405e9, llama.layers * llama.width
per_token = {seq: 6 * parameters + 6 * seq * pairs for seq in (8192, 131_072)}  # causal: half of the scores
slower = 380 / 400 * per_token[8192] / per_token[131_072]
gathered = 2 * 2 * (131_072 - 8192) * llama.width // llama.heads / 50e9  # one pair of keys and values, 16 bits
products = 8192 / 8 * (2 * parameters / llama.layers + 2 * 131_072 * llama.width) / reached
print(f"tokens per second: {1 - slower:.0%} fewer")
print(f"a layer forward: {1e3 * gathered:.2f} ms to gather keys, {1e3 * products:.1f} ms of products: {gathered / products:.1%}")

# %% [markdown]
# Why are only 5 % of the operations lost? Not because a ring hides the keys. That run gathers all keys and values first,
# in the open, and then computes; its paper names masks of documents as the reason, and the few bytes of 8 pairs (its
# §3.3.2). The last line has the sum for the forward pass, a third of all products: so little is sent that it need not
# hide.
#
# With a ring it would. In a step a rank computes half a square of scores, $2s^2h$ operations for $s$ tokens, and hands
# on keys and values of $h_\text{kv}$ features, $2 \cdot 2s\,h_\text{kv}$ bytes. Computing takes longer as soon as $s \ge
# 2\frac{R}{W}\frac{h_\text{kv}}{h}$, and here tokens do *not* vanish: the longer the sequence, the better it hides.

# %%
print(f"over 50 GB/s it hides from {2 * reached / 50e9 * llama.kv_heads / llama.heads:,.0f} tokens per rank on")

# %% [markdown]
# ## What to keep
#
# | question | answer |
# |---|---|
# | Columns or rows? | columns take $X$ whole and leave parts; rows take parts and leave a sum |
# | In which order? | columns, then rows: nothing is sent between them |
# | What does a block send? | 4 all-reduces of the stream a step; they grow with the tokens, and two of them can hide |
# | What are $f$ and $\bar f$? | nothing forth and a sum back; a sum forth and nothing back |
# | What stays whole? | the stream between, until it is cut along the sequence: $g$ and $\bar g$, a quarter more bytes |
# | How many ranks? | as many as share a machine: where nothing hides, sending takes $\frac{2}{9}\frac{(t-1)R}{hW}$ of the products' time |
# | Fewer keys than ranks? | copies, and their gradients are added up |
# | A sequence too long? | a ring of keys and values, online softmax, zig-zag order |
# | What breaks it silently? | no $f$; one random state for masks of parts; no sum over what is whole |
#
# ## Three exercises
#
# **1.** GPT-3 175B, $t = 8$, the stream whole, a micro-batch of one sequence of 2,048 tokens, 16 bits. How many MB does
# each rank send in a step, for *one* layer?
#
# **2.** A model of width 8,192, on our H100s in one machine of eight; nothing hides. What is the share of the time, as a
# number between 0 and 1, that is spent on products?
#
# **3.** Section 14's Llama 3, with its keys on a ring. Each of 16 ranks has 8,192 tokens and one pair of keys and values,
# 128 features each, in 16 bits. How many MB does a rank send for one layer, forward and backward?

# %%
from course_kit.notebook import self_check

answer_1 = None  # MB sent by each of 8 ranks, for one layer
self_check(answer_1, turns.EXERCISES[0], tolerance=0.01, hint="Section 4 has the messages. How large is the stream of one sequence?")

# %%
answer_2 = None  # between 0 and 1
self_check(answer_2, turns.EXERCISES[1], tolerance=0.01, hint="Section 14 has the function, and the two speeds inside a machine.")

# %%
answer_3 = None  # MB sent by each of 16 ranks, for one layer
self_check(answer_3, turns.EXERCISES[2], tolerance=0.01, hint="Section 12 counts hops. How many are there in all, on 16 ranks?")

# %% [markdown]
# <details><summary>Answers</summary>
#
# 1: the stream has $2 \cdot 2{,}048 \cdot 12{,}288$ bytes, 50.3 MB; an all-reduce sends 1.75 times that, and there are
# four: 352 MB. 2: $\frac29 \cdot 7R/(hW)$ is 0.167, so 0.86 of the time. 3: keys and values have $2 \cdot 2 \cdot
# 8{,}192 \cdot 128$ bytes, 4.19 MB, and make $15 + 15 + 16$ hops: 193 MB.
#
# </details>

# %% [markdown]
# **The lab**, `labs/lab08_tensor_parallelism`, cuts what this page left whole at both ends: an embedding and a
# cross-entropy that are parallel over the *vocabulary*, so that no rank ever holds a full row of logits and the most
# expensive message of section 5 becomes a few numbers a token.
#
# ## Further reading
#
# - Shoeybi et al. 2019, [Megatron-LM](https://arxiv.org/abs/1909.08053): columns, then rows; $f$ and its partner, there called $g$.
# - Shazeer et al. 2018, [Mesh-TensorFlow](https://arxiv.org/abs/1811.02084): named dims on a mesh of processors.
# - Korthikanti et al. 2022, [Reducing Activation Recomputation](https://arxiv.org/abs/2205.05198): sequence parallelism.
# - Narayanan et al. 2021, [Efficient Large-Scale Language Model Training](https://arxiv.org/abs/2104.04473): what goes
#   inside a machine and what between.
# - Liu et al. 2023, [Ring Attention](https://arxiv.org/abs/2310.01889); Milakov and Gimelshein 2018, [Online normalizer
#   calculation for softmax](https://arxiv.org/abs/1805.02867); Grattafiori et al. 2024, [The Llama 3 Herd of
#   Models](https://arxiv.org/abs/2407.21783), §3.3.2.
#
# Lesson 09 cuts the model between its layers.
