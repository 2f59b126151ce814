# %% [markdown]
# # Lab 07 · Uneven replicas and gradients of one bit
#
# **The question:** what does data parallelism need when ranks are *not* alike? And how little can a gradient weigh?
#
# | | |
# |---|---|
# | Time | about 90 minutes |
# | Builds on | lesson 07: replicas, buckets, parameters without a gradient; lesson 05: the mean of means |
# | You write | seven functions, the longest of about 30 lines |
# | A GPU | changes nothing here |
#
# | question | | points |
# |---|---|---|
# | 1 | Who is there, and with how much? | 15 |
# | 2 | One mean, in full buckets | 30 |
# | 3 | Until the last one is done | 20 |
# | 4 | One bit for a number | 10 |
# | 5 | What was lost comes tomorrow | 25 |
#
# **The rules.** You may use every collective of `torch.distributed`, all of torch, and the library's `plan_buckets`,
# which makes a plan and sends nothing. The finished wrappers are out of bounds, PyTorch's
# `DistributedDataParallel` as well as the library's. (They would not help much. PyTorch's has a `join()` for ranks that
# run out of data, but it weighs ranks, not examples.)
# A function leaves what it is given as it was, gradients, modes and hooks among it, and draws no random numbers. Where
# it may change something, its contract says so. The checks look.
#
# The checks read your text, and they count what leaves each rank: its bytes, and its *messages*. Each call that sends
# something is one message; an all-reduce is one, however large. If your ranks wait for each other, you need not wait
# with them: within seconds a report says who waits for whom, and in which line.
#
# Checks that you see here give you points and tell you what is wrong. More run when the lab is graded, on other ranks
# and other data. Bytes and messages count only for answers that are right: who sends nothing is not thrifty. Cells
# that show your answer at work fail until there is one. That costs nothing.
#
# Questions 2 and 3 build on question 1, question 5 builds on question 4. The two halves do not need each other.

# %%
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import parameters_to_vector

from course_kit import measure, ranks
from course_kit.checks import check
from course_kit.checks.habits import Unfilled, across
from course_kit.compare import compare
from course_kit.notebook import ask
from course_kit.units import Bytes, Count, Ratio
from course_lib import predict
from course_lib.parallel import plan_buckets
from course_lib.train.step import train_step
from course_pages.shared.losses import loss_curves


# %%
class Patchwork(nn.Module):
    """A loss, and most of what is difficult: tied, frozen and unused weights, a branch for some examples."""

    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.special, self.never = nn.Linear(16, 16), nn.Linear(16, 16)
        self.into, self.back = nn.Linear(6, 16, bias=False), nn.Linear(6, 16, bias=False)
        self.back.weight = self.into.weight  # tied: one parameter, two names
        self.frozen = nn.Linear(6, 16).requires_grad_(False)
        self.offset = nn.Parameter(torch.zeros(6))
        self.double()

    def forward(self, inputs, targets):
        hidden = torch.tanh(self.into(inputs) + self.frozen(inputs))
        if (chosen := inputs[:, :1] > 0).any():
            hidden = torch.where(chosen, self.special(hidden), hidden)
        return (hidden @ self.back.weight + self.offset - targets).square().sum(dim=1).mean()


# %% [markdown]
# Ranks get shares of different size. `share(step, rank, count)` deals `count` examples; which ranks meet examples for
# the special branch changes from step to step. `backward` is a rank's pass over its share. Where there is no example,
# it leaves NaN in every gradient, the worst that a mean over nothing can do.
#
# And `alone` is the oracle: one process, lesson 00's `train_step`, the joined batch of all ranks. It returns the
# weights after each step. You will be held against it.


# %%
def share(step, rank, count):
    generator = torch.Generator().manual_seed(100 * step + rank)
    inputs, targets = torch.randn(2, count, 6, generator=generator, dtype=torch.float64)
    inputs[:, 0] = inputs[:, 0].abs() * (1 if (step + rank) % 3 == 0 else -1)
    return inputs, targets


def backward(model, step, rank, count):
    if count:
        model(*share(step, rank, count)).backward()
    else:
        branches = nn.ModuleList([model.special, model.never])
        for parameter in (model.offset, model.into.weight, *branches.parameters()):
            parameter.grad = torch.full_like(parameter, float("nan"))


# %%
FINISHED = ["BucketedDataParallel", "NaiveDataParallel", "DistributedDataParallel", "Bucket", "accumulate", "Join"]
OPTIMIZERS = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.02, momentum=0.9, weight_decay=0.1),
    "Adam": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1),
}


def alone(counts_by_step, name):
    model, history = Patchwork(), []
    optimizer = OPTIMIZERS[name](model.parameters())
    for step, counts in enumerate(counts_by_step):
        shares = [share(step, rank, count) for rank, count in enumerate(counts)]
        train_step(model, optimizer, tuple(torch.cat(part) for part in zip(*shares)))
        history.append(parameters_to_vector(model.parameters()).detach().clone())
    return history


# %% [markdown]
# ## 1 · Who is there, and with how much? (15 points)
#
# Before anybody sends a gradient, the ranks should know two things of each other. How many examples are there
# together? And which parameters did *anybody* use? A rank cannot tell alone. It knows its own share, and whether its
# own gradients are `None`.
#
# Both are sums over the ranks. So one small all-reduce of integers can answer both.
#
# **Your contract.** `trainable(model)` returns the list of parameters whose gradients will travel, in the order of
# `model.parameters()`. What is frozen does not travel. What is tied travels once.
#
# **Your contract.** `take_stock(parameters, n_examples)`
#
# - `n_examples`: how many examples this rank has in this step, an `int`. It may be 0.
# - Returns a tuple `(total, used)`, the same on all ranks. `total` is the number of examples of all ranks, an `int`.
# `used` is a list with a `bool` for each parameter: has any rank a gradient for it? *A rank without examples has used
# nothing*, whatever its gradients are.
# - It sends one message, of at most 8 bytes for each parameter and 8 more. All ranks call.
#
# **Graded:** both functions (6 points), the message (4), and other ranks and models (5).


# %% answer="q1"
def trainable(model):
    """The parameters whose gradients travel, each once."""
    ### BEGIN SOLUTION
    return [parameter for parameter in model.parameters() if parameter.requires_grad]
    ### END SOLUTION


# %% answer="q1-stock"
def take_stock(parameters, n_examples):
    """(examples of all ranks, whether any rank used each parameter). One message. All ranks call."""
    ### BEGIN SOLUTION
    used = [n_examples > 0 and parameter.grad is not None for parameter in parameters]
    stock = torch.tensor([n_examples, *used], dtype=torch.int64)
    dist.all_reduce(stock, op=dist.ReduceOp.SUM)
    total, *users = stock.tolist()
    return total, [count > 0 for count in users]
    ### END SOLUTION


