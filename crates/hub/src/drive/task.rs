//! Drives a task to its end: waits for its call, keeps what is learnt on the way, and tells its session.

use std::fmt;
use std::sync::Arc;

use bowline_protocol::{LogId, Principal};
use bowline_store::StoreError;
use serde_json::json;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use super::conversation::Reply;
use super::upstream;
use crate::front::carried::{self, Told};
use crate::front::pass;
use crate::hub::Hub;
use crate::link::{Inbound, Sink};
use crate::outcome;
use crate::session::{OWN_STREAM, Session};
use crate::tasks::{Mine, TaskEnd, TaskRecord, Upstream};

const SAID_MAX: usize = 64;

/// The call behind a task.
pub struct Work {
    /// `None` if it was cancelled.
    pub call: JoinHandle<Option<Reply>>,
    /// The task that the backend made of it, once that is known.
    pub upstream: watch::Receiver<Option<Upstream>>,
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Work")
    }
}

pub async fn drive(hub: Arc<Hub>, mut task: Mine, mut work: Work) {
    let closing = hub.tasks.closing.clone();
    let end = loop {
        tokio::select! {
            () = closing.cancelled() => return,
            ended = &mut work.call => break match ended {
                Ok(Some(reply)) => TaskEnd::Answered(reply.answer),
                Ok(None) | Err(_) => TaskEnd::Cancelled,
            },
            Ok(()) = work.upstream.changed() => {
                let known = work.upstream.borrow_and_update().clone();
                if let Some(known) = known {
                    hub.tasks.note_upstream(&mut task, known).await;
                }
            }
        }
    };
    end_and_tell(&hub, task, end).await;
}

async fn end_and_tell(hub: &Hub, task: Mine, end: TaskEnd) {
    let (id, owner) = (task.id.clone(), task.owner.clone());
    let record = hub.tasks.end(task, end).await;
    tell(hub, record.status.event(), &id, &owner, &record).await;
}

/// Tells the session that asked for the task, if it is still there.
pub async fn tell(hub: &Hub, event: &str, id: &LogId, owner: &Principal, record: &TaskRecord) {
    let Some(session) = &record.session else { return };
    let data = json!({ "taskId": id, "tool": record.tool });
    let told = match hub.sessions.find(&hub.store, owner, session.as_str()).await {
        Ok(Some(session)) => session.tell(event, &record.server, &data).await.map(drop),
        Ok(None) => Ok(()),
        Err(StoreError::Held(node)) => {
            carried::tell(hub, &node, Told::new(owner, session, event, &record.server, &data)).await;
            Ok(())
        }
        Err(error) => Err(error),
    };
    if let Err(error) = told {
        tracing::warn!(%session, %error, "a session could not be told of its task");
    }
}

/// Takes up what the last hub left: tasks that go on at their backends are polled again, of the others nobody knows
/// whether they ran.
pub async fn take_up(hub: &Arc<Hub>) -> Result<(), StoreError> {
    for task in hub.tasks.orphans().await? {
        let Some(known) = task.record.upstream.clone() else {
            end_and_tell(hub, task, TaskEnd::Answered(outcome::cut_by_restart("tools/call"))).await;
            continue;
        };
        let session = match &task.record.session {
            // One that is on another node is told how it ends, but not of the way there.
            Some(session) => match hub.sessions.find(&hub.store, &task.owner, session.as_str()).await {
                Err(StoreError::Held(_)) => None,
                found => found?,
            },
            None => None,
        };
        let client = pass::of_owner(&task.owner, session.as_ref());
        let (sink, said) = mpsc::channel(SAID_MAX);
        let (nobody, _) = mpsc::channel(1);
        tokio::spawn(forward(said, nobody, session, task.record.server.clone()));
        let (hub, server, cancel) = (hub.clone(), task.record.server.clone(), task.cancel.clone());
        let (following, (_, upstream)) = (hub.clone(), watch::channel(None));
        let call = tokio::spawn(async move {
            let followed = upstream::follow(&following, &client, &server, &known, &sink);
            cancel.run_until_cancelled(followed).await.map(Reply::new)
        });
        tokio::spawn(drive(hub, task, Work { call, upstream }));
    }
    Ok(())
}

/// Passes on what a call says: to the caller as long as that one listens, and to its session afterwards.
pub async fn forward(
    mut said: mpsc::Receiver<Inbound>,
    listening: Sink,
    session: Option<Arc<Session>>,
    server: String,
) {
    while let Some(inbound) = said.recv().await {
        let Err(mpsc::error::SendError(inbound)) = listening.send(inbound).await else { continue };
        let Some(session) = &session else { continue };
        match inbound {
            Inbound::Notification { method, params } => {
                let data = json!({ "name": server, "method": method, "params": params });
                let _ = session.tell("notification", &server, &data).await;
            }
            Inbound::Request { server, method, params, reply } => {
                let native = session.can(&method).then_some(OWN_STREAM);
                let _ = session.ask(crate::pending::Pending::new(&server, method, params, reply), native).await;
            }
        }
    }
}
