# %% [markdown]
# # 16 · Making one device fast
#
# **The question:** the step takes 100 ms. Which 100, and which of them must it take?
#
# | | |
# |---|---|
# | Time | first sitting 50 minutes, second sitting 35; about a minute of both together is computing on 2 CPU cores |
# | A GPU | changes every second and no byte, FLOP or token; all but two cells stay on the CPU |
# | Opens | `model/tiled_attention.py`, `model/decode.py`, `predict/roofline.py` |
#
# You have counted every FLOP of a step (lesson 00) and you know what your device can do in a second. You divide, and the step
# should take half of what it takes. Nothing is broken, no message was sent, no rank was late. So where is the other half?
#
# A device has *two* speeds. One says how fast it multiplies, the other how fast it brings the numbers. And behind both stands
# a third thing, which costs the same whether you have one number or a thousand. So a step has three regimes: it multiplies, it moves, or it waits for calls.

# %%
import math

import torch
import torch.nn.functional as F

from course_kit import measure
from course_kit.compare import compare
from course_kit.notebook import ask, self_check, show, your_turn
from course_kit.units import Bytes, Flops
from course_lib import predict
from course_lib.model import tiled_attention as tiled
from course_lib.model.gpt import GPT, GPTConfig
from course_pages.lesson16 import meters, pictures, turns
from course_pages.lesson16.explorer import TilesExplorer
from course_pages.shared import gpu

# %% [markdown]
# ## 1 · Two speeds
#
# Two measurements describe this machine. A product of two square matrices does $2m^3$ FLOPs on $3m^2$ numbers, so it has to do
# with multiplying alone. A copy does no FLOP at all. Take the best of a few runs of each.
#
# Now take any operation, with $F$ FLOPs and $n$ bytes. It needs at least $F/\text{peak}$ seconds to multiply and
# $n/\text{bandwidth}$ seconds to move. If the device does both at once, the slower one decides. Divide the FLOPs by that
# time, and write $I = F/n$ for the **intensity**, in FLOPs a byte:
#
# $$\text{rate}(I) = \min(\text{peak},\; I \cdot \text{bandwidth})$$
#
# That is the **roofline** (Williams et al. 2009). Its corner, the **ridge**, is where both take equally long: peak over bandwidth.
#
# **Guess:** to keep one core busy, how many FLOPs must it find for each byte that it moves?

# %%
guess_ridge = ask("FLOPs for each byte, where multiplying and moving take equally long")

# %% tags=["varies"]
peak, bandwidth = meters.rates()  # in CPU seconds, which a busy machine does not lengthen
print(f"multiplies {peak / 1e9:.0f} GFLOP a second, copies {bandwidth / 1e9:.0f} GB a second")
print(f"ridge: {predict.ridge(peak, bandwidth):.1f} FLOPs a byte; you said {guess_ridge.said}")
h100 = 989.4e12, 3350e9  # dense bf16 (lesson 04) and memory, from the data sheet: model/hardware.py
print(f"an H100: {predict.ridge(*h100):.0f} FLOPs a byte")

# %% [markdown]
# A core is content with few FLOPs a byte, and an H100 wants many times more: what a CPU forgives, a GPU does not. Adding two vectors of 16-bit
# numbers does one FLOP for six bytes. Such an operation uses less than a thousandth of that card, on its best day.
#
# ## 2 · Where the step stands
#
# Ivanov et al. (2021) divide the operations of a transformer into three classes. **Contractions** are products of
# matrices. **Normalizations** reduce a row and apply what came out: softmax, LayerNorm. **Element-wise** is all the rest: biases, GELU, masks, residuals, copies.
#
# Let us do that to a step of our GPT, forward and backward. A meter stands at PyTorch's dispatcher, through which every operation goes, and notes what each reads,
# writes and computes. `torch.profiler` says how long each took. **Guess:** of 100 FLOPs, 99 are contractions'. And of 100 ms?

# %%
guess_time = ask("Of 100 ms, how many do contractions take?", unit="ms")

# %%
config = GPTConfig(layers=2, width=256, heads=8, vocab_size=256, context=256)
model, tokens = GPT(config), torch.randint(0, 256, (4, 257), generator=torch.Generator().manual_seed(0))


def step():
    model(tokens[:, :-1], tokens[:, 1:]).backward()


work = meters.touched(step)
for kind, each in work.items():
    print(f"{kind:14} {each.flops / 1e6:9,.0f} MFLOP {each.bytes / 1e6:5.0f} MB {each.intensity:6.2f} FLOPs a byte, {each.calls} calls")
due = predict.step_flops(predict.Setup(config, batch_size=4, seq=256))
compare(predicted=due, measured=Flops(work["contraction"].flops), tolerance=0, name="contractions of a step")

# %% tags=["varies"]
took, seconds = meters.time_shares(step), meters.cpu_seconds(step)
points = {kind: (each.intensity, each.flops / (took[kind] * seconds)) for kind, each in work.items()}
pictures.roofline(peak, bandwidth, points, caption="Contractions stand right of the ridge, close to the roof. The others stand left of it: even on the slope they would be slow.").show()
flops = sum(each.flops for each in work.values())
ivanov = {"contraction": 0.61, "normalization": 0.255, "element-wise": 0.135}
bars = {"our FLOPs": {kind: each.flops / flops for kind, each in work.items()}, "our time": took, "Ivanov's time": ivanov}
pictures.shares(bars, caption="Contractions, the left part of each bar: nearly all of the FLOPs, and not nearly all of the time.").show()
print(f"you said {guess_time.said}; here contractions take {100 * took['contraction']:.0f} of 100 ms")
print(f"a V100's ridge: {predict.ridge(125e12, 900e9):.0f} FLOPs a byte")

