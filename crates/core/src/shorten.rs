//! Makes a state short enough to be carried: the oldest messages go first, and one huge message is cut with a mark.

use bowline_protocol::State;
use bowline_protocol::state::MemoryMessage;

use crate::canonical::canonical;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateLimits {
    pub messages_max: usize,
    /// Bytes of the canonical state.
    pub bytes_max: usize,
}

/// Even without a single message the state is too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong {
    pub bytes: usize,
}

/// What stands where the rest of a message was.
const MARK: &str = "… [cut]";

/// Shortens the conversation until the state fits. True if anything was left out.
pub fn shorten(state: &mut State, limits: StateLimits) -> Result<bool, TooLong> {
    let mut messages = std::mem::take(&mut state.memory_snapshot);
    let rest = canonical(&serde_json::to_value(&*state).unwrap_or_default()).len();
    let Some(room) = limits.bytes_max.checked_sub(rest) else {
        state.memory_snapshot = messages;
        return Err(TooLong { bytes: rest });
    };
    let surplus = messages.len().saturating_sub(limits.messages_max);
    let mut truncated = surplus > 0;
    messages.drain(..surplus);
    if messages.iter().map(bytes_of).sum::<usize>() > room {
        truncated = true;
        // No message may take more than half of the room, else one pasted file would push out the whole conversation.
        messages.iter_mut().for_each(|message| cut(message, room / 2));
        let kept = how_many_fit(messages.iter().rev().map(bytes_of), room);
        messages.drain(..messages.len() - kept);
    }
    state.memory_snapshot = messages;
    Ok(truncated)
}

/// How many of the sizes, from the first on, fit into `room` together.
fn how_many_fit(sizes: impl Iterator<Item = usize>, room: usize) -> usize {
    let sums = sizes.scan(0usize, |sum, size| {
        *sum += size;
        Some(*sum)
    });
    sums.take_while(|sum| *sum <= room).count()
}

/// As JSON, with the comma behind it.
fn bytes_of(message: &MemoryMessage) -> usize {
    canonical(&serde_json::to_value(message).unwrap_or_default()).len() + 1
}

/// Cuts the content so that the whole message takes at most `bytes_max`, if there is enough content to cut.
fn cut(message: &mut MemoryMessage, bytes_max: usize) {
    let Some(surplus) = bytes_of(message).checked_sub(bytes_max).filter(|surplus| *surplus > 0) else { return };
    let content: usize = message.content.chars().map(escaped_bytes).sum();
    let Some(room) = content.checked_sub(surplus + MARK.len()) else { return };
    let chars = how_many_fit(message.content.chars().map(escaped_bytes), room);
    let kept: usize = message.content.chars().take(chars).map(char::len_utf8).sum();
    message.content.truncate(kept);
    message.content.push_str(MARK);
}

/// Bytes of a character inside a canonical JSON string.
fn escaped_bytes(c: char) -> usize {
    match c {
        '"' | '\\' | '\n' | '\r' | '\t' | '\u{8}' | '\u{c}' => 2,
        '\0'..='\u{1f}' => 6,
        c => c.len_utf8(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn state(contents: &[&str]) -> State {
        let messages: Vec<_> = contents.iter().map(|text| json!({ "role": "user", "content": text })).collect();
        serde_json::from_value(json!({
            "session_id": "sess_1", "epoch": "e1", "last_seq": 7, "created_at": "", "last_active_at": "",
            "memory_snapshot": messages, "metadata": { "agent_name": "demo", "session_state": "idle" },
        }))
        .unwrap()
    }

    fn size(state: &State) -> usize {
        canonical(&serde_json::to_value(state).unwrap()).len()
    }

    fn contents(state: &State) -> Vec<&str> {
        state.memory_snapshot.iter().map(|message| message.content.as_str()).collect()
    }

    #[test]
    fn what_fits_is_left_alone() {
        let mut state = state(&["a", "b", "c"]);
        assert_eq!(shorten(&mut state, StateLimits { messages_max: 3, bytes_max: 100_000 }), Ok(false));
        assert_eq!(contents(&state), ["a", "b", "c"]);
    }

    #[test]
    fn the_oldest_messages_go_first_and_it_is_said() {
        let mut state = state(&["a", "b", "c"]);
        assert_eq!(shorten(&mut state, StateLimits { messages_max: 2, bytes_max: 100_000 }), Ok(true));
        assert_eq!(contents(&state), ["b", "c"]);
        let bytes_max = size(&state) - 1;
        assert_eq!(shorten(&mut state, StateLimits { messages_max: 2, bytes_max }), Ok(true));
        assert_eq!(contents(&state), ["c"]);
    }

    #[test]
    fn one_huge_message_is_cut_with_a_mark_and_does_not_push_out_the_others() {
        let huge = "\u{1}é\"".repeat(100_000);
        let mut state = state(&["before", &huge, "after"]);
        assert_eq!(shorten(&mut state, StateLimits { messages_max: 100, bytes_max: 10_000 }), Ok(true));
        assert_eq!((contents(&state)[0], contents(&state)[2]), ("before", "after"));
        assert!(contents(&state)[1].ends_with(MARK) && contents(&state)[1].len() > 1500);
        assert!(size(&state) <= 10_000);
    }

    #[test]
    fn a_state_that_is_too_long_without_any_message_is_refused() {
        let mut state = state(&["a"]);
        state.plan_context = json!("x".repeat(1000));
        let refused = shorten(&mut state, StateLimits { messages_max: 1, bytes_max: 1000 });
        assert!(refused.is_err_and(|too_long| too_long.bytes > 1000));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]

        #[test]
        fn the_result_always_fits_and_is_the_end_of_the_conversation(
            texts in prop::collection::vec(".{0,200}", 0..20), messages_max in 1usize..20, bytes_max in 500usize..3000,
        ) {
            let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
            let mut short = state(&texts);
            let truncated = shorten(&mut short, StateLimits { messages_max, bytes_max }).unwrap();
            prop_assert!(size(&short) <= bytes_max && short.memory_snapshot.len() <= messages_max);
            prop_assert_eq!(truncated, short != state(&texts));
            let tail = &texts[texts.len() - short.memory_snapshot.len()..];
            for (was, is) in tail.iter().zip(contents(&short)) {
                prop_assert!(*was == is || is.strip_suffix(MARK).is_some_and(|kept| was.starts_with(kept)));
            }
        }
    }
}
