# %% [markdown]
# # 01 · Float formats
#
# **The question:** what can 32, 16, 8 or 4 bits hold, and what gets lost?
#
# | | |
# |---|---|
# | Time | first sitting 50 minutes, second sitting 25; about a minute of both together is computing on 2 CPU cores (three on CPUs that emulate 16 bits) |
# | A GPU | changes nothing here: a number has the same bits everywhere |
# | Opens | `numerics/formats.py`, `numerics/rounding.py`, `numerics/quantize.py` |
#
# You train a model in bf16 ("brain float": 16 bits for a number, where the usual fp32 has 32). For an hour the loss
# falls, then it stands still, without an error message. You save the weights, train for another ten minutes, save again,
# and compare the two files: nearly all bytes are the same. The optimizer computed an update for every weight, at every
# step, and added them all. And the weights did not move.
#
# That hour fits in one line, the last one of the next cell.

# %%
import itertools
import math

import torch

from course_kit.compare import compare
from course_kit.notebook import ask, your_turn
from course_kit.units import Bytes, Ratio
from course_lib.numerics import BF16, FP8_E4M3FN, FP8_E5M2, FP16, TORCH_DTYPES
from course_pages.lesson01 import pictures as figures
from course_pages.lesson01 import turns
from course_pages.lesson01.explorer import BitExplorer

torch.tensor(256.0, dtype=torch.bfloat16) + 1

# %% [markdown]
# 256 + 1 = 256. By the end of this page you will know why, for which updates, and three ways out.
#
# ## 1 · A number is three fields
#
# You have sixteen bits for a number between the size of an atom and that of a galaxy. So you write it as a physicist would,
# with two in the place of ten: a sign, a power, and a few digits.
#
# Below is 0.1 in nine formats. Orange is the **sign**, blue the **exponent** (which power of two), green the
# **fraction** (the digits). The grey line under the bits says which value is really stored. (A name like e5m2 counts
# the bits: 5 of exponent, 2 of fraction. tf32 is what a GPU's units for matrix products keep of an fp32 number.)

# %%
BitExplorer(value=0.1).show(
    caption="0.1 fits in none of them exactly. Formats with the same blue field reach about equally far; each green bit more "
    "halves the largest possible error."
)

# %% [markdown]
# Say beforehand what will happen. (If nothing reacts to your clicks, run the cell once.)
#
# 1. In the bf16 line, click the rightmost **blue** bit. By what factor does the value change?
# 2. Type **256**, then **257**. Which lines store another number?
# 3. Type **65504**, then **65520**. What happens to fp16, and why not to bf16?
#
# <details><summary>Answers</summary>
#
# 1. By 2: it is the last bit of the exponent. (It was 1, so the value halves.)
# 2. fp32, tf32 and fp16. bf16 and fp8 have too few green bits for a ninth binary digit, and the last three end before 256.
# 3. It becomes infinite: 65,504 is its largest number, and 65,520 lies half way to a next one, which it does not have
# (section 3 says why half way is enough). bf16 has as many blue bits as fp32.
#
# </details>
#
# The rule behind it: read the two fields as whole numbers, $e$ from the $E$ exponent bits and $f$ from the $F$
# fraction bits. A constant, the **bias** $b = 2^{E-1} - 1$, lets the power of two be negative:
#
# $$\text{value} = \pm\, 2^{\,e - b} \left(1 + \frac{f}{2^F}\right) \;\text{ if } e > 0, \qquad
# \pm\, 2^{\,1 - b}\, \frac{f}{2^F} \;\text{ if } e = 0.$$
#
# Numbers of the second kind do without the leading 1, so that they can fade out to zero. They are called
# **subnormal**. And where all bits of $e$ are 1, the upper five formats mean infinity ($f = 0$) or nan, "not a number"
# (IEEE 754-2019, §3.4). To the lower four these are numbers, too (e4m3fn has one nan).
#
# **Your turn.** All 65,536 patterns of two formats are tried, and PyTorch is the judge. (A solution lies folded below.)


# %%
@your_turn(turns.check_decode, look="`pattern % 2**F` is f, and `pattern // 2**F % 2**E` is e. What is left is the sign. An e of 0, and one of all ones, have rules of their own.")
def decode(pattern, E, F):
    """The value of a pattern (a whole number: sign, E exponent bits, F fraction bits); -0.0, math.inf and math.nan, too."""
    ...


# %% tags=["solution"]
# One solution. Open it when yours passes, or when you are stuck.
@decode.solution
def decode(pattern, E, F):
    bias = 2 ** (E - 1) - 1
    f, e = pattern % 2**F, pattern // 2**F % 2**E
    sign = -1.0 if pattern // 2 ** (E + F) else 1.0
    if e == 2**E - 1:
        return sign * math.inf if f == 0 else math.nan
    if e == 0:
        return sign * 2.0 ** (1 - bias) * (f / 2**F)
    return sign * 2.0 ** (e - bias) * (1 + f / 2**F)


