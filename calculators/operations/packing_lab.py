"""A live experiment: the same documents padded, sorted, packed and chopped.  How much is real, and who sees whom?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.calculator import Row as TableRow
from calculators.core.charts import Axis, Bar, BarChart, Chart, Grid, Part, Span, Timeline
from calculators.core.errors import refuse
from calculators.core.inputs import choice, integer, linear_stops, log_stops, number, powers_of_two
from calculators.core.numbers import format_number
from calculators.core.worked import Worked, quantity
from calculators.formulas.packing import SHORTEST, Row, chopped, cross_share, longest_of_group, next_fit, one_per_row, real_share

FITS = {"ffd": "从长到短", "first": "不排序", "next": "只看最后一行"}
PAD, GROUP, SORTED, PACK, CHOP = "补到 S", "补到批里最长", "排序再分批", "装箱", "接起来切"
SHOWN_ROWS = 12
THINNEST = 1 / 220
"""Documents narrower than this share of a row are drawn together."""
CELLS = 16
TONES = ("一篇文档", "同一行的下一篇", "很多短的", "补的空白")


@dataclass(frozen=True)
class Trace:
    """Rows and share of real tokens of every way, and the packed row that the attention map shows."""

    ways: dict[str, list[Row]]
    shares: dict[str, float]
    row: Row


def lengths_of(median: float, sigma: float, seq: int, n: int, seed: int) -> list[int]:
    """Document lengths, from 8 to ``seq`` tokens."""
    import numpy as np

    drawn = np.random.default_rng(seed).lognormal(np.log(median), sigma, n)
    return [int(x) for x in np.floor(np.clip(drawn, SHORTEST, seq)).tolist()]


def first_fit(lengths: Sequence[int], seq: int) -> list[Row]:
    """Each document into the first row with room, else a new row."""
    import numpy as np

    room = np.full(len(lengths), seq)
    rows: list[list[int]] = []
    for length in lengths:
        place = int(np.argmax(room[: len(rows) + 1] >= length))
        if place == len(rows):
            rows.append([])
        rows[place].append(length)
        room[place] -= length
    return [Row(tuple(parts), seq) for parts in rows]


FIT: dict[str, Callable[[Sequence[int], int], list[Row]]] = {
    "ffd": lambda lengths, seq: first_fit(sorted(lengths, reverse=True), seq),
    "first": first_fit,
    "next": next_fit,
}


def _chart(run: Run, *, S: int, show: str, **_: object) -> tuple[Chart, ...]:
    trace = run.result.trace
    assert isinstance(trace, Trace)
    bars = tuple(
        Bar(name, (Part("真 token", 100 * share), Part("空白", 100 * (1 - share))), f"{format_number(100 * share, digits=3)}%", name == SHOWN[show])
        for name, share in trace.shares.items()
    )  # fmt: skip
    return (
        _rows(SHOWN[show], trace.ways[SHOWN[show]], S),
        BarChart("算的 token 里有多少是真的", "长的一截是真 token，剩下的是补的空白。补白也照样算。", Axis("占比", "%", low=0, high=100), bars),
        _pairs(trace.row),
    )


def _rows(name: str, rows: list[Row], seq: int) -> Timeline:
    """A dozen rows, evenly picked, as they lie in memory."""
    picked = [rows[i * len(rows) // SHOWN_ROWS] for i in range(SHOWN_ROWS)] if len(rows) > SHOWN_ROWS else rows
    spans: list[Span] = []
    for lane, row in enumerate(picked):
        at, turn, thin = 0, 0, 0
        for part in row.parts:
            if part < THINNEST * seq:
                thin += part
                continue
            spans.append(Span(lane, float(at), float(at + part), tone=turn % 2))
            at, turn = at + part, turn + 1
        if thin:
            spans.append(Span(lane, float(at), float(at + thin), tone=2))
            at += thin
        if at < row.width:
            spans.append(Span(lane, float(at), float(row.width), tone=3))
    return Timeline(
        f"{name}：随手抽的几行",
        "一行是送进模型的一条序列，从左到右是 token。空白也占算力；没画到的地方没有分配。",
        Axis("token", low=0, high=float(seq)),
        tuple(f"行 {i}" for i in range(len(picked))),
        tuple(spans),
        TONES,
    )


def _pairs(row: Row) -> Grid:
    """Causal attention of one packed row, in 16 × 16 cells: share of each cell's pairs inside one document."""
    fill = sum(row.parts)
    edges = [0]
    for part in row.parts:
        edges.append(edges[-1] + part)
    cuts = [i * fill / CELLS for i in range(CELLS + 1)]

    def overlap(a: int, cell: int) -> float:
        return max(0.0, min(edges[a + 1], cuts[cell + 1]) - max(edges[a], cuts[cell]))

    weights = [[overlap(a, cell) for a in range(len(row.parts))] for cell in range(CELLS)]
    area = (fill / CELLS) * (fill / CELLS)
    cells = tuple(
        tuple(min(1.0, sum(q * k for q, k in zip(weights[i], weights[j], strict=True)) / area) if j <= i else None for j in range(CELLS)) for i in range(CELLS)
    )
    return Grid(
        f"装箱的一行：{len(row.parts)} 篇挤在一起，谁看见谁",
        "行是 query，列是 key，只有下三角。深的格子是看自己这一篇，浅的格子看见了别的文档：文档掩码要挡掉的就是它们。",
        ("",) * CELLS,
        (),
        cells,
        low=-0.3,  # a pair across documents is pale, not empty
    )


