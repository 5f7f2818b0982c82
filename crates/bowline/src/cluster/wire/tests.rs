//! Messages between nodes as they were written and as they are: what nodes of two versions must both understand.

use super::*;
use crate::session::{CommandOutcome, Mail};
use crate::task::TaskClose;
use crate::task::command::{Appended, EndedTask};

fn read_text(text: &str) -> Envelope {
    parse(text).unwrap()
}

#[test]
fn what_nodes_wrote_before_there_were_versions_is_read() {
    let envelope = read_text(r#"{"from":"node_a","number":7,"parcel":{"Answer":{"number":3,"answer":"Gone"}}}"#);
    assert_eq!(envelope.from.as_str(), "node_a");
    assert_eq!(envelope.stamp, MessageStamp { incarnation: 0, to_incarnation: 0, since: 0, number: 7, read: 0 });
    assert!(matches!(envelope.message, Ok(NodeMessage::Answer { number: 3, .. })));
}

#[test]
fn a_newer_version_is_refused_with_a_reason() {
    let envelope = read_text(
        r#"{"version":2,"from":"node_a","incarnation":1,"to_incarnation":1,"since":0,"number":7,"read":0,"parcel":{"New":1}}"#,
    );
    let why = envelope.message.unwrap_err();
    assert!(why.contains("version 2") && why.contains("upgrade this node"), "{why}");
}

/// What version 1 looks like. A change that makes this fail changes what nodes of two versions say to each other in a rolling
/// upgrade: keep reading the old form (`serde(alias)`, `serde(default)`), or count up the version and keep writing the old
/// one to nodes whose record says that they read no newer.
#[test]
fn messages_of_version_1_are_written_as_they_were() {
    let visit =
        |ask: &str| format!(r#"{{"Session":{{"session":"s1","asker":"ann","from":"Nobody","ask":{ask},"hops":1}}}}"#);
    let mail = |mail: &str| format!(r#"{{"Mail":{{"party":7,"mail":{mail}}}}}"#);
    let ended = |record: &str| {
        format!(
            r#"{{"Answer":{{"number":3,"answer":{{"Ended":{{"Ok":{{"by_this":true,"record":{record},"last":5,"last_message_id":"e1-5"}}}}}}}}}}"#
        )
    };
    let granted = |resume: &str| {
        let extent = r#"{"epoch":"e1","epoch_first":1,"first":1,"next":3}"#;
        let greeting = r#"{"event":"system.notice","session":null,"content":null,"metadata":null}"#;
        mail(&format!(
            r#"{{"Granted":{{"session":"s1","claimed":"s2","log":"s1","observe":false,"way":"Created","extent":{extent},"resume":{resume},"position":1,"since":0,"greeting":{greeting}}}}}"#
        ))
    };
    let talk = |turn: &str| format!(r#"{{"Talk":{{"number":3,"turn":{turn}}}}}"#);
    let samples = [
        visit(r#""Detach""#),
        visit(r#""Alive""#),
        visit(r#""Prove""#),
        visit(r#""Expire""#),
        visit(r#""Verify""#),
        visit(r#"{"Ack":{"seq":5}}"#),
        visit(r#"{"End":{"by":"ann"}}"#),
        visit(r#"{"Cancel":{"by":"ann","reason":null,"turn":4}}"#),
        visit(r#"{"Regenerate":{"by":"ann","replaces":null}}"#),
        visit(r#"{"Message":{"message_id":"m1","also":null,"content":{"text":"hi"}}}"#),
        visit(r#"{"Response":{"step_id":"st1","reply":{"confirmed":true,"tasks":null,"reason":"yes"}}}"#),
        visit(r#"{"Plan":{"by":"ann","command":{"CancelTask":{"task_id":"p1"}}}}"#),
        visit(r#"{"OperationEnded":{"task":"t1","content":{"status":"completed"}}}"#),
        visit(r#"{"Export":{"memory":true,"plan":true,"work":false,"token":true,"plan_asked":false}}"#),
        visit(r#"{"Operate":{"tool_name":"sum","args":{"a":1},"key":"k1","idempotency_key":null,"operation_id":null,"by":{"Agent":{"step":"st1"}}}}"#),
        visit(r#"{"Operate":{"tool_name":null,"args":null,"key":null,"idempotency_key":"i1","operation_id":"o1","by":"Caller"}}"#),
        visit(r#"{"Attach":{"principal":"ann","way":"Recover","cursor":{"epoch":"e1","seq":4},"client_id":"c1","proof":"hash","observe":false,"take_over":true,"restored":{"original":"s1","new":"s2","step":1,"messages":2,"source":"Live","last_seq":5,"before":null,"warnings":["w"]},"since":0}}"#),
        visit(r#"{"Returned":{"step_id":"st1","outputs":[{"step_id":"st1","text":"4","data":{"n":4}},{"step_id":"st2","text":"no"}],"functions":{"list":[{"name":"sum","description":"adds","parameters":{"type":"object"},"strict":true},{"name":"bare","parameters":null}],"choice":{"function":"sum"},"parallel":false},"request":{"text":"hi"},"announce":3}}"#),
        visit(r#"{"Returned":{"step_id":"st1","outputs":[],"functions":{"list":[],"choice":"auto","parallel":true},"request":{"text":"hi"},"announce":null}}"#),
        visit(r#"{"Returned":{"step_id":"st1","outputs":[],"functions":{"list":[],"choice":"required","parallel":true},"request":{"text":"hi"},"announce":null}}"#),
        r#"{"Returned":{"session":"s1","asker":"ann","from":{"Connection":{"party":2,"admitted":true}},"ask":"Detach","hops":2}}"#.into(),
        r#"{"Session":{"session":"s1","asker":"ann","from":{"Request":{"number":9,"proof":null}},"ask":"Prove","hops":0}}"#.into(),
        r#"{"Task":{"task":"t1","asker":"ann","number":0,"ask":"Look","hops":0}}"#.into(),
        r#"{"Task":{"task":"t1","asker":"ann","number":2,"ask":{"Append":{"place":["p",1],"chunks":[{"type":"finish"}]}},"hops":0}}"#.into(),
        r#"{"Answer":{"number":3,"answer":"Gone"}}"#.into(),
        r#"{"Answer":{"number":3,"answer":{"Session":{"Ok":"Done"}}}}"#.into(),
        r#"{"Answer":{"number":3,"answer":{"Session":{"Ok":{"Cancelled":{"ran":true}}}}}}"#.into(),
        r#"{"Answer":{"number":3,"answer":{"Session":{"Ok":{"Started":{"turn":8}}}}}}"#.into(),
        r#"{"Answer":{"number":3,"answer":{"Session":{"Ok":{"Queued":{"position":2,"message_id":"m1"}}}}}}"#.into(),
        r#"{"Answer":{"number":3,"answer":{"Session":{"Ok":{"Repeated":{"message_id":null,"turn":4,"last":null}}}}}}"#.into(),
        r#"{"Answer":{"number":3,"answer":{"Session":{"Ok":{"Plan":{"action":"replan","ok":true}}}}}}"#.into(),
        r#"{"Answer":{"number":3,"answer":{"Session":{"Ok":{"Operation":{"task_id":"t1","operation_id":"o1","tool_name":null}}}}}}"#.into(),
        r#"{"Answer":{"number":3,"answer":{"Appended":{"Ok":{"last_message_id":"e1-4"}}}}}"#.into(),
        ended(r#"{"version":1,"session":"s1","operation_id":"o1","tool_name":"sum","call":"st1","worker":{"kind":"agent","name":"demo","args":{"a":1}},"status":"failed","created_ms":1,"touched_ms":2,"finished_ms":3,"result":{"n":4},"error":{"code":"C","message":"m"},"resume_token":{"current":"h2","previous":"h1"},"untold":true,"released":true}"#),
        ended(r#"{"version":1,"operation_id":"o1","worker":{"kind":"producer"},"status":"completed","created_ms":1,"touched_ms":2,"resume_token":{"current":"h1"}}"#),
        ended(r#"{"version":1,"operation_id":"o1","worker":{"kind":"producer"},"status":"running","created_ms":1,"touched_ms":2}"#),
        ended(r#"{"version":1,"operation_id":"o1","worker":{"kind":"producer"},"status":"cancelled","created_ms":1,"touched_ms":2}"#),
        r#"{"Task":{"task":"t1","asker":"ann","number":2,"ask":{"End":{"Cancelled":{"by":"ann","reason":null,"finish":null}}},"hops":0}}"#.into(),
        mail(r#"{"Cut":{"session":"s1"}}"#),
        mail(r#"{"TakenOver":{"session":"s1"}}"#),
        mail(r#"{"Superseded":{"session":"s1","by":"s2"}}"#),
        mail(r#"{"Probe":{"session":"s1"}}"#),
        mail(r#"{"Over":{"session":"s1","last":6}}"#),
        mail(r#"{"Control":{"event":"system.notice","session":"s1","content":"text","metadata":{"action":"queued"}}}"#),
        granted(r#"{"Gap":{"first":2,"lost":1}}"#),
        granted(r#"{"Replay":{"from":1,"to":2}}"#),
        granted(r#"{"OtherEpoch":{"first":2,"lost":1}}"#),
        granted(r#""CaughtUp""#),
        granted(r#""AheadOfLog""#),
        talk(r#"{"Ask":{"any":1}}"#),
        talk(r#"{"Part":"text"}"#),
        talk(r#""End""#),
        talk(r#""Taken""#),
        talk(r#""Left""#),
        r#""Ping""#.into(),
        r#""Hello""#.into(),
        r#""Missed""#.into(),
        r#"{"Unread":{"why":"a reason"}}"#.into(),
        r#"{"Dead":{"incarnation":2}}"#.into(),
    ];
    for sample in samples {
        let message: NodeMessage = serde_json::from_str(&sample).unwrap_or_else(|error| panic!("{error}: {sample}"));
        let expected = serde_json::from_str::<serde_json::Value>(&sample).unwrap();
        assert_eq!(serde_json::to_value(&message).unwrap(), expected);
        assert_eq!(without_since(serde_json::to_value(through(message)).unwrap()), without_since(expected));
    }
}

/// The same message after this node has made its own types of it, and of those a message again.
fn through(message: NodeMessage) -> NodeMessage {
    match message {
        NodeMessage::Session { session, asker, from, ask, hops } => {
            let ask = SessionAsk::from(&ask.of(&session));
            NodeMessage::Session { session, asker, from, ask, hops }
        }
        NodeMessage::Mail { connection, mail } => {
            NodeMessage::Mail { connection, mail: Box::new(SessionMail::from(&Mail::from(*mail))) }
        }
        NodeMessage::Answer { number, answer: NodeAnswer::Session(answered) } => {
            NodeMessage::Answer { number, answer: NodeAnswer::of_session(answered.map(CommandOutcome::from)) }
        }
        NodeMessage::Answer { number, answer: NodeAnswer::Appended(appended) } => {
            NodeMessage::Answer { number, answer: NodeAnswer::of_append(appended.map(Appended::from)) }
        }
        NodeMessage::Answer { number, answer: NodeAnswer::Ended(ended) } => {
            NodeMessage::Answer { number, answer: NodeAnswer::of_end(ended.map(Box::<EndedTask>::from)) }
        }
        NodeMessage::Task { task, asker, number, ask: TaskAsk::End(ending), hops } => {
            NodeMessage::Task { task, asker, number, ask: TaskAsk::End(TaskClose::from(ending).into()), hops }
        }
        message => message,
    }
}

/// How long ago something was grows while it is looked at.
fn without_since(mut written: serde_json::Value) -> serde_json::Value {
    for place in ["/Session/ask/Attach", "/Mail/mail/Granted"] {
        if let Some(fields) = written.pointer_mut(place).and_then(serde_json::Value::as_object_mut) {
            fields.remove("since");
        }
    }
    written
}
