# %% [markdown]
# # Lab 09 · Faster than 1F1B, in less memory
#
# **The question:** 1F1B's bubble and its memory seem to be given. Can one schedule beat both? And what does it take to
# carry it out?
#
# | | |
# |---|---|
# | Time | about 90 minutes |
# | Builds on | lesson 09: schedules as data, F, B and W, the bubble, what is in flight |
# | You write | a schedule on paper, a planner of about 30 lines, and three functions of a few lines each |
# | A GPU | changes nothing here |
#
# | question | | points |
# |---|---|---|
# | 1 | By hand | 25 |
# | 2 | A planner | 40 |
# | 3 | Three moves | 35 |
#
# **The rules.** You may use all of torch, and of `course_lib.pipeline.schedule` everything but its `zero_bubble`,
# `zb_h2`, `zb_v`, `fill_gaps` and `ORDERS`, which lists them. (They would seldom help: on every rank they have at least as
# many micro-batches in flight as 1F1B's first rank, and they know no cap for each rank and no uneven costs.)
# A function leaves what it is given as it was, gradients, modes and hooks among it, and draws no random numbers. Where
# it may change something, its contract says so. The checks look.
#
# A schedule is data, so it can be checked before it runs. `problems(schedule)` names every illegal move and why it is
# one; `simulate` says how long the schedule takes. Use both as often as you like: the checks do nothing else. Then your
# schedules run on real ranks, with real backward passes, and must give the gradients of one process.
#
# Checks that you see here give you points and tell you what is wrong. More run when the lab is graded, on other
# stages, caps and costs. Cells that show your answer at work fail until there is one. That costs nothing.
#
# No question needs another one.

# %%
import random

import torch
import torch.distributed as dist
from torch import nn

from course_kit import measure, ranks
from course_kit.checks import check, habits
from course_kit.checks.check import within
from course_kit.checks.held_bytes import outside_torch
from course_kit.compare import compare
from course_kit.notebook import ask
from course_lib.model.gpt import GPT, GPTConfig
from course_lib.pipeline.executor import Pipeline
from course_lib.pipeline.messages import PipelineMessages
from course_lib.pipeline.schedule import Action, Costs, Schedule, one_f_one_b, parse, peak_in_flight, problems, simulate
from course_lib.pipeline.schedule.orders import gpipe
from course_lib.pipeline.stages import GPTStage, partition_layers

# %%
UNIT = Costs()  # F, B and W take 1 each, BW takes 2
FINISHED = ["zero_bubble", "zb_h2", "zb_v", "fill_gaps", "ORDERS"]


def peaks(schedule):
    """Rank by rank, the most micro-batches that are in flight at once: from their F until all gradients are made."""
    return [peak_in_flight(actions) for actions in schedule.actions]


# %%
GPT_CONFIG = GPTConfig(layers=2, width=8, heads=2, vocab_size=11, context=6)


def batches(n):
    """n micro-batches of two texts each; every second one has fewer targets."""
    tokens = torch.randint(11, (n, 2, 7), generator=torch.Generator().manual_seed(n))
    targets = tokens[:, :, 1:].clone()
    targets[1::2, :, 3:] = -100
    return list(zip(tokens[:, :, :-1], targets))


def piped(schedule):
    """Gradients of this rank's stage of a GPT, by the library's executor."""
    layers = partition_layers([1.0] * (GPT_CONFIG.layers + 2), schedule.stages)[dist.get_rank()]
    stage = GPTStage(GPT_CONFIG, layers, dtype=torch.float64)
    Pipeline(schedule, {dist.get_rank(): stage}).forward_backward(batches(schedule.micro_batches))
    return {name: parameter.grad for name, parameter in stage.named_parameters()}


# %%
def check_on_pipeline(schedule):
    """The schedule on real ranks, against one process with all micro-batches at once."""
    model, every = GPT(GPT_CONFIG, dtype=torch.float64), batches(schedule.micro_batches)
    model(*map(torch.cat, zip(*every))).backward()
    right = {name: parameter.grad for name, parameter in model.named_parameters()}
    for rank, grads in enumerate(check.on_ranks(piped, schedule, world_size=schedule.ranks)):
        got, expected = (torch.cat([each[name].flatten() for name in grads]) for each in (grads, right))
        check.close(got, expected, f"on real ranks: gradients of rank {rank}", relative=1e-9)


