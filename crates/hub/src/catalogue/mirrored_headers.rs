//! Headers that repeat what a request says: its method and name, and arguments in `Mcp-Param-*` where a tool's schema says so with
//! `x-mcp-header`.

use serde_json::Value;
use serde_json::value::RawValue;

use crate::fields::{Fields, Raw};

pub const VERSION: &str = "mcp-protocol-version";
const ANNOTATION: &str = "x-mcp-header";
pub const PREFIX: &str = "mcp-param-";
/// Integers beyond these cannot be told apart by everyone (2^53 - 1).
const INTEGER_MAX: f64 = 9_007_199_254_740_991.0;
/// A schema that nests deeper is looked at no further, and what is annotated there is refused.
const DEPTH_MAX: usize = 32;

/// The headers that repeat the method of a request and what it names.
pub fn named_headers(method: &str, params: Option<&RawValue>) -> Vec<(String, String)> {
    let mut headers = vec![("mcp-method".to_owned(), method.to_owned())];
    let fields = Fields::of(params);
    let key = match method {
        "tools/call" | "prompts/get" => "name",
        "resources/read" => "uri",
        method if method.starts_with("tasks/") => "taskId",
        _ => return headers,
    };
    if let Some(name) = fields.text(key) {
        headers.push(("mcp-name".to_owned(), header_text(&name)));
    }
    headers
}

/// A value as it may stand in a header; what does not fit is wrapped as the protocol says.
pub fn header_text(text: &str) -> String {
    let plain = text.bytes().all(|b| (0x20..0x7f).contains(&b) || b == b'\t');
    let trimmed = text.trim() == text && !text.starts_with("=?base64?");
    if plain && trimmed {
        return text.to_owned();
    }
    use base64::Engine;
    format!("=?base64?{}?=", base64::engine::general_purpose::STANDARD.encode(text))
}

/// What a header says, unwrapped if it was wrapped.
pub fn plain_text(header: &str) -> String {
    use base64::Engine;
    let wrapped = header.strip_prefix("=?base64?").and_then(|rest| rest.strip_suffix("?="));
    let bytes = wrapped.and_then(|text| base64::engine::general_purpose::STANDARD.decode(text).ok());
    bytes.and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_else(|| header.to_owned())
}

/// One annotated argument: where it is, and the header that repeats it.
#[derive(Debug, PartialEq, Eq)]
struct Mirrored {
    path: Vec<String>,
    header: String,
}

/// The headers that a call of this tool must have.
pub fn headers(tool: &Raw, arguments: &Fields) -> Vec<(String, String)> {
    let arguments = value(&arguments.to_raw());
    let one = |mirrored: Mirrored| Some((mirrored.header, header_text(&written(at(&arguments, &mirrored.path)?)?)));
    mirrored(tool).unwrap_or_default().into_iter().filter_map(one).collect()
}

/// Why the headers of a call do not say what its arguments say; `header` gives a header's value as it came.
pub fn mismatch<'a>(tool: &Raw, arguments: &Fields, header: impl Fn(&str) -> Option<&'a str>) -> Option<String> {
    let arguments = value(&arguments.to_raw());
    for Mirrored { path, header: name } in mirrored(tool).unwrap_or_default() {
        let given = at(&arguments, &path);
        match (given.and_then(written), header(&name)) {
            (None, None) => {}
            (None, Some(_)) => return Some(format!("the header {name} repeats an argument that is not there")),
            (Some(_), None) => return Some(format!("the header {name} is missing")),
            (Some(expected), Some(told)) => {
                if !same(given, &expected, &plain_text(told)) {
                    return Some(format!("the header {name} differs from the body"));
                }
            }
        }
    }
    None
}

/// Whether the tool wants any argument repeated.
pub fn is_annotated(tool: &Raw) -> bool {
    mirrored(tool).is_ok_and(|annotated| !annotated.is_empty())
}

