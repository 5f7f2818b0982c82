//! What a model is asked: the conversation, the tools it may call, and what those have answered.

use std::collections::BTreeMap;

use bowline_api::{FunctionChoice, FunctionSpec, Functions, Message, Role, ToolOutcome, ToolSpec};
use bytes::Bytes;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::chunk::RequestedCall;

/// The protocol's limit on the name of a function.
const NAME_BYTES_MAX: usize = 64;

/// The messages so far. Answers that were cut short are among them: the person has seen them too. Before them stands what the
/// settings say to the model, then what the caller says to it.
pub fn conversation(system: &[Option<&str>], past: &[Message], input: &str) -> Vec<Value> {
    let system = system.iter().flatten().map(|text| json!({ "role": "system", "content": text }));
    let role = |role: Role| match role {
        Role::User => "user",
        Role::Assistant => "assistant",
    };
    let past = past.iter().map(|message| json!({ "role": role(message.role), "content": message.content }));
    system.chain(past).chain([json!({ "role": "user", "content": input })]).collect()
}

/// What the model said before it called tools, and its calls.
pub fn called(text: &str, calls: &[RequestedCall]) -> Value {
    let calls = calls.iter().map(|call| {
        // Some servers insist on arguments that are JSON, whatever their model has written.
        let arguments = if arguments(call).is_some() { call.arguments.as_str() } else { "{}" };
        let arguments = if arguments.trim().is_empty() { "{}" } else { arguments };
        json!({ "id": call.id, "type": "function", "function": { "name": call.name, "arguments": arguments } })
    });
    let content = if text.is_empty() { Value::Null } else { text.into() };
    json!({ "role": "assistant", "content": content, "tool_calls": calls.collect::<Value>() })
}

/// What a call has answered.
pub fn answered(call: &RequestedCall, outcome: &ToolOutcome) -> Value {
    let content = match outcome {
        ToolOutcome::Success { text, .. } => text.clone(),
        ToolOutcome::Failed { error, .. } => format!("The call failed: {error}"),
        ToolOutcome::Unknown { error } => format!(
            "The connection was lost while the call was under way ({error}). It may or may not have run. Do not repeat it \
             unless that is harmless; say that its outcome is unknown."
        ),
    };
    tool_message(&call.id, &content)
}

/// What the call of this id has returned.
pub fn tool_message(call: &str, content: &str) -> Value {
    json!({ "role": "tool", "tool_call_id": call, "content": content })
}

/// The arguments of a call; none of them is an empty object.
pub fn arguments(call: &RequestedCall) -> Option<Map<String, Value>> {
    if call.arguments.trim().is_empty() {
        return Some(Map::new());
    }
    match serde_json::from_str(&call.arguments) {
        Ok(Value::Object(fields)) => Some(fields),
        Ok(Value::Null) => Some(Map::new()),
        _ => None,
    }
}

/// Which tools a model may call in one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Calls {
    /// The first after the caller said what has to be called.
    AsChosen,
    AsItLikes,
    /// No tool may be called any more, so that the model has to answer.
    None,
}

/// The request.
pub fn body(model: &str, messages: &[Value], toolbox: &Toolbox, functions: &Functions, calls: Calls) -> Bytes {
    let mut body = json!({
        "model": model,
        "messages": messages,
        "stream": true,
        "stream_options": { "include_usage": true },
    });
    let tools: Vec<Value> = functions.list.iter().map(function).chain(toolbox.functions()).collect();
    if !tools.is_empty() {
        body["tools"] = tools.into();
        match (calls, &functions.choice) {
            (Calls::None, _) => body["tool_choice"] = "none".into(),
            (Calls::AsItLikes, _) | (Calls::AsChosen, FunctionChoice::Auto) => {}
            (Calls::AsChosen, FunctionChoice::Required) => body["tool_choice"] = "required".into(),
            (Calls::AsChosen, FunctionChoice::Function(name)) => {
                body["tool_choice"] = json!({ "type": "function", "function": { "name": name } });
            }
        }
        if !functions.parallel {
            body["parallel_tool_calls"] = false.into();
        }
    }
    body.to_string().into()
}

/// A function of the caller's, under its own name.
fn function(spec: &FunctionSpec) -> Value {
    let mut function = json!({ "name": spec.name, "parameters": schema(&spec.parameters) });
    if let Some(description) = &spec.description {
        function["description"] = description.as_str().into();
    }
    if let Some(strict) = spec.strict {
        function["strict"] = strict.into();
    }
    json!({ "type": "function", "function": function })
}

/// A function without parameters still has to say so.
fn schema(written: &Value) -> Value {
    match written {
        schema @ Value::Object(_) => schema.clone(),
        _ => json!({ "type": "object", "properties": {} }),
    }
}

/// The tools of a run under names that the protocol allows.
#[derive(Debug, Default)]
pub struct Toolbox {
    specs: BTreeMap<String, ToolSpec>,
}

