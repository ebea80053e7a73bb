"""Time against length: bars for a terminal, and a picture."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 720, 400, 60, 40, 190, 50
COLOURS = ("#7f8c8d", "#c0392b", "#2980b9", "#27ae60")
SHADES = "░█▒▓"
BAR = 40


@dataclass(frozen=True)
class Curve:
    """Seconds by length in tokens."""

    name: str
    seconds: Mapping[int, float]


def bars(curves: Sequence[Curve]) -> str:
    """A bar for each length and curve, the longest of 40 characters."""
    most = max(max(curve.seconds.values()) for curve in curves)
    name = max(len(curve.name) for curve in curves)
    lines = []
    for length in curves[0].seconds:
        lines.append(f"{length:,} tokens")
        for curve, shade in zip(curves, SHADES, strict=False):
            drawn = shade * max(1, round(BAR * curve.seconds[length] / most))
            lines.append(f"  {curve.name:{name}} {drawn} {curve.seconds[length]:.2f} s")
    return "\n".join(lines) + "\n"


def svg(curves: Sequence[Curve], title: str) -> str:
    """The curves on linear axes, each named at its last point."""
    lengths = sorted({length for curve in curves for length in curve.seconds})
    most = _rounded(max(max(curve.seconds.values()) for curve in curves))
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM

    def x(length: float) -> float:
        return round(LEFT + (right - LEFT) * length / lengths[-1], 1)

    def y(seconds: float) -> float:
        return round(bottom - (bottom - TOP) * seconds / most, 1)

    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="13">',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="22">{title}</text>',
        f'<text x="{(LEFT + right) / 2}" y="{HEIGHT - 10}" text-anchor="middle">tokens of the prompt</text>',
    ]
    for step in range(5):
        at = most * step / 4
        drawn.append(f'<path d="M{LEFT} {y(at)}H{right}" stroke="#dddddd"/>')
        drawn.append(f'<text x="{LEFT - 8}" y="{y(at) + 4}" text-anchor="end">{round(at, 6):g}</text>')
    drawn += [f'<text x="{x(one)}" y="{bottom + 18}" text-anchor="middle">{one:,}</text>' for one in lengths]
    for curve, colour in zip(curves, COLOURS, strict=False):
        points = [(x(length), y(seconds)) for length, seconds in sorted(curve.seconds.items())]
        path = "L".join(f"{across} {down}" for across, down in points)
        drawn.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2.5"/>')
        drawn += [f'<circle cx="{across}" cy="{down}" r="4" fill="{colour}"/>' for across, down in points]
        across, down = points[-1]
        drawn.append(f'<text x="{across + 10}" y="{down + 4}" fill="{colour}">{curve.name}</text>')
    return "\n".join([*drawn, "</svg>", ""])


def _rounded(most: float) -> float:
    """The end of an axis of four steps that are easy to read."""
    unit = 10.0 ** math.floor(math.log10(most / 4))
    return next(4 * unit * step for step in (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10) if 4 * unit * step >= most)
