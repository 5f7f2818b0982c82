//! The proxies that `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY` and `NO_PROXY` name.

use std::fmt;
use std::io;
use std::sync::Arc;

use http::{HeaderValue, Uri};
use hyper_util::client::proxy::matcher::{Intercept, Matcher};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::net::Socket;

/// No proxy has more to say before a tunnel begins.
const HEAD_BYTES_MAX: usize = 8 << 10;

/// Which requests go by which proxy.
#[derive(Clone)]
pub struct Proxies(Arc<Matcher>);

/// The proxy for one server.
pub(super) struct Proxy(Intercept);

impl Proxies {
    /// As the environment says now.
    pub fn of_environment() -> Proxies {
        Proxies(Arc::new(Matcher::from_env()))
    }

    #[cfg(test)]
    pub(super) fn all(proxy: &str, except: &str) -> Proxies {
        Proxies(Arc::new(Matcher::builder().all(proxy.to_owned()).no(except.to_owned()).build()))
    }

    pub(super) fn find(&self, to: &Uri) -> Option<Proxy> {
        self.0.intercept(to).map(Proxy)
    }
}

impl fmt::Debug for Proxies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Proxies")
    }
}

impl Proxy {
    /// Its host, its port, and whether TLS is spoken with it.
    pub fn address(&self) -> io::Result<(&str, u16, bool)> {
        let uri = self.0.uri();
        let (port, is_secure) = match uri.scheme_str() {
            Some("http") => (80, false),
            Some("https") => (443, true),
            _ => return Err(io::Error::other("the proxy is neither of http nor of https, and no other is spoken")),
        };
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
        Ok((host, uri.port_u16().unwrap_or(port), is_secure))
    }

    /// What it wants to know of who asks.
    pub fn credential(&self) -> Option<&HeaderValue> {
        self.0.basic_auth()
    }

    /// Has it pass on everything to and from a server (RFC 9110, 9.3.6).
    pub async fn tunnel(&self, socket: &mut Socket, to: &str, agent: &str) -> io::Result<()> {
        let mut head = format!("CONNECT {to} HTTP/1.1\r\nhost: {to}\r\nuser-agent: {agent}\r\n").into_bytes();
        if let Some(credential) = self.credential() {
            head.extend_from_slice(&[b"proxy-authorization: ", credential.as_bytes(), b"\r\n"].concat());
        }
        head.extend_from_slice(b"\r\n");
        socket.write_all(&head).await?;
        socket.flush().await?;
        let mut read = Vec::new();
        while !read.ends_with(b"\r\n\r\n") {
            // Byte by byte, since what follows is the server's.
            read.push(socket.read_u8().await?);
            if read.len() > HEAD_BYTES_MAX {
                return Err(io::Error::other("the proxy's answer is too long"));
            }
        }
        let line = read.split(|byte| *byte == b'\r').next().unwrap_or_default();
        match line.strip_prefix(b"HTTP/1.").and_then(|rest| rest.get(2..5)) {
            Some([b'2', _, _]) => Ok(()),
            Some(b"407") => Err(io::Error::other("the proxy wants other credentials")),
            Some(status) => {
                let status = String::from_utf8_lossy(status);
                Err(io::Error::other(format!("the proxy makes no connection: it answered with HTTP {status}")))
            }
            None => Err(io::Error::other("the proxy does not speak HTTP")),
        }
    }
}
