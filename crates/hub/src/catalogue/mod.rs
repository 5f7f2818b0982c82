//! What a backend offers: its lists as they were last seen, kept while it is away.

pub mod hub_tools;
pub(crate) mod mirrored_headers;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use crate::fields::{Fields, Raw};

/// One kind of thing that is offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ListKind {
    Tools,
    Resources,
    Templates,
    Prompts,
}

impl ListKind {
    pub const ALL: [ListKind; 4] = [ListKind::Tools, ListKind::Resources, ListKind::Templates, ListKind::Prompts];

    pub const fn method(self) -> &'static str {
        match self {
            ListKind::Tools => "tools/list",
            ListKind::Resources => "resources/list",
            ListKind::Templates => "resources/templates/list",
            ListKind::Prompts => "prompts/list",
        }
    }

    /// The member of the result that holds the entries.
    pub const fn member(self) -> &'static str {
        match self {
            ListKind::Tools => "tools",
            ListKind::Resources => "resources",
            ListKind::Templates => "resourceTemplates",
            ListKind::Prompts => "prompts",
        }
    }

    /// What names an entry.
    pub const fn key(self) -> &'static str {
        match self {
            ListKind::Tools | ListKind::Prompts => "name",
            ListKind::Resources => "uri",
            ListKind::Templates => "uriTemplate",
        }
    }

    pub const fn capability(self) -> &'static str {
        match self {
            ListKind::Tools => "tools",
            ListKind::Resources | ListKind::Templates => "resources",
            ListKind::Prompts => "prompts",
        }
    }

    pub const fn changed(self) -> &'static str {
        match self {
            ListKind::Tools => "notifications/tools/list_changed",
            ListKind::Resources | ListKind::Templates => "notifications/resources/list_changed",
            ListKind::Prompts => "notifications/prompts/list_changed",
        }
    }

    /// The lists whose changes are announced together.
    pub const GROUPS: [&'static [ListKind]; 3] =
        [&[ListKind::Tools], &[ListKind::Resources, ListKind::Templates], &[ListKind::Prompts]];

    pub fn of_method(method: &str) -> Option<ListKind> {
        ListKind::ALL.into_iter().find(|kind| kind.method() == method)
    }
}

/// One list as it was fetched, or why it could not be.
pub type FetchedList = (ListKind, Result<Vec<Raw>, String>);

#[derive(Clone, Default)]
pub struct Catalogue {
    lists: [Arc<List>; 4],
    /// Some tool wants arguments repeated in headers.
    mirrors: bool,
    /// Lists that could not be fetched, and why; they keep what was known before.
    troubles: BTreeMap<ListKind, String>,
    /// Lists of which something had to be left out.
    flaws: BTreeMap<ListKind, String>,
}

#[derive(Default)]
struct List {
    entries: Vec<Raw>,
    /// Where each name stands.
    places: HashMap<String, usize>,
}

impl Catalogue {
    pub fn list(&self, kind: ListKind) -> &[Raw] {
        &self.lists[kind as usize].entries
    }

    /// The entry of that name.
    pub fn find(&self, kind: ListKind, name: &str) -> Option<&Raw> {
        let list = &self.lists[kind as usize];
        list.entries.get(*list.places.get(name)?)
    }

    /// Whether any tool wants arguments repeated in headers.
    pub fn mirrors_arguments(&self) -> bool {
        self.mirrors
    }

    fn set(&mut self, kind: ListKind, entries: Vec<Raw>) {
        let mut places = HashMap::new();
        for (place, entry) in entries.iter().enumerate() {
            if let Some(name) = Fields::of(Some(entry)).text(kind.key()) {
                // Of two with one name the first counts.
                places.entry(name).or_insert(place);
            }
        }
        if kind == ListKind::Tools {
            self.mirrors = entries.iter().any(mirrored_headers::is_annotated);
        }
        self.lists[kind as usize] = Arc::new(List { entries, places });
    }

    /// As it was kept.
    pub fn of(lists: [Vec<Raw>; 4]) -> Catalogue {
        let mut catalogue = Catalogue::default();
        for (kind, entries) in ListKind::ALL.into_iter().zip(lists) {
            catalogue.set(kind, entries);
        }
        catalogue
    }

    /// All of it, in the order of [`ListKind::ALL`].
    pub fn lists(&self) -> [&[Raw]; 4] {
        ListKind::ALL.map(|kind| self.list(kind))
    }

