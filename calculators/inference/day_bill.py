"""Do the published numbers of one day of a production service agree with each other, and what did the day cost?"""

from __future__ import annotations

from calculators.core.calculator import Output, Result, Row, calculator
from calculators.core.errors import refuse
from calculators.core.inputs import integer, number
from calculators.core.units import DAY
from calculators.core.worked import Quantity, Worked, quantity
from calculators.formulas.price import cost_per_mtok, day_cost, input_price

PUBLISHED = (
    ("每天成本（$）", "cost_per_day", 87_072.0),
    ("每天理论收入（$）", "revenue_per_day", 562_027.0),
    ("成本利润率（%）", "margin_pct", 545.0),
    ("缓存命中（%）", "hit_pct", 56.3),
    ("平均节点", "total_nodes", 226.75),
)
"""open-infra-index day 6: label, our output, their number."""
AGREES = 0.01


@calculator(
    title="一天的账：DeepSeek 公开数据对账",
    question="公开的一天流量、速率、节点数和收入，彼此对得上吗？",
    chapter="20",
    inputs=(
        number("input_tokens", "一天的输入", 608e9, "token", low=0, high=1e16, kind="count"),
        number("hit_tokens", "其中缓存命中", 342e9, "token", low=0, high=1e16, kind="count"),
        number("output_tokens", "一天的输出", 168e9, "token", low=0, high=1e16, kind="count"),
        number("avg_nodes", "平均节点数", 226.75, "台", low=0.01, high=1e6),
        integer("gpus_per_node", "每台几张卡", 8, "卡", low=1, high=72, more=True),
        number("gpu_price_per_h", "一张卡一小时", 2.0, "$", low=0.1, high=50, kind="money"),
        number("price_hit", "命中的输入价", 0.14, "$/Mtok", low=0, high=1000, kind="money", more=True),
        number("price_miss", "未命中的输入价", 0.55, "$/Mtok", low=0, high=1000, kind="money", more=True),
        number("price_out", "输出价", 2.19, "$/Mtok", low=0, high=1000, kind="money", more=True),
        number("in_tok_s_node", "每台 prefill", 73.7e3, "token/s", low=1, high=1e8, kind="count", more=True, help="含缓存命中"),
        number("out_tok_s_node", "每台解码", 14.8e3, "token/s", low=1, high=1e8, kind="count", more=True),
        number("user_tok_s", "每个用户的速度", 21, "token/s", low=0.1, high=1e4, more=True, help="公布的是 20–22"),
        number("avg_kv_tokens", "平均 KV 长度", 4989, "token", low=1, high=1e7, kind="count", more=True),
        number("kv_bytes_per_token", "每 token 的 KV", 70_272, "B", low=1, high=1e8, more=True, help="DeepSeek-V3，第 16 章"),
    ),
    outputs=(
        Output("cost_per_day", "每天成本", "$", main=True, digits=6),
        Output("revenue_per_day", "每天理论收入", "$", digits=6),
        Output("margin_pct", "理论成本利润率", "%", digits=5),
        Output("hit_pct", "缓存命中", "%"),
        Output("avg_input_price", "平均输入价", "$/Mtok"),
        Output("input_saving_pct", "缓存让输入便宜", "%"),
        Output("cost_per_mtok_out", "每百万输出的成本", "$/Mtok", main=True),
        Output("cost_per_mtok_all", "每百万输入加输出的成本", "$/Mtok"),
        Output("prefill_nodes", "prefill 节点", "台"),
        Output("decode_nodes", "解码节点", "台"),
        Output("total_nodes", "由速率算的节点", "台", main=True),
        Output("concurrency", "同时在解码", "request", digits=6),
        Output("concurrency_per_node", "每台解码节点", "request"),
        Output("concurrency_per_gpu", "每张卡", "request"),
        Output("kv_gb_per_gpu", "每张卡的 KV", "GB", main=True),
        Output("out_tok_s_per_node_all", "摊到全部节点的输出", "token/s"),
        Output("reconcile", "对账", columns=(("item", "项", ""), ("computed", "算出", ""), ("published", "DeepSeek 公布", ""))),
    ),
    formula=(
        "节点 = 一天的 token ÷ 86400 ÷ 每台速率，prefill、解码相加",
        "并发（Little）= 每秒输出 ÷ 每个用户的速度",
        "成本 = 节点 × 卡 × 24 × 卡时价；收入 = 各类 token × 各自的价",
    ),
    assumptions=("每百万输出的成本：把全部开销都记在输出上", "并发平摊到解码节点的每张卡"),
    leaves_out="夜里借给训练的节点已经扣在平均节点里。不算折扣和免费的网页流量：利润率是理论值，实际低得多。每台速率多半由同样的总数除出来，对得上只说明自洽。",
    sources=("DeepSeek open-infra-index，Day 6（2025-03）",),
)  # fmt: skip
def day_bill(
    *, input_tokens: float, hit_tokens: float, output_tokens: float, avg_nodes: float, gpus_per_node: int, gpu_price_per_h: float, price_hit: float,
    price_miss: float, price_out: float, in_tok_s_node: float, out_tok_s_node: float, user_tok_s: float, avg_kv_tokens: float, kv_bytes_per_token: float,
) -> Result:  # fmt: skip
    """Cost, revenue, nodes from rates, concurrency from Little's law."""
    if hit_tokens > input_tokens:
        raise refuse("hit_tokens", "缓存命中不能多过输入", f"{hit_tokens:g} > {input_tokens:g}", "改小命中，或改大输入")
    w = Worked()
    million, day = quantity(1e6, "token"), quantity(DAY, "s")
    nodes, cards = quantity(avg_nodes, "", 12), quantity(gpus_per_node)
    cost = w.line("每天成本", day_cost(nodes, cards, quantity(24), quantity(gpu_price_per_h, "$", 12)), "$", 6)
    hits, all_in, out = quantity(hit_tokens, "token", 12), quantity(input_tokens, "token", 12), quantity(output_tokens, "token", 12)
    mtok_hit, mtok_in, mtok_out = (w.line(f"{name}（百万）", x / million, "", 10) for name, x in (("命中", hits), ("输入", all_in), ("输出", out)))
    price_h, price_m, price_o = quantity(price_hit, "$", 12), quantity(price_miss, "$", 12), quantity(price_out, "$", 12)
    income = w.line("输入收入", mtok_hit * price_h + (mtok_in - mtok_hit) * price_m, "$", 8)
    revenue = w.line("每天理论收入", income + mtok_out * price_o, "$", 8)
    margin = w.line("理论成本利润率", revenue / cost - 1, "%", 5)
    hit = average = saving = per_out = per_all = None
    if input_tokens:
        hit = w.line("缓存命中", hits / all_in, "%", 8)
        average = w.line("平均输入价", input_price(hit, quantity(price_hit, "$/Mtok", 12), quantity(price_miss, "$/Mtok", 12)), "$/Mtok", 6)
        if price_miss:
            saving = w.line("缓存让输入便宜", 1 - average / quantity(price_miss, "$/Mtok", 12), "%")
    one = quantity(1)
    if output_tokens:
        per_out = w.line("每百万输出的成本", cost_per_mtok(cost, one, mtok_out), "")
    if input_tokens or output_tokens:
        per_all = w.line("每百万输入加输出的成本", cost_per_mtok(cost, one, mtok_in + mtok_out), "")
    in_s, out_s = w.line("每秒输入", all_in / day, "token/s", 8), w.line("每秒输出", out / day, "token/s", 8)
    prefill = w.line("prefill 节点", in_s / quantity(in_tok_s_node, "token/s", 12), "", 6)
    decode = w.line("解码节点", out_s / quantity(out_tok_s_node, "token/s", 12), "", 6)
    both = w.line("由速率算的节点", prefill + decode, "", 6)
    inside = w.line("同时在解码（Little）", out_s / quantity(user_tok_s, "token/s", 12), "", 8)
    per_node = per_gpu = held = None
    if output_tokens:
        per_node = w.line("每台解码节点", inside / decode, "", 6)
        per_gpu = w.line("每张卡", per_node / cards, "", 6)
        held = w.line("每张卡的 KV", per_gpu * quantity(avg_kv_tokens, "", 12) * quantity(kv_bytes_per_token, "B", 12), "GB")
    spread = w.line("摊到全部节点的输出", out_s / nodes, "token/s")
    values: dict[str, float | Quantity | None] = {
        "cost_per_day": cost, "revenue_per_day": revenue, "margin_pct": margin.value * 100, "hit_pct": None if hit is None else hit.value * 100,
        "avg_input_price": average, "input_saving_pct": None if saving is None else saving.value * 100, "cost_per_mtok_out": _plain(per_out),
        "cost_per_mtok_all": _plain(per_all), "prefill_nodes": prefill.value, "decode_nodes": decode.value, "total_nodes": both.value,
        "concurrency": inside.value, "concurrency_per_node": _plain(per_node), "concurrency_per_gpu": _plain(per_gpu), "kv_gb_per_gpu": held,
        "out_tok_s_per_node_all": spread,
    }  # fmt: skip
    rows: list[Row] = [{"item": label, "computed": _number(values[name]), "published": published} for label, name, published in PUBLISHED]
    return Result(values={**values, "reconcile": rows}, lines=w.lines, verdict=_verdict(both.value, avg_nodes, cost, margin.value))


def _plain(x: Quantity | None) -> float | None:
    return None if x is None else x.value


def _number(x: float | Quantity | None) -> float | None:
    return x.value if isinstance(x, Quantity) else x


def _verdict(nodes: float, published: float, cost: Quantity, margin: float) -> str:
    gap = abs(nodes / published - 1)
    head = f"由速率算要 {nodes:.4g} 台，填的是 {published:.5g} 台"
    head += (
        f"，差 {100 * gap:.2g}%：自洽，但多半出自同一份总数，不算独立证据。" if gap <= AGREES else f"，差 {100 * gap:.3g}%：速率、流量或节点数里有一个对不上。"
    )
    return head + f"每天成本 {cost.text}；理论利润率 {100 * margin:.4g}%，按全部 token 都收费算，实际更低。"
