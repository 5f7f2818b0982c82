//! `/api/chat/*`: sessions, turns and tasks over plain HTTP, and their streams as server-sent events.

pub mod operations;
pub mod producers;
pub mod read;
pub mod sdk;
pub mod sessions;
pub mod sse;
pub mod tasks;
pub(crate) mod view;

use std::sync::Arc;

use axum::extract::{FromRef, FromRequestParts};
use axum::http::request::Parts;
use axum::routing::{get, post};
use bowline_protocol::frame::client::Secret;
use bowline_protocol::{Principal, Refusal, SessionId, TaskId};

use super::admission::AdmissionRules;
use super::endpoints;
use super::guard::Farewell;
use super::limits::RequestLimits;
use super::problem::Problem;
use super::responses;
use crate::alias::Naming;
use crate::auth::Validity;
use crate::config::Config;
use crate::logs::Logs;
use crate::refusals;
use crate::secret::Presented;
use crate::session::CommandResult;
use crate::session::{SessionRequest, Sessions};
use crate::stream::Streams;
use crate::task::Tasks;

/// Where a resume token travels, for servers on which it proves ownership.
pub const RESUME_TOKEN: &str = "bowline-resume-token";
/// A secret of a caller's own choice proves something only if it cannot be guessed.
const OWN_SECRET_BYTES_MIN: usize = 32;

/// What these endpoints are made of; each names what it needs of it.
#[derive(Clone, Debug, FromRef)]
pub struct ChatState {
    pub admission: Arc<AdmissionRules>,
    pub limits: Arc<RequestLimits>,
    pub config: Arc<Config>,
    pub logs: Arc<Logs>,
    pub naming: Arc<Naming>,
    pub sessions: Arc<Sessions>,
    pub tasks: Arc<Tasks>,
    pub streams: Arc<Streams>,
}

endpoints! {
    ChatState;
    "/api/chat" => post(sdk::submit),
    "/api/chat/{id}/stream" => get(sdk::resume),
    "/api/chat/sessions" => post(sessions::create).get(sessions::list),
    "/api/chat/sessions/{sid}" => get(sessions::show).delete(sessions::delete),
    "/api/chat/sessions/{sid}/stream" => post(sessions::start).get(sessions::follow),
    "/api/chat/sessions/{sid}/cancel" => post(sessions::cancel),
    "/api/chat/sessions/{sid}/operations" => post(operations::start),
    "/api/chat/sessions/{sid}/respond" => post(sessions::respond),
    "/api/chat/tasks" => post(producers::create),
    "/api/chat/tasks/{tid}" => get(tasks::show),
    "/api/chat/tasks/{tid}/stream" => get(tasks::stream),
    "/api/chat/tasks/{tid}/cancel" => post(tasks::cancel),
    "/api/chat/tasks/{tid}/messages" => post(producers::append),
    "/api/chat/tasks/{tid}/complete" => post(producers::complete),
    "/api/chat/operations/{oid}/complete" => post(operations::complete),
    "/api/chat/config/ttl" => get(tasks::ttl),
}

/// Who is asking, and what proves that a session is theirs.
#[derive(Clone, Debug)]
pub struct Owner {
    pub principal: Principal,
    pub proof: Option<Presented>,
    /// The proof is long enough to become that of something new.
    may_adopt: bool,
    /// How long the credential is good that the request came with.
    pub validity: Validity,
}

impl<S: Send + Sync> FromRequestParts<S> for Owner
where
    Arc<AdmissionRules>: FromRef<S>,
{
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Owner, Problem> {
        let admission = Arc::<AdmissionRules>::from_ref(state);
        let is_response = parts.uri.path().starts_with("/v1/");
        let farewell = Farewell::InDialect(if is_response { responses::cut_off } else { sse::cut_off });
        let credential = admission.credential(&parts.headers, &parts.extensions, farewell).await?;
        let shown = parts.headers.get(RESUME_TOKEN).and_then(|value| value.to_str().ok()).map(Secret::new);
        let may_adopt = shown.as_ref().is_some_and(|shown| shown.expose().len() >= OWN_SECRET_BYTES_MIN);
        let proof = shown.as_ref().map(Presented::from);
        Ok(Owner { principal: credential.identity.principal, proof, may_adopt, validity: credential.validity })
    }
}

impl Owner {
    /// Asks something of a session of the owner's.
    pub async fn ask(&self, sessions: &Arc<Sessions>, session: &SessionId, ask: SessionRequest) -> CommandResult {
        sessions.ask(session, &self.principal, self.proof.clone(), ask).await
    }

    /// A secret of the caller's own choice, for something new that opens to nothing that was shown.
    pub fn own_secret(&self) -> Option<&Presented> {
        self.proof.as_ref().filter(|_| self.may_adopt)
    }

    /// The owner of what was just made, who can prove it. A secret that the caller brought opens it too, until the new one is
    /// used; and that is the caller's to do.
    #[must_use]
    pub fn of_made(self, token: Option<&Secret>) -> Owner {
        let brought = self.own_secret().cloned();
        Owner { proof: brought.or_else(|| token.map(Presented::from)).or(self.proof), ..self }
    }

    pub fn name(&self) -> String {
        self.principal.to_string()
    }
}

fn session_id(text: &str) -> Result<SessionId, Refusal> {
    SessionId::parse(text).ok_or_else(refusals::session_not_found)
}

fn task_id(text: &str) -> Result<TaskId, Refusal> {
    TaskId::parse(text).ok_or_else(refusals::task_not_found)
}
