# %% [markdown]
# # Lab 15 · No token lost, none twice
#
# **The question:** a run reads for months, dies every few hours, and comes back on another number of GPUs. How does it
# know where it was, without having kept a list?
#
# | | |
# |---|---|
# | Time | about 90 minutes |
# | Builds on | lesson 15: the order as a function, mixtures, packing, workers |
# | You write | four functions and a class, none longer than 20 lines |
# | A GPU | changes nothing here |
#
# | question | | points |
# |---|---|---|
# | 1 | An order that nobody keeps | 20 |
# | 2 | Seven of these, three of those | 10 |
# | 3 | Neighbours in a row | 30 |
# | 4 | Killed anywhere | 40 |
#
# **The rules.** You may use all of Python, NumPy and torch. What is finished is out of bounds in your answers:
# `torch.utils.data` and the library's `course_lib.data`. A function leaves what it is given as it was, and draws no random
# numbers from the generators of Python, NumPy or torch, whose states belong to the run. No answer asks for the time, a
# process number, or the system's dice: what it says depends on its arguments alone, today and in another process. None
# keeps notes in a file or in the environment: the machine on which it goes on may be another one. And none
# looks at who calls it, or into a source, other than by reading from it. The checks look.
#
# A loader that reads everything again from the beginning arrives at the right place as well, and so does one that
# keeps a list of all windows in memory. So the checks count what your loader reads, at the source itself, they weigh
# what it holds, and they count the time of the processor, not the clock on the wall: a busy machine costs you nothing.
#
# Checks that you see here give you points and tell you what is wrong. More run when the lab is graded, on other
# sizes. Costs count only for answers that are right. Cells that show your answer at work fail until there
# is one. That costs nothing.
#
# Questions 1, 2 and 3 need no other. Question 4 builds on all of them.

# %%
import hashlib
import itertools
import math
import os
import sys
import tempfile
import threading
import time
import tracemalloc
from collections import Counter, deque
from contextlib import ExitStack, contextmanager, redirect_stdout
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

# %%
import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F

from course_kit import measure
from course_kit.checks import check
from course_kit.checks.held_bytes import held, outside_torch
from course_kit.compare import compare
from course_kit.notebook import ask
from course_kit.units import Bytes

# %%
FINISHED = ["torch.utils.data", "course_lib.data", "time", "datetime", "getpid", "uuid", "secrets", "urandom"]
FINISHED += [*check.CHANNELS, "np.save", "np.load", "_getframe", "currentframe", "f_back", "f_locals", "__closure__", "inspect", "gc", "ctypes"]
LIMIT_S = 4  # of the processor, for what takes a good answer less than a tenth of a second


# %% [markdown]
# ## 1 · An order that nobody keeps (20 points)
#
# The text lies in a file, cut into windows of equal length, and an epoch reads each window once, in an order that has
# nothing to do with that of the file. The usual way is to shuffle a list of all numbers, which takes 8 bytes for each
# window, in each process, and must be made again whenever the run starts.
#
# A *function* needs no list. You ask it "which window stands at place 7 of this order?", and it computes the answer
# from the place, the number of windows, and a *key* that names the order. A block cipher does just that: with its key it
# maps the numbers of a range one to one onto each other, and the result looks like chance. A Feistel network makes one
# of any function that scrambles: split the number's bits into two halves, left and right; replace (left, right)
# by (right, left XOR scramble(right)), and do it four times or more, with another scramble each time. Each such round can
# be undone, whatever the scramble is, so no two numbers end at the same place.
#
# That works for ranges of $2^{2k}$ numbers. If there are fewer windows, take the smallest such range that holds them all,
# and where the result is no window, apply the network once more, to the result. Such a walk never leads two places to
# the same window. (Black and Rogaway 2002 call it *cycle walking*.)
#
# For a scramble, `hashlib.blake2b` will do. It takes bytes and gives as many bytes as you like.
#
# **Your contract.** `shuffled(place, count, key)`
#
# - `count`: how many windows there are, an int from 1 to $10^{15}$. `place`: an int, 0 ≤ place < count.
# - `key`: a tuple of ints, one or more, each 0 or more and below $2^{63}$. They will be a seed, a source, an epoch.
# - Returns the window at this place, an int, 0 ≤ window < count. For each key and count, every window stands at exactly
# one place.
# - The order looks like chance: windows that stand side by side in the file stand anywhere in the order, at
# distances of all kinds. Two keys that differ, in one number or in the order of their numbers, give orders that have
# nothing to do with each other.
# - The same arguments give the same window, in every process and on every day.
# - It keeps no list: at most 32 KiB of memory, however many windows there are, and at most half a millisecond of the processor's time.
#
# **Graded:** each window once, without a list (6 points), the look of chance (6), and other keys and counts (8).

# %%
guess_list = ask("15.6 trillion tokens in windows of 8,192: a list of 8-byte window numbers takes how many GB?", unit="GB")


# %% answer="q1"
def shuffled(place, count, key):
    """The window at this place of the order that the key names."""
    ### BEGIN SOLUTION
    half = ((count - 1).bit_length() + 1) // 2
    mask = (1 << half) - 1
    while True:
        left, right = place >> half, place & mask
        for turn in range(4):
            told = hashlib.blake2b(repr((key, turn, right)).encode(), digest_size=8).digest()
            left, right = right, left ^ (int.from_bytes(told, "little") & mask)
        place = (left << half) | right
        if place < count:
            return place
    ### END SOLUTION


# %% [markdown]
# Ten windows in three epochs: the first number of the key is a seed, the second one the epoch.

# %%
for epoch in range(3):
    print(f"epoch {epoch}:", *[shuffled(place, 10, (1234, epoch)) for place in range(10)])


# %%
def places_of(places, count, key):
    """The windows at these places, asked for one after the other."""
    return [shuffled(place, count, key) for place in places]


def written_by(answer):
    """Whether an answer, and every function beside it in its cell, uses what it may."""
    answer = getattr(answer, "__wrapped__", answer)  # below a decorator
    cell, things = answer.__code__.co_filename, [*globals().values()]
    methods = [method for thing in things if type(thing) is type for method in vars(thing).values()]
    beside = [each for each in (*things, *methods) if getattr(getattr(each, "__code__", None), "co_filename", "") == cell]
    for each in {id(each): each for each in (answer, *beside)}.values():
        check.written_with(each, forbidden=FINISHED, look="the rules at the top of the lab: what an answer may not use")


# %%
def asked(places, count, key):
    """Like `places_of`, and each answer is an int of the range."""
    slow = "what is done for every window; and how long the walk is: the range must not be much larger than count"
    check.within(LIMIT_S, shuffled, 0, 1, (0,), look=slow)
    found = check.within(LIMIT_S, places_of, places, count, key, look=slow)
    for place, window in zip(places, found):
        what = f"shuffled({place}, {count}, {key}) is an int from 0 to {count - 1}"
        if type(window) is not int or not 0 <= window < count:
            look = "the walk: it goes on until the result is a window" if type(window) is int else "the type, not NumPy's"
            check.that(False, what, came=f"{type(window).__name__} {window!r}"[:100], look=look)
    return found


# %%
def check_each_once(count, key):
    """All places of an order; they are asked twice, the second time backwards."""
    order = asked(range(count), count, key)
    at, what = {}, f"{count} windows, key {key}: each at one place"
    for place, window in enumerate(order):
        if window in at:
            look = "what leads two numbers to the same one: a result that is cut or taken modulo count cannot be undone"
            check.that(False, what, came=f"places {at[window]} and {place} both have window {window}", look=look)
        at[window] = place
    backwards = check.call(places_of, range(count - 1, -1, -1), count, key)[::-1]
    look = "what an earlier call has left behind: an answer is made of its arguments alone"
    check.that(order == backwards, f"{what}, in whatever order they are asked for", look=look)
    return order


