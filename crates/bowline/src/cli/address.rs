//! Where a server is, as people write it: `wss://host/ws`, `http://host:port`, or just `host:port`.

use anyhow::{Context, bail};
use http::Uri;
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_util::either::Either;

use crate::tls;

pub const DEFAULT_WS: &str = "ws://127.0.0.1:8080/ws";
pub const DEFAULT_HTTP: &str = "http://127.0.0.1:8080";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// `host:port`, with brackets around an IPv6 address.
    pub authority: String,
    /// With TLS.
    pub secure: bool,
    path: String,
}

impl Address {
    pub fn parse(text: &str) -> anyhow::Result<Address> {
        let with_scheme = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
        let uri: Uri =
            with_scheme.parse().with_context(|| format!("`{text}` is not a URL; one looks like {DEFAULT_WS}"))?;
        let secure = match uri.scheme_str() {
            Some("ws" | "http") => false,
            Some("wss" | "https") => true,
            _ => bail!("`{text}` must begin with ws://, wss://, http:// or https://"),
        };
        let host = uri.host().filter(|host| !host.is_empty()).with_context(|| format!("`{text}` names no host"))?;
        let authority = format!("{host}:{}", uri.port_u16().unwrap_or(if secure { 443 } else { 80 }));
        Ok(Address { authority, secure, path: uri.path().to_owned() })
    }

    /// The WebSocket door. A bare origin means `/ws`.
    pub fn ws_url(&self) -> String {
        let path = if self.path.len() <= 1 { "/ws" } else { &self.path };
        let scheme = if self.secure { "wss" } else { "ws" };
        format!("{scheme}://{}{path}", self.authority)
    }

    /// A connection to it, with TLS if it is meant so.
    pub async fn dial(&self) -> std::io::Result<Wire> {
        let stream = TcpStream::connect(&self.authority).await?;
        let _ = stream.set_nodelay(true);
        if !self.secure {
            return Ok(Either::Left(stream));
        }
        let host = self.authority.rsplit_once(':').map_or(self.authority.as_str(), |(host, _)| host);
        let name = ServerName::try_from(host.trim_matches(['[', ']']).to_owned()).map_err(std::io::Error::other)?;
        let connector = tls::connector().map_err(std::io::Error::other)?;
        connector.connect(name, stream).await.map(|stream| Either::Right(Box::new(stream)))
    }
}

/// A connection to a server, plain or with TLS.
pub type Wire = Either<TcpStream, Box<TlsStream<TcpStream>>>;

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
        assert_eq!(segment("sess_1/../x?"), "sess_1%2F..%2Fx%3F");
    }
}
