# %% [markdown]
# # Lab 03 · The best checkpoints of an uneven chain
#
# **The question:** your chain needs 11 MiB for its activations and you get four and a half. What do you forget, so
# that as little as possible has to be computed twice?
#
# | | |
# |---|---|
# | Time | about 90 minutes |
# | Builds on | lesson 03: segments, the film of a chain, `Forget` |
# | You write | six functions, the longest about 25 lines |
# | A GPU | is not used, also where there is one |
#
# | question | | points |
# |---|---|---|
# | 1 | What a plan costs | 20 |
# | 2 | The best plan of all | 35 |
# | 3 | Forget and redo, with your own hands | 25 |
# | 4 | For real: a budget in bytes | 20 |
#
# **The rules.** Use Python's own library, torch, and what the next cells import. You build recompute here, so neither
# `torch.utils.checkpoint` nor the course's `train.recompute` may run, under whatever name. (The checks watch whose
# code runs.) You may read both. Then close the file and write your own: no check can tell a pasted copy from your own
# lines, so this is up to you. Cells that show your answer at work fail until there is one. That costs nothing.
# A function leaves what it is given as it was, gradients, modes and hooks among it, and draws no random numbers. Where
# it may change something, its contract says so. The checks look.
#
# Checks that you see here give you points and tell you what is wrong. More run when the lab is graded, on other
# chains, other budgets and other dice. Question 3 needs nothing of the first two: if one resists you, go on and come
# back later.

# %%
from typing import NamedTuple

import torch
from torch import nn

from course_kit import measure
from course_kit.checks import check
from course_kit.checks.check import within
from course_kit.checks.habits import Unfilled, across
from course_kit.checks.held_bytes import outside_torch
from course_kit.checks.restrictions import without_torch
from course_kit.compare import compare
from course_kit.notebook import ask
from course_kit.units import Bytes, Count, Flops
from course_pages.lesson03 import pictures as figures

# %% [markdown]
# ## 1 · What a plan costs (20 points)
#
# In lesson 03 all layers were equal, and one number $K$ said everything. Real networks are not like that. A U-Net is
# wide at both ends. Attention saves much and computes little, an MLP does the opposite. So each layer gets three
# numbers.


# %%
class Cost(NamedTuple):
    """What one layer costs."""

    input: int  # bytes of the tensor that it is given
    saved: int  # bytes that it saves for its backward pass, its input among them
    flops: int  # of its forward pass


PAGE = 2**16  # bytes
FOUR = [Cost(2, 6, 3), Cost(1, 9, 2), Cost(4, 8, 5), Cost(2, 5, 4)]  # small numbers, to think with

# %% [markdown]
# (Every layer in this lab saves its input, and none saves its result.)
#
# A **plan** is a list of segments that are recomputed: pairs `(start, stop)` from layer `start` up to, not including,
# `stop`. All layers that stand in no segment are **kept**: they run once and hold what they save until their own
# backward pass is over.
#
# A recomputed segment leaves its first layer's input behind in the forward pass. In the backward pass it runs again,
# and when it has, all its layers hold what they save. The input that waited is one of these tensors, the same bytes
# and not a second copy. After the segment's backward pass all of it is gone.
#
# Recomputed layers stand in segments, kept ones between them, and the backward pass walks through all of them from
# the last to the first. So: **at which moments can the peak be?** And who is still there at that moment, who has left
# already? Do it on paper first, for `FOUR` and the plan `[(1, 3)]`. (Only the activations count here, as in lesson
# 03's formula.)

# %%
paper_guess = ask("FOUR with the plan [(1, 3)]: how many bytes at the peak?", unit="B")

# %% [markdown]
# **The contract.** `plan_cost(costs, segments)`
#
# - `costs`: a list of `Cost`, at least one. `segments`: a list of pairs in the order of the layers; it may be empty.
# - returns a tuple of two whole numbers: the bytes at the peak, and the FLOPs that a plain step does not have.
# - Segments that overlap, that are empty, in the wrong order or reach beyond the chain raise `ValueError`.
# - It is an account on paper: arithmetic with these numbers. No tensor is made, and nothing is measured.
#
# **What is graded:** four plans for two chains (8), the refusals (4), further chains (8).


# %% answer="q1"
def plan_cost(costs, segments):
    """(bytes at the peak, FLOPs computed twice) of a chain whose `segments` are recomputed."""
    ### BEGIN SOLUTION
    held = peak = again = 0
    at = 0
    for start, stop in [*segments, (len(costs), None)]:
        if start < at or (stop is not None and not start < stop <= len(costs)):
            raise ValueError(f"segments {segments}: ascending pairs start < stop from 0 to {len(costs)}, no overlap")
        held += sum(cost.saved for cost in costs[at:start])
        peak = max(peak, held)
        if stop is not None:
            peak = max(peak, held + sum(cost.saved for cost in costs[start:stop]))
            held += costs[start].input
            again += sum(cost.flops for cost in costs[start:stop])
            at = stop
    return peak, again
    ### END SOLUTION


# %%
print(f"on paper you said {paper_guess.said} at the peak; your function says {plan_cost(FOUR, [(1, 3)])}")

# %% check="q1-values" points=8
account = without_torch(plan_cost, ["measure", "measured_step"])
for segments, expected in (
    ([], (28, 0)),
    ([(0, 4)], (28, 14)),
    ([(0, 2), (3, 4)], (15, 9)),
    ([(0, 1), (2, 3)], (20, 8)),
):
    got = check.call(account, list(FOUR), list(segments))
    check.equal(got, expected, f"(bytes, FLOPs) of FOUR with {segments}", look="each moment by itself")
wide_first = [Cost(9, 10, 1), Cost(1, 20, 7), Cost(5, 6, 2)]
for segments, expected in (([(0, 1), (1, 2)], (29, 8)), ([(1, 2)], (30, 7)), ([(0, 2)], (30, 8)), ([(2, 3)], (36, 2))):
    got = check.call(account, list(wide_first), list(segments))
    check.equal(got, expected, f"(bytes, FLOPs) of a chain with {segments}", look="who is still there, who has left?")

