# %% [markdown]
# # Lab 16 · Attention by tiles
#
# **The question:** attention compares every token with every other one, and most of these comparisons are never looked
# at. How do you compute the rest without writing the table down?
#
# | | |
# |---|---|
# | Time | about 90 minutes |
# | Builds on | lesson 16: the online softmax, tiles, the backward pass from $L$ and $D$ |
# | You write | three functions and one `autograd.Function`, none longer than 25 lines |
# | A GPU | changes nothing here |
#
# | question | | points |
# |---|---|---|
# | 1 | Two halves of a softmax | 20 |
# | 2 | Which tiles are worth a visit | 20 |
# | 3 | Forward, tile by tile | 30 |
# | 4 | Backward, from one number a row | 30 |
#
# **The rules.** You may use all of torch but its finished attention (`scaled_dot_product_attention`, `flex_attention`
# and their kernels), and nothing of `course_lib`, whose lesson has tiles of its own. The checks watch which operations
# run and whose code calls them. Everything happens in the thread that calls you. A function leaves what it is given as
# it was, gradients, modes and hooks among it, and draws no random numbers.
#
# The plain attention with its table of scores gives the right numbers as well. So the checks count the bytes that you
# hold, the FLOPs, the matrix products, and what these products read and write. All of that is judged in the same call
# as the values, and an answer that is wrong gets no points for being cheap.
#
# Checks that you see here give you points and tell you what is wrong. More run when the lab is graded, on other
# texts, heads and tiles. Cells that show your answer at work fail until there is one, which costs nothing. Questions 3
# and 4 may use the answers of the earlier ones.

# %%
import math
import sys
import threading
import time
import weakref

import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

# %%
from course_kit import measure
from course_kit.checks import check, habits
from course_kit.checks.check import within
from course_kit.checks.held_bytes import held, outside_torch
from course_kit.checks.restrictions import without_torch
from course_kit.compare import compare
from course_kit.notebook import ask
from course_kit.units import Bytes, Flops

# %%
FINISHED = ["scaled_dot_product_attention", "flex_attention", "course_lib", "course_pages", "explicit"]
FINISHED += ["MultiheadAttention", "multi_head_attention_forward", "ctypes", "numpy", "threading", "concurrent"]
FINISHED += ["_getframe", "currentframe", "f_back", "f_locals"]  # nor does an answer look for its judge's


# %% [markdown]
# ## What all questions share
#
# Several texts lie one behind the other in one tensor, so that no padding stands between them. `starts` is a list of
# ints, `[0, 3, 3, 10]` for texts of 3, 0 and 7 tokens: text i has the tokens from `starts[i]` up to, not including,
# `starts[i + 1]`. The tensors may have room for more tokens than that. What lies behind the last text belongs to no
# text, and may hold anything, NaN too.
#
# A token sees itself and those before it in its own text, at most `window` of them, itself included. With `window=1` it
# sees itself alone.
#
# `q` has `heads` heads and `k` and `v` have `groups`, which divides `heads`: query head h reads the keys and values of
# group `h // (heads // groups)`. So 8 heads and 2 groups mean that heads 0 to 3 share group 0. The score of a query
# and a key is their scalar product divided by the square root of `width`.
#
# Here is all of it in the long way, with a table `[heads, tokens, tokens]`. The checks compare with that, in float64.


# %%
def visible(starts, window):
    """Which token (row) sees which (column), [tokens, tokens] bools."""
    token = torch.arange(starts[-1])
    text = torch.bucketize(token, torch.tensor(starts[1:]), right=True)
    age = token[:, None] - token
    return (text[:, None] == text) & (age >= 0) & (age < window)


