//! A chunk from outside, read in place and checked.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::ChunkKind;

/// Why something is not a chunk. Says which field is at fault and shows nothing of what was in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChunkError {
    /// Not a JSON object, or one that names a field twice.
    NotAnObject,
    /// `type` is missing, not a text, or none that the SDK knows.
    UnknownType,
    Missing {
        kind: ChunkKind,
        field: &'static str,
    },
    WrongType {
        kind: ChunkKind,
        field: &'static str,
        wanted: &'static str,
    },
    /// It belongs to a part or tool call that was never begun, and no parser would take it.
    NotBegun {
        kind: ChunkKind,
        field: &'static str,
    },
    /// It nests deeper than the log's readers go.
    TooDeep {
        depth_max: usize,
    },
}

impl ChunkError {
    /// The field at fault, if it is one.
    pub fn field(&self) -> Option<&'static str> {
        match self {
            ChunkError::NotAnObject | ChunkError::TooDeep { .. } => None,
            ChunkError::UnknownType => Some("type"),
            ChunkError::Missing { field, .. }
            | ChunkError::WrongType { field, .. }
            | ChunkError::NotBegun { field, .. } => Some(field),
        }
    }
}

impl fmt::Display for ChunkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ChunkError::NotAnObject => f.write_str("A chunk is a JSON object that names each field once."),
            ChunkError::UnknownType => f.write_str("`type` must be a type of chunk that the AI SDK knows."),
            ChunkError::Missing { kind, field } => write!(f, "`{field}` is missing from a `{}` chunk.", kind.as_str()),
            ChunkError::WrongType { kind, field, wanted } => {
                write!(f, "`{field}` of a `{}` chunk must be {wanted}.", kind.as_str())
            }
            ChunkError::NotBegun { kind, field } => {
                write!(f, "`{field}` of a `{}` chunk names something that was not begun.", kind.as_str())
            }
            ChunkError::TooDeep { depth_max } => write!(f, "A chunk may nest {depth_max} deep at most."),
        }
    }
}

impl std::error::Error for ChunkError {}

#[derive(Clone, Copy)]
enum Shape {
    Any,
    Text,
    Flag,
    Object,
    List,
}

impl Shape {
    fn fits(self, raw: &RawValue) -> bool {
        let first = raw.get().as_bytes().first();
        match self {
            Shape::Any => true,
            // Half a surrogate pair is no text that could be a name; a delta may hold one, so only the quote is checked.
            Shape::Text => first == Some(&b'"'),
            Shape::Flag => matches!(first, Some(b't' | b'f')),
            Shape::Object => first == Some(&b'{'),
            Shape::List => first == Some(&b'['),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Shape::Any => "anything",
            Shape::Text => "a text",
            Shape::Flag => "true or false",
            Shape::Object => "an object",
            Shape::List => "a list",
        }
    }
}

macro_rules! fields {
    ($($name:ident $key:literal $shape:ident,)*) => {
        /// The fields of a chunk that are used here, each as it was written. What a chunk has besides is kept by
        /// those who keep its text.
        #[derive(Clone, Copy, Default, Deserialize)]
        pub struct ChunkFields<'a> {
            #[serde(rename = "type", borrow, default, deserialize_with = "present")]
            pub kind_name: Option<&'a RawValue>,
            $(
                #[serde(rename = $key, borrow, default, deserialize_with = "present")]
                pub $name: Option<&'a RawValue>,
            )*
        }

        impl<'a> ChunkFields<'a> {
            fn each(&self) -> impl Iterator<Item = (&'static str, Option<&'a RawValue>, Shape)> {
                [$(($key, self.$name, Shape::$shape)),*].into_iter()
            }

            fn has(&self, key: &str) -> bool {
                match key {
                    $($key => self.$name.is_some(),)*
                    _ => false,
                }
            }

            fn all_present(&self, is: impl Fn(&'static str, &'a RawValue, Shape) -> bool) -> bool {
                $(self.$name.is_none_or(|raw| is($key, raw, Shape::$shape)))&&*
            }
        }
    };
}

