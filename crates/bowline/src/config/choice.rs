//! Settings that are one of a few words, as enums.

use std::borrow::Cow;

use bowline_hub::{Expose, Prefix};

use super::value::{FromValue, Value};

/// Events on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncMode {
    /// Synced to disk before a client sees an event.
    Always,
    /// Written to the operating system before a client sees an event; synced every 50 ms.
    Interval,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenBusy {
    Reject,
    Queue,
}

/// What proves that a session is the caller's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ownership {
    /// The authenticated principal.
    Principal,
    /// A resume token that only the creator was given.
    Token,
    /// Knowing the id. Only for loopback without auth.
    Open,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    Text,
    Json,
}

/// An enum with a word for each of its values.
pub trait Choice: Copy + 'static {
    const WORDS: &'static [&'static str];

    /// The word that stands for it in settings.
    fn word(self) -> &'static str;
}

macro_rules! choices {
    ($($type:ident { $($word:literal => $value:ident),+ })*) => {$(
        impl Choice for $type {
            const WORDS: &'static [&'static str] = &[$($word),+];

            fn word(self) -> &'static str {
                match self {
                    $($type::$value => $word,)+
                }
            }
        }

        impl FromValue for $type {
            fn from_value(value: Value) -> Result<$type, Cow<'static, str>> {
                match String::from_value(value)?.as_str() {
                    $($word => Ok($type::$value),)+
                    _ => Err(format!("one of {}", $type::WORDS.join(", ")).into()),
                }
            }
        }
    )*};
}

choices! {
    SyncMode { "always" => Always, "interval" => Interval }
    WhenBusy { "reject" => Reject, "queue" => Queue }
    Ownership { "principal" => Principal, "token" => Token, "open" => Open }
    LogFormat { "text" => Text, "json" => Json }
    Expose { "meta" => Meta, "direct" => Direct, "both" => Both }
    Prefix { "always" => Always, "conditional" => Conditional, "never" => Never }
}
