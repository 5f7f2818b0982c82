//! Requests from a backend that are being answered, so that the backend can cancel them.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

use crate::fields::{Fields, Raw};
use crate::message::RpcId;

pub(super) const TAKEN_BACK: &str = "notifications/cancelled";

#[derive(Default)]
pub(super) struct AskedByBackend(Mutex<HashMap<RpcId, CancellationToken>>);

impl AskedByBackend {
    /// The token fires when the request is taken back.
    pub fn begin(&self, id: &RpcId) -> CancellationToken {
        let token = CancellationToken::new();
        self.lock().insert(id.clone(), token.clone());
        token
    }

    pub fn end(&self, id: &RpcId) {
        self.lock().remove(id);
    }

    /// What the parameters of [`TAKEN_BACK`] name.
    pub fn take_back(&self, params: Option<&Raw>) {
        let fields = Fields::of(params.map(|raw| &**raw));
        let Some(id) = fields.get("requestId").and_then(|raw| RpcId::parse(raw.get())) else { return };
        if let Some(token) = self.lock().remove(&id) {
            token.cancel();
        }
    }

    /// Drops all of them: no answer is wanted any more.
    pub fn take_all_back(&self) {
        for (_, token) in self.lock().drain() {
            token.cancel();
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<RpcId, CancellationToken>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
