"""Which measurements of a project lie outside its pass line, and which input of the prediction is to be estimated anew?"""

from __future__ import annotations

from dataclasses import dataclass

from calculators.core.calculator import Output, Result, Row, Run, calculator
from calculators.core.charts import Axis, Bar, BarChart, Chart, Part, Rule
from calculators.core.errors import refuse
from calculators.core.inputs import text
from calculators.core.numbers import format_number
from calculators.core.worked import Worked, quantity
from calculators.formulas.measurement import KINDS, STEADY, median, variation, worse_by
from calculators.operations._projects import LEVERS, PROJECTS, Lever
from calculators.operations._samples import number_of, read_rows, wrong
from calculators.operations.predict_vs_measure import gap

HEADER = "project,item,kind,unit,tolerance,input,predicted,measured"
RECOMPUTED = {"C1": "方案书", "C3": "印的数"}
"""Projects on paper: what stands for a prediction; what stands for a measurement is computed, once."""
FIXED = 7
"""Cells of a row before the measured values."""
MOST = 100
TINY, HUGE = 1e-20, 1e20
"""Limits of every number, so that a ratio of two stays finite."""
SHOWN = 12
"""Bars and worked lines: the worst rows, no more than a phone shows."""
DEFAULT = (
    "P5,GPipe m4,time,s,0.1,stage_s=0.06,0.42,0.428068,0.423995,0.426361; P5,GPipe m8,time,s,0.1,stage_s=0.06,0.66,0.667763,0.670875,0.672443; "
    "P5,GPipe m16,time,s,0.1,stage_s=0.06,1.14,1.15913,1.17337,1.15838; P5,1F1B m4,time,s,0.1,stage_s=0.06,0.42,0.424064,0.423887,0.424227; "
    "P5,1F1B m8,time,s,0.1,stage_s=0.06,0.66,0.66905,0.667139,0.670694; P5,1F1B m16,time,s,0.1,stage_s=0.06,1.14,1.15534,1.15059,1.15224"
)
EXAMPLE = "P6,batch 1,time,ms,0.3,gb_s=8.9,11.3,16.4,16.1,16.9"


@dataclass(frozen=True)
class Item:
    """One row: what was predicted, what was measured."""

    project: str
    name: str
    kind: str
    unit: str
    tolerance: float
    lever: Lever | None
    assumed: float
    predicted: float
    measured: tuple[float, ...]

    @property
    def median(self) -> float:
        return median(self.measured)

    @property
    def ratio(self) -> float:
        return worse_by(self.kind, self.predicted, self.median)

    @property
    def limit(self) -> float:
        """The spread that still lets one judge: a tenth, or half of a wider tolerance."""
        return max(STEADY, self.tolerance / 2)

    @property
    def steady(self) -> bool:
        return variation(self.measured) <= self.limit

    @property
    def within(self) -> bool:
        return abs(self.ratio - 1) <= self.tolerance * (1 + 1e-9)

    @property
    def strain(self) -> tuple[bool, float]:
        """Orders rows from the farthest off, measured in tolerances."""
        return not self.within, abs(self.ratio - 1) / max(self.tolerance, 1e-9)

    @property
    def reestimated(self) -> float | None:
        """The value of the input with which the prediction would have been right."""
        if self.lever is None or self.lever.power == 0:
            return None
        return self.assumed * self.ratio if self.lever.power > 0 else self.assumed / self.ratio

    def shown(self, value: float) -> str:
        return f"{format_number(value)} {self.unit}".rstrip()


def _chart(run: Run, **_: object) -> tuple[Chart, ...]:
    items = run.result.trace
    assert isinstance(items, tuple)
    bars = tuple(Bar(i.name, (Part("比预测差到", i.ratio),), f"{format_number(i.ratio, digits=3)} 倍", emphasis=not i.within) for i in items[:SHOWN])
    return (BarChart("每一项比预测差到几倍", "竖线是 1：长过它比预测差，短过它比预测好。深色的出了容差。", Axis("倍数", low=0), bars, (Rule("预测", x=1.0),)),)


