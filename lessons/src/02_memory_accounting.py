# %% [markdown]
# # 02 · Memory accounting
#
# **The question:** where did the memory go?
#
# | | |
# |---|---|
# | Time | first sitting 50 minutes, second sitting 35; less than a minute of both together is computing on 2 CPU cores |
# | A GPU | is not needed. Its kernels keep a few other tensors than a CPU's (`predict/saved.py` says which), and section 10 asks its allocator |
# | Opens | `predict/lifetimes/ledger.py`, `predict/lifetimes/step.py`, `predict/allocator.py` |
#
# You train a model of 1.5 billion parameters in fp16. That is 3 GB, and your card has 16. Beside it the optimizer,
# Adam, keeps an fp32 copy of the weights, as it should (lesson 04 says why): 6 GB. You press run. The forward pass fits,
# and the first loss is printed. The backward pass fits, with 3 GB of gradients. And then, in the first `step()`: *out of
# memory*. Twelve of sixteen GB are accounted for. What asks for more than the other four?
#
# By the end of this page you will have an account of every byte that is alive, from its birth to its end, made *before*
# the run, and right to the last byte.

# %%
import weakref
from dataclasses import replace

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from course_kit import measure
from course_kit.compare import compare
from course_kit.notebook import ask, your_turn
from course_kit.units import Bytes
from course_lib import predict
from course_lib.model import hardware, text, zoo
from course_lib.model.gpt import GPT, loss_of
from course_lib.predict.lifetimes.ledger import Ledger as Paper
from course_lib.train.step import train_step
from course_pages.lesson02 import turns
from course_pages.lesson02.explorer import MemoryBarExplorer
from course_pages.lesson02.turns import LONG, SMALL, kept_by
from course_pages.shared import gpu, memory

# %% [markdown]
# ## 1 · Births and deaths
#
# A tensor is a name for a block of memory, its *storage*. Ten tensors may be views of one storage, so it is storages
# that we count. A storage is born when some operation makes it, and it dies, without a word, when the last tensor that
# refers to it is gone.
#
# Two tricks show both. Every operation of PyTorch passes through a *dispatch mode*, if one is on: there we look at what
# comes out. And a *finalizer* runs when a storage goes, without keeping it alive. A birth writes a number of bytes on a
# list, a death the same number with a minus. Read `meet` first.


# %%
class Ledger(TorchDispatchMode):
    def __init__(self, *known):
        super().__init__()
        self.changes, self.known = [], weakref.WeakSet()
        self.meet(known)

    def meet(self, values):
        for tensor in filter(torch.is_tensor, torch.utils._pytree.tree_leaves(values)):  # out of lists and dicts
            storage = tensor.untyped_storage()
            if storage not in self.known:  # views share one object, and a WeakSet keeps none alive
                self.known.add(storage)
                self.changes.append(storage.nbytes())
                weakref.finalize(storage, self.changes.append, -storage.nbytes())
        return values

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return self.meet(func(*args, **(kwargs or {})))


# %% [markdown]
# **Your turn.** What a card must have is the **peak**: the most that is alive at one moment. Find it in such a list.

# %%
@your_turn(turns.check_peak, look="After the first two changes of the first list, how much is alive? And after the third?")
def peak_of(changes):
    """The most bytes alive at one moment, 0 if there are no changes: births (+) and deaths (-), in their order."""
    ...


# %% tags=["solution"]
# One solution. Open it when yours passes, or when you are stuck.
@peak_of.solution
def peak_of(changes):
    alive = peak = 0
    for change in changes:
        alive += change
        peak = max(peak, alive)
    return peak


# %% [markdown]
# We try it on the GPT of lesson 00: 4 layers, 128 wide, and a batch of 8 sequences of 128 tokens. The model and the batch
# exist before the step, so the ledger is introduced to them. Adam has nothing yet.

# %%
BATCH, SEQ = 8, 128
model = GPT(SMALL, seed=0)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
batch = turns.batch_of(BATCH, SEQ)

with Ledger(*model.parameters(), *batch) as first:
    train_step(model, optimizer, batch)

state = [tensor for kept in optimizer.state.values() for tensor in kept.values()]
optimizer.zero_grad()
with Ledger(*model.parameters(), *state, *batch) as second:
    train_step(model, optimizer, batch)

# %% [markdown]
# The library's `measure.memory` is our ledger grown up: it also asks *whose* each storage is. A **gradient** is a
# result until autograd files it under `.grad`; an **activation** is one that autograd saves for the backward pass; all
# others are **temporaries**. We let it watch the first two steps of a new model.

# %%
births = [change for change in second.changes if change > 0]
times = sum(births) / peak_of(second.changes)
print(f"{len(births):,} births, together {times:.1f} times the peak")
peaks = [Bytes(peak_of(ledger.changes)) for ledger in (first, second)]
print(f"peak of the first step {peaks[0]:.1MiB}, of the second {peaks[1]:.1MiB}")

