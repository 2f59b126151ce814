# %% [markdown]
# # 09 · Pipeline parallelism
#
# **The question:** what if the layers live on different machines?
#
# | | |
# |---|---|
# | Time | first sitting 55 minutes, second sitting 25; less than a minute of both together is computing on 2 CPU cores |
# | A GPU | changes nothing in schedules, bytes and gradients; only the seconds become smaller |
# | Opens | `pipeline/schedule/orders.py`, `pipeline/executor.py`, `pipeline/weight_gradients.py` |
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
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.func import functional_call

from course_kit import measure, ranks
from course_kit.compare import compare
from course_kit.notebook import ask, self_check, show, your_turn
from course_kit.units import Bytes, Count, Ratio, Seconds
from course_lib import predict
from course_lib.model import text
from course_lib.model.gpt import GPT, GPTConfig, loss_of
from course_lib.pipeline import schedule as schedules
from course_lib.pipeline import weight_gradients
from course_lib.pipeline.executor import PacedPipeline, Pipeline, paced_costs
from course_lib.pipeline.schedule import checked, parse, peak_in_flight, problems, simulate
from course_lib.pipeline.stages import GPTStage, layer_seconds, partition_layers
from course_lib.train.step import train_step
from course_pages.lesson09.explorer import PipelineExplorer
from course_pages.lesson09.pictures import pipeline_charts

# %% [markdown]
# ## 1 · Cut between layers
#
# Our GPT has 6 blocks, an embedding in front and a head behind, 8 layers in all. Each of 4 ranks gets two of them in
# a row: a **stage**. The batch comes in **micro-batches** of two sequences each; why, section 3 tells. (The numbers
# are float64 again, 8 bytes each, so that rounding is no excuse. A `schedule` knows which stages are whose; what else
# it knows, section 2 tells.)

# %%
SMALL = GPTConfig(layers=6, width=64, heads=4, vocab_size=256, context=64, tied=False)
TIED = GPTConfig(layers=6, width=64, heads=4, vocab_size=256, context=64)
STORIES = text.stories(seed=0)


def micro_batches(step, count):
    return [STORIES.batch(seed=0, step=step, rank=number, batch_size=2, context=64) for number in range(count)]


def my_stages(schedule, config=SMALL):
    """Stage number → module, for the stages of this rank."""
    layers = partition_layers([1.0] * (config.layers + 2), schedule.stages)  # equal shares: every layer counts as one
    mine = schedule.stages_of(dist.get_rank())
    return {stage: GPTStage(config, layers[stage], dtype=torch.float64) for stage in mine}


# %% [markdown]
# Forward is easily written: receive, compute, send. An activation is tokens × width, 2 · 64 × 64 numbers of 8 bytes.
# **Guess** while you read: there and back, how many kB does a rank in the middle send for one micro-batch?


# %%
def forward(stage, inputs, targets):
    """This rank's part of a forward pass: what came in, and what it made of it (the loss, on the last rank)."""
    rank, last, x = dist.get_rank(), dist.get_world_size() - 1, inputs
    if rank > 0:
        dist.recv(x := stage.recv_buffer(inputs), src=rank - 1)
        x.requires_grad_()
    y = stage(x, targets) if rank == last else stage(x)
    if rank < last:
        dist.send(y.detach(), dst=rank + 1)
    return x, y


guess_sent = ask("A middle rank: kB sent for one micro-batch, there and back?", unit="kB")

# %% [markdown]
# Autograd knows nothing of other ranks: the graph of $y$ ends at $x$, which arrived from nowhere.
#
# **Your turn.** Write the way back. After `y.backward(gradient)` the gradient of `x` stands in `x.grad`, and one
# other rank waits for it.


# %%
def check_backward(function):
    def on_each_rank():
        (stage,) = my_stages(schedules.naive(4, 1)).values()
        (batch,), whole = micro_batches(0, 1), GPT(SMALL, dtype=torch.float64)
        function(*forward(stage, *batch))
        whole(*batch).backward()
        wanted = {name: p.grad for name, p in whole.named_parameters()}
        mine = {name: p.grad for name, p in stage.named_parameters()}
        return max(float("inf") if g is None else (g - wanted[name]).abs().max().item() for name, g in mine.items())

    off = ranks.run(on_each_rank, world_size=4)
    assert max(off) < 1e-12, f"gradients should be the whole model's, but are off by {off} on ranks 0 to 3"


