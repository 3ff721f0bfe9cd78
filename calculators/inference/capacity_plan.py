"""How many cards does a day's traffic need, and what decides it: memory, latency or arithmetic?"""

from __future__ import annotations

from dataclasses import dataclass, replace

from calculators.catalog import Accelerator, Model, gpu_input, model_input
from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Chart, LineChart, Mark, Series
from calculators.core.errors import refuse
from calculators.core.inputs import choice, integer, linear_stops, log_stops, number, powers_of_two
from calculators.core.numbers import format_number
from calculators.core.units import DAY, GB, GIB
from calculators.core.worked import Quantity, Worked, ceil, quantity
from calculators.formulas.capacity import Plan, Replica, effective_tpot, plan, request_seconds, without_slo
from calculators.formulas.inference import Engine, capacity_bytes, largest_true, shape_of
from calculators.formulas.serving import arrival_per_s

HOURS_A_MONTH = 720
OUTPUTS = (10, 20, 40, 60, 100, 150, 200, 300, 500, 800, 1000)


@dataclass(frozen=True)
class Way:
    """The inputs that a preset sets."""

    n_gpu_per_replica: int = 2
    active_gpus: int = 0
    weight_bytes: float = 1.0
    math_factor: float = 2.0
    batch_cap: int = 0
    tpot_slo_s: float = 0.1
    scheduling: str = "continuous"
    length_dist: str = "equal"
    mfu: float = 0.5
    mbu: float = 0.8


WAYS = {
    "w8a8": Way(),
    "naive": Way(n_gpu_per_replica=4, weight_bytes=2.0, math_factor=1.0, scheduling="static", batch_cap=12),
    "w8a16": Way(math_factor=1.0),
    "hf-device-map": Way(
        active_gpus=1, weight_bytes=2.0, math_factor=1.0, scheduling="static", batch_cap=32, length_dist="exponential", tpot_slo_s=0.0, mfu=0.3, mbu=0.6
    ),
}
LABELS = {"w8a8": "W8A8，连续批", "naive": "朴素（BF16，静态批）", "w8a16": "W8A16，连续批", "hf-device-map": "逐层轮流（device_map）"}


def replica_of(way: Way, model: Model, gpu: Accelerator, gpu_util: float, other_gib: float) -> Replica:
    """What the way makes of these cards; the pool may come out negative."""
    working = way.active_gpus or way.n_gpu_per_replica
    engine = Engine(working * gpu.dense_flops * way.math_factor * way.mfu, working * gpu.hbm_bytes_per_s * way.mbu, way.weight_bytes, 2.0)
    pool = way.n_gpu_per_replica * (capacity_bytes(gpu) * gpu_util - other_gib * GIB) - model.total_params * way.weight_bytes
    waits = way.scheduling == "static" and way.length_dist == "exponential"
    return Replica(shape_of(model), engine, pool, way.batch_cap, way.tpot_slo_s, waits)


@dataclass(frozen=True)
class Trace:
    """What the chart needs: the reader's own way, and the load."""

    way: Way
    model: Model
    gpu: Accelerator
    gpu_util: float
    other_gib: float
    arrival: float
    prompt: int

    def cards(self, way: Way, output: int) -> int | None:
        """Cards for this output length; None where it cannot be served."""
        replica = replica_of(way, self.model, self.gpu, self.gpu_util, self.other_gib)
        found = plan(replica, self.prompt, output) if replica.pool_bytes > 0 else None
        return None if found is None or not found.batch else int(ceil(self.arrival * found.seconds)) * way.n_gpu_per_replica


def _chart(run: Run, *, output_tokens: int, **_: object) -> tuple[Chart, ...]:
    t = run.result.trace
    assert isinstance(t, Trace)
    ways = {LABELS[name]: way for name, way in WAYS.items() if way != t.way} | {"你的": t.way}
    lines = []
    for name, way in ways.items():
        points = [(float(o), c) for o in OUTPUTS if (c := t.cards(way, o)) is not None]
        if len(points) > 1:
            lines.append(Series(name, tuple((x, float(y)) for x, y in points), emphasis=name == "你的"))
    mine = float(run.values["gpus"])  # type: ignore[arg-type]
    if not lines:
        return ()
    return (
        LineChart(
            "输出越长，卡越多",
            "流量、提示、模型和卡都按你填的；纵轴是对数。断掉的线：再长就放不下或守不住 TPOT。",
            Axis("输出长度", "token"),
            Axis("卡数", "卡", log=True),
            tuple(lines),
            (Mark("现在", float(output_tokens), mine, emphasis=True),) if output_tokens <= OUTPUTS[-1] else (),
        ),
    )


