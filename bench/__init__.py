"""Measuring the engine: seeded networks made without torch, and what they are compared with."""
