# %% [markdown]
# # 13 · Experts
#
# **The question:** can a model know more without thinking longer?
#
# | | |
# |---|---|
# | Time | first sitting 40 minutes, second sitting 15; less than a minute of both together is computing on 2 CPU cores |
# | A GPU | changes nothing in counts, bytes and losses |
# | Opens | `parallel/experts.py`, `predict/experts.py` |
#
# You double a layer's weights, and the model gets better. It also gets twice as slow, for every token multiplies every
# weight. Commas, too. Does a comma need all of them?
#
# So give a layer eight MLPs instead of one, and let each token go to one or two of them. Memory holds eight; a token
# pays for two. The MLPs are called **experts**, and a layer of them a mixture of experts. Two questions come with it.
# Who chooses? And since eight experts want eight GPUs: how does a token get to an expert that lives elsewhere, and back?

# %%
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from course_kit import measure, ranks
from course_kit.compare import compare
from course_kit.notebook import ask, show, your_turn
from course_kit.units import Bytes, Count, Ratio
from course_lib import predict
from course_lib.collectives.operators import all_gather
from course_lib.model import text, zoo
from course_lib.model.experts import ExpertConfig, ExpertMLP
from course_lib.model.gpt import GPT, GPTConfig
from course_lib.parallel.experts import ParallelExperts, plan_dispatch
from course_pages.lesson13 import pictures as pictures
from course_pages.lesson13.explorer import ExpertsExplorer

torch.set_num_threads(1)  # tensors are so small here that threads would wait for each other

# %% [markdown]
# ## 1 · A router
#
# A **router** is one matrix. It gives each token a score for each expert; a softmax makes probabilities of them; the best
# one wins (Switch, Fedus et al. 2021), or the best two (GShard, Lepikhin et al. 2020). What an expert says is multiplied
# by its **gate** before it is added to the stream. With one choice the gate is that expert's probability. With two,
# the two probabilities are divided by their sum, so that the gates add up to 1.
#
# Why multiply at all? "The largest" has no gradient: nudge a score a little, and the same expert wins. The gate is the
# only place where the router can learn that another expert would have been better.
#
# **Your turn.** From probabilities to choices and gates, for any number of choices.


# %%
def check_gates(function):
    probabilities = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]])
    chosen, gates = function(probabilities, 2)
    assert chosen.tolist()[0] == [0, 1], f"token 0 goes to experts 0 and 1, but came {chosen.tolist()[0]}"
    due = torch.tensor([0.625, 0.375])
    assert torch.allclose(gates[0], due), f"its gates are 0.625 and 0.375, but came {gates[0].tolist()}"
    one = function(probabilities, 1)[1].tolist()
    assert torch.allclose(torch.tensor(one), torch.tensor([[0.5], [0.8]])), f"one choice: 0.5 and 0.8, but came {one}"


@your_turn(check_gates, look="`probabilities.topk(top_k)` gives both. What do you divide by, and when not?")
def gates_of(probabilities, top_k):
    """(tokens, experts) → the chosen experts, the best first, and their gates, each (tokens, top_k)."""
    ...


# %% tags=["solution"]
# One solution. Open it when yours passes, or when you are stuck.
@gates_of.solution
def gates_of(probabilities, top_k):
    best, chosen = probabilities.topk(top_k)
    return chosen, best if top_k == 1 else best / best.sum(-1, keepdim=True)


# %% [markdown]
# ## 2 · What it holds, what it costs
#
# Let $d$ be the width of the stream and $F$ the hidden features of an MLP. It has two matrices, $2dF$ weights, and in the
# forward pass a token needs two FLOPs for each, $4dF$. Now take $E$ experts and $k$ choices. The router adds $dE$ weights:
#
# $$\underbrace{E \cdot 2dF + dE}_{\text{held}} \qquad\qquad \underbrace{k \cdot 4dF + 2dE}_{\text{FLOPs for a token}}$$
#
# **Guess:** $d$ = 64, $F$ = 256, and 512 tokens. One MLP needs 33.6 MFLOP for them. And 8 experts, two choices?

# %%
def on_a_rank(experts, top_k):
    layer = ParallelExperts(ExpertMLP(ExpertConfig(64, 256, experts, top_k)))  # the library's; section 4 builds one
    with measure.flops() as counted:
        layer(torch.randn(512, 64))
    return Count(sum(weight.numel() for weight in layer.parameters())), counted.total


guess_flops = ask("8 experts, two choices: how many MFLOP?", unit="MFLOP")

# %%
shapes = {"one MLP": (1, 1), "8 experts, one choice": (8, 1), "8 experts, two choices": (8, 2)}
found = {name: ranks.run(on_a_rank, *shape, world_size=1)[0] for name, shape in shapes.items()}
held_due = {name: Count(E * 2 * 64 * 256 + 64 * E) for name, (E, k) in shapes.items()}
flops_due = {name: predict.layer_flops(ExpertConfig(64, 256, *shape), 512) for name, shape in shapes.items()}
display(compare(predicted=held_due, measured={name: held for name, (held, _) in found.items()}))
compare(
    guess={"8 experts, two choices": guess_flops},
    predicted=flops_due,
    measured={name: flops for name, (_, flops) in found.items()},
    unit="MFLOP",
)

