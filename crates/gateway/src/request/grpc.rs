//! gRPC in the gateway: which requests are gRPC, and its form of the platform's errors.

use http::{Request, Response, Version};
use nearpath_types::PlatformError;
use nearpath_wire::Body;
use nearpath_wire::hop::grpc;

/// Bytes before each message of a gRPC body: a flag, and the length in four bytes.
const PREFIX_BYTES: usize = 5;

/// Finds the end of the first message of a body. Pure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct FirstMessage {
    prefix: [u8; PREFIX_BYTES],
    prefix_count: usize,
    byte_count: u64,
}

impl FirstMessage {
    /// Notes the next bytes of the body.
    pub(crate) fn note_data(&mut self, data: &[u8]) {
        let missing = &mut self.prefix[self.prefix_count..];
        let count = missing.len().min(data.len());
        missing[..count].copy_from_slice(&data[..count]);
        self.prefix_count += count;
        self.byte_count += (data.len() - count) as u64;
    }

    /// Returns whether the message has arrived.
    pub(crate) fn is_complete(&self) -> bool {
        let [_, length @ ..] = self.prefix;
        self.prefix_count == PREFIX_BYTES
            && self.byte_count >= u64::from(u32::from_be_bytes(length))
    }
}

/// Returns whether a request is gRPC.
pub(crate) fn is_grpc<B>(request: &Request<B>) -> bool {
    request.version() == Version::HTTP_2 && grpc::has_grpc_content(request.headers())
}

/// Converts a platform response for gRPC, which has the error as trailers and no body.
pub(crate) fn into_trailers_only(response: &mut Response<Body>, error: &PlatformError) {
    *response.body_mut() = Body::empty();
    grpc::set_trailers_only(response, error);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_message_is_complete_with_its_last_byte(length in 0u8..20, cuts in prop::collection::vec(1usize..9, 1..30)) {
            let body = [vec![0, 0, 0, 0, length], vec![b'x'; usize::from(length)], vec![b'y'; 3]].concat();
            let (mut message, mut rest, mut seen) = (FirstMessage::default(), body.as_slice(), 0);
            for cut in cuts {
                let (data, after) = rest.split_at(cut.min(rest.len()));
                message.note_data(data);
                (rest, seen) = (after, seen + data.len());
                prop_assert_eq!(message.is_complete(), seen >= 5 + usize::from(length));
            }
        }
    }
}
