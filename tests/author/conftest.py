"""A course of one small lab, in a folder of its own."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from course_tools.author.lab_builder import build_lab
from course_tools.labs import Lab

SOURCE = '''\
# %% [markdown]
# # Lab 90 · Means
#
# **Goal:** a mean that many processes agree on.

# %%
import torch
import torch.distributed as dist

from course_kit.checks import check

# %% [markdown]
# ## 1 · Windows (60 points)
#
# `moving_average(numbers, width)` returns the mean of every window of `width` neighbours, as a list.


# %% answer="q1"
def moving_average(numbers, width):
    """Mean of every window of `width` neighbours."""
    ### BEGIN SOLUTION
    starts = range(len(numbers) - width + 1)
    return [sum(numbers[start : start + width]) / width for start in starts]
    ### END SOLUTION


# %% check="q1-values" points=40
check.equal(check.call(moving_average, [1, 2, 3], 2), [1.5, 2.5], "windows of two", look="where the last window ends")

# %% check="q1-hidden" points=20
# Further checks, on numbers of their own.
### BEGIN HIDDEN TESTS
check.equal(check.call(moving_average, [5, 5, 8], 3), [6.0], "one window of three")
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
'''


WITH_A_VALUE = SOURCE.replace('\n# %% check="q1-hidden"', '\nexpected = 6\n"a value"\n\n# %% check="q1-hidden"', 1)
WITH_A_VALUE += '\n\n# %%\nassert "expected" not in globals()\n'


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    """The lab, written to disk but not built."""
    return make_lab(tmp_path)


@pytest.fixture(scope="session")
def built_once(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """The lab with a value at the end of a check, built, for which a kernel and ranks start. No test changes it."""
    lab = make_lab(tmp_path_factory.mktemp("built"), WITH_A_VALUE)
    assert build_lab(lab) is True
    return lab


@pytest.fixture
def built(built_once: Lab, tmp_path: Path) -> Lab:
    """A copy of the built lab, to spoil."""
    return Lab(shutil.copytree(built_once.root, tmp_path / "course"), built_once.name)


def make_lab(root: Path, source: str = SOURCE) -> Lab:
    """A course at `root` that holds one lab with this source."""
    lab = Lab(root, "lab90_means")
    lab.source.parent.mkdir(parents=True)
    lab.source.write_text(source, "utf-8")
    (root / "lessons").mkdir()
    (root / "start.py").write_text("", "utf-8")
    (root / "pyproject.toml").write_text('[project.urls]\nRepository = "https://github.com/_OWNER_/x"\n', "utf-8")
    return lab
