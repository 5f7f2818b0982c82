//! One operation of the document: what it takes, what it answers, and how it says no.

use std::collections::BTreeMap;

use bowline_protocol::ErrorCode;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value, json};

use crate::http::admission::ALIVE;
use crate::http::responses::error::ErrorBody;

/// Who may ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Every client that reaches the server.
    Open,
    /// Every client with a credential, where one is needed.
    Owner,
    /// An operator with the credential of an admin.
    Admin,
}

/// How an operation words its refusals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wording {
    Ours,
    ResponsesApi,
}

pub struct ApiOperation {
    pub method: &'static str,
    pub path: &'static str,
    access: Access,
    shown: Map<String, Value>,
    parameters: Vec<Value>,
    responses: BTreeMap<u16, Value>,
    /// The answer that was described last.
    last: u16,
    codes: Vec<ErrorCode>,
    wording: Wording,
    /// Adds the types of its answers to the document.
    pub types: Vec<fn(&mut SchemaGenerator)>,
}

impl std::fmt::Debug for ApiOperation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Operation({} {})", self.method, self.path)
    }
}

/// A reference to one of the document's schemas.
pub fn named(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

/// A header of an answer.
pub fn header(about: &str) -> Value {
    json!({ "description": about, "schema": { "type": "string" } })
}

impl ApiOperation {
    pub fn new(
        access: Access,
        method: &'static str,
        path: &'static str,
        id: &str,
        summary: &str,
        tag: &'static str,
    ) -> ApiOperation {
        let shown = json!({ "operationId": id, "summary": summary, "tags": [tag] });
        let Value::Object(shown) = shown else { unreachable!("an object was written") };
        let codes = match access {
            Access::Open => Vec::new(),
            Access::Owner | Access::Admin => vec![ErrorCode::Unauthorized, ErrorCode::StoreUnavailable],
        };
        ApiOperation {
            method,
            path,
            access,
            shown,
            parameters: Vec::new(),
            responses: BTreeMap::new(),
            last: 0,
            codes,
            wording: Wording::Ours,
            types: Vec::new(),
        }
    }

    pub fn about(mut self, text: &str) -> ApiOperation {
        self.shown.insert("description".into(), text.into());
        self
    }

    /// A name in the path. One that is not UTF-8 is refused.
    pub fn path(mut self, name: &str, about: &str) -> ApiOperation {
        let schema = json!({ "type": "string", "minLength": 1 });
        self.parameters
            .push(json!({ "name": name, "in": "path", "required": true, "description": about, "schema": schema }));
        self.refuses(&[ErrorCode::InvalidPayload])
    }

    pub fn query(mut self, name: &str, about: &str, schema: &Value) -> ApiOperation {
        self.parameters.push(json!({ "name": name, "in": "query", "description": about, "schema": schema }));
        self.refuses(&[ErrorCode::InvalidPayload])
    }

    pub fn header(mut self, name: &str) -> ApiOperation {
        self.parameters.push(json!({ "$ref": format!("#/components/parameters/{name}") }));
        self.refuses(&[ErrorCode::InvalidPayload])
    }

    /// Takes an object. `required` if it cannot be left out.
    pub fn takes(self, schema: &str, required: bool, example: &Value) -> ApiOperation {
        let content = json!({ "application/json": { "schema": named(schema), "example": example } });
        self.takes_content(content, required)
    }

    pub fn takes_content(mut self, content: Value, required: bool) -> ApiOperation {
        let mut body = json!({ "required": required });
        body["content"] = content;
        self.shown.insert("requestBody".into(), body);
        self.refuses(&[ErrorCode::InvalidJson, ErrorCode::InvalidPayload, ErrorCode::MessageTooLarge])
    }

    /// Answers with this type as JSON.
    pub fn answers<T: JsonSchema>(mut self, status: u16, about: &str) -> ApiOperation {
        self.types.push(|generator| drop(generator.subschema_for::<T>()));
        self.answers_content(status, about, json!({ "application/json": { "schema": named(&T::schema_name()) } }))
    }

    pub fn answers_content(mut self, status: u16, about: &str, content: Value) -> ApiOperation {
        let mut response = json!({ "description": about });
        response["content"] = content;
        self.responses.insert(status, response);
        self.last = status;
        self
    }

    /// Answers without a body.
    pub fn answers_nothing(mut self, status: u16, about: &str) -> ApiOperation {
        self.responses.insert(status, json!({ "description": about }));
        self
    }

    /// Answers with a stream of chunks.
    pub fn streams(self, about: &str) -> ApiOperation {
        let content = json!({ "text/event-stream": { "schema": named("StreamEvent") } });
        self.answers_content(200, about, content)
            .answer_header("Cache-Control", "`no-cache, no-transform`")
            .answer_header("X-Vercel-AI-UI-Message-Stream", "`v1`")
            .answer_header(
                "X-Workflow-Run-Id",
                "The task that is streamed; left out while its message waits in the queue.",
            )
            .answer_header("Location", "Where the same stream can be read again.")
            .refuses(&[ErrorCode::RateLimited])
    }

    /// A header of the last answer that was described.
    pub fn answer_header(mut self, name: &str, about: &str) -> ApiOperation {
        if let Some(last) = self.responses.get_mut(&self.last) {
            last["headers"][name] = header(about);
        }
        self
    }

    /// Where the answer's name for something can be used next.
    pub fn link(mut self, name: &str, operation: &str, parameter: &str, pointer: &str) -> ApiOperation {
        if let Some(last) = self.responses.get_mut(&self.last) {
            let from = format!("$response.body#/{pointer}");
            last["links"][name] = json!({ "operationId": operation, "parameters": { parameter: from } });
        }
        self
    }

    /// Words its refusals as the Responses API does.
    pub fn in_the_apis_shape(mut self) -> ApiOperation {
        self.wording = Wording::ResponsesApi;
        self.types.push(|generator| drop(generator.subschema_for::<ErrorBody>()));
        self
    }

    pub fn refuses(mut self, codes: &[ErrorCode]) -> ApiOperation {
        self.codes.extend(codes.iter().filter(|code| !self.codes.contains(code)).copied().collect::<Vec<_>>());
        self
    }

    /// The operation as the document shows it.
    pub fn shown(mut self, auth_required: bool) -> Value {
        if self.codes.iter().any(|code| code.status() >= 500) {
            // Whatever waits for an answer may find that it never comes.
            self = self.refuses(&[ErrorCode::Internal]);
        }
        let mut statuses: BTreeMap<u16, Vec<ErrorCode>> = BTreeMap::new();
        for code in &self.codes {
            statuses.entry(code.status()).or_default().push(*code);
        }
        if self.shown.contains_key("requestBody") {
            statuses.insert(408, vec![ErrorCode::InvalidPayload]);
        }
        // Names that are not ours, and pages that may not ask, are refused everywhere else.
        if self.path != ALIVE {
            statuses.insert(403, vec![ErrorCode::Unauthorized]);
        }
        for (status, codes) in statuses {
            self.responses.insert(status, refusal(status, &codes, self.wording));
        }
        let responses: Map<String, Value> =
            self.responses.into_iter().map(|(status, response)| (status.to_string(), response)).collect();
        self.shown.insert("responses".into(), responses.into());
        if !self.parameters.is_empty() {
            self.shown.insert("parameters".into(), self.parameters.into());
        }
        if auth_required && self.access != Access::Open {
            self.shown.insert("security".into(), json!([{ "bearer": [] }]));
        }
        self.shown.into()
    }
}

/// How a status says no, and with which codes.
fn refusal(status: u16, codes: &[ErrorCode], wording: Wording) -> Value {
    let names: Vec<&str> = codes.iter().map(|code| code.as_str()).collect();
    let about = match status {
        403 => {
            "`UNAUTHORIZED`: A page whose origin is not allowed, a host that is not ours, or not an admin.".to_owned()
        }
        408 => "`INVALID_PAYLOAD`: The rest of the body did not come within limits.body_timeout.".to_owned(),
        _ => codes.iter().map(|code| format!("`{code}`: {}", code.about())).collect::<Vec<_>>().join("\n\n"),
    };
    let code = json!({ "properties": { "code": { "enum": names } } });
    let schema = match wording {
        // What is refused before an endpoint is reached is worded alike for all of them.
        Wording::ResponsesApi if !matches!(status, 403 | 408) => {
            json!({ "allOf": [named(&ErrorBody::schema_name()), { "properties": { "error": code } }] })
        }
        _ => json!({ "allOf": [named("Problem"), code] }),
    };
    let mut shown = json!({ "description": about, "content": { "application/json": { "schema": schema } } });
    if status == 401 {
        shown["headers"] = json!({ "WWW-Authenticate": header("`Bearer`") });
    }
    if matches!(status, 429 | 503) {
        shown["headers"] = json!({ "Retry-After": { "$ref": "#/components/headers/RetryAfter" } });
    }
    shown
}
