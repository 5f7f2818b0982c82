//! One execution of an agent.

use std::sync::Arc;
use std::time::Duration;

use bowline_protocol::{LoggedEvent, Principal, RunId, SessionId};
use serde_json::{Map, Value};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::{Emitter, Functions, Input, Message, Stopped, Tools, WorkCommand};

/// One execution of an agent.
#[derive(Debug)]
pub struct Run {
    /// The session that it is a run of.
    pub session: SessionId,
    /// The name of this run. A run that goes on after a crash or a late reply keeps its name.
    pub id: RunId,
    /// Whose session it is.
    pub owner: Principal,
    /// What to work on.
    pub input: Input,
    /// The message to answer, as the conversation keeps it: also what it holds besides text. `None` for commands.
    pub message: Option<Message>,
    /// The conversation before the input, oldest first.
    pub conversation: Vec<Message>,
    /// The work of this session as the agent last kept it: its plan, with [`Emitter::keep_plan`].
    pub work: Option<Value>,
    /// What the agent last kept with [`Emitter::save_state`].
    pub state: Option<Value>,
    /// `config` of the session, as its creator wrote it.
    pub config: Map<String, Value>,
    /// What this run had logged before a crash; empty unless the agent [continues](crate::Agent::continues).
    pub logged: Vec<LoggedEvent>,
    /// Fires when the run is to stop.
    pub cancel: CancellationToken,
    /// How the run writes events into the session's log.
    pub emit: Emitter,
    /// Commands of the client, while the run goes on.
    pub commands: mpsc::Receiver<WorkCommand>,
    /// What the run may call of its caller's, with [`Emitter::call_functions`].
    pub functions: Functions,
    /// The tools that the run may call.
    pub tools: Arc<dyn Tools>,
}

impl Run {
    /// Sleeps; returns [`Stopped`] early if the run is cancelled.
    pub async fn pause(&self, time: Duration) -> Result<(), Stopped> {
        pause(&self.cancel, time).await
    }
}

/// Sleeps unless the token is cancelled first.
pub(crate) async fn pause(cancel: &CancellationToken, time: Duration) -> Result<(), Stopped> {
    if time.is_zero() {
        return if cancel.is_cancelled() { Err(Stopped) } else { Ok(()) };
    }
    match tokio::time::timeout(time, cancel.cancelled()).await {
        Ok(()) => Err(Stopped),
        Err(_elapsed) => Ok(()),
    }
}
