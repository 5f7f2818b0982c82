//! Connections to one server on this machine over HTTP without TLS, kept between requests. The task that waits for an answer drives the connection
//! itself: with a task for each connection, every call would be handed from one task to another and back, which costs more than the call.
//! From elsewhere an answer takes longer than that, and may never come without a word: `reqwest` watches over such connections.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use bowline_env::net::{Socket, connect_any};
use bowline_env::{Network, clock};
use bytes::Bytes;
use futures_util::Stream;
use http::header::{HOST, USER_AGENT};
use http::{HeaderMap, HeaderValue, Method, Request, Response};
use http_body::Body as _;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1::{Connection, SendRequest, handshake};
use hyper_util::rt::TokioIo;
use reqwest::Url;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::config::spec::{Reach, check_address};
use crate::upstream::http::{AGENT, CONNECT_TIMEOUT, allowed, innermost, is_localhost};

/// As many as wait for the next request; each is one that was in use at once.
const IDLE_MAX: usize = 64;
/// A server may close what it does not hear of; one that is older is not tried.
const IDLE_FOR: Duration = Duration::from_secs(90);
/// What is left of a response when its answer is there already: an end, and little more.
const REST_BYTES_MAX: usize = 64 << 10;

/// Why a request brought no response.
pub(super) struct SendError {
    /// Not a byte of it had left.
    pub is_unsent: bool,
    pub why: String,
}

pub(super) struct Connections {
    host: String,
    port: u16,
    path: String,
    /// The host as the header says it.
    authority: HeaderValue,
    reach: Reach,
    network: Arc<dyn Network>,
    /// The one that was used last is the last.
    idle: Mutex<VecDeque<(Instant, Box<Wire>)>>,
}

impl Connections {
    /// `None` for an address that is elsewhere, or that wants more than this can do: TLS, or a credential of its own.
    pub fn to(url: &Url, reach: Reach, network: &Arc<dyn Network>) -> Option<Arc<Connections>> {
        let is_plain = url.scheme() == "http" && url.username().is_empty() && url.password().is_none();
        let (host, port) = (url.host_str().filter(|_| is_plain)?, url.port_or_known_default()?);
        let address: Option<IpAddr> = host.trim_matches(['[', ']']).parse().ok();
        if !address.map_or_else(|| is_localhost(host), |address| address.is_loopback()) {
            return None;
        }
        let authority = url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"));
        let query = url.query().map(|query| format!("?{query}")).unwrap_or_default();
        Some(Arc::new(Connections {
            host: host.trim_matches(['[', ']']).to_owned(),
            port,
            path: format!("{}{query}", url.path()),
            authority: HeaderValue::try_from(authority).ok()?,
            reach,
            network: network.clone(),
            idle: Mutex::default(),
        }))
    }

