"""Sessions: what one conversation left in the model, at work, waiting for its turn, or in a file."""
