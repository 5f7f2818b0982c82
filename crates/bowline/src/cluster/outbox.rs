//! Messages to other nodes: one queue for each, in order, batched, and sent again until the store has them or the node is dead.

use std::sync::Arc;
use std::time::Duration;

use bowline_env::clock;
use bowline_protocol::{Draft, LogId, SessionId};
use bowline_store::{Commit, Fence, Holder};
use tokio::sync::mpsc;

use super::Cluster;
use super::wire;
use super::wire::{NodeAnswer, NodeMessage, SessionMail};
use crate::session::{Mail, Mailbox};

/// Messages that are put into one commit.
const MESSAGES_AT_ONCE: usize = 256;
const RETRY_EVERY: Duration = Duration::from_millis(100);

/// The way to one node.
pub struct SendQueue(mpsc::UnboundedSender<Draft>);

impl Cluster {
    /// Sends a message to a node. Whether it arrives is seen by its answer, or by that node's death.
    pub(super) fn post(self: &Arc<Self>, to: &Holder, message: &NodeMessage) {
        let mut state = self.state();
        if state.peers.is_dead(to) {
            drop(state);
            // Those who wait for it were answered when it died, or are answered now.
            return self.lose(to);
        }
        let stamp = state.exchange.stamp(to);
        if message.is_awaited() {
            state.exchange.note_awaited(clock::now(), to, self.answer_timeout);
        }
        let draft = wire::write(&self.name, &stamp, message);
        // A queue that has given up on a node that was dead for a while takes nothing any more.
        if state.queues.get(to).is_none_or(|queue| queue.0.is_closed()) {
            let (sender, receiver) = mpsc::unbounded_channel();
            tokio::spawn(send_all(self.clone(), to.clone(), receiver));
            state.queues.insert(to.clone(), SendQueue(sender));
        }
        if let Some(queue) = state.queues.get(to) {
            // If it has been closed since, its node is dead, and those who wait were answered.
            let _ = queue.0.send(draft);
        }
    }

    /// Tells a node something about its messages, if it understands that.
    pub(super) fn notify(self: &Arc<Self>, to: &Holder, message: &NodeMessage) {
        if self.state().exchange.incarnation_of(to) > 0 {
            self.post(to, message);
        }
    }

    /// Tells a node that this incarnation of it is dead to this one. It may be, and then the message goes with its inbox.
    pub(super) fn notify_dead(self: &Arc<Self>, to: &Holder, incarnation: u64) {
        let Some(log) = LogId::parse(to.as_str()).filter(|_| incarnation > 0) else { return };
        // Beside the queue, so it has no number there: it may overtake what is queued, or be lost.
        let stamp = self.state().exchange.uncounted_stamp(to);
        let draft = wire::write(&self.name, &stamp, &NodeMessage::Dead { incarnation });
        let (store, now_ms) = (self.store.clone(), self.clock.now_ms());
        tokio::spawn(async move {
            let mut commit = Commit::to(log.clone(), Fence::OPEN, now_ms);
            commit.events = vec![draft.seal(&SessionId::from(&log), &clock::timestamp())];
            if let Err(error) = store.commit(commit).await {
                // It is notified again when it answers again.
                tracing::debug!(%log, %error, "cannot notify a node that was declared dead");
            }
        });
    }

    /// An answer to a request of another node, which is sent also if it is dropped.
    pub(super) fn answer_to(self: &Arc<Self>, node: &Holder, number: u64) -> OwedAnswer {
        OwedAnswer { cluster: self.clone(), node: node.clone(), number, answer: Some(NodeAnswer::Gone) }
    }

    /// Stands for a connection of another node's, as long as both nodes are the incarnations that they are now. When one of
    /// them has become another, the connection was cut, or has asked again what it asked: an answer to what it asked the
    /// first time would be a second one.
    pub(super) fn peer_mailbox(self: &Arc<Self>, node: &Holder, connection: u64, between: (u64, u64)) -> Mailbox {
        let (cluster, node) = (self.clone(), node.clone());
        Mailbox::remote(move |mail| {
            {
                let mut state = cluster.state();
                if state.exchange.incarnations_with(&node) != between {
                    return;
                }
                if let Mail::Granted(grant) = &mail {
                    state.peer_connections.rename(&node, connection, &grant.claimed, &grant.session);
                }
            }
            cluster.post(&node, &NodeMessage::Mail { connection, mail: Box::new(SessionMail::from(&mail)) });
        })
    }
}

/// An answer that is sent when this is dropped.
pub struct OwedAnswer {
    cluster: Arc<Cluster>,
    node: Holder,
    number: u64,
    answer: Option<NodeAnswer>,
}

impl OwedAnswer {
    pub fn send(mut self, answer: NodeAnswer) {
        self.answer = Some(answer);
    }
}

impl Drop for OwedAnswer {
    fn drop(&mut self) {
        if let Some(answer) = self.answer.take() {
            self.cluster.post(&self.node, &NodeMessage::Answer { number: self.number, answer });
        }
    }
}

async fn send_all(cluster: Arc<Cluster>, to: Holder, mut queue: mpsc::UnboundedReceiver<Draft>) {
    let Some(log) = LogId::parse(to.as_str()) else { return };
    let session = SessionId::from(&log);
    let mut drafts = Vec::new();
    while queue.recv_many(&mut drafts, MESSAGES_AT_ONCE).await > 0 {
        let time = clock::timestamp();
        loop {
            let mut commit = Commit::to(log.clone(), Fence::OPEN, cluster.clock.now_ms());
            commit.events = drafts.iter().map(|draft| draft.seal(&session, &time)).collect();
            match cluster.store.commit(commit).await {
                Ok(_) => break,
                // A message that was kept after all, and is sent again, has the same number: it is read once.
                Err(error) => tracing::debug!(node = %to, %error, "messages to a node cannot be sent yet"),
            }
            if cluster.is_dead(&to) {
                cluster.lose(&to);
                return;
            }
            tokio::time::sleep(RETRY_EVERY).await;
        }
        drafts.clear();
    }
}
