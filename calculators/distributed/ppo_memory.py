"""Reinforcement learning from feedback trains one or two models and reads two more: what do they weigh before the first token?"""

from __future__ import annotations

from calculators.core.calculator import Output, Result, Run, calculator
from calculators.core.charts import Axis, Bar, BarChart, Chart, Part
from calculators.core.inputs import choice, number
from calculators.core.numbers import format_number
from calculators.core.units import GB
from calculators.core.worked import Worked, quantity
from calculators.formulas.memory import state_bytes

SIZES = (0, 0.5e9, 1.5e9, 7e9, 8e9, 13e9, 32e9, 70e9, 405e9, 671e9)
TRAINED = {"12": "12：没有主权重", "16": "16：FP32 主权重和 m、v", "18": "18：梯度也是 FP32"}
READ = {"1": "1：FP8", "2": "2：BF16"}


def _chart(
    run: Run, *, actor_params: float, critic_params: float, ref_params: float, reward_params: float, train_bytes: int, infer_bytes: int
) -> tuple[Chart, ...]:
    sizes = (
        ("actor", actor_params, train_bytes),
        ("critic", critic_params, train_bytes),
        ("参考", ref_params, infer_bytes),
        ("奖励", reward_params, infer_bytes),
    )
    parts = tuple(Part(name, state_bytes(params, float(each)) / GB) for name, params, each in sizes if params)
    return (
        BarChart(
            "四个模型谁最重",
            "要训的两个各带一身优化器状态，只读的两个只有权重。",
            Axis("显存", "GB"),
            (Bar("PPO", parts, run.texts["total_gb"], emphasis=True), Bar("SFT", (parts[0],), run.texts["sft_gb"])),
        ),
    )


@calculator(
    title="RLHF 要装几个模型",
    question="PPO 的四个模型，静态显存是 SFT 的几倍？",
    chapter="14",
    inputs=(
        number("actor_params", "actor，要训", 7e9, "params", low=0, low_open=True, high=2e12, stops=SIZES[1:]),
        number("critic_params", "critic，要训", 7e9, "params", low=0, high=2e12, stops=SIZES, help="0：GRPO，没有 critic"),
        number("ref_params", "参考模型，只读", 7e9, "params", low=0, high=2e12, stops=SIZES),
        number("reward_params", "奖励模型，只读", 7e9, "params", low=0, high=2e12, stops=SIZES, help="0：用规则打分"),
        choice("train_bytes", "要训的，每个参数", 16, (12, 16, 18), "B", labels=TRAINED),
        choice("infer_bytes", "只读的，每个参数", 2, (1, 2), "B", labels=READ, more=True),
    ),
    outputs=(
        Output("total_gb", "静态状态", "GB", main=True),
        Output("sft_gb", "只做 SFT", "GB", main=True),
        Output("ratio_to_sft", "是 SFT 的", "×", main=True),
        Output("bytes_per_actor_param", "摊到 actor 每个参数", "B"),
    ),
    chart=_chart,
    formula=("总 = (actor + critic) × 训练字节 + (参考 + 奖励) × 只读字节", "SFT = actor × 训练字节"),
    assumptions=("只算静态状态：权重、梯度、优化器", "四个模型同时在卡上，谁也没切、没卸载"),
    leaves_out="不算 rollout 的 KV cache 和激活；rollout 用单独的推理引擎时，actor 还要多一份权重（每参数 2 字节）。真实的峰值比这高。",
    sources=("Rajbhandari et al. 2020（ZeRO）：每参数 16 字节", "Ouyang et al. 2022（InstructGPT）：四个模型；凭记忆，没有对过原文"),
)  # fmt: skip
def ppo_memory(*, actor_params: float, critic_params: float, ref_params: float, reward_params: float, train_bytes: int, infer_bytes: int) -> Result:
    """Two models with optimizer states, two with weights alone."""
    w = Worked()
    train, read = quantity(train_bytes, "B"), quantity(infer_bytes, "B")
    actor, critic, ref, reward = (quantity(p, "params") for p in (actor_params, critic_params, ref_params, reward_params))
    trained = w.line("要训的", state_bytes(actor + critic, train), "GB")
    fixed = w.line("只读的", state_bytes(ref + reward, read), "GB")
    whole = w.line("静态状态", trained + fixed, "GB")
    sft = w.line("只做 SFT", state_bytes(actor, train), "GB")
    ratio = w.line("是 SFT 的", whole / sft, "×")
    each = w.line("摊到 actor 每个参数", whole / actor, "B")
    return Result(
        values={"total_gb": whole, "sft_gb": sft, "ratio_to_sft": ratio, "bytes_per_actor_param": each},
        lines=w.lines,
        verdict=f"静态 {whole.text}，SFT {sft.text}，{ratio.text}。" + _where(critic_params, ref_params + reward_params, actor_params, ratio.value),
    )


def _where(critic: float, read_only: float, actor: float, ratio: float) -> str:
    if critic:
        return f"去掉 critic（GRPO）是 {format_number(ratio - critic / actor, digits=3)} 倍：它和 actor 一样带着优化器。"
    if read_only:
        return "没有 critic，多出来的只是只读的权重。"
    return "只剩 actor，就是 SFT。"
