//! What a statement leaves behind in its session, as far as its text tells. PostgreSQL decides what a statement does; this only decides whether the
//! client has to stay on the backend where it ran. So all doubt is answered with "stay".

mod classify;
mod keywords;
mod lexer;

pub(super) use classify::{PostgresSessionEffect, classify_text, names_sequence_value};
pub(super) use keywords::RESTORED_SETTINGS;
