//! What answers promise beyond the Rust types of their members, for the document that describes them.

use bowline_api::Role;
use bowline_protocol::{ErrorCode, RecoveryAction};
use schemars::{Schema, SchemaGenerator, json_schema};

/// `<epoch>-<seq>`, with the place within the event if that became several chunks; or the number alone.
pub const CURSOR: &str = r"^([A-Za-z0-9]{1,32}-)?[0-9]{1,15}(\.[1-9][0-9]{0,8})?$";
/// A cursor to show.
pub const CURSOR_EXAMPLE: &str = "7k3m9x2c0q-12";

/// A moment, as RFC 3339 writes it.
pub fn time(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "format": "date-time" })
}

pub fn time_or_null(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": ["string", "null"], "format": "date-time" })
}

/// A position in a stream.
pub fn cursor(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "pattern": CURSOR, "examples": [CURSOR_EXAMPLE] })
}

/// An object whose members depend on what it is about.
pub fn object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object" })
}

pub fn error_code(_: &mut SchemaGenerator) -> Schema {
    words(ErrorCode::ALL.iter().map(|code| code.as_str()))
}

pub fn recovery_action(_: &mut SchemaGenerator) -> Schema {
    words(RecoveryAction::ALL.iter().map(|action| action.as_str()))
}

/// Who wrote a message.
pub fn role(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "enum": [Role::User, Role::Assistant] })
}

/// The parts of a message of the AI SDK.
pub fn parts(_: &mut SchemaGenerator) -> Schema {
    let part = json_schema!({ "type": "object", "properties": { "type": { "type": "string" } }, "required": ["type"] });
    json_schema!({ "type": "array", "items": part })
}

/// A number that may have a fraction, and is written without one where it has none.
pub fn number(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "number" })
}

/// What is true wherever it is present.
pub fn only_true(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "const": true })
}

fn words<'a>(words: impl Iterator<Item = &'a str>) -> Schema {
    json_schema!({ "type": "string", "enum": words.collect::<Vec<_>>() })
}
