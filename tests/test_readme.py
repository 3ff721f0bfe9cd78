"""What README shows works: the commands, the calculator and the section of a chapter."""

from __future__ import annotations

import re
import shlex
import sys
import types
from pathlib import Path

import pytest

from calculators.core.calculator import Calculator
from calculators.site.cli import main
from calculators.site.figures import scan_markdown

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_calculator_shown_there_runs():
    """One file, complete: pasted under its name it declares a calculator that computes."""
    code = next(block for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "@calculator" in block)
    module = types.ModuleType("calculators.hardware.read_time")
    sys.modules[module.__name__] = module
    try:
        exec(compile(code, "read_time.py", "exec"), module.__dict__)
    finally:
        del sys.modules[module.__name__]
    shown = module.read_time

    assert isinstance(shown, Calculator)
    assert shown.id == "read-time"
    assert shown.run({"size_gb": "33.5"}).texts["read_ms"] == "10 ms"  # 33.5 GB over H100's 3350 GB/s


def test_the_section_shown_there_is_bound():
    """Its figures equal their targets and none is free."""
    section = re.search(r"````markdown\n(.*?)````", README, re.DOTALL)
    assert section
    bound, free = scan_markdown(section[1], "README.md")

    assert [b.message for b in bound if not b.ok] == []
    assert free == []
    assert len(bound) >= 4


@pytest.mark.parametrize("line", re.findall(r"^\.venv/bin/python -m calculators ((?:run|list).*)$", README, re.MULTILINE))
def test_the_commands_shown_there_work(line, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)

    assert main(shlex.split(line, comments=True)) == 0
    assert capsys.readouterr().out


def test_the_screenshot_and_the_licence_are_there():
    assert (ROOT / "docs/assets/screenshot.png").stat().st_size > 10_000
    assert "CC BY 4.0" in (ROOT / "LICENSE").read_text(encoding="utf-8")
