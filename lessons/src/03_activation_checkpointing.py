# %% [markdown]
# # 03 · Activation checkpointing
#
# **The question:** how much memory does a second forward pass buy?
#
# | | |
# |---|---|
# | Time | first sitting 50 minutes, second sitting 40; less than a minute of both together is computing on 2 CPU cores |
# | A GPU | is not needed. Section 10 ends on one, if there is one; its kernels keep a few other tensors (`predict/saved.py` says which) |
# | Opens | `train/recompute.py`, `predict/chain.py` |
#
# Your model trains on sequences of 1,024 tokens. You need 4,096. You change the number, and the run dies in its first
# step, out of memory. The weights are what they were. Adam is what it was. It is the hill of lesson 02 that grew: the
# results that the forward pass leaves lying around because the backward pass will ask for them.
#
# Must they lie there? Each of them is the result of a computation. You still have its inputs, and you know the
# recipe. You could throw it away and make it again on the day that it is asked for. The field calls that *activation
# checkpointing*. This course says **recompute**, because a checkpoint is also a file.
#
# It sounds like a bad bargain: twice the work. By the end of this page you will know the price to the last operation.

# %%
from dataclasses import replace
from functools import partial

import torch
from torch import nn

from course_kit import measure
from course_kit.compare import compare
from course_kit.notebook import ask, your_turn
from course_kit.units import Bytes, Count, Ratio
from course_lib import predict
from course_lib.model import text
from course_lib.model.gpt import GPT, Attention, GPTConfig
from course_lib.train.recompute import RecomputedLayers, recompute, recompute_only
from course_pages.lesson03 import pictures as figures
from course_pages.lesson03 import turns
from course_pages.lesson03.explorer import FilmExplorer
from course_pages.shared import gpu
from course_pages.shared.memory import memory_timeline

# %% [markdown]
# ## 1 · A chain of sixteen
#
# To see the idea we need a network in which nothing distracts: sixteen equal layers in a row. Each one bends its
# input (ReLU) and multiplies the result by a small matrix. The input has 4,096 rows of 64 numbers: exactly 1 MiB. We
# call that $X$. A layer's matrix has 16 KiB and will not disturb us.
#
# For its backward pass a layer saves *one* tensor, of $A$ bytes: the bent input. ReLU needs it to know where it cut,
# the product needs it for the gradient of the matrix, and they share it. So how much does autograd hold when all
# sixteen have run?


# %%
class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width, bias=False)

    def forward(self, x):
        return self.linear(torch.relu(x))


N, ROWS, WIDTH = 16, 4096, 64
X = A = Bytes(4 * ROWS * WIDTH)
torch.manual_seed(0)
layers = nn.ModuleList(Layer(WIDTH) for _ in range(N))
x = torch.randn(ROWS, WIDTH, requires_grad=True)

# %%
kept_guess = ask("How many MiB of activations does the chain hold at the peak?", unit="MiB")


# %%
def plain(layers, x):
    for layer in layers:
        x = layer(x)
    return x


def step(forward, layers=layers, x=x):
    layers.zero_grad()
    x.grad = None
    with measure.memory(layers, inputs=x) as record:
        forward(layers, x.clone()).sum().backward()  # x itself is an input; its clone counts as an activation
    return record


def peak_activations(record):
    return Bytes(record.timeline["activations"].max())


memory_timeline(record := step(plain)).show()
compare(guess=kept_guess, predicted=N * A, measured=peak_activations(record), name="activations", unit="MiB")

# %% [markdown]
# There is the hill again, in its purest form: $N \cdot A$, with $N$ layers. (On this page $N$ counts layers, as in the
# papers.) The rest is the input and the matrices, both in blue, and in grey two tensors on their way from one operation
# to the next. They come with any step, so from now on we look at the pink part.
#
# ## 2 · Forget and redo
#
# Now the bargain. We write a function for autograd that runs a *piece* of network without saving anything but its
# input. When its backward pass is called, it runs the piece once more, this time saving everything, and goes backward
# through that.
#
# **Your turn.** Write that backward pass. One thing to think of: the second run must be the same computation, and a
# layer with dropout throws dice. `torch.set_rng_state(dice)` puts their state back to where it was before the first run.
# Do it inside `torch.random.fork_rng([])` (`[]`: no GPU), which restores the state outside when it ends: the dice of the
# rest of the program must not notice. And autograd calls you with saving switched off; `torch.enable_grad()` switches it on.


# %%
@your_turn(turns.check_redo, look="A leaf of its own (`x.detach()`), saving switched on, the old dice in a fork, and `backward`: which is missing?")
def redo(piece, x, dice, gradient):
    """Run piece(x) again and backward from `gradient`. Returns the gradient of x; weights get theirs in .grad."""
    ...


# %% tags=["solution"]
# One solution. Open it when yours passes, or when you are stuck.
@redo.solution
def redo(piece, x, dice, gradient):
    x = x.detach().requires_grad_()
    with torch.enable_grad(), torch.random.fork_rng([]):
        torch.set_rng_state(dice)
        result = piece(x)
    result.backward(gradient)
    return x.grad


# %% [markdown]
# Autograd fixes the form around it. `forward` gets our arguments. `backward` gets the gradient of the result and
# returns one gradient for each of those arguments (`None` for the piece, which is no tensor). What the first has to tell
# the second it leaves in `ctx`.