fields! {
    id "id" Text,
    delta "delta" Text,
    tool_call_id "toolCallId" Text,
    tool_name "toolName" Text,
    input "input" Any,
    input_text_delta "inputTextDelta" Text,
    output "output" Any,
    error_text "errorText" Text,
    data "data" Any,
    transient "transient" Flag,
    message_id "messageId" Text,
    message_metadata "messageMetadata" Any,
    preliminary "preliminary" Flag,
    dynamic "dynamic" Flag,
    provider_executed "providerExecuted" Flag,
    provider_metadata "providerMetadata" Object,
    tool_metadata "toolMetadata" Object,
    input_encoding "inputEncoding" Text,
    approval_id "approvalId" Text,
    approval_descriptor "approvalDescriptor" Any,
    input_schema_input "inputSchemaInput" Any,
    is_automatic "isAutomatic" Flag,
    signature "signature" Text,
    approved "approved" Flag,
    source_id "sourceId" Text,
    url "url" Text,
    media_type "mediaType" Text,
    title "title" Text,
    filename "filename" Text,
    citations "citations" List,
    custom_kind "kind" Text,
    parts "parts" List,
    finish_reason "finishReason" Text,
    reason "reason" Text,
}

impl fmt::Debug for ChunkFields<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let present = self.each().filter_map(|(key, value, _)| value.map(|raw| (key, raw.get().len())));
        f.debug_map().entries(present).finish()
    }
}

/// The fields of a delta that has no others: so are nearly all chunks, and a struct of three fields is read much faster
/// than one of all.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DeltaFields<'a> {
    #[serde(rename = "type", borrow)]
    kind_name: &'a RawValue,
    #[serde(borrow)]
    id: &'a RawValue,
    #[serde(borrow)]
    delta: &'a RawValue,
}

impl<'a> DeltaFields<'a> {
    /// None for any other chunk, and for what is none.
    fn parse(text: &'a str) -> Option<ChunkFields<'a>> {
        let may_be =
            ["{\"type\":\"text-delta\"", "{\"type\":\"reasoning-delta\""].iter().any(|head| text.starts_with(head));
        let fields: DeltaFields<'a> = may_be.then(|| serde_json::from_str(text).ok()).flatten()?;
        let (kind_name, id, delta) = (Some(fields.kind_name), Some(fields.id), Some(fields.delta));
        Some(ChunkFields { kind_name, id, delta, ..ChunkFields::default() })
    }
}

/// A field that is `null` is there; only one that is not written is absent.
fn present<'de: 'a, 'a, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'a RawValue>, D::Error> {
    <&'a RawValue>::deserialize(deserializer).map(Some)
}

/// Reasons that some generation of the SDK knows; with any other, the whole stream fails there.
const FINISH_REASONS: &[&str] =
    &["stop", "length", "content-filter", "tool-calls", "error", "interrupted", "other", "unknown"];

/// A chunk that has the fields its type needs, of the right types. It may be a person's, so `Debug` shows its type only.
#[derive(Clone, Copy)]
pub struct ChunkView<'a> {
    pub kind: ChunkKind,
    pub fields: ChunkFields<'a>,
}

impl fmt::Debug for ChunkView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ChunkView({})", self.kind.as_str())
    }
}

impl<'a> ChunkView<'a> {
    pub fn parse(text: &'a str) -> Result<ChunkView<'a>, ChunkError> {
        // A sequence would be read as a struct too.
        if !text.trim_start().starts_with('{') {
            return Err(ChunkError::NotAnObject);
        }
        let fields = match DeltaFields::parse(text) {
            Some(fields) => fields,
            None => serde_json::from_str(text).map_err(|_| ChunkError::NotAnObject)?,
        };
        let name = fields.kind_name.and_then(name_of).ok_or(ChunkError::UnknownType)?;
        let kind = ChunkKind::parse(&name).ok_or(ChunkError::UnknownType)?;
        let fits = |field: &str, raw: &RawValue, shape: Shape| !concerns(kind, field) || shape.fits(raw);
        // Most chunks are sound, and only one that is not needs to know which field is the first at fault.
        if !kind.required().iter().all(|field| fields.has(field)) || !fields.all_present(fits) {
            for (field, value, shape) in fields.each() {
                match value {
                    None if kind.required().contains(&field) => return Err(ChunkError::Missing { kind, field }),
                    Some(raw) if !fits(field, raw, shape) => {
                        return Err(ChunkError::WrongType { kind, field, wanted: shape.name() });
                    }
                    _ => {}
                }
            }
        }
        let view = ChunkView { kind, fields };
        view.check_names()?;
        Ok(view)
    }

    /// Names must be whole texts, since they are compared; reasons must be known ones.
    fn check_names(&self) -> Result<(), ChunkError> {
        let (kind, fields) = (self.kind, &self.fields);
        let names = [
            ("id", fields.id),
            ("toolCallId", fields.tool_call_id),
            ("toolName", fields.tool_name),
            ("approvalId", fields.approval_id),
        ];
        for (field, value) in names {
            if concerns(kind, field) && value.is_some_and(|raw| name_of(raw).is_none()) {
                return Err(ChunkError::WrongType { kind, field, wanted: "a text" });
            }
        }
        let reason = fields.finish_reason.filter(|_| kind == ChunkKind::Finish).map(name_of);
        if reason.is_some_and(|reason| !FINISH_REASONS.iter().any(|known| reason.as_deref() == Some(*known))) {
            return Err(ChunkError::WrongType {
                kind,
                field: "finishReason",
                wanted: "a reason that the AI SDK knows",
            });
        }
        Ok(())
    }

    /// The text of a delta, if this is one.
    pub fn delta_text(&self) -> Option<&'a RawValue> {
        match self.kind {
            ChunkKind::TextDelta | ChunkKind::ReasoningDelta => self.fields.delta,
            ChunkKind::ToolInputDelta => self.fields.input_text_delta,
            _ => None,
        }
    }