# %% [markdown]
# On a V100, Ivanov et al. report for a layer of BERT: contractions 99.80 % of the FLOPs and 61 % of the time, normalizations 0.17 % and
# 25.5 %, element-wise 0.03 % and 13.5 %. (Their Table 1, second-hand: as lecture 3 of Stanford's CS336 prints it.) One story on two machines:
# **what costs next to no FLOPs takes a good part of the time**. The roof says what faster cards do to that part: a V100's ridge is
# much further to the right. Products became faster than bytes did. Those bytes cannot be computed away. But must they be moved?
#
# ## 3 · The third regime
#
# First, the thing that costs the same for one number as for a thousand. Add 1 to one number, and to a thousand:

# %% tags=["varies"]
def microseconds_of_adding(length):
    x, many = torch.ones(length), max(1, min(1000, 10**6 // length))
    return 1e6 * meters.cpu_seconds(lambda: [x.add_(1) for _ in range(many)]) / many


for length in (1, 1000):
    print(f"{length:10,} numbers: {microseconds_of_adding(length):9.1f} µs a call, {8e6 * length / bandwidth:9.3f} µs to move them")

# %% [markdown]
# Below some thousands of numbers a call has one price: Python, the dispatcher, the allocator. (Section 9 goes on to ten million.) That is **overhead**, and no roofline
# shows it. On a GPU each operation starts a program on the card, a **kernel** (not the operating system's, which lesson 15 asked). Such a launch costs microseconds, too, and the card finishes small work sooner than Python can ask for more.
#
# So before you make any kernel faster, double the micro-batch: if the step takes as long as before, you were paying for calls. (Section 9
# looks for them in published runs on H100s.)
#
# ## 4 · Fusion, without a compiler
#
# Back to bytes. `gelu(x * 1.5) + y` is three operations. Each reads its arguments from memory and writes its result
# back, and the next one fetches that again. If one pass over x and y did all three, the results between would never leave the chip.
# That is **fusion**. Compilers do it by writing a new kernel, in which a number stays in a register.
#
# You can do it with a slice. Take a few rows, do all three operations on them, go on. The results between are as small as a tile, and a
# small tensor stays in the cache.
#
# **Your turn.** Any function, any two tensors, some rows at a time.


# %%
@your_turn(turns.check_in_tiles, look="Make the output first; then fill `output[start : start + rows]`, tile by tile.")
def in_tiles(step, x, y, rows):
    """step(x, y), for `rows` rows of x and y at a time, in one new tensor of x's shape and dtype; the last tile may be shorter."""
    ...


# %% tags=["solution"]
# One solution. Open it when yours passes, or when you are stuck.
@in_tiles.solution
def in_tiles(step, x, y, rows):
    output = torch.empty_like(x)
    for start in range(0, len(x), rows):
        here = slice(start, start + rows)
        output[here] = step(x[here], y[here])
    return output


# %% [markdown]
# Now something longer, as in a gated MLP. **Guess:** how many times as fast is it in tiles of 64 rows?

# %%
guess_fused = ask("Tiles of 64 rows: how many times as fast?")


# %% tags=["varies"]
def gated(x, y):
    return F.gelu((x * 1.5 + 0.1) * torch.sigmoid(x)) + y * torch.tanh(y)


x, y = torch.randn(2, 4096, 2048, generator=torch.Generator().manual_seed(0))
whole = meters.cpu_seconds(gated, x, y, repeats=3)
for rows in (1, 64, 4096):
    print(f"{rows:5} rows at a time: {whole / meters.cpu_seconds(in_tiles, gated, x, y, rows, repeats=3):.1f} times as fast")
print(f"you said {guess_fused.said}; same numbers: {torch.equal(in_tiles(gated, x, y, 64), gated(x, y))}")
print(f"operations read and write {meters.touched(gated, x, y)['element-wise'].bytes / x.nbytes:.0f} times the bytes of x; fused, it would be 3")

# %% [markdown]
# No FLOP was saved, and not one call. One row at a time pays for too many calls, all rows at once for too many bytes. In between, the cache does what
# a compiler does with registers. (Some of the gain is fresh memory: the system has to hand out and clear pages for
# every large result between.)
#
# ## 5 · A softmax that never sees its row
#
# In attention bytes hurt most: of $S$ tokens, $S \times S$ scores are written, read, written as weights and read again, for outputs of $K$ numbers a token.
# Can it be fused? There is an obstacle. A softmax divides by a sum over the *whole* row, and subtracts the largest
# score of the *whole* row, or $e^{1000}$ overflows (in fp16 already $e^{12}$ does). How could a tile know?
#
# It guesses, and mends. Keep three things for a row of scores $s$: the largest so far, `top`; the sum of $e^{s - \text{top}}$ so far, `total`; and the sum of
# $e^{s-\text{top}}$ times its value so far, `mixed`. When a larger score turns up, everything added so far was measured from the wrong top. But all of it is
# wrong by *one* factor:
#
# $$e^{s - \text{new}} = e^{s - \text{old}} \cdot e^{\text{old} - \text{new}}$$
#
# (Milakov and Gimelshein 2018. Lesson 08's ring, in its second sitting, divided after each piece; here you divide once.)
# At the end, `mixed / total` is the output, exactly.
#
# **Your turn.** One tile of scores joins the three.


# %%
@your_turn(turns.check_add_tile, look="First the new top, of the old one and the tile's. Which factor takes old sums to it?")
def add_tile(top, total, mixed, scores, values):
    """top (n,), total (n,), mixed (n, K) so far; a tile's scores (n, m) and values (m, K) → the new top, total, mixed.

    At the start top is -inf and the others are 0; every row of every tile has a finite score.
    """
    ...


# %% tags=["solution"]
# One solution. Open it when yours passes, or when you are stuck.
@add_tile.solution
def add_tile(top, total, mixed, scores, values):
    higher = torch.maximum(top, scores.amax(-1))
    shrink = (top - higher).exp()
    weights = (scores - higher[:, None]).exp()
    return higher, total * shrink + weights.sum(-1), mixed * shrink[:, None] + weights @ values


# %% [markdown]
# **Break it.** Leave the factor out and run your cell again. The message lists two totals, one a row: in the first row scores rise, and it is wrong; the second
# has them in reverse, and its total is right. If the largest score stands in the first tile, nothing has to be mended. A test with one tile, or with a lucky row, would let that mistake live. Then put the factor back and run your cell
# and the folded one again: the next sections use it. In the explorer below, orange scores are alive, blue ones are forgotten.

# %%
TilesExplorer().show()

# %% [markdown]
# Step through it. (a) Find a tile after which a query's `total` has *fallen*. What happened? (b) Switch causal off, go to the end and compare the bytes read, for tiles of 2 × 2,
# 16 × 2 (queries × keys) and 2 × 16. Which side of a tile makes reading cheap?
#
# <details><summary>Answers</summary>
#
# (a) A larger score came, so the old sum shrank by more than the new weights brought. (b) Many queries in a tile: keys and values are read once for each row
# of tiles, and queries once in all.
#
# </details>
#
# ## 6 · And back
#
# Call `add_tile` for one tile after the other, and the forward pass is done: that *is* FlashAttention (Dao et al. 2022; our order of the loops is that of its second version, section 10). But autograd would keep every tile's weights for the backward pass, and we would
# hold $S \times S$ again. So we must write the backward pass ourselves, without them.
#
# One number a row is enough to have any weight again: $L = \text{top} + \log \text{total}$, the logarithm of the row's sum of $e^s$. Then $P = e^{s - L}$, tile by tile. It is
# recompute (lesson 03), in the smallest of places.
#
# For the gradient of the scores we need softmax's rule. Write $dX$ for the gradient of $X$. The output's, $dO$, comes in, and $dP = dO\,V^\top$. Score $k$ raises its
# own weight at the rate $P_k$, and lowers each weight $P_j$, its own too, at the rate $P_j P_k$. So, element by element, $ds = P \circ (dP - D)$, where $D$ is the sum of
# $P \circ dP$ over the *whole* row. Again the whole row! But look at what that sum is:
#
# $$D_i = \sum_j P_{ij} \sum_c dO_{ic} V_{jc} = \sum_c dO_{ic} \sum_j P_{ij} V_{jc} = \sum_c dO_{ic}\, O_{ic}$$
#
# The output knows it already.
#
# **Your turn.**


# %%
@your_turn(turns.check_d_scores, look="Two lines: dP of this tile, and D of each row. Two sums give D: which of them has all its terms here?")
def d_scores(weights, values, output, d_output):
    """Weights (n, m) and values (m, K) of one tile; output and its gradient (n, K), of whole rows → gradient of the scores (n, m)."""
    ...


# %% tags=["solution"]
# One solution. Open it when yours passes, or when you are stuck.
@d_scores.solution
def d_scores(weights, values, output, d_output):
    d_weights = d_output @ values.T
    return weights * (d_weights - (d_output * output).sum(-1, keepdim=True))


# %% [markdown]
# All of it, for one head, causal. A tile whose keys all come after its queries is not visited; one that the diagonal crosses is computed, and masked.


# %%
def hide(scores, i, j):  # -inf where a key comes after its query; the tile begins at query i, key j
    return scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(i - j + 1), -math.inf)


def explicit(q, k, v):
    return hide(q @ k.T * q.shape[1] ** -0.5, 0, 0).softmax(-1) @ v


# %%
class Flash(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, tile):
        ctx.tile, scale = tile, q.shape[1] ** -0.5
        output, log_sum = torch.empty_like(q), q.new_empty(len(q))
        for i in range(0, len(q), tile):
            rows = q[i : i + tile] * scale
            top, total, mixed = rows.new_full((len(rows),), -math.inf), rows.new_zeros(len(rows)), torch.zeros_like(rows)
            for j in range(0, i + len(rows), tile):
                top, total, mixed = add_tile(top, total, mixed, hide(rows @ k[j : j + tile].T, i, j), v[j : j + tile])
            output[i : i + tile], log_sum[i : i + tile] = mixed / total[:, None], top + total.log()
        ctx.save_for_backward(q, k, v, output, log_sum)
        return output

    @staticmethod
    def backward(ctx, d_output):
        return backward(*ctx.saved_tensors, d_output, ctx.tile)


# %%
def backward(q, k, v, output, log_sum, d_output, tile):
    dq, dk, dv, scale = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v), q.shape[1] ** -0.5
    for i in range(0, len(q), tile):
        for j in range(0, min(i + tile, len(q)), tile):
            here, there = slice(i, i + tile), slice(j, j + tile)
            weights = (hide(q[here] @ k[there].T * scale, i, j) - log_sum[here, None]).exp()
            slope = d_scores(weights, v[there], output[here], d_output[here]) * scale
            dv[there] += weights.T @ d_output[here]
            dq[here] += slope @ k[there]
            dk[there] += slope.T @ q[here]
    return dq, dk, dv, None


