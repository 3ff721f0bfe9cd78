"""Does the communication of ZeRO-3 hide behind the computation, and what do the stages send?"""

from __future__ import annotations

from calculators.catalog import Accelerator, Model, gpu_input
from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Bar, BarChart, Chart, LineChart, Mark, Part, Rule, Series
from calculators.core.inputs import choice, flag, integer, linear_stops, log_stops, number, powers_of_two
from calculators.core.numbers import format_number
from calculators.core.units import GB
from calculators.core.worked import Quantity, Worked, larger, quantity, smaller
from calculators.distributed._models import CUSTOM, model_or
from calculators.formulas.collectives import one_pass, one_pass_factor
from calculators.formulas.data_parallel import BACKWARD_FLOP, FORWARD_FLOP, RECOMPUTE_FLOP, pass_seconds
from calculators.formulas.memory import STATE_RECIPES, state_bytes
from calculators.formulas.zero import PASSES, STAGE_NAMES, STAGES, forward_gathers, hybrid_inter_bytes, hybrid_states, volume_passes

WIRE_BYTES = 2
"""BF16 on the wire."""
STATE_BYTES = STATE_RECIPES["zero-16"].bytes_per_param


def _chart(
    run: Run, *, model: Model | None, params: float, n_dp: int, tokens_per_gpu: int, accum: int, stage: int, grads_reduced_once: bool, **_: object
) -> tuple[Chart, ...]:
    if n_dp == 1:
        return ()
    comm, compute, threshold = (float(run.values[name]) for name in ("comm_s", "compute_s", "threshold_tokens"))  # type: ignore[arg-type]
    low, high = min(256.0, tokens_per_gpu / 4, threshold / 4), max(131_072.0, tokens_per_gpu * 4.0, threshold * 4)
    ends = (low, threshold, high)
    one = one_pass_factor(float(n_dp)) * WIRE_BYTES * (model.total_params if model else params) / GB

    def bar(s: int) -> Bar:
        parts = tuple(Part(name, one * count(accum, grads_reduced_once)) for name, count in PASSES[s])
        whole = volume_passes(s, accum, grads_reduced_once) * one
        return Bar(STAGE_NAMES[s], parts, f"{format_number(whole)} GB", emphasis=s == stage)

    return (
        LineChart(
            "算多少 token，才盖得住",
            "两轴都是对数。横线是通信，不随 token 变；斜线是计算。交点左边，一步等于通信；右边，整步合起来藏住了。",
            Axis("每卡每个 micro-batch", "token", log=True),
            Axis("时间", "s", log=True),
            (
                Series("计算", tuple((x, compute * x / tokens_per_gpu) for x in ends), emphasis=True),
                Series("通信", tuple((x, comm) for x in ends), dashed=True),
            ),
            marks=(Mark("现在", float(tokens_per_gpu), max(compute, comm), emphasis=True),),
            rules=(Rule(f"门槛 {format_number(round(threshold))}", x=threshold),),
        ),
        BarChart(
            "一步里，每张卡发什么",
            "每一段是一次集合通信。DDP 的 all-reduce 就是前两段；ZeRO-1、2 换成收集更新后的参数，一样长；ZeRO-3 多出一趟收集。",
            Axis("每卡每步发出", "GB"),
            tuple(bar(s) for s in STAGES),
        ),
    )


