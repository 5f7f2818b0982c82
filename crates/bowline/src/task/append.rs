//! What producers push: each append becomes durable once, however often it is sent.

use bowline_core::project::Imported;
use bowline_protocol::{Draft, ErrorCode, ProducerId, Refusal, Seq};
use bowline_store::Item;
use serde::{Deserialize, Serialize};
use serde_json::json;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use super::actor::TaskActor;
use super::command::{Append, Appended, Ending};
use super::ending::owed;
use super::record::keys;
use crate::node;

/// Appends of one producer that are answered as the first time when they come again. A producer sends the next one only
/// a few ahead of the last answer it has seen.
const REMEMBERED: usize = 64;

/// How far a producer has come.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Position {
    next: u64,
    recent: Vec<Taken>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Taken {
    seq: u64,
    /// The last event of the append.
    last: Seq,
    digest: String,
}

impl TaskActor {
    /// Takes appends in their order, in one commit as long as nothing is wrong with them.
    pub(super) async fn append_all(&mut self, appends: Vec<Append>) {
        let mut batch = Batch::new(self);
        for append in appends {
            match self.take(&mut batch, &append).await {
                Taking::Accepted { last } => batch.waiting.push((append, last)),
                Taking::Known(appended) => append.reply.send(Ok(appended)),
                Taking::Refused(refusal) => append.reply.send(Err(refusal)),
            }
        }
        self.store(batch).await;
    }

    async fn take(&mut self, batch: &mut Batch, append: &Append) -> Taking {
        if let Some((id, seq)) = &append.place {
            if !batch.positions.iter().any(|(known, _)| known == id) {
                match self.position(id).await {
                    Ok(position) => batch.positions.push((id.clone(), position)),
                    Err(refusal) => return Taking::Refused(refusal),
                }
            }
            let position = batch.positions.iter().find(|(known, _)| known == id).map(|(_, position)| position);
            if let Some(settled) = position.and_then(|position| self.judge(position, *seq, &append.chunks)) {
                return settled;
            }
        }
        if batch.end.is_some() || !self.record.is_running() {
            return Taking::Refused(ended());
        }
        self.import(batch, append)
    }

    /// What a place says about an append: nothing if it is the next one.
    fn judge(&self, position: &Position, seq: u64, chunks: &[Box<RawValue>]) -> Option<Taking> {
        if seq == position.next {
            return None;
        }
        if seq > position.next {
            let message = format!("`Producer-Seq` {seq} leaves a hole: {} is the next one.", position.next);
            let details = json!({ "expected": position.next });
            return Some(Taking::Refused(Refusal::new(ErrorCode::CursorAhead, message).details(details)));
        }
        self.shared.metrics.duplicates_avoided.inc();
        let Some(taken) = position.recent.iter().find(|taken| taken.seq == seq) else {
            // Too long ago to be known by its content; it is durable all the same.
            return Some(Taking::Known(Appended { last_message_id: self.cursor(self.next.prev()) }));
        };
        if taken.digest != digest(chunks) {
            let message = format!("`Producer-Seq` {seq} was used before with other chunks.");
            return Some(Taking::Refused(Refusal::new(ErrorCode::IdempotencyConflict, message)));
        }
        Some(Taking::Known(Appended { last_message_id: self.cursor(taken.last) }))
    }

