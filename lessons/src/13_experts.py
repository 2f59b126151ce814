# %% [markdown]
# # 13 · Experts
#
# **The question:** can a model know more without thinking longer?
#
# | | |
# |---|---|
# | Time | first sitting 50 minutes, second sitting 40; about a minute and a half of both together is computing on 2 CPU cores |
# | A GPU | changes nothing in counts, bytes and losses |
# | Opens | `parallel/experts.py`, `predict/experts.py` |
#
# You double a layer's weights, and the model gets better. It also gets twice as slow, for every token multiplies every
# weight. Does a comma need all of them?
#
# So give a layer eight MLPs, and let each token go to one or two of them. Memory holds eight, and a token pays for two.
# The MLPs are called **experts**. Who chooses? And since eight experts want eight GPUs: how does a token get to an
# expert that lives elsewhere, and back? In section 6 the experts sit an exam.

# %%
import torch
import torch.distributed as dist
import torch.nn.functional as F

from course_kit import measure, ranks
from course_kit.compare import compare
from course_kit.notebook import ask, show, your_turn
from course_kit.units import Bytes, Count, Ratio
from course_lib import predict
from course_lib.collectives.operators import all_gather
from course_lib.model import text
from course_lib.model.experts import ExpertConfig, ExpertMLP, Routing, find_places
from course_lib.parallel.mesh import Mesh
from course_pages.lesson13 import pictures, trials, turns
from course_pages.lesson13.explorer import ExpertsExplorer

# %% [markdown]
# ## 1 · A router
#
# A **router** is one matrix. It gives each token a score for each expert, and a softmax makes probabilities of them; the
# best expert wins (Switch, Fedus et al. 2021), or the best two (GShard, Lepikhin et al. 2020). What an expert says is
# multiplied by its **gate** before it is added to the stream. With one choice the gate is that expert's probability. With
# more, their probabilities are divided by the sum of these.
#
# Why multiply at all? "The largest" has no gradient: nudge a score a little, and the same expert wins. Through the gate
# alone does the router learn whether what the chosen expert said has helped. (Hence a single choice is not divided: divided by itself
# it is 1, and 1 has no gradient.) What another expert would have said the router never learns.
#
# **Your turn.** From probabilities to choices and gates, for any number of choices.


# %%
@your_turn(turns.check_gates, look="`probabilities.topk(top_k)` gives both. What do you divide by, and when not?")
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
# (Our one MLP is $E = k = 1$: its router has no choice, and costs $2d$.)
#
# **Guess:** $d$ = 64, $F$ = 256, and 512 tokens. One MLP needs 33.6 MFLOP. And 8 experts, two choices?

# %%
guess_flops = ask("8 experts, two choices: how many MFLOP?", unit="MFLOP")

# %%
shapes = {"one MLP": (1, 1), "8 experts, one choice": (8, 1), "8 experts, two choices": (8, 2)}
configs = {name: ExpertConfig(64, 256, *shape) for name, shape in shapes.items()}
found = {name: ranks.run(trials.held_and_flops, config, 512, world_size=1)[0] for name, config in configs.items()}
print("weights held:", {name: held for name, (held, _) in found.items()})
compare(
    guess={"8 experts, two choices": guess_flops},
    predicted={name: predict.layer_flops(config, 512) for name, config in configs.items()},
    measured={name: flops for name, (_, flops) in found.items()},
    unit="MFLOP",
)

# %% [markdown]
# Eight times the weights for the FLOPs of one or two, and a router that costs nearly nothing. So why not a thousand experts?
# Three bills are not in this table yet.
#
# ## 3 · A budget
#
# The first one is space. On TPUs (Google's accelerators), where GShard and Switch ran, shapes are fixed before the run, and how many tokens will want
# an expert is not known. So they give each expert a **capacity**: its fair share of the $T$ tokens' choices,
# times a **capacity factor** $c$.
#
# $$C = \left\lceil c \cdot \frac{kT}{E} \right\rceil$$
#
# (Fedus et al. 2021, eq. 3, times $k$.) A choice that comes when the expert is full is **dropped**: the layer adds
# nothing for it. All first choices come first, token by token; then all second ones (GShard, algorithm 1).
#
# **Break it.** 24 tokens, two choices, 6 experts, $c = 1$: 8 places each, so 48 places for 48 choices. The router likes two
# of the experts better. How many choices are dropped? And if the batch is turned around, does any token get another answer?

# %%
CONFIG = ExpertConfig(width=32, hidden=64, experts=6, top_k=2, capacity_factor=1.0)

# %%
guess_dropped = ask("Of 48 choices, how many are dropped?")

