# %% [markdown]
# # Lab 14 · Spend the budget
#
# **The question:** you may spend a tenth of the money on small runs. Then you must say how large the one large run will
# be, on how much text, what it will lose, and how sure you are. What do you buy first?
#
# | | |
# |---|---|
# | Time | about 90 minutes |
# | Builds on | lesson 14: C = 6ND, the law of the loss, bowls, and fits that stop too early |
# | You write | five functions, none longer than 25 lines |
# | A GPU | changes nothing here |
#
# | question | | points |
# |---|---|---|
# | 1 | What it costs to be asked | 15 |
# | 2 | A fit that some runs cannot fool | 30 |
# | 3 | Which runs to buy | 20 |
# | 4 | Commit yourself | 35 |
#
# **The rules.** You may use NumPy and all of SciPy, and your own functions from questions above. What is finished is
# out of bounds: lesson 14's library, `course_lib.predict.laws`, with its fit. A function leaves what it is given as it
# was and does not touch the global random state: if you want random numbers, make a generator,
# `np.random.default_rng(0)`. The checks look.
#
# A lab cannot train a thousand models for each of you. So most of your runs happen in *worlds*: each has a law of its
# own, which you are not told, noise, and now and then a run that fails and does not say so. At the end you plan once
# with runs that were really trained, those of lesson 14. An answer that looks for the law behind the meter has not
# understood what it is for; the checks read its text and that of the functions that it calls.
#
# Checks that you see here give you points and tell you what is wrong. More run when the lab is graded, in other worlds.
# Cells that show your answer at work fail until there is one. That costs nothing.
#
# Question 4 is easiest with the answers to 2 and 3. The others need no other.

# %%
import math
from typing import NamedTuple

import numpy as np
from scipy.optimize import least_squares, minimize_scalar

from course_kit.checks import check
from course_kit.checks.restrictions import called_by
from course_kit.notebook import ask
from course_pages.lesson14 import grid as lesson_14

generator = np.random.default_rng  # the checks' own

# %%
FINISHED = ("course_lib.predict.laws", "predict.laws", "fit_law", "resampled", "left_out", "spread_at", "ScalingLaw")
FINISHED += ("course_pages", "lesson14", "lesson_14")  # nor does an answer read the results
FINISHED += ("__closure__", "cell_contents", "__self__", "__globals__", "__dict__", "__code__", "globals", "vars", "gc")
FINISHED += ("inspect", "_getframe", "currentframe", "f_back", "f_locals", "tb_frame", "exec", "eval", "getattr", "setattr")
FINISHED += ("attrgetter", "__getattribute__", "dir", "sys", "importlib", "__import__", "ctypes", "open", "json", "pathlib")
FINISHED += ("pickle", "cloudpickle", "marshal", "os", "multiprocessing", "concurrent", "subprocess")  # a copy of the meter
JUDGES = ("scattered", "trained", "better", "problem", "bottom", "refusal", "meter", "drawn", "world", "affordable", "committed")
JUDGES += ("outcome", "real_runs")  # the checks' own functions


# %%
class Law(NamedTuple):
    """What a run loses: E + A / N^alpha + B / D^beta, in nats per token."""

    E: float
    A: float
    B: float
    alpha: float
    beta: float

    def loss(self, N, D):
        """Nats per token of N parameters after D tokens, for numbers or for arrays."""
        return self.E + self.A * N**-self.alpha + self.B * D**-self.beta


# %%
class Run(NamedTuple):
    """A run that ended: its size, its tokens, and two losses in nats per token."""

    N: int
    D: int
    train: float
    held_out: float


# %% [markdown]
# ## 1 · What it costs to be asked (15 points)
#
# Lesson 14's budget pays for training alone, and its best model is the one that loses least. But a model is trained in
# order to be asked. Each token that it reads later, or writes, goes through it forward: 2 FLOPs for each parameter,
# where training took 6. So a model that will be asked often had better be smaller, and read for longer
# (Sardana et al. 2023, [arXiv:2401.00448](https://arxiv.org/abs/2401.00448)). One budget pays for both.
#
# And count what you pay for. Here the law is in $N$, the parameters of the blocks, as Kaplan counted. Every model also
# has a head of `table` parameters, the same number at every size. The law does not see it; the bill does, for each
# token, in training and later.
#
# **Your contract.**
#
# - `cost(N, D, table, served)`: FLOPs in all, for a model of `N` parameters in its blocks and `table` in its head, which
# is trained on `D` tokens and later asked for `served` tokens. Returns a float.
# - `best_model(law, flops, table=0, served=0)`: `(N, D)`, two floats, which spend exactly `flops`, to a millionth, with
# the least loss by the law. They need not be whole. `flops` are from 1e10 to 1e26; the head and the tokens served may
# be 0, and they may eat most of the budget, though never all of it.
#
# **Graded:** bills (3 points), best models (8), and other laws and budgets (4).

# %%
guess_served = ask("6e21 FLOPs. Now serve as many tokens as would cost the old best model a third of them. The new best model is how many times as large?")


# %% answer="q1"
def cost(N, D, table, served):
    """FLOPs of D tokens in training and `served` tokens later."""
    ### BEGIN SOLUTION
    return float((N + table) * (6 * D + 2 * served))
    ### END SOLUTION


def best_model(law, flops, table=0, served=0):
    """N and D that spend `flops` on training and on serving, with the least loss."""
    ### BEGIN SOLUTION
    largest = flops / (2 * served) - table if served else flops / 6

    def tokens(log_n):
        return flops / 6 / (math.exp(log_n) + table) - served / 3

    def loss(log_n):
        return law.loss(math.exp(log_n), tokens(log_n)) if tokens(log_n) > 0 else math.inf

    best = minimize_scalar(loss, bounds=(0, math.log(largest)), method="bounded", options={"xatol": 1e-10}).x
    return math.exp(best), tokens(best)
    ### END SOLUTION


# %%
CHINCHILLA = Law(1.8172, 482.01, 2085.43, 0.3478, 0.3658)  # Besiroglu et al. 2024
for served in (0, 1e12, 1e13):
    N, D = best_model(CHINCHILLA, 6e22, served=served)
    print(f"asked for {served:.0e} tokens: {N / 1e9:5.2f} billion parameters on {D / 1e9:4.0f} billion tokens")


# %% check="q1-cost" points=3
def check_cost(N, D, table, served):
    right = (N + table) * (6.0 * D + 2.0 * served)
    came = check.call(cost, N, D, table, served)
    slips = [
        (2 * (N + table) * (D + served), "training takes 6 FLOPs for each parameter and token: forward 2, backward 4"),
        (6 * (N + table) * (D + served), "a token that is served only goes forward: no backward pass"),
        (6 * N * D + 2 * N * served, "the head is paid for, too, though the law does not see it"),
        (6 * (N + table) * D + 2 * N * served, "the head works in serving as well"),
        (6 * N * D + 2 * (N + table) * served, "the head works in training as well"),
    ]
    plain = isinstance(came, int | float)
    came = float(came) if plain else came
    near = [look for value, look in slips if plain and abs(came - value) <= 1e-9 * value]
    what = f"FLOPs of N = {N:.3g}, D = {D:.3g}, table = {table:.3g}, served = {served:.3g}"
    check.close(came, right, what, relative=1e-9, look=near[0] if near else "parameters times tokens times what?")


