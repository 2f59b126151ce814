# %% [markdown]
# # Lab 11 · One step late
#
# **The question:** the optimizer lives in main memory, and its processor is slow. What if the device does not wait for
# it? And what if main memory is too small as well?
#
# | | |
# |---|---|
# | Time | about 90 minutes |
# | Builds on | lesson 11: what may leave the device, and what its way back costs; lesson 04: fp32 copies of weights |
# | You write | two classes of three or four short methods, and three functions |
# | A GPU | is not needed: two objects stand for its two memories |
#
# | question | | points |
# |---|---|---|
# | 1 | What is kept away | 25 |
# | 2 | One step late | 45 |
# | 3 | One storey down | 30 |
#
# **The rules.** You may use all of torch and of Python but finished optimizers and finished offload: PyTorch's are out
# of bounds, and the library's. A function leaves what it is given as it was, gradients, modes and hooks among it, and
# draws no random numbers. Where it may change something, its contract says so. The checks look.
#
# An optimizer that leaves everything on the device gives the right weights as well, and one that waits at every step
# does, too. Only bytes tell the first, and only the order of events tells the second. So the checks weigh both
# memories, they count what crosses the link between them, and they look who waits for whom. No check has a stopwatch.
#
# Checks that you see here give you points and tell you what is wrong. More run when the lab is graded, on other
# sizes, dtypes and orders. Bytes count only for answers that are right. Cells that show your answer at work fail until
# there is one. That costs nothing.
#
# Question 2 builds on question 1. Question 3 needs no other.

# %%
import functools
import itertools
import json
import math
import os
import tempfile
import time
import weakref
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from unittest.mock import patch

# %%
import torch

from course_kit.checks import check
from course_kit.checks.habits import THERE, Unfilled, across
from course_kit.checks.held_bytes import outside_torch
from course_kit.checks.random_programs import random_programs
from course_kit.measure.flops import InAllThreads
from course_kit.measure.storages import tensors_in
from course_kit.measure.tracker import Tracker
from course_kit.notebook import ask
from course_kit.units import Bytes
from course_lib.model import text
from course_lib.model.gpt import GPT, GPTConfig
from course_lib.model.zoo import LLAMA3_405B
from course_pages.shared.losses import loss_curves

# %% [markdown]
# On your machine the device and main memory may be one and the same. So here an object stands for the far side of the
# link, its memory and the processor in it. **What `far.empty` returns lies there, and so does what one of its jobs
# makes. Everything else lies on the device.** The processor does its jobs one after the other, in the order in which
# they were submitted, while you go on. `result()` waits for a job, and for those before it.


# %%
FINISHED = ["torch.optim", "OffloadedAdamW", "zero_offload", "Disk", "DiskOffloadUnit", "DiskOffloadedModel", "copy_stream", "CopyStream"]
FINISHED += ["meter", "far_away", "f_locals"]  # nor does an answer ask its judge


class FarSide:
    """Main memory, and a processor that works in it."""

    def __init__(self):
        self._processor = ThreadPoolExecutor(max_workers=1)

    def empty(self, shape, dtype):
        """A tensor there. Nobody has filled it."""
        return torch.empty(shape, dtype=dtype)

    def submit(self, job, *args):
        """Let the processor run job(*args) when it gets to it. Its result() waits, and returns what the job does."""
        return self._processor.submit(job, *args)


# %% [markdown]
# A real processor is as fast as it likes. A mistake may show on one machine and sleep on another. So the checks bring
# a far side of their own. It does each job at once, when it is submitted, or as late as it may, when somebody
# waits, or at moments in between. Your answer must not be able to tell.


# %%
class Job:
    """What `submit` returns: `result()` waits, `done()` looks."""

    def __init__(self, far, work):
        self.far, self.work, self.outcome, self.problem = far, work, None, None

    def done(self):
        return self.work is None

    def result(self):
        while not self.done():
            self.far.do(1)
        if self.problem is not None:
            raise self.problem
        return self.outcome


# %%
class Waiting(FarSide):
    """Jobs that wait until somebody calls `do`."""

    def __init__(self, at_once=False, meter=None):
        self.at_once, self.meter, self.waiting, self.asked = at_once, meter or Meter(), deque(), []

    def do(self, count):
        """The next jobs, so many of them."""
        for _ in range(min(count, len(self.waiting))):
            job = self.waiting.popleft()
            with self.meter.far_away():
                try:
                    job.outcome = job.work()
                except Exception as problem:
                    job.problem = problem
            job.work = None


# %%
class Scripted(Waiting):
    """A far side whose processor works when the check says so: at once, or else when somebody waits."""

    def empty(self, shape, dtype):
        with self.meter.far_away():
            return torch.full(shape, math.nan, dtype=dtype)  # nobody has filled it

    def submit(self, job, *args):
        self.waiting.append(Job(self, functools.partial(job, *args)))
        self.asked.append(args)
        made = self.waiting[-1]
        self.do(int(self.at_once))
        return made


# %% [markdown]
# `Meter` is the tracker of lesson 02, which knows when each block of memory is taken and given back. Here it also knows
# on which side, and what crosses: where an operation reads a tensor that lies on one side, and what it makes lies on
# the other, those bytes have crossed.


# %%
class Sides(InAllThreads, Tracker):
    """What lies on which side, whichever thread makes it."""

    crossed = 0

    @contextmanager
    def far_away(self):
        """What is made in this context lies on the far side."""
        self.where.append("far")
        try:
            yield
        finally:
            self.where.pop()

    def side(self, tensor):
        return self.add(tensor)[0].place


# %%
class Meter(Sides):
    """What lies on which side, the bytes that have crossed, and what was computed over there without a job."""

    def __init__(self):
        super().__init__()
        self.strayed = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        sources = [(tensor, self.side(tensor)) for tensor in tensors_in([*args, *(kwargs or {}).values()])]
        result = super().__torch_dispatch__(func, types, args, kwargs)
        made = tensors_in(result)
        self.crossed += sum(tensor.nbytes for tensor, side in sources if made and side != self.side(made[0]))
        name = func._schema.name.removeprefix("aten::")
        computes = func._schema.is_mutable and name not in ("copy_", "zero_", "fill_")
        computes &= name != "add_" or (kwargs or {}).get("alpha", 1) != 1  # parts are added up, and no more
        if computes and made and not self.where and self.side(made[0]) == "far":
            self.strayed.add(name)
        return result


# %%
def held(meter, far):
    """Bytes on one side after each operation."""
    change = [0] * (meter.row + 2)
    for storage in meter.storages:
        for first, last, _, n_bytes in storage.spans(meter.row + 1) if (storage.place == "far") == far else ():
            change[first] += n_bytes
            change[last] -= n_bytes
    return [Bytes(n) for n in itertools.accumulate(change[:-1])]


# %% [markdown]
# And the judge. It keeps everything in plain sight, on the device, and has one thread. Its words are those of question
# 2. Nothing else in this lab is as easy to read.


# %%
def wide(dtype):
    """fp32 for 16 bits; fp32 and fp64 are wide enough."""
    return torch.promote_types(dtype, torch.float32)


# %%
class Masters:
    """Master copies in plain sight, and what changes them."""

    def __init__(self, weights, far, beta, warm_up):
        self.weights, self.beta, self.warm_up = weights, beta, warm_up
        self.steps, self.fresh, self.old = 0, {}, {}
        self.masters = [weight.detach().to(wide(weight.dtype), copy=True) for weight in weights]
        self.means, self.updates = [torch.zeros_like(master) for master in self.masters], [0] * len(weights)

    def finish(self):
        """What is old changes the weights."""
        for number, gradient in self.old.items():
            self.updates[number] += 1
            self.means[number] = self.beta * self.means[number] + (1 - self.beta) * gradient
            self.masters[number] -= self.lr * self.means[number] / (1 - self.beta ** self.updates[number])
            self.weights[number].detach().copy_(self.masters[number])
        self.old = {}


# %%
class InPlainSight(Masters):
    """The oracle: right weights, and no byte saved."""

    def take(self, number, gradient):
        """A gradient, or a part of one, is there."""
        self.fresh[number] = self.fresh.get(number, 0) + gradient.to(wide(gradient.dtype))

    def step(self, lr):
        """The gradients of the last step change the weights now; in the warm-up, those of this step do, too."""
        self.finish()
        self.old, self.fresh, self.lr = self.fresh, {}, lr
        if self.steps < self.warm_up:
            self.finish()
        self.steps += 1


