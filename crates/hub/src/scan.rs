//! What can be learnt of a message that is too large or too broken to be taken: whom it answers, without keeping it. Of lines with a
//! limited length, a longer one is skimmed so and passed over.

use std::io;

use tokio::io::{AsyncBufRead, AsyncBufReadExt};

use crate::message::RpcId;

/// A longer member is none that is looked for.
const MEMBER_BYTES_MAX: usize = 256;

/// Looks at a JSON object as it passes by and notes what its own members say. Bytes may be cut anywhere.
#[derive(Default)]
pub struct JsonScan {
    depth: usize,
    in_string: bool,
    escaped: bool,
    is_object: bool,
    /// The name of the member whose value comes, once its colon has been seen.
    name: Option<Vec<u8>>,
    token: Vec<u8>,
    id: Option<RpcId>,
    has_method: bool,
    has_version: bool,
    has_outcome: bool,
    /// It has a member that no message has.
    has_more: bool,
}

impl JsonScan {
    pub fn of(bytes: &[u8]) -> JsonScan {
        let mut scan = JsonScan::default();
        scan.push(bytes);
        scan
    }

    pub fn push(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.take(*byte);
        }
    }

    fn take(&mut self, byte: u8) {
        if self.in_string {
            self.in_string = self.escaped || byte != b'"';
            self.escaped = !self.escaped && byte == b'\\';
            return self.keep(byte);
        }
        match byte {
            b'"' => {
                self.in_string = true;
                self.keep(byte);
            }
            b'{' | b'[' => {
                self.is_object |= self.depth == 0 && byte == b'{';
                self.depth += 1;
                // Whatever is in there is not the member itself.
                self.token.clear();
            }
            b'}' | b']' => {
                self.end_member();
                self.depth = self.depth.saturating_sub(1);
            }
            b',' => self.end_member(),
            b':' if self.depth == 1 && self.name.is_none() => self.begin_member(),
            byte if byte.is_ascii_whitespace() => {}
            byte => self.keep(byte),
        }
    }

    fn keep(&mut self, byte: u8) {
        if self.depth == 1 && self.token.len() <= MEMBER_BYTES_MAX {
            self.token.push(byte);
        }
    }

    fn begin_member(&mut self) {
        let name = std::mem::take(&mut self.token);
        match name.as_slice() {
            b"\"result\"" | b"\"error\"" => self.has_outcome = true,
            b"\"id\"" | b"\"method\"" | b"\"params\"" | b"\"jsonrpc\"" => {}
            _ => self.has_more = true,
        }
        self.name = Some(name);
    }

    fn end_member(&mut self) {
        if self.depth != 1 {
            return;
        }
        let (name, value) = (self.name.take(), std::mem::take(&mut self.token));
        match name.as_deref() {
            Some(b"\"id\"") => self.id = std::str::from_utf8(&value).ok().and_then(RpcId::parse),
            Some(b"\"method\"") => self.has_method = true,
            Some(b"\"jsonrpc\"") => self.has_version = true,
            _ => {}
        }
    }

    pub fn id(&self) -> Option<&RpcId> {
        self.id.as_ref()
    }

    /// Whether it says that it is JSON-RPC. Programs also write objects of their own, and those may have ids.
    pub fn is_rpc(&self) -> bool {
        self.has_version
    }

    /// The id under which it wants an answer, if it is a request.
    pub fn asks(&self) -> Option<&RpcId> {
        self.id.as_ref().filter(|_| self.is_object && self.has_method)
    }

    /// Whether it answers a request, also if it does not say that it is JSON-RPC: nothing but an id and an outcome.
    /// What loggers write has more than that.
    pub fn is_plainly_response(&self) -> bool {
        self.may_be_response() && self.id.is_some() && self.has_outcome && !self.has_more
    }

    /// Whether it is a request or a notification, as far as it can be read.
    pub fn has_method(&self) -> bool {
        self.has_method
    }

    /// Whether it can be a response: an object that is no request and no notification.
    pub fn may_be_response(&self) -> bool {
        self.is_object && !self.has_method
    }
}

/// It may hold what people wrote, so only what was looked for is shown.
impl std::fmt::Debug for JsonScan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Scan(id: {:?}, method: {})", self.id, self.has_method)
    }
}

/// One line, without its end.
pub enum InputLine {
    Whole(Vec<u8>),
    TooLong(JsonScan),
}

pub struct Lines<R> {
    input: R,
    bytes_max: usize,
}

impl<R: AsyncBufRead + Unpin> Lines<R> {
    pub fn new(input: R, bytes_max: usize) -> Lines<R> {
        Lines { input, bytes_max }
    }

    /// `None` at the end. Must not be dropped while it waits: what it has of a line would be lost.
    pub async fn next(&mut self) -> io::Result<Option<InputLine>> {
        let mut line = InputLine::Whole(Vec::new());
        let mut begun = false;
        loop {
            let bytes = self.input.fill_buf().await?;
            if bytes.is_empty() {
                return Ok(begun.then_some(line));
            }
            begun = true;
            let end = bytes.iter().position(|byte| *byte == b'\n');
            let piece = &bytes[..end.unwrap_or(bytes.len())];
            line = match line {
                InputLine::Whole(kept) if kept.len() + piece.len() > self.bytes_max => {
                    let mut scan = JsonScan::of(&kept);
                    scan.push(piece);
                    InputLine::TooLong(scan)
                }
                InputLine::Whole(mut kept) => {
                    kept.extend_from_slice(piece);
                    InputLine::Whole(kept)
                }
                InputLine::TooLong(mut scan) => {
                    scan.push(piece);
                    InputLine::TooLong(scan)
                }
            };
            let taken = piece.len() + usize::from(end.is_some());
            self.input.consume(taken);
            if end.is_some() {
                return Ok(Some(line));
            }
        }
    }
}

