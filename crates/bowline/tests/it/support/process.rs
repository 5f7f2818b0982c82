//! A server in a process of its own, which can be killed and started again on the same directory; and a wire that can
//! be cut at any byte.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};

use super::PATIENCE;
use crate::limit;

pub struct Process {
    child: Child,
    pub address: SocketAddr,
    binary: PathBuf,
    dir: PathBuf,
    env: Vec<(&'static str, String)>,
    args: Vec<String>,
}

/// The server that was built with these tests.
pub const BINARY: &str = env!("CARGO_BIN_EXE_bowline");

impl Process {
    pub async fn start(dir: &Path, env: &[(&'static str, String)]) -> Process {
        Process::start_with(dir, env, &[]).await
    }

    /// The same, with more arguments.
    pub async fn start_with(dir: &Path, env: &[(&'static str, String)], args: &[String]) -> Process {
        Process::start_binary(Path::new(BINARY), dir, env, args).await
    }

    /// The same, of another build.
    pub async fn start_binary(binary: &Path, dir: &Path, env: &[(&'static str, String)], args: &[String]) -> Process {
        limit::limit();
        let mut child =
            command_of(binary, dir, env).args(args).stdout(Stdio::piped()).spawn().expect("the binary starts");
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let address = loop {
            let line = tokio::time::timeout(PATIENCE, lines.next_line()).await.expect("it says where it serves");
            let line = line.unwrap().expect("it serves before it ends");
            if let Some((_, rest)) = line.split_once("serving at ").and_then(|(_, url)| url.split_once("://")) {
                break rest.trim_end_matches('/').parse().unwrap();
            }
        };
        // The pipe is read on, so that the server never waits for us.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        let binary = binary.to_owned();
        Process { child, address, binary, dir: dir.to_owned(), env: env.to_vec(), args: args.to_vec() }
    }

    /// kill -9, then the same again.
    pub async fn kill_and_restart(mut self) -> Process {
        self.child.kill().await.unwrap();
        Process::start_binary(&self.binary, &self.dir, &self.env, &self.args).await
    }

    pub async fn kill(mut self) {
        self.child.kill().await.unwrap();
    }

    /// SIGTERM; returns the exit code.
    pub async fn terminate(mut self) -> Option<i32> {
        let pid = rustix::process::Pid::from_raw(self.child.id().unwrap() as i32).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        tokio::time::timeout(PATIENCE, self.child.wait()).await.expect("it stops").unwrap().code()
    }

    pub fn pid(&self) -> u32 {
        self.child.id().unwrap()
    }

    /// SIGSTOP: it is there, and does nothing. Waits for that, since all threads go on until one of them has had its turn to take the signal.
    pub fn freeze(&self) {
        self.signal(rustix::process::Signal::STOP);
        let until = Instant::now() + PATIENCE;
        let threads = || std::fs::read_dir(format!("/proc/{}/task", self.pid())).unwrap().flatten();
        let stands = |stat: String| stat.rsplit(") ").next().is_some_and(|state| state.starts_with('T'));
        while !threads().all(|thread| std::fs::read_to_string(thread.path().join("stat")).is_ok_and(stands)) {
            assert!(Instant::now() < until, "it does not stand still");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// SIGCONT.
    pub fn wake(&self) {
        self.signal(rustix::process::Signal::CONT);
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_raw(self.pid() as i32).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }
}

/// `bowline serve` on a free port.
pub fn command(dir: &Path, env: &[(&'static str, String)]) -> Command {
    command_of(Path::new(BINARY), dir, env)
}

fn command_of(binary: &Path, dir: &Path, env: &[(&'static str, String)]) -> Command {
    let mut command = Command::new(binary);
    command.args(["serve", "--listen", "127.0.0.1:0"]);
    if !env.iter().any(|(key, _)| *key == "BOWLINE_STORE__URL") {
        command.args(["--store", &format!("disk:{}", dir.display())]);
    }
    command
        .current_dir(dir.parent().unwrap())
        .env("BOWLINE_LOG__LEVEL", "warn")
        // The tests' own variable; to the server it would be an unknown setting.
        .env_remove("BOWLINE_TEST_SEED")
        .envs(env.iter().map(|(key, value)| (*key, value.as_str())))
        .kill_on_drop(true)
        .stdin(Stdio::null());
    command
}

/// Forwards connections to a server, each for a given number of bytes in all, and then cuts it.
pub struct Cutter {
    pub address: SocketAddr,
    budget: Arc<AtomicU64>,
}

impl Cutter {
    pub async fn start(target: SocketAddr) -> Cutter {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let cutter = Cutter { address: listener.local_addr().unwrap(), budget: Arc::new(AtomicU64::new(u64::MAX)) };
        let budget = cutter.budget.clone();
        tokio::spawn(async move {
            while let Ok((inner, _)) = listener.accept().await {
                let left = budget.load(Ordering::SeqCst);
                tokio::spawn(forward(inner, target, left));
            }
        });
        cutter
    }

    /// How many bytes the next connection may carry before it is cut.
    pub fn cut_after(&self, bytes: u64) {
        self.budget.store(bytes, Ordering::SeqCst);
    }
}

async fn forward(inner: TcpStream, target: SocketAddr, budget: u64) {
    let Ok(outer) = TcpStream::connect(target).await else { return };
    let left = Arc::new(AtomicU64::new(budget));
    let (inner_read, inner_write) = inner.into_split();
    let (outer_read, outer_write) = outer.into_split();
    let up = tokio::spawn(pipe(inner_read, outer_write, left.clone()));
    let down = tokio::spawn(pipe(outer_read, inner_write, left));
    let (abort_up, abort_down) = (up.abort_handle(), down.abort_handle());
    tokio::select! { _ = up => abort_down.abort(), _ = down => abort_up.abort() }
}

async fn pipe(mut from: impl AsyncReadExt + Unpin, mut to: impl AsyncWriteExt + Unpin, left: Arc<AtomicU64>) {
    let mut buffer = [0; 4096];
    while let Ok(n @ 1..) = from.read(&mut buffer).await {
        let before = left.fetch_sub((n as u64).min(left.load(Ordering::SeqCst)), Ordering::SeqCst);
        let allowed = (n as u64).min(before) as usize;
        if to.write_all(&buffer[..allowed]).await.is_err() || allowed < n {
            return;
        }
    }
}
