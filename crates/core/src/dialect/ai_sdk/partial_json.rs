//! JSON of which only the beginning is there: read as the AI SDK reads the input of a tool call while it streams in.
//!
//! This follows the SDK's `fixJson` step by step, oddities included, since the result must be the same.

use serde_json::Value;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Root,
    Finish,
    InString,
    InStringEscape,
    InUnicodeEscape,
    InNumber,
    InLiteral,
    ObjectStart,
    ObjectKey,
    ObjectAfterKey,
    ObjectBeforeValue,
    ObjectAfterValue,
    ObjectAfterComma,
    ArrayStart,
    ArrayAfterValue,
    ArrayAfterComma,
}

const LITERALS: [&str; 3] = ["true", "false", "null"];

/// What can be read of `text`; `None` if that is nothing.
pub fn parse(text: &str) -> Option<Value> {
    serde_json::from_str(text).or_else(|_| serde_json::from_str(&complete(text))).ok()
}

/// `text` up to where it is still JSON, with everything closed that is open there.
fn complete(text: &str) -> String {
    let mut fixer = Fixer { text, stack: vec![State::Root], valid: 0, literal_start: 0, hex_digits: 0 };
    for (at, c) in text.char_indices() {
        fixer.step(c, at, at + c.len_utf8());
    }
    fixer.close()
}

struct Fixer<'a> {
    text: &'a str,
    stack: Vec<State>,
    /// Up to here it can be kept.
    valid: usize,
    literal_start: usize,
    hex_digits: u8,
}

