# %% [markdown]
# # Lab 04 · Eight bytes a parameter
#
# **The question:** mixed precision costs 16 bytes a parameter, as fp32 does (lesson 04). Can fp16 train on half of
# that, where every single gradient underflows?
#
# | | |
# |---|---|
# | Time | about 90 minutes |
# | Builds on | lesson 04: the loss scale, master weights, unscale before clip; lesson 01: what fp16 rounds away |
# | You write | six functions, most of them under 15 lines |
# | A GPU | changes nothing here |
#
# | question | | points |
# |---|---|---|
# | 1 | Where do the gradients lie? | 15 |
# | 2 | A master weight in two halves | 20 |
# | 3 | The step | 30 |
# | 4 | A scale that looks ahead | 20 |
# | 5 | Train | 15 |
#
# **The rules.** Import nothing but `torch`, `math` and what the first cell imports. What lives from step to step
# lives in tensors, but for a number or two. A cell that says YOUR CODE HERE is yours; every cell below it shows your
# work or checks it, and you can run those as often as you like. Cells that show your answer at work fail until there
# is one. That costs nothing. More checks run when the lab is graded. They ask for nothing that is not written here,
# on other numbers.
# A function leaves what it is given as it was, gradients, modes and hooks among it, and draws no random numbers. Where
# it may change something, its contract says so. The checks look.
#
# Question 3 uses your functions of question 2, and question 5 those of all four.

# %%
import functools
import math
from dataclasses import dataclass
from types import SimpleNamespace

import torch
from torch import nn
from torch.utils._pytree import keystr, tree_flatten_with_path, tree_leaves

from course_kit import measure
from course_kit.checks import check
from course_kit.checks.habits import Unfilled, across
from course_kit.checks.held_bytes import outside_torch
from course_kit.checks.random_programs import random_programs
from course_kit.notebook import ask
from course_kit.units import Bytes
from course_lib.numerics import FP16
from course_lib.train.gradients import GradientSizes, record_flowing_gradients
from course_pages.lesson04 import pictures as figures
from course_pages.shared.losses import losses_against_first

# %% [markdown]
# ## The bridge
#
# Sixteen sensors sit on a bridge. A network of 33,000 parameters guesses from them how far four of its points have
# moved. They move by tenths of a millimetre; the file says metres; the loss is a mean of squares. So the loss is
# about $10^{-8}$ **square metres**, its gradients are smaller still, and the learning rate that fits is in the
# millions. Strange numbers, but in fp32 nobody notices: only their ratio counts.
#
# Now and then a sensor fails: a number in the batch is nonsense. Those are the steps in `BAD`.

# %%
UNIT = 2.0**-13  # metres, about 0.12 mm
BAD = {17: "sensor", 30: "target", 31: "sensor", 50: "target"}


class Bridge(nn.Module):
    """16 sensors → 4 displacements in units of 0.12 mm, in the dtype of its weights."""

    def __init__(self, seed, width=72, layers=6):
        super().__init__()
        torch.manual_seed(seed)
        self.inward, self.outward = nn.Linear(16, width), nn.Linear(width, 4)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, x):
        x = torch.tanh(self.inward(x.to(self.inward.weight.dtype)))
        for layer in self.layers:
            x = x + 0.5 * torch.tanh(layer(x))
        return self.outward(x)


# %%
def make_batch(step, seed=0, bad=BAD, size=128):
    """Sensors [size, 16] and displacements [size, 4] in metres, both fp32."""
    generator = torch.Generator().manual_seed(1000 * seed + step)
    x = torch.randn(size, 16, generator=generator)
    ways = torch.randn(16, 4, generator=torch.Generator().manual_seed(99))
    y = UNIT * torch.sin(x @ ways / 4)
    if bad.get(step) == "sensor":
        x[3, 5] = math.inf
    if bad.get(step) == "target":
        y[3, 1] = 1e6
    return x, y


def loss_of(net, batch):
    """The mean square error in square metres, in fp32 whatever the net's dtype."""
    x, y = batch
    return (net(x).float() * UNIT - y).square().mean()


# %% [markdown]
# ## 1 · Where do the gradients lie? (15 points)
#
# First look. Here is the same gradient twice: from the network in fp32, and from a copy with `.half()`. How many per
# cent of the second one will be 0?

# %%
guess_zeros = ask("How many per cent of the fp16 network's gradients are 0?")


# %%
def gradients_in_fp32(net, batch):
    """Every gradient of one step, also those that flow between the layers; they are gone from the net afterwards."""
    net.zero_grad(set_to_none=True)
    with record_flowing_gradients(net) as flowing:
        loss_of(net, batch).backward()
    gradients = [parameter.grad for parameter in net.parameters()] + flowing
    net.zero_grad(set_to_none=True)
    return gradients


gradients = gradients_in_fp32(Bridge(0), make_batch(0))
half = Bridge(0).half()
loss_of(half, make_batch(0)).backward()
found = torch.cat([parameter.grad.flatten() for parameter in half.parameters()])
print(f"{(found == 0).double().mean():.0%} are 0 in fp16; you said {guess_zeros.said}")

# %% [markdown]
# Not one is left. This network does not train badly in fp16. It does not train.
#
# So scale the loss. By how much? Lesson 04 went as far up as the largest gradient allows. But gradients grow and
# shrink during training, so we leave **headroom**: room for gradients that many times as large as today's. And we
# stop at 65,504, the largest number that fp16 has. (Lesson 04 went to 65,520, where rounding up to inf begins.)
#
# **The contract.** `loss_scale(gradients, headroom=16.0)`
#
# - `gradients`: a list of tensors of any shapes and float dtypes, of a loss without a scale. They stay as they are.
# - returns a Python float: the largest power of two $S$ with $S \cdot \text{headroom} \cdot \max |g| \le 65{,}504$.
# It may be smaller than 1.
# - `ValueError` if there is an inf or a nan among them, or no number but 0: there is nothing to measure.
#
# **What is graded:** scales that you can check by hand (8), further ones, among them some right at the limit (7).


# %% answer="q1"
def loss_scale(gradients, headroom=16.0):
    """The largest power of two at which the largest gradient, times headroom, still fits into fp16."""
    ### BEGIN SOLUTION
    largest = max((gradient.abs().max().item() for gradient in gradients if gradient.numel()), default=0.0)
    finite = all(bool(gradient.isfinite().all()) for gradient in gradients)
    if not finite or largest == 0:
        raise ValueError(f"the largest gradient is {largest}: give finite gradients, not all of them 0")
    _, exponent = math.frexp(65504 / (headroom * largest))  # 2^(exponent - 1) ≤ quotient < 2^exponent
    return 2.0 ** (exponent - 1)
    ### END SOLUTION


# %%
scale = loss_scale(gradients)
sizes = GradientSizes(gradients)
figures.gradient_histograms(
    {"as they are": (sizes, 1.0), f"times 2^{math.log2(scale):.0f}": (sizes, scale)},
    FP16,
    caption="All gradients of the bridge, before and after. Above, the whole hill lies to the left of what fp16 can "
    "hold. Below, it lies inside, and the gap on its right is the headroom.",
)

# %% check="q1-values" points=8
look = "the largest magnitude of all tensors, and the power of two below, not above"
for numbers, headroom, expected in (
    ([1.0], 1.0, 2.0**15),
    ([1.0], 16.0, 2.0**11),
    ([0.25, -3.0], 1.0, 2.0**14),
    ([1e-9, 2.0**-30], 1.0, 2.0**45),
    ([1e6], 1.0, 2.0**-4),
    ([65504.0], 1.0, 1.0),
    ([65512.0], 1.0, 0.5),
):
    got = check.call(loss_scale, [torch.tensor(numbers), torch.zeros(2, 2)], headroom)
    check.equal(got, expected, f"the scale for {numbers}, headroom {headroom:g}", look=look)