# %% [markdown]
# So count the numbers. fp16 ("half precision") has 5 exponent bits and 10 fraction bits, and $2^{16} =
# 65{,}536$ patterns. How many different, finite numbers are among them?

# %%
guess_count = ask("How many different finite numbers does fp16 have?")

# %%
every_fp16 = [decode(pattern, E=5, F=10) for pattern in range(2**16)]

compare(
    guess=guess_count,
    predicted=2 * (2**5 - 1) * 2**10 - 1,
    measured=len({value for value in every_fp16 if math.isfinite(value)}),
    name="numbers in fp16",
)

# %% [markdown]
# The formula: one of the $2^E$ exponents is taken by infinity and nan. The others carry $2^F$ fractions each, with
# two signs; and $+0$ and $-0$ are two patterns for one number. That makes $2\,(2^E - 1)\,2^F - 1$.
#
# ## 2 · Range or precision
#
# The largest number has the largest power of two that is not taken, $2^b$, and all fraction bits set: $(2 -
# 2^{-F})\,2^b$. Three more numbers describe a format: the smallest **normal** one, $2^{1-b}$; the smallest
# **subnormal** one, $2^{1-b-F}$; and **eps** $= 2^{-F}$, the step from 1 to the next number. PyTorch's word on it is
# `torch.finfo`. fp16 ends at 65,504. Where does e5m2 end, with the same five exponent bits, but only two fraction bits?

# %%
guess_reach = ask("What is the largest number in e5m2?")

# %%
ROWS = ("largest", "smallest normal", "smallest subnormal", "eps")


def limits(name, E, F):
    b = 2 ** (E - 1) - 1
    values = ((2 - 2.0**-F) * 2.0**b, 2.0 ** (1 - b), 2.0 ** (1 - b - F), 2.0**-F)
    return {f"{name} {row}": Ratio(value) for row, value in zip(ROWS, values)}


def torch_limits(name, integers):
    info, smallest = torch.finfo(TORCH_DTYPES[name]), torch.tensor(1, dtype=integers).view(TORCH_DTYPES[name])
    values = (info.max, info.smallest_normal, smallest.item(), info.eps)  # the smallest has the pattern 0…01
    return {f"{name} {row}": Ratio(value) for row, value in zip(ROWS, values)}


theirs = torch_limits("fp16", torch.int16) | torch_limits("bf16", torch.int16) | torch_limits("fp8_e5m2", torch.uint8)
ours = limits("fp16", 5, 10) | limits("bf16", 8, 7) | limits("fp8_e5m2", 5, 2)
compare(guess={"fp8_e5m2 largest": guess_reach}, predicted=ours, measured=theirs)

# %% [markdown]
# e5m2 ends a little before fp16: the power is the same, and the factor before it is 1.75 instead of nearly 2. bf16 *is*
# fp32 with the last 16 bits cut off: the same blue bar below, far fewer digits. fp16 bought digits and paid with reach.
#
# Where do the numbers lie? Narrow formats can be drawn.

# %%
figures.range_and_precision(
    caption="Exponent bits buy width: bf16 reaches as far as fp32. Fraction bits buy precision (eps, on the right): "
    "bf16's eps is eight times fp16's. The pale end of a bar is where the subnormals are, and precision fades."
).show()
figures.number_lines(
    caption="Each tick is a number. Between any two powers of two (grey) a format has equally many, so the distance "
    "doubles at each (which a logarithmic axis hides). Left of its orange mark, among the subnormals, it halves no further, and ticks run out."
)

# %% [markdown]
# Compare the two fp8 lines: e4m3fn, with one fraction bit more, has twice as many ticks between two powers of two. e5m2's
# go on to the left, past the picture's edge.
#
# ## 3 · Rounding
#
# Between two ticks lies everything else, and it has to go somewhere. The distance between ticks at $x$ is the
# **spacing**:
#
# $$\text{spacing}(x) = 2^{\,\max(\lfloor \log_2 |x| \rfloor,\; 1 - b)\, -\, F}$$
#
# (The brackets round down.) To round, count the spacings in $x$ and make the count whole. On a tie take the **even**
# count, so that ties do not all drift the same way (IEEE 754-2019, §4.3.1; Python's `round` does it too).
#
# In bf16 ($F = 7$) the spacing between 256 and 512 is $2^{8-7} = 2$. 257 became 256. What, then, is 259?


# %%
def spacing(x, E, F):
    exponent = math.frexp(x)[1] - 1 if x else -math.inf  # log2 of |x|, rounded down
    return 2.0 ** (max(exponent, 2 - 2 ** (E - 1)) - F)


# %% [markdown]
# **Your turn.** Round.

