//! Every setting there is: its name, kind, default and one line on what it does. All sources are checked against this.

use bowline_protocol::frame::client::distance;

/// What a setting's value looks like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    Text,
    /// Text that is never shown; may be `env:NAME` or `file:PATH`.
    Secret,
    Choice(&'static [&'static str]),
    Bool,
    Number {
        min: u64,
        max: u64,
    },
    Decimal,
    /// Bytes: a plain number, or with a unit.
    Size,
    /// A length of time; `zero` says whether none at all makes sense.
    Duration {
        zero: bool,
    },
    List,
    /// A list of texts that are never shown; each may be `env:NAME` or `file:PATH`.
    Secrets,
    /// A list of `{ token, principal, admin }`.
    Tokens,
}

impl Kind {
    /// How the kind is called in the documentation.
    pub fn name(&self) -> &'static str {
        match self {
            Kind::Text => "text",
            Kind::Secret => "secret",
            Kind::Choice(_) => "choice",
            Kind::Bool => "bool",
            Kind::Number { .. } | Kind::Decimal => "number",
            Kind::Size => "size",
            Kind::Duration { .. } => "duration",
            Kind::List => "list",
            Kind::Secrets => "list of secrets",
            Kind::Tokens => "list of tokens",
        }
    }

    /// What an error says was expected.
    pub fn expected(&self) -> String {
        match self {
            Kind::Text | Kind::Secret => "text".into(),
            Kind::Choice(words) => {
                format!("one of {}", words.iter().map(|word| format!("\"{word}\"")).collect::<Vec<_>>().join(", "))
            }
            Kind::Bool => "true or false".into(),
            Kind::Number { min, max } if *max == COUNT_MAX => format!("a whole number of at least {min}"),
            Kind::Number { min, max } => format!("a whole number from {min} to {max}"),
            Kind::Decimal => "a number of at least 0".into(),
            Kind::Size => "a size such as 65536, \"64KiB\" or \"1MiB\", at least 1".into(),
            Kind::Duration { zero: true } => "a duration such as \"500ms\", \"30s\", \"1h30m\" or \"0s\"".into(),
            Kind::Duration { zero: false } => {
                "a duration above zero such as \"500ms\", \"30s\", \"1h30m\" or \"7d\"".into()
            }
            Kind::List => "a list of texts such as [\"https://app.example\"]".into(),
            Kind::Secrets => "a list of texts such as [\"env:STATE_KEY\"]".into(),
            Kind::Tokens => {
                "a list such as [{ token = \"env:ALICE_TOKEN\", principal = \"alice\", admin = false }]".into()
            }
        }
    }

    pub fn is_secret(&self) -> bool {
        matches!(self, Kind::Secret | Kind::Secrets | Kind::Tokens)
    }
}

/// One setting. A default of `""` means that it is not set.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    pub name: &'static str,
    pub kind: Kind,
    pub default: &'static str,
    pub about: &'static str,
}

/// Any agent's name stands where this does.
pub const AGENT_NAME: &str = "<name>";

pub const AGENT_KINDS: &[&str] = &["demo", "openai", "http"];

/// Whether a setting means something to agents of this kind. What is no setting of agents does to all.
pub fn belongs(name: &str, kind: &str) -> bool {
    let Some(word) = name.strip_prefix("agents.<name>.") else { return true };
    let kinds: &[&str] = match word {
        "seed" | "speed" => &["demo"],
        "base_url" | "model" | "api_key_env" | "system" | "max_steps" => &["openai"],
        "url" | "format" | "token_env" => &["http"],
        "headers_env" | "timeout" | "retries" | "answer_bytes_max" => &["openai", "http"],
        _ => AGENT_KINDS,
    };
    kinds.contains(&kind)
}

/// Counts must fit a 32-bit machine's `usize` and a browser's number alike.
pub const COUNT_MAX: u64 = u32::MAX as u64;

const COUNT: Kind = Kind::Number { min: 1, max: COUNT_MAX };
const SPAN: Kind = Kind::Duration { zero: false };
const SPAN_OR_NONE: Kind = Kind::Duration { zero: true };

const fn key(name: &'static str, kind: Kind, default: &'static str, about: &'static str) -> Key {
    Key { name, kind, default, about }
}

