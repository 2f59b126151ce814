# %% [markdown]
# # Lab 06 · Rabenseifner and a two-level all-reduce
#
# **The question:** can an all-reduce have the ring's bytes *and* the tree's number of messages? And what changes when
# some links are much slower than others?
#
# | | |
# |---|---|
# | Time | about 90 minutes |
# | Builds on | lesson 06: `send` and `recv`, the ring, the tree, α and β |
# | You write | seven functions, most of them under 20 lines |
# | A GPU | changes nothing here |
#
# | question | | points |
# |---|---|---|
# | 1 | Half goes, half stays: reduce-scatter | 20 |
# | 2 | And back: all-gather, and the whole all-reduce | 25 |
# | 3 | The price, before the run | 15 |
# | 4 | Two nodes and one slow cable | 25 |
# | 5 | Who wins, and when? | 15 |
#
# **The rules.** You may use `dist.send`, `dist.recv`, `dist.isend` and `dist.irecv`, and whatever torch does on one
# rank. No collective of `torch.distributed`, none of the course's. The checks read your text, and they also look at
# what really ran: every message of every rank is counted, with its bytes and its destination.
# A function leaves what it is given as it was, gradients, modes and hooks among it, and draws no random numbers. Where
# it may change something, its contract says so. The checks look.
#
# Checks that you see here give you points and tell you what is wrong. More run when the lab is graded, on other
# sizes, other ranks and other numbers. Bytes and messages count only for answers that are right: who sends nothing is
# not thrifty. Cells that show your answer at work fail until there is one. That costs nothing.
#
# Questions 2 and 4 build on question 1. If the halving resists you, send each part straight to its owner and go on:
# the values will be right, only the messages too many. Come back later.

# %% term=true
TERM_NODE = (4, 2, 8)
TERM_NODE_WORD = {2: "two", 4: "four", 8: "eight"}[TERM_NODE]
TERM_RANKS = 2 * TERM_NODE
TERM_RANKS_WORD = {4: "four", 8: "eight", 16: "sixteen"}[TERM_RANKS]
TERM_HELP = "The figures above help." if TERM_NODE == 4 else "(The nodes of the figures above have four ranks.)"
TERM_ROUNDS = 2 * (TERM_RANKS - 1)
TERM_INSIDE = 2 * (TERM_NODE.bit_length() - 1)
TERM_HALVES = " + ".join(f"1 / {2**k}" for k in range(1, TERM_NODE.bit_length()))
TERM_LATER = " + ".join(f"1 / {2**k}" for k in range(2, TERM_RANKS.bit_length()))
TERM_RING_S = f"{20 * TERM_ROUNDS + 320 * TERM_ROUNDS / TERM_RANKS:g}e-6"
TERM_HALVING_S = f"{5 * TERM_INSIDE + 40 + 40 * (1 - 1 / TERM_NODE) + 320 * TERM_NODE:g}e-6"
TERM_LEVELS_S = f"{5 * TERM_INSIDE + 20 + 40 * (2 - 2 / TERM_NODE) + 320:g}e-6"
TERM_SLOPE = 5e-12 * (1 - 1 / TERM_NODE) + 4e-11 * (TERM_NODE - TERM_ROUNDS / TERM_RANKS)  # of halving above the ring
TERM_MEET_BYTES = f"{(20e-6 * TERM_ROUNDS - 5e-6 * TERM_INSIDE - 40e-6) / TERM_SLOPE:_.2f}"

# %%
import torch
import torch.distributed as dist

from course_kit import ranks
from course_kit.checks import check
from course_kit.checks.habits import Case, Unfilled, across, as_in_training
from course_kit.checks.restrictions import without_torch
from course_kit.compare import compare
from course_kit.notebook import ask
from course_kit.units import Count, Seconds
from course_lib import predict
from course_lib.collectives import algorithms as collectives
from course_pages.lesson06 import costs as costs
from course_pages.shared.who_sends import who_sends_whom

# %%
OURS_TO_BUILD = ["collectives", "schedules", "dist.all_reduce", "dist.all_gather", "dist.reduce", "dist.broadcast"]
OURS_TO_BUILD += ["dist.reduce_scatter", "dist.reduce_scatter_tensor", "dist.all_gather_into_tensor", "funcol"]
NOT_ON_PAPER = ["ranks", "check", "dist", "collectives", "of_mine", "all_reduce", "reduce_scatter", "all_gather"]


def numbers(rank, shape, dtype=torch.float32, seed=0):
    """Whole numbers of one rank, so small that sums of eight ranks are exact; in int64 they may be larger than that."""
    small = torch.randint(0, 8, shape, generator=torch.Generator().manual_seed(1000 * seed + rank))
    return small * (2**56 + 1) if dtype == torch.int64 else small.to(dtype)


def sums(members, shape, dtype=torch.float32, seed=0):
    """What these ranks' `numbers` add up to: the truth that your answers are held against."""
    return sum(numbers(rank, shape, dtype, seed) for rank in members)


def expected_cases(op, cases, p):
    """The same for several (shape, dtype) at once, each with a seed of its own; sums or means over p ranks."""
    sums_of = {f"{case}": sums(range(p), *case, seed) for seed, case in enumerate(cases)}
    return {case: total / p for case, total in sums_of.items()} if op == "mean" else sums_of


# %%
CASES = [((64,), torch.float32), ((13,), torch.float64), ((3,), torch.float32), ((0,), torch.float16)]
CASES += [((6, 7), torch.bfloat16)]


def fractions(rank):
    """1000 numbers of one rank whose sums round, so that the order of adding shows in the last bits."""
    return torch.rand(1000, dtype=torch.float64, generator=torch.Generator().manual_seed(rank))


