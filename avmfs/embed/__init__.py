"""Vectors for texts. Owns the engines behind one Protocol; torch is imported only when a model is loaded."""
