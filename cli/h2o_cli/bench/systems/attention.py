"""One layer's attention alone: ours under either policy, torch's and ONNX Runtime's."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from h2o_cli.bench.systems.system import Absent, Ids, Settings, System, require_device
from h2o_runtime.attention.provider import AttentionProvider
from h2o_runtime.backends.select import make_device
from h2o_runtime.bundles.bundle import Bundle
from h2o_runtime.bundles.manifest import Manifest
from h2o_runtime.caches import Contiguous, Rows
from h2o_runtime.caches.reuse import Prefix
from h2o_runtime.devices import Device
from h2o_runtime.model_spec import ModelSpec
from h2o_runtime.policies.prefill import PREFILL, LayerCall, PrefillPolicy, PromptCall
from h2o_runtime.providers.select import provider_factory
from h2o_runtime.schedule import Span


class _OneLayer(System):
    """Random queries, keys and values of one layer, [context, heads, d].

    settings: bundle, threads, device
    """

    version = ""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        manifest = Manifest.read(Path(settings["bundle"]))
        self._model: ModelSpec = manifest.model.model_copy(update={"layers": 1})

    def open(self, context: int) -> None:
        draw = np.random.default_rng(0)
        m = self._model
        dtype = np.dtype(m.dtype)

        def rows(heads: int) -> np.ndarray[Any, Any]:
            return draw.standard_normal((context, heads, m.head_size), np.float32).astype(dtype, copy=False)

        self._q, self._k, self._v = rows(m.query_heads), rows(m.kv_heads), rows(m.kv_heads)

    def decode(self, token: int) -> None:
        raise Absent("attention alone has no decode step")


class PolicyOnRows:
    """A prefill policy on one layer's queries, keys and values, [n, heads, d], where its device has them."""

    def __init__(
        self,
        policy: PrefillPolicy[Any],
        model: ModelSpec,
        device: Device,
        provider: AttentionProvider,
        rows: Sequence[np.ndarray[Any, Any]],
    ) -> None:
        """model: of one layer. rows: q, k, v."""
        self._policy, self._device, self._provider = policy, device, provider
        q, *stored = rows
        context = len(q)
        provider.activate(model.attention)
        self._store = Contiguous().new_store(model, context, device, [provider] * model.layers)
        self._queries, self.out = (device.empty(q.shape, q.dtype) for _ in range(2))
        device.upload(q, self._queries)
        with self._store.open(0) as layer:
            written = Rows(0, context)
            for name, each in zip("kv", stored, strict=True):
                device.upload(each, layer.target(written)[name])
            layer.commit(written)
        self.state: Any = policy.new_state(model, context, device)
        self.stopwatch = device.stopwatch(policy.phases)  # of the last run

    def run(self, n: int) -> None:
        """Read the first n tokens as a prompt, and wait for the result."""
        self.stopwatch = self._device.stopwatch(self._policy.phases)
        self._policy.start_prompt(PromptCall(n, 0, Prefix.NONE, np.zeros(0, np.bool_)), self.state)
        with self._store.open(0) as layer:
            new = layer.target(Rows(0, n))
            call = LayerCall(
                layer=0,
                q=self._queries[:n],
                o=self.out[:n],
                k=new["k"],
                v=new["v"],
                kv=layer.view(n),
                past=0,
                prefix=Prefix.NONE,
                provider=self._provider,
                timer=self.stopwatch,
                flow=self._device.flow([Span(0, n)]),
                checkpoint=lambda done: None,
            )
            self._policy.attend(call, self.state)
        self._device.synchronize()


