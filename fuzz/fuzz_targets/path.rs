//! A request's path: whatever a stranger sends, the answer is a target whose parts lie inside the path.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nearpath_gateway::route::{Target, parse};

fuzz_target!(|path: &str| {
    if let Ok(Target::Function { name, rest }) = parse(path) {
        assert!(path.is_char_boundary(rest));
        assert_eq!(format!("/function/{name}{}", &path[rest..]), path);
    }
});
