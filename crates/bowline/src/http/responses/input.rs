//! What a caller brings: text, messages with images and files, the answer to a question, or outputs of functions.

use std::fmt;

use bowline_api::Reply;
use bowline_core::dialect::responses::{CallId, QuestionId};
use bowline_protocol::{ErrorCode, Refusal};
use serde_json::{Map, Value, json};

/// Output that callers give back with their next message. The server made it, and has it.
const OWN_OUTPUT: [&str; 5] = ["reasoning", "mcp_call", "mcp_list_tools", "mcp_approval_request", "function_call"];

/// What a response is to answer.
pub enum Input {
    /// A message, as a session takes it.
    Message(Map<String, Value>),
    Answer {
        question: QuestionId,
        reply: Reply,
    },
    /// At least one.
    Outputs(Vec<CallOutput>),
}

/// What a function of the caller's returned.
pub struct CallOutput {
    pub call: CallId,
    pub text: String,
    /// The parts of it, if it came in parts.
    pub data: Option<Value>,
}

/// It holds what a person wrote.
impl fmt::Debug for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Input::Message(fields) => write!(f, "Message({} fields)", fields.len()),
            Input::Answer { question, reply } => write!(f, "Answer({question:?}, {reply:?})"),
            Input::Outputs(outputs) => write!(f, "Outputs({})", outputs.len()),
        }
    }
}

fn wrong(problem: &str) -> Refusal {
    Refusal::field("input", problem)
}

fn unsupported(what: &str) -> Refusal {
    let refusal = Refusal::new(ErrorCode::NotSupported, format!("`input`: {what}"));
    refusal.details(json!({ "field": "input" }))
}

impl Input {
    /// `instructions` are the request's own; what a system or developer message says is added to them.
    pub fn read(input: Option<Value>, instructions: Option<&str>) -> Result<Input, Refusal> {
        let items = match input {
            Some(Value::String(text)) => vec![json!({ "role": "user", "content": text })],
            Some(Value::Array(items)) => items,
            Some(_) => return Err(wrong("must be text or a list")),
            None => return Err(wrong("is missing")),
        };
        let mut messages = Messages::new(instructions);
        let (mut answers, mut outputs) = (Vec::new(), Vec::new());
        for item in &items {
            match item["type"].as_str().unwrap_or("message") {
                "message" => {
                    messages.add(item)?;
                    // Outputs that a message follows were taken before.
                    outputs.clear();
                }
                "mcp_approval_response" => answers.push(answer(item)?),
                "function_call_output" => outputs.push(item),
                kind if OWN_OUTPUT.contains(&kind) => {}
                kind => return Err(unsupported(&format!("items of the type `{kind}` are not taken."))),
            }
        }
        if !outputs.is_empty() {
            if !answers.is_empty() {
                return Err(unsupported("an answer to a question stands alone."));
            }
            // What stands before them is what the run has answered so far, which the session has.
            return Ok(Input::Outputs(outputs.into_iter().map(output).collect::<Result<_, _>>()?));
        }
        match (answers.pop(), messages.last.take()) {
            (None, Some(last)) => Ok(Input::Message(messages.into_content(last))),
            (Some(answer), None) if answers.is_empty() && messages.before.is_empty() => Ok(answer),
            (Some(_), None) if messages.before.is_empty() => {
                Err(unsupported("a response asks one question at a time."))
            }
            (Some(_), _) => Err(unsupported("an answer to a question stands alone.")),
            (None, None) => Err(wrong("must end with a message of the user's")),
        }
    }
}

/// `{type: "mcp_approval_response", approval_request_id, approve, reason?}`
fn answer(item: &Value) -> Result<Input, Refusal> {
    let question = item["approval_request_id"].as_str().and_then(QuestionId::parse);
    let question = question.ok_or_else(|| wrong("names no question in `approval_request_id`"))?;
    let confirmed = item["approve"].as_bool().ok_or_else(|| wrong("says not whether to `approve`"))?;
    let reason = item["reason"].as_str().map(str::to_owned);
    Ok(Input::Answer { question, reply: Reply { confirmed, tasks: None, reason } })
}

