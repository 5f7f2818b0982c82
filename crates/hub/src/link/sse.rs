//! HTTP+SSE of 2024-11-05, as a client only: one stream in, POSTs out.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bowline_core::backend::DialError;
use reqwest::header::HeaderMap;
use reqwest::{Response, Url};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::http_words::{parse, prepare, said, tell};
use super::pipe::{OUT_QUEUE, Outgoing, Pipe};
use super::{Dial, LinkEvent, MESSAGE_BYTES_MAX, passing};
use crate::era::Era;
use crate::sse::Parser;

const ENDPOINT_TIMEOUT: Duration = Duration::from_secs(10);

pub async fn dial(url: &Url, headers: &BTreeMap<String, String>, dial: Dial) -> Result<Arc<Pipe>, DialError> {
    let headers = prepare(url, headers, &dial)?;
    let request = dial.http.get(url.clone()).headers(headers.clone()).header("accept", "text/event-stream");
    let response = request.send().await.map_err(|error| passing(tell(error)))?;
    if !response.status().is_success() {
        return Err(passing(said(response.status())));
    }
    let closed = CancellationToken::new();
    let guard = closed.clone().drop_guard();
    let (out, outgoing) = mpsc::channel(OUT_QUEUE);
    let pipe = Arc::new(Pipe::new(out, &dial, closed.clone()));
    let (endpoint, told) = oneshot::channel();
    tokio::spawn(follow(response, pipe.clone(), endpoint, dial.clone(), closed.clone()));
    let endpoint = tokio::time::timeout(ENDPOINT_TIMEOUT, told).await;
    let endpoint = endpoint.ok().and_then(Result::ok).ok_or_else(|| passing("it named no endpoint for messages"))?;
    let target = url.join(&endpoint).ok().filter(|target| target.origin() == url.origin());
    // Elsewhere could be anywhere, with our headers.
    let target = target.ok_or_else(|| passing("it named an endpoint on another host"))?;
    tokio::spawn(send(target, headers, outgoing, pipe.clone(), dial.clone(), closed));
    pipe.shake_hands(Some(Era::Legacy)).await?;
    pipe.renew(&dial.renewals).await;
    guard.disarm();
    Ok(pipe)
}

async fn follow(
    mut response: Response,
    pipe: Arc<Pipe>,
    endpoint: oneshot::Sender<String>,
    dial: Dial,
    closed: CancellationToken,
) {
    let mut endpoint = Some(endpoint);
    let mut parser = Parser::new(MESSAGE_BYTES_MAX);
    let read = async {
        loop {
            let chunk = match response.chunk().await {
                Ok(Some(chunk)) => chunk,
                Ok(None) => return "its stream ended".to_owned(),
                Err(error) => return tell(error),
            };
            let Ok(events) = parser.push(&chunk) else { return "it sent a message without end".to_owned() };
            for event in events {
                match (event.kind.as_deref(), endpoint.take()) {
                    (Some("endpoint"), Some(told)) => drop(told.send(event.data)),
                    (_, kept) => {
                        endpoint = kept;
                        if let Some(message) = parse(event.data.as_bytes()) {
                            pipe.receive(message).await;
                        }
                    }
                }
            }
        }
    };
    let reason = closed.run_until_cancelled(read).await;
    pipe.lost();
    if let Some(reason) = reason {
        let _ = dial.events.send((dial.generation, LinkEvent::Lost { reason, exit: None })).await;
    }
}

async fn send(
    target: Url,
    headers: HeaderMap,
    mut outgoing: mpsc::Receiver<Outgoing>,
    pipe: Arc<Pipe>,
    dial: Dial,
    closed: CancellationToken,
) {
    while let Some(Some(message)) = closed.run_until_cancelled(outgoing.recv()).await {
        let request = dial.http.post(target.clone()).headers(headers.clone());
        message.set_left(true);
        let sent = request.header("content-type", "application/json").body(message.text.get().to_owned()).send().await;
        let trouble = match sent {
            Ok(response) if response.status().is_success() => continue,
            Ok(response) => said(response.status()),
            Err(error) => {
                message.set_left(!error.is_connect());
                tell(error)
            }
        };
        if !closed.is_cancelled() {
            pipe.lost();
            let lost = LinkEvent::Lost { reason: trouble, exit: None };
            let _ = dial.events.send((dial.generation, lost)).await;
        }
        return;
    }
}
