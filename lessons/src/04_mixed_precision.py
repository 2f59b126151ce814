# %% [markdown]
# # 04 · Mixed precision
#
# **The question:** which tensors can afford 16 bits?
#
# | | |
# |---|---|
# | Time | first sitting 50 minutes, second sitting 35; about half a minute of both together is computing on 2 CPU cores (two minutes on CPUs that emulate 16 bits) |
# | A GPU | runs section 11 alone, whose seconds are only worth having with one |
# | Opens | `train/precision.py`, `train/gradients.py` |
#
# For 16 bits, GPUs' data sheets promise two to sixteen times the speed of fp32 (section 11). So you write `model.half()`,
# a single word, and every weight has 16 bits. The first step prints a loss that looks right. The second step prints
# `nan`.
#
# The model is not to blame: in fp32 the same script trains. In three places plain fp16 fails, and each place has its own repair. All else may have 16 bits, and that is nearly
# everything that costs time.

# %%
import functools
import math

import torch

from course_kit import measure
from course_kit.compare import compare
from course_kit.notebook import ask, self_check, show, your_turn
from course_kit.units import Bytes, Count, FlopsPerSecond, Ratio
from course_lib import predict
from course_lib.model import hardware, text
from course_lib.model.gpt import GPT, GPTConfig
from course_lib.numerics import FP16
from course_lib.train.gradients import GradientSizes, clip_gradients, gradients_of, record_flowing_gradients
from course_lib.train.optim import SGD, Adam
from course_lib.train.precision import CastPolicy, LossScaler, MasterWeights, StochasticRounding
from course_lib.train.step import train_step
from course_pages.lesson04 import pictures as figures
from course_pages.lesson04 import turns
from course_pages.shared import gpu

# %% [markdown]
# ## 1 · One word, two steps
#
# A GPT of 0.12 million parameters, and PyTorch's own Adam.

# %%
CONFIG = GPTConfig(layers=2, width=64, heads=4, vocab_size=256, context=64)
stories = text.stories(seed=0)


def batch(step):
    return stories.batch(seed=0, step=step, rank=0, batch_size=8, context=64)


model = GPT(CONFIG).half()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(3):
    print(f"step {step}: loss {train_step(model, optimizer, batch(step)):.2f}")

# %% [markdown]
# What did it? Adam keeps, for each weight, a mean $m$ of its gradient $g$ and a mean $v$ of its square,
# and divides one by the root of the other. It makes its state in the dtype of the weights, so both are fp16. In each
# step a part $\beta_2 = 0.999$ of the old $v$ stays, and the rest comes from the new $g^2$. At the start $v$ is 0, so
# after the first step
#
# $$v = (1 - \beta_2)\,g^2 = 0.001\,g^2 \qquad\text{(Kingma and Ba 2015, Algorithm 1).}$$
#
# A gradient of 0.003 is nothing unusual. Its square is $9 \cdot 10^{-6}$, and a thousandth of that is $9 \cdot
# 10^{-9}$. The smallest number that fp16 has is $2^{-24} \approx 6 \cdot 10^{-8}$ (lesson 01), and up to half of it,
# $2^{-25}$, everything is rounded to 0. What is the share of zeros in $v$?

# %%
guess_zeros = ask("How many per cent of Adam's v are 0 after the first step in fp16?")


# %%
def flat(tensors):
    return torch.cat([tensor.detach().float().flatten() for tensor in tensors])


def first_step(model, optimizer):
    train_step(model, optimizer, batch(0))
    return flat(gradients_of(optimizer)), flat(state["exp_avg_sq"] for state in optimizer.state.values())  # g and v


def per_cent(yes):
    return Ratio(round(100 * yes.double().mean().item(), 1))


fp32, fp16 = GPT(CONFIG), GPT(CONFIG).half()
g, _ = first_step(fp32, torch.optim.Adam(fp32.parameters()))
_, v = first_step(fp16, torch.optim.Adam(fp16.parameters()))
compare(guess=guess_zeros, predicted=per_cent(0.001 * g.double() ** 2 <= 2.0**-25), measured=per_cent(v == 0), tolerance=0.01, name="per cent of v that is 0")

# %% [markdown]
# Most of $v$ is gone. Adam was prepared for a small $v$: it adds $\varepsilon = 10^{-8}$ to the root before it
# divides. But $10^{-8}$ is 0 in fp16, too, and so Adam divides by zero. Those weights become `inf`, and
# `nan` where $m$ is 0 as well. One `nan` is enough.
#
# **The repair:** what lives from step to step and grows by small amounts stays in fp32. That is the optimizer's
# state, and it is the weights themselves.
#
# ## 2 · A copy for the small steps
#
# Why the weights? Late in a run the learning rate is small. Say that Adam moves each weight by 0.00001. An fp16 weight
# of 0.05 has its neighbours at a distance of $2^{-15} \approx 0.00003$. The update is less than half of that distance,
# so the sum is rounded back to the old weight (*swamping*, lesson 01). An update of 0.00001 is lost where the spacing
# is $2^{-15}$ or more, and in fp16 that is from $|w| = 2^{-5}$ upwards. The matrices of a fresh GPT have a standard
# deviation of 0.02 at most; the norms' scales are 1. How many weights stand still?

# %%
weights = flat(GPT(CONFIG).half().parameters())
stuck = (weights.half() + torch.tensor(1e-5).half()).float() == weights

compare(predicted=per_cent(weights.abs() >= 2.0**-5), measured=per_cent(stuck), tolerance=0.01, name="per cent that ignore it")

