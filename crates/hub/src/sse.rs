//! Server-Sent Events: read from bytes as they come in, and written so that no content can forge a line.

use std::time::Duration;

use crate::scan::JsonScan;

pub const CONTENT_TYPE: &str = "text/event-stream";

/// One event of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// The last id that the stream told, which is what a resumption names.
    pub id: Option<String>,
    pub kind: Option<String>,
    pub data: String,
}

/// What comes out of a stream.
#[derive(Debug)]
pub enum SseItem {
    Event(Event),
    /// An event that is larger than is taken. It was passed over, and the stream goes on.
    TooLarge(JsonScan),
    /// An event whose data is not UTF-8. A reader that replaced what it cannot read would pass on what the server did not write.
    NotUtf8(JsonScan),
}

/// The data of the event that is being read.
#[derive(Debug, Default)]
enum SseData {
    #[default]
    Nothing,
    Whole(Vec<u8>),
    TooLarge(JsonScan),
}

/// The line that is being read.
#[derive(Debug)]
enum SseLine {
    Kept(Vec<u8>),
    /// Its beginning was data; the rest is only skimmed.
    Skimmed,
    /// Too long, and a field that is not used.
    Ignored,
}

/// Reads a stream. Bytes may be cut anywhere.
#[derive(Debug)]
pub struct SseParser {
    line: SseLine,
    data: SseData,
    kind: Option<String>,
    id: Option<String>,
    retry: Option<Duration>,
    bytes_max: usize,
    after_cr: bool,
    begun: bool,
}

impl SseParser {
    pub fn new(bytes_max: usize) -> SseParser {
        SseParser {
            line: SseLine::Kept(Vec::new()),
            data: SseData::Nothing,
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

    pub fn push(&mut self, bytes: &[u8]) -> Vec<SseItem> {
        let mut pieces = Vec::new();
        let mut rest = bytes;
        while let Some((first, after)) = rest.split_first() {
            match first {
                b'\n' if std::mem::take(&mut self.after_cr) => rest = after,
                b'\n' | b'\r' => {
                    self.after_cr = *first == b'\r';
                    pieces.extend(self.end_line());
                    rest = after;
                }
                _ => {
                    self.after_cr = false;
                    let length = rest.iter().position(|byte| matches!(byte, b'\n' | b'\r')).unwrap_or(rest.len());
                    let (line, after) = rest.split_at(length);
                    self.take(line);
                    rest = after;
                }
            }
        }
        pieces
    }

    /// A part of a line.
    fn take(&mut self, part: &[u8]) {
        match &mut self.line {
            SseLine::Ignored => {}
            SseLine::Skimmed => self.add(part),
            SseLine::Kept(line) => {
                line.extend_from_slice(part);
                if line.len() > self.bytes_max {
                    self.pass_over();
                }
            }
        }
    }

    /// The line alone is too long already.
    fn pass_over(&mut self) {
        let SseLine::Kept(line) = std::mem::replace(&mut self.line, SseLine::Ignored) else { return };
        let (name, value) = self.field(&line);
        if name == b"data" {
            self.line = SseLine::Skimmed;
            self.add_line(value);
        }
    }

    /// Name and value of a line.
    fn field<'a>(&mut self, line: &'a [u8]) -> (&'a [u8], &'a [u8]) {
        let bom: &[u8] = b"\xef\xbb\xbf";
        let first = !std::mem::replace(&mut self.begun, true);
        let line = line.strip_prefix(bom).filter(|_| first).unwrap_or(line);
        match line.iter().position(|byte| *byte == b':') {
            Some(at) => (&line[..at], line[at + 1..].strip_prefix(b" ").unwrap_or(&line[at + 1..])),
            None => (line, b""),
        }
    }

    fn add_line(&mut self, value: &[u8]) {
        match &mut self.data {
            SseData::Nothing => self.data = SseData::Whole(Vec::new()),
            SseData::Whole(_) | SseData::TooLarge(_) => self.add(b"\n"),
        }
        self.add(value);
    }

    fn add(&mut self, bytes: &[u8]) {
        match &mut self.data {
            SseData::TooLarge(scan) => scan.push(bytes),
            SseData::Whole(data) if data.len() + bytes.len() > self.bytes_max => {
                let mut scan = JsonScan::of(data);
                scan.push(bytes);
                self.data = SseData::TooLarge(scan);
            }
            SseData::Whole(data) => data.extend_from_slice(bytes),
            SseData::Nothing => {}
        }
    }

    fn end_line(&mut self) -> Option<SseItem> {
        let SseLine::Kept(line) = std::mem::replace(&mut self.line, SseLine::Kept(Vec::new())) else { return None };
        let (name, value) = self.field(&line);
        match name {
            b"" if value.is_empty() && line.last() != Some(&b':') => return self.end_event(),
            b"data" => self.add_line(value),
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
    fn end_event(&mut self) -> Option<SseItem> {
        let kind = self.kind.take();
        match std::mem::take(&mut self.data) {
            SseData::Nothing => None,
            SseData::TooLarge(scan) => Some(SseItem::TooLarge(scan)),
            SseData::Whole(data) => Some(match String::from_utf8(data) {
                Ok(data) => SseItem::Event(Event { id: self.id.clone(), kind, data }),
                Err(error) => SseItem::NotUtf8(JsonScan::of(error.as_bytes())),
            }),
        }
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
        let mut parser = SseParser::new(1000);
        let whole = |piece| match piece {
            SseItem::Event(event) => event,
            piece => panic!("{piece:?}"),
        };
        pieces.iter().flat_map(|piece| parser.push(piece)).map(whole).collect()
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
    fn an_event_that_is_too_large_is_passed_over_and_the_next_one_is_read() {
        let shown = |piece| match piece {
            SseItem::Event(event) => event.data,
            SseItem::TooLarge(scan) => format!("too large: {:?}", scan.id().unwrap()),
            SseItem::NotUtf8(scan) => format!("not UTF-8: {:?}", scan.id().unwrap()),
        };
        let x = "x".repeat(30);
        let text = format!(
            "data: {{\"id\":1}}\n\n:{x}{x}\ndata: {{\"a\":\"{x}\",\"id\":2}}\nid: e2\n\ndata: {{\"id\":3,\ndata: \"a\":\"\"\ndata: ,\"b\":\"{x}\"\n\ndata: {{\"id\":4}}\n\n"
        );
        for at in 0..text.len() {
            let mut parser = SseParser::new(40);
            let (before, after) = text.as_bytes().split_at(at);
            let pieces: Vec<String> =
                [before, after].into_iter().flat_map(|part| parser.push(part)).map(shown).collect();
            assert_eq!(pieces, ["{\"id\":1}", "too large: 2", "too large: 3", "{\"id\":4}"], "cut at {at}");
            assert_eq!(parser.last_id(), Some("e2"));
        }
    }

    #[test]
    fn data_that_is_not_utf_8_is_passed_over_and_not_mended() {
        let mut parser = SseParser::new(1000);
        let pieces = parser.push(b"id: e1\ndata: {\"id\":1,\"a\":\"caf\xe9\"}\n\ndata: {\"id\":2}\n\n");
        assert!(matches!(&pieces[0], SseItem::NotUtf8(scan) if scan.id() == Some(&crate::message::RpcId::number(1))));
        assert!(matches!(&pieces[1], SseItem::Event(event) if event.data == "{\"id\":2}"));
    }
}
