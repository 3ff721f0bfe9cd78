"""Find a Chromium for the browser tests, or install one, or say exactly what to do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
MAC = Path("/Applications/Google Chrome.app/Contents/MacOS/Google Chrome")


def find() -> str | None:
    """Path of a Chromium: ``$CHROMIUM``, PATH, macOS' place, or Playwright's own download."""
    named = os.environ.get("CHROMIUM")
    if named:
        return named
    for name in NAMES:
        path = shutil.which(name)
        if path:
            return path
    if MAC.exists():
        return str(MAC)
    return _playwrights_own()


def _playwrights_own() -> str | None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as p:
        path = p.chromium.executable_path
    return path if Path(path).exists() else None


def install() -> None:
    """Try Playwright's download, then Debian's package when we are root."""
    if subprocess.call([sys.executable, "-m", "playwright", "install", "chromium"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) == 0:
        return
    if shutil.which("apt-get") and hasattr(os, "geteuid") and os.geteuid() == 0:
        subprocess.call(["apt-get", "update", "-qq"])
        subprocess.call(
            ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "chromium", "fonts-noto-cjk"],
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
        )


def main() -> int:
    if find() is None:
        print("没有找到 Chromium，正在安装……", flush=True)
        install()
    found = find()
    if found:
        print(f"浏览器测试用：{found}")
        return 0
    print(
        "浏览器测试需要 Chromium，没有找到，也没能自动装上。任选其一：\n"
        "  Debian / Ubuntu：sudo apt-get install chromium fonts-noto-cjk\n"
        "  macOS：安装 Google Chrome\n"
        "  其他：.venv/bin/python -m playwright install chromium\n"
        "  已装在别处：CHROMIUM=/路径/chromium make test\n"
        "只跑其余测试：.venv/bin/python -m pytest -m 'not browser'",
        file=sys.stderr,
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
