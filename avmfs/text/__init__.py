"""Pure functions on text: sniffing, words, passages, tokens. The leftmost layer: knows no store and no search."""
