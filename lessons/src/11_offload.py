# %% [markdown]
# # 11 · Offload
#
# **The question:** what may leave the GPU, in which order, and what does each cost?
#
# | | |
# |---|---|
# | Time | first sitting 50 minutes, second sitting 40; about two minutes of both together is computing on 2 CPU cores |
# | A GPU | not needed: both memories of this page are DRAM, and we slow the link between them down. One cell of the second sitting measures a real link where there is one |
# | Opens | `offload/copy_stream.py`, `offload/zero_offload.py`, `offload/on_disk.py` |
#
# Lesson 10 ended well for those who have 64 cards. You have one, an A100 with 40 GB, and a model of 10 billion
# parameters: 160 GB of weights, gradients and Adam's state. ZeRO on one rank divides by one.
#
# But open the machine. Around the card stand 256 GB of ordinary memory, and a disk of 4 TB. There is room. What is
# missing is a road: the card reads its own memory at 1,555 GB/s, the processor reads the machine's at a hundred, the
# link between the two carries 32 in each direction, and the disk 7. So the question is less whether something *fits*
# out there than how often a step asks for it.

# %%
import functools

import torch
from torch import nn

from course_kit import measure, ranks
from course_kit.compare import compare
from course_kit.notebook import ask, show, your_turn
from course_kit.units import Bytes, Count, FlopsPerSecond, Ratio, Seconds
from course_lib import predict
from course_lib.model import hardware, text
from course_lib.model.gpt import GPT, GPTConfig
from course_lib.offload.copy_stream import CopyStream
from course_lib.offload.zero_offload import OffloadedAdamW
from course_pages.lesson11 import pictures, turns
from course_pages.lesson11.explorer import TiersExplorer
from course_pages.lesson11.process import best, ledger, report, trained
from course_pages.shared import gpu

torch.set_num_threads(1)  # one core computes, the other one carries

# %% [markdown]
# ## 1 · Who asks for what
#
# A training step with mixed precision (lesson 04) has three pieces of work and three kinds of model states. Forward
# and backward pass read the 16-bit weights; the backward pass makes 16-bit gradients; the update reads those, reads
# and writes fp32 weights, means and variances, and leaves new 16-bit weights. In bytes for each parameter:

# %%
HELD = {"weights": 2, "gradients": 2, "states": 12}
FLOW = {
    ("weights", "forward"): 2, ("weights", "backward"): 2, ("backward", "gradients"): 2, ("gradients", "update"): 2,
    ("states", "update"): 12, ("update", "states"): 12, ("update", "weights"): 2,
}  # fmt: skip

# %% [markdown]
# The forward and the backward pass must stay on the card: for $\Psi$ parameters they are $6\Psi$ operations *for each
# token*. The update is some 20 operations for each *parameter*, however large the batch is, so a processor can do it.
# That leaves four things to place: weights, gradients, states and the update.
#
# **Your turn.** What does a placement cost?


# %%
@your_turn(turns.check_cost, look="An arrow of FLOW crosses if one of its ends is away and the other is not.")
def cost(away):
    """(bytes a parameter held on the card, bytes a parameter that cross the link), if the names in `away` left it."""
    ...


# %% tags=["solution"]
# One solution. Open it when yours passes, or when you are stuck.
@cost.solution
def cost(away):
    held = sum(n for name, n in HELD.items() if name not in away)
    crossing = sum(n for (a, b), n in FLOW.items() if (a in away) != (b in away))
    return held, crossing


# %% [markdown]
# Four things, two places each, sixteen placements. **Guess** before we try them all: if no more than 4 bytes a parameter
# may cross, how few can the card hold?

# %%
guess_least = ask("At most 4 bytes a parameter cross: how many does the card hold?")

# %%
import itertools

movable = ("weights", "gradients", "states", "update")
placements = {away: cost(set(away)) for n in range(5) for away in itertools.combinations(movable, n)}
for away, (held, crossing) in sorted(placements.items(), key=lambda item: item[1][::-1]):
    if not any(h <= held and c <= crossing and (h, c) != (held, crossing) for h, c in placements.values()):
        print(f"{held:2} held, {crossing} cross: {', '.join(away) or 'nothing'} away")
print("you said", guess_least.said)
pictures.the_cut(FLOW, HELD, caption="The second printed line. Only the two orange arrows cross: a gradient goes down and a new weight comes up, 2Ψ each, in every step.").show()

# %% [markdown]
# Every other placement is worse than one of the three printed lines in one number, and no better in the other. (Table 1
# of Ren et al. 2021, ZeRO-Offload, counts the same bytes.) So there *is* an order. **First go the states, the update
# and the gradients**, together: 2 of 16 bytes stay, and 4 cross, 2 each way. **Last go the weights**: then nothing
# stays, and 6 cross, since both passes come and ask.
#
# ## 2 · ZeRO-Offload
#
# The first of the two is **ZeRO-Offload**. We build it. A `CopyStream` is one direction of the link: `stream.send(source,
# into)` begins a copy, returns a *future* at once, and `future.result()` waits until the copy is there. It counts the
# bytes, in `stream.carried`. Ours is a thread with a queue; a GPU has copy engines beside its kernels (section 11).
#
# What is the card here? Both ends are DRAM, so in this section precision tells them apart. **Tensors in 16 bits
# play the card's, tensors in 32 bits play main memory's.** The bytes are measured; the side of the link is a role.

# %%
SMALL = GPTConfig(layers=2, width=128, heads=4, vocab_size=256, context=32, norm="rmsnorm", bias=False)
psi, STORIES = predict.parameters(SMALL), text.stories(seed=0)


def batch_of(step, batch_size=4, seed=0):
    return STORIES.batch(seed=seed, step=step, rank=0, batch_size=batch_size, context=32)