    /// The id of the part that it belongs to.
    pub fn id(&self) -> Cow<'a, str> {
        self.fields.id.and_then(name_of).unwrap_or_default()
    }

    pub fn tool_call_id(&self) -> Cow<'a, str> {
        self.fields.tool_call_id.and_then(name_of).unwrap_or_default()
    }

    pub fn tool_name(&self) -> Cow<'a, str> {
        self.fields.tool_name.and_then(name_of).unwrap_or_default()
    }

    pub fn approval_id(&self) -> Cow<'a, str> {
        self.fields.approval_id.and_then(name_of).unwrap_or_default()
    }

    /// Whether more outputs of this tool call will follow.
    pub fn is_preliminary(&self) -> bool {
        self.fields.preliminary.is_some_and(|raw| raw.get() == "true")
    }

    pub fn is_dynamic(&self) -> bool {
        self.fields.dynamic.is_some_and(|raw| raw.get() == "true")
    }
}

/// Data may have any fields inside; beside `id` and `transient` the parsers look at none of the others.
fn concerns(kind: ChunkKind, field: &str) -> bool {
    kind != ChunkKind::Data || matches!(field, "id" | "transient")
}

fn name_of(raw: &RawValue) -> Option<Cow<'_, str>> {
    let literal = raw.get();
    match literal.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) {
        Some(plain) if !plain.contains('\\') => Some(Cow::Borrowed(plain)),
        _ => serde_json::from_str(literal).ok().map(Cow::Owned),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> ChunkError {
        ChunkView::parse(text).unwrap_err()
    }

    #[test]
    fn what_is_no_chunk_is_refused_by_the_name_of_its_field() {
        for text in ["", "1", "null", "[]", "[\"text-start\"]", "{", "{\"type\":\"start\",\"type\":\"start\"}"] {
            assert_eq!(error(text), ChunkError::NotAnObject, "{text}");
        }
        for text in ["{}", r#"{"type":1}"#, r#"{"type":null}"#, r#"{"type":"text"}"#, r#"{"type":"dat-x"}"#] {
            assert_eq!(error(text), ChunkError::UnknownType, "{text}");
        }
        let missing = [
            (r#"{"type":"text-start"}"#, "id"),
            (r#"{"type":"text-delta","id":"1"}"#, "delta"),
            (r#"{"type":"text-delta","delta":"1","x":1}"#, "id"),
            (r#"{"type":"tool-input-available","toolCallId":"1"}"#, "toolName"),
            (r#"{"type":"error"}"#, "errorText"),
        ];
        for (text, field) in missing {
            assert!(matches!(error(text), ChunkError::Missing { field: at, .. } if at == field), "{text}");
        }
        let wrong = [
            (r#"{"type":"text-start","id":null}"#, "id"),
            (r#"{"type":"text-start","id":"\ud800"}"#, "id"),
            (r#"{"type":"text-delta","id":"1","delta":5}"#, "delta"),
            (r#"{"type":"data-x","transient":"yes"}"#, "transient"),
            (r#"{"type":"finish","finishReason":"tired"}"#, "finishReason"),
            (r#"{"type":"file","url":"u","mediaType":"m","providerMetadata":[]}"#, "providerMetadata"),
        ];
        for (text, field) in wrong {
            assert!(matches!(error(text), ChunkError::WrongType { field: at, .. } if at == field), "{text}");
        }
    }

    #[test]
    fn what_javascript_leaves_out_may_be_absent() {
        for text in [
            r#"{"type":"tool-output-available","toolCallId":"1"}"#,
            r#"{"type":"tool-input-error","toolCallId":"1","toolName":"t","errorText":"e"}"#,
            r#"{"type":"data-x"}"#,
            r#"{"type":"data-x","delta":1,"providerMetadata":2}"#,
            r#" {"type":"text-delta","id":"\u0031","delta":"\ud83d"} "#,
        ] {
            assert!(ChunkView::parse(text).is_ok(), "{text}");
        }
    }
}
