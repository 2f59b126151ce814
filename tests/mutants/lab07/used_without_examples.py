# %%
"""Takes the gradients of a rank without examples for use."""

LOSES = {"q1-values", "q1-hidden", "q2-unused", "q2-hidden"}


# %% answer="q1-stock"
def take_stock(parameters, n_examples):
    mine = [n_examples] + [int(p.grad is not None) for p in parameters]
    stock = torch.tensor(mine, dtype=torch.int64)
    dist.all_reduce(stock)
    total, *users = stock.tolist()
    return total, [u > 0 for u in users]
