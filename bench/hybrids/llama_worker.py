"""llama.cpp, in a Python that has xllamacpp: reads requests on standard input, writes times.

    PYTHON llama_worker.py MODEL.gguf CONTEXT THREADS

It imports nothing of this repository. A request is a line of JSON, {"ids": [...], "steps": 32}. Its answer is a
line too: seconds of the prompt and of a step, and processor seconds of all. With "first": true it has the prompt's
likeliest next token in place of times.
"""

import json
import sys
import time
from importlib import import_module, metadata
from typing import Any


def serve(file: str, context: int, threads: int) -> None:
    xllamacpp: Any = import_module("xllamacpp")
    parameters = xllamacpp.CommonParams()
    parameters.model.path = file
    parameters.n_ctx, parameters.n_parallel = context, 1
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = threads
    server = xllamacpp.Server(parameters)
    say({"version": metadata.version("xllamacpp")})
    for line in sys.stdin:
        asked = json.loads(line)
        first, steps = asked.get("first", False), asked["steps"]
        wanted = {
            "prompt": asked["ids"],
            "n_predict": steps + 1,  # the prompt gives the first token
            "n_probs": int(first),
            "temperature": 0.0,
            "ignore_eos": True,
            "cache_prompt": False,
        }
        began = time.process_time()
        said = server.handle_completions(wanted)
        cpu = time.process_time() - began
        answer = said if isinstance(said, dict) else json.loads(said)
        times = answer["timings"]
        if first:
            say({"token": answer["choices"][0]["logprobs"]["content"][0]["id"]})
        else:
            step = times["predicted_ms"] / 1e3 / steps
            say({"prompt_s": times["prompt_ms"] / 1e3, "step_s": step, "cpu_s": cpu})


def say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
