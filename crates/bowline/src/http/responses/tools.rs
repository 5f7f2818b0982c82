//! Functions that the caller lets the agent call. Tools of any other kind are run by OpenAI itself, and are refused.

use bowline_api::{FunctionChoice, FunctionSpec, Functions};
use bowline_protocol::{ErrorCode, Refusal};
use serde_json::{Map, Value, json};

/// The API's own limits.
const TOOLS_MAX: usize = 128;
const NAME_BYTES_MAX: usize = 64;

fn wrong(problem: &str) -> Refusal {
    Refusal::field("tools", problem)
}

fn unsupported(field: &str, what: &str) -> Refusal {
    let refusal = Refusal::new(ErrorCode::NotSupported, format!("`{field}` {what}"));
    refusal.details(json!({ "field": field }))
}

/// What `tools`, `tool_choice` and `parallel_tool_calls` say.
pub fn functions(fields: &Map<String, Value>) -> Result<Functions, Refusal> {
    let tools = match fields.get("tools") {
        None | Some(Value::Null) => &[][..],
        Some(Value::Array(tools)) => tools,
        Some(_) => return Err(wrong("must be a list")),
    };
    if tools.len() > TOOLS_MAX {
        return Err(wrong(&format!("holds more than {TOOLS_MAX} functions")));
    }
    let mut functions = Functions::default();
    for tool in tools {
        let function = function(tool)?;
        if functions.find(&function.name).is_some() {
            return Err(wrong(&format!("has two functions of the name `{}`", function.name)));
        }
        functions.list.push(function);
    }
    functions.parallel = match fields.get("parallel_tool_calls") {
        None | Some(Value::Null) => true,
        Some(Value::Bool(parallel)) => *parallel,
        Some(_) => return Err(Refusal::field("parallel_tool_calls", "must be true or false")),
    };
    // A choice among nothing is repeated, and means nothing.
    if functions.list.is_empty() {
        return Ok(functions);
    }
    choose(functions, fields.get("tool_choice").unwrap_or(&Value::Null))
}

/// `{type: "function", name, description?, parameters?, strict?}`
fn function(tool: &Value) -> Result<FunctionSpec, Refusal> {
    match tool["type"].as_str() {
        Some("function") => {}
        Some(kind) => {
            let what = format!("of the type `{kind}` are not there: the agent has its own, and those of the hub.");
            return Err(unsupported("tools", &what));
        }
        None => return Err(wrong("has an entry without `type`")),
    }
    let plain = |name: &&str| {
        (1..=NAME_BYTES_MAX).contains(&name.len())
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte))
    };
    let name = tool["name"].as_str().filter(plain);
    let name = name.ok_or_else(|| wrong("needs a `name` of at most 64 letters, digits, _ and - for each function"))?;
    let parameters = match &tool["parameters"] {
        schema @ (Value::Object(_) | Value::Null) => schema.clone(),
        _ => return Err(wrong("has `parameters` that are no JSON Schema")),
    };
    Ok(FunctionSpec {
        name: name.to_owned(),
        description: tool["description"].as_str().map(str::to_owned),
        parameters,
        strict: tool["strict"].as_bool(),
    })
}

/// What of the functions may and must be called.
fn choose(mut functions: Functions, choice: &Value) -> Result<Functions, Refusal> {
    let unknown = || Refusal::field("tool_choice", "names a function that is not among `tools`");
    match (choice.as_str(), choice["type"].as_str()) {
        _ if choice.is_null() => {}
        (Some("auto"), _) => {}
        (Some("none"), _) => functions.list.clear(),
        (Some("required"), _) => functions.choice = FunctionChoice::Required,
        (None, Some("function")) => {
            let name = choice["name"].as_str().filter(|name| functions.find(name).is_some()).ok_or_else(unknown)?;
            functions.choice = FunctionChoice::Function(name.to_owned());
        }
        (None, Some("allowed_tools")) => {
            let names = choice["tools"].as_array().into_iter().flatten().map(|tool| tool["name"].as_str());
            let names: Option<Vec<&str>> = names.collect();
            let names = names.filter(|names| names.iter().all(|name| functions.find(name).is_some()));
            let names = names.ok_or_else(unknown)?;
            functions.list.retain(|function| names.contains(&function.name.as_str()));
            if choice["mode"] == "required" {
                functions.choice = FunctionChoice::Required;
            }
        }
        (None, Some(kind)) => {
            return Err(unsupported("tool_choice", &format!("cannot be a tool of the type `{kind}`.")));
        }
        _ => return Err(Refusal::field("tool_choice", "must be none, auto, required, or name a function")),
    }
    Ok(functions)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(fields: Value) -> Result<Functions, Refusal> {
        let Value::Object(fields) = fields else { panic!("a test writes objects") };
        functions(&fields)
    }

    fn tool(name: &str) -> Value {
        json!({ "type": "function", "name": name, "parameters": { "type": "object" }, "strict": true })
    }

    fn names(functions: &Functions) -> Vec<&str> {
        functions.list.iter().map(|function| function.name.as_str()).collect()
    }

    #[test]
    fn the_choice_says_what_may_and_must_be_called() {
        let tools = json!([tool("a"), tool("b")]);
        let with = |choice: Value| read(json!({ "tools": tools, "tool_choice": choice })).unwrap();
        assert_eq!(names(&with(json!(null))), ["a", "b"]);
        assert!(names(&with(json!("none"))).is_empty());
        assert_eq!(with(json!("required")).choice, FunctionChoice::Required);
        let named = with(json!({ "type": "function", "name": "b" }));
        assert_eq!(named.choice, FunctionChoice::Function("b".into()));
        let allowed =
            json!({ "type": "allowed_tools", "mode": "required", "tools": [{ "type": "function", "name": "a" }] });
        let allowed = with(allowed);
        assert_eq!(names(&allowed), ["a"]);
        assert_eq!(allowed.choice, FunctionChoice::Required);
        assert!(!read(json!({ "tools": tools, "parallel_tool_calls": false })).unwrap().parallel);
        assert_eq!(read(json!({ "tools": null, "tool_choice": "required" })).unwrap(), Functions::default());
    }

    #[test]
    fn what_is_no_function_is_refused_and_named() {
        for (fields, field) in [
            (json!({ "tools": [{ "type": "web_search" }] }), "tools"),
            (json!({ "tools": [{ "name": "a" }] }), "tools"),
            (json!({ "tools": [tool("a"), tool("a")] }), "tools"),
            (json!({ "tools": [tool("a b")] }), "tools"),
            (json!({ "tools": [tool("")] }), "tools"),
            (json!({ "tools": [{ "type": "function", "name": "a", "parameters": [] }] }), "tools"),
            (json!({ "tools": "a" }), "tools"),
            (json!({ "tools": [tool("a")], "tool_choice": "b" }), "tool_choice"),
            (json!({ "tools": [tool("a")], "tool_choice": { "type": "function", "name": "b" } }), "tool_choice"),
            (json!({ "tools": [tool("a")], "tool_choice": { "type": "mcp" } }), "tool_choice"),
            (json!({ "parallel_tool_calls": 1 }), "parallel_tool_calls"),
        ] {
            let refusal = read(fields.clone()).unwrap_err();
            assert_eq!(refusal.details.unwrap()["field"], field, "{fields}");
        }
    }
}
