//! Header fields as they travel: one buffer, `contract/memory.md` "Head".

use nearpath_shm::head::{HeadError, HeadField, HeadFields};

use crate::error::{Error, ErrorKind};

/// Fields of a request or an answer, in order. Names are in lower case; a name may come more than once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HeaderFields(Vec<u8>);

impl HeaderFields {
    /// From bytes that were checked when they came.
    pub(crate) fn from_bytes(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    /// The first value of that name.
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        HeadFields::new(&self.0).get(name)
    }

    /// All fields but those that begin with `:`.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.all_fields().filter(|(name, _)| !name.starts_with(':'))
    }

    /// Adds a field; its name is put into lower case. Fields of one connection (`connection`, `content-length`, …) are left out.
    ///
    /// # Errors
    /// [`ErrorKind::Head`] when name or value hold what they may not, or there are more than 256 fields or 65,536 bytes.
    pub fn push_field(&mut self, name: &str, value: &[u8]) -> Result<(), Error> {
        let name = name.to_ascii_lowercase();
        if is_connection_field(&name) {
            return Ok(());
        }
        self.append_field(&name, value)
            .map_err(|bad| Error::new("", None, ErrorKind::Head(bad)))
    }

    /// Every field, also the request's own.
    pub(crate) fn all_fields(&self) -> impl Iterator<Item = (&str, &[u8])> {
        HeadFields::new(&self.0)
            .flatten()
            .map(|field| (field.name, field.value))
    }

    pub(crate) fn append_field(&mut self, name: &str, value: &[u8]) -> Result<(), HeadError> {
        let field = HeadField::new(name.as_bytes(), value)?;
        let (before, lengths) = (self.0.len(), field.length_prefix()?);
        self.0.extend_from_slice(&lengths);
        self.0.extend_from_slice(name.as_bytes());
        self.0.extend_from_slice(value);
        HeadFields::new(&self.0)
            .check_all()
            .inspect_err(|_| self.0.truncate(before))
    }

    /// The fields of an HTTP message, as far as they fit.
    pub(crate) fn append_http(&mut self, fields: &http::HeaderMap) -> Result<(), HeadError> {
        let passed = fields
            .iter()
            .filter(|(name, _)| !is_connection_field(name.as_str()));
        passed
            .into_iter()
            .try_for_each(|(name, value)| self.append_field(name.as_str(), value.as_bytes()))
    }
}

/// About one connection, or about framing that a message has of its own (RFC 9110, 7.6.1).
fn is_connection_field(name: &str) -> bool {
    const NAMES: [&str; 10] = [
        "connection",
        "content-length",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    ];
    NAMES.binary_search(&name).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_keep_their_order_and_become_lower_case() {
        let mut head = HeaderFields::default();
        head.append_field(":method", b"GET").unwrap();
        head.push_field("X-One", b"1").unwrap();
        head.push_field("Connection", b"close").unwrap();
        head.push_field("x-one", b"2").unwrap();
        assert_eq!(head.get("x-one"), Some(&b"1"[..]));
        assert_eq!(
            head.iter().collect::<Vec<_>>(),
            [("x-one", &b"1"[..]), ("x-one", b"2")]
        );
        assert_eq!(head.all_fields().count(), 3);
    }

    #[test]
    fn an_invalid_field_changes_nothing() {
        let mut head = HeaderFields::default();
        head.push_field("good", b"1").unwrap();
        let before = head.clone();
        assert!(head.push_field("bad name", b"1").is_err());
        assert!(head.push_field("good", b"a\nb").is_err());
        assert!(head.push_field("large", &[b'x'; 65_535]).is_err());
        assert_eq!(head, before);
    }
}
