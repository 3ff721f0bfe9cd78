"""Which MFU does a line of a training log amount to, and which convention did whoever printed one use?"""

from __future__ import annotations

import math

from calculators.catalog import Accelerator, Model, gpu_input
from calculators.core.calculator import Output, Result, Row, Run, calculator
from calculators.core.charts import Axis, Bar, BarChart, Chart, Part, Rule
from calculators.core.errors import Refusal, refuse
from calculators.core.inputs import Scalar, choice, integer, log_stops, number, powers_of_two, text
from calculators.core.numbers import format_number
from calculators.core.units import TB
from calculators.core.worked import Quantity, Worked, quantity
from calculators.formulas.mfu import Recompute, attention_core, flop, flops_per_token, hardware_flops_per_token, mfu, mfu_band
from calculators.operations._custom_model import CUSTOM, model_or_custom
from calculators.operations._training_log import Reading, read_log

CONVENTIONS = {"6N": 0.0, "6N+attn-full": 1.0, "6N+attn-causal": 0.5}
"""Convention → the share of the attention core that is counted."""
CONVENTION_NAMES = {"6N": "只数 6N", "6N+attn-full": "6N + attention 全额", "6N+attn-causal": "6N + attention 因果减半"}
EMBEDDING_NAMES = {"all": "全部参数", "exclude-input": "不数输入词表"}
WITH_ATTENTION = ("convention", ("6N+attn-full", "6N+attn-causal"))
SAME = 0.3
"""Percentage points within which a printed MFU counts as found: what rounding and the peak's last digit make of it."""
EXAMPLE = "step: 100  loss: 3.92  memory: 45.9GiB(48.3%)  tps: 6,667  tflops: 386.1  mfu: 39.04%"


def _chart(run: Run, **_: object) -> tuple[Chart, ...]:
    rows = run.values["conventions"]
    assert isinstance(rows, list)
    bars = []
    for row in rows:
        assert isinstance(row, dict)
        share = float(row["mfu"])  # type: ignore[arg-type]
        name = "，".join(str(row[part]) for part in ("convention", "embedding") if row[part])
        bars.append(Bar(name, (Part("MFU", share),), f"{format_number(share, digits=3)}%", emphasis=bool(row["chosen"])))
    printed = run.values["reported_pct"]
    longest = max(bar.parts[0].value for bar in bars)
    return (
        BarChart(
            "同一行日志，几种口径",
            "亮的一条是你选的。吞吐、卡、模型都没变，变的只是分子怎么数；竖线是日志或论文自己报的。",
            Axis("MFU", "%", low=0, high=1.3 * max(longest, printed if isinstance(printed, float) else 0.0)),  # room for the numbers on the right
            tuple(bars),
            (Rule("报的", x=float(printed)),) if isinstance(printed, float) else (),
        ),
    )


