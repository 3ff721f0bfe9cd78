"""The CSV blocks that the project scripts print, as their cards read them.

A block is a header and one row a line (``;`` parts rows as well: a link holds one line).  ``#`` starts a remark.  Of a whole
terminal pasted only what stands between the script's two marks is read.
"""

from __future__ import annotations

import re

from calculators.core.errors import Refusal, refuse
from calculators.core.numbers import NotANumber, format_number, parse_number

SHORTEST = 1e-12
"""Seconds; nothing is measured in less."""
BEGIN, END = "# CSV 开始", "# CSV 结束"
CARDS = {
    "flops,bytes,seconds": "从实测点画 Roofline",
    "bytes,seconds": "从测量拟合 α–β",
    "project,item,kind,unit,tolerance,input,predicted,measured": "项目成绩单",
}
"""Header → the card that reads it."""
_ROWS = re.compile(r"[\n\r;；]+")


def read_rows(field: str, text: str, header: str, most: int) -> list[list[str]]:
    """The cells of every row; remarks and the header left out.  Raises Refusal, also when the block belongs to another card."""
    if BEGIN in text:
        text = text.partition(BEGIN)[2].partition("\n")[2].partition(END)[0]
    found: list[list[str]] = []
    for line in _ROWS.split(text):
        row = line.partition("#")[0].replace("，", ",").replace("\t", ",").strip().strip(",")
        if not row or row == header:
            continue
        if row in CARDS:
            raise refuse(field, f"这块 CSV 不归这张卡片，贴到「{CARDS[row]}」", f"表头是 {row}")
        found.append([cell.strip() for cell in row.split(",")])
    if not found:
        raise refuse(field, "样本里没有一行数", "空的", f"一行一个，写成 {header}")
    if len(found) > most:
        raise refuse(field, f"样本最多 {most} 行", f"{len(found)} 行", "删掉一些")
    return found


def remark(text: str, name: str) -> int | None:
    """The whole number of a remark such as ``# n=4``."""
    match = re.search(rf"#[^\n;]*\b{name}=(\d{{1,6}})\b", text)
    return int(match[1]) if match else None


def numbers_of(field: str, cells: list[str], names: tuple[str, ...], where: str) -> tuple[float, ...]:
    """One number a name.  Raises Refusal."""
    if len(cells) != len(names):
        raise wrong(field, where, f"要有 {len(names)} 个数：{','.join(names)}", ",".join(cells))
    return tuple(number_of(field, cell, f"{where}的 {name}") for cell, name in zip(cells, names, strict=True))


def number_of(field: str, cell: str, what: str, low: float = 0.0, high: float = 1e30) -> float:
    """A number from ``low`` to ``high``.  Raises Refusal."""
    try:
        value = parse_number(cell)
    except NotANumber as error:
        raise refuse(field, f"{what}{error}", f"「{cell[:40]}」") from None
    if not low <= value <= high:
        rule = ("必须大于 0" if value <= 0 else f"不能小于 {format_number(low)}") if value < low else f"不能大于 {format_number(high)}"
        raise refuse(field, f"{what}{rule}", f"「{cell[:40]}」")
    return value


def wrong(field: str, where: str, rule: str, found: str) -> Refusal:
    """A row that cannot be read."""
    return refuse(field, f"{where}{rule}", f"「{found[:60]}」", "把脚本印出来的那块 CSV 原样贴进来")
