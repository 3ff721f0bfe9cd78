"""How fast does training read from disk, and how large is the disk?"""

from __future__ import annotations

from dataclasses import replace

from calculators.catalog import Model, model_input
from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Chart, LineChart, Mark, Rule, Series
from calculators.core.errors import refuse
from calculators.core.inputs import choice, integer, linear_stops, log_stops, number, powers_of_two
from calculators.core.numbers import format_number
from calculators.core.units import MB
from calculators.core.worked import Quantity, Worked, quantity
from calculators.formulas.data_rate import id_bytes, tokens_per_s

HDD_MB_S, NVME_MB_S = 200.0, 7000.0
"""One hard disk and one NVMe drive, reading in order: round numbers, unverified."""
TEXT, SAMPLES = "text", "samples"
KINDS = {TEXT: "文本", SAMPLES: "图片、视频等样本"}
SPEEDS = {"tflops": "每卡算力", "step_s": "每步时间"}


def _chart(run: Run, *, kind: str, n_gpus: int, **_: object) -> tuple[Chart, ...]:
    per_gpu = run.result.trace
    assert isinstance(per_gpu, dict)
    most = max(131_072.0, float(n_gpus))
    counts = [most ** (i / 20) for i in range(21)]
    if not all(mb_s > 1e-12 and mb_s * most < 1e15 for mb_s in per_gpu.values()):
        return ()  # no axis shows both this and a disk
    curves = tuple(Series(KINDS[name], tuple((c, c * mb_s) for c in counts), emphasis=name == kind) for name, mb_s in per_gpu.items())
    return (
        LineChart(
            "卡数和读盘速率",
            "两轴都是对数。读得多快和卡数成正比；文本那条线低几个数量级。横线是一块盘，凭经验取的整数，未核实。",
            Axis("卡数", "card", log=True),
            Axis("读盘", "MB/s", log=True),
            curves,
            marks=(Mark("现在", float(n_gpus), n_gpus * per_gpu[kind], emphasis=True),),
            rules=(Rule("机械硬盘", y=HDD_MB_S), Rule("NVMe", y=NVME_MB_S)),
        ),
    )


