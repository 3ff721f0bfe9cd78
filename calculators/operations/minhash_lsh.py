"""MinHash with banding: which near-duplicates are found, and what do the hashes cost?"""

from __future__ import annotations

from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Chart, LineChart, Mark, Rule, Series
from calculators.core.errors import refuse
from calculators.core.inputs import choice, integer, linear_stops, log_stops, number
from calculators.core.numbers import format_number
from calculators.core.worked import Quantity, Worked, power, quantity, sqrt
from calculators.formulas.minhash import hash_evaluations, match_probability, threshold

MOST_DRAWS = 5_000_000
"""Random numbers that the simulation may draw in a browser."""
CURVES = (("FineWeb 14 × 8", 14, 8), ("RefinedWeb 450 × 20", 450, 20))
UNWANTED = 0.5
"""A similarity at which nobody would call two pages duplicates."""


def _chart(run: Run, *, s_target: float, bands: int, rows: int, **_: object) -> tuple[Chart, ...]:
    points = sorted({i / 100 for i in range(101)} | {0.5 + i / 200 for i in range(101)})
    known = [(name, b, r) for name, b, r in CURVES if (b, r) != (bands, rows)]
    series = [Series(name, tuple((s, 100 * match_probability(s, b, r)) for s in points), dashed=True) for name, b, r in known]
    series.append(Series(f"现在 {bands} × {rows}", tuple((s, 100 * match_probability(s, bands, rows)) for s in points), emphasis=True))
    return (
        LineChart(
            "相似到几成，才会被抓到",
            "横轴是两篇的 Jaccard 相似度。段越长（r 大）越挑，段越多（b 大）越松；两样一起加，坡就陡。",
            Axis("Jaccard 相似度", low=0, high=1),
            Axis("被抓到", "%", low=0, high=100),
            tuple(series),
            marks=(Mark("目标", s_target, float(run.values["p_match_pct"]), emphasis=True),),  # type: ignore[arg-type]
            rules=(Rule("阈值", x=float(run.values["threshold_jaccard"])),),  # type: ignore[arg-type]
        ),
    )


def _simulated(s: float, bands: int, rows: int, trials: int, seed: int) -> float:
    """Share of pairs that agree in all hashes of some band, each hash agreeing with probability s."""
    import numpy as np

    agree = np.random.default_rng(seed).random((trials, bands, rows)) < s
    return float(np.mean(np.any(np.all(agree, axis=2), axis=1)))