# %% [markdown]
# Gradients first. As soon as one is complete PyTorch calls a hook (lesson 07). The gradient should begin its way *then*,
# while the backward pass goes on, and the card should let go of it.
#
# **Your turn.** Write that hook.


# %%
@your_turn(turns.check_leave, look="Whatever is sent crosses in its own precision, and is widened where it arrives.")
def leave(weight, master, out):
    """Send weight.grad over `out` into a new, fp32 master.grad; forget it here. The future of the copy."""
    ...


# %% tags=["solution"]
@leave.solution
def leave(weight, master, out):
    gradient, weight.grad = weight.grad, None
    master.grad = torch.empty_like(master)
    return out.send(gradient, master.grad)


# %% [markdown]
# Now the other half. All gradients have to be there; then `adamw` steps on the fp32 weights, the **masters**; then the
# new weights go back. While one travels, the next may already be sent.


# %%
class Offload:
    def __init__(self, model, out, back, lr=1e-3):
        self.weights, self.coming, self.out, self.back = list(model.parameters()), [], out, back
        self.masters = [nn.Parameter(weight.detach().float()) for weight in self.weights]
        self.adamw = torch.optim.AdamW(self.masters, lr=lr, fused=True)
        for weight, master in zip(self.weights, self.masters):
            weight.register_post_accumulate_grad_hook(functools.partial(self.on_gradient, master))

    def on_gradient(self, master, weight):
        self.coming.append(leave(weight, master, self.out))

    @torch.no_grad()
    def step(self):
        update(self)
        self.coming.clear()


# %% [markdown]
# **Your turn.** `o.coming` are the futures of this pass, `o.weights` and `o.masters` run side by side, `o.adamw` steps
# on the masters, `o.back` is the copy stream home.


# %%
@your_turn(turns.check_update, look="Who waits for what? And master.to(weight.dtype) is half as long as master.")
def update(o):
    """Wait for all gradients, step, send the new weights home in 16 bits, and wait until they are there."""
    ...


# %% tags=["solution"]
@update.solution
def update(o):
    for arrives in o.coming:
        arrives.result()
    o.adamw.step()
    homeward = [o.back.send(m.detach().to(w.dtype), w.detach()) for w, m in zip(o.weights, o.masters)]
    for arrives in homeward:
        arrives.result()


# %% [markdown]
# The check has shown that the weights are those of plain mixed precision after each of three steps, bit for bit: nothing
# is computed otherwise, only elsewhere. Now the ledger, read after the second backward
# pass: bytes in 16 bits and in 32. And once more, while another copy keeps the stream busy. The model has 430 thousand parameters.

# %%
guess_card = ask("Stream free: MB on the card, activations not counted?", unit="MB")

# %%
card, dram = ledger(Offload, SMALL)
card_busy, _ = ledger(Offload, SMALL, busy=True)
compare(
    guess={"card": guess_card},
    predicted={"card": Bytes(2 * psi), "main memory": Bytes((12 + 4) * psi), "card, stream busy": Bytes((2 + 2) * psi)},
    measured={"card": card, "main memory": dram, "card, stream busy": card_busy},
    tolerance=0.01, unit="MB",
)  # fmt: skip

# %% [markdown]
# An eighth on the card. (Main memory has 16 and not 14 bytes a parameter, since gradients are widened on arrival.)
# But read the last line: gradients that cannot leave wait *on the card*. The formula's $2\Psi$ holds if the link keeps
# up with the backward pass.
#
# ## 3 · Three clocks
#
# Memory is solved. Time is not: a step now passes through three places, and each has a clock of its own.
#
# - The **card** needs $6\Psi D$ operations for $D$ tokens, at $R$ operations a second.
# - The **link** carries $4\Psi$ bytes, at $W$ bytes a second.
# - The **processor** updates. Adam has few operations and much to read: a gradient, a weight, a mean and a variance (16
#   bytes), of which the last three are written again (12). The gradient had to be written on arrival (4). That is
#   $32\Psi$ bytes over main memory, at $M$ bytes a second.
#
# If nothing is hidden behind anything, the card computes for this share of the time, its **efficiency**:
#
# $$\frac{6\Psi D/R}{6\Psi D/R + 4\Psi/W + 32\Psi/M} = \frac{6D/R}{6D/R + 4/W + 32/M}.$$
#
# $\Psi$ cancels: a model of any size has the same. The third term holds if the processor's Adam does nothing but read and
# write; section 7 puts that to the test.
#
# Now hold all three terms against a machine. We measure $R$ once, at 512 tokens (`best` keeps the quickest of several
# runs). We *set* the other two: the copy streams get a bandwidth, and so does the memory of `OffloadedAdamW`, the library's
# `Offload`. Then only $D$ varies.


# %%
def seconds_of_a_step(config, batch_size, W=None, M=None, delay_from=None):
    model, batch = GPT(config, dtype=torch.bfloat16), batch_of(0, batch_size)
    o = OffloadedAdamW(model, CopyStream(W), CopyStream(W), delay_from, M)

    def step():
        model(*batch).backward()
        o.step()

    step()  # not timed: with late updates (section 4) the first has nothing to wait for
    return best(step, times=8)


def seconds_of_passes(config, batch_size):
    model, batch = GPT(config, dtype=torch.bfloat16), batch_of(0, batch_size)
    return best(lambda: model(*batch).backward(), times=8)