# %% [markdown]
# Try it. In step 1 only rank 2 meets special examples. `never` should be unused on all ranks, and everything else
# used.


# %%
def stock_of_a_step(step, counts):
    rank, model = dist.get_rank(), Patchwork()
    backward(model, step, rank, counts[rank])
    with measure.traffic() as sent:
        stock = check.call(take_stock, trainable(model), counts[rank])
    return stock, sent


def most(accounts):
    """Bytes and messages of the rank that sends most."""
    n_bytes = max(sent.total_bytes for sent in accounts)
    return int(n_bytes), max(sent.total_messages for sent in accounts)


print("trainable:", [tuple(parameter.shape) for parameter in trainable(Patchwork())])
ranks.run(stock_of_a_step, step=1, counts=[3, 1, 2, 2], world_size=4)[0][0]


# %%
def check_trainable(model, names):
    expected = [dict(model.named_parameters())[name] for name in names]
    got = check.call(trainable, model)
    check.that(isinstance(got, list | tuple), "trainable returns a list", came=type(got).__name__)
    same = [id(parameter) for parameter in got] == [id(parameter) for parameter in expected]
    where = "what is frozen, what has two names, and the order"
    check.that(same, f"the {len(names)} parameters that travel", came=f"{len(got)} tensors", look=where)


def check_stock(step, counts, special):
    where = "a call that not all ranks make"
    found = check.on_ranks(stock_of_a_step, step, counts, world_size=len(counts), look=where)
    pairs = all(isinstance(stock, tuple) and len(stock) == 2 for stock, _ in found)
    check.that(pairs, "take_stock returns a tuple of two", came=str(found[0][0]))
    totals, used = map(list, zip(*(stock for stock, _ in found)))
    what = f"for shares {counts}, an entry for each rank"
    check.equal(totals, [sum(counts)] * len(counts), f"total {what}", look="what is added up, and its type")
    expected, where = [True, special, special, False, False, True], "who has used what; a rank without examples"
    check.equal(used, [expected] * len(counts), f"used {what}, in it one for each parameter", look=where)
    return [sent for _, sent in found]


# %% check="q1-values" points=6
NAMES = ["offset", "special.weight", "special.bias", "never.weight", "never.bias", "into.weight"]
check_trainable(Patchwork(), NAMES)
for step, counts, special in ((1, [3, 1, 2, 2], True), (0, [0, 2, 5, 0], False)):
    check_stock(step, counts, special)

# %% check="q1-message" points=4
found = check.on_ranks(stock_of_a_step, 1, [3, 1, 2, 2], world_size=4)
right = all(isinstance(stock, tuple) and stock[:1] == (8,) for stock, _ in found)
check.that(right, "the right total", expected="(8, …)", came=str(found[0][0]), look="the values, before the bytes")
n_bytes, messages = most([sent for _, sent in found])
limit = predict.all_reduce(8 * (1 + 6), world_size=4).bytes
check.at_most(messages, 1, "… messages", look="whether one tensor could carry all you need")
check.at_most(n_bytes, int(limit), "… bytes of the rank that sends most", look="what you send for each parameter")

# %% check="q1-hidden" points=5
# Other ranks, and models with other weights frozen.
### BEGIN HIDDEN TESTS
thawed = Patchwork()
thawed.frozen.requires_grad_(True)
thawed.never.requires_grad_(False)
#: models with other weights frozen
check_trainable(thawed, ["offset", "special.weight", "special.bias", "into.weight", "frozen.weight", "frozen.bias"])
check_trainable(nn.Linear(3, 3).requires_grad_(False), [])
#: other ranks
check_stock(step=3, counts=[7000], special=True)
check_stock(step=1, counts=[4, 1], special=False)
check_stock(step=2, counts=[1, 0, 0], special=False)
check.at_most(most(check_stock(step=2, counts=[1, 2, 3], special=True))[1], 1, "one message on 3 ranks")


def stock_of_two():
    rank, pair = dist.get_rank(), [nn.Parameter(torch.tensor([3e3, -3e3])), nn.Parameter(across(torch.zeros(2, 3)))]
    pair[1].grad = torch.zeros(2, 3) if rank else None  # a gradient of zeros is one
    with Unfilled():
        first = take_stock(pair, 2**40 + 4 + rank)
        pair[0].data.neg_()
        pair[0].grad = torch.ones(2)
        return first, take_stock(pair, rank)


both = [((2**41 + 9, [False, True]), (1, [True, True]))] * 2
check.equal(check.on_ranks(stock_of_two, world_size=2), both, "many examples, one of two used; then one, and both")
# Sentences of the contract, and the known-wrong answers that break them.
#= `trainable(model)` returns | tied_twice
#= What is frozen | frozen_weights_travel
#= What is tied | tied_twice
#= `n_examples`: how | stock_in_float32
#= It may be 0 | used_without_examples
#= Returns a tuple | stock_in_float32
#= `total` is the number | stock_in_float32
#= `used` is a list | a_gradient_of_zeros_is_none
#= *A rank without | used_without_examples
#= It sends one message | stock_in_two_messages
#= All ranks call | - who calls
#= The parameters whose | tied_twice
#= (examples of all | stock_in_float32
#= One message | stock_in_two_messages
### END HIDDEN TESTS

# %% [markdown]
# ## 2 · One mean, in full buckets (30 points)
#
# The last batch of an epoch has seven examples, and there are four ranks: 3, 2, 1 and 1. Or the examples are texts,
# and the shares have 900 and 200 tokens. Each rank computes the *mean* loss of its own share. Lesson 07 adds up four
# gradients and divides by four. How much say has an example of rank 0 then, and how much one of rank 3?
#
# You know this trap from lesson 05. What should each gradient be multiplied by, so that the sum over the ranks is the
# gradient of the joined mean?
#
# There is a second trap in it. A rank with *no* example has a mean over nothing. That is NaN, and its gradient is 0 in
# one model and NaN in the next. What is 0 times NaN? (And the NaN of a rank that *has* examples is news. Let it
# arrive.)
#
# And where is the overlap? In lesson 07, section 4, buckets left in the middle of the backward pass. Yours wait for
# its end and for the stock. Before that, nobody knows which parameters were used, so nobody knows what belongs into a
# bucket. The library's buckets leave early all the same: they take every trainable parameter along, with zeros where
# there is no gradient, and a count for each. You save those bytes and give up that time.
#
# **Your contract.** `synchronize(model, n_examples, bucket_bytes)`
#
# - All ranks call it after their backward passes. Each `.grad` is then the gradient of this rank's mean loss over its
# `n_examples` examples, or `None` where the parameter was not used. Without examples it may be anything.
# - Afterwards each used parameter has, on all ranks, the gradient of the mean over all examples of all ranks. A rank
# that did not use a parameter gets it, too. What no rank used has `grad = None`, on all ranks.
# - Returns the number of examples of all ranks. If that is 0, no gradient is sent.
# - Gradients travel in buckets: whole gradients of one dtype, glued. A bucket is sent when it has reached
# `bucket_bytes`, not earlier; a last one of each dtype may stay smaller. `plan_buckets` tells you which gradients
# go together. What nobody used, and what is frozen, is not sent.
# - A gradient may lie across in memory, like `x.t()`. `flatten()` reads it; `view(-1)` and `parameters_to_vector`
# refuse.
#
# **Graded:** the weights after every step, with uneven shares (10 points), unused parameters (6), bytes and messages
# (6); hidden: one, two and three ranks, other shares (5), and a model of another kind, with two dtypes (3).