SHOWN = {"pad": PAD, "group": GROUP, "sorted": SORTED, "pack": PACK, "chop": CHOP}


@calculator(
    title="padding、排序、装箱",
    question="长短不一的文档排成整齐的行，有多少是白算的？",
    chapter="22",
    inputs=(
        number("median", "长度的中位数", 600, "token", low=10, high=1e5, kind="tokens", stops=log_stops(10, 1e5, 10)),
        number("sigma", "长短差多少 σ", 1.2, low=0, high=3, stops=linear_stops(0, 3, 0.1), help="对数正态的 σ；0 是一样长"),
        integer("S", "序列长度 S", 8192, "token", low=256, high=131072, kind="tokens", stops=powers_of_two(256, 131072)),
        choice("fit", "怎么装箱", "ffd", tuple(FITS), labels=FITS, help="前两种回头找放得下的行"),
        choice("show", "画哪一种", "pack", tuple(SHOWN), labels=SHOWN),
        integer("batch", "一批几条", 16, "sequence", low=1, high=512, stops=powers_of_two(1, 512), help="补到批里最长、排序再分批时用"),
        integer("n_docs", "文档数", 4000, low=100, high=4000, more=True, stops=(100, 250, 500, 1000, 2000, 4000)),
        integer("row", "看装箱的第几行", 0, "row", low=0, high=4000, more=True, stops=(0, 1, 2, 5, 10, 20, 50, 100, 200, 500), help="0：篇数居中的一行"),
        integer("seed", "随机种子", 0, low=0, high=1_000_000, more=True, stops=(0, 1, 2, 3, 4, 5)),
    ),
    outputs=(
        Output("util_pad_to_s_pct", PAD, "%", main=True, agreement="band"),
        Output("util_batch_max_pct", GROUP, "%", main=True, agreement="band"),
        Output("util_sorted_pct", SORTED, "%", main=True, agreement="band"),
        Output("util_ffd_pct", PACK, "%", main=True, agreement="band"),
        Output("cross_doc_pair_pct", "装箱后跨文档的配对", "%", main=True, agreement="band"),
        Output("util_chop_pct", CHOP, "%", agreement="band"),
        Output("cut_docs_pct", "接起来切：被切断的文档", "%", agreement="band"),
        Output("ffd_rows", "装箱用了", "row", agreement="band"),
        Output("mean_len_tokens", "平均长度", "token", agreement="band", digits=5),
        Output("ways", "五种办法", agreement="band", columns=(("way", "办法", ""), ("real", "真 token", "%"), ("rows", "行数", ""), ("cross", "跨文档", "%"), ("cut", "切断", "%"))),
        Output("util_pad_to_s_frac", "补到 S（比例）", agreement="band"),
        Output("util_batch_max_frac", "补到批里最长（比例）", agreement="band"),
        Output("util_sorted_frac", "排序再分批（比例）", agreement="band"),
        Output("util_ffd_frac", "装箱（比例）", agreement="band"),
        Output("cross_doc_pair_frac", "跨文档的配对（比例）", agreement="band"),
    ),
    chart=_chart,
    needs=("numpy",),
    formula=(
        "真 token 的占比 = Σ 长度 ÷ 分配的 token",
        "装箱（first-fit decreasing）：从长到短，放进第一个放得下的行，都放不下就开新行",
        "跨文档的配对 = 1 − Σ 长度² ÷ Σ 每行的真 token²；只数下三角，占比一样",
    ),
    assumptions=("长度是对数正态，最短 8，超过 S 的截到 S", "补的 token 不参加配对"),
    leaves_out="线性层和 attention 的快慢之比；排序以后每批长短相近，梯度的次序就有了偏；被切断的文档后半截看不到前文。",
    sources=("first-fit decreasing：装箱问题的经典贪心", "文档掩码：Dubey et al. 2024（Llama 3）§3.2", "numpy.random.default_rng(seed).lognormal；仿真是本书的"),
)  # fmt: skip
def packing_lab(*, median: float, sigma: float, S: int, fit: str, show: str, batch: int, n_docs: int, row: int, seed: int) -> Result:
    """Lay the documents out in five ways."""
    if median > S:
        raise refuse("median", "长度的中位数不能超过序列长度 S", f"{format_number(median)} 对 {S}", "把 S 调大，或把中位数调小")
    lengths = lengths_of(median, sigma, S, n_docs, seed)
    packed = FIT[fit](lengths, S)
    chops, cut = chopped(lengths, S)
    ways = {
        PAD: one_per_row(lengths, S),
        GROUP: longest_of_group(lengths, batch),
        SORTED: longest_of_group(sorted(lengths), batch),
        PACK: packed,
        CHOP: chops,
    }
    shares = {name: real_share(rows) for name, rows in ways.items()}
    crosses = {name: cross_share(ways[name]) for name in (PACK, CHOP)}
    crossed = crosses[PACK]
    real = sum(lengths)
    table: list[TableRow] = [
        {"way": name, "real": 100 * shares[name], "rows": len(rows), "cross": 100 * crosses.get(name, 0.0), "cut": 100 * cut / n_docs if name == CHOP else 0}
        for name, rows in ways.items()
    ]

    w = Worked()
    w.say(f"抽 {n_docs} 篇 → 共 {format_number(real, digits=9)} token，最长 {format_number(max(lengths), digits=9)}")
    tokens, docs, seq = quantity(real, "", 9), quantity(n_docs), quantity(S)
    mean = w.line("平均长度", tokens / docs, "token", 5)
    pad = w.line(f"{PAD}，真 token", tokens / (docs * seq), "%")
    for name in (GROUP, SORTED):
        w.line(f"{name}，真 token", tokens / quantity(sum(r.width for r in ways[name]), "", 12), "%")
    w.say(f"装箱，{FITS[fit]} → {len(packed)} 行")
    box = w.line("装箱，真 token", tokens / (quantity(len(packed)) * seq), "%")
    w.say(f"逐行数配对 → 跨文档的占 {format_number(100 * crossed)}%")
    return Result(
        values={
            "util_pad_to_s_pct": 100 * shares[PAD], "util_batch_max_pct": 100 * shares[GROUP], "util_sorted_pct": 100 * shares[SORTED],
            "util_ffd_pct": 100 * shares[PACK], "cross_doc_pair_pct": 100 * crossed, "util_chop_pct": 100 * shares[CHOP], "cut_docs_pct": 100 * cut / n_docs,
            "ffd_rows": len(packed), "mean_len_tokens": mean.value,
            "ways": table,
            "util_pad_to_s_frac": shares[PAD], "util_batch_max_frac": shares[GROUP], "util_sorted_frac": shares[SORTED],
            "util_ffd_frac": shares[PACK], "cross_doc_pair_frac": crossed,
        },
        lines=w.lines,
        verdict=f"补到 S 只有 {pad.text} 是真 token，装箱以后 {box.text}。{_price(crossed, packed)}",
        trace=Trace(ways, shares, _chosen(packed, row)),
    )  # fmt: skip


def _chosen(rows: list[Row], wanted: int) -> Row:
    """The wanted row (the last when there are fewer), or the one with the median number of documents."""
    if wanted:
        return rows[min(wanted, len(rows)) - 1]
    return sorted(rows, key=lambda row: len(row.parts))[len(rows) // 2]


def _price(crossed: float, rows: Sequence[Row]) -> str:
    if all(len(row.parts) == 1 for row in rows):
        return "一行只放得下一篇，装箱没有帮上忙，也没有跨文档的事。"
    return f"代价：不加文档掩码，一行里 {quantity(100 * crossed, '%', 3).text} 的注意力配对跨了文档。"
