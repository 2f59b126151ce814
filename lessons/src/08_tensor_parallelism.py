# %% [markdown]
# # 08 · Tensor parallelism
#
# **The question:** what if one layer does not fit? And what if one sequence does not?
#
# | | |
# |---|---|
# | Time | first sitting 55 minutes, second sitting 40; less than a minute of both together is computing on 2 CPU cores |
# | A GPU | changes nothing in what is held and sent. It changes where you may do it: section 11 |
# | Opens | `collectives/operators.py`, `parallel/tensor.py` |
#
# Data parallelism gave every rank the whole model. That was its strength, and here is its end. 175 billion parameters
# take 350 GB in 16 bits, before anyone has trained them for a step. The largest card in lesson 02's table holds 141.
# A thousand such cards do not help: each would have to hold all of it.
#
# So the model itself must be cut. The next lesson cuts it between layers. This one cuts *through* the layer, through
# the matrix, and the question is where to put the knife.

# %%
import torch
import torch.distributed as dist
import torch.nn.functional as F

from course_kit import measure, ranks
from course_kit.compare import compare
from course_kit.notebook import ask, self_check, show, your_turn
from course_kit.units import Bytes, Count
from course_lib import predict
from course_lib.collectives import algorithms as collectives
from course_lib.collectives.operators import all_gather, all_reduce, f_bar, own_part
from course_lib.model import text
from course_lib.model.gpt import GPT, GPTConfig
from course_lib.parallel.layout import Layout, contract, steps
from course_lib.parallel.tensor import ColumnParallelLinear, RowParallelLinear
from course_lib.parallel.tensor_gpt import ParallelGPT, whole_state_dict
from course_lib.train.step import train_step
from course_pages.lesson08 import pictures as figures
from course_pages.lesson08.explorer import MatmulExplorer

# %% [markdown]
# ## 1 · One matrix, two knives
#
# A linear layer is $H = XA$: $X$ has a row for each token and a column for each feature; $A$ has a row for each feature
# that comes in and a column for each that goes out. $A$ is what does not fit. There are two ways to halve it, and they
# are not alike.
#
# Cut it **by columns**, and each rank computes some of the features that go out, from all of $X$. Cut it **by rows**,
# and each rank needs only its features of $X$, but what it computes is a *term*: the result is the sum over the ranks.
#
# $$X\,[A_1\; A_2] = [X A_1\;\; X A_2] \qquad\qquad [X_1\; X_2]\begin{bmatrix}A_1\\A_2\end{bmatrix} = X_1 A_1 + X_2 A_2$$
#
# **Before you run the cells below:** 4 ranks, 64 tokens, 128 features in and out, float32, so that $H$ has 32.8 kB. By
# columns each rank keeps the features that it computed. By rows we form the sum, with lesson 06's all-reduce. How many
# kB does each rank send?

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
# bytes of $H$. (The operating system counted; what it found on top are the backend's headers.)
#
# Neither is better. Look at what each *takes* and what it *leaves*: columns take $X$ whole and leave $H$ in parts; rows
# take $X$ in parts and leave $H$ whole. One fits into the other like a plug into a socket.
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
# Of 512 hidden features a rank has 128, and every column of $B$ wants all. Somebody would have to gather first.
#
# Drawing this for each combination is tedious, so let names do it (Mesh-TensorFlow's idea, Shazeer et al. 2018). Give
# each dim a name, and say which one is cut over the axis of ranks called `tensor`. A product sums over the dim that
# both factors have. If that one is cut, each rank is left with a term. If another is cut, so is the result.
#
# And guess two of the bills: on 4 ranks, $H$ of 131 kB, $Y$ of 32.8 kB, and at the end every rank has the whole $Y$.

# %%
def layouts(first, second):
    """The hidden layer as it is computed and as B needs it; and the result."""
    x = Layout("token width", {} if first == "columns" else {"width": "tensor"})
    a = Layout("width hidden", {"hidden" if first == "columns" else "width": "tensor"})
    needed = Layout("token hidden", {} if second == "columns" else {"hidden": "tensor"})
    b = Layout("hidden width", {"width" if second == "columns" else "hidden": "tensor"})
    return contract(x, a), needed, contract(needed, b)


ways = {f"A by {a}, B by {b}": (a, b) for a in ("columns", "rows") for b in ("columns", "rows")}
for name, way in ways.items():
    computed, needed, result = layouts(*way)
    between = ", ".join(map(str, steps(computed, needed))) or "nothing"
    print(f"{name}: H is [{computed}], B needs [{needed}]: {between}")
gelu = [F.gelu(torch.tensor(x)).item() for x in (1.0, -2.0, -1.0)]
print(f"GELU(1) + GELU(-2) = {gelu[0] + gelu[1]:.3f}, but GELU(1 - 2) = {gelu[2]:.3f}")
guess_best = ask("A by columns, B by rows: how many kB does each rank send?", unit="kB")
guess_twice = ask("A and B by columns: how many kB?", unit="kB")

# %% [markdown]
# (The last line is why a term cannot wait for its sum until after the GELU.) The names told us the messages, and lesson
# 06 their prices. Now all four ways, for real.