# %%
layer = ExpertMLP(CONFIG)
layer.router.weight.data[:2] += 0.02  # two experts are liked better
x = torch.randn(24, 32, generator=torch.Generator().manual_seed(0)) + 0.2
said, chosen = layer(x), layer.routing.choice.experts_Tk
kept = find_places(chosen, 6, CONFIG.capacity(24))  # the second sitting asks you for this function
pictures.queues(chosen, kept, 6, CONFIG.capacity(24), caption="As many places as choices. All first choices are placed before any second one; what stands above the line is dropped.").show()
another = int(((layer(x.flip(0)).flip(0) - said).abs() > 1e-6).any(-1).sum())
print(f"you said {guess_dropped.said}: {int((~kept).sum())} choices are dropped")
print(f"turned around, {another} of 24 tokens get another answer")
print(f"dropped tokens: {int((~kept).all(-1).sum())}; rows of zeros: {int((said == 0).all(-1).sum())}")

# %% [markdown]
# An empty place at expert 3 is of no use to a choice at expert 0. Hence a $c$ above 1, often 1.25.
#
# A **dropped token** is one that has lost all its choices: the layer says 0 to it, exactly. The block adds that to the
# stream, so the token goes on as it was.
#
# And an answer depends on the *others* in the batch, on those who stand before you. Batch-norm has that vice as well (lesson 07), but there the others
# move your answer a little. Here they delete it.
#
# ## 4 · Tokens travel
#
# The second bill is bytes. Eight experts live on four ranks, and every rank has tokens of its own. Each token must go where
# its expert lives, be computed there, and come home.

# %%
wanted = torch.tensor([[0, 3, 6, 1, 2, 0], [5, 0, 2, 2, 7, 1], [1, 4, 0, 3, 3, 6], [2, 1, 7, 0, 5, 2]])
pictures.journey(wanted, 8, caption="A colour for each expert, two on each rank; a number for each token's home. In the middle no rank has six.")

# %% [markdown]
# That is an all-to-all (lesson 06) with **uneven counts**, and a rank has to say how many rows it sends to each, and how
# many it expects from each. So counts go first: an all-gather tells all ranks how many rows each has for each expert.
#
# **Your turn.** Read this rank's part off the plan.


# %%
@your_turn(turns.check_traffic, look="`counts.unflatten(1, (p, -1))`, for p ranks, puts the experts of a rank together. Which axis says who sends?")
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
# A journey moves rows and changes none. So its gradient is the journey home, with sends and receives swapped. The way there
# is called **dispatch**, the way home **combine**, and each is the other's backward pass. This is all of it, without drops
# (`say` lets each of a rank's experts compute the rows that came for it):


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


# %%
class Experts(trials.OwnExperts):  # a copy of the router, and this rank's part of `up` and `down`
    top_k, travel = 2, Travel.apply

    def forward(self, x):  # this rank's tokens
        chosen, gates = gates_of(F.linear(x, self.router).softmax(-1), self.top_k)
        order = chosen.flatten().argsort(stable=True)  # by expert: those for rank 0's experts come first
        tokens = order // self.top_k  # choice number 7 of two each is token 3's
        self.counts = all_gather(chosen.flatten().bincount(minlength=len(self.router))[None], 0)
        sends, receives = my_rows(self.counts, dist.get_rank())
        said = self.say(self.travel(x[tokens], sends, receives))
        home = self.travel(said, receives, sends) * gates.flatten()[order, None]
        return torch.zeros_like(x).index_add(0, tokens, home)  # a token's choices add up where it stands


# %% [markdown]
# Is it right? The reference computes every expert for every token on one device and weighs most of what they say with
# 0: wasteful, and hard to get wrong. Both step three times. The loss is a *sum* over all tokens, so an expert gets its whole
# gradient from the rows that came to it. Only the router's, which every rank has, adds up over the ranks.

# %%
for p in (1, 2, 4):
    print(f"{p} ranks: outputs and weights of one device after each step: {max(ranks.run(trials.farthest, Experts, world_size=p)) < 1e-12}")

# %% [markdown]
# Now the bytes. Each of $p$ ranks brings $t$ tokens of $n$ bytes, and each of these travels $k$ times. If all experts are
# equally busy, $\frac{p-1}{p}$ of the rows leave the rank. There are four journeys, two forward and two backward:
#
# $$4 \cdot \frac{p-1}{p} \cdot ktn$$
#
# **Guess:** 4 ranks with 256 tokens each, two choices, 64 features of 4 bytes. How many kB does a rank send, on average?
# (Everybody's favourite lives on rank 0. Does that rank send more than the others, or less?)

# %%
guess_sent = ask("4 ranks, 256 tokens each: how many kB does a rank send in a step, on average?", unit="kB")


