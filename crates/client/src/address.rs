//! Where a server is, as people write it: `wss://host/ws`, `http://host:port`, or just `host:port`.

use bowline_env::net::{self, Network, Socket};
use bowline_env::tls;
use http::Uri;

/// The WebSocket endpoint of a server on this machine with default settings.
pub const DEFAULT_WS: &str = "ws://127.0.0.1:8080/ws";
/// The same for HTTP.
pub const DEFAULT_HTTP: &str = "http://127.0.0.1:8080";

/// Where a server is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// `host:port`, with brackets around an IPv6 address.
    pub authority: String,
    /// With TLS.
    pub secure: bool,
    path: String,
}

/// Why a text is no address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// It cannot be read.
    #[error("`{0}` is not a URL; one looks like {DEFAULT_WS}")]
    NotAUrl(String),
    /// It is of another protocol.
    #[error("`{0}` must begin with ws://, wss://, http:// or https://")]
    Scheme(String),
    /// There is no host in it.
    #[error("`{0}` names no host")]
    NoHost(String),
}

impl Address {
    /// Reads an address. Without a scheme it is plain HTTP.
    pub fn parse(text: &str) -> Result<Address, AddressError> {
        let with_scheme = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
        let uri: Uri = with_scheme.parse().map_err(|_| AddressError::NotAUrl(text.to_owned()))?;
        let secure = match uri.scheme_str() {
            Some("ws" | "http") => false,
            Some("wss" | "https") => true,
            _ => return Err(AddressError::Scheme(text.to_owned())),
        };
        let host = uri.host().filter(|host| !host.is_empty()).ok_or_else(|| AddressError::NoHost(text.to_owned()))?;
        let authority = format!("{host}:{}", uri.port_u16().unwrap_or(if secure { 443 } else { 80 }));
        Ok(Address { authority, secure, path: uri.path().to_owned() })
    }

    /// The WebSocket endpoint. A bare origin means `/ws`.
    pub fn ws_url(&self) -> String {
        let path = if self.path.len() <= 1 { "/ws" } else { &self.path };
        let scheme = if self.secure { "wss" } else { "ws" };
        format!("{scheme}://{}{path}", self.authority)
    }

    /// An HTTP endpoint of the same server; `path` begins with `/`.
    pub fn http_url(&self, path: &str) -> String {
        let scheme = if self.secure { "https" } else { "http" };
        format!("{scheme}://{}{path}", self.authority)
    }

    /// Opens a connection, with TLS if the address says so.
    pub async fn dial(&self, network: &dyn Network) -> std::io::Result<Socket> {
        let (host, port) = self.authority.rsplit_once(':').unwrap_or((&self.authority, ""));
        let (host, port) = (host.trim_matches(['[', ']']), port.parse().map_err(std::io::Error::other)?);
        let socket = net::dial(network, host, port).await?;
        if self.secure { tls::secure(host, socket).await } else { Ok(socket) }
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
            ("https://chat.example", "wss://chat.example:443/ws"),
            ("wss://chat.example:8443/ws", "wss://chat.example:8443/ws"),
        ];
        for (text, url) in cases {
            assert_eq!(Address::parse(text).unwrap().ws_url(), url);
        }
        for text in ["ftp://x", "", "http://", "a b"] {
            assert!(Address::parse(text).is_err(), "{text}");
        }
        assert_eq!(Address::parse("wss://h/ws").unwrap().http_url("/x"), "https://h:443/x");
        assert_eq!(segment("sess_1/../x?"), "sess_1%2F..%2Fx%3F");
    }
}
