//! How a backend is reached: what people write in `mcpServers`, checked, with its secrets out of sight.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use url::Url;

use crate::call::Exchange;
use crate::revision;

/// The longest name of a server; names are part of tool names, which clients limit.
const NAME_CHARS_MAX: usize = 64;

/// One backend, as it was configured.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ServerSpec {
    pub target: Target,
    /// How it is spoken to; found out when not given.
    pub exchange: Option<Exchange>,
    /// Kept, but not dialled.
    pub disabled: bool,
}

#[derive(Clone, PartialEq, Eq, Hash)]
pub enum Target {
    Http {
        url: Url,
        headers: BTreeMap<String, String>,
        dialect: Dialect,
    },
    Stdio {
        command: String,
        args: Vec<String>,
        env: BTreeMap<String, String>,
        cwd: Option<PathBuf>,
    },
    /// An entry that can never work; it is shown with its reason, as far as it says where it leads.
    Invalid {
        reason: String,
        shown: Option<(&'static str, String)>,
    },
}

/// Which HTTP transport a URL speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// Streamable HTTP; the older one if the server does not know it.
    Streamable,
    /// HTTP+SSE of 2024-11-05.
    Sse,
}

/// The shape that other MCP clients use. Unknown members are theirs and are ignored.
#[derive(Default, Deserialize, Serialize)]
#[serde(default)]
struct WrittenSpec {
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    kind: Option<String>,
    #[serde(alias = "serverUrl", alias = "httpUrl", skip_serializing_if = "Option::is_none")]
    url: Option<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    headers: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    command: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    args: Vec<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    env: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cwd: Option<PathBuf>,
    /// The version of the protocol in which it is spoken to.
    #[serde(skip_serializing)]
    revision: Option<String>,
    /// The same, in words that were there before; the store has it so. An entry for nodes of both kinds may have both.
    #[serde(skip_serializing_if = "Option::is_none")]
    era: Option<String>,
    disabled: bool,
}

/// What `era` calls the ways to exchange messages.
const ERAS: [(&str, Exchange); 2] = [("modern", Exchange::Stateless), ("legacy", Exchange::Session)];

/// How messages are exchanged in what is written there.
fn exchange_of(written: &str) -> Result<Exchange, SpecError> {
    let by_word = ERAS.into_iter().find(|(word, _)| *word == written).map(|(_, exchange)| exchange);
    let by_version = || revision::of_version(written).map(|revision| revision.exchange());
    by_word.or_else(by_version).ok_or_else(|| SpecError::Revision(revision::versions().join(", ")))
}

/// Why a configuration can never work. Says no value that could be a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    #[error("a server has either `url` or `command`")]
    Kind,
    #[error("`{0}` is not of the right type")]
    Shape(&'static str),
    #[error("`url` must be an http or https URL")]
    Url,
    #[error("the header `{0}` cannot be sent")]
    Header(String),
    #[error("`type` must be \"http\", \"sse\" or \"stdio\"")]
    Type,
    #[error("`revision` must be a version of the protocol: {0}")]
    Revision(String),
    #[error("a name has 1 to 64 letters, digits, `_`, `-` or `.`, no `__`, and no `_` at its end")]
    Name,
    #[error("the variable {0} is not set")]
    Variable(String),
    #[error("the address may not be reached from here")]
    Forbidden,
}

