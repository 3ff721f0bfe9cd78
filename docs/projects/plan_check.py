"""C1 检查方案书：读一份 TOML，用站点自己的计算器重算显存、MFU、天数、存档间隔，和方案书写的对。

跑：python3 plan_check.py --plan 我的方案.toml；不给就查自带的例子，--example 印出来当模板。在仓库里跑，Python 3.11 以上。"""

import sys
from pathlib import Path

try:
    import kit
except ImportError:
    sys.exit("缺 kit.py：把它和这个脚本放进同一个目录再跑（第 24 章有下载）。")

TABLE = {
    "plan": ("", None, None, "方案书，TOML"),
    "repo": (str(Path(__file__).resolve().parent / "../.."), None, None, "仓库在哪"),
    "example": (False, None, None, "印一份例子就走"),
}
EXAMPLE = """\
[plan]             # 名字和取值同第 14 章的「这套并行能不能跑」
model = "llama-3-70b"
gpu = "h100-sxm"
n_gpus = 64
tp = 8
pp = 1
zero_stage = 1
global_batch = 64
compute_eff = 0.65
[run]
tokens = 1e12      # 训多少 token
goodput = 0.95     # 有效时间
price = 2.5        # 每卡时，美元
mtti_h = 792       # 平均几小时断一次：50677 卡时 ÷ 64
delta_s = 100      # 存一次停几秒
margin_gb = 8      # 每卡至少留多少
mfu_band = 0.55    # 公开的同类最高，超过要写理由
[claims]
memory_gb = 71.0
mfu = 0.50
days = 163
interval_min = 398
"""


def main():
    a = kit.options(__doc__, TABLE)
    if a.example:
        return print(EXAMPLE)
    sys.path.insert(0, a.repo)
    tomllib = kit.package("tomllib", "用 Python 3.11 或更新的跑")
    index, errors = (kit.package(f"calculators.core.{name}", "在书的仓库里跑，或用 --repo 指到仓库（里面有 calculators 目录）") for name in ("index", "errors"))

    def run(id, given):
        return index.load(id).run({name: str(value) for name, value in given.items()}).values

    try:
        book = tomllib.loads(Path(a.plan).read_text(encoding="utf-8") if a.plan else EXAMPLE)
        plan, claims = book["plan"], {name: float(value) for name, value in book["claims"].items()}
        world = {name: float(value) for name, value in book["run"].items()}
        got, save = run("parallel-plan", plan), run("checkpoint-interval", {name: world[name] for name in ("mtti_h", "delta_s")})
        same = {name: plan[name] for name in ("model", "gpu", "n_gpus")}
        cost = run("train-cost", {**same, **{name: world[name] for name in ("tokens", "goodput", "price")}, "mfu": claims["mfu"]})
        margin, band, left = world["margin_gb"], world["mfu_band"], got["capacity_gb"] - got["total_gb"]
        rows = [
            ["显存", "bytes", "GB", 0.15, "", claims["memory_gb"], got["total_gb"]],
            ["MFU", "throughput", "%", 0.1, f"mfu={claims['mfu']:g}", 100 * claims["mfu"], got["mfu_pct"]],
            ["天数", "time", "天", 0.05, "", claims["days"], cost["days"]],
            ["存档间隔", "time", "min", 0.1, "", claims["interval_min"], save["daly_min"]],
        ]
    except errors.Refusal as refusal:
        kit.stop(f"方案不成立：{refusal}")
    except (OSError, tomllib.TOMLDecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
        kit.stop(f"读不懂方案书：{'缺 ' if isinstance(error, KeyError) else ''}{error}。用 --example 印一份模板照着填")
    print(*(f"{name}：方案书 {claim:g} {unit}，重算 {again:.4g} {unit}" for name, _, unit, _, _, claim, again in rows), sep="\n")
    print(f"每卡剩 {left:.3g} GB，要留 {margin:g} GB：{'够' if left >= margin else '不够，改方案'}")
    print(f"MFU {'没超过' if claims['mfu'] <= band else '超过'}公开的 {band:.0%}；租金 {cost['cost']:,.0f} 美元；气泡 {got['bubble_ratio_pct']:.3g}%")
    kit.csv(["C1", *row] for row in rows)


if __name__ == "__main__":
    main()
