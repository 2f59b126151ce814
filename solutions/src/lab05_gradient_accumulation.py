# %% [markdown]
# # Lab 05 · An accumulator for a stream
#
# **Goal:** a large batch that arrives in pieces of any length, through fp16, with clipping and a loss scale that moves,
# and not one weight differs from the step on the whole batch.
#
# | question | points |
# |---|---|
# | 1 · The total comes last | 25 |
# | 2 · Sixteen bits in, thirty-two bits kept | 25 |
# | 3 · All together | 35 |
# | 4 · Interrupted | 15 |
#
# A good student needs about 90 minutes. The lab builds on lesson 05 (pieces, token weights, the order of things) and
# lesson 04 (fp16, fp32 copies, loss scales). You need no GPU.
#
# **The rules.** Use what the next cells import, and nothing else. A cell that says YOUR CODE HERE is yours; every cell
# below it shows your work or checks it, and you can run those as often as you like. Some more tests run when the lab is
# graded. They ask for nothing that is not written here, on other sizes and other text. Bytes count as much as values:
# an accumulator that holds on to everything has missed the point.
# A function leaves what it is given as it was, gradients, modes and hooks among it, and draws no random numbers. Where
# it may change something, its contract says so. The checks look.

# %%
import copy
import io
import math

import torch

from course_kit import measure
from course_kit.checks import check
from course_kit.checks.habits import Unfilled, across
from course_kit.checks.held_bytes import outside_torch
from course_kit.checks.random_programs import random_programs
from course_kit.notebook import ask
from course_kit.units import Bytes
from course_lib.model import text
from course_lib.model.gpt import GPT, GPTConfig
from course_lib.train.accumulate import IGNORE, count_tokens, micro_batches, ragged_batch
from course_pages.shared import block_formats as figures
from course_pages.shared.losses import loss_curves
from course_pages.shared.memory import memory_timeline

# %%
SMALL = GPTConfig(layers=2, width=32, heads=4, vocab_size=256, context=64)
stories = text.stories(seed=0)


# %%
def freeze(model, count):
    """The model, whose first parameters do not learn."""
    for parameter in list(model.parameters())[:count]:
        parameter.requires_grad_(False)
    return model


def ragged(lengths, seed=0):
    """Sequences of these lengths, as one padded batch."""
    rows = stories.batch(seed, 0, 0, len(lengths), 65)[0]
    return ragged_batch([row[: length + 1] for row, length in zip(rows, lengths, strict=True)])


LENGTHS = [64, 3, 60, 5, 62, 4, 58, 2, 40, 41, 7, 1]
whole = ragged(LENGTHS)
pieces = micro_batches(whole, 2)
nothing = (torch.zeros(2, 5, dtype=torch.int64), torch.full((2, 5), IGNORE))  # a piece that is all padding
print("tokens in the pieces:", *(count_tokens(targets) for _, targets in pieces))

# %% [markdown]
# ## 1 · The total comes last (25 points)
#
# Lesson 05 weighs each piece by its share of the tokens, $n_i / N$. So it must know $N$ before the first backward
# pass, and it draws and counts all pieces first. Often nobody can. The pieces come from a queue, a filter throws some
# away, a time limit ends the step. You get one piece, you must let it go, and whether another comes you learn later.
#
# The gradient of the whole batch is
#
# $$\nabla \ell = \frac{1}{N} \sum_i n_i \nabla \ell_i \qquad N = \sum_i n_i$$
#
# with $\ell_i$ the mean loss of piece $i$. Which part of it can you do while $N$ is unknown? What must wait?
#
# **The contract.** A class `TokenSum(model)` with two methods.
#
# - `model(inputs, targets)` returns the mean loss over the targets that are not `IGNORE`, as a tensor. Its weights are
#   fp32 or fp64. Some may be frozen (`requires_grad=False`): their `.grad` is None and stays so.
# - `add(inputs, targets)` takes one piece, int64 (batch, seq) each, and returns how many tokens it has to learn from.
#   A piece may have none; it then changes nothing. (What is the mean over no tokens?)
# - `finish()` leaves the gradient of the mean over all tokens in each parameter's `.grad` and returns the mean loss, a
#   Python float. No token at all raises `ValueError`. After it the object is ready for the next batch; the caller has
#   cleared `.grad` by then (`model.zero_grad()`).
# - **Bytes:** after each `add`, nothing is alive but weights, gradients and at most 1 KiB: no piece, no graph. The peak
#   is that of a plain backward pass of the largest piece, beside gradients that are there already. `finish` makes no
#   second set of gradients: it takes at most 1 KiB, and a temporary of the size of the largest parameter.
#
# **What is graded:** loss and gradient against one big batch (8), bytes (9), other sizes and text (8).


# %% answer="q1"
class TokenSum:
    """The gradient of a mean over tokens, from pieces that come one by one."""

    def __init__(self, model):
        """Begin with nothing."""
        ### BEGIN SOLUTION
        self.model, self.tokens, self.loss = model, 0, 0.0
        ### END SOLUTION

    def add(self, inputs, targets):
        """Forward and backward on one piece; returns its number of tokens."""
        ### BEGIN SOLUTION
        count = count_tokens(targets)
        if count:
            loss = self.model(inputs, targets) * count  # the mean over no tokens is nan, and so is 0 times that
            loss.backward()
            self.loss += loss.item()
            self.tokens += count
        return count
        ### END SOLUTION

    def finish(self):
        """Leave the mean's gradient in .grad; returns the mean loss."""
        ### BEGIN SOLUTION
        if not self.tokens:
            raise ValueError("no piece had a token to learn from; a mean needs at least one")
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                parameter.grad.div_(self.tokens)
        mean = self.loss / self.tokens
        self.tokens, self.loss = 0, 0.0
        return mean
        ### END SOLUTION


# %% [markdown]
# Your class at work, on the six pieces. The picture should be a saw: six teeth, each as high as its piece is long, on
# the green of the gradients. A hill that only grows is a graph that you keep.

# %%
model = GPT(SMALL, seed=0)
with measure.memory(model) as record:
    total = TokenSum(model)
    for piece in pieces:
        total.add(*piece)
    total.finish()
memory_timeline(record)


# %% [markdown]
# The judge: one big batch, in fp64. Two sums of $N$ numbers in two orders differ by $N$ roundings at most (Higham 2002,
# §4.2).


# %%
def gradients(model):
    for name, parameter in model.named_parameters():
        if (parameter.grad is None) == parameter.requires_grad:
            ways = ("a tensor", "None")
            expected, came = ways if parameter.requires_grad else ways[::-1]
            check.that(False, f"the .grad of {name}", expected=expected, came=came, look="what finish leaves behind")
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.requires_grad])


# %%
def equals_one_batch(config, pieces, whole, seed, frozen=0):
    oracle, model = (freeze(GPT(config, seed=seed, dtype=torch.float64), frozen) for _ in range(2))
    loss = oracle(*whole)
    loss.backward()
    total = check.call(TokenSum, model)
    with check.unchanged("the model, after all pieces", {"model": model}, may_change="grad"):
        said = [check.call(total.add, *piece) for piece in [*pieces, nothing]]
    counts = [count_tokens(targets) for _, targets in [*pieces, nothing]]
    check.equal(said, counts, "what add returns", look="which targets count")
    n, look = count_tokens(whole[1]), "by what each piece is multiplied, by what all are divided, what padding does"
    check.close(check.call(total.finish), loss.item(), "the mean loss", operations=n, look=look)
    check.close(gradients(model), gradients(oracle), "the gradient", operations=n, look=look)
    return model, total


# %% check="q1-values" points=8
equals_one_batch(SMALL, pieces, whole, seed=4, frozen=3)
model, total = equals_one_batch(SMALL, pieces, whole, seed=1)
check.raises(ValueError, total.finish, look="finish, without a token since the last one")
once = gradients(model)
model.zero_grad()
for piece in pieces:
    check.call(total.add, *piece)
