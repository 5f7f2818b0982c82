//! One client and one server: what goes over the wire, which connections are kept, and what is known of a failure.

use async_trait::async_trait;
use http::StatusCode;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use url::Url;

use super::pool::IDLE_FOR;
use super::*;
use crate::clock;
use crate::net::{Listener, OsNetwork};

const CHUNKED: &str = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
const PATIENCE: Duration = Duration::from_secs(30);

pub fn options() -> HttpOptions {
    HttpOptions { user_agent: "test/1", route: Route::Direct, connect_timeout: PATIENCE, idle_max: 64 }
}

pub fn endpoint(url: &str) -> Endpoint {
    Endpoint::new(&Url::parse(url).unwrap()).unwrap()
}

async fn server() -> (TcpListener, Http1Client, Endpoint) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let to = endpoint(&format!("http://{}/mcp?x=1", listener.local_addr().unwrap()));
    let network: Arc<dyn Network> = Arc::new(OsNetwork);
    (listener, Http1Client::new(&network, options()), to)
}

/// Reads one request, whose body is `{}`.
pub async fn request(socket: &mut (impl tokio::io::AsyncRead + Unpin)) -> String {
    let mut read = Vec::new();
    while !read.ends_with(b"{}") {
        let came = timeout(PATIENCE, socket.read_buf(&mut read)).await.expect("a request comes").unwrap();
        assert!(came > 0, "it was closed");
    }
    String::from_utf8(read).unwrap()
}

/// Waits until the other end has closed it.
async fn closed(socket: &mut (impl tokio::io::AsyncRead + Unpin)) {
    let mut rest = Vec::new();
    timeout(PATIENCE, socket.read_to_end(&mut rest)).await.expect("it is closed").unwrap();
}

pub async fn post(client: &Http1Client, to: &Endpoint) -> Result<Response, SendError> {
    client.send(Method::POST, to, HeaderMap::new(), Bytes::from_static(b"{}")).await
}

pub async fn text(mut response: Response) -> Result<String, ResponseCut> {
    let mut read = Vec::new();
    while let Some(bytes) = response.chunk().await? {
        read.extend_from_slice(&bytes);
    }
    Ok(String::from_utf8(read).unwrap())
}

pub fn posting(client: &Http1Client, to: &Endpoint) -> JoinHandle<String> {
    let (client, to) = (client.clone(), to.clone());
    tokio::spawn(async move { text(post(&client, &to).await.unwrap()).await.unwrap() })
}

#[tokio::test]
async fn one_connection_does_for_one_request_after_the_other_and_another_for_one_at_the_same_time() {
    let (listener, client, to) = server().await;
    let first = posting(&client, &to);
    let (mut socket, _) = listener.accept().await.unwrap();
    let sent = request(&mut socket).await;
    assert!(sent.starts_with("POST /mcp?x=1 HTTP/1.1\r\n") && sent.contains("\r\nhost: 127.0.0.1:"), "{sent}");
    let second = posting(&client, &to);
    let (mut other, _) = listener.accept().await.unwrap();
    request(&mut other).await;
    socket.write_all(format!("{CHUNKED}3\r\none\r\n").as_bytes()).await.unwrap();
    socket.write_all(b"2\r\n!!\r\n0\r\n\r\n").await.unwrap();
    assert_eq!(first.await.unwrap(), "one!!");
    let third = posting(&client, &to);
    request(&mut socket).await;
    socket.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nthree").await.unwrap();
    assert_eq!(third.await.unwrap(), "three");
    other.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await.unwrap();
    assert_eq!(second.await.unwrap(), "");
    assert_eq!(client.pool.len(), 2);
}

