//! A real MCP server that does nothing but echo: `rmcp` on axum, Streamable HTTP of both eras. `backend PORT`.

use std::sync::Arc;
use std::time::Duration;

use axum::serve::ListenerExt;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ListToolsResult, PaginatedRequestParams,
    ServerCapabilities, ServerConfig, Tool,
};
use rmcp::service::RequestContext;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use rmcp::{ErrorData, RoleServer, ServerHandler};

#[derive(Clone)]
struct Echo;

impl ServerHandler for Echo {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
    }

    async fn list_tools(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let schema = Arc::new(serde_json::json!({ "type": "object" }).as_object().cloned().unwrap_or_default());
        let tools = ["echo", "sleep"].map(|name| Tool::new(name, "for measuring", schema.clone()));
        Ok(ListToolsResult::with_all_items(tools.to_vec()))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        if request.name == "sleep" {
            tokio::time::sleep(Duration::from_secs(600)).await;
        }
        Ok(CallToolResult::success(vec![ContentBlock::text("hello")]).into())
    }
}

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let port = std::env::args().nth(1).and_then(|port| port.parse().ok()).unwrap_or(0);
    let service = StreamableHttpService::new(
        || Ok(Echo),
        Arc::new(LocalSessionManager::default()),
        StreamableHttpServerConfig::default(),
    );
    // Without this, each answer on a stream waits 40 ms for an acknowledgement.
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await?;
    println!("listening at {}", listener.local_addr()?);
    let listener = listener.tap_io(|stream| drop(stream.set_nodelay(true)));
    axum::serve(listener, axum::Router::new().nest_service("/mcp", service)).await
}
