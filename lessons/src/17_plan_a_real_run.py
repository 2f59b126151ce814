# %% [markdown]
# # 17 · Plan a real run
#
# **The question:** this model, this cluster, this batch: which run?
#
# | | |
# |---|---|
# | Time | first sitting 50 minutes, second sitting 30; about a minute and a half of both together is computing on 2 CPU cores |
# | A GPU | changes nothing here; the capstone runs on GPUs, too, where there is one for each rank |
# | Opens | `predict/planner/cost.py`, `predict/planner/plan.py`, `predict/failures.py` |
#
# In 2025 Hugging Face gave a machine of eight H100s to a model of 8 billion parameters, with its program nanotron, and tried dozens of ways to cut it; we have 39.
# Twenty-nine died. The ten that ran took between 17 and 48 seconds for the same step on the
# same GPUs.
#
# On a thousand machines, one start that dies after a quarter of an hour costs 2,000 GPU hours. Everything that you need to skip
# that search you have already counted: bytes in lessons 02 to 05 and 10, messages in 06 to 08, waiting in 09, and all of them
# together in 12. This page puts the counts into one function, and then does what planners seldom suffer: it holds that function against the world.

# %%
import numpy as np

from course_kit.compare import compare
from course_kit.notebook import ask, your_turn
from course_kit.units import Bytes, Ratio, Seconds
from course_lib import predict
from course_lib.model import hardware, zoo
from course_lib.predict.planner import Cluster, Constants, cost, fitted
from course_pages.lesson17 import held_out, pictures, truth, turns
from course_pages.lesson17.explorer import MapExplorer

# %% [markdown]
# ## 1 · What is legal
#
# A **layout** says how many ranks share what: `tensor` ranks cut each layer (lesson 08), `pipeline` ranks are stages of layers (09), and `data` ranks
# hold replicas with other rows of the batch (07). Their product is the number of GPUs. Not every product will do.
#
# - Tensor ranks divide the heads, or one of them would have half a head.
# - They divide the GPUs of a machine, so that their messages, two all-reduces a block and direction, never leave its fast links (12).
# - Stages divide the layers: that is the plain cut. (The published runs below give the last stage fewer blocks, since it has the head.)
#
# **Your turn.** List them.


# %%
@your_turn(turns.check_legal, look="Two loops, and three divisions without rest before the one that gives `data`.")
def legal(heads, layers, gpus, node):
    """A list of all (tensor, pipeline, data) for a model of so many heads and layers on gpus in machines of `node`."""
    ...