# %% tags=["varies"]
W, M = 40e6, 400e6  # bytes a second
R = FlopsPerSecond(6 * psi * 512 / seconds_of_passes(SMALL, 16))
due, found = {}, {}
for each in (4, 16, 64):
    step, name = predict.offloaded_step(psi, 32 * each, R, W, M), f"{32 * each:,} tokens"
    passes = seconds_of_passes(SMALL, each)
    print(f"{name}: card {step.card:.1ms}, link {step.link:.1ms}, processor {step.processor:.1ms}; card measured {1e3 * passes:.1f} ms")
    due[name], found[name] = step.efficiency, Ratio(passes / seconds_of_a_step(SMALL, each, W, M))
compare(predicted=due, measured=found, tolerance=None)

# %% [markdown]
# (With few tokens the card is slower than $R$, as its measured milliseconds say. How much it saves that gradients already travel during the backward pass, was not tried.) Look at what is in the formula: $R$, $W$ and $M$ belong to the
# machine, and $D$ is yours. **Give the card more tokens for each step**, and the same roads are fast enough. An A100
# that reaches 125 of its 312 TFLOP/s stands behind PCI Express 4 (31.5 GB/s), in a machine with four channels of memory
# (102 GB/s): **how many tokens** for 90 %?

# %%
guess_tokens = ask("Tokens in a step for an efficiency of 90 %?")

# %%
print(f"the link alone: {predict.tokens_for(0.9, 125e12, 31.5e9, float('inf')):,.0f} tokens; you said {guess_tokens.said}")
for channels in (4, 8):
    print(f"with the processor, {channels} channels: {predict.tokens_for(0.9, 125e12, 31.5e9, channels * 25.6e9):,.0f} tokens")
TiersExplorer(gradients="main memory").show()

# %% [markdown]
# (If nothing reacts to your clicks, run the cell once.) With half of its memory channels empty, a machine needs half
# again as many tokens. The explorer has the same three clocks and the disk's, for models that recompute ($8\Psi D$). Its *checkpoints* are
# what recompute keeps: the inputs of the blocks (lesson 03).
#
# Which takes longer, the link or the processor? Give the machine 256 GiB, then 2 TiB. What has changed, and why?
#
# <details><summary>Answer</summary>
#
# The processor; with 2 TiB, the link. 256 GiB stand on four channels instead of eight, and 2 TiB on twelve faster ones: the
# processor's 32 bytes a parameter go over main memory, so its seconds follow the channels, and the link's do not.
#
# </details>
#
# ## 4 · One step late
#
# While the processor updates, the card waits. ZeRO-Offload's last idea is to not wait: the card goes on with the old
# weights, while the processor applies the gradients of step $t$, which count from step $t + 2$ on. This is the **delayed
# parameter update**. The next step hands its own gradients over, then waits for the update before, which has had a
# whole pass of time, and brings its weights home.

# %%
caption = "Two steps, three ways; the numbers name the step whose work it is, and the durations are invented. At the bottom the update of step 0 hides below the passes of step 1, which have old weights."
pictures.step_timeline(caption=caption).show()

# %% [markdown]
# What is there to gain? Hide nothing but the update. With $c$ seconds on the card, $l$ on the link and $u$ on the processor, a step then takes
# $c + l + u$; one step late it takes the longer of $c + l$ and $u$. (The lower two charts hide a part of $l$ as well.) The ratio is at most 2 (but for the clock's noise), when both are
# equal. We build that case: a memory so slow that the update takes as long as a whole step.

# %% tags=["varies"]
TINY = GPTConfig(layers=2, width=64, heads=4, vocab_size=256, context=32, norm="rmsnorm", bias=False)
at_once = seconds_of_a_step(TINY, 8)
slow = 32 * predict.parameters(TINY) / at_once  # bytes a second: the update takes as long as all else
ways = (("no delay", None), ("one step late", 0))
seconds = {name: seconds_of_a_step(TINY, 8, M=slow, delay_from=when) for name, when in ways}
compare(predicted={"no delay": Seconds(2 * at_once), "one step late": at_once}, measured=seconds, tolerance=None)

# %% [markdown]
# Now the price. Every gradient is computed on weights that have not heard of the one before, so this is another training.
# The paper's advice is to begin late, after 40 ordinary steps. Three runs, with three seeds each, go well beyond 2.985
# nats, the entropy of our letters, which a model reaches by learning how often each letter comes.

# %%
guess_late = ask("500 steps, all of them delayed: how much higher is the loss at the end, in nats?")


# %%
RUNS = {"no delay": 500, "late from step 40": 40, "late from the first step": 0}  # of 500 steps, the first late one


def losses(delay_from, seed, lr=1e-3, steps=500):
    model, found = GPT(TINY, seed=seed), []
    o = OffloadedAdamW(model, CopyStream(), CopyStream(), delay_from, lr=lr)
    for number in range(steps):
        (loss := model(*batch_of(number, 8, seed))).backward()
        found.append(loss.item())
        o.step()
    return torch.tensor(found).unfold(0, 20, 1).mean(1).tolist()  # smoothed


# %% tags=["varies"]
curves = trained(losses, RUNS)  # three seeds each; both cores train
report(curves)
print("you said", guess_late.said)
pictures.losses_by_step_and_second(
    curves, RUNS, [*seconds.values()], 2.985,
    caption="Left: late runs need more steps. Right: the same curves over seconds, where a late step is shorter. Bands run from the lowest to the highest of three seeds.",
)  # fmt: skip

# %% [markdown]
# The delay is not free: both late runs need more steps to the same loss, and the late start does not change that. The
# right panel has the verdict. This machine was built so that a delay gains the most that it can, and even here the
# steps that it adds cost all of that, or nearly all. Where the update is a tenth of the step, the gain is a tenth at most, and the
# price is the same.
#
# That is one small model, over its first 500 steps; the paper reports curves that coincide. So measure it on yours, in
# seconds.
#
# ## 5 · At scale
#
# Some V100s had 32 GB. DeepSpeed says that with ZeRO-Offload *one* of them trains 13 billion parameters. **Guess** what our
# formula allows at most, if nothing else needed room.

