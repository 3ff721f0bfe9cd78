"""Every calculator gives the same under Pyodide as under CPython: values at rel 1e-12, texts and refusals equal."""

from __future__ import annotations

import json
import math
import os
import subprocess
import textwrap
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import pytest
from variations import Texts, compared, variations

from calculators.core.errors import Refusal
from calculators.core.index import ids, load
from calculators.render.live import respond
from calculators.site import precompile
from calculators.site.bundle import write_assets

HERE = Path(__file__).parent
REL = 1e-12
REFUSED = ("-1", "abc", "NaN", "1e400", "１２ｋ", "")
PLAIN_JOBS, SLOW_JOBS = 10, 3


TYPED = (
    "８０", "1.5 万", "1,000", "1, 0", "8k", "7B", "80 GB", "0.08 TB", "1e-3", "1_000", "0x10", "∞", "٣", "--1", "\u200b5", "½", "😀", "9" * 400,
    "1" + "0" * 25, "0.1" + "0" * 30 + "1", "é", "İ", "ß", "\x00", "'\"<b>&", "1e309", "-0", "３．５ 亿", "12 分钟", "5 %", "4 倍", "１０ ＧｉＢ",
)  # fmt: skip
"""What people type into a field of numbers."""
PASTED = (
    "{}", "{", "[1, 2", '{"a": 1,,}', '{"a": NaN}', '{"a": 1e999}', '{"hidden_size": "4096"}', '{"a": "\\ud83d", "b": "\\u00e9"}', '{"\u4e2d": [true, null, -0.0, 1.5e-7]}',
    '{"a": 1} trailing', "{'a': 1}", '{"a": ' + "9" * 500 + "}", '{"model_type": "bert"}', '{"a": 1, "a": 2}', '// no\n{"a": 1}', "\ufeff{}", "<html>",
)  # fmt: skip
"""What people paste as a config.json."""
LINES = (
    "",
    "1",
    "a,b\n1,2",
    "1,2,3\n4,5",
    "nan\ninf",
    "1e400",
    "\u4e2d\u6587",
    '"x",y',
    "0\n" * 50,
    "step 1 loss 2.5 tokens/s 1000",
    "name,value,unit\nP1,1e9,FLOPS",
    ";;;",
    "1\t2\n3\t4",
)
"""What people paste as samples or a log."""


@dataclass(frozen=True)
class Job:
    id: str
    values: Texts


def jobs() -> list[Job]:
    """The defaults, some changed inputs and some bad ones, for every calculator."""
    found = []
    for id in ids():
        calculator = load(id)
        found.append(Job(id, {}))
        few = SLOW_JOBS if calculator.needs else PLAIN_JOBS
        found += [Job(id, {name: text}) for name, text in islice(variations(calculator, {}), few)]
        first = calculator.inputs[0].name if calculator.inputs else ""
        found += [Job(id, {first: text}) for text in REFUSED if first and not calculator.needs]
        found += [Job(id, {i.name: text}) for i in calculator.inputs if i.type == "text" for text in LINES]
    cases = json.loads((HERE / "data" / "configs" / "counted.json").read_text(encoding="utf-8"))["cases"]
    pasted = [json.dumps(case["config"], indent=1) for case in cases] + list(PASTED)
    found += [Job(id, {"model": text}) for id in ("model-card", "kv-size") for text in pasted]
    found += [Job("train-memory-quick", {"params_b": text}) for text in TYPED]
    return found


def requests() -> list[str]:
    """What the page asks besides runs: judged answers, an unknown calculator."""
    judged = [{"judge": {"typed": text, "value": 56.0, "unit": "GB", "half_step": 0.5}} for text in (*TYPED, "56", "56 gb", "52.2 GiB", "约 56")]
    return [json.dumps(asked) for asked in (*judged, {"id": "no-such", "key": "calc-x-1", "values": {}, "base": {}})]


