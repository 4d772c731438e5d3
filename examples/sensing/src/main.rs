//! `sensing FUNCTION`: one of `sensor`, `actuator` (motion), `detection`, `search`, `index`, `persist`, `charging` (parking).
//!
//! It takes calls through shared memory, where there is a chain, and over HTTP on 127.0.0.1:$PORT (5000), and calls the next
//! function the same two ways. `SENSING_DIRECT=NAME=ADDR:PORT,…` sends calls for NAME straight there instead: for
//! comparisons without a platform.

mod call;
mod function;
mod serve;

use std::process::ExitCode;
use std::rc::Rc;

fn main() -> ExitCode {
    let Some(role) = std::env::args().nth(1).as_deref().and_then(function::Role::named) else {
        eprintln!("which function? sensing sensor|actuator|detection|search|index|persist|charging");
        return ExitCode::from(2);
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let served = runtime.and_then(|runtime| tokio::task::LocalSet::new().block_on(&runtime, serve::run(Rc::new(role))));
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sensing: {error}");
            ExitCode::FAILURE
        }
    }
}