fresh = GPT(SMALL, seed=0)
adam = torch.optim.Adam(fresh.parameters(), lr=1e-3)
with measure.memory(fresh, adam, batch) as record:
    train_step(fresh, adam, batch)
    train_step(fresh, adam, batch)

columns = ("our ledger", "the library's")
display(compare(predicted=peaks[1], measured=record.peak.total, columns=columns, name="peak", unit="MiB"))
memory.memory_timeline(
    record, caption="Two steps. The orange block, Adam's, is absent until the end of the first one. Then it stays."
)

# %% [markdown]
# Three times: most tensors die young. So **the peak is not a sum**. It is the maximum, over time, of what is alive
# together.
#
# And the second step needs more than the first, with the same model and the same batch. Who moved in and stayed? At its
# first `step()` Adam allocates, for every parameter, two numbers that it keeps for the rest of the run, the **moments**: a
# running mean of the gradient and one of its square. Here they lift the second hill by 6 MiB. For 1.5 billion parameters,
# two numbers in fp32 are 12 GB, and four were left. There is your crash.
#
# ## 2 · What you pay between steps
#
# Parameters, gradients and what the optimizer keeps do not depend on the batch. Together they are the **model
# states**, and there are three customs. In *fp32* each number has 4 bytes, in *bf16* each has 2. In *mixed* precision
# weights and gradients have 2, and the optimizer keeps an fp32 copy of the weights and its moments in fp32
# (`MasterWeights`; lesson 04). Plain SGD has no moments, SGD with momentum one, Adam two.
#
# The small model has 842,496 parameters. From fp32 to mixed precision, still with Adam: how many MiB of model states
# does that save?

# %%
saved_guess = ask("MiB of model states saved by mixed precision?", unit="MiB")

# %% [markdown]
# **Your turn.** With $\Psi$ parameters (the papers' letter), how many bytes? Real steps of a tiny model are the judge, in
# each precision with 0, 1 and 2 moments.

# %%
@your_turn(turns.check_states, look="Four addends: weight, gradient, the copy if there is one, and the moments.")
def model_states(psi, precision, moments):
    """Bytes of weights, gradients and optimizer state; precision is "fp32", "mixed" or "bf16", moments 0, 1 or 2."""
    ...


# %% tags=["solution"]
@model_states.solution
def model_states(psi, precision, moments):
    each = 4 if precision == "fp32" else 2
    copy = 4 if precision == "mixed" else 0
    moment = 2 if precision == "bf16" else 4
    return psi * (each + each + copy + moment * moments)


# %%
PSI, WAYS = predict.parameters(SMALL), [("fp32", 0), ("fp32", 1), ("fp32", 2), ("mixed", 2), ("bf16", 2)]
held = {f"{precision}, {moments} moments": turns.states_held(precision, moments) for precision, moments in WAYS}
yours = {f"{precision}, {moments} moments": Bytes(model_states(PSI, precision, moments)) for precision, moments in WAYS}
held["saved by mixed"] = held["fp32, 2 moments"] - held["mixed, 2 moments"]
compare(guess={"saved by mixed": saved_guess}, predicted=yours | {"saved by mixed": Bytes(0)}, measured=held, unit="MiB")

# %% [markdown]
# Nothing is saved. Mixed precision moves bytes from the weights to the optimizer's fp32 copy, and the sum stays
# $2 + 2 + 4 + 4 + 4 = 16$: **16Ψ** (Rajbhandari et al. 2020, §3.1). What it saves is elsewhere: activations, traffic,
# and time.
#
# So a model of 1.5 billion parameters has 24 GB of states, whatever the batch. But in the timeline above the states are
# the *low* part.
#
# ## 3 · What a layer leaves behind
#
# A layer keeps all that its backward pass will ask for. Which tensors are those? Autograd tells, if we stand at the door
# where it stores them: PyTorch's `saved_tensors_hooks` hands us each one, and `kept_by` counts each storage once, without
# parameters.
#
# What stands there for a **block**? Its input is one vector for each token, the *stream*, to which attention and then
# the MLP add theirs. A product of two tensors keeps both factors, each for the gradient of the other. A norm keeps its
# input and two numbers for each token, mean and spread; softmax keeps its result; and so on. Two batches of equally
# many tokens:

# %%
NAMES = ["input", "its mean", "its spread", "normed", "keys", "queries", "mask", "scores, softmax", "values", "gathered",
         "stream", "its mean", "its spread", "normed", "wide", "wide, GELU"]  # fmt: skip
block, width = GPT(LONG).blocks[0], SMALL.width
short, long = (kept_by(block, torch.randn(b, s, width, requires_grad=True)) for b, s in ((8, 128), (2, 512)))
memory.kept_tensors(
    {"8 × 128 tokens": list(zip(NAMES, short)), "2 × 512 tokens": list(zip(NAMES, long))},
    caption="The same block, 1,024 tokens twice. All bars are as long on the right as on the left, but for two.",
)

