"""A conversation as one prompt, by the chat template that comes with the checkpoint.

Templates are Jinja programs by the checkpoint's publisher, for transformers' `apply_chat_template`. Here they
get the same environment and names, and give the same text. They run in Jinja's sandbox in a separate process,
and see only plain JSON values.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from h2o_runtime.errors import BackendError, BundleError, InputError
from h2o_runtime.files.inputs import confined, read_input
from h2o_runtime.killable import Killable
from h2o_runtime.text.files import REMEDY, decode_utf8, read_json, read_text, special_tokens
from h2o_runtime.text.render_process import DONE, FAILED, MEMORY, REFUSED, SECONDS

SCRIPT = Path(__file__).with_name("render_process.py")
PATIENCE = 60.0  # seconds for an answer, even on a very busy machine


class TemplateError(Exception):
    """kind  a letter of `render_process`, or ENDED if the process reached its limits"""

    ENDED = b"e"

    def __init__(self, kind: bytes, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Renderer:
    """Compiled templates by name. Any thread may render; renderings run one after the other."""

    def __init__(self, templates: Mapping[str, str], seconds: int = SECONDS) -> None:
        """seconds  of processor time per rendering

        Raises TemplateError for a template that cannot be compiled, BackendError without a process.
        """
        self._templates = dict(templates)
        self._seconds = seconds
        self._lock = threading.Lock()
        self._worker: _Worker | None = _Worker(self._templates, seconds)

    def render(self, name: str, names: Mapping[str, Any]) -> str:
        """The text of template `name` with the variables `names`. Raises TemplateError."""
        with self._lock:
            worker = self._worker or _Worker(self._templates, self._seconds)
            self._worker = None  # cleared until the process has survived
            try:
                text = worker.ask((name, dict(names)))
            except TemplateError as error:
                if error.kind != TemplateError.ENDED:
                    self._worker = worker
                raise
            self._worker = worker
            return text

    def close(self) -> None:
        """End the process; a later rendering starts another."""
        with self._lock:
            if self._worker is not None:
                self._worker.end()
            self._worker = None


class _Worker:
    def __init__(self, templates: dict[str, str], seconds: int) -> None:
        self._seconds = seconds
        try:
            process = Killable(SCRIPT, quiet=True, patience=0, seconds=seconds)
        except OSError as error:
            raise BackendError(
                f"no process could be started for the chat template: {error.strerror}"
            ) from error
        self._process, self.end = process, process.end
        self._connection = Connection(process.socket.detach())
        self.ask(templates)

    def ask(self, request: Any) -> str:
        try:
            self._connection.send_bytes(pickle.dumps(request))
            answer = self._connection.recv_bytes() if self._connection.poll(PATIENCE) else b""
        except (EOFError, OSError):
            answer = b""
        if not answer:
            self.end()
            limit = f"{self._seconds} s of processor time or {MEMORY >> 20} MiB"
            raise TemplateError(TemplateError.ENDED, f"takes more than {limit}")
        kind, text = answer[:1], answer[1:].decode("utf-8", "surrogatepass")
        if kind != DONE:
            raise TemplateError(kind, text)
        return text


class ChatTemplate:
    """A checkpoint's chat template, compiled. Make one with `ChatTemplate.load`.

    A checkpoint may have several by name: "tool_use" is used when tools are given, otherwise "default".

    source: the file that the template came from, for messages. texts: Jinja source by name.
    """

    FILE = "chat_template.jinja"

    def __init__(self, templates: Mapping[str, str], special_tokens: Mapping[str, str], source: str) -> None:
        """templates: Jinja source by name. special_tokens: text by role, as {"bos_token": "<s>"}.

        Raises BundleError for a template that cannot be compiled.
        """
        self.source = source
        self.texts = dict(templates)
        self._special_tokens = dict(special_tokens)
        try:
            self._renderer = Renderer(templates)
        except TemplateError as error:
            raise BundleError(f"{source}: the chat template {error}: {REMEDY}") from error

    @classmethod
    def load(cls, folder: str | Path) -> ChatTemplate:
        """Load the chat template of a bundle or a checkpoint from its folder.

        It is in chat_template.jinja (and additional_chat_templates/*.jinja), otherwise under the key
        `chat_template` of tokenizer_config.json. Raises `BundleError` when there is none or a file is
        damaged.
        """
        folder = Path(folder)
        source, templates = folder / cls.FILE, _from_files(folder)
        if not templates:
            source = folder / "tokenizer_config.json"
            templates = _from_config((read_json(source) or {}).get("chat_template"), source)
        if not templates:
            raise BundleError(
                f"{folder} has no chat template, so it is probably a base model: give a plain prompt instead "
                "of a conversation, or load it with `chat_template`"
            )
        return cls(templates, special_tokens(folder), str(source))

    @classmethod
    def read(cls, file: Path, special_tokens: Mapping[str, str]) -> ChatTemplate:
        """The template in `file`, which no checkpoint names. Raises InputError."""
        text = decode_utf8(read_input(file), str(file))
        try:
            return cls({"default": text}, special_tokens, str(file))
        except BundleError as error:
            raise InputError(str(error).removesuffix(f": {REMEDY}")) from error

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        /,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **variables: Any,
    ) -> str:
        """The conversation as one text, to be encoded with `add_special_tokens=False`.

        messages: mappings with a `role` and usually a `content`; keys whose value is None count as absent.
        tools: JSON schemas of functions. add_generation_prompt: end where the assistant's answer begins.
        continue_final_message: end where the last message's content does, for the model to go on with it.
        variables: further names for the template, as `enable_thinking=False`; any name but those of the arguments.

        Raises `InputError` when the template refuses the messages or cannot render them, `BundleError` when
        the template itself is at fault.
        """
        if not messages:
            raise InputError("the conversation is empty: give at least one message")
        chat = [_checked_message(message, index) for index, message in enumerate(messages)]
        if continue_final_message:
            chat[-1]["content"], add_generation_prompt = _to_be_continued(chat[-1]), False
        names = {
            "documents": None,
            **self._special_tokens,
            **{name: _json_value(value, name) for name, value in variables.items()},
            "messages": chat,
            "tools": None if tools is None else _json_value(list(tools), "tools"),
            "add_generation_prompt": add_generation_prompt,
        }
        text = self._rendered(self._choose(tools is not None), names)
        if continue_final_message:
            text, mark, _ = text.rpartition(_END)
            if not mark:
                raise InputError("the last message cannot be continued: the chat template does not show it")
        return text

    def _rendered(self, name: str, names: Mapping[str, Any]) -> str:
        try:
            return self._renderer.render(name, names)
        except TemplateError as error:
            if error.kind == REFUSED:
                raise InputError(f"the chat template refuses these messages: {error}") from error
            if error.kind == FAILED:
                raise InputError(
                    f"the chat template cannot render these messages ({error}): check that each has the fields "
                    "it expects, usually a role and a content that is text"
                ) from error
            raise BundleError(
                f"{self.source}: the chat template broke a limit: {error}; do not trust this checkpoint"
            ) from error

    def close(self) -> None:
        """Stop the rendering process; a later rendering starts another."""
        self._renderer.close()

    def _choose(self, with_tools: bool) -> str:
        for name in ("tool_use", "default") if with_tools else ("default",):
            if name in self.texts:
                return name
        raise BundleError(
            f"{self.source} has chat templates only for {', '.join(sorted(self.texts))}: "
            "one that is named default is needed"
        )


_END = "\u2060END OF WHAT IS THERE\u2060"  # what follows it in the rendered text ends the message


def _to_be_continued(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if (
        message["role"] != "assistant"
        or message.get("tool_calls")
        or not content
        or not isinstance(content, str)
    ):
        raise InputError("only an assistant's text can be continued, and the last message is something else")
    return content + _END


def _from_files(folder: Path) -> dict[str, str]:
    """Templates in separate files, by name."""
    further = sorted((folder / "additional_chat_templates").glob("*.jinja"))
    paths = {path.stem: confined(folder, str(path.relative_to(folder))) for path in further}
    paths["default"] = folder / ChatTemplate.FILE
    texts = {name: read_text(path) for name, path in paths.items()}
    return {name: text for name, text in texts.items() if text is not None}


def _from_config(value: Any, source: Path) -> dict[str, str]:
    """Templates under tokenizer_config.json's key: one text, or a list of records with name and template."""
    if value is None:
        return {}
    if isinstance(value, str):
        return {"default": value}
    try:
        named = value if isinstance(value, dict) else {entry["name"]: entry["template"] for entry in value}
    except (TypeError, KeyError):
        named = {"": None}
    if not all(isinstance(text, str) for text in named.values()):
        raise BundleError(
            f"{source}: chat_template must be text, or a list of records with a name and a template; {REMEDY}"
        )
    return named


def _checked_message(message: Any, index: int) -> dict[str, Any]:
    """A copy of the message in JSON values, without absent keys; a client may send `"content": null`."""
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise InputError(
            f'message {index} must be an object with a "role", as {{"role": "user", "content": …}}'
        )
    fields = _json_value(message, f"message {index}")
    return _with_reasoning({key: value for key, value in fields.items() if value is not None})


def _with_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    """The message with its reasoning under both names that templates read, as in transformers."""
    names = ("reasoning_content", "thinking", "reasoning")
    reasoning = next((message[name] for name in names if name in message), None)
    if reasoning is None:
        return message
    return {"thinking": reasoning, **message, "reasoning_content": reasoning}


def _json_value(value: Any, where: str) -> Any:
    """A deep copy in JSON types: other objects have methods that the sandbox does not know to be
    dangerous.
    """
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)  # an enum's own __str__ would give its name
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)  # NumPy's float64 is one
    if isinstance(value, Mapping):
        return {_json_value(key, where): _json_value(item, where) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_json_value(item, where) for item in value]
    kind = type(value).__name__
    raise InputError(
        f"{where} holds a value of type {kind}: use what JSON has (text, numbers, lists, objects)"
    )
