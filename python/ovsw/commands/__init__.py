"""The commands that need no torch, one module each, and what all commands share (`base.py`)."""
