# %% [markdown]
# # Lab 90 · Tiny
#
# **Goal:** three small functions, for the tests of the grader.

# %%
import torch
import torch.distributed as dist

from course_kit.checks import check

# %% [markdown]
# ## 1 · Windows (40 points)
#
# `moving_average(numbers, width)` returns the mean of every window of `width` neighbours, as a list.


# %% answer="q1"
def moving_average(numbers, width):
    """Mean of every window of `width` neighbours."""
    ### BEGIN SOLUTION
    starts = range(len(numbers) - width + 1)
    return [sum(numbers[start : start + width]) / width for start in starts]
    ### END SOLUTION


# %% check="q1-values" points=20
check.equal(check.call(moving_average, [1, 2, 3], 2), [1.5, 2.5], "windows of two", look="where the last window ends")

# %% check="q1-hidden" points=20
# Further checks, on numbers of their own.
### BEGIN HIDDEN TESTS
check.equal(check.call(moving_average, [5, 5, 8], 3), [6.0], "one window of three, a secret")
#: numbers of their own
check.equal(check.call(moving_average, [1], 2), [], "fewer numbers than the window is wide")
### END HIDDEN TESTS

# %% [markdown]
# ## 2 · The mean of all ranks (40 points)


# %% answer="q2"
def mean_of_ranks(value):
    """The mean over all ranks; every rank calls it with a tensor of one number and returns the same."""
    ### BEGIN SOLUTION
    dist.all_reduce(value)
    return value / dist.get_world_size()
    ### END SOLUTION


# %% check="q2-values" points=20
def on_each_rank():
    return mean_of_ranks(torch.tensor(float(dist.get_rank())))


check.equal(check.on_ranks(on_each_rank, world_size=2)[0], torch.tensor(0.5), "the mean of ranks 0 and 1")

# %% check="q2-hidden" points=20
### BEGIN HIDDEN TESTS
check.equal(check.on_ranks(on_each_rank, world_size=3)[2], torch.tensor(1.0), "the mean of ranks 0, 1 and 2")
### END HIDDEN TESTS

# %% [markdown]
# ## 3 · Halves (20 points)


# %%
def reference(number):
    """What the checks compare with."""
    return number / 2


# %% answer="q3"
def half(number):
    """Half of a number."""
    ### BEGIN SOLUTION
    return number / 2
    ### END SOLUTION


# %% check="q3-values" points=10
check.equal(check.call(half, 3.0), reference(3.0), "half of three")

# %% check="q3-hidden" points=10
### BEGIN HIDDEN TESTS
check.equal(check.call(half, -1.0), reference(-1.0), "half of minus one")
### END HIDDEN TESTS
