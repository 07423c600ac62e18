"""The MCP server ``avm-mcp``: one agent's memory as tools, resources and prompts, a client of the door."""
