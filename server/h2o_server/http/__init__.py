"""HTTP: connections, checks before a request reaches its handler, bodies, errors and the log."""
