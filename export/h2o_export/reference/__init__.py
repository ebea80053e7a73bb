"""The model in PyTorch, independent of its graphs: what bundles and policies are compared with."""