# %%
counts, sent = zip(*ranks.run(trials.sent_in_a_step, Experts, world_size=4))
print("rows from rank (line) to rank (column):", *(my_rows(counts[0], r)[0] for r in range(4)), sep="\n")
even = predict.expert_traffic(ExpertConfig(64, 128, 8), Mesh({"expert": 4}), 4 * 256, element_bytes=4)["expert"]
due = {}
for r in range(4):
    sends, receives = my_rows(counts[0], r)
    due[f"rank {r}"] = Bytes(2 * (64 * 4) * (sum(sends) + sum(receives) - 2 * sends[r]))  # out and back, forward and backward
seen = {f"rank {r}": sent[r].sent_bytes for r in range(4)}
compare(
    guess={"on average": guess_sent},
    predicted=due | {"on average": even.modelled_bytes["all_to_all"]},
    measured=seen | {"on average": sum(seen.values(), Bytes(0)) / 4},
    tolerance=0.05,
    unit="kB",
    columns=("from counts", "seen by the kernel"),
)

# %% [markdown]
# The ranks' numbers come from the counts, the last one from the formula alone. (On top come the counts themselves, and headers.) Nearly half of rank 0's own choices stay at
# home, and still it sends *more* than the others: in a combine it sends back what it received. A combine is over only
# when its busiest rank is done.
#
# ## 5 · Break it: a router collapses
#
# The third bill is the worst. We train a GPT of two layers on our stories, with 8 small experts in each, one choice,
# $c = 1.25$, from three seeds. The loss is the text's alone. A second model has *nothing* in the place of its
# MLPs. (`show(trials.read_stories)` prints the loop.)
#
# **Guess:** if all tokens go to one expert, how many of 100 are dropped, each with its only choice? (And will the crowd
# still be there after 300 steps?)

# %%
guess_lost = ask("All go to one of 8 experts with a capacity factor of 1.25: of 100 tokens, how many are dropped?")

# %% tags=["varies"]
stories = {name: ranks.run(trials.read_stories, name, world_size=3, timeout_s=300) for name in ("nothing", "experts")}
letters = text.ngram_entropy(bytes(text.stories(seed=0).batch(0, 0, 0, 256, 256)[0].flatten().tolist()), 1)
pictures.crowds(stories, letters, caption="A line for each seed. While one expert has nearly all, the loss comes to rest on the letters' entropy (all that their frequencies tell), with experts or without.").show()
early = Ratio(100 * sum(sum(run.dropped[:100]) / 100 for run in stories["experts"]) / 3)
print("at last the favourite has, of 100 tokens:", [f"{100 * run.largest[-1]:.0f}" for run in stories["experts"]])
compare(guess=guess_lost, predicted=Ratio(100 * (1 - 1.25 / 8)), measured=early, tolerance=0.1, name="of 100 tokens, steps 0 to 100")

# %% [markdown]
# You hold eight experts and use one at a time. It is full, so most tokens pass by the layer.
# Meanwhile the model knows how frequent each letter is and no more, as one without any MLP does.
#
# Why? The crowd is there after a few steps, before any expert has learnt a thing. While frequencies are all that it learns,
# the model gives every token the same answer, and all tokens' streams point the same way, so a change of the router that wins one token
# for an expert wins all of them (section 11 measures it). Later the crowd parts, without any help: tokens differ again.
#
# Switch does not wait: it lets the router pay. Over a batch, let $f_e$ be the share of tokens whose first choice is
# expert $e$, and $P_e$ the mean of its probability. The **load-balancing loss** is
#
# $$E \sum_e f_e P_e$$
#
# (Fedus et al. 2021, eq. 4, without their factor of 0.01: the stories take 0.1, section 6 takes 0.01.) In balance it is 1; if all go to one for sure, $E$.
# Counts have no gradient, probabilities have: each expert's probability is pulled down
# as hard as it is in demand.
#
# **Your turn.** Write it.


# %%
@your_turn(turns.check_balance, look="`bincount` of the first choices, with `minlength`, over the number of tokens. And the mean of what?")
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


# %% [markdown]
# The library's is the same. Where ranks share experts, and so their places, it counts the tokens of all of them, and each rank has its term of the sum:

# %%
show(Routing.load_balancing_loss, docstring=False)

# %% tags=["varies"]
stories["loss of balance"] = ranks.run(trials.read_stories, "experts", balance, world_size=3, timeout_s=300)
for name in ("experts", "loss of balance"):
    print(f"{name}: shares of tokens that 300 steps drop:", [f"{sum(run.dropped) / 300:.0%}" for run in stories[name]])

