"""The server's settings."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from h2o_runtime.components.options import Configuration, option
from h2o_runtime.errors import ConfigError
from h2o_runtime.names import MetricsNames, Pooling

HOST = re.compile(r"\[[0-9a-fA-F:.%]+\]|[A-Za-z0-9._-]+")
ORIGIN = re.compile(rf"[a-z][a-z0-9+.-]*://(?:{HOST.pattern})(?::\d+)?")
_WITH_PORT = re.compile(rf"(?:{HOST.pattern}):\d*")
_MIB = 1 << 20
LOCAL_ORIGINS = r"https?://(localhost|127\.0\.0\.1|\[::1\])(:\d+)?"


@dataclass(frozen=True)
class RequestLimits(Configuration):
    """Limits for clients. Raises ConfigError for values out of range."""

    title: ClassVar[str] = "limits for clients"

    queue: int = option(8, "maximum requests that wait for a slot", least=0)
    queue_timeout: float = option(
        0, "refuse requests that have waited this many seconds; 0: never", least=0, needs="queue"
    )
    body: int = option(16, "maximum MiB of a request's body; less if the context holds less text", least=1)
    memory: int = option(64, "maximum MiB of the bodies of all requests together", least=1)
    body_timeout: float = option(30, "seconds in which headers and body must arrive", least=0)
    stall_timeout: float = option(
        60, "seconds without progress of a running request after which /health answers 503", least=0
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.memory < self.body:
            raise ConfigError(
                f"memory ({self.memory} MiB) must be at least body ({self.body} MiB): raise one or lower the other",
                field="memory",
            )
        for name in ("body_timeout", "stall_timeout"):
            if not getattr(self, name):
                raise ConfigError(f"{name} must be above 0 seconds", field=name)

    @property
    def body_bytes(self) -> int:
        return self.body * _MIB

    @property
    def memory_bytes(self) -> int:
        return self.memory * _MIB


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
    pooling       of embeddings; None: the model's own
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
    pooling: Pooling | None = None
    limits: RequestLimits = RequestLimits()

    def __post_init__(self) -> None:
        if not self.alias.strip():
            raise ConfigError("alias is empty: name the model, or leave it out", field="alias")
        if not _is_utf8(self.alias):  # as a folder may be called
            raise ConfigError(
                f"alias is {self.alias!a}, which is not UTF-8: name the model in UTF-8", field="alias"
            )
        if _WITH_PORT.fullmatch(self.host):
            raise ConfigError(f"host takes no port, but is {self.host!r}: give that as `port`", field="host")
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port must be from 0 to 65535, but is {self.port}", field="port")
        if not self.grace >= 0:
            raise ConfigError(f"grace must not be negative, but is {self.grace}", field="grace")
        if any(not key.isascii() or not key.isprintable() or not key.strip() for key in self.api_keys):
            raise ConfigError("an API key must be printable ASCII characters, and not empty", field="api_key")
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


def _is_utf8(text: str) -> bool:
    """Whether it can be sent: Python reads bytes that are not UTF-8 as halves of surrogate pairs."""
    return text == text.encode("utf-8", "replace").decode()