# %%
def check_no_list(count, key):
    """Bytes that Python and NumPy take at the worst moment, for some places among very many; also what they leave."""
    places = [count * number // 97 for number in range(97)]
    asked(places, count - 1, key)  # whatever a first call prepares, and one that never ends
    with measure.memory(lines=True) as record:
        found = places_of(places, count + 1, key)
    check.equal(len(set(found)), len(found), f"{count + 1:,} windows: 97 places have 97 windows", look="the size of the range")
    for calls in (5, 600):
        tracemalloc.start()
        try:
            for place in range(0, count, count // calls):
                shuffled(place, count, key)
            most = held(record) + tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        look = "what has an entry for each window, or for each call"
        check.at_most(Bytes(most), Bytes(32768), f"… bytes held at the worst moment of {calls} calls", look=look)


# %% check="q1-once" points=6
written_by(shuffled)
for count, key in {1: (5,), 2: (5,), 3: (0, 1), 16: (7, 0), 17: (7, 0), 1000: (1234, 3)}.items():
    _ = check_each_once(count, key)
check_no_list(2**20 + 7, (1234, 0, 1))
check_no_list(10**12, (1234, 0, 2))


# %%
def variety(numbers, count):
    """How many different numbers there are modulo `count`, as a share: about 0.63 of random ones."""
    return len({number % count for number in numbers}) / count


def check_distances(order, what):
    """Windows side by side in the order have distances of all kinds, and so have the distances."""
    count = len(order)
    steps = [later - earlier for earlier, later in itertools.pairwise(order)]
    turns = [later - earlier for earlier, later in itertools.pairwise(steps)]
    look = "a line a · place + b is no shuffle; each round needs a scramble that no formula of school describes"
    check.at_least(variety(steps, count), 0.5, f"{what}: different distances from one to the next, as a share", look=look)
    check.at_least(variety(turns, count), 0.5, "… and of the distances' own", look=look)


# %%
def check_spread(orders, what, parts=8):
    """Which part of the file stands in which part of the order: like chance, over some orders together."""
    met = np.zeros((parts, parts))
    for order in orders:
        for place, window in enumerate(order):
            met[place * parts // len(order), window * parts // len(order)] += 1
    expected = met.sum() / parts**2
    far = float(((met - expected) ** 2 / expected).sum())
    worst = np.unravel_index(np.abs(met - expected).argmax(), met.shape)
    came = f"part {worst[0]} of the order has {met[worst]:.0f} windows of part {worst[1]} of the file; by chance {expected:.0f}"
    look = "how far a window can get: a shuffle inside of a shard or of a buffer leaves it near its place"
    free = (parts - 1) ** 2
    good = far <= free + 7 * math.sqrt(2 * free)
    check.that(good, f"{what}: each part of the file is everywhere", expected="like chance", came=came, look=look)


# %%
def check_apart(count, key, other):
    """Two keys: neither is the other order moved along, nor a relabelling by a shift."""
    (one, two), what = (asked(range(count), count, each) for each in (key, other)), f"keys {key} and {other}"
    at = {window: place for place, window in enumerate(one)}
    look = "whether each number of the key, and its place in the key, reaches the scramble"
    check.that(one != two, f"{what}: two orders", came="the same one", look=look)
    look = "where the key enters: into the scramble of each round, not as a shift of the place or of the window"
    shifts = {"windows": [b - a for a, b in zip(one, two)], "places": [at[b] - n for n, b in enumerate(two)]}
    for name, numbers in shifts.items():
        check.at_least(variety(numbers, count), 0.5, f"{what}: different shifts of {name}, as a share", look=look)


# %% check="q1-chance" points=6
orders = [check_each_once(1000, key) for key in [(1234, 0), (1234, 1), (1235, 0), (0, 1234)]]
check_spread(orders, "1000 windows, four keys")
for key, order in zip(["(1234, 0)", "(1235, 0)"], orders[::2]):
    check_distances(order, f"1000 windows, key {key}")
for other in [(1234, 1), (1235, 0), (0, 1234)]:
    check_apart(1000, (1234, 0), other)

# %% check="q1-hidden" points=8
# Other counts and keys, very many windows, few windows, and another process.
### BEGIN HIDDEN TESTS
#: other counts and keys
check_no_list(3000, (3, 1))
hidden_rng = np.random.default_rng(15)
for hidden_count in (4, 5, 31, 64, 65, 255, 256, 257, 1023, 4097):
    hidden_key = tuple(hidden_rng.integers(0, 2**63, size=1 + hidden_count % 4).tolist())
    _ = check_each_once(hidden_count, hidden_key)
hidden_keys = [(9, 0, 0), (9, 0, 1), (9, 1, 0), (10, 0, 0), (0, 0, 9), (9 + 2**32, 0, 0), (9 + 2**62, 0, 0), (90, 0, 0)]
for hidden_size in (1024, 777):
    hidden_orders = [asked(range(hidden_size), hidden_size, hidden_key) for hidden_key in hidden_keys]
    check_spread(hidden_orders, f"{hidden_size} windows, {len(hidden_keys)} keys")
    for hidden_key, hidden_order in zip(hidden_keys, hidden_orders):
        check_distances(hidden_order, f"{hidden_size} windows, key {hidden_key}")
    for hidden_key in hidden_keys[1:]:
        check_apart(hidden_size, hidden_keys[0], hidden_key)
check_apart(900, (1, 23), (12, 3))
check_apart(900, (2, 1, 0), (1, 2, 0))
check_apart(900, (3, 4), (4, 3))
#: very many windows
for hidden_count in (10**15, 2**40, 3 * 2**33 + 1):
    check_no_list(hidden_count, (4, hidden_count % 7))
    hidden_found = asked(range(5000), hidden_count, (8, 1))
    check.equal(len(set(hidden_found)), 5000, f"{hidden_count} windows: 5,000 places", look="the size of the range")
    hidden_bins = np.bincount([window * 16 // hidden_count for window in hidden_found], minlength=16)
    hidden_far = float(((hidden_bins - 312.5) ** 2 / 312.5).sum())
    check.at_most(hidden_far, 15 + 7 * 30**0.5, "… spread over the file (chi-square)", look="the first places of the order")
#: few windows
hidden_all = Counter(tuple(places_of(range(4), 4, (6, epoch))) for epoch in range(1500))
check.at_least(len(hidden_all), 22, "orders of 4 windows in 1,500 epochs, of 24", look="the number of rounds")
hidden_five = Counter(tuple(places_of(range(2), 7, (epoch,))) for epoch in range(4200))
check.at_least(len(hidden_five), 42, "first two windows of 7 in 4,200 epochs, of 42 pairs", look="the number of rounds")
check.at_least(min(hidden_five.values()), 50, "… the rarest pair's number; 100 by chance", look="the number of rounds")
for hidden_count in (2, 3, 5, 17):
    hidden_last = {window for epoch in range(300) for window in asked([hidden_count - 1], hidden_count, (epoch,))}
    hidden_what = f"{hidden_count} windows: those that stand at the last place in 300 epochs"
    check.equal(len(hidden_last), hidden_count, hidden_what, look="the range: it holds all places, and every round reaches all of it")
#: another process
hidden_there = check.on_ranks(places_of, range(300), 300, (5, 6, 7), world_size=2)
for hidden_rank in (0, 1):
    hidden_here = places_of(range(300), 300, (5, 6, 7))
    hidden_look = "what differs between processes: hash() of text, an address, the clock"
    check.that(hidden_there[hidden_rank] == hidden_here, "the same order in another process", look=hidden_look)
# Sentences of the contract, and the known-wrong answers that break them.
#= `count`: how many windows | sixteen_bits
#= `place`: an int | - what is given
#= `key`: a tuple of ints | key_in_32_bits
#= They will be a seed | - a remark
#= Returns the window at this place, an int | window_of_numpy
#= For each key and count | remainder_instead_of_the_walk
#= The order looks like chance | inside_of_shards a_line two_rounds
#= Two keys that differ | first_number_of_the_key digits_run_together key_is_a_beginning sorted_key
#= The same arguments give | hash_of_a_text number_of_the_process
#= It keeps no list | a_list_of_all answers_are_kept a_list_of_few
#= The window at this place of the order | key_is_a_beginning
### END HIDDEN TESTS

# %% [markdown]
# Llama 3 read 15.6 trillion tokens in windows of 8,192 (Dubey et al. 2024, §3.4). What would the list have been?

# %%
windows = 15_600_000_000_000 // 8192
million = np.random.default_rng(0).permutation(10**6).nbytes
compare(guess=guess_list, predicted=Bytes(8 * windows), measured=Bytes(million * windows // 10**6), tolerance=0.001, name="a list")

# %% [markdown]
# ## 2 · Seven of these, three of those (10 points)
#
# A corpus has parts of different worth: let seven of ten samples come from one source and three from another. Whoever
# throws dice for each sample is off by about $\sqrt{n}$ after n samples, and must remember all throws to know how far
# each source has been read. The exact way needs no memory. After n samples the first source has had its share of them,
# rounded to a whole number. So sample n belongs to it if this number grows from n to n + 1.
#
# (That is the method of the *largest remainder*: both get their share rounded down, and if one sample is left, it goes
# to the larger rest. With two sources nothing else is needed. With three, this method can take a seat back when the
# house grows, as the state of Alabama learned in 1880.)
#
# **Your contract.** `source_of(sample, weights)`
#
# - `sample`: an int, 0 or more, up to $10^{15}$. `weights`: a tuple of two ints $(a, b)$, each 0 or more and below
# $10^6$, not both 0.
# - Returns a tuple of two ints, `(source, number)`: the source, 0 or 1, that this sample comes from, and how many samples came
# from this source before.
# - Of the first n samples, for every n, source 0 has $n\,a/(a+b)$, rounded to the nearest int, halves up. All the
# others are source 1's.
# - The time does not grow with `sample`.
#
# **Graded:** by hand (5 points), and other weights and later samples (5).


# %% answer="q2"
def source_of(sample, weights):
    """(source, how many samples came from this source before)."""
    ### BEGIN SOLUTION
    whole = sum(weights)
    before, after = ((2 * n * weights[0] + whole) // (2 * whole) for n in (sample, sample + 1))
    return (0, before) if after > before else (1, sample - before)
    ### END SOLUTION


# %%
print("seven to three:", *[f"{'AB'[source]}{number}" for source, number in (source_of(n, (7, 3)) for n in range(20))])


# %%
def sources_of(samples, weights):
    """The answers for these samples, one after the other."""
    return [source_of(sample, weights) for sample in samples]


# %%
def check_mixture(samples, weights, right):
    slow = "what is done for every sample before this one: the first count can be computed"
    check.within(LIMIT_S / 4, source_of, 0, (1, 1), look=slow)
    found = check.within(LIMIT_S / 4, sources_of, samples, weights, look=slow)
    for sample, came, (source, number) in zip(samples, found, right):
        good = type(came) is tuple and len(came) == 2 and all(type(each) is int for each in came)
        if not good or came != (source, number):
            look = "the contract: a tuple of two ints"
            if good and came[0] == source:
                look = "what the number counts: earlier samples of this source alone"
            elif good:
                earlier, later = sample - number if source else number, (sample - number if source else number + 1)
                look = f"the share of source 0 of the first {sample} and of the first {sample + 1} samples, rounded: {earlier} and {later}"
                look += "; floats are rounded before you round them" if sample > 10**6 else ""
            expected = "" if sample > 10**6 else f"a sample of source {source}"
            check.that(False, f"sample {sample} with weights {weights}", expected=expected, came=str(came)[:100], look=look)
    what = f"samples {samples[0]} to {samples[-1]} with weights {weights}"
    check.equal(found, right, what, look="the contract")


# %% check="q2-shares" points=5
written_by(source_of)
TENTHS = [(0, 0), (1, 0), (0, 1), (0, 2), (0, 3), (1, 1), (0, 4), (0, 5), (1, 2), (0, 6)]
check_mixture(range(10), (7, 3), TENTHS)
check_mixture(range(20, 30), (7, 3), [(source, number + (6 if source else 14)) for source, number in TENTHS])
check_mixture(range(4), (1, 1), [(0, 0), (1, 0), (0, 1), (1, 1)])
check_mixture(range(3), (0, 5), [(1, 0), (1, 1), (1, 2)])
check_mixture([10**12], (7, 3), [(0, 7 * 10**11)])

# %% check="q2-hidden" points=5
# Other weights, and later samples.
### BEGIN HIDDEN TESTS
def hidden_mixture(samples, weights):
    """By fractions of whole numbers."""
    for sample in samples:
        shares = [divmod(n * weights[0], sum(weights)) for n in (sample, sample + 1)]
        first, second = (whole + (2 * rest >= sum(weights)) for whole, rest in shares)
        yield (0, first) if second > first else (1, sample - first)


#: other weights
for hidden_weights in [(1, 2), (2, 1), (3, 0), (1, 4), (5, 3), (999_999, 1), (1, 999_999), (10, 4), (271_828, 314_159)]:
    for hidden_start in (0, 500_000 - 20):
        hidden_samples = range(hidden_start, hidden_start + 60)
        check_mixture(hidden_samples, hidden_weights, [*hidden_mixture(hidden_samples, hidden_weights)])
#: later samples
for hidden_weights in [(7, 3), (1, 3), (123_457, 654_321)]:
    hidden_samples = range(10**15 - 40, 10**15)
    check_mixture(hidden_samples, hidden_weights, [*hidden_mixture(hidden_samples, hidden_weights)])
# Sentences of the contract, and the known-wrong answers that break them.
#= `sample`: an int | in_floats
#= `weights`: a tuple of two | no_weight_is_0
#= Returns a tuple of two ints | number_of_both a_list_of_two
#= Of the first n samples | halves_to_even rounded_down
#= All the others are | number_of_both
#= The time does not grow | counts_them_all
#= (source, how many samples | number_of_both
### END HIDDEN TESTS

# %% [markdown]
# ## 3 · Neighbours in a row (30 points)
#
# Documents are ragged, rows are not. So all documents of a source lie end to end, an *end token* behind each, and a
# window is cut wherever it falls: it may hold the rest of one document, two whole ones, and the beginning of a fourth. No
# place in the row is wasted. But neighbours in a row know nothing of each other, and must not. Each document counts
# its positions from 0, each token attends to its own document alone, and nobody is asked to guess the first token of
# the *next* document.
#
# The last window of a source is shorter than the others. Its row is filled up with padding, and the rest of the model
# has to know: nothing is predicted there, nobody attends to it.
#
# **Your contract.** `pack(window, seq, end)`
#
# - `window`: a NumPy array of ints, of any int dtype, signed or not (all numbers fit in 63 bits); perhaps read-only, perhaps of a memory map. It holds the `seq` tokens
# of the row and the one that comes after them in the source. At the end of the source there are fewer: 1 to `seq`.
# Then all are tokens of the row, and nothing comes after them.
# - `end`: the end token, an int. It belongs to the document that it ends.
# - Returns four tensors `[seq]`, int64, in memory of their own:
#     - `tokens`, then padding: more of `end`;
#     - `targets`: for each token the one after it; −100 where there is none: behind an end token begins another document, and padding
#     predicts nothing;
#     - `positions`: from 0 in each document, and from 0 at the beginning of the row, also where a document goes on from an earlier row. 0 on padding;
#     - `documents`: 0 for the first document in the row, 1 for the second, and so on. −1 on padding.
# - It does not walk through tokens in Python: its processor time is at most that of 100 additions `x + 1` to an int64 tensor `[seq]`, for long
# rows with documents of a thousand tokens.
#
# **And** `may_attend(documents)`
#
# - `documents`: `[..., seq]`, as above, with any number of dims in front, int64.
# - Returns bool `[..., seq, seq]`: whether the token of the row (second to last dim) attends to that of the column (last dim). It attends to itself and to earlier
# tokens of its own document. Padding attends to itself, so that no softmax is empty, and to nothing else, and no token attends to
# padding.
#
# **Graded:** rows by hand (9 points), who attends to whom (9), time (3), and other rows (9).


# %% answer="q3"
def pack(window, seq, end):
    """(tokens, targets, positions, documents), each [seq]."""
    ### BEGIN SOLUTION
    given = torch.from_numpy(np.array(window, dtype=np.int64))
    n = min(len(given), seq)
    tokens, targets, positions, documents = (torch.full((seq,), filler) for filler in (end, -100, 0, -1))
    tokens[:n] = given[:n]
    ends = tokens[:n] == end
    targets[: len(given) - 1] = given[1:]
    targets[:n][ends] = -100
    documents[:n] = ends.cumsum(0) - ends.long()
    places, first = torch.arange(n), torch.zeros(n, dtype=torch.int64)
    first[1:] = torch.where(ends[:-1], places[1:], 0)
    positions[:n] = places - first.cummax(0).values
    return tokens, targets, positions, documents
    ### END SOLUTION


def may_attend(documents):
    """Whether the token of each row attends to that of each column: [..., seq, seq]."""
    ### BEGIN SOLUTION
    same = documents[..., :, None] == documents[..., None, :]
    real = (documents >= 0)[..., None, :]
    return (same & real).tril() | torch.eye(documents.shape[-1], dtype=torch.bool)
    ### END SOLUTION


# %%
row = pack(np.array([5, 6, 0, 7, 8, 9, 0, 4], dtype=np.uint16), 10, 0)
for name, tensor in zip(("tokens", "targets", "positions", "documents"), row):
    print(f"{name:>9}:", *[f"{number:4}" for number in tensor.tolist()])
for line in may_attend(row[-1]).tolist():
    print("".join("█" if attends else "·" for attends in line))

# %%
NAMES = ("tokens", "targets", "positions", "documents")
LOOKS = {
    "tokens": "the first seq tokens of the window, then the end token",
    "targets": "what is behind an end token, behind the last token of the source, and on padding; and the token behind the row",
    "positions": "where a document begins: behind an end token, not on it",
    "documents": "whose the end token is, and what padding gets",
}


# %%
def check_pack(window, seq, end, right, dtype=np.uint16, what=""):
    """Four tensors, as they should be."""
    given = np.array(window, dtype=dtype)
    given.flags.writeable = False
    came = check.call(pack, given, seq, end)
    what = what or f"the row of {given.tolist()}, seq {seq}, end {end}"
    fits = isinstance(came, tuple | list) and len(came) == 4 and all(isinstance(each, torch.Tensor) for each in came)
    check.that(fits, f"{what}: four tensors", came=type(came).__name__, look="what pack returns")
    for name, tensor, numbers in zip(NAMES, came, right):
        check.equal(tensor, torch.tensor(numbers, dtype=torch.int64), f"… {name}", look=LOOKS[name])
    places = [each.untyped_storage().data_ptr() for each in came]
    check.equal(len(set(places)), 4, "… in memory of their own", look="what shares memory: view, expand, slices of one")
    return came


# %%
def with_limit(window, seq, end):
    return check.within(LIMIT_S, pack, window, seq, end, look="what is done for each token in Python")


# %% check="q3-rows" points=9
written_by(pack)
x = -100
check_pack([5, 6, 0, 7, 8, 9], 5, 0, ([5, 6, 0, 7, 8], [6, 0, x, 8, 9], [0, 1, 2, 0, 1], [0, 0, 0, 1, 1]))
check_pack([5, 6, 0, 7], 6, 0, ([5, 6, 0, 7, 0, 0], [6, 0, x, x, x, x], [0, 1, 2, 0, 0, 0], [0, 0, 0, 1, -1, -1]))
check_pack([3, 3, 4, 9], 3, 9, ([3, 3, 4], [3, 4, 9], [0, 1, 2], [0, 0, 0]), np.int64)
check_pack([9, 9, 0, 9, 7], 4, 9, ([9, 9, 0, 9], [x, x, 9, x], [0, 0, 0, 1], [0, 1, 2, 2]), np.int32)
check_pack([60000, 7, 50256], 3, 50256, ([60000, 7, 50256], [7, 50256, x], [0, 1, 2], [0, 0, 0]))
check_pack([8], 2, 9, ([8, 9], [x, x], [0, 0], [0, -1]))


# %%
def check_mask(documents, right):
    given = torch.tensor(documents)
    came = check.call(may_attend, given)
    what = f"documents {given.tolist()}" if given.numel() < 12 else f"who attends, documents {list(given.shape)}"
    look = "the contract: bool, a row for the token that attends, a column for the one that it attends to"
    if isinstance(came, torch.Tensor) and came.dtype == torch.bool and came.shape == (*given.shape, given.shape[-1]):
        wrong = came != torch.tensor(right, dtype=torch.bool).view(came.shape)
        if wrong.any():
            *_, reader, told = wrong.nonzero()[0].tolist()
            look = f"token {reader} {'attends' if came[wrong][0] else 'does not attend'} to token {told}: whose are they, and which comes first?"
    check.equal(came, torch.tensor(right, dtype=torch.bool).view(*given.shape, given.shape[-1]), what, look=look)


# %%
def attended(documents, wanted, width=4):
    """The gradient of each token's value, by what PyTorch's own attention says at the `wanted` places."""
    n = len(documents)
    q, k, v = torch.randn(3, n, width, dtype=torch.float64, generator=torch.Generator().manual_seed(n))
    leaves = [each.requires_grad_() for each in (q, k, v)]
    mask = check.call(may_attend, documents)
    said = F.scaled_dot_product_attention(*(each[None] for each in leaves), attn_mask=mask)[0]
    check.that(bool(said.isfinite().all()), "attention is finite, also on padding", look="a row without any True: 0 / 0")
    said[wanted].sum().backward()
    return leaves[1].grad.abs().sum(1) + leaves[2].grad.abs().sum(1)


# %% check="q3-mask" points=9
written_by(may_attend)
check_mask([0, 0, 1, 1], [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]])
check_mask([0, 1, -1, -1], [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]])
check_mask([[0, 1], [0, 0]], [[[1, 0], [0, 1]], [[1, 0], [1, 1]]])
pieces = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, -1, -1])
for document in (0, 1, 2):
    own = pieces == document
    grads = attended(pieces, own)
    check.equal(float(grads[~own].sum()), 0.0, f"gradient of document {document}'s loss outside of it", look="the mask")
    check.that(bool((grads[own] > 0).all()), "… and inside of it there is one everywhere", look="the mask")


# %%
def cpu_s(job, times=3):
    """Seconds of this process on a processor, at best."""
    best = math.inf
    for _ in range(times):
        start = time.process_time()
        job()
        best = min(best, time.process_time() - start)
    return best


def ratio_of(job, line, limit, tries=6):
    """CPU time of a job over that of the line that it is held against, taken by turns; the best of some tries."""
    best = math.inf
    for _ in range(tries):
        best = min(best, cpu_s(job) / max(cpu_s(line), 1e-6))
        if best <= limit:
            break
    return best


# %%
def check_pack_time(seq, every, limit=100):
    window = np.arange(1, seq + 2).astype(np.uint16)
    window[::every] = 0
    numbers = torch.arange(seq)
    with redirect_stdout(None):
        with_limit(window, seq, 0)
    found = ratio_of(lambda: pack(window, seq, 0), lambda: [numbers + 1 for _ in range(limit)], 1.0)
    look = "what is done for each token in Python: cumsum and cummax walk through a row in one call"
    check.at_most(limit * found, float(limit), f"a row of {seq} tokens: its CPU time, in additions", look=look)


# %% check="q3-time" points=3
check_pack([5, 6, 0, 7, 8, 9], 5, 0, ([5, 6, 0, 7, 8], [6, 0, x := -100, 8, 9], [0, 1, 2, 0, 1], [0, 0, 0, 1, 1]))
check_pack_time(30_000, 1000)

# %% check="q3-hidden" points=9
# Other rows, other dtypes, and rows in memory that somebody else changes; masks of many rows.
### BEGIN HIDDEN TESTS
def hidden_row(window, seq, end):
    """Token by token."""
    columns, document, position = ([], [], [], []), 0, 0
    for place in range(seq):
        if place >= len(window):
            entry = (end, -100, 0, -1)
        else:
            token, has_next = window[place], place + 1 < len(window)
            entry = (token, window[place + 1] if has_next and token != end else -100, position, document)
            position, document = (0, document + 1) if token == end else (position + 1, document)
        for column, number in zip(columns, entry):
            column.append(number)
    return columns


#: other rows
hidden_rng = np.random.default_rng(3)
for hidden_turn in range(40):
    hidden_seq, hidden_end = int(hidden_rng.integers(1, 40)), int(hidden_rng.integers(0, 12))
    hidden_n = hidden_seq + 1 if hidden_turn % 2 else int(hidden_rng.integers(1, hidden_seq + 1))
    hidden_window = hidden_rng.integers(0, 12, size=hidden_n)
    hidden_window[hidden_rng.random(hidden_n) < (hidden_turn % 3) / 5] = hidden_end
    check_pack(hidden_window, hidden_seq, hidden_end, hidden_row(hidden_window.tolist(), hidden_seq, hidden_end))
#: other dtypes
for hidden_dtype, hidden_top in {np.uint32: 2**32 - 1, np.uint64: 2**53 + 1, np.int64: 2**62 + 1, np.int8: 127, np.int16: 99}.items():
    hidden_window = [hidden_top, 1, 0, hidden_top, hidden_top - 1]
    check_pack(hidden_window, 4, 0, hidden_row(hidden_window, 4, 0), hidden_dtype)
    check_pack(hidden_window, 4, hidden_top, hidden_row(hidden_window, 4, hidden_top), hidden_dtype)
    check_pack([1, 2, 1], 9, 1, hidden_row([1, 2, 1], 9, 1), hidden_dtype)
#: rows in memory that somebody else changes
for hidden_n in (4, 5):
    hidden_window = np.arange(1, hidden_n + 1)
    hidden_came = check.call(pack, hidden_window, 4, 0)
    hidden_window[:] = 77
    hidden_right = hidden_row(list(range(1, hidden_n + 1)), 4, 0)
    for hidden_name, hidden_tensor, hidden_numbers in zip(NAMES, hidden_came, hidden_right):
        check.equal(hidden_tensor, torch.tensor(hidden_numbers), f"{hidden_name}, when the window has changed", look="views of the window")
    for hidden_tensor in hidden_came:
        hidden_tensor.fill_(-7)
    check.equal(hidden_window.tolist(), [77] * hidden_n, "the window, when the row has changed", look="views of the window")
_ = check_pack(np.arange(20)[::3], 6, 9, hidden_row(np.arange(20)[::3].tolist(), 6, 9), np.int64)
check_pack_time(25_000, 900)
#: masks of many rows
hidden_documents = torch.tensor([hidden_row(hidden_rng.integers(0, 4, size=5 + n % 6).tolist(), 9, 0)[3] for n in range(12)])
hidden_right = [[[i == j or (i >= j and a == b >= 0) for j, b in enumerate(row)] for i, a in enumerate(row)] for row in hidden_documents.tolist()]
check_mask(hidden_documents.tolist(), hidden_right)
check_mask(hidden_documents.view(3, 4, 9).tolist(), hidden_right)
check_mask([300] * 2 + [301] * 2 + [-1], [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 1, 1, 0], [0, 0, 0, 0, 1]])
check_mask([5, 5 + 2**8, 5 + 2**16, 2**24, 2**24 + 1, -1], torch.eye(6).tolist())
check_mask([-1], [[1]])
# Sentences of the contract, and the known-wrong answers that break them.
#= `window`: a NumPy array | short_ints through_floats
#= It holds the `seq` tokens | no_token_behind
#= At the end of the source | short_window_loses_a_token
#= Then all are tokens | short_window_loses_a_token
#= `end`: the end token | end_token_is_0
#= It belongs to the document | end_token_begins
#= Returns four tensors | row_is_a_view
#= `tokens`, then padding | padded_with_0
#= `targets`: for each token | target_across no_token_behind
#= `positions`: from 0 | positions_go_on
#= `documents`: 0 for the first | end_token_begins padding_is_text
#= It does not walk through | token_by_token
#= *And** `may_attend(documents)` | - a name
#= `documents`: `[..., seq]` | one_row_at_a_time documents_in_8_bits
#= Returns bool | additive_mask
#= It attends to itself | not_causal one_token_leaks
#= Padding attends to itself | padding_attends_to_nothing padding_is_a_document
#= (tokens, targets, positions, documents) | row_is_a_view
#= Whether the token of each row | not_causal
### END HIDDEN TESTS

# %% [markdown]
# ## 4 · Killed anywhere (40 points)
#
# Now put the three together. A *sample* is a row, and all samples of the run have a number, from 0 on. Sample n comes
# from a source, by question 2. There it is the k-th, so it belongs to epoch k // windows of that source, and stands at
# place k % windows of that epoch's order, by question 1. The window is cut and packed, by question 3. So what sample n *is*
# depends on n alone. Which rank asks, how many ranks there are, and which of its workers gets the job, are nobody's
# business.
#
# Step after step the run takes the next `batch` samples. An epoch ends where it ends, perhaps in the middle of a batch. The next sample is then the
# first of the next epoch. Nothing is dropped, nothing is repeated to fill a batch.
#
# Then the machine dies. What must have been saved? Not what the workers have *made*: they run ahead, and what lies
# in their queues dies with them. Only what the model has *used* counts. So each batch carries the state of a run that has used it. The
# training loop saves the state of its last batch with the weights, and later hands it to a new loader, in a new process, on a
# new number of ranks.
#
# **Your contract.** `Loader(sources, weights, batch, seq, end, seed)`
#
# - `sources`: two. `len(source)` is its number of tokens, 1 or more; `source[a:b]` reads the tokens from a to b, a NumPy array (clipped
# at the end, as slices are). It knows nothing else. Each has windows of `seq` tokens, the last one perhaps shorter.
# - `weights`: as in question 2. `batch`: samples of all ranks together in a step. `end`: the end token. `seed`: an int, 0 or more, below $2^{63}$.
# - `row(sample)` returns the four tensors of question 3 for one sample of the run, `[seq]` each. It may be asked for any sample at any time.
# - `batches(rank, world_size, state=b"", worker=0, workers=1)` returns an iterator without an end, of `Batch`es of *this rank* and
# *this worker*. It goes on behind `state`, or begins.
# - Rank r has the rows from `r * batch // world_size` to `(r + 1) * batch // world_size` of each batch; perhaps none: tensors `[0, seq]`. Worker w of W makes
# the steps w, w + W, w + 2W … of this iterator's, counted from 0 behind `state`.
# - A `Batch` has the four tensors, `[rows, seq]`, and a `state`: bytes, at most 100. It is the same on all ranks.
# Whoever goes on from it gets the sample behind the last one of that whole step, of all ranks. A state serves every loader with the same sources, weights,
# seq, end and seed: with another `batch`, too, on any number of ranks and workers, as often as one likes. An older one leads back.
# - The orders of two epochs, of the two sources, and of two seeds have nothing to do with each other.
# - A loader may give many iterators at once, and each goes its own way. A batch that has been handed out stays as it is.
#
# **Costs.** A new loader reads nothing, and each batch reads the rows of its rank and its worker alone, at most `seq + 1` tokens for each, also right behind a state, however late. Nothing is skipped
# by making it. The loader holds at most 4 batches (of its rank, as tensors) and 256 KiB. Its CPU time is at most twice
# that of a line which takes the same windows, in the order of the file, from a memory map, and packs them by your own `pack`.
#
# **Graded:** each window once an epoch, on all ranks (10 points), killed (10), costs (10), and other runs (10).


# %%
class Batch(NamedTuple):
    """A rank's rows of one step, and what to save when they are used."""

    tokens: torch.Tensor
    targets: torch.Tensor
    positions: torch.Tensor
    documents: torch.Tensor
    state: bytes


# %% answer="q4"
class Loader:
    """Batches of two sources, from any state, for any rank and worker."""

    def __init__(self, sources, weights, batch, seq, end, seed):
        """Reads nothing yet."""
        ### BEGIN SOLUTION
        self.sources, self.weights, self.batch = sources, weights, batch
        self.seq, self.end, self.seed = seq, end, seed
        self.windows = [-(-len(source) // seq) for source in sources]
        ### END SOLUTION

    def row(self, sample):
        """The four tensors [seq] of one sample of the run."""
        ### BEGIN SOLUTION
        source, number = source_of(sample, self.weights)
        epoch, place = divmod(number, self.windows[source])
        first = shuffled(place, self.windows[source], (self.seed, source, epoch)) * self.seq
        return pack(self.sources[source][first : first + self.seq + 1], self.seq, self.end)
        ### END SOLUTION

    def batches(self, rank, world_size, state=b"", worker=0, workers=1):
        """An iterator over this rank's and this worker's batches, behind `state`."""
        ### BEGIN SOLUTION
        used = int(state or b"0")
        low, high = (each * self.batch // world_size for each in (rank, rank + 1))
        for step in itertools.count(worker, workers):
            start = used + step * self.batch
            columns = [torch.empty(high - low, self.seq, dtype=torch.int64) for _ in range(4)]
            for place in range(high - low):
                for column, numbers in zip(columns, self.row(start + low + place)):
                    column[place] = numbers
            yield Batch(*columns, str(start + self.batch).encode())
        ### END SOLUTION


# %% [markdown]
# The checks bring sources that count what is read, and a cluster that dies. Its ranks and workers run ahead of what is
# used, by `ahead` batches each, so at each death some lie in queues.


# %%
def source(read, n_tokens, ledger):
    """A source whose tokens `read(a, b)` makes; `ledger` gets the number of tokens of each reading."""

    class Source:
        def __len__(self):
            return n_tokens

        def __getitem__(self, places):
            if not isinstance(places, slice) or places.step not in (None, 1):
                raise TypeError(f"a source has slices source[a:b] and nothing else, not [{places!r}]")
            a, b, _ = places.indices(n_tokens)
            ledger.append(max(0, b - a))
            return read(a, max(a, b))

    return Source()


# %%
def of_array(numbers, ledger=None):
    """A source with these tokens, which nobody can write to."""
    numbers.flags.writeable = False
    return source(lambda a, b: numbers[a:b], len(numbers), [] if ledger is None else ledger)


# %%
def ragged(n_tokens, first, longest, dtype=np.uint16, closed=True):
    """Tokens first, first + 1, … with an end token 0 behind each document: no two windows are alike."""
    numbers, place, lengths = np.arange(first, first + n_tokens).astype(dtype), -1, np.random.default_rng(n_tokens)
    while (place := place + int(lengths.integers(2, longest + 2))) < n_tokens:
        numbers[place] = 0
    if closed:
        numbers[-1] = 0
    return numbers


# %%
class Run(NamedTuple):
    """The sources' tokens, and a loader's arguments."""

    texts: tuple
    weights: tuple = (7, 3)
    batch: int = 6
    seq: int = 8
    seed: int = 1234
    end: int = 0

    def loader(self, batch=0):
        """A new loader with new sources, as in a new process."""
        sources = [of_array(text.copy()) for text in self.texts]
        return check.call(Loader, sources, self.weights, batch or self.batch, self.seq, self.end, self.seed)


def small(sizes=(101, 53), **others):
    """A run on some ragged tokens."""
    texts = tuple(ragged(size, 1 + 20_000 * number, 11) for number, size in enumerate(sizes))
    return Run(texts, **others)


# %%
class Segment(NamedTuple):
    """One life of a run: so many steps on so many ranks; 0: the run's own batch."""

    steps: int
    world_size: int = 1
    workers: int = 1
    ahead: int = 0
    batch: int = 0


# %%
def check_kind(good, what, came, look):
    """Like `check.that`, and silent where it holds."""
    if not good:
        check.that(False, what, came=came, look=look)


# %%
class Stream(NamedTuple):
    """The batches of a rank's worker, with a name for messages."""

    name: str
    batches: object

    def __repr__(self):
        return self.name


def stream_of(loader, rank, world_size, state=b"", worker=0, workers=1):
    """An iterator of the answer's."""
    more = () if (state, worker, workers) == (b"", 0, 1) else (state, worker, workers)
    batches = check.call(loader.batches, rank, world_size, *more)
    check_kind(hasattr(batches, "__next__"), "batches returns an iterator", type(batches).__name__, "yield, or iter()")
    return Stream(f"rank {rank} of {world_size}, worker {worker} of {workers}, behind {state!r}", batches)


# %%
def following(stream):
    """The next batch."""
    for batch in stream.batches:
        return batch
    return check.that(False, f"{stream}: batches without an end", came="an end", look="what comes when an epoch is over: the next one")


# %%
def rows_of(batch, n_rows, seq, what):
    """The rows of a batch as tuples of four tuples, if it is what the contract says."""
    look = "what batches hands out: the class Batch stands above your answer"
    check_kind(type(batch) is Batch, f"{what}: a Batch", type(batch).__name__, look)
    for name, tensor in zip(NAMES, batch):
        good = isinstance(tensor, torch.Tensor) and tensor.dtype == torch.int64 and tensor.shape == (n_rows, seq)
        came = f"{tensor.dtype} {list(tensor.shape)}" if isinstance(tensor, torch.Tensor) else type(tensor).__name__
        look = "the rows of this rank, r * batch // world_size to (r + 1) * batch // world_size; perhaps none"
        check_kind(good, f"{what}: {name} is int64 [{n_rows}, {seq}]", came, look)
    good = type(batch.state) is bytes and len(batch.state) <= 100
    came = f"{type(batch.state).__name__}, {str(batch.state)[:60]}"
    check_kind(good, f"{what}: the state is bytes, at most 100", came, "what a run must know: it is very little")
    return [*zip(*(map(tuple, tensor.tolist()) for tensor in batch[:4]))]


# %%
def taken_from(streams, steps, ahead):
    """The batches of a rank's workers in turn; each runs ahead of what is used, the last one first."""
    queues, used = [deque() for _ in streams], []
    for step in range(steps):
        for stream, queue in [*zip(streams, queues)][::-1]:
            while len(queue) <= ahead:
                queue.append(following(stream))
        used.append(queues[step % len(streams)].popleft())
    return used


def one_rank(loader, rank, segment, state):
    """The batches that a rank uses in a segment."""
    steps, world_size, workers, ahead, _ = segment
    streams = [stream_of(loader, rank, world_size, state, worker, workers) for worker in range(workers)]
    return check.within(LIMIT_S, taken_from, streams, steps, ahead, look="what is done before a batch comes")


# %%
def live(run, segment, state):
    """(the rows of each step, of all ranks; the state behind each step), with a new loader for each rank."""
    size, batch = segment.world_size, segment.batch or run.batch
    with redirect_stdout(None):
        used = [one_rank(run.loader(batch), rank, segment, state) for rank in range(size)]
        steps, states = [], []
        for number, batches in enumerate(zip(*used)):
            what = f"step {number} behind the state {state!r}, {size} ranks with {segment.workers} workers, batch {batch}: "
            rows = []
            for rank, one in enumerate(batches):
                n_rows = (rank + 1) * batch // size - rank * batch // size
                rows += rows_of(one, n_rows, run.seq, f"{what}rank {rank}")
            steps.append(rows)
            states.append(batches[number % size].state)  # that of any rank will do
            look = "what a state counts: the samples of all ranks, of the whole step"
            check_kind(len({one.state for one in batches}) == 1, f"{what}all ranks have one state", str({one.state for one in batches})[:200], look)
    return steps, states


# %%
class Windows:
    """Which window a row is: by the row that `pack` makes of each."""

    def __init__(self, run):
        self.known, self.counts = {}, [-(-len(text) // run.seq) for text in run.texts]
        for number, text in enumerate(run.texts):
            for first in range(0, len(text), run.seq):
                row = tuple(tuple(each.tolist()) for each in pack(text[first : first + run.seq + 1], run.seq, run.end))
                self.known[row[0]] = number, first // run.seq, row

    def of(self, row, what):
        """(source, window) of a row."""
        look = "where a window begins (a multiple of seq), how long it is, and how the last one of a source is filled up"
        check_kind(row[0] in self.known, f"{what} is a window of a source", f"tokens {list(row[0])}", look)
        source, window, right = self.known[row[0]]
        look = "what pack returns, and the token behind the row: a window is read with seq + 1 tokens"
        for name, numbers, good in zip(NAMES, row, right):
            came = f"{list(numbers)}; your pack says {list(good)}"
            check_kind(numbers == good, f"{what}, window {window} of source {source}: its {name}", came, look)
        return source, window


# %%
def named_rows(run, rows):
    """(source, window) of all rows; each comes from its source."""
    windows, found = Windows(run), []
    for sample, row in enumerate(rows):
        found.append(windows.of(row, f"sample {sample}"))
        right = source_of(sample, run.weights)[0]
        if found[-1][0] != right:
            look = "question 2: the number of the sample in the whole run, and no other number"
            check.that(False, f"sample {sample} comes from source {right}", came=f"source {found[-1][0]}", look=look)
    return found, windows.counts


def epochs_of(found, source, count):
    """The windows of a source, epoch by epoch; the last one is perhaps not complete."""
    numbers = [window for where, window in found if where == source]
    return [numbers[start : start + count] for start in range(0, len(numbers), count)]


# %%
def check_epochs(run, rows):
    """In each epoch of each source, each window once; other epochs have other orders."""
    found, counts = named_rows(run, rows)
    for source, count in enumerate(counts):
        epochs = epochs_of(found, source, count)
        for number, epoch in enumerate(epochs):
            met = Counter(epoch)
            twice, never = sorted(window for window in met if met[window] > 1), sorted(set(range(count)) - met.keys())
            what = f"source {source}, {count} windows, epoch {number}: each window once"
            look = "how many windows there are (the last one may be short), and where an epoch ends"
            lost = f"window {never[0]} never" if never and len(epoch) == count else ""
            came = ", ".join(filter(None, [f"window {twice[0]} twice" if twice else "", lost]))
            check_kind(not twice, what, came, look)
        if count > 4 and len(epochs) > 2:
            look = "whether the epoch reaches the key"
            check.that(epochs[0] != epochs[1], f"source {source}: epochs 0 and 1 have two orders", came="the same order", look=look)
        print(f"✓ source {source}, {count} windows, {len(rows)} samples: each once an epoch")
    return found, counts


# %%
def compare_runs(run, right, came, what, at_once="which rows of a step are which rank's, in the order of the ranks; which steps are which worker's"):
    """The rows of two runs, and what is wrong if they differ: lost, twice, or in another order."""
    lost, twice = Counter(right) - Counter(came), Counter(came) - Counter(right)
    place = next((n for n, (one, other) in enumerate(zip(right, came)) if one != other), -1)
    if place >= 0 or len(right) != len(came):
        windows = Windows(run)
        (a, b), (c, d) = windows.of(right[place], "a sample"), windows.of(came[place], f"{what}: sample {place}")
        told = f"sample {place} is window {d} of source {c}, and uninterrupted it is window {b} of source {a}; {lost.total()} of {len(right)} rows are lost, {twice.total()} too many"
        look = "what a state counts, and what a worker skips: steps of which batch, from which sample on?"
        look = look if lost or twice else "which rows of a step are which rank's: all in the order of the ranks"
        look = at_once if place < run.batch else look
        check.that(False, f"{what}: the samples of an uninterrupted run, in its order", came=told, look=look)
    print(f"✓ {what}: no sample lost, none twice, all in order")


# %%
def check_worlds(run, steps, segments):
    """The same rows in the same order, whatever ranks and workers there are."""
    (right, _), straight = live(run, Segment(steps), b""), run.loader()
    rows = [row for step in right for row in step]
    found = check_epochs(run, rows)[0]
    for sample in (len(rows) - 1, 0, len(rows) // 2):
        alone = tuple(tuple(each.tolist()) for each in check.call(straight.row, sample))
        check.that(alone == rows[sample], f"row({sample}) is sample {sample} of the run", look="what a row depends on: its number alone")
    for segment in segments:
        came, _ = live(run, segment, b"")
        compare_runs(run, rows, [row for step in came for row in step], f"{segment.world_size} ranks, {segment.workers} workers each, {segment.ahead} ahead")
    return found


# %%
def check_twins(run, steps=10):
    """Two sources of one length."""
    found = check_worlds(run, steps, [Segment(steps, 2, 2)])
    first, second = ([window for where, window in found if where == source] for source in (0, 1))
    length, look = min(len(first), len(second)), "whether the source reaches the key"
    check.that(first[:length] != second[:length], "two sources of one length: two orders", came="the same order", look=look)


# %%
@contextmanager
def another_day(day):
    """Clocks and process numbers that say something else; not to Jupyter's thread, which asks when it sends a print."""
    sys.stdout.flush()
    real = os.getpid

    def process():
        return real() if threading.current_thread().name == "IOPub" else 4000 + day

    with ExitStack() as stack:
        for name in ("time.time", "time.monotonic", "time.perf_counter"):
            stack.enter_context(patch(name, lambda: 1e9 + 1e5 * day))
            stack.enter_context(patch(f"{name}_ns", lambda: 10**18 + 10**14 * day))
        stack.enter_context(patch("os.getpid", process))
        stack.enter_context(patch("os.urandom", lambda n: bytes([day % 256]) * n))
        yield


# %%
def stream_there(run, steps, state):
    """The rows of some steps on this real rank, and the last state."""
    used = one_rank(run.loader(), dist.get_rank(), Segment(steps, dist.get_world_size()), state)
    n_rows = len(used[0].tokens)
    return [rows_of(batch, n_rows, run.seq, f"step {number}") for number, batch in enumerate(used)], used[-1].state


def check_elsewhere(run, steps, world_size, state=b"", skipped=0):
    """The same rows in other processes, behind a state from this one."""
    right = [row for step in live(run, Segment(skipped + steps), b"")[0][skipped:] for row in step]
    found = check.on_ranks(stream_there, run, steps, state, world_size=world_size)
    came = [row for step in range(steps) for rows, _ in found for row in rows[step]]
    compare_runs(run, right, came, f"{world_size} other processes, behind {state!r}")


# %% check="q4-order" points=10
written_by(Loader.batches)
run = small()
found = check_worlds(run, 16, [Segment(16, 2), Segment(16, 3, 2), Segment(16, 4, 1, 2), Segment(16, 8, 3, 1)])
check.that(found != check_worlds(run._replace(seed=1235), 16, []), "another seed, another order", came="the same order", look="whether the seed reaches the key")
check_twins(small((96, 96), weights=(1, 1)))
check_elsewhere(run, 6, 4)


# %%
def check_restarts(run, segments, what):
    """Many lives, one after the other, each on another day; together they are the uninterrupted run."""
    rows, state = [], b""
    for day, segment in enumerate(segments, 1):
        with another_day(day):
            steps, states = live(run, segment, state)
        rows, state = rows + [row for step in steps for row in step], states[-1]
    straight, _ = live(run, Segment(-(-len(rows) // run.batch)), b"")
    compare_runs(run, [row for step in straight for row in step][: len(rows)], rows, what, "what differs from day to day, and between two objects: the clock, a counter, a cache")


# %%
def check_every_kill(run, steps, before, after):
    """A run that is killed behind each of its steps, and goes on in another shape; older states lead back."""
    straight, _ = live(run, Segment(steps + after.steps), b"")
    _, states = live(run, before._replace(steps=steps), b"")
    look = "where an iterator begins: behind the state that it is given, an older one too; then whose rows and steps are whose"
    with redirect_stdout(None):
        for kill, state in [*enumerate(states, 1)][::-1]:
            came, _ = live(run, after, state)
            right, rows = ([row for step in part for row in step] for part in (straight[kill : kill + after.steps], came))
            compare_runs(run, right, rows, f"killed behind step {kill} on {before.world_size} ranks, then {after.world_size}", look)
    print(f"✓ killed behind each of {steps} steps on {before.world_size} ranks, then {after.world_size}: no sample lost, none twice")


# %% check="q4-killed" points=10
run = small()
check_restarts(run, [Segment(3, 2), Segment(4, 3), Segment(2, 1)], "2 ranks, 3 ranks, 1 rank")
check_restarts(run, [Segment(5, 2, 2, 1), Segment(3, 4, 3, 2), Segment(4, 8, 1, 4)], "workers that run ahead, and die")
check_restarts(run, [Segment(2, 2), Segment(3, 2, batch=10), Segment(4, 1, batch=3)], "a batch of 6, then of 10, then of 3")
check_every_kill(run, 8, Segment(0, 4, 2, 1), Segment(2, 3))
check_elsewhere(run, 3, 2, live(run, Segment(2, 3), b"")[1][-1], skipped=2)


# %%
def vast(n_tokens, ledger, every=37):
    """A source that lies nowhere: its tokens are computed when they are read."""

    def read(a, b):
        places = np.arange(a, b)
        return np.where(places % every == every - 1, 0, places % 50_021 + 1).astype(np.uint16)

    return source(read, n_tokens, ledger)


# %%
def state_far(loader, far, steps=4):
    """The state behind some steps of very many ranks, of which one row is made each."""
    stream = Stream(f"rank 5 of {far:,}", loader.batches(5, far))
    return [following(stream).state for _ in range(steps)][-1]


def far_state(make, far):
    """A late state; `make` gives a loader with a batch of `far`, one row a rank."""
    return check.within(LIMIT_S, state_far, make(far), far, look="what is done for each row of the batch that is not this rank's")


# %%
def check_reads(n_tokens, seq, batch, rank, world_size, workers, seed=7):
    """Tokens that are read at a start, and right behind a late state."""
    ledger, what = [], f"{n_tokens:,} tokens, batch {batch}, seq {seq}, rank {rank} of {world_size}, {workers} workers"
    sources = [vast(n_tokens, ledger), vast(n_tokens + 5, ledger)]
    make = lambda size: check.call(Loader, sources, (7, 3), size, seq, 0, seed)  # noqa: E731
    loader, n_rows = make(batch), (rank + 1) * batch // world_size - rank * batch // world_size
    check.equal(sum(ledger), 0, f"{what}: tokens that a new loader reads", look="__init__: the lengths say enough")
    for far in (0, 200, 2_000_000):
        state = far_state(make, far) if far else b""
        ledger.clear()
        stream = stream_of(loader, rank, world_size, state, workers - 1, workers)
        _ = check.within(LIMIT_S, following, stream, look="what a loader does before it goes on: nothing is to be skipped")
        look = "which rows are made and thrown away: those before the state, of other ranks, of other workers"
        check.at_most(sum(ledger), n_rows * (seq + 1), f"{what}: tokens read for the first batch behind {4 * far:,} samples", look=look)
    first = [cpu_s(lambda state=state: next(loader.batches(rank, world_size, state)), 1) for state in (b"", state) * 3]
    look = "what is done for each sample before the state, even if nothing is read"
    check.at_most(min(first[1::2]), 10 * min(first[::2]) + 0.005, "… CPU seconds until the first batch, late", look=look)


# %%
def some_batches(make, steps):
    """A loader that has made some batches, which nobody keeps."""
    loader = make()
    stream = stream_of(loader, 0, 1)
    for _ in range(steps):
        check.within(LIMIT_S, following, stream, look="what is done before the first batch")
    return loader, stream


# %%
def check_held(n_tokens, seq, batch, steps=10, seed=3):
    """Bytes in tensors at the peak; bytes of Python and NumPy at the peak; whatever else is left."""
    most = 4 * batch * seq * 4 * 8 + 2**18
    make = lambda: check.call(Loader, [vast(n_tokens, []), vast(n_tokens, [])], (1, 1), batch, seq, 0, seed)  # noqa: E731
    what, look = f"{n_tokens:,} tokens, batch {batch}, seq {seq}", "what has an entry for each window, and which batches are kept"
    with measure.memory(lines=True) as record:
        some_batches(make, steps)
    check.at_most(held(record), Bytes(most), f"{what}: bytes in tensors at the peak", look=look)
    with outside_torch() as outside:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        loader = some_batches(make, steps)
        peak = tracemalloc.get_traced_memory()[1] - before
        left = outside()
    check.at_most(Bytes(peak), Bytes(most), "… bytes of Python and NumPy at the peak", look=look)
    check.at_most(left, Bytes(most), "… bytes left in arrays, tensors and files", look=look)
    return loader


# %%
def memory_map_line(mapped, seq, batch):
    """A batch of the first windows of a file."""
    columns = [torch.empty(batch, seq, dtype=torch.int64) for _ in range(4)]
    for row in range(batch):
        for column, numbers in zip(columns, pack(mapped[row * seq : (row + 1) * seq + 1], seq, 0)):
            column[row] = numbers


# %%
def check_speed(seq, batch, n_windows=60):
    """CPU time against that of a line which reads the same windows in their order and packs them."""
    with tempfile.TemporaryDirectory() as folder:
        vast(n_windows * seq, [], every=1000)[:].tofile(Path(folder) / "tokens.bin")
        mapped = np.memmap(Path(folder) / "tokens.bin", dtype=np.uint16, mode="r")
        stream = stream_of(check.call(Loader, [mapped, mapped[: 20 * seq]], (7, 3), batch, seq, 0, 5), 0, 1)
        check.within(LIMIT_S, following, stream)
        found = ratio_of(lambda: following(stream), lambda: memory_map_line(mapped, seq, batch), 2.0)
        del stream, mapped
    look = "what is done for each row beside reading and packing it, and how often a row is copied"
    check.at_most(found, 2.0, f"batch {batch}, seq {seq}: CPU time, in that of the line from the memory map", look=look)


# %% check="q4-costs" points=10
written_by(Loader.batches)
check_restarts(small(), [Segment(3, 2), Segment(4, 3)], "2 ranks, 3 ranks")
check_reads(2**24, 64, 12, 1, 3, 2)
check_reads(2**24, 64, 6, 0, 1, 1)
check_held(2**32, 2048, 8)
check_speed(8192, 12)

# %% check="q4-hidden" points=10
# Other ranks, workers and sizes; sources of one window, without an end token, as long as their windows; later epochs; batches that are kept; other costs.
### BEGIN HIDDEN TESTS
#: other costs
check_reads(2**26 + 11, 32, 9, 3, 4, 3, seed=1)
check_reads(4000, 128, 16, 0, 2, 1, seed=2)
#: other ranks, workers and sizes
hidden_run = small((150, 61), weights=(2, 5), batch=7, seq=6, seed=2**62 + 1)
check_worlds(hidden_run, 20, [Segment(20, size, 1 + size % 3, size % 2) for size in (2, 3, 4, 5, 8)])
check_every_kill(hidden_run, 14, Segment(0, 8, 3, 2), Segment(3, 3, 2, 1))
check_every_kill(hidden_run, 9, Segment(0, 1, 1, 0), Segment(2, 8))
check_restarts(hidden_run, [Segment(1, 8, 4, 3), Segment(1, 1), Segment(5, 4, 2), Segment(6, 3, 5, 1, 11), Segment(7, 2, 2, 2, 1)], "five lives")
#: other ranks, workers and sizes
check_worlds(small((400, 90), weights=(9, 1), batch=1, seq=33, seed=0), 40, [Segment(40, 2, 2, 1)])
check_restarts(small((64, 130), weights=(0, 1), batch=5, seq=16), [Segment(4, 3), Segment(4, 2, 3)], "one source alone")
#: sources of one window
check_worlds(small((5, 40), batch=4), 12, [Segment(12, 3, 2)])
check_restarts(small((8, 9), batch=3, weights=(1, 2)), [Segment(3, 2), Segment(3, 3, 2, 2)], "one window, and one and a token")
#: as long as their windows
hidden_texts = ragged(96, 1, 9), ragged(88, 30_000, 9)
check_worlds(Run(hidden_texts, weights=(3, 2), batch=5), 12, [Segment(12, 4, 2)])
#: without an end token
hidden_texts = ragged(75, 1, 200, closed=False), ragged(50, 30_000, 6, closed=False)
check_worlds(Run(hidden_texts, batch=4), 16, [Segment(16, 2)])
hidden_texts = ragged(75, 2**31 - 30, 9, np.int64, False), ragged(64, 2**40, 6, np.int64, False)
for hidden_text in hidden_texts:
    hidden_text[hidden_text == 0] = 50_256
check_worlds(Run(hidden_texts, batch=4, end=50_256), 16, [Segment(16, 2), Segment(16, 11)])
#: later epochs
check_twins(small((130, 130), weights=(2, 3), batch=5))
hidden_run = small((120, 118), weights=(1, 1), batch=10, seq=5)
hidden_found, hidden_counts = check_epochs(hidden_run, [row for step in live(hidden_run, Segment(30), b"")[0] for row in step])
for hidden_source, hidden_count in enumerate(hidden_counts):
    hidden_epochs = [tuple(epoch) for epoch in epochs_of(hidden_found, hidden_source, hidden_count) if len(epoch) == hidden_count]
    check.equal(len(set(hidden_epochs)), len(hidden_epochs), "every epoch has an order of its own", look="whether the epoch reaches the key")
hidden_met = []
for hidden_seed in (1234, 1235, 1236, 1236 + 2**40):
    hidden_rows = [row for step in live(hidden_run._replace(seed=hidden_seed), Segment(15), b"")[0] for row in step]
    hidden_named = named_rows(hidden_run, hidden_rows)[0]
    for hidden_source, hidden_count in enumerate(hidden_counts):
        hidden_met += [(*each,) for each in epochs_of(hidden_named, hidden_source, hidden_count) if len(each) == hidden_count]
hidden_look = "whether seed, source and epoch are numbers of their own in the key: the next epoch is not the next seed"
check.equal(len(set(hidden_met)), len(hidden_met), "orders of some epochs of two sources and four seeds, all different", look=hidden_look)
hidden_state = far_state(hidden_run.loader, 3_000_000_012)
hidden_late = [row for step in live(hidden_run, Segment(10, 2, 2), hidden_state)[0] for row in step]
_ = check_epochs(hidden_run, hidden_late)
hidden_loader = hidden_run.loader()
hidden_rows = [tuple(tuple(each.tolist()) for each in check.call(hidden_loader.row, 12_000_000_048 + n)) for n in range(100)]
hidden_look = "what a state can hold: a run may be longer than a number of 32 bits"
check.that(hidden_late == hidden_rows, "behind 12 billion samples: those that row has", look=hidden_look)
for _ in range(60):
    hidden_state = following(stream_of(hidden_loader, 0, 1, hidden_state)).state
check.at_most(len(hidden_state), 100, "bytes of a state after 60 lives", look="what a state keeps of the one before it")
hidden_loader = hidden_run._replace(weights=(1, 0)).loader()
hidden_orders = set()
for hidden_epoch in (0, 10, 100, 255, 256, 1000, 1024, 2**15, 2**16, 10**6, 2**32):
    hidden_samples = range(24 * hidden_epoch, 24 * (hidden_epoch + 1))
    hidden_orders |= {tuple(tuple(check.call(hidden_loader.row, sample)[0].tolist()) for sample in hidden_samples)}
check.equal(len(hidden_orders), 11, "orders of epochs 0, 10, 100, 255 … of one source", look="the epoch's number in the key: all of it")
#: batches that are kept
hidden_run = small((90, 60), batch=4)
hidden_source = np.arange(1, 91)
hidden_loader = check.call(Loader, [source(lambda a, b: hidden_source[a:b], 90, []), of_array(ragged(60, 1000, 7))], (1, 1), 4, 8, 0, 9)
hidden_streams = [stream_of(hidden_loader, 0, 1) for _ in range(2)]
hidden_kept = [following(hidden_streams[0]) for _ in range(6)]
hidden_rows = [rows_of(batch, 4, 8, "a batch") for batch in hidden_kept]
_ = [following(hidden_streams[0]) for _ in range(6)]
check.that([rows_of(batch, 4, 8, "a batch") for batch in hidden_kept] == hidden_rows, "a batch stays as it is when others come", look="memory that is used again")
for hidden_batch in hidden_kept:
    for hidden_tensor in hidden_batch[:4]:
        hidden_tensor.fill_(-5)
hidden_again = [rows_of(following(hidden_streams[1]), 4, 8, "a batch") for _ in range(6)]
check.that(hidden_again == hidden_rows, "a second iterator, after somebody wrote into the first one's batches", look="memory and counters that two iterators share")
hidden_streams = [stream_of(hidden_loader, 0, 1, state) for state in (hidden_kept[1].state, b"")]
hidden_turns = [rows_of(following(stream), 4, 8, "a batch") for stream in hidden_streams * 2]
hidden_right = [hidden_rows[step] for step in (2, 0, 3, 1)]
check.that(hidden_turns == hidden_right, "two iterators of one loader in turn, behind two states", look="what two iterators share")
check.equal(hidden_source.tolist(), list(range(1, 91)), "the source is as it was", look="views of the source")
#: other costs
check_held(3 * 2**30, 1024, 10, seed=11)
hidden_loader = check.call(Loader, [vast(9_600, []), vast(9_600, [])], (1, 0), 8, 16, 0, 4)
check.call(hidden_loader.row, 0)
with outside_torch():
    hidden_before = tracemalloc.get_traced_memory()[0]
    for hidden_epoch in range(1, 25):
        hidden_loader.row(600 * hidden_epoch)
    hidden_left = Bytes(tracemalloc.get_traced_memory()[0] - hidden_before)
check.at_most(hidden_left, Bytes(2**18), "bytes of Python and NumPy, left by a row in each of 24 epochs", look="what is kept of an epoch, or of a row")
check_speed(10_000, 8)
hidden_run = small((120, 70), batch=5, weights=(3, 1))
check_elsewhere(hidden_run, 4, 3, live(hidden_run, Segment(5, 2, 2, 1), b"")[1][-1], skipped=5)
# Sentences of the contract, and the known-wrong answers that break them.
#= `sources`: two | - what is given
#= `len(source)` is its number | - what is given
#= `source[a:b]` reads | - what is given: the checks' sources raise TypeError at anything else
#= It knows nothing else | - what is given
#= Each has windows of `seq` | drops_the_tail tail_is_filled_with_repeats
#= `weights`: as in | - question 2 checks them
#= `batch`: samples of all | batch_of_each_rank
#= `end`: the end token | loader_ends_with_0
#= `seed`: an int | seed_in_32_bits
#= `row(sample)` returns | rows_only_forward
#= It may be asked for any | rows_only_forward
#= `batches(rank, world_size | ends_with_the_epoch
#= It goes on behind | state_counts_steps
#= Rank r has the rows | rows_by_strides
#= Worker w of W | workers_are_all_alike
#= A `Batch` has the four | state_of_200_bytes history_in_the_state
#= It is the same on all | rank_in_the_state state_of_a_rank
#= Whoever goes on from it | counts_what_was_made state_of_a_worker
#= A state serves every | state_counts_steps state_is_a_ticket
#= An older one leads back | never_goes_back
#= The orders of two epochs | epoch_not_in_the_key source_not_in_the_key seed_plus_epoch
#= A loader may give many | one_beginning_for_all
#= A batch that has been handed | memory_used_again
#= *Costs. | - a heading
#= A new loader reads nothing | looks_at_the_first_token reads_the_whole_batch reads_a_small_source
#= Nothing is skipped | fast_forward_by_reading
#= The loader holds at most | keeps_every_batch
#= Its CPU time is at most | packs_twelve_times
#= Batches of two sources | state_is_a_ticket
#= Reads nothing yet | looks_at_the_first_token
#= The four tensors [seq] | rows_only_forward
#= An iterator over this | workers_are_all_alike
### END HIDDEN TESTS

# %% [markdown]
# How large is the fault that all this avoids? Take the loader that everybody writes first: rank r of N reads samples r,
# r + N, r + 2N …, and its state is how many it has read. The run makes 5 steps of 8 samples on 2 ranks, dies, and goes on
# with 4 ranks, each of which skips as many of its samples as the state says.

# %%
guess_lost = ask("How many samples does the run never see?")


# %%
def by_strides(world_size, steps, read=0, batch=8):
    """The samples of some steps on all ranks, each of which has read so many before."""
    share = batch // world_size
    places = range(read, read + steps * share)
    return [rank + world_size * place for place in places for rank in range(world_size)]


before = by_strides(2, 5)
after = by_strides(4, 5, read=len(before) // 2)
lost = set(range(max(after))) - {*before, *after}
compare(guess=guess_lost, predicted=(4 - 2) * 20, measured=len(lost), tolerance=0, name="samples lost")

# %% [markdown]
# No error, no warning. The loss curve goes on as smooth as before, and some of the text has never been read.
#
# ## What to keep
#
# A list can be lost, a function cannot. What sample n is depends on n, so a run of any length has a state of one number, and
# that number counts what the model has used. Ranks, workers and queues are ways to get the work done; none of them belongs to the
# order, and so none of them may stand in its key.
#
# **Change one thing.** Let the weights change in the middle of a run, seven to three at first and one to one from sample
# 10,000 on. Your state is one number still. Which number of a source does sample 10,000 have? Decide first, then write
# `source_of` for two phases.
