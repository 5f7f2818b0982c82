//! The response as an object: what was asked for, how it stands, and what it holds.

use std::fmt;
use std::sync::Arc;

use bowline_protocol::json;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json as object};

use super::text::Text;

/// What of a request its response repeats. Nothing else in a message can change what the server says of a response.
pub const ECHOED: &[&str] = &[
    "background",
    "conversation",
    "frequency_penalty",
    "instructions",
    "max_output_tokens",
    "max_tool_calls",
    "metadata",
    "model",
    "parallel_tool_calls",
    "presence_penalty",
    "previous_response_id",
    "prompt_cache_key",
    "reasoning",
    "safety_identifier",
    "service_tier",
    "store",
    "temperature",
    "text",
    "tool_choice",
    "tools",
    "top_logprobs",
    "top_p",
    "truncation",
    "user",
];

/// What does not change while a response is made, in the order of its names: what it is, and what its request asked for.
#[derive(Serialize, Deserialize)]
#[serde(default)]
struct HeadFields {
    background: Value,
    conversation: Value,
    #[serde(skip_deserializing)]
    created_at: u64,
    frequency_penalty: Value,
    #[serde(skip_deserializing)]
    id: String,
    instructions: Value,
    max_output_tokens: Value,
    max_tool_calls: Value,
    metadata: Value,
    model: Value,
    #[serde(skip_deserializing)]
    object: &'static str,
    parallel_tool_calls: Value,
    presence_penalty: Value,
    previous_response_id: Value,
    prompt_cache_key: Value,
    reasoning: Value,
    safety_identifier: Value,
    service_tier: Value,
    store: Value,
    temperature: Value,
    text: Value,
    tool_choice: Value,
    tools: Value,
    top_logprobs: Value,
    top_p: Value,
    truncation: Value,
    user: Value,
}

/// The API's own defaults.
impl Default for HeadFields {
    fn default() -> HeadFields {
        HeadFields {
            background: false.into(),
            conversation: Value::Null,
            created_at: 0,
            frequency_penalty: 0.into(),
            id: String::new(),
            instructions: Value::Null,
            max_output_tokens: Value::Null,
            max_tool_calls: Value::Null,
            metadata: object!({}),
            model: Value::Null,
            object: "response",
            parallel_tool_calls: true.into(),
            presence_penalty: 0.into(),
            previous_response_id: Value::Null,
            prompt_cache_key: Value::Null,
            reasoning: object!({ "effort": null, "summary": null }),
            safety_identifier: Value::Null,
            service_tier: "default".into(),
            store: true.into(),
            temperature: 1.into(),
            text: object!({ "format": { "type": "text" } }),
            tool_choice: "auto".into(),
            tools: object!([]),
            top_logprobs: 0.into(),
            top_p: 1.into(),
            truncation: "disabled".into(),
            user: Value::Null,
        }
    }
}

/// The head of a response as text: an object that is still open at its end.
#[derive(Clone)]
pub struct Head(Arc<str>);

impl Head {
    /// `asked` is what the request said, as the event that began the response keeps it.
    pub fn new(id: &str, model: &str, created_at: u64, asked: Option<&RawValue>) -> Head {
        // By way of a map, in which the last of several members of one name counts.
        let asked: Option<Map<String, Value>> = asked.and_then(|raw| serde_json::from_str(raw.get()).ok());
        let mut asked = asked.unwrap_or_default();
        asked.entry("model").or_insert_with(|| model.into());
        let asked: HeadFields = serde_json::from_value(Value::Object(asked)).unwrap_or_default();
        let fields = HeadFields { id: id.to_owned(), created_at, ..asked };
        let text = json::raw(&fields);
        Head(text.get().strip_suffix('}').unwrap_or_default().into())
    }

    /// The whole object.
    pub fn with(&self, state: &State<'_>, output: &[&RawValue]) -> Box<RawValue> {
        #[derive(Serialize)]
        struct Tail<'a> {
            #[serde(flatten)]
            state: &'a State<'a>,
            output: &'a [&'a RawValue],
        }
        let tail = json::raw(&Tail { state, output });
        let whole = format!("{},{}", self.0, tail.get().strip_prefix('{').unwrap_or_default());
        RawValue::from_string(whole).unwrap_or_else(|_| RawValue::NULL.to_owned())
    }
}