    /// Whether every list could be fetched the last time.
    pub fn is_whole(&self) -> bool {
        self.troubles.is_empty()
    }

    /// What is wrong with a list.
    pub fn trouble(&self, kind: ListKind) -> Option<&str> {
        self.troubles.get(&kind).or_else(|| self.flaws.get(&kind)).map(String::as_str)
    }

    /// With what was fetched. A list that could not be had stays as it is.
    pub fn with(&self, fetched: Vec<FetchedList>) -> Catalogue {
        let mut newer = self.clone();
        for (kind, came) in fetched {
            newer.flaws.remove(&kind);
            newer.troubles.remove(&kind);
            match came {
                Ok(mut entries) => {
                    let all = entries.len();
                    entries.retain(|entry| is_described(kind, entry));
                    if entries.len() < all {
                        let (left_out, member) = (all - entries.len(), kind.member());
                        let flaw =
                            format!("{left_out} of its {member} are not described as they must be and are left out");
                        newer.flaws.insert(kind, flaw);
                    }
                    newer.set(kind, entries);
                }
                Err(why) => drop(newer.troubles.insert(kind, why)),
            }
        }
        newer
    }

    /// The notifications that tell the difference: each at most once, and only for a real one.
    pub fn changes(&self, newer: &Catalogue) -> Vec<&'static str> {
        let same = |kind: ListKind| {
            let (old, new) = (self.list(kind), newer.list(kind));
            old.len() == new.len() && old.iter().zip(new).all(|(old, new)| old.get() == new.get())
        };
        let mut changed: Vec<&'static str> =
            ListKind::ALL.into_iter().filter(|kind| !same(*kind)).map(ListKind::changed).collect();
        changed.dedup();
        changed
    }
}

/// Whether an entry is what the protocol wants. One that is not would make a strict client refuse the whole list, and with
/// it what all other servers offer.
fn is_described(kind: ListKind, entry: &Raw) -> bool {
    let fields = Fields::of(Some(entry));
    let named = |key: &str| fields.text(key).is_some_and(|text| !text.is_empty());
    let described = match kind {
        ListKind::Tools => fields.get("inputSchema").is_some_and(|schema| schema.get().starts_with('{')),
        ListKind::Resources | ListKind::Templates => named("name"),
        ListKind::Prompts => true,
    };
    named(kind.key()) && described
}

impl fmt::Debug for Catalogue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Catalogue({:?})", self.lists().map(<[Raw]>::len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::raw;
    use serde_json::json;

    #[test]
    fn only_a_real_difference_is_told_and_each_kind_once() {
        let entry = |name: &str| raw(&json!({ "name": name }));
        let mut before = Catalogue::default();
        before.set(ListKind::Tools, vec![entry("a")]);
        let mut after = before.clone();
        assert!(before.changes(&after).is_empty());
        after.set(ListKind::Resources, vec![entry("r")]);
        after.set(ListKind::Templates, vec![entry("t")]);
        assert_eq!(before.changes(&after), ["notifications/resources/list_changed"]);
    }

    #[test]
    fn what_is_no_description_is_left_out_and_told_and_a_list_that_failed_stays() {
        let tool = |name: &str| json!({ "name": name, "inputSchema": { "type": "object" } });
        let entries =
            [tool("a"), json!(null), json!({}), json!({ "name": 5 }), json!({ "name": "b", "inputSchema": null })];
        let listed = Catalogue::default().with(vec![(ListKind::Tools, Ok(entries.iter().map(raw).collect()))]);
        assert_eq!(listed.list(ListKind::Tools).len(), 1);
        assert!(listed.is_whole() && listed.trouble(ListKind::Tools).unwrap().starts_with("4 of its tools"));
        let failed = listed.with(vec![(ListKind::Tools, Err("no".into())), (ListKind::Prompts, Ok(Vec::new()))]);
        assert_eq!((failed.list(ListKind::Tools).len(), failed.is_whole()), (1, false));
        assert_eq!((failed.trouble(ListKind::Tools), failed.trouble(ListKind::Prompts)), (Some("no"), None));
        let mended = failed.with(vec![(ListKind::Tools, Ok(vec![raw(&tool("c"))]))]);
        assert!(mended.is_whole() && mended.trouble(ListKind::Tools).is_none());
    }
}