check.call(total.finish)
check.equal(gradients(model), once, "the same batch again, with the same object", look="what is left after finish")

# %% [markdown]
# And the bytes, beside those of the weights and the pieces. First what a plain backward pass takes at its peak, when
# gradients lie there already; then what your class takes.


# %%
SLACK = Bytes(1024)


def plain_peak(model, piece, passes, scale=1.0):
    with measure.memory(model, inputs=piece) as record:
        for _ in range(passes):
            (model(*piece) * scale).backward()
    return record.peak.total - record.before.total


# %%
def held_by_pieces(config, pieces):
    model, plain = GPT(config, seed=0), GPT(config, seed=0)
    limit, n = plain_peak(plain, pieces[0], 2), Bytes(sum(parameter.nbytes for parameter in plain.parameters()))
    parts = [tensor for piece in pieces for tensor in piece]
    with outside_torch() as outside, measure.memory(model, inputs=parts, lines=True) as record:
        total = check.call(TokenSum, model)
        for number, (inputs, targets) in enumerate(pieces):
            check.call(total.add, inputs.clone(), targets.clone())
            check.equal(record.now.gradients, n, f"bytes of gradients after piece {number}", look="when backward runs")
            more = check.held(record, "now") + outside()
            check.at_most(more, n + SLACK, f"bytes after piece {number}", look="what the object keeps")
    check.at_most(check.held(record), limit + 8 * SLACK, "bytes at the peak", look="what is alive, and until when")


# %% check="q1-bytes" points=9
def held_by_finish(model, total):
    with measure.memory(model, lines=True) as record:
        check.call(total.finish)
    room = SLACK + Bytes(max(parameter.nbytes for parameter in model.parameters()))
    check.at_most(check.held(record), room, "bytes that finish takes", look="a second set?")


equals_one_batch(SMALL, pieces, whole, seed=2)
held_by_pieces(SMALL, pieces)
model = GPT(SMALL, seed=0)
total = check.call(TokenSum, model)
for piece in pieces:
    check.call(total.add, *piece)
held_by_finish(model, total)

# %% check="q1-hidden" points=8
# Other models, cuts and lengths, what is held, and a second batch.
### BEGIN HIDDEN TESTS
_config = GPTConfig(layers=1, width=32, heads=2, vocab_size=256, context=64, tied=False)
_whole = ragged([1, 64, 64, 2, 33, 9, 17], seed=5)
#: other models, cuts and lengths
for _size in (1, 3, 7):
    equals_one_batch(_config, micro_batches(_whole, _size), _whole, seed=_size)
_whole = ragged([2, 30] * 8, seed=6)
#: what is held
held_by_pieces(_config, micro_batches(_whole, 4))
#: a second batch
_model = GPT(_config, seed=3, dtype=torch.float64)
_total = check.call(TokenSum, _model)
for _piece in micro_batches(_whole, 1):  # the stream ends, a step is taken, and another stream begins
    check.call(_total.add, *_piece)
check.call(_total.finish)
_model.zero_grad()
_second, _oracle = ragged([5, 50, 8], seed=7), GPT(_config, seed=3, dtype=torch.float64)
_loss = _oracle(*_second)
_loss.backward()
for _piece in micro_batches(_second, 2):
    check.call(_total.add, *_piece)
check.close(check.call(_total.finish), _loss.item(), "the loss of the second batch", operations=63)
check.close(gradients(_model), gradients(_oracle), "the gradient of the second batch", operations=63)
check.raises(ValueError, check.call(TokenSum, _model).finish)


class _Tiny(torch.nn.Module):
    """A number for each of four tokens; the loss is the mean of what they are times the targets."""

    def __init__(self):
        super().__init__()
        self.row = torch.nn.Parameter(torch.tensor([0.3, -0.7, 1.1, 0.9], dtype=torch.float64))

    def forward(self, inputs, targets):
        counted = targets != IGNORE
        return (self.row[inputs[counted]] * targets[counted]).square().mean()


class _PlainTokens:
    """Remembers what each piece gave, and adds it up at the end."""

    def __init__(self, model):
        self.model, self.pieces = model, []

    def add(self, inputs, targets):
        if count := count_tokens(targets):
            loss = self.model(inputs, targets) * count
            self.pieces.append((count, loss.item(), *torch.autograd.grad(loss, self.model.row)))
        return count

    def finish(self):
        (counts, losses, gradients), self.pieces = zip(*self.pieces), []
        self.model.row.grad = sum(gradients) / sum(counts)
        return sum(losses) / sum(counts)


def _begin_tokens(kind):
    model = _Tiny()
    return model, kind(model)


def _rounded(said):
    """Sums in another order differ in the sixteenth digit, and here nobody asks for so many."""
    return [tuple(round(n, 9) for n in each) if isinstance(each, tuple) else each for each in said]


def _draw(chance, names):
    if names["total"].pieces and chance.random() < 0.3:
        ready = "model.zero_grad(); model.row.data -= 0.125"
        return f"said.append((total.finish(), *model.row.grad.tolist())); {ready}"
    tokens = [chance.choice((IGNORE, 0, 1, 2)) for _ in range(3)]
    return f"said.append(total.add(torch.tensor([{[chance.randrange(4) for _ in tokens]}]), torch.tensor([{tokens}])))"


def _large_across():
    """Weights that are large, lie across in memory and have two names."""
    model = _Tiny()
    model.again = model.row
    model.row.data = across(torch.tensor([2000.0, -3000.0, 0.5, 1.0], dtype=torch.float64))
    return model


def _mean_of_large(kind):
    model = _large_across()
    with Unfilled():
        total = check.call(kind, model)
        for inputs in ([0, 1, 2], [3, 1, 1]):
            check.call(total.add, torch.tensor([inputs]), torch.tensor([[1, 2, IGNORE]]))
        return [check.call(total.finish), *model.row.grad.tolist()]


#: other models
check.equal(_mean_of_large(TokenSum), _mean_of_large(_PlainTokens), "large weights that lie across in memory")
#: a second batch
_known = {"torch": torch, "rounded": _rounded}
_names = [_known | {"start": lambda kind=kind: _begin_tokens(kind)} for kind in (TokenSum, _PlainTokens)]
_begin, _look = "model, total = start(); said = []", "what an object remembers of a piece, and for how long"
random_programs("a mean over tokens", _begin, *_names, _draw, lambda _: ["rounded(said)"], look=_look)
# Sentences of the contract, and the known-wrong answers that break them.
#= A class `TokenSum(model)` | - a name
#= `model(inputs, targets)` returns | padding_makes_nan
#= Its weights are fp32 | losses_in_fp32
#= Some may be frozen | zeros_for_the_frozen
#= `add(inputs, targets)` takes | zero_is_padding
#= A piece may have none | padding_makes_nan
#= (What is the mean | - a question
#= `finish()` leaves | divides_by_the_pieces mean_of_means
#= No token at all | no_token_costs_nothing
#= After it the object | never_begins_again
#= **Bytes:** after each | holds_the_pieces one_backward_at_the_end
#= The peak is that | one_backward_at_the_end
#= `finish` makes no | a_second_set_of_gradients
#= The gradient of a mean | mean_of_means
#= Begin with nothing | never_begins_again
#= Forward and backward on one | zero_is_padding
#= Leave the mean's gradient | divides_by_the_pieces tied_weights_divided_twice
### END HIDDEN TESTS

# %% [markdown]
# ## 2 · Sixteen bits in, thirty-two bits kept (25 points)
#
# In question 1, `.grad` did the adding. With fp16 weights `.grad` is fp16, too, and then it is the wrong place: a long
# sum in 16 bits loses its tail (lesson 01), and the count $n_i$ and a loss scale $s_i$ have to be worked in, with a
# result that may lie far below what fp16 can hold. So keep the sum in a *buffer* of fp32, and add
#
# $$G \leftarrow G + w_i \, g_i$$
#
# where $g_i$ is the fp16 gradient that a backward pass has left and $w_i$ is any number. In fp32 the error of $m$ such
# additions is at most $m \cdot 2^{-23} \sum_i |w_i g_i|$ (Higham 2002, §4.2: half an eps for each addition, and we
# leave the other half for the products). In 16 bits it would be $m \cdot 2^{-10}$.
#
# And watch for overflow. Once there is an inf in the buffer, no later piece can take it out. So look before you add.

