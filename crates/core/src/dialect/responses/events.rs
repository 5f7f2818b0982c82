//! The mapping, row by row: what each kind of agent event becomes.

use bowline_protocol::event::names;
use bowline_protocol::{EventView, Recorded, json};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::item::{Flow, ItemStatus, OutputItem, Part};
use super::object::{Failure, Incomplete, State, Usage};
use super::output::{Call, CallResult, OpenText};
use super::text::{Text, rest, string};
use super::{ResponseProjector, Wait, logged_at};

/// What a call is named if nothing says its tool.
const UNNAMED_TOOL: &str = "unknown";
/// What an error is called that has no code.
const UNNAMED_ERROR: &str = "AGENT_FAILED";

/// What the mapping looks at in an event's metadata; `null` is as good as absent.
#[derive(Default, Deserialize)]
struct Facts<'a> {
    #[serde(borrow, default)]
    index: Option<&'a RawValue>,
    #[serde(borrow, default)]
    part: Option<&'a RawValue>,
    #[serde(borrow, default)]
    refusal: Option<&'a RawValue>,
    #[serde(borrow, default)]
    tool: Option<&'a RawValue>,
    #[serde(borrow, default)]
    server: Option<&'a RawValue>,
    #[serde(borrow, default)]
    args: Option<&'a RawValue>,
    #[serde(borrow, default)]
    status: Option<&'a RawValue>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
    /// Whether the function is the caller's.
    #[serde(borrow, default)]
    caller: Option<&'a RawValue>,
    #[serde(borrow, default)]
    scope: Option<&'a RawValue>,
    #[serde(borrow, default)]
    tool_name: Option<&'a RawValue>,
    #[serde(borrow, default)]
    tool_args: Option<&'a RawValue>,
    #[serde(borrow, default)]
    plan_summary: Option<&'a RawValue>,
    #[serde(borrow, default)]
    tasks: Option<&'a RawValue>,
    #[serde(borrow, default)]
    usage: Option<&'a RawValue>,
    #[serde(borrow, default)]
    finish_reason: Option<&'a RawValue>,
    #[serde(borrow, default)]
    finish: Option<&'a RawValue>,
    #[serde(borrow, default)]
    streamed: Option<&'a RawValue>,
    #[serde(borrow, default)]
    error_code: Option<&'a RawValue>,
}

impl<'a> Facts<'a> {
    fn is_callers(&self) -> bool {
        self.caller.is_some_and(|raw| raw.get() == "true")
    }

    fn of(metadata: Option<&'a RawValue>) -> Facts<'a> {
        let object = metadata.filter(|raw| raw.get().starts_with('{'));
        object.and_then(|raw| serde_json::from_str(raw.get()).ok()).unwrap_or_default()
    }
}

/// Where in the output something happened.
#[derive(Serialize)]
struct At<'a> {
    item_id: &'a str,
    output_index: usize,
}

#[derive(Serialize)]
struct ItemEvent<'a> {
    output_index: usize,
    item: &'a OutputItem<'a>,
}

/// A piece of a message or a thought, or how far it is.
#[derive(Serialize)]
struct TextEvent<'a> {
    item_id: &'a str,
    output_index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_index: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    summary_index: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    part: Option<Part<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delta: Option<&'a Text>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a Text>,
    #[serde(skip_serializing_if = "Option::is_none")]
    refusal: Option<&'a Text>,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<[(); 0]>,
}

impl<'a> TextEvent<'a> {
    fn of(open_text: &'a OpenText) -> TextEvent<'a> {
        let thought = open_text.flow == Flow::Reasoning;
        TextEvent {
            item_id: &open_text.id,
            output_index: open_text.index,
            content_index: (!thought).then_some(0),
            summary_index: thought.then_some(0),
            part: None,
            delta: None,
            text: None,
            refusal: None,
            logprobs: None,
        }
    }
}

#[derive(Serialize)]
struct ArgumentsEvent<'a> {
    item_id: &'a str,
    output_index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    delta: Option<&'a Text>,
    #[serde(skip_serializing_if = "Option::is_none")]
    arguments: Option<&'a Text>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
}