# %%
class Forget(torch.autograd.Function):
    @staticmethod
    def forward(ctx, piece, x):
        ctx.piece, ctx.dice = piece, torch.get_rng_state()
        ctx.save_for_backward(x)
        with torch.no_grad():
            return piece(x)

    @staticmethod
    def backward(ctx, gradient):
        return None, redo(ctx.piece, *ctx.saved_tensors, ctx.dice, gradient)


# %% [markdown]
# `Forget.apply(piece, x)` runs it. Which pieces? **Your turn.** Cut the chain into **segments** of $K$ layers, and hand
# each one to `forget`. Mind *when* a piece runs: twice, and the second time long after your loop.


# %%
@your_turn(turns.check_segments, look="A piece is a function of x alone. When does a lambda look for its layers? When does partial?")
def in_segments(layers, x, k, forget):
    """x through all layers, k at a time (the last segment may be shorter); forget(piece, x) runs one segment."""
    ...


# %% tags=["solution"]
@in_segments.solution
def in_segments(layers, x, k, forget):
    for start in range(0, len(layers), k):
        x = forget(partial(plain, layers[start : start + k]), x)
    return x


# %% [markdown]
# Is it right? The oracle is the plain chain. We put dropout between the layers, so that the dice matter, and compare
# all 17 gradients (16 matrices and the input) bit for bit. Then the harvest, with $K = 1$: each layer keeps its input
# and forgets the rest.

# %%
forgotten_guess = ask("How many MiB of activations at the peak, when every layer is forgotten?", unit="MiB")


# %%
def every(k, forget=Forget.apply):
    return lambda layers, x: in_segments(layers, x, k, forget)


def gradients(forward, chain_with_dice, x):
    chain_with_dice.zero_grad()
    x.grad = None
    torch.manual_seed(1)
    forward(chain_with_dice, x).square().sum().backward()
    return [x.grad, *(parameter.grad for parameter in chain_with_dice.parameters())]


dicy = nn.ModuleList(nn.Sequential(layer, nn.Dropout(0.1)) for layer in layers)
ours, oracle = gradients(every(1), dicy, x), gradients(plain, dicy, x)
print(f"equal gradients: {sum(map(torch.equal, ours, oracle))} of 17")

measured = peak_activations(step(every(1)))
compare(guess=forgotten_guess, predicted=N * X + A, measured=measured, name="peak, K = 1", unit="MiB")

# %% [markdown]
# *More* than before. We paid a whole extra forward pass and got one MiB less than nothing.
#
# Look at what is kept. Sixteen layers, sixteen inputs of 1 MiB. Those replaced sixteen bent inputs of 1 MiB. And when
# a layer runs again, its own tensor comes on top. To forget pays only if you forget more than you keep.
#
# ## 3 · Every K
#
# So let a piece be longer: $K$ layers, of which we keep one input. There are $N/K$ inputs to keep. In exchange, when
# a piece runs again, the insides of all its $K$ layers are alive at once:
#
# $$\text{peak}(K) = \underbrace{\tfrac{N}{K}\,X}_{\text{inputs, kept}} + \underbrace{K A}_{\text{one segment}}$$
#
# (Chen et al. 2016, §4.) One term falls with $K$, the other rises. Which $K$ would you take, and what is the peak
# there?

# %%
lowest_guess = ask("What is the lowest peak that any K reaches, in MiB?", unit="MiB")

# %%
records = {K: step(every(K)) for K in range(1, N + 1)}
activations = {K: peak_activations(record) for K, record in records.items()}

# %% [markdown]
# **Your turn.** The formula holds where $K$ divides $N$. Write it for every $K$: 16 layers in segments of 5 end with
# a segment of one. That one runs again *first*, when all inputs are still held. (Nor must $A$ be $X$: a layer may
# save three times its input, or a third.) Real steps are the judge.


# %%
@your_turn(turns.check_peak, look="Two moments: the last segment runs again, or, when it is gone, input and all, a full one. What is held at each?")
def peak(n, k, x, a):
    """Bytes at the peak: n layers in segments of k, inputs of x bytes, layers that save a."""
    ...