# %%
guess_lost = ask("256 gradients of one sign, added up in fp16: how many per cent are lost?")

# %% [markdown]
# **The contract.** A class `WideSum(parameters)`. It knows nothing of models and tokens.
#
# - `parameters`: a list of tensors, each with a `.grad` (or None) whenever `add` is called.
# - `sums`: an attribute, a list as long as `parameters`. Each entry is None as long as no gradient has come, and then a
#   tensor of the parameter's shape: fp32 for fp16, bf16 and fp32 parameters, fp64 for fp64.
# - `add(weight)`, a Python number. If every gradient is finite: adds weight × gradient to each sum and returns True.
#   If one number in any gradient is inf or nan: changes **no** sum at all and returns False. Either way each `.grad` is
#   None afterwards. A parameter without a gradient keeps its sum.
# - **Rounding:** only that of the sum's dtype. The bound above holds for each element.
# - **Bytes:** between calls nothing but the sums is alive (and at most 1 KiB). During a call at most 12 bytes more for
#   each number of the largest parameter (three fp32 tensors of its shape), beyond the sums that the first call makes.
#
# **What is graded:** error and dtypes (7), overflow (5), bytes (6), further sums (7).


# %% answer="q2"
class WideSum:
    """Sums of weighted gradients, in fp32 for 16-bit parameters."""

    def __init__(self, parameters):
        """No sum yet."""
        ### BEGIN SOLUTION
        self.parameters = list(parameters)
        self.sums = [None] * len(self.parameters)
        ### END SOLUTION

    def add(self, weight):
        """Move weight × .grad into the sums; False, and no change, if a gradient is not finite."""
        ### BEGIN SOLUTION
        arrived = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        finite = all(bool(gradient.isfinite().all()) for gradient in arrived)
        del arrived
        for place, parameter in enumerate(self.parameters):
            gradient, parameter.grad = parameter.grad, None
            if gradient is None or not finite:
                continue
            if self.sums[place] is None:
                wide = torch.promote_types(gradient.dtype, torch.float32)
                self.sums[place] = torch.zeros_like(gradient, dtype=wide)
            self.sums[place].add_(gradient, alpha=weight)  # mixed dtypes: the product and the sum are in the wider one
        return finite
        ### END SOLUTION


# %% [markdown]
# Gradients with weights $n_i / s_i$, and the error of three ways to add them up.


# %%
def stream(shape, dtype, count, seed, signed=True):
    """Gradients with weights n_i / s_i, as (gradient, weight)."""
    generator = torch.Generator().manual_seed(seed)
    for number in range(count):
        gradient = torch.randn(shape, generator=generator)
        yield (gradient if signed else gradient.abs()).to(dtype), (1 + number % 61) / 2.0 ** (8 + number % 8)


def errors_of(add_all, dtype, count, **how):
    """Largest error over the sum of magnitudes, element by element."""
    exact = sum(g.double() * w for g, w in stream((500,), dtype, count, seed=0, **how))
    size = sum(g.double().abs() * w for g, w in stream((500,), dtype, count, seed=0, **how))
    return ((add_all(stream((500,), dtype, count, seed=0, **how)).double() - exact).abs() / size).max().item()


# %%
def in_16_bits(gradients):
    total = None
    for gradient, weight in gradients:
        total = gradient * weight if total is None else total + gradient * weight
    return total


def in_32_bits(gradients):
    parameter = torch.zeros(500, dtype=torch.float16, requires_grad=True)
    wide = WideSum([parameter])
    for parameter.grad, weight in gradients:
        wide.add(weight)
    return wide.sums[0]


# %%
counts = [2**k for k in range(1, 9)]
ways = {"fp16 buffer": in_16_bits, "your buffer": in_32_bits}
curves = {name: [errors_of(way, torch.float16, n) for n in counts] for name, way in ways.items()}
figures.error_by_length(
    counts,
    curves,
    [n * 2.0**-23 for n in counts],
    caption="The worst of 500 elements. The dotted bound is that of fp32: the 16-bit buffer is above it from the first "
    "pieces on, yours must stay below. (An error of 0 has no place on this axis.)",
).show()
third = torch.tensor(0.3).half()
lost = 1 - in_16_bits((third, 1.0) for _ in range(256)).item() / (256 * third.item())
print(f"256 times 0.3, added up in fp16: {abs(lost):.1%} off. You said {guess_lost.said}.")


# %% check="q2-values" points=7
def within_bound(dtype, count, shape, seed, signed=True):
    parameter = torch.zeros(shape, dtype=dtype, requires_grad=True)
    wide, exact, size, said = check.call(WideSum, [parameter]), 0.0, 0.0, []
    for gradient, weight in stream(shape, dtype, count, seed, signed):
        exact, size = exact + gradient.double() * weight, size + gradient.double().abs() * weight
        parameter.grad = gradient
        said.append(check.call(wide.add, weight))
    check.equal(said, [True] * count, f"what add returns for {count} finite gradients")
    check.that(parameter.grad is None, ".grad is None after add", look="whose the gradient is now")
    wanted = torch.promote_types(dtype, torch.float32)
    name = f"sum of {count} gradients in {str(dtype)[6:]}"
    check.equal((wide.sums[0].dtype, tuple(wide.sums[0].shape)), (wanted, tuple(shape)), f"{name}: dtype and shape")
    error = ((wide.sums[0].double() - exact).abs() / size).max().item()
    look = "what is multiplied by what, in which dtype, and in which dtype it is added"
    check.at_most(error, count * torch.finfo(wanted).eps, f"{name}: error over the sum of magnitudes", look=look)


for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
    within_bound(dtype, 256, (30, 10), seed=1)
within_bound(torch.float16, 256, (300,), seed=2, signed=False)

# %% check="q2-overflow" points=5
a, b, c = (torch.ones(size, dtype=torch.float16, requires_grad=True) for size in (3, 2, 4))
wide = check.call(WideSum, [a, b, c])
check.equal(list(wide.sums), [None, None, None], "the sums before the first gradient")
a.grad, b.grad = torch.full((3,), 2.0).half(), torch.full((2,), 3.0).half()
check.equal(check.call(wide.add, 0.5), True, "what add returns for finite gradients")
check.equal(wide.sums[0].tolist(), [1.0] * 3, "the first sum, after 0.5 times 2", look="the weight")
for bad in (math.inf, -math.inf, math.nan):
    a.grad, b.grad, c.grad = torch.ones(3).half(), torch.tensor([1.0, bad]).half(), torch.ones(4).half()
    check.equal(check.call(wide.add, 1.0), False, f"what add returns for {bad}", look="the last parameters, too")
    check.equal([p.grad is None for p in (a, b, c)], [True] * 3, ".grad is None after an overflow, too")
    check.equal(wide.sums[0].tolist(), [1.0] * 3, "the sum of the first parameter", look="look first, then add")
    check.equal(wide.sums[1].tolist(), [1.5] * 2, "the sum of the second parameter")
check.that(wide.sums[2] is None, "no sum for a parameter that never had a finite gradient")
a.grad = torch.full((3,), 60000.0).half()
look = "which number became inf, and in which dtype: the gradient, or something made of it?"
check.equal(check.call(wide.add, 4.0), True, "what add returns for three gradients of 60,000, times 4", look=look)
check.equal(wide.sums[0].tolist(), [240001.0] * 3, "the sum of the first parameter", look=look)


