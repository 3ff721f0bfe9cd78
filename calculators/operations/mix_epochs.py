"""A mixture of sources: how often is each of them read?"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from calculators.core.calculator import Output, Result, Row, Run, calculator
from calculators.core.charts import Axis, Bar, BarChart, Chart, Part, Rule
from calculators.core.errors import refuse
from calculators.core.inputs import linear_stops, log_stops, number, text
from calculators.core.numbers import NotANumber, format_number, parse_number
from calculators.core.worked import Worked, quantity

DEFAULT = "web:12e12:0.50;math:1e12:0.25;code:1.5e12:0.17;multi:3e12:0.08"
MOST_SOURCES = 20
SUM_TOLERANCE = 1e-6


@dataclass(frozen=True)
class Source:
    """Unique tokens, and the share of the training tokens that comes from here."""

    name: str
    unique: float
    weight: float


def epochs_of(source: Source, total: float) -> float:
    """weight × total ÷ unique."""
    return source.weight * total / source.unique


def _chart(run: Run, *, max_epochs: float, **_: object) -> tuple[Chart, ...]:
    sources = run.result.trace
    assert isinstance(sources, tuple)
    epochs = run.values["epochs"]
    assert isinstance(epochs, list)
    bars = tuple(
        Bar(source.name, (Part("轮数", float(epoch)),), f"{format_number(float(epoch), digits=3)} 轮", float(epoch) > max_epochs)  # type: ignore[arg-type]
        for source, epoch in zip(sources, epochs, strict=True)
    )
    return (
        BarChart(
            "每个来源读几轮",
            "没到一轮的，有一部分从没读过；过了线的，重复得太多。",
            Axis("轮数", low=0),
            bars,
            (Rule(f"{format_number(max_epochs)} 轮", x=max_epochs),),
        ),
    )


@calculator(
    title="每个来源读几轮",
    question="按这个配比训这么多 token，哪个来源会被读烂？",
    chapter="22",
    inputs=(
        text("sources", "来源", DEFAULT, longest=2000, placeholder=DEFAULT, help="名字:不重复的 token:占比，分号隔开；默认的 token 数是占位的"),
        number("total_tokens", "一共训", 15.6e12, "token", low=1e6, high=1e14, kind="tokens", stops=log_stops(1e9, 1e14, 5)),
        number("max_epochs", "最多几轮", 4, low=1, high=100, stops=linear_stops(1, 20, 1), help="4 轮以内，和新数据差不多"),
    ),
    outputs=(
        Output("max_epochs_seen", "读得最多的", main=True),
        Output("epochs", "各来源的轮数", main=True),
        Output("over_limit", "超过上限的", main=True),
        Output("most_total_tokens", "配比不变，最多能训", "token", main=True),
        Output("by_source", "逐个来源", columns=(("name", "来源", ""), ("weight", "占比", "%"), ("read", "读（十亿 token）", ""), ("epochs", "轮数", ""), ("unread", "没读过", "%"))),
    ),
    chart=_chart,
    formula=("轮数 = 占比 × 总 token ÷ 不重复的 token", "最多能训 = 各来源里最小的 上限 × 不重复的 token ÷ 占比"),
    assumptions=("每个来源从头读到尾，再从头读", "占比从头到尾不变"),
    leaves_out="快收尾时给好数据加权（退火）、先易后难的次序、来源之间的重复；4 轮是实验的经验，来源越小越要自己测。",
    sources=("Muennighoff et al. 2023（Scaling Data-Constrained Language Models）：4 轮以内接近新数据", "默认的占比：Dubey et al. 2024（Llama 3）；不重复的 token 没有公布，是占位的"),
)  # fmt: skip
def mix_epochs(*, sources: str, total_tokens: float, max_epochs: float) -> Result:
    """Weight × total ÷ unique, source by source."""
    mixture = _read(sources or DEFAULT)
    epochs = [epochs_of(source, total_tokens) for source in mixture]
    w = Worked()
    for source in mixture:
        share = quantity(source.weight) * quantity(total_tokens, "token") / quantity(source.unique, "token")
        w.line(source.name, share)
    over = [source.name for source, epoch in zip(mixture, epochs, strict=True) if epoch > max_epochs]
    read = [source for source in mixture if source.weight > 0]
    tightest = min(read, key=lambda source: source.unique / source.weight)
    most = w.line(f"最多能训（{tightest.name} 先到头）", quantity(max_epochs) * quantity(tightest.unique, "token") / quantity(tightest.weight), "token")
    table: list[Row] = [
        {"name": s.name, "weight": 100 * s.weight, "read": s.weight * total_tokens / 1e9, "epochs": e, "unread": 100 * max(0.0, 1 - e)}
        for s, e in zip(mixture, epochs, strict=True)
    ]
    return Result(
        values={"max_epochs_seen": max(epochs), "epochs": epochs, "over_limit": over, "most_total_tokens": most, "by_source": table},
        lines=w.lines,
        verdict=_verdict(tightest.name, max(epochs), over, max_epochs, most.text),
        trace=mixture,
    )


def _read(typed: str) -> tuple[Source, ...]:
    """``web:12e12:0.50;math:1e12:0.25``.  Raises Refusal."""
    found = tuple(_source(item) for item in filter(None, (part.strip() for part in re.split(r"[;；\n]", typed))))
    if not found:
        raise refuse("sources", "来源不能是空的", "没有一个来源", f"例如 {DEFAULT}")
    if len(found) > MOST_SOURCES:
        raise refuse("sources", f"来源最多 {MOST_SOURCES} 个", f"{len(found)} 个", "把小的并成一个")
    names = [source.name for source in found]
    if len(set(names)) < len(names):
        raise refuse("sources", "来源的名字不能重复", "、".join(sorted({n for n in names if names.count(n) > 1})), "换个名字，或并成一个")
    total = math.fsum(source.weight for source in found)
    if abs(total - 1) > SUM_TOLERANCE:
        raise refuse("sources", "配比之和不是 1", format_number(total, digits=7), "改到加起来是 1")
    return found


def _source(item: str) -> Source:
    parts = [part.strip() for part in item.replace("：", ":").split(":")]
    if len(parts) != 3 or not parts[0] or re.search("[=→]", parts[0]):
        raise refuse("sources", "来源要写成 名字:不重复的 token:占比", f"「{item[:40]}」", "例如 web:12e12:0.50")
    unique, weight = _number(parts[1], item, "token"), _number(parts[2], item, "")
    if unique <= 0:
        raise refuse("sources", "来源的不重复 token 必须大于 0", f"「{item[:40]}」")
    if weight < 0:
        raise refuse("sources", "来源的占比不能小于 0", f"「{item[:40]}」")
    return Source(parts[0][:20], unique, weight)


def _number(typed: str, item: str, unit: str) -> float:
    try:
        return parse_number(typed, unit)
    except NotANumber as error:
        raise refuse("sources", f"来源里的数{error}", f"「{item[:40]}」", "例如 web:12e12:0.50") from None


def _verdict(name: str, most: float, over: list[str], limit: float, most_tokens: str) -> str:
    top = f"{name} 读得最多，{format_number(most, digits=3)} 轮"
    if over:
        return f"{top}，超过 {format_number(limit)} 轮的有 {'、'.join(over)}：把它们的占比调低，或者少训，按这个配比最多 {most_tokens}。"
    return f"{top}，没有超过 {format_number(limit)} 轮的。按这个配比，最多还能训到 {most_tokens}。"
