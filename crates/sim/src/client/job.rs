//! What a holder has to say: one message, drawn from the seed.

use crate::dice::Dice;

/// One message, and what the client does about it.
#[derive(Clone, Debug)]
pub struct Job {
    /// Its key, which is also in its text.
    pub tag: String,
    pub text: String,
    /// Cancelled some time after it was sent.
    pub cancel_after_ms: Option<u64>,
}

impl Job {
    pub fn draw(dice: &mut Dice, tag: &str) -> Job {
        // Now and then much at once, which does not fit into the windows of a slow reader.
        let (count, pause) = match dice.percent(8) {
            true => (dice.between(60, 250), 0),
            false => (dice.between(1, 25), [0, 5, 20, 60][dice.below(4) as usize]),
        };
        let text = match dice.below(10) {
            0 => format!("ask {tag}"),
            1 => format!("fail {tag} {count} {pause}"),
            _ => format!("say {tag} {count} {pause}"),
        };
        let cancel_after_ms = dice.percent(15).then(|| dice.below(500));
        Job { tag: tag.to_owned(), text, cancel_after_ms }
    }
}
