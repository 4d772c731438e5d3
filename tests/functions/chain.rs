//! Function for tests of shared memory: its 100-byte response tells how the call arrived.
//!
//! `test-chain-function [NEXT]` calls NEXT before it responds to a call through shared memory.
#![forbid(unsafe_code)]

use nearpath::{CallOptions, Path, Request, Response};

const OVER_HTTP: &str = "{\"message\":\"a response of one hundred bytes, to a call that came over HTTP.......................\"}\n";
const OVER_SHM: &str = "{\"message\":\"a response of one hundred bytes, to a call through shared memory.....................\"}\n";

async fn handle(request: Request) -> Response {
    // Until the function has joined the domain, its watchdog calls it over HTTP.
    if request.arrival_path() != Path::Shm {
        return Response::new(OVER_HTTP);
    }
    // No other path: an edge that is missing must show as an error.
    let Some(next) = std::env::args().nth(1) else {
        return Response::new(OVER_SHM);
    };
    match nearpath::call_with(&next, "", CallOptions::default().shm_only()).await {
        Ok(_) => Response::new(OVER_SHM),
        Err(error) => {
            eprintln!("{error}");
            Response::new("the next function did not answer").with_status(502)
        }
    }
}

fn main() -> Result<(), nearpath::Error> {
    nearpath::serve(handle)
}

#[cfg(test)]
mod tests {
    #[test]
    fn responses_have_a_hundred_bytes() {
        assert_eq!((super::OVER_HTTP.len(), super::OVER_SHM.len()), (100, 100));
    }
}