for numbers in ([1.0, math.inf], [1.0, math.nan], [0.0, 0.0]):
    check.raises(ValueError, loss_scale, [torch.tensor([n]) for n in numbers], look="what cannot be measured")
given = torch.tensor([-3.0])
check.equal(type(check.call(loss_scale, [given])).__name__, "float", "the type of a scale")
check.equal(given.item(), -3.0, "the gradient that was given, afterwards", look="what changes in place")

# %% check="q1-hidden" points=7
# Gradients at the limit and just beyond it, other dtypes and headroom, what is refused.
### BEGIN HIDDEN TESTS
#: gradients at the limit and just beyond it
for _power in range(-40, 100, 7):
    _limit = torch.tensor([65504 * 2.0**-_power])
    _over = torch.nextafter(_limit, _limit * 2)
    check.equal(check.call(loss_scale, [-_limit], 1.0), 2.0**_power, "a gradient at the limit")
    check.equal(check.call(loss_scale, [_over, _limit / 2], 1.0), 2.0 ** (_power - 1), "a gradient beyond the limit")
#: other dtypes and headroom
check.equal(check.call(loss_scale, [torch.tensor(3.0).half(), torch.tensor([[-5.0]]).double()], 4.0), 2.0**11, "dtypes")
check.equal(check.call(loss_scale, [torch.tensor([2.0**-24]).half()]), 2.0**35, "the default headroom")
_three = [torch.ones(2), torch.tensor([[-5.0]]), torch.zeros(3)]
check.equal(check.call(loss_scale, _three, 1.0), 2.0**13, "three gradients, the largest of them in the middle")
with Unfilled():
    _got = check.call(loss_scale, [across(each) for each in _three], 1.0)
check.equal(_got, 2.0**13, "the same gradients, laid across in memory")
check.equal(check.call(loss_scale, [torch.tensor([6000.0]).half()]), 0.5, "an fp16 gradient of 6,000")
check.equal(check.call(loss_scale, [torch.ones(2)], 3.0), 2.0**14, "a headroom of 3")
_double = torch.tensor([2.0**-200, 0.0], dtype=torch.float64)
check.equal(check.call(loss_scale, [_double], 1.0), 2.0**215, "a gradient that fp32 does not have")
#: what is refused
check.raises(ValueError, loss_scale, [torch.tensor([-math.inf, 1.0])])
check.raises(ValueError, loss_scale, [torch.tensor([math.nan, 7.0]), torch.ones(2)])
for _none in ([], [torch.zeros(0)]):
    check.raises(ValueError, loss_scale, _none)
# Sentences of the contract, and the known-wrong answers that break them.
#= `gradients`: a list | headroom_in_fp16 looks_in_fp32
#= They stay as they are | measures_in_place
#= returns a Python float | whole_numbers_for_scales scale_may_touch_the_limit stops_at_65520
#= It may be smaller than 1 | scale_is_at_least_1
#= `ValueError` if | refuses_nothing
#= The largest power of two | always_two_to_the_sixteen headroom_by_powers
### END HIDDEN TESTS

# %% [markdown]
# ## 2 · A master weight in two halves (20 points)
#
# Where do the 16 bytes go? Weight 2, gradient 2, master copy 4, Adam 8. Momentum instead of Adam needs 4 for its one
# state: 12. Our budget is **8**. So two more pieces have to shrink, and the first one is the master copy.
#
# Look at what it holds: the same number that the fp16 weight holds already, with more digits. We pay for the first
# eleven binary digits twice! Keep the fp16 weight $h$, and beside it *only the rest* $w - h$, in 16 bits.
#
# In which format, though? The rest is at most half of fp16's spacing around $h$. For a weight of 0.05 that is
# $2^{-16}$, and its last digit, that of fp32, is worth $2^{-28}$. **Before you write:** what would fp16 make of a
# number of that size?
#
# So no fp16 for the rest. A whole number (int16) will do, counted in a fraction of the spacing:
#
# $$w = h + r \cdot u, \qquad u = \text{spacing}(h) \cdot 2^{-15}$$
#
# With spacing($h$): the distance from $|h|$ to the next larger fp16 number, $2^{-24}$ from 0 up to $2^{-14}$, and
# twice as large from each power of two on; 32 at the end, also for 65,504 itself. (Why not $2^{-16}$? Think of a $w$
# exactly in the middle between two neighbours, and of the largest number that an int16 has.)
#
# **The contract.** `split(w)` and `join(half, rest)`
#
# - `w`: float32, any shape, $|w| \le 65{,}504$. `split` returns `half`, `w` rounded to nearest (float16), and `rest`,
# the nearest whole $r$ (int16; of two that are equally near, either), both of w's shape.
# - `join` returns float32, $h + r \cdot u$. Both functions leave their arguments as they are.
# - For every $w$ of at least $2^{-14}$ in size, `join(*split(w))` is `w` to the last bit. Below that, the error is at
# most $2^{-40}$.
# - You may use `FP16` of lesson 01 (`FP16.spacing(x)`, say) or work it out with `torch.frexp`.
#
# **What is graded:** numbers that you can check by hand (7), the way back, bit by bit (6), further numbers (7).


# %% answer="q2"
def split(w):
    """The fp16 number nearest to w, and what is missing, as a whole number of 2^-15 of its spacing."""
    ### BEGIN SOLUTION
    half = w.half()
    return half, ((w - half.float()) / unit_of(half)).round().to(torch.int16)


def unit_of(half):
    """The distance to the next larger fp16 number, times 2^-15."""
    _, exponent = torch.frexp(half.float().abs().clamp(min=2.0**-14))  # below that, the spacing stays
    return torch.ldexp(torch.ones_like(half, dtype=torch.float32), exponent - 11 - 15)
    ### END SOLUTION


# %% answer="q2-back"
def join(half, rest):
    """The fp32 number that the two halves stand for."""
    ### BEGIN SOLUTION
    return half.float() + rest.float() * unit_of(half)
    ### END SOLUTION


# %%
weights = torch.tensor([0.05, 1.0 + 2.0**-20, -0.3333333, 1e-6])
h, r = split(weights)
for w, number, rest, back in zip(weights.tolist(), h.tolist(), r.tolist(), join(h, r).tolist(), strict=True):
    print(f"{w:.9f} = {number:.9f} and {rest:6d}, back {back:.9f}")


# %%
def halves_of(w):
    """What split gives, once it is clear that these are two tensors and that w is as it was."""
    before = w.clone()
    pair = check.call(split, w)
    if not (isinstance(pair, tuple | list) and len(pair) == 2 and all(map(torch.is_tensor, pair))):
        check.that(False, "what split returns", expected="two tensors, half and rest", came=type(pair).__name__)
    if not torch.equal(w, before):
        check.equal(w, before, "w, after split(w)", look="what changes in place")
    return pair


def joined(half, rest):
    """What join gives, once it is clear that this is a tensor of half's shape."""
    back = check.call(join, half, rest)
    if not torch.is_tensor(back) or back.shape != half.shape:
        check.equal(back, half.float(), "what join returns")
    return back