# %%
def mlp(x, a, b, first, second):
    hidden = x @ own_part(a, 1) if first == "columns" else own_part(x, 1) @ own_part(a, 0)
    if (first, second) == ("columns", "columns"):
        hidden = all_gather(hidden, 1)
    elif (first, second) == ("rows", "columns"):
        hidden = all_reduce(hidden)
    elif (first, second) == ("rows", "rows"):  # lesson 06's own: gloo's makes an all-reduce of it
        hidden = collectives.reduce_scatter(hidden.T).T
    y = F.gelu(hidden) @ own_part(b, 1 if second == "columns" else 0)
    return all_gather(y, 1) if second == "columns" else all_reduce(y)


def bytes_sent(*way):
    torch.manual_seed(0)
    x, a, b = torch.randn(64, 128), torch.randn(128, 512), torch.randn(512, 128)
    with measure.traffic() as sent:
        y = mlp(x, a, b, *way)
    torch.testing.assert_close(y, F.gelu(x @ a) @ b, rtol=1e-3, atol=1e-2)
    return sent.sent_bytes


# %%
def price(first, second):
    computed, needed, result = layouts(first, second)
    moved = [(step, 4 * 64 * 512) for step in steps(computed, needed)]
    moved += [(step, 4 * 64 * 128) for step in steps(result, Layout("token width"))]
    return sum((getattr(predict, step.operation)(n_bytes, 4).bytes for step, n_bytes in moved), Bytes(0))


