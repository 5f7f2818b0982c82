//! A backend that is a program of ours: its own process group, stderr into the logs, and nothing left behind.

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use bowline_core::backend::DialError;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::pipe::{OUT_QUEUE, Outgoing, Pipe};
use super::{Dial, Exit, LinkEvent, MESSAGE_BYTES_MAX, passing};
use crate::message::Message;

/// How long a program may take to leave after its stdin was closed, and again after it was asked to.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);
/// A longer line of stderr is cut.
const STDERR_LINE_MAX: usize = 4 << 10;

pub struct Program<'a> {
    pub command: &'a str,
    pub args: &'a [String],
    pub env: &'a BTreeMap<String, String>,
    pub cwd: Option<&'a Path>,
}

impl std::fmt::Debug for Program<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Program({}, {} arguments)", self.command, self.args.len())
    }
}

pub async fn dial(program: &Program<'_>, dial: Dial) -> Result<Arc<Pipe>, DialError> {
    let mut command = Command::new(program.command);
    command.args(program.args).envs(program.env).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // `npx` and `sh -c` start children of their own; a group of its own lets us end them all.
    command.process_group(0).kill_on_drop(true);
    if let Some(cwd) = program.cwd {
        command.current_dir(cwd);
    }
    let mut child = command.spawn().map_err(|error| passing(format!("cannot start `{}`: {error}", program.command)))?;
    let group = Group(child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?)));
    let (Some(stdin), Some(stdout), Some(stderr)) = (child.stdin.take(), child.stdout.take(), child.stderr.take())
    else {
        return Err(passing("the program has no pipes"));
    };
    let closed = CancellationToken::new();
    let (out, outgoing) = mpsc::channel(OUT_QUEUE);
    let pipe = Arc::new(Pipe::new(out, &dial, closed.clone()));
    let guard = closed.clone().drop_guard();
    tokio::spawn(write(stdin, outgoing, closed.clone()));
    tokio::spawn(read_stderr(stderr, dial.clone()));
    tokio::spawn(live(child, group, BufReader::new(stdout), pipe.clone(), dial.clone(), closed));
    pipe.shake_hands(dial.era).await?;
    pipe.renew(&dial.renewals).await;
    guard.disarm();
    Ok(pipe)
}

async fn write(mut stdin: ChildStdin, mut outgoing: mpsc::Receiver<Outgoing>, closed: CancellationToken) {
    while let Some(Some(message)) = closed.run_until_cancelled(outgoing.recv()).await {
        let mut line = bowline_protocol::json::compact(message.text.get()).into_bytes();
        line.push(b'\n');
        message.set_left(true);
        let begun = match stdin.write(&line).await {
            Ok(begun) if begun > 0 => begun,
            // Not a byte was taken.
            _ => {
                message.set_left(false);
                break;
            }
        };
        if stdin.write_all(&line[begun..]).await.is_err() || stdin.flush().await.is_err() {
            break;
        }
    }
    // Dropping stdin closes it, which asks a well-behaved program to leave.
}

/// Reads until the program or we want no more, then sees it out.
async fn live(
    mut child: Child,
    group: Group,
    mut stdout: BufReader<tokio::process::ChildStdout>,
    pipe: Arc<Pipe>,
    dial: Dial,
    closed: CancellationToken,
) {
    let reason = closed.run_until_cancelled(read(&mut stdout, &pipe)).await;
    let asked = reason.is_none();
    pipe.lost();
    drop(stdout);
    let status = leave(&mut child, &group, asked).await;
    let exit = status.map(|status| Exit { code: status.code(), signal: status.signal() });
    if let Some(reason) = reason {
        let how = match exit {
            Some(Exit { code: Some(code), .. }) => format!("the program exited with code {code}"),
            Some(Exit { signal: Some(signal), .. }) => format!("the program was killed by signal {signal}"),
            _ => reason,
        };
        let _ = dial.events.send((dial.generation, LinkEvent::Lost { reason: how, exit })).await;
    }
}

async fn read(stdout: &mut BufReader<tokio::process::ChildStdout>, pipe: &Arc<Pipe>) -> String {
    let mut line = Vec::new();
    loop {
        line.clear();
        let mut limited = (&mut *stdout).take(MESSAGE_BYTES_MAX as u64 + 1);
        match limited.read_until(b'\n', &mut line).await {
            Ok(0) => return "the program closed its output".into(),
            Ok(_) if line.len() > MESSAGE_BYTES_MAX => return "the program sent a message without end".into(),
            Ok(_) => {}
            Err(error) => return format!("the program's output cannot be read: {error}"),
        }
        let text = String::from_utf8_lossy(&line);
        let text = text.trim();
        if text.is_empty() {
            continue;
        }
        match Message::parse(text) {
            Ok(message) => pipe.receive(message).await,
            Err(why) => tracing::warn!(%why, bytes = line.len(), "a backend wrote a line that is no message"),
        }
    }
}

async fn read_stderr(stderr: tokio::process::ChildStderr, dial: Dial) {
    let mut stderr = BufReader::new(stderr);
    let mut line = Vec::new();
    loop {
        line.clear();
        match (&mut stderr).take(STDERR_LINE_MAX as u64).read_until(b'\n', &mut line).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let text = String::from_utf8_lossy(&line).trim_end().to_owned();
        if !text.is_empty() {
            let _ = dial.events.send((dial.generation, LinkEvent::Stderr(text))).await;
        }
    }
}

/// First its stdin is closed, then it is asked, then it is made to. Its children go with it.
async fn leave(child: &mut Child, group: &Group, asked: bool) -> Option<std::process::ExitStatus> {
    let first = if asked { Duration::from_millis(200) } else { Duration::from_millis(50) };
    if let Ok(status) = tokio::time::timeout(first, child.wait()).await {
        group.signal(Signal::KILL);
        return status.ok();
    }
    group.signal(Signal::TERM);
    if let Ok(status) = tokio::time::timeout(LEAVE_TIMEOUT, child.wait()).await {
        group.signal(Signal::KILL);
        return status.ok();
    }
    group.signal(Signal::KILL);
    child.wait().await.ok()
}

/// A process group that does not outlive its value.
struct Group(Option<Pid>);

impl Group {
    fn signal(&self, signal: Signal) {
        if let Some(pid) = self.0 {
            let _ = kill_process_group(pid, signal);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
    }
}
