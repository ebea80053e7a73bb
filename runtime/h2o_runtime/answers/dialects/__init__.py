"""Dialects: how families of models write thoughts and calls of functions."""

from __future__ import annotations

from h2o_runtime.answers.dialects.bare_json import BareJson
from h2o_runtime.answers.dialects.deepseek import DeepSeek, DeepSeekR1
from h2o_runtime.answers.dialects.dialect import Dialect
from h2o_runtime.answers.dialects.gemma import Gemma
from h2o_runtime.answers.dialects.gemma4 import FunctionGemma, Gemma4
from h2o_runtime.answers.dialects.glm import Glm
from h2o_runtime.answers.dialects.glm4 import Glm4
from h2o_runtime.answers.dialects.granite import Granite
from h2o_runtime.answers.dialects.harmony import Harmony
from h2o_runtime.answers.dialects.hermes import Hermes
from h2o_runtime.answers.dialects.kimi import Kimi
from h2o_runtime.answers.dialects.lfm import Lfm
from h2o_runtime.answers.dialects.minimax import MiniMax
from h2o_runtime.answers.dialects.mistral import Ministral, Mistral
from h2o_runtime.answers.dialects.nemotron import Nemotron
from h2o_runtime.answers.dialects.olmo import Olmo
from h2o_runtime.answers.dialects.phi4 import Phi4
from h2o_runtime.answers.dialects.qwen_coder import QwenCoder
from h2o_runtime.answers.dialects.seed import Seed
from h2o_runtime.components.registry import Registry

__all__ = ["DIALECTS", "Dialect", "choose"]

# The first is the default; of the others the first that a template shows is chosen, so special ones come first.
DIALECTS: Registry[Dialect] = Registry(
    BareJson,
    Harmony,
    Kimi,
    DeepSeekR1,
    DeepSeek,
    MiniMax,
    Seed,
    QwenCoder,
    Glm,
    Glm4,
    Ministral,
    Mistral,
    Phi4,
    Lfm,
    Olmo,
    Nemotron,
    Gemma4,
    FunctionGemma,
    Granite,
    Gemma,
    Hermes,
    base=Dialect,
    field="dialect",
    group="h2o_edge.dialects",
)


def choose(template: str | None) -> Dialect:
    """The dialect that a chat template shows; the default if there is no template."""
    kinds = iter(DIALECTS)
    default = next(kinds)
    return next((kind for kind in kinds if template and kind.spoken(template)), default)()
