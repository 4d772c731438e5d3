//! Function for tests of events: publishes on request, and lists the events that it has received.
//!
//! `POST /publish/TOPIC` publishes the body. It responds with the counts of reached and missed functions.
//! Every other path responds with a line for each event: topic, publisher, body.
#![forbid(unsafe_code)]

use std::fmt::Write;
use std::sync::Mutex;

use nearpath::{Request, Response};

static RECEIVED: Mutex<String> = Mutex::new(String::new());

async fn handle(request: Request) -> Response {
    if request.is_event() {
        let body = String::from_utf8_lossy(request.body());
        let (topic, caller) = (request.topic(), request.caller());
        let mut received = RECEIVED.lock().expect("no handler panics");
        writeln!(
            received,
            "{} {} {body}",
            topic.unwrap_or("-"),
            caller.unwrap_or("-")
        )
        .expect("writing to a String cannot fail");
        return Response::new("");
    }
    match request.path().strip_prefix("/publish/") {
        None => Response::new(RECEIVED.lock().expect("no handler panics").clone()),
        Some(topic) => match nearpath::publish(topic, request.body().to_vec()).await {
            Ok(report) => Response::new(format!("{} {}", report.sent, report.missed)),
            Err(error) => Response::new(error.to_string()).with_status(500),
        },
    }
}

fn main() -> Result<(), nearpath::Error> {
    nearpath::serve(handle)
}
