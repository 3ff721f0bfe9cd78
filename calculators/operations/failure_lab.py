"""A live experiment: let the cluster break at random for days; does the useful share agree with the formulas of Young and Daly?"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from calculators.core.calculator import Output, Result, Row, Run, calculator
from calculators.core.charts import Axis, Chart, LineChart, Mark, Rule, Series, Span, Timeline
from calculators.core.errors import refuse
from calculators.core.inputs import flag, integer, linear_stops, number
from calculators.core.numbers import format_number
from calculators.core.units import DAY, HOUR, MINUTE
from calculators.core.worked import Worked
from calculators.formulas.reliability import daly, efficiency, efficiency_safe_restart, first_order, young_interval

MOST_SEGMENTS = 2_000_000
MOST_BREAKS = 400_000
SWEEP_SEGMENTS = 60_000
"""Work spent on each further interval: the card answers in 0.3 s in a browser."""
FACTORS = (0.125, 0.25, 0.5, 2.0, 4.0)
"""Times Daly's interval, drawn as dots."""
HARDEST_RESTART = 5.0
"""R/M; beyond it a restart that failures may strike needs more than e⁵, some 150, attempts."""
LANES = 4
SHOWN_BREAKS = 8
ENOUGH = 20
"""Interruptions, and finished segments, below which a standard error says little."""
ENOUGH_RUNS = 10
LONGEST_SHARE = 0.02
"""A run must be so much longer than one segment and one restart: else its ends count."""
AGREE = 3.0
"""Standard errors."""
TONES = ("训练（含存盘）", "丢掉、要重做", "重启")


@dataclass(frozen=True)
class Setting:
    """What one simulation needs, in seconds."""

    mtti: float
    delta: float
    restart: float
    horizon: float
    strike: bool

    def segments(self, tau: float) -> float:
        """Loop turns of one run, about."""
        return self.horizon / tau + 2 * self.horizon / self.mtti

    def exact(self, tau: float) -> float:
        return (efficiency if self.strike else efficiency_safe_restart)(tau, self.delta, self.restart, self.mtti)


@dataclass(frozen=True)
class Cycle:
    """From one start to the next: kept until ``kept``, lost until ``broken``, restarted until ``up``."""

    start: float
    kept: float
    broken: float
    up: float


@dataclass
class Played:
    """Useful share of every run, interruptions of all, the first runs' cycles."""

    shares: list[float] = field(default_factory=list)
    breaks: int = 0
    cycles: list[list[Cycle]] = field(default_factory=list)

    @property
    def mean(self) -> float:
        return math.fsum(self.shares) / len(self.shares)

    @property
    def stderr(self) -> float:
        n, mean = len(self.shares), self.mean
        return math.sqrt(math.fsum((s - mean) * (s - mean) for s in self.shares) / (n - 1) / n)


@dataclass(frozen=True)
class Trace:
    played: Played
    shown: float
    dots: list[tuple[float, float]]
    """(τ in seconds, useful share) of the further intervals."""


def _gaps(seed: int, mtti: float) -> Iterator[float]:
    """Times to the next failure, exponential; drawn in blocks, which gives the same numbers as one by one."""
    import numpy as np

    rng = np.random.default_rng(seed)
    while True:
        yield from (rng.standard_exponential(2048) * mtti).tolist()


def _play(s: Setting, tau: float, runs: int, seed: int, shown: float = 0.0) -> Played:
    """Train, save, break, restart; the last segment is finished, so a run ends a little after its days."""
    next_gap = _gaps(seed, s.mtti).__next__
    segment, played = tau + s.delta, Played()
    for _ in range(runs):
        t = useful = start = 0.0
        cycles: list[Cycle] = []
        while t < s.horizon:
            gap = next_gap()
            if gap >= segment:
                t += segment
                useful += tau
                continue
            played.breaks += 1
            kept, broken = t, t + gap
            t = broken
            while s.strike and (gap := next_gap()) < s.restart:  # the restart itself is struck, and begins again
                t += gap
                played.breaks += 1
            t += s.restart
            if start < shown:
                cycles.append(Cycle(start, kept, broken, t))
            start = t
        if start < shown:
            cycles.append(Cycle(start, t, t, t))
        played.shares.append(useful / t)
        if len(played.cycles) < LANES:
            played.cycles.append(cycles)
    return played


