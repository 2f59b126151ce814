# %% [markdown]
# # Lab 02 · The account of a stranger
#
# **Goal:** take a model that you have never seen, and say how many bytes it will hold, to the last one, before it
# runs.
#
# | | |
# |---|---|
# | Time | 90 minutes for a good student |
# | Builds on | lesson 02: births and deaths, model states, what autograd saves, the KV cache |
# | You write | five functions, most of them short, and one small class |
# | A GPU | changes nothing here |
#
# | question | | points |
# |---|---|---|
# | 1 | Meet the stranger: every weight by its shape | 15 |
# | 2 | What it costs between steps, in three recipes | 15 |
# | 3 | What the forward pass leaves behind | 30 |
# | 4 | A cache in pages | 25 |
# | 5 | One past in three layouts | 15 |
#
# **The rules.** Your accounts are arithmetic: from a shape, without a model and without tensors. (Some checks ask for
# models that would not fit on this machine.) Then the notebook builds the model and holds your numbers against what
# `measure.memory` sees, to the byte. Import nothing but `math`, `torch` and what the next cell imports.
# A function leaves what it is given as it was, gradients, modes and hooks among it, and draws no random numbers. Where
# it may change something, its contract says so. The checks look.
#
# Checks that you see here give you points and tell you what is wrong. More run when the lab is graded, on other
# shapes. They ask for nothing that is not written here. Cells that show your answer at work fail until there is one.
# That costs nothing.

# %% term=true
TERM_SCALED = (256, 128, 512)
TERM_SCALES = (8_190_735_360 - 72 * 128) // TERM_SCALED + 72 * -(-128 // TERM_SCALED)  # of the 8B; 72 gains of 128
TERM_8B = f"{6 * 8_190_735_360 + 8 * TERM_SCALES:_d}"

# %%
import math
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

# %%
from course_kit import measure
from course_kit.accounts import MemoryAccount
from course_kit.checks import check
from course_kit.checks.habits import Unfilled, across
from course_kit.checks.random_programs import random_programs
from course_kit.checks.restrictions import without_torch
from course_kit.compare import compare
from course_kit.measure.storages import tensors_in
from course_kit.notebook import ask
from course_kit.units import Bytes, Count
from course_lib.model import hardware
from course_lib.train import optim
from course_lib.train.precision import MasterWeights
from course_lib.train.step import train_step
from course_pages.shared import memory

# %% [markdown]
# ## The stranger
#
# You know the GPT of lesson 00. This one has other norms, another attention and another MLP. Read it slowly, since all
# five questions are about it. First its shape, seven numbers and a switch:


# %%
@dataclass(frozen=True)
class Shape:
    layers: int
    width: int
    heads: int  # of the queries
    kv_heads: int  # of the keys and values; each serves heads / kv_heads query heads
    head_width: int  # a number of its own: heads · head_width need not be the width
    ffn_width: int
    vocab_size: int
    tied: bool = True  # whether the head uses the embedding's matrix


SMALL = Shape(layers=2, width=64, heads=4, kv_heads=2, head_width=24, ffn_width=160, vocab_size=96)

# %% [markdown]
# **RMSNorm** (Zhang and Sennrich 2019) divides each vector by the root of its mean square. It subtracts no mean and
# adds no bias; one gain for each feature is all it learns.
#
# `together` is a helper: it reorders the dims and *always* makes a copy, so that a product of matrices finds its
# numbers side by side.


