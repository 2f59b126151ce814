# %%
"""Plans up to the limit itself and leaves no room for what is on its way."""

LOSES = {"q4-fits", "q4-hidden"}


# %% answer="q4-fit"
def fit(layers, x, limit):
    return best_plan(profile(layers, x), limit)
