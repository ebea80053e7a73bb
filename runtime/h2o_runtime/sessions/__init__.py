"""Sessions: the state that a conversation leaves in the model, live, waiting for its turn, or in a file."""
