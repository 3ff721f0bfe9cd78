"""P4 all-reduce 与 α–β：几个进程排成环，在共享内存里把梯度加起来，1 KB 到 64 MB 各测几次。

先用第 10 章的「一次 all-reduce 要多久」写下预测，再跑：python3 ring_mp.py
进程比核多，测到的是抢核，报告里要写明。多卡用 allreduce_torch.py。"""

import multiprocessing as mp
import os
import statistics
import sys
import time

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
try:
    import kit
except ImportError:
    sys.exit("缺 kit.py：把它和这个脚本放进同一个目录再跑（第 24 章有下载）。")

TABLE = {
    "n": (2, 2, 64, "几个进程"),
    "max-mb": (64.0, 0.004, 4096.0, "最大的消息，MB；每个进程手里都有这么大一份"),
    "repeats": (9, 3, 1000, "每种大小测几次，取中位数"),
}


def ring(np, rank, n, mine, left, meet):
    """前 n-1 步 reduce-scatter，收到就加；后 n-1 步 all-gather，收到就换。"""
    for step in range(2 * n - 2):
        chunk = (rank - 1 - step) % n
        if step < n - 1:
            np.add(mine[chunk], left[chunk], out=mine[chunk])
        else:
            np.copyto(mine[chunk], left[chunk])
        meet()


def worker(rank, a, sizes, memory, gate, out):
    """每种大小：热身一次，再测 repeats 次；每次都查和对不对。"""
    np = kit.package("numpy", kit.NUMPY)
    whole = np.frombuffer(memory, dtype=np.float32).reshape(a.n, -1)
    for i, size in enumerate(sizes):
        data = whole[rank, : size // 4]
        mine, left = np.array_split(data, a.n), np.array_split(whole[rank - 1, : size // 4], a.n)
        for k in range(-1, a.repeats):
            data[:] = rank + 1
            gate.wait()
            start = time.perf_counter()
            ring(np, rank, a.n, mine, left, gate.wait)
            if rank == 0 and k >= 0:
                out[i * a.repeats + k] = time.perf_counter() - start
            if not (data == a.n * (a.n + 1) / 2).all():
                kit.stop(f"卡 {rank} 的和不对：环写错了", 1)
            gate.wait()


def main():
    a = kit.options(__doc__, TABLE)
    kit.package("numpy", kit.NUMPY)
    sizes = [int(1024 * (a.max_mb * 1e6 / 1024) ** (i / 8)) // 4 * 4 for i in range(9)]
    try:
        memory, out = mp.RawArray("f", a.n * (sizes[-1] // 4)), mp.RawArray("d", len(sizes) * a.repeats)
    except (OSError, MemoryError):
        kit.stop(f"共享内存放不下 {a.n} 份 {a.max_mb:g} MB：把 --max-mb 或 --n 调小", 1)
    gate = mp.Barrier(a.n, timeout=120)
    team = [mp.Process(target=worker, args=(rank, a, sizes, memory, gate, out), daemon=True) for rank in range(a.n)]
    for process in team:
        process.start()
    for process in team:
        process.join()
    if any(process.exitcode for process in team):
        kit.stop("有进程没跑完：把 --max-mb 或 --n 调小再试", 1)
    print(f"{a.n} 个进程，{os.cpu_count()} 个核" + ("：进程比核多，测到的是抢核" if a.n > (os.cpu_count() or 1) else ""))
    rows = [[size, statistics.median(out[i * a.repeats : (i + 1) * a.repeats])] for i, size in enumerate(sizes)]
    for size, took in rows:
        algbw = size / took / 1e9
        print(f"{size / 1e6:9.4g} MB{took * 1e3:10.4g} ms   algbw{algbw:8.4g} GB/s   busbw{2 * (a.n - 1) / a.n * algbw:8.4g} GB/s")
    kit.csv(rows, "从测量拟合 α–β", f"# n={a.n}\nbytes,seconds")


if __name__ == "__main__":
    main()
