# %% [markdown]
# # 05 · Gradient accumulation and lean training
#
# **The question:** how do I get a batch of 512 on a machine that holds 4?
#
# | | |
# |---|---|
# | Time | 35 minutes, of which about half a minute is computing on 2 CPU cores |
# | A GPU | changes nothing in the counts; in the ladder of section 9 it changes the seconds |
# | Opens | `train/accumulate.py`, `train/optim.py`, `model/materialize.py`, `predict/peak.py` |
#
# The paper that you want to repeat trains with 512 sequences in each step. You type 512 and the run dies. 256 dies,
# 64 dies, 4 lives. So you train with 4, and the loss looks like a seismograph. The learning rate of the paper was
# made for a step that 512 sequences agreed on, and yours asks four.
#
# You do not need a larger machine for the same step. You need patience, four lines of code, and one number that
# almost everybody gets wrong the first time.
#
# By the end of this page a step that took 252 MiB will take 13, and you will know what each rung of that ladder
# costs.

# %%
import math

import torch
from torch import nn

from course_lib import measure, predict
from course_lib.compare import compare
from course_lib.explore import AccumulationExplorer
from course_lib.figures.losses import loss_curves
from course_lib.figures.memory import memory_timeline
from course_lib.model import text
from course_lib.model.gpt import GPT, GPTConfig
from course_lib.notebook import ask, self_check, show
from course_lib.train import optim
from course_lib.train.accumulate import accumulate, accumulated_step, count_tokens, micro_batches, ragged_batch
from course_lib.train.step import train_step
from course_lib.units import Bytes, Count, Ratio

# %% [markdown]
# ## 1 · The same step, in pieces
#
# The loss of a batch is a mean over its tokens. A mean is a sum, and so is its gradient: a sum over tokens, in which
# no token knows of any other sequence. It does not matter when the summands are computed. And PyTorch does not
# overwrite `.grad` in a backward pass, it *adds* to it. Everything that is needed has been there all along.
#
# With $m$ pieces of equal size and $\ell_i$ the mean loss of piece $i$,
#
# $$\nabla\,\ell = \nabla\,\frac{1}{m}\sum_{i=1}^{m} \ell_i = \sum_{i=1}^{m} \nabla\,\frac{\ell_i}{m}.$$
#
# So divide each loss by $m$, go backward, and step once at the end. The field calls this **gradient accumulation**,
# and a piece a *micro-batch*.

# %%
SMALL = GPTConfig(layers=2, width=64, heads=4, vocab_size=256, context=64)
stories = text.stories(seed=0)
whole = stories.batch(seed=0, step=0, rank=0, batch_size=32, context=64)


def in_pieces(model, batch, size):
    inputs, targets = (part.split(size) for part in batch)
    for piece in zip(inputs, targets):
        loss = model(*piece) / len(inputs)
        loss.backward()


def gradients(backward):
    model = GPT(SMALL, seed=0)
    backward(model)
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


# %% [markdown]
# Is it the same gradient? Not to the bit: a sum in another order rounds differently. So how far apart may two honest
# sums be? Each addition rounds by half an eps of its result, so two sums of $n$ numbers differ by at most $(n - 1)
# \cdot \text{eps}$ times the sum of their magnitudes (Higham 2002, §4.2). Here $n$ is 2,048 tokens. (The cell asks
# for more: it takes the gradient's length, which is smaller than that sum.) A wrong weight shows up a thousand times
# above that.
#
# The last row of the table forgets to divide by $m$.

# %%
oracle = gradients(lambda model: model(*whole).backward())
bound = (32 * 64 - 1) * torch.finfo(torch.float32).eps * oracle.norm()


def off(ours, theirs=oracle):
    return (ours - theirs).norm() / theirs.norm()


for size in (16, 4, 1):
    ours = gradients(lambda model, size=size: in_pieces(model, whole, size))
    print(f"{32 // size:2} pieces of {size:2}: within the bound: {bool((ours - oracle).norm() < bound)}")

forgot = gradients(lambda model: [model(*piece).backward() for piece in micro_batches(whole, 4)])
compare(predicted={"forgot 1/m, 8 pieces: times too long": Ratio(8)},
        measured={"forgot 1/m, 8 pieces: times too long": Ratio((forgot.norm() / oracle.norm()).item())}, tolerance=1e-4)

