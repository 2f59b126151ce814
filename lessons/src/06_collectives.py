# %% [markdown]
# # 06 · Collectives
#
# **The question:** how do $p$ processes agree on a sum, and who pays?
#
# | | |
# |---|---|
# | Time | first sitting 50 minutes, second sitting 45; well under a minute of both together is computing on 2 CPU cores |
# | A GPU | changes nothing in what we build from `send` and `recv`; a GPU's own all-reduce may let a switch add (section 12) |
# | Opens | `collectives/schedules.py`, `collectives/algorithms.py` |
#
# Eight GPUs train one model of 7 billion parameters. Each has its own gradients, 14 GB of them in 16 bits, and before
# any of them may take a step, all must know the sum. A colleague proposes the obvious: each GPU sends its gradients to
# all others. Another proposes a manager: send them to me, I add them up, I send you the result. Both work, and in both
# at least one GPU has to send 98 GB.
#
# There is a third way, in which no GPU ever sends more than 28 GB, with eight GPUs or with eight thousand. By the end of
# this page you will have built all three and a fourth, from nothing but `send` and `recv`, and counted every message.

# %%
import torch
import torch.distributed as dist

from course_kit import measure, ranks
from course_kit.compare import compare
from course_kit.notebook import ask, show, your_turn
from course_kit.units import Bytes, Count
from course_lib import predict
from course_lib.collectives import algorithms as collectives
from course_lib.collectives import schedules
from course_pages.lesson06 import costs, turns
from course_pages.lesson06.explorer import RingExplorer
from course_pages.lesson06.turns import N, busiest_and_total
from course_pages.shared import collectives as figures

# %% [markdown]
# ## 1 · Everyone to everyone
#
# Two verbs are all we have. `dist.send(tensor, 2)` gives a tensor to rank 2. `dist.recv(tensor, 0)` waits for one
# from rank 0 and writes it into `tensor`. What we want is an **all-reduce**: every rank brings a tensor, and all end
# with the sum. It is a *collective*, an operation that all ranks call together.
#
# The first idea in code. Read it before you run it. Each rank sends its tensor to all others, then receives theirs.


# %% tags=["raises-exception"]
def everyone(tensor):
    mine, me = tensor.clone(), dist.get_rank()
    others = [rank for rank in range(dist.get_world_size()) if rank != me]
    for other in others:
        dist.send(mine, other)
    for other in others:
        theirs = torch.empty_like(mine)
        dist.recv(theirs, other)
        tensor += theirs


ranks.run(everyone, torch.ones(3), world_size=4, timeout_s=10)

# %% [markdown]
# All ranks talk and none listens. Here a `send` ends when the other side has taken the tensor. Rank 0 waits for rank 1 to
# take it, rank 1 waits for rank 0, and neither comes to its `recv`. That is a **deadlock**, and the report names the
# circle: who waits for whom, in which line.
#
# The repair is small. `isend` only *posts* the message and returns at once, with a handle whose `wait()` ends when the
# message is gone.
#
# And who pays? `busiest_and_total` runs an all-reduce on a tensor of $n$ = 840 kB (a number that 2 to 8 divide), checks the
# sum, and counts the bytes as they pass. Keep its two questions for the rest of the page. What does the **busiest** rank
# send? And what do all of them send **together**?

# %%
guess_direct = ask("4 ranks, 840 kB each: how many kB does one rank send?", unit="kB")

# %% [markdown]
# **Your turn.** Copy the body of the first `everyone` from above, and repair it.

# %%
@your_turn(turns.check_everyone, look="Keep every handle, and change nothing that is on its way. Where may you wait?")
def everyone(tensor):
    """Make `tensor` the sum over all ranks, in place: send yours to each other rank, add what comes. All ranks call."""
    ...


# %% tags=["solution"]
# One solution. Open it when yours passes, or when you are stuck.
@everyone.solution
def everyone(tensor):
    mine, theirs, me = tensor.clone(), torch.empty_like(tensor), dist.get_rank()
    others = [rank for rank in range(dist.get_world_size()) if rank != me]
    posted = [dist.isend(mine, other) for other in others]
    for other in others:
        dist.recv(theirs, other)
        tensor += theirs
    for each in posted:
        each.wait()


# %%
compare(
    guess={"busiest rank": guess_direct},
    predicted={"busiest rank": Bytes(3 * N), "all together": Bytes(4 * 3 * N)},
    measured=busiest_and_total(everyone, world_size=4),
    unit="kB",
)

# %% [markdown]
# Each of $p$ ranks sends its $n$ bytes $p - 1$ times. Together that is $p\,(p-1)\,n$: with 8 ranks 56 tensors, with
# 1,000 nearly a million. It is right, and it does not scale.
#
# There is a quieter problem. All ranks added the same four tensors. Did they get the same sum?


# %%
def add_random_numbers():
    tensor = torch.rand(1000, generator=torch.Generator().manual_seed(dist.get_rank()))
    everyone(tensor)
    return tensor


sums = ranks.run(add_random_numbers, world_size=4)
print(*(f"rank {rank}: {(mine != sums[0]).sum()}" for rank, mine in enumerate(sums)), sep=", ")

# %% [markdown]
# They did not. The list shows, for each rank, how many of its 1,000 sums differ from those of rank 0. Each rank begins
# with its own tensor and so adds in another order, and a floating-point sum depends on the order (lesson 01). Rank 1 only
# swaps the first two terms, and $a + b$ is $b + a$. (All zeros? Then your loop adds in rank order: a cure.) These are the
# gradients of what should be *one* model, and copies that differ in the last bit drift apart for the rest of the run.
#
# So a good all-reduce promises more than the sum. The third question is: do all ranks end with **the same bits**?
#
# ## 2 · A manager
#
# Rank 0 collects, adds up, and answers. The sum is made in one place, so all ranks get the same bits. And there is no
# deadlock: the workers send while the manager receives, then it is the other way round.


