# %% [markdown]
# # 09 · Pipeline parallelism
#
# **The question:** what if the layers live on different machines?
#
# | | |
# |---|---|
# | Time | first sitting 50 minutes, second sitting 45; about a minute and a half of both together is computing on 2 CPU cores |
# | A GPU | changes nothing: all stages of this page live on the processor, and most of its seconds are slept on purpose |
# | Opens | `pipeline/schedule/orders.py`, `pipeline/schedule/gaps.py`, `pipeline/executor.py` |
#
# Lesson 08 cut every matrix, and paid for it with all-reduces in each layer. That is bearable inside one machine. The
# cable between two machines is ten times slower. What can be cut so that hardly anything crosses it?
#
# The model, *between* layers. Blocks 1 to 12 live on the first machine, 13 to 24 on the second, and from one to the
# other goes one tensor. You try it on four machines. It works, the loss is right. Then you look at the GPUs: at any
# moment, one of the four computes. You have bought four machines and have the speed of one.
#
# This page is about the other three.

# %%
import torch
import torch.distributed as dist

from course_kit import measure, ranks
from course_kit.compare import compare
from course_kit.notebook import ask, self_check, show, your_turn
from course_kit.units import Bytes, Ratio, Seconds
from course_lib import predict
from course_lib.pipeline import schedule as schedules
from course_lib.pipeline.executor import Pipeline
from course_lib.pipeline.schedule import problems, simulate
from course_pages.lesson09 import runs, turns
from course_pages.lesson09.explorer import PipelineExplorer
from course_pages.lesson09.pictures import pipeline_charts
from course_pages.lesson09.runs import SMALL, TIED, micro_batches, my_stages
from course_pages.lesson09.turns import from_orders

# %% [markdown]
# ## 1 · Cut between layers
#
# Our GPT has 6 blocks, an embedding in front and a head behind, 8 layers in all. There are $P$ = 4 ranks, and each gets
# two layers in a row: a **stage**. The batch comes in **micro-batches** of two sequences each; why, section 3 tells.
# (The numbers are float64 again, 8 bytes each, so that rounding is no excuse.)
#
# Forward is easily written: receive, compute, send.

# %%
show(runs.forward)

# %% [markdown]
# An activation is tokens × width, 2 · 64 × 64 numbers of 8 bytes. It goes forward, and its gradient comes back.

# %%
guess_sent = ask("A middle rank: kB sent for one micro-batch, there and back?", unit="kB")

# %% [markdown]
# Autograd knows nothing of other ranks: the graph of $y$ ends at $x$, which arrived from nowhere.
#
# **Your turn.** Write the way back. After `y.backward(gradient)` the gradient of `x` stands in `x.grad`, and one
# other rank waits for it.

# %%
@your_turn(turns.check_backward, look="The last rank starts from the loss and needs no gradient. Who waits for whose `x.grad`?")
def backward(x, y):
    """This rank's part of the backward pass, for what `forward` returned, in any dtype. All ranks call it."""
    ...


# %% tags=["solution"]
# One solution. Open it when yours passes, or when you are stuck.
@backward.solution
def backward(x, y):
    rank, last, gradient = dist.get_rank(), dist.get_world_size() - 1, None
    if rank < last:
        dist.recv(gradient := torch.empty_like(y), src=rank + 1)
    y.backward(gradient)
    if rank > 0:
        dist.send(x.grad, dst=rank - 1)


# %%
def sent_for_one():
    (stage,) = my_stages(schedules.naive(4, 1)).values()
    with measure.traffic() as sent:
        backward(*runs.forward(stage, *micro_batches(0, 1)[0]))
    return sent.sent_bytes


measured_sent = ranks.run(sent_for_one, world_size=4)[1]
compare(guess=guess_sent, predicted=Bytes(2 * 2 * 64 * 64 * 8), measured=measured_sent, tolerance=0.05, unit="kB")

# %% [markdown]
# Two messages, one each way, however many layers a stage has. (The rest are headers.) Lesson 08 sends four
# all-reduces of that size in *every* layer. This is why pipelines run between machines, and tensor parallelism
# inside.
#
# ## 2 · One works, three wait
#
# Write down who does what when, and you have a **schedule**: for each rank, its actions in order. `F0` is the forward
# pass of micro-batch 0, `BW0` its backward pass (two letters, since section 7 will cut it in two). A backward pass
# takes about twice as long (lesson 00), so let F take one unit of time and BW two. A schedule is data. It can be
# drawn, checked and played on paper.
#
# The library's `Pipeline` carries it out on ranks. `_begin` posts receives, `_do` in the loop runs an F or a BW as you did
# above, and the method for tied gradients comes in section 6.

# %%
print(simulate(schedules.naive(4, 1)))
show(Pipeline.forward_backward, docstring=False)

# %%
guess_idle = ask("Which percentage of the time is a rank idle?")

# %% [markdown]
# The empty space has a name, the **bubble**. Papers measure it in two ways, and quote percents as if there were one:
#
# $$\text{GPipe: } \frac{\text{idle}}{\text{all time}} \qquad\qquad \text{Megatron-LM: } \frac{\text{idle}}{\text{working time}}$$
#
# Here a rank works 3 units of 12 and is idle for 9. That is 75 % of all time, or 300 % *over the ideal*, which is work alone.
#
# Now on ranks. Four ranks share your two cores, and would take turns. So `for_real` runs them in slow motion: each
# action computes what it should, then sleeps until its time is over, 20 ms for F and 40 for BW, as if the rank had a
# device of its own. Of five steps the quickest is drawn, below what was to be expected. Here and later, such a chart shows
# where ranks wait, and not how fast they compute.

# %% tags=["varies"]
print(f"idle, in percent: you said {guess_idle.said}")
pipeline_charts(runs.for_real(schedules.naive(4, 2)), caption="Down the stairs and up again: at any moment one rank works.")

# %% [markdown]
# ## 3 · GPipe: small pieces
#
# While rank 1 works on the first micro-batch, rank 0 could begin the second. GPipe (Huang et al. 2019) does it: all
# forward passes, then all backward passes. For stage $s$ that is one line, and `from_orders` makes a schedule of it:

# %%
def gpipe_order(stage, stages, micro_batches):
    return [f"F{n}" for n in range(micro_batches)] + [f"BW{n}" for n in range(micro_batches)]


print(simulate(from_orders(gpipe_order, 4, 3)))

# %%
guess_all = ask("4 ranks, 8 micro-batches: idle, in percent of all time?")

