"""Checks that a checkpoint is sound, and that its bundle computes the same."""
