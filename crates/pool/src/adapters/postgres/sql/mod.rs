//! What a statement leaves behind in its session, as far as its text tells. PostgreSQL decides what a statement does; this only decides whether the
//! client has to stay on the backend where it ran. So all doubt is answered with "stay".

mod judge;
mod lex;
mod names;

pub(super) use judge::{Judgement, judge, names_numbers};
pub(super) use names::RESTORED;
