//! One file per peer. To point the generator at a new server, add a file and a line here.
mod axum_ws;
mod bowline;
mod durable;
mod nats;
mod nchan;
mod raw_tcp;
mod redis_sse;
mod resumable;
mod socketio;

use crate::{driver::Driver, Common};
use anyhow::{bail, Result};
use std::sync::Arc;

pub fn make(c: &Common) -> Result<Arc<dyn Driver>> {
    let (addr, pub_addr) = (c.addr, c.pub_addr.unwrap_or(c.addr));
    Ok(match c.driver.as_str() {
        "raw-tcp" => Arc::new(raw_tcp::RawTcp { addr, answers: false }),
        "raw-durable" => Arc::new(raw_tcp::RawTcp { addr, answers: true }),
        "axum-ws" => Arc::new(axum_ws::AxumWs { addr }),
        b if b.starts_with("bowline-") => Arc::new(bowline::Bowline::new(addr, b)),
        "nchan-ws" => Arc::new(nchan::Nchan { addr, sse: false }),
        "nchan-sse" => Arc::new(nchan::Nchan { addr, sse: true }),
        "socketio" => Arc::new(socketio::SocketIo { addr }),
        "redis-sse" => Arc::new(redis_sse::RedisSse { addr, redis: pub_addr }),
        "resumable" => Arc::new(resumable::Resumable { addr }),
        "durable" => Arc::new(durable::Durable { addr }),
        "nats" => Arc::new(nats::Nats { addr }),
        other => bail!("unknown driver {other}"),
    })
}