@calculator(
    title="从日志到 MFU",
    question="贴一行训练日志：用上了峰值的几成？报出来的 MFU 是哪种口径？",
    chapter="23",
    inputs=(
        text("log", "训练日志", longest=4000, placeholder=EXAMPLE, help="贴一行或几行（取中位数）；留空用下面的 token/s"),
        model_or_custom("llama-3-8b"),
        number("tokens_per_s", "全部卡的 token/s", 46_096, "token/s", low=0, low_open=True, stops=log_stops(1000, 1e7, 6), help="5762 × 8；贴了日志就不看它"),
        integer("n_gpus", "卡数", 8, "card", low=1, high=1_000_000, stops=powers_of_two(1, 16384)),
        gpu_input(),
        choice("convention", "口径", "6N+attn-full", tuple(CONVENTIONS), labels=CONVENTION_NAMES),
        choice("count_embedding", "数哪些参数", "exclude-input", tuple(EMBEDDING_NAMES), labels=EMBEDDING_NAMES, more=True),
        integer("seq", "序列长度", 8192, "token", low=1, high=10_000_000, kind="tokens", more=True, stops=powers_of_two(512, 131_072)),
        choice("recompute", "激活重算", "none", ("none", "selective", "full"), labels={"none": "不重算", "selective": "只重算 attention 核心", "full": "前向全部重算"}, more=True),
        number("peak_tflops", "每卡峰值", None, "TFLOPS", low=1, high=1e5, more=True, stops=(125, 275, 312, 989, 2250), help="稠密；留空用这张卡的 BF16"),
        number("reported_mfu", "别人报的 MFU", None, "%", low=0, high=100, low_open=True, more=True, help="填了就找它用的口径"),
        number("total_tokens", "一共要训", 1e12, "token", low=1e6, high=1e14, kind="tokens", more=True, stops=log_stops(1e9, 1e14, 5)),
        number("N", "参数量 N", None, "params", low=0, low_open=True, high=1e15, more=True, stops=log_stops(1e8, 1e12, 6), help="填了就照用，不再扣词表；MoE 填激活参数"),
        integer("L", "层数", None, low=1, high=10_000, more=True, only_if=WITH_ATTENTION),
        integer("heads", "query 头数", None, low=1, high=10_000, more=True, only_if=WITH_ATTENTION),
        integer("head_dim", "每头维度", None, low=1, high=10_000, more=True, only_if=WITH_ATTENTION),
    ),
    outputs=(
        Output("mfu_pct", "MFU", "%", main=True, digits=5),
        Output("hfu_pct", "HFU", "%", digits=5),
        Output("gflop_per_token", "每 token 运算量", "GFLOP", digits=5),
        Output("tflops_per_gpu", "每卡有效算力", "TFLOP/s", main=True, digits=5),
        Output("tok_s_per_gpu", "每卡吞吐", "token/s", main=True, digits=5),
        Output("days", "训完要几天", "day", main=True, digits=5),
        Output("reported_pct", "日志或论文报的 MFU", "%"),
        Output("closest", "最接近的口径"),
        Output("conventions", "各种口径", columns=(("convention", "口径", ""), ("embedding", "参数", ""), ("gflop", "每 token", "GFLOP"), ("mfu", "MFU", "%"), ("chosen", "选的", ""))),
    ),
    chart=_chart,
    formula=(
        "q = 层数 × 头数 × 每头维度 × 序列长度（因果减半时 ÷ 2，只数 6N 时为 0）",
        "每 token 运算量 F = 6N + 12q",
        "MFU = token/s × F ÷ (卡数 × 峰值)",
        "HFU 的分子：选择性重算 F + 4q，全部重算 8N + 16q",
    ),
    assumptions=("torchtitan 的 tps 是每卡的；tokens_per_second 当作整个作业的", "峰值是稠密 BF16", "MLA 的每头维度取 QK 和 V 的平均"),
    leaves_out="不算 FP8 和 BF16 混着用时的峰值（torchtitan 这时干脆不报 MFU）；滑窗层按全长算，偏多；MFU 不含停机。",
    sources=("Chowdhery et al. 2022（PaLM）附录 B", "torchtitan 2024-12 基准：Llama 3.1 8B，8 张 H100，每卡 5,762 token/s；脚注写明不数输入词表、数 attention"),
)  # fmt: skip
def mfu_from_log(
    *, log: str, model: Model | None, tokens_per_s: float, n_gpus: int, gpu: Accelerator, convention: str, count_embedding: str, seq: int,
    recompute: Recompute, peak_tflops: float | None, reported_mfu: float | None, total_tokens: float, N: float | None, L: int | None, heads: int | None,
    head_dim: int | None,
) -> Result:  # fmt: skip
    """tokens/s × F ÷ (cards × peak) for every convention; the log says the tokens/s."""
    resolved: dict[str, Scalar] = {}
    if peak_tflops is None:
        peak_tflops = resolved["peak_tflops"] = gpu.dense_tflops
    counted = _params(model, N)
    chosen = count_embedding if count_embedding in counted else next(iter(counted))
    own = counted[chosen]
    if N is None:
        resolved["N"] = own
    shape = layers, n_heads, width = _shape(model, {"L": L, "heads": heads, "head_dim": head_dim}, resolved, CONVENTIONS[convention] > 0)
    w = Worked()
    reading = _reading(log, n_gpus, seq, w)
    given_rate = reading.tokens_per_s if reading else tokens_per_s
    rate, cards, peak = quantity(given_rate, "token/s", 8), quantity(n_gpus, "card"), quantity(peak_tflops, "TFLOPS")
    params = quantity(own, "params", 8)
    linear = w.line("6N", flop(6, params) * params, "GFLOP", 7)
    q, attention = quantity(0), quantity(0, "GFLOP")
    if CONVENTIONS[convention]:
        q = w.line("q", attention_core(quantity(layers), quantity(n_heads), quantity(width), quantity(seq), CONVENTIONS[convention] < 1))
        attention = w.line("12q", flop(12, q) * q, "GFLOP", 7)
    per_token = w.line("每 token 运算量 F", linear + attention, "GFLOP", 7) if CONVENTIONS[convention] else linear
    share = w.line("MFU", _below_peak(mfu(rate, per_token, cards, peak)), "%", 5)
    hardware_share = share
    if recompute != "none":
        hardware = w.line("连重算在内，每 token", hardware_flops_per_token(params, q, recompute), "GFLOP", 7)
        hardware_share = w.line("HFU", _below_peak(mfu(rate, hardware, cards, peak)), "%", 5)
    each = w.line("每卡有效算力", rate * per_token / cards, "TFLOP/s", 5)
    per_card = w.line("每卡吞吐", rate / cards, "token/s", 6)
    days = w.line("训完要几天", quantity(total_tokens, "token") / rate, "day", 5)
    rows = _rows(counted, shape, seq, given_rate / (n_gpus * peak_tflops * TB), (convention, chosen))
    reported = reported_mfu if reported_mfu is not None else reading.mfu_pct if reading else None
    closest, as_close = _closest(rows, reported)
    return Result(
        values={
            "mfu_pct": share, "hfu_pct": hardware_share, "gflop_per_token": per_token, "tflops_per_gpu": each, "tok_s_per_gpu": per_card, "days": days,
            "reported_pct": reported, "closest": closest, "conventions": rows,
        },
        lines=w.lines,
        verdict=_verdict(share, hardware_share, each, reported, closest, as_close) + _one_card_typed(share.value, n_gpus, reading is None),
        resolved=resolved,
        notes=_notes(model, convention),
    )  # fmt: skip


