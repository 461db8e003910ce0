"""The site: it builds without a warning and without a network, no link of it or of the Markdown is dead, and no page is
wider than a phone."""

from __future__ import annotations

import functools
import os
import re
import runpy
import subprocess
import sys
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

import pytest

from support import HANGS, ROOT, browser, pages

MARKDOWN = sorted(str(p.relative_to(ROOT)) for p in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")))
HOST = "http://site.invalid/"


def anchors(text: str) -> set[str]:
    """What GitHub calls the headings of a page."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", pages.FENCE.sub("", text), re.MULTILINE):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        found.add(slug if slug not in found else f"{slug}-1")
    return found


@pytest.mark.parametrize("page", MARKDOWN)
def test_links_of_markdown(page: str) -> None:
    """As GitHub follows them: files, folders, headings."""
    text = pages.FENCE.sub("", pages.text_of(page))
    for link in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", text)):
        address, _, anchor = link.partition("#")
        if re.match(r"https?:", address):
            continue
        target = ROOT / page if not address else (ROOT / page).parent / address
        assert target.exists(), f"{page}: {link}"
        assert target.resolve().is_relative_to(ROOT), f"{page}: {link}"
        if anchor:
            assert anchor in anchors(target.read_text(encoding="utf-8")), f"{page}: {link}"


def test_files_that_contributing_names_exist() -> None:
    named = re.findall(r"`([\w./]+/[\w.]+\.(?:py|cc|h|hpp|toml|tsv|md))`", pages.text_of("CONTRIBUTING.md"))
    assert len(named) > 80
    assert [path for path in named if not (ROOT / path).is_file()] == []


def test_the_picture_shows_the_table() -> None:
    drawn = runpy.run_path(str(ROOT / "tools" / "docs" / "picture.py"))
    results = pages.text_of("docs/results.md")
    bars, machine = drawn["bars"](results), drawn["machine"](results)
    assert [(b.engine, b.precision, b.ms) for b in bars[:2]] == [("ovsw", "1-bit", 2.68), ("openvino", "int8", 9.34)]
    assert machine == "AMD EPYC, x86_avx512, 2026-11-17"
    assert drawn["svg"](bars, machine) == pages.text_of("docs/pictures/engines.svg"), (
        "python tools/docs/picture.py draws it again"
    )


def deployment_table(page: str) -> list[list[str]]:
    """Network, W/A, size, saving, latency and acceleration of each row."""
    (table,) = re.findall(r"^\| Network \| W/A \|.*\n(?:^\|.*\n)+", pages.text_of(page), re.MULTILINE)
    head, _, *lines = table.splitlines()
    cells = [[cell.strip(" *") for cell in line.split("|")[1:-1]] for line in (head, *lines)]
    wanted = [i for i, name in enumerate(cells[0]) if name not in ("File (MB)", "p10 .. p90", "Engine")]
    return [[row[i] for i in wanted] for row in cells if row[1]]


def test_the_readme_shows_the_deployment_table() -> None:
    shown = deployment_table("README.md")
    assert len(shown) == 15
    assert shown == deployment_table("docs/results.md")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("material")
    folder = tmp_path_factory.mktemp("site")
    nowhere = {f"{kind}_proxy": "http://127.0.0.1:9" for kind in ("http", "https")}
    environment = {**os.environ, **nowhere, "OVSW_DOCS_PACKAGE": str(folder / "package"), "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder / "site")]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=HANGS, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


class Parts(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.ids: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.ids |= {found[name] for name in ("id", "name") if name in found}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        self.loads += [found[name] for name in ("src", "href") if name in found and tag != "a"]


@functools.cache
def parts(path: Path) -> Parts:
    found = Parts()
    found.feed(path.read_text(encoding="utf-8"))
    return found


def test_links_of_the_site(site: Path) -> None:
    """Every page, picture and heading that a page leads to is there; what pages load is their own."""
    built = sorted(site.rglob("*.html"))
    assert len(built) > 25
    dead = []
    for path in built:
        if path.name == "404.html":  # its addresses begin with /
            continue
        here = HOST + path.relative_to(site).as_posix()
        for link in parts(path).links + parts(path).loads:
            address = urlsplit(urljoin(here, link))
            if address.netloc != urlsplit(HOST).netloc:
                if link in parts(path).loads and "canonical" not in link:
                    dead.append(f"{here} loads {link}")
                continue
            target = site / unquote(address.path).lstrip("/")
            target = target / "index.html" if target.is_dir() else target
            heading = unquote(address.fragment) if target.suffix == ".html" else ""
            if not target.exists() or (heading and heading not in parts(target).ids):
                dead.append(f"{here}: {link}")
    assert dead == []


def test_every_page_is_in_the_menu(site: Path) -> None:
    menu = {urljoin(HOST, link).removeprefix(HOST).split("#")[0] for link in parts(site / "index.html").links}
    for page in ROOT.glob("docs/*.md"):
        assert f"{page.stem}.html" in menu


def test_commands_and_api_are_filled_in(site: Path) -> None:
    commands = (site / "commands.html").read_text()
    for words in ("usage: ovsw-run", "usage: ovsw-export", "--zero-weights", "usage: ovsw-train"):
        assert words in commands
    assert {"ovsw.Engine.run", "ovsw.export.export_module", "ovsw.train.OvSW"} <= parts(site / "api.html").ids


@pytest.fixture
def address(site: Path) -> Iterator[str]:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def test_pages_in_a_browser(site: Path, address: str) -> None:
    """At the width of a desk and of a phone nothing sticks out, nothing is fetched elsewhere, the console is quiet."""
    found = browser.find()
    if found is None:
        assert not os.environ.get("CI"), "CI must have a browser: tools/browser/setup"
        pytest.skip("no browser; tools/browser/setup installs one")
    names = sorted(p.name for p in site.glob("*.html"))
    with browser.page(found) as tab:
        for name in names:
            for width in (1280, 390):
                tab.open(address + name, width)
                wide = tab.value("document.documentElement.scrollWidth")
                assert wide <= width, f"{name} is {wide} wide at {width}"
        assert [r for r in tab.requests if not r.startswith((address, "data:", "blob:"))] == []
        assert tab.complaints == []