impl Fixer<'_> {
    fn top(&self) -> State {
        // The SDK's switch does nothing on an empty stack either.
        self.stack.last().copied().unwrap_or(State::Finish)
    }

    fn swap(&mut self, state: State) {
        self.stack.pop();
        self.stack.push(state);
    }

    fn close_value(&mut self, end: usize) {
        self.valid = end;
        self.stack.pop();
    }

    fn begin_value(&mut self, c: char, at: usize, end: usize, then: State) {
        let inside = match c {
            '"' => State::InString,
            't' | 'f' | 'n' => State::InLiteral,
            '-' | '0'..='9' => State::InNumber,
            '{' => State::ObjectStart,
            '[' => State::ArrayStart,
            _ => return,
        };
        if inside == State::InLiteral {
            self.literal_start = at;
        }
        // A sign alone is not a number yet.
        if c != '-' {
            self.valid = end;
        }
        self.swap(then);
        self.stack.push(inside);
    }

    fn after_object_value(&mut self, c: char, end: usize) {
        match c {
            ',' => self.swap(State::ObjectAfterComma),
            '}' => self.close_value(end),
            _ => {}
        }
    }

    fn after_array_value(&mut self, c: char, end: usize) {
        match c {
            ',' => self.swap(State::ArrayAfterComma),
            ']' => self.close_value(end),
            _ => {}
        }
    }

    /// The value before `c` is over, and `c` belongs to what holds it.
    fn after_value(&mut self, c: char, end: usize) {
        self.stack.pop();
        match self.top() {
            State::ObjectAfterValue => self.after_object_value(c, end),
            State::ArrayAfterValue => self.after_array_value(c, end),
            _ => {}
        }
    }

    fn step(&mut self, c: char, at: usize, end: usize) {
        match (self.top(), c) {
            (State::Root, _) => self.begin_value(c, at, end, State::Finish),
            (State::ObjectStart, '}') => self.close_value(end),
            (State::ObjectStart | State::ObjectAfterComma, '"') => self.swap(State::ObjectKey),
            (State::ObjectKey, '"') => self.swap(State::ObjectAfterKey),
            (State::ObjectAfterKey, ':') => self.swap(State::ObjectBeforeValue),
            (State::ObjectBeforeValue, _) => self.begin_value(c, at, end, State::ObjectAfterValue),
            (State::ObjectAfterValue, _) => self.after_object_value(c, end),
            (State::InString, '"') => self.close_value(end),
            (State::InString, '\\') => self.stack.push(State::InStringEscape),
            (State::InString, _) => self.valid = end,
            (State::InStringEscape, 'u') => {
                self.hex_digits = 0;
                self.swap(State::InUnicodeEscape);
            }
            (State::InStringEscape, _) => self.close_value(end),
            (State::InUnicodeEscape, _) if c.is_ascii_hexdigit() => {
                self.hex_digits += 1;
                if self.hex_digits == 4 {
                    self.close_value(end);
                }
            }
            (State::ArrayStart | State::ArrayAfterValue, ']') => self.close_value(end),
            (State::ArrayAfterValue, ',') => self.swap(State::ArrayAfterComma),
            (State::ArrayAfterValue, _) => self.valid = end,
            (State::ArrayStart | State::ArrayAfterComma, _) => self.begin_value(c, at, end, State::ArrayAfterValue),
            (State::InNumber, '0'..='9') => self.valid = end,
            (State::InNumber, 'e' | 'E' | '-' | '.') => {}
            (State::InNumber, ',' | '}' | ']') => self.after_number(c, end),
            (State::InNumber, _) => drop(self.stack.pop()),
            (State::InLiteral, _) => {
                let partial = &self.text[self.literal_start..end];
                if LITERALS.iter().any(|literal| literal.starts_with(partial)) {
                    self.valid = end;
                } else {
                    self.after_value(c, end);
                }
            }
            _ => {}
        }
    }

    /// A bracket that does not fit what holds the number is overlooked, as the SDK does.
    fn after_number(&mut self, c: char, end: usize) {
        self.stack.pop();
        match (self.top(), c) {
            (State::ObjectAfterValue, ',' | '}') => self.after_object_value(c, end),
            (State::ArrayAfterValue, ',' | ']') => self.after_array_value(c, end),
            _ => {}
        }
    }

    fn close(self) -> String {
        let mut result = self.text[..self.valid].to_owned();
        for state in self.stack.iter().rev() {
            match state {
                State::InString => result.push('"'),
                State::ObjectKey
                | State::ObjectAfterKey
                | State::ObjectAfterComma
                | State::ObjectStart
                | State::ObjectBeforeValue
                | State::ObjectAfterValue => result.push('}'),
                State::ArrayStart | State::ArrayAfterComma | State::ArrayAfterValue => result.push(']'),
                State::InLiteral => {
                    let partial = &self.text[self.literal_start..];
                    let literal = LITERALS.iter().find(|literal| literal.starts_with(partial));
                    result.push_str(literal.map_or("", |literal| &literal[partial.len()..]));
                }
                _ => {}
            }
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_beginning_is_read_as_far_as_it_goes() {
        for (text, value) in [
            ("", None),
            ("{", Some(json!({}))),
            (r#"{"a"#, Some(json!({}))),
            (r#"{"a":"#, Some(json!({}))),
            (r#"{"a":tr"#, Some(json!({"a": true}))),
            (r#"{"a":1.5,"b":[1,{"c":"d\"#, Some(json!({"a": 1.5, "b": [1, {"c": "d"}]}))),
            (r#"{"a":1."#, Some(json!({"a": 1}))),
            (r#"{"a":"\u00"#, Some(json!({"a": ""}))),
            (r#"{"a":"\u00e9"#, Some(json!({"a": "é"}))),
            (r#"{"a":-"#, Some(json!({}))),
            ("[1,2", Some(json!([1, 2]))),
            (r#""text"#, Some(json!("text"))),
            ("nu", Some(json!(null))),
            ("x", None),
        ] {
            assert_eq!(parse(text), value, "{text}");
        }
    }

    #[test]
    fn no_beginning_of_json_is_unreadable_after_its_first_character() {
        let text = r#"{"a":[1,-2.5e3,"x\n\u00e9😀",{"b":null,"c":[true,false]}],"d":{}}"#;
        for (end, _) in text.char_indices().skip(1) {
            assert!(parse(&text[..end]).is_some(), "{}", &text[..end]);
        }
    }
}
