"""h2o-serve: one model behind an OpenAI-compatible HTTP API, one request at a time or several in slots.

A request goes through `hosts` and `guards` (who may ask, how much), `routes` (which path), `request_handler`
(ticket, tokenization, turn) and `inference` (the one thread that runs the model), and comes back through
`chat_format` or `completion_format` (OpenAI's form) and `stream`. Start with
`request_handler.RequestHandler`.
"""
