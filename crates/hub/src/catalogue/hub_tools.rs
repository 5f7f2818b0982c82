//! What the hub's tools are called and what they take.

use std::ops::RangeInclusive;
use std::sync::OnceLock;

use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use crate::fields::{Fields, Raw, raw};

const HANDLE: &str = "handle?:string:Names your session, if your client has none; await_activity gives you one";

/// How long a tool may be told to wait.
pub const TIMEOUT_MS: RangeInclusive<u64> = 100..=900_000;

/// Name, description, parameters as `name[?]:type:description`.
const TOOLS: &[(&str, &str, &[&str])] = &[
    (
        "add_server",
        "Adds an MCP server, by URL or as a program. A server that is down is added too, and dialled until it answers. An operator \
         gives the name alone to bring back a server of the servers file that was removed.",
        &[
            "name:string:Letters, digits, _ - .",
            "url?:string:Where it is, for a server over HTTP",
            "headers?:object:HTTP headers to send",
            "command?:string:The program, for a server over stdio",
            "args?:array:Its arguments",
            "env?:object:Its environment",
            "cwd?:string:Its working directory",
        ],
    ),
    (
        "remove_server",
        "Removes a server, whatever its state: one that you added, or, if you operate the hub, any. One of the servers file comes back \
         when its entry there changes, or by add_server with its name alone.",
        &["name:string:The server"],
    ),
    ("list_servers", "Lists all servers with their status, as it is now.", &[]),
    (
        "reconnect_server",
        "Dials a server now, whatever its state, and tells whether that worked.",
        &["name:string:The server"],
    ),
    (
        "list_tools",
        "Lists the tools of the servers.",
        &[
            "server?:string:Only servers that match, * stands for anything",
            "tool?:string:Only names that match, * stands for anything",
        ],
    ),
    (
        "list_resources",
        "Lists the resources of the servers.",
        &["server?:string:Only servers that match", "tool?:string:Only names that match"],
    ),
    (
        "list_resource_templates",
        "Lists the resource templates of the servers.",
        &["server?:string:Only servers that match", "tool?:string:Only names that match"],
    ),
    (
        "list_prompts",
        "Lists the prompts of the servers.",
        &["server?:string:Only servers that match", "tool?:string:Only names that match"],
    ),
    (
        "execute_tool",
        "Calls a tool of a server. A call that takes longer than timeout_ms goes on as a task.",
        &[
            "server:string:The server",
            "tool:string:The tool, as the server calls it",
            "args?:object:Its arguments",
            "timeout_ms?:integer:How long to wait for the result, 120000 if not given",
            "as_task?:boolean:Do not wait at all",
            HANDLE,
        ],
    ),
    (
        "read_resource",
        "Reads a resource of a server.",
        &["server:string:The server", "uri:string:The resource", HANDLE],
    ),
    (
        "subscribe_resource",
        "Subscribes to changes of a resource; they come as notifications.",
        &["server:string:The server", "uri:string:The resource", HANDLE],
    ),
    ("unsubscribe_resource", "Ends a subscription.", &["server:string:The server", "uri:string:The resource", HANDLE]),
    (
        "get_prompt",
        "Gets a prompt of a server.",
        &["server:string:The server", "name:string:The prompt", "arguments?:object:Its arguments", HANDLE],
    ),
    (
        "await_activity",
        "Waits until something happens: a server comes or goes, a task ends, a server asks something. Gives every event after last_event_id once.",
        &[
            "timeout_ms:integer:How long to wait, 100 to 900000",
            "last_event_id?:string:The last event you have; without it all events are given",
            HANDLE,
        ],
    ),
    (
        "get_notifications",
        "Gives notifications that servers sent.",
        &[
            "server?:string:Only this server",
            "level?:string:Of those that have a level only those from this one on: debug, info, notice, warning, error, critical, alert or emergency",
            "last_event_id?:string:Only later ones",
            HANDLE,
        ],
    ),
    (
        "get_logs",
        "Gives what servers logged.",
        &[
            "server?:string:Only this server",
            "level?:string:From this level on: debug, info, notice, warning, error, critical, alert or emergency; what a program writes to stderr counts as info",
            "last_event_id?:string:Only later ones",
            HANDLE,
        ],
    ),
    (
        "get_sampling_requests",
        "Lists what servers want a model to write.",
        &["server?:string:Only this server", HANDLE],
    ),
    (
        "respond_to_sampling",
        "Answers a sampling request.",
        &["id:string:The request", "result:object:role, content, model, stopReason", HANDLE],
    ),
    (
        "cancel_sampling_request",
        "Refuses a sampling request.",
        &["id:string:The request", "reason?:string:Why", HANDLE],
    ),
    ("get_elicitations", "Lists what servers want to ask a person.", &["server?:string:Only this server", HANDLE]),
    (
        "respond_to_elicitation",
        "Answers an elicitation.",
        &[
            "id:string:The request",
            "action:string:accept, decline or cancel",
            "content?:object:What the person entered",
            HANDLE,
        ],
    ),
    ("cancel_elicitation_request", "Cancels an elicitation.", &["id:string:The request", "reason?:string:Why", HANDLE]),
    ("list_tasks", "Lists your tasks.", &[HANDLE]),
    ("get_task", "Tells how a task is doing.", &["task_id:string:The task", HANDLE]),
    ("get_task_result", "Gives the result of a task that has ended.", &["task_id:string:The task", HANDLE]),
    ("cancel_task", "Cancels a task.", &["task_id:string:The task", HANDLE]),
];

