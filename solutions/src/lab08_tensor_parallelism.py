# %% [markdown]
# # Lab 08 · A vocabulary that no rank holds
#
# **The question:** the longest axis of a language model is its vocabulary. How do you take a loss over a row of
# logits that nobody has?
#
# | | |
# |---|---|
# | Time | about 90 minutes |
# | Builds on | lesson 08: column and row, `f` and `f_bar`; lesson 06: what an all-reduce sends |
# | You write | two functions, and two pairs of a forward and a backward pass; none longer than 20 lines |
# | A GPU | changes nothing here |
#
# | question | | points |
# |---|---|---|
# | 1 | Ask everybody, one knows | 25 |
# | 2 | Three numbers for a token | 35 |
# | 3 | A slice at a time | 25 |
# | 4 | The price, before the run | 15 |
#
# **The rules.** You may use every collective of `torch.distributed`, all of torch, and lesson 08's two operators,
# `operators.f` and `operators.f_bar`. The library's GPT cuts its vocabulary in another way, and PyTorch has a
# `loss_parallel` of its own; both are out of bounds.
# A function leaves what it is given as it was, gradients, modes and hooks among it, and draws no random numbers. Where
# it may change something, its contract says so. The checks look. Between ranks only `torch.distributed` carries
# something: no files, no sockets of your own.
#
# Your functions are called as training calls them: many times in one process, with other numbers of the same shape, in
# float32 or float64 (the result has the dtype that came in). The next call may come before the backward pass of the
# last one. Tensors may lie across in memory, where `view` fails.
# Leaves may have a gradient already: a backward pass adds to it, and leaves the gradient that comes in as it is. A
# second backward pass through one result need not work.
#
# On each rank the checks weigh what it holds at the worst moment, and they count what leaves it, with its
# *messages*: each call that sends something is one. The operating system counts as well, at the sockets. If your ranks
# wait for each other, you need not wait with them: within seconds a report says who waits for whom, and in which line.
#
# Checks that you see here give you points and tell you what is wrong. More run when the lab is graded, on other
# ranks and other sizes. Bytes count only for answers that are right. Cells that show your answer at work fail until
# there is one. That costs nothing.
#
# Question 3 calls your answer to question 2. Questions 1 and 4 need no other.

# %%
import torch
import torch.distributed as dist
import torch.nn.functional as F

from course_kit import measure, ranks
from course_kit.checks import check
from course_kit.checks.habits import Case, as_in_training
from course_kit.checks.held_bytes import outside_torch
from course_kit.compare import compare
from course_kit.notebook import ask
from course_kit.units import Bytes
from course_lib import predict
from course_lib.collectives import operators
from course_lib.model.zoo import LLAMA3_8B

# %% [markdown]
# The table of a vocabulary has a row for each word. Each rank gets some consecutive rows, as even as it goes:
# `own(table)` tells a rank which. It returns a copy of its rows, and the number `first` of the first of them. Every
# rank has at least one row. `problem` makes numbers to work on, the same on every rank.


# %%
FINISHED = ["ParallelGPT", "ParallelEmbedding", "tensor_gpt", "loss_parallel", "DTensor", "numpy", *check.CHANNELS]


def own(table, dim=0):
    rows = torch.arange(table.shape[dim]).tensor_split(dist.get_world_size())[dist.get_rank()]
    return table.index_select(dim, rows).requires_grad_(), int(rows[0])


def problem(n_tokens, vocab_size, width, seed=0, dtype=torch.float64):
    """Hidden states [tokens, width], the whole table [vocabulary, width], and for each token a word."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n_tokens, width, generator=generator, dtype=dtype)
    table = torch.randn(vocab_size, width, generator=generator, dtype=dtype)
    return x, table, torch.randint(vocab_size, (n_tokens,), generator=generator)


# %%
def weighed(fn, inputs, upstream):
    """fn's result and its backward pass: (result, bytes held beyond the inputs, what was sent forward and backward)."""
    with outside_torch() as outside, measure.memory(inputs=[*inputs, upstream], lines=True) as record:
        with measure.traffic() as forward:
            result = fn()
        with measure.traffic() as backward:
            if isinstance(result, torch.Tensor) and result.requires_grad:
                result.backward(upstream)
        held = check.held(record) + outside()
    detached = result.detach().clone() if isinstance(result, torch.Tensor) else result
    return detached, held, forward, backward


# %%
def check_gradient(found, expected, what, look):
    """Each rank's gradient, against its part of the oracle's."""
    none = [rank for rank, grad in enumerate(found) if grad is None]
    where = "whether the result still hangs on the leaf: .detach(), .data, no_grad and new tensors cut the thread"
    check.that(not none, f"{what}: there is one", came=f"None on ranks {none}", look=where)
    for rank, (grad, right) in enumerate(zip(found, expected)):
        factor = float((grad * right).sum() / right.square().sum()) if grad.shape == right.shape else 1.0
        if abs(factor - 1) > 1e-3 and torch.allclose(grad, factor * right):
            check.that(False, f"{what}, rank {rank}", came=f"{factor:.4g} times the right one", look=look)
        check.close(grad, right, f"{what}, rank {rank}", relative=1e-5, look=look)