# %% [markdown]
# Eight times too long, and with Adam you would not notice: the factor cancels, as in section 9 of lesson 04. So this
# page, too, checks its tricks with SGD.
#
# ## 2 · What it saves, and what it does not
#
# Now a larger model, one that hurts: twelve layers, 2.4 million parameters, Adam. In one piece, a step of 32
# sequences looks like this.

# %%
CONFIG = GPTConfig(layers=12, width=128, heads=4, vocab_size=256, context=64)

def adam(model):
    return optim.Adam(model.parameters(), lr=1e-3)


def prepare(make_optimizer=adam):
    model = GPT(CONFIG, seed=0)
    return model, make_optimizer(model)


def recorded(step, model, optimizer):
    step(model, optimizer)  # the first step makes the optimizer's state
    with measure.memory(model, optimizer, inputs=whole) as record:
        step(model, optimizer)
    return record

one_piece = recorded(lambda *run: train_step(*run, whole), *prepare())
memory_timeline(one_piece)

# %% [markdown]
# The states are the thin layers at the bottom: weights, and twice as much for Adam. The rest is the hill of
# activations.
#
# We cut the batch into 8 pieces of 4. The activations become an eighth. Estimate the new peak: 28 MiB of weights and
# Adam's state, an eighth of 220 MiB, and…?

# %%
setup = predict.Setup(CONFIG, batch_size=32, seq=64)
pieces_guess = ask("How many MiB at the peak, with 8 pieces of 4 sequences?", unit="MiB")

# %%
eight = recorded(lambda *run: accumulated_step(*run, micro_batches(whole, 4)), *prepare())
memory_timeline(eight, caption="Eight teeth. The first stands lower: no green gradients lie under it yet.").show()
compare(
    guess={"8 pieces of 4": pieces_guess},
    predicted={"1 piece of 32": predict.peak(setup).total,
               "8 pieces of 4": predict.peak(setup.with_(micro_batch=4)).total},
    measured={"1 piece of 32": one_piece.peak.total, "8 pieces of 4": eight.peak.total},
    tolerance=0.001, unit="MiB",
)

# %% [markdown]
# A quarter of the peak. And yet 9 MiB more than the naive estimate of 56. Where are they?
#
# Look at the green layer. In a plain step the gradients grow while the activations melt away, so the two hardly ever
# meet. Here, from the second piece on, the sum of the earlier gradients *lies there* while the next hill grows. The
# first tooth of the saw stands on lower ground than the other seven. So accumulation has a price in bytes, and it is
# known exactly:
#
# With $\Psi$ parameters in fp32,
#
# $$\text{peak} \approx \underbrace{4\Psi}_{\text{weights}} + \underbrace{4\Psi}_{\text{gradients}} +
# \underbrace{8\Psi}_{\text{Adam}} + \text{activations}(b).$$
#
# Only the last term knows the size $b$ of a piece. Whatever you cut, the first three stay. (We allowed a thousandth:
# this Adam keeps its step counters as Python numbers, the formula has PyTorch's 4 bytes for each parameter tensor.)
#
# ## 3 · Cut a real one
#
# GPT-2 small on sequences of 1,024 tokens, in fp32, with a step of 64 sequences, and a card that you can rent for
# nothing. Left: the peak for every way to cut. Right: one step of the chosen cut over time (it appears when the cell
# runs; the tallest bars are cut off at the top).

# %%
AccumulationExplorer(global_batch=64, micro_batch=4).show(
    caption="Each halving of the piece halves the pink and the grey, and nothing else (the last bar, one piece, has no green): "
    "to the left the bars stop shrinking."
)

# %% [markdown]
# Try these, and say beforehand what will happen. (If nothing reacts, run the cell once.)
#
# - Move **Sequences in a step** to 512 and keep the piece. Which bar changes its height?
# - What is the largest piece that fits a T4? And on an A100 with 80 GiB?
# - Set the piece to 1 and change the **optimizer** to SGD. Then do the same with the piece at 8. Where does it matter?
#
# The first is the point of the whole lesson. But for the bar of a single piece, which gains the green, the height of
# the bars does not depend on the batch. *How much fits* is a question about the piece. *How large is the batch* has
# become a question about time alone.
#
# ## 4 · The bug that everybody writes
#
# Dividing by $m$ was right because all pieces were equally large. Real text is not like that. Conversations, e-mails,
# answers: some have 60 tokens, some have 3. A batch of them is padded to a rectangle, and the loss skips the padding.
#
# Take eight sequences, four long and four short, one in each piece. The loss of the batch is the mean over its
# *tokens*. Divide each piece's mean by 8 all the same: how much louder does a token of the shortest piece speak than
# it should?

