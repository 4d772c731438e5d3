//! Head of a message, through shared memory or over QUIC: names and values, one after another.
//!
//! `name length u16, value length u16, name, value`. Names are lower-case ASCII without spaces or
//! controls; values are any bytes but NUL, CR and LF, so that a field can go on as an HTTP header
//! without a second look.

/// Maximum bytes of a head.
pub const MAX_HEAD_BYTES: u32 = 64 * 1024;

/// Maximum number of fields of a head.
pub const MAX_FIELDS: usize = 256;

/// Iterator over the fields of a private copy of a head. Ends after the first error.
#[derive(Debug, Clone)]
pub struct HeadFields<'a> {
    rest: &'a [u8],
    remaining_fields: usize,
}

impl<'a> HeadFields<'a> {
    /// Creates the iterator. The bytes must be a private copy: shared memory may change between
    /// check and use.
    pub fn new(head: &'a [u8]) -> Self {
        // A head that is too long yields an error at once, not the fields of its beginning.
        let too_long = head.len() > MAX_HEAD_BYTES as usize;
        Self {
            rest: head,
            remaining_fields: if too_long { 0 } else { MAX_FIELDS },
        }
    }

    /// Returns the first field of this name; fields after an error do not count.
    pub fn get(&self, name: &str) -> Option<&'a [u8]> {
        let mut fields = self.clone().map_while(Result::ok);
        fields
            .find(|field| field.name == name)
            .map(|field| field.value)
    }

    /// Checks every field.
    pub fn check_all(&self) -> Result<(), HeadError> {
        self.clone().try_for_each(|field| field.map(drop))
    }

    fn take_field(&mut self) -> Result<HeadField<'a>, HeadError> {
        // Counted, because empty fields cost as much to handle as long ones.
        self.remaining_fields = self
            .remaining_fields
            .checked_sub(1)
            .ok_or(HeadError::TooMany)?;
        let (lengths, rest) = self
            .rest
            .split_first_chunk::<4>()
            .ok_or(HeadError::Truncated)?;
        let name = u16::from_le_bytes([lengths[0], lengths[1]]) as usize;
        let value = u16::from_le_bytes([lengths[2], lengths[3]]) as usize;
        let (name, rest) = rest.split_at_checked(name).ok_or(HeadError::Truncated)?;
        let (value, rest) = rest.split_at_checked(value).ok_or(HeadError::Truncated)?;
        self.rest = rest;
        HeadField::new(name, value)
    }
}

impl<'a> Iterator for HeadFields<'a> {
    type Item = Result<HeadField<'a>, HeadError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.take_field();
        // After an error the next field's beginning is unknown.
        if field.is_err() {
            self.rest = &[];
        }
        Some(field)
    }
}

/// Field of a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadField<'a> {
    /// Name in lower case; begins with `:` if it is the request's own.
    pub name: &'a str,
    /// Value, unchanged.
    pub value: &'a [u8],
}

impl<'a> HeadField<'a> {
    /// Creates a field from a valid name and value.
    pub fn new(name: &'a [u8], value: &'a [u8]) -> Result<Self, HeadError> {
        // Lower case alone, so that names compare byte by byte, as in HTTP/2 (RFC 9113 section
        // 8.2.1).
        let good = |byte: &u8| byte.is_ascii_graphic() && !byte.is_ascii_uppercase();
        if name.is_empty() || !name.iter().all(good) {
            return Err(HeadError::Name);
        }
        // CR and LF would end a header of HTTP/1.1, and NUL is invalid (RFC 9110 section 5.5).
        if value.iter().any(|byte| matches!(byte, 0 | b'\r' | b'\n')) {
            return Err(HeadError::Value);
        }
        Ok(Self {
            name: std::str::from_utf8(name).map_err(|_| HeadError::Name)?,
            value,
        })
    }

    /// Returns the four bytes before name and value.
    pub fn length_prefix(&self) -> Result<[u8; 4], HeadError> {
        let name = u16::try_from(self.name.len())
            .map_err(|_| HeadError::Name)?
            .to_le_bytes();
        let value = u16::try_from(self.value.len())
            .map_err(|_| HeadError::Value)?
            .to_le_bytes();
        Ok([name[0], name[1], value[0], value[1]])
    }

    /// Returns the bytes that the field takes in a head.
    pub fn encoded_len(&self) -> usize {
        4 + self.name.len() + self.value.len()
    }
}

/// Error of an invalid head or field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HeadError {
    /// A length points beyond the head.
    #[error("the head ends within a field")]
    Truncated,
    /// More than 256 fields or 65,536 bytes.
    #[error("the head has more than 256 fields or 65536 bytes")]
    TooMany,
    /// Empty, not lower-case ASCII, or longer than 65,535 bytes.
    #[error("a field's name is empty, too long or not in lower-case ASCII")]
    Name,
    /// NUL, CR or LF, or longer than 65,535 bytes.
    #[error("a field's value is too long or holds NUL, CR or LF")]
    Value,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn write(fields: &[(String, Vec<u8>)]) -> Vec<u8> {
        let mut out = Vec::new();
        for (name, value) in fields {
            let field = HeadField::new(name.as_bytes(), value).unwrap();
            out.extend_from_slice(&field.length_prefix().unwrap());
            out.extend_from_slice(field.name.as_bytes());
            out.extend_from_slice(field.value);
        }
        out
    }

    proptest! {
        #[test]
        fn written_and_read(fields in proptest::collection::vec((":?[a-z0-9-]{1,20}", proptest::collection::vec(14u8.., 0..50)), 0..20)) {
            let bytes = write(&fields);
            let read: Vec<(String, Vec<u8>)> =
                HeadFields::new(&bytes).map(|f| f.map(|f| (f.name.to_owned(), f.value.to_vec())).unwrap()).collect();
            prop_assert_eq!(&read, &fields);
            if let Some((name, _)) = fields.first() {
                prop_assert_eq!(HeadFields::new(&bytes).get(name).unwrap(), &fields[0].1[..]);
            }
        }

        #[test]
        fn any_bytes_are_read_without_harm(bytes: Vec<u8>) {
            prop_assert!(HeadFields::new(&bytes).count() <= MAX_FIELDS + 1);
        }
    }

    #[test]
    fn a_head_has_limits() {
        let fields = |n| write(&vec![("a".to_owned(), Vec::new()); n]);
        assert_eq!(HeadFields::new(&fields(256)).check_all(), Ok(()));
        assert_eq!(
            HeadFields::new(&fields(257)).check_all(),
            Err(HeadError::TooMany)
        );
        assert_eq!(
            HeadFields::new(&vec![0; MAX_HEAD_BYTES as usize + 1]).check_all(),
            Err(HeadError::TooMany)
        );
        assert_eq!(
            HeadFields::new(&[1, 0, 0, 0]).check_all(),
            Err(HeadError::Truncated)
        );
        assert_eq!(
            HeadFields::new(&[1, 0, 0, 0, b'A']).check_all(),
            Err(HeadError::Name)
        );
        assert_eq!(
            HeadFields::new(&[1, 0, 1, 0, b'a', b'\n']).check_all(),
            Err(HeadError::Value)
        );
    }
}
