"""The one exception that a reader's input can cause."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class FieldError:
    """What is wrong with one input; ``field`` is the input's name, ``""`` when no single input is to blame."""

    field: str
    message: str


class Refusal(Exception):
    """Inputs that a calculator declines: shown beside the field, exit code 2 in a terminal, a failed build in a chapter."""

    def __init__(self, errors: tuple[FieldError, ...]) -> None:
        super().__init__("；".join(e.message for e in errors))
        self.errors = errors


def refuse(field: str, rule: str, value: object, remedy: str = "") -> Refusal:
    """Build a refusal in the one shape the book uses: rule (which begins with the name), value, remedy.

    >>> refuse("tp", "n_heads 必须能被 tp 整除", "32 / 6", "可取 1、2、4、8").errors[0].message
    'n_heads 必须能被 tp 整除：32 / 6，可取 1、2、4、8'
    """
    message = f"{rule}：{value}" + (f"，{remedy}" if remedy else "")
    return Refusal((FieldError(field, message),))
