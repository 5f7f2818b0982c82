//! The one place that writes to the terminal: plain lines for programs, dimmed ones for people.

use std::io::{self, IsTerminal, Write};

/// Whether a person is looking at what we print.
pub fn is_terminal() -> bool {
    io::stdout().is_terminal()
}

/// Whether colours are wanted: a terminal that does not say `NO_COLOR`.
pub fn has_colour() -> bool {
    is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

pub fn line(text: &str) -> io::Result<()> {
    write(&format!("{text}\n"))
}

/// Writes and flushes, so that an answer is seen as it comes.
pub fn write(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// A line on standard error. Nothing can be done if even that fails.
pub fn error(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Replaces the line on standard error on which the cursor stands.
pub fn overwrite(text: &str) {
    let mut err = io::stderr().lock();
    let _ = write!(err, "\r\x1b[K{text}").and_then(|()| err.flush());
}

pub fn dim(text: &str) -> String {
    if has_colour() { format!("\x1b[2m{text}\x1b[0m") } else { text.to_owned() }
}

pub fn red(text: &str) -> String {
    if has_colour() { format!("\x1b[31m{text}\x1b[0m") } else { text.to_owned() }
}

/// Text from elsewhere, without what could move the cursor or rewrite the screen.
pub fn harmless(text: &str) -> String {
    text.chars().filter(|c| !c.is_control() || matches!(c, '\n' | '\t')).collect()
}

/// The first `chars_max` characters on one line.
pub fn short(text: &str, chars_max: usize) -> String {
    let one_line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    match one_line.char_indices().nth(chars_max) {
        Some((end, _)) => format!("{}…", &one_line[..end]),
        None => one_line,
    }
}

/// Whether an error only says that our output is not read any more, as with `| head`.
pub fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_from_elsewhere_cannot_move_the_cursor() {
        assert_eq!(harmless("a\x1b[2Jb\r\n\tc\x07"), "a[2Jb\n\tc");
        assert_eq!(short("one\ntwo three", 7), "one two…");
        assert_eq!(short("é", 1), "é");
    }
}
