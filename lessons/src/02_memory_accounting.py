# %% [markdown]
# # 02 · Memory accounting
#
# **The question:** where did the memory go?
#
# | | |
# |---|---|
# | Time | 45 minutes, of which half a minute is computing on 2 CPU cores |
# | A GPU | changes nothing in the counts; section 9 then also prints what its allocator says |
# | Opens | `predict/setup.py`, `predict/memory.py`, `predict/peak.py`, `predict/lifetimes/`, `predict/allocator.py`, `measure/memory.py`, `explore/memory_bar.py` |
#
# You load a model of 1.5 billion parameters in fp16. That is 3 GB, and your card has 16. You press run. The forward
# pass fits, the first loss is printed, the backward pass fits, and then, out of nowhere: *out of memory*. So who ate
# 13 GB?
#
# You could try a smaller batch, then a smaller one, and find the largest that survives. Most people do. By the end of
# this page you will have another way: an account of every byte that is alive, from the moment when it is born to the
# moment when it is freed, made *before* the run, and right to the last byte.

# %%
import weakref
from dataclasses import replace

import torch
from torch.distributed._tools.mem_tracker import MemTracker
from torch.utils._python_dispatch import TorchDispatchMode

from course_lib import measure, predict
from course_lib.compare import compare
from course_lib.explore import MemoryBarExplorer
from course_lib.figures import allocator, memory
from course_lib.model import hardware, text, zoo
from course_lib.model.gpt import GPT, GPTConfig, loss_of
from course_lib.notebook import ask, self_check, show
from course_lib.predict.lifetimes.step import StepLifetimes
from course_lib.train import optim
from course_lib.train.precision import MasterWeights
from course_lib.train.recompute import RecomputedLayers
from course_lib.train.step import train_step
from course_lib.units import Bytes, Count

# %% [markdown]
# ## 1 · Births and deaths
#
# A tensor is a name for a block of memory, its *storage*. Ten tensors may be views of one storage, so whoever wants
# to know what is alive must count storages. A storage is born when some operation makes it, and it dies when the last
# tensor that refers to it is gone. Nobody announces the death.
#
# Two tricks are enough to see both. Every operation of PyTorch passes through a *dispatch mode*, if one is on: there
# we look at what comes out. And a *finalizer* runs when a storage goes, without keeping it alive. A birth writes a
# number of bytes on a list, a death the same number with a minus. Read `meet` first.


# %%
class Ledger(TorchDispatchMode):
    def __init__(self, *known):
        super().__init__()
        self.changes, self.known = [], weakref.WeakSet()
        self.meet(known)

    def meet(self, values):
        for tensor in filter(torch.is_tensor, torch.utils._pytree.tree_leaves(values)):
            storage = tensor.untyped_storage()
            if storage not in self.known:
                self.known.add(storage)
                self.changes.append(storage.nbytes())
                weakref.finalize(storage, self.changes.append, -storage.nbytes())
        return values

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return self.meet(func(*args, **(kwargs or {})))


# %% [markdown]
# We try it on the GPT of lesson 00: 4 layers, 128 wide, and a batch of 8 sequences of 128 tokens. The model and the
# batch exist before the step, so the ledger is introduced to them. Adam has nothing yet.
#
# **Before you run the cell after the next:** one training step makes well over a thousand tensors. Add up the bytes
# of all storages that are ever born. How many times the *peak* is that, the most that is alive at one moment?

# %%
born_guess = ask("All bytes ever born, divided by the peak?")

SMALL = GPTConfig(layers=4, width=128, heads=4, vocab_size=256, context=128)
BATCH, SEQ = 8, 128
setup = predict.Setup(SMALL, batch_size=BATCH, seq=SEQ)  # fp32, Adam, nothing recomputed, one rank
model = GPT(SMALL, seed=0)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
batch = text.stories(seed=0).batch(seed=0, step=0, rank=0, batch_size=BATCH, context=SEQ)

with Ledger(*model.parameters(), *batch) as first:
    train_step(model, optimizer, batch)

state = [tensor for kept in optimizer.state.values() for tensor in kept.values()]
optimizer.zero_grad()
with Ledger(*model.parameters(), *state, *batch) as second:
    train_step(model, optimizer, batch)

# %%
steps = {"first step": first, "second step": second}
peaks = {name: Bytes(torch.tensor(ledger.changes).cumsum(0).max().item()) for name, ledger in steps.items()}
born = Bytes(sum(change for change in second.changes if change > 0))
print(f"all bytes ever born: {born / peaks['second step']:.1f} times the peak (you said {born_guess.said})")

on_paper = {name: predict.peak(setup, first_step=name == "first step").total for name in steps}
compare(predicted=on_paper, measured=peaks, unit="MiB")

# %% [markdown]
# Three times: most tensors die young. So **the peak is not a sum**. It is the maximum, over time, of what is alive
# together, and only lifetimes can tell you.
#
# Look at the second table. Twenty lines of Python and a formula agree to the last byte. And the second step needs
# more than the first, with the same model and the same batch. Something moved in during the first step and stayed.
# Who is it?
#
# The library's `measure.memory` is our ledger grown up: it also asks *whose* each storage is. A **gradient** is a
# result until autograd files it under `.grad`; an **activation** is one that autograd saves for the backward pass;
# what is neither somebody's nor saved is a **temporary**. Let us look at the first step of a new model again.

