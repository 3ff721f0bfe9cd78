"""Appendix A as a page: the table is the catalog, every row leads to its calculator, every term has both names and an entry in the search."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

from calculators.catalog.chapters import chapters
from calculators.core.index import ids, load
from calculators.site.figures import LINK
from calculators.site.search_worker import WORKERS, SearchChanged, mended, write_search_worker
from calculators.site.tables import catalog_table
from calculators.site.targets import SCHEMES, resolve

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGE = "appendix-a-cheatsheet.md"
TEXT = (DOCS / PAGE).read_text(encoding="utf-8")
HARDWARE = {id: card for id, card in tomllib.loads((ROOT / "calculators/catalog/hardware.toml").read_text(encoding="utf-8")).items() if isinstance(card, dict)}
FENCE = re.compile(r'^```calc-table catalog="hardware" (?P<options>.*)$', re.MULTILINE)


def section(heading: str) -> str:
    return TEXT.partition(f"\n## {heading}")[2].partition("\n## ")[0]


def rows(part: str) -> list[str]:
    """The rows of Markdown tables, without heads."""
    lines = part.splitlines()
    return [line for i, line in enumerate(lines) if line.startswith("| ") and lines[i + 1 : i + 2] != ["|---|---|---|---|"]]


def links(line: str) -> list[tuple[str, str]]:
    return [(m["text"], m["url"]) for m in LINK.finditer(line)]


MAGNITUDES, FORMULAS = rows(section("一、")), rows(section("二、"))
TERMS = re.findall(r"^#### (.+)\n\n(.+)$", section("五、"), re.MULTILINE)


# --- the specification table


class Table(HTMLParser):
    """The cells of a table, row by row; small print left out."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.quiet = False
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
        self.quiet = tag == "small" or (self.quiet and tag != "td")

    def handle_endtag(self, tag):
        if tag == "small":
            self.quiet = False

    def handle_data(self, data):
        if self.rows and self.rows[-1] and not self.quiet:
            self.rows[-1][-1] += data


def spec_table() -> list[list[str]]:
    match = FENCE.search(section("三、"))
    assert match, "the table is generated from the catalog"
    return Table(catalog_table({"catalog": "hardware", **dict(re.findall(r'(\w+)="([^"]*)"', match["options"]))}, PAGE)).rows


def printed(value: float | None) -> str:
    """A figure as the file has it, thousands parted from five digits on."""
    return "—" if value is None else f"{value:,}" if value >= 10_000 else f"{value:g}" if isinstance(value, float) else str(value)


def test_the_specification_table_is_the_catalog():
    """Every card of hardware.toml, every column, digit by digit."""
    body = spec_table()[1:]

    assert [row[0] for row in body] == [card["name"] for card in HARDWARE.values()]
    for row, card in zip(body, HARDWARE.values(), strict=True):
        tflops = card["tflops"]
        expected = (tflops.get("bf16"), tflops.get("fp8"), card["memory_gb"], card["bandwidth_gb_s"], card["link"]["gb_s_bidir"])
        assert row[1:6] == [printed(value) for value in expected], card["name"]


def test_doubt_shows_in_the_table():
    """Contested and unverified cards say so in the last column; the cells without a source carry a mark."""
    status = {row[0]: row[-1] for row in spec_table()[1:]}

    for card in HARDWARE.values():
        doubtful = {"all", "memory_gb", "bandwidth_gb_s", "link", "tflops.*", "tflops.bf16", "tflops.fp8"} & set(card["unverified"])
        assert status[card["name"]] == ("有争议" if "contested" in card else "部分未核实" if doubtful else "已核对")


