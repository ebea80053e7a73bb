"""What all that can be added has in common: options that it declares, and the registry that finds it."""
