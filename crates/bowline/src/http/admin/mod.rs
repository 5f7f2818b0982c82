//! `/api/admin/*`: what operators see. Needs an admin; without auth that is every client on loopback, else one with `auth.admin_token`.

pub(crate) mod node;
pub(crate) mod sessions;
pub(crate) mod tasks;

use std::fmt;
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{FromRef, FromRequestParts, Query, State};
use axum::http::request::Parts;
use axum::routing::get;
use bowline_protocol::{ErrorCode, LogId, Refusal};
use bowline_store::{LogKind, Record};
use serde::Deserialize;

use super::admission::AdmissionRules;
use super::endpoints;
use super::problem::Problem;
use super::sorted::Sorted;
use crate::config::{Config, EffectiveSettings};
use crate::logs::Logs;
use crate::metrics::Metrics;
use crate::readiness::Readiness;
use crate::refusals;
use crate::session::Sessions;
use crate::stream::reader::ReaderContext;

/// With what this node was started.
pub struct Settings {
    pub config: Arc<Config>,
    /// The effective settings with secrets hidden.
    pub effective: EffectiveSettings,
    /// Where it listens; the port that was asked for may have been 0.
    pub address: SocketAddr,
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Settings({})", self.address)
    }
}

/// What these endpoints are made of; each names what it needs of it.
#[derive(Clone, Debug, FromRef)]
pub struct AdminState {
    pub admission: Arc<AdmissionRules>,
    pub settings: Arc<Settings>,
    pub logs: Arc<Logs>,
    pub metrics: Arc<Metrics>,
    pub readers: Arc<ReaderContext>,
    pub readiness: Arc<Readiness>,
    pub sessions: Arc<Sessions>,
}

endpoints! {
    AdminState;
    "/api/admin/node" => get(node::node),
    "/api/admin/config" => get(config),
    "/api/admin/sessions" => get(sessions::list),
    "/api/admin/sessions/{id}" => get(sessions::show),
    "/api/admin/sessions/{id}/events" => get(sessions::events),
    "/api/admin/tasks" => get(tasks::list),
    "/api/admin/tasks/{id}/events" => get(tasks::events),
}

/// An operator.
#[derive(Debug)]
pub struct Admin;

impl<S: Send + Sync> FromRequestParts<S> for Admin
where
    Arc<AdmissionRules>: FromRef<S>,
{
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Admin, Problem> {
        Arc::<AdmissionRules>::from_ref(state).admin(parts).await.map(|_| Admin)
    }
}

async fn config(_: Admin, State(settings): State<Arc<Settings>>) -> Sorted<EffectiveSettings> {
    Sorted(settings.effective.clone())
}

pub type QueryResult<T> = Result<Query<T>, QueryRejection>;

pub fn bad_query(rejection: &QueryRejection) -> Refusal {
    Refusal::new(ErrorCode::InvalidPayload, format!("{}.", rejection.body_text()))
}

#[derive(Debug, Deserialize)]
pub struct Page {
    limit: Option<usize>,
    offset: Option<usize>,
}

impl Page {
    /// The records of this page, the most recently touched first, and how many there are on all pages.
    async fn read(&self, logs: &Logs, kind: LogKind) -> Result<(Vec<(LogId, Record)>, usize), Refusal> {
        let (mut to_skip, limit) = (self.offset.unwrap_or(0), self.limit.unwrap_or(100).min(1000));
        let mut records = Vec::new();
        let mut visit = |log: &LogId, record: &Record| {
            if records.len() == limit {
                return ControlFlow::Break(());
            }
            match to_skip.checked_sub(1) {
                Some(left) => to_skip = left,
                None => records.push((log.clone(), record.clone())),
            }
            ControlFlow::Continue(())
        };
        logs.store.newest(kind, None, &mut visit).await.map_err(|error| refusals::of_store(&error))?;
        let total = logs.store.count(kind, None).await.map_err(|error| refusals::of_store(&error))?;
        Ok((records, total))
    }
}

/// From where on a log is read.
#[derive(Debug, Deserialize)]
pub struct Beginning {
    from: Option<String>,
}
