//! What a request is known by: `X-Call-Id` and `X-Start-Time`.

use std::time::SystemTime;

use uuid::Uuid;

use super::digits::Digits;

const UUID: usize = uuid::fmt::Hyphenated::LENGTH;

/// A request's identity, kept or made.
pub(crate) enum CallId {
    /// The caller's.
    Kept(Box<[u8]>),
    /// A UUID.
    Made([u8; UUID]),
}

impl CallId {
    /// A new one.
    pub(crate) fn new() -> Self {
        let mut text = [0; UUID];
        Uuid::new_v4().hyphenated().encode_lower(&mut text);
        Self::Made(text)
    }

    /// The one that stands among these fields, or a new one.
    pub(crate) fn of<'a>(mut fields: impl Iterator<Item = (&'a str, &'a [u8])>) -> Self {
        fields.find(|(name, _)| *name == "x-call-id").map_or_else(Self::new, |(_, value)| Self::Kept(value.into()))
    }

    /// As it is told.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Kept(text) => text,
            Self::Made(text) => text,
        }
    }
}

/// When the gateway got a request, in Unix nanoseconds.
pub(crate) struct StartTime(Digits);

impl StartTime {
    pub(crate) fn now() -> Self {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let mut text = Digits::default();
        text.push(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX), 1);
        Self(text)
    }

    /// As it is told.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.0.text()
    }
}