@dataclass(frozen=True)
class Answers:
    here: list[dict[str, object]]
    there: list[dict[str, object]]
    replies: list[str]
    library: list[str]
    whole: list[str]
    functions: list[int]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    node = precompile.find_node()
    if node is None:
        if os.environ.get("CI"):
            pytest.fail("no Node: install nodejs, or playwright, whose wheel holds one")
        pytest.skip("no Node on PATH and none from playwright")
    folder = tmp_path_factory.mktemp("parity")
    assets = write_assets(folder)
    asked = [{"id": j.id, "values": j.values, "needs": list(load(j.id).needs)} for j in jobs()]
    asked += [{"request": request, "needs": []} for request in requests()]
    (folder / "jobs.json").write_text(json.dumps(asked), encoding="utf-8")
    book = (assets.folder / "book.js").read_text(encoding="utf-8").partition("=")[2].rstrip(";\n")
    (folder / "book.json").write_text(book, encoding="utf-8")
    command = [node, str(HERE / "parity.mjs"), *(str(p) for p in (assets.folder, folder / "book.json", folder / "jobs.json", folder / "out.json"))]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    out = json.loads((folder / "out.json").read_text(encoding="utf-8"))
    count = len(jobs())
    replies = [answer["reply"] for answer in out["answers"][count:]]
    return Answers([_here(j) for j in jobs()], out["answers"][:count], replies, out["library"], out["whole"], out["functions"])


def _here(job: Job) -> dict[str, object]:
    try:
        run = load(job.id).run(job.values, drop_unused=True)
    except Refusal as refusal:
        return {"errors": [[e.field, e.message] for e in refusal.errors]}
    return {"values": dict(run.values), "texts": dict(run.texts), "lines": list(run.lines), "verdict": run.verdict}


def test_pyodide_agrees(answers: Answers) -> None:
    differing = []
    for job, here, there in zip(jobs(), answers.here, answers.there, strict=True):
        calculator = load(job.id)
        exact = compared(calculator)
        if ("errors" in here) != ("errors" in there) or here.get("errors") != there.get("errors"):
            differing.append(f"{str(job)[:200]}: {here.get('errors')} | {there.get('errors')}")
            continue
        if "errors" in here:
            continue
        for name in exact:
            if not close(_of(here, "values", name), _of(there, "values", name)):
                differing.append(f"{job}.{name}: {_of(here, 'values', name)} | {_of(there, 'values', name)}")
            if _of(here, "texts", name) != _of(there, "texts", name):
                differing.append(f"{job}.{name}: {_of(here, 'texts', name)} | {_of(there, 'texts', name)}")
        if len(exact) == len(calculator.outputs) and (here["lines"], here["verdict"]) != (there["lines"], there["verdict"]):
            differing.append(f"{job}: {here['lines']} {here['verdict']} | {there['lines']} {there['verdict']}")
    assert not differing, "\n".join(line[:600] for line in differing[:20])


def test_the_page_is_answered_alike(answers: Answers) -> None:
    assert answers.replies == [respond(request) for request in requests()]


def test_compiled_library_is_complete(answers: Answers) -> None:
    """A module missing from the list still works, but a reader's browser then fetches the whole library."""
    listed = set(precompile.MODULES.read_text(encoding="utf-8").split())

    missing = sorted(set(answers.library) - listed)

    assert not missing, f"add to calculators/site/stdlib_modules.txt: {' '.join(missing)}"


def test_nothing_needs_the_whole_library(answers: Answers) -> None:
    """2.5 MB that a card would wait for."""
    assert answers.whole == []


def test_cut_machine_is_complete(answers: Answers) -> None:
    """A function missing from the list still answers, but only after the machine has been given up and the whole one started."""
    listed = set(map(int, precompile.FUNCTIONS.read_text(encoding="utf-8").split()))

    missing = sorted(set(answers.functions) - listed)
    if os.environ.get("AI_INFRA_UPDATE"):
        text = " ".join(map(str, sorted(listed | set(answers.functions))))
        precompile.FUNCTIONS.write_text(textwrap.fill(text, 120) + "\n", encoding="utf-8")

    assert not missing, f"{len(missing)} functions: run this test once with AI_INFRA_UPDATE=1"


def _of(answer: dict[str, object], part: str, name: str) -> object:
    table = answer[part]
    assert isinstance(table, dict)
    return table[name]


def close(here: object, there: object) -> bool:
    """Equal, numbers at rel 1e-12, through lists and tables."""
    if isinstance(here, list | tuple) and isinstance(there, list):
        return len(here) == len(there) and all(close(a, b) for a, b in zip(here, there, strict=True))
    if isinstance(here, dict) and isinstance(there, dict):
        return list(here) == list(there) and all(close(here[k], there[k]) for k in here)
    if isinstance(here, bool) or isinstance(there, bool) or not isinstance(here, int | float) or not isinstance(there, int | float):
        return here == there
    return math.isclose(here, there, rel_tol=REL, abs_tol=0.0)