#[tokio::test]
async fn a_request_says_who_asks_and_a_callers_headers_win() {
    let (listener, client, _) = server().await;
    let address = listener.local_addr().unwrap();
    let bare = endpoint(&format!("http://{address}/"));
    let named = endpoint(&format!("http://Aladdin:open%20sesame@{address}/"));
    let own = HeaderMap::from_iter([
        (ACCEPT, HeaderValue::from_static("text/event-stream")),
        (USER_AGENT, HeaderValue::from_static("mine")),
        (AUTHORIZATION, HeaderValue::from_static("Bearer x")),
    ]);
    let length = "content-length: 2";
    for (to, headers, expected) in [
        (&bare, HeaderMap::new(), vec!["accept: */*", "user-agent: test/1", length]),
        (&named, HeaderMap::new(), vec!["authorization: Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==", length]),
        (&named, own, vec!["accept: text/event-stream", "user-agent: mine", "authorization: Bearer x", length]),
    ] {
        let asking = tokio::spawn({
            let (client, to) = (client.clone(), to.clone());
            async move { client.send(Method::POST, &to, headers, Bytes::from_static(b"{}")).await.map(drop) }
        });
        let (mut socket, _) = listener.accept().await.unwrap();
        let sent = request(&mut socket).await;
        for line in &expected {
            assert!(sent.contains(&format!("\r\n{line}\r\n")), "{line} in {sent}");
        }
        assert_eq!(
            sent.matches("\r\n").count(),
            2 + 5.max(expected.len() + 1) - usize::from(to.basic.is_none()),
            "{sent}"
        );
        socket.write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n").await.unwrap();
        asking.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn an_interim_response_is_passed_over_and_a_redirect_is_an_answer() {
    let (listener, client, to) = server().await;
    let asking = tokio::spawn(async move { post(&client, &to).await.unwrap() });
    let (mut socket, _) = listener.accept().await.unwrap();
    request(&mut socket).await;
    let redirect = "HTTP/1.1 307 Temporary Redirect\r\nlocation: http://a.example/\r\ncontent-length: 0\r\n\r\n";
    socket.write_all(format!("HTTP/1.1 103 Early Hints\r\n\r\n{redirect}").as_bytes()).await.unwrap();
    let response = asking.await.unwrap();
    assert_eq!((response.status(), response.content_length()), (StatusCode::TEMPORARY_REDIRECT, Some(0)));
}

#[tokio::test]
async fn an_answer_may_come_before_the_request_was_taken() {
    let (listener, client, to) = server().await;
    let asking = tokio::spawn(async move {
        let body = Bytes::from(vec![b'x'; 64 << 20]);
        let response = client.send(Method::POST, &to, HeaderMap::new(), body).await.unwrap();
        (response.status(), text(response).await.unwrap(), client.pool.len())
    });
    let (mut socket, _) = listener.accept().await.unwrap();
    socket.read_exact(&mut [0; 64]).await.unwrap();
    socket.write_all(b"HTTP/1.1 413 Too Large\r\ncontent-length: 8\r\n\r\ntoo much").await.unwrap();
    assert_eq!(asking.await.unwrap(), (StatusCode::PAYLOAD_TOO_LARGE, "too much".to_owned(), 0));
}

/// Answers with the beginning of a stream, of which the client reads one chunk.
async fn begun(listener: &TcpListener, client: &Http1Client, to: &Endpoint) -> (TcpStream, Response) {
    let reading = tokio::spawn({
        let (client, to) = (client.clone(), to.clone());
        async move {
            let mut response = post(&client, &to).await.unwrap();
            assert_eq!(response.chunk().await.unwrap().unwrap(), "one");
            response
        }
    });
    let (mut socket, _) = listener.accept().await.unwrap();
    request(&mut socket).await;
    socket.write_all(format!("{CHUNKED}3\r\none\r\n").as_bytes()).await.unwrap();
    (socket, reading.await.unwrap())
}

#[tokio::test]
async fn who_gives_up_a_request_or_its_response_closes_the_connection() {
    let (listener, client, to) = server().await;
    let (mut socket, response) = begun(&listener, &client, &to).await;
    drop(response);
    closed(&mut socket).await;
    let waiting = posting(&client, &to);
    let (mut socket, _) = listener.accept().await.unwrap();
    request(&mut socket).await;
    waiting.abort();
    closed(&mut socket).await;
    assert_eq!(client.pool.len(), 0);
}

#[tokio::test]
async fn the_end_of_a_response_that_is_finished_with_may_still_come() {
    let (listener, client, to) = server().await;
    let (mut socket, response) = begun(&listener, &client, &to).await;
    response.finish();
    socket.write_all(b"3\r\nyes\r\n0\r\n\r\n").await.unwrap();
    // Until the runtime has seen that it came, nothing has.
    while !client.pool.is_newest_ready() {
        tokio::task::yield_now().await;
    }
    let second = posting(&client, &to);
    request(&mut socket).await;
    socket.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await.unwrap();
    assert_eq!(second.await.unwrap(), "ok");
    let second = posting(&client, &to);
    request(&mut socket).await;
    socket.write_all(format!("{CHUNKED}2\r\nok\r\n0\r\n\r\n").as_bytes()).await.unwrap();
    assert_eq!(second.await.unwrap(), "ok");
}

#[tokio::test]
async fn what_does_not_end_by_the_next_request_costs_the_connection() {
    let (listener, client, to) = server().await;
    let (mut socket, response) = begun(&listener, &client, &to).await;
    response.finish();
    assert_eq!(client.pool.len(), 1);
    let second = posting(&client, &to);
    let (mut other, _) = listener.accept().await.unwrap();
    closed(&mut socket).await;
    request(&mut other).await;
    other.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await.unwrap();
    second.await.unwrap();
}

#[tokio::test]
async fn a_request_on_a_connection_that_the_server_has_closed_goes_out_on_another() {
    let (listener, client, to) = server().await;
    let first = posting(&client, &to);
    let (mut socket, _) = listener.accept().await.unwrap();
    request(&mut socket).await;
    socket.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
    first.await.unwrap();
    drop(socket);
    // Until the runtime has seen that, it is as good as any.
    while client.pool.is_newest_ready() {
        tokio::task::yield_now().await;
    }
    let second = posting(&client, &to);
    let (mut socket, _) = listener.accept().await.unwrap();
    request(&mut socket).await;
    socket.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await.unwrap();
    assert_eq!(second.await.unwrap(), "ok");
}

#[tokio::test]
async fn a_client_that_keeps_no_connections_closes_each() {
    let (listener, client, to) = server().await;
    let client = Http1Client::new(&client.network, HttpOptions { idle_max: 0, ..options() });
    for _ in 0..2 {
        let asking = posting(&client, &to);
        let (mut socket, _) = listener.accept().await.unwrap();
        request(&mut socket).await;
        socket.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await.unwrap();
        assert_eq!(asking.await.unwrap(), "ok");
        closed(&mut socket).await;
    }
}

#[tokio::test]
async fn it_is_known_whether_a_request_that_failed_had_left_and_its_url_is_not_told() {
    let (listener, client, _) = server().await;
    let address = listener.local_addr().unwrap();
    let to = endpoint(&format!("http://name:s3cret@{address}/s3cret?key=s3cret"));
    let asked = tokio::spawn({
        let (client, to) = (client.clone(), to.clone());
        async move { post(&client, &to).await.err().unwrap() }
    });
    let (mut socket, _) = listener.accept().await.unwrap();
    request(&mut socket).await;
    drop(socket);
    let error = asked.await.unwrap();
    assert!(!error.is_unsent, "{error}");
    drop(listener);
    let refused = post(&client, &to).await.err().unwrap();
    assert!(refused.is_unsent && refused.why.contains("refused"), "{refused}");
    for shown in [format!("{error} {error:?} {refused} {refused:?}"), format!("{client:?} {to:?}")] {
        assert!(!shown.contains("s3cret"), "{shown}");
    }
}

#[tokio::test]
async fn a_response_that_breaks_off_is_no_whole_one() {
    let (listener, client, to) = server().await;
    for head in [CHUNKED, "HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n"] {
        let asking = tokio::spawn({
            let (client, to) = (client.clone(), to.clone());
            async move { text(post(&client, &to).await.unwrap()).await }
        });
        let (mut socket, _) = listener.accept().await.unwrap();
        request(&mut socket).await;
        socket.write_all(format!("{head}3\r\none\r\n").as_bytes()).await.unwrap();
        drop(socket);
        assert!(asking.await.unwrap().is_err(), "{head}");
        assert_eq!(client.pool.len(), 0);
    }
}

/// A network in one process, on which time may be a variable. Every name leads to one address.
#[derive(Debug)]
struct Memory {
    dialled: mpsc::UnboundedSender<DuplexStream>,
    is_silent: bool,
}

#[async_trait]
impl Network for Memory {
    async fn listen(&self, _: SocketAddr) -> io::Result<Box<dyn Listener>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    async fn resolve(&self, _: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        Ok(vec![([10, 0, 0, 1], port).into()])
    }

    async fn connect(&self, _: SocketAddr) -> io::Result<Socket> {
        if self.is_silent {
            std::future::pending::<()>().await;
        }
        let (near, far) = tokio::io::duplex(64 << 10);
        self.dialled.send(far).map_err(io::Error::other)?;
        Ok(Box::new(near))
    }
}

fn memory(is_silent: bool, options: HttpOptions) -> (Http1Client, mpsc::UnboundedReceiver<DuplexStream>) {
    let (dialled, accepted) = mpsc::unbounded_channel();
    let network: Arc<dyn Network> = Arc::new(Memory { dialled, is_silent });
    (Http1Client::new(&network, options), accepted)
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_nothing_is_asked_of_is_let_go() {
    let (client, mut accepted) = memory(false, options());
    let to = endpoint("http://a.example/");
    for _ in 0..2 {
        let asking = posting(&client, &to);
        let mut far = accepted.recv().await.unwrap();
        request(&mut far).await;
        far.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
        asking.await.unwrap();
        let idle = clock::now();
        assert_eq!(client.pool.len(), 1);
        let mut rest = Vec::new();
        far.read_to_end(&mut rest).await.unwrap();
        assert_eq!(clock::since(idle), IDLE_FOR, "no request was made");
        assert_eq!(client.pool.len(), 0);
    }
}

#[tokio::test]
async fn no_more_connections_wait_than_may() {
    let (client, mut accepted) = memory(false, HttpOptions { idle_max: 2, ..options() });
    let to = endpoint("http://a.example/");
    let asking: Vec<_> = (0..4).map(|_| posting(&client, &to)).collect();
    let mut sockets = Vec::new();
    for _ in &asking {
        let mut far = accepted.recv().await.unwrap();
        request(&mut far).await;
        sockets.push(far);
    }
    for (asked, far) in asking.into_iter().zip(&mut sockets) {
        far.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
        asked.await.unwrap();
    }
    assert_eq!(client.pool.len(), 2);
    let elsewhere = posting(&client, &endpoint("http://b.example/"));
    let mut far = accepted.recv().await.unwrap();
    request(&mut far).await;
    far.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
    elsewhere.await.unwrap();
    assert_eq!(client.pool.len(), 3, "each server has its own");
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_does_not_come_about_is_given_up() {
    let limit = Duration::from_secs(10);
    for (is_silent, url) in [(true, "http://a.example/"), (false, "https://a.example/")] {
        let (mut client, _accepted) = memory(is_silent, HttpOptions { connect_timeout: limit, ..options() });
        client.tls = tls::Trust::of(rustls::RootCertStore::empty(), Alpn::Http1);
        let begun = clock::now();
        let error = post(&client, &endpoint(url)).await.err().unwrap();
        assert!(error.is_unsent && error.why.contains("in time"), "{error}");
        assert_eq!(clock::since(begun), limit);
    }
}
