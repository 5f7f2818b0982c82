//! Streamable HTTP, both eras: each call is a POST; older backends have a session for each client.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bowline_core::backend::DialError;
use reqwest::header::HeaderMap;
use reqwest::{Response, StatusCode, Url};
use tokio_util::sync::CancellationToken;

use super::http_stream::{self, Reading};
use super::http_words::{SESSION, VERSION, failed_status, mirror_headers, prepare, retry_after, said, tell};
use super::lane::{Lane, Lanes, Listed, UpSession};
use super::{
    Caller, Dial, Ending, Facts, LinkEvent, PROBE_TIMEOUT, Upcall, cancelled, initialize_params, is_modern_error,
    passing,
};
use crate::era::{self, Era};
use crate::fields::{Fields, Raw};
use crate::message::{self, Id};

/// A check of whether the backend is still there must be quick: calls wait for it.
const CONFIRM_TIMEOUT: Duration = Duration::from_secs(5);
const FAREWELL_TIMEOUT: Duration = Duration::from_secs(2);

pub struct HttpLink {
    facts: std::sync::OnceLock<Facts>,
    url: Url,
    headers: HeaderMap,
    pub(super) dial: Dial,
    lanes: Lanes,
    next_id: AtomicU64,
    suspected: AtomicBool,
    pub(super) closed: CancellationToken,
}

#[derive(Debug)]
pub enum HttpDialError {
    /// It answers as a server of the HTTP+SSE transport would.
    OlderTransport,
    /// Nobody is there, or somebody who stands before it says so.
    Unreachable {
        reason: String,
        retry_after: Option<Duration>,
    },
    Failed(DialError),
}

/// Why a POST brought no response to look at.
pub(super) enum PostError {
    /// Nothing was sent.
    Refused(String),
    Broken(String),
}

impl PostError {
    fn reason(self) -> String {
        match self {
            PostError::Refused(why) | PostError::Broken(why) => why,
        }
    }
}

pub async fn dial(url: &Url, headers: &BTreeMap<String, String>, dial: Dial) -> Result<Arc<HttpLink>, HttpDialError> {
    let headers = prepare(url, headers, &dial).map_err(HttpDialError::Failed)?;
    let remembered = dial.era;
    let link = Arc::new(HttpLink {
        facts: std::sync::OnceLock::new(),
        url: url.clone(),
        headers,
        dial,
        lanes: Lanes::default(),
        next_id: AtomicU64::new(1),
        suspected: AtomicBool::new(false),
        closed: CancellationToken::new(),
    });
    let facts = match link.discover(remembered).await? {
        Some(facts) => facts,
        None => link.initialize_shared().await?,
    };
    let era = facts.era;
    let _ = link.facts.set(facts);
    if era == Era::Modern {
        tokio::spawn(http_stream::hold_listen(link.clone()));
    }
    Ok(link)
}

impl HttpLink {
    #[allow(clippy::expect_used)]
    pub fn facts(&self) -> &Facts {
        self.facts.get().expect("a link is handed out only after the handshake")
    }

    async fn discover(self: &Arc<Self>, remembered: Option<Era>) -> Result<Option<Facts>, HttpDialError> {
        if remembered == Some(Era::Legacy) {
            return Ok(None);
        }
        let call = Upcall::of_hub("server/discover", None);
        let id = self.own_id();
        let (body, headers) = self.modern_request(&id, &call);
        let probe = async {
            match self.post(&body, &headers, None).await {
                Err(error) => Err(HttpDialError::Failed(passing(error.reason()))),
                Ok(response) => self.judge_probe(response, &id).await,
            }
        };
        match tokio::time::timeout(PROBE_TIMEOUT, probe).await {
            Ok(found) => found,
            Err(_) => Ok(None),
        }
    }

    async fn judge_probe(self: &Arc<Self>, response: Response, id: &Id) -> Result<Option<Facts>, HttpDialError> {
        let status = response.status();
        let busy = matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
        let retry_after = retry_after(&response);
        let reading = http_stream::read_response(response, id, None, self, None).await;
        match reading {
            Reading::Answer(Ok(result)) if Fields::of(Some(&result)).has("supportedVersions") => {
                let facts = Facts::of_discover(&result);
                Ok(Some(Facts { speaks_legacy: facts.speaks_legacy && !self.dial.only_era, ..facts }))
            }
            Reading::Answer(Err(error)) if is_modern_error(&error) => {
                let why = format!("it speaks no version that is known here: {}", message::message_of(&error));
                Err(HttpDialError::Failed(passing(why)))
            }
            _ if busy => Err(HttpDialError::Failed(DialError::Passing { reason: said(status), retry_after })),
            _ => Ok(None),
        }
    }