# %%
def check_sent(accounts, most, least, messages, what, look):
    """Upper and lower limits of what leaves a rank, by the calls that it made and by the sockets."""
    calls = max(each.total_messages for each in accounts)
    check.at_most(calls, messages, f"… messages {what}", look=f"{look}; and what could travel together")
    rounding = messages  # each call's bytes are whole ones
    check.at_most(max(int(each.total_bytes) for each in accounts), int(most) + rounding, f"… bytes {what}", look=look)
    seen, headers = sum(int(each.sent_bytes) for each in accounts), 400 + 600 * (len(accounts) - 1)
    limit = int(1.1 * most + headers * messages) * len(accounts)
    check.at_most(seen, limit, "… and at the sockets of all ranks together", look=look)
    check.at_least(seen, int(least * len(accounts)), "… of these at least", look="what travels uncounted")


def silent(accounts, look):
    calls = [each.total_messages for each in accounts]
    check.equal(calls, [0] * len(calls), "… and messages in the backward pass, for each rank", look=look)


# %% [markdown]
# ## 1 · Ask everybody, one knows (25 points)
#
# A model begins by looking up words. Now the table is cut by rows, and word 7 lies on one rank only. Which one? No
# rank has to know. Each rank is asked for all words. It answers with its row where it has one, and with zeros where it
# has none. The answers are added up.
#
# You have met this sum in lesson 08: it is what a *row-parallel* layer does. So you know the operator, and what its
# backward pass has to send.
#
# **Your contract.** `embed(tokens, table, first)`
#
# - `tokens`: int64, any shape; the same on all ranks, and it stays as it is.
# - `table`: this rank's rows `[rows, width]`, a leaf that wants a gradient. The words `first` to `first + rows - 1` are
# here.
# - Returns the embeddings of all tokens, `[*tokens.shape, width]`, on every rank. All ranks call.
# - The backward pass leaves in `table.grad` what the whole table would have in these rows. (Every rank hands in the
# same gradient of the result.)
# - It sends one all-reduce of the result in the forward pass and nothing in the backward pass. It holds at most eight
# times the result, plus 64 bytes for a token, plus the table's gradient.
#
# **Graded:** embeddings (6 points), gradients (6), bytes held and sent (6), and other ranks and shapes (7).


# %% answer="q1"
def embed(tokens, table, first):
    """Embeddings [*tokens.shape, width] from a table that is cut by rows. One all-reduce. All ranks call."""
    ### BEGIN SOLUTION
    local = tokens - first
    here = (local >= 0) & (local < len(table))
    rows = F.embedding(local.where(here, 0), table).masked_fill(~here[..., None], 0)
    return operators.f_bar(rows)
    ### END SOLUTION


# %% [markdown]
# Six words in a table of one number each, on two ranks. Word 0 is 0, word 1 is 10, and so on, so both ranks should say
# 50, 0, 30, 30.


# %%
def six_words():
    table, first = own(torch.arange(0.0, 60, 10)[:, None])
    return embed(torch.tensor([5, 0, 3, 3]), table, first).flatten().tolist()


ranks.run(six_words, world_size=2)


# %%
def embedded(shape, vocab_size, width, seed=0, dtype=torch.float64):
    upstream, whole, tokens = problem(torch.Size(shape).numel(), vocab_size, width, seed, dtype)
    upstream, tokens = upstream.view(*shape, width), tokens.view(shape)
    (table, first), before = own(whole), tokens.clone()
    result, *account = weighed(lambda: check.call(embed, tokens, table, first), [tokens, table], upstream)
    return result, table.grad, torch.equal(tokens, before), account


# %% check="q1-values" points=6
def check_embeddings(shape, vocab_size, width, world_size=2, seed=0, dtype=torch.float64):
    case = (shape, vocab_size, width, seed, dtype)
    look = "a row's number behind the first rank; words that a rank has not; who comes to the sum; what backward sends"
    found = check.on_ranks(embedded, *case, world_size=world_size, look=look)
    _, whole, tokens = problem(torch.Size(shape).numel(), vocab_size, width, seed, dtype)
    expected = whole[tokens].view(*shape, width)
    for rank, (result, _, unchanged, _) in enumerate(found):
        check.close(result, expected, f"{shape} of {vocab_size} words, rank {rank} of {world_size}", look=look)
        check.that(unchanged, "… and the tokens are as they were", look="what you write into")
    return found


_ = check_embeddings((7,), 11, 4)
_ = check_embeddings((2, 5), 7, 3, seed=1)
_ = check_embeddings((1,), 5, 2, seed=2)


# %% check="q1-gradients" points=6
def check_table_gradient(shape, vocab_size, width, world_size=2, seed=0, dtype=torch.float64):
    found = check_embeddings(shape, vocab_size, width, world_size, seed, dtype)
    upstream, whole, tokens = problem(torch.Size(shape).numel(), vocab_size, width, seed, dtype)
    gradient = torch.zeros_like(whole).index_add_(0, tokens, upstream)
    look = "row 0 and who is counted there; and a sum's gradient: each summand gets it once"
    check_gradient([each[1] for each in found], gradient.tensor_split(world_size), "… gradient of the table", look)
    return [each[-1] for each in found]


_ = check_table_gradient((40,), 11, 4)


