# %% [markdown]
# # 15 · Feeding the beast
#
# **The question:** can text arrive as fast as the model eats it, in the order that was promised, and go on after a crash?
#
# | | |
# |---|---|
# | Time | first sitting 50 minutes, second sitting 35; about a minute of both together is computing on 2 CPU cores |
# | A GPU | changes nothing: all of this happens before a batch reaches it |
# | Opens | `data/order.py`, `data/tokens.py`, `data/mixture.py` |
#
# On Monday your run on 64 GPUs is half as fast as planned. The profile says that `all_reduce` takes 60 % of a step, so
# you ask for a faster network. On Thursday the network comes, and nothing changes: one rank's loader had been slow, and 63
# GPUs were waiting for it, inside `all_reduce`. On Friday the job dies. It goes on with twice as many ranks, the loss goes
# on falling, and no line of any log says that a part of the epoch will never be read.
#
# Both stories are played on this page, with clocks and counters. You will also build what prevents them: a queue, and an
# order of samples that is a function.

# %%
import os
import queue
import shutil
import signal
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

# %%
from course_kit import measure, ranks
from course_kit.compare import compare
from course_kit.notebook import ask, self_check, show, your_turn
from course_kit.units import Bytes, Count, Ratio, Seconds
from course_lib.data import order
from course_lib.data.tokens import write_tokens
from course_lib.model import text
from course_lib.model.seeds import mix, scramble
from course_pages.lesson07.pictures import rank_timeline
from course_pages.lesson15 import elsewhere, encoder, memory, runs, turns
from course_pages.lesson15.explorer import RestartExplorer

folder = Path(tempfile.mkdtemp(prefix="lesson15-"))

# %% [markdown]
# ## 1 · How much does it eat?
#
# A vocabulary below 65,536 fits into 16 bits, so text that waits for training is a file of 2 bytes a token (nanoGPT keeps
# it so). We do not read that file. We **map** it: the system gives us addresses, and brings a page of 4 KiB when we touch
# one. As tokens we take the bytes of the manual that Python carries, again and again, $2^{24}$ of them.

# %% tags=["varies"]
path = folder / "tokens.bin"
size = write_tokens(path, np.resize(np.frombuffer(text.python_manual().data, np.uint8), 2**24))
tokens = np.memmap(path, dtype="<u2", mode="r")
mapped, at_first = memory.mapped_and_resident(path)
int(tokens.sum())  # reads every page
due = {"mapped": size, "in memory, just opened": Bytes(0), "in memory, all read": size}
seen = {"mapped": mapped, "in memory, just opened": at_first, "in memory, all read": memory.mapped_and_resident(path)[1]}
compare(predicted=due, measured=seen, tolerance=0 if memory.COUNTS else None)

# %% [markdown]
# These are the kernel's own counts. (macOS and Windows do not tell them: there you see 0.) Opening
# costs nothing, and all processes that map the file share its pages. When memory runs short the system drops them without
# asking, since the file still has them.
#
# Now the appetite. MosaicML's tables (llm-foundry, `scripts/train/benchmarking`) have an H100 that eats 10,643 tokens a second as it trains
# 6.7 billion parameters, and an A100 that eats 165,681 with 125 million. **Guess:** one CPU core copies tokens out of
# the map. How many such H100s could it feed?

# %%
EATS = {"H100, 6.7 billion parameters": 10_643, "A100, 125 million parameters": 165_681}  # tokens/s a GPU, MosaicML

# %%
guess_fed = ask("H100s that one core can feed from the map?")

# %% tags=["varies"]
into = np.empty_like(tokens)
from_map = runs.cpu_seconds(np.copyto, into, tokens)
print(f"{len(tokens) / from_map / 1e9:.1f} billion tokens a second (of H100s, you said {guess_fed.said})")
for gpu, eats in EATS.items():
    print(f"{gpu}: {2 * eats / 1e3:.0f} kB/s, and one core feeds {len(tokens) / from_map / eats:,.0f} of them")

# %% [markdown]
# 21 kB a second is nothing. The
# first reading of a page comes from the disk, but no disk is so slow either. **Text does not starve a GPU.**
#
# Work on text does. Suppose that the loader tokenises, here with a byte-pair encoder in plain Python. It starts from bytes, and merges
# neighbours that are frequent into one token (Sennrich et al. 2016; `course_pages/lesson15/encoder.py`):

# %% tags=["varies"]
manual = text.python_manual().data.decode()
merges = encoder.learn(manual[:20_000], merges=100)
rate = len(encoder.encode(manual[:100_000], merges)) / runs.cpu_seconds(lambda: encoder.encode(manual[:100_000], merges), repeats=2)
print(f"{rate:,.0f} tokens a second: {len(tokens) / from_map / rate:,.0f} times slower than the copy")
print("eight GPUs eat, of what this core delivers:", {gpu: f"{8 * eats / rate:.0%}" for gpu, eats in EATS.items()})

# %% [markdown]
# So the loader of the large model has time to spare. Eight GPUs with the small one eat more than
# it delivers, or nearly all of it. Tokenising, decompressing and decoding images are done once, before the run, or by many workers.
#
# ## 2 · A queue
#
# A loader that needs $L$ seconds for a batch, before a model that needs $M$: one after the other they take $L + M$. Let $w$ **workers**
# prepare batches beside the model, each into a shelf of its own, a queue that holds `depth` results. A worker whose shelf is full waits; otherwise it would
# fill main memory. Then a step lasts
#
# $$\max\!\left(M, \frac{L}{w}\right).$$
#
# Batches must leave in the order of their numbers, not in that in which they are ready: worker 0 makes results 0, $w$, $2w$, …, worker 1 makes
# 1, $w + 1$, …, and the model takes from the shelves in turn.
#
# **Your turn.** Write it, with threads.


