//! C: a header that `nearpath.h` includes.

use super::banner;
use super::contract::{PathContract, PathRow};
use super::names::upper;

pub(super) fn paths(contract: &PathContract) -> String {
    let line = |row: &PathRow| {
        format!(
            "#define NP_PATH_{} \"{}\" /* {} */\n",
            upper(&row.name),
            row.name,
            row.text
        )
    };
    format!(
        "\
/* {banner} */
#ifndef NEARPATH_PATHS_H
#define NEARPATH_PATHS_H

/* The paths that np_reply_path returns. A later release may add paths. */
{paths}
#endif
",
        banner = banner("paths.toml"),
        paths = contract.paths.iter().map(line).collect::<String>(),
    )
}