# %% [markdown]
# Count it in the chart. Each rank works for $M$ micro-batches, $3M$ units. The last rank begins $P - 1$ units late,
# and after its last backward pass the $P - 1$ other ranks still have one each, of 2 units. So a step takes
# $3(M + P - 1)$ units, and of these $3(P-1)$ are idle, on *every* rank:
#
# $$\frac{\text{idle}}{\text{all}} = \frac{P-1}{M+P-1} \qquad\qquad \frac{\text{idle}}{\text{work}} = \frac{P-1}{M}$$
#
# The bubble does not grow with $M$. The work does.

# %% tags=["varies"]
real = {count: runs.for_real(from_orders(gpipe_order, 4, count)) for count in (1, 4, 8)}
pipeline_charts(real[8], caption="Filling and draining cost the same for 8 micro-batches as for one.").show()
display(
    compare(
        predicted={f"M = {count}": Seconds(0.06 * (count + 3)) for count in real},
        measured={f"M = {count}": Seconds(both["measured"].makespan) for count, both in real.items()},
        tolerance=0.5,
        unit="ms",
    )
)
EIGHT = predict.Setup(SMALL, batch_size=16, micro_batch=2, pipeline=4)
expected, drawn = predict.bubble(EIGHT, "gpipe"), real[8]["measured"]
compare(
    guess={"% of all time": guess_all},
    predicted={"% of all time": 100 * expected.over_all, "% of working time": 100 * expected.over_ideal},
    measured={"% of all time": Ratio(100 * drawn.bubble), "% of working time": Ratio(100 * drawn.bubble_over_ideal)},
    tolerance=0.5,
)

# %% [markdown]
# Eight times the work in less than three times the time, as long as the micro-batches stay as large. With the batch
# given, more of them are smaller ones, and section 12 weighs that. (The measured bubble is larger than the ideal one; why,
# this page does not take apart.)
#
# ## 4 · The price
#
# So take a hundred micro-batches? Look at rank 0: before its first backward pass it has done *all* forward passes.
# Each has left its activations, and none can go. They are **in flight**. (GPipe's own answer was lesson 03's: keep a
# stage's input only, and compute the rest again.)
#
# How much is it? Lesson 02 counted what a block keeps for its backward pass. For each token that is 8 vectors as wide
# as the stream, 2 as wide as the MLP's hidden layer, 4 heads × 64 attention weights and 4 numbers for the norms;
# beside them the causal mask, a byte for each pair of positions. A stage in the middle has two blocks, and the pipeline 8
# micro-batches.

# %%
tokens, width, hidden, attended = 2 * 64, 64, 4 * 64, 4 * 64
of_block = 8 * tokens * (8 * width + 2 * hidden + attended + 4) + 64 * 64
of_one = Bytes(2 * of_block)
print(f"one micro-batch in stage 1: {of_one:KiB}; its message: {Bytes(2 * 64 * 64 * 8):KiB}")

held_by_gpipe = runs.held(from_orders(gpipe_order, 4, 8))
expected = Bytes(predict.in_flight(EIGHT, 1, "gpipe") * of_one)
compare(predicted=expected, measured=held_by_gpipe[1], tolerance=0, unit="MiB", name="rank 1")

# %% [markdown]
# Eight times, to the byte. That is the trap: micro-batches are what makes the bubble small, and each one costs
# memory.
#
# ## 5 · 1F1B: go back as soon as you can
#
# Rank 3 may turn round at once: its `BW0` needs nothing but its own `F0`. So let it. From then on it takes one
# forward and one backward pass in turn, **1F1B**. Rank 2 needs one forward pass more before its first gradient comes
# back, rank 1 two, rank 0 three. Stage $s$ of $P$ runs $P - s$ forward passes ahead, then goes on with a backward and
# a forward pass in turn, and ends with the backward passes that are left (Narayanan et al. 2021, §2.2.1).
#
# **Your turn.** Write that order, as `gpipe_order` does.

# %%
@your_turn(turns.check_order, look="Fewer micro-batches than P - s? Slices forgive: `[][:3]` is empty.")
def one_f_one_b_order(stage, stages, micro_batches):
    """The actions of a stage in order, as text: ["F0", "BW0", ...]."""
    ...


# %% tags=["solution"]
@one_f_one_b_order.solution
def one_f_one_b_order(stage, stages, micro_batches):
    forwards, ahead = [f"F{n}" for n in range(micro_batches)], stages - stage
    order = forwards[:ahead]
    for n in range(micro_batches):
        order += [f"BW{n}", *forwards[ahead + n : ahead + n + 1]]
    return order


# %%
ours = from_orders(one_f_one_b_order, 4, 8)
pipeline_charts({"1F1B": simulate(ours)}, "units", 1, caption="Rank 3 turns round after one forward pass, rank 0 after four.").show()
held = runs.held(ours)
waiting = Bytes(2 * 64 * 64 * 8)  # a message that arrived before it is needed
print("all ranks, from 0 on:", ", ".join(f"{each:MiB}" for each in held))
compare(
    predicted={f"rank {s}": Bytes(predict.in_flight(EIGHT, s, "1f1b") * of_one) + waiting for s in (1, 2)},
    measured={f"rank {s}": held[s] for s in (1, 2)},
    tolerance=0,
    unit="MiB",
)

# %% [markdown]
# The same bubble, and instead of 8 micro-batches rank 1 holds 3: $P - s$, *whatever $M$ is*. (Beside them waits one
# message that has come early.) Now $M$ may be a hundred. In micro-batches rank 0 holds most, 4. In bytes it is rank 1:
# three micro-batches of two blocks are more than four of an embedding and one block.
#
# ## 6 · Is it still training?
#
# Three things break in silence, or loudly. First, the sum. Micro-batches' gradients add up in `.grad`, and the loss
# is a *mean*. So each micro-batch's loss counts $1/M$, or exactly: its share of the tokens (lesson 05). Suppose a
# pipeline forgets that. With plain SGD, how far from the right place does the first step land, in lengths of the right
# step? `runs.missed` trains one process beside the pipeline and tells just this, for each rank.

# %%
guess_miss = ask("8 micro-batches without 1/M: missed by how many steps?")


# %%
class WithoutShare(Pipeline):
    def _count_loss(self, loss, share):
        super()._count_loss(loss, share)
        return loss


def is_the_same_step(schedule, steps=3):
    off = max(map(max, runs.missed(Pipeline, schedule, steps=steps)))
    print(f"{schedule.name}: after every step the weights of one process: {off < 1e-9}")


