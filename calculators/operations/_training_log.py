"""Reading the throughput out of pasted log lines of the common training frameworks."""

from __future__ import annotations

import re
import statistics
from dataclasses import dataclass

from calculators.core.errors import refuse
from calculators.core.numbers import NotANumber, parse_number

_COLOUR = re.compile(r"\x1b?\[[0-9;]*m")
_VALUE = r"(\d[\d,]*\.?\d*(?:[eE][+-]?\d+)?[kKM]?)"
_AFTER = rf"[^0-9|,;\n]{{0,40}}?[:=]\s*{_VALUE}"
_PER_SECOND = r"tok(?:en)?s?(?:/|_per_| per )s(?:ec(?:ond)?)?"
_PER_GPU = r"(?:/|_per_| per )(?:gpu|device|card)"
_FORMS: tuple[tuple[str, bool, str], ...] = (
    (rf"(?:{_PER_SECOND}{_PER_GPU}|tokens per gpu|per_device_tps|\btgs\b){_AFTER}", True, "每卡 {} token/s，乘卡数"),
    (rf"{_VALUE}\s*{_PER_SECOND}{_PER_GPU}", True, "每卡 {} token/s，乘卡数"),
    (rf"\btps{_AFTER}", True, "tps {}，torchtitan 的 tps 是每卡的，乘卡数"),
    (rf"{_PER_SECOND}(?!{_PER_GPU}){_AFTER}", False, "整个作业 {} token/s"),
    (rf"{_VALUE}\s*{_PER_SECOND}\b", False, "整个作业 {} token/s"),
)
"""(pattern, a card's rate?, in which words), the first that matches counts."""
_ITERATION = re.compile(r"elapsed time per iteration \(ms\):\s*([\d.]+)", re.IGNORECASE)
_BATCH = re.compile(r"global batch size:\s*(\d+)", re.IGNORECASE)
_MFU = re.compile(r"\bmfu\b[^0-9\n]{0,6}(\d{1,3}(?:\.\d{1,8})?)\s*(%?)", re.IGNORECASE)

MOST = 1e15
"""Tokens per second that no job has."""
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
    if not rates or not 0 < statistics.median(rates) < MOST:
        raise refuse("log", "日志里没有找到吞吐", f"{len(text.splitlines())} 行", KNOWN)
    return Reading(statistics.median(rates), how[0], len(rates), statistics.median(shares) if shares else None)


def _rate(line: str, n_gpus: int, seq: int) -> tuple[float, str] | None:
    """Tokens per second of the whole job, and in which words."""
    for pattern, per_card, words in _FORMS:
        if (match := re.search(pattern, line, re.IGNORECASE)) is not None and (rate := _number(match[1])) is not None:
            return rate * n_gpus if per_card else rate, words.format(match[1])
    iteration, batch = _ITERATION.search(line), _BATCH.search(line)
    if iteration is not None and batch is not None and (ms := _number(iteration[1])):
        return int(batch[1]) * seq / (ms / 1e3), f"global batch {batch[1]} × 序列长度 {seq}，{iteration[1]} ms 一步"
    return None


def _number(text: str) -> float | None:
    try:
        return parse_number(text)
    except NotANumber:
        return None
