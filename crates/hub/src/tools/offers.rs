//! Tools about what the servers offer.

use serde_json::{Value, json};

use super::{Call, Outcome};
use crate::catalogue::ListKind;
use crate::fields::Fields;
use crate::front::pass;

pub(crate) async fn list(call: &Call<'_>, name: &str) -> Result<Outcome, String> {
    let kind = match name {
        "list_tools" => ListKind::Tools,
        "list_resources" => ListKind::Resources,
        "list_resource_templates" => ListKind::Templates,
        _ => ListKind::Prompts,
    };
    let (server, wanted) = (call.arguments.text("server"), call.arguments.text("tool"));
    let backends = call.hub.visible(&call.client.principal).into_iter();
    let backends: Vec<_> = backends.filter(|backend| fits(server.as_deref(), backend.name())).collect();
    let patience = std::time::Duration::from_secs(5);
    futures_util::future::join_all(backends.iter().map(|backend| backend.settled(patience))).await;
    let mut entries: Vec<Value> = Vec::new();
    for backend in &backends {
        for entry in backend.catalogue().list(kind) {
            let name = Fields::of(Some(entry)).text("name").unwrap_or_default();
            if fits(wanted.as_deref(), &name) {
                let mut shown: Value = serde_json::from_str(entry.get()).unwrap_or_default();
                shown["server"] = backend.name().into();
                entries.push(shown);
            }
        }
    }
    let mut facts = json!({ kind.member(): entries });
    let failed = crate::front::troubles(&backends);
    if !failed.is_empty() {
        facts["failed"] = failed.into();
    }
    Ok(Outcome::Facts(facts))
}

/// Whether a name fits a pattern, in which `*` stands for anything. Case does not matter, and no pattern fits all.
fn fits(pattern: Option<&str>, name: &str) -> bool {
    let Some(pattern) = pattern else { return true };
    let (pattern, name) = (pattern.to_lowercase(), name.to_lowercase());
    let parts: Vec<&str> = pattern.split('*').collect();
    let [first, middle @ .., last] = parts.as_slice() else { return pattern == name };
    let Some(mut rest) = name.strip_prefix(first) else { return false };
    for part in middle {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

/// Requests that only need to know which server is meant.
pub(crate) async fn pass(call: &Call<'_>, name: &str) -> Result<Outcome, String> {
    let server = call.text("server")?;
    let backend = call.hub.find_anywhere(&call.client.principal, &server).await;
    let backend = backend.ok_or_else(|| format!("there is no server named {server}"))?;
    let mut params = Fields::default();
    let method = match name {
        "get_prompt" => {
            params.put("name", &call.text("name")?);
            if let Some(arguments) = call.arguments.get("arguments") {
                params.set("arguments", arguments.to_owned());
            }
            "prompts/get"
        }
        other => {
            params.put("uri", &call.text("uri")?);
            match other {
                "read_resource" => "resources/read",
                "subscribe_resource" => "resources/subscribe",
                _ => "resources/unsubscribe",
            }
        }
    };
    let session = if name.ends_with("subscribe_resource") { Some(call.session().await?) } else { None };
    let reply = pass::to_backend(call.hub, call.client, session.as_ref(), &backend, method, &params, call.sink).await;
    match reply.answer {
        Ok(result) => {
            let facts: Value = serde_json::from_str(result.get()).unwrap_or_default();
            Ok(Outcome::Facts(facts))
        }
        Err(error) => {
            let facts: Value = serde_json::from_str(error.get()).unwrap_or_default();
            let why = facts["message"].as_str().unwrap_or("the server refused").to_owned();
            let mut told = json!({ "error": why, "code": facts["code"] });
            if facts["data"].is_object() {
                told["data"] = facts["data"].clone();
            }
            Ok(Outcome::Result(crate::outcome::tool_error(&told)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::fits;

    #[test]
    fn a_star_stands_for_anything() {
        for (pattern, name, expected) in [
            ("git*", "github", true),
            ("*hub", "GitHub", true),
            ("g*t*b", "github", true),
            ("github", "github", true),
            ("git", "github", false),
            ("*", "", true),
            ("a*a", "a", false),
        ] {
            assert_eq!(fits(Some(pattern), name), expected, "{pattern} {name}");
        }
        assert!(fits(None, "x"));
    }
}
