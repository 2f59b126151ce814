# %% [markdown]
# # 05 · Gradient accumulation and lean training
#
# **The question:** how do I get a batch of 512 on a machine that holds 4?
#
# | | |
# |---|---|
# | Time | first sitting 50 minutes, second sitting 45; less than a minute of both together is computing on 2 CPU cores (two and a half on CPUs that emulate 16 bits) |
# | A GPU | is not needed; the last cell of section 10 fills one, if there is one. There the seconds would be others, and the peaks a little, too |
# | Opens | `train/accumulate.py`, `train/optim.py`, `model/materialize.py` |
#
# The paper that you want to repeat trains with 512 sequences in each step. You type 512 and the run dies. 256 dies,
# 64 dies, and 4 lives. So you train with 4, and the loss looks like a seismograph: the paper made its learning rate for a
# step that 512 sequences agreed on, and yours asks four.
#
# For the same step you need no larger machine. You need patience, four lines of code, and one number that
# almost everybody gets wrong the first time.

# %%
import math

import torch
from torch import nn

from course_kit import measure
from course_kit.compare import compare
from course_kit.notebook import ask, show, your_turn
from course_kit.units import Bytes, Count, Ratio
from course_lib import predict
from course_lib.model import text
from course_lib.model.gpt import GPT, GPTConfig
from course_lib.train import optim
from course_lib.train.accumulate import accumulated_step, count_tokens, micro_batches, ragged_batch
from course_lib.train.gradients import clip_gradients
from course_lib.train.step import train_step
from course_pages.lesson05 import turns
from course_pages.lesson05.explorer import AccumulationExplorer
from course_pages.shared import gpu
from course_pages.shared.memory import memory_timeline

# %% [markdown]
# ## 1 · The same step, in pieces
#
# The loss of a batch is a mean over its tokens. A mean is a sum, and so is its gradient: a sum over tokens, in which
# no token knows of any other sequence. So it does not matter when the summands are computed. PyTorch, moreover, does not
# overwrite `.grad` in a backward pass, it *adds* to it.
#
# With $m$ pieces of equal size and $\ell_i$ the mean loss of piece $i$,
#
# $$\nabla\,\ell = \nabla\,\frac{1}{m}\sum_{i=1}^{m} \ell_i = \sum_{i=1}^{m} \nabla\,\frac{\ell_i}{m}.$$
#
# This is **gradient accumulation**, and a piece a *micro-batch*. Is it the same gradient? Not to the bit:
# a sum in another order rounds differently. For $n$ tokens the check allows $(n - 1) \cdot \text{eps}$ of the
# gradient's length, which is stricter than the bound for sums (Higham 2002, §4.2).
#
# **Your turn.** Write the loop. `model(*piece)` is the mean loss of a piece.

# %%
@your_turn(turns.check_pieces, look="The last sum of the formula: one summand, one `backward()`.")
def backward_in_pieces(model, pieces):
    """Leave in `.grad` the gradient of the mean loss over all pieces, which are equally large. One piece at a time."""
    ...


# %% tags=["solution"]
# One solution. Open it when yours passes, or when you are stuck.
@backward_in_pieces.solution
def backward_in_pieces(model, pieces):
    for piece in pieces:
        (model(*piece) / len(pieces)).backward()


# %% [markdown]
# If you forgot $1/m$, the check told you that the gradient is $m$ times too long. With Adam you would never have noticed,
# because there the factor cancels, as in lesson 04's second sitting. So this page, too, checks its tricks with SGD.
#
# ## 2 · What it saves, and what it does not
#
# Now a larger model, one that hurts: six layers, 1.2 million parameters, Adam. In one piece, a step of 32 sequences
# looks like this.

# %%
CONFIG = GPTConfig(layers=6, width=128, heads=4, vocab_size=256, context=64)
stories = text.stories(seed=0)
whole = stories.batch(seed=0, step=0, rank=0, batch_size=32, context=64)


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


# %%
one_piece = recorded(lambda *run: train_step(*run, whole), *prepare())
memory_timeline(one_piece)

# %% [markdown]
# The states are the thin layers at the bottom: weights, and twice as much for Adam. On them stands the hill of
# activations.
#
# Now cut the batch into 8 pieces of 4, and the activations become an eighth. Estimate the new peak: 14 MiB of weights and
# Adam's state, an eighth of 112 MiB, and…?

# %%
pieces_guess = ask("How many MiB at the peak, with 8 pieces of 4 sequences?", unit="MiB")

# %%
setup = predict.Setup(CONFIG, batch_size=32, seq=64)
eight = recorded(lambda *run: accumulated_step(*run, micro_batches(whole, 4)), *prepare())
memory_timeline(eight, caption="Eight teeth; a dashed line stands where a forward pass, a backward pass or the optimizer's step "
                "begins. The first tooth stands lower: no green gradients lie under it yet.").show()