# %% [markdown]
# ## 1 · What is kept away (25 points)
#
# The device has a weight in 16 bits and, for a moment, its gradient. All else is kept away: a master copy in 32 bits
# and a momentum. The optimizer is a small one, with the bias correction that you know from Adam. With $g$ the gradient
# and $k$ the number of this update *of this weight*, counted from 1:
#
# $$m \leftarrow \beta m + (1-\beta)\,g, \qquad w \leftarrow w - \eta\,\frac{m}{1-\beta^k}$$
#
# A weight may be idle for a while, as an expert is that no token chooses. Then $k$ stands still, and so does $m$.
#
# **Your contract.** A class `Away(weight, far, beta)`: what is kept away of one weight.
#
# - `weight` is a tensor on the device, fp16, bf16, fp32 or fp64, of any shape; it may want gradients. It is read once.
# Master and momentum are `wide(dtype)`.
# - `take(gradient)`: a gradient of the weight's dtype and shape (both may lie across in memory) has come, or a part: parts that come before the
# next update are added up, in `wide(dtype)`. After the call the device may do with its gradient what it likes.
# - `update(lr)` is what the processor does, so it is called as a job: `far.submit(away.update, lr)`. One step with what
# has come since the last one; if nothing has, no step. Either way it returns the new weight, in the weight's dtype, in
# memory of its own.
#
# **Bytes,** with $n$ elements of $s$ bytes each, and $S$ bytes in the wide dtype (1 KiB is free everywhere):
#
# | | most |
# |---|---|
# | on the far side, when nothing has come | $2S$ for each element |
# | … when a gradient has | $3S$ |
# | … while a job runs | $5S + s$ |
# | on the device, beside the weight and the gradient that came | 0 |
# | over the link, for a new object, and for each `take` | $s$ for each element |
# | over the link, by `update` | 0 |
#
# **Graded:** weights after every update (8 points), bytes (9), and other shapes, dtypes and numbers (8).

# %%
guess_link = ask("bf16 weights, one step: bytes that cross the link for each weight, out and back together?")


# %% answer="q1"
class Away:
    """What is kept away of one weight."""

    def __init__(self, weight, far, beta):
        """Master and momentum, on the far side."""
        ### BEGIN SOLUTION
        self.far, self.beta, self.dtype, self.updates, self.gradient = far, beta, weight.dtype, 0, None
        self.master = far.empty(weight.shape, wide(weight.dtype)).copy_(weight.detach())
        self.mean = far.empty(weight.shape, wide(weight.dtype)).zero_()
        ### END SOLUTION

    def take(self, gradient):
        """A gradient has come, or a part of one."""
        ### BEGIN SOLUTION
        if self.gradient is None:
            self.gradient = self.far.empty(self.master.shape, self.master.dtype).zero_()
        self.gradient.add_(gradient)
        ### END SOLUTION

    def update(self, lr):
        """The processor's job: a step with what has come. Returns the weight as the device wants it."""
        ### BEGIN SOLUTION
        gradient, self.gradient = self.gradient, None
        if gradient is not None:
            self.updates += 1
            self.mean.mul_(self.beta).add_(gradient, alpha=1 - self.beta)
            self.master.sub_(self.mean, alpha=lr / (1 - self.beta**self.updates))
        return self.master.to(self.dtype, copy=True)
        ### END SOLUTION


# %% [markdown]
# One weight, three gradients of 1, learning rate 0.1. With the correction each step is 0.1 long, also the first.

# %%
far = FarSide()
away = Away(torch.zeros(2, dtype=torch.bfloat16), far, beta=0.9)
for _ in range(3):
    away.take(torch.ones(2, dtype=torch.bfloat16))
    print(far.submit(away.update, 0.1).result())


# %%
def drawn(shape, dtype, seed):
    """Random numbers: weights, or gradients."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def check_weights(got, weights, what, look, updates):
    """Weights against the judge's: to the rounding of as many updates, and of their own dtype."""
    for number, (one, right) in enumerate(zip(got, weights, strict=True)):
        args = {"operations": 1} if right.dtype.itemsize == 2 else {"operations": 40 * updates + 40}
        check.close(one, right.detach(), f"{what}: weight {number}", look=look, **args)


# %%
MASTER = "the master copy; parts are added, in the wide dtype, and kept; k counts updates of this weight, from 1"


def updated(away, gradients, lr, weight):
    """What update returns when these parts of a gradient have come."""
    with Unfilled(), check.unchanged("the weight, after it was read", {"weight": weight}, look="what changes it"):
        for gradient in gradients:
            check.call(away.take, gradient)
            gradient.fill_(5)  # the device does with it what it likes
        return check.call(away.update, lr)


# %%
def check_away(parts, shape, beta, lr, dtype, at_once=False, seed=0, lay=torch.clone, scale=1):
    """`parts`: how many parts of a gradient come before each update; `lay`: how they lie in memory."""
    weight, own = (lay(scale * drawn(shape, dtype, seed)).requires_grad_() for _ in range(2))
    weight.grad = torch.full_like(weight, THERE)
    far, judge = Scripted(at_once), InPlainSight([own], None, beta, 10**6)
    with Unfilled():
        away, seeds, before = check.call(Away, weight, far, beta), itertools.count(100), []
    weight.detach().fill_(7)  # it was read, and is of no interest any longer
    for step, count in enumerate(parts):
        gradients = [lay(scale * drawn(shape, dtype, next(seeds))) for _ in range(count)]
        for gradient in gradients:
            judge.take(0, gradient)
        judge.step(lr / (1 + step))
        new = updated(away, gradients, lr / (1 + step), weight)
        what = f"after update {step + 1}, {count} parts of a gradient have come, {str(dtype)[6:]}"
        check_weights([new], [own], what, MASTER, step)
        check.that(not new.requires_grad, "… without a graph", look="whether the weight, or its values, were copied")
        before.append((new, new.clone()))
    same = all(torch.equal(*pair) for pair in before)
    check.that(same, "… and what an update returned stays as it was", look="which memory update returns")


# %%
def check_small_steps(updates, lr, shape):
    """Each step is below the weight's last bit; together they are not."""
    away = check.call(Away, torch.ones(shape, dtype=torch.bfloat16), Scripted(), 0.5)
    for _ in range(updates):
        check.call(away.take, torch.ones(shape, dtype=torch.bfloat16))
        new = check.call(away.update, lr)
    right, look = torch.full(shape, 1 - updates * lr, dtype=torch.bfloat16), "the dtype of the master copy"
    check.equal(new, right, f"a weight of 1 in bf16, after {updates} steps of {lr}", look=look)


# %% check="q1-values" points=8
check_away([1, 1, 2, 0, 1], (3, 4), 0.9, 0.1, torch.float32)
check_away([1, 0, 0, 3], (5,), 0.5, 0.2, torch.float64)
check_away([2, 1], (4, 2), 0.9, 0.1, torch.bfloat16)
check_small_steps(64, 2.0**-10, (3,))


# %%
def crossed(meter, fn, *args):
    """Bytes that a call sends over the link."""
    before = meter.crossed
    result = check.call(fn, *args)
    return result, Bytes(meter.crossed - before)


def check_sides(meter, far, near, when, look):
    """What lies on both sides now, and 1 KiB each."""
    check.at_most(held(meter, True)[-1], Bytes(far + 1024), f"bytes on the far side {when}", look=look)
    look = "what does not come from far.empty or from a job; whether a gradient is kept that came"
    check.at_most(held(meter, False)[-1], Bytes(near + 1024), f"bytes on the device {when}", look=look)


# %%
def parts_and_update(meter, outside, far, away, shape, dtype, s, S, lr):
    """Two parts of a gradient, and an update; both sides are weighed after each."""
    n, look = math.prod(shape), "what crosses in which dtype: it is as wide as the device has it"
    for seed in range(2):
        gradient = drawn(shape, dtype, seed)
        _, sent = crossed(meter, away.take, gradient)
        check.at_most(sent, Bytes(n * s), "bytes over the link for a gradient", look=look)
        del gradient
        check_sides(meter, 3 * S * n, n * s, "when a gradient has come", "one sum, in the wide dtype")
        check.at_most(outside(), Bytes(16384), "… in bytes objects, arrays and files", look="what is no tensor")
    before = meter.crossed
    check.call(far.submit, away.update, lr).result()
    check.equal(meter.crossed - before, 0, "bytes over the link by update", look="what the job reads")
    check_sides(meter, 2 * S * n, n * s, "after the update", "the gradient is used up")


