"""Which ranks share a server, what each kind of parallelism sends in a step, and over which link it goes."""

from __future__ import annotations

from dataclasses import dataclass

from calculators.catalog import Model, model_input
from calculators.core.calculator import Output, Result, Row, Run, calculator
from calculators.core.charts import Axis, Bar, BarChart, Chart, Grid, Part
from calculators.core.errors import refuse
from calculators.core.inputs import choice, integer, number, powers_of_two
from calculators.core.numbers import format_number
from calculators.core.units import GB
from calculators.core.worked import Worked, quantity, total
from calculators.formulas.collectives import allreduce_factor
from calculators.formulas.context import gathered_bytes, kv_bytes
from calculators.formulas.layout import ELEM_BYTES, Job, coordinates, dp_traffic, group, job_of, micro_batches, wrong_shape
from calculators.formulas.tensor import ALL_REDUCES, kv_heads_per_gpu, message_bytes, near

ORDERS = {
    "tp-cp-pp-dp": "TP·CP·PP·DP",
    "pp-tp-cp-dp": "PP·TP·CP·DP",
    "dp-tp-cp-pp": "DP·TP·CP·PP",
    "dp-pp-cp-tp": "DP·PP·CP·TP，倒过来",
}
KINDS = ("tp", "cp", "pp", "dp")
MOST_DRAWN = 512
"""Cards that the map draws."""


@dataclass(frozen=True)
class Move:
    """What one kind of parallelism sends from one card in a step."""

    kind: str
    nodes: int
    gb: float
    link: str
    bandwidth: float

    @property
    def seconds(self) -> float:
        return self.gb / self.bandwidth

    def row(self) -> Row:
        return {"kind": self.kind, "nodes": self.nodes, "gb": self.gb, "link": self.link, "seconds": self.seconds}


@dataclass(frozen=True)
class Trace:
    groups: dict[str, list[int]]
    moves: list[Move]
    total: int


