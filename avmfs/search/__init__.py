"""From a question to a ranked, packed answer. Owns scoring and format; knows no SQL, no FUSE and no model."""