# %%
def check_away_bytes(shape, dtype, beta=0.9, lr=0.1):
    weight, meter = drawn(shape, dtype, 0), Meter()
    n, s, S = weight.numel(), weight.itemsize, wide(dtype).itemsize
    with meter, outside_torch() as outside:
        meter.add(weight, from_start=True)
        far = Scripted(meter=meter)
        away, sent = crossed(meter, Away, weight, far, beta)
        check.at_most(sent, Bytes(n * s), "bytes over the link for a new object", look="in which dtype; where zeros_like puts it")
        check_sides(meter, 2 * S * n, n * s, "when nothing has come", "master, momentum, and nothing else")
        for _ in range(2):
            parts_and_update(meter, outside, far, away, shape, dtype, s, S, lr)
        peak, look = max(held(meter, True)), "how many temporaries a job makes: in-place operations make none"
        check.at_most(peak, Bytes((5 * S + s) * n + 1024), "bytes on the far side at the peak", look=look)
        look = "what take makes before the gradient is over there"
        check.at_most(max(held(meter, False)), Bytes(2 * n * s + 1024), "bytes on the device at the peak", look=look)
        check.at_most(outside(), Bytes(16384), "bytes in bytes objects, arrays and files", look="what is no tensor")


# %% check="q1-bytes" points=9
for method in (Away.__init__, Away.take, Away.update):
    check.written_with(method, forbidden=FINISHED)
check_away([1, 2, 0, 1], (100, 30), 0.9, 0.1, torch.float32)
check_small_steps(64, 2.0**-10, (3,))
check_away_bytes((100, 130), torch.bfloat16)

# %% check="q1-hidden" points=8
# Other shapes and dtypes, small gradients, idle weights, two weights in turn, and their bytes.
### BEGIN HIDDEN TESTS
#= A class `Away | - a name
#= `weight` is a tensor | always_in_fp32 master_with_a_graph gradient_in_a_row
#= It is read once | reads_the_weight_late
#= Master and momentum are | master_in_sixteen_bits always_in_fp32
#= `take(gradient)`: a gradient | last_part_only adds_parts_in_sixteen_bits gradient_in_a_row
#= After the call the device | keeps_what_came
#= `update(lr)` is what | - who calls it
#= One step with what | idle_weight_goes_on counts_idle_steps momentum_by_shape
#= Either way it returns | returns_the_wide_weight returns_the_master
#= *Bytes,** with $n$ | keeps_gradients_as_bytes
#= on the far side, when nothing | keeps_the_buffer
#= … when a gradient has | keeps_parts_apart
#= … while a job runs | temporaries_in_the_job
#= on the device, beside | states_on_the_device
#= over the link, for a new | widens_before_the_link widens_in_a_thread
#= over the link, by `update` | the_job_fetches_the_gradient
#= What is kept away of | - a name
#= Master and momentum, on | states_on_the_device momentum_unfilled
#= A gradient has come, or | last_part_only
#= The processor's job | counts_parts no_bias_correction
#= Returns the weight as | returns_the_wide_weight
#: other shapes and dtypes
check_away([0, 2, 1, 0, 1], (2, 3, 4), 0.8, 0.3, torch.float64, at_once=True, seed=1)
#: small gradients
check_small_steps(128, 2.0**-11, (5, 2))
#: other shapes and dtypes
check_away([8, 8], (9,), 0.0, 0.05, torch.bfloat16, seed=3)
check_away([1, 0, 3], (), 0.7, 1.0, torch.float32, seed=4)
check_away([2, 1], (3, 4), 0.7, 1.0, torch.float32, seed=6, lay=across)
check_away([2, 1], (6, 1), 0.6, 0.01, torch.float16, seed=5)
check_away([1, 2], (3, 4), 0.6, 0.01, torch.float32, seed=7, scale=3000)
#: their bytes
check_away_bytes((71, 137), torch.float32, beta=0.5, lr=0.01)
check_away_bytes((64, 64, 2), torch.float64, beta=0.3, lr=0.2)


def hidden_sum_of_parts():
    """Sixteen bits would lose every part but the first."""
    far = FarSide()
    away = check.call(Away, torch.zeros(3, dtype=torch.bfloat16), far, 0.5)
    for part in [1.0, *[2.0**-10] * 512]:
        check.call(away.take, torch.full((3,), part, dtype=torch.bfloat16))
    new = far.submit(away.update, 1.0).result()
    check.equal(new, torch.full((3,), -1.5, dtype=torch.bfloat16), "a large part and many small ones", look="take")


def hidden_two_at_once():
    """Two weights of one shape, whose gradients come in turn."""
    own = [drawn((4,), torch.float32, seed) for seed in range(2)]
    two, judge = [Away(each, Scripted(), 0.5) for each in own], InPlainSight(own, None, 0.5, 10**6)
    for step in range(3):
        for number, away in enumerate(two):
            gradient = drawn((4,), torch.float32, 10 * step + number)
            judge.take(number, gradient)
            away.take(gradient)
        judge.step(0.1)
        new = [away.update(0.1) for away in two]
        check_weights(new, own, f"two weights of one shape, update {step + 1}", "what two objects share", step)


#: small gradients
hidden_sum_of_parts()
#: two weights
hidden_two_at_once()
### END HIDDEN TESTS

# %% [markdown]
# ## 2 · One step late (45 points)
#
# An update takes the processor as long as it takes, and meanwhile the device has nothing to do. So let it go on, with
# weights that are one update old. (Ren et al. 2021 call it the one-step delayed parameter update.)
#
# | | the device | the processor |
# |---|---|---|
# | step $t$ | forward and backward pass; its gradients leave | |
# | step $t+1$ | forward and backward pass, **with the old weights** | updates them with the gradients of step $t$ |
# | end of step $t+1$ | takes the new weights | gets the gradients of step $t+1$ |
#
# At the beginning weights change fast, and an old gradient points somewhere else. So the delay begins after a warm-up.
# Until then each step waits for its own update. At the end, nobody may forget the last one.
#
# A backward pass takes the layers from the last to the first, and its gradients come in that order, one by one. The
# obvious answer has them lie beside those of step $t$, which the processor still needs: the whole gradient twice. It
# isn't necessary. Where does the first gradient of step $t+1$ lie, if its old one has been used by then? And in which
# order must the processor work, so that the device waits for as little as possible?
#
# **Your contract.** A class `Delayed(weights, far, beta, warm_up)`. It may use `Away`.
#
# - `weights` is a list of tensors on the device, and may want gradients. They change in place, by `step` and by
# `finish` and at no other moment. No job reads or writes them: the device is computing with them.
# - `take(number, gradient)`: a gradient of `weights[number]` has come, or a part of one. It comes in any order, and in
# some steps not at all. After the call the device may do with its gradient what it likes.
# - `step(lr)` ends a step. First it brings home the updates that are under way. Then the gradients of this step are
# submitted: **one job for each weight that has a gradient, in the order in which the first parts came**, and no other
# jobs. In the first `warm_up` steps it waits for these as well and brings them home; later it returns without
# waiting for one of them. Each is applied with the `lr` of the step in which it was computed.
# - `finish()` brings home what is under way, if anything is. Training may go on after that; the warm-up does not begin
# again.
# - `take` waits for the job that used this weight's last gradient, and for no job behind it.
#
# **Bytes,** as in question 1, and $N$ elements in all:
#
# | | most |
# |---|---|
# | on the far side, at any time | $3S + s$ for each of $N$, and $2S$ for each of the largest weight |
# | on the device, beside weights and the gradient that came | 0 |
# | over the link in a step | $s$ for each element of what came, and $s$ for each of a weight that changes |
#
# **Graded:** weights whenever they may be read, in scenes and in random lives (12 points), the loss of a real model
# (8), who waits for whom (8), bytes (8), and other orders and dtypes (9).

# %%
guess_late = ask("Ten steps, warm-up 3: how often has a weight changed when the last forward pass reads it?")


