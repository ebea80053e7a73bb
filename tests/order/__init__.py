"""A GPU that computes nothing and checks the order of all that it is given."""