@your_turn(check_backward, look="The last rank starts from the loss and needs no gradient. Who waits for whose `x.grad`?")
def backward(x, y):
    """This rank's part of the backward pass, for what `forward` returned. All ranks call it."""
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
        backward(*forward(stage, *micro_batches(0, 1)[0]))
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
# drawn, checked and played on paper without any process. The library's `Pipeline` carries it out on ranks; its loop
# is short enough to read.

# %%
print(simulate(schedules.naive(4, 1)))
guess_idle = ask("Which percentage of the time is a rank idle?")
show(Pipeline.forward_backward, docstring=False)

# %% [markdown]
# The empty space has a name, the **bubble**. Papers measure it in two ways, and quote percents as if there were one:
#
# $$\text{GPipe: } \frac{\text{idle}}{\text{all time}} \qquad\qquad \text{Megatron-LM: } \frac{\text{idle}}{\text{working time}}$$
#
# Here a rank works 3 units of 12 and is idle for 9. That is 75 % in the one, and 300 % in the other.
#
# Now for real. Four ranks share your two cores, and would take turns. So we use a `PacedPipeline`, in slow motion:
# each action computes what it should, then sleeps until its time is over, as if the rank had a device of its own. 20
# ms for F, 40 for BW. Of two steps the quicker is drawn, below what was to be expected.


# %% tags=["varies"]
def steps_on_a_rank(schedule):
    stages, records = my_stages(schedule), []
    sgd = torch.optim.SGD([p for stage in stages.values() for p in stage.parameters()], lr=0.1)
    pipeline = PacedPipeline(schedule, stages, optimizer=sgd if schedule.is_asynchronous else None)
    for step in range(2):
        pipeline.forward_backward(micro_batches(step, schedule.micro_batches))
        records.append(pipeline.spans)
        dist.barrier()
    return records


def for_real(schedule):
    steps = zip(*ranks.run(steps_on_a_rank, schedule, world_size=schedule.ranks, diagnose=False))
    charts = [schedules.gantt_of(schedule.name, spans) for spans in steps]
    return {"ideal": simulate(schedule, paced_costs(schedule)), "measured": min(charts, key=lambda each: each.makespan)}


print(f"idle, in percent: you said {guess_idle.said}")
pipeline_charts(for_real(schedules.naive(4, 2)), caption="Down the stairs and up again: at any moment one rank works.")

# %% [markdown]
# ## 3 · GPipe: small pieces
#
# While rank 1 works on the first micro-batch, rank 0 could begin the second. GPipe (Huang et al. 2019) does it: all
# forward passes, then all backward passes. For stage $s$ that is one line:

# %%
def gpipe_order(stage, stages, micro_batches):
    return [f"F{n}" for n in range(micro_batches)] + [f"BW{n}" for n in range(micro_batches)]


def from_orders(order, stages, micro_batches):
    return parse("\n".join(" ".join(order(stage, stages, micro_batches)) for stage in range(stages)))


print(simulate(from_orders(gpipe_order, 4, 3)))
guess_all = ask("4 ranks, 8 micro-batches: idle, in percent of all time?")
guess_work = ask("And in percent of the working time?")

# %% [markdown]
# Count it in the chart. Each rank works for $M$ micro-batches, $3M$ units. The last rank begins $P - 1$ units late,
# and after its last backward pass the $P - 1$ other ranks still have one each, of 2 units. So a step takes
# $3(M + P - 1)$ units, and of these $3(P-1)$ are idle, on *every* rank:
#
# $$\frac{\text{idle}}{\text{all}} = \frac{P-1}{M+P-1} \qquad\qquad \frac{\text{idle}}{\text{work}} = \frac{P-1}{M}$$
#
# The bubble does not grow with $M$. The work does. `predict.bubble` has both formulas.

