# %% [markdown]
# # Lab 01 · Block formats and long sums
#
# **Goal:** store a gradient in TERM_BITS bits a number, and add up four thousand products in 16 bits without losing them.
#
# | question | points |
# |---|---|
# | 1 · One scale for TERM_BLOCK numbers | 20 |
# | 2 · Into the block, and back | 25 |
# | 3 · Bits into bytes | 15 |
# | 4 · Is the rule the best rule? | 15 |
# | 5 · A long dot product in 16 bits | 25 |
#
# A good student needs about 90 minutes. The lab builds on lesson 01 (formats, rounding, Kahan's debt) and on
# `course_lib.numerics`. You need no GPU.
#
# **The rules.** Import nothing but `torch`, `math` and what the first cell imports. A cell that says YOUR CODE HERE
# is yours; every cell below it shows your work or checks it, and you can run those as often as you like. Some more
# tests run when the lab is graded. They ask for nothing that is not written here, on other numbers.
# A function leaves what it is given as it was, gradients, modes and hooks among it, and draws no random numbers. Where
# it may change something, its contract says so. The checks look.

# %% term=true
TERM_BLOCK = (32, 16, 64)
TERM_REST = TERM_BLOCK - 1
TERM_BITS = f"{4 + 8 / TERM_BLOCK:g}"
TERM_EXTRA = {32: "A quarter of a bit", 16: "Half a bit", 64: "An eighth of a bit"}[TERM_BLOCK]
TERM_TIMES = -(-TERM_BLOCK // 32)  # 32 numbers of a check fill at least one block
TERM_UNLIKE = "" if TERM_BLOCK == 32 else f" (The specification's blocks have 32 numbers. Here they have {TERM_BLOCK}.)"

# %%
import math

import torch

from course_kit.checks import check
from course_kit.checks.habits import Unfilled, across
from course_kit.checks.restrictions import Arithmetic
from course_kit.compare import compare
from course_kit.notebook import ask
from course_kit.units import Bytes
from course_lib.model import text
from course_lib.model.gpt import GPT, GPTConfig
from course_lib.numerics import FP4_E2M1, FP6_E2M3, FP6_E3M2, FP8_E4M3FN, FP8_E5M2, FloatFormat
from course_lib.numerics.quantize import signal_to_noise_db
from course_pages.shared import block_formats as figures

ELEMENTS = {"mxfp4": FP4_E2M1, "mxfp6": FP6_E2M3, "mxfp6 e3m2": FP6_E3M2, "mxfp8": FP8_E4M3FN, "mxfp8 e5m2": FP8_E5M2}

# %% [markdown]
# ## 1 · One scale for TERM_BLOCK numbers (20 points)
#
# fp4 (e2m1) has eight magnitudes: 0, 0.5, 1, 1.5, 2, 3, 4 and 6. A gradient has numbers of $10^{-3}$ and of
# $10^{-7}$, and not one of them is 6. So fp4 needs a scale. One for the whole tensor, as in lesson 01, lets the
# largest number of a million decide for all the others. The **MX formats** (OCP Microscaling Formats Specification
# v1.0, 2023) give every TERM_BLOCK neighbours a scale of their own, and make it cheap: a pure power of two, in one byte.TERM_UNLIKE
#
# **The byte** is called E8M0: $s$ from 0 to 254 stands for $X = 2^{s - 127}$, and 255 for nan. No sign, no zero, no
# infinity.
#
# **The rule** (§6.3 of the specification): the largest power of two that is not above the block's largest magnitude,
# divided by the largest power of two that the element's format has, $2^{e_{max}}$:
#
# $$X = 2^{\,\lfloor \log_2 \max_i |x_i| \rfloor \;-\; e_{max}}$$
#
# For fp4, $e_{max} = 2$ (the 4 in 4 and 6). `element.max_exponent` knows it for each format.
#
# **Before you write:** the largest number of a block is 0.7. Which $X$, and which byte? Where does 0.7 then lie on
# fp4's grid?
#
# **The contract.** `block_scales(x, element)`
#
# - `x`: float32, one dim; blocks are TERM_BLOCK neighbours each. Any other length than a multiple of TERM_BLOCK raises `ValueError`.
# - `element`: a `FloatFormat`. You may use all that it can do.
# - returns uint8, one byte for each block.
# - A scale below $2^{-127}$ is held at $2^{-127}$; so is that of a block of zeros. A block with a nan or an infinity
#   gets 255. (The specification leaves this case to the implementation. That is our choice.)
#
# **What is graded:** the rule (8), the edges (4), further blocks, among them numbers very close to a power of two
# (8).


# %% answer="q1"
def block_scales(x, element):
    """The E8M0 byte of each block of TERM_BLOCK numbers, by the rule of OCP MX v1.0 §6.3."""
    ### BEGIN SOLUTION
    if x.numel() % TERM_BLOCK:
        raise ValueError(f"{x.numel()} numbers given; a block has TERM_BLOCK: pad x to a multiple of TERM_BLOCK")
    largest = x.view(-1, TERM_BLOCK).abs().amax(dim=1)
    _, exponent = torch.frexp(largest)  # largest = m · 2^exponent with 0.5 ≤ m < 1, exactly
    byte = exponent - 1 - element.max_exponent + 127
    byte = torch.where(largest == 0, 0, byte.clamp(0, 254))
    return torch.where(largest.isfinite(), byte, 255).to(torch.uint8)
    ### END SOLUTION


# %% [markdown]
# PyTorch knows this byte, as the dtype `float8_e8m0fnu`. Let it read what you wrote: one block with 0.7 in it, one
# with 7, one with 0.000007.

# %%
three = torch.zeros(3 * TERM_BLOCK)
three[[5, TERM_BLOCK + 8, 2 * TERM_BLOCK]] = torch.tensor([0.7, -7.0, 7e-6])
scales = block_scales(three, FP4_E2M1)
X = scales.view(torch.float8_e8m0fnu).float()
print("bytes ", scales.tolist())
print("X     ", X.tolist())
print("max/X ", [round(value, 3) for value in (three.view(-1, TERM_BLOCK).abs().amax(dim=1) / X).tolist()])

# %% [markdown]
# In the last line every number should lie from 4 up to, not including, 8. If one does not, the exponent is off.


# %% check="q1-values" points=8
def one_number_each(*numbers):
    x = torch.zeros(len(numbers), TERM_BLOCK)
    x[:, 11] = torch.tensor(numbers)
    return x.flatten()


exponents = torch.tensor([-3, 0, 0, 1, 2, 3])  # of the powers of two at or below these numbers
numbers = one_number_each(0.2, 1.0, -1.9, 3.0, 4.0, -15.0)
for name, emax in (("mxfp4", 2), ("mxfp6", 2), ("mxfp6 e3m2", 4), ("mxfp8", 8), ("mxfp8 e5m2", 15)):
    got = check.call(block_scales, numbers, ELEMENTS[name])
    expected = (127 + exponents - emax).to(torch.uint8)
    check.equal(got, expected, f"scales of {name}", look="the floor, and e_max of the element's format")

# %% check="q1-edges" points=4
got = check.call(block_scales, one_number_each(0.0, 1e-44, 1e-40, math.nan, math.inf, -math.inf, 3e38), FP4_E2M1)
expected = torch.tensor([0, 0, 0, 255, 255, 255, 252], dtype=torch.uint8)
check.equal(got, expected, "scales of 0, 1e-44, 1e-40, nan, inf, -inf and 3e38", look="the contract's last point")
check.raises(ValueError, block_scales, torch.ones(33), FP4_E2M1, look="the length of x")

# %% check="q1-hidden" points=8
# Numbers just below and above powers of two, random blocks, and whether x is left as it was.
### BEGIN HIDDEN TESTS
#: numbers just below and above powers of two
_powers = range(-118, 121)
_below = [2.0**k * (1 - 2.0**-24) for k in _powers]
_above = [-(2.0**k) * (1 + 2.0**-23) for k in _powers]
for _element in (*ELEMENTS.values(), FloatFormat(6, 4)):
    for _numbers, _shift in ((_below, -1), (_above, 0)):
        _expected = [max(0, k + _shift - _element.max_exponent + 127) for k in _powers]
        _got = check.call(block_scales, one_number_each(*_numbers), _element)
        check.equal(_got, torch.tensor(_expected, dtype=torch.uint8), "numbers next to powers of two")
#: random blocks
_x = torch.randn(64 * TERM_BLOCK, generator=torch.Generator().manual_seed(7)) * 1e-3
_x.view(-1, TERM_BLOCK)[::2] *= 2.0 ** torch.arange(32)[:, None]
_expected = [math.frexp(max(map(abs, row)))[1] - 1 - 8 + 127 for row in _x.view(-1, TERM_BLOCK).tolist()]
_x = across(_x)
_before = _x.clone()
with Unfilled():
    _got = check.call(block_scales, _x, FP8_E4M3FN)
check.equal(_got, torch.tensor(_expected, dtype=torch.uint8), "scales of random blocks")
#: whether x is left as it was
check.equal(_x, _before, "x is left as it was")
# Sentences of the contract, and the known-wrong answers that break them.
#= `x`: float32, one dim | blocks_of_strangers
#= Any other length | any_length_reaches_the_view
#= `element`: a | every_format_is_fp4
#= You may use all | - a permission
#= returns uint8 | scales_of_four_bytes
#= A scale below | small_scales_wrap
#= A block with a nan | infinity_gets_a_scale
#= (The specification leaves | - says whose choice it is
#= That is our choice | - says whose choice it is
#= The E8M0 byte | scale_off_by_one scale_of_the_nearest_power logarithm_rounds_up
### END HIDDEN TESTS

# %% [markdown]
# ## 2 · Into the block, and back (25 points)
#
# Now the TERM_BLOCK numbers themselves: $p_i = \operatorname{round}(x_i / X)$, to the nearest number of the element's format,
# ties to even, kept as a *pattern* of 4, 6 or 8 bits. And back: $x_i \approx X \cdot p_i$.
#
# Lesson 01 built the rounding; `element.encode` and `element.decode` are its finished form, and you may use them or
# write your own. But `FloatFormat` knows nothing of blocks, and **one of its habits is not the specification's**. The
# rule of question 1 leaves numbers up to $2 \cdot 2^{e_{max}}$, and the largest number of a format is less than that.
# In MX, whatever lies beyond is **held at the largest number**, with its sign (§6.3). Which of the five formats would
# surprise you there?
#
# **Before you write:** a block of fp4 has the scale 1. What becomes of 2.5? Of 5? Of 0.25? Of 7.9?
#
# **The contract.** `quantize_elements(x, scales, element)` and `dequantize(patterns, scales, element)`
#
# - `x`: float32, n numbers. `scales`: uint8, one byte for each block, *any* byte and not only that of your rule.
# - `quantize_elements` returns the patterns: uint8, shape (n / TERM_BLOCK, TERM_BLOCK). The sign is kept, also on zero. Infinities
#   are held at the largest number, too. In a block whose scale is 255, every pattern is 0.
# - `dequantize` returns float32, n numbers; a block whose scale is 255 gives nan everywhere.
#
# **What is graded:** fp4's ties, subnormals and ends (8), the way back (5), further blocks in all five formats (12).


# %% answer="q2"
def quantize_elements(x, scales, element):
    """The pattern of each x / X, rounded to nearest even and held at the largest number; uint8 [blocks, TERM_BLOCK]."""
    ### BEGIN SOLUTION
    X = 2.0 ** (scales.float().unsqueeze(1) - 127)
    ratio = (x.view(-1, TERM_BLOCK) / X).clamp(-element.max, element.max)
    ratio = torch.where(scales.unsqueeze(1) == 255, 0.0, ratio)
    return element.encode(ratio).to(torch.uint8)
    ### END SOLUTION


# %% answer="q2-back"
def dequantize(patterns, scales, element):
    """The numbers that patterns and scales stand for, float32 [n]."""
    ### BEGIN SOLUTION
    X = 2.0 ** (scales.double().unsqueeze(1) - 127)
    values = torch.where(scales.unsqueeze(1) == 255, math.nan, element.decode(patterns) * X)
    return values.flatten().float()
    ### END SOLUTION


# %% [markdown]
# Look at one block. It comes from a real gradient, that of a small GPT at its first step.

# %%
model = GPT(GPTConfig(layers=2, width=128, heads=4, vocab_size=256, context=64), seed=0)
model(*text.stories(seed=0).batch(seed=0, step=0, rank=0, batch_size=8, context=64)).backward()
gradient = model.get_parameter("blocks.1.mlp.down.weight").grad.flatten()


def round_trip(x, scales, element):
    return dequantize(quantize_elements(x, scales, element), scales, element)


numbers = gradient[64 : 64 + TERM_BLOCK]
scale = block_scales(numbers, FP4_E2M1)
levels = dequantize(torch.arange(16).repeat(TERM_BLOCK // 16).view(1, TERM_BLOCK).to(torch.uint8), scale, FP4_E2M1)[:16]
figures.block_on_grid(
    (1e3 * numbers).tolist(),
    (1e3 * round_trip(numbers, scale, FP4_E2M1)).tolist(),
    (1e3 * levels).tolist(),
    caption="TERM_BLOCK numbers of a gradient (times 1,000) and what TERM_BITS bits keep of each. The grid is fine near zero, where "
    "most numbers are, and its ends are where this block needs them.",
)

# %% check="q2-values" points=8
# Scale 1 (the byte 127). Ties: 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5. Below 1 fp4 is subnormal.
given = [0.0, 0.2, 0.25, 0.26, 0.5, 0.74, 0.75, 1.0, 1.25, 1.5, 1.75, 2.4, 2.5, 3.5, 5.0, 5.1]
becomes = [0.0, 0.0, 0.0, 0.5, 0.5, 0.5, 1.0, 1.0, 1.0, 1.5, 2.0, 2.0, 2.0, 4.0, 4.0, 6.0]
beyond, ends = [7.0, 7.9, 8.0, 1e30, math.inf, 6.0, 5.5, 3.0], [6.0, 6.0, 6.0, 6.0, 6.0, 6.0, 6.0, 3.0]
x = torch.tensor((given + beyond + [-number for number in beyond]) * TERM_TIMES)
expected = torch.tensor((becomes + ends + [-number for number in ends]) * TERM_TIMES)
one = torch.full((len(x) // TERM_BLOCK,), 127, dtype=torch.uint8)
kept = x.clone()
patterns = check.call(quantize_elements, x, one, FP4_E2M1)
shape = getattr(patterns, "shape", patterns)
check.that(shape == (len(one), TERM_BLOCK), "a row of TERM_BLOCK patterns for each block", came=str(shape))
check.equal(x, kept, "x is left as it was")
check.equal(patterns.dtype, torch.uint8, "the patterns' dtype")
got = FP4_E2M1.decode(patterns).flatten().float()
check.equal(got[:16], expected[:16], "fp4: ties and subnormals", look="rounding: nearest, and ties to the even pattern")
check.equal(got[16:], expected[16:], "fp4: the ends", look="what lies beyond the largest number")
small = check.call(quantize_elements, x * 2.0**-9, one - 9, FP4_E2M1)
check.equal(small, patterns, "all numbers 2^-9 as large, and the scale, too", look="the division by X")

# %% check="q2-back-values" points=5
every = torch.arange(TERM_BLOCK, dtype=torch.uint8).view(1, TERM_BLOCK).repeat(4, 1)
bytes_ = torch.tensor([127, 100, 0, 255], dtype=torch.uint8)
got = check.call(dequantize, every, bytes_, FP8_E4M3FN)
X = torch.tensor([[1.0], [2.0**-27], [2.0**-127], [math.nan]], dtype=torch.float64)
expected = (every.view(torch.float8_e4m3fn).double() * X).float().flatten()
what = "the first TERM_BLOCK patterns of e4m3, as PyTorch reads them, under the bytes 127, 100, 0 and 255"
check.equal(got, expected, what, look="which X this block's byte stands for")

# %% check="q2-hidden" points=12
# Ties, their neighbours, what lies beyond the largest number; other scales; NaN; the sign of a zero; what is given.
### BEGIN HIDDEN TESTS
_generator = torch.Generator().manual_seed(11)
#: ties, their neighbours, what lies beyond the largest number
for _name, _element in ELEMENTS.items():
    _count = _element.max_pattern + 1
    _values = _element.decode(torch.arange(_count))
    _ties = (_values[:-1] + _values[1:]) / 2  # exact: one bit more
    _near = torch.cat([_ties, _ties * (1 + 2.0**-20), _ties * (1 - 2.0**-20), _values, 2 * _values])
    _near = torch.cat([_near, -_near, 4 * torch.randn(500, generator=_generator).double()])
    _near = _near[: _near.numel() // TERM_BLOCK * TERM_BLOCK]
    for _byte in (127, 0, 200, 254):
        _scale = torch.full((_near.numel() // TERM_BLOCK,), _byte, dtype=torch.uint8)
        _x = (_near * 2.0 ** (_byte - 127)).float()
        _held = (_x.double() * 2.0 ** (127 - _byte)).clamp(-_element.max, _element.max)
        _got = check.call(quantize_elements, _x, _scale, _element)
        _expected = _element.encode(_held).view(-1, TERM_BLOCK).to(torch.uint8)
        check.equal(_got, _expected, f"{_name}: every tie, its neighbours and what lies beyond, scale byte {_byte}")
#: other scales; NaN
_x = across(torch.randn(4 * TERM_BLOCK, generator=_generator))
_x[TERM_BLOCK + 1] = math.nan
_scales = torch.tensor([127, 255, 125, 130], dtype=torch.uint8)
_before = _x.clone(), _scales.clone()
for _name, _element in ELEMENTS.items():
    with Unfilled():
        _got = check.call(quantize_elements, _x, _scales, _element)
    #: what is given
    check.equal((_x, _scales), _before, f"{_name}: x and scales are left as they were")
    #: other scales; NaN
    check.equal(_got[1].tolist(), [0] * TERM_BLOCK, f"{_name}: the patterns of a block with nan")
    _expected = _element.encode((_x[:TERM_BLOCK]).clamp(-_element.max, _element.max)).to(torch.uint8)
    check.equal(_got[0], _expected, f"{_name}: its neighbour", look="the block next to it")
    _expected = (_element.decode(_got) * torch.tensor([[1.0], [math.nan], [0.25], [8.0]])).flatten().float()
    check.equal(check.call(dequantize, _got, _scales, _element), _expected, f"{_name}: back again")
    check.equal(_scales, _before[1], f"{_name}: scales are left as they were")
check.equal(check.call(dequantize, _got[:3], _scales[:3], _element), _expected[: 3 * TERM_BLOCK], "three blocks instead of four")
#: the sign of a zero
_zero = check.call(quantize_elements, torch.full((TERM_BLOCK,), -0.01), torch.tensor([127], dtype=torch.uint8), FP4_E2M1)
check.equal(_zero.tolist(), [[8] * TERM_BLOCK], "a negative number that becomes zero keeps its sign")
# Sentences of the contract, and the known-wrong answers that break them.
#= `x`: float32 | - what is given
#= `scales`: uint8 | byte_minus_127_wraps byte_as_exponent_field one_scale_for_all
#= `quantize_elements` returns | patterns_in_one_row
#= The sign is kept | minus_zero_loses_its_sign
#= Infinities are held | overflow_to_infinity
#= In a block whose scale is 255 | nan_scale_ignored
#= `dequantize` returns | nan_scale_ignored
#= The pattern of each x / X | ties_away_from_zero cut_instead_of_rounded subnormals_flushed rounded_twice
#= The numbers that patterns | byte_as_exponent_field one_scale_for_all
### END HIDDEN TESTS

# %% [markdown]
# ## 3 · Bits into bytes (15 points)
#
# So far an fp4 number fills a whole byte, and nothing is saved. PyTorch's smallest dtypes with arithmetic have 8
# bits; what is narrower, you pack yourself. Four bits are easy, two in a byte. Six bits cross the borders: four
# numbers fill three bytes.
#
# **The layout** (the specification prescribes none; this one is ours): the patterns follow each other without gaps,
# lowest bit first. Bit $j$ of element $i$ is bit number $k = i \cdot \text{bits} + j$ of the stream, and that is bit
# $k \bmod 8$ of byte $\lfloor k / 8 \rfloor$.

# %%
figures.bit_layout(
    6,
    4,
    caption="Four elements of six bits in three bytes, named element.bit. Bit 0 of each byte is on the right, as one "
    "writes numbers.",
).show()
guess_bytes = ask("A million numbers in MX fp4: how many bytes, scales included?", unit="B")

# %% [markdown]
# **The contract.** `pack(patterns, bits)` and `unpack(packed, bits)`
#
# - `patterns`: uint8, any shape, each below $2^{bits}$; their number is a multiple of 32. `bits`: 4, 6 or 8.
# - `pack` returns uint8, one dim, n · bits / 8 bytes, **and holds no byte more**: the storage under the tensor counts,
#   not its shape.
# - `unpack` returns uint8, one dim, the n patterns.
#
# **What is graded:** the layout and the way back (6), the bytes held (4), further patterns (5).


# %% answer="q3"
def pack(patterns, bits):
    """Patterns of 4, 6 or 8 bits one after the other, lowest bit first; uint8 [n · bits / 8]."""
    ### BEGIN SOLUTION
    stream = (patterns.reshape(-1, 1) >> torch.arange(bits, dtype=torch.uint8)) & 1
    weights = 2 ** torch.arange(8, dtype=torch.uint8)
    return (stream.view(-1, 8) * weights).sum(dim=1, dtype=torch.uint8)
    ### END SOLUTION


# %% answer="q3-back"
def unpack(packed, bits):
    """The patterns that `pack` packed; uint8 [n]."""
    ### BEGIN SOLUTION
    stream = (packed.view(-1, 1) >> torch.arange(8, dtype=torch.uint8)) & 1
    weights = 2 ** torch.arange(bits, dtype=torch.uint8)
    return (stream.view(-1, bits) * weights).sum(dim=1, dtype=torch.uint8)
    ### END SOLUTION


# %%
million = torch.randn(1_000_000, generator=torch.Generator().manual_seed(3))
scales = block_scales(million, FP4_E2M1)
packed = pack(quantize_elements(million, scales, FP4_E2M1), bits=4)
held = Bytes(packed.untyped_storage().nbytes() + scales.untyped_storage().nbytes())

print(f"{8 * held / million.numel():.2f} bits for each number")
compare(guess=guess_bytes, predicted=Bytes(1_000_000 * (4 + 8 / TERM_BLOCK) / 8), measured=held, name="a million numbers")

# %% check="q3-values" points=6
check.equal(
    check.call(pack, torch.tensor([1, 2, 3, 4] * 8).byte(), 6), torch.tensor([129, 48, 16] * 8).byte(), "6 bits"
)
check.equal(check.call(pack, torch.tensor([1, 2, 3, 15] * 8).byte(), 4), torch.tensor([33, 243] * 8).byte(), "4 bits")
for bits in (4, 6, 8):
    patterns = (torch.arange(96) * 37 % 2**bits).byte()
    back = check.call(unpack, check.call(pack, patterns.view(3, 32).clone(), bits), bits)
    check.equal(back, patterns, f"{bits} bits, packed and unpacked", look="the order of the bits, in both directions")

# %% check="q3-held" points=4
for bits, expected in ((4, 512), (6, 768), (8, 1024)):
    packed = check.call(pack, torch.full((32, 32), 2**bits - 1).byte(), bits)
    check.equal(packed, torch.full((expected,), 255).byte(), f"1,024 elements with all of their {bits} bits set")
    nbytes = packed.untyped_storage().nbytes()
    check.equal(
        nbytes, expected, f"bytes held for 1,024 elements of {bits} bits", look="the storage of what you return"
    )

# %% check="q3-hidden" points=5
# Random patterns, packed and unpacked, and the bytes that are held.
### BEGIN HIDDEN TESTS
_generator = torch.Generator().manual_seed(5)
for _bits in (4, 6, 8):
    _patterns = torch.randint(2**_bits, (7, 32), generator=_generator).byte()[1:6]  # a part of a larger tensor
    _number = sum(value << (_bits * place) for place, value in enumerate(_patterns.flatten().tolist()))
    _expected = torch.tensor(list(_number.to_bytes(_bits * 20, "little"))).byte()
    _before = _patterns.clone()
    #: random patterns, packed and unpacked
    _packed = check.call(pack, _patterns, _bits)
    check.equal(_patterns, _before, "the patterns are left as they were")
    check.equal(_packed, _expected, f"random patterns of {_bits} bits, packed")
    #: the bytes that are held
    check.equal(_packed.untyped_storage().nbytes(), _bits * 20, f"the bytes held for {_bits} bits")
    #: random patterns, packed and unpacked
    check.equal(check.call(unpack, _expected, _bits), _patterns.flatten(), f"{_bits} bits, unpacked")
    _expected = _expected.flip(0)
    _again = check.call(pack, check.call(unpack, _expected, _bits), _bits)
    check.equal(_again, _expected, f"other bytes of {_bits} bits, unpacked and packed again")
# Sentences of the contract, and the known-wrong answers that break them.
#= `patterns`: uint8 | columns_before_rows
#= `bits`: 4, 6 or 8 | eight_bits_are_a_view
#= `pack` returns | a_byte_for_each a_view_of_a_large_buffer
#= `unpack` returns | highest_bit_first
#= Patterns of 4, 6 or 8 | highest_bit_first
#= The patterns that `pack` | room_without_patterns
### END HIDDEN TESTS

# %% [markdown]
# ## 4 · Is the rule the best rule? (15 points)
#
# What do the bits buy? Your functions can tell: the gradient from above in all five formats, and in fp4 and fp8 with
# *one* scale for the whole tensor, as lesson 01 did it. How many decibels does one byte for every TERM_BLOCK numbers bring
# fp4? (6 dB halve the error.)

# %%
guess_decibels = ask("A scale for each block instead of one for all: how many dB better is fp4?")

# %%
with_blocks, with_one = {}, {}
for name, element in ELEMENTS.items():
    stored = round_trip(gradient, block_scales(gradient, element), element)
    with_blocks[name] = (element.bits + 8 / TERM_BLOCK, signal_to_noise_db(gradient, stored))
for name, element in (("fp4", FP4_E2M1), ("fp8", FP8_E4M3FN)):
    scale = gradient.abs().max() / element.max
    with_one[name] = (element.bits, signal_to_noise_db(gradient, element.round(gradient / scale) * scale))
figures.error_against_bits(
    with_blocks,
    with_one,
    caption="Higher is better. TERM_EXTRA for block scales (squares) lifts fp4 far above fp4 with one scale "
    "(ring). fp8 even loses a little: its own exponent reached the small numbers already.",
).show()
print(f"fp4 gains {with_blocks['mxfp4'][1] - with_one['fp4'][1]:.1f} dB; you said {guess_decibels.said}")

# %% [markdown]
# Two riddles. Why is mxfp6 no worse than mxfp8, with two bits less? (Count their fraction bits.) And why does fp8
# *lose* by its block scales? For that one, look closer at the rule. On fp4's grid, which ends at 6, it puts the largest
# number of a block anywhere from 4 to 8. A 7.9 becomes 6: a quarter of the *largest* number is cut off. A scale twice
# as large would keep it as 8. It would also double the distance between the grid lines for the TERM_REST others.
#
# **Before you write:** a block of one 7.2 and TERM_REST times 0.5. Which scale is better, 1 or 2? And for TERM_BLOCK times 7.9?
#
# **The contract.** `better_scales(x, scales, element)`
#
# - `x`: float32, n numbers. `scales`: uint8, a byte for each block.
# - returns uint8: for each block its byte $s$ or $s + 1$, whichever gives the smaller sum of squared errors after
#   rounding as in question 2. If both give the same, $s$.
# - 254 and 255 stay what they are. You may use your functions from above.
#
# **What is graded:** blocks that you can check by hand (7), further blocks in all formats (8).


# %% answer="q4"
def better_scales(x, scales, element):
    """For each block the byte s or s + 1, whichever gives the smaller squared error."""
    ### BEGIN SOLUTION
    numbers, errors = x.view(-1, TERM_BLOCK).double(), []
    for step in (0, 1):
        X = 2.0 ** (scales.double().unsqueeze(1) + step - 127)
        stored = element.round((numbers / X).clamp(-element.max, element.max)) * X
        errors.append((stored - numbers).square().sum(dim=1))
    up = (errors[1] < errors[0]) & (scales < 254)
    return scales + up.to(torch.uint8)
    ### END SOLUTION


# %%
bells = torch.randn(6000, TERM_BLOCK, generator=torch.Generator().manual_seed(4))
largest = 2.0 ** (2 + torch.rand(6000, 1, generator=torch.Generator().manual_seed(5)))  # from 4 to 8
bells = bells / bells.abs().amax(dim=1, keepdim=True) * largest
one = torch.full((6000,), 127, dtype=torch.uint8)
ways = {"the rule": one, "one step up": one + 1, "the better one": better_scales(bells.flatten(), one, FP4_E2M1)}
errors = {}
for name, way in ways.items():
    error = round_trip(bells.flatten(), way, FP4_E2M1).view(-1, TERM_BLOCK) - bells
    errors[name] = (error.square().mean(dim=1, keepdim=True).sqrt() / largest).flatten().tolist()
figures.errors_by_largest(
    largest.flatten().tolist(),
    errors,
    caption="Blocks of normally distributed numbers in fp4, by where the rule puts their largest. Where the two lines "
    "cross, the cut begins to cost more than a coarser grid would, and the better of both changes sides.",
)

# %%
for name in ("mxfp4", "mxfp6", "mxfp8"):
    element = ELEMENTS[name]
    rule = block_scales(gradient, element)
    better = better_scales(gradient, rule, element)
    before, after = (signal_to_noise_db(gradient, round_trip(gradient, way, element)) for way in (rule, better))
    share = (better != rule).double().mean().item()
    print(f"{name}: {before:.1f} dB by the rule, {after:.1f} dB with the better scale ({share:.0%} of blocks moved)")

# %% [markdown]
# No bit more, and for fp4 less than one decibel: honest, and small. fp8 gains more. Its grid is so fine
# that in a block whose largest number is cut off at 448, the cut is most of the error; that is why block scales made
# it worse. It matters in practice. Mishra et al. (2025) saw the training of a language model diverge with the
# specification's rule. They double the scale of MX fp8 whenever its largest number would be cut off, and it trains.
# If you did the same in fp4: for which largest numbers, on your picture's axis, would that be a mistake?

# %% check="q4-values" points=7
rows = {
    "TERM_BLOCK times 7.9": ([7.9] * TERM_BLOCK, 128),
    "one 7.2 and TERM_REST times 0.5": ([7.2] + [0.5] * TERM_REST, 127),
    "one -7.9 and zeros": ([-7.9] + [0.0] * TERM_REST, 128),
    "TERM_BLOCK times 4": ([4.0] * TERM_BLOCK, 127),
    "zeros": ([0.0] * TERM_BLOCK, 127),
}
x = torch.tensor([row for row, _ in rows.values()])
given = torch.full((5,), 127, dtype=torch.uint8)
got = check.call(better_scales, x.flatten(), given, FP4_E2M1)
check.equal(given.tolist(), [127] * 5, "the scales given are left as they were")
kind = (getattr(got, "dtype", got), getattr(got, "shape", None))
check.that(kind == (torch.uint8, (5,)), "a byte for each of 5 blocks, uint8", came=str(kind))
for byte, (name, (_, expected)) in zip(got.tolist(), rows.items(), strict=True):
    check.equal(byte, expected, name, look="the squared error of the whole block under both scales, by hand")
last = torch.tensor([254, 255], dtype=torch.uint8)
check.equal(check.call(better_scales, torch.ones(2 * TERM_BLOCK), last, FP4_E2M1), last, "254 and 255", look="the contract's end")

# %% check="q4-hidden" points=8
# The better of two scales, in many blocks of each format.
### BEGIN HIDDEN TESTS
_generator = torch.Generator().manual_seed(21)
for _name, _element in ELEMENTS.items():
    _x = torch.randn(400, TERM_BLOCK, generator=_generator) ** 3
    _x = _x / _x.abs().amax(dim=1, keepdim=True) * _element.max * (0.5 + torch.rand(400, 1, generator=_generator))
    _scales = torch.full((400,), 127, dtype=torch.uint8) - torch.arange(400).byte() % 3
    _x = _x * 2.0 ** -(torch.arange(400)[:, None] % 3)
    _errors = []
    for _step in (0, 1):
        _X = 2.0 ** (_scales.double() + _step - 127)[:, None]
        _stored = _element.round((_x.double() / _X).clamp(-_element.max, _element.max)) * _X
        _errors.append((_stored - _x.double()).square().sum(dim=1))
    with Unfilled():
        _got = check.call(better_scales, across(_x.flatten()), _scales, _element)
    _clear = (_errors[0] - _errors[1]).abs() > 1e-5 * _errors[0]  # nearer than that, float32 may decide either way
    _expected = torch.where(_errors[1] < _errors[0], _scales + 1, _scales)
    check.equal(_got[_clear], _expected[_clear], f"{_name}: the better of two scales, in 400 blocks")
    check.that(bool(((_got == _scales) | (_got == _scales + 1)).all()), f"{_name}: s or s + 1, nothing else")
# Sentences of the contract, and the known-wrong answers that break them.
#= `x`: float32 | - what is given
#= `scales`: uint8 | moves_the_scales_it_was_given
#= returns uint8 | only_the_largest_counts always_one_step_up
#= If both give the same | a_tie_moves_up
#= 254 and 255 stay | a_block_of_nan_moves
#= You may use | - a permission
#= For each block the byte | only_the_largest_counts
### END HIDDEN TESTS

# %% [markdown]
# ## 5 · A long dot product in 16 bits (25 points)
#
# A matrix product is many dot products, and each of those is a long sum. Lesson 01 showed where a sum of 16-bit
# numbers ends: it stalls as soon as the next addend is less than half its spacing. With $u = 2^{-F-1}$ for the error
# of one rounding ($2^{-11}$ in fp16, $2^{-8}$ in bf16), the error of a plain sum grows like $n\,u$. At $n = 4096$ in
# fp16 this is 2: no digit is safe.
#
# Chips add up in 32 bits. Suppose that you have none: every number between the two rows and the result has 16 bits.
# Lesson 01 rescued a *weight* by remembering what it is owed (Kahan 1965). Here the debt rescues a sum: the error is
# then at most $(2u + O(n u^2)) \sum_i |p_i|$ for addends $p_i$ (Goldberg 1991, Theorem 8). $n$ stands only beside
# $u^2$. Rounding each product costs at most $u |p_i|$ more. We allow 2 for the constant in the $O$:
#
# $$\Bigl|\,\text{result} - \sum_i a_i b_i\,\Bigr| \;\le\; \bigl(3u + 2\,n\,u^2\bigr) \sum_i |a_i b_i|$$
#
# **Before you write:** which fraction of the plain sum of 4096 positive products is lost, would you say?

# %%
guess_lost = ask("4096 positive products, added one by one in fp16: how many per cent are lost?")

# %% [markdown]
# **The contract.** `dot(a, b)`
#
# - `a`, `b`: shape [rows, n], both float16 or both bfloat16. Returns shape [rows], in the same dtype: the dot product
#   of each row of `a` with the same row of `b`, within the bound above.
# - **16 bits only.** No tensor of another float dtype, no Python number taken out of a tensor (`item`, `tolist`), and
#   no operation that adds up inside (`sum`, `@`, `cumsum`, …): PyTorch does those in 32 bits, in secret. Allowed are
#   `+`, `-`, `*`, `abs`, comparisons, `torch.where`, indexing, and making tensors of the right dtype.
# - **Work:** at most 8 additions, subtractions and multiplications for each pair of numbers. (Kahan needs 5.)
# - **Memory:** a chip has few registers. At most 16 numbers for each row alive at any time, beside `a` and `b`. So not
#   all products at once.
#
# Loop over the columns (`a.unbind(1)` gives them), and work on all rows at a time.
#
# **What is graded:** the error in fp16 (7), formats, work and memory (8), further sums in both formats (10). A hint:
# on paper, the line that finds the debt is always zero. Brackets matter. And a debt that is only collected, and paid
# at the end, is a long sum of its own.


# %% answer="q5"
def dot(a, b):
    """Dot product of each row of a with the same row of b, in 16 bits throughout, with a debt; [rows]."""
    ### BEGIN SOLUTION
    total = torch.zeros(a.shape[0], dtype=a.dtype)
    owed = torch.zeros_like(total)
    for x, y in zip(a.unbind(1), b.unbind(1), strict=True):
        addend = x * y + owed
        new_total = total + addend
        owed = addend - (new_total - total)
        total = new_total
    return total
    ### END SOLUTION


# %%
def plain_dot(a, b):
    total = torch.zeros(a.shape[0], dtype=a.dtype)
    for x, y in zip(a.unbind(1), b.unbind(1), strict=True):
        total = total + x * y
    return total


def bound(n, dtype):
    u = torch.finfo(dtype).eps / 2
    return 3 * u + 2 * n * u**2


def relative_error(got, a, b):
    products = a.double() * b.double()
    return ((got.double() - products.sum(dim=1)).abs() / products.abs().sum(dim=1)).max().item()


# %%
a, b = torch.rand(2, 16, 4096, generator=torch.Generator().manual_seed(6)).half()
lengths = [2**k for k in range(4, 13)]
curves = {
    name: [relative_error(way(a[:, :n], b[:, :n]), a[:, :n], b[:, :n]) for n in lengths]
    for name, way in (("plain, fp16", plain_dot), ("with a debt, fp16", dot))
}
figures.error_by_length(
    lengths,
    curves,
    [bound(n, torch.float16) for n in lengths],
    caption="The worst of 16 rows. The plain sum is the worse the longer it is. With a debt the error stays near that "
    "of rounding the result once, whatever the length.",
).show()
print(f"The plain sum loses up to {100 * curves['plain, fp16'][-1]:.0f} per cent; you said {guess_lost.said}.")


# %% check="q5-values" points=7
def within_bound(a, b, name):
    got = check.call(dot, a, b)
    check.that(isinstance(got, torch.Tensor), f"{name}: a tensor", came=repr(got)[:80])
    check.equal((got.dtype, tuple(got.shape)), (a.dtype, (a.shape[0],)), f"{name}: dtype and shape")
    error, limit = relative_error(got, a, b), bound(a.shape[1], a.dtype)
    look = "the debt: its sign, its brackets, and when it is paid"
    check.at_most(error, limit, f"{name}: error over the sum of magnitudes", look=look)


a, b = torch.rand(2, 8, 4096, generator=torch.Generator().manual_seed(8)).half()
within_bound(a[:, :1], b[:, :1], "one product")
within_bound(a, b, "4096 positive products")
within_bound(a - 0.5, b, "4096 products of both signs")
within_bound(torch.full((2, 4096), 0.3).half(), torch.full((2, 4096), 0.7).half(), "4096 equal products")


# %% check="q5-resources" points=8
def resources(a, b):
    rows, n = a.shape
    kept = a.clone(), b.clone()
    with Arithmetic() as seen:
        check.call(dot, a, b)
    check.equal((a, b), kept, "a and b are left as they were")
    other = {str(dtype)[6:] for dtype in seen.dtypes - {a.dtype}} | set(seen.others)
    came = ", ".join(sorted(other))
    check.that(not other, f"only {str(a.dtype)[6:]}, added one by one", came=came, look="what the contract allows")
    look = "all rows at once? a[:, i] or unbind; and is the arithmetic done by tensors?"
    check.at_least(seen.flops / (rows * n), 2 - 1 / n, "operations for each pair", look=look)
    check.at_most(seen.flops / (rows * n), 8, "operations for each pair", look="the lines in the loop")
    held = check.peak(dot, a, b)
    check.at_most(held, Bytes(16 * 2 * rows), "bytes held at the peak", look="what is alive besides a and b")


resources(a[:, :512], b[:, :512])

# %% check="q5-hidden" points=10
# Other lengths, signs and dtypes, large factors, a large product first, roundings that all go down, what the sum holds.
### BEGIN HIDDEN TESTS
_generator = torch.Generator().manual_seed(9)
#: other lengths, signs and dtypes
for _dtype, _n in ((torch.float16, 4000), (torch.bfloat16, 1000), (torch.bfloat16, 300)):
    _a, _b = torch.rand(2, 6, _n, generator=_generator).to(_dtype)
    within_bound(_a, _b, f"{_n} products in {str(_dtype)[6:]}")
    within_bound(-_a, _b, f"{_n} negative products in {str(_dtype)[6:]}")
    within_bound(torch.full_like(_a, 0.1), torch.full_like(_b, 1.1), f"{_n} equal products in {str(_dtype)[6:]}")
    #: large factors
    with Unfilled():
        within_bound(4000 * (_a - 0.5), _b / 128, f"{_n} products of large factors in {str(_dtype)[6:]}")
    #: a large product first
    _a[:, 0] = 100
    within_bound(_a, _b, f"a large product first, in {str(_dtype)[6:]}")
#: roundings that all go down
_parts = [1024]  # two halves of an even number are one too much together, and the sum in fp16 forgets the one
for _ in range(9):
    _parts = [_half for _part in _parts for _half in ((_part, _part + 1) if _part % 2 == 0 else (_part - 1, _part + 1))]
_a = (torch.tensor([_parts, _parts[::-1]]) / 2**19).half()
within_bound(_a, torch.ones_like(_a), "512 numbers of which each pair is rounded down")
#: what the sum holds
resources(*torch.rand(2, 6, 300, generator=_generator).bfloat16())
# Sentences of the contract, and the known-wrong answers that break them.
#= `a`, `b`: shape | - what is given
#= Returns shape [rows] | naive_sum debt_without_brackets
#= **16 bits only | sum_in_32_bits
#= No tensor of another | sum_in_32_bits leaves_the_tensors torch_sums
#= Allowed are | - a permission
#= **Work:** at most 8 | debt_paid_at_the_end
#= (Kahan needs 5 | - a remark
#= **Memory:** a chip | all_products_at_once
#= At most 16 numbers | all_products_at_once
#= So not all products | all_products_at_once
#= Loop over the columns | - advice
#= Dot product of each row | naive_sum debt_with_the_wrong_sign
### END HIDDEN TESTS

# %% [markdown]
# **What you have now.** A gradient in TERM_BITS bits a number, measured on the storage that holds it; a rule for scales,
# and a picture of where it errs; and a sum whose error does not grow with its length. Lesson 04 shows what happens
# when such formats meet a training step.
