# %%
"""The rest is an fp16 number: too small for that format, it underflows. (And it is no whole number.)"""

LOSES = {"q2-values", "q2-exact", "q2-hidden"}


# %% answer="q2"
def split(w):
    half = w.half()
    return half, (w - half.float()).half()


# %% answer="q2-back"
def join(half, rest):
    return half.float() + rest.float()
