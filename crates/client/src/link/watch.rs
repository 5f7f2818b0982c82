//! Tasks that a client watches over its connection: asked for again on each new one, from the last chunk that came.

use std::time::Duration;

use bowline_protocol::{RecoveryAction, Refusal};

use super::{ClientLink, ConnectionPhase, LinkEvent, Moment};
use crate::frame;

/// A task that cannot be watched for the moment is asked for again after this time, unless the server names another.
const RETRY_AFTER: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct TaskWatch {
    task_id: String,
    resume_token: Option<String>,
    /// The last chunk that came.
    last_id: Option<String>,
    /// It was asked for on this connection: asking twice would bring twice what is on its way.
    requested: bool,
}

impl ClientLink {
    /// Watches a turn or a task: its chunks come as [`LinkEvent::TaskChunk`], after the chunk `last_id` if one is named.
    pub fn watch(&mut self, task_id: &str, last_id: Option<String>, resume_token: Option<String>) {
        self.unwatch(task_id);
        self.watches.push(TaskWatch { task_id: task_id.to_owned(), resume_token, last_id, requested: false });
        self.send_watches();
    }

    /// Stops watching a task.
    pub fn unwatch(&mut self, task_id: &str) {
        if self.watches.iter().any(|watch| watch.task_id == task_id && watch.requested) {
            self.send(frame::unwatch(task_id));
        }
        self.forget_watch(task_id);
    }

    pub(super) fn watches(&self, task_id: &str) -> bool {
        self.watches.iter().any(|watch| watch.task_id == task_id)
    }

    pub(super) fn forget_watch(&mut self, task_id: &str) {
        self.watches.retain(|watch| watch.task_id != task_id);
    }

    /// Asks for those that this connection does not bring yet.
    pub(super) fn send_watches(&mut self) {
        self.watch_again_at = None;
        if !matches!(self.phase, ConnectionPhase::Live) {
            return;
        }
        let due = self.watches.iter_mut().filter(|watch| !watch.requested);
        let frames: Vec<String> = due
            .map(|watch| {
                watch.requested = true;
                frame::watch(&watch.task_id, watch.last_id.as_deref(), watch.resume_token.as_deref())
            })
            .collect();
        frames.into_iter().for_each(|frame| self.send(frame));
    }

    pub(super) fn advance_watch(&mut self, task_id: &str, id: Option<String>) {
        if let (Some(watch), Some(id)) = (self.watches.iter_mut().find(|watch| watch.task_id == task_id), id) {
            watch.last_id = Some(id);
        }
    }

    pub(super) fn refuse_watch(&mut self, at: Moment, task_id: &str, refusal: Refusal) {
        if refusal.code.action() != RecoveryAction::RetryLater {
            self.forget_watch(task_id);
            return self.tell(LinkEvent::TaskFailed { task_id: task_id.to_owned(), refusal });
        }
        if let Some(watch) = self.watches.iter_mut().find(|watch| watch.task_id == task_id) {
            watch.requested = false;
        }
        let wait = refusal.retry_after_ms.map_or(RETRY_AFTER, Duration::from_millis);
        self.watch_again_at = Some(at.now + wait);
    }

    pub(super) fn lose_watches(&mut self) {
        self.watch_again_at = None;
        self.watches.iter_mut().for_each(|watch| watch.requested = false);
    }

    pub(super) fn fail_watches(&mut self, refusal: &Refusal) {
        for TaskWatch { task_id, .. } in std::mem::take(&mut self.watches) {
            self.tell(LinkEvent::TaskFailed { task_id, refusal: refusal.clone() });
        }
    }
}