# %% tags=["varies"]
real = {count: for_real(from_orders(gpipe_order, 4, count)) for count in (1, 4, 8)}
pipeline_charts(real[8], caption="Filling and draining cost the same for 8 micro-batches as for one.").show()
display(
    compare(
        predicted={f"M = {count}": Seconds(0.06 * (count + 3)) for count in real},
        measured={f"M = {count}": Seconds(both["measured"].makespan) for count, both in real.items()},
        tolerance=None,
        unit="ms",
    )
)
EIGHT = predict.Setup(SMALL, batch_size=16, micro_batch=2, pipeline=4)
expected, drawn = predict.bubble(EIGHT, "gpipe"), real[8]["measured"]
compare(
    guess={"% of all time": guess_all, "% of working time": guess_work},
    predicted={"% of all time": 100 * expected.over_all, "% of working time": 100 * expected.over_ideal},
    measured={"% of all time": Ratio(100 * drawn.bubble), "% of working time": Ratio(100 * drawn.bubble_over_ideal)},
    tolerance=None,
)

# %% [markdown]
# On paper, eight times the work in less than three times the time. (The measured bubble is larger than the ideal one:
# messages take time, and two cores serve four ranks.)
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
# micro-batches. Say a number of MiB before you run the cell.

# %%
LAYERS = partition_layers([1.0] * 8, 4)
tokens, width, hidden, attended = 2 * 64, 64, 4 * 64, 4 * 64
of_block = 8 * tokens * (8 * width + 2 * hidden + attended + 4) + 64 * 64
of_one = Bytes(2 * of_block)
print(f"one micro-batch in stage 1: {of_one:KiB}; its message: {Bytes(2 * 64 * 64 * 8):KiB}")


def held_on_a_rank(schedule):
    pipeline, batch = Pipeline(schedule, my_stages(schedule)), micro_batches(0, schedule.micro_batches)
    with measure.memory(inputs=batch) as record:
        pipeline.forward_backward(batch)
    return Bytes(record.timeline["activations"].max())


held_by_gpipe = ranks.run(held_on_a_rank, from_orders(gpipe_order, 4, 8), world_size=4)
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
def check_order(function):
    for stages, count in ((2, 3), (4, 8), (4, 2)):
        schedule, case = from_orders(function, stages, count), f"{stages} stages, {count} micro-batches"
        assert not (found := problems(schedule)), f"{case}: {found[0]}"
        wanted, held = [min(count, stages - s) for s in range(stages)], list(map(peak_in_flight, schedule.actions))
        assert held == wanted, f"{case}: {wanted} should be in flight at most, but it is {held}"
        took, due = simulate(schedule).makespan, 3 * (count + stages - 1)
        assert took == due, f"{case}: should take {due} units, but takes {took:g}"


@your_turn(check_order, look="Fewer micro-batches than P - s? Slices forgive: `[][:3]` is empty.")
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
held = ranks.run(held_on_a_rank, ours, world_size=4)
waiting = Bytes(2 * 64 * 64 * 8)  # a message that arrived before it is needed
compare(
    predicted={f"rank {s}": Bytes(predict.in_flight(EIGHT, s, "1f1b") * of_one) + waiting for s in (1, 2)},
    measured={f"rank {s}": held[s] for s in (1, 2)},
    tolerance=0,
    unit="MiB",
)

# %% [markdown]
# The same bubble, and instead of 8 micro-batches rank 1 holds 3: $P - s$, *whatever $M$ is*. (Beside them waits one
# message that has come early.) Now $M$ may be a hundred. Rank 0 holds most, 4, and the last rank one.
#
# ## 6 · Is it still training?
#
# Three things break in silence, or loudly. First, the sum. Micro-batches' gradients add up in `.grad`, and the loss
# is a *mean*. So each micro-batch's loss counts $1/M$, or exactly: its share of the tokens (lesson 05). Somebody
# forgets it. With plain SGD, how far from the right place does the first step land, in lengths of the right step?

# %%
guess_miss = ask("8 micro-batches without 1/M: missed by how many steps?")


def missed(kind, schedule, config=SMALL, steps=3):
    """How far each step ends from the single-device step's weights, in lengths of that step."""
    stages, whole = my_stages(schedule, config), GPT(config, dtype=torch.float64)
    sgd = [torch.optim.SGD(p, lr=0.1) for p in ([q for s in stages.values() for q in s.parameters()], whole.parameters())]
    pipeline, wanted, far = kind(schedule, stages), dict(whole.named_parameters()), []
    for step in range(steps):
        before = {name: p.detach().clone() for name, p in wanted.items()}
        batches = micro_batches(step, schedule.micro_batches)
        train_step(whole, sgd[1], [torch.cat(part) for part in zip(*batches)])
        sgd[0].zero_grad()
        pipeline.forward_backward(batches)
        sgd[0].step()
        pairs = [(p, wanted[name], before[name]) for s in stages.values() for name, p in s.named_parameters()]
        far.append(max(((p - q).norm() / (q - start).norm()).item() for p, q, start in pairs))
    return far


