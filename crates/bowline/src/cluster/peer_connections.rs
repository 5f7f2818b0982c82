//! Connections of other nodes whose session is here: each has a mailbox that carries its mail back.

use std::collections::HashMap;

use bowline_core::hold::ConnectionKey;
use bowline_protocol::{Principal, SessionId};
use bowline_store::Holder;

use crate::session::{Mailbox, SessionRequest};

#[derive(Default)]
pub struct PeerConnections(HashMap<(Holder, ConnectionKey), PeerConnection>);

struct PeerConnection {
    mailbox: Mailbox,
    /// What it is attached to, and in whose name.
    sessions: HashMap<SessionId, Principal>,
}

/// A connection that is gone, and what it was attached to.
pub struct Gone {
    pub mailbox: Mailbox,
    pub sessions: HashMap<SessionId, Principal>,
}

impl PeerConnections {
    /// The mailbox that stands for a connection elsewhere; the same one for all that it asks while it is attached.
    pub fn mailbox(
        &mut self,
        (node, connection): (&Holder, ConnectionKey),
        (session, asker, ask): (&SessionId, &Principal, &SessionRequest),
        make: impl FnOnce() -> Mailbox,
    ) -> Mailbox {
        let key = (node.clone(), connection);
        let known =
            self.0.entry(key.clone()).or_insert_with(|| PeerConnection { mailbox: make(), sessions: HashMap::new() });
        let mailbox = known.mailbox.clone();
        match ask {
            SessionRequest::Attach(_) => drop(known.sessions.insert(session.clone(), asker.clone())),
            SessionRequest::Detach => drop(known.sessions.remove(session)),
            _ => {}
        }
        if known.sessions.is_empty() {
            self.0.remove(&key);
        }
        mailbox
    }

    /// A session that a connection attached to under one name goes on under another.
    pub fn rename(&mut self, node: &Holder, connection: ConnectionKey, from: &SessionId, to: &SessionId) {
        if let Some(known) = self.0.get_mut(&(node.clone(), connection))
            && let Some(asker) = known.sessions.remove(from)
        {
            known.sessions.insert(to.clone(), asker);
        }
    }

    /// All of a node's are gone with it.
    pub fn lose(&mut self, node: &Holder) -> Vec<Gone> {
        let gone = self.0.extract_if(|(known, _), _| known == node);
        gone.map(|(_, PeerConnection { mailbox, sessions })| Gone { mailbox, sessions }).collect()
    }
}