impl ServerSpec {
    /// Reads one entry of `mcpServers`. `${NAME}` and `${NAME:-default}` are looked up in `variables`.
    pub fn read(value: &Value, variables: &dyn Fn(&str) -> Option<String>) -> Result<ServerSpec, SpecError> {
        let written: WrittenSpec = serde_json::from_value(value.clone()).map_err(|_| SpecError::Shape("server"))?;
        let expand = |text: &str| expand(text, variables);
        let expand_all = |map: &BTreeMap<String, String>| -> Result<BTreeMap<String, String>, SpecError> {
            map.iter().map(|(key, text)| Ok((key.clone(), expand(text)?))).collect()
        };
        let target = match (&written.url, &written.command) {
            (Some(url), None) => {
                let dialect = match written.kind.as_deref() {
                    None | Some("http" | "streamable-http" | "streamableHttp") => Dialect::Streamable,
                    Some("sse") => Dialect::Sse,
                    Some(_) => return Err(SpecError::Type),
                };
                let url = Url::parse(&expand(url)?).map_err(|_| SpecError::Url)?;
                if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none_or(str::is_empty) {
                    return Err(SpecError::Url);
                }
                let headers = expand_all(&written.headers)?;
                for (name, value) in &headers {
                    let sendable =
                        http::HeaderName::try_from(name).is_ok() && http::HeaderValue::try_from(value).is_ok();
                    if !sendable {
                        return Err(SpecError::Header(name.chars().take(64).collect()));
                    }
                }
                Target::Http { url, headers, dialect }
            }
            (None, Some(command)) if !command.is_empty() => {
                if written.kind.as_deref().is_some_and(|kind| kind != "stdio") {
                    return Err(SpecError::Type);
                }
                let args = written.args.iter().map(|arg| expand(arg)).collect::<Result<_, _>>()?;
                Target::Stdio {
                    command: expand(command)?,
                    args,
                    env: expand_all(&written.env)?,
                    cwd: written.cwd.clone(),
                }
            }
            _ => return Err(SpecError::Kind),
        };
        let exchange = written.revision.as_deref().or(written.era.as_deref()).map(exchange_of).transpose()?;
        Ok(ServerSpec { target, exchange, disabled: written.disabled })
    }

    /// The entry again, secrets and all: for the store, never for people.
    pub fn write(&self) -> Value {
        let era =
            ERAS.into_iter().find(|(_, exchange)| self.exchange == Some(*exchange)).map(|(word, _)| word.to_owned());
        let written = match self.target.clone() {
            Target::Http { url, headers, dialect } => WrittenSpec {
                kind: (dialect == Dialect::Sse).then(|| "sse".to_owned()),
                url: Some(url.into()),
                headers,
                disabled: self.disabled,
                ..WrittenSpec::default()
            },
            Target::Stdio { command, args, env, cwd } => WrittenSpec {
                command: Some(command),
                args,
                env,
                cwd,
                disabled: self.disabled,
                ..WrittenSpec::default()
            },
            Target::Invalid { .. } => WrittenSpec::default(),
        };
        serde_json::to_value(&WrittenSpec { era, ..written }).unwrap_or_default()
    }

    /// What may be shown: the URL without a password or query, or the program. Nothing of an entry that names neither.
    pub fn shown(&self) -> Option<(&'static str, String)> {
        match &self.target {
            Target::Http { url, .. } => Some(("url", harmless(url.clone()))),
            Target::Stdio { command, .. } => Some(("command", command.clone())),
            Target::Invalid { shown, .. } => shown.clone(),
        }
    }

    /// An entry of a configuration that can never work.
    pub fn invalid(entry: &Value, error: &SpecError) -> ServerSpec {
        let text = |names: &[&str]| names.iter().find_map(|name| entry.get(name)?.as_str());
        let url = text(&["url", "serverUrl", "httpUrl"]).map(|url| ("url", harmless_text(url)));
        let shown = url.or_else(|| text(&["command"]).map(|command| ("command", command.to_owned())));
        ServerSpec { target: Target::Invalid { reason: error.to_string(), shown }, exchange: None, disabled: false }
    }

    pub fn is_stdio(&self) -> bool {
        matches!(self.target, Target::Stdio { .. })
    }
}

/// The URL without what may be a secret.
fn harmless(mut url: Url) -> String {
    let _ = url.set_password(None);
    let _ = url.set_username("");
    url.set_query(None);
    url.set_fragment(None);
    url.into()
}