/// Why a definition must not be used, as far as its annotations go.
pub fn flaw(tool: &Raw) -> Option<String> {
    mirrored(tool).err()
}

fn value(raw: &Raw) -> Value {
    serde_json::from_str(raw.get()).unwrap_or_default()
}

fn at<'a>(arguments: &'a Value, path: &[String]) -> Option<&'a Value> {
    path.iter().try_fold(arguments, |value, key| value.get(key))
}

/// An argument as a header says it.
fn written(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Bool(truth) => Some(truth.to_string()),
        Value::Number(number) => {
            let whole = number.as_i64().or_else(|| number.as_f64().filter(|n| n.fract() == 0.0).map(|n| n as i64))?;
            Some(whole.to_string())
        }
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

/// Numbers are compared as numbers: `42.0` is `42`.
fn same(given: Option<&Value>, expected: &str, told: &str) -> bool {
    if given.is_some_and(Value::is_number)
        && let (Ok(expected), Ok(told)) = (expected.parse::<f64>(), told.parse::<f64>())
    {
        return expected == told;
    }
    expected == told
}

fn mirrored(tool: &Raw) -> Result<Vec<Mirrored>, String> {
    // Nearly no tool has any, and the text says so faster than the tree.
    if !tool.get().contains(ANNOTATION) {
        return Ok(Vec::new());
    }
    let schema = Fields::of(Some(tool)).get("inputSchema").map(|raw| value(&raw.to_owned())).unwrap_or_default();
    let mut found = Vec::new();
    let mut seen = 0;
    walk(&schema, &mut Vec::new(), &mut found, &mut seen)?;
    if count(&schema) > seen {
        return Err(format!("`{ANNOTATION}` is where no argument can be found for sure"));
    }
    let mut names: Vec<&str> = found.iter().map(|one: &Mirrored| one.header.as_str()).collect();
    names.sort_unstable();
    if names.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(format!("two arguments have the same `{ANNOTATION}`"));
    }
    Ok(found)
}

/// Follows `properties` only: what is reached otherwise depends on the arguments.
fn walk(schema: &Value, path: &mut Vec<String>, found: &mut Vec<Mirrored>, seen: &mut usize) -> Result<(), String> {
    if path.len() > DEPTH_MAX {
        return Ok(());
    }
    for (key, property) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
        path.push(key.clone());
        if let Some(annotation) = property.get(ANNOTATION) {
            *seen += 1;
            let name = annotation.as_str().filter(|name| is_token(name));
            let name = name.ok_or_else(|| format!("`{ANNOTATION}` of `{key}` is not the name of a header"))?;
            let plain = matches!(property["type"].as_str(), Some("string" | "integer" | "boolean"));
            let unsafe_integer = ["minimum", "maximum"].iter().any(|bound| {
                property["type"] == "integer" && property[bound].as_f64().is_some_and(|n| n.abs() > INTEGER_MAX)
            });
            if !plain || unsafe_integer {
                return Err(format!("`{key}` has `{ANNOTATION}` and is no string, integer or boolean"));
            }
            found.push(Mirrored { path: path.clone(), header: format!("{PREFIX}{}", name.to_ascii_lowercase()) });
        }
        walk(property, path, found, seen)?;
        path.pop();
    }
    Ok(())
}

/// Annotations anywhere. A property that is itself called like the annotation has a schema for a value, and does not count.
fn count(schema: &Value) -> usize {
    match schema {
        Value::Object(members) => {
            let here = members.get(ANNOTATION).is_some_and(|value| !value.is_object());
            let inside: usize = members.values().map(count).sum();
            usize::from(here) + inside
        }
        Value::Array(members) => members.iter().map(count).sum(),
        _ => 0,
    }
}

