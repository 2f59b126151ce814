# %%
"""The peak of the first step, before Adam has moved in."""

LOSES = {"q3-peak"}


# %% answer="q3-more"
def at_the_peak(shape, batch_size, seq):
    on_top = 2 * 4 * batch_size * seq * shape.vocab_size
    weights = states(shape, "adamw").parameters
    return MemoryAccount(weights, activations=activations(shape, batch_size, seq), temporaries=on_top)
