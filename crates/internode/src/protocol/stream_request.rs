//! Request for a stream of bytes to a function: the upgrade of an HTTP/1.1 connection (RFC 9110 section
//! 7.8).

use nearpath_types::NodeStreamRequest;

use super::STREAM_PATH;
use super::query_fields::find_field;

/// Protocol after the upgrade: the bytes of one TCP connection. Datagrams would be another name.
pub const STREAM_PROTOCOL: &str = "nearpath-tcp";

/// Returns path and query of a request.
pub fn stream_path(request: &NodeStreamRequest) -> String {
    let NodeStreamRequest {
        caller,
        callee,
        port,
    } = request;
    // Names have no characters that a query would encode.
    format!("{STREAM_PATH}?function={callee}&caller={caller}&port={port}")
}

/// Reads the query of a request; `None`: a field is missing or invalid. Unknown fields are ignored.
pub fn parse_stream_query(query: &str) -> Option<NodeStreamRequest> {
    let field = |name| find_field(query, name);
    Some(NodeStreamRequest {
        caller: field("caller")?.parse().ok()?,
        callee: field("function")?.parse().ok()?,
        // To port 0 nothing connects (RFC 6335 section 6).
        port: field("port")?.parse().ok().filter(|port| *port != 0)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn request(port: u16) -> NodeStreamRequest {
        NodeStreamRequest {
            caller: "cart.shop".parse().unwrap(),
            callee: "store".parse().unwrap(),
            port,
        }
    }

    #[test]
    fn faulty_requests_are_none() {
        let good = "function=store.shop&caller=cart.shop&port=6379&more=1";
        assert!(parse_stream_query(good).is_some());
        for bad in [
            "",
            "function=store&caller=cart",
            "function=store&port=1",
            "caller=cart&port=1",
            "function=store&caller=cart&port=0",
            "function=store&caller=cart&port=65536",
            "function=st%20re&caller=cart&port=1",
            "function=store&caller=&port=1",
        ] {
            assert_eq!(parse_stream_query(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn a_request_is_read_as_it_was_written(port in 1u16..) {
            let path = stream_path(&request(port));
            let (path, query) = path.split_once('?').unwrap();
            prop_assert_eq!(path, STREAM_PATH);
            prop_assert_eq!(parse_stream_query(query), Some(request(port)));
        }

        #[test]
        fn any_query_is_read_or_refused(query in ".{0,80}") {
            let _ = parse_stream_query(&query);
        }
    }
}