# %% answer="q2"
class Delayed:
    """An optimizer on the far side, whose updates are one step late after the warm-up."""

    def __init__(self, weights, far, beta, warm_up):
        """Nothing has come, nothing is under way."""
        ### BEGIN SOLUTION
        self.weights, self.far, self.warm_up, self.steps = list(weights), far, warm_up, 0
        self.away = [Away(weight, far, beta) for weight in self.weights]
        self.arrived, self.jobs = {}, {}  # by the numbers of the weights, in the order in which they came
        ### END SOLUTION

    def take(self, number, gradient):
        """A gradient of weights[number], or a part of one."""
        ### BEGIN SOLUTION
        if number in self.jobs:
            self.jobs[number].result()  # which has used the memory that this gradient takes now
        self.away[number].take(gradient)
        self.arrived[number] = True
        ### END SOLUTION

    def step(self, lr):
        """The end of a step."""
        ### BEGIN SOLUTION
        self.finish()
        self.jobs = {number: self.far.submit(self.away[number].update, lr) for number in self.arrived}
        self.arrived = {}
        if self.steps < self.warm_up:
            self.finish()
        self.steps += 1
        ### END SOLUTION

    def finish(self):
        """Bring home what is under way."""
        ### BEGIN SOLUTION
        jobs, self.jobs = self.jobs, {}
        with torch.no_grad():
            for number, job in jobs.items():
                self.weights[number].copy_(job.result())
        ### END SOLUTION


# %% [markdown]
# What it is for: the same steps, with a processor that needs 2 ms for each of four weights, and a device that computes
# for 10 ms.


# %%
class SlowProcessor(FarSide):
    """Each job takes 2 ms longer."""

    def submit(self, job, *args):
        return super().submit(lambda: (time.sleep(0.002), job(*args))[1])


def seconds_a_step(warm_up, steps=20):
    weights = [torch.zeros(8) for _ in range(4)]
    optimizer, start = Delayed(weights, SlowProcessor(), 0.9, warm_up), time.perf_counter()
    for _ in range(steps):
        time.sleep(0.010)  # forward and backward pass
        for number in reversed(range(4)):
            optimizer.take(number, torch.ones(8))
        optimizer.step(0.1)
    optimizer.finish()
    return (time.perf_counter() - start) / steps


# %% tags=["varies"]
print(f"waiting at each step: {1e3 * seconds_a_step(warm_up=20):.0f} ms a step")
print(f"one step late:        {1e3 * seconds_a_step(warm_up=0):.0f} ms a step")

# %% [markdown]
# A `Life` is an optimizer with weights and a far side, for checks to lead. Each line of it is something that happens:
# `life.take(2)`, `life.step(0.1)`, `life.work(1)` (the processor does one job), `life.finish()`.


# %%
class Alive:
    """An optimizer with its weights; gradients are numbered as they come."""

    def __init__(self, kind, shapes, beta, warm_up, at_once=False, dtype=torch.float64, lay=torch.clone, scale=1, seed=0):
        self.lay, self.scale, dtypes = lay, scale, dtype if isinstance(dtype, list) else [dtype] * len(shapes)
        made = [scale * drawn(*case, each) for each, case in enumerate(zip(shapes, dtypes, strict=True), seed)]
        self.weights = [lay(each).requires_grad_() for each in made]
        for weight in self.weights:
            weight.grad = torch.full_like(weight, THERE)
        self.far, self.count, self.places = Scripted(at_once), 100, [weight.data_ptr() for weight in self.weights]
        with Unfilled():
            self.optimizer = check.call(kind, self.weights, self.far, beta, warm_up)


# %%
class Guarded(Alive):
    """What its life may change."""

    def gradient_of(self, number):
        """The next gradient of a weight."""
        self.count += 1
        like = self.weights[number]
        return self.lay(self.scale * drawn(like.shape, like.dtype, self.count))

    def read(self):
        """The weights in nine digits."""
        return [weight.detach().mul(1e9).round() for weight in self.weights]

    def may_write(self, fn, *args):
        """Numbers in the weights change, and nothing else of them."""
        with check.unchanged("the weights, but for their numbers", {"weights": self.weights}, "values"):
            check.call(fn, *args)


# %%
class Life(Guarded):
    """And what happens to it."""

    def take(self, number):
        gradient, look = self.gradient_of(number), "who brings updates home; no job writes weights"
        with Unfilled(), check.unchanged("the weights, after take", {"weights": self.weights}, look=look):
            check.call(self.optimizer.take, number, gradient)
        gradient.fill_(5)

    def work(self, count):
        with check.unchanged("the weights, while the processor works", {"weights": self.weights}, look="the jobs"):
            self.far.do(count)

    def step(self, lr):
        self.may_write(self.optimizer.step, lr)

    def finish(self):
        self.may_write(self.optimizer.finish)


# %%
ALL = [2, 1, 0]


def check_scene(shapes, steps, beta, warm_up, at_once, dtype, lr=0.1, **more):
    """`steps`: for each step the numbers of the weights whose gradients come, in their order."""
    here, there = (Life(kind, shapes, beta, warm_up, at_once, dtype, **more) for kind in (Delayed, InPlainSight))
    events = []
    for number, come in enumerate(steps):
        events += [(f"take({it})", "take", it) for it in come]
        events.append((f"step {number}", "step", lr / (1 + number)))
    look = "which gradients have changed the weights by now, with which lr; was the old one used when a new one came?"
    when = f"{len(steps)} steps, warm-up {warm_up}, the processor works " + ("at once" if at_once else "late")
    with redirect_stdout(None):  # one line for a scene, and not one for each weight after each event
        for place, (what, name, value) in enumerate([*events, ("finish()", "finish", None)]):
            for life in (here, there):
                getattr(life, name)(*([] if value is None else [value]))
            check_weights(here.weights, there.weights, f"after {what}, {when}", look, place)
    check.that(True, f"the weights after each event, {when}")
    moved = [number for number, weight in enumerate(here.weights) if weight.data_ptr() != here.places[number]]
    check.equal(moved, [], "weights that lie elsewhere now", look="they change in place: copy_, and not .data =")


# %%
def draw_line(chance, names):
    """The next line of a random life."""
    ways = [f"take({chance.randrange(3)})"] * 4 + [f"work({chance.randint(1, 2)})"] * 2
    return "life." + chance.choice([*ways, f"step({chance.choice((0.5, 0.1, 0.01))})", "step(0.2)", "finish()"])


def check_lives(shapes, beta, warm_up, count):
    begin = f"life = Life(Kind, {shapes}, {beta}, {warm_up})"
    names = ({"Life": Life, "Kind": kind, "torch": torch} for kind in (Delayed, InPlainSight))
    look = "step ends what is under way; which lr is submitted; a job that is not done yet needs its gradient"
    random_programs("an optimizer", begin, *names, draw_line, lambda _: ["life.read()"], count=count, length=15, look=look)


# %% check="q2-values" points=12
for method in (Delayed.__init__, Delayed.take, Delayed.step, Delayed.finish):
    check.written_with(method, forbidden=FINISHED)
for at_once in (False, True):
    check_scene([(3, 2), (4,), (2, 2)], [ALL] * 5, 0.9, 2, at_once, torch.float64)
    check_scene([(3, 2), (4,), (2, 2)], [ALL] * 4, 0.9, 0, at_once, torch.float32)
    check_scene([(3,), (4,), (2,)], [[2, 1, 0], [1], [], [1, 1, 2], [0]], 0.5, 1, at_once, torch.float64)
check_lives([(2,), (3,), (1,)], 0.9, 1, count=16)

# %% [markdown]
# And a real model, whose gradients leave while the backward pass goes on: a hook gives each to `take` and lets go of
# it. The far side has a thread of its own here. The losses must be the judge's.

# %%
SMALL = GPTConfig(layers=1, width=32, heads=2, vocab_size=256, context=32)
stories = text.stories(seed=0)
STEPS = 40


# %%
def trained(kind, steps=STEPS, beta=0.5, lr=0.3, warm_up=10, seed=0, config=SMALL):
    """The loss of each step, of a learning rate that falls to 0, and at the end on text that it has not seen."""
    model, losses = GPT(config, seed=seed), []
    optimizer = kind(list(model.parameters()), FarSide(), beta, warm_up)
    for number, weight in enumerate(model.parameters()):
        weight.register_post_accumulate_grad_hook(functools.partial(leaves, optimizer, number))
    for step in range(steps):
        loss = model(*stories.batch(seed, step, 0, 8, 32))
        loss.backward()
        optimizer.step(lr * (1 - step / steps))
        losses.append(loss.item())
    optimizer.finish()
    with torch.no_grad():
        return losses, model(*stories.batch(seed + 1, 0, 0, 16, 32)).item()


def leaves(optimizer, number, weight):
    gradient, weight.grad = weight.grad, None
    optimizer.take(number, gradient)