# %%
def manager(tensor):
    workers = range(1, dist.get_world_size())
    if dist.get_rank() == 0:
        for worker in workers:
            theirs = torch.empty_like(tensor)
            dist.recv(theirs, worker)
            tensor += theirs
        for worker in workers:
            dist.send(tensor, worker)
    else:
        dist.send(tensor, 0)
        dist.recv(tensor, 0)


# %%
guess_manager = ask("A manager and 3 workers: how many kB do they send together?", unit="kB")

# %%
compare(
    guess={"all together": guess_manager},
    predicted={"busiest rank": Bytes(3 * N), "all together": Bytes(2 * 3 * N)},
    measured=busiest_and_total(manager, world_size=4),
    unit="kB",
)

# %% [markdown]
# Together they send $2\,(p-1)\,n$. For 4 ranks that is half of before, for 1,000 ranks one part in 500. What a bargain.
#
# Now look at the other row. The busiest rank sends as much as ever, and it receives just as much before it sends
# anything. Meanwhile all others wait. Think of the one cable that ties each rank to the others, its *link*. Every rank
# that joins puts more on the manager's link, and the last rank is done when that link is. The lesson of the table: **do not
# count the total, find the busiest link.**
#
# ## 3 · A ring
#
# Cut the tensor into $p$ parts. Seat the ranks in a circle, in which each rank sends only to its right neighbour. Lesson
# 00 counted what each then sends. Guess what they send together; the manager's way took 6 × 840 kB. Then, before you read
# how, play it: press **step** and watch one column.

# %%
guess_ring = ask("A ring of 4: how many kB do all ranks send together?", unit="kB")

# %%
RingExplorer(world_size=4).show(
    caption="Rows are ranks, columns parts, colours the ranks whose numbers are in the sum. What has just "
    "arrived has a thick frame in the explorer, a white dot in a picture. After three steps each row has one full "
    "cell; after three more, all are full."
)

# %% [markdown]
# (If nothing reacts to your clicks, run the cell once. Arrow keys walk from cell to cell.)
#
# 1. Click any cell of **part 0** to follow it. On which rank does its journey begin, and where is it complete first?
# 2. In one step, how many ranks are sending? And in the manager's way?
# 3. Set **8 ranks**. How does the number of steps grow, and how the amount that each rank sends in the end? Why so little?
#
# <details><summary>Answers</summary>
#
# 1. It begins on rank 1 and is complete first on rank 0: once around.
# 2. All of them, in every step. The manager's link takes in one tensor after the other; then the manager alone sends.
# 3. From 6 steps to 14; from 1.5 to 1.75 times the tensor. There are more parts, but each is smaller.
#
# </details>
#
# The two halves have names. In the first pass, parts travel and grow: a **reduce-scatter**, after which each rank
# owns one finished part. In the second the finished parts travel unchanged: an **all-gather**.
#
# Take four ranks and follow rank 3 through the first pass; it sends to the right, and what it adds comes from the left.
#
# | step | rank 3 sends | and adds to |
# |---|---|---|
# | 0 | part 2 | part 1 |
# | 1 | part 1 | part 0 |
# | 2 | part 0 | part 3, finished |
#
# In general rank $r$ sends part $r - 1 - s$ in step $s$, and adds what arrives to part $r - 2 - s$, both counted around the
# circle (`% p` in the code). It ends with part $r$ finished.

# %%
def reduce_scatter(parts):
    rank, p = dist.get_rank(), dist.get_world_size()
    for step in range(p - 1):
        arrived = torch.empty_like(parts[(rank - 2 - step) % p])
        posted = dist.isend(parts[(rank - 1 - step) % p], (rank + 1) % p)
        dist.recv(arrived, (rank - 1) % p)
        posted.wait()
        parts[(rank - 2 - step) % p] += arrived


# %% [markdown]
# **Your turn.** The second pass: nothing is added any more. In step 0 each rank hands its finished part, number $r$, to the
# right; in each later step, the part that came last from the left.

# %%
@your_turn(turns.check_gather, look="Rank r begins with part r, its left neighbour with r - 1. What arrived goes out next. Post first.")
def all_gather(parts):
    """Fill the p tensors in `parts` (of any lengths; this rank has number `rank`) with those of all ranks. A ring; all ranks call."""
    ...


# %% tags=["solution"]
@all_gather.solution
def all_gather(parts):
    rank, p = dist.get_rank(), dist.get_world_size()
    for step in range(p - 1):
        posted = dist.isend(parts[(rank - step) % p], (rank + 1) % p)
        dist.recv(parts[(rank - step - 1) % p], (rank - 1) % p)
        posted.wait()


# %%
def ring(tensor):
    parts = list(tensor.tensor_split(dist.get_world_size()))
    reduce_scatter(parts)
    all_gather(parts)


predicted = {"busiest rank": predict.all_reduce(N, world_size=4).bytes, "all together": Bytes(2 * 3 * N)}
compare(
    guess={"all together": guess_ring}, predicted=predicted, measured=busiest_and_total(ring, world_size=4), unit="kB"
)