# %% tags=["solution"]
# One solution. Open it when yours passes, or when you are stuck.
@legal.solution
def legal(heads, layers, gpus, node):
    return [
        (t, p, gpus // (t * p))
        for t in range(1, node + 1)
        for p in range(1, layers + 1)
        if heads % t == 0 and node % t == 0 and layers % p == 0 and gpus % (t * p) == 0
    ]


# %%
print("8B on one machine of 8:", legal(heads=32, layers=32, gpus=8, node=8))
print("70B on 1,024 GPUs:", len(legal(heads=64, layers=80, gpus=1024, node=8)), "layouts")

# %% [markdown]
# Ten are few. But each still has a micro-batch, a stage of ZeRO, interleaving, recompute. Ten become dozens, and on a large cluster more than a thousand.
#
# ## 2 · What it holds
#
# A layout must fit before it may be fast, and what decides is its *fullest* GPU. Two stages compete for that title. The last one has the head with its logits. The first one has
# the embedding, and with $p$ stages it keeps the activations of $p$ micro-batches in 1F1B (lesson 09), where the last stage keeps those of one. No stage keeps more than the $m$ of a step:
#
# $$\text{states} \;+\; \text{activations of a micro-batch} \times \min(m,\, p - \text{stage})$$
#
# Stages count from 0. Before ZeRO, states take 18 bytes a parameter: 16, and 2 more for gradients in fp32 (lesson 04).
#
# **Guess:** the 8B model in eight stages, one sequence of 4,096 tokens in a micro-batch. How many GB does its fullest GPU hold?

# %%
guess_gb = ask("8B on eight stages: the fullest GPU", unit="GB")

# %%
runs, constants = truth.read()["H100 nanotron"], Constants(**fitted()["H100 nanotron"]["constants"])
layouts, amounts = runs.work.layouts, runs.work
eight, name, deep = truth.on_one_machine(runs)  # the ten that ran, the fastest first; what to call each; the one of eight stages
for stage, which in enumerate(("first", "middle", "last")):
    states, kept = amounts.states[deep, stage] / 1e9, amounts.kept[deep, stage] / 1e9
    print(f"{which:6} stage: {states:4.1f} GB of states + {kept:4.1f} GB of activations = {states + kept:4.1f} GB")
print("you said", guess_gb.said)

# %% [markdown]
# Here the first stage has five blocks and the last, which has the head, two. The account counts tensors and knows nothing of H100s. Does a GPU agree?
# Here are all ten runs that lived (tp, pp and dp are tensor, pipeline and data ranks, mbs the sequences of a micro-batch).

# %%
# measured: Hugging Face, Ultra-Scale Playbook, nanotron on one machine of eight H100s
account = Constants(**{**vars(constants), **cost.ACCOUNT})  # the bytes of lessons 02 to 10, and no constant
compare(
    predicted={name[n]: Bytes(each) for n, each in zip(eight, 1e9 * truth.gigabytes(runs, account)[eight])},
    measured={name[n]: Bytes(1e9 * runs.gigabytes[n]) for n in eight},
    tolerance=0.21, unit="GB", columns=("account", "published"),
)

# %% [markdown]
# (Published is what rank 0 held, of the first stage.) Counting alone comes close, and up to a sixth too low with tensor ranks: a process also has a CUDA context, fp32 copies of logits, gradients in 16 bits that wait to be summed, and copies of the stream that tensor ranks
# gather. Six fitted constants carry that; `cost.py` names them.
#
# ## 3 · What it takes
#
# A micro-batch meets one block. The GPU multiplies; tensor ranks send; and meanwhile the CPU starts the kernels, one after the other.
# The CPU runs ahead while the GPU works, and the slower decides. That is lesson 16's third regime, and it has a number: with tensor ranks, a block
# cannot take less than `launch_tensor_s`, forward and backward together.
#
# **Guess:** below is a block of 8B on 1 to 8 tensor ranks. From how many ranks on does it wait for its launches?

# %%
guess_launch = ask("A block of 8B waits for its launches: from how many tensor ranks on?")

# %%
rate = runs.peak * constants.gemm_efficiency / (1 + constants.half_width / amounts.width)  # thin products reach less
attention = amounts.scores / (runs.peak * constants.attention_efficiency)
products = amounts.products / rate + attention + amounts.tensor_bytes / constants.link_bytes_per_s  # s of a block
launches = np.where(layouts.tensor > 1, constants.launch_tensor_s, constants.launch_s)
for n in eight:
    print(f"{name[n]}: {1e3 * products[n]:5.1f} ms of products and messages, launches {1e3 * launches[n]:.1f} ms")
print("you said", guess_launch.said)

# %% [markdown]
# On eight tensor ranks the GPU waits for the CPU. Each further rank makes the products thinner and no launch shorter: that is the
# dark corner of the map that you will meet below. (The 4.3 ms carry whatever else tensor ranks wait for. Without tensor ranks products take
# so much longer that nothing tests the 0.1: ten times as much would fit these runs as well.)
#
# Now the whole step. The first micro-batch passes through all stages, one after the other. Behind it the others leave in the rhythm of the *slowest* stage (lesson 09's bubble, for unequal stages). At the end the data axis sums the gradients.
#
# **Your turn.** Put the parts together.


# %%
@your_turn(turns.check_step_seconds, look="Seconds of each stage first, for one micro-batch. Which of them count once, and which one counts again and again?")
def step_seconds(blocks, products_s, launches_s, head_s, micro_batches, data_s):
    """Seconds of a step. blocks: a list, the number of blocks of each stage; the last stage has the head besides.

    products_s, launches_s: of one block and one micro-batch, both passes; data_s: what the data axis sends at the end.
    """
    ...


# %% tags=["solution"]
# One solution. Open it when yours passes, or when you are stuck.
@step_seconds.solution
def step_seconds(blocks, products_s, launches_s, head_s, micro_batches, data_s):
    stages = [each * max(products_s, launches_s) for each in blocks]
    stages[-1] += head_s
    return sum(stages) + (micro_batches - 1) * max(stages) + data_s


# %%
data_s = cost.seconds(amounts, constants, runs.peak)["data"]
# measured: Hugging Face, Ultra-Scale Playbook, nanotron on one machine of eight H100s
ran = [n for n in eight if runs.seconds[n] < 40]
# blocks as nanotron cuts them: fewer on the last stage, which has the head
mine = {name[n]: Seconds(step_seconds(truth.stages_of(runs, n), products[n], launches[n], (amounts.head / rate)[n], layouts.micro_batches[n], data_s[n])) for n in ran}
compare(predicted=mine, measured={name[n]: Seconds(runs.seconds[n]) for n in ran}, tolerance=0.13, columns=("your formula", "published"))

# %% [markdown]
# Three lines of yours, and nine runs come out within 13 % of your formula. (The tenth has a story, below; section 5 is stricter.) The library does the same
# on arrays, a number for each layout; section 8 shows it, and what it adds.
#
# ## 4 · The list
#
# `predict.plan` tries all, prices the legal, and sorts. Llama 3 70B, 1,024 H100s, 1,024 sequences of 8,192 tokens a step. (Chunks:
# how many stages each rank has when they are interleaved, lesson 09.)

# %%
plans = predict.plan(zoo.LLAMA3_70B, Cluster(hardware.H100_80GB, 1024), batch=1024)
print(f"{plans.looked_at:,} legal plans; the first five that fit:")
for each in plans.best[:5]:
    fullest = max(each.first_gb, each.middle_gb, each.last_gb)
    print(f"tp {each.tensor} pp {each.pipeline} dp {each.data} ZeRO-{each.zero} mbs {each.micro_batch}, {each.chunks} chunks: {each.step_s:.2f} s (bubble {each.bubble_s:.2f}), MFU {each.mfu:.0%}, {fullest:.0f} GB")
print("\nrefused:", *(f"{count:5,} times: {reason}" for reason, count in [*plans.refused.items()][:5]), sep="\n")
print("\n" + plans.best[0].torchrun())

# %% [markdown]
# Each refusal has its reason, so you can argue with it. On the command line: `course plan llama3-70b --gpus 1024 --of H100 --batch 1024`.
#
# The seconds of the first five differ by 2 %. Is the planner that good?
#
# ## 5 · Held against the world
#
# A planner that was fitted on the runs that it explains proves little. So take published runs with shape, layout and batch in print, cut them
# into three parts, fit the constants on two and predict the third, three times over. Beside it stands the rule of thumb: 6ND FLOPs at one utilization, the best for that machine.
# (p90: nine of ten runs are nearer.)
#
# **Guess:** the rule's median error on the 228 `H100 nanotron` runs among them?

# %%
guess_thumb = ask("6ND at the best utilization: median error on the H100 runs, in percent")

# %%
# measured: the authors of each source (Hugging Face, MosaicML, BigScience, NVIDIA, ByteDance), on the machines named
found, table = held_out.held_out(), []
print(f"{'machine and software':27} {'source':24} {'n':>4} {'median':>7} {'p90':>6} {'6ND':>6}  worst")
for where, those in truth.read().items():
    timed = np.where(those.clean, those.seconds, np.nan)
    pairs = (truth.verdict(those, found[where][kind], timed) for kind in ("seconds", "thumb"))
    for ours, thumb in zip(*pairs):
        table.append((ours.n, f"{where:27} {ours.source:24} {ours.n:4} {ours.median:7.1%} {ours.p90:6.1%} {thumb.median:6.0%}  {ours.worst}"))
print(*(line for n, line in table if n >= 9), sep="\n")
pictures.ratios(found, caption="The rule of thumb is off by a factor of two and more, both ways. The planner leaves a line, and some points that no layout explains.").show()
print("you said", guess_thumb.said)

# %% [markdown]
# The dots far from the line are the best part. Here are three. (Three more, 3B on 256 H100s, took up to five times what was predicted; two of them are in the
# file twice, and their twins took less than half as long.)
#
# - **1B, eight stages: −98 %.** Two published runs differ in ZeRO alone, which has nothing to cut with one replica. One took under 5 seconds, the other 270. A broken run, not a layout.
# - **8B, two stages (the tenth of section 3).** Predicted 19 seconds, measured 48, at 71.5 GB. The rows do not say why.
# - **BigScience, 187B on 640 GPUs.** Twice the GPUs of three rows in the same log, nearly the same time: 147 seconds, and 151 to 160.
#
# The hardest question to such a table is: what is *not* in it? Of the H100 runs we left out those with tensor ranks beyond one machine, with more than 256 GPUs, or with a pipeline
# over several machines. That rule (`clean`) looks at layouts, not at errors. How many does it take away, and how does the planner do there?

# %%
# measured: Hugging Face, Ultra-Scale Playbook, 1 to 64 machines of eight H100s
h100 = found["H100 nanotron"]
timed, aside = np.isfinite(runs.seconds), np.isfinite(runs.seconds) & ~runs.clean
times = runs.seconds[aside] / h100["seconds"][aside]
print(f"left out: {aside.sum()} of {timed.sum()} timed H100 runs; median error there {np.median(abs(1 / times - 1)):.0%}; {np.mean(times > 3):.0%} took over three times what was predicted")
same = (runs.model == "llama-like-80B") & (layouts.tensor == 8) & (layouts.pipeline == 4) & (layouts.micro_batch == 2) & (layouts.zero == 1) & timed
print("80B, tp 8, pp 4, micro-batch 2, ZeRO-1:", {f"{gpus} GPUs": f"{each:.1f} s" for gpus, each in sorted(zip(runs.gpus[same].tolist(), runs.seconds[same].tolist()))})

# %% [markdown]
# Four fifths are outside, and there the planner fails. The last line speaks against the runs, not the planner: twice the GPUs cannot make a layout five times as fast, and twice as many again cannot slow it down.
# We take it for the fabric, and cannot prove it. So the table vouches for one machine, and for replicas over many. For pipelines over many machines, A100 rows
# speak, and a few of H100s.
#
# Experts are untested: their rows name a model, and not its layers. What about memory, and about the choice itself? (A case is a model and a number of GPUs,
# with its published runs.)

# %%
# measured: Hugging Face, Ultra-Scale Playbook, 1 to 64 machines of eight H100s; BigScience, 384 A100s
for where in ("H100 nanotron", "A100 Megatron-DeepSpeed"):
    those = truth.read()[where]
    space = truth.verdict(those, found[where]["gigabytes"], those.gigabytes)[0]
    print(f"memory, {where}: {space.n} runs, median {space.median:.1%}, p90 {space.p90:.1%}, worst {space.worst}")
limits = {f"beyond {limit} GB": (h100["least"] > limit) | runs.illegal for limit in (78, 80)}  # the planner's own is the first
for limit, refused in limits.items():
    print(f"{limit}: of {runs.failed.sum()} runs that died {refused[runs.failed].mean():.1%} refused, of {(~runs.failed).sum()} that ran {refused[~runs.failed].mean():.2%}")
cases = held_out.choices(runs, h100["seconds"])
print(f"the chosen run takes at most 1.15 times the best in {sum(over <= 1.15 for *_, over in cases)} of {len(cases)} cases:", [over for *_, over in cases])

# %% [markdown]
# We had set bars before: a median under 7 %, nine of ten within 20 %, nine of ten deaths foreseen with fewer than one run in 200 wrongly refused. The first two hold for each
# source with more than one run (section 8 has the rest of them, and the one source with a single run, 7.1 % off). The last holds by a hair, at 78 GB alone, chosen after looking (section 8).
#
# So was the list of section 4 that good? No. Its first five lie closer together than the planner's error at its best. And all
# five have more than 256 GPUs and a pipeline over several machines: of such runs, with these constants, the table vouches for none. Use such a list to strike out the thousand, and measure the last three.
#
# ## 6 · The map
#
# Each cell is a layout. Start with the eight H100s: the dots are published runs.

# %%
MapExplorer().show()

# %% [markdown]
# (a) Compare the hatched cells with the dots that say *died*. (b) Give the cell of 8 tensor ranks and one stage micro-batches
# of 2, then of 4. Why does its step change once, and not again? (c) ZeRO 1: which cells come to fit, which vanish, and why?
#
# <details><summary>Answers</summary>
#
# (a) They are the same four. (b) With two sequences its blocks no longer wait for their launches. From then on the products decide, and twice as many take twice as
# long. (c) Two cells with replicas come to fit, since Adam's state is cut, and four with one replica have nothing to cut. The cell of one tensor rank and two stages
# stays hatched, by a hair, though its dot ran.
#
# </details>
#
# ## 7 · A hundred thousand GPUs
#
# Llama 3 405B met 419 unexpected stops in 54 days on 16,384 GPUs (Grattafiori et al. 2024, §3.3.4). If each GPU, with its share of cables and
# hosts, fails independently, a stop comes every $M$ seconds on average, and $M$ falls as $1/\text{GPUs}$.
#
# You save for $\delta$ seconds after every $\tau$ seconds of work. A stop throws away what came after the last *whole* checkpoint, half an interval on average. So you lose about $\delta/\tau$ to saving and $\tau/2M$ to repeating. One falls
# with $\tau$, the other rises, and the sum is least where they are equal (Young 1974):
#
# $$\tau = \sqrt{2\,\delta M}$$
#
# **Guess:** a checkpoint takes a minute. How many minutes of work should lie between two, on 16,384 GPUs?

# %%
guess_minutes = ask("Minutes of work between two checkpoints, on 16,384 GPUs", unit="min")

# %% [markdown]
# **Your turn.** A formula from averages deserves a simulation. Given the times between stops, what was lost?


# %%
@your_turn(turns.check_lost, look="How many whole rounds of work and saving fit before each stop? Only their work is progress.")
def lost(stops, interval, checkpoint):
    """The share of all time that was no progress. stops: seconds from each start to the next stop, a list.

    The run works `interval` seconds, saves for `checkpoint` seconds, and so on; after a stop it is back at once.
    """
    ...


# %% tags=["solution"]
# One solution. Open it when yours passes, or when you are stuck.
@lost.solution
def lost(stops, interval, checkpoint):
    saved = sum(each // (interval + checkpoint) * interval for each in stops)
    return 1 - saved / sum(stops)


# %% [markdown]
# The table holds your simulation against a sharper formula. Where stops come at random times, a round of $\tau + \delta$ passes whole after $M(e^{(\tau+\delta)/M} - 1)$ seconds on average
# (Daly 2006), and a restart of $R$ seconds multiplies that by $e^{R/M}$. The share lost is one minus $\tau$ over it. For $\delta$ far below $\tau$, and $\tau$ far below $M$, that is the sum above. Daly's best interval stands beside Young's.

# %%
a_gpu = 54 * 86_400 * 16_384 / 419  # seconds between two stops of one GPU
print(f"one GPU stops the run once in {a_gpu / 86_400 / 365:.1f} years")
between = {f"{gpus:,} GPUs": float(predict.mean_time_between_stops(a_gpu, gpus)) for gpus in (16_384, 100_000)}
points = {}
for cluster, mean in between.items():
    best = float(predict.young(60, mean))
    print(f"{cluster}: a stop every {mean / 60:.0f} minutes; Young {best / 60:.1f}, Daly {predict.daly(60, mean) / 60:.1f} minutes")
    drawn = np.random.default_rng(0).exponential(mean, 10_000).tolist()
    points[cluster] = [(each, lost(drawn, each, 60)) for each in (best / 3, best, 3 * best)]
compare(
    predicted={f"{cluster}, {each / 60:.0f} min": predict.waste(each, 60, between[cluster]) for cluster, tried in points.items() for each, _ in tried},
    measured={f"{cluster}, {each / 60:.0f} min": Ratio(share) for cluster, tried in points.items() for each, share in tried},
    tolerance=0.05, columns=("Daly's formula", "simulated"),
)

# %%
print("you said", guess_minutes.said)
pictures.lost_time(between, points, 60, caption="With six times the GPUs the best interval is two and a half times shorter, and its loss 2.35 times as large.")

# %% [markdown]
# The bottom is flat: three times too long or too short costs less than twice. But at 100,000 GPUs even the bottom loses a quarter of the cluster. Nothing
# in the plan repairs that, only a shorter $\delta$: copy the state to main memory in a second, and write it out while the step goes on (lesson 11). What is left is starting again: three minutes each time.

# %%
for cluster, mean in between.items():
    quick = float(predict.young(1, mean))
    print(f"{cluster}: losses with a 1 s checkpoint: {predict.waste(quick, 1, mean):.1%}, and 3 minutes to start again: {predict.waste(quick, 1, mean, 180):.1%}")

# %% [markdown]
# That closes the first sitting.
#
# ## Second sitting
#
# You may stop here. On another day, run all cells above before you go on. Below: the planner's own code, the rest of section 5 (smaller sources, a limit that
# the runs choose, rows that are left out, a public calculator, failed runs, what the constants mean), one more question to the map, the capstone, stragglers and spares, mistakes in print, and the whole course on one page.

# %%
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from course_kit.notebook import self_check, show
from course_lib.predict.laws import fit_law
from course_lib.predict.planner.work import Layouts, work
from course_pages.lesson14 import grid
from course_pages.lesson17 import capstone, machine, stops

# %% [markdown]
# ### 8 · Behind sections 3 and 5
#
# Your three lines, as the library has them. **Before you read:** what could it have to add?

# %%
display(show(cost.seconds), show(cost.memory))

# %% [markdown]
# Seconds: among other things, messages of experts, of context ranks and of stages, interleaving (`chunks`), gradients that hide behind the work, and a fixed time for each step. Bytes: section 2's six constants.
#
# Other rows fitted once we read the programs that made them: NVLink joins 72 GPUs of a GB200; the head keeps its 16 bits; torchtitan saves every second `mm`, but none in float8, so those run again.
# Two things we chose looking at rows in 4 bits: crossings of memory *between* products, and messages that hide.
#
# Section 5 printed the sources of nine runs and more. (Its 43 % above the line are Megatron's 175B with ZeRO-3 on 1,536 GPUs: the formula lets each block wait for a
# ring of 1,536 places, at a price that was fitted without this row.) Here are the smaller ones, in the same columns:

# %%
print(*(line for n, line in table if n < 9), sep="\n")

# %% [markdown]
# Section 5 refused at 78 GB, a limit that we chose after looking. Now each two thirds of the runs choose theirs, and the other third is judged by it:

# %%
# measured: Hugging Face, Ultra-Scale Playbook, 1 to 64 machines of eight H100s
refused = h100["refused"] == 1
print(f"by the limit of each two thirds: of {runs.failed.sum()} runs that died {refused[runs.failed].mean():.1%} refused, of {(~runs.failed).sum()} that ran {refused[~runs.failed].mean():.2%}")

# %% [markdown]
# Such a limit refuses too many that ran: their GPUs were all but full.
#
# And some rows are not in the file at all, most of them because no shape is in print:

# %%
print(*(f"{count:3} {why}" for why, count in sorted(truth.left_out().items(), key=lambda each: -each[1])), sep="\n")

# %% [markdown]
# Beside our account of memory stands a public calculator, EleutherAI's `calc_transformer_mem.py`. It adds up states and 34 bytes for each token, feature and layer. And of the runs that died, those of 1B deserve a look:

# %%
# measured: Hugging Face, Ultra-Scale Playbook, 1 to 64 machines of eight H100s
theirs = truth.verdict(runs, truth.cookbook(runs), runs.gigabytes)[0]
print(f"the public calculator: median {theirs.median:.0%}, p90 {theirs.p90:.0%}, worst {theirs.worst}")
crashed = (runs.model == "llama-like-1B") & np.isin(runs.gpus, (16, 32, 64)) & (layouts.zero == 0) & (layouts.pipeline > 1) & (layouts.data > 1) & (layouts.micro_batch == 1)
print(f"1B on 16 to 64 GPUs, stages and replicas without ZeRO, micro-batch 1: {runs.failed[crashed].sum()} of {crashed.sum()} died, at {h100['least'][crashed].min():.0f} to {h100['least'][crashed].max():.0f} GB")

# %% [markdown]
# On half of the runs the calculator says more than twice what a GPU held. And the source does not tell a crash from a full memory: those runs of 1B died with most of it empty.
#
# The constants have physical names. Do they have physical values? Beside each of the fourteen that were fitted on these runs stands what a data sheet says (of a
# peak, all of it), or what lessons 02 to 10 count. A launch, a width and a fixed time stand in neither.

# %%
due = {"gemm_efficiency": 1, "link_bytes_per_s": 450e9, "nic_bytes_per_s": 50e9, "zero_slowness": 1, **cost.ACCOUNT}  # an H100, its 400 Gb/s card
for key in fitted()["H100 nanotron"]["fitted"]:
    print(f"{key:17} fitted {getattr(constants, key):9.3g}, due {format(due[key], '.3g') if key in due else '-'}")
for where, each in fitted().items():
    if "nic_bytes_per_s" in each["fitted"]:
        print(f"a card of {where:16} fitted {each['constants']['nic_bytes_per_s'] / 1e9:.0f} GB/s, data sheet {50 if 'H100' in where else 25}")

# %% [markdown]
# H100s' cards reach two thirds and three quarters of what is sold, once the formula knows that eight data ranks of a machine do not share a card: NCCL lays eight rings, and each leaves by another one. The 40 % carry all that grows with products. (The link ended at its bound: published rows cannot tell a fast one from one that sends behind the products.) What autograd keeps is within 6 % of the account.
# The 28 GB/s of A100 FSDP is more than our other A100 machines' card, 25: it stands for something besides the card.
#
# One more question to section 6's map. Take 80B on 64 H100s. With ZeRO 0 and micro-batches of 1, three cells fit. Which two controls, each moved alone, give it more?
#
# <details><summary>Answer</summary>
#
# Recompute and ZeRO-3. Recompute costs a third more products, ZeRO-3 gathers weights for each micro-batch.
#
# </details>
#
# ### 9 · The capstone: plan, run, die, go on
#
# Now you plan a run on the only cluster that is surely yours: four ranks of this machine. First, probes tell what *it* can do: launches and products of
# a block, what launches take if the block is cut over tensor ranks or gathered by ZeRO-3, Adam's update, alone and in ZeRO-1, and the link (lesson 06's
# $\alpha$ and $\beta$). All is measured while four ranks work at once. No data sheet has these numbers.
# Two of the numbers are for messages: what one takes by the clock, and what it takes of the processor, which four ranks may have to share (the cell prints the first).
#
# With a core for each rank, a step takes its longest chain of work and messages. On fewer cores it lies between two bounds, as in any workshop with too few
# benches (Graham 1969). It takes at least all work divided by the cores. On two cores it takes at most that, half of the chain, and the time in which messages are on their way and no core can help. The list takes the middle.

# %% tags=["varies"]
training = capstone.Training()  # the GPT of lesson 12, 16 sequences a step, 20 steps
here = machine.calibrate(training, (4,))
pace = here.paces[4]
print(f"{here.cores} cores; each of 4 ranks: {1e3 * pace.launch_s:.2f} ms to launch a block, {1e3 * pace.cut_launch_s:.2f} a cut one, {pace.flops_per_s / 1e9:.1f} GFLOP/s, a message costs {1e6 * float(pace.link.alpha):.0f} µs and {1e9 * pace.link.seconds_per_byte:.2f} ns a byte")
ranked = machine.rank_layouts(training, machine.layouts(training, 4), here)
for each in ranked:
    print(f"{each.layout!s:16} {1e3 * float(each.seconds):5.0f} ms a step, {int(each.peak) / 1e6:4.1f} MB at the peak, {int(each.sent) / 1e6:4.1f} MB sent")

# %% [markdown]
# (Sizes are pipeline · data · tensor.) **Before you run on:** the first and the last of this list will now train under `torchrun`, 20 steps each. By which factor will they differ?

# %%
guess_factor = ask("The last layout of the list takes how many times as long as the first?")

# %% tags=["varies"]
first, last = ranked[0], ranked[-1]
folder = Path(tempfile.mkdtemp())
took, met = {}, {}
for each, path in ((last, folder / "last"), (first, folder / "first")):
    options = ["--every", "5"] + ["--pause-s", "0.3"] * (each is first)  # the second run will be killed: leave time to do it
    agent = capstone.start(path, each.layout, *options)
    while agent.poll() is None and len(capstone.said(path)) < (13 if each is first else 99):
        time.sleep(0.05)
    agent.kill()  # nothing, if the run has ended; otherwise its ranks follow the agent
    agent.wait()
    lines = capstone.said(path)
    took[each] = np.median([line["seconds"] for line in lines if "seconds" in line])
    metered = [line for line in lines if "peak" in line]  # of two steps the smaller peak: memory may come back late
    met[each] = metered[0] | {"peak": [min(both) for both in zip(*(line["peak"] for line in metered))]}
    print(f"{each.layout!s:16} predicted {1e3 * float(each.seconds):5.0f} ms, took {1e3 * took[each]:5.0f} ms; {sum('step' in line for line in lines)} steps seen")
print(f"the last took {took[last] / took[first]:.2f} times as long; predicted {float(last.seconds) / float(first.seconds):.2f}, you said {guess_factor.said}")

# %% [markdown]
# Seconds on a machine that does other things besides are weather, so the page asserts nothing about them. (Our tests run the two in turn, step by step, and hold the order.)
# Bytes are no weather:

# %% tags=["varies"]
compare(
    predicted={f"{each.layout}: {what}": Bytes(int(getattr(each, what))) for each in (first, last) for what in ("peak", "sent")},
    measured={f"{each.layout}: {what}": Bytes(max(met[each][what])) for each in (first, last) for what in ("peak", "sent")},
    tolerance=0.05, unit="MB",
)

# %% [markdown]
# The second run is dead: its agent was killed behind step 12 or so, with four ranks in the middle of a step. Checkpoints lie behind every fifth. Suppose that each rank were a machine, and two of the four never
# come back. Resume on two ranks, in another layout, with ZeRO-3, which the dead run did not have:

# %% tags=["varies"]
tensor = first.layout.tensor  # shards of tensor ranks load on as many
other = capstone.Layout(data=2, zero=3) if tensor == 1 else replace(first.layout, pipeline=1, data=1, zero=0)
before = sum("step" in line for line in capstone.said(folder / "first"))
agent = capstone.start(folder / "first", other, "--every", "5", "--resume")
assert agent.wait(300) == 0, (folder / "first/said.txt").read_text()[-2000:]
lines = [line for line in capstone.said(folder / "first") if "step" in line]
print(f"died after step {lines[before - 1]['step']}, went on from step {lines[before]['step']} on {other.mesh.size} ranks as {other}")

# %%
alone = capstone.train_alone(training)  # the oracle: one process, all 20 steps, never interrupted
off = max(abs(line["loss"] - alone[line["step"]]) for run in ("last", "first") for line in capstone.said(folder / run) if "step" in line)
print("every step of every run has the loss of one process:", off < 1e-4, "- and the last step was reached:", lines[-1]["step"] == 19)

# %% [markdown]
# A plan, a death, another number of ranks, another layout, and one loss curve. Twenty steps end above the entropy of single letters, 2.985 nats, so this shows that the runs are one, not that the model learned words. For that a run must be longer.
#
# `python benchmarks/promise.py` takes lesson 14's text and lesson 14's promise, for ten times the largest budget of its grid. It plans the run as above, kills four ranks after a third of the steps, and goes on
# with two and ZeRO-3. The last checkpoint is then judged on the windows that judged the grid's runs. That takes some minutes, so here is a stored run. The law names how many nats more than the text's entropy the model should lose, and an interval. **Before you look:** will the run be inside?

# %%
kept = capstone.kept_promise()
entropy = grid.judge()[2]  # of lesson 14's text, on the windows that judge
promised = fit_law(grid.as_runs(grid.THE_GRID), entropy).loss(kept["parameters"], kept["tokens"])
print(f"{kept['training']['steps']:,} steps, four ranks died after step {kept['killed_after']}, two went on from step {kept['resumed_at']}; {kept['about']['date']}, {kept['about']['device']}")
# measured: benchmarks/promise.py, four and then two ranks; the run is kept in course_pages/lesson17/promise.json
compare(predicted=Ratio(promised - entropy), measured=Ratio(kept["loss"] - entropy), tolerance=kept["promised"]["wide"], columns=("promised", "reached"), name="nats above the entropy")

# %% [markdown]
# That is what lessons 06 to 10 and 12 were for. On real machines only the first half of the
# command changes: `docs/torchrun.md` has it, and `docs/cluster/` has the files for Slurm and Kubernetes. Its advice for the first hour is this page's: run the first and the last of the list, 20 steps
# each. If their order is wrong, the machine is not what the planner was told.
#
# ### 10 · Stragglers and spares
#
# No GPU failed, and still a step is slow: all wait for the slowest. If each of $n$ ranks takes a normal time around 1 with spread $\sigma$, the step takes the *maximum* of $n$ draws.
# That grows without end, but slowly, like $\sigma\sqrt{2 \ln n}$.

# %%
for count in (8, 1024, 16_384, 100_000):
    print(f"{count:7,} ranks with σ = 2 %: a step takes {stops.slowest_of(count, 0.02):.3f} of a rank's time; 1 + σ√(2 ln n) = {1 + 0.02 * np.sqrt(2 * np.log(count)):.3f}")
print(f"if one rank in 1,000 is always 10 % slow: 16,384 ranks have none of those with probability {0.999**16_384:.0e}")

# %% [markdown]
# Chance alone costs less than 10 %, even on 100,000 ranks. A single GPU that is *always* slow costs everyone all of its 10 %, and a large cluster has one. So large runs measure each rank, and throw the slow ones out.
#
# A GPU that fails, or is thrown out, needs another in its place. If its repair takes a day, spares must cover what breaks within one:

# %%
from scipy.stats import poisson

for cluster, mean in between.items():
    broken = 86_400 / mean  # on average, at any time; independent stops are Poisson's
    print(f"{cluster}: {broken:.0f} broken on average, {poisson.ppf(0.999, broken):.0f} spares are enough 999 times in 1,000")

# %% [markdown]
# ### 11 · Find the mistake
#
# You have seen rows that no layout explains. Some are wrong in print, and need no planner: their own columns contradict. The axes of a mesh multiply to the GPUs. And
# MFU · peak · GPUs is the rate of the whole cluster, within 2 %, for printed numbers are rounded.
#
# **Your turn.** Write the check that a careful reader does in the margin.


# %%
@your_turn(turns.check_contradictions, look="peak is in TFLOP/s of one GPU, petaflops of all of them, mfu in percent. Printed numbers are rounded: allow 2 %.")
def contradictions(row):
    """Which of "axes" and "rate" contradict, a list. row: {"axes": sizes, "gpus", "mfu", "peak", "petaflops"}."""
    ...


# %% tags=["solution"]
# One solution. Open it when yours passes, or when you are stuck.
@contradictions.solution
def contradictions(row):
    found = []
    if np.prod(row["axes"]) != row["gpus"]:
        found.append("axes")
    due = row["mfu"] / 100 * row["peak"] / 1000 * row["gpus"]
    if abs(row["petaflops"] / due - 1) > 0.02:
        found.append("rate")
    return found


# %%
printed = {  # Llama 3's Table 4 (which prints TFLOP/s of one GPU), MegaScale's Table 2
    "Llama 3, 8,192 tokens": {"axes": (8, 1, 16, 128), "gpus": 16_384, "mfu": 41, "peak": 989, "petaflops": 0.400 * 16_384},
    "Llama 3, 131,072 tokens": {"axes": (8, 16, 16, 4), "gpus": 16_384, "mfu": 38, "peak": 989, "petaflops": 0.380 * 16_384},
    "MegaScale on 12,288": {"axes": (8, 8, 192), "gpus": 12_288, "mfu": 55.2, "peak": 312, "petaflops": 2166.3},
}
for where, row in printed.items():
    print(f"{where:24} axes {np.prod(row['axes']):6,}, GPUs {row['gpus']:6,}; MFU gives {row['mfu'] / 1e5 * row['peak'] * row['gpus']:.1f} PFLOP/s, printed {row['petaflops']:.1f}: {contradictions(row) or 'none'}")

# %% [markdown]
# Eight replicas would be right for Llama 3, and 2116.3 for MegaScale: one digit each. The next two need a formula: a batch in BigScience's log, and two runs of 1B on the same eight H100s.

# %%
def tflops_a_gpu(batch, seconds, layers=6, h=14_336, seq=2048, vocab=250_880):  # with full recompute, on 8 GPUs (Narayanan et al. 2021, eq. 3)
    return 96 * batch * seq * layers * h * h * (1 + seq / (6 * h) + vocab / (16 * layers * h)) / seconds / 8 / 1e12


print(f"BigScience: 130.43 s, 143.48 TFLOP/s an A100; a batch of 2,048 (the column) gives {tflops_a_gpu(2048, 130.43):.0f}, of 512 (the heading) {tflops_a_gpu(512, 130.43):.2f}")
for stages, speed, mfu in ((1, 40_150, 39.2), (2, 38_299, 43.6)):  # Ultra-Scale Playbook, tokens a second on each GPU, MFU in percent
    for parameters, words in ((1_342_177_280, "embedding once"), (1_342_177_280 + 131_072 * 2048, "twice")):
        print(f"{stages} stages: printed {mfu} %; with {words:14} {100 * (6 * parameters + 12 * 16 * 2048 * 4096) * speed / 989.4e12:.1f} %")

# %% [markdown]
# An A100 has 312 at its peak. And with two stages: fewer tokens a second, and a higher MFU! With stages, the first and the last each hold a copy of the tied embedding, and the printed MFU counts both. All rows of 1B and 3B with stages have it.
# A planner fitted to MFU would have learned that pipelines are free. Ours is fitted to tokens a second.
#
# ## The whole course on one page
#
# One last use of the account: Llama 3 70B on 1,024 H100s, one sequence of 8,192 tokens in a micro-batch. Each row applies one more technique of the course.

# %%
ladder = {  # (tensor, pipeline, ZeRO, recompute)
    "07 replicas": (1, 1, 0, 0),
    "08 + 8 tensor ranks": (8, 1, 0, 0),
    "09 + 4 stages": (8, 4, 0, 0),
    "10 + ZeRO-1": (8, 4, 1, 0),
    "03 + recompute": (8, 4, 1, 1),
}
t, p, zero, full = np.array([*ladder.values()]).T
one = np.ones(len(t), int)
held = work(zoo.LLAMA3_70B.config, 8192, Layouts(t, p, 1024 // (t * p), one, one, zero, one, one, full, 1024 * one))
fullest = (held.states + held.kept).argmax(1)[:, None]
gigabytes = {name: np.take_along_axis(each, fullest, 1)[:, 0] / 1e9 for name, each in (("states", held.states), ("activations", held.kept))}
pictures.cuts([*ladder], gigabytes, 78, caption="Tensor ranks cut both bars. Stages cut the states and not the activations, of which 1F1B keeps more micro-batches; ZeRO cuts states, recompute activations.")

# %% [markdown]
# And in words, with $d$, $t$, $c$, $p$ and $e$ ranks along the axes, $m$ micro-batches, stage $s$, and $K$ features of a head:
#
# | what | cuts | a rank holds | a rank sends in a step | lesson |
# |---|---|---|---|---|
# | bf16 with fp32 sums, Adam | – | 18 bytes a parameter | – | 01, 02, 04 |
# | recompute | activations | block inputs, and one block | nothing; a third more products | 03 |
# | accumulation | the batch, in time | activations of one micro-batch | nothing more | 05 |
# | data | the batch | everything | $2\frac{d-1}{d}$ gradients, one all-reduce | 06, 07 |
# | ZeRO-1, 2, 3 | optimizer; gradients; weights | $1/d$ of them | ZeRO-1: no more than data; ZeRO-2: gradients with each micro-batch; ZeRO-3: weights, too, in both passes of each | 10 |
# | tensor | each layer | $1/t$ of weights, most activations | 4 all-reduces of the stream a block | 08 |
# | context | the sequence | $1/c$ of activations | keys and values, round a ring | 08 |
# | pipeline | the depth | $1/p$ of layers, $\min(m, p - s)$ micro-batches | the stream, twice a micro-batch; a bubble of $\frac{p-1}{m}$ | 09 |
# | the cube | each layer, the depth and the batch at once | $\frac{1}{tp}$ of states, before ZeRO | what each axis sends; tensor on the fastest links | 12 |
# | experts | the MLPs' rows | $1/e$ of experts | 4 all-to-alls of rows a block | 13 |
# | offload | states, in space | what is in use | over PCIe, twice | 11 |
# | laws and budgets | the FLOPs | – | – | 14 |
# | loaders, order, packing | the data | – | – | 15 |
# | tiles, fusion | traffic to memory | $K+1$ numbers a token | – | 16 |
# | a plan | the search | the fullest GPU decides | the slowest stage decides | 17 |
#
# ## Three exercises
#
# **1.** A model of 48 heads and 64 layers on 256 GPUs, eight to a machine. How many layouts are legal?
#
# **2.** Stops come every two hours, and a checkpoint takes 100 seconds. After how many minutes of work does Young save?
#
# **3.** A block's products take 3 ms on 8 tensor ranks and its launches 4.4 ms. You double the micro-batch, so products take 6 ms. By which factor does the time for one *sequence* fall?

# %%
answer_1 = None

display(self_check(answer_1, turns.EXERCISES[0], hint="Tensor sizes divide 48 and 8; stages are powers of two."))

answer_2 = None

display(self_check(answer_2, turns.EXERCISES[1], tolerance=0.01, hint="√(2δM), in minutes."))

answer_3 = None

self_check(answer_3, turns.EXERCISES[2], tolerance=0.01, hint="What decides before, and what after?")

# %% [markdown]
# <details><summary>Answers</summary>
#
# 1. Tensor 1, 2, 4 or 8; stages 1 to 64, seven powers of two, and with 8 tensor ranks up to 32: 27.
# 2. √(2 · 100 · 7,200) = 1,200 s: 20 minutes.
# 3. From 4.4 to 3 ms: 1.47 times.
#
# </details>
#
# **The lab**, `labs/lab17_plan_three_runs`: a dense model, a long context and an expert model, on clusters whose constants you must probe.
#
# ## Further reading
#
# - Narayanan et al. 2021, [Efficient Large-Scale Language Model Training on GPU Clusters](https://arxiv.org/abs/2104.04473): the first table of such runs.
# - Hugging Face 2025, [The Ultra-Scale Playbook](https://huggingface.co/spaces/nanotron/ultrascale-playbook): the rows of sections 2 to 6.
# - Isaev et al. 2023, [Calculon](https://doi.org/10.1145/3581784.3607102): an exhaustive search by formulas.
# - Grattafiori et al. 2024, [The Llama 3 Herd of Models](https://arxiv.org/abs/2407.21783), §3.3; Jiang et al. 2024, [MegaScale](https://arxiv.org/abs/2402.15627).
# - Young 1974, [A first order approximation to the optimum checkpoint interval](https://doi.org/10.1145/361147.361115); Daly 2006, [A higher order estimate](https://doi.org/10.1016/j.future.2004.11.016).
#
# You began with a model that did not fit. You can now say which run to start, what it will cost, and how far to trust that.