# %%
runs = {
    "no delay": trained(InPlainSight, warm_up=STEPS)[0],
    "late after 10 steps": trained(Delayed, warm_up=10)[0],
    "late from the start": trained(Delayed, warm_up=0)[0],
}
loss_curves(
    runs,
    caption="Late from the start costs most where weights change fast. With a warm-up, and a rate that falls, they meet.",
    alt="Loss over 40 steps: " + "; ".join(f"{name}, from {run[0]:.2f} to {run[-1]:.2f}" for name, run in runs.items()),
)


# %%
CASE = {"beta": 0.5, "lr": 0.3, "steps": 10, "seed": 0}
late, usual = trained(InPlainSight, warm_up=4, **CASE), trained(InPlainSight, warm_up=10, **CASE)


# %% check="q2-loss" points=8
def check_losses(right, warm_up, allowed, **case):
    """Each loss is the judge's (`right`), and the last one at most `allowed`."""
    losses, final = check.call(trained, Delayed, warm_up=warm_up, **case)
    look = "from which step on gradients are late, and by how much; what finish brings home"
    for step, (loss, expected) in enumerate(zip(losses, right[0], strict=True)):
        check.close(loss, expected, f"the loss of step {step}, warm-up {warm_up}", relative=1e-4, look=look)
    check.close(final, right[1], "the loss at the end, on other text", relative=1e-4, look=look)
    check.at_most(final, allowed, "… beside the run without delay", look=look)


check_losses(late, warm_up=4, allowed=1.05 * usual[1], **CASE)


# %%
def check_waits(shapes, beta, warm_up, steps, lr=0.1):
    """As late as it may: how many jobs wait, at each moment. `steps`: whose gradients come in each, in their order."""
    life, queue = Life(Delayed, shapes, beta, warm_up), []
    with redirect_stdout(None):  # two lines for all moments
        for step, order in enumerate(steps):
            for place, number in enumerate(order):
                life.take(number)
                queue = queue[queue.index(number) + 1 :] if number in queue else queue
                what = f"step {step}, warm-up {warm_up}, of {order} gradient {place + 1} came: jobs that nobody waited for"
                look = "take waits for one job. Which ones stand before it in the queue? Who came first, in the step before?"
                check.equal(len(life.far.waiting), len(queue), what, look=look)
            life.step(lr)
            queue = list(dict.fromkeys(order)) if step >= warm_up else []
            what = f"step {step}, warm-up {warm_up}, gradients {order}: jobs under way when step returns"
            look = "for which jobs step waits; whether the update is a job, one for each weight with a gradient"
            check.equal(len(life.far.waiting), len(queue), what, look=look)
        life.finish()
    check.equal(len(life.far.waiting), 0, "jobs under way after finish", look="what finish waits for")
    jobs = sum(len(set(order)) for order in steps)
    check.equal(len(life.far.asked), jobs, "jobs in all", look="one for each weight with a gradient")


# %% check="q2-waits" points=8
check_scene([(3, 2), (4,), (2, 2)], [ALL] * 5, 0.9, 2, False, torch.float64)
check_waits([(3,), (2, 2), (4,)], 0.9, 1, [ALL, ALL, [1, 2, 1, 0], [1, 0], ALL])


# %%
def weighed_step(meter, optimizer, weights, order, step, lr=0.1):
    """Gradients in this order, and a step; both sides are weighed after each gradient."""
    n, s, S = sum(weight.numel() for weight in weights), weights[0].itemsize, wide(weights[0].dtype).itemsize
    before = meter.crossed
    for number in order:
        gradient = drawn(weights[number].shape, weights[number].dtype, step)
        check.call(optimizer.take, number, gradient)
        del gradient
        when = f"after take({number}) of step {step}"
        check_sides(meter, (3 * S + s) * n, n * s, when, "what is there twice; whether jobs that are done are kept")
    check.call(optimizer.step, lr)
    most = n * s + s * sum(weights[number].numel() for number in order)
    look = "what crosses, in which dtype, and how often"
    check.at_most(Bytes(meter.crossed - before), Bytes(most), f"bytes over the link in step {step}", look=look)


# %%
def check_delayed_bytes(shapes, dtype, warm_up, order, at_once, beta=0.9):
    weights, meter = [drawn(shape, dtype, seed) for seed, shape in enumerate(shapes)], Meter()
    n, largest = sum(weight.numel() for weight in weights), max(weight.numel() for weight in weights)
    s, S = weights[0].itemsize, wide(dtype).itemsize
    with meter, outside_torch() as outside:
        for weight in weights:
            meter.add(weight, from_start=True)
        optimizer = check.call(Delayed, weights, Scripted(at_once, meter), beta, warm_up)
        with redirect_stdout(None):  # a line for the peaks, and not for each gradient
            for step in range(warm_up + 3):
                weighed_step(meter, optimizer, weights, order, step)
        check.at_most(outside(), Bytes(16384), "bytes in bytes objects, arrays and files", look="what is no tensor")
        check.call(optimizer.finish)
        peak, look = max(held(meter, True)), "gradients of two steps: is the old one used up when the new one comes?"
        check.at_most(peak, (3 * S + s) * n + 2 * S * largest + 1024, "bytes on the far side at the peak", look=look)
        peak, look = max(held(meter, False)), "what is made on the device"
        check.at_most(peak, (n + largest) * s + 1024, "bytes on the device at the peak", look=look)
        strayed = sorted(meter.strayed)
        check.equal(strayed, [], "computed on the far side, and not by a job", look="an update is the processor's work")


# %% check="q2-bytes" points=8
check_scene([(3, 2), (4,), (2, 2)], [ALL] * 5, 0.9, 2, False, torch.float64)
check_delayed_bytes([(120, 60), (4000,), (80, 100)], torch.bfloat16, 1, [2, 1, 0, 2, 1, 0], at_once=False)

# %% check="q2-hidden" points=9
# Other orders, sizes and dtypes, idle weights, two optimizers in turn, random lives, another model, and their bytes.
### BEGIN HIDDEN TESTS
#= A class `Delayed | - a name
#= It may use `Away` | - a permission
#= `weights` is a list | dtype_of_the_first weights_in_a_row clears_the_weights_gradients
#= They change in place | weights_replaced take_brings_home
#= No job reads or writes | jobs_write_the_weights
#= `take(number, gradient)`: a | first_part_only
#= It comes in any order | idle_weights_lose_their_update
#= After the call the device | keeps_what_came
#= `step(lr)` ends a step | - a name for what follows
#= First it brings home | two_steps_late
#= Then the gradients of this | order_of_the_last_parts jobs_for_the_idle a_job_for_all_that_ever_came jobs_in_the_order_of_the_weights
#= In the first `warm_up` | no_warm_up warm_up_off_by_one late_and_waiting idle_steps_warm_nothing
#= Each is applied with | lr_of_another_step
#= `finish()` brings home | loses_the_last_gradient
#= Training may go on | warm_up_again
#= `take` waits for the job | take_waits_for_all take_waits_for_nobody
#= *Bytes,** as in question | - the table says which
#= on the far side, at any | whole_gradient_twice
#= on the device, beside | streams_nothing_out
#= over the link in a step | masters_travel
#= An optimizer on the far | no_delay jobs_for_show jobs_for_show_by_additions jobs_for_show_by_a_thread
#= Nothing has come, nothing | - a constructor
#= A gradient of weights[number] | first_part_only
#= The end of a step | - a name
#= Bring home what | loses_the_last_gradient
#: other orders, sizes and dtypes
for hidden_at_once in (False, True):
    check_scene([(2,), (3, 1), (4,), (1,)], [[3, 1, 2, 0]] * 6, 0.6, 3, hidden_at_once, torch.float64, lr=0.3)
    check_scene([(7,), (2, 5)], [[0], [1], [1, 0, 1], [], [], [0, 1]], 0.8, 2, hidden_at_once, torch.float64)
    check_scene([(30,)], [[0]] * 12, 0.95, 5, hidden_at_once, torch.bfloat16, lr=0.01)
    check_scene([(6,), ()], [[0, 1, 0]] * 3, 0.3, 9, hidden_at_once, torch.float32)
    hidden_dtypes = [torch.bfloat16, torch.float64, torch.float32]
    check_scene([(4, 3), (2,), (3, 2)], [ALL, [], ALL, ALL], 0.5, 2, hidden_at_once, hidden_dtypes, lay=across)
    check_scene([(5,)], [[0]] * 4, 0.5, 1, hidden_at_once, torch.float32, scale=3000)


