"""Propose a token tree: the drafter protocol, tree growth, NGRAM, EAGLE, and the catalog that names them."""
