//! Chunks of the AI SDK's UI message stream: how one is written, and how it travels as a server-sent event.

mod kind;
mod view;

use std::fmt;
use std::io::Write;
use std::ops::Range;

use bytes::Bytes;

use crate::json;
use crate::position::{ChunkPosition, Epoch, Seq};

pub use kind::ChunkKind;
pub use view::{ChunkError, ChunkView};

/// The last thing in every stream.
pub const DONE: &[u8] = b"data: [DONE]\n\n";

/// What an upstream sends as the last thing in its stream, in place of JSON.
pub const DONE_DATA: &str = "[DONE]";

/// One chunk: its JSON on one line, and where it stands in the stream.
///
/// Chunks that the server makes up (framing, gaps) stand nowhere. The JSON may hold what a person wrote, so `Debug`
/// shows a length only.
#[derive(Clone, PartialEq, Eq)]
pub struct Chunk {
    pub json: Bytes,
    pub at: Option<ChunkPosition>,
    /// Where in `json` the text of a delta lies, without its quotes.
    body: Option<(u32, u32)>,
}

/// The JSON of a delta, taken apart: deltas with the same `head` and `tail` extend one part and can be joined.
#[derive(Clone, Copy)]
pub struct DeltaView<'a> {
    pub head: &'a [u8],
    pub body: &'a [u8],
    pub tail: &'a [u8],
}

impl fmt::Debug for DeltaView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeltaView({} bytes)", self.body.len())
    }
}

impl Chunk {
    /// Takes a chunk as it was written; only line breaks between its tokens are changed.
    pub fn verbatim(text: &str) -> Chunk {
        let line = json::one_line(text);
        match ChunkView::parse(&line) {
            Ok(view) => Chunk::viewed(&line, &view),
            Err(_) => Chunk { json: line.into_owned().into(), at: None, body: None },
        }
    }

    /// The same for one that was looked at where it stands, on one line.
    pub fn viewed(line: &str, view: &ChunkView<'_>) -> Chunk {
        // The delta is a slice of `line`, so its place is the distance between the two.
        let body = view.delta_text().and_then(|raw| {
            let start = (raw.get().as_ptr() as usize).checked_sub(line.as_ptr() as usize)?;
            narrow(start + 1..start + raw.get().len() - 1)
        });
        Chunk { json: line.to_owned().into(), at: None, body }
    }

    /// The JSON of an earlier chunk, said once more: it stands nowhere in the stream.
    pub fn made_up(json: Bytes) -> Chunk {
        Chunk { json, at: None, body: None }
    }

    /// A delta whose text lies at `body`.
    pub fn joined(json: Vec<u8>, body: Range<usize>, at: Option<ChunkPosition>) -> Chunk {
        Chunk { json: json.into(), at, body: narrow(body) }
    }

    pub fn start(message_id: &str) -> Chunk {
        ChunkBuilder::new("start", message_id.len()).text("messageId", message_id).done()
    }

    /// A chunk that has nothing but its type.
    pub fn bare(kind: ChunkKind) -> Chunk {
        ChunkBuilder::new(kind.as_str(), 0).done()
    }

    /// Says that events between the reader's cursor and the first retained one are gone. A transient one is sent to the
    /// page and leaves nothing in the message.
    pub fn gap(lost: u64, first_retained: Seq, transient: bool) -> Chunk {
        let data = format!("{{\"lost\":{lost},\"first_retained\":{first_retained}}}");
        let chunk = ChunkBuilder::new("data-gap", data.len()).raw("data", &data);
        if transient { chunk.flag("transient", true).done() } else { chunk.done() }
    }

    /// The delta that this chunk is, taken apart; `None` if it is something else.
    pub fn delta(&self) -> Option<DeltaView<'_>> {
        let (start, end) = self.body.map(|(start, end)| (start as usize, end as usize))?;
        Some(DeltaView { head: &self.json[..start], body: &self.json[start..end], tail: &self.json[end..] })
    }

    /// Writes the chunk as a server-sent event.
    ///
    /// Its JSON has no bare line break by construction, so that nothing in it can end the line or begin another field.
    pub fn encode(&self, epoch: &Epoch, out: &mut Vec<u8>) {
        debug_assert!(!self.json.iter().any(|byte| matches!(byte, b'\n' | b'\r')), "a chunk stands on one line");
        if let Some(place) = self.at {
            // Writing to a Vec cannot fail.
            let _ = writeln!(out, "id: {epoch}-{place}");
        }
        out.extend_from_slice(b"data: ");
        out.extend_from_slice(&self.json);
        out.extend_from_slice(b"\n\n");
    }
}

impl fmt::Debug for Chunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.at {
            Some(place) => write!(f, "Chunk({place}, {} bytes)", self.json.len()),
            None => write!(f, "Chunk({} bytes)", self.json.len()),
        }
    }
}