for case in ((1e6, 2e7, 0, 0), (1e6, 2e7, 3e5, 5e6), (7e9, 1e12, 5e8, 0), (1000, 0, 24, 30000)):
    check_cost(*case)


# %%
def better(law, flops, table, served, N, D):
    """By which part of itself the loss above E can fall at the same bill, and for which N."""
    others = np.exp(np.linspace(-9, 9, 200_001)) * N
    tokens = flops / 6 / (others + table) - served / 3
    others, tokens = others[tokens > 0], tokens[tokens > 0]
    losses = law.A * others**-law.alpha + law.B * tokens**-law.beta
    mine = law.A * N**-law.alpha + law.B * D**-law.beta
    return float((mine - losses.min()) / mine), float(others[losses.argmin()])


# %% check="q1-best" points=8
def check_best(law, flops, table=0, served=0):
    """The budget is spent, and no other model on it loses less."""
    what = f"{flops:.3g} FLOPs, table = {table:.3g}, served = {served:.3g}: "
    came = check.call(best_model, law, flops, table, served)
    pair = isinstance(came, tuple | list) and len(came) == 2 and all(isinstance(x, int | float) and x > 0 for x in came)
    check.that(bool(pair), what + "two positive floats", came=str(came)[:100], look="the contract: (N, D)")
    N, D = map(float, came)
    look = "`cost`: does D leave room for the head, and for what is served?"
    check.close((N + table) * (6 * D + 2 * served), float(flops), what + "what N and D cost", relative=1e-6, look=look)
    excess, other = better(law, flops, table, served, N, D)
    look = "a further FLOP must lower both terms alike, under the whole bill: 6ND alone is another bowl"
    look = "20 tokens a parameter is one law's answer to one bill" if abs(D / N - 20) < 0.01 else look
    where = f"with {'fewer' if other < N else 'more'} parameters the loss above E falls by {excess:.2g} of itself"
    check.that(excess < 1e-5, what + "no other N loses less", came=where, look=look)


check_best(CHINCHILLA, 6e22)
check_best(CHINCHILLA, 6e22, served=1e13)
check_best(CHINCHILLA, 1e18, table=1e8)
check_best(Law(1.4, 15.0, 67.0, 0.45, 0.39), 4.8e12, table=4000, served=3e6)

# %% check="q1-hidden" points=4
# Other bills; very small and very large budgets; a head that eats most, served tokens that eat most.
### BEGIN HIDDEN TESTS
#= `cost(N, D, table, served)`: FLOPs | head_is_free head_serves_for_nothing serving_costs_a_backward_pass
#= Returns a float | bill_in_a_list
#= `best_model(law, flops, table=0, served=0)`: `(N, D)` | leaves_a_hundredth two_hundred_sizes
#= They need not | - a permission
#= `flops` are from 1e10 | sizes_up_to_a_hundred_billion best_without_serving bowl_without_the_head
#= FLOPs of D tokens | two_flops_for_each_parameter_and_token
#= N and D that spend | best_without_serving exponents_change_places
#: other bills
check_cost(3.5e8, 1.25e10, 1.7e7, 9.5e12)
#: very small and very large budgets
check_best(Law(1.0, 5.0, 9.0, 0.3, 0.5), 1e10)
check_best(Law(1.69, 406.4, 410.7, 0.34, 0.28), 1e26)
check_best(Law(2.0, 30.0, 900.0, 0.5, 0.3), 3e15, table=2e3)
check_best(Law(1.1, 900.0, 30.0, 0.3, 0.5), 3e15, table=2e3)
#: a head that eats most
check_best(Law(1.2, 20.0, 300.0, 0.35, 0.42), 1e17, table=3e8)
#: served tokens that eat most
check_best(Law(1.5, 400.0, 2000.0, 0.36, 0.34), 6e21, served=2e13, table=1e6)
check_best(Law(1.5, 100.0, 500.0, 0.31, 0.45), 1e20, served=1e12, table=5e6)
### END HIDDEN TESTS

# %% [markdown]
# The guess: as many tokens are served as would cost the old model a third of the budget.

# %%
N_before, D_before = best_model(CHINCHILLA, 6e21)
served = 1e21 / N_before  # 2 · N · served is a third of the budget
N_after, D_after = best_model(CHINCHILLA, 6e21, served=served)
print(f"you said: {guess_served.said}; it is {N_after / N_before:.2f} times as large, on {D_after / D_before:.2f} times the tokens")

# %% [markdown]
# ## 2 · A fit that some runs cannot fool (30 points)
#
# Lesson 14's library gives Huber's loss a corner of 0.001 because Chinchilla's authors did. But a corner should lie where noise
# ends and failure begins, and that depends on the runs. Yours come from anywhere: their losses scatter by a part in
# ten thousand or by two percent, and some of them have failed. A failed run looks like any other and has a loss that
# is 3 to 40 percent too high. There may be none of them or one in ten.
#
# So fit the law *and* the noise. With $r_i$ = log of predicted over measured held-out loss, a robust scale of the noise is
# 1.4826 times the median of $|r_i|$; for normal noise that is its standard deviation. (Five coefficients make a fit of $n$ runs look better than it
# is, by about $\sqrt{(n-5)/n}$. Give that back.) Then the corner goes to where this scale says, you fit again, and the scale moves.
# After a few rounds nothing moves.
#
# The law in logs, by lesson 14, is a log-sum-exp: $\log L = \mathrm{logsumexp}(\log E,\ \log A - \alpha \log N,\ \log B - \beta \log D)$.
# SciPy's `least_squares(..., loss="huber", f_scale=corner)` minimizes Huber's loss of residuals. Whatever you take, ask it
# why it stopped, and start it more than once. $\log A$ and $\alpha$ make up for each other as long as $\log N$ is far from 0.
#
# **Your contract.** `fit(runs)` returns `(law, sigma)`.
#
# - `runs`: a list of 20 runs or more, in any order, at places that tell all five coefficients apart. N from 1e3 to 1e12, D from 1e4 to 1e14; E from
# 0.5 to 3, both exponents from 0.15 to 0.8. What counts is `held_out`.
# - `law`: a `Law` of floats.
# - `sigma`: a float, the standard deviation of the log of the loss among runs that have not failed; with less than
# 1e-6, any number below 1e-5 will do.
# - `log_losses` is a helper for it. Nobody grades it: write it, change it, or leave it as it is.
#
# **Graded:** what your law predicts near the runs and far from them, against the law that the runs came from. It may
# be off by six standard errors, those of a least-squares fit that knows which runs failed (and by 3e-5 for rounding). `sigma`
# may be off by a factor of $1 + 4.5/\sqrt n$. Runs without noise, some of them failed (10 points); noise (12); other laws and sizes (8).


