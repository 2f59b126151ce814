# %% [markdown]
# # 08 · Tensor parallelism
#
# **The question:** what if one layer does not fit? And what if one sequence does not?
#
# | | |
# |---|---|
# | Time | first sitting 45 minutes, second sitting 25; less than a minute of it is computing on 2 CPU cores |
# | A GPU | changes nothing in what is held and sent; on GPUs of one machine the messages of this page are fast, between machines they are not |
# | Opens | `parallel/operators.py`, `parallel/tensor.py`, `parallel/tensor_gpt.py`, `parallel/layout.py`, `parallel/context.py` |
#
# Data parallelism gave every rank the whole model. That was its strength, and here is its end. A model of 175 billion
# parameters takes 350 GB in 16 bits, before anyone has trained it for a step. The largest card in lesson 02's table holds
# 192. A thousand such cards do not help: each would have to hold all of it.
#
# So the model itself must be cut. The next lesson cuts it between layers. This one cuts *through* the layer, through
# the matrix, and the question is where to put the knife.

# %%
import dataclasses

import torch
import torch.distributed as dist
import torch.nn.functional as F

from course_lib import measure, predict, ranks
from course_lib.compare import compare
from course_lib.model.gpt import GPT, GPTConfig
from course_lib.model.seeds import mix
from course_lib.notebook import ask, self_check, show, your_turn
from course_lib.parallel import operators, tensor
from course_lib.parallel.layout import Layout, contract, steps
from course_lib.parallel.operators import own_part
from course_lib.parallel.tensor_gpt import ParallelGPT, cuts
from course_lib.units import Bytes, Count

# %% [markdown]
# ## 1 · One matrix, two knives
#
# A linear layer is $Y = XW$: $X$ has a row for each token and a column for each feature, and $W$ has a row for each
# feature that comes in and a column for each that goes out. (PyTorch stores $W$ turned over; we say it the way a
# paper does.) $W$ is what does not fit. There are two ways to cut it in half, and they are not alike.
#
# Cut it **by columns**, and each rank computes some of the features that go out, from all of $X$. Cut it **by rows**, and each rank
# needs only its features of $X$, but what it computes is a *term*: the result is the sum over the ranks.
#
# $$X\,[W_1\; W_2] = [X W_1\;\; X W_2] \qquad\qquad [X_1\; X_2]\begin{bmatrix}W_1\\W_2\end{bmatrix} = X_1 W_1 + X_2 W_2$$
#
# **Before you run the next cell:** 4 ranks, 64 tokens, 128 features in and out, float32. Each rank ends with what its
# cut gives it, and for the rows we then form the sum with an all-reduce. How many kB does a rank send for the columns?
# And for the rows?

# %%
guess_columns = ask("Cut by columns: how many kB does each rank send?", unit="kB")
guess_rows = ask("Cut by rows, with the sum: how many kB?", unit="kB")


# %%
def both_cuts():
    torch.manual_seed(0)
    x, w = torch.randn(64, 128), torch.randn(128, 128)
    with measure.traffic() as columns:
        y_columns = x @ own_part(w, dim=1)
    with measure.traffic() as rows:
        y_rows = own_part(x, dim=1) @ own_part(w, dim=0)
        dist.all_reduce(y_rows)
    torch.testing.assert_close(y_columns, own_part(x @ w, dim=1))
    torch.testing.assert_close(y_rows, x @ w)
    return columns.total_bytes, rows.wire_bytes or rows.total_bytes


columns, rows = ranks.run(both_cuts, world_size=4)[0]
compare(
    guess={"by columns": guess_columns, "by rows": guess_rows},
    predicted={"by columns": Bytes(0), "by rows": predict.all_reduce(Bytes(64 * 128 * 4), 4).bytes},
    measured={"by columns": columns, "by rows": rows},
    tolerance=0.02,
    unit="kB",
)

# %% [markdown]
# Columns cost nothing, as long as nobody needs the whole of $Y$. Rows cost an all-reduce of $Y$, lesson 06's
# $2\frac{p-1}{p}$ times its bytes. (The wire carries a little more than the formula says: the backend puts headers around its
# messages.)
#
# Neither is better. Look at what each *takes* and what it *leaves*: columns take $X$ whole and leave $Y$ in parts; rows take
# $X$ in parts and leave $Y$ whole. One fits behind the other like a plug into a socket.
#
# ## 2 · Your turn: a row-parallel layer
#
# Write the second of them. Every rank calls your function with its own columns of $X$ and its own rows of $W$; every rank
# returns the whole $Y$.


