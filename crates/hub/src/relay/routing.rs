//! Names in the list of everything: each backend's own, with the backend's name in front where that is wanted.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Value, json};

use super::ClientContext;
use crate::backend::{Backend, Lists};
use crate::catalogue::{ListKind, hub_tools};
use crate::config::options::{Options, Prefix};
use crate::fields::{Fields, Raw};
use crate::hub::Hub;
use crate::message::RpcRequest;
use crate::session::Route;

/// Between a backend's name and that of its tool. No backend's name has it.
const BETWEEN: &str = "__";

/// One entry of a merged list.
pub struct RoutedEntry {
    pub backend: Backend,
    /// What the backend calls it.
    pub own_name: String,
    pub shown: Raw,
}

/// All entries of a kind, under the names that clients see. Where two would have the same, the first keeps it.
pub fn merged(backends: &[Backend], kind: ListKind, options: &Options) -> Vec<(String, RoutedEntry)> {
    let prefix = options.prefix;
    let catalogues: Vec<_> = backends.iter().map(|backend| (backend, backend.catalogue())).collect();
    let mut count: HashMap<String, usize> = HashMap::new();
    let name_of = |entry: &Raw| Fields::of(Some(entry)).text("name").unwrap_or_default();
    if prefix == Prefix::Conditional {
        for entry in catalogues.iter().flat_map(|(_, catalogue)| catalogue.list(kind)) {
            *count.entry(name_of(entry)).or_default() += 1;
        }
    }
    let mut all = Vec::new();
    let mut seen = std::collections::HashSet::new();
    for (backend, catalogue) in &catalogues {
        for entry in catalogue.list(kind) {
            let own_name = name_of(entry);
            let prefixed = match prefix {
                Prefix::Always => true,
                // What is called like one of the hub's own tools could not be called by that name.
                _ if kind == ListKind::Tools && is_shown_of_ours(options, &own_name) => true,
                Prefix::Conditional => count.get(&own_name).is_some_and(|count| *count > 1),
                Prefix::Never => false,
            };
            let name = if prefixed { format!("{}{BETWEEN}{own_name}", backend.name()) } else { own_name.clone() };
            let mut fields = Fields::of(Some(entry));
            fields.put("name", &name);
            // A resource is found by its address, which is its own; only tools and prompts are found by name.
            let unique = match kind {
                ListKind::Tools | ListKind::Prompts => name.clone(),
                ListKind::Resources | ListKind::Templates => format!("{} {own_name} {}", backend.name(), all.len()),
            };
            if seen.insert(unique) {
                all.push((name, RoutedEntry { backend: (*backend).clone(), own_name, shown: fields.to_raw() }));
            }
        }
    }
    all
}

/// Whether a client means one of the hub's own tools by this name.
pub fn is_shown_of_ours(options: &Options, name: &str) -> bool {
    options.expose.meta() && hub_tools::is_ours(name)
}

/// Who offers what a client calls by this name, and what it is called there.
pub fn resolve(hub: &Hub, client: &ClientContext, kind: ListKind, name: &str) -> Option<(Backend, String)> {
    // A prefixed name needs no list, so it works before the lists are there and while the backend is away.
    if let Some((server, own)) = name.split_once(BETWEEN)
        && let Some(backend) = hub.find(&client.principal, server)
    {
        return Some((backend, own.to_owned()));
    }
    let entries = merged(&hub.visible(&client.principal), kind, &hub.options);
    let found = entries.into_iter().find(|(shown, _)| shown == name);
    found.map(|(_, entry)| (entry.backend, entry.own_name))
}

/// The server that a request is for, on whatever path and by whatever name.
pub fn target(hub: &Arc<Hub>, client: &ClientContext, request: &RpcRequest) -> Option<Backend> {
    let params = Fields::of(request.params.as_deref());
    if let Route::One(server) = &client.route {
        return hub.find(&client.principal, server);
    }
    let name = params.text("name").unwrap_or_default();
    match request.method.as_str() {
        "tools/call" if is_shown_of_ours(&hub.options, &name) => {
            hub.find(&client.principal, &params.object("arguments").text("server")?)
        }
        "tools/call" => resolve(hub, client, ListKind::Tools, &name).map(|(backend, _)| backend),
        "prompts/get" => resolve(hub, client, ListKind::Prompts, &name).map(|(backend, _)| backend),
        "resources/read" => server_of_resource(hub, client, &params.text("uri")?),
        _ => None,
    }
}

/// Who has this resource: by its address, or by a template that it fits. Of several, the first that is there.
pub fn server_of_resource(hub: &Arc<Hub>, client: &ClientContext, uri: &str) -> Option<Backend> {
    let mut backends = hub.visible(&client.principal);
    backends.sort_by_key(|backend| !backend.snapshot().is_connected());
    let listed = backends.iter().find(|backend| backend.catalogue().find(ListKind::Resources, uri).is_some());
    let fits = |backend: &&Backend| {
        backend.catalogue().list(ListKind::Templates).iter().any(|template| {
            let template = Fields::of(Some(template)).text("uriTemplate").unwrap_or_default();
            let fixed = template.split('{').next().unwrap_or_default();
            !fixed.is_empty() && uri.starts_with(fixed)
        })
    };
    listed.or_else(|| backends.iter().find(fits)).cloned()
}

/// What a reader of a list should know of servers that are not as they should be.
pub fn troubles(backends: &[Backend], kind: ListKind) -> Vec<Value> {
    let bad = backends.iter().filter_map(|backend| {
        let snapshot = backend.snapshot();
        let late = (snapshot.lists != Lists::Fetched).then_some("not all of its lists have arrived yet");
        let listing = snapshot.catalogue.trouble(kind).or(late).map(ToOwned::to_owned);
        if snapshot.is_connected() && listing.is_none() {
            return None;
        }
        Some(json!({
            "name": backend.name(),
            "status": snapshot.status.as_str(),
            "stale": snapshot.lists.are_known(),
            "lastError": snapshot.last_error.or(listing),
        }))
    });
    bad.collect()
}
