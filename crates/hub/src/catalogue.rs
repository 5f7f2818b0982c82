//! What a backend offers: its lists as they were last seen, kept while it is away.

use std::fmt;

use crate::fields::{Fields, Raw};
use crate::link::{Ending, Link, Upcall};
use crate::{message, mirrored};

/// More pages than this are a backend that counts in circles.
const PAGES_MAX: usize = 100;
const ENTRIES_MAX: usize = 10_000;

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

    pub fn of_method(method: &str) -> Option<ListKind> {
        ListKind::ALL.into_iter().find(|kind| kind.method() == method)
    }
}

#[derive(Clone, Default)]
pub struct Catalogue {
    lists: [Vec<Raw>; 4],
    /// Lists that could not be fetched, and why; they keep what was known before.
    pub troubles: Vec<(ListKind, String)>,
}

impl Catalogue {
    pub fn list(&self, kind: ListKind) -> &[Raw] {
        &self.lists[kind as usize]
    }

    /// The entry of that name.
    pub fn find(&self, kind: ListKind, name: &str) -> Option<&Raw> {
        self.list(kind).iter().find(|entry| Fields::of(Some(entry)).text(kind.key()).as_deref() == Some(name))
    }

    /// Fetches every list that the backend says it has. A list that fails is as it was in `before`.
    pub async fn fetch(link: &Link, before: &Catalogue) -> Catalogue {
        let capabilities = Fields::of(Some(&link.facts().capabilities));
        let mut fetched = Catalogue::default();
        for kind in ListKind::ALL.into_iter().filter(|kind| capabilities.has(kind.capability())) {
            match fetch_list(link, kind).await {
                Ok(mut entries) => {
                    if kind == ListKind::Tools && link.mirrors_arguments() {
                        entries.retain(is_sound);
                    }
                    fetched.lists[kind as usize] = entries;
                }
                Err(why) => {
                    fetched.lists[kind as usize].clone_from(&before.lists[kind as usize]);
                    fetched.troubles.push((kind, why));
                }
            }
        }
        fetched
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

/// A tool whose headers cannot be made must not be offered; the others are not hurt by that.
fn is_sound(tool: &Raw) -> bool {
    let flaw = mirrored::flaw(tool);
    if let Some(flaw) = &flaw {
        let name = Fields::of(Some(tool)).text("name").unwrap_or_default();
        tracing::warn!(tool = name, %flaw, "a tool is left out");
    }
    flaw.is_none()
}

async fn fetch_list(link: &Link, kind: ListKind) -> Result<Vec<Raw>, String> {
    let mut entries = Vec::new();
    let mut cursor: Option<String> = None;
    for _ in 0..PAGES_MAX {
        let mut params = Fields::default();
        if let Some(cursor) = &cursor {
            params.put("cursor", cursor);
        }
        let params = (!params.is_empty()).then(|| params.to_raw());
        let result = match link.call(&Upcall::of_hub(kind.method(), params)).await {
            Ending::Answered { answer: Ok(result), .. } => Fields::of(Some(&result)),
            // A server that has resources need not have templates.
            Ending::Answered { answer: Err(error), .. } if message::code_of(&error) == message::METHOD_NOT_FOUND => {
                break;
            }
            Ending::Answered { answer: Err(error), .. } => return Err(message::message_of(&error)),
            Ending::NotExecuted(why) | Ending::Broken(why) => return Err(why),
        };
        entries.extend(result.read::<Vec<Raw>>(kind.member()).unwrap_or_default());
        cursor = result.text("nextCursor");
        if cursor.is_none() || entries.len() >= ENTRIES_MAX {
            break;
        }
    }
    entries.truncate(ENTRIES_MAX);
    Ok(entries)
}

impl fmt::Debug for Catalogue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Catalogue({:?})", self.lists.each_ref().map(Vec::len))
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
        before.lists[0] = vec![entry("a")];
        let mut after = before.clone();
        assert!(before.changes(&after).is_empty());
        after.lists[1] = vec![entry("r")];
        after.lists[2] = vec![entry("t")];
        assert_eq!(before.changes(&after), ["notifications/resources/list_changed"]);
    }
}