# %%
def bytes_of_add(wide, parameters):
    """(held afterwards beyond weights and sums of before, held at the peak beyond these and the gradients)."""
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, 0.5)
    with outside_torch() as outside, measure.memory(torch.nn.ParameterList(parameters), lines=True) as record:
        sum(tensor.sum() for tensor in wide.sums if tensor is not None)  # what is read, is counted from then on
        before = record.now
        check.call(wide.add, 2.0**-10)
        hidden = outside()
    after = check.HeldBytes(record.now.total - before.total + before.gradients, record.by_line("now"))
    return after + hidden, check.HeldBytes(record.peak.total - before.total, record.by_line())


# %% check="q2-bytes" points=6
def held_by_sums(dtype, shapes, count):
    parameters = [torch.nn.Parameter(torch.zeros(shape, dtype=dtype)) for shape in shapes]
    wide = check.call(WideSum, parameters)
    n, largest = (how(parameter.numel() for parameter in parameters) for how in (sum, max))
    for number in range(count):
        after, peak = bytes_of_add(wide, parameters)
        new, at = Bytes(0 if number else 4 * n), f"after gradients number {number}"
        check.at_most(after, new + SLACK, f"bytes {at}, beyond weights and sums", look="what else lives on")
        look = "what is alive at one moment (a loop's variable keeps its last tensor)"
        check.at_most(peak, new + Bytes(12 * largest) + SLACK, f"bytes {at}, at the peak of add", look=look)
    check.equal([tensor.dtype for tensor in wide.sums], [torch.float32] * len(shapes), "the sums' dtypes")
    check.equal(wide.sums[-1].flatten()[0].item(), count * 2.0**-11, "the sum")
    under = {s.untyped_storage().data_ptr(): s.untyped_storage().nbytes() for s in wide.sums}
    check.at_most(Bytes(sum(under.values())), Bytes(4 * n), "bytes under the sums", look="views of something larger")


held_by_sums(torch.float16, [(64, 64)] * 12, 4)

# %% check="q2-hidden" points=7
# Other counts and dtypes, parameters without gradients, weights that change, NaN and large numbers.
### BEGIN HIDDEN TESTS
#: other counts and dtypes
for _seed, _count in enumerate((1, 40, 300)):
    for _dtype in (torch.float16, torch.bfloat16):
        within_bound(_dtype, _count, (7, 5, 3), seed=_seed + 20, signed=bool(_seed % 2))
held_by_sums(torch.bfloat16, [(50, 40), (2000,)] * 5, 3)
#: parameters without gradients, weights that change, NaN
_p, _q = (torch.zeros(6, dtype=torch.bfloat16, requires_grad=True) for _ in range(2))
_wide = check.call(WideSum, [_p, _q])
for _step in range(6):
    _p.grad = torch.ones(6).bfloat16() * (math.nan if _step == 2 else 1)
    _q.grad = torch.ones(6).bfloat16() if _step % 2 else None
    check.equal(check.call(_wide.add, 0.5**_step), _step != 2, f"what add returns at step {_step}")
check.equal(_wide.sums[0].tolist(), [1 + 1 / 2 + 1 / 8 + 1 / 16 + 1 / 32] * 6, "weights that change")
check.equal(_wide.sums[1].tolist(), [1 / 2 + 1 / 8 + 1 / 32] * 6, "a parameter with few gradients")
#: large numbers
_p.grad = torch.full((6,), 2.0**127).bfloat16()  # each of them finite, their sum and their squares are not
check.equal(check.call(_wide.add, 2.0**-127), True, "what add returns for large finite gradients")
#: other counts and dtypes
_p = torch.zeros(2, dtype=torch.float64, requires_grad=True)
_wide = check.call(WideSum, [_p])
_p.grad = torch.tensor([3.0, -6.0], dtype=torch.float64)
check.call(_wide.add, 1 / 3)
check.close(_wide.sums[0], torch.tensor([1.0, -2.0]).double(), "a third of fp64 gradients", relative=1e-15)
_p, _given = torch.zeros(3, requires_grad=True), torch.ones(3)
_wide = check.call(WideSum, [_p])
for _weight in (0.5, 2.0):
    _p.grad = _given
    check.call(_wide.add, _weight)
check.equal(_given.tolist(), [1.0] * 3, "an fp32 gradient that the caller keeps", look="what changes in place")
check.equal(_wide.sums[0].tolist(), [2.5] * 3, "0.5 and 2 times this gradient", look="what changes in place")


#: other counts and dtypes
_p = across(torch.tensor([[2000.0, -2000.0], [0.0, 1.0]]).half().requires_grad_())
_p.grad = across(torch.tensor([[2.0, -4.0], [1.0, 3.0]]).half())
with Unfilled():
    _wide = check.call(WideSum, [_p])
    check.equal(check.call(_wide.add, 0.5), True, "what add returns for a gradient that lies across in memory")
check.equal(_wide.sums[0], torch.tensor([[1.0, -2.0], [0.5, 1.5]]), "half of a gradient that lies across in memory")


#: parameters without gradients, weights that change, NaN
class _PlainSum:
    def __init__(self, parameters):
        self.parameters, self.sums = parameters, [None] * len(parameters)

    def add(self, weight):
        arrived = [p.grad for p in self.parameters]
        finite = all(bool(g.isfinite().all()) for g in arrived if g is not None)
        for place, gradient in enumerate(arrived):
            self.parameters[place].grad = None
            if finite and gradient is not None:
                before = 0.0 if self.sums[place] is None else self.sums[place]
                self.sums[place] = before + weight * gradient.float()
        return finite


def _draw(chance, names):
    if chance.random() < 0.6:
        number = chance.choice(["1", "2", "-3", "60000", "math.inf", "math.nan"])
        return f"p[{chance.randrange(3)}].grad = torch.tensor([1, {number}]).half()"
    return f"said.append(wide.add({chance.choice((0.5, 2, -1, 0, 4))}))"


_begin = "p = [torch.zeros(2).half().requires_grad_() for _ in range(3)]; wide = WideSum(p); said = []"
_known, _look = {"torch": torch, "math": math}, "what add says and leaves, for any weight and any of the gradients"
_looks = ["said", "list(wide.sums)", "[each.grad for each in p]"]
_names = [_known | {"WideSum": kind} for kind in (WideSum, _PlainSum)]
random_programs("a sum", _begin, *_names, _draw, lambda _: _looks, look=_look)
# Sentences of the contract, and the known-wrong answers that break them.
#= A class `WideSum(parameters)` | - a name
#= It knows nothing | - a remark
#= `parameters`: a list | - what is given
#= `sums`: an attribute | - the checks stop at once at anything else
#= Each entry is None | fp16_buffer
#= `add(weight)`, a Python | weight_in_fp32
#= If every gradient is finite | product_in_16_bits
#= If one number in any | adds_before_it_looks looks_at_the_sum_only
#= Either way each | nothing_for_a_weight_of_0
#= A parameter without | no_gradient_no_sum
#= **Rounding:** only | product_in_16_bits weight_in_fp32
#= The bound above | product_in_16_bits
#= **Bytes:** between calls | keeps_the_gradients
#= During a call | widens_all_at_once
#= Sums of weighted | fp16_buffer
#= No sum yet | zeros_from_the_start
#= Move weight × .grad | takes_the_gradient_over
#= False, and no change | adds_before_it_looks
### END HIDDEN TESTS

