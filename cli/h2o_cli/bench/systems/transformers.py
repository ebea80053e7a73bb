"""transformers with scaled_dot_product_attention."""

from __future__ import annotations

import importlib
from typing import Any

from h2o_cli.bench.systems.system import Absent, Ids, Settings, System, require_device


class TransformersSystem(System):
    """settings: checkpoint, threads, device, dtype."""

    def __init__(self, settings: Settings) -> None:
        try:
            torch: Any = importlib.import_module("torch")
            transformers: Any = importlib.import_module("transformers")
        except ImportError as error:
            raise Absent(f"not installed ({error}): pip install torch transformers") from None
        require_device(torch, settings["device"])
        self._torch, self._library, self._settings = torch, transformers, settings
        torch.set_num_threads(settings["threads"])
        torch.set_grad_enabled(False)
        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        self.version = f"{transformers.__version__} (torch {torch.__version__})"

    def open(self, context: int) -> None:
        self._model: Any = self._library.AutoModelForCausalLM.from_pretrained(
            self._settings["checkpoint"],
            dtype=getattr(self._torch, self._settings["dtype"]),
            attn_implementation="sdpa",
            local_files_only=True,
        )
        self._model.to(self._settings["device"]).eval()

    def prefill(self, ids: Ids) -> int:
        self._cache: Any = None
        return self._run(ids)

    def decode(self, token: int) -> None:
        self._run([token])

    def _run(self, ids: Any) -> int:
        out = self._model(
            input_ids=self._torch.as_tensor(ids, device=self._settings["device"])[None],
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
        )
        self._cache = out.past_key_values
        return int(out.logits[0, -1].argmax())
