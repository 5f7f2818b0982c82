//! Where backends may be: a client that does not go to forbidden addresses, whatever a name resolves to, and follows nobody.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::redirect::Policy;

use crate::spec::{Reach, ServerSpec, SpecError, Target, check_address};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Redirects are not followed: they could lead anywhere, with our headers.
#[allow(clippy::expect_used)]
pub fn client(reach: Reach) -> reqwest::Client {
    let builder = || {
        reqwest::Client::builder()
            .redirect(Policy::none())
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_nodelay(true)
            .pool_max_idle_per_host(64)
            .no_proxy()
            .user_agent(concat!("bowline/", env!("CARGO_PKG_VERSION")))
            .dns_resolver(Arc::new(Resolver { reach }))
    };
    builder().build().unwrap_or_else(|error| {
        // A small image may have no certificates. Backends without TLS need none, and the others will say so.
        tracing::warn!(%error, "HTTPS cannot be set up for MCP servers; are `ca-certificates` installed?");
        let bare = builder().tls_certs_only([]).build();
        // Any other client would go anywhere, so there is none.
        bare.expect("what may be missing is certificates, and this one needs none")
    })
}

/// Looks at where an entry leads before it is taken.
pub async fn check(spec: &ServerSpec, reach: Reach) -> Result<(), SpecError> {
    let Target::Http { url, .. } = &spec.target else { return Ok(()) };
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    if let Ok(address) = host.parse::<IpAddr>() {
        return check_address(address, reach);
    }
    let Ok(mut found) = tokio::net::lookup_host((host, url.port_or_known_default().unwrap_or(80))).await else {
        // It does not resolve now; when it does, the client looks again.
        return Ok(());
    };
    found.try_for_each(|address| check_address(address.ip(), reach))
}

#[derive(Debug)]
struct Resolver {
    reach: Reach,
}

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let reach = self.reach;
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let allowed: Vec<SocketAddr> = found.filter(|address| check_address(address.ip(), reach).is_ok()).collect();
            if allowed.is_empty() {
                return Err("the name leads to no address that may be reached from here".into());
            }
            Ok(Box::new(allowed.into_iter()) as Addrs)
        })
    }
}
