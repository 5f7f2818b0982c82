//! Every setting there is, one row each: the field that it fills and its type, what may be written, the default as it would
//! be written, and a sentence on what it does.
//!
//! The structs, their readers and the page `docs/settings.md` follow from these rows, and all sources are checked against
//! them. A row without a type is read by hand, in the file of its section, because other settings have a say in it; so is
//! one with `by`, which names the method of [`Resolver`] that reads it.

use std::time::Duration;

use bowline_core::seal::SealKey;
use bowline_hub::{Expose, Options, Prefix};

use super::choice::{Choice, LogFormat, Ownership, SyncMode, WhenBusy};
use super::key::{COUNT, Key, Kind, SPAN, SPAN_OR_NONE, settings};
use super::resolve::{ReadSection, Resolver, Result};
use super::store::StoreUrl;

settings! {
    keys "" {
        listen [Kind::Text] = "127.0.0.1:8080", "Address and port to listen on. An address that is not loopback needs `auth.mode`, or `insecure_no_auth`.";
        default_agent [Kind::Text] = "demo", "The agent of a session that does not name one: one of `agents`, or a URL, which defines an agent named `http` of kind `http`.";
        insecure_no_auth [Kind::Bool] = "false", "Allows a listen address that is not loopback without auth.";
    }

    /// Where events live, and when they count as kept.
    struct StoreConfig in "store." {
        url: StoreUrl [Kind::Text] = "disk:./bowline-data", "Where events live: `disk:DIR`, `memory:`, or a [Redis](scaling.md) at `redis://`, `rediss://` or `redis+sentinel://`.";
        sync: SyncMode [Kind::Choice(SyncMode::WORDS)] = "always", "`always` syncs to disk before a client sees an event; `interval` syncs every 50 ms. For `disk:` only.";
        wait_replicas: u32 [Kind::Number { min: 0, max: 100 }] = "0", "On Redis: replicas that must have an event before it is answered.";
        timeout: Duration [SPAN] = "5s", "On Redis: how long a command may take, with all attempts, before the request fails because the store is unavailable.";
    }

    /// Sessions: how long they live, whose they are, and what happens to a message while a run is active.
    struct SessionConfig in "session." {
        ttl: Duration [SPAN] = "24h", "A session expires when it was quiet for this long, unless it is held, a run is active, or an operation or a producer's task of its own is.";
        when_busy: WhenBusy [Kind::Choice(WhenBusy::WORDS)] = "reject", "What happens to a message while a run is active.";
        queue_max: usize [Kind::Number { min: 0, max: 10_000 }] = "10", "Messages that may wait with `session.when_busy = \"queue\"`.";
        ownership: Ownership [Kind::Choice(Ownership::WORDS)] = "" by ownership, "What proves that a session is the caller's. When not set: `principal` with auth, `open` on loopback without auth, else `token`.";
        tombstone_ttl: Duration [SPAN_OR_NONE] = "7d", "How long the owner of an expired or ended session gets that answer in place of \"not found\".";
        store_patience: Duration [SPAN_OR_NONE] = "1m", "How long a run waits for a store that cannot take its next event.";
    }

    /// What a log offers for replay.
    struct BufferConfig in "buffer." {
        events_max: u64 [COUNT] = "100000", "Events that a log offers for replay.";
        age_max: Duration [SPAN] = "24h", "Age up to which a log offers events for replay.";
    }

    /// Tasks with a log of their own; turns follow their session.
    struct StreamConfig in "stream." {
        ttl: Duration [SPAN] = "1h", "How long the stream of a task with a log of its own can be read after its end. Turns follow their session.";
        events_max: u64 [COUNT] = "100000", "Events that the stream of such a task offers for replay.";
        producer_ttl: Duration [SPAN] = "24h", "A task whose producer says nothing for so long has failed.";
    }

    /// Signed state: what clients take with them, and for how long it is good.
    struct StateConfig in "state." {
        ttl: Duration [SPAN] = "7d", "How long a signed state can be restored after its export.";
        encrypt: bool [Kind::Bool] = "false", "Whether clients get states that only this server can read.";
        single_use: bool [Kind::Bool] = "false", "Whether a signed state, or an older one of the same session, can be restored only once.";
        messages_max: usize [COUNT] = "100", "Messages of the conversation that a signed state holds; the oldest go first.";
        bytes_max: usize [Kind::Size] = "100000", "Bytes of one signed state. The oldest messages go first, and a huge one is cut.";
        keys: Vec<SealKey> [Kind::Secrets] = "[]" by state_keys, "Keys that seal states, newest first, each `ID:BASE64` of at least 32 bytes. When empty, the server makes one and keeps it in its data directory.";
        scrub: Vec<String> [Kind::List] = "[]", "Names of keys whose values are taken out of a state, besides the well-known ones.";
        agent_state_bytes_max: usize [Kind::Size] = "16384", "Bytes of the state that an agent itself keeps. A run that saves a larger one fails.";
        tools_max: usize [COUNT] = "64", "Tools that a session is remembered to have used, and that a signed state names.";
        checkpoint_interval: Duration [SPAN] = "30s", "With checkpoints, the least time between two of them while a run goes on.";
    }

    /// When a connection counts as lost.
    struct HeartbeatConfig in "heartbeat." {
        interval: Duration [SPAN] = "30s", "Time between heartbeats. A connection that is silent for two of them is closed.";
    }

    keys "auth." {
        mode [Kind::Choice(&["none", "tokens", "jwt"])] = "none", "How callers prove who they are.";
        tokens [Kind::Tokens] = "[]", "Static tokens, each with its `principal` and whether it may use the admin API. Read again when the settings file, or a file that a token is in, changes.";
        admin_token [Kind::Secret] = "", "With `auth.mode = \"none\"`: what an admin shows as `Authorization: Bearer …`, at least 16 bytes. When not set, every client is an admin on a loopback address, and none on another.";
        origins [Kind::List] = "[]", "Browser origins that may connect besides the server's own page; `\"*\"` allows all.";
        hosts [Kind::List] = "[]", "Names that requests may have in `Host`, besides the server's addresses and the hosts of `auth.origins`, for what needs no credential; `\"*\"` allows all.";
        first_frame_timeout [SPAN] = "5s", "How long a WebSocket without a credential may wait before it sends one.";
        jwt_secret [Kind::Secret] = "", "Shared secret of at least 32 bytes for HS256, HS384 and HS512.";
        jwt_public_key_file [Kind::Text] = "", "PEM file with the public key for RS256, RS384 and RS512, or for ES256 or ES384.";
        jwks_file [Kind::Text] = "", "JSON Web Key Set file with RSA, P-256 or P-384 keys; read again when it changes.";
        jwks_url [Kind::Text] = "", "Where a JSON Web Key Set is fetched from: `https://…`, or `http://…` on loopback. Fetched at the start, every `auth.jwks_refresh`, and when a token names a key that is not in it, five times a minute at most. While it is away, the last keys stay in use.";
        jwks_refresh [SPAN] = "5m", "How often the key set at `auth.jwks_url` is fetched anew.";
        issuer [Kind::Text] = "", "The `iss` that a JWT must have.";
        audience [Kind::Text] = "", "The `aud` that a JWT must have.";
        principal_claim [Kind::Text] = "sub", "The JWT claim that names the principal.";
        admin_claim [Kind::Text] = "admin", "A JWT whose claim of this name is `true`, or whose `scope` holds this word, may use the admin API.";
    }

    keys "agents.<name>." {
        kind [Kind::Text] = "demo", "What the agent is: `demo`, `openai` or `http`. Required for every agent but the built-in `demo`.";
    }

    keys "agents.<name>." of "demo" {
        seed [Kind::Number { min: 0, max: (1 << 53) - 1 }] = "1", "Kind `demo`: the same seed gives the same plan and the same pauses.";
        speed [Kind::Decimal] = "1", "Kind `demo`: larger is faster, 0 means no pauses at all.";
    }

    keys "agents.<name>." of "openai" {
        base_url [Kind::Text] = "", "Kind `openai`: where `/chat/completions` lies, such as `https://api.openai.com/v1`.";
        model [Kind::Text] = "", "Kind `openai`: the model to ask for.";
        api_key_env [Kind::Text] = "", "Kind `openai`: the environment variable that holds the API key.";
        system [Kind::Text] = "", "Kind `openai`: what the model reads before the conversation.";
        max_steps [Kind::Number { min: 1, max: 1000 }] = "8", "Kind `openai`: requests to the model in one run; each but the last may call tools.";
    }

    keys "agents.<name>." of "http" {
        url [Kind::Text] = "", "Kind `http`: where messages are posted.";
        format [Kind::Choice(&["auto", "ui", "openai", "events"])] = "auto", "Kind `http`: what is answered. `auto` tells it from the answer, and takes it for `ui` if that says nothing.";
        token_env [Kind::Text] = "", "Kind `http`: the environment variable that holds a bearer token.";
    }

    keys "agents.<name>." of "openai" "http" {
        headers_env [Kind::Text] = "", "Kinds `openai` and `http`: the environment variable that holds more headers, as a JSON object.";
        timeout [SPAN] = "1m", "Kinds `openai` and `http`: how long the upstream may be silent before it counts as lost.";
        retries [Kind::Number { min: 0, max: 100 }] = "3", "Kinds `openai` and `http`: how often a request that is safe to repeat is sent again.";
        answer_bytes_max [Kind::Size] = "4MiB", "Kinds `openai` and `http`: bytes of one answer.";
    }

    keys "hub." {
        servers_file [Kind::Text] = "", "File that names MCP servers, in the `mcpServers` shape; read again when it changes.";
    }

    fill Options in "hub." {
        expose: Expose [Kind::Choice(Expose::WORDS)] = "both", "What `/mcp` shows: the hub's own tools, the servers' own, or both.";
        prefix: Prefix [Kind::Choice(Prefix::WORDS)] = "always", "When the servers' tools and prompts have the server's name in front.";
        allow_private: bool [Kind::Bool] = "" by hub_allow_private, "Whether servers that are added at run time may be on private and loopback addresses. When not set: only while this server listens on loopback.";
        allow_stdio_add: bool [Kind::Bool] = "false", "Whether programs may be added as servers at run time.";
        retry_idempotent: bool [Kind::Bool] = "false", "Whether a tool that says it is read-only or idempotent is called again when its wire broke.";
        call_timeout: Duration [SPAN] = "2m", "How long a call waits for a server that is away, and how long `execute_tool` waits before the call becomes a task.";
        call_limit: Duration [SPAN] = "24h", "How long a call may run at a server. Then it is cancelled, and its outcome is unknown.";
        ask_timeout: Duration [SPAN] = "10m", "How long a server's question waits for a client.";
        health_interval: Duration [SPAN] = "2m", "Time between checks of a connected MCP server.";
        health_timeout: Duration [SPAN] = "1m", "How long such a check may take.";
        session_ttl: Duration [SPAN] = "24h", "An MCP session expires when it was quiet for this long.";
        servers_per_principal_max: usize [COUNT] = "100", "MCP servers that one principal may add at run time.";
        sessions_per_principal_max: usize [COUNT] = "1000", "MCP sessions that one principal may have.";
        processes_per_server_max: usize [COUNT] = "16", "Processes of one program, so that its clients have one each; the last is shared by all who find no other. 1: all share one.";
        processes_per_principal_max: usize [COUNT] = "" by hub_processes_per_principal_max, "How many of the processes of one program may be one principal's own; its further clients share the last. When not set: half of `hub.processes_per_server_max`, and all of them without auth, where there is one principal.";
        forced_reconnects_per_minute_max: u32 [COUNT] = "6", "How often in a minute one principal may force a reconnect of a server that all clients share, per server. Operators are not limited.";
    }

    keys "hub." {
        body_bytes_max [Kind::Size] = "4MiB", "Bytes of one MCP request, over HTTP or as a line over stdio.";
    }

    /// Everything that a client can make grow.
    struct Limits in "limits." {
        connections_max: usize [COUNT] = "20000", "WebSocket connections at once.";
        sessions_per_principal_max: usize [COUNT] = "20000", "Sessions that one principal may have.";
        sessions_per_connection_max: usize [COUNT] = "64", "Sessions that one connection may attach to.";
        frame_bytes_max: usize [Kind::Size] = "1MiB", "Bytes of one client frame.";
        json_depth_max: usize [Kind::Number { min: 4, max: 127 }] = "64", "How deeply a client frame may nest.";
        message_bytes_max: usize [Kind::Size] = "256KiB", "Bytes of one user message: of its text as UTF-8, or of an object as compact JSON.";
        config_bytes_max: usize [Kind::Size] = "16KiB", "Bytes of `config` and `app_version` of one session.";
        events_per_second: u32 [COUNT] = "500", "Client frames per second and connection; acks and pongs do not count.";
        bad_frames_max: u32 [COUNT] = "100", "Frames that cannot be understood before the connection is closed.";
        send_window_bytes: usize [Kind::Size] = "256KiB", "Bytes that wait for one connection before the reading of its logs pauses.";
        event_bytes_max: usize [Kind::Size] = "1MiB", "Bytes of one event that an agent emits.";
        confirmations_max: usize [COUNT] = "32", "Confirmations of one run that may wait at once.";
        conversation_messages_max: usize [COUNT] = "1000", "Messages of one conversation that an agent is given.";
        messages_kept_max: u64 [COUNT] = "10000", "Messages of one conversation that are kept; a message_id is remembered as long as its message.";
        http_body_bytes_max: usize [Kind::Size] = "1MiB", "Bytes of one HTTP request body.";
        streams_max: usize [COUNT] = "10000", "HTTP responses that stream events, open at once.";
        producer_appends_kept_max: usize [COUNT] = "100000", "Appends of one producer to one task whose answers are remembered. One that comes again after so many others is refused.";
        tasks_per_principal_max: usize [COUNT] = "1000", "Running tasks with a log of their own that one principal may have.";
        ended_tasks_per_principal_max: usize [COUNT] = "1000", "Ended tasks with a log of their own that one principal may have. Streams of the oldest beyond that are let go before `stream.ttl` is over.";
        tombstones_per_principal_max: usize [COUNT] = "1000", "Sessions that are over, and as many tasks whose streams are gone, that are remembered for one principal. The oldest beyond that are forgotten before `session.tombstone_ttl` is over.";
        read_memory_bytes_max: usize [Kind::Size] = "128MiB", "Bytes of memory that readers and the newest events may take together, half of it each. In a cgroup never more than a quarter of what that allows.";
        operations_per_session_max: usize [COUNT] = "100", "Background operations of one session that may run at once.";
        operations_kept_max: usize [COUNT] = "1000", "Background operations of one session that it remembers, with their results, while it lives. The oldest that have ended go first.";
        operation_results_bytes_max: usize [Kind::Size] = "16MiB", "Bytes of the results of background operations that one session keeps while it lives. The oldest go first; how they ended stays known.";
        watches_per_connection_max: usize [COUNT] = "64", "Tasks that one WebSocket connection may watch.";
        header_timeout: Duration [SPAN] = "10s", "How long a client may take to send its request headers.";
        body_timeout: Duration [SPAN] = "10s", "How long a client may be silent in the middle of a request's body. The whole body may take 60 times as long.";
    }

    keys "tls." {
        cert [Kind::Text] = "", "File with the certificate and its chain, in PEM: serves https and wss. Read again when it changes.";
        key [Kind::Text] = "", "File with the private key of that certificate, in PEM.";
    }

    keys "webhooks." {
        urls [Kind::List] = "[]", "Where the end of each response in the background ([Responses API](responses.md#webhooks)) is posted.";
        secret [Kind::Secret] = "", "What signs these posts: `whsec_` and 24 to 64 bytes in Base64. Receivers have the same.";
        allow_private [Kind::Bool] = "false", "Whether `webhooks.urls` may lead to private and loopback addresses; to link-local ones they never may.";
        timeout [SPAN] = "15s", "How long a receiver may take to answer.";
        retry_for [SPAN_OR_NONE] = "24h", "For how long after the end of a response it is posted again, with growing pauses of up to 5 minutes, until a receiver answers with success.";
        owed_per_session_max [COUNT] = "1000", "Webhooks of one session that may wait for their delivery. Those beyond that are not sent.";
    }

    /// Several nodes on one store: when a node counts as dead, and how long another waits for its answer.
    struct LeaseConfig in "lease." {
        answer_timeout: Duration [SPAN] = "30s" by lease_span, "With several nodes on one Redis: a request that another node has to answer fails or is cut after so long, whatever happens between the nodes. At least 400 ms.";
        ttl: Duration [SPAN] = "10s" by lease_span, "With several nodes on one Redis: a node whose heartbeat does not change for three quarters of this time is taken for dead, and others end or continue its runs. At least 400 ms.";
    }

    /// The end of a server that is asked to stop.
    struct DrainConfig in "drain." {
        timeout: Duration [SPAN_OR_NONE] = "30s", "How long runs may finish after SIGTERM.";
    }

    /// What is logged, and how it looks.
    struct LogConfig in "log." {
        format: LogFormat [Kind::Choice(LogFormat::WORDS)] = "text", "How log lines look.";
        level: String [Kind::Text] = "info" by log_level, "What is logged: a filter such as `info` or `bowline=debug`.";
    }
}
