//! What a client may say: reads one text frame into a typed request, or says which field is wrong.
//!
//! Generous in what is accepted (a cursor has five spellings in the wild), strict about types.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::fields::{ContentFields, cursor_in, leniently, seq_of, text_of, value_of};
use super::names;
pub use super::private::{Content, Secret};
use crate::error::{ErrorCode, Refusal};
use crate::id::{ClientId, MessageId, SessionId, StepId};
use crate::json;
use crate::position::Cursor;

/// One client frame. `session: None` means "the only one of this connection".
pub enum ClientFrame {
    CreateSession {
        client_id: Option<ClientId>,
        app_version: Option<String>,
        agent: Option<String>,
        config: Map<String, Value>,
    },
    Message {
        session: Option<SessionId>,
        message_id: Option<MessageId>,
        content: Content,
    },
    Response {
        session: Option<SessionId>,
        step_id: StepId,
        confirmed: bool,
        tasks: Option<Value>,
        reason: Option<String>,
    },
    Cancel {
        session: Option<SessionId>,
        reason: Option<String>,
    },
    Ack {
        session: Option<SessionId>,
        cursor: Option<Cursor>,
        received_count: u64,
        gap_detected: bool,
    },
    Reconnect(Attach),
    /// A recovery without state: as `Reconnect`, but failures are sent as `error.recovery_failed`.
    Recover(Attach),
    /// The long way back, with state.
    Restore {
        signed_state: Content,
        attach: Attach,
    },
    RequestState {
        session: Option<SessionId>,
        options: Map<String, Value>,
    },
    Plan {
        session: Option<SessionId>,
        command: PlanCommand,
    },
    WatchTask {
        task_id: String,
        last_message_id: Option<String>,
        /// Proof that the task is the caller's, where neither its name nor an attached session is.
        resume_token: Option<Secret>,
    },
    UnwatchTask {
        task_id: String,
    },
    Authenticate {
        token: Secret,
    },
    EndSession {
        session: Option<SessionId>,
    },
    Pong,
}

/// A frame that cannot be read: why, and what of it could be read all the same, so that the answer reaches the request that waits for it.
#[derive(Debug)]
pub struct BadFrame {
    pub refusal: Refusal,
    /// The session that it names.
    pub session: Option<SessionId>,
    /// It asked for the long way back, whose failures have a frame of their own.
    pub recovering: bool,
}

/// What a client asks when it comes back to a session.
#[derive(Debug, Default)]
pub struct Attach {
    pub session: Option<SessionId>,
    pub cursor: Option<Cursor>,
    pub client_id: Option<ClientId>,
    pub resume_token: Option<Secret>,
    pub observe: bool,
    pub take_over: bool,
}

/// What a client may ask of a plan → solve → aggregate run.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub enum PlanCommand {
    CancelTask { task_id: String },
    RestartTask { task_id: String },
    CancelPlan { reason: Option<String> },
    Replan { question: Option<String> },
    SolveTasks { tasks: Value },
}

impl PlanCommand {
    /// The word for it in notices.
    pub fn action(&self) -> &'static str {
        match self {
            PlanCommand::CancelTask { .. } => "cancel_task",
            PlanCommand::RestartTask { .. } => "restart_task",
            PlanCommand::CancelPlan { .. } => "cancel_plan",
            PlanCommand::Replan { .. } => "replan",
            PlanCommand::SolveTasks { .. } => "solve_tasks",
        }
    }
}

impl std::fmt::Debug for PlanCommand {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PlanCommand({})", self.action())
    }
}

/// The outer shape of every client frame. Unknown fields are ignored; `null` is the same as absent.
#[derive(Deserialize)]
struct ClientEnvelope<'a> {
    #[serde(borrow)]
    event: Option<&'a RawValue>,
    #[serde(borrow)]
    session_id: Option<&'a RawValue>,
    #[serde(borrow)]
    content: Option<&'a RawValue>,
    #[serde(borrow)]
    metadata: Option<&'a RawValue>,
    #[serde(borrow)]
    step_id: Option<&'a RawValue>,
    #[serde(borrow)]
    message_id: Option<&'a RawValue>,
    #[serde(borrow)]
    task_id: Option<&'a RawValue>,
    #[serde(borrow)]
    signed_state: Option<&'a RawValue>,
    #[serde(borrow)]
    reason: Option<&'a RawValue>,
    #[serde(borrow)]
    seq: Option<&'a RawValue>,
    #[serde(borrow)]
    question: Option<&'a RawValue>,
    #[serde(borrow)]
    tasks: Option<&'a RawValue>,
    #[serde(borrow)]
    received_count: Option<&'a RawValue>,
    #[serde(borrow)]
    gap_detected: Option<&'a RawValue>,
}