def owns_its_memory(part):
    return isinstance(part, torch.Tensor) and part.untyped_storage().nbytes() <= part.nbytes


# %% [markdown]
# ## 1 · Half goes, half stays (20 points)
#
# The ring is patient. In each of its $2(p-1)$ rounds a rank hands one $p$-th part to its neighbour. Bytes could not
# be fewer, but a part on its way to the far side knocks at every door in between.
#
# Rolf Rabenseifner asked what happens if you begin with the far side (Rabenseifner 2004; Thakur, Rabenseifner and
# Gropp 2005, §4). Pair the ranks off, each with the one that is half the world away. The two share the work: one will
# care for the first half of the tensor, the other for the second. So each sends the half that it gives up, receives
# the half that it keeps, and adds. Then forget the other half of the world, and the other half of the tensor, and do
# it again. This is **recursive halving**.
#
# With four ranks, rank 0 has this to do:
#
# | round | partner | sends | keeps, and adds up |
# |---|---|---|---|
# | 1 | rank 2 | parts 2 and 3 | parts 0 and 1 |
# | 2 | rank 1 | part 1 | part 0 |
#
# Write the table for rank 3 on paper before you write code. What do the *binary digits* of a rank have to do with it?
#
# **Your contract.** `reduce_scatter(flat, members)`
#
# - `flat`: a tensor of one dim. All members bring the same length and dtype; it must not change.
# - `members`: the ranks that take part, a list. Its length $p$ is a power of two (1 is one, too). *A rank's number in
# this game is its position in the list*: with `members=[6, 2]`, rank 6 is number 0. Question 4 lives on that.
# - Parts are those of `flat.tensor_split(p)`: the first ones may be one longer. They may be empty.
# - Returns part number `members.index(rank)` of the sum of all members' tensors. It is a tensor of its own: a view
# into something larger would keep all of that alive.
#
# **Graded:** values (6 points), bytes and messages (8): every byte that leaves must be one that the rank gives up, in
# no more messages than there are rounds. And both again in cases that you do not see (6).


# %% answer="q1"
def reduce_scatter(flat, members):
    """This rank's part of the sum over `members`, by recursive halving: a new tensor of one dim.

    Bytes sent: all but the own part. Messages: log2 p. All members call.
    """
    ### BEGIN SOLUTION
    me, count, first = members.index(dist.get_rank()), len(members), 0
    size, longer = divmod(len(flat), count)
    ends = [part * size + min(part, longer) for part in range(count + 1)]
    total = flat.clone()
    while count > 1:
        count //= 2
        keep, give = (first + count, first) if me & count else (first, first + count)
        mine = total[ends[keep] : ends[keep + count]]
        arrived = torch.empty_like(mine)
        posted = dist.isend(total[ends[give] : ends[give + count]], members[me ^ count])
        dist.recv(arrived, members[me ^ count])
        posted.wait()
        mine += arrived
        first = keep
    return total[ends[first] : ends[first + 1]].clone()
    ### END SOLUTION


# %% [markdown]
# A small case to try it on: four ranks, four numbers each. Every rank should be left with one number, and they should
# be 6, 10, 14 and 18. (Think of them as four columns added up.)


# %%
def four_numbers():
    return reduce_scatter(torch.arange(4.0) + dist.get_rank(), members=[0, 1, 2, 3])


ranks.run(four_numbers, world_size=4)


# %% check="q1-values" points=6
def scatter_numbers(length, members, dtype=torch.float32, seed=0):
    if dist.get_rank() not in members:
        return None
    mine, before = (numbers(dist.get_rank(), (length,), dtype, seed) for _ in range(2))
    part = check.call(reduce_scatter, mine, members)
    return part, torch.equal(mine, before), owns_its_memory(part)


def check_scatter(length, members, dtype=torch.float32, seed=0, world_size=8):
    results = check.on_ranks(scatter_numbers, length, members, dtype, seed, world_size=world_size)
    parts, unchanged, own = zip(*[results[rank] for rank in members])
    expected = list(sums(members, (length,), dtype, seed).tensor_split(len(members)))
    check.equal(list(parts), expected, f"parts of {length} numbers on ranks {members}", look="which halves you add")
    check.that(all(unchanged), "… and the input is as it was", look="what you add to, and whose memory that is")
    check.that(all(own), "… and a part holds the memory of a part", look="what you return: a view keeps its base alive")


check_scatter(16, members=[0, 1, 2, 3], world_size=4)
check_scatter(13, members=list(range(8)), seed=1)
check_scatter(7, members=[2, 3], seed=2, world_size=4)


# %% check="q1-traffic" points=8
def check_scatter_traffic(length, members, dtype=torch.float32, world_size=8):
    results, sent = check.traffic(scatter_numbers, length, members, dtype, world_size=world_size)
    parts = sums(members, (length,), dtype).tensor_split(len(members))
    what = f"right parts of {length} numbers on ranks {members}"
    check.equal([results[rank][0] for rank in members], list(parts), what, look="the values, before the bytes")
    least = [dtype.itemsize * (length - len(part)) for part in parts]
    n_bytes = [int(sent[rank].total_bytes) for rank in members]
    check.equal(n_bytes, least, f"… bytes sent by ranks {members}", look="half of what is left in each round, as it is")
    most, rounds = max(account.total_messages for account in sent), len(members).bit_length() - 1
    check.at_most(most, rounds, "… messages of the busiest rank", look="one message in each round")
    check.only_messages(sent)


check.written_with(reduce_scatter, forbidden=OURS_TO_BUILD)
check_scatter_traffic(800, members=list(range(8)))
check_scatter_traffic(1003, members=[0, 1, 2, 3], world_size=4)

