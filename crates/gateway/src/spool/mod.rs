//! Frames that wait for a slow side: in memory up to a bound, above it in unlinked files (ADR 73).
//!
//! [`SpoolBudget`](budget::SpoolBudget) decides without I/O. [`FrameQueue`] keeps the order of
//! the frames of one transfer, and [`SpoolStore`] the bounds of a thread.

mod budget;
mod directory;
mod file;
mod queue;
mod small_frames;
mod store;

pub(crate) use directory::SpoolDirectory;
pub(crate) use queue::{FrameQueue, NextFrame};
pub(crate) use store::SpoolStore;
