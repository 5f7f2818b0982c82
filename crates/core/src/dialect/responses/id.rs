//! The names of responses and of what they consist of. A name says in which log its events are, so nothing has to be looked up.

use std::fmt;

use bowline_protocol::{LogId, Seq};

const RESPONSE: &str = "resp_";
const QUESTION: &str = "mcpr_";
const CALL: &str = "call_";

/// One response: a turn of a session up to its first question or its end, or what follows such a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseId {
    pub log: LogId,
    /// The event that began the turn.
    pub turn: Seq,
    /// The question of the turn that this response follows.
    pub question: Option<Seq>,
}

impl ResponseId {
    pub fn of_turn(log: LogId, turn: Seq) -> ResponseId {
        ResponseId { log, turn, question: None }
    }

    pub fn parse(text: &str) -> Option<ResponseId> {
        let (place, log) = text.strip_prefix(RESPONSE)?.split_once('_')?;
        let (turn, question) = match place.split_once('-') {
            Some((turn, question)) => (turn, Some(number(question)?)),
            None => (place, None),
        };
        let turn = number(turn)?;
        let is_behind = question.is_none_or(|question| question > turn);
        Some(ResponseId { log: LogId::parse(log).filter(|_| is_behind)?, turn, question })
    }

    /// The first event that is projected: the one that began the turn, or the question.
    pub fn first(&self) -> Seq {
        self.question.unwrap_or(self.turn)
    }
}

impl fmt::Display for ResponseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{RESPONSE}{}", self.turn)?;
        self.question.map_or(Ok(()), |question| write!(f, "-{question}"))?;
        write!(f, "_{}", self.log)
    }
}

/// Which question an approval request stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuestionId {
    pub log: LogId,
    /// The event that asks.
    pub asked: Seq,
}

impl QuestionId {
    pub fn parse(text: &str) -> Option<QuestionId> {
        let (asked, log) = text.strip_prefix(QUESTION)?.split_once('_')?;
        Some(QuestionId { log: LogId::parse(log)?, asked: number(asked)? })
    }
}

/// Which call of a function an output is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallId {
    pub log: LogId,
    /// The event that shows the call.
    pub called: Seq,
}

impl CallId {
    pub fn parse(text: &str) -> Option<CallId> {
        let (called, log) = text.strip_prefix(CALL)?.split_once('_')?;
        Some(CallId { log: LogId::parse(log)?, called: number(called)? })
    }
}

impl fmt::Display for CallId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{CALL}{}_{}", self.called, self.log)
    }
}

/// The name of an item that began with this event.
pub(super) fn item(prefix: &str, seq: Seq, log: &str) -> Box<str> {
    format!("{prefix}_{seq}_{log}").into()
}

/// A number as we write it, so that each thing has one name.
fn number(text: &str) -> Option<Seq> {
    let plain = !text.starts_with('0') && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| plain).and_then(Seq::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_where_its_events_are() {
        let log = LogId::parse("sess_1").unwrap();
        let turn = ResponseId::of_turn(log.clone(), Seq::new(12).unwrap());
        assert_eq!(turn.to_string(), "resp_12_sess_1");
        let behind = ResponseId { question: Seq::new(15), ..turn.clone() };
        assert_eq!(behind.to_string(), "resp_12-15_sess_1");
        for id in [turn, behind] {
            assert_eq!(ResponseId::parse(&id.to_string()), Some(id));
        }
        let asked = QuestionId { log, asked: Seq::new(15).unwrap() };
        assert_eq!(QuestionId::parse("mcpr_15_sess_1"), Some(asked));
        let call = CallId::parse("call_16_sess_1").unwrap();
        assert_eq!((call.called, call.to_string().as_str()), (Seq::new(16).unwrap(), "call_16_sess_1"));
    }

    #[test]
    fn what_we_never_wrote_is_no_name() {
        for text in
            ["", "resp_", "resp_1", "resp_01_x", "resp_x_y", "resp_5-5_x", "resp_5-_x", "resp_-6_x", "resp_+1_x"]
        {
            assert_eq!(ResponseId::parse(text), None, "{text}");
        }
        for text in ["mcpr_1", "mcpr_01_x", "msg_1_x", "mcpr_1_"] {
            assert_eq!(QuestionId::parse(text), None, "{text}");
            assert_eq!(CallId::parse(&text.replace("mcpr", "call")), None, "{text}");
        }
    }
}
