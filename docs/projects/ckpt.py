"""P7 checkpoint 间隔：写盘多快，训练停多久，多久存一次。

同步：写完、落盘才继续；异步：拷一份到内存就继续，后台线程去写。跑：python3 ckpt.py
带宽没填就先试一次当预测。换算成你的 checkpoint 和故障间隔：--ckpt-gb --mtti-h。只用标准库。"""

import math
import os
import shutil
import statistics
import sys
import tempfile
import time
from threading import Thread

try:
    import kit
except ImportError:
    sys.exit("缺 kit.py：把它和这个脚本放进同一个目录再跑（第 24 章有下载）。")

TABLE = {
    "mb": (256, 1, 16_000, "每次写多少，MB；内存要有它的三倍"),
    "repeats": (5, 3, 100, "每种测几次"),
    "disk-mb-s": (0.0, 0.0, 1e6, "预测的写盘带宽，MB/s；0 是先试写"),
    "copy-gb-s": (0.0, 0.0, 1e5, "预测的内存拷贝，GB/s；0 是先试拷"),
    "ckpt-gb": (16.0, 0.001, 1e6, "换算：你的 checkpoint，GB（8B 的 BF16 权重是 16）"),
    "mtti-h": (24.0, 0.01, 1e5, "换算：平均几小时断一次"),
    "dir": (".", None, None, "写到哪个目录；不要内存盘，有的系统 /tmp 就是"),
}


def write(path, block, megabytes):
    """写满、fsync，返回秒。"""
    start = time.perf_counter()
    with open(path, "wb") as file:
        for _ in range(megabytes):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
    return time.perf_counter() - start


def copy_to(staging, state):
    start = time.perf_counter()
    memoryview(staging)[:] = state
    return time.perf_counter() - start


def main():
    a = kit.options(__doc__, TABLE)
    if not os.access(a.dir, os.W_OK) or not os.path.isdir(a.dir):
        kit.stop(f"--dir 要是一个能写的目录，你填了「{a.dir}」")
    if shutil.disk_usage(a.dir).free < 2e6 * a.mb:
        kit.stop(f"{a.dir} 剩下的地方不到 {a.mb} MB 的两倍：把 --mb 调小，或换 --dir")
    try:
        block, state, staging = os.urandom(1_000_000), bytearray(b"s") * (a.mb * 1_000_000), bytearray(b"c") * (a.mb * 1_000_000)
    except MemoryError:
        kit.stop(f"内存放不下两份 {a.mb} MB：把 --mb 调小")
    with tempfile.TemporaryDirectory(dir=a.dir) as folder:
        path = os.path.join(folder, "ckpt.bin")
        probe = max(1, a.mb // 4)
        disk = a.disk_mb_s or probe / min(write(path, block, probe) for _ in range(3))
        copy = a.copy_gb_s or a.mb / 1e3 / min(copy_to(staging, state) for _ in range(3))
        print(f"预测：写盘 {disk:.4g} MB/s，同步停 {a.mb / disk:.4g} s；内存拷贝 {copy:.4g} GB/s，异步停 {a.mb / 1e3 / copy:.4g} s")
        waited, paused = [write(path, block, a.mb) for _ in range(a.repeats)], []
        for _ in range(a.repeats):
            paused.append(copy_to(staging, state))
            (writer := Thread(target=write, args=(path, block, a.mb))).start()  # 训练在这时继续
            writer.join()
    sync, back = statistics.median(waited), statistics.median(paused)
    print(f"实测：写盘 {a.mb / sync:.4g} MB/s，同步停 {sync:.4g} s，异步停 {back:.4g} s，少停 {sync / back:.3g} 倍")
    for name, delta in (("同步", sync), ("异步", back)):
        delta *= a.ckpt_gb * 1e3 / a.mb
        best = math.sqrt(2 * delta * a.mtti_h * 3600)  # Young：τ 的平方是 2 × δ × M
        print(f"{name}：{a.ckpt_gb:g} GB 停 {delta:.4g} s，每 {best / 60:.3g} 分钟存一次，存档和重做一共占 {2 * delta / best:.2%}")
    rows = ["同步停", f"disk_mb_s={disk:.6g}", a.mb / disk, *waited], ["异步停", f"gb_s={copy:.6g}", a.mb / 1e3 / copy, *paused]
    kit.csv(["P7", item, "time", "s", 0.3, *rest] for item, *rest in rows)


if __name__ == "__main__":
    main()
