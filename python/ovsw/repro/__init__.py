"""`ovsw-repro`: the paper's tables and figures by one command, at its own scale or at that of a small CPU.

plan.toml says what is run; runs.py trains it in child processes; results.py keeps the light parts of the runs, from
which report.py and figures.py make tables and pictures, now or years later. chaos.py is a study beyond the paper.
"""
