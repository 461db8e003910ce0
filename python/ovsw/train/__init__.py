"""Training with OvSW: the method as a plug-in for any loop."""

from ovsw.train.method import OvSW

__all__ = ["OvSW"]