# %%
@your_turn(turns.check_prefetch, look="Which shelf has result i? queue.Queue(maxsize=depth).put waits where it is full; make the threads daemons.")
def prefetch(work, jobs, workers, depth=2):
    """Yield work(job) for each of `jobs`, a range from any number on, in order; `workers` threads make them, each ahead by `depth`."""
    ...


# %% tags=["solution"]
# One solution. Open it when yours passes, or when you are stuck.
@prefetch.solution
def prefetch(work, jobs, workers, depth=2):
    shelves = [queue.Queue(maxsize=depth) for _ in range(workers)]

    def fill(worker):
        for job in jobs[worker::workers]:
            shelves[worker].put(work(job))

    for worker in range(workers):
        threading.Thread(target=fill, args=(worker,), daemon=True).start()
    for i in range(len(jobs)):
        yield shelves[i % workers].get()


# %% [markdown]
# Say that a batch comes from a store far away and takes 60 ms, and that the model takes 15. (Both sleep here: a thread that
# waits for a store or for a GPU needs no core.) **Guess:** one worker makes it a step of 60 ms. And eight?

# %%
guess_eight = ask("8 workers: ms a step?", unit="ms")

# %% tags=["varies"]
L, M = 0.060, 0.015


def step_seconds(workers, steps=24):
    start = time.perf_counter()
    for _ in prefetch(lambda step: time.sleep(L), range(steps), workers):
        time.sleep(M)
    return Seconds((time.perf_counter() - start) / steps)


due = {f"w = {w}": Seconds(max(M, L / w)) for w in (1, 2, 4, 8)}
found = {f"w = {w}": step_seconds(w) for w in (1, 2, 4, 8)}
compare(guess={"w = 8": guess_eight}, predicted=due, measured=found, tolerance=None, unit="ms")

# %% [markdown]
# Four workers are enough, and eight are no faster: then the model is the one to wait for. (The rest: with one or two
# workers the last steps, otherwise the first batch.)
#
# Threads were good here since they slept. Workers that compute, as our encoder does, are *processes*: only one thread of a
# Python process computes at a time (section 6 measures it).
#
# ## 3 · Who waits?
#
# Back to Monday. Two ranks, the same model, but rank 1's store is slow: 60 ms where rank 0 needs 2. Each has one worker.
# At the end of each step comes an all-reduce, of gradients, say.
#
# **Guess:** six steps. How long does rank 0 spend in `all_reduce`?

# %%
guess_wait = ask("Rank 0, six steps: ms in all_reduce?", unit="ms")


# %%
def six_steps(workers):
    fetch_s = (0.002, L)[dist.get_rank()]
    batches = prefetch(lambda step: time.sleep(fetch_s), range(6), workers)
    with measure.timeline() as record:
        for _ in range(6):
            with record.span("L"):
                next(batches)
            with record.span("M"):
                time.sleep(M)
            dist.all_reduce(torch.ones(1))
    return record


# %% tags=["varies"]
ranks.run(six_steps, 1, world_size=2)  # a rehearsal, in which connections are made
tries = {name: [ranks.run(six_steps, w, world_size=2)[0] for _ in range(3)] for name, w in {"1 worker": 1, "4 workers": 4}.items()}
records = {name: min(three, key=lambda record: record.seconds(0, "wait")) for name, three in tries.items()}
rank_timeline(
    records["1 worker"],
    caption="L is loading, M the model; both are a rank's own. Rank 0 is never late, and its profile says that three quarters of its time go into all_reduce. Rank 1 loads; it hardly waits for anybody.",
    alt="Two rows over 400 ms. Rank 0: short blocks named M, and long stretches of waiting in all_reduce. Rank 1: long blocks named L, short ones named M.",
).show()
compare(
    guess={"1 worker": guess_wait},
    predicted={"1 worker": Seconds(L - 0.002 + 5 * (L - M)), "4 workers": Seconds(L - 0.002)},
    measured={name: record.seconds(0, "wait") for name, record in records.items()},
    tolerance=None,
    unit="ms",
)

# %% [markdown]
# In the first step rank 0 is ready 58 ms before rank 1; in each later one, 45. Its profile blames the network, and the network
# is innocent: a collective is as late as its last rank. So before you buy one, look who does *not* wait. Four workers
# repair rank 1, and only the first batch is late.
#
# ## 4 · An order that needs no table
#
# 300 billion tokens in rows of 2,048 are 146 million samples. A table of their shuffled order is 1.2 GB, in every process, and a
# restart must make the same one. Many loaders shuffle the files instead, and a buffer of what comes out of them: less memory, less
# shuffled, and a buffer that is lost in a crash.
#
# What we want is a **function**: from a place in the order to the sample that stands there, each sample once. Ciphers have solved that. A **Feistel
# network** halves a number into left and right. Each round turns $(l, r)$ into $(r,\, l \oplus f(r))$. Whatever $f$ is, xor
# ($\oplus$) with $f(r)$ undoes it, so no two numbers become one. We make eight rounds. (Our $f$: `mix` makes one number of several, and `scramble` one that looks like chance.)

