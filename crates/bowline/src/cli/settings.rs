//! `bowline config`: the settings in force with where each came from, or what is wrong with them.

use std::path::Path;

use anyhow::Context;
use bowline_env::files::OsFiles;
use bowline_hub::{Target, file};
use serde_json::json;

use super::out;
use crate::auth::Authenticator;
use crate::config::{Config, Flags, Loaded};
use crate::keys::LoadedKeys;
use crate::tls::Tls;

pub fn print(flags: &Flags, json: bool) -> anyhow::Result<()> {
    let loaded = Config::load(flags)?;
    if json {
        return Ok(out::line(&serde_json::to_string_pretty(&loaded.effective())?)?);
    }
    Ok(out::write(&table(&loaded))?)
}

/// Loads everything that `serve` would, keys and certificates included, and says so.
pub fn check(flags: &Flags, json: bool) -> anyhow::Result<()> {
    let checked = Config::load(flags).map_err(anyhow::Error::from).and_then(|loaded| {
        Authenticator::new(&loaded.config).context("the keys of `auth` cannot be used")?;
        LoadedKeys::find(&loaded.config)?;
        loaded.config.tls.clone().map(|tls| Tls::load(tls, &loaded.config.env.files)).transpose()?;
        if let Some(path) = &loaded.config.hub.servers_file {
            check_servers(path)?;
        }
        Ok(loaded)
    });
    match checked {
        Ok(_) if json => Ok(out::line(&json!({ "ok": true }).to_string())?),
        Ok(loaded) => {
            let file = loaded.file.map_or("defaults, no file".to_owned(), |path| path.display().to_string());
            Ok(out::line(&format!("ok ({file})"))?)
        }
        Err(error) => {
            if json {
                out::line(&json!({ "ok": false, "error": format!("{error:#}") }).to_string())?;
            }
            Err(error)
        }
    }
}

/// A server starts without the file too, and looks for it again; but a file that is named should be there.
fn check_servers(path: &Path) -> anyhow::Result<()> {
    let servers = file::read(&OsFiles, path).context("`hub.servers_file` cannot be taken")?;
    let wrong = servers.iter().filter_map(|(name, entry)| match &entry.spec.target {
        Target::Invalid { reason, .. } => Some(format!("`{name}`: {reason}")),
        Target::Http { .. } | Target::Stdio { .. } => None,
    });
    let wrong: Vec<String> = wrong.collect();
    anyhow::ensure!(
        wrong.is_empty(),
        "`hub.servers_file` ({}) has entries that cannot work: {}",
        path.display(),
        wrong.join("; ")
    );
    Ok(())
}

fn table(loaded: &Loaded) -> String {
    let shown = |value: &serde_json::Value| match value {
        serde_json::Value::Null => "(not set)".to_owned(),
        serde_json::Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let rows: Vec<_> =
        loaded.settings.iter().map(|one| (one.key.as_str(), shown(&one.value), one.source.to_string())).collect();
    let width = |lengths: &mut dyn Iterator<Item = usize>| lengths.max().unwrap_or(0).min(48);
    let keys = width(&mut rows.iter().map(|row| row.0.len()));
    let values = width(&mut rows.iter().map(|row| row.1.chars().count()));
    let lines =
        rows.iter().map(|(key, value, source)| format!("{key:<keys$}  {value:<values$}  {}\n", out::dim(source)));
    lines.collect()
}