# %%
guess_most = ask("At most, with 2 bytes a parameter on 32 GiB: billions of parameters?", unit="billion")

# %%
room, ran = hardware.V100_32GB.memory, Count(13 * 10**9)
print(f"without offload at most {room / 16 / 1e9:.1f} billion; main memory for 13 billion: {Bytes(16 * 13 * 10**9):.0GB}")
assert ran <= (most := Count(room // placements["gradients", "states", "update"][0]))  # a bound: checked here, not in the table
compare(guess=guess_most, predicted=most, measured=ran, tolerance=None, unit="billion", name="on one V100", columns=("at most", "published"))  # measured: DeepSpeed's documentation, on one V100 of 32 GB

# %% [markdown]
# Three quarters of the card are weights; the rest is for activations, which have not moved. And main memory, at the 16
# bytes that section 2 measured, is the next wall: 13 billion fill most of the machine of the opening.
#
# That is the story. What a step asks for once, and what needs few operations, may leave first; the two passes, whose work
# grows with the tokens, stay. And the more tokens a step has, the slower the roads may be.
#
# ---
#
# ## Second sitting
#
# The story ends here; of what follows, the lab takes up the first cell and sections 8 and 9. On another day, run all cells
# above before you go on. Below: the code of section 4's late step; section 3's explorer once more; the weights leave, too,
# down to a disk that you have; many cards share one host, whose Adam meets a yardstick; a disk is full; and a link is a real
# one.
#
# First the late step. The library's `step` does what section 4 said, and the lab has you build one like it. Which line does
# not wait, and which makes up for it? (`_away` has an entry for each weight, with its master; a bucket is a few of them that
# Adam updates in one call.)

# %%
show(OffloadedAdamW.step, docstring=False)

# %% [markdown]
# `submit` hands the update to the processor, and `before.result()` waits for the one that the step before has handed over.
#
# **Back at section 3's explorer:** let the processor *not* run Adam. Why do the seconds of the link grow sevenfold?
#
# <details><summary>Answer</summary>
#
# Now the states cross the link, up and down, and the gradients must come back: 28 bytes instead of 4, as in section 1.
#
# </details>
#
# ## 6 · One floor down
#
# A disk is the largest and the slowest of the three. How slow is yours? The system keeps what it has read or written in its
# page cache, so that we would measure DRAM. We tell it to forget (`posix_fadvise`; Linux listens):

# %% tags=["varies"]
import contextlib
import os
import sys
import tempfile
import time
from pathlib import Path

from course_kit.notebook import self_check
from course_lib.offload.disk import Disk, bandwidth
from course_lib.offload.on_disk import DiskOffloadedModel, DiskOffloadUnit
from course_lib.train.recompute import recompute
from course_lib.train.step import train_step

place = tempfile.TemporaryDirectory(dir=".")  # beside the notebook: the system's own folder may be a RAM disk
folder = Path(place.name)
here = bandwidth(folder, 2**25)
print(f"written at {here.write / 1e6:,.0f} MB/s, read at {here.read / 1e6:,.0f} MB/s")

# %% [markdown]
# What would that be good for? Weights, gradients and optimizer state each have an intensity $i$ of their own,
# operations for each byte that travels. In a step with recompute there are $8\Psi$ operations for each token. Weights
# travel three times, for the forward pass, for recompute and for the backward pass, and a gradient once: $8\Psi$ bytes,
# so $i = D$. The optimizer's 16 bytes (with a gradient in fp32) travel twice, $32\Psi$: $i = D/4$. With a
# width of $d$, a checkpoint, the input that recompute keeps of a block, has $2d$ bytes for a token, written and read, with $12d^2$ parameters between it and the next:
# $8 \cdot 12d^2 / 4d = 24d$. On a V100 that reaches 70 TFLOP/s, with 2,048 tokens and $d = 4096$, and with each state alone on its road: the
# efficiency of section 3 with a single term, $iW/(iW + R)$.

# %%
roads = {"NVMe drive": 7e9, "PCIe 3": 15.75e9, "NVLink": hardware.V100_32GB.link_bytes_per_s}
for state in ("parameters", "optimizer", "checkpoints"):
    i = predict.flops_a_byte(state, 2, 1024, width=4096)
    print(f"{state}: i = {i:,.0f};", ", ".join(f"{road} {predict.link_efficiency(i, W, 70e12):.0%}" for road, W in roads.items()))

# %% [markdown]
# So an NVMe drive is fast enough for checkpoints. For weights it is not, at so few tokens, and for the optimizer's state
# least of all. (Put your own disk's speed among the roads.)
#
# ## 7 · Many cards, many micro-batches
#
# There are two ways to make a slow road count less. The first is **more roads**. ZeRO-Offload on $N$ GPUs of one machine is
# lesson 10's stage 2: after the reduce-scatter a rank owns a part of the gradients, and sends only that part, $2\Psi/N$,
# over a link of its own. The weights come back in the same parts, and an all-gather over NVLink completes them. So the
# link's seconds are divided by $N$. The processor's are not: the $N$ updates share one main memory, and together move
# $32\Psi$ bytes, as before. Only more *machines* bring more memory.

# %%
for gpus in (1, 8):
    card, link, processor = predict.offloaded_step(10e9, 8192, 125e12, 31.5e9, 204.8e9, gpus)
    print(f"10 billion, 8,192 tokens a GPU, {gpus} GPUs: card {card:.2s}, link {link:.2s}, processor {processor:.2s}")

# %% [markdown]
# (The messages among the GPUs come on top.) The ZeRO-Offload paper goes up to 128 GPUs: 8 machines, and so 8 memories. ZeRO-Infinity does the
# same with disks: each rank updates its slice of the states, from a disk of its own machine.
#
# So the processor's clock is the one that many cards share. Section 3 gave Adam 28 bytes to read and write, and no other
# work. Is that so? Our yardstick is the plainest loop there is, one that turns the sign of numbers in place: 4 bytes
# read, 4 written. **Guess:** Adam's $16 + 12$ bytes, carried at that speed, take a certain time. How many times as long does PyTorch's fused Adam take?

# %%
guess_fused = ask("Fused Adam: how many times the time of 28 bytes at the yardstick's speed?")

# %% tags=["varies"]
n = 2**24  # 64 MiB for each of four arrays: more than any cache holds
M_here = 8 * n / best(torch.ones(n).neg_)
adams = {}
for name, fused in {"fused": True, "operation by operation": False}.items():
    master = nn.Parameter(torch.ones(n))
    master.grad, adamw = torch.ones(n), torch.optim.AdamW([master], fused=fused, foreach=False)
    adamw.step()
    adams[name] = best(adamw.step)
print(f"the yardstick: {M_here / 1e9:.1f} GB/s; you said {guess_fused.said}")
compare(predicted=dict.fromkeys(adams, Seconds(28 * n / M_here)), measured=adams, tolerance=None)

# %% [markdown]
# (Not checked: seconds are this machine's own.) Fused, Adam is within a factor of two of what memory allows. Operation by operation
# each line goes over its arrays anew, with temporaries. So ZeRO-Offload came with a CPU Adam of its own, vectorized,
# threaded and tiled: one tile's weights go home while the next is computed (Ren et al. 2021, §5).
#
# The second way is **more work for each journey**. With gradient accumulation (lesson 05) a step has $m$ micro-batches of $D$
# tokens. If each of them goes through the whole model before the next begins, the weights travel $m$ times. **L2L**, "layer
# to layer" (Pudipeddi et al. 2020), turns the two loops around: a unit is fetched once, all micro-batches pass through it,
# it is dropped. For every two bytes that come there are $2mD$ operations in the forward pass, so the intensity is $mD$
# instead of $D$. The price is $m$ inputs that have to be kept for each unit.
#
# **Your turn.** Write the forward pass of L2L. No two units may be in memory at the same time.


# %%
@your_turn(turns.check_layer_by_layer, look="A unit leaves memory when no name refers to it any more, and fetch runs before its result gets one.")
def layer_by_layer(fetch, count, micro_batches):
    """The outputs of `count` units, one after the other, for all micro-batches, in a new list; fetch(number) brings a unit in."""
    ...


# %% tags=["solution"]
@layer_by_layer.solution
def layer_by_layer(fetch, count, micro_batches):
    for number in range(count):
        unit = fetch(number)
        micro_batches = [unit(x) for x in micro_batches]
        del unit
    return micro_batches


# %% [markdown]
# Is the intensity $mD$? We count operations, and bytes that were fetched:

# %%
from torch.utils.flop_counter import FlopCounterMode

found = {}
for m in (1, 4, 16):
    shelf = turns.Shelf(units=3, width=64, dtype=torch.bfloat16)
    with FlopCounterMode(display=False) as counter:
        layer_by_layer(shelf.fetch, 3, [torch.ones(32, 64, dtype=torch.bfloat16) for _ in range(m)])
    found[f"{m} × 32 tokens"] = Ratio(counter.get_total_flops() / shelf.read_bytes)
compare(predicted={f"{m} × 32 tokens": Ratio(m * 32) for m in (1, 4, 16)}, measured=found)

# %% [markdown]
# A slow road needs tokens, and they may come in micro-batches.
#
# ## 8 · A model in files
#
# The disk buys something else: room for states that fit in no memory you have. (When the files are first written, ours still has the whole
# model's weights in memory, once.) `DiskOffloadedModel` keeps weights, masters
# and moments in files. A unit (a block) is read before its pass and dropped after it, and updated as soon as its
# gradients are complete. (From here on, memory is memory and the disk is far; precision plays no roles any more.)
# Everything hangs on one function:

# %%
show(DiskOffloadUnit.update, docstring=False)


# %%
def in_files(config, where, prefetch=True, dtype=torch.bfloat16):
    return DiskOffloadedModel(GPT(config, dtype=dtype), Disk(folder / where), prefetch, lr=1e-2)


CONFIGS = {n: GPTConfig(n, 128, 4, vocab_size=256, context=32, norm="rmsnorm", bias=False) for n in (2, 4, 8)}
ours, oracle = in_files(CONFIGS[2], "equal", dtype=torch.float32), GPT(CONFIGS[2])
adamw = torch.optim.AdamW(oracle.parameters(), lr=1e-2, fused=True)
for number in range(3):
    ours(*batch_of(number)).backward()
    ours.step()
    train_step(oracle, adamw, batch_of(number))
    whole = ours.whole_state_dict()
    print(f"step {number}: one device's weights, bit for bit:", all(torch.equal(whole[name], w) for name, w in oracle.state_dict().items()))

# %% [markdown]
# How much of the model is in memory at once? The root unit (embedding, positions, the last norm), 0.07 MB, is
# there during the whole pass. Of the blocks, 0.4 MB each, there is one; or two, when the next one is read ahead. And how
# many bytes are read for each parameter? 2 for the forward pass, 2 for the backward, 12 of states; 14 are written.


# %%
def step_in_files(layers, prefetch):
    model = in_files(CONFIGS[layers], f"{layers} {prefetch}", prefetch)
    disk, read = model.disk, model.disk.read_bytes
    with measure.memory(model) as record:
        model(*batch_of(0)).backward()
        model.step()
    first = Bytes(14 * predict.parameters(CONFIGS[layers]))  # written before the step
    weights, activations = (Bytes(int(max(record.timeline[kind]))) for kind in ("parameters", "activations"))
    return weights, activations, disk.read_bytes - read, disk.written_bytes - first


# %%
two, n = (2 * predict.parameters(CONFIGS[layers]) for layers in (2, 8))  # bytes
block = Bytes((n - two) // 6)
root = Bytes(two) - 2 * block
due, held, kept = {}, {}, {}
for layers, prefetch in ((8, False), (4, True), (8, True)):
    name = f"{layers} blocks, " + ("next one ahead" if prefetch else "one at a time")
    due[name] = root + (2 if prefetch else 1) * block
    held[name], kept[name], read, written = step_in_files(layers, prefetch)
display(compare(predicted=due, measured=held, tolerance=0.01, unit="MB"))
print("activations at most:", {name: f"{nbytes:.2MB}" for name, nbytes in kept.items()})
due = {"read": Bytes(8 * n), "written": Bytes(7 * n)}
compare(predicted=due, measured={"read": read, "written": written}, tolerance=0.01, unit="MB")

# %% [markdown]
# Twice the blocks, and not a byte more of weights in memory. But look at the line between the tables: twice the blocks, nearly
# twice the *activations*. Depth is paid for in them now. Lesson 03 has the cure, recompute, and section 10 the rest: then a block
# leaves nothing but its input, and even that may go.
#
# The tracker counts tensors. Does the *process* agree? The operating system knows what it has handed out: the
# **resident set**, RSS. How far does it rise while a model of 12 blocks is built and takes two steps, each time in a process of its own?


# %%
from course_pages.lesson11.process import memory_of  # (bytes of tensors at the peak, rise of the highest RSS)

WIDE = GPTConfig(12, 256, 4, vocab_size=256, context=32, norm="rmsnorm", bias=False)


# %% tags=["varies"]
def from_memory():
    model = GPT(WIDE, dtype=torch.bfloat16)
    return model, Offload(model, CopyStream(), CopyStream()).step


def from_files():
    model = in_files(WIDE, "rss")
    return model, model.step


for name, kind in {"in memory": from_memory, "in files": from_files}.items():
    tracked, resident = ranks.run(memory_of, kind, world_size=1)[0]
    print(f"{name}: {tracked:.0MB} of tensors at the peak; the process's RSS rises by {resident:.0MB}")

# %% [markdown]
# RSS is coarser: it counts loaded code, buffers, and memory that is free but not given back. But it believes no ledger of
# ours, and the model in files is small in the system's eyes, too.
#
# ## 9 · No space left
#
# A step overwrites all states. What if the disk is full in the middle? Half of the blocks would be new, half old, and
# no copy anywhere: the files *are* the model. So a step never overwrites. It writes new files beside the old ones,
# and one rename at the end makes them count. We fill the disk: the file that block 2 will want to write leads to
# `/dev/full`, a device on which nothing has room.

# %%
def tell(problem):
    print(f"{type(problem).__name__}: {str(problem).replace(str(folder) + os.sep, '')}")


survivor = in_files(CONFIGS[4], "full")
survivor(*batch_of(0)).backward()
survivor.step()
before = survivor.whole_state_dict()
trap = folder / "full" / "unit2.states.3"
trap.symlink_to("/dev/full") if sys.platform == "linux" else trap.mkdir()  # elsewhere a folder stops the writer as well
survivor(*batch_of(1)).backward()
try:
    survivor.step()
except OSError as problem:
    tell(problem)

# %%
after = survivor.whole_state_dict()
print("the weights are those after step 0:", all(torch.equal(before[name], after[name]) for name in before))
trap.unlink() if trap.is_symlink() else trap.rmdir()
survivor(*batch_of(1)).backward()
survivor.step()
print("with room again, steps taken:", survivor.steps)

# %% [markdown]
# The step is lost, nothing else. The price stands in the message: while a step is written, the disk holds $28\Psi$. And
# a copy of such a folder that broke off? A file is too short, by a single byte:

# %%
victim = next((folder / "full").glob("unit2.weights.*"))
with open(victim, "r+b") as file:
    file.truncate(victim.stat().st_size - 1)
try:
    Disk(folder / "full")
except ValueError as problem:
    tell(problem)

# %% [markdown]
# The folder is refused before the first step, with the name of the file.
#
# ## 10 · Activations on the road
#
# Lesson 03 carried activations to the attic and back, and waited for each copy. Two copy streams need not wait: what is
# saved travels while the forward pass goes on, and in the backward pass the hook that takes a tensor asks for the one before it
# as well.


# %%
class Attic(torch.autograd.graph.saved_tensors_hooks):
    def __init__(self, bytes_per_s=None, ahead=1):
        self.out, self.back, self.ahead = CopyStream(bytes_per_s), CopyStream(bytes_per_s), ahead
        self.there, self.coming = [], {}  # (copy, its way out); number → (tensor here, its way back)
        super().__init__(self.put, self.take)

    def put(self, tensor):
        there = torch.empty_like(tensor)
        self.there.append((there, self.out.send(tensor.detach(), there)))
        return len(self.there) - 1

    def take(self, number):
        for each in range(number, max(number - self.ahead, 0) - 1, -1):  # this one, then the one before it
            if each not in self.coming:
                there, left = self.there[each]
                left.result()
                self.coming[each] = (here := torch.empty_like(there)), self.back.send(there, here)
        here, arrives = self.coming[number]
        arrives.result()
        return here


# %% [markdown]
# Eight blocks with recompute, so that only each block's input is saved: 64 sequences of 32 tokens, width 128, fp32.

# %%
tower = GPT(CONFIGS[8]).blocks


def chain(attic):
    start, x = time.perf_counter(), torch.ones(64, 32, 128, requires_grad=True)
    with attic or contextlib.nullcontext():
        for each in tower:
            x = recompute(each, x)
    x.sum().backward()
    return Seconds(time.perf_counter() - start)


# %% tags=["varies"]
chain(None)
stay = chain(None)
W = 2 * 8 * 4 * 64 * 32 * 128 / stay  # carrying all of it, both ways, takes as long as computing
attics = {"waiting for each": Attic(W, ahead=0), "asking one ahead": Attic(W, ahead=1)}
seconds = {name: chain(attic) for name, attic in attics.items()}
print(f"nothing moves: {stay:.2s};", "; ".join(f"{name}: {taken:.2s}" for name, taken in seconds.items()))
compare(
    predicted={name: Bytes(2 * 8 * 4 * 64 * 32 * 128) for name in attics},
    measured={name: attic.out.carried + attic.back.carried for name, attic in attics.items()}, unit="MB",
)  # fmt: skip

# %% [markdown]
# The same bytes, exactly. Asking ahead waits less, but it waits: the way out takes half of the computing time here, and
# the forward pass, behind which it should hide, is a quarter of it. (PyTorch's `torch.autograd.graph.save_on_cpu` waits
# for each copy.)
#
# ## 11 · PyTorch's own, and a real link
#
# `fully_shard` (lesson 10) takes a `CPUOffloadPolicy`: weights, gradients and the optimizer live in main memory, one rank
# is enough, and it runs here. Ours beside it, section 2's, from the same fp32 weights. Are they the same after each step?
#
# And what crosses? On a CPU nothing has to. But FSDP asks for it all the same, by `tensor.to(device)`, and we listen. It keeps
# the weights in fp32 and casts them on the card. So they cross with 4 bytes, in the forward pass and in the backward pass (all
# but the root's, which stay), and the gradient goes home in fp32.

# %%
from unittest.mock import patch

from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard


def theirs_in_main_memory():
    how = {"mesh": init_device_mesh("cpu", (1,)), "offload_policy": CPUOffloadPolicy(pin_memory=False)}
    how["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    model = GPT(SMALL)
    for block in model.blocks:
        fully_shard(block, **how)
    return fully_shard(model, **how)


# %%
def beside_theirs():
    """Are the fp32 weights the same after each step? And how many bytes cross in the last one, theirs and ours?"""
    theirs, ours, same, to = theirs_in_main_memory(), GPT(SMALL, dtype=torch.bfloat16), [], torch.Tensor.to
    adamw, o = torch.optim.AdamW(theirs.parameters(), lr=1e-3, fused=True), Offload(ours, CopyStream(), CopyStream())
    [master.data.copy_(weight.full_tensor()) for master, weight in zip(o.masters, theirs.parameters())]
    for number in range(3):
        asked, before = [], o.out.carried + o.back.carried

        def listening(tensor, *args, asked=asked, **more):
            asked += [tensor.nbytes] if args and isinstance(args[0], torch.device) else []
            return to(tensor, *args, **more)

        with patch.object(torch.Tensor, "to", listening):
            theirs(*batch_of(number)).backward()
        [each() for each in (adamw.step, adamw.zero_grad)]
        ours(*batch_of(number)).backward()
        o.step()
        same += [torch.equal(master, weight.full_tensor()) for master, weight in zip(o.masters, theirs.parameters())]
    return all(same), Bytes(sum(asked)), o.out.carried + o.back.carried - before


# %%
same, theirs, ours = ranks.run(beside_theirs, world_size=1, diagnose=False)[0]
print("the same fp32 weights after each step, bit for bit:", same)
due = {"CPUOffloadPolicy": Bytes(12 * psi) - 2 * root, "ours": Bytes(4 * psi)}  # root: section 8's, in 16 bits; here it is fp32
compare(predicted=due, measured={"CPUOffloadPolicy": theirs, "ours": ours}, tolerance=0, unit="MB")

# %% [markdown]
# The same weights, and nearly three times the traffic. It buys something: no more weights on the card than a unit or two. And
# on a thousand ranks each sends its own part only.
#
# `pin_memory=False` is there because a CPU needs none. With a GPU it is the first thing that goes wrong. A copy engine reads
# main memory by itself, so the operating system must not move the page meanwhile: such memory is **pinned**
# (page-locked). From any other the driver first copies into a small pinned buffer of its own, and the caller waits,
# whatever `non_blocking` says. The second thing is the **stream**: one CUDA stream runs in order, so a copy on the
# kernels' stream waits for the kernels. On a GPU our `CopyStream` has a stream of its own, and pinned memory at the end.

# Below, 256 MB go to the card and come back, pinned and not. A T4 has PCI Express 3.0 with 16 lanes: 15.75 GB/s at most in
# each direction; 4.0 has twice as much (lesson 03). (Without a GPU the second cell prints one line.)

# %%
def seconds_of_a_copy(source, place):
    """Until the numbers are there, and until the caller goes on."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    if place == "cuda":
        source.to("cuda", non_blocking=True)
    else:
        target = torch.empty(source.shape, pin_memory=place == "pinned")
        start = time.perf_counter()
        target.copy_(source, non_blocking=True)
    goes_on = time.perf_counter() - start
    torch.cuda.synchronize()
    return Seconds(time.perf_counter() - start), Seconds(goes_on)


# %% tags=["varies"]
if problem := gpu.refusal(2**30):
    print(problem)
else:
    plain, there = torch.ones(2**26), torch.ones(2**26, device="cuda")
    copies = {
        "to the card, not pinned": (plain, "cuda"),
        "to the card, pinned": (plain.pin_memory(), "cuda"),
        "back, not pinned": (there, "plain"),
        "back, pinned": (there, "pinned"),
    }
    for name, copy in copies.items():
        elapsed, goes_on = min(seconds_of_a_copy(*copy) for _ in range(5))
        rate = Bytes(plain.nbytes) / elapsed / 1e9
        print(f"{name:<24} {rate:5.1f} GB/s, the caller goes on after {goes_on:.2ms}")

# %% [markdown]
# ## 12 · What they built of it
#
# ZeRO-Infinity keeps the states on disks. On a V100 that reaches 70 TFLOP/s, with two sequences of 1,024 tokens, what bandwidth does the
# optimizer need for 90 %? And how many tokens does ZeRO-Offload need for the 40 TFLOP/s that its paper measured on one V100 of a DGX-2, with PCIe 3
# and twelve channels of DDR4-2666 (256 GB/s)?

# %%
needed = predict.bandwidth_for(0.9, predict.flops_a_byte("optimizer", 2, 1024), 70e12)
print(f"optimizer, two sequences, 90 %: {needed / 1e12:.2f} TB/s")
tokens = predict.tokens_for(40 / 70, 70e12, 15.75e9, 256e9)
print(f"ZeRO-Offload, 10 billion on a V100, 40 of 70 TFLOP/s: takes {tokens:,.0f} tokens, if nothing else is lost")

# %% [markdown]
# (The ZeRO-Infinity paper says nearly 1.5 TB/s, and we do not know why.) No machine has such a link. But 512 GPUs that
# each read a 512th of the states at 3 GB/s have it together. The paper reports 25 PFLOP/s on 512
# V100s, 40 % of their peak (its abstract).
#
# ZeRO-Offload's abstract has 40 TFLOP/s for 10 billion parameters on one V100, and 30 without offload for 1.4 billion, the
# largest that fitted. So with offload the card computed *faster*, on a larger model. Our last line says what it takes:
# six sequences of 1,024, and the freed memory holds far more.
#
# Since then links have become faster: with GH200's NVLink-C2C, hundreds of GB/s in each direction, the third clock decides.
# 8-bit optimizers shrink the states instead of moving them. And ZeRO-Infinity cuts a layer that is too large into tiles.
#
# ## What to keep
#
# | question | answer |
# |---|---|
# | What leaves first? | fp32 weights, moments, gradients and the update: 2 of 16 bytes stay, $4\Psi$ cross |
# | What leaves last? | weights: nothing stays but a unit or two, $6\Psi$ cross ($8\Psi$ with recompute); once for all micro-batches, if layer meets layer |
# | What stays? | forward and backward pass: their work grows with the tokens |
# | When are the roads fast enough? | efficiency $\frac{6D/R}{6D/R + 4/W + 32/M}$: three clocks, and only the card's grows with the tokens |
# | What do more cards bring? | $N$ links, but one main memory for each machine |
# | What may be late? | the update, by one step; the gain is at most a factor of 2, the price is steps: measure both |
# | What breaks it? | a busy stream (gradients wait on the card); fp32 on the road; half a step on a full disk |
# | How much does the disk hold? | $14\Psi$, and $28\Psi$ while a step is written |
#
# ## Three exercises
#
# **1.** A card of 24 GB, 18 of them for model states, and 128 GB of main memory, all for what left. Which is the wall for
# ZeRO-Offload as we built it (16 bytes a parameter in main memory), and at how many billion parameters?
#
# **2.** An RTX 4090 reaches 80 TFLOP/s, its link carries 32 GB/s, and the desktop around it has two channels of memory, 51.2
# GB/s. How many tokens in a step give ZeRO-Offload an efficiency of 80 %?
#
# **3.** Eight such cards in a server with 8 channels (204.8 GB/s), and 16,384 tokens for each card. Which share of the time do
# they compute?

# %%
answer_1 = None  # billion parameters

self_check(answer_1, turns.EXERCISES[0], tolerance=0.01, hint="Two walls. Which one do you meet first?")

# %%
answer_2 = None  # tokens

self_check(answer_2, turns.EXERCISES[1], tolerance=0.01, hint="At 80 % the two roads together take a quarter of the card's time.")

# %%
answer_3 = None  # a share, from 0 to 1

self_check(answer_3, turns.EXERCISES[2], tolerance=0.01, hint="Which of the three clocks do eight cards share?")

# %% [markdown]
# <details><summary>Answers</summary>
#
# 1. The card's wall is at 9 billion (18 GB for 2 bytes each), main memory's at 8 (128 GB for 16 each): 8 billion.
# 2. $0.8/0.2 \cdot 80 \cdot 10^{12} / 6 \cdot (4/(32 \cdot 10^9) + 32/(51.2 \cdot 10^9))$ = 40,000 tokens. Five sixths of them are the
# processor's.
# 3. 88 %: a parameter takes 1.23 ns on the card, 0.016 ns on the link (an eighth) and 0.156 ns on the processor.
#
# </details>

# %%
place.cleanup()

# %% [markdown]
# **The lab**, `labs/lab11_offload`, has you build an optimizer whose states live far away and whose update comes one
# step late, and counts what crosses.
#
# ## Further reading
#
# - Ren et al. 2021, [ZeRO-Offload](https://arxiv.org/abs/2101.06840): the cut is §3, the processor's Adam and the delayed update are §5.
# - Rajbhandari et al. 2021, [ZeRO-Infinity](https://arxiv.org/abs/2104.07857): which bandwidth each state needs is §4.
# - Pudipeddi et al. 2020, [L2L](https://arxiv.org/abs/2002.05645), and Rhu et al. 2016, [vDNN](https://arxiv.org/abs/1602.08124).
# - PyTorch's [CPUOffloadPolicy](https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html) for `fully_shard`.
#
# Lesson 12 puts all ways of splitting together, with one question: which rank does which?