#[rustfmt::skip]
pub const KEYS: &[Key] = &[
    key("listen", Kind::Text, "127.0.0.1:8080", "Address and port to listen on. An address that is not loopback needs `auth.mode`, or `insecure_no_auth`."),
    key("default_agent", Kind::Text, "demo", "The agent of a session that does not name one: one of `agents`, or a URL, which makes an agent `http` of that kind."),
    key("insecure_no_auth", Kind::Bool, "false", "Allows a listen address that is not loopback without auth."),

    key("store.url", Kind::Text, "disk:./bowline-data", "Where events live: `disk:DIR`, `memory:`, or a [Redis](scaling.md) at `redis://`, `rediss://` or `redis+sentinel://`."),
    key("store.sync", Kind::Choice(&["always", "interval"]), "always", "`always` syncs to disk before anyone sees an event; `interval` syncs every 50 ms. For `disk:` only."),
    key("store.wait_replicas", Kind::Number { min: 0, max: 100 }, "0", "On Redis: replicas that must have an event before it is answered."),
    key("store.timeout", SPAN, "5s", "On Redis: how long a command may take, with all attempts, before whoever waits is told that the store is away."),

    key("session.ttl", SPAN, "24h", "A session expires when it was quiet for this long, unless it is held, a run is active, or an operation or a producer's task of its own is."),
    key("session.when_busy", Kind::Choice(&["reject", "queue"]), "reject", "What happens to a message while a run is active."),
    key("session.queue_max", Kind::Number { min: 0, max: 10_000 }, "10", "Messages that may wait with `session.when_busy = \"queue\"`."),
    key("session.ownership", Kind::Choice(&["principal", "token", "open"]), "", "What proves that a session is the caller's. When not set: `principal` with auth, `open` on loopback without auth, else `token`."),
    key("session.tombstone_ttl", SPAN_OR_NONE, "7d", "How long the owner of an expired or ended session is still told so."),
    key("session.store_patience", SPAN_OR_NONE, "1m", "How long a run waits for a store that cannot take its next event."),

    key("buffer.events_max", COUNT, "100000", "Events that a log offers for replay."),
    key("buffer.age_max", SPAN, "24h", "Age up to which a log offers events for replay."),

    key("stream.ttl", SPAN, "1h", "How long the stream of a task with a log of its own can be read after its end. Turns follow their session."),
    key("stream.events_max", COUNT, "100000", "Events that the stream of such a task offers for replay."),
    key("stream.producer_ttl", SPAN, "24h", "A task whose producer says nothing for so long has failed."),

    key("state.ttl", SPAN, "7d", "How long a signed state can be restored after its export."),
    key("state.encrypt", Kind::Bool, "false", "Whether clients get states that only this server can read."),
    key("state.single_use", Kind::Bool, "false", "Whether a signed state, or an older one of the same session, can be restored only once."),
    key("state.messages_max", COUNT, "100", "Messages of the conversation that a signed state holds; the oldest go first."),
    key("state.bytes_max", Kind::Size, "100000", "Bytes of one signed state. The oldest messages go first, and a huge one is cut."),
    key("state.keys", Kind::Secrets, "[]", "Keys that seal states, newest first, each `ID:BASE64` of at least 32 bytes. When empty, the server makes one and keeps it in its data directory."),
    key("state.scrub", Kind::List, "[]", "Names of keys whose values are taken out of a state, besides the well-known ones."),
    key("state.agent_state_bytes_max", Kind::Size, "16384", "Bytes of the state that an agent itself keeps. A run that saves a larger one fails."),
    key("state.tools_max", COUNT, "64", "Tools that a session is remembered to have used, and that a signed state names."),
    key("state.checkpoint_interval", SPAN, "30s", "With checkpoints, the least time between two of them while a run goes on."),

    key("heartbeat.interval", SPAN, "30s", "Time between heartbeats. A connection heard of nothing for two of them is lost."),

    key("auth.mode", Kind::Choice(&["none", "tokens", "jwt"]), "none", "How callers prove who they are."),
    key("auth.tokens", Kind::Tokens, "[]", "Static tokens, each with its `principal` and whether it may use the admin API. Read again when the settings file, or a file that a token is in, changes."),
    key("auth.admin_token", Kind::Secret, "", "With `auth.mode = \"none\"`: what an admin shows as `Authorization: Bearer …`, at least 16 bytes. When not set, everybody is an admin on a loopback address, and nobody on another."),
    key("auth.origins", Kind::List, "[]", "Browser origins that may connect besides the server's own page; `\"*\"` allows all."),
    key("auth.hosts", Kind::List, "[]", "Names that requests may have in `Host`, besides the server's addresses and the hosts of `auth.origins`, for what needs no credential; `\"*\"` allows all."),
    key("auth.first_frame_timeout", SPAN, "5s", "How long a WebSocket without a credential may wait before it sends one."),
    key("auth.jwt_secret", Kind::Secret, "", "Shared secret of at least 32 bytes for HS256, HS384 and HS512."),
    key("auth.jwt_public_key_file", Kind::Text, "", "PEM file with the public key for RS256, RS384 and RS512, or for ES256 or ES384."),
    key("auth.jwks_file", Kind::Text, "", "JSON Web Key Set file with RSA, P-256 or P-384 keys; read again when it changes."),
    key("auth.jwks_url", Kind::Text, "", "Where a JSON Web Key Set is fetched from: `https://…`, or `http://…` on loopback. Fetched at the start, every `auth.jwks_refresh`, and when a token names a key that is not in it, five times a minute at most. While it is away, the last keys stay in use."),
    key("auth.jwks_refresh", SPAN, "5m", "How often the key set at `auth.jwks_url` is fetched anew."),
    key("auth.issuer", Kind::Text, "", "The `iss` that a JWT must have."),
    key("auth.audience", Kind::Text, "", "The `aud` that a JWT must have."),
    key("auth.principal_claim", Kind::Text, "sub", "The JWT claim that names the principal."),
    key("auth.admin_claim", Kind::Text, "admin", "A JWT whose claim of this name is `true`, or whose `scope` holds this word, may use the admin API."),

    key("agents.<name>.kind", Kind::Text, "demo", "What the agent is: `demo`, `openai` or `http`. Required for every agent but the built-in `demo`."),
    key("agents.<name>.seed", Kind::Number { min: 0, max: (1 << 53) - 1 }, "1", "Kind `demo`: the same seed gives the same plan and the same pauses."),
    key("agents.<name>.speed", Kind::Decimal, "1", "Kind `demo`: larger is faster, 0 means no pauses at all."),
    key("agents.<name>.base_url", Kind::Text, "", "Kind `openai`: where `/chat/completions` lies, such as `https://api.openai.com/v1`."),
    key("agents.<name>.model", Kind::Text, "", "Kind `openai`: the model to ask for."),
    key("agents.<name>.api_key_env", Kind::Text, "", "Kind `openai`: the environment variable that holds the API key."),
    key("agents.<name>.system", Kind::Text, "", "Kind `openai`: what the model is told before the conversation."),
    key("agents.<name>.max_steps", Kind::Number { min: 1, max: 1000 }, "8", "Kind `openai`: requests to the model in one run; each but the last may call tools."),
    key("agents.<name>.url", Kind::Text, "", "Kind `http`: where messages are posted."),
    key("agents.<name>.format", Kind::Choice(&["auto", "ui", "openai", "events"]), "auto", "Kind `http`: what is answered. `auto` tells it from the answer, and takes it for `ui` if that says nothing."),
    key("agents.<name>.token_env", Kind::Text, "", "Kind `http`: the environment variable that holds a bearer token."),
    key("agents.<name>.headers_env", Kind::Text, "", "Kinds `openai` and `http`: the environment variable that holds more headers, as a JSON object."),
    key("agents.<name>.timeout", SPAN, "1m", "Kinds `openai` and `http`: how long the upstream may be silent before it counts as lost."),
    key("agents.<name>.retries", Kind::Number { min: 0, max: 100 }, "3", "Kinds `openai` and `http`: how often a request that may be sent again is."),
    key("agents.<name>.answer_bytes_max", Kind::Size, "4MiB", "Kinds `openai` and `http`: bytes of one answer."),

    key("hub.servers_file", Kind::Text, "", "File that names MCP servers, in the `mcpServers` shape; read again when it changes."),
    key("hub.expose", Kind::Choice(&["meta", "direct", "both"]), "both", "What `/mcp` shows: the hub's own tools, the servers' own, or both."),
    key("hub.prefix", Kind::Choice(&["always", "conditional", "never"]), "always", "When the servers' tools and prompts have the server's name in front."),
    key("hub.allow_private", Kind::Bool, "", "Whether servers that are added at run time may be on private and loopback addresses. When not set: only while this server listens on loopback."),
    key("hub.allow_stdio_add", Kind::Bool, "false", "Whether programs may be added as servers at run time."),
    key("hub.retry_idempotent", Kind::Bool, "false", "Whether a tool that says it is read-only or idempotent is called again when its wire broke."),
    key("hub.call_timeout", SPAN, "2m", "How long a call waits for a server that is away, and how long `execute_tool` waits before the call becomes a task."),
    key("hub.call_limit", SPAN, "24h", "How long a call may run at a server. Then it is taken back, and its outcome is told as unknown."),
    key("hub.ask_timeout", SPAN, "10m", "How long a server's question waits for a client."),
    key("hub.health_interval", SPAN, "2m", "Time between checks of a connected MCP server."),
    key("hub.health_timeout", SPAN, "1m", "How long such a check may take."),
    key("hub.session_ttl", SPAN, "24h", "An MCP session expires when it was quiet for this long."),
    key("hub.servers_per_principal_max", COUNT, "100", "MCP servers that one principal may add at run time."),
    key("hub.sessions_per_principal_max", COUNT, "1000", "MCP sessions that one principal may have."),
    key("hub.processes_per_server_max", COUNT, "16", "Processes of one program, so that its clients have one each; the last is shared by all who find no other. 1: all share one."),
    key("hub.processes_per_principal_max", COUNT, "", "How many of the processes of one program may be one principal's own; its further clients share the last. When not set: half of `hub.processes_per_server_max`, and all of them without auth, where there is one principal."),
    key("hub.forced_reconnects_per_minute_max", COUNT, "6", "How often in a minute one principal may force a reconnect of a server that is everybody's, per server. Operators are not limited."),
    key("hub.body_bytes_max", Kind::Size, "4MiB", "Bytes of one MCP request, over HTTP or as a line over stdio."),

    key("limits.connections_max", COUNT, "20000", "WebSocket connections at once."),
    key("limits.sessions_per_principal_max", COUNT, "20000", "Sessions that one principal may have."),
    key("limits.sessions_per_connection_max", COUNT, "64", "Sessions that one connection may attach to."),
    key("limits.frame_bytes_max", Kind::Size, "1MiB", "Bytes of one client frame."),
    key("limits.json_depth_max", Kind::Number { min: 4, max: 127 }, "64", "How deeply a client frame may nest."),
    key("limits.message_bytes_max", Kind::Size, "256KiB", "Bytes of one user message: of its text as UTF-8, or of an object as compact JSON."),
    key("limits.config_bytes_max", Kind::Size, "16KiB", "Bytes of `config` and `app_version` of one session."),
    key("limits.events_per_second", COUNT, "500", "Client frames per second and connection; acks and pongs do not count."),
    key("limits.bad_frames_max", COUNT, "100", "Frames that cannot be understood before the connection is closed."),
    key("limits.send_window_bytes", Kind::Size, "256KiB", "Bytes handed to a socket before it must have taken them."),
    key("limits.event_bytes_max", Kind::Size, "1MiB", "Bytes of one event that an agent emits."),
    key("limits.confirmations_max", COUNT, "32", "Confirmations of one run that may wait at once."),
    key("limits.conversation_messages_max", COUNT, "1000", "Messages of one conversation that an agent is given."),
    key(
        "limits.messages_kept_max",
        COUNT,
        "10000",
        "Messages of one conversation that are kept; a message_id is remembered as long as its message.",
    ),
    key("limits.http_body_bytes_max", Kind::Size, "1MiB", "Bytes of one HTTP request body."),
    key("limits.streams_max", COUNT, "10000", "HTTP responses that stream events, open at once."),
    key("limits.producer_appends_kept_max", COUNT, "100000", "Appends of one producer to one task whose answers are remembered. One that comes again after so many others is refused."),
    key("limits.tasks_per_principal_max", COUNT, "1000", "Running tasks with a log of their own that one principal may have."),
    key("limits.ended_tasks_per_principal_max", COUNT, "1000", "Ended tasks with a log of their own that one principal may have. Streams of the oldest beyond that are let go before `stream.ttl` is over."),
    key("limits.tombstones_per_principal_max", COUNT, "1000", "Sessions that are over, and as many tasks whose streams are gone, that are remembered for one principal. The oldest beyond that are forgotten before `session.tombstone_ttl` is over."),
    key("limits.read_memory_bytes_max", Kind::Size, "128MiB", "Bytes of memory that readers and the newest events may take together, half of it each. In a cgroup never more than a quarter of what that allows."),
    key("limits.operations_per_session_max", COUNT, "100", "Background operations of one session that may run at once."),
    key("limits.operations_kept_max", COUNT, "1000", "Background operations of one session that it remembers, with their results, while it lives. The oldest that have ended go first."),
    key("limits.operation_results_bytes_max", Kind::Size, "16MiB", "Bytes of the results of background operations that one session keeps while it lives. The oldest go first; how they ended stays known."),
    key("limits.watches_per_connection_max", COUNT, "64", "Tasks that one WebSocket connection may watch."),
    key("limits.header_timeout", SPAN, "10s", "How long a client may take to send its request headers."),
    key("limits.body_timeout", SPAN, "10s", "How long a client may be silent in the middle of a request's body. The whole body may take 60 times as long."),

    key("tls.cert", Kind::Text, "", "File with the certificate and its chain, in PEM: serves https and wss. Read again when it changes."),
    key("tls.key", Kind::Text, "", "File with the private key of that certificate, in PEM."),

    key("lease.answer_timeout", SPAN, "30s", "With several nodes on one Redis: whoever asks something that another node has to do is answered or cut after so long, whatever happens between the nodes. At least 400 ms."),
    key("lease.ttl", SPAN, "10s", "With several nodes on one Redis: after so long without a sign of life a node is dead, and others end or continue its runs. At least 400 ms."),
    key("drain.timeout", SPAN_OR_NONE, "30s", "How long runs may finish after SIGTERM."),

    key("log.format", Kind::Choice(&["text", "json"]), "text", "How log lines look."),
    key("log.level", Kind::Text, "info", "What is logged: a filter such as `info` or `bowline=debug`."),
];