# %%
def drawn(seq, features=32, dtype=torch.float32):  # q, k, v and a gradient of the output
    numbers = torch.randn(4, seq, features, dtype=dtype, generator=torch.Generator().manual_seed(seq))
    return [each.clone().requires_grad_() for each in numbers[:3]], numbers[3]


for seq, tile in ((64, 16), (100, 16), (37, 64), (1, 4)):
    given, gradient = drawn(seq, dtype=torch.float64)
    both = [(output, *torch.autograd.grad(output, given, gradient)) for output in (Flash.apply(*given, tile), explicit(*given))]
    off = max((one - other).abs().max().item() for one, other in zip(*both))
    print(f"{seq:3} tokens in tiles of {tile}: output and gradients are exact to rounding: {off < 1e-13}")

# %% [markdown]
# Exact, for lengths that tiles divide and lengths that they do not. FlashAttention is no approximation.
#
# ## 7 · The bill
#
# So what do we hold? The forward pass makes the output, $K$ numbers for a token, and $L$, one number. The rest is as large as a tile, whatever $S$ is. The backward pass
# adds three gradients of $K$ each. So a token more costs $4(K+1)$ bytes forward, and $4(4K + 1)$ with backward.
#
# **Guess:** $K$ = 32, and the sequence grows from 512 to 2,048 tokens. How many times as many bytes does the *explicit* one hold at its peak?

