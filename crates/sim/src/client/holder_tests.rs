//! What a holder takes for wrong: states that go back, and answers that are not the agent's.

use super::*;
use crate::disk::SimDisk;
use crate::net::SimNet;
use crate::oracle::{Oracle, Promises};
use crate::trace::Trace;
use crate::wire::Balancer;

/// A holder that waits for the answer to this message.
fn holder(text: &str) -> HoldingClient {
    let (trace, dice) = (Trace::new(false), Dice::new(1));
    let oracle = Oracle::new(trace.clone(), Promises { tells_losses_at_once: true, keeps_all: true });
    let disk = SimDisk::new(dice.fork(1), trace.clone(), 8 << 10);
    let net = SimNet::new(dice.fork(2), trace.clone(), disk);
    let clients = Clients::new(net, trace, oracle, Balancer::new(dice.fork(3), 1));
    let mut holder = HoldingClient::new(&clients, &SharedSession::new("alice", 1), "holder", dice);
    holder.jobs = vec![Job { tag: "m".into(), text: text.into(), cancel_after_ms: None }];
    holder.running = Some("m".into());
    holder
}

fn violations(holder: &HoldingClient) -> usize {
    holder.clients.oracle.violations().len()
}

fn state(epoch: &str, seq: u64, messages: u64) -> Value {
    json!({ "metadata": { "message_count": messages, "signed_state": { "state": { "epoch": epoch, "last_seq": seq } } } })
}

#[test]
fn a_state_that_holds_less_than_the_one_before_is_a_violation() {
    let mut holder = holder("say m 1 0");
    for (epoch, seq, messages, wrong) in
        [("e", 5, 2, 0), ("e", 5, 2, 0), ("e", 9, 4, 0), ("e", 8, 4, 1), ("e", 9, 3, 2), ("other", 1, 1, 2)]
    {
        holder.keep_state(&state(epoch, seq, messages));
        assert_eq!(violations(&holder), wrong, "{epoch}-{seq} with {messages}");
    }
}

#[test]
fn a_state_that_holds_less_than_its_client_had_seen_is_a_violation() {
    let mut holder = holder("say m 1 0");
    holder.states_asked.extend([("e".to_owned(), 4), ("e".to_owned(), 7)]);
    holder.keep_state(&state("e", 4, 1));
    assert_eq!(violations(&holder), 0);
    holder.keep_state(&state("e", 6, 1));
    assert_eq!(violations(&holder), 1);
}

#[test]
fn a_session_that_lives_and_is_rebuilt_is_a_violation() {
    let holder = holder("say m 1 0");
    holder.judge_restore(&json!({ "metadata": { "source": "live" } }));
    assert_eq!(violations(&holder), 0);
    holder.judge_restore(&json!({ "metadata": { "source": "snapshot" } }));
    assert_eq!(violations(&holder), 1);
}

#[test]
fn an_answer_that_is_not_the_agents_is_a_violation() {
    let ends = |text: &str, said: &str, name: &str, frame: Value| {
        let mut holder = holder(text);
        said.clone_into(&mut holder.said);
        holder.handle_event(name, &frame);
        assert!(holder.jobs.is_empty(), "it has its end");
        violations(&holder)
    };
    let answered = |content: &str| json!({ "content": content });
    assert_eq!(ends("say m 2 0", "m:1 m:2 ", events::FINAL_ANSWER, answered("m:1 m:2 ")), 0);
    assert_eq!(ends("say m 2 0", "m:1 m:2 ", events::FINAL_ANSWER, answered("m:1 ")), 1, "it is not whole");
    assert_eq!(ends("say m 2 0", "m:1 m:1 m:2 ", events::FINAL_ANSWER, answered("m:1 m:2 ")), 1, "a piece came twice");
    assert_eq!(ends("say m 2 0", "", events::CANCELLED, json!({})), 1, "no device has cancelled");
    let failed = |code: &str| json!({ "metadata": { "error_code": code } });
    assert_eq!(ends("say m 2 0", "m:1 ", events::ERROR, failed("AGENT_LOST")), 0);
    assert_eq!(ends("say m 2 0", "m:1 ", events::ERROR, failed("INTERNAL")), 1);
}

#[test]
fn a_run_that_waited_for_a_person_and_is_lost_is_a_violation() {
    let mut holder = holder("ask m");
    holder.handle_event(events::USER_CONFIRM, &json!({ "step_id": "s" }));
    holder.handle_event(events::ERROR, &json!({ "metadata": { "error_code": "AGENT_LOST" } }));
    assert_eq!(violations(&holder), 1);
}
