"""`python -m ovsw.repro.child NICE MODULE ARGUMENT...`: runs a command as a child process that ends with its parent.

The parent holds the other end of stdin. However it ends, even by kill -9, this process then reads the end of the file.
Nothing is half saved, as files are replaced atomically.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading


def _end_with_parent() -> None:
    os.read(0, 1)  # not sys.stdin: its lock would be held when the interpreter ends
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, daemon=True).start()
    niceness, module, *arguments = sys.argv[1:]
    if int(niceness):
        os.nice(int(niceness))
    sys.exit(importlib.import_module(module).main(arguments))
