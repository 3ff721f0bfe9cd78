"""A live experiment: one replica under random arrivals; how many requests keep both promises, and how fast may they come?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from calculators.catalog import Accelerator, Model, gpu_input, model_input
from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Chart, LineChart, Mark, Rule, Series
from calculators.core.errors import refuse
from calculators.core.inputs import choice, flag, integer, linear_stops, log_stops, number, powers_of_two
from calculators.core.numbers import format_number
from calculators.core.worked import Quantity, Worked, quantity
from calculators.formulas.inference import shape_of
from calculators.formulas.replica import Request, Served, StepCost, goodput, simulate

RATES = tuple(range(6, 31, 2))
"""Request rates of the sweep."""
SWEEP_REQUESTS = 2000
"""Most requests at each rate of the sweep: 26 runs stay below a second."""
LONG_ENOUGH = 1000
"""Arrivals below which overload does not have the time to show."""
LONGEST_REQUEST = 8192 + 2048
MOST_POINTS = 150
GOOD_PCT = 99.0
"""Share inside both limits above which nothing needs to be done."""
NAMES = {"prefill-first": "先做 prefill", "chunked": "切块"}


@dataclass(frozen=True)
class Score:
    """One run against the limits."""

    ttft: list[float]
    tpot: list[float]
    attained_pct: float
    output_tok_s: float


@dataclass(frozen=True)
class Trace:
    """The run at the reader's rate, and (rate, %, token/s) of each policy when swept."""

    arrivals: list[float]
    score: Score
    sweeps: dict[str, list[tuple[float, float, float]]]


def arrivals(rate: float, n: int, seed: int) -> list[Request]:
    """Poisson arrivals; prompts lognormal (σ 0.8, mean near 1024), outputs exponential (mean 200)."""
    import numpy as np

    rng = np.random.default_rng(seed)
    times = np.cumsum(rng.exponential(1 / rate, n))
    prompts = np.clip(rng.lognormal(np.log(1024) - 0.32, 0.8, n).astype(int), 16, 8192)
    outputs = np.clip(np.ceil(rng.exponential(200, n)), 2, 2048).astype(int)
    return [Request(float(t), int(p), int(o)) for t, p, o in zip(times.tolist(), prompts.tolist(), outputs.tolist(), strict=True)]


@lru_cache(maxsize=2 * len(RATES) + 2)
def played(rate: float, n: int, seed: int, cost: StepCost, pool: int, chunked: bool, budget: int, max_prefill: int) -> tuple[list[Request], list[Served]]:
    """One run.  Kept, because a change of limit, policy or rate asks for the same sweep again."""
    requests = arrivals(rate, n, seed)
    return requests, simulate(requests, cost, pool, chunked=chunked, budget=budget, max_prefill=max_prefill)


def score(requests: Sequence[Request], served: Sequence[Served], slo_ttft_s: float, slo_tpot_s: float) -> Score:
    """TTFT and TPOT of every request, and the share inside both limits."""
    ttft = [s.first - r.arrival for r, s in zip(requests, served, strict=True)]
    tpot = [(s.finish - s.first) / (r.output - 1) for r, s in zip(requests, served, strict=True)]
    good = sum(a <= slo_ttft_s and b <= slo_tpot_s for a, b in zip(ttft, tpot, strict=True))
    return Score(ttft, tpot, 100 * good / len(requests), sum(r.output for r in requests) / max(s.finish for s in served))


def percentile(values: Sequence[float], q: float) -> float:
    """Linear interpolation, numpy's default."""
    import numpy as np

    return float(np.percentile(np.asarray(values), q))


