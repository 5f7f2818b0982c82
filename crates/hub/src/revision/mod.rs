//! The revisions of the protocol: a codec for each, and the table of them. Another one is a file here and a line in the table.
//!
//! Requests, questions and answers are translated here, where they enter (`downstream`) and leave (`upstream`). Between the edges a
//! request has one form ([`BackendCall`]), and what differs is not the revision but the [`Exchange`].

mod v2025;
mod v2026;

use std::borrow::Cow;

use serde_json::value::RawValue;

use crate::call::facts::{ClientFacts, ServerFacts};
use crate::call::{BackendCall, CallReply, Caller, Exchange};
use crate::fields::{Fields, Raw};
use crate::message::RpcRequest;

/// Newest first.
const ALL: [&dyn Revision; 2] = [&v2026::Codec2026, &v2025::Codec2025];

/// The codec of a revision. What it says nothing of is as it always was.
pub trait Revision: Sync {
    /// Newest first.
    fn versions(&self) -> &'static [&'static str];

    fn exchange(&self) -> Exchange;

    /// The method with which a client begins.
    fn opening_method(&self) -> &'static str;

    /// The first request to a server, on behalf of this caller.
    fn opening(&self, caller: &Caller) -> BackendCall;

    /// The method by which a server shows that it is there.
    fn ping_method(&self) -> &'static str;

    /// What a server says of itself in the result of the opening.
    fn server_facts(&self, result: &Raw) -> ServerFacts;

    /// Whether a result can be that of the opening, and not that of a server which answers whatever it is asked.
    fn is_of_opening(&self, result: &Raw) -> bool;

    /// Whether an error is one that only servers of this revision know.
    fn is_own_error(&self, _error: &Raw) -> bool {
        false
    }

    /// What is held at a server so that it tells of changes of its lists, if it does not tell of them by itself.
    fn watch(&self) -> Option<BackendCall> {
        None
    }

    /// The parameters of a call as a server of this revision gets them.
    fn params<'a>(&self, call: &'a BackendCall) -> Option<Cow<'a, RawValue>>;

    /// The headers with which a call with these parameters goes out, besides those of a session.
    fn headers(&self, _call: &BackendCall, _params: Option<&RawValue>) -> Vec<(String, String)> {
        Vec::new()
    }

    /// The version that a request says of itself.
    fn said_version(&self, _params: &Fields) -> Option<String> {
        None
    }

    /// Parameters without what only requests of this revision have.
    fn plain(&self, params: Fields) -> Fields {
        params
    }

    /// Whether a request shows by itself that it stands alone, and is of this revision.
    fn stands_alone(&self, _request: &RpcRequest) -> bool {
        false
    }

    /// Whether a request says what it must, and that in a version which is spoken here.
    fn check(&self, _params: &Fields) -> Result<(), CallReply> {
        Ok(())
    }

    /// What a client says of itself: in its opening, or in each of its requests.
    fn client(&self, params: &Fields) -> ClientIntroduction;

    /// The answer to a method that clients of this revision cannot ask for any more.
    fn removed(&self, _method: &str) -> Option<CallReply> {
        None
    }

    /// The result of a client's opening, in the version that was agreed on.
    fn introduced(&self, server: &ServerIntroduction, version: &str) -> Raw;

    /// What a server of another revision is to clients of this one.
    fn across(&self, server: &ServerFacts) -> ServerIntroduction;

    /// A reply as a client must get it, with the HTTP status that goes with it.
    fn reply(&self, _method: &str, reply: CallReply) -> CallReply {
        reply
    }

    /// Whether clients of a version may send several messages in one body, or why not.
    fn check_batch(&self, version: &str) -> Result<(), &'static str>;

    /// Whether clients of a version can take up a stream that has said nothing yet.
    fn primes_streams(&self, _version: &str) -> bool {
        false
    }
}

/// What a server says of itself to a client.
#[derive(Debug)]
pub struct ServerIntroduction {
    pub capabilities: Raw,
    pub info: Raw,
    pub instructions: Option<Raw>,
}

/// What a client says of itself.
#[derive(Debug)]
pub struct ClientIntroduction {
    /// The version that it speaks with us.
    pub version: String,
    pub facts: ClientFacts,
    pub log_level: Option<String>,
}

