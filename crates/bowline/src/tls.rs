//! TLS: the certificate that the settings name, looked at again now and then, so that a renewed one needs no restart.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use bowline_env::clock;
use bowline_env::files::{Files, Look};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::config::TlsConfig;

/// The files are checked this often, when a client connects.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A chain of certificates has some kilobytes.
const PEM_BYTES_MAX: u64 = 4 << 20;

/// What serves TLS.
pub struct Tls {
    paths: TlsConfig,
    files: Arc<dyn Files>,
    current: Mutex<Current>,
}

struct Current {
    config: Arc<ServerConfig>,
    /// How the files looked when they were read.
    look: Option<[Look; 2]>,
    looked: Instant,
}

impl Tls {
    pub fn load(paths: TlsConfig, files: &Arc<dyn Files>) -> anyhow::Result<Tls> {
        let look = look(&**files, &paths);
        let current = Current { config: read(&**files, &paths)?, look, looked: clock::now() };
        Ok(Tls { paths, files: files.clone(), current: Mutex::new(current) })
    }

    /// For the next connection.
    pub async fn acceptor(&self) -> TlsAcceptor {
        self.look().await;
        TlsAcceptor::from(self.current().config.clone())
    }

    /// Takes a renewed certificate, once a second at most, on a thread that may wait for a slow disk. While its two files do
    /// not fit each other, the old one stays.
    async fn look(&self) {
        let (files, paths, known) = {
            let mut current = self.current();
            if clock::since(current.looked) < LOOK_EVERY {
                return;
            }
            current.looked = clock::now();
            (self.files.clone(), self.paths.clone(), current.look)
        };
        let renewed = tokio::task::spawn_blocking(move || {
            let look = look(&*files, &paths).filter(|look| Some(*look) != known)?;
            Some(read(&*files, &paths).map(|config| (config, look)))
        });
        // It fails only when the runtime ends.
        match renewed.await.ok().flatten() {
            None => {}
            Some(Ok((config, look))) => {
                let mut current = self.current();
                (current.config, current.look) = (config, Some(look));
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
        write!(f, "Tls({})", self.paths.cert.display())
    }
}

fn look(files: &dyn Files, paths: &TlsConfig) -> Option<[Look; 2]> {
    Some([files.look(&paths.cert).ok()?, files.look(&paths.key).ok()?])
}

fn read(files: &dyn Files, paths: &TlsConfig) -> anyhow::Result<Arc<ServerConfig>> {
    let cert = paths.cert.display();
    let chain = certificates(files, &paths.cert)
        .with_context(|| format!("`tls.cert`: {cert} cannot be read as certificates in PEM"))?;
    anyhow::ensure!(!chain.is_empty(), "`tls.cert`: there is no certificate in {cert}");
    let key = private_key(files, &paths.key)
        .with_context(|| format!("`tls.key`: {} cannot be read as a private key in PEM", paths.key.display()))?;
    let mut config = ServerConfig::builder_with_provider(bowline_env::tls::provider())
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .with_context(|| format!("`tls.key` does not fit the certificate in {cert}"))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

fn certificates(files: &dyn Files, path: &Path) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    Ok(CertificateDer::pem_slice_iter(&files.read(path, PEM_BYTES_MAX)?).collect::<Result<_, _>>()?)
}

fn private_key(files: &dyn Files, path: &Path) -> anyhow::Result<PrivateKeyDer<'static>> {
    Ok(PrivateKeyDer::from_pem_slice(&files.read(path, PEM_BYTES_MAX)?)?)
}
