# %% [markdown]
# # 03 · Activation checkpointing
#
# **The question:** how much memory does a second forward pass buy?
#
# | | |
# |---|---|
# | Time | 40 minutes, of which about half a minute is computing on 2 CPU cores |
# | A GPU | changes nothing here: all cells run on the CPU, and the counts are the same on both |
# | Opens | `train/recompute.py`, `train/offload.py`, `predict/chain.py`, `predict/swap.py`, `explore/film.py` |
#
# Your model trains on sequences of 1,024 tokens. You need 4,096. You change the number, and the run dies in its first
# step, out of memory. The weights are what they were. Adam is what it was. It is the hill of lesson 00 that grew: the
# results that the forward pass leaves lying around because the backward pass will ask for them.
#
# Must they lie there? Each of them is the result of a computation. You still have its inputs, and you know the
# recipe. You could throw it away and make it again on the day that somebody asks. The field calls that *activation
# checkpointing*. This course says **recompute**, because a checkpoint is also a file.
#
# It sounds like a bad bargain: twice the work. By the end of this page you will know the price to the last operation,
# and it is a third.

# %%
import math
import warnings
from dataclasses import replace
from functools import partial

import torch
from torch import nn
from torch.utils import checkpoint as torchs

from course_lib import measure, predict
from course_lib.compare import compare
from course_lib.explore import FilmExplorer
from course_lib.figures import recompute as figures
from course_lib.figures.memory import memory_timeline
from course_lib.model import hardware, text, zoo
from course_lib.model.gpt import GPT, Attention, GPTConfig
from course_lib.notebook import ask, self_check, show
from course_lib.train.recompute import Recompute, RecomputedLayers, recompute, recompute_only, segments
from course_lib.units import Bytes, Count, Flops, Ratio

# %% [markdown]
# ## 1 · A chain of sixteen
#
# To see the idea we need a network in which nothing distracts: sixteen equal layers in a row. Each one bends its
# input (ReLU) and multiplies the result by a small matrix. The input has 4,096 rows of 64 numbers: exactly 1 MiB. We
# call that $X$. A layer's matrix has 16 KiB and will not disturb us.
#
# For its backward pass a layer saves *one* tensor: the bent input. ReLU needs it to know where it cut, the product
# needs it for the gradient of the matrix, and they share it. So how much does autograd hold when all sixteen have
# run?
#
# (`predict.Chain` in the next cell is the same chain on paper: how many layers, the bytes of a layer's input, the
# bytes that it saves, and the operations of its product.)


# %%
class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width, bias=False)

    def forward(self, x):
        return self.linear(torch.relu(x))


N, ROWS, WIDTH = 16, 4096, 64
X = Bytes(4 * ROWS * WIDTH)
torch.manual_seed(0)
layers = nn.ModuleList(Layer(WIDTH) for _ in range(N))
x = torch.randn(ROWS, WIDTH, requires_grad=True)
chain = predict.Chain(layers=N, boundary_bytes=X, saved_bytes=X, layer_flops=2 * ROWS * WIDTH**2)

kept_guess = ask("How many MiB of activations does the chain hold at the peak?", unit="MiB")


# %%
def plain(layers, x):
    for layer in layers:
        x = layer(x)
    return x


def step(forward):
    layers.zero_grad()
    x.grad = None
    with measure.memory(layers, inputs=x) as record:
        forward(layers, x.clone()).sum().backward()  # a clone: as if other layers had made it
    return record


def peak_activations(record):
    return Bytes(record.timeline["activations"].max())


memory_timeline(record := step(plain)).show()
compare(guess=kept_guess, predicted=chain.peak(None), measured=peak_activations(record), name="activations", unit="MiB")

