//! Entry points of the fuzz targets besides [`crate::route`]: the parsers of request heads.

pub use crate::deliver::function_uri;
pub use crate::fast_path::{
    ParseOutcome, PlainRequest, take_named_request, take_node_request, take_plain_request,
};
pub use crate::request::{RequestOptions, parse_caller_timeout};
pub use crate::transport::{BodyDecoder, DecodedPart, HeadParser, ResponseHead};
