//! One request over HTTP: the POST of a message, and the GET of a stream.

use reqwest::Response;
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderValue};

use super::HttpTransport;
use crate::call::BackendCall;
use crate::fields::Raw;
use crate::message::{self, RpcId};
use crate::revision::v2026;
use crate::upstream::backend_session::HttpSession;
use crate::upstream::http::tell;

/// Why a POST brought no response to look at.
pub(in crate::upstream) enum PostError {
    /// Nothing was sent.
    Refused(String),
    Broken(String),
}

impl PostError {
    pub(in crate::upstream) fn reason(self) -> String {
        match self {
            PostError::Refused(why) | PostError::Broken(why) => why,
        }
    }
}

impl HttpTransport {
    pub(in crate::upstream) async fn post(
        &self,
        body: &Raw,
        headers: &[(String, String)],
        session: Option<&HttpSession>,
    ) -> Result<Response, PostError> {
        let base = session.map_or(&self.headers, |session| &session.headers);
        let mut request = self.dial.http.post(self.url.clone()).headers(base.clone());
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let sent = request.body(body.get().to_owned()).send().await;
        sent.map_err(|error| {
            let refused = error.is_connect() || error.is_builder();
            let why = tell(error);
            if refused { PostError::Refused(why) } else { PostError::Broken(why) }
        })
    }

    pub(in crate::upstream) async fn get(
        &self,
        session: &HttpSession,
        last_id: Option<&str>,
    ) -> Result<Response, PostError> {
        let mut headers = session.headers.clone();
        headers.remove(CONTENT_TYPE);
        headers.insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
        let mut request = self.dial.http.get(self.url.clone()).headers(headers);
        if let Some(last) = last_id {
            request = request.header("last-event-id", last);
        }
        request.send().await.map_err(|error| PostError::Refused(tell(error)))
    }

    /// A request that stands alone, and its headers: the client's own, or what they should be.
    pub(in crate::upstream) fn stateless_request(
        &self,
        id: &RpcId,
        call: &BackendCall,
    ) -> (Raw, Vec<(String, String)>) {
        let sent = call.sent.as_ref().and_then(|sent| sent.headers.clone());
        let (params, headers) = match sent {
            Some(headers) => (call.params.clone(), headers),
            None => {
                let params = Some(v2026::described(call));
                let headers = [v2026::headers(&call.method, params.as_ref()), call.param_headers.clone()].concat();
                (params, headers)
            }
        };
        (message::request(id, &call.method, params.as_ref()), headers)
    }
}