compare(
    guess={"8 pieces of 4": pieces_guess},
    predicted={"1 piece of 32": predict.peak(setup).total,
               "8 pieces of 4": predict.peak(setup.with_(micro_batch=4)).total},
    measured={"1 piece of 32": one_piece.peak.total, "8 pieces of 4": eight.peak.total},
    tolerance=0.001, unit="MiB",
)

# %% [markdown]
# A quarter of the peak. And yet 5 MiB more than the naive estimate of 28. Where are they?
#
# Look at the green layer. In a plain step the gradients grow while the activations melt away, so the two are never
# full at once. Here, from the second piece on, the sum of the earlier gradients *lies there* while the next hill grows.
# So accumulation has a price in bytes. With $\Psi$ parameters in fp32,
#
# $$\text{peak} \approx \underbrace{4\Psi}_{\text{weights}} + \underbrace{4\Psi}_{\text{gradients}} +
# \underbrace{8\Psi}_{\text{Adam}} + \text{activations}(b).$$
#
# Only the last term knows the size $b$ of a piece. Whatever you cut, the first three stay.
#
# ## 3 · Cut a real one
#
# Take GPT-2 small on sequences of 1,024 tokens, in fp32, with a step of 64 sequences, and a card that you can rent for
# nothing, a T4. On the left stands the peak for pieces of 1, 2, 4, … sequences, on the right one step of the chosen
# cut (it appears when the cell runs). All of it comes from the formula that section 2's table tested, and nothing was
# measured on a GPU. The dashed line is what PyTorch finds on such a card, less than the maker sells, and CUDA itself
# takes some of that.

# %%
AccumulationExplorer(global_batch=64, micro_batch=4).show(
    caption="Each halving of the piece halves the pink and the grey, and nothing else (the last bar, one piece, has no green). "
    "To the left each halving saves less: three layers stay. Bars that reach the top are cut off there."
)

# %% [markdown]
# Say beforehand what will happen. (If nothing reacts, run the cell once.)
#
# 1. Move **Sequences in a step** to 512 and keep the piece. Does it still fit?
# 2. The T4 is sold with 16 GB. Which of the pieces drawn is the largest that fits?
#
# <details><summary>Answers</summary>
#
# 1. It does. The bars that you had stay as they were, and three come on the right. (Only that of 64, which was a single
#    piece, gains the green.) *How much fits* is a question about the piece; *how large is the batch* has become a
#    question about time alone.
# 2. A piece of 4. A piece of 8 wants 15.5 GiB. The box's "16 GB" are GiB, but a program finds 14.56.
#
# </details>
#
# ## 4 · The bug that everybody writes
#
# Dividing by $m$ was right because all pieces were equally large. Real text is not like that. Of conversations, e-mails
# and answers some have 60 tokens and some have 3. A batch of them is padded to a rectangle, and the loss skips the
# padding.
#
# Take eight sequences, four long and four short, one in each piece. The loss of the batch is the mean over its
# *tokens*. Suppose that you divide each piece's mean by 8 all the same. A token of the shortest piece then counts for more
# than it should. How many times?

# %%
LENGTHS = [64, 3, 60, 5, 62, 4, 58, 2]
rows = stories.batch(seed=0, step=1, rank=0, batch_size=8, context=65)[0]
ragged = ragged_batch([row[: length + 1] for row, length in zip(rows, LENGTHS)])
pieces = micro_batches(ragged, 1)
print("tokens in the pieces:", *(count_tokens(targets) for _, targets in pieces))

# %%
louder_guess = ask("How many times too loud is a token of the piece with 2 tokens?")

# %% [markdown]
# To measure it, we ask what the loss does to the *logits*, the 256 numbers from which a token's loss is made. A
# gradient there belongs to one token alone: `[7, 0]` is the first token of row 7, the piece with 2 tokens.

# %%
SMALL = GPTConfig(layers=2, width=64, heads=4, vocab_size=256, context=64)
N = sum(LENGTHS)
logits = GPT(SMALL, seed=0)(ragged[0]).detach().requires_grad_()
per_row = nn.functional.cross_entropy(logits.transpose(1, 2), ragged[1], reduction="none").sum(1)  # padding counts 0
losses = per_row.sum() / N, (per_row / torch.tensor(LENGTHS)).mean()
right, wrong = (torch.autograd.grad(loss, logits, retain_graph=True)[0][7, 0].norm().item() for loss in losses)
compare(guess=louder_guess, predicted=Ratio(N / (8 * 2)), measured=Ratio(wrong / right), tolerance=1e-4, name="times too loud")

# %% [markdown]
# A token's fair share is $1/N$ of the loss, with $N$ = 258 tokens in all. In the mean of means its piece gets $1/m$ of
# the loss, which the $n_i$ tokens there divide among themselves. So its weight is off by
#
# $$\frac{1/(m\,n_i)}{1/N} = \frac{N}{m\,n_i},$$
#
# sixteen times too loud in the shortest piece, and only half as loud as it should be in the longest. There is no error
# message, and the loss goes down. The model is trained to be good at short answers.
#
# (This is no beginners' bug. It was found in 2021, forgotten, and found again in October 2024 in the trainers of
# several widely used libraries: see the further reading.)
#
# **Your turn.** Which factor must each piece's mean loss get, so that their sum is the mean over all tokens? A piece may
# be all padding. (Its mean is 0/0, and the library leaves it out.)