# %%
def feistel(number, half, seed, epoch):
    """Shuffles the numbers of 2 · half bits."""
    low = (1 << half) - 1
    left, right = number >> half, number & low
    for turn in range(8):
        left, right = right, left ^ scramble(mix(seed, epoch, turn) ^ right) & low
    return left << half | right


print([feistel(number, half=2, seed=7, epoch=0) for number in range(16)])

# %% [markdown]
# All numbers from 0 to 15, each once. But the number of samples is seldom a power of 4. Say there are 10. Place 9 is sent to 13, which is no
# sample. Then send 13 on. It may not land inside either: 13 goes to 11, which is no sample, and 11 to 5. Sent on and on, each number comes back
# to itself, on a circle. So the walk meets a number inside, our own place at the latest. And no two places end at the same one: the walk from
# farther back would meet the other place first, and stop there.
#
# **Your turn.** Walk. (Black and Rogaway 2002, §4, call it cycle walking.)


# %%
@your_turn(turns.check_walk, look="The place itself goes in first. What goes in next, and until when?")
def permuted(place, n, feistel):
    """The sample at `place`, 0 … n - 1, of a shuffle of n samples; feistel(number) shuffles at least as many numbers."""
    ...


# %% tags=["solution"]
@permuted.solution
def permuted(place, n, feistel):
    number = feistel(place)
    while number >= n:
        number = feistel(number)
    return number


# %%
n = 1000
ours = [permuted(place, n, lambda number: feistel(number, 5, 7, 0)) for place in range(n)]
print("each sample once:", sorted(ours) == list(range(n)), "| the library's order:", ours == order.permuted(range(n), n, 7, 0).tolist())
print("the next epoch has", sum(a == b for a, b in zip(ours, order.permuted(range(n), n, 7, 1))), "of 1,000 at the same place")
print(f"at place 100,000,000 of 146 million stands sample {order.permuted(10**8, 146_000_000, 7, 0)[0]:,d}")

# %% [markdown]
# The library's, `order.permuted`, does a whole batch at once. All that it keeps is eight numbers, one of `mix` for each round.
#
# ## 5 · The state is one number
#
# Let an epoch have $n$ samples, and a step a global batch of $B$ of them over all ranks. Row $j$ of step $s$ stands at place $sB + j$ of the run. That is
# epoch $(sB + j) \div n$, and there the place that is left over. Rank $r$ of $p$ takes rows $r$, $r + p$, $r + 2p$, …
#
# No rank, no worker and no clock is in the order of the run, and $p$ only says who reads what. So a restart needs $s$, as
# long as $B$ stays.
#
# **Your turn.** A rank's rows of a step.


# %%
@your_turn(turns.check_places, look="Count the run's places with a range whose step is the world size. divmod gives epoch and place.")
def places_of(step, rank, world_size, batch, n):
    """(epoch, place) of each row of this rank in this step: every world_size-th row of the batch, from row `rank` on."""
    ...


# %% tags=["solution"]
@places_of.solution
def places_of(step, rank, world_size, batch, n):
    return [divmod(place, n) for place in range(step * batch + rank, (step + 1) * batch, world_size)]


# %% [markdown]
# Now the proof, with real processes. The run has 40 steps of 24 samples, one epoch. What it learns is a diary: which sample was row
# $j$ of step $s$. That is its model, and it is saved every fourth step; a rename makes a save happen wholly or not at all. Whatever
# a crash throws away, it throws away from diary and step alike.

# %%
BATCH, STEPS, N = 24, 40, 24 * 40


def train(file, workers, kill_at=None):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    start, diary = torch.load(file) if Path(file).exists() else (0, torch.zeros(STEPS, BATCH, dtype=torch.int64))

    def load(step):
        places = [map(int, each) for each in places_of(step, rank, world_size, BATCH, N)]  # NumPy's would overflow
        return [permuted(place, N, lambda number, epoch=epoch: feistel(number, 5, 7, epoch)) for epoch, place in places]

    for step, samples in zip(range(start, STEPS), prefetch(load, range(start, STEPS), workers)):
        if (step, rank) == (kill_at, 1):
            os.kill(os.getpid(), signal.SIGKILL)
        diary[step, rank::world_size] = torch.tensor(samples)
        if step % 4 == 3:
            dist.all_reduce(diary[step - 3 : step + 1])  # each rank has written its own rows
            if rank == 0:
                runs.save(file, (step + 1, diary))
    return diary


# %% [markdown]
# The run on two ranks with two workers each is killed in *every* one of its 40 steps, and each of these goes on with 1, 2, 3, 4 and 8
# ranks and another number of workers, 1 or 3. **Guess:** of 200 restarts, how many end with another diary than the run that was never killed?

# %%
guess_other = ask("Of 200 restarts: how many read anything else than the run that never stopped?")

# %%
whole = ranks.run(train, folder / "whole", 2, world_size=4)[0]
seen = runs.restarts(train, folder, whole)
compare(guess={"another order": guess_other}, predicted=dict.fromkeys(seen, Count(0)), measured=seen)

# %% [markdown]
# Nothing lost, nothing twice, the same order to the last row. (Prefetched batches died in their queues. Nobody missed them:
# what is read ahead is not what is *learnt*, and only the latter is in the state.)
#
# Now two libraries that many people use. The same thought experiment, smaller: 40 samples; two ranks read 8 each and save their states as their
# documentation says. Then 2, 4 or 1 ranks load them and finish the epoch. Rank 2, which has no state, takes rank 0's. (A library
# that is not installed here is not run; you see what it did for us, and the line says so.) **Guess:** how
# many of the 40 are never read, when 2 ranks become 4?