# %%
fresh = GPT(SMALL, seed=0)
adam = torch.optim.Adam(fresh.parameters(), lr=1e-3)
with measure.memory(fresh, adam, batch) as record:
    train_step(fresh, adam, batch)
    train_step(fresh, adam, batch)

highest = Bytes(int(record.timeline.bytes.max(axis=0).sum()))
print(f"the five categories' own maxima, added up: {highest:.1MiB}")
memory.memory_timeline(
    record, caption="Two steps. The orange block, Adam's, is absent until the end of the first one. Then it stays."
)

# %% [markdown]
# At its first `step()` Adam allocates, for every parameter, two numbers that it keeps for the rest of the run: a
# running mean of the gradient and one of its square. It waited until you had looked away. Here it lifts the second
# hill by 6 MiB. For 1.5 billion parameters, two numbers in fp32 are 12 GB, and they arrive after everything else had
# fitted. There is your crash.
#
# The printed line is what a spreadsheet would say: five columns, the largest of each, added up. It is an eighth too
# much, since gradients are large when activations are small.
#
# ## 2 · What you pay between steps
#
# Parameters, gradients and optimizer state do not depend on the batch. Together they are the **model states**. With
# $\Psi$ parameters (the papers' letter), bytes for each:
#
# | | weight | gradient | fp32 copy | moments | together |
# |---|---|---|---|---|---|
# | fp32, SGD | 4 | 4 | | | 8Ψ |
# | fp32, SGD with momentum | 4 | 4 | | 4 | 12Ψ |
# | fp32, Adam | 4 | 4 | | 4 + 4 | 16Ψ |
# | mixed precision, Adam | 2 | 2 | 4 | 4 + 4 | **16Ψ** |
# | all bf16, Adam | 2 | 2 | | 2 + 2 | 8Ψ |
#
# (The fourth row: Rajbhandari et al. 2020, §3.1. Why a 16-bit weight needs an fp32 copy is the subject of lesson 04.)
#
# The small model has 842,496 parameters. Somebody switches it from fp32 to mixed precision, still with Adam. How many
# MiB of model states do they save?

# %%
saved_guess = ask("MiB of model states saved by mixed precision?", unit="MiB")


def states(precision, rule):
    model = GPT(SMALL, dtype=torch.bfloat16 if precision == "bf16" else None)
    optimizer = MasterWeights(optim.Adam(model.parameters())) if precision == "mixed" else rule(model.parameters())
    with measure.memory(model, optimizer) as record:
        train_step(model, optimizer, batch)
        alive = record.now
    return sum((alive.parameters, alive.gradients, alive.optimizer), Bytes(0))


# %%
rules = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=1e-3),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=1e-3, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
}
rows = [("fp32", "sgd"), ("fp32", "momentum"), ("fp32", "adam"), ("mixed", "adam"), ("bf16", "adam")]
held = {f"{precision}, {rule}": states(precision, rules[rule]) for precision, rule in rows}
formula = {f"{p}, {rule}": predict.model_states(setup.with_(precision=p, optimizer=rule)).total for p, rule in rows}

counters = Bytes(4 * len(list(model.parameters())))  # torch's Adam counts its steps, in one number for each tensor
saved = {"saved by mixed": held["fp32, adam"] - held["mixed, adam"] - counters}
display(compare(guess=saved_guess, predicted={"saved by mixed": Bytes(0)}, measured=saved, unit="MiB"))
compare(predicted=formula, measured=held, unit="MiB")

# %% [markdown]
# Nothing. Mixed precision moves bytes from the weights to the optimizer's fp32 copy, and the sum stays 16Ψ. What it
# saves is elsewhere: activations (section 6), traffic, and time.
#
# So a model of 1.5 billion parameters has 24 GB of states, whatever the batch, on a card with 16. Case closed? For
# this card, yes. But look at the timeline above once more: the states are the *low* part of it.
#
# ## 3 · What a layer leaves behind
#
# A layer keeps whatever its backward pass will ask for. Which tensors are those? Autograd tells, if we stand at the
# door where it stores them: `saved_tensors_hooks`. Each storage counts once, and parameters are no activations.


# %%
def kept_by(module, x):
    kept, owned = {}, {p.untyped_storage()._cdata for p in module.parameters()}

    def at_the_door(tensor):
        kept[tensor.untyped_storage()._cdata] = tensor.detach()
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(at_the_door, lambda tensor: tensor):
        module(x)
    return [tensor for key, tensor in kept.items() if key not in owned]


block, x = GPT(SMALL).blocks[0], torch.randn(BATCH, SEQ, SMALL.width, requires_grad=True)
kept = kept_by(block, x)
for tensor in kept:
    print(f"{str(tuple(tensor.shape)):<20} {str(tensor.dtype):<14} {Bytes(tensor.untyped_storage().nbytes()):.2KiB}")