@calculator(
    title="项目成绩单",
    question="脚本的 CSV 贴进来：过没过，差在哪一项，先重估哪个输入？",
    chapter="24",
    inputs=(
        text("csv", "脚本印的 CSV", DEFAULT, longest=60_000, placeholder=EXAMPLE, help="整块贴；连着屏幕上别的字一起贴也行，只认两行 # CSV 之间的"),
    ),
    outputs=(
        Output("project", "项目", main=True),
        Output("items", "几项"),
        Output("passed", "过了几项", main=True),
        Output("all_within", "都在容差里"),
        Output("all_stable", "都测得稳"),
        Output("worst_item", "离得最远的", main=True),
        Output("worst_ratio", "它比预测差到", "×"),
        Output("reestimate", "先重估"),
        Output("reestimated", "重估之后", main=True),
        Output("rows", "逐项看", columns=(("item", "哪一项", ""), ("predicted", "预测", ""), ("measured", "中位数", ""), ("ratio", "比预测差到", "倍"), ("cv_pct", "变异系数", "%"), ("result", "结论", ""))),
    ),
    chart=_chart,
    formula=(
        "差到几倍：时间、字节是 中位数 ÷ 预测，吞吐是 预测 ÷ 中位数",
        "过：|倍数 − 1| 不超过那一项的容差，并且变异系数不超过 10%（容差大于 20% 的，不超过容差的一半）",
        "重估：带宽、效率除以这个倍数；时间、字节数乘上它",
    ),
    assumptions=("时间和吞吐至少测 3 次；字节数是数出来的，一次就够", "重估只动一个输入，别的都当真"),
    leaves_out="一次只怪一个输入。两个输入同时错、错得正好抵消的，看不出来。",
    sources=("本书：预测、测量、归因三步；每项的容差印在 CSV 里", "默认值：脚本 pipe_mp.py 在一台 2 核共享机器上印的，只当例子"),
)  # fmt: skip
def project_report(*, csv: str) -> Result:
    """Every row against its own pass line; the worst row names the input."""
    items = tuple(sorted((_item(k, cells) for k, cells in enumerate(read_rows("csv", csv, HEADER, MOST), 1)), key=lambda i: i.strain, reverse=True))
    worst = next((i for i in items if not i.steady and not i.within), items[0])
    passed = sum(i.within and i.steady for i in items)
    w = Worked()
    for item in items[:SHOWN]:
        if len(item.measured) > 1:
            w.say(f"{item.name}：{len(item.measured)} 次的中位数 → {format_number(item.median)}")
        w.line(f"{item.name}，比预测差到", worse_by(item.kind, quantity(item.predicted), quantity(item.median, "", 4)), "×")
    again = worst.reestimated if worst.within is False and worst.steady else None
    if again is not None and worst.lever is not None:
        w.say(f"{worst.lever.name} {format_number(worst.assumed)}，{'乘' if worst.lever.power > 0 else '除以'}上面的倍数 → {format_number(again)}")
    return Result(
        values={
            "project": "、".join(sorted({i.project for i in items})), "items": len(items), "passed": passed,
            "all_within": all(i.within for i in items), "all_stable": all(i.steady for i in items),
            "worst_item": worst.name, "worst_ratio": worst.ratio,
            "reestimate": worst.lever.name if worst.lever and not (worst.within and worst.steady) else None,
            "reestimated": f"{format_number(again)} {worst.lever.unit}".rstrip() if again is not None and worst.lever else None,
            "rows": [_row(i) for i in items],
        },
        lines=w.lines,
        verdict=_verdict(items, worst, passed, again),
        trace=items,
    )  # fmt: skip


