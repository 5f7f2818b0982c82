//! Server-Sent Events: read from bytes as they come in, and written so that no content can forge a line.

use std::time::Duration;

pub const CONTENT_TYPE: &str = "text/event-stream";

/// One event of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// The last id that the stream told, which is what a resumption names.
    pub id: Option<String>,
    pub kind: Option<String>,
    pub data: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an event of the stream is larger than is taken")]
pub struct TooLarge;

/// Reads a stream. Bytes may be cut anywhere.
#[derive(Debug)]
pub struct Parser {
    line: Vec<u8>,
    data: Vec<u8>,
    has_data: bool,
    kind: Option<String>,
    id: Option<String>,
    retry: Option<Duration>,
    bytes_max: usize,
    after_cr: bool,
    begun: bool,
}

impl Parser {
    pub fn new(bytes_max: usize) -> Parser {
        Parser {
            line: Vec::new(),
            data: Vec::new(),
            has_data: false,
            kind: None,
            id: None,
            retry: None,
            bytes_max,
            after_cr: false,
            begun: false,
        }
    }

    /// How long the other side wants us to wait before we come back.
    pub fn retry(&self) -> Option<Duration> {
        self.retry
    }

    pub fn last_id(&self) -> Option<&str> {
        self.id.as_deref()
    }

    pub fn push(&mut self, bytes: &[u8]) -> Result<Vec<Event>, TooLarge> {
        let mut events = Vec::new();
        for byte in bytes {
            match byte {
                b'\n' if self.after_cr => self.after_cr = false,
                b'\n' | b'\r' => {
                    self.after_cr = *byte == b'\r';
                    events.extend(self.end_line());
                }
                _ => {
                    self.after_cr = false;
                    self.line.push(*byte);
                    if self.line.len() + self.data.len() > self.bytes_max {
                        return Err(TooLarge);
                    }
                }
            }
        }
        Ok(events)
    }

    fn end_line(&mut self) -> Option<Event> {
        let line = std::mem::take(&mut self.line);
        let bom: &[u8] = b"\xef\xbb\xbf";
        let line = if self.begun { &line[..] } else { line.strip_prefix(bom).unwrap_or(&line) };
        self.begun = true;
        if line.is_empty() {
            return self.end_event();
        }
        let (name, value) = match line.iter().position(|byte| *byte == b':') {
            Some(at) => (&line[..at], line[at + 1..].strip_prefix(b" ").unwrap_or(&line[at + 1..])),
            None => (line, &b""[..]),
        };
        match name {
            b"data" => {
                if self.has_data {
                    self.data.push(b'\n');
                }
                self.has_data = true;
                self.data.extend_from_slice(value);
            }
            b"event" => self.kind = Some(String::from_utf8_lossy(value).into_owned()),
            b"id" if !value.contains(&0) => self.id = Some(String::from_utf8_lossy(value).into_owned()),
            b"retry" => {
                let ms = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
                self.retry = ms.map(Duration::from_millis).or(self.retry);
            }
            _ => {}
        }
        None
    }

    /// An event without data is none, but its id counts.
    fn end_event(&mut self) -> Option<Event> {
        let kind = self.kind.take();
        let data = std::mem::take(&mut self.data);
        let had_data = std::mem::take(&mut self.has_data);
        had_data.then(|| Event { id: self.id.clone(), kind, data: String::from_utf8_lossy(&data).into_owned() })
    }
}

/// An event as it is sent. `data` is one line of JSON, or empty.
pub fn encode(id: Option<&str>, data: &str) -> String {
    let mut out = String::with_capacity(data.len() + 48);
    if let Some(id) = id {
        out.push_str("id: ");
        out.push_str(id);
        out.push('\n');
    }
    // JSON from a peer may be spread over lines; each gets its own `data:`, and the reader joins them again.
    for line in data.split(['\n', '\r']) {
        out.push_str("data: ");
        out.push_str(line);
        out.push('\n');
    }
    out.push('\n');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pieces: &[&[u8]]) -> Vec<Event> {
        let mut parser = Parser::new(1000);
        pieces.iter().flat_map(|piece| parser.push(piece).unwrap()).collect()
    }

    #[test]
    fn a_stream_reads_the_same_wherever_it_is_cut() {
        let text = "\u{feff}: hi\r\nid: e-1\ndata: \n\nevent: message\ndata: {\"a\":\ndata: 1}\nretry: 40\r\n\r\n:x\ndata:é\n\n";
        let whole = read(&[text.as_bytes()]);
        assert_eq!(whole.len(), 3);
        assert_eq!((whole[0].id.as_deref(), whole[0].data.as_str()), (Some("e-1"), ""));
        assert_eq!((whole[1].kind.as_deref(), whole[1].data.as_str()), (Some("message"), "{\"a\":\n1}"));
        assert_eq!((whole[2].id.as_deref(), whole[2].data.as_str()), (Some("e-1"), "é"));
        for at in 0..text.len() {
            let (before, after) = text.as_bytes().split_at(at);
            assert_eq!(read(&[before, after]), whole, "cut at {at}");
        }
    }

    #[test]
    fn no_content_can_forge_a_line() {
        for data in ["{\"a\":\"x\"}", "{\n\"id\": 1,\r\n\"data\": \"\\n\\ndata: no\"}", "{\"\u{2028}\":\"\u{feff}\"}"] {
            let events = read(&[encode(Some("7"), data).as_bytes()]);
            assert_eq!(events.len(), 1, "{data:?}");
            let same = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
            assert_eq!(same(&events[0].data), same(data));
        }
    }

    #[test]
    fn an_endless_event_is_refused() {
        let mut parser = Parser::new(10);
        assert_eq!(parser.push(b"data: 0123456789"), Err(TooLarge));
    }
}