# %% tags=["varies"]
stories["one MLP"] = ranks.run(trials.read_stories, "one MLP", world_size=3, timeout_s=300)
for name, runs in stories.items():
    print(f"{name:16} loss of the last ten steps, by seed:", [f"{sum(run.losses[-10:]) / 10:.2f}" for run in runs])
tens = {name: [torch.tensor(run.losses).reshape(-1, 10).mean(1).tolist() for run in stories[name]] for name in ("loss of balance", "one MLP")}
pictures.by_seed({"loss (nats per token)": tens}, every=10, caption="Means of ten steps, a line for each seed. The best MLP ends among the experts.")

# %% [markdown]
# The loss of balance has worked: fewer tokens are dropped, and the text's loss is lower for each seed. But look at *one MLP*, no
# larger than a single expert. What eight balanced experts gain over it is less than what its own seeds differ by, and without
# balance they gain nothing. Is the promise empty, then?
#
# ## 6 · Can it know more?
#
# More room helps only a model that lacks room, and 300 steps of stories may not fill even one MLP. So here is a text that is nothing
# but knowledge. A town has 48 streets and 48 avenues, and at each of its 2,304 corners stands one of 16 kinds of shops,
# drawn by dice. There is no rule: you know a corner, or you guess. The model has a vector for the street, one for the avenue,
# one layer, and a head. One MLP with 20 hidden features goes first, in three towns:

# %% tags=["varies"]
towns = {"one MLP": ExpertConfig(32, 20, 1, 1), "8 experts, one choice": ExpertConfig(32, 16, 8, 1), "one MLP, as many weights": ExpertConfig(32, 128, 1, 1)}


def corners_known(name):
    runs = ranks.run(trials.learn_town, towns[name], balance, world_size=3, timeout_s=300)
    ends = ", ".join(f"{100 * run[-1]:.0f}" for run in runs)
    print(f"{name}: {predict.layer_flops(towns[name], 1):,} FLOPs a token; of 100 corners it knows {ends}")
    return [[100 * share for share in run] for run in runs]


known = {"one MLP": corners_known("one MLP")}

# %% [markdown]
# **Guess:** how many do 8 experts know, so narrow (16) that a token, with the router, costs no more? The third model is one MLP with as many weights as all eight, which thinks six times as long.

# %%
guess_known = ask("8 experts, one choice: how many of 100 corners?")

# %% tags=["varies"]
known |= {name: corners_known(name) for name in list(towns)[1:]}
print(f"you said {guess_known.said} for the experts")
pictures.by_seed({"corners that the model knows (%)": known}, every=20, caption="A line for each of three towns. Eight experts come close to the MLP that costs six times as much.")

# %% [markdown]
# So yes. For no more FLOPs a token, eight experts know more than twice as many corners as one MLP, in each
# of three towns. They come close to the MLP with as many weights, for a sixth of its FLOPs.
#
# Now you decide.

# %%
ExpertsExplorer().show()

# %% [markdown]
# 1. Skew 2. Which factor drops no choice? How many places are empty at a factor of 2?
# 2. Still skew 2, and *no limit*. How busy is the busiest rank on 4 ranks, against the mean? Why?
#
# <details><summary>Answers</summary>
#
# 1. Only *no limit*. At 2 there are 79 empty places, and 15 choices are dropped. Places do not cure a crowd; balance does.
# 2. 36 rows against 16, 2.25 times the mean: the favourite expert stays in one piece.
#
# </details>
#
# A layer may hold more than a token pays for, if a router chooses. What it chooses has to fit: into places,
# onto links, and into a balance.
#
# ---
#
# ## Second sitting
#
# The story ends here, and the lab needs no more. On another day, run all cells above before you go on. Below: how large
# Mixtral is, experts together with data and tensor parallelism, a function for you (who finds a place?), a gradient that is averaged once too
# often, PyTorch's own pieces, a bias and a second loss for the router, what DeepSeek-V3 needs in seconds and in bytes, and the papers' tables.
#
# ## 7 · At scale
#
# Mixtral 8x7B has 8 experts in each of its 32 layers and two choices (Jiang et al. 2024). **Guess:** how many parameters has Mixtral?

# %%
guess_total = ask("Mixtral 8x7B, 8 experts in each layer, two choices: billions of parameters?", unit="billion")

# %%
from course_lib.model import zoo

mixtral = predict.expert_parameters(zoo.MIXTRAL_8X7B)
# measured: counted in released weights (by keras-hub; a token's 13 in its abstract)
compare(
    guess={"Mixtral": guess_total},
    predicted={"Mixtral": mixtral.total, "Mixtral, a token": mixtral.active},
    measured={"Mixtral": Count(46_702_792_704), "Mixtral, a token": Count(13_000_000_000)},
    tolerance=0.03,
    unit="billion",
    columns=("from the shape", "published"),
)  # fmt: skip