# %%
def check_legal(schedule, stages, micro_batches, caps, what):
    """A schedule that ranks can carry out, one stage a rank, within its caps."""
    look = "the contract: Schedule(name, actions, owner, micro_batches)"
    check.that(isinstance(schedule, Schedule), f"{what}: a Schedule", came=type(schedule).__name__, look=look)
    rows, moves = schedule.actions, [move for row in schedule.actions for move in row]
    kinds = {type(each).__name__ for each in (rows, schedule.owner, *rows)} - {"tuple"}
    kinds |= {type(move).__name__ for move in moves} - {"Action"}
    check.that(not kinds, f"{what}: tuples of Actions, and one of owners", came=f"also {sorted(kinds)}", look=look)
    others = sorted({f"{move.kind}" for move in moves} - {"F", "B", "W", "BW"})
    check.that(not others, f"{what}: F, B, W and BW", came=f"also {others}", look=look)
    came = f"{len(rows)} ranks, owners {schedule.owner}, {schedule.micro_batches} micro-batches"
    whole = (len(rows), tuple(schedule.owner), schedule.micro_batches) == (stages, (*range(stages),), micro_batches)
    check.that(whole, f"{what}: one stage a rank, of {stages}, and {micro_batches} micro-batches", came=came)
    rebuilt = Schedule("yours", rows, tuple(range(stages)), micro_batches)
    found = problems(rebuilt)
    check.that(not found, f"{what}: can be run", came="\n".join(found[:4]))
    held, over = peaks(rebuilt), [rank for rank in range(stages) if peaks(rebuilt)[rank] > caps[rank]]
    look = f"rank {over}: a micro-batch counts from its F until its W (or BW) is done, not only until its B"
    check.that(not over, f"{what}: in flight, rank by rank", expected=f"at most {caps}", came=f"{held}", look=look)
    return rebuilt


# %% [markdown]
# ## 1 · By hand (25 points)
#
# Three ranks, four micro-batches. This is 1F1B, where F takes 1 and BW takes 2:

# %%
print(simulate(one_f_one_b(3, 4), UNIT))
print("makespan", simulate(one_f_one_b(3, 4), UNIT).makespan, "in flight", peaks(one_f_one_b(3, 4)))

# %% [markdown]
# Look at rank 1, when BW0 begins there. Rank 0 is waiting for its result. But of the two units that BW0 takes, rank 0
# needs only the first one, B: the gradient of the *input*. The other one, W, could come whenever rank 1 has nothing
# better to do. (Lesson 09 has it from Qi et al. 2023.)
#
# And now the difficulty. Every rank has memory for **two** micro-batches. 1F1B has three on rank 0, and the library's
# zero-bubble schedule has three everywhere. A micro-batch gives its place back when its W is done.
#
# With two places, be faster than 1F1B with its three. Take squared paper: three rows, seventeen columns. Begin with
# rank 0; when is the earliest possible B0 there? What can stand between?
#
# **Your contract.** `by_hand()` returns the schedule as text for `parse`: three lines, one for each rank, of the moves
# in their order, such as `F0 F1 B0 W0`. (`BW0` is B0 and W0 in one.) Only the order counts; the times follow.
#
# **Graded:** it can be run (6 points), within two places on every rank (6), and it takes less than 1F1B's 18 (8).
# Hidden (5): it runs on real ranks.


# %% answer="q1"
def by_hand():
    """A schedule of 3 ranks and 4 micro-batches, a line for each rank."""
    ### BEGIN SOLUTION
    return """
        F0 F1 B0 W0 F2 B1 W1 F3 B2 W2 B3 W3
        F0 F1 B0 W0 B1 W1 F2 F3 B2 W2 B3 W3
        F0 B0 F1 B1 W0 W1 F2 B2 W2 F3 B3 W3
    """
    ### END SOLUTION


# %% [markdown]
# The next cell says what is wrong with it, as often as you run it, and else draws it.

# %%
mine = parse(by_hand())
print("\n".join(problems(mine)) or simulate(mine, UNIT))
print("in flight", peaks(mine))


# %% check="q1-legal" points=6
def parsed():
    text = check.call(by_hand)
    check.that(isinstance(text, str), "by_hand returns text", came=type(text).__name__, look="return")
    return check.call(parse, text, look="moves and nothing else: F, B, W or BW and a number. Gaps are not written")


def check_mine(caps):
    return check_legal(parsed(), 3, 4, caps, "your schedule")


_ = check_mine(caps=[4, 4, 4])

# %% check="q1-places" points=6
_ = check_mine(caps=[2, 2, 2])

# %% check="q1-time" points=8
takes = simulate(check_mine(caps=[4, 4, 4]), UNIT).makespan
look = "where a rank idles before a B: which W of another rank keeps it waiting? And when does rank 0 begin F2?"
check.at_most(takes, 17.0, "your schedule: makespan", look=look)
check.at_most(max(peaks(parsed())), 2, "… with two places on each rank", look="time is bought with memory here")

