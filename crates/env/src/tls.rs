//! TLS: its cryptography, chosen once for the whole process (*ring*, which needs no build system of its own), and the
//! client's end of it.

use std::fmt;
use std::io;
use std::sync::{Arc, OnceLock};

use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;

use crate::net::Socket;

/// What signs, verifies and encrypts TLS connections.
pub fn provider() -> Arc<CryptoProvider> {
    if CryptoProvider::get_default().is_none() {
        // It fails only if another thread was faster, with the same provider.
        let _ = ring::default_provider().install_default();
    }
    CryptoProvider::get_default().cloned().unwrap_or_else(|| Arc::new(ring::default_provider()))
}

/// Speaks TLS over a connection to `host`, whose certificate must be one that this machine trusts.
pub async fn secure(host: &str, socket: Socket) -> io::Result<Socket> {
    static TRUST: OnceLock<Trust> = OnceLock::new();
    TRUST.get_or_init(|| Trust::of_machine(Alpn::Nothing)).secure(host, socket).await
}

/// Whether servers can be checked at all: an error says what this machine lacks.
pub fn check() -> io::Result<()> {
    roots().map(drop)
}

/// The certificates that this machine trusts. They are read when they are first needed, since a small image may have none.
fn roots() -> io::Result<Arc<RootCertStore>> {
    static ROOTS: OnceLock<Arc<RootCertStore>> = OnceLock::new();
    if let Some(roots) = ROOTS.get() {
        return Ok(roots.clone());
    }
    let mut roots = RootCertStore::empty();
    let (accepted, _) = roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if accepted == 0 {
        return Err(io::Error::other(
            "no certificate is trusted here: install `ca-certificates`, or name a file with SSL_CERT_FILE",
        ));
    }
    Ok(ROOTS.get_or_init(|| Arc::new(roots)).clone())
}

/// The protocol that a client offers during the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Alpn {
    Nothing,
    Http1,
}

/// Whom a client trusts, and what it remembers of servers to shorten the next handshake.
#[derive(Clone)]
pub(crate) struct Trust {
    alpn: Alpn,
    config: Arc<OnceLock<Arc<ClientConfig>>>,
}

impl Trust {
    /// The authorities of this machine.
    pub fn of_machine(alpn: Alpn) -> Trust {
        Trust { alpn, config: Arc::default() }
    }

    #[cfg(test)]
    pub fn of(roots: RootCertStore, alpn: Alpn) -> Trust {
        let config = Arc::new(config(Arc::new(roots), alpn).unwrap());
        Trust { alpn, config: Arc::new(config.into()) }
    }

    pub async fn secure(&self, host: &str, socket: Socket) -> io::Result<Socket> {
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        let config = match self.config.get() {
            Some(config) => config.clone(),
            None => {
                let made = Arc::new(config(roots()?, self.alpn)?);
                self.config.get_or_init(|| made).clone()
            }
        };
        Ok(Box::new(TlsConnector::from(config).connect(name, socket).await?))
    }
}

impl fmt::Debug for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Trust({:?})", self.alpn)
    }
}

fn config(roots: Arc<RootCertStore>, alpn: Alpn) -> io::Result<ClientConfig> {
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    if alpn == Alpn::Http1 {
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
    }
    Ok(config)
}
