//! `bowline chat`: the driver. Everything that happens goes through one queue into the machine; its effects come out.

mod aside;
mod frames;
mod hear;
mod person;
mod screen;
mod state;
mod words;

use std::io::{BufRead, IsTerminal};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use futures_util::stream::SplitSink;
use futures_util::{SinkExt, StreamExt};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{timeout, timeout_at};
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::{Error as WsError, Message};
use tokio_tungstenite::{WebSocketStream, client_async};

use super::address::{Address, Wire};
use super::out;
use screen::Screen;
use state::Chat;
use words::{Effect, Happened, Leave, Moment, Options};

type Socket = WebSocketStream<Wire>;
type Sink = SplitSink<Socket, Message>;

const DIAL_TIMEOUT: Duration = Duration::from_secs(10);
/// A socket that does not take a small frame for this long is lost.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);
const GOODBYE_TIMEOUT: Duration = Duration::from_secs(1);
/// Frames that may wait for a slow terminal; beyond it the socket waits.
const QUEUE_MAX: usize = 256;

#[derive(Debug)]
pub struct Start {
    pub address: Address,
    /// The URL, if it is not the default one: then the way back needs it too.
    pub named_url: Option<String>,
    pub token: Option<String>,
    pub resume_token: Option<String>,
    pub session: Option<String>,
    pub take_over: bool,
    pub agent: Option<String>,
}

/// What came out of the world. Reports of a socket carry its number, so that those of an old one are left out.
enum Report {
    Opened(u64, Sink),
    Socket(u64, Happened),
    Person(Happened),
}

struct Driver {
    start: Start,
    chat: Chat,
    screen: Screen,
    reports: mpsc::Sender<Report>,
    socket_number: u64,
    sink: Option<Sink>,
    reader: Option<JoinHandle<()>>,
}

pub async fn run(start: Start) -> anyhow::Result<ExitCode> {
    let interactive = std::io::stdin().is_terminal() && out::is_terminal();
    let (reports, mut inbox) = mpsc::channel(QUEUE_MAX);
    spawn_stdin(reports.clone())?;
    tokio::spawn(watch_interrupts(reports.clone()));
    let options = Options {
        session: start.session.clone(),
        resume_token: start.resume_token.clone(),
        take_over: start.take_over,
        agent: start.agent.clone(),
        client_id: format!("chat-{:016x}", getrandom::u64()?),
        interactive,
    };
    let chat = Chat::new(options, Instant::now());
    let mut driver =
        Driver { start, chat, screen: Screen::new(interactive), reports, socket_number: 0, sink: None, reader: None };
    let mut next = Some(Happened::Start);
    loop {
        if let Some(input) = next.take()
            && let Some(leave) = driver.feed(input).await?
        {
            return driver.leave(leave, interactive).await;
        }
        next = driver.wait(&mut inbox).await;
    }
}

impl Driver {
    /// The next thing that happens, or the machine's own timeout.
    async fn wait(&mut self, inbox: &mut mpsc::Receiver<Report>) -> Option<Happened> {
        let report = match self.chat.poll_timeout() {
            Some(deadline) => match timeout_at(deadline.into(), inbox.recv()).await {
                Ok(report) => report,
                Err(_) => return Some(Happened::Timeout),
            },
            None => inbox.recv().await,
        };
        match report? {
            Report::Opened(number, sink) if number == self.socket_number => {
                self.sink = Some(sink);
                Some(Happened::Opened)
            }
            Report::Socket(number, input) if number == self.socket_number => Some(input),
            Report::Opened(..) | Report::Socket(..) => None,
            Report::Person(input) => {
                if matches!(input, Happened::Line(_)) {
                    self.screen.typed();
                }
                Some(input)
            }
        }
    }

    /// Tells the machine and does what it says. A send that fails is one more thing to tell it.
    async fn feed(&mut self, input: Happened) -> anyhow::Result<Option<Leave>> {
        let mut next = Some(input);
        while let Some(input) = next.take() {
            let at = Moment { now: Instant::now(), chance: super::chance() };
            for effect in self.chat.handle(at, input) {
                match effect {
                    Effect::Dial => self.dial(),
                    Effect::Hangup => self.hang_up(),
                    Effect::Send(frame) => {
                        if let Err(reason) = self.send(frame).await {
                            next = Some(Happened::Closed { code: None, reason });
                        }
                    }
                    Effect::Show(show) => self.screen.show(&show)?,
                    Effect::Leave(leave) => return Ok(Some(leave)),
                }
            }
        }
        Ok(None)
    }

    fn dial(&mut self) {
        self.socket_number += 1;
        let (number, reports) = (self.socket_number, self.reports.clone());
        let (address, token) = (self.start.address.clone(), self.start.token.clone());
        self.reader = Some(tokio::spawn(async move {
            match connect(&address, token.as_deref()).await {
                Ok(socket) => read_socket(number, socket, &reports).await,
                Err(failed) => drop(reports.send(Report::Socket(number, failed)).await),
            }
        }));
    }