# %% check="q1-hidden" points=5
# On three real ranks, with a GPT.
### BEGIN HIDDEN TESTS
check_on_pipeline(check_mine(caps=[4, 4, 4]))
# Sentences of the contract, and the known-wrong answers that break them.
#= `by_hand()` returns | three_micro_batches one_w_forgotten
#= (`BW0` is | - a notation
#= Only the order counts | - how it is read
#= A schedule of 3 ranks | a_circle a_second_half_first
### END HIDDEN TESTS

# %% [markdown]
# ## 2 · A planner (40 points)
#
# Nobody draws 64 stages by hand. And in a real pipeline stages are not equal, and messages take time. So let a
# program do what you did: play the clock, and at each moment give every free rank the best move that it has.
#
# Which one is best? Three rules come to mind. Somebody waits for a B, so it goes first. Then an F, as long as there is
# a place: it keeps the ranks behind busy. A W when there is nothing else, or when a place must become free.
#
# What is known when? Stage $s$ can begin F of a micro-batch when stage $s-1$ has done its F and the message has
# travelled, `costs.transfer`. It can begin B when stage $s+1$ has done its B, and again the message; the last stage
# after its own F. A move of a kind takes `costs.of(kind, stage)`, where the kind is `"F"`, `"B"` or `"W"`.
# Micro-batches go in their order.
#
# One trap: do not let rank 0 choose, then rank 1, and so on. A rank that takes a move for later does not see what may
# arrive before: rank 0 might settle for a W at 5, though a B could come at 4. Find over all ranks the move that can
# begin *earliest*, make this one, and look again. At a tie on one rank, the better kind wins.
#
# **Your contract.** `plan(stages, micro_batches, caps, costs)`
#
# - `caps`: for each stage how many micro-batches may be in flight there, a list of ints, 1 or more. `costs`: a `Costs`.
# - Returns a `Schedule(name, actions, owner, micro_batches)`, where `actions` is a tuple with a tuple of
# `Action(kind, stage, micro_batch)` for each rank, and `owner` is `tuple(range(stages))`. It can be run, and keeps the
# caps.
# - It is fast. With unit costs it takes no longer than this:
#
# | stages, micro-batches | caps | 1F1B (its peaks) | goal |
# |---|---|---|---|
# | 3, 4 | 2, 2, 2 | 18 (3, 2, 1) | 17 |
# | 4, 8 | 4, 3, 2, 1 | 33 (4, 3, 2, 1) | 30 |
# | 4, 8 | 7, 7, 7, 7 | 33 (4, 3, 2, 1) | 28 |
# | 4, 8 | 2, 2, 2, 2 | 33 (4, 3, 2, 1) | 42 |
#
# (In the last row you are slower than 1F1B, since you have half of its places on rank 0.)
#
# - `plan` itself takes at most a second. (Walking once through all moves takes milliseconds.)
#
# **Graded:** legal plans within caps (10 points), these goals (10), goals for uneven stages and slow messages, which
# the check names (8), real ranks (4), and other stages, caps and costs (8).

# %%
guess_life = ask("4 stages, unit costs, nobody waits: how long is a micro-batch on rank 0, from its F to the end of W?")


# %% answer="q2"
def plan(stages, micro_batches, caps, costs):
    """A schedule with one stage a rank, at most caps[s] micro-batches in flight on stage s, and a short makespan."""
    ### BEGIN SOLUTION
    actions = [[] for _ in range(stages)]
    free = [0.0] * stages  # when each rank is done with all that it has been given
    done = {kind: [0] * stages for kind in "FBW"}
    ready = {("F", 0, n): 0.0 for n in range(micro_batches)}  # move → when what it needs is there
    for _ in range(3 * stages * micro_batches):
        moves = []
        for stage in range(stages):
            for rank_of_kind, kind in enumerate("BFW"):
                move = (kind, stage, done[kind][stage])
                if kind == "F" and done["F"][stage] - done["W"][stage] >= caps[stage]:
                    continue
                if move in ready:
                    moves.append((max(free[stage], ready[move]), rank_of_kind, move))
        start, _, (kind, stage, n) = min(moves)
        end = free[stage] = start + costs.of(kind, stage)
        done[kind][stage] += 1
        actions[stage].append(Action(kind, stage, n))
        if kind == "F" and stage < stages - 1:
            ready["F", stage + 1, n] = end + costs.transfer
        elif kind == "F":
            ready["B", stage, n] = end
        elif kind == "B":
            ready["W", stage, n] = end
            ready["B", stage - 1, n] = end + costs.transfer
    return Schedule("planned", tuple(map(tuple, actions)), tuple(range(stages)), micro_batches)
    ### END SOLUTION


# %%
for caps in ([4, 3, 2, 1], [2, 2, 2, 2]):
    planned = plan(4, 8, caps, UNIT)
    print(f"caps {caps}, in flight {peaks(planned)}, makespan {simulate(planned, UNIT).makespan:g}")
    print(simulate(planned, UNIT), "\n")


