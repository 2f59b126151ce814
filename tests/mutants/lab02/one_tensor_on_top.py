# %%
"""Of the two gradients at the loss only one: as if the first were gone when the second is born."""

LOSES = {"q3-peak"}


# %% answer="q3-more"
def at_the_peak(shape, batch_size, seq):
    on_top = 4 * batch_size * seq * shape.vocab_size
    between = states(shape, "adamw")
    return replace(between, gradients=0, activations=activations(shape, batch_size, seq), temporaries=on_top)
