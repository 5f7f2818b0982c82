//! Keys behind a URL: fetched, rotated, and kept while whoever issues them is away.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::http::StatusCode;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bowline::config::{AuthMode, Config, JwtConfig, JwtKeys};
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use serde_json::{Value, json};

use crate::support;
use crate::support::{Client, PATIENCE, Server, get};

/// A key of the issuer of tokens.
struct Issued {
    kid: &'static str,
    pair: EcdsaKeyPair,
}

impl Issued {
    fn new(kid: &'static str) -> Issued {
        let (curve, random) = (&ECDSA_P256_SHA256_FIXED_SIGNING, SystemRandom::new());
        let private = EcdsaKeyPair::generate_pkcs8(curve, &random).unwrap();
        Issued { kid, pair: EcdsaKeyPair::from_pkcs8(curve, private.as_ref(), &random).unwrap() }
    }

    fn jwk(&self) -> Value {
        let (x, y) = self.pair.public_key().as_ref()[1..].split_at(32);
        let [x, y] = [x, y].map(|part| URL_SAFE_NO_PAD.encode(part));
        json!({ "kty": "EC", "alg": "ES256", "crv": "P-256", "kid": self.kid, "x": x, "y": y })
    }

    fn token(&self) -> String {
        let claims = json!({ "sub": "alice", "exp": bowline_env::clock::unix_seconds() + 600 });
        let parts = [json!({ "typ": "JWT", "alg": "ES256", "kid": self.kid }), claims];
        let message = parts.map(|part| URL_SAFE_NO_PAD.encode(part.to_string())).join(".");
        let signature = self.pair.sign(&SystemRandom::new(), message.as_bytes()).unwrap();
        format!("{message}.{}", URL_SAFE_NO_PAD.encode(signature))
    }
}

/// A server that gives out a key set, or whatever a test tells it to.
#[derive(Clone)]
struct Issuer {
    answer: Arc<Mutex<(StatusCode, String)>>,
    asked: Arc<AtomicUsize>,
    url: String,
}

impl Issuer {
    async fn start(keys: &[&Issued]) -> Issuer {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/jwks", listener.local_addr().unwrap());
        let issuer = Issuer { answer: Arc::default(), asked: Arc::default(), url };
        issuer.give_out(keys);
        let serving = issuer.clone();
        let answer = move || {
            let serving = serving.clone();
            async move {
                serving.asked.fetch_add(1, Ordering::SeqCst);
                serving.answer.lock().unwrap().clone()
            }
        };
        let app = axum::Router::new().route("/jwks", axum::routing::get(answer));
        tokio::spawn(serve(listener, app));
        issuer
    }

    fn give_out(&self, keys: &[&Issued]) {
        let set = json!({ "keys": keys.iter().map(|key| key.jwk()).collect::<Vec<_>>() });
        self.say(StatusCode::OK, &set.to_string());
    }

    fn say(&self, status: StatusCode, body: &str) {
        *self.answer.lock().unwrap() = (status, body.to_owned());
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

async fn serve(listener: tokio::net::TcpListener, app: axum::Router) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let service = hyper_util::service::TowerToHyperService::new(app.clone());
        let io = hyper_util::rt::TokioIo::new(stream);
        tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(io, service));
    }
}

fn config(url: &str, refresh: Duration) -> Config {
    let mut config = support::config();
    config.auth.mode = AuthMode::Jwt(JwtConfig {
        keys: JwtKeys::JwksUrl { url: url.parse().unwrap(), refresh },
        issuer: None,
        audience: None,
        principal_claim: "sub".into(),
        admin_claim: "admin".into(),
    });
    config.session.ownership = bowline::config::Ownership::Principal;
    config
}

const LONG: Duration = Duration::from_secs(3600);

async fn status(server: &Server, token: &str) -> u16 {
    get(server.address, "/api/chat/sessions", &[("authorization", &format!("Bearer {token}"))]).await.0
}

#[tokio::test]
async fn a_new_key_is_learnt_when_a_token_first_names_it() {
    let (old, new) = (Issued::new("old"), Issued::new("new"));
    let issuer = Issuer::start(&[&old]).await;
    let server = Server::with(config(&issuer.url, LONG)).await;
    assert_eq!((status(&server, &old.token()).await, issuer.asked()), (200, 1), "known from the start");
    issuer.give_out(&[&old, &new]);
    assert_eq!((status(&server, &new.token()).await, issuer.asked()), (200, 2), "at the first try");
    // Over a WebSocket too, also as its first frame.
    issuer.give_out(&[&Issued::new("third"), &new]);
    let mut client = Client::dial(server.address, &[]).await.unwrap();
    client.expect("system.connected").await;
    client.send(json!({ "event": "user.authenticate", "content": { "token": new.token() } })).await;
    assert_eq!(client.expect("system.notice").await["metadata"]["principal"], "alice");
    assert_eq!(issuer.asked(), 2, "a known key is not asked for");
    server.stop().await;
}