# %% [markdown]
# Scores are numbers for each *pair* of tokens of a sequence, in every head. So is the mask that hides the future, but
# it is one for all heads and sequences, of booleans, 1 byte each. A norm's mean and spread are one number a token. All others are as
# wide as the stream, or as the MLP, which is four times as wide.
#
# **Your turn.** Count the bars, and write the account of a block.

# %%
@your_turn(turns.check_block, look="Group the bars by length, then by what they grow with. fp32 has 4 bytes a number, a boolean 1.")
def block_bytes(b, s, d, heads):
    """Bytes that a block keeps in fp32: b sequences of s tokens, d wide, with an MLP of 4 d."""
    ...


# %% tags=["solution"]
@block_bytes.solution
def block_bytes(b, s, d, heads):
    stream, mlp, scores, norms = 8 * b * s * d, 2 * b * s * 4 * d, b * heads * s * s, 4 * b * s
    return 4 * (stream + mlp + scores + norms) + s * s


# %% [markdown]
# The library's `predict.activations` is that for each layer, and what stands before and behind the blocks (embedding,
# last norm, loss). It says that 8 sequences of 128 leave 42 MiB in the whole model. What do 2 sequences of 512
# leave?

# %%
long_guess = ask("2 sequences of 512: how many MiB of activations in the whole model?", unit="MiB")

# %%
setup = predict.Setup(SMALL, batch_size=BATCH, seq=SEQ)  # fp32, Adam, nothing recomputed, one rank
long_setup = predict.Setup(LONG, batch_size=2, seq=512)
compare(
    guess={"2 × 512 tokens": long_guess},
    predicted={"8 × 128 tokens": predict.activations(setup), "2 × 512 tokens": predict.activations(long_setup)},
    measured={"8 × 128 tokens": turns.between_the_passes(SMALL, BATCH, SEQ),
              "2 × 512 tokens": turns.between_the_passes(LONG, 2, 512)},
    unit="MiB",
)  # fmt: skip

# %% [markdown]
# The scores are nearly half of it now, and in sequences of 2,048 they would be about three quarters. Hence the *fused*
# kernels that never write them down (Dao et al. 2022).
#
# ## 4 · The peak, with pencil and paper
#
# What is held between the passes is not yet the peak. On the way back, gradients of results are born while the results
# still live. Take an MLP alone: a product of the narrow `x` to the wide `up`, GELU to the wide `bent`, a product back to
# the narrow `y`. With 1,024 tokens, a narrow width of 128 and a wide one of 512, each wide tensor has 2 MiB, each narrow
# one half a MiB and each matrix a quarter. Autograd keeps two wide tensors. How much is alive at the worst moment?

# %%
mlp_guess = ask("An MLP of 1,024 tokens, forward and back: how many MiB are alive at the peak?", unit="MiB")


# %%
def mlp_peak(t, d, f):
    mlp = torch.nn.Sequential(torch.nn.Linear(d, f, bias=False), torch.nn.GELU(), torch.nn.Linear(f, d, bias=False))
    x, gradient = torch.randn(t, d, requires_grad=True), torch.randn(t, d)
    with measure.memory(mlp, inputs=[x, gradient]) as record:
        y = mlp(x)
        y.backward(gradient)
    return record.peak.total


# %% [markdown]
# On paper, four words are enough: `save`, for what autograd keeps; `make`, for a result on its way; `grad`, for a
# weight's gradient, which stays; and `free`, for what will not be read again. (The caller keeps `x`, `y` and the
# gradient of `y`, which is there from the beginning.)


# %%
def mlp_on(paper, narrow, wide, weight):
    paper.save(x=narrow, up=wide, bent=wide)  # the way forward
    paper.make(y=narrow)
    paper.make(d_bent=wide)  # back through the last product: its weight's gradient needs bent
    paper.grad(last=weight)
    paper.free("bent")
    paper.make(d_up=wide)  # through GELU, which needs up
    paper.free("up", "d_bent")
    paper.make(d_x=narrow)  # through the first product: its weight's gradient needs x
    paper.grad(first=weight)
    paper.free("d_up")
    return Bytes(sum(paper.peak.values()))


shapes = {"512 tokens, 64 to 256": (512, 64, 256), "1,024, 128 to 512": (1024, 128, 512), "32, 256 to 64": (32, 256, 64)}
papers = {name: Paper(parameters=2 * 4 * d * f, temporaries=4 * t * d) for name, (t, d, f) in shapes.items()}
predicted = {name: mlp_on(papers[name], 4 * t * d, 4 * t * f, 4 * d * f) for name, (t, d, f) in shapes.items()}
measured = {name: mlp_peak(*shape) for name, shape in shapes.items()}
compare(guess={"1,024, 128 to 512": mlp_guess}, predicted=predicted, measured=measured, unit="MiB")

