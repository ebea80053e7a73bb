"""Weight formats by name. To add one is a file beside these and a line in `FORMATS`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch

from h2o_export.formats.base import WeightFormat
from h2o_export.formats.floats import Floats

__all__ = ["FLOATS", "FORMATS", "WeightFormat"]

# By the dtype of a model: what is no matrix lies in these, whatever the format of the matrices is.
FLOATS: Mapping[str, Floats] = MappingProxyType(
    {
        "float32": Floats("float32", torch.float32),
        "float16": Floats("float16", torch.float16),
    }
)
FORMATS: Mapping[str, WeightFormat] = MappingProxyType({**FLOATS})
