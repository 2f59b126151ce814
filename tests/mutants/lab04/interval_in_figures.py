# %%
"""The interval is written out as 8, and whoever sets another INTERVAL is not heard."""

LOSES = {"q4-trajectory"}


# %% answer="q4"
def next_scale(now, largest):
    if not math.isfinite(largest):
        if now.scale / 16 < 1:
            raise ValueError(f"the scale {now.scale} would fall below 1")
        return ScaleState(now.scale / 16)
    if largest >= 2.0**14:
        return ScaleState(max(1.0, now.scale / 2))
    good, seen = now.good + 1, max(now.seen, largest)
    if good < 8:
        return ScaleState(now.scale, good, seen)
    factor = 1.0
    while factor < 256 and 2 * factor * seen < 2.0**12 and 2 * factor * now.scale <= 2.0**60:
        factor *= 2
    return ScaleState(now.scale * factor)
