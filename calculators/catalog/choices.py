"""Inputs that choose from the catalog: the function receives the object, the page and the links hold its id."""

from __future__ import annotations

from collections.abc import Callable

from calculators.catalog.hardware import Accelerator, accelerator, accelerators
from calculators.catalog.models import Model, model, models
from calculators.core.inputs import Input


def model_input(
    default: str = "llama-3-8b", *, name: str = "model", label: str = "模型", where: Callable[[Model], bool] | None = None, help: str = "", more: bool = False
) -> Input:
    """A model of the catalog; ``where`` narrows the list."""
    chosen = {id: m for id, m in models().items() if where is None or where(m)}
    return Input(
        name,
        label,
        "choice",
        default,
        choices=tuple(chosen),
        choice_labels={id: m.name for id, m in chosen.items()},
        kind="model",
        help=help,
        more=more,
        lookup=model,
    )


def gpu_input(
    default: str = "h100-sxm",
    *,
    name: str = "gpu",
    label: str = "加速卡",
    where: Callable[[Accelerator], bool] | None = None,
    help: str = "",
    more: bool = False,
) -> Input:
    """An accelerator of the catalog; ``where`` narrows the list."""
    chosen = {id: a for id, a in accelerators().items() if where is None or where(a)}
    return Input(
        name,
        label,
        "choice",
        default,
        choices=tuple(chosen),
        choice_labels={id: a.name for id, a in chosen.items()},
        kind="gpu",
        help=help,
        more=more,
        lookup=accelerator,
        caution=lambda id: accelerator(id).caution,
    )
