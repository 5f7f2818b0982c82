//! What clients connect to: Streamable HTTP with sessions and without, batches, and stdio.

pub(crate) mod all_servers;
pub(crate) mod answer;
pub(crate) mod batch;
pub(crate) mod detached;
pub(crate) mod one_server;
pub(crate) mod peers;
pub(crate) mod session_http;
pub(crate) mod stateless;
pub(crate) mod stateless_http;
pub mod stdio;
pub mod streamable_http;

use std::sync::Arc;

use crate::call::conversation::Conversation;
use crate::hub::Hub;
use crate::message::RpcRequest;
use crate::relay::ClientContext;
use crate::session::Route;

/// Begins whatever the request asks for.
fn begin(hub: &Arc<Hub>, client: ClientContext, request: RpcRequest) -> Conversation {
    let hub = hub.clone();
    Conversation::begin(move |sink| {
        Box::pin(async move {
            match client.route.clone() {
                Route::One(name) => one_server::answer(&hub, &client, &name, &request, &sink).await,
                Route::All => all_servers::answer(&hub, &client, &request, &sink).await,
            }
        })
    })
}
