# %% [markdown]
# # Lab 10 · Written by three, read by two
#
# **The question:** when no rank has the whole, who computes the norm of a gradient? And what do you save, if tomorrow
# there are fewer ranks?
#
# | | |
# |---|---|
# | Time | about 90 minutes |
# | Builds on | lesson 10: the ranks share the optimizer's state; lesson 06: reduce-scatter and all-gather |
# | You write | seven functions, none longer than 20 lines |
# | A GPU | changes nothing here |
#
# | question | | points |
# |---|---|---|
# | 1 | Who holds what? | 15 |
# | 2 | A step on a share | 30 |
# | 3 | One number travels | 25 |
# | 4 | Written by three, read by two | 30 |
#
# **The rules.** You may use every collective of `torch.distributed`, those of lesson 06 in `collectives`, and all of
# torch but finished ZeRO, finished clipping and finished checkpoints: PyTorch's are out of bounds, and the library's.
# A function leaves what it is given as it was, gradients, modes and hooks among it, and draws no random numbers. Where
# it may change something, its contract says so. The checks look.
#
# An AdamW that every rank runs on everything gives the right weights as well. Only its bytes tell. So the checks weigh
# what each rank holds and what lies on the disk, and they count what leaves a rank, by the calls that it makes and at
# the sockets of the operating system. If your ranks wait for each other, you need not wait with them: within seconds a
# report says who waits for whom, and in which line.
#
# Checks that you see here give you points and tell you what is wrong. More run when the lab is graded, on other
# ranks and other sizes. Bytes count only for answers that are right. Cells that show your answer at work fail until
# there is one. That costs nothing.
#
# Questions 2 and 4 may call your answer to question 1. Question 3 needs no other.

# %%
import pickle
import random
import shutil
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist

from course_kit import measure, ranks
from course_kit.checks import check, habits
from course_kit.checks.held_bytes import outside_torch
from course_kit.checks.random_programs import random_programs
from course_kit.compare import compare
from course_kit.notebook import ask
from course_kit.units import Bytes, Ratio
from course_lib import predict
from course_lib.collectives import algorithms as collectives
from course_lib.model.hardware import H100_80GB
from course_lib.model.zoo import LLAMA3_405B

# %% [markdown]
# All parameters of a model, flattened and laid end to end, are one long row of `total` elements. It is cut into equal
# *shards*, one for each rank, of `length_of(total, ranks)` elements: rank 0 gets the first ones, rank 1 the next ones,
# and so on. Where the sizes don't divide, the last shards are not full. `elements_of` says how many of a shard's
# elements are real; the rest, at its end, is **padding**. Padding is memory that nobody has filled. It may hold any
# number, NaN too, and nobody may ever notice.


# %%
FINISHED = ["ZeroOptimizer", "ReplicatedFlatShard", "Zero3", "ZeroRedundancyOptimizer", "FullyShardedDataParallel"]
FINISHED += ["fully_shard", "clip_grad_norm_", "clip_grads_with_norm_", "get_total_norm", "DTensor"]
FINISHED += ["torch.distributed.checkpoint", "course_lib.parallel.checkpoint"]
ELSEWHERE = [each for each in check.CHANNELS if each not in ("torch.save", "torch.load")]  # not as files either
VECTORS = ("weights", "mean", "square")


