"""Rewrites attention graphs so that plugins execute their operators in TensorRT."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import helper

from h2o_runtime.bundles.onnx_model import read_model

DOMAIN, VERSION = "h2o", "1"


def plugin_graph(path: Path) -> onnx.ModelProto:
    """The graph in `path` with its operators named as plugins, without their function bodies.

    TensorRT's parser prefers a function body to a plugin of the same name, so the bodies are removed. It
    finds a plugin by attributes of the node and ignores the operator's domain. Raises BundleError.
    """
    model: onnx.ModelProto = read_model(path)
    del model.functions[:]
    for node in model.graph.node:
        if node.domain == DOMAIN:
            node.attribute.append(helper.make_attribute("plugin_namespace", DOMAIN))
            node.attribute.append(helper.make_attribute("plugin_version", VERSION))
    return model