# %%
guess_explicit = ask("From 512 to 2,048 tokens, explicit: how many times the bytes at the peak?")

# %%
def peak_bytes(attention, seq, with_backward):
    given, gradient = drawn(seq)
    with measure.memory(inputs=(*given, gradient)) as record, torch.set_grad_enabled(with_backward):
        output = attention(*given)
        if with_backward:
            torch.autograd.grad(output, given, gradient)
    return record.peak.total - record.before.total


def flash(q, k, v):
    return Flash.apply(q, k, v, 64)


# %%
ours = {(seq, both): peak_bytes(flash, seq, both) for seq in (512, 1024, 2048) for both in (False, True)}
theirs = {seq: peak_bytes(explicit, seq, True) for seq in (512, 1024, 2048)}
for seq in theirs:
    print(f"{seq:5} tokens, forward and backward: explicit {theirs[seq] / 2**20:6.2f} MiB, in tiles {ours[seq, True] / 2**20:5.2f} MiB")
print(f"you said {guess_explicit.said}; the explicit one grows {theirs[2048] / theirs[512]:.1f} times, tiles {ours[2048, True] / ours[512, True]:.1f} times")
rows = [(f"{a} to {b} tokens, {'with backward' if both else 'forward'}", a, b, both) for both in (False, True) for a, b in ((512, 1024), (1024, 2048))]
due = {name: Bytes(4 * (129 if both else 33) * (b - a)) for name, a, b, both in rows}
compare(predicted=due, measured={name: ours[b, both] - ours[a, both] for name, a, b, both in rows}, tolerance=0, unit="KiB")

# %% [markdown]
# To the byte.
#
# ## 8 · The real thing
#
# The library's version takes batches, heads, any floating-point dtype, and queries that see no key at all (section 9 shows it).

# %% tags=["varies"]
q, k, v, gradient = torch.randn(4, 1, 8, 1024, 64, generator=torch.Generator().manual_seed(0))
hidden = torch.ones(1024, 1024, dtype=torch.bool).triu(1)
ways = {
    "explicit": lambda q, k, v: ((q / 8) @ k.mT).masked_fill(hidden[: q.shape[2], : q.shape[2]], -torch.inf).softmax(-1) @ v,
    "ours, in Python": lambda q, k, v: tiled.tiled_attention(q, k, v, causal=True),
    "torch's fused kernel": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
}


def both_ways(way, d_output, *given):
    return torch.autograd.grad(way(*given), given, d_output)


for seq in (64, 1024):
    first = [each[:, :, :seq].clone().requires_grad_() for each in (q, k, v)]
    took = {name: meters.cpu_seconds(both_ways, way, gradient[:, :, :seq], *first) for name, way in ways.items()}
    for name, seconds in took.items():
        print(f"{seq:4} tokens, {name:21} {took['explicit'] / seconds:.1f} times as fast as the explicit one, forward and backward")

# %%
print("ours is torch's:", torch.allclose(ways["ours, in Python"](q, k, v), ways["torch's fused kernel"](q, k, v), atol=1e-5))

# %% [markdown]
# With 1,024 tokens a loop in Python beats the explicit code of PyTorch's own operations! It makes more calls. But it skips nearly half of the
# tiles, which saves about a third of the FLOPs (section 9 counts such tiles), and it never writes all scores to memory. With 64 there is one tile, and
# the loop's calls cost more than they save. PyTorch's kernel, without calls between, is behind in neither.
#
# This is the end of the story: two speeds, one price for each call, and one trick: *do not write down what you can use at once, or compute again*.
#
# ## Second sitting
#
# You may stop here. On another day, run all cells above before you go on. Below: longer vectors, published runs, the FLOPs of tiles, the library's own attention and rows that see no key;
# the size of a tile; a compiler and a kernel; fewer bits a number; how a model writes text; and how to read a profile.
#
# ### 9 · Behind sections 2, 3, 7 and 8
#
# In section 2 the FLOPs of normalizations (five for each number) and of element-wise work (one) are a convention; ten times as many would
# leave contractions 93 % of the FLOPs. Section 3 stopped at a thousand numbers, where a call still had one price. Here the bytes take over:

# %% tags=["varies"]
for length in (10**5, 10**7):
    print(f"{length:10,} numbers: {microseconds_of_adding(length):9.1f} µs a call, {8e6 * length / bandwidth:9.3f} µs to move them")

# %% [markdown]
# (Both may beat the roof that our copy drew: one fits into the cache, the other is written where it was read.
# `torch.add(x, 1, out=y)` takes about as long as a copy, and `x + 1` also pays for new pages.)
#
# Now published runs. Hugging Face (the Ultra-Scale Playbook, 2025) trained Llama-like models on 8 H100s each, with tensor parallelism over all 8 and one
# sequence of 4,096 tokens at a time; 256 such micro-batches make a step. From their tokens a second follows what *one micro-batch* takes, and we share
# all of that out over the layers.
# **Guess:** a layer of 8B has 3.6 times the weights of 1B's. How many times as long does one take?

# %%
guess_layer = ask("A layer of 8B takes how many times as long as a layer of 1B?")

# %%
# tokens a second on each GPU: Ultra-Scale Playbook's published runs, tp 8, dp 1, micro-batch 1
for name, layers, width, hidden, speed in (("1B", 16, 2048, 8192, 6907), ("3B", 28, 3072, 8192, 4144), ("8B", 32, 4096, 14_336, 3616)):
    a_layer = 1000 * 4096 / (8 * speed) / layers
    products = 1000 * 6 * 4096 * (4 * width**2 + 3 * width * hidden) / 8 / h100[0]  # 6 FLOPs a weight and token
    print(f"{name}: {a_layer:.1f} ms a layer, of which the products with weights need {products:.2f} at an H100's peak")
