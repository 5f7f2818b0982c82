//! Progress of calls on a pipe. Callers may choose the same token, so each call has one of its own there, and its caller hears of it under
//! the token that it gave.

use std::borrow::Cow;

use bowline_core::attribution::CallNumber;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::call::Inbound;
use crate::fields::{Fields, Raw};

pub(super) const PROGRESS: &str = "notifications/progress";
const TOKEN: &str = "progressToken";

/// The parameters of a call with its number as its token, and the token that its caller gave, if it wants to hear of progress.
pub(super) fn with_own_token(
    params: Option<&RawValue>,
    number: CallNumber,
) -> (Option<Cow<'_, RawValue>>, Option<Raw>) {
    let unchanged = params.map(Cow::Borrowed);
    // Most have no `_meta`, so the rest is not opened to look for it.
    let described = params.and_then(|params| serde_json::from_str::<Described<'_>>(params.get()).ok());
    if described.is_some_and(|params| params.meta.is_none()) {
        return (unchanged, None);
    }
    let mut fields = Fields::of(params);
    let mut meta = fields.object("_meta");
    let Some(token) = meta.get(TOKEN).map(ToOwned::to_owned) else { return (unchanged, None) };
    meta.put(TOKEN, &number);
    fields.set("_meta", meta.to_raw());
    (Some(Cow::Owned(fields.to_raw())), Some(token))
}

/// Parameters of which only this is looked at.
#[derive(Deserialize)]
struct Described<'a> {
    #[serde(default, borrow, rename = "_meta")]
    meta: Option<&'a RawValue>,
}

/// The call that a notification of progress is about.
pub(super) fn call_of(progress: &Fields) -> Option<CallNumber> {
    progress.read(TOKEN)
}

/// The call whose progress anything else names.
pub(super) fn named_call(params: &Fields) -> Option<CallNumber> {
    call_of(&params.object("_meta"))
}

/// What a notification of progress says, under its caller's token.
pub(super) fn under_callers_token(mut progress: Fields, token: Raw) -> Raw {
    progress.set(TOKEN, token);
    progress.to_raw()
}

pub(super) fn is_progress(inbound: &Inbound) -> bool {
    matches!(inbound, Inbound::Notification { method, .. } if method == PROGRESS)
}
