//! What other nodes send: mail and answers for those who wait here, and what is to be done here.

use std::cmp::Ordering;
use std::sync::Arc;
use std::time::Instant;

use bowline_core::hold::Party;
use bowline_protocol::{Principal, SessionId, TaskId};
use bowline_store::Holder;
use serde_json::value::RawValue;

use super::letter::{Answer, Letter, Parcel, Sender, TaskAsk};
use super::talk::Asker;
use super::{Abroad, Cluster};
use crate::reply::Reply;
use crate::session::caller::Request;
use crate::session::{Ask, Caller, Command, Mail};
use crate::task::Command as TaskCommand;
use crate::task::command::Append;

/// What another node asks to be done here.
#[derive(Debug)]
pub enum Errand {
    Session {
        session: SessionId,
        asker: Principal,
        command: Box<Command>,
    },
    Task {
        task: TaskId,
        asker: Principal,
        command: TaskCommand,
        hops: u8,
    },
    /// Something for the hub, and who wants to know.
    Hub {
        ask: Box<RawValue>,
        asker: Asker,
    },
}

impl Cluster {
    /// Takes a letter in. Mail and answers are delivered at once; what is asked is given back, to be done.
    pub(crate) fn handle(self: &Arc<Self>, letter: Letter) -> Option<Errand> {
        let from = Holder::parse(&letter.from)?;
        let fresh = {
            let mut state = self.state();
            state.silent.remove(&from);
            state.peers.handle_heard(Instant::now(), &from);
            let last = state.read.entry(from.clone()).or_default();
            let expected = *last + 1;
            *last = letter.number.max(*last);
            letter.number.cmp(&expected)
        };
        match fresh {
            Ordering::Less => return None,
            Ordering::Equal => {}
            Ordering::Greater => {
                tracing::warn!(node = %from, "letters from another node were lost");
                self.lose(&from);
            }
        }
        match letter.parcel {
            Parcel::Mail { party, mail } => self.deliver(&from, party, *mail),
            Parcel::Answer { number, answer } => self.answered(number, answer),
            Parcel::Talk { number, turn } => {
                return self.hear(&from, number, turn).map(|(ask, asker)| Errand::Hub { ask, asker });
            }
            Parcel::Session { session, asker, from: sender, ask, hops } => {
                let from = self.caller(&from, sender, (&session, &asker, &ask));
                let command = Command { from, ask, hops: hops + 1 };
                return Some(Errand::Session { session, asker, command: Box::new(command) });
            }
            Parcel::Task { task, asker, number, ask, hops } => {
                let command = self.task_command(&from, number, ask);
                return Some(Errand::Task { task, asker, command, hops: hops + 1 });
            }
        }
        None
    }

    /// Whoever asks from another node, as somebody who can be answered here.
    fn caller(self: &Arc<Self>, node: &Holder, sender: Sender, about: (&SessionId, &Principal, &Ask)) -> Caller {
        match sender {
            Sender::Nobody => Caller::Nobody,
            Sender::Connection(party) => {
                let mut state = self.state();
                Caller::Connection(state.visitors.mailbox((node, party), about, || self.visitor(node, party)))
            }
            Sender::Request { number, proof } => {
                let owed = self.answer_to(node, number);
                Caller::Request(Request { proof, reply: Reply::new(|answered| owed.send(Answer::Session(answered))) })
            }
        }
    }

    fn task_command(self: &Arc<Self>, node: &Holder, number: u64, ask: TaskAsk) -> TaskCommand {
        let owed = || self.answer_to(node, number);
        match ask {
            TaskAsk::Look => TaskCommand::Look,
            TaskAsk::Append { place, chunks } => {
                let owed = owed();
                let reply = Reply::new(|appended| owed.send(Answer::Appended(appended)));
                TaskCommand::Append(Append { place, chunks, reply })
            }
            TaskAsk::End(ending) => {
                let owed = owed();
                TaskCommand::End { ending, reply: Reply::new(|ended| owed.send(Answer::Ended(ended))) }
            }
        }
    }

    fn answered(&self, number: u64, answer: Answer) {
        let waiting = self.state().waiting.remove(&number);
        if let Some(waiting) = waiting {
            (waiting.reply)(Ok(answer));
        }
    }

    /// Mail for a connection of ours from a session elsewhere.
    fn deliver(&self, from: &Holder, party: Party, mail: Mail) {
        let mailbox = {
            let mut state = self.state();
            let Some(away) = state.away.get_mut(&party) else { return };
            if let Some(session) = mail.about() {
                // A node that lost the session without knowing it yet has no say in it any more.
                let Some(abroad) = away.sessions.get_mut(session).filter(|abroad| abroad.node == *from) else { return };
                abroad.coming = None;
            }
            if let Mail::Granted(grant) = &mail {
                // A restored session goes on under another name.
                away.sessions.insert(grant.session.clone(), Abroad::at(from));
            }
            away.mailbox.clone()
        };
        mailbox.send(mail);
    }
}