# %% [markdown]
# Read the list as the story of a block. Its input, and what the first norm needs (two numbers a token) and makes.
# Queries and keys, the mask, the *scores* after softmax, the values, and the mixed result that the projection reads.
# Then the stream after attention, the second norm, and the two wide ones of the MLP, before and after GELU. With $B$
# sequences of $S$ tokens, width $d$ (D in names), $H$ heads and an MLP $F = 4d$ wide, that is in elements of 4 bytes
#
# $$\underbrace{8\,BSd}_{\text{as wide as the stream}} + \underbrace{2\,BSF}_{\text{MLP}} +
# \underbrace{B\,H\,S^2}_{\text{scores}} + \underbrace{4\,BS}_{\text{norms}}$$
#
# and a mask of $S^2$ booleans. One of these terms is not like the others. Our batch has 8 sequences of 128 tokens.
# Take the same 1,024 tokens as 2 sequences of 512: as many tokens, as much text. What happens to the 42 MiB of
# activations that the whole model holds?

# %%
long_guess = ask("2 sequences of 512: how many MiB of activations?", unit="MiB")


def between_the_passes(config, batch_size, seq):
    model = GPT(config)
    batch = text.stories(seed=0).batch(seed=0, step=0, rank=0, batch_size=batch_size, context=seq)
    with measure.memory(model) as record:
        loss = model(*batch)  # as long as it lives, so does its graph
        return record.now.activations


# %%
LONG = replace(SMALL, context=512)
long = predict.Setup(LONG, batch_size=2, seq=512)
block_bytes = Bytes(sum(tensor.untyped_storage().nbytes() for tensor in kept))
compare(
    guess={"2 × 512 tokens": long_guess},
    predicted={
        "one block": predict.block_activations(setup),
        "8 × 128 tokens": predict.activations(setup),
        "2 × 512 tokens": predict.activations(long),
    },
    measured={
        "one block": block_bytes,
        "8 × 128 tokens": between_the_passes(SMALL, BATCH, SEQ),
        "2 × 512 tokens": between_the_passes(LONG, 2, 512),
    },
    unit="MiB",
)

# %% [markdown]
# The scores grew by four, all else stayed: a number for each *pair* of tokens. At 512 tokens they are nearly half of
# the account, and at 2,048 they would be three quarters. Hence the *fused* kernels that never write them down (Dao et
# al. 2022).
#
# ### The formula that everybody quotes
#
# The literature writes it for 16 bits (Korthikanti et al. 2022, eq. 1; $s$ tokens, $b$ sequences, width $h$, $a$
# heads), as bytes for each layer:
#
# $$s\,b\,h\,\Bigl(34 + 5\,\frac{a\,s}{h}\Bigr)$$
#
# Where do 34 and 5 come from? Take our own count with 2 bytes an element: $8 \cdot 2 + 8 \cdot 2 = 32$, and 2 for the
# scores. The paper's network has dropout, and a dropout mask has one byte for each element. There are two on the
# stream, $32 + 2 = 34$. And one on the scores, whose dropped version is kept as well: $2 + 1 + 2 = 5$. It is the same
# account. Without dropout it should read $sbh\,(32 + 2\,as/h)$. Does it, for a block of GPT-2 small in bf16?

# %%
s, b, h, a = 1024, 2, zoo.GPT2_SMALL.config.width, zoo.GPT2_SMALL.config.heads
GPT2_BLOCK = replace(zoo.GPT2_SMALL.config, layers=1, vocab_size=256)
block = GPT(GPT2_BLOCK, dtype=torch.bfloat16).blocks[0]
kept = kept_by(block, torch.randn(b, s, h, dtype=torch.bfloat16, requires_grad=True))

compare(
    predicted=Bytes(s * b * h * 32 + 2 * a * s * s * b),
    measured=Bytes(sum(tensor.untyped_storage().nbytes() for tensor in kept)),
    tolerance=0.02,
    name="a block of GPT-2 small",
    unit="MiB",
)

# %% [markdown]
# Within a hundredth. The rest is what the paper leaves out: the norms' numbers and the mask of the future.
#
# How fast does it grow? Here is all of GPT-2 XL (48 layers, 1,600 wide), one sequence, in 16 bits: with the scores
# kept, with a fused kernel, and with what lesson 03 builds, *recompute*, which keeps of each block only its input.

# %%
XL, LENGTHS, FULL = zoo.GPT2_XL.config, [512, 1024, 2048, 4096, 8192], {"recompute": "full"}


def over_lengths(**how):
    config = replace(XL, context=LENGTHS[-1], attention=how.pop("attention", "explicit"))
    one = predict.Setup(config, batch_size=1, precision="mixed", **how)
    return [predict.activations(one.with_(seq=length)) for length in LENGTHS]


memory.memory_growth(
    LENGTHS,
    {"scores kept": over_lengths(), "fused": over_lengths(attention="fused"), "recompute": over_lengths(**FULL)},
    along="tokens in the sequence",
    limits={"A100 80GB": hardware.A100_80GB.memory},
    log=True,
    caption="Each time the sequence doubles, the lower two lines double. The upper one, once the scores dominate, "
    "comes close to four times.",
)

