"""Measures the engine: seeded networks that need no torch, and the engines they are compared with."""