# %% check="q2-legal" points=10
def check_plan(stages, micro_batches, caps, costs=UNIT):
    given = list(caps)
    look = "how many plans you try: there are far too many"
    found = within(1, plan, stages, micro_batches, given, costs, look=look)
    what = f"plan({stages}, {micro_batches}, {caps})"
    legal = check_legal(found, stages, micro_batches, caps, what)
    check.equal(given, list(caps), "… and caps is as it was", look="what you count down")
    return legal


for case in ((3, 4, [2, 2, 2]), (4, 8, [4, 3, 2, 1]), (4, 6, [1, 1, 1, 1]), (3, 7, [1, 3, 2]), (1, 3, [1])):
    _ = check_plan(*case)


# %% check="q2-goals" points=10
def check_goal(stages, micro_batches, caps, goal, costs=UNIT):
    takes = simulate(check_plan(stages, micro_batches, caps, costs), costs).makespan
    before = simulate(one_f_one_b(stages, micro_batches), costs).makespan
    look = "the next moves of a rank that idles: is one of them possible earlier? B first, then F, and W in the gaps"
    check.at_most(takes, goal, f"… makespan; 1F1B's is {before:g}", look=look)


check.written_with(plan, forbidden=FINISHED)
for *case, goal in ((3, 4, [2] * 3, 17), (4, 8, [4, 3, 2, 1], 30), (4, 8, [7] * 4, 28), (4, 8, [2] * 4, 42)):
    check_goal(*case, goal)

# %% check="q2-costs" points=8
# Backward passes that are slow; messages that take half a unit; a last stage with a head; a slow first one.
SLOW = Costs(forward=2, input_gradient=3, weight_gradient=2, transfer=0.5)
HEAD = Costs(forward=[1, 1, 1, 2], input_gradient=[1, 1, 1, 3], weight_gradient=1)
FIRST = Costs(forward=[2, 1, 1], input_gradient=[2, 1, 1], weight_gradient=[2, 1, 1])
check.written_with(plan, forbidden=FINISHED)
for *case, goal, costs in ((3, 9, [4] * 3, 73, SLOW), (4, 10, [4] * 4, 65, HEAD), (3, 9, [3] * 3, 55, FIRST)):
    check_goal(*case, goal, costs)

# %% check="q2-ranks" points=4
check_on_pipeline(check_plan(2, 5, [2, 1]))

# %% check="q2-hidden" points=8
# Forty random cases, and goals for more stages and other costs.
### BEGIN HIDDEN TESTS
check.written_with(plan, forbidden=FINISHED)
#: forty random cases
chance = random.Random(9)
for _ in range(40):
    hidden_stages = chance.randint(1, 5)
    hidden_caps = [chance.randint(1, 4) for _ in range(hidden_stages)]
    hidden_times = [[chance.choice((0.5, 1, 2)) for _ in range(hidden_stages)] for _ in range(3)]
    hidden_costs = Costs(*hidden_times, transfer=chance.choice((0, 0.25, 1)))
    _ = check_plan(hidden_stages, chance.randint(1, 7), hidden_caps, hidden_costs)
_ = check_plan(3, 5, [2, 2, 2], Costs(1, 1, 3, update=2))
#: goals for more stages and other costs
check_goal(6, 12, [6] * 6, 45)
check_goal(8, 16, [8] * 8, 60)
check_goal(4, 8, [5] * 4, 39, Costs(1, 2, 1))
check_goal(3, 9, [3] * 3, 57.5, Costs([1, 1, 2], [1, 1, 2], [1, 1, 2]))
check_goal(4, 8, [4] * 4, 36, Costs(transfer=0.5))
check_goal(2, 8, [2, 2], 26)
check_goal(3, 8, [5, 3, 3], 67, Costs([3, 4, 1], [2, 1, 4], [1, 2, 1], transfer=1))
check_goal(4, 9, [4] * 4, 62, Costs(1, 1, 3, transfer=1))
check_goal(4, 8, [3] * 4, 111, Costs([3, 4, 4, 2], [1, 4, 4, 3], [1, 2, 3, 2], transfer=0.5))
# Sentences of the contract, and the known-wrong answers that break them.
#= `caps`: for each stage | first_cap_for_all free_after_b
#= `costs`: a | all_stages_alike forward_costs_for_all
#= Returns a `Schedule( | lists_of_moves
#= It can be run | a_deadlock one_too_many
#= It is fast | one_at_a_time w_before_f rank_by_rank
#= With unit costs | capped_in_halves
#= 3, 4 | capped_1f1b
#= 4, 8 | w_before_f f_before_b capped_in_halves
#= (In the last row | - a remark
#= `plan` itself takes | slow_for_many
#= (Walking once | - a remark
#= A schedule with one stage | gpipe_in_disguise
### END HIDDEN TESTS

