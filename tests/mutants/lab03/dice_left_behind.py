# %%
"""Winds the dice back for the second run, and leaves them there for whoever comes next."""

LOSES = {"q3-dice", "q3-hidden"}


# %% answer="q3"
class Forget(torch.autograd.Function):
    @staticmethod
    def forward(ctx, layers, ticket, x):
        ctx.layers, ctx.dice = layers, torch.get_rng_state()
        ctx.save_for_backward(x)
        for layer in layers:
            x = layer(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        x = result = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            torch.set_rng_state(ctx.dice)
            for layer in ctx.layers:
                result = layer(result)
        result.backward(gradient)
        return None, None, x.grad


def checkpoint(layers, x):
    return Forget.apply(layers, torch.empty(0, requires_grad=True), x)