# %% check="q1-hidden" points=6
# Other members, other lengths, other dtypes.
### BEGIN HIDDEN TESTS
#: other members
check_scatter(1001, members=[6, 1, 3, 4], dtype=torch.int64, seed=3)
#: other dtypes
check_scatter(5, members=[7, 0, 6, 1, 5, 2, 4, 3], dtype=torch.bfloat16, seed=4)
check_scatter(0, members=[1, 0], dtype=torch.int64, world_size=2)
#: other members
check_scatter(9, members=[1], dtype=torch.float64, world_size=2)


def scatter_in_training(seed):
    members = [2, 0, 3, 1]
    given = [1000 * numbers(rank, (13,), torch.float64, seed) - 3500 for rank in members]
    me = members.index(dist.get_rank())
    return Case([given[me], members], sum(given).tensor_split(4)[me])


check.on_ranks(as_in_training, reduce_scatter, scatter_in_training, [{"seed": 8}, {"seed": 9}], world_size=4)
#: other lengths, other dtypes
check_scatter_traffic(1021, members=[5, 2, 0, 7], dtype=torch.bfloat16)
# Sentences of the contract, and the known-wrong answers that break them.
#= `flat`: a tensor | - what is given
#= All members bring | sums_in_what_was_given
#= `members`: the ranks | ranks_for_positions forgets_in_the_list_of_members
#= Its length $p$ | alone_is_no_pair
#= *A rank's number | ranks_for_positions
#= Question 4 lives | - a remark
#= Parts are those | only_sizes_that_p_divides
#= They may be empty | only_sizes_that_p_divides
#= Returns part number | sends_nothing
#= It is a tensor | keeps_the_whole_alive
#= This rank's part | everyone_in_disguise
#= Bytes sent: all but | halving_sends_everything
#= Messages: log2 p | everyone_in_disguise
#= All members call | - who calls
### END HIDDEN TESTS

# %% [markdown]
# ## 2 · And back (25 points)
#
# Everybody holds one finished part. Now play the film backwards: first swap with the nearest, then both hold two
# parts and swap with the next, then four. What a rank holds doubles each time: **recursive doubling**. Halving and
# doubling together are Rabenseifner's all-reduce.
#
# **Your contract.** `all_gather(part, length, members)`
#
# - `part`: this rank's part, as `reduce_scatter` returned it, of a tensor with `length` elements.
# - Returns a new tensor of one dim: the parts of all members, in the order of the list. In each round, all that a rank
# holds goes to its partner: first to the one next to it, last to the one half the world away.
#
# **Your contract.** `all_reduce(tensor, op="sum")`
#
# - All ranks of the world call. The sum of all tensors, or with `op="mean"` their mean, is written *into* `tensor`,
# and `tensor` is returned.
# - Any shape, any length (shorter than the world, or empty), any dtype that adds, and it travels and adds in that
# dtype. Its memory may lie across, as in `x.T`. A mean is only asked of floating-point tensors, and divides the
# finished sum.
# - Every rank must end with the same bits, also where floating-point sums depend on the order.
# - `ValueError` if the number of ranks is not a power of two, or `op` is another word: at once, before anybody sends.
#
# **Graded:** sums and means (7 points), bytes and messages (8), and more cases (10): the all-gather by itself, other
# shapes, the bits, the errors.


# %% answer="q2"
def all_gather(part, length, members):
    """The parts of all members joined, by recursive doubling: a new tensor of `length` elements.

    Messages: log2 p. All members call.
    """
    ### BEGIN SOLUTION
    me, p, count = members.index(dist.get_rank()), len(members), 1
    whole, size, longer = part.new_empty(length), length // p, length % p
    ends = [each * size + min(each, longer) for each in range(p + 1)]
    whole[ends[me] : ends[me + 1]] = part
    while count < p:
        first = me // count * count  # of the parts that I hold
        theirs = first ^ count
        posted = dist.isend(whole[ends[first] : ends[first + count]], members[me ^ count])
        dist.recv(whole[ends[theirs] : ends[theirs + count]], members[me ^ count])
        posted.wait()
        count *= 2
    return whole
    ### END SOLUTION


# %% answer="q2-all-reduce"
def all_reduce(tensor, op="sum"):
    """Rabenseifner's all-reduce over all ranks, in place; returns `tensor`.

    Bytes sent: 2(p-1)/p of the tensor where p divides it. Messages: 2 log2 p. All ranks call.
    """
    ### BEGIN SOLUTION
    p = dist.get_world_size()
    if p & (p - 1):
        raise ValueError(f"halving needs a power of two; there are {p} ranks")
    if op not in ("sum", "mean"):
        raise ValueError(f"op={op!r}: it must be sum or mean")
    everyone = list(range(p))
    part = reduce_scatter(tensor.reshape(-1), everyone)
    whole = all_gather(part / p if op == "mean" else part, tensor.numel(), everyone)
    return tensor.copy_(whole.view(tensor.shape))
    ### END SOLUTION


# %% [markdown]
# See it at work. Left the ring, as the library plays it; right yours. Whom does a rank talk to, and who of them gets
# most? (20,000 numbers, 80 kB.)


# %%
def of_library(algorithm, length=20_000):
    collectives.all_reduce(numbers(dist.get_rank(), (length,)), algorithm=algorithm)


def of_mine(length=20_000, dtype=torch.float32):
    tensor = check.call(all_reduce, numbers(dist.get_rank(), (length,), dtype), may_change="values")
    return torch.equal(tensor, sums(range(dist.get_world_size()), (length,), dtype))


_, ring_sent = check.traffic(of_library, "ring", world_size=8)
_, my_sent = check.traffic(of_mine, world_size=8)
who_sends_whom(
    {"the ring": ring_sent, "yours": my_sent},
    caption="Rows send, columns receive; a number is kB, darker is more.",
)


