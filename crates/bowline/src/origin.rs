//! Names of hosts and of web origins, as `Host`, `Origin` and settings write them.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Scheme, host and port with the defaults filled in and the case removed, so that equal origins compare equal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    pub scheme: String,
    pub host: String,
    pub port: Option<u16>,
}

impl Origin {
    /// Reads `https://app.example:8443`; `None` for anything with a path, a user, or no host.
    pub fn parse(text: &str) -> Option<Origin> {
        let (scheme, authority) = text.split_once("://")?;
        let scheme = scheme.to_ascii_lowercase();
        let plain = !scheme.is_empty() && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b));
        let (host, port) = authority_of(authority)?;
        plain.then(|| Origin { port: port.or_else(|| default_port(&scheme)), scheme, host })
    }
}

/// Whether only this machine can reach the address.
pub fn is_loopback(address: &SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

pub fn is_loopback_name(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || bare.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
}

/// Whether this is a host as `Host` names one, without a port.
pub fn is_host_name(text: &str) -> bool {
    authority_of(text).is_some_and(|(_, port)| port.is_none())
}

pub fn default_port(scheme: &str) -> Option<u16> {
    match scheme {
        "http" | "ws" => Some(80),
        "https" | "wss" => Some(443),
        _ => None,
    }
}

/// `host`, `host:port` or `[v6]:port`, in lower case.
pub fn authority_of(text: &str) -> Option<(String, Option<u16>)> {
    let (host, port) = if let Some(rest) = text.strip_prefix('[') {
        let (inside, after) = rest.split_once(']')?;
        let address: Ipv6Addr = inside.parse().ok()?;
        (format!("[{address}]"), if after.is_empty() { None } else { Some(after.strip_prefix(':')?) })
    } else {
        let (host, port) = text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port)));
        let plain = !host.is_empty() && host.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b));
        (plain.then(|| host.to_ascii_lowercase())?, port)
    };
    let port = match port {
        None => None,
        Some(digits) if digits.bytes().all(|b| b.is_ascii_digit()) => Some(digits.parse().ok()?),
        Some(_) => return None,
    };
    Some((host, port))
}
