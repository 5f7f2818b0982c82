//! A caller who knows the names of what is not its own. To it, what exists must look like what does not.

use serde_json::{Value, json};

use super::{Clients, back_off};
use crate::dice::Dice;
use crate::wire::{Lost, SimCaller};

/// Tries a few doors until the faults are over.
pub async fn pry(clients: Clients, owner: String, who: String, mut dice: Dice) {
    let caller = clients.caller(&who, &owner);
    let mut tries = dice.between(3, 10);
    while tries > 0 && !clients.is_quiet() {
        let ids = clients.oracle.not_of(&owner);
        if !ids.is_empty() {
            let id = ids[dice.below(ids.len() as u64) as usize].clone();
            if Box::pin(pry_once(&clients, &caller, &id, &mut dice)).await.is_ok() {
                tries -= 1;
            }
        }
        caller.pause(dice.between(50, 800)).await;
        back_off(&caller, &mut dice).await;
    }
}

async fn pry_once(clients: &Clients, caller: &SimCaller, id: &str, dice: &mut Dice) -> Result<(), Lost> {
    // As long and of the same shape, and of nobody.
    let prefix = id.find('_').map_or(0, |at| at + 1);
    let other = format!("{}{}", &id[..prefix], "0".repeat(id.len() - prefix));
    let doors = |id: &str| {
        if id.starts_with("task_") {
            vec![
                ("GET", format!("/api/chat/tasks/{id}")),
                ("GET", format!("/api/chat/tasks/{id}/stream")),
                ("POST", format!("/api/chat/tasks/{id}/cancel")),
            ]
        } else {
            vec![
                ("GET", format!("/api/chat/sessions/{id}")),
                ("GET", format!("/api/chat/sessions/{id}/stream")),
                ("POST", format!("/api/chat/sessions/{id}/cancel")),
            ]
        }
    };
    let which = dice.below(3) as usize;
    let (method, real) = doors(id).swap_remove(which);
    let (_, unreal) = doors(&other).swap_remove(which);
    let body = (method == "POST").then(|| json!({}));
    let theirs = caller.request(method, &real, &[], body.as_ref()).await?;
    let nobodys = caller.request(method, &unreal, &[], body.as_ref()).await?;
    // Whoever is refused for another reason learned nothing.
    let is_busy = |answer: &(u16, Value)| [429, 503].contains(&answer.0);
    let named = |answer: &(u16, Value), id: &str| (answer.0, answer.1.to_string().replace(id, "ID"));
    if !is_busy(&theirs) && !is_busy(&nobodys) && named(&theirs, id) != named(&nobodys, &other) {
        clients.oracle.violate(&caller.who, format_args!("{method} {real}: {theirs:?}, and for nothing: {nobodys:?}"));
    }
    if theirs.0 < 300 {
        clients.oracle.violate(&caller.who, format_args!("{method} {real} was answered: {theirs:?}"));
    }
    Ok(())
}