# %% check="q2-values" points=7
def reduce_cases(op, cases):
    tensors = [numbers(dist.get_rank(), shape, dtype, seed) for seed, (shape, dtype) in enumerate(cases)]
    return [check.call(all_reduce, tensor, op, may_change="values") is tensor for tensor in tensors], tensors


def check_cases(op, cases, p):
    found, expected = check.on_ranks(reduce_cases, op, cases, world_size=p), expected_cases(op, cases, p)
    got = {f"rank {rank}": dict(zip(expected, tensors)) for rank, (_, tensors) in enumerate(found)}
    check.equal(got, dict.fromkeys(got, expected), f"the {op} on {p} ranks")
    check.that(all(all(same) for same, _ in found), "… and it returns the tensor it was given")


check_cases("sum", CASES, p=2)
check_cases("mean", CASES, p=8)


# %% check="q2-traffic" points=8
def check_traffic(length, world_size, slack=0, dtype=torch.float32):
    right, sent = check.traffic(of_mine, length, dtype, world_size=world_size)
    check.that(all(right), f"a right sum on {world_size} ranks", look="the values, before the bytes")
    n_bytes = dtype.itemsize * length
    limit = 2 * n_bytes * (world_size - 1) // world_size + slack
    busiest = max(int(account.total_bytes) for account in sent)
    messages = max(account.total_messages for account in sent)
    rounds = 2 * (world_size.bit_length() - 1)
    together, least = sum(int(account.total_bytes) for account in sent), 2 * n_bytes * (world_size - 1)
    check.at_most(busiest, limit, "… bytes of the busiest rank", look="what each half of it sends")
    check.at_least(together, least, "… bytes of all ranks together", look="what travels uncounted, or made smaller")
    check.at_most(messages, rounds, "… messages of the busiest rank", look="one message in each round")
    check.only_messages(sent)
    return sent


check.written_with(all_gather, forbidden=OURS_TO_BUILD)
check.written_with(all_reduce, forbidden=OURS_TO_BUILD)
_ = check_traffic(8000, world_size=8)
_ = check_traffic(4000, world_size=2)

# %% [markdown]
# Two things that go wrong often. They are graded in the hidden tests, so see for yourself: numbers that lie across in
# memory, and sums of random numbers, which must have the same bits everywhere.


# %%
def across_and_random():
    memory = numbers(dist.get_rank(), (5, 3))
    check.call(all_reduce, memory.T, may_change="values")
    return memory.T, check.call(all_reduce, fractions(dist.get_rank()), may_change="values")


tried = ranks.run(across_and_random, world_size=4)
print("across:", torch.equal(tried[0][0], sums(range(4), (5, 3)).T))
print("same bits:", all(torch.equal(rounded, tried[0][1]) for _, rounded in tried))


# %% check="q2-hidden" points=10
# The all-gather by itself, other shapes and worlds, the errors.
### BEGIN HIDDEN TESTS
def gather_alone(length, members, dtype):
    if dist.get_rank() not in members:
        return None
    position = members.index(dist.get_rank())
    mine = torch.arange(length).to(dtype).tensor_split(len(members))[position].clone()
    return check.call(all_gather, mine, length, members)


def gather_in_training(seed):
    members = [2, 0, 3, 1]
    whole = 1000 * numbers(0, (13,), torch.float64, seed) - 3500
    return Case([whole.tensor_split(4)[members.index(dist.get_rank())], 13, members], whole)


def in_training(answer, *settings):
    """Two calls in one process, with other numbers of the same shape; the second ones lie across in memory."""
    kept = []
    for seed in range(2):
        mine = 1000 * numbers(dist.get_rank(), (6, 7), torch.float64, seed) - 3500
        mine = across(mine) if seed else mine
        with Unfilled():
            kept.append(check.call(answer, mine, *settings, may_change="values").clone())
    return kept


def check_in_training(p, answer, *settings):
    right = [1000 * sums(range(p), (6, 7), torch.float64, seed) - 3500 * p for seed in range(2)]
    found = check.on_ranks(in_training, answer, *settings, world_size=p)
    check.equal(found, [right] * p, "sums of two calls in one process, of large numbers", look="what outlives a call")


def mean_of_small():
    small = torch.full((5,), 3 * 2.0**-24).half()
    return check.call(all_reduce, small, "mean", may_change="values")


def refusals(*ops):
    said = []
    for op in ops:
        try:
            all_reduce(torch.ones(4), op)
            said.append("nothing")
        except ValueError:
            said.append("ValueError")
    return said


#: the all-gather by itself
whole_numbers, halves = torch.int64, torch.bfloat16
for length, gatherers, dtype in (
    (17, [0, 1, 2, 3], whole_numbers),
    (3, [3, 1, 0, 2], whole_numbers),
    (10, [1, 3], halves),
    (4, [2], halves),
):
    gathered = check.on_ranks(gather_alone, length, gatherers, dtype, world_size=4)
    expected = [torch.arange(length).to(dtype)] * len(gatherers)
    check.equal([gathered[rank] for rank in gatherers], expected, f"{length} numbers gathered on ranks {gatherers}")
check.on_ranks(as_in_training, all_gather, gather_in_training, [{"seed": 8}, {"seed": 9}], world_size=4)

