//! Says its name, and how it reached the function that `NEXT` names.

use nearpath::{Error, Request};

async fn answer_request(request: Request) -> Result<String, Error> {
    let Ok(next) = std::env::var("NEXT") else {
        return Ok("rust".to_owned());
    };
    let answer = nearpath::call(&next, request.into_body()).await?;
    let path = answer.path().map_or("?", |path| path.name());
    Ok(format!(
        "rust -{path}-> {}",
        String::from_utf8_lossy(answer.body())
    ))
}

fn main() -> Result<(), Error> {
    nearpath::serve(answer_request)
}
