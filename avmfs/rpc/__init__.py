"""The one door for processes: methods that commands, MCP and Python call, over a socket or in process."""
