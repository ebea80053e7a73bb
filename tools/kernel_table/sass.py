"""A kernel's main loop, and the instructions that a warp issues per iteration.

Machine code is cut into basic blocks, and loops are found by their backward branches. Of all paths through a
loop, the one with the most products and copies and the least other work counts. This is a tile in the middle,
without masks and without a new maximum. Instructions that a predicate disables count, because they are issued
too.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property

LINE = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(@!?U?P\w+\s+)?([A-Z][\w.]*)([^;]*);")
LABEL = re.compile(r"^(\.L_x_\d+):", re.M)
TARGET = re.compile(r"`\((\.L_x_\d+)\)")
GROWN = re.compile(r"\s*(U?R\d+), (?:U?PT, U?PT, )?\1(?:\.reuse)?, (-?0x[0-9a-f]+)")
ENDED = re.compile(r"\s*U?P\d+, U?PT, (U?R\d+)(?:\.reuse)?, (-?0x[0-9a-f]+|U?RZ)")
MOST_ROUNDS = 64  # of a loop inside the loop over tiles
PRODUCTS = {"HMMA", "FFMA"}
COPIES = {"LDGSTS", "LDG", "STS"}


@dataclass(frozen=True)
class Instruction:
    opcode: str  # with its suffixes: LDSM.16.M88.4
    operands: str
    predicate: str  # "" if it always runs

    @property
    def kind(self) -> str:
        return self.opcode.split(".")[0]

    @property
    def counted_as(self) -> str:
        """Dead instructions are still issued: nvcc puts such loads before asynchronous copies for some
        GPUs.
        """
        return "NOP" if self.predicate == "@!PT" else self.opcode

    @property
    def jumps(self) -> bool:
        """A call to a label is a branch that never returns; a call to a function counts as one
        instruction.
        """
        return self.kind in {"BRA", "EXIT", "RET", "BRX", "BSYNC"} or (
            self.kind == "CALL" and bool(self.target)
        )

    @property
    def target(self) -> str | None:
        found = TARGET.search(self.operands)
        return found[1] if found else None


@dataclass
class Block:
    instructions: list[Instruction] = field(default_factory=list)
    next: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Loop:
    header: int
    blocks: frozenset[int]

    def inside(self, other: Loop) -> bool:
        return self.blocks < other.blocks


@dataclass(frozen=True)
class Round:
    """One iteration of a loop. `counted` by opcode; `known` is False if an inner loop's iterations are
    unknown.
    """

    counted: Counter[str]
    known: bool = True

    def of(self, *kinds: str) -> int:
        return sum(n for opcode, n in self.counted.items() if opcode.split(".")[0] in kinds)

    @property
    def issued(self) -> int:
        return sum(self.counted.values())

    @property
    def weight(self) -> tuple[int, int, int]:
        """The order of preference among paths."""
        products = self.of("HMMA") or self.of("FFMA")
        return products, self.of(*COPIES), -self.issued

    def then(self, other: Round, times: int = 1) -> Round:
        counted = Counter(self.counted)
        for opcode, n in other.counted.items():
            counted[opcode] += n * times
        return Round(counted, self.known and other.known)


class Code:
    """A kernel's machine code, as nvdisasm lists it."""

    def __init__(self, text: str) -> None:
        self.blocks = _blocks(text)

    @cached_property
    def loops(self) -> list[Loop]:
        before: dict[int, set[int]] = {at: set() for at in range(len(self.blocks))}
        for at, block in enumerate(self.blocks):
            for to in block.next:
                before[to].add(at)
        bodies: dict[int, set[int]] = {}
        for latch, block in enumerate(self.blocks):
            for header in block.next:
                if header <= latch:
                    bodies.setdefault(header, {header}).update(_between(header, latch, before))
        return [Loop(header, frozenset(body)) for header, body in bodies.items()]

    def hot(self) -> Round | None:
        """One iteration of the loop over tiles: the innermost loop with barriers and the most products. None
        if there is none.
        """
        rounds = []
        for loop in self.loops:
            kinds = {i.kind for at in loop.blocks for i in self.blocks[at].instructions}
            if not kinds & PRODUCTS or "BAR" not in kinds:
                continue
            # Smaller loops with their own barriers are preferred.
            inner = [each for each in self.loops if each.inside(loop)]
            if any(self._has(each, "BAR") and self._has(each, *PRODUCTS) for each in inner):
                continue
            rounds.append(self.around(loop))
        return max(rounds, key=lambda each: each.weight, default=None)

    def _has(self, loop: Loop, *kinds: str) -> bool:
        return any(i.kind in kinds for at in loop.blocks for i in self.blocks[at].instructions)

    def around(self, loop: Loop) -> Round:
        inner = [each for each in self.loops if each.inside(loop)]
        children = [each for each in inner if not any(each.inside(other) for other in inner)]
        # An inner loop is one step: its iterations, and then what follows it.
        child_of = {at: child for child in children for at in child.blocks if child.header != loop.header}
        best: dict[int, Round] = {}
        finished: Round | None = None
        for at in self._order(loop, child_of):
            so_far = Round(Counter()) if at == loop.header else best.get(at)
            if so_far is None:
                continue
            child = child_of.get(at)
            if child:
                times = self.times(child)
                here = so_far.then(self.around(child), times or 1)
                here = here if times else Round(here.counted, False)
                leaves = {to for inside in child.blocks for to in self.blocks[inside].next} - child.blocks
            else:
                counted = Counter(i.counted_as for i in self.blocks[at].instructions)
                here, leaves = so_far.then(Round(counted)), set(self.blocks[at].next)
            for to in leaves:
                if to == loop.header:
                    finished = here if finished is None else max(finished, here, key=lambda each: each.weight)
                elif to in loop.blocks:
                    known = best.get(to)
                    best[to] = here if known is None else max(known, here, key=lambda each: each.weight)
        return finished or Round(Counter(), False)

    def _order(self, loop: Loop, child_of: dict[int, Loop]) -> list[int]:
        """The loop's blocks, of an inner loop only the first, without the blocks that lead to it."""
        done: dict[int, None] = {}

        def visit(at: int) -> None:
            child = child_of.get(at)
            at = child.header if child else at
            if at in seen:
                return
            seen.add(at)
            inside = child.blocks if child else {at}
            for to in {to for each in inside for to in self.blocks[each].next} - inside:
                if to in loop.blocks and to != loop.header:
                    visit(to)
            done[at] = None

        seen: set[int] = set()
        visit(loop.header)
        return list(reversed(done))

    def times(self, loop: Loop) -> int | None:
        """The iterations of a loop with a counter: a register that grows by a constant up to another one."""
        steps, ends = {}, {}
        for at in loop.blocks:
            for i in self.blocks[at].instructions:
                grown, ended = GROWN.match(i.operands), ENDED.match(i.operands)
                if i.kind in {"IADD3", "UIADD3", "VIADD", "IADD"} and grown:
                    steps[grown[1]] = _integer(grown[2])
                if i.kind in {"ISETP", "UISETP"} and ended:
                    ends[ended[1]] = _integer(ended[2])
        counters = [register for register in steps if register in ends]
        if len(counters) != 1:
            return None
        step, end = steps[counters[0]], ends[counters[0]]
        start = self._start(counters[0], loop)
        rounds = (end - start) // step if start is not None and step else 0
        return rounds if 0 < rounds <= MOST_ROUNDS else None

    def _start(self, register: str, loop: Loop) -> int | None:
        """The constant last assigned to a register before a loop; None if it was anything else."""
        constant = re.compile(rf"\s*{register}, (?:U?RZ, U?RZ, )?(U?RZ|-?0x[0-9a-f]+)\s*$")
        for at in range(loop.header - 1, -1, -1):
            for i in reversed(self.blocks[at].instructions):
                if not re.match(rf"\s*{register},", i.operands):
                    continue
                if i.kind == "CS2R" or (
                    i.kind == "HFMA2" and i.operands.count("RZ") == 2 and "0, 0" in i.operands
                ):
                    return 0
                given = constant.match(i.operands) if i.kind in {"IMAD", "MOV", "UMOV"} else None
                return _integer(given[1]) if given else None
        return None


