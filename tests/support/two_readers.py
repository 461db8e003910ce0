"""Whether the Python reader and the C++ loader agree about a file, as far as both check the same."""

from __future__ import annotations

import re

from ovsw import format as bnn

# What the loader alone looks at: keys of the metadata that it uses, and memory.
_LOADER_ONLY = re.compile(
    r"metadata field |metadata has \d+ labels|: has \d+ names, |bytes for its maps|is over the limit of \d+ elements"
)
# Rules 15 to 21, which of numerics float only the loader checks.
_GRAPH = re.compile(
    r"^op \d+ '.*': (?!no input|reserved bytes|\w+ refers to|kind \d+ is unknown|activation \d+ is unknown)|"
    r"^value 0 \(the input\)|^value \d+ is never written|^header field (mean|std) (\(tensor|holds)|"
    r"^header field output \(value"
)


def disagreement(data: bytes, python: str | None, cpp: str | None) -> str | None:
    """Words, if one of two refusals is not there that should be. Each is a message, or None if the file was taken."""
    if python is not None and cpp is None:
        return f"only the Python reader refuses: {python}"
    if cpp is None or python is not None or _LOADER_ONLY.search(cpp):
        return None
    if bnn.from_bytes(data).numerics == "float" and _GRAPH.search(cpp):
        return None
    return f"only the C++ loader refuses: {cpp}"