@calculator(
    title="多少张卡",
    question="每天这么多请求、这样的长度和延迟上限：要几个副本、几张卡、多少钱？",
    chapter="20",
    inputs=(
        choice("preset", "做法", "w8a8", tuple(WAYS), labels=LABELS, help="先填好「更多」里的一串；你填的优先"),
        number("requests_per_day", "每天请求数", 1e7, "1/day", low=1, high=1e12, kind="count", stops=log_stops(1e4, 1e9, 3)),
        number("peak_factor", "高峰是平均的", 1.0, "×", low=0.1, high=20, more=True, stops=linear_stops(1, 10, 0.5)),
        integer("prompt_tokens", "提示长度", 200, "token", low=1, high=1_000_000, kind="tokens", stops=(50, 100, 200, 500, 1000, 2000, 4000, 8000)),
        integer("output_tokens", "输出长度", 100, "token", low=1, high=100_000, kind="tokens", stops=(20, 50, 100, 200, 500, 1000, 2000)),
        gpu_input("a100-80gb"),
        model_input("llama-3-70b", where=lambda m: m.is_dense and m.mla is None, more=True, help="只算稠密模型"),
        integer("n_gpu_per_replica", "每副本卡数", None, "卡", low=1, high=64, more=True, stops=powers_of_two(1, 64), help="留空：按做法"),
        integer("active_gpus", "同时干活的卡", None, "卡", low=0, high=64, more=True, help="0：全部；1：层摊在各卡、一次只有一张在算。留空：按做法"),
        number("weight_bytes", "每参数字节", None, "B", low=0.5, high=2, more=True, stops=(0.5, 1, 2), help="留空：按做法"),
        number("math_factor", "算力是 BF16 的", None, "×", low=1, high=4, more=True, stops=(1, 2, 4), help="INT8、FP8 填 2。留空：按做法"),
        integer("batch_cap", "batch 上限", None, low=0, high=1_000_000, more=True, help="0：不设。留空：按做法"),
        number("tpot_slo_s", "TPOT 上限", None, "s", low=0, high=1000, more=True, stops=(0, 0.015, 0.02, 0.03, 0.04, 0.05, 0.08, 0.1, 0.2), help="0：不设。留空：按做法"),
        choice("scheduling", "批处理", "by-preset", ("by-preset", "continuous", "static"), labels={"by-preset": "按做法", "continuous": "连续批", "static": "静态批"}, more=True),
        choice("length_dist", "输出长短", "by-preset", ("by-preset", "equal", "exponential"), labels={"by-preset": "按做法", "equal": "一样长", "exponential": "指数"}, more=True, help="只影响静态批"),
        number("mfu", "算力利用率", None, low=0.05, high=1, kind="fraction", more=True, stops=linear_stops(0.05, 1, 0.05), help="留空：按做法"),
        number("mbu", "带宽利用率", None, low=0.05, high=1, kind="fraction", more=True, stops=linear_stops(0.05, 1, 0.05), help="留空：按做法"),
        number("gpu_util", "显存用到几成", 0.92, low=0.1, high=0.98, kind="fraction", more=True, stops=linear_stops(0.5, 0.98, 0.02)),
        number("other_gib", "每卡其他占用", 3, "GiB", low=0, high=20, more=True, stops=linear_stops(0, 10, 1), help="激活和框架，第 16 章"),
        number("target_util", "目标利用率", 0.65, low=0.1, high=1, kind="fraction", more=True, stops=linear_stops(0.3, 1, 0.05), help="给 P99 留的余量：0.6–0.7；1 是不留"),
        number("gpu_price_per_h", "租金", 27.78, "元/卡·时", low=0.1, high=500, kind="money", stops=(5, 10, 15, 20, 27.78, 40, 60, 100), help="一个假设，约合 2 万元/卡/月；填你的报价"),
    ),
    outputs=(
        Output("gpus", "卡数", "卡", main=True),
        Output("replicas", "副本"),
        Output("gpus_headroom", "留出余量后的卡数", "卡", main=True),
        Output("cost_per_month", "每月（720 小时）", "元", main=True, digits=6),
        Output("cost_per_mtok_out", "每百万输出 token", "元/Mtok", main=True),
        Output("arrival_per_s", "每秒请求", "request/s"),
        Output("req_s_per_replica", "每副本", "request/s"),
        Output("batch_kv_max", "KV 池放得下", "request"),
        Output("batch", "batch", "request", main=True),
        Output("step_ms", "解码一步", "ms"),
        Output("prefill_ms", "prefill", "ms"),
        Output("effective_tpot_ms", "prefill 同卡时的 TPOT", "ms", main=True),
        Output("batch_shared", "同卡也守得住 TPOT 的 batch", "request"),
    ),
    chart=_chart,
    formula=(
        "池 = 卡数 × (显存 × 几成 − 其他) − 权重；batch = 池、上限、TPOT 三者里最小的",
        "每请求占副本 = prefill + 输出 × k × 一步 ÷ batch；k：静态批等最长的，输出长短不一时是 H_B，否则 1",
        "卡数 = ⌈每秒请求 × 每请求占副本⌉ × 每副本卡数；留余量的：⌈每秒请求 × 每请求占副本 ÷ 目标利用率⌉ × 每副本卡数",
    ),
    assumptions=("TPOT 上限只管纯解码的一步：prefill 在别处时才照样成立", "KV 存 16 位；解码的一步按输出过半时的上下文算"),
    leaves_out="「卡数」和钱不留 P99 的余量，余量另算一行；不算 TP 通信和故障：误差 ±50%。",
    sources=("两阶段的时间：第 15 章；H_B：第 17 章", "租金是假设：100 张 A100 每月 200 万元"),
)  # fmt: skip
def capacity_plan(
    *, preset: str, requests_per_day: float, peak_factor: float, prompt_tokens: int, output_tokens: int, gpu: Accelerator, model: Model,
    n_gpu_per_replica: int | None, active_gpus: int | None, weight_bytes: float | None, math_factor: float | None, batch_cap: int | None,
    tpot_slo_s: float | None, scheduling: str, length_dist: str, mfu: float | None, mbu: float | None, gpu_util: float, other_gib: float,
    target_util: float, gpu_price_per_h: float,
) -> Result:  # fmt: skip
    """Replicas = arrivals × replica time per request."""
    base = WAYS[preset]
    numbers = {
        "n_gpu_per_replica": n_gpu_per_replica, "active_gpus": active_gpus, "weight_bytes": weight_bytes, "math_factor": math_factor,
        "batch_cap": batch_cap, "tpot_slo_s": tpot_slo_s, "mfu": mfu, "mbu": mbu,
    }  # fmt: skip
    way = replace(base, **{k: v for k, v in numbers.items() if v is not None})  # type: ignore[arg-type]
    way = replace(
        way,
        scheduling=base.scheduling if scheduling == "by-preset" else scheduling,
        length_dist=base.length_dist if length_dist == "by-preset" else length_dist,
    )
    if way.active_gpus > way.n_gpu_per_replica:
        raise refuse("active_gpus", "同时干活的卡不能多过每副本的卡", f"{way.active_gpus} > {way.n_gpu_per_replica}", "填 0 表示全部")
    replica = replica_of(way, model, gpu, gpu_util, other_gib)
    found = _checked(replica, way, gpu, model, prompt_tokens, output_tokens)
    w = Worked()
    arrival = w.line("每秒请求", arrival_per_s(quantity(requests_per_day, "request", 12), quantity(DAY, "s"), quantity(peak_factor, "", 12)), "request/s", 8)
    w.say(f"KV 池 {format_number(replica.pool_bytes / GB)} GB，放得下 → {found.batch_kv_max} 条")
    w.say(f"池、上限、TPOT 里最小的 batch → {found.batch}")
    step, prefill = quantity(1e3 * found.step_s, "ms", 8), quantity(1e3 * found.prefill_s, "ms", 8)
    w.say(f"解码一步 → {step.text}；一条 prefill → {prefill.text}")
    per = w.line("每请求占副本", request_seconds(prefill, quantity(output_tokens), quantity(found.stretch, "", 8), step, quantity(found.batch, "", 8)), "ms", 8)
    rate = w.line("每副本", quantity(1, "request") / per, "request/s")
    busy = w.line("忙着的副本", arrival * per / quantity(1, "request"), "", 8)
    replicas = w.line("副本", ceil(busy), "", 13)
    cards = w.line("卡数", replicas * quantity(way.n_gpu_per_replica, "卡"), "卡", 13)
    roomy = w.line("留余量的副本", ceil(busy / quantity(target_util)), "", 13)
    ordered = w.line("留出余量后的卡数", roomy * quantity(way.n_gpu_per_replica, "卡"), "卡", 13)
    price = quantity(gpu_price_per_h, "元", 12)
    count = quantity(cards.value, "", 13)
    month = w.line("每月", count * price * quantity(HOURS_A_MONTH), "元", 6)
    mtok = w.line("一天的输出（百万 token）", quantity(requests_per_day, "", 12) * quantity(output_tokens) / quantity(1e6), "", 8)
    each = w.line("每百万输出 token", count * price * quantity(24) / mtok, "元")
    shared_tpot = w.line("prefill 同卡时的 TPOT", effective_tpot(quantity(found.batch, "", 8), per, quantity(output_tokens)), "ms")
    shared = _shared_batch(replica, way, found, prompt_tokens, output_tokens)
    return Result(
        values={
            "gpus": int(cards.value), "replicas": int(replicas.value), "gpus_headroom": int(ordered.value), "cost_per_month": month, "cost_per_mtok_out": each.value, "arrival_per_s": arrival,
            "req_s_per_replica": rate, "batch_kv_max": found.batch_kv_max, "batch": found.batch, "step_ms": step, "prefill_ms": prefill,
            "effective_tpot_ms": shared_tpot, "batch_shared": shared,
        },
        lines=w.lines,
        verdict=_verdict(int(cards.value), int(ordered.value), month, found, way, shared_tpot, shared),
        resolved={name: getattr(way, name) for name in numbers},
        trace=Trace(way, model, gpu, gpu_util, other_gib, arrival.value, prompt_tokens),
    )  # fmt: skip


