"""Propose a token tree: the drafter protocol, tree growth, NGRAM, EAGLE and EAGLE-3, and the catalog that names them."""
