//! What the Lua files of the store do, in Rust: each in one piece, on the keys of the model.
//!
//! It follows the files line by line, so that the two can be read beside each other.

use bowline_mutant::mutant;
use bytes::Bytes;
use serde_json::Value;

use super::keyspace::Keyspace;
use super::resp::RespReply;

/// The scripts, by their files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelScript {
    Commit,
    Lease,
    GiveBack,
    Read,
    Items,
    Trim,
    Enter,
    Leave,
    Time,
}

impl ModelScript {
    /// The script with this source, if it is one of the store's.
    pub fn of(source: &[u8]) -> Option<ModelScript> {
        macro_rules! lua {
            ($name:literal) => {
                include_str!(concat!("../../../store/src/redis/lua/", $name, ".lua"))
            };
        }
        let all = [
            (ModelScript::Commit, lua!("commit")),
            (ModelScript::Lease, lua!("lease")),
            (ModelScript::GiveBack, lua!("give_back")),
            (ModelScript::Read, lua!("read")),
            (ModelScript::Items, lua!("items")),
            (ModelScript::Trim, lua!("trim")),
            (ModelScript::Enter, lua!("enter")),
            (ModelScript::Leave, lua!("leave")),
            (ModelScript::Time, lua!("time")),
        ];
        all.into_iter().find(|(_, text)| text.as_bytes() == source).map(|(script, _)| script)
    }

    pub fn all_names() -> [(&'static str, ModelScript); 9] {
        [
            ("commit", ModelScript::Commit),
            ("lease", ModelScript::Lease),
            ("give_back", ModelScript::GiveBack),
            ("read", ModelScript::Read),
            ("items", ModelScript::Items),
            ("trim", ModelScript::Trim),
            ("enter", ModelScript::Enter),
            ("leave", ModelScript::Leave),
            ("time", ModelScript::Time),
        ]
    }

    pub fn name(self) -> &'static str {
        ModelScript::all_names().into_iter().find(|(_, script)| *script == self).map_or("", |(name, _)| name)
    }
}

/// What a script has to work with.
pub struct ScriptRun<'a> {
    pub keys: &'a mut Keyspace,
    /// The server's own time.
    pub now_us: u64,
    /// What is published: channels and messages.
    pub published: &'a mut Vec<(Bytes, Bytes)>,
}

impl std::fmt::Debug for ScriptRun<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ScriptRun(at {})", self.now_us)
    }
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap_or_default()
}

fn number(bytes: &[u8]) -> u64 {
    text(bytes).parse().unwrap_or(0)
}

fn digits(number: u64) -> Bytes {
    number.to_string().into()
}

fn word(word: &'static str) -> Bytes {
    Bytes::from_static(word.as_bytes())
}

/// Decimal digits by their value, as the scripts compare fences.
fn is_less(a: &[u8], b: &[u8]) -> bool {
    (a.len(), a) < (b.len(), b)
}

/// The process that made a commit, and the how-many-th of its commits it is, in the id of that.
fn numbered(id: &[u8]) -> Option<(&str, &str)> {
    text(id).strip_suffix(';')?.split_once('.')
}

/// How many events of a log are kept, by the kind in its record.
fn by_kind(kind: Option<&Bytes>, others: u64, tasks: u64, nodes: u64) -> u64 {
    match kind.map(AsRef::as_ref) {
        Some(b"2") => tasks,
        Some(b"7") => nodes,
        _ => others,
    }
}

