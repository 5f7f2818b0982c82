//! What a response holds so far: items that are whole, the one that is being said, and the calls that are not answered.

use std::fmt;
use std::sync::Arc;

use bowline_protocol::{Seq, json};
use serde_json::value::RawValue;

use super::id;
use super::item::{CallItem, Flow, ItemStatus, OutputItem};
use super::text::Text;

#[derive(Clone)]
pub struct Output {
    log: Box<str>,
    /// In the order in which they began; none is a whole item yet where there is nothing.
    items: Vec<Option<Arc<RawValue>>>,
    pub open_text: Option<OpenText>,
    pub calls: Vec<Call>,
    /// All text that was streamed, and that of the last message.
    pub seen: String,
    pub last: String,
}

/// A message or thought that is being streamed.
#[derive(Clone, Debug)]
pub struct OpenText {
    pub flow: Flow,
    /// The part of an upstream's that it is.
    pub part: Option<Box<str>>,
    pub id: Box<str>,
    pub index: usize,
    pub text: Text,
}

/// A call whose result is not there yet.
#[derive(Clone, Debug)]
pub struct Call {
    pub step: Box<str>,
    pub id: Box<str>,
    pub index: usize,
    pub server: Box<str>,
    pub name: Box<str>,
    pub arguments: Text,
}

impl OpenText {
    pub fn item(&self, status: ItemStatus) -> OutputItem<'_> {
        self.flow.item(&self.id, status, Some(&self.text))
    }
}

impl Call {
    /// The call as it stands; its arguments are there once the agent has sent them.
    pub fn item<'a>(&'a self, status: ItemStatus, arguments: &'a Text, result: CallResult<'a>) -> OutputItem<'a> {
        let (output, error) = match result {
            CallResult::None => (None, None),
            CallResult::Output(text) => (Some(text), None),
            CallResult::Error(text) => (None, Some(text)),
        };
        OutputItem::McpCall(CallItem {
            id: &self.id,
            status,
            server_label: &self.server,
            name: &self.name,
            arguments,
            approval_request_id: None,
            output,
            error,
        })
    }
}

#[derive(Clone, Copy, Debug)]
pub enum CallResult<'a> {
    None,
    Output(&'a Text),
    Error(&'a Text),
}

impl Output {
    pub fn new(log: &str) -> Output {
        Output {
            log: log.into(),
            items: Vec::new(),
            open_text: None,
            calls: Vec::new(),
            seen: String::new(),
            last: String::new(),
        }
    }

    /// Makes room for an item that begins with this event: its name and its index.
    pub fn open(&mut self, prefix: &str, seq: Seq) -> (Box<str>, usize) {
        self.items.push(None);
        (id::item(prefix, seq, &self.log), self.items.len() - 1)
    }

    /// Another name of what begins with this event.
    pub fn name(&self, prefix: &str, seq: Seq) -> Box<str> {
        id::item(prefix, seq, &self.log)
    }

    /// The item is whole.
    pub fn close(&mut self, index: usize, item: &OutputItem<'_>) {
        if let Some(place) = self.items.get_mut(index) {
            *place = Some(json::raw(item).into());
        }
    }

    /// Everything, with what is open as far as it has come.
    pub fn items(&self) -> Vec<Arc<RawValue>> {
        let open_text = |index| {
            let open_text = self.open_text.as_ref().filter(|open_text| open_text.index == index)?;
            Some(json::raw(&open_text.item(ItemStatus::InProgress)))
        };
        let called = |index| {
            let call = self.calls.iter().find(|call| call.index == index)?;
            Some(json::raw(&call.item(ItemStatus::InProgress, &call.arguments, CallResult::None)))
        };
        let open = |index| open_text(index).or_else(|| called(index)).map(Arc::from);
        self.items.iter().enumerate().filter_map(|(index, item)| item.clone().or_else(|| open(index))).collect()
    }
}

/// It holds what people and agents said.
impl fmt::Debug for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Output({} items, {} calls open)", self.items.len(), self.calls.len())
    }
}
