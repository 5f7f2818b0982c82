//! By which names this server may be asked for: a web page that lends its own name to our address must not get in with it.

use std::net::{IpAddr, SocketAddr};

use http::header::HOST;
use http::{HeaderMap, Version};

use crate::config::{AuthConfig, AuthMode};
use crate::origin::{Origin, authority_of, is_loopback, is_loopback_name};

/// Why a request is refused for its `Host`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostRefused {
    #[error("A request has exactly one Host header.")]
    NotOne,
    #[error(
        "This server does not go by that name. Ask for it by its address, such as 127.0.0.1, or list the name in `auth.hosts`."
    )]
    NotOurs,
}

/// A browser sends no origin when a page reads from its own host. If that name was only lent to our address, the page is
/// not ours, and what it needs no credential for it would get: so for that we answer only to names that cannot be lent.
///
/// What is `protected` is safe under any name: it needs a credential, which such a page does not have, or TLS, where the
/// browser sees that the certificate is another's. Without auth nothing is protected.
pub fn check_host(
    auth: &AuthConfig,
    listen: &SocketAddr,
    is_machine: impl FnOnce(&str) -> bool,
    protected: bool,
    version: Version,
    headers: &HeaderMap,
) -> Result<(), HostRefused> {
    let mut given = headers.get_all(HOST).iter();
    let host = match (given.next(), given.next()) {
        (Some(host), None) => host,
        // Before HTTP/1.1 there was none, and no browser leaves it out.
        (None, _) if version < Version::HTTP_11 => return Ok(()),
        _ => return Err(HostRefused::NotOne),
    };
    if protected && !matches!(auth.mode, AuthMode::None) {
        return Ok(());
    }
    let host = host.to_str().ok().and_then(authority_of).map(|(host, _)| host);
    let ours = host.is_some_and(|host| is_ours(auth, listen, is_machine, &host));
    ours.then_some(()).ok_or(HostRefused::NotOurs)
}

/// Whether only this server can have this name.
fn is_ours(auth: &AuthConfig, listen: &SocketAddr, is_machine: impl FnOnce(&str) -> bool, host: &str) -> bool {
    let by_origin = || auth.origins.iter().filter_map(|origin| Origin::parse(origin)).any(|origin| origin.host == host);
    let by_name = || auth.hosts.iter().any(|name| name == "*" || name.eq_ignore_ascii_case(host));
    if is_loopback_name(host) || by_name() || by_origin() {
        return true;
    }
    // An address is what names lead to, so no other site can claim it. Who can reach a loopback listener calls it by a loopback name.
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().is_ok();
    !is_loopback(listen) && (address || is_machine(host))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, StaticToken};
    use bowline_protocol::Principal;
    use bowline_protocol::frame::client::Secret;
    use http::HeaderValue;

    const PRIVATE: &str = "127.0.0.1:8080";
    const PUBLIC: &str = "0.0.0.0:8080";

    fn open() -> AuthConfig {
        let origins = vec!["https://agents.example".into(), "*".into()];
        AuthConfig { origins, hosts: vec!["bowline.internal".into()], ..Config::default().auth }
    }

    fn with_tokens() -> AuthConfig {
        let token = StaticToken { token: Secret::new("t"), principal: Principal::parse("p").unwrap(), admin: false };
        AuthConfig { mode: AuthMode::Tokens(vec![token]), ..open() }
    }

    fn check(auth: &AuthConfig, listen: &str, host: &str) -> Result<(), HostRefused> {
        let open = check_as(auth, listen, host, false);
        if matches!(auth.mode, AuthMode::None) {
            assert_eq!(check_as(auth, listen, host, true), open, "without auth nothing is protected");
        }
        open
    }

    fn check_as(auth: &AuthConfig, listen: &str, host: &str, protected: bool) -> Result<(), HostRefused> {
        let mut headers = HeaderMap::new();
        headers.insert(HOST, HeaderValue::from_str(host).unwrap());
        let is_machine = |host: &str| host.eq_ignore_ascii_case("Machine");
        check_host(auth, &listen.parse().unwrap(), is_machine, protected, Version::HTTP_11, &headers)
    }

    #[test]
    fn without_auth_a_loopback_listener_goes_by_loopback_names_and_those_that_are_listed() {
        let listed = ["agents.example", "Agents.Example:443", "bowline.internal:8080"];
        for host in ["localhost", "127.0.0.1:8080", "LOCALHOST:1", "[::1]:8080"].into_iter().chain(listed) {
            assert_eq!(check(&open(), PRIVATE, host), Ok(()), "{host}");
        }
        for host in ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.1", "machine", ""] {
            assert_eq!(check(&open(), PRIVATE, host), Err(HostRefused::NotOurs), "{host}");
        }
    }

    #[test]
    fn without_auth_a_listener_that_others_reach_goes_by_addresses_its_own_name_and_those_that_are_listed() {
        for host in ["10.0.0.1:8080", "[2001:db8::1]", "localhost:8080", "machine:8080", "agents.example"] {
            assert_eq!(check(&open(), PUBLIC, host), Ok(()), "{host}");
        }
        for host in ["evil.example:8080", "machine.evil.example", "10.0.0.1.evil.example", "agents.example.", "a b"] {
            assert_eq!(check(&open(), PUBLIC, host), Err(HostRefused::NotOurs), "{host}");
        }
    }

    #[test]
    fn with_auth_any_one_name_will_do_for_what_is_protected_and_for_nothing_else() {
        for listen in [PRIVATE, PUBLIC] {
            assert_eq!(check_as(&with_tokens(), listen, "anything.example", true), Ok(()));
            assert_eq!(check_as(&with_tokens(), listen, "anything.example", false), Err(HostRefused::NotOurs));
            assert_eq!(check_as(&with_tokens(), listen, "bowline.internal", false), Ok(()));
        }
    }

    #[test]
    fn a_star_is_every_name() {
        let auth = AuthConfig { hosts: vec!["*".into()], ..Config::default().auth };
        assert_eq!(check(&auth, PRIVATE, "anything.example"), Ok(()));
    }

    #[test]
    fn two_hosts_or_none_are_refused_to_every_client() {
        let mut headers = HeaderMap::new();
        let listen = PRIVATE.parse().unwrap();
        let check =
            |version, headers: &HeaderMap| check_host(&with_tokens(), &listen, |_| false, true, version, headers);
        assert_eq!(check(Version::HTTP_11, &headers), Err(HostRefused::NotOne));
        assert_eq!(check(Version::HTTP_10, &headers), Ok(()));
        headers.append(HOST, HeaderValue::from_static("localhost"));
        assert_eq!(check(Version::HTTP_11, &headers), Ok(()));
        headers.append(HOST, HeaderValue::from_static("localhost"));
        assert_eq!(check(Version::HTTP_11, &headers), Err(HostRefused::NotOne));
        assert_eq!(check(Version::HTTP_10, &headers), Err(HostRefused::NotOne));
    }
}