# %% tags=["solution"]
@peak.solution
def peak(n, k, x, a):
    inputs = -(-n // k)
    last = n - (inputs - 1) * k
    return max(inputs * x + last * a, (inputs - 1) * x + k * a)


# %%
figures.peak_for_every_k(
    {K: Bytes(peak(N, K, X, A)) for K in records},
    activations,
    {K: record.peak.total for K, record in records.items()},
    plain=N * A,
    caption="Orange: at both ends the activations are worse than with everything kept. In between lies a valley, as "
    "low as 8 MiB from K = 3 to 6. Grey: all that is alive, temporaries too; lowest at K = 4.",
).show()
lowest = min(activations.values())
compare(guess=lowest_guess, predicted=Bytes(peak(N, 4, X, A)), measured=lowest, name="lowest", unit="MiB")

# %% [markdown]
# At $K = 4$ the hill has half its height. Why there? A sum of two terms, one falling and one rising, whose product is
# constant ($\frac{N}{K} X \cdot K A = N X A$), is smallest when both are equal. That gives
#
# $$K^\ast = \sqrt{N\,\frac{X}{A}}, \qquad \text{peak}(K^\ast) = 2\sqrt{N\,X\,A}.$$
#
# The memory of a chain grows with the *root* of its depth. For 16 layers that is 8 instead of 16, hardly a
# revolution. For 1,600 layers it is 80 instead of 1,600.
#
# ## 4 · The price
#
# In operations, the forward pass costs $F$, and the backward pass $2F$: each product has two in the backward pass, one
# for the gradient of each factor. Recompute adds a forward pass: from $3F$ to $4F$ with $K = 1$. And how does the price
# depend on $K$? With $K = 16$ the whole chain is one segment.

# %%
price_guess = ask("With K = 16, how many times the operations of a plain step?")


# %%
def flops(forward):
    layers.zero_grad()
    with measure.flops() as counted:
        forward(layers, x).sum().backward()
    return counted.total


layer_flops, plain_flops = 2 * ROWS * WIDTH**2, flops(plain)
times = {f"K = {K}": Ratio(flops(every(K)) / plain_flops) for K in (1, 4, 16)}
compare(guess={"K = 16": price_guess}, predicted=dict.fromkeys(times, Ratio(4 / 3)), measured=times)

# %% [markdown]
# It does not depend on $K$ at all. Every layer runs forward exactly twice, however you bundle. So *if* you recompute,
# take the $K$ with the lowest peak.
#
# ## 5 · The film
#
# You have seen the peak. Here is the whole film: time runs to the right, and each row is a layer. Pink means that its
# insides are held; the thin blue lines are the inputs that we keep. A mark shows what runs: grey forward, orange *again*,
# green backward, which takes twice as long. Below, both are added up, and the dotted line is the plain chain. (`predict.Chain` has it frame by frame.)

# %%
FilmExplorer(layers=16, every=4).show(
    caption="Four small pink triangles instead of a large one. Each segment runs again, is used, and is forgotten; "
    "the blue staircase of kept inputs shrinks with it."
)

# %% [markdown]
# Try these, and say beforehand what will happen. (If nothing reacts, run the cell once.)
#
# 1. Move **K** to 0, *keep everything*. What becomes of the orange marks, and where does the film end?
# 2. Move **K** to 1, then to 16. Which colour is the hill made of in each case?
# 3. Set **A layer saves** to 20 × its input, the most it offers. Where does the lowest of the
# bars *Peak for each K* go?
#
# <details><summary>Answers</summary>
#
# 1. They vanish: nothing runs again. The film ends at 48 instead of 64, three quarters of the time.
# 2. At 1 of blue, inputs; at 16 of pink, insides. Each time there are 17.
# 3. To $K = 1$. The root of $16/20$ is less than one.
#
# </details>
#
# ## 6 · A real model
#
# The library's `recompute(piece, x)` is `Forget`, grown up: several tensors in and out, 16 bits, and no trap (section
# 7, in the second sitting, springs it and prints the function). A GPT's loop says `for block in self.blocks`, so it is
# enough to exchange the list of blocks for one that hands out recomputed segments:
# `model.blocks = RecomputedLayers(model.blocks, every=K)`.
#
# But which $K$? That depends on $A / X$: how much does a block save, compared with its input? (Lesson 02 has the list.)

# %%
CONFIG = GPTConfig(layers=4, width=128, heads=4, vocab_size=256, context=128)
setup = predict.Setup(CONFIG, batch_size=8, seq=128)

# %%
block_guess = ask("How many times its input does a block save?")


# %%
def gpt_step(prepare=lambda model: model, config=CONFIG):
    model = GPT(config, seed=0)
    prepare(model)
    batch = text.stories(seed=0).batch(seed=0, step=0, rank=0, batch_size=8, context=128)
    with measure.memory(model) as record:
        model(*batch).backward()
    with measure.flops() as counted:
        model(*batch).backward()
    return record, counted.total


def held(record):
    return record.end_of("forward").activations


# %%
nothing, one_more = gpt_step(), gpt_step(config=replace(CONFIG, layers=5))
saved_by_a_block = held(one_more[0]) - held(nothing[0])
block, stream = predict.block_activations(setup), Bytes(4 * 8 * 128 * 128)
compare(guess=block_guess, predicted=Ratio(block / stream), measured=Ratio(saved_by_a_block / stream), name="A / X")

# %% [markdown]
# Twenty times. The best segment would have $\sqrt{4 / 20}$ layers, less than one. In GPT-3, with 96 layers, $A / X$
# is 57 (114 bytes for each token and number of the width, and the input 2: Korthikanti et al. 2022), and $\sqrt{96 / 57}$ is 1.3.
# So where scores are kept, each block is a segment of its own, the usual choice.
#
# (One $X$ must be subtracted from the formula. A block saves its input itself, so the input that we keep is a part of its $A$.)

# %%
def recompute_blocks(K):
    return lambda model: setattr(model, "blocks", RecomputedLayers(model.blocks, every=K))


runs = {K: gpt_step(recompute_blocks(K)) for K in (1, 2, 4)}
full = setup.with_(recompute="full")
at_peak = {f"K = {K}, peak": Bytes(peak(4, K, stream, block) - stream) for K in runs}
compare(
    predicted={"K = 1, held": predict.activations(full)} | at_peak,
    measured={"K = 1, held": held(runs[1][0])} | {f"K = {K}, peak": peak_activations(runs[K][0]) for K in runs},
    tolerance=0.001,  # the tokens of the batch are no part of the chain
    unit="MiB",
)

# %% [markdown]
# From 42 MiB to 12. And look at the first row: when the backward pass begins, only 4 MiB are *held*, 2 by the inputs of
# the four blocks and 2 by the last norm and the loss, which go first. At the peak 10 of the 11.5 MiB are the *one*
# block that runs again. With 96 layers it would still be one block.
#
# ### Selective
#
# A third more operations for everything, or could we be choosy? In attention, the softmax of the scores is large: each
# head writes a number for each *pair* of tokens. And it is cheap: two products of small matrices. Throw away those
# alone (Korthikanti et al. 2022, §5). The library's word is `recompute_only(model, Attention, "explicit")`; lesson 00
# printed that method.
#
# How cheap? On the way forward, a layer $d$ wide spends $4\,S^2 d$ operations on those two products for a sequence of
# $S$ tokens, and $24\,S d^2$ on the products with its matrices; and a vocabulary of $V$ takes $2\,SdV$ at the end. In
# our GPT, $S = d = 128$ and $V = 256$.

# %%
selective_guess = ask("Selective recompute: how many per cent more operations does the step need?")

# %%
S, d, V, L = 128, 128, 256, 4
again = L * 4 * S**2 * d
a_step = 3 * (L * (24 * S * d**2 + 4 * S**2 * d) + 2 * S * d * V)
scores = L * (4 * 8 * 4 * S**2 + S**2)  # 8 sequences, 4 heads, 4 bytes a score; and a mask of booleans
whole = predict.activations(setup)

ways = {"none": nothing, "selective": gpt_step(lambda model: recompute_only(model, Attention, "explicit")), "full": runs[1]}
for way, (record, counted) in ways.items():
    print(f"{way:<10} holds {held(record):.1MiB} when the forward pass ends, and computes {counted:.2GFLOP}")
(all_held, all_flops), (less_held, more_flops) = ((held(record), counted) for record, counted in list(ways.values())[:2])
compare(
    guess={"% more operations": selective_guess},
    predicted={"% more operations": Ratio(100 * again / a_step), "% fewer bytes": Ratio(100 * scores / whole)},
    measured={"% more operations": Ratio(100 * (more_flops / all_flops - 1)),
              "% fewer bytes": Ratio(100 * (1 - less_held / all_held))},
    tolerance=1e-9,  # divisions round
)  # fmt: skip

# %% [markdown]
# A fifth of the bytes for not quite 5 % here, where the context is short; at GPT-3's size it is 70 % of the bytes (section 11). (Full
# recompute costs 32 %, and not a third: the product that makes the logits is in no block and runs once.)
#
# That is the story: forget, redo, pay a third; or forget only what is large and cheap. And what runs twice must be the
# same twice.

# %% [markdown]
# ## Second sitting
#
# What stands above is the story, and you may stop here. On another day, run all cells above before you go on. Below:
# what happens when the second run is *not* the same, the library's own function, how far down it goes, the other way to
# make room, what PyTorch brings, and published numbers, seconds among them.
#
# ## 7 · Three ways to be wrong without an error
#
# **Other dice.** Leave out the line about the random numbers (`preserve_rng=False` does it). Then the second run
# drops other elements than the first. The loss is right, since it comes from the first run. The gradients belong to a
# network that was never evaluated. Take a million ones and drop a tenth. How many have a wrong gradient?
#
# **A side effect.** A function that is run twice does everything twice. BatchNorm keeps a running mean: at each
# forward pass it moves a tenth of the way from where it is to the mean of the batch. It starts at 0, and the batch's
# mean is 10. Where is it after one step?

# %%
import warnings

from torch.utils import checkpoint as torchs

from course_kit.notebook import self_check, show
from course_kit.units import Flops
from course_lib.model import hardware, zoo
from course_lib.train.recompute import Recompute

# %%
wrong_guess = ask("Dropout of 10 %, other dice: how many per cent of the gradients are wrong?")
mean_guess = ask("The running mean after a recomputed step?")


# %%
def running_mean(call):
    norm = nn.BatchNorm1d(1)
    data = torch.full((8, 1), 10.0, requires_grad=True)
    call(norm, data).sum().backward()
    return Ratio(norm.running_mean.item())


# %%
p, ones = 0.1, torch.ones(1_000_000, requires_grad=True)
torch.manual_seed(0)
result = recompute(nn.Dropout(p), ones, preserve_rng=False)
result.sum().backward()
wrong = Ratio(100 * (result != ones.grad).double().mean().item())
compare(
    guess={"per cent wrong": wrong_guess, "mean, recomputed": mean_guess},
    predicted={"per cent wrong": Ratio(100 * 2 * p * (1 - p)), "mean, plain": Ratio(10 * 0.1),
               "mean, recomputed": Ratio(10 * (1 - 0.9**2))},
    measured={"per cent wrong": wrong, "mean, plain": running_mean(lambda norm, data: norm(data)),
              "mean, recomputed": running_mean(recompute)},
    tolerance=0.01,
)  # fmt: skip

# %% [markdown]
# An element is wrong if *exactly one* of the two runs dropped it, which has the probability $2\,p\,(1 - p)$. That is
# nearly twice as many as were dropped, and nothing complained. And 1.9 instead of 1: during training nothing shows it,
# since BatchNorm uses the batch's own mean there. It comes out in evaluation. The same holds for a counter, a list that
# collects statistics, a log line: twice.
#
# **Gradients that vanish.** Here is the trap in `Forget`. In the sections above, its input required a gradient. Real
# data does not. We forget the first twelve layers, the expensive trunk, and let the last four run plainly, as
# people do. The trunk's input is data as it comes. How many of the sixteen layers receive a gradient?

# %%
vanish_guess = ask("How many of the 16 layers get a gradient?")


# %%
def layers_with_gradient(forget):
    layers.zero_grad()
    trunk = every(4, forget)(layers[:12], x.detach())
    plain(layers[12:], trunk).sum().backward()
    return Count(sum(layer.linear.weight.grad is not None for layer in layers))


# %%
class Ticketed(Forget):
    @staticmethod
    def forward(ctx, piece, x, ticket):
        return Forget.forward(ctx, piece, x)

    @staticmethod
    def backward(ctx, gradient):
        return *Forget.backward(ctx, gradient), None


def with_ticket(piece, x):
    return Ticketed.apply(piece, x, torch.empty(0, requires_grad=True))


forgets = {"Forget": Forget.apply, "with a ticket": with_ticket, "the library's": recompute}
measured = {name: layers_with_gradient(forget) for name, forget in forgets.items()}
due = {"Forget": Count(4), "with a ticket": Count(N), "the library's": Count(N)}
compare(guess={"Forget": vanish_guess}, predicted=due, measured=measured)

# %% [markdown]
# The trunk will never learn, and the loss still falls, because four layers train. What happened? Autograd left the
# first segment out of the graph: none of the function's *arguments* needed a gradient, and parameters inside a module
# are no arguments. Its result needed none either, so the next segment was left out, and the third.
#
# The repair is the *ticket*: an argument that requires a gradient and holds nothing. It keeps the function in the
# graph.
#
# Two of the library's functions are printed below. Look for your `redo` in the first: `restored` puts the dice back, `run` is the second
# run, and `torch.autograd.backward` goes backward through it. (The `raise` refuses ways of asking for gradients that would
# pass the weights by.) The second is all that the loop over a model's blocks notices: it asks for blocks, and gets segments
# that `recompute` runs.

# %%
display(show(Recompute.backward, docstring=False))
show(RecomputedLayers.__iter__, docstring=False)

# %% [markdown]
# ## 8 · Deeper
#
# And if $2\sqrt{N}$ is still too much? Recompute inside what is recomputed. Make the first half of the chain one piece,
# and treat each half in the same way, down to single layers. Then at most $\log_2 N$ inputs are alive, and the insides
# of one layer. The price: at each of the $\log_2 N$ levels, half of all layers run once more (Chen et al. 2016, §4.4).
# Here $\log_2 16 = 4$.
#
# **Your turn.** One level: a half is run by `run(part, x)`, and what is forgotten goes through `forget(piece, x)`.

# %%
@your_turn(turns.check_in_halves, look="Which half does the backward pass need at once, and so must not be forgotten? A piece is a function of x alone.")
def in_halves(layers, x, run, forget):
    """x through all layers: the first half as one forgotten piece, then the second half."""
    ...


# %% tags=["solution"]
@in_halves.solution
def in_halves(layers, x, run, forget):
    middle = len(layers) // 2
    x = forget(partial(run, layers[:middle]), x)
    return run(layers[middle:], x)


# %%
def halves(layers, x):  # each half is run in the same way, down to single layers
    return layers[0](x) if len(layers) == 1 else in_halves(layers, x, halves, recompute)


compare(
    predicted={"peak, in X": Ratio(4 + 1), "layers that run again": Ratio(N // 2 * 4)},
    measured={
        "peak, in X": Ratio(peak_activations(step(halves)) / X),
        "layers that run again": Ratio((flops(halves) - plain_flops) / layer_flops),
    },
)

# %% [markdown]
# From 8 MiB to 5 for another forward pass. With 1,024 layers it would be from 64 to 11, for four more.
#
# ## 9 · Or carry it to the attic
#
# Do not throw the tensor away, carry it somewhere else. A GPU sits in a computer with more and cheaper memory, DRAM.
# This is **swap**, or offload: no operations, but *traffic*. Each saved tensor crosses the link twice.
#
# PyTorch lets us step in wherever autograd saves a tensor and wherever it takes one back. We play the scene on the CPU:
# what PyTorch holds plays the GPU's memory, and the attic is a plain Python `bytes` object, which `measure.memory` does
# not count.


# %%
class Attic(torch.autograd.graph.saved_tensors_hooks):
    def __init__(self):
        self.moved = Bytes(0)
        super().__init__(self.put, self.take)

    def put(self, tensor):
        if tensor.nbytes < X:  # the matrices stay: they are alive anyway
            return tensor
        self.moved += tensor.nbytes
        return tensor.detach().cpu().numpy().tobytes()

    def take(self, packed):
        if isinstance(packed, torch.Tensor):
            return packed
        self.moved += len(packed)
        return torch.frombuffer(bytearray(packed), dtype=torch.float32).reshape(ROWS, WIDTH)


# %%
moved_guess = ask("How many MiB cross the link in one step of the chain?", unit="MiB")


# %%
def with_attic(layers, x):
    with attic:
        return plain(layers, x)


attic = Attic()
record = step(with_attic)
print(f"{peak_activations(record):.0MiB} of activations at the peak")
compare(guess=moved_guess, predicted=Bytes(2 * 2 * N * X), measured=attic.moved, name="moved", unit="MiB")

# %% [markdown]
# No activations are left, and not an operation was added. But 64 MiB, where 16 on the way out and 16 on the way back
# would do? *Two* operations save the bent input, ReLU and the product. While it is held they share it. Carried away,
# each gets a copy of its own.
#
# So is swap better, once that is repaired? Count seconds. To swap $n$ bytes over a link of $W$ bytes a second takes
# $2n/W$. To compute them again takes their FLOPs, $f$, divided by the speed $R$ of the device. Swap wins if
#
# $$\frac{2n}{W} < \frac{f}{R} \qquad\Longleftrightarrow\qquad \frac{f}{n} > \frac{2R}{W}.$$
#
# On the left stands a property of the *tensor*: how many operations each of its bytes stands for. On the right a
# property of the *machine*. An A100 computes 312 TFLOP/s in bf16. PCI Express 4.0 with 16 lanes carries 16 gigabits a
# second on each lane, of which 128 bits in 130 are data: 31.5 GB/s (PCI-SIG 2017). So the A100 asks for nearly 20,000
# FLOPs a byte. (A T4: a fifth of the speed, half of the link.)
#
# What do the tensors of a layer stand for? Not all that a layer computes is needed to have its insides back. The MLP's second
# product makes what goes onto the stream, and that is not saved. Attention's last product need not be repeated either. To
# find out how much really is, we can ask PyTorch's own recompute, which stops as soon as it has what it needs. With $T$
# tokens we expect it to repeat the first of the MLP's two products ($8\,Td^2$ of $16\,Td^2$), three quarters of attention's
# products with matrices ($6\,Td^2$ of $8\,Td^2$), and both products around the scores ($4\,STd$).


# %%
def run_again_in(layer):
    x = torch.randn(8, S, d, requires_grad=True)
    with measure.flops() as kept:
        layer(x).sum().backward()
    with measure.flops() as redone:
        torchs.checkpoint(layer, x, use_reentrant=False).sum().backward()
    return Flops(redone.total - kept.total)


a_block, T = GPT(CONFIG).blocks[0], 8 * S
compare(
    predicted={"MLP": Flops(8 * T * d**2), "attention": Flops(6 * T * d**2 + 4 * S * T * d)},
    measured={"MLP": run_again_in(a_block.mlp), "attention": run_again_in(a_block.attention)},
    unit="MFLOP",
)

# %% [markdown]
# Now GPT-3's tensors, in the letters of Korthikanti et al. 2022 (§4.1, for the bytes of a layer; $s$ tokens, $b$
# sequences, width $h$, $a$ heads; so far they were $S$, $T/S$ and $d$). The MLP saves $19\,sbh$ bytes, for $8\,sbh^2$ operations. Attention saves $11\,sbh$
# besides the scores, for $6\,sbh^2$, and $2\,s^2bh$ to mix the values. The scores save $5\,as^2b$, for $2\,s^2bh$. And
# the input of a layer has $2\,sbh$ bytes, with the whole layer before it to make it again: $24\,sbh^2 + 4\,s^2bh$. In
# each quotient $sb$ cancels.


# %%
def break_even(gpu, number_format, gigabits_a_lane):
    link = gigabits_a_lane * 1e9 * 16 * (128 / 130) / 8
    return predict.swap_break_even(gpu.peak(number_format), link)


s, h, a = zoo.GPT3_175B.config.context, zoo.GPT3_175B.config.width, zoo.GPT3_175B.config.heads
figures.swap_or_recompute(
    {"scores": 2 * h / (5 * a), "MLP": 8 * h / 19, "attention, the rest": (6 * h + 2 * s) / 11,
     "a layer's input": (24 * h + 4 * s) / 2},
    {"T4, PCIe 3": break_even(hardware.T4, "fp16", 8), "A100, PCIe 4": break_even(hardware.A100_80GB, "bf16", 16)},
    caption="What lies left of a machine's line it computes again, what lies right of it is carried. Formulas, all of "
    "them. The insides of a layer lie left of both lines, attention's just left of the T4's; its input lies far to the right.",
)  # fmt: skip

# %% [markdown]
# So recompute the insides, and carry the inputs of the segments to DRAM. (Count the second
# product of the MLP by mistake, and its dot moves to twice the number, beyond the T4's line: the wrong verdict.) And a
# link works while the device computes. If the copies hide behind the computation, swap is free as long as it is no
# *bottleneck* (Rhu et al. 2016; lesson 11 builds it).
#
# ## 10 · PyTorch's own
#
# `torch.utils.checkpoint.checkpoint` comes in two variants. The old one, `use_reentrant=True`, is our `Forget`, trap
# and all: a function whose backward pass calls `backward` again, hence the name. The new one, `use_reentrant=False`,
# works like our attic: it hooks into where autograd saves, puts a *promise* there, and computes when the first promise
# is called in. And it stops early: it leaves out the last product in each of the $N/K$ segments.


# %%
def save_on_cpu(layers, x):
    with torch.autograd.graph.save_on_cpu():
        return plain(layers, x)


old, new = (partial(torchs.checkpoint, use_reentrant=reentrant) for reentrant in (True, False))
ways = {"ours": every(4), "save_on_cpu": save_on_cpu, "reentrant": every(4, old), "not reentrant": every(4, new)}
for name, forward in ways.items():
    assert all(map(torch.equal, gradients(forward, dicy, x), oracle)), name

# %%
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    print(f"data into the old one: {layers_with_gradient(old)} of {N} layers get a gradient, and a warning says")
print(caught[-1].message)

runs_of_a_layer = {"ours": 4 * N, "save_on_cpu": 3 * N, "reentrant": 4 * N, "not reentrant": 4 * N - N // 4}
compare(
    predicted={name: Flops(runs * layer_flops) for name, runs in runs_of_a_layer.items()},
    measured={name: flops(forward) for name, forward in ways.items()},
    unit="GFLOP",
)

# %% [markdown]
# The `assert` passed: all four give the gradients of the plain chain, dropout included. The second is the attic:
# inside `save_on_cpu`, all that autograd saves moves to DRAM, parameters too, and on a CPU it is there already.
#
# For **selective** recompute PyTorch asks for a *policy*: a list of operations whose results shall be kept.
# Everything else inside the checkpoint is computed again. Keep the products with weights (`addmm`), and it should
# compute exactly what `recompute_only` did. Does it?

# %%
keep_products = partial(torchs.create_selective_checkpoint_contexts, [torch.ops.aten.addmm.default])


def policy(model):
    for block in model.blocks:
        block.forward = partial(torchs.checkpoint, block.forward, use_reentrant=False, context_fn=keep_products)


_, counted = gpt_step(policy)
compare(predicted=Flops(8 * (a_step + again)), measured=counted, name="selective, by policy", unit="GFLOP")

# %% [markdown]
# A third more FLOPs: is it a third more *time*? On a GPU you can ask. Below stands a GPT of 12 layers with 2 sequences of 512
# tokens. First it keeps all, then each block's input alone. The bytes are those that the card's allocator holds between
# the two passes. (Without a GPU the second cell prints one line.)

# %%
SHAPE = GPTConfig(layers=12, width=768, heads=12, vocab_size=256, context=512)


def on_the_card(kind, tokens):
    model = GPT(SHAPE, device="cuda")
    if kind == "full":
        model.blocks = RecomputedLayers(model.blocks, every=1)
    forward = partial(model, tokens[:, :-1], tokens[:, 1:])
    elapsed = measure.seconds(lambda: forward().backward(), repeats=3)
    before = torch.cuda.memory_allocated()
    loss = forward()
    return elapsed, Bytes(torch.cuda.memory_allocated() - before)


# %% tags=["varies"]
if problem := gpu.refusal(4 * 2**30):
    print(problem)
else:
    tokens = torch.randint(0, 256, (2, 513), device="cuda")
    both = predict.Setup(SHAPE, batch_size=2, seq=512, device="cuda")
    seen = {kind: on_the_card(kind, tokens) for kind in ("none", "full")}
    compare(
        predicted={k: predict.activations(both.with_(recompute=k)) for k in seen},
        measured={k: nbytes for k, (_, nbytes) in seen.items()},
        tolerance=0.02, unit="MiB",
    )  # fmt: skip
    ratio = seen["full"][0] / seen["none"][0]
    print(f"{torch.cuda.get_device_name()}: {ratio:.2f} × the time, for 1.33 × the FLOPs")

# %% [markdown]
# ## 11 · At scale
#
# **GPT-3 (175B) and MT-NLG (530B).** Korthikanti et al. 2022 (Table 2) give the bytes that one transformer layer keeps on one GPU,
# in 16 bits, with $t$ GPUs sharing each layer: *tensor parallelism* (TP), which lesson 08 builds. It leaves $10\,sbh$
# whole on every GPU; *sequence parallelism* (SP) splits those, too. The paper also prints what selective recompute
# saves and adds.

# %%
TP, SP = {"tensor": 8}, {"tensor": 8, "sequence_parallel": True}
rows = {"one GPU": {}, "8 GPUs, TP": TP, "TP and SP": SP, "TP, SP, selective": SP | {"recompute": "selective"}}
shapes = {"175B": zoo.GPT3_175B, "530B": zoo.MT_NLG_530B}
whole = {size: predict.Setup(shape, batch_size=1, seq=2048, precision="mixed") for size, shape in shapes.items()}
for name, how in {**rows, "full recompute": {"recompute": "full"}}.items():
    a_layer = {size: predict.activations_paper(each.with_(**how), layers=1) for size, each in whole.items()}
    print(f"{name:<18}", *(f"{size}: {nbytes:.0MiB}".ljust(18) for size, nbytes in a_layer.items()))

saved, added = {}, {}
for size, each in whole.items():
    selective = each.with_(recompute="selective")
    kept = predict.activations_paper(selective) / predict.activations_paper(each)
    saved[f"{size}: bytes saved (%)"] = Ratio(100 * (1 - kept))
    added[f"{size}: FLOPs added (%)"] = Ratio(100 * predict.recomputed_flops(selective) / predict.step_flops(each))

# %%
theirs = dict(zip((*saved, *added), (70, 65, 2.7, 1.6)))
print(*(f"{name}: by our count {ours:.3}, the paper prints {theirs[name]}" for name, ours in (saved | added).items()), sep="\n")

# %% [markdown]
# On one GPU a single sequence leaves 2.7 GiB in each of 96 layers. Full recompute is the lowest row, though each GPU keeps
# the whole input there, for a third more operations; selective, with TP and SP, keeps twice that, for one per cent. With it the 530B run gained 29.7 % in throughput over
# full recompute (their Table 5).
#
# One per cent? The bytes agree, as two evaluations of one formula should, and the FLOPs do not: the paper prints *three times* as many. Who is
# right? Its equations 7 and 8 count a step without and with selective recompute, and differ by $12\,s^2bh$ for each layer.
# That is what the two products around the scores take in a whole step, forward and backward. But only their forward part runs again, $4\,s^2bh$, and
# section 6 has counted it to the last operation.
#
# Fused attention keeps no scores. There the 20 of section 6 are 16, and of 96 such layers segments of *two* are better: a
# peak of 79 $X$, not 111.
#
# In seconds, the third of section 4 is a promise that a machine keeps more or less well. Here is our chain on your machine:

# %% tags=["varies"]
seconds = {K: measure.seconds(lambda K=K: every(K)(layers, x).sum().backward()) for K in (4, N)}
kept = measure.seconds(lambda: plain(layers, x).sum().backward())
measured = {f"K = {K}": Ratio(value / kept) for K, value in seconds.items()}
compare(predicted=dict.fromkeys(measured, Ratio(4 / 3)), measured=measured, tolerance=None)

# %% [markdown]
# In the paper full recompute costs *more* than the third: 39 % on their 22B layer (Table 4). There a backward pass
# takes only one and a half times as long as a forward pass, 11.9 ms and 7.7 ms, so that a forward pass more weighs
# more.
#
# **Ten times deeper for 20 %.** The README of `cybertronai/gradient-checkpointing` promises feed-forward models more
# than ten times larger for 20 % more computation time. Keeping all needs $N$, the best $K$ needs $2\sqrt{N}$, so the
# quotient is $\sqrt{N}/2$, and 10 from 400 layers on. Does a chain of 400 do it?

# %%
thin = torch.randn(64, 16, requires_grad=True)
deep = nn.ModuleList(Layer(16) for _ in range(400))
one = Bytes(4 * 64 * 16)
compare(
    predicted={"all kept": 400 * one, "K = 20": 2 * 20 * one},
    measured={"all kept": peak_activations(step(plain, deep, thin)), "K = 20": peak_activations(step(every(20), deep, thin))},
    unit="KiB",
)

# %% [markdown]
# It does. And the 20 % are what a clock shows where a backward pass takes four times as long as a forward pass,
# $\frac{1}{1 + 4}$. Chen et al. (2016, abstract) took a residual network of 1,000 layers from 48 GB to 7 for 30 % more
# time. That is a seventh, and for 1,000 equal layers our formula says a sixteenth: real layers are not equal (the lab
# is about those), and weights do not shrink.
#
# ## What to keep
#
# | question | answer |
# |---|---|
# | What does recompute keep? | the input of each segment: $\frac{N}{K} X$ between the passes |
# | What is the peak? | $\frac{N}{K} X + K A$, least at $K = \sqrt{N X / A}$ |
# | What does it cost? | one forward pass, $\frac43$ of a step, whatever $K$ is |
# | And a transformer? | with scores, $A$ is 20 $X$ (4 layers), 57 $X$ (96): every block is a segment; fused, 16 $X$ (96): two blocks |
# | Can it be cheaper? | selective: the scores alone. Large bytes, few FLOPs |
# | When is swap better? | when a byte stands for more than $2R/W$ FLOPs: segment inputs, not insides |
# | What goes wrong silently? | other dice, side effects, inputs without a gradient |
#
# ## Three exercises
#
# **1.** A chain has 64 layers, and each saves four times its input ($A = 4X$). Which $K$ has the lowest peak? (If
# several have, the smallest.)
#
# **2.** You must recompute a BatchNorm whose momentum is 0.1, so its running mean moves twice in each step. Which
# momentum makes two moves as long as one move was before?
#
# **3.** Our chain recomputes its *last* segment, too, although its insides were there a moment ago. Change `frugal`, so
# that it runs the last segment plainly. Guess first: with $K = 4$, how many layer runs does it save, and how many MiB is
# the peak? Your own `frugal` is measured.

# %%
answer_1 = None  # K

self_check(answer_1, turns.EXERCISES[0], hint="Section 3 has the root. Which of X and A stands above the line?")

# %%
answer_2 = None  # a momentum

moved = None if answer_2 is None else turns.mean_after_two_moves(answer_2)
self_check(moved, 1, tolerance=0.001, hint="It checks where the mean is. After two moves, (1 - m)² of the old one remains.")


# %%
def frugal(layers, x):
    return in_segments(layers, x, 4, Forget.apply)  # the first twelve layers like this, and the others?


answer_3 = None  # your guess: [layer runs saved, MiB at the peak]

saved = (flops(every(4)) - flops(frugal)) / layer_flops
measured = [saved, peak_activations(step(frugal)) / 2**20] if saved else "nothing saved yet"
hint = f"Your `frugal` saves {saved:g} layer runs. Once it saves some: which segment's insides exist when the peak comes?"
self_check(answer_3, measured, hint=hint)

# %% [markdown]
# <details><summary>Answers</summary>
#
# 1. 4: $\sqrt{64\,X / A} = \sqrt{64 / 4}$. The peak is $16 X + 4 A = 32 X$.
# 2. $1 - \sqrt{0.9} \approx 0.0513$, because $(1 - m)^2$ should be 0.9.
# 3. `return plain(layers[12:], in_segments(layers[:12], x, 4, Forget.apply))`. It saves 4 of the 16 layer runs, and the
# peak is 7 MiB: three inputs, and the insides of one segment.
#
# </details>
#
# **The lab**, `labs/lab03_activation_checkpointing`, has a chain whose layers are *not* equal: find the segments that
# fit a byte budget with the fewest operations, and run them for real.
#
# ## Further reading
#
# - Chen et al. 2016, [Training deep nets with sublinear memory cost](https://arxiv.org/abs/1604.06174): §4 is the chain.
# - Korthikanti et al. 2022, [Reducing activation recomputation](https://arxiv.org/abs/2205.05198): selective, §5.
# - Rhu et al. 2016, [vDNN](https://arxiv.org/abs/1602.08124): the attic, with copies that hide.
# - PyTorch, [torch.utils.checkpoint](https://docs.pytorch.org/docs/stable/checkpoint.html).
#
# [Lesson 04 · Mixed precision](04_mixed_precision.ipynb) asks which tensors can afford 16 bits.