# %% answer="q2"
def log_losses(logs, log_n, log_d):
    """log L of the law with log E, log A, log B, alpha, beta, and its slopes by these five [runs, 5]."""
    ### BEGIN SOLUTION
    log_e, log_a, log_b, alpha, beta = logs
    terms = np.stack([log_e + 0 * log_n, log_a - alpha * log_n, log_b - beta * log_d])
    total = np.logaddexp.reduce(terms)
    shares = np.exp(terms - total)
    return total, np.stack([*shares, -shares[1] * log_n, -shares[2] * log_d], 1)
    ### END SOLUTION


def fit(runs):
    """The law of these runs, whichever of them failed, and the noise of the others."""
    ### BEGIN SOLUTION
    log_n, log_d, measured = np.log([(run.N, run.D, run.held_out) for run in runs]).T
    middle_n, middle_d, least = log_n.mean(), log_d.mean(), measured.min()
    starts = [
        (least + math.log(share), *2 * [least + math.log(1.1 - share)], alpha, alpha)
        for share in (0.4, 0.85)
        for alpha in (0.25, 0.5)
    ]

    def off(logs):
        return log_losses(logs, log_n - middle_n, log_d - middle_d)[0] - measured

    def slopes(logs):
        return log_losses(logs, log_n - middle_n, log_d - middle_d)[1]

    corner, tight = 0.01, {"xtol": 1e-12, "ftol": 1e-12, "gtol": 1e-12, "max_nfev": 300}
    for _ in range(30):
        found = [least_squares(off, s, slopes, loss="huber", f_scale=corner, **tight) for s in starts]
        best = min(found, key=lambda each: each.cost).x
        sigma = 1.4826 * np.median(abs(off(best))) * math.sqrt(len(runs) / (len(runs) - 5))
        if sigma < 1e-7 or abs(corner / sigma - 1) < 0.01:
            break
        starts, corner = [best], sigma
    E, A, B = np.exp(best[:3] + (0, best[3] * middle_n, best[4] * middle_d))
    return Law(float(E), float(A), float(B), float(best[3]), float(best[4])), float(sigma)
    ### END SOLUTION


# %% [markdown]
# `scattered` says where to run: budgets over three powers of ten that add up to the whole, and at each a size near the best one.
# `trained` says what comes of it. Both are the checks' own, like everything that stands below an answer: read them, do not call them.


# %%
def scattered(law, budget, count=42, depth=1000.0):
    """Places (N, D) that cost `budget` together; the cheapest about `depth` times less than the most expensive."""
    step = np.arange(count) + 0.5
    budgets = depth ** -(step * 0.6180339887 % 1)
    budgets *= budget / budgets.sum()
    s = law.alpha + law.beta
    best = (law.alpha * law.A / (law.beta * law.B)) ** (1 / s) * (budgets / 6) ** (law.beta / s)
    sizes = best * np.exp(1.6 * (2 * step / count - 1))
    return list(zip(sizes.tolist(), (budgets / 6 / sizes).tolist()))


def trained(law, places, sigma=0.0, failed=(), seed=0):
    """Runs there, in a random order; the runs whose numbers are `failed` have lost 3 to 40 percent more."""
    draw, runs = generator(seed), []
    for number, (N, D) in enumerate(places):
        loss = law.E + law.A * N**-law.alpha + law.B * D**-law.beta
        loss *= math.exp(sigma * draw.standard_normal()) * (draw.uniform(1.03, 1.4) if number in failed else 1)
        runs.append(Run(N, D, loss - 0.1 * (20 * N / D) ** 0.3, loss))
    return [runs[number] for number in draw.permutation(len(runs))]


# %%
SMALL = Law(1.4, 15.0, 67.0, 0.45, 0.39)
law, sigma = fit(trained(SMALL, scattered(SMALL, 1e13), 0.003, failed=(3, 17, 30, 41)))
print("true:  ", SMALL)
print("fitted:", Law(*(round(each, 3) for each in law)), f"noise {sigma:.4f}")


# %% [markdown]
# How well *can* a fit know what it predicts? Each run tells the law in the directions in which its own loss would
# move, and these add up. `sharpness` is the standard error of the log of a predicted loss, and `size_sharpness` that
# of the log of the best size for some FLOPs, both in units of the noise of one run. You may use them.


# %%
def known(law, places, direction):
    """Standard error along `direction` (in log E, log A, log B, alpha, beta) after runs at `places` with a noise of 1."""
    n, d = np.array(places, dtype=float).T
    terms = np.stack([law.E + 0 * n, law.A * n**-law.alpha, law.B * d**-law.beta])
    shares = terms / terms.sum(0)  # slopes of log L by log E, log A, log B
    slopes = np.stack([*shares, -shares[1] * np.log(n), -shares[2] * np.log(d)])
    largest = abs(slopes).max(1)
    largest[largest == 0] = 1
    weights, _, rank, _ = np.linalg.lstsq(slopes / largest[:, None], np.asarray(direction) / largest, rcond=1e-9)
    return float(np.linalg.norm(weights)) if rank == 5 else math.inf


# %%
def sharpness(law, places, N, D):
    """Standard error of log L(N, D), in units of the noise of one run's log loss."""
    a, b = law.A * N**-law.alpha, law.B * D**-law.beta
    loss = law.E + a + b
    return known(law, places, [law.E / loss, a / loss, b / loss, -a / loss * math.log(N), -b / loss * math.log(D)])


def size_sharpness(law, places, flops):
    """Standard error of the log of the best N for `flops`, in units of the noise of one run's log loss."""
    s = law.alpha + law.beta
    log_n = (math.log(law.alpha * law.A / (law.beta * law.B)) + law.beta * math.log(flops / 6)) / s
    log_d = math.log(flops / 6) - log_n
    return known(law, places, [0, 1 / s, -1 / s, (1 / law.alpha - log_n) / s, (log_d - 1 / law.beta) / s])


# %%
def check_text(answer):
    """No function that an answer calls asks the judge, or the finished fit."""
    for each in called_by(answer):
        if each.__name__ in JUDGES:
            check.that(False, f"what {answer.__name__} may use", came=each.__name__, look="that function is the checks' own")
        if each not in (Law, Run, known, sharpness, size_sharpness):
            check.written_with(each, forbidden=FINISHED, look="the rules: a law is found by runs")


# %%
LOOK_AT_THE_MINIMIZER = "half of the runs lie farther from your law than from the true one. Are all five coefficients free? Did the minimizer end, or stop? Print why, tighten its tolerances, start elsewhere"


