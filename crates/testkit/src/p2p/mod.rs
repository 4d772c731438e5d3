//! For tests only: a rendezvous that a test starts and kills ([`house`]), and without one, two workers that were introduced to
//! each other on an internet with NATs ([`scene`], [`side`]). What cannot be made is a panic.
#![allow(clippy::unwrap_used, missing_docs)]

pub mod exchange;
pub mod introduction;
pub mod prediction;
pub mod rendezvous;
