//! The head of a message, through memory or over QUIC: names and values, one after another.
//!
//! `name length u16, value length u16, name, value`. Names are lower-case ASCII without spaces or controls; values are any
//! bytes but NUL, CR and LF, so that a field can go on as an HTTP header without a second look.

/// Longest head in bytes.
pub const MAX_HEAD_BYTES: u32 = 64 * 1024;

/// Most fields of a head.
pub const MAX_FIELDS: usize = 256;

/// The fields of a private copy of a head. Ends after the first fault.
#[derive(Debug, Clone)]
pub struct HeadFields<'a> {
    rest: &'a [u8],
    remaining_fields: usize,
}

impl<'a> HeadFields<'a> {
    /// Of a private copy of a head's bytes.
    pub fn new(head: &'a [u8]) -> Self {
        let too_long = head.len() > MAX_HEAD_BYTES as usize;
        Self {
            rest: head,
            remaining_fields: if too_long { 0 } else { MAX_FIELDS },
        }
    }

    /// The first field of this name. A faulty head has no fields.
    pub fn get(&self, name: &str) -> Option<&'a [u8]> {
        let mut fields = self.clone().map_while(Result::ok);
        fields
            .find(|field| field.name == name)
            .map(|field| field.value)
    }

    /// Looks at every field.
    pub fn check_all(&self) -> Result<(), HeadError> {
        self.clone().try_for_each(|field| field.map(drop))
    }

    fn take_field(&mut self) -> Result<HeadField<'a>, HeadError> {
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
        if field.is_err() {
            self.rest = &[];
        }
        Some(field)
    }
}

/// One field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadField<'a> {
    /// Lower case; begins with `:` if it is the request's own.
    pub name: &'a str,
    /// As it came.
    pub value: &'a [u8],
}

impl<'a> HeadField<'a> {
    /// Checks both for what they may hold.
    pub fn new(name: &'a [u8], value: &'a [u8]) -> Result<Self, HeadError> {
        let good = |byte: &u8| byte.is_ascii_graphic() && !byte.is_ascii_uppercase();
        if name.is_empty() || !name.iter().all(good) {
            return Err(HeadError::Name);
        }
        if value.iter().any(|byte| matches!(byte, 0 | b'\r' | b'\n')) {
            return Err(HeadError::Value);
        }
        Ok(Self {
            name: std::str::from_utf8(name).map_err(|_| HeadError::Name)?,
            value,
        })
    }

    /// The four bytes before name and value.
    pub fn length_prefix(&self) -> Result<[u8; 4], HeadError> {
        let name = u16::try_from(self.name.len())
            .map_err(|_| HeadError::Name)?
            .to_le_bytes();
        let value = u16::try_from(self.value.len())
            .map_err(|_| HeadError::Value)?
            .to_le_bytes();
        Ok([name[0], name[1], value[0], value[1]])
    }

    /// Bytes in a head.
    pub fn encoded_len(&self) -> usize {
        4 + self.name.len() + self.value.len()
    }
}

/// Why this is no head, or why a field cannot be added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HeadError {
    /// A length leads out of the head.
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
