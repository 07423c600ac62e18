"""An index of code: what a project's files define, and where, as notes below /index."""
