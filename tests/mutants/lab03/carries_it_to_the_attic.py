# %%
"""Lesson 03's other way: carries what is saved to bytes objects and computes nothing twice."""

LOSES = {"q3-bytes", "q3-hidden", "q4-fits", "q4-hidden"}


# %% answer="q3"
def put(t):
    return (t.detach().numpy().tobytes(), t.shape)


def take(p):
    return torch.frombuffer(bytearray(p[0]), dtype=torch.float32).reshape(p[1])


def checkpoint(layers, x):
    with torch.autograd.graph.saved_tensors_hooks(put, take):
        for layer in layers:
            x = layer(x)
    return x
