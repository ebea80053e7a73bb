"""Where chat templates are rendered: a process that can be killed.

A template is a foreign program. Jinja's sandbox blocks files and modules, but not endless loops or memory
exhaustion. One long operation inside the interpreter would block every thread and every signal. Here the
operating system enforces the limits.

This file is a script of `killable`. Over a `Connection` it receives the templates, then one request per rendering,
both pickled by the parent. Each answer is one of the letters below and a text.
"""

from __future__ import annotations

import contextlib
import json
import pickle
import resource
from datetime import datetime
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from h2o_runtime.killable import Limits

DONE, REFUSED, FORBIDDEN, FAILED = b"d", b"r", b"s", b"f"
SECONDS = 5  # seconds of processor time per rendering
MEMORY = 512 << 20  # bytes above the process's initial size


def main(limits: Limits, descriptor: int, seconds: int) -> None:
    """Serve requests until the parent hangs up. `seconds` of processor time are allowed per rendering."""
    with contextlib.suppress(EOFError, OSError), Connection(descriptor) as parent:
        templates: dict[str, str] = pickle.loads(parent.recv_bytes())
        environment = _environment()
        limits.memory(MEMORY)
        _allow(limits, seconds)
        compiled = {}
        for name, text in templates.items():
            try:
                compiled[name] = environment.from_string(text)
            except Exception as error:  # also brackets nested too deeply, which Python itself refuses
                parent.send_bytes(FAILED + f"{name!r} has {_fault(error)}".encode("utf-8", "replace"))
                return
        parent.send_bytes(DONE)
        while True:
            name, names = pickle.loads(parent.recv_bytes())
            _allow(limits, seconds)
            letter, text = _rendered(compiled[name], names)
            parent.send_bytes(letter + text.encode("utf-8", "surrogatepass"))


def _rendered(template: Any, names: dict[str, Any]) -> tuple[bytes, str]:
    from jinja2.exceptions import SecurityError

    try:
        return DONE, template.render(names)
    except _RefusedError as error:
        return REFUSED, str(error)
    except SecurityError as error:
        return FORBIDDEN, str(error)
    except Exception as error:  # a template can fail in any way
        return FAILED, f"{type(error).__name__}: {error}"


def _fault(error: Exception) -> str:
    from jinja2 import TemplateSyntaxError

    if isinstance(error, TemplateSyntaxError):
        return f"a syntax error in line {error.lineno} ({error.message})"
    return f"what cannot be compiled ({type(error).__name__}: {error})"


class _RefusedError(Exception):
    """The template called raise_exception: it refuses the request."""


def _environment() -> Any:
    """The names and whitespace rules that published templates expect."""
    import jinja2.ext
    import jinja2.nodes
    import jinja2.parser
    import jinja2.sandbox

    class Generation(jinja2.ext.Extension):
        """`{% generation %}`: marks the assistant's text for training. Here it only outputs its content.

        The content has its own scope, as in transformers, where it is the body of a call.
        """

        tags = {"generation"}  # noqa: RUF012 - Jinja's own declaration is a plain set

        def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
            lineno = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return jinja2.nodes.Scope(body, lineno=lineno)

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes <, > and & for HTML; the escapes would appear in the prompt."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> NoReturn:
    raise _RefusedError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _allow(limits: Limits, seconds: int) -> None:
    """From now on."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    limits.seconds(int(used.ru_utime + used.ru_stime) + 1 + seconds)