def _chart(run: Run, *, slo_ttft_s: float, policy: str, rate_per_s: float, **_: object) -> tuple[Chart, ...]:
    t = run.result.trace
    assert isinstance(t, Trace)
    every = -(-len(t.arrivals) // MOST_POINTS)
    points = [(t.arrivals[i], max(t.score.ttft[i : i + every])) for i in range(0, len(t.arrivals), every)]
    charts: list[Chart] = [
        LineChart(
            "等第一个 token 等了多久",
            "横轴是到达时刻，每个点取附近几个请求里最久的。越走越高，就是队列在无限变长；跑得太短看不出来。",
            Axis("到达时刻", "s", low=0),
            Axis("TTFT", "s", low=0),
            (Series("TTFT", tuple(points), emphasis=True),),
            rules=(Rule(f"SLO {format_number(slo_ttft_s)} s", y=slo_ttft_s),),
        )
    ]
    if t.sweeps:
        axis = Axis("请求率", "request/s")
        here = (Mark("现在", rate_per_s, t.score.attained_pct, emphasis=True),) if RATES[0] <= rate_per_s <= RATES[-1] else ()
        charts += [
            LineChart(
                "守住 SLO 的请求",
                "曲线掉到横线以下，就过了守住 90% 的 goodput。两种调度分开得越远，切块越值。",
                axis,
                Axis("守住两条上限", "%", low=0, high=100),
                tuple(Series(NAMES[p], tuple((r, a) for r, a, _ in rows), emphasis=p == policy) for p, rows in t.sweeps.items()),
                here,
                (Rule("90%", y=90.0),),
            ),
            LineChart(
                "吞吐还在涨",
                "同一批运行：goodput 塌了以后，吞吐还在涨。只看吞吐，看不出出了事。",
                axis,
                Axis("输出", "token/s", low=0),
                tuple(Series(NAMES[p], tuple((r, s) for r, _, s in rows), emphasis=p == policy) for p, rows in t.sweeps.items()),
            ),
        ]
    return tuple(charts)


@calculator(
    title="goodput 模拟器",
    question="请求随机到达，一个副本能接多快，还守得住 TTFT 和 TPOT？",
    chapter="20",
    needs=("numpy",),
    inputs=(
        number("rate_per_s", "请求率", 20, "request/s", low=0.5, high=100, stops=(1, 2, 4, *RATES, 40, 60, 100)),
        choice("policy", "调度", "chunked", ("prefill-first", "chunked"), labels=NAMES),
        integer("n_requests", "跑多少个请求", 2000, low=100, high=5000, stops=(100, 200, 500, 1000, 2000, 5000)),
        number("slo_ttft_s", "TTFT 上限", 0.5, "s", low=0.01, high=100, stops=(0.1, 0.2, 0.3, 0.5, 1, 2, 5)),
        number("slo_tpot_ms", "TPOT 上限", 30, "ms", low=1, high=1000, stops=(10, 15, 20, 30, 40, 50, 100, 200)),
        integer("seed", "随机种子", 0, low=0, high=99, more=True, stops=linear_stops(0, 9, 1)),
        integer("token_budget", "切块：每步的 token 预算", 512, "token", low=64, high=8192, more=True, stops=powers_of_two(64, 8192), only_if=("policy", ("chunked",))),
        integer("max_prefill_tokens", "先做 prefill：一次最多", 8192, "token", low=64, high=65536, more=True, stops=powers_of_two(64, 65536), only_if=("policy", ("prefill-first",))),
        integer("kv_pool_tokens", "KV 池", 455_808, "token", low=11_000, high=100_000_000, more=True, stops=log_stops(11_000, 10_000_000, 4), help="Llama-3-8B、一张 H100 的池（第 16 章）；换模型或卡，这里也要换"),
        model_input(where=lambda m: m.is_dense and m.mla is None and not m.sliding_window, more=True),
        gpu_input(more=True),
        number("mfu", "算力利用率", 0.5, low=0.05, high=1, kind="fraction", more=True, stops=linear_stops(0.05, 1, 0.05)),
        number("mbu", "带宽利用率", 0.8, low=0.05, high=1, kind="fraction", more=True, stops=linear_stops(0.05, 1, 0.05)),
        flag("sweep", "再跑一遍各种请求率", False, more=True, help="6 到 30 请求/s、两种调度，每点最多 2000 个请求"),
    ),
    outputs=(
        Output("attainment_pct", "两条上限都守住", "%", main=True, agreement="band"),
        Output("ttft_p99_s", "TTFT P99", "s", main=True, agreement="band"),
        Output("tpot_p50_ms", "TPOT P50", "ms", agreement="band"),
        Output("tpot_p99_ms", "TPOT P99", "ms", main=True, agreement="band"),
        Output("output_tok_s", "输出吞吐", "token/s", main=True, agreement="band"),
        Output("attainment_sweep_pct", "各请求率守住的", "%", agreement="band"),
        Output("goodput_90_req_s", "守住 90% 的最大请求率", "request/s", agreement="band"),
        Output("goodput_99_req_s", "守住 99% 的最大请求率", "request/s", agreement="band"),
        Output("mean_prompt_tokens", "这批请求平均输入", "token", agreement="band"),
        Output("mean_output_tokens", "这批请求平均输出", "token", agreement="band"),
        Output("full_step_ms", "切块：预算用满的一步", "ms"),
        Output("ceiling_req_s", "切块：请求率的天花板", "request/s", agreement="band"),
    ),
    chart=_chart,
    formula=(
        "一步 = max((读权重 + 读 KV) ÷ 有效带宽，(2N × 这一步的 token + attention) ÷ 有效算力)",
        "TTFT = 第一个 token − 到达；TPOT = (最后 − 第一个) ÷ (输出 − 1)",
        "goodput = 守住两条上限的请求达到目标比例的最大请求率",
        "切块的天花板 = 每步的 token 预算 ÷ 用满的一步 ÷ (平均输入 + 平均输出)；那一步不算 attention，所以是上界",
    ),
    assumptions=("到达是泊松过程；输入对数正态、约 1024，输出指数、平均 200", "先到先服务；进场时按提示加输出预留 KV"),
    leaves_out="不算提示自己的 attention（2048 token 时 3.5%）、调度和采样的开销。MFU、MBU 是假设：看相对高低，别把请求率当基准。",
    sources=("步的时间：第 15、17 章", "Zhong et al. 2024（DistServe）：goodput 的定义", "Agrawal et al. 2024（Sarathi-Serve）：切块"),
)  # fmt: skip
def goodput_sim(
    *, rate_per_s: float, policy: str, n_requests: int, slo_ttft_s: float, slo_tpot_ms: float, seed: int, token_budget: int, max_prefill_tokens: int,
    kv_pool_tokens: int, model: Model, gpu: Accelerator, mfu: float, mbu: float, sweep: bool,
) -> Result:  # fmt: skip
    """Simulate, score, and when asked sweep the rates for both policies."""
    if kv_pool_tokens < LONGEST_REQUEST:
        raise refuse("kv_pool_tokens", "KV 池放不下最长的一条", f"{kv_pool_tokens} < {LONGEST_REQUEST} token", "调大 KV 池")
    shape, flops, bandwidth = shape_of(model), gpu.dense_flops * mfu, gpu.hbm_bytes_per_s * mbu
    cost = StepCost(
        2 * shape.matmul_params / bandwidth, model.kv_bytes_per_token / bandwidth, 2 * shape.matmul_params / flops, 2 * sum(shape.scores.values()) / flops
    )

    def play(rate: float, how: str, n: int) -> tuple[list[Request], Score]:
        requests, served = played(rate, n, seed, cost, kv_pool_tokens, how == "chunked", token_budget, max_prefill_tokens)
        return requests, score(requests, served, slo_ttft_s, slo_tpot_ms / 1e3)

    requests, mine = play(rate_per_s, policy, n_requests)
    sweeps: dict[str, list[tuple[float, float, float]]] = {}
    for how in NAMES if sweep else ():
        sweeps[how] = [(float(r), s.attained_pct, s.output_tok_s) for r in RATES for _, s in (play(float(r), how, min(n_requests, SWEEP_REQUESTS)),)]
    attained = [a for _, a, _ in sweeps[policy]] if sweep else None
    at_90, at_99 = (goodput(RATES, attained, target) if attained else None for target in (90.0, 99.0))
    ttft, tpot50, tpot99 = percentile(mine.ttft, 99), 1e3 * percentile(mine.tpot, 50), 1e3 * percentile(mine.tpot, 99)
    w = Worked()
    w.say(f"到达 {n_requests} 个请求，历时 → {quantity(requests[-1].arrival, 's', 4).text}")
    w.say(f"TTFT P99 → {quantity(ttft, 's', 4).text}；TPOT P50、P99 → {quantity(tpot50, 'ms', 4).text}、{quantity(tpot99, 'ms', 4).text}")
    w.say(f"两条上限都守住 → {format_number(mine.attained_pct, digits=4)}%")
    prompt, output = (quantity(sum(lengths) / n_requests, "token", 8) for lengths in ([r.prompt for r in requests], [r.output for r in requests]))
    ceiling = full_step = None
    if policy == "chunked":
        budget, full_step = quantity(token_budget, "token"), quantity(1e3 * cost.seconds(token_budget, 0), "ms", 6)
        each = w.line("平均一条的 token", prompt + output, "token", 8)
        ceiling = w.line("请求率的天花板", quantity(1, "request") * (budget / full_step / each), "request/s")
    return Result(
        values={
            "attainment_pct": mine.attained_pct, "ttft_p99_s": ttft, "tpot_p50_ms": tpot50, "tpot_p99_ms": tpot99, "output_tok_s": mine.output_tok_s,
            "attainment_sweep_pct": attained, "goodput_90_req_s": at_90, "goodput_99_req_s": at_99,
            "mean_prompt_tokens": prompt, "mean_output_tokens": output, "full_step_ms": full_step, "ceiling_req_s": ceiling,
        },
        lines=w.lines,
        verdict=_verdict(mine, rate_per_s, n_requests, slo_ttft_s, slo_tpot_ms, ceiling) + (_swept(attained, at_90, at_99) if attained else ""),
        trace=Trace([r.arrival for r in requests], mine, sweeps),
    )  # fmt: skip


def _verdict(mine: Score, rate: float, n: int, slo_ttft_s: float, slo_tpot_ms: float, ceiling: Quantity | None) -> str:
    head = f"{format_number(rate)} 请求/s：{format_number(mine.attained_pct, digits=4)}% 的请求两条上限都守住，吞吐 {format_number(mine.output_tok_s, digits=4)} token/s。"
    short = "不过跑得太短，看不到排队：至少跑 1000 个请求。" if n < LONG_ENOUGH else ""
    if ceiling is not None and rate > ceiling.value:
        return head + f"请求率超过天花板 {ceiling.text}，队列只会越来越长：加副本。" + short
    if mine.attained_pct >= GOOD_PCT:
        return head + short
    late = sum(t > slo_ttft_s for t in mine.ttft)
    slow = sum(t > slo_tpot_ms / 1e3 for t in mine.tpot)
    why = "第一个 token 等太久（TTFT）：加副本，或少接一些" if late >= slow else "出字太慢（TPOT）：切块、调小每步的预算，或加副本"
    return head + f"没守住的主要是{why}。" + short


def _swept(attained: Sequence[float], at_90: float | None, at_99: float | None) -> str:
    """What the sweep found, in words."""

    def most(rate: float | None, target: float) -> str:
        if rate is None:
            return f"守住 {target:.0f}%：{RATES[0]} 请求/s 也接不住"
        return f"守住 {target:.0f}% {'至少' if attained[-1] >= target else '最多'} {format_number(rate, digits=3)} 请求/s"

    return f"扫一遍请求率：{most(at_90, 90)}，{most(at_99, 99)}。"
