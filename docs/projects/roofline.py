"""P1 自己的 Roofline：方阵乘、矩阵乘向量（GEMV）、拷贝，各跑多快。

先在第 24 章写下预测的峰值和带宽，再跑：python3 roofline.py
装了 PyTorch 就用它，有 CUDA 就在卡上跑（填 --max-n 8192 --dtype bfloat16）；没装就用 NumPy。"""

import os
import statistics
import sys

try:
    import kit
except ImportError:
    sys.exit("缺 kit.py：把它和这个脚本放进同一个目录再跑（第 24 章有下载）。")

TABLE = {
    "max-n": (2048, 64, 32768, "最大的方阵边长，从 256 起翻倍"),
    "gemv-n": (8192, 64, 65536, "GEMV 的边长"),
    "copy-mb": (256, 1, 65536, "拷贝的数组，MiB；要比缓存大得多"),
    "repeats": (20, 3, 1000, "每项测几次"),
    "threads": (0, 0, 1024, "CPU 线程数，0 是全部"),
    "backend": ("auto", ("auto", "numpy", "torch"), None, "auto：有 PyTorch 就用它"),
    "dtype": ("float32", ("float32", "bfloat16"), None, "bfloat16 要 PyTorch"),
}


def with_numpy(np, a):
    """造数、乘、拷贝、同步。"""
    random = np.random.default_rng(0)
    return lambda *shape: random.standard_normal(shape, dtype=np.float32), np.matmul, np.copyto, np.empty_like, lambda: None


def with_torch(torch, a):
    device, dtype = "cuda" if torch.cuda.is_available() else "cpu", getattr(torch, a.dtype)
    if a.threads:
        torch.set_num_threads(a.threads)
    sync = torch.cuda.synchronize if device == "cuda" else lambda: None
    return lambda *shape: torch.randn(shape, device=device, dtype=dtype), torch.matmul, lambda to, it: to.copy_(it), torch.empty_like, sync


def main():
    a = kit.options(__doc__, TABLE)
    if a.threads:
        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"):
            os.environ[name] = str(a.threads)
    torch = None if a.backend == "numpy" else kit.package("torch")
    if torch is None and a.backend == "torch":
        kit.stop("没有 PyTorch：装上，或改用 --backend numpy", 1)
    if torch is None and a.dtype != "float32":
        kit.stop("NumPy 没有 bfloat16：装 PyTorch，或改用 --dtype float32")
    random, matmul, copy, empty, sync = with_torch(torch, a) if torch else with_numpy(kit.package("numpy", kit.NUMPY), a)
    width, rows = 4 if a.dtype == "float32" else 2, []
    cuda = torch is not None and torch.cuda.is_available()
    print(f"PyTorch {torch.__version__}，{torch.cuda.get_device_name() if cuda else 'CPU'}" if torch else "NumPy，CPU", a.dtype, sep="，")

    def note(name, flops, moved, work):
        seconds = kit.timed(work, a.repeats, sync)
        middle = statistics.median(seconds)
        low, high = min(seconds) * 1e3, max(seconds) * 1e3
        shaky = "  <- 抖得厉害，关掉别的程序再测" if sorted(seconds)[len(seconds) * 9 // 10] > 1.5 * middle else ""
        print(f"{name:<14}{middle * 1e3:9.4g} ms（{low:.4g}–{high:.4g}）{flops / middle / 1e9:10.4g} GFLOP/s{moved / middle / 1e9:9.4g} GB/s{shaky}")
        rows.append((float(flops), float(moved), middle))

    n = min(256, a.max_n)
    while n <= a.max_n:
        left, right = random(n, n), random(n, n)
        out = empty(left)
        note(f"matmul {n}", 2 * n**3, 3 * n * n * width, lambda: matmul(left, right, out=out))  # noqa: B023
        n *= 2
    matrix, vector = random(a.gemv_n, a.gemv_n), random(a.gemv_n, 1)
    product = empty(vector)
    note(f"gemv {a.gemv_n}", 2 * a.gemv_n**2, a.gemv_n**2 * width, lambda: matmul(matrix, vector, out=product))
    source = random(a.copy_mb * 2**20 // width, 1)
    target = empty(source)
    note(f"copy {a.copy_mb} MiB", 0, 2 * a.copy_mb * 2**20, lambda: copy(target, source))
    kit.csv(rows, "从实测点画 Roofline", "flops,bytes,seconds")


if __name__ == "__main__":
    main()