def _item(k: int, cells: list[str]) -> Item:
    where = f"第 {k} 行"
    if len(cells) <= FIXED:
        raise wrong("csv", where, f"要有 {FIXED + 1} 格以上：{HEADER}…", ",".join(cells))
    project, name, kind, unit, tolerance, given = cells[:6]
    if project not in PROJECTS:
        raise refuse("csv", f"{where}的 project 不认识", f"「{project[:20]}」", f"可取 {'、'.join(PROJECTS)}")
    if kind not in KINDS:
        raise refuse("csv", f"{where}的 kind 不认识", f"「{kind[:20]}」", f"可取 {'、'.join(KINDS)}")
    if len(name) > 30 or not name:
        raise refuse("csv", f"{where}的 item 要有名字，最多 30 个字符", f"「{name[:30]}」")
    if len(unit) > 12:
        raise refuse("csv", f"{where}的 unit 最多 12 个字符", f"「{unit[:20]}」")
    lever, assumed = _lever(where, given)
    measured = tuple(number_of("csv", c, f"{where}的 measured", TINY, HUGE) for c in cells[FIXED:] if c)
    if len(measured) < (1 if kind == "bytes" or project in RECOMPUTED else 3):
        raise refuse("csv", f"{where}的 measured 至少要 3 次", f"{len(measured)} 次", "多测几次再贴")
    return Item(
        project, name, kind, unit, number_of("csv", tolerance, f"{where}的 tolerance", 0, 2), lever, assumed,
        number_of("csv", cells[6], f"{where}的 predicted", TINY, HUGE), measured,
    )  # fmt: skip


def _lever(where: str, given: str) -> tuple[Lever | None, float]:
    """``gb_s=8.9``: the input that the prediction leans on, and what it was taken to be."""
    if not given:
        return None, 0.0
    name, _, value = given.partition("=")
    if name not in LEVERS:
        raise refuse("csv", f"{where}的 input 不认识", f"「{name[:20]}」", f"可取 {'、'.join(LEVERS)}，或空着")
    return LEVERS[name], number_of("csv", value, f"{where}的 {name}", TINY, HUGE)


def _row(item: Item) -> Row:
    result = "先测稳" if not item.steady else "过" if item.within else "出了容差"
    return {
        "item": item.name, "predicted": item.shown(item.predicted), "measured": item.shown(item.median), "ratio": item.ratio,
        "cv_pct": round(100 * variation(item.measured), 2), "result": result,
    }  # fmt: skip


def _verdict(items: tuple[Item, ...], worst: Item, passed: int, again: float | None) -> str:
    title = "、".join(f"{p}「{PROJECTS[p].title}」" for p in sorted({i.project for i in items}))
    told = RECOMPUTED.get(worst.project, "预测")
    if passed == len(items):
        return f"{title}过了：{len(items)} 项都在容差里。离得最远的是「{worst.name}」，{gap(worst.kind, worst.ratio, told)}；报告里写清它，就算归因做完。"
    shaky = [i for i in items if not i.steady]
    if shaky:
        return (
            f"{title}先别解释：「{shaky[0].name}」的变异系数 {quantity(100 * variation(shaky[0].measured), '%', 3).text}，过了 {quantity(100 * shaky[0].limit, '%', 3).text}。"
            "关掉别的程序、多预热、多测几次，稳了再谈差距。"
        )
    found = "重算" if worst.project in RECOMPUTED else "实测"
    said = f"{title}有 {len(items) - passed} 项出了容差，最远的是「{worst.name}」：{found}{gap(worst.kind, worst.ratio, told)}。"
    if again is not None and worst.lever is not None:
        unit = f" {worst.lever.unit}".rstrip()
        said += f"先重估「{worst.lever.name}」：{format_number(worst.assumed)}{unit} 改成 {format_number(again)}{unit}，这一项就对上了。"
    elif worst.lever is not None:
        said += f"先重估「{worst.lever.name}」，你填的是 {format_number(worst.assumed)}。"
    return said + (PROJECTS[worst.project].worse if worst.ratio > 1 else PROJECTS[worst.project].better)
