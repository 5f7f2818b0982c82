//! A producer that appends to a task of its own and repeats what was not answered, and a reader of that task.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use super::{Clients, back_off, lock};
use crate::dice::Dice;
use crate::wire::{Lost, SseReader};

/// A task that one client fills and others read.
#[derive(Clone, Debug)]
pub struct SharedTask {
    pub owner: String,
    id: Arc<Mutex<Option<String>>>,
    /// How many chunks it will have.
    total: u64,
}

impl SharedTask {
    pub fn new(owner: &str, dice: &mut Dice) -> SharedTask {
        SharedTask { owner: owner.to_owned(), id: Arc::default(), total: dice.between(3, 40) }
    }

    pub fn id(&self) -> Option<String> {
        lock(&self.id).clone()
    }
}

/// Makes the task, appends all chunks, and completes it.
pub async fn produce(clients: Clients, task: SharedTask, who: String, mut dice: Dice) {
    let caller = clients.caller(&who, &task.owner);
    let post = async |dice: &mut Dice, path: &str, headers: Vec<(&str, String)>, body: &Value| loop {
        match Box::pin(caller.request("POST", path, &headers, Some(body))).await {
            Ok((200..=299, answer)) => return answer,
            Ok((503 | 429, _)) | Err(Lost) => {}
            Ok((status, answer)) => {
                clients.oracle.violate(&who, format_args!("POST {path} was answered {status}: {answer}"));
            }
        }
        back_off(&caller, dice).await;
    };
    let made = post(&mut dice, "/api/chat/tasks", Vec::new(), &json!({ "tool_name": "painter" })).await;
    let id = made["task_id"].as_str().unwrap_or_default().to_owned();
    clients.oracle.owns(&task.owner, &id);
    *lock(&task.id) = Some(id.clone());
    let (mut next, mut append) = (0, 0);
    let mut last_id = String::new();
    while next < task.total {
        let count = dice.between(1, 4).min(task.total - next);
        let chunks: Vec<Value> =
            (next..next + count).map(|n| json!({ "type": "data-n", "data": { "n": n } })).collect();
        let headers = || vec![("producer-id", who.clone()), ("producer-seq", append.to_string())];
        let path = format!("/api/chat/tasks/{id}/messages");
        let answer = post(&mut dice, &path, headers(), &json!(chunks)).await;
        let answered = number(&answer);
        if dice.percent(20) {
            let again = post(&mut dice, &path, headers(), &json!(chunks)).await;
            if number(&again) != answered {
                clients
                    .oracle
                    .violate(&who, format_args!("a repeated append was answered {again}, and before {answer}"));
            }
        }
        if answered == last_id {
            clients.oracle.violate(&who, format_args!("two appends were answered with the number {answered}"));
        }
        last_id = answered;
        (next, append) = (next + count, append + 1);
        caller.pause(dice.below(200)).await;
    }
    post(&mut dice, &format!("/api/chat/tasks/{id}/complete"), Vec::new(), &json!({})).await;
}

/// The number of the last event of an append. Its epoch is that of the log when it is answered: a log can begin a new one though it has
/// lost nothing (after a sync that failed while the disk was full), and a retry then gets the same event's place in that.
fn number(answer: &Value) -> String {
    let id = answer["last_message_id"].as_str().unwrap_or_default();
    id.rsplit('-').next().unwrap_or_default().to_owned()
}

/// Reads the task from its start to its end, with breaks; every chunk once, in order.
pub async fn follow(clients: Clients, task: SharedTask, who: String, mut dice: Dice) {
    let caller = clients.caller(&who, &task.owner);
    let mut reading = Reading { next: 0, cursor: None, has_gap: false, is_elsewhere: false };
    loop {
        if let Some(id) = task.id()
            && let Ok(true) = Box::pin(reading.once(&clients, &caller, &task, &id, &mut dice)).await
        {
            return;
        }
        back_off(&caller, &mut dice).await;
    }
}

struct Reading {
    next: u64,
    cursor: Option<String>,
    /// It was told that something is missing.
    has_gap: bool,
    /// The next chunk may be any.
    is_elsewhere: bool,
}

impl Reading {
    fn end(&self, clients: &Clients, caller: &crate::wire::SimCaller, task: &SharedTask) -> bool {
        if self.next != task.total && !self.has_gap {
            let (next, total) = (self.next, task.total);
            clients.oracle.violate(&caller.who, format_args!("the task ended after {next} of {total} chunks"));
        }
        true
    }

    async fn once(
        &mut self,
        clients: &Clients,
        caller: &crate::wire::SimCaller,
        task: &SharedTask,
        id: &str,
        dice: &mut Dice,
    ) -> Result<bool, Lost> {
        // Now and then it forgets where it was.
        if dice.percent(10) {
            (self.next, self.cursor) = (0, None);
        }
        let headers: Vec<(&str, String)> = self.cursor.iter().map(|cursor| ("last-event-id", cursor.clone())).collect();
        let path = format!("/api/chat/tasks/{id}/stream");
        let answer = caller.begin("GET", &path, &headers, None).await?;
        let from = self.cursor.as_deref().unwrap_or("its start");
        clients.trace.note(&caller.who, format_args!("GET {path} from {from} ← {}", answer.status));
        match answer.status {
            200 => {}
            503 | 429 => return Ok(false),
            // It has everything, and the task is over.
            204 if self.cursor.is_some() => return Ok(self.end(clients, caller, task)),
            status => {
                clients.oracle.violate(&caller.who, format_args!("GET {path} was answered {status}"));
                return Ok(false);
            }
        }
        let mut stream = SseReader::new(answer);
        let mut patience = if dice.percent(40) { dice.between(1, 20) } else { u64::MAX };
        while let Some((cursor, data)) = stream.next().await? {
            clients.trace.note(&caller.who, format_args!("← {} {data}", cursor.as_deref().unwrap_or("-")));
            if data == "[DONE]" {
                return Ok(self.end(clients, caller, task));
            }
            let chunk: Value = serde_json::from_str(&data)?;
            match chunk["type"].as_str().unwrap_or_default() {
                "data-n" => {
                    let n = chunk["data"]["n"].as_u64().unwrap_or(u64::MAX);
                    if n != self.next && !std::mem::take(&mut self.is_elsewhere) {
                        clients
                            .oracle
                            .violate(&caller.who, format_args!("chunk {n} came in the place of {}", self.next));
                    }
                    self.next = n + 1;
                }
                "data-gap" => {
                    if clients.oracle.has_no_gaps() {
                        clients
                            .oracle
                            .violate(&caller.who, format_args!("was told of a gap where all is kept: {data}"));
                    }
                    (self.has_gap, self.is_elsewhere) = (true, true);
                }
                _ => {}
            }
            if cursor.is_some() {
                self.cursor = cursor;
            }
            patience = patience.saturating_sub(1);
            if patience == 0 && !clients.is_quiet() {
                return Ok(false);
            }
        }
        Ok(false)
    }
}
