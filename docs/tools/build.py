"""Builds the documentation: `make docs` runs this and leaves static pages in site/.

Warnings are errors. The pages must open from the disk and fetch nothing: the one script that the generator takes from
a host outside, for search in pages that are opened from a file, is replaced by assets/worker.js, and any other
address that a page would load is refused.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SITE = ROOT / "site"
SHIM = "https://unpkg.com/iframe-worker/shim"
LOADED = re.compile(r'<(?:script|img|iframe|source|audio|video)\b[^>]*\bsrc="((?:https?:)?//[^"]*)"|<link\b[^>]*>')
STYLED = re.compile(r"(?:@import\s*|url\()\s*[\"']?((?:https?:)?//[^\"')]*)")


def main() -> None:
    zensical = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    places = [str(ROOT / "docs" / "tools"), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    tools = os.pathsep.join(filter(None, places))
    if (rc := subprocess.run(zensical, cwd=ROOT, env=os.environ | {"PYTHONPATH": tools}).returncode) != 0:
        sys.exit(rc)
    for page in SITE.rglob("*.html"):
        depth = len(page.relative_to(SITE).parts) - 1
        page.write_text(page.read_text().replace(SHIM, "../" * depth + "assets/worker.js"))
    outside = [f"{path.relative_to(SITE)} loads {address}" for path in SITE.rglob("*") for address in loaded(path)]
    if outside:
        sys.exit("\n".join(["expected pages that load nothing from outside, got:", *outside]))
    files = [path for path in SITE.rglob("*") if path.is_file()]
    pages = sum(path.suffix == ".html" for path in files)
    print(f"{pages} pages, {sum(path.stat().st_size for path in files) / 2**20:.1f} MiB: {SITE / 'index.html'}")


def loaded(path: Path) -> list[str]:
    """Addresses outside that a browser would fetch with a page or a style sheet; links to follow are none of them."""
    if path.suffix == ".css":
        return STYLED.findall(path.read_text())
    if path.suffix != ".html":
        return []
    addresses = []
    for match in LOADED.finditer(path.read_text()):
        if match[1]:
            addresses.append(match[1])
        elif re.search(r'rel="(?:stylesheet|preload|preconnect|modulepreload|icon)"', match[0]):
            addresses += re.findall(r'href="((?:https?:)?//[^"]*)"', match[0])
    return addresses


if __name__ == "__main__":
    main()
