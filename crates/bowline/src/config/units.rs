//! Durations and sizes as people write them: `500ms`, `1h30m`, `7d`; `64KiB`, `1MiB`, or plain bytes.

use std::time::Duration;

/// Largest unit first, so that what we show is as short as it can be.
const DURATION_UNITS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];

const SIZE_UNITS: [(&str, u64); 4] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

/// Reads `30s`, `1.5h` or `1h30m`. A bare number has no unit, so it is not a duration; `0` needs none.
pub fn parse_duration(text: &str) -> Option<Duration> {
    let mut rest = text.trim();
    if rest == "0" {
        return Some(Duration::ZERO);
    }
    let mut total_ms = 0f64;
    let mut last_unit_ms = u64::MAX;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let letters = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
        let unit_ms = unit(&DURATION_UNITS, &rest[..letters])?;
        // Units go down and none comes twice: `30m1h` and `5s5s` are slips of the pen.
        if unit_ms >= last_unit_ms {
            return None;
        }
        last_unit_ms = unit_ms;
        total_ms += number * unit_ms as f64;
        rest = &rest[letters..];
    }
    let sane = last_unit_ms != u64::MAX
        && total_ms.is_finite()
        && total_ms <= Duration::from_hours(24 * 36_500).as_millis() as f64;
    sane.then(|| Duration::from_micros((total_ms * 1000.0).round() as u64))
}

/// The shortest text that [`parse_duration`] reads back.
pub fn show_duration(duration: Duration) -> String {
    let mut left_ms = duration.as_millis() as u64;
    if left_ms == 0 {
        return "0s".to_owned();
    }
    let mut text = String::new();
    for (name, unit_ms) in DURATION_UNITS {
        // One day is written as 24h by most people, so days begin at two.
        if left_ms < unit_ms || (name == "d" && left_ms < 2 * unit_ms) {
            continue;
        }
        text.push_str(&format!("{}{name}", left_ms / unit_ms));
        left_ms %= unit_ms;
    }
    text
}

/// Reads `65536`, `64KiB` or `1MiB`.
pub fn parse_size(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '_').unwrap_or(text.len());
    let number: u64 = text[..digits].replace('_', "").parse().ok()?;
    let name = text[digits..].trim_start();
    let factor = if name.is_empty() { 1 } else { unit(&SIZE_UNITS, name)? };
    number.checked_mul(factor)
}

pub fn show_size(bytes: u64) -> String {
    for (name, factor) in SIZE_UNITS {
        if name != "B" && bytes >= factor && bytes.is_multiple_of(factor) {
            return format!("{}{name}", bytes / factor);
        }
    }
    bytes.to_string()
}

fn unit(units: &[(&str, u64)], name: &str) -> Option<u64> {
    units.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, factor)| *factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn humane_durations_are_read() {
        let cases = [
            ("500ms", 500),
            ("30s", 30_000),
            ("5m", 300_000),
            ("24h", 86_400_000),
            ("7d", 604_800_000),
            ("1h30m", 5_400_000),
            ("1.5s", 1500),
            ("0", 0),
            ("0s", 0),
            ("1d2h3m4s5ms", 93_784_005),
        ];
        for (text, ms) in cases {
            assert_eq!(parse_duration(text), Some(Duration::from_millis(ms)), "{text}");
        }
    }

    #[test]
    fn what_is_not_a_duration_is_refused() {
        for text in ["", "30", "s", "-5s", "5 s", "30m1h", "5s5s", "1y", "1e9d", "..s", "99999999999d", "5s x"] {
            assert_eq!(parse_duration(text), None, "{text}");
        }
    }

    #[test]
    fn a_shown_duration_reads_back() {
        for (ms, text) in
            [(0, "0s"), (250, "250ms"), (30_000, "30s"), (86_400_000, "24h"), (604_800_000, "7d"), (5_400_000, "1h30m")]
        {
            assert_eq!(show_duration(Duration::from_millis(ms)), text);
            assert_eq!(parse_duration(text), Some(Duration::from_millis(ms)));
        }
    }

    #[test]
    fn sizes_are_plain_or_in_binary_units() {
        for (text, bytes) in
            [("0", 0), ("1024", 1024), ("64KiB", 65_536), ("1mib", 1 << 20), ("2 GiB", 2 << 30), ("100_000", 100_000)]
        {
            assert_eq!(parse_size(text), Some(bytes), "{text}");
        }
        for text in ["", "-1", "1KB", "1.5MiB", "99999999999999GiB", "KiB"] {
            assert_eq!(parse_size(text), None, "{text}");
        }
        assert_eq!(
            (show_size(1 << 20), show_size(65_536), show_size(1000)),
            ("1MiB".into(), "64KiB".into(), "1000".into())
        );
    }
}