# %%
class WithoutShare(Pipeline):
    def _count_loss(self, loss, share):
        super()._count_loss(loss, share)
        return loss


def is_the_same_step(schedule, steps=3):
    off = max(map(max, ranks.run(missed, Pipeline, schedule, steps=steps, world_size=4)))
    print(f"{schedule.name}: after every step the weights of one process: {off < 1e-9}")


is_the_same_step(schedules.gpipe(4, 8))
is_the_same_step(ours)
first = ranks.run(missed, WithoutShare, ours, steps=1, world_size=4)[2][0]
compare(guess=guess_miss, predicted=Ratio(7), measured=Ratio(first), tolerance=1e-6, name="steps missed")

# %% [markdown]
# Gradients are 8 times too long, so the step lands 7 steps beyond the right place. (With Adam you would see next
# to nothing. Lesson 07 showed why.)
#
# **The order of sends.** Your `backward` used `dist.send`, which waits until somebody receives. In 1F1B two
# neighbours sometimes want to give each other something at the same moment. What happens then? The library knows
# beforehand. And then it happens.


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


far = ranks.run(missed, Tied, ours, TIED, steps=1, world_size=4)
print("missed by, in lengths of the right step:", *(f"rank {rank}: {each[0]:.3f}" for rank, each in enumerate(far)))

# %% [markdown]
# Ranks 1 and 2 step as they should. The ends have drifted apart, in the first step, and there is no model any more of
# which both are copies.
#
# **Your turn.** Repair `add`. Both ends call it with their part of the gradient.


# %%
def check_ends(function):
    far = ranks.run(missed, type("Yours", (Tied,), {"add": function}), ours, TIED, steps=1, world_size=4)
    off = max(far[0] + far[3])
    assert off < 1e-9, f"both ends should step like one process, but miss its step by {off:.0%}"


@your_turn(check_ends, look="If both `send` first, both wait. And what you send must not change before it has left.")
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


# %% [markdown]
# ## 7 · Fill the bubble
#
# Look at 1F1B's chart again. When a stage works backwards, who waits for it? The stage before waits for the gradient
# of its *input*. For the gradients of the *weights* nobody waits until the optimizer's step. They are two different
# products: for $y = xW$ and $g = \partial L / \partial y$ the one is $gW^{\mathsf T}$, the action B; the other is
# $x^{\mathsf T} g$, the action W. Each costs as much as the forward pass. So BW falls into halves, and W can be put
# where a rank would idle (Qi et al. 2023, the schedule ZB-H1). The library takes 1F1B's order apart in the function
# below. Which line keeps a W back, and for how long?

# %%
display(show(schedules.zero_bubble, docstring=False))
zero = schedules.zero_bubble(4, 8)
print(simulate(zero))
print("in flight at most:", simulate(zero).peak_in_flight)
is_the_same_step(zero, steps=1)
guess_zero = ask("ms for a step, if 1F1B takes 660 and an F, a B or a W takes 20?", unit="ms")

# %% tags=["varies"]
zero_real, ours_real = for_real(zero), for_real(ours)
three = {"1F1B, measured": ours_real["measured"]} | {f"zero-bubble, {name}": each for name, each in zero_real.items()}
pipeline_charts(three, caption="Orange fills what was white. Compare the ends of the rows, above and below.").show()
compare(
    guess={"zero-bubble": guess_zero},
    predicted={"1f1b": Seconds(33 * 0.02), "zero-bubble": Seconds(27 * 0.02)},
    measured={"1f1b": Seconds(ours_real["measured"].makespan), "zero-bubble": Seconds(zero_real["measured"].makespan)},
    tolerance=None,
    unit="ms",
)

