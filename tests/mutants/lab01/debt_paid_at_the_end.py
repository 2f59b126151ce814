# %%
"""The debts are collected in a sum of their own, which stalls as the first one did. (And its line costs too much.)"""

LOSES = {"q5-values", "q5-resources", "q5-hidden"}


# %% answer="q5"
def dot(a, b):
    total = torch.zeros(a.shape[0], dtype=a.dtype)
    owed = torch.zeros_like(total)
    for x, y in zip(a.unbind(1), b.unbind(1), strict=True):
        addend = x * y
        new_total = total + addend
        part = new_total - total
        owed = owed + ((total - (new_total - part)) + (addend - part))
        total = new_total
    return total + owed
