//! The one HTTP client: HTTP/1.1 over the node's own network, by hyper.
//!
//! A request is made in the task that waits for its answer, which drives the connection itself (`wire`); giving up the wait closes the
//! connection. Redirects are not followed, since they could lead anywhere with the caller's headers; nothing is decompressed, and there
//! are no cookies. A URL is in no error, as it may hold a secret.

mod endpoint;
mod pool;
mod proxy;
mod response;
mod wire;

#[cfg(test)]
mod client_tests;
#[cfg(test)]
mod reach_tests;

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, HOST, PROXY_AUTHORIZATION, USER_AGENT};
use http::{HeaderMap, HeaderValue, Method, Request};
use http_body_util::Full;

pub use self::endpoint::Endpoint;
use self::pool::HttpPool;
pub use self::proxy::Proxies;
pub use self::response::{Response, ResponseCut};
use self::wire::HttpWire;
use crate::Network;
use crate::net::{Socket, connect_any};
use crate::tls::{self, Alpn};

/// Which addresses may be dialled.
pub trait AddressGuard: Send + Sync + fmt::Debug {
    /// Refuses an address that a URL names, or says nothing.
    fn check(&self, address: IpAddr) -> Result<(), String>;

    /// The addresses that may be dialled of those that a name leads to.
    fn choose(&self, found: io::Result<Vec<SocketAddr>>) -> Result<Vec<SocketAddr>, String>;
}

/// How servers are reached.
#[derive(Clone, Debug)]
pub enum Route {
    Direct,
    /// Only at addresses that the guard lets through.
    Guarded(Arc<dyn AddressGuard>),
    /// By the proxies that are named for them.
    Proxied(Proxies),
}

/// What a client is like.
#[derive(Clone, Debug)]
pub struct HttpOptions {
    pub user_agent: &'static str,
    pub route: Route,
    /// How long it may take until a request can leave: the name, the connection, a proxy and TLS.
    pub connect_timeout: Duration,
    /// How many connections to one server wait for the next request. Where it is 0 each request has a connection of its own.
    pub idle_max: usize,
}

/// Makes requests.
#[derive(Clone)]
pub struct Http1Client {
    options: HttpOptions,
    network: Arc<dyn Network>,
    pool: Arc<HttpPool>,
    tls: tls::Trust,
}

/// Why a request brought no response.
#[derive(Debug)]
pub struct SendError {
    /// Not a byte of it had left.
    pub is_unsent: bool,
    pub why: String,
}

impl SendError {
    pub(self) fn unsent(why: impl Into<String>) -> SendError {
        SendError { is_unsent: true, why: why.into() }
    }
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

impl std::error::Error for SendError {}

impl Http1Client {
    pub fn new(network: &Arc<dyn Network>, options: HttpOptions) -> Http1Client {
        let pool = HttpPool::new(options.idle_max);
        Http1Client { options, network: network.clone(), pool, tls: tls::Trust::of_machine(Alpn::Http1) }
    }

    /// Sends a request and waits for the head of its response. Headers of the caller win over those that every request has.
    pub async fn send(
        &self,
        method: Method,
        to: &Endpoint,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<Response, SendError> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        *request.headers_mut() = headers;
        self.complete(request.headers_mut(), to);
        loop {
            let kept = self.pool.take(&to.origin);
            let is_kept = kept.is_some();
            let mut wire = match kept {
                Some(wire) => wire,
                // Boxed, because it is seldom needed, and every request would have to have room for it.
                None => Box::pin(self.connect(to)).await?,
            };
            *request.uri_mut() = if wire.to_proxy { to.whole.clone() } else { to.path.clone() };
            match wire.send(request).await {
                Some(Ok(response)) => return Ok(Response::new(response, wire, &to.origin, &self.pool)),
                Some(Err(mut error)) => match error.take_message() {
                    // It was closed at this very moment, and has taken nothing of it.
                    Some(unsent) if is_kept => request = unsent,
                    unsent => {
                        return Err(SendError { is_unsent: unsent.is_some(), why: innermost(&error.into_error()) });
                    }
                },
                None => return Err(SendError { is_unsent: false, why: "the connection was closed".to_owned() }),
            }
        }
    }

    fn complete(&self, headers: &mut HeaderMap, to: &Endpoint) {
        headers.entry(HOST).or_insert_with(|| to.authority.clone());
        headers.entry(USER_AGENT).or_insert(HeaderValue::from_static(self.options.user_agent));
        headers.entry(ACCEPT).or_insert(HeaderValue::from_static("*/*"));
        if let Some(basic) = &to.basic {
            headers.entry(AUTHORIZATION).or_insert_with(|| basic.clone());
        }
        if let (Route::Proxied(proxies), false) = (&self.options.route, to.origin.is_secure)
            && let Some(credential) = proxies.find(&to.whole).as_ref().and_then(|proxy| proxy.credential())
        {
            headers.entry(PROXY_AUTHORIZATION).or_insert_with(|| credential.clone());
        }
    }

    async fn connect(&self, to: &Endpoint) -> Result<Box<HttpWire>, SendError> {
        let connecting = tokio::time::timeout(self.options.connect_timeout, self.open(to));
        let connected = connecting.await.unwrap_or_else(|_| Err("it was not connected in time".to_owned()));
        let (socket, to_proxy) = connected.map_err(SendError::unsent)?;
        HttpWire::new(socket, to_proxy).await.map_err(|error| SendError::unsent(innermost(&error)))
    }

    /// A connection on which requests can go out, and whether it leads to a proxy.
    async fn open(&self, to: &Endpoint) -> Result<(Socket, bool), String> {
        let origin = &to.origin;
        let secured = async |socket| self.tls.secure(&origin.host, socket).await.map_err(|error| innermost(&error));
        if let Route::Proxied(proxies) = &self.options.route
            && let Some(proxy) = proxies.find(&to.whole)
        {
            let failed = |error: io::Error| format!("by a proxy: {}", innermost(&error));
            let (host, port, is_secure) = proxy.address().map_err(failed)?;
            let mut socket = self.dial(host, port).await.map_err(|why| format!("by a proxy: {why}"))?;
            if is_secure {
                socket = tls::secure(host, socket).await.map_err(failed)?;
            }
            if !origin.is_secure {
                return Ok((socket, true));
            }
            proxy.tunnel(&mut socket, &to.tunnel(), self.options.user_agent).await.map_err(failed)?;
            return Ok((secured(socket).await?, false));
        }
        let socket = self.dial(&origin.host, origin.port).await?;
        Ok((if origin.is_secure { secured(socket).await? } else { socket }, false))
    }

    async fn dial(&self, host: &str, port: u16) -> Result<Socket, String> {
        let guard = match &self.options.route {
            Route::Guarded(guard) => Some(guard),
            Route::Direct | Route::Proxied(_) => None,
        };
        let addresses = match (host.parse::<IpAddr>(), guard) {
            (Ok(address), guard) => {
                guard.map_or(Ok(()), |guard| guard.check(address))?;
                vec![(address, port).into()]
            }
            (Err(_), Some(guard)) => guard.choose(self.network.resolve(host, port).await)?,
            (Err(_), None) => self.network.resolve(host, port).await.map_err(|error| innermost(&error))?,
        };
        connect_any(&*self.network, addresses).await.map_err(|error| innermost(&error))
    }
}

impl fmt::Debug for Http1Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Http1Client({})", self.options.user_agent)
    }
}

/// The innermost cause: the outer ones only say that something failed.
fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}
