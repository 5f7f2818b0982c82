//! Tools about what the servers offer.

use super::{HubToolOutcome, ToolInvocation};
use crate::call::outcome;
use crate::call::reply::CallReply;
use crate::catalogue::ListKind;
use crate::fields::{Fields, Raw};
use crate::relay::{on_behalf, routing};

pub(crate) async fn list(call: &ToolInvocation<'_>, name: &str) -> Result<HubToolOutcome, String> {
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
    let (mut entries, mut any_stale) = (Vec::<Raw>::new(), false);
    for backend in &backends {
        let stale = !backend.snapshot().is_connected();
        for entry in backend.catalogue().list(kind) {
            let mut shown = Fields::of(Some(entry));
            if fits(wanted.as_deref(), &shown.text("name").unwrap_or_default()) {
                shown.put("server", backend.name());
                if stale {
                    shown.put("stale", &true);
                    any_stale = true;
                }
                entries.push(shown.to_raw());
            }
        }
    }
    let mut facts = Fields::default();
    facts.put(kind.member(), &entries);
    if any_stale {
        facts.put("ttlMs", &0);
    }
    let failed = routing::troubles(&backends, kind);
    if !failed.is_empty() {
        facts.put("failed", &failed);
    }
    Ok(HubToolOutcome::Exact(facts.to_raw()))
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
pub(crate) async fn pass(call: &ToolInvocation<'_>, name: &str) -> Result<HubToolOutcome, String> {
    let server = call.text("server")?;
    let backend = call.hub.find_anywhere(&call.client.principal, &server).await;
    let backend = backend.ok_or_else(|| format!("there is no server named {server}"))?;
    let mut params = call.params();
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
    let session = match (call.known_session().await?, name) {
        // Its updates are read by this.
        (None, "subscribe_resource") => Some(call.session().await?),
        (None, "unsubscribe_resource") => {
            return Err("`handle` is missing: nothing is subscribed to without one".into());
        }
        (known, _) => known,
    };
    let reply =
        on_behalf::to_backend(call.hub, call.client, session.as_ref(), &backend, method, &params, call.sink).await;
    match reply.answer {
        Ok(result) => {
            let handle = session.filter(|session| session.record.handle && name == "subscribe_resource");
            Ok(HubToolOutcome::Exact(match handle {
                Some(session) => Fields::of(Some(&result)).and("handle", &session.id).to_raw(),
                None => result,
            }))
        }
        // Our own facts have the same form as those of a tool.
        Err(error) if reply.outcome.is_unanswered() => {
            let facts = Fields::of(Some(&error)).object("data").to_raw();
            Ok(HubToolOutcome::Reply(CallReply { answer: Ok(outcome::tool_error_as(&facts)), ..reply }))
        }
        Err(error) => {
            let error = Fields::of(Some(&error));
            let mut told = Fields::default();
            told.put("error", &error.text("message").unwrap_or_else(|| "the server refused".to_owned()));
            for member in ["code", "data"] {
                if let Some(value) = error.get(member) {
                    told.set(member, value.to_owned());
                }
            }
            Ok(HubToolOutcome::Result(outcome::tool_error_as(&told.to_raw())))
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
