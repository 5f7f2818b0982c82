//! A reader of a task that comes back: what became of that, counted and logged in one line.

use std::time::Instant;

use bowline_core::Resume;
use bowline_env::clock;
use bowline_protocol::{Refusal, StreamCursor, TaskId};

use crate::metrics::Metrics;
use crate::stream::Watched;

/// A way back that was begun. The line is written when the reader has all that it missed.
#[derive(Debug)]
pub struct ResumeMetrics {
    task: TaskId,
    resume: Resume,
    replayed: u64,
    since: Instant,
}

impl ResumeMetrics {
    /// A reader that comes back with this cursor. Nothing for one without, or one that will be refused.
    pub fn begin(metrics: &Metrics, watched: &Watched, cursor: Option<&StreamCursor>) -> Option<ResumeMetrics> {
        let resume = Resume::within(watched.span(), &watched.extent, cursor?);
        metrics.reconnect_attempts.inc();
        if resume == Resume::AheadOfLog {
            return None;
        }
        let owed = resume.start(&watched.extent).max(watched.first);
        let replayed = owed.until(watched.span().next(&watched.extent));
        Some(ResumeMetrics { task: watched.id.clone(), resume, replayed, since: clock::now() })
    }

    /// It is let in: what its cursor means is counted.
    pub fn admitted(self, metrics: &Metrics) -> ResumeMetrics {
        metrics.reconnects.inc(self.resume.verdict());
        metrics.events_lost_per_reconnect.observe(self.resume.lost() as f64);
        self
    }

    /// It turns out to have everything already.
    pub fn lacks_nothing(self, metrics: &Metrics) {
        ResumeMetrics { resume: Resume::CaughtUp, replayed: 0, ..self }.admitted(metrics).caught_up(metrics);
    }

    /// One that was refused.
    pub fn refused(metrics: &Metrics, task: &TaskId, refusal: &Refusal) {
        metrics.reconnect_refusals.inc(refusal.code.as_str());
        tracing::info!(%task, code = %refusal.code, "reconnect refused");
    }

    /// It has all that it missed.
    pub fn caught_up(self, metrics: &Metrics) {
        let ResumeMetrics { task, resume, replayed, since } = self;
        let elapsed = clock::since(since);
        metrics.events_replayed.inc_by(replayed);
        metrics.reconnect_seconds.observe(elapsed.as_secs_f64());
        let ms = elapsed.as_secs_f64() * 1000.0;
        tracing::info!(%task, verdict = resume.verdict(), replayed, lost = resume.lost(), ms, "reconnected");
    }
}
