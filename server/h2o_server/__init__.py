"""h2o-serve: one model behind an OpenAI-compatible HTTP API, one request at a time or several in slots.

A request passes `http.exchange` (log and outcome), `http.hosts` and `http.guards` (host names, keys, sizes),
`apis.routes` (one handler per path), `request_handler` (ticket, tokenization, turn) and `scheduling.inference` (the
one thread that runs the model). The answer passes the `format` of its API and `http.stream`. Start reading with
`request_handler.RequestHandler`.
"""