impl ResponseProjector {
    pub(super) fn handle_view(&mut self, event: &Recorded, view: &EventView<'_>) {
        let facts = Facts::of(view.metadata);
        match view.event {
            names::THINKING => self.thinking(event, view, &facts),
            names::PARTIAL_ANSWER => {
                let refuses = facts.refusal.is_some_and(|raw| raw.get() == "true");
                let flow = if refuses { Flow::Refusal } else { Flow::Text };
                self.speak(event, flow, facts.part, &Text::of(view.content));
            }
            names::TOOL_CALL if facts.is_callers() => self.function_call(event, view, &facts),
            names::TOOL_CALL => self.tool_call(event, view, &facts),
            // The caller knows what it sent.
            names::TOOL_RESULT if facts.is_callers() => {}
            names::TOOL_RESULT => self.tool_result(event, view, &facts),
            names::OPERATION_STARTED => self.operation_started(event, view, &facts),
            names::USER_CONFIRM => self.question(event, view, &facts),
            names::FINAL_ANSWER => self.final_answer(event, view, &facts),
            names::CANCELLED => {
                self.close_all();
                // The published clients know no event of its own for this, and one of them fails at events it does not know.
                self.end("response.incomplete", &State::of("cancelled"));
            }
            names::ERROR => {
                self.close_all();
                let code = facts.error_code.and_then(string);
                let message = Text::of(view.content);
                let failure = Failure { code: code.as_deref().unwrap_or(UNNAMED_ERROR), message: &message };
                self.end("response.failed", &State { error: Some(failure), ..State::of("failed") });
            }
            // The API has no event for anything else, and clients take none of our own making.
            _ => {}
        }
    }

    fn thinking(&mut self, event: &Recorded, view: &EventView<'_>, facts: &Facts<'_>) {
        // Without an index it is a whole thought: it extends nothing, and nothing will extend it.
        let whole = facts.index.is_none() && facts.part.is_none();
        if whole {
            self.end_text(ItemStatus::Completed);
        }
        self.speak(event, Flow::Reasoning, facts.part, &Text::of(view.content));
        if whole {
            self.end_text(ItemStatus::Completed);
        }
    }

    /// A delta: of what is being said, or of something new.
    fn speak(&mut self, event: &Recorded, flow: Flow, part: Option<&RawValue>, delta: &Text) {
        let part = part.and_then(string);
        let is_same = |open_text: &OpenText| open_text.flow == flow && open_text.part.as_deref() == part.as_deref();
        if !self.output.open_text.as_ref().is_some_and(is_same) {
            self.end_text(ItemStatus::Completed);
            let (id, index) = self.output.open(flow.prefix(), event.seq);
            let item = flow.item(&id, ItemStatus::InProgress, None);
            self.say("response.output_item.added", &ItemEvent { output_index: index, item: &item });
            let part = part.map(|part| part.into());
            let open_text = OpenText { flow, part, id, index, text: Text::default() };
            let empty = Some(flow.part(&open_text.text));
            self.say(flow.part_added(), &TextEvent { part: empty, ..TextEvent::of(&open_text) });
            self.output.open_text = Some(open_text);
            if flow == Flow::Text {
                self.output.last.clear();
            }
        }
        let Some(mut open_text) = self.output.open_text.take() else { return };
        if !delta.is_empty() {
            let logprobs = (flow == Flow::Text).then_some([]);
            self.say(flow.delta(), &TextEvent { delta: Some(delta), logprobs, ..TextEvent::of(&open_text) });
            open_text.text.push(delta);
        }
        if flow == Flow::Text {
            let delta = delta.decoded();
            self.output.seen.push_str(&delta);
            self.output.last.push_str(&delta);
        }
        self.output.open_text = Some(open_text);
    }

    /// What is being said is all of it: something else comes.
    fn end_text(&mut self, status: ItemStatus) {
        let Some(open_text) = self.output.open_text.take() else { return };
        let (flow, text) = (open_text.flow, Some(&open_text.text));
        let bare = || TextEvent::of(&open_text);
        let done = match flow {
            Flow::Text => TextEvent { text, logprobs: Some([]), ..bare() },
            Flow::Refusal => TextEvent { refusal: text, ..bare() },
            Flow::Reasoning => TextEvent { text, ..bare() },
        };
        self.say(flow.done(), &done);
        self.say(flow.part_done(), &TextEvent { part: Some(flow.part(&open_text.text)), ..bare() });
        self.finish_item(open_text.index, &open_text.item(status));
    }

    fn finish_item(&mut self, index: usize, item: &OutputItem<'_>) {
        self.say("response.output_item.done", &ItemEvent { output_index: index, item });
        self.output.close(index, item);
    }

    fn tool_call(&mut self, event: &Recorded, view: &EventView<'_>, facts: &Facts<'_>) {
        let step = view.step_id.and_then(string).unwrap_or_default();
        if !self.output.calls.iter().any(|call| *call.step == *step) {
            let call = self.open_call(event, &step, facts.server, facts.tool, facts.args);
            self.output.calls.push(call);
        }
    }

