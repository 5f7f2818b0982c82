//! Lines of a limited length: a longer one is skimmed and passed over, and the next one is read as if nothing had been.

use std::io;

use tokio::io::{AsyncBufRead, AsyncBufReadExt};

use crate::scan::JsonScan;

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
