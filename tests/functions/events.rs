//! Function for tests of events: it publishes what it is asked to, and tells what it has received.
//!
//! `POST /publish/TOPIC` publishes the body, and responds with the counts of functions that the event was
//! sent to and that missed it. `GET /events` responds with a line for each event: topic, publisher, body.
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
        .expect("memory takes text");
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