# %% [markdown]
# There is the hill again, in its purest form: $N \cdot A$, with $N$ layers of which each saves $A$ bytes. ($N$ counts
# layers on this page, as in the papers; lesson 00 needed it for parameters. Here $A = X$.)
#
# The rest is the input and the matrices, both in blue, and in grey two tensors on their way from one operation to the
# next. They come with any step, so from now on we look at the pink part.
#
# ## 2 · Forget and redo
#
# Now the bargain. We write a function for autograd that runs a piece of network *without* saving anything but its
# input. When its backward pass is called, it runs the piece once more, this time saving everything, and goes backward
# through that.
#
# Autograd fixes the form. `forward` gets our arguments. `backward` gets the gradient of the result and returns one
# gradient for each of those arguments (`None` for the piece, which is no tensor). Whatever the first has to tell the
# second it leaves in `ctx`. And the function is called as `Forget.apply(piece, x)`.
#
# Two lines deserve your attention before you run it. `fork_rng` and `set_rng_state`: what are they for? (The second
# run must be the same computation. A layer with dropout throws dice.)


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
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad(), torch.random.fork_rng([]):
            torch.set_rng_state(ctx.dice)
            result = ctx.piece(x)
        result.backward(gradient)
        return None, x.grad


# %% [markdown]
# Is it right? The oracle is the plain chain. We put dropout between the layers, so that the dice matter, and compare
# all 17 gradients (16 matrices and the input) bit for bit: the same operations on the same numbers, so no tolerance
# is needed.
#
# The library's `segments(layers, K)` cuts a chain into pieces of $K$ layers. For now $K = 1$: each layer is a piece.


# %%
def every(K, wrap=Forget.apply):
    return lambda layers, x: plain([partial(wrap, segment) for segment in segments(layers, K)], x)


def gradients(forward, chain_with_dice, x):
    chain_with_dice.zero_grad()
    x.grad = None
    torch.manual_seed(1)
    forward(chain_with_dice, x).square().sum().backward()
    return [x.grad, *(parameter.grad for parameter in chain_with_dice.parameters())]


dicy = nn.ModuleList(nn.Sequential(layer, nn.Dropout(0.1)) for layer in layers)
ours, oracle = gradients(every(1), dicy, x), gradients(plain, dicy, x)
compare(predicted=17, measured=sum(torch.equal(a, b) for a, b in zip(ours, oracle)), name="equal gradients")

# %% [markdown]
# Right to the last bit. And now the harvest: each layer keeps its input and forgets the rest. What is the peak of the
# activations?

# %%
forgotten_guess = ask("How many MiB of activations when every layer is recomputed?", unit="MiB")

# %%
measured = peak_activations(step(every(1)))
compare(guess=forgotten_guess, predicted=chain.peak(every=1), measured=measured, name="peak, K = 1", unit="MiB")

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
# (Chen et al. 2016, §4.) One term falls with $K$, the other rises. For the code nothing changes: `Forget` does not
# care whether its piece is one layer or four. Which $K$ would you take, and what is the peak there?

# %%
lowest_guess = ask("What is the lowest peak that any K reaches, in MiB?", unit="MiB")


# %%
records = {K: step(every(K)) for K in range(1, N + 1)}
activations = {K: peak_activations(record) for K, record in records.items()}

figures.peak_for_every_k(
    {K: chain.peak(K) for K in records},
    activations,
    {K: record.peak.total for K, record in records.items()},
    plain=chain.peak(None),
    caption="Orange: at both ends the activations are worse than with everything kept. In between lies a valley, as "
    "low as 8 MiB from K = 3 to 6. Count all that is alive (grey), and the floor is at √N alone.",
).show()
compare(
    guess={"K = 4": lowest_guess},
    predicted={f"K = {K}": chain.peak(K) for K in records},
    measured={f"K = {K}": activations[K] for K in records},
    unit="MiB",
)

# %% [markdown]
# Sixteen predictions, sixteen exact hits. At $K = 4$ the hill has half its height.
#
# Why there? A sum of two terms, one falling and one rising, whose product is constant ($\frac{N}{K} X \cdot K A = N X
# A$), is smallest when both are equal. That gives
#
# $$K^\ast = \sqrt{N\,\frac{X}{A}}, \qquad \text{peak}(K^\ast) = 2\sqrt{N\,X\,A}.$$
#
# The memory of a chain grows with the *root* of its depth. For 16 layers that is 8 instead of 16, hardly a
# revolution. For 1,600 layers it is 80 instead of 1,600.
#
# (Did you see that $K = 3$, 5 and 6 reach 8 too? There 16 does not divide, and the last segment is a short one. It
# runs again first, when all inputs are still held, and being short it needs little.)
#
# ## 4 · The price
#
# What did we pay? In operations, the forward pass costs $F$, and the backward pass $2F$: each product has two in the
# backward pass, one for the gradient of each factor. Recompute adds a forward pass. From $3F$ to $4F$ is a third
# more.
#
# And how does the price depend on $K$? Say what you expect for $K = 16$, where the whole chain is one segment.


