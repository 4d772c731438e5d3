//! Functions of Hello, Retail! that open a connection to the database for every access: unchanged,
//! and with the pool.

use std::path::Path;
use std::time::Instant;

use bytes::Bytes;
use http::Request;

use super::database::{DatabaseFixture, add_ratio_goal, copy_folder, to_sample};
use super::round_trip_name;
use crate::compare::BenchComparison;
use crate::pool::setup::PoolNode;
use crate::remote::BenchError;

/// The functions, with path and body of their requests; each instance stays between two requests.
const RETAIL_FUNCTIONS: [(&str, &str, &str); 3] = [
    ("product-catalog-api", "/products?id=boot-1", ""),
    ("product-purchase-get-price", "/", "{\"id\":\"boot-1\"}"),
    (
        "photo-register",
        "/",
        "{\"id\":\"zoe\",\"name\":\"Zoe Ash\",\"email\":\"zoe@example.com\"}",
    ),
];
/// Variants: functions without a sandbox, which reach the database directly, and functions with the
/// pool.
const RETAIL_VARIANTS: [&str; 2] = ["direct", "pool"];
/// Requests of a measurement.
const REQUEST_COUNT: usize = 40;

/// Measures the functions. `node` has the pool; the direct variant uses another node.
pub(super) async fn measure(
    fixture: &DatabaseFixture<'_>,
    pooled: &PoolNode,
    comparison: &mut BenchComparison,
) -> Result<(), BenchError> {
    let case = |name: &str| format!("Hello, Retail! {name}, {}", round_trip_name(fixture.place));
    let wanted: Vec<_> = RETAIL_FUNCTIONS
        .into_iter()
        .filter(|(name, ..)| fixture.args.wants_case(&case(name)))
        .collect();
    if wanted.is_empty() {
        return Ok(());
    }
    // Without a sandbox there is no egress interception: the functions connect as any program.
    let direct = PoolNode::start(&["--no-sandbox"]).await?;
    for (number, (name, path, body)) in wanted.into_iter().enumerate() {
        for (node, egress) in [(&direct, String::new()), (pooled, fixture.egress_list())] {
            deploy_retail(fixture, node, name, number, &egress).await?;
        }
        let send = async |index: usize| {
            let node = [&direct, pooled][index];
            let mut times = Vec::new();
            for _ in 0..REQUEST_COUNT {
                let begun = Instant::now();
                call_one(node, name, path, body).await?;
                times.push(begun.elapsed());
            }
            Ok::<_, BenchError>(to_sample(&times))
        };
        let case = case(name);
        comparison
            .measure_case(&case, &RETAIL_VARIANTS, send)
            .await?;
        add_ratio_goal(
            comparison,
            &case,
            RETAIL_VARIANTS[1],
            RETAIL_VARIANTS[0],
            0.5,
        );
    }
    Ok(())
}

/// Port of a function: without a sandbox all functions listen on one loopback.
async fn deploy_retail(
    fixture: &DatabaseFixture<'_>,
    node: &PoolNode,
    name: &str,
    number: usize,
    egress: &str,
) -> Result<(), BenchError> {
    let image = node.create_image(name, |folder| {
        copy_folder(Path::new("examples/retail/services"), folder)?;
        copy_folder(fixture.python.packages_folder(), &folder.join("packages"))
    })?;
    // Without a sandbox all functions share the node's loopback, so ports must differ.
    let port = (5000 + number).to_string();
    let upstream = format!("http://127.0.0.1:{port}");
    let more = [
        ("mode", "http"),
        ("upstream_url", upstream.as_str()),
        ("PORT", &port),
        ("PYTHONPATH", "./packages"),
    ];
    node.deploy_function(
        name,
        &image,
        &format!("python3 {name}.py"),
        egress,
        fixture.function_variables(&more),
    )
    .await
}

async fn call_one(node: &PoolNode, name: &str, path: &str, body: &str) -> Result<(), BenchError> {
    let uri = format!("/function/{name}{path}");
    let request = if body.is_empty() {
        Request::get(uri)
    } else {
        Request::post(uri)
    };
    node.send_request(name, request, Bytes::copy_from_slice(body.as_bytes()))
        .await
        .map(drop)
}
