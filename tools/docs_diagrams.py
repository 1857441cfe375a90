"""Diagrams of the documentation: box-drawing characters in a page become an SVG picture when the site is built.

A diagram is a fenced block that begins with ```` ```diagram TITLE ````. The build fails if its lines do not join: each
line that leaves a cell must meet a line or an arrowhead in the neighbouring cell. Only a straight line may end, beside
text or at the edge.
"""

from __future__ import annotations

import re
from html import escape

FENCE = re.compile(r"^```diagram[ \t]*(?P<title>[^\n]*)\n(?P<text>.*?)^```[ \t]*$", re.DOTALL | re.MULTILINE)
MAX_COLUMNS = 90
CELL_WIDTH, CELL_HEIGHT = 8, 18
LEFT, RIGHT, UP, DOWN = (-1, 0), (1, 0), (0, -1), (0, 1)
ARMS = {
    "─": (LEFT, RIGHT),
    "│": (UP, DOWN),
    "┌": (RIGHT, DOWN),
    "┐": (LEFT, DOWN),
    "└": (RIGHT, UP),
    "┘": (LEFT, UP),
    "├": (UP, DOWN, RIGHT),
    "┤": (UP, DOWN, LEFT),
    "┬": (LEFT, RIGHT, DOWN),
    "┴": (LEFT, RIGHT, UP),
    "┼": (LEFT, RIGHT, UP, DOWN),
    "╌": (LEFT, RIGHT),
    "╎": (UP, DOWN),
    "▶": (LEFT,),
    "◀": (RIGHT,),
    "▼": (UP,),
    "▲": (DOWN,),
}
"""The sides of a cell at which the line of a character ends."""
STRAIGHT = "─│╌╎"
DASHED = "╌╎"
ARROWHEADS = "▶◀▼▲"


class DiagramError(ValueError):
    """A diagram whose lines do not join, or that is too wide for a page."""


def replace_diagrams(markdown: str) -> str:
    return FENCE.sub(lambda found: draw(found["title"].strip(), found["text"]), markdown)


def draw(title: str, text: str) -> str:
    """Return a diagram as a `<figure>` with an SVG picture, in a single line. Raises DiagramError."""
    if not title:
        raise DiagramError("a diagram has no title: write ```diagram TITLE")
    lines = text.rstrip("\n").split("\n")
    check(title, lines)
    width, height = max(map(len, lines)) * CELL_WIDTH, len(lines) * CELL_HEIGHT
    parts = [
        *(
            _line(column, row, mark)
            for row, line in enumerate(lines)
            for column, mark in enumerate(line)
            if mark in ARMS
        ),
        *(_words(found, row) for row, line in enumerate(lines) for found in _WORDS.finditer(line)),
    ]
    return (
        f'<figure class="diagram"><svg viewBox="0 0 {width} {height}" style="width:{width}px" role="img"'
        f' aria-label="{escape(title)}">{"".join(parts)}</svg><figcaption>{escape(title)}</figcaption></figure>'
    )


def check(title: str, lines: list[str]) -> None:
    """Raise DiagramError if a line of the diagram does not meet another one."""
    for row, line in enumerate(lines):
        if len(line) > MAX_COLUMNS:
            raise DiagramError(f"{title}, line {row + 1}: {len(line)} columns, at most {MAX_COLUMNS} fit on a page")
        for column, mark in enumerate(line):
            for x, y in ARMS.get(mark, ()):
                neighbour = _at(lines, column + x, row + y)
                is_joined = (-x, -y) in ARMS.get(neighbour, ())
                # One space may separate a word from the line that leads to it.
                beside = neighbour if neighbour != " " or y else _at(lines, column + 2 * x, row)
                is_end = mark in STRAIGHT and beside != " " and beside not in ARMS
                if not is_joined and not is_end:
                    raise DiagramError(f"{title}, line {row + 1}, column {column + 1}: {mark} ends beside a gap")


def _at(lines: list[str], column: int, row: int) -> str:
    if row not in range(len(lines)) or column < 0:
        return ""
    return lines[row][column] if column < len(lines[row]) else " "


_WORDS = re.compile(f"[^ {''.join(ARMS)}]+(?: [^ {''.join(ARMS)}]+)*")


def _words(found: re.Match[str], row: int) -> str:
    x, y = found.start() * CELL_WIDTH, row * CELL_HEIGHT + 13
    width = len(found[0]) * CELL_WIDTH
    return f'<text x="{x}" y="{y}" textLength="{width}" lengthAdjust="spacingAndGlyphs">{escape(found[0])}</text>'


def _line(column: int, row: int, mark: str) -> str:
    x, y = column * CELL_WIDTH + CELL_WIDTH // 2, row * CELL_HEIGHT + CELL_HEIGHT // 2
    strokes = "".join(
        f"M{x} {y}L{x + across * CELL_WIDTH // 2} {y + down * CELL_HEIGHT // 2}" for across, down in ARMS[mark]
    )
    dashes = ' stroke-dasharray="3"' if mark in DASHED else ""
    line = f'<path d="{strokes}"{dashes}/>'
    if mark not in ARROWHEADS:
        return line
    ((across, down),) = ARMS[mark]
    tip_x, tip_y = x - across * CELL_WIDTH // 2, y - down * CELL_HEIGHT // 2
    base_x, base_y = tip_x + across * 8, tip_y + down * 8
    side_x, side_y = down * 4, across * 4
    return f'{line}<polygon points="{tip_x},{tip_y} {base_x + side_x},{base_y + side_y} {base_x - side_x},{base_y - side_y}"/>'
