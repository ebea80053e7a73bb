"""Every way to misuse the commands that we know of: one sentence that names the culprit, the right exit code,
no traceback, and nothing left behind. What h2o-run does with its own flags is in test_run.py."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from safetensors.torch import load_file, save_file
from tests import bundles
from tests.cli.conftest import Run
from tests.reference import checkpoints

pytestmark = pytest.mark.timeout(240)
NAME = "llama-g2-d64-llama3"
LONG = "a" * 300  # no file system takes such a name
OFFLINE = {**os.environ, "HF_HUB_OFFLINE": "1"}


class Place:
    """A folder for one misuse, with a sound checkpoint `ck` and a sound bundle `bundle` to be spoilt."""

    def __init__(self, folder: Path, checkpoint: Path, bundle: Path) -> None:
        self.folder = folder
        self.ck = shutil.copytree(checkpoint, folder / "ck")
        self.bundle = shutil.copytree(bundle, folder / "bundle")
        self.out = folder / "out"

    def configure(self, **changes: Any) -> Place:
        path = self.ck / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))
        return self

    def write(self, name: str, content: str | bytes) -> Place:
        path = self.folder / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return self

    def truncate(self, name: str) -> Place:
        path = self.folder / name
        os.truncate(path, path.stat().st_size // 2)
        return self

    def remove(self, name: str) -> Place:
        (self.folder / name).unlink()
        return self

    def manifest(self, change: Callable[[Any], object]) -> Place:
        manifest = json.loads((self.bundle / "manifest.json").read_text())
        change(manifest)
        return self.write("bundle/manifest.json", json.dumps(manifest))

    def resize(self, name: str) -> Place:
        """The manifest has the size that the file has now."""
        size = (self.bundle / name).stat().st_size
        return self.manifest(lambda m: m["files"][name].update(bytes=size))

    def shards(self) -> Place:
        shutil.rmtree(self.ck)
        checkpoints.make_named(self.ck, NAME, sharded=True)
        return self.remove("ck/model-00002-of-00003.safetensors")

    def weights(self, change: Callable[[dict[str, Any]], object]) -> Place:
        tensors = load_file(self.ck / "model.safetensors")
        change(tensors)
        save_file(tensors, self.ck / "model.safetensors", metadata={"format": "pt"})
        return self

    def torch_file(self) -> Place:
        (self.ck / "model.safetensors").rename(self.ck / "pytorch_model.bin")
        return self

    def full_output(self) -> Place:
        self.out.mkdir()
        return self.write("out/thesis.txt", "the only copy")

    def other_bundle(self) -> Place:
        """Where the bundle came from is no longer what it came from."""
        manifest = json.loads((self.bundle / "manifest.json").read_text())
        manifest["checkpoint"]["source"] = str(self.ck)
        return self.write("bundle/manifest.json", json.dumps(manifest)).configure(rms_norm_eps=0.5)


def _loud(tensors: dict[str, Any]) -> None:
    tensors["model.layers.1.mlp.up_proj.weight"][3, 3] = 1e6


def _quantized(tensors: dict[str, Any]) -> None:
    name = "model.layers.0.self_attn.q_proj.weight"
    tensors[name] = tensors[name].char()


# What is done to the place, the arguments after the command's name (names of the place's files in braces),
# the exit code, and what the sentence says.
Misuse = tuple[Callable[[Place], object], tuple[Any, ...], int, str]

EXPORT: dict[str, Misuse] = {
    # The checkpoint
    "no such folder": (
        lambda p: p,
        ("{folder}/nowhere", "-o", "{out}"),
        1,
        "{folder}/nowhere: no such folder",
    ),
    "a file": (lambda p: p, ("{ck}/config.json", "-o", "{out}"), 1, "{ck}/config.json is a file; give the"),
    "an empty folder": (lambda p: p.out.mkdir(), ("{out}", "-o", "x"), 1, "{out}: no config.json"),
    "a bundle": (lambda p: p, ("{bundle}", "-o", "{out}"), 1, "{bundle}: no config.json"),
    "a name too long": (lambda p: p, (LONG, "-o", "{out}"), 1, "File name too long"),
    "an unknown user": (
        lambda p: p,
        ("~nobody-here/x", "-o", "{out}"),
        1,
        "~nobody-here/x: cannot be looked up",
    ),
    "a hub name offline": (
        lambda p: p,
        ("nobody/nothing", "-o", "{out}"),
        1,
        "nobody/nothing: no such folder here",
    ),
    "bytes": (lambda p: p, (b"\xff/x", "-o", "{out}"), 1, "CHECKPOINT is not valid UTF-8: byte 0xff"),
    "GPT-2": (
        lambda p: p.configure(model_type="gpt2"),
        ("{ck}", "-o", "{out}"),
        1,
        "model type 'gpt2' is not supported",
    ),
    "an encoder": (
        lambda p: p.configure(architectures=["LlamaForSequenceClassification"]),
        ("{ck}", "-o", "{out}"),
        1,
        "architecture LlamaForSequenceClassification has no language-model head",
    ),
    "a sliding window": (
        lambda p: p.configure(
            model_type="mistral", architectures=["MistralForCausalLM"], sliding_window=4096
        ),
        ("{ck}", "-o", "{out}"),
        1,
        "sliding-window attention (sliding_window = 4096) is not supported",
    ),
    "another RoPE": (
        lambda p: p.configure(rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}),
        ("{ck}", "-o", "{out}"),
        1,
        "RoPE scaling 'dynamic' is not supported",
    ),
    "a head size": (lambda p: p.configure(head_dim=48), ("{ck}", "-o", "{out}"), 1, "head size 48 is not"),
    "quantized": (
        lambda p: p.configure(quantization_config={"bits": 4}),
        ("{ck}", "-o", "{out}"),
        1,
        "a quantized checkpoint (quantization_config",
    ),
    "quantized weights": (
        lambda p: p.weights(_quantized),
        ("{ck}", "-o", "{out}"),
        1,
        "{ck}/model.safetensors: tensor 'model.layers.0.self_attn.q_proj.weight' is torch.int8",
    ),
    "half a config": (
        lambda p: p.truncate("ck/config.json"),
        ("{ck}", "-o", "{out}"),
        1,
        "{ck}/config.json: cannot be read as JSON",
    ),
    "a config of brackets": (
        lambda p: p.write("ck/config.json", "[" * 100_000),
        ("{ck}", "-o", "{out}"),
        1,
        "{ck}/config.json: cannot be read as JSON",
    ),
    "a list as config": (
        lambda p: p.write("ck/config.json", "[1]"),
        ("{ck}", "-o", "{out}"),
        1,
        "{ck}/config.json: expected a JSON object",
    ),
    "a number of words": (
        lambda p: p.configure(hidden_size="sixty-four"),
        ("{ck}", "-o", "{out}"),
        1,
        "config.json: hidden_size must be a positive integer, but is 'sixty-four'",
    ),
    "a thousand million layers": (
        lambda p: p.configure(num_hidden_layers=10**9),
        ("{ck}", "-o", "{out}"),
        1,
        "config.json: num_hidden_layers must be at most 1,024, but is 1,000,000,000",
    ),
    "rows as long as a disk": (
        lambda p: p.configure(hidden_size=10**12, head_dim=64),
        ("{ck}", "--dry-run"),
        1,
        "config.json: hidden_size must be at most 16,777,216",
    ),
    "architectures of 5": (
        lambda p: p.configure(architectures=5),
        ("{ck}", "-o", "{out}"),
        1,
        "config.json: architectures must be a list, but is 5",
    ),
    "a setting that transformers refuses": (
        lambda p: p.configure(bos_token_id="first"),
        ("{ck}", "-o", "{out}"),
        1,
        "{ck}/config.json: transformers cannot build the model",
    ),
    "half the weights": (
        lambda p: p.truncate("ck/model.safetensors"),
        ("{ck}", "-o", "{out}"),
        1,
        "{ck}/model.safetensors: not a whole safetensors file",
    ),
    "a missing shard": (
        lambda p: p.shards(),
        ("{ck}", "-o", "{out}"),
        1,
        "{ck}: shard model-00002-of-00003.safetensors is missing",
    ),
    "a missing tensor": (
        lambda p: p.weights(lambda tensors: tensors.pop("model.layers.1.mlp.down_proj.weight")),
        ("{ck}", "-o", "{out}"),
        1,
        "{ck}: no tensor 'model.layers.1.mlp.down_proj.weight'",
    ),
    "another size": (
        lambda p: p.configure(intermediate_size=128),
        ("{ck}", "-o", "{out}"),
        1,
        "but config.json implies [128, 64]",
    ),
    "a file of torch": (
        lambda p: p.torch_file(),
        ("{ck}", "-o", "{out}"),
        1,
        "{ck}: no safetensors files; convert pytorch_model.bin to safetensors first",
    ),
    "no tokenizer": (
        lambda p: p.remove("ck/tokenizer.json"),
        ("{ck}", "-o", "{out}"),
        1,
        "{ck}: no tokenizer.json",
    ),
    "half a tokenizer": (
        lambda p: p.truncate("ck/tokenizer.json"),
        ("{ck}", "-o", "{out}", "--no-validate"),
        1,
        "{ck}/tokenizer.json is not valid JSON",
    ),
    "beyond float16": (
        lambda p: p.weights(_loud),
        ("{ck}", "-o", "{out}", "--dtype", "float16"),
        1,
        "tensor 'model.layers.1.mlp.up_proj.weight' has values beyond float16's range",
    ),
    # The output
    "no output": (lambda p: p, ("{ck}",), 2, "give the folder to write to: -o BUNDLE"),
    "output is a file": (lambda p: p, ("{ck}", "-o", "{ck}/config.json"), 1, "exists and is not a folder"),
    "output below a file": (
        lambda p: p,
        ("{ck}", "-o", "{ck}/config.json/bundle"),
        1,
        "{ck}/config.json: cannot write there",
    ),
    "output that nobody may write": (
        lambda p: p,
        ("{ck}", "-o", "/proc/bundle"),
        1,
        "/proc: cannot write there",
    ),
    "output with a name too long": (
        lambda p: p,
        ("{ck}", "-o", LONG),
        1,
        "cannot write there: File name too long",
    ),
    "output is someone's work": (
        lambda p: p.full_output(),
        ("{ck}", "-o", "{out}", "--force"),
        1,
        "{out}: exists and is not a bundle, so --force does not replace it",
    ),
    "output is the checkpoint": (lambda p: p, ("{ck}", "-o", "{ck}"), 1, "{ck}: exists already"),
    "output is here": (lambda p: p, ("{ck}", "-o", "."), 1, ".: is where this command runs"),
    # The flags
    "unknown dtype": (
        lambda p: p,
        ("{ck}", "-o", "{out}", "--dtype", "bfloat16"),
        2,
        "'bfloat16' is not one of",
    ),
    "unknown flag": (lambda p: p, ("{ck}", "-o", "{out}", "--fast"), 2, "No such option '--fast'"),
    "two checkpoints": (lambda p: p, ("{ck}", "{ck}", "-o", "{out}"), 2, "unexpected extra argument"),
    "no checkpoint": (lambda p: p, ("-o", "{out}"), 2, "Missing argument 'CHECKPOINT'"),
    "M >= S": (lambda p: p, ("{ck}", "-o", "{out}", "-ub", 512), 2, "64 + 448 = 512, which must be below"),
    "S > B": (
        lambda p: p,
        ("{ck}", "-o", "{out}", "-b", 512),
        2,
        "chunk_size (1024) must not exceed batch_size",
    ),
    "L 0": (lambda p: p, ("{ck}", "-o", "{out}", "--h2o-local", 0), 2, "local must be at least 1, but is 0"),
    "sink negative": (
        lambda p: p,
        ("{ck}", "-o", "{out}", "--sink", -1),
        2,
        "sink must be at least 0, but is -1",
    ),
    "unknown score": (lambda p: p, ("{ck}", "-o", "{out}", "--score", "best"), 2, "'best' is not one of"),
    "context 0": (lambda p: p, ("{ck}", "--dry-run", "-c", 0), 2, "0 is not in the range"),
}

# The cases of h2o-export that run as a process of their own although they get as far as loading PyTorch.
SEPARATE = (
    "a hub name offline",
    "bytes",
    "half the weights",
    "a setting that transformers refuses",
    "beyond float16",
    "output that nobody may write",
)

COMPARE: dict[str, Misuse] = {
    "no such folder": (lambda p: p, ("{folder}/nowhere",), 1, "{folder}/nowhere: no such folder"),
    "a checkpoint": (
        lambda p: p,
        ("{ck}",),
        1,
        "{ck}: no manifest.json, so this is not a bundle: it looks like",
    ),
    "a name too long": (lambda p: p, (LONG,), 1, "File name too long"),
    "half a manifest": (
        lambda p: p.truncate("bundle/manifest.json"),
        ("{bundle}",),
        1,
        "{bundle}/manifest.json: cannot be read as JSON",
    ),
    "half of some weights": (
        lambda p: p.truncate("bundle/onnx/weights/dense_01.bin"),
        ("{bundle}",),
        1,
        "{bundle}/onnx/weights/dense_01.bin: has",
    ),
    "a missing graph": (
        lambda p: p.remove("bundle/onnx/phase2.onnx"),
        ("{bundle}",),
        1,
        "{bundle}/onnx/phase2.onnx: missing from the bundle",
    ),
    "another checkpoint": (
        lambda p: p.other_bundle(),
        ("{bundle}", "--stage", "pipeline"),
        1,
        "{ck} is not the checkpoint that {bundle} was exported from",
    ),
    "a checkpoint that is none": (
        lambda p: p,
        ("{bundle}", "--stage", "pipeline", "--checkpoint", "{folder}/nowhere"),
        1,
        "{folder}/nowhere: no such folder",
    ),
    "no such text": (
        lambda p: p,
        ("{bundle}", "--prompt-file", "{folder}/text"),
        1,
        "{folder}/text: cannot be read",
    ),
    "an empty text": (
        lambda p: p.write("text", ""),
        ("{bundle}", "--prompt-file", "{folder}/text"),
        1,
        "{folder}/text: too short a text",
    ),
    "bytes as text": (
        lambda p: p.write("text", b"Gr\xfc\xdfe"),
        ("{bundle}", "--prompt-file", "{folder}/text"),
        1,
        "{folder}/text is not valid UTF-8: byte 0xfc at offset 2",
    ),
    "save into a file": (
        lambda p: p,
        ("{bundle}", "--save", "{bundle}/tokenizer.json"),
        1,
        "{bundle}/tokenizer.json: cannot write there",
    ),
    "one token": (lambda p: p, ("{bundle}", "-n", 1), 2, "1 is not in the range x>=2"),
    "unknown stage": (lambda p: p, ("{bundle}", "--stage", "last"), 2, "'last' is not one of"),
    "unknown provider": (lambda p: p, ("{bundle}", "--against", "abacus"), 2, "'abacus' is not one of"),
    "M >= S": (lambda p: p, ("{bundle}", "--h2o-heavy", 192), 2, "64 + 192 = 256, which must be below"),
    "another policy's": (lambda p: p, ("{bundle}", "--window", 9), 2, "goes with --prefill subquadratic"),
    "w > L": (
        lambda p: p,
        ("{bundle}", "--score", "window", "--score-window", 65),
        2,
        "score_window (65) must be",
    ),
    "unknown flag": (lambda p: p, ("{bundle}", "--fast"), 2, "No such option '--fast'"),
    "no bundle": (lambda p: p, (), 2, "Missing argument 'BUNDLE'"),
}

RUN: dict[str, Misuse] = {
    "a name too long": (lambda p: p, (LONG, "-p", "a"), 1, "File name too long"),
    "a manifest that is a folder": (
        lambda p: (p.remove("bundle/manifest.json"), (p.bundle / "manifest.json").mkdir()),
        ("{bundle}", "-p", "a"),
        1,
        "{bundle}/manifest.json: cannot be read as JSON",
    ),
    "two bundles": (lambda p: p, ("{bundle}", "{bundle}", "-p", "a"), 2, "unexpected argument"),
    "a manifest of brackets": (
        lambda p: p.write("bundle/manifest.json", "[" * 100_000),
        ("{bundle}", "-p", "a"),
        1,
        "{bundle}/manifest.json: cannot be read as JSON",
    ),
    "a tokenizer's configuration of brackets": (
        lambda p: p.write("bundle/tokenizer_config.json", "[" * 100_000).resize("tokenizer_config.json"),
        ("{bundle}", "-p", "a"),
        1,
        "{bundle}/tokenizer_config.json is not valid JSON",
    ),
    "a thousand million layers": (
        lambda p: p.manifest(lambda m: m["model"].update(layers=10**9)),
        ("{bundle}", "-p", "a"),
        1,
        "{bundle}/manifest.json: model.layers: Input should be less than or equal to 1024",
    ),
    "no graphs": (
        lambda p: p.manifest(lambda m: m.update(graphs=[])),
        ("{bundle}", "-p", "a"),
        1,
        "{bundle}/manifest.json: lists 0 dense graphs",
    ),
    "more threads than any machine runs": (
        lambda p: p,
        ("{bundle}", "-p", "a", "--threads", 3000),
        2,
        "threads must be at most",
    ),
}

ALL = [
    (command, case)
    for command, cases in (("export", EXPORT), ("compare", COMPARE), ("run", RUN))
    for case in cases
]


@pytest.mark.parametrize(("command", "case"), ALL, ids=[f"{command}: {case}" for command, case in ALL])
def test_one_sentence_names_the_culprit_and_nothing_is_left(
    command: str,
    case: str,
    h2o: Run,
    shared_folder: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    spoil, args, code, sentence = {"export": EXPORT, "compare": COMPARE, "run": RUN}[command][case]
    place = Place(tmp_path, *bundles.named(shared_folder, NAME))
    names = {"folder": tmp_path, "ck": place.ck, "bundle": place.bundle, "out": place.out}
    spoil(place)
    before = _snapshot(tmp_path)
    words = [word.format(**names) if isinstance(word, str) else word for word in args]
    if command == "export" and code == 1 and case not in SEPARATE:
        capfd.readouterr()  # what preparing the place printed
        result, shown, message = _export_here(words)
        assert capfd.readouterr() == ("", "")  # libraries that print past Python
    else:
        done = h2o(command, *words, env=OFFLINE, timeout=200)
        result, shown, message = done.returncode, done.stdout.decode(), done.stderr.decode()
    assert "Traceback" not in message
    assert sentence.format(**names) in " ".join(message.split())
    assert (result, shown) == (code, "")
    assert message.lower().count("error:") == 1
    if code == 1:
        assert message.startswith("error: ")
        assert len(message.splitlines()) == 1
    assert _snapshot(tmp_path) == before


def _export_here(args: list[Any]) -> tuple[int, str, str]:
    """Exit code and both outputs of h2o-export, without a new process that would load PyTorch once more."""
    from h2o_cli.export import main

    handler = signal.getsignal(signal.SIGTERM)
    done = CliRunner().invoke(main, [str(arg) for arg in args])
    signal.signal(signal.SIGTERM, handler)
    assert isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.stdout, done.stderr


def _snapshot(folder: Path) -> dict[str, tuple[int, int]]:
    return {
        str(path.relative_to(folder)): (path.stat().st_size, path.stat().st_mtime_ns)
        for path in folder.rglob("*")
    }