# %%
def about(law, runs, right):
    """What a wrong law says about the fault."""
    n, d, measured, train = np.array([(run.N, run.D, run.held_out, run.train) for run in runs]).T
    swapped = Law(law.E, law.B, law.A, law.beta, law.alpha)
    mine, true, other = (each.E + each.A * n**-each.alpha + each.B * d**-each.beta for each in (law, right, swapped))
    far, noise, turned = (np.median(abs(np.log(each / measured))) for each in (mine, true, other))
    pulled = (measured / true > 1.025).any() and (mine > true).mean() > 0.8
    if np.median(abs(mine - train)) < np.median(abs(mine - measured)) / 4:
        return "it predicts `train`; a model is judged on text that it has not seen"
    if law.E < right.E / 3:
        return f"E = {law.E:.3g}: without a floor the loss of a large run goes on falling. May E move, and did it?"
    if far > 0.05 and turned < far / 2:
        return "A and alpha belong to N, B and beta to D"
    if far > 0.05:
        return f"half of your own runs lie more than {far:.0%} from your law: in which units of N and D are A and B?"
    if pulled:
        return "it lies above the true law nearly everywhere: failed runs pull it up. Where does Huber's line begin?"
    return LOOK_AT_THE_MINIMIZER if far > 3 * noise + 1e-6 else "whether failed runs still have a say, and good ones all of theirs"


# %%
def check_sigma(noise, sigma, n):
    """The noise of runs that have not failed, as a fit to n of them may see it."""
    if sigma < 1e-6:
        look = "a median does not hear failed runs. Does your law go through the others, or did its minimizer stop before?"
        check.that(bool(abs(noise) < 1e-5), "… and its sigma is below 1e-5", came=f"{noise:.3g}", look=look)
        return
    factor, times = 1 + 4.5 / math.sqrt(n), noise / sigma
    look = f"{times:.2g} times the noise of runs that have not failed: the median of |r|, no mean of squares, and 1.4826"
    good = bool(1 / factor <= times <= factor)
    check.that(good, f"… and its sigma, right up to a factor of {factor:.2f}", came=f"{noise:.3g}", look=look)


# %%
def fitted(runs):
    """What `fit` says, and that these are a Law and a number."""
    came = check.call(fit, list(runs))
    pair = isinstance(came, tuple | list) and len(came) == 2 and type(came[0]) is Law
    good = pair and all(isinstance(each, int | float) and math.isfinite(each) for each in (*came[0], came[1]))
    check.that(good, "fit returns a Law of floats, and sigma", came=str(came)[:150], look="the contract: (law, sigma)")
    return Law(*map(float, came[0])), float(came[1])


# %%
def check_law(right, places, sigma=0.0, failed=(), seed=0):
    """Predictions near and far, then the noise."""
    runs = trained(right, places, sigma, failed, seed)
    law, noise = fitted(runs)
    kept = [place for number, place in enumerate(places) if number not in failed]
    N, D = (np.exp(np.mean(np.log(each))) for each in zip(*places))
    where = {"in the middle of the runs": (N, D), "100 times larger, on 100 times the text": (100 * N, 100 * D)}
    where |= {"200 times larger": (200 * N, D), "on 200 times the text": (N, 200 * D)}
    for name, (n, d) in where.items():
        true, mine = (float(each.E + each.A * n**-each.alpha + each.B * d**-each.beta) for each in (right, law))
        allowed = 6 * sigma * sharpness(right, kept, n, d) + 3e-5
        error = abs(math.log(mine / true)) if 0 < mine < math.inf else math.inf
        what = f"{len(runs)} runs, noise {sigma:g}, {len(failed)} failed: the loss {name}, off by a part of {allowed:.2g} at most"
        came = f"{mine:.5f} where the law has {true:.5f}, off by {error:.2g}"
        check.that(error <= allowed, what, came=came, look=about(law, runs, right))
    check_sigma(noise, sigma, len(runs))


# %% check="q2-failed" points=10
check_text(fit)
check_law(SMALL, scattered(SMALL, 1e13))
check_law(SMALL, scattered(SMALL, 1e13), failed=(2, 9, 25, 40))
check_law(CHINCHILLA, scattered(CHINCHILLA, 1e21), failed=(0, 6, 20, 33), seed=1)

# %% check="q2-noise" points=12
check_law(SMALL, scattered(SMALL, 1e13), 2e-3, seed=2)
check_law(SMALL, scattered(SMALL, 1e13), 2e-3, failed=(0, 12, 28, 41), seed=3)
check_law(CHINCHILLA, scattered(CHINCHILLA, 1e21, count=54), 2e-4, failed=(4, 23, 40, 50), seed=4)
check_law(Law(1.0, 30.0, 300.0, 0.35, 0.4), scattered(Law(1.0, 30.0, 300.0, 0.35, 0.4), 1e15, count=54), 8e-3, failed=(1, 15, 33, 44, 53), seed=5)
check_law(SMALL, scattered(SMALL, 1e13, count=150), 3e-3, failed=range(5, 150, 14), seed=6)

# %% check="q2-hidden" points=8
# No noise, failed runs; noise and failed runs, from a ten-thousandth to two percent, with other laws and sizes; few runs.
### BEGIN HIDDEN TESTS
#= `fit(runs)` returns | sigma_first
#= `runs`: a list of 20 runs | noise_between_neighbours
#= N from 1e3 to 1e12 | small_models_do_not_count
#= E from 0.5 to 3 | chinchillas_exponents one_exponent no_floor
#= What counts is | training_loss
#= `law`: a `Law` | a_dictionary_for_a_law n_for_d
#= `sigma`: a float | median_is_no_deviation noise_of_all_runs
#= `log_losses` is a helper | - nobody grades it
#= Nobody grades it | - a permission
#= log L of the law | - a helper
#= The law of these runs | squares
hidden_laws = [Law(2.8, 900.0, 3e4, 0.5, 0.55), Law(0.6, 8.0, 40.0, 0.2, 0.3), Law(1.9, 200.0, 100.0, 0.4, 0.25)]
hidden_laws += [Law(1.3, 2e3, 60.0, 0.6, 0.3), Law(2.0, 80.0, 500.0, 0.3, 0.45)]
for hidden_seed, hidden_law in enumerate(hidden_laws):
    hidden_flops = (1e14, 1e18, 1e24, 1e12, 1e20)[hidden_seed]
    hidden_noise = (1e-4, 1e-3, 5e-4, 4e-3, 0.02)[hidden_seed]
    #: no noise, failed runs
    check_law(hidden_law, scattered(hidden_law, hidden_flops), failed=range(hidden_seed, 42, 11), seed=hidden_seed)
    #: noise and failed runs
    check_law(hidden_law, scattered(hidden_law, hidden_flops, count=48), hidden_noise, range(2 * hidden_seed, 48, 12), 10 + hidden_seed)
#: few runs
check_law(SMALL, scattered(SMALL, 1e12, count=25, depth=600.0), 1e-3, failed=(7, 18), seed=20)
#: noise and failed runs
check_law(CHINCHILLA, scattered(CHINCHILLA, 1e22, count=96), 1e-3, failed=range(3, 96, 10), seed=21)
### END HIDDEN TESTS