def hidden_two_optimizers():
    """They train in turn, in one process."""
    pairs = [
        [Life(kind, [(2,), (2,)], 0.5 + 0.1 * seed, 1, seed=seed) for kind in (Delayed, InPlainSight)] for seed in (0, 4)
    ]
    for step, (here, there) in itertools.product(range(4), pairs):
        for life in (here, there):
            life.take(step % 2)
            life.take(1)
            life.step(0.1)
        check_weights(here.weights, there.weights, f"two optimizers in turn, step {step}", "what they share", step)


#: two optimizers
hidden_two_optimizers()
#: random lives
check_lives([(1, 2), (4,), (2,)], 0.7, 2, count=14)
check_lives([(2,), (1,), (3,)], 0.4, 0, count=10)
#: another model
hidden_config = GPTConfig(layers=2, width=16, heads=2, vocab_size=256, context=32)
hidden_case = {"beta": 0.7, "lr": 0.2, "steps": 3, "seed": 3, "config": hidden_config, "warm_up": 0}
check_losses(trained(InPlainSight, **hidden_case), allowed=9.0, **hidden_case)
#: other orders
check_waits([(2,), (1,), (3,), (2, 2)], 0.8, 2, [[1, 3, 0, 2]] * 5)
check_waits([(2,), (1,), (3,)], 0.8, 1, [[2, 0], [2, 0], [], [1, 0, 2], [0, 1, 0], [1]])
#: idle weights
check_scene([(2,), (3,)], [[0, 1], [0], [1], [0, 1]], 0.5, 0, False, torch.float64)
#: their bytes
check_delayed_bytes([(5000,), (70, 30), (9,), (88, 44)], torch.float32, 0, [3, 0, 2, 1], at_once=False, beta=0.2)
### END HIDDEN TESTS

# %% [markdown]
# ## 3 · One storey down (30 points)
#
# Now main memory is too small as well, and what is kept away lies in files: for each *unit* of a model, a layer say,
# one vector of fp32 numbers. A step reads them one after the other, updates each and writes it. While one is at work,
# the next ones may already be read, as many as there is room for.
#
# And a disk remembers. If the power fails in the middle of step 8, one would like to find step 7 there, and not a
# mixture. So a new step never overwrites the one before, and something says at the very end that it is whole. Even then
# a file may be lost or cut later, by a full disk somewhere or a copy that broke off. Then the step before is still
# there, if nobody has thrown it away.
#
# These two functions read and write a file. `read` takes what is there: a file that was cut gives a shorter vector,
# and no error.


# %%
def write(path, vector):
    """A file with these fp32 numbers, and nothing else."""
    path.write_bytes(memoryview(vector.contiguous().numpy()))