is_the_same_step(schedules.gpipe(4, 8))
is_the_same_step(ours)
first = runs.missed(WithoutShare, ours, steps=1)[2][0]
compare(guess=guess_miss, predicted=Ratio(7), measured=Ratio(first), tolerance=1e-6, name="steps missed")

# %% [markdown]
# Gradients are 8 times too long, so the step lands 7 steps beyond the right place. (With Adam you would see next
# to nothing. Lesson 05 said why.)
#
# **The order of sends.** Your `backward` used `dist.send`, which in gloo, the library under us, waits until the other
# side receives (lesson 06). In 1F1B two neighbours sometimes want to give each other something at the same moment. What
# happens then? The library knows beforehand. And then it happens.


# %% tags=["raises-exception"]
def with_sends_that_wait(schedule):
    Pipeline(schedule, my_stages(schedule), blocking_sends=True).forward_backward(micro_batches(0, 3))
    return "done"


for schedule in (schedules.gpipe(2, 3), schedules.one_f_one_b(2, 3)):
    print(f"{schedule.name}, on paper: {(problems(schedule, blocking_sends=True) or ['fine'])[0]}")
    print(f"{schedule.name}, on ranks:", *ranks.run(with_sends_that_wait, schedule, world_size=2, timeout_s=4))

# %% [markdown]
# As foretold. In GPipe no two messages ever cross, in 1F1B they do. The repair: never wait for a send (`isend`), wait
# only for what you need. Then ranks can wait in a circle only if the schedule itself has one.
#
# **Both ends.** Many GPTs use one matrix twice: rank 0 looks tokens up in it, rank 3 multiplies by it at the end. So
# it lives twice, and each end computes *a part* of its gradient. What if each steps with its own part?


# %%
class Tied(Pipeline):
    def add(gradient, other):
        """Each end keeps to itself."""

    def _add_tied_gradients(self):
        for weight in self._tied_weights():
            type(self).add(weight.grad, other=3 if self.rank == 0 else 0)


def show_misses(kind):
    told = (f"rank {rank}: {each[0]:.3f}" for rank, each in enumerate(runs.missed(kind, ours, TIED, steps=1)))
    print("missed by, in lengths of the right step:", *told)


show_misses(Tied)

# %% [markdown]
# Ranks 1 and 2 step as they should. The ends have drifted apart, in the first step, and there is no model any more of
# which both are copies.
#
# **Your turn.** Repair `add`. Both ends call it with their part of the gradient.

# %%
@your_turn(turns.check_ends, look="If both `send` first, both wait. And what you send must not change before it has left.")
def add_the_other_end(gradient, other):
    """Add what rank `other` has to `gradient`, in place. The ranks of both ends call it, each naming the other."""
    ...


# %% tags=["solution"]
@add_the_other_end.solution
def add_the_other_end(gradient, other):
    sending, theirs = dist.isend(gradient, dst=other), torch.empty_like(gradient)
    dist.recv(theirs, src=other)
    sending.wait()
    gradient += theirs


# %%
class Mended(Tied):
    add = add_the_other_end


show_misses(Mended)

# %% [markdown]
# ## 7 · Fill the bubble
#
# Look at 1F1B's chart again. When a stage works backwards, who waits for it? The stage before waits for the gradient
# of its *input*. For the gradients of the *weights* nobody waits until the optimizer's step. They are two different
# products: for $y = xW$ and $g = \partial L / \partial y$ the one is $gW^{\mathsf T}$, the action B; the other is
# $x^{\mathsf T} g$, the action W. In a linear layer each costs as much as the forward pass. So BW falls into halves, and
# W can be put where a rank would idle (Qi et al. 2023, the schedule ZB-H1).
#
# The charts let F, B and W take 20 ms each, the kindest case. Attention's two products have no weights: there W costs
# nothing, and B twice a forward pass.

# %%
zero = schedules.zero_bubble(4, 8)
print(simulate(zero))
print("in flight at most:", simulate(zero).peak_in_flight)
is_the_same_step(zero, steps=1)

# %%
guess_zero = ask("ms for a step, if 1F1B takes 660 and an F, a B or a W takes 20?", unit="ms")

# %% tags=["varies"]
zero_real, ours_real = runs.for_real(zero), runs.for_real(ours)
three = {"1F1B, measured": ours_real["measured"]} | {f"zero-bubble, {name}": each for name, each in zero_real.items()}
pipeline_charts(three, caption="Orange fills what was white. Compare the ends of the rows, above and below.").show()
took = {name: Seconds(both["measured"].makespan) for name, both in (("1f1b", ours_real), ("zero-bubble", zero_real))}
due = {"1f1b": Seconds(33 * 0.02), "zero-bubble": Seconds(27 * 0.02)}
display(compare(guess={"zero-bubble": guess_zero}, predicted=due, measured=took, tolerance=0.5, unit="ms"))
print("zero-bubble was done before 1F1B:", took["zero-bubble"] < took["1f1b"])

# %% [markdown]
# Of rank 0's 9 idle units 3 remain. It waited 6 for its first gradient; now 3, since every stage passes the gradient
# on after B. And the three gaps at the end of its row close, since others put W off and send gradients sooner. Which rank, and for how long? In the second sitting you write that rule.
#
# No rank holds more *micro-batches* than rank 0 did already; section 10 counts the bytes.
#
# ## 8 · Take it apart
#
# Choose a schedule. Take an action and move it along its rank. What cannot be is explained, with the reason.

# %%
explorer = PipelineExplorer()
explorer.show()

# %% [markdown]
# (If nothing reacts to your clicks, run the cell once.)
#
# 1. In 1F1B, take rank 0's first green action, `BW0`, and move it earlier, twice. What does the first move cost? What
# is said to the second one?
# 2. Start from GPipe, 4 ranks and 4 micro-batches. Move a `BW0` earlier, towards 1F1B. Which rank must begin?
# 3. Zero-bubble, 8 micro-batches: move rank 0's orange `W0` three places later. What gets worse, what does not? Undo it,
# and move rank 3's `W0` one later.
# 4. Interleaved, and 6 micro-batches?
#
# <details><summary>Answers</summary>
#
# 1. It costs 3 units: rank 0 no longer runs far enough ahead, and every rank behind waits once. The second move would
# be a deadlock. Rank 1 turns round only after its `F2`, which rank 0 would send only afterwards.
# 2. Rank 3, which needs nobody for `BW0`. If rank 0 went first, it would wait for a gradient that the others
# make only after forward passes that rank 0 has not yet sent.
# 3. Nobody waits for it, so the step still takes 27 units, but rank 0 holds a fifth micro-batch. On rank 3 it filled
# a gap: `F4` has not arrived yet, the rank waits a unit, and the step takes 28.
# 4. Then there is no schedule: they come round in groups of as many as there are ranks.
#
# </details>
#
# That is the story: cut between layers, go on in micro-batches, turn round early, and put what no rank waits for where a
# rank would idle. The lab asks you for a schedule of your own that beats 1F1B under a cap.

