"""Prices are the reader's: which currency they are in and what day they are from.  Currencies are never converted."""

from __future__ import annotations

from calculators.core.inputs import Input, choice, integer
from calculators.core.numbers import format_number
from calculators.core.worked import Quantity

SIGNS = {"usd": "$", "cny": "元"}
NAMES = {"usd": "美元", "cny": "元"}
DATE = (
    integer("price_year", "报价：年", 2026, low=2000, high=2100, more=True, help="价格是哪天的，只写进结论"),
    integer("price_month", "报价：月", 11, low=1, high=12, more=True),
)


def currency_input(default: str = "usd") -> Input:
    """The switch: it names the prices and changes no number."""
    return choice("currency", "币种", default, tuple(SIGNS), labels={"usd": "美元", "cny": "人民币"}, more=True, help="不换算：价是什么币，结果就是什么币")


def dated(year: int, month: int) -> str:
    """How a verdict begins."""
    return f"按 {year} 年 {month} 月的价："


def amount(x: Quantity, currency: str, digits: int = 4) -> str:
    """A sum of money in words: 1173 万美元, 0.25 元."""
    shown = format_number(x.value, "cjk", digits)
    return f"{shown}{NAMES[currency]}" if shown[-1] in "万亿" else f"{shown} {NAMES[currency]}"