impl std::fmt::Debug for ClientFrame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Request({})", self.event())
    }
}

impl ClientFrame {
    /// The name of the frame.
    pub fn event(&self) -> &'static str {
        match self {
            ClientFrame::CreateSession { .. } => names::CREATE_SESSION,
            ClientFrame::Message { .. } => names::MESSAGE,
            ClientFrame::Response { .. } => names::RESPONSE,
            ClientFrame::Cancel { .. } => names::CANCEL,
            ClientFrame::Ack { .. } => names::ACK,
            ClientFrame::Reconnect(_) => names::RECONNECT,
            ClientFrame::Recover(_) | ClientFrame::Restore { .. } => names::RECONNECT_WITH_STATE,
            ClientFrame::RequestState { .. } => names::REQUEST_STATE,
            ClientFrame::Plan { command, .. } => match command {
                PlanCommand::CancelTask { .. } => names::CANCEL_TASK,
                PlanCommand::RestartTask { .. } => names::RESTART_TASK,
                PlanCommand::CancelPlan { .. } => names::CANCEL_PLAN,
                PlanCommand::Replan { .. } => names::REPLAN,
                PlanCommand::SolveTasks { .. } => names::SOLVE_TASKS,
            },
            ClientFrame::WatchTask { .. } => names::WATCH_TASK,
            ClientFrame::UnwatchTask { .. } => names::UNWATCH_TASK,
            ClientFrame::Authenticate { .. } => names::AUTHENTICATE,
            ClientFrame::EndSession { .. } => names::END_SESSION,
            ClientFrame::Pong => names::PONG,
        }
    }

    /// Reads one text frame. `depth_max` bounds the nesting before anything is parsed.
    pub fn parse(text: &str, depth_max: usize) -> Result<ClientFrame, BadFrame> {
        let unreadable = |refusal| BadFrame { refusal, session: None, recovering: false };
        if json::depth(text, depth_max) > depth_max {
            let message = format!("The frame nests deeper than {depth_max} levels (limits.json_depth_max).");
            return Err(unreadable(Refusal::new(ErrorCode::InvalidJson, message)));
        }
        let envelope: ClientEnvelope<'_> =
            serde_json::from_str(text).map_err(|error| unreadable(unreadable_json(text, &error)))?;
        envelope.request().map_err(|refusal| BadFrame {
            refusal,
            session: envelope.session().ok().flatten(),
            recovering: leniently(envelope.event) == names::RECONNECT_WITH_STATE,
        })
    }
}

fn unreadable_json(text: &str, error: &serde_json::Error) -> Refusal {
    use serde_json::error::Category;
    match error.classify() {
        Category::Data if !text.trim_start().starts_with('{') => Refusal::field("frame", "must be one JSON object"),
        // All fields of the envelope are read as they are, so this can only be one that is there twice.
        Category::Data => {
            let message = error.to_string();
            Refusal::field(message.split('`').nth(1).unwrap_or("frame"), "is there more than once")
        }
        _ => Refusal::new(ErrorCode::InvalidJson, format!("The frame is not JSON: {error}.")),
    }
}

