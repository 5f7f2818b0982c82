//! One connection of HTTP/1.1, on which nothing happens but while a task drives it.
//!
//! The task that waits for an answer drives the connection itself: with a task for each connection, every request would be handed from
//! one task to another and back, which costs more than a call to a server on this machine.

use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body as _;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use hyper::client::conn::http1::{Connection, SendRequest, handshake};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::net::Socket;

/// What is read of a response that is not wanted any more: an end, and little more.
const REST_BYTES_MAX: usize = 64 << 10;

type Body = Full<Bytes>;

pub(super) struct HttpWire {
    sender: SendRequest<Body>,
    connection: Connection<TokioIo<CallersSocket>, Body>,
    is_over: bool,
    turn: Arc<Turn>,
    waker: Waker,
    /// What is not wanted any more of the last response.
    rest: Option<Incoming>,
    /// It leads to a proxy, which needs the whole address of each request.
    pub to_proxy: bool,
}

impl HttpWire {
    pub async fn new(socket: Socket, to_proxy: bool) -> hyper::Result<Box<HttpWire>> {
        let turn = Arc::new(Turn { again: AtomicBool::new(false), caller: Mutex::new(Waker::noop().clone()) });
        let (sender, connection) = handshake(TokioIo::new(CallersSocket { socket, turn: turn.clone() })).await?;
        let waker = turn.clone().into();
        Ok(Box::new(HttpWire { sender, connection, is_over: false, turn, waker, rest: None, to_proxy }))
    }

    /// The head of the response. `None` if the connection ended and hyper says nothing of the request.
    pub async fn send(
        &mut self,
        request: Request<Body>,
    ) -> Option<Result<Response<Incoming>, TrySendError<Request<Body>>>> {
        let mut sent = pin!(self.sender.try_send_request(request));
        std::future::poll_fn(|cx| self.drive(cx, |inner| sent.as_mut().poll(inner))).await
    }

    /// Drives it until `look` finds something. `None` if it has ended and nothing is found.
    pub fn drive<T>(&mut self, cx: &Context<'_>, mut look: impl FnMut(&mut Context<'_>) -> Poll<T>) -> Poll<Option<T>> {
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

    /// The rest of a response is to be passed over before the next request.
    pub fn leave(&mut self, rest: Option<Incoming>) {
        self.rest = rest;
        // What comes on it now wakes no task.
        self.turn.caller().clone_from(Waker::noop());
    }

    /// Whether all that the last response still had is read, as far as it has come.
    fn is_drained(&mut self) -> bool {
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
        true
    }

    /// Whether the next request can go out on it at once.
    pub fn is_ready(&mut self) -> bool {
        // The second one looks whether the server has closed it.
        self.is_drained()
            && self.drive(&Context::from_waker(Waker::noop()), |_| Poll::<()>::Pending).is_pending()
            && self.sender.is_ready()
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
