"""C3 复现一张论文表：印的数一格一格重算，找出对不上的。

跑：python3 paper_table.py --table zero；四张表是 CSV，在脚本旁边或旁边的 tables 目录，也能加自己的行。
差在 1% 加最后一位的舍入以内算对上。对不上的，先查口径，再查是不是印错——这一步归你写。只用标准库。"""

import csv
import sys
from pathlib import Path

try:
    import kit
except ImportError:
    sys.exit("缺 kit.py：把它和这个脚本放进同一个目录再跑（第 24 章有下载）。")


def zero_gb(psi_b, n, stage):
    """权重 2、梯度 2、优化器 12 字节，第几级就切前几样。"""
    shares = {1: (1, 1, n), 2: (1, n, n), 3: (n, n, n)}[int(stage)]
    return sum(size * psi_b / share for size, share in zip((2, 2, 12), shares))  # noqa: B905


def megatron_b(layers, width, vocab=51200, seq=2048):
    """Narayanan 2021 式 2：12Lh² × (1 + 13/12h + (V + s)/12Lh)。"""
    return 12 * layers * width**2 * (1 + 13 / (12 * width) + (vocab + seq) / (12 * layers * width)) / 1e9


def megascale_pct(gpus, tok_s, pflops, layers=96, width=12288, vocab=64000, seq=2048, peak=312e12):
    """由 token/s：(6N + 12Lhs) × token/s ÷ 峰值；由 PFLOPS：直接除。"""
    each = 6 * (12 * layers * width**2 + vocab * width) + 12 * layers * width * seq
    return 100 * (pflops * 1e15 or tok_s * each) / (gpus * peak)


def llama3_pct(count, total):
    return 100 * count / total


TABLES = {"zero": zero_gb, "megatron": megatron_b, "megascale": megascale_pct, "llama3": llama3_pct}
TABLE = {
    "table": ("zero", tuple(TABLES), None, "哪张表：" + "、".join(TABLES)),
    "dir": (str(Path(__file__).resolve().parent / "tables"), None, None, "表在哪个目录"),
}


def main():
    a = kit.options(__doc__, TABLE)
    beside = Path(__file__).resolve().parent / f"{a.table}.csv"  # 下载时没建 tables 目录的
    path = beside if beside.is_file() else Path(a.dir) / beside.name
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    except (OSError, UnicodeDecodeError):
        kit.stop(f"读不了 {path}：把 {path.name} 放在脚本旁边（第 24 章有下载），或用 --dir 指过去", 1)
    rows = []
    for k, row in enumerate(csv.DictReader(lines), 1):
        try:
            name, printed, unit, *given = row.values()
            again = TABLES[a.table](*map(float, given))
            digits = len(printed.partition(".")[2])
            near = 0.01 + 0.5 * 10.0**-digits / float(printed)
            rows.append(["C3", name, "bytes", unit, near, "", float(printed), again])
        except (ValueError, KeyError, TypeError, ZeroDivisionError, AttributeError):
            kit.stop(f"{path.name} 第 {k} 行读不懂：{'，'.join(map(str, row.values()))}；每一格都要填数，0 不能当除数")
        off = again / float(printed) - 1
        print(f"{name}：印 {printed} {unit}，重算 {again:.4g} {unit}（{off:+.1%}）{'' if abs(off) <= near else '  <- 对不上'}")
    kit.csv(rows)


if __name__ == "__main__":
    main()
