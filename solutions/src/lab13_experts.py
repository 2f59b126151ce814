# %% [markdown]
# # Lab 13 · A token travels once
#
# **The question:** two experts for each token, and they live elsewhere. Who gets a place? What has to travel? And what
# makes the ranks equally busy?
#
# | | |
# |---|---|
# | Time | about 90 minutes |
# | Builds on | lesson 13: router, capacity, dispatch and combine; lesson 08: `f_bar` |
# | You write | three functions, none longer than 20 lines |
# | A GPU | changes nothing here |
#
# | question | | points |
# |---|---|---|
# | 1 | The surest go first | 25 |
# | 2 | One row for each rank | 45 |
# | 3 | Nobody waits for an expert | 30 |
#
# **The rules.** You may use every collective of `torch.distributed`, all of torch, and lesson 08's operators,
# `operators.f` and `operators.f_bar`. What is finished is out of bounds in your answers: the library's layers of
# experts with their dispatch, and `torch.distributed.nn`, whose collectives bring their own backward pass. (Where ranks
# send unevenly, gloo has `all_to_all_single` alone.)
# A function leaves what it is given as it was, gradients, modes and hooks among it, and draws no random numbers. The
# checks look.
#
# A layer that sends every token to everybody gives the right numbers as well. So the checks count the bytes that leave
# each rank, by the calls that it makes and at the sockets of the operating system, and the FLOPs of its experts. If
# your ranks wait for each other, you need not wait with them: within seconds a report says who waits for whom, and in
# which line.
#
# Checks that you see here give you points and tell you what is wrong. More run when the lab is graded, on other ranks
# and other sizes. Bytes count only for answers that are right. Cells that show your answer at work fail until there is
# one. That costs nothing.
#
# No question needs another one.

# %%
import math

import torch
import torch.distributed as dist
import torch.nn.functional as F

from course_kit import measure, ranks
from course_kit.checks import check
from course_kit.checks.habits import Case, Unfilled, as_in_training
from course_kit.compare import compare
from course_kit.notebook import ask
from course_kit.units import Bytes
from course_lib import predict
from course_lib.collectives import operators
from course_lib.model.zoo import DEEPSEEK_V3

# %%
FINISHED = ["ExpertMLP", "ParallelExperts", "find_places", "plan_dispatch", "DispatchPlan", "load_balancing_loss"]
FINISHED += ["uneven_all_to_all", "course_lib.parallel.experts", "course_lib.parallel.experts", "model.experts"]
FINISHED += ["torch.distributed.nn", "dist.nn", "_functional_collectives"]
FINISHED += check.CHANNELS  # between ranks only torch.distributed carries something


def expert(rows, up, down):
    """What one expert says to each row [rows, width]: up [width, hidden], down [hidden, width]."""
    return F.gelu(rows @ up) @ down


# %% [markdown]
# ## 1 · The surest go first (25 points)
#
# (In all questions: your functions are called as training calls them, many times in one process, in float32 or float64.
# Tensors may lie across in memory, leaves may have a gradient already, and the gradient that comes in stays as it is.)
#
# A rank has some tokens, and each token wants the two experts to which its router gives the largest probabilities: its
# *first* and its *second choice*. Each expert has a fixed number of places for the tokens of this rank, its *capacity*.
# What is too much is dropped.
#
# Who is dropped? Lesson 13's layer gives places by a token's number, so the end of the text pays for its beginning.
# Here the sure ones go first (a relative of Riquelme et al. 2021, §4). In each queue stand all first choices, and
# among them those with the larger probability before. Behind them stand all second choices, again the larger
# probability before.
#
# Then the weights. Lesson 13 divides the two probabilities by their sum before anybody is dropped. Here it happens
# *afterwards*, as in DeepSpeed: a token that has lost one of its experts listens to the other one with weight 1.
#
# The places of this rank's tokens are counted on this rank alone. No rank has to ask another one.
#
# **Your contract.** `route(probabilities, capacity)`
#
# - `probabilities`: `[tokens, experts]`, each row adds up to 1. Two experts or more; perhaps no token. There are no
# ties. They come out of a softmax that wants its gradient.
# - `capacity`: how many tokens each expert keeps at most, an int, 0 or more.
# - Returns the *gates* `[tokens, experts]`, of the same dtype: for each choice that has a place, its probability
# divided by the sum of those of the same token that have one. Everything else is 0, all of the row if a token has no
# place.
# - The gradient is that of these quotients; who has a place is no function that one could derive. Where the gates of a
# token are all 0, so is its gradient.
#
# **Graded:** gates by hand (9 points), gradients (6), and random tokens (10).


# %% answer="q1"
def route(probabilities, capacity):
    """The gates [tokens, experts]: two choices at most, the surest first, as far as there are places."""
    ### BEGIN SOLUTION
    best = probabilities.topk(2).indices
    kept, free = torch.zeros_like(probabilities, dtype=torch.bool), capacity
    for choice in (0, 1):
        wants = torch.zeros_like(kept).scatter(1, best[:, choice, None], True)
        place = probabilities.masked_fill(~wants, -1).argsort(0, descending=True).argsort(0)
        kept = kept | (wants & (place < free))
        free = free - wants.sum(0)
    weights = probabilities.masked_fill(~kept, 0)
    return weights / weights.sum(1, keepdim=True).where(kept.any(1, keepdim=True), 1)
    ### END SOLUTION


# %% [markdown]
# Four tokens and three experts. With two places everybody's first choice is heard, and experts 1 and 2 have one place
# left each. Who gets them?

# %%
FOUR = torch.tensor([[0.6, 0.3, 0.1], [0.7, 0.1, 0.2], [0.2, 0.5, 0.3], [0.25, 0.35, 0.4]], dtype=torch.float64)
for places in (1, 2):
    gates = route(FOUR.clone(), places)
    print(f"{places} for each expert:", [[round(gate, 3) for gate in row] for row in gates.tolist()])