# %% [markdown]
# ## Second sitting
#
# What stands above is the story, and the lab needs no more. On another day, run all cells above before you go on.
# Below: schedules that come round twice or idle less, the bytes that a W keeps while it waits, PipeDream, which is another
# algorithm, stages that are not equal, PyTorch's own pipelines, and what published runs make of all this.

# %%
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.func import functional_call

from course_kit.units import Count
from course_lib.model.gpt import GPT, GPTConfig, loss_of
from course_lib.pipeline import weight_gradients
from course_lib.pipeline.schedule import gaps, orders, peak_in_flight
from course_lib.pipeline.stages import GPTStage, partition_layers

# %% [markdown]
# ## 9 · Interleaved: come round twice
#
# The pipeline needs $P - 1$ steps to fill, and each lasts as long as a stage. So make stages shorter. Give each rank
# two short ones instead of a long one: rank 0 has stages 0 and 4, rank 1 has 1 and 5. A micro-batch comes round
# twice, filling goes in steps of half the length, and with $v$ stages on a rank the bubble is a $v$-th (Narayanan et
# al. 2021, §2.2.2; Grattafiori et al. 2024 plan Llama 3 by the same quotient, §3.3.2):
#
# $$\text{time} = 3M + \frac{3(P-1)}{v} \qquad\qquad \frac{\text{idle}}{\text{work}} = \frac{P-1}{vM}$$
#
# A rank's order is 1F1B's over a longer list, printed below. `visits` are the (short stage, micro-batch) pairs as they
# come to a rank, 4 micro-batches at a time: when rank 0 has taken the fourth through stage 0, the first is back from
# rank 3 and goes on in stage 4. Backwards the last stage comes first. What does the number `ahead` count?

# %%
display(show(orders.interleaved_order, docstring=False), show(orders.alternate, docstring=False))
inter = schedules.interleaved(4, 8, chunks=2)
print(inter)
is_the_same_step(inter, steps=1)

# %% [markdown]
# First come all visits of a group but those of the rank's last stage, $P(v - 1)$ of them. Then micro-batch 0 enters that
# last stage, which counts 1, takes $P - r - 1$ steps until it is through on rank $P - 1$, and as many until its gradient is
# back on rank $r$. Rank 0 runs $4 + 1 + 6 = 11$ forward passes ahead, and rank 1 runs 9. (`F0@4` is the forward pass of
# micro-batch 0 on stage 4.)
#
# Where is the catch? In 1F1B, 8 micro-batches cross 3 borders in both directions: 48 messages.

# %%
guess_inter = ask("Two stages on each rank, 8 micro-batches: ms for a step?", unit="ms")
guess_messages = ask("And messages, of all ranks together?")

# %%
display(
    compare(
        guess={"interleaved": guess_messages},
        predicted={"1f1b": Count(2 * 8 * 3), "interleaved": Count(2 * 8 * 7)},
        measured={"1f1b": runs.messages(ours), "interleaved": runs.messages(inter)},
    )
)
held_inter = runs.held(inter)
halves = {s: predict.in_flight(EIGHT, s, "interleaved", chunks=2) for s in (1, 2)}
print("all ranks, from 0 on:", ", ".join(f"{each:MiB}" for each in held_inter))
compare(
    predicted={f"rank {s}: {count} halves": Bytes(count * of_block) for s, count in halves.items()},
    measured={f"rank {s}: {count} halves": held_inter[s] for s, count in halves.items()},
    tolerance=0.02,
    unit="MiB",
)

# %% tags=["varies"]
inter_real = runs.for_real(inter)
pipeline_charts(inter_real, caption="Hatched is a rank's second stage. In the upper chart all gaps together are half as long as 1F1B's.").show()
predicted_s, measured_s = Seconds(0.02 * (24 + 9 / 2)), Seconds(inter_real["measured"].makespan)
display(compare(guess=guess_inter, predicted=predicted_s, measured=measured_s, tolerance=0.5, unit="ms", name="interleaved"))
print("interleaved was done before 1F1B:", measured_s < took["1f1b"])

# %% [markdown]
# More than twice the messages, since a micro-batch crosses 7 borders instead of 3 (and one of them leads from the
# last rank back to the first). In general it crosses $vP - 1$ borders instead of $P - 1$, each with a tensor as large as
# before: about $v$ times the bytes. And what a rank runs ahead it holds: rank 0 has 11 halves, 5.5 micro-batches instead
# of 4, rank 1 has 9 instead of 6. (Little more than a per cent comes on top, as in section 5: messages that wait.) In bytes rank 1 pays half as much
# again. Rank 0 pays nothing, since one of its two stages is the embedding, which keeps hardly anything. Time is bought with
# messages and memory.
#
# ## 10 · Zero-bubble: where does W go?
#
# Take 1F1B's order and cut each BW into B and W. If W follows its B at once, every rank waits three units less, but
# rank 0's gaps at the end stay. If every W goes to the end, all micro-batches are in flight.
# The rule between the two keeps some W back, on each rank another number of them. Rank 3 gets its first gradient three
# units before rank 0 does; what could it do in the meantime, and what must it not hold longer?
#
# **Your turn.** Write ZB-H1's order. Every rank may hold as many micro-batches as rank 0 does in 1F1B, and no more.

# %%
@your_turn(turns.check_zero_bubble, look="Count from 1F1B: how many micro-batches has rank r in flight, and how many may it have?")
def zero_bubble_order(stage, stages, micro_batches):
    """The actions of a stage in order, as text: F, B and W, no BW. `one_f_one_b_order` is at hand."""
    ...


# %% tags=["solution"]
@zero_bubble_order.solution
def zero_bubble_order(stage, stages, micro_batches):
    order = []
    for action in one_f_one_b_order(stage, stages, micro_batches):
        order.append(action.replace("BW", "B"))
        number = int(action.lstrip("FBW"))
        if action.startswith("BW") and number >= stage:
            order.append(f"W{number - stage}")
    return order + [f"W{number}" for number in range(max(0, micro_batches - stage), micro_batches)]