impl Toolbox {
    /// A function of the caller's keeps its name.
    pub fn new(specs: Vec<ToolSpec>, functions: &Functions) -> Toolbox {
        let mut named = BTreeMap::new();
        for spec in specs {
            let name = allowed(&spec.name);
            // Two names that become one differ by a mark made of what they were.
            let is_taken = named.contains_key(&name) || functions.find(&name).is_some();
            let name = if is_taken { marked(&name, &spec.name) } else { name };
            named.insert(name, spec);
        }
        Toolbox { specs: named }
    }

    pub fn find(&self, name: &str) -> Option<&ToolSpec> {
        self.specs.get(name)
    }

    fn functions(&self) -> impl Iterator<Item = Value> + '_ {
        self.specs.iter().map(|(name, spec)| {
            let parameters = schema(&spec.input_schema);
            let function = json!({ "name": name, "description": spec.description, "parameters": parameters });
            json!({ "type": "function", "function": function })
        })
    }
}

fn allowed(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "_-".contains(c) { c } else { '_' };
    let replaced: String = name.chars().map(plain).collect();
    if replaced.len() <= NAME_BYTES_MAX { replaced } else { marked(&replaced, name) }
}

/// A name with a mark that follows from the whole of another.
fn marked(name: &str, whole: &str) -> String {
    let mark: String = Sha256::digest(whole.as_bytes()).iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    let kept: String = name.chars().take(NAME_BYTES_MAX - 1 - mark.len()).collect();
    format!("{kept}_{mark}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(name: &str) -> ToolSpec {
        let (server, tool) = name.split_once("__").unwrap();
        ToolSpec {
            name: name.into(),
            server: server.into(),
            tool: tool.into(),
            description: String::new(),
            input_schema: json!({ "type": "object" }),
        }
    }

    #[test]
    fn every_tool_has_a_name_of_its_own_that_the_protocol_allows() {
        let long = format!("files__{}", "x".repeat(100));
        let names = ["files__read", "files__re.ad", "files__re/ad", &long, &format!("{long}y"), "größe__maß"];
        let toolbox = Toolbox::new(names.iter().map(|name| spec(name)).collect(), &Functions::default());
        let given: Vec<&String> = toolbox.specs.keys().collect();
        assert_eq!(given.len(), names.len(), "{given:?}");
        for name in &given {
            let plain = name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b));
            assert!(plain && name.len() <= NAME_BYTES_MAX, "{name}");
        }
        assert_eq!(toolbox.find("files__read").unwrap().name, "files__read");
    }

    #[test]
    fn arguments_that_are_no_object_are_none() {
        let call = |arguments: &str| RequestedCall { arguments: arguments.into(), ..RequestedCall::default() };
        assert_eq!(arguments(&call("")), Some(Map::new()));
        assert_eq!(arguments(&call("null")), Some(Map::new()));
        assert_eq!(arguments(&call("{\"a\":1}")).unwrap().len(), 1);
        assert!(arguments(&call("{\"a\":")).is_none());
        assert!(arguments(&call("[1]")).is_none());
        // What goes back to the server is JSON all the same.
        assert_eq!(called("", &[call("{\"a\":")])["tool_calls"][0]["function"]["arguments"], "{}");
        assert_eq!(called("", &[call("")])["tool_calls"][0]["function"]["arguments"], "{}");
    }

    fn read(toolbox: &Toolbox, functions: &Functions, calls: Calls) -> Value {
        serde_json::from_slice(&body("m", &[], toolbox, functions, calls)).unwrap()
    }

    #[test]
    fn the_last_step_may_call_nothing() {
        let (toolbox, none) = (Toolbox::new(vec![spec("a__b")], &Functions::default()), Functions::default());
        assert_eq!(read(&toolbox, &none, Calls::None)["tool_choice"], "none");
        assert!(read(&toolbox, &none, Calls::AsItLikes)["tool_choice"].is_null());
        let bare = read(&Toolbox::default(), &none, Calls::None);
        assert!(bare["tools"].is_null() && bare["tool_choice"].is_null());
    }

    #[test]
    fn functions_of_the_caller_keep_their_names_and_are_called_as_it_chose() {
        let function =
            FunctionSpec { name: "a__b".into(), description: None, parameters: Value::Null, strict: Some(true) };
        let choice = FunctionChoice::Function("a__b".into());
        let functions = Functions { list: vec![function], choice, parallel: false };
        let toolbox = Toolbox::new(vec![spec("a__b")], &functions);
        assert!(toolbox.find("a__b").is_none(), "a tool of the hub gives way");
        let chosen = read(&toolbox, &functions, Calls::AsChosen);
        assert_eq!(chosen["tools"].as_array().unwrap().len(), 2);
        assert_eq!(chosen["tools"][0]["function"]["parameters"], json!({ "type": "object", "properties": {} }));
        assert_eq!(chosen["tool_choice"], json!({ "type": "function", "function": { "name": "a__b" } }));
        assert_eq!(chosen["parallel_tool_calls"], false);
        assert!(read(&toolbox, &functions, Calls::AsItLikes)["tool_choice"].is_null());
    }
}