# %%
@your_turn(turns.check_weights, look="Take two pieces, of 1 and of 3 tokens, and write down on paper what each of the four losses should weigh.")
def weights(tokens):
    """From the number of tokens in each piece, the factor of each piece's mean loss, as a list."""
    ...


# %% tags=["solution"]
@weights.solution
def weights(tokens):
    return [count / sum(tokens) for count in tokens]


# %%
def gradients(backward):
    """All gradients, end to end, of a fresh model after `backward(model)`."""
    model = GPT(SMALL, seed=0)
    backward(model)
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def off(ours, theirs):
    return ((ours - theirs).norm() / theirs.norm()).item()


# %%
def weighted(model, factors):
    for piece, factor in zip(pieces, factors):
        (model(*piece) * factor).backward()


true_gradient = gradients(lambda model: model(*ragged).backward())
wrong_gradient = gradients(lambda model: weighted(model, [1 / 8] * 8))
fixed_gradient = gradients(lambda model: weighted(model, weights(LENGTHS)))
angle = nn.functional.cosine_similarity(wrong_gradient, true_gradient, dim=0).item()
print(f"mean of means: off by {off(wrong_gradient, true_gradient):.0%} of the gradient's length,", end=" ")
print(f"and it points {math.degrees(math.acos(angle)):.0f} degrees aside")
print("weighted, within rounding:", off(fixed_gradient, true_gradient) < (N - 1) * torch.finfo(torch.float32).eps)

# %% [markdown]
# The price of these weights: you must know $N$ before the first backward pass. So draw all pieces first, and count. (The
# lab does without.)
#
# <details><summary>Why they are exact</summary>
#
# With $n_i/N$ the means become sums of token losses $\ell_t$ again, and together that of the whole batch:
#
# $$\sum_i \frac{n_i}{N} \ell_i = \frac{1}{N} \sum_i n_i \cdot \frac{1}{n_i} \sum_{t \in i} \ell_t = \frac{1}{N}
# \sum_t \ell_t .$$
#
# </details>
#
# ## 5 · Once a step
#
# The whole batch takes one step. So all that happens once a step must happen once here, after the last piece:
# unscaling, clipping (a gradient that is too long is shortened, often to 1), the optimizer, the learning-rate
# schedule. `accumulated_step`, the library's form, shows the order, and leaves the schedule to its caller. It calls
# `accumulate`, which is your loop with your weights; the second sitting prints it.

# %%
show(accumulated_step, docstring=False)

# %% [markdown]
# After your loop, each line of `accumulated_step` runs once. The loss scaler of lesson 04 is no exception: if
# *one* piece overflows it throws away *all*, because a step without that piece would be a step on another batch. (Your
# lab provokes it. The second sitting begins by holding weights, scaler and clipping together against one big batch.)
#
# What if something slips into the inner loop? Clipping does so easily: it moves into the loop and stands behind each
# `backward()`. Now it cuts the sum *so far* to a length of 1, and cuts it again with every piece that comes. At the end
# the gradient is 1 long, as it should be, and the log looks fine. But which pieces is it made of?
#
# Say that the batch has 8 pieces, that each piece alone brings a gradient of length 1, and that all point the same way.
# The first piece arrives, and nothing is cut. The second makes the sum 2 long, and the cut halves both…

# %%
louder_last_guess = ask("Clipped behind each of 8 such pieces: how many times louder is the last than the first?")

# %% [markdown]
# **Your turn.** From the lengths just before each cut, how many times louder is the last piece than the first? Every
# cut hits all that lies in the sum, the newest piece as well.

# %%
@your_turn(turns.check_louder, look="Which cuts has the first piece seen that the last one has not? What is shorter than 1 is not cut.")
def times_louder(lengths):
    """How many times the last piece counts as much as the first, if the sum is cut to 1 behind each piece."""
    ...


# %% tags=["solution"]
@times_louder.solution
def times_louder(lengths):
    return math.prod(max(1, length) for length in lengths[:-1])


# %% [markdown]
# Now with real gradients: eight equal pieces of section 2's batch, and a limit that is the length of the first. They do
# not quite point the same way. Is the last one then louder than if they did, or less loud? The sum is made of eight
# gradients that we know, so we solve for the eight weights (least squares).

# %% tags=["varies"]
eighths = micro_batches(whole, 4)
alone = torch.stack([gradients(lambda model, piece=piece: model(*piece).backward()) for piece in eighths]).double()
limit = alone[0].norm().item()
model, lengths = GPT(SMALL, seed=0), []
plain_sgd = torch.optim.SGD(model.parameters(), lr=0.5)
for piece in eighths:
    model(*piece).backward()
    lengths.append(clip_gradients(plain_sgd, limit) / limit)

