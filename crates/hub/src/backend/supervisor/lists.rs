//! What a backend offers: fetched when it is time, one list beside the other, and told where it differs.

use std::sync::Arc;
use std::time::Duration;

use bowline_core::backend::Generation;
use bowline_env::{clock, entropy};
use futures_util::future::join_all;

use super::{Note, Supervisor};
use crate::backend::{BackendEvent, Lists};
use crate::call::{BackendCall, CallEnding};
use crate::catalogue::{FetchedList, ListKind, mirrored_headers};
use crate::fields::{Fields, Raw};
use crate::message::{self, BYTES_MAX};
use crate::upstream::Transport;

/// How long a list may take to be fetched.
const FETCH_TIMEOUT: Duration = Duration::from_secs(30);
/// More pages than this are a backend that counts in circles.
const PAGES_MAX: usize = 100;
const ENTRIES_MAX: usize = 10_000;
/// All pages of one list together; what one message may have.
const LIST_BYTES_MAX: usize = BYTES_MAX;

impl Supervisor {
    pub(super) fn want_lists(&mut self) {
        if self.listing.handle_wanted(clock::now()) {
            self.fetch();
        }
    }

    pub(super) fn fetch(&mut self) {
        let Some((generation, transport)) = self.dispatcher.live() else { return self.listing.reset() };
        let notes = self.notes.clone();
        tokio::spawn(async move {
            // One that is not answered holds up none of the others.
            let groups = ListKind::GROUPS.map(|kinds| {
                let (transport, notes) = (&transport, &notes);
                async move {
                    let fetched = kinds.iter().map(|kind| fetch_one(transport, *kind, FETCH_TIMEOUT));
                    let _ = notes.send(Note::Listed(generation, join_all(fetched).await)).await;
                }
            });
            join_all(groups).await;
            let _ = notes.send(Note::Fetched(generation)).await;
        });
    }

    pub(super) fn listed(&mut self, generation: Generation, mut fetched: Vec<FetchedList>) {
        if !self.dispatcher.is_live(generation) {
            return;
        }
        for (_, came) in &mut fetched {
            if let Err(why) = came {
                *why = self.secrets.hide(std::mem::take(why));
            }
        }
        let catalogue = self.snapshot.borrow().catalogue.with(fetched);
        let changes = self.snapshot.borrow().catalogue.changes(&catalogue);
        self.snapshot.send_modify(|now| {
            now.catalogue = Arc::new(catalogue);
            if now.lists != Lists::Fetched {
                now.lists = Lists::Arriving;
            }
        });
        for method in changes {
            // If the hub's queue is full it is far behind, and will look at the lists anyway.
            let _ = self.context.events.try_send((self.key.clone(), BackendEvent::ListChanged(method)));
        }
    }

    pub(super) fn fetched(&mut self, generation: Generation) {
        if self.dispatcher.is_live(generation) {
            let whole = self.snapshot.borrow().catalogue.is_whole();
            self.listing.handle_fetched(clock::now(), whole, entropy::chance());
            self.snapshot.send_modify(|now| {
                now.lists = Lists::Fetched;
                now.fetches += 1;
            });
        }
    }
}

/// Fetches one of the lists. A backend that does not say that it has it has an empty one.
async fn fetch_one(transport: &Transport, kind: ListKind, patience: Duration) -> FetchedList {
    if !Fields::of(Some(&transport.facts().capabilities)).has(kind.capability()) {
        return (kind, Ok(Vec::new()));
    }
    let mut fetched = match tokio::time::timeout(patience, fetch_list(transport, kind)).await {
        Ok(fetched) => fetched,
        Err(_) => Err(format!("{} was not answered in time", kind.method())),
    };
    if let (Ok(entries), ListKind::Tools, true) = (&mut fetched, kind, transport.mirrors_arguments()) {
        entries.retain(is_sound);
    }
    (kind, fetched)
}

/// A tool whose headers cannot be made must not be offered; the others are not hurt by that.
fn is_sound(tool: &Raw) -> bool {
    let flaw = mirrored_headers::flaw(tool);
    if let Some(flaw) = &flaw {
        let name = Fields::of(Some(tool)).text("name").unwrap_or_default();
        tracing::warn!(tool = name, %flaw, "a tool is left out");
    }
    flaw.is_none()
}

async fn fetch_list(transport: &Transport, kind: ListKind) -> Result<Vec<Raw>, String> {
    let mut entries = Vec::new();
    let mut bytes = 0;
    let mut cursor: Option<String> = None;
    for _ in 0..PAGES_MAX {
        let mut params = Fields::default();
        if let Some(cursor) = &cursor {
            params.put("cursor", cursor);
        }
        let params = (!params.is_empty()).then(|| params.to_raw());
        let result = match transport.call(&BackendCall::of_hub(kind.method(), params)).await {
            CallEnding::Answered { answer: Ok(result), .. } => Fields::of(Some(&result)),
            // A server that has resources need not have templates.
            CallEnding::Answered { answer: Err(error), .. }
                if message::code_of(&error) == message::METHOD_NOT_FOUND =>
            {
                break;
            }
            CallEnding::Answered { answer: Err(error), .. } => return Err(message::message_of(&error)),
            CallEnding::NotExecuted(why) | CallEnding::Refused { why, .. } | CallEnding::Broken(why) => {
                return Err(why);
            }
        };
        let Some(page) = result.read::<Vec<Raw>>(kind.member()) else {
            return Err(format!("the answer to {} has no list `{}`", kind.method(), kind.member()));
        };
        bytes += page.iter().map(|entry| entry.get().len()).sum::<usize>();
        if bytes > LIST_BYTES_MAX {
            return Err(format!("the list `{}` has more than {LIST_BYTES_MAX} bytes", kind.member()));
        }
        entries.extend(page);
        cursor = result.text("nextCursor");
        if cursor.is_none() || entries.len() >= ENTRIES_MAX {
            break;
        }
    }
    entries.truncate(ENTRIES_MAX);
    Ok(entries)
}