# %%
def flops(forward):
    layers.zero_grad()
    with measure.flops() as counted:
        forward(layers, x).sum().backward()
    return counted.total


plain_flops = flops(plain)
times = {f"K = {K}": Ratio(flops(every(K)) / plain_flops) for K in (1, 4, 16)}
compare(predicted=dict.fromkeys(times, chain.step_flops(4) / chain.step_flops(None)), measured=times)

# %% [markdown]
# It does not depend on $K$ at all. Every layer runs forward exactly twice, however you bundle. So the rule is: *if*
# you recompute, take the $K$ with the lowest peak. The others cost the same.
#
# In seconds, the third is a promise that a machine keeps more or less well:

# %% tags=["varies"]
seconds = {K: measure.seconds(lambda K=K: every(K)(layers, x).sum().backward()) for K in (4, N)}
kept = measure.seconds(lambda: plain(layers, x).sum().backward())
measured = {f"K = {K}": Ratio(value / kept) for K, value in seconds.items()}
compare(predicted=dict.fromkeys(measured, Ratio(4 / 3)), measured=measured, tolerance=None)

# %% [markdown]
# ## 5 · The film
#
# You have seen the peak. Here is the whole film: time runs to the right, and each row is a layer. Pink means that its
# insides are held; the thin blue lines are the inputs that we keep. Below, both are added up, and the dotted line is
# the plain chain.

# %%
FilmExplorer(layers=16, every=4).show(
    caption="Four small pink triangles instead of a large one. Each segment runs again, is used, and is forgotten; "
    "the blue staircase of kept inputs shrinks with it."
)

# %% [markdown]
# Try these, and say beforehand what will happen. (If nothing reacts, run the cell once.)
#
# - Move **K** to 0, *keep everything*. What becomes of the orange squares, and where does the film end?
# - Move **K** to 1, then to 16. Which colour is the hill made of in each case?
# - Set **A layer saves** to 20 × its input, like a block of a GPT. Where does the lowest *peak for each K* go?
# - Press **Play**. At which moment is the peak? It is not at the end of the forward pass.
#
# The last one is worth a thought. In a plain step the worst moment is the turning point between forward and backward.
# With recompute it comes later: when the *last* segment has run again, and all inputs of the others still wait.
#
# ## 6 · The finished form
#
# Our `Forget` has three weaknesses, and you will meet all of them in the wild: it takes one tensor and returns one;
# it forgets autocast (PyTorch's switch to 16 bits, lesson 04); and there is a trap in it that section 9 springs. The
# library's form is longer by those, and by refusing what would end in a wrong gradient, such as an argument that is
# changed in place. Read `backward` first; it should look familiar.

# %%
show(Recompute, docstring=False)

# %% [markdown]
# Now a real model, the GPT of lesson 00. Its loop says `for block in self.blocks`, so it is enough to exchange the
# list of blocks for one that hands out recomputed segments: `model.blocks = RecomputedLayers(model.blocks, every=K)`.
#
# But which $K$? That depends on $X / A$: how much does a block save, compared with its input? Think of what it
# computes: two norms, queries, keys and values, the scores of four heads, an MLP four times as wide. (Lesson 02 has
# the list.)

# %%
CONFIG = GPTConfig(layers=4, width=128, heads=4, vocab_size=256, context=128)
setup = predict.Setup(CONFIG, batch_size=8, seq=128)


def gpt_step(prepare=lambda model: model, config=CONFIG):
    model = GPT(config, seed=0)
    prepare(model)
    batch = text.stories(seed=0).batch(seed=0, step=0, rank=0, batch_size=8, context=128)
    with measure.memory(model) as record:
        model(*batch).backward()
    with measure.flops() as counted:
        model(*batch).backward()
    return record, counted.total


block_guess = ask("How many times its input does a block save?")


# %%
def held(record):
    return record.end_of("forward").activations