# %% [markdown]
# Eight times the weights for the FLOPs of one, and a router that costs nearly nothing. The $E$ has left the second
# formula. So why not a thousand experts? People do that (section 6). But three bills are not in these tables yet.
#
# ## 3 · A budget
#
# The first one is space. Nobody knows before a step how many tokens will want an expert, and a GPU that computes it
# needs to know how many rows will come. So each expert gets a **capacity**, its fair share of the $T$ tokens' choices,
# times a **capacity factor** $c$:
#
# $$C = \left\lceil c \cdot \frac{kT}{E} \right\rceil$$
#
# (Fedus et al. 2021, eq. 3, times $k$.) Who comes when the expert is full finds no place: the layer adds nothing for
# that choice. And who comes first? All first choices, token by token; then all second ones (GShard, algorithm 1).
#
# **Your turn.** Who finds a place?


# %%
def check_places(function):
    cases = [([[0, 1], [0, 2], [0, 1], [1, 0]], 2, [[1, 1], [1, 1], [0, 0], [1, 0]]), ([[1], [1], [1]], 2, [[1], [1], [0]])]
    cases += [([[0, 1], [1, 0]], 1, [[1, 0], [1, 0]])]
    for chosen, capacity, due in cases:
        came = function(torch.tensor(chosen), 3, capacity).int().tolist()
        assert came == due, f"choices {chosen}, {capacity} places each: {due}, 1 for who has one, but came {came}"


@your_turn(check_places, look="Put all choices into one line, in the order in which they come. `one_hot` and `cumsum` number them.")
def places(chosen, experts, capacity):
    """(tokens, choices) of expert numbers → of the same shape, True where a choice finds a place."""
    ...


# %% tags=["solution"]
# One solution. Open it when yours passes, or when you are stuck.
@places.solution
def places(chosen, experts, capacity):
    wants = F.one_hot(chosen.T.flatten(), experts)  # all first choices, then all second ones
    number = (wants.cumsum(0) * wants).sum(-1)
    return (number <= capacity).view(chosen.T.shape).T


# %% [markdown]
# **Break it.** 24 tokens, two choices, 6 experts, $c = 1$: 8 places each, so 48 places for 48 choices. How many choices
# find none? And then turn the batch around, last token first, with the same weights. For how many tokens does the layer
# say something else?

# %%
CONFIG = ExpertConfig(width=32, hidden=64, experts=6, top_k=2, capacity_factor=1.0)
guess_dropped = ask("Of 48 choices, how many find no place?")
guess_changed = ask("Of 24 tokens, how many get another answer when the batch is turned around?")

# %%
layer = ExpertMLP(CONFIG)
layer.router.weight.data[:2] += 0.02  # two experts are liked better
x = torch.randn(24, 32, generator=torch.Generator().manual_seed(0)) + 0.2
said, chosen = layer(x), layer.routing.choice.experts_Tk
kept = places(chosen, 6, CONFIG.capacity(24))
pictures.queues(chosen, kept, 6, CONFIG.capacity(24), caption="As many places as choices. Who comes late stands above the line.").show()
turned = layer(x.flip(0)).flip(0)
another = int(((turned - said).abs() > 1e-6).any(-1).sum())
print(f"you said {guess_dropped.said}: {int((~kept).sum())} choices find no place")
print(f"you said {guess_changed.said}: turned around, {another} of 24 tokens get another answer")
compare(
    predicted={"tokens with no place at all": Count(int((~kept).all(-1).sum()))},
    measured={"tokens with no place at all": Count(int((said == 0).all(-1).sum()))},
    columns=("by your queue", "rows of zeros"),
)

# %% [markdown]
# An empty place at expert 3 is of no use to who stands before expert 0. Hence a $c$ above 1, often 1.25: more memory
# and more rows to compute, fewer drops.
#
# A token that has lost both choices is **dropped**: the layer says 0 to it, exactly. In a GPT the block adds that to the
# stream, so the token goes on as it was, with one layer less. No error, no NaN.
#
# And an answer depends on who *else* is in the batch: who stands behind you today was before you yesterday. Keep that in
# mind when a model answers differently in a larger batch. No other layer of this course does that.
#
# ## 4 · Tokens travel
#
# The second bill is bytes. Eight experts on four ranks, two each, and every rank has tokens of its own. Each token must
# go where its expert lives, be computed there with tokens from everywhere, and come home. (The picture below the next cell
# shows it.)
#
# That is an all-to-all (lesson 06): something else for everybody. But here with **uneven counts**, and a rank has to
# say how many rows it sends to each, and how many it expects from each. So counts go first: an all-gather tells everyone
# how many rows each rank has for each expert. From then on all know the whole plan.
#
# **Your turn.** Read this rank's part off the plan.


# %%
wanted = torch.tensor([[0, 3, 6, 1, 2, 0], [5, 0, 2, 2, 7, 1], [1, 4, 0, 3, 3, 6], [2, 1, 7, 0, 5, 2]])
pictures.journey(wanted, 8, caption="A colour for each expert, two on each rank; a number for each token's home. In the middle nobody has six.").show()


def check_traffic(function):
    counts = torch.tensor([[3, 1, 0, 2], [5, 0, 4, 1]])
    for rank, due in enumerate([([4, 2], [4, 5]), ([5, 5], [2, 5])]):
        came = tuple(list(map(int, rows)) for rows in function(counts, rank))
        assert came == due, f"2 ranks, 4 experts, {counts.tolist()}: rank {rank} sends and receives {due}, but came {came}"
    sends, receives = function(torch.arange(18).view(3, 6), 1)
    assert list(sends) == [13, 17, 21] and list(receives) == [5, 17, 29], "3 ranks with 2 experts each: sums of pairs"


