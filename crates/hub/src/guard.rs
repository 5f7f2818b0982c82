//! Where backends may be: a client that does not go to forbidden addresses, whatever a name resolves to, and follows nobody.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::redirect::Policy;

use crate::spec::{ServerSpec, SpecError, Target, check_address};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Redirects are not followed: they could lead anywhere, with our headers.
pub fn client(allow_private: bool) -> reqwest::Client {
    let builder = reqwest::Client::builder()
        .redirect(Policy::none())
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_nodelay(true)
        .pool_max_idle_per_host(64)
        .no_proxy()
        .user_agent(concat!("bowline/", env!("CARGO_PKG_VERSION")))
        .dns_resolver(Arc::new(Resolver { allow_private }));
    builder.build().unwrap_or_default()
}

/// Looks at where an entry leads before it is taken.
pub async fn check(spec: &ServerSpec, allow_private: bool) -> Result<(), SpecError> {
    let Target::Http { url, .. } = &spec.target else { return Ok(()) };
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    if let Ok(address) = host.parse::<IpAddr>() {
        return check_address(address, allow_private);
    }
    let Ok(mut found) = tokio::net::lookup_host((host, url.port_or_known_default().unwrap_or(80))).await else {
        // It does not resolve now; when it does, the client looks again.
        return Ok(());
    };
    found.try_for_each(|address| check_address(address.ip(), allow_private))
}

#[derive(Debug)]
struct Resolver {
    allow_private: bool,
}

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let allow_private = self.allow_private;
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let allowed: Vec<SocketAddr> =
                found.filter(|address| check_address(address.ip(), allow_private).is_ok()).collect();
            if allowed.is_empty() {
                return Err("the name leads to no address that may be reached from here".into());
            }
            Ok(Box::new(allowed.into_iter()) as Addrs)
        })
    }
}
