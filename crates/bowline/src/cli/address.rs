//! Where a server is, as people write it: `ws://host:port/ws`, `http://host:port`, or just `host:port`.

use anyhow::{Context, bail};
use http::Uri;

pub const DEFAULT_WS: &str = "ws://127.0.0.1:8080/ws";
pub const DEFAULT_HTTP: &str = "http://127.0.0.1:8080";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// `host:port`, with brackets around an IPv6 address.
    pub authority: String,
    path: String,
}

impl Address {
    pub fn parse(text: &str) -> anyhow::Result<Address> {
        let with_scheme = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
        let uri: Uri =
            with_scheme.parse().with_context(|| format!("`{text}` is not a URL; one looks like {DEFAULT_WS}"))?;
        match uri.scheme_str() {
            Some("ws" | "http") => {}
            Some(tls @ ("wss" | "https")) => {
                bail!("{tls}:// is not supported yet; use ws:// or http:// to a trusted network, or an SSH tunnel")
            }
            _ => bail!("`{text}` must begin with ws:// or http://"),
        }
        let host = uri.host().filter(|host| !host.is_empty()).with_context(|| format!("`{text}` names no host"))?;
        let authority = format!("{host}:{}", uri.port_u16().unwrap_or(80));
        Ok(Address { authority, path: uri.path().to_owned() })
    }

    /// The WebSocket door. A bare origin means `/ws`.
    pub fn ws_url(&self) -> String {
        let path = if self.path.len() <= 1 { "/ws" } else { &self.path };
        format!("ws://{}{path}", self.authority)
    }
}

/// An id as part of a path.
pub fn segment(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.~".contains(&byte);
    text.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_people_write_them() {
        let cases = [
            ("ws://127.0.0.1:8080/ws", "ws://127.0.0.1:8080/ws"),
            ("http://chat.example", "ws://chat.example:80/ws"),
            ("localhost:9000", "ws://localhost:9000/ws"),
            ("ws://[::1]:8080/", "ws://[::1]:8080/ws"),
            ("ws://chat.example/behind/proxy", "ws://chat.example:80/behind/proxy"),
        ];
        for (text, url) in cases {
            assert_eq!(Address::parse(text).unwrap().ws_url(), url);
        }
        for text in ["wss://chat.example", "ftp://x", "", "http://", "a b"] {
            assert!(Address::parse(text).is_err(), "{text}");
        }
        assert_eq!(segment("sess_1/../x?"), "sess_1%2F..%2Fx%3F");
    }
}