# %% check="q2-values" points=7
look = "the spacing of half (0 has one, too), ties, and what int16 holds"
large = torch.tensor([65503.5, 1.0 + 2.0**-23, 1.0 - 2.0**-24, -1.0 - 2.0**-12])
w = torch.stack([large, torch.tensor([0.0, 2.0**-25, 3 * 2.0**-25, -(2.0**-30)])])
expected = torch.tensor([[-512, 4, -2, -8192], [0, 16384, -16384, -512]], dtype=torch.int16)
half, rest = halves_of(w)
check.equal(half, w.half(), "the halves")
check.equal(rest, expected, "the rests", look=look)
ties = 1.0 + (torch.arange(8) + 0.5) * 2.0**-10
check.equal(halves_of(ties)[1].abs(), torch.full((8,), 16384).short(), "rests of ties", look=look)
one = torch.tensor([1.0, 1.0, 65504.0, 0.0]).half()
got = joined(one, torch.tensor([4, -2, 0, 1], dtype=torch.int16))
check.equal(got, torch.tensor([1 + 2.0**-23, 1 - 2.0**-24, 65504.0, 2.0**-39]), "joined again", look="the spacing")
check.equal(one, torch.tensor([1.0, 1.0, 65504.0, 0.0]).half(), "half, after join", look="what changes in place")

# %% check="q2-exact" points=6
w = torch.randn(20_000, generator=torch.Generator().manual_seed(1)) * 0.05
back = joined(*halves_of(w))
normal = w.abs() >= 2.0**-14
check.equal(back[normal], w[normal], "20,000 weights, there and back", look="the format of the rest")
error = (back - w)[~normal].abs().max().item()
check.at_most(error, 2.0**-40, "the error below 2^-14", look="how the rest is rounded, and the spacing down there")

# %% check="q2-hidden" points=7
# Further numbers there and back, and how exact the rests of small ones are.
### BEGIN HIDDEN TESTS
#: further numbers there and back
_powers = 2.0 ** torch.arange(-14, 16).float()
_w = torch.cat([_powers, -_powers * (1 + 2.0**-23), _powers[1:] * (1 - 2.0**-24), _powers * (1 + 2.0**-11)])
_w = torch.cat([_w, torch.linspace(-65504, 65504, 4001), torch.tensor([65504.0 - 2.0**-8])]).view(-1, 1)
_big = _w[_w.abs() >= 2.0**-14].clone()
_half, _rest = halves_of(_big)
check.equal(_half, _big.half(), "halves of further numbers")
check.equal((_rest.dtype, _rest.shape == _big.shape), (torch.int16, True), "dtype and shape of the rest")
check.equal(joined(_half, _rest), _big, "further numbers, there and back")
with Unfilled():
    _half, _rest = halves_of(across(_big))
    check.equal(joined(across(_half), across(_rest)), _big, "numbers that lie across in memory, there and back")
#: how exact the rests of small ones are
_small = torch.randn(3, 500, generator=torch.Generator().manual_seed(2)) * 2.0**-17
_half, _rest = halves_of(_small)
_back = joined(_half, _rest)
check.equal(_half, _small.half(), "halves of small numbers, also after join")
_exact = (_small.double() - _half.double()) * 2.0**39
check.at_most((_rest.double() - _exact).abs().max().item(), 0.5, "how far rests of small numbers are from exact")
# Sentences of the contract, and the known-wrong answers that break them.
#= `w`: float32 | - what is given
#= `split` returns | rest_in_fp16 rest_is_cut_off
#= `join` returns | spacing_of_w
#= Both functions leave | the_rest_in_place
#= For every $w$ of at least | spacing_of_w a_tie_does_not_fit
#= Below that, the error | rest_is_cut_off
#= You may use | - a permission
#= The fp16 number nearest | a_tie_does_not_fit
#= The fp32 number that | rest_in_fp16
### END HIDDEN TESTS

# %% [markdown]
# ## 3 · The step (30 points)
#
# Six bytes are spent: weight, gradient, rest. **Two** are left for the momentum: fp16 again. But the momentum is a
# mean of *true* gradients, and those are $10^{-9}$ here. So it needs a scale, too. May it use the loss scale? That
# one changes from step to step, and the momentum stays. What would happen to it?
#
# Give it a scale of its own, one for each tensor: a power of two that puts its largest number near the upper end of
# fp16, chosen anew whenever it is stored. (bf16 would need no scale. It also has 8 binary digits where fp16 has 11, and
# the checks can tell.)
#
# One step, in this order:
#
# 1. **Look.** If any gradient of any tensor is inf or nan, change *nothing* and return `math.inf`.
# 2. **Unscale.** True gradient: `parameter.grad` / scale, in fp32.
# 3. **Clip.** If the length of all true gradients as one vector is above `max_norm`, multiply all by `max_norm` /
# length. (PyTorch adds $10^{-6}$ to the length, for safety. Why must you not do this here?)
# 4. **Move**, for each tensor: $m \leftarrow \text{momentum} \cdot m + g$, then $w \leftarrow w - \text{lr} \cdot m$
# with that same $m$ in fp32, before it is rounded to be stored. $m$ begins at 0.
#
# **The contract.** `lean_step(parameters, state, scale, lr, momentum, max_norm)`
#
# - `parameters`: a list of fp16 parameters, with fp16 gradients of the loss times `scale` in `.grad`. Change the
# weights in place. Leave the gradients as they are. If all of them are 0, that is a step like any other.
# - `state`: a list, a dict for each parameter. `state[i]["rest"]` is there from the start; add what you need to keep:
# tensors, and a number or two.
# - `lr` and `max_norm` are for true gradients. `max_norm=math.inf` means no clipping.
# - returns the largest magnitude of the *scaled* gradients as a Python float (question 4 wants it), or `math.inf`.
# - **Memory.** At the end of the step weights, gradients and state have at most 8 bytes a parameter, and 16 bytes more
# for each tensor. *During* the step, at most 72 bytes for each number of the *largest* tensor come on top. So widen
# one tensor at a time.
#
# **What is graded:** the weights over five steps, and gradients of 0 (10), skipping (6), bytes (6), other shapes and
# scales, a long run of small steps, and gradients that grow (8).


# %%
def begin(net):
    """Put a network into fp16, in place. Returns its parameters and the state of each."""
    parameters, state = list(net.parameters()), []
    for parameter in parameters:
        half, rest = split(parameter.data)
        parameter.data = half
        state.append({"rest": rest})
    return parameters, state


# %% answer="q3"
def lean_step(parameters, state, scale, lr, momentum, max_norm):
    """Momentum on fp16 weights and gradients, in 8 bytes a parameter; the largest scaled gradient, inf: skipped."""
    ### BEGIN SOLUTION
    largest = max(largest_of(parameter.grad) for parameter in parameters)
    if largest == math.inf:
        return math.inf
    length = math.hypot(*(length_of(parameter.grad) for parameter in parameters)) / scale
    factor = (max_norm / length if length > max_norm else 1.0) / scale
    with torch.no_grad():
        for parameter, kept in zip(parameters, state, strict=True):
            mean = parameter.grad.float() * factor
            if "mean" in kept:
                mean.add_(kept["mean"].float(), alpha=momentum / kept["scale"])
            weight = join(parameter.data, kept["rest"]).add_(mean, alpha=-lr)
            half, kept["rest"] = split(weight)
            parameter.copy_(half)
            kept["scale"] = loss_scale([mean], headroom=2.0) if mean.any() else 1.0
            kept["mean"] = mean.mul_(kept["scale"]).half()
    return largest