# %% [markdown]
# ## 3 · Which runs to buy (20 points)
#
# A run at the best size of its budget says much about the loss there, and nothing about which size is the best. Many
# runs at one budget draw one bowl, and do not say how it moves. A hundred cheap runs say what cheap runs do. You have
# one sum for all of them, and a rough law from some that came before.
#
# **Your contract.** `design(budget, sizes, guess)` returns a list of places `(N, D)`, floats.
#
# - Together they cost at most `budget`, by $6ND$. There are at most 60 of them. None costs less than a 20,000th of the budget: starting a
# run costs, too.
# - `sizes`: `(smallest, largest)`; every N lies between them, ends included. The best sizes of all budgets from `budget / 10,000` to `10 * budget` do, too.
# - `guess`: a `Law` that was fitted to a few runs. Its exponents are off by up to a fifth, and its best size for a tenth of `budget` is up to
# twice too large or too small.
#
# **Graded:** by `sharpness` and `size_sharpness` under the *true* law, at its best model for `10 * budget`. You may have 1.05 times the standard
# errors that `scattered(true law, budget)` has, of the loss and of the log of the best size: it knows the law but spends without a
# plan. What the meter refuses counts first. In some worlds (12 points), in others (8).


# %% answer="q3"
def design(budget, sizes, guess):
    """Places (N, D) that tell most about a run of ten times the budget: small bowls and large ones."""
    ### BEGIN SOLUTION
    steps = np.exp(np.linspace(-1.6, 1.6, 7))
    shares = 4.0 ** -np.arange(6)
    places = []
    for flops in 0.999 * budget * shares / (len(steps) * shares.sum()):
        bottom = best_model(guess, flops)[0]
        for size in np.clip(bottom * steps, *sizes):
            places.append((float(size), float(flops / 6 / size)))
    return places
    ### END SOLUTION


# %%
for name, places in (("yours", design(1e13, (1e3, 1e7), SMALL)), ("scattered", scattered(SMALL, 1e13))):
    model = best_model(SMALL, 1e14)
    print(f"{name:9}: {len(places)} runs for {sum(6 * N * D for N, D in places):.3g} FLOPs; noise of 1 % in each run's loss gives "
          f"{sharpness(SMALL, places, *model):.2f} % in the predicted loss, {size_sharpness(SMALL, places, 1e14):.0f} % in the best size")  # fmt: skip


# %%
def problem(seed, salt=3):
    """A true law, a budget, sizes, and the rough guess, for question 3."""
    draw = generator([salt, seed])
    budget, ratio = 10 ** draw.uniform(12, 22), 10 ** draw.uniform(-1.5, 3.5)
    N = (budget / 60 / ratio) ** 0.5
    D = budget / 60 / N
    alpha, beta, both = draw.uniform(0.28, 0.5), draw.uniform(0.28, 0.5), draw.uniform(0.6, 1.2)
    part = both / (1 / alpha + 1 / beta)
    E = draw.uniform(0.8, 2.5)
    law = Law(E, part / alpha * N**alpha, part / beta * D**beta, alpha, beta)
    a, b, off = alpha * draw.uniform(0.84, 1.19), beta * draw.uniform(0.84, 1.19), 2 ** draw.uniform(-1, 1)
    part *= draw.uniform(0.8, 1.2)
    guess = Law(E * draw.uniform(0.8, 1.1), part / a * (N * off) ** a, part / b * (D / off) ** b, a, b)
    return law, budget, (N / 10 ** draw.uniform(2.2, 2.8), N * 10 ** draw.uniform(1.6, 2.4)), guess


# %%
def bottom(law, flops):
    """The best N and D for `flops`, for the checks."""
    s = law.alpha + law.beta
    N = (law.alpha * law.A / (law.beta * law.B)) ** (1 / s) * (flops / 6) ** (law.beta / s)
    return N, flops / 6 / N


# %%
def about_places(law, places, budget):
    """What a weak design says about the fault."""
    n, d = np.array(places).T
    spent = np.log(6 * n * d)
    at_best = np.log(n) - np.log([bottom(law, 6 * x * y)[0] for x, y in places])
    if np.ptp(spent) < 0.1:
        return "they all cost the same: that is one bowl. How does its bottom move with the budget?"
    if np.ptp(np.log(n)) < 0.1:
        return "they all have one size: alpha and E cannot be told apart"
    if spent.max() < math.log(budget / 500):
        return "the largest of them is a five-hundredth of what you have: you extrapolate from there"
    if np.ptp(spent) < 2:
        return "their budgets lie within a factor of 8: a law that is read ten times farther wants a longer lever"
    if max(-at_best.min(), at_best.max()) < 1:
        return "all lie near the best size of their budget: there a bowl is flat. Its walls tell where its bottom is"
    if min((at_best < -0.5).mean(), (at_best > 0.5).mean()) < 0.1:
        return "nearly all lie on one side of the best size of their budget: a bowl has two walls"
    if np.median(abs(at_best)) > 1.5:
        return "most lie far from the best size of their budget. A bowl is wide in log N, not in N"
    return "how far the budgets reach, how wide each bowl is, and whether most of the money goes where it tells most"


# %%
def paid_for(came, budget, sizes, what):
    """What the meter would say: the form, the bill, the number, the cheapest, the sizes."""
    pairs = isinstance(came, list) and all(isinstance(each, tuple | list) and len(each) == 2 for each in came)
    good = pairs and all(isinstance(x, int | float) and 0 < x < math.inf for each in came for x in each)
    check.that(bool(good and came), what + "a list of places (N, D)", came=str(came)[:100], look="the contract")
    places = [(float(N), float(D)) for N, D in came]
    costs = [6 * N * D for N, D in places]
    times, least = math.fsum(costs) / budget, budget / min(costs)
    look = "training costs 6 FLOPs for each parameter and token; what all runs cost together"
    check.that(times <= 1 + 1e-9, what + "6ND of all runs is no more", came=f"{times:.4g} times the budget", look=look)
    check.at_most(len(came), 60, what + "how many runs", look="the contract: 60 at most")
    check.that(least <= 20_000.1, what + "the cheapest run costs a 20,000th at least", came=f"1/{least:.0f}", look="the contract")
    low, high = min(places)[0], max(places)[0]
    inside = sizes[0] * (1 - 1e-9) <= low and high <= sizes[1] * (1 + 1e-9)
    look = "what is clipped is built at another size: D follows from it"
    check.that(bool(inside), what + "every N lies in `sizes`", came=f"{low:.3g} to {high:.3g}", look=look)
    return places


# %%
def check_design(law, budget, sizes, guess):
    """The bill, then what the places tell, under the true law."""
    what = f"a budget of {budget:.3g}: "
    places = paid_for(check.call(design, budget, sizes, guess), budget, sizes, what)
    judge, look, (N, D) = scattered(law, budget), about_places(law, places, budget), bottom(law, 10 * budget)
    times = sharpness(law, places, N, D) / sharpness(law, judge, N, D)
    loss = "the standard error of the loss, ten times farther, is 1.05 times that of scattered runs at most"
    check.that(times <= 1.05, what + loss, came=f"{times:.2f} times", look=look)
    times = size_sharpness(law, places, 10 * budget) / size_sharpness(law, judge, 10 * budget)
    check.that(times <= 1.05, what + "… and that of the best size 1.05 times", came=f"{times:.2f} times", look=look)


# %% check="q3-places" points=12
check_text(design)
check_design(SMALL, 1e13, (1e3, 1e7), SMALL)
for seed in range(8):
    check_design(*problem(seed))

