//! Streams between nodes: something is asked once and answered in as many parts as it takes, until either side leaves.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use async_trait::async_trait;
use bowline_env::clock;
use bowline_hub::peers::{self, PeerNodes, PeerStreamItem};
use bowline_protocol::LogId;
use bowline_store::{Holder, Leased, StoreError};
use serde_json::value::RawValue;
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

use super::Cluster;
use super::wire::{NodeMessage, NodeStreamMessage};
use crate::logs::Location;

/// Parts that may be under way; the next one waits until the first was taken.
const WINDOW: usize = 16;

/// All streams of a node.
#[derive(Default)]
pub struct NodeStreams {
    /// Those that we began.
    ours: HashMap<u64, Ours>,
    /// Those that others began, by who and under which number.
    theirs: HashMap<(Holder, u64), Theirs>,
}

struct Ours {
    node: Holder,
    parts: mpsc::UnboundedSender<PeerStreamItem>,
}

#[derive(Clone)]
struct Theirs {
    window: Arc<Semaphore>,
    over: CancellationToken,
}

impl NodeStreams {
    /// A node is lost, and all streams with it.
    pub fn lose(&mut self, node: &Holder) {
        for (_, ours) in self.ours.extract_if(|_, ours| ours.node == *node) {
            let _ = ours.parts.send(PeerStreamItem::Lost);
        }
        self.theirs.extract_if(|(other, _), _| other == node).for_each(|(_, theirs)| theirs.over.cancel());
    }
}

impl Cluster {
    /// Asks another node something.
    fn begin(self: &Arc<Self>, to: &Holder, ask: Box<RawValue>) -> NodeStream {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let (parts, heard) = mpsc::unbounded_channel();
        {
            let mut state = self.state();
            state.streams.ours.insert(number, Ours { node: to.clone(), parts });
            state.silent.entry(to.clone()).or_insert_with(clock::now);
        }
        self.post(to, &NodeMessage::Talk { number, turn: NodeStreamMessage::Ask(ask) });
        NodeStream { cluster: self.clone(), node: to.clone(), number, heard, over: false }
    }

    /// The other side said something. Gives what it asks, and the way back to it.
    pub(super) fn hear(
        self: &Arc<Self>,
        from: &Holder,
        number: u64,
        turn: NodeStreamMessage,
    ) -> Option<(Box<RawValue>, NodeResponder)> {
        let mut state = self.state();
        let their_key = (from.clone(), number);
        match turn {
            NodeStreamMessage::Ask(ask) => {
                let theirs = Theirs { window: Arc::new(Semaphore::new(WINDOW)), over: CancellationToken::new() };
                state.streams.theirs.insert(their_key, theirs.clone());
                return Some((ask, NodeResponder { cluster: self.clone(), node: from.clone(), number, theirs }));
            }
            NodeStreamMessage::Part(part) => {
                if let Some(ours) = state.streams.ours.get(&number) {
                    let _ = ours.parts.send(PeerStreamItem::Part(part));
                }
            }
            NodeStreamMessage::End => {
                if let Some(ours) = state.streams.ours.remove(&number) {
                    let _ = ours.parts.send(PeerStreamItem::Ended);
                }
            }
            NodeStreamMessage::Taken => {
                if let Some(theirs) = state.streams.theirs.get(&their_key) {
                    theirs.window.add_permits(1);
                }
            }
            NodeStreamMessage::Left => {
                if let Some(theirs) = state.streams.theirs.remove(&their_key) {
                    theirs.over.cancel();
                }
            }
        }
        None
    }
}

/// Our side of a stream that we began.
pub struct NodeStream {
    cluster: Arc<Cluster>,
    node: Holder,
    number: u64,
    heard: mpsc::UnboundedReceiver<PeerStreamItem>,
    over: bool,
}

#[async_trait]
impl peers::PeerStream for NodeStream {
    async fn next(&mut self) -> PeerStreamItem {
        let heard = self.heard.recv().await.unwrap_or(PeerStreamItem::Lost);
        match heard {
            PeerStreamItem::Part(_) => {
                self.cluster
                    .post(&self.node, &NodeMessage::Talk { number: self.number, turn: NodeStreamMessage::Taken });
            }
            PeerStreamItem::Ended | PeerStreamItem::Lost => self.over = true,
        }
        heard
    }
}

impl Drop for NodeStream {
    fn drop(&mut self) {
        self.cluster.state().streams.ours.remove(&self.number);
        if !self.over {
            self.cluster.post(&self.node, &NodeMessage::Talk { number: self.number, turn: NodeStreamMessage::Left });
        }
    }
}

/// Who asked us, on another node. Dropping it says that this was all.
pub struct NodeResponder {
    cluster: Arc<Cluster>,
    node: Holder,
    number: u64,
    theirs: Theirs,
}

#[async_trait]
impl peers::PeerResponder for NodeResponder {
    async fn say(&self, part: String) -> bool {
        let Some(Ok(room)) = self.theirs.over.run_until_cancelled(self.theirs.window.acquire()).await else {
            return false;
        };
        room.forget();
        self.cluster.post(&self.node, &NodeMessage::Talk { number: self.number, turn: NodeStreamMessage::Part(part) });
        true
    }

    fn left(&self) -> &CancellationToken {
        &self.theirs.over
    }
}

impl Drop for NodeResponder {
    fn drop(&mut self) {
        let known = self.cluster.state().streams.theirs.remove(&(self.node.clone(), self.number));
        if known.is_some() {
            self.cluster.post(&self.node, &NodeMessage::Talk { number: self.number, turn: NodeStreamMessage::End });
        }
    }
}

impl fmt::Debug for NodeResponder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Asker({} of {})", self.number, self.node)
    }
}

/// The hub's way to the other nodes.
#[derive(Debug)]
pub struct HubPeers(pub Arc<Cluster>);

#[async_trait]
impl PeerNodes for HubPeers {
    fn name(&self) -> &Holder {
        &self.0.name
    }

    async fn take_up(&self, log: &LogId) -> Result<Leased, StoreError> {
        self.0.lease(log).await
    }

    async fn elsewhere(&self, log: &LogId) -> Result<Option<Holder>, StoreError> {
        Ok(match self.0.place(log).await? {
            Location::There(node) => Some(node),
            Location::Here => None,
        })
    }

    fn is_dead(&self, node: &Holder) -> bool {
        self.0.is_dead(node)
    }

    fn open_stream(&self, to: &Holder, ask: Box<RawValue>) -> Box<dyn peers::PeerStream> {
        Box::new(self.0.begin(to, ask))
    }
}
