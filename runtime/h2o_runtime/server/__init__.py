"""h2o-serve: one model behind an OpenAI-compatible HTTP API, one request at a time.

A request goes through `guards` (who may ask, how much), `routes` (which path), `answers` (ticket, tokenization,
turn) and `engine` (the one thread that runs the model), and comes back through `chat` or `completions` (OpenAI's
form) and `stream`. Start with `answers.Desk`.
"""
