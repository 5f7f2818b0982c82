//! TLS of our own: https and wss from the settings, our own clients over them, and a certificate that is renewed.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Instant;

use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::Command;

use crate::support::PATIENCE;
use crate::support::process::Process;

struct Files {
    cert: PathBuf,
    key: PathBuf,
}

/// A certificate for 127.0.0.1 that nobody has signed but itself.
async fn make(dir: &Path, name: &str) -> Files {
    let files = Files { cert: dir.join(format!("{name}.pem")), key: dir.join(format!("{name}.key")) };
    let mut openssl = Command::new("openssl");
    openssl.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]);
    openssl.args(["-subj", &format!("/CN={name}"), "-addext", "subjectAltName=IP:127.0.0.1"]);
    openssl.args(["-addext", "basicConstraints=critical,CA:FALSE", "-keyout"]).arg(&files.key);
    openssl.arg("-out").arg(&files.cert).stderr(Stdio::null());
    assert!(openssl.status().await.expect("openssl is installed").success());
    files
}

async fn serve(dir: &Path, files: &Files) -> Process {
    let path = |file: &Path| file.display().to_string();
    let env = [("BOWLINE_TLS__CERT", path(&files.cert)), ("BOWLINE_TLS__KEY", path(&files.key))];
    Process::start(&dir.join("data"), &env).await
}

/// Whether a client that trusts only this certificate is served.
async fn trusts(address: SocketAddr, cert: &Path) -> bool {
    let cert = reqwest::Certificate::from_pem(&std::fs::read(cert).unwrap()).unwrap();
    let client = crate::support::http_client().tls_certs_only([cert]).no_proxy().build().unwrap();
    let answer = client.get(format!("https://{address}/readyz")).send().await;
    answer.is_ok_and(|response| response.status().is_success())
}

async fn bowline(arguments: &[&str], trusted: &Path, input: &str) -> (bool, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bowline"));
    command.args(arguments).env("SSL_CERT_FILE", trusted).env_remove("SSL_CERT_DIR").env_remove("BOWLINE_TOKEN");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).await.unwrap();
    let output = tokio::time::timeout(PATIENCE, child.wait_with_output()).await.expect("it ends").unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&said).into_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_check_of_the_settings_reads_the_certificate_and_its_key() {
    let dir = tempfile::tempdir().unwrap();
    let (one, other) = (make(dir.path(), "one").await, make(dir.path(), "other").await);
    let settings = dir.path().join("bowline.toml");
    let missing = dir.path().join("missing");
    for (cert, key, complaint) in [
        (&missing, &one.key, Some("`tls.cert`")),
        (&one.cert, &missing, Some("`tls.key`")),
        (&one.cert, &other.key, Some("tls")),
        (&one.cert, &one.key, None),
    ] {
        let written = format!("[store]\nurl = \"memory:\"\n[tls]\ncert = {cert:?}\nkey = {key:?}\n");
        std::fs::write(&settings, written).unwrap();
        let check = ["config", "check", "--config", settings.to_str().unwrap()];
        let (ok, told) = bowline(&check, &one.cert, "").await;
        assert_eq!(ok, complaint.is_none(), "{told}");
        assert!(told.contains(complaint.unwrap_or_default()), "{told}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn our_own_clients_talk_to_a_server_with_tls_and_to_no_impostor() {
    let dir = TempDir::new().unwrap();
    let (ours, other) = (make(dir.path(), "ours").await, make(dir.path(), "other").await);
    let server = serve(dir.path(), &ours).await;
    let (url, ws) = (format!("https://{}", server.address), format!("wss://{}/ws", server.address));
    let (well, said) = bowline(&["chat", &ws], &ours.cert, "/echo in private\n").await;
    assert!(well && said.contains("in private"), "{said}");
    let (well, said) = bowline(&["status", "--url", &url, "--json"], &ours.cert, "").await;
    assert!(well && said.contains("\"version\""), "{said}");
    let (well, said) = bowline(&["status", "--url", &url], &other.cert, "").await;
    assert!(!well && said.contains("certificate"), "{said}");
    assert_eq!(server.terminate().await, Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewed_certificate_needs_no_restart_and_a_broken_one_changes_nothing() {
    let dir = TempDir::new().unwrap();
    let (first, second) = (make(dir.path(), "first").await, make(dir.path(), "second").await);
    let used = Files { cert: dir.path().join("used.pem"), key: dir.path().join("used.key") };
    let copy = |from: &Files| {
        std::fs::copy(&from.cert, &used.cert).unwrap();
        std::fs::copy(&from.key, &used.key).unwrap();
    };
    copy(&first);
    let server = serve(dir.path(), &used).await;
    assert!(trusts(server.address, &first.cert).await);
    assert!(!trusts(server.address, &second.cert).await);
    std::fs::write(&used.cert, "no certificate").unwrap();
    assert!(trusts(server.address, &first.cert).await);
    copy(&second);
    let started = Instant::now();
    while !trusts(server.address, &second.cert).await {
        assert!(started.elapsed() < PATIENCE, "the renewed certificate is never taken");
    }
    server.kill().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_without_tls_gets_nothing_and_costs_no_other_anything() {
    let dir = TempDir::new().unwrap();
    let files = make(dir.path(), "ours").await;
    let server = serve(dir.path(), &files).await;
    let mut plain = TcpStream::connect(server.address).await.unwrap();
    plain.write_all(b"GET /readyz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    let _ = tokio::time::timeout(PATIENCE, plain.read_to_end(&mut answer)).await.expect("it is closed");
    assert!(!answer.starts_with(b"HTTP/"), "{}", String::from_utf8_lossy(&answer));
    // One that says nothing at all stays until its time is over, and others are served meanwhile.
    let _silent = TcpStream::connect(server.address).await.unwrap();
    assert!(trusts(server.address, &files.cert).await);
    server.kill().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_does_not_fit_is_reported_before_a_client_is_served() {
    let dir = TempDir::new().unwrap();
    let (ours, other) = (make(dir.path(), "ours").await, make(dir.path(), "other").await);
    let mut command = Command::new(env!("CARGO_BIN_EXE_bowline"));
    command.args(["serve", "--listen", "127.0.0.1:0", "--store", "memory:"]).env_remove("BOWLINE_TEST_SEED");
    command.env("BOWLINE_TLS__CERT", &ours.cert).env("BOWLINE_TLS__KEY", &other.key).current_dir(dir.path());
    let output = tokio::time::timeout(PATIENCE, command.output()).await.expect("it ends").unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("`tls.key` does not fit"), "{said}");
}
