//! The shop's currency service: `GET /supported` lists currency codes, `POST /convert` converts an
//! amount.
//!
//! An ordinary HTTP server on 127.0.0.1:$PORT. It imports nothing of nearpath: any program that
//! serves HTTP is a function.

mod rates;

use std::net::Ipv4Addr;

use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use serde::Deserialize;
use tokio::net::{TcpListener, TcpStream};

use crate::rates::MoneyAmount;

/// Body of `POST /convert`.
#[derive(Deserialize)]
struct ConversionRequest {
    from: MoneyAmount,
    to: String,
}

async fn convert(
    Json(asked): Json<ConversionRequest>,
) -> Result<Json<MoneyAmount>, (StatusCode, String)> {
    rates::convert_amount(&asked.from, &asked.to)
        .map(Json)
        .map_err(|error| (StatusCode::BAD_REQUEST, error.to_string()))
}

async fn list_currencies() -> Json<Vec<&'static str>> {
    Json(
        rates::CURRENCY_RATES
            .iter()
            .map(|(code, _)| *code)
            .collect(),
    )
}

async fn serve_connection(
    stream: TcpStream,
    shop: Router,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    stream.set_nodelay(true)?;
    let service = TowerToHyperService::new(shop);
    hyper::server::conn::http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .await?;
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let port = std::env::var("PORT").map_or(Ok(5000), |port| port.parse())?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
    eprintln!("listening on {}", listener.local_addr()?);
    let shop = Router::new()
        .route("/supported", get(list_currencies))
        .route("/convert", post(convert));
    loop {
        let (stream, _) = listener.accept().await?;
        let shop = shop.clone();
        tokio::spawn(serve_connection(stream, shop)); // an error ends this connection alone
    }
}
