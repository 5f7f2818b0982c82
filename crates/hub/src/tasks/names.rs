//! What clients call tasks that are not made by the hub's tools: by the server's name in front, and a seal that works for the owner only.

use std::sync::Arc;

use bowline_protocol::{LogId, Principal};

use crate::seal::Seal;
use crate::tasks::is_ours;

/// Between a server's name and the rest. No server's name has it.
const BETWEEN: &str = "__";

#[derive(Debug)]
pub struct TaskNames {
    seal: Arc<Seal>,
}

impl TaskNames {
    pub fn new(seal: Arc<Seal>) -> TaskNames {
        TaskNames { seal }
    }

    /// What the owner calls the task that the server calls `own`.
    pub fn name(&self, owner: &Principal, server: &str, own: &str) -> String {
        let seal = self.seal.of(&[owner.as_str(), server, own]);
        format!("{server}{BETWEEN}{seal}_{own}")
    }

    /// The server and its own name of the task. `None` for a task that does not exist, and for another client's: both look the same.
    pub fn resolve<'a>(&self, owner: &Principal, name: &'a str) -> Option<(&'a str, &'a str)> {
        let (server, rest) = name.split_once(BETWEEN)?;
        let (seal, own) = rest.split_once('_')?;
        self.seal.fits(&[owner.as_str(), server, own], seal).then_some((server, own))
    }
}

/// The log of a task of the hub's own, if a client's name for a task leads to one. Whether the name is right is not looked at.
pub fn hosted_log(name: &str) -> Option<LogId> {
    let (_, rest) = name.split_once(BETWEEN)?;
    let (_, own) = rest.split_once('_')?;
    LogId::parse(own).filter(|_| is_ours(own))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_leads_back_for_its_owner_and_for_nobody_else() {
        let names = TaskNames::new(Seal::with_key(vec![7; 32]));
        let who = |name: &str| Principal::parse(name).unwrap();
        for own in ["t-1", "", "a_b__c", "käse 🧀"] {
            let name = names.name(&who("alice"), "b", own);
            assert_eq!(names.resolve(&who("alice"), &name), Some(("b", own)));
            assert_eq!(names.resolve(&who("bob"), &name), None);
            assert_eq!(names.resolve(&who("alice"), &name.replacen('b', "c", 1)), None, "another server's");
            assert_eq!(names.resolve(&who("alice"), &format!("{name}x")), None);
        }
        for wrong in ["", "b", "b__", "b__t-1", "b__zz_t", "b__é23456789012345678901234567890_t"] {
            assert_eq!(names.resolve(&who("alice"), wrong), None, "{wrong}");
        }
    }
}