/// The setting that `path` names. Any agent's name is as good as another.
pub fn find(path: &str) -> Option<&'static Key> {
    let pattern = pattern(path);
    KEYS.iter().find(|key| key.name == pattern)
}

/// Whether settings lie below `path`, so that a table may stand there.
pub fn is_section(path: &str) -> bool {
    let section = format!("{}.", pattern(path));
    KEYS.iter().any(|key| key.name.starts_with(&section))
}

/// The valid name that is nearest to `path`: one that looks like it, has its last word, lies in its section, or, if all
/// else fails, takes the fewest changes.
pub fn nearest(path: &str) -> Option<String> {
    let agent = agent_name(path);
    let shown = |key: &Key| agent.map_or(key.name.to_owned(), |name| key.name.replace(AGENT_NAME, name));
    let (cost, name) = KEYS.iter().map(|key| (distance(&shown(key), path), shown(key))).min()?;
    // The same last word in another section, such as `ttl` for `session.ttl`, is worth a hint too.
    let same_word = || KEYS.iter().find(|key| key.name.rsplit('.').next() == path.rsplit('.').next()).map(shown);
    let close = cost <= 2 + path.len() / 6;
    if close {
        return Some(name);
    }
    let section = format!("{}.", path.split('.').next().unwrap_or_default());
    let neighbours = KEYS.iter().map(shown).filter(|name| name.starts_with(&section));
    let neighbour = || neighbours.min_by_key(|name| distance(name, path));
    same_word().or_else(neighbour).or(Some(name))
}