# %% check="q1-refuses" points=4
account = without_torch(plan_cost, ["measure", "measured_step"])
check.equal(check.call(account, list(FOUR), [(0, 1), (1, 4)]), (24, 14), "segments that touch are fine")
for wrong in ([(0, 2), (1, 3)], [(2, 2)], [(2, 4), (0, 1)], [(3, 5)], [(-1, 2)], [(3, 1)]):
    check.raises(ValueError, account, list(FOUR), wrong, look="what the contract says about segments")

# %% check="q1-hidden" points=8
# Random chains, and every plan of the short ones.
### BEGIN HIDDEN TESTS
import itertools as _itertools
import random as _random


def _judge(costs, segments):
    """The step, moment by moment, with every tensor by name."""
    inner = {n: stop for start, stop in segments for n in range(start, stop)}
    alive = {("in", s): costs[s].input for s, _ in segments}
    for n in range(len(costs)):
        if n not in inner:
            alive[n] = costs[n].saved
    most, again = sum(alive.values()), 0
    for n in reversed(range(len(costs))):
        if inner.get(n) == n + 1:
            start = next(s for s, stop in segments if stop == n + 1)
            del alive["in", start]
            alive |= {k: costs[k].saved for k in range(start, n + 1)}
            again += sum(costs[k].flops for k in range(start, n + 1))
        most = max(most, sum(alive.values()))
        del alive[n]
    return most, again


def _every_plan(n, start=0):
    if start == n:
        yield []
        return
    yield from _every_plan(n, start + 1)
    for stop in range(start + 1, n + 1):
        yield from ([(start, stop), *rest] for rest in _every_plan(n, stop))


def _random_chain(random, n):
    inputs = [random.randint(1, 6) for _ in range(n)]
    return [Cost(x, x + random.randint(0, 12), random.randint(1, 9)) for x in inputs]


_dice, account = _random.Random(3), without_torch(plan_cost, ["measure", "measured_step"])
for _n in (1, 2, 3, 5, 6):
    _chain = _random_chain(_dice, _n)
    for _plan in _itertools.islice(_every_plan(_n), 60):
        check.equal(check.call(account, list(_chain), list(_plan)), _judge(_chain, _plan), f"{_n} layers, {_plan}")
# Sentences of the contract, and the known-wrong answers that break them.
#= `costs`: a list | - what is given
#= `segments`: a list | empties_the_plan
#= returns a tuple | everybody_waits input_counted_twice
#= Segments that overlap | overlaps_pass
#= It is an account | bytes_of_tensors_that_it_makes
#= No tensor is made | bytes_of_tensors_that_it_makes
#= (bytes at the peak | everybody_waits
### END HIDDEN TESTS

# %% [markdown]
# ## 2 · The best plan of all (35 points)
#
# Now turn it round. The budget is given, and among all plans whose peak fits you want one with the fewest FLOPs
# computed twice. The honest way is to try all of them. Here they are:


# %%
def every_plan(n, start=0):
    """All plans of the layers from `start` to n: the first one is kept, or it begins a segment."""
    if start == n:
        yield []
        return
    yield from every_plan(n, start + 1)
    for stop in range(start + 1, n + 1):
        yield from ([(start, stop), *rest] for rest in every_plan(n, stop))


# a chain of sixty layers, for later
ends = [(1 + (5 * i * i + i) % 6, (7 * i * i + 3 * i) % 11, 1 + (3 * i**3 + 4 * i) % 13) for i in range(60)]
sixty = [Cost(given, given + inside, flops) for given, inside, flops in ends]
how_many = ask("How many plans does a chain of 12 layers have?", unit="")

# %%
fibonacci = [1, 1]
while len(fibonacci) < 25:
    fibonacci.append(fibonacci[-2] + fibonacci[-1])
counts = [sum(1 for _ in every_plan(n)) for n in range(1, 13)]
print(counts)
compare(guess=how_many, predicted=Count(fibonacci[-1]), measured=Count(counts[-1]), name="plans of 12 layers")

# %% [markdown]
# Every second number of Fibonacci. Sixty layers have five million billion billion plans, so nobody will ever try them
# all. But look at what the plans have in common. Suppose that you have decided about layers 0 to 19, in whichever
# way. What do the other forty need to know about your decisions? Surely not all of them. Write that down in one line:
# it is the *state* of your **dynamic programme**. Of all ways that lead to the same state, which one is worth
# remembering?
#
# Three hints, each less secret than the last:
#
# - The peak is a maximum over moments. A moment that fits the budget need not be remembered.
# - A forward walk is enough. Each step either keeps the next layer or takes a whole segment.
# - Bytes are whole numbers, and in a real chain multiples of some page. So the states are not as many as they seem.
#
# **What it may cost.** With $n$ layers and a budget of $B$ pages there are at most $n B$ states and $n$ ways on from
# each: $n^2 B$ steps. (There is no way around that $B$. Which layers to keep is a knapsack problem, and a knapsack is
# known to be hard where its numbers are long. Beaumont et al. 2019, "Optimal checkpointing for heterogeneous chains",
# who asked for plans of PyTorch models that are *nested*, too, therefore cut memory into 500 slots.)
#
# **The contract.** `best_plan(costs, budget)`
#
# - returns a plan, a list of tuples `(start, stop)` in the order of the layers: peak at most `budget`, and of those
#   one with the fewest recomputed FLOPs. If there are several, any of them.
# - If no plan fits, `ValueError`, with a text that says so and names the budget.
#
# **What is graded:** small chains with one best plan each (8); the refusal (4); a chain of 60 layers within 10
# seconds on one core, also with pages of 4,096 bytes (8; a good answer takes a tenth of a second); further chains and
# budgets, small ones against all their plans (15).


