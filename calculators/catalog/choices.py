"""Inputs that choose from the catalog: the function receives the object, the page and the links hold its id."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from calculators.catalog.hardware import Accelerator, accelerator, accelerators
from calculators.catalog.models import Model, models
from calculators.core.errors import refuse
from calculators.core.inputs import Input

_PASTED = ("{", "[", "<", "'", '"')
_LONGEST_NAME = 100


def looks_pasted(text: str) -> bool:
    """Is this the content of a file rather than the name of a preset?  Whatever it is, the reader says so."""
    return len(text) > _LONGEST_NAME or "\n" in text or text.lstrip("\ufeff").startswith(_PASTED)


def model_input(
    default: str = "llama-3-8b",
    *,
    name: str = "model",
    label: str = "模型",
    where: Callable[[Model], bool] | None = None,
    help: str = "",
    more: bool = False,
    partial: bool = False,
) -> Input:
    """A model of the catalog, or the text of a config.json; ``where`` narrows both.

    ``partial``: the calculator copes with a model whose parameters could not all be counted (``Model.basis``).
    """
    chosen = {id: m for id, m in models().items() if where is None or where(m)}

    def lookup(text: str) -> Model:
        found = models().get(text) or pasted_model(text, name)
        if text in models():
            return found
        if found.basis == "partial" and not partial:
            reason = next((note for note in found.notes if note.startswith(UNCERTAIN)), "参数量不能确定。").rstrip("。")
            raise refuse(name, f"{label}的参数量必须算得出来", reason, "在「模型身份证」里看缺了什么，或选一个预设")
        if where is not None and not where(found):
            raise refuse(name, f"{label}必须合这个计算器的条件（{help or '见可选项'}）", f"{found.name} 不合", f"可取 {'、'.join(list(chosen)[:8])}")
        return found

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
        lookup=lookup,
        accepts_text=looks_pasted,
        caution=lambda text: "" if text in models() else CAUTIONS[pasted_model(text, name).basis],
    )


UNCERTAIN = "参数量不能确定"
CAUTIONS = {
    "exact": "",
    "text": "这份 config.json 是多模态模型：只算了文字部分。",
    "assumed": "这份 config.json 有不认识的地方，参数量带着假设：见「模型身份证」。",
    "partial": "这份 config.json 的参数量不能确定：见「模型身份证」。",
}


@lru_cache(maxsize=8)
def pasted_model(text: str, name: str = "model") -> Model:
    """The model that a config.json describes; the reader is imported here because few readers of the book paste one.  Raises Refusal."""
    from calculators.catalog.configs.reader import read_config

    return read_config(text, name)


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