print("you said", guess_layer.said)

# %% [markdown]
# The same time, whatever the layer holds! What does not grow with the work is overhead: here most likely launches. (It is not tensor parallelism's messages: these grow, from 17 to 34 MB.)
#
# Section 7 counted bytes. And FLOPs? Of $t \times t$ tiles a causal pass visits $t(t+1)/2$. Each has two products forward, and five backward: the scores again, $dV$, $dP$, $dQ$, $dK$.

# %%
given, gradient = drawn(1024)
counted = {}
for name, attention in (("explicit", explicit), ("in tiles", flash)):
    with measure.flops() as record:
        torch.autograd.grad(attention(*given), given, gradient)
    counted[name] = record.total
product = 2 * 64 * 64 * 32  # one product of a tile of 64
compare(predicted={"explicit": Flops(6 * 16 * 16 * product), "in tiles": Flops(7 * 136 * product)}, measured=counted, unit="MFLOP", tolerance=0)

# %% [markdown]
# Seven products where autograd does six, and still fewer FLOPs, for nearly half of the tiles are never visited.
#
# Here is the library's version, with batches and heads. Where do queries that see no key get their zeros from?

# %%
display(show(tiled.attend_rows), show(tiled.attention_backward, docstring=False))

# %%
empty = torch.full((1, 4), -torch.inf).softmax(-1)
none = tiled.tiled_attention(torch.ones(1, 3, 4), torch.ones(1, 2, 4), torch.ones(1, 2, 4), causal=True)[0, 0]
print("a query that sees no key: torch's softmax", empty.tolist()[0], "ours", none.tolist())
models = [GPT(GPTConfig(2, 64, 4, 256, 128, attention=attention)) for attention in ("explicit", "tiled")]
losses = [each(tokens[:, :128], tokens[:, 1:129]) for each in models]
print("our GPT, explicit and tiled, has one loss:", torch.allclose(*losses))

# %% [markdown]
# A padded row, all of whose keys are masked, gives NaN in a plain softmax; ours divides an empty sum by 1. One such row is enough to turn a loss into NaN.
#
# ### 10 · How large is a tile?
#
# A row of tiles, $n$ queries high, reads keys and values once: $S/n$ times in all. So for $S$ tokens attention reads $2S^2K/n$ numbers, of which a causal mask saves up to half. A taller tile reads less, until it drops out of the cache.
# FlashAttention's paper says the same with the size $M$ of the fast memory, which limits the tile to about $M/K$ rows: $O(S^2K^2/M)$ bytes where the explicit way has $O(SK + S^2)$ (Dao et al. 2022, theorem 2; second-hand).
# Saha and Ye (2024) prove that, but for a constant factor, no exact way reads less, if $M$ is at least $K^2$.

# %%
import shutil
import warnings

from torch._inductor.utils import run_and_get_code
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from course_lib.model.decode import PagedCache, Pages, ReservedCache, generate, read, speculate
from course_lib.numerics import FP8_E4M3FN
from course_lib.numerics.quantize import quantize
from course_pages.lesson16 import kernel, slow_steps

# %% tags=["varies"]
with torch.no_grad():
    for rows, columns in ((8, 8), (32, 32), (128, 128), (512, 512), (1024, 1024)):
        seconds = meters.cpu_seconds(tiled.tiled_attention, q, k, v, True, rows, columns, repeats=2)
        print(f"{rows:4} × {columns:4}: {1000 * seconds:6.1f} ms; keys are read {(1024 // rows + 1) / 2:4.1f} times, a tile of 8 heads is {8 * 4 * rows * columns / 2**10:6,.0f} KiB")

# %% [markdown]
# Overhead on one side; on the other, a causal pass skips fewer tiles and at last none. From 128 to 1,024 that makes 1.8 times the FLOPs;
# the rest of the slowdown is a tile of 32 MiB, which has left the cache. On an H100 the tile lives in 228 KiB of memory that four tensor cores share, and finding
# its shape is most of a kernel writer's day. Which loop is outside matters, too. FlashAttention-2 (Dao 2023) turned the first paper's forward loops around: with queries outside, a row's
# three numbers never leave the chip, and different rows need nothing of each other.
#
# ### 11 · A compiler does it for you
#
# `torch.compile` traces a function, fuses what it can and writes C++ for it, on a GPU Triton (below). What is not compiled is **eager**.
# Here it needs a C++ compiler; where there is none,
# the cell prints what it printed on our machine.

# %% tags=["varies"]
if shutil.which("c++") or shutil.which("g++"):
    compiled = torch.compile(gated)
    result, (code,) = run_and_get_code(compiled, x, y)  # the first call compiles
    close = torch.allclose(result, gated(x, y), atol=1e-5)
    print(f"compiled: {whole / meters.cpu_seconds(compiled, x, y, repeats=3):.1f} times as fast as eager; same numbers: {close}")
    print("its C++:", ", ".join(f"{code.count(word)} × {word}" for word in ("for(", "loadu(in_ptr", ".store(")))
else:
    print("no C++ compiler here. Stored (2 cores of an EPYC, torch 2.13, 2026-11-25): compiled 4.4 times as fast as eager;")
    print("its C++: 1 × for(, 2 × loadu(in_ptr, 1 × .store(")

# %% [markdown]
# All operations of `gated` end up in one loop, which reads x and y, and writes once. `TORCH_LOGS=output_code` prints it. Reading that is a good habit: a **graph break**, where the
# compiler gave up and went back to Python, shows as two functions where you expected one.
#
# What it does not invent is section 6. It knows some spellings of attention, and puts a kernel that people wrote in their place. For a mask of your own there is
# `flex_attention`: it takes the mask as a function and writes a FlashAttention kernel around it. Called without `torch.compile`, as here, it warns that it
# holds all scores, and gives the same numbers:

# %%
with warnings.catch_warnings(), torch.no_grad():
    warnings.simplefilter("ignore")
    mask = create_block_mask(lambda batch, head, query, key: query >= key, None, None, 256, 256, device="cpu")
    short = [each[:, :, :256].detach() for each in (q, k, v)]
    print("flex_attention is ours:", torch.allclose(flex_attention(*short, block_mask=mask), tiled.tiled_attention(*short, causal=True), atol=1e-5))

# %% [markdown]
# And the three regimes on a card? Adding 1 to more and more numbers pays for calls first, then for bytes. Products of larger
# and larger matrices pay for calls, then for FLOPs. Where does each change its regime? **Before you look:** will the ridge
# lie left of the CPU's, or right? (Without a GPU the cell prints one line.)

# %% tags=["varies"]
if problem := gpu.refusal(2**30):
    print(problem)
else:
    adding = {}
    for n in (2**0, 2**10, 2**16, 2**20, 2**24, 2**26):
        ones = torch.ones(n, device="cuda")
        adding[n] = elapsed = measure.seconds(lambda x=ones: x.add_(1), repeats=20)
        print(f"add 1 to {n:12,}: {1e6 * elapsed:8.1f} µs, {8e-9 * n / elapsed:7.1f} GB/s")
    rates = {}
    for m in (64, 256, 1024, 4096):
        a = torch.randn(m, m, device="cuda").half()
        elapsed = measure.seconds(lambda a=a: a @ a, repeats=20)
        rates[m] = 2 * m**3 / elapsed
        print(f"{m:5} × {m:<5}: {1e6 * elapsed:8.1f} µs, {rates[m] / 1e12:7.2f} TFLOP/s")
    moved = max(8 * n / elapsed for n, elapsed in adding.items())
    ridge = max(rates.values()) / moved
    print(f"{torch.cuda.get_device_name()}, ridge: {ridge:.0f} FLOPs a byte")

# %% [markdown]
# On a GPU the compiler writes Triton, and so can you. A Triton kernel is a program for *one* tile. The card starts it once for every tile, thousands of times, and each asks for its
# number. Here is `gated`, written by hand. **Before you look:** which of its lines touch memory?

# %%
show(kernel.gated_tile)

# %% tags=["varies"]
if kernel.triton and torch.cuda.is_available():
    given, time_of = (x.cuda(), y.cuda()), kernel.triton.testing.do_bench
    close = torch.allclose(kernel.gated(*given), gated(*given), atol=1e-5)
    print(f"Triton: {time_of(lambda: gated(*given)) / time_of(lambda: kernel.gated(*given)):.1f} times as fast as eager; same numbers: {close}")
else:
    print("This kernel needs a GPU that Triton knows. The page goes on without it.")

# %% [markdown]
# Two loads in one line, and a store: the three numbers that section 4 promised to a fused `gated`. What stands between `load` and `store` never leaves the registers. `here` is your slice, and `here < length`
# keeps the last tile inside the tensor. (Triton itself has no tanh, hence $2\sigma(2y) - 1$.) You choose the tile; its compiler chooses the threads. Section 6 in this language is Triton's tutorial 06.
# (We ran the kernel in Triton 3.9's interpreter and compiled it for an H100, both on a CPU. A GPU has not run it yet.)
#
# ### 12 · Fewer bits a number
#
# If bytes are the bill, use shorter numbers. Tensor cores multiply 8-bit floats twice as fast as 16-bit ones. But fp8 e4m3 ends at 448 and has 3 bits behind the point (lesson 01), so
# every block of numbers gets a scale of its own, which takes its largest to 448. DeepSeek-V3 has one for each 128 features of a token, and for each 128 × 128 weights. With one scale
# for the whole tensor, does one outlier take the small numbers' bits?


# %%
def rounded(x, rows, columns):  # a scale for each block of rows × columns
    blocks = x.unflatten(1, (-1, columns)).unflatten(0, (-1, rows))
    scale = blocks.abs().amax((1, 3), keepdim=True) / FP8_E4M3FN.max
    return (FP8_E4M3FN.round(blocks / scale) * scale).flatten(2).flatten(0, 1)


generator = torch.Generator().manual_seed(0)
activations, weight = torch.randn(64, 512, generator=generator), torch.randn(512, 128, generator=generator)
for outlier in (1, 1e3, 1e6):
    activations[0, 0] = outlier
    one, blocks = rounded(activations, 64, 512) @ rounded(weight, 512, 128), rounded(activations, 1, 128) @ rounded(weight, 128, 128)
    exact = (activations @ weight)[1:]  # the other 63 tokens
    errors = [(each[1:] - exact).norm() / exact.norm() for each in (one, blocks)]
    print(f"one number of {outlier:9,.0f}: other tokens' relative error {errors[0]:.1%} with one scale, {errors[1]:.1%} with blocks")

# %% [markdown]
# A float has the same *relative* error over many sizes, so fp8 bears an outlier of a thousand. At a million, nearly all of the other tokens' numbers sink below its smallest one and are gone.
# A block keeps the damage at home.
#
# ### 13 · One token at a time
#
# To write text, a model reads its prompt in one pass, the **prefill**, and then **decodes** one token after the other. Keys and values of old tokens do not change, so they are kept in
# a **KV cache** (lesson 02's second sitting): $2 \cdot \text{layers} \cdot \text{width}$ numbers a token. Every new token then reads *all* weights and *all* its cache for one multiply-add each. That is two FLOPs for every number of two bytes:
#
# $$I = \frac{2B(N + c)}{2(N + Bc)} \qquad (N \text{ weights}, c \text{ cached numbers of a sequence}, B \text{ sequences})$$
#
# One FLOP a byte at $B = 1$, where an H100 wants 295; with the four bytes of the cell below, half of it. A batch shares the weights, so $I$ grows with $B$; it never shares a cache.
#
# **Guess:** a model of 12.6 million weights, one sequence, then 64 at once. How many times as many tokens a second in all?

# %%
guess_batch = ask("64 sequences against one: how many times the tokens a second?")

