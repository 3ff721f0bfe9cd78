"""十二个项目脚本共用的几件小事：读参数、报错、计时、印 CSV。只用标准库。"""

import importlib
import signal
import sys
import time
from types import SimpleNamespace

NUMPY = "装上再跑：python3 -m pip install numpy（Debian、Ubuntu：apt install python3-numpy）"


def stop(message, code=2):
    """说清楚怎么改，然后退出；2 是参数不对，1 是缺东西。"""
    print(message, file=sys.stderr)
    sys.exit(code)


def options(about, table):
    """读 --名字 值。表里一行是：默认、最小（或可选项的元组）、最大、说明；默认是 False 的不带值，是元组的填几个整数。"""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8", errors="replace", line_buffering=True)
    hasattr(signal, "SIGPIPE") and signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # 接了 | head 也不报错
    words, got = sys.argv[1:], {name: row[0] for name, row in table.items()}
    if {"-h", "--help"} & set(words):
        print(about, "\n参数：", *(f"  --{name:<16}{str(row[0] or '').strip('()').replace(', ', ','):<9} {row[3]}" for name, row in table.items()), sep="\n")
        sys.exit(0)
    while words:
        name, equals, text = words.pop(0).partition("=")
        row = table.get(name[2:]) if name.startswith("--") else None
        if row is None or (row[0] is False and equals):
            stop(f"没有「{name}」这个参数。可用：{'、'.join('--' + known for known in table)}")
        got[name[2:]] = row[0] is False or _value(name, text if equals else words.pop(0) if words else "", *row[:3])
    return SimpleNamespace(**{name.replace("-", "_"): value for name, value in got.items()})


def _value(name, text, default, low, high):
    many, example = isinstance(default, tuple), str(default).strip("()").replace(" ", "")
    if not text or text.startswith("--"):
        stop(f"{name} 后面要有一个值，例如 {name} {example}")
    try:
        value = tuple(int(word) for word in text.split(",")) if many else type(default)(text)
    except ValueError:
        what = "整数，逗号隔开" if many else "整数" if isinstance(default, int) else "数"
        stop(f"{name} 要填{what}，你填了「{text}」，例如 {name} {example}")
    if isinstance(low, tuple) and value not in low:
        stop(f"{name} 可填 {'、'.join(low)}，你填了「{text}」")
    if not isinstance(value, str) and not all(low <= one <= high for one in (value if many else (value,))):
        stop(f"{name} 要在 {low} 到 {high} 之间，你填了「{text}」")
    return value


def package(name, how=""):
    """一个包；没装就是 None，给了 how（怎么装）就停下来说。"""
    try:
        return importlib.import_module(name)
    except ImportError:
        return stop(f"这个脚本要 {name}，这里没有。{how}", 1) if how else None


def timed(work, repeats, sync=lambda: None, warm_up=10, at_least=0.002, budget=10.0):
    """各用几秒：先预热 10 次（最多 2 秒）；短的活连做几遍再除；前后都同步；过了 budget 秒，够 3 次就停。"""
    loops, seconds, begun = 1, [], time.perf_counter()
    for _ in range(warm_up):
        time.perf_counter() - begun > budget / 5 or work()
    while len(seconds) < repeats and (len(seconds) < 3 or time.perf_counter() - begun < budget):
        sync()
        start = time.perf_counter()
        for _ in range(loops):
            work()
        sync()
        seconds.append((time.perf_counter() - start) / loops)
        if seconds == [t for t in seconds if t * loops < at_least]:
            loops, seconds = 2 * loops, []
    return seconds


def csv(rows, card="项目成绩单", header="project,item,kind,unit,tolerance,input,predicted,measured"):
    """一块能整块贴进卡片的 CSV；成绩单的一行：项目、哪一项、种类、单位、容差、靠哪个输入、预测、实测……"""
    rows = [[f"{cell:.6g}" if isinstance(cell, float) else str(cell) for cell in row] for row in rows]
    print(f"\n# CSV 开始：贴进第 24 章的卡片「{card}」", header, *map(",".join, rows), "# CSV 结束", sep="\n")
