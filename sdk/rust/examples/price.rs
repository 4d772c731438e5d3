//! Price is a function that asks another one for the rate and passes it on.

use nearpath::{Error, Request, Response};

async fn price(request: Request) -> Result<Response, Error> {
    let rate = nearpath::call("currency", request.into_body()).await?;
    if let Some(path) = rate.path() {
        println!("{} bytes came over {path}", rate.body().len());
    }
    Ok(Response::new(rate.into_body()))
}

fn main() -> Result<(), Error> {
    nearpath::serve(price)
}