@your_turn(check_traffic, look="`counts.unflatten(1, (ranks, -1))` puts the experts of a rank together. Sum, then a row and a column.")
def my_rows(counts, rank):
    """counts[r, e]: rows of rank r for expert e; each rank has the next E/ranks experts → two lists, by rank: sends, receives."""
    ...


# %% tags=["solution"]
# One solution. Open it when yours passes, or when you are stuck.
@my_rows.solution
def my_rows(counts, rank):
    rows = counts.unflatten(1, (len(counts), -1)).sum(-1)  # from each rank to each rank
    return rows[rank].tolist(), rows[:, rank].tolist()


# %% [markdown]
# A journey moves rows and changes none. So its gradient is the journey home: the same, with sends and receives swapped.
# The way there is called **dispatch**, the way home **combine**, and each is the other's backward pass. This is all of it
# (nobody is dropped yet):


# %%
class Travel(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, sends, receives):
        ctx.sends, ctx.receives = sends, receives
        arrived = rows.new_empty(sum(receives), rows.shape[1])
        dist.all_to_all_single(arrived, rows.contiguous(), receives, sends)
        return arrived

    @staticmethod
    def backward(ctx, gradient):
        return Travel.apply(gradient, ctx.receives, ctx.sends), None, None


def each_its_own(rows, number, up, down):
    """Rows of tokens, the number of the expert that each came for, and this rank's experts: what these say."""
    said = torch.zeros_like(rows)
    for expert in range(len(up)):
        own = (number == expert).nonzero()[:, 0]
        said = said.index_add(0, own, F.gelu(rows[own] @ up[expert], approximate="tanh") @ down[expert])
    return said


# %%
class Experts(nn.Module):
    top_k, travel = 2, Travel.apply

    def __init__(self, whole):  # a layer that every rank has built alike
        super().__init__()
        self.router = nn.Parameter(whole.router.weight.detach().clone())
        parts = (each.detach().chunk(dist.get_world_size())[dist.get_rank()] for each in (whole.up_EDF, whole.down_EFD))
        self.up, self.down = (nn.Parameter(part.clone()) for part in parts)

    def forward(self, x):  # this rank's tokens
        chosen, gates = gates_of(F.linear(x, self.router).softmax(-1), self.top_k)
        order = chosen.flatten().argsort(stable=True)  # choices, in the order of the experts
        tokens, own = order // self.top_k, chosen.flatten().bincount(minlength=len(self.router))
        self.counts = all_gather(own[None], 0)
        sends, receives = my_rows(self.counts, dist.get_rank())
        mine = self.counts.chunk(len(self.counts), 1)[dist.get_rank()]  # from each rank, for each of my experts
        number = torch.arange(len(self.up)).repeat(len(mine)).repeat_interleave(mine.flatten())
        said = each_its_own(self.travel(x[tokens], sends, receives), number, self.up, self.down)
        home = self.travel(said, receives, sends) * gates.flatten()[order, None]
        return torch.zeros_like(x).index_add(0, tokens, home)


# %% [markdown]
# Is it right? The reference computes every expert for every token on one device and weighs most of what they say with
# 0: wasteful, and hard to get wrong. Both step three times, on the same 64 tokens, and we look at outputs and weights.
#
# One thing to decide: who averages? Let the loss be a *sum* over all tokens. An expert then gets its whole gradient from
# the rows that came to it. Only the router, which every rank has, adds up over the ranks.


# %%
def off(kind):
    """How far outputs and weights are from the reference's, over three steps. All ranks call."""
    torch.manual_seed(0)
    whole, rank, p, most = ExpertMLP(ExpertConfig(32, 64, 8), dtype=torch.float64), dist.get_rank(), dist.get_world_size(), 0.0
    ours = kind(whole)
    both = [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in (whole, ours)]
    for _ in range(3):
        x, y = torch.randn(2, 64, 32, dtype=torch.float64)
        said, own = whole(x), ours(x.chunk(p)[rank])
        [each.zero_grad() for each in both]
        ((said - y).square().sum() + (own - y.chunk(p)[rank]).square().sum()).backward()
        dist.all_reduce(ours.router.grad)
        [each.step() for each in both]
        pairs = [(own, said.chunk(p)[rank]), (ours.router, whole.router.weight), (ours.up, whole.up_EDF.chunk(p)[rank])]
        most = max(most, *((a - b).abs().max().item() for a, b in pairs))
    return most


for p in (1, 2, 4):
    print(f"{p} ranks: outputs and weights of one device after each step: {max(ranks.run(off, Experts, world_size=p)) < 1e-12}")

# %% [markdown]
# Now the bytes. Each of $p$ ranks brings $t$ tokens of $n$ bytes, and each of these travels $k$ times. If all experts are
# equally busy, $\frac{p-1}{p}$ of the rows leave the rank. There are four journeys, two forward and two backward:
#
# $$4 \cdot \frac{p-1}{p} \cdot ktn$$
#
# **Guess:** 4 ranks with 256 tokens each, two choices, 64 features of 4 bytes. How many kB does a rank send, on average?
# And does the rank with the favourite expert send more than the others, or less?
#
# (Below the table is the library's layer, `ParallelExperts`. Where are the two journeys of its forward pass?)

# %%
guess_sent = ask("4 ranks, 256 tokens each: how many kB does a rank send in a step, on average?", unit="kB")


