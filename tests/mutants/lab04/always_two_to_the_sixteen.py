# %%
"""The scale that everybody starts from, whatever the gradients are."""

LOSES = {"q1-values", "q1-hidden", "q3-bytes", "q3-hidden", "q5-hidden"}


# %% answer="q1"
def loss_scale(gradients, headroom=16.0):
    return 2.0**16