# %%
def check_rows(function):
    def on_each_rank():
        torch.manual_seed(0)
        x, w = torch.randn(8, 12), torch.randn(12, 4)
        with measure.traffic() as sent:
            y = function(own_part(x, 1), own_part(w, 0))
        return (y - x @ w).abs().max().item(), sent.total_bytes

    off, sent = map(max, zip(*ranks.run(on_each_rank, world_size=4)))
    due = predict.all_reduce(Bytes(8 * 4 * 4), 4).bytes
    assert off < 1e-5, f"Y should be the product of the whole matrices, but is off by {off:.2g}"
    assert sent <= due, f"a rank should send {due:d} bytes, but sent {sent:d}"


# %%
@your_turn(check_rows, look="What does a rank have after its own product: some of Y's entries, or a term of each?")
def row_parallel(x_part, w_part):
    """Y = XW on every rank.

    x_part is float32 [tokens, features / p], w_part float32 [features / p, outputs]. All ranks call.
    """
    ...


# %% tags=["solution"]
# One solution. Open it when yours passes, or when you are stuck.
@row_parallel.solution
def row_parallel(x_part, w_part):
    y = x_part @ w_part
    dist.all_reduce(y)
    return y


# %% [markdown]
# ## 3 · Two matrices, one message
#
# A transformer's MLP is two layers with a GELU between them: $\text{GELU}(XA)\,B$. Cut both. There are four ways:
# columns or rows for $A$, columns or rows for $B$. Which is the cheapest? Megatron-LM's answer (Shoeybi et al. 2019, §3) fits on
# a line: **$A$ by columns, $B$ by rows**. What $A$ leaves in parts is what $B$ takes in parts. Nothing is sent between them.
#
# You need not take my word, nor draw pictures for all four. Give the dims names, say which is cut over which ranks, and the
# rest follows: a product sums over the dims that both factors have. If such a dim is cut, each rank holds a term of the sum.
# If another one is cut, so is the result.

# %%
x = Layout("token width")
a_columns, a_rows = Layout("width hidden", {"hidden": "tensor"}), Layout("width hidden", {"width": "tensor"})
b_columns, b_rows = Layout("hidden width", {"width": "tensor"}), Layout("hidden width", {"hidden": "tensor"})

between = contract(x, a_columns)
after = contract(between, b_rows)
print("between:", between)
print("after:  ", after)
print("to be whole again it needs:", *steps(after, x))

# %% [markdown]
# And two cuts by columns, one behind the other? The second one wants its input whole.

# %% tags=["raises-exception"]
contract(contract(x, a_columns), b_columns)

# %% [markdown]
# The message names the way out, and its price: an all-gather of the hidden layer, four times as wide as $X$. So the order
# is not a matter of taste.
#
# There is a second reason, and it has nothing to do with bytes. Cut $A$ by rows, and what each rank has before the GELU is a term of a sum.
# Is the GELU of a sum the sum of the GELUs?

# %%
one, other = torch.tensor(1.0), torch.tensor(-2.0)
print(f"GELU(1 - 2) = {F.gelu(one + other):.3f}, but GELU(1) + GELU(-2) = {F.gelu(one) + F.gelu(other):.3f}")

# %% [markdown]
# It is not. So $A$ by rows would need its all-reduce *before* the GELU, and $B$ one more behind it: two where one is enough.
# Attention is the same story with other names. The heads are the hidden features: queries, keys and values are cut by columns, each rank computes
# some heads from beginning to end, and the output's matrix is cut by rows. One message.
#
# ## 4 · The way back
#
# So the forward pass of a block sends two all-reduces, one behind attention and one behind the MLP. What about the
# backward pass?
#
# Think of $X$, which every rank holds whole. Rank 1 used it for its columns, rank 2 for its own. The
# gradient of $X$ is the sum of what comes back along *all* of these paths, and each rank sees only its own:
#
# $$\frac{\partial L}{\partial X} = \sum_{r} \frac{\partial L}{\partial Y_r} W_r^{\mathsf T}$$
#
# The forward pass did nothing at that place, so autograd does nothing on the way back, and nothing fails. Watch.


# %%
def gradient_of_x(enter):
    torch.manual_seed(0)
    x, a, b = torch.randn(8, 16), torch.randn(16, 64), torch.randn(64, 16)
    x.requires_grad_()
    hidden = F.gelu(enter(x) @ own_part(a, 1))
    y = operators.f_bar(hidden @ own_part(b, 0))
    y.square().sum().backward()
    whole = x.detach().requires_grad_()
    (F.gelu(whole @ a) @ b).square().sum().backward()
    return (y - F.gelu(whole @ a) @ b).abs().max().item(), (x.grad - whole.grad).norm() / whole.grad.norm()


