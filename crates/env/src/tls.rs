//! The cryptography of TLS, chosen once for the whole process: *ring*, which needs no build system of its own.

use std::sync::Arc;

use rustls::crypto::{CryptoProvider, ring};

/// What signs, verifies and encrypts TLS connections.
pub fn provider() -> Arc<CryptoProvider> {
    if CryptoProvider::get_default().is_none() {
        // It fails only if another thread was faster, with the same provider.
        let _ = ring::default_provider().install_default();
    }
    CryptoProvider::get_default().cloned().unwrap_or_else(|| Arc::new(ring::default_provider()))
}

/// The beginning of every HTTP client: without a provider, building one with TLS would panic.
pub fn http_client() -> reqwest::ClientBuilder {
    provider();
    #[allow(clippy::disallowed_methods, reason = "this is the one place that begins an HTTP client")]
    reqwest::Client::builder()
}
