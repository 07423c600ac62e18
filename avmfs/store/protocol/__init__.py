"""What a store can be asked: the Protocols that every layer above is written against.

Owns `Store`, `Reader` and the values that they give. Runs everywhere, does nothing. Imports `rows` alone.
"""
