# %%
"""Keeps x as a plain attribute of ctx, which lives as long as the graph, and not as long as it is needed."""

LOSES = {"q3-bytes", "q3-hidden"}


# %% answer="q3"
class Redo(torch.autograd.Function):
    @staticmethod
    def forward(ctx, layers, ticket, x):
        ctx.layers, ctx.dice, ctx.x = layers, torch.get_rng_state(), x
        for layer in layers:
            x = layer(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        x = result = ctx.x.detach().requires_grad_()
        with torch.enable_grad(), torch.random.fork_rng([]):
            torch.set_rng_state(ctx.dice)
            for layer in ctx.layers:
                result = layer(result)
        result.backward(gradient)
        return None, None, x.grad


def checkpoint(layers, x):
    return Redo.apply(layers, torch.empty(0, requires_grad=True), x)
