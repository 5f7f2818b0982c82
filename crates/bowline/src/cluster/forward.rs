//! What is asked here of sessions and tasks that live elsewhere.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bowline_env::clock;
use bowline_protocol::{Principal, Refusal, SessionId, TaskId};
use bowline_store::Holder;

use super::wire::{NodeAnswer, NodeMessage, RemoteSender, SessionAsk, TaskAsk};
use super::{AwaitedAnswer, Cluster, ROUTES_MAX, RemoteConnection, RemoteSession, unreachable};
use crate::session::RequestCaller;
use crate::session::{CommandSender, Mailbox, SessionCommand, SessionRequest};
use crate::task::command::Append;
use crate::task::{TaskCommand, TaskRequest};

/// Nodes that a command may come through before it is refused: the session moves faster than it can be followed.
const HOPS_MAX: u8 = 4;
/// Requests that may wait for other nodes.
const WAITING_MAX: usize = 65_536;

impl Cluster {
    /// Sends what is asked of a session to the node that holds it.
    pub fn forward(
        self: &Arc<Self>,
        to: &Holder,
        session: &SessionId,
        asker: &Principal,
        command: SessionCommand,
    ) -> Result<(), (Box<SessionCommand>, Refusal)> {
        if let Err(refusal) = self.may_forward(command.hops) {
            return Err((Box::new(command), refusal));
        }
        let SessionCommand { from, ask, hops } = command;
        // Not every command that is awaited is answered by a message. Checking a node without need costs little.
        let awaited = ask.is_awaited() || matches!(from, CommandSender::Request(_));
        let from = match from {
            CommandSender::Connection(mailbox) => self.remember(to, session, mailbox, &ask),
            CommandSender::Request(RequestCaller { proof, reply }) => {
                let reply = move |answer| match answer {
                    Ok(NodeAnswer::Session(answered)) => reply.send(answered.map(Into::into)),
                    Ok(_) => reply.send(Err(unreachable())),
                    Err(refusal) => reply.send(Err(refusal)),
                };
                RemoteSender::Request { number: self.await_answer(to, Box::new(reply)), proof }
            }
            CommandSender::Internal => RemoteSender::Nobody,
        };
        {
            let mut state = self.state();
            if state.routes.len() >= ROUTES_MAX {
                state.routes.clear();
            }
            state.routes.insert(session.clone(), (to.clone(), asker.clone()));
            if awaited {
                state.silent.entry(to.clone()).or_insert_with(clock::now);
            }
        }
        let ask = SessionAsk::from(&ask);
        self.post(to, &NodeMessage::Session { session: session.clone(), asker: asker.clone(), from, ask, hops });
        Ok(())
    }

    /// Lets another node take up a session that is free and has messages in its queue.
    pub fn pass_on_work(self: &Arc<Self>, session: &SessionId, owner: &Principal) {
        let Some(to) = self.state().peers.living().next().cloned() else { return };
        // The node that activates a session handles its queue; what the last node believed does not count.
        let (session, asker) = (session.clone(), owner.clone());
        self.post(
            &to,
            &NodeMessage::Session { session, asker, from: RemoteSender::Nobody, ask: SessionAsk::Verify, hops: 1 },
        );
    }

    /// Sends what is asked of a task to the node that holds it.
    pub fn forward_task(
        self: &Arc<Self>,
        to: &Holder,
        task: &TaskId,
        asker: &Principal,
        command: Box<TaskCommand>,
    ) -> Result<(), (Box<TaskCommand>, Refusal)> {
        let hops = command.hops;
        if let Err(refusal) = self.may_forward(hops) {
            return Err((command, refusal));
        }
        let (ask, number) = match command.ask {
            // The node that has it verifies it by itself.
            TaskRequest::Look | TaskRequest::Verify => (TaskAsk::Look, 0),
            TaskRequest::Append(Append { place, chunks, reply }) => {
                let reply = move |answer| match answer {
                    Ok(NodeAnswer::Appended(appended)) => reply.send(appended.map(Into::into)),
                    Ok(_) => reply.send(Err(unreachable())),
                    Err(refusal) => reply.send(Err(refusal)),
                };
                (TaskAsk::Append { place, chunks }, self.await_answer(to, Box::new(reply)))
            }
            TaskRequest::End { ending, reply } => {
                let reply = move |answer| match answer {
                    Ok(NodeAnswer::Ended(ended)) => reply.send(ended.map(Into::into)),
                    Ok(_) => reply.send(Err(unreachable())),
                    Err(refusal) => reply.send(Err(refusal)),
                };
                (TaskAsk::End(ending.into()), self.await_answer(to, Box::new(reply)))
            }
        };
        if number > 0 {
            self.state().silent.entry(to.clone()).or_insert_with(clock::now);
        }
        self.post(to, &NodeMessage::Task { task: task.clone(), asker: asker.clone(), number, ask, hops });
        Ok(())
    }

    fn may_forward(&self, hops: u8) -> Result<(), Refusal> {
        if hops >= HOPS_MAX || self.state().waiting.len() >= WAITING_MAX || !self.store.health().writable {
            return Err(unreachable());
        }
        Ok(())
    }

    /// Keeps a connection's mailbox for the mail that will come back.
    fn remember(&self, to: &Holder, session: &SessionId, mailbox: Mailbox, ask: &SessionRequest) -> RemoteSender {
        let (connection, admitted) = (mailbox.connection, mailbox.admitted);
        let mut state = self.state();
        let known = state
            .connections
            .entry(connection)
            .or_insert_with(|| RemoteConnection { mailbox, sessions: HashMap::new() });
        match ask {
            SessionRequest::Detach => drop(known.sessions.remove(session)),
            SessionRequest::Attach(request) => {
                let repeatable = |remote: &&mut RemoteSession| remote.node == *to && remote.repeatable.is_some();
                match known.sessions.get_mut(session).filter(repeatable) {
                    // It asks twice, and what it asked in between is not forgotten.
                    Some(remote) => remote.keep(ask),
                    None => {
                        let mut remote = RemoteSession::attaching(to, request.origin);
                        remote.keep(ask);
                        known.sessions.insert(session.clone(), remote);
                    }
                }
            }
            _ => {
                let remote = known.sessions.entry(session.clone()).or_insert_with(|| RemoteSession::at(to));
                remote.node = to.clone();
                remote.keep(ask);
            }
        }
        if known.sessions.is_empty() {
            state.connections.remove(&connection);
        }
        RemoteSender::Connection { connection, admitted }
    }

    fn await_answer(&self, node: &Holder, reply: Box<dyn FnOnce(Result<NodeAnswer, Refusal>) + Send + Sync>) -> u64 {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let until = clock::now() + self.answer_timeout;
        self.state().waiting.insert(number, AwaitedAnswer { node: node.clone(), until, reply });
        number
    }
}
