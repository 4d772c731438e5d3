//! Image resizer: the function fetches a picture of 1920 × 1280 from a server on its machine and
//! shrinks it.

use super::requirements::{PythonEnv, examples_folder};
use super::{AppCase, AppFunction, CaseCalls, ExampleApp};
use crate::remote::BenchError;
use crate::remote::call::RemoteCall;
use crate::remote::worker::WorkerMachine;

/// Mark in the header of every JPEG file of this kind (JFIF 1.02, page 5).
const JPEG_MARK: &str = "JFIF";

/// The picture server is a function of the example. The resizer calls it without nearpath.
pub(super) fn start_app(
    python: PythonEnv,
    machine: &WorkerMachine,
) -> Result<ExampleApp, BenchError> {
    let handler = examples_folder()?.join("resizer/handler");
    let port = machine.allocate_ports(1);
    let pictures = AppFunction {
        port: Some(port),
        ..AppFunction::new("pictures", handler.join("pictures.py"))
    };
    let functions = vec![
        pictures,
        AppFunction::new("resizer", handler.join("resizer.py")),
    ];
    let path = format!("/?size=200&url=http://127.0.0.1:{port}/large.jpg");
    let cases = vec![AppCase {
        name: "",
        function: "resizer",
        calls: CaseCalls::Same(RemoteCall::for_get(&path, JPEG_MARK)),
    }];
    Ok(ExampleApp {
        python,
        functions,
        cases,
        service: Box::new(()),
    })
}