impl ClientEnvelope<'_> {
    fn request(&self) -> Result<ClientFrame, Refusal> {
        let event = text_of("event", self.event)?.ok_or_else(|| Refusal::field("event", "is missing"))?;
        if event == names::ACK {
            return Ok(self.ack());
        }
        let session = self.session()?;
        match event.as_str() {
            names::CREATE_SESSION => self.create_session(),
            names::MESSAGE => self.message(session),
            names::RESPONSE => self.response(session),
            names::CANCEL => Ok(ClientFrame::Cancel { session, reason: self.reason()? }),
            names::RECONNECT => Ok(ClientFrame::Reconnect(self.attach(session)?)),
            names::RECONNECT_WITH_STATE => self.reconnect_with_state(session),
            names::REQUEST_STATE => Ok(ClientFrame::RequestState { session, options: self.fields()?.0 }),
            names::CANCEL_TASK | names::RESTART_TASK | names::CANCEL_PLAN | names::REPLAN | names::SOLVE_TASKS => {
                Ok(ClientFrame::Plan { session, command: self.plan_command(&event)? })
            }
            names::WATCH_TASK => {
                let mut fields = self.fields()?;
                let last_message_id = match fields.0.get("last_message_id") {
                    None | Some(Value::Null) => None,
                    Some(Value::String(text)) => Some(text.clone()),
                    Some(number) if number.is_u64() => Some(number.to_string()),
                    Some(_) => {
                        let problem = "must be `<epoch>-<seq>` or a whole number";
                        return Err(Refusal::field("content.last_message_id", problem));
                    }
                };
                let resume_token = fields.text("resume_token")?.map(Secret::new);
                Ok(ClientFrame::WatchTask { task_id: self.task_id()?, last_message_id, resume_token })
            }
            names::UNWATCH_TASK => Ok(ClientFrame::UnwatchTask { task_id: self.task_id()? }),
            names::AUTHENTICATE => {
                let token =
                    self.fields()?.text("token")?.ok_or_else(|| Refusal::field("content.token", "is missing"))?;
                Ok(ClientFrame::Authenticate { token: Secret::new(token) })
            }
            names::END_SESSION => Ok(ClientFrame::EndSession { session }),
            names::PONG => Ok(ClientFrame::Pong),
            _ => Err(unknown_event(&event)),
        }
    }

    fn session(&self) -> Result<Option<SessionId>, Refusal> {
        let Some(text) = text_of("session_id", self.session_id)? else {
            return Ok(None);
        };
        SessionId::parse(&text).map(Some).ok_or_else(|| Refusal::field("session_id", "is not a session id"))
    }

    fn fields(&self) -> Result<ContentFields, Refusal> {
        match value_of("content", self.content)? {
            Value::Null => Ok(ContentFields(Map::new())),
            Value::Object(fields) => Ok(ContentFields(fields)),
            _ => Err(Refusal::field("content", "must be an object")),
        }
    }

    fn create_session(&self) -> Result<ClientFrame, Refusal> {
        let mut fields = self.fields()?;
        let config = match fields.0.remove("config").unwrap_or_default() {
            Value::Null => Map::new(),
            Value::Object(config) => config,
            _ => return Err(Refusal::field("content.config", "must be an object")),
        };
        let client_id = fields.client_id()?;
        let app_version = fields.text("app_version")?;
        Ok(ClientFrame::CreateSession { client_id, app_version, agent: fields.text("agent")?, config })
    }

    fn message(&self, session: Option<SessionId>) -> Result<ClientFrame, Refusal> {
        let message_id = match text_of("message_id", self.message_id)? {
            None => None,
            Some(text) => {
                Some(MessageId::parse(&text).ok_or_else(|| Refusal::field("message_id", "is empty or too long"))?)
            }
        };
        let raw =
            self.content.filter(|raw| raw.get() != "null").ok_or_else(|| Refusal::field("content", "is missing"))?;
        let content = Content::one_line(raw);
        if content.text().is_none() {
            value_of("content", Some(raw))?;
            return Err(Refusal::field("content", "must be text, or an object with `text`"));
        }
        Ok(ClientFrame::Message { session, message_id, content })
    }

    fn response(&self, session: Option<SessionId>) -> Result<ClientFrame, Refusal> {
        let mut fields = self.fields()?;
        let step = text_of("step_id", self.step_id)?.or(fields.text("step_id")?);
        let step_id = step
            .as_deref()
            .and_then(StepId::parse)
            .ok_or_else(|| Refusal::field("step_id", "is missing or malformed"))?;
        let verdict =
            ["confirmed", "approved"].iter().find_map(|key| fields.0.get(*key).filter(|value| !value.is_null()));
        let Some(Value::Bool(confirmed)) = verdict.cloned() else {
            return Err(Refusal::field("content.confirmed", "must be true or false"));
        };
        let tasks = self.tasks(&mut fields)?;
        if tasks.as_ref().is_some_and(|tasks| !tasks.is_array()) {
            return Err(Refusal::field("content.tasks", "must be a list"));
        }
        let reason = fields.text("reason")?.or(text_of("reason", self.reason)?);
        Ok(ClientFrame::Response { session, step_id, confirmed, tasks, reason })
    }

    /// An ack is never a bad frame: what cannot be understood is left out.
    fn ack(&self) -> ClientFrame {
        let session = self.session().ok().flatten();
        let content = leniently(self.content);
        let metadata = leniently(self.metadata);
        let cursor = cursor_in(&content)
            .or_else(|| seq_of(&content).map(Cursor::bare))
            .or_else(|| cursor_in(&metadata))
            .or_else(|| seq_of(&leniently(self.seq)).map(Cursor::bare));
        // What a client counts stands beside its cursor, wherever that is.
        let counted =
            |key: &str, outer| [content.get(key).cloned(), metadata.get(key).cloned(), Some(leniently(outer))];
        let gap_detected =
            counted("gap_detected", self.gap_detected).iter().flatten().find_map(Value::as_bool).unwrap_or(false);
        let received_count =
            counted("received_count", self.received_count).iter().flatten().find_map(Value::as_u64).unwrap_or(0);
        ClientFrame::Ack { session, cursor, received_count, gap_detected }
    }

    fn attach(&self, session: Option<SessionId>) -> Result<Attach, Refusal> {
        let mut fields = self.fields()?;
        let observe = match fields.text("mode")?.as_deref() {
            None | Some("hold") => false,
            Some("observe") => true,
            Some(_) => return Err(Refusal::field("content.mode", "must be \"observe\" or absent")),
        };
        Ok(Attach {
            session,
            cursor: fields.cursor()?,
            client_id: fields.client_id()?,
            resume_token: fields.text("resume_token")?.map(Secret::new),
            observe,
            take_over: fields.flag("take_over")?,
        })
    }

    fn reconnect_with_state(&self, session: Option<SessionId>) -> Result<ClientFrame, Refusal> {
        let inner =
            self.fields()?.0.remove("signed_state").filter(|state| !state.is_null()).map(|state| json::raw(&state));
        let state = self.signed_state.filter(|raw| raw.get() != "null").map(ToOwned::to_owned).or(inner);
        let Some(state) = state else {
            return Ok(ClientFrame::Recover(self.attach(session)?));
        };
        Ok(ClientFrame::Restore { signed_state: Content(state), attach: self.attach(session)? })
    }

    fn plan_command(&self, event: &str) -> Result<PlanCommand, Refusal> {
        Ok(match event {
            names::CANCEL_TASK => PlanCommand::CancelTask { task_id: self.task_id()? },
            names::RESTART_TASK => PlanCommand::RestartTask { task_id: self.task_id()? },
            names::CANCEL_PLAN => PlanCommand::CancelPlan { reason: self.reason()? },
            names::REPLAN => PlanCommand::Replan { question: self.question()? },
            _ => {
                let tasks = self.tasks(&mut self.fields()?)?.unwrap_or_default();
                let is_task = |task: &Value| task.is_object() || task.is_string();
                let full = tasks.as_array().is_some_and(|tasks| !tasks.is_empty() && tasks.iter().all(is_task));
                let problem = "must be a list of tasks, each an object or a title";
                full.then_some(PlanCommand::SolveTasks { tasks })
                    .ok_or_else(|| Refusal::field("content.tasks", problem))?
            }
        })
    }

    /// Tasks in the content, or at the top level, where some clients put them.
    fn tasks(&self, fields: &mut ContentFields) -> Result<Option<Value>, Refusal> {
        let inner = fields.0.remove("tasks").filter(|tasks| !tasks.is_null());
        let tasks = inner.map_or_else(|| value_of("tasks", self.tasks), Ok)?;
        Ok(Some(tasks).filter(|tasks| !tasks.is_null()))
    }

    fn question(&self) -> Result<Option<String>, Refusal> {
        if let Some(question) = text_of("question", self.question)? {
            return Ok(Some(question));
        }
        match value_of("content", self.content)? {
            Value::String(text) => Ok(Some(text)),
            _ => self.fields()?.text("question"),
        }
    }

    fn reason(&self) -> Result<Option<String>, Refusal> {
        if let Some(reason) = text_of("reason", self.reason)? {
            return Ok(Some(reason));
        }
        match value_of("content", self.content)? {
            Value::String(text) => Ok(Some(text).filter(|text| !text.is_empty())),
            _ => self.fields()?.text("reason"),
        }
    }

    fn task_id(&self) -> Result<String, Refusal> {
        let inner = match value_of("content", self.content)? {
            Value::Object(fields) => ContentFields(fields).scalar("task_id"),
            _ => None,
        };
        let outer = match value_of("task_id", self.task_id)? {
            Value::String(text) => Some(text),
            Value::Number(number) => Some(number.to_string()),
            _ => None,
        };
        outer.or(inner).filter(|id| !id.is_empty()).ok_or_else(|| Refusal::field("task_id", "is missing"))
    }
}