# %% [markdown]
# Three wide tensors at once, where two were kept: no sum of sizes knows such moments. `predict.peak` writes down a whole
# step in this way, embedding to optimizer, and runs nothing.
#
# Later lessons build two switches: mixed precision (lesson 04), and *recompute*, which throws the insides of each block
# away and makes them again, one block at a time (lesson 03). The plain fp32 step has its peak at 53.8 MiB. Where is it
# with both switches on?

# %%
peak_guess = ask("Peak with mixed precision and recompute, in MiB?", unit="MiB")

# %%
switches = [(precision, recompute) for precision in ("fp32", "mixed") for recompute in ("none", "full")]
setups = {f"{p}, recompute {r}": setup.with_(precision=p, recompute=r) for p, r in switches}
compare(
    guess={"mixed, recompute full": peak_guess},
    predicted={name: predict.peak(changed).total for name, changed in setups.items()},
    measured={f"{p}, recompute {r}": turns.measured_peak(p, r) for p, r in switches},
    unit="MiB",
)

# %% [markdown]
# Each prediction is exact. What did *not* shrink: the model states. With all gradients in place they are 12.9 MiB in
# each of the four, a floor under both switches.
#
# ## 5 · Three ways to lose memory
#
# **A leak.** You evaluate every now and then and want the mean loss, so you collect the losses. Each is a single
# number of 4 bytes. What does a list of three of them cost?
#
# **A gradient that stays.** `zero_grad()` sets gradients to None, and their memory goes. An older habit is
# `zero_grad(set_to_none=False)`: fill them with zeros. What does it do to the peak?
#
# **One line longer.** Instead of letting the model compute its loss, we give a name to what comes between: `logits =
# model(inputs)`. What is `del logits` after the loss worth?

# %%
leak_guess = ask("A list of three losses: how many MiB does it hold?", unit="MiB")


# %%
def held_by_losses(keep):
    with measure.memory(model, inputs=batch) as record:
        losses = [keep(model(*batch)) for _ in range(3)]
        return record.now.activations


def step(zeros=False, name_logits=False, forget=False):
    optimizer.zero_grad(set_to_none=not zeros)
    logits = model(batch[0]) if name_logits else None
    loss = loss_of(logits, batch[1]) if name_logits else model(*batch)
    if forget:
        del logits
    loss.backward()
    optimizer.step()


# %%
def peak_in(**how):
    step(**how)
    with measure.memory(model, optimizer, batch) as record:
        step(**how)
    return record.peak.total


compare(
    guess={"three losses": leak_guess},
    predicted={"three losses": 3 * predict.activations(setup), "three .item()": Bytes(0), "zeros": Bytes(4 * PSI),
               "del": Bytes(4 * BATCH * SEQ * SMALL.vocab_size)},
    measured={"three losses": held_by_losses(lambda loss: loss), "three .item()": held_by_losses(torch.Tensor.item),
              "zeros": peak_in(zeros=True) - peak_in(),
              "del": peak_in(name_logits=True) - peak_in(name_logits=True, forget=True)},
    tolerance=0.001,  # the three losses share one batch
    unit="MiB",
)  # fmt: skip

# %% [markdown]
# 126 MiB for twelve bytes. Each loss holds the graph that it came from, and the graph holds every activation, waiting
# for a backward pass that never comes. `.item()` takes the number and lets go; `torch.no_grad()` keeps the graph from
# being made. (In a training loop the backward pass frees the activations. It is the loops *without* one that kill.)
#
# The zeros cost a full set of gradients, 4Ψ. At the peak, where the way back begins, the usual program has no gradients yet.
#
# After the loss the logits are of no use, not even to autograd, which keeps the logarithms of the probabilities instead.
# But a *name* is a reference, and the tensor lives as long as the function. Here it is 1 MiB; with GPT-2's vocabulary of
# 50,257 and a batch of 32 × 1,024 tokens it would be 6.6 GB.
#
# ## 6 · Against named cards
#
# The peak of a whole step in one bar, as `predict.peak` follows it: every moment that may be the worst is a sum, and the
# bar shows the largest. Below it, cards: as much of each as a program sees. The line above says in which pass it lies.

# %%
MemoryBarExplorer(layers=48, width=1600, batch=8, seq=1024).show(
    caption="GPT-2 XL with 8 sequences, at the worst moment of a step. A card that ends before the dashed line is too small."
)

# %% [markdown]
# (If nothing reacts, run the cell once.)
#
# 1. For how large a batch of GPT-2 XL is an A100 80GB large enough? With fused attention? And with recompute?
# 2. This bar has no gradients. Where is the peak? With all of question 1, go down to a batch of 4: why do they come now,
#    and what has gone?
# 3. Does it fit on a T4, then, with a single sequence? What is left to shrink?
#
# <details><summary>Answers</summary>
#
# 1. 8, 16 and 64, of the powers of two that the slider offers. (`predict.largest` says 11, 20 and 80.)
# 2. At the beginning of the way back: all activations are there, and no gradient yet. With 4 sequences and recompute so
# little waits for the way back that the worst moment is the optimizer's: all gradients are there, and no activation.
# 3. No. Fewer sequences change nothing any more: the model states alone have 23.2 GiB. All in bf16, without an fp32
# copy, it fits, with 11.9.
#
# </details>
#
# That is the story. Memory is a question of *when*: states that come late and stay, results that wait for the way
# back, and names that live too long.