# %%
guess_lost = ask("2 ranks become 4: of 40 samples, how many does StatefulDataLoader lose?")

# %% tags=["varies"]
for library, after in elsewhere.STORED:
    here = elsewhere.installed(library)
    lost, twice, said = elsewhere.restart(library, after) if here else elsewhere.STORED[library, after]
    print(f"{elsewhere.named(library)}: 2 ranks, then {after}: {lost:2} lost, {twice} twice; it said: {said or 'nothing'}")

# %% [markdown]
# With as many ranks as before, both are exact, and neither promises more (torchdata's documentation: it handles states of
# workers, "but not across ranks"). But neither compares. A state here is "rank 0 has read 8 of
# its samples", and with four ranks rank 0's samples are others: 16 of 40 fall between, and nobody is told. (With one rank nothing is lost in silence:
# torchdata reads 8 twice, and Datasets stops, with an error, before it reads any of the last 24.)
#
# Play with it. A rank gets a stretch of the epoch (by shard), every $p$-th sample (by stride), or its rows of our order (by function):

# %%
RestartExplorer().show()

# %% [markdown]
# Three questions. **a.** By stride, killed after step 2: which change of ranks loses nothing? **b.** What do you get by shard instead, from 2 ranks to
# 4? **c.** Is there any place of the sliders at which the function loses a sample?
#
# <details><summary>Answers</summary>
#
# a. Only one to fewer ranks, which reads some samples twice instead. With more ranks samples are lost: with twice as many, most of them half-way, 24 after step 3; from 1 to 8, 40 after the first.
# b. As many, but others. By shard they are whole stretches of the text, so one topic, or one language, may be gone.
# c. No. The step says how many places of the run's order are behind, and places do not know ranks.
#
# </details>
#
# **The short of it.** A map gives text far faster than a GPU eats it. Work on text is done before, or by enough workers:
# $\max(M, L/w)$. An order that is a function has a state of one number, and no crash and no change of ranks can lose a token.
#
# ---
# ## Second sitting
#
# Workers that compute and what they copy, formats of files, rows made of documents, mixtures, three ways to lose text, and a corpus
# that is too large for one machine. You can skip it and go on with lesson 16. Some cells use pyarrow and datasketch (`pip install "bigger-than-one-gpu[data]"`, which brings
# torchdata, too) and Dask (`[cluster]`). Without them they show what was stored, and say so.

# %%
import hashlib
import random

import torch.nn.functional as F

from course_lib.data.mixture import Mixture
from course_lib.data.packing import document_mask, packed_row
from course_lib.model.gpt import GPT, GPTConfig
from course_pages.lesson15 import cluster
from course_pages.lesson15.corpora import GPT3, MASSIVE_TEXT, MT_NLG

# %% [markdown]
# ## 6 · Workers that compute
#
# Our encoder computes, in Python, and only one thread of a process may do that at a time (unless Python was built without its lock).
# So two threads need as long as one, and workers that compute are *processes*, as PyTorch's are. On two free cores two of them need
# half as long:


# %% tags=["varies"]
def encode_half(half):  # its seconds, without those in which other programs had the cores
    return runs.own_seconds(encoder.encode, manual[half * 50_000 : (half + 1) * 50_000], merges)


one = encode_half(0) + encode_half(1)
threads = max(prefetch(encode_half, range(2), workers=2))
processes = max(ranks.run(lambda: encode_half(dist.get_rank()), world_size=2))
print(f"2 threads: {one / threads:.1f} times as fast as one; 2 processes: {one / processes:.1f} times")

# %% [markdown]
# Processes have a trap of their own, in main memory. Read a million tokens of a large vocabulary, all above 256, into a Python list,
# as many a `Dataset.__init__` does, and let four workers fork from it. Forked processes share pages until one of them *writes*.
# **Guess:** a worker only reads that list. How many MB does it copy?

# %%
guess_copied = ask("A forked worker reads a list of a million numbers: MB that it copies?", unit="MB")

# %% tags=["varies"]
due = {"list, held": Bytes(40_000_000), "list, copied": Bytes(32_000_000), "array, held": Bytes(2_000_000)}
found = memory.held_and_copied()
print(f"copied of the array, all told: {found['array, copied'].to('MB'):.1f} MB ({memory.TOLD})")
compare(guess={"list, copied": guess_copied}, predicted=due, measured={name: found[name] for name in due}, tolerance=0.1, unit="MB")

# %% [markdown]
# Every number above 256 is an object of 28 bytes, in a place of 32, and the list has a pointer of 8 to each. To look at
# an object is to write: its reference count goes up and down. So reading copies every page that has an object on it, in every worker.
# An array is *one* object. Its tokens have no counts, they take a twentieth, and hardly any are copied.
#
# ## 7 · Four kinds of file
#
# Raw tokens have no header, so a note beside them must say how long they are and what they mean. NumPy's `.npy` has 128 bytes in front that say it. **Arrow** is main
# memory's own layout, written to a file with a description: it is mapped, too. **Parquet** is made for storing. It writes each distinct token
# once, and then only its number, in $\lceil \log_2 V \rceil$ bits for $V$ of them; so it must be *decoded* to be read.
#
# **Guess:** our manual has about a hundred distinct bytes. How many bytes does Parquet need for a token?

# %%
guess_parquet = ask("Parquet, about 100 distinct tokens, no compression: bytes a token?")

