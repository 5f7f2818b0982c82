//! Chunks of the AI SDK as an upstream streams them: each is logged so that readers get it back word for word.

use bowline_api::{AgentError, Answer, Run, UpstreamFinish};
use bowline_core::dialect::ai_sdk::{Imported, Importer, UpstreamEnd, UpstreamEnding};
use bowline_core::scrub::scrub_text;
use bowline_protocol::event::names;
use bowline_protocol::{Draft, json};

use super::{ResponseEnd, unfinished};
use crate::agent::accumulated_text::AccumulatedText;
use crate::agent::upstream::{UpstreamRecord, UpstreamResponse};
use crate::agent::upstream_error::UpstreamError;

/// Reads an answer to its end.
pub async fn read(
    run: &Run,
    received: &mut UpstreamResponse,
    first: UpstreamRecord,
    accumulated: &mut AccumulatedText,
) -> Result<ResponseEnd, AgentError> {
    let (mut importer, mut words) = (Importer::new(), Words::default());
    let mut next = Some(first);
    while let Some(record) = next {
        let imported = importer.handle_chunk(&record.data).map_err(|error| {
            UpstreamError::Garbage(format!("something that is no chunk: {}", error.to_string().trim_end_matches('.')))
        })?;
        match imported {
            Imported::Event(draft) if draft.name.as_str() == names::PARTIAL_ANSWER => {
                let delta = words.push(body(&draft));
                accumulated.keep(&delta)?;
                run.emit.partial_draft(draft, delta).await?;
            }
            Imported::Event(draft) => run.emit.draft(draft).await?,
            Imported::Nothing => {}
            Imported::End(end) => {
                accumulated.keep(&words.rest())?;
                return ended(end, accumulated).map(ResponseEnd::Answered);
            }
            // The SDK writes its end mark only behind a stream that was closed in order: a program that puts its chunks
            // together by hand often says no other end.
            Imported::Done => {
                accumulated.keep(&words.rest())?;
                return Ok(ResponseEnd::Answered(Answer::text(accumulated.take())));
            }
        }
        next = received.next(&run.cancel).await?;
    }
    Err(unfinished())
}

/// What the upstream's own ending means here. Its words go along with ours.
fn ended(end: UpstreamEnd, accumulated: &mut AccumulatedText) -> Result<Answer, AgentError> {
    let finish = Some(UpstreamFinish(end.chunk));
    let scrubbed = |mut text: String| {
        scrub_text(&mut text);
        text
    };
    match end.ending {
        UpstreamEnding::Finished => Ok(Answer { text: accumulated.take(), finish, ..Answer::default() }),
        UpstreamEnding::Cancelled => {
            let why = end.text.map_or_else(|| "The agent's upstream was stopped.".to_owned(), scrubbed);
            Err(AgentError { finish, ..AgentError::cancelled(why) })
        }
        UpstreamEnding::Failed => {
            let why = end.text.map_or_else(|| "The agent's upstream failed.".to_owned(), scrubbed);
            Err(AgentError { finish, ..AgentError::failed(why) })
        }
    }
}

/// The content of a delta without its quotes, escaped as it was written.
fn body(draft: &Draft) -> &str {
    let literal = draft.content.get();
    literal.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or_default()
}

/// Deltas as text. JavaScript cuts characters in two, so half of one waits for the other.
#[derive(Default)]
struct Words {
    held: String,
}

impl Words {
    /// What can be emitted once this is there too.
    fn push(&mut self, body: &str) -> String {
        let waited = !self.held.is_empty();
        self.held.push_str(body);
        match serde_json::from_str(&format!("\"{}\"", self.held)) {
            Ok(text) => {
                self.held.clear();
                text
            }
            Err(_) if !waited => String::new(),
            // It was no half that another one follows.
            Err(_) => self.rest(),
        }
    }

    /// What waits in vain, with a mark where no character is.
    fn rest(&mut self) -> String {
        let mut bytes = Vec::new();
        json::unescape(&self.held, |_, piece| bytes.extend_from_slice(piece));
        self.held.clear();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(deltas: &[&str]) -> Vec<String> {
        let mut words = Words::default();
        let mut out: Vec<String> = deltas.iter().map(|delta| words.push(delta)).collect();
        out.push(words.rest());
        out
    }

    #[test]
    fn a_character_that_was_cut_in_two_is_put_together() {
        assert_eq!(sent(&["a", r"b\n"]), ["a", "b\n", ""]);
        assert_eq!(sent(&[r"H\ud83d", r"\ude00!", "x"]), ["", "H😀!", "x", ""]);
        assert_eq!(
            sent(&[r"a\ud83d", "b", "c"])[..3],
            ["".to_owned(), "a\u{fffd}\u{fffd}\u{fffd}b".into(), "c".into()]
        );
        assert_eq!(sent(&[r"a\ud83d"])[1], "a\u{fffd}\u{fffd}\u{fffd}");
    }
}
