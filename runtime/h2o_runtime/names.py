"""Names of backends and other choices, for `Generator.load`, flags and manifests. "auto" leaves the choice
open.
"""

from __future__ import annotations

from enum import Enum
from typing import Literal, TypeAlias, get_args

TargetName: TypeAlias = Literal["tensorrt", "tensorrt-rtx"]  # those that need engines from h2o-build
BackendName: TypeAlias = Literal["onnxruntime", TargetName]

ProviderName: TypeAlias = Literal["native", "functions"]
ProviderChoice: TypeAlias = Literal["auto", ProviderName]

DeviceName: TypeAlias = Literal["cpu", "cuda"]
DeviceChoice: TypeAlias = Literal["auto", DeviceName]

# How ONNX Runtime multiplies with weights that are integers, see h2o_runtime.dense_graphs.integer_products.
DenseForm: TypeAlias = Literal["exact", "native", "blocks"]
DenseChoice: TypeAlias = Literal["auto", DenseForm]

# Precision of the factors of prefill attention's products. "auto" is the processor's fastest for bundles of
# integer weights, otherwise float32.
AttentionPrecision: TypeAlias = Literal["float32", "bfloat16", "int16"]
PrecisionChoice: TypeAlias = Literal["auto", AttentionPrecision]

# Precision of the factors of products with float weights on a CPU. "auto" is bfloat16 for float16 weights if the
# processor has bfloat16 products, otherwise float32.
DensePrecision: TypeAlias = Literal["float32", "bfloat16"]
DensePrecisionChoice: TypeAlias = Literal["auto", DensePrecision]


# What drafts tokens, which are verified several at once: the conversation's own text, the model's layer of
# multi-token prediction, or whichever of them is better at the time.
Speculation: TypeAlias = Literal["auto", "lookup", "mtp", "off"]

MetricsNames: TypeAlias = Literal["h2o", "vllm"]  # in h2o-serve's /metrics


class Pooling(Enum):
    """How an embedding is computed: from the hidden states of all tokens, or from the last token's."""

    MEAN = "mean"
    LAST = "last"


BACKENDS: tuple[BackendName, ...] = get_args(BackendName)
PROVIDERS: tuple[ProviderChoice, ...] = get_args(ProviderChoice)
DEVICES: tuple[DeviceChoice, ...] = get_args(DeviceChoice)
PRECISIONS: tuple[PrecisionChoice, ...] = get_args(PrecisionChoice)
DENSE_PRECISIONS: tuple[DensePrecisionChoice, ...] = get_args(DensePrecisionChoice)
SPECULATIONS: tuple[Speculation, ...] = get_args(Speculation)
METRICS_NAMES: tuple[MetricsNames, ...] = get_args(MetricsNames)
