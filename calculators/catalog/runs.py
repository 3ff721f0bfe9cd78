"""Published training runs: the presets of ``mfu``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from calculators.catalog.store import entries


@dataclass(frozen=True)
class TrainingRun:
    """One run; ``tokens_per_s`` of the whole job, ``peak_tflops`` the dense peak its authors used."""

    id: str
    name: str
    tokens_per_s: float
    params: float
    layers: int
    heads: int
    head_dim: int
    seq: int
    n_gpus: int
    peak_tflops: float
    source: str


def _build(id: str, raw: dict[str, Any]) -> TrainingRun:
    plain = {name: raw[name] for name in ("name", "params", "layers", "heads", "head_dim", "seq", "n_gpus", "peak_tflops", "source")}
    return TrainingRun(id=id, tokens_per_s=_tokens_per_s(raw), **plain)


def _tokens_per_s(raw: dict[str, Any]) -> float:
    if "step_s" in raw:
        return float(raw["tokens_per_step"] / raw["step_s"])
    if "tokens_per_s_per_gpu" in raw:
        return float(raw["tokens_per_s_per_gpu"] * raw["n_gpus"])
    return float(raw["tokens_per_s"])


@lru_cache(maxsize=1)
def training_runs() -> dict[str, TrainingRun]:
    """Every run by id, in catalog order."""
    return {id: _build(id, raw) for id, raw in entries("runs").items()}
