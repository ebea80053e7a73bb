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


def _loud(tensors: dict[str, Any]) -> None:
    tensors["model.layers.1.mlp.up_proj.weight"][3, 3] = 1e6


def _quantized(tensors: dict[str, Any]) -> None:
    name = "model.layers.0.self_attn.q_proj.weight"
    tensors[name] = tensors[name].char()


EXPORT: dict[str, Misuse] = {
    # The checkpoint
    "no such folder": (
        lambda p: p,
        ("{folder}/nowhere", "-o", "{out}"),
        1,
        "{folder}/nowhere: no such file or folder",
    ),
    "a file": (lambda p: p, ("{ck}/config.json", "-o", "{out}"), 1, "{ck}/config.json is a file; give the"),
    "an empty folder": (lambda p: p.out.mkdir(), ("{out}", "-o", "x"), 1, "{out}: has no config.json"),
    "a bundle": (
        lambda p: p,
        ("{bundle}", "-o", "{out}"),
        1,
        "{bundle}: has no config.json, so it is not a Hugging Face model folder; it is a bundle already",
    ),
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
        "architecture LlamaForSequenceClassification is not supported",
    ),
    "a sliding window": (
        lambda p: p.configure(layer_types=["sliding_attention"]),
        ("{ck}", "-o", "{out}"),
        1,
        "layer_types names layers with a sliding window, but sliding_window = None gives no window",
    ),
    "another RoPE": (
        lambda p: p.configure(rope_parameters={"rope_type": "axial", "factor": 2.0, "rope_theta": 1e4}),
        ("{ck}", "-o", "{out}"),
        1,
        "RoPE scaling 'axial' is not supported",
    ),
    "a head size": (lambda p: p.configure(head_dim=258), ("{ck}", "-o", "{out}"), 1, "head size 258 is not"),
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
        "{ck}/config.json: is not a JSON object",
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
    "windows of other layers": (
        lambda p: p.configure(
            model_type="mistral",
            architectures=["MistralForCausalLM"],
            layer_types=["sliding_attention"] * 3,
            sliding_window=8,
        ),
        ("{ck}", "-o", "{out}"),
        1,
        "must be equal to the number of `layer_types` (3)",
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
        "{ck}: its safetensors files have no tensor 'model.layers.1.mlp.down_proj.weight'",
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
    "output is the checkpoint": (
        lambda p: p,
        ("{ck}", "-o", "{ck}"),
        1,
        "{ck}: exists and is not a bundle; choose",
    ),
    "output is here": (lambda p: p, ("{ck}", "-o", "."), 1, ".: is the current folder"),
    # The flags
    "unknown dtype": (
        lambda p: p,
        ("{ck}", "-o", "{out}", "--dtype", "bfloat16"),
        2,
        "'bfloat16' is not one of",
    ),
    "blocks of floats": (
        lambda p: p,
        ("{ck}", "-o", "{out}", "--weights", "float block_size=32"),  # the default
        2,
        "block_size needs weights or a head of int8 or int4: leave it out",
    ),
    "floats rounded": (
        lambda p: p,
        ("{ck}", "-o", "{out}", "--weights", "calibrate=none"),
        2,
        "calibrate needs weights int8 or int4: leave it out",
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
    "heavy negative": (
        lambda p: p,
        ("{ck}", "-o", "{out}", "--h2o-heavy", -1),
        2,
        "heavy must be at least 0",
    ),
    "unknown score": (
        lambda p: p,
        ("{ck}", "-o", "{out}", "--prefill", "h2o score=best"),
        2,
        "score must be one of",
    ),
    "a context beyond the model's": (
        lambda p: p,
        ("{ck}", "--dry-run", "-c", 10**6),
        2,
        "--ctx-size must be at most",
    ),
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
