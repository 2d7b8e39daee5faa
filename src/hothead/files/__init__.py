"""How files of others are laid out (GGUF headers, pickles, JSON), and how ours are written: whole or not at all."""