# %% answer="q2"
def best_plan(costs, budget):
    """The plan with the fewest recomputed FLOPs among those whose peak is at most `budget` bytes."""
    ### BEGIN SOLUTION
    # ways[n]: bytes held once the layers before n have run forward -> (fewest FLOPs, the segments that led there)
    ways = [{} for _ in range(len(costs) + 1)]
    ways[0][0] = (0, ())

    def offer(n, held, flops, path):
        if held not in ways[n] or flops < ways[n][held][0]:
            ways[n][held] = (flops, path)

    for start, first in enumerate(costs):
        for held, (flops, path) in ways[start].items():
            if held + first.saved <= budget:
                offer(start + 1, held + first.saved, flops, path)
            inside, again = 0, flops
            for stop in range(start + 1, len(costs) + 1):
                inside += costs[stop - 1].saved
                again += costs[stop - 1].flops
                if held + inside > budget:
                    break
                offer(stop, held + first.input, again, (path, (start, stop)))
    if not ways[-1]:
        raise ValueError(f"no plan of these {len(costs)} layers fits into {budget} bytes: give more, or split a layer")
    _, path = min(ways[-1].values(), key=lambda way: way[0])
    segments = []
    while path:
        path, segment = path
        segments.append(segment)
    return segments[::-1]
    ### END SOLUTION


# %% [markdown]
# Here is a chain of nine layers, wide at both ends. Does your programme agree with the 4,181 plans?

# %%
ROWS = [(3, 24, 5), (3, 12, 3), (2, 20, 4), (2, 6, 2), (1, 13, 1), (1, 6, 2), (2, 24, 4), (3, 9, 9), (3, 21, 3)]
nine = [Cost(given * PAGE, saved * PAGE, flops * 10**6) for given, saved, flops in ROWS]
budget = 64 * PAGE
plan_of_nine = best_plan(nine, budget)
fitting = [again for peak, again in (plan_cost(nine, other) for other in every_plan(9)) if peak <= budget]

figures.chain_with_plan(
    nine,
    plan_of_nine,
    caption="Above the bytes, below the price. The best plan shades what saves much and costs little.",
).show()
print(f"{len(fitting):,} of 4,181 plans fit into {Bytes(budget)}; yours is {plan_of_nine}")
twice = Flops(plan_cost(nine, plan_of_nine)[1])
compare(predicted=Flops(min(fitting)), measured=twice, name="recomputed", unit="MFLOP")

# %% [markdown]
# Is the last layer ever recomputed in a best plan? Why not? Look at the moment at which it would run again.


# %%
def as_plan(answer):
    """The answer, if it has the form of a plan."""
    if not (isinstance(answer, list) and all(isinstance(pair, tuple) and len(pair) == 2 for pair in answer)):
        check.that(False, "a plan", expected="a list of tuples (start, stop)", came=repr(answer)[:200])
    return answer


# %% check="q2-values" points=8
SMALL = {
    28: ([(3, 11, 5), (1, 8, 3), (5, 14, 7), (3, 12, 5), (1, 5, 3), (5, 13, 3)], [(0, 1), (1, 3), (3, 4)]),
    29: ([(3, 8, 6), (2, 9, 7), (5, 14, 6), (4, 7, 3), (5, 12, 8), (2, 5, 2)], [(0, 1), (1, 3)]),
    19: ([(5, 10, 6), (5, 6, 8), (2, 3, 3), (1, 7, 8), (2, 9, 9), (1, 5, 1)], [(0, 2), (3, 4), (4, 5)]),
    17: ([(4, 8, 1), (2, 7, 6), (1, 3, 7), (3, 10, 9), (1, 6, 3), (5, 6, 8)], [(0, 2), (3, 4), (4, 5)]),
}
look = "every_plan and plan_cost show all plans of a small chain: does yours fit, and how far is it from the best?"
for limit, (rows, expected) in SMALL.items():
    answer = as_plan(check.call(best_plan, [Cost(*row) for row in rows], limit))
    check.equal(answer, expected, f"your plan {answer} for a budget of {limit}", look=look)
check.equal(check.call(best_plan, list(FOUR), 28), [], "when all fits, nothing is recomputed", look="the empty plan")

# %% check="q2-refuses" points=4
check.equal(check.call(best_plan, [Cost(2, 5, 1)], 5), [], "a budget that is met exactly", look="at most the budget")
check.raises(ValueError, best_plan, [Cost(2, 5, 1)], 4, look="a layer that does not fit even alone")
check.raises(ValueError, best_plan, list(FOUR), 10, look="what happens when nothing fits")
try:
    best_plan(list(FOUR), 10)
except ValueError as problem:
    check.that("10" in str(problem), "the text names the budget", expected="a text with 10 in it", came=str(problem))

# %% check="q2-long" points=8
for page, limit, fewest in ((1, 300, 22), (1, 200, 95), (4096, 60, 265)):
    longer = [Cost(page * cost.input, page * cost.saved, cost.flops) for cost in sixty]
    look = "how many states can be reached, and whether one is visited twice"
    answer = as_plan(within(10, best_plan, longer, page * limit, look=look))
    came = sum(cost.flops for start, stop in answer for cost in sixty[start:stop])
    name = f"recomputed FLOPs of 60 layers, budget {limit} pages of {page} B"
    check.equal(came, fewest, name, look="too few: does it fit? too many: the state, and which way into it you keep")

# %% check="q2-hidden" points=15
# Random chains, and sixty layers in bytes.
### BEGIN HIDDEN TESTS
import random as _random


def _judge(costs, segments):
    """The step, moment by moment, with every tensor by name."""
    inner = {n: stop for start, stop in segments for n in range(start, stop)}
    alive = {("in", s): costs[s].input for s, _ in segments}
    for n in range(len(costs)):
        if n not in inner:
            alive[n] = costs[n].saved
    most, again = sum(alive.values()), 0
    for n in reversed(range(len(costs))):
        if inner.get(n) == n + 1:
            start = next(s for s, stop in segments if stop == n + 1)
            del alive["in", start]
            alive |= {k: costs[k].saved for k in range(start, n + 1)}
            again += sum(costs[k].flops for k in range(start, n + 1))
        most = max(most, sum(alive.values()))
        del alive[n]
    return most, again


