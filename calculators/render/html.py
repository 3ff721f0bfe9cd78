"""HTML and SVG as text, escaped by construction: the only module that writes a tag."""

from __future__ import annotations

from html import escape

_VOID = {"input", "br", "hr", "img", "meta", "line", "rect", "circle", "path", "polyline", "use", "col"}
_SVG_VOID = {"line", "rect", "circle", "path", "polyline", "use"}


class Html(str):
    """Text that is markup already; every other string is escaped when it becomes a child."""

    __slots__ = ()


Child = "str | Html | None | list[Child]"
Attribute = str | int | float | bool | None


def h(tag: str, /, *children: object, **attributes: Attribute) -> Html:
    """One element.  ``class_`` → ``class``, ``data_id`` → ``data-id``; True → bare attribute, None and False → none."""
    out = ["<", tag]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        name = key.rstrip("_").replace("_", "-")
        if value is True:
            out.append(f" {name}")
        else:
            out.append(f' {name}="{escape(str(value), quote=True)}"')
    if tag in _SVG_VOID:
        out.append("/>")
        return Html("".join(out))
    out.append(">")
    if tag in _VOID:
        return Html("".join(out))
    out.extend(_text(c) for c in children)
    out.append(f"</{tag}>")
    return Html("".join(out))


def join(*children: object) -> Html:
    """Several pieces in a row."""
    return Html("".join(_text(c) for c in children))


def _text(child: object) -> str:
    if child is None or child is False:
        return ""
    if isinstance(child, Html):
        return child
    if isinstance(child, list | tuple):
        return "".join(_text(c) for c in child)
    return escape(str(child), quote=False)