# %% [markdown]
# ## Second sitting
#
# What stands above is the story, and you may stop here. On another day, run all cells above before you go on. Below: a
# line of section 4 that moves, the literature's formula, the account of a convolution and of inference, bytes that no layer
# owns, two more witnesses, the library's own way back through a block, and published numbers.
#
# **Change one thing** above, in section 4. In `mlp_on`, free `bent` one line later, behind `d_up`. Which of the three peaks
# change? Decide first: the table will complain, and show which. Set it back afterwards.
#
# <details><summary>Answer</summary>
#
# The first two, by a wide tensor each. In the third shape the peak comes later, with `d_x` and both gradients.
#
# </details>
#
# ### The formula that papers quote
#
# The literature writes it for 16 bits (Korthikanti et al. 2022, eq. 1; $s$ tokens, $b$ sequences, width $h$, $a$
# heads), as bytes for each layer:
#
# $$s\,b\,h\,\Bigl(34 + 5\,\frac{a\,s}{h}\Bigr)$$
#
# Where do 34 and 5 come from? Take our count with 2 bytes a number: $8 \cdot 2 + 2 \cdot 4 \cdot 2 = 32$, and 2 for
# the scores. The paper's network has dropout, and a dropout mask has one byte for each element. There are two on the
# stream: $32 + 2 = 34$. And one on the scores, whose dropped version is kept as well: $2 + 1 + 2 = 5$. (Left out
# are the norms' numbers and the mask, which are small.)
#
# ## 7 · A convolution's account
#
# An image has no pairs of tokens. A feature map is batch × channels × height × width, and that is the whole formula:
# $bs \cdot c \cdot h \cdot w$ numbers for each ($bs$ is the batch, and $h$ here a height). `predict.convolution_activations` adds up those that a stack of layers keeps.
#
# But how often is it kept? A convolution makes a map, ReLU makes another one of it, and the next convolution reads
# that. Two maps for each layer, or one? (Think of what each *backward* pass asks for.)

# %%
from torch.distributed._tools.mem_tracker import MemTracker

from course_kit.notebook import self_check, show
from course_kit.units import Count
from course_pages.lesson02 import pictures as allocator

# %%
maps_guess = ask("How many maps does a layer (convolution, ReLU) keep?")

# %%
net = torch.nn.Sequential(
    *(torch.nn.Conv2d(3, 16, 3, padding=1), torch.nn.ReLU()),
    *(torch.nn.Conv2d(16, 32, 3, stride=2, padding=1), torch.nn.ReLU()),
    *(torch.nn.Conv2d(32, 64, 3, stride=2, padding=1), torch.nn.ReLU()),
)
kept = kept_by(net, torch.randn(8, 3, 64, 64))

# %%
print(f"maps for each layer: {(len(kept) - 1) / 3:g} (you said {maps_guess.said})")  # the first one kept is the image
layers = [predict.Convolution(16), predict.Convolution(32, stride=2), predict.Convolution(64, stride=2)]
rows = ["the image", "and the first map", "and the second", "and the third"]
compare(
    predicted={row: predict.convolution_activations(layers[:n], 8, (3, 64, 64)) for n, row in enumerate(rows)},
    measured={row: sum(kept[: n + 1]) for n, row in enumerate(rows)},
    unit="KiB",
)

# %% [markdown]
# One. ReLU's backward pass is content with its *result* (where it is zero, the gradient is cut off), and that very
# tensor is the next convolution's input. They share it. (Batch norm between the two would ask for what the convolution
# made, and double the bill: `predict.Convolution(16, norm=True)`.) Maps shrink with each stride; a transformer keeps its
# many vectors in every layer alike.
#
# ## 8 · Inference lets go
#
# A network that is only *used* asks for no gradients. Then each result is needed until the next operation has
# read it.
#
# A chain of equal layers shows it best: 256 rows of 512 numbers, half a MiB for each result. With 32 layers, what is
# the peak in inference? (The weights are not counted.)

# %%
inference_guess = ask("32 layers in inference: how many MiB of results?", unit="MiB")


# %%
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
results = [[X] * (depth + 1) for depth in DEPTHS]  # the input, and what each layer makes
predicted = {
    "training": [sum(sizes) for sizes in results],
    "inference": [predict.inference_buffers(sizes) for sizes in results],
}
memory.memory_growth(
    DEPTHS, predicted, along="layers", measured={"training": training, "inference": inference},
    caption="The same network, used and trained. Training grows with every layer, inference does not. (Lines: the "
    "formulas. Rings: measured.)",
).show()  # fmt: skip
compare(
    guess={"inference": inference_guess},
    predicted={"inference": predicted["inference"][-1], "training": predicted["training"][-1]},
    measured={"inference": inference[-1], "training": training[-1]},
    unit="MiB",
)