def _random_chain(random, n):
    inputs = [random.randint(1, 6) for _ in range(n)]
    return [Cost(x, x + random.randint(0, 12), random.randint(1, 9)) for x in inputs]


#: random chains
_dice = _random.Random(8)
for _n in (1, 2, 3, 4, 5, 6, 7, 8):
    for _ in range(6 if _n < 7 else 3):
        _chain = _random_chain(_dice, _n)
        _whole = _judge(_chain, [])[0]
        _limit = _dice.randint(_whole // 3, _whole)
        _fits = [again for most, again in (_judge(_chain, plan) for plan in every_plan(_n)) if most <= _limit]
        if not _fits:
            check.raises(ValueError, best_plan, list(_chain), _limit)
            continue
        _plan = as_plan(check.call(best_plan, list(_chain), _limit))
        _most, _again = _judge(_chain, _plan)
        check.at_most(_most, _limit, f"peak of {_plan} for {_chain}")
        check.equal(_again, min(_fits), f"recomputed FLOPs of {_plan} for {_chain}, budget {_limit}")
#: sixty layers in bytes
_chain = [Cost(4096 * cost.input, 4096 * cost.saved, 10**6 * cost.flops) for cost in sixty]
_plan = as_plan(within(20, best_plan, list(_chain), 120 * 4096))
_most, _again = _judge(_chain, _plan)
check.at_most(_most, 120 * 4096, "peak of 60 layers")
check.equal(_again, 175 * 10**6, "recomputed FLOPs of 60 layers in bytes")
# Sentences of the contract, and the known-wrong answers that break them.
#= returns a plan | between_the_passes even_segments greedy_plan
#= If there are several | - a freedom
#= If no plan fits | takes_what_comes_closest
#= The plan with the fewest | one_way_for_each_layer
### END HIDDEN TESTS

# %% [markdown]
# ## 3 · Forget and redo, with your own hands (25 points)
#
# A plan on paper saves nothing. Now write what carries it out. Here is a layer that saves as much as you like: each
# sine saves what goes in, and so does the product. (Some dropout comes in between, to have dice in the game.)


# %%
class Layer(nn.Module):
    """A number of sines and a matrix product."""

    def __init__(self, width, out, sines, dropout=0.0):
        super().__init__()
        self.sines, self.dropout = sines, nn.Dropout(dropout)
        self.linear = nn.Linear(width, out, bias=False)

    def forward(self, x):
        for _ in range(self.sines):
            x = x.sin()
        return self.linear(self.dropout(x))


def build(sizes, seed=0, dropout=0.0):
    torch.manual_seed(seed)
    return nn.ModuleList(Layer(*size, dropout=dropout) for size in sizes)


# %% [markdown]
# **The contract.** `checkpoint(layers, x)` and `run(layers, x, segments)`
#
# - `checkpoint`: `layers` is a list of modules, run one after the other; the result is returned. Until its backward
#   pass, the segment holds x and nothing else, in whatever form. (A few KB for the dice are fine.) Then all its layers
#   run forward once more. After its backward pass, nothing of it is left, even while somebody still holds the chain's
#   result.
# - `run`: the whole chain with a plan. Layers in a segment go through `checkpoint`, all others run as they are.
# - Every gradient equals that of the plain chain, bit for bit, dropout included, and is added to what is in `.grad`
#   already. And after the backward pass the
#   random numbers go on as if nothing had been recomputed.
# - x may be data that requires no gradient. The parameters want theirs all the same.
#
# A `torch.autograd.Function` does it, as lesson 03's `Forget` did. (That one has a fault, which section 7 showed. You
# may also use `torch.autograd.graph.saved_tensors_hooks`.) The class may stand in the same cell.
#
# **What is graded:** gradients, with and without a gradient for x (7); the dice (6); bytes held between the passes, at
# the peak and when all is over, FLOPs (6); other chains and plans (6).


# %% answer="q3"
def checkpoint(layers, x):
    """x through all layers. Holds x alone, and runs the layers again in the backward pass."""
    ### BEGIN SOLUTION
    return ForgetAndRedo.apply(layers, torch.empty(0, requires_grad=True), x)


class ForgetAndRedo(torch.autograd.Function):
    """A forward pass that saves its input, and a backward pass that starts with a second forward pass."""

    @staticmethod
    def forward(ctx, layers, ticket, x):
        ctx.layers, ctx.dice = layers, torch.get_rng_state()
        ctx.save_for_backward(x)
        for layer in layers:  # autograd is off in here
            x = layer(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        (given,) = ctx.saved_tensors
        x = result = given.detach().requires_grad_(ctx.needs_input_grad[2])
        with torch.enable_grad(), torch.random.fork_rng([]):
            torch.set_rng_state(ctx.dice)
            for layer in ctx.layers:
                result = layer(result)
        result.backward(gradient)
        return None, None, x.grad

    ### END SOLUTION


# %% answer="q3-run"
def run(layers, x, segments):
    """x through the whole chain, of which `segments` are recomputed."""
    ### BEGIN SOLUTION
    ends, at = dict(segments), 0
    while at < len(layers):
        stop = ends.get(at, at + 1)
        x = checkpoint(list(layers[at:stop]), x) if at in ends else layers[at](x)
        at = stop
    return x
    ### END SOLUTION


# %% [markdown]
# What follows measures one step: the bytes between the passes, over time and when all is over, and the FLOPs. It
# counts *everything* that is alive except x, the weights and their gradients. Tensors that you hide somewhere count,
# too, and so do arrays of NumPy and bytes objects.


# %%
class Step(NamedTuple):
    between: Bytes  # held between forward and backward pass
    held: object  # bytes over time, an array
    peak: Bytes
    left: Bytes  # held after the backward pass: the result and the gradient of x
    flops: Flops


# %%
def measured_step(forward, layers, x):
    layers.zero_grad()
    leaf = x.detach().requires_grad_()
    there_anyway = leaf.nbytes + sum(layer.linear.weight.nbytes for layer in layers)
    with outside_torch() as outside, measure.memory(layers, inputs=leaf, lines=True) as record:
        result = forward(layers, leaf.clone())  # a clone: as if other layers had made it
        hidden = outside()
        between = check.HeldBytes(record.now.total, record.by_line("now")) + hidden - there_anyway
        result.sum().backward()
        still_hidden = outside()
    held = record.timeline.bytes.sum(axis=1) - record.timeline["gradients"] - there_anyway
    with measure.flops() as counted:
        forward(layers, x.detach().requires_grad_()).sum().backward()
    peak = check.HeldBytes(held.max(), record.by_line()) + hidden
    return Step(between, held, peak, still_hidden + int(held[-1]), counted.total)


# %%
LIBRARIES = ("torch/utils/checkpoint.py", "course_lib/train/recompute.py")
STEP = ("grad", "random")  # what a step may change: gradients, and the dice


def with_plan(segments):
    """Your `run` with this plan. It is watched: recompute that somebody else wrote is refused."""

    def forward(layers, x):
        with check.files_that_ran() as files:
            result = check.call(run, layers, x, list(segments), may_change="random")
        for name in LIBRARIES:
            if any(file.endswith(name) for file in files):
                check.that(False, "recompute of your own", came=f"code of {name} ran", look="the rules, at the top")
        return result

    return forward


# %%
def all_gradients(forward, layers, x, seed=1):
    """The gradients of x, if it has one, and of all weights; and the state of the dice after the step."""
    layers.zero_grad()
    leaf = x.detach().requires_grad_(x.requires_grad)
    torch.manual_seed(seed)
    result = forward(layers, leaf)
    if not result.requires_grad:
        check.that(False, "the result leads back to the weights", look="does autograd know that weights are inside?")
    result.square().sum().backward()
    return [leaf.grad, *(weight.grad for weight in layers.parameters())], torch.get_rng_state()


# %%
def same_gradients(layers, x, segments):
    """Whether a plan's gradients are those of the plain chain, bit for bit; says which are not."""
    (expected, dice), (got, dice_after) = (
        all_gradients(forward, layers, x) for forward in (nn.Sequential.forward, with_plan(segments))
    )
    for n, (one, other) in enumerate(zip(got, expected)):
        name = f"the gradient of {f'layer {n - 1}' if n else 'x'} with {segments}"
        if other is not None and one is None:
            check.that(False, f"{name} is missing", look="does autograd know that weights are inside?")
        if other is not None and not torch.equal(one, other):
            check.equal(one, other, name, look="is the second run the same computation as the first?")
    print(f"✓ every gradient with {segments}")
    return torch.equal(dice, dice_after)


# %%
def same_bytes(layers, x, segments, between, peak, flops):
    """Checks a step with a plan against what it may hold between the passes and at the peak, and its FLOPs."""
    plain_step = measured_step(nn.Sequential.forward, layers, x)
    step = check.call(measured_step, with_plan(segments), layers, x, may_change="grad")
    dice = 2**13 * len(segments)  # 5,056 bytes for each segment, and a little for a ticket
    name = f"held between the passes with {segments}"
    check.at_most(step.between, Bytes(between + dice), name, look="what a segment leaves behind")
    check.equal(step.flops - plain_step.flops, Flops(flops), "FLOPs more than a plain step", look="who runs twice?")
    check.at_most(step.peak, Bytes(peak + dice), "held at the peak", look="what is still there, and why")
    look = "what of a segment outlives its backward pass, and who still holds it"
    check.at_most(step.left, Bytes(plain_step.left + dice), "held when all is over", look=look)


# %% check="q3-gradients" points=7
layers = build([(24, 16, 2), (16, 40, 0), (40, 8, 3), (8, 8, 1), (8, 24, 2)])
for needs_gradient in (True, False):
    x = torch.randn(32, 24, requires_grad=needs_gradient)
    expected = nn.Sequential.forward(layers, x)
    check.equal(check.call(checkpoint, list(layers), x), expected, "the result of checkpoint")
    for segments in ([], [(0, 5)], [(0, 2), (3, 5)], [(1, 2), (2, 4)]):
        check.equal(check.call(with_plan(segments), layers, x), expected, f"the result of run with {segments}")
        check.call(same_gradients, layers, x, segments, may_change=STEP)

# %% check="q3-dice" points=6
layers = build([(16, 16, 1)] * 6, dropout=0.3)
x = torch.randn(32, 16, requires_grad=True)
for segments in ([(0, 6)], [(1, 3), (3, 4)], [(0, 1), (2, 5)]):
    dice_alike = check.call(same_gradients, layers, x, segments, may_change=STEP)
    check.that(dice_alike, "after the step the dice fall as in a plain one", look="the state outside, after backward")

# %% check="q3-bytes" points=6
layers = build([(64, 32, 6), (32, 96, 9), (96, 32, 5), (32, 64, 8), (64, 32, 3)])
x = torch.randn(512, 64, requires_grad=True)
check.call(same_gradients, layers, x, [(0, 2), (3, 4)], may_change=STEP)
room = 5 * 3  # pages on their way between two operations: five tensors of the largest kind
flops_twice = 512 * 2 * (64 * 32 + 32 * 96 + 32 * 64)
same_bytes(layers, x, [(0, 2), (3, 4)], 30 * PAGE, (38 + room) * PAGE, flops_twice)
flops_twice += 512 * 2 * 32 * 96
same_bytes(layers, x, [(0, 1), (1, 4)], 12 * PAGE, (39 + room) * PAGE, flops_twice)


# %% check="q3-hidden" points=6
# Other layers and plans, with dropout, and what they hold and compute.
### BEGIN HIDDEN TESTS
def _judge(costs, segments):
    """The step, moment by moment, with every tensor by name."""
    inner = {n: stop for start, stop in segments for n in range(start, stop)}
    alive = {("in", s): costs[s].input for s, _ in segments}
    for n in range(len(costs)):
        if n not in inner:
            alive[n] = costs[n].saved
    most, again = sum(alive.values()), 0
    for n in reversed(range(len(costs))):
        if inner.get(n) == n + 1:
            start = next(s for s, stop in segments if stop == n + 1)
            del alive["in", start]
            alive |= {k: costs[k].saved for k in range(start, n + 1)}
            again += sum(costs[k].flops for k in range(start, n + 1))
        most = max(most, sum(alive.values()))
        del alive[n]
    return most, again


_sizes = [(32, 64, 5), (64, 64, 0), (64, 32, 7), (32, 32, 12), (32, 96, 2), (96, 64, 4), (64, 32, 6)]
_costs = [Cost(4 * 300 * w, 4 * 300 * w * (n + 1), 2 * 300 * w * out) for w, out, n in _sizes]
_layers, _x = build(_sizes, seed=4), torch.randn(300, 32, requires_grad=True)
for _plan in ([(0, 3), (3, 6)], [(2, 4), (5, 6)], [(n, n + 1) for n in range(7)]):
    _wet = build(_sizes, seed=5, dropout=0.4)
    for _given, _case in ((_x, ""), (_x.detach(), ", x without gradient")):
        _alike = check.call(same_gradients, _wet, _given, _plan, may_change=STEP)
        check.that(_alike, f"the dice after {_plan}{_case}")
    _inside = {n for start, stop in _plan for n in range(start, stop)}
    _between = sum(_costs[s].input for s, _ in _plan)
    _between += sum(cost.saved for n, cost in enumerate(_costs) if n not in _inside)
    _most, _again = _judge(_costs, _plan)
    #: what they hold and compute
    same_bytes(_layers, _x, _plan, _between + 4 * 300 * 32, _most + 5 * 4 * 300 * 96, _again)
    #: other layers and plans, with dropout
    _sums = []
    for _forward in (nn.Sequential.forward, with_plan(_plan)):  # two backward passes, whose gradients are added up
        _layers.zero_grad()
        _leaf = _x.detach().requires_grad_()
        for _size in (1.0, 2.0):
            _forward(_layers, _leaf).mul(_size).sum().backward()
        _sums.append([_leaf.grad, *(weight.grad for weight in _layers.parameters())])
    check.equal(_sums[1], _sums[0], f"gradients of two steps with {_plan}, added up")
_layers, _x = build([(20, 12, 3), (12, 20, 1)] * 7, seed=6).double(), torch.randn(7, 20, dtype=torch.float64)
_expected = nn.Sequential.forward(_layers, _x)
check.equal(check.call(checkpoint, list(_layers), _x), _expected, "fourteen layers in float64")
check.call(same_gradients, _layers, _x, [(0, 2), (9, 13)], may_change=STEP)
_x = across(3000 * torch.randn(7, 20, dtype=torch.float64))
_expected = nn.Sequential.forward(_layers, _x)
with Unfilled():
    _got = check.call(checkpoint, list(_layers), _x)
    check.equal(_got, _expected, "the same layers, given large numbers that lie across in memory")
    check.call(same_gradients, _layers, _x.requires_grad_(), [(0, 2), (9, 13)], may_change=STEP)
# Sentences of the contract, and the known-wrong answers that break them.
#= `checkpoint`: `layers` | no_checkpoint
#= Until its backward pass | keeps_everything keeps_on_ctx keeps_as_bytes keeps_as_parameters
#= (A few KB | - a tolerance
#= Then all its layers | carries_it_to_the_attic
#= After its backward pass | outlives_the_step
#= `run`: the whole chain | no_checkpoint
#= Layers in a segment | each_layer_a_segment
#= Every gradient equals | other_dice replaces_gradients
#= And after the backward | dice_left_behind
#= x may be data | no_ticket
#= The parameters want | no_ticket
#= A `torch.autograd.Function` | - advice
#= (That one has a fault | - advice
#= You may also use | - a permission
#= The class may stand | - a permission
#= x through all layers | no_checkpoint
#= Holds x alone | keeps_everything redoes_but_keeps
#= x through the whole chain | each_layer_a_segment
### END HIDDEN TESTS

# %% [markdown]
# ## 4 · For real: a budget in bytes (20 points)
#
# Twelve layers, wide at both ends. A plain step holds 10.9 MiB at its peak. You get **4.5 MiB for all
# that a `Step` counts**, and nobody tells you what the layers cost. Measure them. (`x`, the weights and their gradients
# are there with any plan: a `Step` leaves them out.)
#
# **What you may take for granted.** A layer saves its input and does not save its result. But it may save one tensor
# *twice*, for two operations, and that is one block of memory. It also needs its weights, which are no activations.
# `measure.memory` and `measure.flops` know about both; the `Step` above shows how they are used. (Ask for a layer's
# activations while its result is still alive. Give it a clone, as if other layers had made it.)
#
# **Room to work in.** The limit is for all of that, and a plan counts only what is saved. Besides that,
# gradients and results are on their way between operations. Five tensors of the size of the chain's largest input are
# enough for our layers. So leave a plan that much less:


# %%
def working_room(costs):
    """Bytes that a plan must leave free."""
    return 5 * max(cost.input for cost in costs)


SIZES = [(96, 96, 7), (96, 64, 3), (64, 64, 9), (64, 32, 2), (32, 32, 12), (32, 32, 5)]
SIZES += [(32, 64, 14), (64, 64, 11), (64, 96, 2), (96, 96, 6), (96, 32, 4), (32, 32, 8)]
twelve, x = build(SIZES), torch.randn(512, 96)
LIMIT = Bytes(4.5 * 2**20)

# %% [markdown]
# **The contract.** `profile(layers, x)` and `fit(layers, x, limit)`
#
# - `profile` returns a list with the `Cost` of each layer, in whole bytes and FLOPs, when the chain is given x.
#   It measures the layers one by one, as they come in a chain whose x requires a gradient; nobody's `.grad` changes.
# - `fit` returns a plan whose peak leaves room to work in below `limit` bytes, and of those one with the fewest
#   recomputed FLOPs. If there is none, `ValueError`.
#
# **What is graded:** the profile of our chain and of one with another kind of layer (6); steps *measured* under your
# plan: peak at most the limit, FLOPs exactly those of the best plan, gradients right, for three limits (8); other
# chains and limits, and layers that you have not seen (6).


# %% answer="q4"
def profile(layers, x):
    """The measured `Cost` of each layer."""
    ### BEGIN SOLUTION
    costs = []
    for layer in layers:
        x = x.detach().requires_grad_()
        with torch.random.fork_rng(devices=[]), measure.memory(layer, inputs=x) as record:
            result = layer(x.clone())
            saved = int(record.now.activations)
        with torch.random.fork_rng(devices=[]), measure.flops() as counted, torch.no_grad():
            layer(x)
        costs.append(Cost(x.nbytes, saved, int(counted.total)))
        x = result
    return costs
    ### END SOLUTION


# %% answer="q4-fit"
def fit(layers, x, limit):
    """The best plan that keeps a step of these layers below `limit` bytes."""
    ### BEGIN SOLUTION
    costs = profile(layers, x)
    return best_plan(costs, limit - working_room(costs))
    ### END SOLUTION


# %%
plan_of_twelve = fit(twelve, x, LIMIT)
caption = f"The plan for {LIMIT:.1MiB}: {plan_of_twelve}. White layers are kept."
figures.chain_with_plan(profile(twelve, x), plan_of_twelve, caption=caption)

# %% [markdown]
# And the step that it makes. Before you run this: how many hills will the line of your plan have, and in which
# pass is the highest one?

# %%
plain_step, planned_step = (
    measured_step(forward, twelve, x) for forward in (nn.Sequential.forward, with_plan(plan_of_twelve))
)
figures.held_against_limit(
    {"plain": plain_step.held, "with your plan": planned_step.held},
    LIMIT,
    caption="The plain step climbs one hill. The plan's step is longer, since layers run again, and lower: each "
    "segment that comes back climbs a hill of its own and is forgotten.",
).show()
more = planned_step.flops / plain_step.flops - 1
print(f"peak {plain_step.peak:.2MiB} -> {planned_step.peak:.2MiB}; FLOPs {more:+.1%}")

# %% check="q4-profile" points=6
expected = [Cost(4 * 512 * w, 4 * 512 * w * (sines + 1), 2 * 512 * w * out) for w, out, sines in SIZES]
x = x.detach()  # data that requires no gradient, whatever the cells above have made of it
got = check.call(profile, twelve, x)
costs = isinstance(got, list) and all(isinstance(cost, Cost) for cost in got)
check.that(costs, "what profile returns", expected="a list of Cost", came=repr(got)[:200])
looks = {
    "input": "the bytes of what each layer is given: layers differ",
    "saved": "blocks of memory, without weights or result; and whether the clone requires a gradient",
    "flops": "what runs while FLOPs are counted: one forward pass of this layer",
}
for field, look in looks.items():
    ours, right = ([getattr(cost, field) for cost in account] for account in (got, expected))
    check.equal(ours, right, f"twelve layers: {field}", look=look)
perceptrons = [nn.Sequential(nn.Linear(96, out), nn.ReLU(), nn.Linear(out, 96)) for out in (160, 48)]
perceptrons[1][2].bias.grad = torch.ones(96)  # somebody's gradient, from before
expected = [Cost(4 * 512 * 96, 4 * 512 * (96 + out), 2 * 2 * 512 * 96 * out) for out in (160, 48)]
check.equal(check.call(profile, perceptrons, x), expected, "two perceptrons", look="what two save is one block")
gradients_after = [weight.grad for layer in perceptrons for weight in layer.parameters()]
check.equal(gradients_after, [None] * 7 + [torch.ones(96)], "profile leaves .grad alone")
check.call(profile, list(build(SIZES[:2], dropout=0.3)), x)  # the dice are the caller's, too

# %% check="q4-fits" points=8
plain_step = measured_step(nn.Sequential.forward, twelve, x)
for MiB, fewest in ((6, 17_825_792), (4.5, 30_408_704), (3.5, 39_845_888)):
    limit = Bytes(MiB * 2**20)
    answer = as_plan(check.call(fit, twelve, x, limit))
    check.call(same_gradients, twelve, x.requires_grad_(), answer, may_change=STEP)
    planned_step = check.call(measured_step, with_plan(answer), twelve, x, may_change="grad")
    name = f"measured peak with a limit of {limit} ({planned_step.peak:,d} of {limit:,d} B)"
    check.at_most(planned_step.peak, limit, name, look="the room to work in, and measured_step(...).held")
    more = planned_step.flops - plain_step.flops
    check.equal(more, Flops(fewest), "measured FLOPs more than a plain step", look="the budget that is left to plan")
check.raises(ValueError, fit, twelve, x, Bytes(2**21), look="a limit that no plan can keep")

# %% check="q4-hidden" points=6
# Other networks and limits, and layers of kinds that nobody has shown.
### BEGIN HIDDEN TESTS
import random as _random


class _Gate(nn.Module):
    """One weight that is used twice: a gate, and what comes through it."""

    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width, bias=False)

    def forward(self, x):
        gate = self.linear(x).sigmoid()
        return self.linear(x * gate)


class _Deeper(Layer):
    """Looks like a layer that you know."""

    def forward(self, x):
        return super().forward(x.sin())


class _Half(nn.Module):
    """Saves a view, and with it the whole block of memory."""

    def forward(self, x):
        return x[:, : x.shape[1] // 2].sin()


def _judge(costs, segments):
    """The step, moment by moment, with every tensor by name."""
    inner = {n: stop for start, stop in segments for n in range(start, stop)}
    alive = {("in", s): costs[s].input for s, _ in segments}
    for n in range(len(costs)):
        if n not in inner:
            alive[n] = costs[n].saved
    most, again = sum(alive.values()), 0
    for n in reversed(range(len(costs))):
        if inner.get(n) == n + 1:
            start = next(s for s, stop in segments if stop == n + 1)
            del alive["in", start]
            alive |= {k: costs[k].saved for k in range(start, n + 1)}
            again += sum(costs[k].flops for k in range(start, n + 1))
        most = max(most, sum(alive.values()))
        del alive[n]
    return most, again


#: other networks and limits
for _seed, _rows, _shares in ((1, 256, (0.35, 0.6)), (2, 640, (0.4, 0.7))):
    _dice = _random.Random(_seed)
    _widths = [32 * _dice.randint(1, 3) for _ in range(9)]
    _sizes = [(w, out, _dice.randint(4, 14)) for w, out in zip(_widths, _widths[1:])]
    _costs = [Cost(4 * _rows * w, 4 * _rows * w * (n + 1), 2 * _rows * w * out) for w, out, n in _sizes]
    _layers, _x = build(_sizes, seed=_seed), torch.randn(_rows, _widths[0], requires_grad=True)
    _plain = measured_step(nn.Sequential.forward, _layers, _x)
    _all = [_judge(_costs, plan) for plan in every_plan(8)]
    for _share in _shares:
        _budget = max(int(_share * _all[0][0]), min(most for most, _ in _all))
        _limit = Bytes(_budget + working_room(_costs))
        _plan = as_plan(check.call(fit, _layers, _x, _limit))
        check.call(same_gradients, _layers, _x, _plan, may_change=STEP)
        _step = check.call(measured_step, with_plan(_plan), _layers, _x, may_change="grad")
        check.at_most(_step.peak, _limit, f"measured peak with {_plan}, limit {_limit}")
        _fewest = min(again for most, again in _all if most <= _budget)
        check.equal(_step.flops - _plain.flops, Flops(_fewest), f"measured FLOPs with {_plan}, limit {_limit}")
#: layers of kinds that nobody has shown
_strangers = [_Gate(48), nn.Sequential(nn.Linear(48, 80), nn.GELU(), nn.Linear(80, 24))]
_strangers.append(nn.Sequential(nn.Linear(24, 24, bias=False), _Gate(24)))
_saved = [3 * 48, 48 + 80 + 80, 24 + 3 * 24]  # for each row
_flops = [2 * 2 * 48 * 48, 2 * (48 * 80 + 80 * 24), 2 * 3 * 24 * 24]
_costs = [Cost(4 * 60 * w, 4 * 60 * n, 60 * each) for w, n, each in zip((48, 48, 24), _saved, _flops)]
check.equal(check.call(profile, _strangers, torch.randn(60, 48)), _costs, "layers of other kinds: input, saved, flops")
_costs = [Cost(4 * 60 * 48, 4 * 60 * 48 * 5, 60 * 2 * 48 * 24), Cost(4 * 60 * 24, 4 * 60 * 24, 0)]
_got = check.call(profile, [_Deeper(48, 24, 3), _Half()], torch.randn(60, 48))
check.equal(_got, _costs, "a Layer that does more than it says, and one that saves a view")
_costs[0] = _costs[0]._replace(saved=4 * 60 * 48 * 4)
_got = check.call(profile, [Layer(48, 24, 3), _Half()], torch.randn(60, 48))
check.equal(_got, _costs, "then one of the same shapes that does what it says", look="what outlives a call")
#: other networks and limits
_sizes = [(32, 64, 3), (64, 48, 5), (48, 32, 2)]
_layers, _x = build(_sizes, seed=3).double(), across(3000 * torch.randn(40, 32, dtype=torch.float64))
_costs = [Cost(8 * 40 * w, 8 * 40 * w * (n + 1), 2 * 40 * w * out) for w, out, n in _sizes]
with Unfilled():
    _got = check.call(profile, list(_layers), _x)
check.equal(_got, _costs, "three layers in float64, given what lies across in memory: input, saved, flops")
_all = [_judge(_costs, plan) for plan in every_plan(3)]
_budget = min(most for most, _ in _all)
with Unfilled():
    _plan = as_plan(check.call(fit, _layers, _x, Bytes(_budget + working_room(_costs))))
_fewest = min(again for most, again in _all if most <= _budget)
check.equal(_judge(_costs, _plan), (_budget, _fewest), "the least peak of three layers in float64, and its price")
_plan = as_plan(check.call(fit, _layers, -_x, Bytes(_all[0][0] + working_room(_costs))))
check.equal(_plan, [], "the same layers again, with room for all", look="what outlives a call")
# Sentences of the contract, and the known-wrong answers that break them.
#= `profile` returns | counts_every_save four_bytes_a_number
#= It measures the layers | profile_clears_gradients switches_gradients_on_in_x
#= `fit` returns a plan | no_room_to_work
#= If there is none | fit_never_gives_up
#= The measured `Cost` | four_bytes_a_number
#= The best plan that keeps | no_room_to_work
### END HIDDEN TESTS

# %% [markdown]
# ## Where this leads
#
# Your plans are flat: a segment that runs again keeps all its insides. One could also forget *inside* a segment that
# comes back, and so on; Beaumont et al. 2019 plan that, too, with one more dimension in the same kind of table. And
# one could send a tensor away instead of computing it again. Lesson 03 said when that is better, and the table would
# take it: a third thing that can be done with a layer, with a price in seconds.
