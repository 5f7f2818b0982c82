//! Letters to other nodes: one lane for each, in order, batched, and sent again until the store has them or the node is dead.

use std::sync::Arc;
use std::time::Duration;

use bowline_protocol::{Draft, LogId, Recorded, SessionId};
use bowline_store::{Commit, Fence, Holder};
use tokio::sync::mpsc;

use super::Cluster;
use super::letter::{Answer, LETTER, Letter, Parcel};
use crate::clock;
use crate::session::{Mail, Mailbox};

/// Letters that are put into one commit.
const LETTERS_AT_ONCE: usize = 256;
const RETRY_EVERY: Duration = Duration::from_millis(100);

/// The way to one node.
pub struct Lane(mpsc::UnboundedSender<Draft>);

impl Cluster {
    /// Sends a parcel to a node. Whether it arrives is seen by its answer, or by that node's death.
    pub(super) fn post(self: &Arc<Self>, to: &Holder, parcel: Parcel) {
        let mut state = self.state();
        if state.peers.is_dead(to) {
            drop(state);
            // Whoever waits for it was told when it died, or is told now.
            return self.lose(to);
        }
        let written = state.written.entry(to.clone()).or_default();
        *written += 1;
        let letter = Letter { from: self.name.as_str().to_owned(), number: *written, parcel };
        let lane = state.lanes.entry(to.clone()).or_insert_with(|| {
            let (letters, queue) = mpsc::unbounded_channel();
            tokio::spawn(carry(self.clone(), to.clone(), queue));
            Lane(letters)
        });
        // The queue is read until this sender is dropped.
        let _ = lane.0.send(Draft::new(LETTER, &letter));
    }

    /// A way back to somebody on another node: an answer, also if nobody gives one.
    pub(super) fn answer_to(self: &Arc<Self>, node: &Holder, number: u64) -> Owed {
        Owed { cluster: self.clone(), node: node.clone(), number, answer: Some(Answer::Gone) }
    }

    /// Stands for a connection of another node's.
    pub(super) fn visitor(self: &Arc<Self>, node: &Holder, party: u64) -> Mailbox {
        let (cluster, node) = (self.clone(), node.clone());
        Mailbox::away(move |mail| {
            if let Mail::Granted(grant) = &mail {
                cluster.state().visitors.rename(&node, party, &grant.claimed, &grant.session);
            }
            cluster.post(&node, Parcel::Mail { party, mail: Box::new(mail) });
        })
    }
}

/// An answer that is sent when this is dropped.
pub struct Owed {
    cluster: Arc<Cluster>,
    node: Holder,
    number: u64,
    answer: Option<Answer>,
}

impl Owed {
    pub fn send(mut self, answer: Answer) {
        self.answer = Some(answer);
    }
}

impl Drop for Owed {
    fn drop(&mut self) {
        if let Some(answer) = self.answer.take() {
            self.cluster.post(&self.node, Parcel::Answer { number: self.number, answer });
        }
    }
}

async fn carry(cluster: Arc<Cluster>, to: Holder, mut queue: mpsc::UnboundedReceiver<Draft>) {
    let Some(log) = LogId::parse(to.as_str()) else { return };
    let session = SessionId::from(&log);
    let mut letters = Vec::new();
    while queue.recv_many(&mut letters, LETTERS_AT_ONCE).await > 0 {
        let time = clock::timestamp();
        loop {
            let mut commit = Commit::to(log.clone(), Fence::default(), cluster.clock.now_ms());
            commit.events = letters.iter().map(|letter| letter.seal(&session, &time)).collect();
            match cluster.store.commit(commit).await {
                Ok(_) => break,
                // Numbers make a letter that was kept after all, and is sent again, one letter.
                Err(error) => tracing::debug!(node = %to, %error, "letters cannot be sent yet"),
            }
            if cluster.is_dead(&to) {
                cluster.lose(&to);
                return;
            }
            tokio::time::sleep(RETRY_EVERY).await;
        }
        letters.clear();
    }
}

/// The letter in an event of an inbox.
pub fn read(event: &Recorded) -> Option<Letter> {
    let view = event.view().filter(|view| view.event == LETTER)?;
    serde_json::from_str(view.content.get()).map_err(|error| tracing::warn!(%error, "a letter cannot be read")).ok()
}