/// `{type: "function_call_output", call_id, output}`, where the output is text or a list of parts.
fn output(item: &Value) -> Result<CallOutput, Refusal> {
    let call = item["call_id"].as_str().and_then(CallId::parse);
    let call = call.ok_or_else(|| wrong("has an output whose `call_id` names no call of this server's"))?;
    match &item["output"] {
        Value::String(text) => Ok(CallOutput { call, text: text.clone(), data: None }),
        list @ Value::Array(parts) => {
            let text = parts.iter().map(part).collect::<Result<Vec<Value>, Refusal>>()?;
            let text = text.iter().filter_map(|part| part["text"].as_str()).collect();
            Ok(CallOutput { call, text, data: Some(list.clone()) })
        }
        _ => Err(wrong("has an `output` that is neither text nor a list")),
    }
}

/// The messages of a request: all but the last came before.
struct Messages {
    instructions: Vec<String>,
    before: Vec<Value>,
    last: Option<(String, Vec<Value>)>,
}

impl Messages {
    fn new(instructions: Option<&str>) -> Messages {
        let instructions = instructions.map(str::to_owned).into_iter().collect();
        Messages { instructions, before: Vec::new(), last: None }
    }

    fn add(&mut self, item: &Value) -> Result<(), Refusal> {
        let (text, parts) = content(&item["content"])?;
        match item["role"].as_str() {
            Some("user") => {
                self.supersede();
                self.last = Some((text, parts));
            }
            Some("assistant") => {
                self.supersede();
                self.before.push(json!({ "role": "assistant", "content": text }));
            }
            Some("system" | "developer") => self.instructions.push(text),
            _ => return Err(wrong("has a message whose `role` is not user, assistant, system or developer")),
        }
        Ok(())
    }

    /// The message that was the last so far is one of those before.
    fn supersede(&mut self) {
        if let Some((text, _)) = self.last.take() {
            self.before.push(json!({ "role": "user", "content": text }));
        }
    }

    fn into_content(self, (text, parts): (String, Vec<Value>)) -> Map<String, Value> {
        let mut fields = Map::new();
        let only_text = parts.iter().all(|part| part["type"] == "text");
        fields.insert("text".into(), text.into());
        if !only_text {
            fields.insert("parts".into(), parts.into());
        }
        if !self.before.is_empty() {
            fields.insert("before".into(), self.before.into());
        }
        if !self.instructions.is_empty() {
            fields.insert("instructions".into(), self.instructions.join("\n\n").into());
        }
        fields
    }
}

/// The text of a message, and its parts as sessions keep them.
fn content(content: &Value) -> Result<(String, Vec<Value>), Refusal> {
    let items = match content {
        Value::String(text) => return Ok((text.clone(), vec![json!({ "type": "text", "text": text })])),
        Value::Array(items) => items,
        _ => return Err(wrong("has a message whose `content` is neither text nor a list")),
    };
    let parts = items.iter().map(part).collect::<Result<Vec<Value>, Refusal>>()?;
    let text = parts.iter().filter_map(|part| part["text"].as_str()).collect();
    Ok((text, parts))
}

fn part(item: &Value) -> Result<Value, Refusal> {
    let text = |key: &str| item[key].as_str();
    let missing = |what: &str| wrong(&format!("has a part without `{what}`"));
    match text("type") {
        Some("input_text" | "output_text") => {
            Ok(json!({ "type": "text", "text": text("text").ok_or_else(|| missing("text"))? }))
        }
        Some("refusal") => Ok(json!({ "type": "text", "text": text("refusal").ok_or_else(|| missing("refusal"))? })),
        Some("input_image") => {
            let url =
                text("image_url").ok_or_else(|| unsupported("an image needs `image_url`; there are no file ids."))?;
            Ok(json!({ "type": "file", "mediaType": media_type(url).unwrap_or("image/*"), "url": url }))
        }
        Some("input_file") => {
            let url = text("file_data").or(text("file_url"));
            let url =
                url.ok_or_else(|| unsupported("a file needs `file_data` or `file_url`; there are no file ids."))?;
            let media_type = media_type(url).unwrap_or("application/octet-stream");
            let mut part = json!({ "type": "file", "mediaType": media_type, "url": url });
            if let Some(name) = text("filename") {
                part["filename"] = name.into();
            }
            Ok(part)
        }
        Some(kind) => Err(unsupported(&format!("parts of the type `{kind}` are not taken."))),
        None => Err(wrong("has a part without `type`")),
    }
}

