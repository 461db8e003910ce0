"""Image sets, for whoever trains on them or measures an export with them.

from ovsw.datasets import open_split
split = open_split("cifar10", Path("data"), "test")
"""

from ovsw.datasets.sets import IMAGE_SUFFIXES, DataError, FolderSet, MemorySet, crop_box, open_split

__all__ = ["IMAGE_SUFFIXES", "DataError", "FolderSet", "MemorySet", "crop_box", "open_split"]