#[tokio::test]
async fn made_up_keys_are_not_asked_for_without_end() {
    let (real, made_up) = (Issued::new("real"), Issued::new("made up"));
    let issuer = Issuer::start(&[&real]).await;
    let server = Server::with(config(&issuer.url, LONG)).await;
    for _ in 0..20 {
        assert_eq!(status(&server, &made_up.token()).await, 401);
    }
    assert!((2..=6).contains(&issuer.asked()), "{} fetches", issuer.asked());
    assert_eq!(status(&server, &real.token()).await, 200);
    server.stop().await;
}

#[tokio::test]
async fn the_set_is_fetched_again_by_itself_and_a_key_that_is_taken_out_counts_no_more() {
    let (old, new) = (Issued::new("old"), Issued::new("new"));
    let issuer = Issuer::start(&[&old]).await;
    let server = Server::with(config(&issuer.url, Duration::from_millis(50))).await;
    assert_eq!(status(&server, &old.token()).await, 200);
    let bearer = format!("Bearer {}", old.token());
    let mut connected = Client::dial(server.address, &[("authorization", &bearer)]).await.unwrap();
    connected.expect("system.connected").await;
    issuer.give_out(&[&new]);
    let asked = issuer.asked();
    let again = async {
        while issuer.asked() < asked + 2 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, again).await.expect("it asks again");
    assert_eq!((status(&server, &old.token()).await, status(&server, &new.token()).await), (401, 200));
    // What it had opened ends too.
    assert_eq!(connected.refusal().await.0, "UNAUTHORIZED");
    assert_eq!(connected.closed().await, Some(4203));
    server.stop().await;
}

#[tokio::test]
async fn the_last_good_set_stays_in_use_whatever_the_url_says() {
    let key = Issued::new("k");
    let issuer = Issuer::start(&[&key]).await;
    let server = Server::with(config(&issuer.url, Duration::from_millis(20))).await;
    let huge = json!({ "keys": [], "padding": "x".repeat(1 << 20) }).to_string();
    for (status_code, body) in [
        (StatusCode::INTERNAL_SERVER_ERROR, ""),
        (StatusCode::OK, "{ half"),
        (StatusCode::OK, r#"{"keys":[]}"#),
        (StatusCode::OK, huge.as_str()),
        (StatusCode::FOUND, ""),
    ] {
        issuer.say(status_code, body);
        let asked = issuer.asked();
        let again = async {
            while issuer.asked() < asked + 2 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, again).await.expect("it asks again");
        assert_eq!(status(&server, &key.token()).await, 200, "{status_code}");
        issuer.give_out(&[&key]);
    }
    server.stop().await;
}

#[tokio::test]
async fn a_server_whose_issuer_is_away_starts_and_lets_people_in_once_it_is_back() {
    let key = Issued::new("k");
    let issuer = Issuer::start(&[&key]).await;
    issuer.say(StatusCode::SERVICE_UNAVAILABLE, "");
    let server = Server::with(config(&issuer.url, LONG)).await;
    assert_eq!(get(server.address, "/readyz", &[]).await.0, 200);
    assert_eq!(status(&server, &key.token()).await, 401, "nobody is let in without a key");
    issuer.give_out(&[&key]);
    assert_eq!(status(&server, &key.token()).await, 200);
    server.stop().await;
}

#[tokio::test]
async fn an_issuer_that_never_answers_keeps_no_other_waiting() {
    let key = Issued::new("k");
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/jwks", listener.local_addr().unwrap());
    // It answers once, and takes every later connection without a word.
    let set = json!({ "keys": [key.jwk()] }).to_string();
    tokio::spawn(async move {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let (mut first, _) = listener.accept().await.unwrap();
        let _ = first.read(&mut [0; 4096]).await;
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", set.len());
        first.write_all(format!("{head}{set}").as_bytes()).await.unwrap();
        drop(first);
        let mut kept = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            kept.push(stream);
        }
    });
    let server = Server::with(config(&url, LONG)).await;
    let strange = Issued::new("strange").token();
    let address = server.address;
    let waits = tokio::spawn(async move {
        get(address, "/api/chat/sessions", &[("authorization", &format!("Bearer {strange}"))]).await.0
    });
    // While one waits for a key that nobody has, all others come in.
    for _ in 0..5 {
        assert_eq!(status(&server, &key.token()).await, 200);
    }
    assert!(!waits.is_finished(), "the stranger still waits");
    assert_eq!(waits.await.unwrap(), 401, "and is refused in the end");
    server.stop().await;
}
