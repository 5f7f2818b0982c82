//! The way to a server: addresses that may not be dialled, TLS, and proxies.

use futures_util::FutureExt;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{RootCertStore, ServerConfig};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use super::client_tests::{endpoint, options, post, posting, request};
use super::*;
use crate::net::OsNetwork;

const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

fn client(route: Route) -> Http1Client {
    let network: Arc<dyn Network> = Arc::new(OsNetwork);
    let mut client = Http1Client::new(&network, HttpOptions { route, ..options() });
    client.tls = tls::Trust::of(authority(), Alpn::Http1);
    client
}

fn authority() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(include_bytes!("test_tls/authority.pem")).unwrap()).unwrap();
    roots
}

/// A server whose certificate is for `127.0.0.1` and `server.test`.
fn acceptor() -> TlsAcceptor {
    let pem = include_bytes!("test_tls/server.pem");
    let certificates = CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().unwrap();
    let config = ServerConfig::builder_with_provider(tls::provider()).with_safe_default_protocol_versions().unwrap();
    let config =
        config.with_no_client_auth().with_single_cert(certificates, PrivateKeyDer::from_pem_slice(pem).unwrap());
    let mut config = config.unwrap();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    TlsAcceptor::from(Arc::new(config))
}

#[derive(Debug)]
struct Forbidding;

impl AddressGuard for Forbidding {
    fn check(&self, _: IpAddr) -> Result<(), String> {
        Err("no such place".into())
    }

    fn choose(&self, found: io::Result<Vec<SocketAddr>>) -> Result<Vec<SocketAddr>, String> {
        assert!(!found.unwrap().is_empty());
        Err("no such place".into())
    }
}

#[tokio::test]
async fn an_address_that_may_not_be_reached_is_not_dialled() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let client = client(Route::Guarded(Arc::new(Forbidding)));
    for url in [format!("http://127.0.0.1:{port}/"), format!("https://localhost:{port}/")] {
        let error = post(&client, &endpoint(&url)).await.err().unwrap();
        assert!(error.is_unsent && error.why == "no such place", "{error}");
    }
    // Nothing listens there.
    assert!(listener.accept().now_or_never().is_none());
}

#[tokio::test]
async fn a_server_with_a_certificate_that_is_trusted_is_spoken_to() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let to = endpoint(&format!("https://{}/x", listener.local_addr().unwrap()));
    let client = client(Route::Direct);
    let mut socket = None;
    // The second one goes out on the same connection.
    for _ in 0..2 {
        let asking = posting(&client, &to);
        if socket.is_none() {
            let accepted = acceptor().accept(listener.accept().await.unwrap().0).await.unwrap();
            assert_eq!(accepted.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
            socket = Some(accepted);
        }
        let socket = socket.as_mut().unwrap();
        assert!(request(socket).await.starts_with("POST /x HTTP/1.1\r\n"));
        socket.write_all(OK).await.unwrap();
        socket.flush().await.unwrap();
        assert_eq!(asking.await.unwrap(), "ok");
    }
}

#[tokio::test]
async fn an_impostor_gets_nothing() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let trusting_nobody =
        Http1Client { tls: tls::Trust::of(RootCertStore::empty(), Alpn::Http1), ..client(Route::Direct) };
    for (client, host) in [(trusting_nobody, "127.0.0.1"), (client(Route::Direct), "localhost")] {
        let to = endpoint(&format!("https://{host}:{port}/"));
        let asking = tokio::spawn(async move { post(&client, &to).await.err().unwrap() });
        let accepted = acceptor().accept(listener.accept().await.unwrap().0).await;
        let error = asking.await.unwrap();
        assert!(error.is_unsent && error.why.contains("certificate"), "{error}");
        drop(accepted);
    }
}