def _chart(
    run: Run, *, mtti_h: float, delta_s: float, restart_s: float, tau_min: float, strike_in_restart: bool, days: float, **_: object
) -> tuple[Chart, ...]:
    trace = run.result.trace
    assert isinstance(trace, Trace)
    s = Setting(mtti_h * HOUR, delta_s, restart_s, days * DAY, strike_in_restart)
    tau = tau_min * MINUTE
    low, high = min([tau, *(t for t, _ in trace.dots)]), max([tau, *(t for t, _ in trace.dots)])
    curve = [low * math.exp(math.log(high / low) * i / 60) for i in range(61)] if high > low else [tau / 2, tau, tau * 2]
    spans, per = [], MINUTE if trace.shown < 3 * HOUR else HOUR if trace.shown < 4 * DAY else DAY
    for lane, cycles in enumerate(trace.played.cycles):
        for c in cycles:
            for tone, (a, b) in enumerate(((c.start, c.kept), (c.kept, c.broken), (c.broken, c.up))):
                if (end := min(b, trace.shown)) > a:
                    spans.append(Span(lane, a / per, end / per, tone=tone))
    rules = () if delta_s == 0 else (Rule("Daly", x=daly(delta_s, s.mtti) / MINUTE),)
    return (
        LineChart(
            "点是跑出来的，线是公式",
            "横轴是对数。每个点是同样天数、同一串故障换一个存盘间隔重跑；线是指数模型。点落在线上，公式就可信；跑的天数少，点就散。",
            Axis("存盘间隔", "min", log=True),
            Axis("有效时间", "%"),
            (Series("指数模型", tuple((t / MINUTE, 100 * s.exact(t)) for t in curve), dashed=True),),
            marks=(
                Mark("跑出来的", tau / MINUTE, 100 * trace.played.mean, emphasis=True),
                *(Mark("", t / MINUTE, 100 * share) for t, share in trace.dots),
            ),
            rules=rules,
        ),
        Timeline(
            "头几次运行的开头",
            "一行一次运行，参数一样，运气不一样。断在刚存完盘之后，丢得少；断在快要存盘之前，一整段白跑。",
            Axis("从开始算", {MINUTE: "min", HOUR: "h", DAY: "day"}[per]),
            tuple(f"第 {i + 1} 次" for i in range(len(trace.played.cycles))),
            tuple(spans),
            TONES,
        ),
    )


@calculator(
    title="让集群随机坏十天",
    question="让故障随机来，训练十天：真在训练的时间，和 Young、Daly 的公式对得上吗？",
    chapter="21",
    inputs=(
        number("tau_min", "存盘间隔 τ", 20, "min", low=0.5, high=1e4, stops=(1, 2, 5, 10, 20, 40, 60, 90, 120, 240, 480)),
        number("mtti_h", "平均中断间隔 M", 3.093, "h", low=0.1, high=1e4, stops=(0.2, 0.5, 1, 2, 3.093, 5, 8, 12, 24, 48, 100)),
        number("delta_s", "存一次停多久 δ", 60, "s", low=0, high=3600, kind="seconds", stops=(0, 1, 5, 10, 30, 60, 120, 300, 600)),
        number("restart_s", "一次重启 R", 600, "s", low=0, high=36000, kind="seconds", stops=(0, 60, 120, 300, 600, 900, 1800, 3600, 7200)),
        integer("runs", "跑几次", 20, low=2, high=200, stops=(2, 5, 10, 20, 50, 100, 200)),
        integer("seed", "随机种子", 0, low=0, high=1_000_000, stops=linear_stops(0, 20, 1)),
        number("days", "每次几天", 10, "day", low=1, high=100, more=True, stops=(1, 2, 5, 10, 20, 50, 100)),
        flag("strike_in_restart", "重启的时候也会断", True, more=True),
    ),
    outputs=(
        Output("eff_mean_pct", "跑出来的有效时间", "%", main=True, agreement="band"),
        Output("eff_exact_pct", "指数模型", "%", main=True),
        Output("agrees", "差在 3 个标准误以内", main=True, agreement="band"),
        Output("interruptions_mean", "每次断几回", main=True, agreement="band"),
        Output("comparison", "和公式对账", agreement="band", main=True,
            columns=(("interval", "间隔", ""), ("tau_min", "τ", "min"), ("simulated", "模拟", "%"), ("exact", "模型", "%"), ("stderr", "标准误", "pt"), ("rough", "粗算", "%"))),
        Output("eff_stderr_pct", "标准误", "pt", agreement="band"),
        Output("worst_pct", "最倒霉的一次", "%", agreement="band"),
        Output("luckiest_pct", "最走运的一次", "%", agreement="band"),
        Output("eff_mean_frac", "跑出来的（比例）", agreement="band"),
        Output("eff_stderr_frac", "标准误（比例）", agreement="band"),
        Output("eff_exact_frac", "指数模型（比例）", digits=5),
    ),
    chart=_chart,
    needs=("numpy",),
    formula=(
        "离下一次故障：指数分布，均值 M。够一段（τ + δ）就记 τ；不够就全丢，再花 R 重启",
        "有效时间 = Σ τ ÷ 经过的时间",
        "指数模型 = τ ÷ (M × e^(R/M) × (e^((τ+δ)/M) − 1))；重启时不会断：τ ÷ ((M + R) × (e^((τ+δ)/M) − 1))",
        "粗算 = 1 − δ/(τ+δ) − (τ/2 + R)/M",
    ),
    assumptions=("各次运行共用一串随机数，互相独立", "断了就丢掉这一段，从上一个检查点重来"),
    leaves_out="不跑模型，只跑时钟：没有存盘失败、坏机器反复坏、故障扎堆，真实的集群比这更糟。",
    sources=("Young 1974、Daly 2006：见「多久存一次盘」", "numpy.random.default_rng(seed)"),
)  # fmt: skip
def failure_lab(*, mtti_h: float, delta_s: float, restart_s: float, tau_min: float, days: float, runs: int, strike_in_restart: bool, seed: int) -> Result:
    """Mean useful share of seeded runs, its standard error, and the closed form; the same at Young's and Daly's interval."""
    s = Setting(mtti_h * HOUR, delta_s, restart_s, days * DAY, strike_in_restart)
    tau = tau_min * MINUTE
    _check(s, tau, runs)
    shown = min(s.horizon, SHOWN_BREAKS * s.mtti)
    played = _play(s, tau, runs, seed, shown)
    rows, dots = [_row("现在", s, tau, played)], []
    young, better = young_interval(s.delta, s.mtti), daly(s.delta, s.mtti)
    for name, at in (("Young", young), ("Daly", better), *(("", f * better) for f in FACTORS)):
        affordable = min(runs, int(SWEEP_SEGMENTS / s.segments(at))) if at > 0 else 0
        if affordable >= 2:
            other = _play(s, at, affordable, seed)
            dots.append((at, other.mean))
            if name:
                rows.append(_row(name, s, at, other))
    exact, gap = s.exact(tau), abs(played.mean - s.exact(tau))
    comparable = _comparable(s, tau, runs, played)
    agrees = gap <= AGREE * played.stderr if comparable else None
    w = Worked()
    w.say(f"{runs} 次运行，一共断了 → {format_number(played.breaks)} 次")
    w.say(f"每次的有效时间，取平均 → {_percent(played.mean)}，标准误 {format_number(100 * played.stderr, digits=3)} 个百分点")
    w.say(f"指数模型 → {_percent(exact)}")
    if played.stderr > 0:
        w.say(f"差几个标准误 → {format_number(gap / played.stderr, digits=2)}")
    return Result(
        values={
            "eff_mean_pct": 100 * played.mean, "eff_exact_pct": 100 * exact, "agrees": agrees, "interruptions_mean": played.breaks / runs, "comparison": rows,
            "eff_stderr_pct": 100 * played.stderr, "worst_pct": 100 * min(played.shares), "luckiest_pct": 100 * max(played.shares),
            "eff_mean_frac": played.mean, "eff_stderr_frac": played.stderr, "eff_exact_frac": exact,
        },
        lines=w.lines,
        verdict=_verdict(played, exact, agrees, runs),
        trace=Trace(played, shown, dots),
    )  # fmt: skip


