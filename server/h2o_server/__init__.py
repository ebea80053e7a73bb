"""h2o-serve: one model behind an OpenAI-compatible HTTP API, one request at a time or several in slots.

A request passes `hosts` and `guards` (host names, keys, sizes), `routes` (one handler per path),
`request_handler` (ticket, tokenization, turn) and `inference` (the one thread that runs the model). The answer
passes `chat_format` or `completion_format` (OpenAI's format) and `stream`. Start reading with
`request_handler.RequestHandler`.
"""