# %% [markdown]
# ## 3 · All together (35 points)
#
# Now a whole step: ragged pieces, weights in fp16, a loss scale, clipping, an optimizer. As in lesson 04 the optimizer
# works on fp32 copies of the weights, the *masters*, and the model holds them rounded. The caller owns the loss scale,
# and **may change it after any piece**: when a piece overflows, there is no reason to send the next one through the
# same scale. So two pieces of one step may be scaled by different numbers.
#
# **Before you write:** a piece has 64 tokens, and its mean loss times $2^{15}$ gives gradients that just fit in fp16.
# Multiplying by $n_i$ is the third factor. What happens if it is multiplied to the *loss*, as in question 1? Where else
# can it go? And at which moment is the gradient's length that of the true gradient?
#
# **The contract.** A class `Accumulator(model, optimizer, max_norm=None)`. You may use your `WideSum`.
#
# - `optimizer`: a `torch.optim.Optimizer`. Its parameters, one group after the other, are the masters of
#   `model.parameters()`, in the same order: fp32 copies, or the very same tensors (a model in fp32 or fp64 needs no
#   copies). The master of a frozen parameter stays as it is, whatever the optimizer does to those with a gradient.
# - `max_norm`: a number above 0, or None for no clipping.
# - `add(inputs, targets, scale=1.0)`: one piece. The backward pass starts from `scale` times the piece's *mean* loss,
#   and nothing else multiplies it. Returns whether all gradients of this piece were finite. A piece without tokens
#   changes nothing and returns True. `add` goes on telling the truth after an overflow.
# - `step()`: ends the batch. If every piece was finite: brings the gradient of the mean over all tokens to the masters,
#   shortens it to `max_norm` if it is longer (multiplies by $\min(1, \text{max\_norm} / (\text{length} + 10^{-6}))$),
#   steps the optimizer once, rounds the masters into the model, and returns `(loss, length)`: the mean loss of all
#   tokens, and the true length *before* clipping, as Python floats. If one piece overflowed: changes nothing, in the
#   weights or in the optimizer (which takes no step), and returns None. No token at all raises `ValueError`. Then the
#   next batch may begin.
# - **Bytes:** between two calls of `add`: model, masters and one sum for each master, in the master's dtype (and 1 KiB).
#   The peak of `add` is that of a plain backward pass, beside the sums, with 12 bytes more for each number of the
#   largest parameter. `step` takes only those 12 bytes, beside what the optimizer itself takes. Afterwards no `.grad`
#   is left.
#
# **What is graded:** equal to one big batch with SGD and Adam, skipped steps included (11); fp16 and a scale that
# changes (9); bytes (7); other sizes and text (8).


# %% answer="q3"
class Accumulator:
    """One optimizer step from a stream of pieces, equal to the step on all of them at once."""

    def __init__(self, model, optimizer, max_norm=None):
        """Begin with an empty batch."""
        ### BEGIN SOLUTION
        self.model, self.optimizer, self.max_norm = model, optimizer, max_norm
        self.masters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        self._begin()
        ### END SOLUTION

    def add(self, inputs, targets, scale=1.0):
        """Forward and backward on one piece; returns whether its gradients were finite."""
        ### BEGIN SOLUTION
        count = count_tokens(targets)
        if not count:
            return True
        loss = self.model(inputs, targets)
        (loss * scale).backward()
        finite = self.gradient.add(count / scale)  # the count is a factor in fp32: in fp16 it would cost range
        self.tokens, self.loss = self.tokens + count, self.loss + count * loss.item()
        self.overflowed = self.overflowed or not finite
        return finite

    def _begin(self):
        self.gradient = WideSum(list(self.model.parameters()))
        self.tokens, self.loss, self.overflowed = 0, 0.0, False

    def _hand_over(self):
        """The sums become the masters' gradients, unscaled and divided; returns their length."""
        for master, total in zip(self.masters, self.gradient.sums, strict=True):
            master.grad = None if total is None else total.div_(self.tokens)
        gradients = [master.grad for master in self.masters if master.grad is not None]
        length = torch.stack([torch.linalg.vector_norm(gradient) for gradient in gradients]).norm().item()
        if self.max_norm is not None:
            for gradient in gradients:
                gradient.mul_(min(1.0, self.max_norm / (length + 1e-6)))
        return length
        ### END SOLUTION

    def step(self):
        """End the batch: (loss, length), or None if a piece overflowed."""
        ### BEGIN SOLUTION
        if not self.tokens:
            raise ValueError("no piece had a token to learn from; a step needs at least one")
        result = None
        if not self.overflowed:
            result = self.loss / self.tokens, self._hand_over()
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            with torch.no_grad():
                for parameter, master in zip(self.model.parameters(), self.masters, strict=True):
                    if parameter is not master:
                        parameter.copy_(master)
        self._begin()
        return result
        ### END SOLUTION


# %% [markdown]
# Your accumulator trains an fp16 model on ragged batches. The loss scale begins far too high, goes down by half after
# each overflow, and doubles after every fourth step, if that one was good. Beside it, the judge: one big batch, in
# fp64.


# %%
def in_fp16(config, seed):
    """A model in fp16, and the fp32 masters of its weights."""
    model = GPT(config, seed=seed, dtype=torch.float16)
    return model, [parameter.detach().float().requires_grad_() for parameter in model.parameters()]


def one_batch_step(model, optimizer, batch, max_norm):
    optimizer.zero_grad()
    loss = model(*batch)
    loss.backward()
    length = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm or math.inf)
    optimizer.step()
    return loss.item(), length.item()


# %%
model, masters = in_fp16(SMALL, seed=0)
big = GPT(SMALL, seed=0, dtype=torch.float64)
for_big = torch.optim.SGD(big.parameters(), lr=0.3)
accumulator = Accumulator(model, torch.optim.SGD(masters, lr=0.3), max_norm=1.0)
scale, good, losses, skipped = 2.0**20, 0, {"one batch, fp64": [], "stream, fp16": []}, 0
for step in range(24):
    batch = ragged(LENGTHS, seed=step)
    for piece in micro_batches(batch, 2):
        scale = scale if accumulator.add(*piece, scale=scale) else scale / 2
    result = accumulator.step()
    if result is None:
        skipped += 1
        continue
    losses["stream, fp16"].append(result[0])
    losses["one batch, fp64"].append(one_batch_step(big, for_big, batch, max_norm=1.0)[0])
    scale = scale * 2 if step % 4 == 3 else scale

# %%
loss_curves(
    losses,
    caption="Two lines, one of them hidden: fp16 in pieces, clipped and scaled, learns what one batch in fp64 does.",
    alt="Loss of the good steps for one batch in fp64 and for the stream in fp16; the lines lie on each other.",
).show()
apart = max(abs(a - b) for a, b in zip(*losses.values(), strict=True))
print(f"{skipped} steps skipped; the losses of all others are within 0.02 of each other: {apart < 0.02}")


# %%
def weights(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.5, momentum=0.9, weight_decay=0.1)


def adam(parameters):
    return torch.optim.Adam(parameters, lr=1e-3)


# %%
def same_numbers(came, told, name, relative):
    pair = type(came) is tuple and len(came) == 2
    look = "what step returns; and if that is None: is the batch before it over in every respect?"
    check.that(pair, f"{name}: what step returns", expected="a tuple of two numbers", came=str(came)[:80], look=look)
    for number, expected, what in zip(came, told, ("the mean loss", "the true length"), strict=True):
        check.close(
            number, expected, f"{name}: {what}", relative=relative, look="weights of pieces; what is clipped when"
        )


def send(accumulator, pieces, scales):
    return [check.call(accumulator.add, *piece, scale=scale) for piece, scale in zip(pieces, scales, strict=True)]


# %% [markdown]
# In fp64, weights and all, nothing but the order of sums may differ. Adam divides by $10^{-8}$ or more, so it can make a
# rounding of $10^{-15}$ into $10^{-7}$ of its learning rate, and that into $10^{-10}$ of a weight.


# %%
def follows(config, make_optimizer, seed, max_norm, lengths, size, frozen=0):
    big, small = (freeze(GPT(config, seed=seed, dtype=torch.float64), frozen) for _ in range(2))
    for_big = make_optimizer(big.parameters())
    optimizer, steps = make_optimizer(small.parameters()), []
    optimizer.register_step_post_hook(lambda *_: steps.append(step))
    accumulator = check.call(Accumulator, small, optimizer, max_norm)
    for step in range(4):
        batch = ragged(lengths, seed=100 * seed + step)
        pieces = [*micro_batches(batch, size), nothing]
        scales = [math.inf if (step, n) == (2, 0) else 2.0 ** (4 + 3 * n) for n in range(len(pieces))]
        said, finite = send(accumulator, pieces, scales), [scale < math.inf for scale in scales]
        check.equal(said, finite, f"step {step}: what add returns", look="an overflow is told once, by its piece")
        came, look = check.call(accumulator.step), "what is clipped, by what, and what the optimizer was given"
        if step == 2:
            check.equal(came, None, "an overflow in one piece: what step returns", look="what add has noticed")
        else:
            told = one_batch_step(big, for_big, batch, max_norm)
            same_numbers(came, told, f"step {step}", 1e-12)
        check.close(weights(small), weights(big), f"the weights after step {step}", relative=1e-9, look=look)
    check.equal(steps, [0, 1, 3], "in which batches optimizer.step was called", look="once, or not at all")


