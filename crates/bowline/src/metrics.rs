//! Everything that is counted. Names of metrics are written here and nowhere else.

use std::fmt;

use bowline_core::SealRefusal;
use bowline_protocol::{CloseCode, ErrorCode};
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use crate::config::lookup;

type Label = [(&'static str, &'static str); 1];
/// The name of an MCP server, and what else tells its series apart.
pub type ServerLabels = Vec<(&'static str, String)>;
pub type ByServer<M> = Family<ServerLabels, M, fn() -> M>;

/// A counter for each value of one label.
#[derive(Clone, Debug, Default)]
pub struct Labelled(&'static str, Family<Label, Counter>);

impl Labelled {
    pub fn inc(&self, value: &'static str) {
        self.1.get_or_create(&[(self.0, value)]).inc();
    }

    /// The counter of one value, which counts without looking for it.
    pub fn of(&self, value: &'static str) -> Counter {
        self.1.get_or_create(&[(self.0, value)]).clone()
    }

    pub fn inc_by(&self, value: &'static str, count: u64) {
        self.1.get_or_create(&[(self.0, value)]).inc_by(count);
    }
}

macro_rules! metrics {
    ($($field:ident: $kind:ident $(($label:tt))? = $name:literal, $help:literal;)*) => {
        pub struct Metrics {
            registry: Registry,
            $(pub $field: metrics!(@type $kind),)*
        }

        /// Every metric as it is scraped: its name and its help text.
        pub const ALL: &[(&str, &str)] = &[$((metrics!(@full $kind $name), $help),)*];

        impl Metrics {
            /// Families without series: those of labels are not shown before they have one.
            fn bare() -> Metrics {
                let mut registry = Registry::with_prefix("bowline");
                $(let $field = metrics!(@new $kind $(($label))?);
                metrics!(@register registry $kind $field $name $help);)*
                Metrics { registry, $($field,)* }
            }
        }
    };
    (@type counter) => { Counter };
    (@type gauge) => { Gauge };
    (@type histogram) => { Histogram };
    (@type labelled) => { Labelled };
    (@type states) => { Family<Label, Gauge> };
    (@type server_counter) => { ByServer<Counter> };
    (@type server_gauge) => { ByServer<Gauge> };
    (@type server_histogram) => { ByServer<Histogram> };
    (@new counter) => { Counter::default() };
    (@new gauge) => { Gauge::default() };
    (@new histogram ("count")) => { Histogram::new(exponential_buckets(1.0, 4.0, 10)) };
    (@new histogram) => { Histogram::new(exponential_buckets(0.0001, 2.0, 18)) };
    (@new labelled ($label:literal)) => { Labelled($label, Family::default()) };
    (@new states ($label:literal)) => { Family::default() };
    (@new server_counter) => { Family::new_with_constructor(Counter::default as fn() -> Counter) };
    (@new server_gauge) => { Family::new_with_constructor(Gauge::default as fn() -> Gauge) };
    (@new server_histogram) => { Family::new_with_constructor(call_seconds as fn() -> Histogram) };
    (@register $registry:ident labelled $field:ident $name:literal $help:literal) => {
        $registry.register($name, $help, $field.1.clone());
    };
    (@register $registry:ident $kind:ident $field:ident $name:literal $help:literal) => {
        $registry.register($name, $help, $field.clone());
    };
    (@full counter $name:literal) => { concat!("bowline_", $name, "_total") };
    (@full server_counter $name:literal) => { concat!("bowline_", $name, "_total") };
    (@full labelled $name:literal) => { concat!("bowline_", $name, "_total") };
    (@full $kind:ident $name:literal) => { concat!("bowline_", $name) };
}

metrics! {
    connections: gauge = "connections", "WebSocket connections open now";
    nodes_lost: counter = "nodes_lost", "Other nodes on this store that were declared dead";
    connections_accepted: counter = "connections_accepted", "WebSocket connections accepted";
    closes: labelled("code") = "connection_closes", "Connections closed by the server, by close code";
    heartbeat_losses: counter = "heartbeat_losses", "Connections closed after missed heartbeats";
    sessions: states("state") = "sessions", "Sessions by state: idle, running, waiting, ended";
    sessions_held: gauge = "sessions_held", "Sessions that a connection holds now";
    observers: gauge = "observers", "Read-only links now";
    sessions_created: counter = "sessions_created", "Sessions created";
    sessions_ended: counter = "sessions_ended", "Sessions ended by their owner";
    sessions_expired: counter = "sessions_expired", "Sessions expired by session.ttl";
    reconnect_attempts: counter = "reconnect_attempts", "Attempts to reconnect to a session or a task";
    reconnects: labelled("verdict") = "reconnects", "Attempts that succeeded, by verdict";
    reconnect_refusals: labelled("code") = "reconnect_refusals", "Attempts that were refused, by error code";
    reconnect_seconds: histogram = "reconnect_seconds", "Time from the attempt until the client was caught up";
    events_lost_per_reconnect: histogram("count") = "events_lost_per_reconnect", "Events reported as lost, per reconnect";
    takeovers: labelled("outcome") = "takeovers", "Claims on a held session: granted, probed_dead, refused";
    events_appended: counter = "events_appended", "Events stored";
    events_sent: counter = "events_sent", "Events written to sockets";
    events_replayed: counter = "events_replayed", "Events sent again after a reconnect";
    events_trimmed: labelled("acked") = "events_trimmed", "Events trimmed by retention, by whether the holder had acknowledged them";
    gaps_reported: counter = "gaps_reported", "Notices to readers about missing events";
    duplicates_avoided: counter = "duplicates_avoided", "Messages with a known message_id, which ran nothing";
    acks: counter = "acks", "Acks that moved a session's mark";
    buffer_events: gauge = "buffer_events", "Events retained for replay, in all sessions, as of the last sweep";
    buffer_fullest: gauge = "buffer_fullest", "Events retained in the fullest session, as of the last sweep";
    state_exports: counter = "state_exports", "Signed states exported, asked for or as checkpoints";
    state_restores: labelled("source") = "state_restores", "Signed states restored: live or snapshot";
    state_refusals: labelled("reason") = "state_refusals", "Signed states refused, by reason";
    client_received: counter = "client_received", "Events that clients say they received, by their acks";
    client_gaps: counter = "client_gaps", "Acks in which a client reported a gap of its own";
    frames_received: counter = "frames_received", "Client frames";
    refusals: labelled("code") = "refusals", "Requests refused, by error code";
    limits_hit: labelled("limit") = "limits_hit", "Times that a limit was reached, by its name";
    send_window_full: counter = "send_window_full", "Times that a reader had to wait because its socket was full";
    runs_active: gauge = "runs_active", "Runs with a live process now";
    webhooks: labelled("outcome") = "webhooks", "Webhook posts about ended responses, by outcome: delivered, retried, given_up";
    runs: labelled("ending") = "runs", "Runs ended, by ending: answered, failed, cancelled, lost";
    tasks: states("state") = "tasks", "Tasks with a log of their own, by state: running, completed, failed, cancelled";
    streams: gauge = "streams", "HTTP responses that stream events now";
    stream_starts: labelled("reader") = "stream_starts", "Streams started, by reader: fresh, resumed, framed, indexed";
    chunks_sent: counter = "chunks_sent", "Chunks handed to readers of tasks";
    producer_appends: counter = "producer_appends", "Appends of producers made durable";
    backends: states("state") = "backends", "MCP servers by state: connecting, connected, reconnecting, disconnected, error";
    backends_degraded: gauge = "backends_degraded", "MCP servers that are connected and fail their checks";
    backend_events: labelled("event") = "backend_events", "What happened to MCP servers, by event";
    backend_up: server_gauge = "backend_up", "Whether an MCP server is connected: 1 or 0";
    backend_attempt: server_gauge = "backend_reconnect_attempt", "Attempts to reach an MCP server since it was last connected for good";
    backend_retry: server_gauge = "backend_next_retry_seconds", "Time until an MCP server is dialled again";
    backend_health_failures: server_gauge = "backend_health_failures", "Checks of an MCP server that failed in a row";
    backend_calls: server_counter = "backend_calls", "Calls to each MCP server, by outcome";
    backend_call_seconds: server_histogram = "backend_call_seconds", "Time from a call to an MCP server until its end, for each server";
    hub_sessions: gauge = "hub_sessions", "Sessions of MCP clients in memory now";
    hub_calls: labelled("outcome") = "hub_calls", "Calls to MCP servers: result, tool_error, error, unknown, not_executed";
    hub_call_seconds: histogram = "hub_call_seconds", "Time from a call to an MCP server until its end";
    store_commit_seconds: histogram = "store_commit_seconds", "Time to make a commit durable";
    store_read_seconds: histogram = "store_read_seconds", "Time to read from the store";
    store_errors: labelled("kind") = "store_errors", "Store operations that failed, by kind";
    store_bytes: gauge = "store_bytes", "Bytes the store occupies";
    store_logs: gauge = "store_logs", "Logs in the store";
    store_quarantined: gauge = "store_quarantined", "Logs set aside because of damage";
}

/// What can be full and is no setting of `limits` or `hub`.
const LIMITS_ELSEWHERE: &[&str] = &["session.when_busy", "agents.answer_bytes_max"];

const BACKEND_EVENTS: &[&str] = &[
    "server_added",
    "server_connected",
    "server_disconnected",
    "server_reconnecting",
    "server_reconnected",
    "server_health_degraded",
    "server_health_restored",
    "server_process_crashed",
    "server_removed",
];

const STORE_ERRORS: &[&str] = &[
    "no_such_log",
    "exists",
    "stale_fence",
    "held",
    "full",
    "read_only",
    "quarantined",
    "too_large",
    "unavailable",
    "in_doubt",
    "closed",
    "io",
    "read",
];

fn call_seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 4.0, 9))
}