# %% [markdown]
# ## 4 · A convolution's account
#
# How is that elsewhere? An image has no pairs of tokens. A feature map of a convolutional network is batch × channels
# × height × width, and that is the whole formula: $bs \cdot c \cdot h \cdot w$ for each.
#
# But how often is it kept? A convolution makes a map, ReLU makes another one of it, and the next convolution reads
# that. Two maps for each layer, or one? (Think of what each *backward* pass asks for.)

# %%
maps_guess = ask("How many maps does a layer (convolution, ReLU) keep?")

net = torch.nn.Sequential(
    *(torch.nn.Conv2d(3, 16, 3, padding=1), torch.nn.ReLU()),
    *(torch.nn.Conv2d(16, 32, 3, stride=2, padding=1), torch.nn.ReLU()),
    *(torch.nn.Conv2d(32, 64, 3, stride=2, padding=1), torch.nn.ReLU()),
)
kept = kept_by(net, torch.randn(8, 3, 64, 64))

# %%
maps = Count((len(kept) - 1) // 3)  # the first one kept is the image
display(compare(guess=maps_guess, predicted=Count(1), measured=maps, name="maps for each layer"))

layers = [predict.Convolution(16), predict.Convolution(32, stride=2), predict.Convolution(64, stride=2)]
measured = Bytes(sum(tensor.untyped_storage().nbytes() for tensor in kept))
compare(predicted=predict.convolution_activations(layers, 8, (3, 64, 64)), measured=measured, unit="KiB")

# %% [markdown]
# One. ReLU's backward pass is content with its *result* (where it is zero, the gradient is cut off), and that very
# tensor is the next convolution's input. They share it. What the convolution itself made, nobody asks for again.
# (Batch norm between the two would ask for it, and double the bill.)
#
# Now the comparison. VGG-16 (Simonyan and Zisserman 2015, table 1, D) and GPT-2 small have about as many parameters,
# 138 and 124 million. The first looks at one image of 224 × 224, the second reads one page of 1,024 tokens.

# %%
GROUPS = [(64, 2), (128, 2), (256, 3), (512, 3), (512, 3)]  # channels and layers; each group ends with max-pooling
VGG = [predict.Convolution(c, pool=2 if i + 1 == n else 1) for c, n in GROUPS for i in range(n)]
image = predict.convolution_activations(VGG, 1, (3, 224, 224))
vgg = predict.Setup(138_000_000, optimizer="sgd")
page = predict.Setup(zoo.GPT2_SMALL, batch_size=1, seq=1024, optimizer="sgd")

memory.memory_bar(
    {
        "VGG-16, one image": replace(predict.model_states(vgg), activations=image),
        "GPT-2 small, one page": replace(predict.model_states(page), activations=predict.activations(page)),
    },
    unit="MiB",
    caption="Nearly the same weights and gradients, and twenty times the activations. A convolution's maps shrink at "
    "each pooling; a transformer keeps its many vectors, and the scores, in every layer alike.",
)

# %% [markdown]
# ## 5 · Inference needs two buffers
#
# Nobody asks for gradients when a network is only *used*. Then each result is needed until the next operation has
# read it. One buffer to read from, one to write to, and then they change places.
#
# A chain of equal layers shows it best: 256 rows of 512 numbers, half a MiB for each result. With 32 layers, what is
# the peak in inference, and what in training? (The weights are not counted.)

# %%
inference_guess = ask("32 layers in inference: how many MiB of results?", unit="MiB")


def results_alive(depth, training):
    layers = torch.nn.ModuleList(torch.nn.Linear(512, 512) for _ in range(depth))
    with torch.set_grad_enabled(training), measure.memory(layers) as record:
        x = torch.ones(256, 512)
        for layer in layers:
            x = layer(x)
    timeline = record.timeline
    return Bytes(int((timeline["activations"] + timeline["temporaries"]).max()))


# %%
X, DEPTHS = Bytes(4 * 256 * 512), [2, 4, 8, 16, 32]
training, inference = ([results_alive(depth, kind) for depth in DEPTHS] for kind in (True, False))
predicted = {"training": [(depth + 1) * X for depth in DEPTHS]}
predicted |= {"inference": [predict.inference_buffers([X] * (depth + 1)) for depth in DEPTHS]}
memory.memory_growth(
    DEPTHS, predicted, along="layers", measured={"training": training, "inference": inference},
    caption="The same network, used and trained. Training grows with every layer, inference does not. (Lines: the "
    "formulas. Rings: measured.)",
).show()  # fmt: skip
compare(
    guess={"inference": inference_guess},
    predicted={name: values[-1] for name, values in predicted.items()},
    measured={"training": training[-1], "inference": inference[-1]},
    unit="MiB",
)

# %% [markdown]
# $O(1)$ against $O(L)$ for $L$ layers. This is why a model that took a rack to train answers on a laptop, and why
# `torch.no_grad()` belongs around every evaluation.
#
# ### What inference does keep
#
# There is one thing. A language model writes one token at a time, and each new token looks back at the keys and
# values of all earlier ones. Nobody computes those again for each token; they stay in the **KV cache**:
#
# $$2 \cdot \text{layers} \cdot \text{heads} \cdot \text{head width} \cdot \text{tokens} \cdot \text{sequences} \cdot
# \text{bytes}$$
#
# The 2 is for keys *and* values, and more than one calculator on the web forgets it. Let us collect them from our
# GPT: its layer `qkv` makes queries, keys and values side by side, and a hook can pick the last two.

# %%
cache = []
hooks = [
    block.attention.qkv.register_forward_hook(lambda _layer, _x, qkv: cache.append(qkv[..., SMALL.width :].clone()))
    for block in model.blocks
]
with torch.no_grad():
    model(batch[0])
for hook in hooks:
    hook.remove()

cached = Bytes(sum(tensor.nbytes for tensor in cache))
display(compare(predicted=predict.kv_cache(SMALL, BATCH, SEQ, bytes_per_element=4), measured=cached, name="our GPT"))

for row in (zoo.GPT3_175B, zoo.LLAMA2_7B, zoo.LLAMA3_8B):
    token, full = predict.kv_cache(row, 1, 1), predict.kv_cache(row, 32, 8192)
    print(f"{row.name:<11}: {token:.0KiB} a token, {full:.0GiB} for 32 sequences of 8,192")

# %% [markdown]
# Llama 2 and Llama 3 are of nearly one size, and one cache has a quarter of the other. In Llama 3 groups of four
# query heads share their keys and values (*grouped-query attention*). Its purpose is the cache, and the lab takes its
# bytes apart.
#
# ## 6 · The peak, predicted
#
# Now put it together. `predict.peak` runs nothing. It goes through a step in its order and writes down each birth and
# each death, as you would with pencil and paper. The next cell prints how it comes back through an MLP. The gradient
# of the wide result (`d_bent`) is born while the wide result itself (`bent`) still lives, because the weight's
# gradient has yet to be computed from it. Such moments decide the peak, and no sum of sizes knows them.
#
# Two switches change the story, and later lessons build both: 16-bit weights with an fp32 copy (lesson 04), and
# *recompute*, which throws the insides of each block away and makes them again (lesson 03). The plain fp32 step has
# its peak at 53.8 MiB. Where is it with both switches on?

# %%
display(show(StepLifetimes.mlp_backward))
peak_guess = ask("Peak with 16-bit weights and recompute, in MiB?", unit="MiB")


# %%
def measured_peak(precision, recompute):
    model = GPT(SMALL, seed=0)
    mixed = precision == "mixed"
    adam = MasterWeights(optim.Adam(model.parameters())) if mixed else torch.optim.Adam(model.parameters())
    if recompute == "full":
        model.blocks = RecomputedLayers(model.blocks, every=1)
    train_step(model, adam, batch)
    with measure.memory(model, adam, batch) as record:
        train_step(model, adam, batch)
    return record.peak.total


ways = [(precision, recompute) for precision in ("fp32", "mixed") for recompute in ("none", "full")]
setups = {f"{p}, recompute {r}": setup.with_(precision=p, recompute=r) for p, r in ways}
compare(
    guess={"mixed, recompute full": peak_guess},
    predicted={name: predict.peak(changed).total for name, changed in setups.items()},
    measured={f"{p}, recompute {r}": measured_peak(p, r) for p, r in ways},
    unit="MiB",
)

# %% [markdown]
# From 54 to 19 MiB, without a parameter less, and each prediction is exact. (The library's tests hold 24 such steps
# to it, of other sizes and with other optimizers.) Notice what did *not* shrink: the model states, 12.9 MiB in all
# four rows. They are the floor, and only more devices lower it. Part B of this course, from lesson 06 on, is about
# that.
#
# ## 7 · Three ways to lose memory
#
# **A leak.** You evaluate every now and then and want the mean loss, so you collect the losses. Each is a single
# number of 4 bytes. What does a list of three of them cost?

# %%
leak_guess = ask("A list of three losses: how many MiB does it hold?", unit="MiB")


# %%
def held_by_losses(keep, steps=3):
    losses = []
    with measure.memory(model, inputs=batch) as record:
        for _ in range(steps):
            losses.append(keep(model(*batch)))
        return record.now.activations


a_step = predict.activations(setup)
compare(
    guess={"loss": leak_guess},
    predicted={"loss": 3 * a_step, "loss.item()": Bytes(0)},
    measured={"loss": held_by_losses(lambda loss: loss), "loss.item()": held_by_losses(lambda loss: loss.item())},
    tolerance=0.001,  # the three share one batch
    unit="MiB",
)

# %% [markdown]
# 126 MiB for twelve bytes. Each loss holds the graph that it came from, and the graph holds every activation, waiting
# for a backward pass that never comes. The run dies after so many evaluations, at a place that has nothing to do with
# the cause. `.item()` takes the number and lets go; `torch.no_grad()` keeps the graph from being made.
#
# (In a training loop the backward pass frees the activations, so a kept loss leaks little there. It is the loops
# *without* a backward pass that kill.)
#
# **A gradient that stays.** `zero_grad()` sets gradients to None, and their memory goes. An older habit is
# `zero_grad(set_to_none=False)`: fill them with zeros. The arithmetic is the same, and at the end of a step both
# programs hold the same. What does it do to the peak?
#
# **One line longer.** The most common one, since it looks like tidy code. Instead of letting the model compute its
# loss, we give a name to what comes between: `logits = model(inputs)`. What would `del logits` after the loss be
# worth?

# %%
zeros_guess = ask("By how many MiB do gradients of zeros raise the peak?", unit="MiB")
line_guess = ask("What does `del logits` save at the peak, in MiB?", unit="MiB")


def with_zeros():
    optimizer.zero_grad(set_to_none=False)
    model(*batch).backward()
    optimizer.step()


def named(forget):
    optimizer.zero_grad()
    logits = model(batch[0])
    loss = loss_of(logits, batch[1])
    if forget:
        del logits
    loss.backward()
    optimizer.step()


# %%
def peak_of(step):
    step()
    with measure.memory(model, optimizer, batch) as record:
        step()
    return record.peak.total


usual, zeros = peak_of(lambda: train_step(model, optimizer, batch)), peak_of(with_zeros)
longer, shorter = peak_of(lambda: named(forget=False)), peak_of(lambda: named(forget=True))
logits_bytes = Bytes(4 * BATCH * SEQ * SMALL.vocab_size)
compare(
    guess={"zeros cost": zeros_guess, "del saves": line_guess},
    predicted={"zeros cost": predict.model_states(setup).gradients, "del saves": logits_bytes},
    measured={"zeros cost": zeros - usual, "del saves": longer - shorter},
    unit="MiB",
)

# %% [markdown]
# The zeros cost a full set of gradients, 4Ψ. At the peak, between the passes, the usual program has no gradients yet.
# Now they lie there all the time, and for a model of 1.5 billion parameters those zeros weigh 6 GB.
#
# Nobody needs the logits after the loss, not even autograd, which keeps the logarithms of the probabilities instead.
# But a *name* is a reference, and the tensor lives as long as the function. Here it is 1 MiB, because the vocabulary
# has 256 entries. With GPT-2's 50,257 and a batch of 32 × 1,024 tokens it would be 6.6 GB.
#
# **Change one thing.** Write `return loss_of(model(batch[0]), batch[1])` in a function of its own. Does the peak fall
# with or without a `del`? Decide first.
#
# ## 8 · Bytes that no tensor owns
#
# **Buffers.** When several GPUs add up their gradients (lessons 06 and 07), one message for each tensor would be
# slow. So frameworks *fuse*: they copy all gradients into one flat buffer, send that, and copy back. It is alive for
# a moment, at the end of the backward pass. (What would be sent stands as a comment; there is nobody to send it to.)


# %%
def all_reduce_fused(gradients):
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    # dist.all_reduce(flat)
    for gradient, piece in zip(gradients, flat.split([gradient.numel() for gradient in gradients])):
        gradient.copy_(piece.view_as(gradient))


with measure.memory(model, optimizer) as record:
    all_reduce_fused([parameter.grad for parameter in model.parameters()])

buffer = predict.fused_buffer(predict.parameters(SMALL))
compare(predicted=buffer, measured=record.peak.temporaries, name="fused buffer", unit="KiB")

# %% [markdown]
# $4\Psi$ in fp32: another full set. (Rajbhandari et al. 2020, §3.2, name 6 GB for 1.5 billion parameters. Their
# repair is a buffer of constant size that is used again and again; lesson 07 calls it a bucket.)
#
# **Pieces.** The last thief owns nothing at all. Asking a GPU's driver for memory is slow, so PyTorch's allocator
# asks for large *segments*, cuts blocks out of them, and keeps what is freed for the next tensor. A block can be used
# again, and free neighbours melt into one. But blocks never move. The library has a model of that allocator, written
# after the rules in its source, which runs without a GPU. We give it a card of 80 MiB, fill it with twenty tensors of
# 4 MiB, and free every second one. Half of the card is free. Then we ask for 6 MiB.

# %% tags=["raises-exception"]
card = predict.CachingAllocator(capacity=80 * 2**20)
for number in range(20):
    card.allocate(number, 4 * 2**20)
for number in range(0, 20, 2):
    card.free(number)

allocator.segment_map(
    card, wanted=Bytes(6 * 2**20), caption="Ten free pieces, 40 MiB together. The dashed block fits into none of them."
).show()
card.allocate("activation", 6 * 2**20)

# %% [markdown]
# That is **fragmentation**. The ZeRO authors saw runs die with over 30 % of the memory free "in some extreme cases"
# (§3.2). PyTorch's own message calls such memory "reserved but unallocated".
#
# Who makes such holes? Tensors of different sizes and different lifetimes. We record six real steps, all with
# sequences of 512 tokens, then six of different lengths, and play the births and deaths to the model of the
# allocator. What it *reserves* is what `nvidia-smi` would show, less the CUDA context.


# %%
def reserved_over_alive(lengths):
    model = GPT(replace(SMALL, layers=6, width=256, context=512))
    adam = torch.optim.Adam(model.parameters(), foreach=False)
    with measure.memory(model, adam) as record:
        for step, length in enumerate(lengths):
            batch = text.stories(seed=0).batch(seed=0, step=step, rank=0, batch_size=4, context=length)
            train_step(model, adam, batch)
    card = predict.CachingAllocator(capacity=16 * 2**30)
    card.replay(record.lifetimes)
    return record.peak.total, card.peak_reserved


for name, lengths in {"all alike": [512] * 6, "ragged": [512, 300, 450, 200, 380, 512]}.items():
    most_alive, reserved = reserved_over_alive(lengths)
    print(f"{name:<10} alive {most_alive:.0MiB}, reserved {reserved:.0MiB}: {reserved / most_alive - 1:.0%} more")

# %% [markdown]
# So leave room: a plan that fills a card to the last byte does not run on it. Three things help. Make all batches of
# one shape. Allocate what lives long before what lives short. And `PYTORCH_ALLOC_CONF=expandable_segments:True` (in
# older versions `PYTORCH_CUDA_ALLOC_CONF`) lets segments grow, so that fewer holes are closed in by borders.
#
# What no model on this page counts: the CUDA context and the libraries' workspaces, often some hundreds of MiB.
#
# ## 9 · PyTorch's own
#
# PyTorch ships a tracker, too, the `MemTracker` of lesson 00. There it watched our instrument. Does it agree with the
# *formula*, which has run nothing?

# %%
tracker = MemTracker()
tracker.track_external(model, optimizer, *batch)
optimizer.zero_grad()
with tracker:
    train_step(model, optimizer, batch)

theirs = Bytes(tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"])
compare(predicted=predict.peak(setup).total, measured=theirs, name="MemTracker", unit="MiB")

# %% [markdown]
# Three independent ways, one number. On a GPU the allocator itself keeps count. `torch.cuda.max_memory_allocated()`
# is the peak of all blocks (each rounded up to 512 bytes), `max_memory_reserved()` that of all segments. Two of the
# blocks are not in our account: workspaces for matrix products, one for the forward and one for the backward pass,
# of 8 MiB each (32 on Hopper cards). And a *snapshot* writes down every block with the line of code that asked for it;
# drop the file on [pytorch.org/memory_viz](https://pytorch.org/memory_viz) and it draws the hill of section 1. The next
# cell does all three, where there is a GPU.

# %% tags=["varies"]
if torch.cuda.is_available():
    torch.cuda.memory._record_memory_history()
    on_gpu = GPT(SMALL, seed=0, device="cuda")
    adam = torch.optim.Adam(on_gpu.parameters(), foreach=False)
    for _ in range(2):
        train_step(on_gpu, adam, tuple(part.cuda() for part in batch))
    allocated = Bytes(torch.cuda.max_memory_allocated())
    print(f"allocated {allocated:MiB}, reserved {Bytes(torch.cuda.max_memory_reserved()):MiB}")
    torch.cuda.memory._dump_snapshot("snapshot.pickle")
else:
    print("no GPU here")

# %% [markdown]
# ## 10 · At scale
#
# **GPT-2, 1.5 billion.** The story at the top of this page is from the paper that introduced ZeRO (Rajbhandari et al.
# 2020, §3). All its numbers, with the formulas of this page. (For activations it gives a rule of its own, 12 numbers
# of 2 bytes for each token, feature and layer; with recompute, a root of the depth remains.)

# %%
PSI, b, s = 1_500_000_000, 32, 1024
h, layers = XL.width, XL.layers
ours = {
    "weights, fp16": Bytes(2 * PSI),
    "model states": predict.model_states(predict.Setup(PSI, precision="mixed")).total,
    "fused buffer": predict.fused_buffer(PSI),
}
printed = dict(zip(ours, (Bytes(n * 10**9) for n in (3, 24, 6)), strict=True))
display(compare(predicted=ours, measured=printed, tolerance=0.1, columns=("our formula", "the paper"), unit="GB"))

xl = predict.Setup(XL, batch_size=b, seq=s, precision="mixed")
lean = xl.with_(config=replace(XL, attention="fused"))
rule = Bytes(12 * 2 * b * s * h * layers)
print(f"the paper's rule for activations: {rule:.0GB}, with recompute {Bytes(round(rule / layers**0.5)):.0GB}; it says 60 and 8")
print(f"sbh (34 + 5as/h): {predict.activations_paper(xl):.0GB}", end=", ")
print(f"without scores: {predict.activations_paper(xl.with_(recompute='selective')):.0GB}")
print(f"our GPT, no dropout: {predict.activations(xl):.0GB}", end=", ")
print(f"fused: {predict.activations(lean):.0GB}")

# %% [markdown]
# (If a slide tells you "60 GB, *even with* checkpointing": in the paper, the 60 GB are *without*.)
#
# Is 60 GB right? The printed lines ask an account that agreed with the tensors to the byte. The rule was a lower
# bound. Twelve numbers a layer are fewer than the sixteen in our list, and it has no scores at all, which at 1,024
# tokens and 25 heads are sixteen numbers more. A later paper counts nearly five times as much. The lesson is not that
# somebody was wrong: they wrote "about". It is that a formula without a measurement beside it can be off by three, or
# by five, and nobody notices.
#
# **GPT-3, NeoX-20B, Gopher.** The parameters of all eight GPT-3 models, from the shapes in the paper's table 2.1,
# against the counts in its table D.1. (Two shapes are misprinted there; the library's rows say which, and why.) The
# README of GPT-NeoX says that its weights have 40 GB. And Gopher's 2.5 TiB you know from lesson 01: 10 bytes for each
# of 280 billion parameters, with no fp32 copy in it and no gradients. (With both it would be the 16 of section 2.)

# %%
family = {row.name: row for row in zoo.ALL if row.name.startswith("GPT-3")}
counted = {name: predict.parameters(row) for name, row in family.items()}
published = {name: Count(row.parameters) for name, row in family.items()}
columns = ("our formula", "published")
display(compare(predicted=counted, measured=published, tolerance=0.006, columns=columns))

weights = {"NeoX-20B, weights": Bytes(2 * int(predict.parameters(zoo.NEOX_20B)))}
compare(
    predicted={**weights, "Gopher, state": Bytes(10 * 280_000_000_000)},
    measured={"NeoX-20B, weights": Bytes(40 * 10**9), "Gopher, state": Bytes(round(2.5 * 2**40))},
    tolerance=0.03,
    columns=columns,
    unit="GB",
)

# %% [markdown]
# So GPT-3's largest has 350 GB in 16 bits and 700 in fp32, and with Adam 16Ψ are 2.8 TB of model states: thirty-three
# cards of 80 GiB, and not an activation among them.
#
# ## 11 · Against named cards
#
# All formulas of this page in one bar. It shows what is held at the turn of a step: model states and activations, to
# the byte, as the library counts them. Below it, cards that you can rent.

# %%
MemoryBarExplorer(layers=48, width=1600, batch=8, seq=1024).show(
    caption="GPT-2 XL with 8 sequences. The dashed line must end within a card, and better a good way before its end."
)

# %% [markdown]
# Some questions for it, each with a guess first. (If nothing reacts, run the cell once.)
#
# - What is the largest batch with which GPT-2 XL fits on an A100 80GB? And with fused attention? And with recompute?
# - With all of that and a batch of 1, does it fit on a T4? What is left to shrink?
# - Press **GPT-3 175B**. How many H200s does a single sequence need at least? Which colour would you attack first?
# - Go from *mixed* to *fp32*. Which colours change, and why does the sum of the first three not?
#
# ## What to keep
#
# | question | answer |
# |---|---|
# | What is the peak? | the largest account over *time*; never a sum of maxima |
# | What do states cost? | 16Ψ with Adam, mixed or not; they arrive with the first `step()` |
# | What does a layer keep? | $sbh\,(32 + 2\,as/h)$ in 16 bits, 34 and 5 with dropout; the scores are the term to fear |
# | And a convolution? | $bs \cdot c \cdot h \cdot w$, once for each layer |
# | And inference? | two buffers, and the KV cache |
# | What leaks? | a loss with its graph; gradients of zeros; a name that lives too long |
# | What is missing? | buffers, fragmentation, the driver's share: leave room |
#
# ## Three exercises
#
# **1.** A recipe keeps weights and gradients in bf16, and an fp32 copy and a momentum in fp32. How many bytes a
# parameter?
#
# **2.** GPT-2 XL in mixed precision with Adam, fused attention, every block recomputed. How many sequences of 1,024
# tokens fit on an A100 80GB, going by `predict.peak`? (The batch need not be a power of two.)
#
# **3.** The function below holds 42 MiB of activations for each batch that it evaluates. Add one line, so that it
# holds none and returns the same.

# %%
answer_1 = None  # bytes

display(self_check(answer_1, 2 + 2 + 4 + 4, hint="Four numbers a parameter: which have 2 bytes, which have 4?"))

answer_2 = None  # sequences

fits = predict.largest(lean.with_(recompute="full"), "batch_size", hardware.A100_80GB.memory)
hint = 'Print predict.peak(lean.with_(recompute="full", batch_size=8)).total, and try others. Where is the last fit?'
self_check(answer_2, fits.value, hint=hint)


# %%
def evaluate(batches):
    losses = [model(*each) for each in batches]
    return sum(float(loss) for loss in losses) / len(losses)


def most_activations():
    with measure.memory(model) as record:
        evaluate([batch] * 3)
    return int(record.timeline["activations"].max())


# When you have changed it, replace None by most_activations().
answer_3 = None

self_check(answer_3, 0, hint="`.item()` still holds one batch at a time. Who keeps a graph from being made at all?")

# %% [markdown]
# **The lab**, `labs/lab02_memory_accounting`, gives you an architecture that the library does not know: grouped-query
# attention, a gated MLP, RMSNorm, tied embeddings. You write its account, and it is graded by the measured bytes.
# Next comes lesson 03, which flattens the hill.