@calculator(
    title="ZeRO-3 的通信能不能藏住",
    question="每一级每步搬多少？算得够久，盖得住吗？",
    chapter="11",
    inputs=(
        model_or(CUSTOM, "自己填", "llama-3-70b"),
        integer("n_dp", "数据并行", 64, "卡", low=1, high=65_536, stops=powers_of_two(1, 65_536)),
        integer("tokens_per_gpu", "每卡每个 micro-batch", 8192, "token", low=1, high=1_000_000, kind="tokens", stops=powers_of_two(512, 131_072)),
        choice("stage", "切到哪一级", 3, STAGES, labels={str(s): STAGE_NAMES[s] for s in STAGES}),
        number("bus_bw", "互联，每卡单向", 45, "GB/s", low=0.1, high=1000, stops=(3.125, 6.25, 12.5, 22.5, 45, 50, 90, 180, 360, 450), help="填有效值"),
        integer("accum", "累积几个 micro-batch", 1, low=1, high=1024, stops=powers_of_two(1, 128)),
        flag("recompute", "全部重算", True, more=True, help="8N 运算；不重算是 6N"),
        flag("grads_reduced_once", "梯度攒到最后才归约", True, more=True, help="否：每个 micro-batch 归约一次，显存省、通信多", only_if=("stage", ("2", "3"))),
        gpu_input(more=True),
        number("compute_eff", "算力用上几成", 0.5, low=0.05, high=0.95, kind="fraction", more=True, stops=linear_stops(0.1, 0.95, 0.05)),
        integer("hsdp_shard", "HSDP 一组几张卡", 8, "卡", low=1, high=65_536, more=True, stops=powers_of_two(1, 1024), help="组内切、组间复制；比总卡数大就按总卡数"),
        number("params", "参数量 Ψ", 7e9, "params", low=1e6, high=2e12, kind="count", more=True, stops=log_stops(1e8, 1e12, 3), only_if=("model", (CUSTOM,))),
    ),
    outputs=(
        Output("volume_psi", "搬几趟参数"),
        Output("volume_vs_ddp", "是 DDP 的", "×", main=True),
        Output("comm_gb", "每卡每步发出", "GB"),
        Output("comm_s", "通信", "s", main=True),
        Output("compute_s", "计算", "s", main=True),
        Output("comm_over_compute", "通信 ÷ 计算"),
        Output("hidden", "整步合起来藏得住", main=True),
        Output("step_s", "一步至少", "s"),
        Output("efficiency_max_pct", "效率，全重叠", "%"),
        Output("efficiency_min_pct", "效率，不重叠", "%"),
        Output("threshold_tokens", "门槛，整步合起来", "token", main=True),
        Output("forward_threshold_tokens", "门槛，前向那趟收集", "token", main=True),
        Output("forward_exposed_s", "前向收集露出", "s"),
        Output("hsdp_states_gb", "HSDP，每卡状态", "GB"),
        Output("hsdp_inter_gb", "HSDP，每卡过网卡", "GB"),
    ),
    chart=_chart,
    formula=(
        "一趟 = 2Ψ·(n−1)/n 字节",
        "DDP、ZeRO-1、ZeRO-2：2 趟；ZeRO-3：2k + 1 趟（k 个 micro-batch，梯度归约一次）",
        "每个 micro-batch 都归约：ZeRO-2 是 k + 1 趟，ZeRO-3 是 3k 趟",
        "计算 = 8Ψ·token·k ÷ 实得算力（不重算 6Ψ）；门槛 = token × 通信 ÷ 计算",
        "前向那趟的门槛 = token × 一趟 ÷ 前向（2Ψ·token）：重算只拉长反向，帮不到它",
        "HSDP：状态 16Ψ ÷ 组内卡数；过网卡 2(r−1)/r · 2Ψ ÷ 组内卡数，r 是组数",
    ),
    assumptions=("整步的门槛：通信能铺满整步，哪段闲就用哪段；前向那趟的门槛：收集只能藏在同一个 micro-batch 的前向后面", "BF16 上线；运算按激活参数，字节按全部参数"),
    leaves_out="不算 attention 的运算、第一次收集（没有计算可藏）、小参数的延迟：±15%。DDP 的 all-reduce 只能藏在反向后面，它的门槛看 ddp-scaling。",
    sources=("Rajbhandari et al. 2020（ZeRO）§7：ZeRO-3 是基线的 1.5 倍", "JAX「How to Scale Your Model」FSDP 一节"),
)  # fmt: skip
def zero_comm(
    *, model: Model | None, n_dp: int, tokens_per_gpu: int, stage: int, bus_bw: float, accum: int, recompute: bool, grads_reduced_once: bool,
    gpu: Accelerator, compute_eff: float, hsdp_shard: int, params: float,
) -> Result:  # fmt: skip
    """Passes over the parameters against the FLOPs of an optimizer step."""
    w = Worked()
    n, k = quantity(n_dp), quantity(accum)
    psi, active = (quantity(count, "params") for count in ((model.total_params, model.active_params) if model else (params, params)))
    if model:
        w.say(f"{model.name} 的参数量 → {psi.text}")
    copy = w.line("参数的 BF16 一份", state_bytes(psi, quantity(WIRE_BYTES, "B")), "GB")
    passes = quantity(volume_passes(stage, accum, grads_reduced_once))
    w.say("每步的集合通信 → " + "；".join(f"{name} {count(accum, grads_reduced_once)} 趟" for name, count in PASSES[stage]))
    once = one_pass(n, copy, quantity(bus_bw, "GB/s"), quantity(0, "s")).wire
    sent = w.line("每卡发出", passes * one_pass_factor(n) * copy, "GB")
    pass_time = w.line("一趟", once, "s")
    comm = w.line("通信", passes * pass_time, "s")
    speed = w.line("每卡实得算力", quantity(gpu.dense_tflops, "TFLOPS") * quantity(compute_eff), "TFLOPS")
    flop = quantity(FORWARD_FLOP + BACKWARD_FLOP + recompute * RECOMPUTE_FLOP, "FLOP")
    tokens = quantity(tokens_per_gpu, "token")
    compute = w.line("计算", pass_seconds(flop, active, tokens if accum == 1 else tokens * k, speed), "s")
    ratio = w.line("通信 ÷ 计算", comm / compute)
    threshold = w.line("门槛", tokens * ratio, "token", 5)
    forward = w.line("前向，一个 micro-batch", pass_seconds(quantity(FORWARD_FLOP, "FLOP"), active, tokens, speed), "s")
    gathers = forward_gathers(stage, accum)
    forward_threshold = w.line("前向那趟的门槛", tokens * (pass_time / forward), "token", 5) if gathers else None
    exposed = w.line("前向收集露出", gathers * larger(quantity(0, "s"), pass_time - forward), "s") if gathers else None
    step = w.line("一步至少", larger(compute, comm), "s")
    best = w.line("效率，全重叠", smaller(quantity(1), compute / comm) if comm.value else quantity(100, "%"), "%")
    worst = w.line("效率，不重叠", compute / (compute + comm), "%")
    shard = min(hsdp_shard, n_dp)
    states, inter, notes = _hybrid(w, psi, copy, n_dp, shard)
    return Result(
        values={
            "volume_psi": round(passes.value), "volume_vs_ddp": passes.value / volume_passes(0, 1, True), "comm_gb": sent, "comm_s": comm,
            "compute_s": compute, "comm_over_compute": ratio, "hidden": comm.value <= compute.value, "step_s": step,
            "efficiency_max_pct": best, "efficiency_min_pct": worst, "threshold_tokens": threshold,
            "forward_threshold_tokens": forward_threshold, "forward_exposed_s": exposed, "hsdp_states_gb": states, "hsdp_inter_gb": inter,
        },
        lines=w.lines,
        verdict=_verdict(stage, n_dp, accum, grads_reduced_once, comm, compute, best, threshold, _shard_advice(gpu, n_dp, shard, states), forward_threshold, exposed),
        notes=(*_about_ddp(stage), *_kept_gradients(stage, accum, grads_reduced_once, copy, gpu), *notes),
    )  # fmt: skip


