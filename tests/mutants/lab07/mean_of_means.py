# %%
"""Every rank counts alike: the mean of the means, which is wrong as soon as shares differ."""

LOSES = {"q2-values", "q2-unused", "q2-hidden", "q2-mixed", "q3-values", "q3-traffic", "q3-hidden"}


# %% answer="q2"
def synchronize(model, n_examples, bucket_bytes):
    everything = trainable(model)
    total, used = take_stock(everything, n_examples)
    for parameter, anybody in zip(everything, used):
        if not anybody:
            parameter.grad = None
        elif parameter.grad is None or n_examples == 0:
            parameter.grad = torch.zeros_like(parameter)  # 0 times a mean over nothing would be NaN
    parameters = [parameter for parameter, anybody in zip(everything, used) if anybody]
    for numbers in plan_buckets(parameters, bucket_bytes):
        bucket = [parameters[number] for number in numbers]
        flat = torch.cat([parameter.grad.flatten() for parameter in bucket]) * (1 / dist.get_world_size())
        dist.all_reduce(flat)
        for parameter, mean in zip(bucket, flat.split([parameter.numel() for parameter in bucket])):
            parameter.grad = mean.view_as(parameter)
    return total
