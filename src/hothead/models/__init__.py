"""Targets and draft networks: configuration, weights, tokenizer, attention, decoder, and where models come from."""
