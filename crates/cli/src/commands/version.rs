//! `version`: of this program, and of the gateway when there is one.

use serde_json::{Value, json};

use crate::api::{Client, Target};
use crate::args::VersionArgs;
use crate::exit::{Exit, Outcome};
use crate::output;

pub(super) fn run(args: &VersionArgs) -> Outcome {
    let client = Client::new(Target::of(&args.connection, None)?);
    let info = client.info();
    let version = env!("CARGO_PKG_VERSION");
    if args.json {
        let server = info.as_ref().map_or(Value::Null, |info| json!(info));
        let error = info.as_ref().err().map(ToString::to_string);
        output::print_json(&json!({ "client": { "version": version }, "server": server, "error": error }))?;
        return Ok(Exit::Ok);
    }
    let server = match &info {
        Ok(info) => format!("{} at {}", release(info), client.base()),
        Err(failure) => failure.to_string(),
    };
    output::print(&format!("client  nearpath {version}\nserver  {server}\n"))?;
    Ok(Exit::Ok)
}

/// Name and release of the gateway or, as OpenFaaS has it too, of its provider.
fn release(info: &crate::api::Info) -> String {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let name = text(&info.provider["provider"]).unwrap_or_else(|| "gateway".to_owned());
    let release = text(&info.version["release"]).or_else(|| text(&info.provider["version"]["release"]));
    format!("{name} {}", release.unwrap_or_else(|| "of unknown version".to_owned()))
}
