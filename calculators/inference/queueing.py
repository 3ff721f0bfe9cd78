"""How long does a request wait as the servers get busier, and what does pooling change?"""

from __future__ import annotations

from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Chart, LineChart, Mark, Series
from calculators.core.errors import refuse
from calculators.core.inputs import choice, integer, log_stops, number, powers_of_two
from calculators.core.worked import Quantity, Worked, ln, quantity
from calculators.formulas.queueing import erlang_c, in_system, load_of, md1_wait, mmc_wait, p99_over_service

LOADS = tuple(i / 100 for i in range(1, 98))
COMFORTABLE = 0.7
"""Load up to which one server's stay is at most 3.3 service times."""


def _stay(servers: int) -> tuple[tuple[float, float], ...]:
    """(ρ, mean stay in service times)."""
    return tuple((rho, 1 + mmc_wait(erlang_c(rho * servers, servers), 1.0, float(servers), 1 - rho)) for rho in LOADS)


def _chart(run: Run, *, servers: int, queue_model: str, **_: object) -> tuple[Chart, ...]:
    rho, stay = run.values["rho"], run.values["sojourn_over_service"]
    assert isinstance(rho, float)
    assert isinstance(stay, float)
    mine = queue_model == "mmc"
    counts = sorted({1, 8, 64, *((servers,) if mine else ())})
    curves = [Series(f"{c} 个服务者", _stay(c), emphasis=mine and c == servers) for c in counts]
    curves.append(Series("服务时间固定（M/D/1）", tuple((r, 1 + md1_wait(r, 1.0, 1 - r)) for r in LOADS), emphasis=not mine, dashed=True))
    here = (Mark("现在", rho, stay, emphasis=True),) if rho <= LOADS[-1] else ()
    return (
        LineChart(
            "利用率最后那一段最贵",
            "纵轴是平均停留时间，以服务时间为 1。一个服务者的线先抬头；池子越大，抬头越晚。",
            Axis("利用率 ρ", low=0, high=1),
            Axis("停留 ÷ 服务时间", "×", low=0),
            tuple(curves),
            here,
        ),
    )


@calculator(
    title="排队曲线",
    question="利用率开到多少，排队才不失控？把小池子并成大池子，能省多少等待？",
    chapter="20",
    inputs=(
        number("arrival_per_s", "每秒到达", 0.9, "request/s", low=1e-6, high=1e6, stops=(0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.97, 0.99, 7.2, 14.4, 57.6)),
        number("service_s", "一个请求的服务时间", 1, "s", low=1e-6, high=1e5, stops=log_stops(0.01, 100, 3)),
        integer("servers", "服务者（副本）数", 1, low=1, high=1024, stops=powers_of_two(1, 1024)),
        choice("queue_model", "服务时间", "mmc", ("mmc", "md1"), labels={"mmc": "长短不一（M/M/c）", "md1": "都一样长（M/D/1）"}),
    ),
    outputs=(
        Output("rho", "利用率 ρ", main=True),
        Output("p_wait", "要等的概率"),
        Output("wait_s", "平均等待", "s"),
        Output("wait_over_service", "平均等待 ÷ 服务时间", "×"),
        Output("sojourn_s", "平均停留", "s", main=True),
        Output("sojourn_over_service", "平均停留 ÷ 服务时间", "×", main=True),
        Output("p99_s", "停留的 P99", "s", main=True),
        Output("p99_over_service", "P99 ÷ 服务时间", "×"),
        Output("in_system", "同时在系统里"),
    ),
    chart=_chart,
    formula=(
        "ρ = λS ÷ c",
        "M/M/c：平均等待 = 要等的概率 × S ÷ (c × (1 − ρ))；要等的概率由 Erlang C 给出",
        "M/D/1：平均等待 = ρS ÷ (2(1 − ρ))",
        "停留 = 等待 + S；同时在系统里 = λ × 停留（Little）",
    ),
    assumptions=("到达是泊松过程，先来先服务", "各服务者一样快，共用一条队"),
    leaves_out="LLM 服务是许多请求分享一张卡，不是一个个排队；batch 让服务者越忙越快。这里也不算突发：真实到达比泊松更扎堆，只会更糟。当直觉用，别当预测。",
    sources=("标准排队论：M/M/c（Erlang C）与 M/D/1",),
)  # fmt: skip
def queueing(*, arrival_per_s: float, service_s: float, servers: int, queue_model: str) -> Result:
    """Mean wait and P99 of the stay at load ρ."""
    if queue_model == "md1" and servers > 1:
        raise refuse("servers", "服务时间固定的模型（M/D/1）只有一个服务者", str(servers), "填 1，或改选 M/M/c")
    w = Worked()
    arrival, service, count = quantity(arrival_per_s, "request/s", 12), quantity(service_s, "s", 12), quantity(servers)
    offered = arrival_per_s * service_s
    if offered / servers >= 1:
        raise refuse("arrival_per_s", "到达率超过服务能力，队列无限增长", f"ρ = {offered / servers:.6g}", f"到达率小于 {servers / service_s:.6g}/s，或加服务者")
    rho = w.line("利用率 ρ", load_of(arrival, service, count), "", 10)
    idle = w.line("空着的比例", 1 - rho, "", 10)
    if queue_model == "md1":
        p_wait, p99 = rho, None
        wait = w.line("平均等待", md1_wait(rho, service, idle), "s")
    else:
        chance = erlang_c(offered, servers)
        p_wait = quantity(chance, "", 6)
        w.say(f"要等的概率（Erlang C，{servers} 个服务者） → {p_wait.text}")
        wait = w.line("平均等待", mmc_wait(p_wait, service, count, idle), "s")
        if servers == 1:
            p99 = w.line("停留的 P99", service * ln(quantity(100)) / idle, "s")
        else:
            p99 = quantity(service_s * p99_over_service(chance, servers, idle.value), "s", 4)
            w.say(f"停留的 P99（二分求 P(停留 > t) 降到 1%） → {p99.text}")
    stay = w.line("平均停留", wait + service, "s")
    ratio = w.line("停留 ÷ 服务时间", stay / service, "×")
    inside = w.line("同时在系统里（Little）", in_system(arrival, stay), "")
    return Result(
        values={
            "rho": rho.value, "p_wait": p_wait.value, "wait_s": wait, "wait_over_service": wait.value / service_s, "sojourn_s": stay,
            "sojourn_over_service": ratio, "p99_s": p99, "p99_over_service": None if p99 is None else p99.value / service_s, "in_system": inside.value,
        },
        lines=w.lines,
        verdict=_verdict(rho.value, ratio, p99, service_s, servers),
        notes=() if p99 is not None else ("服务时间固定时，P99 没有简单的闭式，这里不给。",),
    )  # fmt: skip


def _verdict(rho: float, ratio: Quantity, p99: Quantity | None, service_s: float, servers: int) -> str:
    head = f"利用率 {100 * rho:.4g}%：平均停留是服务时间的 {ratio.text}"
    head += "。" if p99 is None else f"，P99 是 {quantity(p99.value / service_s, '×', 4).text}。"
    if ratio.value <= 1 / (1 - COMFORTABLE):
        return head + "等待还不长。"
    if servers == 1:
        return head + "要么降到达率，要么多个副本共用一条队：同样的利用率，池子越大等得越短。"
    return head + "离满太近，再大的池子也要排：加副本，把 ρ 降下来。"