# %%
@your_turn(turns.check_round, look="How many spacings are in x? `round` makes that whole, and even on a tie.")
def round_nearest(x, E, F):
    """The number with E exponent and F fraction bits that is nearest to x; on a tie, the even one. No overflow."""
    ...


# %% tags=["solution"]
@round_nearest.solution
def round_nearest(x, E, F):
    step = spacing(x, E, F)
    return round(x / step) * step


# %% [markdown]
# Their *patterns* need one more idea. Read as whole numbers, the patterns of positive numbers are *in order*: the next pattern is the
# next number, even across a power of two, where the fraction overflows into the exponent. So a pattern is a count: the
# spacings in $x$, plus $2^F$ for each time that the spacing has doubled. (0.1 in fp16 has 1,638 spacings of $2^{-14}$, ten
# doublings above the smallest, $2^{-24}$: it is pattern 11,878.)


# %%
def encode(x, E, F):
    step, smallest = spacing(x, E, F), spacing(0.0, E, F)
    binades = round(math.log2(step / smallest))  # how often the spacing has doubled
    magnitude = binades * 2**F + round(abs(x) / step)
    return magnitude + (2 ** (E + F) if math.copysign(1, x) < 0 else 0)


print({x: round_nearest(x, E=8, F=7) for x in (257.0, 258.0, 259.0)})
for x in (0.1, 65_504.0, 65_519.9, 65_520.0):
    pattern = encode(x, E=5, F=10)
    print(f"{x:>9} → {pattern:016b} → {decode(pattern, E=5, F=10)}")

# %% [markdown]
# 257 lies exactly between 256 and 258, that is, between 128 and 129 spacings. Even wins: 256. So the addition at the top of
# this page was right, and its result was rounded away. 259 goes *up* for the same reason.
#
# Now 65,520. `encode` knows nothing of infinity. But 65,520 lies half a spacing above the largest number, the tie goes to
# the even count, and the pattern after the largest number *is* infinity. Overflow is rounding.
#
# ## 4 · Too large, too small
#
# An activation of 300 is nothing unusual, and a norm needs its square.

# %%
for dtype in (torch.float16, torch.bfloat16):
    activations = torch.tensor([300.0, 301.0], dtype=dtype)
    print(f"{str(dtype)[6:]:>9} {activations.tolist()} squared {activations.square().tolist()}")

# %% [markdown]
# fp16 overflowed: 90,000 lies beyond 65,504. One `inf`, and soon the loss is `nan`. bf16 did not mind. But look again: it
# had lost the difference between the two numbers before anything was squared.
#
# And small? A gradient of $10^{-8}$ is less than half of fp16's smallest subnormal, $2^{-24}$, and is rounded to 0;
# bf16 is the finer of the two there. Where do they change places? Down there fp16's spacing is $2^{-24}$. bf16 has
# that spacing where its exponent is $-24 + 7$. So from $2^{-17}$ upwards fp16 should be at least as fine.

# %%
figures.relative_error(
    [FP16, BF16, FP8_E4M3FN, FP8_E5M2],
    caption="Lower is better. A line is flat where a format has its full precision, an error of half of eps at most; it climbs to the left where "
    "subnormals run out of bits, and ends at the right where the format overflows.",
).show()


def worst_error(dtype, k):
    x = 2.0**k * (1 + torch.arange(10_000) / 10_000)
    return (x.to(dtype).float() - x).abs().max()


as_fine = [k for k in range(-24, 15) if worst_error(torch.float16, k) <= worst_error(torch.bfloat16, k)]
compare(predicted=Ratio(2.0**-17), measured=Ratio(2.0 ** min(as_fine)), name="fp16 is as fine as bf16 from")

# %% [markdown]
# That is where the blue line crosses the orange one. Gradients often lie to its left. So fp16 training multiplies the
# loss by a large number first, and bf16 training does not bother (lesson 04).
#
# ## 5 · Too far apart
#
# This one ate the hour of training. Add 0.0001 to 1.0, ten thousand times. On paper the result is 2, and this check
# should pass:


# %% tags=["raises-exception"]
def add_many(start, update, times, dtype):
    value, update = torch.tensor(start, dtype=dtype), torch.tensor(update, dtype=dtype)
    values = [value.item()]
    for _ in range(times):
        value = value + update
        values.append(value.item())
    return values


nearest = add_many(1.0, 1e-4, 10_000, torch.bfloat16)
compare(predicted=Ratio(2.0), measured=Ratio(nearest[-1]), tolerance=0.01, name="1 + 10,000 × 0.0001")

# %% [markdown]
# It did not: *nothing* was added. At 1 the spacing of bf16 is $2^{-7} \approx 0.0078$. The update is less than half of it,
# so each sum rounds to 1. This is **swamping**: an update $u$ is lost on a weight $w$ when
#
# $$|u| < \tfrac{1}{2}\,\text{spacing}(w),$$
#
# and moves it when it is more than that. (On a tie, evenness decides. Down from a power of two half as much is enough.)
#
# What if we start at 0, where the spacing is tiny? It grows with the sum. The rule says where
# it ends.

