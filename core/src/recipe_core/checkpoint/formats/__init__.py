"""Checkpoint formats, one file each. A format moves bytes; it decides nothing."""
