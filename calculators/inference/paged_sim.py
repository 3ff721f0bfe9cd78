"""A live experiment: the same requests in the same KV pool, reserved contiguously or paged.  How much of the pool holds tokens?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Bar, BarChart, Chart, LineChart, Part, Series, Span, Timeline
from calculators.core.errors import refuse
from calculators.core.inputs import choice, flag, integer, linear_stops, number, powers_of_two
from calculators.core.numbers import format_number
from calculators.core.worked import Worked, quantity
from calculators.formulas.paging import Film, Hold, Request, contiguous, paged

POLICIES = {"max": "按最长预留", "pow2": "预留到 2 的幂", "oracle": "神谕（正好够）", "paged": "分页"}
PARTS = ("有用：真存着 token", "预留：以后会用到", "内部碎片：永远用不到", "外部碎片：谁也没拿到")
MOST_POINTS = 150
CELLS = 250
"""Of the map: a cell is about a pixel on a phone."""


@dataclass(frozen=True)
class Films:
    by_policy: dict[str, Film]
    pool: int


def draw(seed: int, count: int, prompt_mean: float, output_mean: float, sigma: float, longest: int) -> list[Request]:
    """Lognormal lengths of those means, whole, at least 1, at most ``longest``; all prompts are drawn first."""
    import numpy as np

    rng = np.random.default_rng(seed)

    def lengths(mean: float) -> list[int]:
        drawn = rng.lognormal(math.log(mean) - sigma * sigma / 2, sigma, count)
        return [int(n) for n in np.clip(np.floor(drawn), 1, longest)]

    prompts = lengths(prompt_mean)
    return [Request(i, o) for i, o in zip(prompts, lengths(output_mean), strict=True)]


def _chart(run: Run, *, moment_pct: float, **_: object) -> tuple[Chart, ...]:
    films = run.result.trace
    assert isinstance(films, Films)
    shown = {p: f for p, f in films.by_policy.items() if f.shares is not None}
    bars = tuple(
        Bar(POLICIES[p], tuple(Part(name, 100 * max(0.0, share)) for name, share in zip(PARTS, f.shares or (), strict=True)), f"{format_number(100 * (f.shares or (0,))[0], digits=3)}%", p == "paged")
        for p, f in shown.items()
    )  # fmt: skip
    if not bars:
        return ()
    spans: list[Span] = []
    moments = []
    for lane, film in enumerate(shown.values()):
        time, holds = film.frames[round(moment_pct / 100 * (len(film.frames) - 1))]
        moments.append(format_number(time))
        spans += [Span(lane, a, b, tone=tone) for a, b, tone in _stretches(holds(), films.pool)]
    return (
        BarChart("池子都花在哪", "按时间平均。第一段才是真存着的 token，其余三段是三种浪费。", Axis("占 KV 池", "%", low=0, high=100), bars),
        Timeline(
            "这一刻，池子长什么样",
            f"横着是 KV 池的地址，从上到下分别是第 {'、'.join(moments)} 步。拖「看哪一刻」，看请求进出时洞怎么出来。",
            Axis("KV 池的槽", "token"),
            tuple(POLICIES[p] for p in shown),
            tuple(spans),
            PARTS,
        ),
        LineChart(
            "同时在跑几个",
            "有人排队的这段时间里。同一个池子，分页让更多请求同时在跑，排队也散得早。",
            Axis("步", low=0),
            Axis("在跑的请求", "request", low=0),
            tuple(Series(POLICIES[p], _thin(f), emphasis=p == "paged") for p, f in shown.items()),
        ),
    )


def _thin(film: Film) -> tuple[tuple[float, float], ...]:
    every = -(-len(film.times) // MOST_POINTS)
    return tuple((float(t), float(n)) for t, n in list(zip(film.times, film.running, strict=True))[::every])


def _stretches(holds: list[Hold], pool: int) -> list[tuple[float, float, int]]:
    """The pool in address order as stretches of one use: ``CELLS`` cells, each shown as what fills most of it."""
    size = pool / CELLS
    filled = [[0.0] * len(PARTS) for _ in range(CELLS)]
    end = 0
    for hold in (*holds, Hold(pool, 0, 0, 0)):
        edges = (end, hold.at, hold.at + hold.useful, hold.at + hold.whole, hold.at + hold.asked)
        for (start, stop), tone in zip(pairwise(edges), (3, 0, 1, 2), strict=True):
            for cell in range(int(start / size), min(CELLS, int(stop / size) + 1)):
                filled[cell][tone] += max(0.0, min(float(stop), (cell + 1) * size) - max(float(start), cell * size))
        end = hold.at + hold.asked
    tones = [amounts.index(max(amounts)) for amounts in filled]
    cuts = [i for i in range(CELLS) if i == 0 or tones[i] != tones[i - 1]]
    return [(i * size, j * size, tones[i]) for i, j in pairwise([*cuts, CELLS])]


@calculator(
    title="连续分配和分页",
    question="同一批请求、同一个 KV 池，换一种分法，能同时跑几个？",
    chapter="16",
    inputs=(
        integer("pool_tokens", "KV 池", 15728, "token", low=2048, high=65536, kind="tokens", stops=(2048, 4096, 8192, 15728, 24576, 32768, 49152, 65536), help="12 GiB 装 OPT-13B 的 15,728 个 token"),
        number("output_mean", "平均输出", 338, "token", low=1, high=1024, stops=(19, 58, 100, 200, 338, 500, 700, 1024), help="均值照 ShareGPT 估的（未核实）"),
        choice("max_len", "一条最长", 2048, (256, 512, 1024, 2048, 4096, 8192), "token"),
        flag("buddy", "伙伴分配器", True, help="关掉：只数空槽，不管洞在哪"),
        number("moment_pct", "看哪一刻", 50, "%", low=0, high=100, stops=linear_stops(0, 100, 5), help="地图画有人排队那段时间里的这一刻"),
        integer("n_requests", "请求数", 200, low=10, high=500, kind="count", more=True, stops=(10, 50, 100, 200, 300, 500)),
        number("prompt_mean", "平均提示", 161, "token", low=1, high=1024, more=True, stops=(19, 58, 100, 161, 300, 500, 1024)),
        number("sigma", "长短悬殊的程度", 1.0, low=0.1, high=2, more=True, stops=linear_stops(0.1, 2, 0.1), help="对数正态的 σ"),
        integer("block_size", "一块几个 token", 16, "token", low=1, high=256, more=True, stops=(1, *powers_of_two(2, 256))),
        integer("seed", "随机种子", 0, low=0, high=1_000_000, more=True, stops=(0, 1, 2, 3, 4, 5)),
    ),
    outputs=(
        Output("util_max_pct", "按最长预留，有用的", "%", main=True, agreement="band"),
        Output("util_pow2_pct", "预留到 2 的幂", "%", agreement="band"),
        Output("util_oracle_pct", "神谕", "%", agreement="band"),
        Output("util_paged_pct", "分页，有用的", "%", main=True, agreement="band"),
        Output("batch_max", "按最长预留，同时在跑", "request", main=True, agreement="band"),
        Output("batch_pow2", "预留到 2 的幂", "request", agreement="band"),
        Output("batch_oracle", "神谕", "request", agreement="band"),
        Output("batch_paged", "分页，同时在跑", "request", main=True, agreement="band"),
        Output("preemptions", "分页抢占了几次", agreement="band"),
    ),
    chart=_chart,
    needs=("numpy",),
    formula=(
        "预留：最长；提示 + 2^⌈log₂ 输出⌉；提示 + 输出（要预知输出）",
        "伙伴分配器：要的槽凑到 2 的幂，取最小的够大的空块，对半切；还回来和伙伴合并",
        "分页：每 16 步按 ⌈(提示 + 已生成) ÷ 块长⌉ 拿块；没块了，把最晚进来的赶回队首",
    ),
    assumptions=("所有请求 t = 0 就到，先来先进，每步每条出一个 token", "长度是对数正态，各在一条最长的一半处截断；被赶走的重算不要钱"),
    leaves_out="论文那次每秒来 2 个请求，没有打满，所以分页的 batch 比这里小。只统计有人排队的时间。",
    sources=("Kwon et al. 2023（PagedAttention）Fig. 2：20.4 / 26.8 / 38.2 / 96.3 %；Fig. 13：7.00 / 9.81 / 13.62 / 30.42", "numpy.random.default_rng(seed).lognormal"),
)  # fmt: skip
def paged_sim(
    *, seed: int, n_requests: int, prompt_mean: float, output_mean: float, sigma: float, pool_tokens: int, max_len: int, block_size: int, buddy: bool, moment_pct: float
) -> Result:  # fmt: skip
    """Four policies over one pool; shares are averages over the time in which somebody waits."""
    if max_len > pool_tokens // block_size * block_size:
        whole = format_number(pool_tokens // block_size * block_size)
        raise refuse("max_len", "KV 池至少要装下一条最长的", f"整块只有 {whole} < {format_number(max_len)}", "把一条最长调小，或把池子调大")
    requests = draw(seed, n_requests, prompt_mean, output_mean, sigma, max_len // 2)
    films = {p: contiguous(requests, p, pool_tokens, max_len, buddy) for p in ("max", "pow2", "oracle")}
    films["paged"] = paged(requests, pool_tokens, block_size)
    w = Worked()
    mean = sum(r.whole for r in requests) / len(requests)
    w.say(f"抽 {n_requests} 条 → 平均 {format_number(mean)} token")
    values: dict[str, float | int | None] = {"preemptions": films["paged"].preemptions}
    for policy, film in films.items():
        useful = None if film.shares is None else 100 * film.shares[0]
        values[f"util_{policy}_pct"], values[f"batch_{policy}"] = useful, film.batch
        told = "没有人排过队" if useful is None or film.batch is None else f"有用 {quantity(useful, '%', 4).text}，同时 {format_number(film.batch)} 个"
        w.say(f"{POLICIES[policy]}：模拟 → {told}")
    w.line("按最长预留，最多同时", quantity(pool_tokens // max_len * max_len, "token") / quantity(max_len, "token"))
    return Result(values=values, lines=w.lines, verdict=_verdict(films), trace=Films(films, pool_tokens))


def _verdict(films: dict[str, Film]) -> str:
    first, last = films["max"], films["paged"]
    if first.shares is None or first.batch is None:
        return "池子大到没有人排队，怎么分都一样：加请求，或把池子调小，才看得出差别。"
    start = f"按最长预留，池子只有 {format_number(100 * first.shares[0], digits=3)}% 真存着 token，同时跑 {format_number(first.batch, digits=3)} 个"
    if last.shares is None or last.batch is None:
        return f"{start}；分页全装下，没有人排队。"
    end = f"分页用上 {format_number(100 * last.shares[0], digits=3)}%，同时跑 {format_number(last.batch, digits=3)} 个"
    cost = f"代价是抢占 {last.preemptions} 次，被赶走的要重算。" if last.preemptions else "这一次没有抢占。"
    return f"{start}；{end}。{cost}"
