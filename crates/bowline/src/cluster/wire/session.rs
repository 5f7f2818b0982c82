//! What nodes say about sessions, as it is written: the names here are the format, whatever the session's own types are called.

use std::time::{Duration, Instant};

use bowline_api::{Reply, WorkCommand};
use bowline_env::clock;
use bowline_protocol::frame::{Control, PlanCommand, client::Content};
use bowline_protocol::{
    ClientId, Cursor, Extent, LogId, MessageId, OperationId, Principal, Refusal, Seq, SessionId, StepId, TaskId,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::functions::ReturnedOutputs;
use super::resume::CursorVerdict;
use crate::session::export::ExportOptions;
use crate::session::operations::{Order, OrderedBy};
use crate::session::restore::{Restored, RestoredFrom};
use crate::session::{AttachOrigin, AttachRequest, CommandOutcome, Grant, Mail, Owed, SessionRequest};
use crate::{secret::Presented, task::AcceptedOperation};

#[derive(Serialize, Deserialize)]
pub enum SessionAsk {
    Attach(Box<AttachAsk>),
    Detach,
    Alive,
    Message {
        message_id: Option<MessageId>,
        #[serde(default)]
        also: Option<MessageId>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        behind: Option<Seq>,
        content: Content,
    },
    Regenerate {
        by: String,
        replaces: Option<MessageId>,
    },
    Response {
        step_id: StepId,
        reply: PersonReply,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        request: Option<Content>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        announce: Option<Seq>,
    },
    Returned(Box<ReturnedOutputs>),
    WebhookTold {
        turn: Seq,
        question: Option<Seq>,
    },
    Cancel {
        by: String,
        reason: Option<String>,
        turn: Option<Seq>,
    },
    Plan {
        by: String,
        command: PlanCommand,
    },
    Operate(Box<OperationOrder>),
    OperationEnded {
        task: TaskId,
        content: Box<Value>,
    },
    Export(ExportChoice),
    Ack {
        seq: Seq,
    },
    End {
        by: String,
    },
    Prove,
    Expire,
    Verify,
}

#[derive(Serialize, Deserialize)]
pub struct AttachAsk {
    principal: Principal,
    way: AttachWay,
    cursor: Option<Cursor>,
    client_id: Option<ClientId>,
    proof: Option<String>,
    observe: bool,
    take_over: bool,
    restored: Option<Box<RestoredState>>,
    /// How many microseconds ago the client asked: an instant means nothing elsewhere.
    since: u64,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
pub enum AttachWay {
    Created,
    Reconnect,
    Recover,
    Restored,
}

#[derive(Serialize, Deserialize)]
pub struct RestoredState {
    original: SessionId,
    new: SessionId,
    step: u64,
    messages: usize,
    source: RestoreSource,
    last_seq: Seq,
    before: Option<SessionId>,
    warnings: Vec<String>,
}

#[derive(Serialize, Deserialize)]
pub enum RestoreSource {
    Live,
    Snapshot,
}

#[derive(Serialize, Deserialize)]
pub struct PersonReply {
    confirmed: bool,
    tasks: Option<Value>,
    reason: Option<String>,
}

#[derive(Serialize, Deserialize)]
pub struct ExportChoice {
    memory: bool,
    plan: bool,
    work: bool,
    token: bool,
    plan_asked: bool,
}

#[derive(Serialize, Deserialize)]
pub struct OperationOrder {
    tool_name: Option<String>,
    args: Value,
    key: Option<MessageId>,
    #[serde(default)]
    idempotency_key: Option<MessageId>,
    operation_id: Option<OperationId>,
    by: OrderSource,
}

#[derive(Serialize, Deserialize)]
pub enum OrderSource {
    Caller,
    Agent { step: Option<StepId> },
    Producer,
}

#[derive(Serialize, Deserialize)]
pub enum SessionMail {
    Granted(Box<AttachGrant>),
    Control(Control),
    Refused { session: SessionId, refusal: Refusal, way: Option<AttachWay> },
    Cut { session: SessionId },
    TakenOver { session: SessionId },
    Superseded { session: SessionId, by: SessionId },
    Probe { session: SessionId },
    Over { session: SessionId, last: Seq },
}

#[derive(Serialize, Deserialize)]
pub struct AttachGrant {
    session: SessionId,
    claimed: SessionId,
    log: LogId,
    observe: bool,
    way: AttachWay,
    extent: Extent,
    resume: CursorVerdict,
    position: Option<Seq>,
    /// How many microseconds ago the client asked.
    since: u64,
    greeting: Control,
}

#[derive(Serialize, Deserialize)]
pub enum SessionOutcome {
    Started { turn: Seq },
    Queued { position: usize, message_id: Option<MessageId> },
    Repeated { message_id: Option<MessageId>, turn: Option<Seq>, last: Option<Seq> },
    Cancelled { ran: bool },
    Plan { action: String, ok: bool },
    Operation(Box<OperationBegun>),
    Done,
}

#[derive(Serialize, Deserialize)]
pub struct OperationBegun {
    task_id: TaskId,
    operation_id: OperationId,
    tool_name: Option<String>,
}

impl SessionAsk {
    /// Whether the node that asks waits for what comes of it.
    pub fn is_awaited(&self) -> bool {
        let unanswered = matches!(
            self,
            SessionAsk::Detach | SessionAsk::Alive | SessionAsk::Ack { .. } | SessionAsk::Expire | SessionAsk::Verify
        );
        !unanswered
    }
}

fn micros_since(since: Instant) -> u64 {
    clock::since(since).as_micros() as u64
}

fn instant_before(micros: u64) -> Instant {
    let now = clock::now();
    now.checked_sub(Duration::from_micros(micros)).unwrap_or(now)
}

impl From<&SessionRequest> for SessionAsk {
    fn from(ask: &SessionRequest) -> Self {
        match ask {
            SessionRequest::Attach(request) => Self::Attach(Box::new((&**request).into())),
            SessionRequest::Detach => Self::Detach,
            SessionRequest::Alive => Self::Alive,
            SessionRequest::Message { message_id, also, behind, content } => {
                let (message_id, also) = (message_id.clone(), also.clone());
                Self::Message { message_id, also, behind: *behind, content: content.clone() }
            }
            SessionRequest::Regenerate { by, replaces } => {
                Self::Regenerate { by: by.clone(), replaces: replaces.clone() }
            }
            SessionRequest::Response { step_id, reply, request, announce } => {
                let Reply { confirmed, tasks, reason } = reply.clone();
                let reply = PersonReply { confirmed, tasks, reason };
                Self::Response { step_id: step_id.clone(), reply, request: request.clone(), announce: *announce }
            }
            SessionRequest::WebhookDelivered(Owed { turn, question }) => {
                Self::WebhookTold { turn: *turn, question: *question }
            }
            SessionRequest::Returned(returned) => Self::Returned(Box::new((&**returned).into())),
            SessionRequest::Cancel { by, reason, turn } => {
                Self::Cancel { by: by.clone(), reason: reason.clone(), turn: *turn }
            }
            SessionRequest::Command { by, command: WorkCommand::Plan(command) } => {
                Self::Plan { by: by.clone(), command: command.clone() }
            }
            SessionRequest::Operate(order) => Self::Operate(Box::new((&**order).into())),
            SessionRequest::OperationEnded { task, content } => {
                Self::OperationEnded { task: task.clone(), content: content.clone() }
            }
            SessionRequest::Export(options) => {
                let &ExportOptions { memory, context: plan, work, token, context_asked: plan_asked } = options;
                Self::Export(ExportChoice { memory, plan, work, token, plan_asked })
            }
            SessionRequest::Ack { seq } => Self::Ack { seq: *seq },
            SessionRequest::End { by } => Self::End { by: by.clone() },
            SessionRequest::Prove => Self::Prove,
            SessionRequest::Expire => Self::Expire,
            SessionRequest::Verify => Self::Verify,
        }
    }
}

impl SessionAsk {
    /// What is asked of the session of this name.
    pub fn of(self, session: &SessionId) -> SessionRequest {
        match self {
            SessionAsk::Attach(attach) => SessionRequest::Attach(Box::new(attach.of(session))),
            SessionAsk::Detach => SessionRequest::Detach,
            SessionAsk::Alive => SessionRequest::Alive,
            SessionAsk::Message { message_id, also, behind, content } => {
                SessionRequest::Message { message_id, also, behind, content }
            }
            SessionAsk::Regenerate { by, replaces } => SessionRequest::Regenerate { by, replaces },
            SessionAsk::Response { step_id, reply: PersonReply { confirmed, tasks, reason }, request, announce } => {
                SessionRequest::Response { step_id, reply: Reply { confirmed, tasks, reason }, request, announce }
            }
            SessionAsk::WebhookTold { turn, question } => SessionRequest::WebhookDelivered(Owed { turn, question }),
            SessionAsk::Returned(returned) => SessionRequest::Returned(Box::new((*returned).into())),
            SessionAsk::Cancel { by, reason, turn } => SessionRequest::Cancel { by, reason, turn },
            SessionAsk::Plan { by, command } => SessionRequest::Command { by, command: WorkCommand::Plan(command) },
            SessionAsk::Operate(order) => SessionRequest::Operate(Box::new((*order).into())),
            SessionAsk::OperationEnded { task, content } => SessionRequest::OperationEnded { task, content },
            SessionAsk::Export(ExportChoice { memory, plan, work, token, plan_asked }) => {
                SessionRequest::Export(ExportOptions { memory, context: plan, work, token, context_asked: plan_asked })
            }
            SessionAsk::Ack { seq } => SessionRequest::Ack { seq },
            SessionAsk::End { by } => SessionRequest::End { by },
            SessionAsk::Prove => SessionRequest::Prove,
            SessionAsk::Expire => SessionRequest::Expire,
            SessionAsk::Verify => SessionRequest::Verify,
        }
    }
}

impl From<&AttachRequest> for AttachAsk {
    fn from(request: &AttachRequest) -> AttachAsk {
        AttachAsk {
            principal: request.principal.clone(),
            way: request.origin.into(),
            cursor: request.cursor.clone(),
            client_id: request.client_id.clone(),
            proof: request.proof.as_ref().map(|proof| proof.0.clone()),
            observe: request.observe,
            take_over: request.take_over,
            restored: request.restored.as_deref().map(|restored| Box::new(restored.clone().into())),
            since: micros_since(request.since),
        }
    }
}

impl AttachAsk {
    fn of(self, session: &SessionId) -> AttachRequest {
        let AttachAsk { principal, way, cursor, client_id, proof, observe, take_over, restored, since } = self;
        AttachRequest {
            session: session.clone(),
            principal,
            origin: way.into(),
            cursor,
            client_id,
            proof: proof.map(Presented),
            observe,
            take_over,
            restored: restored.map(|restored| Box::new((*restored).into())),
            since: instant_before(since),
        }
    }
}

impl From<AttachOrigin> for AttachWay {
    fn from(origin: AttachOrigin) -> AttachWay {
        match origin {
            AttachOrigin::Created => AttachWay::Created,
            AttachOrigin::Reconnect => AttachWay::Reconnect,
            AttachOrigin::Recover => AttachWay::Recover,
            AttachOrigin::Restored => AttachWay::Restored,
        }
    }
}

impl From<AttachWay> for AttachOrigin {
    fn from(way: AttachWay) -> AttachOrigin {
        match way {
            AttachWay::Created => AttachOrigin::Created,
            AttachWay::Reconnect => AttachOrigin::Reconnect,
            AttachWay::Recover => AttachOrigin::Recover,
            AttachWay::Restored => AttachOrigin::Restored,
        }
    }
}

impl From<Restored> for RestoredState {
    fn from(restored: Restored) -> RestoredState {
        let Restored { original, new, step, messages, source, last_seq, before, warnings } = restored;
        let source = match source {
            RestoredFrom::Live => RestoreSource::Live,
            RestoredFrom::Snapshot => RestoreSource::Snapshot,
        };
        RestoredState { original, new, step, messages, source, last_seq, before, warnings }
    }
}

impl From<RestoredState> for Restored {
    fn from(restored: RestoredState) -> Restored {
        let RestoredState { original, new, step, messages, source, last_seq, before, warnings } = restored;
        let source = match source {
            RestoreSource::Live => RestoredFrom::Live,
            RestoreSource::Snapshot => RestoredFrom::Snapshot,
        };
        Restored { original, new, step, messages, source, last_seq, before, warnings }
    }
}

impl From<&Order> for OperationOrder {
    fn from(order: &Order) -> OperationOrder {
        OperationOrder {
            tool_name: order.tool_name.clone(),
            args: order.args.clone(),
            key: order.key.clone(),
            idempotency_key: order.idempotency_key.clone(),
            operation_id: order.operation_id.clone(),
            by: match &order.by {
                OrderedBy::Caller => OrderSource::Caller,
                OrderedBy::Agent { step } => OrderSource::Agent { step: step.clone() },
                OrderedBy::Producer => OrderSource::Producer,
            },
        }
    }
}

impl From<OperationOrder> for Order {
    fn from(order: OperationOrder) -> Order {
        let OperationOrder { tool_name, args, key, idempotency_key, operation_id, by } = order;
        let by = match by {
            OrderSource::Caller => OrderedBy::Caller,
            OrderSource::Agent { step } => OrderedBy::Agent { step },
            OrderSource::Producer => OrderedBy::Producer,
        };
        Order { tool_name, args, key, idempotency_key, operation_id, by }
    }
}

impl From<&Mail> for SessionMail {
    fn from(mail: &Mail) -> SessionMail {
        match mail {
            Mail::Granted(grant) => SessionMail::Granted(Box::new((&**grant).into())),
            Mail::Control(control) => SessionMail::Control(control.clone()),
            Mail::Refused { session, refusal, origin } => SessionMail::Refused {
                session: session.clone(),
                refusal: refusal.clone(),
                way: origin.map(AttachWay::from),
            },
            Mail::Cut { session } => SessionMail::Cut { session: session.clone() },
            Mail::TakenOver { session } => SessionMail::TakenOver { session: session.clone() },
            Mail::Superseded { session, by } => SessionMail::Superseded { session: session.clone(), by: by.clone() },
            Mail::Probe { session } => SessionMail::Probe { session: session.clone() },
            Mail::Over { session, last } => SessionMail::Over { session: session.clone(), last: *last },
        }
    }
}

impl From<SessionMail> for Mail {
    fn from(mail: SessionMail) -> Mail {
        match mail {
            SessionMail::Granted(grant) => Mail::Granted(Box::new((*grant).into())),
            SessionMail::Control(control) => Mail::Control(control),
            SessionMail::Refused { session, refusal, way } => {
                Mail::Refused { session, refusal, origin: way.map(AttachOrigin::from) }
            }
            SessionMail::Cut { session } => Mail::Cut { session },
            SessionMail::TakenOver { session } => Mail::TakenOver { session },
            SessionMail::Superseded { session, by } => Mail::Superseded { session, by },
            SessionMail::Probe { session } => Mail::Probe { session },
            SessionMail::Over { session, last } => Mail::Over { session, last },
        }
    }
}

impl From<&Grant> for AttachGrant {
    fn from(grant: &Grant) -> AttachGrant {
        AttachGrant {
            session: grant.session.clone(),
            claimed: grant.claimed.clone(),
            log: grant.log.clone(),
            observe: grant.observe,
            way: grant.origin.into(),
            extent: grant.extent.clone(),
            resume: grant.resume.into(),
            position: grant.position,
            since: micros_since(grant.since),
            greeting: grant.greeting.clone(),
        }
    }
}

impl From<AttachGrant> for Grant {
    fn from(grant: AttachGrant) -> Grant {
        let AttachGrant { session, claimed, log, observe, way, extent, resume, position, since, greeting } = grant;
        let (origin, resume, since) = (way.into(), resume.into(), instant_before(since));
        Grant { session, claimed, log, observe, origin, extent, resume, position, since, greeting }
    }
}

impl From<CommandOutcome> for SessionOutcome {
    fn from(outcome: CommandOutcome) -> SessionOutcome {
        match outcome {
            CommandOutcome::Started { turn } => SessionOutcome::Started { turn },
            CommandOutcome::Queued { position, message_id } => SessionOutcome::Queued { position, message_id },
            CommandOutcome::Repeated { message_id, turn, last } => SessionOutcome::Repeated { message_id, turn, last },
            CommandOutcome::Cancelled { ran } => SessionOutcome::Cancelled { ran },
            CommandOutcome::Commanded { action, ok } => SessionOutcome::Plan { action, ok },
            CommandOutcome::Operation(begun) => {
                let AcceptedOperation { task_id, operation_id, tool_name } = *begun;
                SessionOutcome::Operation(Box::new(OperationBegun { task_id, operation_id, tool_name }))
            }
            CommandOutcome::Done => SessionOutcome::Done,
        }
    }
}

impl From<SessionOutcome> for CommandOutcome {
    fn from(outcome: SessionOutcome) -> CommandOutcome {
        match outcome {
            SessionOutcome::Started { turn } => CommandOutcome::Started { turn },
            SessionOutcome::Queued { position, message_id } => CommandOutcome::Queued { position, message_id },
            SessionOutcome::Repeated { message_id, turn, last } => CommandOutcome::Repeated { message_id, turn, last },
            SessionOutcome::Cancelled { ran } => CommandOutcome::Cancelled { ran },
            SessionOutcome::Plan { action, ok } => CommandOutcome::Commanded { action, ok },
            SessionOutcome::Operation(begun) => {
                let OperationBegun { task_id, operation_id, tool_name } = *begun;
                CommandOutcome::Operation(Box::new(AcceptedOperation { task_id, operation_id, tool_name }))
            }
            SessionOutcome::Done => CommandOutcome::Done,
        }
    }
}
