//! Drives a task to its end: waits for its call, keeps what is learnt on the way, and tells its session.

use std::fmt;
use std::sync::{Arc, OnceLock};

use bowline_protocol::{LogId, Principal};
use bowline_store::StoreError;
use serde_json::json;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use super::peers::{self, SessionNotice};
use super::{on_behalf, task_polling};
use crate::backend::notification_data;
use crate::call::reply::CallReply;
use crate::call::{Inbound, InboundSink, outcome};
use crate::hub::Hub;
use crate::session::{HubSession, OWN_STREAM, server_request};
use crate::tasks::{HubTaskRecord, Orphans, OwnedTask, TaskOutcome, UpstreamTask};

const SAID_MAX: usize = 64;

/// The call behind a task.
pub struct TaskCall {
    /// `None` if it was cancelled.
    pub call: JoinHandle<Option<CallReply>>,
    /// The task that the backend made of it, once that is known.
    pub upstream: watch::Receiver<Option<UpstreamTask>>,
}

impl fmt::Debug for TaskCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TaskCall")
    }
}

pub async fn drive(hub: Arc<Hub>, mut task: OwnedTask, mut work: TaskCall) {
    let closing = hub.tasks.closing.clone();
    let end = loop {
        tokio::select! {
            () = closing.cancelled() => return,
            ended = &mut work.call => break match ended {
                Ok(Some(reply)) => TaskOutcome::Answered(reply),
                Ok(None) | Err(_) => TaskOutcome::Cancelled,
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

async fn end_and_tell(hub: &Hub, task: OwnedTask, end: TaskOutcome) {
    let (id, owner) = (task.id.clone(), task.owner.clone());
    if let Some(record) = hub.tasks.end(task, end).await {
        tell(hub, record.status.event(), &id, &owner, &record).await;
    }
}

/// Tells the session that asked for the task, if it is still there.
pub async fn tell(hub: &Hub, event: &str, id: &LogId, owner: &Principal, record: &HubTaskRecord) {
    let Some(session) = &record.session else { return };
    let data = json!({ "taskId": id, "tool": record.tool });
    let told = match hub.sessions.find(owner, session.as_str()).await {
        Ok(Some(session)) => session.tell(event, &record.server, &data).await.map(drop),
        Ok(None) => Ok(()),
        Err(StoreError::Held(node)) => {
            peers::tell(hub, &node, SessionNotice::new(owner, session, event, &record.server, &data)).await;
            Ok(())
        }
        Err(error) => Err(error),
    };
    if let Err(error) = told {
        tracing::warn!(%session, %error, "cannot notify a session of its task");
    }
}

/// Takes up orphaned tasks: those that go on at their backends are polled again, of the others it is not known whether
/// they ran.
pub async fn take_up(hub: &Arc<Hub>, which: Orphans) -> Result<(), StoreError> {
    for task in hub.tasks.orphans(which).await? {
        let id = task.id.clone();
        if let Err(error) = go_on(hub, task).await {
            tracing::warn!(task = %id, %error, "a task could not be taken up; it will be tried again");
        }
    }
    Ok(())
}

async fn go_on(hub: &Arc<Hub>, task: OwnedTask) -> Result<(), StoreError> {
    let Some(known) = task.record.upstream.clone() else {
        end_and_tell(hub, task, TaskOutcome::Answered(outcome::cut_by_restart("tools/call"))).await;
        return Ok(());
    };
    let session = match &task.record.session {
        // A session on another node is notified of the end, but not of the progress.
        Some(session) => match hub.sessions.find(&task.owner, session.as_str()).await {
            Err(StoreError::Held(_)) => None,
            found => found?,
        },
        None => None,
    };
    let client = on_behalf::of_owner(&task.owner, session.as_ref());
    let (sink, said) = mpsc::channel(SAID_MAX);
    let (unread, _) = mpsc::channel(1);
    let heard = session.map(OnceLock::from).unwrap_or_default();
    tokio::spawn(forward(said, unread, Arc::new(heard), task.record.server.clone()));
    let (hub, server, cancel) = (hub.clone(), task.record.server.clone(), task.cancel.clone());
    let (following, (_, upstream)) = (hub.clone(), watch::channel(None));
    let call = tokio::spawn(async move {
        let followed = task_polling::follow(&following, &client, &server, &known, &sink);
        cancel.run_until_cancelled(followed).await
    });
    tokio::spawn(drive(hub, task, TaskCall { call, upstream }));
    Ok(())
}

/// Passes on what a call says: to the caller as long as that one listens, and to its session afterwards, which a call that
/// becomes a task may get only then.
pub async fn forward(
    mut said: mpsc::Receiver<Inbound>,
    listening: InboundSink,
    session: Arc<OnceLock<Arc<HubSession>>>,
    server: String,
) {
    while let Some(inbound) = said.recv().await {
        let log = match &inbound {
            Inbound::Notification { method, params, .. } if method == "notifications/message" => {
                Some(notification_data(&server, method, params.as_ref()))
            }
            _ => None,
        };
        let sent = listening.send(inbound).await;
        let Some(session) = session.get() else { continue };
        // A client that knows only tools reads the logs by one, so they are kept also while a client listens.
        if let (Ok(()), Some(data)) = (&sent, &log) {
            let _ = session.tell_too(&server, data).await;
        }
        let Err(mpsc::error::SendError(inbound)) = sent else { continue };
        match inbound {
            Inbound::Notification { method, params, .. } => {
                let data = notification_data(&server, &method, params.as_ref());
                let _ = session.tell("notification", &server, &data).await;
            }
            Inbound::Request { server, method, params, reply } => {
                let native = session.can(&method, params.as_ref()).then_some(OWN_STREAM);
                let _ = session
                    .ask(server_request::PendingServerRequest::new(&server, method, params, reply), native)
                    .await;
            }
        }
    }
}