def _params(model: Model | None, N: float | None) -> dict[str, float]:
    """Parameters by way of counting; a given N is used as it stands."""
    if N is not None:
        return {"given": N}
    if model is None:
        raise refuse("N", "参数量 N 必须填，custom 没有预设可用", "空", "例如 8.03e9；MoE 填激活参数")
    if model.active_params == model.active_params_no_input_embedding:
        return {"one": model.active_params}  # a tied table is the output head too: nothing to leave out
    return {"all": model.active_params, "exclude-input": model.active_params_no_input_embedding}


def _shape(model: Model | None, given: dict[str, int | None], resolved: dict[str, Scalar], needed: bool) -> tuple[float, float, float]:
    """Layers, heads, head size; the preset's where the field is empty."""
    own: dict[str, float] = {}
    if model is not None:
        mla = model.mla
        width = model.head_dim if mla is None else (mla.qk_nope_head_dim + mla.qk_rope_head_dim + mla.v_head_dim) / 2
        own = {"L": model.layers, "heads": model.heads, "head_dim": width}
    missing = [name for name, value in given.items() if value is None and name not in own]
    if missing and needed:
        refusals = [refuse(name, f"{name} 必须填，{CUSTOM} 没有预设可用", "空", "或把口径换成只数 6N") for name in missing]
        raise Refusal(tuple(error for refusal in refusals for error in refusal.errors))
    filled = []
    for name, value in given.items():
        if value is None and name in own and needed:
            resolved[name] = own[name]
        filled.append(float(value if value is not None else own.get(name, 0)))
    layers, n_heads, width = filled
    return layers, n_heads, width


