# %% [markdown]
# # Lab 17 · Plan three runs
#
# **The question:** three runs, three clusters whose speed no data sheet tells, and eight steps that you may try before you
# must say which layout runs, and in how many seconds. Which eight?
#
# | | |
# |---|---|
# | Time | about 90 minutes |
# | Builds on | lesson 17: what is legal, what it holds, what it takes; and lessons 06 to 13, whose formulas these are |
# | You write | five functions, none longer than 30 lines |
# | A GPU | changes nothing here |
#
# | question | | points |
# |---|---|---|
# | 1 | What is legal | 15 |
# | 2 | What it holds | 25 |
# | 3 | What it takes | 25 |
# | 4 | Commit yourself | 35 |
#
# **The rules.** You may use NumPy and your own functions from questions above. What is finished is out of bounds: the
# planner of lesson 17, `course_lib.predict.planner`, and the rest of `course_lib.predict`. A function leaves what it is
# given as it was and does not touch the global random state. The checks look.
#
# No lab has 512 GPUs. So the clusters are simulated: each obeys the formulas of questions 2 and 3 exactly, with four
# constants of its own, and a step that you try takes a percent more or less. An answer that looks for the constants
# behind the probe has not understood what a probe is for; the checks read its text and that of the functions that it
# calls. (They go by names: call no function of yours `predict`, `outcome` or `broken`.)
#
# Checks that you see here give you points and tell you what is wrong. More run when the lab is graded, with other
# models and clusters. Question 4 is easiest with the answers to 1, 2 and 3. The others need no other.
#
# **Four records** stand for what you know. All fields are numbers.
#
# | record | fields |
# |---|---|
# | `Run` | `layers`, blocks; `width`; `heads`; `hidden`, features inside an MLP; `vocab`; `seq`, tokens of a sequence; `batch`, sequences of a step on all GPUs together; `experts`, MLPs in each block, and `top_k`, how many of them a token meets. Both are 1 in a dense model |
# | `Cluster` | `gpus`; `node`, GPUs of a machine; `memory_gib`, GiB of a GPU that a process can fill; `sparse_peak`, FLOP/s as data sheets print them, with 2:4 sparsity, which is twice what dense products can reach |
# | `Layout` | ranks of five axes, `tensor`, `pipeline`, `data`, `context`, `expert`; `zero`, 0 to 3; `rows`, sequences of a micro-batch; `recompute`, 0 or 1, whether blocks run forward again |
# | `Machine` | `efficiency`, the share of the dense peak that products reach; `link` and `card`, bytes a second that a GPU sends inside its machine, and to others; `fixed`, seconds of each step |

# %%
import math

import numpy as np

from course_kit.checks import check
from course_kit.checks.restrictions import called_by
from course_kit.notebook import ask
from course_pages.lesson17 import three_runs as simulated
from course_pages.lesson17.three_runs import Cluster, Layout, Machine, Run

# %%
FINISHED = ["course_lib", "predict", "planner", "Setup", "course_pages", "lesson17", "three_runs", "simulated"]
FINISHED += ["__closure__", "cell_contents", "__self__", "__globals__", "__dict__", "__code__", "globals", "vars", "gc"]
FINISHED += ["inspect", "_getframe", "currentframe", "f_back", "f_locals", "tb_frame", "exec", "eval", "getattr", "setattr"]
FINISHED += ["format", "format_map", "Formatter"]  # they look into objects by names that a text holds
FINISHED += ["attrgetter", "dir", "sys", "importlib", "__import__", "ctypes", "open", "json", "pathlib", "__module__"]
FINISHED += ["outcome", "outcomes", "committed", "parts_of", "broken"]  # the checks' own


# %%
def check_text(answer):
    """No function that an answer calls asks the judge, or the finished planner."""
    for each in called_by(answer):
        check.written_with(each, forbidden=FINISHED, look="the rules: the account is yours, and constants are found by probes")


# %% [markdown]
# A small model on two machines, and a model with experts. Most checks begin with them.

# %%
SMALL = Run(layers=12, width=768, heads=12, hidden=3072, vocab=50_304, seq=4096, batch=16)
EXPERTS = Run(layers=8, width=1024, heads=16, hidden=2048, vocab=32_000, seq=2048, batch=64, experts=8, top_k=2)
TWO = Cluster(gpus=16, node=8, memory_gib=75.2, sparse_peak=624e12)

# %% [markdown]
# ## 1 · What is legal (15 points)
#
# The product of the five axes is the number of GPUs, and each axis must divide what it cuts.
#
# - Tensor ranks divide the heads. They divide a machine, too, or they fill whole machines: `tensor` divides `node`, or is a multiple of it.
# - Pipeline ranks divide the layers.
# - Context ranks divide a sequence. As soon as there is more than one, each has 2,048 tokens or more.
# - Expert ranks divide the experts.
# - Data ranks have different sequences, and so do expert ranks: each of these `data · expert` groups has the same number
# of them. Context ranks share *one* sequence, as tensor ranks and stages do. `rows` divides what a group has.
#
# The batch is fixed. A batch that is changed until it fits trains another model.
#
# **Your contract.** `legal(run, cluster)` returns a list of all `(tensor, pipeline, data, context, expert, rows)`, six ints
# each, every one once, in any order. There are at most a few thousand; it takes less than 3 s.
#
# **Graded:** dense models (6 points), experts and long sequences (5), other models and clusters (4).

# %%
guess_legal = ask("How many layouts have a 12-layer model with 12 heads on 16 GPUs in two machines, 16 sequences of 4,096 tokens?")