# %% [markdown]
# The smaller the learning rate becomes, the more weights stand still. The repair is to keep every weight twice
# (Micikevicius et al. 2018, §3.1): in 16 bits for the forward and backward pass, and in fp32 for
# the optimizer, which steps on its own **master copy** and then rounds it into the model.
#
# **Your turn.** Write that step. `copies` are the fp32 copies, `parameters` the model's 16-bit weights, whose gradients
# stand in `parameter.grad`. `adam` is an optimizer over the copies.

# %%
@your_turn(turns.check_copies, look="What does `adam` read besides a copy, and in which dtype? And who tells the model?")
def step_on_copies(adam, copies, parameters):
    """One step: 16-bit gradients in, fp32 copies updated, then rounded into the parameters' `.data`."""
    ...


# %% tags=["solution"]
# One solution. Open it when yours passes, or when you are stuck.
@step_on_copies.solution
def step_on_copies(adam, copies, parameters):
    for copy, parameter in zip(copies, parameters):
        copy.grad = parameter.grad.float()
    adam.step()
    for copy, parameter in zip(copies, parameters):
        parameter.data.copy_(copy)


# %%
model = GPT(CONFIG)
copies = [parameter.detach().clone() for parameter in model.parameters()]
parameters, adam = list(model.half().parameters()), torch.optim.Adam(copies, lr=1e-3)
for step in range(3):
    model.zero_grad()
    (loss := model(*batch(step))).backward()
    step_on_copies(adam, copies, parameters)
    print(f"step {step}: loss {loss.item():.2f}")

# %% [markdown]
# No `nan` any more. What does it cost? `copy.grad` need not outlive the step. Without it a parameter takes 16 bytes, as many as in fp32 (lesson 02). In fp32 the
# optimizer has 8 of them, $m$ and $v$. From memory: how many has it here?

# %%
guess_bytes = ask("Of 16 bytes a parameter, how many belong to the optimizer?", unit="B")

# %% [markdown]
# The library's form of that step is `MasterWeights(Adam(...))`. Here are its bytes.


# %%
def after_a_step(model, optimizer):
    with measure.memory(model, optimizer) as record:
        train_step(model, optimizer, batch(0))
    return record


