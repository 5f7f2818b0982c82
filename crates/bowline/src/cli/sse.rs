//! Reads server-sent events out of bytes that arrive in any pieces.

/// One event. Fields that were not sent are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SseEvent {
    pub id: Option<String>,
    pub name: String,
    pub data: String,
}

#[derive(Debug, Default)]
pub struct SseReader {
    buffer: Vec<u8>,
    event: SseEvent,
    has_data: bool,
}

impl SseReader {
    /// Takes the next piece and returns the events that are now complete.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<SseEvent> {
        self.buffer.extend_from_slice(bytes);
        let mut events = Vec::new();
        while let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.buffer.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line);
            events.extend(self.line(line.trim_end_matches(['\r', '\n'])));
        }
        events
    }

    fn line(&mut self, line: &str) -> Option<SseEvent> {
        if line.is_empty() {
            let event = std::mem::take(&mut self.event);
            let complete = std::mem::take(&mut self.has_data) || !event.name.is_empty();
            return complete.then_some(event);
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "id" => self.event.id = Some(value.to_owned()),
            "event" => self.event.name = value.to_owned(),
            "data" => {
                if self.has_data {
                    self.event.data.push('\n');
                }
                self.has_data = true;
                self.event.data.push_str(value);
            }
            // Comments keep the connection warm; other fields mean nothing to us.
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_the_same_however_the_bytes_are_cut() {
        let text = ": hello\n\nid: e-1\ndata: {\"a\":1}\n\nid: e-2\r\ndata: x\r\ndata: é\r\n\r\nevent: end\n\nid: e-3\ndata: half";
        let whole = SseReader::default().push(text.as_bytes());
        let event = |id: Option<&str>, name: &str, data: &str| SseEvent {
            id: id.map(Into::into),
            name: name.into(),
            data: data.into(),
        };
        assert_eq!(
            whole,
            [event(Some("e-1"), "", "{\"a\":1}"), event(Some("e-2"), "", "x\né"), event(None, "end", "")]
        );
        for size in 1..text.len() {
            let mut reader = SseReader::default();
            let cut: Vec<_> = text.as_bytes().chunks(size).flat_map(|piece| reader.push(piece)).collect();
            assert_eq!(cut, whole, "pieces of {size}");
        }
    }
}