# %%
guess_bytes = ask("Step 1, 4 ranks, fp64: how many bytes does each rank send, stock and gradients?", unit="B")


# %% answer="q2"
def synchronize(model, n_examples, bucket_bytes):
    """Replace gradients by those of the mean over the examples of all ranks; returns their number.

    Bytes sent: 2(p-1)/p of the used gradients and the stock. Messages: the buckets and one. All ranks call.
    """
    ### BEGIN SOLUTION
    everything = trainable(model)
    total, used = take_stock(everything, n_examples)
    for parameter, anybody in zip(everything, used):
        if not anybody:
            parameter.grad = None
        elif parameter.grad is None or n_examples == 0:
            parameter.grad = torch.zeros_like(parameter)  # 0 times a mean over nothing would be NaN
    parameters = [parameter for parameter, anybody in zip(everything, used) if anybody]
    for numbers in plan_buckets(parameters, bucket_bytes):
        bucket = [parameters[number] for number in numbers]
        flat = torch.cat([parameter.grad.flatten() for parameter in bucket]) * (n_examples / total)
        dist.all_reduce(flat, op=dist.ReduceOp.SUM)
        for parameter, mean in zip(bucket, flat.split([parameter.numel() for parameter in bucket])):
            parameter.grad = mean.view_as(parameter)
    return total
    ### END SOLUTION


# %% [markdown]
# Does it pay to be careful? Let rank 0 read another sort of text than the others: its targets lie higher by 2. It has
# nine of twelve examples. One line below is your gradient; for the other one, each rank says that it has one example.
# Both are the loss on new examples, mixed as the old ones are.


# %%
def mixture(step, rank, count):
    inputs, targets = share(step, rank, count)
    return inputs, targets + (2 if rank == 0 else 0)


def losses(counts, weigh_alike, steps=60):
    model, rank = Patchwork(), dist.get_rank()
    optimizer, curve = torch.optim.SGD(model.parameters(), lr=0.03), []
    unseen = [torch.cat(part) for part in zip(*(mixture(1000, r, 9 * count) for r, count in enumerate(counts)))]
    for step in range(steps):
        optimizer.zero_grad()
        model(*mixture(step, rank, counts[rank])).backward()
        synchronize(model, 1 if weigh_alike else counts[rank], bucket_bytes=2**20)
        optimizer.step()
        curve.append(model(*unseen).item())
    return curve


# %%
names = {"every example counts alike": False, "every rank counts alike": True}
loss_curves(
    {name: ranks.run(losses, [9, 1, 1, 1], alike, world_size=4)[0] for name, alike in names.items()},
    unit="squared error",
    caption="Shares of 9, 1, 1 and 1. Where every rank counts alike, three examples of twelve have most of the say.",
    alt="Two falling loss curves. The one of the mean of means stays clearly above the one of the mean over examples.",
)


# %%
def a_step(step, counts, bucket_bytes=512):
    rank, model = dist.get_rank(), Patchwork()
    backward(model, step, rank, counts[rank])
    with measure.traffic() as sent:
        total = check.call(synchronize, model, counts[rank], bucket_bytes, may_change="grad")
    return total, {name: parameter.grad for name, parameter in model.named_parameters()}, sent


used_numbers = 6 * 16 + (16 * 16 + 16) + 6
by_hand = predict.all_reduce(8 * (used_numbers + 1 + 6), world_size=4).bytes
measured_bytes = ranks.run(a_step, 1, [2, 2, 2, 2], world_size=4)[0][2].total_bytes
compare(
    guess=guess_bytes, predicted=by_hand, measured=measured_bytes, tolerance=0.001, unit="B", name="each rank sends"
)

# %% [markdown]
# The model has 758 numbers, and more if you count the tied weight by its names. 374 of them travel in this step.


# %%
def weights_by_step(counts_by_step, name):
    model, rank, history = Patchwork(), dist.get_rank(), []
    optimizer = OPTIMIZERS[name](model.parameters())
    for step, counts in enumerate(counts_by_step):
        optimizer.zero_grad()
        backward(model, step, rank, counts[rank])
        check.call(synchronize, model, counts[rank], bucket_bytes=512, may_change="grad")
        optimizer.step()
        history.append(parameters_to_vector(model.parameters()).detach().clone())
    return history


# %% check="q2-values" points=10
def check_weights(histories, expected, what, look):
    lengths = [len(history) for history in histories]
    check.equal(lengths, [len(expected)] * len(histories), f"optimizer steps of each rank, {what}", look=look)
    for step, right in enumerate(expected):
        got = torch.stack([history[step] for history in histories])
        rows = right.expand(len(histories), -1)
        check.close(got, rows, f"weights after step {step}, a row for each rank, {what}", relative=1e-9, look=look)


UNEVEN = [[3, 2, 1, 1], [1, 4, 2, 2], [5, 1, 1, 1]]
for name in OPTIMIZERS:
    found = check.on_ranks(weights_by_step, UNEVEN, name, world_size=4)
    check_weights(found, alone(UNEVEN, name), f"uneven shares, {name}", look="what one example of each rank weighs")


# %%
def one_step(step, counts):
    """The gradients of one process with the joined batch."""
    model = Patchwork()
    inputs, targets = (torch.cat(part) for part in zip(*(share(step, *each) for each in enumerate(counts))))
    model(inputs, targets).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def missing(grads):
    return [name for name, grad in grads.items() if grad is None]


def joined(grads):
    return parameters_to_vector([grad for grad in grads.values() if grad is not None])


# %%
USED = [(6,), (16, 16), (16,), (16, 6)]  # the shapes that travel in step 1, in the order of the buckets


