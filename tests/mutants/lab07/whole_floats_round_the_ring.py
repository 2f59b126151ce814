# %%
"""Decodes, and hands the floats round a ring, whole."""

LOSES = {"q5-traffic", "q5-hidden"}


# %% answer="q5"
def compressed_mean(gradient, residual):
    n, p = len(gradient), dist.get_world_size()
    owed = gradient + residual
    message = encode(owed)
    residual.copy_(owed - decode(message, n))
    r, passing = dist.get_rank(), decode(message, n)
    rows = [None] * p
    rows[r] = passing
    for k in range(p - 1):
        came = torch.empty_like(passing)
        work = dist.isend(passing, (r + 1) % p)
        dist.recv(came, (r - 1) % p)
        work.wait()
        passing = came
        rows[(r - 1 - k) % p] = came
    return sum(rows) / p
