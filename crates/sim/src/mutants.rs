//! The flaws that can be planted in the server, one at a time, to see that the simulation finds each.
//!
//! Where each stands in the real code says `mutant("…")` with its name. They exist only in a build with the feature `mutants`.

/// One flaw.
#[derive(Clone, Copy, Debug)]
pub struct PlantedFlaw {
    pub name: &'static str,
    pub what: &'static str,
}

const fn flaw(name: &'static str, what: &'static str) -> PlantedFlaw {
    PlantedFlaw { name, what }
}

/// All of them.
pub const FLAWS: &[PlantedFlaw] = &[
    flaw("skip-the-sync", "commits are answered without a sync"),
    flaw("skip-the-sync-of-a-name", "a new segment's name is not synced"),
    flaw("ignore-a-failed-sync", "a sync that failed counts as one that did not"),
    flaw("answer-before-the-write", "a commit is answered though its write failed"),
    flaw("wake-no-reader", "commits wake no reader"),
    flaw("wake-one-reader", "a commit wakes only one of a log's readers"),
    flaw("subscribe-without-a-look", "a reader that has subscribed does not look at what was there before"),
    flaw("lose-the-tail-at-recovery", "recovery leaves out the last commit"),
    flaw("accept-a-torn-frame", "recovery takes a frame whose body is not whole"),
    flaw("keep-the-epoch-after-a-loss", "a log that may have lost its end keeps its epoch"),
    flaw("compaction-forgets-the-items", "compaction does not carry the items of a log"),
    flaw("replay-one-too-many", "a replay begins with what the client has"),
    flaw("replay-one-too-few", "a replay leaves out its first event"),
    flaw("tell-no-gap-on-return", "a client whose position is gone is not told so"),
    flaw("tell-no-gap-while-reading", "a slow reader is not told what was let go"),
    flaw("tell-no-gap-in-a-stream", "a reader of a task is not told what was let go"),
    flaw("forget-the-epoch-of-a-cursor", "a cursor of another epoch counts as one of this"),
    flaw("notice-before-the-last-owed", "the end of a replay is told one event early"),
    flaw("observers-begin-at-the-end", "an observer without a cursor is shown nothing of the past"),
    flaw("stream-cursor-one-ahead", "a stream goes on one event too late"),
    flaw("keep-the-old-holder", "a take-over is granted, and the holder stays"),
    flaw("let-the-loser-write", "a connection that lost the session may write"),
    flaw("take-acks-of-observers", "acks of observers move the holder's mark"),
    flaw("start-over-a-waiting-run", "a message starts a run while another waits for a person"),
    flaw("leave-an-answered-question-open", "an answered question stays open"),
    flaw("forget-the-key-of-a-message", "the key of a message is not kept"),
    flaw("leave-the-record-out-of-a-commit", "a commit has its events and not its record"),
    flaw("leave-an-ended-run-active", "a run that has ended stays on record as active"),
    flaw("leave-a-lost-run-open", "a lost run is not ended"),
    flaw("end-a-run-that-waits", "a run that waits for a person is ended by a restart"),
    flaw("continue-a-run-from-its-start", "a run goes on after a crash without what it had said"),
    flaw("ignore-a-cancel", "a cancel is answered and not done"),
    flaw("a-cancelled-run-goes-on", "the process of a cancelled run is not stopped"),
    flaw("lifetimes-follow-the-wall-clock", "a jump of the wall clock ends sessions"),
    flaw("export-an-old-state", "an exported state is older than what its client has"),
    flaw("skip-the-owner-of-a-session", "any caller may have any session"),
    flaw("skip-the-owner-of-a-task", "any caller may have any task"),
    flaw("take-a-repeated-append", "a repeated append is taken again"),
    flaw("forget-the-place-of-a-producer", "the place of a producer is not kept"),
    flaw("refuse-by-an-old-place", "a producer is refused by a place that it has left at another node"),
    flaw("answer-an-append-that-failed", "an append is answered though it was not stored"),
    flaw("lua-repeats-a-commit", "the script does a commit again whose answer was lost"),
    flaw("lua-forgets-the-fence", "the script takes commits under an old fence"),
    flaw("lua-keeps-the-epoch", "the script goes on in the same epoch after Redis has lost its end"),
    flaw("lua-builds-on-what-is-lost", "the script takes commits that build on one which Redis has lost"),
    flaw(
        "lua-believes-a-lost-grant",
        "the script takes commits under a grant that Redis has lost, though the log went on",
    ),
    flaw("take-a-doubt-for-a-no", "a commit in doubt counts as one that was not done"),
    flaw("keep-a-lease-in-doubt", "a writer goes on under a lease in doubt"),
    flaw("keep-a-stale-lease", "a writer goes on under a lease that another has"),
    flaw(
        "believe-what-was-read-before-the-lease",
        "a session is activated with a record that was read before its lease",
    ),
    flaw("grant-without-a-lease", "a node grants a session without looking whether it still has it"),
    flaw("forget-what-was-not-acked", "what was not acked is forgotten when the log begins a new epoch"),
    flaw("leave-the-dead-their-leases", "the leases of a dead node are not taken"),
    flaw("take-the-leases-of-the-living", "a node takes leases that others hold"),
    flaw("resend-a-call-in-doubt", "a call that may have run is sent to its MCP server again"),
    flaw("call-the-unknown-not-executed", "of a call that may have run a client is told that it did not"),
    flaw("take-a-cut-for-unsent", "a call whose wire broke counts as one that was not sent"),
    flaw("skip-the-owner-of-an-mcp-session", "any caller may have any MCP session"),
    flaw("leave-a-cut-call-open", "a call that was under way when its hub died never ends"),
    flaw("give-all-clients-one-session", "all clients share one session at an MCP server"),
    flaw("deny-what-was-let-go", "a hub that leaves says that there is no such tool"),
    flaw("carry-for-strangers", "what a stranger asks about an MCP session is carried to the session's node"),
    flaw("take-unreadable-for-gone", "a place in a log that cannot be read now counts as one that is gone"),
    flaw("mix-the-streams-of-a-session", "the stream of a call has what is said on the others of its session"),
    flaw("take-a-stream-up-one-early", "who takes up the stream of a call is given what it has"),
    flaw("lua-takes-a-late-commit", "the script does a commit that came late, after others of the same writer"),
    flaw("leave-what-a-loss-left", "a node does not look after what a loss of Redis has left behind"),
];

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "the list is held against the sources, which lie on a real disk")]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    use super::*;

    fn planted(folder: &Path, found: &mut BTreeSet<String>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                planted(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let source = fs::read_to_string(&path).unwrap();
                let named = source.split("mutant(\"").skip(1).filter_map(|rest| rest.split('"').next());
                found.extend(named.map(str::to_owned));
            }
        }
    }

    #[test]
    fn each_flaw_of_the_list_is_planted_and_each_that_is_planted_is_listed() {
        let mut found = BTreeSet::new();
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        for part in ["core/src", "store/src", "bowline/src", "hub/src", "sim/src/redis"] {
            planted(&crates.join(part), &mut found);
        }
        let listed: BTreeSet<String> = FLAWS.iter().map(|flaw| flaw.name.to_owned()).collect();
        assert_eq!(found, listed);
        assert_eq!(listed.len(), FLAWS.len(), "two flaws have one name");
    }

    #[test]
    fn the_page_has_a_row_for_each_flaw_and_counts_them() {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/proof.md");
        let page = fs::read_to_string(page).unwrap();
        let (_, table) = page.split_once("| flaw | what it does |").unwrap();
        let (table, _) = table.split_once("\n## ").unwrap();
        let rows: BTreeSet<&str> = table.split("\n| `").skip(1).filter_map(|row| row.split('`').next()).collect();
        assert_eq!(rows, FLAWS.iter().map(|flaw| flaw.name).collect());
        let missed = table.lines().filter(|row| row.contains("**not in") || row.contains("| not run |")).count();
        let said = format!("There are {}. Found on record: {},", FLAWS.len(), FLAWS.len() - missed);
        assert!(page.contains(&said), "docs/proof.md should say: {said}");
    }
}
