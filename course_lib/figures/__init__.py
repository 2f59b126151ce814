"""Pictures: each module draws one subject, in the look of `style`, with a caption and words for who cannot see it."""