/// The same for what may be no URL at all, otherwise as it was written.
fn harmless_text(text: &str) -> String {
    let before = text.split(['?', '#']).next().unwrap_or_default();
    let authority = before.find("://").map_or(0, |at| at + 3);
    let (scheme, rest) = before.split_at(authority);
    let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
    format!("{scheme}{host}{path}")
}

/// A name is part of paths and of tool names.
pub fn check_name(name: &str) -> Result<(), SpecError> {
    let plain = !name.is_empty()
        && name.len() <= NAME_CHARS_MAX
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b))
        // What stands between it and the name of a tool must be found again.
        && !name.contains("__")
        && !name.ends_with('_');
    if plain { Ok(()) } else { Err(SpecError::Name) }
}

/// Where a server may be, by who named it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// A server in the configuration may be at any address that this machine can reach.
    Anywhere,
    /// Inside too, but not where machines are told their secrets.
    NotLinkLocal,
    Public,
}

impl Reach {
    /// Of servers that are added at run time.
    pub const fn of_added(allow_private: bool) -> Reach {
        if allow_private { Reach::NotLinkLocal } else { Reach::Public }
    }
}

/// Whether a server may be at this address.
pub fn check_address(address: IpAddr, reach: Reach) -> Result<(), SpecError> {
    let address = address.to_canonical();
    let judged = match address {
        IpAddr::V6(v6) => embedded(v6).map_or(address, IpAddr::V4),
        IpAddr::V4(_) => address,
    };
    let link_local = match judged {
        IpAddr::V4(v4) => v4.is_link_local() || v4.is_multicast() || v4.is_broadcast(),
        // fe80::/10, and the addresses under which clouds tell secrets over IPv6. In 64:ff9b:1::/48 each network embeds
        // addresses of the older kind as it likes, so it is not known where one leads.
        IpAddr::V6(v6) => {
            v6.segments()[0] & 0xffc0 == 0xfe80
                || v6.is_multicast()
                || v6.segments()[..2] == [0xfd00, 0x0ec2]
                || v6.segments()[..3] == [0x64, 0xff9b, 1]
        }
    };
    let private = match judged {
        IpAddr::V4(v4) => {
            let [a, b, c, _] = v4.octets();
            let shared = a == 100 && b & 0xc0 == 64;
            let special = (a, b, c) == (192, 0, 0) || (a == 198 && b & 0xfe == 18) || a >= 240;
            v4.is_private() || v4.is_loopback() || a == 0 || shared || special
        }
        // fc00::/7, fec0::/10, and Teredo, which leads through whatever is between.
        IpAddr::V6(v6) => {
            let [first, second, ..] = v6.segments();
            let ours = first & 0xfe00 == 0xfc00 || first & 0xffc0 == 0xfec0;
            v6.is_loopback() || v6.is_unspecified() || ours || (first, second) == (0x2001, 0)
        }
    };
    let forbidden = match reach {
        Reach::Anywhere => false,
        Reach::NotLinkLocal => link_local,
        Reach::Public => link_local || private,
    };
    if forbidden { Err(SpecError::Forbidden) } else { Ok(()) }
}

/// The address of the older kind that one of the newer kind leads to: by NAT64, 6to4, SIIT, or written out.
fn embedded(v6: Ipv6Addr) -> Option<Ipv4Addr> {
    let segments = v6.segments();
    let (high, low) = match segments {
        [0, 0, 0, 0, 0, 0, 0, 0 | 1] => return None,
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => (high, low),
        [0, 0, 0, 0, 0xffff, 0, high, low] => (high, low),
        [0, 0, 0, 0, 0, 0, high, low] => (high, low),
        [0x2002, high, low, ..] => (high, low),
        _ => return None,
    };
    Some(Ipv4Addr::from(u32::from(high) << 16 | u32::from(low)))
}

