"""Long runs that look for what no single test would meet: commands, each with figures at its end and exit 1 if it found
something. From the folder tests: `python -m campaigns.NAME --help`; the Makefile has a target for each.
"""