# %% check="q3-hidden" points=8
# Other worlds, other guesses; one budget, and two guesses.
### BEGIN HIDDEN TESTS
#= `design(budget, sizes, guess)` returns | places_in_an_array
#= Together they cost | two_flops budget_for_each_bowl
#= There are at most 60 | too_many_runs
#= None costs less | too_cheap
#= `sizes`: `(smallest, largest)` | no_clip clipped_and_not_paid
#= The best sizes of all budgets | - what is given
#= `guess`: a `Law` | one_guess_for_a_budget
#= Its exponents are off | narrow_bowls no_walls
#= Places (N, D) that tell | short_lever cheap_runs_only scattered_again
#: one budget, and two guesses
for hidden_law in (SMALL, SMALL._replace(A=40 * SMALL.A)):
    check_design(hidden_law, 1e13, (1e3, 1e9), hidden_law)
#: other worlds
for hidden_seed in range(24):
    check_design(*problem(hidden_seed, salt=77301))
### END HIDDEN TESTS

# %% [markdown]
# ## 4 · Commit yourself (35 points)
#
# Now nobody gives you a law. You get a `probe`, and a meter stands behind it. When the money is spent, you say what to build for a `target`: as
# much again, or ten times, or a thousand times as much. And you say what it will lose, with an interval that deserves its name: of all
# intervals that you give in your life, nine in ten should hold. Some of these promises reach much farther than others.
#
# Nothing tells you where the bowls are: the best model may read one token for thirty parameters or three thousand for each. So a part of the money
# goes into finding out. How much that is worth is your decision.
#
# **Your contract.** `plan(probe, budget, target, sizes)` returns `(N, D, loss, low, high)`, five floats.
#
# - `probe(N, D)` trains a model of N parameters, all of them counted, on D tokens, and returns a `Run`. Its N and D are whole numbers, and what was
# really trained may be another size than you asked for; take what the run says. It charges 6ND of what you asked for. The noise of the log of
# its loss is between 0.1 and 0.3 percent, and up to one run in ten fails, as in question 2. A second run at the same place is another draw.
# - The meter refuses, by a `ValueError`, what goes beyond `budget` in sum; a run that costs less than a 20,000th of it; the 61st run; and sizes
# outside of `sizes`, `(smallest, largest)`. A plan that is refused was none, and to catch the error does not help: no refusal may occur.
# - `N`, `D`: the model and its tokens, N in `sizes`, D as large as `target` FLOPs allow, to a thousandth and not beyond. The best N for `target` lies in `sizes`, or is an end of it.
# - `loss`: what you expect this run to lose, held out. `low`, `high`: where its loss, without noise and if the run does not fail, lies in nine worlds out of ten.
#
# **Graded,** in worlds:
#
# - The choice: $(L(N, D) - L_\text{best}) / (L_\text{best} - E)$, the regret, is at most 0.3 percent in seven of eight worlds. (12 points)
# - The interval holds in three of four worlds at least, where `target` is ten times the budget, and apart from that where it is a thousand
# times as much. The interval is at most twice as wide, in the median, as that of a judge who knows the law's form, the noise and which runs
# failed, and fits `scattered(true law, budget)`; and five times in one world of eight at most. So it is where `target` is no more than the budget. (11)
# - Real runs, those of lesson 14. `target` is 4.8e12 FLOPs, the budget is a little more, but no run that is sold is larger than a tenth of it. Each stored run is sold
# once: `probe` gives you the nearest one that is left. Your loss is within 3 percent of what the stored run of `target` FLOPs lost, and your
# size within a factor of 3 of its own. (4)
# - Other worlds, choice and interval; and the real runs in another unit. (8)
#
# The plans of one check, up to 37, have a minute together when they are graded: a second and a half each. The reference takes a tenth of one.


# %% answer="q4"
def plan(probe, budget, target, sizes):
    """Buy runs, then commit: N, D, the loss to expect, and an interval that holds nine times in ten."""
    ### BEGIN SOLUTION
    scouts = []
    for share in (1, 1 / 8, 1 / 40):  # a twenty-fifth of the budget, to find the bowls
        flops = 0.04 * budget * share / (6 * 1.15)
        scouts += [(float(size), float(flops / 6 / size)) for size in np.geomspace(*sizes, 8)[1:-1]]
    runs = [probe(*place) for place in scouts]
    guess, _ = fit(runs)
    rest = 0.999 * budget - sum(6 * N * D for N, D in scouts)
    runs += [probe(*place) for place in design(rest, sizes, guess)]
    law, sigma = fit(runs)
    N, _ = best_model(law, target)
    N = float(np.clip(N, *sizes))
    D = 0.9999 * target / 6 / N
    loss = law.loss(N, D)
    good = [run for run in runs if abs(math.log(law.loss(run.N, run.D) / run.held_out)) < 3 * sigma]
    error = 1.75 * sigma * sharpness(law, [(run.N, run.D) for run in good], N, D)
    return N, D, loss, loss * math.exp(-error), loss * math.exp(error)
    ### END SOLUTION


# %%
class World(NamedTuple):
    """What the judge knows of a world, the meter's bill, and what it refused."""

    law: Law
    sigma: float
    bill: list
    refused: list


# %%
def refusal(N, D, budget, sizes, bill):
    """Why the meter does not train this; empty if it does."""
    cost, spent = 6 * N * D, sum(bill)
    if not (N > 0 and 0 < D < math.inf):
        return f"N = {N}, D = {D}: give two positive numbers"
    if not sizes[0] * 0.999 <= N <= sizes[1] * 1.001:
        return f"a size of {N:.4g} where {sizes[0]:.4g} to {sizes[1]:.4g} can be built"
    if cost < budget / 20_000 * 0.999:
        return f"a run of {cost:.3g} FLOPs, less than a 20,000th of the budget"
    if spent + cost > budget * (1 + 1e-9):
        return f"a run of {cost:.3g} FLOPs after {len(bill)} for {spent:.4g} together, where the budget is {budget:.4g}"
    return "the 61st run" if len(bill) >= 60 else ""


# %%
def meter(N, D, budget, sizes, bill, refused):
    """Charge a run, or refuse it; N and D as plain floats."""
    try:
        N, D = float(N), float(D)
    except (TypeError, ValueError):
        N = D = math.nan
    if problem := refusal(N, D, budget, sizes, bill):
        refused.append(problem)
        raise ValueError(f"the meter refuses {problem}")
    bill.append(6 * N * D)
    return N, D


# %%
def drawn(draw):
    """A law, a budget, tokens for each parameter at its best model, and sizes that can be built."""
    budget, ratio = 10 ** draw.uniform(12, 20), 10 ** draw.uniform(-1.5, 3.5)
    N = (budget / 6 / ratio) ** 0.5
    alpha, beta, E, both = draw.uniform(0.28, 0.5), draw.uniform(0.28, 0.5), draw.uniform(1, 2.2), draw.uniform(0.5, 1.2)
    part = both / (1 / alpha + 1 / beta)
    law = Law(E, part / alpha * N**alpha, part / beta * (budget / 6 / N) ** beta, alpha, beta)
    return law, budget, ratio, (N / 10 ** draw.uniform(2, 2.6), N * 10 ** draw.uniform(1.2, 1.9))


