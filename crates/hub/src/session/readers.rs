//! Who reads which stream of a session now: what is asked there is seen, and need not be asked again elsewhere.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use super::HubSession;

/// The streams that have readers.
#[derive(Default)]
pub(super) struct StreamReaders(HashMap<String, ReaderCount>);

#[derive(Default)]
struct ReaderCount {
    by: usize,
    /// The client has come back on another wire meanwhile, and was not asked again what was asked here.
    owed: bool,
}

impl StreamReaders {
    /// Whether it has a reader now. That may be a connection of which we do not know yet that it is lost; so what was asked there is
    /// owed to the client that is back, and comes once it has no reader any more.
    pub fn see(&mut self, stream: &str) -> bool {
        let read = self.0.get_mut(stream);
        read.map(|read| read.owed = true).is_some()
    }

    pub fn are_there(&self) -> bool {
        !self.0.is_empty()
    }

    fn enter(&mut self, stream: &str) {
        self.0.entry(stream.to_owned()).or_default().by += 1;
    }

    /// True if it has no reader any more, and something is owed.
    fn leave(&mut self, stream: &str) -> bool {
        let Some(read) = self.0.get_mut(stream) else { return false };
        read.by -= 1;
        let (over, owed) = (read.by == 0, read.owed);
        over && self.0.remove(stream).is_some() && owed
    }
}

/// A stream has a reader for as long as this exists.
pub struct ReadingGuard {
    session: Arc<HubSession>,
    stream: String,
}

impl ReadingGuard {
    pub fn new(session: &Arc<HubSession>, stream: &str) -> ReadingGuard {
        session.state().readers.enter(stream);
        ReadingGuard { session: session.clone(), stream: stream.to_owned() }
    }
}

impl Drop for ReadingGuard {
    fn drop(&mut self) {
        let owed = self.session.state().readers.leave(&self.stream);
        // Without a runtime there is no client left to ask.
        if let (true, Ok(runtime)) = (owed, tokio::runtime::Handle::try_current()) {
            let (session, stream) = (self.session.clone(), std::mem::take(&mut self.stream));
            runtime.spawn(async move { session.offer_left_on(&stream).await });
        }
    }
}

impl fmt::Debug for ReadingGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reading({}, {})", self.session.id, self.stream)
    }
}
