//! `sensing FUNCTION`: one of `sensor`, `actuator` (motion), `detection`, `search`, `index`, `persist`, `charging` (parking).
//!
//! Functions call each other by name, over the nearest path there is.
//! `SENSING_DIRECT=NAME=ADDR:PORT,…` sends calls for NAME straight there over HTTP instead: for
//! comparisons without a platform.

mod client;
mod function;

use std::process::ExitCode;
use std::rc::Rc;

use nearpath::Request;

use crate::client::FunctionClient;

fn main() -> ExitCode {
    let Some(role) = std::env::args()
        .nth(1)
        .as_deref()
        .and_then(function::FunctionRole::from_name)
    else {
        eprintln!(
            "which function? sensing sensor|actuator|detection|search|index|persist|charging"
        );
        return ExitCode::from(2);
    };
    let shared = Rc::new((role, FunctionClient::from_environment()));
    let served = nearpath::serve(move |request: Request| {
        let shared = Rc::clone(&shared);
        async move { client::to_response(shared.0.answer_call(request.body(), &shared.1).await) }
    });
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sensing: {error}");
            ExitCode::FAILURE
        }
    }
}
