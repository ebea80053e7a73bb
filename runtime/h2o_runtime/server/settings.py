"""The server's settings."""

from __future__ import annotations

import re
from dataclasses import dataclass

from h2o_runtime.errors import ConfigError
from h2o_runtime.names import MetricsNames, Pooling

HOST = re.compile(r"\[[0-9a-fA-F:.%]+\]|[A-Za-z0-9._-]+")
ORIGIN = re.compile(rf"[a-z][a-z0-9+.-]*://(?:{HOST.pattern})(?::\d+)?")
LOCAL_ORIGINS = r"https?://(localhost|127\.0\.0\.1|\[::1\])(:\d+)?"


@dataclass(frozen=True)
class RequestLimits:
    """Limits for clients. Raises ConfigError for values out of range.

    queue          maximum requests that wait for a slot
    queue_timeout  seconds after which a waiting request is refused; None: no limit
    body_bytes     maximum request body, even if the context holds a longer text
    memory_bytes   of the bodies of all requests together
    body_timeout   seconds in which a request's headers and body must arrive
    stall_timeout  seconds without progress of a request after which /health reports it
    """

    queue: int = 8
    queue_timeout: float | None = None
    body_bytes: int = 16 << 20
    memory_bytes: int = 64 << 20
    body_timeout: float = 30
    stall_timeout: float = 60

    def __post_init__(self) -> None:
        if self.queue < 0:
            raise ConfigError(f"max_queue must not be negative, but is {self.queue}", field="max_queue")
        if self.queue_timeout is not None and not self.queue_timeout > 0:
            raise ConfigError(
                f"queue_timeout must be above 0 seconds, but is {self.queue_timeout}", field="queue_timeout"
            )
        if self.body_bytes < 1024:
            raise ConfigError(
                f"max_body must be at least 1024 bytes, but is {self.body_bytes}", field="max_body"
            )
        if self.memory_bytes < self.body_bytes:
            raise ConfigError(
                f"body_memory ({self.memory_bytes} bytes) must be at least `max_body` ({self.body_bytes} bytes): "
                "raise one or lower the other",
                field="body_memory",
            )
        if not self.body_timeout > 0:
            raise ConfigError(
                f"body_timeout must be above 0 seconds, but is {self.body_timeout}", field="body_timeout"
            )
        if not self.stall_timeout > 0:
            raise ConfigError(
                f"stall_timeout must be above 0 seconds, but is {self.stall_timeout}", field="stall_timeout"
            )


@dataclass(frozen=True)
class ServerSettings:
    """All settings of a server except its model.

    host, port    where it listens; port 0: any free port
    alias         the model's name in the API
    api_keys      keys that admit clients; empty: no key is required
    cors_origins  web pages that may use the API; none allows those of this machine, "*" all
    allowed_hosts further names that the server answers to, such as a proxy's; "*" is any
    metrics_names "vllm" adds vLLM's names to /metrics
    grace         seconds that running requests get to finish once the server is told to stop
    prompt_piece  approximate number of prompt tokens read while other answers wait
    pooling       of embeddings
    """

    alias: str
    host: str = "127.0.0.1"
    port: int = 8080
    api_keys: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    metrics_names: MetricsNames = "h2o"
    grace: float = 30
    prompt_piece: int = 1024
    pooling: Pooling = Pooling.MEAN
    limits: RequestLimits = RequestLimits()

    def __post_init__(self) -> None:
        if not self.alias.strip():
            raise ConfigError("alias is empty: name the model, or leave it out", field="alias")
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port must be from 0 to 65535, but is {self.port}", field="port")
        if not self.grace >= 0:
            raise ConfigError(f"grace must not be negative, but is {self.grace}", field="grace")
        if self.prompt_piece < 1:
            raise ConfigError(f"piece must be at least 1 token, but is {self.prompt_piece}", field="piece")
        if any(not key.isascii() or not key.isprintable() or not key.strip() for key in self.api_keys):
            raise ConfigError("api_key must be printable ASCII characters, and not empty", field="api_key")
        for origin in self.cors_origins:
            if origin not in ("*", "null") and not ORIGIN.fullmatch(origin):
                raise ConfigError(
                    f"cors_origin must be like https://app.example:8443, with no path, or *, but one is {origin!r}",
                    field="cors_origin",
                )
        for host in self.allowed_hosts:
            if host != "*" and not HOST.fullmatch(host):
                raise ConfigError(
                    f"allowed_hosts must be names or addresses without a port, or *, but one is {host!r}",
                    field="allowed_hosts",
                )
