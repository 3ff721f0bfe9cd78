"""P4 all-reduce 与 α–β：几个进程排成环，在共享内存里把梯度加起来，1 KB 到 64 MB 各测几次。

先用第 10 章的「ring 要多久」写下预测，再跑：python3 ring_mp.py
多卡：python3 ring_mp.py --backend nccl --n 8（要 PyTorch）；gloo 是 PyTorch 的 CPU 版。进程比核多，测到的是抢核。"""

import multiprocessing
import statistics
import sys
import tempfile
import time

try:
    import kit
except ImportError:
    sys.exit("缺 kit.py：把它和这个脚本放进同一个目录再跑（第 24 章有下载）。")

TABLE = {
    "n": (2, 2, 64, "几个进程（或几张卡）"),
    "max-mb": (64.0, 0.004, 4096.0, "最大的消息，MB；每个进程手里都有这么大一份"),
    "repeats": (9, 3, 1000, "每种大小测几次，取中位数"),
    "backend": ("shared", ("shared", "gloo", "nccl"), None, "shared：共享内存里的环，只要 NumPy"),
}


def with_shared(np, rank, a, memory, gate):
    """size → 这个进程的数组和一次 ring；每一步大家等齐。"""
    whole = np.frombuffer(memory, dtype=np.float32).reshape(a.n, -1)

    def prepare(size):
        mine, left = (np.array_split(whole[r % a.n, : size // 4], a.n) for r in (rank, rank - 1))

        def ring():
            for step in range(2 * a.n - 2):  # 前 n-1 步 reduce-scatter：收到就加；后 n-1 步 all-gather：收到就换
                chunk = (rank - 1 - step) % a.n
                (np.add(mine[chunk], left[chunk], out=mine[chunk]) if step < a.n - 1 else np.copyto(mine[chunk], left[chunk]))
                gate.wait()

        return whole[rank, : size // 4], ring

    return prepare, gate.wait


def with_torch(torch, rank, a, file):
    device, group = f"cuda:{rank}" if a.backend == "nccl" else "cpu", torch.distributed
    group.init_process_group(a.backend, init_method=f"file://{file}", rank=rank, world_size=a.n)

    def prepare(size):
        data = torch.empty(size // 4, device=device)
        return data, lambda: group.all_reduce(data)

    return prepare, (lambda: torch.cuda.synchronize(device)) if a.backend == "nccl" else group.barrier


def worker(rank, a, sizes, out, *extra):
    prepare, meet = with_shared(kit.package("numpy"), rank, a, *extra) if a.backend == "shared" else with_torch(kit.package("torch"), rank, a, *extra)
    for i, size in enumerate(sizes):
        data, reduce = prepare(size)
        for k in range(-1, a.repeats):  # 第 -1 次是热身
            data[:] = rank + 1
            meet()
            start = time.perf_counter()
            reduce()
            meet()
            if rank == 0 and k >= 0:
                out[i * a.repeats + k] = time.perf_counter() - start
            assert float(abs(data - a.n * (a.n + 1) / 2).max()) == 0, "和不对：环写错了"


def main():
    a = kit.options(__doc__, TABLE)
    torch = kit.package("torch", "python3 -m pip install torch，或改用 --backend shared") if a.backend != "shared" else kit.package("numpy", kit.NUMPY) and None
    if a.backend == "nccl" and torch.cuda.device_count() < a.n:
        kit.stop(f"nccl 要 {a.n} 张卡，这里只有 {torch.cuda.device_count()} 张：把 --n 调小，或改用 --backend gloo")
    mp, sizes = multiprocessing.get_context("spawn" if torch else None), [int(1024 * (a.max_mb * 1e6 / 1024) ** (i / 8)) // 4 * 4 for i in range(9)]
    out = mp.RawArray("d", len(sizes) * a.repeats)
    with tempfile.TemporaryDirectory() as folder:
        extra = (f"{folder}/meet",) if torch else (mp.RawArray("f", a.n * (sizes[-1] // 4)), mp.Barrier(a.n, timeout=60))
        team = [mp.Process(target=worker, args=(rank, a, sizes, out, *extra), daemon=True) for rank in range(a.n)]
        [process.start() for process in team]
        [process.join() for process in team]
    if any(process.exitcode for process in team):
        kit.stop("有进程没跑完：内存放不放得下每个进程一份？把 --max-mb 或 --n 调小再试", 1)
    rows = [[size, statistics.median(out[i * a.repeats : (i + 1) * a.repeats])] for i, size in enumerate(sizes)]
    for size, took in rows:
        print(f"{size / 1e6:9.4g} MB{took * 1e3:10.4g} ms   algbw{size / took / 1e9:8.4g} GB/s   busbw{2 * (a.n - 1) / a.n * size / took / 1e9:8.4g} GB/s")
    kit.csv(rows, "从测量拟合 α–β", f"# n={a.n}\nbytes,seconds")


if __name__ == "__main__":
    main()
