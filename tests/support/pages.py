"""The Markdown pages of README and docs: their code blocks, and what a comment before a block says of it.

A block is run by tests/docs unless a comment right before it says otherwise; the comments do not show on the page:

    <!-- stand-ins: cat.jpg DIR -->   anywhere on the page: what lies in the folder that its blocks run in
    <!-- not run: REASON -->          only its syntax and its commands' options are checked
    <!-- slow -->                     run by `make test-all` only, with all blocks that follow
    <!-- fails -->                    it has to end in an error, which the `output` after it shows
    <!-- file: NAME -->               it is first saved under this name
    <!-- in tests: OLD => NEW -->     this text is replaced: fewer epochs, say
    <!-- output -->                   before a block of text: what the block before printed; ... is anything
    <!-- WHAT, by TOOL -->            before a block of text: written by that tool, whose test reads it
    <!-- checked by: TEST -->         before a block of text: that test reads it
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field

from support import ROOT

PAGES = sorted(
    str(p.relative_to(ROOT)) for p in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")) if p.name != "CHANGELOG.md"
)
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"<!-- (.*?) -->\n$")


@dataclass
class Block:
    page: str
    line: int
    language: str
    text: str
    not_run: str | None = None
    slow: bool = False
    fails: bool = False
    output: bool = False
    checked: bool = False
    file: str | None = None
    swaps: list[tuple[str, str]] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str, text: str | None = None) -> list[Block]:
    text = text_of(page) if text is None else text
    return [_block(page, text, match) for match in FENCE.finditer(text)]


def _block(page: str, text: str, match: re.Match[str]) -> Block:
    indent = len(match[1])
    content = "".join(line[indent:] if line.strip() else line for line in match[3].splitlines(keepends=True))
    block = Block(page, text.count("\n", 0, match.start()) + 1, match[2], content)
    before = text[: match.start()]
    while comment := COMMENT.search(before):
        before = before[: comment.start()].rstrip(" ")
        word, _, rest = comment[1].partition(": ")
        if word == "not run":
            block.not_run = rest
        elif word == "file":
            block.file = rest
        elif word in ("slow", "fails", "output"):
            setattr(block, word, True)
        elif word == "in tests":
            old, arrow, new = rest.partition(" => ")
            assert arrow, f"{block}: {comment[0]}"
            assert old in content, f"{block}: does not have {old!r}"
            block.swaps.append((old, new))
        elif word == "checked by" or (block.language in ("", "text") and ", by tools/" in word):
            block.checked = True
            assert word != "checked by" or (ROOT / rest).is_file(), f"{block}: there is no {rest}"
        elif word != "stand-ins":
            raise AssertionError(f"{block}: unknown comment {comment[0]}")
    return block


def stand_ins(page: str) -> list[str]:
    return [name for names in re.findall(r"<!-- stand-ins: (.*?) -->", text_of(page)) for name in names.split()]


def commands(block: Block) -> list[list[str]]:
    """The single commands of a block for bash, as words without redirections."""
    joined = block.text.replace("\\\n", " ")
    found = []
    for line in joined.splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars="();<>|&")
        lexer.whitespace_split = True
        words: list[str] = []
        skip = False
        for word in lexer:
            if set(word) <= set("();|&"):
                found.append(words)
                words = []
            elif set(word) <= set("<>"):
                skip = True
            elif not skip:
                words.append(word)
            else:
                skip = False
        found.append(words)
    return [words for words in found if words]


def matches(shown: str, printed: str) -> bool:
    """Whether a text was printed as shown; ... stands for anything, blanks at ends of lines for nothing."""
    shown, printed = (re.sub(r" +$", "", text.strip(), flags=re.MULTILINE) for text in (shown, printed))
    pattern = ".*?".join(map(re.escape, shown.split("...")))
    return re.fullmatch(pattern, printed, re.DOTALL) is not None