def read(path):
    """The fp32 numbers of a file, as many as there are."""
    vector = torch.empty(path.stat().st_size // 4)
    with open(path, "rb") as file:
        file.readinto(vector.numpy())
    return vector


# %% [markdown]
# **Your contract.** Three functions; `folder` is a `Path`. The files lie in it and in no folder below; what they are
# called is up to you. (What a finished `write` has written counts as being on the disk.)
# All that is known of a step stands in these files: the next call may come from another process, and the folder may
# have been moved.
#
# - `store(folder, step, vectors)` writes a step. `vectors` is an iterator that gives the units' vectors, fp32, one
# dimension, one at a time; hold no more than the one that came and the one before it. `step` is larger than that of
# the newest whole step, so one that was damaged may be stored again. If `vectors` raises, the error goes on to the caller, and the newest whole step is still there.
# Afterwards the folder holds this step and the newest that was whole before it, and nothing of others. While it
# writes, it never holds more than that, so what is older goes first. (4 KiB of anything else are free.) Use `write`.
# - `newest(folder)` returns the number of the newest step that is whole: `store` has ended, and no file of it is gone
# or shorter than it was. `None` if there is none. It opens no vector: it looks at sizes.
# - `ahead(folder, step, reader, room_bytes)` is a generator: it yields the vectors of a step in their order. Each is
# read by one job, `reader.submit(read, path)`. A vector takes room from the moment when its job is submitted until the
# caller asks for the next one. Vectors are submitted in their order, and as early as there is room. If one alone is
# larger than the room, it raises a `ValueError` before anything is read. If a vector is shorter than it was stored, it
# yields the vectors before it, and when its turn comes raises a `ValueError` with the path of the file in its text. (What
# says that the step is whole is there: `ahead` is asked for no other.) Other errors are `read`'s own.
#
# **Graded:** steps there and back (7 points), whatever is cut or breaks off (8), room (7), and other sizes, rooms and
# accidents (8).

# %%
guess_disk = ask("Llama 3 405B, fp32 master and momentum in files, two steps of it: how much disk?", unit="TB")


# %% answer="q3"
def store(folder, step, vectors):
    """Write a step. It counts when all of it is there."""
    ### BEGIN SOLUTION
    before = newest(folder)
    for path in list(folder.iterdir()):
        if path.name.split(".")[0] != str(before):
            path.unlink()
    sizes = []
    for number, vector in enumerate(vectors):
        write(folder / f"{step}.{number}", vector)
        sizes.append(vector.nbytes)
    unfinished = folder / f"{step}.sizes.new"
    unfinished.write_text(json.dumps(sizes))
    os.replace(unfinished, folder / f"{step}.sizes")
    ### END SOLUTION


# %% answer="q3-newest"
def newest(folder):
    """The newest step that is whole, or None."""
    ### BEGIN SOLUTION
    whole = []
    for path in folder.glob("*.sizes"):
        step = int(path.name.split(".")[0])
        try:
            sizes = json.loads(path.read_text())
        except ValueError:  # it was cut
            continue
        files = [folder / f"{step}.{number}" for number in range(len(sizes))]
        if all(file.exists() and file.stat().st_size == size for file, size in zip(files, sizes)):
            whole.append(step)
    return max(whole, default=None)
    ### END SOLUTION


# %% answer="q3-ahead"
def ahead(folder, step, reader, room_bytes):
    """The vectors of a step, read ahead as far as there is room."""
    ### BEGIN SOLUTION
    sizes = json.loads((folder / f"{step}.sizes").read_text())
    if max(sizes, default=0) > room_bytes:
        raise ValueError(f"a vector of {max(sizes)} bytes does not fit into {room_bytes}")
    jobs, begun = deque(), 0
    for number, size in enumerate(sizes):
        while begun < len(sizes) and sizes[begun] <= room_bytes:
            jobs.append(reader.submit(read, folder / f"{step}.{begun}"))
            room_bytes -= sizes[begun]
            begun += 1
        vector = jobs.popleft().result()
        if vector.nbytes != size:
            raise ValueError(f"{folder / f'{step}.{number}'} has {vector.nbytes} bytes, {size} were stored")
        yield vector
        del vector
        room_bytes += size
    ### END SOLUTION


# %% [markdown]
# Both together are an optimizer whose states lie in files: what `ahead` yields is updated, and `store` takes it from
# there. Here an update adds 1. After step 3 somebody cuts a file of it in half.


# %%
def cut_in_half(folder):
    path = max(folder.iterdir(), key=lambda each: (each.stat().st_mtime_ns, each.stat().st_size > 100))
    os.truncate(path, path.stat().st_size // 2)


with tempfile.TemporaryDirectory() as place:
    folder = Path(place)
    store(folder, 0, (torch.zeros(size) for size in (300, 100, 200)))
    for step in range(3):
        store(folder, step + 1, (vector + 1 for vector in ahead(folder, step, FarSide(), 2000)))
    print("newest:", newest(folder), " in the folder:", sorted(path.name for path in folder.iterdir()))
    cut_in_half(folder)
    print("newest:", newest(folder), " its first numbers:", next(ahead(folder, newest(folder), FarSide(), 2000))[:3])


# %%
def units(sizes, step):
    """The vectors of a step."""
    return [drawn((size,), torch.float32, 100 * step + number) for number, size in enumerate(sizes)]


def given(vectors, log=None):
    """One at a time, and each a new one; before each, `log` notes what the folder holds."""
    came = []
    for vector in vectors:
        if sum(each() is not None for each in came) > 1:
            check.that(False, "vectors that store still holds when it asks for the next one: one", came="two or more")
        if log is not None:
            log()
        new = vector.clone()
        came.append(weakref.ref(new))
        yield new
        del new


# %%
def stored(folder, sizes, *steps):
    """These steps are stored, one after the other."""
    for step in steps:
        check.call(store, folder, step, given(units(sizes, step)))


def check_back(folder, sizes, step, room, what, at_once=False):
    """What ahead yields."""
    got = check.call(lambda: [vector.clone() for vector in ahead(folder, step, Scripted(at_once), room)])
    check.equal(got, units(sizes, step), f"{what}: the vectors of step {step}", look="which file is whose")


# %%
def check_moved(*every, room, steps=(3, 4)):
    """Models of these sizes, a folder for each; the folders are moved, as to another machine."""
    with tempfile.TemporaryDirectory() as place:
        for step, (number, sizes) in itertools.product(steps, enumerate(every)):
            (Path(place) / str(number)).mkdir(exist_ok=True)
            stored(Path(place) / str(number), sizes, step)
        for number, sizes in enumerate(every):
            check.that(all(path.is_file() for path in (Path(place) / str(number)).iterdir()), "no folder below")
            folder = (Path(place) / str(number)).rename(Path(place) / f"moved {number}")
            what, look = f"model {number} of {len(every)}, moved", "what is known of a step, and where that stands"
            check.equal(check.call(newest, folder), steps[-1], f"{what}: newest", look=look)
            check_back(folder, sizes, steps[-1], room, what)


# %% check="q3-values" points=7
def check_stored(sizes, steps, room):
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        check.equal(check.call(newest, folder), None, "newest, of an empty folder", look="what max does without a step")
        for place, step in enumerate(steps):
            stored(folder, sizes, step)
            what = f"sizes {sizes}, after steps {steps[: place + 1]} were stored"
            check.equal(check.call(newest, folder), step, f"{what}: newest", look="numbers, and not texts")
            for earlier in steps[max(0, place - 1) : place + 1]:
                check_back(folder, sizes, earlier, room, what)


for answer in (store, newest, ahead):
    check.written_with(answer, forbidden=[*FINISHED, "fromfile", "from_file", "mmap", "memmap"])
check_stored([5, 3, 4], [0, 1, 2, 3], room=1000)
check_moved([5, 3, 4], [2, 6], room=1000)
check_stored([5, 3, 4], [8, 9, 10, 100], room=40)


# %%
def bytes_in(folder):
    return Bytes(sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()))


def breaks_off(vectors, count):
    """So many vectors, and then the power fails."""
    yield from given(vectors[:count])
    raise KeyError("the power fails")


# %%
def break_off(folder, sizes, step, count):
    """A store that does not come to its end."""
    what = f"store, whose vectors raise a KeyError after {count} of {len(sizes)}"
    try:
        store(folder, step, breaks_off(units(sizes, step), count))
    except KeyError:
        return
    except Exception as problem:
        check.call(store, folder, step, iter(()))  # not written yet, or raises always
        came = f"{type(problem).__name__}: {problem}"
    else:
        came = "none"
    check.that(False, what, expected="the KeyError goes on to the caller", came=came, look="an except too many?")


# %%
def check_cuts(sizes, room):
    """Each file that store has left for its newest step, cut or removed."""
    with tempfile.TemporaryDirectory() as place:
        stored(Path(place), sizes, 0)
        before = {path.name for path in Path(place).iterdir()}
        stored(Path(place), sizes, 1)
        names = sorted({path.name for path in Path(place).iterdir()} - before)
    for name, left in itertools.product(names, (None, 0.0, 0.5, 0.99)):
        with tempfile.TemporaryDirectory() as place:
            folder, path = Path(place), Path(place) / name
            stored(folder, sizes, 0, 1)
            path.unlink() if left is None else os.truncate(path, int(left * path.stat().st_size))
            what = f"file {name} of step 1 " + ("is gone" if left is None else f"is cut to {left:.0%}")
            look = "what newest compares with what was stored"
            check.equal(check.call(newest, folder), 0, f"{what}: newest", look=look)
            check_back(folder, sizes, 0, room, what)
            stored(folder, sizes, again := 2 - (left == 0.5))
            check.equal(check.call(newest, folder), again, f"{what}, {again} is stored: newest", look="what store removes")
            for each in (0, again):
                check_back(folder, sizes, each, room, f"{what}, and {again} is stored")


# %%
def check_broken(sizes, count, room, broken=(2, 2, 3), last=4):
    """The power fails while steps are written, once and again; and what the folder holds all the while."""
    with tempfile.TemporaryDirectory() as place:
        folder, one = Path(place), 4 * sum(sizes)
        stored(folder, sizes, 0, 1)
        for step in broken:
            break_off(folder, sizes, step, count)
            what = f"step {step} broke off after {count} of {len(sizes)} vectors"
            look = "what says that a step is whole, and when"
            check.equal(check.call(newest, folder), 1, f"{what}: newest", look=look)
            check_back(folder, sizes, 1, room, what)
        most, look = [], "what is left of other steps, and when it goes"
        log = lambda: most.append(bytes_in(folder))  # noqa: E731
        check.call(store, folder, last, given(units(sizes, last), log))
        what = f"bytes in the folder while step {last} is written, after {broken} broke off"
        check.at_most(max(most), Bytes(2 * one + 4096), what, look=look)
        check.at_most(bytes_in(folder), Bytes(2 * one + 4096), "… and afterwards", look=look)
        check_back(folder, sizes, last, room, "after three that broke off")
        check_back(folder, sizes, 1, room, "after three that broke off, the newest one that was whole before")


# %%
@contextmanager
def opened():
    """The paths that Python opens in this context."""
    paths = []

    def noted(real):
        return lambda path, *args, **more: (paths.append(path), real(path, *args, **more))[1]

    with patch("builtins.open", noted(open)), patch("io.open", noted(open)), patch("os.open", noted(os.open)):
        yield paths


# %%
def check_opens_nothing(sizes):
    """`newest` looks at sizes. A disk would need minutes to read what it could say at once."""
    with tempfile.TemporaryDirectory() as place:
        stored(Path(place), sizes, 0, 1)
        vectors = {str(path) for path in Path(place).iterdir() if path.stat().st_size in [4 * size for size in sizes]}
        with opened() as paths:
            check.equal(check.call(newest, Path(place)), 1, "newest", look="what newest compares with what was stored")
        came = sorted(vectors & {os.fsdecode(path) for path in paths if not isinstance(path, int)})
        check.equal(came, [], "… and the vectors that it opens", look="path.stat().st_size is the size of a file")


# %% check="q3-whole" points=8
check_cuts([300, 50, 200], room=2000)
for count in (0, 2, 3):
    check_broken([3000, 500, 2000], count, room=20_000)
check_opens_nothing([3000, 500, 2000])


# %%
def asked_ahead(sizes, room):
    """How many vectors have been submitted when the caller has its first, its second, …"""
    return [
        next(end for end in range(len(sizes), place, -1) if 4 * sum(sizes[place:end]) <= room or end == place + 1)
        for place in range(len(sizes))
    ]


# %%
def check_refused(sizes, room, cut=None, step=3):
    """A room that is too small, or (cut) a vector that is shorter than it was stored: the vectors before come."""
    with tempfile.TemporaryDirectory() as place:
        folder, reader, got, path = Path(place), Scripted(), [], None
        stored(folder, sizes, step)
        if cut is not None:  # it is the file of this size
            path = next(each for each in folder.rglob("*") if each.stat().st_size == 4 * sizes[cut])
            os.truncate(path, 4 * sizes[cut] - 4)
        try:
            got.extend(vector.numel() for vector in ahead(folder, step, reader, room))
        except Exception as problem:
            came = f"{type(problem).__name__}: {problem}"
            named = isinstance(problem, ValueError) and (cut is None or str(path) in str(problem))
            check.that(named, "ahead raises a ValueError, which names a cut file", came=came, look="when it raises")
        else:
            what = f"ahead, with vectors of {sizes} numbers, a room of {room} bytes, and the vector {cut} cut"
            check.that(False, what, expected="a ValueError", came="none", look="what read returns for a cut file")
        check.equal(got, sizes[: cut or 0], "what came before it", look="when it raises")
        check.that(cut is not None or not reader.asked, "nothing is read where one does not fit", look="when it raises")


# %%
def check_room(sizes, room, at_once, step=3):
    with tempfile.TemporaryDirectory() as place:
        folder, meter = Path(place), Meter()
        stored(folder, sizes, step)
        check_back(folder, sizes, step, room, f"sizes {sizes}, room {room}")
        counts, reader, got = asked_ahead(sizes, room), Scripted(at_once, meter), []
        with meter, outside_torch() as outside:
            for vector in ahead(folder, step, reader, room):
                what = f"{[4 * size for size in sizes]} bytes, room {room}: submitted when vector {len(got)} is there"
                look = "as early as there is room: what is submitted or with the caller takes room"
                check.equal(len(reader.asked), counts[len(got)], what, look=look)
                got.append(vector.numel())
                del vector
            check.equal(got, sizes, "… and the lengths that came", look="the order")
            check.at_most(outside(), Bytes(16384), "bytes in bytes objects and arrays", look="read gives tensors")
        look = "what a name or a job still holds when the next vector is read"
        check.at_most(max(held(meter, True)), Bytes(room + 1024), "bytes held at the peak", look=look)
        look = "yield what read has returned: copies take room as well"
        check.at_most(max(held(meter, False)), Bytes(1024), "bytes of other tensors", look=look)


# %%
def check_held(sizes, step=3):
    """What store holds of the vectors, as they are or as copies."""
    vectors, most = units(sizes, step), max(4 * (a + b) for a, b in itertools.pairwise(sizes))
    with tempfile.TemporaryDirectory() as place, Meter() as meter:
        for vector in vectors:
            meter.add(vector, from_start=True)
        before = held(meter, False)[-1]
        check.call(store, Path(place), step, given(vectors))
    look = "whether vectors that were written are still somewhere, or copies of them"
    most = Bytes(most + 1024)
    check.at_most(max(held(meter, False)) - before, most, "bytes of vectors at the peak of store", look=look)

# %% check="q3-room" points=7
check_room([5000, 3000, 4000, 1000, 1000, 6000], 4 * 9000, at_once=True)
check_room([5000, 3000, 4000, 1000, 1000, 6000], 4 * 6000, at_once=False)
check_held([5000, 3000, 4000, 1000, 6000])
check_refused([500, 700, 300], 2796)
check_refused([500, 700, 300], 2800, cut=1)

# %% check="q3-hidden" points=8
# Other sizes, numbers and rooms; all that can break off or be cut; several models; equal vectors; one vector; none.
### BEGIN HIDDEN TESTS
#= Three functions; | - a number
#= `folder` is a `Path` | - what is given
#= The files lie in it | a_folder_below
#= (What a finished `write` | - what need not be done
#= All that is known | sizes_in_memory whole_paths
#= `store(folder, step, vectors)` | - a signature
#= `vectors` is an iterator | takes_all_before_it_writes keeps_copies_of_what_it_wrote
#= `step` is larger than | larger_numbers_stay begins_alike
#= If `vectors` raises | another_error overwrites_the_step_before
#= Afterwards the folder | keeps_every_step larger_numbers_stay
#= While it writes, it | older_goes_last leaves_what_broke_off
#= (4 KiB of anything | - a permission
#= Use `write` | in_another_format
#= `newest(folder)` returns | says_it_too_early looks_at_no_size trusts_the_number trips_over_a_cut_list
#= `None` if there is none | minus_one_for_none
#= It opens no vector | reads_vectors_for_their_sizes maps_files_for_their_sizes
#= `ahead(folder, step, reader, room_bytes)` is | out_of_order
#= Each is read by one | reads_without_the_reader
#= A vector takes room | forgets_the_one_in_use everything_at_once
#= Vectors are submitted | out_of_order reads_nothing_ahead always_two_ahead
#= If one alone is larger | refuses_nothing refuses_at_its_turn
#= If a vector is shorter | yields_what_was_cut names_no_file
#= (What says that the step | - what is not asked
#= Other errors are `read`'s | all_errors_alike
#= Write a step | overwrites_the_step_before
#= It counts when | says_it_too_early
#= The newest step that is | order_of_names
#= The vectors of a step | two_names_for_one_vector
#: one vector
check_stored([7], [3, 40, 500], room=28)
#: equal vectors
check_stored([4, 4, 4, 4], [9, 11, 12], room=32)
check_stored([2] * 12, [0, 1], room=64)
#: none
check_stored([], [5, 6], room=0)
#: all that can break off or be cut
check_cuts([40, 40], room=160)
check_cuts([400], room=5000)
check_broken([2000, 2000, 2000, 100], 1, room=8000)
check_broken([900, 2000], 1, room=8000, broken=(10, 12, 11), last=100)
#: other sizes, numbers and rooms
check_room([1000] * 5, 8000, at_once=True, step=12)
check_room([1000, 9000, 1000, 2000, 3000], 36_000, at_once=True, step=7)
check_room([1000, 2000, 9000, 2000, 3000], 50_000, at_once=False, step=10)
check_refused([10, 20, 30], 116, step=20)
check_refused([10, 20, 30], 1000, cut=2, step=21)
check_refused([11, 20, 30], 124, cut=0, step=22)


def hidden_two_losses():
    """The newest step is cut, and the one before it is gone: nothing is whole. And a step of other sizes follows."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        stored(folder, [6, 5], 1, 2)
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                os.truncate(path, max(0, path.stat().st_size - 1))
        check.equal(check.call(newest, folder), None, "newest, when every file is cut", look="each step's own files")
        stored(folder, [3, 9, 1], 7)
        check.equal(check.call(newest, folder), 7, "newest, after another model was stored there", look="store")
        got = [vector.clone() for vector in check.call(ahead, folder, 7, FarSide(), 100)]
        check.equal(got, units([3, 9, 1], 7), "another model", look="which file is whose")


def hidden_first_break():
    """The very first step breaks off; and a damaged step has a larger number than the one that is stored next."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        break_off(folder, [6, 2000], 0, 2)
        check.equal(check.call(newest, folder), None, "newest, when the only step broke off", look="when a step is whole")
        stored(folder, [6, 2000], 1, 5)
        for path in folder.iterdir():
            if path.stat().st_size == 24 and torch.equal(read(path), units([6, 2000], 5)[0]):
                path.unlink()
        stored(folder, [6, 2000], 2)
        check.equal(check.call(newest, folder), 2, "newest: 1 was whole, 5 was damaged, 2 is stored", look="store")
        check.at_most(bytes_in(folder), Bytes(2 * 8024 + 4096), "… bytes in the folder", look="what is left of step 5")


def hidden_gone():
    """A vector that is gone is no short one: the error is `read`'s."""
    with tempfile.TemporaryDirectory() as place:
        folder, got = Path(place), []
        stored(folder, [3, 2000, 4], 6)
        next(path for path in folder.iterdir() if path.stat().st_size == 8000).unlink()
        try:
            got.extend(vector.numel() for vector in ahead(folder, 6, Scripted(), 9000))
        except Exception as problem:
            got.append(type(problem).__name__)
        check.equal(got, [3, "FileNotFoundError"], "the second of three files is gone: what comes", look="ahead")


#: all that can break off or be cut
hidden_two_losses()
hidden_first_break()
hidden_gone()
#: several models
check_moved([3, 4], [3, 5], [4, 4], room=100, steps=(7, 8, 9))
### END HIDDEN TESTS

# %% [markdown]
# ## What to keep
#
# What is needed seldom may live far away. The price is time on a link, and time can be hidden, if somebody else works
# meanwhile and nobody needs what is not finished yet. One step late, after a warm-up: in 40 steps, at a rate that falls to 0, the loss did not mind. (Lesson 11's did, in 500 steps of Adam at one rate.)
#
# And your guesses. The first two are counted: by a meter, and by the judge.


# %%
def bytes_each(n=1000):
    """Bytes that cross the link in a step of your answer, for each bf16 weight."""
    weights, meter = [torch.zeros(n, dtype=torch.bfloat16)], Meter()
    with meter:
        meter.add(weights[0], from_start=True)
        optimizer = Delayed(weights, Scripted(meter=meter), 0.9, warm_up=1)
        before = meter.crossed
        optimizer.take(0, torch.ones(n, dtype=torch.bfloat16))
        optimizer.step(0.1)
    return (meter.crossed - before) / n


# %%
judge = InPlainSight([torch.zeros(1)], None, 0.9, warm_up=3)
for _ in range(9):
    judge.take(0, torch.ones(1))
    judge.step(0.1)
print(f"over the link: {bytes_each():g} bytes for each weight; you said {guess_link.said}")
print(f"before the tenth forward pass a weight has changed {judge.updates[0]} times; you said {guess_late.said}")
print(f"two steps of master and momentum: {Bytes(2 * 8 * LLAMA3_405B.parameters):.1TB}; you said {guess_disk.said}")

# %% [markdown]
# **Change one thing.** Make updates two steps late, and three. Does the warm-up still help, and with which learning
# rate? And: is it the number of steps that counts, or how far the weights go in them?
