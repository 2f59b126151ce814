# %%
"""Prices the cable as if every rank had one: four messages in a round cost as much as one."""

LOSES = {"q5-seconds", "q5-crossover", "q5-hidden"}


# %% answer="q5"
def predict_seconds(algorithm, n_bytes, fast, slow):
    messages_fast, share_fast, messages_slow, share_slow = {
        "ring": (0, 0, 14, 14 / 8),
        "halving": (4, 2 * (1 / 4 + 1 / 8), 2, 2 * 1 / 2),
        "two-level": (4, 2 * (1 / 2 + 1 / 4), 1, 1 / 4),
    }[algorithm]
    inside = messages_fast * fast.alpha + share_fast * n_bytes * fast.seconds_per_byte
    return float(inside + messages_slow * slow.alpha + share_slow * n_bytes * slow.seconds_per_byte)
