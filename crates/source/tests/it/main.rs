//! Sources on real folders, with a real controller. A single binary, so that it links once.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has to panic")]

mod changes;
mod faults;
mod fixture;
mod restart;