# %%
LENGTHS = [64, 3, 60, 5, 62, 4, 58, 2]
ragged = ragged_batch([row[: length + 1] for row, length in zip(stories.batch(0, 1, 0, 8, 65)[0], LENGTHS)])
pieces = micro_batches(ragged, 1)
print("tokens in the pieces:", *(count_tokens(targets) for _, targets in pieces))

louder_guess = ask("How many times too loud is a token of the piece with 2 tokens?")


# %%
def mean_of_means(model):
    for piece in pieces:
        (model(*piece) / len(pieces)).backward()


N, shortest = sum(LENGTHS), min(LENGTHS)
model = GPT(SMALL, seed=0)
logits = model(ragged[0]).detach().requires_grad_()
per_row = nn.functional.cross_entropy(logits.transpose(1, 2), ragged[1], reduction="none").sum(1)
right, wrong = (torch.autograd.grad(loss, logits, retain_graph=True)[0][7, 0].norm().item()
                for loss in (per_row.sum() / N, (per_row / torch.tensor(LENGTHS)).mean()))
compare(guess=louder_guess, predicted=Ratio((1 / (8 * shortest)) / (1 / N)), measured=Ratio(wrong / right),
        tolerance=1e-4, name="times too loud")

# %% [markdown]
# A token's fair share is $1/N$ of the loss, here $1/258$. In the mean of means it gets $1/m$ of the loss for its
# piece, divided among the $n_i$ tokens there. So its weight is off by
#
# $$\frac{1/(m\,n_i)}{1/N} = \frac{N}{m\,n_i},$$
#
# sixteen times too loud in the shortest piece, and only half as loud as it should be in the longest. Nobody gets an
# error. The loss goes down. The model is trained to be good at short answers.
#
# And how wrong is the gradient of the batch?

# %%
true_gradient = gradients(lambda model: model(*ragged).backward())
wrong_gradient = gradients(mean_of_means)
fixed_gradient = gradients(lambda model: [
    (model(*piece) * count_tokens(piece[1]) / N).backward() for piece in pieces])

rounding = (N - 1) * torch.finfo(torch.float32).eps
print(f"mean of means, off by {off(wrong_gradient, true_gradient):.0%} of the gradient's length")
print("token-weighted, within rounding:", bool(off(fixed_gradient, true_gradient) < rounding))
angle = torch.nn.functional.cosine_similarity(wrong_gradient, true_gradient, dim=0).item()
print(f"and it points {math.degrees(math.acos(angle)):.0f} degrees aside")

# %% [markdown]
# The repair is in the third statement of the cell: weigh each piece by its share of the *tokens*, $n_i / N$. Then the
# means become sums again, and the sum is that of the whole batch:
#
# $$\sum_i \frac{n_i}{N} \ell_i = \frac{1}{N} \sum_i n_i \cdot \frac{1}{n_i} \sum_{t \in i} \ell_t = \frac{1}{N}
# \sum_t \ell_t .$$
#
# The price: you must know $N$ before the first backward pass. So draw all pieces of a step first and count. (This is
# no beginners' bug. In October 2024 it was found in the trainers of several widely used libraries, years after it had
# been written; D. and M. Han told the story.)
#
# **Change one thing.** Sort the sequences by length before you cut, with pieces of 4. Will the mean of means be more
# wrong or less wrong than with long and short ones mixed? Decide first. (Exercise 1 gives the factor for the sorted
# ones. Mixed, the two pieces have 132 and 126 tokens.)
#
# ## 5 · Once a step
#
# The whole batch takes one step. So whatever happens once a step must happen once here, after the last piece:
# clipping, unscaling, the optimizer, the learning-rate schedule. In the library's form you can see the order.

# %%
display(show(accumulate, docstring=False))
show(accumulated_step, docstring=False)

# %% [markdown]
# `accumulate` weighs each piece by its tokens; `accumulated_step` does once what belongs to the step. The loss scaler of
# lesson 04 is no exception. It multiplies each piece's loss by the same number, undoes it once, and if *one* piece
# overflows it throws away *all*: a step without that piece would be a step on another batch.
#
# Weights, scaler and clipping together, with ragged pieces, against one big batch, for five steps of SGD:

