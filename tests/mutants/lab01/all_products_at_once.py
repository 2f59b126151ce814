# %%
"""A tree of sums is precise and cheap, but needs every product in memory first."""

LOSES = {"q5-resources", "q5-hidden"}


# %% answer="q5"
def dot(a, b):
    products = a * b
    while products.shape[1] > 1:
        if products.shape[1] % 2:
            products = torch.cat((products, torch.zeros_like(products[:, :1])), dim=1)
        products = products[:, ::2] + products[:, 1::2]
    return products[:, 0]
