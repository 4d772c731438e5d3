//! `invoke`: one call of a function, with request and response bodies streamed.
//!
//! The request has no credentials: functions need none, and must not learn the administrator's
//! password.

use std::fs::File;
use std::io::{self, IsTerminal, Read, Write};
use std::time::Duration;

use clap::Args;
use http::{HeaderName, HeaderValue, Method, Request, Response, header};
use nearpath_types::name::DEFAULT_NAMESPACE;
use nearpath_types::{FunctionId, duration};
use ureq::Body;

use crate::api::{ApiClient, GatewayTarget, error_text, percent_encode};
use crate::exit::{CommandError, CommandResult, ExitStatus};
use crate::gateway_args::{GatewayArgs, parse_pair};
use crate::output;

/// Options of `invoke`.
#[derive(Debug, Args)]
#[allow(missing_docs)]
pub struct InvokeArgs {
    /// Name the function, as NAME or NAME.NAMESPACE
    pub name: FunctionId,
    /// Send this body: the text itself, @FILE, or - for standard input [default: standard input
    /// unless it is a terminal]
    #[arg(short, long, value_name = "DATA", allow_hyphen_values = true)]
    pub data: Option<String>,
    /// Send a header field
    #[arg(short = 'H', long, value_name = "NAME: VALUE", value_parser = parse_header)]
    pub header: Vec<(String, String)>,
    /// Use this HTTP method
    #[arg(short = 'X', long, default_value = "POST")]
    pub method: String,
    /// Append this path to the function's name
    #[arg(long, default_value = "", hide_default_value = true)]
    pub path: String,
    /// Add a query parameter
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_pair)]
    pub query: Vec<(String, String)>,
    /// Give up after this time
    #[arg(long, value_name = "DURATION", value_parser = duration::parse_duration)]
    pub timeout: Option<Duration>,
    /// Queue the call and return at once; comes with a later version
    #[arg(long = "async")]
    pub asynchronous: bool,
    /// Print status and header fields to standard error
    #[arg(short, long)]
    pub verbose: bool,
    #[command(flatten)]
    pub gateway: GatewayArgs,
}

/// Parses `NAME: VALUE`, or `NAME=VALUE` as OpenFaaS's client takes it.
fn parse_header(text: &str) -> Result<(String, String), String> {
    match text.split_once([':', '=']) {
        Some((key, value)) if !key.trim().is_empty() => {
            Ok((key.trim().to_owned(), value.trim().to_owned()))
        }
        _ => Err("expected `NAME: VALUE`".to_owned()),
    }
}

pub(super) fn run(args: &InvokeArgs) -> CommandResult {
    if args.asynchronous {
        return Err(CommandError::new(
            ExitStatus::Usage,
            "--async: asynchronous calls come with a later version; call without it",
        ));
    }
    let client = ApiClient::new(GatewayTarget::from_args(&args.gateway, None)?);
    let head = request_head(&client, args)?;
    let body = BodySource::from_args(args, head.method())?;
    let response = body.send(&client, head, args.timeout)?;
    if args.verbose {
        print_response_head(&response);
    }
    print_response(response)
}

/// Returns the URL of a function, which names its namespace only if that is not the default.
pub(super) fn function_url(client: &ApiClient, id: &FunctionId) -> String {
    match id.namespace.as_str() {
        DEFAULT_NAMESPACE => format!("{}/function/{}", client.base(), id.name),
        _ => format!("{}/function/{id}", client.base()),
    }
}

fn request_head(client: &ApiClient, args: &InvokeArgs) -> Result<Request<()>, CommandError> {
    let usage = |text: String| CommandError::new(ExitStatus::Usage, text);
    let method: Method = args.method.parse().map_err(|_| {
        usage(format!(
            "--method {:?}: expected an HTTP method",
            args.method
        ))
    })?;
    let mut uri = function_url(client, &args.name);
    if !args.path.is_empty() {
        // Not encoded: the path may include a query, and percent escapes of the user.
        uri = format!("{uri}/{}", args.path.trim_start_matches('/'));
    }
    let pairs: Vec<_> = args
        .query
        .iter()
        .map(|(key, value)| format!("{}={}", percent_encode(key), percent_encode(value)))
        .collect();
    if !pairs.is_empty() {
        uri += &format!(
            "{}{}",
            // `--path` may already have a query.
            if uri.contains('?') { '&' } else { '?' },
            pairs.join("&")
        );
    }
    let mut request = Request::builder().method(method).uri(&uri);
    for (name, value) in &args.header {
        let name: HeaderName = name
            .parse()
            .map_err(|_| usage(format!("--header {name:?}: expected a header field name")))?;
        let value: HeaderValue = value.parse().map_err(|_| {
            usage(format!(
                "--header {name}: expected a value without control characters"
            ))
        })?;
        request = request.header(name, value);
    }
    if !args
        .header
        .iter()
        .any(|(name, _)| name.eq_ignore_ascii_case("content-type"))
    {
        // OpenFaaS's client sends the same, and functions may depend on it.
        request = request.header(header::CONTENT_TYPE, "text/plain");
    }
    request
        .body(())
        .map_err(|error| usage(format!("invalid URL {uri}: {error}")))
}

