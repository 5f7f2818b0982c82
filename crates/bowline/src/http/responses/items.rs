//! What a response was asked, as items: messages, an answer to a question, or what functions returned.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

/// One thing that a response was asked.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum InputItem {
    Message { id: String, status: InputItemStatus, role: String, content: Vec<InputPart> },
    FunctionCallOutput { id: String, status: InputItemStatus, call_id: String, output: Value },
    McpApprovalResponse { id: String, approval_request_id: String, approve: Value, reason: Value },
}

/// Whatever was asked is whole.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub(crate) enum InputItemStatus {
    Completed,
}

/// One piece of a message.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum InputPart {
    InputText {
        text: Value,
    },
    OutputText {
        text: Value,
        annotations: Vec<Value>,
    },
    InputImage {
        image_url: Value,
        detail: ImageDetail,
    },
    InputFile {
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schemars(with = "String")]
        file_url: Option<Value>,
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schemars(with = "String")]
        file_data: Option<Value>,
        filename: Value,
    },
}

/// How closely a model looks at an image is its own affair.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub(crate) enum ImageDetail {
    Auto,
}

impl InputItem {
    pub(super) fn id(&self) -> &str {
        let (InputItem::Message { id, .. }
        | InputItem::FunctionCallOutput { id, .. }
        | InputItem::McpApprovalResponse { id, .. }) = self;
        id
    }

    /// The items of a request, as the event that began the response keeps them.
    pub(super) fn of_message(response: &str, content: &Value) -> Vec<InputItem> {
        let message = |number: usize, role: &str, content: Vec<InputPart>| {
            let id = format!("in_{number}_{response}");
            InputItem::Message { id, status: InputItemStatus::Completed, role: role.to_owned(), content }
        };
        let mut items: Vec<InputItem> = Vec::new();
        for earlier in content["before"].as_array().into_iter().flatten() {
            let role = earlier["role"].as_str().unwrap_or("user");
            items.push(message(items.len(), role, vec![InputPart::of_text(role, &earlier["content"])]));
        }
        let parts = match content["parts"].as_array() {
            Some(parts) => parts.iter().map(InputPart::of).collect(),
            None => vec![InputPart::of_text("user", content.get("text").unwrap_or(content))],
        };
        items.push(message(items.len(), "user", parts));
        items
    }
}

impl InputPart {
    fn of_text(role: &str, text: &Value) -> InputPart {
        let text = text.clone();
        match role {
            "assistant" => InputPart::OutputText { text, annotations: Vec::new() },
            _ => InputPart::InputText { text },
        }
    }

    /// A part of a message, as the log keeps it.
    fn of(part: &Value) -> InputPart {
        let (url, filename) = (part["url"].clone(), part["filename"].clone());
        let is_image = part["mediaType"].as_str().is_some_and(|kind| kind.starts_with("image/"));
        if part["type"] == "text" {
            InputPart::InputText { text: part["text"].clone() }
        } else if is_image {
            InputPart::InputImage { image_url: url, detail: ImageDetail::Auto }
        } else if url.as_str().is_some_and(|url| url.starts_with("http")) {
            InputPart::InputFile { file_url: Some(url), file_data: None, filename }
        } else {
            InputPart::InputFile { file_url: None, file_data: Some(url), filename }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_message_is_listed_with_what_came_before_it_and_with_all_its_parts() {
        let content = json!({
            "before": [{ "role": "assistant", "content": "a" }, { "role": "user", "content": "b" }],
            "parts": [
                { "type": "text", "text": "c" },
                { "type": "file", "mediaType": "image/png", "url": "data:image/png;base64,AA" },
                { "type": "file", "mediaType": "text/plain", "url": "https://x/y", "filename": "y" },
                { "type": "file", "mediaType": "text/plain", "url": "data:text/plain,y" },
            ],
        });
        let message = |number: usize, role: &str, content: Value| {
            let id = format!("in_{number}_resp_1");
            json!({ "id": id, "type": "message", "status": "completed", "role": role, "content": content })
        };
        let items = serde_json::to_value(InputItem::of_message("resp_1", &content)).unwrap();
        let expected = json!([
            message(0, "assistant", json!([{ "type": "output_text", "text": "a", "annotations": [] }])),
            message(1, "user", json!([{ "type": "input_text", "text": "b" }])),
            message(
                2,
                "user",
                json!([
                    { "type": "input_text", "text": "c" },
                    { "type": "input_image", "image_url": "data:image/png;base64,AA", "detail": "auto" },
                    { "type": "input_file", "file_url": "https://x/y", "filename": "y" },
                    { "type": "input_file", "file_data": "data:text/plain,y", "filename": null },
                ])
            ),
        ]);
        assert_eq!(items, expected);
        let bare = serde_json::to_value(InputItem::of_message("resp_1", &json!("text"))).unwrap();
        assert_eq!(bare, json!([message(0, "user", json!([{ "type": "input_text", "text": "text" }]))]));
    }
}