def largest_of(gradient):
    """The largest magnitude; inf if there is a nan, too."""
    largest = gradient.abs().max().item()
    return largest if math.isfinite(largest) else math.inf


def length_of(gradient):
    return torch.linalg.vector_norm(gradient, dtype=torch.float32).item()
    ### END SOLUTION


# %% [markdown]
# Ten steps of the bridge with a static scale. The loss, in units of `UNIT` squared, should fall.

# %%
net = Bridge(0)
scale = loss_scale(gradients_in_fp32(net, make_batch(0)))
parameters, state = begin(net)
for step in range(10):
    loss = loss_of(net, make_batch(step))
    net.zero_grad()
    (loss * scale).backward()
    lean_step(parameters, state, scale, 0.03 / UNIT**2, 0.9, UNIT**2)
    print(f"{loss.item() / UNIT**2:.3f}", end="  ")


# %%
class Case:
    """Tensors with gradients of a given size, and the truth in float64."""

    def __init__(self, shapes, seed, gradient=2.0**-30, weight=0.1):
        self.random, self.size = torch.Generator().manual_seed(seed), gradient
        weights = [weight * torch.randn(shape, generator=self.random) for shape in shapes]
        pairs = [halves_of(w) for w in weights]
        self.parameters = [nn.Parameter(half) for half, _ in pairs]
        self.state = [{"rest": rest} for _, rest in pairs]
        self.truth = [w.double() for w in weights]
        self.means = [torch.zeros_like(w) for w in self.truth]

    def new_gradients(self, scale):
        for parameter in self.parameters:
            g = self.size * torch.randn(parameter.shape, generator=self.random)
            parameter.grad = (g * scale).half()


# %%
def step_both(case, scale, lr, momentum, max_norm):
    """One step of yours, and one in float64, on the same gradients."""
    given = [parameter.grad.clone() for parameter in case.parameters]
    true = [g.double() / scale for g in given]
    length = math.sqrt(sum(g.square().sum().item() for g in true))
    factor = max_norm / length if length > max_norm else 1.0
    for w, m, g in zip(case.truth, case.means, true, strict=True):
        m.mul_(momentum).add_(g, alpha=factor)
        w.sub_(m, alpha=lr)
    largest = max(g.abs().max().item() for g in given)
    free = ("values", case.state)  # the gradients are not in it
    got = check.call(lean_step, case.parameters, case.state, scale, lr, momentum, max_norm, may_change=free)
    if type(got) is not float or got != largest:
        check.equal(got, largest, "the largest scaled gradient", look="what the contract says of the returned value")
    for parameter, g in zip(case.parameters, given, strict=True):
        if parameter.dtype != torch.float16:
            check.equal(parameter.dtype, torch.float16, "the dtype of a weight", look="what the step puts in")
        if parameter.grad is None or not torch.equal(parameter.grad, g):
            check.equal(parameter.grad, g, "the gradients after the step", look="what the contract says of them")


# %%
def compare_weights(case, what, of_change=1e-3, begun=None):
    """Your master weights against the truth, by how far they have come."""
    got, expected = [], []
    for w, old, parameter, kept in zip(case.truth, begun, case.parameters, case.state, strict=True):
        now = joined(parameter.data, kept["rest"]).double()
        furthest = (w - old).abs().max()  # each tensor by its own measure
        got.append(((now - old) / furthest).flatten())
        expected.append(((w - old) / furthest).flatten())
    look = "the order: look, unscale, clip, move; and what is rounded, and when"
    check.close(torch.cat(got), torch.cat(expected), what, relative=of_change, look=look)


# %% check="q3-values" points=10
case = Case([(24, 16), (24,), (5, 24)], seed=0)
begun = [w.clone() for w in case.truth]
steps = ((36, math.inf), (38, math.inf), (43, 2.0**-28), (33, 2.0**-27), (36, 2.0**-20))
for number, (power, max_norm) in enumerate(steps, start=1):
    case.new_gradients(2.0**power)
    step_both(case, 2.0**power, lr=2.0**20, momentum=0.9, max_norm=max_norm)
    what = f"how far the weights have come after step {number}: scale 2^{power}, max_norm {max_norm:.1e}"
    compare_weights(case, what, begun=begun)
case = Case([(4, 4), (4,)], seed=7)
begun = [w.clone() for w in case.truth]
for size in (0.0, 2.0**-30):
    case.size = size
    case.new_gradients(2.0**36)
    step_both(case, 2.0**36, lr=2.0**20, momentum=0.9, max_norm=1.0)
compare_weights(case, "a step after one whose gradients were all 0", begun=begun)


# %% check="q3-skip" points=6
def everything(case):
    """Weights, gradients and what the state keeps, tensors and numbers, by name."""
    gradients = [parameter.grad for parameter in case.parameters]
    leaves, _ = tree_flatten_with_path({"weight": case.parameters, "grad": gradients, "state": case.state})
    tensors = {keystr(path): leaf.detach().clone() for path, leaf in leaves if torch.is_tensor(leaf)}
    return tensors | {keystr(path): leaf for path, leaf in leaves if isinstance(leaf, int | float)}


for bad in (math.inf, -math.inf, math.nan):
    case = Case([(24, 16), (24,), (5, 24)], seed=1)
    case.new_gradients(2.0**36)
    step_both(case, 2.0**36, lr=2.0**20, momentum=0.9, max_norm=2.0**-27)
    case.parameters[2].grad[3, 7] = bad
    before = everything(case)
    got = check.call(lean_step, case.parameters, case.state, 2.0**36, 2.0**20, 0.9, 2.0**-27)
    check.equal(got, math.inf, f"what a step with {bad} returns", look="comparisons with nan")
    look = "when the gradients are looked at, and what a skipped step may change"
    check.equal(everything(case), before, f"after a step with {bad}", look=look)


# %%
def bytes_of_a_step(shapes, seed):
    """Bytes alive after the third step and at its peak: weights, gradients and whatever you keep, wherever it is."""
    with outside_torch() as outside, measure.memory(lines=True) as record:
        case = Case(shapes, seed)
        begun = [w.clone() for w in case.truth]
        for _ in range(2):
            case.new_gradients(2.0**36)
            step_both(case, 2.0**36, lr=2.0**20, momentum=0.9, max_norm=2.0**-27)
        compare_weights(case, "the weights after two steps", begun=begun)
        case.new_gradients(2.0**36)
        del case.truth, case.means, begun
        start = len(record.timeline) - 1
        free = ("values", case.state)
        check.call(lean_step, case.parameters, case.state, 2.0**36, 2.0**20, 0.9, 2.0**-27, may_change=free)
        hidden, alive = outside(), record.timeline.bytes.sum(axis=1)
    loose = sum(getattr(leaf, "size", 1) for leaf in tree_leaves(case.state) if not torch.is_tensor(leaf))
    check.at_most(loose, 8 * len(shapes), "numbers in the state that are in no tensor", look="the rules, at the top")
    return check.HeldBytes(alive[-1], record.by_line("now")) + hidden, hidden + int(alive[start:].max())


# %% check="q3-bytes" points=6
def within_budget(shapes, seed):
    now, peak = bytes_of_a_step(shapes, seed)
    sizes = [math.prod(shape) for shape in shapes]
    states = Bytes(8 * sum(sizes) + 16 * len(sizes))
    check.at_most(now, states, "bytes held after a step", look="what you keep for each number, and in which dtype")
    look = "what is alive at once: is only one tensor widened at a time?"
    check.at_most(peak, states + Bytes(72 * max(sizes)), "bytes at the peak of a step", look=look)


