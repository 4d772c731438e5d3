//! Default codec of items (`contract/dataflow.md`).
//!
//! A batch is a sequence of values. Decoding yields plain values only, never code or objects of a
//! class: bytes from a peer cannot make a worker run anything. [`write_token`] and [`ValueReader`]
//! handle bytes and tokens; the SDKs map tokens to values of their language.

/// Levels of lists, tuples and maps inside each other. Part of the contract: encoders and decoders
/// refuse deeper values.
pub const MAX_NESTING_DEPTH: usize = 64;

/// Start of one value. A list or tuple of n is followed by n values, a map of n by 2n.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs, reason = "each is what it is called")]
pub enum ValueToken<'a> {
    Null,
    Bool(bool),
    Int(i64),
    /// Integer beyond 64 bits: two's complement, little-endian.
    BigInt(&'a [u8]),
    Float(f64),
    Text(&'a str),
    Bytes(&'a [u8]),
    List(usize),
    Tuple(usize),
    Map(usize),
    /// A day, as ISO 8601 writes it.
    Date(&'a str),
    /// A moment, as ISO 8601 writes it.
    DateTime(&'a str),
}

// The tag bytes are on the wire and in checkpoints; the table is in `contract/dataflow.md`, "The
// codec `values`".
const TAG_NULL: u8 = 0;
const TAG_FALSE: u8 = 1;
const TAG_TRUE: u8 = 2;
const TAG_INT: u8 = 3;
const TAG_BIG_INT: u8 = 4;
const TAG_FLOAT: u8 = 5;
const TAG_TEXT: u8 = 6;
const TAG_BYTES: u8 = 7;
const TAG_LIST: u8 = 8;
const TAG_TUPLE: u8 = 9;
const TAG_MAP: u8 = 10;
const TAG_DATE: u8 = 11;
const TAG_DATE_TIME: u8 = 12;

/// Reasons why bytes are not a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "each says what it is")]
pub enum MalformedValue {
    #[error("value is truncated")]
    Truncated,
    #[error("invalid value tag {0}: the peer uses another codec")]
    UnknownTag(u8),
    #[error("text value is not UTF-8")]
    InvalidUtf8,
    #[error("varint is longer than 64 bits")]
    NumberTooLong,
}

/// Appends the start of a value.
pub fn write_token(buffer: &mut Vec<u8>, token: ValueToken<'_>) {
    match token {
        ValueToken::Null => buffer.push(TAG_NULL),
        ValueToken::Bool(value) => buffer.push(if value { TAG_TRUE } else { TAG_FALSE }),
        ValueToken::Int(value) => {
            buffer.push(TAG_INT);
            // Zigzag: small negative numbers stay short, since the sign moves to bit 0.
            write_varint(buffer, (value << 1 ^ value >> 63) as u64);
        }
        ValueToken::BigInt(bytes) => write_bytes(buffer, TAG_BIG_INT, bytes),
        ValueToken::Float(value) => {
            buffer.push(TAG_FLOAT);
            buffer.extend_from_slice(&value.to_le_bytes());
        }
        ValueToken::Text(text) => write_bytes(buffer, TAG_TEXT, text.as_bytes()),
        ValueToken::Bytes(bytes) => write_bytes(buffer, TAG_BYTES, bytes),
        ValueToken::List(count) => write_count(buffer, TAG_LIST, count),
        ValueToken::Tuple(count) => write_count(buffer, TAG_TUPLE, count),
        ValueToken::Map(count) => write_count(buffer, TAG_MAP, count),
        ValueToken::Date(text) => write_bytes(buffer, TAG_DATE, text.as_bytes()),
        ValueToken::DateTime(text) => write_bytes(buffer, TAG_DATE_TIME, text.as_bytes()),
    }
}

fn write_count(buffer: &mut Vec<u8>, tag: u8, count: usize) {
    buffer.push(tag);
    write_varint(buffer, count as u64);
}

fn write_bytes(buffer: &mut Vec<u8>, tag: u8, bytes: &[u8]) {
    write_count(buffer, tag, bytes.len());
    buffer.extend_from_slice(bytes);
}

/// Appends a varint: seven bits per byte, low bits first, bit 7 set when more bytes follow
/// (LEB128).
fn write_varint(buffer: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        buffer.push(value as u8 | 0x80);
        value >>= 7;
    }
    buffer.push(value as u8);
}

/// Reads tokens from the bytes of a batch.
#[derive(Clone, Debug)]
pub struct ValueReader<'a>(&'a [u8]);

impl<'a> ValueReader<'a> {
    /// Starts at the beginning of a batch.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// True when all bytes are read.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Reads the next token.
    ///
    /// # Errors
    /// When the bytes are no value. A count never exceeds the number of bytes left.
    pub fn next_token(&mut self) -> Result<ValueToken<'a>, MalformedValue> {
        let tag = self.read_bytes(1)?[0];
        Ok(match tag {
            TAG_NULL => ValueToken::Null,
            TAG_FALSE => ValueToken::Bool(false),
            TAG_TRUE => ValueToken::Bool(true),
            TAG_INT => {
                let value = self.read_varint()?;
                ValueToken::Int((value >> 1) as i64 ^ -((value & 1) as i64))
            }
            TAG_FLOAT => ValueToken::Float(f64::from_le_bytes(
                self.read_bytes(8)?
                    .try_into()
                    .map_err(|_| MalformedValue::Truncated)?,
            )),
            TAG_BIG_INT => ValueToken::BigInt(self.read_counted_bytes()?),
            TAG_TEXT => ValueToken::Text(self.read_counted_text()?),
            TAG_DATE => ValueToken::Date(self.read_counted_text()?),
            TAG_DATE_TIME => ValueToken::DateTime(self.read_counted_text()?),
            TAG_BYTES => ValueToken::Bytes(self.read_counted_bytes()?),
            TAG_LIST => ValueToken::List(self.read_count(1)?),
            TAG_TUPLE => ValueToken::Tuple(self.read_count(1)?),
            TAG_MAP => ValueToken::Map(self.read_count(2)?),
            tag => return Err(MalformedValue::UnknownTag(tag)),
        })
    }

    fn read_counted_text(&mut self) -> Result<&'a str, MalformedValue> {
        std::str::from_utf8(self.read_counted_bytes()?).map_err(|_| MalformedValue::InvalidUtf8)
    }

    fn read_counted_bytes(&mut self) -> Result<&'a [u8], MalformedValue> {
        let length = self.read_count(1)?;
        self.read_bytes(length)
    }

    /// Reads the count of things that take at least `min_bytes_each` bytes.
    fn read_count(&mut self, min_bytes_each: usize) -> Result<usize, MalformedValue> {
        let count = usize::try_from(self.read_varint()?).map_err(|_| MalformedValue::Truncated)?;
        // Decoders allocate for the count, so a short input must not announce a long list.
        if count > self.0.len() / min_bytes_each {
            Err(MalformedValue::Truncated)
        } else {
            Ok(count)
        }
    }

    fn read_bytes(&mut self, length: usize) -> Result<&'a [u8], MalformedValue> {
        let (bytes, rest) = self
            .0
            .split_at_checked(length)
            .ok_or(MalformedValue::Truncated)?;
        self.0 = rest;
        Ok(bytes)
    }

    fn read_varint(&mut self) -> Result<u64, MalformedValue> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.read_bytes(1)?[0];
            // The tenth byte holds only bit 63: larger values do not fit in 64 bits.
            if shift == 63 && byte > 1 {
                return Err(MalformedValue::NumberTooLong);
            }
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(MalformedValue::NumberTooLong)
    }
}

