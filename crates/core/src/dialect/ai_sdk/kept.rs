//! How chunks are written where the state of a projection is kept: each is JSON, and so a text.

use bytes::Bytes;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

fn text(chunk: &Bytes) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(chunk)
}

pub mod chunk {
    use super::*;

    pub fn serialize<S: Serializer>(chunk: &Bytes, to: S) -> Result<S::Ok, S::Error> {
        text(chunk).serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Bytes, D::Error> {
        String::deserialize(from).map(Bytes::from)
    }
}

pub mod maybe_chunk {
    use super::*;

    pub fn serialize<S: Serializer>(chunk: &Option<Bytes>, to: S) -> Result<S::Ok, S::Error> {
        chunk.as_ref().map(text).serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Bytes>, D::Error> {
        Ok(Option::<String>::deserialize(from)?.map(Bytes::from))
    }
}

pub mod chunks {
    use super::*;

    pub fn serialize<S: Serializer>(chunks: &[Bytes], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(chunks.iter().map(text))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Bytes>, D::Error> {
        Ok(Vec::<String>::deserialize(from)?.into_iter().map(Bytes::from).collect())
    }
}