    async fn initialize_shared(self: &Arc<Self>) -> Result<Facts, HttpDialError> {
        let lane = self.lane(&Caller { era: Era::Legacy, ..Caller::hub() });
        let opened = self.open(&lane).await?;
        *lane.session.lock().await = Some(opened.0);
        Ok(opened.1)
    }

    /// `initialize` and all that belongs to it.
    async fn open(self: &Arc<Self>, lane: &Arc<Lane>) -> Result<(Arc<UpSession>, Facts), HttpDialError> {
        let id = self.own_id();
        let body = message::request(&id, "initialize", Some(&initialize_params(&lane.caller)));
        let failed = |reason: String| HttpDialError::Failed(passing(reason));
        let response = self.post(&body, &[], None).await.map_err(|error| match error {
            PostError::Refused(reason) => HttpDialError::Unreachable { reason, retry_after: None },
            PostError::Broken(why) => failed(why),
        })?;
        let status = response.status();
        if matches!(status, StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED) {
            return Err(HttpDialError::OlderTransport);
        }
        let retry_after = retry_after(&response);
        let session = response.headers().get(SESSION).and_then(|value| value.to_str().ok()).map(ToOwned::to_owned);
        let result = match http_stream::read_response(response, &id, None, self, None).await {
            Reading::Answer(Ok(result)) => result,
            Reading::Answer(Err(error)) => return Err(failed(message::message_of(&error))),
            Reading::Other(why) | Reading::Ended { why, .. } => {
                let reason = if status.is_success() { why } else { said(status) };
                return Err(match status {
                    StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT => {
                        HttpDialError::Unreachable { reason, retry_after }
                    }
                    _ => HttpDialError::Failed(DialError::Passing { reason, retry_after }),
                });
            }
        };
        let facts = Facts::of_initialize(&result);
        let over = CancellationToken::new();
        let session = Arc::new(UpSession { id: session, version: facts.version.clone(), initialized: result, over });
        let initialized = message::notification("notifications/initialized", None);
        let _ = self.post(&initialized, &[], Some(&session)).await;
        for (method, params) in self.dial.renewals.of(&lane.caller.lane) {
            let id = self.own_id();
            let body = message::request(&id, &method, params.as_ref());
            if let Ok(response) = self.post(&body, &[], Some(&session)).await {
                http_stream::read_response(response, &id, None, self, Some(&session)).await;
            }
        }
        tokio::spawn(http_stream::hold_get(self.clone(), lane.clone(), session.clone()));
        Ok((session, facts))
    }

    /// Opens the sessions of clients that wait for something, without waiting for their next call.
    pub async fn warm(self: &Arc<Self>) {
        for caller in self.dial.renewals.callers() {
            if self.facts().legacy_for(caller.era) {
                let lane = self.lane(&Caller { era: Era::Legacy, ..caller });
                let _ = self.session(&lane).await;
            }
        }
    }

    fn lane(self: &Arc<Self>, caller: &Caller) -> Arc<Lane> {
        let (lane, gone) = self.lanes.of(caller);
        if let Some(gone) = gone {
            let link = self.clone();
            tokio::spawn(async move { link.leave(&gone).await });
        }
        lane
    }

    /// The lane's session, made once however many calls want it.
    async fn session(self: &Arc<Self>, lane: &Arc<Lane>) -> Result<Arc<UpSession>, HttpDialError> {
        let mut current = lane.session.lock().await;
        if let Some(session) = &*current {
            return Ok(session.clone());
        }
        let (session, _) = self.open(lane).await?;
        *current = Some(session.clone());
        Ok(session)
    }

    /// Makes sure that the next call gets another session than `old`.
    pub(super) async fn discard(&self, lane: &Lane, old: &Arc<UpSession>) {
        old.over.cancel();
        let mut current = lane.session.lock().await;
        if current.as_ref().is_some_and(|session| Arc::ptr_eq(session, old)) {
            *current = None;
        }
    }

    pub async fn call(self: &Arc<Self>, call: &Upcall) -> Ending {
        if self.facts().legacy_for(call.caller.era) {
            self.call_legacy(call).await
        } else {
            self.call_modern(call).await
        }
    }

    async fn call_modern(self: &Arc<Self>, call: &Upcall) -> Ending {
        if call.method == "initialize" && call.caller.era == Era::Legacy {
            return Ending::answered(Ok(super::synthesised_initialize(self.facts())));
        }
        let id = self.own_id();
        let (body, headers) = self.modern_request(&id, call);
        let response = match self.post(&body, &headers, None).await {
            Ok(response) => response,
            Err(PostError::Refused(why)) => return Ending::NotExecuted(why),
            Err(PostError::Broken(why)) => return self.broken(why),
        };
        let status = response.status();
        match http_stream::read_response(response, &id, call.sink.as_ref(), self, None).await {
            Reading::Answer(answer) => Ending::Answered { answer, status: status.as_u16() },
            Reading::Other(_) if !status.is_success() => failed_status(status),
            Reading::Other(why) => Ending::failed(&why),
            Reading::Ended { why, .. } => self.broken(why),
        }
    }

