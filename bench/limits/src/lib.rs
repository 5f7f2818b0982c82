//! Shared by the servers that show the limit of the machine: `<bin> <addr>`, runtime threads from THREADS (default 1).
pub mod broadcast;

pub fn block_on<F: std::future::Future>(f: F) -> F::Output {
    let n: usize = std::env::var("THREADS").ok().and_then(|v| v.parse().ok()).unwrap_or(1);
    let rt = match n {
        1 => tokio::runtime::Builder::new_current_thread().enable_all().build(),
        n => tokio::runtime::Builder::new_multi_thread().worker_threads(n).enable_all().build(),
    };
    rt.expect("runtime").block_on(f)
}

pub fn addr() -> String {
    std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:7001".into())
}
