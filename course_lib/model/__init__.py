"""Models, their data and their devices: the small GPT, published shapes, text, seeds, and named GPUs."""