# %% [markdown]
# Not 56: only the MLPs are there eight times, attention once. For a token Mixtral computes like a model of 13 billion. Yet
# memory must hold all 47, on many ranks, and then tokens travel in every layer.
#
# ## 8 · Who holds which weights, which tokens?
#
# Three ways of cutting meet in this layer. Along **expert**, ranks have different experts *and* different tokens.
# Along **data** they have the same experts and different tokens. Along **tensor** they have the same tokens, and a part of the
# hidden features of each expert (lesson 08). Eight ranks, two along each:

# %%
from torch.distributed._functional_collectives import all_to_all_single_autograd

from course_kit.notebook import self_check
from course_kit.units import Flops
from course_lib.model.experts import BiasedRouter
from course_lib.parallel.experts import ParallelExperts, grouped_product, has_grouped_product, holdings
from course_lib.parallel.mesh import process_groups
from course_pages.shared.who_sends import matrix

CUBE, LAYER = Mesh({"data": 2, "expert": 2, "tensor": 2}), ExpertConfig(width=64, hidden=128, experts=8)
pictures.who_holds(CUBE, LAYER, 1024, caption="Blue: what a rank holds of each expert, half the features of four. Orange: its quarter of 1,024 tokens. Neighbours 0 and 1 share theirs.").show()

# %% [markdown]
# (`ParallelExperts` is section 4's layer, with a capacity and more axes.)
#
# A quarter of the tokens and a quarter of the experts' weights on each rank. What does each axis send? Along expert four
# journeys, and the router's gradient; along data the gradients of this rank's experts and of the router; along tensor an
# all-reduce of the rows in each direction, since half of an expert makes a term of a sum. (In an all-reduce of two, each
# sends as much as is reduced.)
#
# **Guess:** rank 0 has 256 tokens, two choices, 256 bytes to a row. How many kB does it send along tensor, if its
# experts get as many rows as its tokens ask for?

# %%
guess_tensor = ask("kB that rank 0 sends along tensor in a step?", unit="kB")


# %%
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
# (The formula knows of no favourites. Along tensor rank 0 sends less than it says, for this rank's experts got fewer rows than
# their share. Data's surplus has nothing to do with favourites: it is headers, as in lesson 00.) Ranks along expert bring their own tokens, as replicas
# do. So expert parallelism usually does not stand beside the data axis but on it: the ranks that copy all other layers
# hold different experts.
#
# **And with a capacity?** Section 3 left it to the library to say who finds a place. Now you.
#
# **Your turn.** All first choices come before any second one; among equals the token with the smaller number comes first.


# %%
@your_turn(turns.check_places, look="Put all choices into one line, in the order in which they come. `one_hot` and `cumsum` number them.")
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
# `ParallelExperts` gives places over the tokens of *all* ranks, so it must drop the choices that one device drops with
# the same capacity. The counts, which all ranks have anyway, tell each rank how many are ahead of its own choices. (GShard and Switch give them out group by group, or device by
# device, and need no counts from others. GShard also throws dice for a second choice: it is sent with a probability of twice its
# gate.)

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
    kept = torch.as_tensor(places(chosen[0], 8, ExpertConfig(32, 64, 8, 2, c).capacity(64))).bool()
    due[f"{p} ranks, c = {c}"], lost[f"{p} ranks, c = {c}"] = Count(int((~kept).sum())), Count(sum(mine))
    furthest = max(furthest, *wrong)
print("outputs and gradients of one device with the same capacity:", furthest < 1e-12)
compare(predicted=due, measured=lost, columns=("by your queue", "dropped by the ranks"), tolerance=0)

# %% [markdown]
# ## 9 · A gradient that is too large
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


# %%
guess_long = ask("4 ranks, each with its own mean, experts' gradients left as they are: how many times the right one?")

# %%
left, mixed = (ranks.run(expert_gradient, averaged, world_size=4)[0] for averaged in (False, True))
print(f"left as it is, cosine with the right one: {left[1]:.2f}; averaged over the ranks: {mixed[1]:.2f}")
compare(guess=guess_long, predicted=Ratio(4), measured=left[0], tolerance=1e-6, name="left as it is")