    /// Begins a call, and tells its arguments.
    fn open_call(
        &mut self,
        event: &Recorded,
        step: &str,
        server: Option<&RawValue>,
        tool: Option<&RawValue>,
        args: Option<&RawValue>,
    ) -> Call {
        self.end_text(ItemStatus::Completed);
        let (id, index) = self.output.open("mcp", event.seq);
        let call = Call {
            step: step.into(),
            id,
            index,
            // A tool of the agent's own is at no server but the agent.
            server: server.and_then(string).map_or_else(|| self.agent.clone(), Into::into),
            name: tool.and_then(string).map_or_else(|| UNNAMED_TOOL.into(), Into::into),
            arguments: json_text(args),
        };
        let empty = Text::default();
        let item = call.item(ItemStatus::InProgress, &empty, CallResult::None);
        self.say("response.output_item.added", &ItemEvent { output_index: index, item: &item });
        self.say("response.mcp_call.in_progress", &At { item_id: &call.id, output_index: index });
        let bare =
            || ArgumentsEvent { item_id: &call.id, output_index: index, delta: None, arguments: None, name: None };
        self.say("response.mcp_call_arguments.delta", &ArgumentsEvent { delta: Some(&call.arguments), ..bare() });
        self.say("response.mcp_call_arguments.done", &ArgumentsEvent { arguments: Some(&call.arguments), ..bare() });
        call
    }

    /// The call that this is the result of; one that was made before this response began is sent again.
    fn call_for(&mut self, event: &Recorded, step: Option<&RawValue>, tool: Option<&RawValue>) -> Call {
        let step = step.and_then(string).unwrap_or_default();
        match self.output.calls.iter().position(|call| *call.step == *step) {
            Some(at) => self.output.calls.remove(at),
            None => self.open_call(event, &step, None, tool, None),
        }
    }

    fn tool_result(&mut self, event: &Recorded, view: &EventView<'_>, facts: &Facts<'_>) {
        let call = self.call_for(event, view.step_id, facts.tool);
        let text = Text::of(view.content);
        match facts.status.and_then(string).as_deref() {
            Some("failed" | "unknown") => {
                let error = facts.error.map_or(text, Text::of);
                self.end_call(&call, CallResult::Error(&error));
            }
            _ => self.end_call(&call, CallResult::Output(&text)),
        }
    }

    fn end_call(&mut self, call: &Call, result: CallResult<'_>) {
        let (kind, status) = match result {
            CallResult::Error(_) => ("response.mcp_call.failed", ItemStatus::Failed),
            CallResult::None | CallResult::Output(_) => ("response.mcp_call.completed", ItemStatus::Completed),
        };
        self.say(kind, &At { item_id: &call.id, output_index: call.index });
        self.finish_item(call.index, &call.item(status, &call.arguments, result));
    }

