# %%
"""PyTorch's own checkpoint under another name, with a ticket."""

LOSES = {"q3-gradients", "q3-dice", "q3-bytes", "q3-hidden", "q4-fits", "q4-hidden"}


# %% answer="q3"
from torch.utils.checkpoint import checkpoint as again


def forward(layers, x, ticket):
    for layer in layers:
        x = layer(x)
    return x


def checkpoint(layers, x):
    return again(forward, layers, x, torch.empty(0, requires_grad=True), use_reentrant=True)
