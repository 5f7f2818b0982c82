//! What producers push: each append becomes durable once, however often it is sent.

use bowline_core::dialect::{Imported, Importer};
use bowline_protocol::{Draft, ErrorCode, ProducerId, Refusal, Seq};
use bowline_store::Item;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::actor::TaskActor;
use super::command::{Append, Appended, Ending};
use super::ending::owed;
use super::position::{Block, Position, Remembered, Taken};
use super::record::keys;
use crate::decode::decode;
use crate::refusals;

impl TaskActor {
    /// Takes appends in their order, in one commit as long as nothing is wrong with them.
    pub(super) async fn append_all(&mut self, appends: Vec<Append>) {
        let mut batch = Batch::new(self);
        for append in appends {
            match self.take(&mut batch, &append).await {
                Taking::Accepted { last } => batch.waiting.push((append, last)),
                // It may be a repetition of one that waits here itself; then it is not durable yet.
                Taking::Known { last } if last >= self.next => batch.waiting.push((append, last)),
                Taking::Known { last } => {
                    append.reply.send(Ok(Appended { last_message_id: self.cursor(last) }));
                }
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
            match self.judge(batch, id, *seq, &append.chunks).await {
                Ok(None) => {}
                Ok(Some(last)) => return Taking::Known { last },
                Err(refusal) => return Taking::Refused(refusal),
            }
        }
        if batch.end.is_some() || !self.record.is_running() {
            return Taking::Refused(ended());
        }
        self.import(batch, append)
    }

    /// What a place says about an append: nothing if it is the next one, and which event was its last if it came before.
    async fn judge(
        &self,
        batch: &Batch,
        id: &ProducerId,
        seq: u64,
        chunks: &[Box<RawValue>],
    ) -> Result<Option<Seq>, Refusal> {
        let position = batch.positions.iter().find(|(known, _)| known == id).map(|(_, position)| position);
        let Some(position) = position.filter(|position| seq != position.next) else { return Ok(None) };
        let details = json!({ "expected": position.next });
        if seq > position.next {
            let message = format!("`Producer-Seq` {seq} leaves a hole: {} is the next one.", position.next);
            return Err(Refusal::new(ErrorCode::CursorAhead, message).details(details));
        }
        let taken = match position.find(id, seq) {
            Remembered::Here(taken) => Some(taken.clone()),
            Remembered::InBlock(key) => self.look_into_block(batch, &key, seq).await?,
        };
        let Some(taken) = taken else {
            let kept = self.shared.config.limits.producer_appends_kept_max;
            let message = format!(
                "`Producer-Seq` {seq} was taken, too long ago to say how it was answered: a task remembers the last {kept} appends of a producer (limits.producer_appends_kept_max)."
            );
            return Err(Refusal::new(ErrorCode::IdempotencyConflict, message).details(details));
        };
        if taken.digest != digest(chunks) {
            let message = format!("`Producer-Seq` {seq} was used before with other chunks.");
            return Err(Refusal::new(ErrorCode::IdempotencyConflict, message));
        }
        self.shared.metrics.duplicates_avoided.inc();
        Ok(Some(taken.last))
    }

    /// An append that is remembered in a block: one that this batch fills, or one in the store.
    async fn look_into_block(&self, batch: &Batch, key: &str, seq: u64) -> Result<Option<Taken>, Refusal> {
        if let Some(block) = batch.blocks.iter().find(|block| block.key == key) {
            return Ok(Block::find(&block.taken, seq).cloned());
        }
        let stored = self.shared.logs.store.item(&self.log, key).await.map_err(|error| refusals::of_task(&error))?;
        let taken: Vec<Taken> = decode(&self.log, key, stored)?.unwrap_or_default();
        Ok(Block::find(&taken, seq).cloned())
    }

    /// Turns chunks into events. If one is wrong, none of the append is taken.
    fn import(&mut self, batch: &mut Batch, append: &Append) -> Taking {
        let before = (batch.importer.clone(), batch.drafts.len());
        let bytes_max = self.shared.config.limits.event_bytes_max;
        for (place, chunk) in append.chunks.iter().enumerate() {
            batch.drafts.extend(batch.importer.opening(chunk.get()));
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
                    if let Some(behind) = rest.iter().position(|chunk| !Importer::may_follow_end(chunk)) {
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
        if let Some((id, _)) = &append.place
            && let Some((_, position)) = batch.positions.iter_mut().find(|(known, _)| known == id)
            && let Some(block) = position.push(id, last, digest(&append.chunks))
        {
            batch.blocks.push(block);
            batch.outlived.extend(position.outlived(id, self.shared.config.limits.producer_appends_kept_max as u64));
        }
        Taking::Accepted { last }
    }

    async fn store(&mut self, batch: Batch) {
        let Batch { importer, drafts, positions, blocks, outlived, end, waiting } = batch;
        if waiting.is_empty() {
            return;
        }
        let items = positions
            .iter()
            .map(|(id, position)| Item::put(keys::producer(id), serde_json::to_vec(position).unwrap_or_default()))
            .chain(blocks.iter().map(Block::item))
            .chain(outlived.into_iter().map(Item::delete));
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
        let key = keys::producer(id);
        let stored = self.shared.logs.store.item(&self.log, &key).await.map_err(|error| refusals::of_task(&error))?;
        Ok(decode(&self.log, &key, stored)?.unwrap_or_default())
    }
}

/// Appends that will become durable together.
struct Batch {
    importer: Importer,
    drafts: Vec<Draft>,
    positions: Vec<(ProducerId, Position)>,
    /// Blocks of appends that are full with these, and those that are not kept any more.
    blocks: Vec<Block>,
    outlived: Vec<String>,
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
            blocks: Vec::new(),
            outlived: Vec::new(),
            end: None,
            waiting: Vec::new(),
        }
    }
}

enum Taking {
    Accepted {
        last: Seq,
    },
    /// It came before, and this was its last event.
    Known {
        last: Seq,
    },
    Refused(Refusal),
}

pub(super) fn ended() -> Refusal {
    Refusal::new(ErrorCode::TaskEnded, "The task has ended; nothing can be added to it.")
}

/// The same chunks written otherwise (white space, order of keys, escapes) are the same chunks.
fn digest(chunks: &[Box<RawValue>]) -> String {
    let mut hash = Sha256::new();
    for chunk in chunks {
        // What is no tree, because a text in it is half a character, is compared as it is written.
        let plain = serde_json::from_str::<Value>(chunk.get()).map(|value| value.to_string());
        hash.update(plain.as_deref().unwrap_or(chunk.get()).as_bytes());
        hash.update([0]);
    }
    hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}
