"""Charts as data.  ``calculators.render.svg`` draws them; nothing here knows a colour or a pixel."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Axis:
    """A labelled axis; ``log`` for powers of ten."""

    label: str
    unit: str = ""
    log: bool = False
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Series:
    """A curve: (x, y) points in the axes' units."""

    name: str
    points: tuple[tuple[float, float], ...]
    emphasis: bool = False
    dashed: bool = False


@dataclass(frozen=True)
class Mark:
    """A labelled dot ("you are here")."""

    name: str
    x: float
    y: float
    emphasis: bool = False


@dataclass(frozen=True)
class Rule:
    """A labelled straight line across the plot, at x or at y."""

    name: str
    x: float | None = None
    y: float | None = None


@dataclass(frozen=True)
class LineChart:
    """Curves over one x axis; with two log axes it is a roofline."""

    title: str
    desc: str
    x: Axis
    y: Axis
    series: tuple[Series, ...]
    marks: tuple[Mark, ...] = ()
    rules: tuple[Rule, ...] = ()


@dataclass(frozen=True)
class Part:
    """One block of a stacked bar."""

    name: str
    value: float


@dataclass(frozen=True)
class Bar:
    """One bar, made of one or several parts."""

    name: str
    parts: tuple[Part, ...]
    note: str = ""
    emphasis: bool = False


@dataclass(frozen=True)
class BarChart:
    """Horizontal bars, stacked when a bar has several parts; ``limits`` are labelled lines (a card's memory)."""

    title: str
    desc: str
    value: Axis
    bars: tuple[Bar, ...]
    limits: tuple[Rule, ...] = ()


@dataclass(frozen=True)
class Waterfall:
    """Successive levels and what each step changed."""

    title: str
    desc: str
    value: Axis
    steps: tuple[tuple[str, float], ...]
    """(name, level after the step); the first is the start."""


@dataclass(frozen=True)
class Span:
    """A block on a lane of a timeline."""

    lane: int
    start: float
    end: float
    label: str = ""
    tone: int = 0


@dataclass(frozen=True)
class Timeline:
    """Lanes (cards, requests, slots) with blocks over time: Gantt charts, batching, allocator maps."""

    title: str
    desc: str
    time: Axis
    lanes: tuple[str, ...]
    spans: tuple[Span, ...]
    tones: tuple[str, ...] = field(default=())
    """Legend: meaning of each tone."""


@dataclass(frozen=True)
class Grid:
    """A matrix of cells (attention maps, who-holds-what, quantised values): rows × columns of (value, text)."""

    title: str
    desc: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: tuple[tuple[float | None, ...], ...]
    texts: tuple[tuple[str, ...], ...] = ()
    low: float = 0.0
    high: float = 1.0


Chart = LineChart | BarChart | Waterfall | Timeline | Grid