/// Source of the request's body.
enum BodySource {
    Empty,
    Text(Vec<u8>),
    File(File),
    Stdin(io::Stdin),
}

impl BodySource {
    fn from_args(args: &InvokeArgs, method: &Method) -> Result<Self, CommandError> {
        let has_no_body =
            [Method::GET, Method::HEAD, Method::OPTIONS, Method::DELETE].contains(method);
        match args.data.as_deref() {
            // Waiting for input from a terminal would look like a function that does not respond.
            None if has_no_body || io::stdin().is_terminal() => Ok(Self::Empty),
            None | Some("-") => Ok(Self::Stdin(io::stdin())),
            Some(data) => match data.strip_prefix('@') {
                None => Ok(Self::Text(data.as_bytes().to_vec())),
                Some(path) => match File::open(path) {
                    Ok(file) => Ok(Self::File(file)),
                    Err(error) => Err(CommandError::new(
                        ExitStatus::Usage,
                        format!("-d @{path}: {error}"),
                    )),
                },
            },
        }
    }

    /// Sends the request: texts and files with their length, standard input in chunks.
    fn send(
        self,
        client: &ApiClient,
        head: Request<()>,
        timeout: Option<Duration>,
    ) -> Result<Response<Body>, CommandError> {
        match self {
            Self::Empty => client.send(head, timeout),
            Self::Text(text) => client.send(head.map(|()| text), timeout),
            Self::File(file) => client.send(head.map(|()| file), timeout),
            Self::Stdin(stdin) => client.send(head.map(|()| stdin), timeout),
        }
    }
}

fn print_response_head(response: &Response<Body>) {
    eprintln!("{:?} {}", response.version(), response.status());
    for (name, value) in response.headers() {
        eprintln!("{name}: {}", String::from_utf8_lossy(value.as_bytes()));
    }
    eprintln!();
}

/// Prints the body to standard output as it arrives. A platform error becomes the command's error
/// instead: it is no output of the function.
fn print_response(response: Response<Body>) -> CommandResult {
    let status = response.status();
    let reason = response
        .headers()
        .get("x-nearpath-reason")
        .map(|reason| String::from_utf8_lossy(reason.as_bytes()).into_owned());
    // Only platform errors have a reason.
    if let Some(reason) = reason {
        let exit = if reason == "no_function" {
            ExitStatus::NotFound
        } else {
            ExitStatus::FunctionError
        };
        return Err(CommandError::new(
            exit,
            platform_error(status.as_u16(), &reason, &error_text(response)),
        ));
    }
    // Before the status is checked: the body of an error response is output of the function, too.
    copy_to_stdout(response.into_body())?;
    match status.is_client_error() || status.is_server_error() {
        true => Err(CommandError::new(
            ExitStatus::FunctionError,
            format!("the function returned {status}"),
        )),
        false => Ok(ExitStatus::Ok),
    }
}

/// Formats a platform error with its status. The reason appears exactly once.
fn platform_error(status: u16, reason: &str, text: &str) -> String {
    // The gateway's own texts name the reason; a proxy in between may have replaced the text.
    match text.contains(reason) {
        true => format!("{status}: {text}"),
        false => format!("{status} ({reason}): {text}"),
    }
}

fn copy_to_stdout(body: Body) -> Result<(), CommandError> {
    // No limit: a function's output may have any length.
    let mut reader = body.into_with_config().limit(u64::MAX).reader();
    let mut out = io::stdout().lock();
    let mut buffer = vec![0; 64 << 10];
    loop {
        let read = match reader.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => {
                return Err(CommandError::new(
                    ExitStatus::FunctionError,
                    format!("response interrupted: {error}"),
                ));
            }
        };
        out.write_all(&buffer[..read])
            // Flushed after each read, so that the output of a streaming function appears at once.
            .and_then(|()| out.flush())
            .map_err(|error| output::write_error(&error))?;
    }
}

#[cfg(test)]
mod tests {
    use super::platform_error;

    #[test]
    fn the_reason_is_named_once() {
        assert_eq!(
            platform_error(404, "no_function", "gateway: no_function: none"),
            "404: gateway: no_function: none"
        );
        assert_eq!(
            platform_error(502, "connect_failed", "bad gateway"),
            "502 (connect_failed): bad gateway"
        );
    }
}
