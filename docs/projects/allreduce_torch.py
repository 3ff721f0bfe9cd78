"""P4 的多卡版：torch.distributed 的 all-reduce，NCCL（几张卡）或 gloo（CPU 进程）。

跑：python3 allreduce_torch.py --n 8。印的 CSV 和 ring_mp.py 一样，贴进同一张卡片。"""

import statistics
import sys
import tempfile
import time

try:
    import kit
except ImportError:
    sys.exit("缺 kit.py：把它和这个脚本放进同一个目录再跑（第 24 章有下载）。")

TABLE = {
    "n": (2, 2, 64, "几张卡，或几个进程"),
    "max-mb": (64.0, 0.004, 16384.0, "最大的消息，MB"),
    "repeats": (20, 3, 1000, "每种大小测几次，取中位数"),
    "backend": ("auto", ("auto", "nccl", "gloo"), None, "auto：卡够就 nccl，不够就 gloo"),
}


def worker(rank, a, sizes, out, file):
    torch = kit.package("torch")
    device = f"cuda:{rank}" if a.backend == "nccl" else "cpu"
    torch.distributed.init_process_group(a.backend, init_method=f"file://{file}", rank=rank, world_size=a.n)
    sync = (lambda: torch.cuda.synchronize(device)) if a.backend == "nccl" else (lambda: None)
    for i, size in enumerate(sizes):
        data = torch.empty(size // 4, device=device)
        for k in range(-5, a.repeats):  # 前 5 次是热身
            data.fill_(rank + 1)
            sync()
            torch.distributed.barrier()
            sync()
            start = time.perf_counter()
            torch.distributed.all_reduce(data)
            sync()
            if rank == 0 and k >= 0:
                out[i * a.repeats + k] = time.perf_counter() - start
        if not bool((data == a.n * (a.n + 1) / 2).all()):
            kit.stop(f"卡 {rank} 的和不对", 1)
    torch.distributed.destroy_process_group()


def main():
    a = kit.options(__doc__, TABLE)
    torch = kit.package("torch", "装上再跑：python3 -m pip install torch；只有 NumPy 就改跑 ring_mp.py")
    if a.backend == "nccl" and torch.cuda.device_count() < a.n:
        kit.stop(f"nccl 要 {a.n} 张卡，这里有 {torch.cuda.device_count()} 张：把 --n 调小，或 --backend gloo")
    if a.backend == "auto":
        a.backend = "nccl" if torch.cuda.device_count() >= a.n else "gloo"
    mp = torch.multiprocessing.get_context("spawn")
    sizes = [int(1024 * (a.max_mb * 1e6 / 1024) ** (i / 8)) // 4 * 4 for i in range(9)]
    out = mp.RawArray("d", len(sizes) * a.repeats)
    with tempfile.TemporaryDirectory() as folder:
        team = [mp.Process(target=worker, args=(rank, a, sizes, out, f"{folder}/meet"), daemon=True) for rank in range(a.n)]
        for process in team:
            process.start()
        for process in team:
            process.join()
    if any(process.exitcode for process in team):
        kit.stop("有进程没跑完：看上面的报错，或把 --max-mb 调小再试", 1)
    rows = [[size, statistics.median(out[i * a.repeats : (i + 1) * a.repeats])] for i, size in enumerate(sizes)]
    print(f"{a.n} 个进程，{a.backend}")
    for size, took in rows:
        algbw = size / took / 1e9
        print(f"{size / 1e6:9.4g} MB{took * 1e3:10.4g} ms   algbw{algbw:8.4g} GB/s   busbw{2 * (a.n - 1) / a.n * algbw:8.4g} GB/s")
    kit.csv(rows, "从测量拟合 α–β", f"# n={a.n}\nbytes,seconds")


if __name__ == "__main__":
    main()
