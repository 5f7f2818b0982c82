//! A backend that is a program of ours: its own process group, stderr into the logs, and nothing left behind.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use bowline_core::backend::DialError;
use futures_util::future::{Either, select};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::pending_calls::PipeKind;
use super::pipe::{OUT_QUEUE, Pipe};
use super::{DIAL_TIMEOUT, Dial, Exit, TransportEvent, passing};
use crate::call::{Caller, Exchange};
use crate::config::spec::Reach;
use crate::message::BYTES_MAX;
use crate::scan::{InputLine, Lines};
use crate::upstream::inbound_queue::Unread;
use crate::upstream::pending_calls::Outgoing;

/// How long a program may take to leave after its stdin was closed.
const ASKED_PATIENCE: Duration = Duration::from_millis(200);
/// How long one that has closed its output may take to end, if it is about to: its exit tells more than its silence.
const EXIT_PATIENCE: Duration = Duration::from_millis(50);
/// How long a program may take to leave after it was asked to.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);
/// How long what a program wrote before it ended is read, if its output stays open.
const LAST_WORDS: Duration = Duration::from_millis(50);
/// A longer line of stderr is cut.
const STDERR_LINE_MAX: usize = 4 << 10;

/// What programs that were added at run time see of our environment: what they need to run.
const INHERITED: [&str; 11] =
    ["HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER"];

/// A command, ready to be run as often as need be.
pub struct Program {
    pub command: String,
    pub args: Vec<String>,
    pub env: BTreeMap<String, String>,
    pub cwd: Option<PathBuf>,
}

impl std::fmt::Debug for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Program({}, {} arguments)", self.command, self.args.len())
    }
}

/// For whom a process is.
#[derive(Clone, Debug)]
pub enum ProcessClients {
    /// The first process, for all who have no other.
    AllClients,
    /// One client alone.
    Client(Caller),
    /// Calls of clients that have no session.
    Visitors,
}

impl ProcessClients {
    pub fn client(&self) -> Option<&Caller> {
        match self {
            ProcessClients::Client(client) => Some(client),
            ProcessClients::AllClients | ProcessClients::Visitors => None,
        }
    }

    fn name(&self) -> Option<Arc<str>> {
        self.client().map(|client| client.session_name.clone())
    }
}

/// How a program ended, in words and in numbers.
#[derive(Clone, Debug)]
pub struct ProgramExit {
    pub how: String,
    pub exit: Option<Exit>,
}

/// Tells how a program ended; nothing if we ended it.
pub type ProgramEnd = oneshot::Receiver<ProgramExit>;

/// Why there is no process.
pub enum StartError {
    /// It runs, and refused to begin.
    Refused(DialError),
    /// It ended before it began.
    Ended(ProgramExit),
    Failed(DialError),
}

impl StartError {
    pub fn into_dial_error(self) -> DialError {
        match self {
            StartError::Refused(error) | StartError::Failed(error) => error,
            StartError::Ended(ended) => passing(ended.how),
        }
    }
}

/// Starts a process and shakes hands, in the way that is known, or finds that out.
pub async fn start(
    program: &Program,
    dial: &Dial,
    clients: &ProcessClients,
    exchange: Option<Exchange>,
    closed: CancellationToken,
) -> Result<(Arc<Pipe>, ProgramEnd), StartError> {
    let failed = |reason: String| StartError::Failed(passing(reason));
    let mut command = Command::new(&program.command);
    command.env_clear().envs(inherited(dial.reach)).envs(&program.env).args(&program.args);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // `npx` and `sh -c` start children of their own; a group of its own lets us end them all.
    command.process_group(0).kill_on_drop(true);
    if let Some(cwd) = &program.cwd {
        command.current_dir(cwd);
    }
    let spawned = command.spawn();
    let mut child = spawned.map_err(|error| failed(format!("cannot start `{}`: {error}", program.command)))?;
    let group = ProcessGroup(child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?)));
    let (Some(stdin), Some(stdout), Some(stderr)) = (child.stdin.take(), child.stdout.take(), child.stderr.take())
    else {
        return Err(failed("the program has no pipes".into()));
    };
    let (out, outgoing) = mpsc::channel(OUT_QUEUE);
    let pipe = Arc::new(Pipe::new(out, dial, closed.clone(), clients.client().cloned(), PipeKind::Process));
    let guard = closed.clone().drop_guard();
    tokio::spawn(write(stdin, outgoing, closed.clone()));
    tokio::spawn(read_stderr(stderr, dial.clone(), clients.name(), pipe.clone()));
    let (tell, end) = oneshot::channel();
    let running = RunningProgram { child, group, stdout: BufReader::new(stdout), pipe: pipe.clone(), closed };
    dial.programs.spawn(live(running, dial.clone(), clients.clone(), tell));
    match tokio::time::timeout(DIAL_TIMEOUT, pipe.shake_hands(exchange)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) if !pipe.is_lost() => return Err(StartError::Refused(error)),
        Ok(Err(error)) => {
            // A program that has ended says more by how it ended than by what it left unanswered.
            let how = tokio::time::timeout(LEAVE_TIMEOUT, end).await;
            return Err(how.ok().and_then(Result::ok).map_or(StartError::Failed(error), StartError::Ended));
        }
        Err(_) => return Err(failed("it did not answer in time".into())),
    }
    guard.disarm();
    Ok((pipe, end))
}