    /// Turns chunks into events. If one is wrong, none of the append is taken.
    fn import(&mut self, batch: &mut Batch, append: &Append) -> Taking {
        let before = (batch.importer.clone(), batch.drafts.len());
        let bytes_max = self.shared.config.limits.event_bytes_max;
        for (place, chunk) in append.chunks.iter().enumerate() {
            let imported = if chunk.get().len() > bytes_max {
                self.shared.metrics.limits_hit.inc("limits.event_bytes_max");
                let message = format!("Chunk {place} is larger than limits.event_bytes_max ({bytes_max}).");
                Err(Refusal::new(ErrorCode::MessageTooLarge, message))
            } else {
                batch
                    .importer
                    .handle_chunk(chunk.get())
                    .map_err(|why| Refusal::field(&format!("[{place}]"), &why.to_string()))
            };
            match imported {
                Ok(Imported::Event(draft)) => batch.drafts.push(draft),
                Ok(Imported::Nothing) => {}
                Ok(Imported::End(end)) => {
                    let rest = &append.chunks[place + 1..];
                    if let Some(behind) = rest.iter().position(|chunk| !belongs_to_an_end(chunk)) {
                        (batch.importer, _) = (before.0, batch.drafts.truncate(before.1));
                        let field = format!("[{}]", place + 1 + behind);
                        return Taking::Refused(Refusal::field(&field, "stands behind the end of the stream"));
                    }
                    batch.end = Some(Ending::from(end));
                    break;
                }
                Ok(Imported::Done) => break,
                Err(refusal) => {
                    (batch.importer, _) = (before.0, batch.drafts.truncate(before.1));
                    return Taking::Refused(refusal);
                }
            }
        }
        // The terminal event, if there is one, follows at once and belongs to this append.
        let last = self.next.plus(batch.drafts.len() as u64 + u64::from(batch.end.is_some())).prev();
        if let Some((id, seq)) = &append.place
            && let Some((_, position)) = batch.positions.iter_mut().find(|(known, _)| known == id)
        {
            position.next = seq + 1;
            position.recent.push(Taken { seq: *seq, last, digest: digest(&append.chunks) });
            let excess = position.recent.len().saturating_sub(REMEMBERED);
            position.recent.drain(..excess);
        }
        Taking::Accepted { last }
    }

    async fn store(&mut self, batch: Batch) {
        let Batch { importer, drafts, positions, end, waiting } = batch;
        if waiting.is_empty() {
            return;
        }
        let items = positions
            .iter()
            .map(|(id, position)| Item::put(keys::producer(id), serde_json::to_vec(position).unwrap_or_default()));
        match self.commit(&drafts, items.collect(), self.record.clone()).await {
            Ok(_) => {
                self.importer = importer;
                self.producers.extend(positions);
                self.shared.metrics.producer_appends.inc_by(waiting.len() as u64);
                if let Some(ending) = end {
                    self.end(ending).await;
                }
                let next = self.next;
                for (append, last) in waiting {
                    // An end that could not be written yet is not durable, so its append is not either.
                    let durable =
                        if last < next { Ok(Appended { last_message_id: self.cursor(last) }) } else { Err(owed()) };
                    append.reply.send(durable);
                }
            }
            Err(refusal) => {
                for (append, _) in waiting {
                    append.reply.send(Err(refusal.clone()));
                }
            }
        }
    }

    async fn position(&self, id: &ProducerId) -> Result<Position, Refusal> {
        if let Some(known) = self.producers.get(id) {
            return Ok(known.clone());
        }
        let stored = self.shared.store.item(&self.log, &keys::producer(id)).await;
        let stored = stored.map_err(|error| node::task_refusal(&error))?;
        Ok(stored.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default())
    }
}

/// Appends that will become durable together.
struct Batch {
    importer: bowline_core::project::Importer,
    drafts: Vec<Draft>,
    positions: Vec<(ProducerId, Position)>,
    end: Option<Ending>,
    /// Who waits, and which event is the last of each.
    waiting: Vec<(Append, Seq)>,
}

impl Batch {
    fn new(actor: &TaskActor) -> Batch {
        Batch {
            importer: actor.importer.clone(),
            drafts: Vec::new(),
            positions: Vec::new(),
            end: None,
            waiting: Vec::new(),
        }
    }
}

enum Taking {
    Accepted { last: Seq },
    Known(Appended),
    Refused(Refusal),
}

/// Whether a chunk may follow the one that ends a stream: an error is followed by the end of its step and message.
fn belongs_to_an_end(chunk: &RawValue) -> bool {
    let kind = serde_json::from_str::<serde_json::Value>(chunk.get()).unwrap_or_default();
    matches!(kind["type"].as_str(), Some("finish" | "finish-step" | "error" | "abort"))
}

pub(super) fn ended() -> Refusal {
    Refusal::new(ErrorCode::TaskEnded, "The task has ended; nothing can be added to it.")
}

fn digest(chunks: &[Box<RawValue>]) -> String {
    let mut hash = Sha256::new();
    for chunk in chunks {
        hash.update(chunk.get().as_bytes());
        hash.update([0]);
    }
    hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}
