//! `version`: of this program, and of the gateway if there is one.

use clap::Args;
use serde_json::{Value, json};

use crate::api::{ApiClient, GatewayInfo, GatewayTarget};
use crate::exit::{CommandResult, ExitStatus};
use crate::gateway_args::GatewayArgs;
use crate::output;

/// Options of `version`.
#[derive(Debug, Args)]
#[allow(missing_docs)]
pub struct VersionArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub gateway: GatewayArgs,
}

pub(super) fn run(args: &VersionArgs) -> CommandResult {
    let client = ApiClient::new(GatewayTarget::from_args(&args.gateway, None)?);
    // Without a gateway the command still succeeds: the version of this program is what most
    // callers want.
    let info = client.info();
    let version = env!("CARGO_PKG_VERSION");
    if args.json {
        let server = info.as_ref().map_or(Value::Null, |info| json!(info));
        let error = info.as_ref().err().map(ToString::to_string);
        output::print_json(
            &json!({ "client": { "version": version }, "server": server, "error": error }),
        )?;
        return Ok(ExitStatus::Ok);
    }
    let server = match &info {
        Ok(info) => format!("{} at {}", name_and_release(info), client.base()),
        Err(error) => error.to_string(),
    };
    output::print(&format!("client  nearpath {version}\nserver  {server}\n"))?;
    Ok(ExitStatus::Ok)
}

/// Name and release of the gateway; OpenFaaS's gateways report those of their provider as well.
fn name_and_release(info: &GatewayInfo) -> String {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let name = text(&info.provider["provider"]).unwrap_or_else(|| "gateway".to_owned());
    let release =
        // The gateway's own release is the better answer; some report only their provider's.
        text(&info.version["release"]).or_else(|| text(&info.provider["version"]["release"]));
    format!(
        "{name} {}",
        release.unwrap_or_else(|| "of unknown version".to_owned())
    )
}