def test_the_cards_that_the_specification_names():
    """Appendix A's own eleven rows: BF16, FP8, GB, TB/s, NVLink both ways."""
    by_name = {row[0]: row for row in spec_table()[1:]}
    named = {
        "a100-80gb": "312 — 80 2039 600",
        "h100-sxm": "989 1979 80 3350 900",
        "h800": "989 1979 80 3350 400",
        "h200": "989 1979 141 4800 900",
        "h20": "148 296 96 4000 900",
        "b200": "2250 4500 180 7700 1800",
        "rtx-4090": "165.2 330.3 24 1008 64",
        "l40s": "362 733 48 864 64",
        "mi300x": "1307.4 2614.9 192 5300 896",
        "ascend-910b": "376 — 64 1600 392",
        "tpu-v5p": "459 459 95 2765 1200",
    }

    for id, figures in named.items():
        assert by_name[HARDWARE[id]["name"]][1:6] == figures.split(), id


def test_no_specification_is_typed_by_hand():
    """A row of numbers about cards in Markdown would drift: the section holds no Markdown table."""
    assert rows(section("三、")) == []


# --- magnitudes and formulas


def test_twenty_magnitudes_and_seven_groups_of_formulas():
    assert len(MAGNITUDES) == 20
    assert len(re.findall(r"^### .*公式", section("二、"), re.MULTILINE)) == 7


@pytest.mark.parametrize("row", MAGNITUDES + FORMULAS, ids=lambda row: row.split(" | ")[0].strip("| "))
def test_a_row_has_a_bound_number_and_leads_to_its_calculator(row):
    """… to a card that stands on the page which the link names."""
    figures = [url for _, url in links(row) if url.startswith(tuple(f"{s}:" for s in SCHEMES))]
    cards = [(text, url) for text, url in links(row) if "#calc-" in url]

    assert figures
    assert all(resolve(url).value is not None for url in figures)
    assert len(cards) == 1
    text, url = cards[0]
    page, _, anchor = url.partition("#")
    assert anchor == f"calc-{text}-1"
    assert text in ids()
    assert f'```calc id="{text}"' in (DOCS / (page or PAGE)).read_text(encoding="utf-8")
    assert load(text).chapter in {"A", "my-model", *(c.id for c in chapters().values() if f"{c.slug}.md" == page)}


@pytest.mark.parametrize("row", FORMULAS, ids=lambda row: row.split(" | ")[0].strip("| "))
def test_a_formula_names_its_chapter(row):
    named = [(text, url) for text, url in links(row) if text in chapters()]

    assert len(named) == 1
    assert named[0][1] == f"{chapters()[named[0][0]].slug}.md"


def test_every_calculator_of_the_appendix_stands_on_it():
    mine = [id for id in ids() if load(id).chapter == "A"]

    assert mine == ["fermi", "spec-compare", "unit-convert"]
    assert all(f'```calc id="{id}"' in TEXT for id in mine)


# --- terms


def test_enough_terms_and_none_twice():
    names = [name for name, _ in TERMS]

    assert len(names) >= 80
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(("name", "meaning"), TERMS, ids=[name for name, _ in TERMS])
def test_a_term_has_both_names_a_sentence_and_its_chapter(name, meaning):
    """The chapter that it leads to uses one of its names."""
    chapter = re.fullmatch(r"(?P<said>.+)\[第 (?P<id>\w+) 章\]\((?P<page>[\w.-]+)\)", meaning)

    assert re.search(r"[一-鿿]", name)
    assert re.search(r"[A-Za-z]", name)
    assert chapter
    assert 8 <= len(chapter["said"]) <= 90
    assert chapter["page"] == f"{chapters()[chapter['id']].slug}.md"
    told = re.sub(r"[-\s]", "", (DOCS / chapter["page"]).read_text(encoding="utf-8")).lower()
    assert any(part in told for part in names_of(name)), f"chapter {chapter['id']} uses none of {names_of(name)}"


def names_of(name: str) -> list[str]:
    """「激活重算（梯度检查点）activation recomputation / …」: every name on its own, spaces and hyphens left out."""
    parts = re.split(r"[（）、/]|(?<=[一-鿿])\s+(?=[A-Za-z0-9])", name)
    return [re.sub(r"[-\s]", "", part).lower() for part in parts if part.strip()]


# --- the search