    /// Says goodbye in the background: the machine goes on at once, and a dead socket cannot hold it up.
    fn hang_up(&mut self) {
        self.socket_number += 1;
        let (sink, reader) = (self.sink.take(), self.reader.take());
        tokio::spawn(async move {
            if let Some(mut sink) = sink {
                let _ = timeout(GOODBYE_TIMEOUT, sink.close()).await;
            }
            // A silent socket would be read for ever, and the server would take us for alive.
            if let Some(reader) = reader {
                reader.abort();
            }
        });
    }

    async fn send(&mut self, frame: String) -> Result<(), String> {
        let Some(sink) = &mut self.sink else { return Ok(()) };
        match timeout(SEND_TIMEOUT, sink.send(Message::text(frame))).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("the connection takes nothing any more".into()),
        }
    }

    async fn leave(mut self, leave: Leave, interactive: bool) -> anyhow::Result<ExitCode> {
        if let Some(mut sink) = self.sink.take() {
            let _ = timeout(GOODBYE_TIMEOUT, sink.close()).await;
        }
        self.screen.finish()?;
        match leave {
            Leave::Failed(why) => anyhow::bail!(why),
            Leave::AfterErrors => return Ok(ExitCode::FAILURE),
            Leave::Done => {}
        }
        if let (true, Some(session)) = (interactive, self.chat.session()) {
            let url = self.start.named_url.as_ref().map(|url| format!(" {url}")).unwrap_or_default();
            let proof = self.chat.resume_token().map(|token| format!(" --resume-token {token}")).unwrap_or_default();
            out::line(&out::dim(&format!("· to come back: bowline chat{url} --session {session}{proof}")))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

async fn connect(address: &Address, token: Option<&str>) -> Result<Socket, Happened> {
    let url = &address.ws_url();
    let failed = |reason: String, fatal: bool| Happened::DialFailed { reason, fatal };
    let mut request = url.as_str().into_client_request().map_err(|error| failed(format!("{url}: {error}"), true))?;
    if let Some(token) = token {
        let value = format!("Bearer {token}").parse();
        let value = value.map_err(|_| failed("the token holds characters that no header can carry".into(), true))?;
        request.headers_mut().insert(::http::header::AUTHORIZATION, value);
    }
    let dialled = async { client_async(request, address.dial().await?).await };
    match timeout(DIAL_TIMEOUT, dialled).await {
        Ok(Ok((socket, _))) => Ok(socket),
        Ok(Err(WsError::Http(response))) => Err(match response.status().as_u16() {
            401 | 403 => failed(
                format!("{url} refused us ({}). Give a valid token with --token or BOWLINE_TOKEN.", response.status()),
                true,
            ),
            404 | 405 | 426 => {
                failed(format!("there is no Bowline at {url} ({}); the door is usually /ws", response.status()), true)
            }
            _ => failed(format!("{url} answered {}", response.status()), false),
        }),
        Ok(Err(error)) => Err(failed(format!("cannot reach {url}: {error}"), false)),
        Err(_) => Err(failed(format!("cannot reach {url}: no answer"), false)),
    }
}

/// Reads until the socket ends, and tells how it did.
async fn read_socket(number: u64, socket: Socket, reports: &mpsc::Sender<Report>) {
    let (sink, mut stream) = socket.split();
    if reports.send(Report::Opened(number, sink)).await.is_err() {
        return;
    }
    let closed = |code, reason| Happened::Closed { code, reason };
    loop {
        let input = match stream.next().await {
            Some(Ok(Message::Text(text))) => Happened::Frame(text.as_str().to_owned()),
            Some(Ok(Message::Close(Some(frame)))) => closed(Some(frame.code.into()), frame.reason.as_str().to_owned()),
            Some(Ok(Message::Close(None))) | None => closed(None, String::new()),
            Some(Ok(_)) => Happened::Alive,
            Some(Err(error)) => closed(None, format!("the connection broke: {error}")),
        };
        let last = matches!(input, Happened::Closed { .. });
        if reports.send(Report::Socket(number, input)).await.is_err() || last {
            return;
        }
    }
}

/// Reading a terminal blocks, and cannot be interrupted, so it has a thread of its own that ends with the process.
fn spawn_stdin(reports: mpsc::Sender<Report>) -> std::io::Result<()> {
    let read = move || {
        for line in std::io::stdin().lock().lines() {
            let Ok(line) = line else { break };
            if reports.blocking_send(Report::Person(Happened::Line(line))).is_err() {
                return;
            }
        }
        let _ = reports.blocking_send(Report::Person(Happened::NoMoreLines));
    };
    std::thread::Builder::new().name("stdin".into()).spawn(read).map(drop)
}

async fn watch_interrupts(reports: mpsc::Sender<Report>) {
    while tokio::signal::ctrl_c().await.is_ok() {
        if reports.send(Report::Person(Happened::Interrupt)).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod break_tests;
#[cfg(test)]
mod person_tests;
#[cfg(test)]
mod story;