/// The revision that has a version, if it is known.
pub fn of_version(version: &str) -> Option<&'static dyn Revision> {
    ALL.into_iter().find(|one| one.versions().contains(&version))
}

/// The revision of a side that exchanges messages so and named a version; if that is not known, the newest that exchanges so.
pub fn of(version: &str, exchange: Exchange) -> &'static dyn Revision {
    of_version(version).filter(|one| one.exchange() == exchange).unwrap_or_else(|| newest(exchange))
}

/// Those that exchange messages so, newest first.
pub fn exchanging(exchange: Exchange) -> impl Iterator<Item = &'static dyn Revision> {
    ALL.into_iter().filter(move |one| one.exchange() == exchange)
}

pub fn newest(exchange: Exchange) -> &'static dyn Revision {
    exchanging(exchange).next().unwrap_or(ALL[0])
}

/// The revision of a request that shows by itself that it stands alone. Its version may be unknown.
pub fn standing_alone(request: &RpcRequest) -> Option<&'static dyn Revision> {
    let shown = ALL.into_iter().find(|one| one.stands_alone(request))?;
    let said = shown.said_version(&Fields::of(request.params.as_deref()));
    Some(
        said.and_then(|version| of_version(&version)).filter(|one| one.exchange() == shown.exchange()).unwrap_or(shown),
    )
}

/// The revision in which a method asks a server what it is, without a session.
pub fn discovered_by(method: &str) -> Option<&'static dyn Revision> {
    exchanging(Exchange::Stateless).find(|one| one.opening_method() == method)
}

/// What a client in a session is told of a server that knows no session.
pub fn introduced_across(server: &ServerFacts) -> Raw {
    let revision = newest(Exchange::Session);
    revision.introduced(&revision.across(server), revision.versions()[0])
}

/// Whether an error is one that only servers of some revision know.
pub fn is_own_error(error: &Raw) -> bool {
    ALL.into_iter().any(|one| one.is_own_error(error))
}

/// Parameters without what is a revision's own.
pub fn plain(params: &Fields) -> Fields {
    ALL.into_iter().fold(params.clone(), |params, one| one.plain(params))
}

/// All versions that we speak, newest first.
pub fn versions() -> Vec<&'static str> {
    ALL.into_iter().flat_map(|one| one.versions()).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::RpcId;

    fn exchange_of(version: &str) -> Option<Exchange> {
        of_version(version).map(|one| one.exchange())
    }

    #[test]
    fn a_version_belongs_to_one_revision_or_to_none() {
        assert_eq!(exchange_of("2026-07-28"), Some(Exchange::Stateless));
        assert_eq!(exchange_of("2024-11-05"), Some(Exchange::Session));
        assert_eq!(exchange_of("2027-01-01"), None);
        let mut versions = versions();
        versions.dedup();
        assert_eq!(versions.len(), 5);
        assert!(versions.is_sorted_by(|newer, older| newer > older));
    }

    #[test]
    fn every_way_to_exchange_messages_has_a_revision_also_for_a_version_that_is_not_known() {
        for exchange in [Exchange::Session, Exchange::Stateless] {
            let newest = newest(exchange);
            assert_eq!(newest.exchange(), exchange);
            for version in ["", "2027-01-01", versions()[0], versions()[4]] {
                assert_eq!(of(version, exchange).exchange(), exchange, "{version}");
            }
            assert_eq!(of("2027-01-01", exchange).versions(), newest.versions());
        }
    }

    #[test]
    fn a_request_shows_by_itself_that_it_stands_alone() {
        let request = |method: &str, version: Option<&str>| {
            let meta = version.map(|version| serde_json::json!({ "io.modelcontextprotocol/protocolVersion": version }));
            let params = meta.map(|meta| crate::fields::raw(&serde_json::json!({ "_meta": meta })));
            RpcRequest { id: RpcId::number(1), method: method.to_owned(), params }
        };
        let found = |method, version| standing_alone(&request(method, version)).map(|one| one.exchange());
        for (method, version) in
            [("server/discover", None), ("tools/list", Some("2026-07-28")), ("initialize", Some("?"))]
        {
            assert_eq!(found(method, version), Some(Exchange::Stateless), "{method} {version:?}");
        }
        assert_eq!(found("tools/list", None), None);
        assert_eq!(found("initialize", None), None);
        assert!(discovered_by("server/discover").is_some() && discovered_by("initialize").is_none());
    }
}
