# %%
"""Two lines always cross somewhere, and here the answer may be a negative size."""

LOSES = {"q5-crossover", "q5-hidden"}


# %% answer="q5-meeting"
def crossover(first, second, fast, slow):
    large = 2**40
    before, after = (predict_seconds(first, n, fast, slow) - predict_seconds(second, n, fast, slow) for n in (0, large))
    return large * before / (before - after)
