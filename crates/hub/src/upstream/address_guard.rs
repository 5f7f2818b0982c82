//! Where backends may be: a client that does not go to forbidden addresses, whatever a name resolves to, and follows no redirect.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bowline_env::Network;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::redirect::Policy;

use crate::config::spec::{Reach, ServerSpec, SpecError, Target, check_address};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Redirects are not followed: they could lead anywhere, with our headers.
#[allow(clippy::expect_used)]
pub fn client(reach: Reach, network: &Arc<dyn Network>) -> reqwest::Client {
    let builder = || {
        bowline_env::tls::http_client()
            .redirect(Policy::none())
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_nodelay(true)
            .pool_max_idle_per_host(64)
            .no_proxy()
            .user_agent(concat!("bowline/", env!("CARGO_PKG_VERSION")))
            .dns_resolver(Arc::new(GuardedResolver { reach, network: network.clone() }))
    };
    builder().build().unwrap_or_else(|error| {
        // A small image may have no certificates. Backends without TLS need none, and the others will say so.
        tracing::warn!(%error, "HTTPS cannot be set up for MCP servers; are `ca-certificates` installed?");
        let bare = builder().tls_certs_only([]).build();
        // Any other client would go anywhere, so there is none.
        bare.expect("what may be missing is certificates, and this one needs none")
    })
}

/// Why a name cannot be dialled. It is one sentence whether the name is not known or leads where added servers may not be: two would
/// tell a client that adds servers which names exist inside the network.
const NOT_REACHABLE: &str = "the name leads to no address that may be reached from here";

/// Refuses an entry whose URL itself says that it leads where it may not. What a name leads to is looked at when it is dialled, and
/// `add_server` does not tell.
pub fn check(spec: &ServerSpec, reach: Reach) -> Result<(), SpecError> {
    let Target::Http { url, .. } = &spec.target else { return Ok(()) };
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    match host.parse() {
        Ok(address) => check_address(address, reach),
        // RFC 6761: these names are loopback by definition, so refusing them tells nothing.
        Err(_) if is_localhost(host) => check_address(Ipv4Addr::LOCALHOST.into(), reach),
        Err(_) => Ok(()),
    }
}

fn is_localhost(host: &str) -> bool {
    let host = host.trim_end_matches('.').to_ascii_lowercase();
    host == "localhost" || host.ends_with(".localhost")
}

#[derive(Debug)]
struct GuardedResolver {
    reach: Reach,
    network: Arc<dyn Network>,
}

impl Resolve for GuardedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let (reach, network) = (self.reach, self.network.clone());
        Box::pin(async move {
            let allowed = allowed(network.resolve(name.as_str(), 0).await, reach)?;
            Ok(Box::new(allowed.into_iter()) as Addrs)
        })
    }
}

/// The addresses that may be dialled. Where all may be, the resolver's own error helps the operator and tells nothing new.
fn allowed(
    found: std::io::Result<Vec<SocketAddr>>,
    reach: Reach,
) -> Result<Vec<SocketAddr>, Box<dyn std::error::Error + Send + Sync>> {
    let found = match found {
        Err(error) if reach == Reach::Anywhere => return Err(error.into()),
        found => found.unwrap_or_default(),
    };
    let allowed: Vec<SocketAddr> =
        found.into_iter().filter(|address| check_address(address.ip(), reach).is_ok()).collect();
    if allowed.is_empty() { Err(NOT_REACHABLE.into()) } else { Ok(allowed) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_not_known_and_one_that_leads_inside_fail_alike() {
        let inside = || Ok(vec![SocketAddr::from(([10, 1, 2, 3], 0)), SocketAddr::from(([169, 254, 169, 254], 0))]);
        let unknown = || Err(std::io::Error::other("no such host"));
        let why = |found, reach| allowed(found, reach).unwrap_err().to_string();
        assert_eq!(why(inside(), Reach::Public), why(unknown(), Reach::Public));
        assert_eq!(why(unknown(), Reach::NotLinkLocal), NOT_REACHABLE);
        assert_eq!(why(Ok(Vec::new()), Reach::Public), NOT_REACHABLE);
        assert_eq!(why(unknown(), Reach::Anywhere), "no such host", "the configuration is an operator's");
        assert_eq!(allowed(inside(), Reach::NotLinkLocal).unwrap().len(), 1);
    }
}
