//! A response that its owner may read: where its events are, what it says now, and its stream.

use std::ops::ControlFlow;

use axum::body::Body;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use bowline_core::dialect::Projection as _;
use bowline_core::dialect::responses::{CallId, ResponseId, ResponseProjector, Wait};
use bowline_core::watch::WatchStart;
use bowline_protocol::event::names;
use bowline_protocol::{ErrorCode, LoggedEvent, Recorded, Refusal, Seq, SessionId, TaskId};
use bowline_store::{Passed, read_through};
use serde_json::value::RawValue;

use super::super::chat::Owner;
use super::super::chat::sse;
use crate::drive::stream::WatchedStream;
use crate::refusals;
use crate::session::Life;
use crate::session::record::keys;
use crate::stream::{Streams, Watched};

#[derive(Debug)]
pub struct FoundResponse {
    pub id: ResponseId,
    /// The name of its session now.
    pub session: SessionId,
    /// What its readers follow.
    watched: Watched,
    name: String,
}

/// A stranger learns nothing, not even that it is one.
pub fn not_found() -> Refusal {
    Refusal::new(ErrorCode::TaskNotFound, "There is no such response, or it is another principal's.")
}

fn strange(refusal: Refusal) -> Refusal {
    match refusal.code {
        ErrorCode::TaskNotFound | ErrorCode::SessionNotFound => not_found(),
        ErrorCode::TaskExpired => Refusal::new(ErrorCode::TaskExpired, "The response is no longer kept."),
        _ => refusal,
    }
}

fn gone() -> Refusal {
    let message = "The first events of the response are no longer kept, so it cannot be read.";
    Refusal::new(ErrorCode::ReplayGap, message)
}

impl FoundResponse {
    pub async fn find(streams: &Streams, owner: &Owner, id: &str) -> Result<FoundResponse, Refusal> {
        let id = ResponseId::parse(id).ok_or_else(not_found)?;
        FoundResponse::at(streams, owner, id).await.map_err(strange)
    }

    pub async fn at(streams: &Streams, owner: &Owner, id: ResponseId) -> Result<FoundResponse, Refusal> {
        let turn = TaskId::of_turn(&id.log, id.turn);
        let watched = Watched::find(streams, &turn, &owner.principal, owner.proof.as_ref()).await?;
        let session = watched.session.clone().ok_or_else(not_found)?;
        let (_, record) = streams.sessions.look_up(&session, &owner.principal).await?;
        // Its contents go a moment after a session has ended; it is gone for its owner at once.
        if record.life != Life::Active {
            return Err(refusals::task_expired());
        }
        if id.first() < watched.extent.first {
            return Err(gone());
        }
        let name = ResponseProjector::name(&id, &record.agent);
        let task = TaskId::parse(&name).ok_or_else(not_found)?;
        let found = FoundResponse { session, watched: watched.part(task, id.first()), name, id };
        if let Some(question) = found.id.question {
            found.reply(streams, question).await?.ok_or_else(not_found)?;
        }
        Ok(found)
    }

    /// The event that ended this response because the turn waits, and for what; none if nothing did.
    pub async fn waits(&self, streams: &Streams) -> Result<Option<(LoggedEvent, Wait)>, Refusal> {
        let first = self.id.first();
        self.each(streams, first, |event| {
            let view = event.view().filter(|_| event.seq > first)?;
            let wait = Wait::of(&view);
            let is_over = names::TERMINAL.contains(&view.event);
            match wait {
                Some(wait) => Some(event.decode().map(|event| (event, wait))),
                None => is_over.then_some(None),
            }
        })
        .await
        .map(Option::flatten)
    }

    /// The response that made this call, for a caller that does not name it.
    pub async fn that_called(streams: &Streams, owner: &Owner, call: &CallId) -> Result<FoundResponse, Refusal> {
        let turns = streams.readers.logs.store.items(&call.log, keys::TURNS).await;
        let turns = turns.map_err(|error| strange(refusals::of_task(&error)))?;
        let begun = turns.iter().filter_map(|(key, _)| key.strip_prefix(keys::TURNS)?.parse().ok().and_then(Seq::new));
        let turn = begun.filter(|turn| *turn < call.called).max().ok_or_else(not_found)?;
        let mut found =
            FoundResponse::at(streams, owner, ResponseId::of_turn(call.log.clone(), turn)).await.map_err(strange)?;
        loop {
            let (event, _) = found.waits(streams).await?.ok_or_else(not_found)?;
            if event.seq >= call.called {
                return Ok(found);
            }
            let next = ResponseId { question: Some(event.seq), ..found.id.clone() };
            found = FoundResponse::at(streams, owner, next).await?;
        }
    }

