//! Secrets that can be recognized by their form: bearer tokens, vendors' keys, JWTs, private keys, passwords in URLs.

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;

use super::REDACTED;

/// Keys that begin with a word of their vendor's: the word, and how much must follow it.
const PREFIXES: &[(&str, usize)] = &[
    ("sk-", 16),
    ("sk_live_", 8),
    ("sk_test_", 8),
    ("rk_live_", 8),
    ("whsec_", 16),
    ("ghp_", 16),
    ("gho_", 16),
    ("ghu_", 16),
    ("ghs_", 16),
    ("ghr_", 16),
    ("github_pat_", 16),
    ("glpat-", 16),
    ("xoxa-", 10),
    ("xoxb-", 10),
    ("xoxe-", 10),
    ("xoxo-", 10),
    ("xoxp-", 10),
    ("xoxr-", 10),
    ("xoxs-", 10),
    ("xapp-", 10),
    ("AIza", 30),
    ("npm_", 30),
    ("hf_", 20),
    ("ya29.", 20),
    ("SG.", 20),
];

/// Looking for the end of a password in a URL goes no further, so that the whole stays linear.
const URL_BYTES_MAX: usize = 256;

/// What one reading takes out may hide what the next one finds, as a key that is the user's name in a URL with a password.
/// More readings than this are not worth their time.
const READINGS_MAX: usize = 4;

/// The text without its secrets; `None` if it has none.
pub fn without_secrets(text: &str) -> Option<String> {
    let mut clean = read_once(text)?;
    for _ in 1..READINGS_MAX {
        match read_once(&clean) {
            Some(cleaner) => clean = cleaner,
            None => break,
        }
    }
    Some(clean)
}

fn read_once(text: &str) -> Option<String> {
    let bytes = text.as_bytes();
    let (mut clean, mut copied, mut at) = (String::new(), 0, 0);
    while at < bytes.len() {
        match secret_at(text, at, copied) {
            Some((from, to)) => {
                clean.push_str(&text[copied..from]);
                clean.push_str(REDACTED);
                (copied, at) = (to, to);
            }
            None => at += 1,
        }
    }
    (copied > 0).then(|| clean + &text[copied..])
}

/// Where the secret lies that begins, with its introduction, at this byte; the last one ended at `behind`. Everything
/// looked at is ASCII, so the bounds are those of characters.
fn secret_at(text: &str, at: usize, behind: usize) -> Option<(usize, usize)> {
    let bytes = text.as_bytes();
    match bytes[at] {
        b'-' => return private_key(text, at),
        b':' => return password_in_url(text, at),
        byte if !byte.is_ascii_alphabetic() => return None,
        _ => {}
    }
    // Shapes begin where a word does, or right behind another secret; this is also what keeps the whole linear.
    if at > behind && is_word(bytes[at - 1]) {
        return None;
    }
    let rest = &text[at..];
    let length = by_prefix(rest).or_else(|| aws_key(rest)).or_else(|| jwt(rest));
    length.map(|length| (at, at + length)).or_else(|| introduced(text, at))
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-'
}

/// How many bytes at the beginning are of this kind.
fn run(text: &str, is: impl Fn(u8) -> bool) -> usize {
    text.bytes().take_while(|byte| is(*byte)).count()
}

fn by_prefix(rest: &str) -> Option<usize> {
    let (prefix, min) = PREFIXES.iter().find(|(prefix, _)| rest.starts_with(prefix))?;
    let body = &rest[prefix.len()..];
    let body = &body[..run(body, |byte| is_word(byte) || byte == b'.')];
    let body = body.trim_end_matches('.');
    // A short one counts too if it has a digit, as words seldom do.
    let long = body.len() >= *min || body.len() >= 6 && body.bytes().any(|byte| byte.is_ascii_digit());
    long.then_some(prefix.len() + body.len())
}

/// `AKIA` or `ASIA` and exactly sixteen capitals and digits.
fn aws_key(rest: &str) -> Option<usize> {
    let known = rest.starts_with("AKIA") || rest.starts_with("ASIA");
    let exact = known && run(rest, |byte| byte.is_ascii_uppercase() || byte.is_ascii_digit()) == 20;
    (exact && run(rest, is_word) == 20).then_some(20)
}

/// Three parts of base64url, of which the first begins like a JSON object.
fn jwt(rest: &str) -> Option<usize> {
    if !rest.starts_with("eyJ") {
        return None;
    }
    let header = run(rest, is_word);
    let claims = run(rest.get(header..)?.strip_prefix('.')?, is_word);
    let before = header + 1 + claims;
    let signature = run(rest.get(before..)?.strip_prefix('.')?, is_word);
    (header >= 8 && claims >= 4 && signature >= 4).then_some(before + 1 + signature)
}

/// `Bearer` or `Basic` and what follows; the word itself may stay.
fn introduced(text: &str, at: usize) -> Option<(usize, usize)> {
    let rest = &text.as_bytes()[at..];
    let is = |word: &str| rest.get(..word.len()).is_some_and(|start| start.eq_ignore_ascii_case(word.as_bytes()));
    let (word, looks_right): (&str, fn(&str) -> bool) = match () {
        () if is("bearer") => ("bearer", is_credential),
        () if is("basic") => ("basic", is_user_and_password),
        () => return None,
    };
    let gap = run(&text[at + word.len()..], |byte| matches!(byte, b' ' | b'\t'));
    let from = at + word.len() + gap;
    let body = &text[from..][..run(&text[from..], |byte| is_word(byte) || b"._~+/=".contains(&byte))];
    let body = body.trim_end_matches('.');
    (gap > 0 && looks_right(body)).then_some((from, from + body.len()))
}

