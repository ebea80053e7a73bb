"""A prefill policy of another package, with an option of each type. It reads as full attention does."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from h2o_runtime.components.options import option
from h2o_runtime.policies.prefill.full import Full


@dataclass(frozen=True)
class Typed(Full):
    name: ClassVar[str] = "typed"
    title: ClassVar[str] = "every few"
    exact: ClassVar[bool] = False

    stride: int = option(16, "Every so many-th token is seen.", least=1)
    share: float = option(0.5, "Of what is seen, how much counts.", least=0)
    careful: bool = option(False, "Look twice.")

    def visible_pairs(self, n: int) -> int:
        return n

    def summary(self) -> str:
        return f"Every {self.stride}th token"


def install(folder: Path) -> dict[str, str]:
    """Put the policy into a package of its own → the environment in which Python finds it."""
    about = folder / "typed-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: typed\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[h2o_edge.prefill_policies]\ntyped = typed_policy:Typed\n")
    (folder / "typed_policy.py").write_text(Path(__file__).read_text())
    return {"PYTHONPATH": str(folder)}