# %% check="q3-values" points=11
follows(SMALL, sgd, 1, 1.0, LENGTHS, 2)
follows(SMALL, adam, 2, 0.5, LENGTHS, 3)
follows(SMALL, sgd, 3, None, LENGTHS, 5, frozen=3)


# %% [markdown]
# In fp16 the judge takes the fp16 gradients of the pieces, one by one, and does all the rest in fp64.


# %%
def judged_in_fp64(model, pieces, scales):
    """Gradient of the whole batch, sum of magnitudes, and which pieces were finite."""
    total, size, finite = 0.0, 0.0, []
    n = sum(count_tokens(targets) for _, targets in pieces)
    for (inputs, targets), scale in zip(pieces, scales, strict=True):
        arrived = torch.autograd.grad(model(inputs, targets) * scale, list(model.parameters()))
        arrived = torch.cat([gradient.double().flatten() for gradient in arrived])
        finite.append(bool(arrived.isfinite().all()))
        share = arrived * (count_tokens(targets) / scale / n)
        total, size = total + share, size + share.abs()
    return total, size, finite


def expect_masters(after, before, exact, size, pieces, max_norm):
    """Each addition and product, and the new weight, may be rounded in fp32; the length to five digits."""
    factor = 0.5 * min(1.0, (max_norm or math.inf) / (exact.norm().item() + 1e-6))
    limit = torch.finfo(torch.float32).eps * (pieces + 4) * (factor * size + before.abs()) + 1e-5 * factor * exact.abs()
    error = ((after - (before - factor * exact)).abs() / limit.clamp(min=1e-30)).max().item()
    check.at_most(error, 1.0, "fp16: error of the masters over its bound", look="each piece's own scale and count")


# %%
def follows_in_fp16(config, seed, lengths, size, max_norm, plans):
    model, masters = in_fp16(config, seed)
    accumulator = check.call(Accumulator, model, torch.optim.SGD(masters, lr=0.5), max_norm)
    for step, scales in enumerate(plans):
        pieces = micro_batches(ragged(lengths, seed=seed + step), size)
        before = torch.cat([master.detach().flatten() for master in masters])
        exact, magnitudes, finite = judged_in_fp64(model, pieces, scales)
        said, look = send(accumulator, pieces, scales), "each piece's own scale and count"
        check.equal(
            said, finite, f"step {step}, fp16: finite pieces", look="what multiplies the loss; each piece on its own"
        )
        came, after = check.call(accumulator.step), torch.cat([master.detach().flatten() for master in masters])
        check.equal(came is None, not all(finite), f"step {step}, fp16: whether it is skipped")
        if came is None:
            check.equal(after, before, f"step {step}, fp16: the masters of a skipped step")
        else:
            check.close(came[1], exact.norm().item(), f"step {step}, fp16: the true length", relative=1e-5, look=look)
            expect_masters(after.double(), before.double(), exact, magnitudes, len(pieces), max_norm)
        check.equal(weights(model), after.half(), f"step {step}, fp16: the model is the masters, rounded")


# %% check="q3-scaled" points=9
many = [[2.0**15, 2.0**9, 2.0**13, 2.0**7, 2.0**15, 2.0**4], [2.0**24] * 2 + [2.0**12] * 4, [2.0**12] * 6]
follows_in_fp16(SMALL, 4, LENGTHS, 2, 1.0, many)


# %%
def bytes_of_adds(accumulator, model, masters, pieces):
    """(held after each add, held at the peak), beyond model, masters and pieces."""
    after = []
    known = [*masters, *(part for piece in pieces for part in piece)]
    with outside_torch() as outside, measure.memory(model, inputs=known, lines=True) as record:
        for inputs, targets in pieces:
            check.call(accumulator.add, inputs.clone(), targets.clone(), scale=2.0**10)
            after.append(check.held(record, "now") + outside())
    return after, check.held(record)


def bytes_of_step(accumulator, model, masters):
    """Held at the peak, beyond model and masters; the sums count from when they are first read."""
    with measure.memory(model, inputs=masters, lines=True) as record:
        check.equal(check.call(accumulator.step) is None, False, "whether the step is skipped")
    return check.held(record)


# %% check="q3-bytes" points=7
def held_by_step(config, lengths, size):
    (model, masters), (plain, _) = in_fp16(config, 0), in_fp16(config, 0)
    pieces = sorted(micro_batches(ragged(lengths), size), key=lambda piece: -piece[0].numel())
    n, most = (how(parameter.numel() for parameter in masters) for how in (sum, max))
    sums, room, limit = Bytes(4 * n), Bytes(12 * most), plain_peak(plain, pieces[0], 1, 2.0**10)
    accumulator = check.call(Accumulator, model, torch.optim.SGD(masters, lr=0.1), 1.0)
    after, peak = bytes_of_adds(accumulator, model, masters, pieces)
    for number, held in enumerate(after):
        check.at_most(held, sums + SLACK, f"bytes after piece {number}", look="all that add leaves behind")
        check.at_least(held, sums, f"bytes after piece {number}", look="one sum for each master")
    check.at_most(peak, limit + sums + room + 8 * SLACK, "bytes at the peak of add", look="what is alive, until when")
    peak = bytes_of_step(accumulator, model, masters)
    check.at_most(peak, sums + room + SLACK, "bytes at the peak of step", look="a second set of gradients?")
    left = sum(parameter.grad is not None for parameter in [*model.parameters(), *masters])
    check.equal(left, 0, "gradients left after step", look=".grad of the model, and of the masters")


held_by_step(SMALL, LENGTHS, 2)

# %% check="q3-hidden" points=8
# Another model, other cuts and optimizers, a scale that moves, and what a step holds.
### BEGIN HIDDEN TESTS
_config = GPTConfig(layers=1, width=32, heads=2, vocab_size=256, context=64, tied=False)


def in_two_groups(parameters):
    """Weight decay for the first three parameters only, as one does for matrices."""
    parameters = list(parameters)
    return torch.optim.SGD([{"params": parameters[:3], "weight_decay": 0.1}, {"params": parameters[3:]}], lr=0.5)


#: another model, other cuts and optimizers
follows(_config, adam, 7, 0.3, [64, 1, 2, 50, 33], 1)
follows(_config, sgd, 8, 100.0, [9, 64, 30], 2)
#: a scale that moves
_up = [[2.0 ** (3 + 2 * k) for k in range(5)], [2.0**30] + [2.0**10] * 4, [2.0**30] * 5]
_up.append([2.0 ** (13 - 2 * k) for k in range(5)])
follows_in_fp16(_config, 9, [64, 1, 2, 50, 33], 1, 0.3, _up)
follows_in_fp16(_config, 10, [64, 1, 2, 50, 33], 1, None, _up)
#: what a step holds
held_by_step(_config, [64, 64, 3, 20] * 4, 4)
#: other cuts and optimizers
follows(_config, in_two_groups, 11, 0.3, [64, 1, 2, 50, 33], 2)
_model = GPT(_config, seed=0)
check.raises(ValueError, check.call(Accumulator, _model, sgd(_model.parameters())).step)
_masters = [parameter.detach().clone().requires_grad_() for parameter in _model.parameters()]  # fp32, as the model is
_before, _accumulator = weights(_model), check.call(Accumulator, _model, torch.optim.SGD(_masters, lr=0.5))
check.call(_accumulator.add, *ragged([9, 4]))
check.call(_accumulator.step)
_after = torch.cat([master.detach().flatten() for master in _masters])
check.equal(weights(_model), _after, "a model in fp32, whose masters are copies", look="what is rounded into the model")
check.that(not torch.equal(_after, _before), "… and its masters have moved")