# %% [markdown]
# `Action("W", stage, number - stage)` keeps each W back for as many micro-batches as the stage's number says: rank 0
# keeps none, rank 3 keeps three.
#
# Of rank 0's 9 idle units 3 remain. It waited 6 for its first gradient; now 3, since every stage passes the gradient
# on after B. And the three gaps at the end of its row are filled with W. No rank holds more than rank 0 did already.
# (What was free on the later ranks is used.)
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
# 2. Start from GPipe, 4 ranks and 4 micro-batches. Turn it into 1F1B by moving. With which rank must you begin?
# 3. In zero-bubble, move rank 0's orange `W0` three places later. What gets worse, and what does not? Undo it, and
# move rank 3's `W0` one place later.
# 4. Interleaved, and 6 micro-batches?

# %% [markdown]
# <details><summary>Answers</summary>
#
# 1. It costs 3 units: rank 0 no longer runs far enough ahead, and every rank behind waits once. The second move would
# be a deadlock. Rank 1 turns round only after its `F2`, which rank 0 would send only afterwards.
# 2. With rank 3, which needs nobody for `BW0`. If rank 0 went first, it would wait for a gradient that the others
# make only after forward passes that rank 0 has not yet sent.
# 3. Nobody waits for it, so the step still takes 27 units, but rank 0 holds a fifth micro-batch. On rank 3 it filled
# a gap: `F4` has not arrived yet, the rank waits a unit, and the step takes 28.
# 4. Then there is no schedule: they come round in groups of as many as there are ranks.
#
# </details>
#
# That is the story: cut between layers, go on in micro-batches, turn round early, and put what nobody waits for where
# nobody works. Memory is $P - s$ micro-batches, messages are one activation each way, and the lab asks you for a
# schedule of your own that beats 1F1B under a cap.

# %% [markdown]
# ## Second sitting
#
# What stands above is the story, and the lab needs no more. On another day, run all cells above before you go on.
# Below: two further schedules with their proofs, stages that are not equally long, PyTorch's own pipelines, and what
# published runs make of all this.
#
# ## 9 · Interleaved: come round twice
#
# The pipeline needs $P - 1$ steps to fill, and each lasts as long as a stage. So make stages shorter. Give each rank
# two short ones instead of a long one: rank 0 has stages 0 and 4, rank 1 has 1 and 5. A micro-batch comes round
# twice, filling goes in steps of half the length, and with $v$ stages on a rank the bubble is a $v$-th (Narayanan et
# al. 2021, §2.2.2):
#
# $$\text{time} = 3M + \frac{3(P-1)}{v} \qquad\qquad \frac{\text{idle}}{\text{work}} = \frac{P-1}{vM}$$
#
# Where is the catch? In 1F1B, 8 micro-batches cross 3 borders in both directions: 48 messages.

# %%
inter = schedules.interleaved(4, 8, chunks=2)
print("stages of each rank:", [inter.stages_of(rank) for rank in range(4)])
print("in flight at most, in stages of half a rank:", simulate(inter).peak_in_flight)
is_the_same_step(inter, steps=1)
guess_inter = ask("Two stages on each rank, 8 micro-batches: ms for a step?", unit="ms")
guess_messages = ask("And messages, of all ranks together?")


# %%
def messages_of_a_rank(schedule):
    pipeline = Pipeline(schedule, my_stages(schedule))
    with measure.traffic() as sent:
        pipeline.forward_backward(micro_batches(0, schedule.micro_batches))
    return sent.messages["send"]


compare(
    guess={"interleaved": guess_messages},
    predicted={"1f1b": Count(2 * 8 * 3), "interleaved": Count(2 * 8 * 7)},
    measured={
        "1f1b": Count(sum(ranks.run(messages_of_a_rank, ours, world_size=4))),
        "interleaved": Count(sum(ranks.run(messages_of_a_rank, inter, world_size=4))),
    },
)

# %% tags=["varies"]
inter_real = for_real(inter)
pipeline_charts(inter_real, caption="Hatched is a rank's second stage. Together the gaps are half as long as 1F1B's.").show()
predicted_s, measured_s = Seconds(0.02 * (24 + 9 / 2)), Seconds(inter_real["measured"].makespan)
compare(guess=guess_inter, predicted=predicted_s, measured=measured_s, tolerance=None, unit="ms", name="interleaved")