impl<R> std::fmt::Debug for Lines<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Lines(up to {} bytes)", self.bytes_max)
    }
}

impl std::fmt::Debug for InputLine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            InputLine::Whole(bytes) => write!(f, "Whole({} bytes)", bytes.len()),
            InputLine::TooLong(scan) => write!(f, "TooLong({scan:?})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &str) -> Option<String> {
        let mut cut = JsonScan::default();
        text.as_bytes().chunks(1).for_each(|byte| cut.push(byte));
        let whole = JsonScan::of(text.as_bytes());
        assert_eq!(whole.id(), cut.id(), "it reads the same wherever it is cut");
        whole.id().map(|id| id.as_json().to_owned())
    }

    #[test]
    fn an_id_is_found_wherever_it_stands_and_only_if_it_is_the_messages_own() {
        let long = "x".repeat(1000);
        assert_eq!(id(&format!(r#"{{"jsonrpc":"2.0","id":7,"result":{{"a":["{long}"]}}}}"#)).unwrap(), "7");
        assert_eq!(id(&format!(r#"{{"result":"{long}", "id" : "a\"}}b" ,"jsonrpc":"2.0"}}"#)).unwrap(), r#""a\"}b""#);
        assert_eq!(id(&format!(r#"{{"result":{{"id":1}},"x":"\",\"id\":2,{long}"}}"#)), None);
        assert_eq!(id(&format!(r#"{{"id":{}1{},"result":{{"id":5}}}}"#, "[".repeat(500), "]".repeat(500))), None);
        assert_eq!(id(&format!(r#"{{"id":"{long}"}}"#)), None);
        assert_eq!(
            id(r#"["id":1]"#).as_deref(),
            Some("1"),
            "what is broken is guessed at, and told apart by its shape"
        );
        // Cut before its end.
        assert_eq!(id(r#"{"id":9,"result":{"a":"#).as_deref(), Some("9"));
    }

    #[test]
    fn a_notification_a_request_and_a_word_of_a_programs_are_no_responses() {
        let may = |text: &str| JsonScan::of(text.as_bytes()).may_be_response();
        assert!(may(r#"{"id":1,"result":{"method":"x"}}"#) && may(r#"{"result":[[[["#));
        assert!(
            !may(r#"{"method":"notifications/message","params":{}}"#) && !may(r#"{"params":{},"method":"m","id":1}"#)
        );
        assert!(!may("listening on port 80") && !may("[1,{}]"));
        let asks = |text: &str| JsonScan::of(text.as_bytes()).asks().map(|id| id.as_json().to_owned());
        assert_eq!(asks(r#"{"params":{},"method":"m","id":1}"#).as_deref(), Some("1"));
        assert_eq!(asks(r#"{"result":{},"id":1}"#), None);
        let plainly = |text: &str| JsonScan::of(text.as_bytes()).is_plainly_response();
        assert!(
            plainly(r#"{"id":1,"result":{"level":30}}"#) && plainly(r#"{"error":{"code":1,"message":"m"},"id":1}"#)
        );
        assert!(!plainly(r#"{"id":1,"error":"e","level":50}"#) && !plainly(r#"{"id":1,"error":"e","method":"m"}"#));
        assert!(
            !plainly(r#"{"id":1}"#) && !plainly(r#"{"result":{}}"#) && !plainly(r#"{"level":{"result":1},"id":1}"#)
        );
        let rpc = |text: &str| JsonScan::of(text.as_bytes()).is_rpc();
        assert!(rpc(r#"{"jsonrpc":"2.0","id":1}"#) && !rpc(r#"{"level":30,"id":1,"msg":{"jsonrpc":"2.0"}}"#));
    }
}

#[cfg(test)]
mod lines_tests {
    use super::*;

    #[tokio::test]
    async fn a_line_that_is_too_long_is_passed_over_and_its_neighbours_are_not() {
        let text = format!("{{\"id\":1}}\n\n{{\"id\":2,\"a\":\"{}\"}}\r\n{{\"id\":3}}", "x".repeat(100));
        for buffered in 1..40 {
            let input = tokio::io::BufReader::with_capacity(buffered, text.as_bytes());
            let mut lines = Lines::new(input, 20);
            let mut seen = Vec::new();
            while let Some(line) = lines.next().await.unwrap() {
                seen.push(match line {
                    InputLine::Whole(bytes) => String::from_utf8(bytes).unwrap(),
                    InputLine::TooLong(scan) => format!("too long: {:?}", scan.id().unwrap()),
                });
            }
            assert_eq!(seen, ["{\"id\":1}", "", "too long: 2", "{\"id\":3}"], "{buffered} at a time");
        }
    }
}