class _Pieces:
    """Remembers what each piece gave, and adds it up at the end. A snapshot is a list of them."""

    def __init__(self, model, optimizer):
        self.model, self.optimizer, self.pieces = model, optimizer, []

    def add(self, inputs, targets, scale):
        if count := count_tokens(targets):
            loss = self.model(inputs, targets) * count
            self.pieces.append((count, loss.item(), *torch.autograd.grad(loss, self.model.row), scale < math.inf))
        return scale < math.inf or not count

    def step(self):
        (counts, losses, gradients, finite), self.pieces = zip(*self.pieces), []
        if not all(finite):
            return None
        self.model.row.grad = sum(gradients) / sum(counts)
        self.optimizer.step()
        return sum(losses) / sum(counts), self.model.row.grad.norm().item()

    def state_dict(self):
        return list(self.pieces)

    def load_state_dict(self, state):
        self.pieces = list(state)


def _begin_with(kind):
    model = _Tiny()
    return model, kind(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5))


def _draw(chance, names):
    if names["stream"].pieces and chance.random() < 0.3:
        return "said.append(stream.step())"
    tokens = [chance.choice((IGNORE, 0, 1, 2)) for _ in range(3)]
    inputs, scale = [chance.randrange(4) for _ in tokens], chance.choice(("1.0", "8.0", "0.25", "math.inf"))
    return f"said.append(stream.add(torch.tensor([{inputs}]), torch.tensor([{tokens}]), {scale}))"


def _step_of_large(kind, again=False):
    model = _large_across()
    with Unfilled():
        optimizer = torch.optim.SGD(model.parameters(), lr=0.125)
        stream = check.call(kind, model, optimizer)
        for inputs in ([0, 1, 2], [3, 1, 1]):
            check.call(stream.add, torch.tensor([inputs]), torch.tensor([[1, 2, IGNORE]]), 0.5)
            if again:
                state, stream = check.call(stream.state_dict), check.call(kind, model, optimizer)
                check.call(stream.load_state_dict, state)
        result = check.call(stream.step)
    return torch.tensor([*result, *model.row.tolist()], dtype=torch.float64)


#: another model
_what = "large weights that lie across in memory: loss, length and weights"
check.close(_step_of_large(Accumulator), _step_of_large(_Pieces), _what, relative=1e-12)
#: other cuts and optimizers
_known = {"torch": torch, "math": math, "rounded": _rounded}
_names = [_known | {"start": lambda kind=kind: _begin_with(kind)} for kind in (Accumulator, _Pieces)]
_begin, _looks = "model, stream = start(); said = []", ["rounded(said)", "rounded([tuple(model.row.tolist())])"]
_look = "what a batch leaves to the next one, an overflow or a piece without tokens among it"
random_programs("a stream", _begin, *_names, _draw, lambda _: _looks, look=_look)
# Sentences of the contract, and the known-wrong answers that break them.
#= A class `Accumulator | - a name
#= You may use | - a permission
#= `optimizer`: a | - what is given
#= Its parameters, one group | only_the_first_group same_dtype_same_tensor
#= The master of a frozen | frozen_masters_decay
#= `max_norm`: a number | clips_the_sum
#= `add(inputs, targets, scale=1.0)`: | scale_change_forgotten
#= The backward pass starts | count_multiplied_into_the_loss
#= Returns whether | add_says_yes
#= A piece without tokens | zero_is_padding_in_the_step
#= `add` goes on telling | overflow_is_told_again
#= `step()`: ends | an_overflow_that_stays
#= If every piece was finite | clip_before_unscale mean_of_means_in_the_step masters_not_rounded_back
#= If one piece overflowed | a_zero_gradient_for_a_skip steps_without_the_bad_piece
#= No token at all | an_empty_batch_is_skipped
#= Then the next batch | an_overflow_that_stays
#= **Bytes:** between two | holds_gradients_in_numpy
#= The peak of `add` | widens_the_model_for_a_piece
#= `step` takes only | a_second_set_in_step
#= Afterwards no `.grad` | gradients_stay
#= One optimizer step | a_step_for_each_piece
#= Begin with an empty | - a constructor
#= Forward and backward on one | only_the_last_piece_counts
#= End the batch | a_zero_gradient_for_a_skip
### END HIDDEN TESTS

# %% [markdown]
# ## 4 · Interrupted (15 points)
#
# A stream can take an hour to fill one batch. Half an hour in, the machine is taken away. The weights are on disk, and
# so is the optimizer. What else must be, so that the second half goes on as if nothing had happened, **to the bit**?
# It is less than one thinks, and more than the sums of gradients and the count. Go through what your class remembers.
#
# **The contract.** `Resumable(model, optimizer, max_norm=None)`, an `Accumulator` with two methods more.
#
# - `state_dict()` returns a dict of plain numbers, strings, lists, dicts and tensors, such that
#   `torch.load(..., weights_only=True)` reads it. It is a snapshot: what happens later does not change it. It may be
#   taken at any moment between two calls. Saved, it takes the bytes of one sum for each master, and at most 64 KiB more.
# - `load_state_dict(state)`: from here on this object does what the saved one would have done, to the bit. It leaves
#   `state` as it is, also later; one state may be loaded many times, also into an object that has begun another batch.
#
# Weights and optimizer are saved by the caller, as always.
#
# **What is graded:** a batch interrupted in the middle (8), snapshots, skips, bytes, at other moments (7).


# %% answer="q4"
class Resumable(Accumulator):
    """An accumulator that can be saved in the middle of a batch."""

    def state_dict(self):
        """A snapshot of the unfinished batch."""
        ### BEGIN SOLUTION
        sums = [None if total is None else total.clone() for total in self.gradient.sums]
        return {"sums": sums, "tokens": self.tokens, "loss": self.loss, "overflowed": self.overflowed}
        ### END SOLUTION

    def load_state_dict(self, state):
        """Go on where a saved accumulator was."""
        ### BEGIN SOLUTION
        self.gradient.sums = [None if total is None else total.clone() for total in state["sums"]]
        self.tokens, self.loss, self.overflowed = state["tokens"], state["loss"], state["overflowed"]
        ### END SOLUTION


# %%
def elsewhere(config, accumulator, optimizer, make_optimizer):
    """Through a file: another model, another optimizer, another accumulator."""
    file = io.BytesIO()
    state, look = check.call(accumulator.state_dict), "what the state is made of"
    check.that(isinstance(state, dict), "state_dict returns a dict", came=type(state).__name__)
    masters = optimizer.param_groups[0]["params"]
    saved = {"state": state, "masters": masters, "optimizer": optimizer.state_dict()}
    check.call(torch.save, saved, file, look=look)
    file.seek(0)
    loaded = check.call(torch.load, file, weights_only=True, look=look)
    (model, _), masters = in_fp16(config, seed=999), loaded["masters"]
    with torch.no_grad():
        for parameter, master in zip(model.parameters(), masters, strict=True):
            parameter.copy_(master)
    optimizer = make_optimizer(masters)
    optimizer.load_state_dict(loaded["optimizer"])
    resumed = check.call(Resumable, model, optimizer, 1.0)
    check.call(resumed.add, *pieces[0])  # it has begun another batch
    check.call(resumed.load_state_dict, loaded["state"])
    return model, resumed, optimizer


