# %%
"""What nobody used gets a gradient of zeros, on which momentum and weight decay move it."""

LOSES = {
    "q1-values",
    "q1-hidden",
    "q2-values",
    "q2-unused",
    "q2-traffic",
    "q2-hidden",
    "q2-mixed",
    "q3-values",
    "q3-traffic",
    "q3-hidden",
}


# %% answer="q1-stock"
def take_stock(parameters, n_examples):
    used = [n_examples > 0 and parameter.grad is not None for parameter in parameters]
    stock = torch.tensor([n_examples, *used], dtype=torch.int64)
    dist.all_reduce(stock)
    total, *users = stock.tolist()
    return total, [True for count in users]
