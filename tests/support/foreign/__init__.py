"""Binary networks as other people write them: each is spelled in a habit of its own, none uses `ovsw.nn`.

`HABITS` must be exported exactly, `HARD` exactly or with a clear refusal, `NONSENSE` must be refused in given words.
All are seeded functions without arguments, so that a test can make the same network twice.
"""

from __future__ import annotations

from support.foreign import activations, hard, nonsense, structures, weights
from support.foreign.common import Network
from support.foreign.nonsense import Nonsense

_BEYOND = ("sign_bit", "halves_apart", "per_image_and_channel_mean")  # steps that the lattice does not have yet
_ALL: dict[str, Network] = {**activations.HABITS, **weights.HABITS, **structures.HABITS}
HABITS: dict[str, Network] = {name: network for name, network in _ALL.items() if name not in _BEYOND}
HARD: dict[str, Network] = {**hard.HARD, **{name: _ALL[name] for name in _BEYOND}}
NONSENSE: dict[str, Nonsense] = nonsense.NONSENSE