# %% [markdown]
# More than twice the messages, since a micro-batch crosses 7 borders instead of 3 (and one of them leads from the
# last rank back to the first). Rank 0 holds 11 halves, 5.5 micro-batches instead of 4. Time is bought with messages
# and memory.
#
# ## 10 · Zero-bubble: why a third
#
# The paper says that ZB-H1 idles for $(P-1)(T_F + T_B - T_W)$ on a rank, where 1F1B idles for $(P-1)(T_F + T_B +
# T_W)$; $T_F$ is the time of an F, and so on. Follow rank 0. In 1F1B it runs $P$ forward passes ahead, then waits
# until micro-batch 0 comes back over $P - 1$ stages: $(P-1)(T_B + T_W)$. Later, while the pipeline drains, it has no
# forward pass to put between its last $P$ backward passes: $P - 1$ gaps of $T_F$. That is 1F1B's sum.
#
# Now split. A stage passes its gradient on after B, so rank 0 waits for $(P-1)\,T_B$ only. And into each of the $P -
# 1$ gaps goes a W, so $T_F - T_W$ is left of it. Add up. That holds for other costs, too, while a W is the shortest
# of the three; let the chart count:

# %%
cases = {"F, B, W = 1, 1, 1": (1, 1, 1), "F, B, W = 3, 3, 2": (3, 3, 2), "F, B, W = 2, 2, 1": (2, 2, 1)}
charts = {name: simulate(schedules.zero_bubble(4, 12), schedules.Costs(*costs)) for name, costs in cases.items()}
compare(
    predicted={name: Ratio(3 * (f + b - w)) for name, (f, b, w) in cases.items()},
    measured={name: Ratio(chart.idle(0)) for name, chart in charts.items()},
    columns=("the paper's formula", "counted in the chart"),
)

# %% [markdown]
# With $2P - 1$ micro-batches in flight, and an optimizer step that does not wait for all, the paper's next schedule
# reaches zero, hence the name. The backward pass is cut where the linear layers are. This is all of W:

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
# How many? In rank 0 there are at most 4 micro-batches in flight, and each may have seen other weights. **Guess** the
# bytes of old weights on rank 0, in multiples of its weights.

# %%
print(simulate(schedules.pipedream(4, 4)))
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
# three updates old when it is applied, on rank 3 it is fresh. With $w^{(t)}$ the weights after $t$ updates and $w_s$
# the part of stage $s$, each update is
#
# $$w^{(t+1)} = w^{(t)} - \eta\, \nabla L_t\big(w_0^{(t-3)},\, w_1^{(t-2)},\, w_2^{(t-1)},\, w_3^{(t)}\big)$$
#
# (the paper's §3.3). That is a recurrence which *one* process can compute, without pipeline, messages or schedule.
# Does it come to the same weights? And how far is that from honest SGD, one micro-batch after the other?


# %%
def recurrence(delays):
    """One process: the parts of the model take gradients at weights of `delays` updates ago."""
    model, history = GPT(SMALL, dtype=torch.float64), []
    parts = [list(GPTStage(SMALL, each).state_dict()) for each in LAYERS]
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
print(f"after 8 updates it is {apart / way:.0%} of the way away from honest SGD")

# %% [markdown]
# PipeDream is exactly what it says. Run for real, it looks like 1F1B, because that is its order. But after every
# green bar the weights are others.

# %% tags=["varies"]
pipeline_charts(for_real(schedules.pipedream(4, 8)), caption="After each green bar a step was taken: eight updates, once filled, once drained.")

# %% [markdown]
# It is another algorithm than SGD. All schedules above it are arrangements of one and the same step; this one changes
# what is learned. It buys a lot: 8 updates in the time of one 1F1B step, 33 units, where a drained pipeline needs $8
# \cdot 12$. Large language models are trained without it all the same: their batches have hundreds of micro-batches
# per update anyway, so draining costs little, and nobody wants to ask after a bad loss whether it was the delay.
#
# ## 12 · Stages that are not equal
#
# Until now each layer counted as one. A pipeline goes at the pace of its slowest stage. Here is a GPT with a larger
# vocabulary, on two ranks that really compute, one on each of your cores. Nobody sleeps. How long does each layer
# take?

