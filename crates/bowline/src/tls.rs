//! TLS: the certificate that the settings name, looked at again now and then, so that a renewed one needs no restart.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use anyhow::Context;
use bowline_env::clock;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::config::TlsConfig;

/// The files are looked at this often, when somebody connects.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What serves TLS.
pub struct Tls {
    files: TlsConfig,
    current: Mutex<Current>,
}

struct Current {
    config: Arc<ServerConfig>,
    /// When the files were last changed, as far as that was seen.
    changed: Option<[SystemTime; 2]>,
    looked: Instant,
}

impl Tls {
    pub fn load(files: TlsConfig) -> anyhow::Result<Tls> {
        let changed = changed(&files);
        let current = Current { config: read(&files)?, changed, looked: clock::now() };
        Ok(Tls { files, current: Mutex::new(current) })
    }

    /// For the next connection.
    pub async fn acceptor(&self) -> TlsAcceptor {
        self.look().await;
        TlsAcceptor::from(self.current().config.clone())
    }

    /// Takes a renewed certificate, once a second at most, on a thread that may wait for a slow disk. While its two files do
    /// not fit each other, the old one stays.
    async fn look(&self) {
        let (files, known) = {
            let mut current = self.current();
            if current.looked.elapsed() < LOOK_EVERY {
                return;
            }
            current.looked = clock::now();
            (self.files.clone(), current.changed)
        };
        let renewed = tokio::task::spawn_blocking(move || {
            let changed = changed(&files).filter(|changed| Some(*changed) != known)?;
            Some(read(&files).map(|config| (config, changed)))
        });
        // It fails only when the runtime ends.
        match renewed.await.ok().flatten() {
            None => {}
            Some(Ok((config, changed))) => {
                let mut current = self.current();
                (current.config, current.changed) = (config, Some(changed));
                tracing::info!("took the renewed certificate");
            }
            Some(Err(error)) => tracing::warn!(%error, "the renewed certificate cannot be used; the old one stays"),
        }
    }

    /// Nothing panics while the lock is held, and the state is whole at every point.
    fn current(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tls({})", self.files.cert.display())
    }
}

fn changed(files: &TlsConfig) -> Option<[SystemTime; 2]> {
    let at = |path: &Path| std::fs::metadata(path).and_then(|file| file.modified()).ok();
    Some([at(&files.cert)?, at(&files.key)?])
}

fn read(files: &TlsConfig) -> anyhow::Result<Arc<ServerConfig>> {
    let cert = files.cert.display();
    let chain: Result<Vec<CertificateDer>, _> = CertificateDer::pem_file_iter(&files.cert).and_then(Iterator::collect);
    let chain = chain.with_context(|| format!("`tls.cert`: {cert} cannot be read as certificates in PEM"))?;
    anyhow::ensure!(!chain.is_empty(), "`tls.cert`: there is no certificate in {cert}");
    let key = PrivateKeyDer::from_pem_file(&files.key)
        .with_context(|| format!("`tls.key`: {} cannot be read as a private key in PEM", files.key.display()))?;
    let mut config = ServerConfig::builder_with_provider(bowline_env::tls::provider())
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .with_context(|| format!("`tls.key` does not fit the certificate in {cert}"))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}