# %%
def hint(gates, right, capacity):
    """What wrong gates say about the fault."""
    if not (isinstance(gates, torch.Tensor) and gates.shape == right.shape):
        return "the contract: a tensor [tokens, experts]"
    if gates.isnan().any():
        return "0 / 0: a token that has no place at all"
    kept = (gates != 0).sum(0)
    if (kept > capacity).any():
        return f"expert {int(kept.argmax())} keeps {int(kept.max())} tokens: first and second choices share its places"
    if not torch.equal(gates != 0, right != 0):
        token, number = ((gates != 0) != (right != 0)).nonzero()[0].tolist()
        who = f"token {token} and expert {number}: it should {'not ' * (right[token, number] == 0)}have a place"
        return f"{who}. Who stands before whom in that queue?"
    return "by which sum a weight is divided: that of the same token's choices which have a place"


# %% check="q1-values" points=9
def check_gates(rows, capacity, right, dtype=torch.float64):
    """The gates, right up to rounding."""
    given, right = torch.as_tensor(rows, dtype=dtype).clone(), torch.as_tensor(right, dtype=dtype)
    gates = check.call(route, given, capacity)
    what = f"{len(given)} tokens, {given.shape[1]} experts, capacity {capacity}: the gates"
    check.close(gates, right, what, operations=8, look=hint(gates, right, capacity))
    return gates


_ = check_gates(FOUR, 1, [[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]])
_ = check_gates(FOUR, 2, [[1, 0, 0], [1, 0, 0], [0, 5 / 8, 3 / 8], [0, 7 / 15, 8 / 15]])
_ = check_gates(FOUR, 4, [[2 / 3, 1 / 3, 0], [7 / 9, 0, 2 / 9], [0, 5 / 8, 3 / 8], [0, 7 / 15, 8 / 15]])
_ = check_gates([[0.45, 0.44, 0.11], [0.3, 0.38, 0.32]], 1, [[1, 0, 0], [0, 38 / 70, 32 / 70]])
_ = check_gates([[0.6, 0.3, 0.1], [0.7, 0.2, 0.1]], 1, [[0, 1, 0], [1, 0, 0]])


# %% check="q1-gradients" points=6
def check_slope(capacity, by_hand, right):
    """Four tokens: their gates, then the gradient of Σ (number of the expert) · (its gate) by the probabilities."""
    _, leaf = check_gates(FOUR, capacity, by_hand), FOUR.clone().requires_grad_()
    gates = check.call(route, leaf * 1, capacity)
    where = "whether the gates still hang on the probabilities: .detach(), .data and new tensors cut the thread"
    check.that(gates.requires_grad, "the gates want a gradient", look=where)
    (gates @ torch.arange(leaf.shape[1], dtype=leaf.dtype)).sum().backward()
    look = "the quotient: its upper and its lower half both hang on the probabilities"
    if leaf.grad.isnan().any():
        look = "0 / 0 in a row that no expert has kept: what is put away after the division has a gradient all the same"
    good, what = (leaf.grad - right).abs().max() <= 1e-9, f"capacity {capacity}: the gradient of the probabilities"
    check.that(bool(good), what, expected=str(right.tolist()), came=str(leaf.grad.tolist()), look=look)


slopes = torch.zeros(4, 3, dtype=torch.float64)
for token, two in {2: [0.5, 0.3], 3: [0.35, 0.4]}.items():  # they have two places, at experts 1 and 2
    slopes[token, 1:] = torch.tensor([-two[1], two[0]], dtype=torch.float64) / sum(two) ** 2
check_slope(2, [[1, 0, 0], [1, 0, 0], [0, 5 / 8, 3 / 8], [0, 7 / 15, 8 / 15]], slopes)
check_slope(1, [[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]], torch.zeros_like(slopes))

# %% check="q1-hidden" points=10
# Random tokens, other dtypes, small probabilities, no places, no tokens; and the gradients of all of them; called as training does.
### BEGIN HIDDEN TESTS
#= `probabilities`: `[tokens | - what is given
#= Two experts or more | three_experts_at_least fails_without_tokens
#= There are no ties | - what is given
#= They come out of | router_without_gradient
#= `capacity`: how many | places_of_all_experts places_for_each_choice
#= Returns the *gates* | not_renormalised renormalised_before_the_drops gates_in_32_bits
#= Everything else is | zero_by_zero third_choice
#= The gradient is that | lower_half_is_a_constant
#= Where the gates of | nan_in_the_gradient
#= The gates [tokens | by_number second_choices_push_in order_of_the_first_choice
def hidden_route(probabilities, capacity):
    """The queues, person by person."""
    rows, experts = probabilities.tolist(), probabilities.shape[1]
    best = [sorted(range(experts), key=lambda number: -row[number])[:2] for row in rows]
    taken, kept = [0] * experts, torch.zeros_like(probabilities)
    for choice in (0, 1):
        for token in sorted(range(len(rows)), key=lambda token: -rows[token][best[token][choice]]):
            number = best[token][choice]
            kept[token, number] = float(taken[number] < capacity)
            taken[number] += 1
    weights = probabilities * kept
    return weights / (weights.sum(1, keepdim=True) + (kept.sum(1, keepdim=True) == 0))


