"""C2 自己写 ring all-reduce，打败「都发给一张卡」的朴素写法。

每个线程当一张卡，收一份数据就按 --link-gb-s 睡一会儿，当作网线；加法是真加的，和也真查。
预测：朴素的根要收 n-1 份、发 n-1 份，环上每张卡只收 2(n-1)/n 份，快 n 倍。改 ring 这个函数，换成你写的。"""

import queue
import statistics
import sys
import threading
import time

try:
    import kit
except ImportError:
    sys.exit("缺 kit.py：把它和这个脚本放进同一个目录再跑（第 24 章有下载）。")

TABLE = {
    "n": (4, 2, 32, "几张卡"),
    "mb": (8.0, 0.1, 1024.0, "每张卡的数组，MB"),
    "link-gb-s": (0.1, 0.001, 100.0, "网线，每张卡每个方向，GB/s"),
    "repeats": (5, 3, 100, "每种测几次"),
}


def star(rank, n, parts, send, receive):
    """都发给卡 0，加好再发给大家；慢在卡 0，它收一份、发一份都要排队。"""
    if rank:
        send(0, parts)
        parts[:] = receive(paid=False)
    for _ in range(0 if rank else n - 1):
        parts[:] = [mine + other for mine, other in zip(parts, receive())]  # noqa: B905
    for other in range(n if rank else 1, n):
        send(other, parts, paid=True)


def ring(rank, n, parts, send, receive):
    """n-1 步收到就加，n-1 步收到就换；每步只收发 1/n。"""
    for step in range(2 * n - 2):
        send((rank + 1) % n, [parts[(rank - step) % n]])
        (got,), chunk = receive(), (rank - 1 - step) % n
        parts[chunk] = parts[chunk] + got if step < n - 1 else got


def reduce(np, a, algorithm):
    """跑一次，返回秒和卡 0 过线的字节；每张卡的和都要对。"""
    boxes, gate, wrong, moved = [queue.Queue() for _ in range(a.n)], threading.Barrier(a.n + 1), [], [0] * a.n

    def card(rank):
        def line(parts, paid):
            moved[rank] += sum(p.nbytes for p in parts)
            time.sleep(paid * sum(p.nbytes for p in parts) / a.link_gb_s / 1e9)
            return [p.copy() for p in parts]

        send, receive = (lambda to, parts, paid=False: boxes[to].put(line(parts, paid))), (lambda paid=True: line(boxes[rank].get(), paid))
        parts = np.array_split(np.full(int(a.mb * 1e6) // 4, rank + 1, np.float32), a.n)
        gate.wait()
        algorithm(rank, a.n, parts, send, receive)
        wrong.extend(rank for p in parts if (p != a.n * (a.n + 1) / 2).any())
        gate.wait()

    [threading.Thread(target=card, args=(rank,), daemon=True).start() for rank in range(a.n)]
    start = [gate.wait()] and time.perf_counter()
    gate.wait()
    return time.perf_counter() - start, moved[0] if not wrong else kit.stop(f"卡 {wrong[0]} 的和不对", 1)


def main():
    a = kit.options(__doc__, TABLE)
    np, rows, middles = kit.package("numpy", kit.NUMPY), [], []
    for name, algorithm, share in (("朴素", star, 2 * (a.n - 1)), ("ring", ring, 2 * (a.n - 1) / a.n)):
        runs, told = [reduce(np, a, algorithm) for _ in range(a.repeats)], share * a.mb / a.link_gb_s / 1e3
        middles.append(statistics.median(t for t, _ in runs))
        print(f"{name}：卡 0 收发 {runs[0][1] / 1e6:.4g} MB，预测 {told:.4g} s，实测 {middles[-1]:.4g} s")
        rows.append(["C2", f"{name} n{a.n}", "time", "s", 0.2, f"link_gb_s={a.link_gb_s:g}", told, *(t for t, _ in runs)])
    print(f"快了 {middles[0] / middles[1]:.3g} 倍，预测 {a.n} 倍")
    kit.csv(rows)


if __name__ == "__main__":
    main()
