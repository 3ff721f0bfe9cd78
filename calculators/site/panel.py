"""The panel of 「我的配置」 on the page my-model; everything in it is done by ``calc-mine.js``."""

from __future__ import annotations

from calculators.render.html import Html, h


def panel_html() -> Html:
    """What is kept, and buttons to export, import and erase it; hidden where scripts do not run."""
    return h(
        "div",
        h(
            "my-config",
            h("p", h("strong", "我的配置："), h("span", data_role="mine-text")),
            h(
                "p",
                h("button", "导出", type="button", data_act="mine-export"),
                " ",
                h("label", "导入", h("input", type="file", accept=".json,application/json", class_="calc-hidden")),
                " ",
                h("button", "清除", type="button", data_act="mine-erase"),
            ),
            h("p", data_role="mine-status", role="status"),
            hidden=True,
        ),
        class_="calc-panel",
        data_search_exclude=True,
    )