def _hybrid(w: Worked, psi: Quantity, gradients: Quantity, n_dp: int, shard: int) -> tuple[Quantity, Quantity, tuple[str, ...]]:
    group = quantity(shard)
    replicas = w.line("HSDP，几组", quantity(n_dp) / group)
    states = w.line("HSDP，每卡状态", hybrid_states(state_bytes(psi, quantity(STATE_BYTES, "B")), group), "GB")
    inter = w.line("HSDP，每卡过网卡", hybrid_inter_bytes(gradients, group, replicas), "GB")
    notes = () if n_dp % shard == 0 else (f"HSDP 要求总卡数是一组的整数倍：{n_dp} / {shard} 不整除，HSDP 那两项只是插出来的数。",)
    return states, inter, notes


def _shard_advice(gpu: Accelerator, n_dp: int, shard: int, states: Quantity) -> str:
    """Sharding inside a group helps only when its states fit."""
    if shard == n_dp or states.value > gpu.memory_bytes:
        return ""
    return f"，或只在 {shard} 张卡里切（HSDP，每卡状态 {states.text}）"


def _about_ddp(stage: int) -> tuple[str, ...]:
    return ("这里按整步都能藏来算。DDP 的 all-reduce 只能藏在反向后面，门槛更高，看 ddp-scaling。",) if stage == 0 else ()


def _kept_gradients(stage: int, accum: int, once: bool, copy: Quantity, gpu: Accelerator) -> tuple[str, ...]:
    """Reducing once keeps whole gradients until the last micro-batch."""
    if stage < 2 or accum == 1 or not once:
        return ()
    price = "，放不下，只能每个 micro-batch 归约一次" if copy.value > gpu.memory_bytes else "，显存回到 ZeRO-1" if stage == 2 else ""
    return (f"梯度攒到最后，攒着的就是整份：BF16 每卡 {copy.text}{price}。",)


def _verdict(
    stage: int, n_dp: int, accum: int, once: bool, comm: Quantity, compute: Quantity, best: Quantity, threshold: Quantity, shard: str,
    forward_threshold: Quantity | None, exposed: Quantity | None,
) -> str:  # fmt: skip
    if n_dp == 1:
        return "一张卡没有通信。"
    least = format_number(round(threshold.value))
    head = f"{STAGE_NAMES[stage]}，通信 {comm.text}，计算 {compute.text}。"
    margin = compute.value / comm.value
    if margin >= 1:
        fits = ("藏得住，可是刚够，" if margin < 1.1 else "藏得住，") + f"门槛是每个 micro-batch {least} token"
        if forward_threshold is None or exposed is None or not exposed.value:
            return head + fits + "。"
        return head + "整步合起来" + fits + f"；可前向那趟收集要 {format_number(round(forward_threshold.value))} token，现在露出 {exposed.text}。"
    if forward_threshold is not None:
        least = format_number(round(max(threshold.value, forward_threshold.value)))
    advice = head + f"藏不住，效率最多 {best.text}：每个 micro-batch 至少 {least} token"
    once_only = "，或把梯度攒到最后才归约（显存也要加上整份梯度）" if accum > 1 and not once else ""
    if stage < 3:
        return advice + (once_only or "，或多累积几个 micro-batch 再同步") + "。"
    return advice + once_only + shard + "。多累积顶多摊薄梯度那一趟：参数每个 micro-batch 都要重新收集。"