def explicit(q, k, v, starts, window, mask=None):
    """Attention the long way: (o, L), where L is the log of the sum of the exponentials of a row's visible scores."""
    n, tokens = starts[-1], q.shape[1]
    k, v = (each.repeat_interleave(len(q) // len(k), 0) for each in (k, v))
    scores = q[:, :n] @ k[:, :n].mT / math.sqrt(q.shape[-1])
    scores = scores.masked_fill(~(visible(starts, window) if mask is None else mask), -math.inf)
    o, L = scores.softmax(-1) @ v[:, :n], scores.logsumexp(-1)
    return F.pad(o, (0, 0, 0, tokens - n)), F.pad(L, (0, tokens - n), value=-math.inf)


# %% [markdown]
# And texts to try it on. Your projection wrote `[tokens, heads, width]`, so by default the heads lie across in memory.


# %%
def problem(lengths, heads=4, groups=2, width=8, behind=0, seed=0, dtype=torch.float32, size=1.0, lean=(0, 0), **more):
    """(q, k, v, starts): texts of these lengths, and NaN in the places behind them.

    `size` stretches queries and keys; `lean` is added to their first features, which moves all scores.
    """
    generator = torch.Generator().manual_seed(seed)
    made = []
    for heads_of, factor, shift in ((heads, size, lean[0]), (groups, size, lean[1]), (groups, 1.0, 0)):
        each = factor * torch.randn(sum(lengths) + behind, heads_of, width, generator=generator, dtype=torch.float64)
        each[..., 0] += shift
        each[sum(lengths) :] = math.nan
        each = each.to(dtype).transpose(0, 1)
        made.append(each.contiguous() if more.get("dense") else each)
    return *made, [sum(lengths[:place]) for place in range(len(lengths) + 1)]


# %% [markdown]
# ## 1 · Two halves of a softmax (20 points)
#
# A query has met some of its keys and has a result: the mean `o` of their values, weighted by the softmax *of these
# keys alone*, and `L`, the natural logarithm of the sum of the exponentials of their scores. Then it meets other keys,
# and gets another pair. Both together determine the result for all keys, and no single score is needed for that.
#
# With $w_i = e^{L_i}$ each half weighs as much as the sum that it stands for:
#
# $$o = \frac{w_1 o_1 + w_2 o_2}{w_1 + w_2}, \qquad L = \log(w_1 + w_2).$$
#
# In this form the sums overflow as soon as a score is 100 in float32. What must you take out of both weights first?
# And a half may be empty: its query has met no key that it sees. Then $L_i = \log 0 = -\infty$, and in its row of
# $o_i$ there may be anything, because nothing was ever written there.
#
# **Your contract.** `merge(first, first_L, second, second_L)`
#
# - `first`, `second`: `[..., width]`; `first_L`, `second_L`: the same shape without `width`. All have one dtype,
# float32 or float64. There may be any number of dims before `width`, and no rows at all.
# - Every `L` is a finite number of any size or sign, or `-inf`. Rows of `o` whose `L` is `-inf` may hold NaN.
# - `o` has the error of a few roundings, where `L` is 20,000 as well: what leaves the weights is not rounded before.
# - Returns the pair `(o, L)` of both together, of the same shapes and dtype. A row that is empty in both halves has
# `o = 0` and `L = -inf`.
#
# **Graded:** values by hand (6 points), rows that are empty, and sums that are huge or tiny (7), and random halves (7).


# %% answer="q1"
def merge(first, first_L, second, second_L):
    """(o, L) of both halves together."""
    ### BEGIN SOLUTION
    most = torch.maximum(first_L, second_L)
    anchor = most.masked_fill(most == -math.inf, 0)  # -inf minus -inf is no number
    weights = (first_L - anchor).exp(), (second_L - anchor).exp()
    total = weights[0] + weights[1]
    o = torch.zeros_like(first)
    for half, weight in zip((first, second), weights):
        share = weight / total.masked_fill(total == 0, 1)
        o = o + share[..., None] * half.masked_fill(weight[..., None] == 0, 0)  # 0 times NaN would be NaN
    return o, anchor + total.log()
    ### END SOLUTION


# %% [markdown]
# One query, keys with the scores 0 and log 3, values 1 and 5, one after the other:

# %%
one = torch.zeros(1, dtype=torch.float64)
print(*(each.tolist() for each in merge(one[:, None] + 1, one, one[:, None] + 5, one + math.log(3))))


# %%
def pair_of(came, what, shapes, dtype):
    """The two tensors that came, if they are two tensors of these shapes and this dtype."""
    good = isinstance(came, tuple | list) and len(came) == 2 and all(isinstance(each, torch.Tensor) for each in came)
    if not good:
        check.that(False, f"{what} returns two tensors", came=str(came)[:200], look="what the contract says it returns")
    for each, name, shape in zip(came, ("o", "L"), shapes):
        if each.shape != shape or each.dtype != dtype:
            came_as = f"{str(each.dtype)[6:]}{list(each.shape)}"
            wanted = f"{str(dtype)[6:]}{list(shape)}"
            check.that(False, f"{what}: the form of {name}", expected=wanted, came=came_as, look="shapes and dtype")
    return [each.detach() for each in came]


# %%
TWO_ROWS = torch.tensor([[1.0, -2.0, 4.0], [0.0, 8.0, 6.0]], dtype=torch.float64)


def row(*numbers, dtype=torch.float64):
    """Some numbers as a tensor."""
    return torch.tensor(numbers, dtype=dtype)


# %%
def merged_slip(o, L, halves, right):
    """What finite numbers say about the fault."""
    (right_o, right_L), (first, first_L, second, second_L) = right, (each.double() for each in halves)
    far = {"o": not torch.allclose(o, right_o, 1e-4, 1e-6), "L": not torch.allclose(L, right_L, 1e-4, 1e-6)}
    if not any(far.values()):
        return "rounding alone: which numbers become large on the way, and in which dtype it is computed"
    if torch.allclose(o, (first + second) / 2, 1e-4, 1e-6):
        return "a half weighs as much as its sum of exponentials; a plain mean would need equal ones"
    if far["o"] and torch.allclose(o, torch.where((second_L > first_L)[..., None], second, first), 1e-4, 1e-6):
        return "both halves have a share, also the one with the smaller L"
    if torch.allclose(L, right_L / math.log(2), 1e-4, 1e-6) or not far["o"]:
        return "L: the natural logarithm of the sum of both weights, with what was taken out put back"
    return "the weights: which belongs to which half, and what both are divided by"


# %%
def merged_hint(came, halves, right):
    """What a wrong pair says about the fault."""
    (o, L), (first, first_L, second, second_L) = came, (each.double() for each in halves)
    empty = (first_L == -math.inf) & (second_L == -math.inf)
    if (o.isnan().any(-1) | L.isnan())[empty].any():
        return "rows that are empty in both halves: -inf - (-inf), and 0 / 0"
    if o.isnan().any() or L.isnan().any():
        return "NaN where one half is empty or huge: what 0 · NaN is, and inf / inf"
    if L.isposinf().any() or (L.isneginf() & ~right[1].isneginf()).any():
        return "the exponential of a large number is inf, and of a very negative one 0: the larger L leaves both first"
    return merged_slip(o.double(), L.double(), halves, right)


# %% check="q1-values" points=6
def check_merge(*halves, what):
    """Both halves together, against the same in float64 or by hand, and the other way round."""
    dtype, form = halves[0].dtype, (halves[0].shape, halves[1].shape)
    first, first_L, second, second_L = (each.double() for each in halves)
    every = torch.stack([first_L, second_L])
    shares = torch.where((every == -math.inf).all(0), 0, every.softmax(0))
    parts = zip(shares, (first, second))
    right = sum((share[..., None] * part).where(share[..., None] > 0, 0) for share, part in parts), every.logsumexp(0)
    for turn in (halves, (*halves[2:], *halves[:2])):
        came = pair_of(check.call(merge, *turn), what, form, dtype)
        look = merged_hint(came, turn, right)
        for each, name, exact in zip(came, ("o", "L"), right):
            check.close(each, exact.to(dtype), f"{what}: {name}", operations=16, look=look)


check_merge(row(1.0)[:, None], row(0.0), row(5.0)[:, None], row(math.log(3)), what="weights 1 and 3")
check_merge(TWO_ROWS, row(0.5, -1.5), TWO_ROWS.flip(0) - 3, row(0.25, 2.0), what="two rows of three features")

# %% check="q1-empty" points=7
nothing, nan = -math.inf, math.nan
for dtype in (torch.float64, torch.float32):
    here, there = torch.tensor([[1, 2], [nan, nan]], dtype=dtype), torch.tensor([[nan, nan], [3, 4]], dtype=dtype)
    check_merge(here, row(0.5, nothing, dtype=dtype), there, row(nothing, -1.5, dtype=dtype), what="one half is empty")
    both = here[1:], row(nothing, dtype=dtype), there[:1], row(nothing, dtype=dtype)
    check_merge(*both, what="both halves are empty")
    for size in (1000.0, -1000.0):
        far = row(size, size + 1, size, dtype=dtype)
        check_merge(TWO_ROWS.T.to(dtype), far, TWO_ROWS.T.flip(0).to(dtype), far.flip(0) - 1, what=f"L around {size:g}")
check_merge(TWO_ROWS, row(-800.0, 900.0), TWO_ROWS + 1, row(800.0, -900.0), what="L of both signs, far apart")

# %% check="q1-hidden" points=7
# Other shapes and values; no rows; twelve keys, one after the other, as tiles come; calls as in training.
### BEGIN HIDDEN TESTS
def hidden_halves(shape, seed, dtype=torch.float64, size=1.0, shift=0.0, holes=True):
    generator = torch.Generator().manual_seed(seed)
    halves = []
    for _ in range(2):
        o = torch.randn(shape, generator=generator, dtype=torch.float64)
        L = size * torch.randn(shape[:-1], generator=generator, dtype=torch.float64) + shift
        if holes:
            hole = torch.rand(shape[:-1], generator=generator) < 0.3
            L[hole], o[hole] = -math.inf, math.nan
        halves += [o.to(dtype), L.to(dtype)]
    return halves


#: other shapes and values
check_merge(*hidden_halves((5, 7, 3), 0), what="[5, 7, 3]")
check_merge(*hidden_halves((5, 7, 3), 1, size=3), what="[5, 7, 3], other values")
check_merge(*hidden_halves((2, 3, 4, 6), 2, torch.float32, 2), what="[2, 3, 4, 6] in float32")
check_merge(*hidden_halves((9, 1), 3, torch.float32, 300, 2e4), what="[9, 1], L around 20,000")
check_merge(*hidden_halves((9, 2), 15, torch.float32, 1, 2e4), what="[9, 2], L around 20,000 and close together")
check_merge(*hidden_halves((9, 4), 4, torch.float64, 900, -3e5), what="[9, 4], L around -300,000")
check_merge(*hidden_halves((6,), 5, holes=False), what="[6]: one row")
check_merge(*(each.transpose(0, 1) for each in hidden_halves((4, 6, 3), 6)), what="rows across in memory")
#: no rows
check_merge(*hidden_halves((0, 4), 7), what="no rows")
#: one after the other
hidden_scores = 6 * torch.randn(5, 12, generator=torch.Generator().manual_seed(8))
hidden_values = torch.randn(12, 3, generator=torch.Generator().manual_seed(9))
hidden_came = torch.full((5, 3), math.nan), torch.full((5,), -math.inf)
for hidden_key in range(12):
    hidden_one = hidden_values[hidden_key].expand(5, 3), hidden_scores[:, hidden_key]
    hidden_came = pair_of(check.call(merge, *hidden_came, *hidden_one), "merge", ((5, 3), (5,)), torch.float32)
check.close(hidden_came[0], hidden_scores.softmax(1) @ hidden_values, "twelve keys, one after the other", operations=64)
check.close(hidden_came[1], hidden_scores.logsumexp(1), "… and their L", operations=64)


def hidden_joined(*halves):
    """o and L of both halves as one tensor."""
    o, L = merge(*halves)
    return torch.cat([o, L[..., None]], -1)


def hidden_case(seed, size, dtype):
    halves = hidden_halves((4, 6, 3), seed, dtype, size, holes=False)
    first, first_L, second, second_L = (each.double() for each in halves)
    every = torch.stack([first_L, second_L])
    shares = every.softmax(0)[..., None]
    right = torch.cat([shares[0] * first + shares[1] * second, every.logsumexp(0)[..., None]], -1)
    return habits.Case(halves, right.to(dtype))


#: calls as in training
hidden_ways = [{"seed": 10 + turn, "size": 2000.0 * (turn < 2) + 1, "dtype": torch.float64} for turn in range(4)]
habits.as_in_training(hidden_joined, hidden_case, [*hidden_ways, hidden_ways[0] | {"dtype": torch.float32}])
check.written_with(merge, forbidden=FINISHED)
#= `first`, `second` | one_dim_before_width
#= `first_L`, `second_L` | one_dim_before_width
#= All have one dtype | float32_inside
#= There may be any | one_dim_before_width
#= Every `L` is | max_not_subtracted
#= Rows of `o` whose | zero_times_nan
#= `o` has the error | shares_through_a_rounded_L
#= Returns the pair | float32_inside L_in_base_two
#= A row that is empty | empty_rows_are_nan zero_by_zero
#= (o, L) of both halves | halves_weigh_the_same winner_takes_all
### END HIDDEN TESTS

# %% [markdown]
# ## 2 · Which tiles are worth a visit (20 points)
#
# Cut each text into blocks of `tile` tokens, counted from the text's own start. (Its last block may be shorter.) A
# *tile* of the table is a block of queries against a block of keys, and a tile in which no query sees a key costs
# nothing if you never go there. Most tiles are like that.

# %%
guess_share = ask("One text of 4,096 tokens, window 512, tile 128: which part of all tiles is visible?")

# %% [markdown]
# **Your contract.** `visible_tiles(starts, window, tile)`
#
# - `starts` as above; `window` and `tile`: ints of 1 or more. Texts may be shorter than a tile or empty, and a window
# may be longer than any text.
# - Returns a list of `(a, b, c, d)`, four ints each: queries from token a up to, not including, b, and keys from
# c up to, not including, d. These are token numbers in the whole tensor. The list has the tiles with at least one
# visible pair, each once, ordered by queries and then by keys.
# - The work grows with the number of *visible* tiles: a million tokens with a short window take a fraction of a second.
# - It is arithmetic with these numbers, without tensors.
#
# **Graded:** small texts (7 points), a window against tiles, and a million tokens (6), and further texts (7).


# %% answer="q2"
def visible_tiles(starts, window, tile):
    """The tiles with at least one visible pair, as (first query, end, first key, end)."""
    ### BEGIN SOLUTION
    tiles = []
    for start, end in zip(starts, starts[1:]):
        for a in range(start, end, tile):
            oldest = max(start, a - window + 1)  # the first key that the block's first query sees
            first = oldest - (oldest - start) % tile
            tiles += [(a, min(a + tile, end), c, min(c + tile, end)) for c in range(first, a + 1, tile)]
    return tiles
    ### END SOLUTION


# %% [markdown]
# Texts of 7 and 12 tokens, window 5, tiles of 2. Filled squares are visited:


# %%
def drawn(starts, window, tile):
    """The table of tiles as text, a row for each block of queries."""
    blocks = [a for start, end in zip(starts, starts[1:]) for a in range(start, end, tile)]
    tiles = {(a, c) for a, _, c, _ in visible_tiles(starts, window, tile)}
    return "\n".join(" ".join("■" if (a, c) in tiles else "·" for c in blocks) for a in blocks)


print(drawn([0, 7, 19], window=5, tile=2))

# %% [markdown]
# Now the guess. By hand: the first rows of blocks have 1, 2, 3 and 4 tiles, and every further one has 5.

# %%
share_by_hand = (1 + 2 + 3 + 4 + 28 * 5) / 32**2
share = len(visible_tiles([0, 4096], 512, 128)) / 32**2
compare(guess=guess_share, predicted=share_by_hand, measured=share, name="visible tiles, of all")


# %%
def wrong_tile(a, b, c, d, starts, tile):
    """What is wrong with the form of one tile; nothing if it is two blocks of one text."""
    text = [start for start, end in zip(starts, starts[1:]) if start <= a < end]
    if not text or b > starts[-1] or d > starts[-1]:
        return f"{(a, b, c, d)}: all of a tile lies in one text"
    end = min(end for end in starts if end > a)
    if not (text[0] <= c and b <= end and d <= end):
        return f"{(a, b, c, d)}: queries and keys of a tile are of one text, which ends at {end}"
    if (a - text[0]) % tile or (c - text[0]) % tile:
        return f"{(a, b, c, d)}: blocks are counted from the start of their own text, {text[0]}"
    if (b - a, d - c) != (min(tile, end - a), min(tile, end - c)):
        return f"{(a, b, c, d)}: a block has {tile} tokens, the last one of a text what is left"
    return ""


# %%
def wrong_tiles(came, right, starts, window, tile):
    """What a wrong list of tiles says about the fault."""
    if len(set(came)) < len(came):
        return "a tile that stands in the list twice"
    if sorted(came) == right:
        return "the order: by queries, then by keys"
    extra, missing = sorted(set(came) - set(right)), sorted(set(right) - set(came))
    a, b, c, d = (extra or missing)[0]
    if form := wrong_tile(a, b, c, d, starts, tile):
        return form
    if extra:
        gap = "its keys are all later than its queries" if c >= b else f"query {a} sees no key before {a - window + 1}"
        return f"{(a, b, c, d)} has no visible pair: {gap}"
    return f"{(a, b, c, d)} is missing: which keys does query {a} see, itself among them?"


# %%
def tiles_of(came, what):
    """The list that came, its entries as tuples, if each is four ints."""
    look = "what the contract says it returns"
    if not isinstance(came, list | tuple):
        check.that(False, what, expected="a list", came=str(type(came)), look=look)
    for each in came:
        if not isinstance(each, list | tuple) or list(map(type, each)) != [int] * 4:
            check.that(False, what, expected="(a, b, c, d), four ints", came=str(each)[:200], look=look)
    return list(map(tuple, came))


def tiles_by_pairs(starts, window, tile):
    """The tiles with a visible pair, found in the table of all pairs."""
    pairs, texts = visible(starts, window), zip(starts, starts[1:])
    blocks = [(a, min(a + tile, end)) for start, end in texts for a in range(start, end, tile)]
    return [(a, b, c, d) for a, b in blocks for c, d in blocks if pairs[a:b, c:d].any()]


# %% check="q2-small" points=7
def check_tiles(lengths, window, tile):
    """The list, against the table of all pairs."""
    starts = [sum(lengths[:place]) for place in range(len(lengths) + 1)]
    right = tiles_by_pairs(starts, window, tile)
    what = f"texts of {list(lengths)} tokens, window {window}, tile {tile}"
    came = tiles_of(check.call(without_torch(visible_tiles, []), list(starts), window, tile), what)
    look = "" if came == right else wrong_tiles(came, right, starts, window, tile)
    check.that(came == right, what, expected=f"{len(right)} tiles", came=f"{len(came)} tiles", look=look)


check_tiles([6], 6, 2)
check_tiles([7], 100, 3)
check_tiles([4, 5], 9, 2)
check_tiles([3, 0, 8], 3, 4)

# %% check="q2-window" points=6
for window in range(1, 9):
    check_tiles([12], window, 3)
check_tiles([2, 9], 1, 1)
check_tiles([1, 1, 1], 2, 16)
look = "the loop over keys: it begins with the first visible block, and does not try those before"
long_list = within(10, visible_tiles, [0, 2**20], 100, 16, look=look)
check.that(len(long_list) == 524_260, "a million tokens, window 100, tile 16: the number of tiles", look=look)

# %% check="q2-hidden" points=7
# Further texts, windows and tiles; a million tokens in many texts.
### BEGIN HIDDEN TESTS
import random as _random

_dice = _random.Random(16)
#: further texts, windows and tiles
for _ in range(40):
    _lengths = [_dice.choice((0, 1, 2, 5, 9, 14)) for _ in range(_dice.randint(1, 5))]
    check_tiles(_lengths, _dice.choice((1, 2, 3, 4, 7, 11, 40)), _dice.choice((1, 2, 3, 4, 5, 16)))
check_tiles([0], 3, 2)
for _lengths in ([4, 9], [9, 4], [0, 13]):  # as many texts and tokens, cut elsewhere
    check_tiles(_lengths, 3, 4)
#: a million tokens in many texts
_starts = [*range(0, 2**20, 64), 2**20]
_came = within(10, visible_tiles, _starts, 10**9, 32)
check.equal(len(_came), 3 * 2**14, "texts of 64 tokens, tiles of 32: three tiles each")
#= `starts` as above | texts_run_together
#= `window` and `tile` | window_off_by_one
#= Texts may be shorter | length_not_divisible
#= Returns a list of | keys_cut_at_the_window
#= These are token numbers | numbers_within_the_text
#= The list has the tiles | window_forgotten future_tiles order_by_keys
#= The work grows | tries_all_tiles
#= It is arithmetic | counts_in_tensors
#= The tiles with at least | diagonal_left_out
### END HIDDEN TESTS

# %% [markdown]
# ## 3 · Forward, tile by tile (30 points)
#
# Walk over the tiles. In each, the scores of its queries and keys become numbers that you use at once and forget: a
# part of `o` with its `L`, merged into what those queries have so far. (You may merge by your question 1, or keep the
# running maximum and sum of lesson 16 yourself.) In a tile some queries may see no key at all, although the tile is
# visible. What are their maximum and their sum?
#
# All heads of a group read the same keys. If you copy these for each head, you move four times as many bytes for four
# heads. But queries of several heads against one set of keys are a matrix product with more rows: see what
# `q.unflatten(0, (groups, -1))` looks like.
#
# **Your contract.** `attend(q, k, v, starts, window, tile)`
#
# - `q`: `[heads, tokens, width]`; `k`, `v`: `[groups, tokens, width]`, of one dtype, float32 or float64, with any
# strides. `starts`, `window`, `tile` as in question 2; `tokens` may be more than `starts[-1]`.
# - Returns `(o, L)`: `o` `[heads, tokens, width]` and `L` `[heads, tokens]`, in the dtype of the inputs, which is also
# that of all floating-point tensors on the way. Tokens behind the last text have `o = 0` and `L = -inf`.
# - **Error:** at most 4 times that of `explicit` in the same dtype, both against float64. (Four roundings of the
# largest score are always allowed: a score of 1,000 cannot be known better.)
# - **FLOPs:** at most 1.15 times those of the visible tiles, $4 \cdot \text{heads} \cdot \text{width}$ for each pair
# of a tile. They are the matrix products of torch (`@`, `bmm`, `einsum`), of which there are at most two for each tile,
# however many heads there are.
# - **What these products read and write**, operands and results: at most 1.25 times the bytes of two products a tile
# with keys and values once for a group.
# - **Bytes at the peak**, beyond the inputs: at most twice `o` and `L`, and room for
# `8 * heads * tile * (tile + width)` numbers and 64 KiB. Nothing there grows with `tokens`².
# - **Processor time:** less than `explicit` needs where the window is short.
#
# **Graded:** values (8 points), extremes (6), bytes, FLOPs and time (8), and further texts, heads and tiles (8).


# %% answer="q3"
def attend(q, k, v, starts, window, tile):
    """(o, L) of attention within texts and a window, tile by tile."""
    ### BEGIN SOLUTION
    heads = q.unflatten(0, (len(k), -1))  # [groups, heads of a group, tokens, width]
    o, L = heads.new_zeros(heads.shape), heads.new_full(heads.shape[:3], -math.inf)
    for a, b, c, d in visible_tiles(starts, window, tile):
        rows = heads[:, :, a:b].flatten(1, 2)  # the heads of a group are rows of one product
        scores = (rows @ k[:, c:d].mT / math.sqrt(q.shape[-1])).unflatten(1, (-1, b - a))
        age = torch.arange(a, b)[:, None] - torch.arange(c, d)
        scores = scores.masked_fill((age < 0) | (age >= window), -math.inf)
        most = scores.amax(-1, keepdim=True)
        most = most.masked_fill(most == -math.inf, 0)  # a row that sees no key of this tile
        weights = (scores - most).exp()
        total = weights.sum(-1, keepdim=True)
        part = (weights / total.masked_fill(total == 0, 1)).flatten(1, 2) @ v[:, c:d]
        now = part.unflatten(1, (-1, b - a)), (most + total.log())[..., 0]
        o[:, :, a:b], L[:, :, a:b] = merge(o[:, :, a:b], L[:, :, a:b], *now)
    return o.flatten(0, 1), L.flatten(0, 1)
    ### END SOLUTION


# %% [markdown]
# Two texts, and two places behind them:

# %%
q, k, v, starts = problem([5, 9], behind=2)
o, L = attend(q, k, v, starts, window=4, tile=3)
print("L of head 0:", [round(number, 2) for number in L[0].tolist()])

# %% [markdown]
# The checks look at each operation of an answer. Memory that `torch.empty` returns holds NaN there, as it may on any
# day, and other threads are counted with yours.


# %%
LIBRARIES = "course_lib", "course_pages", "flex_attention"


def whose():
    """Which of these libraries' code calls the operation that runs."""
    frame = sys._getframe(2)
    while frame is not None and not frame.f_code.co_filename.endswith("check.py"):
        yield from (name for name in LIBRARIES if name in frame.f_code.co_filename)
        frame = frame.f_back


# %%
PRODUCTS = "mm", "bmm", "addmm", "baddbmm", "addbmm"


def count_product(counts, tensors, made):
    """Counts one matrix product, its FLOPs, and the bytes that it reads and writes."""
    left, right = tensors[-2:]
    counts["products"] += 1
    counts["flops"] += 2 * left.numel() * right.shape[-1]
    counts["moved"] += (left.numel() + right.numel() + made.numel()) * made.itemsize


# %%
def dtypes_of(*made):
    """The floating-point dtypes of the tensors among these that have more than one number."""
    tensors = [each for each in made if isinstance(each, torch.Tensor) and each.numel() > 1]
    return {each.dtype for each in tensors if each.is_floating_point()}


def taken(counts):
    """The counts so far, which begin anew."""
    so_far = dict(counts)
    counts.update(dict.fromkeys(counts, 0))
    return so_far


# %%
class Seen(TorchDispatchMode):
    """Counts matrix products with what they read and write, and notes dtypes and finished attention."""

    def __init__(self, like=None):
        super().__init__()
        self.counts = like.counts if like else {"products": 0, "flops": 0, "moved": 0}
        self.dtypes, self.finished = (like.dtypes, like.finished) if like else (set(), set())

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made, name = func(*args, **(kwargs or {})), func._schema.name.removeprefix("aten::")
        tensors = [each for each in args if isinstance(each, torch.Tensor)]
        self.dtypes.update(dtypes_of(*tensors, made))
        if name in PRODUCTS:
            count_product(self.counts, tensors, made)
        if "attention" in name or "safe_softmax" in name or "convolution" in name:
            self.finished.add(name.strip("_"))
        self.finished.update(whose())
        if "empty" in name and isinstance(made, torch.Tensor) and made.is_floating_point():
            made.fill_(math.nan)
        return made


# %%
class InAllThreads:
    """While this is open, threads that begin count with the one that opened it."""

    def __init__(self, seen):
        self.seen = seen

    def __enter__(self):
        self.before, seen = threading.Thread._bootstrap_inner, self.seen

        def counted(thread):
            with Seen(like=seen):
                self.before(thread)

        threading.Thread._bootstrap_inner = counted
        return self

    def __exit__(self, *_):
        threading.Thread._bootstrap_inner = self.before


# %%
def watched(fn, *args, tensors=()):
    """(what fn returns, what was seen, its record of memory), all of one call."""
    seen = Seen()
    with torch.enable_grad(), seen, InAllThreads(seen), measure.memory(inputs=list(tensors), lines=True) as record:
        came = check.call(fn, *args)
    return came, seen, record


# %%
def budget(starts, window, tile, heads, groups, width, itemsize, products=2):
    """What the visible tiles cost: products, FLOPs, FLOPs of the visible pairs alone, and bytes that products move.

    Forward there are two products a tile, backward five, and D may be one more.
    """
    tiles = [
        (a, min(a + tile, end), c, min(c + tile, end))
        for start, end in zip(starts, starts[1:])
        for a in range(start, end, tile)
        for c in range(start, a + 1, tile)
        if min(c + tile, end) > a - window + 1
    ]
    sizes = [(b - a, d - c) for a, b, c, d in tiles]
    pairs, each = sum(rows * keys for rows, keys in sizes), 2 * heads * width
    large = [(a, b, c, d) for a, b, c, d in tiles if b - a > 1 and d - c > 1]  # with one row, einsum only multiplies
    spans = ((max(c, i - window + 1), min(d, i + 1)) for a, b, c, d in large for i in range(a, b))
    seen = sum(max(0, last - first) for first, last in spans)
    moved = sum(heads * rows * (width + keys) + groups * keys * width for rows, keys in sizes)
    counts = {"tiles": len(sizes), "flops": products * each * pairs, "least": products * each * seen}
    return counts | {"products": products * len(sizes) + (products == 5), "moved": products * moved * itemsize}


# %%
def check_own(seen, counts, cost, dtype, what):
    """Work of one's own, in the dtype that came: what each answer owes, also where its costs do not count."""
    none = "the rules: what is finished is not for answers"
    if seen.finished:
        check.that(False, f"{what}: work of your own", came=f"also {', '.join(sorted(seen.finished))}", look=none)
    others = sorted(str(each)[6:] for each in seen.dtypes - {dtype})
    if others:
        look = "the dtype of each tensor that is made on the way; masks may be bools, and numbers Python's"
        check.that(False, f"{what}: all in {str(dtype)[6:]}", came=f"also {', '.join(others)}", look=look)
    if counts["flops"] < cost["least"]:
        look = "what torch multiplies by @ or bmm while you are called: the visible pairs need that much"
        check.at_least(Flops(counts["flops"]), Flops(cost["least"]), f"{what}: FLOPs of matrix products", look=look)


# %%
def check_counts(counts, cost, what):
    """What an answer has done, against what the tiles cost; it is right already."""
    look = "tiles without a visible pair, and products that are made twice"
    check.at_most(Flops(counts["flops"]), Flops(1.15 * cost["flops"]), f"{what} FLOPs of matrix products", look=look)
    look = "loops over heads, texts or rows inside a tile: they are rows of one product"
    check.at_most(counts["products"], cost["products"], f"{what} matrix products of {cost['tiles']} tiles", look=look)
    look = "the shapes of what you multiply: keys and values are one matrix for all heads of a group"
    moved, most = Bytes(counts["moved"]), Bytes(1.25 * cost["moved"])
    check.at_most(moved, most, f"{what} bytes that matrix products read and write", look=look)


# %% [markdown]
# What an answer is wrong about, the checks try to find out by computing some mistakes themselves.


# %%
def blocks_of(starts, tile):
    """The block of each token in its own text."""
    return torch.cat([torch.arange(end - start) // tile for start, end in zip(starts, starts[1:])])


def by_blocks(starts, window, tile):
    """Which token sees which if queries see later keys of their own block, and if the window is left to the tiles."""
    block = blocks_of(starts, tile)
    token, texts = torch.arange(starts[-1]), visible(starts, 10**9)
    later = (texts | texts.T) & (block[:, None] == block) & (token[:, None] < token)
    reached = block[:, None] * tile - window + 1 < (block + 1) * tile
    return visible(starts, window) | later, texts & reached


# %%
def slips(q, k, v, starts, window, tile):
    """What some slips come to, in float64, and where to look then."""
    r, (future, tiles_alone) = len(q) // len(k), by_blocks(starts, window, tile)
    other = "the window: a query is itself one of the `window` keys that it sees"
    yield explicit(q, k, v, starts, window + 1), other
    yield explicit(q, k, v, starts, max(1, window - 1)), other
    yield explicit(q, k, v, starts, 10**9), "the window"
    yield explicit(q, k, v, [0, starts[-1]], window), "no query sees a key of another text"
    yield explicit(q, k, v, starts, window, future), "no query sees a later key"
    cut = "the window cuts through tiles: not all pairs of such a tile are visible"
    yield explicit(q, k, v, starts, window, tiles_alone), cut
    yield explicit(q * math.sqrt(q.shape[-1]), k, v, starts, window), "the scores are divided by the root of width"
    yield explicit(q / math.sqrt(q.shape[-1]), k, v, starts, window), "the scores are divided by the root of width once"
    yield explicit(q, k.repeat(r, 1, 1), v.repeat(r, 1, 1), starts, window), "which query head reads which group's keys"
    wide = k.repeat_interleave(r, 0), v.repeat(r, 1, 1)
    yield explicit(q, *wide, starts, window), "which query head reads which group's values"


# %%
def slip_hint(o, right_o, case, tile):
    """What a wrong o without NaN says about the fault."""
    for (slip, _), look in slips(*case, tile):
        if torch.allclose(o, slip[:, : o.shape[1]], 1e-3, 1e-4):
            return look
    head, token = (o - right_o).abs().amax(-1).gt(1e-4).nonzero()[0].tolist()
    start = max(start for start in case[3] if start <= token)
    place = f"first wrong at head {head}, token {token - start} of its text, in block {(token - start) // tile}"
    least = float(by_group(*case[:2], case[3][-1])[:, visible(*case[3:])].min())
    if least < -1000:
        return f"{place}. Visible scores go down to {least:.3g} here: what do pairs have that are not visible?"
    if token - start >= tile:
        return f"{place}: a row with keys in several tiles. What becomes of the earlier part when a larger score comes?"
    return place


# %%
def attend_hint(came, right, case, tile):
    """What a wrong (o, L) says about the fault; the case in float64."""
    (o, L), n = (each.double() for each in came), case[3][-1]
    if o[:, n:].ne(0).any() or L[:, n:].ne(-math.inf).any():
        return "tokens behind the last text: o = 0 and L = -inf, whatever memory held there"
    o, L, right = o[:, :n], L[:, :n], [each[:, :n] for each in right]
    if o.isnan().any() or L.isnan().any():
        head, token = (o.isnan().any(-1) | L.isnan()).nonzero()[0].tolist()
        fresh = "a row that sees no key of a tile (-inf - (-inf), 0 / 0), inf / inf, or memory that was never written"
        return f"NaN, first at head {head}, token {token}: {fresh}"
    if torch.allclose(o, right[0], 1e-4, 1e-5) and torch.allclose(L, right[1], 1e-5, 1e-5):
        return "rounding alone: which numbers become large on the way, and what is added up in which order"
    if torch.allclose(o, right[0], 1e-4, 1e-5):
        if torch.allclose(L * math.log(2), right[1], 1e-4, 1e-5):
            return "L is a natural logarithm"
        return "o is right and L is not: the log of the row's whole sum, with the maximum that left put back"
    return slip_hint(o, right[0], case, tile)


# %%
def near(came, exact, plain, what, look, size=0.0):
    """At most four times as far from the exact numbers as the long way in the same dtype, or four roundings of size."""
    eps, came, exact, plain = torch.finfo(came.dtype).eps, came.double(), exact.detach(), plain.detach().double()
    real = exact.isfinite()
    if not (came.isfinite().equal(real) and came[~real].equal(exact[~real])):
        check.that(False, f"{what}: finite where it should be", look=look)
    far = (exact, came - exact, plain - exact)
    worst, error, long_way = (max(each[real].abs().flatten().tolist(), default=0.0) for each in far)
    check.at_most(error, max(4 * long_way, 4 * eps * max(worst, size)), f"{what}: error against float64", look=look)


def steepness(q, k, starts, window):
    """The largest visible score, at least 1: a score of 1,000 has an error of 1,000 roundings of 1."""
    scores = by_group(q, k, starts[-1])[:, visible(starts, window)].abs()
    return max(1.0, float(scores.max()) if scores.numel() else 0.0)


def by_group(q, k, n):
    """All scores of the first n tokens."""
    return q[:, :n] @ k[:, :n].repeat_interleave(len(q) // len(k), 0).mT / math.sqrt(q.shape[-1])


# %%
def check_room(q, came, tile, record, what):
    """Bytes at the peak: o and L, twice, and some tiles."""
    room = 8 * len(q) * tile * (tile + q.shape[-1]) * q.itemsize + 2**16
    most = Bytes(2 * sum(each.nbytes for each in came) + room)
    look = "what grows with the tokens: only o and L may; scores, and which of them are visible, last for one tile"
    check.at_most(held(record), most, f"{what}: bytes at the peak", look=look)


# %%
def check_attend(*case, window, tile, count=False, **more):
    """(o, L) of one call, right, and then cheap; returns its record."""
    q, k, v, starts = problem(*case, **more)
    what = f"texts of {list(case[0])} tokens, {len(q)} heads, {len(k)} groups, window {window}, tile {tile}"
    came, seen, record = watched(attend, q, k, v, starts, window, tile, tensors=(q, k, v))
    came = pair_of(came, what, (q.shape, q.shape[:2]), q.dtype)
    exact_case = (q.double(), k.double(), v.double(), starts, window)
    exact, plain = explicit(*exact_case), explicit(q, k, v, starts, window)
    look = attend_hint(came, exact, exact_case, tile)
    for each, name, right, long_way in zip(came, ("o", "L"), exact, plain):
        near(each, right, long_way, f"{what}: {name}", look, steepness(*exact_case[:2], starts, window))
    cost = budget(starts, window, tile, len(q), len(k), q.shape[-1], q.itemsize)
    check_own(seen, seen.counts, cost, q.dtype, what)
    if count:
        check_counts(seen.counts, cost, f"{what}:")
        check_room(q, came, tile, record, what)
    return came



# %% check="q3-values" points=8
_ = check_attend([4], 1, 1, window=4, tile=4)
_ = check_attend([6], 1, 1, window=6, tile=2)
_ = check_attend([7, 12], window=5, tile=3)
_ = check_attend([7, 12], window=5, tile=3, seed=1, size=3)  # other values of the same shapes
_ = check_attend([3, 0, 11], 6, 2, 5, behind=3, window=2, tile=4)
_ = check_attend([9], 4, 1, window=100, tile=16, dense=True)
_ = check_attend([9, 2], 3, 3, window=1, tile=2, dtype=torch.float64)

# %% check="q3-extremes" points=6
for lean in ((60, 60), (60, -60), (2000, 9), (2000, -9)):
    _ = check_attend([13, 6], window=7, tile=4, lean=lean, seed=2)
_ = check_attend([13, 6], window=7, tile=4, size=30, seed=3)
_ = check_attend([13, 6], window=3, tile=8, size=1e-4, seed=4)
_ = check_attend([0], window=3, tile=8, behind=4)


# %%
def processor_seconds(fn, *args, calls=2):
    """Processor time of a call, in all of this process's threads: of two calls the shorter."""
    found = []
    for _ in range(calls):
        start = time.process_time()
        fn(*args)
        found.append(time.process_time() - start)
    return min(found)


# %%
def check_long(tokens=2048, window=64, tile=64, **more):
    """One long text and a short window: less processor time than the long way, and no room for tokens² of anything."""
    q, k, v, starts = problem([tokens], 4, 2, 32, **more)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        mine = check.call(processor_seconds, attend, q, k, v, starts, window, tile)
        long_way = processor_seconds(explicit, q, k, v, starts, window, calls=1)
    finally:
        torch.set_num_threads(threads)
    look = "work for each token in Python instead of for each tile; tiles that nobody sees"
    what = f"{tokens:,} tokens, window {window}: processor time over that of the long way"
    check.at_most(round(mine / long_way, 2), 1.0, what, look=look)
    came, _, record = watched(attend, q, k, v, starts, window, tile, tensors=(q, k, v))
    check_room(q, came, tile, record, f"{tokens:,} tokens, window {window}")


# %% check="q3-costs" points=8
for tokens in (96, 192, 384):
    _ = check_attend([tokens], 4, 2, 48, window=tokens, tile=32, count=True)
_ = check_attend([256, 251], 8, 2, 48, window=48, tile=16, count=True)
_ = check_attend([400], 2, 1, 8, window=400, tile=64, count=True)  # a tile that is larger than the width
check.written_with(attend, forbidden=FINISHED)
check_long()

# %% check="q3-hidden" points=8
# Other texts, heads, windows and tiles; float64; bytes, FLOPs and time; memory outside of torch.
### BEGIN HIDDEN TESTS
#: other texts, heads, windows and tiles
with habits.Unfilled():
    _ = check_attend([1, 2, 17], 4, 4, 3, window=6, tile=5, seed=5, behind=1)
_ = check_attend([20], 8, 2, 7, window=9, tile=1, seed=6)
_ = check_attend([5, 5, 5, 5], 5, 5, 4, window=3, tile=7, seed=7, dense=True)
_ = check_attend([31], 9, 3, 6, window=30, tile=4, seed=8)
_ = check_attend([31], 9, 3, 6, window=31, tile=4, seed=9, lean=(-50, 50))
_ = check_attend([31], 9, 3, 6, window=33, tile=64, seed=10, size=12)
#: float64
_ = check_attend([11, 8], 6, 2, 5, window=4, tile=4, seed=11, dtype=torch.float64)
_ = check_attend([11, 8], 6, 2, 5, window=40, tile=3, seed=12, dtype=torch.float64, lean=(3000, -20), behind=2)
_ = check_attend([11, 8], 6, 2, 5, window=5, tile=3, seed=16, dtype=torch.float64, lean=(-3000, 3000))
#: bytes, FLOPs and time
_ = check_attend([400, 68], 6, 2, 48, window=10**6, tile=32, seed=13, count=True)
_ = check_attend([300, 68], 16, 1, 64, window=20, tile=16, seed=14, count=True)
check_long(1900, 200, 50, seed=15)
#: memory outside of torch
_q, _k, _v, _starts = problem([1024], 8, 2, 32)
with outside_torch() as _outside:
    check.call(attend, _q, _k, _v, _starts, 1024, 64)
    check.at_most(_outside(), Bytes(8 * 4 * 8 * 1024), "bytes that are still held after the call", look="module state")
#= `q`: `[heads | heads_dealt_out
#= `k`, `v` | needs_tensors_in_one_piece
#= `starts`, `window`, `tile` as | window_off_by_one
#= `tokens` may be more | fresh_memory
#= Returns `(o, L)` | float64_inside sixteen_bits_inside
#= Tokens behind the last | fresh_memory
#= **Error:** | rescaling_forgotten sixteen_bits_inside
#= (Four roundings | - a permission
#= **FLOPs:** | computes_masked_tiles
#= They are the matrix | head_after_head finished_kernel in_another_thread
#= **What these products | expands_keys_and_values
#= **Bytes at the peak** | keeps_all_shares
#= Nothing there grows | mask_of_all_pairs
#= **Processor time:** | asked_pair_by_pair
#= (o, L) of attention | last_tile_wins whole_table
### END HIDDEN TESTS

# %% [markdown]
# ## 4 · Backward, from one number a row (30 points)
#
# The backward pass needs each tile's softmax again, and all that has been kept of it is `L`. With the score $s$ of a
# pair, $p = e^{s - L}$ is its share, without any maximum and without a second pass. Given the gradient $g$ of the
# output's rows:
#
# $$\mathrm{d}v = p^\top g, \qquad \mathrm{d}s = p \circ (g\, v^\top - D), \qquad D = \mathrm{rowsum}(g \circ o).$$
#
# $D$ is one number for each row, and it stands for the sum over *all* of the row's keys, those of other tiles too
# (Dao et al. 2022, §3.1 and appendix B). From $\mathrm{d}s$ come the gradients of queries and keys, and
# the scale belongs to both. And a key that serves several heads hears from all of them.

# %%
guess_bytes = ask("4,096 tokens, 8 heads of 64: bytes of the table of scores over those of o and L?")

# %% [markdown]
# **Your contract.** `TiledAttention`, an `autograd.Function`: `o = TiledAttention.apply(q, k, v, starts, window, tile)`
#
# - Arguments as in question 3; `q`, `k` and `v` want gradients, all or some. Returns `o` alone.
# - **Saved** for the backward pass: `q`, `k`, `v`, `o` and `L`, and nothing else that grows with the tokens. When nobody
# wants `o` any more, it is gone: an output that `ctx` holds by a name of its own holds `ctx`, and both stay.
# `save_for_backward` knows that. Another backward pass through the same graph gives the same.
# - `backward` gets the gradient of `o`, with any strides, which it leaves as it is, and returns those of `q`, `k` and
# `v`. Tokens behind the last text have gradients of 0, whatever the gradient of `o` holds there.
# - **Error** of each gradient: as in question 3, against `explicit_back` below. Everything is computed in one dtype.
# - **FLOPs of `backward`:** at most 1.15 times those of five products for each visible tile; at most five matrix
# products for each, and one besides ($D$, say); they read and write at most 1.25 times the bytes of five with one set
# of keys, values and their gradients for a group.
# - **Bytes at the peak** of both passes, beyond the inputs and the gradient of `o`: at most twice `o`, `L` and the
# three gradients, and room for `12 * heads * tile * (tile + width)` numbers and 64 KiB.
#
# **Graded:** gradients (9 points), extremes (6), what is saved, bytes and FLOPs (7), and further texts, heads and
# tiles (8).


# %% answer="q4"
class TiledAttention(torch.autograd.Function):
    """Attention within texts and a window that saves L and no scores."""

    @staticmethod
    def forward(ctx, q, k, v, starts, window, tile):
        """o, from `attend`."""
        ### BEGIN SOLUTION
        o, L = attend(q, k, v, starts, window, tile)
        ctx.save_for_backward(q, k, v, o, L)
        ctx.shape = starts, window, tile
        return o
        ### END SOLUTION

    @staticmethod
    def backward(ctx, grad):
        """The gradients of q, k and v, from `grad`, that of o; None for the rest."""
        ### BEGIN SOLUTION
        q, k, v, o, L = ctx.saved_tensors
        starts, window, tile = ctx.shape
        dq, dk, dv = (torch.zeros_like(each, memory_format=torch.contiguous_format) for each in (q, k, v))
        for a, b, c, d in visible_tiles(starts, window, tile):
            cut = (each[:, a:b].unflatten(0, (len(k), -1)).flatten(1, 2) for each in (q, grad, o, L[..., None]))
            rows, g, out, lse = cut
            age = torch.arange(a, b)[:, None] - torch.arange(c, d)
            hidden = ((age < 0) | (age >= window)).repeat(len(q) // len(k), 1)
            p = (rows @ k[:, c:d].mT / math.sqrt(q.shape[-1]) - lse).masked_fill(hidden, -math.inf).exp()
            dv[:, c:d] += p.mT @ g
            ds = p * (g @ v[:, c:d].mT - (g * out).sum(-1, keepdim=True)) / math.sqrt(q.shape[-1])
            dk[:, c:d] += ds.mT @ rows
            dq[:, a:b] += (ds @ k[:, c:d]).unflatten(1, (-1, b - a)).flatten(0, 1)
        return dq, dk, dv, None, None, None
        ### END SOLUTION


# %%
def attention(q, k, v, starts, window, tile):
    """Your function's o, as a network calls it."""
    return TiledAttention.apply(q, k, v, starts, window, tile)


q, k, v, starts = problem([5, 9], behind=2)
k.requires_grad_()
attention(q, k, v, starts, 4, 3)[:, : starts[-1]].sum().backward()
print("gradients of the first four keys, group 0, feature 0:", [round(each, 3) for each in k.grad[0, :4, 0].tolist()])

# %% [markdown]
# Now the guess. The table has `heads * tokens²` numbers:

# %%
table_over = 8 * 4096**2 / (8 * 4096 * (64 + 1))
q, k, v, starts = problem([128], 8, 8, 64)
o, L = attend(q, k, v, starts, 128, 32)
measured_over = 8 * 4096**2 * o.itemsize / (32 * (o.nbytes + L.nbytes))  # 32 times as many tokens
compare(guess=guess_bytes, predicted=table_over, measured=measured_over, name="table over o and L")


# %%
def by_hand(q, k, v, g, starts, window):
    """Queries and keys for each head, p, g · vᵀ, D and scores: the whole table of each."""
    n, r = starts[-1], len(q) // len(k)
    q, k, v, g = q[:, :n], k[:, :n].repeat_interleave(r, 0), v[:, :n].repeat_interleave(r, 0), g[:, :n]
    scores = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~visible(starts, window), -math.inf)
    p = (scores - scores.logsumexp(-1, keepdim=True)).exp()
    return q, k, p, g @ v.mT, (g * (p @ v)).sum(-1, keepdim=True), scores


def explicit_back(q, k, v, g, starts, window):
    """The gradients of q, k and v by the formulas above, with whole tables; 0 behind the last text."""
    rows, keys, p, dp, D, _ = by_hand(q, k, v, g, starts, window)
    ds = p * (dp - D) / math.sqrt(q.shape[-1])
    each_head = ds.mT @ rows, p.mT @ g[:, : starts[-1]]
    found = ds @ keys, *(each.unflatten(0, (len(k), -1)).sum(1) for each in each_head)
    return [F.pad(each, (0, 0, 0, q.shape[1] - starts[-1])) for each in found]


# %%
def share_slips(q, k, v, g, starts, window):
    """What a slip in p makes of the gradient of v, and where to look then."""
    *_, scores = by_hand(q, k, v, g, starts, window)
    seen, every = visible(starts, window), by_group(q, k, starts[-1])
    L, root = scores.logsumexp(-1, keepdim=True), math.sqrt(q.shape[-1])
    more, less = (every.where(visible(starts, max(1, window + step)), -math.inf) for step in (1, -1))
    pairs = "p: which pairs are visible on the way back, and that the others are 0"
    for p, look in (
        ((every * root - L).exp() * seen, "p: the same scores as on the way there"),
        ((every / root - L).exp() * seen, "p: the same scores as on the way there"),
        ((every - L).exp2() * seen, "p: in which base L is a logarithm"),
        (every.exp() * seen, "p: the exponential of a score is no share without L"),
        ((every - L).exp(), pairs),
        ((more - L).exp(), pairs),
        ((less - L).exp(), pairs),
    ):
        yield (p.mT @ g[:, : starts[-1]]).unflatten(0, (len(k), -1)).sum(1), look


# %%
def tile_slips(q, k, v, g, starts, window, tile):
    """The same of slips between the tiles of a row: p shared within one tile, D summed over one."""
    rows, keys, p, dp, _, _ = by_hand(q, k, v, g, starts, window)
    block, texts, scale = blocks_of(starts, tile), visible(starts, 10**9), 1 / math.sqrt(q.shape[-1])
    one_tile = ((block[:, None] == block) & (texts | texts.T)).to(p.dtype)  # keys (rows and columns) of one tile
    in_tile = p / (p @ one_tile).clamp(min=1e-300)
    shared = (in_tile.mT @ g[:, : starts[-1]]).unflatten(0, (len(k), -1)).sum(1)
    yield 2, shared, "p: a share among all of the row's keys, by L"
    ds, look = p * (dp - (p * dp) @ one_tile) * scale, "D: a sum over all of the row's keys, those of other tiles too"
    yield 0, ds @ keys, look
    yield 1, (ds.mT @ rows).unflatten(0, (len(k), -1)).sum(1), look


# %%
def backward_slips(q, k, v, g, starts, window):
    """Place of the gradient (q, k, v), what a slip in it comes to, and where to look then."""
    groups, scale = len(k), 1 / math.sqrt(q.shape[-1])
    rows, keys, p, dp, D, _ = by_hand(q, k, v, g, starts, window)
    for slip, look in share_slips(q, k, v, g, starts, window):
        yield 2, slip, look
    g, shared = g[:, : starts[-1]], "a key serves all heads of its group: their gradients are added up"
    for ds, look in (
        (p * dp * scale, "what a softmax takes off each row, over all of the row's keys: D"),
        (p * (dp - D), "the scale 1 / sqrt(width): scores have it, so it stands in the gradients of q and k, too"),
        (p * (dp - D) * scale**2, "the scale 1 / sqrt(width), once"),
        ((dp - D) * scale, "the shares p before the bracket"),
        (p * (D - dp) * scale, "the sign of the bracket: g · vᵀ less D"),
    ):
        yield 0, ds @ keys, look
        yield 1, (ds.mT @ rows).unflatten(0, (groups, -1)).sum(1), look
    for place, each in ((1, (p * (dp - D) * scale).mT @ rows), (2, p.mT @ g)):
        yield place, each.unflatten(0, (-1, groups)).sum(0), "which heads share a group"
        yield place, each.unflatten(0, (groups, -1)).mean(1), shared
        yield from ((place, each.unflatten(0, (groups, -1))[:, head], shared) for head in (0, -1))


# %%
def gradient_hint(came, place, exact, case, tile):
    """What a wrong gradient says about the fault; the case (q, k, v, g, starts, window) in float64."""
    came, n = came.double(), case[4][-1]
    if came[:, n:].ne(0).any():
        return "tokens behind the last text: gradients of 0, whatever memory, or the gradient of o, holds there"
    came, exact = came[:, :n], exact[:, :n]
    if came.isnan().any() or came.isinf().any():
        head, token = (~came.isfinite()).any(-1).nonzero()[0].tolist()
        return f"head {head}, token {token}: exp(s - L) of pairs that are not visible may be inf, and inf · 0 is NaN"
    if torch.allclose(came, exact, 1e-3, 1e-5):
        return "rounding alone: which numbers become large on the way, and in which dtype"
    for slip_place, slip, look in (*tile_slips(*case, tile), *backward_slips(*case)):
        if slip_place == place and torch.allclose(came, slip, 1e-3, 1e-5):
            return look
    head, token = divmod((came - exact).abs().amax(-1).argmax().item(), n)
    start = max(start for start in case[4] if start <= token)
    where = f"worst at head or group {head}, token {token - start} of its text, block {(token - start) // tile}"
    return f"{where}: each tile that holds the token adds a part, and only its visible pairs count"


# %%
def pulled(o, leaves, grad):
    """What your backward pass makes of the gradient of o."""
    return torch.autograd.grad(o, leaves, grad, allow_unused=True)


def both_passes(q, k, v, g, starts, window, tile):
    """(o, gradients, what was seen, counts of each pass, bytes held between the passes, bytes at the peak)."""
    leaves, seen = [each.detach().requires_grad_() for each in (q, k, v)], Seen()
    with seen, InAllThreads(seen), measure.memory(inputs=[*leaves, g], lines=True) as record:
        o = check.call(attention, *leaves, starts, window, tile)
        counts, saved = [taken(seen.counts)], held(record, "now")
        if not (isinstance(o, torch.Tensor) and o.requires_grad):
            what = "TiledAttention.apply returns o, which wants a gradient"
            check.that(False, what, came=str(o)[:200], look="what forward returns")
        found = check.call(pulled, o, leaves, g)
        counts.append(taken(seen.counts))
    return o.detach(), found, seen, counts, saved, held(record)


# %%
def upstream_of(q, n, seed, across):
    """A gradient of o, NaN behind the last text; across in memory, or dense."""
    g = torch.randn(*q.shape, generator=torch.Generator().manual_seed(100 + seed), dtype=torch.float64)
    g[:, n:] = math.nan
    g = g.to(q.dtype)
    return g.transpose(0, 1).contiguous().transpose(0, 1) if across else g


def by_autograd(q, k, v, g, starts, window):
    """The gradients of the long way; 0 behind the last text."""
    leaves, n = [each[:, : starts[-1]].detach().requires_grad_() for each in (q, k, v)], starts[-1]
    o, _ = explicit(*leaves, starts, window)
    found = torch.autograd.grad(o, leaves, g[:, :n])
    return [F.pad(each, (0, 0, 0, q.shape[1] - n)) for each in found]


# %%
def check_costs(q, k, v, o, shape, what, counts, saved, peak):
    """Forward as in question 3, backward with five products a tile, and what is held between and at the peak."""
    sizes = (*shape, len(q), len(k), q.shape[-1], q.itemsize)
    check_counts(counts[0], budget(*sizes), f"{what}, forward:")
    check_counts(counts[1], budget(*sizes, products=5), f"{what}, backward:")
    both = o.nbytes + o.nbytes // q.shape[-1]
    look = "what ctx keeps: L is all that a second softmax needs"
    check.at_most(saved, Bytes(both + 2**13), f"{what}: bytes held between the passes, beyond q, k and v", look=look)
    room = 12 * len(q) * shape[2] * (shape[2] + q.shape[-1]) * q.itemsize + 2**16
    most = 2 * (both + q.nbytes + k.nbytes + v.nbytes) + room
    look = "what grows with the tokens: o, L and the gradients; shares are forgotten tile by tile"
    check.at_most(peak, Bytes(most), f"{what}: bytes at the peak", look=look)


# %%
def check_gradients(found, case, tile, size, what):
    """The gradients of q, k and v against float64, that of v first, for it hangs on the shares alone."""
    in_64 = *(each.double() for each in case[:4]), *case[4:]
    exact, plain = by_autograd(*in_64), explicit_back(*case)
    size *= max(abs(number) for each in exact for number in [0.0, *each.flatten().tolist()])
    for place in (2, 1, 0):
        each, like, name = found[place], case[place], "qkv"[place]
        if not isinstance(each, torch.Tensor) or each.shape != like.shape or each.dtype != like.dtype:
            came = "None" if each is None else f"{str(each.dtype)[6:]}{list(each.shape)}"
            wanted, look = f"{str(like.dtype)[6:]}{list(like.shape)}", "what backward returns"
            check.that(False, f"{what}: the gradient of {name}", expected=wanted, came=came, look=look)
        look = gradient_hint(each, place, exact[place], in_64, tile)
        near(each, exact[place], plain[place], f"{what}: gradient of {name}", look, size)


# %%
def check_backward(*case, window, tile, count=False, across=True, **more):
    """Gradients of one call, right, and then cheap."""
    q, k, v, starts = problem(*case, **more)
    g = upstream_of(q, starts[-1], more.get("seed", 0), across)
    what = f"texts of {list(case[0])} tokens, {len(q)} heads, {len(k)} groups, window {window}, tile {tile}"
    o, found, seen, counts, *held_bytes = both_passes(q, k, v, g, starts, window, tile)
    in_64 = q.double(), k.double(), v.double()
    size = steepness(*in_64[:2], starts, window)
    exact, long_way = (explicit(*each, starts, window)[0] for each in (in_64, (q, k, v)))
    near(o, exact, long_way, f"{what}: o", "question 3, and what forward returns", size)
    check_gradients(found, (q, k, v, g, starts, window), tile, size, what)
    cost = budget(starts, window, tile, len(q), len(k), q.shape[-1], q.itemsize, products=5)
    check_own(seen, counts[1], cost, q.dtype, what)
    if count:
        check_costs(q, k, v, o, (starts, window, tile), what, counts, *held_bytes)


# %% check="q4-gradients" points=9
check_backward([4], 1, 1, window=4, tile=4)
check_backward([7, 12], window=5, tile=3, across=False)
check_backward([7, 12], window=5, tile=3, seed=1, size=2)  # other values of the same shapes
check_backward([3, 0, 11], 6, 2, 5, behind=3, window=2, tile=4)
check_backward([9], 4, 1, window=100, tile=16, dense=True)
check_backward([9, 2], 3, 3, window=1, tile=2, dtype=torch.float64)

# %% check="q4-extremes" points=6
for lean in ((60, 60), (60, -60), (2000, 9), (2000, -9)):
    check_backward([13, 6], window=7, tile=4, lean=lean, seed=2)
check_backward([13, 6], window=7, tile=4, size=30, seed=3)
check_backward([13, 6], window=3, tile=8, size=1e-4, seed=4)
check_backward([0], window=3, tile=8, behind=4)


# %%
def check_long_back(tokens=2048, window=32, tile=64):
    """One long text and a short window: no room for tokens² of anything, in either pass."""
    q, k, v, starts = problem([tokens], 2, 1, 16)
    o, _, _, counts, *held_bytes = both_passes(q, k, v, upstream_of(q, tokens, 0, False), starts, window, tile)
    check_costs(q, k, v, o, (starts, window, tile), f"{tokens:,} tokens, window {window}", counts, *held_bytes)


# %%
def check_twice():
    """The same gradients twice through one graph, of which nothing is left afterwards."""
    q, k, v, starts = problem([6, 5])
    leaves = [each.detach().requires_grad_() for each in (q, k, v)]
    o = check.call(attention, *leaves, starts, 4, 2)
    passes = [check.call(torch.autograd.grad, o, leaves, each, retain_graph=True) for each in (q, q, 1 - q)]
    look = "what backward changes in the tensors that were saved"
    for first, again, other, name in zip(*passes, "qkv"):
        check.that(torch.equal(first, again), f"a second backward pass through one graph: gradient of {name}", look=look)
        kept = f"the gradient of {name}, after another backward pass: the tensor that came keeps its numbers"
        check.that(not torch.equal(first, other), kept, look="into whose memory backward writes")
    gone = weakref.ref(o)
    del o, passes, first, again, other
    check.that(gone() is None, "o is gone when nobody wants it any more", look="what ctx holds, and how it holds it")


# %% check="q4-costs" points=7
for tokens in (96, 192, 384):
    check_backward([tokens], 4, 2, 48, window=tokens, tile=32, count=True)
check_backward([256, 251], 8, 2, 48, window=48, tile=16, count=True)
check_backward([400], 2, 1, 8, window=400, tile=64, count=True)
check_long_back()
check_twice()
for each in (TiledAttention.forward, TiledAttention.backward):
    check.written_with(each, forbidden=FINISHED)


# %% check="q4-hidden" points=8
# Other texts, heads, windows and tiles; float64; bytes and FLOPs; gradients that are there before, and are added up.
### BEGIN HIDDEN TESTS
def hidden_steps(leaves, starts, window, tile, gs):
    """Two backward passes, whose gradients are added to what is there."""
    with habits.Unfilled():
        os = [attention(leaves[0] / (place + 1), *leaves[1:], starts, window, tile) for place in range(len(gs))]
    for o, g in zip(os, gs):
        habits.backward(o, g)


def hidden_added(*case, window, tile, **more):
    q, k, v, starts = problem(*case, **more)
    leaves, gs = [each.detach().requires_grad_() for each in (q, k, v)], []
    for each in leaves:
        each.grad = torch.ones_like(each)
    for seed, size in ((31, 5000.0), (32, 0.5)):
        gs.append(size * upstream_of(q, starts[-1], seed, seed % 2 == 0))
    check.call(hidden_steps, leaves, starts, window, tile, gs, may_change="grad")
    parts = [by_autograd(q / (place + 1), k, v, g, starts, window) for place, g in enumerate(gs)]
    parts[1][0] = parts[1][0] / 2
    for each, one, other, name in zip(leaves, *parts, "qkv"):
        check.close(each.grad, 1 + one + other, f"gradient of {name}, added to what was there", operations=2000)


#: other texts, heads, windows and tiles
check_backward([1, 2, 17], 4, 4, 3, window=6, tile=5, seed=5, behind=1)
check_backward([20], 8, 2, 7, window=9, tile=1, seed=6)
check_backward([5, 5, 5, 5], 5, 5, 4, window=3, tile=7, seed=7, dense=True)
check_backward([31], 9, 3, 6, window=30, tile=4, seed=8)
check_backward([31], 9, 3, 6, window=31, tile=4, seed=9, lean=(-50, 50))
check_backward([31], 9, 3, 6, window=33, tile=64, seed=10, size=12)
#: float64
check_backward([11, 8], 6, 2, 5, window=4, tile=4, seed=11, dtype=torch.float64)
check_backward([11, 8], 6, 2, 5, window=40, tile=3, seed=12, dtype=torch.float64, lean=(3000, -20), behind=2)
check_backward([11, 8], 6, 2, 5, window=5, tile=3, seed=16, dtype=torch.float64, lean=(-3000, 3000))
#: bytes and FLOPs
check_backward([400, 68], 6, 2, 48, window=10**6, tile=32, seed=13, count=True)
check_backward([300, 68], 16, 1, 64, window=20, tile=16, seed=14, count=True)
#: gradients that are there before
hidden_added([7, 12], 6, 3, window=5, tile=3, behind=2, dtype=torch.float64)
hidden_added([10], 4, 2, window=12, tile=4, dense=True, dtype=torch.float64)
_q, _k, _v, _starts = problem([6, 5])
_k.requires_grad_()
check.call(attention(_q, _k, _v, _starts, 4, 2).sum().backward, may_change="grad")
_right = by_autograd(_q, _k, _v, torch.ones_like(_q), _starts, 4)[1]
check.close(_k.grad, _right, "only keys want a gradient, which comes from a sum", operations=200)
#= `TiledAttention`, an | - a name and its arguments
#= Arguments as in question 3 | window_off_by_one
#= `q`, `k` and `v` want | - what is given
#= Returns `o` alone | returns_the_pair
#= **Saved** for the | saves_shares_too
#= When nobody wants | output_on_ctx
#= `save_for_backward` knows | - advice
#= Another backward pass | saved_in_place
#= `backward` gets the | upstream_overwritten gradient_in_one_piece
#= Tokens behind the last | nan_behind_the_texts
#= **Error** of each | without_D keys_without_scale
#= Everything is computed | float64_inside
#= **FLOPs of `backward`:** | six_products table_in_the_backward_pass
#= **Bytes at the peak** | mask_of_all_pairs
#= Attention within texts | saves_shares_too
#= o, from `attend` | returns_the_pair
#= The gradients of q | overwrites sums_the_wrong_heads
#= None for the rest | - autograd itself says how many it wants
### END HIDDEN TESTS

# %% [markdown]
# ## What to keep
#
# A softmax can be taken in parts, if each part brings its logarithm along. Everything else follows from that line:
# scores that live for one tile, a backward pass that needs one number for each row, and tiles that you never visit.
#
# The last number is about a real layer. Llama 3 8B has 32 heads and 8 groups (Grattafiori et al. 2024, Table 3), and
# its 3.1 edition reads texts of 131,072 tokens.

# %%
for tokens in (8192, 131072):
    table, kept = Bytes(32 * tokens**2 * 2), Bytes(32 * tokens * (128 * 2 + 4))
    print(f"{tokens:>7,} tokens: {table:.2GB} of scores a layer, {kept:.3GB} of o and L")

# %% [markdown]
# (Scores and `o` with two bytes for each number, `L` with four.)
#
# **Change one thing.** With a window, tiles at the edge are visited for a few pairs. For a window of 512, which `tile`
# makes `visible_tiles` cover the fewest pairs, and what gets worse with it? Decide first, then count for 16, 64
# and 256.