# %%
class RMSNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))

    def forward(self, x):
        scale = (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
        return x * scale * self.gain


def together(x, *dims):
    return x.permute(dims).clone(memory_format=torch.contiguous_format)


# %% [markdown]
# **Grouped-query attention** (Ainslie et al. 2023): several query heads share one head of keys and values. Here they
# stand below each other in one tall matrix, so that nobody has to copy the keys. Queries and keys pass through an
# RMSNorm over *one head's* features first (after Henry et al. 2020), and all heads share its gain.
#
# (Where are the positions? Left out. The usual rotation would learn nothing and save nothing that grows with the
# batch, and a model with a causal mask manages without it: Kazemnejad et al. 2023.)


# %%
class Attention(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.g, self.n, self.d = shape.kv_heads, shape.heads // shape.kv_heads, shape.head_width
        self.q = nn.Linear(shape.width, shape.heads * self.d, bias=False)
        self.k = nn.Linear(shape.width, shape.kv_heads * self.d, bias=False)
        self.v = nn.Linear(shape.width, shape.kv_heads * self.d, bias=False)
        self.out = nn.Linear(shape.heads * self.d, shape.width, bias=False)
        self.q_norm, self.k_norm = RMSNorm(self.d), RMSNorm(self.d)

    def forward(self, x, mask):
        (b, s, _), g, n, d = x.shape, self.g, self.n, self.d
        q = together(self.q_norm(self.q(x).view(b, s, g, n, d)), 0, 2, 3, 1, 4).view(b * g, n * s, d)
        k = together(self.k_norm(self.k(x).view(b, s, g, d)), 0, 2, 1, 3).view(b * g, s, d)
        v = together(self.v(x).view(b, s, g, d), 0, 2, 1, 3).view(b * g, s, d)
        scores = torch.bmm(q, k.mT).view(b * g, n, s, s) / math.sqrt(d)
        weights = scores.masked_fill(mask, -math.inf).softmax(dim=-1)
        mixed = torch.bmm(weights.view(b * g, n * s, s), v).view(b, g, n, s, d)
        return self.out(together(mixed, 0, 3, 1, 2, 4).view(b, s, -1))


# %% [markdown]
# **SwiGLU** (Shazeer 2020): the MLP's hidden layer is a product of two, and one of them passes through
# $\operatorname{silu}(x) = x \cdot \operatorname{sigmoid}(x)$ first. No matrix has a bias.


# %%
class Block(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.norm_1, self.attention, self.norm_2 = RMSNorm(shape.width), Attention(shape), RMSNorm(shape.width)
        self.gate = nn.Linear(shape.width, shape.ffn_width, bias=False)
        self.up = nn.Linear(shape.width, shape.ffn_width, bias=False)
        self.down = nn.Linear(shape.ffn_width, shape.width, bias=False)

    def forward(self, x, mask):
        x = x + self.attention(self.norm_1(x), mask)
        y = self.norm_2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


# %% [markdown]
# And the whole. **Tied embeddings** (Press and Wolf 2017): the matrix that turns tokens into vectors also turns
# vectors into scores for tokens.


# %%
class Stranger(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.embedding = nn.Embedding(shape.vocab_size, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = RMSNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.vocab_size, bias=False)
        if shape.tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens, targets):
        mask = torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool).triu(1)
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, mask)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


def random_batch(shape, batch_size, seq):
    return tuple(torch.randint(shape.vocab_size, (batch_size, seq)) for _ in range(2))


# %% [markdown]
# ## 1 · Meet the stranger (15 points)
#
# A good account begins with an inventory: every tensor with its shape, under the part that it belongs to. Questions 2
# and 5 will thank you for the shapes.
#
# **Before you write:** in our small stranger, which matrix of the attention is larger, that of the queries or that of
# the keys? By which factor? And is the matrix of the queries square?
#
# **The contract.** `tensors(shape)` returns a dict with five keys, in any order:
#
# | key | what |
# |---|---|
# | `"embedding"` | the tokens' vectors |
# | `"attention"` | queries, keys, values, output |
# | `"mlp"` | gate, up, down |
# | `"norms"` | all gains, those of queries and keys and the last one too |
# | `"head"` | the head's own matrix, if it has one |
#
# Each value is a list of shapes, one tuple for each tensor of the model (not one for each layer), in any order. Write
# a matrix as PyTorch stores it: `nn.Linear(3, 5)` has a weight of `(5, 3)`. A tensor that two parts share is listed
# once, where it was made first.
#
# **What is graded:** the small stranger against the real one (6), the tying (3), further shapes, among them one that
# this machine could not hold (6).


# %% answer="q1"
def tensors(shape):
    """The shape of every parameter tensor by part: a dict of five lists of tuples."""
    ### BEGIN SOLUTION
    h, f, d = shape.width, shape.ffn_width, shape.head_width
    queries, keys, vocabulary = shape.heads * d, shape.kv_heads * d, (shape.vocab_size, h)
    return {
        "embedding": [vocabulary],
        "attention": [(queries, h), (keys, h), (keys, h), (h, queries)] * shape.layers,
        "mlp": [(f, h), (f, h), (h, f)] * shape.layers,
        "norms": [(h,), (h,), (d,), (d,)] * shape.layers + [(h,)],
        "head": [] if shape.tied else [vocabulary],
    }
    ### END SOLUTION


# %% [markdown]
# What does it say about a real one? The stranger has a name after all. It is the architecture of Qwen3's dense models,
# rotations aside (Yang et al. 2025, §2; layers and heads are from Table 1 there, widths from the published
# `config.json`). The smallest of that family is called 0.6B, and its model card says that 0.44 billion are left without
# the embedding. Whoever adds up the numbers in its published file finds 751,632,384. Who is right?

# %%
QWEN3_06B = Shape(28, 1024, 16, 8, 128, 3072, 151_936)
QWEN3_8B = Shape(36, 4096, 32, 8, 128, 12_288, 151_936, tied=False)
guess_parameters = ask("Parameters of the 0.6B, in millions?")

# %%
for name, shape in {"0.6B": QWEN3_06B, "8B": QWEN3_8B}.items():
    parts = {part: Count(sum(math.prod(size) for size in sizes)) for part, sizes in tensors(shape).items()}
    print(name, "  ".join(f"{part} {count:.4billion}" for part, count in parts.items()))
    inner = sum(parts[part] for part in ("attention", "mlp", "norms"))
    print(f"     all {sum(parts.values()):,d}, without embedding and head {inner:,d}")

# %% [markdown]
# If you count 596,049,920 in all, everybody is right. The file of the 0.6B holds its embedding twice, once under the
# name of the head. A program that adds up the file counts 155,582,464 numbers that the model shares.


# %%
def real_tensors(shape):
    parts = {part: [] for part in ("embedding", "attention", "mlp", "norms", "head")}
    for name, parameter in Stranger(shape).named_parameters():
        words = {"norm": "norms", "gain": "norms", "attention": "attention", "embedding": "embedding", "head": "head"}
        part = next((part for word, part in words.items() if word in name), "mlp")
        parts[part].append(tuple(parameter.shape))
    return parts


# %%
def counted(account):
    """An account of yours for the checks: while it runs there are no tensors, no models and nothing that measures."""
    built = ["Stranger", "RMSNorm", "Attention", "Block", "Grown", "Preallocated", "Paged", "held_by", "written_by"]
    built += ["real_tensors", "real_states", "real_account", "forward_record", "second_step", "train_step", "measure"]
    return without_torch(account, built)


# %% check="q1-values" points=6
def check_tensors(shape, expected):
    got = check.call(counted(tensors), shape)
    check.that(isinstance(got, dict), "a dict", came=type(got).__name__)
    check.equal(sorted(map(str, got)), sorted(expected), "the names of the parts", look="the contract's five keys")
    for part, sizes in expected.items():
        here = list(got[part]) if isinstance(got[part], list | tuple) else [got[part]]
        good = all(isinstance(size, tuple) for size in here)
        check.that(good, f"{part}: a list of tuples", came=str(here)[:80], look="a tuple of one number is (3,)")
        count, true_count = (sum(map(math.prod, each)) for each in (here, sizes))
        check.equal(count, true_count, f"{part}: parameters", look=f"what the model builds for {part}")
        too_many = str([size for size in here if here.count(size) > sizes.count(size)][:1])
        alike, look = sorted(here) == sorted(sizes), "how the contract writes a matrix"
        check.that(alike, f"{part}: the shapes", came=f"too many of {too_many[1:-1]}", look=look)


check_tensors(SMALL, real_tensors(SMALL))
check.written_with(tensors, forbidden=["Stranger"], look="the rules, at the top: from a shape, without a model")

# %% check="q1-tied" points=3
for is_tied, of_head in ((True, []), (False, [(96, 64)])):
    got = check.call(counted(tensors), replace(SMALL, tied=is_tied))
    check.that(
        isinstance(got, dict) and {"embedding", "head"} <= set(got), "the contract's five keys", came=str(got)[:80]
    )
    check.equal(list(got["head"]), of_head, f"what the head owns, tied={is_tied}", look="who made the matrix first")
    check.equal(list(got["embedding"]), [(96, 64)], f"what the embedding owns, tied={is_tied}")

# %% check="q1-hidden" points=6
# Other shapes, and the 8B.
### BEGIN HIDDEN TESTS
#: other shapes
for _shape in (Shape(3, 40, 6, 1, 8, 72, 50), Shape(1, 48, 4, 4, 20, 64, 33, False), Shape(5, 16, 8, 2, 6, 24, 19)):
    check_tensors(_shape, real_tensors(_shape))
#: the 8B
_got = check.call(counted(tensors), QWEN3_8B)
check.equal(sum(len(sizes) for sizes in _got.values()), 36 * 11 + 3, "tensors of the 8B")
check.equal(sum(math.prod(s) for sizes in _got.values() for s in sizes), 8_190_735_360, "parameters of the 8B")
# Sentences of the contract, and the known-wrong answers that break them.
#= `tensors(shape)` returns | no_key_for_a_tied_head
#= `"embedding"` | embedding_lies_across
#= `"attention"` | heads_fill_the_width
#= `"mlp"` | an_mlp_without_a_gate
#= `"norms"` | a_gain_for_each_head
#= `"head"` | tied_counted_twice
#= Each value is a list | gains_without_a_comma
#= Write a matrix as | embedding_lies_across
#= A tensor that two parts | tied_counted_twice
#= The shape of every | heads_fill_the_width
### END HIDDEN TESTS

# %% [markdown]
# ## 2 · What it costs between steps (15 points)
#
# Weights, gradients, and what the optimizer keeps. Three recipes, and with the last two $16\Psi$ will not help you:
# their bytes depend on the *shapes*.
#
# | recipe | weights and gradients | the optimizer keeps |
# |---|---|---|
# | `"adamw"` | fp32 | `torch.optim.AdamW`: two moments in fp32, and a step counter of 4 bytes for each tensor |
# | `"adafactor"` | fp32 | for a matrix a number for each row and one for each column, for a vector one for each element; fp32 |
# | `"8bit"` | bf16 | an fp32 copy of the weights; two moments of one byte an element; and for each moment an fp32 scale for every TERM_SCALED elements, counted from each tensor's start. The last block may be shorter |
#
# (Adafactor: Shazeer and Stern 2018. 8-bit states: Dettmers et al. 2022. Both are in `course_lib.train.optim`; they
# count their steps without a tensor.)
#
# **Before you write:** what does Adafactor keep for the embedding of Qwen3-8B, 151,936 × 4,096 numbers? And what does
# the third recipe keep for a gain of 24 numbers?
#
# **The contract.** `states(shape, recipe)` returns a `MemoryAccount` with `parameters`, `gradients` and `optimizer`
# in bytes, as they are right after a step. Another recipe raises `ValueError`.
#
# **What is graded:** each recipe against a real step (8), further shapes (7).


# %% answer="q2"
def states(shape, recipe):
    """Bytes of weights, gradients and optimizer state after a step: a MemoryAccount."""
    ### BEGIN SOLUTION
    sizes = [size for part in tensors(shape).values() for size in part]
    count = sum(map(math.prod, sizes))
    if recipe == "adamw":
        return MemoryAccount(4 * count, 4 * count, 8 * count + 4 * len(sizes))
    if recipe == "adafactor":
        return MemoryAccount(4 * count, 4 * count, 4 * sum(map(sum, sizes)))
    if recipe == "8bit":
        blocks = sum(-(-math.prod(size) // TERM_SCALED) for size in sizes)
        return MemoryAccount(2 * count, 2 * count, (4 + 2) * count + 2 * 4 * blocks)
    raise ValueError(f"recipe {recipe!r} given; known are adamw, adafactor and 8bit")
    ### END SOLUTION


# %%
def real_states(shape, recipe):
    model = Stranger(shape)
    if recipe == "adamw":
        optimizer = torch.optim.AdamW(model.parameters())
    elif recipe == "adafactor":
        optimizer = optim.Adafactor(model.parameters())
    else:
        optimizer = MasterWeights(optim.Adam8bit(model.parameters(), block_size=TERM_SCALED), torch.bfloat16)
    with measure.memory(model, optimizer) as record:
        model(*random_batch(shape, 2, 8)).backward()
        optimizer.step()
    return MemoryAccount(*(record.after[name] for name in ("parameters", "gradients", "optimizer")))


compare(predicted=states(SMALL, "adafactor"), measured=real_states(SMALL, "adafactor"), unit="KiB")

# %%
memory.memory_bar(
    {recipe: states(QWEN3_8B, recipe) for recipe in ("adamw", "adafactor", "8bit")},
    caption="Qwen3-8B between two steps. An A100 80GB has room for the lower two, and beside the last one for hardly an "
    "activation. Where is the orange of Adafactor?",
)

# %% check="q2-values" points=8
for recipe in ("adamw", "adafactor", "8bit"):
    got, expected = check.call(counted(states), SMALL, recipe), real_states(SMALL, recipe)
    check.that(isinstance(got, MemoryAccount), f"{recipe}: a MemoryAccount", came=type(got).__name__)
    for part in ("parameters", "gradients", "optimizer"):
        look = "the recipe's row, and a tensor's own shape"
        check.equal(int(got[part]), int(expected[part]), f"{recipe}: bytes of {part}", look=look)
    check.equal(int(got.total), int(expected.total), f"{recipe}: all together", look="the other categories: empty")
check.raises(ValueError, states, SMALL, "adagrad")
check.written_with(states, forbidden=["Stranger", "real_states", "measure.memory"], look="the rules: without a model")

# %% check="q2-hidden" points=7
# Other shapes with each recipe, and the 8B.
### BEGIN HIDDEN TESTS
#: other shapes with each recipe
for _shape in (Shape(3, 40, 6, 1, 8, 72, 50), Shape(1, 48, 4, 4, 20, 64, 33, False), Shape(2, 16, 8, 2, 6, 16, 16)):
    for _recipe in ("adamw", "adafactor", "8bit"):
        check.equal(check.call(counted(states), _shape, _recipe), real_states(_shape, _recipe), f"{_recipe}, {_shape}")
#: the 8B
_large = {"adamw": 65_525_884_476, "adafactor": 13_392_896, "8bit": TERM_8B}
for _recipe, _expected in _large.items():
    check.equal(check.call(counted(states), QWEN3_8B, _recipe).optimizer, Bytes(_expected), f"the 8B's {_recipe}")
# Sentences of the contract, and the known-wrong answers that break them.
#= `states(shape, recipe)` returns | sixteen_psi
#= Another recipe raises | unknown_recipes_are_adamw
#= Bytes of weights | blocks_over_the_whole_model
### END HIDDEN TESTS

# %% [markdown]
# ## 3 · What the forward pass leaves behind (30 points)
#
# Between the passes, autograd holds whatever the backward pass will read. How much is that? To the byte, please.
#
# Go through `forward` with a pencil, operation by operation, and ask each one: *what will your gradient need?*
#
# - A product of two tensors needs both factors, each for the other one's gradient. If one of them is a parameter, it
# lives anyway and does not count.
# - A matrix product is a product. A sum needs nothing. A product with a *number* needs nothing, either.
# - `square` needs its input. `rsqrt` and `softmax` need their result. `silu` needs its input.
# - `masked_fill` needs the mask, one byte for each entry.
# - The embedding needs the tokens, and the loss needs the targets: `int64`, 8 bytes each. The loss also needs the
# logarithms of the probabilities (not the scores that they were made of), and one number more, of their dtype: over how
# many targets it takes the mean.
#
# And then the rule that the lesson began with: **count storages, not requests.** A tensor that three operations ask
# for is held once. A view holds what it views. A copy holds memory of its own.
#
# **Before you write:** how many tensors as large as the hidden layer of the MLP does one block keep, two, three, four
# or five? And does anybody keep the keys as they came out of `self.k`?

# %%
guess_hidden = ask("Tensors of [batch, seq, ffn_width] that one block keeps?")

# %% [markdown]
# **The contract.** `activations(shape, batch_size, seq, element_bytes=4)`
#
# - returns a whole number: the bytes of all storages that autograd holds at the end of the forward pass, except the
# parameters. The mask, the tokens and the targets are among them.
# - `element_bytes`: 4 where the whole model is in fp32, 2 where it is in bf16. Tokens, targets and the mask do not
# change.
#
# **What is graded:** how it grows with the batch and the sequence (8), the exact number (8), further shapes, in both
# formats (9). The public checks name the power of `seq` that is off. If you are stuck, a cell below your answer lists
# what is really there. The last 5 points are for the peak, further down.


# %% answer="q3"
def activations(shape, batch_size, seq, element_bytes=4):
    """Bytes that autograd holds after the forward pass, parameters not counted."""
    ### BEGIN SOLUTION
    heads = shape.heads + shape.kv_heads
    norm = 3 * shape.width + 1  # what comes in, what is divided by the root, what goes out; and the root
    attention = heads * (3 * shape.head_width + 1)  # queries and keys: raw, divided, and the copy behind the gain
    attention += heads * shape.head_width  # the copy of the values, and of the heads' results for the last matrix
    mlp = 4 * shape.ffn_width  # gate, silu of gate, up, and their product
    for_each_token = shape.layers * (2 * norm + attention + mlp) + norm + shape.vocab_size
    scores = shape.layers * shape.heads * seq  # after softmax
    elements = batch_size * seq * (for_each_token + scores) + 1
    return element_bytes * elements + 2 * 8 * batch_size * seq + seq * seq
    ### END SOLUTION


# %%
def forward_record(shape, batch_size, seq, dtype=torch.float32):
    model, batch = Stranger(shape).to(dtype), random_batch(shape, batch_size, seq)
    with measure.memory(model) as record:
        loss = model(*batch)  # the name keeps the graph alive until the record ends
    return record


record = forward_record(SMALL, batch_size=3, seq=20)
compare(predicted=Bytes(activations(SMALL, 3, 20)), measured=record.after.activations, name="activations", unit="KiB")

# %% [markdown]
# Does it not agree? Ask the record what autograd holds, the largest first, and which operation made it. Raise the 6
# until you find a tensor that is not on your list, or miss one that is. (If a shape looks unfamiliar, it is the first
# one that this memory was seen with; only the bytes count.)

# %%
kept = [block for block in record.largest(1000, at="now") if block.category == "activations"]
for block in kept[:6]:
    print(f"{block.bytes:>10,d} B  {block.name:<30} {block.shape}")
print(f"and {len(kept) - 6} more")


# %% check="q3-growth" points=8
def powers(f):
    """(bytes for each pair of places, bytes for each place) in f(seq), from three measurements."""
    few, more, most = f(8), f(16), f(24)
    check.that(isinstance(few, int), "a whole number of bytes", came=type(few).__name__)
    pairs = (most - 2 * more + few) // 128
    return pairs, (more - few - 192 * pairs) // 8


for batch_size in (1, 3):
    got = powers(lambda seq, b=batch_size: check.call(counted(activations), SMALL, b, seq))
    real = powers(lambda seq, b=batch_size: int(forward_record(SMALL, b, seq).after.activations))
    check.equal(got[0], real[0], f"what grows with seq², batch {batch_size}", look="the attention weights; the mask")
    check.equal(got[1], real[1], f"what grows with seq, batch {batch_size}", look="one token's way through the model")

# %% check="q3-values" points=8
for batch_size, seq, dtype in ((3, 20, torch.float32), (2, 7, torch.float32), (3, 20, torch.bfloat16)):
    element_bytes = dtype.itemsize
    got = check.call(counted(activations), SMALL, batch_size, seq, element_bytes)
    check.that(isinstance(got, int), "a whole number of bytes", came=type(got).__name__)
    real = int(forward_record(SMALL, batch_size, seq, dtype).after.activations)
    look = "what does not grow with the sequence" if abs(got - real) < 8 else "the list of what autograd holds, above"
    check.equal(got, real, f"bytes for batch {batch_size}, seq {seq}, {dtype}", look=look)
forbidden = ["Stranger", "forward_record", "measure.memory"]
check.written_with(activations, forbidden=forbidden, look="the rules: without a model")

# %% check="q3-hidden" points=9
# Other shapes, batches, lengths and dtypes, and the 8B.
### BEGIN HIDDEN TESTS
#: other shapes, batches, lengths and dtypes
_shapes = [Shape(3, 40, 6, 1, 8, 72, 50), Shape(1, 48, 4, 4, 20, 64, 33, False), Shape(4, 16, 8, 2, 6, 24, 19)]
for _shape in _shapes:
    for _batch, _seq, _dtype in ((1, 12, torch.float32), (4, 9, torch.bfloat16), (2, 31, torch.float32)):
        _got = check.call(counted(activations), _shape, _batch, _seq, _dtype.itemsize)
        _real = int(forward_record(_shape, _batch, _seq, _dtype).after.activations)
        check.equal(_got, _real, f"batch {_batch}, seq {_seq}, {_dtype}, {_shape}")
#: the 8B
_per_token = 36 * (2 * 12_289 + 40 * 513 + 4 * 12_288 + 32 * 4096) + 12_289 + 151_936
_expected = 2 * (8 * 4096 * _per_token + 1) + 16 * 8 * 4096 + 4096**2
check.equal(check.call(counted(activations), QWEN3_8B, 8, 4096, 2), _expected, "the 8B in bf16, 8 sequences of 4,096 tokens")
check.written_with(activations, forbidden=["Stranger", "forward_record", "measure.memory"])
### END HIDDEN TESTS

# %% [markdown]
# So what would one sequence of 4,096 tokens cost the 8B, in bf16? And if it had only 8 query heads, one for each head
# of keys?

# %%
one, without = (activations(shape, 1, 4096, 2) for shape in (QWEN3_8B, replace(QWEN3_8B, heads=8)))
print(f"one sequence {Bytes(one):.1GiB}; with 8 query heads {Bytes(without):.1GiB}")

# %% [markdown]
# Grouped queries share keys and values. The attention weights they do *not* share: there is a square for each query
# head. That is the square which fused attention does away with.
#
# ### And the peak?
#
# The activations are all there at the turn, but the hill is a little higher. With a real vocabulary its top is at the
# loss. The way back begins there, with two operations. Each makes a tensor as large as the scores for tokens:
#
# - from the loss comes the gradient of the logarithms;
# - from that gradient and the logarithms themselves comes the gradient of the scores.
#
# What an operation reads still lives while its result is born. All of that stands on top of your accounts.
#
# **Before you write:** which of the three numbers of `states(shape, "adamw")` is *not* there at this moment?
#
# **The contract.** `at_the_peak(shape, batch_size, seq)` returns a `MemoryAccount`, all five categories, at the top of
# the *second* step with AdamW, all in fp32. The step begins with `zero_grad()`. Use your functions. The loss and the
# targets do not matter here: 16 bytes for each token, up or down, are right. You are asked only for shapes whose top is
# at the loss.
#
# **What is graded:** the five categories (3), another shape (2). What you take from `states` and `activations` is held
# against your own functions, so nothing is lost twice.


# %% answer="q3-more"
def at_the_peak(shape, batch_size, seq):
    """Bytes by category at the top of the second step with AdamW: a MemoryAccount."""
    ### BEGIN SOLUTION
    on_top = 2 * 4 * batch_size * seq * shape.vocab_size  # the gradients of the logarithms and of the scores
    between = states(shape, "adamw")
    return replace(between, gradients=0, activations=activations(shape, batch_size, seq), temporaries=on_top)
    ### END SOLUTION


# %%
def second_step(shape, batch_size, seq):
    model, batch = Stranger(shape), random_batch(shape, batch_size, seq)
    optimizer = torch.optim.AdamW(model.parameters())
    train_step(model, optimizer, batch)  # it begins with zero_grad()
    with measure.memory(model, optimizer) as record:
        train_step(model, optimizer, batch)
    return record


WIDE = replace(SMALL, vocab_size=1000)
step = second_step(WIDE, batch_size=4, seq=32)
memory.memory_timeline(
    step,
    caption="The activations rise block by block. Then the loss, and a grey tower on the turn. What is it made of?",
).show()
print(f"at the top you say {at_the_peak(WIDE, 4, 32).total:KiB}, and there were {step.peak.total:KiB}")

# %% check="q3-peak" points=3
def check_peak(shape, batch_size, seq):
    looks = {"parameters": "your states", "gradients": "the picture, at the dot", "optimizer": "your states"}
    looks |= {"activations": "your activations", "temporaries": "the two operations at the loss, and what they read"}
    got, real = check.call(counted(at_the_peak), shape, batch_size, seq), second_step(shape, batch_size, seq).peak
    check.that(isinstance(got, MemoryAccount), "a MemoryAccount", came=type(got).__name__)
    own = {"activations": int(check.call(counted(activations), shape, batch_size, seq))}
    own |= {part: check.call(counted(states), shape, "adamw")[part] for part in ("parameters", "optimizer")}
    for part, look in looks.items():
        here, there = int(got[part]), int(own.get(part, real[part]))
        near = abs(here - there) <= 16 * batch_size * seq
        check.that(near, f"{part} at the peak", expected=f"{there:,d} bytes", came=f"{here:,d}", look=look)


for case in ((WIDE, 4, 32), (replace(WIDE, layers=1, tied=False), 2, 80)):
    check_peak(*case)
forbidden = ["Stranger", "second_step", "measure.memory"]
check.written_with(at_the_peak, forbidden=forbidden, look="the rules: without a model")

# %% check="q3-peak-hidden" points=2
### BEGIN HIDDEN TESTS
check_peak(Shape(3, 32, 6, 3, 10, 48, 700), 3, 24)
# Sentences of the contract, and the known-wrong answers that break them.
#= returns a whole number | norm_like_a_layernorm
#= The mask, the tokens | mask_in_every_layer tokens_in_the_models_format
#= `element_bytes`: 4 where | always_four_bytes
#= Tokens, targets and the mask | tokens_in_the_models_format
#= Bytes that autograd holds | scores_of_the_shared_heads silu_keeps_nothing
#= `at_the_peak(shape, batch_size, seq)` returns | the_first_step
#= The step begins with | gradients_at_the_peak
#= Use your functions | - advice
#= The loss and the targets | - a tolerance
#= You are asked only | - what is not asked
#= Bytes by category | one_tensor_on_top vocabulary_of_the_example
### END HIDDEN TESTS

# %% [markdown]
# ## 4 · A cache in pages (25 points)
#
# Training is over, the stranger talks. For each token of its past it keeps keys and values, in every layer. Here is
# one layer's cache as two people would write it at first. Both have one method to put in one token of one sequence,
# and one to read a sequence's past. `kv` has the shape `[2, kv_heads, head_width]`: keys, then values.


# %%
class Grown:
    def __init__(self, shape, sequences, dtype=torch.float32):
        nothing = torch.empty(2, 0, shape.kv_heads, shape.head_width, dtype=dtype)
        self.past = [nothing] * sequences

    def append(self, sequence, kv):
        self.past[sequence] = torch.cat([self.past[sequence], kv.unsqueeze(1)], dim=1)

    def read(self, sequence):  # [2, tokens, kv_heads, head_width]
        return self.past[sequence]


# %%
class Preallocated:
    def __init__(self, shape, sequences, context, dtype=torch.float32):
        self.past = torch.empty(sequences, 2, context, shape.kv_heads, shape.head_width, dtype=dtype)
        self.lengths = [0] * sequences

    def append(self, sequence, kv):
        self.past[sequence, :, self.lengths[sequence]] = kv
        self.lengths[sequence] += 1

    def read(self, sequence):
        return self.past[sequence, :, : self.lengths[sequence]]


# %% [markdown]
# The first copies the whole past for each new token. The second pays on the first day for the longest past that there
# might ever be. In the serving systems that Kwon et al. (2023, §1 and Fig. 2) measured, 20.4 to 38.2 % of such a cache
# held tokens.
#
# Operating systems met this problem sixty years ago and cut memory into **pages**. A sequence's past is a list of
# pages, all of one size. A new one is taken when the last is full. So a sequence wastes less than one page, and never
# moves. And there is a bonus. If somebody wants three answers to one question, three sequences can have the *same*
# pages of past in their lists. Only when one of them writes into a page that another one also has, it takes a copy of
# that page first: **copy on write**.
#
# **Before you write:** pages have 4 places. A sequence of 6 tokens is forked, and then each of the two gets a token.
# How many pages are there now? And how many, if the sequence had 8 tokens before?
#
# **The contract.** `Paged(shape, sequences, page, dtype=torch.float32)` with four methods:
#
# - `append(sequence, kv)` and `read(sequence)`, as above. What `read` returns must be right until the next append; it
# may be a copy.
# - `fork(source, target)`: from now on `target`, another sequence, has the past of `source`. It copies no page. What
# `target` had before is dropped.
# - `drop(sequence)`: the sequence has no past any more. Pages that nobody else has are freed.
#
# A page is a tensor of its own, `[2, page, kv_heads, head_width]`. Between two calls the cache holds the pages that
# are in somebody's list, and no other tensor. Which page belongs to whom, keep in Python's lists and numbers. An
# append writes one token, and at most one page more if it has to copy. Index with plain numbers, so that the meter
# below can see it, and tell pages apart by `is`: it does not see NumPy, `tolist`, `deepcopy` or memory by its address, so they are out. A sequence that is read has at least one token.
#
# **What is graded:** right values (7), measured bytes held (7) and written (3), a longer life with forks and drops
# (8).


# %% answer="q4"
class Paged:  # one layer's keys and values, in pages of `page` tokens, with copy on write
    def __init__(self, shape, sequences, page, dtype=torch.float32):
        ### BEGIN SOLUTION
        self.page, self.dtype = page, dtype
        self.page_shape = (2, page, shape.kv_heads, shape.head_width)
        self.pages = [[] for _ in range(sequences)]
        self.lengths = [0] * sequences
        ### END SOLUTION

    def append(self, sequence, kv):
        ### BEGIN SOLUTION
        pages, place = self.pages[sequence], self.lengths[sequence] % self.page
        if place == 0:
            pages.append(torch.empty(self.page_shape, dtype=self.dtype))
        elif sum(any(pages[-1] is page for page in table) for table in self.pages) > 1:
            pages[-1] = pages[-1].clone()
        pages[-1][:, place] = kv
        self.lengths[sequence] += 1
        ### END SOLUTION

    def read(self, sequence):
        ### BEGIN SOLUTION
        return torch.cat(self.pages[sequence], dim=1)[:, : self.lengths[sequence]]
        ### END SOLUTION

    def fork(self, source, target):
        ### BEGIN SOLUTION
        self.pages[target], self.lengths[target] = list(self.pages[source]), self.lengths[source]
        ### END SOLUTION

    def drop(self, sequence):
        ### BEGIN SOLUTION
        self.pages[sequence], self.lengths[sequence] = [], 0
        ### END SOLUTION


# %% [markdown]
# A script for caches, and two meters. `play` runs a list of commands: `(0, 5)` puts five tokens into sequence 0,
# `("fork", 0, 1)` and `("drop", 0)` do what they say. `Written` is a dispatch mode like the ledger of the lesson. It
# adds up the bytes that operations write: copies, concatenations, and whatever else makes a tensor out of others.


# %%
def play(cache, shape, commands, dtype=torch.float32):
    for number, command in enumerate(commands):
        if isinstance(command[0], str):
            getattr(cache, command[0])(*command[1:])
            continue
        sequence, tokens = command
        generator = torch.Generator().manual_seed(100 * number + sequence)
        for _ in range(tokens):
            cache.append(sequence, torch.randn(2, shape.kv_heads, shape.head_width, generator=generator).to(dtype))
    return cache


def held_by(kind, shape, sequences, commands, *settings, dtype=torch.float32):
    with measure.memory() as record:
        cache = play(kind(shape, sequences, *settings, dtype=dtype), shape, commands, dtype)
    return record.after.total


# %%
class Written(TorchDispatchMode):
    ROOM = ("empty", "zeros", "ones", "full", "fill", "zero")  # these make room, and no token gets into it
    total = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made, name = func(*args, **(kwargs or {})), func._schema.name.removeprefix("aten::")
        alias = func._schema.returns[0].alias_info if func._schema.returns else None
        if (alias is None or alias.is_write) and not name.strip("_").removeprefix("new_").startswith(self.ROOM):
            parts = alias and name.startswith(("index_", "scatter"))  # of what is there, only places are written
            tensors = tensors_in(args)[-1:] if parts else tensors_in(made)
            self.total += sum(each.nbytes for each in tensors)
        return made


def written_by(cache, sequence, kv):
    with Written() as meter:
        cache.append(sequence, kv)
    return Bytes(meter.total)


# %%
TOKEN = Bytes(4 * 2 * SMALL.kv_heads * SMALL.head_width)
commands = [(0, 6), ("fork", 0, 1), (0, 1), (1, 1)]
print(f"pages held: {held_by(Paged, SMALL, 2, commands, 4) / (4 * TOKEN):g}")

# %% check="q4-values" points=7
cache = check.call(Paged, SMALL, 3, 4)
check.call(play, cache, SMALL, [(0, 3), (2, 6), (0, 2), (1, 1), (2, 2), (0, 4)])
plain = play(Grown(SMALL, 3), SMALL, [(0, 3), (2, 6), (0, 2), (1, 1), (2, 2), (0, 4)])
for sequence in range(3):
    check.equal(check.call(cache.read, sequence), plain.read(sequence), f"the past of sequence {sequence}")
for tokens in (6, 8):
    cache = check.call(play, Paged(SMALL, 2, 4), SMALL, [(0, tokens), ("fork", 0, 1), (0, 1), (1, 1)])
    for sequence in range(2):
        plain = play(Grown(SMALL, 2), SMALL, [(0, tokens)])
        check.equal(check.call(cache.read, sequence)[:, :tokens], plain.read(0), "the past from before the fork")
    one, other = (cache.read(sequence)[:, tokens:] for sequence in range(2))
    check.that(one.shape[1] == other.shape[1] == 1, "one new token each", came=f"{one.shape[1]} and {other.shape[1]}")
    check.that(not torch.equal(one, other), "each keeps its own new token", look="whose page the second one wrote into")

half = check.call(play, Paged(SMALL, 1, 4, torch.bfloat16), SMALL, [(0, 5)], torch.bfloat16)
plain = play(Grown(SMALL, 1, torch.bfloat16), SMALL, [(0, 5)], torch.bfloat16)
check.equal(check.call(half.read, 0), plain.read(0), "a past in bf16")

# %% check="q4-held" points=7
page = 4 * TOKEN
lives = {"9, 1 and 8 tokens": ([(0, 9), (1, 1), (2, 8)], 6), "a fork": ([(0, 6), ("fork", 0, 1)], 2)}
lives["a fork, and both go on"] = ([(0, 6), ("fork", 0, 1), (0, 1), (1, 1)], 3)
lives["a fork at a page's end"] = ([(0, 8), ("fork", 0, 1), (0, 1), (1, 1)], 4)
lives["one of two dropped"] = ([(0, 6), ("fork", 0, 1), ("drop", 0)], 2)
lives["the other goes on"] = ([(0, 6), ("fork", 0, 1), ("drop", 0), (1, 2)], 2)
lives["both dropped"] = ([(0, 6), ("fork", 0, 1), ("drop", 0), ("drop", 1)], 0)
check.call(Paged, SMALL, 1, 4)
for name, (commands, pages) in lives.items():
    got = check.call(held_by, Paged, SMALL, 3, commands, 4)
    look = "which pages are in whose list, and nothing else"
    check.equal(float(got / page), float(pages), f"pages held: {name}", look=look)

# %% check="q4-written" points=3
kv = torch.ones(2, SMALL.kv_heads, SMALL.head_width)
cache = check.call(play, check.call(Paged, SMALL, 2, 16), SMALL, [(0, 6), ("fork", 0, 1)])
for sequence, most in ((0, TOKEN + 16 * TOKEN), (0, TOKEN), (1, TOKEN), (1, TOKEN)):
    before = check.call(cache.read, sequence)
    check.that(isinstance(before, torch.Tensor), "what read returns is a tensor", came=type(before).__name__)
    got = check.call(written_by, cache, sequence, kv)
    after = torch.cat([before, kv.unsqueeze(1)], dim=1)
    check.equal(check.call(cache.read, sequence), after, "the token is there")
    check.at_most(
        got,
        most,
        f"bytes written for a token of sequence {sequence}",
        look="what an append writes, and who else has this page",
    )
unseen = ["numpy", "tolist", "deepcopy", "untyped_storage", "data_ptr", "frombuffer"]
for method in filter(callable, vars(Paged).values()):
    check.written_with(method, forbidden=unseen, look="what the meter does not see, NumPy's writing for one")

# %% check="q4-hidden" points=8
# Another life of four sequences, other pages and another dtype, the bytes held and the bytes written.
### BEGIN HIDDEN TESTS
import gc

#: another life of four sequences, other pages and another dtype
_shape = Shape(1, 32, 6, 3, 5, 8, 9, tied=False)


class _Copies:
    def __init__(self, shape, sequences, dtype):
        self.past = [[] for _ in range(sequences)]

    def append(self, sequence, kv):
        self.past[sequence] = [*self.past[sequence], kv.clone()]

    def fork(self, source, target):
        self.past[target] = list(self.past[source])

    def drop(self, sequence):
        self.past[sequence] = []


_life = [(0, 7), ("fork", 0, 1), ("fork", 0, 2), (1, 2), (3, 10), ("drop", 0), (2, 5), ("fork", 3, 0), (0, 1), (3, 1)]
_life += [("fork", 1, 3), (3, 4), ("drop", 2), (2, 3), (1, 1), (3, 1), ("fork", 0, 1), (0, 2)]
for _page in (3, 1, 5, 32):
    _truth = play(_Copies(_shape, 4, torch.bfloat16), _shape, _life, torch.bfloat16)
    _cache = check.call(play, check.call(Paged, _shape, 4, _page, torch.bfloat16), _shape, _life, torch.bfloat16)
    for _sequence in range(4):
        _expected = torch.stack(_truth.past[_sequence], dim=1)
        check.equal(check.call(_cache.read, _sequence), _expected, f"sequence {_sequence}, pages of {_page}")
    #: the bytes held
    # Every token is an object of its own: places with the same objects are one page.
    _pages = {tuple(map(id, past[i : i + _page])) for past in _truth.past for i in range(0, len(past), _page)}
    _held = check.call(held_by, Paged, _shape, 4, _life, _page, dtype=torch.bfloat16)
    check.equal(_held, Bytes(len(_pages) * _page * 2 * 2 * 3 * 5), f"bytes held in pages of {_page}")


#: the bytes written
_kv = torch.ones(2, SMALL.kv_heads, SMALL.head_width)
_cache = check.call(play, Paged(SMALL, 2, 4), SMALL, [(0, 6), ("fork", 0, 1), (0, 1)])
_what = "bytes written for a token whose page is one sequence's; the page before it has two"
check.at_most(written_by(_cache, 1, _kv), TOKEN, _what, look="which page an append asks for")


def _places():
    """Where the pages lie."""
    gc.collect()
    pages = [each for each in gc.get_objects() if type(each) is torch.Tensor]
    return sorted(each.data_ptr() for each in pages if each.shape == (2, 4, SMALL.kv_heads, SMALL.head_width))


_before = _places()
check.call(_cache.append, 0, _kv)
_what = "the pages lie where they lay, after a token for a page that has room"
check.that(_places() == _before, _what, look="what is copied, by whatever means")
#: another life of four sequences
with Unfilled():
    _cache, _truth = check.call(Paged, SMALL, 1, 4), _Copies(SMALL, 1, torch.float32)
    for _size in (3000.0, -3000.0, 1.0, 2.0, 3.0):
        _token = across(torch.full((2, SMALL.kv_heads, SMALL.head_width), _size))
        check.call(_cache.append, 0, _token)
        _truth.append(0, _token)
check.equal(check.call(_cache.read, 0), torch.stack(_truth.past[0], dim=1), "tokens that lie across in memory")


class _Pasts(_Copies):
    def __init__(self, shape, sequences, page, dtype=torch.float32):
        super().__init__(shape, sequences, dtype)

    def read(self, sequence):
        return torch.stack(self.past[sequence], dim=1)


def _draw(chance, names):
    one, other = chance.sample(range(3), 2)
    if not names["cache"].past[one] or chance.random() < 0.5:
        return f"cache.append({one}, torch.full((2, 2, 24), {chance.randint(1, 99)}.0))"
    return f"cache.fork({one}, {other})" if chance.random() < 0.9 else f"cache.drop({one})"


def _looks(names):
    return [f"cache.read({number})" for number, past in enumerate(names["cache"].past) if past]


_known, _look = {"SMALL": SMALL, "torch": torch}, "who else has this page, and how many they are"
_names = [_known | {"Paged": kind} for kind in (Paged, _Pasts)]
random_programs("a cache", "cache = Paged(SMALL, 3, 4)", *_names, _draw, _looks, look=_look)
# Sentences of the contract, and the known-wrong answers that break them.
#= `Paged(shape, sequences, page | pages_always_fp32
#= `append(sequence, kv)` and | holds_nothing
#= What `read` returns | - a buffer for it would be another tensor, which q4-held counts
#= `fork(source, target)`: from | one_list_for_two holds_nothing
#= It copies no page | fork_copies_every_page
#= What `target` had before | fork_keeps_the_old_past
#= `drop(sequence)`: the | drop_keeps_the_length
#= Pages that nobody else | drop_keeps_the_pages
#= A page is a tensor | pages_in_name_only
#= Between two calls | fork_copies_every_page pages_in_name_only
#= Which page belongs | pages_in_name_only
#= An append writes | copies_the_page_each_time once_shared_always_copied asks_for_the_first_page copies_by_deepcopy
#= Index with plain numbers | rewritten_by_where rewritten_by_index_copy
#= A sequence that is read | - what is given
### END HIDDEN TESTS

# %% [markdown]
# ## 5 · One past in three layouts (15 points)
#
# Now the account. You run a server with some sequences of different lengths. What does each layout hold, for all
# layers? And what does the next round cost, in which every sequence gets one token?
#
# **Before you write:** with which layout do the written bytes depend on the length? And what does writing 1,000
# tokens one after the other cost in that layout, altogether?
#
# **The contract.** `cache_account(shape, lengths, layout, context, page, element_bytes=2)`
#
# - `lengths`: tokens of each sequence so far, a list; at least 1 each and below `context`.
# - `layout`: `"grown"`, `"preallocated"` (for `context` tokens each) or `"paged"` (in pages of `page` tokens, nothing
# shared). Another raises `ValueError`. An argument that a layout has no use for is ignored.
# - returns a tuple of two whole numbers: the bytes **held** now, in all layers; and the bytes **written** when each
# sequence gets one more token, in all layers, as `Written` counts them.
#
# **What is graded:** the three layouts against the real ones (8), further shapes and lengths (7).


# %% answer="q5"
def cache_account(shape, lengths, layout, context, page, element_bytes=2):
    """(bytes held, bytes written for one more token of each sequence) of a KV cache in all layers."""
    ### BEGIN SOLUTION
    token = 2 * shape.layers * shape.kv_heads * shape.head_width * element_bytes
    if layout == "grown":
        return token * sum(lengths), token * sum(length + 1 for length in lengths)
    if layout == "preallocated":
        return token * len(lengths) * context, token * len(lengths)
    if layout == "paged":
        return token * page * sum(-(-length // page) for length in lengths), token * len(lengths)
    raise ValueError(f"layout {layout!r} given; known are grown, preallocated and paged")
    ### END SOLUTION


# %%
def real_account(layout, shape, lengths, context):
    kind, settings = {"grown": (Grown, ()), "preallocated": (Preallocated, (context,))}[layout]
    commands, kv = list(enumerate(lengths)), torch.ones(2, shape.kv_heads, shape.head_width)
    held = written = Bytes(0)
    for _layer in range(shape.layers):
        held += held_by(kind, shape, len(lengths), commands, *settings)
        cache = play(kind(shape, len(lengths), *settings), shape, commands)
        written += sum((written_by(cache, sequence, kv) for sequence in range(len(lengths))), Bytes(0))
    return int(held), int(written)


LENGTHS = [5, 12, 1, 8]
for layout in ("grown", "preallocated"):
    print(layout, cache_account(SMALL, LENGTHS, layout, 32, 4, 4), real_account(layout, SMALL, LENGTHS, 32))

# %% [markdown]
# And a server, at last: the 8B on one card of 80 GB, weights in bf16, 40 conversations of up to 32,768 tokens each.
# Most are short, a few are long.

# %%
guess_conversations = ask("How many of the 40 would fit, if each got its 32,768 places at once?")

generator = torch.Generator().manual_seed(2)
lengths = (60 * 2 ** (9 * torch.rand(40, generator=generator))).int().tolist()
weights = 2 * sum(math.prod(size) for part in tensors(QWEN3_8B).values() for size in part)
accounts = {
    layout: MemoryAccount(parameters=weights, temporaries=cache_account(QWEN3_8B, lengths, layout, 32_768, 16)[0])
    for layout in ("grown", "preallocated", "paged")
}
each = cache_account(QWEN3_8B, [1], "preallocated", 32_768, 16)[0]
fit = int(hardware.A100_80GB.memory - weights) // int(each)
print(f"mean length {sum(lengths) / 40:.0f}; with all places at once, {fit} of 40 would fit")
for layout in accounts:
    print(f"{layout:<13} writes {Bytes(cache_account(QWEN3_8B, lengths, layout, 32_768, 16)[1]):.1MiB} for 40 tokens")
memory.memory_bar(
    accounts,
    limit={"A100 80GB": hardware.A100_80GB.memory},
    caption="Weights, and the past of 40 conversations (here under temporaries). In pages of 16 tokens the past takes "
    "hardly more than its tokens, and nothing is copied.",
)

# %% check="q5-values" points=8
for lengths in ([5, 12, 1, 8], [4], [3, 3]):
    for layout in ("grown", "preallocated"):
        got = check.call(counted(cache_account), SMALL, given := list(lengths), layout, 32, 4, 4)
        check.equal(given, lengths, "the list of lengths afterwards", look="whose list it is")
        check.that(isinstance(got, tuple) and len(got) == 2, "a tuple of two", came=str(got)[:80])
        held, written = real_account(layout, SMALL, lengths, 32)
        check.equal(got[0], held, f"{layout}: bytes held for {lengths}", look="keys and values, all layers")
        check.equal(got[1], written, f"{layout}: bytes written for {lengths}", look="what append does in this layout")
in_pages = {(5, 12, 1, 8): 8, (4,): 1, (3, 3): 2}
for lengths, pages in in_pages.items():
    got = check.call(counted(cache_account), SMALL, list(lengths), "paged", 32, 4, 4)
    check.equal(got[0], int(pages * 4 * 2 * TOKEN), f"paged: bytes held for {lengths}", look="how many pages that is")
    check.equal(got[1], int(len(lengths) * 2 * TOKEN), f"paged: bytes written for {lengths}", look="q4: one append")
check.raises(ValueError, cache_account, SMALL, [1], "heaped", 32, 4)
forbidden = ["Grown", "Preallocated", "Paged", "real_account", "held_by", "measure.memory"]
check.written_with(cache_account, forbidden=forbidden, look="the rules: without tensors")

# %% check="q5-hidden" points=7
# Another shape, other lengths and pages, and the 8B.
### BEGIN HIDDEN TESTS
#: another shape, other lengths and pages
_shape, _lengths = Shape(3, 40, 6, 1, 10, 72, 50), [7, 1, 30, 16, 17]
for _layout in ("grown", "preallocated"):
    _got = check.call(counted(cache_account), _shape, _lengths, _layout, 31, 8, 4)
    check.equal(tuple(_got), real_account(_layout, _shape, _lengths, 31), f"{_layout}, another shape")
check.equal(tuple(check.call(counted(cache_account), _shape, _lengths, "paged", 31, 8, 2)), (10_560, 600), "paged, bf16")
check.equal(tuple(check.call(counted(cache_account), _shape, _lengths, "paged", 31, 1, 2)), (8520, 600), "pages of one token")
check.equal(tuple(check.call(counted(cache_account), _shape, _lengths, "grown", 31, 8, 1)), (4260, 4560), "grown, a byte a number")
check.equal(tuple(check.call(counted(cache_account), _shape, [7], "grown", 31, 0, 1)), (420, 480), "grown, and no page size")
#: the 8B
_expected = {"grown": (884_883_456, 885_178_368), "preallocated": (2_415_919_104, 294_912)}
_expected["paged"] = (887_095_296, 294_912)
for _layout, (_held, _written) in _expected.items():
    _got = check.call(counted(cache_account), QWEN3_8B, [1, 6000], _layout, 8192, 16)
    check.equal(tuple(_got), (_held, _written), f"{_layout}: two sequences of the 8B")
# Sentences of the contract, and the known-wrong answers that break them.
#= `lengths`: tokens | counts_up_the_callers_list
#= `layout`: `"grown"` | a_page_too_many concatenation_is_free
#= Another raises | any_layout_is_paged
#= An argument that a layout | pages_counted_in_every_layout
#= returns a tuple | concatenation_is_free keys_without_values
#= (bytes held | all_query_heads_cached
### END HIDDEN TESTS

# %% [markdown]
# ## What you have now
#
# A model that nobody had explained to you, and no byte of it that you could not name: the weights, what stays between
# two steps, what the forward pass leaves, and the past of a conversation. The same pencil works for the next
# stranger. Go through `forward`, ask each operation what it keeps, and count storages.
#
# The largest of those numbers were the activations. Lesson 03 makes most of them disappear.