# %% tags=["varies"]
small = np.frombuffer(text.python_manual().data, np.uint8).astype("<u2")
files = elsewhere.write_formats(folder, small)
found = elsewhere.FORMATS_STORED | {name: file.stat().st_size / len(small) for name, file in files.items()}
bits = (len(np.unique(small)) - 1).bit_length()
print("Arrow, Parquet:", elsewhere.named("pyarrow"))
compare(
    guess={"Parquet": guess_parquet},
    predicted={"raw": Ratio(2), ".npy": Ratio(2 + 128 / len(small)), "Arrow": Ratio(2), "Parquet": Ratio(bits / 8)},
    measured={name: Ratio(found[name]) for name in ("raw", ".npy", "Arrow", "Parquet")},
    tolerance=0.06,
)

# %% [markdown]
# Parquet stays below its 7 bits since it writes a run of one token, of blanks say, as a number and a count. (Shuffle the bytes, and the gain is gone.)
#
# And what does reading cost? A page that was read once *is* main memory, so section 1's map should be copied as fast as an array:

# %% tags=["varies"]
from_memory = runs.cpu_seconds(np.copyto, np.empty_like(tokens), np.array(tokens))
compare(predicted={"map over memory": Ratio(1)}, measured={"map over memory": Ratio(from_map / from_memory)}, tolerance=0.6)

# %% [markdown]
# And the others? Each file is opened, and then copied token by token into an array:

# %% tags=["varies"]
into, kB = np.empty_like(small), 1000
for name, file in files.items():
    before, opened = elsewhere.allocated(), elsewhere.open_format(name, file)
    taken, opened_s = elsewhere.allocated() - before, runs.cpu_seconds(elsewhere.open_format, name, file)
    np.copyto(into, opened)
    mapped, resident = memory.mapped_and_resident(file)
    rate = len(small) / runs.cpu_seconds(lambda *given: np.copyto(into, elsewhere.open_format(*given)), name, file)
    print(f"{name:8} opened in {1e3 * opened_s:5.2f} ms, {rate / 1e6:6,.0f} million tokens/s;", end=" ")
    print(f"mapped {mapped / kB:3.0f} kB, of these in memory {resident / kB:3.0f}; allocated {taken / kB:5,.0f} kB")
for name in sorted(elsewhere.ALLOCATED_STORED.keys() - files):
    print(f"{name:8} allocated {elsewhere.ALLOCATED_STORED[name] / kB:5,.0f} kB, says {elsewhere.named('pyarrow')}")

# %% [markdown]
# The three maps allocated nothing: their pages are the file's, and the system may drop them. Parquet has no map. It was decoded, which takes
# many times as long, and its tokens lie in memory of the process. So corpora travel and rest in Parquet, and a training run reads a map. Hugging Face's
# Datasets keeps its tables in Arrow files and maps them; that is how it opens a table larger than main memory.
#
# ## 8 · Rows of documents
#
# Documents are short and long, a row has one length. Padding computes zeros in vain. So documents are put end to end and cut every
# $S$ tokens: **packing**. But then a token may attend to the document before its own, which has nothing to do with it. A mask
# takes that away: attend to your own document, up to yourself.

# %%
display(show(packed_row, docstring=False), show(document_mask, docstring=False))

# %% [markdown]
# Is document 0 really gone for document 1? Ask the gradient. Take a sum over document 1's logits alone, and look at what reaches the
# vectors of document 0. **Guess:** a small number, or zero?

# %%
guess_gradient = ask("Largest gradient that reaches document 0?")

# %%
lengths, SEQ = [20, 28, 30], 48
row = packed_row(lengths, 0, SEQ)
tokens_BS = text.stories(seed=0).batch(seed=0, step=0, rank=0, batch_size=1, context=SEQ)[0]
config = GPTConfig(layers=2, width=32, heads=4, vocab_size=256, context=SEQ, positions="rotary", attention="fused")


def masked(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=document_mask(row.document_S))


def logits_and_gradient(apart):
    model = GPT(config, dtype=torch.float64)
    for block in model.blocks if apart else []:
        block.attention.fused = masked
    x = model.embed(tokens_BS).detach().requires_grad_()
    logits = model.logits(model.run_blocks(x))
    logits[:, row.document_S == 1].logsumexp(-1).sum().backward()
    return logits.detach(), x.grad[:, row.document_S == 0].abs().max().item()


# %%
logits, through = logits_and_gradient(apart=True)
alone = GPT(config, dtype=torch.float64)(tokens_BS[:, 20:])
print(f"without the mask {logits_and_gradient(apart=False)[1]:.2g} reaches document 0")
print("document 1 in the row and alone give the same logits:", torch.allclose(logits[:, 20:], alone, atol=1e-12))
compare(guess=guess_gradient, predicted=Ratio(0), measured=Ratio(through), name="gradient that reaches document 0")

# %% [markdown]
# Zero, exactly: a masked score is $-\infty$, and its weight is 0. (The positions here are rotary, where only distances count. A table of learned
# positions must begin anew with each document: that is what the second part of a `Row` is for, `position_S`.)
#
# ## 9 · A mixture
#
# A corpus has sources, and each has a share of the samples. Draw at random, and after $t$ samples a source of share $q$ is off by a standard deviation of
# $\sqrt{t q (1 - q)}$; the mean distance is $\sqrt{2/\pi}$ of that, as for every number that is nearly normal. Or round $q t$ for each $t$, with the largest remainders up? Look what that does:

