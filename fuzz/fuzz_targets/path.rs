//! A request's path: whatever a stranger sends, the answer is a target whose parts lie inside the
//! path.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nearpath_gateway::route::{PathTarget, parse_path};

fuzz_target!(|path: &str| {
    if let Ok(PathTarget::Function { name, path_offset }) = parse_path(path) {
        assert!(path.is_char_boundary(path_offset));
        assert_eq!(format!("/function/{name}{}", &path[path_offset..]), path);
    }
});