def hidden_case(tokens, experts, capacity, seed, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(tokens, experts, generator=generator, dtype=dtype) + torch.linspace(1, 0, experts, dtype=dtype)
    leaves = [logits.softmax(1).requires_grad_() for _ in range(2)]
    right = hidden_route(leaves[0], capacity)
    gates = check.call(route, leaves[1] * 1, capacity)
    what = f"{tokens} random tokens, {experts} experts, capacity {capacity}: the gates"
    check.close(gates, right.detach(), what, operations=16, look=hint(gates, right, capacity))
    upstream = torch.randn(right.shape, generator=generator, dtype=dtype)
    right.backward(upstream)
    gates.backward(upstream)
    check.close(leaves[1].grad, leaves[0].grad, "… and the gradient", operations=1000)


#: random tokens
for hidden_seed in range(12):
    hidden_case(7 + 5 * hidden_seed, 2 + hidden_seed, 1 + hidden_seed, hidden_seed)
#: other dtypes
hidden_case(50, 8, 8, 20, torch.float32)
#: random tokens
hidden_case(40, 2, 100, 21)
#: no places
_ = check_gates(torch.rand(5, 4), 0, torch.zeros(5, 4), dtype=torch.float32)
#: small probabilities
_ = check_gates([[1 - 2e-9, 1.5e-9, 5e-10], [1 - 4e-9, 3e-9, 1e-9]], 1, [[1, 0, 0], [0, 1, 0]])
#: no tokens
_ = check_gates(torch.empty(0, 3), 2, torch.empty(0, 3))


def route_case(seed, dtype):
    generator = torch.Generator().manual_seed(seed)
    leaves = [torch.randn(9, 4, generator=generator, dtype=dtype).softmax(1).requires_grad_()]
    right, upstream = hidden_route(leaves[0], 3), torch.randn(9, 4, generator=generator, dtype=dtype)
    right.backward(upstream)
    return Case((leaves[0].detach().requires_grad_(), 3), right.detach(), {0: leaves[0].grad}, upstream)


#: called as training does
hidden_ways = [{"seed": seed, "dtype": (torch.float64, torch.float32)[seed // 2]} for seed in range(4)]
as_in_training(route, route_case, hidden_ways, operations=1000)
### END HIDDEN TESTS

# %% [markdown]
# ## 2 · One row for each rank (45 points)
#
# Each rank has tokens of its own and some of the experts: with 8 experts on 2 ranks, rank 0 has experts 0 to 3. A kept
# choice is a trip: the token's row goes to the expert's rank, and what the expert says comes home.
#
# Lesson 13 sends a row for each choice. But if both experts of a token live on one rank, the same row goes there twice,
# and two answers come back only to be added up. So send it *once*, and let that rank add. It needs to know for whom
# the row is, and with which weights. Both can travel in the row: behind the token's features put its gates for that
# rank's experts, of which 0 means *not you*. (DeepSeek-V3 sends a token once to each node and lets the node hand it on:
# DeepSeek-AI 2024, §3.2.2.)
#
# How many rows go where, only the sender knows. So first each rank tells each other rank one number. Then the rows
# travel, with `dist.all_to_all_single(output, input, output_split_sizes, input_split_sizes)`: the sizes are lists of
# ints, rows to or from each rank. Nothing is padded. A rank may have no row for another one; it comes to the
# call all the same.
#
# And the way back through the layer? A trip changes no number. So the gradient of what arrived is, at home, the
# gradient of what left: lesson 13's `Travel`. It stands in the cell of your answer, for you to use or to change.
#
# **Your contract.**
#
# - `travel(rows, sends, receives)` is there: the first `sends[0]` of the `rows` go to rank 0, the next `sends[1]` to
# rank 1, and so on. It returns what arrived, `receives[r]` rows from rank r, in rank order, and has a backward pass.
# - `ask_experts(x, gates, up, down)` returns `[tokens, width]`: for each of this rank's tokens the sum of what the
# experts say to it, each times its gate. Zeros for a token without gates.
# - `x`: `[tokens, width]`, this rank's tokens. Other ranks may have more, or fewer, or none.
# - `gates`: `[tokens, experts]`, of all experts, 0 where a token is not for this expert. There may be any number in a
# row, not only two, and some may be negative.
# - `up` `[own, width, hidden]` and `down` `[own, hidden, width]`: this rank's experts. Each rank has equally many; rank
# r has the r-th part of them all. `expert(rows, up[i], down[i])` is what one says.
# - All are leaves of one dtype that want gradients. Afterwards these are those of one process that has everything, for
# the sum of all ranks' losses. (Of gates that are 0 the gradient may be anything.) All ranks call.
# - On its way there a row has at most `width + own + 4` numbers, and `width` on its way home; its gradient has as many.
# Besides that 16 bytes for each rank. For each other rank at most six calls in the forward pass, and four in the
# backward pass. (An `all_to_all_single` is one call for each other rank.)
# - An expert computes the rows that are for it, and no others.
#
# **Graded:** values (12 points), gradients (12), bytes and FLOPs (11), and other ranks and sizes (10).

# %%
guess_rows = ask("8 experts, 2 ranks, both choices kept, all pairs alike: rows that leave a rank for each token?")


# %% answer="q2"
class Travel(torch.autograd.Function):
    """Rows go to other ranks, gradients come home."""

    @staticmethod
    def forward(ctx, rows, sends, receives):
        """What arrived. All ranks call."""
        ctx.sends, ctx.receives = sends, receives
        arrived = rows.new_empty(sum(receives), rows.shape[1])
        dist.all_to_all_single(arrived, rows.contiguous(), receives, sends)
        return arrived

    @staticmethod
    def backward(ctx, grad):
        """The gradient of the rows that left, from `grad`, that of the rows that arrived; None for the rest."""
        home = grad.new_empty(sum(ctx.sends), grad.shape[1])
        dist.all_to_all_single(home, grad.contiguous(), ctx.sends, ctx.receives)
        return home, None, None


def travel(rows, sends, receives):
    """Send rows[: sends[0]] to rank 0, the next ones to rank 1 …; what arrives lies in rank order. All ranks call."""
    return Travel.apply(rows, sends, receives)


def ask_experts(x, gates, up, down):
    """For each of this rank's tokens, the weighted sum of what its experts say, wherever they are. All ranks call."""
    ### BEGIN SOLUTION
    n_ranks, own = dist.get_world_size(), len(up)
    weights = gates.unflatten(1, (n_ranks, own))
    owner, token = (weights != 0).any(2).T.nonzero(as_tuple=True)  # rank by rank, and in it by token
    leaving = owner.bincount(minlength=n_ranks)
    arriving = torch.empty_like(leaving)
    dist.all_to_all_single(arriving, leaving)
    sends, receives = leaving.tolist(), arriving.tolist()
    arrived = travel(torch.cat([x[token], weights[token, owner]], 1), sends, receives)
    rows, given = arrived.split([x.shape[1], own], 1)
    said = torch.zeros_like(rows)
    for number in range(own):
        mine = given[:, number].nonzero().flatten()
        answer = expert(rows[mine], up[number], down[number])
        said = said.index_add(0, mine, given[mine, number, None] * answer)
    return torch.zeros_like(x).index_add(0, token, travel(said, receives, sends))
    ### END SOLUTION


# %% [markdown]
# `problem` makes tokens, gates and experts of all ranks together, the same on every rank; `part` is one rank's share.
# Some choices are dropped, and the first experts are in demand. `alone` is the dense reference: one process, in which
# every expert computes every token.


# %%
def odd_ones(gates):
    """The first token's gates cancel, the second one has a single, very small one."""
    gates[:2] = 0
    gates[0, 0], gates[0, 1], gates[1, 0] = 0.5, -0.5, 1e-9
    return gates


# %%
def problem(tokens, experts, width, hidden, choices=2, seed=0, dtype=torch.float64, scale=1, odd=False):
    """x, gates, up, down, and the gradient that comes in, of all ranks; `tokens`: how many each rank has."""
    generator, n = torch.Generator().manual_seed(seed), sum(tokens)
    sizes = (n, width), (experts, width, hidden), (experts, hidden, width), (n, width)
    x, up, down, upstream = (torch.randn(size, generator=generator, dtype=dtype) for size in sizes)
    scores = torch.rand(n, experts, generator=generator, dtype=dtype) + 0.4 / torch.arange(1, experts + 1)
    best = torch.zeros_like(scores).scatter(1, scores.topk(choices).indices, 1)
    weights = scores.to(dtype) * best * (torch.rand(n, experts, generator=generator) < 0.8)
    signs = 1 - 2 * (torch.rand(n, experts, generator=generator) < 0.2).to(dtype)
    gates = signs * (weights / weights.sum(1, keepdim=True).clamp(min=1e-9)).to(dtype)
    return scale * x, odd_ones(gates) if odd else gates, up, down, scale * upstream


def part(whole, tokens, rank):
    """A rank's share of a problem: leaves, and the gradient that comes in."""
    x, gates, upstream = (whole[place].split(tokens)[rank].clone() for place in (0, 1, 4))
    up, down = (each.chunk(len(tokens))[rank].clone() for each in whole[2:4])
    return [leaf.requires_grad_() for leaf in (x, gates, up, down)], upstream


# %%
def alone(tokens, *case, **more):
    x, gates, up, down, upstream = problem(tokens, *case, **more)
    leaves = [leaf.requires_grad_() for leaf in (x, gates, up, down)]
    said = torch.stack([expert(x, *weights) for weights in zip(up, down)])
    result = torch.einsum("te,etd->td", gates, said)
    result.backward(upstream)
    return result.detach(), gates.detach(), [leaf.grad for leaf in leaves]


# %% [markdown]
# Three tokens on rank 0 and one on rank 1, two experts on each, and what comes out, beside the truth.


# %%
def small(tokens=(3, 1)):
    leaves, _ = part(problem(tokens, 4, 2, 3), tokens, dist.get_rank())
    return [[round(number, 3) for number in row] for row in ask_experts(*leaves).tolist()]


print("rank by rank:", ranks.run(small, world_size=2))
print("one process: ", [[round(number, 3) for number in row] for row in alone((3, 1), 4, 2, 3)[0].tolist()])


# %%
def asked(tokens, *case, **more):
    """On each rank: what the experts say, four gradients, (sent there, sent back, FLOPs)."""
    leaves, upstream = part(problem(tokens, *case, **more), tokens, dist.get_rank())
    with Unfilled():
        with measure.traffic() as forward, measure.MatrixProducts() as work:
            result = check.call(ask_experts, *leaves)
        with measure.traffic() as backward:
            if isinstance(result, torch.Tensor) and result.requires_grad:
                result.backward(upstream)
    said = result.detach() if isinstance(result, torch.Tensor) else result
    return said, [leaf.grad for leaf in leaves], (forward, backward, work.flops)


# %%
def told(came, right, gates, n_ranks):
    """What wrong sums say about the fault."""
    if not (isinstance(came, torch.Tensor) and came.shape == right.shape):
        return "the contract: a tensor [tokens, width], one row for each of this rank's tokens"
    of_ranks = (gates != 0).unflatten(1, (n_ranks, -1)).sum(2)
    nobody, wrong = of_ranks.sum(1) == 0, (came - right).abs().amax(1) > 1e-3
    if came.isnan().any():
        return "memory that nobody has filled (new_empty) is not zero"
    if (nobody & wrong).any():
        return f"token {int((nobody & wrong).nonzero()[0])} has no expert: zeros (the stream around the layer has it)"
    if torch.allclose(came.sum(0), right.sum(0), atol=1e-3):
        return "all rows are there, at other tokens: rows come home rank by rank. Which token's is each?"
    if wrong.any() and ((of_ranks[wrong] > 0).sum(1) > 1).all():
        return "only tokens that ask several ranks are wrong: all that comes home for them is added up"
    if wrong.any() and (of_ranks[wrong].amax(1) > 1).all():
        return "only tokens that ask several experts of one rank are wrong: each expert's answer has its own gate"
    return "for whom a row is where it arrives: a rank counts its own experts from 0; and which weight it has"


# %% check="q2-values" points=12
def check_sums(tokens, *case, **more):
    look = "the sizes of the two trips, for each rank; who comes to which call, and in which order"
    found = check.on_ranks(asked, tokens, *case, world_size=len(tokens), look=look, **more)
    result, gates, _ = alone(tokens, *case, **more)
    for rank, (right, own_gates) in enumerate(zip(result.split(tokens), gates.split(tokens))):
        what = f"{tokens} tokens, {case[0]} experts: what rank {rank}'s tokens hear"
        look = told(found[rank][0], right, own_gates, len(tokens))
        check.close(found[rank][0], right, what, operations=200, look=look)
    return found


_ = check_sums((5, 5), 4, 3, 6)
_ = check_sums((2, 7), 8, 4, 5, seed=1)


# %%
def check_gradient(grad, right, what, look):
    where = "whether the result hangs on the leaf: .detach(), new tensors and dist's collectives cut the thread"
    check.that(grad is not None, f"{what}: there is one", look=where)
    if grad.shape == right.shape and right.any():
        times = float((grad * right).sum() / right.square().sum())
        if abs(times - 1) > 1e-3 and torch.allclose(grad, times * right, atol=1e-9):
            check.that(False, what, came=f"{times:.4g} times the right one", look=look)
    check.close(grad, right, what, relative=1e-4, look=look)


# %% check="q2-gradients" points=12
def check_sums_gradients(tokens, *case, **more):
    """Values first, then what autograd left in the four leaves of each rank."""
    found, n_ranks = check_sums(tokens, *case, **more), len(tokens)
    _, gates, (x, weights, up, down) = alone(tokens, *case, **more)
    kept = gates != 0
    rights = zip(x.split(tokens), weights.where(kept, 0).split(tokens), up.chunk(n_ranks), down.chunk(n_ranks))
    home = "the way home: in backward a rank sends to each rank what it had received from it"
    whole = "backward of the trip home: who sends what to whom? An expert's gradient is then a sum; nobody divides it"
    looks = {"x": home, "the gates": "the weights travel in the row. " + home, "up": whole, "down": whole}
    for rank, parts in enumerate(rights):
        grads, own = list(found[rank][1]), kept.split(tokens)[rank]
        grads[1] = None if grads[1] is None else grads[1].where(own, 0)
        for (name, look), grad, right in zip(looks.items(), grads, parts):
            check_gradient(grad, right, f"{tokens} tokens: rank {rank}'s gradient of {name}", look)
    return [account for *_, account in found]


_ = check_sums_gradients((5, 5), 4, 3, 6)
_ = check_sums_gradients((2, 7), 8, 4, 5, seed=1)


# %%
def trips(gates, tokens):
    """How many rows must go from each rank to each rank, and how many (row, expert) each rank computes."""
    kept = (gates != 0).unflatten(1, (len(tokens), -1))
    rows = torch.stack([each.any(2).sum(0) for each in kept.split(tokens)])
    return rows, kept.sum((0, 2)).tolist()


def check_calls(account, most, calls, rank, what, look="what travels twice, as padding, or to whom it is no use"):
    n_bytes = int(account.total_bytes)
    check.at_most(n_bytes, most, f"bytes that rank {rank} sends {what}, by its calls", look=look)
    check.at_most(account.total_messages, calls, "… and calls", look="what could travel together")


def check_carried(accounts, least):
    """Forward, then backward: all that was sent, at the sockets."""
    for each in list(zip(*accounts))[:2]:
        check.carried(each, least)


# %% check="q2-bytes" points=11
def check_trips(tokens, experts, width, hidden, **more):
    accounts = check_sums_gradients(tokens, experts, width, hidden, **more)
    _, gates, _ = alone(tokens, experts, width, hidden, **more)
    rows, pairs = trips(gates, tokens)
    size, wide = gates.itemsize, width + experts // len(tokens) + 4
    away = rows - rows.diag().diag()
    for rank, (out, back) in enumerate(zip(away.sum(1).tolist(), away.sum(0).tolist())):
        forward, backward, work = accounts[rank]
        there = f"forward, for {out} rows of its own tokens and answers to {back}"
        others = len(tokens) - 1
        check_calls(forward, size * (wide * out + width * back) + 16 * len(tokens), 6 * others, rank, there)
        check_calls(backward, size * (width * out + wide * back), 4 * others, rank, "backward")
        look = "which rows each expert computes: those whose gate for it is not 0"
        check.at_most(int(work), 4 * width * hidden * pairs[rank], f"… FLOPs of rank {rank}'s experts", look=look)
    check_carried(accounts, 2 * size * width * int(away.sum()))


for answer in (Travel.forward, Travel.backward, travel, ask_experts):
    check.written_with(answer, forbidden=FINISHED)
check_trips((40, 70), 12, 96, 8, dtype=torch.float32)

# %% check="q2-hidden" points=10
# Other ranks, sizes, dtypes and choices; ranks without tokens, experts without rows; a second batch.
### BEGIN HIDDEN TESTS
#= `travel(rows, sends, receives)` is | - what is given
#= It returns what arrived | thread_cut
#= `ask_experts(x, gates, up, down)` returns | last_answer_counts weights_forgotten
#= Zeros for a token | dropped_tokens_hear_themselves dropped_tokens_hear_garbage
#= `x`: `[tokens | - what is given
#= Other ranks may have | stays_away counts_in_a_byte
#= `gates`: `[tokens | one_weight_for_a_rank
#= There may be any | two_experts_at_most negative_gates_forgotten gates_that_cancel small_gates_forgotten
#= `up` `[own | experts_dealt_like_cards
#= Each rank has equally | experts_dealt_like_cards
#= `expert(rows | - the lab's own function
#= All are leaves | gates_without_gradient
#= Afterwards these are | experts_average backward_goes_forward
#= (Of gates that are | - a permission
#= All ranks call | stays_away_without_rows
#= On its way there | all_gates_in_each_row pads_to_the_largest row_for_each_choice backward_goes_to_everybody
#= Besides that 16 | - a permission
#= For each other rank | trip_for_each_expert
#= (An `all_to_all_single` is | - how calls are counted
#= An expert computes | experts_compute_everything
#= Rows go to other | backward_stays_at_home
#= Send rows[: sends[0]] | home_in_another_order
#= For each of this | last_answer_counts
#= What arrived | - given, as it stands
#= The gradient of the rows | backward_goes_forward
#= None for the rest | - given, as it stands
#: ranks without tokens
_ = check_sums_gradients((3, 0, 6), 3, 5, 4, seed=2)
#: other ranks, sizes, dtypes and choices
_ = check_sums_gradients((400, 3), 6, 2, 7, choices=4, seed=3, odd=True)
#: ranks without tokens
_ = check_sums_gradients((1, 0), 8, 3, 2, seed=4)
_ = check_sums_gradients((3, 0), 4, 3, 5, choices=1, seed=8)
#: other ranks, sizes, dtypes and choices
_ = check_sums_gradients((6,), 4, 3, 3, seed=5)
check_trips((50, 30, 20), 9, 128, 4, seed=6)


def hidden_in_a_row(tokens, *case):
    """One batch after the other: as many rows, which go elsewhere."""
    (x, gates, up, down), _ = part(problem(tokens, *case), tokens, dist.get_rank())
    return [ask_experts(x, each, up, down).detach() for each in (gates, gates.flip(1))]


def experts_case(tokens, **case):
    rank, n_ranks = dist.get_rank(), dist.get_world_size()
    result, _, (x, _, up, down) = alone(tokens, 4, 3, 5, **case)
    leaves, upstream = part(problem(tokens, 4, 3, 5, **case), tokens, rank)
    gradients = {0: x.split(tokens)[rank], 2: up.chunk(n_ranks)[rank], 3: down.chunk(n_ranks)[rank]}
    return Case(leaves, result.split(tokens)[rank], gradients, upstream)


#: a second batch
hidden_ways = [{"tokens": (3, 4), "seed": seed, "dtype": (torch.float64, torch.float32)[seed // 2]} for seed in range(4)]
hidden_ways[1]["scale"] = 5000
_ = check.on_ranks(as_in_training, ask_experts, experts_case, hidden_ways, operations=1000, world_size=2)
hidden_came = check.on_ranks(hidden_in_a_row, (3, 4), 4, 5, 6, world_size=2, look="what the second call still knows")
hidden_x, hidden_gates, hidden_up, hidden_down, _ = problem((3, 4), 4, 5, 6)
hidden_said = torch.stack([expert(hidden_x, *weights) for weights in zip(hidden_up, hidden_down)])
for hidden_place, hidden_each in enumerate((hidden_gates, hidden_gates.flip(1))):
    hidden_right = torch.einsum("te,etd->td", hidden_each, hidden_said)
    hidden_both = torch.cat([came[hidden_place] for came in hidden_came])
    check.close(hidden_both, hidden_right, f"batch {hidden_place + 1}: the sums", operations=200)
### END HIDDEN TESTS

# %% [markdown]
# Now the guess. Two choices out of 8 experts, all pairs equally likely: a token stays at home only if both of its
# experts are there.


# %%
def even(tokens=2000, experts=8, width=64):
    """This rank's tokens with two random experts each, all kept: bytes at its sockets for each number of a row."""
    generator = torch.Generator().manual_seed(dist.get_rank())
    best = torch.rand(tokens, experts, generator=generator).topk(2).indices
    gates = torch.zeros(tokens, experts).scatter(1, best, 0.5)
    up, down = torch.zeros(experts // 2, width, 2), torch.zeros(experts // 2, 2, width)
    with torch.no_grad(), measure.traffic() as sent:
        ask_experts(torch.ones(tokens, width), gates, up, down)
    return sent.sent_bytes / (4 * (2 * width + experts // 2)) / tokens


both_at_home = math.comb(4, 2) / math.comb(8, 2)
rows_measured = sum(ranks.run(even, world_size=2)) / 2
compare(guess=guess_rows, predicted=1 - both_at_home, measured=rows_measured, tolerance=0.05, name="rows for a token")

# %% [markdown]
# With a row for each choice it would have been 1.00: two rows for each token, of which half leave. The more of its experts share a rank, the more
# a token saves.
#
# ## 3 · Nobody waits for an expert (30 points)
#
# A router likes whom it knows. Experts that are asked learn, experts that are not asked do not, and soon two of them
# do all the work. A loss holds against that: lesson 13's makes *experts* equally busy. But a step ends when the
# slowest *rank* ends. So here a rank's experts are one, and may share their work as they like (DeepSeek-V2's
# device-level loss, 2024, §2.2.3).
#
# $$L = N \sum_{r=1}^{N} f_r\, P_r$$
#
# $N$ ranks; $f_r$ is the share of all choices that are for rank r's experts (each token has two, dropped or not), and
# $P_r$ is the probability for rank r's experts together, mean over all tokens. *All* means those of all ranks: a batch
# may be as one-sided as it likes on one rank, if it is balanced as a whole. In balance the loss is 1.
#
# A count has no gradient: move a probability a little, and the same two experts win. So the gradient goes through
# $P_r$ alone, and pulls it down most where $f_r$ is large.
#
# The second loss keeps logits small, so that 16 bits do not round a choice away (Zoph et al. 2022, eq. 5). It is the
# mean over all tokens of $\left(\log \sum_j e^{z_j}\right)^2$.
#
# **Your contract.** `router_losses(logits)`
#
# - `logits`: `[tokens, experts]`, this rank's, float32 or float64. Other ranks may have more tokens, or fewer, or none.
# They may be as large as 1,000. A token's choices are its two largest logits, of which no two are equal. All ranks have
# equally many experts, and rank r has the r-th part of them all, as in question 2.
# - Returns the two losses, `(balance, z)`: tensors without dims of the logits' dtype, the same on every rank.
# - Every rank calls `.backward()` on them (or on a sum of them, the same on every rank). Its logits then have the
# gradient that they would have in one process with all ranks' logits. All ranks call.
# - It sends at most what an all-reduce of `2 * experts + 4` numbers of 8 bytes sends, in at most four calls, and
# nothing in the backward pass.
#
# **Graded:** values (8 points), gradients (8), what it is for: bytes, and a router that learns balance (7), and other
# ranks and sizes (7).


# %% answer="q3"
def router_losses(logits):
    """(balance between the ranks, z-loss) over all ranks' tokens. All ranks call."""
    ### BEGIN SOLUTION
    n_ranks = dist.get_world_size()
    wanted = torch.zeros_like(logits).scatter(1, logits.topk(2).indices, 1.0)
    demand, trust = (each.sum(0).view(n_ranks, -1).sum(1) for each in (wanted, logits.softmax(1)))
    squares = logits.logsumexp(1).square().sum()
    count = logits.new_tensor(float(len(logits)))
    row = operators.f_bar(torch.cat([demand, trust, torch.stack([squares, count])]))
    demand, trust, (squares, count) = row.split([n_ranks, n_ranks, 2])
    return n_ranks * (demand / (2 * count)) @ (trust / count), squares / count
    ### END SOLUTION


# %% [markdown]
# Two ranks with two experts each. Both tokens want rank 0's experts, and are not quite sure.


# %%
def one_sided():
    balance, z = router_losses(torch.tensor([[2.0, 1.0, 0.0, -1.0]]) + dist.get_rank())
    return round(balance.item(), 4), round(z.item(), 4)


ranks.run(one_sided, world_size=2)


# %%
def logits_of(tokens, experts, seed=0, dtype=torch.float64, shift=0.0, spread=2):
    """Logits of each rank, which has its favourites."""
    generator = torch.Generator().manual_seed(seed)
    every = [shift + spread * torch.randn(n, experts, generator=generator, dtype=dtype) for n in tokens]
    return [logits + torch.linspace(1 + rank, 0, experts, dtype=dtype) for rank, logits in enumerate(every)]


def in_one_process(every, n_ranks):
    """Balance and z-loss of all logits, with the shares as numbers; for the checks."""
    logits = torch.cat(every)
    winners = logits.topk(2).indices // (logits.shape[1] // n_ranks)
    shares = [float((winners == rank).double().mean()) for rank in range(n_ranks)]
    parts = logits.softmax(1).chunk(n_ranks, dim=1)
    balance = n_ranks * sum(share * own.sum(1).mean() for share, own in zip(shares, parts))
    return balance, logits.logsumexp(1).square().mean()


# %%
def mixed_up(every, n_ranks, means):
    """Two slips more: f and P as means of the ranks' own, and f by first choices alone."""
    some = [each for each in every if len(each)]
    wanted = [each.topk(2).indices // (each.shape[1] // n_ranks) for each in some]
    f = [each.flatten().bincount(minlength=n_ranks) / each.numel() for each in wanted]
    P = [each.float().softmax(1).mean(0).view(n_ranks, -1).sum(1) for each in some]
    first = torch.cat(wanted)[:, 0].bincount(minlength=n_ranks) / sum(map(len, wanted))
    whole = torch.cat(some).float().softmax(1).mean(0).view(n_ranks, -1).sum(1)
    yield n_ranks * (sum(f) / len(f)) @ (sum(P) / len(P)), means
    yield n_ranks * first @ whole, "f counts both choices of each token"


# %%
def known_slips(every, n_ranks):
    """What some slips come to, and where to look then."""
    (balance, _), experts = in_one_process(every, n_ranks), every[0].shape[1]
    own = [in_one_process([each], n_ranks) for each in every if len(each)]
    winners = torch.cat(every).topk(2).indices // (experts // n_ranks)
    shares = winners.flatten().bincount(minlength=n_ranks) / winners.numel()
    means = "a mean of the ranks' means: a rank with few tokens weighs as much as one with many. Sums first"
    return [
        *mixed_up(every, n_ranks, means),
        (balance / n_ranks, "the factor N"),
        (2 * balance, "each token makes two choices, and f is a share of all choices"),
        (n_ranks * shares.square().sum(), "P is a mean of probabilities, and no second count: a count has no gradient"),
        (in_one_process(every, experts)[0], "so balanced are the experts; here all experts of a rank are one"),
        *[(sum(each[place] for each in own) / len(own), means) for place in (0, 1)],
        *[(value, "that is one rank's tokens alone: the means are over all ranks'") for each in own for value in each],
    ]


# %%
def lossy(tokens, experts, factors=(1.0, 1.0), **case):
    """On each rank: both losses, the gradient of their sum with factors, (sent forward, sent backward)."""
    logits = logits_of(tokens, experts, **case)[dist.get_rank()].requires_grad_()
    with measure.traffic() as forward:
        losses = check.call(router_losses, logits)
    fits = isinstance(losses, tuple | list) and len(losses) == 2
    fits = fits and all(isinstance(each, torch.Tensor) and each.shape == () for each in losses)
    if not fits:
        check.that(False, "router_losses returns two tensors without dims", came=str(losses)[:200], look="the contract")
    with measure.traffic() as backward:
        total = factors[0] * losses[0] + factors[1] * losses[1]
        if total.requires_grad:
            total.backward()
    return [each.detach() for each in losses], logits.grad, (forward, backward)


# %% check="q3-values" points=8
def check_losses(tokens, experts, **case):
    look = "who comes to which call; what each rank brings to it"
    found = check.on_ranks(lossy, tokens, experts, world_size=len(tokens), look=look, **case)
    every = logits_of(tokens, experts, **{key: value for key, value in case.items() if key != "factors"})
    rights, slips = in_one_process(every, len(tokens)), known_slips(every, len(tokens))
    looks = "f and P: both choices, all tokens, all ranks; a rank's experts together", "the mean over all tokens"
    for name, look, place in zip(("balance", "z-loss"), looks, (0, 1)):
        for rank, (losses, *_) in enumerate(found):
            what = f"{tokens} tokens, {experts} experts: the {name} of rank {rank}"
            near = [slip for value, slip in slips if abs(float(losses[place]) - float(value)) < 1e-6]
            check.close(losses[place], rights[place], what, relative=1e-5, look=near[0] if near else look)
    return found


_ = check_losses((4, 4), 4, seed=7)
_ = check_losses((9, 3), 6, seed=3)


# %% check="q3-gradients" points=8
def check_loss_gradients(tokens, experts, factors=(1.0, 1.0), **case):
    found = check_losses(tokens, experts, factors=factors, **case)
    every = [logits.requires_grad_() for logits in logits_of(tokens, experts, **case)]
    balance, z = in_one_process(every, len(tokens))
    (factors[0] * balance + factors[1] * z).backward()
    look = "which collective autograd knows, and which not; a sum over ranks: who gets its gradient?"
    for rank, (logits, (_, grad, _)) in enumerate(zip(every, found)):
        what = f"{tokens} tokens: rank {rank}'s gradient of {factors[0]:g} · balance + {factors[1]:g} · z"
        check_gradient(grad, logits.grad, what, look)
    return [account for *_, account in found]


for factors in ((1.0, 0.0), (0.0, 1.0), (2.0, 0.5)):
    _ = check_loss_gradients((9, 3), 6, factors, seed=3)


# %%
def busiest(logits):
    """Choices for the busiest rank over the mean, of all ranks' tokens."""
    n_ranks = dist.get_world_size()
    winners = logits.detach().topk(2).indices // (logits.shape[1] // n_ranks)
    counts = winners.flatten().bincount(minlength=n_ranks).double()
    dist.all_reduce(counts)
    return float(counts.max() / counts.mean())


# %%
def learned(steps, tokens=64, experts=8, width=6, seed=0):
    """`busiest` before and after so many steps of a router that begins one-sided."""
    generator = torch.Generator().manual_seed(100 * seed + dist.get_rank())
    x = torch.cat([torch.randn(tokens, width, generator=generator), torch.ones(tokens, 1)], 1)
    router = torch.randn(width + 1, experts, generator=torch.Generator().manual_seed(seed)) * 0.3
    router[-1, : experts // dist.get_world_size()] += 3
    router.requires_grad_()
    before = busiest(x @ router)
    for _ in range(steps):
        router.grad = None
        balance, z = router_losses(x @ router)
        (balance + 0.001 * z).backward()
        dist.all_reduce(router.grad)
        router.data -= router.grad
    return before, busiest(x @ router)


# %% check="q3-balance" points=7
def check_balance(n_ranks, steps=80, **case):
    """First right, then cheap, then useful."""
    tokens, experts = (9, 3, 5)[:n_ranks], 4 * n_ranks
    forward, backward = zip(*check_loss_gradients(tokens, experts, seed=2))
    most = predict.all_reduce(8 * (2 * experts + 4), n_ranks).bytes
    for rank, (there, back) in enumerate(zip(forward, backward)):
        look = "what a rank has to know of the others' tokens: some sums"
        check_calls(there, int(most) + 4, 4, rank, "forward", look)
        check.equal(back.total_messages, 0, "… and calls backward", look="each rank has what it needs")
    check.carried(forward, 1)
    before, after = check.on_ranks(learned, steps, experts=experts, world_size=n_ranks, **case)[0]
    what = f"{n_ranks} ranks, choices for the busiest over the mean, {before:.2f} before and after {steps} steps"
    check.at_most(after, 1.15, what, look="what of the balance loss has a gradient, and its sign")


check.written_with(router_losses, forbidden=FINISHED)
check_balance(2)

# %% check="q3-hidden" points=7
# Other ranks, sizes and dtypes; a rank without tokens; called as training does.
### BEGIN HIDDEN TESTS
#= `logits`: `[tokens | narrow_inside choices_in_sixteen_bits
#= Other ranks may have | mean_of_nothing
#= They may be as large | exponentials_of_large_logits choices_of_the_softmax
#= A token's choices | first_choices_alone shares_add_up_to_two counts_in_a_byte
#= All ranks have equally | experts_dealt_like_cards
#= Returns the two losses | own_tokens_alone losses_in_64_bits
#= Every rank calls | gradient_for_each_rank
#= Its logits then have | router_without_gradient trust_of_the_chosen
#= All ranks call | - the others would wait: a report says so
#= It sends at most | gathers_the_logits
#= (balance between the ranks | balance_of_experts own_z_loss
#: a rank without tokens
_ = check_loss_gradients((3, 0, 8), 6, (1.0, 0.25), seed=3)
#: other ranks, sizes and dtypes
_ = check_loss_gradients((5,), 4, (1.0, 1.0), seed=4)
_ = check_loss_gradients((2, 40), 2, (0.0, 3.0), seed=5, shift=1000.0)
_ = check_loss_gradients((300, 20), 8, (1.0, 0.5), seed=7, shift=1000.0)
_ = check_loss_gradients((6, 5), 4, (1.0, 0.001), seed=8, spread=150, dtype=torch.float32)
_ = check_loss_gradients((1, 6, 2), 3, (3.0, -1.0), seed=6, dtype=torch.float32)
check_balance(3, seed=1)


def hidden_both(logits):
    balance, z = router_losses(logits)
    return 2 * balance + 0.5 * z


def losses_case(seed, dtype, shift=0.0):
    every = [logits.requires_grad_() for logits in logits_of((4, 3), 6, seed=seed, dtype=dtype, shift=shift)]
    balance, z = in_one_process(every, 2)
    (right := 2 * balance + 0.5 * z).backward()
    own = every[dist.get_rank()]
    return Case((own.detach().requires_grad_(),), right.detach(), {0: own.grad})


#: called as training does
hidden_ways = [{"shift": shift, "dtype": torch.float64} for shift in (1100.0, -1100.0)]
hidden_ways += [{"shift": 0.0, "dtype": dtype} for dtype in (torch.float64, torch.float32, torch.float32)]
hidden_ways = [{"seed": seed, **way} for seed, way in enumerate(hidden_ways)]
_ = check.on_ranks(as_in_training, hidden_both, losses_case, hidden_ways, operations=1000, world_size=2)
### END HIDDEN TESTS

# %% [markdown]
# A router that begins one-sided, before and after it has learned balance from your loss and from nothing else:


# %%
for steps in (0, 80):
    before, after = ranks.run(learned, steps, world_size=2)[0]
    print(f"after {steps:2} steps the busiest of 2 ranks has {after:.2f} times the mean of the choices")

# %% [markdown]
# ## What to keep
#
# A router decides, and three bills follow. Who has no place is not heard. Who lives elsewhere must be sent for, and a
# row that goes to a rank once pays for all experts there. And everybody waits for the busiest rank, so balance is
# counted where one waits.
#
# The last guess is about a real layer. DeepSeek-V3 gives a token to 8 of 256 experts, which lie on 8 nodes in training
# (DeepSeek-AI 2024, §3.2), 32 on each.

# %%
guess_nodes = ask("If all choices were alike: to how many of the 8 nodes would a token go?")

# %%
nodes, width, layers = 8, DEEPSEEK_V3.width, DEEPSEEK_V3.expert_layers
experts, k = DEEPSEEK_V3.experts, DEEPSEEK_V3.top_k
met = nodes * (1 - math.comb(experts - experts // nodes, k) / math.comb(experts, k))
print(f"you said {guess_nodes.said}; it would be {met:.2f}, its own among them")
for way, rows in {"a row for each choice": k, "a row for each node": met, "at most 4 nodes, as it is": 4}.items():
    sent = Bytes(round(rows * (nodes - 1) / nodes * width * 3 * layers))
    print(f"{way:>25}: {sent:.2MB} for a token between nodes, forward")

# %% [markdown]
# (A byte for each number on the way there and two on the way home; §3.3 and §3.2.2.) Its router may choose from four
# nodes at most (§2.1.2). Where the rule of your question 2 saves bytes by chance, this one saves them by decree.
#
# **Change one thing.** Which experts live together is a choice, too. If experts 0 and 4 are often chosen by the same
# token, where should they live? Count in a run of yours which pairs occur, swap two experts between the ranks, and
# look at `rows_measured`. Decide first which pair to swap.