BUILD = """
import sys
from mkdocs.commands.build import build
from mkdocs.config import load_config
folder, page = sys.argv[1:]
build(load_config("mkdocs.yml", docs_dir=folder + "/docs", site_dir=folder + "/site", nav=[page], strict=False))
"""
"""In a process of its own: the word cutter leaves files open."""


@pytest.fixture(scope="module")
def entries(tmp_path_factory):
    """The search's entries of the page, made by MkDocs with the book's own configuration."""
    folder = tmp_path_factory.mktemp("appendix")
    (folder / "docs").mkdir()
    alone = re.sub(r"\]\([\w-]+\.md[^)]*\)", "](#)", TEXT)  # the other pages are not there
    (folder / "docs" / PAGE).write_text(alone, encoding="utf-8")
    done = subprocess.run([sys.executable, "-c", BUILD, str(folder), PAGE], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads((folder / "site" / "search" / "search_index.json").read_text(encoding="utf-8"))["docs"]
    return {unquote(entry["location"]): entry for entry in found}


def test_every_term_is_an_entry_of_its_own(entries):
    """A query for a term lands on the term: its two names are the entry's title, which the search weighs a thousand times the text."""
    titles = {entry["title"].replace("\u200b", "") for entry in entries.values()}

    for name, _ in TERMS:
        assert re.sub(r"\s+", " ", name) in titles


def test_every_row_stands_in_a_small_section(entries):
    """Magnitudes and formulas: the heading names what is below it, and no section is longer than a screen."""
    for row in MAGNITUDES + FORMULAS:
        name = row.split(" | ")[0].strip("| ")
        holding = [e for e in entries.values() if name.replace(" ", "") in re.sub(r"[\u200b\s]", "", e["text"])]
        assert holding, name
        assert min(len(e["text"]) for e in holding) < 1500, name


WORKER = (
    "for(;i<n;i++){var s=r[i],o=this.edges[s];e=e+s+o.id}return e}x=ae,lunr.tokenizer.separator=new RegExp(e.separator),"
    'y=1,s=>[...fe(s,this.index.invertedIndex)].join("* "),z'
)
MENDED = (
    'for(;i<n;i++){var s=r[i],o=this.edges[s];e=e+s+o.id+","}return e}x=ae,lunr.tokenizer.separator=new RegExp(e.separator),'
    'lunr.QueryLexer.termSeparator=/\\s+/,y=1,s=>" "+[...fe(s,this.index.invertedIndex)].join("* ")+" ",z'
)


@pytest.fixture
def theme(tmp_path, monkeypatch):
    """A theme with a search worker of a given text; returns a function that writes it and gives the place for the mended one."""

    def make(text: str) -> Path:
        worker = tmp_path / "templates" / WORKERS / "search.0.min.js"
        worker.parent.mkdir(parents=True)
        worker.write_text(text, encoding="utf-8")
        monkeypatch.setattr("calculators.site.search_worker.theme_folder", lambda: tmp_path / "templates")
        return tmp_path / "docs"

    return make


def test_the_mended_search_replaces_the_themes(theme):
    """The key of a node is unambiguous (edges "1"→23 and "12"→3 differ), queries are cut at white space; twice is once."""
    docs = theme(WORKER)
    (docs / WORKERS).mkdir(parents=True)
    (docs / WORKERS / "search.old.min.js").write_text("of another theme", encoding="utf-8")
    write_search_worker(docs)

    assert [p.read_text(encoding="utf-8") for p in (docs / WORKERS).iterdir()] == [MENDED]
    assert mended(MENDED) == MENDED


@pytest.mark.parametrize("gone", ["e=e+s+o.id", "lunr.tokenizer.separator", "this.index.invertedIndex"])
def test_another_search_is_reported(theme, gone):
    """A theme in which there is nothing to mend, or not in this way, stops the build."""
    with pytest.raises(SearchChanged, match="still to be mended"):
        write_search_worker(theme(WORKER.replace(gone, "other")))