/// RFC 9110, `1*tchar`.
fn is_token(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fields::raw;

    fn tool(properties: &Value) -> Raw {
        raw(&json!({ "name": "t", "inputSchema": { "type": "object", "properties": properties } }))
    }

    fn arguments(value: &Value) -> Fields {
        Fields::of(Some(&raw(value)))
    }

    fn annotated() -> Raw {
        tool(&json!({
            "region": { "type": "string", "x-mcp-header": "Region" },
            "limit": { "type": "integer", "x-mcp-header": "Limit" },
            "dry": { "type": "boolean", "x-mcp-header": "Dry" },
            "deep": { "type": "object", "properties": { "er": { "type": "string", "x-mcp-header": "Deep" } } },
            "plain": { "type": "string" },
        }))
    }

    #[test]
    fn arguments_are_repeated_as_the_schema_says() {
        let given = json!({ "region": "Zürich", "limit": 42.0, "dry": false, "deep": { "er": " x " }, "plain": "p" });
        let mut made = headers(&annotated(), &arguments(&given));
        made.sort();
        let expected = [
            ("mcp-param-deep", "=?base64?IHgg?="),
            ("mcp-param-dry", "false"),
            ("mcp-param-limit", "42"),
            ("mcp-param-region", "=?base64?WsO8cmljaA==?="),
        ];
        assert_eq!(made, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
        assert_eq!(headers(&annotated(), &arguments(&json!({ "region": null }))), []);
        assert_eq!(headers(&tool(&json!({})), &arguments(&given)), []);
    }

    #[test]
    fn headers_must_say_what_the_body_says() {
        let given = arguments(&json!({ "region": "Zürich", "limit": 7 }));
        let told = |region: Option<&'static str>, limit: Option<&'static str>| {
            mismatch(&annotated(), &given, move |name| match name {
                "mcp-param-region" => region,
                "mcp-param-limit" => limit,
                _ => None,
            })
        };
        assert_eq!(told(Some("=?base64?WsO8cmljaA==?="), Some("7.0")), None);
        assert!(told(Some("=?base64?WsO8cmljaA==?="), None).is_some(), "missing");
        assert!(told(Some("Basel"), Some("7")).is_some(), "another value");
        assert!(told(Some("=?base64?WsO8cmljaA==?="), Some("8")).is_some(), "another number");
        let extra = mismatch(&annotated(), &arguments(&json!({})), |_| Some("x"));
        assert!(extra.is_some(), "a header for an argument that is not there");
    }

    #[test]
    fn a_definition_whose_annotations_cannot_be_followed_is_refused() {
        let string = |name: &str| json!({ "type": "string", "x-mcp-header": name });
        for bad in [
            json!({ "a": string("") }),
            json!({ "a": string("two words") }),
            json!({ "a": string("line\nbreak") }),
            json!({ "a": { "type": "string", "x-mcp-header": 7 } }),
            json!({ "a": string("Same"), "b": string("same") }),
            json!({ "a": { "type": "number", "x-mcp-header": "N" } }),
            json!({ "a": { "type": "object", "x-mcp-header": "N" } }),
            json!({ "a": { "type": "array", "items": string("N") } }),
            json!({ "a": { "type": "integer", "minimum": i64::MIN, "x-mcp-header": "N" } }),
            json!({ "a": { "type": "integer", "maximum": u64::MAX, "x-mcp-header": "N" } }),
            json!({ "a": { "type": "integer", "maximum": 9_007_199_254_740_992_i64, "x-mcp-header": "N" } }),
            json!({ "a": { "oneOf": [{ "properties": { "b": string("N") } }] } }),
        ] {
            assert!(flaw(&tool(&bad)).is_some(), "{bad}");
        }
        assert_eq!(flaw(&annotated()), None);
        let largest = json!({ "a": { "type": "integer", "maximum": 9_007_199_254_740_991_i64, "x-mcp-header": "N" } });
        assert_eq!(flaw(&tool(&largest)), None);
        assert_eq!(flaw(&tool(&json!({ "x-mcp-header": { "type": "string" } }))), None);
    }
}
