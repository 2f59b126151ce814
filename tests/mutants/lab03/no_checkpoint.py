# %%
"""All is done in `run`, and `checkpoint` is not written."""

LOSES = {"q3-gradients"}


# %% answer="q3"
def checkpoint(layers, x):
    """x through all layers. Holds x alone, and runs the layers again in the backward pass."""
    raise NotImplementedError


# %% answer="q3-run"
class Redo(torch.autograd.Function):
    @staticmethod
    def forward(ctx, layers, ticket, x):
        ctx.layers, ctx.dice = layers, torch.get_rng_state()
        ctx.save_for_backward(x)
        for layer in layers:
            x = layer(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        x = result = x.detach().requires_grad_()
        with torch.enable_grad(), torch.random.fork_rng([]):
            torch.set_rng_state(ctx.dice)
            for layer in ctx.layers:
                result = layer(result)
        result.backward(gradient)
        return None, None, x.grad


def run(layers, x, segments):
    ends, at = dict(segments), 0
    while at < len(layers):
        stop = ends.get(at, at + 1)
        x = Redo.apply(layers[at:stop], torch.empty(0, requires_grad=True), x) if at in ends else layers[at](x)
        at = stop
    return x
