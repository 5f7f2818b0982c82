//! Log lines: where they go, how they look and which are wanted.

use std::io::IsTerminal;

use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

use crate::config::{LogConfig, LogFormat};

/// Starts logging to standard error. A second call changes nothing, so that a library user may have been first.
pub fn start(config: &LogConfig) {
    let wanted = config.level.parse().unwrap_or_else(|_| Targets::new().with_default(LevelFilter::INFO));
    let lines = fmt::layer().with_writer(std::io::stderr);
    let lines = match config.format {
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
        LogFormat::Text => lines.with_ansi(std::io::stderr().is_terminal()).boxed(),
    };
    let _ = tracing_subscriber::registry().with(lines.with_filter(wanted)).try_init();
}
