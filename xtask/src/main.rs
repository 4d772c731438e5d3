//! Checks of the house that no compiler makes: `cargo run -p nearpath-xtask -- layers`.
#![forbid(unsafe_code)]

use std::process::ExitCode;

mod layers;

fn main() -> ExitCode {
    let outcome = match std::env::args().nth(1).as_deref() {
        Some("layers") => layers::check(),
        _ => Err(vec!["usage: xtask layers".to_owned()]),
    };
    match outcome {
        Ok(said) => {
            println!("{said}");
            ExitCode::SUCCESS
        }
        Err(faults) => {
            faults.iter().for_each(|fault| eprintln!("error: {fault}"));
            ExitCode::FAILURE
        }
    }
}
