"""Reading the throughput out of pasted log lines of the common training frameworks."""

from __future__ import annotations

import re
import statistics
from dataclasses import dataclass

from calculators.core.errors import refuse
from calculators.core.numbers import NotANumber, parse_number

_COLOUR = re.compile(r"\x1b?\[[0-9;]*m")
_NUMBER = r"[^0-9\n]{0,40}?(\d[\d,]*\.?\d*(?:[eE][+-]?\d+)?[kKM]?)(?![\d.])"
_PER_SECOND = r"tok(?:en)?s?(?:/|_per_| per )s(?:ec(?:ond)?)?"
_PER_GPU = re.compile(rf"(?:{_PER_SECOND}(?:/|_per_| per )(?:gpu|device|card)|tokens per gpu|per_device_tps|\btgs\b)\D*?{_NUMBER}", re.IGNORECASE)
_TPS = re.compile(rf"\btps\b{_NUMBER}", re.IGNORECASE)
_TOTAL = re.compile(rf"{_PER_SECOND}(?!/|_per_| per ){_NUMBER}", re.IGNORECASE)
_ITERATION = re.compile(r"elapsed time per iteration \(ms\):\s*([\d.]+)", re.IGNORECASE)
_BATCH = re.compile(r"global batch size:\s*(\d+)", re.IGNORECASE)
_MFU = re.compile(r"\bmfu\b[^0-9\n]{0,6}(\d+\.?\d*)\s*(%?)", re.IGNORECASE)

KNOWN = "认得的写法：tps: 5,762（torchtitan，每卡）、tokens/s/gpu: 5762（每卡）、tokens_per_second: 46096（整个作业）、Megatron 的 elapsed time per iteration 加 global batch size"


@dataclass(frozen=True)
class Reading:
    """Tokens per second of the whole job, the median over the lines; ``how`` says what was taken for what."""

    tokens_per_s: float
    how: str
    lines: int
    mfu_pct: float | None
    """What the log itself calls MFU, the median."""


def read_log(text: str, n_gpus: int, seq: int) -> Reading:
    """The throughput of pasted lines.  Raises Refusal when no line says one."""
    rates: list[float] = []
    how: list[str] = []
    shares: list[float] = []
    for line in _COLOUR.sub("", text).splitlines():
        found = _rate(line, n_gpus, seq)
        if found is not None:
            rates.append(found[0])
            how.append(found[1])
        if (mfu := _MFU.search(line)) is not None:
            share = float(mfu[1])
            shares.append(share if mfu[2] or share > 1 else 100 * share)  # 0.337 without a sign is a fraction
    if not rates or statistics.median(rates) <= 0:
        raise refuse("log", "日志里没有找到吞吐", f"{len(text.splitlines())} 行", KNOWN)
    return Reading(statistics.median(rates), how[0], len(rates), statistics.median(shares) if shares else None)


def _rate(line: str, n_gpus: int, seq: int) -> tuple[float, str] | None:
    """Tokens per second of the whole job, and in which words."""
    if (per_gpu := _PER_GPU.search(line)) is not None and (rate := _number(per_gpu[1])) is not None:
        return rate * n_gpus, f"每卡 {per_gpu[1]} token/s，乘卡数"
    if (tps := _TPS.search(line)) is not None and (rate := _number(tps[1])) is not None:
        return rate * n_gpus, f"tps {tps[1]}，torchtitan 的 tps 是每卡的，乘卡数"
    if (total := _TOTAL.search(line)) is not None and (rate := _number(total[1])) is not None:
        return rate, f"整个作业 {total[1]} token/s"
    iteration, batch = _ITERATION.search(line), _BATCH.search(line)
    if iteration is not None and batch is not None and (ms := _number(iteration[1])):
        return int(batch[1]) * seq / (ms / 1e3), f"global batch {batch[1]} × 序列长度 {seq}，{iteration[1]} ms 一步"
    return None


def _number(text: str) -> float | None:
    try:
        return parse_number(text)
    except NotANumber:
        return None
