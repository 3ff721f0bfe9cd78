"""The command line: what programs and people get, and how it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from calculators.core.index import ids
from calculators.site.cli import main

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def _in_the_project(monkeypatch):
    monkeypatch.chdir(ROOT)


def test_list_names_every_calculator_with_its_declaration(capsys):
    assert main(["list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)

    assert sorted(c["id"] for c in listed) == ids()
    for c in listed:
        assert c["inputs"]
        assert all({"name", "unit", "default", "type"} <= set(i) for i in c["inputs"])
        assert all({"name", "unit"} <= set(o) for o in c["outputs"])


def test_list_for_people_groups_by_chapter(capsys):
    assert main(["list"]) == 0
    out = capsys.readouterr().out

    assert out.startswith("第 00 章\n")
    assert "move-time" in out


@pytest.mark.parametrize("id", ids())
def test_run_prints_one_json_object(id, capsys):
    assert main(["run", id, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)

    assert shown["id"] == id
    assert set(shown) >= {"id", "inputs", "outputs", "lines", "verdict"}
    assert all(set(o) == {"value", "unit", "text"} for o in shown["outputs"].values())
    assert None not in [v for k, v in shown["inputs"].items() if k in ("model", "gpu")]


def test_run_for_people_shows_results_lines_and_verdict(capsys):
    assert main(["run", "move-time", "net_gbps=800"]) == 0
    out = capsys.readouterr().out

    assert "140 ms" in out
    assert "14 GB ÷ 100 GB/s = 140 ms" in out


@pytest.mark.parametrize(
    ("arguments", "field", "words"),
    [
        (["net_gbps=-1"], "net_gbps", "必须在"),
        (["net_gbps=abc"], "net_gbps", "数字"),
        (["net_gbps="], None, None),
        (["net_gbps=1e400"], "net_gbps", "太大"),
        (["colour=red"], "colour", "没有名为"),
        (["net_gbps"], "net_gbps", "名字=值"),
        (["net_gbps=1", "net_gbps=2"], "net_gbps", "两次"),
        (["preset=自定义"], "bytes_gb", "必须填"),
    ],
)
def test_bad_input_exits_2_with_field_and_message(arguments, field, words, capsys):
    code = main(["run", "move-time", *arguments, "--json"])
    captured = capsys.readouterr()
    if field is None:
        assert code == 0
        return
    errors = json.loads(captured.err)["errors"]

    assert code == 2
    assert captured.out == ""
    assert errors[0]["field"] == field
    assert words in errors[0]["message"]


def test_an_unknown_calculator_suggests_near_names(capsys):
    assert main(["run", "move-tmie", "--json"]) == 2

    assert "move-time" in capsys.readouterr().err


def test_all_errors_are_reported_at_once(capsys):
    main(["run", "move-time", "net_gbps=-1", "hbm_tbs=x", "--json"])

    assert {e["field"] for e in json.loads(capsys.readouterr().err)["errors"]} == {"net_gbps", "hbm_tbs"}


def test_help_of_a_calculator_shows_units_and_ranges(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["run", "move-time", "--help"])

    assert stop.value.code == 0
    out = capsys.readouterr().out
    assert "TB/s" in out
    assert "必须在 1 到 1600 之间" in out


def test_figures_prints_the_scan(capsys):
    code = main(["figures", "--json"])
    scan = json.loads(capsys.readouterr().out)

    assert set(scan) == {"bound", "unbound"}
    assert {"file", "line", "text", "target", "value", "ok"} <= set(scan["bound"][0])
    assert code == (0 if all(b["ok"] for b in scan["bound"]) and not scan["unbound"] else 1)
