"""Views: virtual nodes named by a ``:suffix``. One function each, in one of the modules here.

``registry`` has the machinery; every other module owns a family of views and registers them on import.
Adding a view is adding a function with ``@view``: help, :info, the docs table and the tests that go
over all views derive from the registry.
"""

from __future__ import annotations

from avmfs.views.registry import AtEnd, Context, Rendered, View, all_views, ending, find, view, writes

__all__ = ["AtEnd", "Context", "Rendered", "View", "all_views", "ending", "find", "view", "writes"]