pub fn is_ours(name: &str) -> bool {
    TOOLS.iter().any(|(ours, _, _)| *ours == name)
}

struct Parameter {
    name: &'static str,
    kind: &'static str,
    about: &'static str,
    optional: bool,
}

impl Parameter {
    fn read(text: &'static str) -> Parameter {
        let mut parts = text.splitn(3, ':');
        let mut part = || parts.next().unwrap_or_default();
        let (name, kind, about) = (part(), part(), part());
        let optional = name.strip_suffix('?');
        Parameter { name: optional.unwrap_or(name), kind, about, optional: optional.is_some() }
    }

    /// Why this cannot be its value.
    fn flaw(&self, given: Option<&RawValue>) -> Option<String> {
        let Some(given) = given.map(RawValue::get).filter(|given| *given != "null") else {
            return (!self.optional).then(|| format!("`{}` is missing", self.name));
        };
        let (fits, word) = match self.kind {
            "string" => (given.starts_with('"'), "text"),
            "object" => (given.starts_with('{'), "an object"),
            "array" => (given.starts_with('['), "a list"),
            "boolean" => (matches!(given, "true" | "false"), "true or false"),
            _ => (given.parse::<u64>().is_ok(), "a whole number"),
        };
        (!fits).then(|| format!("`{}` must be {word}", self.name))
    }
}

/// Why a tool cannot be called with these arguments: one is missing, or is not what it must be.
pub fn flaw(tool: &str, arguments: &Fields) -> Option<String> {
    let (_, _, parameters) = TOOLS.iter().find(|(name, _, _)| *name == tool)?;
    let mut parameters = parameters.iter().map(|text| Parameter::read(text));
    parameters.find_map(|parameter| parameter.flaw(arguments.get(parameter.name)))
}

/// All of them, as `tools/list` gives them.
pub fn schemas() -> Vec<Raw> {
    static SCHEMAS: OnceLock<Vec<Raw>> = OnceLock::new();
    SCHEMAS.get_or_init(|| TOOLS.iter().map(schema).collect()).clone()
}

fn schema((name, about, parameters): &(&str, &str, &'static [&'static str])) -> Raw {
    let mut properties = Map::new();
    let mut required = Vec::new();
    for Parameter { name, kind, about, optional } in parameters.iter().map(|text| Parameter::read(text)) {
        if !optional {
            required.push(name);
        }
        let mut property = json!({ "type": kind, "description": about });
        match (kind, name) {
            ("array", _) => property["items"] = json!({ "type": "string" }),
            ("integer", "timeout_ms") => {
                property["minimum"] = (*TIMEOUT_MS.start()).into();
                property["maximum"] = (*TIMEOUT_MS.end()).into();
            }
            _ => {}
        }
        properties.insert(name.to_owned(), property);
    }
    let reads = name.starts_with("list_") || name.starts_with("get_") || *name == "await_activity";
    let input = json!({ "type": "object", "properties": Value::Object(properties), "required": required });
    let annotations = json!({ "readOnlyHint": reads });
    raw(&json!({ "name": name, "description": about, "inputSchema": input, "annotations": annotations }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tool_has_a_description_and_typed_parameters() {
        for schema in schemas() {
            let value: Value = serde_json::from_str(schema.get()).unwrap();
            assert!(value["description"].as_str().unwrap().ends_with('.'), "{value}");
            for (name, property) in value["inputSchema"]["properties"].as_object().unwrap() {
                assert!(!name.contains('?'), "{name}");
                assert!(!property["description"].as_str().unwrap().is_empty(), "{name}");
            }
        }
    }
}
