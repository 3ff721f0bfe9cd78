"""Build and preview: fetch the runtime, write the generated assets, run MkDocs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from calculators.catalog.hardware import accelerators
from calculators.catalog.models import models
from calculators.site.bundle import write_assets
from calculators.site.policy import policy
from calculators.site.reading import write_reading
from calculators.site.runtime import FetchError
from calculators.site.search_worker import SearchChanged, write_search_worker

DOCS = Path("docs")


def build(site_dir: str, site_url: str | None) -> int:
    """A strict build; prints the policy to serve the site under, and returns MkDocs' exit code."""
    if not _prepare():
        return 1
    site = Path(site_dir).resolve()
    code = subprocess.call([sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)], env=_environment(site_url))
    if code == 0:
        print(f"站点在 {site_dir}。部署（.github/DEPLOY.md）时可以带上这条策略：\nContent-Security-Policy: {policy(site)}")
    return code


def serve(address: str) -> int:
    """The preview server with live reload of the chapters."""
    if not _prepare():
        return 1
    return subprocess.call([sys.executable, "-m", "mkdocs", "serve", "--dev-addr", address], env=_environment(None))


def _prepare() -> bool:
    try:
        write_assets(DOCS, {"choices": {"model": {m.id: m.name for m in models().values()}, "gpu": {a.id: a.name for a in accelerators().values()}}})
        write_reading(DOCS)
        write_search_worker(DOCS)
    except (FetchError, SearchChanged) as error:
        print(error, file=sys.stderr)
        return False
    return True


def _environment(site_url: str | None) -> dict[str, str]:
    chosen = {"SITE_URL": site_url} if site_url else {}
    # One thread: a multithreaded BLAS on a busy machine measures the neighbours, and the page prints what was measured.
    return {**os.environ, "NO_MKDOCS_2_WARNING": "1", "OPENBLAS_NUM_THREADS": "1", **chosen}
