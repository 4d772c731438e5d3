//! Items as bytes, where nobody chose another codec (`contract/dataflow.md`).
//!
//! A batch is one value after the other. Reading makes only plain values, never code or objects of a class: bytes from a peer
//! cannot make a worker do anything. [`Writer`] and [`Reader`] know bytes and tokens; what a language makes of them is the
//! SDK's.

/// Values in values, at most.
pub const DEEPEST: usize = 64;

/// One value's beginning. Lists and tuples are followed by so many values, a map by twice as many.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs, reason = "each is what it is called")]
pub enum Token<'a> {
    Null,
    Bool(bool),
    Int(i64),
    /// An integer that does not fit: two's complement, little-endian.
    Big(&'a [u8]),
    Float(f64),
    Text(&'a str),
    Bytes(&'a [u8]),
    List(usize),
    Tuple(usize),
    Map(usize),
}

const NULL: u8 = 0;
const FALSE: u8 = 1;
const TRUE: u8 = 2;
const INT: u8 = 3;
const BIG: u8 = 4;
const FLOAT: u8 = 5;
const TEXT: u8 = 6;
const BYTES: u8 = 7;
const LIST: u8 = 8;
const TUPLE: u8 = 9;
const MAP: u8 = 10;

/// Bytes that are no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "each says what it is")]
pub enum Malformed {
    #[error("a value ends before it is whole")]
    Short,
    #[error("{0} begins no value: the peer uses another codec")]
    Tag(u8),
    #[error("text that is not UTF-8")]
    Text,
    #[error("a number that is too long")]
    Number,
}

/// Appends a value's beginning.
pub fn write(buffer: &mut Vec<u8>, token: Token<'_>) {
    match token {
        Token::Null => buffer.push(NULL),
        Token::Bool(value) => buffer.push(if value { TRUE } else { FALSE }),
        Token::Int(value) => {
            buffer.push(INT);
            varint(buffer, (value << 1 ^ value >> 63) as u64);
        }
        Token::Big(bytes) => with_length(buffer, BIG, bytes),
        Token::Float(value) => {
            buffer.push(FLOAT);
            buffer.extend_from_slice(&value.to_le_bytes());
        }
        Token::Text(text) => with_length(buffer, TEXT, text.as_bytes()),
        Token::Bytes(bytes) => with_length(buffer, BYTES, bytes),
        Token::List(count) => counted(buffer, LIST, count),
        Token::Tuple(count) => counted(buffer, TUPLE, count),
        Token::Map(count) => counted(buffer, MAP, count),
    }
}

fn counted(buffer: &mut Vec<u8>, tag: u8, count: usize) {
    buffer.push(tag);
    varint(buffer, count as u64);
}

fn with_length(buffer: &mut Vec<u8>, tag: u8, bytes: &[u8]) {
    counted(buffer, tag, bytes.len());
    buffer.extend_from_slice(bytes);
}

/// Seven bits a byte, low ones first, the eighth bit where more follow.
fn varint(buffer: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        buffer.push(value as u8 | 0x80);
        value >>= 7;
    }
    buffer.push(value as u8);
}

/// Reads tokens off bytes.
#[derive(Clone, Debug)]
pub struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// From the beginning of a batch.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next one.
    ///
    /// # Errors
    /// Bytes that are none. A count never promises more values than there are bytes left.
    pub fn token(&mut self) -> Result<Token<'a>, Malformed> {
        let tag = self.take(1)?[0];
        Ok(match tag {
            NULL => Token::Null,
            FALSE => Token::Bool(false),
            TRUE => Token::Bool(true),
            INT => {
                let value = self.varint()?;
                Token::Int((value >> 1) as i64 ^ -((value & 1) as i64))
            }
            FLOAT => Token::Float(f64::from_le_bytes(self.take(8)?.try_into().map_err(|_| Malformed::Short)?)),
            BIG => Token::Big(self.counted()?),
            TEXT => Token::Text(std::str::from_utf8(self.counted()?).map_err(|_| Malformed::Text)?),
            BYTES => Token::Bytes(self.counted()?),
            LIST => Token::List(self.count(1)?),
            TUPLE => Token::Tuple(self.count(1)?),
            MAP => Token::Map(self.count(2)?),
            tag => return Err(Malformed::Tag(tag)),
        })
    }

    fn counted(&mut self) -> Result<&'a [u8], Malformed> {
        let length = self.count(1)?;
        self.take(length)
    }

    /// Of things that are so many bytes each, at least.
    fn count(&mut self, each: usize) -> Result<usize, Malformed> {
        let count = usize::try_from(self.varint()?).map_err(|_| Malformed::Short)?;
        if count > self.0.len() / each { Err(Malformed::Short) } else { Ok(count) }
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(Malformed::Short)?;
        self.0 = rest;
        Ok(taken)
    }

    fn varint(&mut self) -> Result<u64, Malformed> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.take(1)?[0];
            if shift == 63 && byte > 1 {
                return Err(Malformed::Number);
            }
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(Malformed::Number)
    }
}