# %% [markdown]
# (`tensor_split` makes views: what happens to a part happens to the tensor.)
#
# Look at the second row first: all together they send exactly as much as the manager and its workers. The ring saves
# nothing in total. It *spreads* the work. All links are in use at every moment, and each carries
#
# $$2\,\frac{p-1}{p}\,n \quad\text{bytes}$$
#
# (Patarasuk and Yuan 2009). They also show that less is impossible, if the ranks are the only ones that can add; section 12
# meets a machine where something else can. This is the formula that you measured in lesson 00, and now you have built what
# obeys it. The fraction creeps towards 1 and stays below it: 1.5 $n$ for 4 ranks, 1.75 $n$ for 8, never $2n$.
#
# The third question, the bits? Each part is added up along one path, once, and then copied. All ranks get the same
# bits, though not those that a manager would get: part 0 begins its sum on rank 1, part 1 on rank 2.
#
# ## 4 · A tree
#
# So the ring is best? Count messages instead of bytes. A ring of 4 needs 6 steps, one after the other; a ring of
# 1,000 needs 1,998. A message costs something however short it is; call that price **α**. If α is a tenth of a
# millisecond, then summing *a single number* takes a fifth of a second.
#
# A tournament needs fewer rounds. In round one each odd rank sends its tensor to the rank before it, and is out. In
# round two every second one of those that are left does the same, and so on: half of them go in each round, until
# rank 0 has the sum. Then the film runs backwards, and the sum travels down the same way.


# %%
def up_the_tree(tensor):
    rank, p, step = dist.get_rank(), dist.get_world_size(), 1
    while step < p:
        if rank % (2 * step) == step:
            dist.send(tensor, rank - step)
        elif rank % (2 * step) == 0 and rank + step < p:
            theirs = torch.empty_like(tensor)
            dist.recv(theirs, rank + step)
            tensor += theirs
        step *= 2


# %% [markdown]
# **Your turn.** The film backwards: rank 0 has the sum, and `step` halves until it is 1.

# %%
@your_turn(turns.check_down, look="Who sent on the way up receives now, under the same condition. At which `step` did the way up end?")
def down_the_tree(tensor):
    """Give rank 0's tensor to all ranks, in place: each edge of the tree once, away from rank 0. All ranks call."""
    ...


# %% tags=["solution"]
@down_the_tree.solution
def down_the_tree(tensor):
    rank, p = dist.get_rank(), dist.get_world_size()
    step = 2 ** (p - 1).bit_length()
    while step > 1:
        step //= 2
        if rank % (2 * step) == step:
            dist.recv(tensor, rank - step)
        elif rank % (2 * step) == 0 and rank + step < p:
            dist.send(tensor, rank + step)


# %%
def tree(tensor):
    up_the_tree(tensor)
    down_the_tree(tensor)


figures.messages_by_round(
    world_size=4,
    caption="Time runs to the right; an arrow is a message, thin where it carries only a part. Orange arrows are added "
    "up on arrival, blue ones are kept. The manager's lines meet in one rank; the ring's never do. (Direct is everyone to everyone.)",
).show()

# %%
guess_tree = ask("A tree of 8: how many kB does its busiest rank send?", unit="kB")

# %%
compare(
    guess={"busiest rank": guess_tree},
    predicted={"busiest rank": Bytes(3 * N), "all together": Bytes(2 * 7 * N)},
    measured=busiest_and_total(tree, world_size=8),
    unit="kB",
)

# %% [markdown]
# Of 8 ranks, rank 0 is busy again: on the way back it has three children, ranks 4, 2 and 1, so it sends $3n$, or $\lceil
# \log_2 p \rceil\, n$ (the brackets round up). Rank 4 sends as much, once up to rank 0 and down to ranks 6 and 5. That is
# more than the ring's $1.75\,n$. But the tree is done after $2 \lceil \log_2 p \rceil$ rounds: 6 for 8 ranks, 20 for
# 1,000. Few messages or few bytes? Section 7 puts a price on both.
#
# ## 5 · The rest of the family
#
# An all-reduce is one of a handful of **collectives**. Training needs most of them; the later lessons are made of them.

# %%
figures.before_and_after(
    caption="Left of the arrow before, right of it after; a row is a rank, a colour the rank that brought it, grey a sum "
    "over all ranks. Reduce-scatter and all-gather, one after the other, are an all-reduce."
).show()
# %% [markdown]
# You have built most of these already. The second half of the tree is a **broadcast**, the first half a **reduce**;
# the ring's passes are a **reduce-scatter** and an **all-gather**. One is missing. In an **all-to-all** every rank
# has a different part for every other one, a letter for each. It is the transpose of a matrix whose rows live on
# different machines, and experts (lesson 13) will need it. The library has it in `collectives`, with all the others.
#
# What do they cost? Let $n$ be the whole: what each rank holds before a reduce-scatter or an all-to-all, and what it holds
# after an all-gather. Which one is the most expensive for its busiest rank?

# %%
guess_share = ask("8 ranks, n = 840 kB: how many kB does a rank send in a reduce-scatter?", unit="kB")

# %%
FAMILY = "broadcast", "reduce_scatter", "all_gather", "all_to_all"


