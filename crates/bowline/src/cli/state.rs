//! `bowline state`: looks at a signed state without a server, and says why one would be refused.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use bowline_core::seal::{self, Keyring, OpenLimits, OpenedState, SealRefusal};
use bowline_env::clock;
use bowline_env::files::{Files, OsFiles};
use bowline_protocol::{Principal, SignedState, json as json_text};
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::keys::RingArgs;
use super::out;
use crate::auth::LOCAL;
use crate::config::Config;
use crate::keys::LoadedKeys;

#[derive(Debug, Subcommand)]
pub enum StateCommand {
    /// Prints what a signed state holds, without checking it. An encrypted one needs the server's keys.
    #[command(after_help = "Example:\n  bowline state show state.json")]
    Show(StateArgs),
    /// Says whether the server would restore it, and why not; exit code 1 if it would not.
    #[command(after_help = "Example:\n  bowline state verify state.json --owner alice && echo it can be restored")]
    Verify {
        /// Whose it must be [default: the caller of a server without auth]
        #[arg(long, value_name = "PRINCIPAL")]
        owner: Option<String>,
        #[command(flatten)]
        state: StateArgs,
    },
}

#[derive(Debug, Args)]
pub struct StateArgs {
    /// A file with the signed state (object or token), or with the frame that brought it; - for standard input
    file: PathBuf,
    #[command(flatten)]
    ring: RingArgs,
}

/// What the commands work on.
struct Subject {
    input: String,
    limits: OpenLimits,
    config: Config,
}

pub fn run(command: &StateCommand) -> anyhow::Result<ExitCode> {
    match command {
        StateCommand::Show(args) => show(args).map(|()| ExitCode::SUCCESS),
        StateCommand::Verify { owner, state } => verify(state, owner.as_deref()),
    }
}

fn show(args: &StateArgs) -> anyhow::Result<()> {
    let subject = Subject::read(args)?;
    // Only an encrypted state needs a ring, so that a broken one must not stand in the way of a readable one.
    let signed = match seal::peek(&subject.input, None, &subject.limits) {
        Err(SealRefusal::UnknownKey) => seal::peek(&subject.input, subject.ring()?.as_ref(), &subject.limits),
        other => other,
    };
    let signed = signed.map_err(|refusal| anyhow!("this state cannot be read: {}", refusal.explanation()))?;
    if args.ring.json {
        return Ok(out::line(&serde_json::to_string(&signed)?)?);
    }
    let SignedState { state, timestamp, version, key_id, .. } = signed;
    out::error(&out::harmless(&format!("version {version}, signed by {key_id} at {}; not verified", at(timestamp))));
    Ok(out::line(&out::harmless(&serde_json::to_string_pretty(&state)?))?)
}

fn verify(args: &StateArgs, owner: Option<&str>) -> anyhow::Result<ExitCode> {
    let subject = Subject::read(args)?;
    let principal = Principal::parse(owner.unwrap_or(LOCAL)).context("the owner is not a principal")?;
    let ring = subject.ring()?.context("there are no keys here; name the server's --config or --store disk:DIR")?;
    let ttl = subject.limits.ttl_seconds;
    match ring.open(&subject.input, &principal, clock::unix_seconds(), &subject.limits) {
        Ok(opened) => {
            out::line(&if args.ring.json { valid_json(&opened, ttl) } else { valid(&opened, ttl) })?;
            Ok(ExitCode::SUCCESS)
        }
        Err(refusal) => {
            let hint =
                if refusal == SealRefusal::Signature && owner.is_none() { "; name the owner with --owner" } else { "" };
            let text = format!("refused: {}{hint} ({})", refusal.explanation(), refusal.code());
            let facts = json!({ "valid": false, "reason": refusal.reason(), "error_code": refusal.code().as_str(),
                "explanation": format!("{}{hint}", refusal.explanation()) });
            out::line(&if args.ring.json { facts.to_string() } else { text })?;
            Ok(ExitCode::FAILURE)
        }
    }
}

fn valid(opened: &OpenedState, ttl_seconds: u64) -> String {
    let (session, messages) = (&opened.state.session_id, opened.state.memory_snapshot.len());
    let until = at(opened.timestamp.saturating_add(ttl_seconds));
    out::harmless(&format!("valid: {session}, {messages} messages, signed by {} until {until}", opened.key_id))
}

fn valid_json(opened: &OpenedState, ttl_seconds: u64) -> String {
    json!({
        "valid": true, "session_id": opened.state.session_id, "key_id": opened.key_id, "exported_at": at(opened.timestamp),
        "valid_until": at(opened.timestamp.saturating_add(ttl_seconds)), "message_count": opened.state.memory_snapshot.len(),
    })
    .to_string()
}

impl Subject {
    fn read(args: &StateArgs) -> anyhow::Result<Subject> {
        let config = args.ring.load()?.config;
        let limits = config.state.open_limits(&config.limits);
        // No further than one byte past what is allowed: that is enough to see that it is too large.
        let bytes_max = config.limits.frame_bytes_max.max(limits.input_bytes_max());
        let text =
            read(&args.file, bytes_max as u64 + 1).with_context(|| format!("cannot read {}", args.file.display()))?;
        let input = unwrapped(&text, &limits).unwrap_or(text);
        Ok(Subject { input, limits, config })
    }

    fn ring(&self) -> anyhow::Result<Option<Keyring>> {
        Ok(LoadedKeys::find(&self.config)?.map(|keys| keys.ring))
    }
}

/// What is not UTF-8 is no state of ours; it will be refused for its shape.
fn read(path: &Path, bytes_max: u64) -> io::Result<String> {
    let mut bytes = Vec::new();
    if path == Path::new("-") {
        io::stdin().lock().take(bytes_max).read_to_end(&mut bytes)?;
    } else {
        bytes = OsFiles.read(path, bytes_max)?;
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The signed state inside a frame that was saved as a whole.
fn unwrapped(text: &str, limits: &OpenLimits) -> Option<String> {
    let depth_max = limits.depth_max + 2;
    let shallow = json_text::depth(text, depth_max) <= depth_max;
    let frame: Value = shallow.then(|| serde_json::from_str(text).ok()).flatten()?;
    let places = ["/metadata/signed_state", "/content/signed_state", "/signed_state"];
    places.iter().find_map(|place| frame.pointer(place)).map(ToString::to_string)
}

fn at(unix: u64) -> String {
    clock::rfc3339(unix.saturating_mul(1000))
}