within_budget([(48, 48)] * 16 + [(48,)], seed=2)

# %% check="q3-hidden" points=8
# Gradients of other sizes, many steps that are each too small for fp16, a growing gradient, and the bytes of a step.
### BEGIN HIDDEN TESTS
#: gradients of other sizes
_sizes = (2.0**-44, 2.0**50, 0.5), (2.0**-8, 2.0**9, 0.95), (2.0**-30, 2.0**24, 0.0), (2.0**15, 0.125, 0.5)
for _size, _scale, _momentum in _sizes:
    _case = Case([(3, 4, 5), (7,), (1,), (12, 6)], seed=5, gradient=_size)
    _begun = [w.clone() for w in _case.truth]
    for _ in range(4):
        _case.new_gradients(_scale)
        _case.parameters[0].grad[0] = 0  # a part that nothing came through
        for _parameter in _case.parameters:
            _parameter.grad = across(_parameter.grad)
        with Unfilled():
            step_both(_case, _scale, lr=2.0**-10 / _size, momentum=_momentum, max_norm=6 * _size)
    compare_weights(_case, f"four steps of gradients of about {_size:.1g}", begun=_begun)
#: many steps that are each too small for fp16
_case = Case([(16, 16), (16,)], seed=6, weight=1.0)
_begun = [w.clone() for w in _case.truth]
for _step in range(75):
    _case.new_gradients(2.0 ** (41 + _step % 3))
    for _parameter in _case.parameters:
        _parameter.grad = _parameter.grad.abs()
    step_both(_case, 2.0 ** (41 + _step % 3), lr=2.0**13, momentum=0.9, max_norm=math.inf)
compare_weights(_case, "75 steps, each too small for fp16", of_change=5e-3, begun=_begun)
#: gradients of other sizes
_case = Case([(16, 16), (16,)], seed=10)
_begun = [w.clone() for w in _case.truth]
_case.new_gradients(2.0**36)
step_both(_case, 2.0**36, lr=2.0**23, momentum=0.9, max_norm=2.0**-28)
compare_weights(_case, "a step by the momentum before it is rounded", of_change=5e-5, begun=_begun)
#: a growing gradient
_case = Case([(8, 8), (8,)], seed=9, gradient=2.0**-44)
_begun = [w.clone() for w in _case.truth]
for _ in range(5):
    _case.size *= 2.0**5
    _case.new_gradients(2.0**28)
    step_both(_case, 2.0**28, lr=2.0**9, momentum=0.9, max_norm=math.inf)
compare_weights(_case, "gradients that grow 32-fold from step to step", begun=_begun)
#: gradients of other sizes
_w, _state = nn.Parameter(torch.zeros(2).half()), [{"rest": torch.zeros(2, dtype=torch.int16)}]
for _numbers in ((60000.0, 1.33 * 2.0**-8), (0.0, 0.0)):
    _w.grad = torch.tensor(_numbers).half()
    _top = check.call(lean_step, [_w], _state, 24576.0, 1.0, 0.5, math.inf, may_change=("values", _state))
    check.equal(_top, _w.grad.max().item(), "a gradient of 60,000 is finite, and then all are 0")
    _w = nn.Parameter(_w.detach().clone())  # as if all had been saved, and loaded
    _state = [{name: it.clone() if torch.is_tensor(it) else it for name, it in _state[0].items()}]
_expected = -1.5 * torch.tensor(1.33 * 2.0**-8).half().item() / 24576
check.close(joined(_w.data, _state[0]["rest"])[1].item(), _expected, "the weight of the smaller one", relative=0.01)
#: the bytes of a step
within_budget([(30, 20)] * 16 + [(20,)], seed=8)


#: gradients of other sizes
def _right_step(parameters, state, scale, lr, momentum, max_norm):
    """In float64, on weights that are kept whole."""
    given = [parameter.grad.double() for parameter in parameters]
    if not all(bool(g.isfinite().all()) for g in given):
        return math.inf
    length = math.sqrt(sum(g.square().sum().item() for g in given)) / scale
    for parameter, kept, g in zip(parameters, state, given):
        kept["mean"] = momentum * kept["mean"] + g * (max_norm / length if length > max_norm else 1.0) / scale
        parameter.weight = parameter.weight - lr * kept["mean"]
    return max(g.abs().max().item() for g in given)


def _right_start():
    kept = [{"mean": torch.zeros(2, dtype=torch.float64)} for _ in range(2)]
    return [SimpleNamespace(weight=w.double(), grad=torch.zeros(2).half()) for w in _first], kept


def _start():
    pairs = [split(w) for w in _first]
    parameters = [nn.Parameter(half) for half, _ in pairs]
    for parameter in parameters:
        parameter.grad = torch.zeros(2).half()
    return parameters, [{"rest": rest} for _, rest in pairs]


def _in_1024ths(weights):
    """The numbers of a life are so few and so round that all of these are whole."""
    return [(1024 * w.double()).round().tolist() for w in weights]


def _draw(chance, names):
    if chance.random() < 0.6 or len(names["said"]) == 6:  # longer ones, and fp16 would round the mean
        numbers = chance.choice(("0, 0", "1, 0", "-2, 1", "0, 2", "math.inf, 1", "1, math.nan"))
        return f"p[{chance.randrange(2)}].grad = torch.tensor([{numbers}]).half()"
    one_number = sum(int(w.grad.count_nonzero()) for w in names["p"]) == 1  # whose length is exact
    max_norm = chance.choice(("0.5", "math.inf")) if one_number else "math.inf"
    momentum = chance.choice((0.5, 0.5, 0.0))
    return f"said.append(lean_step(p, state, {chance.choice((1.0, 4.0))}, 0.25, {momentum}, {max_norm}))"


_first = [torch.tensor([0.5, -0.75]), torch.tensor([1.0, 3.0])]
_known, _look = (
    {"torch": torch, "math": math},
    "what a step does to each tensor, whatever its gradient and what came before",
)
_names = _known | {"start": _start, "lean_step": lean_step}
_names["in_1024ths"] = lambda p, state: _in_1024ths(joined(w.data, kept["rest"]) for w, kept in zip(p, state))
_right_names = _known | {"start": _right_start, "lean_step": _right_step}
_right_names["in_1024ths"] = lambda p, state: _in_1024ths(w.weight for w in p)
_begin, _looks = "p, state = start(); said = []", ["said", "in_1024ths(p, state)"]
random_programs("a step", _begin, _names, _right_names, _draw, lambda _: _looks, count=60, length=30, look=_look)
# Sentences of the contract, and the known-wrong answers that break them.
#= `parameters`: a list | - what is given
#= Change the weights in place | master_in_fp16
#= Leave the gradients | gradients_set_to_zero
#= If all of them are 0 | no_gradient_no_move
#= `state`: a list | - what is given
#= `state[i]["rest"]` is there | momentum_in_a_list momentum_on_the_parameter momentum_in_numpy
#= `lr` and `max_norm` are | clips_before_unscaling
#= `max_norm=math.inf` means | clips_up
#= returns the largest magnitude | largest_is_a_tensor overflow_counted_but_stepped
#= **Memory | momentum_in_fp32
#= At the end of the step | momentum_in_fp32 a_full_copy_in_fp32
#= *During* the step | all_gradients_widened_at_once
#= So widen one | all_gradients_widened_at_once
#= Momentum on fp16 weights | momentum_in_bf16 no_skip_on_overflow
### END HIDDEN TESTS