    pub async fn post(self: &Arc<Self>, headers: HeaderMap, body: Bytes) -> Result<reqwest::Response, SendError> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = Method::POST;
        let wrong = |error: http::uri::InvalidUri| SendError { is_unsent: true, why: error.to_string() };
        *request.uri_mut() = self.path.parse().map_err(wrong)?;
        *request.headers_mut() = headers;
        request.headers_mut().entry(HOST).or_insert_with(|| self.authority.clone());
        request.headers_mut().entry(USER_AGENT).or_insert(HeaderValue::from_static(AGENT));
        let response = self.send(request).await?;
        Ok(response.map(reqwest::Body::wrap_stream).into())
    }

    async fn send(self: &Arc<Self>, mut request: Request<Full<Bytes>>) -> Result<Response<ResponseBody>, SendError> {
        loop {
            let kept = self.take();
            let is_kept = kept.is_some();
            let mut wire = match kept {
                Some(wire) => wire,
                // Boxed, because it is seldom needed, and every call would have to have room for it.
                None => Box::pin(self.connect()).await?,
            };
            let mut sent = pin!(wire.sender.try_send_request(request));
            let answered = poll_fn(|cx| wire.drive(cx, |inner| sent.as_mut().poll(inner))).await;
            match answered {
                Some(Ok(response)) => {
                    let (home, wire) = (self.clone(), Some(wire));
                    return Ok(response.map(|incoming| ResponseBody { incoming: Some(incoming), wire, home }));
                }
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

    async fn connect(&self) -> Result<Box<Wire>, SendError> {
        let unsent = |why: String| SendError { is_unsent: true, why };
        let connecting = async {
            let addresses = match self.host.parse::<IpAddr>() {
                Ok(address) => {
                    check_address(address, self.reach).map_err(|error| error.to_string())?;
                    vec![(address, self.port).into()]
                }
                Err(_) => {
                    let found = self.network.resolve(&self.host, self.port).await;
                    allowed(found, self.reach).map_err(|error| error.to_string())?
                }
            };
            connect_any(&*self.network, addresses).await.map_err(|error| error.to_string())
        };
        let socket = match tokio::time::timeout(CONNECT_TIMEOUT, connecting).await {
            Ok(connected) => connected.map_err(unsent)?,
            Err(_) => return Err(unsent("it was not connected in time".to_owned())),
        };
        let turn = Arc::new(Turn { again: AtomicBool::new(false), caller: Mutex::new(Waker::noop().clone()) });
        let io = TokioIo::new(CallersSocket { socket, turn: turn.clone() });
        let (sender, connection) = handshake(io).await.map_err(|error| unsent(innermost(&error)))?;
        Ok(Box::new(Wire { sender, connection, is_over: false, waker: turn.clone().into(), turn, rest: None }))
    }

    /// One that is still there, as far as that can be seen.
    fn take(&self) -> Option<Box<Wire>> {
        loop {
            let (since, mut wire) = self.lock().pop_back()?;
            if clock::since(since) < IDLE_FOR && wire.is_ready() {
                return Some(wire);
            }
        }
    }

    fn put(&self, wire: Box<Wire>) {
        // What comes on it now wakes no task.
        wire.turn.caller().clone_from(Waker::noop());
        let mut idle = self.lock();
        while idle.front().is_some_and(|(since, _)| idle.len() >= IDLE_MAX || clock::since(*since) >= IDLE_FOR) {
            idle.pop_front();
        }
        idle.push_back((clock::now(), wire));
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<(Instant, Box<Wire>)>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Connections({} idle)", self.lock().len())
    }
}

/// One connection. Nothing happens on it but while a task drives it.
struct Wire {
    sender: SendRequest<Full<Bytes>>,
    connection: Connection<TokioIo<CallersSocket>, Full<Bytes>>,
    is_over: bool,
    turn: Arc<Turn>,
    waker: Waker,
    /// What is not wanted any more of the last response.
    rest: Option<Incoming>,
}

impl Wire {
    /// Drives it until `look` finds something. `None` if it has ended and nothing is found.
    fn drive<T>(&mut self, cx: &Context<'_>, mut look: impl FnMut(&mut Context<'_>) -> Poll<T>) -> Poll<Option<T>> {
        self.turn.caller().clone_from(cx.waker());
        let waker = self.waker.clone();
        let mut inner = Context::from_waker(&waker);
        loop {
            self.turn.again.store(false, Ordering::Relaxed);
            if let Poll::Ready(found) = look(&mut inner) {
                return Poll::Ready(Some(found));
            }
            if self.is_over {
                return Poll::Ready(None);
            }
            self.is_over = Pin::new(&mut self.connection).poll(&mut inner).is_ready();
            if !self.is_over && !self.turn.again.load(Ordering::Relaxed) {
                return look(&mut inner).map(Some);
            }
        }
    }

    /// Whether the next request can go out on it at once.
    fn is_ready(&mut self) -> bool {
        let cx = Context::from_waker(Waker::noop());
        let mut left = REST_BYTES_MAX;
        while let Some(mut rest) = self.rest.take() {
            match self.drive(&cx, |inner| Pin::new(&mut rest).poll_frame(inner)) {
                Poll::Ready(Some(Some(Ok(frame)))) => {
                    let Some(less) = left.checked_sub(frame.data_ref().map_or(0, Bytes::len)) else { return false };
                    left = less;
                    self.rest = Some(rest);
                }
                Poll::Ready(Some(None)) => {}
                Poll::Ready(None | Some(Some(Err(_)))) => return false,
                Poll::Pending => {
                    self.rest = Some(rest);
                    return false;
                }
            }
        }
        // Looks whether the server has closed it.
        let closed = self.drive(&cx, |_| Poll::<()>::Pending).is_ready();
        !closed && self.sender.is_ready()
    }
}

/// Whose turn it is to drive a connection. Its parts wake each other while it is driven, for which no task has to be woken.
struct Turn {
    /// One part has something for another.
    again: AtomicBool,
    /// Woken by the socket.
    caller: Mutex<Waker>,
}

impl Turn {
    fn caller(&self) -> MutexGuard<'_, Waker> {
        self.caller.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wake for Turn {
    fn wake(self: Arc<Self>) {
        self.again.store(true, Ordering::Relaxed);
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.again.store(true, Ordering::Relaxed);
    }
}

/// A socket that wakes the task which drives its connection.
struct CallersSocket {
    socket: Socket,
    turn: Arc<Turn>,
}

impl CallersSocket {
    fn on_behalf<T>(&mut self, poll: impl FnOnce(Pin<&mut Socket>, &mut Context<'_>) -> T) -> T {
        let waker = self.turn.caller();
        poll(Pin::new(&mut self.socket), &mut Context::from_waker(&waker))
    }
}

impl AsyncRead for CallersSocket {
    fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.on_behalf(|socket, cx| socket.poll_read(cx, buffer))
    }
}

impl AsyncWrite for CallersSocket {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.on_behalf(|socket, cx| socket.poll_write(cx, bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.on_behalf(|socket, cx| socket.poll_write_vectored(cx, parts))
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.on_behalf(|socket, cx| socket.poll_flush(cx))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.on_behalf(|socket, cx| socket.poll_shutdown(cx))
    }
}

/// Drives its connection as it is read. When it is let go, the connection waits for the next request.
struct ResponseBody {
    incoming: Option<Incoming>,
    wire: Option<Box<Wire>>,
    home: Arc<Connections>,
}

impl Stream for ResponseBody {
    type Item = Result<Bytes, Box<dyn std::error::Error + Send + Sync>>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        loop {
            let (Some(wire), Some(incoming)) = (&mut this.wire, &mut this.incoming) else { return Poll::Ready(None) };
            match std::task::ready!(wire.drive(cx, |inner| Pin::new(&mut *incoming).poll_frame(inner))) {
                Some(Some(Ok(frame))) => {
                    if let Ok(bytes) = frame.into_data() {
                        return Poll::Ready(Some(Ok(bytes)));
                    }
                }
                Some(Some(Err(error))) => {
                    this.wire = None;
                    return Poll::Ready(Some(Err(error.into())));
                }
                Some(None) => this.incoming = None,
                None => {
                    this.wire = None;
                    return Poll::Ready(Some(Err("the connection was closed".into())));
                }
            }
        }
    }
}

impl Drop for ResponseBody {
    fn drop(&mut self) {
        if let Some(mut wire) = self.wire.take() {
            wire.rest = self.incoming.take();
            self.home.put(wire);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::StreamExt;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    const HEAD: &str = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";

    async fn server() -> (TcpListener, Arc<Connections>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/mcp?x=1", listener.local_addr().unwrap());
        let network = bowline_env::Env::default().network;
        (listener, Connections::to(&url.parse().unwrap(), Reach::Anywhere, &network).unwrap())
    }

    /// Reads one request, whose body is `{}`.
    async fn request(socket: &mut TcpStream) -> String {
        let mut read = Vec::new();
        while !read.ends_with(b"{}") {
            assert!(socket.read_buf(&mut read).await.unwrap() > 0, "it was closed");
        }
        String::from_utf8(read).unwrap()
    }

    async fn post(to: &Arc<Connections>) -> Result<reqwest::Response, SendError> {
        to.post(HeaderMap::new(), Bytes::from_static(b"{}")).await
    }

    fn posting(to: &Arc<Connections>) -> tokio::task::JoinHandle<String> {
        let to = to.clone();
        tokio::spawn(async move {
            let Ok(response) = post(&to).await else { panic!("it is answered") };
            response.text().await.unwrap()
        })
    }

    #[tokio::test]
    async fn one_connection_does_for_one_request_after_the_other_and_another_for_one_at_the_same_time() {
        let (listener, to) = server().await;
        let first = posting(&to);
        let (mut socket, _) = listener.accept().await.unwrap();
        let said = request(&mut socket).await;
        assert!(said.starts_with("POST /mcp?x=1 HTTP/1.1\r\n") && said.contains("\r\nhost: 127.0.0.1:"), "{said}");
        let second = posting(&to);
        let (mut other, _) = listener.accept().await.unwrap();
        request(&mut other).await;
        socket.write_all(format!("{HEAD}3\r\none\r\n").as_bytes()).await.unwrap();
        socket.write_all(b"2\r\n!!\r\n0\r\n\r\n").await.unwrap();
        assert_eq!(first.await.unwrap(), "one!!");
        let third = posting(&to);
        request(&mut socket).await;
        socket.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nthree").await.unwrap();
        assert_eq!(third.await.unwrap(), "three");
        other.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await.unwrap();
        assert_eq!(second.await.unwrap(), "");
        assert_eq!(to.lock().len(), 2);
    }

    #[tokio::test]
    async fn what_nobody_read_of_a_response_is_passed_over_if_it_has_come_and_costs_the_connection_if_not() {
        let (listener, to) = server().await;
        for (rest, is_kept) in [("3\r\nyes\r\n0\r\n\r\n", true), ("3\r\nyes\r\n", false)] {
            let reading = tokio::spawn({
                let to = to.clone();
                async move {
                    let Ok(response) = post(&to).await else { panic!("it is answered") };
                    // As who has its answer goes away from the stream.
                    let first = response.bytes_stream().next().await;
                    first.unwrap().unwrap()
                }
            });
            let (mut socket, _) = listener.accept().await.unwrap();
            request(&mut socket).await;
            socket.write_all(format!("{HEAD}3\r\none\r\n").as_bytes()).await.unwrap();
            assert_eq!(reading.await.unwrap(), "one");
            socket.write_all(rest.as_bytes()).await.unwrap();
            // Until the runtime has seen that it came, nothing has.
            let came = async {
                while !to.lock().back_mut().is_some_and(|(_, wire)| wire.is_ready()) {
                    tokio::task::yield_now().await;
                }
            };
            assert_eq!(tokio::time::timeout(Duration::from_millis(300), came).await.is_ok(), is_kept, "{rest}");
            assert_eq!(to.take().is_some(), is_kept);
        }
    }

    #[tokio::test]
    async fn a_request_on_a_connection_that_the_server_has_closed_goes_out_on_another() {
        let (listener, to) = server().await;
        let first = posting(&to);
        let (mut socket, _) = listener.accept().await.unwrap();
        request(&mut socket).await;
        socket.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
        first.await.unwrap();
        drop(socket);
        // Until the runtime has seen that, it is as good as any.
        while to.lock().back_mut().unwrap().1.is_ready() {
            tokio::task::yield_now().await;
        }
        let second = posting(&to);
        let (mut socket, _) = listener.accept().await.unwrap();
        request(&mut socket).await;
        socket.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await.unwrap();
        assert_eq!(second.await.unwrap(), "ok");
    }

    #[tokio::test]
    async fn it_is_known_whether_a_request_that_failed_had_left() {
        let (listener, to) = server().await;
        let asked = tokio::spawn({
            let to = to.clone();
            async move { post(&to).await.err().unwrap() }
        });
        let (mut socket, _) = listener.accept().await.unwrap();
        request(&mut socket).await;
        drop(socket);
        let error = asked.await.unwrap();
        assert!(!error.is_unsent, "{}", error.why);
        drop(listener);
        let error = post(&to).await.err().unwrap();
        assert!(error.is_unsent && error.why.contains("refused"), "{}", error.why);
    }

    #[test]
    fn only_what_needs_no_more_than_a_socket_is_sent_this_way() {
        let network = bowline_env::Env::default().network;
        let to = |url: &str| Connections::to(&url.parse().unwrap(), Reach::Anywhere, &network);
        for (url, authority, host) in
            [("http://localhost/x", "localhost", "localhost"), ("http://[::1]:8080/", "[::1]:8080", "::1")]
        {
            let to = to(url).unwrap();
            assert_eq!((to.authority.to_str().unwrap(), to.host.as_str()), (authority, host));
        }
        for url in [
            "https://localhost/",
            "http://user@localhost/",
            "http://:word@127.0.0.1/",
            "http://a.example/",
            "http://10.0.0.1/",
        ] {
            assert!(to(url).is_none(), "{url}");
        }
    }

    #[tokio::test]
    async fn an_address_that_may_not_be_reached_is_not_dialled() {
        let (listener, _) = server().await;
        let network = bowline_env::Env::default().network;
        for host in ["127.0.0.1", "localhost"] {
            let url = format!("http://{host}:{}/", listener.local_addr().unwrap().port());
            let to = Connections::to(&url.parse().unwrap(), Reach::Public, &network).unwrap();
            assert!(post(&to).await.err().unwrap().is_unsent, "{host}");
        }
    }
}