# %%
def interrupted(config, seed, lengths, size, stop, overflow=None, make_optimizer=adam):
    """Results and masters of two steps; before piece number `stop` of each, all is thrown away and loaded."""
    model, masters = in_fp16(config, seed)
    optimizer = make_optimizer(masters)
    accumulator, came = check.call(Resumable, model, optimizer, 1.0), []
    for step in range(2):
        for number, piece in enumerate(micro_batches(ragged(lengths, seed=step), size)):
            if number == stop:
                model, accumulator, optimizer = elsewhere(config, accumulator, optimizer, make_optimizer)
            scale = 2.0**26 if (step, number) == (1, overflow) else 2.0 ** (8 + number % 4)
            check.call(accumulator.add, *piece, scale=scale)
        result, masters = check.call(accumulator.step), optimizer.param_groups[0]["params"]
        came += [result, torch.cat([master.detach().flatten() for master in masters])]
    return came


# %%
straight, resumed = (interrupted(SMALL, 0, LENGTHS, 2, stop) for stop in (None, 3))
for name, (one, _, two, _) in {"straight through": straight, "interrupted": resumed}.items():
    print(f"{name:17}  loss {one[0]:.4f} and {two[0]:.4f}, length {one[1]:.3f} and {two[1]:.3f}")

# %% check="q4-values" points=8
for stop in (1, 4):
    straight, resumed = (interrupted(SMALL, 1, LENGTHS, 2, way) for way in (None, stop))
    for step in range(2):
        name = f"interrupted after {stop} pieces, step {step}"
        check.equal(resumed[2 * step], straight[2 * step], f"{name}: loss and length", look="tokens, loss and sums")
        look = "what of the sums is saved, and in which format"
        check.equal(resumed[2 * step + 1], straight[2 * step + 1], f"{name}: the masters, to the bit", look=look)


# %% check="q4-hidden" points=7
# Interruptions elsewhere, what the state holds, and a state that is loaded twice.
### BEGIN HIDDEN TESTS
_config = GPTConfig(layers=1, width=48, heads=3, vocab_size=256, context=64, tied=False)
_lengths = [64, 5, 1, 30, 17]
#: interruptions elsewhere
for _stop, _overflow in ((0, None), (2, 1), (2, 3), (4, None)):
    _straight, _resumed = (interrupted(_config, 2, _lengths, 1, way, _overflow, sgd) for way in (None, _stop))
    _name = f"interrupted after {_stop} pieces, overflow in {_overflow}"
    check.equal(_resumed[2] is None, _overflow is not None, f"{_name}: skipped")
    check.equal(_resumed, _straight, f"{_name}: all results")
_pieces = micro_batches(ragged(_lengths, seed=3), 1)
_model, _masters = in_fp16(_config, 5)
_accumulator = check.call(Resumable, _model, torch.optim.SGD(_masters, lr=0.1))
for _piece in _pieces[:3]:
    check.call(_accumulator.add, *_piece, scale=256.0)
_state = check.call(_accumulator.state_dict)


def live_tensors(thing):
    """The tensors in lists and dicts, and in those inside them."""
    if isinstance(thing, torch.Tensor):
        return [thing]
    inside = thing.values() if isinstance(thing, dict) else thing if isinstance(thing, list | tuple) else ()
    return [tensor for part in inside for tensor in live_tensors(part)]


#: what the state holds
_file, _sums = io.BytesIO(), Bytes(sum(master.nbytes for master in _masters))
check.call(torch.save, _state, _file)
_saved = Bytes(len(_file.getvalue()))
check.at_most(_saved, _sums + 64 * SLACK, "bytes of the saved state", look="what of it is needed, in which form")
check.at_least(_saved, _sums, "bytes of the saved state", look="the sums; another process has nothing else")
_before = copy.deepcopy(_state)
check.call(_accumulator.add, *_pieces[3], scale=256.0)
check.equal(live_tensors(_state), live_tensors(_before), "the state, after one more piece")
#: what the state holds
_model, _masters = in_fp16(_config, 7)
_accumulator = check.call(Resumable, _model, torch.optim.SGD(_masters, lr=0.1))
_after, _ = bytes_of_adds(_accumulator, _model, _masters, micro_batches(ragged([64] * 16), 2))
check.at_most(max(_after), _sums + SLACK, "bytes that a Resumable holds", look="as little as an Accumulator?")
#: a state that is loaded twice
_results = []
for _ in range(2):
    _model, _masters = in_fp16(_config, 5)
    _accumulator = check.call(Resumable, _model, torch.optim.SGD(_masters, lr=0.1))
    if _results:  # it was busy with a batch of its own, and an overflow
        check.call(_accumulator.add, *_pieces[0], scale=2.0**30)
        check.call(_accumulator.add, *_pieces[1], scale=256.0)
    check.call(_accumulator.load_state_dict, _state)
    for _piece in _pieces[3:]:
        check.call(_accumulator.add, *_piece, scale=256.0)
    _results.append([check.call(_accumulator.step), weights(_model)])
check.equal(live_tensors(_state), live_tensors(_before), "the state, after it was loaded and used")
check.equal(_results[1], _results[0], "the same state, loaded into a new object and into a busy one")
#: interruptions elsewhere
_results = []
for _saved in (False, True):  # in fp64, where the model's own weights are the masters
    _model = freeze(GPT(_config, seed=6, dtype=torch.float64), 3)
    _accumulator = check.call(Resumable, _model, sgd(_model.parameters()))
    check.call(_accumulator.add, *_pieces[0])
    if _saved:
        _state = check.call(_accumulator.state_dict)
        _accumulator = check.call(Resumable, _model, sgd(_model.parameters()))
        check.call(_accumulator.load_state_dict, _state)
    check.call(_accumulator.add, *_pieces[1])
    _results.append([check.call(_accumulator.step), weights(_model)])
check.equal(_results[1], _results[0], "a model in fp64, some of it frozen, saved between two pieces")


def _draw(chance, names):
    kind = chance.random()
    if kind < 0.15:
        return "state = stream.state_dict()"
    if kind < 0.35:
        return "stream.load_state_dict(state)"
    if kind < 0.6 and names["stream"].pieces:
        return "said.append(stream.step())"
    tokens = [chance.choice((IGNORE, 1, 2, 3)) for _ in range(3)]
    inputs, scale = [chance.randrange(4) for _ in tokens], chance.choice(("1.0", "8.0", "0.25", "math.inf"))
    return f"said.append(stream.add(torch.tensor([{inputs}]), torch.tensor([{tokens}]), {scale}))"


_what = "large weights, the batch saved after each piece: loss, length and weights"
check.close(_step_of_large(Resumable, again=True), _step_of_large(_Pieces), _what, relative=1e-12)
_known = {"torch": torch, "math": math, "rounded": _rounded}
_names = [_known | {"start": lambda kind=kind: _begin_with(kind)} for kind in (Resumable, _Pieces)]
_begin = "model, stream = start(); said, state = [], stream.state_dict()"
_looks = ["rounded(said)", "rounded([tuple(model.row.tolist())])"]
_look = "what a state says of its batch, and for how long"
random_programs("a stream", _begin, *_names, _draw, lambda _: _looks, length=24, look=_look)
# Sentences of the contract, and the known-wrong answers that break them.
#= `Resumable(model, optimizer, max_norm=None)`, an | - a name
#= `state_dict()` returns | state_stays_in_the_process
#= It is a snapshot | state_is_not_a_snapshot
#= It may be taken at any | an_empty_state_leaves_the_sums
#= Saved, it takes | first_sum_as_a_list keeps_every_piece
#= `load_state_dict(state)`: from | forgets_the_overflow forgets_the_tokens state_in_16_bits
#= It leaves `state` | loads_on_top
#= Weights and optimizer | - who does that
#= An accumulator that can | forgets_the_tokens
#= A snapshot of | state_is_not_a_snapshot
#= Go on where | forgets_the_overflow
### END HIDDEN TESTS

# %% [markdown]
# **What you have now.** An accumulator that does not ask how much will come; a sum that keeps what fp16 would drop; the
# whole chain (count, scale, clip, step) in the one order that works, whatever the scale did on the way; and a state
# small enough to save at any moment. Lab 07 meets the same questions again, when the pieces lie on different ranks.