# %% tags=["varies"]
writer = GPT(GPTConfig(layers=4, width=512, heads=8, vocab_size=256, context=256)).requires_grad_(False)
speeds = {}


def read_behind(start, tokens, cache):  # the same tokens each time
    cache.length = start
    read(writer, tokens, cache)


for batch in (1, 4, 16, 64):
    cache = ReservedCache(writer.config, batch, 160)
    zeros = torch.zeros(batch, 128, dtype=torch.int64)
    read_behind(0, zeros, cache)
    speeds[batch] = batch / meters.cpu_seconds(read_behind, 128, zeros[:, :1], cache, repeats=3)
    intensity = predict.decode_intensity(12 * 4 * 512**2, batch, predict.kv_cache(writer.config, 1, 128, 4), element_bytes=4)
    print(f"{batch:3} sequences: {speeds[batch]:6,.0f} tokens a second, {intensity:5.1f} FLOPs a byte")
prefill = 128 / meters.cpu_seconds(read_behind, 0, zeros[:1], ReservedCache(writer.config, 1), repeats=3)
print(f"prefill: {prefill:,.0f} tokens a second; 64 sequences decode {speeds[64] / speeds[1]:.0f} times as many as one; you said {guess_batch.said}")

# %%
def without_cache(prompt, new):
    for _ in range(new):
        prompt = torch.cat([prompt, lively(prompt)[:, -1:].argmax(-1)], 1)
    return prompt[:, -new:]


lively = GPT(GPTConfig(layers=2, width=64, heads=4, vocab_size=256, context=256, positions="rotary"), dtype=torch.float64).requires_grad_(False)
for each in lively.parameters():
    each.mul_(6)  # untrained; with larger weights its text is not one token for ever
prompt = tokens[:2, :16]
cache = ReservedCache(lively.config, 2, 80, torch.float64)
print("with a cache, the same tokens:", torch.equal(generate(lively, prompt, 64, cache), without_cache(prompt, 64)))
compare(predicted=predict.kv_cache(lively.config, 2, 80, bytes_per_element=8), measured=cache.held_bytes, tolerance=0, name="bytes of the cache", unit="KiB")

# %% [markdown]
# Why not 64 times? The weights are shared and the caches are not, so the intensity grows to 18 times what it was; and near your ridge
# (section 1), or beyond it, multiplying takes its time, too. Prefill multiplies matrices, and decoding one sequence multiplies a matrix with a vector. They are two machines in one, and large services run them on different cards.
#
# ### 14 · Pages
#
# Batches make decoding cheap, so you want many sequences, and each wants room. Nobody knows how long an answer will be. If you reserve the longest for each, most of it stays empty. So
# do what operating systems do: cut memory into **pages** of a few slots, each for one token, give a sequence a page when it needs one, and keep a table of its pages (Kwon et al. 2023).
# Only the last page of a sequence is not full. **Guess:** 16 tokens on a page. How many slots does a sequence waste, on average?

# %%
guess_waste = ask("Pages of 16 tokens: how many slots does a sequence waste, on average?")

# %%
lengths = torch.randint(10, 256, (200,), generator=torch.Generator().manual_seed(0))
print(f"{int(lengths.sum()):,} tokens; 200 reservations of 256 are {lengths.sum() / (200 * 256):.0%} full")
for page in (1, 16, 128):
    slots = (lengths + page - 1) // page * page
    print(f"pages of {page:3}: {lengths.sum() / slots.sum():6.1%} full, {(slots - lengths).float().mean():5.1f} slots wasted by a sequence")
print("you said", guess_waste.said)
pages = Pages(lively.config, pages=12, page_tokens=16)
pages.numbers = pages.numbers.double()
first, second = PagedCache(pages), PagedCache(pages)
same = [torch.equal(generate(lively, prompt[i : i + 1], 40, each), without_cache(prompt, 40)[i : i + 1]) for i, each in enumerate((first, second))]
print("two sequences on", first.table, "and", second.table, "write the same tokens:", same, "- pages left:", len(pages.free))

# %% [markdown]
# Half a page, less half a token. In the services that Kwon et al. measured, reservations were 20 to 38 % full. (Ours gathers a sequence's pages before each product, a copy; a paged *kernel* looks each page up where it reads it.)
#
# ### 15 · Guess ahead
#
# If a pass over one token costs as much as a pass over five, let it check five. A quick **draft** model writes $g$ tokens; the large model reads all of them in *one* pass, and says at each place what it would have said. Up to the first
# disagreement the draft was right; there the large model's own word stands, and behind it nothing counts.
#
# **Your turn.** Which tokens does a pass add?


# %%
@your_turn(turns.check_kept, look="`best` has one entry more than `drafted`: the word behind the last of them. Where do you stop?")
def kept(drafted, best):
    """g drafted tokens; the large model's own at these g places and at the next one, given the draft before → tokens to add."""
    ...


# %% tags=["solution"]
# One solution. Open it when yours passes, or when you are stuck.
@kept.solution
def kept(drafted, best):
    right = 0
    while right < len(drafted) and drafted[right] == best[right]:
        right += 1
    return best[: right + 1]


# %% [markdown]
# If each draft is right with probability $a$, whatever the others are, the $n$-th counts with $a^n$, for those before it must be right, too. With the large
# model's own word a pass brings $1 + a + a^2 + \dots + a^g$ tokens (Leviathan et al. 2023, eq. 1).
# Our draft is the large model itself, with its weights in 8-bit integers (lesson 01).

# %%
draft = GPT(lively.config, dtype=torch.float64).requires_grad_(False)
for rough, fine in zip(draft.parameters(), lively.parameters()):
    rough.copy_(quantize(fine, bits=8, channel_dim=0 if fine.ndim > 1 else None).dequantize())