# %%
show(schedules.zero_bubble, docstring=False)

# %% [markdown]
# Rank $r$ has $P - r$ micro-batches in flight and may have $P$, so it keeps each W back for $r$ micro-batches: rank 0
# keeps none, rank 3 keeps three.
#
# Bytes are another matter: a W that waits keeps its $x$ and also its $g$. Both are among lesson 02's temporaries,
# beside what a running pass needs. So this cell adds temporaries to the activations, for 1F1B as well, which section 5
# counted without them.

# %%
eight, more = runs.held(zero, "temporaries"), runs.held(schedules.zero_bubble(4, 24), "temporaries")
print("1F1B, with its temporaries:", ", ".join(f"{each:MiB}" for each in runs.held(ours, "temporaries")))
each_rank = [f"zero-bubble, rank {s}" for s in range(4)]
compare(predicted=dict(zip(each_rank, eight)), measured=dict(zip(each_rank, more)), tolerance=0.01,
        unit="MiB", columns=("8 micro-batches", "24 micro-batches"))  # fmt: skip

# %% [markdown]
# Three times the micro-batches take the same memory. But every rank holds more than in 1F1B, and the last rank nearly
# three times as much.
#
# The paper says that ZB-H1 idles for $(P-1)(T_F + T_B - T_W)$ on a rank, where 1F1B idles for $(P-1)(T_F + T_B +
# T_W)$; $T_F$ is the time of an F, and so on. Follow rank 0. In 1F1B it runs $P$ forward passes ahead, then waits
# until micro-batch 0 comes back over $P - 1$ stages: $(P-1)(T_B + T_W)$. Later, while the pipeline drains, it has no
# forward pass to put between its last $P$ backward passes: $P - 1$ gaps of $T_F$. That is 1F1B's sum.
#
# Now split. A stage passes its gradient on after B, so rank 0 waits for $(P-1)\,T_B$ only. The ranks
# behind it put W off, so its last gradients come every $T_F + T_B$, without $T_W$. Its own B and W fit
# in, and $T_F - T_W$ of each gap is left. Add up. The sum holds for other costs, too, while a W is shortest. Let the chart count:

# %%
cases = {"F, B, W = 1, 1, 1": (1, 1, 1), "F, B, W = 3, 4, 2": (3, 4, 2), "F, B, W = 4, 3, 1": (4, 3, 1)}
charts = {name: simulate(schedules.zero_bubble(4, 12), schedules.Costs(*costs)) for name, costs in cases.items()}
compare(
    predicted={name: Ratio(3 * (f + b - w)) for name, (f, b, w) in cases.items()},
    measured={name: Ratio(chart.idle(0)) for name, chart in charts.items()},
    columns=("the paper's formula", "counted in the chart"),
)

# %% [markdown]
# Can it be none? The library's `fill_gaps` has one rule: keep the order of F and B, and put a W wherever the next of
# them cannot begin. ZB-H1 and two more are then an order and the `most` that a rank may hold.

# %%
show(gaps.fill_gaps, docstring=False)

# %%
EXTRA = {"zero-bubble": schedules.zero_bubble(4, 8), "zb-h2": schedules.zb_h2(4, 8), "zb-v": schedules.zb_v(4, 8)}
for name in ("zb-h2", "zb-v"):
    is_the_same_step(EXTRA[name], steps=1)
    print(f"in flight: {simulate(EXTRA[name]).peak_in_flight}, messages: {runs.messages(EXTRA[name])}")
drawn = {name: simulate(schedule) for name, schedule in EXTRA.items()}
pipeline_charts(drawn, "units", 1, caption="In the lower two no row has a gap between its first bar and its last, but they end as the stairs that they begin as. Hatched is a rank's second stage.").show()
compare(
    predicted={f"{name}, {how}": Ratio(predict.bubble(EIGHT, name, synchronized=how == "a barrier").over_ideal) for name in EXTRA for how in ("a barrier", "none")},
    measured={f"{name}, {how}": Ratio(chart.bubble_over_ideal if how == "a barrier" else chart.bubble_without_sync) for name, chart in drawn.items() for how in ("a barrier", "none")},
    columns=("formula", "counted in the chart"),
)  # fmt: skip

# %% [markdown]
# ZB-H2 runs $2(P - r) - 1$ forward passes ahead. From its first action to its last, no rank waits. But rank 3 begins three
# units after rank 0 and ends three units after it, and if all ranks wait before the next step, ZB-H2 with its
# $2P - 1$ micro-batches in flight is as fast as ZB-H1 with $P$. Its zero exists only where each rank goes on into the
# next step by itself. A gradient norm over all ranks would forbid it, so the paper steps first, and back where the norm is too large (Qi et al. 2023, §4).
#
# **ZB-V** has two stages on each rank, like interleaved, but folded: rank 0 has the first and the last. A micro-batch's
# backward pass begins where its forward pass began, so memory is free early. It holds 8 halves, 4 micro-batches, on
# every rank, idles for half as long even with a barrier, and sends twice as often (Qi et al. 2024).
#
# **DualPipe** lets micro-batches enter at both ends (DeepSeek-AI 2024, §3.2.1), so that each rank has an F of one half
# and a backward pass of the other to do together. The reason: while the one computes, the other's experts (lesson 13)
# exchange tokens. The price is two copies of the weights. The report counts $P + 1$ micro-batches on every rank and
# $(P/2 - 1)(F\&B + B - 3W)$ of idle time, with $B$ a whole backward pass and $F\&B$ the pair, overlapped, whose
# results leave together. In our chart F's result leaves before its partner begins, and it is $(P/2 - 1)(F + B - 2W)$.

# %%
both_ends = simulate(schedules.dualpipe(8, 16))
print(f"formulas: {8 + 1} held, {(8 // 2 - 1) * (1 + 2 - 2 * 1)} idle; in the chart:", both_ends.peak_in_flight, [both_ends.idle(rank) for rank in range(8)])

# %% [markdown]
# For all of them the backward pass is cut where the linear layers are. This is all of W:

# %%
show(weight_gradients.add_weight_gradients, docstring=False)

# %% [markdown]
# ## 11 · PipeDream: never drain
#
# The bubble is there because the pipeline drains before each optimizer step. PipeDream (Narayanan et al. 2019) does
# not drain. It steps after *every* backward pass, and the next micro-batch is on its way already. At once there is a
# problem: micro-batch 3 went forward through rank 0 before the update of micro-batch 0, and comes back after it. Its
# backward pass must see the weights of its forward pass, else it is the gradient of nothing. So rank 0 keeps the old
# ones, a **stash**.
#
# How many? In rank 0 there are at most 4 micro-batches in flight, and each may have seen other weights.