nothing, one_more = gpt_step(), gpt_step(config=replace(CONFIG, layers=5))
saved_by_a_block = held(one_more[0]) - held(nothing[0])
block, stream = predict.block_activations(setup), predict.block_input(setup)
compare(guess=block_guess, predicted=Ratio(block / stream), measured=Ratio(saved_by_a_block / stream), name="A / X")

# %% [markdown]
# Twenty times. The best segment would have $\sqrt{4 / 20}$ layers, less than one. In GPT-3, with 96 layers, $A / X$
# is 57 (lesson 02's $sbh\,(34 + 5as/h)$ is $114\,sbh$ there, and the input is $2\,sbh$), and $\sqrt{96 / 57}$ is 1.3.
# So for a transformer each block is a segment of its own. That is what everybody does, and this is why.
#
# What remains of the 42 MiB of activations that lesson 02 counted? At the peak one block, and the inputs of the other
# three, of half a MiB each. Work it out before you run the cell.


# %%
def recompute_blocks(K):
    return lambda model: setattr(model, "blocks", RecomputedLayers(model.blocks, every=K))


gpt = predict.Chain(layers=4, boundary_bytes=stream, saved_bytes=block, keeps_input=True)
runs = {f"K = {K}": gpt_step(recompute_blocks(K)) for K in (1, 2, 4)}
full = setup.with_(recompute="full")
between = {f"K = {K}": predict.activations(full.with_(every=K)) for K in (1, 2, 4)}
measured = {name: held(record) for name, (record, _) in runs.items()}
display(compare(predicted=between, measured=measured, columns=("held between the passes", "measured"), unit="MiB"))

measured = {name: peak_activations(record) for name, (record, _) in runs.items()}
at_peak = {f"K = {K}": gpt.peak(K) for K in (1, 2, 4)}
compare(predicted=at_peak, measured=measured, tolerance=0.001, columns=("at the peak", "measured"), unit="MiB")

# %% [markdown]
# What is *held* between the passes is exact; at the peak we allowed a thousandth for the tokens of the batch, which
# are no part of the chain. From 42 MiB to 12. But look at the difference between the two tables, where $K = 1$. When
# the backward pass begins, only 4 MiB are held: 2 are the inputs of the four blocks, and 2 belong to the last norm and
# the loss, which go first. At the peak 10 of the 11.5 MiB are the *one* block that runs again. With 96 layers it would
# still be one block.
#
# ### Selective
#
# A third more operations for everything, or could we be choosy? Not all tensors cost the same to make. In attention,
# the softmax of the scores is large: each head writes a number for each *pair* of tokens. And it is cheap: two
# products of small matrices. Throw away those alone (Korthikanti et al. 2022, §5). The library's word for it is
# `recompute_only(model, Attention, "explicit")`; lesson 00 printed that method.
#
# Here is a base for your guess. On the way forward, a layer $d$ wide spends $4\,S^2 d$ operations on those two
# products for a sequence of $S$ tokens, and $24\,S d^2$ on the products with its matrices. In our GPT, $S = d = 128$.

# %%
selective_guess = ask("Selective recompute: how many per cent more operations does the step need?")

# %%
ways = {"none": nothing, "selective": gpt_step(lambda model: recompute_only(model, Attention, "explicit"))}
ways["full"] = runs["K = 1"]
plain_gpt, selective_flops = (predict.step_flops(setup.with_(recompute=way)) for way in ("none", "selective"))

figures.bytes_against_flops(
    {way: (held(record), counted) for way, (record, counted) in ways.items()},
    caption="Lower holds less, further right computes more. The step from none to selective buys a fifth of the bytes "
    "here: the context is short. At GPT-3's size it buys 70 % (section 10).",
).show()
added = Ratio(100 * (selective_flops / plain_gpt - 1))
measured = Ratio(100 * (ways["selective"][1] / nothing[1] - 1))
display(compare(guess=selective_guess, predicted=added, measured=measured, name="per cent more operations"))
compare(
    predicted={way: predict.activations(setup.with_(recompute=way)) for way in ways},
    measured={way: held(record) for way, (record, _) in ways.items()},
    unit="MiB",
)

