//! `sensing FUNCTION`: one of `sensor`, `actuator` (motion), `detection`, `search`, `index`, `persist`, `charging` (parking).
//!
//! Functions call each other by name, over the nearest path there is. `SENSING_DIRECT=NAME=ADDR:PORT,…` sends calls for NAME
//! straight there over HTTP instead: for comparisons without a platform.

mod call;
mod function;

use std::process::ExitCode;
use std::rc::Rc;

use nearpath::Request;

use crate::call::Calls;

fn main() -> ExitCode {
    let Some(role) = std::env::args()
        .nth(1)
        .as_deref()
        .and_then(function::Role::named)
    else {
        eprintln!(
            "which function? sensing sensor|actuator|detection|search|index|persist|charging"
        );
        return ExitCode::from(2);
    };
    let shared = Rc::new((role, Calls::from_environment()));
    let served = nearpath::serve(move |request: Request| {
        let shared = Rc::clone(&shared);
        async move { call::response(shared.0.answer(request.body(), &shared.1).await) }
    });
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sensing: {error}");
            ExitCode::FAILURE
        }
    }
}
