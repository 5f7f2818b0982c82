//! The keys of the model and their values. A copy is cheap: it shares what does not change.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

/// All keys. Clones are copies.
#[derive(Clone, Debug, Default)]
pub struct Keyspace {
    values: BTreeMap<Bytes, Arc<KeyValue>>,
    /// When a key goes, in milliseconds.
    expires: BTreeMap<Bytes, u64>,
}

/// What a key holds.
#[derive(Clone, Debug)]
pub enum KeyValue {
    Hash(BTreeMap<Bytes, Bytes>),
    Stream(KeyStream),
    Sorted(BTreeMap<Bytes, u64>),
    Text(Bytes),
}

/// A stream whose entries have the fields `t` and `e`.
#[derive(Clone, Debug, Default)]
pub struct KeyStream {
    pub entries: BTreeMap<u64, (Bytes, Bytes)>,
    last: u64,
}

impl Keyspace {
    /// Lets go of what has expired.
    pub fn expire(&mut self, now_ms: u64) {
        let gone: Vec<Bytes> =
            self.expires.iter().filter(|(_, at)| **at <= now_ms).map(|(key, _)| key.clone()).collect();
        gone.iter().for_each(|key| self.delete(key));
    }

    pub fn expire_at(&mut self, key: &Bytes, at_ms: u64) {
        if self.values.contains_key(key) {
            self.expires.insert(key.clone(), at_ms);
        }
    }

    pub fn delete(&mut self, key: &Bytes) {
        self.values.remove(key);
        self.expires.remove(key);
    }

    pub fn has(&self, key: &Bytes) -> bool {
        self.values.contains_key(key)
    }

    fn get(&self, key: &Bytes) -> Option<&KeyValue> {
        self.values.get(key).map(|value| &**value)
    }

    fn change(&mut self, key: &Bytes, empty: KeyValue) -> &mut KeyValue {
        Arc::make_mut(self.values.entry(key.clone()).or_insert_with(|| Arc::new(empty)))
    }

    pub fn hash_get(&self, key: &Bytes, field: &[u8]) -> Option<Bytes> {
        match self.get(key) {
            Some(KeyValue::Hash(hash)) => hash.get(field).cloned(),
            _ => None,
        }
    }

    pub fn hash_set(&mut self, key: &Bytes, field: impl Into<Bytes>, value: impl Into<Bytes>) {
        if let KeyValue::Hash(hash) = self.change(key, KeyValue::Hash(BTreeMap::new())) {
            hash.insert(field.into(), value.into());
        }
    }

    pub fn hash_delete(&mut self, key: &Bytes, field: &[u8]) {
        let Some(value) = self.values.get_mut(key) else { return };
        if let KeyValue::Hash(hash) = Arc::make_mut(value) {
            hash.remove(field);
            if hash.is_empty() {
                self.delete(key);
            }
        }
    }

    pub fn hash_fields(&self, key: &Bytes) -> Vec<(Bytes, Bytes)> {
        match self.get(key) {
            Some(KeyValue::Hash(hash)) => hash.iter().map(|(field, value)| (field.clone(), value.clone())).collect(),
            _ => Vec::new(),
        }
    }

    pub fn text(&self, key: &Bytes) -> Option<Bytes> {
        match self.get(key) {
            Some(KeyValue::Text(text)) => Some(text.clone()),
            _ => None,
        }
    }

    pub fn set_text(&mut self, key: &Bytes, text: impl Into<Bytes>, expires_ms: u64) {
        self.values.insert(key.clone(), Arc::new(KeyValue::Text(text.into())));
        self.expires.insert(key.clone(), expires_ms);
    }

    pub fn score(&self, key: &Bytes, name: &[u8]) -> Option<u64> {
        match self.get(key) {
            Some(KeyValue::Sorted(set)) => set.get(name).copied(),
            _ => None,
        }
    }

    pub fn set_score(&mut self, key: &Bytes, name: Bytes, score: u64) {
        if let KeyValue::Sorted(set) = self.change(key, KeyValue::Sorted(BTreeMap::new())) {
            set.insert(name, score);
        }
    }

    pub fn remove_name(&mut self, key: &Bytes, name: &[u8]) {
        let Some(value) = self.values.get_mut(key) else { return };
        if let KeyValue::Sorted(set) = Arc::make_mut(value) {
            set.remove(name);
            if set.is_empty() {
                self.delete(key);
            }
        }
    }

    /// The names of a sorted set, by score and then by name.
    pub fn names(&self, key: &Bytes) -> Vec<Bytes> {
        let Some(KeyValue::Sorted(set)) = self.get(key) else { return Vec::new() };
        let mut names: Vec<(u64, &Bytes)> = set.iter().map(|(name, score)| (*score, name)).collect();
        names.sort();
        names.into_iter().map(|(_, name)| name.clone()).collect()
    }

    /// Adds an entry to a stream. False if its number is not higher than all before, or if the key is no stream.
    pub fn stream_add(&mut self, key: &Bytes, number: u64, at: Bytes, bytes: Bytes) -> bool {
        match self.change(key, KeyValue::Stream(KeyStream::default())) {
            KeyValue::Stream(stream) if number > stream.last => {
                stream.last = number;
                stream.entries.insert(number, (at, bytes));
                true
            }
            _ => false,
        }
    }

    /// Entries from a number on.
    pub fn stream_from(&self, key: &Bytes, from: u64, most: usize) -> Vec<(u64, Bytes, Bytes)> {
        match self.get(key) {
            Some(KeyValue::Stream(stream)) => stream
                .entries
                .range(from..)
                .take(most)
                .map(|(number, (at, bytes))| (*number, at.clone(), bytes.clone()))
                .collect(),
            _ => Vec::new(),
        }
    }

    /// Lets go of entries before a number. The stream stays, and with it the highest number that it has had.
    pub fn stream_trim(&mut self, key: &Bytes, first: u64) {
        if let Some(value) = self.values.get_mut(key)
            && let KeyValue::Stream(stream) = Arc::make_mut(value)
        {
            stream.entries = stream.entries.split_off(&first);
        }
    }
}
