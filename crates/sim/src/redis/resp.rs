//! The protocol of Redis: requests as clients write them, replies in its third version.

use bytes::{Buf, Bytes, BytesMut};

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RespReply {
    Ok,
    Nil,
    Int(i64),
    Bulk(Bytes),
    Error(String),
    Array(Vec<RespReply>),
    Map(Vec<(RespReply, RespReply)>),
    /// Said unasked.
    Push(Vec<RespReply>),
}

impl RespReply {
    pub fn error(sentence: &str) -> RespReply {
        RespReply::Error(sentence.to_owned())
    }

    pub fn text(text: impl Into<String>) -> RespReply {
        RespReply::Bulk(text.into().into())
    }

    pub fn list(parts: impl IntoIterator<Item = Bytes>) -> RespReply {
        RespReply::Array(parts.into_iter().map(RespReply::Bulk).collect())
    }

    pub fn words<const N: usize>(words: [&'static str; N]) -> RespReply {
        RespReply::list(words.map(|word| Bytes::from_static(word.as_bytes())))
    }

    pub fn maybe(bytes: Option<Bytes>) -> RespReply {
        bytes.map_or(RespReply::Nil, RespReply::Bulk)
    }

    /// Writes it down.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let head = |out: &mut Vec<u8>, mark: char, len: usize| out.extend(format!("{mark}{len}\r\n").bytes());
        match self {
            RespReply::Ok => out.extend(b"+OK\r\n"),
            RespReply::Nil => out.extend(b"_\r\n"),
            RespReply::Int(number) => out.extend(format!(":{number}\r\n").bytes()),
            RespReply::Error(sentence) => out.extend(format!("-{sentence}\r\n").bytes()),
            RespReply::Bulk(bytes) => {
                head(out, '$', bytes.len());
                out.extend_from_slice(bytes);
                out.extend(b"\r\n");
            }
            RespReply::Array(parts) => {
                head(out, '*', parts.len());
                parts.iter().for_each(|part| part.encode(out));
            }
            RespReply::Push(parts) => {
                head(out, '>', parts.len());
                parts.iter().for_each(|part| part.encode(out));
            }
            RespReply::Map(pairs) => {
                head(out, '%', pairs.len());
                for (key, value) in pairs {
                    key.encode(out);
                    value.encode(out);
                }
            }
        }
    }
}

/// Takes one request out of what was read, if it is whole.
pub fn take_request(read: &mut BytesMut) -> Option<Vec<Bytes>> {
    let mut at = 0;
    let parts = header(read, &mut at, b'*')?;
    let mut places = Vec::with_capacity(parts);
    for _ in 0..parts {
        let len = header(read, &mut at, b'$')?;
        if read.len() < at + len + 2 {
            return None;
        }
        places.push(at..at + len);
        at += len + 2;
    }
    let whole = read.split_to(at).freeze();
    Some(places.into_iter().map(|place| whole.slice(place)).collect())
}

/// A line with a mark and a number.
fn header(read: &BytesMut, at: &mut usize, mark: u8) -> Option<usize> {
    let mut rest = read.get(*at..)?;
    if !rest.has_remaining() || rest[0] != mark {
        return None;
    }
    rest.advance(1);
    let end = rest.iter().position(|byte| *byte == b'\r').filter(|end| rest.len() > end + 1)?;
    *at += end + 3;
    std::str::from_utf8(&rest[..end]).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_taken_when_it_is_whole_and_not_before() {
        let whole = b"*2\r\n$3\r\nGET\r\n$2\r\na\n\r\n";
        for end in 0..whole.len() {
            assert_eq!(take_request(&mut BytesMut::from(&whole[..end])), None, "{end} bytes");
        }
        let mut read = BytesMut::from(&[&whole[..], b"*1"].concat()[..]);
        assert_eq!(take_request(&mut read), Some(vec![Bytes::from_static(b"GET"), Bytes::from_static(b"a\n")]));
        assert_eq!(&read[..], b"*1");
    }
}
