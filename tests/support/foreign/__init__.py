"""Binary networks as other people write them: each is spelled in a habit of its own, none uses `ovsw.nn`.

`HABITS` must be exported exactly, `HARD` exactly or with a clear refusal, `nonsense.py` must be refused in given
words. All are seeded functions without arguments, so that a test can make the same network twice.
"""

from __future__ import annotations

from support.foreign import activations, hard, structures, weights
from support.foreign.common import Network

HABITS: dict[str, Network] = {**activations.HABITS, **weights.HABITS, **structures.HABITS}
HARD: dict[str, Network] = hard.HARD
