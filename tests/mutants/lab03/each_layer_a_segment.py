# %%
"""Every recomputed layer is a segment of its own, so that each leaves its input behind."""

LOSES = {"q3-bytes", "q3-hidden", "q4-fits"}


# %% answer="q3-run"
def run(layers, x, segments):
    inside = {n for start, stop in segments for n in range(start, stop)}
    for n, layer in enumerate(layers):
        x = checkpoint([layer], x) if n in inside else layer(x)
    return x