# %% [markdown]
# ## 4 · A scale that looks ahead (20 points)
#
# The dynamic scale of lesson 04 knows one bit about a step: overflow or not. It climbs by doubling until it falls
# over the edge, and each fall costs a step. `lean_step` tells more: the *largest* scaled gradient. With it one can
# turn round before the edge, and jump instead of climbing.
#
# **The contract.** `next_scale(now, largest)`: what follows on a step that was taken with `now.scale`. Both are a
# `ScaleState`, of three numbers: the scale; how many good steps it has seen; the largest gradient `seen` in them.
# These rules, the first that applies:
#
# 1. `largest` is inf or nan. The step was skipped. The scale is divided by 16; `good` and `seen` begin anew at 0. If
# that makes it less than 1, raise `ValueError`: fp16's range is not what is wrong.
# 2. `largest` is at least $2^{14}$: too near the edge. The scale is halved, but not below 1, and one that is below 1
# stays; `good` and `seen` begin anew.
# 3. Otherwise the step was good: one more, and `seen` becomes the larger of `seen` and `largest`.
# 4. After rule 3, if `good` has reached `INTERVAL`: the scale is multiplied by the largest power of two, from 1 to
# 256, with which `seen` stays *below* $2^{12}$; but by none that takes it above $2^{60}$. (If not even 1 does, it
# stays.) `good` and `seen` begin anew. Look `INTERVAL` up at every call: a user may set it to another number.
#
# **Before you write:** why must `seen` begin anew whenever the scale changes? And what is `nan > 5`?
#
# **What is graded:** single steps that you can check by hand (7), a trajectory (6), further ones (7).


# %%
@dataclass(frozen=True)
class ScaleState:
    """A loss scale, the good steps since it last changed or could have, and their largest scaled gradient."""

    scale: float
    good: int = 0
    seen: float = 0.0


INTERVAL = 8


# %% answer="q4"
def next_scale(now, largest):
    """The state after a step with now.scale, whose largest scaled gradient was `largest`."""
    ### BEGIN SOLUTION
    if not math.isfinite(largest):
        if now.scale / 16 < 1:
            raise ValueError(f"the scale {now.scale} would fall below 1: look at the loss, the data, the learning rate")
        return ScaleState(now.scale / 16)
    if largest >= 2.0**14:
        return ScaleState(max(min(1.0, now.scale), now.scale / 2))
    good, seen = now.good + 1, max(now.seen, largest)
    if good < INTERVAL:
        return ScaleState(now.scale, good, seen)
    factor = 1.0
    while factor < 256 and 2 * factor * seen < 2.0**12 and 2 * factor * now.scale <= 2.0**60:
        factor *= 2
    return ScaleState(now.scale * factor)
    ### END SOLUTION


# %% [markdown]
# Let both scales run over the same gradients: they shrink slowly, as in training, and jump up now and then. Ours
# against PyTorch's, with the same interval.


# %%
def sizes_over(steps, seed=0):
    """The largest gradient of each step, without a scale: shrinking, with noise, small jumps and one large jump."""
    noise = torch.randn(steps, generator=torch.Generator().manual_seed(seed)).tolist()
    jumps = [3 * (step % 37 == 36) + 9 * (step == 20) for step in range(steps)]
    return [2.0 ** (-14 - step / 12 + 0.5 * noise[step] + jumps[step]) for step in range(steps)]


def trajectory(sizes, state):
    """The scale before each step."""
    for size in sizes:
        yield state.scale
        scaled = size * state.scale
        state = check.call(next_scale, state, scaled if scaled < 65520 else math.inf)
        if not isinstance(state, ScaleState):
            check.that(False, "what next_scale returns", expected="a ScaleState", came=type(state).__name__)


# %%
def with_interval(number, *call):
    """A call while `INTERVAL` is another one."""
    global INTERVAL
    before, INTERVAL = INTERVAL, number
    try:
        return check.call(*call)
    finally:
        INTERVAL = before


# %%
def trajectory_of_torch(sizes, scale):
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=INTERVAL)
    parameter = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=0.0)
    for size in sizes:
        yield scaler.get_scale()
        scaled = size * scaler.scale(torch.ones(())).item()
        parameter.grad = torch.tensor([scaled if scaled < 65520 else math.inf])
        scaler.step(optimizer)
        scaler.update()


# %%
sizes = sizes_over(150)
ours, theirs = list(trajectory(sizes, ScaleState(2.0**34))), list(trajectory_of_torch(sizes, 2.0**34))
skipped = [step for step in range(150) if sizes[step] * ours[step] >= 65520]
skipped_by_torch = sum(size * scale >= 65520 for size, scale in zip(sizes, theirs, strict=True))
figures.scale_hunt(
    ours,
    skipped,
    theirs,
    caption="The wide line climbs until it falls over the edge, again and again. The narrow one keeps its distance, "
    "and is caught twice: by a start that is too high, and by the large jump, which nobody could have foreseen.",
).show()
print(f"skipped: {len(skipped)} with yours, {skipped_by_torch} with PyTorch's, of 150")

# %% check="q4-values" points=7
rules = {
    "rule 1, inf": ((2.0**20, 3, 9.0), math.inf, (2.0**16, 0, 0.0)),
    "rule 1, nan": ((2.0**20, 7, 9.0), math.nan, (2.0**16, 0, 0.0)),
    "rule 2": ((2.0**20, 7, 9.0), 2.0**14, (2.0**19, 0, 0.0)),
    "rule 2 at 1": ((1.0, 2, 9.0), 2.0**15, (1.0, 0, 0.0)),
    "rule 2 below 1": ((2.0**-4, 2, 9.0), 2.0**15, (2.0**-4, 0, 0.0)),
    "rule 3, more than seen": ((2.0**20, 3, 9.0), 9000.0, (2.0**20, 4, 9000.0)),
    "rule 4, by the largest seen": ((2.0**20, 7, 600.0), 4.0, (2.0**22, 0, 0.0)),
    "rule 4, stays below": ((2.0**20, 7, 4.0), 512.0, (2.0**22, 0, 0.0)),
    "rule 4, at most 256": ((2.0**20, 7, 0.0), 0.0, (2.0**28, 0, 0.0)),
}
for name, (now, largest, expected) in rules.items():
    got = check.call(next_scale, ScaleState(*now), largest)
    check.equal(got, ScaleState(*expected), name, look=f"{name}, word by word; good is {now[1]} before, INTERVAL 8")
check.raises(ValueError, next_scale, ScaleState(8.0), math.inf, look="rule 1: what stands below 1")

# %% check="q4-trajectory" points=6
got = [round(math.log2(scale)) for scale in trajectory(sizes_over(80, seed=1), ScaleState(2.0**34))]
# (power, for how many steps)
runs = [(34, 1), (30, 1), (29, 1), (28, 18), (24, 8), (27, 16), (28, 8), (29, 16), (31, 11)]
expected = [power for power, steps in runs for _ in range(steps)]
check.equal(got, expected, "the scale before each of 80 steps, as powers of two", look="which number begins anew when")
got = with_interval(2, next_scale, ScaleState(2.0**20, 1), 512.0)
check.equal(got, ScaleState(2.0**22), "rule 4 with an INTERVAL of 2", look="when INTERVAL is looked up")


# %% check="q4-hidden" points=7
# Long trajectories of other gradients, and the ends of the scale.
### BEGIN HIDDEN TESTS
def _oracle(scale, good, seen, largest, interval=8):
    if largest != largest or largest == math.inf:
        return scale / 16, 0, 0.0
    if largest >= 16384:
        return max(scale / 2, 1.0), 0, 0.0
    good, seen = good + 1, max(seen, largest)
    if good < interval:
        return scale, good, seen
    fits = [k for k in range(9) if seen * 2**k < 4096 and scale * 2**k <= 2**60]
    return scale * 2 ** max(fits, default=0), 0, 0.0