#: other shapes and worlds
check_cases("sum", [((5, 1, 9), torch.int64), ((1,), torch.bfloat16), ((), torch.float32)], p=8)
check_cases("mean", [((101,), torch.float64), ((2, 2), torch.float16)], p=4)
check_cases("sum", [((4,), torch.float32)], p=1)
check_in_training(4, all_reduce)
small = torch.full((5,), 3 * 2.0**-24).half()
where = "what is divided: the sum, or each of its parts"
check.equal(check.on_ranks(mean_of_small, world_size=4), [small] * 4, "means of fp16's smallest numbers", look=where)
sides = check.on_ranks(across_and_random, world_size=8)
check.equal([turned for turned, _ in sides], [sums(range(8), (5, 3)).T] * 8, "numbers that lie across")
check.close(sides[0][1], sum(map(fractions, range(8))), "sums of float64", operations=8, look="the dtype you add in")
check.equal([rounded for _, rounded in sides], [sides[0][1]] * 8, "the same bits on all ranks")
#: the errors
for ops, p in ((("sum", "product"), 6), (("product",), 2)):
    refused, sent = check.traffic(refusals, *ops, world_size=p)
    check.equal(refused, [["ValueError"] * len(ops)] * p, f"what {' and '.join(ops)} say on {p} ranks")
    check.at_most(max(each.total_messages for each in sent), 0, "… before anybody sends", look="when you refuse")
    check.carried(sent)