# %% [markdown]
# Each rank has divided by its own 64 tokens and not by all 256, so the sum of the rows is 4 times too long. It has to be
# divided by the number of ranks, and must not be added up again. A wrapper for replicas does add it up again: it takes rank 0's
# experts for copies of rank 1's, and the mean of different experts' gradients is no expert's. Adam hides a constant factor
# (lesson 07). Clipping hides it too where *all* gradients have it. But here only the experts' do: they dominate the common norm, and
# clipping shortens all other gradients too much.
#
# ## 10 · The real thing
#
# PyTorch has an all-to-all with a gradient, `all_to_all_single_autograd` (it stands in a module with an underscore, and
# training libraries use it all the same). Put it into our layer in the place of `Travel`:

# %%
class WithTorchs(Experts):
    def travel(self, rows, sends, receives):
        return all_to_all_single_autograd(rows, receives, sends, dist.group.WORLD)


off_by = max(ranks.run(trials.farthest, WithTorchs, world_size=4, diagnose=False))
print("with torch's all-to-all, outputs and weights of one device after each step:", off_by < 1e-12)
show(grouped_product, docstring=False)

# %% [markdown]
# And the loop over experts (`trials.computed`, which `say` calls)? PyTorch's newer `grouped_mm` multiplies each group of rows with its own
# matrix in *one* call, where it has a kernel for the device and the type. For a GPU a hundred small products are a hundred
# launches, each with little to do (Gale et al. 2022, below, built theirs for that). The library uses PyTorch's through the
# function above. It has the values of the loop, and the FLOPs of the rows that came:


# %%
def grouped(loads, width=256, hidden=512):
    rows, weights = torch.randn(sum(loads), width), torch.randn(len(loads), width, hidden)
    one_by_one = torch.cat([part @ weight for part, weight in zip(rows.split(loads), weights)])
    has_grouped_product("cpu", rows.dtype)  # its one trial run must not be counted
    with measure.flops() as counted:
        together = grouped_product(rows, weights, loads)
    return torch.allclose(together, one_by_one, rtol=1e-4, atol=1e-3), counted.total


same, counted = grouped([100, 0, 300, 112])
print("values of a product for each:", same)
compare(predicted=Flops(2 * 512 * 256 * 512), measured=counted, unit="MFLOP", name="512 rows, 4 matrices")

# %% [markdown]
# ## 11 · A bias, and a second loss for the router
#
# DeepSeek-V3 balances (almost) without a loss. Each expert has a *bias*, which is added where experts are chosen and nowhere else.
# After each step it goes up a little if too few tokens wanted the expert, and else down. No gradient knows of it:

# %% tags=["varies"]
display(show(BiasedRouter.choose, docstring=False), show(BiasedRouter.nudge, docstring=False))
stories["bias"] = ranks.run(trials.read_stories, "biased", world_size=3, timeout_s=300)
pictures.crowds({name: stories[name] for name in ("experts", "loss of balance", "bias")}, letters, caption="Right: the loss of balance parts the crowd first, and at last the bias is as even. (Shares are means of ten steps; a bias moves by 0.003.)").show()

# %% [markdown]
# How alike do two tokens look to a router that nobody balances? (A cosine of 1 is the same direction.)

# %% tags=["varies"]
for step in (0, 5, 50, 299):
    print(f"step {step}: mean cosine of two inputs", [f"{run.alike[step]:.2f}" for run in stories["experts"]])

# %% [markdown]
# While tokens look alike, whatever a bias does, it does to nearly all of them: the green lines stay high for most of the first 80
# steps. Once they differ, it is as even as the loss.
#
# Another danger lies in the logits themselves. Large models compute in bf16. A softmax does not change when all logits of a token rise together. But their rounding
# does: from $2^m$ to $2^{m+1}$, bf16's numbers stand $2^{m-7}$ apart (lesson 01), so the error is up to half of that.
# Here are logits of 8 experts, moved up by a number. **Guess:** around 384, how many of 100 tokens go to another expert?

# %%
guess_elsewhere = ask("Logits around 384, rounded: of 100 tokens, how many go to another expert?")

# %%
logits = torch.randn(4096, 8, generator=torch.Generator().manual_seed(0))
errors, fates = {}, {}
for level, up in {"around 0": 0, "around 24": 24, "around 96": 96, "around 384": 384}.items():
    moved = logits + up
    rounded = moved.bfloat16().float()
    errors[level] = Ratio((rounded - moved).abs().max().item())
    fates[level] = (rounded.argmax(-1) != moved.argmax(-1)).float().mean().item()
    print(f"{level:10}: {fates[level]:5.1%} of the tokens go to another expert; z-loss {moved.logsumexp(-1).square().mean():,.0f}")
print("you said", guess_elsewhere.said)
display(show(Routing.z_loss))
del errors["around 0"]
compare(predicted={"around 24": Ratio(2**-4), "around 96": Ratio(2**-2), "around 384": Ratio(1.0)}, measured=errors, tolerance=0.02)

