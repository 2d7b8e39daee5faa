"""Every file format of token maps: one file a format, and `registry.py`, which tells them apart and names them to users."""