/// A proxy that serves one connection: it opens a tunnel if it is asked for one, and answers by itself if not. The head of what it was asked.
async fn serve_as_proxy(listener: &TcpListener, tunnel_to: SocketAddr, refusal: Option<&str>) -> String {
    let mut near = BufReader::new(listener.accept().await.unwrap().0);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert!(near.read_line(&mut head).await.unwrap() > 0, "it was closed: {head}");
    }
    if let Some(status) = refusal {
        near.write_all(format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n").as_bytes()).await.unwrap();
    } else if head.starts_with("CONNECT ") {
        near.write_all(b"HTTP/1.1 200 Connection established\r\nx: y\r\n\r\n").await.unwrap();
        let mut far = TcpStream::connect(tunnel_to).await.unwrap();
        tokio::spawn(async move { tokio::io::copy_bidirectional(&mut near, &mut far).await });
    } else {
        near.read_exact(&mut [0; 2]).await.unwrap();
        near.write_all(OK).await.unwrap();
    }
    head
}

#[tokio::test]
async fn a_proxy_is_asked_with_the_whole_address_or_for_a_tunnel() {
    let (proxy, server) =
        (TcpListener::bind("127.0.0.1:0").await.unwrap(), TcpListener::bind("127.0.0.1:0").await.unwrap());
    let (at, behind) = (proxy.local_addr().unwrap(), server.local_addr().unwrap());
    let named = format!("http://name:word@{at}");
    let client = client(Route::Proxied(Proxies::all(&named, "direct.example,127.0.0.1")));

    // Without TLS the proxy itself is asked. It alone resolves the name, which does not exist here.
    let asking = posting(&client, &endpoint("http://plain.test:81/x?y=1"));
    let head = serve_as_proxy(&proxy, behind, None).await;
    assert!(head.starts_with("POST http://plain.test:81/x?y=1 HTTP/1.1\r\n"), "{head}");
    for line in ["host: plain.test:81", "proxy-authorization: Basic bmFtZTp3b3Jk"] {
        assert!(head.contains(&format!("\r\n{line}\r\n")), "{head}");
    }
    assert_eq!(asking.await.unwrap(), "ok");

    // With TLS it passes bytes on, and the server does not hear of the proxy's credentials.
    let asking = posting(&client, &endpoint("https://server.test/x"));
    let head = serve_as_proxy(&proxy, behind, None).await;
    assert!(head.starts_with("CONNECT server.test:443 HTTP/1.1\r\n"), "{head}");
    for line in ["host: server.test:443", "proxy-authorization: Basic bmFtZTp3b3Jk", "user-agent: test/1"] {
        assert!(head.contains(&format!("\r\n{line}\r\n")), "{head}");
    }
    let mut socket = acceptor().accept(server.accept().await.unwrap().0).await.unwrap();
    let sent = request(&mut socket).await;
    assert!(sent.starts_with("POST /x HTTP/1.1\r\n") && !sent.contains("proxy"), "{sent}");
    socket.write_all(OK).await.unwrap();
    socket.flush().await.unwrap();
    assert_eq!(asking.await.unwrap(), "ok");

    // What is excepted is dialled.
    let asking = posting(&client, &endpoint(&format!("http://{behind}/x")));
    let (mut socket, _) = server.accept().await.unwrap();
    let sent = request(&mut socket).await;
    assert!(sent.starts_with("POST /x HTTP/1.1\r\n") && !sent.contains("proxy"), "{sent}");
    socket.write_all(OK).await.unwrap();
    assert_eq!(asking.await.unwrap(), "ok");
}

#[tokio::test]
async fn a_proxy_that_opens_no_tunnel_has_let_nothing_out() {
    let proxy = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = proxy.local_addr().unwrap();
    let client = client(Route::Proxied(Proxies::all(&at.to_string(), "")));
    for (status, why) in [("407 Proxy Authentication Required", "credentials"), ("502 Bad Gateway", "502")] {
        let asking = tokio::spawn({
            let client = client.clone();
            async move { post(&client, &endpoint("https://server.test/s3cret")).await.err().unwrap() }
        });
        serve_as_proxy(&proxy, at, Some(status)).await;
        let error = asking.await.unwrap();
        assert!(error.is_unsent && error.why.contains(why) && !error.why.contains("s3cret"), "{error}");
    }
    let other = Http1Client {
        options: HttpOptions { route: Route::Proxied(Proxies::all("socks5://127.0.0.1:1", "")), ..options() },
        ..client
    };
    let error = post(&other, &endpoint("http://server.test/")).await.err().unwrap();
    assert!(error.is_unsent && error.why.contains("no other is spoken"), "{error}");
}
