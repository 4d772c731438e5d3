//! State that a statement leaves in its session, by its text.
//!
//! PostgreSQL decides what a statement does. This module only decides whether the client has to
//! stay on the backend. In doubt it stays (ADR 0029).

mod classify;
mod keywords;
mod lexer;

pub(super) use classify::{PostgresSessionEffect, classify_text, names_sequence_value};
pub(super) use keywords::RESTORED_SETTINGS;
