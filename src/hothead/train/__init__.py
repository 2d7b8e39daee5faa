"""Draft heads from the target's own responses. Read `eagle.py` first."""
