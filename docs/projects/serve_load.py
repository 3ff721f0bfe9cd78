"""C4 服务一个 7B：开环压测，按泊松到达打请求，量 TTFT、TPOT，算百万 token 多少钱。

不给 --url 就打 toy_server.py（放在同一个目录），一步的时间用 sleep 假装，一个核也能跑。
打自己的：--url http://127.0.0.1:8000/v1/completions --model 名字，base-ms、per-seq-ms 填你的预测。
预测：同时几条 L = λT × base ÷ (1 - λT × per-seq)，TPOT = base + per-seq × L。只用标准库。"""

import json
import random
import sys
import threading
import time
import urllib.request
from statistics import median

try:
    import kit
except ImportError:
    sys.exit("缺 kit.py：把它和这个脚本放进同一个目录再跑（第 24 章有下载）。")

TABLE = {
    "rates": ((4, 8, 12), 1, 10000, "每秒几个请求，逐个打"),
    "requests": (60, 9, 100000, "每种打几个"),
    "out-tokens": (32, 2, 100000, "每个请求出几个 token"),
    "base-ms": (20.0, 0.01, 10000.0, "一步的固定部分，毫秒"),
    "per-seq-ms": (2.0, 0.0, 1000.0, "同时每多一条，一步多几毫秒"),
    "slo-ms": (60.0, 0.01, 1e6, "TPOT 的 P99 上限，毫秒"),
    "price": (2.5, 0.0, 1000.0, "每小时多少钱"),
    "url": ("", None, None, "OpenAI 兼容的 completions 地址"),
    "model": ("", None, None, "给 --url 的模型名"),
}


def ask(a, times, failed):
    """一个请求：记下每个 token 到的时刻。"""
    body = {"model": a.model, "prompt": "讲一个长故事。", "max_tokens": a.out_tokens, "stream": True, "ignore_eos": True}
    try:
        request = urllib.request.Request(a.url, json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=600) as answer:
            times += [time.perf_counter() for line in answer if line.startswith(b"data:") and b"[DONE]" not in line]
    except (OSError, ValueError) as error:
        failed.append(str(error))


def load(a, rate):
    """开环：到点就发，不等前面的。返回每个请求的 TTFT、TPOT，和每秒 token。"""
    draw, sent, threads, failed, begun = random.Random(rate), [], [], [], time.perf_counter()
    for _ in range(a.requests):
        time.sleep(draw.expovariate(rate))
        sent.append((time.perf_counter(), []))
        threads.append(threading.Thread(target=ask, args=(a, sent[-1][1], failed), daemon=True))
        threads[-1].start()
    for thread in threads:
        thread.join()
    if failed or any(len(times) < 2 for _, times in sent):
        kit.stop(f"有请求没拿到 token（{failed[0] if failed else '回来的不是流式的 data: 行'}）：查 --url、--model", 1)
    took = max(times[-1] for _, times in sent) - begun
    return [t[0] - s for s, t in sent], [(t[-1] - t[0]) / (len(t) - 1) for _, t in sent], sum(len(t) for _, t in sent) / took


def main():
    a, rows, knee = kit.options(__doc__, TABLE), [], 0
    a.url = a.url or kit.package("toy_server", "把 toy_server.py 放进同一个目录（第 24 章有下载）").serve(a.base_ms / 1e3, a.per_seq_ms / 1e3)
    for rate in a.rates:
        spare = 1 - rate * a.out_tokens * a.per_seq_ms / 1e3
        told = a.base_ms / spare if spare > 0 else 0
        first, each, speed = load(a, rate)
        p99 = [sorted(x)[int(0.99 * (len(x) - 1) + 0.5)] * 1e3 for x in (first, each)]
        print(f"{rate} 请求/s：TTFT P50 {median(first) * 1e3:.4g} P99 {p99[0]:.4g} ms，TPOT P50 {median(each) * 1e3:.4g} P99 {p99[1]:.4g} ms，", end="")
        print(f"{speed:.4g} token/s，百万 token {a.price / speed / 3.6e-3:.4g}；", f"预测 TPOT {told:.4g} ms" if told else "预测：撑不住，队会一直长")
        knee = rate if p99[1] <= a.slo_ms else knee
        if told:
            rows.append(["C4", f"TPOT {rate} req/s", "time", "ms", 0.25, f"step_ms={a.base_ms:g}", told, *(1e3 * median(each[k::3]) for k in range(3))])
    print(f"守住 TPOT P99 {a.slo_ms:g} ms 的最大请求率：{knee or '一个都没守住'}")
    kit.csv(rows) if rows else print("预测说每个请求率都撑不住：把 --rates 调小再打")


if __name__ == "__main__":
    main()