# %% [markdown]
# So the **z-loss** (Zoph et al. 2022, eq. 5, with a factor of 0.001) pulls the *level* down, on which no choice depends.
# It is one repair. Switch has the other: the router, and only the router, computes in fp32 (§2.4), which costs nearly
# nothing. Zoph et al. do both; the papers of Mixtral and DeepSeek-V3 mention no z-loss.
#
# ## 12 · Seconds and bytes of DeepSeek-V3
#
# DeepSeek-V3 has 256 experts in a layer and chooses 8, and one more that all tokens meet (DeepSeek-AI 2024). Its shape
# has as many parameters as its released weights:

# %%
deepseek = predict.expert_parameters(zoo.DEEPSEEK_V3)
# measured: counted in released weights (its README_WEIGHTS.md; with one of its two embeddings our count of a token is 36.6)
compare(
    predicted={"DeepSeek-V3": deepseek.total, "DeepSeek-V3, a token": deepseek.active},
    measured={"DeepSeek-V3": Count(671_000_000_000), "DeepSeek-V3, a token": Count(36_700_000_000)},
    tolerance=0.03, unit="billion", columns=("from the shape", "published"),
)  # fmt: skip

# %% [markdown]
# How long do the journeys take beside the computing? A layer's computing is three passes over $k$ experts of three matrices each,
# $3 \cdot k \cdot 6dF$ FLOPs for a token; its journeys carry $4 \cdot \frac{p-1}{p} \cdot k \cdot 2d$ bytes. Their ratio is left with
# $F$ and $p$ alone: the narrower the experts, the more travel for the same thought. Say that a link carries 50 GB/s one way and
# a GPU reaches 400 TFLOP/s.
#
# **Guess:** 4,096 tokens on each rank. Mixtral ($F$ = 14,336, one expert on each of 8 ranks) travels 0.22 seconds for each
# second that it computes its experts. And DeepSeek-V3 ($F$ = 2,048, four experts on each of 64 ranks)?

# %%
guess_travel = ask("DeepSeek-V3: seconds of travel for each second of computing in a layer of experts?")

# %%
for name, config, p in (("Mixtral", ExpertConfig(4096, 14_336, 8, 2), 8), ("DeepSeek-V3", ExpertConfig(7168, 2048, 256, 8), 64)):
    sent = predict.expert_traffic(config, Mesh({"expert": p}), 4096 * p, element_bytes=2)["expert"].modelled_bytes["all_to_all"]
    travel, computing = sent / 50e9, 3 * 1.5 * predict.layer_flops(config, 4096) / 400e12  # 1.5: a third matrix
    print(f"{name:12} {sent.to('MB'):5,.0f} MB: {1000 * travel:4.1f} ms of travel, {1000 * computing:4.1f} ms of computing, {travel / computing:.2f}")
print("you said", guess_travel.said)

# %% [markdown]
# Both layers compute nearly the same number of FLOPs. But a DeepSeek token visits eight narrow experts where Mixtral's visits two wide
# ones, and each visit is a journey. Its authors count about one second of travel for each of computing (§3.2.1), with links and
# rows of their own, and much of their engineering answers that number. A token may go to four machines at most (node-limited
# routing), so its row crosses the slow link no more than four times; rows travel *to* the experts in 8 bits; and the journeys of
# one micro-batch run while another one computes (DualPipe). The expert that all tokens meet travels nowhere: each rank
# has it, and its computing, an eighth more, is not in our ratio.
#
# Now memory. Adam in mixed precision keeps 16 bytes for each of 671 billion parameters (lesson 04). Axis "expert" cuts the
# experts' 654 billion; the other 17 billion (attention, embeddings, the experts that
# all tokens meet) stand whole on each of its ranks, unless ZeRO cuts them (lesson 10). **Guess:** 64
# ranks along expert, no ZeRO. How many GB on each?

# %%
guess_memory = ask("DeepSeek-V3, 64 ranks along expert, 16 bytes a parameter: GB a rank?", unit="GB")

# %%
print("you said", guess_memory.said)
for expert, data, zero in ((1, 1, 0), (64, 1, 0), (64, 1, 1), (64, 32, 1), (64, 32, 3)):
    states = predict.model_states(predict.Setup(zoo.DEEPSEEK_V3, precision="mixed", expert=expert, data=data, zero=zero))
    print(f"{expert:3} along expert, {data:2} along data, ZeRO-{zero}: {states.total.to('GB'):8,.0f} GB a rank, {states.parameters.to('GB'):6,.1f} of them weights")

