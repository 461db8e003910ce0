"""Binary neural networks on small machines: train with OvSW, export to `.bnn`, run with 1-bit kernels.

    from ovsw import Engine
    engine = Engine("resnet18.bnn")
    engine.classify("cat.jpg")

Importing `ovsw` needs numpy and Pillow only; `ovsw.nn` and `ovsw.export` need torch.
"""

from ovsw._version import __version__
from ovsw.engine import Engine, Profile, ProfileRow, Step
from ovsw.format import FormatError

__all__ = ["Engine", "FormatError", "Profile", "ProfileRow", "Step", "__version__"]