@calculator(
    title="读盘要多快、盘要多大",
    question="训练一秒读多少字节，语料占多大的盘？",
    chapter="22",
    inputs=(
        choice("kind", "训什么", TEXT, (TEXT, SAMPLES), labels=KINDS),
        replace(model_input("llama-3.1-405b"), only_if=("kind", (TEXT,))),
        integer("n_gpus", "卡数", 16384, "card", low=1, high=1_000_000, stops=powers_of_two(1, 131072)),
        number("tflops_per_gpu", "每卡有效算力", 400, "TFLOP/s", low=1, high=5000, only_if=("kind", (TEXT,)), stops=linear_stops(50, 2000, 25), help="做到的，不是峰值；按每步时间算时不用"),
        number("samples_s_per_gpu", "每卡每秒样本", 2500, low=0.01, high=1e6, only_if=("kind", (SAMPLES,)), stops=log_stops(1, 1e5, 5), help="默认值是假设"),
        number("kb_per_sample", "每个样本", 110, "KB", low=0.01, high=1e7, kind="bytes", only_if=("kind", (SAMPLES,)), stops=log_stops(1, 1e6, 5), help="压缩后的文件；默认值是假设"),
        number("total_tokens", "语料", 15.6e12, "token", low=1e6, high=1e14, kind="tokens", only_if=("kind", (TEXT,)), more=True, stops=log_stops(1e9, 1e14, 5)),
        choice("speed_from", "速度从哪来", "tflops", tuple(SPEEDS), labels=SPEEDS, more=True, only_if=("kind", (TEXT,))),
        number("batch_tokens", "每步的 batch", 16777216, "token", low=1, high=1e9, kind="tokens", more=True, only_if=("kind", (TEXT,)), stops=powers_of_two(65536, 67108864)),
        number("step_s", "每步", 6, "s", low=0.001, high=1e5, kind="seconds", more=True, only_if=("speed_from", ("step_s",)), stops=log_stops(0.1, 100, 10)),
        choice("bytes_per_token", "每 token 的字节", "auto", ("auto", 2, 4), more=True, labels={"auto": "看词表", "2": "2（uint16）", "4": "4（uint32）"}, only_if=("kind", (TEXT,))),
        number("tokens_done", "已经训了", 0, "token", low=0, high=1e14, kind="tokens", more=True, only_if=("kind", (TEXT,)), help="续训时填"),
        integer("redundant_readers", "同一份数据读几遍", 1, "×", low=1, high=1024, more=True, stops=powers_of_two(1, 1024), help="TP、PP 的每张卡各读一遍，就是 TP × PP"),
        number("tokenize_tok_s_core", "分词，一个核", 1e6, "token/s", low=1e3, high=1e8, more=True, only_if=("kind", (TEXT,)), stops=log_stops(1e4, 1e7, 5), help="默认值未核实，拿自己的语料测"),
    ),
    outputs=(
        Output("read_mb_s", "读盘", "MB/s", main=True),
        Output("tok_s", "训练吞吐", "token/s", main=True),
        Output("corpus_tb", "语料占盘", "TB", main=True),
        Output("tokenize_core_days", "分词", "core-days", main=True),
        Output("read_kb_s_per_gpu", "每张卡分到", "KB/s"),
        Output("bytes_per_token", "每 token", "B"),
        Output("steps_left", "还剩", "step", digits=6),
        Output("days_left", "还要", "day"),
    ),
    chart=_chart,
    formula=(
        "token/s = 卡数 × 每卡有效算力 ÷ 6N，或 batch ÷ 每步时间",
        "读盘 = token/s × 每 token 的字节；样本：卡数 × 每卡每秒样本 × 每个样本的字节",
        "每 token 的字节：词表不超过 65,536 用 2（uint16），否则 4（uint32）",
    ),
    assumptions=("6N 不含 attention，和第 04 章一致；N 用激活参数", "语料已经分好词，存的是 token 编号", "盘的两条线和分词的速度是经验值，未核实"),
    leaves_out="不算打散读的放大（零碎的随机读，实际要读的多十倍以上）；TP、PP 各读各的，最多多出 128 倍，要在「同一份数据读几遍」里填。检查点的写不在里面（第 21 章）。",
    sources=("6N：Kaplan et al. 2020", "405B 的卡数、算力和语料：Dubey et al. 2024（Llama 3）", "样本的两个数、盘和分词的速度：本书的假设"),
)  # fmt: skip
def data_rate(
    *,
    kind: str,
    model: Model,
    n_gpus: int,
    tflops_per_gpu: float,
    samples_s_per_gpu: float,
    kb_per_sample: float,
    total_tokens: float,
    speed_from: str,
    batch_tokens: float,
    step_s: float,
    bytes_per_token: str | int,
    tokens_done: float,
    redundant_readers: int,
    tokenize_tok_s_core: float,
) -> Result:
    """Bytes per second = tokens per second × bytes per token, or samples × size."""
    w = Worked()
    cards, copies = quantity(n_gpus, "card"), quantity(redundant_readers)
    size = quantity(_stored_bytes(bytes_per_token, model) if kind == TEXT else id_bytes(model.vocab), "B/token")
    speeds = {
        "tflops": lambda: tokens_per_s(cards, quantity(tflops_per_gpu, "TFLOP/s"), quantity(model.active_params, "params"), quantity(6, "FLOP")),
        "step_s": lambda: quantity(batch_tokens, "token") / quantity(step_s, "s"),
    }
    tokens = speeds[speed_from]()
    samples = cards * quantity(samples_s_per_gpu) * quantity(kb_per_sample, "KB")
    if kind == TEXT:
        tok_s = w.line("训练吞吐", tokens, "token/s")
        once, verb = tok_s * size, "训练"
    else:
        tok_s, once, verb = tokens, samples, "喂样本"
    read = w.line("读盘", once if redundant_readers == 1 else once * copies, "MB/s")
    share = w.line("每张卡分到", read / cards, "KB/s")
    trace = {TEXT: (tokens * size * copies / cards).value / MB, SAMPLES: (samples * copies / cards).value / MB}
    values: dict[str, Quantity | float | None] = {"read_mb_s": read, "read_kb_s_per_gpu": share}
    if kind == SAMPLES:
        values |= dict.fromkeys(("tok_s", "bytes_per_token", "corpus_tb", "steps_left", "days_left", "tokenize_core_days"))
        return Result(values=values, lines=w.lines, verdict=_verdict(read, verb), trace=trace)

    if tokens_done > total_tokens:
        raise refuse("tokens_done", "已经训的 token 不能超过语料", f"{format_number(tokens_done)} 对 {format_number(total_tokens)}", "改小，或把语料改大")
    corpus = w.line("语料占盘", quantity(total_tokens, "token") * size, "TB")
    left = (
        quantity(total_tokens, "token") if tokens_done == 0 else w.line("没训的", quantity(total_tokens, "token") - quantity(tokens_done, "token"), "token", 6)
    )
    steps = w.line("还剩", left / quantity(batch_tokens, "token"), "step", 6)
    days = w.line("还要", left / tok_s, "day")
    tokenize = w.line("分词（一个核）", quantity(total_tokens, "token") / quantity(tokenize_tok_s_core, "token/s"), "core-days")
    values |= {"tok_s": tok_s, "bytes_per_token": size, "corpus_tb": corpus, "steps_left": steps, "days_left": days, "tokenize_core_days": tokenize}
    return Result(values=values, lines=w.lines, verdict=f"{_verdict(read, verb)}语料占 {corpus.text}。", trace=trace)


def _stored_bytes(chosen: str | int, model: Model) -> int:
    """Bytes of a token id; raises Refusal when two do not hold the vocabulary."""
    needed = id_bytes(model.vocab)
    if chosen == "auto":
        return needed
    if int(chosen) < needed:
        raise refuse("bytes_per_token", "每 token 的字节必须放得下词表", f"uint16 放不下 {model.vocab:,} 的词表", "改成 4 或「看词表」")
    return int(chosen)


def _verdict(read: Quantity, verb: str) -> str:
    mb_s = read.value / MB
    if mb_s <= HDD_MB_S:
        return f"{verb}一秒只读 {read.text}，一块机械硬盘都没用满。慢了先查 CPU 和抖动，别先换存储。"
    if mb_s <= NVME_MB_S:
        return f"{verb}一秒读 {read.text}，一块机械硬盘不够，一块 NVMe 按顺序读供得上；零碎地读就未必。"
    drives = format_number(-(-mb_s // NVME_MB_S))
    return f"{verb}一秒读 {read.text}，要 {drives} 块 NVMe 一起读：这时读盘和网络才是真瓶颈。"