impl fmt::Debug for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Head({} bytes)", self.0.len())
    }
}

/// How a response stands.
#[derive(Clone, Debug, Serialize)]
pub struct State<'a> {
    pub status: &'static str,
    pub completed_at: Option<u64>,
    pub error: Option<Failure<'a>>,
    pub incomplete_details: Option<Incomplete>,
    pub usage: Option<Usage>,
}

impl State<'_> {
    pub fn of(status: &'static str) -> State<'static> {
        State { status, completed_at: None, error: None, incomplete_details: None, usage: None }
    }
}

/// Why a response failed: a code of ours, and a sentence.
#[derive(Clone, Debug, Serialize)]
pub struct Failure<'a> {
    pub code: &'a str,
    pub message: &'a Text,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub struct Incomplete {
    pub reason: &'static str,
}

impl Incomplete {
    /// What a model's reason to stop means here; none if it had said all it wanted to.
    pub fn of(reason: &str) -> Option<Incomplete> {
        match reason {
            "length" | "max_tokens" | "max_output_tokens" => Some(Incomplete { reason: "max_output_tokens" }),
            "content_filter" | "content-filter" => Some(Incomplete { reason: "content_filter" }),
            _ => None,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Usage {
    input_tokens: u64,
    input_tokens_details: InputDetails,
    output_tokens: u64,
    output_tokens_details: OutputDetails,
    total_tokens: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct InputDetails {
    cache_write_tokens: u64,
    cached_tokens: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct OutputDetails {
    reasoning_tokens: u64,
}

/// Figures as providers write them: those of chat completions, of this API, and of the AI SDK.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Figures {
    #[serde(alias = "prompt_tokens", alias = "inputTokens", alias = "promptTokens")]
    input_tokens: Option<u64>,
    #[serde(alias = "completion_tokens", alias = "outputTokens", alias = "completionTokens")]
    output_tokens: Option<u64>,
    #[serde(alias = "totalTokens")]
    total_tokens: Option<u64>,
    #[serde(alias = "prompt_tokens_details")]
    input_tokens_details: Details,
    #[serde(alias = "completion_tokens_details")]
    output_tokens_details: Details,
    #[serde(rename = "cachedInputTokens")]
    cached_tokens: Option<u64>,
    #[serde(rename = "reasoningTokens")]
    reasoning_tokens: Option<u64>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Details {
    cached_tokens: Option<u64>,
    cache_write_tokens: Option<u64>,
    reasoning_tokens: Option<u64>,
}

impl Usage {
    /// Reads what a provider said; none if that is nothing of use.
    pub fn of(raw: &RawValue) -> Option<Usage> {
        let figures: Figures = serde_json::from_str(raw.get()).ok()?;
        if figures.input_tokens.is_none() && figures.output_tokens.is_none() {
            return None;
        }
        let (input, output) = (figures.input_tokens.unwrap_or(0), figures.output_tokens.unwrap_or(0));
        let Figures { input_tokens_details: read, output_tokens_details: written, .. } = figures;
        Some(Usage {
            input_tokens: input,
            input_tokens_details: InputDetails {
                cache_write_tokens: read.cache_write_tokens.unwrap_or(0),
                cached_tokens: read.cached_tokens.or(figures.cached_tokens).unwrap_or(0),
            },
            output_tokens: output,
            output_tokens_details: OutputDetails {
                reasoning_tokens: written.reasoning_tokens.or(figures.reasoning_tokens).unwrap_or(0),
            },
            total_tokens: figures.total_tokens.unwrap_or(input.saturating_add(output)),
        })
    }
}

/// The seconds since 1970 of a date as our logs write it; 0 if it is none.
pub fn unix_seconds(date: &str) -> u64 {
    let digits = |from: usize, to: usize| date.get(from..to).and_then(|text| text.parse::<i64>().ok());
    let seconds = || {
        let (year, month, day) = (digits(0, 4)?, digits(5, 7)?, digits(8, 10)?);
        let (hour, minute, second) = (digits(11, 13)?, digits(14, 16)?, digits(17, 19)?);
        // Years begin in March here, so that a leap day is a year's last.
        let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
        let days = year * 365 + year / 4 - year / 100 + year / 400 + (month * 153 + 2) / 5 + day - 719_469;
        u64::try_from(days * 86_400 + hour * 3600 + minute * 60 + second).ok()
    };
    seconds().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_read() {
        for (date, seconds) in [
            ("1970-01-01T00:00:00Z", 0),
            ("2000-02-29T12:00:01.5Z", 951_825_601),
            ("2026-03-01T00:00:00Z", 1_772_323_200),
            ("2026-11-18T02:36:23.123Z", 1_794_969_383),
            ("", 0),
            ("yesterday", 0),
        ] {
            assert_eq!(unix_seconds(date), seconds, "{date}");
        }
    }

    #[test]
    fn figures_of_any_provider_become_the_apis_own() {
        let usage = |value: Value| Usage::of(&json::raw(&value)).map(|usage| object!(usage));
        let expected = object!({
            "input_tokens": 5, "input_tokens_details": { "cached_tokens": 2, "cache_write_tokens": 0 },
            "output_tokens": 7, "output_tokens_details": { "reasoning_tokens": 3 }, "total_tokens": 12,
        });
        let chat = object!({
            "prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12,
            "prompt_tokens_details": { "cached_tokens": 2 }, "completion_tokens_details": { "reasoning_tokens": 3 },
        });
        assert_eq!(usage(chat), Some(expected.clone()));
        let sdk = object!({ "inputTokens": 5, "outputTokens": 7, "cachedInputTokens": 2, "reasoningTokens": 3 });
        assert_eq!(usage(sdk), Some(expected.clone()));
        assert_eq!(usage(expected.clone()), Some(expected));
        for nothing in [object!({}), object!(7), object!({ "cost": 1 }), object!({ "prompt_tokens": "five" })] {
            assert_eq!(usage(nothing), None);
        }
    }

    #[test]
    fn a_response_repeats_what_its_struct_has_in_the_order_of_the_names() {
        let head =
            Head::new("resp_1", "demo", 9, Some(&json::raw(&object!({ "model": "m", "tools": [1], "top_p": null }))));
        let whole = head.with(&State::of("in_progress"), &[]);
        assert!(whole.get().starts_with(concat!(
            r#"{"background":false,"conversation":null,"created_at":9,"frequency_penalty":0,"id":"resp_1","instructions":null,"#,
            r#""max_output_tokens":null,"max_tool_calls":null,"metadata":{},"model":"m","object":"response","#,
            r#""parallel_tool_calls":true,"presence_penalty":0,"previous_response_id":null,"prompt_cache_key":null,"#,
            r#""reasoning":{"effort":null,"summary":null},"safety_identifier":null,"service_tier":"default","store":true,"#,
            r#""temperature":1,"text":{"format":{"type":"text"}},"tool_choice":"auto","tools":[1],"top_logprobs":0,"#,
            r#""top_p":null,"truncation":"disabled","user":null,"status":"in_progress","#,
        )), "{whole}");
        let fields: Map<String, Value> = serde_json::from_str(json::raw(&HeadFields::default()).get()).unwrap();
        let own = ["created_at", "id", "object"];
        let echoed: Vec<&str> = fields.keys().map(String::as_str).filter(|key| !own.contains(key)).collect();
        assert_eq!(echoed, ECHOED);
    }

    #[test]
    fn a_message_cannot_say_what_only_the_server_knows() {
        let asked = json::raw(&object!({ "id": "mine", "status": "failed", "object": 1, "output": [1], "user": "u" }));
        let head = Head::new("resp_1", "demo", 9, Some(&asked));
        let whole: Value = serde_json::from_str(head.with(&State::of("in_progress"), &[]).get()).unwrap();
        assert_eq!((&whole["id"], &whole["status"]), (&object!("resp_1"), &object!("in_progress")));
        assert_eq!((&whole["object"], &whole["output"]), (&object!("response"), &object!([])));
        assert_eq!(whole["user"], "u");
    }
}