# %%
guess_stop = ask("0 + 0.0001 + 0.0001 + …, ten thousand times, in bf16: where does the sum stop?")

# %%
dtypes = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
sums = {name: add_many(0.0, 1e-4, 10_000, dtype) for name, dtype in dtypes.items()}
stop = next(2.0**k for k in range(-20, 1) if spacing(2.0**k, E=8, F=7) / 2 > 1e-4)

figures.running_values(
    sums,
    first=400,
    caption="Each 16-bit sum hits a ceiling, where half its spacing has outgrown the addend. On the right the way there: "
    "bf16 bends only at powers of two (dotted; not at each), because between two of them every addition is rounded alike.",
).show()
compare(guess=guess_stop, predicted=Ratio(stop), measured=Ratio(sums["bf16"][-1]), name="bf16 stops at")

# %% [markdown]
# **In another order.** If sums are rounded, the order of the additions matters. Four processes that train together bring
# 256, 1, 1 and 1, in bf16. Their sum is 259. How many results do you get in the $4! = 24$ orders? (A 1 that meets 256 alone
# is swallowed. Two that met each other before are not.)

# %%
totals = set()
for order in itertools.permutations(torch.tensor([256.0, 1.0, 1.0, 1.0], dtype=torch.bfloat16)):
    total = order[0]
    for number in order[1:]:
        total = total + number
    totals.add(total.item())

sorted(totals)

# %% [markdown]
# Two, and neither is 259: that is a tie, and it goes up to 260. Floating-point addition is not associative. That is
# why this course compares sums of different order within a stated tolerance, never bit by bit.
#
# ## 6 · `param += update`, lost and rescued
#
# Training is many small additions to a weight. How many weights does swamping hit? Those of a fresh GPT come from a
# normal distribution with standard deviation $\sigma = 0.02$. Gopher, of 280 billion parameters, had a learning rate of at
# most $4 \cdot 10^{-5}$ (Rae et al. 2021, Table 1), and Adam, the optimizer, moves each weight by about that.

# %%
guess_ignoring = ask("How many per cent of the weights ignore an update of 0.00004 in bf16?")

# %%
weights = (0.02 * torch.randn(1_000_000, generator=torch.Generator().manual_seed(0))).bfloat16()
unmoved = (weights + torch.tensor(4e-5).bfloat16()) == weights

compare(
    guess=guess_ignoring,
    predicted=Ratio(100 * math.erfc(2**-6 / (0.02 * math.sqrt(2)))),
    measured=Ratio(100 * unmoved.double().mean().item()),
    tolerance=0.02,
    name="per cent that ignore it",
)

# %% [markdown]
# Nearly half of the model stands still, the larger weights first, and nothing reports an error. The formula: a weight
# ignores the update where the spacing is more than $8 \cdot 10^{-5}$. The first such spacing is $2^{-13}$, and bf16 has it
# from $|w| = 2^{-13+7} = 2^{-6}$ upwards. Beyond that lies the share $\operatorname{erfc}(2^{-6} / (\sigma \sqrt 2))$ of a
# normal distribution.
#
# One rescue is to pay: keep an fp32 copy of each weight, 4 bytes more. Two others keep 16-bit numbers.
#
# **Stochastic rounding.** If $x$ lies a quarter of the way between two neighbours, round it up with probability one
# quarter. Each result is worse than the nearest. But the *expected* result is $x$ itself (Gupta et al. 2015, §3.1).
#
# We let 1,000 weights start at 1 and give each the ten thousand updates $u$ of 0.0001. (Each sum has 32 bits until it is
# rounded.) A step moves a weight by a whole spacing $s$ with probability $u/s$, or not at all: on average by $u$, with a
# variance of $u\,(s - u)$. So their mean should end at 2, and $n$ steps should spread them by $\sqrt{n\,u\,(s - u)}$.


# %%
def round_stochastic(x, generator):
    step = BF16.spacing(x)
    below = (x / step).floor()
    up = torch.rand(x.shape, generator=generator) < x / step - below
    return (below + up) * step


coin = torch.Generator().manual_seed(0)
walkers, one_walker = torch.ones(1000), [1.0]
for _ in range(10_000):
    walkers = round_stochastic(walkers + 1e-4, coin)
    one_walker.append(walkers[0].item())

compare(
    predicted={"mean": Ratio(2.0), "spread": Ratio(math.sqrt(10_000 * 1e-4 * (2**-7 - 1e-4)))},
    measured={"mean": Ratio(walkers.mean().item()), "spread": Ratio(walkers.std().item())},
    tolerance=0.05,
)

