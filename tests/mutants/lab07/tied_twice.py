# %%
"""Goes through the modules, and sends a tied weight once for each of its names."""

LOSES = {"q1-values", "q1-message", "q1-hidden", "q2-traffic", "q2-hidden", "q3-traffic", "q3-hidden"}


# %% answer="q1"
def trainable(model):
    own = [module.parameters(recurse=False) for module in model.modules()]
    return [parameter for each in own for parameter in each if parameter.requires_grad]
