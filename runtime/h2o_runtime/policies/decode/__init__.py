"""Decode policies: what a generated token sees. A new policy is a file in this folder and its class in
`DECODE`.
"""

from __future__ import annotations

from typing import Any

from h2o_runtime.components.registry import Registry
from h2o_runtime.policies.decode.full import FullDecode
from h2o_runtime.policies.decode.policy import DecodePolicy, StepCall
from h2o_runtime.policies.decode.quest import Quest
from h2o_runtime.policies.decode.subquadratic import SubquadraticDecode

__all__ = ["DECODE", "DecodePolicy", "FullDecode", "Quest", "StepCall", "SubquadraticDecode"]

DECODE: Registry[DecodePolicy[Any]] = Registry(
    FullDecode,
    SubquadraticDecode,
    Quest,
    base=DecodePolicy,
    field="name",
    noun="decode policy",
    group="h2o_edge.decode_policies",
)