# %% [markdown]
# How many places does a rank need? A micro-batch holds one for its whole life on the rank. Alone in the pipeline, it
# waits for nobody: then its life is as short as it can be.

# %%
alone = simulate(plan(4, 1, [1, 1, 1, 1], UNIT), UNIT).spans[0]
compare(guess=guess_life, predicted=2 * 4 + 1, measured=alone[-1].end - alone[0].start, tolerance=0, name="its life")

# %% [markdown]
# Down through four stages, up again, and its W. In that time rank 0 could work on three micro-batches, with three
# units for each. So with two places it *must* idle for at least a third of the time, whatever the order, and three would do if
# nobody ever waited. A shop has as many customers inside as come in a minute, times the minutes that each one stays:
# Little's law. (Qi et al. 2024 build their schedules by it: memory is life over interval.)
#
# ## 3 · Three moves (35 points)
#
# A plan is worth what carries it out. The loop below does: it takes this rank's moves in their order, waits for the
# message that a move needs, has the move made by *you*, and sends what you return. What is left to write are F, B and
# W.
#
# The model is a chain of small stages. The loss of a micro-batch is the *mean* over its examples; the loss of the step
# is the mean over *all* examples. Micro-batches need not be equally long, so each has a `share`: its examples, divided
# by all. Where does the share come in? (Lesson 09 has a broken pipeline that forgets it.)
#
# And how does one make half of a backward pass? `torch.autograd.grad(y, inputs, grad_outputs)` returns the gradients of
# `inputs` and no others. Asked for the gradient of `x`, it leaves the weights alone. With `retain_graph=True` the graph
# is still there for a second question.
#
# **Your contract.**
#
# - `forward(stage, x, targets, share)` returns `(message, kept)`. `stage` is an `nn.Module`. `x` is what came from the
# stage before, or the inputs, without a graph; it stays as it is. On the last stage there are `targets`, and the
# message is the step's share of the loss, `stage_loss(y, targets)` times `share`; on the others `targets` is None and
# the message is the result. It has no graph. `kept` is whatever the other two need (a dict, say, so that B can add to it): the loop keeps it for
# you, until W.
# - `input_gradient(kept, gradient)` returns the gradient of `x`, which the stage before waits for. `gradient` is that
# of the message, from the stage behind; None on the last stage. No `.grad` of a weight changes.
# - `weight_gradient(kept)` *adds* to `.grad` of the stage's weights (it is None in the beginning). Afterwards the loop
# lets go of `kept`. Keep nothing elsewhere: of each micro-batch in flight you may hold four blocks as large as `x`.
# - The stage runs once for a micro-batch, in F. Counted in PyTorch's matrix products (NumPy is out of bounds here), B
# costs as much as F, and W as much or up to twice that (it may walk back through the stage once more, as
# `torch.autograd.grad` does). All of it in the dtype of `x`, which may lie across in memory.
#
# **Graded:** the step's loss and gradients (12 points), that the halves are halves (8), bytes (6), and other
# schedules, micro-batches and ranks (9).


# %% answer="q3"
def forward(stage, x, targets, share):
    """F: (what goes to the next stage, or the share of the loss; what B and W will need)."""
    ### BEGIN SOLUTION
    x = x.detach().requires_grad_()
    y = stage(x)
    if targets is not None:
        y = stage_loss(y, targets) * share
    return y.detach(), {"x": x, "y": y, "weights": list(stage.parameters())}
    ### END SOLUTION


# %% answer="q3-input"
def input_gradient(kept, gradient):
    """B: the gradient of x, and nothing else."""
    ### BEGIN SOLUTION
    kept["gradient"] = gradient
    return torch.autograd.grad(kept["y"], kept["x"], gradient, retain_graph=True)[0]
    ### END SOLUTION


# %% answer="q3-weights"
def weight_gradient(kept):
    """W: add this micro-batch's part to the gradients of the weights."""
    ### BEGIN SOLUTION
    gradients = torch.autograd.grad(kept["y"], kept["weights"], kept["gradient"])
    for weight, gradient in zip(kept["weights"], gradients):
        weight.grad = gradient if weight.grad is None else weight.grad + gradient
    ### END SOLUTION


# %% [markdown]
# The model, its data, and the loop.


# %%
def stage_loss(y, targets):
    return (y - targets).square().sum(dim=1).mean()


def in_a_row(tensors):
    return torch.cat([tensor.flatten() for tensor in tensors])