#: long trajectories of other gradients
for _seed in range(2, 6):
    _state = (2.0**50, 0, 0.0)
    for _step, _size in enumerate(sizes_over(300, seed=_seed)):
        _top = _size * _state[0] * (2.0**-30 if _step > 200 else 1.0)
        _top = (math.inf, math.nan)[_step % 2] if _top >= 65520 or _step % 61 == 60 else _top
        _got = check.call(next_scale, ScaleState(*_state), _top)
        _state = _oracle(*_state, _top)
        if _got != ScaleState(*_state):
            check.equal(_got, ScaleState(*_state), f"step {_step} of a long trajectory")
#: the ends of the scale
check.equal(check.call(next_scale, ScaleState(16.0, 4, 2.0), math.nan), ScaleState(1.0), "down to 1")
check.raises(ValueError, next_scale, ScaleState(15.0), math.nan)
check.equal(check.call(next_scale, ScaleState(2.0**57, 7), 1.0), ScaleState(2.0**60), "at most 2^60")
check.equal(check.call(next_scale, ScaleState(3 * 2.0**57, 7), 1.0), ScaleState(3 * 2.0**58), "twice, 4 is too much")
check.equal(check.call(next_scale, ScaleState(2.0**62, 7), 1.0), ScaleState(2.0**62), "not even 1 is allowed")
check.equal(check.call(next_scale, ScaleState(2.0**20, 7), 9000.0), ScaleState(2.0**20), "nothing to gain")
#: long trajectories of other gradients
_names = next_scale.__globals__  # where it looks INTERVAL up
_names["INTERVAL"] = 20
try:
    _got = [check.call(next_scale, ScaleState(2.0**20, good, 9.0), 512.0) for good in (12, 19)]
finally:
    _names["INTERVAL"] = 8
check.equal(
    _got, [ScaleState(2.0**20, 13, 512.0), ScaleState(2.0**22)], "an INTERVAL of 20, after 12 and 19 good steps"
)


def _right_scale(state, largest):
    return ScaleState(*_oracle(state.scale, state.good, state.seen, largest, _right_names["INTERVAL"]))


def _draw(chance, names):
    if chance.random() < 0.2:
        return f"INTERVAL = {chance.choice((2, 3, 5))}"
    lowest = names["now"].scale < 16
    return f"now = next_scale(now, {chance.choice(['0.0', '2.0', '512.0', '5000.0', '20000.0', 'math.inf'][: 6 - lowest])})"


_right_names = {"math": math, "ScaleState": ScaleState, "INTERVAL": 8, "next_scale": _right_scale}
_look = "the four rules, word by word; INTERVAL may be another at each call"
_begin = "now = ScaleState(2.0**20)"
random_programs("a scale", _begin, _names, _right_names, _draw, lambda _: ["now"], count=300, look=_look)
# Sentences of the contract, and the known-wrong answers that break them.
#= `next_scale(now, largest)`: what | scale_never_grows
#= Both are a `ScaleState` | seen_is_kept
#= These rules, the first | nan_counts_as_good
#= `largest` is inf or nan | nan_counts_as_good
#= The step was skipped | - says what had happened
#= The scale is divided by 16; | a_skip_halves
#= `good` and `seen` begin | seen_is_kept
#= If that makes it less than 1 | a_scale_below_1
#= `largest` is at least | the_edge_is_free
#= The scale is halved | halved_below_1
#= Otherwise the step was good | jumps_by_the_last_step
#= After rule 3 | exactly_the_interval cut_off_at_the_top
#= (If not even 1 | not_even_1_is_a_half
#= Look `INTERVAL` up | interval_in_figures
#= The state after a step | scale_never_grows
### END HIDDEN TESTS

# %% [markdown]
# ## 5 · Train (15 points)
#
# All parts are there. Put them together.
#
# **The contract.** `train(net, batch, steps, lr, momentum, max_norm)`
#
# - `net`: a `Bridge` in fp32, perhaps with gradients of something else. Measure its gradients on `batch(0)` and choose
# the first scale from them; then put it into fp16, in place, with `begin`. `batch(step)` gives the batch of a step, 0
# to `steps` - 1, the same again if asked again.
# - For each step, skipped or not, ask for the batch *first*, then forward, backward, `lean_step`, `next_scale`. (The
# checks count the bytes alive at the moment when you ask.)
# - returns a list of the losses, and a list of the steps that were skipped. A loss is a Python float, without the
# scale, as the forward pass of its step gave it. Skipped steps have one, too.
# - **Memory.** Between steps at most 8 bytes a parameter, 64 bytes more for each tensor, and the last batch. So
# nothing of the fp32 network may be left.
#
# **What is graded:** the loss and the skipped steps, against fp32 (8), bytes between steps (3), other seeds, and a load
# that jumps (4). Loss: the first is within 2 % of fp32's, the mean over the last 20 steps is within 5 % of fp32's.


# %% answer="q5"
def train(net, batch, steps, lr, momentum, max_norm):
    """Train in fp16 within 8 bytes a parameter. Returns losses and skipped steps."""
    ### BEGIN SOLUTION
    now = ScaleState(loss_scale(gradients_in_fp32(net, batch(0))))
    parameters, state = begin(net)
    losses, skipped = [], []
    for step in range(steps):
        data = batch(step)
        net.zero_grad(set_to_none=True)
        loss = loss_of(net, data)
        (loss * now.scale).backward()
        largest = lean_step(parameters, state, now.scale, lr, momentum, max_norm)
        now = next_scale(now, largest)
        losses.append(loss.item())
        del loss
        if largest == math.inf:
            skipped.append(step)
    return losses, skipped
    ### END SOLUTION


# %%
def train_in_fp32(net, batch, steps, lr, momentum, max_norm, bad=BAD):
    """The same in fp32, by PyTorch; it is told which steps to skip."""
    optimizer = torch.optim.SGD(net.parameters(), lr, momentum)
    losses = []
    for step in range(steps):
        loss = loss_of(net, batch(step))
        optimizer.zero_grad()
        loss.backward()
        losses.append(loss.item())
        if step not in bad:
            length = torch.stack([parameter.grad.norm() for parameter in net.parameters()]).norm()
            for parameter in net.parameters():
                parameter.grad *= (max_norm / length).clamp(max=1)
            optimizer.step()
    return losses


# %%
SETTINGS = {"steps": 70, "lr": 0.03 / UNIT**2, "momentum": 0.9, "max_norm": UNIT**2}


@functools.cache
def true_losses(seed, bad, momentum):
    """What `train_in_fp32` says; `bad` as pairs."""
    settings, bad = SETTINGS | {"momentum": momentum}, dict(bad)
    return train_in_fp32(Bridge(seed), lambda step: make_batch(step, seed, bad), **settings, bad=bad)


def good_losses(losses, bad=BAD):
    """In units of UNIT squared, without the bad steps."""
    return [loss / UNIT**2 for step, loss in enumerate(losses) if step not in bad]


# %%
in_fp32 = train_in_fp32(Bridge(0), make_batch, **SETTINGS)
in_fp16, skipped = train(Bridge(0), make_batch, **SETTINGS)
losses_against_first(
    {"fp32, 12 bytes": good_losses(in_fp32), "fp16, 8 bytes": good_losses(in_fp16)},
    caption="Two lines, one path: fp16 in 8 bytes a parameter, and fp32 with momentum in 12.",
    unit="UNIT squared",
).show()
print("skipped:", skipped)