def send_a_step():
    whole = ExpertMLP(ExpertConfig(64, 128, 8))
    whole.router.weight.data[0] += 0.05  # everybody's favourite lives on rank 0
    layer, x = Experts(whole), torch.randn(256, 64, generator=torch.Generator().manual_seed(dist.get_rank())) + 0.2
    layer(x.requires_grad_()).sum().backward()  # the first step wakes the connections
    with measure.traffic() as sent:
        layer(x).sum().backward()
    return layer.counts, sent


# %%
from course_lib.parallel.mesh import Mesh

counts, sent = zip(*ranks.run(send_a_step, world_size=4))
plan = plan_dispatch(counts[0][:, None], capacity=None)
pictures.rows_sent(plan, caption="Rows of one dispatch. Rank 0 gets most. What leaves a rank is in bold.").show()
even = predict.expert_traffic(ExpertConfig(64, 128, 8), Mesh({"expert": 4}), 4 * 256, element_bytes=4)["expert"]
due = {f"rank {r}": 2 * (plan.sent_bytes(r, 4 * 64) + plan.returned_bytes(r, 4 * 64)) for r in range(4)}
seen = {f"rank {r}": sent[r].sent_bytes for r in range(4)}
display(
    compare(
        guess={"on average": guess_sent},
        predicted=due | {"on average": even.modelled_bytes["all_to_all"]},
        measured=seen | {"on average": sum(seen.values(), Bytes(0)) / 4},
        tolerance=0.05,
        unit="kB",
        columns=("from counts", "seen by the kernel"),
    )
)
display(show(ParallelExperts.forward, docstring=False))
show(ParallelExperts.ask, docstring=False)

# %% [markdown]
# The rows of the ranks come from the counts, the last one from the formula alone. Rank 0 sends *more*, though its
# tokens mostly stay at home: in a combine it sends back what it received. The layer is as slow as its busiest rank. All others
# wait in the all-to-all.
#
# `ask` is both journeys in one line: `dispatch` there, `compute`, `combine` home. Autograd adds the other two. `forward`
# is your layer with a capacity: `admit` gives places first, and the second sitting asks whom it drops.
#
# ## 5 · Break it: a router collapses
#
# The third bill is the worst. An expert that is chosen learns. One that has learnt is better, and is chosen again. We train a
# GPT of two layers, 8 experts in each, one choice, $c = 1.25$. The loss is the text's and nothing else. `penalty` below
# will be needed soon.
#
# **Guess:** if all tokens go to one expert, how many of 100 are dropped?

# %%
STORIES = text.stories(seed=0)
guess_lost = ask("All go to one of 8 experts with a capacity factor of 1.25: of 100 tokens, how many are dropped?")


def train(penalty, steps=100):
    """By step: the loss; the shares of layer 2's experts; the share of tokens that are dropped."""
    gpt = GPT(GPTConfig(layers=2, width=32, heads=2, vocab_size=text.VOCAB_SIZE, context=32))
    for seed, block in enumerate(gpt.blocks, 1):
        block.mlp = ExpertMLP(ExpertConfig(32, 64, experts=8, top_k=1, capacity_factor=1.25), seed=seed)
    optimizer, losses, shares, dropped = torch.optim.AdamW(gpt.parameters(), lr=3e-3), [], [], []
    for step in range(steps):
        optimizer.zero_grad()
        loss = gpt(*STORIES.batch(0, step, 0, 16, 32))
        routings = [block.mlp.routing for block in gpt.blocks]
        (loss + 0.1 * sum(penalty(each.choice.probabilities_TE, each.choice.experts_Tk) for each in routings)).backward()
        optimizer.step()
        losses.append(loss.item())
        shares.append((routings[1].first_E / routings[1].tokens).tolist())
        dropped.append(1 - routings[1].kept_Tk.float().mean().item())
    return losses, shares, dropped


# %% tags=["varies"]
alone = train(lambda probabilities, chosen: 0.0)
pictures.shares_by_step({"the text's loss alone": alone[1]}, caption="A colour for each expert of layer 2. Soon one has them all. Now and then the crowd moves on, all of it.").show()
late = Ratio(100 * sum(alone[2][20:50]) / 30)
compare(guess=guess_lost, predicted=Ratio(100 * (1 - 1.25 / 8)), measured=late, tolerance=0.1, name="of 100 tokens, steps 20 to 50")

# %% [markdown]
# You hold eight experts, pay for the traffic of eight, and use one at a time. It is full, so most tokens pass by the layer
# as if it were not there. And the loss? It falls all the same.
#
# The cure is to let the router pay. Over a batch, let $f_e$ be the share of tokens whose first choice is expert $e$, and
# $P_e$ the mean of its probability. The **load-balancing loss** is
#
# $$E \sum_e f_e P_e$$
#
# (Fedus et al. 2021, eq. 4, without their factor; we take 0.1, they 0.01 for runs a thousand times as long.) In balance it is
# 1; if all go to one for sure, $E$. Counts have no gradient, probabilities have: each expert's probability is pulled down
# as hard as it is in demand.
#
# **Your turn.**