# %%
def world(seed, salt=4, times=10, ends=False):
    """A world: what `plan` is given, for a target of `times` the budget, and what the judge knows. If it `ends`, at the best size."""
    draw = generator([salt, seed])
    law, budget, ratio, (smallest, largest) = drawn(draw)
    sizes = (smallest, bottom(law, times * budget)[0] if ends else largest * max(1, times / 10) ** 0.6)
    sigma, failing, bill, refused = draw.uniform(0.001, 0.003), draw.uniform(0.03, 0.1), [], []

    def probe(N, D):
        """Train a model of N parameters on D tokens: a Run, charged to the budget."""
        N, D = meter(N, D, budget, sizes, bill, refused)
        n, d = max(1, round(N)), max(1, round(D))
        loss = (law.E + law.A * n**-law.alpha + law.B * d**-law.beta) * math.exp(sigma * draw.standard_normal())
        loss *= draw.uniform(1.03, 1.4) if draw.random() < failing else 1
        return Run(n, d, loss - 0.15 * (n / d * ratio) ** 0.3, loss)

    return (probe, budget, times * budget, sizes), World(law, sigma, bill, refused)


# %% [markdown]
# A world, and your plan in it.

# %%
given, known_to_judge = world(1)
N, D, loss, low, high = plan(*given)
best = bottom(known_to_judge.law, given[2])
print(f"{len(known_to_judge.bill)} runs for {sum(known_to_judge.bill) / given[1]:.1%} of the budget")
print(f"you build {N:.4g} parameters on {D:.4g} tokens; best are {best[0]:.4g} on {best[1]:.4g}")
print(f"you promise {loss:.4f}, {low:.4f} to {high:.4f}; this model loses {known_to_judge.law.loss(N, D):.4f}, the best one {known_to_judge.law.loss(*best):.4f}")


# %%
def affordable(said, given, where):
    """The same five, if they can be built, cost what they may, and the interval is one; silently where all is right."""
    (N, D, loss, low, high), (_, _, target, sizes) = said, given
    if not sizes[0] * (1 - 1e-9) <= N <= sizes[1] * (1 + 1e-9):
        came, look = f"{N:.4g} where {sizes[0]:.4g} to {sizes[1]:.4g} can be built", "clip, and then compute D"
        check.that(False, f"{where}: N lies in sizes", came=came, look=look)
    if not 0.999 <= 6 * N * D / target <= 1 + 1e-9:
        look = "6 FLOPs for each parameter and token, all parameters counted; D follows from the N that you return"
        came = f"6ND is {6 * N * D / target:.4f} times the target"
        check.that(False, f"{where}: N and D spend the target, to a thousandth", came=came, look=look)
    if not low <= loss <= high:
        look = "low and high are nats per token, no logarithms and no distances, and in this order"
        came = f"{low:.4f}, {loss:.4f}, {high:.4f}"
        check.that(False, f"{where}: the loss lies in its own interval", came=came, look=look)
    return said


# %%
def committed(given, refused, where):
    """What a plan says: five numbers, and no refusal on the way; what they say is checked next."""
    try:
        came = check.call(plan, *given)
    finally:
        if refused:
            look = "6ND of all runs together; what a clipped size costs. An error that is caught was still asked for"
            what = f"{where}: plan asks for nothing that the meter refuses"
            check.that(False, what, came=refused[0], look=look)
    numbers = isinstance(came, tuple | list) and len(came) == 5 and all(isinstance(x, int | float) for x in came)
    if not (numbers and all(math.isfinite(x) for x in came)):
        look = "is a term of your law 0? Then `sharpness` is inf. " * ("inf" in str(came)) + "(N, D, loss, low, high)"
        check.that(False, f"{where}: plan returns five finite floats", came=str(came)[:200], look=look)
    return affordable(tuple(map(float, came)), given, where)


# %%
class Outcome(NamedTuple):
    """How a plan did in a world."""

    regret: float  # of the reducible loss
    size: float  # log of its N over the best one
    tokens: float  # for each parameter
    held: bool
    error: float  # of its loss, in standard errors of the judge's
    wide: float  # its interval's width over the judge's
    edge: bool  # its N is the largest or the smallest that it has probed


# %%
def outcome(seed, salt, times=10):
    """Plan in a world, and judge with what only the world knows."""
    (probe, budget, target, sizes), (law, sigma, bill, refused) = world(seed, salt, times)
    probed = []

    def noted(N, D):
        probed.append(float(N))
        return probe(N, D)

    N, D, loss, low, high = committed((noted, budget, target, sizes), refused, f"world {seed}, {times} times the budget")
    best = bottom(law, target)
    mine, least = (law.E + law.A * n**-law.alpha + law.B * d**-law.beta for n, d in ((N, D), best))
    error = sigma * least * sharpness(law, scattered(law, budget), *best)
    held, wide = low <= mine <= high, (high - low) / (2 * 1.645 * error)
    edge = bool(probed) and any(abs(math.log(N / each)) < 1e-3 for each in (max(probed), min(probed)))
    return Outcome((mine - least) / (least - law.E), math.log(N / best[0]), D / N, held, (loss - mine) / error, wide, edge)


# %%
def check_ends(seeds, salt=4):
    """Worlds whose largest size is the best: noise puts every other estimate beyond it, where nothing can be built."""
    for seed in seeds:
        given, told = world(seed, salt, ends=True)
        committed(given, told.refused, f"world {seed}, where the largest size is the best")


# %%
def about_choice(seen):
    """What bad choices say about the fault."""
    bad = [each for each in seen if each.regret > 0.003]
    lean = np.mean([each.size for each in bad])
    if np.ptp([math.log(each.tokens) for each in seen]) < 0.2:
        return "about as many tokens a parameter in every world. What do the runs say?"
    if np.mean([each.edge for each in seen]) > 0.5:
        return "your N is one that you have probed, the largest or smallest: the bowl for the target lies elsewhere. Extrapolate"
    if abs(lean) > 0.5:
        side = "large" if lean > 0 else "small"
        return f"these models are {math.exp(abs(lean)):.2g} times too {side} in the mean: the bottom of a bowl moves with the budget, in log N; failed runs move it, too"
    return "some are too large and some too small: where the money went, whether the bowls have walls on both sides, and what failed runs do to the fit"


# %%
def check_choice(seeds, salt=4):
    """Regret of the chosen models, at most 0.3 percent in seven of eight worlds."""
    seeds = list(seeds)
    seen, bad = [], 0
    for seed in seeds:
        seen.append(outcome(seed, salt))
        bad += not seen[-1].regret <= 0.003
        if bad > len(seeds) / 8:
            break
    worst = max(each.regret for each in seen)
    came = f"in {bad} of the first {len(seen)} worlds it is more; the worst is {worst:.2%}"
    what = f"{len(seeds)} worlds: the loss above E, given away by the choice of N, is 0.3 percent at most in seven of eight"
    check.that(bad <= len(seeds) / 8, what, came=came, look=about_choice(seen) if bad else "")
    return seen