# %%
def trained(net, batch, settings):
    """What train gives, once it is clear that these are two lists, with a float for each step in the first."""
    both = check.call(train, net, batch, **settings, may_change=("values", "grad", "random"))
    if not (isinstance(both, tuple | list) and len(both) == 2 and all(isinstance(one, list) for one in both)):
        check.that(False, "what train returns", expected="two lists, losses and skipped steps", came=repr(both)[:80])
    losses, skipped = both
    if len(losses) != settings["steps"]:
        check.equal(len(losses), settings["steps"], "the number of losses", look="the contract: who has a loss?")
    if kinds := {type(loss).__name__ for loss in losses} - {"float"}:
        check.that(False, "what the losses are", expected="Python floats", came=", ".join(kinds))
    return losses, skipped


# %% check="q5-values" points=8
def compare_with_fp32(seed, bad, momentum=0.9):
    settings = SETTINGS | {"momentum": momentum}

    def batch(step):
        return make_batch(step, seed, bad)

    truth, net = good_losses(true_losses(seed, tuple(bad.items()), momentum), bad), Bridge(seed)
    losses, skipped = trained(net, batch, settings)
    check.equal(skipped, sorted(bad), "the skipped steps", look="the first scale, and what a skipped step returns")
    kinds = {p.dtype for p in net.parameters()}
    check.that(kinds == {torch.float16}, "the network ends in fp16", came=str(kinds), look="begin, and who calls it")
    mine = good_losses(losses, bad)
    check.close(mine[0], truth[0], "the first loss", relative=0.02, look="which loss: before the step, and not scaled")
    what = f"the last 20 losses, seed {seed}"
    end, look = sum(truth[-20:]) / 20, "what train passes on, and questions 2 to 4"
    check.close(sum(mine[-20:]) / 20, end, what, relative=0.05, look=look)


compare_with_fp32(seed=1, bad=BAD)


# %%
def bytes_between_steps(seed):
    """A short run: losses, the last biases when batch(1) and batch(6) are asked for, and the most bytes then alive."""
    net, biases, alive = Bridge(seed), {}, []

    def batch(step):
        biases.setdefault(step, net.outward.bias.tolist())
        if step == 6:
            alive.append(check.held(record, "now") + record.before.total + outside())
        return make_batch(step, seed)

    with outside_torch() as outside, measure.memory(net, lines=True) as record:
        losses, _ = trained(net, batch, SETTINGS | {"steps": 8})
    return losses, biases.get(1), biases.get(6), max(alive, default=Bytes(0))


# %% check="q5-bytes" points=3
parameters = sum(parameter.numel() for parameter in Bridge(0).parameters())
tensors = len(list(Bridge(0).parameters()))
losses, before, after, alive = bytes_between_steps(0)
check.at_most(losses[7], losses[0], "the loss of step 7, against the first")
moved = None not in (before, after) and before != after
check.that(moved, "the net moves between batch(1) and batch(6)", look="for each step: ask, then take it")
print(f"{float(alive) / parameters:.2f} bytes a parameter")
look = "which tensors have a name when batch(step) is called? Is there an fp32 copy?"
last_batch = 128 * (16 + 4) * 4
check.at_most(alive, Bytes(8 * parameters + 64 * tensors + last_batch), "bytes alive between steps", look=look)

# %% check="q5-hidden" points=4
# Other data and settings, and targets that jump or are large.
### BEGIN HIDDEN TESTS
compare_with_fp32(seed=2, bad={5: "target", 6: "target", 47: "sensor"})
compare_with_fp32(seed=3, bad={}, momentum=0.8)


def _jumping(step):
    _x, _y = make_batch(step, 4, {})
    return _x, _y * (2.0**8 if step >= 12 else 1.0)


_, _skipped = trained(Bridge(4), _jumping, SETTINGS | {"steps": 30})
check.that(12 in _skipped and set(_skipped) <= {12, 13, 14}, "a jump costs a few steps, no more", came=f"{_skipped}")


def _heavy(step):
    _x, _y = make_batch(step, 5, {})
    return _x, _y * (2.0**30 if step == 0 else 1.0)


check.equal(trained(Bridge(5), _heavy, SETTINGS | {"steps": 2})[1], [], "a first scale for large gradients: skipped")


def _broken(step):
    return make_batch(step, 5, {step: "sensor"} if step else {})


_net = Bridge(5, width=24, layers=2)


def _train_in_vain():
    train(_net, _broken, **SETTINGS)


check.raises(ValueError, _train_in_vain, look="who ends what cannot go on")


def _calm(step):
    if step >= 25:
        raise IndexError(f"batch({step}), where the steps are 0 to 24")
    return make_batch(step, 6, {})


_settings = {"steps": 25, "lr": 0.1 / UNIT**2, "momentum": 0.5, "max_norm": 0.125 * UNIT**2}
_truth = train_in_fp32(Bridge(6, width=24, layers=2), _calm, **_settings, bad={})
_losses, _ = trained(Bridge(6, width=24, layers=2), _calm, _settings)
check.close(sum(_losses[-20:]), sum(_truth[-20:]), "the last 20 losses of a small net, lr and max_norm", relative=0.05)
_net = Bridge(6, width=24, layers=2)
for _parameter in _net.parameters():  # as another training has left them
    _parameter.data, _parameter.grad = across(_parameter.data), torch.ones_like(_parameter)
with Unfilled():
    trained(_net, _calm, _settings | {"steps": 3})
_after = loss_of(_net, _calm(3)).item()
check.close(_after, _losses[3], "the loss after three steps, against that of step 3", relative=0.01)
_nets = [Bridge(6, width=24, layers=2) for _ in range(3)]
_settings |= {"lr": 0.004 / UNIT**2}  # one step is less than a digit of fp16, 25 are not
train_in_fp32(_nets[1], _calm, **_settings, bad={})
trained(_nets[2], _calm, _settings)
_before, _truth, _got = (torch.cat([p.data.double().flatten() for p in net.parameters()]) for net in _nets)
check.close((_got - _before).norm(), (_truth - _before).norm(), "how far small steps lead", relative=0.1)
# Sentences of the contract, and the known-wrong answers that break them.
#= `net`: a `Bridge` | an_fp32_twin
#= Measure its gradients | scale_of_the_second_batch two_to_the_sixteen first_scale_from_nowhere
#= `batch(step)` gives | all_batches_first
#= For each step | all_batches_first its_own_way_down
#= (The checks count | - says how it is checked
#= returns a list of the losses | counts_the_skipped
#= A loss is a Python float | scaled_losses loss_after_the_step
#= Skipped steps have one | losses_of_good_steps_only
#= **Memory | all_batches_first
#= Between steps | all_batches_first
#= So nothing of the fp32 | an_fp32_twin
#= Train in fp16 | an_fp32_twin
#= Returns losses | counts_the_skipped
### END HIDDEN TESTS

# %% [markdown]
# **What you have now.** A network that fp16 alone does not move, trained as in fp32, on half of the bytes of the
# usual recipe: $2 + 2 + 2 + 2$. Nothing of it was approximate where it counts: the master weight is exact in two
# halves, and the momentum has a scale of its own. What would Adam cost in this way? Count: its $v$ is a mean of
# *squares*. How many powers of two does fp16 have, and how many would that need? (Lesson 05 stores the root.)
