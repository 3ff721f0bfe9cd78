"""Accelerator presets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from calculators.catalog.store import entries, read
from calculators.core.units import GB, TB


@dataclass(frozen=True)
class Accelerator:
    """One device.  ``tflops`` holds dense peaks by precision; an absent precision is unsupported."""

    id: str
    name: str
    vendor: str
    year: int
    memory_gb: float
    memory_type: str
    bandwidth_gb_s: float
    tflops: Mapping[str, float]
    link_kind: str
    link_gb_s_bidir: float
    link_gb_s_per_dir: float
    source: str
    checked: str
    memory_gib_reported: float | None = None
    nic_gb_s_per_dir: float | None = None
    tdp_w: float | None = None
    unverified: tuple[str, ...] = ()
    contested: str = ""
    note: str = ""

    @property
    def memory_bytes(self) -> float:
        """The advertised capacity taken as decimal bytes."""
        return self.memory_gb * GB

    @property
    def hbm_bytes_per_s(self) -> float:
        return self.bandwidth_gb_s * GB

    @property
    def dense_tflops(self) -> float:
        """Dense 16-bit peak: BF16, or FP16 on a card without BF16."""
        return self.tflops.get("bf16") or self.tflops["fp16"]

    @property
    def dense_flops(self) -> float:
        """``dense_tflops`` in FLOP/s."""
        return self.dense_tflops * TB

    def is_unverified(self, field: str) -> bool:
        """Was no source seen for this field (``bandwidth_gb_s``, ``tflops.bf16``, ``link``)?"""
        family = field.split(".")[0]
        return any(mark in ("all", field, family, f"{family}.*") for mark in self.unverified)

    @property
    def caution(self) -> str:
        """One sentence when the figures that calculations use are unverified or contested, else empty."""
        used = {"memory_gb": "显存", "bandwidth_gb_s": "带宽", "tflops.bf16": "算力", "link": "互联"}
        doubtful = "、".join(label for field, label in used.items() if self.is_unverified(field))
        said = f"{self.name} 的{doubtful}没有可靠来源（未核实）。" if doubtful else ""
        return said + (f"说法不一：{self.contested}" if self.contested else "")

    @property
    def status(self) -> str:
        """How sure the figures of the specification table are, in one word."""
        if self.contested:
            return "有争议"
        quoted = ("memory_gb", "bandwidth_gb_s", "tflops.bf16", "tflops.fp8", "link")
        return "部分未核实" if any(self.is_unverified(field) for field in quoted) else "已核对"


def _build(id: str, raw: dict[str, Any]) -> Accelerator:
    link = raw["link"]
    return Accelerator(
        id=id, name=raw["name"], vendor=raw["vendor"], year=raw["year"], memory_gb=raw["memory_gb"], memory_type=raw["memory_type"],
        bandwidth_gb_s=raw["bandwidth_gb_s"], tflops=raw["tflops"],
        link_kind=link["kind"], link_gb_s_bidir=link["gb_s_bidir"], link_gb_s_per_dir=link["gb_s_per_dir"],
        source=raw["source"], checked=read("hardware")["checked"],
        memory_gib_reported=raw.get("memory_gib_reported"), nic_gb_s_per_dir=raw.get("nic_gb_s_per_dir"), tdp_w=raw.get("tdp_w"),
        unverified=tuple(raw["unverified"]), contested=raw.get("contested", ""), note=raw.get("note", ""),
    )  # fmt: skip


@lru_cache(maxsize=1)
def accelerators() -> dict[str, Accelerator]:
    """Every accelerator by id, in catalog order."""
    return {id: _build(id, raw) for id, raw in entries("hardware").items()}


def accelerator(id: str) -> Accelerator:
    """The accelerator of that id.  Raises KeyError."""
    return accelerators()[id]
