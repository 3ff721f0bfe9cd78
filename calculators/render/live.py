"""What the browser's worker calls: JSON text in, JSON text out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from calculators.core.calculator import Calculator, Run
from calculators.core.errors import Refusal
from calculators.core.index import load
from calculators.core.inputs import Input, is_used
from calculators.core.judge import judge
from calculators.render.card import result


def respond(request: str) -> str:
    """Recalculate one card, or judge one typed answer of a self-test.

    Request: ``{"id", "key", "values": {name: text}, "base": {output: text}}``; ``key`` is the card's HTML id.  Reply: ``{"ok", "html", "say", "fields": {name:
    {"message", "error", "placeholder", "used"}}}``; ``ok`` false keeps the last good result on the page.  A self-test asks ``{"judge": {"typed", "value", "unit", "half_step"}}`` and
    gets ``{"right", "say"}``.
    """
    asked: dict[str, Any] = json.loads(request)
    if "judge" in asked:
        right, say = judge(**asked["judge"])
        return _json({"right": right, "say": say})
    try:
        calculator = load(str(asked["id"]))
    except Refusal as refusal:
        return _json({"ok": False, "html": None, "say": str(refusal), "fields": {}})
    values = {str(k): str(v) for k, v in asked["values"].items()}
    try:
        run = calculator.run(values, drop_unused=True)
    except Refusal as refusal:
        return _json(_refused(calculator, refusal))
    html = result(calculator, run, str(asked.get("key", calculator.id)), {str(k): str(v) for k, v in asked.get("base", {}).items()})
    fields = {i.name: _accepted(i, values, run) for i in calculator.inputs}
    return _json({"ok": True, "html": html, "say": run.verdict, "fields": fields})


def _accepted(item: Input, values: Mapping[str, str], run: Run) -> dict[str, object]:
    typed = values.get(item.name, "").strip()
    value = run.inputs[item.name]
    plain = typed == item.text(value) or item.type in ("choice", "bool") or not typed
    return {
        "message": "" if plain else f"读作 {item.shown(value)}",
        "error": False,
        "placeholder": item.text(run.resolved[item.name]) if item.name in run.resolved else None,
        "used": is_used(item, run.inputs),
    }


def _refused(calculator: Calculator, refusal: Refusal) -> dict[str, object]:
    fields = {e.field: {"message": e.message, "error": True, "placeholder": None, "used": True} for e in refusal.errors if calculator.input(e.field)}
    elsewhere = [e.message for e in refusal.errors if not calculator.input(e.field)]
    return {"ok": False, "html": None, "say": "；".join(elsewhere) or str(refusal), "fields": fields}


def _json(reply: dict[str, object]) -> str:
    return json.dumps(reply, ensure_ascii=False, separators=(",", ":"))
