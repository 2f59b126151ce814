# %%
"""Redoes everything, and keeps the first run in the modules, dressed up as parameters."""

LOSES = {"q3-gradients", "q3-bytes", "q3-hidden", "q4-fits", "q4-hidden"}


# %% answer="q3"
class Redo(torch.autograd.Function):
    @staticmethod
    def forward(ctx, layers, ticket, x):
        ctx.layers, ctx.dice = layers, torch.get_rng_state()
        ctx.save_for_backward(x)
        for layer in layers:
            for _ in range(layer.sines):
                x = x.sin()
                layer.kept = getattr(layer, "kept", None) or nn.ParameterList()
                layer.kept.append(nn.Parameter(x, requires_grad=False))
            x = layer.linear(layer.dropout(x))
        return x

    @staticmethod
    def backward(ctx, gradient):
        x = result = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad(), torch.random.fork_rng([]):
            torch.set_rng_state(ctx.dice)
            for layer in ctx.layers:
                result = layer(result)
        result.backward(gradient)
        for layer in ctx.layers:
            if hasattr(layer, "kept"):
                del layer.kept
        return None, None, x.grad


def checkpoint(layers, x):
    return Redo.apply(layers, torch.empty(0, requires_grad=True), x)
