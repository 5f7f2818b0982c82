//! Progress of calls on a pipe. Callers may choose the same token, so each call has one of its own there, and its caller hears of it under
//! the token that it gave.

use bowline_core::attribution::CallNumber;

use crate::call::Inbound;
use crate::fields::{Fields, Raw};

pub(super) const PROGRESS: &str = "notifications/progress";
const TOKEN: &str = "progressToken";

/// The parameters of a call with its number as its token, and the token that its caller gave, if it wants to hear of progress.
pub(super) fn with_own_token(params: Option<Raw>, number: CallNumber) -> (Option<Raw>, Option<Raw>) {
    let mut fields = Fields::of(params.as_deref());
    let mut meta = fields.object("_meta");
    let Some(token) = meta.get(TOKEN).map(ToOwned::to_owned) else { return (params, None) };
    meta.put(TOKEN, &number);
    fields.set("_meta", meta.to_raw());
    (Some(fields.to_raw()), Some(token))
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