@calculator(
    title="去重参数",
    question="分几段、每段几个哈希，相似的文档才抓得到？",
    chapter="22",
    inputs=(
        number("s_target", "目标相似度", 0.75, low=0, high=1, kind="fraction", stops=linear_stops(0, 1, 0.05), help="Jaccard：共有的片段 ÷ 全部片段"),
        integer("bands", "段数 b", 14, low=1, high=2000, stops=(1, 2, 4, 8, 14, 20, 32, 64, 128, 256, 450, 1000, 2000)),
        integer("rows", "每段哈希 r", 8, low=1, high=64, stops=(1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 32, 64)),
        number("docs", "文档数", 1e9, low=1, high=1e12, kind="count", stops=log_stops(1e6, 1e12, 2)),
        number("tokens_per_doc", "每篇", 500, "token", low=10, high=1e5, kind="tokens", more=True, stops=log_stops(10, 1e5, 5)),
        choice("hash_bytes", "一个哈希", 8, (4, 8), "B", more=True),
        integer("ngram", "片段长 n", 5, "token", low=1, high=20, more=True, stops=(1, 2, 3, 5, 8, 13, 20)),
        integer("trials", "仿真几对", 5000, low=100, high=20000, more=True, stops=(100, 200, 500, 1000, 2000, 5000, 10000, 20000)),
        integer("seed", "随机种子", 0, low=0, high=1_000_000, more=True, stops=(0, 1, 2, 3, 4, 5)),
    ),
    outputs=(
        Output("p_match_pct", "目标相似度被抓到", "%", main=True),
        Output("threshold_jaccard", "阈值", main=True),
        Output("p_match_at_half_pct", "只有一半相似也被抓", "%", main=True),
        Output("signature_tb", "签名占盘", "TB", main=True),
        Output("hash_evaluations", "算哈希的次数", main=True),
        Output("hashes_per_doc", "每篇的哈希"),
        Output("p_match_simulated_pct", "仿真：被抓到", "%", agreement="band"),
        Output("p_match", "被抓到的概率", digits=5),
        Output("p_match_at_half", "一半相似被抓的概率"),
        Output("p_match_simulated", "仿真的概率", agreement="band"),
    ),
    chart=_chart,
    needs=("numpy",),
    formula=("P(s) = 1 − (1 − s^r)^b", "阈值约 (1/b)^(1/r)", "签名 = 文档数 × 哈希的字节 × b × r；哈希次数 = 文档数 × (每篇 − n + 1) × b × r"),
    assumptions=("每个哈希以概率 s 相同，互相独立；仿真就照这样抽", "签名全部存下来"),
    leaves_out="哈希的碰撞；抓到以后要不要逐对核对；A 像 B、B 像 C 就连成一串全删，删掉的比公式多。",
    sources=("Broder 1997（MinHash）；Leskovec、Rajaraman、Ullman，Mining of Massive Datasets 第 3 章", "FineWeb（Penedo et al. 2024）：b 14、r 8；RefinedWeb（Penedo et al. 2023）附录 G：450 × 20", "有的论文把 b 和 r 的字母对调"),
)  # fmt: skip
def minhash_lsh(*, s_target: float, bands: int, rows: int, docs: float, tokens_per_doc: float, hash_bytes: int, ngram: int, trials: int, seed: int) -> Result:
    """The S-curve of banding, checked by drawing pairs."""
    if ngram > tokens_per_doc:
        raise refuse("ngram", "片段不能比文档长", f"{ngram} 对 {format_number(tokens_per_doc)}", "把片段改短")
    hashes = bands * rows
    if trials * hashes > MOST_DRAWS:
        fits = MOST_DRAWS // hashes
        remedy = f"仿真改成 {fits} 对以下" if fits >= 100 else "把段数或每段的哈希改小"
        raise refuse("trials", f"仿真对数 × b × r 不能超过 {format_number(MOST_DRAWS)}", f"{trials} × {bands} × {rows}", remedy)

    w = Worked()
    b, r, one = quantity(bands), quantity(rows), quantity(1)
    found = match_probability(s_target, bands, rows)
    whole = w.line("一段全相同", power(quantity(s_target), rows))
    p = quantity(100 * found, "%", 5)
    if 1e-3 < whole.value < 1:
        p = w.line("至少一段相同", one - power(one - whole, bands), "%")
    else:
        w.say(f"至少一段相同：1 − (1 − s^r)^b → {p.text}")
    simulated = _simulated(s_target, bands, rows, trials, seed)
    w.say(f"抽 {trials} 对 → 被抓到 {format_number(100 * simulated)}%")
    error = w.line("仿真的标准误", sqrt(quantity(found) * (one - quantity(found)) / quantity(trials)))
    knee = w.line("阈值", threshold(b, r, one))
    half = match_probability(UNWANTED, bands, rows)
    per_doc = w.line("每篇的哈希", b * r)
    signature = w.line("签名占盘", quantity(docs) * per_doc * quantity(hash_bytes, "B"), "TB")
    evaluations = w.line("算哈希的次数", hash_evaluations(quantity(docs), quantity(tokens_per_doc), quantity(ngram), b, r, one))
    return Result(
        values={
            "p_match_pct": 100 * found, "threshold_jaccard": knee, "p_match_at_half_pct": 100 * half, "signature_tb": signature,
            "hash_evaluations": evaluations, "hashes_per_doc": hashes, "p_match_simulated_pct": 100 * simulated,
            "p_match": found, "p_match_at_half": half, "p_match_simulated": simulated,
        },
        lines=w.lines,
        verdict=_verdict(s_target, found, half, signature, abs(simulated - found) <= 3 * error.value + 1e-12),
    )  # fmt: skip


def _verdict(s: float, found: float, half: float, signature: Quantity, agrees: bool) -> str:
    missed = f"相似度 {format_number(s)} 的文档，抓到 {quantity(100 * found, '%', 3).text}"
    cost = f"签名占 {signature.text}"
    check = "" if agrees else "这一次仿真偏得比三个标准误还多，换个种子再看。"
    if s <= UNWANTED:
        return f"{missed}。{cost}。{check}"
    if half > 0.5:
        return f"{missed}；可只有一半相似的也抓到 {quantity(100 * half, '%', 3).text}，会误删。把 r 加大。{cost}。{check}"
    if found < 0.5:
        return f"{missed}，多半漏掉。把 b 加大或 r 减小。{cost}。{check}"
    return f"{missed}；只有一半相似的抓到 {quantity(100 * half, '%', 3).text}。{cost}。{check}"