wrong_y, wrong_gradient = ranks.run(gradient_of_x, lambda x: x, world_size=4)[0]
print(f"Y is off by {wrong_y:.0e}, the gradient of X by {wrong_gradient:.0%}")

# %% [markdown]
# The loss is right to the last digit, and everything below this layer learns from a gradient that is mostly missing. It would even train, badly.
#
# What is needed is an operator that does *nothing* in the forward pass and adds up in the backward pass. Megatron-LM calls it
# $f$. Its partner $\bar f$ is the other way round: it adds up in the forward pass, and does nothing in the backward pass, because the
# gradient of a sum goes to each of its terms unchanged. (I used it in the cell above, for $Y$.)
#
# **Your turn.** Write what $f$ does on the way back. `grad` is this rank's part of the gradient; autograd lends it to
# you, so do not overwrite it.


# %%
def as_operator(backward):
    """An autograd function that does nothing forward, and `backward` on the way back."""

    class Copy(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.view_as(x)

        @staticmethod
        def backward(ctx, grad):
            return backward(grad)

    return Copy.apply


def check_f(function):
    wrong_y, wrong_gradient = ranks.run(lambda: gradient_of_x(as_operator(function)), world_size=4)[0]
    assert wrong_gradient < 1e-5, f"the gradient of X should be whole, but is still off by {wrong_gradient:.0%}"
    lent = ranks.run(lambda: (function(grad := torch.ones(2)), grad)[1].tolist(), world_size=2)[0]
    assert lent == [1, 1], f"the gradient that was lent should stay as it was, but became {lent}"


# %%
@your_turn(check_f, look="`clone()` makes memory of your own, and dist.all_reduce adds up in place.")
def f_backward(grad):
    """The whole gradient of what every rank used. float32, any shape; all ranks call."""
    ...


# %% tags=["solution"]
@f_backward.solution
def f_backward(grad):
    whole = grad.clone()
    dist.all_reduce(whole)
    return whole


# %% [markdown]
# So a block sends four all-reduces in a step: $\bar f$ behind attention and behind the MLP on the way forth, $f$ in
# front of each on the way back. Each has the size of the stream, tokens times width. Lesson 07's all-reduce came once a
# step, at the end, and could hide. These come four times in *each layer*, and the next product waits for them.
#
# ## 5 · A whole GPT, cut
#
# Here are the two layers as the library has them, and the MLP that is made from them.

# %%
display(show(tensor.RowParallelLinear.forward, docstring=False))
show(tensor.ParallelMLP.forward, docstring=False)

# %% [markdown]
# `ParallelGPT.from_` takes a GPT and keeps this rank's part of every matrix. Norms and the biases behind a sum stay whole: they
# are small, and every rank does the same with them. The embedding is cut by width.
#
# Is it the same model? The test is lesson 07's: after *every* step, each rank's part of each gradient and weight must be that
# part of the unsplit model's. In float64, so that rounding is no excuse.

# %%
SMALL = GPTConfig(layers=2, width=64, heads=8, vocab_size=64, context=32)


def batch(step, config=SMALL):
    tokens = torch.randint(0, config.vocab_size, (4, config.context + 1), generator=torch.Generator().manual_seed(step))
    return tokens[:, :-1], tokens[:, 1:]


def off_after_three_steps(sequence_parallel=False, config=SMALL):
    single = GPT(config, dtype=torch.float64)
    ours, worst = ParallelGPT.from_(single, None, sequence_parallel), 0.0
    sgd = [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) for model in (single, ours)]
    for step in range(3):
        for model, optimizer in zip((single, ours), sgd):
            optimizer.zero_grad()
            torch.manual_seed(step)  # the same dropout, if there is any, on every rank
            model(*batch(step, config)).backward()
            optimizer.step()
        worst = max(worst, tensor_difference(ours, single))
    return worst


def tensor_difference(ours, single):
    """The largest difference between this rank's parts and the same parts of the unsplit model, weights and gradients."""
    whole, cut = dict(single.named_parameters()), cuts(ours)
    pairs = [(p, whole[name], cut.get(name)) for name, p in ours.named_parameters()]
    pairs += [(p.grad, q.grad, how) for p, q, how in pairs]
    return max((p - (q if c is None else own_part(q, c.dim, blocks=c.blocks))).abs().max().item() for p, q, c in pairs)