/// Not a word of prose: "the bearer of this letter" has no digits, and few words are as long.
fn is_credential(body: &str) -> bool {
    body.len() >= 20 || body.len() >= 4 && body.bytes().any(|byte| !byte.is_ascii_alphabetic())
}

fn is_user_and_password(body: &str) -> bool {
    let decoded = STANDARD_NO_PAD.decode(body.trim_end_matches('='));
    body.len() >= 4 && decoded.is_ok_and(|bytes| bytes.contains(&b':'))
}

/// From `-----BEGIN … PRIVATE KEY-----` to its end, or to the end of the text if it was cut.
fn private_key(text: &str, at: usize) -> Option<(usize, usize)> {
    const BEGIN: &str = "-----BEGIN ";
    const KIND_BYTES_MAX: usize = 64;
    let body = text.get(at..)?.strip_prefix(BEGIN)?;
    let kind = &body[..run(body, |byte| byte.is_ascii_uppercase() || byte == b' ').min(KIND_BYTES_MAX)];
    if !kind.contains("PRIVATE KEY") {
        return None;
    }
    let Some(end) = body.find("-----END ") else { return Some((at, text.len())) };
    let behind = &body[end + "-----END ".len()..];
    let kind = run(behind, |byte| byte.is_ascii_uppercase() || byte == b' ');
    let dashes = run(&behind[kind..], |byte| byte == b'-').min(5);
    Some((at, text.len() - behind.len() + kind + dashes))
}

/// `://user:password@`: the password.
fn password_in_url(text: &str, at: usize) -> Option<(usize, usize)> {
    let rest = text.get(at..)?.strip_prefix("://")?;
    let inside = |byte: u8| byte.is_ascii_graphic() && !b"/?#\"'<>\\".contains(&byte);
    let authority = &rest.as_bytes()[..run(&rest[..floor(rest, URL_BYTES_MAX)], inside)];
    let end = authority.iter().rposition(|byte| *byte == b'@')?;
    let colon = authority[..end].iter().position(|byte| *byte == b':')?;
    let from = at + "://".len();
    let secret = colon + 1 < end && &authority[colon + 1..end] != REDACTED.as_bytes();
    secret.then_some((from + colon + 1, from + end))
}

/// The last boundary of a character at or before `at`.
fn floor(text: &str, at: usize) -> usize {
    (0..=at.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const JWT: &str = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9P";

    #[test]
    fn well_known_secrets_are_found_in_the_middle_of_text() {
        let cases = [
            ("Authorization: Bearer abc.def-123, thanks", "Authorization: Bearer [redacted], thanks"),
            ("bearer  s3cr3t.", "bearer  [redacted]."),
            ("curl -H 'Authorization: Basic dXNlcjpwYXNz'", "curl -H 'Authorization: Basic [redacted]'"),
            ("use sk-proj-abcDEF0123456789xyz now", "use [redacted] now"),
            ("key=sk-ant-api03-abcdefghijklmnop", "key=[redacted]"),
            ("(ghp_0123456789abcdefghij0123456789abcdef)", "([redacted])"),
            ("github_pat_11ABCDEFG0123456789_abcdefgh", "[redacted]"),
            ("xoxb-123456789012-abcdefghijkl!", "[redacted]!"),
            ("AKIAIOSFODNN7EXAMPLE and é", "[redacted] and é"),
            ("postgres://joe:hunter2@db/x", "postgres://joe:[redacted]@db/x"),
            ("https://ghp_0123456789abcdef:x-oauth-basic@h/r", "https://[redacted]:[redacted]@h/r"),
            ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----\nbye", "[redacted]\nbye"),
            ("x -----BEGIN PRIVATE KEY-----\nMIIE", "x [redacted]"),
            ("-----BEGIN PRIVATE KEY-----x-----END PRIVATE KEY-----sk-abcdef0123", "[redacted][redacted]"),
            ("-----BEGIN OPENSSH PRIVATE KEY-----\\nb3Bl\\n-----END OPENSSH PRIVATE KEY-----\\n", "[redacted]\\n"),
        ];
        for (text, wanted) in cases {
            assert_eq!(without_secrets(text).as_deref(), Some(wanted), "{text}");
        }
        assert_eq!(without_secrets(&format!("token {JWT}.")).as_deref(), Some("token [redacted]."));
        assert_eq!(without_secrets(&format!("{JWT} {JWT}")).as_deref(), Some("[redacted] [redacted]"));
    }

    #[test]
    fn prose_and_harmless_text_are_left_alone() {
        for text in [
            "",
            "The bearer of this letter is basic English, a bearer token is not.",
            "Basic understanding of sk-learn and risk-taking, locale sk-SK",
            "task-0123456789abcdef",
            "-----BEGIN CERTIFICATE-----\nMIIE\n-----END CERTIFICATE-----",
            "-----BEGIN PUBLIC KEY-----",
            "AKIA is a prefix, AKIAIOSFODNN7EXAMPLEX is too long",
            "eyJ is how a JWT begins; eyJhbGciOi.J9 is none",
            "https://example.org:8080/a@b mailto:a@b.example",
            "max_tokens: 4096, naïve — ключ 🔑",
        ] {
            assert_eq!(without_secrets(text), None, "{text}");
        }
    }

    #[test]
    fn hostile_text_costs_no_more_than_its_length() {
        for piece in
            ["eyJ.", "eyJa.eyJa.", "bearer ", "sk-", "-----BEGIN ", "-", "://", "://a:", "basic ", "AKIA", "eyJ-"]
        {
            let text = piece.repeat(1_000_000 / piece.len());
            // Quadratic work would take hours here.
            let _ = without_secrets(&text);
        }
        assert!(without_secrets(&format!("eyJ{}", "a".repeat(1_000_000))).is_none());
    }
}
