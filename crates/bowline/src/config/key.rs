//! What a setting is: its name, what may be written, its default and a sentence on what it does; and the macro that makes
//! structs and their readers from a table of settings.

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
    /// The kinds of agents that it is for; none means any.
    pub agent_kinds: &'static [&'static str],
}

impl Key {
    /// Whether the setting means something to agents of this kind. One that is not of agents does to all.
    pub fn is_for(&self, agent_kind: &str) -> bool {
        self.agent_kinds.is_empty() || self.agent_kinds.contains(&agent_kind)
    }
}

/// Any agent's name stands where this does.
pub const AGENT_NAME: &str = "<name>";

pub const AGENT_KINDS: &[&str] = &["demo", "openai", "http"];

/// Counts must fit a 32-bit machine's `usize` and a browser's number alike.
pub const COUNT_MAX: u64 = u32::MAX as u64;

pub const COUNT: Kind = Kind::Number { min: 1, max: COUNT_MAX };
pub const SPAN: Kind = Kind::Duration { zero: false };
pub const SPAN_OR_NONE: Kind = Kind::Duration { zero: true };

/// Declares sections of settings: `struct NAME in "section."` makes the struct too, `fill NAME in "section."` fills fields
/// of one that exists, and `keys "section."` only names settings, whose reader is written by hand.
macro_rules! settings {
    ($($(#[$doc:meta])* $form:ident $($name:ident in)? $section:literal $(of $($agent_kind:literal)+)? {
        $($field:ident $(: $type:ty)? [$kind:expr] = $default:literal $(by $by:ident)?, $about:literal;)*
    })*) => {
        pub const SECTIONS: &[&[Key]] = &[$(settings! {
            @rows $section [$($($agent_kind),+)?] $($field [$kind] $default $about;)*
        }),*];
        $(settings! { @$form [$(#[$doc])*] $($name)? $section $($field [$($type)?] [$($by)?] $about;)* })*
    };
    (@rows $section:literal $agent_kinds:tt $($field:ident [$kind:expr] $default:literal $about:literal;)*) => {
        &[$(Key {
            name: concat!($section, stringify!($field)),
            kind: $kind,
            default: $default,
            about: $about,
            agent_kinds: &$agent_kinds,
        }),*]
    };
    (@struct [$($doc:tt)*] $name:ident $section:literal $($field:ident [$type:ty] $by:tt $about:literal;)*) => {
        $($doc)*
        #[derive(Clone, Debug)]
        pub struct $name {
            $(#[doc = $about] pub $field: $type,)*
        }

        impl ReadSection for $name {
            fn read(resolver: &Resolver<'_>) -> Result<$name> {
                Ok($name { $($field: settings!(@read resolver $by concat!($section, stringify!($field)))?,)* })
            }
        }
    };
    (@fill [] $name:ident $section:literal $($field:ident [$type:ty] $by:tt $about:literal;)*) => {
        impl ReadSection for $name {
            fn read(resolver: &Resolver<'_>) -> Result<$name> {
                $(let $field: $type = settings!(@read resolver $by concat!($section, stringify!($field)))?;)*
                Ok($name { $($field,)* ..$name::default() })
            }
        }
    };
    (@keys $($rest:tt)*) => {};
    (@read $resolver:ident [] $key:expr) => { $resolver.get($key) };
    (@read $resolver:ident [$by:ident] $key:expr) => { $resolver.$by($key) };
}
pub(super) use settings;