def _checked(replica: Replica, way: Way, gpu: Accelerator, model: Model, prompt: int, output: int) -> Plan:
    if replica.pool_bytes <= 0:
        have = way.n_gpu_per_replica * capacity_bytes(gpu) / GB
        raise refuse(
            "n_gpu_per_replica", "权重和其他占用装满了显存，没有地方放 KV",
            f"权重 {format_number(model.total_params * way.weight_bytes / GB)} GB，{way.n_gpu_per_replica} 张卡共 {format_number(have)} GB",
            "加每副本的卡，或减每参数字节",
        )  # fmt: skip
    found = plan(replica, prompt, output)
    if found.batch_kv_max < 1:
        raise refuse("prompt_tokens", "KV 池连一条请求都放不下", f"{prompt} + {output} token", "缩短提示或输出，或加每副本的卡")
    if found.batch < 1:
        raise refuse("tpot_slo_s", "TPOT 上限连 batch 1 都守不住", f"一步要 {format_number(found.step_s)} s", "放宽上限、加每副本的卡，或减每参数字节")
    return found


def _shared_batch(replica: Replica, way: Way, found: Plan, prompt: int, output: int) -> int | None:
    """Largest batch whose TPOT holds with prefills on the same cards; None without a limit."""
    if not way.tpot_slo_s:
        return None

    def holds(batch: int) -> bool:
        return effective_tpot(float(batch), plan(without_slo(replica, batch), prompt, output).seconds, float(output)) <= way.tpot_slo_s

    return largest_true(holds, 1, found.batch)


def _verdict(cards: int, ordered: int, month: Quantity, found: Plan, way: Way, shared_tpot: Quantity, shared: int | None) -> str:
    head = f"刚好够要 {format_number(cards)} 张卡，每月 {quantity(month.value, '元', 4).text}；给 P99 留出余量，要 {format_number(ordered)} 张。"
    head += f"每副本 batch {found.batch}，一步 {quantity(1e3 * found.step_s, 'ms', 4).text}。"
    if shared is None or shared == found.batch:
        return head
    slo = format_number(1e3 * way.tpot_slo_s)
    head += f"prefill 也在这些卡上时，每个人其实 {shared_tpot.text} 才一个 token，超过 {slo} ms："
    return head + (f"要守住，batch 只能开到 {shared}，或把 prefill 分出去。" if shared else "怎么调 batch 都守不住，要把 prefill 分出去。")
