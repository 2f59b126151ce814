"""What is trained, on what, and where: the small GPT, published shapes, text, seeds, and named GPUs."""
