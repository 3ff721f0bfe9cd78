"""A live experiment: real documents, really edited, really hashed.  Which edits does deduplication still see through?"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Chart, Grid, LineChart, Mark, Rule, Series
from calculators.core.errors import refuse
from calculators.core.inputs import choice, integer, linear_stops, number
from calculators.core.numbers import format_number
from calculators.core.worked import Worked, quantity
from calculators.formulas.minhash import match_probability

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ids = NDArray[np.uint64]
    Rng = np.random.Generator

VOCAB = 30_000
PARAGRAPH = 25
"""Tokens of a paragraph, the unit that is moved about."""
MOST_EVALUATIONS = 12_000_000
"""Hash evaluations of one run, so that a browser stays quick; fewer pairs are compared when there are more hashes."""
SHOWN_BANDS, SHOWN_ROWS = 20, 20
EDITS = {"scatter": "零散换词", "block": "整段换掉", "move": "段落打乱"}


@dataclass(frozen=True)
class Trace:
    """The first pair's signature, hash by hash, and every pair's similarity and fate."""

    agrees: list[list[bool]]
    similarities: list[float]
    found: list[bool]


def _scatter(rng: Rng, doc: Ids, share: float) -> Ids:
    """Replace single words all over the text."""
    edited = doc.copy()
    where = rng.permutation(doc.size)[: round(share * doc.size)]
    edited[where] = _words(rng, where.size)
    return edited


def _block(rng: Rng, doc: Ids, share: float) -> Ids:
    """Replace one piece of the text as a whole."""
    edited = doc.copy()
    size = round(share * doc.size)
    start = int(rng.integers(0, doc.size - size + 1))
    edited[start : start + size] = _words(rng, size)
    return edited


def _move(rng: Rng, doc: Ids, share: float) -> Ids:
    """Keep every word, change the order of that share of the paragraphs."""
    import numpy as np

    paragraphs = np.array_split(doc, max(1, doc.size // PARAGRAPH))
    moved = np.sort(rng.permutation(len(paragraphs))[: round(share * len(paragraphs))])
    order = np.arange(len(paragraphs))
    order[moved] = rng.permutation(moved)
    return np.concatenate([paragraphs[i] for i in order])


EDIT: dict[str, Callable[[Rng, Ids, float], Ids]] = {"scatter": _scatter, "block": _block, "move": _move}


def _words(rng: Rng, n: int) -> Ids:
    import numpy as np

    return rng.integers(1, VOCAB, n).astype(np.uint64)


def _shingles(doc: Ids, ngram: int) -> Ids:
    """One 64-bit number for every different run of ``ngram`` words."""
    import numpy as np

    count = doc.size - ngram + 1
    mixed = np.zeros(count, np.uint64)
    for i in range(ngram):
        mixed = mixed * np.uint64(0x9E3779B97F4A7C15) + doc[i : i + count]
        mixed ^= mixed >> np.uint64(29)
    mixed.sort()
    different: Ids = mixed[np.append(True, mixed[1:] != mixed[:-1])]  # np.unique imports numpy.ma: half a second in a browser
    return different


def _signature(shingles: Ids, factors: Ids, offsets: Ids) -> Ids:
    """The smallest value of every hash function over the shingles."""
    values = shingles[:, None] * factors
    values += offsets  # in place: a second table of this size costs more than the hashing
    smallest: Ids = values.min(axis=0)
    return smallest


def _chart(run: Run, *, bands: int, rows: int, **_: object) -> tuple[Chart, ...]:
    trace = run.result.trace
    assert isinstance(trace, Trace)
    shown = [band[:SHOWN_ROWS] for band in trace.agrees[:SHOWN_BANDS]]
    hits = sum(all(band) for band in trace.agrees)
    names = tuple(f"段 {i + 1}{' ✓' if all(trace.agrees[i]) else ''}" for i in range(len(shown)))
    part = f"共 {bands} 段、每段 {rows} 个，只画前面的。" if bands > SHOWN_BANDS or rows > SHOWN_ROWS else ""
    points = sorted({i / 50 for i in range(51)} | {0.5 + i / 100 for i in range(51)})
    mean = math.fsum(trace.similarities) / len(trace.similarities)
    return (
        Grid(
            f"第一对的签名：{hits} 段全同，{'抓到' if hits else '漏掉'}",
            f"一格一个哈希，深色是两篇相同。有一整行全深（✓），这一对就进了同一个桶。{part}",
            names,
            (),
            tuple(tuple(1.0 if same else 0.0 for same in band) for band in shown),
        ),
        LineChart(
            "真做出来的，和公式",
            "曲线是公式；点是这一批文档：横着看它们实际多像，竖着看实际抓到几成。",
            Axis("Jaccard 相似度", low=0, high=1),
            Axis("被抓到", "%", low=0, high=100),
            (Series(f"公式 {bands} × {rows}", tuple((s, 100 * match_probability(s, bands, rows)) for s in points)),),
            marks=(Mark("这一批", mean, float(run.values["found_pct"]), emphasis=True),),  # type: ignore[arg-type]
            rules=(Rule("阈值", x=(1 / bands) ** (1 / rows)),),
        ),
    )


@calculator(
    title="改几个词，还抓得到吗",
    question="把文章改一改再抄一遍，去重还认得出吗？",
    chapter="22",
    inputs=(
        choice("edit", "怎么改", "scatter", tuple(EDITS), labels=EDITS),
        number("edit_pct", "改多少", 5, "%", low=0, high=100, stops=(0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30, 40, 50, 75, 100)),
        integer("ngram", "片段长 n", 5, "token", low=1, high=20, stops=(1, 2, 3, 4, 5, 6, 8, 10, 13, 16, 20)),
        integer("bands", "段数 b", 14, low=1, high=2000, stops=(1, 2, 4, 8, 14, 20, 32, 64, 128, 256, 450, 1000, 2000)),
        integer("rows", "每段哈希 r", 8, low=1, high=64, stops=(1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 32, 64)),
        integer("n_tokens", "每篇", 300, "token", low=30, high=2000, kind="tokens", more=True, stops=(30, 50, 100, 200, 300, 500, 1000, 2000)),
        integer("pairs", "几对", 100, low=1, high=300, more=True, stops=(1, 10, 30, 100, 200, 300)),
        integer("seed", "随机种子", 0, low=0, high=1_000_000, more=True, stops=linear_stops(0, 9, 1)),
    ),
    outputs=(
        Output("found_pct", "抓到", "%", main=True, agreement="band"),
        Output("jaccard_mean", "真实的 Jaccard", main=True, agreement="band"),
        Output("formula_pct", "公式说能抓到", "%", main=True, agreement="band"),
        Output("jaccard_from_signature", "签名估的 Jaccard", agreement="band"),
        Output("worst_estimate_error", "估得最差的一对差", agreement="band"),
        Output("pairs_compared", "比了几对", agreement="band"),
        Output("shared_of_all", "第一对：共有 ÷ 全部片段", agreement="band"),
    ),
    chart=_chart,
    needs=("numpy",),
    formula=(
        "Jaccard = 两篇都有的片段 ÷ 至少一篇有的片段",
        "一个哈希 h(x) = (a·x + c) mod 2^64，签名是它在全文片段上的最小值；两篇的最小值相同的概率就是 Jaccard",
        "b 段里有一段的 r 个全同，就算抓到",
    ),
    assumptions=("词从 3 万个里均匀抽，互不相关", "哈希次数封顶 1200 万次，b × r 太大就少比几对"),
    leaves_out="真实的语言会重复用词组，不相干的两篇也有一点 Jaccard；大小写、标点、模板的清洗都在哈希之前。",
    sources=("Broder 1997：两篇的最小哈希相同的概率等于 Jaccard", "FineWeb（Penedo et al. 2024）：词的 5-gram，14 段 × 8", "numpy.random.default_rng(seed)；仿真是本书的"),
)  # fmt: skip
def minhash_lab(*, edit: str, edit_pct: float, ngram: int, bands: int, rows: int, n_tokens: int, pairs: int, seed: int) -> Result:
    """Write, edit, shingle, hash, band, compare."""
    import numpy as np

    hashes = bands * rows
    compared = min(pairs, MOST_EVALUATIONS // (2 * n_tokens * hashes))
    if compared == 0:
        raise refuse(
            "bands", f"b × r × 每篇的词不能超过 {format_number(MOST_EVALUATIONS // 2)}", f"{bands} × {rows} × {n_tokens}", "把段数、每段的哈希或文档改小"
        )
    rng = np.random.default_rng(seed)
    factors = rng.integers(0, 2**63, hashes, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    offsets = rng.integers(0, 2**64, hashes, dtype=np.uint64)
    trace, estimates, common = Trace([], [], []), [], (0, 0)
    for k in range(compared):
        original = _words(rng, n_tokens)
        a, b = _shingles(original, ngram), _shingles(EDIT[edit](rng, original, edit_pct / 100), ngram)
        shared = int(np.intersect1d(a, b, assume_unique=True).size)
        every = a.size + b.size - shared
        agrees = (_signature(a, factors, offsets) == _signature(b, factors, offsets)).reshape(bands, rows)
        trace.similarities.append(shared / every)
        trace.found.append(bool(np.any(np.all(agrees, axis=1))))
        estimates.append(float(np.mean(agrees)))
        if k == 0:
            trace.agrees.extend(agrees.tolist())
            common = shared, every

    mean = math.fsum(trace.similarities) / compared
    found = sum(trace.found) / compared
    formula = math.fsum(match_probability(s, bands, rows) for s in trace.similarities) / compared
    w = Worked()
    w.say(f"写 {compared} 篇，各{EDITS[edit]} {format_number(edit_pct)}% → {compared} 对")
    first = w.line("第一对的 Jaccard", quantity(common[0]) / quantity(common[1]))
    w.say(f"{compared} 对平均 → Jaccard {format_number(mean)}")
    w.say(f"每对比 {hashes} 个哈希，相同的占 → {format_number(math.fsum(estimates) / compared)}")
    seen = w.line("有一整段全同的", quantity(sum(trace.found)) / quantity(compared), "%")
    w.say(f"逐对代入 1 − (1 − s^r)^b，平均 → {format_number(100 * formula)}%")
    return Result(
        values={
            "found_pct": 100 * found, "jaccard_mean": mean, "formula_pct": 100 * formula, "jaccard_from_signature": math.fsum(estimates) / compared,
            "worst_estimate_error": max(abs(e - s) for e, s in zip(estimates, trace.similarities, strict=True)),
            "pairs_compared": compared, "shared_of_all": first.value,
        },
        lines=w.lines,
        verdict=_verdict(edit, edit_pct, ngram, mean, seen.text, found),
        notes=(f"哈希太多，只比了 {compared} 对。",) if compared < pairs else (),
        trace=trace,
    )  # fmt: skip


def _verdict(edit: str, pct: float, ngram: int, mean: float, seen: str, found: float) -> str:
    what = f"{EDITS[edit]} {format_number(pct)}%，Jaccard 平均 {format_number(mean, digits=3)}，抓到 {seen}"
    if edit == "scatter" and ngram > 1 and found < 0.5:
        return f"{what}。一个词在 {ngram} 个片段里，换一个词就坏掉 {ngram} 个：改得零散，最难抓。"
    if found < 0.5:
        return f"{what}，多半漏掉。"
    if found < 1:
        return f"{what}：抓不抓得到，看运气。"
    return f"{what}：一对没漏。"