# %%
def largest_remainders(weights, t):
    exact = [weight * t / sum(weights) for weight in weights]
    given = [int(share) for share in exact]
    up = sorted(range(len(weights)), key=lambda i: given[i] - exact[i])[: t - sum(given)]
    return [n + (i in up) for i, n in enumerate(given)]


for t in (10, 11):
    print(t, "samples of three sources, 6 : 6 : 2 →", largest_remainders([6, 6, 2], t))

# %% [markdown]
# With sample 11 the third source would have to take one *back* (states in a parliament met this first, and called it the Alabama paradox).
# So we need a rule that gives one sample at a time and is never a whole one off. Balinski and Young (1975) found it, the **quota method**:
# among the sources that are still below their share of $t + 1$, take the one with the largest $\text{weight} / (\text{given} + 1)$.
#
# **Your turn.** Whose turn is it?


# %%
@your_turn(turns.check_quota, look="How many were given in all? Compare shares in whole numbers: multiply, do not divide. Then choose among those that may.")
def next_source(weights, given):
    """The number of the source that gives the next sample; given[i] samples came of source i so far."""
    ...


# %% tags=["solution"]
@next_source.solution
def next_source(weights, given):
    period, t = sum(weights), sum(given)
    below = [i for i, weight in enumerate(weights) if given[i] * period < weight * (t + 1)]
    return max(below, key=lambda i: weights[i] / (given[i] + 1))


# %% [markdown]
# After `sum(weights)` samples it begins anew, so `Mixture` keeps one period and answers for any $t$ at once: again the state is a
# number. GPT-3's weights, as printed:

# %%
weights, T = [int(source.percent) for source in GPT3.values()], 10_000
mixture, given, worst = Mixture(weights), [0] * 5, 0
for t in range(T):
    given[mixture.at(t)[0]] += 1
    worst = max(worst, *(abs(n - w * (t + 1) / mixture.period) for n, w in zip(given, weights)))
dice = random.Random(0)
draws = [sum(dice.random() < 0.22 for _ in range(T)) for _ in range(300)]
print(f"by quota, no source was ever {worst:.2f} samples off its share in {T:,} samples; weights sum to {mixture.period} %")
expected = (2 * T * 0.22 * 0.78 / np.pi) ** 0.5
compare(predicted={"by dice, share 0.22": Ratio(expected)}, measured={"by dice, share 0.22": Ratio(sum(abs(n - 0.22 * T) for n in draws) / 300)}, tolerance=0.15)

# %% [markdown]
# GPT-3's printed weights make 101 %. Lesson 14 met rows of such tables that do not fit. Is rounding to blame?
# A source of $n$ tokens with share $q$ of $D$ trained ones is
# read $qD/n$ times.

# %%
for name, source in GPT3.items():
    print(f"{name:13} {source.percent / 100 * 300 / source.tokens_e9:5.2f} epochs, printed {source.epochs}")
for D in (270, 275, 339):
    misfits = []
    for name, (n, percent, epochs) in MT_NLG.items():  # each is rounded, by half of its last digit
        due = percent / 100 * D / n
        if abs(due - epochs) > 0.05 + due * (0.05 / n + 0.05 / percent):
            misfits.append(f"{name} ({due:.2f}, printed {epochs})")
    print(f"MT-NLG, if {D}e9 tokens were read: {len(MT_NLG) - len(misfits)} of {len(MT_NLG)} printed epochs fit", *misfits[:2], sep="; not ")
print("MassiveText, bytes a token:", {name: round(1000 * terabytes / tokens_e9, 2) for name, (terabytes, tokens_e9) in MASSIVE_TEXT.items()})

# %% [markdown]
# WebText2's 22 % are 3.5 epochs, not 2.9, so one of the two numbers is a misprint or more rounded than it looks. MT-NLG was trained on 270 billion tokens, says the paper.
# Two of its fifteen sources, OpenWebText2 and Stack Exchange, were then read less often than their rows print, by more than rounding explains; with 275 billion all
# rows fit. The 339 billion that are often quoted are the corpus. And MassiveText's Wikipedia, 0.001 TB, cannot hold
# 4 billion tokens, unless one is a quarter of a byte. (All three
# tables are read here in lectures that quote the papers.)
#
# ## 10 · Three ways to lose it
#
# **The workers of a rank.** PyTorch copies an `IterableDataset` into each worker. One that knows ranks but no workers is read by all of
# them. How many samples come out of 40, with 2 workers?

# %% tags=["varies"]
for asks in (False, True):
    read = elsewhere.read_by_workers(elsewhere.Stride(0, 1, asks), workers=2)
    print(f"asks for its worker: {asks!s:5}  {len(read)} samples, {len(set(read))} of them different")

# %% [markdown]
# (`get_worker_info` tells a worker who it is.) A training run does not notice: an epoch is longer, that is all.
#
# **The last batch.** 41 samples, dealt by stride to 4 ranks: rank 0 has one more than the others. Its last step has an all-reduce. With whom?


# %% tags=["varies"]
def an_epoch():
    for sample in range(dist.get_rank(), 41, dist.get_world_size()):
        dist.all_reduce(torch.tensor([sample]))


try:
    ranks.run(an_epoch, world_size=4)
except ranks.RankFailure as failure:
    print(str(failure).split("\n")[0])

# %% [markdown]
# Without our engine's diagnosis you would see nothing for ten minutes (NCCL) or thirty (gloo), and then a time-out. Our order by function has no such end: every step has a
# whole batch, and an epoch may end inside of one.
#
# **Two that count differently.** The loader counts packed rows, and a restart takes the number for documents. (MosaicML's llm-foundry had this
# fault for a long time, and repeated data; pull request 1277 of June 2024 mended it.)