print(f"off by at most {max(ranks.run(off_after_three_steps, world_size=4)):.0e} after each of three steps")

# %% [markdown]
# It is the same model. Now the bill, for 4 ranks and this GPT in float32: two layers, 4 sequences of 32 tokens, width 64, 64
# entries in the vocabulary.
#
# **Guess:** how many of its parameters does a rank hold, in percent? And how many kB does it send in a step?

# %%
print(f"unsplit: {predict.parameters(SMALL):,d} parameters; the stream of one batch: {Bytes(4 * 32 * 64 * 4):kB}")
guess_share = ask("Percent of the parameters on each of 4 ranks?")
guess_sent = ask("kB that each rank sends in a step?", unit="kB")


# %%
def bill(sequence_parallel=False):
    model = ParallelGPT.from_(GPT(SMALL), None, sequence_parallel)
    with measure.traffic() as sent:
        model(*batch(0)).backward()
    return sum(p.numel() for p in model.parameters()), sent.wire_bytes or sent.total_bytes


# %%
t, width, tokens = 4, SMALL.width, 4 * SMALL.context
whole = SMALL.layers * 6 * width + 2 * width  # norms, and the biases behind a sum
stream, logits = Bytes(4 * tokens * width), Bytes(4 * tokens * SMALL.vocab_size)
messages = 4 * SMALL.layers * predict.all_reduce(stream, t).bytes  # two forward, two backward in each layer
edges = 2 * predict.all_gather(stream, t).bytes + predict.all_reduce(logits, t).bytes  # embedding and head
held, sent = ranks.run(bill, world_size=4)[0]
display(
    compare(
        guess=guess_share,
        predicted=Count(100 * (whole + (predict.parameters(SMALL) - whole) / t) / predict.parameters(SMALL)),
        measured=Count(100 * held / predict.parameters(SMALL)),
        name="percent of the parameters",
    )
)
compare(guess=guess_sent, predicted=Bytes(messages + edges), measured=sent, tolerance=0.05, unit="kB", name="sent")

# %% [markdown]
# A quarter of the parameters, and a bit: what stays whole weighs little. But look at what is sent. This model has 0.5 MB of
# parameters, and data parallelism would have sent less than two times that for any batch. Here the bytes grow with the
# *tokens*: four times the stream in each layer. Double the batch, and you send twice as much.
#
# ## 6 · What did not shrink
#
# The parameters are cut. Are the activations, lesson 02's largest block? What lies inside attention and the MLP belongs to
# some head or some hidden feature, so it is cut. What lies between them is not: each norm's input and output stand whole
# on every rank, four ranks, four copies. Per layer, in 16 bits, for $t$ ranks (Korthikanti et al. 2022, equation 2; lesson 02 has
# $t = 1$):
#
# $$sbh\left(10 + \frac{24}{t} + 5\frac{as}{ht}\right)$$
#
# With $t \to \infty$ the 10 remain. But norms and dropout work on each token alone. So cut what lies between along the
# **sequence**: each rank normalises its own tokens. In front of a column-parallel layer the tokens are gathered, behind a
# row-parallel one each rank takes its tokens of the sum. An all-reduce *is* a reduce-scatter and an all-gather (lesson
# 06), so one of the four becomes two halves, the bytes stay what they were, and the 10 is divided by $t$ too.
#
# **Guess:** what does one block keep for the backward pass on each of 4 ranks, in percent of the unsplit block's bytes? First
# with the stream whole, then with the stream cut.

# %%
guess_whole = ask("Stream whole: percent of the unsplit block's activations?")
guess_cut = ask("Stream cut along the sequence: percent?")


# %%
def kept_by_a_block(split, sequence_parallel=False):
    gpt, storages = GPT(SMALL), {}
    model = ParallelGPT.from_(gpt, None, sequence_parallel) if split else gpt
    x = torch.ones(4, SMALL.context // (4 if sequence_parallel else 1), SMALL.width, requires_grad=True)

    def keep(saved):
        storages[saved.untyped_storage().data_ptr()] = saved
        return saved

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda saved: saved):
        model.blocks[0](x)
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    return Bytes(sum(s.untyped_storage().nbytes() for where, s in storages.items() if where not in weights))


