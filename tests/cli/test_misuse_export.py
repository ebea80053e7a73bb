"""Every way to misuse h2o-export that we know of."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests import bundles
from tests.cli.conftest import Run
from tests.cli.misuse import LONG, NAME, Misuse, Place, Ran, assert_one_sentence, run_apart

pytestmark = pytest.mark.timeout(600)


def _quantized(tensors: dict[str, Any]) -> None:
    name = "model.layers.0.self_attn.q_proj.weight"
    tensors[name] = tensors[name].char()


# Of a checkpoint: the change to it, and the message.
CHECKPOINTS: dict[str, tuple[Callable[[Place], object], str]] = {
    "GPT-2": (lambda p: p.configure(model_type="gpt2"), "model type 'gpt2' is not supported"),
    "quantized weights": (
        lambda p: p.weights(_quantized),
        "{ck}/model.safetensors: tensor 'model.layers.0.self_attn.q_proj.weight' is torch.int8",
    ),
    "a config of brackets": (
        lambda p: p.write("ck/config.json", "[" * 100_000),
        "{ck}/config.json: cannot be read as JSON",
    ),
    "a thousand million layers": (
        lambda p: p.configure(num_hidden_layers=10**9),
        "config.json: num_hidden_layers must be at most 1,024, but is 1,000,000,000",
    ),
    "architectures of 5": (
        lambda p: p.configure(architectures=5),
        "config.json: architectures must be a list, but is 5",
    ),
    "a setting that transformers refuses": (
        lambda p: p.configure(bos_token_id="first"),
        "{ck}/config.json: transformers cannot build the model",
    ),
    "half the weights": (
        lambda p: p.truncate("ck/model.safetensors"),
        "{ck}/model.safetensors: not a whole safetensors file",
    ),
    "a missing tensor": (
        lambda p: p.weights(lambda tensors: tensors.pop("model.layers.1.mlp.down_proj.weight")),
        "{ck}: its safetensors files have no tensor 'model.layers.1.mlp.down_proj.weight'",
    ),
    "another size": (lambda p: p.configure(intermediate_size=128), "but config.json implies [128, 64]"),
    "a file of torch": (
        lambda p: p.torch_file(),
        "{ck}: no safetensors files; convert pytorch_model.bin to safetensors first",
    ),
    "no tokenizer": (lambda p: p.remove("ck/tokenizer.json"), "{ck}: no tokenizer.json"),
}

# Of a sound folder: the arguments, the exit code, and the message.
ARGUMENTS: dict[str, tuple[tuple[Any, ...], int, str]] = {
    "no such folder": (("{folder}/nowhere", "-o", "{out}"), 1, "{folder}/nowhere: no such file or folder"),
    "a bundle": (
        ("{bundle}", "-o", "{out}"),
        1,
        "{bundle}: has no config.json, so it is not a Hugging Face model folder; it is a bundle already",
    ),
    "an unknown user": (("~nobody-here/x", "-o", "{out}"), 1, "~nobody-here/x: cannot be looked up"),
    "a hub name offline": (("nobody/nothing", "-o", "{out}"), 1, "nobody/nothing: no such folder here"),
    "bytes": ((b"\xff/x", "-o", "{out}"), 1, "CHECKPOINT is not valid UTF-8: byte 0xff"),
    # The output
    "no output": (("{ck}",), 2, "give the folder to write to: -o BUNDLE"),
    "output is a file": (("{ck}", "-o", "{ck}/config.json"), 1, "exists and is not a folder"),
    "output that nobody may write": (("{ck}", "-o", "/proc/bundle"), 1, "/proc: cannot write there"),
    "output with a name too long": (("{ck}", "-o", LONG), 1, "cannot write there: File name too long"),
    "output is the checkpoint": (("{ck}", "-o", "{ck}"), 1, "{ck}: exists and is not a bundle; choose"),
    "output is here": (("{ck}", "-o", "."), 1, ".: is the current folder"),
    # The flags
    "blocks of floats": (
        ("{ck}", "-o", "{out}", "--weights", "float block_size=32"),  # the default
        2,
        "block_size needs weights or a head of int8 or int4: leave it out",
    ),
    "floats rounded": (
        ("{ck}", "-o", "{out}", "--weights", "calibrate=none"),
        2,
        "calibrate needs weights int8 or int4: leave it out",
    ),
    "M >= S": (("{ck}", "-o", "{out}", "-ub", 512), 2, "64 + 448 = 512, which must be below"),
    "a context beyond the model's": (("{ck}", "--dry-run", "-c", 10**6), 2, "--ctx-size must be at most"),
}

EXPORT: dict[str, Misuse] = {
    **{name: (spoil, ("{ck}", "-o", "{out}"), 1, told) for name, (spoil, told) in CHECKPOINTS.items()},
    **{name: (lambda p: p, *rest) for name, rest in ARGUMENTS.items()},
    "an empty folder": (lambda p: p.out.mkdir(), ("{out}", "-o", "x"), 1, "{out}: has no config.json"),
    "half a tokenizer": (
        lambda p: p.truncate("ck/tokenizer.json"),
        ("{ck}", "-o", "{out}", "--no-validate"),
        1,
        "{ck}/tokenizer.json is not valid JSON",
    ),
    "output is someone's work": (
        lambda p: p.full_output(),
        ("{ck}", "-o", "{out}", "--force"),
        1,
        "{out}: exists and is not a bundle, so --force does not replace it",
    ),
}

# The cases of h2o-export that run as a process of their own although they get as far as loading PyTorch.
SEPARATE = (
    "a hub name offline",
    "bytes",
    "half the weights",
    "a setting that transformers refuses",
    "output that nobody may write",
)


@pytest.mark.parametrize("case", EXPORT)
def test_one_sentence_names_the_culprit_and_nothing_is_left(
    case: str,
    h2o: Run,
    export_here: Callable[..., Any],
    shared_folder: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    def run(words: list[Any]) -> Ran:
        if EXPORT[case][2] != 1 or case in SEPARATE:
            return run_apart(h2o, "export", words)
        capfd.readouterr()  # what preparing the place printed
        done = export_here(*words)
        assert isinstance(done.exception, SystemExit), done.exception
        assert capfd.readouterr() == ("", "")  # libraries that print past Python
        return done.exit_code, done.stdout, done.stderr

    assert_one_sentence(EXPORT[case], Place(tmp_path, *bundles.named(shared_folder, NAME)), run)