summed = torch.cat([parameter.grad.flatten() for parameter in model.parameters()]).double()
share = torch.linalg.lstsq(alone.T, summed[:, None]).solution.flatten().tolist()
print("length before each cut:", *(f"{length:.2f}" for length in lengths))
print("weight of each piece:  ", *(f"{weight:.3f}" for weight in share))
print(f"eight that are alike: {times_louder([1] + [2] * 7):.0f} times louder (you said {louder_last_guess.said})")
compare(predicted=Ratio(times_louder(lengths)), measured=Ratio(share[-1] / share[0]), tolerance=0.001, name="these eight")

# %% [markdown]
# With lengths of exactly 1 and one direction it is $2^{m-2}$, 64. Seven cuts hit the first piece, and the last piece was
# spared six of those; the seventh hit it, too. Ours do not quite point the same way, so it is less. The harder the limit
# bites, the less the first sequences count, and no number in the log says so.
#
# That is the story: a step of any size fits the memory of a piece, if you weigh by tokens and do once what belongs to the
# step.

# %% [markdown]
# ## Second sitting
#
# What stands above is the story, and you may stop here. On another day, run all cells above before you go on. Below:
# the accumulator, printed and beside one big batch, a schedule that counts pieces, what 16 bits do to a long sum,
# optimizers that keep less, a model that is born in the right place, and all of it as one ladder.
#
# First what section 5 owes you: weights, scaler and clipping together, against one big batch, for five steps of SGD.
# Printed first is `accumulate`: find your loop there, and your weights.

# %%
from course_lib.train.accumulate import accumulate

show(accumulate, docstring=False)

# %%
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
    print(f"step {step}: gradient {length:.2f} long before the cut; loss {loss:.4f} and {in_eight:.4f}")
same = [torch.allclose(a, b, rtol=1e-10, atol=1e-12) for a, b in zip(big.parameters(), small.parameters())]
compare(predicted=Count(len(list(big.parameters()))), measured=Count(sum(same)), name="parameters equal to one big batch")

# %% [markdown]
# (All of that is float64, where rounding leaves room for ten equal digits, and no piece overflows. PyTorch has no
# accumulator to compare with: the loop *is* the practice, and one big batch its only judge.)
#
# (All this is true of a GPT. Batch-norm mixes the rows that it sees together, and a contrastive loss compares the items
# of a batch with each other. There pieces give other gradients.)
#
# ## 6 · The schedule that counts pieces
#
# One more thing happens once a step, and likes to slip into the inner loop: `scheduler.step()`. Let the learning
# rate in step $t$ of $T$ = 60 follow half a cosine from $\eta_0$ = 0.2 down to 0, and let a step have 4 pieces.
#
# $$\eta(t) = \frac{\eta_0}{2} \left(1 + \cos\frac{\pi t}{T}\right)$$
#
# (Loshchilov and Hutter 2017, eq. 5. The first ten moves get a tenth of that, two tenths, and so on, a *warm-up*.) If
# the schedule is moved on with every piece, at which *step* is the learning rate 0 for the
# first time? And what happens after that?

# %%
zero_guess = ask("At which step does the learning rate reach 0, with 4 pieces a step?")

# %%
def schedule_of(optimizer, steps):
    def share(t):
        return min(1, (t + 1) / 10) * (1 + math.cos(math.pi * t / steps)) / 2

    return torch.optim.lr_scheduler.LambdaLR(optimizer, share)


