"""`ovsw-repro`: the paper's tables and figures with one command, at its own scale or at that of a small CPU.

plan.toml lists the experiments; runs.py trains them in child processes; results.py keeps the small files of the runs,
from which report.py and figures.py make tables and pictures at any time. chaos.py is a study beyond the paper.
"""