fn expand(text: &str, variables: &dyn Fn(&str) -> Option<String>) -> Result<String, SpecError> {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        out.push_str(before);
        let Some((name, behind)) = after.split_once('}') else {
            out.push_str("${");
            rest = after;
            continue;
        };
        let (name, default) = name.split_once(":-").map_or((name, None), |(name, default)| (name, Some(default)));
        let value = variables(name).or_else(|| default.map(ToOwned::to_owned));
        out.push_str(&value.ok_or_else(|| SpecError::Variable(name.to_owned()))?);
        rest = behind;
    }
    out.push_str(rest);
    Ok(out)
}

/// Headers, arguments and environments hold secrets, so only the target is shown.
impl fmt::Debug for ServerSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, shown) = self.shown().unwrap_or(("nowhere", String::new()));
        write!(f, "ServerSpec({kind} {shown})")
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Http { headers, .. } => write!(f, "Http({} headers)", headers.len()),
            Target::Invalid { reason, .. } => write!(f, "Invalid({reason})"),
            Target::Stdio { args, env, .. } => write!(f, "Stdio({} arguments, {} variables)", args.len(), env.len()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(value: &Value) -> Result<ServerSpec, SpecError> {
        ServerSpec::read(value, &|name| (name == "TOKEN").then(|| "s3cret".to_owned()))
    }

    #[test]
    fn entries_of_other_clients_are_taken_as_they_are() {
        let http = read(
            &json!({ "type": "http", "url": "https://u:p@x.example/mcp?key=1", "headers": { "Authorization": "Bearer ${TOKEN}" }, "note": 1 }),
        );
        let http = http.unwrap();
        assert_eq!(http.shown(), Some(("url", "https://x.example/mcp".to_owned())));
        assert!(!format!("{http:?} {:?}", http.target).contains("s3cret"));
        let Target::Http { headers, .. } = &http.target else { panic!() };
        assert_eq!(headers["Authorization"], "Bearer s3cret");
        let stdio =
            read(&json!({ "command": "npx", "args": ["-y", "${X:-srv}"], "env": { "A": "b" }, "disabled": true }));
        let stdio = stdio.unwrap();
        assert!(stdio.disabled && stdio.is_stdio());
        assert_eq!(ServerSpec::read(&stdio.write(), &|_| None).unwrap(), stdio);
        assert_eq!(ServerSpec::read(&http.write(), &|_| None).unwrap(), http);
    }

    #[test]
    fn the_revision_of_a_server_is_one_of_its_versions_or_a_word_of_earlier_files() {
        let exchange = |entry: Value| read(&entry).map(|spec| spec.exchange);
        assert_eq!(exchange(json!({ "url": "http://x" })), Ok(None));
        for version in revision::versions() {
            let expected = revision::of_version(version).map(|revision| revision.exchange());
            for name in ["revision", "era"] {
                let spec = read(&json!({ "url": "http://x", name: version })).unwrap();
                assert_eq!(spec.exchange, expected, "{name} {version}");
                assert_eq!(ServerSpec::read(&spec.write(), &|_| None).unwrap(), spec);
            }
        }
        for (word, expected) in ERAS {
            assert_eq!(exchange(json!({ "url": "http://x", "era": word })), Ok(Some(expected)));
            let stored = read(&json!({ "url": "http://x", "revision": word })).unwrap().write();
            assert_eq!(stored["era"], word, "a node that was built before reads it too");
        }
        let both = json!({ "url": "http://x", "era": "legacy", "revision": revision::versions()[0] });
        assert_eq!(
            exchange(both),
            Ok(revision::of_version(revision::versions()[0]).map(|revision| revision.exchange()))
        );
        let unknown = exchange(json!({ "url": "http://x", "revision": "next" })).unwrap_err();
        assert!(unknown.to_string().ends_with(&revision::versions().join(", ")), "{unknown}");
    }

    #[test]
    fn what_can_never_work_shows_where_it_was_to_lead_and_no_secret() {
        for (entry, shown) in [
            (json!({ "url": "ftp://u:p@x.example/a?key=s3cret#s3cret" }), Some(("url", "ftp://x.example/a"))),
            (json!({ "serverUrl": "http://u:s3cret@${HOST}/a?key=s3cret" }), Some(("url", "http://${HOST}/a"))),
            (json!({ "url": "u:s3cret@x.example/b@c?key=s3cret" }), Some(("url", "x.example/b@c"))),
            (json!({ "command": "run", "type": "http", "env": { "A": "s3cret" } }), Some(("command", "run"))),
            (json!({ "note": "s3cret" }), None),
        ] {
            let invalid = ServerSpec::invalid(&entry, &SpecError::Kind);
            assert_eq!(invalid.shown(), shown.map(|(kind, text)| (kind, text.to_owned())), "{entry}");
        }
    }

    #[test]
    fn what_can_never_work_is_said_at_once() {
        assert_eq!(read(&json!({})), Err(SpecError::Kind));
        assert_eq!(read(&json!({ "url": "http://x", "command": "y" })), Err(SpecError::Kind));
        assert_eq!(read(&json!({ "url": "file:///etc/passwd" })), Err(SpecError::Url));
        assert_eq!(
            read(&json!({ "url": "http://x", "headers": { "a b": "c" } })),
            Err(SpecError::Header("a b".into()))
        );
        assert_eq!(read(&json!({ "url": "http://x", "type": "ws" })), Err(SpecError::Type));
        assert_eq!(read(&json!({ "url": "http://x/${NOPE}" })), Err(SpecError::Variable("NOPE".into())));
        for name in ["", "a__b", "a_", "a b", "a/b", &"x".repeat(65)] {
            assert_eq!(check_name(name), Err(SpecError::Name), "{name}");
        }
    }

    #[test]
    fn addresses_that_strangers_must_not_reach_are_refused_in_every_spelling() {
        let address = |text: &str| -> IpAddr {
            let host = Url::parse(&format!("http://{text}/")).unwrap().host_str().unwrap().to_owned();
            host.trim_matches(['[', ']']).parse().unwrap()
        };
        for text in [
            "169.254.169.254",
            "0xA9FEA9FE",
            "2852039166",
            "[fe80::1]",
            "[::ffff:169.254.169.254]",
            "[::169.254.169.254]",
            "[::ffff:0:169.254.169.254]",
            "[64:ff9b::169.254.169.254]",
            "[64:ff9b:1::1]",
            "[2002:a9fe:a9fe::1]",
            "[fd00:ec2::254]",
        ] {
            assert!(check_address(address(text), Reach::NotLinkLocal).is_err(), "{text}");
            assert!(check_address(address(text), Reach::Anywhere).is_ok(), "{text}");
        }
        for text in [
            "127.0.0.1",
            "127.1",
            "0",
            "[::1]",
            "[::]",
            "10.1.2.3",
            "192.168.1.1",
            "172.16.0.1",
            "192.0.0.8",
            "198.18.0.1",
            "198.19.255.255",
            "240.0.0.1",
            "[fc00::1]",
            "[fec0::1]",
            "[2001::1]",
            "[::127.0.0.1]",
            "[64:ff9b::10.0.0.1]",
            "[2002:7f00:1::]",
            "100.64.0.1",
        ] {
            assert!(check_address(address(text), Reach::Public).is_err(), "{text}");
            assert!(check_address(address(text), Reach::NotLinkLocal).is_ok(), "{text}");
        }
        for text in ["198.17.0.1", "192.0.1.1", "[64:ff9b::93.184.216.34]", "[2002:5db8:d822::1]", "[2606:4700::1111]"]
        {
            assert!(check_address(address(text), Reach::Public).is_ok(), "{text}");
        }
        assert!(check_address(address("93.184.216.34"), Reach::Public).is_ok());
    }
}
