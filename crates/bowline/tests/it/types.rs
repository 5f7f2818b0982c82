//! The TypeScript types of the HTTP answers, which the SDK and the console use, are what the server's own types say.

use std::fmt::Write;
use std::path::Path;

use serde_json::{Map, Value};

const FILE: &str = "sdk/typescript/src/generated/answers.ts";
const HEAD: &str = "// The answers of the HTTP endpoints. Generated from the server's types: UPDATE_DOCS=1 cargo test -p bowline typescript_types\n";

#[test]
fn typescript_types_are_those_of_the_answers() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(FILE);
    let due = written(&bowline::http::openapi::answers());
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, &due).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(found == due, "{FILE} is stale: UPDATE_DOCS=1 cargo test -p bowline typescript_types writes it");
}

/// One exported type for each schema.
fn written(schemas: &Map<String, Value>) -> String {
    let mut text = HEAD.to_owned();
    for (name, schema) in schemas {
        text.push('\n');
        comment(&mut text, "", schema);
        if schema.get("properties").is_some() {
            let _ = writeln!(text, "export interface {name} {}", object(schema, ""));
        } else {
            let _ = writeln!(text, "export type {name} = {};", kind(schema, ""));
        }
    }
    text
}

fn comment(text: &mut String, indent: &str, schema: &Value) {
    if let Some(about) = schema.get("description").and_then(Value::as_str) {
        let _ = writeln!(text, "{indent}/** {} */", about.replace('\n', " "));
    }
}

fn object(schema: &Value, indent: &str) -> String {
    let required: Vec<&str> = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let mut text = "{\n".to_owned();
    let inner = format!("{indent}  ");
    for (name, member) in schema["properties"].as_object().into_iter().flatten() {
        comment(&mut text, &inner, member);
        let mark = if required.contains(&name.as_str()) { "" } else { "?" };
        let _ = writeln!(text, "{inner}readonly {name}{mark}: {};", kind(member, &inner));
    }
    if schema.get("additionalProperties").is_some_and(|more| more != &Value::Bool(false)) {
        let _ = writeln!(text, "{inner}readonly [member: string]: unknown;");
    }
    text + indent + "}"
}

/// A schema as a type. What it says beyond that, as patterns and limits, TypeScript cannot say.
fn kind(schema: &Value, indent: &str) -> String {
    let Some(fields) = schema.as_object() else { return "unknown".into() };
    if let Some(name) = fields.get("$ref").and_then(Value::as_str) {
        return name.rsplit('/').next().unwrap_or_default().to_owned();
    }
    if let Some(only) = fields.get("const") {
        return only.to_string();
    }
    if let Some(Value::Array(words)) = fields.get("enum") {
        return union(words.iter().map(Value::to_string));
    }
    if let Some(Value::Array(kinds)) = fields.get("anyOf").or_else(|| fields.get("oneOf")) {
        return union(kinds.iter().map(|one| kind(one, indent)));
    }
    match fields.get("type") {
        Some(Value::Array(kinds)) => union(kinds.iter().map(|one| {
            let mut alone = fields.clone();
            alone.insert("type".into(), one.clone());
            kind(&alone.into(), indent)
        })),
        Some(Value::String(word)) => match word.as_str() {
            "string" | "boolean" | "null" => word.clone(),
            "integer" | "number" => "number".into(),
            "array" => format!("readonly {}[]", wrapped(&kind(&fields["items"], indent))),
            "object" if fields.contains_key("properties") => object(schema, indent),
            "object" => match fields.get("additionalProperties") {
                Some(member) if member.is_object() => format!("Readonly<Record<string, {}>>", kind(member, indent)),
                _ => "Readonly<Record<string, unknown>>".into(),
            },
            word => panic!("a type that TypeScript does not know: {word}"),
        },
        _ => "unknown".into(),
    }
}

fn union(kinds: impl Iterator<Item = String>) -> String {
    kinds.collect::<Vec<_>>().join(" | ")
}

/// What an array is of, so that it is one type.
fn wrapped(kind: &str) -> String {
    if kind.contains(" | ") && !kind.ends_with('}') { format!("({kind})") } else { kind.to_owned() }
}