def _row(name: str, s: Setting, tau: float, played: Played) -> Row:
    rough = first_order(tau, s.delta, s.restart, s.mtti)
    return {"interval": name, "tau_min": tau / MINUTE, "simulated": 100 * played.mean, "stderr": 100 * played.stderr, "exact": 100 * s.exact(tau), "rough": 100 * rough}  # fmt: skip


def _check(s: Setting, tau: float, runs: int) -> None:
    """Raises Refusal when the loop would not end in time."""
    if s.strike and s.restart > HARDEST_RESTART * s.mtti:
        text = f"R {format_number(s.restart)} 秒，M {format_number(s.mtti)} 秒"
        raise refuse("restart_s", "重启是平均中断间隔的五倍以上，几乎起不来", text, "让重启变快，或关掉「重启的时候也会断」")
    if (segments := s.horizon / tau * runs) > MOST_SEGMENTS:
        raise refuse("tau_min", "段数太多，浏览器跑不动", f"{format_number(segments)} 段，最多 {format_number(MOST_SEGMENTS)}", "间隔调长，或少跑几天、几次")
    if (breaks := s.horizon / s.mtti * runs) > MOST_BREAKS:
        raise refuse("runs", "故障太多，浏览器跑不动", f"{format_number(breaks)} 次，最多 {format_number(MOST_BREAKS)}", "少跑几次或几天")


def _comparable(s: Setting, tau: float, runs: int, played: Played) -> bool:
    """Enough breaks, segments and runs for a standard error, and runs long enough that their ends do not count."""
    segments = played.mean * s.horizon / tau * runs
    short = max(tau + s.delta, s.restart) <= LONGEST_SHARE * s.horizon
    return played.breaks >= ENOUGH and segments >= ENOUGH and runs >= ENOUGH_RUNS and short


def _verdict(played: Played, exact: float, agrees: bool | None, runs: int) -> str:
    spread = f"最倒霉的一次 {_percent(min(played.shares))}，最走运的 {_percent(max(played.shares))}"
    head = f"平均断 {format_number(played.breaks / runs, digits=3)} 回，真在训练的时间 {_percent(played.mean)}"
    if played.mean == 0:
        return f"平均断 {format_number(played.breaks / runs, digits=3)} 回，一段也没存成，样本太少：间隔加存盘要比平均中断间隔短得多。"
    if agrees is None:
        return f"{head}；样本太少，比不出公式对不对：多跑几次、几天，或者把间隔调短。"
    if agrees:
        return f"{head}，公式说 {_percent(exact)}，对得上。单看一次就看运气：{spread}。"
    return f"{head}，公式说 {_percent(exact)}，差出了 3 个标准误：一百回里总有一回，换个种子再看。"


def _percent(share: float) -> str:
    return f"{format_number(100 * share, digits=3)}%"
