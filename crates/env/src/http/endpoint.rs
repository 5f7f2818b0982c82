//! Where requests go: a URL, read once.

use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderValue, Uri};
use percent_encoding::percent_decode_str;
use url::Url;

use super::SendError;

/// A server as connections to it are kept: two requests with the same may share one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct HttpOrigin {
    pub is_secure: bool,
    /// An IPv6 address without brackets.
    pub host: Arc<str>,
    pub port: u16,
}

/// What a URL says to a client. It is not shown, as it may hold a secret.
#[derive(Clone)]
pub struct Endpoint {
    pub(super) origin: HttpOrigin,
    /// The host as the header says it: without the port that its scheme has anyway.
    pub(super) authority: HeaderValue,
    /// Path and query, as a server is asked.
    pub(super) path: Uri,
    /// Everything, as a proxy is asked.
    pub(super) whole: Uri,
    /// The name and password of the URL.
    pub(super) basic: Option<HeaderValue>,
}

impl Endpoint {
    pub fn new(url: &Url) -> Result<Endpoint, SendError> {
        let is_secure = match url.scheme() {
            "http" => false,
            "https" => true,
            _ => return Err(SendError::unsent("only http and https can be spoken")),
        };
        let (Some(host), Some(port)) = (url.host_str(), url.port_or_known_default()) else {
            return Err(SendError::unsent("the address names no host"));
        };
        let authority = url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"));
        let query = url.query().map(|query| format!("?{query}")).unwrap_or_default();
        let path = format!("{}{query}", url.path());
        let whole = format!("{}://{authority}{path}", url.scheme());
        let unreadable = |_| SendError::unsent("the address cannot be sent");
        Ok(Endpoint {
            origin: HttpOrigin { is_secure, host: host.trim_matches(['[', ']']).into(), port },
            path: path.parse().map_err(unreadable)?,
            whole: whole.parse().map_err(unreadable)?,
            authority: HeaderValue::try_from(authority).map_err(|_| SendError::unsent("the host cannot be sent"))?,
            basic: basic(url),
        })
    }

    /// Host and port, as a proxy is asked for a tunnel.
    pub(super) fn tunnel(&self) -> String {
        format!("{}:{}", self.whole.host().unwrap_or_default(), self.origin.port)
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Endpoint({}:{})", self.origin.host, self.origin.port)
    }
}

fn basic(url: &Url) -> Option<HeaderValue> {
    let decoded = |text: &str| percent_decode_str(text).decode_utf8().ok().map(|text| text.into_owned());
    let (name, password) = (decoded(url.username())?, url.password().and_then(decoded));
    if name.is_empty() && password.is_none() {
        return None;
    }
    let both = STANDARD.encode(format!("{name}:{}", password.unwrap_or_default()));
    let mut value = HeaderValue::try_from(format!("Basic {both}")).ok()?;
    value.set_sensitive(true);
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn to(url: &str) -> Result<Endpoint, SendError> {
        Endpoint::new(&url.parse().unwrap())
    }

    #[test]
    fn a_url_says_whom_to_dial_and_what_to_ask() {
        for (url, host, port, authority, path, tunnel) in [
            ("http://localhost/x?y=1#z", "localhost", 80, "localhost", "/x?y=1", "localhost:80"),
            ("https://a.example", "a.example", 443, "a.example", "/", "a.example:443"),
            ("http://[::1]:8080/", "::1", 8080, "[::1]:8080", "/", "[::1]:8080"),
            ("https://name:word@a.example:444/x", "a.example", 444, "a.example:444", "/x", "a.example:444"),
        ] {
            let read = to(url).unwrap();
            assert_eq!((&*read.origin.host, read.origin.port), (host, port));
            assert_eq!((read.authority.to_str().unwrap(), &*read.path.to_string()), (authority, path));
            assert_eq!(read.tunnel(), tunnel);
            assert!(!format!("{read:?} {}", read.whole).contains("word"), "{url}");
        }
        for url in ["ftp://a.example/", "data:text/plain,x"] {
            assert!(to(url).unwrap_err().is_unsent, "{url}");
        }
    }

    #[test]
    fn a_name_and_a_password_become_a_header() {
        let sent = |url: &str| to(url).unwrap().basic.map(|value| value.to_str().unwrap().to_owned());
        assert_eq!(sent("http://a.example/"), None);
        assert_eq!(
            sent("http://Aladdin:open%20sesame@a.example/").as_deref(),
            Some("Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==")
        );
        assert_eq!(sent("http://a@x.example/").as_deref(), Some("Basic YTo="));
        assert_eq!(sent("http://:b@x.example/").as_deref(), Some("Basic OmI="));
    }
}