# %%
guess_stash = ask("Old weights on rank 0, in multiples of its weights?")


# %%
class Watched(Pipeline):
    """Notes how many updates (U) each forward pass had seen, and the most bytes of old weights."""

    seen, updates, stashed = (), 0, 0

    def _do(self, action, received):
        made = super()._do(action, received)
        self.seen += (self.updates,) if action.kind == "F" else ()
        self.updates += action.kind == "U"
        self.stashed = max(self.stashed, self.stash_bytes)
        return made


def pipedream_on_a_rank():
    schedule = schedules.pipedream(4, 8)
    stages = my_stages(schedule)
    parameters = dict(next(iter(stages.values())).named_parameters())
    watched = Watched(schedule, stages, optimizer=torch.optim.SGD(parameters.values(), lr=0.1))
    watched.forward_backward(micro_batches(0, 8))
    return watched.stashed, watched.seen, {name: p.detach() for name, p in parameters.items()}


# %%
dreamt = ranks.run(pipedream_on_a_rank, world_size=4)
own_bytes = [Bytes(sum(p.nbytes for p in weights.values())) for _, _, weights in dreamt]
stash = {f"rank {s}": Ratio(stashed / own_bytes[s]) for s, (stashed, _, _) in enumerate(dreamt)}
for s, (_, seen, _) in enumerate(dreamt):
    print(f"rank {s}: updates seen by the forward passes of micro-batches 0 to 7: {seen}")
compare(
    guess={"rank 0": guess_stash},
    predicted={f"rank {s}": Ratio(4 - 1 - s) for s in range(4)},
    measured=stash,
    columns=("P - 1 - s", "stashed / weights"),
)

# %% [markdown]
# Three old versions beside the newest on rank 0, none on rank 3. The other line is the price: on rank 0 a gradient is
# three updates old when it is applied, on rank 3 it is fresh. Let $w^{(t)}$ be the weights after $t$ updates, $w_s$ the
# part of stage $s$, $L_t$ the loss of micro-batch $t$ and $\eta$ the learning rate. Then each update is
#
# $$w^{(t+1)} = w^{(t)} - \eta\, \nabla L_t\big(w_0^{(t-3)},\, w_1^{(t-2)},\, w_2^{(t-1)},\, w_3^{(t)}\big)$$
#
# (the paper's §3.3). That is a recurrence which *one* process can compute, without pipeline, messages or schedule.
# Does it come to the same weights? And how far is that from honest SGD, one micro-batch after the other?


# %%
def recurrence(delays):
    """One process: the parts of the model take gradients at weights of `delays` updates ago."""
    model, history = GPT(SMALL, dtype=torch.float64), []
    parts = [list(GPTStage(SMALL, each).state_dict()) for each in partition_layers([1.0] * 8, 4)]
    for t, batch in enumerate(micro_batches(0, 8)):
        history.append({name: p.detach().clone() for name, p in model.named_parameters()})
        then = {name: history[max(0, t - delay)][name] for delay, part in zip(delays, parts) for name in part}
        then = {name: weight.clone().requires_grad_() for name, weight in then.items()}
        gradients = torch.autograd.grad(functional_call(model, then, batch), list(then.values()))
        with torch.no_grad():
            for name, gradient in zip(then, gradients):
                model.get_parameter(name).sub_(0.1 * gradient)
    return {name: p.detach() for name, p in model.named_parameters()}


# %%
delayed, honest = recurrence([3, 2, 1, 0]), recurrence([0, 0, 0, 0])
start = dict(GPT(SMALL, dtype=torch.float64).named_parameters())
off = max((p - delayed[name]).abs().max() for *_, weights in dreamt for name, p in weights.items())
print(f"PipeDream on 4 ranks is the recurrence: {off < 1e-12}")
apart, way = (sum((a[n] - b[n]).norm() ** 2 for n in a) ** 0.5 for a, b in ((delayed, honest), (honest, start)))
print(f"after 8 updates from one seed, the two are apart by {apart / way:.0%} of honest SGD's way")

# %% [markdown]
# PipeDream is exactly what it says. Run for real, it looks like 1F1B, because that is its order: the library makes both
# by one call, and PipeDream puts an update, `U`, behind each `BW`. So after every green bar the weights are others.

# %%
display(show(schedules.one_f_one_b, docstring=False), show(schedules.pipedream, docstring=False))

# %% tags=["varies"]
pipeline_charts(runs.for_real(schedules.pipedream(4, 8)), caption="After each green bar a step was taken: eight updates, once filled, once drained.")

# %% [markdown]
# It is another algorithm than SGD. All schedules above it are arrangements of one and the same step; this one changes
# what is learned. (Eight steps tell how far weights come apart. Whether a loss suffers, they do not tell.) It buys a lot:
# 8 updates in the time of one 1F1B step, 33 units, where a pipeline that drains after each needs $8 \cdot 12$.
#
# Its authors went on in two directions (Narayanan et al. 2021, *Memory-efficient pipeline-parallel DNN training*).
# PipeDream-2BW collects several micro-batches for an update, so that two versions of the weights are enough, and each
# gradient is one update old. PipeDream-Flush drains: that is 1F1B. The large runs of this page drain, and it is not
# free for them. MT-NLG pays 12 to 18 % of all time for it (section 14). Llama 3 changed its schedule so that it could run
# fewer micro-batches than it has stages (Grattafiori et al. 2024, §3.3.2).
#
# ## 12 · What the formula leaves out
#
# **Stages that are not equal.** Until now each layer counted as one. A pipeline goes at the pace of its slowest stage.
# Here is a GPT with a larger vocabulary, on two ranks that really compute, one on each of your cores. Nobody sleeps. How
# long does each layer take, measured in both ranks at once, with one thread each, as they will run?

# %% tags=["varies"]
WIDE = GPTConfig(layers=6, width=128, heads=4, vocab_size=16_384, context=64, tied=False)
seconds = runs.seconds_of_layers(WIDE)
print("embedding, 6 blocks, head, in ms:", *(f"{1e3 * each:.1f}" for each in seconds))
by_number, by_cost = partition_layers([1.0] * 8, 2), partition_layers(seconds, 2)
print(f"equal numbers of layers: {by_number}; by cost: {by_cost}")