compare(
    guess={"A by columns, B by rows": guess_best, "A by columns, B by columns": guess_twice},
    predicted={name: price(*way) for name, way in ways.items()},
    measured={name: ranks.run(bytes_sent, *way, world_size=4)[0] for name, way in ways.items()},
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
# - Set 8 ranks. Which share of $A$ has rank 5, and what happens to the bytes?
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
# Attention is the same story with other names. Heads are its hidden features: each rank computes some of them from
# beginning to end. Here it is unsplit.
#
# **Your turn.** Split it over the ranks. Which matrices are cut by columns, which by rows, and what is sent?


# %%
def attention(x, q, k, v, out, heads):
    parts = ((x @ matrix).unflatten(-1, (heads, -1)).transpose(0, 1) for matrix in (q, k, v))
    return F.scaled_dot_product_attention(*parts, is_causal=True).transpose(0, 1).flatten(1) @ out


def check_attention(function):
    def on_each_rank():
        torch.manual_seed(0)
        given = *torch.randn(4, 32, 32, dtype=torch.float64), 8
        x = torch.randn(16, 32, dtype=torch.float64)
        with measure.flops() as whole:
            expected = attention(x, *given)
        with measure.traffic() as sent, measure.flops() as own:
            y = function(x, *given)
        return (y - expected).abs().max().item(), own.total / whole.total, sent.total_bytes

    off, share, sent = map(max, zip(*ranks.run(on_each_rank, world_size=4)))
    assert off < 1e-9, f"the result should be that of all heads, but is off by {off:.2g}"
    assert share == 1 / 4, f"a rank of 4 should make a quarter of the operations, but makes {share:.0%}"
    assert sent == 6144, f"a rank should send one all-reduce of 16 × 32 float64, 6,144 bytes, but sends {sent:d}"


# %%
@your_turn(check_attention, look="own_part(matrix, 1) are this rank's columns. What does `attention` do with fewer heads?")
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
# One message again. And no head is ever in two places, so there can be no more ranks than heads.
#
# ## 4 · The way back
#
# That was the forward pass. Now look at $X$ again, which every rank holds whole. Rank 1 used it for its columns, rank 2
# for its own. The gradient of $X$ is the sum of what comes back along *all* of these ways:
#
# $$\frac{\partial L}{\partial X} = \sum_{r} \frac{\partial L}{\partial H_r} A_r^{\mathsf T}$$
#
# The forward pass did nothing at that place, so autograd does nothing there on the way back. Somebody notices, and puts
# an all-reduce in front of the layer. Who is right?


# %%
def gradient_of_x(enter):
    torch.manual_seed(0)
    x, a, b = (torch.randn(*shape, dtype=torch.float64) for shape in ((8, 16), (16, 64), (64, 16)))
    whole = x.clone().requires_grad_()
    expected = F.gelu(whole @ a) @ b
    expected.square().sum().backward()
    x.requires_grad_()
    y = f_bar(F.gelu(enter(x) @ own_part(a, 1)) @ own_part(b, 0))  # f_bar: an all-reduce on the way forth only
    y.square().sum().backward()
    return (y - expected).norm() / expected.norm(), (x.grad - whole.grad).norm() / whole.grad.norm()


for name, enter in {"nothing": lambda x: x, "an all-reduce": f_bar}.items():
    off_y, off_gradient = ranks.run(gradient_of_x, enter, world_size=4)[0]
    print(f"{name} in front: Y is off by {off_y:.0%}, the gradient of X by {off_gradient:.0%}")

# %% [markdown]
# Neither. The first is the dangerous one: the loss is right to the last digit, and everything below this layer learns
# from a gradient of which most is missing. The second adds four equal copies of $X$.
#
# What is needed does *nothing* in the forward pass and adds up in the backward pass. We call it $f$, as Megatron-LM
# does. Its partner $\bar f$ is the other way round, and stood in the cell already: it adds up in the forward pass and
# does nothing in the backward pass, because the gradient of a sum goes to each of its terms unchanged. Such pairs are
# called **conjugate**.
#
# **Your turn.** Write what $f$ does on the way back. `grad` is this rank's part of the gradient; autograd only lends it
# to you.


# %%
def as_operator(backward):
    """An autograd function that does nothing forward, and `backward` on the way back."""

    class Enter(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.view_as(x)

        @staticmethod
        def backward(ctx, grad):
            return backward(grad)

    return Enter.apply


def check_f(function):
    off_y, off = ranks.run(lambda: gradient_of_x(as_operator(function)), world_size=4)[0]
    assert off < 1e-12, f"the gradient of X should be whole, but is still off by {off:.0%}"
    lent = ranks.run(lambda: (function(grad := torch.ones(2)), grad)[1].tolist(), world_size=2)[0]
    assert lent == [1, 1], f"the gradient that was lent should stay as it was, but became {lent}"


# %%
@your_turn(check_f, look="`clone()` makes memory of your own, and dist.all_reduce adds up in place.")
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
# front of each on the way back. Each is as large as the **stream**, tokens times width. Lesson 07's all-reduce came
# once a step and could hide. These come four times in *each layer*, and the next product waits for them.
#
# ## 5 · A whole GPT, cut
#
# `ParallelGPT` copies a GPT and replaces each layer that has a matrix by this rank's part of it; the forward pass is the
# GPT's own. Norms stay whole, and so do biases behind a sum. The embedding is cut by width, and so is the head, which
# has the same matrix: its logits are one more sum.
#
# Is it the same model? Lesson 07's test: three steps beside a single process, and after each of them all weights, put
# together again, must be the single model's. With SGD, and in float64.


# %%
SMALL = GPTConfig(layers=2, width=64, heads=8, vocab_size=256, context=32)

def batch(step=0):
    return text.stories(seed=0).batch(seed=0, step=step, rank=0, batch_size=4, context=32)


def apart(split, config=SMALL, batch=batch, joined=whole_state_dict):
    single, largest = GPT(config, dtype=torch.float64), 0.0
    ours = split(single)
    pairs = [(model, torch.optim.SGD(model.parameters(), lr=0.1)) for model in (single, ours)]
    for step in range(3):
        for model, optimizer in pairs:
            torch.manual_seed(step)
            train_step(model, optimizer, batch(step))
        whole = joined(ours)
        largest = max(largest, *((whole[name] - p).abs().max().item() for name, p in single.named_parameters()))
    return largest


print("one model after each of three steps:", max(ranks.run(apart, ParallelGPT, world_size=4)) < 1e-12)

# %% [markdown]
# The same model. It is made of two layers, whose forward passes are printed below. Where do $f$ and $\bar f$ stand in
# them? (What `sequence_parallel` is, section 6 tells.)
#
# And the bill? Most of a layer's parameters are in matrices, and of these a rank holds a quarter; of two norms and two
# biases behind sums it holds all, six times the width in each layer, and twice the width in the last norm. What it
# sends in a step: four all-reduces of the stream in each layer; one of the logits; and the stream once gathered behind
# the embedding and once in front of the head, on its way back.

# %%
display(show(ColumnParallelLinear.forward, docstring=False))
display(show(RowParallelLinear.forward, docstring=False))
n_parameters = predict.parameters(SMALL)
print(f"unsplit: {n_parameters:,d} parameters; the stream of this batch: {Bytes(4 * 4 * 32 * 64):kB}")
guess_held = ask("How many parameters has each of 4 ranks?")
guess_sent = ask("How many kB does each send in a step?", unit="kB")


# %%
def bill():
    model = ParallelGPT(GPT(SMALL))
    with measure.traffic() as sent:
        model(*batch()).backward()
    return Count(sum(p.numel() for p in model.parameters())), sent.sent_bytes


width, tokens, whole = SMALL.width, 4 * 32, (6 * SMALL.layers + 2) * SMALL.width
stream, logits = Bytes(4 * tokens * width), Bytes(4 * tokens * SMALL.vocab_size)
messages = 4 * SMALL.layers * predict.all_reduce(stream, 4).bytes + predict.all_reduce(logits, 4).bytes
messages += 2 * predict.all_gather(stream, 4).bytes
held, sent = ranks.run(bill, world_size=4)[0]
display(compare(guess=guess_held, predicted=Count(whole + (n_parameters - whole) // 4), measured=held, name="parameters"))
compare(guess=guess_sent, predicted=messages, measured=sent, tolerance=0.05, unit="kB", name="each rank sends")

# %% [markdown]
# `f` stands in front of the product that is cut by columns, `f_bar` behind the one that is cut by rows: the plug and the
# socket of section 1. The bias comes last, once, behind the sum.
#
# A quarter of the parameters, and a bit. But look at what is sent. Data parallelism would send less than twice its
# gradients, whatever the batch. Here the bytes grow with the *tokens*: double the batch, and you send twice as much.
# And a third of it are logits, for a vocabulary of 256. (The lab gets rid of them.)
#
# ## 6 · What did not shrink
#
# The weights are cut. Are the activations, lesson 02's largest block? Look at the upper half.

# %%
figures.block_on_ranks(
    caption="Grey is the same on every rank, four copies of it. Below, the sequence is cut where the features are not."
).show()
guess_whole = ask("Upper half: percent of the unsplit block's activations that each of 4 ranks keeps?")
guess_cut = ask("Lower half: percent?")

# %% [markdown]
# Heads and hidden features are cut. What lies between is not. (In 16 bits, and with dropout, Korthikanti et al. 2022
# count $sbh\left(10 + \frac{24}{t} + 5\frac{as}{ht}\right)$ bytes a layer on $t$ ranks: with many, the 10 remain.) But
# a norm works on each token alone. So cut the stream along the **sequence** there: each rank normalises its own tokens.
# In front of a column cut the tokens are gathered, $g$; behind a row cut each rank takes its tokens of the sum, $\bar
# g$. And an all-reduce *is* a reduce-scatter and an all-gather, so each becomes two halves.
#
# What does a block keep for the backward pass? Let $n$ be a tensor of tokens times width. Between: the input and the
# output of two norms, $4n$, with a mean and a spread for each token. Inside: queries, keys, values and their mix, $4n$;
# hidden features before and after the GELU, $8n$; the weights of attention. And a mask of one byte for each pair of
# positions, which is never cut.


# %%
def kept(model, run):
    """Bytes that autograd keeps of what `run` computes, without the model's weights."""
    storages = {}

    def keep(saved):
        storages[saved.untyped_storage().data_ptr()] = saved
        return saved

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda saved: saved):
        run()
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    return Bytes(sum(each.untyped_storage().nbytes() for where, each in storages.items() if where not in weights))


def kept_by_a_block(split, parts=1):
    model = split(GPT(SMALL))
    return kept(model, lambda: model.blocks[0](torch.ones(4, 32 // parts, 64, requires_grad=True)))


# %%
def sequence_parallel(gpt):
    return ParallelGPT(gpt, None, sequence_parallel=True)


n, mask = tokens * width, SMALL.context**2
between, inside = 4 * (4 * n + 4 * tokens), 4 * (12 * n + 4 * SMALL.heads * SMALL.context**2)
unsplit = kept_by_a_block(lambda gpt: gpt)
upper = ranks.run(kept_by_a_block, ParallelGPT, world_size=4)[0]
lower = ranks.run(kept_by_a_block, sequence_parallel, 4, world_size=4)[0]
display(
    compare(
        predicted={"unsplit": Bytes(between + inside + mask), "tensor": Bytes(between + inside // 4 + mask),
                   "tensor and sequence": Bytes((between + inside) // 4 + mask)},
        measured={"unsplit": unsplit, "tensor": upper, "tensor and sequence": lower},
        unit="KiB",
    )
)  # fmt: skip
for name, part, guess in (("upper", upper, guess_whole), ("lower", lower, guess_cut)):
    print(f"{name} half: {100 * part / unsplit:.0f} percent (you said {guess.said})")

# %% [markdown]
# The stream was half of what the ranks kept, and now it is cut. Is it really for nothing? Not quite: a rank that keeps
# its own tokens only has to gather the others' *again* in the backward pass, for the gradient of the column cut's
# weight.
#
# **Your turn.** So count. How many bytes does each rank send for one block in one step, if the stream is cut? Each
# gather and each reduce-scatter of a tensor of $n$ bytes sends $\frac{t-1}{t} n$. (Leave out the gradients of what is
# whole; they are small.)


# %%
def check_bytes(function):
    def on_each_rank():
        block = ParallelGPT(GPT(SMALL), None, True).blocks[0]
        x = torch.ones(4, SMALL.context // dist.get_world_size(), SMALL.width, requires_grad=True)
        with measure.traffic() as sent:
            block(x).sum().backward()
        return Bytes(sum(sent.modelled_bytes[name] for name in ("all_gather", "reduce_scatter")))

    for t in (2, 4):
        due, said = ranks.run(on_each_rank, world_size=t)[0], function(int(stream), t)
        wrong = f"{said} bytes on {t} ranks are too {'few' if said < due else 'many'}"
        assert abs(said - due) <= 1, wrong


@your_turn(check_bytes, look="Two pairs of layers. Forward, a gather and a reduce-scatter each. Backward, their mirror, and?")
def block_bytes(stream_bytes, t):
    """Bytes that each of t ranks sends for a block in a step; stream_bytes are the whole stream's."""
    ...


# %% tags=["solution"]
@block_bytes.solution
def block_bytes(stream_bytes, t):
    forward, backward, gathered_again = 4, 4, 2
    return (forward + backward + gathered_again) * stream_bytes * (t - 1) // t


# %% [markdown]
# Ten instead of eight: a quarter more to send, for four times fewer bytes in memory. Megatron-LM hides the two extra
# gathers behind products that run meanwhile, and so does the library.
#
# That is the story: columns, then rows; $f$ and $\bar f$; and the sequence where no feature is cut.

# %% [markdown]
# ## Second sitting
#
# What stands above is the story, and you may stop here. On another day, run all cells above before you go on. Below: a
# failure that no loss will show you, PyTorch's own way to write all this, the other question of this page (one
# *sequence* that does not fit), and what it comes to at the size where it is used.
#
# ## 7 · The same dice
#
# Attention drops some of its weights in training. Those of head 0 are on rank 0, those of head 2 on rank 1, and so on.
# Lesson 07 taught us to seed all ranks alike. Do that here, and let each rank draw a mask for the heads that it has.
# How many of the 28 pairs of heads lose the same weights?


# %%
import dataclasses

from course_kit.units import Flops, Ratio
from course_lib.model import hardware, zoo
from course_lib.parallel import context, tensor
from course_lib.parallel.context import ContextParallelGPT
from course_lib.parallel.mesh import Mesh


def masks(layer):
    torch.manual_seed(0)
    mine = layer(torch.ones(1, 2, 8, 8))  # batch, this rank's 2 heads, queries, keys
    return [(head != 0).int().tolist() for head in all_gather(mine, dim=1)[0]]


def equal_pairs(masks):
    return sum(a == b for i, a in enumerate(masks) for b in masks[:i])


guess_pairs = ask("8 heads on 4 ranks, seeded alike: how many of 28 pairs have equal masks?")

# %%
naive = equal_pairs(ranks.run(lambda: masks(torch.nn.Dropout(0.5)), world_size=4)[0])
ours = equal_pairs(ranks.run(lambda: masks(tensor.SplitDropout(0.5, dim=1)), world_size=4)[0])
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
print("one model, with dropout:", max(ranks.run(apart, sequence_parallel, dropping, world_size=4)) < 1e-12)

# %% [markdown]
# (Drawing a whole mask costs time. Megatron-LM gives each rank a random state of its own for what is cut, and one in
# common for what is whole. Then nothing is equal to one process any more, and nothing has to be.)
#
# ## 8 · PyTorch's own
#
# First a word about the backend. Your formula was checked against the calls that were made, each with its price. What
# does gloo really send for a reduce-scatter?

# %%
def gloo():
    terms, mine = list(torch.ones(4, 32, 64)), torch.empty(32, 64)
    with measure.traffic() as sent:
        dist.reduce_scatter(mine, terms)
    return sent.sent_bytes


due, sent = predict.reduce_scatter(stream, 4).bytes, ranks.run(gloo, world_size=4)[0]
compare(predicted=due, measured=sent, tolerance=None, unit="kB", name="reduce-scatter")

# %% [markdown]
# Twice as much: it makes a whole all-reduce and throws three quarters of the sum away. So on this page's laptop
# sequence parallelism saves memory and costs traffic. NCCL, on GPUs, has a reduce-scatter of its own.
#
# `DTensor` is section 2's idea made into a type: a tensor that carries its layout, and works out in each operation what
# has to be sent. `parallelize_module` says which layer is cut how, one line for each.

# %%
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}


# %%
def beside_pytorch():
    ours, theirs = (GPT(SMALL, dtype=torch.float64).blocks[0] for _ in range(2))
    tensor.cut_block(ours)
    parallelize_module(theirs.mlp, init_device_mesh("cpu", (4,)), plan)
    largest, sent, x = 0.0, {}, torch.linspace(-1, 1, 4096, dtype=torch.float64).view(2, 32, 64)
    for _ in range(3):
        for name, mlp in (("ours", ours.mlp), ("DTensor", theirs.mlp)):
            with measure.traffic() as sent[name]:
                mlp(x.requires_grad_()).square().sum().backward()
            with torch.no_grad():
                _ = [parameter.sub_(0.01 * parameter.grad) for parameter in mlp.parameters()]
            mlp.zero_grad()
        for mine, other in zip(ours.mlp.parameters(), theirs.mlp.parameters()):
            largest = max(largest, (mine - other.to_local()).abs().max().item())
    return largest, {name: each.sent_bytes for name, each in sent.items()}


largest, sent = ranks.run(beside_pytorch, world_size=4)[0]
print("the same weights after each of three steps:", largest < 1e-12)
compare(predicted=dict.fromkeys(sent, 2 * predict.all_reduce(8 * 4096, 4).bytes), measured=sent, tolerance=0.05, unit="kB")

# %% [markdown]
# ## 9 · One sequence that does not fit
#
# A book has 128,000 tokens. Sequence parallelism cuts them *between* the split layers; inside, each rank sees all of
# them, and no more ranks can share a layer than it has heads. So cut the sequence *everywhere*. In **context
# parallelism** each rank has all weights, and its own tokens.
#
# Norms and the MLP do not notice. Attention does: a token needs the keys and values of all tokens before it, and those
# are on other ranks. They come around a ring (Liu et al. 2023): each rank works with the keys that it has, hands them
# on to the next, and takes what comes. So it never sees a whole row of scores, and needs a softmax that can be
# continued.
#
# Say that some keys were seen. Kept are the mix so far, $m = \sum_j e^{s_j} v_j / \sum_j e^{s_j}$, and $\ell = \log
# \sum_j e^{s_j}$. More keys come, and the sum grows to $\ell'$. Then the old mix weighs $e^{\ell - \ell'}$, and each new
# value $e^{s - \ell'}$. No number here can overflow, since no exponent is positive.
#
# **Your turn.** That, in two or three lines: **online softmax** (Milakov and Gimelshein 2018).


# %%
def check_softmax(function):
    torch.manual_seed(0)
    scores, values = 1000 * torch.randn(5, 12, dtype=torch.float64), torch.randn(12, 3, dtype=torch.float64)
    mix, log_sum = torch.zeros(5, 3, dtype=torch.float64), torch.full((5,), -torch.inf, dtype=torch.float64)
    for seen in (4, 8, 12):
        mix, log_sum = function(mix, log_sum, scores[:, seen - 4 : seen], values[seen - 4 : seen])
        off = (mix - scores[:, :seen].softmax(-1) @ values[:seen]).abs().max().item()
        assert off < 1e-9, f"after {seen} of 12 keys the mix should be softmax(scores) @ values, but is off by {off:.2g}"


# %%
@your_turn(check_softmax, look="torch.logaddexp adds in logarithms, and scores.logsumexp(-1) sums the new ones.")
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
def handed_on(tensor):
    rank, p, coming = dist.get_rank(), dist.get_world_size(), torch.empty_like(tensor)
    ends = [(dist.isend, tensor, (rank + 1) % p), (dist.irecv, coming, (rank - 1) % p)]
    for work in dist.batch_isend_irecv([dist.P2POp(*end) for end in ends]):
        work.wait()
    return coming


def ring(q, k, v):
    (seq, features), rank, p = q.shape, dist.get_rank(), dist.get_world_size()
    mix, log_sum, travelling = torch.zeros_like(q), q.new_full((seq,), -torch.inf), torch.stack([k, v])
    for step in range(p):
        source = (rank - step) % p
        if source <= rank:
            scores = q @ travelling[0].T / features**0.5
            future = torch.ones(seq, seq, dtype=torch.bool).triu(1) & (source == rank)
            mix, log_sum = continued(mix, log_sum, scores.masked_fill(future, -torch.inf), travelling[1])
        travelling = handed_on(travelling) if step < p - 1 else travelling
    return mix


# %%
guess_ring = ask("4 ranks: how many kB does each send around the ring?", unit="kB")


# %%
def around_the_ring():
    torch.manual_seed(0)
    q, k, v = (torch.randn(256, 64, dtype=torch.float64) for _ in range(3))
    expected = F.scaled_dot_product_attention(*(each[None, None] for each in (q, k, v)), is_causal=True)[0, 0]
    with measure.traffic() as sent:
        out = ring(*(own_part(each, 0) for each in (q, k, v)))
    zigzag = context.ring_attention(*(context.own_tokens(each, 0)[None, None] for each in (q, k, v)))[0, 0]
    pairs = ((out, own_part(expected, 0)), (zigzag, context.own_tokens(expected, 0)))
    return sent.sent_bytes, *((mine - right).abs().max().item() for mine, right in pairs)


sent, off, library = ranks.run(around_the_ring, world_size=4)[0]
print(f"as attention over the whole sequence: ours {off < 1e-12}, the library's {library < 1e-12}")
compare(guess=guess_ring, predicted=Bytes(3 * 2 * 64 * 64 * 8), measured=sent, tolerance=0.02, unit="kB", name="sent")

# %% [markdown]
# Keys and values, to the next, $c - 1$ times for $c$ ranks. And no rank has held more than one square of scores at a
# time.
#
# The library's `ring_attention` goes further in three ways: it sends while it computes; it has a backward pass, in
# which the gradients of keys and values travel along with them until they are home; and it takes the tokens in another
# order.
#
# ## 10 · Who works when
#
# Look at `if source <= rank` again. Rank 0 has the first tokens, which see almost nothing. In most steps it lets keys
# pass and waits. How unequal are the ranks?

# %%
guess_last = ask("Plain order: how many times the operations of rank 0 does rank 3 make?")

# %% [markdown]
# Count in squares of scores, one rank's tokens by one rank's tokens. Rank $r$ computes its own square, of which the
# mask throws half away, and one for each rank before it: $r + 1$.
#
# So deal the tokens out differently. `zigzag` cuts the sequence into $2c$ pieces and gives each rank an early and a
# late one: 0 and 7, 1 and 6, 2 and 5, 3 and 4. In the first step a rank computes three of the four quarters of its
# square, and in each later step two: 2.25 squares in all for $c = 4$, whoever it is.

# %%
figures.ring_in_time(
    {order: context.work(order, 4) for order in ("plain", "zigzag")},
    caption="Useful scores. In plain order one rank less works in each step, and all wait. Colours: whose keys are here.",
).show()


# %%
def operations(order):
    mine = [torch.ones(1, 1, 64, 64) for _ in range(3)]
    with measure.flops() as counted:
        context.ring_attention(*mine, order)
    return Flops(counted.total)


square = 2 * 2 * 64 * 64 * 64  # scores, and what is mixed with them: two products
squares = {f"plain, rank {rank}": rank + 1 for rank in range(4)} | {"zigzag, each": 2.25}
plain, zigzag = (ranks.run(operations, order, world_size=4) for order in ("plain", "zigzag"))
assert len(set(zigzag)) == 1
print(f"rank 3 over rank 0: {plain[3] / plain[0]:g} (you said {guess_last.said})")
compare(
    predicted={name: Flops(round(square * count)) for name, count in squares.items()},
    measured=dict(zip(squares, (*plain, zigzag[0]))),
)

# %% [markdown]
# Four times as many, and in each step all wait for the slowest. (The picture leaves out what the masks throw away.)
# With zig-zag all are done after 2 useful squares instead of 3.5. And with 16 ranks?

# %%
print(*(f"{order}: {sum(map(max, context.work(order, 16))):g} squares" for order in ("plain", "zigzag")), sep=", ")

# %% [markdown]
# Is the whole GPT still the same model? And does each rank keep a quarter of the activations? (Gradients are sums over
# tokens, so they are added up as in lesson 07: *that* traffic does not grow with the sequence.)


# %%
LONG = dataclasses.replace(SMALL, context=256, attention="fused")


def long_batch(step=0):
    return text.stories(seed=0).batch(seed=0, step=step, rank=0, batch_size=1, context=256)


def own_weights(model):
    return dict(model.named_parameters())


off = max(ranks.run(apart, ContextParallelGPT, LONG, long_batch, own_weights, world_size=4))
print("one model after each of three steps:", off < 1e-12)


# %%
def kept_by_a_step(split):
    model = split(GPT(LONG))
    return kept(model, lambda: model(*long_batch()))


compare(
    predicted={f"{c} ranks": predict.activations(predict.Setup(LONG)) / c for c in (2, 4)},
    measured={f"{c} ranks": ranks.run(kept_by_a_step, ContextParallelGPT, world_size=c)[0] for c in (2, 4)},
    tolerance=0.001,
    unit="KiB",
)

# %% [markdown]
# **PyTorch's own** is `context_parallel`, a block in which `scaled_dot_product_attention` goes around a ring. Does it
# run here?

# %%
from torch.distributed.tensor.experimental import context_parallel


def theirs():
    mesh, parts = init_device_mesh("cpu", (dist.get_world_size(),)), [torch.randn(1, 4, 64, 16) for _ in range(3)]
    try:
        with context_parallel(mesh, buffers=parts, buffer_seq_dims=[2, 2, 2]):
            return F.scaled_dot_product_attention(*parts, is_causal=True).shape
    except NotImplementedError as problem:
        return f"not on this backend: {problem}"


print(ranks.run(theirs, world_size=2)[0])

# %% [markdown]
# It does not: the CPU's attention has no rule for it. On GPUs the fused kernels have one (they return the logarithm of
# the sum beside the mix, as `continued` does). So here our witness was full attention, in one process.
#
# ## 11 · At scale: why it stays inside the machine
#
# Lesson 07 asked when a message hides behind the computing. These four do not hide: the next product waits for them. So
# ask how long they take, compared with the products. Take one token, one layer of width $h$, 16 bits. The matrices have
# $12h^2$ numbers; a step makes $6$ operations with each, $72h^2$, and $t$ ranks share them. The four all-reduces send
# $4 \cdot 2\frac{t-1}{t} \cdot 2h$ bytes from each rank. At $R$ operations a second and $W$ bytes a second,
#
# $$\frac{\text{sending}}{\text{computing}} = \frac{16h\frac{t-1}{t} / W}{72h^2 / (tR)} = \frac{2}{9}\,\frac{(t-1)\,R}{h\,W}.$$
#
# Tokens have vanished: no batch is large enough to make it better. (In lesson 07 it was the size of the model.) What
# helps is a wide model, and a fast link. GPT-3 has $h = 12{,}288$; an H100 that reaches 40 % of its peak sends 450 GB/s
# to another one in the same machine and, with a card of its own, 50 GB/s to another machine.

# %%
reached = 0.4 * hardware.H100_80GB.peak("bf16")
guess_inside = ask("8 ranks in one machine: percent of the time spent on products?")
guess_across = ask("8 ranks, each in another machine: percent?")


# %%
def share_of_products(t, width, flops_per_s, bytes_per_s):
    return 1 / (1 + 2 / 9 * (t - 1) * flops_per_s / (width * bytes_per_s))


for name, link in {"inside the machine": hardware.H100_80GB.link_bytes_per_s, "between machines": 50e9}.items():
    shares = {t: share_of_products(t, 12_288, reached, link) for t in (2, 4, 8, 16, 32)}
    print(f"{name:>18}:", ", ".join(f"{t} ranks {share:.0%}" for t, share in shares.items()))
print(f"(for 8 you said {guess_inside.said} and {guess_across.said})")

# %% [markdown]
# Eight GPUs share a machine. Inside, tensor parallelism costs a tenth; across, half. So the axis that talks most gets
# the ranks that are closest, and a `Mesh` numbers its *last* axis fastest:

# %%
mesh = Mesh({"data": 2, "tensor": 8})
print(mesh)
for axis, does in {"tensor": "splits its layers", "data": "averages gradients"}.items():
    print(f"rank 11 {does} with", mesh.group_of(11, axis))

# %% [markdown]
# **Megatron's tables.** Megatron-LM made this the usual way. Its first models grew with the GPUs that share a layer
# (Shoeybi et al. 2019, Table 1; the smallest on one GPU). Two years later it had pipelines as well, and could choose
# how many GPUs share a layer and how many the layers (Narayanan et al. 2021, Table 1, in part).

# %%
first = {"1.2B": (40, 1536, 16, 1), "2.5B": (54, 1920, 20, 2), "4.2B": (64, 2304, 24, 4), "8.3B": (72, 3072, 32, 8)}
later = {"7.5B": (36, 4096, 32, 4, 1), "18.4B": (40, 6144, 48, 8, 1), "76.1B": (60, 10240, 80, 8, 4),
         "145.6B": (80, 12288, 96, 8, 8), "529.6B": (105, 20480, 128, 8, 35)}  # fmt: skip
billions = {}
for name, (layers, width, heads, t, *pipeline) in (first | later).items():
    shape = GPTConfig(layers, width, heads, vocab_size=51_200, context=2048 if pipeline else 1024)
    billions[name] = Ratio(predict.parameters(shape) / 1e9)
    stages = (*pipeline, 1)[0]
    print(f"{name:>6}: a layer on {t} GPUs, {stages:2d} stages, {billions[name] / t / stages:.2f} billion on each GPU")
# measured: parameters of the trained models, Shoeybi et al. 2019, Table 1, and Narayanan et al. 2021, Table 1
compare(
    predicted=billions,
    measured={name: Ratio(float(name.removesuffix("B"))) for name in billions},
    tolerance=0.02,
    columns=("our formula, 10⁹", "published"),
)

# %% [markdown]
# Never more than eight: in these tables tensor parallelism does not leave the machine, and what does not fit into eight
# GPUs is cut between the layers. (Why 1.2 billion on a V100 of 32 GB? At 16 bytes each they take 19, before the first
# activation.)
#
# And how well did it go? On 8 GPUs the 8.3B model ran at 77 % of what one GPU reached with the smallest one (§5.1.1).

# %%
v100 = share_of_products(8, 3072, 39e12, hardware.V100_32GB.link_bytes_per_s)
# measured: weak scaling on 8 V100s, Shoeybi et al. 2019, section 5.1.1
compare(
    predicted=Ratio(round(100 * v100)),
    measured=Ratio(77),
    tolerance=None,
    columns=("our formula", "published"),
    name="percent",
)

# %% [markdown]
# (One V100 reached 39 TFLOP/s there.) The formula is the best that could be: products as fast in an eighth of their
# size, nothing else to wait for, and a link at its peak. Their stream had 50 MB, and in lesson 06's published table an
# all-reduce of 64 MiB reached 347 of 450 GB/s.
#
# **Llama 3, 128k tokens.** The last stage of its training had sequences of 131,072 tokens. Heads and width cannot be
# cut further, so the sequence is, over 16 ranks (Grattafiori et al. 2024, Table 4). The table prints 4 replicas for
# this row, and then the GPUs do not come out; 8 do.

# %%
short = Mesh({"data": 128, "pipe": 16, "tensor": 8})
long = Mesh({"data": 8, "pipe": 16, "context": 16, "tensor": 8})
for name, mesh, seq, tflops in (("8k", short, 8192, 400), ("128k", long, 131_072, 380)):
    print(f"{name:>4}: {seq // mesh.axes.get('context', 1):,d} tokens on a rank; published: {tflops} TFLOP/s per GPU")
# measured: GPUs of the two runs, Grattafiori et al. 2024, Table 4
compare(
    predicted={"8k": Count(short.size), "128k": Count(long.size)},
    measured={"8k": Count(16_384), "128k": Count(16_384)},
    columns=("the mesh", "published"),
)

# %% [markdown]
# Each rank has as many tokens as before, and 5 % of the speed are lost, for sixteen times the context. Why so little?
# In a step of the ring a rank computes half a square of scores, $2s^2h$ operations for $s$ tokens, and hands on keys
# and values, $2 \cdot 2s\,h_\text{kv}$ bytes. Computing takes longer as soon as
#
# $$s \ge 2\,\frac{R}{W}\,\frac{h_\text{kv}}{h},$$
#
# and here tokens do *not* vanish: the longer the sequence, the better it hides. Llama 3 405B has 128 heads and 8 pairs
# of keys and values:

# %%
llama = zoo.LLAMA3_405B.config
print(f"over 50 GB/s it hides from {2 * reached / 50e9 * llama.kv_heads / llama.heads:,.0f} tokens per rank on")

# %% [markdown]
# It has 8,192. (With so few bytes Llama 3 did not need the ring: it gathers all keys and values, in zig-zag order, and
# computes at once; its paper, §3.3.2.)
#
# ## What to keep
#
# | question | answer |
# |---|---|
# | Columns or rows? | columns take $X$ whole and leave parts; rows take parts and leave a sum |
# | In which order? | columns, then rows: nothing is sent between them |
# | What does a block send? | 4 all-reduces of the stream a step; they grow with the tokens, and nothing hides them |
# | What are $f$ and $\bar f$? | nothing forth and a sum back; a sum forth and nothing back |
# | What stays whole? | the stream between, until it is cut along the sequence: $g$ and $\bar g$, the same bytes (and a quarter more) |
# | How many ranks? | as many as share a machine: $\frac{2}{9}\frac{(t-1)R}{hW}$ |
# | A sequence too long? | a ring of keys and values, online softmax, zig-zag order |
# | What breaks it silently? | no $f$; one random state for masks of parts |
#
# ## Three exercises
#
# **1.** GPT-3 175B, $t = 8$, a micro-batch of one sequence of 2,048 tokens, 16 bits. How many MB does each rank send in
# a step, for *one* layer?
#
# **2.** A model of width 8,192, on our H100s in one machine of eight. What is the share of the time, as a number
# between 0 and 1, that is spent on products?
#
# **3.** The backward pass of the ring. Keys and values go around once more, and the gradients of both travel with
# them and must come home at the end. How many bytes does each of 4 ranks send, for each byte of its own keys?

# %%
answer_1 = None  # MB sent by each of 8 ranks, for one layer

in_mb = 4 * predict.all_reduce(2 * 2048 * 12_288, world_size=8).bytes.to("MB")
display(self_check(answer_1, in_mb, tolerance=0.01, hint="Four all-reduces of the stream, and the stream has 2 · s · h bytes."))

answer_2 = None  # between 0 and 1

inside = share_of_products(8, 8192, reached, hardware.H100_80GB.link_bytes_per_s)
self_check(answer_2, inside, tolerance=0.01, hint="Section 11 has the function, and all four numbers.")

# %%
answer_3 = None  # bytes sent backward by each of 4 ranks, over the bytes of its keys


def sent_backward():
    q, k, v = (torch.ones(1, 1, 8, 4, requires_grad=True) for _ in range(3))
    out = context.ring_attention(q, k, v)
    with measure.traffic() as sent:
        out.sum().backward()
    return sent.total_bytes / k.nbytes


self_check(answer_3, ranks.run(sent_backward, world_size=4)[0], hint="3 steps for keys and values, 4 for their gradients.")

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
