//! Why a signed state is refused: in full for an operator, and not at all for a forger.

use bowline_protocol::{ErrorCode, Refusal};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SealRefusal {
    TooLarge,
    TooDeep,
    /// Neither an object nor a token of ours.
    Shape,
    UnknownKey,
    RetiredKey,
    /// Not signed by the key it names, altered since, or another principal's.
    Signature,
    OtherVersion,
    Expired,
    FromTheFuture,
    Structure,
}

/// One sentence for all that a forger could learn from.
const NO: &str = "The signed state could not be verified.";

impl SealRefusal {
    pub const ALL: &[SealRefusal] = &[
        SealRefusal::TooLarge,
        SealRefusal::TooDeep,
        SealRefusal::Shape,
        SealRefusal::UnknownKey,
        SealRefusal::RetiredKey,
        SealRefusal::Signature,
        SealRefusal::OtherVersion,
        SealRefusal::Expired,
        SealRefusal::FromTheFuture,
        SealRefusal::Structure,
    ];

    pub const fn code(self) -> ErrorCode {
        match self {
            SealRefusal::TooLarge => ErrorCode::StateTooLarge,
            SealRefusal::TooDeep
            | SealRefusal::Shape
            | SealRefusal::UnknownKey
            | SealRefusal::RetiredKey
            | SealRefusal::Signature => ErrorCode::StateVerificationFailed,
            SealRefusal::OtherVersion => ErrorCode::StateVersionMismatch,
            SealRefusal::Expired | SealRefusal::FromTheFuture => ErrorCode::StateExpired,
            SealRefusal::Structure => ErrorCode::StateRestoreFailed,
        }
    }

    /// The sentence for the client.
    pub const fn sentence(self) -> &'static str {
        match self {
            SealRefusal::TooLarge => "The signed state is too large.",
            SealRefusal::TooDeep
            | SealRefusal::Shape
            | SealRefusal::UnknownKey
            | SealRefusal::RetiredKey
            | SealRefusal::Signature => NO,
            SealRefusal::OtherVersion => "The signed state has a version that this server cannot read.",
            SealRefusal::Expired => "The signed state has expired.",
            SealRefusal::FromTheFuture => "The signed state is dated in the future.",
            SealRefusal::Structure => "The signed state lacks what a session needs.",
        }
    }

    /// One word for a metric and for programs. It tells more than [`sentence`](Self::sentence): never send it to a client.
    pub const fn reason(self) -> &'static str {
        match self {
            SealRefusal::TooLarge => "too_large",
            SealRefusal::TooDeep => "too_deep",
            SealRefusal::Shape => "shape",
            SealRefusal::UnknownKey => "unknown_key",
            SealRefusal::RetiredKey => "retired_key",
            SealRefusal::Signature => "signature",
            SealRefusal::OtherVersion => "version",
            SealRefusal::Expired => "expired",
            SealRefusal::FromTheFuture => "from_the_future",
            SealRefusal::Structure => "structure",
        }
    }

    /// The whole truth, for an operator.
    pub const fn explanation(self) -> &'static str {
        match self {
            SealRefusal::TooLarge => "it is larger than `state.bytes_max` allows",
            SealRefusal::TooDeep => "it nests deeper than `limits.json_depth_max`",
            SealRefusal::Shape => "it is neither the object nor the token form of a signed state, or it was cut short",
            SealRefusal::UnknownKey => "it names a key that is not in the ring",
            SealRefusal::RetiredKey => "its key was retired",
            SealRefusal::Signature => "its signature does not fit: it was altered, or it belongs to another owner",
            SealRefusal::OtherVersion => "it is properly signed, but of a version that this server cannot read",
            SealRefusal::Expired => "it is properly signed, but older than `state.ttl`",
            SealRefusal::FromTheFuture => "it is properly signed, but dated in the future; compare the clocks",
            SealRefusal::Structure => "it is properly signed, but lacks what a session needs",
        }
    }
}

impl From<SealRefusal> for Refusal {
    fn from(refusal: SealRefusal) -> Refusal {
        Refusal::new(refusal.code(), refusal.sentence())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn before_the_signature_is_known_to_be_ours_every_no_is_the_same() {
        let same = SealRefusal::ALL.iter().filter(|one| one.code() == ErrorCode::StateVerificationFailed);
        let refusals: Vec<Refusal> = same.map(|one| Refusal::from(*one)).collect();
        assert_eq!(refusals.len(), 5);
        assert!(refusals.iter().all(|refusal| *refusal == refusals[0]));
    }
}