impl Default for Metrics {
    fn default() -> Metrics {
        Metrics::new()
    }
}

impl Metrics {
    /// Every label value that is known from the start has a series from the start, at 0: what was never counted and what
    /// does not exist look different.
    pub fn new() -> Metrics {
        let metrics = Metrics::bare();
        let codes: Vec<&'static str> = ErrorCode::ALL.iter().map(|code| code.as_str()).collect();
        let closes: Vec<&'static str> = CloseCode::ALL.iter().map(|code| code.name()).collect();
        let mut reasons: Vec<&'static str> = SealRefusal::ALL.iter().map(|refusal| refusal.reason()).collect();
        reasons.extend(["agent", "stale"]);
        let mut limits: Vec<&'static str> = LIMITS_ELSEWHERE.to_vec();
        let is_limit = |name: &&str| name.starts_with("limits.") || name.starts_with("hub.") && name.ends_with("_max");
        limits.extend(lookup::keys().map(|key| key.name).filter(is_limit));
        let known: [(&Labelled, &[&'static str]); 14] = [
            (&metrics.closes, &closes),
            (&metrics.reconnects, &["caught_up", "replay", "gap", "other_epoch", "ahead_of_log"]),
            (&metrics.reconnect_refusals, &codes),
            (&metrics.takeovers, &["granted", "probed_dead", "refused"]),
            (&metrics.events_trimmed, &["true", "false"]),
            (&metrics.state_restores, &["live", "snapshot"]),
            (&metrics.state_refusals, &reasons),
            (&metrics.refusals, &codes),
            (&metrics.limits_hit, &limits),
            (&metrics.runs, &["answered", "failed", "cancelled", "lost"]),
            (&metrics.stream_starts, &["fresh", "resumed", "framed", "indexed"]),
            (&metrics.backend_events, BACKEND_EVENTS),
            (&metrics.hub_calls, &["result", "tool_error", "error", "unknown", "not_executed"]),
            (&metrics.store_errors, STORE_ERRORS),
        ];
        for (counter, values) in known {
            values.iter().for_each(|value| counter.inc_by(value, 0));
        }
        for state in ["idle", "running", "waiting", "ended"] {
            metrics.session_state(state);
        }
        for state in ["running", "completed", "failed", "cancelled"] {
            metrics.task_state(state);
        }
        metrics
    }

    /// The exposition text for a scrape.
    pub fn render(&self) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = encode(&mut text, &self.registry);
        text
    }

    pub fn task_state(&self, state: &'static str) -> Gauge {
        self.tasks.get_or_create(&[("state", state)]).clone()
    }

    pub fn session_state(&self, state: &'static str) -> Gauge {
        self.sessions.get_or_create(&[("state", state)]).clone()
    }

    /// A session that was in one state is in another.
    pub fn session_moved(&self, from: &'static str, to: &'static str) {
        leave(&self.session_state(from));
        self.session_state(to).inc();
    }

    pub fn task_moved(&self, from: &'static str, to: &'static str) {
        leave(&self.task_state(from));
        self.task_state(to).inc();
    }
}

/// One less. What began on another node since the last count was never counted here, and cannot be missed either.
pub fn leave(gauge: &Gauge) {
    if gauge.get() > 0 {
        gauge.dec();
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
}