# %% check="q2-unused" points=6
def check_a_step(step, counts, bucket_bytes=512):
    p, right, look = len(counts), one_step(step, counts), "a call that not all ranks make, or not in the same order"
    found = check.on_ranks(a_step, step, counts, bucket_bytes, world_size=p, look=look)
    totals, what = [total for total, *_ in found], f"shares {counts}, an entry for each rank: what it returns"
    check.equal(totals, [sum(counts)] * p, what, look="what take_stock tells you")
    look = "what nobody used, and what is frozen: it has no gradient. All else has one"
    check.equal([missing(grads) for _, grads, _ in found], [missing(right)] * p, "… what has no gradient", look=look)
    rows = torch.stack([joined(grads) for _, grads, _ in found])
    look = "first the weights above; then what a rank adds that did not use a parameter, or that has no example"
    check.close(rows, joined(right).expand(p, -1), "… the gradients, a row for each rank", relative=1e-9, look=look)
    return [sent for *_, sent in found]


# special is used on rank 2 only, then on none; then rank 1 has no example, and NaN for gradients
for step, counts in ((1, [2, 2, 2, 2]), (1, [2, 2]), (0, [2, 0, 2])):
    check_a_step(step, counts)


# %% check="q2-traffic" points=6
def check_step_traffic(step, world_size, bucket_bytes, used_shapes):
    accounts = check_a_step(step, [2] * world_size, bucket_bytes)
    sent, messages = most(accounts)
    tensors = [torch.empty(shape, dtype=torch.float64, device="meta") for shape in used_shapes]
    n_bytes = sum(tensor.nbytes for tensor in tensors)
    limit = predict.all_reduce(n_bytes + 8 * (1 + 6), world_size).bytes + 8
    where = "what is sent twice or for nothing: tied, frozen, unused; and whether a sum goes the cheapest way"
    check.at_most(sent, int(limit), f"… bytes of a step, of {world_size} ranks the one that sends most", look=where)
    planned, where = 1 + len(plan_buckets(tensors, bucket_bytes)), "when you send a bucket: it must be full, and the stock is one message"
    check.at_most(messages, planned, f"… messages with {bucket_bytes} B a bucket", look=where)
    fewest = 1 - n_bytes // -(bucket_bytes + max(tensor.nbytes for tensor in tensors))
    check.at_least(messages, fewest, "… and so many at least", look="how large a bucket may get")
    check.carried(accounts, least=2 * (world_size - 1) * n_bytes)  # a sum needs so many, whoever adds up


check.written_with(synchronize, forbidden=FINISHED)
check_step_traffic(step=1, world_size=4, bucket_bytes=512, used_shapes=USED)
check_step_traffic(step=1, world_size=4, bucket_bytes=1024, used_shapes=USED)

# %% check="q2-hidden" points=5
# One, two and three ranks; empty shares; other sizes of buckets.
### BEGIN HIDDEN TESTS
#: one, two and three ranks; empty shares
for hidden_counts in (
    [[3], [1], [2]],
    [[1, 6], [0, 2], [3, 2], [2, 0]],
    [[0, 3, 1], [4, 0, 0], [1, 1, 5], [2, 0, 7]],
):
    for name in OPTIMIZERS:
        hidden_size = len(hidden_counts[0])
        found = check.on_ranks(weights_by_step, hidden_counts, name, world_size=hidden_size)
        check_weights(found, alone(hidden_counts, name), f"{hidden_size} ranks, {name}", look="")
#: other sizes of buckets
check_step_traffic(step=1, world_size=3, bucket_bytes=1, used_shapes=USED)
check_step_traffic(step=1, world_size=2, bucket_bytes=2**20, used_shapes=[(6,), (16, 6)])


def six_alike():
    model = nn.Sequential(*[nn.Linear(4, 1, bias=False) for _ in range(6)])
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    with measure.traffic() as sent:
        synchronize(model, 1, 32)
    return sent.total_messages


messages = check.on_ranks(six_alike, world_size=2)
check.equal(list(map(int, messages)), [4, 4], "messages for six gradients of 16 B in buckets of 32 B")


def dtypes_by_turns():
    model = nn.ParameterList(torch.zeros(1, dtype=(torch.float32, torch.float64)[number % 2]) for number in range(8))
    for number, parameter in enumerate(model):
        parameter.grad = torch.full_like(parameter, number + dist.get_rank())
    with measure.traffic() as sent:
        check.call(synchronize, model, 1, 16, may_change="grad")
    return int(sent.total_messages), [parameter.grad.item() for parameter in model]


what = "messages for four gradients of 4 B and four of 8 B, by turns, in buckets of 16 B; and the means"
found = check.on_ranks(dtypes_by_turns, world_size=2)
check.equal(found, [(4, [number + 0.5 for number in range(8)])] * 2, what, look="what waits for what")
### END HIDDEN TESTS

# %% check="q2-mixed" points=3
# Two dtypes; memory that lies across; a NaN that is news; no example anywhere.
### BEGIN HIDDEN TESTS
ACROSS = torch.arange(6.0).view(3, 2).t()


def mixed():
    rank, model = dist.get_rank(), nn.Module()
    model.a, model.b = nn.Parameter(3e3 - 1200 * ACROSS), nn.Parameter(torch.zeros(3, dtype=torch.float64))
    model.c = nn.Parameter(torch.zeros(2, dtype=torch.float64))
    model.a.grad = ACROSS * (rank + 1)
    model.b.grad = torch.ones(3, dtype=torch.float64) if rank else None
    model.c.grad = torch.tensor([1.0, float("nan") if rank else 1.0], dtype=torch.float64)
    with Unfilled(), measure.traffic() as sent:
        total = synchronize(model, 1 + 2 * rank, 8)
    idle = Patchwork()
    backward(idle, 0, rank, 0)
    with measure.traffic() as stock:
        totals = [total, synchronize(idle, 0, 8)]
    left, said = [each.grad is None for each in idle.parameters()], [int(sent.total_bytes), int(stock.total_messages)]
    return totals, left, said, model.a.grad, model.b.grad, model.c.grad


for totals, left, (n_bytes, messages), *grads in check.on_ranks(mixed, world_size=2):
    #: no example anywhere
    check.equal(totals, [4, 0], "examples of a mixed model, and of nobody")
    check.at_most(messages, 1, "… and where nobody has an example, the stock is all that is sent, in messages")
    check.that(all(left), "… and where nobody has an example, nothing has a gradient")
    #: two dtypes
    check.at_most(n_bytes, 8 * 4 + 6 * 4 + 5 * 8, "bytes of a stock and of gradients in two dtypes")
    #: memory that lies across
    check.close(grads[0], 1.75 * ACROSS, "a gradient across", operations=4)
    #: two dtypes
    check.close(grads[1], torch.full((3,), 0.75, dtype=torch.float64), "a gradient of the other dtype", operations=4)
    #: a NaN that is news
    check.close(grads[2], torch.tensor([1.0, float("nan")], dtype=torch.float64), "a NaN that is news", operations=4)