# %% check="q1-bytes" points=6
def check_embedding_bytes(n_tokens, vocab_size, width, world_size=2):
    accounts = check_table_gradient((n_tokens,), vocab_size, width, world_size, dtype=torch.float32)
    held, forward, backward = zip(*accounts)
    table, limit = 4 * -(-vocab_size // world_size) * width, 8 * 4 * n_tokens * width + 64 * n_tokens
    look = "what has an entry for each token and each word, or more rows than this rank has"
    check.at_most(max(held), limit + table, f"… bytes held, {n_tokens} of {vocab_size} words", look=look)
    most = predict.all_reduce(4 * n_tokens * width, world_size).bytes
    check_sent(forward, most, most, 1, "in the forward pass", look="whether rows travel that nobody asked for")
    silent(backward, look="who needs what: each rank already has the gradient of the sum")


check.written_with(embed, forbidden=FINISHED)
check_embedding_bytes(256, 4000, 8)

# %% check="q1-hidden" points=7
# Other ranks, shapes and dtypes; a table of three rows; called as training does.
### BEGIN HIDDEN TESTS
#: other ranks, shapes and dtypes
_ = check_table_gradient((3, 2, 4), 13, 5, world_size=3, seed=2)
_ = check_table_gradient((6,), 9, 2, world_size=1, seed=3)
#: a table of three rows
_ = check_table_gradient((), 3, 4, world_size=3, seed=4)
#: other ranks, shapes and dtypes
_ = check_table_gradient((0,), 5, 2, seed=5)
check_embedding_bytes(300, 2001, 16, world_size=3)


def embed_case(seed, dtype, scale=1.0):
    upstream, whole, tokens = problem(6, 9, 4, seed, dtype)
    whole, upstream = scale * whole, scale * upstream
    gradient, (table, first) = torch.zeros_like(whole).index_add_(0, tokens, upstream), own(whole)
    return Case((tokens, table, first), whole[tokens], {1: own(gradient)[0].detach()}, upstream)


#: called as training does
hidden_ways = [{"seed": seed, "dtype": (torch.float64, torch.float32)[seed // 2]} for seed in range(4)]
hidden_ways += [{"seed": 4, "dtype": torch.float32, "scale": 4000.0}]
_ = check.on_ranks(as_in_training, embed, embed_case, hidden_ways, world_size=2)
# Sentences of the contract, and the known-wrong answers that break them.
#= `tokens`: int64 | writes_into_the_tokens
#= `table`: this rank's rows | - what is given
#= The words `first` | offset_forgotten
#= Returns the embeddings | no_zeros no_sum
#= All ranks call | asked_for_nothing
#= The backward pass leaves | zeros_without_their_gradient thread_cut
#= (Every rank hands | sums_the_gradient_as_well
#= It sends one all-reduce | gathers_the_table
#= It holds at most | one_hot
#= Embeddings [ | no_sum
#= One all-reduce | gathers_the_table
### END HIDDEN TESTS

# %% [markdown]
# ## 2 · Three numbers for a token (35 points)
#
# At the other end the same table makes logits: one for each token and each word. Cut by rows, it is a
# *column-parallel* layer, and each rank gets some columns $z$ of the logits. A row of them is scattered over all ranks.
# And the loss of a token wants the whole row:
#
# $$L = \log \sum_j e^{z_j} - z_{\text{target}}.$$
#
# Gather the logits? With 128,256 words (Llama 3) a token has half a megabyte of them. Look at the formula again. From
# each rank it wants only its part of a sum, and the target's logit from the one that has it.
#
# One thing more, since $e^{1000}$ is infinite: every sane softmax first subtracts the largest logit $m$ of the row,
#
# $$L = \log \sum_j e^{z_j - m} - (z_{\text{target}} - m).$$
#
# So three numbers for each token have to be agreed on (Shoeybi et al. 2019, §3). Which of them is a maximum, and which
# are sums? Which can travel together?
#
# Then the gradient. On paper it is short:
# $\partial L / \partial z_j = \mathrm{softmax}(z)_j - [\,j = \text{target}\,]$. What of it does a rank lack, after the
# forward pass? *And autograd?* It does not know what an all-reduce is: PyTorch warns, and passes the gradient through
# as if nothing had happened. Even where that is right, as in `operators.f_bar`, autograd keeps more blocks alive than
# you can afford. So write both passes yourself, in a `torch.autograd.Function`. The frame is there.
#
# **Your contract.** `cross_entropy(logits, targets, first)`
#
# - `logits`: this rank's columns `[tokens, columns]`; for the words `first` to `first + columns - 1`. At least one.
# They stay as they are. `targets`: int64 `[tokens]`, words of the whole vocabulary, the same on all ranks.
# - Returns the mean loss over all tokens, a tensor without dims, the same on every rank. All ranks call.
# - Its backward pass gives each rank the gradient of its own columns, times the gradient that comes in.
# - Logits may be as large as 10,000.
# - It sends no more than three all-reduces of one number for each token do, and nothing in the backward pass. Forward
# and backward, it holds at most *two* blocks as large as its `logits` beside them (the gradient is one of them) and 256
# bytes for a token.
#
# **Graded:** losses (9 points), gradients (8), bytes held and sent (10), and other ranks and logits (8).

# %%
guess_numbers = ask("Forward and backward: how many blocks of this size will F.cross_entropy hold beside its logits?")


# %% answer="q2"
class VocabularyParallelLoss(torch.autograd.Function):
    """Mean cross-entropy of logits whose columns lie on several ranks."""

    @staticmethod
    def forward(ctx, logits, targets, first):
        """The loss; what backward needs goes into ctx.save_for_backward. All ranks call."""
        ### BEGIN SOLUTION
        largest = logits.amax(dim=1)
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        local = targets - first
        here = (local >= 0) & (local < logits.shape[1])
        column = local.where(here, 0)[:, None]
        target = (logits.gather(1, column)[:, 0] - largest).where(here, 0)
        softmax = logits.sub(largest[:, None]).exp_()
        sums = torch.stack([softmax.sum(dim=1), target])
        dist.all_reduce(sums)
        softmax.div_(sums[0][:, None])
        ctx.save_for_backward(softmax, column, here)
        return (sums[0].log() - sums[1]).mean()
        ### END SOLUTION

    @staticmethod
    def backward(ctx, grad):
        """The gradient of this rank's columns, times `grad`; None for targets and first."""
        ### BEGIN SOLUTION
        softmax, column, here = ctx.saved_tensors
        gradient = softmax.scatter_add(1, column, -here[:, None].to(softmax.dtype))
        return gradient.mul_(grad / len(gradient)), None, None
        ### END SOLUTION


def cross_entropy(logits, targets, first):
    """The mean loss over all tokens, from this rank's columns of the logits. All ranks call."""
    return VocabularyParallelLoss.apply(logits, targets, first)


# %% [markdown]
# A token, four words, two ranks. The logits are 0 and 0 on rank 0, and $\log 2$ and 0 on rank 1. So the words have
# probabilities ⅕, ⅕, ⅖, ⅕; the target is word 2, and the loss is $\log 2.5 = 0.916…$ The gradient is ⅕ and −⅗ at the
# target.


# %%
def four_words():
    logits, first = own(torch.tensor([[1.0, 1.0, 2.0, 1.0]]).log(), dim=1)
    loss = cross_entropy(logits, torch.tensor([2]), first)
    loss.backward()
    return round(loss.item(), 4), logits.grad.tolist()


ranks.run(four_words, world_size=2)


# %%
def lossy(n_tokens, vocab_size, scale=1.0, seed=0, dtype=torch.float64, upstream=1.0):
    whole, targets = made_of(n_tokens, vocab_size, scale, seed, dtype)
    (logits, first), up = own(whole, dim=1), torch.tensor(upstream, dtype=dtype)
    before = logits.detach().clone()
    loss, *account = weighed(lambda: check.call(cross_entropy, logits, targets, first), [logits, targets], up)
    return loss, logits.grad, torch.equal(logits, before), account


def made_of(n_tokens, vocab_size, scale, seed, dtype):
    """All logits of a problem, and its targets."""
    logits, _, _ = problem(n_tokens, 1, vocab_size, seed, dtype)
    return scale * logits, problem(n_tokens, vocab_size, 1, seed)[2]


# %% check="q2-values" points=9
def check_losses(n_tokens, vocab_size, scale=1.0, world_size=2, **case):
    look = "the target's number here; of which ranks the maximum is and of which the sums are; then the mean"
    found = check.on_ranks(lossy, n_tokens, vocab_size, scale, world_size=world_size, look=look, **case)
    whole, targets = made_of(n_tokens, vocab_size, scale, case.get("seed", 0), case.get("dtype", torch.float64))
    whole.requires_grad_()
    expected = F.cross_entropy(whole, targets)
    (expected * case.get("upstream", 1.0)).backward()
    for rank, (loss, _, unchanged, _) in enumerate(found):
        what = f"{n_tokens} tokens, {vocab_size} words, logits × {scale:g}: the loss of rank {rank} of {world_size}"
        check.close(loss, expected.detach(), what, relative=1e-5, look=look)
        check.that(unchanged, "… and the logits are as they were", look="which operations end in _, and on what")
    return found, whole.grad.tensor_split(world_size, dim=1)


for scale in (1.0, 1000.0):
    _ = check_losses(9, 11, scale)


# %% check="q2-gradients" points=8
def check_logit_gradients(*case, **kwargs):
    found, expected = check_losses(*case, **kwargs)
    look = "the one that is taken off, and on which rank; the mean; what backward is handed"
    check_gradient([each[1] for each in found], expected, "… gradient of its columns", look)
    return [each[-1] for each in found]


for upstream in (1.0, 3.0):
    _ = check_logit_gradients(9, 11, upstream=upstream)


# %% check="q2-bytes" points=10
def check_loss_bytes(n_tokens, vocab_size, world_size=2):
    accounts = check_logit_gradients(n_tokens, vocab_size, 1.0, world_size, dtype=torch.float32)
    held, forward, backward = zip(*accounts)
    most = predict.all_reduce(3 * 4 * n_tokens, world_size).bytes
    look = "what has an entry for each token and each word, and travels"
    check_sent(forward, most, most / 3, 3, "in the forward pass", look)
    silent(backward, look="what a rank lacks for its own columns, after the forward pass")
    block = 4 * n_tokens * -(-vocab_size // world_size)
    look = "which blocks live at the same time; which could be written into (an operation whose name ends in _)"
    what = f"… bytes held, of which a block of logits is {block:,}"
    check.at_most(max(held), 2 * block + 256 * n_tokens, what, look=look)


check.written_with(cross_entropy, forbidden=FINISHED)
check_loss_bytes(64, 4000)

# %% check="q2-hidden" points=8
# Other ranks, seeds and logits; a rank with one column; called as training does.
### BEGIN HIDDEN TESTS
_ = check_logit_gradients(5, 13, 10_000.0, world_size=3, seed=2, upstream=0.5)
_ = check_logit_gradients(6, 9, world_size=1, seed=3)
_ = check_logit_gradients(4, 4, 30.0, world_size=3, seed=4, upstream=-2.0)
_ = check_logit_gradients(1, 50, seed=5)
check_loss_bytes(50, 3001, world_size=3)


def loss_case(seed, dtype, scale=1.0, shift=0.0, upstream=-1.5):
    whole, targets = made_of(6, 9, scale, seed, dtype)
    whole, upstream = (whole + shift).requires_grad_(), torch.tensor(upstream, dtype=dtype)
    right = F.cross_entropy(whole, targets)
    right.backward(upstream)
    logits, first = own(whole.detach(), dim=1)
    return Case((logits, targets, first), right.detach(), {0: own(whole.grad, dim=1)[0].detach()}, upstream)


#: called as training does
hidden_ways = [{"scale": 1000.0, "dtype": torch.float64}, {"dtype": torch.float64}]
hidden_ways += [{"scale": 10_000.0, "dtype": torch.float32}, {"dtype": torch.float32}]
hidden_ways += [{"dtype": torch.float32, "upstream": upstream} for upstream in (-5000.0, 5000.0)]  # a loss scale
hidden_ways = [{"seed": seed, **way} for seed, way in enumerate(hidden_ways)]
_ = check.on_ranks(as_in_training, cross_entropy, loss_case, hidden_ways, world_size=2)
# The rounding of a logit of size n, beside others like it, moves the softmax by n roundings.
hidden_ways = [{"seed": seed, "shift": -9000.0, "dtype": torch.float64} for seed in (6, 7)]
_ = check.on_ranks(as_in_training, cross_entropy, loss_case, hidden_ways, operations=20_000, world_size=2)
# Sentences of the contract, and the known-wrong answers that break them.
#= `logits`: this rank's columns | targets_offset_forgotten logits_laid_in_a_row
#= At least one | - what is given
#= They stay as they are | writes_into_the_logits
#= `targets`: int64 | everybody_has_the_target
#= Returns the mean loss | target_stays_at_home
#= All ranks call | - who calls
#= Its backward pass gives | one_off_everywhere upstream_forgotten
#= Logits may be | no_maximum maximum_of_at_least_zero
#= It sends no more | gathers_the_logits a_message_for_four_tokens
#= Forward and backward, it holds | autograd_keeps_more
#= Mean cross-entropy | local_maximum
#= The mean loss over all tokens, from | target_stays_at_home
#= The loss; what backward needs | one_slot
#= The gradient of this rank's columns | gradient_of_the_sum softmax_of_its_own_columns
#= None for targets | - the frame asks for it
### END HIDDEN TESTS

# %% [markdown]
# What would one process hold that has all columns?

# %%
whole, targets = made_of(64, 4000, 1.0, 0, torch.float32)
whole.requires_grad_()
with measure.memory(inputs=[whole, targets]) as record:
    F.cross_entropy(whole, targets).backward()
by_hand, held = 3 * whole.nbytes, record.peak.total - record.before.total
compare(
    guess=guess_numbers, predicted=by_hand / whole.nbytes, measured=held / whole.nbytes, tolerance=0.01, name="blocks"
)

# %% [markdown]
# The log-probabilities; the gradient by them, a block of zeros with one entry in each row; the gradient by the logits.
# Yours are two, and each is smaller by the number of ranks.
#
# ## 3 · A slice at a time (25 points)
#
# Your blocks have $1/t$ of the columns now, and still all of the tokens. They need not. The loss of a token depends on
# no other token. So take a *slice* of some tokens: make its logits, its loss, and at once its gradients. Then its
# logits may go, and the next slice takes their place. What stays is small: the sum of the losses, a gradient as large
# as `x`, and one as large as `table`. (Liger's kernels do this on one GPU: Hsu et al. 2024, §3.2.)
#
# Again you fill in a `torch.autograd.Function`: all gradients are there when its *forward* pass ends. Inside, autograd
# is switched off. You may switch it on for a slice, `with torch.enable_grad():`, on a leaf of your own,
# `(…).detach().requires_grad_()`, and call `.backward()` there. (The backward half of an operator of lesson 08 acts only
# where autograd was on; its forward half always.) Two matrix products lead from the gradient $G$ of the logits to those of `x` and `table`; $G$
# has a row for each token and a column for each of your words. What does the backward pass multiply them by?
#
# And one of the two gradients is only a part of a sum on each rank. Which one, and who adds it up?
#
# **Your contract.** `head_loss(x, table, targets, first, slice_tokens)`
#
# - `x`: `[tokens, width]`, the same on every rank. `table`, `first` and `targets` as above. The logits are
# `x @ table.T`. `x` and `table` want gradients; nothing that is given is changed. `slice_tokens` need not divide the
# tokens.
# - Returns the mean loss over all tokens, the same on every rank. All ranks call.
# - Its backward pass leaves on every rank the whole gradient of `x`, and the gradient of its own rows of `table`.
# - It holds at most six blocks `[slice_tokens, rows]`, plus four times `x` and `table` together, plus 256 bytes for a
# token.
# - Of each token it sends what question 2 sends, once, and an all-reduce of the gradient of `x`: in at most three
# messages for a slice and one more for all.
#
# **Graded:** losses and gradients (9 points), bytes held and sent (8), and hidden (8) other slices and ranks, and the
# training of a model whose embedding and head share one table.


# %% answer="q3"
class SlicedHead(torch.autograd.Function):
    """Logits, loss and gradients, some tokens at a time."""

    @staticmethod
    def forward(ctx, x, table, targets, first, slice_tokens):
        """The mean loss; the gradients go into ctx.save_for_backward. All ranks call."""
        ### BEGIN SOLUTION
        x_grad, table_grad, loss = torch.empty_like(x), torch.zeros_like(table), x.new_zeros(())
        for start in range(0, len(x), slice_tokens):
            these = slice(start, start + slice_tokens)
            with torch.enable_grad():
                logits = (x[these] @ table.T).detach().requires_grad_()
                share = cross_entropy(logits, targets[these], first) * (len(logits) / len(x))
                share.backward()
            x_grad[these] = logits.grad @ table
            table_grad.addmm_(logits.grad.T, x[these])
            loss += share.detach()
        dist.all_reduce(x_grad)
        ctx.save_for_backward(x_grad, table_grad)
        return loss
        ### END SOLUTION

    @staticmethod
    def backward(ctx, grad):
        """The gradients of x and table, times `grad`; None for the rest."""
        ### BEGIN SOLUTION
        x_grad, table_grad = ctx.saved_tensors
        return x_grad * grad, table_grad * grad, None, None, None
        ### END SOLUTION


def head_loss(x, table, targets, first, slice_tokens):
    """The mean loss of x @ table.T, of which no more than `slice_tokens` rows are there at a time. All ranks call."""
    return SlicedHead.apply(x, table, targets, first, slice_tokens)


# %%
def two_ranks_and_slices():
    x, whole, targets = problem(6, 8, 3)
    table, first = own(whole)
    return [round(head_loss(x.requires_grad_(), table, targets, first, size).item(), 6) for size in (6, 2, 4)]


print(
    "the loss in slices of 6, 2 and 4 tokens, rank by rank (six times the same):",
    ranks.run(two_ranks_and_slices, world_size=2),
)


# %%
def sliced(n_tokens, vocab_size, width, slice_tokens, seed=0, dtype=torch.float64, upstream=1.0):
    x, whole, targets = problem(n_tokens, vocab_size, width, seed, dtype)
    (table, first), up = own(whole), torch.tensor(upstream, dtype=dtype)
    x.requires_grad_()
    inputs = [x, table, targets]
    before = [each.detach().clone() for each in inputs]
    given = (x, table, targets, first, slice_tokens)
    loss, *account = weighed(lambda: check.call(head_loss, *given), inputs, up)
    return loss, x.grad, table.grad, all(map(torch.equal, inputs, before)), account


def merged(one, other):
    """What was sent in two blocks, as one account."""
    seen = None if one.observed_bytes is None else one.observed_bytes + other.observed_bytes
    n_bytes = {f"{n}": each.total_bytes for n, each in enumerate((one, other))}
    messages = {f"{n}": each.total_messages for n, each in enumerate((one, other))}
    return type(one)(observed_bytes=seen, modelled_bytes=n_bytes, messages=messages)


# %%
def head_alone(n_tokens, vocab_size, width, seed, dtype=torch.float64, upstream=1.0, scale=1.0):
    """The truth, in one process: the loss, and x and the table with their gradients."""
    x, whole, targets = problem(n_tokens, vocab_size, width, seed, dtype)
    x, whole = scale * x, whole / scale
    expected = F.cross_entropy(x.requires_grad_() @ whole.requires_grad_().T, targets)
    (expected * upstream).backward()
    return expected, x, whole


# %% check="q3-values" points=9
def check_head(n_tokens, vocab_size, width, slice_tokens, world_size=2, seed=0, **case):
    expected, x, whole = head_alone(n_tokens, vocab_size, width, seed, **case)
    look = "autograd, which is off in forward: torch.enable_grad(), and a leaf of its own for each slice"
    args = (sliced, n_tokens, vocab_size, width, slice_tokens, seed)
    found = check.on_ranks(*args, world_size=world_size, look=look, **case)
    losses, x_grads, table_grads, unchanged, accounts = zip(*found)
    look = "question 2's checks; then the share of a slice in the mean, also of the last one"
    what = f"{n_tokens} tokens in slices of {slice_tokens}, {world_size} ranks: the loss of each"
    check.that(all(isinstance(loss, torch.Tensor) for loss in losses), "head_loss returns a tensor", look="return")
    check.close(torch.stack(losses), expected.detach().expand(world_size), what, relative=1e-5, look=look)
    check.that(all(unchanged), "… and what it was given is as it was", look="which operations end in _, and on what")
    look = "question 2's gradients; what each rank's product is a part of; a leaf of your own, where .backward() ends"
    check_gradient(x_grads, [x.grad] * world_size, "… gradient of x", look)
    look = "all slices, and what backward is handed; no other rank has a part in it"
    check_gradient(table_grads, whole.grad.tensor_split(world_size), "… gradient of the table", look)
    return accounts


_ = check_head(12, 11, 4, slice_tokens=4)
_ = check_head(10, 11, 4, slice_tokens=4, upstream=3.0)


# %% check="q3-bytes" points=8
def check_head_bytes(n_tokens, vocab_size, width, slice_tokens, world_size=2):
    case = (n_tokens, vocab_size, width, slice_tokens, world_size)
    held, forward, backward = zip(*check_head(*case, dtype=torch.float32))
    rows = -(-vocab_size // world_size)
    limit = 4 * (6 * slice_tokens * rows + 4 * (n_tokens + rows) * width) + 256 * n_tokens
    look = "what lives longer than its slice. (All logits at once would be more than this limit)"
    check.at_most(max(held), limit, f"… bytes held, {n_tokens} tokens, {rows} rows here", look=look)
    most = predict.all_reduce(4 * n_tokens * (3 + width), world_size).bytes
    least = predict.all_reduce(4 * n_tokens * (1 + width), world_size).bytes
    both = [merged(*pair) for pair in zip(forward, backward)]
    slices = -(-n_tokens // slice_tokens)
    look = "what is sent a second time: a forward pass that runs again sends again"
    check_sent(both, most, least, 3 * slices + 1, "in both passes", look)


check.written_with(head_loss, forbidden=FINISHED)
check_head_bytes(112, 1200, 8, slice_tokens=8)

# %% check="q3-hidden" points=8
# Other slices and ranks; called as training does; and a model whose embedding and head share a table learns.
### BEGIN HIDDEN TESTS
#: other slices and ranks
_ = check_head(7, 13, 3, slice_tokens=1, world_size=3, seed=2, upstream=-0.5)
_ = check_head(5, 9, 2, slice_tokens=100, world_size=1, seed=3)
check_head_bytes(100, 1501, 8, slice_tokens=9, world_size=3)


def tied(steps=3):
    _, whole, tokens = problem(11, 10, 4, seed=4)
    (table, first), weight = own(whole), torch.eye(4, dtype=torch.float64, requires_grad=True)
    for _ in range(steps):
        head_loss(torch.tanh(embed(tokens[:-1], table, first) @ weight), table, tokens[1:], first, 3).backward()
        for parameter in (table, weight):
            parameter.data -= parameter.grad
            parameter.grad = None
    return table.detach(), weight.detach()


def tied_alone(steps=3):
    _, table, tokens = problem(11, 10, 4, seed=4)
    weight = torch.eye(4, dtype=torch.float64, requires_grad=True)
    table.requires_grad_()
    for _ in range(steps):
        F.cross_entropy(torch.tanh(table[tokens[:-1]] @ weight) @ table.T, tokens[1:]).backward()
        for parameter in (table, weight):
            parameter.data -= parameter.grad
            parameter.grad = None
    return table.detach(), weight.detach()


def head_case(seed, dtype, upstream=-1.5, scale=1.0):
    expected, x, whole = head_alone(6, 9, 4, seed, dtype, upstream, scale)
    _, _, targets = problem(6, 9, 4, seed, dtype)
    (table, first), gradients = own(whole.detach()), {0: x.grad, 1: own(whole.grad)[0].detach()}
    given = (x.detach().requires_grad_(), table, targets, first, 4)
    return Case(given, expected.detach(), gradients, torch.tensor(upstream, dtype=dtype))


#: called as training does
hidden_ways = [{"seed": seed, "dtype": (torch.float64, torch.float32)[seed // 2]} for seed in range(4)]
hidden_ways += [{"seed": 4, "dtype": torch.float32, "upstream": up, "scale": 4000.0} for up in (-5000.0, 5000.0)]
_ = check.on_ranks(as_in_training, head_loss, head_case, hidden_ways, world_size=2)

#: a model whose embedding and head share a table learns
hidden_table, hidden_weight = tied_alone()
for hidden_rank, parts in enumerate(check.on_ranks(tied, world_size=2)):
    rows = hidden_table.tensor_split(2)[hidden_rank]
    check.close(parts[0], rows, "a shared table after 3 steps", relative=1e-9)
    check.close(parts[1], hidden_weight, "a weight in between after 3 steps", relative=1e-9)
# Sentences of the contract, and the known-wrong answers that break them.
#= `x`: `[tokens, width]` | - what is given
#= `table`, `first` and `targets` | - what is given
#= The logits are | - what is given
#= `x` and `table` want gradients | writes_into_x gradient_replaced
#= `slice_tokens` need not | drops_the_rest mean_of_means
#= Returns the mean loss | mean_of_means
#= All ranks call | - who calls
#= Its backward pass leaves | no_all_reduce_for_x last_slice_only
#= It holds at most six | one_large_slice slices_that_stay
#= Of each token it sends | checkpoints_send_again sums_x_at_every_slice
#= Logits, loss and gradients | one_large_slice
#= The mean loss of x | mean_of_means slices_that_stay
#= The mean loss; the gradients | one_slot_for_the_head
#= The gradients of x and table | head_forgets_upstream
#= None for the rest | - the frame asks for it
### END HIDDEN TESTS

# %% [markdown]
# ## 4 · The price, before the run (15 points)
#
# Three ways to a loss lie side by side now. All numbers have four bytes; $N$ tokens, $V$ words, width $D$, $t$ ranks,
# of which $V$ and $D$ are multiples.
#
# - `"gather"`: the table is cut by rows, and the logits are gathered: every rank gets all columns. In the backward
# pass each rank takes the gradient of its own columns, and the parts of the gradient of `x` are added up.
# - `"sum"`: the table is cut by *width* instead, as in the library's `ParallelGPT`. A rank has some features of every
# word, so of every logit it has one summand. They are added up. In the backward pass each rank finds the gradient of
# its own features of `x`, and those are gathered.
# - `"three"`: question 3's, with three numbers for each token as all-reduces, and one of the gradient of `x`.
#
# An all-reduce of $n$ bytes sends $2\frac{t-1}{t}n$ from each rank; an all-gather whose result has $n$ bytes sends
# $\frac{t-1}{t}n$.
#
# **Your contract.** `sends(way, n_tokens, vocab_size, width, ranks)` returns the bytes, a number, that
# each rank sends in the forward and backward pass of head and loss. On one rank that is 0.
#
# **Graded:** against what the sockets carry when all three run (8 points), and other sizes (7).


# %% answer="q4"
def sends(way, n_tokens, vocab_size, width, ranks):
    """Bytes that each rank sends for head and loss, both passes."""
    ### BEGIN SOLUTION
    once = (ranks - 1) / ranks * 4 * n_tokens
    if way == "gather":
        return once * vocab_size + 2 * once * width
    if way == "sum":
        return 2 * once * vocab_size + once * width
    return 2 * once * 3 + 2 * once * width
    ### END SOLUTION


# %% [markdown]
# The three ways, for the sockets. Nobody computes anything here; what travels has the right size.


# %%
def travel(way, n_tokens, vocab_size, width):
    p = dist.get_world_size()
    with measure.traffic() as sent:
        if way == "gather":
            part = torch.zeros(n_tokens, vocab_size // p)
            dist.all_gather([torch.empty_like(part) for _ in range(p)], part)
        for numbers in {"gather": [width], "sum": [vocab_size], "three": [1, 2, width]}[way]:
            dist.all_reduce(torch.zeros(n_tokens, numbers))
        if way == "sum":
            part = torch.zeros(n_tokens, width // p)
            dist.all_gather([torch.empty_like(part) for _ in range(p)], part)
    return int(sent.sent_bytes)


# %% check="q4-measured" points=8
def check_price(way, n_tokens, vocab_size, width, p):
    seen = check.on_ranks(travel, way, n_tokens, vocab_size, width, world_size=p)
    said, mean = check.call(sends, way, n_tokens, vocab_size, width, p), sum(seen) / p
    look = "what is whole on every rank afterwards and what a sum; forward, then backward"
    what = f'"{way}" with {vocab_size} words on {p} ranks, at the sockets'
    check.close(said, mean, what, relative=0.03, look=look)


for p in (2, 4):
    for way, n_tokens in (("gather", 600), ("sum", 600), ("three", 6000)):
        check_price(way, n_tokens, 64, 16, p)

# %% check="q4-hidden" points=7
# Other sizes, and one rank.
### BEGIN HIDDEN TESTS
for hidden_case, hidden_bytes in {
    ("gather", 10, 8, 4, 4): 0.75 * 40 * (8 + 8),
    ("sum", 10, 8, 4, 4): 0.75 * 40 * (16 + 4),
    ("three", 10, 8, 4, 4): 0.75 * 40 * (6 + 8),
    ("gather", 5, 30, 12, 3): 2 / 3 * 20 * (30 + 24),
    ("sum", 5, 30, 12, 3): 2 / 3 * 20 * (60 + 12),
    ("three", 5, 30, 12, 3): 2 / 3 * 20 * (6 + 24),
    ("three", 5, 30, 12, 1): 0.0,
    ("sum", 5, 30, 12, 1): 0.0,
}.items():
    check.close(check.call(sends, *hidden_case), hidden_bytes, f"{hidden_case}", relative=1e-9)
# Sentences of the contract, and the known-wrong answers that break them.
#= `sends(way | all_reduce_at_half_price backward_is_free
#= On one rank | always_two_ranks
#= Bytes that each rank sends | of_all_ranks_together to_one_neighbour_only
### END HIDDEN TESTS

# %% [markdown]
# ## What to keep
#
# A cut axis is a question to everybody. Some questions have a short answer: a maximum, a sum, one number that only one
# rank knows. Then nothing wide has to travel.
#
# The last guess is about a real vocabulary: Llama 3 8B, 8,192 tokens, 8 ranks, four bytes a number.

# %%
guess_ratio = ask("Summing whole logits sends how many times what the three numbers send?")

# %%
config = LLAMA3_8B.config
words, wide = config.vocab_size, config.width
prices = {way: Bytes(sends(way, 8192, words, wide, 8)) for way in ("gather", "sum", "three")}
times = prices["sum"] / prices["three"]
print(f"{words:,} words, width {wide:,}; you said {guess_ratio.said}, it is {times:.0f} times")
for way, n_bytes in prices.items():
    print(f"{way:>7}: {n_bytes:.2GB} from each rank")
block = Bytes(4 * 8192 * words)
print(f"one block of logits: {block:.2GB} whole, {block // 8:.2GB} on each of 8 ranks")

# %% [markdown]
# Nearly all that is left to send is the gradient of `x`, and every tensor-parallel layer pays that.
#
# **Change one thing.** With how few words would `"sum"` be cheaper than `"three"`? Solve it for $V$, on paper. Then
# look up which models have vocabularies that small. (Pixels, DNA, bytes.)