    /// Work that goes on in the background: for its call, that is the result.
    fn operation_started(&mut self, event: &Recorded, view: &EventView<'_>, facts: &Facts<'_>) {
        #[derive(Default, Deserialize)]
        struct Subject<'a> {
            #[serde(borrow, default)]
            tool_name: Option<&'a RawValue>,
        }
        let object = view.content.get().starts_with('{');
        let subject: Option<Subject<'_>> = object.then(|| serde_json::from_str(view.content.get()).ok()).flatten();
        let call = self.call_for(event, view.step_id, subject.unwrap_or_default().tool_name.or(facts.tool));
        self.end_call(&call, CallResult::Output(&Text::of(view.content)));
    }

    /// A question ends the response: what the caller answers begins the next one.
    fn question(&mut self, event: &Recorded, view: &EventView<'_>, facts: &Facts<'_>) {
        self.end_text(ItemStatus::Completed);
        self.close_all();
        let (id, index) = self.output.open("mcpr", event.seq);
        let name = facts.tool_name.or(facts.scope).and_then(string);
        let arguments = match facts.tool_args {
            Some(args) => json_text(Some(args)),
            None => question_arguments(view.content, facts),
        };
        let server = facts.server.and_then(string).map_or_else(|| self.agent.clone(), Into::into);
        let name = name.as_deref().unwrap_or(UNNAMED_TOOL);
        let item = OutputItem::McpApprovalRequest { id: &id, server_label: &server, name, arguments: &arguments };
        self.say("response.output_item.added", &ItemEvent { output_index: index, item: &item });
        self.finish_item(index, &item);
        self.complete(event, None, None);
    }

    /// A call that the caller is to make. The last of those that are made together ends the response: their outputs begin the
    /// next one.
    fn function_call(&mut self, event: &Recorded, view: &EventView<'_>, facts: &Facts<'_>) {
        self.end_text(ItemStatus::Completed);
        let (id, index) = self.output.open("fc", event.seq);
        let call_id = self.output.name("call", event.seq);
        let name = facts.tool.and_then(string);
        let name = name.as_deref().unwrap_or(UNNAMED_TOOL);
        let arguments = facts.args.map_or_else(|| Text::plain("{}"), Text::of);
        let empty = Text::default();
        let item = |status, arguments| OutputItem::FunctionCall { id: &id, status, call_id: &call_id, name, arguments };
        let begun = item(ItemStatus::InProgress, &empty);
        self.say("response.output_item.added", &ItemEvent { output_index: index, item: &begun });
        let bare = || ArgumentsEvent { item_id: &id, output_index: index, delta: None, arguments: None, name: None };
        let arguments_event = ArgumentsEvent { delta: Some(&arguments), ..bare() };
        self.say("response.function_call_arguments.delta", &arguments_event);
        let arguments_event = ArgumentsEvent { arguments: Some(&arguments), name: Some(name), ..bare() };
        self.say("response.function_call_arguments.done", &arguments_event);
        self.finish_item(index, &item(ItemStatus::Completed, &arguments));
        if Wait::of(view).is_some() {
            self.close_all();
            self.complete(event, None, None);
        }
    }

    fn final_answer(&mut self, event: &Recorded, view: &EventView<'_>, facts: &Facts<'_>) {
        let answer = Text::of(view.content);
        let missing = rest(&answer, facts.streamed, &self.output.seen, &self.output.last);
        if !missing.is_empty() {
            let is_all = missing == answer;
            let refuses = facts.refusal.is_some_and(|raw| raw.get() == "true");
            let open = self.output.open_text.as_ref().filter(|open_text| open_text.flow == Flow::Text && !is_all);
            let part = open.and_then(|open_text| open_text.part.as_deref()).map(json::raw);
            if open.is_none() {
                self.end_text(ItemStatus::Completed);
            }
            self.speak(event, if refuses { Flow::Refusal } else { Flow::Text }, part.as_deref(), &missing);
        }
        let incomplete = facts.finish_reason.and_then(string).and_then(|reason| Incomplete::of(&reason));
        let incomplete = incomplete.or_else(|| upstream_reason(facts.finish?));
        self.end_text(if incomplete.is_some() { ItemStatus::Incomplete } else { ItemStatus::Completed });
        self.close_all();
        self.complete(event, incomplete, facts.usage.and_then(Usage::of));
    }

    fn complete(&mut self, event: &Recorded, incomplete: Option<Incomplete>, usage: Option<Usage>) {
        match incomplete {
            Some(_) => {
                let state = State { incomplete_details: incomplete, usage, ..State::of("incomplete") };
                self.end("response.incomplete", &state);
            }
            None => {
                let state = State { completed_at: Some(logged_at(event)), usage, ..State::of("completed") };
                self.end("response.completed", &state);
            }
        }
    }

    /// Ends what is open: nothing of this response follows.
    fn close_all(&mut self) {
        self.end_text(ItemStatus::Incomplete);
        for call in std::mem::take(&mut self.output.calls) {
            let item = call.item(ItemStatus::Incomplete, &call.arguments, CallResult::None);
            self.finish_item(call.index, &item);
        }
    }
}

/// A value as the text of its JSON; nothing is an empty object.
fn json_text(raw: Option<&RawValue>) -> Text {
    Text::plain(&raw.map_or_else(|| "{}".into(), |raw| json::one_line(raw.get())))
}

/// What a person is asked, where that is not a tool with arguments.
fn question_arguments(content: &RawValue, facts: &Facts<'_>) -> Text {
    let read = |raw: &RawValue| serde_json::from_str::<Value>(raw.get()).unwrap_or_default();
    let known = [("question", Some(content)), ("plan_summary", facts.plan_summary), ("tasks", facts.tasks)];
    let fields: Map<String, Value> =
        known.into_iter().filter_map(|(key, raw)| Some((key.to_owned(), read(raw?)))).collect();
    Text::plain(&Value::Object(fields).to_string())
}

/// Why an upstream that speaks the AI SDK's protocol stopped.
fn upstream_reason(finish: &RawValue) -> Option<Incomplete> {
    #[derive(Deserialize)]
    struct Finish<'a> {
        #[serde(borrow, rename = "finishReason", default)]
        reason: Option<&'a RawValue>,
    }
    let finish: Finish<'_> = serde_json::from_str(finish.get()).ok()?;
    Incomplete::of(&string(finish.reason?)?)
}
