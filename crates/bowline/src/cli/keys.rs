//! `bowline keys`: makes, lists and retires the keys that seal states. Prints ids and ages, never a secret.

use std::path::PathBuf;

use anyhow::bail;
use bowline_env::clock;
use bowline_env::files::OsFiles;
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::out;
use crate::config::{Config, Flags, Loaded, StoreUrl};
use crate::keys::{FILE_NAME, KeyFile, StoredKey};

#[derive(Debug, Subcommand)]
pub enum KeysCommand {
    /// Makes a key, which signs from now on, also in a server that runs. Older keys still verify.
    #[command(after_help = "Example:\n  bowline keys new --store disk:./bowline-data")]
    New(RingArgs),
    /// Lists the keys, newest first.
    #[command(after_help = "Example:\n  bowline keys list --json")]
    List(RingArgs),
    /// Retires a key: states that it signed are refused from now on, also by a server that runs.
    #[command(after_help = "Example:\n  bowline keys retire k1      # ids are shown by: bowline keys list")]
    Retire {
        /// The key's id, as `list` shows it
        key_id: String,
        #[command(flatten)]
        ring: RingArgs,
    },
}

#[derive(Debug, Args)]
pub struct RingArgs {
    /// The server's store, whose directory has the ring: disk:DIR
    #[arg(long, value_name = "URL")]
    pub store: Option<String>,
    /// Settings file [default: bowline.toml if there is one]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

impl RingArgs {
    pub fn load(&self) -> anyhow::Result<Loaded> {
        let flags = Flags { config: self.config.clone(), store: self.store.clone(), ..Flags::default() };
        Ok(Config::load(&flags)?)
    }
}

pub fn run(command: &KeysCommand) -> anyhow::Result<()> {
    match command {
        KeysCommand::New(args) => {
            let mut id = String::new();
            KeyFile::change(&OsFiles, &editable(&args.load()?)?, |file| {
                id = file.add();
                Ok(())
            })?;
            say(args, &json!({ "made": id }), &format!("{id} was made. It signs from now on."))
        }
        KeysCommand::Retire { key_id, ring } => {
            KeyFile::change(&OsFiles, &editable(&ring.load()?)?, |file| file.retire(key_id))?;
            let text = format!("{key_id} is retired. States that it signed are refused from now on.");
            say(ring, &json!({ "retired": key_id }), &text)
        }
        KeysCommand::List(args) => list(args),
    }
}

fn list(args: &RingArgs) -> anyhow::Result<()> {
    let loaded = args.load()?;
    if let Some(source) = configured(&loaded) {
        let ids: Vec<&str> = loaded.config.state.keys.iter().map(bowline_core::SealKey::id).collect();
        let facts: Vec<Value> =
            ids.iter().enumerate().map(|(at, id)| json!({ "id": id, "does": does(at == 0, false) })).collect();
        let lines = ids.iter().enumerate().map(|(at, id)| format!("{id:<12}  {}\n", does(at == 0, false)));
        let text = format!("{}They come from `state.keys` ({source}).", lines.collect::<String>());
        return say(args, &json!({ "keys": facts, "source": source }), &text);
    }
    let dir = data_dir(&loaded)?;
    let path = dir.join(FILE_NAME);
    let Some(file) = KeyFile::read(&OsFiles, &dir)? else {
        let text = format!("There is no {} yet. The server makes it at its first start.", path.display());
        return say(args, &json!({ "keys": [], "source": path.display().to_string() }), &text);
    };
    let now = clock::unix_seconds();
    let signs = file.keys.iter().position(|key| key.retired_at.is_none());
    let rows: Vec<(&StoredKey, &str)> = file
        .keys
        .iter()
        .enumerate()
        .map(|(at, key)| (key, does(Some(at) == signs, key.retired_at.is_some())))
        .collect();
    let fact = |(key, does): &(&StoredKey, &str)| json!({ "id": key.id, "does": does, "made_at": at(key.made_at), "retired_at": key.retired_at.map(at) });
    let line =
        |(key, does): &(&StoredKey, &str)| format!("{:<12}  {does:<8}  made {} ago", key.id, age(now, key.made_at));
    let lines: Vec<String> = rows.iter().map(line).collect();
    let facts: Vec<Value> = rows.iter().map(fact).collect();
    say(args, &json!({ "keys": facts, "source": path.display().to_string() }), &lines.join("\n"))
}

fn does(signs: bool, retired: bool) -> &'static str {
    match (signs, retired) {
        (_, true) => "retired",
        (true, false) => "signs",
        (false, false) => "verifies",
    }
}

/// Where the keys are written, if they are written in the settings.
fn configured(loaded: &Loaded) -> Option<String> {
    let setting = loaded.settings.iter().find(|setting| setting.key == "state.keys");
    let source = setting.map_or_else(|| "settings".to_owned(), |setting| setting.source.to_string());
    (!loaded.config.state.keys.is_empty()).then_some(source)
}

/// The directory whose ring may be changed here.
fn editable(loaded: &Loaded) -> anyhow::Result<PathBuf> {
    if let Some(source) = configured(loaded) {
        bail!(
            "the keys come from `state.keys` ({source}), which this command does not edit; change them there, newest first"
        );
    }
    data_dir(loaded)
}

fn data_dir(loaded: &Loaded) -> anyhow::Result<PathBuf> {
    match &loaded.config.store.url {
        StoreUrl::Disk(dir) => Ok(dir.clone()),
        StoreUrl::Memory | StoreUrl::Redis(_) => {
            bail!("only a store on disk keeps keys; name its directory with --store disk:DIR, or set `state.keys`")
        }
    }
}

fn say(args: &RingArgs, facts: &Value, text: &str) -> anyhow::Result<()> {
    Ok(out::line(&if args.json { facts.to_string() } else { text.to_owned() })?)
}

fn at(unix: u64) -> String {
    clock::rfc3339(unix.saturating_mul(1000))
}

/// The largest whole unit is precise enough for a key.
fn age(now: u64, then: u64) -> String {
    let seconds = now.saturating_sub(then);
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}