# %% [markdown]
# By hand the second line is $16 \cdot (17.1 + 654/64)$. So a cut through the experts alone leaves the 17 billion as the larger half.
# With ZeRO-1 over 2,048 ranks, as many as DeepSeek-V3 had, a card of 80 GB is still too small, for weights and gradients stay whole.
# Its authors cut the layers as well, into 16 stages (§3.2; lesson 09), and leave ZeRO at stage 1: stage 3 would fit, but
# would gather every weight for every micro-batch.
#
# ## 13 · The papers' tables
#
# Parameters from shapes, beside what GShard's Table 1 and Switch's Table 9 print. **Guess:** Switch-C has 30 layers of
# 2,048 experts (15 in its encoder, 15 in its decoder), $d$ = 2,080, $F$ = 6,144, two matrices to an expert. How many billion?

# %%
guess_c = ask("Switch-C: billions of parameters?", unit="billion")

# %%
models = {"Switch-Base": (zoo.SWITCH_BASE, 7e9), "Switch-Large": (zoo.SWITCH_LARGE, 26e9),
          "Switch-XXL": (zoo.SWITCH_XXL, 395e9), "Switch-C": (zoo.SWITCH_C, 1571e9)}  # fmt: skip
for (experts, layers), weights in {(2048, 36): 600e9, (512, 36): 150e9, (128, 36): 37e9, (128, 12): 12.5e9}.items():
    models[f"GShard, {experts} experts, {layers} layers"] = zoo.gshard(experts, layers), weights
# measured: counted by Fedus et al. 2021 (Table 9) and Lepikhin et al. 2020 (Table 1), in models that they trained
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
# weights are 3 to 6 percent below what its own shapes give. (Switch-Base and Switch-Large are 6 and 4 percent below theirs, too;
# rounding to whole billions cannot explain the second.) A formula that you have tried on your own machine
# is good enough to find a misprint.
#
# And the price for a token? Table 9 gives Switch-Base and T5-Base, the same model with one MLP, 124 GFLOP for a sequence *each*.
# Switch-Base was built for that, so it tests no formula: ours would say the same of any two such shapes.
#
# ## What to keep
#
# | question | answer |
# |---|---|
# | What does a layer hold, what does a token pay? | $E \cdot 2dF$ weights; $k \cdot 4dF$ FLOPs |
# | How many places has an expert? | $c \cdot kT/E$; who comes later is dropped, and the stream carries it on |
# | What travels? | rows, four times: $4\frac{p-1}{p}ktn$ bytes a rank, uneven; counts go first |
# | Who has which gradient? | an expert its whole one; the router adds up over the ranks |
# | What breaks it silently? | a collapsed router; dropped tokens; experts that are averaged like replicas |
# | What keeps the balance? | $E \sum f_e P_e$ in the loss, or a bias where experts are chosen |
# | When does it pay? | where one MLP has no room for what there is to know |
# | Travel against computing? | falls with $F$: narrow experts travel more |
#
# ## Three exercises
#
# **1.** 16 ranks with 1,024 tokens each, 64 experts, two choices, a capacity factor of 1.25. One expert is wanted by a
# sixteenth of all choices. How many of these are dropped?
#
# **2.** DeepSeek-V3's layer in section 12 sends 1,850 MB from a rank. Now let rows and gradients travel *to* the experts in 8
# bits, and home in 16 as before. How many MB?
#
# **3.** A router that has learnt nothing gives each of 8 experts 1/8, and `topk` breaks the ties: expert 0, for everybody.
# What is the load-balancing loss?

# %%
answer_1 = None  # choices

self_check(answer_1, turns.EXERCISES[0], hint="Places first: 1.25 times the fair share.")

# %%
answer_2 = None  # MB

self_check(answer_2, turns.EXERCISES[1], tolerance=0.01, hint="There are four journeys. Which of them go to the experts?")

# %%
answer_3 = None

self_check(answer_3, turns.EXERCISES[2], tolerance=1e-6, hint="f is (1, 0, …); what is P?")

# %% [markdown]
# <details><summary>Answers</summary>
#
# 1. There are 32,768 choices, 512 for each expert, 640 places. 2,048 want this one, and 1,408 are dropped.
# 2. Two of the four journeys, the dispatch and the gradients on the combine's way back, are half as long: three quarters of
#    1,850 MB, 1,387.
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
#   [DeepSeek-V3](https://arxiv.org/abs/2412.19437): the bias in §2.1.2, journeys and layout in §3.2.
# - Zhou et al. 2022, [Expert choice](https://arxiv.org/abs/2202.09368): experts choose their tokens, so every place is filled.
# - Gale et al. 2022, [MegaBlocks](https://arxiv.org/abs/2211.15841): grouped products, and nobody is dropped.
#
# Lesson 14 is to ask how large a model, and how many tokens, a budget of compute should buy.
