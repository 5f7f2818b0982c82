//! What producers push: each append becomes durable once, however often it is sent.

use bowline_core::dialect::{Imported, Importer};
use bowline_mutant::mutant;
use bowline_protocol::{Draft, ErrorCode, ProducerId, Refusal, Seq};
use bowline_store::StoreError;
use serde_json::json;
use serde_json::value::RawValue;

use super::actor::TaskActor;
use super::command::{Append, Appended, TaskClose};
use super::digest::digest;
use super::ending::owed;
use super::position::{Position, RememberedAppend, TakenAppend, find, read_block};
use super::record::keys;
use crate::decode::unreadable;
use crate::refusals;

/// Producers whose positions are kept in memory. A task has one or a few; more are read anew each time.
const PRODUCERS_MAX: usize = 64;

impl TaskActor {
    /// Takes appends in their order, in one commit as long as nothing is wrong with them.
    pub(super) async fn append_all(&mut self, appends: Vec<Append>) {
        if appends.is_empty() {
            return;
        }
        if let Err(refusal) = self.refresh().await {
            return appends.into_iter().for_each(|append| append.reply.send(Err(refusal.clone())));
        }
        if self.producers.len() > PRODUCERS_MAX {
            self.producers.clear();
        }
        let mut batch = AppendBatch::default();
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

    async fn take(&mut self, batch: &mut AppendBatch, append: &Append) -> Taking {
        if let Some((id, seq)) = &append.place {
            if let Err(refusal) = self.load_position(id).await {
                return Taking::Refused(refusal);
            }
            if let Err(refusal) = self.check_position(id, *seq).await {
                return Taking::Refused(refusal);
            }
            match self.check_sequence(id, *seq, &append.chunks).await {
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

    /// A hole is no reason to refuse before the store says the same: a node that stood still for longer than its lease remembers
    /// what was before another node went on with the task, and nothing that it commits would tell it.
    async fn check_position(&mut self, id: &ProducerId, seq: u64) -> Result<(), Refusal> {
        let Some(next) = self.producers.get(id).map(|position| position.next).filter(|next| seq > *next) else {
            return Ok(());
        };
        let stored = self.shared.logs.store.item(&self.log, &keys::producer(id)).await;
        let stored = stored.map_err(|error| refusals::of_task(&error))?;
        let is_past = Position::read(id, stored.as_deref()).is_some_and(|(position, _)| position.next > next);
        if is_past && !mutant("refuse-by-an-old-place") {
            self.writer.reset();
            self.producers.clear();
            let error = StoreError::Unavailable("another node has gone on with this task".into());
            return Err(refusals::of_task(&error));
        }
        Ok(())
    }

    /// What a place says about an append: nothing if it is the next one, and which event was its last if it came before.
    async fn check_sequence(
        &self,
        id: &ProducerId,
        seq: u64,
        chunks: &[Box<RawValue>],
    ) -> Result<Option<Seq>, Refusal> {
        let position = self.producers.get(id);
        let Some(position) = position.filter(|position| seq != position.next) else { return Ok(None) };
        if mutant("take-a-repeated-append") && seq < position.next {
            return Ok(None);
        }
        let details = json!({ "expected": position.next });
        if seq > position.next {
            let message = format!("`Producer-Seq` {seq} leaves a hole: {} is the next one.", position.next);
            return Err(Refusal::new(ErrorCode::CursorAhead, message).details(details));
        }
        let taken = match position.find(id, seq) {
            RememberedAppend::Here(taken) => Some(taken),
            RememberedAppend::InBlock(key) => find(&self.block(&key).await?, seq),
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

    /// The appends that are remembered in a block; none if it is not kept any more.
    async fn block(&self, key: &str) -> Result<Vec<TakenAppend>, Refusal> {
        let stored = self.shared.logs.store.item(&self.log, key).await.map_err(|error| refusals::of_task(&error))?;
        let Some(bytes) = stored else { return Ok(Vec::new()) };
        read_block(&bytes).ok_or_else(|| unreadable(&self.log, key, &"it is no block of appends"))
    }

    async fn load_position(&mut self, id: &ProducerId) -> Result<(), Refusal> {
        if self.producers.contains_key(id) {
            return Ok(());
        }
        let key = keys::producer(id);
        let stored = self.shared.logs.store.item(&self.log, &key).await.map_err(|error| refusals::of_task(&error))?;
        let read = Position::read(id, stored.as_deref());
        let (mut position, block) =
            read.ok_or_else(|| unreadable(&self.log, &key, &"it is no position of a producer"))?;
        if position.next > 0 {
            position.add_block(&self.block(&block).await?);
        }
        self.producers.insert(id.clone(), position);
        Ok(())
    }

    /// Turns chunks into events. If one is wrong, none of the append is taken.
    fn import(&mut self, batch: &mut AppendBatch, append: &Append) -> Taking {
        let drafts = batch.drafts.len();
        // A single chunk is taken, or changes nothing.
        let importer = (append.chunks.len() > 1).then(|| self.stream.importer.clone());
        if let Err(refusal) = self.import_chunks(batch, &append.chunks) {
            batch.drafts.truncate(drafts);
            importer.into_iter().for_each(|importer| self.stream.importer = importer);
            return Taking::Refused(refusal);
        }
        // The terminal event, if there is one, follows at once and belongs to this append.
        let last = self.next.plus(batch.drafts.len() as u64 + u64::from(batch.end.is_some())).prev();
        if let Some((id, _)) = &append.place
            && let Some(position) = self.producers.get_mut(id)
        {
            if !batch.producers.iter().any(|(known, _)| known == id) {
                batch.producers.push((id.clone(), position.next));
            }
            position.push(last, digest(&append.chunks));
        }
        Taking::Accepted { last }
    }

    fn import_chunks(&mut self, batch: &mut AppendBatch, chunks: &[Box<RawValue>]) -> Result<(), Refusal> {
        let bytes_max = self.shared.config.limits.event_bytes_max;
        for (place, chunk) in chunks.iter().enumerate() {
            if chunk.get().len() > bytes_max {
                self.shared.metrics.limits_hit.inc("limits.event_bytes_max");
                let message = format!("Chunk {place} is larger than limits.event_bytes_max ({bytes_max}).");
                return Err(Refusal::new(ErrorCode::MessageTooLarge, message));
            }
            let imported = self.stream.importer.handle_json(chunk);
            let (opening, imported) =
                imported.map_err(|why| Refusal::field(&format!("[{place}]"), &why.to_string()))?;
            batch.drafts.extend(opening);
            match imported {
                Imported::Event(draft) => batch.drafts.push(draft),
                Imported::Nothing => {}
                Imported::End(end) => {
                    let rest = &chunks[place + 1..];
                    if let Some(behind) = rest.iter().position(|chunk| !Importer::may_follow_end(chunk)) {
                        let field = format!("[{}]", place + 1 + behind);
                        return Err(Refusal::field(&field, "stands behind the end of the stream"));
                    }
                    batch.end = Some(TaskClose::from(end));
                    break;
                }
                Imported::Done => break,
            }
        }
        Ok(())
    }

    async fn store(&mut self, batch: AppendBatch) {
        let AppendBatch { drafts, producers, end, waiting } = batch;
        if waiting.is_empty() {
            return;
        }
        let (kept_max, mut items) = (self.shared.config.limits.producer_appends_kept_max as u64, Vec::new());
        for (id, before) in &producers {
            if let Some(position) = self.producers.get_mut(id) {
                position.store(id, *before, kept_max, &mut items);
            }
        }
        if mutant("forget-the-place-of-a-producer") {
            items.clear();
        }
        match self.commit(&drafts, items, None).await {
            Ok(_) => {
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
            Err(_) if mutant("answer-an-append-that-failed") => {
                for (append, last) in waiting {
                    append.reply.send(Ok(Appended { last_message_id: self.cursor(last) }));
                }
            }
            Err(refusal) => {
                for (append, _) in waiting {
                    append.reply.send(Err(refusal.clone()));
                }
            }
        }
    }
}

/// Appends that will become durable together.
#[derive(Default)]
struct AppendBatch {
    drafts: Vec<Draft>,
    /// The producers that they come from, and which append was the next one of each before them.
    producers: Vec<(ProducerId, u64)>,
    end: Option<TaskClose>,
    /// Who waits, and which event is the last of each.
    waiting: Vec<(Append, Seq)>,
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