# %%
def about_interval(seen, times):
    """What intervals that do not hold say about the fault."""
    above = np.mean([each.error > 0 for each in seen])
    large, wide = np.median([abs(each.error) for each in seen]), np.median([each.wide for each in seen])
    if large > 3 and above > 0.8:
        return "you promise too high a loss nearly everywhere: do failed runs pull the law up? Is it the loss of the target, not of a probe?"
    if large > 3 and above < 0.2:
        return "you promise too low a loss nearly everywhere: which of the run's two losses, and has the text no entropy?"
    if large > 3:
        return f"your loss itself is off, by {large:.2g} standard errors of the judge's in the median: the fit, or where the money went"
    if 0.2 <= wide < 0.6 and times > 10:
        return f"the interval is {wide:.2g} times as wide as the judge's: noise alone does not say how far this target lies from your runs"
    if wide < 0.2:
        return f"the interval is {wide:.2g} times as wide as the judge's: replicates that begin at the first fit may never leave it. Did they move?"
    return f"the interval is {wide:.2g} times as wide as the judge's: nine in ten are 1.645 standard errors each way, and an error of log L times L is nats"


# %%
def check_width(found, times):
    """Intervals are at most twice as wide as the judge's."""
    wide, loose = float(np.median([each.wide for each in found])), sum(each.wide > 5 for each in found)
    look = "an interval that always holds says nothing: nine in ten, from the noise and from where the runs and the target lie"
    what = f"a target of {times} times the budget: in seven of eight worlds the interval is five times as wide as the judge's at most"
    check.that(loose <= len(found) / 8, what, came=f"in {loose} of {len(found)} it is wider", look=look)
    check.that(wide <= 2, "… and it is at most twice as wide as the judge's, in the median", came=f"{wide:.2f} times", look=look)


# %%
def check_interval(seeds, times, salt=4, seen=None):
    """The interval holds in three of four worlds, and is at most twice as wide as the judge's."""
    seeds, found, missed = list(seeds), [], 0
    for number, seed in enumerate(seeds):
        found.append(seen[number] if seen else outcome(seed, salt, times))
        missed += not found[-1].held
        if missed > len(seeds) / 4:
            break
    what = f"{len(seeds)} worlds, a target of {times} times the budget: the loss of your model lies in your interval in three of four"
    came = f"in {missed} of the first {len(found)} it does not"
    check.that(missed <= len(seeds) / 4, what, came=came, look=about_interval(found, times))
    check_width(found, times)


# %% check="q4-choice" points=12
check_text(plan)
check_ends(range(40, 44))
_ = check_choice(range(8))

# %% check="q4-interval" points=11
check_text(plan)
check_interval(range(20, 32), times=10)
check_width([outcome(seed, 4, times=1) for seed in range(4)], times=1)
check_interval(range(28, 44), times=1000)


# %% [markdown]
# And once with runs that were really trained: GPTs of nine widths on Zipf's words. A run of 4.8e12 FLOPs, ten times the largest of them, is stored, too.


# %%
def real_runs(nats=1.0):
    """What `plan` is given, what the meter refused, and the large run's size and loss; a loss is in units of `nats`."""
    results = lesson_14.stored()["runs"]
    left = [results[lesson_14.key(job)] for job in lesson_14.THE_GRID + lesson_14.SEEDS]  # 62
    large, bill, refused = results[lesson_14.key(lesson_14.TEN_TIMES)], [], []
    budget, sizes = 6.3e12, (2088.0, 205_440.0)

    def probe(N, D):
        """The stored run next to what is asked for, that is not sold yet."""
        N, D = meter(N, D, budget, sizes, bill, refused)
        nearest = min(left, key=lambda run: math.log(run["N"] / N) ** 2 + math.log(run["D"] / D) ** 2)
        left.remove(nearest)
        return Run(nearest["N"], nearest["D"], nearest["loss"] / nats, nearest["loss"] / nats)

    return (probe, budget, 4.8e12, sizes), refused, (large["N"], large["loss"] / nats)


# %% check="q4-real" points=4
def check_real(nats=1.0):
    given, refused, (large, lost) = real_runs(nats)
    N, _, loss, *_ = committed(given, refused, "real runs")
    times, off = N / large, loss / lost - 1
    look = "a loss that falls more slowly than a power; E and the exponents from the runs; N and D as the run says them"
    check.that(abs(off) <= 0.03, "real runs: the promised loss, off by 3 percent at most", came=f"{loss:.4f}, off by {off:+.1%}", look=look)
    check.that(1 / 3 <= times <= 3, "… and the size, by a factor of 3", came=f"{N:,.0f} parameters, {times:.2g} times its own", look=look)


check_text(plan)
check_real()

# %% check="q4-hidden" points=8
# Other worlds: the meter, the choice and the interval; the largest size that can be built is the best. Real runs, in bits.
### BEGIN HIDDEN TESTS
#= `plan(probe, budget, target, sizes)` returns | no_interval tokens_first
#= `probe(N, D)` trains | table_costs_nothing
#= Its N and D are whole | sizes_that_were_asked_for
#= It charges 6ND | scouts_are_not_counted
#= The noise of the log | failed_runs_are_heard
#= A second run at the same place | - says what a probe does
#= The meter refuses | until_the_meter_refuses
#= A plan that is refused | until_the_meter_refuses
#= `N`, `D`: the model | two_flops table_costs_nothing a_size_that_nobody_can_build
#= The best N for `target` lies | a_size_that_nobody_can_build
#= `loss`: what you expect | training_loss loss_of_the_budget
#= `low`, `high`: where | one_standard_error ten_percent
#= Buy runs, then commit | best_probe replicates_never_leave
check_text(plan)
#: the largest size that can be built is the best
check_ends(range(40, 44), salt=140_617)
#: real runs, in bits
check_real(math.log(2))
#: other worlds
hidden_seen = check_choice(range(16), salt=140_617)
check_interval(range(16), times=10, salt=140_617, seen=hidden_seen)
check_width([outcome(hidden_seed, 140_617, times=1) for hidden_seed in range(16, 20)], times=1)
check_interval(range(24, 36), times=1000, salt=140_617)
### END HIDDEN TESTS

# %% [markdown]
# What you would have promised before the large run of lesson 14, and what it lost:

# %%
given, _, (large, lost) = real_runs()
N, D, loss, low, high = plan(*given)
print(f"promised {loss:.3f}, {low:.3f} to {high:.3f}, with {N:,.0f} parameters; the stored run of {large:,} lost {lost:.3f}")

# %% [markdown]
# ## What to keep
#
# Cheap runs tell where the bowls are, walls tell where a bottom is, and a few expensive runs tell how far to trust the rest. A fit
# must know its own noise before it may call a run a failure. And an interval is a promise about many plans: yours held in most worlds,
# because their losses follow the law that you fitted. On real runs nobody guarantees that; lesson 14 left out the largest
# budgets to find out.