/// `agents.mine.kind` → `mine`.
pub fn agent_name(path: &str) -> Option<&str> {
    path.strip_prefix("agents.")?.split('.').next()
}

fn pattern(path: &str) -> String {
    match agent_name(path) {
        Some(name) => {
            let rest = &path["agents.".len() + name.len()..];
            format!("agents.{AGENT_NAME}{rest}")
        }
        None => path.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_distinct_and_have_a_line_of_documentation() {
        let mut seen = std::collections::HashSet::new();
        for key in KEYS {
            assert!(seen.insert(key.name), "{} is there twice", key.name);
            assert!(key.about.ends_with('.') && key.about.len() > 10, "{}", key.name);
        }
    }

    #[test]
    fn every_setting_of_agents_says_to_which_kinds_it_belongs() {
        for key in KEYS.iter().filter(|key| key.name.starts_with("agents.")) {
            let belongs: Vec<_> = AGENT_KINDS.iter().filter(|kind| belongs(key.name, kind)).collect();
            let said =
                |kind: &str| key.about.split(':').next().is_some_and(|words| words.contains(&format!("`{kind}`")));
            for kind in AGENT_KINDS {
                assert!(key.name.ends_with(".kind") || said(kind) == belongs.contains(&kind), "{}: {kind}", key.name);
            }
        }
    }

    #[test]
    fn a_slip_of_the_pen_finds_the_name_that_was_meant() {
        let cases = [
            ("hearbeat.interval", Some("heartbeat.interval")),
            ("session.owner", Some("session.ownership")),
            ("agents.mine.knd", Some("agents.mine.kind")),
            ("ttl", Some("session.ttl")),
            ("limits.frame_bytes", Some("limits.frame_bytes_max")),
            ("limits.foo", Some("limits.body_timeout")),
            ("heartbeat", Some("heartbeat.interval")),
        ];
        for (given, meant) in cases {
            assert_eq!(nearest(given).as_deref(), meant, "{given}");
        }
    }
}
