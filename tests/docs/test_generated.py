import re

import pytest

from broker.config.sections import iter_keys
from broker.errors import registry
from scripts import gen_docs

CODES = {error.code for error in registry() if error.__module__ == "broker.errors"}


@pytest.mark.parametrize("name", gen_docs.PAGES)
def test_a_page_made_from_the_code_is_current(name: str) -> None:
    written = (gen_docs.ROOT / name).read_text(encoding="utf-8")
    assert written == gen_docs.PAGES[name](), "run: make docs"


def test_every_key_is_documented() -> None:
    page = gen_docs.config_page()
    assert [
        key.dotted for key in iter_keys() if f"| `{key.name}` | `{key.flag}` |" not in page
    ] == []


def test_every_error_code_is_documented() -> None:
    page = gen_docs.errors_page()
    assert {code for code in CODES if f"| [`{code}`](" not in page} == set()


def test_every_error_has_its_section_in_troubleshooting() -> None:
    page = (gen_docs.ROOT / "docs/guides/troubleshooting.md").read_text(encoding="utf-8")
    codes = page.partition("\n## Error codes\n")[2].partition("\n## ")[0]
    sections = re.findall(r"^### (.*)\n\n(?=[^#\n])", codes, re.MULTILINE)
    assert sorted(sections) == sorted(CODES)