# %% answer="q1"
def legal(run, cluster):
    """All (tensor, pipeline, data, context, expert, rows)."""
    ### BEGIN SOLUTION
    found = []
    for t in divisors(run.heads):
        if cluster.node % t and t % cluster.node:
            continue
        for p in divisors(run.layers):
            for c in divisors(run.seq):
                if c > 1 and run.seq // c < 2048:
                    continue
                for e in divisors(run.experts):
                    if cluster.gpus % (t * p * c * e):
                        continue
                    d = cluster.gpus // (t * p * c * e)
                    if run.batch % (d * e) == 0:
                        found += [(t, p, d, c, e, rows) for rows in divisors(run.batch // (d * e))]
    return found


def divisors(number):
    """All that divide a number."""
    return [n for n in range(1, number + 1) if number % n == 0]
    ### END SOLUTION


# %%
print(len(legal(SMALL, TWO)), "layouts; you said", guess_legal.said)


# %%
def broken(run, cluster, layout):
    """Which rule a layout breaks; empty if none."""
    t, p, d, c, e, rows = layout
    if min(layout) < 1:
        return "all six are 1 or more"
    found = {
        "the product of the axes is the number of GPUs": t * p * d * c * e != cluster.gpus,
        "tensor ranks divide the heads: one of them would have half a head": run.heads % t,
        "tensor ranks divide a machine or fill whole ones": cluster.node % t and t % cluster.node,
        "stages divide the layers": run.layers % p,
        "context ranks divide a sequence": run.seq % c,
        "a context rank has 2,048 tokens or more, if there are several": c > 1 and run.seq // c < 2048,
        "expert ranks divide the experts": run.experts % e,
        "the batch is fixed: data · expert groups share it evenly": run.batch % (d * e),
    }
    if bad := next((rule for rule, wrong in found.items() if wrong), ""):
        return bad
    return "micro-batches share the sequences of a group evenly: the batch is fixed" if run.batch // (d * e) % rows else ""


# %%
def about_missing(run, cluster, missing):
    """What is common to the legal layouts that are not in the list."""
    t, p, d, c, e, rows = (np.array(each) for each in zip(*missing))
    common = {
        "tensor ranks may fill whole machines, slow as that is": t > cluster.node,
        "a context rank may have 2,048 tokens: these are enough": (c > 1) & (run.seq // c == 2048),
        "all that a group has may be one micro-batch": rows == run.batch // (d * e),
        "context ranks share one sequence: they do not divide the batch": (c > 1) & (run.batch % (d * c * e * rows) > 0),
        "expert ranks have sequences of their own, as data ranks do; their product divides the batch": e > 1,
        "context ranks may be in several machines": (c > 1) & (cluster.node % c > 0),
    }
    usual = "each axis runs over all divisors, not over powers of two; rows over those of what a group has"
    return next((look for look, which in common.items() if which.all()), usual)


# %%
def check_legal(run, cluster):
    """All legal layouts, each once, and no other."""
    came = check.within(3, legal, run, cluster)
    six = isinstance(came, list) and all(isinstance(each, tuple | list) and len(each) == 6 for each in came)
    whole = six and all(isinstance(n, int) and not isinstance(n, bool) for each in came for n in each)
    where = f"{run.heads} heads, {run.layers} layers, {run.experts} experts on {cluster.gpus} GPUs"
    check.that(bool(whole), f"{where}: a list of six ints each", came=str(came)[:200], look="the contract: plain ints")
    came, right = [tuple(each) for each in came], simulated.legal(run, cluster)
    for layout in came:
        if rule := broken(run, cluster, layout):
            check.that(False, f"{where}: what is listed is legal", came=str(layout), look=rule)
    check.that(len(came) == len(set(came)), f"{where}: each layout once", look="two ways to the same six numbers")
    missing = sorted(set(right) - set(came))
    look = about_missing(run, cluster, missing) if missing else ""
    here = f"{len(missing)} of {len(right)} are not listed, {missing[0]} among them" if missing else ""
    check.that(not missing, f"{where}: what is legal is listed", came=here, look=look)


# %% check="q1-dense" points=6
check_text(legal)
check_legal(SMALL, TWO)
check_legal(SMALL._replace(heads=20, layers=10, seq=1024, batch=24), Cluster(40, 4, 40.0, 624e12))
check_legal(SMALL._replace(heads=32, layers=9, seq=2048, batch=48), Cluster(96, 8, 40.0, 624e12))

# %% check="q1-experts" points=5
check_text(legal)
check_legal(EXPERTS, TWO)
check_legal(EXPERTS._replace(experts=6, heads=24, layers=5, seq=6144, batch=12), Cluster(36, 4, 40.0, 624e12))
check_legal(SMALL._replace(seq=65_536, batch=2), TWO)

# %% check="q1-hidden" points=4
# Other models and clusters; one GPU; a batch of one sequence.
### BEGIN HIDDEN TESTS
#= `legal(run, cluster)` returns | floats_for_ints each_layout_twice rows_are_powers_of_two
#= There are at most | every_number_is_tried
#= All (tensor, pipeline | heads_not_divisible never_over_machines stages_do_not_divide_layers experts_not_divisible
check_text(legal)
#: other models and clusters
check_legal(Run(15, 1920, 15, 5120, 48_000, 3 * 2048, 90, 9, 3), Cluster(60, 5, 30.0, 1979e12))
check_legal(Run(64, 8192, 64, 32_768, 128_000, 131_072, 512), Cluster(512, 16, 60.0, 1979e12))
#: one GPU
check_legal(Run(3, 64, 7, 128, 1000, 512, 6, 2, 2), Cluster(1, 1, 16.0, 130e12))
#: a batch of one sequence
check_legal(Run(18, 1152, 18, 4608, 64_000, 262_144, 1), Cluster(72, 8, 75.0, 1979e12))
### END HIDDEN TESTS

# %% [markdown]
# ## 2 · What it holds (25 points)
#
# A run dies on its fullest GPU. Two of them compete: one of the first stage, which has the embedding and keeps most
# micro-batches in flight, and one of the last, which has the head and its logits. What lies between has neither.
#
# Training is in 16 bits with sums in 32. These are the formulas of all clusters here; fractions of bytes stay.
#
# - **Weights.** A block has $4\,\text{width}^2$ in its attention and $2\,\text{width}\cdot\text{hidden}$ in each MLP; norms and router are not counted. The embedding has $\text{vocab}\cdot\text{width}$,
# and the head has as many of its own. Tensor ranks cut all of them evenly, embedding and head too, stages cut the blocks, and expert ranks cut the *MLPs* and nothing else.
# - **States**, for each parameter that a rank has: 2 bytes of weights, 4 of gradients, 12 of Adam. ZeRO-1 cuts Adam's, ZeRO-2 also gradients, ZeRO-3
# also weights, evenly over the ranks that have the *same* parameters. Those are the data, context and expert ranks together; for MLPs it is the data and
# context ranks, as expert ranks have different ones (for a dense model, `expert` is 1). Tensor ranks and stages have no copies of each other.
# - **Activations.** `rows` sequences are a micro-batch, and context and tensor ranks cut all of it. Each token keeps $18\,\text{width} + 4\,\text{top\_k}\cdot\text{hidden}$ bytes in a
# block (experts are evenly busy, so that expert ranks change nothing here). The schedule is 1F1B: with $m$ micro-batches in a step and $p$ stages, the first
# stage keeps $\min(m, p)$ of them, the last one a single one.
# - **Recompute.** With it a block keeps $2\,\text{width}$ bytes for each token, and besides, once, as much as one block keeps without it: that of the block that runs again.
# - **ZeRO-3** holds the weights of one block whole besides, 2 bytes for each parameter that this rank would have without ZeRO.
# - **Logits** of one micro-batch: 4 bytes for each token and word, on the last stage, cut as activations are.
#
# With one stage, the first is the last: it has the embedding, the head and the logits.
#
# **Your contract.**
#
# - `held(run, layout)`: bytes of a GPU of the first stage and of the last, a pair of numbers. The layout is a legal one.
# - `fits(run, layout, cluster)`: True if both find room in `memory_gib`, else False. A GiB is $2^{30}$ bytes.
#
# **Graded:** states (7 points), activations (7), what fits (4), other models and layouts (7).

# %%
guess_gib = ask("7 billion parameters, 8 stages, 16 micro-batches: how many times as full as the last GPU is the first?")


# %% answer="q2"
def held(run, layout):
    """Bytes of a GPU of the first stage, and of the last."""
    ### BEGIN SOLUTION
    t, p, d, c, e, zero, rows, recompute = layout
    attention, mlps, table = sizes(run, layout)
    blocks = run.layers / p
    tables = 2 * table if p == 1 else table
    states = (blocks * attention + tables) * state_bytes(zero, d * c * e) + blocks * mlps * state_bytes(zero, d * c)
    if zero == 3:
        states += 2 * (attention + mlps)

    tokens = rows * run.seq / c / t
    block = tokens * (18 * run.width + 4 * run.top_k * run.hidden)
    kept = blocks * (2 * run.width * tokens if recompute else block)
    again = block if recompute else 0
    logits = 4 * tokens * run.vocab
    m = run.batch // (d * e * rows)
    first = states + min(m, p) * kept + again
    last = states + kept + again + logits
    return (first + logits if p == 1 else first), last


def sizes(run, layout):
    """Parameters of a rank: attention of one block, MLPs of one block, embedding."""
    t, e = layout.tensor, layout.expert
    return 4 * run.width**2 / t, 2 * run.width * run.hidden * run.experts / e / t, run.vocab * run.width / t


def state_bytes(zero, copies):
    """Bytes of a parameter's weights, gradients and Adam's numbers, with so many copies."""
    return sum(each / (copies if zero >= stage else 1) for each, stage in ((2, 3), (4, 2), (12, 1)))
    ### END SOLUTION


def fits(run, layout, cluster):
    """Whether the fullest GPU has room."""
    ### BEGIN SOLUTION
    return max(held(run, layout)) <= cluster.memory_gib * 2**30
    ### END SOLUTION


# %%
SEVEN = Run(layers=32, width=4096, heads=32, hidden=16_384, vocab=32_000, seq=4096, batch=256)
first, last = held(SEVEN, Layout(1, 8, 16, 1, 1, 1, 1, 0))
print(f"{first / 2**30:.1f} GiB on the first stage, {last / 2**30:.1f} on the last: {first / last:.1f} times; you said {guess_gib.said}")


# %%
def around_states(run, layout, parts):
    """Bytes of both stages by states that are counted in some other way, and what each way overlooks."""
    each, (block, mlps, table) = layout, simulated.parameters(run, layout)
    blocks, t = run.layers / each.pipeline, each.tensor

    def states(copies, of_experts, tables):
        return (blocks * block + table * tables) * simulated.state_bytes(each, copies) + blocks * mlps * simulated.state_bytes(each, of_experts)

    all_copies, of_experts, tables = each.copies, each.data * each.context, 1 + (each.pipeline == 1)
    right = states(all_copies, of_experts, tables)
    ways = {
        "embedding and head: the first stage has the one, the last the other; one stage has both": states(all_copies, of_experts, tables - 1),
        "the embedding and the head are two tables": states(all_copies, of_experts, 1),
        "tensor ranks cut the parameters once; they hold no copies that ZeRO could cut again": states(all_copies * t, of_experts * t, tables),
        "context ranks hold copies of the weights, too: ZeRO cuts over them": states(each.data * each.expert, each.data, tables),
        "attention is the same on all expert ranks: copies, which ZeRO cuts": states(of_experts, of_experts, tables),
        "expert ranks have different MLPs: ZeRO cuts these over data · context ranks": states(all_copies, all_copies, tables),
        "only what the stage of ZeRO says is cut": right * 0 + (18 / all_copies) * right / simulated.state_bytes(each, all_copies),
    }
    return {look: tuple(stage - right + way for stage in parts.stages) for look, way in ways.items()}


# %%
def around_activations(run, layout, parts):
    """Bytes of both stages by activations that are counted in some other way, and what each way overlooks."""
    first, last = parts.stages
    kept, (flight, _), again = parts.kept, parts.flight, parts.again
    more, c, t, p = (flight - 1) * kept, layout.context, layout.tensor, layout.pipeline
    return {
        "1F1B: the first stage keeps several micro-batches before the first of them comes back": (first - more, last),
        "there are no more micro-batches in flight than in a step": (first + (p - flight) * kept, last),
        "1F1B starts no more micro-batches than there are stages": (first + (simulated.micro_batches(run, layout) - flight) * kept, last),
        "the last stage sends each micro-batch back at once": (first, last + more),
        "the block that runs again is whole while it runs": (first - again, last - again),
        "one block at a time runs again": (first + again * (run.layers / p - 1), last + again * (run.layers / p - 1)),
        "ZeRO-3 holds a gathered block besides": (first - parts.gathered, last - parts.gathered),
        "logits: which stage has them, and in how many bytes?": (first - parts.logits[0], last - parts.logits[1]),
        "logits are on the last stage": (first - parts.logits[0] + parts.logits[1], last),
        "logits are cut over tensor ranks": (first + (t - 1) * parts.logits[0], last + (t - 1) * parts.logits[1]),
        "context ranks cut the tokens": (first + (c - 1) * (flight * kept + again + parts.logits[0]), last + (c - 1) * (kept + again + parts.logits[1])),
    }


# %%
def around_sizes(run, layout, parts):
    """Bytes of both stages by sizes that are counted in some other way, and what each way overlooks."""
    busy = simulated.held(run._replace(top_k=run.experts), layout)
    groups, less = (layout.copies, layout.data * layout.context), 0
    for bytes_held, copies in zip((parts.shared[0], parts.experts), groups):
        less += bytes_held * 2 / (copies if layout.zero >= 2 else 1) / simulated.state_bytes(layout, copies)
    block, mlps, table = simulated.parameters(run, layout)
    blocks, gathered, m = run.layers / layout.pipeline, 2 * (layout.zero == 3), simulated.micro_batches(run, layout)
    whole = float(parts.kept) / blocks if layout.recompute else 0
    return {
        "ZeRO-3 gathers one block at a time": tuple(stage + gathered * (blocks - 1) * (block + mlps) for stage in parts.stages),
        "ZeRO-3 gathers the weights of a block; embedding and head are none": tuple(stage + gathered * table for stage in parts.stages),
        "ZeRO-3 gathers all of a rank's MLPs in the block": tuple(stage + gathered * mlps * (layout.expert / run.experts - 1) for stage in parts.stages),
        "logits take 4 bytes for each token and word": tuple(stage - logits / 2 for stage, logits in zip(parts.stages, parts.logits)),
        "logits are there for one micro-batch at a time": tuple(stage + (m - 1) * logits for stage, logits in zip(parts.stages, parts.logits)),
        "the block that runs again has its input kept, too": tuple(stage - flight * whole for stage, flight in zip(parts.stages, parts.flight)),
        "each token meets `top_k` MLPs": busy.stages,
        "gradients are summed in 32 bits: 4 bytes": tuple(stage - less for stage in parts.stages),
    }


# %%
def about_held(run, layout, parts, came):
    """Which slip gives what came."""
    ways = around_states(run, layout, parts) | around_activations(run, layout, parts) | around_sizes(run, layout, parts)
    right = parts.stages
    for look, way in ways.items():
        if any(way[n] != right[n] for n in (0, 1)) and all(abs(came[n] / way[n] - 1) < 1e-7 for n in (0, 1)):
            return look
    off = [stage for stage, mine, its in zip(("first", "last"), came, right) if abs(mine / its - 1) > 1e-9]
    return f"the {' and the '.join(off)} stage: which of the formulas says something about it?"


# %%
def check_held(run, layout):
    """Both stages' bytes."""
    came = check.call(held, run, layout)
    what = f"bytes of {layout}"
    pair = isinstance(came, tuple | list) and len(came) == 2 and all(isinstance(x, int | float) for x in came)
    check.that(bool(pair), f"{what}: a pair of numbers", came=str(came)[:100], look="the contract: first stage, last stage")
    parts, came = simulated.held(run, layout), [float(each) for each in came]
    for which, mine, right in zip(("first", "last"), came, parts.stages):
        near = abs(mine / float(right) - 1) <= 1e-9
        look = "" if near else about_held(run, layout, parts, came)
        check.that(near, f"{what}: the {which} stage", came=f"{mine / float(right):.6g} times what it holds", look=look)


# %% check="q2-states" points=7
check_text(held)
for zero in range(4):
    check_held(SMALL._replace(batch=24), Layout(2, 1, 8, 1, 1, zero, 1, 0))
    check_held(EXPERTS, Layout(2, 2, 2, 1, 2, zero, 1, 0))
check_held(SMALL, Layout(1, 4, 2, 2, 1, 1, 1, 0))
check_held(SMALL._replace(vocab=400_000), Layout(4, 2, 1, 2, 1, 3, 1, 0))

# %% check="q2-activations" points=7
check_text(held)
check_held(SMALL, Layout(1, 4, 4, 1, 1, 0, 1, 0))
check_held(SMALL, Layout(1, 6, 1, 1, 1, 0, 4, 0))
check_held(SMALL, Layout(2, 4, 1, 2, 1, 0, 8, 0))
check_held(SMALL, Layout(2, 4, 2, 1, 1, 2, 1, 1))
check_held(SMALL, Layout(4, 1, 2, 2, 1, 0, 2, 1))
check_held(EXPERTS, Layout(2, 4, 1, 1, 2, 1, 4, 0))


# %%
def about_fits(stages, cluster, share, came):
    """Which slip gives what came."""
    room = cluster.memory_gib * 2**30
    if abs(share - 1) > 0.02 and (max(stages) * 2**30 / 1e9 <= room) is came:
        return "10^9 or 2^30?"
    if any((stage <= room) is came for stage in (stages[0], sum(stages), min(stages))):
        return "is it the fuller of both stages?"
    return "the bytes of `held` against the room in bytes"


def check_fits(run, layout, node=8, peak=624e12):
    """Room for what `held` says, in GiB; a little more and a little less."""
    stages = [float(each) for each in check.call(held, run, layout)]
    for share, right in ((0.95, True), (1.05, False), (0.99, True), (1.01, False), (0.5, True), (2, False)):
        cluster = Cluster(math.prod(layout[:5]), node, max(stages) / share / 2**30, peak)
        came = check.call(fits, run, layout, cluster)
        check.that(isinstance(came, bool | np.bool_), "fits returns True or False", came=str(came)[:100])
        look = "" if bool(came) is right else about_fits(stages, cluster, share, bool(came))
        what = f"`held` says {share:.0%} of what a GPU has: {'fits' if right else 'does not fit'}"
        check.that(bool(came) is right, what, came=str(came), look=look)


# %% check="q2-fits" points=4
check_text(fits)
check_fits(SMALL, Layout(1, 4, 4, 1, 1, 0, 1, 0))
check_fits(SMALL._replace(vocab=2_000_000), Layout(1, 2, 8, 1, 1, 0, 1, 0))
check_fits(EXPERTS, Layout(2, 4, 1, 1, 2, 1, 4, 0))

# %% check="q2-hidden" points=7
# Other models and layouts, of each stage of ZeRO; what fits.
### BEGIN HIDDEN TESTS
#= `held(run, layout)`: bytes | embedding_forgotten no_logits one_micro_batch_in_flight
#= The layout is a legal one | - what is given
#= `fits(run, layout, cluster)`: True | first_stage_alone both_stages_together
#= A GiB is | gigabytes_for_gibibytes
#= Bytes of a GPU | cut_over_tensor_ranks recompute_needs_no_room nothing_gathered
#= Whether the fullest GPU | first_stage_alone
check_text(fits)
#: other models and layouts, of each stage of ZeRO
hidden_model = Run(40, 5120, 40, 13_824, 128_256, 32_768, 96)
for zero in range(4):
    check_held(hidden_model, Layout(5, 8, 3, 4, 1, zero, 2, zero % 2))
    check_held(hidden_model._replace(experts=12, top_k=3), Layout(8, 10, 2, 16, 6, zero, 4, 1 - zero % 2))
check_held(hidden_model, Layout(1, 1, 16, 1, 1, 3, 6, 1))
check_held(hidden_model, Layout(1, 20, 24, 1, 1, 0, 2, 0))
#: what fits
check_fits(hidden_model, Layout(1, 20, 24, 1, 1, 0, 2, 0), 16, 1979e12)
check_fits(hidden_model._replace(experts=12, top_k=3), Layout(8, 10, 2, 16, 6, 2, 4, 1))
### END HIDDEN TESTS

# %% [markdown]
# ## 3 · What it takes (25 points)
#
# A step is products, messages and waiting. In these clusters nothing overlaps but what a stage sends to the next, which costs nothing.
#
# **Products** of one block and one micro-batch: for each of its $\text{rows}\cdot\text{seq}/\text{context}$ tokens, forward is $8\,\text{width}^2 + 4\,\text{top\_k}\cdot\text{width}\cdot\text{hidden}$ FLOPs of matrices and
# $2\,\text{seq}\cdot\text{width}$ of attention (half of all pairs are masked, and skipped). Backward is twice that. Recompute is one more forward pass. The head, on the last stage, takes $2\,\text{vocab}\cdot\text{width}$ forward and twice that
# backward, and is never recomputed; the embedding takes none. Tensor ranks cut all this evenly. A GPU reaches `efficiency` of its *dense* peak.
#
# **Messages** of one block and one micro-batch, in numbers of 2 bytes, as what each GPU sends:
#
# - tensor ranks: two all-reduces forward and two backward, of all tokens of the micro-batch on this context rank times `width`. A ring of $t$ ranks sends $2(t-1)/t$ times that.
# - context ranks: keys and values, $2\,\text{width}/t$ numbers a token, go round, so that a rank sends as much as it has $c-1$ times. Backward is twice as much: they go round again, with their gradients.
# - expert ranks: two all-to-alls forward and two backward, each of $\text{top\_k}\cdot\text{width}/t$ numbers a token, of which $(e-1)/e$ leave the rank.
# - recompute: the messages of one more forward pass, for all three.
#
# **Messages of a step** on the data axis, after the last micro-batch or between: bytes for each parameter that a rank of the *first* stage would have without ZeRO, times $(G-1)/G$ for the $G$ ranks
# that have the same one (question 2: shared ones, and those of MLPs). With $m$ micro-batches:
#
# | ZeRO | bytes for each parameter | |
# |---|---|---|
# | 0 | $8$ | gradients in 32 bits are summed, once a step: an all-reduce |
# | 1 | $4 + 2$ | gradients are scattered, new weights gathered |
# | 2 | $4m + 2$ | gradients are scattered after each micro-batch |
# | 3 | $(2 + 2 + 4)\,m$ | weights are gathered forward and backward, gradients scattered, for each micro-batch |
#
# **Links.** Neighbours on the tensor axis have neighbouring numbers, then comes the context axis, then expert, then data, and stages lie outermost. So the tensor axis sends at `link` if `tensor` ≤ `node`, the
# context axis if `tensor · context` ≤ `node`, the expert axis if `tensor · context · expert` ≤ `node`, and the data axis if the four of them do. Otherwise they send at `card`.
#
# **Waiting.** The first micro-batch passes through all stages, which have equally many blocks, and the head on the last. Behind it the other $m-1$ leave in the rhythm of the slowest stage. Then the data axis sends, and `fixed` is added.
#
# **Your contract.** `seconds(run, layout, cluster, machine)` is the seconds of a step, a number. Keep it plain and quick: question 4 asks it some ten thousand times. A speed may be `math.inf`, and `fixed` 0.
#
# **Graded:** products and waiting (8 points), messages of blocks (6), the data axis (5), other models and layouts (6).

# %%
guess_bubble = ask("8 stages, 16 micro-batches: by how many percent is a step longer than with no stage ever waiting?")


# %% answer="q3"
def seconds(run, layout, cluster, machine):
    """Seconds of a step."""
    ### BEGIN SOLUTION
    t, p, d, c, e, zero, rows, recompute = layout
    h, tokens, blocks = run.width, rows * run.seq / c, run.layers / p
    m = run.batch // (d * e * rows)
    forwards = 2 if recompute else 1
    rate = machine.efficiency * cluster.sparse_peak / 2

    def speed(ranks):
        return machine.link if ranks <= cluster.node else machine.card

    forward = tokens * (8 * h**2 + 4 * run.top_k * h * run.hidden + 2 * run.seq * h) / t
    reduced = 2 * (t - 1) / t * 2 * tokens * h
    passed = (c - 1) * 2 * 2 * tokens * h / t
    sent = (e - 1) / e * run.top_k * 2 * tokens * h / t
    block = (2 + forwards) * forward / rate
    block += 2 * (1 + forwards) * (reduced / speed(t) + sent / speed(t * c * e))
    block += (2 + forwards) * passed / speed(t * c)
    stage, head = blocks * block, 6 * tokens * h * run.vocab / t / rate

    shared = (blocks * 4 * h**2 + (2 if p == 1 else 1) * run.vocab * h) / t
    mlps = blocks * 2 * h * run.hidden * run.experts / e / t
    each = (8, 6, 4 * m + 2, 8 * m)[zero]
    data = each * (shared * (1 - 1 / (d * c * e)) + mlps * (1 - 1 / (d * c)))
    return p * stage + head + (m - 1) * (stage + head) + data / speed(t * c * e * d) + machine.fixed
    ### END SOLUTION


# %%
PLAIN = Machine(efficiency=0.5, link=2e11, card=2e10, fixed=0.1)
FREE = Machine(efficiency=0.5, link=math.inf, card=math.inf, fixed=0.0)  # nothing but products and waiting
waits = seconds(SEVEN, Layout(1, 8, 16, 1, 1, 1, 1, 0), Cluster(128, 8, 75.2, 624e12), FREE)
never = seconds(SEVEN, Layout(1, 1, 128, 1, 1, 1, 1, 0), Cluster(128, 8, 75.2, 624e12), FREE)
print(f"{waits:.2f} s instead of {never:.2f} s: {waits / never - 1:.0%}; you said {guess_bubble.said}")


# %% [markdown]
# Longer by (p − 1)/m of the blocks' work, which is no share of the whole; and the stage with the head makes all others wait a little more.


# %%
def other_products(work, layout):
    """The work of a step with products that are counted in some other way, by what each way overlooks."""
    again, flops = layout.recompute, work.flops / (3 + layout.recompute)
    thirds = {"tensor": work.tensor * 2 / (2 + again), "expert": work.expert * 2 / (2 + again), "context": work.context * 3 / (3 + again)}
    return {
        "recompute is one more forward pass: products and messages": work._replace(flops=3 * flops, **thirds),
        "recompute is one more forward pass: products": work._replace(flops=3 * flops),
        "recompute is one more forward pass, not a backward pass": work._replace(flops=(3 + 2 * again) * flops),
        "recompute sends the forward messages once more": work._replace(**thirds),
        "the head is not recomputed": work._replace(head=work.head * (1 + again / 3)),
        "the head works, too": work._replace(head=0),
        "two all-reduces forward and two backward; what does a ring send?": work._replace(tensor=work.tensor / 2),
    }


# %%
def other_links(work, layout, cluster, machine, m, top_k):
    """The work of a step with messages that are counted in some other way, by what each way overlooks."""
    t, _, d, c, e, zero, *_ = layout
    as_link = machine.card / machine.link if math.isfinite(machine.link) else 1
    near = [1 if ranks <= cluster.node else as_link for ranks in (t, t * c, t * c * e, t * c * e * d)]
    far = 1 / as_link if t * c * e * d <= cluster.node else 1
    per_micro, once = (m if zero < 2 else 1), (1 if zero < 2 else 6 / (4 * m + 2) if zero == 2 else 1 / m)
    return {
        "tensor ranks in several machines send at `card`": work._replace(tensor=work.tensor * near[0]),
        "context ranks: does the product with `tensor` fit into a machine?": work._replace(context=work.context * near[1]),
        "expert ranks: do three axes fit into a machine?": work._replace(expert=work.expert * near[2]),
        "the data axis: do four axes fit into a machine?": work._replace(data=work.data * near[3]),
        "ZeRO-3 gathers weights twice for each micro-batch": work._replace(data=work.data / (2 if zero == 3 else 1)),
        "ZeRO-0 and 1 send once a step, not once for each micro-batch": work._replace(data=work.data * per_micro),
        "ZeRO-2 and 3 send for each micro-batch": work._replace(data=work.data * once),
        "the data axis, if four axes fit into a machine, sends at `link`": work._replace(data=work.data * far),
        "a token sends a row to each of its experts, and gets as many back": work._replace(expert=work.expert / top_k),
        "the data axis sends, too": work._replace(data=0 * work.data),
    }


# %%
def other_waiting(run, layout, cluster, machine):
    """Seconds by waiting, and by micro-batches, that are counted in some other way, and what each way overlooks."""
    work, m, p = simulated.taken(run, layout), simulated.micro_batches(run, layout), layout.pipeline
    whole = float(simulated.seconds(run, layout, cluster, machine))
    silent = simulated.Taken(*(0 * each for each in work))
    rest = float(simulated.seconds(run, layout, cluster, machine, silent._replace(data=work.data)))
    head = m * float(work.head) / (machine.efficiency * cluster.sparse_peak / 2)
    blocks = (whole - rest - head) * m / (m + p - 1)  # of all micro-batches on one stage
    return {
        "waiting: the first micro-batch passes through all stages": rest + head + blocks,
        "the head works on each micro-batch": rest + head / m + blocks * (m + p - 1) / m,
        "tensor ranks cut the head, too": rest + head * layout.tensor + blocks * (m + p - 1) / m,
        "the bubble comes on top of the work: (p − 1)/m of it, no share of the whole": rest + (head + blocks) * (1 + (p - 1) / (m + p - 1)),
        "only the last stage has a head: the others do not pass through one": rest + (head + blocks) * (m + p - 1) / m,
        "`context` ranks share a sequence: the batch is divided by data · expert alone": rest + head / layout.context + blocks * (m / layout.context + p - 1) / m,
        "each step has `fixed` seconds": whole - machine.fixed,
        "data sheets print the peak with sparsity; dense products reach half of it": float(
            simulated.seconds(run, layout, cluster._replace(sparse_peak=2 * cluster.sparse_peak), machine)
        ),
    }


# %%
def other_sizes(work, run, layout, m):
    """The work of a step with tokens or ranks that are counted in some other way, by what each way overlooks."""
    copies, mlps = layout.copies, simulated.parameters(run, layout)[1] * run.layers / layout.pipeline
    more = mlps * (1 / (layout.data * layout.context) - 1 / copies)
    by_zero, once = (8, 6, 4 * m + 2, 8 * m)[layout.zero], (4 * m + 4) / (8 * m) if layout.zero == 3 else 1
    each = layout.rows * run.seq / layout.context * (3 + layout.recompute) / layout.tensor * run.width
    table = run.vocab * run.width / layout.tensor * (copies - 1) / copies * by_zero
    return {
        "the first stage has the embedding, and the head where it is the last, too": work._replace(data=work.data + table * (-1 if layout.pipeline == 1 else 1)),
        "the first stage sends its embedding's gradients, too": work._replace(data=work.data - table),
        "`seq` is the whole sequence in attention: each context rank meets the keys of all": work._replace(flops=work.flops - each * 2 * run.seq * (1 - 1 / layout.context)),
        "backward, keys and values go round again, with their gradients": work._replace(context=work.context * (2 + layout.recompute) / (3 + layout.recompute)),
        "tensor ranks cut the rows that go to experts": work._replace(expert=work.expert * layout.tensor),
        "ZeRO-2 gathers new weights once a step": work._replace(data=work.data * (6 * m / (4 * m + 2) if layout.zero == 2 else 1)),
        "half of all pairs of tokens are masked": work._replace(flops=work.flops + each * 2 * run.seq),
        "each token meets `top_k` MLPs": work._replace(flops=work.flops + each * 4 * (run.experts - run.top_k) * run.hidden),
        "keys *and* values go round": work._replace(context=work.context / 2),
        "gradients of MLPs are summed over data · context ranks: expert ranks have other MLPs": work._replace(data=work.data + by_zero * more),
        "ZeRO-3 lets go of weights after each block, and gathers them for each micro-batch": work._replace(data=work.data * once),
    }


# %%
def about_seconds(run, layout, cluster, machine, right, came):
    """Which slip gives what came."""
    work, m = simulated.taken(run, layout), simulated.micro_batches(run, layout)
    works = other_sizes(work, run, layout, m) | other_products(work, layout) | other_links(work, layout, cluster, machine, m, run.top_k)
    ways = {look: float(simulated.seconds(run, layout, cluster, machine, each)) for look, each in works.items()}
    for look, way in (other_waiting(run, layout, cluster, machine) | ways).items():
        if abs(way / right - 1) > 1e-9 and abs(came / way - 1) < 1e-7:
            return look
    return "leave out one axis after the other, ZeRO and recompute: which makes it right?"


# %%
def check_seconds(run, layout, cluster=TWO, machine=PLAIN):
    """Seconds of a step."""
    came = check.call(seconds, run, layout, cluster, machine)
    right = float(simulated.seconds(run, layout, cluster, machine))
    what = f"seconds of {layout}"
    check.that(isinstance(came, int | float), f"{what}: a number", came=str(came)[:100], look="a plain float, on numbers")
    near = abs(float(came) / right - 1) <= 1e-9
    look = "" if near else about_seconds(run, layout, cluster, machine, right, float(came))
    check.that(near, what, came=f"{float(came) / right:.6g} times what it takes", look=look)


# %% check="q3-products" points=8
check_text(seconds)
check_seconds(SMALL, Layout(1, 1, 16, 1, 1, 0, 1, 0), machine=FREE)
check_seconds(SMALL, Layout(2, 4, 2, 1, 1, 0, 1, 0), machine=FREE)
check_seconds(SMALL, Layout(2, 4, 2, 1, 1, 1, 2, 1), machine=FREE)
check_seconds(SMALL, Layout(2, 2, 2, 2, 1, 0, 1, 0), machine=FREE._replace(fixed=0.02))
check_seconds(SMALL, Layout(1, 12, 1, 1, 1, 0, 4, 1), machine=FREE)
check_seconds(EXPERTS, Layout(1, 2, 2, 1, 4, 0, 2, 0), machine=FREE)

# %% check="q3-messages" points=6
check_text(seconds)
NO_DATA = Layout(4, 4, 1, 1, 1, 0, 1, 0)
check_seconds(SMALL, NO_DATA)
check_seconds(SMALL, NO_DATA._replace(recompute=1, rows=4))
check_seconds(SMALL._replace(heads=16), Layout(16, 1, 1, 1, 1, 0, 2, 0))
check_seconds(SMALL, Layout(2, 4, 1, 2, 1, 0, 1, 0))
check_seconds(SMALL._replace(seq=65_536), Layout(2, 1, 1, 8, 1, 0, 2, 1))
check_seconds(EXPERTS, Layout(2, 1, 1, 1, 8, 0, 2, 0))
check_seconds(EXPERTS, Layout(2, 4, 1, 1, 2, 0, 4, 1))
check_seconds(EXPERTS._replace(seq=4096), Layout(2, 1, 1, 2, 4, 0, 2, 0))

# %% check="q3-data" points=5
check_text(seconds)
for zero in range(4):
    check_seconds(SMALL, Layout(1, 2, 8, 1, 1, zero, 1, 0))
    check_seconds(SMALL, Layout(1, 4, 4, 1, 1, zero, 1, 0), Cluster(16, 16, 75.2, 624e12))
    check_seconds(EXPERTS, Layout(1, 1, 4, 1, 4, zero, 2, 0))

# %% check="q3-hidden" points=6
# Other models, layouts, clusters and machines.
### BEGIN HIDDEN TESTS
#= `seconds(run, layout, cluster, machine)` is | no_bubble sparse_peak gathers_are_free tensor_always_inside
#= Keep it plain and quick | - advice: a slow one makes question 4 slow
#= A speed may be `math.inf` | speed_as_a_ratio
#= Seconds of a step. | no_fixed_seconds recompute_is_free
check_text(seconds)
#: other models, layouts, clusters and machines
hidden_run = Run(40, 5120, 40, 13_824, 128_256, 32_768, 96)
hidden_experts = hidden_run._replace(experts=12, top_k=3, seq=4096, hidden=4096)
hidden_cluster, hidden_machine = Cluster(480, 10, 76.0, 1979e12), Machine(0.37, 3.1e11, 4.2e10, 0.7)
for zero in range(4):
    check_seconds(hidden_run, Layout(5, 8, 3, 4, 1, zero, 2, zero % 2), hidden_cluster, hidden_machine)
    check_seconds(hidden_experts, Layout(2, 10, 4, 1, 6, zero, 2, 1 - zero % 2), hidden_cluster, hidden_machine)
check_seconds(hidden_run, Layout(20, 2, 12, 1, 1, 3, 4, 1), hidden_cluster, hidden_machine)
check_seconds(hidden_run, Layout(5, 40, 1, 2, 1, 0, 48, 0), Cluster(400, 10, 76.0, 312e12), hidden_machine)
check_seconds(hidden_run, Layout(1, 20, 24, 1, 1, 2, 2, 0), hidden_cluster, FREE)
### END HIDDEN TESTS

# %% [markdown]
# ## 4 · Commit yourself (35 points)
#
# A dense model on 256 or 512 A100s, sequences of 98,304 tokens and more on 64 or 128 newer GPUs, a model with experts on up to 256: three kinds of runs, each with sizes of its own, and each on
# a cluster whose `Machine` you are not told. Efficiency lies between 0.3 and 0.65, `link` between 60 and 350 GB/s, `card` between 3 and 45, `fixed` between 0.01 and 0.5 s.
#
# Eight steps you may try. Then you commit: a layout, and the seconds of its step. Your own formula says which layouts are slow in which way, so that eight steps can tell four constants.
# And it is a sum: four unknowns, each times something that you can compute.
#
# **Your contract.** `plan(run, cluster, probe)` returns `(layout, seconds)`, a `Layout` of ints and a float.
#
# - `probe(layout)` tries one step and returns its seconds, with 1 % of noise (standard deviation of the logarithm). A layout that does not fit raises MemoryError, and is one of the eight. What is not legal, and a ninth probe,
# raises ValueError; the judge has seen it, and the plan is void.
# - The layout is legal, with `zero` from 0 to 3 and `recompute` 0 or 1, and fits. The batch is that of the run.
# - Its step takes at most 1.05 times as long as the fastest that is legal and fits.
# - `seconds` is what it takes, without noise, to 10 %.
#
# One plan must take less than 4 s; half a second is usual.
#
# **Graded:** six clusters each. A layout that may run, and fits, in all of them (8 points); its seconds, which may be more than 1.05 times the best in one of six (10); your promise, which may be off in one of six (7); other clusters, all three (10).

# %%
guess_card = ask("The slowest card is 15 times as slow as the fastest. By how many times is the best step on it longer, at 43 billion parameters?")


# %% answer="q4"
def plan(run, cluster, probe):
    """A layout and its seconds, after eight probes."""
    ### BEGIN SOLUTION
    ways = [Layout(*mesh, rows=rows, zero=z, recompute=again) for *mesh, rows in legal(run, cluster) for z in range(4) for again in (0, 1)]
    ways = [layout for layout in ways if fits(run, layout, cluster)]
    alone = [Machine(*(1 if n == k else math.inf for n in range(3)), fixed=k == 3) for k in range(4)]  # slow in one thing
    parts = np.array([[seconds(run, layout, cluster, each) for each in alone] for layout in ways])
    guess = np.array([1 / 0.45, 1 / 150e9, 1 / 12e9, 0.07])  # 1 / efficiency, 1 / link, 1 / card, fixed
    unknown, tried, took = guess, [], []
    for number in range(8):
        expected = parts @ unknown
        order = expected.argsort()
        if number in (1, 2, 3):  # slow in one way, and not too slow
            near = order[: max(8, (expected < 2 * expected.min()).sum())]
            order = near[(-parts[near, number] / expected[near]).argsort()]
        tried.append(next((n for n in order if n not in tried), order[0]))
        took.append(probe(ways[tried[-1]]))
        shares = parts[tried] * guess / np.array(took)[:, None]
        rows = np.vstack([shares, 0.01 * np.eye(4)])  # a percent of noise, and all the constants to be about the guess
        right = np.append(np.ones(len(tried)), 0.01 * np.ones(4))
        unknown = guess * np.linalg.lstsq(rows, right)[0].clip(0.1)
    expected = parts @ unknown
    return ways[expected.argmin()], float(expected.min())
    ### END SOLUTION


# %%
def committed(said, judge, where):
    """The layout, its number among all legal ones, and the promise; silently where all is right."""
    pair = isinstance(said, tuple | list) and len(said) == 2 and isinstance(said[0], tuple) and len(said[0]) == 8
    whole = pair and all(isinstance(n, int | np.integer) for n in said[0])
    if not (whole and isinstance(said[1], int | float) and math.isfinite(said[1])):
        check.that(False, f"{where}: plan returns a Layout of ints and a finite float", came=str(said)[:200])
    key = tuple(map(int, said[0]))
    numbers = np.flatnonzero(np.all(np.stack(judge.layouts, 1) == key, axis=1))
    return key, numbers, float(said[1])


# %%
def asked(seed, salt):
    """A plan's answer on a cluster, what the cluster is, and what its judge knows."""
    run, cluster, machine = simulated.drawn(seed, salt)
    probe, judge = simulated.simulator(run, cluster, machine, seed)
    where = f"cluster {seed}"
    try:
        said = check.within(4, plan, run, cluster, probe)
    finally:
        if judge.refused:
            check.that(False, f"{where}: plan asks for nothing that the cluster refuses", came=judge.refused[0], look="legal layouts, eight in all. An error that is caught was still asked for")
    return said, run, cluster, judge


# %%
def outcome(seed, salt=17):
    """Plan on a cluster: (layout, step over the best, promise over the step, what else the judge knows)."""
    said, run, cluster, judge = asked(seed, salt)
    where, (key, numbers, promised) = f"cluster {seed}", committed(said, judge, f"cluster {seed}")
    if not len(numbers):
        rule = broken(run, cluster, (*key[:5], key[6])) or "zero is 0 to 3, recompute 0 or 1"
        check.that(False, f"{where}: the layout is legal", came=str(Layout(*key)), look=rule)
    n = numbers[0]
    if not judge.fit[n]:
        full = float(max(simulated.held(run, Layout(*key)).stages)) / 2**30
        came = f"{Layout(*key)} holds {full:.1f} GiB where {cluster.memory_gib:.1f} fit"
        check.that(False, f"{where}: the layout fits", came=came, look="`fits` of question 2, and MemoryError of a probe")
    best = np.where(judge.fit, judge.seconds, np.inf).argmin()
    others = {"best": Layout(*(int(column[best]) for column in judge.layouts)), "tried": judge.asked, "cluster": cluster}
    return Layout(*key), float(judge.seconds[n] / judge.seconds[best]), promised / float(judge.seconds[n]), others


# %% [markdown]
# One cluster, and your plan for it. And the guess, by your own formula.

# %%
layout, over, promise, others = outcome(0)
print(f"{layout}\ntakes {over:.3f} times the best step, and {1 / promise:.3f} times what you promised, after {len(others['tried'])} probes")
large, a100s = Run(96, 6144, 48, 24_576, 51_200, 2048, 1536), Cluster(512, 8, 75.2, 624e12)
legal_ways = [Layout(*mesh, z, rows, 0) for *mesh, rows in legal(large, a100s) for z in range(4)]
able = [way for way in legal_ways if fits(large, way, a100s)]
slow, fast = (min(seconds(large, way, a100s, Machine(0.45, 15e10, card, 0.07)) for way in able) for card in (3e9, 45e9))
print(f"on the slowest card the best step is {slow / fast:.2f} times as long; you said {guess_card.said}")


# %%
def about_time(found):
    """What slow layouts say about the fault."""
    bad = [(layout, others) for layout, over, _, others in found if over > 1.05]
    if not any(others["tried"] for *_, others in found):
        return "no step was tried: nothing on a data sheet tells one cluster from another"
    if any(layout.tensor > others["cluster"].node for layout, others in bad):
        return "tensor ranks reach over machines: at which speed does your formula send then?"
    if any(layout.zero == 3 and others["best"].zero < 3 for layout, others in bad):
        return "ZeRO-3, where less of ZeRO fits and is faster: what does it send for each micro-batch?"
    if any(layout.recompute and not others["best"].recompute for layout, others in bad):
        return "recompute, where all fits without: what does it cost in products and messages?"
    if any(others["best"].recompute and not layout.recompute for layout, others in bad):
        return "no recompute, where it lets a quicker layout fit: was it among those that you looked at?"
    deeper = np.mean([math.log(layout.pipeline / others["best"].pipeline) for layout, others in bad])
    if abs(deeper) > 0.35:
        return f"{'deeper' if deeper > 0 else 'shallower'} pipelines than are good: waiting, against what the data axis sends at this card's speed"
    if len({layout for _, others in bad for layout in others["tried"]}) <= 2 * len(bad):
        return "one or two steps cannot tell four constants"
    return "do the steps that you try differ in what is slow? Print your four constants: which of them does no probe tell?"


# %%
def outcomes(seeds, salt, which):
    """Of plans until two are bad: found, and how many are; `which` says whether one is."""
    found, bad = [], 0
    for seed in seeds:
        found.append(outcome(seed, salt))
        bad += which(found[-1])
        if bad > len(seeds) / 6:
            break
    return found, bad


def check_time(seeds, salt=17):
    """A step of at most 1.05 times the best, in five of six clusters."""
    found, bad = outcomes(seeds, salt, lambda it: it[1] > 1.05)
    came = f"in {bad} of the first {len(found)} it takes longer; the worst takes {max(it[1] for it in found):.2f} times as long"
    look = about_time(found) if bad else ""
    check.that(bad <= len(seeds) / 6, f"{len(seeds)} clusters: in five of six, the step takes at most 1.05 times the best", came=came, look=look)
    return found


# %%
def check_promise(seeds, salt=17, found=None):
    """The promised seconds, to a tenth, in five of six clusters."""
    found, _ = (found, 0) if found else outcomes(seeds, salt, lambda it: abs(it[2] - 1) > 0.1)
    bad = [it[2] for it in found if abs(it[2] - 1) > 0.1]
    look = "the promise is of the layout that you return; with four constants from probes, your formula says it" if bad else ""
    look = "you promise too little nearly everywhere: what is missing in the sum, or is it another layout's?" if bad and max(bad) < 1 else look
    look = "you promise too much nearly everywhere: is one thing counted twice, or is it another layout's?" if bad and min(bad) > 1 else look
    came = f"in {len(bad)} of the first {len(found)} it is off, {', '.join(f'{each - 1:+.0%}' for each in bad)}"
    check.that(len(bad) <= len(seeds) / 6, f"{len(seeds)} clusters: in five of six, the promise is off by a tenth at most", came=came, look=look)


# %% check="q4-fits" points=8
check_text(plan)
for seed in range(6):
    outcome(seed)
check.that(True, "six clusters: the layout is legal and fits")

# %% check="q4-time" points=10
check_text(plan)
_ = check_time(range(6, 12))

# %% check="q4-promise" points=7
check_text(plan)
check_promise(range(12, 18))

# %% check="q4-hidden" points=10
# Other clusters: legal and fits, seconds and promise.
### BEGIN HIDDEN TESTS
#= `plan(run, cluster, probe)` returns | its_place_in_the_list
#= `probe(layout)` tries | - what is given
#= A layout that does not fit | does_not_look_whether_it_fits
#= What is not legal | ninth_probe ninth_probe_is_caught
#= The layout is legal | batch_changes states_cut_over_tensor_ranks
#= The batch is that | batch_changes
#= Its step takes at most | one_probe the_probed_one_by_the_guess
#= `seconds` is what it takes | promise_of_the_data_sheet
#= One plan must take | - the checks stop a plan after 20 s of its own
#= A layout and its seconds | nothing_tried
check_text(plan)
#: other clusters
hidden_found = check_time(range(12), salt=417_121)
check_promise(range(12), salt=417_121, found=hidden_found)
### END HIDDEN TESTS
