"""What the server tells of itself: model, settings, metrics, memory, tokens of a text."""