    /// The outputs with which the caller answered the calls that this event is the last of; none if it did not yet.
    pub async fn outputs(&self, streams: &Streams, asked: Seq) -> Result<Vec<LoggedEvent>, Refusal> {
        let Some(reply) = self.reply(streams, asked).await? else { return Ok(Vec::new()) };
        let count = reply.content["outputs"].as_u64().unwrap_or_default() as usize;
        let mut outputs = Vec::new();
        self.each(streams, reply.seq.next(), |event| {
            outputs.extend(event.decode().filter(|_| outputs.len() < count));
            (outputs.len() >= count).then_some(())
        })
        .await?;
        Ok(outputs)
    }

    /// What was replied to the question of this turn that this event is; none if nothing was yet.
    pub async fn reply(&self, streams: &Streams, question: Seq) -> Result<Option<LoggedEvent>, Refusal> {
        let mut step = None;
        self.each(streams, question, |event| {
            let is_wait = event.view().is_some_and(|view| Wait::of(&view).is_some());
            let event = event.decode()?;
            match &step {
                None if is_wait => step = Some(event.step_id.clone()),
                None => return Some(None),
                Some(asked) if event.event == names::USER_RESPONSE && event.step_id == *asked => {
                    return Some(Some(event));
                }
                Some(_) => {}
            }
            names::TERMINAL.contains(&event.event.as_str()).then_some(None)
        })
        .await
        .map(Option::flatten)
    }

    /// The event of its log with this number.
    pub async fn event(&self, streams: &Streams, seq: Seq) -> Result<Option<LoggedEvent>, Refusal> {
        self.each(streams, seq, |event| Some(event.decode().filter(|event| event.seq == seq)))
            .await
            .map(Option::flatten)
    }

    /// Looks at the events from this one on, until one of them is what is looked for.
    async fn each<T>(
        &self,
        streams: &Streams,
        from: Seq,
        mut look: impl FnMut(&Recorded) -> Option<T>,
    ) -> Result<Option<T>, Refusal> {
        let store = &*streams.readers.logs.store;
        let found = read_through(store, &self.id.log, from, |passed| match passed {
            Passed::Event(event) => {
                look(event).map_or(ControlFlow::Continue(()), |found| ControlFlow::Break(Ok(found)))
            }
            Passed::Gap { .. } => ControlFlow::Break(Err(gone())),
        });
        found.await.map_err(|error| refusals::of_task(&error))?.transpose()
    }

    /// The response as it stands now.
    pub async fn response(&self, streams: &Streams) -> Result<Box<RawValue>, Refusal> {
        let mut projector = ResponseProjector::new(&self.name);
        self.each(streams, self.id.first(), |event| {
            projector.pass_event(event);
            projector.is_over().then_some(())
        })
        .await?;
        projector.response().ok_or_else(not_found)
    }

    /// Its events from the one with this number on.
    pub async fn stream(&self, streams: &Streams, from: u64) -> Result<WatchedStream<ResponseProjector>, Refusal> {
        let start = WatchStart::Index(from);
        let metric = if from == 0 { "fresh" } else { "indexed" };
        streams.readers.metrics.stream_starts.inc(metric);
        let stream = WatchedStream::watch(streams.readers.clone(), &self.watched, start, false).await;
        stream.map_err(|error| refusals::of_follower(&error))
    }

    /// The response when nothing of it is missing.
    pub async fn whole(&self, streams: &Streams) -> Result<Box<RawValue>, Refusal> {
        let mut stream = self.stream(streams, 0).await?;
        while Box::pin(stream.next()).await.map_err(|error| refusals::of_follower(&error))?.is_some() {}
        self.response(streams).await
    }
}

/// A response as an answer.
pub fn object(response: &RawValue) -> Response {
    (StatusCode::OK, [("content-type", "application/json")], response.get().to_owned()).into_response()
}

/// A stream as an answer.
pub fn streamed(body: Body) -> Response {
    (StatusCode::OK, sse::EVENT_STREAM, body).into_response()
}