# Sentences of the contract, and the known-wrong answers that break them.
#= All ranks call it | - who calls
#= Each `.grad` is | - what is given
#= Without examples | zero_times_nan
#= Afterwards each used | mean_of_means no_division_by_the_examples
#= A rank that did not | skips_what_it_has_not
#= What no rank used | what_nobody_used_stays
#= Returns the number | own_number_of_examples
#= If that is 0 | zeros_travel
#= Gradients travel in | one_message_for_each_gradient buckets_travel_in_double
#= A bucket is sent | sent_before_it_is_filled buckets_twice_as_large a_wait_that_ignores_the_dtype
#= `plan_buckets` tells | everything_in_one_bucket
#= What nobody used, and | planned_before_the_stock
#= A gradient may lie | view_of_what_lies_across
#= `flatten()` reads | - advice
#= `view(-1)` and | - advice
#= Replace gradients | mean_of_means
#= Bytes sent | whole_tensors_round_the_ring everyone_to_everyone
#= Messages: the buckets | one_message_for_each_gradient
#= All ranks call | - who calls
### END HIDDEN TESTS

# %% [markdown]
# ## 3 · Until the last one is done (20 points)
#
# Ranks read files of their own, and the files are not equally long. Rank 1 has one batch, rank 2 has four, rank 3 has
# none at all. Rank 1 is done and returns. What happens to the others? (Lesson 07, section 9, has the report.)
#
# One may stop when the first one is out of data: that throws data away. One may read something twice: then it counts
# twice. Your ranks do neither. A rank that is out of data goes on *with a share of 0*, until nobody has anything
# left. How does a rank learn that nobody has? Look at what `synchronize` returns.
#
# **Your contract.** `train_epoch(model, optimizer, batches, bucket_bytes)`
#
# - All ranks call. `batches` is this rank's list of `(inputs, targets)`, and stays as it is; no rank knows another
# one's list. The number of examples in a batch is `len(inputs)`, and 0 is possible. In each step at least one rank has
# an example, until the longest list ends.
# - In each step, every rank takes its next batch if it has one; `model(inputs, targets)` is the mean loss. One
# `optimizer.step()` with the gradient of the joined batch, *on every rank*, also on those that are out of data. (And
# clear first what gradients are there, as always.)
# - Returns the number of steps: the same on all ranks.
# - It sends what `synchronize` sends in each step, and at most one stock more.
#
# **Graded:** the weights after every step (10 points), traffic (4), and hidden (6) other lists.


# %% answer="q3"
def train_epoch(model, optimizer, batches, bucket_bytes):
    """Train until no rank has a batch left; returns the number of steps. All ranks call."""
    ### BEGIN SOLUTION
    steps = 0
    while True:
        optimizer.zero_grad(set_to_none=True)
        inputs, targets = batches[steps] if steps < len(batches) else ((), ())
        if len(inputs):
            model(inputs, targets).backward()
        everywhere = synchronize(model, len(inputs), bucket_bytes)
        if everywhere == 0:
            return steps
        optimizer.step()
        steps += 1
    ### END SOLUTION


# %% [markdown]
# Four ranks, with three, one, four and no batches. After the epoch, are they still one model?


# %%
def epoch(lists, name, bucket_bytes=512):
    rank, model, history = dist.get_rank(), Patchwork(), []
    optimizer = OPTIMIZERS[name](model.parameters())
    optimizer.register_step_post_hook(
        lambda *_: history.append(parameters_to_vector(model.parameters()).detach().clone())
    )
    batches = [share(step, rank, count) for step, count in enumerate(lists[rank])]
    with measure.traffic() as sent:
        free = (*model.parameters(), optimizer)
        steps = check.call(train_epoch, model, optimizer, batches, bucket_bytes, may_change=free)
    return steps, history, sent, len(batches)


LISTS = [[3, 2, 1], [2], [1, 2, 2, 4], []]
found = ranks.run(epoch, LISTS, "Adam", world_size=4)
print("steps:", [steps for steps, *_ in found])
print("one model:", all(torch.equal(history[-1], found[0][1][-1]) for _, history, *_ in found))


# %% check="q3-values" points=10
def check_epoch(lists, name, bucket_bytes=512):
    longest = max(map(len, lists))
    counts_by_step = [[counts[step] if step < len(counts) else 0 for counts in lists] for step in range(longest)]
    where = "when a rank may stop, and what a rank does that is out of data"
    found = check.on_ranks(epoch, lists, name, bucket_bytes, world_size=len(lists), look=where)
    all_steps, histories, sent, left = map(list, zip(*found))
    check.equal(all_steps, [longest] * len(lists), f"steps for lists {lists}", look=where)
    where = "which gradients a step begins with, and what a rank does that is out of data"
    check_weights(histories, alone(counts_by_step, name), f"lists {lists}, {name}", look=where)
    check.equal(left, [*map(len, lists)], "… and each list is as long as it was", look="what you do to batches")
    return sent


for name in OPTIMIZERS:
    check_epoch(LISTS, name)


# %% check="q3-traffic" points=4
def check_epoch_traffic(lists, bucket_bytes, numbers_by_step, messages):
    accounts = check_epoch(lists, "SGD", bucket_bytes)
    n_bytes, sent = most(accounts)
    stock = predict.all_reduce(8 * (1 + 6), len(lists)).bytes
    steps = [predict.all_reduce(8 * numbers, len(lists)).bytes + stock for numbers in numbers_by_step]
    where = "what you send besides synchronize, and how often; within it, weights that are tied"
    check.at_most(n_bytes, int(sum(steps) + stock + 8), f"… bytes for lists {lists}", look=where)
    check.at_most(sent, messages, "… messages", look=where)
    check.at_least(sent, messages - 1, "… and so many at least", look="how large a bucket may get")
    check.carried(accounts, least=2 * (len(lists) - 1) * 8 * sum(numbers_by_step))


# Special examples are for rank 0 in step 0 (and rank 3, who has none), for rank 2 in step 1, for nobody after that.
check.written_with(train_epoch, forbidden=FINISHED)
check_epoch_traffic(LISTS, 2**20, numbers_by_step=[374, 374, 102, 102], messages=4 * 2 + 1)