fn narrow(range: Range<usize>) -> Option<(u32, u32)> {
    Some((range.start.try_into().ok()?, range.end.try_into().ok()?))
}

/// Writes a chunk field by field, in the order of the calls.
pub struct ChunkBuilder(Vec<u8>);

impl fmt::Debug for ChunkBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ChunkBuilder({} bytes)", self.0.len())
    }
}

impl ChunkBuilder {
    /// `room` is about how many bytes the values of the fields will take.
    pub fn new(kind: &str, room: usize) -> ChunkBuilder {
        let mut json = Vec::with_capacity(64 + kind.len() + room);
        json.extend_from_slice(b"{\"type\":");
        json::push_string(&mut json, kind);
        ChunkBuilder(json)
    }

    fn key(&mut self, key: &str) {
        self.0.extend_from_slice(b",\"");
        self.0.extend_from_slice(key.as_bytes());
        self.0.extend_from_slice(b"\":");
    }

    /// A field whose value is already JSON.
    pub fn raw(mut self, key: &str, value: &str) -> ChunkBuilder {
        self.key(key);
        self.0.extend_from_slice(json::one_line(value).as_bytes());
        self
    }

    pub fn text(mut self, key: &str, value: &str) -> ChunkBuilder {
        self.key(key);
        json::push_string(&mut self.0, value);
        self
    }

    pub fn flag(self, key: &str, value: bool) -> ChunkBuilder {
        self.raw(key, if value { "true" } else { "false" })
    }

    pub fn done(mut self) -> Chunk {
        self.0.push(b'}');
        Chunk { json: self.0.into(), at: None, body: None }
    }

    /// The last field, which is the text of a delta. `literal` is a JSON string.
    pub fn delta(mut self, key: &str, literal: &str) -> Chunk {
        self.key(key);
        let start = self.0.len() + 1;
        self.0.extend_from_slice(literal.as_bytes());
        let end = self.0.len() - 1;
        self.0.push(b'}');
        Chunk { json: self.0.into(), at: None, body: narrow(start..end) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_is_an_event_of_one_line_and_forges_nothing() {
        let nasty = "\n\ndata: forged\n\nid: 9\r\revent: x\0\u{feff}\u{2028}\u{2029}\u{85}\\n\"";
        let mut chunk =
            ChunkBuilder::new("text-delta", 0).text("id", nasty).delta("delta", &serde_json::to_string(nasty).unwrap());
        chunk.at = Some(ChunkPosition { seq: Seq::new(7).unwrap(), part: Some(2) });
        let mut out = Vec::new();
        chunk.encode(&Epoch::parse("e").unwrap(), &mut out);
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<&str> = text.split(['\n', '\r']).collect();
        assert_eq!(lines.len(), 4, "id, data, and the blank line");
        assert_eq!((lines[0], lines[2], lines[3]), ("id: e-7.2", "", ""));
        let data: serde_json::Value = serde_json::from_str(lines[1].strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!((data["delta"].as_str(), data["id"].as_str()), (Some(nasty), Some(nasty)));
    }

    #[test]
    fn line_breaks_between_tokens_do_not_reach_the_wire() {
        let chunk = Chunk::verbatim("{\r\n \"type\": \"data-x\",\n\"data\": [1,\n 2, \"a  \\n b\"] }");
        assert_eq!(chunk.json, r#"{"type":"data-x","data":[1,2,"a  \n b"]}"#);
        let built = ChunkBuilder::new("data-x", 0).raw("data", "{\n}").done();
        assert_eq!(built.json, r#"{"type":"data-x","data":{}}"#);
    }

    #[test]
    fn the_text_of_a_delta_is_found_in_any_order_of_fields() {
        for text in [
            r#"{"type":"text-delta","id":"1","delta":"a\"b"}"#,
            r#"{"delta":"a\"b","providerMetadata":{"x":{"delta":"no"}},"id":"1","type":"text-delta"}"#,
            r#"{"type":"tool-input-delta","inputTextDelta":"a\"b","toolCallId":"1"}"#,
        ] {
            let chunk = Chunk::verbatim(text);
            let delta = chunk.delta().unwrap();
            assert_eq!(delta.body, br#"a\"b"#, "{text}");
            assert_eq!([delta.head, delta.body, delta.tail].concat(), text.as_bytes());
        }
        assert!(Chunk::verbatim(r#"{"type":"data-x","data":{"delta":"x"}}"#).delta().is_none());
    }

    #[test]
    fn debug_shows_no_content() {
        let chunk = Chunk::verbatim(r#"{"type":"text-delta","id":"1","delta":"marker"}"#);
        let shown = format!("{chunk:?} {:?}", chunk.delta());
        assert!(!shown.contains("marker"), "{shown}");
    }
}
