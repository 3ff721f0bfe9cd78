"""P6 decode 速度：随机权重叠几层，一次出一个 token，batch 从 1 翻倍，看从哪儿开始变慢。

预测：batch 1 的一步 = 权重字节 ÷ 带宽；拐点 = 算力 × 每权重字节 ÷ (2 × 带宽)。跑：python3 decode.py
带宽、算力不填就现场测（拷贝、大矩阵乘），也可以填 P1 的数。没有 KV，不下载模型：随机权重一样快。"""

import statistics
import sys

try:
    import kit
except ImportError:
    sys.exit("缺 kit.py：把它和这个脚本放进同一个目录再跑（第 24 章有下载）。")

TABLE = {
    "layers": (12, 1, 200, "几层；总权重要比缓存大得多"),
    "width": (1024, 64, 16384, "宽 h，一层 12h² 个权重；卡上填 8192"),
    "max-batch": (64, 1, 8192, "最大的 batch；卡上填 1024"),
    "gb-s": (0.0, 0.0, 1e6, "预测用的带宽；0 是现场测"),
    "gflop-s": (0.0, 0.0, 1e8, "预测用的算力；0 是现场测"),
    "repeats": (10, 3, 1000, "每个 batch 测几次"),
    "backend": ("auto", ("auto", "numpy", "torch"), None, "auto：有 PyTorch 就用它，CUDA 上用 BF16"),
}


def with_numpy(a):
    np = kit.package("numpy", kit.NUMPY)
    draw = np.random.default_rng(0)
    return lambda *shape: draw.standard_normal(shape, dtype=np.float32), np.matmul, np.copyto, np.empty_like, 4, lambda: None


def with_torch(torch):
    cuda = torch.cuda.is_available()
    random = lambda *shape: torch.randn(shape, device="cuda" if cuda else "cpu", dtype=torch.bfloat16 if cuda else torch.float32)  # noqa: E731
    return random, torch.matmul, lambda to, it: to.copy_(it), torch.empty_like, 2 if cuda else 4, torch.cuda.synchronize if cuda else lambda: None


def bend(batches, medians):
    """时间涨到 batch 1 的两倍时的 batch，除以二；没涨到就是 None。"""
    for (b0, t0), (b1, t1) in zip(zip(batches, medians), zip(batches[1:], medians[1:])):  # noqa: B905
        if t1 >= 2 * medians[0]:
            return (b0 + (b1 - b0) * (2 * medians[0] - t0) / (t1 - t0)) / 2
    return None


def main():
    a = kit.options(__doc__, TABLE)
    torch = None if a.backend == "numpy" else kit.package("torch", a.backend == "torch" and "装上再跑：python3 -m pip install torch，或改用 --backend numpy")
    random, matmul, copy, empty, width, sync = with_torch(torch) if torch else with_numpy(a)
    stack = [random(i * a.width, o * a.width) * (a.width * i) ** -0.5 for _ in range(a.layers) for i, o in ((1, 3), (1, 1), (1, 4), (4, 1))]
    total, source = 12 * a.layers * a.width**2 * width, random(2**26 // width, 1)
    target, square = empty(source), random(4096 if width == 2 else 1024, 4096 if width == 2 else 1024)
    rate = a.gb_s or 2 * 2**26 / statistics.median(kit.timed(lambda: copy(target, source), 7, sync)) / 1e9
    peak = a.gflop_s or 2 * len(square) ** 3 / statistics.median(kit.timed(lambda: matmul(square, square), 7, sync)) / 1e9
    told = peak * width / 2 / rate
    print(f"权重 {total / 1e6:.4g} MB，带宽 {rate:.4g} GB/s，算力 {peak:.4g} GFLOP/s")
    print(f"预测：batch 1 一步 {total / rate / 1e6:.4g} ms，拐点 batch {told:.3g}")
    batches, times = [2**i for i in range(a.max_batch.bit_length())], []
    for batch in batches:
        inputs = [random(batch, a.width), random(batch, 4 * a.width)]
        outputs = [empty(random(batch, w.shape[1])) for w in stack[:4]]

        def token():
            for k, w in enumerate(stack):
                matmul(inputs[k % 4 == 3], w, out=outputs[k % 4])  # noqa: B023

        times.append(kit.timed(token, a.repeats, sync))
        middle = statistics.median(times[-1])
        print(f"batch {batch:<5}{middle * 1e3:9.4g} ms{batch / middle:10.4g} token/s，读权重 {total / middle / 1e9:.4g} GB/s")
    rows = [["P6", "batch 1 一步", "time", "ms", 0.3, f"gb_s={rate:.6g}", total / rate / 1e6, *(t * 1e3 for t in times[0])]]
    bends = [b for b in (bend(batches, [statistics.median(t[k::3]) for t in times]) for k in range(3)) if b]
    if len(bends) == 3:
        side = ("bytes", "", 1.0, f"gb_s={rate:.6g}") if statistics.median(bends) > told else ("throughput", "", 1.0, f"gflop_s={peak:.6g}")
        rows.append(["P6", "拐点 batch", *side, told, *bends])  # 早来晚来都按大的比小的，容差 1 就是 2 倍
    else:
        print("batch 1 的时间还没翻倍：把 --max-batch 加大，才看得见拐点")
    kit.csv(rows)


if __name__ == "__main__":
    main()
