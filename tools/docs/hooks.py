"""What `make docs` adds to the pages in docs/: the help of every command, the root's own texts, linked source files.

Links are written as GitHub reads them, relative to the file. A link out of docs/ becomes one to a page that shows that
file or lists that folder, so the site is complete in itself.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import posixpath
import re
import shutil
import sys
from pathlib import Path
from typing import Any
from unittest import mock

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
TEXTS = {"CONTRIBUTING.md": "contributing.md", "SECURITY.md": "security.md", "CHANGELOG.md": "changelog.md"}
LINK = re.compile(r"(\]\()([^)#\s]+)((?:#[^)\s]*)?\))")
COMMANDS = "<!-- the help of every command -->"


def on_startup(**_: Any) -> None:
    """The package as it is installed, export/ and bench/ inside ovsw/, for mkdocstrings to read."""
    package = ROOT / os.environ.get("OVSW_DOCS_PACKAGE", "build/docs") / "ovsw"
    shutil.rmtree(package, ignore_errors=True)
    only_python = shutil.ignore_patterns("*.so", "__pycache__", "data")
    shutil.copytree(ROOT / "python" / "ovsw", package, ignore=only_python)
    for part in ("export", "bench"):
        shutil.copytree(ROOT / part, package / part, ignore=only_python)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for name, uri in TEXTS.items():
        files.append(File.generated(config, uri, content=(ROOT / name).read_text()))
    waiting = [file for file in files if file.src_uri.endswith(".md")]
    for file in waiting:
        for _, target, _ in LINK.findall(file.content_string):
            path = _in_tree(file.src_uri, target)
            if path and (uri := _uri(path)).startswith("source/") and files.get_file_from_path(uri) is None:
                files.append(File.generated(config, uri, content=_shown(path, uri)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    here = page.file.src_uri
    if here.startswith("source/"):
        return markdown

    def rewritten(match: re.Match[str]) -> str:
        path = _in_tree(here, match[2])
        if path is None:
            return match[0]
        return match[1] + posixpath.relpath(_uri(path), posixpath.dirname(here) or ".") + match[3]

    text = "".join(
        part if part.startswith("```") else LINK.sub(rewritten, part)
        for part in re.split(r"(^```.*?^```$)", markdown, flags=re.MULTILINE | re.DOTALL)
    )
    return text.replace(COMMANDS, _helps()) if COMMANDS in text else text


def _in_tree(uri: str, target: str) -> str | None:
    """The path from the root of what a page links to; None for addresses elsewhere."""
    if re.match(r"[a-z]+:", target):
        return None
    source = {new: old for old, new in TEXTS.items()}.get(uri, f"docs/{uri}")
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    return path if (ROOT / path).exists() else None


def _uri(path: str) -> str:
    """Where the site has a file or folder of the tree."""
    if path in TEXTS:
        return TEXTS[path]
    if path == "README.md":
        return "index.md"
    if (ROOT / path).is_dir():
        return f"source/{path}/index.md"
    return path.removeprefix("docs/") if path.startswith("docs/") else f"source/{path}.md"


def _shown(path: str, uri: str) -> str:
    """A page for a source file, or for a folder."""
    full = ROOT / path
    if full.is_file():
        language = {".h": "c", ".cc": "cpp", ".hpp": "cpp", ".md": "md"}.get(full.suffix, full.suffix[1:])
        return f"# {path}\n\n````{language}\n{full.read_text()}````\n"
    up = posixpath.relpath(".", posixpath.dirname(uri))
    lines = [f"# {path}", ""]
    for file in sorted(p for p in full.rglob("*") if p.is_file()):
        name = str(file.relative_to(ROOT))
        inside = name.startswith("docs/")
        lines.append(f"- [{file.relative_to(full)}]({up}/{_uri(name)})" if inside else f"- `{file.relative_to(full)}`")
    return "\n".join(lines) + "\n"


def _helps() -> str:
    """`--help` of each command as its own parser prints it."""
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    parts = []
    for name, entry in sorted(project["scripts"].items()):
        module, function = entry.split(":")
        main = getattr(importlib.import_module(module), function)
        out = io.StringIO()
        wide = mock.patch.dict(os.environ, COLUMNS="90", NO_COLOR="1")
        called = mock.patch.object(sys, "argv", [name, "--help"])
        with wide, called, contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
            main()
        parts.append(f"## {name}\n\n```text\n{out.getvalue().strip()}\n```\n")
    return "\n".join(parts)
