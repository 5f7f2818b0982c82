//! A part of a history as a picture (SVG): a line downwards for each one that took part, an arrow for each frame, a mark for each fault.

use std::fmt::Write as _;

/// Between two lines of participants, between two rows, and above the first row.
const COLUMN: usize = 360;
const ROW: usize = 22;
const HEAD: usize = 56;
/// Room on the left for the time.
const LEFT: usize = 110;
/// What of a row is written beside its arrow.
const TEXT_MAX: usize = 46;

/// One line of a history, taken apart.
struct Row<'a> {
    ms: u64,
    who: &'a str,
    what: &'a str,
}

impl Row<'_> {
    fn parse(line: &str) -> Option<Row<'_>> {
        let (ms, rest) = line.trim_start().split_once(" ms  ")?;
        let (who, what) = rest.split_once(' ')?;
        Some(Row { ms: ms.parse().ok()?, who, what: what.trim() })
    }
}

/// The rows of `lines` from `from_ms` to `to_ms` that concern one of `clients`, the server or its disk; all clients if none is named.
pub fn svg(lines: &[String], (from_ms, to_ms): (u64, u64), clients: &[String]) -> String {
    let is_server = |who: &str| matches!(who, "server" | "disk" | "clock");
    let is_wanted = |row: &Row<'_>| {
        (from_ms..=to_ms).contains(&row.ms)
            && (is_server(row.who)
                || clients.is_empty()
                || clients.iter().any(|client| row.who.contains(client.as_str())))
    };
    let rows: Vec<Row<'_>> = lines.iter().filter_map(|line| Row::parse(line)).filter(is_wanted).collect();
    let mut columns = vec!["server"];
    for row in rows.iter().filter(|row| !is_server(row.who)) {
        if !columns.contains(&row.who) {
            columns.push(row.who);
        }
    }
    let x = |who: &str| LEFT + COLUMN * columns.iter().position(|column| *column == who).unwrap_or(0) + 10;
    let (width, height) = (LEFT + COLUMN * (columns.len() - 1).max(1) + 80, HEAD + ROW * rows.len() + 24);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"system-ui, sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
    );
    for column in &columns {
        let at = x(column);
        let _ = writeln!(
            out,
            "<text x=\"{at}\" y=\"24\" font-weight=\"600\" text-anchor=\"middle\">{}</text>",
            escaped(column)
        );
        let _ = writeln!(out, "<line x1=\"{at}\" y1=\"34\" x2=\"{at}\" y2=\"{}\" stroke=\"#bbb\"/>", height - 12);
    }
    for (number, row) in rows.iter().enumerate() {
        let y = HEAD + ROW * number;
        let new_time = number == 0 || rows[number - 1].ms != row.ms;
        if new_time {
            let _ = writeln!(out, "<text x=\"8\" y=\"{}\" fill=\"#666\">{} ms</text>", y + 4, row.ms);
        }
        out.push_str(&drawn(row, x("server"), x(row.who), y, is_server(row.who)));
    }
    out.push_str("</svg>\n");
    out
}

fn drawn(row: &Row<'_>, server: usize, own: usize, y: usize, of_server: bool) -> String {
    let text = |at: usize, color: &str, what: &str| {
        let short: String = what.chars().take(TEXT_MAX).collect();
        let more = if short.len() < what.len() { "…" } else { "" };
        format!("<text x=\"{at}\" y=\"{}\" fill=\"{color}\">{}{more}</text>\n", y - 3, escaped(&short))
    };
    let arrow = |from: usize, to: usize, color: &str| {
        let tip = if to > from { to - 7 } else { to + 7 };
        format!(
            "<line x1=\"{from}\" y1=\"{y}\" x2=\"{to}\" y2=\"{y}\" stroke=\"{color}\"/>\
             <path d=\"M{to} {y}L{tip} {}L{tip} {}Z\" fill=\"{color}\"/>\n",
            y - 4,
            y + 4
        )
    };
    let (color, what) = match row.what.split_once(' ') {
        Some(("✂", what)) => ("#c0262d", what),
        _ => ("#333", row.what),
    };
    if color == "#c0262d" || of_server {
        let mark = format!("<circle cx=\"{own}\" cy=\"{}\" r=\"5\" fill=\"{color}\"/>\n", y - 7);
        return mark + &text(own + 10, color, what);
    }
    let label = own.saturating_sub(COLUMN) + 26;
    match row.what.split_once(' ') {
        Some(("→", what)) => arrow(own, server, "#1c6dd0") + &text(label, "#1c6dd0", what),
        Some(("←", what)) => arrow(server, own, "#2b8a3e") + &text(label, "#2b8a3e", what),
        _ => text(label, "#333", row.what),
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_arrows_faults_are_marks_and_what_was_not_asked_for_is_left_out() {
        let lines = [
            "   4537 ms  holder-21    → user.message \"say <b>\"",
            "   4540 ms  server       ✂ power cut: in the middle of a write",
            "   4542 ms  holder-21    ← agent.final_answer seq=102",
            "   4543 ms  holder-22    → user.ack",
            "   9000 ms  holder-21    ← too late",
        ];
        let picture = svg(&lines.map(str::to_owned), (4000, 5000), &["holder-21".to_owned()]);
        assert_eq!(picture.matches("<path").count(), 2, "{picture}");
        assert_eq!(picture.matches("<circle").count(), 1, "{picture}");
        assert!(picture.contains("say &lt;b&gt;") && !picture.contains("holder-22") && !picture.contains("too late"));
    }
}