# %% [markdown]
# The mean arrives. A single weight is off by about the spread: the price is noise.
#
# **Kahan's trick** needs no luck. Remember what you lost (Kahan 1965). A second bf16 number for each weight holds what it
# is still *owed*. Add the debt to the next update, and see afterwards how much of it arrived.
#
# **Your turn.** Everything stays in bf16, so the debt is rounded, too; 2 % are allowed.


# %%
@your_turn(turns.check_kahan, look="What arrived is new weight minus weight. What should have arrived?")
def add_kahan(weight, owed, update):
    """The new weight, and what it is still owed then. All are bf16 tensors."""
    ...


# %% tags=["solution"]
@add_kahan.solution
def add_kahan(weight, owed, update):
    update = update + owed
    new_weight = weight + update
    return new_weight, update - (new_weight - weight)


# %%
kahan = turns.ten_thousand(add_kahan)
figures.running_values(
    {"fp32": add_many(1.0, 1e-4, 10_000, torch.float32), "nearest": nearest, "Kahan": kahan, "stochastic": one_walker},
    caption="Rounded to nearest, the weight never leaves 1. Kahan's staircase follows the fp32 line and ends within 2 % "
    "of it: the debt is a bf16 number, too, and is rounded. The stochastic walk wanders around the line.",
).show()
compare(predicted=Ratio(2.0), measured=Ratio(kahan[-1]), tolerance=0.02, name="Kahan, all in bf16")

# %% [markdown]
# That is the story. A format is a range and a spacing; what is smaller than half the spacing is lost; and what is lost
# can be paid for, diced for, or remembered.

# %% [markdown]
# ## Second sitting
#
# You may stop here. On another day, run all cells above before you go on. Below: a change to Kahan's trick, formats
# without an exponent, the library's rounding against PyTorch's casts, a printed mistake, and a training run in four recipes.
#
# **Change one thing** above, in section 6. In a new cell, copy `add_kahan`, yours or the folded one, under another name, let
# the debt be `update - new_weight + weight`, and print `turns.ten_thousand(…)[-1]` of it. On paper that is the same. Which of
# the four lines in the last picture do you get, and which operation is to blame? Decide first.
#
# <details><summary>Answer</summary>
#
# The flat one. `update - new_weight` comes first, and there the weight swamps the update. So the debt is always 0.
#
# </details>
#
# ## 7 · Without an exponent: int8, int4, 1 bit
#
# Give *all* bits to one evenly spaced grid and you have an integer. A **scale** $s$ stretches the grid over the
# tensor: $s = \max|x| / 127$ for the whole numbers from $-127$ to $127$, and $x \approx s \cdot
# \operatorname{round}(x / s)$ (Jacob et al. 2018, §2.1). The error is anywhere between $-s/2$ and $s/2$; the root
# mean square of such an error is $s / \sqrt{12}$.

# %%
from course_kit.notebook import self_check, show
from course_lib.model import text
from course_lib.model.gpt import GPT, GPTConfig
from course_lib.numerics import FORMATS, quantize, rounding
from course_pages.shared.losses import losses_and_distances

normal = torch.randn(256, 1024, generator=torch.Generator().manual_seed(1))
scale = normal.abs().max() / 127
int8 = (normal / scale).round().to(torch.int8)

compare(
    predicted=Ratio(scale.item() / math.sqrt(12)),
    measured=Ratio(quantize.rms_error(normal, scale * int8)),
    tolerance=0.02,
    name="rms error of int8",
)

# %% [markdown]
# A grid has a weakness that a float has not. Let *one* row of the matrix be fifty times larger. The scale must cover it,
# and all other rows share what is left. With int4, the whole numbers from $-7$ to $7$, what remains of them? First with one
# scale for everything, then with one for each row (**per channel**), which is yours to write.
#
# **Your turn.**

# %%
@your_turn(turns.check_rows, look="Each row's largest size becomes the largest whole number. `keepdim=True` keeps the scales beside their rows.")
def quantize_rows(x, bits):
    """(rows, columns) → the same shape: whole numbers from -(2^(bits-1) - 1) to 2^(bits-1) - 1, times a scale for each row."""
    ...


# %% tags=["solution"]
@quantize_rows.solution
def quantize_rows(x, bits):
    scale = x.abs().amax(dim=1, keepdim=True) / (2 ** (bits - 1) - 1)
    return (x / scale).round() * scale


# %%
uneven = normal.clone()
uneven[0] *= 50
ways = {"1 scale": quantize.quantize(uneven, bits=4).dequantize(), "256 scales": quantize_rows(uneven, bits=4)}
for name, kept in ways.items():
    print(f"{name:>10}: {(kept[1:] == 0).double().mean().item():.0%} of the other rows became 0")