# %% [markdown]
# (Full recompute costs 32 % here, and not a third: the product that makes the logits is in no block and runs once.)
#
# ### Deeper
#
# And if $2\sqrt{N}$ is still too much? Nothing forbids to recompute inside what is recomputed. Make the first half of
# the chain one piece, and treat each half in the same way, down to single layers. Then at most $\log_2 N$ inputs are
# alive, and the insides of one layer. The price: at each of the $\log_2 N$ levels, half of all layers run once more
# (Chen et al. 2016, §4.4).


# %%
def halves(layers, x):
    layers = list(layers)
    if len(layers) == 1:
        return layers[0](x)
    middle = len(layers) // 2
    x = recompute(halves, layers[:middle], x)
    return halves(layers[middle:], x)


run_again = Count((flops(halves) - plain_flops) // chain.layer_flops)
display(compare(predicted=chain.halves_peak(), measured=peak_activations(step(halves)), name="peak", unit="MiB"))
compare(predicted=Count(N // 2 * math.log2(N)), measured=run_again, name="layers that run again")

# %% [markdown]
# From 8 MiB to 5 for another forward pass. With 1,024 layers it would be from 64 to 11, for four more. Hardly anyone
# goes there, but it is good to know that there is no wall.
#
# ## 7 · Or carry it to the attic
#
# There is another way to make room: do not throw the tensor away, carry it somewhere else. A GPU sits in a computer
# with more and cheaper memory, DRAM. This is **swap**, or offload: no operations, but *traffic*. Each saved tensor
# crosses the link twice.
#
# PyTorch lets us step in wherever autograd saves a tensor and wherever it takes one back. Your machine may have no
# GPU, so we play the scene on the CPU: what PyTorch holds plays the GPU's memory, and the attic is a plain Python
# `bytes` object, which `measure.memory` does not count.


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
# No activations are left at all, and not an operation was added. But 64 MiB, where 16 on the way out and 16 on the
# way back would do? *Two* operations save the bent input, ReLU and the product. While it is held they share it.
# Carried away, each of them gets a copy of its own, and PyTorch's own version has the same blind spot.
#
# So is swap better, once that is repaired? Count seconds. To swap $n$ bytes over a link of $W$ bytes a second takes
# $2n/W$. To compute them again takes their FLOPs, $f$, divided by the speed $R$ of the device in FLOP/s. Swap wins if
#
# $$\frac{2n}{W} < \frac{f}{R} \qquad\Longleftrightarrow\qquad \frac{f}{n} > \frac{2R}{W}.$$
#
# On the left stands a property of the *tensor*: how many operations each of its bytes stands for. On the right a
# property of the *machine*. An A100 computes 312 TFLOP/s in bf16. PCI Express 4.0 with 16 lanes carries 16 gigabits a
# second on each lane, of which 128 bits in 130 are data: 31.5 GB/s (PCI-SIG 2017). So the A100 asks for nearly 20,000
# FLOPs a byte. (The figure also has a T4: a fifth of the speed, half of the link.)
#
# What do the tensors of GPT-3 stand for? For $s$ tokens, $b$ sequences, width $h$ and $a$ heads, the literature
# counts per layer (Korthikanti et al. 2022, §4.1): attention's projections save $11\,sbh$ bytes and take $8\,sbh^2$
# FLOPs; the MLP saves $19\,sbh$ and takes $16\,sbh^2$; the scores save $5\,as^2b$ and take $4\,s^2bh$. And the input
# of a layer has $2\,sbh$ bytes, with the whole layer before it to make it again. In each quotient $sb$ cancels.


# %%
def break_even(gpu, number_format, gigabits_a_lane):
    link = gigabits_a_lane * 1e9 * 16 * (128 / 130) / 8
    return predict.swap_break_even(gpu.peak(number_format), link)


s, h, a = zoo.GPT3_175B.config.context, zoo.GPT3_175B.config.width, zoo.GPT3_175B.config.heads
figures.swap_or_recompute(
    {
        "scores": 4 * s * h / (5 * a * s),
        "projections": 8 * h / 11,
        "MLP": 16 * h / 19,
        "a layer's input": (24 * h + 4 * s) / 2,
    },
    {"T4, PCIe 3": break_even(hardware.T4, "fp16", 8), "A100, PCIe 4": break_even(hardware.A100_80GB, "bf16", 16)},
    caption="The scores lie far to the left: compute them again, anywhere. A layer's input lies far to the right: "
    "if it must go, carry it. In between the machine decides.",
)

# %% [markdown]
# So the two are not rivals. The best plans do both: recompute the insides, and carry the inputs of the segments to
# DRAM. (And a link works while the device computes. If the copies hide behind the computation, swap is free as long
# as it is no *bottleneck*; Rhu et al. 2016 built that. Lesson 11 builds it too.)
#
# **Change one thing.** A newer GPU computes three times as fast, over a link that is twice as fast. In which
# direction does its line move? Decide first, then add `"H100, PCIe 5": break_even(hardware.H100_80GB, "bf16", 32)` to
# the cell.
#
# ## 8 · PyTorch's own
#
# `torch.utils.checkpoint.checkpoint` comes in two variants. The old one, `use_reentrant=True`, is our `Forget`: a
# function whose backward pass calls `backward` again, hence the name. The new one, `use_reentrant=False`, works like
# our attic: it hooks into where autograd saves, puts a *promise* there, and computes when the first promise is called
# in. And it stops as soon as it has what it needs. What does that save? The last thing that a segment computes is a
# product whose result nobody saved. So it leaves out one layer's product in each of the $N/K$ segments.


# %%
def save_on_cpu(layers, x):
    with torch.autograd.graph.save_on_cpu():
        return plain(layers, x)


ways = {"ours": every(4), "save_on_cpu": save_on_cpu}
ways |= {f"{reentrant=}": every(4, partial(torchs.checkpoint, use_reentrant=reentrant)) for reentrant in (True, False)}
oracle = gradients(plain, dicy, x)
for name, forward in ways.items():
    assert all(torch.equal(a, b) for a, b in zip(gradients(forward, dicy, x), oracle)), name

runs_of_a_layer = {"ours": 4 * N, "save_on_cpu": 3 * N, "reentrant=True": 4 * N, "reentrant=False": 4 * N - N // 4}
compare(
    predicted={name: Flops(runs * chain.layer_flops) for name, runs in runs_of_a_layer.items()},
    measured={name: flops(forward) for name, forward in ways.items()},
    unit="GFLOP",
)

# %% [markdown]
# The `assert` passed: all four give the gradients of the plain chain, dropout included, to the bit. The second is the
# attic: inside `save_on_cpu`, all that autograd saves moves to DRAM, parameters too, and on a CPU it is there
# already. (The library's `OffloadSavedTensors` does the same, leaves parameters in peace, and counts what it moves.)
#
# For **selective** recompute PyTorch asks for a *policy*: a list of operations whose results shall be kept.
# Everything else inside the checkpoint is computed again. Keep the products with weights (`addmm`), and the scores
# are what remains of the expensive operations. It should compute exactly what `recompute_only` did. Does it? (Its two
# matrix products over the scores are called `bmm`.)

# %%
keep_products = partial(torchs.create_selective_checkpoint_contexts, [torch.ops.aten.addmm.default])


def policy(model):
    for block in model.blocks:
        block.forward = partial(torchs.checkpoint, block.forward, use_reentrant=False, context_fn=keep_products)


_, counted = gpt_step(policy)
compare(predicted=selective_flops, measured=counted, name="selective, by policy", unit="GFLOP")

# %% [markdown]
# ## 9 · Three ways to be wrong without an error
#
# **Other dice.** Leave out the two lines about the random numbers (`preserve_rng=False` does it). Then the second run
# drops other elements than the first. The loss is right, since it comes from the first run. The gradients belong to a
# network that nobody evaluated. Take a million ones and drop a tenth. How many have a wrong gradient?

# %%
wrong_guess = ask("Dropout of 10 %, other dice: how many per cent of the gradients are wrong?")

# %%
p, ones = 0.1, torch.ones(1_000_000, requires_grad=True)
torch.manual_seed(0)
result = recompute(nn.Dropout(p), ones, preserve_rng=False)
result.sum().backward()

wrong = Ratio(100 * (result != ones.grad).double().mean().item())
compare(
    guess=wrong_guess, predicted=Ratio(100 * 2 * p * (1 - p)), measured=wrong, tolerance=0.01, name="per cent wrong"
)

# %% [markdown]
# An element is wrong if *exactly one* of the two runs dropped it, which has the probability $2\,p\,(1 - p)$. That is
# nearly twice as many as were dropped, and nothing complained. (The finished form remembers 5,056 bytes for each
# segment: `torch.get_rng_state().nbytes`. There lies the whole price of being right.)
#
# **A side effect.** A function that is run twice does everything twice. BatchNorm keeps a running mean: at each
# forward pass it moves a share $m = 0.1$ of the way from where it is to the mean of the batch. It starts at 0. Where
# should it be after one step, and where will it be?


# %%
def running_mean(call):
    norm = nn.BatchNorm1d(1)
    data = torch.full((8, 1), 10.0, requires_grad=True)
    call(norm, data).sum().backward()
    return Ratio(norm.running_mean.item())


once, twice = running_mean(lambda norm, data: norm(data)), running_mean(recompute)
compare(
    predicted={"plain": Ratio(10 * 0.1), "recomputed": Ratio(10 * (1 - 0.9**2))},
    measured={"plain": once, "recomputed": twice},
    tolerance=1e-6,
)

# %% [markdown]
# 1.9 instead of 1. During training nothing shows it, since BatchNorm uses the batch's own mean there. It comes out in
# evaluation. The same holds for a counter, a list that collects statistics, a log line: twice. (Exercise 2 repairs
# BatchNorm by arithmetic.)
#
# **Gradients that vanish.** Here is the trap in `Forget`. In the sections above, its input required a gradient. Real
# data does not. We recompute the first twelve layers, the expensive trunk, and let the last four run plainly, as
# people do. The trunk's input is data as it comes. How many of the sixteen layers receive a gradient?

# %%
data = x.detach()


def layers_with_gradient(wrap):
    layers.zero_grad()
    trunk = every(4, wrap)(layers[:12], data)
    plain(layers[12:], trunk).sum().backward()
    return Count(sum(layer.linear.weight.grad is not None for layer in layers))


with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    reentrant = layers_with_gradient(partial(torchs.checkpoint, use_reentrant=True))

print(f"a warning: {caught[-1].message}")
new = layers_with_gradient(partial(torchs.checkpoint, use_reentrant=False))
compare(
    predicted={"reentrant": Count(4), "not reentrant": Count(N), "ours": Count(N)},
    measured={"reentrant": reentrant, "not reentrant": new, "ours": layers_with_gradient(recompute)},
)

# %% [markdown]
# With the reentrant variant the trunk will never learn. There is a warning, on line forty of a log that scrolls by,
# and the loss still falls, because four layers train. What happened? Autograd left the first segment out of the
# graph: none of the function's *arguments* needed a gradient, and parameters inside a module are no arguments. Its
# result needed none either, so the next segment was left out, and the third.
#
# There are two repairs. PyTorch's is the variant with hooks. Ours is a *ticket*: find the empty tensor in
# `Recompute.forward` above, an argument that requires a gradient and holds nothing.
#
# ## 10 · At scale
#
# **GPT-3 and MT-NLG.** Korthikanti et al. 2022 (Table 2) give the bytes that one transformer layer keeps on one GPU,
# in 16 bits, with $t$ GPUs sharing each layer: *tensor parallelism* (TP), which lesson 08 builds. It leaves $10\,sbh$
# whole on every GPU; *sequence parallelism* (SP) splits those, too. The paper also prints the share of the activations
# that selective recompute saves, and the operations that it adds.

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

published = [
    dict(zip(ours, map(Ratio, values), strict=True)) for ours, values in ((saved, (70, 65)), (added, (2.7, 1.6)))
]
display(compare(predicted=saved, measured=published[0], tolerance=0.01, columns=("our formula", "the paper")))
compare(predicted=added, measured=published[1], tolerance=None, columns=("our formula", "the paper"))

# %% [markdown]
# Read the printed columns from top to bottom: bytes of one layer on each GPU. On one GPU a single sequence leaves
# 2.7 GiB in each of 96 layers. Full recompute is the lowest row, at a third more operations; the row above it keeps
# twice that, for one per cent. With it the 530B run gained 29.7 % in throughput over full recompute (their Table 5).
# That is the third, taken back.
#
# One per cent? In the tables the bytes agree, and the FLOPs do not: the paper prints *three times* as many. Who is
# right? The difference of its equations 8 and 7 is $12\,s^2bh$ for each layer. That is what the two products around
# the scores take in a whole step, forward and backward. But only their forward part runs again, $4\,s^2bh$, and
# section 6 has counted it to the last operation. Selective recompute is even cheaper than its inventors say.
#
# In seconds full recompute costs *more* than the third: 39 % on their 22B layer (Table 4). There a backward pass
# takes only one and a half times as long as a forward pass, 11.9 ms and 7.7 ms, so that a forward pass more weighs
# more. And selective recompute costs 7 % in the same table, far more than its share of the operations: softmax and
# dropout compute little, but they read and write many bytes.
#
# **Ten times deeper for 20 %.** The README of `cybertronai/gradient-checkpointing`, which made the technique popular,
# promises feed-forward models more than ten times larger for 20 % more computation time. Our formula: keeping all
# needs $N$, the best $K$ needs $2\sqrt{N}$. From which depth on is the quotient 10? Another published claim beside
# it: Chen et al. trained a ResNet of 1,000 layers with 30 % more time (told here after secondary sources). (A
# third you have seen: by the rule that a root of the depth remains, GPT-2 XL went from 60 GB to 8 in lesson 02.)

# %%
deep = predict.Chain(layers=400, boundary_bytes=1, saved_bytes=1)
print(f"400 layers: {deep.peak(None) / deep.peak(deep.best_every()):.0f} times smaller")
print(f"a forward pass more: {100 / 3:.0f} % more operations; published for 1,000 layers: 30 % more seconds")

# %% [markdown]
# From 400 layers on. The last line puts operations beside seconds, and so does the README's promise: 20 % is what a
# clock shows where a backward pass takes four times as long as a forward pass, $\frac{1}{1 + 4}$.
#
# One number does not fit. Chen's ResNet went from 48 GB to 7, a seventh, and for 1,000 equal layers our formula says a
# sixteenth. Two reasons are likely: real layers are not equal (the lab is about those), and weights do not shrink.
#
# ## What to keep
#
# | question | answer |
# |---|---|
# | What does recompute keep? | the input of each segment: $\frac{N}{K} X$ between the passes |
# | What is the peak? | $\frac{N}{K} X + K A$, least at $K = \sqrt{N X / A}$ |
# | What does it cost? | one forward pass, $\frac43$ of a step, whatever $K$ is |
# | And a transformer? | $A$ is 20 $X$ and more, so every block is a segment |
# | Can it be cheaper? | selective: the scores alone. Large bytes, few FLOPs |
# | When is swap better? | when a byte stands for more than $2R/W$ FLOPs: twice the speed over the bandwidth |
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
# **3.** Our chain recomputes its *last* segment, too, although its insides were there a moment ago. Write `frugal`,
# which runs the last segment plainly. With $K = 4$, how many layer runs does it save, and what happens to the peak?

# %%
answer_1 = None  # K

wide = predict.Chain(layers=64, boundary_bytes=1, saved_bytes=4)
self_check(answer_1, wide.best_every(), hint="Section 3 has the root. Which of X and A stands above the line?")

# %%
answer_2 = None  # a momentum

self_check(answer_2, 1 - math.sqrt(0.9), tolerance=0.001, hint="After two moves, (1 - m)² of the old mean remains.")


# %%
def frugal(layers, x):
    *first, last = segments(layers, 4)
    for segment in first:
        x = Forget.apply(segment, x)
    return Forget.apply(last, x)  # change this line


# When it runs, replace None by [(flops(every(4)) - flops(frugal)) / chain.layer_flops, peak_activations(step(frugal))]
answer_3 = None

self_check(answer_3, [4, 7 * X], hint="The last segment's insides exist once, and its input need not be kept for them.")

# %% [markdown]
# **The lab**, `labs/lab03_activation_checkpointing`, has a chain whose layers are *not* equal: find the segments that
# fit a byte budget with the fewest operations, and run them for real. Next comes lesson 04, which asks which tensors
# can afford 16 bits.