# %% tags=["varies"]
WIDE = GPTConfig(layers=6, width=128, heads=4, vocab_size=16_384, context=64, tied=False)
seconds = layer_seconds(WIDE, torch.zeros(2, 64, dtype=torch.long))
print("embedding, 6 blocks, head, in ms:", *(f"{1e3 * each:.1f}" for each in seconds))
by_number, by_cost = partition_layers([1.0] * 8, 2), partition_layers(seconds, 2)
print(f"equal numbers of layers: {by_number}; by cost: {by_cost}")


def computing_on_a_rank(layers):
    schedule = schedules.one_f_one_b(2, 8)
    pipeline, records = Pipeline(schedule, {dist.get_rank(): GPTStage(WIDE, layers[dist.get_rank()])}), []
    tokens = torch.randint(0, 16_384, (2, 64), generator=torch.Generator().manual_seed(0))
    for _ in range(3):
        pipeline.forward_backward([(tokens, tokens)] * 8)
        records.append(pipeline.spans)
        dist.barrier()
    return records


# %% tags=["varies"]
due, quickest = {}, {}
for name, layers in {"4 and 4 layers": by_number, "cut by cost": by_cost}.items():
    thirds = [sum(seconds[layer] for layer in stage) / 3 for stage in layers]  # a third each for F, B and W
    due[name] = Seconds(simulate(schedules.one_f_one_b(2, 8), schedules.Costs(thirds, thirds, thirds)).makespan)
    runs = zip(*ranks.run(computing_on_a_rank, layers, world_size=2, diagnose=False))
    quickest[name] = min((schedules.gantt_of(name, spans) for spans in runs), key=lambda chart: chart.makespan)
pipeline_charts(quickest, caption="Above, rank 1 has the head and rank 0 waits for it. Below, the work is shared.").show()
compare(
    predicted=due,
    measured={name: Seconds(chart.makespan) for name, chart in quickest.items()},
    tolerance=None,
    unit="ms",
    columns=("from the layers' seconds", "measured"),
)

# %% [markdown]
# `partition_layers` is a small dynamic programme over measured seconds. (Nobody sleeps here, so other programs on your cores make
# the measured charts longer than the layers' seconds promise.) Where embedding and head are large, real runs give the
# first and the last stage fewer blocks. (Llama 3 takes one block from each of them; Grattafiori et al. 2024, §3.3.2.)
#
# ## 13 · The real thing
#
# `torch.distributed.pipelining` has GPipe, 1F1B, interleaved 1F1B and zero-bubble schedules. A `PipelineStage` knows
# its neighbours, a schedule drives it. Same gradients?


# %%
def beside_pytorch(theirs, order):
    rank, batches, ours = dist.get_rank(), micro_batches(0, 8), my_stages(order(4, 8))
    pipeline, twin = Pipeline(order(4, 8), ours), my_stages(order(4, 8))[rank]
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
    off = max((p.grad - q.grad).abs().max().item() for p, q in zip(ours[rank].parameters(), twin.parameters()))
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
# **GPipe** calls the bubble negligible from $M \ge 4K$ on ($K$ is its letter for stages). How large is it there? And
# with $M = 32$, how much faster than 2 stages are 4 and 8? Its Table 3 was measured on eight P100s without NVLink.

# %%
for stages in (2, 4, 8):
    share = simulate(schedules.gpipe(stages, 4 * stages)).bubble
    print(f"{stages} stages, {4 * stages} micro-batches: {share:.1%} of all time is idle")

speed = {stages: stages * (1 - simulate(schedules.gpipe(stages, 32)).bubble) for stages in (2, 4, 8)}
# measured: throughput of the Transformer on P100s without NVLink, Huang et al. 2019, Table 3
compare(
    predicted={f"{stages} stages over 2": Ratio(speed[stages] / speed[2]) for stages in (4, 8)},
    measured={"4 stages over 2": Ratio(1.8), "8 stages over 2": Ratio(3.3)},
    tolerance=0.06,
    columns=("the bubble alone", "published"),
)

