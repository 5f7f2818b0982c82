//! The client's end of TLS: certificates that this machine trusts.

use std::sync::Arc;

use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// Why no connection with TLS can be made from here.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TlsError {
    #[error("no certificate is trusted here: install `ca-certificates`, or name a file with SSL_CERT_FILE")]
    NoCertificates,
    #[error(transparent)]
    Rustls(#[from] tokio_rustls::rustls::Error),
}

pub(crate) fn connector() -> Result<TlsConnector, TlsError> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    let (accepted, _) = roots.add_parsable_certificates(found.certs);
    if accepted == 0 {
        return Err(TlsError::NoCertificates);
    }
    let config = ClientConfig::builder_with_provider(bowline_env::tls::provider())
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}