    async fn call_legacy(self: &Arc<Self>, call: &Upcall) -> Ending {
        // A backend without sessions does not know its clients apart, so they share ours.
        let caller = Caller { era: Era::Legacy, ..call.caller.clone() };
        let mut lane = self.lane(&caller);
        let shared = self.lane(&Caller { era: Era::Legacy, ..Caller::hub() });
        let sessionless = shared.session.lock().await.as_ref().is_some_and(|session| session.id.is_none());
        if sessionless {
            lane = shared;
        }
        let params =
            if call.caller.era == Era::Modern { era::without_meta(call.params.as_ref()) } else { call.params.clone() };
        let id = self.own_id();
        let body = message::request(&id, &call.method, params.as_ref());
        let number = id.as_number().unwrap_or_default();
        let _listed = call.sink.clone().map(|sink| Listed::new(&lane, number, sink));
        let mut suspected = false;
        loop {
            let session = match self.session(&lane).await {
                Ok(session) => session,
                Err(HttpDialError::Unreachable { reason, .. }) => return Ending::NotExecuted(reason),
                Err(HttpDialError::OlderTransport) => return Ending::failed("the server refused a new session"),
                Err(HttpDialError::Failed(DialError::Passing { reason, .. } | DialError::Fatal { reason })) => {
                    return Ending::failed(&format!("the server refused a new session: {reason}"));
                }
            };
            if call.method == "initialize" {
                // The session is the answer: it was made for this client, with what this client can do.
                return Ending::answered(Ok(session.initialized.clone()));
            }
            let response = match self.post(&body, &[], Some(&session)).await {
                Ok(response) => response,
                Err(PostError::Refused(why)) => return Ending::NotExecuted(why),
                Err(PostError::Broken(why)) => return self.broken(why),
            };
            let status = response.status();
            let mut open = Open { link: self, session: &session, id: &id, over: !status.is_success() };
            let sink = call.sink.as_ref();
            let mut reading = http_stream::read_response(response, &id, sink, self, Some(&session)).await;
            while let Reading::Ended { last_id: Some(last_id), retry, why } = reading {
                reading = http_stream::resume(self, &session, &id, &last_id, retry, call.sink.as_ref(), why).await;
            }
            open.over = true;
            match reading {
                Reading::Answer(answer) => return Ending::Answered { answer, status: status.as_u16() },
                // Any refusal that is not an answer makes the session suspect. A new one shows whether that was it.
                Reading::Other(_) if !status.is_success() && session.id.is_some() && !suspected => {
                    suspected = true;
                    self.discard(&lane, &session).await;
                    if status.is_server_error() && status != StatusCode::SERVICE_UNAVAILABLE {
                        return self.broken(said(status));
                    }
                }
                Reading::Other(_) if !status.is_success() => return failed_status(status),
                Reading::Other(why) => return Ending::failed(&why),
                Reading::Ended { why, .. } => return self.broken(why),
            }
        }
    }

    pub async fn notify(self: &Arc<Self>, caller: &Caller, method: &str, params: Option<Raw>) {
        let body = message::notification(method, params.as_ref());
        if self.facts().legacy_for(caller.era) {
            let lane = self.lanes.find(&caller.lane);
            let Some(lane) = lane else { return };
            let session = lane.session.lock().await.clone();
            if let Some(session) = session {
                let _ = self.post(&body, &[], Some(&session)).await;
            }
        }
    }

    pub async fn end_lane(&self, lane: &str) {
        if let Some(lane) = self.lanes.remove(lane) {
            self.leave(&lane).await;
        }
    }

    async fn leave(&self, lane: &Lane) {
        let session = lane.session.lock().await.take();
        if let Some(session) = session {
            self.farewell(&session).await;
        }
    }

    /// The backend does not know the session any more. For our own that means that it was restarted.
    pub(super) async fn session_gone(&self, lane: &Lane, session: &Arc<UpSession>, why: &str) {
        if lane.is_shared() {
            self.lost(why).await;
        }
        self.discard(lane, session).await;
    }

    async fn farewell(&self, session: &UpSession) {
        session.over.cancel();
        let Some(id) = &session.id else { return };
        let request = self.dial.http.delete(self.url.clone()).headers(self.headers.clone());
        let request = request.header(SESSION, id).header(VERSION, &session.version).timeout(FAREWELL_TIMEOUT);
        let _ = request.send().await;
    }