# %% [markdown]
# $O(1)$ against $O(L)$ for $L$ layers. Inference needs two buffers: one to read from, one to write to, and then they change
# places. (Where results differ in size, it is the largest two neighbours, and
# `predict.inference_buffers` looks for them.) So `torch.no_grad()` belongs around every evaluation. (That a model which took a
# rack to train answers on a laptop has another reason, too: 2 bytes a parameter instead of 16.)
#
# One thing inference does keep. A language model writes one token at a time, and each new token looks back at the keys and
# values of all earlier ones. They are not computed again for each token, but stay in the **KV cache**: in every layer, for
# every token of every sequence, a key and a value for each head that has keys of its own.
#
# **Your turn.**

# %%
@your_turn(turns.check_cache, look="One token, one layer, one head: how many numbers are its key and its value?")
def cache_bytes(layers, heads, head_width, tokens, sequences, element_bytes):
    """Bytes of the KV cache; heads are those with keys of their own, head_width the numbers of a key."""
    ...


# %% tags=["solution"]
@cache_bytes.solution
def cache_bytes(layers, heads, head_width, tokens, sequences, element_bytes):
    return 2 * layers * heads * head_width * tokens * sequences * element_bytes


# %% [markdown]
# Let us collect them from our GPT: its layer `qkv` makes queries, keys and values side by side, and a hook can pick the
# last two.

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
ours = Bytes(cache_bytes(SMALL.layers, SMALL.heads, SMALL.width // SMALL.heads, SEQ, BATCH, 4))
display(compare(predicted=ours, measured=cached, name="our GPT"))

for row in (zoo.GPT3_175B, zoo.LLAMA2_7B, zoo.LLAMA3_8B):
    token, full = predict.kv_cache(row, 1, 1), predict.kv_cache(row, 32, 8192)
    heads = getattr(row.config, "kv_heads", row.config.heads)  # GPT-3's all have keys of their own
    keys = f"{row.config.layers} layers, {heads} heads of {row.config.head_width} with keys"
    print(f"{row.name:<11}: {keys}, {token:.0KiB} a token, {full:.0GiB} for 32 sequences of 8,192, if it could")

# %% [markdown]
# Llama 2 and Llama 3 are of nearly one size, and the second's cache is a quarter of the first's. In Llama 3 groups of
# four query heads share their keys and values (*grouped-query attention*). The lab takes its bytes apart.
#
# ## 9 · Bytes that no layer owns
#
# **Buffers.** When several GPUs add up their gradients (lesson 07), one message for each tensor would be slow. So
# frameworks *fuse*: they copy all gradients into one flat buffer, send that, and copy back.


# %%
def all_reduce_fused(gradients):
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    # Here it would be sent; but there is no other rank to send it to.
    for gradient, piece in zip(gradients, flat.split([gradient.numel() for gradient in gradients])):
        gradient.copy_(piece.view_as(gradient))


with measure.memory(model, optimizer) as record:
    all_reduce_fused([parameter.grad for parameter in model.parameters()])

compare(predicted=Bytes(4 * PSI), measured=record.peak.temporaries, name="fused buffer", unit="KiB")

# %% [markdown]
# $4\Psi$ in fp32: another full set, for a moment. (Rajbhandari et al. 2020, §3.2, name 6 GB for 1.5 billion
# parameters. Their repair is a buffer of constant size; lesson 07 calls it a bucket.)
#
# **Pieces.** The last thief owns nothing at all. Asking a GPU's driver for memory is slow, so PyTorch's allocator
# asks for large *allocator segments*, cuts blocks out of them, and keeps what is freed for the next tensor. Free neighbours melt
# into one. But blocks never move. The library has a model of that allocator, written after the rules in its source,
# which runs without a GPU. We give it a card of 80 MiB, fill it with twenty tensors of 4 MiB, and free every second
# one. Now half of the card is free, and we ask for 6 MiB. (Printed first is the model's `free`: which line melts two
# neighbours into one?)

# %% tags=["raises-exception"]
display(show(predict.CachingAllocator.free, docstring=False))
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
# That is **fragmentation**. `joined[-1].nbytes += each.nbytes` melts two that lie side by side, and here no two free
# ones do. The ZeRO authors saw runs die with over 30 % of the memory free "in some extreme cases" (§3.2). Who makes
# such holes? Tensors of different sizes and lifetimes. We record six real steps, all with sequences of 512 tokens, then
# six of different lengths, and play their births and deaths to the model of the allocator.


# %%
def reserved_over_alive(lengths):
    model = GPT(replace(SMALL, layers=6, width=256, context=512))
    adam = torch.optim.Adam(model.parameters())
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
# Already steps that are all alike reserve more than is ever alive, for tensors differ in size and lifetime. Ragged ones
# add to it. So leave room: a plan that fills a card to the last byte does not run on it. Make all batches of one shape, and
# allocate what lives long before what lives short. `PYTORCH_ALLOC_CONF=expandable_segments:True` lets allocator segments grow, so
# that fewer holes are closed in by borders. And no model on this page counts the driver's own share and the
# libraries' workspaces, often some hundreds of MiB.
#
# ## 10 · PyTorch's own
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
# What did the formula write down? Printed below is its way back through a block, MLP first. Where are three wide tensors
# (`BSF`) alive, as in section 4?

# %%
show(predict.lifetimes.step.StepLifetimes.block_backward, docstring=False)

# %% [markdown]
# When `d_bent` is made (`linear_backward` does it, then frees), and again at `make(d_up=…)`: `up` and `d_bent` go one line
# later.
#
# On a GPU the allocator itself keeps count. `torch.cuda.max_memory_allocated()` is the peak of all blocks since
# `reset_peak_memory_stats`, `max_memory_reserved()` that of all allocator segments. A block has a multiple of 512 bytes;
# here all tensors have one, except the loss. On top come *workspaces*: cuBLAS, the library of matrix products, keeps one for
# each thread that calls it, and backward has a thread of its own. PyTorch gives it 8.1 MiB on most cards, 32 on an H100. They
# lie there between two steps, so the cell reads them off *then*, and adds them to the formula.
#
# And a *snapshot* writes down every block with the line of code that asked for it. The cell draws the hill of section 1 from
# it; drop the file on [pytorch.org/memory_viz](https://pytorch.org/memory_viz), and you can click on each block.
# (Without a GPU the cell prints one line.)

# %% tags=["varies"]
if problem := gpu.refusal(200 * 2**20):
    print(problem)
else:
    on_gpu, there = GPT(SMALL, seed=0, device="cuda"), [part.cuda() for part in batch]
    adam = torch.optim.Adam(on_gpu.parameters(), foreach=False)  # one by one, as on a CPU
    train_step(on_gpu, adam, there)  # makes Adam's state, and the workspaces
    adam.zero_grad()
    states = Bytes(12 * PSI) + sum(part.nbytes for part in there)
    workspaces = Bytes(torch.cuda.memory_allocated()) - states
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.memory._record_memory_history()
    train_step(on_gpu, adam, there)
    torch.cuda.memory._dump_snapshot("snapshot.pickle")
    allocated = Bytes(torch.cuda.max_memory_allocated())
    expected = predict.peak(setup.with_(device="cuda")).total + workspaces
    compare(predicted=expected, measured=allocated, name="peak on the card", tolerance=0.01)
    print(f"of it workspaces: {workspaces:.1MiB}")

# %% tags=["varies"]
if not problem:
    reserved = Bytes(torch.cuda.max_memory_reserved())
    print(f"reserved: {reserved:.1MiB} in allocator segments")
    (history,) = torch.cuda.memory._snapshot()["device_traces"][:1]
    allocator.allocator_hill(history, states + workspaces).show()

# %% [markdown]
# ## 11 · At scale
#
# How does the peak grow? GPT-2 XL (48 layers, 1,600 wide), one sequence, mixed precision:

# %%
XL, LENGTHS = zoo.GPT2_XL.config, [512, 1024, 2048, 4096, 8192]


def peaks_over_lengths(attention="explicit", **how):
    one = predict.Setup(replace(XL, context=LENGTHS[-1], attention=attention), batch_size=1, precision="mixed", **how)
    return [predict.peak(one.with_(seq=length)).total for length in LENGTHS]


memory.memory_growth(
    LENGTHS,
    {"scores kept": peaks_over_lengths(), "fused": peaks_over_lengths("fused"),
     "recompute": peaks_over_lengths(recompute="full"), "both": peaks_over_lengths("fused", recompute="full")},
    along="tokens in the sequence",
    limits={"A100 80GB": hardware.A100_80GB.memory},
    log=True,
    caption="The peak of a step. On the left all lines stand on the model states, 24 GiB with what `step()` needs on "
    "the way. On the right the sequence decides. With both, only each block's input is kept, and the line hardly rises.",
)  # fmt: skip

# %% [markdown]
# **GPT-2, 1.5 billion.** The paper that introduced ZeRO prints numbers for the model of our first paragraph (Rajbhandari et al.
# 2020, §3.1 and §3.2): 3 GB of weights, 24 GB of states, and for a batch of 32 sequences of 1,024 tokens 60 GB of
# activations, by a rule of its own: 12 numbers of 2 bytes for each token, feature and layer. Is 60 GB right? First the
# states, then an account that agreed with tensors to the byte.

# %%
states = Bytes(model_states(1_500_000_000, "mixed", 2))
print(f"states {states:.0GB}, fused buffer {Bytes(4 * 1_500_000_000):.0GB}; the paper, by the same rules: 24 and 6 GB")
xl = predict.Setup(XL, batch_size=32, seq=1024, precision="mixed")
print(f"our GPT, no dropout: {predict.activations(xl):.0GB}", end=", ")
print(f"with fused attention: {predict.activations(xl.with_(config=replace(XL, attention='fused'))):.0GB}", end=", ")
print(f"sbh (34 + 5as/h): {predict.activations_paper(xl):.0GB}")

# %% [markdown]
# The rule of 12 was a lower bound. Twelve numbers a layer are fewer than our sixteen (eight of the stream's width, two of
# four times that), and it has no scores at all, which at 1,024 tokens and 25 heads are sixteen more. A later paper counts
# nearly five times as much. The authors were not wrong, they wrote "about". But a formula without a measurement beside it
# can be off by three, or by five, and no reader notices. (And if a slide tells you "60 GB, *even with* checkpointing": in
# the paper, the 60 GB are *without*; with it, 8.)
#
# **GPT-3.** The parameters of all eight models, from the shapes in the paper's table 2.1, against the counts in its
# table D.1. (Table 2.1 misprints two shapes; the library's rows say which, and why.)

# %%
family = {row.name: row for row in zoo.ALL if row.name.startswith("GPT-3")}
counted = {name: predict.parameters(row) for name, row in family.items()}
published = {name: Count(row.parameters) for name, row in family.items()}
# measured: the parameters of the trained models, Brown et al. 2020, Table D.1
compare(predicted=counted, measured=published, tolerance=0.006, columns=("our formula", "published"))

# %% [markdown]
# So GPT-3's largest has 350 GB in 16 bits, and with Adam 16Ψ are 2.8 TB of model states: thirty-three cards of 80 GiB,
# and not an activation among them. Three quarters are the optimizer's, and lesson 10 attacks those first.
#
# ## What to keep
#
# | question | answer |
# |---|---|
# | What is the peak? | the largest account over *time*; never a sum of maxima |
# | What do states cost? | 16Ψ with Adam in fp32 or mixed, 8Ψ all in bf16; the moments arrive with the first `step()` |
# | What does a layer keep? | $sbh\,(32 + 2\,as/h)$ in 16 bits, 34 and 5 with dropout; the scores are the term to fear |
# | And a convolution? | batch × channels × height × width numbers, once for each layer |
# | And inference? | two buffers, and the KV cache |
# | What leaks? | a loss with its graph; gradients of zeros; a name that lives too long |
# | What is missing? | buffers, fragmentation, the driver's share: leave room |
#
# ## Three exercises
#
# **1.** A recipe keeps weights and gradients in bf16, and an fp32 copy and *one* moment in fp32. How many bytes a
# parameter?
#
# **2.** GPT-2 XL in mixed precision with Adam, fused attention, every block recomputed. How many sequences of 1,024
# tokens fit into what a program sees of an A100 40GB, `hardware.A100_40GB.usable`, by `predict.peak`? (The batch need not
# be a power of two.)
#
# **3.** The function below holds 42 MiB of activations for each batch that it evaluates. Add one line, so that it
# holds none and returns the same.

# %%
answer_1 = None  # bytes

self_check(answer_1, turns.EXERCISES[0], hint="Four numbers a parameter: which have 2 bytes, which 4?")

# %%
lean = predict.Setup(replace(XL, attention="fused"), batch_size=8, seq=1024, precision="mixed", recompute="full")
answer_2 = None  # sequences

self_check(answer_2, turns.EXERCISES[1], hint="Print predict.peak(lean.with_(batch_size=8)).total, and try others.")


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

self_check(answer_3, 0, hint="`.item()` still holds one batch at a time. What keeps a graph from being made at all?")

# %% [markdown]
# <details><summary>Answers</summary>
#
# 1. 12: $2 + 2$ for weight and gradient, $4 + 4$ for the copy and the moment.
# 2. 26. `predict.largest(lean, "batch_size", hardware.A100_40GB.usable)` looks for it; its `bounded_by` says how much 27
# would miss.
# 3. `@torch.no_grad()` above `def`. No graph is made, so there is nothing to hold, and `answer_3` is 0.
#
# </details>
#
# **The lab**, `labs/lab02_memory_accounting`, gives you an architecture that the library does not know: grouped-query
# attention, a gated MLP, RMSNorm, tied embeddings. You write its account, and it is graded by the measured bytes.
#
# ## Further reading
#
# - Rajbhandari et al. 2020, [ZeRO](https://arxiv.org/abs/1910.02054): §3 is this page for 1.5 billion parameters.
# - Korthikanti et al. 2022, [Reducing activation recomputation](https://arxiv.org/abs/2205.05198): §4 counts a layer.
# - PyTorch, [understanding CUDA memory usage](https://docs.pytorch.org/docs/stable/torch_cuda_memory.html): snapshots,
#   and how to read them.
#
# [Lesson 03 · Activation checkpointing](03_activation_checkpointing.ipynb) flattens the hill.