# %% [markdown]
# With one scale, all but the large row is gone. With 256 scales, 1 KiB more, the other rows are back; what is still 0 is
# what int4 itself costs.
#
# How low can one go? To 1 bit: the **sign** of each number, and one scale, the mean magnitude. For normally
# distributed numbers the error is $\sqrt{1 - 2/\pi}$ standard deviations (from Rastegari et al. 2016, §3.1). And who wins
# at 8 bits, int8 or fp8? We scale every format so that the largest number fits, and measure signal to noise in decibels;
# 6 dB more mean half the error.

# %%
signs = quantize.quantize_sign(normal)
stored = {"1 bit": signs.dequantize()}
stored |= {f"int{bits}": quantize.quantize(normal, bits).dequantize() for bits in (4, 8)}
for fmt in [f for f in FORMATS if f.bits <= 8]:
    scale = normal.abs().max() / fmt.max
    stored[fmt.name] = fmt.round(normal / scale) * scale

bits = {"1 bit": 1, "int4": 4, "int8": 8, **{fmt.name: fmt.bits for fmt in [f for f in FORMATS if f.bits <= 8]}}
figures.bits_against_error(
    {name: (bits[name], quantize.signal_to_noise_db(normal, x)) for name, x in stored.items()},
    caption="At 8 bits the integer (square) beats both floats (circles): these numbers are all of one size, and "
    "range is wasted on them (e5m2 is no better than a format of 6 bits with as many of fraction). At 4 bits the float wins.",
).show()
loss = Ratio(quantize.rms_error(normal, stored["1 bit"]) / normal.std().item())
compare(predicted=Ratio(math.sqrt(1 - 2 / math.pi)), measured=loss, tolerance=0.01, name="relative error of 1 bit")

# %% [markdown]
# Why the float, at 4 bits? The largest of so many normal numbers stretches int4's grid until most of them share its few
# lines around 0, and there fp4's lie closer. There is no best format, there is one for each tensor: the more the sizes in
# it differ, the more an exponent is worth.
#
# ## 8 · PyTorch's own
#
# PyTorch casts to four of these formats. Does the library's `FloatFormat` agree? Of *patterns* there are so few
# that we try them all: do both read the same value, and does that lead back to the same pattern? For *roundings*, cast
# what fits of a million random fp32 numbers.
#
# `FloatFormat` rounds as you did. Printed below, `binade` finds the power of two under each number of a tensor: its `&` keeps
# the blue bits, so $2^{e-b}$ remains. And `round_nearest` is your line.

# %%
display(show(rounding.binade, docstring=False))
show(rounding.round_nearest, docstring=False)


# %%
def patterns_that_agree(fmt):
    integers, dtype = {16: torch.int16, 8: torch.uint8}[fmt.bits], TORCH_DTYPES[fmt.name]
    patterns = torch.arange(2**fmt.bits)
    theirs, ours = patterns.to(integers).view(dtype).double(), fmt.decode(patterns)
    back = torch.where(ours.isnan(), patterns, fmt.encode(ours))  # there are many nans, and one is enough
    there = (ours == theirs) | (ours.isnan() & theirs.isnan())
    return int((there & (back == patterns)).sum())


bits = torch.randint(-(2**31), 2**31 - 1, (1_000_000,), generator=torch.Generator().manual_seed(0))
anything = bits.int().view(torch.float32)
tried, equal = {}, {}
for fmt in (FP16, BF16, FP8_E5M2, FP8_E4M3FN):
    tried[f"{fmt.name}, patterns"], equal[f"{fmt.name}, patterns"] = 2**fmt.bits, patterns_that_agree(fmt)
    x = anything[anything.abs() <= fmt.max]
    tried[f"{fmt.name}, roundings"] = x.numel()
    equal[f"{fmt.name}, roundings"] = int((fmt.round(x) == x.to(TORCH_DTYPES[fmt.name]).float()).sum())

compare(predicted=tried, measured=equal, columns=("tried", "equal"))

# %% [markdown]
# All of them. There is one choice to know about, and one trap. The name of e4m3fn says that it breaks a rule of IEEE's: it
# has no infinity and a single nan, and so reaches 448 where the rule would end at 240 (Micikevicius et al. 2022, Table 1).
# Where does a number go that is too large for it? To the largest number or to nan: its standard, OFP8, describes both.
# Which does your PyTorch?
#
# The trap is a float64 a hair above the middle between 1 and the next bf16 number. Where should it go?

# %%
too_large = torch.tensor([400.0, 1e3, 1e6])
for fmt in (FP8_E4M3FN, FP8_E5M2):
    print(fmt, fmt.round(too_large).tolist(), "torch:", too_large.to(TORCH_DTYPES[fmt.name]).tolist())

trap = torch.tensor(1 + BF16.eps / 2 + 2.0**-40, dtype=torch.float64)
print("the trap:", BF16.round(trap).item(), "torch:", trap.bfloat16().item(), "twice:", BF16.round(trap.float()).item())