# %% check="q3-hidden" points=6
# Other lists: one rank, nothing to do for anybody, empty batches, the first rank out first.
### BEGIN HIDDEN TESTS
#: one rank
check_epoch([[2, 1]], "SGD")
#: empty batches, the first rank out first
check_epoch([[], [0, 3, 0, 2, 1, 1], [1, 0, 2]], "SGD")
check_epoch([[1], [0, 2, 2]], "Adam")
#: nothing to do for anybody
check_epoch([[], []], "SGD")
#: other lists
check_epoch_traffic([[2, 2], [2]], 1, numbers_by_step=[374, 102], messages=5 + 3 + 1)


class Line(nn.Linear):
    def forward(self, inputs, targets):
        return (super().forward(inputs) - targets).square().sum(dim=1).mean()


def epoch_of_a_line(parts):
    model = Line(3, 2, bias=False)
    nn.init.ones_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.125)
    with Unfilled():
        return train_epoch(model, optimizer, parts[dist.get_rank()], 64), model.weight.detach()


def epoch_of_large_numbers():
    model = Line(3, 2, bias=False)
    model.weight.data = across(torch.tensor([[2e3, -2e3, 1.0], [0.0, 3.0, -1.0]]))
    model.weight.grad = torch.ones(2, 3)  # of another training
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    inputs = across(torch.eye(3)[dist.get_rank() :][:1])
    steps = [train_epoch(model, optimizer, [(inputs, torch.zeros(1, 2))], 64) for _ in range(2)]
    return steps, model.weight.detach()


hidden_parts = torch.randn(2, 2, 4, 5, generator=torch.Generator().manual_seed(5))  # rank, step, example, numbers
line_parts = [[(each[:, :3], each[:, 3:]) for each in part[: 2 - rank]] for rank, part in enumerate(hidden_parts)]
one_line = Line(3, 2, bias=False)
nn.init.ones_(one_line.weight)
for every in (torch.cat([part[0] for part in hidden_parts]), hidden_parts[0][1]):
    train_step(one_line, torch.optim.SGD(one_line.parameters(), lr=0.125), (every[:, :3], every[:, 3:]))
for line_steps, line_weight in check.on_ranks(epoch_of_a_line, line_parts, world_size=2):
    check.equal(line_steps, 2, "steps of another model, in fp32")
    check.close(line_weight, one_line.weight.detach(), "… its weights", operations=50)
halved = torch.tensor([[500, -500, 1.0], [0.0, 0.75, -1.0]])  # each rank's one example halves a column, twice
for line_steps, line_weight in check.on_ranks(epoch_of_large_numbers, world_size=2):
    check.equal((line_steps, line_weight), ([1, 1], halved), "two epochs of a line of large numbers that lie across")
# Sentences of the contract, and the known-wrong answers that break them.
#= All ranks call | - who calls
#= `batches` is this | takes_from_the_list
#= The number of examples | as_long_as_the_first_batch
#= In each step at least | - what is given
#= In each step, every | stops_with_the_first the_last_batch_again
#= `model(inputs, targets)` is | - what is given
#= One `optimizer.step()` | done_is_gone
#= (And clear first | gradients_add_up
#= Returns the number | own_number_of_steps
#= It sends what | buckets_of_its_own_size
#= Train until no | stops_with_the_first
### END HIDDEN TESTS

# %% [markdown]
# ## 4 · One bit for a number (10 points)
#
# Your gradients are right now, and they have 32 or 64 bits. How many do they need? In 2014 a group at Microsoft sent
# **one**: the sign (Seide et al. 2014). In the version that you build, one float32 goes with it for the whole tensor,
# the *scale*. A number $x_i$ arrives as $+s$ or $-s$.
#
# Which $s$? Take the one that loses least: for which $s$ is $\sum_i (x_i - s \,\mathrm{sign}(x_i))^2$ smallest? Take
# a pencil. It is a parabola in $s$. (There is no third sign: zero counts as plus.)
#
# **Your contract.** `encode(x)` takes a float32 tensor of one dim, $n$ numbers, and returns the message: a `uint8`
# tensor of one dim with $4 + \lceil n/8 \rceil$ bytes, the scale and the packed signs. (`x >= 0` is plus. No numbers:
# a scale of 0, four zero bytes.) How the bits lie in it is yours to choose. `x` stays as it is.
#
# `decode(message, n)` returns the $n$ numbers that arrive, in float32. It has the message and nothing else.
#
# (`.view(torch.uint8)` shows the four bytes of a float32 tensor of one element, and `.view(torch.float32)` the
# reverse. The reverse wants its bytes at the start of a memory of their own: `.clone()`.)
#
# **Graded:** what arrives, and the bytes (6 points), and other sizes (4).