/// What a program sees of our own environment. Our settings are ours alone, and what else an operator has set for us is for the
/// operator's own programs.
fn inherited(reach: Reach) -> impl Iterator<Item = (OsString, OsString)> {
    std::env::vars_os().filter(move |(name, _)| {
        let name = name.to_string_lossy();
        !name.starts_with("BOWLINE_") && (reach == Reach::Anywhere || INHERITED.contains(&&*name))
    })
}

async fn write(mut stdin: ChildStdin, mut outgoing: mpsc::Receiver<Outgoing>, closed: CancellationToken) {
    while let Some(Some(message)) = closed.run_until_cancelled(outgoing.recv()).await {
        let mut line = bowline_protocol::json::compact(message.text.get()).into_bytes();
        line.push(b'\n');
        if !message.leaves() {
            continue;
        }
        let begun = match stdin.write(&line).await {
            Ok(begun) if begun > 0 => begun,
            // Not a byte was taken.
            _ => {
                message.stayed();
                break;
            }
        };
        if stdin.write_all(&line[begun..]).await.is_err() || stdin.flush().await.is_err() {
            break;
        }
    }
    // Dropping stdin closes it, which asks a well-behaved program to leave.
}

/// A program that has been started.
struct RunningProgram {
    child: Child,
    group: ProcessGroup,
    stdout: BufReader<tokio::process::ChildStdout>,
    pipe: Arc<Pipe>,
    closed: CancellationToken,
}

/// Reads until the program or we want no more, then sees it out and tells how it ended.
async fn live(running: RunningProgram, dial: Dial, clients: ProcessClients, tell: oneshot::Sender<ProgramExit>) {
    let RunningProgram { mut child, group, mut stdout, pipe, closed } = running;
    let reason = {
        let ended = until_ended(&mut child, &mut stdout, &pipe);
        closed.run_until_cancelled(ended).await
    };
    pipe.lost();
    drop(stdout);
    let patience = if reason.is_none() { ASKED_PATIENCE } else { EXIT_PATIENCE };
    let left = tokio::time::timeout(patience, child.wait()).await;
    if left.is_ok() {
        group.signal(Signal::KILL);
    }
    if let Some(reason) = reason {
        let status = left.as_ref().ok().and_then(|status| status.as_ref().ok());
        let exit = status.map(|status| Exit { code: status.code(), signal: status.signal() });
        let how = match exit {
            Some(Exit { code: Some(code), .. }) => format!("the program exited with code {code}"),
            Some(Exit { signal: Some(signal), .. }) => format!("the program was killed by signal {signal}"),
            _ => reason,
        };
        // One that says nothing more and stays is lost as well; how we make it leave is not how it ended.
        let _ = tell.send(ProgramExit { how, exit });
        // One that never started had no client.
        if let ProcessClients::Client(client) = clients
            && pipe.has_begun()
        {
            let exited = TransportEvent::Exited { client: Some(client.session_name), exit };
            let _ = dial.events.send((dial.generation, exited)).await;
        }
    }
    if left.is_err() {
        make_leave(&mut child, &group).await;
    }
}

/// Reads until the output ends or the program does. Whatever it started may hold its output open for ever, so the end of the
/// program is the end; what it wrote before is in the pipe already.
async fn until_ended(
    child: &mut Child,
    stdout: &mut BufReader<tokio::process::ChildStdout>,
    pipe: &Arc<Pipe>,
) -> String {
    let mut reading = std::pin::pin!(read(stdout, pipe));
    let exited = std::pin::pin!(child.wait());
    match select(&mut reading, exited).await {
        Either::Left((reason, _)) => reason,
        Either::Right(_) => {
            let rest = tokio::time::timeout(LAST_WORDS, reading).await;
            rest.unwrap_or_else(|_| "the program ended".into())
        }
    }
}

async fn read(stdout: &mut BufReader<tokio::process::ChildStdout>, pipe: &Arc<Pipe>) -> String {
    let mut lines = Lines::new(stdout, BYTES_MAX);
    loop {
        match lines.next().await {
            Ok(None) => return "the program closed its output".into(),
            Ok(Some(InputLine::Whole(line))) if line.trim_ascii().is_empty() => {}
            Ok(Some(InputLine::Whole(line))) => pipe.receive_text(&line).await,
            Ok(Some(InputLine::TooLong(scan))) => pipe.pass_over(&scan, Unread::TooLong),
            Err(error) => return format!("the program's output cannot be read: {error}"),
        }
    }
}

async fn read_stderr(stderr: tokio::process::ChildStderr, dial: Dial, client: Option<Arc<str>>, pipe: Arc<Pipe>) {
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
            let client = client.clone().or_else(|| pipe.tenant());
            let said = TransportEvent::Stderr { line: text, client };
            let _ = dial.events.send((dial.generation, said)).await;
        }
    }
}

/// Its stdin is closed, and it has stayed: it is asked, then it is made to. Its children go with it.
async fn make_leave(child: &mut Child, group: &ProcessGroup) {
    group.signal(Signal::TERM);
    let left = tokio::time::timeout(LEAVE_TIMEOUT, child.wait()).await;
    group.signal(Signal::KILL);
    if left.is_err() {
        let _ = child.wait().await;
    }
}

/// A process group that does not outlive its value.
struct ProcessGroup(Option<Pid>);

impl ProcessGroup {
    fn signal(&self, signal: Signal) {
        if let Some(pid) = self.0 {
            let _ = kill_process_group(pid, signal);
        }
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
    }
}