# %%
lengths = [30, 50, 90, 10, 55, 40, 80, 40, 160, 70]
read = packed_row(lengths, 5, 64)  # the last row before the crash; the state says "6"
starts_at = sum(lengths[:6])  # documents 0 to 5 are skipped
print(f"6 rows ended at token {6 * 64}, in document {int(read.document_S[-1])}; the restart begins at token {starts_at}: {6 * 64 - starts_at} tokens are read twice")

# %% [markdown]
# ## 11 · When one machine is not enough
#
# Before any of this, a corpus is made: text is tokenised, copies are thrown out, what is left is shuffled and cut into shards. For terabytes
# that is a job for a cluster. **Dask** gives one to Python: a scheduler, workers, and collections that are cut into partitions. We
# start a scheduler and two workers *here*; on many machines only the address differs.
#
# Copies first. The same text has the same hash, so let the hash say which shard a document goes to: all its copies meet there, and no
# worker must know all documents. The hash shuffles, too.


# %%
def fingerprint(document):
    return int.from_bytes(hashlib.blake2b(document.encode(), digest_size=8).digest(), "little")


def shard_of(document):
    return mix(0, fingerprint(document)) % 4


def different(shard):
    number, documents = shard
    return number, sorted(set(documents), key=lambda document: mix(1, fingerprint(document)))  # in the order of another hash


def with_signatures(shard):
    return [(document, cluster.signature(document)) for document in shard[1]]


def write_shard(shard, gone):
    tokens = [np.array([*document.encode(), 256]) for document in shard[1] if document not in gone]  # 256 ends a document
    return write_tokens(folder / f"shard-{shard[0]}.bin", np.concatenate(tokens))


# %% [markdown]
# Python's own `hash` would not do: it differs from process to process.
#
# And near copies, that differ in a word? Call a document the set of its runs of three words. Two resemble each other by their **Jaccard index**: shared runs
# over all runs. To compare each with each is quadratic. **MinHash** (Broder 1997) keeps, for each of 64 hashes, the smallest among a document's
# runs. Two sets have the same smallest element with probability equal to their Jaccard index, so 64 numbers estimate it. And those numbers, in bands,
# can be keys of a hash table again: alike documents fall into one bucket. The workers compute the signatures, which is the work; the table is small.
#
# **Guess:** the manual has about 2,600 paragraphs. How many percent are thrown out as exact copies, if one of each stays?

# %%
guess_copies = ask("Percent of the manual's paragraphs thrown out as exact copies?")

# %% tags=["varies"]
documents, pairs, signed = cluster.documents(), [], []
if elsewhere.installed("distributed"):
    import dask.bag
    from distributed import Client, LocalCluster

    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as machines, Client(machines):
        bag = dask.bag.from_sequence(documents, npartitions=8)
        shards = bag.groupby(shard_of).map(different).persist()  # they stay with the workers
        if elsewhere.installed("datasketch"):
            signed = sorted(shards.map(with_signatures).flatten().compute(), key=lambda pair: pair[0])
            pairs = cluster.near_duplicates(signed)
        gone = {document for document, _ in pairs}
        shards.map(write_shard, gone).compute()
    on_disk = np.concatenate([np.fromfile(file, "<u2") for file in sorted(folder.glob("shard-*.bin"))])
    print(f"you said {guess_copies.said}: {1 - len(set(documents)) / len(documents):.0%}; {len(pairs)} near copies are gone, too")
    left = set(documents) - gone
    due = {"documents": Count(len(left)), "tokens": Count(sum(len(each.encode()) + 1 for each in left))}
    display(compare(predicted=due, measured={"documents": Count(int((on_disk == 256).sum())), "tokens": Count(len(on_disk))}, columns=("one process", "cluster")))
else:
    print(f"{elsewhere.named('distributed')}; you said {guess_copies.said}, and one process finds {1 - len(set(documents)) / len(documents):.0%}")

# %% tags=["varies"]
if pairs:
    for document in max(pairs, key=lambda pair: len(pair[0])):
        print(f"  {' '.join(document.split())[:70]} …")
    sketches, exact = dict(signed), [cluster.jaccard(*pair) for pair in pairs]
    guessed = [sketches[a].jaccard(sketches[b]) for a, b in pairs]
    print(f"Jaccard index, by MinHash and exact, mean difference: {sum(abs(a - b) for a, b in zip(guessed, exact)) / len(pairs):.2f} (a standard deviation is at most {(0.25 / 64) ** 0.5:.2f})")
else:
    print(f"{cluster.STORED} near copies (not run here: extras 'cluster' and 'data'; stored, datasketch {elsewhere.STORED_WITH['datasketch']}, November 2026)")