    pub fn close(self: &Arc<Self>) {
        self.closed.cancel();
        let lanes = self.lanes.drain();
        let link = self.clone();
        tokio::spawn(async move {
            for lane in lanes {
                link.leave(&lane).await;
            }
        });
    }

    /// The wire broke under a call. Whether the backend is gone is found out by asking it.
    fn broken(self: &Arc<Self>, why: String) -> Ending {
        self.suspect(&why);
        Ending::Broken(why)
    }

    pub(super) fn suspect(self: &Arc<Self>, why: &str) {
        if self.closed.is_cancelled() || self.suspected.swap(true, Ordering::AcqRel) {
            return;
        }
        let (link, why) = (self.clone(), why.to_owned());
        tokio::spawn(async move {
            let answers = tokio::time::timeout(CONFIRM_TIMEOUT, link.confirm()).await.unwrap_or(false);
            link.suspected.store(false, Ordering::Release);
            if !answers {
                link.lost(&why).await;
            }
        });
    }

    /// Whether the backend answers on what we have: the session, or the stateless probe.
    async fn confirm(self: &Arc<Self>) -> bool {
        let id = self.own_id();
        let (body, headers, session) = if self.facts().era == Era::Modern {
            let (body, headers) = self.modern_request(&id, &Upcall::of_hub("server/discover", None));
            (body, headers, None)
        } else {
            let lane = self.lane(&Caller { era: Era::Legacy, ..Caller::hub() });
            let session = lane.session.lock().await.clone();
            (message::request(&id, "ping", None), Vec::new(), session)
        };
        match self.post(&body, &headers, session.as_deref()).await {
            Ok(response) => {
                matches!(http_stream::read_response(response, &id, None, self, None).await, Reading::Answer(_))
            }
            Err(_) => false,
        }
    }

    pub(super) async fn lost(&self, why: &str) {
        if !self.closed.is_cancelled() {
            self.closed.cancel();
            let lost = LinkEvent::Lost { reason: why.to_owned(), exit: None };
            let _ = self.dial.events.send((self.dial.generation, lost)).await;
        }
    }

    pub(super) async fn post(
        &self,
        body: &Raw,
        headers: &[(String, String)],
        session: Option<&UpSession>,
    ) -> Result<Response, PostError> {
        let mut request = self.dial.http.post(self.url.clone()).headers(self.headers.clone());
        request = request.header("content-type", "application/json");
        request = request.header("accept", "application/json, text/event-stream");
        for (name, value) in headers {
            request = request.header(name, value);
        }
        if let Some(session) = session {
            request = request.header(VERSION, &session.version);
            if let Some(id) = &session.id {
                request = request.header(SESSION, id);
            }
        }
        let sent = request.body(body.get().to_owned()).send().await;
        sent.map_err(|error| {
            let refused = error.is_connect() || error.is_builder();
            let why = tell(error);
            if refused { PostError::Refused(why) } else { PostError::Broken(why) }
        })
    }

    pub(super) async fn get(&self, session: &UpSession, last_id: Option<&str>) -> Result<Response, PostError> {
        let mut request = self.dial.http.get(self.url.clone()).headers(self.headers.clone());
        request = request.header("accept", "text/event-stream").header(VERSION, &session.version);
        if let Some(id) = &session.id {
            request = request.header(SESSION, id);
        }
        if let Some(last) = last_id {
            request = request.header("last-event-id", last);
        }
        request.send().await.map_err(|error| PostError::Refused(tell(error)))
    }

    pub(super) fn modern_request(&self, id: &Id, call: &Upcall) -> (Raw, Vec<(String, String)>) {
        let client = &call.caller.client;
        let verbatim = call.headers.is_some();
        let params = if verbatim {
            call.params.clone()
        } else {
            let level = call.log_level.as_deref();
            Some(era::with_meta(call.params.as_ref(), &client.capabilities, &client.info, level))
        };
        let made = || [mirror_headers(&call.method, params.as_ref()), call.param_headers.clone()].concat();
        let headers = call.headers.clone().unwrap_or_else(made);
        (message::request(id, &call.method, params.as_ref()), headers)
    }

    pub(super) fn own_id(&self) -> Id {
        Id::number(self.next_id.fetch_add(1, Ordering::Relaxed))
    }
}

/// A call of the older era whose caller may walk away: the backend is told.
struct Open<'a> {
    link: &'a Arc<HttpLink>,
    session: &'a Arc<UpSession>,
    id: &'a Id,
    over: bool,
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        if !self.over {
            let body = message::notification("notifications/cancelled", Some(&cancelled(self.id)));
            let (link, session) = (self.link.clone(), self.session.clone());
            tokio::spawn(async move { link.post(&body, &[], Some(&session)).await.map(drop) });
        }
    }
}

impl fmt::Debug for HttpLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HttpLink({} lanes)", self.lanes.len())
    }
}