def _reading(log: str, n_gpus: int, seq: int, w: Worked) -> Reading | None:
    if not log.strip():
        return None
    reading = read_log(log, n_gpus, seq)
    w.say(f"日志 {reading.lines} 行有吞吐（{reading.how}），取中位数 → {quantity(reading.tokens_per_s, 'token/s', 6).text}")
    return reading


def _rows(counted: dict[str, float], shape: tuple[float, float, float], seq: int, rate_over_peak: float, chosen: tuple[str, str]) -> list[Row]:
    rows: list[Row] = []
    for count, params in counted.items():
        for name, part in CONVENTIONS.items():
            if part and not all(shape):
                continue
            per_token = flops_per_token(params, part * attention_core(*shape, float(seq)))
            rows.append({
                "convention": CONVENTION_NAMES[name], "embedding": EMBEDDING_NAMES.get(count, ""), "gflop": per_token / 1e9,
                "mfu": 100 * rate_over_peak * per_token, "chosen": (name, count) == chosen,
            })  # fmt: skip
    return rows


def _closest(rows: list[Row], reported: float | None) -> tuple[str | None, int]:
    """The nearest way of counting, and how many others lie as near as rounding can tell."""
    if reported is None:
        return None, 0
    row = min(rows, key=lambda r: abs(float(r["mfu"] or 0) - reported))
    name = "，".join(str(row[part]) for part in ("convention", "embedding") if row[part])
    near = sum(abs(float(r["mfu"] or 0) - reported) <= SAME for r in rows)
    if near:
        return name, near - 1
    if any(abs(float(r["mfu"] or 0) / 2 - reported) <= SAME for r in rows):
        return "都对不上；正好是一半，像是除了稀疏峰值", 0
    return "都对不上", 0


def _below_peak(share: Quantity) -> Quantity:
    if share.value > 1:
        shown = f"{format_number(100 * share.value)}%" if math.isfinite(share.value) and share.value < 1e12 else "大得离谱"
        raise refuse("tokens_per_s", "MFU 超过 100%", shown, "多半是把稀疏峰值、双精度口径或 token 数算错了；每卡的吞吐别再乘一遍卡数")
    return share


def _one_card_typed(share: float, n_gpus: int, typed: bool) -> str:
    """A share this low that becomes a usual one when multiplied by the cards: most likely one card's rate was typed."""
    if typed and n_gpus > 1 and share < 0.1 and share * n_gpus < 0.65:
        return f"这么低，先看 token/s 是不是只填了一张卡的：乘上 {n_gpus} 就是 {quantity(100 * share * n_gpus, '%', 3).text}。"
    return ""


def _verdict(share: Quantity, hardware: Quantity, each: Quantity, reported: float | None, closest: str | None, as_close: int) -> str:
    band = mfu_band(share.value * 100)
    head = f"MFU {quantity(share.value * 100, '%', 3).text}（{band.meaning}），每卡真正在算 {quantity(each.value / TB, 'TFLOP/s', 3).text}。"
    if hardware.value > share.value:
        head += f"HFU {quantity(hardware.value * 100, '%', 3).text}，多出来的是重做的运算，不算进度。"
    if reported is None:
        return head + "报出去的时候写清三样：数不数 attention、数不数词表、除的哪个峰值。"
    unsure = f"，可另外 {as_close} 种也只差 {SAME} 个百分点以内，分不开" if as_close else ""
    return head + f"报的是 {quantity(reported, '%', 4).text}：{closest if (closest or '').startswith('都') else f'最接近「{closest}」{unsure}'}。"


def _notes(model: Model | None, convention: str) -> tuple[str, ...]:
    if model is not None and model.sliding_window and CONVENTIONS[convention]:
        return ("这个模型有滑窗层：attention 按全长算，MFU 偏高。",)
    return ()
