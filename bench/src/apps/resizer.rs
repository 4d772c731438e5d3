//! Image resizer: the function fetches a picture of 1920 × 1280 from a server on its own machine and makes it smaller.

use super::need::{Python, examples};
use super::{App, Calls, Case, Function};
use crate::remote::Error;
use crate::remote::call::Call;
use crate::remote::worker::Machine;

/// How every JPEG file with a header of that kind goes on (JFIF 1.02, page 5).
const JPEG: &str = "JFIF";

/// The pictures' server is a function of the example, which the resizer asks without nearpath.
pub(super) fn start(python: Python, machine: &Machine) -> Result<App, Error> {
    let handler = examples()?.join("resizer/handler");
    let port = machine.ports(1);
    let pictures = Function {
        port: Some(port),
        ..Function::new("pictures", handler.join("pictures.py"))
    };
    let functions = vec![
        pictures,
        Function::new("resizer", handler.join("resizer.py")),
    ];
    let path = format!("/?size=200&url=http://127.0.0.1:{port}/large.jpg");
    let cases = vec![Case {
        name: "",
        function: "resizer",
        calls: Calls::Same(Call::get(&path, JPEG)),
    }];
    Ok(App {
        python,
        functions,
        cases,
        aside: Box::new(()),
    })
}
