//! A function process: joins at `NEARPATH_DISPATCH` and gives every body back.
//!
//! With an argument it passes the call on to the function of that name, and gives its answer back.

use std::path::Path;

use nearpath_domain::post::{Settings, blocking};
use nearpath_domain::{Answer, CallError, Incoming, Request, To};
use nearpath_types::{FunctionId, Reason};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let door = std::env::var("NEARPATH_DISPATCH").unwrap_or_else(|_| "/run/nearpath/dispatch".into());
    let next: Option<FunctionId> = std::env::args().nth(1).map(|name| name.parse()).transpose()?;
    let mut post = blocking::Post::dial(Path::new(&door), Settings::default())?;
    Ok(post.serve(|post, incoming| match &next {
        Some(next) => pass_on(post, next, incoming),
        None => Answer::ok(std::mem::take(&mut incoming.body)),
    })?)
}

fn pass_on(post: &mut blocking::Post, next: &FunctionId, incoming: &mut Incoming) -> Answer {
    let request = Request { deadline: incoming.deadline, ..Request::default() };
    let begun = post.begin_with(To::Function(next), &request, &mut incoming.body);
    match begun.map_err(CallError::from).and_then(|pending| post.wait(pending)) {
        Ok(reply) => Answer { status: reply.status, body: reply.body, ..Answer::default() },
        Err(_) => Answer::platform(Reason::InstanceDied, "the next function gave no answer\n"),
    }
}