#: other shapes and worlds
_ = check_traffic(1000, world_size=4, dtype=torch.bfloat16)
uneven_sent = check_traffic(1001, world_size=8, slack=16)
#: the all-gather by itself
parts = [len(part) for part in torch.zeros(1001).tensor_split(8)]
back = [sum(sum(parts[rank // held * held :][:held]) for held in (1, 2, 4)) for rank in range(8)]
expected = [4 * (1001 - own + again) for own, again in zip(parts, back)]
where = "what a rank holds before each round back: first it swaps with the one next to it"
check.equal([int(each.total_bytes) for each in uneven_sent], expected, "bytes of each rank, 1001 numbers", look=where)
# Sentences of the contract, and the known-wrong answers that break them.
#= `part`: this rank | - what is given
#= Returns a new tensor | far_side_first_on_the_way_back
#= In each round | far_side_first_on_the_way_back
#= All ranks of the world | - who calls
#= The sum of all tensors | mean_without_its_divisor other_memory
#= Any shape, any length | adds_in_float32 all_halves_travel_wide
#= Its memory may lie | forgets_what_lies_across
#= A mean is only asked | mean_without_its_divisor divides_before_it_adds
#= Every rank must end | own_order_in_double
#= `ValueError` if | six_is_even refuses_too_late one_rank_refuses
#= The parts of all members | far_side_first_on_the_way_back
#= Messages: log2 p | parts_travel_one_by_one
#= All members call | - who calls
#= Rabenseifner's | the_library_does_it
#= Bytes sent: 2(p-1)/p | whole_tensors_round_the_ring
#= Messages: 2 log2 p | whole_tensors_round_the_ring
#= All ranks call | - who calls
### END HIDDEN TESTS

# %% [markdown]
# ## 3 · The price, before the run (15 points)
#
# "$2\frac{p-1}{p}n$ bytes" is right when $p$ divides the tensor. When it does not, some parts are one element longer,
# and ranks differ. By how much? One who can say *exactly* what each rank will send has understood the algorithm; and
# one whose count is off by an element has a bug, in the prediction or in the code.
#
# For the way out there is a shortcut: count what a rank no longer owns in the end. For the way back there is none, as
# a rank sends its first parts more than once. Try 5 numbers on 4 ranks on paper. Their parts have 2, 1, 1 and 1.
# Which rank sends most?
#
# **Your contract.** `predict_sends(elements, element_size, world_size, rank)`
#
# - An all-reduce by your `all_reduce` of `elements` numbers of `element_size` bytes each. At least one for each rank.
# - Returns `(messages, n_bytes)`, two whole numbers: what this rank sends. Nothing is run, no tensor is made on the
# way (a real one may have $10^{12}$ elements). The checks put tensors, ranks and your all-reduce out of its reach.
#
# **Graded:** four predictions (8 points), more of them, and large ones (7).


# %% answer="q3"
def predict_sends(elements, element_size, world_size, rank):
    """(messages, bytes) that `rank` sends in Rabenseifner's all-reduce."""
    ### BEGIN SOLUTION
    small, longer = divmod(elements, world_size)

    def end(part):
        return part * small + min(part, longer)

    sent = elements - (end(rank + 1) - end(rank))
    count, messages = 1, 0
    while count < world_size:
        first = rank // count * count
        sent += end(first + count) - end(first)
        count, messages = 2 * count, messages + 2
    return messages, sent * element_size
    ### END SOLUTION


# %% [markdown]
# Now against the ring. How many messages does one of 8 ranks send with each? Guess both. Then prediction and
# measurement have to agree for all ranks, to the byte.

# %%
guess_ring = ask("8 ranks: messages of one rank in a ring")
guess_yours = ask("8 ranks: messages of one rank with halving and doubling")

# %%
_, ring_sent = check.traffic(of_library, "ring", 1003, world_size=8)
_, my_sent = check.traffic(of_mine, 1003, world_size=8)
for rank in range(8):
    assert predict_sends(1003, 4, 8, rank) == (my_sent[rank].total_messages, my_sent[rank].total_bytes), f"rank {rank}"

compare(
    guess={"the ring": guess_ring, "yours": guess_yours},
    predicted={"the ring": predict.all_reduce(1003 * 4, 8).messages, "yours": Count(predict_sends(1003, 4, 8, 5)[0])},
    measured={"the ring": Count(ring_sent[5].total_messages), "yours": Count(my_sent[5].total_messages)},
)

# %% check="q3-predicted" points=8
account = without_torch(predict_sends, NOT_ON_PAPER)
for case, sent in {
    (800, 4, 8, 3): (6, 5600),
    (5, 4, 4, 0): (4, 32),
    (5, 4, 4, 3): (4, 28),
    (1003, 2, 8, 2): (6, 3514),
}.items():
    elements, element_size, world_size, rank = case
    what = f"rank {rank} of {world_size}, {elements} numbers of {element_size} bytes"
    check.equal(check.call(account, *case), sent, what, look="which parts a rank holds before each round back")


# %% check="q3-hidden" points=7
# More ranks, other sizes, and tensors that no laptop holds.
### BEGIN HIDDEN TESTS
def sent_by_hand(elements, size, world_size, rank):
    lengths = [elements // world_size + (part < elements % world_size) for part in range(world_size)]
    total, held, rounds = elements - lengths[rank], {rank}, 0
    while len(held) < world_size:
        total += sum(lengths[part] for part in held)
        held |= {part ^ len(held) for part in held}
        rounds += 2
    return rounds, total * size


account = without_torch(predict_sends, NOT_ON_PAPER)
for elements, size, world_size in ((21, 8, 4), (1021, 2, 16), (10**12 + 7, 2, 64), (2, 4, 2), (9, 4, 1)):
    for rank in {0, world_size // 3, world_size - 1}:
        expected = sent_by_hand(elements, size, world_size, rank)
        got = check.call(account, elements, size, world_size, rank)
        check.equal(got, expected, f"rank {rank} of {world_size}, {elements} numbers of {size} bytes")
# Sentences of the contract, and the known-wrong answers that break them.
#= An all-reduce by | predicts_the_mean
#= At least one | - what is given
#= Returns `(messages | predicts_the_mean
#= Nothing is run | cuts_a_tensor
#= The checks put | - how it is checked
#= (messages, bytes) | predicts_the_mean
### END HIDDEN TESTS

# %% [markdown]
# ## 4 · Two nodes and one slow cable (25 points)
#
# So far all links were equal. They never are. Take two nodes with four ranks each: 0 to 3 in one, 4 to 7 in the
# other. Inside a node, links are fast. Between the nodes there is **one cable**, and it is slow.
#
# The figure shows both all-reduces again, with a frame round everything that crosses. Before you run it: your
# all-reduce begins with partners half the world away. How much of its 80 kB tensor crosses the cable, both directions
# and all ranks together?

# %%
guess_cable = ask("8 ranks, 80 kB, halving and doubling: kB over the cable in all", unit="kB")

# %%
_, ring_sent = check.traffic(of_library, "ring", world_size=8)
_, flat_sent = check.traffic(of_mine, world_size=8)
who_sends_whom(
    {"the ring": ring_sent, "halving and doubling": flat_sent},
    ranks_per_node=4,
    caption="Rows send, columns receive; a number is kB, darker is more. Frames hold the links between nodes.",
).show()
there, back = (check.crossing(flat_sent, *pair)[0] for pair in ((range(4), range(4, 8)), (range(4, 8), range(4))))
print(f"your guess: {guess_cable.said}, counted: {(there + back).to('kB'):g} kB")

# %% [markdown]
# The clever one sends its *largest* messages over the *slowest* link, from every rank at once. The ring, of all
# things, crosses with two ranks only.
#
# How little could cross? Each node has a sum that the other lacks, of $n$ bytes. So $n$ bytes in each direction are
# needed. Can one do with that, and keep all eight ranks busy all the time? A **two-level** all-reduce does: something
# inside each node, something across, something inside again. You have most of it already; think about what each rank
# should *hold* at the moment of crossing.
#
# (Why not let one rank of each node do all the crossing? It would be right, and the cable would not mind. But that
# rank would send more than all others, and they would wait. Find the busiest.)
#
# **Your contract.** `two_level_all_reduce(tensor, ranks_per_node)`
#
# - All ranks call; there are two nodes. The first `ranks_per_node` ranks are the first node. `ranks_per_node` is a
# power of two.
# - The sum is written into `tensor`, which is returned. Shapes, dtypes, memory and bits as in question 2.
#
# **Graded:** values and bits (6 points). The cable: $n$ bytes in each direction (7), and no rank puts more than one
# message on it (4). Hidden (8): values and cable again for other sizes and other nodes, and no rank sends more than
# $1.75\,n$ in 5 messages when there are four ranks in a node and four equal parts.


# %% answer="q4"
def two_level_all_reduce(tensor, ranks_per_node):
    """Sum over two nodes of `ranks_per_node` ranks, in place; n bytes cross in each direction. All ranks call."""
    ### BEGIN SOLUTION
    rank = dist.get_rank()
    first = rank // ranks_per_node * ranks_per_node
    node = list(range(first, first + ranks_per_node))
    twin = (rank + ranks_per_node) % (2 * ranks_per_node)
    part = reduce_scatter(tensor.reshape(-1), node)
    arrived = torch.empty_like(part)
    posted = dist.isend(part, twin)
    dist.recv(arrived, twin)
    posted.wait()
    whole = all_gather(part + arrived, tensor.numel(), node)
    return tensor.copy_(whole.view(tensor.shape))
    ### END SOLUTION


# %%
def of_mine_in_two_levels(length=20_000, ranks_per_node=4, dtype=torch.float32):
    tensor = numbers(dist.get_rank(), (length,), dtype)
    tensor = check.call(two_level_all_reduce, tensor, ranks_per_node, may_change="values")
    return torch.equal(tensor, sums(range(2 * ranks_per_node), (length,), dtype))


_, level_sent = check.traffic(of_mine_in_two_levels, world_size=8)
panels = {"the ring": ring_sent, "halving and doubling": flat_sent, "two levels": level_sent}
who_sends_whom(
    panels,
    ranks_per_node=4,
    caption="Rows send, columns receive; a number is kB, darker is more. Frames hold the links between nodes.",
)


# %% check="q4-values" points=6
def two_level_cases(cases, ranks_per_node):
    tensors = [numbers(dist.get_rank(), shape, dtype, seed) for seed, (shape, dtype) in enumerate(cases)]
    each = [check.call(two_level_all_reduce, tensor, ranks_per_node, may_change="values") for tensor in tensors]
    memory = fractions(dist.get_rank()).view(20, 50)
    two_level_all_reduce(memory.T, ranks_per_node)
    return [came is tensor for came, tensor in zip(each, tensors)], tensors, memory.T


def check_two_levels(cases, ranks_per_node):
    found = check.on_ranks(two_level_cases, cases, ranks_per_node, world_size=2 * ranks_per_node)
    expected = expected_cases("sum", cases, 2 * ranks_per_node)
    got = {f"rank {rank}": dict(zip(expected, tensors)) for rank, (_, tensors, _) in enumerate(found)}
    check.equal(got, dict.fromkeys(got, expected), f"the sums on two nodes of {ranks_per_node}")
    check.that(all(all(same) for same, *_ in found), "… and it returns the tensor it was given")
    bits, truth = [across for *_, across in found], sum(map(fractions, range(2 * ranks_per_node))).view(20, 50).T
    check.close(bits[0], truth, "sums of float64 that lie across in memory", operations=8, look="copies, and dtypes")
    check.equal(bits, [bits[0]] * len(bits), "the same bits on all ranks")


check_two_levels(CASES, ranks_per_node=4)


# %% check="q4-cable" points=7
def check_cable(length, ranks_per_node, dtype=torch.float32):
    nodes = range(ranks_per_node), range(ranks_per_node, 2 * ranks_per_node)
    right, sent = check.traffic(of_mine_in_two_levels, length, ranks_per_node, dtype, world_size=2 * ranks_per_node)
    check.that(all(right), f"a right sum on two nodes of {ranks_per_node}", look="the values, before the bytes")
    check.only_messages(sent)
    for here, there in (nodes, nodes[::-1]):
        n_bytes, _ = check.crossing(sent, here, there)
        what = f"… bytes over the cable from ranks {[*here]}, {length} numbers"
        check.equal(int(n_bytes), dtype.itemsize * length, what, look="what each rank holds when it crosses: a whole sum?")
    return sent


check.written_with(two_level_all_reduce, forbidden=OURS_TO_BUILD)
_ = check_cable(20_000, ranks_per_node=4)

# %% check="q4-messages" points=4
right, level_sent = check.traffic(of_mine_in_two_levels, world_size=8)
check.that(all(right), "a right sum on two nodes of 4", look="the values, before the messages")
check.only_messages(level_sent)
nodes = range(4), range(4, 8)
crossings = [check.crossing(level_sent, [rank], nodes[rank < 4])[1] for rank in range(8)]
check.at_most(max(crossings), 1, "… messages over the cable of any one rank", look="how often a rank has to cross")
check.at_least(sum(crossings), 2, "… and of all ranks together", look="what crosses uncounted")

# %% check="q4-hidden" points=8
# Other sizes, other nodes, and what the busiest rank sends.
### BEGIN HIDDEN TESTS
#: other sizes, other nodes
check_two_levels([((2, 3), torch.int64), ((9,), torch.bfloat16), ((), torch.float32)], ranks_per_node=2)
check_two_levels([((5,), torch.float32)], ranks_per_node=1)
check_in_training(4, two_level_all_reduce, 2)
_ = check_cable(1003, ranks_per_node=2, dtype=torch.bfloat16)
hidden_sent = check_cable(4096, ranks_per_node=4)
#: what the busiest rank sends
check.at_most(max(int(each.total_bytes) for each in hidden_sent), 7 * 4096, "bytes of the busiest rank: 1.75 n")
check.at_most(max(each.total_messages for each in hidden_sent), 5, "messages of the busiest rank")
# Sentences of the contract, and the known-wrong answers that break them.
#= All ranks call; | - who calls
#= The first `ranks_per_node` | one_level_for_two
#= `ranks_per_node` is | - what is given
#= The sum is written | two_levels_in_other_memory
#= Shapes, dtypes | two_levels_forget_what_lies_across halves_cross_wide
#= Sum over two nodes | every_rank_crosses
#= All ranks call | - who calls
### END HIDDEN TESTS

# %% [markdown]
# ## 5 · Who wins, and when? (15 points)
#
# Your laptop has no cable between its ranks, so its clock cannot tell you. The prices can. Here are the rules of the
# α–β model for two nodes of TERM_NODE_WORD ranks each, and for $n$ bytes that TERM_RANKS divides:
#
# - An algorithm is a row of rounds, one after the other. All ranks do a round at the same time.
# - A round in which all messages stay inside the nodes takes $\alpha + \beta \cdot$ (bytes that *one* rank sends), with
# the prices of a `fast` link: every rank has its own.
# - A round in which something crosses takes $\alpha + \beta \cdot$ (bytes of *all messages together* that cross in one
# direction), with the prices of the `slow` cable: all share it. The two directions do not disturb each other. What
# stays inside the nodes in that round is done by then.
#
# The algorithms are the `"ring"` of TERM_RANKS_WORD in rank order, your `"halving"` all-reduce over TERM_RANKS_WORD ranks, and
# `"two-level"`. A link has `link.alpha` (seconds) and `link.seconds_per_byte`. Take a sheet of paper: for each
# algorithm write down the rounds, which of them cross, and with how many bytes. TERM_HELP
#
# **Your contract.** `predict_seconds(algorithm, n_bytes, fast, slow)` returns the seconds of that all-reduce.
#
# `crossover(first, second, fast, slow)` returns the size in bytes, above 0, at which two algorithms take the same
# time, or `None` if there is none. (Both are straight lines in $n$. You know two points of each.)
#
# **Graded:** seconds (5 points), crossovers (4), and other prices (6).


# %% answer="q5"
def predict_seconds(algorithm, n_bytes, fast, slow):
    """Seconds of an all-reduce of `n_bytes` on two nodes of TERM_NODE_WORD ranks."""
    ### BEGIN SOLUTION
    messages_fast, share_fast, messages_slow, share_slow = {
        "ring": (0, 0, TERM_ROUNDS, TERM_ROUNDS / TERM_RANKS),
        "halving": (TERM_INSIDE, 2 * (TERM_LATER), 2, 2 * TERM_NODE * 1 / 2),
        "two-level": (TERM_INSIDE, 2 * (TERM_HALVES), 1, TERM_NODE * 1 / TERM_NODE),
    }[algorithm]
    inside = messages_fast * fast.alpha + share_fast * n_bytes * fast.seconds_per_byte
    return float(inside + messages_slow * slow.alpha + share_slow * n_bytes * slow.seconds_per_byte)
    ### END SOLUTION


# %% answer="q5-meeting"
def crossover(first, second, fast, slow):
    """Bytes, above 0, at which both take the same time; None if they never do."""
    ### BEGIN SOLUTION
    large = 2**40
    before, after = (predict_seconds(first, n, fast, slow) - predict_seconds(second, n, fast, slow) for n in (0, large))
    if before == after:
        return None
    n_bytes = large * before / (before - after)
    return n_bytes if n_bytes > 0 else None
    ### END SOLUTION


# %%
FAST = predict.Link(alpha=Seconds(5e-6), seconds_per_byte=1 / 200e9)
SLOW = predict.Link(alpha=Seconds(20e-6), seconds_per_byte=1 / 25e9)

NAMES = ("ring", "halving", "two-level")
SIZES = [2**k for k in range(10, 31)]
costs.times_by_size(
    {name: {n: predict_seconds(name, n, FAST, SLOW) for n in SIZES} for name in NAMES},
    {},
    caption="Two nodes of TERM_NODE_WORD ranks, predicted. Left of the crossing messages decide, right of it the cable does.",
    alt="Predicted microseconds against bytes for ring, halving and two-level: flat on the left, steep on the right.",
)

# %% check="q5-seconds" points=5
for case, seconds in {
    ("ring", 8_000_000): TERM_RING_S,
    ("halving", 8_000_000): TERM_HALVING_S,
    ("two-level", 8_000_000): TERM_LEVELS_S,
}.items():
    took = check.call(predict_seconds, *case, FAST, SLOW)
    where = "which rounds cross, and how many ranks send over the cable in them"
    check.close(took, seconds, f"{case[0]}, {case[1]:,} bytes", relative=1e-9, look=where)

# %% check="q5-crossover" points=4
meet = check.call(crossover, "halving", "ring", FAST, SLOW)
check.close(meet, TERM_MEET_BYTES, "halving and ring meet", relative=1e-6, look="where the difference of two lines is 0")
never = check.call(crossover, "two-level", "ring", FAST, SLOW)
check.equal(never, None, "two-level and ring on these links", look="sizes of 0 and below")

# %% check="q5-hidden" points=6
# Other prices; among them, links that are all alike.
### BEGIN HIDDEN TESTS
free = (0.0, 2.0**-34, 0.0, 2.0**-31)  # messages cost nothing: all lines meet at 0, without a rounding
for a, b, c, d in ((1e-6, 1e-11, 1e-6, 1e-11), (3e-6, 2e-12, 5e-5, 8e-10), (1e-5, 1e-9, 1e-6, 1e-8), free):
    inside, cable = predict.Link(Seconds(a), b), predict.Link(Seconds(c), d)
    lines = {
        "ring": (TERM_ROUNDS * c, TERM_ROUNDS / TERM_RANKS * d),
        "halving": (TERM_INSIDE * a + 2 * c, 2 * (TERM_LATER) * b + TERM_NODE * d),
        "two-level": (TERM_INSIDE * a + c, 2 * (TERM_HALVES) * b + d),
    }
    for name, (start, slope) in lines.items():
        for n in (8, 4096, 10**9):
            took = check.call(predict_seconds, name, n, inside, cable)
            check.close(took, start + slope * n, f"{name}, {n} bytes", relative=1e-9)
    for one, other in (("ring", "two-level"), ("ring", "halving"), ("halving", "two-level")):
        (start, slope), (start_2, slope_2) = lines[one], lines[other]
        meet = (start_2 - start) / (slope - slope_2) if abs(slope - slope_2) > 1e-18 else 0.0
        found = check.call(crossover, one, other, inside, cable)
        if meet > 0:
            check.close(found, meet, f"{one} and {other} meet", relative=1e-6)
        else:
            check.equal(found, None, f"{one} and {other} never meet")
# Sentences of the contract, and the known-wrong answers that break them.
#= `predict_seconds | a_cable_for_each_rank
#= `crossover(first | a_crossing_below_zero
#= (Both are straight | - advice
#= You know two | - advice
#= Seconds of an | a_cable_for_each_rank
#= Bytes, above 0 | a_crossing_below_zero lines_that_meet_at_zero
#= None if they | a_crossing_below_zero
### END HIDDEN TESTS

# %% [markdown]
# ## What to keep
#
# Look at your last figure once more, and then at the two prices behind it. On equal links the halves of halves are as
# good as an all-reduce gets: the ring's bytes, the tree's messages. Put a slow cable in the middle, and the same
# algorithm becomes the worst of the three for large tensors, because it knows nothing of the machine. Your two-level
# one knows exactly one thing, where the cable is, and that was enough.
#
# **Change one thing.** Set `SLOW = FAST` in the cell of the figure. Two lines cross that did not cross before. Why
# does the ring win for large tensors there? (Count its bytes. Then remember what our model says about the cable.)
#
# Libraries do this in earnest. NCCL and its relatives look for the fast links when they start, and choose among
# several algorithms by size. When somebody tells you that all-reduce takes so-and-so long, ask: of what size, over
# which links?