# %% [markdown]
# Up; and PyTorch sends it down, because it casts by way of fp32. The first rounding drops the hair; the second meets an
# exact tie, and even wins. Two correct roundings make a wrong one.
#
# ## 9 · What a bit costs: find the mistake
#
# GPT-3 has 175 billion parameters, and in fp16 each takes 2 bytes. A lecture (CS 329S, lecture 5, here at second hand)
# prints that 1 billion parameters in fp16 are **1.86 GB**, and 175 billion are **316.2 GB**. At least one of these is
# wrong. (PyTorch knows the size of a tensor without making it, on the device called `meta`.)

# %%
guess_size = ask("How many GB are 175 billion parameters in fp16?", unit="GB")


# %%
def model_bytes(parameters, dtype):
    return Bytes(torch.empty(parameters, dtype=dtype, device="meta").nbytes)


for dtype in (torch.float32, torch.float16, torch.float8_e4m3fn):
    size = model_bytes(1_000_000_000, dtype)
    print(f"1 billion in {str(dtype)[6:]:<14}{size:.2GB} = {size:.2GiB}")

measured = model_bytes(175_000_000_000, torch.float16)
compare(guess=guess_size, predicted=Bytes(2 * 175 * 10**9), measured=measured, unit="GB", name="175 billion in fp16")

# %% [markdown]
# There is the 1.86. It counts GiB ($2^{30}$ bytes) and was printed as GB ($10^9$ bytes), 7 % apart. That does not
# explain 316.2, which is neither; the first exercise does.
#
# ## 10 · At scale: Gopher's four recipes
#
# Gopher, of 280 billion parameters, kept its weights in bf16 and rounded each update stochastically. Afterwards its
# team compared four recipes: fp32; bf16 rounded to nearest; bf16 with random rounding; bf16 with an fp32 copy of the
# weights in the optimizer's state (Rae et al. 2021, §3 and appendix C). Their price, in bytes for each parameter,
# gradients not counted, of which Adam's two fp32 numbers take 8: 12, 10, 10 and 14.
#
# We train all four, on a GPT of 0.1 million parameters. The model computes in `dtype`. The recipes that round differ in one
# more place, how a weight is *stored* between two steps: `store` puts it on bf16's grid. (The bytes are simulated: `weights`
# are fp32 tensors in all four.) The learning rate starts at $5 \cdot 10^{-4}$,
# where few updates are lost, and falls to 0. By how much will the second recipe miss the loss of the first?

# %%
guess_recipe = ask("Plain bf16 against fp32: how many per cent higher is the loss at the end?")