# %%
def check_balance(function):
    probabilities = torch.tensor([[0.7, 0.3], [0.6, 0.4], [0.2, 0.8], [0.9, 0.1]], requires_grad=True)
    came = function(probabilities, torch.tensor([[0], [0], [1], [0]]))
    assert abs(came.item() - 1.1) < 1e-5, f"f = (0.75, 0.25) and P = (0.6, 0.4): the loss is 1.1, but came {came.item():.3g}"
    came.backward()
    pull = probabilities.grad[0].tolist()
    assert abs(pull[0] - 0.375) < 1e-5, f"each token's gradient is E·f/T = (0.375, 0.125), but came {pull}"


@your_turn(check_balance, look="`bincount` of the first choices, with `minlength`, over the number of tokens. And the mean of what?")
def balance(probabilities, chosen):
    """(tokens, experts) and (tokens, choices), the first one first → the load-balancing loss."""
    ...


# %% tags=["solution"]
# One solution. Open it when yours passes, or when you are stuck.
@balance.solution
def balance(probabilities, chosen):
    tokens, experts = probabilities.shape
    shares = chosen[:, 0].bincount(minlength=experts) / tokens
    return experts * (shares * probabilities.mean(0)).sum()


# %% tags=["varies"]
balanced = train(balance)
both = {"the text's loss alone": alone, "with the loss of balance": balanced}
pictures.shares_by_step({name: run[1] for name, run in both.items()}, caption="Right: the crowd is driven from one expert to the next, until tokens differ enough to part.").show()
for name, (losses, _, dropped) in both.items():
    print(f"{name}: the text's loss in the last ten steps {sum(losses[-10:]) / 10:.2f}, dropped {sum(dropped[-10:]) / 10:.0%}")

# %% [markdown]
# Look at the right half. At first all tokens look alike to the router, so whoever pushes one away pushes them all, and the
# crowd runs from expert to expert. Only when the stream tells tokens apart can they part. Then fewer are dropped, and the
# loss on the *text* is lower, although it is no longer all that counts: who is dropped teaches no expert anything.
#
# So a router decides under a budget: of places, of bytes, and of what it pays for taking the best. Now you decide.
# And **guess** for the section after: how many parameters has Mixtral 8x7B? How many of them does one token meet?

# %%
ExpertsExplorer().show()
guess_total = ask("Mixtral 8x7B, 8 experts in each layer, two choices: billions of parameters?", unit="billion")
guess_active = ask("Billions of them that one token meets?", unit="billion")

# %% [markdown]
# (If nothing reacts to your clicks, run the cell once.)
#
# 1. Skew *none*, capacity factor 1. Is everybody served? From which factor on?
# 2. Skew 2. Which factor serves everybody? How many places are empty at a factor of 2?
# 3. Still skew 2, and *no limit*. How busy is the busiest rank on 4 ranks, against the mean? On 8? Why?
#
# <details><summary>Answers</summary>
#
# 1. No: even without favourites, dice do not fall evenly. 5 choices are dropped while 5 places are empty. From 1.5 on.
# 2. Only *no limit*. At 2 there are 79 empty places, and 15 choices are dropped. Places do not cure a crowd; balance does.
# 3. 2.2 times the mean, then 3.9 times. The favourite expert stays in one piece, and a rank with fewer experts has less
#    to even it out with.
#
# </details>
#
# ## 6 · At scale
#
# Mixtral 8x7B has 8 experts in each of its 32 layers and two choices (Jiang et al. 2024). DeepSeek-V3 has 256 and
# chooses 8, and one more that all tokens meet (DeepSeek-AI 2024). Your guess for
# Mixtral stands below the explorer.

# %%
mixtral, deepseek = map(predict.expert_parameters, (zoo.MIXTRAL_8X7B, zoo.DEEPSEEK_V3))
compare(
    guess={"Mixtral": guess_total, "Mixtral, a token": guess_active},
    predicted={"Mixtral": mixtral.total, "Mixtral, a token": mixtral.active,
               "DeepSeek-V3": deepseek.total, "DeepSeek-V3, a token": deepseek.active},
    measured={"Mixtral": Count(46_702_792_704), "Mixtral, a token": Count(13_000_000_000),
              "DeepSeek-V3": Count(671_000_000_000), "DeepSeek-V3, a token": Count(37_000_000_000)},
    tolerance=0.02,
    unit="billion",
    columns=("from the shape", "published"),
)  # fmt: skip

# %% [markdown]
# Not 56: only the MLPs are there eight times, attention once. And per token Mixtral computes like a model of 13 billion,
# DeepSeek-V3 like one of 37. Yet memory must hold all of it, on many ranks, and then tokens travel in every layer.
#
# That is the story. A layer may hold more than a token pays for, if somebody chooses. What is chosen has to fit: into
# places, onto links, and into a balance that nothing but a loss of its own will keep.
#
# ---
#
# ## Second sitting
#
# The story ends here, and the lab needs no more. On another day, run all cells above before you go on. Below: experts
# together with data and tensor parallelism, a gradient that is averaged once too often, PyTorch's own pieces, a second
# loss for the router, and the tables of the papers.
#
# ## 7 · Who holds which weights, which tokens?
#
# Three ways of cutting meet in this layer. Along **expert**, ranks have different experts *and* different tokens.
# Along **data** they have the same experts and different tokens. Along **tensor** they have the same tokens, and a part of the
# hidden features of each expert (lesson 08). Eight ranks, two along each:

# %%
import time

from torch.distributed._functional_collectives import all_to_all_single_autograd

from course_kit.notebook import self_check
from course_kit.units import Flops
from course_lib.model.experts import Routing
from course_lib.parallel.experts import grouped_product, has_grouped_product, holdings
from course_lib.parallel.mesh import process_groups
from course_pages.shared.who_sends import matrix

