"""Mends three faults in the search of the site (lunr 2.3.9 inside the theme's worker).

1. lunr merges equal ends of words, and tells nodes apart by a key in which letters and node numbers run together: the edges
   "1"→23 and "12"→3 both read "123".  In a large index with many digits, different nodes get one key, the index then expands
   a query to words that it does not hold, and the search stops with "nothing found" (here: for token).  A comma behind every
   number makes the key unambiguous.
2. A query is cut at hyphens whatever ``separator`` says, the index is not: "reduce-scatter" was asked for as "reduce scatter"
   and found nothing.  Queries are now cut at white space alone.
3. A query is segmented only where it is Chinese: "kv缓存" was asked for as one word.  A space now parts it from its Latin neighbours.

The mended worker is a generated file of ``docs`` under the theme's own name: MkDocs prefers files of ``docs`` to the theme's.
So it holds for build and preview alike and needs no hook.
"""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

WORKERS = Path("assets") / "javascripts" / "workers"
KEY = re.compile(r"(\w+)=\1\+(\w+)\+(\w+)\.id(?:\+\",\")?(?=\}return \1\})")
"""The loop that spells the key: ``str = str + label + node.id``, mended or not."""
SEPARATOR = re.compile(r"(lunr\.tokenizer\.separator=new RegExp\(\w+\.separator\)),(?:lunr\.QueryLexer\.termSeparator=/\\s\+/,)?")
"""Where the worker takes the book's separator for the index."""


HAN = re.compile(r"(\w+=>)(\[\.\.\.\w+\(\w+,this\.index\.invertedIndex\)\]\.join\(\"\* \"\))(?!\+)")
"""Where the worker segments a run of Chinese in a query."""


class SearchChanged(LookupError):
    """The theme's search is not the one that was mended."""


def mended(worker: str) -> str:
    """The worker's text with the unambiguous key, with queries cut at white space and between Chinese and Latin."""
    cut = SEPARATOR.sub(r"\1,lunr.QueryLexer.termSeparator=/\\s+/,", KEY.sub(r'\1=\1+\2+\3.id+","', worker))
    return HAN.sub(r'\1" "+\2+" "', cut)


def theme_folder() -> Path:
    """The theme's own files."""
    return Path(str(files("material"))) / "templates"


def write_search_worker(docs_dir: Path) -> None:
    """Put the mended worker where it replaces the theme's.  Raises SearchChanged when the theme changed so that this has to be looked at."""
    folder = docs_dir / WORKERS
    for stale in folder.glob("search.*.min.js"):
        stale.unlink()
    folder.mkdir(parents=True, exist_ok=True)
    for path in (theme_folder() / WORKERS).glob("search.*.min.js"):
        text = path.read_text(encoding="utf-8")
        if not all(place.search(text) for place in (KEY, SEPARATOR, HAN)):
            raise SearchChanged(f"{path.name}: lunr's key, the separator or the segmentation was not found; is the search still to be mended?")
        (folder / path.name).write_text(mended(text), encoding="utf-8")