model = GPT(CONFIG)
parameters = sum(parameter.numel() for parameter in model.parameters())
mixed = after_a_step(model, MasterWeights(Adam(model.parameters()), torch.float16))
compare(guess=guess_bytes, predicted=Bytes(4 + 4 + 4), measured=Bytes(mixed.after.optimizer // parameters), name="optimizer, a parameter")

# %% [markdown]
# The optimizer has twelve: 4 for the copy, 4 for $m$, 4 for $v$. Another 2 are in the weight and 2 in the gradient
# (section 8 measures all 16). Mixed precision does not make the model states smaller, it moves them to the optimizer.
#
# So what is it good for? For speed, for traffic, and for activations: most of them are now half as large (section 8).
#
# ## 3 · Not every operation
#
# The second place is inside the forward pass. Attention turns scores into weights by the softmax, $e^{x_i} / \sum_j
# e^{x_j}$. The largest number of fp16 is 65,504. At which score does $e^x$ become `inf`?

# %%
guess_score = ask("From which x on is exp(x) inf in fp16?")

# %%
scores = FP16.decode(torch.arange(FP16.max_pattern + 1)).half()  # every positive number of fp16, in order
first_inf = scores[scores.exp().isinf()][0]

by_hand, found = Ratio(math.log(65_520)), Ratio(first_inf.item())
display(compare(guess=guess_score, predicted=by_hand, measured=found, tolerance=0.001, name="exp overflows from"))

scores = torch.tensor([12.0, 11.0, 10.0])
for name, x in {"fp32": scores, "fp16": scores.half(), "bf16": scores.bfloat16()}.items():
    print(f"{name}: softmax {[round(p, 3) for p in (x.exp() / x.exp().sum()).tolist()]}")

forties = torch.full((64,), 40.0)
print("fp16: 64 products of 40·40", (forties.half() @ forties.half()).item(), "; bf16:", (forties.bfloat16() @ forties.bfloat16()).item())

# %% [markdown]
# Eleven! (65,520 is the middle between the largest number and the next one; what lies below it is rounded down.) So a
# softmax written as its formula dies of a score of 12: `inf / inf` is `nan`. Below it is another way to die: a
# matrix product in small. This machine adds its 64 products up in fp32 and gets 102,400 right; then the
# *output* has to be fp16, and is `inf`. bf16 has the range, but look at the digits of its softmax.
#
# **Your turn.** Softmax does not change when the same number is taken from all scores. Which number makes fp16 safe? In
# attention each query has a row of scores of its own.

# %%
@your_turn(turns.check_softmax, look="In each row: no exponent above 0, and one of them 0.")
def softmax(scores):
    """The softmax of each row of a matrix of scores, in their own dtype throughout, without calling a ready-made one."""
    ...


# %% tags=["solution"]
@softmax.solution
def softmax(scores):
    powers = (scores - scores.amax(-1, keepdim=True)).exp()
    return powers / powers.sum(-1, keepdim=True)


# %% [markdown]
# (PyTorch's softmax does that, too. The trick rescues the exponentials, but not a long sum, the square inside a norm, or
# the output of a product.)
#
# Must everything stay in fp32, then? Sort what a network does into three **classes of operations**:
#
# | class | examples | danger | so it gets |
# |---|---|---|---|
# | contractions | matrix products, convolutions | an fp16 *output* from 65,520 on is `inf` | 16 bits |
# | wide | norms, softmax, losses, sums, powers | long sums, large results | fp32 |
# | element-wise | add, GELU, dropout | none of its own | what its inputs have |
#
# The first class has nearly all FLOPs, and its long sums are safe, since a GPU's tensor cores add in fp32 (but see
# section 11). The second has nearly all dangers. In PyTorch we can step in front of every function call and look at its
# name, so this **cast policy** is a few lines (section 10 shows them). Here is what each function returns.

# %%
class Noting(CastPolicy):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = super().__torch_function__(func, types, args, kwargs)
        returned[getattr(func, "__name__", "")] = str(getattr(result, "dtype", ""))[6:]
        return result


model, returned = GPT(CONFIG), {}
with Noting(torch.bfloat16):
    model(*batch(0))
for dtype in ("bfloat16", "float32"):
    print(f"{dtype:>8}:", ", ".join(name for name, of in returned.items() if of == dtype))

# %% [markdown]
# Everything that multiplies matrices gave bf16, and what followed it stayed there until it was added to the stream between
# the layers, which is fp32 (the wider input wins). Norms, softmax and loss gave fp32. The *weights* are fp32, all of them:
# instead of section 2's copy they are their own master copy, and each product gets a 16-bit copy, which lives until the
# backward pass has used it.
#
# ## 4 · The third place: on the way back
#
# Optimizer and forward pass are safe. Now the gradients. A real batch is large: the small models of
# GPT-3 took half a million tokens at a time (Brown et al. 2020, Table 2.1). Such a batch comes in
# **micro-batches**, say 1,024 of them with our 512 tokens each, and the loss of each is divided by 1,024, so that their
# gradients add up to the mean (lesson 05).
#
# We compute the gradients of one such micro-batch in fp32, and look at two kinds: those of the
# *weights*, which the optimizer gets; and those that *flow* backward from layer to layer.
# How many of those that flow would fp16 round to 0? One token's part in a mean over half a million is around $10^{-6}$.
# On the way through a layer its gradient meets weights around 0.02. And fp16 gives up at $2^{-25} \approx 3 \cdot
# 10^{-8}$.

# %%
SHARE = 1 / 1024  # of this micro-batch in the whole batch
model = GPT(CONFIG)
with record_flowing_gradients(model) as flowing:
    (model(*batch(0)) * SHARE).backward()

gradients = {"weights": [parameter.grad for parameter in model.parameters()], "layers": flowing}
sizes = {name: GradientSizes(tensors) for name, tensors in gradients.items()}

# %%
guess_flushed = ask("How many per cent of the flowing gradients become 0 in fp16?")

# %%
cast = {name: per_cent(each.sorted.half() == 0) for name, each in sizes.items()}
shares = {name: per_cent(each.sorted <= 2.0**-25) for name, each in sizes.items()}
figures.gradient_histograms(
    {"gradients of the weights": (sizes["weights"], 1.0), "gradients between the layers": (sizes["layers"], 1.0)},
    FP16,
    caption="Orange is lost, yellow loses digits. Hardly one gradient lies where fp16 is at its best, and the "
    "whole right half of the shaded window is empty.",
).show()
compare(guess={"layers": guess_flushed}, predicted=shares, measured=cast)

# %% [markdown]
# (In per cent.) Of the gradients that flow nearly half are gone; of the others hardly one keeps all digits.
#
# A real fp16 backward pass is worse than a cast at the end, for a gradient that became 0 in layer 2 is missing in
# all that layer 1 computes from it. How many of the weights' gradients become 0 when everything but the
# loss runs in fp16? And how far is the whole gradient from the right one?


# %%
def fp16_gradient(scale):
    model = GPT(CONFIG).half()
    (model(*batch(0)) * (SHARE * scale)).backward()
    return flat(parameter.grad for parameter in model.parameters())


right, found = flat(gradients["weights"]), fp16_gradient(scale=1)
lost = ((found == 0) & (right != 0)).double().mean()
error = (found - right).norm() / right.norm()
print(f"{lost:.0%} of the weights' gradients became 0; the error is {error:.0%} of the gradient's length")

# %% [markdown]
# Half of the gradient is error, and there is no `nan`, no `inf` and no warning.
#
# ## 5 · Move the histogram
#
# The window is empty on the right, and the gradients crowd at its left edge. So push them over. Multiply the *loss* by
# $S$, and the chain rule multiplies every one of them by $S$, at the very moment when it is made. Divide by $S$ before
# the step, in fp32, and the optimizer never knows (Micikevicius et al. 2018, §3.2). $S$ is the **loss scale**. As a
# power of two it rounds nothing.

# %%
from course_pages.lesson04.explorer import ScaleExplorer

ScaleExplorer(gradients).show(
    caption="Each bar holds the gradients between two powers of two. The scale moves all of them; the shaded window "
    "is what fp16 can hold."
)

# %% [markdown]
# Try these, and say beforehand what will happen. (If nothing reacts, run the cell once.)
#
# 1. Choose **layers**, and move the scale up until no gradient is lost. How far is it from there to the first `inf`?
# 2. Go back to **weights**. Which of the two groups sets the limit at the top?
# 3. Choose **bf16** as the format. What is left for the slider to do?
#
# <details><summary>Answers</summary>
#
# 1. None is lost from $2^{24}$ on, and the first `inf` comes at $2^{31}$: seven doublings.
# 2. The weights: their first `inf` comes at $2^{27}$.
# 3. Nothing. bf16 loses none of them, at any scale.
#
# And the small hill far to the left, among the weights? 128 gradients: those of the 128 biases of *keys*. Add a constant
# to all keys, and every score of a row changes by the same amount: the softmax does not notice. So they should be 0, and
# what you see is the rounding of fp32. They need no rescue.
#
# </details>
#
# ## 6 · How large a scale?
#
# Large, yet one `inf` among the gradients ruins the step. By the histogram, the largest power of two that
# still works keeps the largest gradient below 65,520. Does that hold in a real fp16 backward pass?

# %%
for power in (0, 4, 8, 12, 16, 24):
    error = (fp16_gradient(2.0**power) / 2.0**power - right).norm() / right.norm()
    print(f"scale 2^{power}: the error is {error:.0e} of the gradient's length")
highest = max(power for power in range(20, 32) if fp16_gradient(2.0**power).isfinite().all())

by_hand = math.floor(math.log2(65_520 / sizes["weights"].sorted[-1].item()))
compare(predicted=Count(by_hand), measured=Count(highest), name="highest power")

# %% [markdown]
# The error falls from a half to a few hundredths of a per cent, which is what the eleven binary digits of fp16 leave.
# Then comes a wide plateau, and then a cliff. A **static** scale is a number from the plateau. But gradients shrink and
# grow over a run.
#
# ## 7 · A scale that hunts
#
# So let the scale find its place by itself. Start far too high. When a gradient is `inf` or `nan`, *skip* the
# step, which costs the work of one batch, and halve the scale. After so many good steps in a row, double it. A
# **dynamic** scale lives just below the cliff, and a step over the edge does no harm.
#
# **Your turn.** Move the scale. `scaler.good` begins at 0; `scaler.growth_interval` is given.

# %%
@your_turn(turns.check_scale, look="`good` counts good steps in a row. When does it begin again at 0, and at which count does the scale double?")
def next_scale(scaler, finite):
    """Set `scaler.scale` and `scaler.good` after a step: halve after an inf, double after `growth_interval` good ones."""
    ...


# %% tags=["solution"]
@next_scale.solution
def next_scale(scaler, finite):
    scaler.good = scaler.good + 1 if finite else 0
    if not finite:
        scaler.scale /= 2
    elif scaler.good == scaler.growth_interval:
        scaler.scale, scaler.good = 2 * scaler.scale, 0


# %% [markdown]
# We start at $2^{32}$, as Megatron-LM does by default, and try the double after 15 good steps. You know the cliff from
# the last section. How many steps will be skipped before the first one is taken?

# %%
guess_skipped = ask("How many steps are skipped at the start?")


# %%
class Scaler:
    def __init__(self, scale, growth_interval):
        self.scale, self.growth_interval, self.good = scale, growth_interval, 0

    def step(self, optimizer):
        if finite := all(gradient.isfinite().all() for gradient in gradients_of(optimizer)):
            for gradient in gradients_of(optimizer):
                gradient /= self.scale  # in fp32, since the weights are
            optimizer.step()
        self.update(finite)

    def update(self, finite):
        next_scale(self, finite)


# %%
def hunt(scaler, steps=60):
    model = GPT(CONFIG)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(steps):
        optimizer.zero_grad()
        with CastPolicy(torch.float16):
            loss = model(*batch(step)) * SHARE
        yield scaler.scale
        (loss * scaler.scale).backward()
        scaler.step(optimizer)


scales = list(hunt(Scaler(2.0**32, growth_interval=15)))
skipped = [step for step in range(59) if scales[step + 1] < scales[step]]
first = Count(next(step for step in range(60) if step not in skipped))
compare(guess=guess_skipped, predicted=Count(32 - highest), measured=first, name="skipped at the start")

# %% [markdown]
# (`hunt` yields the scale with which a step *begins*: a smaller one than the last tells of a skipped step.)
#
# Each skipped step halves the scale, until all gradients fit. The library's form is `LossScaler`,
# which can unscale before clipping, too (section 9).
#
# That is the story: fp32 for what is kept and for long sums, 16 bits for the products, and a scale for what flows back.

# %% [markdown]
# ## Second sitting
#
# What stands above is the story, and you may stop here. On another day, run all cells above before you go on. Below:
# the recipes race, two orders of clipping, our cast policy and PyTorch's own, eight bits, and what the data sheets say.
#
# ## 8 · The recipes race
#
# Now we have all parts. Six recipes race, with the same weights at the start, the same 60 batches and the same learning
# rate:
#
# | recipe | weights | products | scaling | bytes a parameter |
# |---|---|---|---|---|
# | fp32 | fp32 | fp32 | no | 16 |
# | fp16, no scaling | fp32 | fp16 | no | 16 |
# | fp16, dynamic scale | fp32 | fp16 | yes | 16 |
# | bf16 | fp32 | bf16 | no | 16 |
# | bf16 + copy | bf16, and fp32 | bf16 | no | 16 |
# | bf16, random rounding | bf16 | bf16 | no | 12 |
#
# The last is the only one that saves states. It has no copy; the optimizer widens a weight for a moment, steps, and
# rounds the result up or down *by chance*, the nearer the likelier. An update of a tenth of the spacing moves the
# weight once in ten times, and on average nothing is lost (lesson 01, section 6; Gupta et al. 2015, §3.1).


# %%
from contextlib import nullcontext

from course_pages.shared.losses import loss_bands, losses_against_first


def bytes_a_parameter(wrap):
    model = GPT(CONFIG)
    return Bytes(after_a_step(model, wrap(Adam(model.parameters()))).after.total // parameters)


display(show(StochasticRounding.update_parameter, docstring=False))
ways = {"fp32 weights": lambda rule: rule, "bf16 + copy": MasterWeights, "bf16, random rounding": StochasticRounding}
table = dict(zip(ways, (Bytes(16), Bytes(16), Bytes(12))))
compare(predicted=table, measured={name: bytes_a_parameter(wrap) for name, wrap in ways.items()})

# %% [markdown]
# The states are as promised. And the hill of activations, the bytes that are held between the forward and the backward
# pass? With 16-bit products, is it half?


# %%
def activations(dtype=torch.float32, policy=nullcontext):
    model = GPT(CONFIG, dtype=dtype)
    with measure.memory(model) as record:
        with policy():
            loss = model(*batch(0))
        loss.backward()
    return record.end_of("forward").activations


hill = {"fp32": activations(), "cast policy": activations(policy=CastPolicy)}
hill["all of it bf16"] = activations(torch.bfloat16)
for name, held in hill.items():
    print(f"{name:<15}{held:.2MiB}  {held / hill['fp32']:.0%}")
matrices = [weight for weight in GPT(CONFIG, device="meta").parameters() if weight.dim() == 2]
factors = matrices[:1] + matrices[2:]  # the head is the token embedding; that of positions is never multiplied
copies = Bytes(sum(2 * weight.numel() for weight in factors))
print(f"of the cast policy's, {len(factors)} copies of weights in bf16: {copies:.2MiB}")

# %% [markdown]
# Not half. The stream between the layers is fp32 (fp32 plus bf16 is fp32), the norms save fp32, and the scores are kept
# twice: softmax keeps its result in fp32, the product after it a copy in bf16. And the bf16 copies of the weights are
# held, too: nearly $2\Psi$ bytes, however small the batch. With 16-bit weights the hill is close to half.
#
# Now for the race. Without scaling, half of the gradient was error. The other recipes come from a loss of 5.5 down to
# 2.8. By how much will that one miss them?


# %%
def race(wrap=lambda rule: rule, policy=nullcontext, scaler=None, steps=60, seed=0):
    model = GPT(CONFIG, seed=seed)
    optimizer = wrap(Adam(model.parameters(), lr=1e-3))
    for step in range(steps):
        optimizer.zero_grad()
        with policy():
            loss = model(*batch(step))
        if scaler is None:
            (loss * SHARE).backward()
            optimizer.step()
        else:
            scaler.scale(loss * SHARE).backward()
            scaler.step(optimizer)
            scaler.update()
        yield loss.item()


# %%
def fp16_products():
    return CastPolicy(torch.float16)

# %%
guess_unscaled = ask("fp16 without scaling: how many per cent above fp32 does it end?")

# %% tags=["varies"]
losses = {
    "fp32": race(),
    "fp16, no scaling": race(policy=fp16_products),
    "fp16, dynamic scale": race(policy=fp16_products, scaler=LossScaler(growth_interval=15)),
    "bf16": race(policy=CastPolicy),
    "bf16 + copy": race(MasterWeights),
    "bf16, random rounding": race(StochasticRounding),
}
losses = {name: list(run) for name, run in losses.items()}
losses_against_first(
    losses,
    caption="Means over ten steps; right: per cent above fp32, on an axis that spreads what is small. fp16 without "
    "scaling learns, but from a different gradient.",
).show()
final = {name: Ratio(sum(values[-20:]) / 20) for name, values in losses.items()}
fp32, unscaled = final.pop("fp32"), final.pop("fp16, no scaling")
print(f"fp16 without scaling ends {100 * (unscaled / fp32 - 1):.0f} % above fp32 (you said {guess_unscaled.said})")
compare(predicted=dict.fromkeys(final, fp32), measured=final, tolerance=0.05, columns=("fp32", "recipe"))

# %% tags=["varies"]
policies = {"fp32": nullcontext, "fp16, no scaling": fp16_products}
seeds = {name: [losses[name], *(list(race(policy=policy, seed=seed)) for seed in (1, 2))] for name, policy in policies.items()}
ends = [[sum(each[-20:]) for each in runs] for runs in seeds.values()]
print("from three initial weights, fp16 without scaling ends above fp32 by", *(f"{bad / good - 1:.0%}" for good, bad in zip(*ends)))
loss_bands(seeds, caption="A band reaches from the best of three initial weights to the worst. At the end the bands do not touch.")

# %% [markdown]
# The recipe whose gradient was half error ends a long way up, from all three initial weights. The others lie on the
# line of fp32; what the first figure's right half shows between them is a tenth of a per cent, from one seed.
#
# Why does bf16 do without a scale? Its exponent has as many bits as fp32's. It holds what fp32 holds, with two or three
# digits instead of seven. That is why it has replaced fp16 nearly everywhere where the hardware has it. fp16 is left to
# older GPUs (V100, T4).
#
# **Change one thing.** Give the third recipe `LossScaler(2.0**40, growth_interval=15)`. What becomes of its line in the
# first steps, and does it matter in the end? (The table allows 5 % and will stop with an error; the ratio in that error
# is your answer.)
#
# <details><summary>Answer</summary>
#
# The cliff is at $2^{26}$ (section 6), so 14 steps are skipped, and the line is flat for as long: no step, nothing
# learned. After that it is the old line, 14 steps late, and ends about 9 % above fp32. In a run of 60 steps that shows;
# in one of 60,000 it would not.
#
# </details>
#
# ## 9 · Clip, then unscale?
#
# Most training loops clip: a gradient longer than 1 is shortened to 1 (Pascanu et al. 2013). Say that you add loss
# scaling to such a loop, and put the new lines around the old ones:
#
# ```python
# scaler.scale(loss).backward()
# clip_gradients(optimizer, 1.0)      # was here before
# scaler.step(optimizer)              # unscales, if that was not done, and steps
# ```
#
# The true gradient has a length of about 4, and the scale is $2^{16}$. With a learning rate of 1, SGD's step should be 1
# long. How many times shorter is it in this order?


# %%
def length_of_step(*order):
    model = GPT(CONFIG)
    optimizer, scaler, before = SGD(model.parameters(), lr=1.0), LossScaler(2.0**16), flat(model.parameters())
    scaler.scale(model(*batch(0))).backward()
    for action in order:
        action(scaler, optimizer)
    scaler.step(optimizer)
    return (flat(model.parameters()) - before).norm().item()


def clip(scaler, optimizer):
    clip_gradients(optimizer, 1.0)


model = GPT(CONFIG)
model(*batch(0)).backward()
print(f"the true gradient's length: {flat(parameter.grad for parameter in model.parameters()).norm():.2f}")

# %%
guess_clipped = ask("In the wrong order, how many times shorter than 1 is the step?")

# %%
orders = {"unscale, clip": (LossScaler.unscale_, clip), "clip, unscale": (clip, LossScaler.unscale_)}
one_over = {name: Ratio(1 / length_of_step(*order)) for name, order in orders.items()}
expected = {"unscale, clip": Ratio(1), "clip, unscale": Ratio(2.0**16)}
compare(guess={"clip, unscale": guess_clipped}, predicted=expected, measured=one_over, tolerance=0.001)

# %% [markdown]
# The scaled gradient has a length of 260,000. It is *always* too long, so it is always cut to 1 and then divided by
# 65,536. The model has all but stopped.
#
# SGD shows it at once. Adam does not: it divides by the gradient's own size, so a factor cancels, until the gradient
# comes down to the size of $\varepsilon$. This course tests everything with SGD, too.
#
# ## 10 · PyTorch's own
#
# Our policy first. PyTorch calls this method in place of each of its functions; `CONTRACTIONS` and `WIDE` are lists of
# names.

# %%
show(CastPolicy.__torch_function__, docstring=False)

# %% [markdown]
# PyTorch's own policy is `torch.autocast`, its scaler `torch.amp.GradScaler`. The loop is the one of section 8,
# and `scaler.unscale_(optimizer)` would stand before a clip. We let PyTorch's scaler hunt on our policy, so that both
# meet the same gradients. Ours must have halved and doubled at exactly the same steps.


# %%
def hunt_torch(policy, steps=60):
    model, scaler = GPT(CONFIG), torch.amp.GradScaler("cpu", init_scale=2.0**32, growth_interval=15)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(steps):
        optimizer.zero_grad()
        with policy:
            loss = model(*batch(step)) * SHARE
        yield scaler.get_scale()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


# %% tags=["varies"]
theirs = list(hunt_torch(CastPolicy(torch.float16)))
figures.scale_hunt(
    scales,
    skipped,
    theirs,
    caption="Down to the cliff in a few halvings, and then along its edge, which rises while gradients shrink. Each cross is a step that was skipped.",
).show()
compare(predicted=Count(60), measured=Count(sum(a == b for a, b in zip(scales, theirs))), name="steps of equal scale")

# %% [markdown]
# All 60. And with PyTorch's policy in place of ours? Its lists are longer, and they depend on the
# device. On a CPU, its softmax follows its inputs, so that the scores stay in 16 bits; on a GPU it gets fp32.

# %% tags=["varies"]
autocast = list(hunt_torch(torch.autocast("cpu", torch.float16)))
held = activations(policy=lambda: torch.autocast("cpu", torch.bfloat16))
print(f"steps of equal scale under torch.autocast: {sum(a == b for a, b in zip(scales, autocast))} of 60")
print(f"activations: our policy {hill['cast policy']:.2MiB}, torch.autocast on this device {held:.2MiB}")

# %% [markdown]
# ## 11 · Seconds
#
# On a GPU, seconds are the reason for all this. Here are products of two square matrices on the device that runs this
# page, a GPU or not. Are 16 bits faster? (On a GPU the first line names its tensor cores, the units that multiply whole tiles.)

# %% tags=["varies"]
device, size = ("cpu", 256) if gpu.refusal(2**28) else ("cuda", 4096)
if device == "cuda":
    version = torch.cuda.get_device_capability()  # 7.5: T4, 8.0: A100, 9.0: H100
    since = {"fp16": (7, 0), "bf16": (8, 0), "tf32": (8, 0), "fp8": (8, 9)}
    units = [name for name, first in since.items() if version >= first]
    print(f"{torch.cuda.get_device_name()}: tensor cores for {', '.join(units)}")

seconds = {}
for dtype in (torch.float32, torch.bfloat16, torch.float16):
    a = torch.randn(size, size, device=device).to(dtype)
    seconds[dtype] = measure.seconds(lambda a=a: a @ a)

for dtype, time in seconds.items():
    gain = seconds[torch.float32] / time
    print(f"{device} {str(dtype)[6:]:>9}: {time:.2ms}, {gain:.1f} × the speed of fp32")

# %% [markdown]
# (In such a product a GPU may cut a long sum into parts, and PyTorch lets it join those in fp16, unless you set
# `torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction` to False.)
#
# A CPU may surprise you in either direction. Some have units for bf16, few have any for fp16; those without convert
# every number to fp32 first and come out *slower*. For GPUs with tensor cores, data sheets promise 2 times fp32 (RTX
# 4090) to 16 times (A100, 312 to 19.5 TFLOP/s). That is the ceiling, for large matrices.
#
# A T4 has tensor cores for fp16 alone. PyTorch computes bf16 there all the same, without an error, and without the gain: look at its
# line. So on a T4, which is what Colab lends for nothing, mixed precision means fp16, and fp16 means a scaler. What is left
# of the gain in a whole step, where not everything is a product? (Without a GPU the second cell prints one line.)

# %%
WIDE = GPTConfig(layers=6, width=1024, heads=16, vocab_size=256, context=512)


def step_on_the_card(model, adam, scaler, dtype, tokens):
    with torch.autocast("cuda", dtype, enabled=dtype != torch.float32):
        loss = model(tokens[:, :-1], tokens[:, 1:])
    adam.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(adam)
    scaler.update()


# %% tags=["varies"]
if problem := gpu.refusal(5 * 2**30):
    print(problem)
else:
    tokens = torch.randint(0, 256, (4, 513), device="cuda")
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        on_gpu = GPT(WIDE, device="cuda")
        adam = torch.optim.Adam(on_gpu.parameters(), lr=1e-4)
        scaler = torch.amp.GradScaler(enabled=dtype == torch.float16)
        run = functools.partial(step_on_the_card, on_gpu, adam, scaler, dtype, tokens)
        print(f"a step in {str(dtype)[6:]}: {measure.seconds(run, repeats=3):.0ms}")

# %% [markdown]
# ## 12 · Eight bits
#
# Newer tensor cores multiply fp8, at twice the speed of bf16. The usual recipe takes **e4m3** for weights and activations
# and **e5m2** for gradients (Micikevicius et al. 2022). Neither has the range for all tensors of a network at once. See
# it in section 5's explorer: choose **layers** and **fp8_e5m2**, and look at the strip below. Is there a scale at which no
# flowing gradient becomes 0 or `inf`?
#
# <details><summary>Answer</summary>
#
# No. The last one is saved at $2^{32}$, and the first `inf` comes at $2^{31}$.
#
# </details>
#
# So one loss scale is not enough: each *tensor* gets a scale of its own, which takes its largest number, the *amax*, to
# the largest number of the format.
#
# To know amax one must read the whole tensor, and then read it once more to cast it. **Delayed scaling** saves the first
# reading: it takes the largest amax of the last steps, and hopes. What grew in the meantime *saturates* at the format's
# largest number. (Transformer Engine's `DelayedScaling` remembers 1,024 steps; we remember 4.)
#
# **Your turn.** Compute that scale. If all of those four are 0, or if there is no step yet, nothing is known, and the
# scale is 1.

# %%
@your_turn(turns.check_delayed, look="Which steps are remembered, and what should their largest amax become when it is multiplied by the scale?")
def delayed_scale(amax, largest):
    """The scale for the next tensor: `amax` lists those of all steps so far, `largest` is the format's largest number."""
    ...


# %% tags=["solution"]
@delayed_scale.solution
def delayed_scale(amax, largest):
    known = max(amax[-4:], default=0)
    return largest / known if known else 1


# %% [markdown]
# We follow one tensor, the gradient that the head hands back, over 30 steps of training, and cast it to e5m2 in three
# ways: with no scale, with that of its *current* amax, and with the delayed one.

# %%
from course_lib.numerics import FP8_E5M2


def scales_of(amax, way, step):
    if way == "no scale":
        return 1.0
    if way == "current":
        return FP8_E5M2.max / amax[step]
    return delayed_scale(amax[:step], FP8_E5M2.max)


def cast(x, scale):
    return FP8_E5M2.round((x * scale).clamp(-FP8_E5M2.max, FP8_E5M2.max)) / scale


# %%
def head_gradients(steps=30):
    model = GPT(CONFIG)
    optimizer = Adam(model.parameters(), lr=1e-3)
    for step in range(steps):
        with record_flowing_gradients(model) as flowing:
            train_step(model, optimizer, batch(step))
        yield flowing[0].detach().clone() * SHARE


# %%
tensors = list(head_gradients())
amax = [x.abs().max().item() for x in tensors]
for way in ("no scale", "current", "delayed"):
    scales_used = [scales_of(amax, way, step) for step in range(1, 30)]
    errors = [((cast(x, scale) - x).norm() / x.norm()).item() for x, scale in zip(tensors[1:], scales_used)]
    over = sum(scale * largest > 1.0001 * FP8_E5M2.max for scale, largest in zip(scales_used, amax[1:]))  # more than rounding
    print(f"{way:<8} error {sum(errors) / 29:6.1%} of the tensor's length, at worst {max(errors):.1%}; saturated in {over} of 29 steps")

grown = 8 * tensors[20]
by = ((cast(grown, scales_of(amax, "delayed", 20)) - grown).norm() / grown.norm()).item()
print(f"delayed, and the tensor has grown to 8 times its size at once: error {by:.0%}")

# %% [markdown]
# (The loss counts a 1,024th, as in section 4.) Without a scale nothing is left: all of this tensor lies below the
# smallest number of e5m2. With a scale of its own the error is what two fraction bits leave. The delayed scale is hardly
# worse, although it saturates whenever the tensor has grown, for the tensor grows by little. The last line is the bill
# for a tensor that grows by much.
#
# ## 13 · At scale
#
# **Peaks.** An A100 has 432 tensor cores. In each
# cycle each of them does 256 multiply-adds in fp16 or bf16, at 1,410 MHz. An H100 has 528, each does 512, at 1,830
# MHz. A multiply-add is two operations. How many is that in a second?

# %%
units = {"A100": FlopsPerSecond(1410e6 * 432 * 256 * 2), "H100": FlopsPerSecond(1830e6 * 528 * 512 * 2)}
sheets = {"A100": hardware.A100_80GB.peak("bf16"), "H100": hardware.H100_80GB.peak("bf16")}
for name in units:
    print(f"{name}: units × clock {units[name]:.1TFLOP/s}, its data sheet {sheets[name]:.1TFLOP/s}")
figures.gpu_peaks(
    [hardware.A100_80GB, hardware.H100_80GB],
    ["fp64", "fp32", "tf32", "fp16", "bf16", "fp8"],
    caption="Filled: dense, what training gets. Dotted: with 2:4 sparsity, twice that, the figure that an H100's sheet prints. "
    "Each card has its own axis. From fp32 to bf16 is a factor of 16 on an A100 and of 15 on an H100.",
)

# %% [markdown]
# So a data sheet's peak is this very product, and no measurement of a program. (Sources: the accelerator tables of
# `stas00/ml-engineering` and of glennklockwood.com.)
#
# Beware of the dotted bars. **2:4 sparsity** means that in every four neighbouring weights two are 0, and the
# hardware skips them. Networks in training have no such zeros. Yet the larger figure gets around: one lecture
# prints "H100: TF32 989, BF16 1,979, FP8 3,958 TFLOPS", and all three are sparse. Divide your own speed by one of
# them and you seem to use half of what you do.
#
# **Bytes.** The ZeRO paper begins with a model of 7.5 billion parameters, trained with Adam in mixed precision, and
# prints what one GPU would have to hold (Rajbhandari et al. 2020, Figure 1).

# %%
zero = predict.Setup(7_500_000_000, precision="mixed")
states = predict.model_states(zero).total
print(f"7.5 billion parameters at 16 bytes: {states:.0GB}, and the paper prints 120 GB")
wide = predict.model_states(zero.with_(gradients="fp32")).total
print(f"with gradients in fp32: {wide:.0GB}, {wide / 7_500_000_000:.0f} bytes a parameter")

# %% [markdown]
# Others count 18 bytes a parameter and not 16: Megatron-LM and `stas00/ml-engineering` keep the
# *gradients* in fp32, 2 bytes more, since a sum over many micro-batches is a long sum.
#
# **Scales.** What the scale starts from, and after how many good steps it grows, as the frameworks have it:
#
# | | start | grows after | goes down at |
# |---|---|---|---|
# | PyTorch's `GradScaler` | $2^{16}$ | 2,000 | every overflow |
# | DeepSpeed | $2^{16}$ | 1,000 | the second overflow ("hysteresis 2") |
# | Megatron-LM | $2^{32}$ | 1,000 | the second overflow |
# | GPT-NeoX-20B | $2^{12}$ | 1,000 | the second overflow |
#
# (Hysteresis 2: the first overflow skips its step and leaves the scale; each later one halves it, until it has grown
# again. Sources: `GradScaler`'s defaults; `deepspeed/runtime/precision_config.py`; `megatron/training/arguments.py`;
# `gpt-neox/configs/20B.yml`.) You can read a log of theirs now: a handful of skipped steps at the start is the way down
# from $2^{32}$, one in a while is the hunt, and one after the other is a run that is dying of something else.
#
# ## What to keep
#
# | question | answer |
# |---|---|
# | Which tensors afford 16 bits? | what goes into a matrix product, and what comes out |
# | Which do not? | optimizer state, the weights that are stepped on, norms, softmax, losses, long sums |
# | How many bytes a parameter? | 16, as in fp32: 2 + 2 + 12. Without a copy, rounded at random, 12 |
# | What is saved, then? | activations, traffic, and time |
# | When does fp16 lose a gradient? | at $2^{-25}$ and below, also on the way |
# | The repair? | loss × $S$, gradients / $S$; largest $S$: $65{,}520 / \max \lvert g \rvert$ |
# | And an `inf`? | skip the step, halve $S$; double it after many good ones |
# | In which order? | backward, **unscale, clip**, step, update |
# | And bf16? | no scale: fp32's range, two or three digits |
#
# ## Three exercises
#
# **1.** A run on H100s computes 495 TFLOP/s in bf16 on each GPU. Its report divides by the lecture's 1,979. How many
# per cent of the peak does it really use?
#
# **2.** In another run the largest gradient, unscaled, is 0.02. Which is the highest power of two that the loss scale
# can have?
#
# **3.** Write a scaler with patience: the scale goes down only at the
# *second* overflow in a row, and then counts anew.  `patient.update(finite)` is called
# with what stands in `steps`; give the scales after each as a list.

# %%
answer_1 = None  # per cent

self_check(answer_1, turns.EXERCISES[0], tolerance=0.01, hint="Which peak belongs to a training run?")

# %%
answer_2 = None  # a whole number: k, where the scale is 2^k

self_check(answer_2, turns.EXERCISES[1], hint="Section 6: which product must stay below 65,520?")


# %%
class Patient(Scaler):
    def update(self, finite):
        super().update(finite)  # change this: one overflow alone leaves the scale where it is


steps = [True, False, True, False, False, False, True, True]
patient = Patient(1024.0, growth_interval=2)
answer_3 = None  # when it runs: [patient.update(finite) or patient.scale for finite in steps]

self_check(answer_3, turns.exercise_3(steps, 1024.0, growth_interval=2), hint="Count overflows in a row; start over at 2.")

# %% [markdown]
# <details><summary>Answers</summary>
#
# 1. The dense peak is 989, so 50 %.
# 2. $\log_2 (65{,}520 / 0.02) = 21.6$, so 21.
# 3. Keep a count, 0 at first, and note the scale before `super().update(finite)`. After it: a good step sets the count to
# 0; an overflow adds 1; at a count of 1 the noted scale comes back; at 2 the count starts over at 0.
#
# </details>
#
# **The lab**, `labs/lab04_mixed_precision`, is a network whose gradients underflow. It must train in fp16 within a
# byte budget, and the optimizer step is yours.
#
# ## Further reading
#
# - Micikevicius et al. 2018, [Mixed precision training](https://arxiv.org/abs/1710.03740), and 2022,
#   [FP8 formats for deep learning](https://arxiv.org/abs/2209.05433).
# - [torch.amp](https://docs.pytorch.org/docs/stable/amp.html): autocast and GradScaler.
# - Transformer Engine, [FP8 delayed scaling](https://nvidia.github.io/TransformerEngine/features/low_precision_training/fp8_delayed_scaling/fp8_delayed_scaling.html).
#
# [Lesson 05 · Gradient accumulation](05_gradient_accumulation.ipynb) takes those 1,024 micro-batches seriously.