/// What a `data:` URL says of itself.
fn media_type(url: &str) -> Option<&str> {
    let (kind, _) = url.strip_prefix("data:")?.split_once([';', ','])?;
    Some(kind).filter(|kind| !kind.is_empty())
}

#[cfg(test)]
mod tests {
    use super::super::items::InputItem;
    use super::*;

    fn message(input: Value) -> Value {
        match Input::read(Some(input), Some("be brief")) {
            Ok(Input::Message(fields)) => Value::Object(fields),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_last_message_is_answered_and_the_others_came_before_it() {
        assert_eq!(message(json!("hi")), json!({ "text": "hi", "instructions": "be brief" }));
        let input = json!([
            { "role": "developer", "content": "be kind" },
            { "role": "user", "content": "a" },
            { "type": "reasoning", "summary": [] },
            { "type": "message", "role": "assistant", "content": [{ "type": "output_text", "text": "b" }] },
            { "role": "user", "content": [{ "type": "input_text", "text": "c" }] },
        ]);
        let content = message(input);
        let before = json!([{ "role": "user", "content": "a" }, { "role": "assistant", "content": "b" }]);
        assert_eq!(content, json!({ "text": "c", "before": before, "instructions": "be brief\n\nbe kind" }));
        let items = json!(InputItem::of_message("x", &content));
        assert_eq!(items.as_array().map(Vec::len), Some(3));
        assert_eq!(items[2]["content"], json!([{ "type": "input_text", "text": "c" }]));
    }

    #[test]
    fn images_and_files_come_as_parts_and_are_shown_as_they_came() {
        let image = json!({ "type": "input_image", "image_url": "data:image/png;base64,AA", "detail": "auto" });
        let file = json!({ "type": "input_file", "file_data": "data:text/plain;base64,AA", "filename": "a.txt" });
        let text = json!({ "type": "input_text", "text": "look" });
        let content = message(json!([{ "role": "user", "content": [text, image, file] }]));
        assert_eq!((&content["text"], &content["parts"][1]["mediaType"]), (&json!("look"), &json!("image/png")));
        assert_eq!(json!(InputItem::of_message("x", &content))[0]["content"], json!([text, image, file]));
    }

    #[test]
    fn outputs_at_the_end_are_for_the_run_that_waits_and_others_are_history() {
        let called = json!({ "type": "function_call", "call_id": "call_3_sess_1", "name": "f", "arguments": "{}" });
        let output = json!({ "type": "function_call_output", "call_id": "call_3_sess_1", "output": "sunny" });
        let message = json!({ "role": "user", "content": "hi" });
        for input in [json!([output]), json!([message, called, output])] {
            match Input::read(Some(input), None) {
                Ok(Input::Outputs(outputs)) => {
                    assert_eq!((outputs[0].call.called.get(), outputs[0].text.as_str()), (3, "sunny"));
                }
                other => panic!("{other:?}"),
            }
        }
        let history = Input::read(Some(json!([message, called, output, message])), None);
        assert!(matches!(history, Ok(Input::Message(_))));
        for output in [json!({ "call_id": "call_of_another", "output": "x" }), json!({ "call_id": "call_3_sess_1" })] {
            let mut output = output;
            output["type"] = "function_call_output".into();
            assert!(Input::read(Some(json!([output])), None).is_err());
        }
    }

    #[test]
    fn an_answer_stands_alone() {
        let answer =
            json!({ "type": "mcp_approval_response", "approval_request_id": "mcpr_3_sess_1", "approve": false });
        match Input::read(Some(json!([answer])), None) {
            Ok(Input::Answer { question, reply }) => assert_eq!((question.asked.get(), reply.confirmed), (3, false)),
            other => panic!("{other:?}"),
        }
        let message = json!({ "role": "user", "content": "and this" });
        for input in [json!([answer, message]), json!([answer, answer]), json!([]), json!(7), json!([{ "type": "x" }])]
        {
            assert!(Input::read(Some(input.clone()), None).is_err(), "{input}");
        }
    }
}
