"""Free places for labels: text never covers text, and keeps off the curves where it can."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Box = tuple[float, float, float, float]
"""left, top, width, height"""

_CELL = 4.0
_COVERED, _LATER = 3.0, 0.3
"""The price of one covered cell of curve, and of every better candidate before."""


class Places:
    """A plot's surface: taken boxes are forbidden, curves are to be avoided."""

    def __init__(self, left: float, top: float, right: float, bottom: float) -> None:
        self._left, self._top, self._right, self._bottom = left, top, right, bottom
        self._rows = [0] * (int((bottom - top) / _CELL) + 2)
        self._taken: list[Box] = []

    def curve(self, points: Sequence[tuple[float, float]]) -> None:
        """Mark the cells that a polyline runs through."""
        for (x, y), (next_x, next_y) in zip(points, points[1:] or points, strict=False):
            steps = int(max(abs(next_x - x), abs(next_y - y)) / _CELL) + 1
            for i in range(steps + 1):
                row = int((y + (next_y - y) * i / steps - self._top) / _CELL)
                column = int((x + (next_x - x) * i / steps - self._left) / _CELL)
                if 0 <= row < len(self._rows) and column >= 0:
                    self._rows[row] |= 1 << column

    def take(self, box: Box) -> None:
        """Forbid a box."""
        self._taken.append(box)

    def place(self, candidates: Iterable[Box]) -> Box | None:
        """Take the best of the candidates, earlier ones preferred; None when each covers a label or leaves the plot."""
        best: Box | None = None
        least = float("inf")
        for position, box in enumerate(candidates):
            price = position * _LATER
            if price >= least:
                break
            if self._is_forbidden(box):
                continue
            price += _COVERED * self._covered(box)
            if price < least:
                best, least = box, price
        if best is not None:
            self._taken.append(best)
        return best

    def _is_forbidden(self, box: Box) -> bool:
        x, y, width, height = box
        if x < self._left or y < self._top or x + width > self._right or y + height > self._bottom:
            return True
        return any(x < tx + tw and tx < x + width and y < ty + th and ty < y + height for tx, ty, tw, th in self._taken)

    def _covered(self, box: Box) -> int:
        x, y, width, height = box
        first = int((x - self._left) / _CELL)
        mask = ((1 << (int((x + width - self._left) / _CELL) - first + 1)) - 1) << first
        rows = self._rows[int((y - self._top) / _CELL) : int((y + height - self._top) / _CELL) + 1]
        return sum((row & mask).bit_count() for row in rows)


def around(x: float, y: float, width: float, height: float, distances: Sequence[float]) -> Iterable[Box]:
    """Boxes around a dot, nearer ones first: right, left, above, below, then the corners."""
    for d in distances:
        slant = d * 0.7
        yield x + d, y - height / 2, width, height
        yield x - d - width, y - height / 2, width, height
        yield x - width / 2, y - d - height, width, height
        yield x - width / 2, y + d, width, height
        yield x + slant, y - slant - height, width, height
        yield x - slant - width, y - slant - height, width, height
        yield x + slant, y + slant, width, height
        yield x - slant - width, y + slant, width, height


def along(points: Sequence[tuple[float, float]], width: float, height: float, gap: float = 5.0) -> Iterable[Box]:
    """Boxes above and below a curve, its right end first."""
    last = len(points) - 1
    for share in (1.0, 0.9, 0.75, 0.6, 0.45, 0.3, 0.15, 0.0):
        x, y = points[round(last * share)]
        for left in (x - width, x - width / 2, x):
            yield left, y - height - gap, width, height
            yield left, y + gap, width, height
