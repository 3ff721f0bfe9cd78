"""The page of all references: each with its source, date, how it was checked and the values that the text takes from it."""

from __future__ import annotations

import re
from functools import lru_cache

from calculators.catalog.references import Figure, Reference, references
from calculators.render.html import Html, h
from calculators.site.page import DOCS, written
from calculators.site.targets import DERIVED, KIND_LABEL, BadTarget, resolve

_USED = re.compile(r"ref:([\w.-]+)#")
OTHER = "其它页"


def homes() -> dict[str, str]:
    """Reference id → where it is listed: the first chapter that quotes it, directly or through a derivation, else ``OTHER``."""
    return _homes(max((DOCS / page).stat().st_mtime_ns for page in written()))


@lru_cache(maxsize=1)
def _homes(changed_ns: int) -> dict[str, str]:
    found: dict[str, str] = {}
    for page in sorted(written(), key=lambda n: (not n[0].isdigit(), n)):
        place = page.partition("-")[0] if page[0].isdigit() else OTHER
        waiting = _USED.findall((DOCS / page).read_text(encoding="utf-8")) + _in_diagrams(page)
        while waiting:
            id = waiting.pop()
            if id not in found and id in references():
                found[id] = place
                waiting += _USED.findall(" ".join(f.expr + " " + f.differs_from for f in references()[id].values.values()))
    return found


def _in_diagrams(page: str) -> list[str]:
    stem = page.partition("-")[0]
    return [id for svg in (DOCS / "assets" / "diagrams").glob(f"{stem}-*.svg") for id in _USED.findall(svg.read_text(encoding="utf-8"))]


def sources_list(options: dict[str, str], page: str) -> Html:
    """The references that belong to the chapter ``sources``.  Raises BadTarget for a chapter without any."""
    place, listed = options["sources"], homes()
    chosen = [r for id, r in references().items() if listed.get(id, OTHER) == place]
    if not chosen:
        raise BadTarget(f"没有归在「{place}」的出处；有 {'、'.join(sorted(set(listed.values())))}")
    return h("div", *(_entry(r) for r in chosen), class_="sources", data_search_exclude=True)


def _entry(r: Reference) -> Html:
    source = r.source + (f"（{r.checked} 核对）" if r.checked else "")
    return h(
        "section",
        h("p", h("strong", r.title), " ", h("small", KIND_LABEL[r.kind] + (f"，{r.date}" if r.date else ""))),
        h("p", source) if source else None,
        h("p", *(_value(r.id, name, figure) for name, figure in r.values.items()), class_="sources-values"),
        h("p", r.note) if r.note else None,
        id=f"ref-{r.id}",
    )


def _value(id: str, name: str, figure: Figure) -> Html:
    target = resolve(f"ref:{id}#{name}")
    how = next((line for line in target.why if line.startswith(DERIVED)), "") if figure.expr else ""
    return h("span", h("b", target.text), f" {figure.where}" if figure.where else None, h("small", f" {how}") if how else None)