def train(make_optimizer, steps=60, n_pieces=4, moves_a_step=1, seed=0):
    model = GPT(SMALL, seed=seed)
    optimizer = make_optimizer(model.parameters())
    schedule = schedule_of(optimizer, steps)
    for step in range(steps):
        batch = stories.batch(seed=0, step=step, rank=0, batch_size=16, context=32)
        rate = optimizer.param_groups[0]["lr"]
        yield accumulated_step(model, optimizer, micro_batches(batch, 16 // n_pieces)).item(), rate
        for _ in range(moves_a_step):
            schedule.step()


# %%
from course_pages.shared.losses import loss_bands, loss_curves


def plain(parameters):
    return optim.SGD(parameters, lr=0.2)


once, rates = zip(*train(plain, moves_a_step=1))
often, wrong_rates = zip(*train(plain, moves_a_step=4))
for name, each in {"step": range(60), "moved once a step": rates, "with every piece": wrong_rates}.items():
    print(f"{name:<18}", *(f"{value:5.2f}" if name != "step" else f"{value:5}" for value in each[::5]))
loss_curves(
    {"schedule moved once a step": once, "schedule moved with every piece": often},
    caption="The dashed run is ahead at first, falls asleep around step 15, and ends on the way up.",
    alt="Two loss curves over 60 steps. The run whose schedule moves with every piece falls faster at first, is flat around "
    "step 15, stays above the other from there on, and rises in the last steps, when its learning rate comes back.",
).show()
first_zero = next(step for step, rate in enumerate(wrong_rates) if rate < 1e-9)
compare(guess=zero_guess, predicted=Count(60 // 4), measured=Count(first_zero), name="learning rate 0 at step")

# %% [markdown]
# It does not stop at 0. A cosine goes on, so the learning rate climbs back to its maximum at step 30 and falls again. The
# run ends near full speed, where a schedule is meant to let it settle, and the last steps undo some of its work. No line
# of the log says so. (Sixty steps are few. In the mean of its last ten, neither run is below the loss of a reader who
# knows how frequent each letter is and nothing else, 2.99 nats: section 8 computes it.) If a loss curve of yours goes
# flat, or turns up, count how often its schedule moves.

# %% [markdown]
# ## 7 · A sum in sixteen bits
#
# With bf16 weights, `.grad` is bf16, too, and every piece is *added in bf16*. Its eight binary digits cannot take a
# summand below 1/512 of what lies there already, and the late ones of 256 pieces are about that small. So we cut one
# batch of 256 sequences ever finer. All gradients are computed in fp32, and only the format of the sum changes:

# %%
long_batch = stories.batch(seed=0, step=2, rank=0, batch_size=256, context=16)


def sums(n_pieces):
    """The gradient of the batch, added up in fp32 and in bf16."""
    pieces, in_fp32, in_bf16 = micro_batches(long_batch, 256 // n_pieces), 0, 0
    for piece in pieces:
        gradient = gradients(lambda model, piece=piece: (model(*piece) / n_pieces).backward())
        in_fp32, in_bf16 = in_fp32 + gradient, in_bf16 + gradient.bfloat16()
    return in_fp32, in_bf16.float()


for n_pieces in (1, 4, 16, 64, 256):
    in_fp32, in_bf16 = sums(n_pieces)
    print(f"in {n_pieces:3}: the sum in bf16 is off by {off(in_bf16, in_fp32):.1%} of its length")

# %% [markdown]
# A single rounding costs a fifth of a per cent, and 256 in a row cost more than ten times as much. So frameworks that
# accumulate long keep `.grad` in fp32 beside 16-bit weights, 2 bytes a parameter more (lesson 04, section 13). The lab
# builds that sum.
#
# ## 8 · A leaner optimizer
#
# Accumulation has taken care of the activations. Below them stand $16\Psi$ bytes in fp32, and half of them are
# Adam's. For a matrix of $R$ rows and $C$ columns each optimizer keeps:
#
# | optimizer | keeps | bytes |
# |---|---|---|
# | SGD | nothing | 0 |
# | SGD with momentum | a running mean of the gradient | $4RC$ |
# | Adam | and a running mean of its square | $8RC$ |
# | Adam in 8 bits | both in a byte each, and an fp32 scale for each block of 256 | $2RC + 8RC/256$ |
# | Adafactor | of the squares, only row means and column means | $4(R + C)$ |
#
# Where do Adam's bytes matter? Go back to section 3's explorer, set the step to 64, the piece to 1, and change the **optimizer** to SGD. Then do
# the same with the piece at 8.
#
# <details><summary>Answer</summary>
#
# At 1, a quarter of the bar goes away; at 8, a seventeenth. What is left there, 14.59 GiB, misses the line by a hair.
#
# </details>
#
# Adafactor is the surprising one. The squares of a gradient are a table of $R \times C$ numbers, of which Adafactor
# remembers the margins alone: the mean $r_i$ of each row and the mean $c_j$ of each column. In each step it pretends that
# the table was their product, up to one factor for all (Shazeer and Stern 2018, §3). A vector has no margins, so of it
# Adafactor keeps all.
#
# **Your turn.** Make a table from the margins. Its rows must be multiples of each other, and its row means and column
# means must be those that you were given.

# %%
@your_turn(turns.check_table, look="Take the product of the margins: what is the mean of its row i, and what should that mean be?")
def from_margins(rows, columns):
    """The R × C table with these row means (R numbers) and column means (C numbers)."""
    ...


# %% tags=["solution"]
@from_margins.solution
def from_margins(rows, columns):
    return torch.outer(rows, columns) / rows.mean()


# %% [markdown]
# For the squares $v_{ij}$ your formula is $v_{ij} \approx r_i\, c_j / \text{mean}(r)$. How much does it cost in
# bytes? (For your guess: most matrices of `SMALL` are 64 wide and 64 to 256 long.)

# %%
adafactor_guess = ask("Adam keeps 942 KiB for this model. How many KiB does Adafactor keep?", unit="KiB")

# %%
KINDS = {
    "Adam": lambda p: optim.Adam(p, lr=2e-3, betas=(0.7, 0.95)),
    "Adam, 8 bits": lambda p: optim.Adam8bit(p, lr=2e-3, betas=(0.7, 0.95), weight_decay=0),
    "SGD with momentum": lambda p: optim.SGD(p, lr=0.15, momentum=0.5),
    "Adafactor": lambda p: optim.Adafactor(p, lr=0.1),
    "SGD": lambda p: optim.SGD(p, lr=0.2),
}
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
# From two numbers a weight to almost nothing! But bytes are easy to save if the model need not learn. So
# all five train, 150 steps each, with section 6's schedule, and each from three initial weights: one run alone says
# nothing about which method is better. The black line is the entropy of the letters, the loss of a reader who knows
# how frequent each letter is and nothing else. Below it, a model has learned what follows what.

# %% tags=["varies"]
seen = [stories.batch(seed=0, step=step, rank=0, batch_size=16, context=32)[1] for step in range(150)]
letters = text.ngram_entropy(bytes(torch.cat(seen).flatten().tolist()), 1)
runs = {name: [[loss for loss, _ in train(make, steps=150, n_pieces=1, seed=seed)] for seed in range(3)]
        for name, make in KINDS.items()}
loss_bands(
    runs, levels={"knows the letters' frequencies": letters},
    caption="Means of ten steps; a band reaches from the best of three runs to the worst. All end below the black line. "
    "Adafactor ends lowest, in a band too thin to see.",
).show()
for name, each in runs.items():
    print(f"{name:<18} ends at", *(f"{sum(losses[-10:]) / 10:.2f}" for losses in each))

# %% [markdown]
# Adafactor ends lowest from each of the three initial weights, and its ends hardly differ. The gap to both Adams is
# larger than the spread of either, so it is no chance. 8-bit Adam's band lies on Adam's: the rounding of its state costs
# nothing that three runs could show. Both end below plain SGD from every initial weight.
#
# So the margins of the squares are enough to learn with. Why Adafactor does even better than Adam, these runs do not say,
# for the two differ in more than their bytes: Adafactor keeps no mean of the gradient, caps the length of a step, and takes
# its learning rate as a *share* of each matrix's root mean square. (Its 0.1 is not Adam's 0.002.) Nor is this a ranking for other
# models. Each setting is the best that we tried for this one, of more than thirty for Adam and ten for Adafactor.
#
# ## 9 · Born in the right place
#
# One peak comes before the first step. `nn.Linear(…)` makes its weights in fp32 on the CPU, and then
# `.to(torch.bfloat16)` makes the model that you wanted. For a moment both exist, at least in part. If the first one
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


# %%
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
# Two bytes a parameter look like little. But a machine with eight GPUs runs your script eight times. Each process makes the whole model in
# fp32, in the one main memory, whatever share of it goes to its GPU in the end. What do eight copies of 70 billion parameters take?

# %%
for made in ("whole", "in turn", "meta"):
    print(f"{made:>7}: {predict.host_memory(70e9, processes=8, made=made):.0GB} of main memory")

# %% [markdown]
# *Whole*: all eight at once, more than most machines have. *In turn*: one process makes its model, moves its share
# away and frees the rest before the next begins; you wait eight times. From `meta` nothing is made in main memory at all.
#
# PyTorch's own way from `meta` is `to_empty`, and it has two traps. The new memory holds whatever lay there. And a GPT
# whose head *is* its embedding has one tensor under two names, of which `to_empty` makes two. It reports no error, and
# head and embedding learn apart from then on. The library's `materialize` remembers which tensor became which. Count
# for yourself:

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
# ## 10 · The ladder
#
# Now all of it, on one model, one rung at a time: the six layers of section 2, and 32 sequences in every row, so
# that the seconds can be compared. A rung keeps what the rungs above it did.
#
# The last rung has a new tool. `OffloadToDisk` writes what autograd saves into files, and reads it back when the
# backward pass asks (lesson 03's attic kept it in memory). Only the *forward* pass runs inside it, or what recompute
# makes on the way back would be written, too.

# %%
from course_lib.offload.saved_tensors import OffloadToDisk
from course_lib.train.precision import StochasticRounding
from course_lib.train.recompute import RecomputedLayers

SIZE = 8


def small_steps(model, optimizer):
    for piece in micro_batches(whole, SIZE):
        train_step(model, optimizer, piece)


def accumulated(model, optimizer):
    accumulated_step(model, optimizer, micro_batches(whole, SIZE))


# %%
def adafactor(model):
    return optim.Adafactor(model.parameters())


def lean(model):
    return StochasticRounding(adafactor(model))  # the weights become bf16


def lean_and_recomputed(model):
    model.blocks = RecomputedLayers(model.blocks, every=1)
    return lean(model)


def to_disk(model, optimizer):
    def forward(*piece):
        with OffloadToDisk():
            return model(*piece)

    accumulated_step(forward, optimizer, micro_batches(whole, SIZE))


# %% [markdown]
# Predict the rungs before you climb down. The formulas of lessons 02 and 03, with the gradients of section 2, give
# all but the last. One rung goes *up*, and you know by how much. Where does the sixth arrive, with every block recomputed?

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

# %%
sixth_guess = ask("How many of the 130 MiB are left when every block is recomputed?", unit="MiB")

# %%
records, seconds = {}, {}
for name, (step, make) in LADDER.items():
    run = prepare(make)
    records[name] = recorded(step, *run)
    seconds[name] = measure.seconds(lambda step=step, run=run: step(*run), repeats=2, warmup=0)
measured = {name: record.peak.total for name, record in records.items()}

in_pieces = setup.with_(micro_batch=SIZE)
sgd = in_pieces.with_(optimizer="sgd")  # Adafactor: no moments, and the margins of every matrix
margins_of_all = Bytes(4 * sum(sum(p.shape) for p in GPT(CONFIG, device="meta").parameters()))
formulas = [setup, setup.with_(batch_size=SIZE), in_pieces, sgd, sgd.with_(precision="bf16"),
            sgd.with_(precision="bf16", recompute="full")]
predicted = {name: predict.peak(formula).total + margins_of_all * (formula.optimizer == "sgd")
             for name, formula in zip(LADDER, formulas)}
up = measured["accumulation: 1 step of 4 × 8"] - measured["batch size: 4 steps of 8"]
display(compare(predicted=Bytes(4 * predict.parameters(CONFIG)), measured=up, tolerance=0.02, name="accumulation, more", unit="MiB"))
compare(guess={"recompute: every block": sixth_guess}, predicted=predicted, measured={name: measured[name] for name in predicted},
        tolerance=0.01, unit="MiB")

# %% [markdown]
# And what does each rung cost in time? These seconds are your machine's.

# %% tags=["varies"]
from course_pages.lesson05.pictures import Ladder, Rung

ladder = Ladder([Rung(name, record.peak, seconds[name]) for name, record in records.items()])
ladder.picture(caption="Accumulation adds the green; the rungs below it take a colour away or make it smaller. Recompute "
            "takes time. Mostly weights and gradients remain.").show()
ladder

# %% [markdown]
# Climb down once more, slowly.
#
# - **Batch size** takes most of the pink away. But it is another training: four noisy steps for one calm one.
# - **Accumulation** gives you the calm step back, for the green layer.
# - **The optimizer** takes the orange layer away.
# - **Precision** halves all that is left but the grey, in the hands of stochastic rounding (lesson 04). If your processor multiplies
# bf16 in hardware, this rung may *gain* time; if it does not, it may take many times as long.
# - **Recompute** trades the pink for a second forward pass (lesson 03), by operations about a third more; your clock may say
# more than that.
# - **Offload** takes what recompute had kept, the inputs of the blocks, and writes them to files. It saves little here,
# since those inputs were little: the rest of the pink is the inside of the one block that runs again.
#
# What is left? Mostly weights and gradients in 16 bits, $2\Psi$ each. No piece of a batch, no optimizer and no second
# forward pass will touch those. Two things do: more devices, which share them out (Part B), and a larger memory beside
# the device, into which they can move while they are not needed (lesson 11 does that on one device).
#
# On a card, does the formula know where it is full? Allow yourself 2 GiB of it. `predict.largest` says how many sequences
# fit, with 64 MiB set aside for workspaces (lesson 02). The cell tries: a step that does not fit raises
# `OutOfMemoryError`, and halving the interval finds the edge in seven steps. What will make the real edge come earlier?
# (Without a GPU the second cell prints one line.)

# %%
import bisect

CARD = GPTConfig(layers=6, width=512, heads=8, vocab_size=256, context=128)


def too_many(rows, model, optimizer):
    tokens = torch.randint(0, 256, (rows, 129), device="cuda")
    try:
        train_step(model, optimizer, (tokens[:, :-1], tokens[:, 1:]))
        return False
    except torch.OutOfMemoryError:
        return True
    finally:
        optimizer.zero_grad()
        torch.cuda.empty_cache()


# %% tags=["varies"]
if problem := gpu.refusal(2**31):
    print(problem)
else:
    _, total = torch.cuda.mem_get_info()
    torch.cuda.set_per_process_memory_fraction(2**31 / total)
    on_gpu = GPT(CARD, device="cuda")
    adam_there = torch.optim.Adam(on_gpu.parameters(), foreach=False)
    one = predict.Setup(CARD, batch_size=1, seq=128, device="cuda")
    expected = predict.largest(one, "batch_size", 2**31 - 2**26).value
    assert not too_many(1, on_gpu, adam_there)  # and Adam's state is there
    tried = range(1, 2 * expected)
    edge = bisect.bisect(tried, False, key=lambda n: too_many(n, on_gpu, adam_there))
    compare(predicted=Count(expected), measured=Count(edge), tolerance=0.15)
    torch.cuda.set_per_process_memory_fraction(1.0)

# %% [markdown]
# The real edge comes a little earlier: the allocator hands out whole blocks from segments (lesson 02), and what lies between
# them is free and of no use. So plan with a margin, and try before the long run.
#
# ## 11 · At scale
#
# A ladder like this one was published by S. Raschka for a vision transformer, ViT-L/16, finetuned on one GPU
# (`rasbt/pytorch-memory-optim`, `logs.md`, and the article that it belongs to). Its rows: fp32 26.79 GB; 16-bit mixed
# 18.21; all bf16 13.82; a smaller batch 5.69; accumulation with pieces smaller again 3.91; SGD for Adam 2.02. And for
# the model alone, before training: 1.24 GB on the GPU if it is made in fp32, 0.65 GB if it is made there in bf16.
#
# We can recompute what depends on the model alone. 24 layers of width 1,024, patches of 16 × 16, ten classes:

# %%
h, layers = 1024, 24
block = 12 * h**2 + 13 * h
vit = layers * block + (3 * 16 * 16 + 1) * h + (14 * 14 + 2) * h + 2 * h + 10 * (h + 1)
print(f"{vit:,} parameters")
adams = predict.model_states(predict.Setup(vit, precision="bf16")).optimizer
print(f"Adam's two numbers, in bf16: {adams:.2GB}; SGD instead of Adam saved {3.91 - 2.02:.2f} GB")
# measured: S. Raschka 2023, ViT-L/16 on one GPU
compare(
    predicted={"born in fp32": Bytes(4 * vit), "born in bf16": Bytes(2 * vit)},
    measured={"born in fp32": Bytes(1.24e9), "born in bf16": Bytes(0.65e9)},
    tolerance=0.08, columns=("our formula", "published"), unit="GB",
)

# %% [markdown]
# The births fit, a few per cent aside. The change to SGD saved half as much again as Adam's two bf16 numbers, and we do
# not know why. On a GPU, PyTorch's Adam divides *all* parameters in one call by default, and holds a temporary as large
# as the model, $2\Psi$ more: that would make 1.82 GB. Besides, the script prints what the allocator has *reserved*, not
# what is alive (lesson 02). We have not run it, so both stay candidates.
#
# In the same log accumulation in smaller pieces made the run 3.3 times as long (3.96 to 12.91 minutes). A GPU needs
# large pieces to be busy, more than your CPU does. So cut until it fits, and no further.
#
# ## What to keep
#
# | question | answer |
# |---|---|
# | What does accumulation save? | activations: those of a piece, not of the batch |
# | What does it cost? | $4\Psi$ of gradients beside the activations, and time if pieces are too small |
# | How are pieces weighed? | by their share of the tokens, $n_i / N$; it is $1/m$ only if all are equal |
# | What happens once a step? | unscale, clip, step, move the schedule, in this order |
# | In which format is the sum? | fp32, if it is long |
# | What does an optimizer cost? | Adam $8\Psi$, in 8 bits $2\Psi$, momentum $4\Psi$, Adafactor almost nothing |
# | How is a large model born? | on `meta`, then in its place, in its dtype, with its ties |
# | What is left at the end of the ladder? | mostly weights and gradients |
#
# ## Three exercises
#
# **1.** Sort the eight ragged sequences by length and cut pieces of 4. How many times too loud is a token of the
# *short* piece in the mean of means? (With long and short ones mixed, pieces of 4 have 132 and 126 tokens. Which is
# worse?)
#
# **2.** A card holds pieces of 6 sequences. You want the step of exactly 512. How many forward passes does it take?
#
# **3.** A batch has 10 pieces of equal gradients, each as long as the limit, and the clipping of section 5 behind each.
# How many times louder is the *sixth* piece than the first?

# %%
from course_kit.notebook import self_check

answer_1 = None  # a factor

self_check(answer_1, turns.exercise_1(LENGTHS), tolerance=0.01, hint="How many pieces are there now, and how many tokens has the short one?")

# %%
answer_2 = None  # forward passes

self_check(answer_2, turns.EXERCISES[0], hint="The last piece may be smaller; token weights take care of it.")

# %%
answer_3 = None  # a factor

self_check(answer_3, turns.EXERCISES[1], hint="The cuts behind the sixth hit both alike.")

# %% [markdown]
# <details><summary>Answers</summary>
#
# 1. $258 / (2 \cdot 14) = 9.2$. Mixed, it is $258 / (2 \cdot 126) = 1.02$ at most: sorting makes it worse.
# 2. $\lceil 512 / 6 \rceil = 86$: 85 pieces of 6, and one of 2.
# 3. $2^4 = 16$: the cuts behind the second to the fifth piece halve the first, and come before the sixth.
#
# </details>
#
# **The lab**, `labs/lab05_gradient_accumulation`, asks for an accumulator that stays exact with ragged batches,
# clipping and fp16 scaling all together.
#
# ## Further reading
#
# - The bug of section 4: D. and M. Han 2024, [Bugs in LLM training](https://unsloth.ai/blog/gradient), with the report of
#   2021; its repair in [transformers](https://github.com/huggingface/transformers/pull/34191) and
#   [torchtune](https://github.com/meta-pytorch/torchtune/pull/1875), which kept every piece's activations until
#   [#1917](https://github.com/meta-pytorch/torchtune/pull/1917).
# - Shazeer and Stern 2018, [Adafactor](https://arxiv.org/abs/1804.04235), and Dettmers et al. 2022,
#   [8-bit optimizers](https://arxiv.org/abs/2110.02861).
# - Loshchilov and Hutter 2017, [SGDR](https://arxiv.org/abs/1608.03983): the cosine.
# - [pytorch-memory-optim](https://github.com/rasbt/pytorch-memory-optim): the ladder of section 11.
#
# Part B begins with [Lesson 06 · Collectives](06_collectives.ipynb): how do many processes agree on a sum, and who pays?
