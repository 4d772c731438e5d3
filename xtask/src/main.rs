//! Checks and code generation that the compiler does not do: `cargo xtask layers`, `arrows`,
//! `names`, `documents`, `generate`.
#![forbid(unsafe_code)]

use std::path::Path;
use std::process::ExitCode;

mod arrows;
mod documents;
mod generate;
mod layers;
mod names;
mod purity;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let outcome = match words[..] {
        ["arrows"] => arrows::check(),
        ["documents"] => documents::check(),
        ["layers"] => layers::check(),
        ["names"] => names::check(),
        ["names", krate] => names::list(krate),
        ["generate"] => generate::run(Path::new("."), false),
        ["generate", "--check"] => generate::run(Path::new("."), true),
        _ => Err(vec![
            "usage: xtask layers | arrows | names [CRATE] | documents | generate [--check]"
                .to_owned(),
        ]),
    };
    match outcome {
        Ok(summary) => {
            println!("{summary}");
            ExitCode::SUCCESS
        }
        Err(faults) => {
            // All faults at once: fixing them one run at a time would take long.
            faults.iter().for_each(|fault| eprintln!("error: {fault}"));
            ExitCode::FAILURE
        }
    }
}
