"""An agent: the model reads, edits and runs files of a folder until the task is done.

    h2o-serve BUNDLE                                 # in another terminal
    python examples/agent.py "Let greet.py say good day" [--folder .] [--yes] [--url http://127.0.0.1:8080]

Plain HTTP, with Python's own library. The whole conversation goes with every request: the server has its beginning
in the cache, and reads only what is new. Commands are shown before they run, and can leave the folder.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

SYSTEM = "You work on the files of a folder with the functions. At the end, say in a sentence what you did."
MOST = 20_000  # characters of a result that the model sees
REQUESTS = 30  # of one task: a small model may go round in circles
TOOLS = {  # what each does, and its arguments, which are texts
    "read_file": ("Read a text file.", ["path"]),
    "edit_file": ("Replace a text that occurs exactly once in a file.", ["path", "old", "new"]),
    "run_command": ("Run a shell command in the folder.", ["command"]),
}


def definition(name: str) -> dict[str, Any]:
    words, arguments = TOOLS[name]
    schema = {"type": "object", "properties": {argument: {"type": "string"} for argument in arguments}}
    schema |= {"required": arguments, "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "description": words, "parameters": schema}}


def ask(url: str, messages: list[Any]) -> Any:
    """The model's next message."""
    body = {"messages": messages, "tools": [*map(definition, TOOLS)], "temperature": 0, "max_tokens": 2048}
    headers = {"Content-Type": "application/json", "x-api-key": os.environ.get("H2O_API_KEY", "none")}
    try:
        request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request) as response:
            return json.load(response)["choices"][0]["message"]
    except urllib.error.HTTPError as error:
        key = "; set H2O_API_KEY to a key of the server" if error.code == 401 else ""
        sys.exit(f"{url} answers {error.code}{key}: {error.read().decode(errors='replace')}")
    except (OSError, ValueError) as error:
        sys.exit(f"{url} cannot be reached: {error}; start h2o-serve, or give its address with --url")


def perform(name: str, given: dict[str, str], folder: Path, yes: bool) -> str:
    """What a function gives. Raises what goes wrong."""
    if name == "run_command":
        if not yes and input("Run it? [y/N] ").strip().lower() != "y":
            return "The user does not want that."
        ran = subprocess.run(
            given["command"], shell=True, cwd=folder, capture_output=True, text=True, timeout=600
        )
        return f"{ran.stdout}{ran.stderr}exit status {ran.returncode}"
    file = (folder / given["path"]).resolve()
    if not file.is_relative_to(folder):
        raise ValueError("the path is outside of the folder")
    text = file.read_text(encoding="utf-8")
    if name == "read_file":
        return text
    if text.count(given["old"]) != 1:
        raise ValueError("the old text does not occur exactly once")
    file.write_text(text.replace(given["old"], given["new"]), encoding="utf-8")
    return "Done."


def main() -> None:
    parser = argparse.ArgumentParser(description="Let a model work on the files of a folder.")
    parser.add_argument("task")
    parser.add_argument("--folder", type=Path, default=Path())
    parser.add_argument("--yes", action="store_true", help="run commands without asking")
    parser.add_argument("--url", default="http://127.0.0.1:8080", help="of h2o-serve")
    given = parser.parse_args()
    if not given.folder.is_dir():
        parser.error(f"{given.folder}: no such folder")
    messages: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": given.task}]
    for _ in range(REQUESTS):
        messages.append(answer := ask(given.url, messages))
        print(answer["content"] or "", end="\n" if answer["content"] else "")
        if not answer.get("tool_calls"):
            return
        for call in answer["tool_calls"]:
            name, arguments = call["function"]["name"], call["function"]["arguments"]
            print(f"- {name} {arguments}")
            try:
                result = perform(name, json.loads(arguments), given.folder.resolve(), given.yes)
            except Exception as error:  # for the model, which may do better next time
                result = f"Error: {error!r}"
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result[:MOST]})
    sys.exit(f"the task is not done after {REQUESTS} requests")


if __name__ == "__main__":
    main()
