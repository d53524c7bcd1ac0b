"""The commands and programs in the README and in docs/."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", *sorted(str(page.relative_to(ROOT)) for page in ROOT.glob("docs/**/*.md"))]
ADDRESS = "127.0.0.1:8080"
BLOCK = re.compile(r"^```(console|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(kind: str) -> list[tuple[str, str]]:
    """Return (page, text) of each block of a kind, ``console`` or ``python``."""
    return [
        (page, found.group(2))
        for page in PAGES
        for found in BLOCK.finditer((ROOT / page).read_text(encoding="utf-8"))
        if found.group(1) == kind
    ]


def spark_programs() -> list[tuple[str, str]]:
    """Return (page, text) of each program that uses Spark."""
    return [(page, block) for page, block in blocks("python") if "pyspark" in block]


def at_port(text: str, port: int) -> str:
    """Replace the broker's address in a page by that of a test's broker."""
    return text.replace(ADDRESS, f"127.0.0.1:{port}")


def named(found: list[tuple[str, str]]) -> list[str]:
    """Return an id for each block: the name of its page and a number."""
    return [f"{page}-{number}" for number, (page, _) in enumerate(found)]
