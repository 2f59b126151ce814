# %%
"""Redoes everything, and a closure keeps every layer's input of the first run."""

LOSES = {"q3-bytes", "q3-hidden", "q4-fits", "q4-hidden"}


# %% answer="q3"
def checkpoint(layers, x):
    dice, kept = torch.get_rng_state(), [x]

    class Redo(torch.autograd.Function):
        @staticmethod
        def forward(ctx, ticket, given):
            for layer in layers:
                kept.append(layer(kept[-1]))
            return kept[-1]

        @staticmethod
        def backward(ctx, gradient):
            given = result = kept[0].detach().requires_grad_()
            with torch.enable_grad(), torch.random.fork_rng([]):
                torch.set_rng_state(dice)
                for layer in layers:
                    result = layer(result)
            result.backward(gradient)
            return None, given.grad

    return Redo.apply(torch.empty(0, requires_grad=True), x)