# %% tags=["varies"]
due, quickest = {}, {}
for name, layers in {"4 and 4 layers": by_number, "cut by cost": by_cost}.items():
    thirds = [sum(seconds[layer] for layer in stage) / 3 for stage in layers]  # a third each for F, B and W
    due[name] = Seconds(simulate(schedules.one_f_one_b(2, 8), schedules.Costs(thirds, thirds, thirds)).makespan)
    quickest[name] = runs.computing(WIDE, layers, schedules.one_f_one_b(2, 8))
pipeline_charts(quickest, caption="Above, rank 1 has the head, and rank 0 waits for it. Below, the cut follows the layers' seconds.").show()
compare(
    predicted=due,
    measured={name: Seconds(chart.makespan) for name, chart in quickest.items()},
    tolerance=None,
    unit="ms",
    columns=("from the layers' seconds", "measured"),
)

# %% [markdown]
# `partition_layers` is a small dynamic programme over measured seconds. On a machine that does other things besides, the
# seconds jump, the cut with them, and with the cut which of the two rows is the quicker one: run both cells twice. The layers are timed alone, each with its inputs at
# hand; how a stage of several differs from their sum, this page does not take apart. Where embedding and head are large,
# real runs give the first and the last stage fewer blocks. (Llama 3 takes one block from each of them; §3.3.2.)
#
# **Micro-batches that become small.** With 16 sequences in a step, more micro-batches are smaller ones: 16 of one
# sequence, instead of 1 of 16. Each kernel then has less to do, and what it costs to start one stays the same. Let $t(b)$
# be the time of a stage for a micro-batch of $b$ sequences. A step takes $(M + P - 1) \cdot t(16/M)$ (Narayanan et al.
# 2021, §3.4). The bubble falls with $M$, and $M \cdot t(16/M)$ rises. Which $M$ is best?

# %%
guess_size = ask("16 sequences, 4 stages of our small GPT: the best number of micro-batches, of 1, 2, 4, 8, 16?")

