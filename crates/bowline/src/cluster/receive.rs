//! What other nodes send: mail and answers for those who wait here, and what is to be done here.

use std::sync::Arc;

use bowline_core::hold::ConnectionKey;
use bowline_core::node_exchange::{MessageVerdict, ReceivedStamp};
use bowline_env::clock;
use bowline_protocol::{Principal, SessionId, TaskId};
use bowline_store::Holder;
use serde_json::value::RawValue;

use super::node_stream::NodeResponder;
use super::wire::{NodeAnswer, NodeMessage, RemoteSender, SessionAsk, TaskAsk};
use super::{AwaitedAnswer, Cluster, Envelope, RemoteSession};
use crate::reply::Responder;
use crate::session::RequestCaller;
use crate::session::{CommandSender, Mail, SessionCommand, SessionRequest};
use crate::task::command::Append;
use crate::task::{TaskCommand, TaskRequest};

/// What another node asks to be done here.
#[derive(Debug)]
pub enum PeerCommand {
    Session {
        session: SessionId,
        asker: Principal,
        command: Box<SessionCommand>,
    },
    /// The same, as another node wrote it.
    Remote(Box<RemoteAsk>),
    Task {
        task: TaskId,
        asker: Principal,
        command: TaskCommand,
    },
    /// Something for the hub, and who wants to know.
    Hub {
        ask: Box<RawValue>,
        asker: NodeResponder,
    },
    /// Others may have taken what was this node's; each session looks for itself.
    Verify,
}

/// Something that another node asks of a session here, and for whom.
#[derive(Debug)]
pub struct RemoteAsk {
    node: Holder,
    sender: RemoteSender,
    pub session: SessionId,
    pub asker: Principal,
    pub ask: SessionRequest,
    hops: u8,
    /// Which incarnations of the two nodes it passed between.
    between: (u64, u64),
}

impl Cluster {
    /// Takes a message in. Mail and answers are delivered at once; what is asked is given back, to be done.
    pub(crate) fn handle(self: &Arc<Self>, envelope: Envelope) -> Vec<PeerCommand> {
        let Envelope { from, stamp, message } = envelope;
        let ReceivedStamp { verdict, renewed } = {
            let mut state = self.state();
            let received = state.exchange.handle_message(&from, &stamp);
            if received.verdict != MessageVerdict::FromTheDead {
                state.silent.remove(&from);
                state.peers.handle_heard(clock::now(), &from);
            }
            received
        };
        let mut commands = if renewed { self.disconnect_peer(&from) } else { Vec::new() };
        if let Ok(NodeMessage::Dead { incarnation }) = message {
            // Also from a node that is dead to this one: two who declared each other dead would refuse each other for ever.
            if self.state().exchange.was_declared_dead(incarnation) {
                commands.extend(self.renew("another node has declared it dead"));
                return commands;
            }
        }
        match verdict {
            MessageVerdict::Fresh => {}
            MessageVerdict::Repeated => return commands,
            MessageVerdict::FromTheDead => {
                if !matches!(message, Ok(NodeMessage::Dead { .. })) {
                    self.notify_dead(&from, stamp.incarnation);
                }
                return commands;
            }
            MessageVerdict::ForAnother => {
                tracing::warn!(node = %from, "a message to an earlier incarnation of this node is refused");
                self.notify(&from, &NodeMessage::Hello);
                return commands;
            }
            MessageVerdict::AfterGap => {
                tracing::warn!(node = %from, "messages from another node were lost");
                self.lose(&from);
                self.notify(&from, &NodeMessage::Missed);
            }
        }
        match message {
            Ok(message) => commands.extend(self.open(from, message)),
            Err(why) => {
                tracing::error!(node = %from, why, "a message of another node is refused");
                self.notify(&from, &NodeMessage::Unread { why });
            }
        }
        commands
    }

    fn open(self: &Arc<Self>, from: Holder, message: NodeMessage) -> Option<PeerCommand> {
        match message {
            NodeMessage::Mail { connection, mail } => self.deliver(&from, connection, (*mail).into()),
            NodeMessage::Answer { number, answer } => self.answered(number, answer),
            NodeMessage::Talk { number, turn } => {
                return self.hear(&from, number, turn).map(|(ask, asker)| PeerCommand::Hub { ask, asker });
            }
            NodeMessage::Session { session, asker, from: sender, ask, hops } => {
                let between = self.state().exchange.incarnations_with(&from);
                let ask = ask.of(&session);
                let remote = RemoteAsk { node: from, sender, session, asker, ask, hops: hops + 1, between };
                return Some(PeerCommand::Remote(Box::new(remote)));
            }
            NodeMessage::Returned { session, asker, from: sender, ask, hops } => {
                let from = self.returned(&from, sender, &session)?;
                let command = Box::new(SessionCommand { from, ask: ask.of(&session), hops });
                return Some(PeerCommand::Session { session, asker, command });
            }
            NodeMessage::Task { task, asker, number, ask, hops } => {
                let command = TaskCommand { ask: self.task_ask(&from, number, ask), hops: hops + 1 };
                return Some(PeerCommand::Task { task, asker, command });
            }
            NodeMessage::Ping => self.notify(&from, &NodeMessage::Hello),
            NodeMessage::Missed => {
                tracing::warn!(node = %from, "messages to another node were lost");
                self.lose(&from);
            }
            NodeMessage::Unread { why } => {
                tracing::error!(node = %from, why, "another node cannot read what this one sends");
                self.lose(&from);
            }
            NodeMessage::Hello | NodeMessage::Dead { .. } => {}
        }
        None
    }

