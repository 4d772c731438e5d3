//! The handler as a function of a chain: the same answer, to calls that come through shared memory.

use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use nearpath_domain::post::Settings;
use nearpath_domain::post::polled::{Post, Received};
use nearpath_domain::{Answer, Request, To};
use nearpath_types::{FunctionId, Reason};

/// Where a function finds the door to its domain; see `contract/dispatch.md`.
const DISPATCH: &str = "NEARPATH_DISPATCH";

/// Takes calls beside HTTP, if there is a door, any number at a time. Each takes `work` of
/// its own; `next` is asked before each answer.
pub(super) async fn attend(next: Option<FunctionId>, work: Duration, answer: &'static [u8]) {
    let Some(door) = std::env::var_os(DISPATCH) else { return };
    let (post, driver) = match Post::dial(Path::new(&door), Settings::default()).await {
        Ok(joined) => joined,
        Err(error) => return eprintln!("shared memory: {error}"),
    };
    tokio::task::spawn_local(driver);
    if let Err(error) = post.ready() {
        return eprintln!("shared memory: {error}");
    }
    let next = next.map(Rc::new);
    while let Some(received) = post.next().await {
        toil(work);
        match &next {
            None => received.answer(Answer::ok(answer)),
            Some(next) => drop(tokio::task::spawn_local(forward(post.clone(), next.clone(), received, answer))),
        }
    }
}

/// Burns CPU as a handler that computes does: nothing else runs on its thread meanwhile.
fn toil(work: Duration) {
    let end = (!work.is_zero()).then(|| Instant::now() + work);
    while end.is_some_and(|end| Instant::now() < end) {
        std::hint::spin_loop();
    }
}

async fn forward(post: Post, next: Rc<FunctionId>, received: Received, answer: &'static [u8]) {
    let asked = match post.call(To::Function(&next), &Request::default()) {
        Ok(call) => call.await.map(drop).map_err(|error| error.to_string()),
        Err(unsent) => Err(unsent.to_string()),
    };
    received.answer(match asked {
        Ok(()) => Answer::ok(answer),
        Err(error) => {
            eprintln!("{error}");
            Answer::platform(Reason::InstanceDied, "the next function did not answer")
        }
    });
}
