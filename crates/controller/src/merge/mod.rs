//! Replies of several nodes as one. Pure.

mod functions;
mod log_merger;
mod logs;
mod paths;

pub(crate) use functions::{FunctionShares, label_failure, merge_function};
pub(crate) use log_merger::{LogMerger, MergeStep};
pub(crate) use logs::{label_line, merge_logs, missing_line};
pub(crate) use paths::join_paths;
