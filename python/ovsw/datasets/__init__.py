"""Image sets, for whoever trains on them or measures an export with them.

from ovsw.datasets import open_split
split = open_split("cifar10", Path("data"), "test")
"""

from ovsw.datasets.base import IMAGE_SUFFIXES, DataError, FolderSet, MemorySet, Split, crop_box
from ovsw.datasets.sets import DATASETS, open_split

__all__ = ["DATASETS", "IMAGE_SUFFIXES", "DataError", "FolderSet", "MemorySet", "Split", "crop_box", "open_split"]
