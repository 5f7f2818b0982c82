//! Which web pages may talk to us: a browser sends the page's origin, and pages that are not ours are refused.

use http::HeaderMap;
use http::header::{HOST, ORIGIN};

use crate::config::AuthConfig;
use crate::origin::{Origin, authority_of, default_port, is_loopback_name};

/// A page that may not connect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the origin {origin} may not connect; add it to `auth.origins` if it should")]
pub struct OriginRefused {
    pub origin: String,
}

/// Where a request that may come in comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageOrigin {
    /// No page.
    None,
    /// One of `auth.origins`.
    Listed,
    /// One of our own, as far as the `Host` can be believed.
    Own,
}

/// A request without an origin does not come from a web page, so there is nothing to check.
///
/// A page of our own is one whose origin is the `Host` it was asked for. While we listen on loopback that host must be
/// a loopback name too: otherwise any name that an attacker lets resolve to 127.0.0.1 would be "our own".
pub fn check_origin(
    auth: &AuthConfig,
    headers: &HeaderMap,
    listen_is_loopback: bool,
) -> Result<PageOrigin, OriginRefused> {
    let mut given = headers.get_all(ORIGIN).iter();
    let Some(first) = given.next() else { return Ok(PageOrigin::None) };
    let text = String::from_utf8_lossy(first.as_bytes()).into_owned();
    let refused = || OriginRefused { origin: text.chars().filter(|c| !c.is_control()).take(200).collect() };
    if given.next().is_some() {
        return Err(refused());
    }
    let origin = Origin::parse(&text).ok_or_else(refused)?;
    let listed = |allowed: &String| allowed == "*" || Origin::parse(allowed).as_ref() == Some(&origin);
    if auth.origins.iter().any(listed) {
        return Ok(PageOrigin::Listed);
    }
    if is_own_page(&origin, headers, listen_is_loopback) { Ok(PageOrigin::Own) } else { Err(refused()) }
}

fn is_own_page(origin: &Origin, headers: &HeaderMap, listen_is_loopback: bool) -> bool {
    let host = headers.get(HOST).and_then(|value| value.to_str().ok()).and_then(authority_of);
    let Some((host, port)) = host else { return false };
    // Whatever this machine is called by itself, it is the same server, as long as it listens for itself only.
    let both_loopback = listen_is_loopback && is_loopback_name(&host) && is_loopback_name(&origin.host);
    // We may stand behind a TLS proxy, so a host without a port means the origin's own default.
    let same = (host == origin.host || both_loopback) && port.or_else(|| default_port(&origin.scheme)) == origin.port;
    let web = matches!(origin.scheme.as_str(), "http" | "https");
    web && same && (!listen_is_loopback || is_loopback_name(&host))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use http::HeaderValue;

    fn check(allowed: &[&str], origin: &str, host: &str, loopback: bool) -> bool {
        let auth = AuthConfig { origins: allowed.iter().map(|o| (*o).to_owned()).collect(), ..Config::default().auth };
        let mut headers = HeaderMap::new();
        headers.insert(ORIGIN, HeaderValue::from_str(origin).unwrap());
        if !host.is_empty() {
            headers.insert(HOST, HeaderValue::from_str(host).unwrap());
        }
        check_origin(&auth, &headers, loopback).is_ok()
    }

    #[test]
    fn a_request_that_no_page_made_is_not_checked() {
        assert!(check_origin(&Config::default().auth, &HeaderMap::new(), true).is_ok());
    }

    #[test]
    fn a_listed_origin_is_compared_whole() {
        let allowed = ["https://app.example", "http://dev.example:3000", "tauri://localhost"];
        for origin in [
            "https://app.example",
            "https://app.example:443",
            "HTTPS://App.Example",
            "http://dev.example:3000",
            "tauri://localhost",
        ] {
            assert!(check(&allowed, origin, "server.example", false), "{origin}");
        }
        for origin in [
            "null",
            "http://app.example",
            "https://app.example:8443",
            "https://app.example.evil.example",
            "https://evilapp.example",
            "https://sub.app.example",
            "https://app.example@evil.example",
            "https://app.example/",
            "https://app.example.",
            "https://",
            "https://app.example:443:443",
            "https://app.example:+443",
            "https://app.example evil",
            "app.example",
            "file://",
            "",
        ] {
            assert!(!check(&allowed, origin, "server.example", false), "{origin}");
        }
    }

    #[test]
    fn a_star_allows_every_page_but_not_an_opaque_one() {
        assert!(check(&["*"], "https://anything.example", "", true));
        assert!(!check(&["*"], "null", "", true));
    }

    #[test]
    fn our_own_page_is_the_one_with_the_same_host_and_port() {
        assert!(check(&[], "https://chat.example", "chat.example", false));
        assert!(check(&[], "http://chat.example:8080", "chat.example:8080", false));
        assert!(check(&[], "http://[2001:DB8::1]:8080", "[2001:db8:0::1]:8080", false));
        assert!(!check(&[], "http://chat.example:8081", "chat.example:8080", false));
        assert!(!check(&[], "http://other.example:8080", "chat.example:8080", false));
        assert!(!check(&[], "https://chat.example", "", false));
        assert!(!check(&[], "ftp://chat.example:8080", "chat.example:8080", false));
    }

    #[test]
    fn a_name_that_merely_resolves_to_loopback_is_not_our_own_page() {
        for host in ["localhost:8080", "127.0.0.1:8080", "127.1.2.3:8080", "[::1]:8080", "LOCALHOST:8080"] {
            assert!(check(&[], &format!("http://{host}"), host, true), "{host}");
        }
        for host in [
            "evil.example:8080",
            "localhost.evil.example:8080",
            "127.0.0.1.evil.example:8080",
            "evil-localhost:8080",
            "10.0.0.1:8080",
            "localhost.:8080",
        ] {
            assert!(!check(&[], &format!("http://{host}"), host, true), "{host}");
        }
        // One machine has several names for itself.
        assert!(check(&[], "http://localhost:8080", "127.0.0.1:8080", true));
        assert!(check(&[], "http://127.0.0.1:8080", "localhost:8080", true));
        assert!(!check(&[], "http://localhost:8080", "127.0.0.1:8080", false), "others may reach it");
        assert!(!check(&[], "http://evil.example:8080", "127.0.0.1:8080", true));
        assert!(!check(&[], "http://localhost:3000", "127.0.0.1:8080", true));
        // A page on localhost that talks to another port is another origin.
        assert!(!check(&[], "http://localhost:3000", "localhost:8080", true));
        assert!(check(&["http://localhost:3000"], "http://localhost:3000", "localhost:8080", true));
    }

    #[test]
    fn two_origins_are_one_too_many() {
        let mut headers = HeaderMap::new();
        headers.append(ORIGIN, HeaderValue::from_static("https://app.example"));
        headers.append(ORIGIN, HeaderValue::from_static("https://evil.example"));
        let auth = AuthConfig { origins: vec!["https://app.example".into()], ..Config::default().auth };
        assert!(check_origin(&auth, &headers, false).is_err());
    }
}
