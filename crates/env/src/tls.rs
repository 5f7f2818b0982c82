//! TLS: its cryptography, chosen once for the whole process (*ring*, which needs no build system of its own), and the
//! client's end of it.

use std::io;
use std::sync::Arc;

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
    let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    let (accepted, _) = roots.add_parsable_certificates(found.certs);
    if accepted == 0 {
        return Err(io::Error::other(
            "no certificate is trusted here: install `ca-certificates`, or name a file with SSL_CERT_FILE",
        ));
    }
    let config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Box::new(TlsConnector::from(Arc::new(config)).connect(name, socket).await?))
}

/// The beginning of every HTTP client: without a provider, building one with TLS would panic.
pub fn http_client() -> reqwest::ClientBuilder {
    provider();
    #[allow(clippy::disallowed_methods, reason = "this is the one place that begins an HTTP client")]
    reqwest::Client::builder()
}