# %% [markdown]
# The same in Spark (not run: it needs Java; `F` is `pyspark.sql.functions`). Near copies would be found by `MinHashLSH` of `pyspark.ml.feature` and its `approxSimilarityJoin`:
#
# ```python
# (spark.createDataFrame([(d,) for d in documents], ["text"])
#     .withColumn("hash", F.xxhash64("text"))
#     .dropDuplicates(["hash"])
#     .withColumn("tokens", F.udf(lambda text: [*text.encode(), 256], "array<int>")("text"))
#     .repartition(4, "hash")
#     .sortWithinPartitions("hash")
#     .select("tokens").write.parquet("shards"))
# ```
#
# ## 12 · What people use
#
# | library | keeps | at a restart |
# |---|---|---|
# | torchdata, `StatefulDataLoader` 0.11 | each rank's workers' positions | exact for the same ranks; doubled: 16 of 40 lost, silently (run above) |
# | Hugging Face Datasets 5.2 | each rank's position in its shards | the same, but to fewer ranks an error (run above) |
# | MosaicML Streaming | epoch, samples seen, seed, "canonical nodes" ([documentation](https://docs.mosaicml.com/projects/streaming)) | made for other numbers of ranks, "elastic determinism"; [issue 869](https://github.com/mosaicml/streaming/issues/869), an error in a resume beyond epoch 1, is open |
# | WebDataset | nothing | its author advises to draw shards with replacement, so that there is no place to go back to (issues [177](https://github.com/webdataset/webdataset/issues/177), [234](https://github.com/webdataset/webdataset/issues/234)) |
# | TensorFlow Datasets | files in fixed shards, an order that is fixed [if you ask for it](https://www.tensorflow.org/datasets/determinism); position is `tf.data`'s | an iterator can be saved with its shuffle buffer, and [that may be large](https://www.tensorflow.org/api_docs/python/tf/data/experimental/CheckpointInputPipelineHook) |
# | Petastorm | Parquet; `cur_shard` of `shard_count` | `make_reader` has no argument for a place to begin at ([source](https://github.com/uber/petastorm/blob/master/petastorm/reader.py)) |
# | Megatron's `GPTDataset` | index files, one global shuffle, stored ([source](https://github.com/NVIDIA/Megatron-LM/blob/main/megatron/core/datasets/gpt_dataset.py)) | a count of samples, so that the batch may change, too; from a table instead of a function |
#
# (The first two were run. Of the others we read what is linked, in November 2026, and ran nothing.)
#
# ## 13 · How much text is there?
#
# Common Crawl has more than 100 billion pages, and each of its archives is about 75 TB ([arXiv 2404.09770](https://arxiv.org/abs/2404.09770), 2024). GPT-3's table above starts from it,
# and keeps 410 billion tokens. MassiveText, Gopher's, is 10.5 TB, or 2,350 billion tokens, of which 300 billion were read. JFT-300M, for images, has 300 million of them with more than 375 million labels (Sun et al. 2017). A run of 1.4
# trillion tokens, two bytes each, is 2.8 TB: it fits on one disk, and into few machines' main memory. So it is mapped.
#
# ## What to keep
#
# | question | answer |
# |---|---|
# | Does text starve a GPU? | no: kilobytes a second. Work on text does |
# | How long is a step? | $\max(M, L/w)$, and all ranks wait for the slowest loader, inside a collective |
# | What does a list of tokens cost? | 40 bytes each, and 32 again in each worker that reads it; an array 2, shared |
# | What is the state of an order? | if the order is a function: the step |
# | What is lost when ranks change? | nothing then; otherwise what falls between the old parts and the new |
# | What keeps documents apart? | a mask; the gradient across is exactly 0 |
# | How close is a mixture to its weights? | by quota within one sample, by dice about $\sqrt t$ |
#
# ## Three exercises
#
# **1.** A model step takes 200 ms, a batch is decoded in 1.5 s on one core. How many workers let no step wait?
#
# **2.** 1.4 trillion tokens of 2 bytes, samples of 4,096. How many GB would a table of the order take, in numbers of 8 bytes, in each process?
#
# **3.** By stride, 4 ranks have read 6 samples each of 48, and 8 ranks go on from their states as in section 5. How many samples are lost?

# %%
answer_1 = None  # workers
display(self_check(answer_1, turns.EXERCISES[0], hint="L / w must not be longer than M."))

answer_2 = None  # GB
display(self_check(answer_2, turns.EXERCISES[1], tolerance=0.01, hint="How many samples are there?"))

answer_3 = None  # samples
self_check(answer_3, turns.EXERCISES[2], hint="Each of 8 ranks skips 6 of its 6.")

# %% [markdown]
# <details><summary>Answers</summary>
#
# 1. 1.5 / 0.2 = 7.5, so 8.
# 2. 342 million samples, 2.73 GB.
# 3. Each of the 8 ranks has 6 samples and skips 6: all that were not read before, 24.
#
# </details>
#
# **The lab**, `labs/lab15_no_token_lost`, asks for a loader with all of this at once: documents of any length, two sources with weights, packed
# rows, workers, and a state of at most 100 bytes. It is killed anywhere and goes on with any number of ranks.
#
# ## Further reading
#
# - Luby and Rackoff 1988, "How to Construct Pseudorandom Permutations from Pseudorandom Functions": why four rounds are enough where
#   numbers are long. With few bits some orders are then more frequent than others, so we make eight.
# - Black and Rogaway 2002, "Ciphers with Arbitrary Finite Domains": walking back inside is §4.
# - Balinski and Young 1975, "The Quota Method of Apportionment".
# - Broder 1997, "On the Resemblance and Containment of Documents": MinHash.
# - Brown et al. 2020, [GPT-3](https://arxiv.org/abs/2005.14165), Table 2.2; Rae et al. 2021, [Gopher](https://arxiv.org/abs/2112.11446), MassiveText; Smith et al. 2022,
#   [MT-NLG](https://arxiv.org/abs/2201.11990).
#
# Lesson 16 asks where the milliseconds of a step go, now that the batch is there.

# %%
shutil.rmtree(folder)