def _chart(run: Run, *, rank: int, gpus_per_node: int, **_: object) -> tuple[Chart, ...]:
    trace = run.result.trace
    assert isinstance(trace, Trace)
    used = [move for move in trace.moves if move.gb]
    times = BarChart(
        "每步搬的字节，落在哪条链路上",
        "条长是搬完的时间，旁边是字节。同样的字节，落到网卡上就要几倍的时间。这里不管藏不藏得住。",
        Axis("时间", "s"),
        tuple(Bar(f"{move.kind}，{move.link}", (Part("搬", move.seconds),), f"{format_number(move.gb, digits=3)} GB") for move in used),
    )
    if trace.total > MOST_DRAWN:
        return (times,) if used else ()
    nodes = -(-trace.total // gpus_per_node)
    labels = {r: kind.upper() for kind, ranks in trace.groups.items() for r in ranks if r != rank} | {rank: "我"}
    shades = {kind.upper(): 1.0 - 0.2 * i for i, kind in enumerate(KINDS)} | {"我": 1.0}
    texts = tuple(tuple(labels.get(n * gpus_per_node + i, "") for i in range(gpus_per_node)) for n in range(nodes))
    cells = tuple(tuple(shades[text] if text else None for text in row) for row in texts)
    here = Grid(
        f"卡 {rank} 和谁同组",
        "一行一台机器。写着 TP 的和它一起做 TP，其余类推。同组的都在一行里，就走 NVLink；散到几行，就走网卡。",
        tuple(f"机器 {n}" for n in range(nodes)), ("",) * gpus_per_node, cells, texts, low=0, high=1.0,
    )  # fmt: skip
    return (here, times) if used else (here,)


@calculator(
    title="谁和谁在一台机器里",
    question="卡按什么次序编号，哪种并行落在机内，哪种落到网卡上？",
    chapter="14",
    inputs=(
        choice("order", "从里到外", "tp-cp-pp-dp", tuple(ORDERS), labels=ORDERS),
        integer("n_gpus", "一共几张卡", 64, "card", low=1, high=131_072, stops=powers_of_two(8, 16_384)),
        integer("tp", "tp", 8, low=1, high=72, stops=powers_of_two(1, 64)),
        integer("cp", "cp", 1, low=1, high=64, stops=powers_of_two(1, 16)),
        integer("pp", "pp", 4, low=1, high=256, stops=powers_of_two(1, 64)),
        integer("rank", "看第几张卡", 0, low=0, high=131_071, stops=tuple(range(0, 64, 4))),
        model_input("llama-3-70b", more=True, help="稠密模型"),
        integer("seq", "序列长度", 8192, "token", low=128, high=4_000_000, kind="tokens", more=True, stops=powers_of_two(1024, 131_072)),
        integer("global_batch", "全局 batch", 64, "sequence", low=1, high=1_000_000, more=True, stops=powers_of_two(1, 16_384), help="micro-batch 是 1"),
        integer("gpus_per_node", "一台几卡", 8, "card", low=1, high=72, more=True, stops=(1, 2, 4, 8, 16, 32, 64, 72)),
        number("bw_intra", "机内，每卡单向", 360, "GB/s", low=1, high=1000, more=True, stops=(45, 90, 160, 180, 360, 720, 1000)),
        number("bw_inter", "跨机，每卡单向", 45, "GB/s", low=1, high=1000, more=True, stops=(5, 12, 22.5, 45, 50, 90, 180, 360)),
    ),
    outputs=(
        Output("dp", "dp"),
        Output("node", "在第几台"),
        Output("tp_rank", "TP 组里第几"),
        Output("cp_rank", "CP 组里第几"),
        Output("pp_rank", "PP 组里第几"),
        Output("dp_rank", "DP 组里第几"),
        Output("traffic", "每步每卡发出什么", main=True, digits=3, columns=(("kind", "并行", ""), ("nodes", "一组跨几台", ""), ("gb", "每步每卡", "GB"), ("link", "走", ""), ("seconds", "搬完要", "s"))),
        Output("nic_gb", "走网卡的，每步每卡", "GB", main=True),
        Output("seconds", "都搬完，不重叠", "s", main=True),
        Output("llama3_order_s", "按 TP、CP、PP、DP 排的话", "s"),
    ),
    chart=_chart,
    formula=(
        "rank = tp + TP × (cp + CP × (pp + PP × dp))，次序换了就把名字换个位置",
        "TP = m × 4 × (L/pp) × 2(tp − 1)/tp × 2bsh；CP = m × 2 × (L/pp) × (cp − 1)/cp × K、V；s 是每卡的一段",
        "PP = m × 2 × 2bsh，前向一次、反向一次；DP = 2 × (n − 1)/n × 2 × 每卡参数，n = dp × cp",
        "一组全在一台里走机内的带宽，否则走跨机的",
    ),
    assumptions=("一台放连着的几个编号；micro-batch 1，1F1B，ZeRO-1 或 2；BF16", "PP 算中间的一段；TP 组里的卡各发一份一样的边界激活"),
    leaves_out="不算重叠、延迟、网卡之间抢路，也不算 DP 可以先在机内归约再出门（第 05 章）。只用来比排布，不是步时。",
    sources=("Llama 3 报告 §3.3.2：[TP, CP, PP, DP]", "各项字节：第 10–13 章"),
)  # fmt: skip
def rank_map(
    *, model: Model, order: str, n_gpus: int, tp: int, cp: int, pp: int, rank: int, seq: int, global_batch: int, gpus_per_node: int, bw_intra: float,
    bw_inter: float,
) -> Result:  # fmt: skip
    """Coordinates by mixed radix; a group is what differs in one of them."""
    if model.moe is not None:
        raise refuse("model", "MoE 请用 moe-ep 单独算", model.name, "换一个稠密模型")
    job = job_of(model, seq, global_batch)
    sizes = {"tp": tp, "cp": cp, "pp": pp, "dp": _dp(job, n_gpus, tp, cp, pp, rank)}
    sent = _bytes_per_step(job, sizes)

    def groups_of(layout: str) -> dict[str, list[int]]:
        names = layout.split("-")
        return {kind: group(rank, tuple(sizes[n] for n in names), names.index(kind)) for kind in KINDS}

    def moves_of(groups: dict[str, list[int]]) -> list[Move]:
        moves = []
        for kind in KINDS:
            nodes = len({r // gpus_per_node for r in groups[kind]})
            link, bandwidth = ("机内", bw_intra) if nodes == 1 else ("网卡", bw_inter)
            moves.append(Move(kind.upper(), nodes, sent[kind] / GB, link if sent[kind] else "", bandwidth))
        return moves

    groups = groups_of(order)
    moves, usual = moves_of(groups), moves_of(groups_of("tp-cp-pp-dp"))
    names = order.split("-")
    places = dict(zip(names, coordinates(rank, tuple(sizes[n] for n in names)), strict=True))
    w = Worked()
    inner, *others = names
    terms = quantity(places[others[-1]])
    for name in reversed(others[:-1]):
        terms = quantity(places[name]) + quantity(sizes[name]) * terms
    w.line(f"编号：{' + … × ('.join(names[:-1])} + … × {names[-1]}{')' * (len(names) - 2)}", quantity(places[inner]) + quantity(sizes[inner]) * terms)
    w.say(f"第 {rank} 张卡 → 第 {rank // gpus_per_node} 台")
    times = [w.line(f"{move.kind}，走{move.link}", quantity(move.gb, "GB") / quantity(move.bandwidth, "GB/s"), "s") for move in moves if move.gb]
    whole = w.line("都搬完，不重叠", total(times), "s") if times else quantity(0, "s")
    usual_s = sum(move.seconds for move in usual)
    return Result(
        values={
            "dp": sizes["dp"], "node": rank // gpus_per_node, **{f"{kind}_rank": places[kind] for kind in KINDS}, "traffic": [move.row() for move in moves], "nic_gb": sum(move.gb for move in moves if move.link == "网卡"), "seconds": whole,
            "llama3_order_s": usual_s,
        },
        lines=w.lines,
        verdict=_verdict(moves, whole.value, usual_s, order, tp, gpus_per_node),
        trace=Trace(groups, moves, n_gpus),
    )  # fmt: skip


def _dp(job: Job, n_gpus: int, tp: int, cp: int, pp: int, rank: int) -> int:
    """Raises Refusal."""
    cards = tp * cp * pp
    if n_gpus % cards:
        raise refuse("n_gpus", f"{n_gpus} 不能被 tp·cp·pp={cards} 整除", f"{n_gpus} / {cards}", f"可取 {max(1, n_gpus // cards) * cards}")
    if rank >= n_gpus:
        raise refuse("rank", "编号从 0 数起，必须小于卡数", f"{rank}，一共 {n_gpus} 张", f"最大 {n_gpus - 1}")
    if reason := wrong_shape(job.shape, tp):
        raise refuse("tp", reason, f"tp 是 {tp}", f"可取 {near(job.shape.legal, tp)}")
    if pp > job.shape.layers:
        raise refuse("pp", "流水段数 pp 不能超过层数", f"{pp} > {job.shape.layers}", f"最多 {job.shape.layers}")
    dp = n_gpus // cards
    if not micro_batches(job.global_batch, dp, 1):
        raise refuse("global_batch", "每个 DP 组分不到整数个微批", f"{job.global_batch} / {dp}", f"可取 {-(-job.global_batch // dp) * dp}")
    return dp


def _bytes_per_step(job: Job, sizes: dict[str, int]) -> dict[str, float]:
    """What one card sends, by kind of parallelism."""
    shape, t, c, p = job.shape, sizes["tp"], sizes["cp"], sizes["pp"]
    m, layers = micro_batches(job.global_batch, sizes["dp"], 1), shape.layers / p
    message = message_bytes(job.seq / c, float(shape.hidden), float(ELEM_BYTES))
    kv = kv_bytes(float(job.seq), float(shape.head_dim), float(kv_heads_per_gpu(shape.kv_heads, t)), float(ELEM_BYTES))
    return {
        "tp": m * layers * ALL_REDUCES * allreduce_factor(float(t)) * message,
        "cp": m * layers * 2 * gathered_bytes(float(c), kv),
        "pp": m * 2 * message if p > 1 else 0.0,
        "dp": dp_traffic(2.0, float(sizes["dp"] * c), ELEM_BYTES * job.params / (t * p)),
    }


def _verdict(moves: list[Move], seconds: float, usual: float, order: str, tp: int, node: int) -> str:
    busy = [move for move in moves if move.gb]
    if not busy:
        return "只有一张卡在干活，什么也不用搬。"
    most = max(busy, key=lambda move: move.gb)
    said = f"搬得最多的是 {most.kind}：每步每卡 {format_number(most.gb, digits=3)} GB，走{most.link}，{format_number(most.seconds, digits=3)} 秒。"
    if seconds > usual * (1 + 1e-9):
        return said + f"换回 TP、CP、PP、DP 的次序，一共只要 {format_number(usual, digits=3)} 秒，现在是 {format_number(seconds, digits=3)} 秒。"
    if seconds < usual * (1 - 1e-9):
        return said + f"一共 {format_number(seconds, digits=3)} 秒，比 TP、CP、PP、DP 的次序还少（{format_number(usual, digits=3)} 秒）。"
    too_wide = f"tp {tp} 比一台的 {node} 张卡还多，缩到一台以内。" if order.startswith("tp") and tp > node else ""
    return said + f"一共 {format_number(seconds, digits=3)} 秒。{too_wide}"