class PolicyAttention(_OneLayer):
    """A prefill policy on the attention provider. settings: prefill, attention and attention_precision too."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.version = importlib.metadata.version("h2o-edge")
        self._policy = PREFILL.make(settings["prefill"])

    def open(self, context: int) -> None:
        super().open(context)
        settings = self._settings
        device = make_device(settings["device"], "onnxruntime")
        make = provider_factory(
            settings["attention"],
            Bundle.open(settings["bundle"]),
            device,
            settings["threads"],
            settings["attention_precision"],
        )
        self._rows = PolicyOnRows(self._policy, self._model, device, make(), (self._q, self._k, self._v))

    def prefill(self, ids: Ids) -> int:
        self._rows.run(len(ids))
        return -1

    def phases(self) -> dict[str, float]:
        return self._rows.stopwatch.read().seconds


class TorchAttention(_OneLayer):
    """scaled_dot_product_attention, causal, with grouped queries."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        try:
            import torch
        except ImportError as error:
            raise Absent(f"not installed ({error}): pip install torch") from None
        require_device(torch, settings["device"])
        self._torch: Any = torch
        torch.set_num_threads(settings["threads"])
        self.version = torch.__version__

    def open(self, context: int) -> None:
        super().open(context)
        device = self._settings["device"]
        tensors = (self._torch.from_numpy(rows).to(device) for rows in (self._q, self._k, self._v))
        self._tensors = [
            rows.transpose(0, 1).contiguous()[None] for rows in tensors
        ]  # [1, heads, context, d]

    def prefill(self, ids: Ids) -> int:
        q, k, v = (rows[:, :, : len(ids)] for rows in self._tensors)
        with self._torch.inference_mode():
            self._torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        if self._settings["device"] == "cuda":
            self._torch.cuda.synchronize()
        return -1


class OnnxRuntimeAttention(_OneLayer):
    """The operator GroupQueryAttention of ONNX Runtime's own domain."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        if settings["device"] != "cpu":
            raise Absent("measured on the CPU only: use --device cpu")
        try:
            import onnxruntime
            from onnx import helper
        except ImportError as error:
            raise Absent(f"not installed ({error}): pip install onnxruntime onnx") from None
        self._ort: Any = onnxruntime
        self._helper: Any = helper
        self.version = onnxruntime.__version__

    def open(self, context: int) -> None:
        super().open(context)
        options = self._ort.SessionOptions()
        options.intra_op_num_threads = self._settings["threads"]
        options.log_severity_level = 3
        self._session = self._ort.InferenceSession(self._graph(), options, providers=["CPUExecutionProvider"])

    def prefill(self, ids: Ids) -> int:
        n, m = len(ids), self._model
        empty = np.empty((1, m.kv_heads, 0, m.head_size), self._q.dtype)
        feeds = {
            "q": self._q[None, :n].reshape(1, n, -1),
            "k": self._k[None, :n].reshape(1, n, -1),
            "v": self._v[None, :n].reshape(1, n, -1),
            "past_k": empty,
            "past_v": empty,
            "last": np.array([[n - 1]], np.int32),
            "total": np.array([n], np.int32),
        }
        self._session.run(None, feeds)
        return -1

    def _graph(self) -> bytes:
        m, helper = self._model, self._helper
        element = helper.np_dtype_to_tensor_dtype(self._q.dtype)
        integer = helper.np_dtype_to_tensor_dtype(np.dtype(np.int32))
        ranks = {"q": 3, "k": 3, "v": 3, "past_k": 4, "past_v": 4, "last": 2, "total": 1}
        outputs = {"o": 3, "present_k": 4, "present_v": 4}

        def info(name: str, rank: int) -> Any:
            kind = integer if name in ("last", "total") else element
            shape = [None, m.kv_heads, None, m.head_size] if rank == 4 else [None] * rank
            return helper.make_tensor_value_info(name, kind, [1] if name == "total" else shape)

        node = helper.make_node(
            "GroupQueryAttention",
            list(ranks),
            list(outputs),
            domain="com.microsoft",
            num_heads=m.query_heads,
            kv_num_heads=m.kv_heads,
            scale=m.scale,
        )
        graph = helper.make_graph(
            [node],
            "attention",
            [info(*item) for item in ranks.items()],
            [info(*item) for item in outputs.items()],
        )
        opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
        serialized: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
        return serialized
