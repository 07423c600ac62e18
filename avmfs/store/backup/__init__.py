"""Backups: images of a store, and the folder that keeps them page by page, each page once."""
