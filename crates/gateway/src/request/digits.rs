//! Numbers for header fields.

use std::time::Duration;

use http::HeaderValue;

/// Decimal seconds to the microsecond.
pub(crate) fn seconds(time: Duration) -> HeaderValue {
    let mut text = Digits::default();
    text.push(u64::from(time.subsec_micros()), 6);
    text.byte(b'.');
    text.push(time.as_secs(), 1);
    text.value()
}

/// A short number as text, written from its end. `std::fmt` would take several times as long, twice a request.
#[derive(Default)]
pub(super) struct Digits {
    bytes: [u8; 32],
    used: usize,
}

impl Digits {
    fn byte(&mut self, byte: u8) {
        self.used += 1;
        let at = self.bytes.len() - self.used;
        self.bytes[at] = byte;
    }

    /// Writes `number` with `at_least` so many digits before what is there.
    pub(super) fn push(&mut self, mut number: u64, at_least: usize) {
        let mut written = 0;
        while number > 0 || written < at_least {
            self.byte(b'0' + (number % 10) as u8);
            number /= 10;
            written += 1;
        }
    }

    pub(super) fn text(&self) -> &[u8] {
        &self.bytes[self.bytes.len() - self.used..]
    }

    fn value(&self) -> HeaderValue {
        HeaderValue::from_bytes(self.text()).expect("digits and a dot are ASCII")
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
            prop_assert_eq!(seconds(time), format!("{secs}.{micros:06}"));
        }
    }
}