impl ScriptRun<'_> {
    pub fn run(&mut self, script: ModelScript, keys: &[Bytes], args: &[Bytes]) -> RespReply {
        match script {
            ModelScript::Commit => self.commit(keys, args),
            ModelScript::Lease => self.lease(&keys[0], &args[0], &args[1]),
            ModelScript::GiveBack => self.give_back(&keys[0], &args[0], &args[1]),
            ModelScript::Read => self.read(keys, args),
            ModelScript::Items => self.items(keys, &args[0]),
            ModelScript::Trim => self.trim(keys, args),
            ModelScript::Enter => self.enter(&keys[0], &args[0]),
            ModelScript::Leave => self.leave(&keys[0], &args[0], &args[1]),
            ModelScript::Time => self.time(&keys[0], &args[0], &args[1]),
        }
    }

    fn field(&self, head: &Bytes, field: &str) -> Option<Bytes> {
        self.keys.hash_get(head, field.as_bytes())
    }

    fn commit(&mut self, keys: &[Bytes], args: &[Bytes]) -> RespReply {
        let [head, events, items, ghost, channel] = keys else { return RespReply::error("ERR keys") };
        let mut args = args.iter().cloned();
        let mut take = || args.next().unwrap_or_default();
        let (run, trusted) = (take(), take() == "1");
        let (id, after, fence, fresh_epoch, at_ms) = (take(), take(), take(), take(), take());
        let (others_max, tasks_max, nodes_max) = (number(&take()), number(&take()), number(&take()));
        let (create_epoch, create_after, release) = (take(), take(), take());
        let known = |field: &str| self.field(head, field);
        let (known_fence, known_run, known_id) = (known("x").unwrap_or_default(), known("r"), known("l"));
        let (mut epoch, mut epoch_first) = (known("e"), known("s").unwrap_or_default());
        let mut first = known("f").map_or(0, |first| number(&first));
        let mut next = known("n").map_or(0, |next| number(&next));
        let (was_kind, was_owner) = (known("k"), known("o"));
        if epoch.is_some() && known_id.as_ref() == Some(&id) && !mutant("lua-repeats-a-commit") {
            return decoded(&known("a").unwrap_or_default());
        }
        if epoch.is_none()
            && let Some(gone) = self.keys.text(ghost).filter(|gone| gone.starts_with(&id))
        {
            self.keys.expire_at(ghost, self.now_us / 1000 + 120_000);
            return decoded(&gone[id.len()..]);
        }
        let creates = !create_epoch.is_empty();
        if creates {
            if epoch.is_some() {
                return RespReply::words(["exists"]);
            }
            first = number(&create_after) + 1;
            (epoch_first, next) = (digits(first), first);
            epoch = Some(create_epoch);
        } else if epoch.is_none() {
            return RespReply::words(["none"]);
        } else if is_less(&fence, &known_fence) && !mutant("lua-forgets-the-fence") {
            return RespReply::list([word("stale"), known_fence]);
        } else if fence != "0" && fence == known_fence && !mutant("lua-takes-a-late-commit") {
            let (writer, nth) = numbered(&id).unwrap_or_default();
            let (last_writer, last_nth) = known_id.as_ref().and_then(|id| numbered(id)).unwrap_or_default();
            if !writer.is_empty() && writer == last_writer && is_less(nth.as_bytes(), last_nth.as_bytes()) {
                return RespReply::words(["late"]);
            }
        }
        let mut epoch = epoch.unwrap_or_default();
        let count = number(&take());
        if next + count > 9_007_199_254_740_991 {
            return RespReply::words(["spent"]);
        }
        let life = |run: &[u8]| text(run).split('+').next().unwrap_or_default().to_owned();
        let era = |run: &[u8]| text(run).split('/').next().unwrap_or_default().to_owned();
        let known_run = known_run.unwrap_or_default();
        if !creates {
            let kept =
                life(&known_run) == life(&run) || known_run.ends_with(b"+") && trusted && era(&known_run) == era(&run);
            let is_lost = !after.is_empty() && known_id.as_ref() != Some(&after);
            let is_unknown = fence != known_fence && !mutant("lua-believes-a-lost-grant");
            if is_lost && (!kept || is_unknown) && !mutant("lua-builds-on-what-is-lost") {
                return RespReply::words(["lost"]);
            }
            if !kept && !mutant("lua-keeps-the-epoch") {
                (epoch, epoch_first) = (fresh_epoch, digits(next));
            }
        }
        if !creates && fence != known_fence {
            self.keys.hash_delete(head, b"h");
        }
        if creates {
            self.keys.delete(events);
            self.keys.delete(items);
        }
        let base = next;
        for _ in 0..count {
            let (before, behind) = (take(), take());
            let numbered = format!("\"seq\":{next},\"event_id\":\"{}-{next}\"", text(&epoch));
            let bytes = Bytes::from([&before[..], numbered.as_bytes(), &behind[..]].concat());
            if !self.keys.stream_add(events, next, at_ms.clone(), bytes.clone()) {
                if next > base {
                    return RespReply::error(
                        "ERR The ID specified in XADD is equal or smaller than the target stream top item",
                    );
                }
                self.keys.delete(events);
                first = next;
                self.keys.stream_add(events, next, at_ms.clone(), bytes);
            }
            next += 1;
        }
        let mut fields = vec![
            (word("e"), epoch.clone()),
            (word("s"), epoch_first),
            (word("n"), digits(next)),
            (word("x"), fence),
            (word("r"), run),
            (word("l"), id.clone()),
        ];
        let mut kind = was_kind.clone();
        if take() == "1" {
            kind = Some(take());
            fields.push((word("k"), kind.clone().unwrap_or_default()));
            fields.push((word("o"), take()));
            fields.push((word("t"), take()));
            fields.push((word("b"), take()));
        }
        for _ in 0..number(&take()) {
            let key = take();
            if take() == "1" {
                self.keys.hash_set(items, key, take());
            } else {
                self.keys.hash_delete(items, &key);
            }
        }
        let events_max = by_kind(kind.as_ref(), others_max, tasks_max, nodes_max);
        let from = first;
        if next - first > events_max {
            first = next - events_max;
            self.keys.stream_trim(events, first);
        }
        let mut answer = vec![word("done"), epoch.clone(), digits(base), digits(next), digits(from), digits(first)];
        let kept: Vec<&str> = answer.iter().map(|part| text(part)).collect();
        let kept = serde_json::to_string(&kept).unwrap_or_default();
        let mut news = Bytes::new();
        if release == "log" {
            for key in [head, events, items] {
                self.keys.delete(key);
            }
            let remembered = [&id[..], kept.as_bytes()].concat();
            self.keys.set_text(ghost, remembered, self.now_us / 1000 + 120_000);
        } else {
            if release == "contents" {
                self.keys.delete(events);
                self.keys.delete(items);
                first = next;
            }
            fields.push((word("f"), digits(first)));
            fields.push((word("a"), kept.into()));
            for (field, value) in fields {
                self.keys.hash_set(head, field, value);
            }
            news = format!("{} {} {first} {next}", text(&id), text(&epoch)).into();
        }
        self.published.push((channel.clone(), news));
        answer.push(was_kind.unwrap_or_default());
        answer.push(was_owner.unwrap_or_default());
        RespReply::list(answer)
    }

    fn lease(&mut self, head: &Bytes, by: &Bytes, instead_of: &Bytes) -> RespReply {
        let Some(fence) = self.field(head, "x") else { return RespReply::words(["none"]) };
        if let Some(holder) = self.field(head, "h").filter(|holder| holder != by && holder != instead_of) {
            return RespReply::list([word("held"), holder]);
        }
        let granted = digits((number(&fence) + 1).max(self.now_us));
        self.keys.hash_set(head, word("x"), granted.clone());
        self.keys.hash_set(head, word("h"), by.clone());
        RespReply::list([word("done"), granted, self.field(head, "l").unwrap_or_default()])
    }

    fn give_back(&mut self, head: &Bytes, by: &Bytes, fence: &Bytes) -> RespReply {
        if self.field(head, "x").as_ref() == Some(fence) && self.field(head, "h").as_ref() == Some(by) {
            self.keys.hash_delete(head, b"h");
        }
        RespReply::words(["done"])
    }

    fn read(&mut self, keys: &[Bytes], args: &[Bytes]) -> RespReply {
        let (head, events) = (&keys[0], &keys[1]);
        let Some(epoch) = self.field(head, "e") else { return RespReply::words(["none"]) };
        let known = |field: &str| self.field(head, field).unwrap_or_default();
        let (epoch_first, mut first, next) = (known("s"), number(&known("f")), number(&known("n")));
        let mut from = number(&args[0]).max(first);
        let (most, bytes_max) = (number(&args[1]), number(&args[2]));
        let (mut found, hole) = self.unbroken(events, from, next, most, bytes_max);
        if let (Some(behind), true) = (hole, found.is_empty()) {
            first = behind.min(next);
            self.keys.hash_set(head, word("f"), digits(first));
            self.keys.stream_trim(events, first);
            from = first;
            found = self.unbroken(events, from, next, most, bytes_max).0;
        }
        let found = RespReply::list(found);
        let parts = [word("done"), epoch, epoch_first, digits(first), digits(next), digits(from)];
        RespReply::Array(parts.into_iter().map(RespReply::Bulk).chain([found]).collect())
    }

    /// Events from a number on without a hole, and where it goes on behind the first hole.
    fn unbroken(&self, events: &Bytes, from: u64, next: u64, most: u64, bytes_max: u64) -> (Vec<Bytes>, Option<u64>) {
        let (mut found, mut seq, mut bytes_left) = (Vec::new(), from, bytes_max);
        while seq < next && (found.len() as u64) < most {
            let chunk = self.keys.stream_from(events, seq, 64);
            if chunk.is_empty() {
                return (found, Some(next));
            }
            for (number, _, bytes) in chunk {
                if number != seq {
                    return (found, Some(number));
                }
                if (!found.is_empty() && bytes.len() as u64 > bytes_left) || found.len() as u64 >= most {
                    return (found, None);
                }
                bytes_left = bytes_left.saturating_sub(bytes.len() as u64);
                found.push(bytes);
                seq += 1;
            }
        }
        (found, None)
    }

    fn items(&mut self, keys: &[Bytes], prefix: &Bytes) -> RespReply {
        if !self.keys.has(&keys[0]) {
            return RespReply::words(["none"]);
        }
        let fields = self.keys.hash_fields(&keys[1]).into_iter().filter(|(key, _)| key.starts_with(prefix));
        let found: Vec<Bytes> = fields.flat_map(|(key, value)| [key, value]).collect();
        RespReply::Array(vec![RespReply::Bulk(word("done")), RespReply::list(found)])
    }

    fn trim(&mut self, keys: &[Bytes], args: &[Bytes]) -> RespReply {
        let (head, events, channel) = (&keys[0], &keys[1], &keys[2]);
        if self.field(head, "e").is_none() {
            return RespReply::words(["none"]);
        }
        let kind = self.field(head, "k");
        let oldest = by_kind(kind.as_ref(), number(&args[0]), number(&args[1]), number(&args[2]));
        let known = |field: &str| number(&self.field(head, field).unwrap_or_default());
        let (from, next) = (known("f"), known("n"));
        let (mut first, mut since) = (from, Bytes::new());
        while first < next && since.is_empty() && first - from < 5000 {
            let chunk = self.keys.stream_from(events, first, 100);
            if chunk.is_empty() {
                first = next;
            }
            for (number_of, at, _) in chunk {
                if number(&at) >= oldest {
                    since = at;
                    break;
                }
                first = number_of + 1;
            }
        }
        if first > from {
            self.keys.hash_set(head, word("f"), digits(first));
            self.keys.stream_trim(events, first);
            self.published.push((channel.clone(), Bytes::new()));
        }
        let more = if first < next && since.is_empty() { word("1") } else { word("0") };
        let owner = self.field(head, "o").unwrap_or_default();
        RespReply::list([word("done"), digits(from), digits(first), since, more, kind.unwrap_or_default(), owner])
    }

    fn enter(&mut self, key: &Bytes, name: &Bytes) -> RespReply {
        let was = self.keys.score(key, name);
        let entered = was.map_or(self.now_us, |was| self.now_us.max(was + 1));
        self.keys.set_score(key, name.clone(), entered);
        RespReply::Bulk(if was.is_some() { Bytes::new() } else { digits(entered) })
    }

    fn leave(&mut self, key: &Bytes, name: &Bytes, limit: &Bytes) -> RespReply {
        let limit = if limit.is_empty() { self.now_us.saturating_sub(600_000_000) } else { number(limit) };
        let leaves = self.keys.score(key, name).is_some_and(|was| was <= limit);
        if leaves {
            self.keys.remove_name(key, name);
        }
        RespReply::Int(i64::from(leaves))
    }

    fn time(&mut self, key: &Bytes, said: &Bytes, kept_ms: &Bytes) -> RespReply {
        let own = self.now_us / 1000;
        if !said.is_empty() {
            let ahead = i128::from(number(said)) - i128::from(own);
            self.keys.set_text(key, ahead.to_string(), own + number(kept_ms));
            return RespReply::Bulk(said.clone());
        }
        let ahead: i64 = self.keys.text(key).and_then(|ahead| text(&ahead).parse().ok()).unwrap_or(0);
        RespReply::Bulk(digits(own.saturating_add_signed(ahead)))
    }
}

/// What a commit was answered before.
fn decoded(kept: &[u8]) -> RespReply {
    let parts: Vec<Value> = serde_json::from_slice(kept).unwrap_or_default();
    RespReply::list(parts.iter().map(|part| Bytes::from(part.as_str().unwrap_or_default().to_owned())))
}
