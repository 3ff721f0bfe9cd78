"""P5 流水线：几个进程排成一条，每段用 sleep 假装在算，一个核也能跑。

预测：一步 = (m + p - 1) × (t_f + t_b)。跑：python3 pipe_mp.py
GPipe 和 1F1B 一样快，差在同时压着几个微批；脚本把它也数出来。只用标准库。"""

import multiprocessing as mp
import sys
import time

try:
    import kit
except ImportError:
    sys.exit("缺 kit.py：把它和这个脚本放进同一个目录再跑（第 24 章有下载）。")

TABLE = {
    "p": (4, 2, 32, "几段，一段一个进程"),
    "m": ((4, 8, 16), 1, 1024, "微批数，逗号隔开"),
    "f-ms": (20.0, 1.0, 1000.0, "一段一个微批的前向，毫秒"),
    "b-ms": (40.0, 1.0, 1000.0, "反向，毫秒"),
    "repeats": (3, 3, 100, "每种测几次"),
}


def order(schedule, rank, p, m):
    """这一段依次做什么：F 前向，B 反向。"""
    ahead = m if schedule == "GPipe" else min(p - 1 - rank, m)
    return "F" * ahead + "FB" * (m - ahead) + "B" * ahead


def stage(rank, p, jobs, seconds, forward, backward, gate, peaks):
    """一段：等上一段的前向、下一段的反向，睡够时间，交给邻居。"""
    for k, job in enumerate(jobs):
        gate.wait()
        held = 0
        for what in job:
            if what == "F" and rank > 0:
                forward[rank].get()
            if what == "B" and rank < p - 1:
                backward[rank].get()
            time.sleep(seconds[what])
            held += 1 if what == "F" else -1
            peaks[k * p + rank] = max(peaks[k * p + rank], held)
            if what == "F" and rank < p - 1:
                forward[rank + 1].put(1)
            if what == "B" and rank > 0:
                backward[rank - 1].put(1)
        gate.wait()


def main():
    a = kit.options(__doc__, TABLE)
    runs = [(schedule, m) for schedule in ("GPipe", "1F1B") for m in a.m]
    jobs = [run for run in runs for _ in range(a.repeats)]
    seconds, gate, peaks = {"F": a.f_ms / 1e3, "B": a.b_ms / 1e3}, mp.Barrier(a.p + 1), mp.RawArray("i", len(jobs) * a.p)
    links = [[mp.SimpleQueue() for _ in range(a.p)] for _ in range(2)]
    work = [[order(schedule, rank, a.p, m) for schedule, m in jobs] for rank in range(a.p)]
    stages = [mp.Process(target=stage, args=(r, a.p, work[r], seconds, *links, gate, peaks), daemon=True) for r in range(a.p)]
    for process in stages:
        process.start()
    took = []
    for _ in jobs:
        gate.wait()
        start = time.perf_counter()
        gate.wait()
        took.append(time.perf_counter() - start)
    for process in stages:
        process.join()
    rows = []
    for k, (schedule, m) in enumerate(runs):
        each = seconds["F"] + seconds["B"]
        predicted, measured = (m + a.p - 1) * each, took[k * a.repeats : (k + 1) * a.repeats]
        middle, held = sorted(measured)[a.repeats // 2], peaks[k * a.repeats * a.p : k * a.repeats * a.p + a.p]
        print(f"{schedule:<6} m={m:<4} 预测 {predicted:.3f} s，实测 {middle:.3f} s（{middle / predicted - 1:+.1%}），各段最多压着 {list(held)} 个微批")
        rows.append(["P5", f"{schedule} m{m}", "time", "s", 0.1, f"stage_s={each:g}", predicted, *measured])
    kit.csv(rows)


if __name__ == "__main__":
    main()
