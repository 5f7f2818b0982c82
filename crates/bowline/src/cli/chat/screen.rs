//! What the chat looks like: live and dimmed on a terminal, only the answers in a pipe.

use std::io;

use super::interface::Show;
use crate::cli::out::{self, dim, harmless, red};

const CLEAR_LINE: &str = "\r\x1b[K";

#[derive(Debug)]
pub enum Screen {
    Terminal(Terminal),
    /// A script reads: answers as they are, byte for byte; errors on standard error.
    Plain,
}

#[derive(Debug, Default)]
pub struct Terminal {
    line: Line,
}

/// What stands on the line that the cursor is in.
#[derive(Debug, Default)]
enum Line {
    #[default]
    Empty,
    Answer,
    Prompt(String),
    Connection,
}

impl Screen {
    pub fn new(interactive: bool) -> Screen {
        if interactive { Screen::Terminal(Terminal::default()) } else { Screen::Plain }
    }

    pub fn show(&mut self, show: &Show) -> io::Result<()> {
        match (self, show) {
            (Screen::Terminal(terminal), show) => out::write(&terminal.render(show)),
            (Screen::Plain, Show::Answer { whole, .. }) => out::line(whole),
            (Screen::Plain, Show::Error(text)) => {
                out::error(&format!("error: {}", harmless(text)));
                Ok(())
            }
            (Screen::Plain, Show::Lost(why)) => {
                out::error(&format!("· {}; trying again", harmless(why)));
                Ok(())
            }
            (Screen::Plain, _) => Ok(()),
        }
    }

    /// The user pressed Enter, so the cursor is on a new line.
    pub fn typed(&mut self) {
        if let Screen::Terminal(terminal) = self {
            terminal.line = Line::Empty;
        }
    }

    /// Leaves the cursor where the shell's prompt belongs.
    pub fn finish(&mut self) -> io::Result<()> {
        match self {
            Screen::Terminal(terminal) => out::write(&terminal.fresh_line()),
            Screen::Plain => Ok(()),
        }
    }
}

impl Terminal {
    fn render(&mut self, show: &Show) -> String {
        match show {
            Show::Delta(text) => {
                let start = if matches!(self.line, Line::Answer) { String::new() } else { self.fresh_line() };
                self.line = Line::Answer;
                format!("{start}{}", harmless(text))
            }
            Show::Answer { whole, rest } => {
                // Streamed text that the answer does not begin with stays above it.
                let goes_on = matches!(self.line, Line::Answer) && rest.len() < whole.len();
                let start = if goes_on { String::new() } else { self.fresh_line() };
                self.line = Line::Empty;
                format!("{start}{}\n", harmless(rest))
            }
            Show::Aside(text) => self.between(&dim(&format!("  {}", harmless(text)))),
            Show::Notice(text) | Show::Lost(text) => self.between(&dim(&format!("· {}", harmless(text)))),
            Show::Error(text) => self.between(&red(&format!("error: {}", harmless(text)))),
            Show::Said(text) => self.between(&format!("> {}", harmless(text))),
            Show::Question(text) => self.prompt(&format!("? {} ", harmless(text))),
            Show::Prompt => self.prompt("> "),
            Show::Connection(text) => {
                let start = self.fresh_line();
                self.line = Line::Connection;
                format!("{start}{}", dim(&format!("· {}", harmless(text))))
            }
        }
    }

    /// A line of its own; a prompt that stood there is written again below.
    fn between(&mut self, text: &str) -> String {
        let prompt = match &self.line {
            Line::Prompt(prompt) => prompt.clone(),
            _ => String::new(),
        };
        let start = self.fresh_line();
        if !prompt.is_empty() {
            self.line = Line::Prompt(prompt.clone());
        }
        format!("{start}{text}\n{prompt}")
    }

    fn prompt(&mut self, text: &str) -> String {
        if matches!(&self.line, Line::Prompt(shown) if *shown == text) {
            return String::new();
        }
        let start = self.fresh_line();
        self.line = Line::Prompt(text.to_owned());
        format!("{start}{text}")
    }

    /// What brings the cursor to the start of an empty line.
    fn fresh_line(&mut self) -> String {
        match std::mem::take(&mut self.line) {
            Line::Empty => "",
            Line::Answer => "\n",
            Line::Prompt(_) | Line::Connection => CLEAR_LINE,
        }
        .to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(shows: &[Show]) -> String {
        let mut terminal = Terminal::default();
        shows.iter().map(|show| terminal.render(show)).collect()
    }

    fn delta(text: &str) -> Show {
        Show::Delta(text.into())
    }

    fn answer(whole: &str, rest: &str) -> Show {
        Show::Answer { whole: whole.into(), rest: rest.into() }
    }

    #[test]
    fn an_answer_that_was_streamed_is_not_repeated() {
        assert_eq!(render(&[delta("he"), delta("llo"), answer("hello", "")]), "hello\n");
        assert_eq!(render(&[delta("he"), answer("hello", "llo")]), "hello\n");
        assert_eq!(render(&[answer("hello", "hello")]), "hello\n");
        assert_eq!(render(&[delta("llo"), answer("hello", "hello")]), "llo\nhello\n");
    }

    #[test]
    fn the_connection_line_replaces_itself_and_then_goes_away() {
        let connection = |text: &str| Show::Connection(text.into());
        let text = render(&[delta("hel"), connection("a"), connection("b"), Show::Notice("back".into()), delta("lo")]);
        assert_eq!(text, format!("hel\n· a{CLEAR_LINE}· b{CLEAR_LINE}· back\nlo"));
    }

    #[test]
    fn a_notice_does_not_swallow_the_prompt() {
        assert_eq!(render(&[Show::Prompt, Show::Prompt, Show::Notice("n".into())]), format!("> {CLEAR_LINE}· n\n> "));
    }

    #[test]
    fn an_agent_cannot_take_over_the_terminal() {
        assert_eq!(render(&[delta("\x1b]0;title\x07ok")]), "]0;titleok");
    }
}
