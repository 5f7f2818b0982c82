//! Incarnations of this node and of the others: who is dead, who came back, and what becomes of those who waited.

use std::sync::Arc;
use std::time::Instant;

use bowline_core::peers::Sign;
use bowline_env::clock;
use bowline_store::Holder;

use super::peer_connections::Gone;
use super::wire::SessionAsk;
use super::{Cluster, PeerCommand};
use crate::session::{CommandSender, SessionCommand, SessionRequest};

/// What a node's record says of its life.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    pub sign: Sign,
    pub incarnation: u64,
}

impl Cluster {
    /// Which incarnation of this node this is.
    pub(crate) fn incarnation(&self) -> u64 {
        self.state().exchange.incarnation()
    }

    /// All records were seen. Gives the nodes that are dead since, and what is to be done about those that came back.
    pub(crate) fn handle_records(
        self: &Arc<Self>,
        now: Instant,
        seen: Vec<(Holder, Seen)>,
    ) -> (Vec<Holder>, Vec<PeerCommand>) {
        let (mut renewed, mut unaware) = (Vec::new(), Vec::new());
        let dead = {
            let mut state = self.state();
            let mut signs = Vec::new();
            for (node, Seen { sign, incarnation }) in seen {
                if state.exchange.is_over(&node, incarnation) {
                    let last = state.dead_beats.insert(node.clone(), sign.beat);
                    if last.is_some_and(|last| last != sign.beat) && !sign.left {
                        unaware.push((node, incarnation));
                    }
                    continue;
                }
                if state.exchange.handle_seen(&node, incarnation) {
                    renewed.push(node.clone());
                }
                signs.push((node, sign));
            }
            state.peers.handle_look(now, signs)
        };
        // It lives, and does not know that this node took it for dead.
        unaware.iter().for_each(|(node, incarnation)| self.notify_dead(node, *incarnation));
        let commands = renewed.iter().flat_map(|node| self.disconnect_peer(node)).collect();
        (dead, commands)
    }

    /// A node is dead. If it is not, it hears of it, and comes back as another incarnation.
    pub(crate) fn declare_dead(self: &Arc<Self>, node: &Holder) -> Vec<PeerCommand> {
        let commands = self.disconnect_peer(node);
        let incarnation = {
            let mut state = self.state();
            state.queues.remove(node);
            state.exchange.handle_death(node);
            state.exchange.incarnation_of(node)
        };
        self.notify_dead(node, incarnation);
        commands
    }

    /// What this node knew of the other counts no more: what it owed is lost, and so are the connections that came from
    /// it. Those who were on their way to a session there can ask elsewhere.
    pub(super) fn disconnect_peer(self: &Arc<Self>, node: &Holder) -> Vec<PeerCommand> {
        let mut commands = self.ask_again(node);
        self.lose(node);
        let gone = self.state().peer_connections.lose(node);
        commands.extend(detach(gone));
        commands
    }

    /// This node goes on as another incarnation: to others it is dead, or its inbox was lost. What the earlier one
    /// was owed is not awaited any more.
    pub(crate) fn renew(self: &Arc<Self>, why: &str) -> Vec<PeerCommand> {
        let (incarnation, nodes) = {
            let mut state = self.state();
            state.exchange.renew();
            state.routes.clear();
            (state.exchange.incarnation(), state.exchange.peers().cloned().collect::<Vec<_>>())
        };
        tracing::warn!(incarnation, why, "this node goes on as another incarnation");
        let mut commands: Vec<PeerCommand> = nodes.iter().flat_map(|node| self.disconnect_peer(node)).collect();
        commands.push(PeerCommand::Verify);
        self.renewed.notify_one();
        commands
    }

    /// What was asked of sessions on a lost node and cannot have been answered there, to be asked elsewhere.
    fn ask_again(&self, node: &Holder) -> Vec<PeerCommand> {
        let mut state = self.state();
        let mut again = Vec::new();
        for connection in state.connections.values_mut() {
            let repeatable =
                connection.sessions.extract_if(|_, remote| remote.node == *node && remote.repeatable.is_some());
            for (session, remote) in repeatable {
                let asks = remote.repeatable.into_iter().flatten();
                let asks = asks.filter_map(|ask| serde_json::from_str::<SessionAsk>(&ask).ok());
                let asks: Vec<SessionRequest> = asks.map(|ask| ask.of(&session)).collect();
                let Some(SessionRequest::Attach(request)) = asks.first() else { continue };
                let asker = request.principal.clone();
                again.extend(asks.into_iter().map(|ask| {
                    let command = SessionCommand::new(CommandSender::Connection(connection.mailbox.clone()), ask);
                    PeerCommand::Session { session: session.clone(), asker: asker.clone(), command: Box::new(command) }
                }));
            }
        }
        again
    }

    /// A heartbeat was written, or could not be.
    pub(crate) fn note_heartbeat(&self, shown: Result<(), String>) {
        let mut state = self.state();
        match shown {
            Ok(()) => (state.last_heartbeat, state.heartbeat_error) = (clock::now(), None),
            Err(why) => state.heartbeat_error = Some(why),
        }
    }

    /// Why the other nodes may take this one for dead, if they may.
    pub fn heartbeat_failure(&self) -> Option<String> {
        let state = self.state();
        let silent = clock::since(state.last_heartbeat);
        match &state.heartbeat_error {
            Some(why) => Some(format!("no heartbeat can be written: {why}")),
            None if silent >= self.ttl * 3 / 4 => Some(format!("no heartbeat was written for {} s", silent.as_secs())),
            None => None,
        }
    }
}

/// The sessions here of connections that are gone are left.
fn detach(gone: Vec<Gone>) -> impl Iterator<Item = PeerCommand> {
    gone.into_iter().flat_map(|Gone { mailbox, sessions }| {
        sessions.into_iter().map(move |(session, asker)| {
            let command = SessionCommand::new(CommandSender::Connection(mailbox.clone()), SessionRequest::Detach);
            PeerCommand::Session { session, asker, command: Box::new(command) }
        })
    })
}