CUBE, LAYER = Mesh({"data": 2, "expert": 2, "tensor": 2}), ExpertConfig(width=64, hidden=128, experts=8)
pictures.who_holds(CUBE, LAYER, 1024, caption="Blue: a row for each expert. Orange: of 1,024 tokens. Neighbours 0 and 1 share their tokens.").show()

# %% [markdown]
# A quarter of the tokens and a quarter of the experts' weights on each rank. What does each axis send? Along expert four
# journeys, and the router's gradient; along data the gradients of this rank's experts and of the router; along tensor an
# all-reduce of the rows in each direction, since half of an expert makes a term of a sum. (In an all-reduce of two, each
# sends as much as is reduced.)
#
# **Guess:** rank 0 has 256 tokens, two choices, 256 bytes to a row. How many kB does it send along tensor, if its
# experts get as many rows as its tokens ask for?

# %%
guess_tensor = ask("kB that rank 0 sends along tensor in a step?", unit="kB")


def in_a_cube():
    layer, mine = ParallelExperts(ExpertMLP(LAYER), process_groups(CUBE)), holdings(CUBE, LAYER, 1024)[dist.get_rank()]
    x = torch.randn(1024, 64, generator=torch.Generator().manual_seed(0))[mine.tokens.start : mine.tokens.stop]
    layer(x.requires_grad_()).sum().backward()
    with measure.traffic() as sent:
        layer(x).sum().backward()
        dist.barrier()
    return Count(sum(weight.numel() for weight in layer.parameters())), sent


# %%
held, accounts = zip(*ranks.run(in_a_cube, world_size=8))
row = matrix(accounts, observed=True)[0]
formula = predict.expert_traffic(LAYER, CUBE, 1024, element_bytes=4)
display(compare(predicted=Count(holdings(CUBE, LAYER, 1024)[0].parameters(LAYER)), measured=held[0], name="parameters"))
compare(
    guess={"tensor": guess_tensor},
    predicted={axis: sent.total_bytes for axis, sent in formula.items()},
    measured={axis: row[CUBE.group_of(0, axis)[1]] for axis in formula},
    tolerance=0.1,
    unit="kB",
    columns=("formula, in balance", "seen by the kernel"),
)

# %% [markdown]
# (The formula knows of no favourites, so it is a few percent off.) Ranks along expert bring their own tokens, as replicas
# do. So expert parallelism usually does not stand beside the data axis but on it: the ranks that copy all other layers
# hold different experts.
#
# **And with a capacity?** `ParallelExperts`, the library's, is this layer with one. Places are given over the tokens of *all*
# ranks, so it must drop whom one device drops with the same capacity. Who that is, your `places` has said:

# %%
def with_drops(c):
    """Choices that this rank drops; all choices; how far outputs and gradients are from one device's. All ranks call."""
    whole, rank, p = ExpertMLP(ExpertConfig(32, 64, 8, 2, c), dtype=torch.float64), dist.get_rank(), dist.get_world_size()
    layer, x = ParallelExperts(whole), torch.randn(64, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    said, own = whole(x), layer(x.chunk(p)[rank])
    (said.square().sum() + own.square().sum()).backward()
    pairs = [(own, said.chunk(p)[rank]), (layer.router.weight.grad, whole.router.weight.grad)]
    pairs += [(layer.up_LDf.grad, whole.up_EDF.grad.chunk(p)[rank])]
    wrong = max((a - b).abs().max().item() for a, b in pairs)
    return (~layer.routing.kept_Tk).sum().item(), whole.routing.choice.experts_Tk, wrong


# %%
due, lost, furthest = {}, {}, 0.0
for p, c in ((2, 1.0), (4, 1.0), (4, 0.75)):
    mine, chosen, wrong = zip(*ranks.run(with_drops, c, world_size=p))
    kept = places(chosen[0], 8, ExpertConfig(32, 64, 8, 2, c).capacity(64))
    due[f"{p} ranks, c = {c}"], lost[f"{p} ranks, c = {c}"] = Count(int((~kept).sum())), Count(sum(mine))
    furthest = max(furthest, *wrong)
print("outputs and gradients of one device with the same capacity:", furthest < 1e-12)
compare(predicted=due, measured=lost, columns=("by your queue", "dropped by the ranks"), tolerance=0)

# %% [markdown]
# ## 8 · A gradient that is too large
#
# In section 4 the loss was a sum over all tokens. Most scripts let each rank take the *mean* of its own, and average
# gradients over the ranks (lesson 07). For the router, and for all other layers, that is the same. And for an expert, to
# which the rows of all ranks have come already?


# %%
def expert_gradient(averaged):
    """How long this rank's experts' gradient is against the right one, and its cosine with it. All ranks call."""
    whole, p, rank = ExpertMLP(ExpertConfig(32, 64, 8), dtype=torch.float64), dist.get_world_size(), dist.get_rank()
    x = torch.randn(64 * p, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    layer = Experts(whole)
    (whole(x).sum(-1).mean() + layer(x.chunk(p)[rank]).sum(-1).mean()).backward()
    if averaged:
        dist.all_reduce(layer.up.grad)
        layer.up.grad /= p
    ours, due = layer.up.grad.flatten(), whole.up_EDF.grad.chunk(p)[rank].flatten()
    return Ratio((ours.norm() / due.norm()).item()), Ratio(F.cosine_similarity(ours, due, dim=0).item())


guess_long = ask("4 ranks, each with its own mean, experts' gradients left as they are: how many times the right one?")

# %%
left, mixed = (ranks.run(expert_gradient, averaged, world_size=4)[0] for averaged in (False, True))
print(f"left as it is, cosine with the right one: {left[1]:.2f}; averaged over the ranks: {mixed[1]:.2f}")
compare(guess=guess_long, predicted=Ratio(4), measured=left[0], tolerance=1e-6, name="left as it is")

# %% [markdown]
# Each rank has divided by its own 64 tokens and not by all 256, so the sum of the rows is 4 times too long. It has to be
# divided by the number of ranks, and must not be added up again. A wrapper for replicas does just that: it takes rank 0's
# experts for copies of rank 1's, and the mean of different experts' gradients is no expert's. Adam hides a constant factor
# (lesson 07), so the first mistake shows only when norms are clipped.
#
# ## 9 · The real thing
#
# PyTorch has an all-to-all with a gradient, `all_to_all_single_autograd` (it stands in a module with an underscore, and
# training libraries use it all the same). Put it into our layer in the place of `Travel`:

# %%
class WithTorchs(Experts):
    def travel(self, rows, sends, receives):
        return all_to_all_single_autograd(rows, receives, sends, dist.group.WORLD)


off_by = max(ranks.run(off, WithTorchs, world_size=4, diagnose=False))
print("with torch's all-to-all, outputs and weights of one device after each step:", off_by < 1e-12)
show(grouped_product, docstring=False)

# %% [markdown]
# And the loop over experts, in `each_its_own`? PyTorch's newer `grouped_mm` multiplies each group of rows with its own
# matrix in *one* call, where it has a kernel for the device and the type. For a GPU a hundred small products are a hundred
# launches, each with little to do (Gale et al. 2022, below, built theirs for that). The library uses PyTorch's through the
# function above. Values, FLOPs, and seconds on
# this machine:


# %%
def grouped(loads, width=256, hidden=512):
    rows, weights = torch.randn(sum(loads), width), torch.randn(len(loads), width, hidden)
    one_by_one = torch.cat([part @ weight for part, weight in zip(rows.split(loads), weights)])
    has_grouped_product("cpu", rows.dtype)
    with measure.flops() as counted:
        together = grouped_product(rows, weights, loads)
    return torch.allclose(together, one_by_one, rtol=1e-4, atol=1e-3), counted.total


same, counted = grouped([100, 0, 300, 112])
print("values of a product for each:", same)
compare(predicted=Flops(2 * 512 * 256 * 512), measured=counted, unit="MFLOP", name="512 rows, 4 matrices")

# %% tags=["varies"]
def seconds_of(kind, size=(256, 512)):
    layer, x, taken = kind(ExpertMLP(ExpertConfig(*size, 8))), torch.randn(512, size[0], requires_grad=True), []
    for _ in range(8):
        dist.barrier()
        start = time.perf_counter()
        layer(x).sum().backward()
        taken.append(time.perf_counter() - start)
    return min(taken[2:])


kinds = {"this page's": Experts, "with torch's all-to-all": WithTorchs, "the library's, grouped": ParallelExperts}
for name, kind in kinds.items():
    print(f"{name:24} {1000 * max(ranks.run(seconds_of, kind, world_size=2, diagnose=False)):6.1f} ms for a step")

# %% [markdown]
# ## 10 · A second loss for the router
#
# Large models compute in bf16. A softmax does not change when all logits of a token rise together. But their rounding
# does: from $2^m$ to $2^{m+1}$, bf16's numbers stand $2^{m-7}$ apart (lesson 01), so the error is up to half of that.
# Here are logits of 8 experts, moved up by a number:

# %%
logits = torch.randn(4096, 8, generator=torch.Generator().manual_seed(0))
errors, fates = {}, {}
for level, up in {"around 0": 0, "around 24": 24, "around 96": 96, "around 384": 384}.items():
    moved = logits + up
    rounded = moved.bfloat16().float()
    errors[level] = Ratio((rounded - moved).abs().max().item())
    fates[level] = (rounded.argmax(-1) != moved.argmax(-1)).float().mean().item()
    print(f"{level:10}: {fates[level]:5.1%} of the tokens go to another expert; z-loss {moved.logsumexp(-1).square().mean():.0f}")
display(show(Routing.z_loss))
del errors["around 0"]
compare(predicted={"around 24": Ratio(2**-4), "around 96": Ratio(2**-2), "around 384": Ratio(1.0)}, measured=errors, tolerance=0.02)

# %% [markdown]
# So the **z-loss** (Zoph et al. 2022, eq. 5, with a factor of 0.001) pulls the *level* down, on which no choice depends.
# It is one repair. Switch has the other: the router, and only the router, computes in fp32 (§2.4), which costs nothing,
# as section 2 has shown. Most runs do both.
#
# ## 11 · The papers' tables
#
# Parameters from shapes, beside what GShard's Table 1 and Switch's Table 9 print. **Guess:** Switch-C has 15 layers of
# 2,048 experts, $d$ = 2,080, $F$ = 6,144, two matrices to an expert. How many billion?

# %%
guess_c = ask("Switch-C: billions of parameters?", unit="billion")

# %%
models = {"Switch-Base": (zoo.SWITCH_BASE, 7e9), "Switch-Large": (zoo.SWITCH_LARGE, 26e9),
          "Switch-XXL": (zoo.SWITCH_XXL, 395e9), "Switch-C": (zoo.SWITCH_C, 1571e9)}  # fmt: skip
for (experts, layers), weights in {(2048, 36): 600e9, (512, 36): 150e9, (128, 36): 37e9, (128, 12): 12.5e9}.items():
    models[f"GShard, {experts} experts, {layers} layers"] = zoo.gshard(experts, layers), weights
compare(
    guess={"Switch-C": guess_c},
    predicted={name: predict.expert_parameters(model).total for name, (model, _) in models.items()},
    measured={name: Count(int(printed)) for name, (_, printed) in models.items()},
    tolerance=0.08,
    unit="billion",
    columns=("from the shape", "published"),
)

# %% [markdown]
# Both papers' tables have a slip in them. Switch's Table 9 says that XXL has 64 experts; the released weights have 128, and
# only they give the 395 billion. GShard's Table 1 prints 36,684 experts where 18 layers of 2,048 are 36,864, and its
# weights are a few percent below what its own shapes give. A formula that you have tried on your own machine
# is good enough to find a misprint.
#
# And the price for a token? Table 9 gives Switch-Base and T5-Base, the same model with one MLP, 124 GFLOP for a sequence *each*.

# %%
dense = zoo.SWITCH_BASE.__class__(**{**vars(zoo.SWITCH_BASE), "expert_layers": 0})
ours = Ratio(predict.expert_flops(zoo.SWITCH_BASE) / predict.expert_flops(dense))
compare(predicted=ours, measured=Ratio(124 / 124), tolerance=0.02, columns=("from the shape", "published"), name="times T5-Base")

# %% [markdown]
# ## What to keep
#
# | question | answer |
# |---|---|
# | What does a layer hold, what does a token pay? | $E \cdot 2dF$ weights; $k \cdot 4dF$ FLOPs |
# | How many places has an expert? | $c \cdot kT/E$; who comes later is dropped, and the stream carries it on |
# | What travels? | rows, four times: $4\frac{p-1}{p}ktn$ bytes a rank, uneven; counts go first |
# | Who has which gradient? | an expert its whole one; the router adds up over the ranks |
# | What breaks it silently? | a collapsed router; dropped tokens; experts that are averaged like replicas |
# | What keeps the balance? | $E \sum f_e P_e$ in the loss |
#
# ## Three exercises
#
# **1.** 16 ranks with 1,024 tokens each, 64 experts, two choices, a capacity factor of 1.25. One expert is wanted by a
# sixteenth of all choices. How many of these are dropped?
#
# **2.** A layer of Mixtral on 8 ranks, an expert on each: 4,096 tokens a rank, two choices, $d$ = 4,096, bf16. How many MB
# does a rank send in a step, in balance? (On a link of 50 GB/s, how long is that?)
#
# **3.** A router that has learnt nothing gives each of 8 experts 1/8, and `topk` breaks the ties: expert 0, for everybody.
# What is the load-balancing loss?

# %%
answer_1 = None  # choices

choices = 2 * 16 * 1024
display(self_check(answer_1, choices // 16 - ExpertConfig(8, 8, 64, 2, 1.25).capacity(16 * 1024), hint="Places first: 1.25 times the fair share."))

answer_2 = None  # MB

in_mb = 4 * predict.all_to_all(2 * 4096 * 4096 * 2, 8).bytes.to("MB")
display(self_check(answer_2, in_mb, tolerance=0.01, hint="Four journeys. What is n for a row in bf16?"))

answer_3 = None

one_for_all = balance(torch.full((16, 8), 1 / 8), torch.zeros(16, 1, dtype=torch.int64)).item()
self_check(answer_3, one_for_all, tolerance=1e-6, hint="f is (1, 0, …); what is P?")

# %% [markdown]
# <details><summary>Answers</summary>
#
# 1. There are 32,768 choices, 512 for each expert, 640 places. 2,048 want this one, and 1,408 are dropped.
# 2. $4 \cdot \frac78 \cdot 2 \cdot 4096 \cdot 8192$ bytes are 235 MB, 4.7 ms on that link, for each of 32 layers.
# 3. 1, as in perfect balance! The loss cannot tell a tie from justice. Its gradient can: expert 0's probabilities are the
#    only ones that it pulls down.
#
# </details>
#
# **The lab**, `labs/lab13_experts`, asks for three things that this page left open: a queue in which the surest
# tokens come first, one row for each *rank* where we send one for each expert, and a loss that keeps ranks busy alike.
#
# ## Further reading
#
# - Lepikhin et al. 2020, [GShard](https://arxiv.org/abs/2006.16668): gating is algorithm 1, sizes are in Table 1.
# - Fedus et al. 2021, [Switch Transformers](https://arxiv.org/abs/2101.03961): one choice and capacity in §2, layouts in §5.
# - Zoph et al. 2022, [ST-MoE](https://arxiv.org/abs/2202.08906): what makes training unstable, and the z-loss.
# - Jiang et al. 2024, [Mixtral of Experts](https://arxiv.org/abs/2401.04088), and DeepSeek-AI 2024,
#   [DeepSeek-V3](https://arxiv.org/abs/2412.19437), which balances by a bias on each expert's score, and hardly by a loss.
# - Gale et al. 2022, [MegaBlocks](https://arxiv.org/abs/2211.15841): grouped products, and nobody is dropped.
#
# Lesson 14 is to ask how large a model, and how many tokens, a budget of compute should buy.
