//! Returns its name and the path of its call to the function in `NEXT`.

use nearpath::{Error, Request};

async fn handle_request(request: Request) -> Result<String, Error> {
    let Ok(next) = std::env::var("NEXT") else {
        return Ok("rust".to_owned());
    };
    let response = nearpath::call(&next, request.into_body()).await?;
    let path = response.path().map_or("?", |path| path.name());
    Ok(format!(
        "rust -{path}-> {}",
        String::from_utf8_lossy(response.body())
    ))
}

fn main() -> Result<(), Error> {
    nearpath::serve(handle_request)
}
