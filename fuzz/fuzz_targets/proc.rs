//! Texts of the kernel's: `/proc/PID/mountinfo`, `cgroup` and `stat`, and cgroups' counters. Names
//! that others chose stand inside them.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use nearpath_kernel::cgroup::{mount_points, own_v2_group, parse_field};
use nearpath_node::machine::alive_session;

/// A name as `mountinfo` writes it (`seq_path` in the kernel's `fs/seq_file.c`).
fn escaped(name: &str) -> String {
    let one = |c| match c {
        ' ' | '\t' | '\n' | '\\' => format!("\\{:03o}", u32::from(c)),
        c => c.to_string(),
    };
    name.chars().map(one).collect()
}

fn is_found_where_it_is_mounted(name: &str) {
    let line = format!(
        "35 31 0:32 / /sys/{} rw,relatime shared:9 - cgroup cgroup rw,memory\n",
        escaped(name)
    );
    assert_eq!(
        mount_points(&line),
        [Path::new("/sys").join(name.trim_start_matches('/'))]
    );
}

fuzz_target!(|text: &str| {
    let _ = (
        mount_points(text),
        own_v2_group(text),
        parse_field(text, "usage_usec"),
        alive_session(text),
    );
    assert_eq!(
        alive_session(&format!("12 ({text}) S 1 12 7 0 -1")),
        Some(7)
    );
    assert_eq!(alive_session(&format!("12 ({text}) Z 1 12 7 0 -1")), None);
    if !text.contains(['\0', '\n']) {
        is_found_where_it_is_mounted(text);
    }
});
