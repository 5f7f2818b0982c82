//! What a client can be asked: what it declares for itself, and what it can answer by the hub's tools.

use crate::fields::{Fields, Raw, empty};

pub const TASKS_EXTENSION: &str = "io.modelcontextprotocol/tasks";

/// The capability with which a client says that it can answer such a request itself.
pub fn capability(method: &str) -> Option<&'static str> {
    match method {
        "sampling/createMessage" => Some("sampling"),
        "elicitation/create" => Some("elicitation"),
        "roots/list" => Some("roots"),
        _ => None,
    }
}

/// Whether a client with these capabilities can answer this very request itself.
pub fn is_answerable(capabilities: &Raw, method: &str, params: Option<&Raw>) -> bool {
    let Some(name) = capability(method) else { return false };
    let capabilities = Fields::of(Some(capabilities));
    if !capabilities.has(name) {
        return false;
    }
    let (declared, params) = (capabilities.object(name), Fields::of(params.map(|raw| &**raw)));
    match method {
        // Forms are what a client means that says nothing more.
        "elicitation/create" => match params.text("mode").as_deref() {
            None | Some("form") => declared.has("form") || !declared.has("url"),
            Some(mode) => declared.has(mode),
        },
        "sampling/createMessage" => !params.has("tools") || declared.has("tools"),
        _ => true,
    }
}

/// Whether a client says that it can be asked anything at all.
pub fn can_answer_anything(capabilities: &Raw) -> bool {
    let capabilities = Fields::of(Some(capabilities));
    ["sampling", "elicitation", "roots"].iter().any(|name| capabilities.has(name))
}

/// What a client can do that has the hub's tools: with them it can answer everything.
pub fn with_tools(capabilities: &Raw) -> Raw {
    let mut all = Fields::of(Some(capabilities));
    for (name, parts) in [("sampling", ["tools", "context"]), ("elicitation", ["form", "url"])] {
        let mut declared = all.object(name);
        for part in parts.into_iter().filter(|part| !declared.has(part)).collect::<Vec<_>>() {
            declared.set(part, empty());
        }
        all.set(name, declared.to_raw());
    }
    all.to_raw()
}

/// Whether a client knows the Tasks extension.
pub fn has_tasks(capabilities: &Raw) -> bool {
    Fields::of(Some(capabilities)).object("extensions").has(TASKS_EXTENSION)
}

/// What a client can do for whom the hub follows tasks of the Tasks extension.
pub fn with_tasks(capabilities: &Raw) -> Raw {
    let mut all = Fields::of(Some(capabilities));
    let mut extensions = all.object("extensions");
    extensions.set(TASKS_EXTENSION, empty());
    all.set("extensions", extensions.to_raw());
    all.to_raw()
}

/// What a client can do besides the Tasks extension.
pub fn without_tasks(capabilities: &Raw) -> Raw {
    let mut all = Fields::of(Some(capabilities));
    let mut extensions = all.object("extensions");
    if !extensions.has(TASKS_EXTENSION) {
        return capabilities.clone();
    }
    extensions.remove(TASKS_EXTENSION);
    if extensions.is_empty() {
        all.remove("extensions");
    } else {
        all.set("extensions", extensions.to_raw());
    }
    all.to_raw()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::raw;
    use serde_json::json;

    #[test]
    fn a_client_is_asked_itself_only_what_it_says_that_it_can_answer() {
        let can = |capabilities: serde_json::Value, method: &str, params: serde_json::Value| {
            is_answerable(&raw(&capabilities), method, Some(&raw(&params)))
        };
        let (form, url) = (json!({ "mode": "form" }), json!({ "mode": "url" }));
        for (declared, forms, urls) in [
            (json!({}), false, false),
            (json!({ "elicitation": {} }), true, false),
            (json!({ "elicitation": { "form": {} } }), true, false),
            (json!({ "elicitation": { "url": {} } }), false, true),
            (json!({ "elicitation": { "form": {}, "url": {} } }), true, true),
        ] {
            assert_eq!(can(declared.clone(), "elicitation/create", form.clone()), forms, "{declared}");
            assert_eq!(can(declared.clone(), "elicitation/create", json!({})), forms, "{declared}");
            assert_eq!(can(declared.clone(), "elicitation/create", url.clone()), urls, "{declared}");
            let all: serde_json::Value = serde_json::from_str(with_tools(&raw(&declared)).get()).unwrap();
            assert!(
                can(all.clone(), "elicitation/create", url.clone()) && can(all, "elicitation/create", form.clone())
            );
        }
        assert!(can(json!({ "sampling": {} }), "sampling/createMessage", json!({})));
        assert!(!can(json!({ "sampling": {} }), "sampling/createMessage", json!({ "tools": [] })));
        assert!(can(json!({ "roots": {} }), "roots/list", json!({})) && !can(json!({}), "roots/list", json!({})));
        assert!(!can(json!({ "other": {} }), "other/thing", json!({})));
    }
}