/// Index of the consumer of a key: its CRC-32 scaled to `0..consumers`. Equal keys must be encoded
/// alike: booleans and whole floats as integers.
pub fn key_partition(key: &[u8], consumers: usize) -> usize {
    // Multiply and shift instead of a modulus: the contract fixes this formula for all languages,
    // and it needs no division.
    ((u64::from(crc32fast::hash(key)) * consumers as u64) >> 32) as usize
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn encode_token(token: ValueToken<'_>) -> Vec<u8> {
        let mut buffer = Vec::new();
        write_token(&mut buffer, token);
        buffer
    }

    #[test]
    fn encoding_matches_the_contract_vectors() {
        let text = std::fs::read_to_string("../../contract/vectors/dataflow.json").unwrap();
        let vectors: serde_json::Value = serde_json::from_str(&text).unwrap();
        let hex = |bytes: &[u8]| {
            bytes
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect::<String>()
        };
        for vector in vectors["integers"].as_array().unwrap() {
            let bytes = encode_token(ValueToken::Int(vector["value"].as_i64().unwrap()));
            assert_eq!(hex(&bytes), vector["bytes"].as_str().unwrap());
            assert_eq!(
                key_partition(&bytes, 1000) as u64,
                vector["share_of_1000"].as_u64().unwrap()
            );
        }
        for vector in vectors["texts"].as_array().unwrap() {
            let bytes = encode_token(ValueToken::Text(vector["value"].as_str().unwrap()));
            assert_eq!(hex(&bytes), vector["bytes"].as_str().unwrap());
            assert_eq!(
                key_partition(&bytes, 1000) as u64,
                vector["share_of_1000"].as_u64().unwrap()
            );
        }
    }

    #[test]
    fn keys_are_partitioned_evenly() {
        for consumers in [2, 3, 7, 16] {
            let mut counts = vec![0; consumers];
            for key in 0..10_000 {
                counts[key_partition(&encode_token(ValueToken::Int(key)), consumers)] += 1;
            }
            let (smallest, largest) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
            assert!(*largest < smallest * 3 / 2, "{counts:?}");
        }
    }

    proptest! {
        #[test]
        fn numbers_and_text_are_read_back(int in any::<i64>(), float in any::<f64>(), text in ".{0,40}") {
            for token in [ValueToken::Int(int), ValueToken::Float(float), ValueToken::Text(&text), ValueToken::Bytes(text.as_bytes())] {
                let bytes = encode_token(token);
                let mut reader = ValueReader::new(&bytes);
                let decoded = reader.next_token().unwrap();
                prop_assert!(decoded == token || float.is_nan());
                prop_assert!(reader.is_empty());
                prop_assert!(ValueReader::new(&bytes[..bytes.len() - 1]).next_token().is_err());
            }
        }

        #[test]
        fn any_bytes_are_read_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let mut reader = ValueReader::new(&bytes);
            while !reader.is_empty() {
                match reader.next_token() {
                    Ok(ValueToken::List(count) | ValueToken::Tuple(count) | ValueToken::Map(count)) => prop_assert!(count <= bytes.len()),
                    Ok(_) => {}
                    Err(_) => break,
                }
            }
        }
    }
}