def length_of(total, ranks):
    """Elements of each shard, padding included."""
    return -(-total // ranks)


def elements_of(total, rank, ranks):
    """How many of this rank's shard are real. They come first."""
    length = length_of(total, ranks)
    return min(max(total - rank * length, 0), length)


# %%
def shard_of(row, rank, n_ranks):
    """A rank's shard of a row of numbers, with NaN for padding."""
    length = length_of(len(row), n_ranks)
    shard = torch.full((length,), float("nan"), dtype=row.dtype)
    own = row[rank * length : (rank + 1) * length]
    shard[: len(own)] = own
    return shard


def real_part(row, rank, n_ranks):
    """A rank's shard without its padding."""
    return shard_of(row, rank, n_ranks)[: elements_of(len(row), rank, n_ranks)]


def in_a_row(tensors):
    """All elements end to end, as a new tensor."""
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


# %%
def check_sent(accounts, most, least, what, look):
    """Upper and lower limits of what leaves a rank, by the calls that it made and by the sockets."""
    n_bytes = max(int(each.total_bytes) for each in accounts)
    check.at_most(n_bytes, int(most), f"… bytes sent {what}, by the calls of the busiest rank", look=look)
    seen, n = sum(int(each.sent_bytes) for each in accounts), len(accounts)
    check.at_most(seen, n * int(1.1 * most + 2000 * n), f"… at the sockets of all ranks, {what}", look=look)
    if least:
        check.at_least(seen, int(0.9 * n * least), "… and at least", look="what travels without a call, or never")


# %% [markdown]
# ## 1 · Who holds what? (15 points)
#
# Three parameters with 3, 4 and 2 elements, two ranks: nine elements, so a shard has five. Rank 0 holds parameter 0 and
# the first two elements of parameter 1. Rank 1 holds the other two, and parameter 2, and one element of padding. So a
# shard is a list of *pieces*.
#
# A cut asks nobody. Each rank can compute it for itself, and for all others.
#
# **Your contract.** `pieces(sizes, rank, ranks)`
#
# - `sizes`: for each parameter how many elements it has, a list of ints; some may be 0. There may be billions: compute
# with the sizes, do not list elements.
# - Returns a list of tuples `(number, first, last)`, in order: of parameter `number` this rank holds the elements
# `first` to `last - 1`, counted within the (flattened) parameter. What is empty is not in the list.
#
# **Graded:** cuts by hand (8 points), and random cuts, more ranks than elements, and a model of 405 billion (7).


# %% answer="q1"
def pieces(sizes, rank, ranks):
    """The pieces of this rank's shard: a list of (number, first, last)."""
    ### BEGIN SOLUTION
    length = length_of(sum(sizes), ranks)
    found, begin = [], -rank * length  # where the parameter begins, counted from this rank's first element
    for number, size in enumerate(sizes):
        first, last = max(0, -begin), min(size, length - begin)
        if first < last:
            found.append((number, first, last))
        begin += size
    return found
    ### END SOLUTION


# %%
print("rank 0 of 2:", pieces([3, 4, 2], 0, 2))
print("rank 1 of 2:", pieces([3, 4, 2], 1, 2))


# %% check="q1-values" points=8
def check_cut(sizes, expected):
    for rank, right in enumerate(expected):
        given = list(sizes)
        found = check.call(pieces, given, rank, len(expected))
        what = f"pieces({sizes}, rank {rank} of {len(expected)})"
        look = "where each parameter begins and ends, counted from the shard's first element; what is empty"
        if str(found) != str(right):
            check.that(False, what, expected=f"{right}", came=str(found)[:300], look=look)
        check.equal(found, right, what, look=look)
        check.equal(given, list(sizes), "… and the sizes are as they were", look="what you count down")


check_cut([3, 4, 2], [[(0, 0, 3), (1, 0, 2)], [(1, 2, 4), (2, 0, 2)]])
check_cut([10], [[(0, 0, 4)], [(0, 4, 8)], [(0, 8, 10)]])
check_cut([1, 0, 3, 2], [[(0, 0, 1), (2, 0, 2)], [(2, 2, 3), (3, 0, 2)]])
check_cut([1, 1], [[(0, 0, 1)], [(1, 0, 1)], []])


# %% check="q1-hidden" points=7
# Random cuts, more ranks than elements, and a large model.
### BEGIN HIDDEN TESTS
def hidden_cut(sizes, n_ranks):
    """The cut by counting: every element by name, the row of them in equal parts."""
    names = [(number, place) for number, size in enumerate(sizes) for place in range(size)]
    length, cut = -(-len(names) // n_ranks), []
    for rank in range(n_ranks):
        own = names[rank * length : (rank + 1) * length]
        places = {each: [place for number, place in own if number == each] for each in sorted({n for n, _ in own})}
        cut.append([(number, min(found), max(found) + 1) for number, found in places.items()])
    return cut


def hidden_cuts():
    chance = random.Random(10)
    for _ in range(60):
        sizes = [chance.choice((0, 1, 2, 5, 17)) for _ in range(chance.randint(1, 6))]
        check_cut(sizes, hidden_cut(sizes, chance.randint(1, 8)))
    total, half = LLAMA3_405B.parameters, LLAMA3_405B.parameters // 2
    check_cut([7, total - 7], [[(0, 0, 7), (1, 0, half - 7)], [(1, half - 7, total - 7)]])


hidden_cuts()
# Sentences of the contract, and the known-wrong answers that break them.
#= `sizes`: for each parameter | lists_what_is_empty
#= There may be billions | lists_all_elements
#= Returns a list of tuples | begins_every_piece_at_zero places_in_the_shard loses_the_last_elements
#= What is empty | lists_what_is_empty
#= The pieces of this | cuts_like_tensor_split whole_parameters_only
### END HIDDEN TESTS

# %% [markdown]
# ## 2 · A step on a share (30 points)
#
# AdamW looks at each element alone. So a rank that has the gradient of its own shard can update its own shard, and
# needs the mean and the square of these elements and of no others. Before that, gradients must be added up; after
# that, everybody must get everybody's weights. You know from lesson 06 what an all-reduce is made of. Put the update
# between its two halves.
#
# One thing breaks the peace. As usual in GPT training, *matrices* (all that have two dims or more) decay, and biases and
# norms, which have one dim or none, do not. A shard does not know what is in it. `pieces` does.
#
# With $g$ the mean gradient and $t$ the number of this step, counted from 1 (Loshchilov and Hutter 2019):
#
# $$m \leftarrow \beta_1 m + (1-\beta_1)\,g, \qquad v \leftarrow \beta_2 v + (1-\beta_2)\,g^2,$$
#
# $$w \leftarrow w - \eta\,\lambda\,w - \eta\,\frac{m / (1-\beta_1^t)}{\sqrt{v / (1-\beta_2^t)} + \epsilon},$$
#
# where the decay $\lambda$ is 0 for what is no matrix, and both $w$ on the right are the old weights.
#
# **Your contract.** A shard is a dict: `"weights"`, `"mean"` and `"square"` are vectors of the length of a shard, in the
# parameters' dtype, and `"steps"` is an int. `parameters` is a list of leaf tensors of one dtype, the same on all
# ranks. They and their gradients may lie across in memory, like `x.t()`, where `view(-1)` fails and `flatten()` does not.
#
# - `begin(parameters)` returns this rank's shard before the first step, in memory of its own. It sends nothing.
# - `reduced(parameters)` returns, as a vector as long as a shard, this rank's part of the *sum* over all ranks of the
# gradients (each parameter has a `.grad`). Every `.grad` stays as it is.
# - `update(parameters, shard, gradient, lr, decay)` makes one step. `gradient` is this rank's part of the *mean*
# gradient, and stays as it is. Afterwards the shard is up to date, and all parameters on all ranks are. All that it
# knows of earlier steps are these four keys. So it goes on with a shard that comes from a file (question 4) and that
# `begin` has never seen, whatever the parameters hold before.
# - `reduced` and `update` are called by all ranks, and each of them sends $\frac{N-1}{N}$ of the (padded) row. Between
# steps a rank holds its shard, and nothing more.
#
# (gloo's own `reduce_scatter` makes a whole all-reduce, twice the bytes. `collectives.reduce_scatter` does not.)
#
# **Graded:** sums (6 points), weights after every step (8), bytes held (5), bytes sent (5), and other models (6).

# %%
guess_state = ask("3 ranks, fp32: how many bytes of the three vectors does a rank keep for an element of the model?")

# %%
BETAS, EPS = (0.9, 0.999), 1e-8
LR, DECAY = 0.05, 0.1


# %% answer="q2"
def begin(parameters):
    """This rank's shard: its weights, two vectors of zeros, no steps."""
    ### BEGIN SOLUTION
    rank, n_ranks, sizes = dist.get_rank(), dist.get_world_size(), [parameter.numel() for parameter in parameters]
    weights = parameters[0].detach().new_zeros(length_of(sum(sizes), n_ranks))
    place = 0
    for number, first, last in pieces(sizes, rank, n_ranks):
        weights[place : place + last - first] = parameters[number].detach().flatten()[first:last]
        place += last - first
    return {"weights": weights, "mean": torch.zeros_like(weights), "square": torch.zeros_like(weights), "steps": 0}
    ### END SOLUTION


# %% answer="q2-reduced"
def reduced(parameters):
    """This rank's part of the sum of all ranks' gradients. All ranks call."""
    ### BEGIN SOLUTION
    n_ranks = dist.get_world_size()
    row = torch.cat([parameter.grad.flatten() for parameter in parameters])
    padding = length_of(len(row), n_ranks) * n_ranks - len(row)
    return collectives.reduce_scatter(torch.cat([row, row.new_zeros(padding)]))
    ### END SOLUTION


# %% answer="q2-update"
def update(parameters, shard, gradient, lr, decay):
    """One AdamW step on this rank's shard; then all ranks get all weights. All ranks call."""
    ### BEGIN SOLUTION
    weights, sizes, place = shard["weights"], [parameter.numel() for parameter in parameters], 0
    shard["steps"] += 1
    shard["mean"].mul_(BETAS[0]).add_(gradient, alpha=1 - BETAS[0])
    shard["square"].mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
    for number, first, last in pieces(sizes, dist.get_rank(), dist.get_world_size()):
        if parameters[number].dim() > 1:
            weights[place : place + last - first] *= 1 - lr * decay
        place += last - first
    mean = shard["mean"] / (1 - BETAS[0] ** shard["steps"])
    square = shard["square"] / (1 - BETAS[1] ** shard["steps"])
    weights -= lr * mean / (square.sqrt() + EPS)
    row = collectives.all_gather(weights)[: sum(sizes)]
    with torch.no_grad():
        for parameter, new in zip(parameters, row.split(sizes)):
            parameter.copy_(new.view(parameter.shape))
    ### END SOLUTION


# %% [markdown]
# `a_model` makes parameters to work on, the same on every rank; its matrices lie across. `deal` gives a rank its
# gradients of a step. `alone` is the oracle: one process, `torch.optim.AdamW`, the mean of all ranks' gradients. It
# returns the weights after each step, in a row, and at the end mean and square.


# %%
def a_model(shapes, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    made = [torch.randn(shape[::-1], generator=generator, dtype=dtype) for shape in shapes]
    return [(each.t().clone() if each.dim() == 2 else each).requires_grad_() for each in made]


def deal(parameters, step, rank):
    """Each parameter gets this rank's gradient of this step."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    for parameter in parameters:
        parameter.grad = torch.empty_like(parameter, requires_grad=False).normal_(generator=generator)  # across, too


def dealt(shapes, step, n_ranks, seed=0, dtype=torch.float64):
    """The sum of all ranks' gradients, in a row."""
    parameters, total = a_model(shapes, seed, dtype), 0
    for rank in range(n_ranks):
        deal(parameters, step, rank)
        total = total + in_a_row([parameter.grad for parameter in parameters])
    return total


# %%
def alone(shapes, steps, n_ranks, seed=0, lr=LR, decay=DECAY, dtype=torch.float64):
    parameters, history = a_model(shapes, seed, dtype), []
    groups = [
        {"params": [each for each in parameters if each.dim() > 1], "weight_decay": decay},
        {"params": [each for each in parameters if each.dim() <= 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW([group for group in groups if group["params"]], lr=lr, betas=BETAS, eps=EPS)
    for step in range(steps):
        mean = dealt(shapes, step, n_ranks, seed, dtype) / n_ranks
        for parameter, part in zip(parameters, mean.split([each.numel() for each in parameters])):
            parameter.grad = part.view(parameter.shape)
        optimizer.step()
        history.append(in_a_row(parameters))
    state = [in_a_row([optimizer.state[p][name] for p in parameters]) for name in ("exp_avg", "exp_avg_sq")]
    return history, *state


# %% [markdown]
# Two steps of two ranks on a matrix and a vector. Each rank prints its shard's weights, and what it has of all.


# %%
def two_steps():
    parameters = a_model([(2, 2), (3,)])
    shard = begin(parameters)
    for step in range(2):
        deal(parameters, step, dist.get_rank())
        update(parameters, shard, reduced(parameters) / dist.get_world_size(), LR, DECAY)
    return [round(number, 2) for number in shard["weights"].tolist()], in_a_row(parameters)


print("the shards: ", [own for own, _ in ranks.run(two_steps, world_size=2)])
print("all weights:", [[round(number, 2) for number in row.tolist()] for _, row in ranks.run(two_steps, world_size=2)])


# %%
def summed(shapes, seed=0, dtype=torch.float64):
    """This rank's `reduced`, after a call with other gradients; whether they are as they were; what was sent."""
    for step in (2, 3):
        parameters = a_model(shapes, seed + 3 - step, dtype)
        deal(parameters, step, dist.get_rank())
        before = [(parameter.grad, parameter.grad.clone()) for parameter in parameters]
        with habits.Unfilled(), measure.traffic() as sent:
            part = check.call(reduced, parameters)
    return part, all(p.grad is grad and torch.equal(grad, old) for p, (grad, old) in zip(parameters, before)), sent


# %%
SHAPES = [(5, 3), (3,), (2, 4), (), (4,)]  # 31 elements: no number of ranks divides them
LARGE = [(200, 100), (200,), (41, 300)]


def check_vector(found, length, what):
    """Silent where what came is a vector, as long as a shard."""
    came = list(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__
    if came != [length]:
        look = "what you return, and its length: as long as a shard, padding included"
        check.that(False, f"{what}: its shape", expected=f"[{length}]", came=str(came), look=look)


# %% check="q2-sum" points=6
def check_sum(shapes, n_ranks=2, seed=0, dtype=torch.float64):
    look = "what each rank brings, in which order, and how much padding makes the row long enough"
    found = check.on_ranks(summed, shapes, seed, dtype, world_size=n_ranks, look=look)
    row = dealt(shapes, 3, n_ranks, seed, dtype)
    for rank, (part, *_) in enumerate(found):
        what = f"{len(row)} gradients on {n_ranks} ranks: reduced on rank {rank}"
        check_vector(part, length_of(len(row), n_ranks), what)
        right = real_part(row, rank, n_ranks)
        if n_ranks > 1 and len(right) and torch.allclose(part[: len(right)] * n_ranks, right, 1e-3, 1e-5):
            look = "the contract: the sum. (The next one who needs it divides)"
        check.close(part[: len(right)], right, what, operations=4 * n_ranks, look=look)
    same, look = all(same for _, same, _ in found), "what is added up in place, and whose memory that is"
    check.that(same, "… and on all ranks every .grad is as it was", look=look)
    return [sent for *_, sent in found]


_ = check_sum(SHAPES, n_ranks=2)
_ = check_sum(SHAPES, n_ranks=3)


# %%
def unchanged(now, before):
    """The same numbers, NaN where it was NaN."""
    return now is not None and now.shape == before.shape and torch.equal(now.nan_to_num(), before.nan_to_num())


def stepped(shapes, steps, seed=0, lr=LR, decay=DECAY, dtype=torch.float64):
    """(weights after each step, the shard at the end, whether gradients and mean are as they were). NaN is padding."""
    rank, n_ranks = dist.get_rank(), dist.get_world_size()
    parameters, history, tidy = a_model(shapes, seed, dtype), [], True
    shard = check.call(begin, parameters)
    for step in range(steps):
        deal(parameters, step, rank)
        part = shard_of(dealt(shapes, step, n_ranks, seed, dtype) / n_ranks, rank, n_ranks)
        before = [each.clone() for each in (part, *(parameter.grad for parameter in parameters))]
        with habits.Unfilled():
            check.call(update, parameters, shard, part, lr, decay, may_change=(*parameters, shard))
        now = [part, *(parameter.grad for parameter in parameters)]
        tidy = tidy and all(map(unchanged, now, before))
        history.append(in_a_row(parameters))
    return history, shard, tidy


# %%
def hint(rows, expected, shapes, rank, n_ranks):
    """What the places of wrong weights say about the fault."""
    wrong = ~((rows - expected).abs() <= 1e-9 * expected.abs().max())
    vector = torch.cat([torch.full(shape, len(shape) < 2).flatten() for shape in shapes])
    length = length_of(len(vector), n_ranks)
    own = torch.arange(len(vector)) // length == rank
    if not wrong[0][~vector].any() and wrong[0][vector].any():
        return "only what is no matrix is wrong: which elements decay?"
    if not wrong[0][own].any() and wrong[0][~own].any():
        return "this rank's own elements are right, and others are not: what is gathered, from whom, and when?"
    if not wrong[0].any():
        return "the first step is right: which number has the second one, and from which weights does it start?"
    return "where a shard's pieces begin; the formula: t, and what it divides; where the new weights go"


# %% check="q2-weights" points=8
def check_weights(shapes, steps=3, n_ranks=2, **case):
    look = "padding, and where a shard's pieces begin; what each rank brings to the gathering"
    found = check.on_ranks(stepped, shapes, steps, world_size=n_ranks, look=look, **case)
    expected = torch.stack(alone(shapes, steps, n_ranks, **case)[0])
    for rank, (history, *_) in enumerate(found):
        rows, what = torch.stack(history), f"{n_ranks} ranks: rank {rank}'s {expected.shape[1]} weights, a row a step"
        look = hint(rows, expected, shapes, rank, n_ranks)
        check.close(rows, expected, what, relative=1e-9 if rows.dtype == torch.float64 else 1e-5, look=look)
    tidy, look = all(tidy for *_, tidy in found), "what you write into: .grad, or the given part"
    check.that(tidy, "… and on all ranks gradients are as they were", look=look)
    return [shard for _, shard, _ in found]


_ = check_weights(SHAPES)
_ = check_weights([(4, 4), (6,), (3, 2)], n_ranks=3, seed=1)


# %%
def weighed(shapes, steps=3):
    """Bytes that this rank keeps over some steps beside parameters and gradients; what begin and the updates sent."""
    rank, n_ranks = dist.get_rank(), dist.get_world_size()
    parameters = a_model(shapes, dtype=torch.float32)
    deal(parameters, 0, rank)
    part = shard_of(in_a_row([parameter.grad for parameter in parameters]), rank, n_ranks)
    inputs = [part, *parameters, *(parameter.grad for parameter in parameters)]
    with outside_torch() as outside, measure.memory(inputs=inputs, lines=True) as record:
        with measure.traffic() as first:
            shard = check.call(begin, parameters)
        with measure.traffic() as later:
            for _ in range(steps):
                check.call(update, parameters, shard, part, LR, DECAY, may_change=(*parameters, shard))
        kept = check.held(record, "now") + outside()
    vectors = {name: list(shard[name].shape) for name in VECTORS}
    return kept, vectors, shard["steps"], first, later


# %%
def total_of(shapes):
    return sum(torch.Size(shape).numel() for shape in shapes)


def check_weighed(shapes, n_ranks):
    """First right, then weighed."""
    _ = check_weights([(3, 3), (2,)], n_ranks=n_ranks)
    return check.on_ranks(weighed, shapes, timeout_s=120, world_size=n_ranks)


# %% check="q2-held" points=5
def check_kept(shapes, n_ranks):
    found = check_weighed(shapes, n_ranks)
    length = length_of(total_of(shapes), n_ranks)
    for rank, (kept, vectors, steps, *_) in enumerate(found):
        what = f"{total_of(shapes):,} elements on {n_ranks} ranks: what rank {rank} keeps"
        look = f"a shard has {length:,} elements: who keeps the state of the others, and what is a slice of all?"
        check.at_most(kept, 3 * 4 * length + 16384, f"{what}, bytes", look=look)
        check.at_least(kept, 3 * 4 * length, "… at least", look="three vectors in memory of their own")
        right = dict.fromkeys(VECTORS, [length])
        check.equal(vectors, right, "… the shapes in its shard", look=look)
        look = "an int, counted in the shard"
        check.equal(steps, 3, '… and "steps" after three', look=look)


check.written_with(begin, forbidden=[*FINISHED, *check.CHANNELS])
check.written_with(reduced, forbidden=[*FINISHED, *check.CHANNELS])
check.written_with(update, forbidden=[*FINISHED, *check.CHANNELS])
check_kept(LARGE, n_ranks=3)


# %% check="q2-sent" points=5
def check_step_sent(shapes, n_ranks):
    padded = 4 * n_ranks * length_of(total_of(shapes), n_ranks)
    half = predict.reduce_scatter(padded, n_ranks).bytes
    look = "an all-reduce is both halves, and so is gloo's own reduce_scatter. One of them is enough"
    check_sent(check_sum(shapes, n_ranks, dtype=torch.float32), half, half, "for the gradients", look)
    found = check_weighed(shapes, n_ranks)
    firsts, laters = ([each[place] for each in found] for place in (-2, -1))
    check_sent(firsts, 0, 0, "by begin", look="who needs what of whom, before the first step")
    check_sent(laters, 3 * half, 3 * half, "by three updates", look="what each rank brings: its own shard of weights")


check_step_sent([(100, 80), (80,), (3, 50)], n_ranks=3)


# %% check="q2-hidden" points=6
# Other models, ranks and rates; more ranks than elements; what is in the shards; called twice; a step far from the
# first one.
### BEGIN HIDDEN TESTS
def hidden_model(shapes, n_ranks):
    _ = check_sum(shapes, n_ranks, seed=2)
    shards = check_weights(shapes, 4, n_ranks, seed=2, lr=0.01, decay=0.5)
    history, *state = alone(shapes, 4, n_ranks, seed=2, lr=0.01, decay=0.5)
    for rank, shard in enumerate(shards):
        for name, row in zip(VECTORS, (history[-1], *state)):
            right = real_part(row, rank, n_ranks)
            check.close(shard[name][: len(right)], right, f"{name} of a shard", relative=1e-9)


def hidden_resumed(shapes, rows, steps, gradient):
    """On each rank: the weights after a step from a shard that `begin` has not made, on parameters of another seed."""
    rank, n_ranks = dist.get_rank(), dist.get_world_size()
    parameters = a_model(shapes, seed=9)
    deal(parameters, steps, rank)
    shard = {name: shard_of(row, rank, n_ranks) for name, row in zip(VECTORS, rows)} | {"steps": steps}
    update(parameters, shard, shard_of(gradient, rank, n_ranks), LR, DECAY)
    return in_a_row(parameters)


def hidden_resume(shapes, n_ranks, steps=2):
    history, *state = alone(shapes, steps, n_ranks)
    case = (shapes, [history[-1], *state], steps, dealt(shapes, steps, n_ranks) / n_ranks)
    expected = alone(shapes, steps + 1, n_ranks)[0][-1]
    for rank, came in enumerate(check.on_ranks(hidden_resumed, *case, world_size=n_ranks)):
        look = "what update knows of earlier steps: the four keys of the shard, and nothing else"
        check.close(came, expected, f"a loaded shard, one step on: rank {rank}'s weights", relative=1e-9, look=look)


#: other models, ranks and rates
hidden_resume(SHAPES, 2)
_ = check_weights([(3, 2), (2,), (2, 1, 2)], n_ranks=2, seed=6, dtype=torch.float32)
hidden_model([(2, 2)], 3)
hidden_model([(0, 3), (7,), (), (1, 5)], 2)
#: more ranks than elements
hidden_model([(1,)], 3)
#: other models, ranks and rates
hidden_model([(6, 2), (4,)], 1)
check_step_sent([(64, 64), (1,)], n_ranks=2)
#: what is in the shards
check_kept([(128, 100), (1,)], n_ranks=2)


def hidden_far(shapes, steps, scale):
    """A step far from the first one: gradients of zero, and small or large ones beside them; the formula is the truth."""
    decays = in_a_row([torch.full(shape, float(len(shape) > 1)) for shape in shapes])
    numbers = torch.randn(3, len(decays), generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    weights, mean, gradient = numbers[0], scale * numbers[1], scale * numbers[2]
    for row in (mean, gradient):
        row[::3] = 0
    m, v = (b * old + (1 - b) * new for b, old, new in zip(BETAS, (mean, mean**2), (gradient, gradient**2)))
    m, v = (row / (1 - b ** (steps + 1)) for row, b in zip((m, v), BETAS))
    expected = weights - LR * DECAY * decays * weights - LR * m / (v.sqrt() + EPS)
    case = (shapes, [weights, mean, mean**2], steps, gradient)
    for rank, came in enumerate(check.on_ranks(hidden_resumed, *case, world_size=2)):
        what = f"step {steps + 1}, gradients × {scale:g} and zeros among them: rank {rank}'s weights"
        check.close(came, expected, what, relative=1e-9, look="the formula: t, the epsilon, and what a 0 makes of it")


def hidden_begun(scale):
    """On each rank, twice in one process: what `begin` and `reduced` make of large numbers."""
    found = []
    for seed in (4, 5):
        parameters = [(scale * each).detach().requires_grad_() for each in a_model(SHAPES, seed)]
        deal(parameters, seed, dist.get_rank())
        for parameter in parameters:
            parameter.grad *= scale
        with habits.Unfilled():
            found.append((check.call(begin, parameters)["weights"], check.call(reduced, parameters)))
    return found


def hidden_twice(scale):
    for rank, found in enumerate(check.on_ranks(hidden_begun, scale, world_size=2)):
        for call, (seed, came) in enumerate(zip((4, 5), found)):
            right = scale * in_a_row(a_model(SHAPES, seed)), scale * dealt(SHAPES, seed, 2)
            for name, one, row in zip(("begin's weights", "reduced"), came, right):
                own, what = real_part(row, rank, 2), f"call {call + 1} in one process, numbers × {scale:g}: {name}"
                check.close(one[: len(own)], own, what, operations=4, look=habits.LEFT)


#: called twice
hidden_twice(5000.0)
#: a step far from the first one
hidden_far(SHAPES, 4999, 5000.0)
hidden_far(SHAPES, 1, 1e-8)
# Sentences of the contract, and the known-wrong answers that break them.
#= A shard is a dict | mean_in_64_bits
#= `parameters` is a list | - what is given
#= They and their gradients | gradients_lie_straight
#= `begin(parameters)` returns | begins_with_other_weights slice_of_everything
#= It sends nothing | begins_with_rank_0
#= `reduced(parameters)` returns | reduces_to_the_mean cuts_off_the_rest
#= Every `.grad` stays | adds_up_in_place
#= `update(parameters | no_bias_correction counts_from_zero
#= `gradient` is this | zeroes_the_gradient
#= Afterwards the shard | gathers_nothing
#= All that it knows | decay_noted_by_begin
#= So it goes on | starts_from_the_parameters
#= `reduced` and `update` are | all_reduces_the_gradients gathers_by_all_reduce
#= Between steps | plain_adamw_called_sharded keeps_everybodys_weights_as_bytes
#= (gloo's own | - a remark
#= `collectives.reduce_scatter` does | - a remark
#= This rank's shard: its | begins_with_other_weights
#= This rank's part of the sum | reduces_to_the_mean
#= All ranks call | - who calls
#= One AdamW step | decays_everything one_decision_for_the_shard
### END HIDDEN TESTS

# %% [markdown]
# What did a rank keep, and what did a step send? The formulas are yours; the bytes are those that lived, and those at
# the sockets.

# %%
kept, *_, updates = ranks.run(weighed, LARGE, world_size=3)[0]
compare(guess=guess_state, predicted=12 / 3, measured=int(kept) / total_of(LARGE), tolerance=0.01, name="bytes an element")

# %%
*_, sums = ranks.run(summed, LARGE, dtype=torch.float32, world_size=3)[0]
one_half = predict.reduce_scatter(4 * total_of(LARGE), 3).bytes
compare(
    predicted={"gradients, there": one_half, "weights, back": one_half},
    measured={"gradients, there": sums.sent_bytes, "weights, back": Bytes(updates.sent_bytes / 3)},
    tolerance=0.03,
)

# %% [markdown]
# Together it is what an all-reduce sends. The state has become smaller, and nobody pays for it.
#
# ## 3 · One number travels (25 points)
#
# A bad batch can throw a model out of its valley. So before the step one looks at the norm of the whole gradient, and
# if it is too large, makes *all* of the gradient smaller, by the same factor (Pascanu et al. 2013). Now each rank has
# a shard. What does it lack? Not the others' gradients. The sum of their squares.
#
# And since we touch each element anyway, let one multiplication do all that is left to do. What a rank has is not yet
# the mean but the sum over the ranks. With fp16 the loss was multiplied by a large number, too, so that small gradients
# survive (lesson 04). Both are one `scale`: the gradient that counts is `summed / scale`.
#
# Three traps. A shard's padding may hold NaN, and NaN plus anything is NaN. The square of an fp16 number above 256 is
# infinite. And if one rank has met an infinite gradient, *no* rank may make this step, or the weights part for ever. Do
# they have to ask each other?
#
# **Your contract.** `clip_(summed, elements, scale, max_norm)`
#
# - `summed`: a vector, this rank's part of the sum. Its first `elements` are real (perhaps none), padding follows.
# `scale` and `max_norm` are numbers above 0, the same on all ranks. All ranks call.
# - Returns the norm of the *whole* gradient `sum / scale`, before clipping: a tensor without dims, of float32 (of
# float64 where `summed` is that), the same bits on every rank. The squares are added up in that dtype.
# - Afterwards the real elements of `summed` are the gradient, times `max_norm / norm` where the norm is larger than
# `max_norm` (without an epsilon: norms may be as small as that). In place; padding may be anything.
# - If the norm is infinite or NaN, they stay as they were.
# - Each rank sends one number, in one call of a collective.
#
# **Graded:** norms and what is left of the gradient (10 points), what was sent (6), and hidden (9) other ranks, dtypes
# and shards.


# %% answer="q3"
def clip_(summed, elements, scale, max_norm):
    """Make `summed` the clipped gradient, in place; returns the norm before, of all ranks. All ranks call."""
    ### BEGIN SOLUTION
    real = summed[:elements]
    wide = torch.promote_types(summed.dtype, torch.float32)
    squares = real.to(wide).square().sum()
    dist.all_reduce(squares)
    norm = squares.sqrt() / scale
    if norm.isfinite():
        real.mul_((max_norm / norm).clamp(max=1.0) / scale)
    return norm
    ### END SOLUTION


# %% [markdown]
# Three numbers, two ranks: the sum is $[6, 8, 0]$, of two ranks, so the mean is $[3, 4, 0]$. Its norm is 5, and it
# shall be 1.


# %%
def three_four_five():
    part = shard_of(torch.tensor([6.0, 8.0, 0.0]), dist.get_rank(), 2)
    norm = clip_(part, elements_of(3, dist.get_rank(), 2), scale=2, max_norm=1.0)
    return norm.item(), part.tolist()


ranks.run(three_four_five, world_size=2)


# %%
def gradient_row(total, seed, dtype, large=None):
    """A row of numbers that differ in size along it, so that ranks differ; `large` stands in its second half."""
    row = torch.randn(total, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    row *= torch.linspace(0.5, 4, total, dtype=torch.float64)
    if large is not None:
        row[total * 3 // 4] = large
    return row.to(dtype)


def clipped(total, scale, max_norm, seed=0, dtype=torch.float64, large=None):
    rank, n_ranks = dist.get_rank(), dist.get_world_size()
    for row in (gradient_row(total, seed + 50, dtype), gradient_row(total, seed, dtype, large)):  # others first
        part, elements = shard_of(row, rank, n_ranks), elements_of(total, rank, n_ranks)
        with habits.Unfilled(), measure.traffic() as sent:
            norm = check.call(clip_, part, elements, scale, max_norm, may_change="values")
    return norm, part[:elements], sent


# %%
def why(norm, right, row, scale, own):
    """What a wrong norm looks like."""
    if not isinstance(norm, torch.Tensor) or norm.dim():
        return "what you return: a tensor without dims"
    if not right.isfinite():
        return "the gradient has inf or NaN in it, and so has its norm. Which rank does not know?"
    if not norm.isfinite():
        return "what lies behind the real elements; and what the square of an fp16 number can be"
    if scale > 1 and torch.allclose(norm.double(), right.double() * scale, 1e-4):
        return "this is the norm of the sum. The gradient that counts is sum / scale"
    if torch.allclose(norm.double() * scale, own.double().norm(), 1e-4):
        return "this is the norm of the rank's own shard"
    return "which elements are squared, in which dtype; what is added up over the ranks, and what comes after the sum"


# %%
def check_norms(norms, row, scale, what):
    """The norm that each rank returns."""
    wide = torch.float64 if row.dtype == torch.float64 else torch.float32
    right, relative = (row.double().norm() / scale).to(wide), 1e-5 if wide == torch.float32 else 1e-12
    for rank, norm in enumerate(norms):
        look = why(norm, right, row, scale, real_part(row, rank, len(norms)))
        check.close(norm, right, f"{what} on rank {rank} of {len(norms)}", relative=relative, look=look)
    same, look = all(torch.equal(norm, norms[0]) for norm in norms), "what each rank does after the sum"
    check.that(same or not right.isfinite(), "… the same bits on all ranks", came=str(norms), look=look)
    return float(right)


# %% check="q3-values" points=10
def check_clip(total, scale, max_norm, n_ranks=2, seed=0, dtype=torch.float64, large=None):
    row, look = gradient_row(total, seed, dtype, large), "who comes to the sum: a rank that has only padding, too"
    found = check.on_ranks(clipped, total, scale, max_norm, seed, dtype, large, world_size=n_ranks, look=look)
    norm = check_norms([norm for norm, *_ in found], row, scale, f"{total} × {dtype}, scale {scale:g}: the norm")
    factor, look = 1.0, "what a factor of 0 or NaN makes of them. Every rank knows the norm"
    if norm < float("inf"):  # NaN is not, either
        factor = min(1.0, max_norm / norm) / scale
        look = "one factor for all ranks, scale in it. A norm below the limit leaves the scale to be divided by"
    for rank, (_, part, _) in enumerate(found):
        right = (real_part(row, rank, n_ranks).double() * factor).to(dtype)
        near = max(1e-5, 4 * torch.finfo(dtype).eps)
        check.close(part, right, f"… and rank {rank}'s part, times {factor:.3g}", relative=near, look=look)
    return [sent for *_, sent in found]


_ = check_clip(21, 2, 1.0)
_ = check_clip(21, 2, 1e6)
_ = check_clip(10, 1024, 0.1, dtype=torch.float16, large=2000.0)
_ = check_clip(9, 2, 1.0, large=float("inf"))
_ = check_clip(4, 3, 1.0, n_ranks=3)


# %% check="q3-sent" points=6
def check_clip_sent(total, n_ranks, dtype=torch.float32):
    accounts = check_clip(total, n_ranks, 1.0, n_ranks, dtype=dtype)
    calls = max(each.total_messages for each in accounts)
    check.at_most(calls, 1, "… calls that send", look="what a rank lacks: one number says it")
    look = "who needs the gradients of the others? (The sum of their squares is one number)"
    check_sent(accounts, 8 * (n_ranks - 1), 2, f"for the norm of {total:,} elements", look)


check.written_with(clip_, forbidden=[*FINISHED, *check.CHANNELS])
check_clip_sent(9001, n_ranks=2)

# %% check="q3-hidden" points=9
# Other ranks, dtypes and sizes; a rank without elements; NaN; every second place of memory; zeros.
### BEGIN HIDDEN TESTS
#: other ranks, dtypes and sizes
_ = check_clip(3000, 3 * 2**16, 0.01, n_ranks=3, seed=1, dtype=torch.float16, large=60000.0)
_ = check_clip(4001, 3, 1.0, n_ranks=3, seed=2, dtype=torch.bfloat16)
_ = check_clip(4001, 3, 1e9, n_ranks=2, seed=2, dtype=torch.bfloat16)
#: a rank without elements
_ = check_clip(2, 1, 0.5, n_ranks=3, seed=3)
#: NaN
_ = check_clip(5, 2, 0.5, n_ranks=3, seed=3, dtype=torch.float32, large=float("nan"))
#: other ranks, dtypes and sizes
_ = check_clip(7, 0.25, 3.0, n_ranks=1, seed=4, dtype=torch.float32)
_ = check_clip(7, 2**20, 1e-6, n_ranks=2, seed=5)  # beside such norms a 1e-6 below the line is no rounding error
check_clip_sent(5000, n_ranks=3, dtype=torch.float64)


def hidden_zeros():
    part = shard_of(torch.zeros(5), dist.get_rank(), 2)
    return clip_(part, elements_of(5, dist.get_rank(), 2), 2, 1.0), part[: elements_of(5, dist.get_rank(), 2)]


def hidden_clipped():
    """On each rank, twice: large numbers in every second place of memory."""
    found, elements = [], elements_of(9, dist.get_rank(), 2)
    for seed in (6, 7):
        part = habits.across(shard_of(5000 * gradient_row(9, seed, torch.float64), dist.get_rank(), 2))
        with habits.Unfilled():
            norm = check.call(clip_, part, elements, 2, 1.0, may_change="values")
        found.append((norm, part[:elements].clone()))
    return found


def hidden_places():
    for rank, found in enumerate(check.on_ranks(hidden_clipped, world_size=2)):
        for seed, (norm, part) in zip((6, 7), found):
            row, what = 5000 * gradient_row(9, seed, torch.float64), "large numbers in every second place of memory"
            check.close(norm, row.norm() / 2, f"{what}: the norm", operations=50)
            check.close(part, real_part(row / row.norm(), rank, 2), f"{what}: rank {rank}'s part", operations=50)


#: every second place of memory
hidden_places()
#: zeros
for hidden_norm, hidden_part in check.on_ranks(hidden_zeros, world_size=2):
    check.equal(hidden_norm, torch.zeros(()), "the norm of zeros")
    check.equal(hidden_part, torch.zeros(len(hidden_part)), "zeros, clipped")
# Sentences of the contract, and the known-wrong answers that break them.
#= `summed`: a vector | - what is given
#= Its first `elements` | padding_in_the_norm
#= `scale` and `max_norm` | - what is given
#= All ranks call | nothing_to_say
#= Returns the norm | norm_of_the_sum local_norm
#= The squares are added | squares_in_sixteen_bits
#= Afterwards the real | always_scales_to_the_limit epsilon_below_the_line scale_left_in_the_gradient
#= In place; padding | clips_a_copy
#= If the norm is infinite | scales_by_infinity
#= Each rank sends one | gathers_the_gradients
#= Make `summed` the | each_rank_decides_for_itself
### END HIDDEN TESTS

# %% [markdown]
# ## 4 · Written by three, read by two (30 points)
#
# At night a GPU fails. Three ranks had saved their shards; two are left to go on. The old shards end at a third and at
# two thirds of the row, the new ones at its half.
#
# One could read it all on one rank, join it and cut it again. That rank would need room for everything, and ZeRO is for
# models for which nobody has it. So each rank takes from each old file what belongs to it, and lets the file go
# before it opens the next one. Which elements of which file? You have answered that: *old shards end to end are a row,
# too.* `pieces` does not ask what it cuts.
#
# Two traps lie in Python and PyTorch. `torch.save` writes the whole memory under a tensor, also where the tensor is a
# small slice of it. And a name that holds a file's content holds it until it is given something else: while
# the next file is being read, both are there. (`del` helps.)
#
# **Your contract.** `folder` is a `Path` that every rank sees; the shards are dicts as in question 2, and `total` is
# the number of elements of the model.
#
# - `save(folder, shard, total)`: each rank writes one file, `"0_of_3.pt"` if it is rank 0 of 3. In it are the real
# elements of the three vectors, the number of steps, and 8 KiB of anything else at most. The folder is there, and it
# is empty. The shard stays as it is, its vectors may be slices of something larger. All ranks call.
# - `load(folder, total)` returns this rank's shard of the saved model, cut for the ranks that are there *now*, in memory
# of its own: a slice of what was read would keep all of it. The dtypes are the saved ones, the numbers are exact, the
# padding may be anything. All ranks call; afterwards each rank can go on with question 2.
# - `load` opens only files that hold something of the new shard. (Where nothing does, a rank opens any one file, for
# the steps.) It holds at most two times its shard, and one old file.
# - `torch.save` alone writes files, and `torch.load` reads them. Nothing but a barrier is sent.
#
# **Graded:** what comes back (10 points), bytes on the disk (6), bytes held and files opened (6), and hidden (8) other
# ranks, sizes and dtypes.


# %% answer="q4"
def save(folder, shard, total):
    """This rank's file. All ranks call."""
    ### BEGIN SOLUTION
    rank, n_ranks = dist.get_rank(), dist.get_world_size()
    elements = elements_of(total, rank, n_ranks)
    own = {name: shard[name][:elements].clone() for name in VECTORS}
    torch.save(own | {"steps": shard["steps"]}, folder / f"{rank}_of_{n_ranks}.pt")
    ### END SOLUTION


# %% answer="q4-load"
def load(folder, total):
    """This rank's shard, from the files of as many ranks as have saved. All ranks call."""
    ### BEGIN SOLUTION
    rank, n_ranks = dist.get_rank(), dist.get_world_size()
    old_ranks = len(list(folder.glob("*_of_*.pt")))
    lengths = [elements_of(total, old, old_ranks) for old in range(old_ranks)]
    shard, place = {}, 0
    for old, first, last in pieces(lengths, rank, n_ranks) or [(0, 0, 0)]:
        saved = torch.load(folder / f"{old}_of_{old_ranks}.pt")
        for name in VECTORS:
            if name not in shard:
                shard[name] = saved[name].new_zeros(length_of(total, n_ranks))
            shard[name][place : place + last - first] = saved[name][first:last]
        shard["steps"] = saved["steps"]
        place += last - first
        del saved
    return shard
    ### END SOLUTION


# %%
def whole_state(total, seed=0, dtype=torch.float32):
    """Three rows of numbers: what all shards together hold."""
    rows = torch.randn(3, total, generator=torch.Generator().manual_seed(seed), dtype=dtype)
    return dict(zip(VECTORS, rows.unbind()))


def saved_by(folder, total, steps=7, seed=0, dtype=torch.float32):
    """On each rank: after another shard, one of slices of larger memory, saved; as it was before? and what was sent."""
    rank, n_ranks = dist.get_rank(), dist.get_world_size()
    shard = {"steps": steps}
    for name, row in whole_state(total, seed, dtype).items():
        parts = [shard_of(row, each, n_ranks) for each in range(n_ranks)]
        shard[name] = torch.stack(parts, 1)[:, rank] if name == "mean" else torch.cat(parts).chunk(n_ranks)[rank]
    before = {name: shard[name].clone() for name in VECTORS}
    with tempfile.TemporaryDirectory() as elsewhere, habits.Unfilled():
        other = {name: 5000 * shard[name] for name in VECTORS} | {"steps": steps + 1}
        check.call(save, Path(elsewhere), other, total)
    with habits.Unfilled(), measure.traffic() as sent:
        check.call(save, folder, shard, total)
    return shard["steps"] == steps and all(unchanged(shard[name], before[name]) for name in VECTORS), sent


# %%
def overlap(total, rank, n_ranks, old, old_ranks):
    """Whether an old shard holds something of a new one."""
    begin, end = (place * length_of(total, n_ranks) for place in (rank, rank + 1))
    first = old * length_of(total, old_ranks)
    return begin < first + elements_of(total, old, old_ranks) and first < min(end, total)


def spoiled(folder, total, old_ranks):
    """A folder for this rank, in which the files are garbage that hold nothing of its shard."""
    own = folder / f"seen_by_{dist.get_rank()}"
    own.mkdir()
    for old in range(old_ranks):
        name = f"{old}_of_{old_ranks}.pt"
        (own / name).write_text("This file holds nothing of your shard.")
        if overlap(total, dist.get_rank(), dist.get_world_size(), old, old_ranks):
            shutil.copy(folder / name, own / name)
    return own


# %%
def memory_under(shard):
    """Bytes of the memory in which a shard's tensors lie, each piece of memory once."""
    every = shard.values() if isinstance(shard, dict) else []
    tensors = [each for each in every if isinstance(each, torch.Tensor)]
    return sum({each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in tensors}.values())


def loaded_by(folder, total, old_ranks, spoil=False):
    """On each rank: (its shard, most bytes held, bytes under it, what was sent). `spoil`: other files are garbage."""
    own = spoiled(folder, total, old_ranks) if spoil else folder
    with outside_torch() as outside, measure.memory() as held, measure.traffic() as sent:
        try:
            shard = check.call(load, own, total)
        except pickle.UnpicklingError as problem:
            raise ValueError("load opens a file that holds nothing of this rank's shard") from problem
        left = int(outside())
    return shard, int(held.peak.total - held.before.total) + left, memory_under(shard), sent


# %% [markdown]
# Seven elements, three steps: two ranks save, three load. The row of weights comes back.


# %%
def there_and_back(total, old_ranks, new_ranks):
    with tempfile.TemporaryDirectory() as folder:
        ranks.run(saved_by, Path(folder), total, steps=3, world_size=old_ranks)
        print({path.name: f"{path.stat().st_size:,} bytes" for path in sorted(Path(folder).iterdir())})
        shards = [shard for shard, *_ in ranks.run(loaded_by, Path(folder), total, old_ranks, world_size=new_ranks)]
    return [[round(number, 2) for number in shard["weights"].tolist()] for shard in shards]


print("before:", [round(number, 2) for number in whole_state(7)["weights"].tolist()])
print("after: ", there_and_back(7, old_ranks=2, new_ranks=3))


# %%
def check_saved(folder, total, old_ranks, **case):
    """All ranks save: (bytes of each file, what was sent)."""
    found = check.on_ranks(saved_by, folder, total, world_size=old_ranks, **case)
    right = [f"{rank}_of_{old_ranks}.pt" for rank in range(old_ranks)]
    what = f"{total:,} elements, {old_ranks} ranks save: the files"
    names = sorted(path.name for path in folder.iterdir())
    check.equal(names, sorted(right), what, look="one for each rank, its name, and nothing else")
    check.that(all(same for same, _ in found), "… and every shard is as it was", look="what you write into")
    return [(folder / name).stat().st_size for name in right], [sent for _, sent in found]


# %%
def check_shard(shard, rows, steps, rank, n_ranks, look):
    """A shard that was loaded, against its part of the rows that were saved."""
    what, n = f"… what rank {rank} of {n_ranks} has loaded", elements_of(len(rows["mean"]), rank, n_ranks)
    if not (isinstance(shard, dict) and {*VECTORS, "steps"} <= shard.keys()):
        check.that(False, f"{what}: a shard as in question 2", came=str(shard)[:200], look="load returns a dict")
    for name in VECTORS:
        check_vector(shard[name], length_of(len(rows[name]), n_ranks), f"{what}: {name}")
    check.equal(shard["steps"], steps, f'{what}: "steps"', look="AdamW's t. Is it saved, and does every rank read it?")
    got = {name: shard[name][:n] for name in VECTORS}
    check.equal(got, {name: real_part(row, rank, n_ranks) for name, row in rows.items()}, what, look=look)


# %% check="q4-values" points=10
def check_resharded(total, old_ranks, new_ranks, spoil=False, steps=7, seed=0, dtype=torch.float32):
    """(bytes of the files, what save sent, what load left on each rank)"""
    look = "which elements of which old file are this rank's: old shards end to end are a row, too"
    if spoil:
        look = "which files this rank opens: those that hold nothing of its shard are garbage here"
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        sizes, sent = check_saved(folder, total, old_ranks, steps=steps, seed=seed, dtype=dtype)
        args = (loaded_by, folder, total, old_ranks, spoil)
        found = check.on_ranks(*args, timeout_s=120, world_size=new_ranks, look=look)
    for rank, (shard, *_) in enumerate(found):
        check_shard(shard, whole_state(total, seed, dtype), steps, rank, new_ranks, look)
    return sizes, sent, found


_ = check_resharded(100, old_ranks=3, new_ranks=2)
_ = check_resharded(100, old_ranks=2, new_ranks=3)
_ = check_resharded(100, old_ranks=2, new_ranks=2)


# %% check="q4-disk" points=6
def check_disk(total, old_ranks, new_ranks):
    sizes, sent, found = check_resharded(total, old_ranks, new_ranks)
    for rank, size in enumerate(sizes):
        own = 12 * elements_of(total, rank, old_ranks)
        look = "whose shards are in it; what lies in memory under the vectors that you save: they may be slices"
        check.at_most(size, own + 8192, f"… bytes of rank {rank}'s file, of which {own:,} are its shard's", look=look)
        check.at_least(size, own, "… at least", look="whether all three vectors are there")
    check_sent(sent, 0, 0, "by save", look="each rank has what it writes")
    check_sent([each[-1] for each in found], 0, 0, "by load", look="each rank can read what it needs for itself")


check.written_with(save, forbidden=[*FINISHED, *ELSEWHERE])
check_disk(20_000, old_ranks=3, new_ranks=2)


# %% check="q4-held" points=6
def check_held(total, old_ranks, new_ranks):
    sizes, _, found = check_resharded(total, old_ranks, new_ranks, spoil=True)
    own, file = 12 * length_of(total, new_ranks), max(sizes)
    look = "which old files are in memory at once, and which name still holds one while the next is read"
    for rank, (_, held, under, _) in enumerate(found):
        what = f"… bytes that rank {rank} holds at once; its shard has {own:,}, an old file {file:,}"
        check.at_most(held, 2 * own + file + 16384, what, look=look)
        slices = "what the shard that load returns is a slice of"
        check.at_most(under, own + 16384, f"… bytes that lie under rank {rank}'s shard afterwards", look=slices)


check.written_with(load, forbidden=[*FINISHED, *ELSEWHERE])
check_held(30_000, old_ranks=2, new_ranks=3)

# %% check="q4-hidden" points=8
# Other ranks, sizes and dtypes; shards that are all padding.
### BEGIN HIDDEN TESTS
#: other ranks, sizes and dtypes
_ = check_resharded(101, 3, 1, steps=0, seed=1, dtype=torch.float64)
_ = check_resharded(101, 1, 3, steps=12_345, seed=2, dtype=torch.bfloat16)
#: shards that are all padding
_ = check_resharded(4, 3, 2, steps=2, seed=3)
_ = check_resharded(2, 2, 3, steps=3, seed=4)
_ = check_resharded(1, 3, 3, steps=4, seed=5)
_ = check_resharded(4, 1, 3, steps=6, seed=7)
#: other ranks, sizes and dtypes
_ = check_resharded(44, 11, 2, steps=5, seed=6)  # as a text, "10_of_11" comes before "2_of_11"
check_disk(12_001, old_ranks=2, new_ranks=2)
check_held(30_001, old_ranks=3, new_ranks=3)


def hidden_stage(old, new, step, steps):
    """On each rank: the weights after some steps from the shards in `old`, if there is one; saved in `new`."""
    parameters = a_model(SHAPES, seed=9 if old else 0)
    shard = load(old, total_of(SHAPES)) if old else begin(parameters)
    for each in range(step, step + steps):
        gradient = shard_of(dealt(SHAPES, each, 2) / 2, dist.get_rank(), dist.get_world_size())
        update(parameters, shard, gradient, LR, DECAY)
    save(new, shard, total_of(SHAPES))
    return in_a_row(parameters)


class HiddenShards:
    """A model that goes on with other ranks each time, by its files alone."""

    def __init__(self):
        self.folder, self.steps, self.rows = None, 0, []

    def go_on(self, n_ranks, steps):
        new = Path(tempfile.mkdtemp(dir=hidden_place))
        self.rows = check.on_ranks(hidden_stage, self.folder, new, self.steps, steps, world_size=n_ranks)
        self.folder, self.steps = new, self.steps + steps

    def weights(self):
        return [round(number, 9) for number in self.rows[-1].tolist()]


class HiddenRow(HiddenShards):
    def go_on(self, n_ranks, steps):
        self.steps += steps
        self.rows = [alone(SHAPES, self.steps, 2)[0][-1]] * n_ranks


def hidden_line(chance, names):
    others = [n_ranks for n_ranks in (1, 2, 3) if n_ranks != len(names["model"].rows)]
    return f"model.go_on({chance.choice(others)}, steps={chance.randint(1, 2)})"


def hidden_weights(names):
    return ["model.weights()"] if names["model"].rows else []


hidden_names = [{"Model": kind} for kind in (HiddenShards, HiddenRow)]
hidden_look, hidden_begin = "what a shard that was loaded knows, and what of it is saved again", "model = Model()"
with tempfile.TemporaryDirectory() as hidden_place:
    args = (hidden_begin, *hidden_names, hidden_line, hidden_weights)
    random_programs("shards", *args, count=3, length=5, look=hidden_look)
# Sentences of the contract, and the known-wrong answers that break them.
#= `folder` is a | - what is given
#= `save(folder | rank_0_writes
#= In it are the real | weights_alone drops_the_step_count saves_what_it_is_a_slice_of
#= The folder is there | - what is given
#= The shard stays | cuts_the_callers_shard
#= All ranks call. | - who calls
#= `load(folder, total)` returns | slice_of_an_old_file as_many_ranks_as_before
#= The dtypes are | always_float32
#= All ranks call; afterwards | remembers_the_ranks_of_before
#= `load` opens only | opens_every_file
#= (Where nothing does | nothing_for_nobody
#= It holds at most | two_files_at_once whole_on_every_rank
#= `torch.save` alone | reads_files_as_bytes
#= Nothing but a barrier | rank_0_reads_for_all
#= This rank's file | every_rank_writes_everything
#= This rank's shard, from | own_number_own_file
### END HIDDEN TESTS

# %% [markdown]
# ## What to keep
#
# A shard is a piece of a row. Whoever knows where the pieces lie can step on one, find the norm of all from one number
# each, and cut the row anew for tomorrow's ranks. No rank ever sees the whole.
#
# The last guess is about a real one. Llama 3 405B, weights, mean and square in fp32; a GPU with 80 GB.

# %%
guess_gpus = ask("How many H100s must one rank have, to hold the whole checkpoint?")

# %%
state = Bytes(12 * LLAMA3_405B.parameters)
in_a_file = Bytes(state // 16_384)
print(f"{state:.2TB} in all: {Ratio(state / H100_80GB.memory):.0f} H100s full; you said {guess_gpus.said}")
print(f"16,384 ranks: {in_a_file:.2GB} for each of them, in its own file")

# %% [markdown]
# It was trained on up to 16,384 GPUs, and its authors say that a checkpoint has between 1 MB and 4 GB from each of them
# (Llama 3 paper, §3.3.1).
#
# **Change one thing.** In `clip_`, let each rank clip by the norm of its own shard. Which elements shrink too much now,
# and which too little? In which direction does the step go? Decide first, then look at `q3-values`. And: would a loss
# curve show it?
