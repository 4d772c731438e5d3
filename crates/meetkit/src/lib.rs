//! For tests only: a rendezvous that a test starts and kills ([`house`]), and without one, two workers that were introduced to
//! each other on an internet with NATs ([`scene`], [`side`]). What cannot be made is a panic.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, missing_docs)]

pub mod house;
pub mod scene;
pub mod side;