    /// What is asked from elsewhere, as something that can be done here. None if it was asked for a connection, and one of
    /// the two nodes has become another incarnation since: then the connection was cut, or has asked again.
    pub(crate) fn admit(self: &Arc<Self>, remote: RemoteAsk) -> Option<SessionCommand> {
        let RemoteAsk { node, sender, session, asker, ask, hops, between } = remote;
        let is_past = {
            let state = self.state();
            state.exchange.incarnations_with(&node) != between || state.peers.is_dead(&node)
        };
        if is_past && matches!(sender, RemoteSender::Connection { .. }) {
            tracing::debug!(%node, %session, "what a connection asked through an earlier incarnation is left undone");
            return None;
        }
        Some(SessionCommand { from: self.caller(&node, sender, between, (&session, &asker, &ask)), ask, hops })
    }

    /// Sends back what is asked from elsewhere; the session is free, and the node that asks can have it.
    pub(crate) fn send_back(self: &Arc<Self>, remote: RemoteAsk) {
        let RemoteAsk { node, sender, session, asker, ask, hops, .. } = remote;
        let ask = SessionAsk::from(&ask);
        self.post(&node, &NodeMessage::Returned { session, asker, from: sender, ask, hops });
    }

    /// The sender here of a command that a leaving node has sent back. None if it is gone.
    fn returned(&self, node: &Holder, sender: RemoteSender, session: &SessionId) -> Option<CommandSender> {
        let mut state = self.state();
        if state.routes.get(session).is_some_and(|(holder, _)| holder == node) {
            state.routes.remove(session);
        }
        match sender {
            RemoteSender::Nobody => Some(CommandSender::Internal),
            RemoteSender::Connection { connection, admitted } => {
                let known = state.connections.get_mut(&connection)?;
                if let Some(remote) = known.sessions.get_mut(session).filter(|remote| remote.node == *node) {
                    // That node has no part in it any more, and its end cuts no connection. More may be on its way back.
                    *remote = RemoteSession::at(&self.name);
                }
                Some(CommandSender::Connection(known.mailbox.clone().asking(admitted)))
            }
            RemoteSender::Request { number, proof } => {
                let AwaitedAnswer { reply, .. } = state.waiting.remove(&number)?;
                let reply = Responder::new(|answered| reply(Ok(NodeAnswer::of_session(answered))));
                Some(CommandSender::Request(RequestCaller { proof, reply }))
            }
        }
    }

    /// The sender on another node, as a sender that can be answered here.
    fn caller(
        self: &Arc<Self>,
        node: &Holder,
        sender: RemoteSender,
        between: (u64, u64),
        about: (&SessionId, &Principal, &SessionRequest),
    ) -> CommandSender {
        match sender {
            RemoteSender::Nobody => CommandSender::Internal,
            RemoteSender::Connection { connection, admitted } => {
                let mut state = self.state();
                let mailbox = state
                    .peer_connections
                    .mailbox((node, connection), about, || self.peer_mailbox(node, connection, between));
                CommandSender::Connection(mailbox.asking(admitted))
            }
            RemoteSender::Request { number, proof } => {
                let owed = self.answer_to(node, number);
                CommandSender::Request(RequestCaller {
                    proof,
                    reply: Responder::new(|answered| owed.send(NodeAnswer::of_session(answered))),
                })
            }
        }
    }

    fn task_ask(self: &Arc<Self>, node: &Holder, number: u64, ask: TaskAsk) -> TaskRequest {
        let owed = || self.answer_to(node, number);
        match ask {
            TaskAsk::Look => TaskRequest::Look,
            TaskAsk::Append { place, chunks } => {
                let owed = owed();
                let reply = Responder::new(|appended| owed.send(NodeAnswer::of_append(appended)));
                TaskRequest::Append(Append { place, chunks, reply })
            }
            TaskAsk::End(ending) => {
                let owed = owed();
                TaskRequest::End {
                    ending: ending.into(),
                    reply: Responder::new(|ended| owed.send(NodeAnswer::of_end(ended))),
                }
            }
        }
    }

    fn answered(&self, number: u64, answer: NodeAnswer) {
        let waiting = self.state().waiting.remove(&number);
        if let Some(waiting) = waiting {
            (waiting.reply)(Ok(answer));
        }
    }

    /// Mail for a connection of ours from a session elsewhere.
    fn deliver(&self, from: &Holder, connection: ConnectionKey, mail: Mail) {
        let mailbox = {
            let mut state = self.state();
            let Some(known) = state.connections.get_mut(&connection) else { return };
            if let Some(session) = mail.about() {
                // A node that lost the session without knowing it yet has no say in it any more.
                let Some(remote) = known.sessions.get_mut(session).filter(|remote| remote.node == *from) else {
                    return;
                };
                remote.repeatable = None;
                if matches!(mail, Mail::Granted(_) | Mail::Refused { origin: Some(_), .. }) {
                    remote.origin = None;
                }
            }
            if let Mail::Granted(grant) = &mail {
                // A restored session goes on under another name.
                known.sessions.insert(grant.session.clone(), RemoteSession::at(from));
            }
            known.mailbox.clone()
        };
        mailbox.send(mail);
    }
}