def _integer(text: str) -> int:
    value = 0 if "RZ" in text else int(text, 16)
    return value - 2**32 if value >= 2**31 else value


def _between(header: int, latch: int, before: dict[int, set[int]]) -> set[int]:
    """Blocks that lead to the latch without passing the header."""
    found, waiting = {header, latch}, [latch]
    while waiting:
        at = waiting.pop()
        for each in before[at] - found if at != header else ():
            found.add(each)
            waiting.append(each)
    return found


def _blocks(text: str) -> list[Block]:
    """Blocks in the order of the listing, with the blocks that can follow each."""
    blocks, names, joins = [Block()], {}, {}
    for line in text.splitlines():
        label, found = LABEL.match(line), LINE.search(line)
        if label:
            if blocks[-1].instructions:
                blocks.append(Block())
            names[label[1]] = len(blocks) - 1
        elif found:
            if found[3] == "NOP":
                continue
            i = Instruction(found[3], found[4], (found[2] or "").strip())
            blocks[-1].instructions.append(i)
            if i.jumps:
                blocks.append(Block())
    for at, block in enumerate(blocks):
        for i in block.instructions:
            if i.kind == "BSSY" and i.target:
                joins[i.operands.split(",")[0].strip()] = i.target  # where diverged lanes converge
        last = block.instructions[-1] if block.instructions else Instruction("", "", "")
        to = joins.get(last.operands.strip()) if last.kind == "BSYNC" else last.target
        if last.jumps and to in names:
            block.next.append(names[to])
        # A second predicate stands among the operands: BRA P1, `(.L_x_1).
        always = not last.predicate and not re.match(r"\s*!?U?P\d", last.operands)
        if at + 1 < len(blocks) and not (last.jumps and always):
            block.next.append(at + 1)
    return blocks
