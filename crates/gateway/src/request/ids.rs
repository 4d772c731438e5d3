//! Ids of requests: `X-Call-Id` and `X-Start-Time`.

use std::time::SystemTime;

use uuid::Uuid;

use super::digits::DigitBuffer;

const UUID_CHARS: usize = uuid::fmt::Hyphenated::LENGTH;

/// Id of a request.
pub(crate) enum CallId {
    /// From the caller.
    FromCaller(Box<[u8]>),
    /// A generated UUID.
    Generated([u8; UUID_CHARS]),
}

impl CallId {
    /// Generates an id.
    pub(crate) fn new() -> Self {
        let mut text = [0; UUID_CHARS];
        Uuid::new_v4().hyphenated().encode_lower(&mut text);
        Self::Generated(text)
    }

    /// Returns the id among these fields, or a new one.
    pub(crate) fn from_fields<'a>(mut fields: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> Self {
        fields
            .find(|(name, _)| *name == b"x-call-id")
            .map_or_else(Self::new, |(_, value)| Self::FromCaller(value.into()))
    }

    /// Returns the text of the id.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        match self {
            Self::FromCaller(text) => text,
            Self::Generated(text) => text,
        }
    }
}

/// Arrival of a request at the gateway in Unix nanoseconds.
pub(crate) struct StartTime(DigitBuffer);

impl StartTime {
    pub(crate) fn now() -> Self {
        // A clock before 1970 gives 0: a wrong time must not fail a request.
        let since = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        let nanoseconds = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
        Self(DigitBuffer::from_number(nanoseconds))
    }

    /// Returns the text of the time.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}