fn unknown_event(event: &str) -> Refusal {
    let shown: String = event.chars().take(60).collect();
    let nearest =
        names::CLIENT.iter().min_by_key(|name| distance(name, &shown)).filter(|name| distance(name, &shown) <= 4);
    let hint = nearest.map(|name| format!(" Did you mean `{name}`?")).unwrap_or_default();
    Refusal::new(ErrorCode::UnknownEvent, format!("There is no client event `{shown}`.{hint}"))
}

/// Edit distance, for hints. Inputs are short.
pub fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.bytes().enumerate() {
            let cost = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = cost.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::position::Seq;

    fn parse(text: &str) -> Result<ClientFrame, Refusal> {
        ClientFrame::parse(text, 64).map_err(|bad| bad.refusal)
    }

    fn ack_cursor(text: &str) -> Option<Cursor> {
        match parse(text).unwrap() {
            ClientFrame::Ack { cursor, .. } => cursor,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_ack_is_understood_in_all_its_shapes() {
        let five = Some(Cursor::bare(Seq::new(5).unwrap()));
        for frame in [
            r#"{"event":"user.ack","content":{"last_seq":5}}"#,
            r#"{"event":"user.ack","content":{"last_event_id":"5"}}"#,
            r#"{"event":"user.ack","content":5}"#,
            r#"{"event":"user.ack","metadata":{"last_seq":5}}"#,
            r#"{"event":"user.ack","seq":5}"#,
        ] {
            assert_eq!(ack_cursor(frame), five, "{frame}");
        }
        let precise = ack_cursor(r#"{"event":"user.ack","content":{"last_event_id":"ab-5","last_seq":3}}"#).unwrap();
        assert_eq!(precise.to_string(), "ab-5");
    }

    #[test]
    fn an_ack_is_never_a_bad_frame() {
        for frame in [
            r#"{"event":"user.ack"}"#,
            r#"{"event":"user.ack","session_id":7,"content":"x"}"#,
            r#"{"event":"user.ack","content":{"last_seq":-1}}"#,
            r#"{"event":"user.ack","content":{"last_seq":1.5}}"#,
        ] {
            assert_eq!(ack_cursor(frame), None, "{frame}");
        }
    }

    #[test]
    fn each_bad_frame_gets_the_code_and_the_field() {
        let cases = [
            ("{", ErrorCode::InvalidJson, ""),
            ("", ErrorCode::InvalidJson, ""),
            ("[]", ErrorCode::InvalidPayload, "frame"),
            ("7", ErrorCode::InvalidPayload, "frame"),
            ("{}", ErrorCode::InvalidPayload, "event"),
            (r#"{"event":7}"#, ErrorCode::InvalidPayload, "event"),
            (r#"{"event":"user.mesage"}"#, ErrorCode::UnknownEvent, "user.message"),
            (r#"{"event":"user.message"}"#, ErrorCode::InvalidPayload, "content"),
            (r#"{"event":"user.message","content":7}"#, ErrorCode::InvalidPayload, "content"),
            (r#"{"event":"user.message","content":"x","session_id":7}"#, ErrorCode::InvalidPayload, "session_id"),
            (r#"{"event":"user.message","content":"x","message_id":""}"#, ErrorCode::InvalidPayload, "message_id"),
            (r#"{"event":"user.response","content":{"confirmed":true}}"#, ErrorCode::InvalidPayload, "step_id"),
            (
                r#"{"event":"user.response","step_id":"s","content":{"confirmed":"yes"}}"#,
                ErrorCode::InvalidPayload,
                "confirmed",
            ),
            (r#"{"event":"user.reconnect","content":{"last_seq":-1}}"#, ErrorCode::InvalidPayload, "last_seq"),
            (r#"{"event":"user.reconnect","content":{"mode":"x"}}"#, ErrorCode::InvalidPayload, "mode"),
            (r#"{"event":"user.reconnect","event":"x"}"#, ErrorCode::InvalidPayload, "event"),
            (r#"{"event":"user.cancel","session_id":"a","session_id":"b"}"#, ErrorCode::InvalidPayload, "session_id"),
            (r#"{"event":"user.message","content":"\ud800"}"#, ErrorCode::InvalidPayload, "cannot be read"),
            (r#"{"event":"user.message","content":{"text":"x","n":1e400}}"#, ErrorCode::InvalidPayload, "out of range"),
            (
                r#"{"event":"user.create_session","content":{"config":1e400}}"#,
                ErrorCode::InvalidPayload,
                "out of range",
            ),
            (r#"{"event":"user.solve_tasks","content":{"tasks":[5]}}"#, ErrorCode::InvalidPayload, "content.tasks"),
            (r#"{"event":"user.solve_tasks","tasks":["a",null]}"#, ErrorCode::InvalidPayload, "content.tasks"),
        ];
        for (frame, code, part) in cases {
            let refusal = parse(frame).unwrap_err();
            assert_eq!(refusal.code, code, "{frame}: {refusal}");
            assert!(refusal.message.contains(part), "{frame}: {refusal}");
            let named = refusal.details.is_some_and(|details| details["field"].is_string());
            assert_eq!(named, code == ErrorCode::InvalidPayload, "{frame}: the field is named for programs too");
        }
    }

    #[test]
    fn what_could_be_read_of_a_bad_frame_is_kept_for_its_answer() {
        let bad = |text: &str| ClientFrame::parse(text, 64).unwrap_err();
        let frame = bad(r#"{"event":"user.reconnect_with_state","session_id":"sess_1","content":{"last_seq":-1}}"#);
        assert_eq!((frame.session.map(|id| id.to_string()).as_deref(), frame.recovering), (Some("sess_1"), true));
        let frame = bad(r#"{"event":"user.reconnect_with_state","session_id":7}"#);
        assert_eq!((frame.session, frame.recovering), (None, true));
        let frame = bad(r#"{"event":"user.message","session_id":"sess_1"}"#);
        assert!(frame.session.is_some() && !frame.recovering);
    }

    #[test]
    fn nesting_is_bounded_before_it_is_parsed() {
        let frame = format!(r#"{{"event":"user.message","content":{}1{}}}"#, "[".repeat(100_000), "]".repeat(100_000));
        assert_eq!(parse(&frame).unwrap_err().code, ErrorCode::InvalidJson);
    }

    #[test]
    fn old_and_careful_clients_come_back_alike() {
        let old =
            r#"{"event":"user.reconnect","session_id":"sess_1","content":{"last_seq":42,"last_event_id":"evt_999"}}"#;
        let ClientFrame::Reconnect(old) = parse(old).unwrap() else { panic!() };
        assert_eq!(old.cursor.unwrap(), Cursor::bare(Seq::new(42).unwrap()));
        let careful = r#"{"event":"user.reconnect","session_id":"sess_1","content":{"last_seq":42,"epoch":"e1"}}"#;
        let ClientFrame::Reconnect(careful) = parse(careful).unwrap() else { panic!() };
        assert_eq!(careful.cursor.unwrap().to_string(), "e1-42");
        for content in ["null", "{}", r#"{"last_event_id":"evt_999"}"#, r#"{"last_event_id":""}"#] {
            let bare = format!(r#"{{"event":"user.reconnect","session_id":"sess_1","content":{content}}}"#);
            assert!(matches!(parse(&bare).unwrap(), ClientFrame::Reconnect(Attach { cursor: None, .. })), "{content}");
        }
    }

    #[test]
    fn a_number_beyond_2_to_the_53_is_far_ahead_and_not_a_float() {
        let ClientFrame::Reconnect(attach) =
            parse(r#"{"event":"user.reconnect","content":{"last_seq":18446744073709551616}}"#).unwrap()
        else {
            panic!()
        };
        assert_eq!(attach.cursor.unwrap().seq, Seq::MAX);
    }
}