# %% [markdown]
# "Negligible" is between a ninth and nearly a fifth, by its own measure. And the bubble alone explains the table to 5 %.
# (That is its Transformer, whose layers are all alike. Its AmoebaNet, which cannot be cut into equal stages, reached
# 1.7 and 2.7.)
#
# **MT-NLG**, 530 billion parameters, 105 layers: 8-way tensor parallel inside a machine, and 35 stages of three
# layers each across machines. One replica is 280 GPUs. The batch is 1,920 sequences, one in a micro-batch. With 8
# replicas that is 240 micro-batches for each pipeline, with 10 it is 192, with 12 it is 160. Now the same batch on
# more replicas: fewer micro-batches, so a larger share of bubble. Smith et al. 2022 (§2.4) print 60.1 seconds for a
# step on 8 replicas. **Guess:** on 12, where perfect scaling would give 40.1?

# %%
guess_mtnlg = ask("A step on 12 replicas: seconds?", unit="s")

# %%
units = {replicas: simulate(schedules.one_f_one_b(35, 1920 // replicas)) for replicas in (8, 10, 12)}
for replicas, chart in units.items():
    print(f"{replicas} replicas: bubble {chart.bubble:.1%} of all time, {chart.bubble_over_ideal:.1%} over the ideal")
print("in flight on the first stage:", peak_in_flight(schedules.one_f_one_b(35, 240).actions[0]), "micro-batches")
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
# More than half of what is lost between 8 and 12 replicas is the bubble. (For the rest the paper gives no account.
# More replicas also mean a longer all-reduce at the end, lesson 07.) So a pipeline wants many micro-batches, data
# parallelism divides them among replicas, and lesson 07's critical batch size forbids making more. How to share out
# the ranks among tensor, pipeline and data parallelism is lesson 12's question.
#
# ## What to keep
#
# | question | answer |
# |---|---|
# | What crosses between two stages? | one activation there, its gradient back, for each micro-batch |
# | How long is a rank idle? | $P - 1$ times F and BW, whatever $M$ is |
# | Which percent is that? | $\frac{P-1}{M+P-1}$ of all time, $\frac{P-1}{M}$ over the ideal: say which |
# | What does GPipe hold? 1F1B? | $M$ micro-batches; $P - s$ on stage $s$ |
# | How does the bubble shrink? | more micro-batches; shorter stages that come round; W where a rank would idle |
# | What does PipeDream change? | no bubble, old weights kept, old gradients applied: another algorithm |
# | What breaks it silently? | a missing $1/M$; tied ends that step apart; a backward pass with other weights than its forward pass |
# | What breaks it loudly? | sends that wait, in an order that closes a circle |
#
# ## Three exercises
#
# **1.** 8 stages. From how many micro-batches on is at most 10 % of all time idle?
#
# **2.** 16 stages, 64 micro-batches, 1F1B. How many micro-batches are in flight on the stage with number 5?
#
# **3.** Two ranks, two micro-batches. 1F1B takes 9 units of time. Write a schedule that takes 7 (F, B and W take one
# unit each).

# %%
answer_1 = None  # micro-batches

enough = next(m for m in range(1, 100) if simulate(schedules.gpipe(8, m)).bubble <= 0.1)
display(self_check(answer_1, enough, hint="7 / (M + 7)."))

answer_2 = None  # micro-batches

self_check(answer_2, peak_in_flight(schedules.one_f_one_b(16, 64).actions[5]), hint="Stages count from 0.")

# %%
answer_3 = None  # a line for each rank, such as "F0 F1 BW0 BW1\nF0 BW0 F1 BW1"

took = None if answer_3 is None else simulate(checked(parse(answer_3))).makespan
self_check(took, 7.0, hint="Split BW into B and W, and let rank 1 keep its Ws until nobody waits for it.")

# %% [markdown]
# **To read on:** [GPipe](https://arxiv.org/abs/1811.06965), [PipeDream](https://arxiv.org/abs/1806.03377), [1F1B and
# interleaving in Megatron-LM](https://arxiv.org/abs/2104.04473), [zero-bubble](https://arxiv.org/abs/2401.10241),
# [MT-NLG](https://arxiv.org/abs/2201.11990), and
# [torch.distributed.pipelining](https://docs.pytorch.org/docs/stable/distributed.pipelining.html).
#
# **The lab**, `labs/lab09_pipeline_parallelism`, gives you a cap of memory and asks for a schedule that is done
# before 1F1B. A checker explains each illegal move, then your schedule runs on ranks.