# %% tags=["varies"]
print(f"you said {guess_size.said}\n M   ms a sequence   bubble   ms a step   if each sequence took the least of these")
a_stage = {16 // size: 2 * sum(runs.seconds_of_layers(SMALL, size)[1:7]) / 6 for size in (16, 8, 4, 2, 1)}  # two blocks
least = min(took * count for count, took in a_stage.items())
for count, took in a_stage.items():
    step, at_least = (count + 3) * took, (count + 3) / count * least
    print(f"{count:2}{1e3 * took * count / 16:14.2f}{3 / (count + 3):12.0%}{1e3 * step:11.1f}{1e3 * at_least:14.1f}")

# %% [markdown]
# The last column is all that the bubble knows, and there more is always better. The column before it stops falling where
# the second column rises as fast as the bubble shrinks. Where that is, your machine decides; only a run on yours can tell.
# Messages are not in this table: their bytes stay the same, but there are $M$ each way on each border, each with the α of
# lesson 06.
#
# ## 13 · The real thing
#
# `torch.distributed.pipelining` has GPipe, 1F1B, interleaved 1F1B and zero-bubble schedules. A `PipelineStage` knows
# its neighbours, a schedule drives it. The first two are run beside ours. Same gradients?


# %%
def beside_pytorch(theirs, order):
    rank, batches, mine = dist.get_rank(), micro_batches(0, 8), my_stages(order(4, 8))
    pipeline, twin = Pipeline(order(4, 8), mine), my_stages(order(4, 8))[rank]
    schedule = theirs(PipelineStage(twin, rank, 4, torch.device("cpu")), 8, loss_fn=loss_of)
    inputs, targets = (torch.cat(part) for part in zip(*batches))
    given = {0: [inputs]}.get(rank, []), {3: {"target": targets, "losses": []}}.get(rank, {})
    schedule.step(*given[0], **given[1])  # the first step also exchanges shapes
    twin.zero_grad()
    with measure.traffic() as they:
        schedule.step(*given[0], **given[1])
        dist.barrier()
    with measure.traffic() as we:
        pipeline.forward_backward(batches)
        dist.barrier()
    off = max((p.grad - q.grad).abs().max().item() for p, q in zip(mine[rank].parameters(), twin.parameters()))
    return off, we.sent_bytes, they.sent_bytes


# %%
pairs = {"GPipe": (ScheduleGPipe, schedules.gpipe), "1F1B": (Schedule1F1B, schedules.one_f_one_b)}
beside = {name: ranks.run(beside_pytorch, *pair, world_size=4) for name, pair in pairs.items()}
for name, per_rank in beside.items():
    print(f"{name}: gradients equal PyTorch's on all ranks: {max(off for off, _, _ in per_rank) < 1e-12}")
rows = {f"{name}, {whose}": per_rank[1][place] for name, per_rank in beside.items()
        for place, whose in ((1, "ours"), (2, "PyTorch's"))}  # fmt: skip
compare(predicted=dict.fromkeys(rows, 2 * 8 * waiting), measured=rows, tolerance=0.05, unit="kB")

# %% [markdown]
# One thing it leaves to you: tied embeddings. It does not know that two stages hold one matrix.
#
# ## 14 · At scale
#
# **GPipe** calls the bubble negligible from $M \ge 4K$ on ($K$ is its letter for stages). How large is it there? The paper
# gives a reason besides: recomputation can be done earlier, while a stage waits for its gradient (§2.3). Then a
# micro-batch is 4 units of work, and the pipeline still fills and drains with 3. And with $M = 32$, how much faster than 2
# stages are 4 and 8? Its Table 3 was measured on eight P100s without NVLink.

# %%
for stages in (2, 4, 8):
    m, share = 4 * stages, simulate(schedules.gpipe(stages, 4 * stages)).bubble
    hidden = 3 * (stages - 1) / (4 * m + 3 * (stages - 1))
    print(f"{stages} stages, {m} micro-batches: {share:.1%} of all time is idle, {hidden:.1%} if recomputing fills some")

speed = {stages: stages * (1 - simulate(schedules.gpipe(stages, 32)).bubble) for stages in (2, 4, 8)}
# measured: Huang et al. 2019, Table 3, throughput of the Transformer on eight P100s without NVLink
compare(
    predicted={f"{stages} stages over 2": Ratio(speed[stages] / speed[2]) for stages in (4, 8)},
    measured={"4 stages over 2": Ratio(1.8), "8 stages over 2": Ratio(3.3)},
    tolerance=0.06,
    columns=("the bubble alone", "published"),
)

# %% [markdown]
# "Negligible" is between a ninth and nearly a fifth, or between a twelfth and a seventh where recomputing fills the gaps. And
# the bubble alone explains this table to 5 %. We chose it. Table 2 of the same paper, on TPUs, goes against
# it: with only 4 micro-batches its Transformer is 1.7, 3.2 and 4.8 times as fast on 2, 4 and 8 stages as in one
# micro-batch on 2, and the bubble alone allows 1.6, 2.3 and 2.9. There the batch was adjusted to the memory, the caption
# says, so two things change at once. (And Table 3's AmoebaNet, which cannot be cut into equal stages, reached 1.7 and 2.7.)
#
# **MT-NLG**, 530 billion parameters, 105 layers: 8-way tensor parallel inside a machine, and 35 stages of three
# layers each across machines. One replica is 280 GPUs. The batch is 1,920 sequences. We take one sequence for a
# micro-batch, which the paper's section does not say, and the bubble rests on it. With 8 replicas that is 240
# micro-batches for each pipeline, with 10 it is 192, with 12 it is 160. Now the same batch on more replicas: fewer
# micro-batches, so a larger share of bubble. Smith et al. 2022 (§2.4) print 60.1 seconds for a step on 8 replicas.
# Perfect scaling to 12 would give 40.1.

# %%
guess_mtnlg = ask("A step on 12 replicas: seconds?", unit="s")

# %%
units = {replicas: simulate(schedules.one_f_one_b(35, 1920 // replicas)) for replicas in (8, 10, 12)}
for replicas, chart in units.items():
    print(f"{replicas} replicas: bubble {chart.bubble:.1%} of all time, {chart.bubble_over_ideal:.1%} over the ideal")
print("in flight on the first stage:", peak_in_flight(schedules.one_f_one_b(35, 240).actions[0]), "micro-batches")
each = (60.1 - 44.4) / (240 - 160)  # s for one micro-batch more
print(f"{each:.3f} s a micro-batch, {60.1 - each * 274:.1f} s beside; so on 10 replicas {60.1 - each * 48:.1f} s")
# measured: seconds of a step on the Selene cluster, Smith et al. 2022, section 2.4
compare(
    guess={"12 replicas": guess_mtnlg},
    predicted={f"{n} replicas": Seconds(60.1 * units[n].makespan / units[8].makespan) for n in (10, 12)},
    measured={"10 replicas": Seconds(50.2), "12 replicas": Seconds(44.4)},
    tolerance=0.05,
    unit="s",
    columns=("the bubble alone", "published"),
)

# %% [markdown]
# More than half of what is lost between 8 and 12 replicas is the bubble. For the rest the paper gives no account. It is
# as if some seconds were shared by no replica: a time $a$ for each of $M + 34$ micro-batches and a constant, both drawn
# through 8 and 12 replicas, also meet 10 within 1 % (the last line that is printed). The all-reduce at the end hardly
# grows with the replicas: a ring sends $2 \cdot 7/8$ of the gradients with 8 replicas and $2 \cdot 11/12$ with 12, 5 % more of
# little (lesson 06).
#
# So a pipeline wants many micro-batches, data parallelism divides them among replicas, and lesson 07's critical batch size
# forbids making more. How to share out the ranks among tensor, pipeline and data parallelism is lesson 12's question.
#
# ## What to keep
#
# | question | answer |
# |---|---|
# | What crosses between two stages? | one activation there, its gradient back, for each micro-batch |
# | How long is a rank idle? | $P - 1$ times F and BW, whatever $M$ is |
# | Which percent is that? | $\frac{P-1}{M+P-1}$ of all time, $\frac{P-1}{M}$ over the ideal: say which |
# | What does all-forward-then-all-backward hold? 1F1B? | $M$ micro-batches; $P - s$ on stage $s$ |
# | How does the bubble shrink? | more micro-batches; shorter stages that come round; W where a rank would idle |
# | What does each cost? | smaller matrices; $v$ times the messages; $x$ and $g$ of each W that waits |
# | What does PipeDream change? | no bubble, old weights kept, old gradients applied: another algorithm |
# | What breaks it silently? | a missing $1/M$; tied ends that step apart; a backward pass with other weights than its forward pass |
# | What breaks it loudly? | sends that wait, in an order that closes a circle |
#
# ## Three exercises
#
# **1.** 8 stages, 1F1B. From how many micro-batches on is at most 10 % of all time idle?
#
# **2.** 16 stages, 64 micro-batches, 1F1B. How many micro-batches are in flight on the stage with number 5?
#
# **3.** Two ranks, two micro-batches. 1F1B takes 9 units of time. Write a schedule that takes 7 (F, B and W take one
# unit each).

# %%
answer_1 = None  # micro-batches

self_check(answer_1, turns.EXERCISES[0], hint="Section 3 has the share of all time. What is P?")

# %%
answer_2 = None  # micro-batches

self_check(answer_2, turns.EXERCISES[1], hint="Stages count from 0.")

# %%
answer_3 = None  # a line for each rank, such as "F0 F1 BW0 BW1\nF0 BW0 F1 BW1"

self_check(turns.units_of_two(answer_3), 7.0, hint="Section 7: which half of a BW does no other rank wait for?")

# %% [markdown]
# <details><summary>Answers</summary>
#
# 1. $7 / (M + 7) \le 0.1$ from $M = 63$ on.
# 2. $16 - 5 = 11$.
# 3. `F0 F1 B0 W0 B1 W1` on rank 0 and `F0 B0 F1 B1 W0 W1` on rank 1.
#
# </details>
#
# **To read on:** [GPipe](https://arxiv.org/abs/1811.06965), [PipeDream](https://doi.org/10.1145/3341301.3359646) and its
# [successors](https://arxiv.org/abs/2006.09503), [1F1B and interleaving in Megatron-LM](https://arxiv.org/abs/2104.04473),
# zero-bubble ([ZB-H1 and H2](https://arxiv.org/abs/2401.10241), [folded into a V](https://arxiv.org/abs/2405.15362)),
# [DeepSeek-V3](https://arxiv.org/abs/2412.19437), [MT-NLG](https://arxiv.org/abs/2201.11990), and
# [torch.distributed.pipelining](https://docs.pytorch.org/docs/stable/distributed.pipelining.html).
#
# **The lab**, `labs/lab09_pipeline_parallelism`, gives you a cap of memory and asks for a schedule that is done
# before 1F1B. A checker explains each illegal move, then your schedule runs on ranks.
