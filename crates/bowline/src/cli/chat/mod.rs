//! `bowline chat`: a link to one session, what a person types, and a screen.

mod aside;
mod hear;
mod interface;
mod person;
mod screen;
mod state;

use std::io::{BufRead, IsTerminal};
use std::process::ExitCode;

use bowline_client::{Address, AttachTarget, Client, LinkConfig, SessionTarget, WhenGone};
use bowline_env::{clock, entropy};
use serde_json::Map;
use tokio::sync::mpsc;
use tokio::time::sleep_until;

use super::out;
use interface::{ChatEffect, ChatInput, Leave, Options};
use screen::Screen;
use state::Chat;

/// Lines that may wait for a slow connection; beyond it the script waits.
const QUEUE_MAX: usize = 256;

#[derive(Debug)]
pub struct ChatStart {
    pub address: Address,
    /// The URL, if it is not the default one: then the way back needs it too.
    pub named_url: Option<String>,
    pub token: Option<String>,
    pub resume_token: Option<String>,
    pub session: Option<String>,
    pub take_over: bool,
    pub agent: Option<String>,
}

fn target(options: &Options) -> AttachTarget {
    match options.session.clone() {
        None => AttachTarget::New,
        Some(id) => AttachTarget::Session(SessionTarget {
            id,
            resume_token: options.resume_token.clone(),
            take_over: options.take_over,
            ..SessionTarget::default()
        }),
    }
}

fn link_config(options: &Options) -> LinkConfig {
    let version = concat!("bowline-chat/", env!("CARGO_PKG_VERSION"));
    let mut create = Map::from_iter([("app_version".to_owned(), version.into())]);
    if let Some(agent) = &options.agent {
        create.insert("agent".into(), agent.as_str().into());
    }
    // A script's next lines belong to the conversation that it began; a person can see that another one begins.
    let when_gone = if options.interactive { WhenGone::Create } else { WhenGone::Stop };
    LinkConfig { create, when_gone, ..LinkConfig::new(options.client_id.clone()) }
}

pub async fn run(start: ChatStart) -> anyhow::Result<ExitCode> {
    let interactive = std::io::stdin().is_terminal() && out::is_terminal();
    let (inputs, mut inbox) = mpsc::channel(QUEUE_MAX);
    spawn_stdin(inputs.clone())?;
    tokio::spawn(watch_interrupts(inputs));
    let options = Options {
        session: start.session,
        resume_token: start.resume_token,
        take_over: start.take_over,
        agent: start.agent,
        client_id: format!("chat-{:016x}", entropy::u64()),
        interactive,
    };
    let mut client = Client::new(start.address, start.token, link_config(&options));
    client.start(target(&options));
    let (mut chat, mut screen) = (Chat::new(options), Screen::new(interactive));
    let leave = loop {
        let redraw_at = chat.poll_timeout(client.link());
        let input = tokio::select! {
            Some(event) = client.next() => ChatInput::Link(event),
            Some(input) = inbox.recv() => {
                if matches!(input, ChatInput::Line(_)) {
                    screen.typed();
                }
                input
            }
            () = sleep_until(redraw_at.unwrap_or_else(clock::now).into()), if redraw_at.is_some() => ChatInput::Timeout,
        };
        let mut leave = None;
        for effect in chat.handle(client.link(), clock::now(), input) {
            match effect {
                ChatEffect::Show(show) => screen.show(&show)?,
                ChatEffect::Leave(why) => leave = leave.or(Some(why)),
            }
        }
        if let Some(leave) = leave {
            break leave;
        }
    };
    let session = client.session().map(ToOwned::to_owned);
    let resume_token = client.link().resume_token().map(ToOwned::to_owned);
    client.close().await;
    screen.finish()?;
    match leave {
        Leave::Failed(why) => anyhow::bail!(why),
        Leave::AfterErrors => return Ok(ExitCode::FAILURE),
        Leave::Done => {}
    }
    if let (true, Some(session)) = (interactive, session) {
        let url = start.named_url.map(|url| format!(" {url}")).unwrap_or_default();
        let proof = resume_token.map(|token| format!(" --resume-token {token}")).unwrap_or_default();
        out::line(&out::dim(&format!("· to come back: bowline chat{url} --session {session}{proof}")))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Reading a terminal blocks, and cannot be interrupted, so it has a thread of its own that ends with the process.
fn spawn_stdin(inputs: mpsc::Sender<ChatInput>) -> std::io::Result<()> {
    let read = move || {
        for line in std::io::stdin().lock().lines() {
            let Ok(line) = line else { break };
            if inputs.blocking_send(ChatInput::Line(line)).is_err() {
                return;
            }
        }
        let _ = inputs.blocking_send(ChatInput::NoMoreLines);
    };
    std::thread::Builder::new().name("stdin".into()).spawn(read).map(drop)
}

async fn watch_interrupts(inputs: mpsc::Sender<ChatInput>) {
    while tokio::signal::ctrl_c().await.is_ok() {
        if inputs.send(ChatInput::Interrupt).await.is_err() {
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
