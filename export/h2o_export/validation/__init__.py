"""Whether a checkpoint is sound, and whether its bundle computes the same."""
