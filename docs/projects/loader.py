"""P8 数据管线：几个工人进程取数（sleep 假装），训练每步等它们，看卡有几成时间在干活。

预测：把同一套规矩用不同的种子推演许多遍，取平均。跑：python3 loader.py
工人按序交货，每人最多先备 prefetch 批，和 PyTorch 的 DataLoader 一样。只用标准库。"""

import math
import multiprocessing as mp
import random
import sys
import time
from statistics import mean, median

try:
    import kit
except ImportError:
    sys.exit("缺 kit.py：把它和这个脚本放进同一个目录再跑（第 24 章有下载）。")

TABLE = {
    "workers": ((2, 4, 6, 8), 1, 64, "工人数，逗号隔开"),
    "load-ms": (100.0, 1.0, 10000.0, "取一批平均多久，毫秒"),
    "cv": (0.5, 0.0, 3.0, "取一批的时间有多不匀：标准差 ÷ 平均"),
    "step-ms": (20.0, 1.0, 10000.0, "训练一步，毫秒"),
    "batches": (120, 4, 100000, "几批"),
    "prefetch": (2, 1, 64, "每个工人先备几批"),
    "repeats": (3, 3, 100, "每种测几次"),
}


def loads(a, seed):
    draw, sigma = random.Random(seed), math.sqrt(math.log(1 + a.cv * a.cv))
    return [a.load_ms / 1e3 * math.exp(draw.gauss(-sigma * sigma / 2, sigma)) for _ in range(a.batches)]


def predict(a, workers, seconds):
    """不真跑，推演一遍：第 k 批归第 k % workers 个工人，最多提前 prefetch × workers 批。"""
    ready, used, ahead, step = [], [], workers * a.prefetch, a.step_ms / 1e3
    for k, load in enumerate(seconds):
        ready.append(max(ready[k - workers] if k >= workers else 0.0, used[k - ahead] if k >= ahead else 0.0) + load)
        used.append(max(used[-1] + step if used else 0.0, ready[k]))
    return a.batches * step / (used[-1] + step)


def worker(tasks, done):
    done.put("到岗")
    for k, seconds in iter(tasks.get, None):
        time.sleep(seconds)
        done.put(k)


def measure(a, workers, seconds):
    tasks, done, ahead, arrived = [mp.SimpleQueue() for _ in range(workers)], mp.SimpleQueue(), workers * a.prefetch, set()
    staff = [mp.Process(target=worker, args=(queue, done), daemon=True) for queue in tasks]
    [process.start() for process in staff]
    begun = [done.get() for _ in tasks] and time.perf_counter()  # 都到岗才计时
    for k in range(-ahead, a.batches):
        while k >= 0 and k not in arrived:
            arrived.add(done.get())
        if k + ahead < a.batches:
            tasks[(k + ahead) % workers].put((k + ahead, seconds[k + ahead]))
        time.sleep(a.step_ms / 1e3 if k >= 0 else 0)
    took = time.perf_counter() - begun
    [queue.put(None) for queue in tasks]
    [process.join() for process in staff]
    return a.batches * a.step_ms / 1e3 / took


def main():
    a = kit.options(__doc__, TABLE)
    rows = []
    for workers in a.workers:
        told = mean(predict(a, workers, loads(a, seed)) for seed in range(1000, 1050))
        seen = [measure(a, workers, loads(a, seed)) for seed in range(a.repeats)]
        print(f"{workers} 个工人：预测 {told:.0%}，实测 {median(seen):.0%}（每次 {'、'.join(f'{x:.0%}' for x in seen)}）")
        lever = f"load_ms={a.load_ms:g}" if told < 0.85 else ""
        rows.append(["P8", f"{workers} workers", "throughput", "%", 0.06 / told, lever, 100 * told, *(100 * x for x in seen)])
    kit.csv(rows)


if __name__ == "__main__":
    main()
