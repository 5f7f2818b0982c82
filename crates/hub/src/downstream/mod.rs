//! What clients connect to: Streamable HTTP with sessions and without, batches, and stdio. Most requests are answered while their
//! client waits; what outlives that goes on detached.

pub(crate) mod all_servers;
pub(crate) mod carried_requests;
pub(crate) mod one_server;
pub(crate) mod session_http;
pub(crate) mod stateless;
pub mod stdio;
pub mod streamable_http;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::backend::Backend;
use crate::call::{Conversation, Exchange};
use crate::fields::{Fields, Raw};
use crate::hub::Hub;
use crate::message::RpcRequest;
use crate::relay::ClientContext;
use crate::revision::{self, Revision};
use crate::session::{HubSession, Route};

/// The revision that a session's client and the hub agreed on.
fn revision_of(session: &HubSession) -> &'static dyn Revision {
    revision::of(&session.record.version, Exchange::Session)
}

/// Whether a backend speaks the client's own revision, without a session.
fn speaks(backend: &Backend, revision: &dyn Revision) -> bool {
    let exchange = revision.exchange();
    exchange == Exchange::Stateless
        && backend.said(|facts| {
            facts.offers(exchange) && revision::of(&facts.version, exchange).versions() == revision.versions()
        })
}

/// Begins whatever the request asks for, of a client that speaks this revision.
fn begin(
    hub: &Arc<Hub>,
    revision: &'static dyn Revision,
    client: ClientContext,
    request: Arc<RpcRequest>,
) -> Conversation {
    let hub = hub.clone();
    // Each apart, because a box is as large as the largest of what it may hold, and is filled by a copy.
    Conversation::begin(move |sink| match client.route.clone() {
        Route::One(name) => {
            Box::pin(async move { one_server::answer(&hub, revision, &client, &name, &request, &sink).await })
        }
        Route::All => Box::pin(async move { all_servers::answer(&hub, revision, &client, &request, &sink).await }),
    })
}

/// A list with its entries, marked as stale when its origin is away.
pub fn list(member: &str, entries: &[Raw], stale: bool, meta: Option<Raw>) -> Raw {
    let mut result = Fields::default();
    result.put(member, entries);
    if stale {
        result.put("ttlMs", &0);
        result.put("cacheScope", "private");
    }
    if let Some(meta) = meta {
        result.set("_meta", meta);
    }
    result.to_raw()
}

/// Work that runs in its caller's task, and goes on in a task of its own once the caller stops waiting. Most calls are
/// answered while their client waits, and those need no task.
pub struct Detached(Option<Pin<Box<dyn Future<Output = ()> + Send>>>);

impl Detached {
    pub fn new(work: impl Future<Output = ()> + Send + 'static) -> Detached {
        Detached(Some(Box::pin(work)))
    }

    /// Waits for what the work has to say first. What is left of it then goes on by itself.
    pub async fn until<T>(mut self, mut said: oneshot::Receiver<T>) -> Option<T> {
        let Some(work) = &mut self.0 else { return None };
        tokio::select! {
            biased;
            () = work => {
                self.0 = None;
                said.try_recv().ok()
            }
            said = &mut said => said.ok(),
        }
    }
}

impl Drop for Detached {
    fn drop(&mut self) {
        // Without a runtime there is nothing that could go on.
        if let (Some(work), Ok(runtime)) = (self.0.take(), Handle::try_current()) {
            runtime.spawn(work);
        }
    }
}

impl fmt::Debug for Detached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Detached" } else { "Detached(done)" })
    }
}

#[cfg(test)]
mod detached_tests {
    use super::*;

    #[tokio::test]
    async fn work_goes_on_when_its_waiter_has_what_it_wants_or_walks_away() {
        for stays in [true, false] {
            let (say, said) = oneshot::channel();
            let (go, gone_on) = oneshot::channel::<()>();
            let (end, ended) = oneshot::channel();
            let work = Detached::new(async move {
                let _ = say.send(1);
                let _ = gone_on.await;
                let _ = end.send(2);
            });
            if stays {
                assert_eq!(work.until(said).await, Some(1));
            } else {
                drop(work);
            }
            go.send(()).unwrap();
            assert_eq!(ended.await, Ok(2), "stays: {stays}");
        }
    }

    #[tokio::test]
    async fn work_that_ends_at_once_is_over_when_its_word_is_heard() {
        let (say, said) = oneshot::channel();
        assert_eq!(
            Detached::new(async move {
                let _ = say.send(7);
            })
            .until(said)
            .await,
            Some(7)
        );
        let (say, said) = oneshot::channel::<u8>();
        assert_eq!(Detached::new(async move { drop(say) }).until(said).await, None);
    }
}