# %%
from course_lib.train.gradients import clip_gradients
from course_lib.train.precision import LossScaler


def one_big_batch(model, optimizer, batch, max_norm):
    optimizer.zero_grad()
    loss = model(*batch)
    loss.backward()
    length = clip_gradients(optimizer, max_norm)
    optimizer.step()
    return loss.item(), length


# %%
big, small = GPT(SMALL, dtype=torch.float64), GPT(SMALL, dtype=torch.float64)
for_big, for_small = (optim.SGD(model.parameters(), lr=0.5) for model in (big, small))
scaler = LossScaler(2.0**12)
for step in range(5):
    loss, length = one_big_batch(big, for_big, ragged, max_norm=1.0)
    in_eight = accumulated_step(small, for_small, pieces, max_norm=1.0, scaler=scaler).item()
    print(f"step {step}: length {length:.2f}, stepped with {min(length, 1):.2f}; loss {loss:.4f} and {in_eight:.4f}")
same = [torch.allclose(a, b, rtol=1e-10, atol=1e-12) for a, b in zip(big.parameters(), small.parameters())]
compare(predicted=Count(len(list(big.parameters()))), measured=Count(sum(same)), name="parameters equal to one big batch")

# %% [markdown]
# Here the usual "PyTorch's own" would stand. There is nothing to import: PyTorch has no accumulator, the loop *is*
# the practice, and one big batch is its only judge. (We judged in float64, where rounding leaves room for 10 equal
# digits.)
#
# What if something slips into the inner loop? Clipping does, easily: it moves up by one line and stands behind each
# `backward()`. Now it cuts the sum *so far*, and cuts it again with every piece that comes. At the end the gradient is 1
# long, as it should be, and the log looks fine. But who is in it?
#
# A base for your guess: each of the four long pieces brings a gradient of about length 1, in nearly the same direction.
# The short ones hardly count. The first piece is in the sum from the beginning. How many times louder than the first
# will the last one be?

# %%
louder_last_guess = ask("Clipped behind every piece: how many times louder is the last than the first?")

# %%
model = GPT(SMALL, seed=0)
plain_sgd, lengths = torch.optim.SGD(model.parameters(), lr=0.5), []
for piece in pieces:
    (model(*piece) * count_tokens(piece[1]) / N).backward()
    lengths.append(clip_gradients(plain_sgd, 1.0))

print("length before each cut:", *(f"{length:.2f}" for length in lengths))
times = Ratio(math.prod(max(1, length) for length in lengths[1:]))
compare(guess=louder_last_guess, predicted=Ratio(2**3), measured=times, tolerance=0.1, name="times louder")

# %% [markdown]
# Three long pieces come after the first one. Each makes the sum about 2 long, and the cut halves it, with everything
# that was in it: $2^3$. In every batch the first sequences count for an eighth of the last ones, and no number in
# the log says so.
#
# ## 6 · The schedule that counts pieces
#
# One more thing happens once a step, and likes to slip into the inner loop: `scheduler.step()`. Let the learning
# rate follow half a cosine from 0.5 down to 0 over 60 steps, and let a step have 4 pieces.
#
# $$\eta(t) = \frac{\eta_0}{2} \left(1 + \cos\frac{\pi t}{T}\right)$$
#
# (Loshchilov and Hutter 2017, eq. 5.) If the schedule is moved on with every piece, at which *step* is the learning
# rate 0 for the first time? And what happens after that?

# %%
zero_guess = ask("At which step does the learning rate reach 0, with 4 pieces a step?")

# %%
STEPS, PIECES = 60, 4


