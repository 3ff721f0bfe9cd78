"""P3 MFU：训一个小 GPT，先猜 MFU，再看每秒真训了几个 token。

跑：python3 train_tiny.py（有 PyTorch 用 tiny_gpt_torch.py，没有用 tiny_gpt.py，放在同一个目录）
卡上：--batch 16 --seq 512 --steps 200，再把 --bf16 --sdpa --compile 一个一个打开，看 MFU 怎么涨。
口径：F/token = 6N' + 12Lhs，N' 不含输入那份词表；注意力按整块算；没有重计算。"""

import statistics
import sys
import time

try:
    import kit
except ImportError:
    sys.exit("缺 kit.py：把它和这个脚本放进同一个目录再跑（第 24 章有下载）。")

TABLE = {
    "layers": (8, 1, 96, "层数 L"),
    "width": (512, 64, 8192, "宽 h，64 的倍数"),
    "vocab": (8192, 16, 200000, "词表 V"),
    "seq": (128, 2, 32768, "一条几个 token"),
    "batch": (1, 1, 4096, "一步几条"),
    "steps": (20, 3, 10000, "测几步；另外热身 3 步"),
    "mfu": (0.3, 0.001, 1.0, "你猜的 MFU"),
    "peak-gflop-s": (0.0, 0.0, 1e7, "峰值；0 是现场测一个大矩阵乘，卡上填规格书的"),
    "backend": ("auto", ("auto", "numpy", "torch"), None, "auto：有 PyTorch 就用它"),
    "bf16": (False, None, None, "用 BF16 算（要 PyTorch）"),
    "sdpa": (False, None, None, "用融合的注意力（要 PyTorch）"),
    "compile": (False, None, None, "torch.compile（要 PyTorch）"),
}


def with_numpy(a):
    np, gpt = kit.package("numpy", kit.NUMPY), kit.package("tiny_gpt", "把 tiny_gpt.py 放进同一个目录（第 24 章有下载）")
    model, tokens = gpt.NumpyGPT(np, a.layers, a.width, a.vocab), np.random.default_rng(1).integers(0, a.vocab, (a.batch, a.seq + 1))
    matrix = np.random.default_rng(0).standard_normal((1024, 1024), dtype=np.float32)

    def step():
        probs, saved = model.forward(tokens[:, :-1])
        model.step(model.backward(probs, tokens[:, 1:], saved))

    return step, lambda: None, 1024, lambda: matrix @ matrix


def with_torch(a):
    gpt = kit.package("tiny_gpt_torch", "把 tiny_gpt_torch.py 放进同一个目录（第 24 章有下载）")
    model = gpt.Trainer(a.layers, a.width, a.vocab, a.batch, a.seq, a.sdpa, a.bf16, a.compile)
    return (model.whole_step, gpt.sync, *gpt.square(a.bf16))


def main():
    a = kit.options(__doc__, TABLE)
    torch = None if a.backend == "numpy" else kit.package("torch", a.backend == "torch" and "装上再跑：python3 -m pip install torch，或改用 --backend numpy")
    if not torch and (a.bf16 or a.sdpa or a.compile):
        kit.stop("--bf16、--sdpa、--compile 要 PyTorch：装上它，或去掉这几个")
    if a.width % 64:
        kit.stop(f"--width 要是 64 的倍数（头宽 64），你填了 {a.width}，例如 --width 512")
    step, sync, n, multiply = with_torch(a) if torch else with_numpy(a)
    peak = a.peak_gflop_s or 2 * n**3 / min(kit.timed(multiply, 5, sync)) / 1e9
    body = 12 * a.layers * a.width**2 + a.vocab * a.width
    each = 6 * body + 12 * a.layers * a.width * a.seq
    predicted = a.mfu * peak * 1e9 / each
    print(f"N = {body + a.vocab * a.width:,}，F/token = {each / 1e6:.4g} MFLOP，峰值 {peak:.4g} GFLOP/s，预测 {predicted:.4g} token/s（MFU {a.mfu:.0%}）")
    speeds = []
    for k in range(-3, a.steps):
        sync()
        start = time.perf_counter()
        step()
        sync()
        if k >= 0:
            speeds.append(a.batch * a.seq / (time.perf_counter() - start))
    print(f"实测 {statistics.median(speeds):.4g} token/s，MFU {statistics.median(speeds) * each / peak / 1e9:.1%}（6N' + 12Lhs）")
    kit.csv([["P3", "训练", "throughput", "tok/s", 0.2, f"mfu={a.mfu:g}", predicted, *speeds[-100:]]])


if __name__ == "__main__":
    main()
