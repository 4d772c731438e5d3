//! Numbers as header values.

use std::time::Duration;

use http::HeaderValue;

/// Formats decimal seconds with microseconds.
pub(crate) fn seconds_value(time: Duration) -> HeaderValue {
    DigitBuffer::from_seconds(time).to_header_value()
}

/// Buffer for a number as text, written from its end. `std::fmt` would take several times as
/// long, twice per request.
#[derive(Default)]
pub(crate) struct DigitBuffer {
    bytes: [u8; 32],
    /// At most 32; small, because each open connection has room for some buffers.
    used_bytes: u8,
}

impl DigitBuffer {
    /// Writes decimal seconds with microseconds.
    pub(crate) fn from_seconds(time: Duration) -> Self {
        // From the end to the front: the fraction first.
        let mut text = Self::default();
        text.push_number(u64::from(time.subsec_micros()), 6);
        text.push_byte(b'.');
        text.push_number(time.as_secs(), 1);
        text
    }

    pub(crate) fn from_number(number: u64) -> Self {
        let mut text = Self::default();
        text.push_number(number, 1);
        text
    }

    fn push_byte(&mut self, byte: u8) {
        self.used_bytes += 1;
        let at = self.bytes.len() - usize::from(self.used_bytes);
        self.bytes[at] = byte;
    }

    /// Writes `number` before the existing text, with at least `at_least` digits.
    fn push_number(&mut self, mut number: u64, at_least: usize) {
        let mut written = 0;
        while number > 0 || written < at_least {
            self.push_byte(b'0' + (number % 10) as u8);
            number /= 10;
            written += 1;
        }
    }

    /// Returns the text.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[self.bytes.len() - usize::from(self.used_bytes)..]
    }

    fn to_header_value(&self) -> HeaderValue {
        HeaderValue::from_bytes(self.as_bytes()).expect("digits and a dot are ASCII")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn numbers_are_written_as_std_does(secs in any::<u64>(), micros in 0u32..1_000_000) {
            let time = Duration::new(secs, micros * 1_000);
            prop_assert_eq!(seconds_value(time), format!("{secs}.{micros:06}"));
        }
    }
}