def train(make_optimizer, moves_a_step, steps=STEPS):
    model = GPT(SMALL, seed=0)
    optimizer = make_optimizer(model.parameters())
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)
    losses, rates = [], []
    for step in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        batch = stories.batch(seed=0, step=step, rank=0, batch_size=16, context=64)
        losses.append(accumulated_step(model, optimizer, micro_batches(batch, 16 // PIECES)).item())
        for _ in range(moves_a_step):
            schedule.step()
    return losses, rates


# %%
once, rates = train(lambda parameters: optim.SGD(parameters, lr=0.5), moves_a_step=1)
often, wrong_rates = train(lambda parameters: optim.SGD(parameters, lr=0.5), moves_a_step=PIECES)
first_zero = next(step for step, rate in enumerate(wrong_rates) if rate < 1e-9)

print("step             ", *(f"{step:5}" for step in range(0, STEPS, 5)))
print("moved once a step", *(f"{rate:5.2f}" for rate in rates[::5]))
print("with every piece ", *(f"{rate:5.2f}" for rate in wrong_rates[::5]))
loss_curves(
    {"schedule moved once a step": once, "schedule moved with every piece": often},
    caption="The orange run sleeps around steps 15 and 45. In between its rate climbs back, and the loss jumps.",
    alt="Two loss curves over 60 steps. The run whose schedule moves with every piece is flat around step 15, jumps up "
    "around step 30, when its learning rate is back at its maximum, and ends above the other.",
).show()
compare(guess=zero_guess, predicted=Count(STEPS // PIECES), measured=Count(first_zero), name="learning rate 0 at step")

# %% [markdown]
# It does not stop at 0. A cosine goes on, so the learning rate climbs back to its maximum at step 30, falls again,
# and the run ends at full speed, where a schedule is meant to let it settle. Nothing was reported. If a loss curve of
# yours jumps in mid-run, count how often its schedule moves.
#
# ## 7 · A leaner optimizer
#
# Accumulation has taken care of the activations. What stands below them is $16\Psi$ bytes in fp32, and half of it is
# Adam's. Can one do with less? Here is what each optimizer keeps for a matrix of $R$ rows and $C$ columns:
#
# | optimizer | keeps | bytes |
# |---|---|---|
# | SGD | nothing | 0 |
# | SGD with momentum | a running mean of the gradient | $4RC$ |
# | Adam | and a running mean of its square | $8RC$ |
# | Adam in 8 bits | both, rounded in blocks of 256 | $2RC + 8RC/256$ |
# | Adafactor | of the squares, only row means and column means | $4(R + C)$ |
#
# The last one is the surprising one. The squares of a gradient are a table of $R \times C$ numbers, of which
# Adafactor remembers the $R + C$ margins, and pretends that the table is their product (Shazeer and Stern 2018, §3):
#
# $$v_{ij} \approx \frac{r_i\, c_j}{\text{mean}(r)}.$$
#
# Is that a good pretence? Take the gradient of a real matrix, and look at what matters, the *root*, by which the step
# is divided. By what factor is it off in the median, compared with forgetting the table altogether and keeping one
# number?

# %%
model = GPT(SMALL, seed=0)
model(*whole).backward()
squares = model.blocks[0].mlp.up.weight.grad.square()
rows, columns = squares.mean(dim=1, keepdim=True), squares.mean(dim=0, keepdim=True)
margins = rows @ columns / rows.mean()


def typical_factor(estimate):
    return math.exp((estimate / squares).sqrt().log().abs().median().item())


print(f"{squares.numel():,} numbers remembered as {len(rows)} + {columns.numel()}")
print(f"typical factor off: margins {typical_factor(margins):.1f}, one number for all {typical_factor(squares.mean()):.1f}")

# %% [markdown]
# One step's gradient is a rough thing; over many steps the running means smooth it, and then only the *relative* size
# of rows and columns has to be right. Whether it is good enough, the training says. First the bytes, for the whole
# small GPT.

# %%
KINDS = {
    "Adam": lambda p: optim.Adam(p, lr=3e-3),
    "Adam, 8 bits": lambda p: optim.Adam8bit(p, lr=3e-3),
    "SGD with momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.9),
    "Adafactor": lambda p: optim.Adafactor(p, lr=0.1),
    "SGD": lambda p: optim.SGD(p, lr=0.5),
}
adafactor_guess = ask("Adam keeps 942 KiB for this model. How many KiB does Adafactor keep?", unit="KiB")

# %%
shapes = [parameter.shape for parameter in GPT(SMALL, device="meta").parameters()]
psi = sum(shape.numel() for shape in shapes)
blocks = sum(math.ceil(shape.numel() / 256) for shape in shapes)
margin_bytes = Bytes(4 * sum(sum(shape) for shape in shapes))
keeps = [8 * psi, 2 * psi + 8 * blocks, 4 * psi, margin_bytes, 0]

kept = {}
for name, make in KINDS.items():
    model = GPT(SMALL, seed=0)
    train_step(model, optimizer := make(model.parameters()), whole)
    kept[name] = optimizer.state_bytes
compare(guess={"Adafactor": adafactor_guess}, predicted=dict(zip(KINDS, map(Bytes, keeps))), measured=kept, unit="KiB")

# %% [markdown]
# From two numbers a weight to almost nothing. (A vector has no rows and columns, so Adafactor keeps all of it: for a
# shape of one size, the sum over the sizes says just that.)
#
# Bytes are easy to save if the model need not learn. So all five train, 60 steps each, with the same cosine:

# %%
curves = {name: train(make, moves_a_step=1)[0] for name, make in KINDS.items()}
loss_curves(
    curves,
    caption="8-bit Adam follows Adam, but for one stumble. Adafactor, with almost no state, runs ahead of them all.",
    alt="Loss over 60 steps for five optimizers. " + "; ".join(
        f"{name} ends near {sum(losses[-5:]) / 5:.1f}" for name, losses in curves.items()),
)

# %% [markdown]
# Each learning rate was chosen by a few trials, and 60 steps are a sprint, so this is no ranking. What can be read: 8
# bits are enough for Adam's two numbers, and the margins are enough for its squares. (Adafactor's learning rate is a
# *share* of each weight's own size, here a tenth. So the scales of the norms, which are 1, move some fifty times as
# far as a matrix whose numbers are around 0.02; with Adam both move alike. Whether this is why it runs ahead, we have
# not tried.) SGD is the leanest of all; vision models usually take it with momentum.
#
# ## 8 · Born in the right place
#
# One peak comes before the first step. `nn.Linear(…)` makes its weights in fp32 on the CPU. Then
# `.to(torch.bfloat16)` makes the model that you wanted. For a moment, both exist, at least in part. If the first one
# does not fit, the second never comes.
#
# PyTorch has a device on which a tensor has a shape and no bytes, `meta`. Make the model there, choose its place and
# its dtype, and only then ask for memory. What is the peak in each way, in bytes a parameter?


# %%
from course_lib.model.materialize import materialize


def mlp():
    return nn.Sequential(*(nn.Linear(512, 512, bias=False) for _ in range(16)))


def ordinary():
    return mlp().to(torch.bfloat16)


def from_meta():
    with torch.device("meta"):
        model = mlp()
    return materialize(model, device="cpu", dtype=torch.bfloat16)


meta_guess = ask("Bytes a parameter at the peak, when the model comes from meta")

# %%
peaks = {}
for way in (ordinary, from_meta):
    with measure.memory() as record:
        made = way()
    peaks[way.__name__] = Ratio(record.peak.total / (16 * 512**2))
compare(guess={"from_meta": meta_guess}, predicted={"ordinary": Ratio(4 + 2 / 16), "from_meta": Ratio(2)}, measured=peaks)

# %% [markdown]
# (The $2/16$: `.to` exchanges one matrix at a time, and the first copy is made while all sixteen originals still
# stand.)
#
# Half the peak, and on a GPU the other half is not even on the CPU. The library's `materialize` is short. What does
# it do beside allocating? Look for `made`.

# %%
show(materialize, docstring=False)

# %% [markdown]
# It remembers which tensor became which. A GPT whose head *is* its embedding has one tensor under two names, and
# PyTorch's own `to_empty` makes two tensors of it. No error: the head and the embedding learn apart from then on, and
# the model has grown. Count for yourself:

# %%
def tied():
    with torch.device("meta"):
        model = nn.Sequential(nn.Embedding(256, 64), nn.Linear(64, 256, bias=False))
    model[1].weight = model[0].weight
    return model


ways = {"on meta": tied(), "materialize": materialize(tied()), "to_empty": tied().to_empty(device="cpu")}
matrices = {name: Count(len(list(model.parameters()))) for name, model in ways.items()}
compare(predicted={"on meta": Count(1), "materialize": Count(1), "to_empty": Count(2)}, measured=matrices)

# %% [markdown]
# (`to_empty` has a second trap: the new memory holds whatever lay there. `materialize` fills it, and refuses a module
# that does not know how.)
#
# ## 9 · The ladder
#
# Now all of it, on one model, one rung at a time: the twelve layers of section 2, and 32 sequences in every row, so
# that the seconds can be compared. A rung keeps what the rungs above it did.
#
# The last rung has a new tool. `OffloadToDisk` works like the attic of lesson 03, with real files: what DRAM is to a
# GPU, a disk is to DRAM. Only the *forward* pass runs inside it, or what recompute makes on the way back would be
# written, too.

# %%
from course_lib.train.offload import OffloadToDisk

SIZE = 8


def small_steps(model, optimizer):
    for piece in micro_batches(whole, SIZE):
        train_step(model, optimizer, piece)


def accumulated(model, optimizer):
    accumulated_step(model, optimizer, micro_batches(whole, SIZE))


def to_disk(model, optimizer):
    def forward(*piece):
        with OffloadToDisk():
            return model(*piece)

    accumulated_step(forward, optimizer, micro_batches(whole, SIZE))


# %%
from course_lib.train.precision import StochasticRounding
from course_lib.train.recompute import RecomputedLayers


def adafactor(model):
    return optim.Adafactor(model.parameters())


def lean(model):
    return StochasticRounding(adafactor(model))  # the weights become bf16


def lean_and_recomputed(model):
    model.blocks = RecomputedLayers(model.blocks, every=1)
    return lean(model)


# %% [markdown]
# Predict the rungs before you climb down. The formulas of lessons 02 and 03, with the gradients of section 2, give
# all but the last. One rung goes *up*. Which one, and by how much?

# %%
LADDER = {
    "32 at once, Adam, fp32": (lambda *run: train_step(*run, whole), adam),
    "batch size: 4 steps of 8": (small_steps, adam),
    "accumulation: 1 step of 4 × 8": (accumulated, adam),
    "optimizer: Adafactor": (accumulated, adafactor),
    "precision: bf16, no fp32 copy": (accumulated, lean),
    "recompute: every block": (accumulated, lean_and_recomputed),
    "offload: inputs to disk": (to_disk, lean_and_recomputed),
}
up_guess = ask("One rung costs memory. How many MiB?", unit="MiB")

# %%
records = {name: recorded(step, *prepare(make)) for name, (step, make) in LADDER.items()}
measured = {name: record.peak.total for name, record in records.items()}

in_pieces = setup.with_(micro_batch=SIZE)
margins_of_all = Bytes(4 * sum(sum(p.shape) for p in GPT(CONFIG, device="meta").parameters()))
sgd = in_pieces.with_(optimizer="sgd")  # Adafactor: no moments, and the margins of every matrix
predicted = dict(zip(LADDER, [
    predict.peak(setup).total,
    predict.peak(setup.with_(batch_size=SIZE)).total,
    predict.peak(in_pieces).total,
    predict.peak(sgd).total + margins_of_all,
    predict.peak(sgd.with_(precision="bf16")).total + margins_of_all,
    predict.peak(sgd.with_(precision="bf16", recompute="full")).total + margins_of_all,
]))
first, second, third, *_ = LADDER
display(compare(guess=up_guess, predicted=predict.model_states(setup).gradients, measured=measured[third] - measured[second],
                tolerance=0.02, name="accumulation, more", unit="MiB"))
compare(predicted=predicted, measured={name: measured[name] for name in predicted}, tolerance=0.01, unit="MiB")

# %% [markdown]
# And what does each rung cost in time? These seconds are your machine's.

# %% tags=["varies"]
from course_lib.figures.memory_ladder import Ladder, Rung


def timed(step, make):
    run = prepare(make)
    return measure.seconds(lambda: step(*run), repeats=3)


ladder = Ladder([Rung(name, records[name].peak, timed(*how)) for name, how in LADDER.items()])
ladder.picture(caption="Accumulation adds the green; every rung below it takes a colour away or halves it. Recompute "
            "takes time. Weights and gradients remain.").show()
ladder

# %% [markdown]
# Climb down once more, slowly.
#
# - **Batch size** takes most of the pink away. What it costs in time, the right half shows: smaller pieces use a processor
# less well. And it is another training: four noisy steps for one calm one.
# - **Accumulation** gives you the calm step back, for the green layer. It takes one optimizer step instead of four, so
# it may even be faster than the row above.
# - **The optimizer** takes the orange layer away.
# - **Precision** halves all that is left, in the hands of stochastic rounding (lesson 04). If your processor multiplies
# bf16 in hardware, this rung *gains* time. If it does not, it is the slowest of all.
# - **Recompute** trades the pink for a second forward pass (lesson 03), by operations about a third more; your clock may say
# more than that.
# - **Offload** takes what recompute had kept, the inputs of the blocks, and writes them to files. It saves little here,
# since those inputs were little: the rest of the pink is the inside of the one block that runs again. Without
# recompute above it, offload would have had more to carry, and more to wait for.
#
# What is left? Mostly weights and gradients in 16 bits, twice $2\Psi$. No piece of a batch, no optimizer and no
# second forward pass will touch those. For them you need more than one device, and that is Part B of the course.
#
# ## 10 · At scale
#
# A ladder like this one was published by S. Raschka for a vision transformer, ViT-L/16, finetuned on one GPU
# (`rasbt/pytorch-memory-optim`, `logs.md`). Its rows: fp32 26.79 GB; 16-bit mixed 18.21; all bf16 13.82; a smaller
# batch 5.69; accumulation with pieces smaller again 3.91; SGD for Adam 2.02. And for the model alone, before
# training: 1.24 GB on the GPU if it is made in fp32, 0.65 GB if it is made there in bf16.
#
# We can recompute what depends on the model alone. 24 layers of width 1,024, patches of 16 × 16, ten classes:

# %%
h, layers = 1024, 24
block = 12 * h**2 + 13 * h
vit = layers * block + (3 * 16 * 16 + 1) * h + (14 * 14 + 2) * h + 2 * h + 10 * (h + 1)
print(f"{vit:,} parameters")
display(compare(
    predicted={"born in fp32": Bytes(4 * vit), "born in bf16": Bytes(2 * vit)},
    measured={"born in fp32": Bytes(1.24e9), "born in bf16": Bytes(0.65e9)},
    tolerance=0.08, columns=("our formula", "published"), unit="GB",
))
adams = predict.model_states(predict.Setup(vit, precision="bf16")).optimizer
compare(predicted=adams, measured=Bytes((3.91 - 2.02) * 1e9), tolerance=None, name="Adam → SGD saves",
        columns=("our formula", "published"), unit="GB")

# %% [markdown]
# The first table fits, with a few per cent for what a GPU's allocator rounds up. In the second, the run saved half as
# much again as Adam's two bf16 numbers. One candidate: on a GPU, PyTorch's Adam divides *all* parameters in one call
# by default and holds a temporary as large as the model, $2\Psi$ more, which would make 1.82 GB. We have not run it,
# so we leave it a candidate. Another: that script prints what the allocator *reserved*, not what was alive (lesson
# 02).
#
# Their time column agrees with ours in kind: accumulation in smaller pieces made the step 3.3 times slower there
# (3.96 to 12.91 minutes). A GPU needs large pieces to be busy, more than your CPU does. So cut until it fits, and no
# further.
#
# ## What to keep
#
# | question | answer |
# |---|---|
# | What does accumulation save? | activations: those of a piece, not of the batch |
# | What does it cost? | $4\Psi$ of gradients beside the activations, and time if pieces are too small |
# | How are pieces weighed? | by their share of the tokens, $n_i / N$; never by $1/m$ |
# | What happens once a step? | unscale, clip, step, move the schedule, in this order |
# | What does an optimizer cost? | Adam $8\Psi$, in 8 bits $2\Psi$, momentum $4\Psi$, Adafactor almost nothing |
# | How is a large model born? | on `meta`, then in its place, in its dtype, with its ties |
# | What is left at the end of the ladder? | weights and gradients |
#
# ## Three exercises
#
# **1.** Sort the eight ragged sequences by length and cut pieces of 4. How many times too loud is a token of the
# *short* piece in the mean of means?
#
# **2.** A card holds pieces of 6 sequences. You want the step of exactly 512. How many forward passes does it take?
#
# **3.** Write `weights`: from the numbers of tokens in the pieces, the factor for each piece's mean loss. One piece
# is all padding.

# %%
answer_1 = None  # a factor

short_tokens = sum(sorted(LENGTHS)[:4])
self_check(answer_1, N / (2 * short_tokens), tolerance=0.01, hint="N / (m n), with m = 2 pieces now.")

# %%
answer_2 = None  # forward passes

self_check(answer_2, math.ceil(512 / 6), hint="The last piece may be smaller; token weights take care of it.")


# %%
def weights(tokens):
    return [1 / len(tokens) for _ in tokens]  # change this line


answer_3 = None  # when it is right, replace None by weights([6, 0, 2])

self_check(answer_3, [0.75, 0.0, 0.25], hint="A piece's share of all tokens. The shares add up to 1. (In a loop over real pieces, skip the empty one: 0 · nan is nan.)")

# %% [markdown]
# **The lab**, `labs/lab05_gradient_accumulation`, asks for an accumulator that stays exact with ragged batches,
# clipping and fp16 scaling all together. Next comes lesson 06, with which Part B begins: how do many processes
# agree on a sum, and who pays?