def sent_in(name):
    whole = torch.ones(N // 4)
    mine = whole.tensor_split(8)[0].clone() if name == "all_gather" else whole
    with measure.traffic() as sent:
        getattr(collectives, name)(mine)
    return sent.total_bytes


predicted = {name: getattr(predict, name)(N, 8).bytes for name in FAMILY}
measured = {name: max(ranks.run(sent_in, name, world_size=8)) for name in FAMILY}
compare(guess={"reduce_scatter": guess_share}, predicted=predicted, measured=measured, unit="kB")

# %% [markdown]
# The three that share the work cost $\frac{p-1}{p}\,n$ each; that is half an all-reduce, and two halves make a whole.
# The broadcast costs its root $3n$, although nothing needs to be added: the root of a tree sends the whole tensor again and
# again.
#
# That is the story. Do not count the total, find the busiest link. A ring sends the fewest bytes; a tree, among many
# ranks, needs the fewest messages in a row.

# %% [markdown]
# ## Second sitting
#
# What stands above is the story, and you may stop here. On another day, run all cells above before you go on. Below:
# how the library writes an algorithm down, an all-to-all's letters, what a message costs in seconds, how ranks miss each other, PyTorch's own,
# and what is done where links differ: two levels and two trees.
#
# ## 6 · A schedule is data
#
# In four loops the decision *who sends what* was tangled up with the sending. The library separates the two. A
# **schedule** says for one rank, round by round, what it sends and what it receives:

# %%
display(show(schedules.reduce_scatter, docstring=False))
for number, each in enumerate(schedules.all_reduce_ring(world_size=3, rank=0), start=1):
    (send,), (receive,) = each.sends, each.receives
    verb = "add it up" if receive.add else "keep it"
    print(f"round {number}: part {send.part} to rank {send.to}; part {receive.part} from rank {receive.source}, {verb}")
display(show(collectives.execute, docstring=False))

# %% [markdown]
# Because a schedule is data, one can check it on paper: `schedules.hold` refuses a message that no rank receives,
# before any process starts. The drawing and the explorer above were made from schedules.
#
# Carrying one out is then a single function, the second one printed above, for every collective. It posts all messages
# of a round before it waits for any, so the deadlock of section 1 cannot happen. And what arrives is added up in rank
# order, so that even *direct* ends with the same bits on all ranks. (Of the helpers, `_neighbours` names the ranks to the
# left and to the right, `_exchange` posts and then waits, and `_add_up` adds; `_place` is a group's size and this rank's
# number in it.)
#
# Now the count, for all four algorithms and each number of ranks from 2 to 8: the bytes of the busiest rank, as you
# know them, and the messages.


# %%
def count_all(n_bytes):
    tensor, counted = torch.ones(n_bytes // 4), {}
    for name in schedules.ALL_REDUCE:
        with measure.traffic() as sent:
            collectives.all_reduce(tensor, algorithm=name)
        counted[name] = (sent.total_bytes, sent.total_messages)
    return counted


WORLDS = range(2, 9)
counted = {p: ranks.run(count_all, N, world_size=p) for p in WORLDS}
for p in WORLDS:
    for rank, mine in enumerate(counted[p]):
        for name, (sent_bytes, messages) in mine.items():
            formula = predict.all_reduce(N, p, name, rank)
            assert sent_bytes == formula.bytes, f"bytes of {name}, rank {rank} of {p}"
            assert messages == formula.messages, f"messages of {name}, rank {rank} of {p}"

# %%
costs.busiest_ranks(
    counted,
    caption="Left, bytes: the ring stays flat, the manager's line climbs. Right, messages: the ring is worst. (Direct "
    "and manager lie on each other: the busiest rank of both sends to all others.)",
).show()
on_8 = {name: Count(max(mine[name][1] for mine in counted[8])) for name in schedules.ALL_REDUCE}
predicted = {name: max(predict.all_reduce(N, 8, name, rank).messages for rank in range(8)) for name in on_8}
compare(predicted=predicted, measured=on_8)

# %% [markdown]
# The `assert`s before the figure are the stronger statement: not only the busiest rank but *each* of 35 ranks sent,
# for each of four algorithms, exactly the bytes and the messages of its formula. A ring that secretly sends whole
# tensors gives the same sums. It would not survive this cell.
#
# One function carries out every schedule, that of section 5's all-to-all, too. There each rank writes ten times its own
# number plus the receiver's. What does rank 1 find in its box?


# %%
def letters():
    me, p = dist.get_rank(), dist.get_world_size()
    return collectives.all_to_all(torch.tensor([10 * me + to for to in range(p)])).tolist()


ranks.run(letters, world_size=4)

# %% [markdown]
# Row 1 is what each of the others had written to rank 1 (and the letter to itself, which no cable carries).
#
# ## 7 · What a message costs
#
# The oldest model of a network has two numbers (Hockney 1994). A message costs **α** seconds, however short it is, for
# the system calls, the wire, the waking up of the receiver: the *latency*. And each byte costs **β** seconds more;
# $1/\beta$ is the *bandwidth*:
#
# $$t = \text{messages} \cdot \alpha + \text{bytes} \cdot \beta$$
#
# What counts is what has to pass *one after the other*. For the ring that is $2(p-1)$ messages and $2\frac{p-1}{p}n$
# bytes, for the tree $2 \lceil \log_2 p \rceil$ messages of $n$ bytes each. Everyone to everyone has $p-1$ messages of $n$
# bytes, and so has the manager's way twice: first all come in over its link, then all go out.
#
# What are α and β on your machine? Let two ranks play ping-pong with tensors of many sizes. One message takes half of
# a round trip, and we keep the fastest of several tries. (`diagnose=False` switches off the watch over who calls what,
# which costs time. A `barrier` lets no rank go on before all have come.) For your guess: adding two numbers in PyTorch
# takes a few microseconds.


# %%
import time

from course_kit.notebook import self_check
from course_kit.units import Seconds
from course_lib.model import hardware

SIZES = [4**k for k in range(1, 13)]

# %%
guess_latency = ask("How many µs does a message of 4 bytes take here?", unit="µs")


# %%
def ping_pong(sizes, repeats=9):
    rank, times = dist.get_rank(), {}
    for n_bytes in sizes:
        tensor, seconds = torch.ones(n_bytes // 4), []
        for _ in range(repeats):
            dist.barrier()
            start = time.perf_counter()
            for turn in (0, 1):
                dist.send(tensor, 1 - rank) if rank == turn else dist.recv(tensor, 1 - rank)
            seconds.append((time.perf_counter() - start) / 2)
        times[n_bytes] = min(seconds)
    return times


# %% tags=["varies"]
one_message = ranks.run(ping_pong, SIZES, world_size=2, diagnose=False)[0]
link = predict.fit_link((1, n_bytes, seconds) for n_bytes, seconds in one_message.items())
print(f"α = {link.alpha:.0µs} (you said {guess_latency.said}), bandwidth = {link.bytes_per_s / 1e9:.1f} GB/s, α/β = {link.balance:.0kB}")
costs.fitted_link(
    link,
    one_message,
    caption="Flat on the left, where α is all that counts; a straight climb on the right, where β does.",
)

# %% [markdown]
# Two numbers describe messages from 4 bytes to 17 MB, roughly. The most useful one is their quotient, $\alpha/\beta$: a
# message of that many bytes pays as much for being a message as for its bytes. Below it, save messages. Above it, save
# bytes.
#
# That is the whole competition between tree and ring. With 8 ranks the ring has 14 messages and $1.75\,n$ bytes in a
# row, the tree 6 and $6n$, so they meet where $8\,\alpha = 4.25\,n\beta$. On a fast network, α = 1 µs and 100 GB/s:

# %%
fast = predict.Link(alpha=Seconds(1e-6), seconds_per_byte=1e-11)
crossover = predict.crossover_bytes(8, fast, fewer_messages="tree", fewer_bytes="ring")
costs.predicted_all_reduces(
    fast,
    world_size=8,
    sizes=[2**k for k in range(8, 27)],
    caption=f"Predicted for 8 ranks, {fast.alpha:.0µs} and {fast.bytes_per_s / 1e9:.0f} GB/s. Left, the lines are "
    f"ordered by the messages in a row; right, by the bytes in a row. Tree and ring cross at {crossover:.0kB}.",
)

# %% [markdown]
# A gradient of a large model is far to the right of the crossing; a loss that is averaged for the log is far to the
# left. No algorithm is best, and a good library carries several and picks by size.
#
# And on your machine? Four ranks, all four algorithms and PyTorch's own `dist.all_reduce` (*backend* in the figure), in
# turns. The lines are predictions from the ping-pong of *two* ranks; the points are measured. Be warned: the lines will
# miss, often by a factor of five and sometimes by more than ten, and the lowest line is often not that of the quickest. Before
# you run, try to say why.


# %% tags=["varies"]
def race(sizes, names, repeats=5):
    times = {name: {} for name in names}
    for n_bytes in sizes:
        tensor = torch.zeros(n_bytes // 4)
        for name in names * repeats:
            dist.barrier()
            start = time.perf_counter()
            dist.all_reduce(tensor) if name == "backend" else collectives.all_reduce(tensor, algorithm=name)
            seconds = time.perf_counter() - start
            times[name][n_bytes] = min(seconds, times[name].get(n_bytes, seconds))
    return times


# %% tags=["varies"]
names = [*schedules.ALL_REDUCE, "backend"]
raced = ranks.run(race, SIZES[::2], names, world_size=4, diagnose=False)
slowest = {name: {n: max(mine[name][n] for mine in raced) for n in SIZES[::2]} for name in names}
costs.measured_all_reduces(
    link,
    4,
    slowest,
    caption="Lines: 4 ranks with a link each. Points, far above them: 4 processes that share this machine's cores. Where a "
    "point seems to be missing, it lies under another one.",
).show()
ours = schedules.ALL_REDUCE
for n in SIZES[::2]:
    line = predict.all_reduce(n, 4).seconds(link)
    first, ring_s = min(ours, key=lambda name: slowest[name][n]), slowest["ring"][n]
    lowest = min(ours, key=lambda name: predict.all_reduce(n, 4, algorithm=name).seconds(link))
    print(f"{Bytes(n):.0}: lowest line {lowest}, quickest here {first}; the ring takes {ring_s / line:.1f} times its line")

# %% [markdown]
# Model and machine are not about the same thing. The model gives every rank a link of its own. Your ranks are processes
# that take turns on a few cores, so in *every* round of the ring all of them wait until each has had a turn. With few
# cores the ring takes many times its line at 64 bytes, and the quickest is often one with fewer rounds than its $2(p-1)$,
# where another has the lowest line. And for large tensors all "wires" are the same memory, so the ring has less to save.
#
# That is why this course counts. Bytes and messages on this machine are those of a cluster, to the byte. Its seconds
# are not, and we do not pretend.
#
# ## 8 · Four ways to miss each other
#
# A collective is a meeting, and it takes place when all have come to the *same* one. Here is what happens when they
# do not. In each cell, find the line before you run it.
#
# **A missing rank.** Rank 2 has run out of data one batch early. It is done, and goes home.


# %% tags=["raises-exception"]
def out_of_data():
    batches = 2 if dist.get_rank() == 2 else 3
    for _ in range(batches):
        gradient = torch.ones(4)
        dist.all_reduce(gradient)


_ = ranks.run(out_of_data, world_size=4, timeout_s=10)

# %% [markdown]
# The report shows who waits and who has left. (Lesson 07's *sampler* never lets this happen.)
#
# **A wrong shape.** The last batch is shorter on one rank, and the program adds up the outputs.


# %% tags=["raises-exception"]
def last_batch():
    rows = 5 if dist.get_rank() == 3 else 8
    outputs = torch.ones(rows, 2)
    dist.all_reduce(outputs)


_ = ranks.run(last_batch, world_size=4, timeout_s=10)

# %% [markdown]
# **Mismatched collectives.** Only rank 0 needs the loss for its log, thought the author, so there a `reduce` will do.


# %% tags=["raises-exception"]
def cheaper_on_rank_0(loss):
    if dist.get_rank() == 0:
        dist.reduce(loss, dst=0)
    else:
        dist.all_reduce(loss)


_ = ranks.run(cheaper_on_rank_0, torch.tensor([2.5]), timeout_s=10)

# %% [markdown]
# No rank is missing, and all of them wait: two meetings, neither of them complete.
#
# **A wrong order.** The worst comes last. Each rank sums two numbers, a loss of 1 and a token count of 100. Rank 0
# walks through them in another order. Same operation, same shape, same type. On four ranks the loss should be 4 and the
# tokens 400. We run it twice, first with the watch switched off.


# %% tags=["raises-exception"]
def loss_and_tokens():
    loss, tokens = torch.tensor([1.0]), torch.tensor([100.0])
    if dist.get_rank() == 0:
        dist.all_reduce(tokens)
        dist.all_reduce(loss)
    else:
        dist.all_reduce(loss)
        dist.all_reduce(tokens)
    return loss.item(), tokens.item()


print(*ranks.run(loss_and_tokens, world_size=4, diagnose=False))
_ = ranks.run(loss_and_tokens, world_size=4, timeout_s=10)

# %% [markdown]
# The printed line is the dangerous one. No error, no hang, and every single number is wrong: losses and tokens were
# added to each other. The network moved bytes; what they *meant*, it never knew. The second run raises because the
# watch looks also at the names of what the ranks pass. (Where a loop hides the names, it is blind too.)
#
# One rule prevents all four: *every rank walks through the same collectives, in the same order and with the same shapes,
# whatever its data look like.* No collective inside an `if` on the rank; no loop and no tensor whose length depends on
# it. **Repair** the last cell with it: then both runs end, and the printed line is `(4.0, 400.0)`, four times.
#
# ## 9 · The real thing
#
# `torch.distributed` has collectives of its own, and behind them is a **backend** that moves the bytes; here, gloo. Lesson
# 00 counted what it sends, for up to four ranks. Now hold it against our ring, bytes and sums, on up to eight. (We cannot
# see its messages, but the operating system counts the bytes that leave.)


# %%
def backend_traffic(n_bytes):
    tensor = torch.arange(n_bytes // 4) % 100 + float(dist.get_rank())
    with measure.traffic() as sent:
        dist.all_reduce(tensor)
        dist.barrier()
    ours = torch.arange(n_bytes // 4) % 100 + float(dist.get_rank())
    ring(ours)
    assert torch.equal(tensor, ours)
    return sent.sent_bytes


compare(
    predicted={f"{p} ranks": predict.all_reduce(N, world_size=p).bytes for p in (2, 4, 8)},
    measured={f"{p} ranks": max(ranks.run(backend_traffic, N, world_size=p)) for p in (2, 4, 8)},
    tolerance=0.01,
    unit="kB",
)

# %% [markdown]
# It sends what a ring sends, within 1 %; the rest is headers and the barrier. And the sums are equal to ours.
#
# Other libraries than gloo keep a copy of a small tensor and let `send` return early. There section 1's first program runs,
# until one day the tensors grow beyond what is copied, and it hangs. So never rely on that copy.
#
# Names that turn up in every discussion are not of a kind. **MPI** is a *standard*, of 1994, from the world of
# supercomputers; it named most of what you saw here. **gloo** is a *library* of collectives for CPUs and ordinary
# networks, **NCCL** NVIDIA's for GPUs: there the GPUs themselves add up and pass on. **Horovod** (Sergeev and Del Balso
# 2018) is one floor higher, a *framework* that brought the ring to ordinary training scripts. A program that says
# `dist.all_reduce` runs on gloo, NCCL or MPI alike.
#
# ## 10 · Two levels
#
# So far all links were equal. They never are. Take two nodes of four ranks, 0 to 3 and 4 to 7. Inside a node links are
# fast; between the nodes there is one slow cable. How much of an all-reduce crosses it, in each direction?
#
# A ring does not know of the cable: rank 3 passes on to rank 4 as it would to any other. Yet all that the other node is
# missing is a single sum. So **add up inside each node first**, on a leader; let the leaders exchange sums; and spread the
# result inside. That is a **two-level** or hierarchical all-reduce.
#
# A group, `dist.new_group`, is a collective's "all" for some of the ranks. The library's `collectives.reduce`, `all_reduce`
# and `broadcast` take `group=`, and the first rank of a group is the one that collects and spreads.
#
# **Your turn.** `node` is the group of this rank's node, `leaders` that of the nodes' first ranks; `dist.get_rank(node)` is
# this rank's number within `node`.

# %%
@your_turn(turns.check_two_levels, look="Three calls of `collectives`. Which ranks may call the one in the middle?")
def two_levels(tensor, node, leaders):
    """Make `tensor` the sum over all ranks, in place, over the cable once in each direction. All ranks call."""
    ...


# %% tags=["solution"]
@two_levels.solution
def two_levels(tensor, node, leaders):
    collectives.reduce(tensor, group=node)
    if dist.get_rank(node) == 0:
        collectives.all_reduce(tensor, group=leaders)
    collectives.broadcast(tensor, group=node)


# %%
guess_ring_cable = ask("A ring of 8, 840 kB: how many kB cross the cable in each direction?", unit="kB")


# %%
def with_leaders(tensor):
    nodes = [dist.new_group([0, 1, 2, 3]), dist.new_group([4, 5, 6, 7])]
    two_levels(tensor, nodes[dist.get_rank() // 4], dist.new_group([0, 4]))


def over_the_cable(all_reduce):
    tensor = torch.ones(N // 4)
    with measure.traffic() as sent:
        all_reduce(tensor)
    assert tensor.eq(8).all(), "not the sum"
    here = dist.get_rank() // 4
    return sum((n_bytes for to, n_bytes in sent.bytes_to.items() if to // 4 != here), Bytes(0)), sent.total_bytes


# %%
crossed = {name: ranks.run(over_the_cable, each, world_size=8) for name, each in {"ring": ring, "two levels": with_leaders}.items()}
measured = {name: sum((n_bytes for n_bytes, _ in mine[:4]), Bytes(0)) for name, mine in crossed.items()}
guess = {"ring": guess_ring_cable}
due = {"ring": predict.all_reduce(N, 8).bytes, "two levels": Bytes(N)}
display(compare(guess=guess, predicted=due, measured=measured, unit="kB"))
across = predict.two_level_all_reduce(N, nodes=2, ranks_per_node=4).across.bytes
print(f"if all four ranks of a node cross, each of them sends {across:kB} to the other node")

# %% [markdown]
# $n$ instead of $1.75\,n$. (Is an `if` on the rank not forbidden? The meeting inside it is one of leaders, and all of
# *those* come.)
#
# One flaw: the leader is a small manager, and only *its* network card carries. A node of today has one for each GPU. If
# all ranks of a node cross with a part each (the last line, a formula), the sum leaves at the speed of all four together,
# a quarter through each. How, the lab asks; lesson 07 lives by it.

# %% [markdown]
# ## 11 · Two trees
#
# With thousands of nodes even a ring of nodes has too many rounds. A tree has few, but look at who works in it: half of
# the ranks are leaves, which send once and wait. So take **two trees, each for half of the tensor**, such that a rank that
# hands on in one is a leaf of the other (Sanders, Speck and Träff 2009). In one tree an inner rank sends its half once
# up and once to each of two children (section 4's tree has more), in the other it is a leaf.

# %%
guess_double = ask("Two trees, 8 ranks, 840 kB: how many kB does the busiest rank send?", unit="kB")


# %%
def double_tree(tensor):
    schedule = schedules.all_reduce_double_tree(dist.get_world_size(), dist.get_rank())
    collectives.execute(schedule, tensor.tensor_split(2))


trees = {"tree": tree, "double tree": double_tree, "ring": ring}
predicted = {"tree": Bytes(3 * N), "double tree": Bytes(4 * N // 2), "ring": predict.all_reduce(N, 8).bytes}
measured = {name: busiest_and_total(each, world_size=8)["busiest rank"] for name, each in trees.items()}
display(compare(guess={"double tree": guess_double}, predicted=predicted, measured=measured, unit="kB"))
print("rounds on 8 ranks:", len(schedules.all_reduce_double_tree(8, 0)), "and", len(schedules.all_reduce_ring(8, 0)))
print("on 1,024:", len(schedules.all_reduce_double_tree(1024, 0)), "and", len(schedules.all_reduce_ring(1024, 0)))

# %% [markdown]
# Never more than $2n$, as in a ring, in the rounds of a tree. (Long tensors travel in many small pieces, one behind the
# other; then all ranks are busy all the time.) NCCL has such trees since version 2.4, and takes them across nodes where
# a ring would have too many rounds.
#
# ## 12 · At scale: the bus bandwidth
#
# How do you tell whether an all-reduce is fast? Its **algorithm bandwidth** is what the user sees, $n/t$. But each rank
# must send $2\frac{p-1}{p}n$, so NVIDIA's tests multiply by that factor and call the product **bus bandwidth**: bytes
# that really leave a rank, per second. *That* can be held against the speed of a wire.
#
# A published measurement: 8 H200 GPUs in one machine, PyTorch 2.9.1, NCCL 2.27.7, 4 August 2026
# (stas00/ml-engineering, `network/benchmarks/results/all-reduce-8xH200.md`). NVLink, the wire from each H200 to a *switch* in
# their middle, has 900 GB/s, say NVIDIA's slides, which add up both directions. So what is the largest bus bandwidth that a ring could reach?

# %%
guess_bandwidth = ask("What is the largest bus bandwidth of a ring over these links, in GB/s?")

# %%
KIB, GIB = 2**10, 2**30
algorithm_gb_per_s = {32 * KIB: 0.82, 512 * KIB: 13.68, 4 * 1024 * KIB: 61.23, 64 * 1024 * KIB: 198.01}
algorithm_gb_per_s |= {GIB // 4: 249.23, GIB: 264.90, 4 * GIB: 270.34, 16 * GIB: 275.58}
bus_gb_per_s = [1.44, 23.94, 107.16, 346.51, 436.15, 463.58, 473.10, 482.26]

factor = predict.bus_factor("all_reduce", world_size=8)
for (n, speed), printed in zip(algorithm_gb_per_s.items(), bus_gb_per_s):
    print(f"{Bytes(n):.0}: {speed} × {factor:g} = {factor * speed:.2f}, printed {printed:.2f}")

# %% [markdown]
# (Both in GB/s.) From 1.4 to 482 GB/s, on the same hardware: α and β again. Can one line be fitted to a published table as
# well as to your ping-pong? (Here α is that of a whole all-reduce.)

# %%
times = {n: n / (speed * 1e9) for n, speed in algorithm_gb_per_s.items()}
h200 = predict.fit_link((1, n, seconds) for n, seconds in times.items())
print(f"one all-reduce: {h200.alpha:.0µs} + n / ({h200.bytes_per_s / 1e9:.0f} GB/s)")
costs.fitted_link(
    h200,
    times,
    name="all-reduce, 8 × H200",
    caption="The line meets the points on the left and on the right, and passes beside them in between, where NCCL changes "
    "from one algorithm to another.",
).show()
wire = hardware.H200_141GB.link_bytes_per_s / 1e9
print(f"the wire: {wire:.0f} GB/s (you said {guess_bandwidth.said})")
for name, published in {"published above": bus_gb_per_s[-1], "published, the switch's arithmetic off": 367.61}.items():
    print(f"{name}: {published:.0f} GB/s, {published / wire:.0%} of the wire")

# %% [markdown]
# One line, but two algorithms: the source says below its table that NCCL uses a ring up to 1 MiB, and from 2 MiB on a way
# in which the switch adds. So α is the price of a *ring's* call, β the speed of the *switch*, and no single all-reduce has
# both. What can be kept is the scale: below some 10 MB (40 µs times 260 GB/s) an all-reduce pays mostly for being called at
# all, and lesson 07 will live by that.
#
# Now look at what is printed last. Out of a GPU the wire carries 450 GB/s, and the all-reduce is 7 % *faster than the wire*. In lesson
# 00 we promised: when something beats its bound, look for the bug. It is in the condition of section 3: less is impossible
# *if the ranks are the only ones that can add*. Here each GPU sends its numbers up once, and the switch adds and sends the
# sum down; the "bus bandwidth" is still computed as if a ring had been at work. With the switch's arithmetic turned off,
# the same source measures 82 % of the wire, and the bound holds. A bound is worth as much as its assumptions.
#
# Last, the promise from the top of the page: *with eight GPUs or with eight thousand*. 14 GB of gradients, 450 GB/s,
# and let a message cost 10 µs.

# %%
gradients, cluster = 14 * 10**9, predict.Link(Seconds(10e-6), 1 / 450e9)
worlds = [2**k for k in range(1, 14)]
costs.all_reduces_of_many_ranks(
    gradients,
    cluster,
    worlds,
    caption="Predicted, both axes logarithmic. The ring's line is flat for a long way, and then bends up.",
).show()
seconds = {p: predict.all_reduce(gradients, p).seconds(cluster) for p in (8, 64, 1024, 8192)}
print("the ring:", ", ".join(f"{p} ranks {s:.0ms}" for p, s in seconds.items()))
print(f"a part on 8192 ranks: {Bytes(gradients // 8192):.1MB}; α/β: {cluster.balance:.1MB}")

# %% [markdown]
# In bytes the promise holds: $1.75\,n$ becomes $2n$. But the parts shrink as their number grows, and on the right they are
# smaller than $\alpha/\beta$: there the ring pays more for its 16,382 messages than for their bytes. (And 8,192 GPUs never
# hang on equal wires: sections 10 and 11.)
#
# ## What to keep
#
# | all-reduce | busiest rank sends | all together | in a row | good for |
# |---|---|---|---|---|
# | everyone to everyone | $(p-1)\,n$ | $p(p-1)\,n$ | $p-1$ messages | two ranks |
# | manager | $(p-1)\,n$ | $2(p-1)\,n$ | $2(p-1)$ | a first try |
# | ring | $2\frac{p-1}{p}\,n$ | $2(p-1)\,n$ | $2(p-1)$ | large tensors |
# | tree | $\lceil\log_2 p\rceil\, n$ | $2(p-1)\,n$ | $2\lceil\log_2 p\rceil$ | small tensors |
# | two trees | $2n$ | $2(p-1)\,n$ | $2\lceil\log_2 p\rceil$ | many nodes |
#
# And three habits. Find the busiest link; the total says little. Compare a tensor's size with $\alpha/\beta$ before
# you choose. Let every rank walk through the same collectives in the same order.
#
# ## Three exercises
#
# **1.** Gradients of 3 GB, 64 ranks, a ring. How many GB do all ranks send together?
#
# **2.** A slower network: α = 20 µs and 10 GB/s. 16 ranks. Up to which size, in kB, should they use the tree? (The
# ring has 30 messages and $1.875\,n$ bytes in a row. And the tree?)
#
# **3.** A broadcast along a chain: rank 0 gives its tensor to rank 1, rank 1 to rank 2, and so on to the last. No rank sends
# more than one message, and all should end with rank 0's number, 7. What does `chain` return as it stands, and which
# lines must change places?

# %%
answer_1 = None  # GB sent by all 64 ranks together

self_check(answer_1, turns.EXERCISES[0], tolerance=0.002, hint="Section 3 has the formula for one rank.")

# %%
answer_2 = None  # kB up to which the tree is faster

self_check(answer_2, turns.EXERCISES[1], tolerance=0.01, hint="Section 7 has the tree's messages and bytes in a row. Set both times equal.")


# %%
def chain():
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    tensor = torch.tensor([7.0 if rank == 0 else 0.0])
    if rank < last:
        dist.send(tensor, rank + 1)
    if rank > 0:
        dist.recv(tensor, rank - 1)
    return tensor.item()


answer_3 = None  # replace None by ranks.run(chain, world_size=4, timeout_s=10)

self_check(answer_3, [7.0] * 4, hint="What does rank 1 have to give away before it has received?")

# %% [markdown]
# <details><summary>Answers</summary>
#
# 1. $64 \cdot 2 \cdot \frac{63}{64} \cdot 3 = 378$ GB.
# 2. The tree has $8\alpha + 8\,n\beta$, the ring $30\alpha + 1.875\,n\beta$. They meet at $n = 22\,\alpha / (6.125\,\beta)$,
# 718 kB.
# 3. 7, 7, 0, 0: rank 1 gives its own 0 away before the 7 has come. The two `if`s change places.
#
# </details>
#
# [Lesson 07](07_data_parallelism.ipynb) lets all of this carry gradients: *data parallelism*, and how to hide the sending behind the computing.
#
# **The lab**, `labs/lab06_collectives`, asks for an all-reduce that has the ring's bytes and no more than twice
# $\log_2 p$ messages, and for one that knows which cable is slow. Neither is in the library; each byte over that
# cable counts.
#
# ## Further reading
#
# - Patarasuk and Yuan 2009, [Bandwidth optimal all-reduce](https://doi.org/10.1016/j.jpdc.2008.09.002); Thakur, Rabenseifner and
#   Gropp 2005, [Optimization of collective communication operations in MPICH](https://doi.org/10.1177/1094342005051521).
# - Sanders, Speck and Träff 2009, [Two-tree algorithms](https://doi.org/10.1016/j.parco.2009.09.001).
# - NVIDIA's [NCCL tests](https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md), on bus bandwidth.
# - [torch.distributed](https://docs.pytorch.org/docs/stable/distributed.html), its collectives and backends.
