//! Messages between nodes as they were written and as they are: what nodes of two versions must both understand.

use super::*;

fn read_text(text: &str) -> Letter {
    parse(text).unwrap()
}

#[test]
fn what_nodes_wrote_before_there_were_versions_is_read() {
    let letter = read_text(r#"{"from":"node_a","number":7,"parcel":{"Answer":{"number":3,"answer":"Gone"}}}"#);
    assert_eq!(letter.from.as_str(), "node_a");
    assert_eq!(letter.stamp, Stamp { incarnation: 0, to_incarnation: 0, since: 0, number: 7, read: 0 });
    assert!(matches!(letter.parcel, Ok(Parcel::Answer { number: 3, .. })));
}

#[test]
fn a_newer_version_is_refused_with_a_reason() {
    let letter = read_text(
        r#"{"version":2,"from":"node_a","incarnation":1,"to_incarnation":1,"since":0,"number":7,"read":0,"parcel":{"New":1}}"#,
    );
    let why = letter.parcel.unwrap_err();
    assert!(why.contains("version 2") && why.contains("upgrade this node"), "{why}");
}

/// What version 1 looks like. Whoever makes this fail has changed what nodes of two versions say to each other in a rolling
/// upgrade: keep reading the old form (`serde(alias)`, `serde(default)`), or count up the version and keep writing the old
/// one to nodes whose record says that they read no newer.
#[test]
fn parcels_of_version_1_are_written_as_they_were() {
    let visit =
        |ask: &str| format!(r#"{{"Session":{{"session":"s1","asker":"ann","from":"Nobody","ask":{ask},"hops":1}}}}"#);
    let mail = |mail: &str| format!(r#"{{"Mail":{{"party":7,"mail":{mail}}}}}"#);
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
        r#"{"Returned":{"session":"s1","asker":"ann","from":{"Connection":{"party":2,"admitted":true}},"ask":"Detach","hops":2}}"#.into(),
        r#"{"Session":{"session":"s1","asker":"ann","from":{"Request":{"number":9,"proof":null}},"ask":"Prove","hops":0}}"#.into(),
        r#"{"Task":{"task":"t1","asker":"ann","number":0,"ask":"Look","hops":0}}"#.into(),
        r#"{"Task":{"task":"t1","asker":"ann","number":2,"ask":{"Append":{"place":["p",1],"chunks":[{"type":"finish"}]}},"hops":0}}"#.into(),
        r#"{"Answer":{"number":3,"answer":"Gone"}}"#.into(),
        r#"{"Answer":{"number":3,"answer":{"Session":{"Ok":"Done"}}}}"#.into(),
        r#"{"Answer":{"number":3,"answer":{"Session":{"Ok":{"Cancelled":{"ran":true}}}}}}"#.into(),
        r#"{"Answer":{"number":3,"answer":{"Session":{"Ok":{"Started":{"turn":8}}}}}}"#.into(),
        mail(r#"{"Cut":{"session":"s1"}}"#),
        mail(r#"{"TakenOver":{"session":"s1"}}"#),
        mail(r#"{"Superseded":{"session":"s1","by":"s2"}}"#),
        mail(r#"{"Probe":{"session":"s1"}}"#),
        mail(r#"{"Over":{"session":"s1","last":6}}"#),
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
        let parcel: Parcel = serde_json::from_str(&sample).unwrap_or_else(|error| panic!("{error}: {sample}"));
        let written = serde_json::to_value(&parcel).unwrap();
        assert_eq!(written, serde_json::from_str::<serde_json::Value>(&sample).unwrap());
    }
}
