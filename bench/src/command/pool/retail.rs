//! Functions of Hello, Retail! that open a connection to the database for every access: as they are, and with the pool.

use std::path::Path;
use std::time::Instant;

use bytes::Bytes;
use http::Request;

use super::database::{Town, against, copy, told};
use super::round_trip;
use crate::compare::Comparison;
use crate::pool::stage::Stage;
use crate::remote::Error;

/// The functions, what they are asked, and with what; each stays between two requests.
const FUNCTIONS: [(&str, &str, &str); 3] = [
    ("product-catalog-api", "/products?id=boot-1", ""),
    ("product-purchase-get-price", "/", "{\"id\":\"boot-1\"}"),
    (
        "photo-register",
        "/",
        "{\"id\":\"zoe\",\"name\":\"Zoe Ash\",\"email\":\"zoe@example.com\"}",
    ),
];
/// Who connects: functions that reach the database by themselves (no sandbox, hence no pool), and the same with it.
const WAYS: [&str; 2] = ["direct", "pool"];
/// Requests of a measurement.
const REQUESTS: usize = 40;

/// The pool's stage is here; that of the others is another node.
pub(super) async fn measure(
    town: &Town<'_>,
    pooled: &Stage,
    comparison: &mut Comparison,
) -> Result<(), Error> {
    let case = |name: &str| format!("Hello, Retail! {name}, {}", round_trip(town.place));
    let wanted: Vec<_> = FUNCTIONS
        .into_iter()
        .filter(|(name, ..)| town.args.wants(&case(name)))
        .collect();
    if wanted.is_empty() {
        return Ok(());
    }
    let direct = Stage::start(&["--no-sandbox"]).await?;
    for (number, (name, path, body)) in wanted.into_iter().enumerate() {
        for (stage, egress) in [(&direct, String::new()), (pooled, town.egress())] {
            deploy(town, stage, name, number, &egress).await?;
        }
        let ask = async |index: usize| {
            let stage = [&direct, pooled][index];
            let mut times = Vec::new();
            for _ in 0..REQUESTS {
                let begun = Instant::now();
                one(stage, name, path, body).await?;
                times.push(begun.elapsed());
            }
            Ok::<_, Error>(told(&times))
        };
        let case = case(name);
        comparison.case(&case, &WAYS, ask).await?;
        against(comparison, &case, WAYS[1], WAYS[0], 0.5);
    }
    Ok(())
}

/// Without a sandbox all functions listen on one loopback: each has its port.
async fn deploy(
    town: &Town<'_>,
    stage: &Stage,
    name: &str,
    number: usize,
    egress: &str,
) -> Result<(), Error> {
    let image = stage.image(name, |folder| {
        copy(Path::new("examples/retail/services"), folder)?;
        copy(town.python.packages(), &folder.join("packages"))
    })?;
    let port = (5000 + number).to_string();
    let upstream = format!("http://127.0.0.1:{port}");
    let more = [
        ("mode", "http"),
        ("upstream_url", upstream.as_str()),
        ("PORT", &port),
        ("PYTHONPATH", "./packages"),
    ];
    stage
        .deploy(
            name,
            &image,
            &format!("python3 {name}.py"),
            egress,
            town.variables(&more),
        )
        .await
}

async fn one(stage: &Stage, name: &str, path: &str, body: &str) -> Result<(), Error> {
    let uri = format!("/function/{name}{path}");
    let request = if body.is_empty() {
        Request::get(uri)
    } else {
        Request::post(uri)
    };
    stage
        .ask(name, request, Bytes::copy_from_slice(body.as_bytes()))
        .await
        .map(drop)
}