# %% answer="q4"
def encode(x):
    """The scale and one sign bit for each number: 4 + ceil(n/8) bytes."""
    ### BEGIN SOLUTION
    scale = x.abs().mean() if len(x) else x.new_zeros(())
    bits = torch.zeros(-(-len(x) // 8) * 8, dtype=torch.uint8)
    bits[: len(x)] = x >= 0
    signs = (bits.view(-1, 8) * 2 ** torch.arange(8)).sum(dim=1).to(torch.uint8)
    return torch.cat([scale.view(1).view(torch.uint8), signs])
    ### END SOLUTION


# %% answer="q4-decode"
def decode(message, n):
    """The n numbers that arrive: plus or minus the scale."""
    ### BEGIN SOLUTION
    scale = message[:4].clone().view(torch.float32)
    bits = message[4:, None].int() // 2 ** torch.arange(8) % 2
    return torch.where(bits.flatten()[:n] == 1, scale, -scale)
    ### END SOLUTION


# %%
numbers = torch.tensor([0.5, -2.0, 0.0, 1.5, -1.0])
print(f"{numbers.tolist()} → {len(encode(numbers))} bytes → {decode(encode(numbers), 5).tolist()}")


# %%
def arrives(x):
    """What one bit and the best scale make of x: the truth, by least squares instead of a pencil."""
    signs = torch.where(x >= 0, 1.0, -1.0).double()
    scale = torch.linalg.lstsq(signs[:, None], x.double()[:, None]).solution if len(x) else torch.zeros(1, 1)
    return (signs * scale.item()).float()


# %% check="q4-values" points=6
def check_code(n, seed=0, factor=1.0):
    x = factor * torch.randn(n, generator=torch.Generator().manual_seed(seed)).exp().sub(1)
    x[3::5], x[4::10] = 0, -0.0
    before = x.clone()
    message = check.call(encode, x)
    check.that(torch.equal(x, before), f"{n} numbers are as they were", look="what you write into")
    check.that(isinstance(message, torch.Tensor), "the message is a tensor", came=type(message).__name__)
    kind, right = (str(message.dtype), list(message.shape)), ("torch.uint8", [4 + -(-n // 8)])
    check.equal(kind, right, f"message of {n} numbers: dtype and shape", look="how many signs a byte holds")
    posted = torch.tensor(message.tolist(), dtype=torch.uint8)
    check.call(encode, 1 - x)  # another message leaves before the first one is read
    got = check.call(decode, posted, n)
    where = "the sign of 0, the order of the bits, and the scale: where is the parabola lowest?"
    check.close(got, arrives(x), f"… and what arrives of {n} numbers", operations=100, look=where)


check_code(8)
check_code(21, seed=1)

# %% check="q4-hidden" points=4
# Other sizes, among them none at all.
### BEGIN HIDDEN TESTS
#: other sizes, among them none at all
for hidden_n in (0, 1, 7, 9, 64, 1001):
    check_code(hidden_n, seed=hidden_n, factor=1e-3)
check.equal(check.call(decode, check.call(encode, torch.zeros(3)), 3).abs(), torch.zeros(3), "three zeros")
check.equal(check.call(encode, torch.zeros(0)), torch.zeros(4, dtype=torch.uint8), "no numbers, a scale of 0")
hidden_x = across(5000 * torch.randn(21, generator=torch.Generator().manual_seed(21)))
with Unfilled():
    hidden_got = check.call(decode, check.call(encode, hidden_x), 21)
check.close(hidden_got, arrives(hidden_x), "large numbers that lie across in memory", operations=100)
# Sentences of the contract, and the known-wrong answers that break them.
#= `encode(x)` takes | a_byte_for_a_bit scale_of_the_largest
#= (`x >= 0` is plus | zero_counts_as_minus the_sign_bit_of_zero
#= No numbers: | no_numbers_have_no_mean
#= How the bits lie | - a freedom
#= `x` stays | magnitudes_in_place
#= `decode(message, n)` returns | zero_counts_as_minus
#= It has the message | signs_stay_here
#= (`.view(torch.uint8)` shows | - advice
#= The reverse wants | - advice
#= The scale and one | a_byte_for_a_bit
#= The n numbers | scale_of_the_largest
### END HIDDEN TESTS

# %% [markdown]
# ## 5 · What was lost comes tomorrow (25 points)
#
# A gradient of $[3, 0.1, -0.1]$ arrives as $[1.07, 1.07, -1.07]$: the large number shrinks to a third, the small ones
# grow tenfold. That cannot train anything. Or can it?
#
# The trick of 2014 is bookkeeping. Each rank remembers what it failed to send, the **residual** $e$, and adds it to
# the next gradient *before* that one is encoded:
#
# $$a_t = g_t + e_t, \qquad \text{send } Q(a_t), \qquad e_{t+1} = a_t - Q(a_t).$$
#
# This is **error feedback** (Karimireddy et al. 2019 prove that it converges). Why should it help? Add up what one
# rank has sent in steps 1 to $T$, starting with $e_1 = 0$. Everything between the ends cancels. What is left?
#
# How do the bits travel? An all-reduce adds, and bits of different scales cannot be added. So every rank sends its
# message to all others, an all-gather, and each decodes all $p$ messages and takes the mean.
#
# **Your contract.** `compressed_mean(gradient, residual)`
#
# - Both float32, of one dim and length $n$. All ranks call. `gradient` must not change.
# - Returns the mean over the ranks of what their messages say: a new tensor, the same bits on all ranks.
# - `residual` is brought up to date in place: it now holds what *this rank* still owes.
# - One message with $4 + \lceil n/8 \rceil$ bytes goes to each other rank, in one call. Nothing else is sent.
#
# **Graded:** the mean (4 points), the bookkeeping over many steps (6), traffic (5), a training run (4), and hidden
# (6) other ranks and sizes.


# %% answer="q5"
def compressed_mean(gradient, residual):
    """Mean over the ranks of one-bit gradients, with error feedback; updates `residual` in place.

    Bytes sent: (p-1)(4 + ceil(n/8)), in one all-gather. All ranks call.
    """
    ### BEGIN SOLUTION
    message = encode(owed := gradient + residual)
    residual.copy_(owed - decode(message, len(owed)))
    messages = [torch.empty_like(message) for _ in range(dist.get_world_size())]
    dist.all_gather(messages, tensor=message)
    return torch.stack([decode(each, len(owed)) for each in messages]).mean(dim=0)
    ### END SOLUTION


# %% [markdown]
# Does it train? Each of four ranks fits 40 weights to examples of its own, and what the ranks see is very different.
# `exact` is what float32 reaches: one process with all examples. `forgetful` forgets its residual in every step, and
# `yours` keeps it.


# %%
def rank_data(rank, seed=0):
    generator = torch.Generator().manual_seed(10 * seed + rank)
    inputs = torch.randn(80, 40, generator=generator) * (0.2 + torch.rand(40, generator=generator))
    truth = torch.linspace(-1, 1, 40) + torch.randn(40, generator=generator)  # each rank has another one
    return inputs, inputs @ truth


# %%
def fit_alone(p, steps=100, seed=0):
    """The losses of one process that has the examples of all ranks."""
    inputs, targets = map(torch.cat, zip(*(rank_data(rank, seed) for rank in range(p))))
    weights, curve = torch.zeros(40), []
    for _ in range(steps):
        error = inputs @ weights - targets
        weights -= 0.05 * 2 * inputs.T @ error / len(error)
        curve.append(error.square().mean().item())
    return curve


# %%
def fit(kind, steps=100, seed=0):
    inputs, targets = rank_data(dist.get_rank(), seed)
    weights, residual, curve = torch.zeros(40), torch.zeros(40), torch.zeros(steps)
    for step in range(steps):
        error = inputs @ weights - targets
        gradient = 2 * inputs.T @ error / len(error)
        weights -= 0.05 * compressed_mean(gradient, torch.zeros(40) if kind == "forgetful" else residual)
        curve[step] = error.square().mean()
    dist.all_reduce(curve)  # once, at the end
    return (curve / dist.get_world_size()).tolist()


# %%
curves = {"exact": fit_alone(4)} | {kind: ranks.run(fit, kind, world_size=4)[0] for kind in ("forgetful", "yours")}
loss_curves(
    curves,
    unit="squared error",
    caption="One bit for each number. Who forgets what was lost stops too early; who carries it over arrives.",
    alt="Three loss curves. The exact one and yours end at the same height, the forgetful one stays above them.",
).show()
print({kind: f"{curve[-1]:.2f}" for kind, curve in curves.items()})


# %%
def gradients(rank, step, n, seed=0):
    return torch.randn(n, generator=torch.Generator().manual_seed(10_000 * seed + 100 * step + rank)).exp() - 1 - rank


def many_steps(n, steps, seed=0):
    memory, applied, unchanged = torch.zeros(n + 2), [], []
    residual = memory[1:-1]
    for step in range(steps):
        mine = gradients(dist.get_rank(), step, n, seed)
        applied.append(check.call(compressed_mean, mine, residual, may_change=[residual]))
        unchanged.append(torch.equal(mine, gradients(dist.get_rank(), step, n, seed)))
    return torch.stack(applied), memory[1:-1], all(unchanged)


# %% check="q5-values" points=4
def check_first_step(n, p, seed=0):
    expected = torch.stack([arrives(gradients(rank, 0, n, seed)) for rank in range(p)]).mean(dim=0)
    applied, _, unchanged = zip(*check.on_ranks(many_steps, n, 1, seed, world_size=p))
    got, rows, what = torch.cat(applied), expected.expand(p, -1), f"the first mean of {n} numbers, a row for each rank"
    check.close(got, rows, what, operations=100, look="what is decoded, and what is divided")
    check.equal(got, got[:1].expand(p, -1), "… the same bits on all ranks", look="in which order you add")
    check.that(all(unchanged), "… and the gradient is as it was", look="what you add to, and whose memory that is")


check_first_step(n=21, p=4)


# %% check="q5-feedback" points=6
def check_bookkeeping(n, p, steps, seed=0):
    found = check.on_ranks(many_steps, n, steps, seed, world_size=p)
    total = sum(gradients(rank, step, n, seed) for rank in range(p) for step in range(steps))
    got = found[0][0].sum(dim=0) + sum(residual for _, residual, _ in found) / p
    kept, look = all(same for *_, same in found), "what you add to, and whose memory that is"
    check.that(kept, f"after {steps} steps: no gradient has changed", look=look)
    what = f"after {steps} steps: sum applied + mean residual = sum of mean gradients"
    look = "when the residual is added, and what it is after sending"
    check.close(got, total / p, what, relative=1e-4, look=look)
    residual = torch.zeros(n)
    for step in range(steps):  # what rank 1 owes, step by step
        owed = gradients(1, step, n, seed) + residual
        residual = owed - arrives(owed)
    check.close(found[1][1], residual, "… and what rank 1 owes at the end", relative=1e-3, look=look)


check_bookkeeping(n=21, p=4, steps=30)


# %% check="q5-traffic" points=5
def check_compressed_traffic(n, p, steps=3):
    check_first_step(n, p)
    _, sent = check.traffic(many_steps, n, steps, world_size=p)
    limit, exact = (p - 1) * (4 + -(-n // 8)), predict.all_reduce(4 * n, p).bytes
    got = int(max(account.total_bytes for account in sent)) // steps
    where = "what is on its way: the message, or what was decoded from it?"
    check.at_most(got, limit, f"… bytes sent in each step for {n} numbers on {p} ranks", look=where)
    check.at_most(got / exact, 0.25, "… and a quarter of what float32 would send", look=where)
    calls = max(account.total_messages for account in sent)
    check.at_most(calls, steps, f"… calls in {steps} steps", look="whether scale and signs are one message")
    check.carried(sent, least=steps * p * limit)


check.written_with(compressed_mean, forbidden=FINISHED)
check_compressed_traffic(n=4000, p=4)


# %% check="q5-training" points=4
def check_training(seed=0, world_size=4):
    best, yours = fit_alone(world_size, seed=seed), check.on_ranks(fit, "yours", seed=seed, world_size=world_size)[0]
    gained = (yours[0] - yours[-1]) / (best[0] - best[-1])
    what = f"share of the exact run's gain that one bit reaches, {world_size} ranks"
    check.at_least(gained, 0.99, what, look="what the residual does from step to step")


check_training()

# %% check="q5-hidden" points=6
# Other ranks, sizes and seeds.
### BEGIN HIDDEN TESTS
def of_large_numbers(n):
    mine, owed = across(5000 * gradients(dist.get_rank(), 0, n)), across(torch.zeros(n))
    with Unfilled():
        return check.call(compressed_mean, mine, owed, may_change=[owed]), owed, mine


found = check.on_ranks(of_large_numbers, 21, world_size=2)
right = sum(arrives(given) for *_, given in found) / 2
for mean, owed, given in found:
    check.close(mean, right, "the mean of large numbers that lie across in memory", operations=100)
    check.close(owed, given - arrives(given), "… and what is owed", operations=100)
for hidden_n, hidden_p in ((1, 2), (64, 3), (1001, 2), (5, 1)):
    check_first_step(hidden_n, hidden_p, seed=hidden_n)
check_bookkeeping(n=64, p=3, steps=17, seed=5)
check_compressed_traffic(n=1003, p=2)
check_training(seed=3, world_size=3)
# Sentences of the contract, and the known-wrong answers that break them.
#= Both float32 | - what is given
#= All ranks call | - who calls
#= `gradient` must not | adds_to_the_gradient
#= Returns the mean | the_same_tensor_each_time
#= `residual` is brought | a_new_residual_tensor compression_without_feedback residual_in_other_memory
#= One message with | decoded_before_it_travels
#= Nothing else is sent | messages_in_files floats_by_the_backend
#= Mean over the ranks | debt_of_the_gradient_only residual_of_the_mean
#= Bytes sent | whole_floats_round_the_ring
### END HIDDEN TESTS

# %% [markdown]
# ## What to keep
#
# A replica is a promise: same start, same gradient, same step. Shares may be uneven, branches unused, files too
# short; the promise holds if ranks first say who is there and with how much. That costs one small message.
#
# And a gradient may lose 31 of its 32 bits, if nothing that is lost is forgotten.
#
# One question is left. Your ring of float32 sends nearly $8n$ bytes, for any number of ranks. The all-gather of bits
# sends $(p-1)\,n/8$. From how many ranks on is the one bit *dearer*?

# %%
guess_ranks = ask("At how many ranks do both send the same?")

# %%
million = 1_000_000
bits = {p: Bytes((p - 1) * million // 8) for p in range(2, 200)}
meet = Count(min(p for p in bits if bits[p] >= predict.all_reduce(4 * million, p).bytes))
at_four = Ratio(predict.all_reduce(4 * million, 4).bytes / bits[4])
print(f"with 4 ranks: {at_four:.0f} times fewer bytes")
print(f"the same from {meet} ranks on, by hand {8 * 8}; you said {guess_ranks.said}")

# %% [markdown]
# So for many ranks nobody gathers everything. 1-bit Adam (Tang et al. 2021) does it in two halves, as the ring does:
# each rank collects one part of the bits from all, averages, compresses *again* (with a second residual), and hands
# the result round. Then the bytes stay the same for any $p$.
#
# **Change one thing.** In `fit`, let a rank keep only half of its residual: `residual *= 0.5` before the call. Where
# does the curve end? Decide first. Then say which sum no longer cancels.
