"""The daemon's HTTP service: the door's methods as REST, events, MCP, metrics, and the place of the page."""
