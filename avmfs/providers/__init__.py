"""Live content: what is true now, at paths of its own beside /memory.

A provider of config.yaml says which paths (a pattern), by which handler, and how long an answer holds. What was fetched
last is a file of the store, so that listings, rules, views, versions and searches are those of any file.
"""

from __future__ import annotations

from avmfs.providers.handler import BaseHandler, Context, register_handler

__all__ = ["BaseHandler", "Context", "register_handler"]
