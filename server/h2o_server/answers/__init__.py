"""Between a model's text and an API: constraints on answers, and thoughts and calls in them."""
