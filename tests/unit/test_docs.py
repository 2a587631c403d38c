"""README.md and docs/: links, pictures, commands and code without a run.

tests/e2e/test_commands_in_turn.py runs the Python blocks.
"""

import importlib
import json
import re
import tomllib

import pytest
from documentation import DOCS, PAGES, README, ROOT, blocks, commands
from test_layout import PARTS

import keras_albert
from keras_albert.cli import _parse

pytestmark = pytest.mark.any_backend

OTHERS = [
    ROOT / "CONTRIBUTING.md",
    ROOT / "tests" / "README.md",
    ROOT / "tests" / "benchmarks" / "README.md",
    ROOT / "tpu" / "README.md",
    *(ROOT / "examples").rglob("*.md"),
]
LINK = re.compile(r"\]\(([^()\s]+)\)")


def names(paths):
    return [str(path.relative_to(ROOT)) for path in paths]


@pytest.fixture
def draw(monkeypatch):
    monkeypatch.syspath_prepend(DOCS)
    return importlib.import_module("draw")


def anchors(page):
    """The anchors that GitHub and mkdocs make of the headings."""
    found = set()
    for title in re.findall(r"^#+ (.*)$", page.read_text("utf-8"), re.M):
        words = re.sub(r"[^\w\s-]", "", title.lower())
        found.add(re.sub(r"\s", "-", words.strip()))
    return found


@pytest.mark.parametrize("page", PAGES + OTHERS, ids=names(PAGES + OTHERS))
def test_links(page):
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        if link.startswith(("https://", "http://")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page}: {link}"
        if page.is_relative_to(DOCS):  # the site has no other files
            assert target.is_relative_to(DOCS), f"{page}: {link}"
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{page}: {link}"


def test_the_source_page_lists_the_parts_in_their_order():
    text = (DOCS / "source.md").read_text(encoding="utf-8")
    cells = re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
    parts = re.findall(r"`(\w+)(?:/|\.py)`", " ".join(cells))
    assert tuple(parts) == PARTS


def test_every_page_is_in_the_navigation():
    """Every page that the navigation names exists."""
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = re.findall(r"- ([\w/-]+\.md)$", text, re.MULTILINE)
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    assert set(listed) == pages and len(listed) == len(pages)


def test_every_public_name_is_in_the_reference():
    text = (DOCS / "api.md").read_text(encoding="utf-8")
    shown = re.findall(r"^::: keras_albert\.(\S+)$", text, re.MULTILINE)
    assert sorted(shown) == keras_albert.__all__


def test_pictures_are_up_to_date(draw):
    for name, picture in draw.pictures().items():
        file = DOCS / "pictures" / name
        assert file.read_text(encoding="utf-8") == picture, (
            f"{file} is out of date. Run python docs/draw.py."
        )


def test_the_readme(draw):
    """It is short; its numbers are of ALBERT-base and the paper's Table 3."""
    readme = README.read_text("utf-8")
    assert len(readme.splitlines()) <= 220
    albert, bert = (
        sum(draw.parameters(config).values())
        for config in (draw.ALBERT, draw.BERT)
    )
    assert (albert, bert) == (11_683_584, 109_081_344)
    assert f"| {albert:,} | {bert:,} | 0.11 |" in readme


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_code_can_be_read(page):
    for block in blocks(page, "python"):
        compile(block.code, block.place, "exec")
    for block in blocks(page, "json"):
        json.loads(block.code)
    for block in blocks(page, "toml"):
        tomllib.loads(block.code)


def test_commands_have_the_options_that_they_are_shown_with(
    tmp_path, monkeypatch
):
    for page, file in (("pretraining", "run"), ("fine-tuning", "sweep")):
        (content,) = blocks(DOCS / f"{page}.md", "toml")
        (tmp_path / f"{file}.toml").write_text(content.code)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    shown = {page: commands(page) for page in PAGES + OTHERS}
    for page, lines in shown.items():
        for arguments in lines:
            try:
                _parse(arguments)
            except (Exception, SystemExit) as error:
                pytest.fail(f"{page}: keras-albert {arguments}: {error}")
    assert len(shown[README]) >= 6
    assert sum(map(len, shown.values())) > 40