prompt = tokens[:1, :16]
text = without_cache(prompt, 200)
agreed = (draft(torch.cat([prompt, text], 1))[:, 15:-1].argmax(-1) == text).double().mean().item()
print(f"the draft agrees in {agreed:.0%} of 200 places")
for ahead in (1, 2, 4, 8):
    written, passes = speculate(lively, draft, prompt, 200, ahead)
    due = predict.tokens_a_pass(agreed, ahead)
    print(f"{ahead} ahead: {passes:3} passes, {199 / passes:.2f} tokens a pass; independent drafts would give {due:.2f}; same text: {torch.equal(written, text)}")

# %% [markdown]
# The same text, by fewer passes (the prompt's own pass has brought the first of 200 tokens).
# (With sampling, a token of probability $p$ (large model) and $q$ (draft) is accepted with $\min(1, p/q)$ and else drawn anew from what $p$ has more than $q$; the distribution is exactly the large model's.) The two
# columns differ no more than by chance: 200 places are few. Shuffle which of them agree, and the passes scatter as much.
#
# ### 16 · Reading a profile
#
# Five functions compute the same mean square of three layers, and each is slower than `slow_steps.quick`, by one sin. Here are their profiles: calls of each operation, most time first. **Before you open the source**, name the sin of each.

# %% tags=["varies"]
given = slow_steps.inputs()
for sinner in (slow_steps.quick, *slow_steps.SLOW):
    calls = meters.profiled(sinner, *given)
    listed = ", ".join(f"{count} {name}" for name, (count, _) in [*calls.items()][:8])
    print(f"{sinner.__name__:5} {1000 * meters.cpu_seconds(sinner, *given):5.1f} ms, {sum(count for count, _ in calls.values()):5} calls: {listed}; {sinner(*given).dtype}")

# %% [markdown]
# <details><summary>Answers</summary>
#
# a: 768 small products where three would do, a loop over rows. b: asks 768 times for a number (`item`, `_local_scalar_dense`); on a GPU each would wait for all work
# before it. c: the result is float64, products take twice the time, and `copy_` says where it began. d: twelve copies, the matrix is turned in memory each time. e: a dozen small
# operations in the place of one `gelu`: element-wise work, fusion's case. (`show(slow_steps.a)` and so on prints them.)
#
# </details>
#
# A profile is read in this order. How many calls? (Overhead.) Of which class is what takes the time? (Roofline.) Is there an operation that you did not write? (Copies, casts, synchronisation.)
#
# ## What to keep
#
# | question | answer |
# |---|---|
# | How fast can it be? | $\min(\text{peak}, I \cdot \text{bandwidth})$, and not less than its calls |
# | Who takes the time? | contractions have 99 % of the FLOPs, and less of the time |
# | What does fusion save? | bytes between operations; no FLOP |
# | What does a row keep in an online softmax? | top, total, mixed; scaled by $e^{\text{old}-\text{new}}$ |
# | What does FlashAttention save for the backward pass? | O and L; $D = \sum dO \circ O$ |
# | Bytes and FLOPs | $K+1$ numbers a token; seven products where autograd has six, on little more than half of the tiles |
# | Why is decoding slow? | one FLOP a byte; batches share weights and never caches |
# | What does a draft gain? | $1 + a + \dots + a^g$ tokens a pass, and the same text |
#
# ## Three exercises
#
# **1.** A LayerNorm reads and writes 16-bit numbers once and does 5 FLOPs for each. Which share of an H100's 989 TFLOP/s can it reach at best, in percent?
#
# **2.** 8,192 tokens, causal, tiles of 128 × 128. Of all tiles, which share is visited, as a fraction with three digits?
#
# **3.** A draft agrees in 80 % of places and looks 4 ahead; a pass of it costs a tenth of the large model's, whose pass
# over five tokens costs as much as over one. How many times as fast is it, if places are independent?

# %%
answer_1 = None  # percent

display(self_check(answer_1, turns.EXERCISES[0], tolerance=0.02, hint="Four bytes for five FLOPs: left of the ridge."))

answer_2 = None

display(self_check(answer_2, turns.EXERCISES[1], tolerance=0.002, hint="How many tiles has a side? Section 9 counts those that a causal pass visits."))

answer_3 = None

self_check(answer_3, turns.EXERCISES[2], tolerance=0.01, hint="Tokens of a round, over what a round costs.")

# %% [markdown]
# <details><summary>Answers</summary>
#
# 1. 5/4 FLOPs a byte times 3,350 GB/s are 4.2 TFLOP/s: 0.42 %.
# 2. 2,080 of 4,096: 0.508.
# 3. A round brings 1 + 0.8 + 0.64 + 0.512 + 0.41 = 3.36 tokens and costs 1.4 passes: 2.4 times.
#
# </details>
#
# **The lab**, `labs/lab16_tiled_attention`, asks for what this page left open: heads that share keys and values, a sliding window and ragged lengths, graded on error, bytes and FLOPs.
#
# ## Further reading
#
# - Williams, Waterman and Patterson 2009, [Roofline](https://doi.org/10.1145/1498765.1498785).
# - Ivanov et al. 2021, [Data Movement Is All You Need](https://arxiv.org/abs/2007.00072).
# - Milakov and Gimelshein 2018, [Online normalizer calculation for softmax](https://arxiv.org/abs/1805.02867).
# - Dao et al. 2022, [FlashAttention](https://arxiv.org/abs/2205.14135); Dao 2023, [FlashAttention-2](https://arxiv.org/abs/2307.08691).
# - Saha and Ye 2024, [The I/O complexity of attention](https://proceedings.mlr.press/v235/saha24a.html).
# - Kwon et al. 2023, [PagedAttention](https://arxiv.org/abs/2309.06180); Leviathan et al. 2023, [Speculative decoding](https://arxiv.org/abs/2211.17192).
# - Hugging Face 2025, [The Ultra-Scale Playbook](https://huggingface.co/spaces/nanotron/ultrascale-playbook).
# - Horace He, "Making deep learning go brrrr from first principles": the three regimes. Stanford's CS336, assignment 2: its four attention tests pass if its adapters return `tiled_attention.TiledAttention` (the two for GPUs, too, on a CPU).
#
# Lesson 17 puts all of the course into one plan.
