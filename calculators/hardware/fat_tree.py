"""How many hosts does a non-blocking fat tree of one switch model connect, and with how many switches?"""

from __future__ import annotations

from calculators.core.calculator import Output, Result, calculator
from calculators.core.errors import refuse
from calculators.core.inputs import integer
from calculators.core.numbers import format_number
from calculators.core.worked import Worked, quantity


@calculator(
    title="胖树能接多少台",
    question="这种交换机搭一棵不收敛的胖树，最多接多少个口？要买多少台交换机？",
    chapter="05",
    inputs=(
        integer("k", "每台交换机的端口", 64, low=4, high=128, stops=(4, 8, 16, 32, 36, 40, 48, 64, 72, 96, 128), help="要取偶数：一半朝下，一半朝上"),
        integer("levels", "几层", 2, "layer", low=2, high=3, stops=(2, 3)),
    ),
    outputs=(
        Output("hosts", "接得下的主机（一台一个口）", "台", main=True),
        Output("switches", "交换机", "台", main=True),
        Output("ports_per_host", "每台主机摊到的交换机端口", main=True),
    ),
    formula=("两层：主机 k²/2，交换机 k + k/2", "三层：主机 k³/4，交换机 5k²/4"),
    assumptions=("一台主机一个口；有 8 块网卡的服务器算 8 个口", "每一层的下行和上行一样宽（不收敛）"),
    leaves_out="不算收敛：叶到脊收到 1:ρ，跨叶的带宽就除以 ρ。不算轨道布线，也不算光模块和线缆。",
    sources=("Al-Fares et al. 2008, A Scalable, Commodity Data Center Network Architecture（凭记忆，未核实）；其余是数数",),
)
def fat_tree(*, k: int, levels: int) -> Result:
    """Half of every switch's ports point down, half up."""
    if k % 2:
        raise refuse("k", "端口数要能对半分：k 取偶数", k, f"可取 {k - 1} 或 {k + 1}")
    w = Worked()
    ports, half = quantity(k), w.line("每台朝下的口", quantity(k) / 2)
    if levels == 2:
        hosts = w.line("k 台叶交换机接的主机", ports * half, "台")
        switches = w.line("叶 k 台，脊 k/2 台", ports + half, "台")
    else:
        pod = w.line("一个 pod 接的主机", half * half, "台")
        hosts = w.line("k 个 pod 接的主机", ports * pod, "台")
        switches = w.line("每个 pod k 台，核心 (k/2)² 台", ports * ports + half * half, "台")
    each = w.line("每台主机摊到的端口", switches * ports / hosts)
    other = "两层只要 3 个" if levels == 3 else f"加到三层能接 {format_number(k * k * k // 4)} 台，每台摊 5 个"
    return Result(
        values={"hosts": round(hosts.value), "switches": round(switches.value), "ports_per_host": each},
        lines=w.lines,
        verdict=f"{format_number(round(hosts.value))} 台主机，{format_number(round(switches.value))} 台交换机，每台主机摊到 {round(each.value)} 个交换机端口。{other}。",
    )
