//! The credential in a request's headers: `Authorization: Bearer …`, or the WebSocket subprotocol `bearer.…`.

use bowline_protocol::frame::client::Secret;
use http::HeaderMap;
use http::header::{AUTHORIZATION, SEC_WEBSOCKET_PROTOCOL};

/// The subprotocol that is echoed. A browser closes a connection whose offers were all ignored, so a client that
/// offers `bearer.<token>` offers this one beside it.
pub const SUBPROTOCOL: &str = "bowline.v1";

const BEARER_SUBPROTOCOL: &str = "bearer.";

/// What a request presents.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PresentedCredential {
    pub token: Option<Secret>,
    /// There is an `Authorization`, and it holds no bearer token.
    pub other_scheme: bool,
    /// The subprotocol to echo, if it was offered. A token is never echoed.
    pub subprotocol: Option<&'static str>,
}

impl From<&Secret> for PresentedCredential {
    fn from(token: &Secret) -> PresentedCredential {
        PresentedCredential { token: Some(token.clone()), ..PresentedCredential::default() }
    }
}

impl PresentedCredential {
    pub fn token(&self) -> Option<&str> {
        self.token.as_ref().map(Secret::expose)
    }
}

/// Reads both places. A bearer token in the header wins: a client puts it there on purpose. A header of
/// another scheme counts only when there is no token at all, since a browser sends one by itself for a proxy's sake.
pub fn token_from_headers(headers: &HeaderMap) -> PresentedCredential {
    let offered: Vec<&str> = headers
        .get_all(SEC_WEBSOCKET_PROTOCOL)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .collect();
    let from_protocol =
        || offered.iter().find_map(|name| name.strip_prefix(BEARER_SUBPROTOCOL)).filter(|token| !token.is_empty());
    let token = bearer(headers).or_else(from_protocol).map(Secret::new);
    PresentedCredential {
        other_scheme: token.is_none() && headers.contains_key(AUTHORIZATION),
        token,
        subprotocol: offered.contains(&SUBPROTOCOL).then_some(SUBPROTOCOL),
    }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.to_str().ok()?.trim().split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn headers(list: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in list {
            headers.append(*name, HeaderValue::from_str(value).unwrap());
        }
        headers
    }

    #[test]
    fn a_credential_is_found_where_clients_put_it() {
        let protocol = "sec-websocket-protocol";
        type Case<'a> = (&'a [(&'static str, &'a str)], Option<&'a str>, bool);
        let cases: &[Case<'_>] = &[
            (&[], None, false),
            (&[("authorization", "Bearer abc")], Some("abc"), false),
            (&[("authorization", "bearer   abc ")], Some("abc"), false),
            (&[("authorization", "Basic abc")], None, false),
            (&[("authorization", "Basic x"), (protocol, "bowline.v1, bearer.abc")], Some("abc"), true),
            (&[("authorization", "Bearer")], None, false),
            (&[("authorization", "Bearer ")], None, false),
            (&[(protocol, "bowline.v1, bearer.a.b.c")], Some("a.b.c"), true),
            (&[(protocol, "bearer.abc"), (protocol, "bowline.v1")], Some("abc"), true),
            (&[(protocol, "bearer.abc")], Some("abc"), false),
            (&[(protocol, "bearer.")], None, false),
            (&[(protocol, "bowline.v10,bowline")], None, false),
            (&[(protocol, "bowline.v1,bearer.two"), ("authorization", "Bearer one")], Some("one"), true),
        ];
        for (list, token, echoed) in cases {
            let presented = token_from_headers(&headers(list));
            assert_eq!(presented.token(), *token, "{list:?}");
            assert_eq!(presented.subprotocol.is_some(), *echoed, "{list:?}");
            let has_header = list.iter().any(|(name, _)| *name == "authorization");
            assert_eq!(presented.other_scheme, has_header && token.is_none(), "{list:?}");
            assert!(!format!("{presented:?}").contains("abc"));
        }
    }
}