# %%
n, ffn, scores = tokens * width, 4 * tokens * width, 4 * SMALL.heads * SMALL.context**2
between = 4 * (4 * n + 4 * tokens)  # two norms: what goes in, what comes out, a mean and a spread for each token
inside = 4 * (4 * n + 2 * ffn + scores)  # queries, keys, values, their mix; hidden before and after GELU; weights
mask = SMALL.context**2
one = ranks.run(kept_by_a_block, False, world_size=1)[0]
cut = [ranks.run(kept_by_a_block, True, sequence_parallel, world_size=4)[0] for sequence_parallel in (False, True)]
display(
    compare(
        predicted={"unsplit": Bytes(between + inside + mask), "stream whole": Bytes(between + inside // 4 + mask),
                   "stream cut": Bytes((between + inside) // 4 + mask)},
        measured={"unsplit": one, "stream whole": cut[0], "stream cut": cut[1]},
        unit="KiB",
    )
)
compare(
    guess={"stream whole": guess_whole, "stream cut": guess_cut},
    predicted={"stream whole": Count(100 * (between + inside / 4) / (between + inside)), "stream cut": Count(25)},
    measured={"stream whole": Count(100 * cut[0] / one), "stream cut": Count(100 * cut[1] / one)},
    tolerance=0.03,
)

# %% [markdown]
# The stream was half of it, and it is gone. (The mask, one byte for each pair of positions, stays whole.) Is it really for
# nothing? One thing is paid: to keep only its own tokens, a column-parallel layer has to gather the others' *again* in the backward pass, when its
# weight's gradient needs them all.
#
# **Your turn.** So count. How many bytes does each rank send for one block in one step, with the stream cut? Each gather and each
# reduce-scatter of a tensor of $n$ bytes sends $\frac{t-1}{t} n$. (Leave out the gradients of what is whole; they are small.)


# %%
def check_bytes(function):
    def on_each_rank():
        block = ParallelGPT.from_(GPT(SMALL), None, True).blocks[0]
        x = torch.ones(4, SMALL.context // dist.get_world_size(), SMALL.width, requires_grad=True)
        with measure.traffic() as sent:
            block(x).sum().backward()
        return Bytes(sum(sent.sent_bytes[name] for name in ("all_gather", "reduce_scatter")))

    for ranks_ in (2, 4):
        due = ranks.run(on_each_rank, world_size=ranks_)[0]
        said = function(stream, ranks_)
        assert said is not None and abs(said - due) <= 1, f"on {ranks_} ranks a block sent {due:d} bytes, not {said}"


@your_turn(check_bytes, look="Two pairs of layers. Forward: a gather and a reduce-scatter each. Backward: their mirror, and?")
def block_bytes(stream_bytes, t):
    """Bytes that each of t ranks sends for one block in a step with sequence parallelism; stream_bytes is the whole stream's."""
    ...


# %% tags=["solution"]
@block_bytes.solution
def block_bytes(stream_bytes, t):
    forward, backward, gathered_again = 4, 4, 2
    return (forward + backward + gathered_again) * stream_bytes * (t - 1) // t


# %% [markdown]
# Ten instead of eight. Megatron-LM hides the two extra gathers behind the matrix products that run meanwhile.
#
# ## 7 · The same dice
#
# One thing is left that can go wrong, and it goes wrong in silence. Attention drops some of its weights in training. The
# weights of head 0 are on rank 0, those of head 2 on rank 1, and so on. Lesson 07 taught us to seed all ranks alike. Do that
# here, and let each rank draw a mask for the heads that it has:


# %%
def masks(layer):
    torch.manual_seed(0)
    mine = layer(torch.ones(1, 2, 4, 4))  # batch, this rank's 2 heads, 4 queries, 4 keys
    heads = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(heads, mine)
    return [(head != 0).flatten().int().tolist() for head in torch.cat(heads, 1)[0]]


def alike(masks):
    return sum(a == b for i, a in enumerate(masks) for b in masks[:i])


naive = ranks.run(lambda: masks(torch.nn.Dropout(0.5)), world_size=4)[0]
ours = ranks.run(lambda: masks(tensor.SplitDropout(0.5, dim=1)), world_size=4)[0]
print(f"8 heads, {8 * 7 // 2} pairs with equal masks: {alike(naive)} with a mask for the part, {alike(ours)} with the whole's")

# %% [markdown]
# Head 0, 2, 4 and 6 lose the same weights, always. Dropout is there so that heads do *not* rely on each other, and now four of
# them fail together. The loss looks healthy.
#
# The cure is habit 8 of this course: randomness belongs to the tensor, never to the process. `SplitDropout` draws the mask of the
# *whole* tensor, as the unsplit model would, and takes its part. So the split model even drops the very weights that the unsplit one
# drops, and the test of section 5 holds with dropout:

# %%
dropping = dataclasses.replace(SMALL, dropout=0.2)
print(f"with dropout, off by at most {max(ranks.run(off_after_three_steps, True, dropping, world_size=4)):.0e}")

# %% [markdown]
# ## Second sitting
#
# What stands above is the story. Below are PyTorch's own way to write it, the other question of this page (one *sequence* that
# does not fit), and what all of it comes to at the size where it is used.
#
# ## 8 · PyTorch's own
#
# `DTensor` is section 3's idea made into a tensor type: each tensor carries its layout, and every operation works out
# what follows. `parallelize_module` says which layer is cut how. Two lines for an MLP:

# %%
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


def beside_pytorch():
    whole, theirs = GPT(SMALL).blocks[0].mlp, GPT(SMALL).blocks[0].mlp
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    parallelize_module(theirs, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    ours, x = tensor.ParallelMLP.from_(whole), torch.randn(2, 8, 64, generator=torch.Generator().manual_seed(0))
    sent = []
    for mlp in (ours, theirs):
        mine = x.clone().requires_grad_()
        with measure.traffic() as traffic:
            mlp(mine).square().sum().backward()
        sent.append((mine.grad, traffic.total_bytes))
    (a, ours_sent), (b, theirs_sent) = sent
    return (a - b).abs().max().item(), Bytes(ours_sent), Bytes(theirs_sent)


off, ours_sent, theirs_sent = ranks.run(beside_pytorch, world_size=4)[0]
print(f"gradients of the input differ by at most {off:.0e}")
compare(predicted=ours_sent, measured=theirs_sent, columns=("ours", "DTensor"), name="each rank sends")

# %% [markdown]
# ## 9 · One sequence that does not fit
#
# A book has 128,000 tokens. Cut by heads, each rank still holds every token of them: activations grow with the sequence, and there are
# only so many heads. So cut the sequence *everywhere*, not only between the layers: **context parallelism**. Each rank has all weights, and its own tokens.
#
# Norms and the MLP do not notice. Attention does: a token needs the keys and values of all tokens before it, and they are on other ranks. They come
# around a ring (Liu et al. 2023). What a rank sees at a time is one part of the keys, so it needs a softmax that can be
# continued: keep the mix so far, and the logarithm of the sum of exponentials so far; when more keys come, scale down what you
# have and add.

# %%
from course_lib.parallel import context

show(context._add_to_softmax, docstring=False)

# %% [markdown]
# $c$ ranks, and each holds $1/c$ of everything. But look who has work. With a causal mask the first tokens see almost nothing and the last ones
# everything. In plain order rank 0 holds the first tokens. The table has a row for each step of the ring and a column for each rank; 1 is a full square of scores.

# %%
for order in ("plain", "zigzag"):
    table = context.work(order, 4)
    print(f"{order}: " + "; ".join(" ".join(f"{share:g}" for share in row) for row in table), end="   ")
    print(f"the slowest of each step, summed: {sum(map(max, table)):g} squares")

# %% [markdown]
# `zigzag` cuts the sequence into $2c$ pieces and gives each rank an early and a late one: pieces 0 and 7, 1 and 6, 2 and 5, 3 and 4. Then all
# work equally in every step, and the whole takes 2 squares instead of 3.5. (Llama 3 was trained so; Grattafiori et al. 2024, §3.3.2.)
#
# **Guess:** how many kB does each of 4 ranks send for attention in the forward pass, if the keys of its own tokens take 32 kB?

# %%
guess_ring = ask("kB sent by each rank around the ring, forward?", unit="kB")


# %%
def around_the_ring():
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 4, 256, 16, dtype=torch.float64) for _ in range(3))
    mine = [context.own_tokens(part, 2) for part in (q, k, v)]
    with measure.traffic() as sent:
        out = context.ring_attention(*mine)
    expected = context.own_tokens(F.scaled_dot_product_attention(q, k, v, is_causal=True), 2)
    return mine[1].nbytes, sent.wire_bytes or sent.total_bytes, (out - expected).abs().max().item()


keys, sent, off = ranks.run(around_the_ring, world_size=4)[0]
print(f"off by at most {off:.0e} from attention over the whole sequence")
compare(guess=guess_ring, predicted=Bytes(2 * keys * 3), measured=Bytes(sent), tolerance=0.05, unit="kB", name="sent")