# %%
def train(dtype, store, seed=0, steps=200):
    model = GPT(GPTConfig(layers=2, width=64, heads=4, vocab_size=256, context=64), seed=seed, dtype=dtype)
    weights = [parameter.detach().float().clone() for parameter in model.parameters()]
    start = torch.nn.utils.parameters_to_vector(weights)
    adam = torch.optim.Adam(weights, lr=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(adam, steps)
    stories = text.stories(seed=0)
    for step in range(steps):
        loss = model(*stories.batch(seed=seed, step=step, rank=0, batch_size=4, context=64))
        loss.backward()
        for weight, parameter in zip(weights, model.parameters(), strict=True):
            weight.grad, parameter.grad = parameter.grad.float(), None
        adam.step()
        schedule.step()
        for weight, parameter in zip(weights, model.parameters(), strict=True):
            parameter.data.copy_(weight.copy_(store(weight)))
        yield loss.item(), (torch.nn.utils.parameters_to_vector(weights) - start).norm().item()


# %%
coin = torch.Generator().manual_seed(0)
recipes = {
    "fp32": (torch.float32, lambda weight: weight),
    "bf16": (torch.bfloat16, BF16.round),
    "bf16, random rounding": (torch.bfloat16, lambda weight: BF16.round(weight, "stochastic", coin)),
    "bf16 + fp32 copy": (torch.bfloat16, lambda weight: weight),
}
matrices = (torch.bfloat16, lambda weight: BF16.round(weight) if weight.dim() == 2 else weight)

# %% tags=["varies"]
runs = {name: list(train(*recipe)) for name, recipe in {**recipes, "bf16, matrices": matrices}.items()}
losses, distances = ({name: [point[i] for point in run] for name, run in runs.items()} for i in (0, 1))
losses_and_distances(
    losses,
    distances,
    caption="Left: two recipes stay on the line of fp32. Plain bf16 rises above it twice. The early rise is absent where "
    "only matrices are rounded. So it comes from the rest, the biases and the norms' gains. The late one comes "
    "with the falling learning rate: updates sink below half a spacing, and (right) both models rounded to nearest travel less far.",
)

# %% tags=["varies"]
def ends(losses):
    return {name: Ratio(sum(values[-20:]) / 20) for name, values in losses.items() if name in recipes}


final = ends(losses)
print(f"plain bf16 ends {100 * (final['bf16'] / final['fp32'] - 1):.1f} per cent above fp32 (your guess: {guess_recipe.said})")
for seed in (1, 2):  # other weights, other text
    other = ends({name: [loss for loss, _ in train(*recipe, seed)] for name, recipe in recipes.items()})
    print(f"seed {seed}, per cent above fp32:",
          ", ".join(f"{100 * (other[name] / other['fp32'] - 1):+.1f} ({name})" for name in list(recipes)[1:]))  # fmt: skip
kept = {name: final[name] for name in list(recipes)[2:]}
display(compare(predicted=dict.fromkeys(kept, final["fp32"]), measured=kept, tolerance=0.01, columns=("fp32", "recipe")))

print(f"Gopher, at 10 bytes a parameter: {Bytes(280_000_000_000 * (2 + 8)):.2TiB}; its paper says 2.5 TiB")

# %% [markdown]
# Each of the updates that plain bf16 lost was small. Together they raised the loss, from each of the three seeds. For the
# gains, at 1, half a spacing is $2^{-8}$ upwards and $2^{-9}$ downwards, more than any update here, so they never moved.
#
# The last printed line is Gopher: 10 bytes for each of 280 billion parameters (§3), where a core had 16 GiB. Its team
# found later that random rounding did not quite reach fp32, and that the recipe of 14 bytes could not be told from it
# (appendix C). From three seeds at our size you see no difference. The copy is cheap if it is *sharded*: each of
# many devices keeps only its part. Lesson 10 does that.
#
# ## What to keep
#
# | question | answer |
# |---|---|
# | What is in the bits? | $\pm\,2^{e-b}(1 + f/2^F)$; patterns of positive numbers are in the numbers' order |
# | How far does it reach? | $(2 - 2^{-F})\,2^b$: fp16 ends at 65,504, bf16 where fp32 ends |
# | How fine is it? | the spacing; relative error at most $2^{-F-1}$ for normal numbers |
# | When is an update lost? | when it is less than half the spacing of the weight |
# | What saves it? | an fp32 copy (4 bytes), Kahan's debt (2 bytes), stochastic rounding (no bytes, noise) |
# | Without an exponent? | one scale for each channel, rms error $s/\sqrt{12}$ |
# | How large is a model? | parameters · bits / 8, *with its unit* |
#
# ## Three exercises
#
# **1.** The lecture printed 1.86 GB for one billion parameters and 316.2 GB for 175 billion. How many billion did it
# really multiply by?
#
# **2.** You count steps in an fp16 variable: 1, 2, 3, … Which whole number is the first that it cannot hold?
#
# **3.** You design an 8-bit format with the rules of IEEE. A gradient of $10^{-6}$ must not be rounded to 0, and you want
# as many fraction bits as possible. How many exponent bits does it need?

# %%
answer_1 = None  # billions

self_check(answer_1, turns.EXERCISES[0], tolerance=0.001, hint="In billions: how often does the one printed number go into the other?")

# %%
answer_2 = None  # a whole number

self_check(answer_2, turns.EXERCISES[1], hint="From which power of two on is the spacing 2?")

# %%
answer_3 = None  # exponent bits

self_check(answer_3, turns.EXERCISES[2], hint="A number survives if it exceeds half the smallest subnormal, 2^(1 - b - F).")

# %% [markdown]
# <details><summary>Answers</summary>
#
# 1. 170 billion: $170 \cdot 1.86 = 316.2$.
# 2. 2,049. From $2^{11} = 2048$ on the spacing is $2^{11-10} = 2$.
# 3. Six. With five, half the smallest subnormal is $2^{-17} \approx 8 \cdot 10^{-6}$; with six it is $2^{-32}$.
#
# </details>
#
# **The lab**, `labs/lab01_block_formats`, goes on where this page stops: with the MX formats, in which 32 narrow numbers
# share one scale that is a pure power of two, and with a long sum whose error does not grow with its length.
#
# ## Further reading
#
# - Goldberg 1991, [What every computer scientist should know about floating-point arithmetic](https://doi.org/10.1145/103162.103163).
# - Micikevicius et al. 2022, [FP8 formats for deep learning](https://arxiv.org/abs/2209.05433).
# - Gupta et al. 2015, [Deep learning with limited numerical precision](https://arxiv.org/abs/1502.02551): stochastic rounding.
# - Jacob et al. 2018, [Quantization and training of neural networks for efficient integer-arithmetic-only inference](https://arxiv.org/abs/1712.05877).
# - Rastegari et al. 2016, [XNOR-Net](https://arxiv.org/abs/1603.05279): one bit a weight.
# - Kahan 1965, [Further remarks on reducing truncation errors](https://doi.org/10.1145/363707.363723): a page.
# - Rae et al. 2021, [Scaling language models](https://arxiv.org/abs/2112.11446): Gopher; appendix C has the four recipes.
#
# [Lesson 02 · Memory accounting](02_memory_accounting.ipynb) asks where the memory went.
