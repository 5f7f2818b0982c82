//! A key set behind a URL: fetched at the start, from time to time, and when a token names a key that is not in it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use bowline_core::backoff::Backoff;
use bowline_core::bucket::Bucket;
use bowline_env::http::{Endpoint, Http1Client, HttpOptions, Proxies, Route};
use bowline_env::{Network, clock, entropy, tls};
use bytes::Bytes;
use http::{HeaderMap, Method};
use url::Url;

use super::changes::Changes;
use super::key_set::{self, KeySet, VerifyingKey};

/// An issuer of tokens answers at once or has a problem. Only tokens with an unknown key wait for it.
const FETCH_TIMEOUT: Duration = Duration::from_secs(5);
/// A set of public keys has a few kilobytes.
const SET_BYTES_MAX: usize = 256 << 10;
/// A stranger can name a key that does not exist, so what tokens ask for is fetched five times a minute at most.
const ASKED_FOR_MAX: u32 = 5;
const ASKED_FOR_EVERY: Duration = Duration::from_secs(12);
/// The first wait after a fetch that failed.
const RETRY_FIRST: Duration = Duration::from_millis(500);

/// The newest set that could be had. While the URL is away, it stays in use.
#[derive(Debug)]
pub struct RemoteKeys {
    url: Url,
    every: Duration,
    client: Http1Client,
    endpoint: Endpoint,
    keys: Mutex<KeySet>,
    /// One fetch at a time; those that waited find what the first one brought.
    asked_for: tokio::sync::Mutex<Bucket>,
    changes: Changes,
}

impl RemoteKeys {
    pub fn new(
        url: &Url,
        every: Duration,
        network: &Arc<dyn Network>,
        changes: &Changes,
    ) -> anyhow::Result<RemoteKeys> {
        // Without TLS no certificates are needed, and a small image may have none.
        if url.scheme() == "https" {
            tls::check().context("`auth.jwks_url`: HTTPS cannot be set up; are `ca-certificates` installed?")?;
        }
        let options = HttpOptions {
            user_agent: concat!("bowline/", env!("CARGO_PKG_VERSION")),
            route: Route::Proxied(Proxies::of_environment()),
            connect_timeout: FETCH_TIMEOUT,
            // The next fetch is minutes away.
            idle_max: 0,
        };
        let client = Http1Client::new(network, options);
        let endpoint = Endpoint::new(url).context("`auth.jwks_url`")?;
        let asked_for = Bucket::rare(clock::now(), ASKED_FOR_MAX, ASKED_FOR_EVERY);
        let (url, asked_for, changes) = (url.clone(), asked_for.into(), changes.clone());
        Ok(RemoteKeys { url, every, client, endpoint, keys: Mutex::default(), asked_for, changes })
    }

    pub fn find(&self, id: Option<&str>) -> Option<Arc<VerifyingKey>> {
        key_set::find(&self.keys.lock().unwrap_or_else(PoisonError::into_inner), id)
    }

    /// A token names a key that is not known: looks whether it is a new one. True if it is known now.
    pub async fn learn(&self, id: Option<&str>) -> bool {
        let mut asked_for = self.asked_for.lock().await;
        if self.find(id).is_some() {
            return true;
        }
        if asked_for.take(clock::now()).is_err() {
            return false;
        }
        self.refresh().await;
        self.find(id).is_some()
    }

    /// Fetches the set for the first time. If it cannot be had, the server starts all the same, and accepts no token until it can.
    /// False if it could not be had.
    pub async fn begin(&self) -> bool {
        self.refresh().await
    }

    /// Keeps the set new, for ever.
    pub async fn follow(&self) {
        let mut backoff = Backoff::new(RETRY_FIRST, self.every, 0.25);
        let mut failed = self.keys.lock().unwrap_or_else(PoisonError::into_inner).is_empty();
        loop {
            let pause = if failed { backoff.next(entropy::chance()) } else { self.every };
            tokio::time::sleep(pause).await;
            failed = !self.refresh().await;
            if !failed {
                backoff = Backoff::new(RETRY_FIRST, self.every, 0.25);
            }
        }
    }

    async fn refresh(&self) -> bool {
        let fetched = tokio::time::timeout(FETCH_TIMEOUT, self.fetch()).await;
        match fetched.unwrap_or_else(|_elapsed| Err(anyhow::anyhow!("it does not answer in time"))) {
            Ok(keys) => {
                tracing::debug!(url = %self.url, keys = keys.len(), "fetched the key set");
                *self.keys.lock().unwrap_or_else(PoisonError::into_inner) = keys;
                self.changes.announce();
                true
            }
            Err(error) => {
                tracing::warn!(url = %self.url, error = %format!("{error:#}"), "the key set cannot be fetched; the last keys stay in use");
                false
            }
        }
    }

    async fn fetch(&self) -> anyhow::Result<KeySet> {
        let mut response = self.client.send(Method::GET, &self.endpoint, HeaderMap::new(), Bytes::new()).await?;
        anyhow::ensure!(response.status().is_success(), "it answers with {}", response.status());
        let mut body = Vec::new();
        while let Some(piece) = response.chunk().await? {
            body.extend_from_slice(&piece);
            anyhow::ensure!(body.len() <= SET_BYTES_MAX, "it is larger than {SET_BYTES_MAX} bytes");
        }
        key_set::read(std::str::from_utf8(&body).context("it is not text")?)
    }
}
