//! Who may ask: by which name the server is asked for, from which page, and with which credential.

use std::fmt;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{Extensions, HeaderMap, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use bowline_env::clock;
use bowline_protocol::{ErrorCode, Refusal};

use super::guard::{Farewell, ValiditySlot};
use super::problem::Problem;
use crate::auth::{self, Authenticator, Credential, HostRefused, token_from_headers};
use crate::config::Config;
use crate::origin::is_loopback;

/// Says only that the process is alive, so every client may ask, under any name.
pub const ALIVE: &str = "/healthz";
/// What begins with these needs a credential where there is auth.
const NEED_CREDENTIAL: [&str; 5] = ["/api/", "/v1/", "/mcp", "/ws", "/produce"];

/// What decides who may ask.
pub struct AdmissionRules {
    pub config: Arc<Config>,
    pub auth: Arc<Authenticator>,
    /// Whether this server speaks TLS itself.
    pub is_tls: bool,
}

/// Refuses requests for a name that is not ours: a page that lends its own name to our address sends no `Origin` when it
/// reads from itself. One place for all paths, so that none is forgotten.
pub async fn host(State(admission): State<Arc<AdmissionRules>>, request: Request, next: Next) -> Response {
    match admission.check_host(&request) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    }
}

impl AdmissionRules {
    pub fn check_host(&self, request: &Request) -> Result<(), Problem> {
        let path = request.uri().path();
        if path == ALIVE {
            return Ok(());
        }
        // Old clients dial their WebSocket at `/`.
        let upgrades = path == "/" && request.headers().contains_key(header::UPGRADE);
        let needs_credential = upgrades || NEED_CREDENTIAL.iter().any(|begin| path.starts_with(begin));
        let (config, protected) = (&self.config, needs_credential || self.is_tls);
        let checked =
            auth::check_host(&config.auth, &config.listen, is_machine, protected, request.version(), request.headers());
        checked.map_err(|why| match why {
            HostRefused::NotOne => Refusal::new(ErrorCode::InvalidPayload, why.to_string()).into(),
            HostRefused::NotOurs => {
                Problem::with_status(StatusCode::FORBIDDEN, Refusal::new(ErrorCode::Unauthorized, why.to_string()))
            }
        })
    }

    /// Pages that are not ours are refused before they get anything.
    pub fn check_origin(&self, headers: &HeaderMap) -> Result<(), Problem> {
        let page = auth::check_origin(&self.config.auth, headers, is_loopback(&self.config.listen));
        page.map(drop).map_err(|why| {
            Problem::with_status(StatusCode::FORBIDDEN, Refusal::new(ErrorCode::Unauthorized, why.to_string()))
        })
    }

    /// Who asks. A stream that answers the request ends with the credential, in the words of `farewell`.
    pub async fn credential(
        &self,
        headers: &HeaderMap,
        extensions: &Extensions,
        farewell: Farewell,
    ) -> Result<Credential, Problem> {
        self.check_origin(headers)?;
        let admitted = self.auth.admit(&token_from_headers(headers), clock::unix_seconds()).await;
        let credential = admitted.map_err(Refusal::from)?;
        if let Some(slot) = extensions.get::<ValiditySlot>() {
            slot.fill(credential.validity.clone(), farewell);
        }
        Ok(credential)
    }

    /// The same, for what only an admin may ask.
    pub async fn admin(&self, parts: &Parts) -> Result<Credential, Problem> {
        let credential = self.credential(&parts.headers, &parts.extensions, Farewell::Event).await?;
        if credential.identity.admin {
            return Ok(credential);
        }
        let refused = |status, text: &str| Problem::with_status(status, Refusal::new(ErrorCode::Unauthorized, text));
        if self.auth.is_required() {
            return Err(refused(StatusCode::FORBIDDEN, "This needs the credential of an admin."));
        }
        let text = "This server needs no credential for anything else, but here the one of `auth.admin_token`: set that, \
                    and send it as `Authorization: Bearer <token>`.";
        let shown = token_from_headers(&parts.headers).token.is_some();
        Err(refused(if shown { StatusCode::FORBIDDEN } else { StatusCode::UNAUTHORIZED }, text))
    }
}

/// Whether this machine has that name now. The kernel is asked, so this is the last thing that is asked.
fn is_machine(host: &str) -> bool {
    let machine = rustix::system::uname();
    let machine = machine.nodename().to_str().unwrap_or_default();
    !machine.is_empty() && host.eq_ignore_ascii_case(machine)
}

impl fmt::Debug for AdmissionRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AdmissionRules")
    }
}
