//! What a response consists of, in the shapes of the API: messages, thoughts, calls of tools, and questions.

use serde::Serialize;

use super::text::Text;

/// How an item stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ItemStatus {
    InProgress,
    Completed,
    /// The response ended before it.
    Incomplete,
    Failed,
}

#[derive(Clone, Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum OutputItem<'a> {
    Message { id: &'a str, status: ItemStatus, role: &'static str, content: Vec<Part<'a>> },
    Reasoning { id: &'a str, status: ItemStatus, summary: Vec<Part<'a>> },
    McpCall(CallItem<'a>),
    FunctionCall { id: &'a str, status: ItemStatus, call_id: &'a str, name: &'a str, arguments: &'a Text },
    McpApprovalRequest { id: &'a str, server_label: &'a str, name: &'a str, arguments: &'a Text },
}

/// A tool that the agent called. The client has nothing to run.
#[derive(Clone, Debug, Serialize)]
pub struct CallItem<'a> {
    pub id: &'a str,
    pub status: ItemStatus,
    pub server_label: &'a str,
    pub name: &'a str,
    pub arguments: &'a Text,
    pub approval_request_id: Option<&'a str>,
    pub output: Option<&'a Text>,
    pub error: Option<&'a Text>,
}

/// A piece of a message or a thought.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Part<'a> {
    OutputText { text: &'a Text, annotations: [(); 0], logprobs: [(); 0] },
    Refusal { refusal: &'a Text },
    SummaryText { text: &'a Text },
}

/// What an agent says as it comes: each flow is an item of its own kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    Text,
    Refusal,
    Reasoning,
}

impl Flow {
    pub const fn prefix(self) -> &'static str {
        match self {
            Flow::Text | Flow::Refusal => "msg",
            Flow::Reasoning => "rs",
        }
    }

    pub const fn delta(self) -> &'static str {
        match self {
            Flow::Text => "response.output_text.delta",
            Flow::Refusal => "response.refusal.delta",
            Flow::Reasoning => "response.reasoning_summary_text.delta",
        }
    }

    pub const fn done(self) -> &'static str {
        match self {
            Flow::Text => "response.output_text.done",
            Flow::Refusal => "response.refusal.done",
            Flow::Reasoning => "response.reasoning_summary_text.done",
        }
    }

    pub const fn part_added(self) -> &'static str {
        match self {
            Flow::Text | Flow::Refusal => "response.content_part.added",
            Flow::Reasoning => "response.reasoning_summary_part.added",
        }
    }

    pub const fn part_done(self) -> &'static str {
        match self {
            Flow::Text | Flow::Refusal => "response.content_part.done",
            Flow::Reasoning => "response.reasoning_summary_part.done",
        }
    }

    pub fn part(self, text: &Text) -> Part<'_> {
        match self {
            Flow::Text => Part::OutputText { text, annotations: [], logprobs: [] },
            Flow::Refusal => Part::Refusal { refusal: text },
            Flow::Reasoning => Part::SummaryText { text },
        }
    }

    /// The item with this text in it; without, as it begins.
    pub fn item<'a>(self, id: &'a str, status: ItemStatus, text: Option<&'a Text>) -> OutputItem<'a> {
        let parts = text.map(|text| self.part(text)).into_iter().collect();
        match self {
            Flow::Text | Flow::Refusal => OutputItem::Message { id, status, role: "assistant", content: parts },
            Flow::Reasoning => OutputItem::Reasoning { id, status, summary: parts },
        }
    }
}
