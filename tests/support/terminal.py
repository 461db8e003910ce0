"""What a pseudo-terminal is sent."""

from __future__ import annotations

import os


def sent(master: int) -> bytes:
    """All until the last process that writes to it ends, without the terminal's own carriage returns; closes it."""
    output = b""
    while True:
        try:
            part = os.read(master, 65536)
        except OSError:  # Linux says so when the last one has closed it
            break
        if not part:
            break
        output += part
    os.close(master)
    return output.replace(b"\r\n", b"\n")
