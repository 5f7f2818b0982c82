//! The MCP hub.
