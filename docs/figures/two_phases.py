"""Draw docs/figures/two_phases.svg: which keys each query sees.

python docs/figures/two_phases.py
"""

from __future__ import annotations

import random
from pathlib import Path

CHUNKS, S, L, H, TAIL = 4, 16, 4, 3, 4
CELL, LEFT, TOP = 6, 56, 44
N = CHUNKS * S
BLUE, ORANGE, GREEN, GREY = "#4c78a8", "#f58518", "#54a24b", "#f2f2f2"


def memory_sets() -> list[list[int]]:
    """Memory after each chunk: its last L tokens and H earlier ones, drawn once for the picture."""
    draw = random.Random(4)
    memory: list[int] = []
    sets = []
    for chunk in range(CHUNKS):
        start, stop = chunk * S, (chunk + 1) * S
        candidates = memory + list(range(start, stop - L))
        memory = sorted(draw.sample(candidates, H)) + list(range(stop - L, stop))
        sets.append(memory)
    return sets


def color(query: int, key: int, sets: list[list[int]]) -> str:
    if key > query:
        return GREY
    chunk = query // S
    if key // S == chunk:
        return BLUE
    if chunk and key in sets[chunk - 1]:
        return ORANGE
    return GREEN if query >= N - TAIL else "#ffffff"


def main() -> None:
    sets = memory_sets()
    size = N * CELL
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + size + 250} {TOP + size + 16}" '
        'font-family="sans-serif" font-size="13">',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        f'<text x="{LEFT + size / 2}" y="16" text-anchor="middle">keys</text>',
        f'<text x="14" y="{TOP + size / 2}" text-anchor="middle" transform="rotate(-90 14 {TOP + size / 2})">'
        "queries</text>",
    ]
    for query in range(N):
        key = 0
        while key < N:  # one rectangle for each run of equal cells
            end, fill = key, color(query, key, sets)
            while end < N and color(query, end, sets) == fill:
                end += 1
            x, y, width = LEFT + key * CELL, TOP + query * CELL, (end - key) * CELL
            parts.append(f'<rect x="{x}" y="{y}" width="{width}" height="{CELL}" fill="{fill}"/>')
            key = end
    for chunk in range(CHUNKS + 1):
        at = chunk * S * CELL
        line = 'stroke="#888888" stroke-width="0.7"'
        parts.append(f'<line x1="{LEFT + at}" y1="{TOP}" x2="{LEFT + at}" y2="{TOP + size}" {line}/>')
        parts.append(f'<line x1="{LEFT}" y1="{TOP + at}" x2="{LEFT + size}" y2="{TOP + at}" {line}/>')
        if chunk < CHUNKS:
            middle = (chunk + 0.5) * S * CELL
            parts.append(f'<text x="{LEFT + middle}" y="{TOP - 8}" text-anchor="middle">chunk {chunk}</text>')
            parts.append(f'<text x="{LEFT - 6}" y="{TOP + middle}" text-anchor="end">{chunk}</text>')
    legend = (
        (BLUE, "Phase 1: inside the chunk"),
        (ORANGE, "Phase 2: the memory set"),
        (GREEN, "dense tail: everything"),
        ("#ffffff", "skipped"),
        (GREY, "the future"),
    )
    for row, (fill, text) in enumerate(legend):
        x, y = LEFT + size + 20, TOP + 20 + 26 * row
        parts.append(f'<rect x="{x}" y="{y}" width="16" height="16" fill="{fill}" stroke="#888888"/>')
        parts.append(f'<text x="{x + 24}" y="{y + 13}">{text}</text>')
    parts.append("</svg>")
    Path(__file__).with_suffix(".svg").write_text("\n".join(parts) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