# %%
class Stage(nn.Sequential):
    """Counts how often it runs."""

    runs = 0

    def forward(self, x):
        self.runs += 1
        return super().forward(x)


# %%
def a_stage(number, width):
    torch.manual_seed(number)
    return Stage(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width)).double()


def examples(sizes, width):
    """For each micro-batch its inputs and targets."""
    numbers = torch.randn(2, sum(sizes), width, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return list(zip(*(part.split(sizes) for part in numbers)))


def one_process(stages, sizes, width):
    """The truth: the whole chain, all examples at once. (loss, the gradients of each stage in a row)"""
    chain = nn.Sequential(*(a_stage(number, width) for number in range(stages)))
    inputs, targets = map(torch.cat, zip(*examples(sizes, width)))
    (loss := stage_loss(chain(inputs), targets)).backward()
    return loss.detach(), [in_a_row([weight.grad for weight in part.parameters()]) for part in chain]


# %%
def move(action, stage, kept, received, batch, share):
    """What a move makes for a neighbour; and whether it made or changed the weights' gradients."""
    made_here = []  # autograd tells of each gradient that it makes
    hooks = [weight.register_hook(lambda _: made_here.append(1)) for weight in stage.parameters()]
    before = [weight.grad if weight.grad is None else weight.grad.clone() for weight in stage.parameters()]
    if action.kind == "F":
        x = batch[0] if received is None else received
        made, kept[action.micro_batch] = check.call(forward, stage, x, batch[1], share)
        if x.requires_grad:
            raise ValueError(f"{action}: x wants a gradient now, but it is to stay as it is")
    elif action.kind == "B":
        own = kept[action.micro_batch]
        made = check.call(input_gradient, own, received, may_change=[own])
    else:
        made = weight_gradient(kept.pop(action.micro_batch))
    for hook in hooks:
        hook.remove()
    pairs = zip(before, [weight.grad for weight in stage.parameters()])
    changed = any(new is not None and (old is None or not torch.equal(old, new)) for old, new in pairs)
    return made, changed or len(made_here) > 0


# %%
def counted(action, stage, *others):
    """A move, its cost in those of one F by the matrix products of this rank's threads, and how often the stage ran."""
    before = stage.runs
    with measure.MatrixProducts() as work:
        made = move(action, stage, *others)
    of_forward = sum(2 * len(others[-2][0]) * part.weight.numel() for part in stage if isinstance(part, nn.Linear))
    return *made, (action.kind, int(work.flops) / of_forward, stage.runs - before)


# %%
def must_fit(action, made, x):
    """Before it is sent: what comes of a move that another rank waits for."""
    if not isinstance(made, torch.Tensor) or made.shape != x.shape or made.requires_grad:
        came = made
        if isinstance(made, torch.Tensor):
            came = f"shape {tuple(made.shape)}, requires_grad={made.requires_grad}"
        raise ValueError(f"{action} made {came}: needed is a tensor of shape {tuple(x.shape)} without a graph")


# %%
def carry_out(schedule, sizes, width):
    """This rank's part: (loss or None, gradients in a row, moves that changed gradients, bytes held, costs)."""
    rank, last = dist.get_rank(), schedule.stages - 1
    stage, data, kept, losses, changing, costs = a_stage(rank, width), examples(sizes, width), {}, [], [], []
    mail = PipelineMessages(schedule, rank, lambda message: torch.empty_like(data[message.micro_batch][0]))
    known = [tensor for pair in data for tensor in pair]
    with outside_torch() as outside, measure.memory(stage, inputs=known, lines=True) as record:
        for action in schedule.actions[rank]:
            (x, targets), received = data[action.micro_batch], mail.receive(schedule.consumes(action))
            share, batch = len(x) / sum(sizes), (x, targets if rank == last else None)
            made, changed, cost = counted(action, stage, kept, received, batch, share)
            costs, changing = [*costs, cost], [*changing, *([action.kind] if changed else [])]
            if message := schedule.produces(action):
                must_fit(action, made, x)
                mail.send(message, made)
            losses += [made] if action.kind == "F" and rank == last else []
        mail.finish()
        held = check.held(record) + outside()
    grads = [torch.zeros_like(w) if w.grad is None else w.grad for w in stage.parameters()]
    return sum(losses) if losses else None, in_a_row(grads), changing, held, costs


# %% [markdown]
# Two ranks, three micro-batches, B and W apart. Each rank lists the moves that made or changed the weights' gradients.

# %%
MOVES = "what each move returns, and what it keeps: B needs x as a leaf, W needs what B was handed, both need the graph"
HALVES = parse("F0 F1 B0 F2 W0 B1 W1 B2 W2\nF0 B0 F1 W0 B1 F2 B2 W1 W2")
for rank, (loss, _, changing, *_) in enumerate(ranks.run(carry_out, HALVES, [2, 2, 2], 4, world_size=2)):
    print(f"rank {rank}: loss {loss if loss is None else round(float(loss), 6)}, gradients made by {changing}")


# %% check="q3-values" points=12
def check_step(schedule, sizes, width=4):
    found = check.on_ranks(carry_out, schedule, sizes, width, world_size=schedule.ranks, look=MOVES)
    loss, gradients = one_process(schedule.stages, sizes, width)
    what = f"micro-batches of {sizes}"
    got = found[-1][0]
    check.that(isinstance(got, torch.Tensor), f"{what}: the last stage's messages are tensors", came=str(got))
    check.close(got, loss, f"{what}: the loss of the step", relative=1e-9, look="the share, on the last stage")
    for rank, (right, (_, grads, *_)) in enumerate(zip(gradients, found)):
        factor = float((grads @ right) / (right @ right))
        even = abs(factor - 1) > 1e-6 and torch.allclose(grads, factor * right)
        came, look = f"{factor:.4g} times the right ones", "the share; what is added up, and what is replaced"
        check.that(not even, f"… gradients of rank {rank}: their size", came=came, look=look)
        check.close(grads, right, f"… gradients of rank {rank}", relative=1e-9, look=look)
    return found


for sizes in ([2, 2, 2], [3, 1, 2]):
    _ = check_step(HALVES, sizes)


# %% check="q3-halves" points=8
def check_halves(found):
    for rank, (_, _, changing, _, costs) in enumerate(found):
        look = "what input_gradient asks autograd for: x alone. Whoever asks for all gradients leaves nothing for W"
        what = f"… the moves of rank {rank} that made the weights' gradients"
        check.equal(" ".join(changing), " ".join("W" for kind, *_ in costs if kind == "W"), what, look=look)
        runs = [(kind, n) for kind, _, n in costs if n != (kind == "F")]
        look = "the graph that F made is there until W: nobody needs another one"
        check.that(not runs, f"… rank {rank}: the stage runs in F, once", came=f"moves and runs {runs[:4]}", look=look)
        for kind, most in {"F": 1, "B": 1, "W": 2}.items():
            own = [cost for of, cost, _ in costs if of == kind]
            look = "which gradients this move makes, and which the other half makes anyway"
            check.at_most(max(own), most, f"… rank {rank}: matrix products of {kind}, one F being 1", look=look)
            check.at_least(min(own), 1, "… and at least", look=f"where the products of {kind} are made instead")


for answer in (forward, input_gradient, weight_gradient):
    check.written_with(answer, forbidden=["numpy", *check.CHANNELS])
check_halves(check.on_ranks(carry_out, HALVES, [2, 2, 2], 4, look=MOVES, world_size=2))


# %%
def two_ranks(ahead, n):
    """B and W apart; rank 0 makes `ahead` forward passes before its first B, then B, W and F in turn."""
    halves = [f"B{k} W{k} F{k + ahead}" if k + ahead < n else f"B{k} W{k}" for k in range(n)]
    first = " ".join([f"F{k}" for k in range(ahead)] + halves)
    return parse(first + "\n" + " ".join(f"F{k} B{k} W{k}" for k in range(n)))


# %% check="q3-bytes" points=6
def check_held(ahead, n, size=32, width=32):
    block, weights = 8 * size * width, 2 * 8 * (width * width + width)
    found = check.on_ranks(carry_out, two_ranks(ahead, n), [size] * n, width, world_size=2, look=MOVES)
    _, gradients = one_process(2, [size] * n, width)
    for rank, (right, (_, grads, _, held, _)) in enumerate(zip(gradients, found)):
        got, right, look = grads / grads.norm(), right / right.norm(), "the checks above: first the gradients"
        check.close(got, right, f"{n} micro-batches: direction of rank {rank}'s gradient", relative=1e-6, look=look)
        places = (ahead, 1)[rank]
        what = f"… bytes held by rank {rank}: {places} of {n} in flight, a block is {block:,}"
        look = "what outlives its W: kept is let go, so something else holds on"
        check.at_most(held, (4 * places + 6) * block + 5 * weights, what, look=look)


check_held(ahead=2, n=20)

# %% check="q3-hidden" points=9
# Other schedules, three ranks and one, short micro-batches; move by move, as training does.
### BEGIN HIDDEN TESTS
ZIGZAG = "F0 F1 F2 B0 B1 W1 W0 B2 W2\nF0 F1 B0 F2 W0 B1 B2 W2 W1\nF0 B0 W0 F1 B1 W1 F2 B2 W2"
check_halves(check_step(parse(ZIGZAG), [1, 4, 2], width=3))
_ = check_step(parse("F0 B0 W0 F1 B1 W1"), [5, 1], width=2)
_ = check_step(parse("F0 F1 F2 F3 B0 B1 B2 B3 W3 W2 W1 W0\nF0 F1 F2 F3 B0 B1 B2 B3 W0 W1 W2 W3"), [1, 1, 2, 1])
check_held(ahead=1, n=30, size=24)


def hidden_moves(dtype, last, scale):
    """Two micro-batches in one stage, F F B B W W; the second one lies across, and fresh memory holds NaN."""
    stage, numbers = a_stage(6, 3).to(dtype), torch.randn(2, 3, 5, 3, generator=torch.Generator().manual_seed(4))
    made, right = [], [torch.zeros_like(weight) for weight in stage.parameters()]
    what = f"{dtype}, numbers × {scale:g}{', the last stage' if last else ''}"
    for x, targets, behind in (scale * numbers).to(dtype):
        leaf, behind = x.clone().requires_grad_(), None if last else behind
        right_message = stage_loss(stage(leaf), targets) * 0.25 if last else stage(leaf)
        x_gradient, *gradients = torch.autograd.grad(right_message, [leaf, *stage.parameters()], behind)
        right = [old + new for old, new in zip(right, gradients)]
        if made:
            x, behind = habits.across(x), None if last else habits.across(behind)
        with habits.Unfilled():
            message, kept = check.call(forward, stage, x, targets if last else None, 0.25)
        check.close(message, right_message.detach(), f"{what}: the message", operations=50)
        made.append((kept, behind, x_gradient))
    for kept, behind, x_gradient in made:
        with habits.Unfilled():
            came = check.call(input_gradient, kept, behind, may_change=[kept])
        check.close(came, x_gradient, f"{what}: the gradient of x", operations=50)
    for kept, *_ in made:
        with habits.Unfilled():
            check.call(weight_gradient, kept, may_change=[kept, "grad"])
    got = in_a_row([weight.grad for weight in stage.parameters()])
    check.close(got, in_a_row(right), f"{what}: the gradients of the weights", operations=50)


#: move by move, as training does
for hidden_last in (False, True):
    for hidden_dtype, hidden_scale in ((torch.float32, 1.0), (torch.float64, 1.0), (torch.float32, 3000.0)):
        hidden_moves(hidden_dtype, hidden_last, hidden_scale)
# Sentences of the contract, and the known-wrong answers that break them.
#= `forward(stage | one_slot message_with_a_graph
#= `stage` is an | - what is given
#= `x` is what came | wants_a_gradient_of_the_inputs
#= On the last stage | share_forgotten share_on_every_stage sum_of_examples
#= It has no graph | message_with_a_graph
#= `kept` is whatever | one_slot
#= `input_gradient(kept | no_gradient_of_x
#= `gradient` is that | upstream_lost
#= None on the last stage | - what is given
#= No `.grad` of a weight | whole_backward_in_b
#= `weight_gradient(kept)` | replaces_the_gradient
#= Afterwards the loop | - what the loop does
#= Keep nothing elsewhere | keeps_everything
#= The stage runs once | stage_again_in_w
#= Counted in PyTorch's matrix | weights_gradients_made_in_b copies_of_the_weights products_of_numpy
#= All of it in the dtype | message_in_64_bits x_laid_in_a_row
#= F: (what goes | share_forgotten
#= B: the gradient of x | weights_gradients_made_in_b
#= W: add this | replaces_the_gradient
### END HIDDEN TESTS

# %% [markdown]
# ## What to keep
#
# A schedule decides three things at once: who waits, who holds how much, and for how long. A backward pass in two
# halves gives you something that no message hangs on, and that fills the gaps.
#
# Four ranks, eight micro-batches: what time costs in places, and what places cost in time.

# %%
rows = {"gpipe": gpipe(4, 8), "1f1b": one_f_one_b(4, 8), "yours, 1F1B's places": plan(4, 8, [4, 3, 2, 1], UNIT)}
rows |= {"yours, at most two": plan(4, 8, [2, 2, 2, 1], UNIT), "yours, seven": plan(4, 8, [7] * 4, UNIT)}
for name, schedule in rows.items():
    chart = simulate(schedule, UNIT)
    print(f"{name:22} makespan {chart.makespan:3g}   bubble {chart.bubble:5.1%}   in flight {peaks(schedule)}")

# %% [markdown]
# Somewhere between your last two rows lies what a real run can afford. Qi et al. (2024) go one step further: they fold
# the pipeline into a V, so that each rank has an early stage and a late one. Long lives and short ones then share a
# rank, and all ranks hold the same.
#
# **Change one thing.** In `plan`, let a W go before an F, and run the cell above again. Which of your three rows become
# longer? Decide first, and say what the ranks behind were waiting for.