/// Which of so many consumers has that key: CRC-32 of its bytes, as a share of all there are. Keys that are equal must be
/// written alike: booleans and whole floats as integers.
pub fn share(key: &[u8], consumers: usize) -> usize {
    ((u64::from(crc32fast::hash(key)) * consumers as u64) >> 32) as usize
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn written(token: Token<'_>) -> Vec<u8> {
        let mut buffer = Vec::new();
        write(&mut buffer, token);
        buffer
    }

    #[test]
    fn vectors_are_what_this_writes() {
        let text = std::fs::read_to_string("../../contract/vectors/dataflow.json").unwrap();
        let vectors: serde_json::Value = serde_json::from_str(&text).unwrap();
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        for vector in vectors["integers"].as_array().unwrap() {
            let bytes = written(Token::Int(vector["value"].as_i64().unwrap()));
            assert_eq!(hex(&bytes), vector["bytes"].as_str().unwrap());
            assert_eq!(share(&bytes, 1000) as u64, vector["share_of_1000"].as_u64().unwrap());
        }
        for vector in vectors["texts"].as_array().unwrap() {
            let bytes = written(Token::Text(vector["value"].as_str().unwrap()));
            assert_eq!(hex(&bytes), vector["bytes"].as_str().unwrap());
            assert_eq!(share(&bytes, 1000) as u64, vector["share_of_1000"].as_u64().unwrap());
        }
    }

    #[test]
    fn keys_are_shared_evenly() {
        for consumers in [2, 3, 7, 16] {
            let mut shares = vec![0; consumers];
            for key in 0..10_000 {
                shares[share(&written(Token::Int(key)), consumers)] += 1;
            }
            let (least, most) = (shares.iter().min().unwrap(), shares.iter().max().unwrap());
            assert!(*most < least * 3 / 2, "{shares:?}");
        }
    }

    proptest! {
        #[test]
        fn numbers_and_text_come_back(int in any::<i64>(), float in any::<f64>(), text in ".{0,40}") {
            for token in [Token::Int(int), Token::Float(float), Token::Text(&text), Token::Bytes(text.as_bytes())] {
                let bytes = written(token);
                let mut reader = Reader::new(&bytes);
                let read = reader.token().unwrap();
                prop_assert!(read == token || float.is_nan());
                prop_assert!(reader.is_empty());
                prop_assert!(Reader::new(&bytes[..bytes.len() - 1]).token().is_err());
            }
        }

        #[test]
        fn no_bytes_break_it(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let mut reader = Reader::new(&bytes);
            while !reader.is_empty() {
                match reader.token() {
                    Ok(Token::List(count) | Token::Tuple(count) | Token::Map(count)) => prop_assert!(count <= bytes.len()),
                    Ok(_) => {}
                    Err(_) => break,
                }
            }
        }
    }
}
