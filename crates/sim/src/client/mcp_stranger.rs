//! A caller who knows the ids of MCP sessions that are not its own, and calls tools in them. To it, they must look like ones that never were.

use serde_json::{Value, json};

use super::mcp::accepting;
use super::{Clients, back_off};
use crate::dice::Dice;
use crate::mcp::WITH_SESSIONS;
use crate::mcp::ledger::{CallLedger, KnownSession, ToldOutcome};
use crate::mcp::tool::{SERVER, SimTool};
use crate::wire::{Lost, SimCaller};

/// Tries some sessions until the faults are over.
pub async fn pry(clients: Clients, ledger: CallLedger, owner: String, who: String, mut dice: Dice) {
    let caller = clients.caller(&who, &owner);
    let mut tries = dice.between(3, 10);
    while tries > 0 && !clients.is_quiet() {
        let known = ledger.not_of(&owner);
        if !known.is_empty() {
            let session = known[dice.below(known.len() as u64) as usize].clone();
            let key = format!("{who}/0/{tries}");
            if Box::pin(pry_once(&clients, &caller, &ledger, &session, &key, &mut dice)).await.is_ok() {
                tries -= 1;
            }
        }
        caller.pause(dice.between(50, 800)).await;
        back_off(&caller, &mut dice).await;
    }
}

async fn pry_once(
    clients: &Clients,
    caller: &SimCaller,
    ledger: &CallLedger,
    session: &KnownSession,
    key: &str,
    dice: &mut Dice,
) -> Result<(), Lost> {
    // As long and of the same shape, and of nobody.
    let prefix = session.id.find('_').map_or(0, |at| at + 1);
    let other = format!("{}{}", &session.id[..prefix], "0".repeat(session.id.len() - prefix));
    let tool = SimTool::Count.name();
    let tool = if session.path == "/mcp" { format!("{SERVER}__{tool}") } else { tool.to_owned() };
    let params = json!({ "name": tool, "arguments": { "key": key } });
    let call = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params });
    let (method, body) = match dice.below(4) {
        0 => ("GET", None),
        1 => ("DELETE", None),
        _ => ("POST", Some(&call)),
    };
    let asked = async |id: &str| {
        let mut headers = accepting();
        headers.push(("mcp-session-id", id.to_owned()));
        headers.push(("mcp-protocol-version", WITH_SESSIONS.to_owned()));
        let mut answer = caller.begin(method, &session.path, &headers, body).await?;
        // A stream that is opened for a stranger has no end; that it is opened says enough.
        let said = if answer.status == 404 { answer.body().await? } else { Vec::new() };
        clients.trace.note(&caller.who, format_args!("{method} in {id} ← {}", answer.status));
        Ok::<_, Lost>((answer.status, serde_json::from_slice::<Value>(&said).unwrap_or(Value::Null)))
    };
    let theirs = asked(&session.id).await?;
    ledger.told(&caller.who, key, ToldOutcome::NotExecuted);
    let nobodys = asked(&other).await?;
    // Whoever is refused for another reason learned nothing.
    let is_busy = |answer: &(u16, Value)| [429, 503].contains(&answer.0);
    if !is_busy(&theirs) && !is_busy(&nobodys) && theirs != nobodys {
        let id = &session.id;
        clients.oracle.violate(&caller.who, format_args!("{method} in {id}: {theirs:?}, and for nothing: {nobodys:?}"));
    }
    Ok(())
}
