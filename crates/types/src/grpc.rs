//! Platform errors in gRPC's form ("gRPC over HTTP2", PROTOCOL-HTTP2.md): a status code and an
//! encoded message.

use crate::reason::{PlatformError, Reason};

impl Reason {
    /// Returns the status code (google.rpc.Code). UNAVAILABLE only where the call has certainly not
    /// run: clients repeat it by themselves.
    pub fn grpc_status(self) -> u16 {
        match self.status() {
            499 => 1,                                // CANCELLED
            400 => 3,                                // INVALID_ARGUMENT
            408 | 504 => 4,                          // DEADLINE_EXCEEDED
            403 => 7,                                // PERMISSION_DENIED
            413 | 429 | 431 | 507 => 8,              // RESOURCE_EXHAUSTED
            404 | 405 | 501 => 12,                   // UNIMPLEMENTED
            502 | 503 if self.retry_is_safe() => 14, // UNAVAILABLE
            401 => 16,                               // UNAUTHENTICATED
            _ => 13,                                 // INTERNAL
        }
    }
}

impl PlatformError {
    /// Returns the text for `grpc-message`: everything but printable ASCII, and the percent sign,
    /// is percent-encoded.
    pub fn grpc_message(&self) -> String {
        // Header values may hold spaces, so they stay readable.
        let plain = |byte: u8| matches!(byte, b' '..=b'~') && byte != b'%';
        let encode = |byte: u8| {
            if plain(byte) {
                char::from(byte).to_string()
            } else {
                format!("%{byte:02X}")
            }
        };
        self.to_string().bytes().map(encode).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_call_that_may_have_run_is_never_unavailable() {
        for reason in Reason::ALL {
            let status = reason.grpc_status();
            assert!((1..=16).contains(&status), "{reason}");
            assert!(status != 14 || reason.retry_is_safe(), "{reason}");
        }
    }

    #[test]
    fn a_message_is_percent_encoded_ascii() {
        let error = PlatformError::new("gateway", Reason::Internal, "50 % or größer");
        assert_eq!(
            error.grpc_message(),
            "gateway: internal: 50 %25 or gr%C3%B6%C3%9Fer"
        );
    }

    proptest! {
        #[test]
        fn any_text_is_a_message(text in ".*") {
            let message = PlatformError::new("gateway", Reason::Internal, text).grpc_message();
            prop_assert!(message.bytes().all(|b| (0x20..0x7f).contains(&b)));
        }
    }
}
